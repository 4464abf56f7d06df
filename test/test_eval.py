"""Claims about `reflectdrive eval`: who drives like the human scores like him, and every fault is one sentence."""

import contextlib
import io
import json
import shutil
from functools import partial
from pathlib import Path

import commands
import numpy as np
import pytest
from planners_of_tests import PlannersOfTests
from rich.console import Console

from reflectdrive_ros.cli import eval
from reflectdrive_ros.core.config import Config
from reflectdrive_ros.core.domain import Plan, Trajectory
from reflectdrive_ros.data import real_tracks
from reflectdrive_ros.evaluation import recorded_tracks, variants
from reflectdrive_ros.planning.planner import PlanningError

HERE = Path(__file__).parent / "data/real_tracks"
WHOLE_SET = Path(__file__).parents[2] / "shared/data/real_tracks"
KEYS = {"scenes", "pdms", "nc", "dac", "ttc", "comfort", "ep"}


command = partial(commands.run, eval, workers=1)  # each takes a second to start, and tests run side by side


@pytest.fixture(scope="module")
def answer(tmp_path_factory):
    """What the command writes and prints for the recordings in the clone."""
    file = tmp_path_factory.mktemp("eval") / "eval.json"
    with contextlib.redirect_stdout(io.StringIO()) as output:
        assert command("--scenes", HERE, "--json", file) == 0
    return json.loads(file.read_text()), output.getvalue()


@pytest.fixture(scope="module")
def written(answer):
    return answer[0]


@pytest.fixture
def planners(monkeypatch):
    """Planners that only tests have."""
    return PlannersOfTests(monkeypatch)


def test_the_keys_that_others_rely_on(written):
    assert written.keys() >= KEYS | {"families", "version", "commit", "device", "date", "command", "drivers"}
    assert written["set"] == "real_tracks"
    assert set(written["drivers"]) == {"human", "constant_velocity", "route_follower"}
    assert set(written["families"]) == {"USA_Lanker", "USA_Peach", "USA_US101"}
    for means in (written, *written["drivers"].values(), *written["families"].values()):
        assert means.keys() >= KEYS
        assert all(means[key] is None or 0 <= means[key] <= 100 for key in KEYS - {"scenes"})
    for driver in written["drivers"].values():
        assert driver["scenes"] == 5 == sum(means["scenes"] for means in driver["families"].values())


def test_the_numbers_at_the_top_are_those_of_the_first_planner(written, tmp_path):
    """Also of a folder that is named as in training."""
    assert written["planner"] == "constant_velocity"
    assert written["pdms"] == written["drivers"]["constant_velocity"]["pdms"]
    command("--scenes", f"real_tracks:{HERE}", "--planner", "route_follower", "--json", tmp_path / "one.json")
    one = json.loads((tmp_path / "one.json").read_text())
    assert one["planner"] == "route_follower"
    assert set(one["drivers"]) == {"human", "route_follower"}
    assert one["drivers"]["route_follower"] == written["drivers"]["route_follower"]


def test_recordings_without_a_map_are_left_out_by_name(answer):
    written, output = answer
    assert written["left_out"] == ["pandaset_002"]
    assert written["recordings"] == 3
    assert "no map to score by: pandaset_002" in output


def test_the_comfort_of_a_human_seen_from_above_is_not_told(answer):
    written, output = answer
    human = written["drivers"]["human"]
    assert human["comfort"] is None
    assert human["pdms"] == human["pdms_without_comfort"]
    assert written["comfort"] is not None
    assert " - " in next(line for line in output.splitlines() if "human" in line)


def test_the_human_hits_nobody_and_gets_further_than_going_straight(written):
    human = written["drivers"]["human"]
    assert human["nc"] == human["ttc"] == human["dac"] == 100
    assert human["pdms"] > written["drivers"]["constant_velocity"]["pdms"]


