"""Agents go on as they drive: who brakes goes on braking, who speeds up comes to a constant speed."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from autoware_perception_msgs.msg import ObjectClassification, TrackedObject, TrackedObjects
from messages import at, ns, odometry, route
from scenes import cars, config, observation, straight_route, turning_route

from reflectdrive_ros.core import geometry, kinematics
from reflectdrive_ros.core.agent_motion import ACCELERATION_RANGE_MPS2, with_motion
from reflectdrive_ros.core.domain import AgentHistory, AgentKind, ForecastSource
from reflectdrive_ros.data import shards
from reflectdrive_ros.evaluation.privilege import observe
from reflectdrive_ros.ros import outputs
from reflectdrive_ros.ros.inputs.snapshot import Inputs
from reflectdrive_ros.scoring import prediction
from reflectdrive_ros.scoring.frenet import FrenetFrame
from reflectdrive_ros.scoring.safety import SafetyContext

STEPS, DT_S = 50, 0.1
SCENES = Path(__file__).parent / "data/scenes_val"
BACK_S = AgentHistory.DT_S * np.arange(1 - AgentHistory.STEPS, 1)
ROADS = (straight_route(), turning_route(radius=40.0, before=15.0))


def with_accelerations(agents, accelerations, yaw_rates=0.0):
    ones = np.ones(len(agents))
    return replace(agents, accelerations_mps2=accelerations * ones, yaw_rates_rps=yaw_rates * ones)


def foreseen(agents, route=None):
    road = FrenetFrame.of(straight_route() if route is None else route)
    return prediction.forecast(agents, road, DT_S, STEPS).poses


def speeds(poses):
    return np.hypot(*np.moveaxis(np.diff(poses[..., :2], axis=-2), -1, 0)) / DT_S


def tracks(agents, accelerations, noise=0.0):
    """Agents that drove straight with the accelerations (A,) until now; `noise` (A, 21) m/s is added to the speeds."""
    now_mps = np.hypot(*agents.velocities_mps.T)[:, None]
    speeds_mps = now_mps + accelerations[:, None] * BACK_S
    ahead = np.stack([np.cos(agents.poses[:, 2]), np.sin(agents.poses[:, 2])], axis=-1)[:, None]
    poses = np.repeat(agents.poses[:, None], AgentHistory.STEPS, axis=1)
    poses[..., :2] += (now_mps * BACK_S + 0.5 * accelerations[:, None] * BACK_S**2)[..., None] * ahead
    velocities = (speeds_mps + noise)[..., None] * ahead
    return AgentHistory(np.arange(len(agents)), poses, velocities, np.ones(poses.shape[:2], bool))


# --- the forecast ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lateral_m", [0.0, 60.0])  # on the ego's road and elsewhere
def test_a_braking_lead_stops_where_constant_velocity_has_it_drive_on(lateral_m):
    lead = cars((30.0, lateral_m, 0.0, 8.0))
    (braking,) = foreseen(with_accelerations(lead, -5.0))
    (constant,) = kinematics.forecast(lead, DT_S, STEPS).poses
    assert speeds(braking)[-1] < 0.1
    assert constant[-1, 0] - braking[-1, 0] > 20.0
    assert 30.0 + 8.0**2 / (2 * 5.0) <= braking[-1, 0] < 45.0  # not shorter than at a constant deceleration


def test_who_speeds_up_comes_to_a_constant_speed():
    speeds_mps = speeds(foreseen(with_accelerations(cars((30.0, 0.0, 0.0, 8.0)), 2.0)))[0]
    assert (np.diff(speeds_mps) >= -1e-9).all()
    assert 9.0 < speeds_mps[-1] < 8.0 + 2.0 * 1.2 + 1e-6
    assert speeds_mps[-1] - speeds_mps[-6] < 0.1


def test_who_stands_stands_and_who_has_stopped_does_not_go_backwards():
    agents = with_accelerations(
        cars((30.0, 0.0, 0.0, 0.0), (60.0, 3.5, 0.0, 2.0), (20.0, 50.0, 1.0, 1.0)), [-3.0, -6.0, -6.0], 0.3
    )
    poses = foreseen(agents)
    np.testing.assert_array_equal(poses[0], np.repeat(agents.poses[:1], STEPS + 1, axis=0))
    assert (np.diff(poses[1, :, 0]) >= 0.0).all()
    towards = np.stack([np.cos(poses[2, :-1, 2]), np.sin(poses[2, :-1, 2])], axis=-1)
    assert (np.einsum("tk,tk->t", np.diff(poses[2, :, :2], axis=0), towards) >= -1e-9).all()
    assert (speeds(poses)[:, -1] == 0.0).all()


@pytest.mark.parametrize("route", ROADS, ids=["straight", "bend"])
def test_nobody_drives_through_a_standing_car(route):
    begins_m, _ = geometry.ego_on_route(route)
    lead, behind = (geometry.sample(route, np.array([begins_m + at]))[0] for at in (45.0, 15.0))
    agents = cars((*lead, 0.0), (*behind, 9.0))
    poses = foreseen(agents, route)
    distances_m = np.hypot(*(poses[1, :, :2] - poses[0, :, :2]).T)
    assert distances_m.min() > 4.5
    assert speeds(poses)[1, -1] < 1.0
    assert np.hypot(*(kinematics.forecast(agents, DT_S, STEPS).poses[1, -1, :2] - behind[:2])) > 40.0


def test_a_follower_brakes_behind_a_lead_that_is_forecast_to_stop():
    agents = with_accelerations(cars((40.0, 0.0, 0.0, 8.0), (20.0, 0.0, 0.0, 8.0)), [-5.0, 0.0])
    lead, follower = foreseen(agents)
    assert (lead[:, 0] - follower[:, 0]).min() > 4.5
    assert speeds(follower)[-1] < 6.0


def test_a_turn_begun_goes_on_for_a_while():
    (turning,) = foreseen(with_accelerations(cars((30.0, 60.0, 0.0, 6.0)), 0.0, 0.4))
    assert 0.4 < turning[-1, 2] < 0.6
    assert abs(turning[-1, 2] - turning[-11, 2]) < 0.03
    np.testing.assert_allclose(speeds(turning), 6.0, rtol=0.01)


def test_a_mirrored_scene_has_the_mirrored_forecast():
    mirror = np.array([1.0, -1.0, -1.0])
    agents = with_accelerations(
        cars((30.0, 1.0, 0.05, 8.0), (15.0, 0.5, 0.0, 9.0), (50.0, 3.5, np.pi, 7.0), (20.0, 30.0, 1.0, 5.0)),
        [-3.0, 1.0, 0.5, -1.0],
        [0.0, 0.0, 0.0, 0.3],
    )
    mirrored = replace(
        agents,
        poses=agents.poses * mirror,
        velocities_mps=agents.velocities_mps * mirror[:2],
        yaw_rates_rps=-agents.yaw_rates_rps,
    )
    route = ROADS[1]
    poses, twin = foreseen(agents, route), foreseen(mirrored, route * mirror)
    np.testing.assert_allclose(twin[..., :2], (poses * mirror)[..., :2], atol=1e-6)
    np.testing.assert_allclose(geometry.wrap(twin[..., 2] + poses[..., 2]), 0.0, atol=1e-6)


def test_the_forecast_of_the_context_equals_one_at_its_own_interval():
    agents = with_accelerations(
        cars((30.0, 0.0, 0.0, 8.0), (15.0, 0.5, 0.0, 9.0), (20.0, 30.0, 1.0, 5.0)), [-3.0, 1.0, -1.0], 0.1
    )
    context = SafetyContext(observation(agents=agents), config())
    shared, own = context.forecast_at(0.5, 8), prediction.forecast(agents, context.road, 0.5, 8)
    assert own.source is ForecastSource.ACCELERATION
    # arcs are integrated at the interval of the forecast
    np.testing.assert_allclose(shared.poses, own.poses, atol=0.02)


def test_agents_without_known_accelerations_keep_their_speed():
    poses = foreseen(cars((30.0, 0.0, 0.0, 8.0), (40.0, 30.0, 1.0, 5.0)))
    np.testing.assert_allclose(speeds(poses), [[8.0] * STEPS, [5.0] * STEPS])


# --- accelerations of histories ---------------------------------------------------------------------------------------

TRAFFIC = cars(*((20.0 * k, 4.0 * (k % 2), 0.0, 8.0 + k) for k in range(6)))


def test_smooth_tracks_give_their_accelerations():
    truth = np.array([-3.0, 1.0, 0.0, -1.5, 2.0, 0.5])
    agents = with_motion(TRAFFIC, tracks(TRAFFIC, truth))
    assert (np.abs(agents.accelerations_mps2) <= np.abs(truth) + 1e-9).all()
    np.testing.assert_allclose(agents.accelerations_mps2, truth, rtol=0.35, atol=1e-9)
    np.testing.assert_allclose(agents.yaw_rates_rps, 0.0, atol=1e-9)


def test_tracks_whose_speeds_are_noise_give_none():
    noise = 0.3 * np.random.default_rng(5).standard_normal((len(TRAFFIC), AgentHistory.STEPS))
    agents = with_motion(TRAFFIC, tracks(TRAFFIC, np.zeros(len(TRAFFIC)), noise))
    alone = np.polyfit(BACK_S[-4:], noise[:, -4:].T, 1)[0]  # what the same slopes are by themselves
    assert np.abs(agents.accelerations_mps2).mean() < 0.2 * np.abs(alone).mean()


def test_a_single_lead_that_begins_to_brake_is_believed():
    """Nothing else tells how reliable the tracks are."""
    lead = cars((30.0, 0.0, 0.0, 6.4))
    history = tracks(lead, np.zeros(1))
    velocities = history.velocities_mps.copy()
    velocities[0, :, 0] = 8.0 - 4.0 * np.maximum(BACK_S + 0.4, 0.0)
    agents = with_motion(lead, replace(history, velocities_mps=velocities))
    assert agents.accelerations_mps2[0] < -1.0


def test_too_few_sightings_and_pedestrians_give_no_acceleration():
    truth = np.full(len(TRAFFIC), -3.0)
    history = tracks(TRAFFIC, truth)
    valid = history.valid.copy()
    valid[0, :-2] = False
    kinds = TRAFFIC.kinds.copy()
    kinds[1] = AgentKind.PEDESTRIAN
    accelerations = with_motion(replace(TRAFFIC, kinds=kinds), replace(history, valid=valid)).accelerations_mps2
    np.testing.assert_array_equal(accelerations[:2], 0.0)
    assert (accelerations[2:] < -1.0).all()


def test_impossible_accelerations_are_limited():
    accelerations = with_motion(TRAFFIC, tracks(TRAFFIC, np.full(len(TRAFFIC), 30.0))).accelerations_mps2
    np.testing.assert_allclose(accelerations, ACCELERATION_RANGE_MPS2[1])


# --- where planners get them ------------------------------------------------------------------------------------------


def test_all_planners_that_may_see_objects_are_told_accelerations():
    scene = next(shards.read(SCENES, images=False, limit=1, on_damage=print))
    assert observe(scene, "route", with_drivable=False).agents is None
    for privilege in ("objects", "logged"):
        observed = observe(scene, privilege, with_drivable=False)
        assert observed.history is None
        has_accelerations = observed.agents.accelerations_mps2 is not None
        assert has_accelerations is (privilege == "objects")  # logged futures take precedence
    assert scene.agents.accelerations_mps2 is None  # the score and the reference plan use velocities


def test_the_node_derives_accelerations_of_tracked_objects_from_their_tracks():
    node_config = config(inputs__objects_type="tracked", planner="constant_velocity", cameras__required=False)
    inputs, speed_mps, x_m = Inputs(node_config), 10.0, 40.0
    inputs.store.put("route", route(), 0)
    for k in range(26):
        seconds = 1.0 + 0.1 * k
        inputs.store.put("odometry", odometry(seconds + 0.06, speed=0.0), ns(seconds + 0.06))
        inputs.store.put("objects", tracked_object(seconds, x_m, speed_mps), ns(seconds))
        agents = inputs.snapshot(ns(seconds + 0.06)).observation.agents
        x_m, speed_mps = x_m + 0.1 * speed_mps, speed_mps - 0.3
    assert agents.accelerations_mps2[0] == pytest.approx(-3.0, rel=0.3)


def tracked_object(seconds, x_m, speed_mps):
    message = TrackedObjects(header=outputs.header(ns(seconds), "map"))
    item = TrackedObject(existence_probability=1.0)
    item.object_id.uuid = np.full(16, 7, np.uint8)
    item.classification.append(ObjectClassification(label=ObjectClassification.CAR, probability=1.0))
    item.kinematics.pose_with_covariance.pose = at(x_m, 0.0, 0.0)
    item.kinematics.twist_with_covariance.twist.linear.x = float(speed_mps)
    item.shape.dimensions.x, item.shape.dimensions.y, item.shape.dimensions.z = 4.5, 1.9, 1.6
    message.objects.append(item)
    return message
