"""Claims about `reflectdrive eval --closed-loop`: drives follow from their seed, and the table lists their outcomes."""

import argparse
import functools
import json
import os
import re
import signal
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from drive_logs import log, measurements
from scenes import config
from tiny_model import tiny_model  # noqa: F401 (a fixture)

from reflectdrive_ros.cli import eval as eval_command
from reflectdrive_ros.core.config import CamerasConfig, Config, ModelConfig
from reflectdrive_ros.core.domain import Trajectory
from reflectdrive_ros.evaluation import closed_loop, drive_results, driving_scores, variants
from reflectdrive_ros.infra import command as wrapper
from reflectdrive_ros.infra.errors import UserError
from reflectdrive_ros.maps import sumo
from reflectdrive_ros.planning.planner import PlanningError
from reflectdrive_ros.scoring.simulate import VX
from reflectdrive_ros.sim.drive_log import Collision, Event
from reflectdrive_ros.sim.traffic.actors import ActorShape
from reflectdrive_ros.sim.world import World, WorldOptions


def variant(planner, settings):
    (row,) = variants.of_planners(settings, [planner]).values()
    return row


FOLLOWER = variant("route_follower", Config())
SMALL = replace(Config(), cameras=replace(CamerasConfig(), width=96, height=54))


@functools.cache
def half_minute(seed):
    """Thirty seconds in a world."""
    return closed_loop.drive(WorldOptions(seed=seed), FOLLOWER, 30.0)


@pytest.mark.parametrize("seed", [1, pytest.param(3, marks=pytest.mark.long)])
def test_route_follower_stays_on_the_road_and_gets_on(seed):
    result = half_minute(seed)
    assert result.log.duration_s == pytest.approx(30.0)
    assert result.log.off_road_s < 1.0
    assert result.log.count("off_route") == 0
    assert result.log.at_fault == 0
    assert result.log.distance_m > 100.0
    assert 0.2 < result.log.route_completion <= 1.0
    assert sum(result.verdicts.values()) == sum(result.sources.values()) == 300
    assert len(result.scores) == 30


def test_a_drive_follows_from_its_seed():
    again = closed_loop.drive(WorldOptions(seed=1), FOLLOWER, 5.0)
    np.testing.assert_array_equal(again.log.states, half_minute(1).log.states[: len(again.log.states)])


def test_a_planner_with_cameras_gets_two_instants_half_a_second_apart():
    with World(WorldOptions(seed=1)) as world:
        eyes = closed_loop.CameraHistory(world, SMALL)
        start_ns = world.stamp_ns
        for _ in range(7):
            frames = eyes.capture()
            world.step(None)
    assert [frame.name for frame in frames] == ["front_left", "front", "front_right"] * 2
    assert [(frame.stamp_ns - start_ns) * 1e-9 for frame in frames] == pytest.approx([0.1] * 3 + [0.6] * 3)
    assert all(frame.pixels.shape == (54, 96, 3) for frame in frames)


@pytest.mark.parametrize("kind", ["none", "grid"])
def test_a_planner_gets_the_road_where_the_settings_require_it(kind, monkeypatch):
    grids = []

    class Listening(closed_loop.Engine):
        def step(self, observation):
            grids.append(observation.drivable)
            return super().step(observation)

    monkeypatch.setattr(closed_loop, "Engine", Listening)
    closed_loop.drive(WorldOptions(seed=1), variant("route_follower", config(inputs__drivable_type=kind)), 0.3)
    assert len(grids) == 3
    assert all((grid is not None) == (kind == "grid") for grid in grids)


@pytest.fixture(scope="module")
def moving():
    """A world in which the car begins at some speed: who can only go straight on at 8 m/s can go on from there."""
    for seed in range(30):
        with World(WorldOptions(seed=seed)) as world:
            if world.observation().ego.speed_mps > 4.0:
                return WorldOptions(seed=seed)
    pytest.fail("no world begins with a moving car")