def test_a_planner_that_drives_like_the_human_scores_like_him(planners, monkeypatch):
    """The score of a plan does not depend on who made it, nor on the detour through 10 Hz plans."""
    recordings = [real_tracks.load(path) for path in sorted(HERE.glob("ngsim*.npz"))]
    humans = {start.name: start.human for recording in recordings for start in real_tracks.starts(recording)}
    current = []
    original = real_tracks.start_at
    monkeypatch.setattr(real_tracks, "start_at", lambda *args: current.append(original(*args)) or current[-1])

    def copy(state, observation, planner_context):
        human = humans[current[-1].name]
        return state, Plan(observation.stamp_ns, observation.ego.map_from_ego, Trajectory(human, 0.5))

    planners["copy"] = copy
    result = recorded_tracks.evaluate(HERE, variants.of_planners(Config(), ["copy"]), Console(quiet=True))
    measures = [recorded_tracks.MEASURES.index(name) for name in ("nc", "dac", "ttc", "ep", "pdms_without_comfort")]
    human, copied = np.array(result.scores["human"])[:, measures], np.array(result.scores["copy"])[:, measures]
    np.testing.assert_allclose(copied, human, atol=1e-9)


def test_a_planner_without_a_plan_scores_nothing_and_is_named(planners, tmp_path, capsys):
    def lost(state, observation, planner_context):
        raise PlanningError("the route is empty")

    def short(state, observation, planner_context):
        return state, Plan(observation.stamp_ns, observation.ego.map_from_ego, Trajectory(np.zeros((6, 3)), 0.5))

    planners |= {"lost": lost, "short": short}
    assert command("--scenes", HERE, "--planner", "lost", "short", "--json", tmp_path / "it.json") == 0
    output = capsys.readouterr().out
    assert "lost had no plan for 5 starts, scored 0; the first: ngsim" in output
    assert "the plan ends at 3.0 s, 4 s are checked" in output
    content = json.loads((tmp_path / "it.json").read_text())
    assert content["pdms"] == content["nc"] == content["ep"] == 0
    assert len(content["failures"]["lost"]) == 5


@pytest.mark.parametrize("case", ["nowhere", "empty", "broken", "mapless"])
def test_a_fault_is_one_sentence_and_exit_code_2(case, tmp_path, capsys):
    folder = tmp_path / case
    if case != "nowhere":
        folder.mkdir()
    if case == "broken":
        (folder / "a.npz").write_bytes((HERE / "ngsim_USA_Peach-3_1_T-1_ego407.npz").read_bytes()[:5000])
    if case == "mapless":
        shutil.copy(HERE / "pandaset_002.npz", folder)
    assert command("--scenes", folder) == 2
    (sentence,) = capsys.readouterr().err.strip().splitlines()
    assert str(tmp_path) in sentence


def test_an_unknown_planner_is_refused(capsys):
    for planners in (["genius"], ["idm_proposals", "genius"], ["genius+idm_proposals"]):
        assert command("--planner", *planners) == 2
        assert capsys.readouterr().err.startswith("planner is 'genius', expected one of constant_velocity, route_foll")


def test_planners_with_a_plus_are_one_row(written, tmp_path):
    both = "constant_velocity+idm_proposals"
    assert command("--scenes", HERE, "--planner", "constant_velocity", both, "--json", tmp_path / "it.json") == 0
    rows = json.loads((tmp_path / "it.json").read_text())["drivers"]
    assert set(rows) == {"human", "constant_velocity", both}
    assert rows["constant_velocity"] == written["drivers"]["constant_velocity"]
    assert rows[both] not in (rows["constant_velocity"], rows["human"])
    words = ("--scenes", HERE, "--variant", "both", f"planner={both}", "--json", tmp_path / "variant.json")
    assert command(*words) == 0
    assert json.loads((tmp_path / "variant.json").read_text())["drivers"]["both"] == rows[both]


@pytest.mark.long
@pytest.mark.skipif(not WHOLE_SET.is_dir(), reason="needs ../shared/data/real_tracks")
def test_the_whole_set(tmp_path):
    """The human hits nobody anywhere; the route follower beats going straight on every site."""
    assert command("--scenes", WHOLE_SET, "--json", tmp_path / "whole.json") == 0
    content = json.loads((tmp_path / "whole.json").read_text())
    human, straight, follower = (content["drivers"][name] for name in ("human", "constant_velocity", "route_follower"))
    assert human["scenes"] > 80
    assert human["nc"] == human["ttc"] == 100
    assert human["dac"] > 98
    assert human["pdms"] > 95
    for site in content["families"]:
        assert follower["families"][site]["pdms"] > straight["families"][site]["pdms"] + 5
