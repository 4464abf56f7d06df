"""Claims about driving on map files and in towns of others, and about the page of the worst incidents."""

import argparse
import json

import numpy as np
import pytest
from small_xodr import figure_of_eight

from reflectdrive_ros import __main__
from reflectdrive_ros.core.config import VehicleConfig
from reflectdrive_ros.evaluation import closed_loop, worlds, worst_page
from reflectdrive_ros.evaluation.incidents import Incident, Moment
from reflectdrive_ros.infra.errors import UserError
from reflectdrive_ros.maps import sumo
from reflectdrive_ros.sim.world import World

try:
    sumo.binary("netconvert")
except sumo.SumoMissing as fault:
    pytest.skip(str(fault), allow_module_level=True)


@pytest.fixture(scope="module")
def eight(tmp_path_factory):
    file = tmp_path_factory.mktemp("map") / "eight.xodr"
    file.write_text(figure_of_eight())
    return file


def test_a_planner_that_drives_straight_on_leaves_a_winding_map_and_the_page_shows_it(eight, tmp_path):
    words = ["eval", "--closed-loop", "--planner", "constant_velocity", "--map", str(eight), "--seeds", "2"]
    words += ["--first-seed", "1", "--duration", "12", "--workers", "1", "--json", str(tmp_path / "drive.json")]
    assert __main__.run([*words, "--worst", "10", "--out", str(tmp_path / "page")]) == 0
    written = json.loads((tmp_path / "drive.json").read_text())
    row = written["planners"]["constant_velocity"]
    assert row["drives"] == 2
    assert row["off_road_time"] > 10.0
    assert set(written["map_sha256"]) == {"eight.xodr"}
    assert "judge" not in written
    page = (tmp_path / "page" / "worst.html").read_text()
    assert "off road: constant_velocity, eight, seed" in page
    assert "the plan itself leaves the road" in page
    assert page.count("<svg") == page.count("<section") >= 1


def test_bags_are_made_on_an_opendrive_map(eight, tmp_path):
    assert __main__.run(["make-bag", "world", str(tmp_path / "bag"), "--map", str(eight), "--seconds", "1"]) == 0
    assert list((tmp_path / "bag").glob("*.mcap"))


@pytest.mark.parametrize("command", ["eval", "make-bag", "demo"])
def test_a_map_that_cannot_be_used_ends_with_one_sentence(command, tmp_path, capsys):
    file = tmp_path / "bad.xodr"
    file.write_text(figure_of_eight().replace("driving", "sidewalk"))
    words = {
        "eval": ["eval", "--closed-loop", "--planner", "route_follower"],
        "make-bag": ["make-bag", "world", str(tmp_path / "bag")],
        "demo": ["demo", "--out", str(tmp_path / "demo")],
    }
    assert __main__.run([*words[command], "--map", str(file)]) == 2
    message = " ".join(capsys.readouterr().err.split())
    assert "roads 0, 1, 2, 3 have no lanes for cars" in message
    assert "Traceback" not in message


def test_towns_of_other_sources_are_named_with_the_package_that_they_need(monkeypatch):
    with pytest.raises(UserError, match="--judge waymo is unknown: give one of carla, carla-development"):
        worlds.of_judge("waymo")
    monkeypatch.setattr(worlds.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"pip install --no-deps py123d==0\.7\.0"):
        worlds.of_judge("carla")


def test_the_worlds_of_carla_are_its_three_towns_in_turn():
    pytest.importorskip("py123d", reason="the extra judges is not installed")
    world_set = worlds.of_judge("carla")
    towns = [world_set.options(seed).map_file.name for seed in range(6)]
    assert towns == ["Town04.xodr.gz", "Town05.xodr.gz", "Town06.xodr.gz"] * 2
    numbers = world_set.numbers()
    assert numbers["judge"] == "carla"
    assert list(numbers["map_sha256"]) == towns[:3]
    assert all(len(value) == 64 for value in numbers["map_sha256"].values())
    assert world_set.options(0).max_limit_mps == pytest.approx(50 / 3.6)


def test_the_two_sets_of_towns_have_none_in_common():
    pytest.importorskip("py123d", reason="the extra judges is not installed")
    carla, development = (worlds.of_judge(name) for name in ("carla", "carla-development"))
    assert len(development.maps) == 5
    assert not set(carla.maps) & set(development.maps)
    assert development.max_limit_mps == carla.max_limit_mps


def test_a_town_of_others_can_be_driven_in():
    pytest.importorskip("py123d", reason="the extra judges is not installed")
    with World(worlds.of_judge("carla").options(2)) as world:
        world.step(None)
        assert world.road_map.name == "Town06"
        assert max(lane.lane.speed_limit_mps for lane in world.road_map.lanes.values()) < 14.0
        assert not world.drive.events


def test_judge_and_map_exclude_each_other_and_a_folder_is_of_a_page(eight, capsys):
    parser = argparse.ArgumentParser()
    closed_loop.add_arguments(parser)
    with pytest.raises(SystemExit):
        parser.parse_args(["--judge", "carla", "--map", str(eight)])
    assert __main__.run(["eval", "--closed-loop", "--out", "worst"]) == 2
    assert capsys.readouterr().err.endswith("--out DIR is the folder of the page of --worst: add --worst N\n")


def incident(kind, severity, planner="a <b>"):
    pose = np.array([5.0, 2.0, 1.0])
    moments = [
        Moment(0.1 * k, pose, 4.0, np.array([[9.0, 2.0, 0.0, 4.5, 2.0]]), np.zeros((3, 3)), "PLANNER", "OK")
        for k in range(21)
    ]
    road = (np.array([[0.0, 0.0], [20.0, 0.0], [20.0, 9.0], [0.0, 9.0]]),)
    return Incident(planner, "town", 1, kind, 2.0, "text & more", severity, ("c",), tuple(moments), road[0][:2], road)


def test_the_worst_incidents_come_first_and_text_is_escaped():
    some = [incident("off_road", 4.0), incident("collision", 104.0), incident("red_light", 54.0)]
    assert [one.kind for one in worst_page.worst(some, 2)] == ["collision", "red_light"]
    page = worst_page.render(worst_page.worst(some, 3), VehicleConfig())
    assert "a &lt;b&gt;" in page
    assert "text &amp; more" in page
    assert page.count('class="ego"') == 3
    assert page.count('class="ego before"') == 6  # one and two seconds before
    others = [incident("collision", 120.0, "b"), incident("off_road", 6.0, "b")]
    both = worst_page.worst([*some, *others], 2)
    assert [(one.planner, one.severity) for one in both] == [
        ("a <b>", 104.0),
        ("a <b>", 54.0),
        ("b", 120.0),
        ("b", 6.0),
    ]
    assert "No collision at fault" in worst_page.render([], VehicleConfig())
