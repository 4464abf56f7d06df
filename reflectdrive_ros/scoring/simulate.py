"""Simulates a car that follows N plans at once: NAVSIM's tracker and kinematic bicycle.

A plan of poses is interpolated at 10 Hz, its speeds and curvatures are fitted, a one-step LQR tracks them and a
kinematic bicycle with lagging actuators moves. Source: section 1 of NAVSIM's PDM score (`batch_lqr.py`,
`batch_lqr_utils.py`, `batch_kinematic_bicycle.py`). The results equal those of the official code to rounding. The
computation, in `src/simulate.cpp`, differs:

- The speed fit is linear with a matrix that is the same for all plans (cos^2 + sin^2 = 1), so it is one product.
- The curvature fit, written in curvatures instead of their rates, is tridiagonal: 40 operations instead of a 40 x 40
  pseudo-inverse per plan.
- The lateral error 10 steps ahead at constant steering rate is a polynomial in the speed and the acceleration with
  constant coefficients, so that no step multiplies matrices.

All poses are in the ego frame at t = 0: the car starts at the origin with heading 0.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import reflectdrive_kernels as kernels

from ..core.config import VehicleConfig
from ..core.domain import Array

DT_S: float = kernels.DT_S  # 0.1
STEPS: int = kernels.STEPS  # 40, 4 s
HORIZON_S = DT_S * STEPS

# Columns of a state; all at the rear axle, velocities and accelerations in the car's own axes.
X, Y, HEADING, VX, VY, AX, AY, STEERING, STEERING_RATE, YAW_RATE, YAW_ACCELERATION = range(11)
STATE_SIZE: int = kernels.STATE_SIZE  # 11

ACCELERATION_PENALTY = 1e-4  # section 1.1: intended for jerk, applied to acceleration in the official code


def simulate(plans: Array, motion: Array, vehicle: VehicleConfig, start_us: int | None = None) -> Array:
    """States (N, 41, 11) at 0, 0.1, .. 4 s of cars that follow plans (N, T, 3), poses at equal intervals up to 4 s.

    `motion` (8,) is the present motion: vx, vy m/s, ax, ay m/s^2, steering rad, steering rate rad/s, yaw rate rad/s,
    yaw acceleration rad/s^2; (N, 8) if it differs by car. `start_us` requests the official sampling for a clock with
    this value (see `sample_times`). All in the ego frame.
    """
    return follow(interpolate_plans(plans, start_us), motion, vehicle)


def follow(reference: Array, motion: Array, vehicle: VehicleConfig) -> Array:
    """States (N, 41, 11) of cars that track poses (N, 41, 3) at 10 Hz from the origin, with `motion` (8,) or (N, 8)."""
    reference = np.asarray(reference, float)
    states = np.empty((len(reference), STEPS + 1, STATE_SIZE))
    motions = np.atleast_2d(np.asarray(motion, float))
    kernels.follow(reference, motions, _speed_fit(), vehicle.wheel_base_m, vehicle.max_steering_rad, states)
    return states


def sample_times(knots: int, start_us: int | None = None) -> tuple[Array, Array]:
    """Seconds of `knots` poses (the first at t = 0) and of the 41 samples between them.

    With `start_us`, both are cut to whole microseconds of an absolute clock as in the official code, where seconds of
    an epoch clock are too coarse for a float: a sample may come 1 us early, which moves it by up to 2e-5 m.
    """
    knot_times = np.linspace(0.0, HORIZON_S, knots)
    times = DT_S * np.arange(STEPS + 1)
    if start_us is None:
        return knot_times, times
    start_s = start_us * 1e-6
    knots_us = np.floor((knot_times + start_s) * 1e6)
    knots_us[0] = start_us
    times_us = np.clip(np.floor((np.arange(0.0, HORIZON_S + DT_S, DT_S) + start_s) * 1e6), start_us, knots_us[-1])
    return (knots_us - start_us) * 1e-6, (times_us - start_us) * 1e-6


@lru_cache(maxsize=8)
def _sample_times(knots: int, start_us: int | None) -> tuple[Array, Array]:
    return sample_times(knots, start_us)


def interpolate_plans(plans: Array, start_us: int | None = None) -> Array:
    """Poses (N, 41, 3) at 10 Hz of plans (N, T, 3), linear between poses; headings are unwrapped, the first is 0."""
    plans = np.asarray(plans, float)
    reference = np.empty((len(plans), STEPS + 1, 3))
    kernels.interpolate_plans(plans, *_sample_times(plans.shape[1] + 1, start_us), reference)
    return reference


@lru_cache(maxsize=1)
def _speed_fit() -> Array:
    """(40, 40) weights of displacements along the heading (rows) in fitted speeds (columns)."""
    integrate = np.tril(np.full((STEPS, STEPS), DT_S**2), -1)[:, : STEPS - 1]
    model = np.concatenate([np.full((STEPS, 1), DT_S), integrate], axis=1)  # displacement from v0, a_0 .. a_38
    penalty = np.zeros((STEPS - 2, STEPS))
    penalty[:, 1:-1] = -np.eye(STEPS - 2)
    penalty[-1, -1] = 1.0  # the one difference that survives in the official matrix: a_38 - a_37
    normal = model.T @ model + ACCELERATION_PENALTY * penalty.T @ penalty
    return np.ascontiguousarray((model / DT_S @ np.linalg.pinv(normal) @ model.T).T)


def centers(states: Array, vehicle: VehicleConfig) -> Array:
    """(N, 41, 3) poses of the box centre (section 1.4)."""
    poses: Array = states[..., : HEADING + 1].copy()
    poses[..., X] += vehicle.rear_axle_to_center_m * np.cos(poses[..., HEADING])
    poses[..., Y] += vehicle.rear_axle_to_center_m * np.sin(poses[..., HEADING])
    return poses
