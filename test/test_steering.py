"""Plans that no front wheel can follow are drawn as a car would drive them; all others are left alone."""

import numpy as np
import pytest

from reflectdrive_ros.core import geometry, kinematics
from reflectdrive_ros.core.domain import Trajectory
from reflectdrive_ros.planning.postprocess.waypoints import TIGHTEST_PER_M, exceeds_curvature, limit_curvature

TIMES_S = 0.1 * np.arange(1, 41)


def knots(points):
    return np.concatenate([np.zeros((1, 2)), points])[None]


def curl():
    """Points of a network at walking pace: forward, to the side, back."""
    return np.array(
        [(0.91, 0.06), (1.66, -0.07), (2.04, -0.75), (2.25, -1.95), (1.65, -2.52)] + 3 * [(1.65, -2.52)], float
    )


def test_a_curl_is_too_tight_and_what_drivers_do_is_not():
    assert exceeds_curvature(knots(curl())).all()
    half_seconds = 0.5 * np.arange(1, 9)
    for curvature, speed in [(0.0, 12.0), (0.05, 10.0), (0.19, 3.0), (-0.25, 2.0), (0.1, 0.5)]:
        assert not exceeds_curvature(knots(kinematics.arc(curvature, speed * half_seconds)[:, :2])).any()
    assert not exceeds_curvature(np.zeros((1, 9, 2))).any()
    sideways = np.stack([0.1 * half_seconds, 1.0 * half_seconds], axis=1)
    assert exceeds_curvature(knots(sideways)).all()


def test_a_steered_car_turns_no_sharper_faces_where_it_goes_and_drives_as_far():
    rng = np.random.default_rng(2)
    ways = np.cumsum(rng.uniform(-0.3, 0.5, (50, 40, 2)), axis=1)
    poses = np.concatenate([ways, np.zeros((50, 40, 1))], axis=-1)
    driven = np.cumsum(rng.uniform(0.0, 0.6, (50, 40)), axis=1)
    found = limit_curvature(poses, driven)
    started = np.concatenate([np.zeros((50, 1, 3)), found], axis=1)
    step = np.diff(started[..., :2], axis=1)
    length = np.hypot(step[..., 0], step[..., 1])
    np.testing.assert_allclose(np.cumsum(length, axis=1), driven, atol=1e-9)
    turn = np.abs(geometry.wrap(np.diff(started[..., 2], axis=1)))
    assert (turn <= TIGHTEST_PER_M * length + 1e-9).all()
    slip = geometry.wrap(np.arctan2(step[..., 1], step[..., 0]) - started[:, :-1, 2])
    assert np.abs(slip[length > 0.01]).max() <= 0.5 * TIGHTEST_PER_M * length.max() + 1e-9


@pytest.mark.parametrize("curvature", [-0.2, -0.05, 0.0, 0.1, 0.25])
def test_who_steers_along_a_way_that_can_be_driven_stays_on_it(curvature):
    way = kinematics.arc(curvature, 3.0 * TIMES_S)
    (found,) = limit_curvature(way[None], 3.0 * TIMES_S[None])
    assert np.hypot(*(found - way)[:, :2].T).max() < 0.35
    assert np.abs(kinematics.curvatures(Trajectory(found, 0.1))).max() < TIGHTEST_PER_M + 0.02
