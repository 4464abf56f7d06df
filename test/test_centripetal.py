"""The projection of reflection's noise (ReflexDiffusion, equation 10)."""

import numpy as np
import pytest

from reflectdrive_ros.planning.centripetal import couple, couple_noise
from reflectdrive_ros.scoring.frenet import FrenetFrame
from reflectdrive_ros.vector_spec import VectorSpec

DT_S, STEPS = 0.1, 40
U = np.arange(1, STEPS + 1) / STEPS
SPEED = np.full(STEPS, 8.0)


def test_on_a_straight_road_changes_of_curvature_grow_with_the_square_of_the_speed():
    moved = np.stack([0.5 * U, 0.1 * U**2], axis=-1)
    found = couple(moved, SPEED, np.zeros(STEPS), DT_S)
    np.testing.assert_allclose(found[:, 0], moved[:, 0])
    np.testing.assert_allclose(found[:, 1], 64.0 * moved[:, 1], rtol=1e-9)


@pytest.mark.parametrize("curvature", [0.05, -0.05])
def test_a_plan_that_gets_faster_in_a_bend_turns_more(curvature):
    faster = np.stack([2.0 * U**2, np.zeros(STEPS)], axis=-1)
    found = couple(faster, SPEED, np.full(STEPS, curvature), DT_S)
    assert np.sign(found[-1, 1]) == np.sign(curvature)
    # the rate of the heading is the change of the lateral acceleration, 2 kappa v dv, over the distance driven
    heading = np.diff(found[:, 1], prepend=0.0) / (8.0 * DT_S)
    bent = np.diff(heading, prepend=0.0) / (8.0 * DT_S)
    speeds = np.diff(faster[:, 0], prepend=0.0) / DT_S
    np.testing.assert_allclose(bent, 2.0 * curvature * 8.0 * speeds, atol=1e-9)


def futures(spec, rng):
    clean = np.zeros((spec.futures, 1 + spec.future_steps, 4))
    norm = spec.normalization
    poses = np.stack([8.0 * DT_S * np.arange(1, spec.future_steps + 1), 0.3 * U**2], axis=-1)
    clean[0, 1:, :2] = (poses - norm.ego_future_mean[:2]) / norm.ego_future_std[:2]
    clean[0, 1:, 2] = (1.0 - norm.ego_future_mean[2]) / norm.ego_future_std[2]
    return clean, rng.standard_normal(clean.shape)


@pytest.mark.parametrize("frenet", [False, True])
def test_only_the_ego_s_places_change_and_the_noise_gets_no_longer(frenet):
    spec = VectorSpec(future_steps=STEPS, future_dt_s=DT_S, ego_frenet=frenet, route_line_rows=3)
    line = FrenetFrame.of(np.stack([np.arange(-10.0, 100.0), np.zeros(110)], axis=-1)) if frenet else None
    clean, noise = futures(spec, np.random.default_rng(0))
    found = couple_noise(noise, clean, spec, line)
    assert not np.array_equal(found[0, 1:, :2], noise[0, 1:, :2])
    assert np.linalg.norm(found[0, 1:, :2]) <= np.linalg.norm(noise[0, 1:, :2]) * (1.0 + 1e-9)
    found[0, 1:, :2] = noise[0, 1:, :2]
    np.testing.assert_array_equal(found, noise)


def test_no_noise_stays_none():
    spec = VectorSpec(future_steps=STEPS, future_dt_s=DT_S)
    clean, noise = futures(spec, np.random.default_rng(0))
    np.testing.assert_array_equal(couple_noise(0.0 * noise, clean, spec, None), 0.0 * noise)
