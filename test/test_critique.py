"""The critique of a plan: it says where the plan is bad and which change mends it, and nothing where it cannot know."""

from dataclasses import replace

import hand_scenes
import numpy as np
import pytest
from scenes import NO_LIGHTS, Config, cars, observation

from reflectdrive_ros.core.tokens import ROUTE_FRAME
from reflectdrive_ros.data.scene import NOW
from reflectdrive_ros.planning import critique
from reflectdrive_ros.planning.critique import CRITIQUE_CHANNELS, OF_PLAN, OF_WAYPOINT, VARIANT_SIZES
from reflectdrive_ros.scoring import drivable
from reflectdrive_ros.scoring.safety import SafetyContext
from reflectdrive_ros.training.rewards import PlanScorer

SPEED_MPS = 8.0
ROAD = [np.array([[-30.0, -1.9], [120.0, -1.9], [120.0, 1.9], [-30.0, 1.9]])]


@pytest.fixture(scope="module")
def road():
    return drivable.grid_around_ego(drivable.union_polygons(ROAD))


def plan(left_m=0.0):
    """(1, T) ids of a plan that drifts to the left."""
    share = np.arange(1, 9) / 8
    points = np.stack([4.0 * SPEED_MPS * share, left_m * share**2], axis=1)
    return ROUTE_FRAME.clip(ROUTE_FRAME.encode(points)).reshape(1, -1)


def critique_of(actions, road, *agents):
    scene = observation(SPEED_MPS, agents=cars(*agents), drivable=road, traffic_lights=NO_LIGHTS)
    return critique.critique(SafetyContext(scene, Config()), actions, ROUTE_FRAME)


def of_plan(values, name):
    return values[0, 0, 1 + len(OF_WAYPOINT) + OF_PLAN.index(name)]


def gain(values, pace=0, offset=0):
    """Of a variant's score without progress, over the plan's."""
    (index,) = np.flatnonzero(((pace, 0, offset, 0) == VARIANT_SIZES).all(axis=1))
    return values[0, 0, CRITIQUE_CHANNELS - len(VARIANT_SIZES) + index]


def test_a_plan_that_leaves_the_road_is_better_further_to_the_right(road):
    staying, leaving = (critique_of(plan(left_m), road) for left_m in (0.0, 0.95))
    assert staying.shape == (1, ROUTE_FRAME.points, CRITIQUE_CHANNELS)
    assert (staying[..., 0] == 1.0).all()
    assert of_plan(staying, "dac") == 1.0
    assert of_plan(leaving, "dac") == 0.0
    assert gain(leaving, offset=-2) > 0.5 > 0.0 >= gain(leaving, offset=2)
    safety = 1 + OF_WAYPOINT.index("safety")
    assert staying[0, :, safety].min() == 1.0
    assert leaving[0, 0, safety] == 1.0 > leaving[0, -1, safety]


def test_a_plan_into_a_standing_vehicle_is_better_slower_and_tells_where_it_meets_it(road):
    values = critique_of(plan(), road, (36.0, 0.0, 0.0, 0.0))
    assert of_plan(values, "nc") < 1.0 or of_plan(values, "ttc") < 1.0
    assert gain(values, pace=-2) >= gain(values, pace=-1) >= 0.0 >= gain(values, pace=2)
    clearance = values[0, :, 1 + OF_WAYPOINT.index("clearance")]
    assert clearance[0] == 1.0  # far
    assert clearance[-1] < clearance[0]


@pytest.mark.parametrize("unknown", ["drivable", "agents", "traffic_lights"])
def test_nothing_is_said_where_a_score_does_not_know_what_the_plan_meets(road, unknown):
    fields = {"agents": cars((20.0, 0.0, 0.0, 0.0)), "drivable": road, "traffic_lights": NO_LIGHTS, unknown: None}
    scene = observation(SPEED_MPS, **fields)
    values = critique.critique(SafetyContext(scene, Config()), plan(1.2), ROUTE_FRAME)
    assert not values.any()


def test_the_critique_of_a_mirrored_plan_is_mirrored(road):
    there, mirrored = (critique_of(plan(left_m), road) for left_m in (0.8, -0.8))
    np.testing.assert_allclose(critique.mirrored(there), mirrored, atol=1e-3)
    assert np.abs(there - mirrored).max() > 0.1


def test_in_recorded_scenes_the_forecast_is_meant_not_the_future():
    """Training reads the critique of a recorded scene: it must not know what the recording shows later."""
    scene = hand_scenes.scene("test-00001-002", agents=2, images=False, speed=8.0, curvature=0.0)
    poses = scene.tracks.poses.copy()
    poses[:, NOW + 1 :] = [12.0, 0.0, 0.0]  # all will stand on the path
    scene = replace(scene, tracks=replace(scene.tracks, poses=poses, present=np.ones_like(scene.tracks.present)))
    values = PlanScorer(ROUTE_FRAME).critique(scene, plan())
    assert values.shape == (1, ROUTE_FRAME.points, CRITIQUE_CHANNELS)
    assert of_plan(values, "nc") == 1.0
    assert PlanScorer(ROUTE_FRAME)(scene, plan(), True)[0, 0] < 0.5  # its score knows
