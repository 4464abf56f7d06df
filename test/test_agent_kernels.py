"""The compiled loops of the forecast give what their formulas in NumPy give."""

import numpy as np
import pytest
from scenes import turning_route

from reflectdrive_ros.core import agent_motion, geometry
from reflectdrive_ros.core.domain import AgentKind, Agents, Forecast, ForecastSource
from reflectdrive_ros.scoring import prediction
from reflectdrive_ros.scoring.contacts import SAMPLES, AgentTracks
from reflectdrive_ros.scoring.frenet import FrenetFrame
from reflectdrive_ros.scoring.prediction import (
    ARC_MIN_MPS,
    DRIFT_DECAY_S,
    LEAD_REACH_M,
    MOVING_MPS,
    PASSES_M,
    SAME_WAY,
    TURN_DECAY_S,
    find_leads,
)

ROAD = FrenetFrame.of(turning_route(radius=20.0, before=12.0))


def agents():
    """On the road, in both directions, and off it; some stand, some walk."""
    rng, count = np.random.default_rng(0), 40
    at_m = rng.uniform(-5.0, 60.0, count)
    lateral_m = rng.choice([0.0, 3.5, -3.5, 9.0], count) + rng.normal(0.0, 0.2, count)
    points = ROAD.to_cartesian(np.stack([at_m, lateral_m], axis=-1))
    headings = np.interp(at_m, ROAD.at, ROAD.heading) + rng.choice([0.0, np.pi], count) + rng.normal(0.0, 0.1, count)
    speeds = rng.uniform(0.0, 9.0, count) * rng.choice([0.0, 1.0], count, p=[0.2, 0.8])
    return Agents(
        np.column_stack([points, geometry.wrap(headings)]),
        speeds[:, None] * np.stack([np.cos(headings), np.sin(headings)], axis=-1),
        np.column_stack([rng.uniform(0.5, 8.0, count), rng.uniform(0.5, 2.5, count)]),
        rng.choice([AgentKind.VEHICLE, AgentKind.PEDESTRIAN], count, p=[0.8, 0.2]),
    )


def driven():
    return np.cumsum(np.random.default_rng(1).uniform(0.0, 0.9, (40, 30)), axis=1) - 0.1


def test_road_coordinates_are_those_of_the_nearest_sample():
    poses = agents().poses
    nearest = ((poses[:, None, :2] - ROAD.points) ** 2).sum(axis=-1).argmin(axis=1)
    offset = geometry.rotate(poses[:, :2] - ROAD.points[nearest], -ROAD.heading[nearest])
    at_m = ROAD.at[nearest] + offset[:, 0]
    expected = at_m, offset[:, 1], np.cos(poses[:, 2] - np.interp(at_m, ROAD.at, ROAD.heading))
    for projected, values in zip(prediction.project_to_road(ROAD, poses), expected, strict=True):
        np.testing.assert_allclose(projected, values, atol=1e-9)


def test_the_lead_is_the_nearest_agent_ahead_on_the_path():
    others = agents()
    coordinates = prediction.find_on_road(ROAD, others)
    assert coordinates.on_road.any()
    assert not coordinates.on_road.all()
    speeds_mps = np.hypot(*others.velocities_mps.T)
    x, y, heading = others.poses.T
    cos, sin = np.cos(heading)[:, None], np.sin(heading)[:, None]
    dx, dy = x - x[:, None], y - y[:, None]  # (A, A): of the column, seen from the row
    both, direction = coordinates.on_road[:, None] & coordinates.on_road, np.sign(coordinates.facing)[:, None]
    ahead_m = np.where(both, direction * (coordinates.at_m - coordinates.at_m[:, None]), cos * dx + sin * dy)
    left_m = np.where(both, direction * (coordinates.lateral_m - coordinates.lateral_m[:, None]), cos * dy - sin * dx)
    lengths_m, widths_m = others.sizes.T
    leads = (
        ((speeds_mps > MOVING_MPS) & (others.kinds != AgentKind.PEDESTRIAN))[:, None]
        & (ahead_m > 0.0)
        & (np.abs(left_m) < 0.5 * (widths_m + widths_m[:, None]) - PASSES_M)
        & ((np.cos(heading - heading[:, None]) > SAME_WAY) | (speeds_mps < MOVING_MPS))
    )
    gaps_m = np.where(leads, ahead_m - 0.5 * (lengths_m + lengths_m[:, None]), np.inf)
    nearest_m = gaps_m.min(axis=1)
    expected_m = np.where(nearest_m < LEAD_REACH_M, np.maximum(nearest_m, 0.0), np.inf)
    computed = find_leads(others, *coordinates)
    assert np.isfinite(expected_m).any()
    np.testing.assert_allclose(computed.gaps_m, expected_m, atol=1e-9)
    led = np.isfinite(expected_m)
    np.testing.assert_array_equal(computed.rows[led], gaps_m.argmin(axis=1)[led])
    assert len(find_leads(Agents.none(), *np.zeros((3, 0)), np.zeros(0, bool)).rows) == 0


