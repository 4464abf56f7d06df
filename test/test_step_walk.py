"""How an observation walks through `Engine.step`: from file to file, call by call, and what is built on the way."""

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
RETURNS_MAX = {"route_follower": 45, "reflectdrive2": 60}


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


def returns(calls):
    """The pairs of files (caller, callee) by which a call enters a file that the walk had entered before and left.

    A pair counts once, however often its calls repeat it: loops, and further calls of the same file, add nothing.
    """
    entered, pairs = set(), []
    for caller, _, callee, _ in calls:
        if callee in entered and (caller, callee) not in pairs:
            pairs.append((caller, callee))
        entered.add(callee)
    return pairs


def further_callers(calls):
    """How many pairs of files (caller, callee) there are beyond the first one of each callee."""
    pairs = {(caller, callee) for caller, _, callee, _ in calls}
    return len(pairs) - len({callee for _, callee in pairs})


@pytest.fixture(scope="module")
def network():
    return OrtNetwork.from_file(GRAPHS["fp32"], 1)


def observations(count):
    return [privilege.observe(scene, "objects") for scene in parity.read_scenes(SCENES, count, Console(quiet=True))]


def engine(planner, network):
    config = replace(CONFIG, planner=planner)
    if planner != "reflectdrive2":
        return Engine(config, lambda: 0.0)
    config = replace(config, model=model_config(str(GRAPHS["fp32"]), None))
    return Engine(config, lambda: 0.0, get_planner(config), network)


def test_a_walk_that_goes_back_and_forth_is_seen():
    there_and_back = [("a", "f", "b", "g"), ("b", "g", "c", "h"), ("a", "f", "c", "h"), ("c", "h", "b", "g")]
    assert returns(there_and_back) == [("a", "c"), ("c", "b")]
    assert further_callers(there_and_back) == 2  # c from a, b from c
    assert returns(there_and_back * 3) == [("a", "c"), ("c", "b"), ("a", "b"), ("b", "c")]


@pytest.fixture(scope="module")
def walks(network):
    """Of each planner the calls and the report of one step for each of 20 observations, with agents and drivable space
    known."""
    walks_by_planner = {}
    for planner in ("route_follower", "reflectdrive2"):
        walks_by_planner[planner] = []
        for observation in observations(20):
            driven, reports = engine(planner, network), []
            calls = calls_between_files(lambda: reports.append(driven.step(observation)))  # noqa: B023
            walks_by_planner[planner].append((calls, reports[0]))
    return walks_by_planner


@pytest.mark.parametrize("planner", RETURNS_MAX)
def test_a_step_comes_back_to_few_files_that_it_had_left(walks, planner):
    """Of route_follower: stop plan, generator, stages of the pipeline, guard, safety check; reflectdrive2 has a network
    and its choice of goals too."""
    for calls, _ in walks[planner]:
        pairs = returns(calls)
        assert len(pairs) <= RETURNS_MAX[planner], pairs


@pytest.mark.parametrize(("planner", "most"), [("route_follower", 28), ("reflectdrive2", 38)])
def test_files_have_few_callers_beyond_the_one_that_opened_them(walks, planner, most):
    """The second number includes the inside of the driving score and of the network's backend."""
    assert max(further_callers(calls) for calls, _ in walks[planner]) <= most


@pytest.mark.parametrize("planner", ["route_follower", "reflectdrive2"])
def test_no_two_files_of_planning_and_scoring_call_each_other(walks, planner):
    """A step goes down from the engine to the pipeline, its generator and its checks. Callables that are handed in (a
    clock, a graph's backend) belong to `runtime`."""
    for calls, _ in walks[planner]:
        pairs = {(caller, callee) for caller, _, callee, _ in calls}
        mutual = {pair for pair in pairs if pair[::-1] in pairs and "runtime" not in (pair[0] + pair[1])}
        assert not mutual


@pytest.mark.parametrize("planner", ["route_follower", "reflectdrive2"])
def test_a_step_builds_what_its_checks_share_once(walks, planner):
    """The route's frame once; the prediction twice: for the stop plan, which knows no route, and for all the rest."""
    for calls, report in walks[planner]:
        assert report.plan.check.objects is not None
        built = Counter((file, name) for _, _, file, name in calls)
        assert built["scoring/frenet.py", "of"] == 1
        assert built["scoring/prediction.py", "forecast"] == 2
