"""How an observation goes through `Engine.step`: which file calls which, and what is built on the way."""

import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from shipped_planner import CONFIG, GRAPHS, SCENES

import reflectdrive_ros
from reflectdrive_ros.bench import parity
from reflectdrive_ros.cli.eval import Console
from reflectdrive_ros.evaluation import privilege
from reflectdrive_ros.planning import get_planner
from reflectdrive_ros.runtime.engine import Engine
from reflectdrive_ros.runtime.model_file import model_config
from reflectdrive_ros.runtime.ort_backend import OrtNetwork

PACKAGE = Path(reflectdrive_ros.__file__).parent
ROOMS = ("planning", "scoring", "runtime")


def file_of(frame):
    """The file of a frame relative to the package, None outside ROOMS."""
    path = Path(frame.f_code.co_filename)
    if PACKAGE not in path.parents:
        return None
    inside = path.relative_to(PACKAGE)
    return inside.as_posix() if inside.parts[0] in ROOMS else None


def calls_between_files(run):
    """(file, name, file, name) of caller and callee, for each call from a file of ROOMS into another, in order.

    Frames outside ROOMS (standard types, geometry, numpy) are passed through: the caller is the nearest frame in ROOMS.
    """
    calls = []

    def on_event(frame, event, _):
        callee = file_of(frame) if event == "call" else None
        if callee is None:
            return
        back = frame.f_back
        while back is not None and file_of(back) is None:
            back = back.f_back
        if back is not None and file_of(back) != callee:
            calls.append((file_of(back), back.f_code.co_name, callee, frame.f_code.co_name))

    sys.setprofile(on_event)
    try:
        run()
    finally:
        sys.setprofile(None)
    return calls


def engine(planner):
    config = replace(CONFIG, planner=planner)
    if planner != "reflectdrive2":
        return Engine(config, lambda: 0.0)
    config = replace(config, model=model_config(str(GRAPHS["fp32"]), None))
    return Engine(config, lambda: 0.0, get_planner(config), OrtNetwork.from_file(GRAPHS["fp32"], 1))


@pytest.fixture(scope="module", params=["route_follower", "reflectdrive2"])
def walks(request):
    """The calls and the report of one step for each of 20 observations, with agents and drivable space known."""
    calls_and_reports = []
    for scene in parity.read_scenes(SCENES, 20, Console(quiet=True)):
        observation, driven, reports = privilege.observe(scene, "objects"), engine(request.param), []
        calls = calls_between_files(lambda: reports.append(driven.step(observation)))  # noqa: B023
        calls_and_reports.append((calls, reports[0]))
    return calls_and_reports


def test_no_two_files_of_planning_and_scoring_call_each_other(walks):
    """A step goes down from the engine to the pipeline, its generator and its checks. Callables that are handed in (a
    clock, a graph's backend) belong to `runtime`."""
    for calls, _ in walks:
        pairs = {(caller, callee) for caller, _, callee, _ in calls}
        mutual = {pair for pair in pairs if pair[::-1] in pairs and "runtime" not in (pair[0] + pair[1])}
        assert not mutual


def test_a_step_builds_what_its_checks_share_once(walks):
    """The route's frame once; the prediction twice: for the stop plan, which knows no route, and for all the rest."""
    for calls, report in walks:
        assert report.plan.check.objects is not None
        built = Counter((file, name) for _, _, file, name in calls)
        assert built["scoring/frenet.py", "of"] == 1
        assert built["scoring/prediction.py", "forecast"] == 2
