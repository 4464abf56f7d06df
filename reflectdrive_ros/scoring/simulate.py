"""Simulates a car that follows N plans at once: NAVSIM's tracker and kinematic bicycle.

A plan of poses is interpolated at 10 Hz, its speeds and curvatures are fitted, a one-step LQR tracks them and a
kinematic bicycle with lagging actuators moves. Source: section 1 of NAVSIM's PDM score (`batch_lqr.py`,
`batch_lqr_utils.py`, `batch_kinematic_bicycle.py`). The results equal those of the official code to rounding. The
computation differs:

- The speed fit is linear with a matrix that is the same for all plans (cos^2 + sin^2 = 1), so it is one product.
- The curvature fit, written in curvatures instead of their rates, is tridiagonal: 40 vector operations instead of a 40
  x 40 pseudo-inverse per plan.
- The lateral error 10 steps ahead at constant steering rate is a polynomial in the speed and the acceleration; its
  coefficients are precomputed sums, so that the loop multiplies no matrices.

All poses are in the ego frame at t = 0: the car starts at the origin with heading 0.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache

import numpy as np

from .. import geometry
from ..config import VehicleConfig
from ..domain import Array

DT_S = 0.1
STEPS = 40  # 4 s
HORIZON_S = DT_S * STEPS

# Columns of a state; all at the rear axle, velocities and accelerations in the car's own axes.
X, Y, HEADING, VX, VY, AX, AY, STEERING, STEERING_RATE, YAW_RATE, YAW_ACCELERATION = range(11)
STATE_SIZE = 11
CARS_AT_ONCE = 256  # of `simulate_each`; the arrays of more fall out of the cache
ONE_THREAD = 262_144  # multiplications up to which OpenBLAS keeps a product on one core

ACCELERATION_PENALTY = 1e-4  # section 1.1: intended for jerk, applied to acceleration in the official code
CURVATURE_PENALTY = 1e-10
CURVATURE_RATE_PENALTY = 1e-2
LOOK_AHEAD = 10  # steps
STOPPING_SPEED_MPS = 0.2
STOPPING_GAIN = 0.5
SPEED_GAIN = 10.0 / 11.0  # q B / (q B^2 + r) with q = 10, r = 1, B = 1 s
HEADING_WEIGHT = 10.0  # against 1 for the lateral error and for the steering rate
ACCELERATION_SHARE = DT_S / (DT_S + 0.2)  # low pass of 0.2 s
STEERING_SHARE = DT_S / (DT_S + 0.05)  # low pass of 0.05 s


def simulate(plans: Array, motion: Array, vehicle: VehicleConfig, start_us: int | None = None) -> Array:
    """States (N, 41, 11) at 0, 0.1, .. 4 s of cars that follow plans (N, T, 3), poses at equal intervals up to 4 s.

    `motion` (8,) is the present motion: vx, vy m/s, ax, ay m/s^2, steering rad, steering rate rad/s, yaw rate rad/s,
    yaw acceleration rad/s^2; (N, 8) if it differs by car. `start_us` requests the official sampling for a clock with
    this value (see `sample_times`). All in the ego frame.
    """
    return follow(interpolate_plans(plans, start_us), motion, vehicle)


def simulate_each(plans: Sequence[Array], motions: Sequence[Array], vehicle: VehicleConfig) -> Iterator[Array]:
    """As `simulate` for each of several plans (N, T, 3) with their motions (8,), at a fraction of its cost.

    Most of a simulation's time is the overhead of its steps, whatever the number of cars.
    """
    first, count = 0, 0
    for last, plan in enumerate(plans, 1):
        count += len(plan)
        if count < CARS_AT_ONCE and last < len(plans):
            continue
        sizes = [len(each) for each in plans[first:last]]
        reference = np.concatenate([interpolate_plans(each) for each in plans[first:last]])
        states = follow(reference, np.repeat(motions[first:last], sizes, axis=0), vehicle)
        for part in np.split(states.transpose(1, 2, 0), np.cumsum(sizes)[:-1], axis=2):
            yield np.ascontiguousarray(part).transpose(2, 0, 1)
        first, count = last, 0


def product(matrix: Array, columns: Array) -> Array:
    """(M, N) matrix (M, K) times columns (K, N), in pieces that BLAS does not spread over threads.

    Waking threads costs more than these products, and a planner's other cores have work of their own.
    """
    count = columns.shape[1]
    at_once = max(1, ONE_THREAD // (matrix.shape[0] * matrix.shape[1]))
    if count <= at_once:
        return np.asarray(matrix @ columns)
    return np.concatenate([matrix @ columns[:, i : i + at_once] for i in range(0, count, at_once)], axis=1)


# --- 0 and 1.1: what there is to follow -------------------------------------------------------------------------------


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
def _interpolation(knots: int, start_us: int | None) -> Array:
    knot_times, times = sample_times(knots, start_us)
    return np.stack([np.interp(times, knot_times, row) for row in np.eye(knots)], axis=1)  # (41, knots)


def interpolate_plans(plans: Array, start_us: int | None = None) -> Array:
    """Poses (N, 41, 3) at 10 Hz of plans (N, T, 3), linear between poses; headings are unwrapped, the first is 0."""
    plans = np.asarray(plans, float)
    knots = np.concatenate([np.zeros_like(plans[:, :1]), plans], axis=1)
    knots[:, :, 2] = np.unwrap(knots[:, :, 2], axis=1)
    return np.asarray(_interpolation(knots.shape[1], start_us) @ knots)


@lru_cache(maxsize=1)
def _speed_fit() -> Array:
    """(40, 40) matrix from displacements along the heading to fitted speeds."""
    integrate = np.tril(np.full((STEPS, STEPS), DT_S**2), -1)[:, : STEPS - 1]
    model = np.concatenate([np.full((STEPS, 1), DT_S), integrate], axis=1)  # displacement from v0, a_0 .. a_38
    penalty = np.zeros((STEPS - 2, STEPS))
    penalty[:, 1:-1] = -np.eye(STEPS - 2)
    penalty[-1, -1] = 1.0  # the one difference that survives in the official matrix: a_38 - a_37
    normal = model.T @ model + ACCELERATION_PENALTY * penalty.T @ penalty
    return np.asarray(model / DT_S @ np.linalg.pinv(normal) @ model.T)


def _curvatures(turns: Array, distances: Array) -> Array:
    """(40, N) curvatures c with c * distance = turn, smooth in time: turns (40, N) rad, distances (40, N) m.

    Minimises sum (turn - distance c)^2 + 1e-10 c_0^2 + 1e-2 sum ((c_k+1 - c_k) / dt)^2, which is tridiagonal.
    """
    stiffness = CURVATURE_RATE_PENALTY / DT_S**2
    diagonal = distances**2 + 2 * stiffness
    diagonal[0] += CURVATURE_PENALTY - stiffness
    diagonal[-1] -= stiffness
    right = distances * turns
    for k in range(1, STEPS):
        share = stiffness / diagonal[k - 1]
        diagonal[k] -= stiffness * share
        right[k] += share * right[k - 1]
    right[-1] /= diagonal[-1]
    for k in range(STEPS - 2, -1, -1):
        right[k] = (right[k] + stiffness * right[k + 1]) / diagonal[k]
    return right


def profiles(reference: Array) -> tuple[Array, Array]:
    """Speeds m/s and curvatures 1/m, both (40, N), fitted to poses (N, 41, 3) at 10 Hz."""
    step = np.diff(reference, axis=1)
    heading = reference[:, :-1, 2]
    along = np.cos(heading) * step[..., 0] + np.sin(heading) * step[..., 1]
    speeds = product(_speed_fit(), along.T)
    turns = geometry.wrap(step[..., 2].T)
    return speeds, _curvatures(turns, DT_S * speeds)


# --- 1.2: the tracker -------------------------------------------------------------------------------------------------

_J = np.arange(LOOK_AHEAD)
_EARLIER = np.concatenate([[0], np.cumsum(_J)[:-1]])  # sum of j < k
_EARLIER_SQUARES = np.concatenate([[0], np.cumsum(_J**2)[:-1]])


@lru_cache(maxsize=1)
def _curvature_windows() -> Array:
    """(200, 40): for each step and each of five weights, the weighted sum over the ten curvatures ahead.

    With distance alpha + beta j in step j, the sums multiply alpha and beta (contribution to the heading), and alpha^2,
    alpha beta and beta^2 (contribution to the lateral error).
    """
    after = LOOK_AHEAD - 1 - _J  # steps that follow j
    after_sum = _J.sum() - np.cumsum(_J)  # of their indices
    weights = np.stack([np.ones(LOOK_AHEAD), _J, after, after_sum + _J * after, _J * after_sum])
    windows = np.zeros((STEPS, 5, STEPS))
    for i in range(STEPS):
        last = min(i + LOOK_AHEAD, STEPS - 1)  # past the look-ahead index its curvature repeats
        for j in range(LOOK_AHEAD):
            windows[i, :, min(i + j, last)] += weights[:, j]
    return windows.reshape(STEPS * 5, STEPS)


@lru_cache(maxsize=8)
def _ten_steps(wheel_base_m: float) -> Array:
    """(5, 5) effect of ten steps, as multiples of (alpha, beta, alpha^2, alpha beta, beta^2).

    Rows: distance driven; turn per steering angle; lateral error per steering angle; turn and lateral error per
    steering rate. The lateral ones are sums over pairs of steps j < k.
    """
    one, squares = float(_J.sum()), float((_J**2).sum())
    pairs = (float(_J.sum()), float((_J * _J + _EARLIER).sum()), float((_J * _EARLIER).sum()))
    rate_pairs = (
        float(_EARLIER.sum()),
        float((_J * _EARLIER + _EARLIER_SQUARES).sum()),
        float((_J * _EARLIER_SQUARES).sum()),
    )
    way = np.array([LOOK_AHEAD, one, 0, 0, 0])
    lateral = np.array([0, 0, *pairs]) / wheel_base_m
    rate_turn = np.array([one, squares, 0, 0, 0]) * (DT_S / wheel_base_m)
    rate_lateral = np.array([0, 0, *rate_pairs]) * (DT_S / wheel_base_m)
    return np.stack([way, way / wheel_base_m, lateral, rate_turn, rate_lateral])


def follow(reference: Array, motion: Array, vehicle: VehicleConfig) -> Array:
    """States (N, 41, 11) of cars that track poses (N, 41, 3) at 10 Hz from the origin, with `motion` (8,) or (N, 8)."""
    states, far_off = _drive(reference, motion, vehicle, wrapping=False)
    if far_off.any():  # a heading error beyond half a turn, in a plan that no car follows: angles must be wrapped
        theirs = motion if np.ndim(motion) == 1 else motion[far_off]
        states[far_off], _ = _drive(reference[far_off], theirs, vehicle, wrapping=True)
    states[..., HEADING] = _wrap(states[..., HEADING])
    return states


def _drive(reference: Array, motion: Array, vehicle: VehicleConfig, *, wrapping: bool) -> tuple[Array, Array]:
    """States with headings not wrapped, and (N,) bool: whether the heading error left [-pi, pi)."""
    count, base = len(reference), vehicle.wheel_base_m
    speeds, curvatures = profiles(reference)
    windows = product(_curvature_windows(), curvatures).reshape(STEPS, 5, count)
    ten_steps = _ten_steps(base)
    place = np.ascontiguousarray(reference.transpose(1, 2, 0))  # (41, 3, N)
    normal = np.stack([-np.sin(place[:, HEADING]), np.cos(place[:, HEADING])], axis=1)
    slow = speeds <= STOPPING_SPEED_MPS
    any_slow = np.asarray(slow.any(axis=1))

    states = np.zeros((STEPS + 1, STATE_SIZE, count))
    states[0, VX:] = np.atleast_2d(motion).T
    errors = np.zeros((STEPS, 2, count))  # of the heading, now and ten steps ahead
    basis = np.empty((5, count))  # alpha, beta, alpha^2, alpha beta, beta^2
    direction = np.empty((2, count))
    bend = np.tan(states[0, STEERING]) / base
    for i in range(STEPS):
        state, now = states[i], states[i + 1]
        v, steering = state[VX], state[STEERING]

        gap = (state[:2] - place[i, :2]) * normal[i]
        turned = state[HEADING] - place[i, HEADING]
        errors[i, 0] = turned
        if wrapping:
            turned = _wrap(turned)

        look = min(i + LOOK_AHEAD, STEPS - 1)
        command = -SPEED_GAIN * (v - speeds[look])
        if any_slow[look]:
            stopping = slow[look] & (v <= STOPPING_SPEED_MPS)
            command[stopping] *= STOPPING_GAIN / SPEED_GAIN

        # Ten steps ahead at constant steering rate u: error = A x0 + B u + g, in closed form.
        np.multiply(v, DT_S, out=basis[0])
        np.multiply(command, DT_S * DT_S, out=basis[1])
        np.multiply(basis[0], basis[:2], out=basis[2:4])
        np.multiply(basis[1], basis[1], out=basis[4])
        way, turn, lateral, rate_turn, rate_lateral = ten_steps @ basis
        road = windows[i] * basis
        turned_ahead = turned + steering * turn - (road[0] + road[1])
        errors[i, 1] = turned_ahead
        if wrapping:
            turned_ahead = _wrap(turned_ahead)
        lateral_ahead = gap[0] + gap[1] + turned * way + steering * lateral - (road[2] + road[3] + road[4])
        weighted_turn = HEADING_WEIGHT * rate_turn
        rate = rate_lateral * lateral_ahead + weighted_turn * turned_ahead
        rate /= rate_lateral * rate_lateral + weighted_turn * rate_turn + 1.0
        rate *= -STEERING_SHARE
        if any_slow[look]:
            rate[stopping] = 0.0
        now[STEERING_RATE] = rate

        # 1.3: the bicycle, explicit Euler, every right-hand side at the old state.
        np.cos(state[HEADING], out=direction[0])
        np.sin(state[HEADING], out=direction[1])
        np.add(state[:2], direction * basis[0], out=now[:2])
        np.add(state[HEADING], basis[0] * bend, out=now[HEADING])
        now[AX] = state[AX] + ACCELERATION_SHARE * (command - state[AX])
        np.add(v, now[AX] * DT_S, out=now[VX])  # not clamped: late braking may roll back slightly
        rate *= DT_S
        rate += steering
        np.minimum(rate, vehicle.max_steering_rad, out=rate)
        np.maximum(rate, -vehicle.max_steering_rad, out=now[STEERING])
        bend = np.tan(now[STEERING]) / base
    states[1:, YAW_RATE] = states[1:, VX] * np.tan(states[1:, STEERING]) / base
    states[1:, YAW_ACCELERATION] = np.diff(states[:, YAW_RATE], axis=0) / DT_S
    far_off = np.abs(errors).max(axis=(0, 1)) >= np.pi
    return states.transpose(2, 0, 1), far_off  # a view: the next computations iterate over candidates again


def _wrap(angle: Array) -> Array:
    """As geometry.wrap, and exact for angles that need no wrapping."""
    return np.asarray(angle - 2 * np.pi * np.floor((angle + np.pi) / (2 * np.pi)))
