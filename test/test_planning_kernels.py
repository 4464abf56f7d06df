"""The compiled loops of post-processing and of the safety check give what their formulas in NumPy give."""

from dataclasses import replace

import numpy as np
import pytest
from rubber_band import strip_grid
from scenes import cars, config, ego, observation, straight_route, turning_route, with_light

from reflectdrive_ros.core import geometry, tokens
from reflectdrive_ros.core.domain import LightState
from reflectdrive_ros.planning.postprocess.speed_profile import BRAKING_MPS2, SPEEDING_UP_MPS2, limit_acceleration
from reflectdrive_ros.planning.postprocess.waypoints import (
    interpolate,
    previous_position,
    smooth_points,
    smoothing_matrices,
)
from reflectdrive_ros.scoring import drivable, frenet, metrics, safety
from reflectdrive_ros.scoring import simulate as simulation
from reflectdrive_ros.scoring.contacts import STOPPED_MPS
from reflectdrive_ros.scoring.frenet import FrenetFrame, poses_on_road
from reflectdrive_ros.scoring.metrics import EgoAreas
from reflectdrive_ros.scoring.simulate import STEPS, VX, X, Y, simulate

DT_S, BIN_M = 0.5, 0.3
CARS = cars((20, 3.0, 0.3, 2.0), (14, -6.0, 1.5, 0.5))
ROADS = [None, FrenetFrame.of(straight_route()), FrenetFrame.of(turning_route())]


def plans(count=60, seed=0):
    """Rounded points (N, 8, 2): along roads and across them, every third at a steady speed, the others with stops,
    repeated points and steps backwards."""
    rng = np.random.default_rng(seed)
    steps = rng.uniform(-0.5, 6.0, (count, 8)) * rng.choice([0.0, 1.0], (count, 8), p=[0.2, 0.8])
    steps[::3] = rng.uniform(0.0, 3.0, (len(steps[::3]), 1))
    turned = np.cumsum(rng.normal(0.0, 0.08, (count, 8)), axis=1) + rng.choice([0.0, 1.5], (count, 1), p=[0.9, 0.1])
    points = np.cumsum(np.stack([steps * np.cos(turned), steps * np.sin(turned)], axis=-1), axis=1)
    return BIN_M * np.rint(points / BIN_M)


def follows(straight):
    steps = np.diff(straight, axis=-2, prepend=np.zeros_like(straight[..., :1, :]))
    length = np.hypot(steps[..., 0], steps[..., 1])
    along = (steps[..., 0] >= frenet.ASTRAY * length) | (length < frenet.TELLING_M)
    return (along & (np.abs(straight[..., 1]) <= frenet.ROAD_OFFSET_MAX_M)).all(-1)


@pytest.mark.parametrize("road", ROADS)
def test_points_are_smoothed_against_the_road_where_they_follow_it(road):
    points, state = plans(), ego(6.0, acceleration_mps2=0.5, yaw_rate_rps=0.1)
    start = np.stack([previous_position(state, DT_S), np.zeros(2)])
    of_points, of_start = smoothing_matrices(8, DT_S, BIN_M, 2.0)
    expected = of_points @ points + of_start @ start
    if road is not None:
        of_points, of_start = smoothing_matrices(8, DT_S, BIN_M, 1.0)
        straight, begin = road.to_frenet(points).points, road.to_frenet(start[::-1]).points[::-1]
        on_road = follows(straight - begin[1])
        assert on_road.any()
        assert not on_road.all()
        against = road.to_cartesian(of_points @ straight + of_start @ begin)
        expected = np.where(on_road[:, None, None], against, expected)
    expected = np.clip(expected, points - 0.5 * BIN_M, points + 0.5 * BIN_M)
    repeated = (np.abs(np.diff(points, axis=1, prepend=0.0)) < 1e-6).all(-1)
    assert repeated.any()
    for index in range(8):
        last = expected[:, index - 1] if index else 0.0
        expected[:, index] = np.where(repeated[:, index, None], last, expected[:, index])
    np.testing.assert_allclose(smooth_points(points, state, DT_S, BIN_M, road), expected, atol=1e-9)


