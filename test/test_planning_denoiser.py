"""The noise schedule and the samplers of a denoiser: each equals its formula, and good denoisers are sampled well."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from reflectdrive_ros.core.vector_spec import VectorSpec
from reflectdrive_ros.planning import denoiser

SHAPE = (3, 9, 4)  # futures of three agents, eight steps and the present


def random(seed, shape=SHAPE):
    return np.random.default_rng(seed).normal(size=shape)


# --- the noise schedule ----------------------------------------------------------------------------------------------


def test_the_schedule_is_linear_in_beta():
    """d log(alpha) / dt is -beta(t) / 2, with beta from 0.1 to 20."""
    at = np.linspace(0.01, 0.99, 50)
    slope = (np.log(denoiser.alpha_sigma(at + 1e-6)[0]) - np.log(denoiser.alpha_sigma(at - 1e-6)[0])) / 2e-6
    np.testing.assert_allclose(-2.0 * slope, 0.1 + at * 19.9, rtol=1e-7)


@pytest.mark.parametrize("steps", [1, 2, 10, 50])
def test_sampling_times_fall_from_1_to_the_end_in_equal_steps_of_log_snr(steps):
    times = denoiser.sampling_times(steps)
    assert times.shape == (steps + 1,)
    assert times[[0, -1]] == pytest.approx([1.0, denoiser.END_TIME], rel=1e-9)
    assert (np.diff(times) < 0.0).all()
    np.testing.assert_allclose(np.diff(denoiser.log_snr(times)), np.diff(denoiser.log_snr(times))[0], rtol=1e-6)


# --- steps -----------------------------------------------------------------------------------------------------------


def step_times():
    return list(pairwise(denoiser.sampling_times(10).tolist()))


@pytest.mark.parametrize(("time", "after"), step_times())
def test_a_ddim_step_is_that_of_the_reflexdiffusion_paper(time, after):
    """x' = (x - b noise) / sqrt(alpha_t), b = beta_t / (sqrt(alpha_t - abar_t) + sqrt(1 - abar_t)), which is
    sqrt(1 - abar_t) - sqrt(alpha_t - abar_t); abar are squared alphas, alpha_t = abar_t / abar_(t-1)."""
    abar, abar_after = (float(denoiser.alpha_sigma(t)[0]) ** 2 for t in (time, after))
    alpha_t = abar / abar_after
    b = (1.0 - alpha_t) / (np.sqrt(alpha_t - abar) + np.sqrt(1.0 - abar))
    assert b == pytest.approx(np.sqrt(1.0 - abar) - np.sqrt(alpha_t - abar), abs=1e-13)
    futures, clean = random(2), random(3)
    noise = denoiser.noise_of(futures, clean, time)
    expected = (futures - b * noise) / np.sqrt(alpha_t)
    sampled = denoiser.ddim_step(futures, clean, time, after)
    np.testing.assert_allclose(sampled, expected, rtol=1e-12, atol=1e-12)
    back = np.sqrt(alpha_t) * sampled + b * noise  # equation 8
    np.testing.assert_allclose(denoiser.ddim_inverse(sampled, noise, time, after), back, rtol=1e-12, atol=1e-12)


def test_a_second_order_step_extrapolates_the_prediction_to_the_middle_of_the_step():
    """Steps of log SNR that are equal: half a step further than the prediction, in the direction since the last one."""
    (last, _), (time, after) = step_times()[3:5]
    futures, clean, before = random(11), random(12), random(13)
    expected = denoiser.ddim_step(futures, 1.5 * clean - 0.5 * before, time, after)
    sampled = denoiser.dpm_step(futures, clean, (last, before), time, after)
    np.testing.assert_allclose(sampled, expected, rtol=1e-6, atol=1e-9)


# --- samplers --------------------------------------------------------------------------------------------------------

MEAN, SPREAD = 0.3, 0.4  # of a Gaussian of futures, in each number


def gaussian(futures, time):
    """The best denoiser of that Gaussian: its mean given the noisy futures."""
    alpha, sigma = denoiser.alpha_sigma(time)
    return MEAN + alpha * SPREAD**2 / (alpha**2 * SPREAD**2 + sigma**2) * (futures - alpha * MEAN)


def exact_gaussian(start):
    """Where the probability flow of that Gaussian leads from time 1, and its denoised value at the end."""
    (alpha, sigma), (alpha_end, sigma_end) = denoiser.alpha_sigma(1.0), denoiser.alpha_sigma(denoiser.END_TIME)
    widths = [np.sqrt(a**2 * SPREAD**2 + s**2) for a, s in ((alpha, sigma), (alpha_end, sigma_end))]
    reached = alpha_end * MEAN + widths[1] / widths[0] * (start - alpha * MEAN)
    return gaussian(reached, denoiser.END_TIME)


def error(start, steps):
    sampled = denoiser.sample(gaussian, start, start[:, 0], steps)
    return float(np.abs(sampled - exact_gaussian(start))[:, 1:].max())


@pytest.mark.parametrize("steps", [1, 2, 10])
def test_a_network_that_knows_the_trajectory_is_sampled_exactly(steps):
    trajectory, start = random(14), random(15)
    sampled = denoiser.sample(lambda futures, time: trajectory, start, trajectory[:, 0], steps)
    np.testing.assert_array_equal(sampled, trajectory)


def test_the_sampler_converges_to_the_flow_of_a_gaussian_in_second_order():
    start = random(16)
    errors = np.array([error(start, steps) for steps in (40, 80, 160)])
    np.testing.assert_allclose(errors[:-1] / errors[1:], 4.0, atol=0.8)
    assert errors[-1] < 1e-3


def test_the_sampler_continues_from_a_corrected_step():
    """Futures and prediction of the correction are those of the next step, also in its second-order part."""
    start, present, evaluations = random(19), random(20, (3, 4)), []

    def predict(futures, time):
        evaluations.append(futures)
        return gaussian(futures, time)

    moved = denoiser.with_present(random(21), present)
    other_clean = random(22)

    def correct(step, number):
        return replace(step, futures=moved, clean=other_clean) if number == 2 else step

    denoiser.sample(predict, start, present, 5, correct=correct)
    np.testing.assert_array_equal(evaluations[3], moved)
    at = denoiser.sampling_times(5).tolist()
    expected = denoiser.dpm_step(moved, gaussian(moved, at[3]), (at[2], other_clean), at[3], at[4])
    np.testing.assert_array_equal(evaluations[4], denoiser.with_present(expected, present))


def test_every_evaluation_and_the_result_have_the_present_poses():
    start, present, evaluations = random(23), random(24, (3, 4)), []

    def predict(futures, time):
        evaluations.append((futures[:, 0], time))
        return gaussian(futures, time)

    sampled = denoiser.sample(predict, start, present, 10)
    assert len(evaluations) == 11  # the last denoises what the last step left
    assert evaluations[-1][1] == pytest.approx(denoiser.END_TIME)
    for present_poses in (sampled[:, 0], *(each for each, _ in evaluations)):
        np.testing.assert_array_equal(present_poses, present)


# --- in metres -------------------------------------------------------------------------------------------------------


def test_futures_in_metres_have_mean_and_standard_deviation_of_the_spec():
    spec = VectorSpec(predicted_agents=2, future_steps=8)
    norm, futures = spec.normalization, random(25)
    in_metres = denoiser.in_metres(futures, spec)
    np.testing.assert_allclose(in_metres[0], futures[0] * norm.ego_future_std + norm.ego_future_mean, atol=1e-12)
    np.testing.assert_allclose(in_metres[1:], futures[1:] * norm.agent_future_std + norm.agent_future_mean, atol=1e-12)
    np.testing.assert_array_equal(denoiser.in_metres(np.zeros(SHAPE), spec)[..., 0], 10.0)


def test_a_future_with_its_cosine_and_sine_has_that_heading():
    headings = np.linspace(-3.0, 3.0, 8)
    future = np.stack([np.arange(8.0), np.zeros(8), 2.0 * np.cos(headings), 2.0 * np.sin(headings)], axis=1)
    np.testing.assert_allclose(denoiser.poses_of(future)[:, 2], headings)
    assert denoiser.poses_of(future).shape == (8, 3)