def test_an_input_is_lost_after_some_time_of_a_drive_and_not_before(monkeypatch):
    monkeypatch.setattr(closed_loop, "LOST_AFTER_S", 0.3)
    seen = []

    def watching(state, observation, planner_context):
        seen.append((observation.agents is not None, observation.traffic_lights is not None))
        raise PlanningError("it only looks")

    lost = replace(variant("route_follower", Config()), lost=("objects",))
    closed_loop.drive(WorldOptions(seed=1), lost, 0.6, recipe=watching)
    assert seen == 3 * [(True, True)] + 3 * [(False, True)]


@pytest.mark.parametrize("lite", [0, 1])
def test_a_learned_planner_drives_with_and_without_lite_steps(tiny_model, moving, lite):  # noqa: F811
    settings = config(
        **tiny_model.settings,
        reflectdrive2__lite_steps_per_full=lite,
        cameras__width=96,
        cameras__height=54,
        guard__max_acceleration_mps2=15.0,
    )
    one = closed_loop.drive(moving, variant("reflectdrive2", settings), 3.0)
    assert set(one.planning_ms) == ({"full", "lite"} if lite else {"full"})
    assert one.sources["PLANNER"] >= 20, one.verdicts
    metrics = closed_loop.drive_metrics([one])["planning_ms"]
    assert sum(metrics[kind]["steps"] for kind in one.planning_ms) == 30
    assert all(metrics[kind]["mean"] > 0 for kind in one.planning_ms)
    assert metrics["mean"] > 0


@pytest.mark.parametrize("left", [1, 38, 39, 40, 80])
@pytest.mark.parametrize("speed", [0.0, 7.0])
def test_a_plan_that_was_carried_is_scored_as_if_it_went_on(left, speed):
    """Straight on at a speed, cut anywhere, is straight on at that speed."""
    poses = np.stack([0.1 * speed * np.arange(1, left + 1), np.zeros(left), np.zeros(left)], axis=1)
    whole = driving_scores.extend(Trajectory(poses, 0.1))
    assert whole.horizon_s == pytest.approx(max(4.0, 0.1 * left))
    np.testing.assert_allclose(whole.poses[:, 0], 0.1 * speed * np.arange(1, len(whole.poses) + 1), atol=1e-9)
    np.testing.assert_array_equal(whole.poses[:, 1:], 0.0)


def result(one, scores=(1.0,), parts=None):
    parts = np.ones((len(scores), len(closed_loop.PLAN_SCORES))) if parts is None else np.array(parts)
    plans = np.array(scores), parts, {"OK": 1}, {"PLANNER": 1}
    return closed_loop.DriveResult("route_follower", 0, "town", one, measurements(), *plans)


def test_the_parts_of_the_score_are_means_over_all_plans_of_all_drives():
    one = result(log(2.0, 5.0), [1.0, 0.0], [[1, 1, 1, 1, 0.5, 1], [0, 1, 0, 1, 1.0, 1]])
    other = result(log(1.0, 5.0), [0.5], [[1, 1, 1, 1, 0.0, 1]])
    metrics = closed_loop.drive_metrics([one, other])
    assert metrics["plan_scores"] == {
        "nc": 66.67,
        "dac": 100.0,
        "ttc": 66.67,
        "comfort": 100.0,
        "ep": 50.0,
        "tlc": 100.0,
    }
    assert closed_loop.drive_metrics([])["plan_scores"] == {}


def test_rates_are_over_all_kilometres_and_shares_over_all_time():
    hits = [Collision(1.0, 3, ActorShape.CAR, True), Collision(9.0, 4, ActorShape.CAR, False)]
    events = [Event("red_light", 2.0, ""), Event("off_road", 59.0, "")]
    drives = [result(log(100.0, 5.0, hits)), result(log(60.0, 25.0, (), events, 80), [0.5, 0.0])]
    numbers = closed_loop.drive_metrics(drives)
    assert numbers["km"] == pytest.approx(2.0)
    assert numbers["collisions_per_km"] == pytest.approx(1.0)
    assert numbers["at_fault_per_km"] == pytest.approx(0.5)
    assert numbers["red_lights_per_km"] == pytest.approx(0.5)
    assert numbers["off_road_per_km"] == pytest.approx(0.5)
    assert numbers["off_road_time"] == pytest.approx(100 * 8.0 / 160.0)
    assert numbers["mean_speed_mps"] == pytest.approx(2000.0 / 160.0)
    assert numbers["route_completion"] == pytest.approx(100 * 2000.0 / 1600.0)
    assert numbers["pdms"] == pytest.approx(50.0)
    assert numbers["comfort"] == 100.0
    assert numbers["verdicts"] == {"OK": 2}