@pytest.mark.parametrize("road", ROADS[1:])
def test_headings_are_those_against_the_road_where_a_plan_follows_it(road):
    points = plans(seed=1)
    straight, heading = road.to_frenet(points)
    straight = straight - road.here[:2]
    turned = tokens.poses_from_points(geometry.rotate(straight, road.here[2]), frenet.CURVATURE_CHANGE)[..., 2]
    plain = tokens.poses_from_points(points, frenet.CURVATURE_CHANGE)[..., 2]
    on_road = follows(straight)
    assert on_road.any()
    assert not on_road.all()
    expected = np.where(on_road[:, None], turned - road.here[2] + heading, plain)
    np.testing.assert_allclose(geometry.wrap(poses_on_road(points, road)[..., 2] - expected), 0.0, atol=1e-9)


@pytest.mark.parametrize("speed_mps", [0.0, 4.0])
def test_hasty_plans_are_delayed_to_what_is_reachable(speed_mps):
    points = np.concatenate([plans(seed=2), 0.5 * plans(seed=2)])
    paths = np.concatenate([np.zeros((len(points), 1, 2)), points], axis=1)
    lengths = np.hypot(*np.moveaxis(np.diff(paths, axis=1), -1, 0))
    changes = np.diff(lengths / DT_S, axis=1, prepend=speed_mps) / DT_S
    changes[:, 0] *= 2.0
    along = np.concatenate([np.zeros((len(points), 1)), np.cumsum(lengths, axis=1)], axis=1)
    position_m, most = np.zeros(len(points)), np.full(len(points), speed_mps + 0.5 * SPEEDING_UP_MPS2 * DT_S)
    reached, fastest = np.zeros((len(points), 8)), lengths.max(axis=1) / DT_S
    for now in range(8):
        steps = np.arange(1, 9 - now)
        allowed = (along[:, 1 + now :] - position_m[:, None]) / (steps * DT_S) + 0.5 * BRAKING_MPS2 * DT_S * (steps - 1)
        speed = np.maximum(np.minimum(np.minimum(most, fastest), allowed.min(axis=1)), 0.0)
        position_m = position_m + DT_S * speed
        reached[:, now], most = position_m, speed + SPEEDING_UP_MPS2 * DT_S
    hasty = (changes > SPEEDING_UP_MPS2).any(axis=1)
    assert hasty.any()
    assert not hasty.all()
    expected = np.where(hasty[:, None, None], geometry.interpolate_paths(paths, along, reached), points)
    np.testing.assert_allclose(limit_acceleration(points, speed_mps, DT_S), expected, atol=1e-9)


def test_points_on_paths_are_linear_between_their_knots():
    paths = np.concatenate([np.zeros((20, 1, 2)), plans(20, seed=3)], axis=1)
    steps = np.hypot(*np.moveaxis(np.diff(paths, axis=1), -1, 0))
    along = np.concatenate([np.zeros((20, 1)), np.cumsum(steps, axis=1)], axis=1)
    reached = np.random.default_rng(0).uniform(-1.0, 1.1, (20, 12)) * along[:, -1:]
    for path, at, here, interpolated in zip(
        paths, along, reached, geometry.interpolate_paths(paths, along, reached), strict=True
    ):
        moves = np.concatenate([[True], np.diff(at) > 0.0])
        expected = np.stack([np.interp(here, at[moves], path[moves, axis]) for axis in (0, 1)], axis=-1)
        np.testing.assert_allclose(interpolated, expected, atol=1e-9)


def test_the_demands_of_plans_on_the_vehicle():
    poses, speed_mps = poses_on_road(plans(seed=4), None), 5.0
    path = np.concatenate([np.zeros((len(poses), 1, 3)), poses], axis=1)
    step, turn = np.diff(path[..., :2], axis=1), geometry.wrap(np.diff(path[..., 2], axis=1))
    middle = path[:, :-1, 2] + 0.5 * turn
    length, rate = np.hypot(step[..., 0], step[..., 1]), turn / DT_S
    speed = np.copysign(length, step[..., 0] * np.cos(middle) + step[..., 1] * np.sin(middle)) / DT_S
    acceleration = np.diff(speed, axis=1, prepend=speed_mps) / DT_S
    acceleration[:, 0] *= 2.0
    before, after = step[:, :-1], step[:, 1:]
    across = np.abs(before[..., 0] * after[..., 1] - before[..., 1] * after[..., 0])
    longer = np.maximum(length[:, :-1], length[:, 1:])
    lateral_mps2 = np.pad(np.where(longer > DT_S, across / np.maximum(longer, DT_S), 0.0) / DT_S**2, ((0, 0), (1, 0)))
    expected = (
        -speed,
        speed,
        acceleration,
        -acceleration,
        np.maximum(np.abs(speed * rate), lateral_mps2),
        np.where(np.abs(speed) > 1.0, np.abs(rate) / np.maximum(np.abs(speed), 1.0), 0.0),
    )
    for (phrase, demands, _, _), values in zip(
        safety.vehicle_demands(poses, DT_S, speed_mps, config().guard), expected, strict=True
    ):
        np.testing.assert_allclose(demands, values, atol=1e-9, err_msg=phrase)


