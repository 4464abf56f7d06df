"""Three oracles, told apart: who knows more is told more, and what is told is true."""

import numpy as np
import pytest
from hand_scenes import scene
from rich.console import Console
from stored_scenes import scenes_folder  # noqa: F401 (a fixture)

from reflectdrive_ros.core import kinematics
from reflectdrive_ros.core.config import Config
from reflectdrive_ros.data.scene import NOW
from reflectdrive_ros.evaluation import open_loop, variants
from reflectdrive_ros.evaluation.privilege import PRIVILEGES, observe
from reflectdrive_ros.scoring import drivable


def test_without_an_oracle_only_images_and_route_are_known():
    observation = observe(scene(), "route")
    assert observation.agents is None
    assert observation.drivable is None
    assert len(observation.cameras) == 6
    assert len(observation.route) > 2


def test_with_words_alone_there_is_no_route_either():
    observation, without = observe(scene(), "route"), observe(scene(), "words")
    assert len(without.route) == 0
    assert without.agents is None
    assert (without.command, without.instruction) == (observation.command, observation.instruction)


def test_with_constant_velocity_the_others_and_the_road_are_known_but_no_future():
    observation = observe(scene(), "objects")
    assert observation.agents.predicted_poses is None
    assert drivable.clearances(observation.drivable, np.zeros(2)) > 1.0


def test_the_logged_futures_are_those_that_came():
    one = scene(agents=6)
    forecast = kinematics.forecast(observe(one, "logged").agents, 0.5, 10)
    there = one.tracks.present[:, NOW]
    whole = one.tracks.present[there, NOW:].all(axis=1)
    came = one.tracks.poses[there, NOW::5]
    np.testing.assert_allclose(forecast.poses[whole], came[whole], atol=1e-9)


def test_who_leaves_the_scene_goes_straight_on():
    one = scene(agents=6)  # the third is gone after 2.9 s
    there = np.flatnonzero(one.tracks.present[:, NOW])
    row = int(np.flatnonzero(there == 2)[0])
    path = observe(one, "logged").agents.predicted_poses[row]
    steps = np.hypot(*np.diff(path[:, :2], axis=0).T)
    assert steps[-1] == pytest.approx(0.5 * one.tracks.speeds_mps[2, 49], abs=0.05)


def rows_of(planner, privileges):
    return variants.of_planners(Config(), [planner], privileges)


def test_each_oracle_has_rows_of_its_own(folder):
    quiet = Console(quiet=True)
    result = open_loop.evaluate(folder, rows_of("constant_velocity", PRIVILEGES), Config(), None, 4, 1, quiet)
    drivers = [f"constant_velocity ({privilege})" for privilege in PRIVILEGES]
    assert list(result.scores) == ["expert", *drivers]
    assert all(len(result.scores[driver]) == 4 for driver in drivers)
    result = open_loop.evaluate(folder, rows_of("route_follower", ("route",)), Config(), None, 4, 1, quiet)
    assert list(result.scores) == ["expert", "route_follower (route)"]
