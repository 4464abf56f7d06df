"""The kernels of collision and time to collision against the rules of the score, written plainly."""

import numpy as np
import pytest
import reflectdrive_kernels as kernels
import shapely
from hypothesis import given
from hypothesis import strategies as st
from scenes import CAR, SIZE

from reflectdrive_ros.core import geometry
from reflectdrive_ros.core.domain import AgentKind
from reflectdrive_ros.scoring import contacts, metrics
from reflectdrive_ros.scoring.contacts import SAMPLES, AgentTracks
from reflectdrive_ros.scoring.simulate import DT_S, STATE_SIZE, STEPS, VX, centers


def crowd_of(random, count, spread):
    """Agents that jump about, some of them absent, some of them cones."""
    return AgentTracks(
        random.uniform(-spread, spread, (count, SAMPLES, 3)),
        random.random((count, SAMPLES)) < 0.8,
        random.choice([0.0, 3.0], (count, SAMPLES)),
        random.uniform(0.3, 9.0, (count, 2)),
        random.choice([AgentKind.VEHICLE, AgentKind.STATIC], count).astype(int),
    )


def plans_of(random, count, spread):
    """(N, 41, 11) states of cars that jump about; some stand."""
    states = np.zeros((count, STEPS + 1, STATE_SIZE))
    states[..., :VX] = random.uniform(-spread, spread, (count, STEPS + 1, 3))
    states[..., VX] = random.choice([0.0, 4.0], states.shape[:2])
    return states


def angle_to(pose, target):
    x, y = geometry.transform_points(geometry.invert(pose), target[:2])
    return abs(np.arctan2(y, x))


def plain_no_collision(states, center, crowd, lateral_counts, official):
    """Section 4, one pair and instant after the other."""
    score = np.ones(states.shape[:2])
    for n, a in np.ndindex(len(states), len(crowd)):
        fault = None  # of the contact that goes on
        for t in range(STEPS + 1):
            other, size = crowd.poses[a, t], crowd.sizes[a]
            if not crowd.present[a, t] or not geometry.boxes_overlap(center[n, t], SIZE, other, size):
                fault = fault if official else None
                continue
            if fault is None:
                speed = crowd.first_speeds_mps[a] if official else crowd.speeds_mps[a, t]
                bumper = geometry.compose(center[n, t], np.array([0.5 * CAR.length_m, 0.0, 0.0]))
                frontal = geometry.boxes_overlap(bumper, np.array([0.0, CAR.width_m]), other, size)
                behind = angle_to(states[n, t, :3], other) > np.deg2rad(150.0)
                stands = crowd.are_static[a] or speed <= 0.05
                fault = states[n, t, VX] > 0.05 and (stands or (not behind and (frontal or lateral_counts[n, t])))
                fault = fault and (official or t > 0)
            if fault:
                score[n, t] = min(score[n, t], 0.5 if crowd.are_static[a] else 0.0)
    return score


def plain_time_to_collision(states, center, crowd, lateral_counts, last, official):
    """Section 9, likewise."""
    score = np.ones(len(states))
    for n, a in np.ndindex(len(states), len(crowd)):
        before = None
        for t, look in ((t, look) for t in range(last + 1) for look in (0, 3, 6, 9)):
            speed, other = states[n, t, VX], crowd.poses[a, t + look]
            further = np.array([DT_S * look * speed, 0.0, 0.0])
            ours = geometry.compose(center[n, t], further)
            touches = geometry.boxes_overlap(ours, SIZE, other, crowd.sizes[a])
            if speed < 0.005 or not crowd.present[a, t + look] or not touches:
                continue
            first = before is None or (not official and t > before + 1)
            before = t
            if first:
                rear = states[n, t, :3] if official else geometry.compose(states[n, t, :3], further)
                angle = angle_to(rear, other)
                if angle < np.deg2rad(30.0) or (lateral_counts[n, t] and angle <= np.deg2rad(150.0)):
                    score[n] = 0.0
    return score


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("official", [True, False])
def test_collisions_and_times_to_them_are_those_of_the_plain_rules(seed, official):
    random = np.random.default_rng(seed)
    states, crowd = plans_of(random, 3, 12.0), crowd_of(random, 5, 12.0)
    center = centers(states, CAR)
    some = random.random(center.shape[:2]) < 0.5
    flags = metrics.EgoAreas(some, np.zeros_like(some), some, some, some)
    np.testing.assert_array_equal(
        metrics.no_collision(states, center, CAR, crowd, flags, official),
        plain_no_collision(states, center, crowd, some, official),
    )
    scores = metrics.time_to_collision(states, center, CAR, crowd, flags, 31, official)
    np.testing.assert_array_equal(scores, plain_time_to_collision(states, center, crowd, some, 31, official))


@given(st.integers(0, 2**32 - 1), st.integers(0, 12), st.floats(2.0, 40.0))
def test_gaps_to_agents_are_those_of_all_pairs(seed, count, spread):
    random = np.random.default_rng(seed)
    candidates, instants, cap = 7, 11, 5.0
    crowd = crowd_of(random, count, spread)
    center = random.uniform(-spread, spread, (candidates, instants, 3))
    samples = random.integers(0, SAMPLES, instants)
    clear = contacts.clearances(center, SIZE, crowd, samples, cap)
    ego, other = center[:, :, None], crowd.poses[:, samples].transpose(1, 0, 2)
    gaps = geometry.box_separation(ego, SIZE, other, crowd.sizes)  # (N, K, A)
    boxes = shapely.polygons(geometry.box_corners(other, crowd.sizes))
    true = shapely.distance(shapely.polygons(geometry.box_corners(ego, SIZE)), boxes)
    least, most = (
        np.minimum(np.where(crowd.present[:, samples].T, gap, cap).min(axis=2, initial=cap), cap)
        for gap in (np.maximum(gaps, 0.0), true)
    )
    assert (least - 1e-9 <= clear).all()
    assert (clear <= most + 1e-9).all()


@pytest.mark.parametrize("seed", range(5))
def test_a_red_connector_counts_where_the_box_touches_its_polygon(seed):
    """Shapes that are not convex, boxes inside and around them, against shapely."""
    random = np.random.default_rng(seed)
    angle = np.sort(random.uniform(0.0, 2 * np.pi, 9))
    ring = random.uniform(2.0, 12.0, 9)[:, None] * np.stack([np.cos(angle), np.sin(angle)], axis=-1)
    center = random.uniform(-14.0, 14.0, (400, STEPS + 1, 3))
    red = np.zeros((1, STEPS + 1), bool)
    red[0, 3] = True
    touches = shapely.intersects(shapely.Polygon(ring), shapely.polygons(geometry.box_corners(center[:, 3], SIZE)))
    score = metrics.traffic_lights(center, CAR, (ring,), red)
    np.testing.assert_array_equal(score == 0.0, touches)
    assert 0.0 < score.mean() < 1.0


def test_arrays_of_another_kind_are_refused_by_name():
    with pytest.raises(ValueError, match="driving_direction: wrong has 2 axes of 'd'"):
        kernels.driving_direction(np.zeros((1, 41, 3)), np.zeros((1, 41)), np.zeros(1))
    with pytest.raises(ValueError, match="score has length 2 on axis 0, expected 1"):
        kernels.driving_direction(np.zeros((1, 41, 3)), np.zeros((1, 41), bool), np.zeros(2))
    with pytest.raises(TypeError, match="incompatible function arguments"):
        kernels.driving_direction(np.zeros((1, 41, 3)))