def crossings(lines, reach_m, poses):
    """(N,) first steps of poses (N, T, 3) beyond a line (K, 2, 2); T where none."""
    steps = np.full(len(poses), poses.shape[1])
    for (left, right), ahead_m in zip(lines, reach_m, strict=True):
        across, width_m = left - right, np.hypot(*(left - right))
        front = poses[..., :2] + ahead_m * np.stack([np.cos(poses[..., 2]), np.sin(poses[..., 2])], axis=-1) - right
        beyond = (front[..., 0] * across[1] - front[..., 1] * across[0]) / width_m
        on_line = np.abs((front @ across) / width_m - 0.5 * width_m) < 0.5 * width_m + 0.5
        crossed = (beyond[:, :-1] < 0.0) & (beyond[:, 1:] >= 0.0) & (on_line[:, :-1] | on_line[:, 1:])
        steps = np.minimum(steps, np.where(crossed.any(axis=1), crossed.argmax(axis=1) + 1, poses.shape[1]))
    return steps


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("simulated", [True, False])
@pytest.mark.parametrize(
    "scene",
    [
        observation(6.0, agents=CARS, drivable=strip_grid(5.0)),
        with_light(observation(6.0, agents=cars((12, 0.0, 0.0, 0.0))), LightState.RED, 18.0),
        observation(6.0, drivable=strip_grid(2.0)),
        observation(6.0),
    ],
)
def test_safety_counts_collisions_road_and_closed_lines(scene, simulated, exact):
    safety_context = safety.SafetyContext(scene, config())
    vehicle, poses = config().vehicle, poses_on_road(plans(seed=5), None)
    states = safety.states_of_poses(interpolate(poses, 6.0), 6.0)
    if simulated:
        states = simulate(poses, safety_context.scene.motion, vehicle)
    centers, shape = simulation.centers(states, vehicle), states.shape[:2]
    by_step, excess = np.ones(shape), np.zeros(len(states))
    if len(safety_context.scene.agents):
        anywhere = np.ones(shape, bool)
        areas = EgoAreas(anywhere, anywhere, anywhere, anywhere, anywhere)
        inflated = replace(safety_context.scene.agents, sizes=safety_context.inflated_sizes)
        longer = safety_context.stopping_vehicle
        by_step = metrics.no_collision(states, simulation.centers(states, longer), longer, inflated, areas)
        excess += (by_step < safety.SAFE).sum(axis=1)
    if scene.drivable is not None:
        size = np.array([vehicle.length_m, vehicle.width_m])
        clearance_m = (
            drivable.outline_clearances(scene.drivable, centers, size)
            if exact
            else drivable.box_clearances(scene.drivable, centers, safety.OUTLINE * size) - safety.OUTLINE_MARGIN_M
        )
        best_m = np.maximum.accumulate(clearance_m, axis=1)
        further_out = clearance_m[:, 1:] < best_m[:, :-1] - scene.drivable.resolution_m
        out = np.zeros(shape, bool)
        out[:, 1:] = (clearance_m[:, 1:] <= 0.0) & ((best_m[:, :-1] > 0.0) | further_out)
        out &= np.abs(states[..., VX]) > STOPPED_MPS
        by_step = np.where(out, 0.0, by_step)
        excess += np.where(out, -clearance_m, 0.0).sum(axis=1)
    limits = safety_context.limits
    if len(limits.closed_lines):
        first = crossings(limits.closed_lines, limits.reach_m, states[..., [X, Y, 2]])
        np.testing.assert_array_equal(limits.first_crossings(states[..., :3]), first)
        beyond = np.arange(STEPS + 1) >= first[:, None]
        by_step = np.where(beyond, 0.0, by_step)
        excess += beyond.sum(axis=1)
    computed = safety.safety_of_states(safety_context, states, exact)
    if safety_context.can_check:
        assert (by_step < safety.SAFE).any()
        assert (by_step.min(axis=1) == safety.SAFE).any()
    np.testing.assert_array_equal(computed.by_step, by_step)
    np.testing.assert_allclose(computed.excess, excess, atol=1e-9)
