"""Claims about the simulated car: it is NAVSIM's, it is one car per plan, and no plan breaks it."""

import gzip
import json
from pathlib import Path

import numpy as np
import pytest
import reflectdrive_kernels as kernels
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from reflectdrive_ros.core import geometry
from reflectdrive_ros.core.config import VehicleConfig
from reflectdrive_ros.scoring import simulate
from reflectdrive_ros.scoring.simulate import DT_S, HEADING, STEERING, STEPS, VX, VY

GOLDEN = Path(__file__).parent / "data" / "golden"
PACIFICA = VehicleConfig(max_steering_rad=np.pi / 3)
REST = np.zeros(8)


def moving(speed):
    return np.array([speed, 0, 0, 0, 0, 0, 0, 0], float)


plans = arrays(float, (3, 8, 3), elements=st.floats(-60, 60, width=32))


def test_states_equal_the_official_simulator():
    """Any steering and yaw rate at the start, all eleven state values: within 1e-6 of the official code."""
    worst = 0.0
    with gzip.open(GOLDEN / "sim_cases.jsonl.gz", "rt") as cases:
        for case in map(json.loads, cases):
            start = np.array(case["init"])
            states = simulate.simulate(np.array(case["poses"])[None], start[VX:], PACIFICA, 100_000_000)[0, 1:]
            official = np.array(case["sim"])
            states[:, : HEADING + 1] = geometry.compose(start[: HEADING + 1], states[:, : HEADING + 1])
            difference = states - official
            difference[:, HEADING] = geometry.wrap(difference[:, HEADING])
            worst = max(worst, np.abs(difference).max())
    assert 0 < worst < 1e-6  # not 0: the official values are rounded


def test_a_parked_car_with_a_standing_plan_stays():
    states = simulate.simulate(np.zeros((2, 8, 3)), REST, PACIFICA)
    np.testing.assert_array_equal(states, 0.0)


@given(plans, st.floats(0, 20))
def test_no_plan_breaks_the_car(poses, speed):
    """Jumps of 100 m and any heading, spinning included: finite states, wrapped headings, steering within its stops."""
    states = simulate.simulate(poses, moving(speed), PACIFICA)
    assert np.isfinite(states).all()
    assert (np.abs(states[..., HEADING]) <= np.pi).all()
    assert (np.abs(states[..., STEERING]) <= PACIFICA.max_steering_rad).all()
    assert (states[:, 1:, VY] == 0).all()


@given(plans, st.floats(0, 20))
def test_a_batch_equals_its_single_runs(poses, speed):
    batch = simulate.simulate(poses, moving(speed), PACIFICA)
    single = np.concatenate([simulate.simulate(one[None], moving(speed), PACIFICA) for one in poses])
    np.testing.assert_allclose(batch, single, rtol=1e-7, atol=1e-7)


@given(arrays(float, (40, 2), elements=st.floats(-0.5, 0.5)), arrays(float, (40, 2), elements=st.floats(-1.5, 1.5)))
def test_the_curvature_fit_is_the_least_squares_solution(turns, distances):
    """Against the official form: unknown curvature rates, a dense normal matrix."""
    fitted = np.empty(turns.T.shape)
    kernels.fit_curvatures(turns.T, distances.T, fitted)
    fitted = fitted.T
    integrate = np.tril(np.full((STEPS, STEPS), DT_S), -1)[:, : STEPS - 1]
    model = np.concatenate([np.ones((STEPS, 1)), integrate], axis=1)
    penalty = np.diag([1e-10] + [1e-2] * (STEPS - 1))
    for i in range(turns.shape[1]):
        weighted = distances[:, i, None] * model
        rates = np.linalg.lstsq(weighted.T @ weighted + penalty, weighted.T @ turns[:, i], rcond=None)[0]
        expected = model @ rates
        residual = np.sum((turns[:, i] - distances[:, i] * expected) ** 2)
        ours = np.sum((turns[:, i] - distances[:, i] * fitted[:, i]) ** 2)
        if np.abs(distances[:, i]).max() > 0.01:  # slower, the fit is not determined
            np.testing.assert_allclose(fitted[:, i], expected, atol=1e-5 * (1 + np.abs(expected).max()))
        assert ours <= residual + 1e-6


def test_a_plan_at_ten_hertz_is_one_at_two_hertz_interpolated():
    coarse = np.array([[[3.0, 0.1, 0.02], [6, 0.3, 0.05], [9, 0.7, 0.1], [12, 1.2, 0.15]] + [[15.0, 1.8, 0.2]] * 4])
    fine = simulate.interpolate_plans(coarse)[:, 1:]
    assert fine.shape == (1, 40, 3)
    states, expected = (simulate.simulate(plan, moving(6.0), PACIFICA) for plan in (fine, coarse))
    np.testing.assert_allclose(states, expected, atol=1e-12)


@pytest.mark.parametrize("start_us", [100_000_000, 1_622_547_000_123_456, 1_700_000_000_999_999])
def test_official_clocks_sample_at_most_a_microsecond_early(start_us):
    _, times = simulate.sample_times(9, start_us)
    early = DT_S * np.arange(STEPS + 1) - times
    assert times[0] == 0
    assert (early > -1e-9).all()
    assert (early < 1.01e-6).all()
    if start_us == 100_000_000:
        assert early.max() < 1e-9  # a small clock has no such fault
