"""Motion along paths: speeds and accelerations of a trajectory, resampling in time, braking, following, steering."""

from __future__ import annotations

import numpy as np
import reflectdrive_kernels as kernels

from . import geometry
from .config import VehicleConfig
from .domain import Agents, Array, EgoState, Forecast, ForecastSource, Plan, Trajectory

SAME_PLACE_M = 1e-3  # knots closer than this are one position: the car stands
TURNING_MIN_MPS = 0.3  # the path of a slower car is straight: yaw rate over speed would be noise
STANDSTILL_SPACING_M = 1e-3  # as far apart as the points of Autoware's own stop


def with_origin(poses: Array) -> Array:
    """(T + 1, 3): the pose now, which is the origin of the ego frame, in front of the trajectory's poses."""
    return np.concatenate([np.zeros((1, 3)), np.asarray(poses, float)])


def box_centres(poses: Array, vehicle: VehicleConfig) -> Array:
    """(..., 3) centres of the vehicle box for rear-axle poses (..., 3)."""
    return geometry.compose(poses, np.array([vehicle.rear_axle_to_center_m, 0.0, 0.0]))


def speeds(trajectory: Trajectory) -> Array:
    """(T,) m/s, mean over the interval that ends at each pose; negative where the car moves against its heading."""
    poses = with_origin(trajectory.poses)
    step = np.diff(poses[:, :2], axis=0)
    middle = poses[:-1, 2] + 0.5 * geometry.wrap(np.diff(poses[:, 2]))
    forward = step[:, 0] * np.cos(middle) + step[:, 1] * np.sin(middle)
    return np.asarray(np.copysign(np.hypot(step[:, 0], step[:, 1]), forward) / trajectory.dt_s)


def accelerations(trajectory: Trajectory) -> Array:
    """(T,) m/s^2 along the path after each pose; the last is 0, as Autoware's learned planners publish it."""
    speed = speeds(trajectory)
    return np.concatenate([np.diff(speed) / trajectory.dt_s, [0.0]])


def yaw_rates(trajectory: Trajectory) -> Array:
    """(T,) rad/s, mean over the interval that ends at each pose."""
    headings = with_origin(trajectory.poses)[:, 2]
    return np.asarray(geometry.wrap(np.diff(headings)) / trajectory.dt_s)


def curvatures(trajectory: Trajectory, slowest_mps: float = 1.0) -> Array:
    """(T,) 1/m, yaw rate over speed; speeds below `slowest_mps` are replaced by it: the ratio would be noise."""
    return np.asarray(yaw_rates(trajectory) / np.maximum(np.abs(speeds(trajectory)), slowest_mps))


def resample(trajectory: Trajectory, times_s: Array) -> Array:
    """Poses (N, 3) at times after the plan's stamp, within [0, horizon].

    Distance runs monotonically in time (PCHIP), so a stop stays a stop; the path through the knots is a cubic in
    distance, and the heading is linear in distance. Both turn with the frame. Raises ValueError beyond the horizon.
    """
    times_s = np.asarray(times_s, float)
    horizon = trajectory.horizon_s
    if len(times_s) and (times_s.min() < -1e-9 or times_s.max() > horizon + 1e-9):
        raise ValueError(f"times_s spans {times_s.min():.2f}..{times_s.max():.2f} s, the plan 0..{horizon:.2f} s")
    poses = with_origin(trajectory.poses)
    knots_s = np.concatenate([[0.0], trajectory.times_s])
    resampled = np.empty((len(times_s), 3))
    kernels.resample(poses, knots_s, times_s, SAME_PLACE_M, resampled)
    return resampled


def carry_forward(plan: Plan, stamp_ns: int, map_from_ego: Array) -> Trajectory | None:
    """The rest of a plan from a later stamp on, in the ego frame of that stamp; None if less than one interval remains.

    The part already driven is dropped and nothing is appended: the horizon shrinks.
    """
    elapsed_s = (stamp_ns - plan.stamp_ns) * 1e-9
    trajectory = plan.trajectory
    left = int(np.floor((trajectory.horizon_s - elapsed_s) / trajectory.dt_s + 1e-6))
    if elapsed_s < 0 or left < 1:
        return None
    times_s = np.minimum(elapsed_s + trajectory.dt_s * np.arange(1, left + 1), trajectory.horizon_s)
    now_from_then = geometry.compose(geometry.invert(map_from_ego), plan.map_from_ego)
    return Trajectory(geometry.compose(now_from_then, resample(trajectory, times_s)), trajectory.dt_s)


def path_ahead(plan: Plan, map_from_ego: Array, reach_m: float) -> Array:
    """(L, 3) the part of a plan's path ahead of the ego, in the present ego frame; may be empty, and is where the path
    is more than `reach_m` from the ego: it does not lead on from here."""
    now_from_then = geometry.compose(geometry.invert(map_from_ego), plan.map_from_ego)
    path = geometry.compose(now_from_then, plan.trajectory.poses)
    _, (offset_m,) = geometry.project(np.concatenate([now_from_then[None], path]), np.zeros((1, 2)))
    if abs(offset_m) > reach_m:
        return path[:0]
    ahead = path[:, 0] > 0.0
    return path[int(np.argmax(ahead)) :] if ahead.any() else path[:0]


