"""Plans with too much curvature are replaced by those of a car that follows them; all others are unchanged."""

import numpy as np
import pytest

from reflectdrive_ros.core import geometry, kinematics
from reflectdrive_ros.core.domain import Trajectory
from reflectdrive_ros.planning.postprocess.waypoints import TIGHTEST_PER_M, limit_curvature

TIMES_S = 0.1 * np.arange(1, 41)


def test_a_steered_car_turns_no_sharper_faces_where_it_goes_and_drives_as_far():
    rng = np.random.default_rng(2)
    points = np.cumsum(rng.uniform(-0.3, 0.5, (50, 40, 2)), axis=1)
    poses = np.concatenate([points, np.zeros((50, 40, 1))], axis=-1)
    driven = np.cumsum(rng.uniform(0.0, 0.6, (50, 40)), axis=1)
    limited = limit_curvature(poses, driven)
    started = np.concatenate([np.zeros((50, 1, 3)), limited], axis=1)
    step = np.diff(started[..., :2], axis=1)
    length = np.hypot(step[..., 0], step[..., 1])
    np.testing.assert_allclose(np.cumsum(length, axis=1), driven, atol=1e-9)
    turn = np.abs(geometry.wrap(np.diff(started[..., 2], axis=1)))
    assert (turn <= TIGHTEST_PER_M * length + 1e-9).all()
    slip = geometry.wrap(np.arctan2(step[..., 1], step[..., 0]) - started[:, :-1, 2])
    assert np.abs(slip[length > 0.01]).max() <= 0.5 * TIGHTEST_PER_M * length.max() + 1e-9


@pytest.mark.parametrize("curvature", [-0.2, -0.05, 0.0, 0.1, 0.25])
def test_a_path_that_can_be_driven_is_followed(curvature):
    path = kinematics.arc(curvature, 3.0 * TIMES_S)
    (limited,) = limit_curvature(path[None], 3.0 * TIMES_S[None])
    assert np.hypot(*(limited - path)[:, :2].T).max() < 0.35
    assert np.abs(kinematics.curvatures(Trajectory(limited, 0.1))).max() < TIGHTEST_PER_M + 0.02