def test_agents_turn_on_arcs_whose_curvature_decays():
    others, driven_m = agents(), driven()
    rates = np.random.default_rng(2).normal(0.0, 0.3, 40)
    speeds_mps = np.hypot(*others.velocities_mps.T)[:, None]
    turned = rates[:, None] * agent_motion.decayed(driven_m / np.maximum(speeds_mps, ARC_MIN_MPS), TURN_DECAY_S)
    towards = others.velocities_mps / np.maximum(speeds_mps, 1e-9)
    middle = 0.5 * (turned[:, 1:] + turned[:, :-1])
    steps_m = np.diff(driven_m, axis=1)[..., None] * geometry.rotate(towards[:, None], middle)
    expected = np.repeat(others.poses[:, None], 30, axis=1)
    expected[:, 1:, :2] += np.cumsum(steps_m, axis=1)
    expected[..., 2] += turned
    arcs = prediction._along_arcs(others.poses, others.velocities_mps, rates, driven_m)
    np.testing.assert_allclose(arcs[..., :2], expected[..., :2], atol=1e-9)
    np.testing.assert_allclose(geometry.wrap(arcs[..., 2] - expected[..., 2]), 0.0, atol=1e-9)


def test_agents_on_the_road_keep_their_lanes():
    others, driven_m = agents(), driven()
    at_m, lateral_m, _ = prediction.project_to_road(ROAD, others.poses)
    speeds_mps = np.hypot(*others.velocities_mps.T)
    turned = geometry.wrap(others.poses[:, 2] - np.interp(at_m, ROAD.at, ROAD.heading))
    directions = np.where(np.cos(turned) > 0.0, 1.0, -1.0)
    along_m = np.empty_like(driven_m)
    for who in range(40):  # distances along the agent's lane to distances along the road
        lane = ROAD.to_cartesian(np.column_stack([ROAD.at, np.full(len(ROAD.at), lateral_m[who])]))
        lengths_m = np.concatenate([[0.0], np.cumsum(np.hypot(*np.diff(lane, axis=0).T))])
        lane_m = np.interp(at_m[who], ROAD.at, lengths_m) + directions[who] * driven_m[who]
        beyond_m = lane_m - np.clip(lane_m, 0.0, lengths_m[-1])
        along_m[who] = np.interp(lane_m, lengths_m, ROAD.at) + beyond_m
    lasting_s = agent_motion.decayed(driven_m / np.maximum(speeds_mps, ARC_MIN_MPS)[:, None], DRIFT_DECAY_S)
    offsets_m = lateral_m[:, None] + (speeds_mps * np.sin(turned))[:, None] * lasting_s
    points = ROAD.to_cartesian(np.stack([along_m, offsets_m], axis=-1))
    headings = np.interp(along_m, ROAD.at, ROAD.heading)
    realigned = geometry.wrap(turned - np.where(directions > 0.0, 0.0, np.pi))[:, None] * lasting_s / DRIFT_DECAY_S
    future_poses = prediction.along_road(ROAD, at_m, lateral_m, others.poses, speeds_mps, driven_m)
    np.testing.assert_allclose(future_poses[..., :2], others.poses[:, None, :2] + points - points[:, :1], atol=1e-9)
    expected = others.poses[:, 2:] + headings - headings[:, :1] - realigned
    np.testing.assert_allclose(geometry.wrap(future_poses[..., 2] - expected), 0.0, atol=1e-9)


@pytest.mark.parametrize(("count", "dt_s"), [(1, 0.5), (2, 0.5), (9, 0.5), (51, 0.1), (70, 0.1)])
def test_tracks_are_linear_between_the_poses_of_a_forecast_and_go_straight_on_beyond(count, dt_s):
    rng = np.random.default_rng(count)
    poses = np.cumsum(rng.normal(0.0, 1.0, (20, count, 3)), axis=1)
    forecast = Forecast(poses, np.full((20, 2), 2.0), dt_s, ForecastSource.CONSTANT_VELOCITY)
    tracks = AgentTracks.of_forecast(forecast, np.ones(20, np.int64))
    times_s, knots_s = 0.1 * np.arange(SAMPLES), dt_s * np.arange(count)
    poses[..., 2] = np.unwrap(poses[..., 2], axis=1)
    beyond_s = np.maximum(times_s - knots_s[-1], 0.0)
    for track, knots in zip(tracks.poses, poses, strict=True):
        expected = np.stack([np.interp(times_s, knots_s, knots[:, axis]) for axis in range(3)], axis=-1)
        if count > 1:
            expected[:, :2] += beyond_s[:, None] * (knots[-1, :2] - knots[-2, :2]) / dt_s
        np.testing.assert_allclose(track[:, :2], expected[:, :2], atol=1e-9)
        np.testing.assert_allclose(geometry.wrap(track[:, 2] - expected[:, 2]), 0.0, atol=1e-9)
    inside = times_s < knots_s[-1] - 1e-6
    steps_m = np.hypot(*np.moveaxis(np.diff(tracks.poses[..., :2], axis=1), -1, 0))[:, inside[1:]]
    at_knots = np.isclose(np.round(times_s / dt_s) * dt_s, times_s)[:-1][inside[1:]]
    if dt_s > 0.1:  # between two knots the speed is that of the steps
        speeds_mps = tracks.speeds_mps[:, :-1][:, inside[1:]]
        np.testing.assert_allclose(steps_m[:, ~at_knots], 0.1 * speeds_mps[:, ~at_knots], atol=1e-9)