def forecast(agents: Agents, dt_s: float, steps: int) -> Forecast:
    """Agents at 0, 1, .. `steps` intervals: along their predicted paths if the observation has them (straight on at the
    present velocity beyond their end), else at constant velocity and heading.
    """
    times_s = dt_s * np.arange(steps + 1)
    if agents.predicted_poses is None:
        return Forecast(straight_on(agents, times_s), agents.sizes, dt_s, ForecastSource.CONSTANT_VELOCITY)
    knots = np.concatenate([agents.poses[:, None, :], agents.predicted_poses], axis=1)
    knots[..., 2] = np.unwrap(knots[..., 2], axis=1)
    last = knots.shape[1] - 1
    at = np.minimum(times_s / agents.predicted_dt_s, last)
    before = np.minimum(at.astype(int), max(last - 1, 0))
    share = (at - before)[None, :, None]
    poses = (1 - share) * knots[:, before] + share * knots[:, np.minimum(before + 1, last)]
    beyond = np.maximum(times_s - last * agents.predicted_dt_s, 0.0)
    poses[..., :2] += agents.velocities_mps[:, None, :] * beyond[None, :, None]
    poses[..., 2] = geometry.wrap(poses[..., 2])
    return Forecast(poses, agents.sizes, dt_s, ForecastSource.PREDICTED)


def straight_on(agents: Agents, times_s: Array) -> Array:
    """(A, T, 3) poses of agents at constant velocity and heading."""
    poses: Array = np.repeat(agents.poses[:, None, :], len(times_s), axis=1)
    poses[..., :2] += agents.velocities_mps[:, None, :] * times_s[None, :, None]
    return poses


def braking_distances(speed_mps: float, deceleration_mps2: float, times_s: Array) -> Array:
    """(N,) metres travelled at the given times when braking at a constant rate to a stop."""
    until_stop = np.minimum(np.asarray(times_s, float), max(speed_mps, 0.0) / deceleration_mps2)
    return np.asarray(max(speed_mps, 0.0) * until_stop - 0.5 * deceleration_mps2 * until_stop**2)


def arc(curvature: float, distances: Array) -> Array:
    """Poses (N, 3) at distances along a circle that leaves the origin forwards; curvature 1/m, left positive."""
    s = np.asarray(distances, float)
    turned = curvature * s
    half = 0.5 * turned
    chord = s * np.sinc(half / np.pi)
    return np.stack([chord * np.cos(half), chord * np.sin(half), geometry.wrap(turned)], axis=-1)


def curvature_now(ego: EgoState) -> float:
    """1/m, left positive, from yaw rate and speed."""
    return ego.yaw_rate_rps / ego.speed_mps if abs(ego.speed_mps) > TURNING_MIN_MPS else 0.0


def driven_path(ego: EgoState, dt_s: float, count: int) -> Array:
    """(count + 1, 3) poses at -count dt, .., -dt and now, ego frame, at the present curvature and acceleration.

    A measured path would be bent by the noise of localisation. A car that stands or reverses has poses
    STANDSTILL_SPACING_M apart behind it, because Autoware's validator finds no direction in points that coincide.
    """
    speeds = ego.speed_mps - ego.acceleration_mps2 * dt_s * (np.arange(count) + 0.5)
    behind_m = np.cumsum(np.maximum(dt_s * speeds, STANDSTILL_SPACING_M))
    return arc(curvature_now(ego), -np.append(behind_m[::-1], 0.0))


def idm_acceleration(
    speed_mps: Array | float,
    desired_mps: Array | float,
    gap_m: Array | float,
    lead_mps: Array | float,
    *,
    max_acceleration_mps2: float,
    comfortable_braking_mps2: float,
    headway_s: float,
    min_gap_m: float,
) -> Array:
    """Intelligent Driver Model (Treiber, Hennecke, Helbing 2000, eq. 3); inf as `gap_m` means a free road."""
    v, v0 = np.asarray(speed_mps, float), np.maximum(np.asarray(desired_mps, float), 0.1)
    gap = np.maximum(np.asarray(gap_m, float), 0.1)
    closing = v - np.asarray(lead_mps, float)
    braking = 2.0 * np.sqrt(max_acceleration_mps2 * comfortable_braking_mps2)
    desired_gap_m = min_gap_m + np.maximum(0.0, v * headway_s + v * closing / braking)
    return np.asarray(max_acceleration_mps2 * (1.0 - (v / v0) ** 4 - (desired_gap_m / gap) ** 2))


def steering_from_curvature(curvature: Array | float, wheel_base_m: float) -> Array:
    """Road-wheel angle (rad) of a kinematic bicycle that drives the given curvature (1/m)."""
    return np.arctan(np.asarray(curvature) * wheel_base_m)