def command(*words):
    """Of `reflectdrive eval --closed-loop`, but an interrupt is raised."""
    parser = argparse.ArgumentParser()
    eval_command.add_arguments(parser)
    parser.set_defaults(workers=1)  # each takes a second to start, and tests run side by side
    args = parser.parse_args(["--closed-loop", *map(str, words)])
    return wrapper.command()(eval_command.run.__wrapped__)(args)


def test_the_command_writes_the_numbers_of_its_table_and_the_page_of_its_worst_incidents(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "drive.json"
    words = ("--planner", "constant_velocity", "--seeds", 1, "--duration", 2, "--json", file)
    assert command(*words, "--first-seed", 3, "--worst", 2) == 0
    assert (tmp_path / closed_loop.FOLDER / closed_loop.PAGE).exists()
    written = json.loads(file.read_text())
    assert written["planner"] == "constant_velocity"
    others = {"drive_score", "drive_terms", "drives", "km", "verdicts", "failures", "command", "version"}
    assert others.union(closed_loop.MEASURES) <= written.keys()
    (world,) = written["planners"]["constant_velocity"]["worlds"]
    assert (world["town"], world["seed"]) == ("closed-loop-00003", 3)
    assert world["seconds"] == pytest.approx(2.0)
    assert "constant_velocity" in capsys.readouterr().out


def test_a_drive_that_is_impossible_is_refused_in_one_sentence(capsys, monkeypatch):
    assert command("--variant", "a", "planner=nobody", "--seeds", 1, "--duration", 1) == 2
    assert "--variant a: planner is 'nobody'" in capsys.readouterr().err.replace("\n", " ")
    with monkeypatch.context() as without:
        without.setattr(sumo, "find_home", lambda: None)
        without.setenv("PATH", "")
        assert command("--planner", "constant_velocity", "--seeds", 1, "--duration", 1) == 2
    assert "pip install '.[sim]'" in capsys.readouterr().err.replace("\n", " ")


def test_a_drive_that_breaks_off_is_named_and_the_others_come_to_their_end():
    config = Config(model=ModelConfig("no-such-model.safetensors", 64 * "0"))
    rows = variants.of_planners(config, ("reflectdrive2", "constant_velocity"))
    results = dict(closed_loop._iterate_drives([("reflectdrive2", 1), ("constant_velocity", 0)], rows, 1.0, None, 1))
    assert isinstance(results["constant_velocity", 0], closed_loop.DriveResult)
    assert "no-such-model.safetensors" in results["reflectdrive2", 1]


def test_a_drive_that_breaks_off_counts_against_the_table():
    one = replace(result(log(10.0, 5.0)), seed=3)
    driven = closed_loop.Drives(
        ("route_follower", "constant_velocity"),
        (one,),
        {("route_follower", 4): "its process died", ("constant_velocity", 3): "no free place"},
    )
    metrics = closed_loop.table_metrics(driven)
    assert metrics["broken_off"] == metrics["planners"]["route_follower"]["broken_off"] == 1
    assert metrics["drives"] == 1
    assert metrics["planners"]["constant_velocity"]["drives"] == 0
    assert metrics["planners"]["constant_velocity"]["pdms"] is None
    assert metrics["failures"] == {
        "route_follower, seed 4": "its process died",
        "constant_velocity, seed 3": "no free place",
    }
    table = closed_loop._table(driven)
    assert list(table.columns[1].cells) == ["3", "4", "all", "3", "all"]
    assert list(table.columns[-1].cells) == ["0", "1", "1", "1", "1"]


WHOLE = closed_loop._run_drive


def _dies_once(job, report, *, flag, **settings):
    if not flag.exists():
        flag.touch()
        os.kill(os.getpid(), signal.SIGSEGV)
    return WHOLE(job, report, **settings)


def test_a_drive_whose_process_died_is_driven_again_and_the_death_is_counted(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(closed_loop, "_run_drive", partial(_dies_once, flag=tmp_path / "died"))
    file = tmp_path / "drive.json"
    assert command("--planner", "constant_velocity", "--seeds", 1, "--duration", 1, "--json", file) == 1
    metrics = json.loads(file.read_text())
    assert (metrics["drives"], metrics["broken_off"], metrics["process_deaths"], metrics["failures"]) == (1, 0, 1, {})
    sentence = "its process died 1 times before the drive ended"
    assert metrics["abnormal"] == {"constant_velocity, seed 0": sentence}
    assert f"abnormal: constant_velocity, seed 0: {sentence}" in capsys.readouterr().out


def _hangs_in_world_1(job, report, **settings):
    if job[1] == 1:
        with closed_loop._processor_time_limit(0.2):
            while True:
                pass
    return WHOLE(job, report, **settings)


def test_a_drive_that_hangs_is_ended_and_the_others_come_to_their_end(tmp_path, monkeypatch):
    monkeypatch.setattr(closed_loop, "_run_drive", _hangs_in_world_1)
    file = tmp_path / "drive.json"
    assert command("--planner", "constant_velocity", "--seeds", 2, "--duration", 1, "--json", file) == 1
    metrics = json.loads(file.read_text())
    assert (metrics["drives"], metrics["broken_off"]) == (1, 1)
    number = int(signal.SIGPROF)
    assert metrics["failures"] == {"constant_velocity, seed 1": f"its process died 3 times (signal {number})"}


def test_what_a_planner_raises_is_abnormal_though_the_car_stops_safely():
    def raising(state, observation, planner_context):
        raise RuntimeError("planted")

    one = closed_loop.drive(WorldOptions(seed=1), variant("constant_velocity", Config()), 0.5, recipe=raising)
    assert one.sources == {"STOP": 5}
    assert drive_results.abnormalities(one) == ["planner failed: RuntimeError: planted (5 times)"]


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_nan_in_a_drive_is_abnormal(value):
    one = result(log(10.0, 5.0), [1.0, value])
    assert drive_results.abnormalities(one) == ["scores are NaN or infinite 1 times, first after 1.0 s"]
    one = result(log(10.0, 5.0))
    assert drive_results.abnormalities(one) == []
    one.log.states[50:, VX] = value
    assert drive_results.abnormalities(one) == ["states are NaN or infinite 51 times, first after 5.0 s"]


def test_of_many_drives_the_table_has_the_worst_the_abnormal_and_the_sum():
    results = [replace(result(log(10.0, 5.0), [0.5 + 0.01 * seed]), seed=seed) for seed in range(40)]
    results[35] = replace(results[35], process_deaths=1)
    driven = closed_loop.Drives(("route_follower",), tuple(results), {("route_follower", 77): "its process died"})
    rows = list(closed_loop._table(driven).columns[1].cells)
    assert rows == [*map(str, range(10)), "35", "77", "all 40"]
    *sentences, total = closed_loop._notes(driven)
    assert [each.partition(":")[0] for each in sentences] == ["broken off", "abnormal"]
    assert total.startswith("40 of 41 drives came to their end; 1 broken off, 1 dead processes")


# --- a run that is stopped --------------------------------------------------------------------------------------------


def test_a_stopped_run_goes_on_from_its_finished_drives_to_the_same_numbers(tmp_path, capsys, monkeypatch):
    words = ("--planner", "constant_velocity", "--seeds", 2, "--duration", 1, "--workers", 1, "--json")
    assert command(*words, tmp_path / "at_once.json") == 0

    def stopping(items, title, console, total):
        yield next(items)
        items.close()
        raise KeyboardInterrupt

    with monkeypatch.context() as stopped:
        stopped.setattr(closed_loop, "track_progress", stopping)
        with pytest.raises(KeyboardInterrupt):
            command(*words, tmp_path / "drive.json")
    assert not (tmp_path / "drive.json").exists()
    assert command(*words, tmp_path / "drive.json") == 0
    assert f"1 of 2 drives are in {tmp_path / 'drive.json.drives'}" in capsys.readouterr().err.replace("\n", "")
    assert not (tmp_path / "drive.json.drives").exists()
    at_once, resumed = (json.loads((tmp_path / name).read_text()) for name in ("at_once.json", "drive.json"))
    for numbers in (at_once, resumed):
        for row in (numbers, *numbers["planners"].values(), *numbers["planners"]["constant_velocity"]["worlds"]):
            del row["planning_ms"]  # times
        del numbers["date"], numbers["command"]
    assert at_once == resumed


def test_a_finished_drive_is_read_back_to_the_bit(tmp_path):
    file = tmp_path / "finished"
    one = replace(half_minute(1), errors=("odd",), process_deaths=2)
    with drive_results.FinishedDrives(file, {"duration_s": 30.0}, Config().vehicle) as finished:
        finished.put(one)
        with pytest.raises(UserError, match="another process drives"):
            drive_results.FinishedDrives(file, {"duration_s": 30.0}, Config().vehicle)
    with drive_results.FinishedDrives(file, {"duration_s": 30.0}, Config().vehicle) as finished:
        (again,) = finished.results.values()
    np.testing.assert_array_equal(again.log.states, one.log.states)
    assert again.log.events == one.log.events
    assert again.measurements == one.measurements
    assert (again.errors, again.process_deaths) == (("odd",), 2)
    times = "planning_ms"  # are rounded
    metrics, before = (closed_loop.drive_metrics([each]) for each in (again, one))
    assert {**metrics, times: None} == {**before, times: None}
    with drive_results.FinishedDrives(file, {"duration_s": 20.0}, Config().vehicle) as other:
        assert not other.results


@pytest.mark.parametrize("rest", [b'{"planner": "route_fol', b"null\n", b'{"planner": "x"}\n'])
def test_a_line_that_a_kill_cut_short_is_dropped_and_the_run_goes_on(tmp_path, rest):
    file = tmp_path / "finished"
    with drive_results.FinishedDrives(file, {}, Config().vehicle) as finished:
        finished.put(half_minute(1))
    with file.open("ab") as cut:
        cut.write(rest)
    with drive_results.FinishedDrives(file, {}, Config().vehicle) as finished:
        assert len(finished.results) == 1
        finished.put(replace(half_minute(1), seed=2))
    with drive_results.FinishedDrives(file, {}, Config().vehicle) as finished:
        assert len(finished.results) == 2


def test_no_other_table_or_page_has_the_seeds_of_the_thousand_worlds():
    root = Path(__file__).parents[1]
    texts = [(root / "Makefile").read_text(), *(page.read_text() for page in (root / "docs").rglob("*.md"))]
    ranges = [
        (int(first), int(count))
        for text in texts
        for first, count in re.findall(r"--first-seed (\d+) --seeds (\d+)", text.replace("\\\n", " "))
    ]
    worlds, count = max(ranges, key=lambda one: one[1])
    assert (worlds, count) == (50000, 1000)
    others = [(first, many) for first, many in ranges if (first, many) != (worlds, count)]
    assert len(others) >= 4
    assert all(first + many <= worlds or first >= worlds + count for first, many in others)


def test_random_weights_drive_in_a_row_of_their_own(tiny_model):  # noqa: F811
    settings = config(**tiny_model.settings, cameras__width=96, cameras__height=54)
    rows = variants.of_planners(settings, ["route_follower", "reflectdrive2"], random_weights=True)
    assert list(rows) == ["route_follower", "reflectdrive2", "reflectdrive2 random weights"]
    assert [row.random_weights for row in rows.values()] == [False, False, True]
    name = "reflectdrive2 random weights"
    one = closed_loop._run_drive((name, 0), lambda count: None, variants=rows, duration_s=0.3)
    assert one.planner == name
    assert set(one.planning_ms) <= {"full", "lite", "none"}
    assert command("--planner", "route_follower", "--random-weights") == 2
