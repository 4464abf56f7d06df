"""The checks of Autoware's planning validator, and the margins of plans to its limits.

Implemented from the source of `autoware_planning_validator_trajectory_checker` (thresholds of its shipped parameter
file), not compared by running it. Shape checks use the plan resampled to 1 m, as there. Two checks locate the car on
the plan; they use it as extended by the path already driven, which Autoware's trajectory_processor does where its
`trajectory_extender` is on (autoware_launch has it off). Without it a plan starts 0.1 s ahead of the car, which from
10 m/s on exceeds the limit; `raw_forward_shift_m` is that value.

Autoware's validator does not check z and pitch. Two checks of our own do: the plan begins at the vehicle's height
(`height_deviation_m`), and its pitch is the slope of the line through its points (`pitch_deviation_rad`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..core import geometry
from ..core.domain import Array
from .record import ReplayFrame

POINT_SPACING_M = 1.0
BRAKING_MPS2, LENGTH_MARGIN_M = 3.0, 2.0
STANDING_MPS = 1.0 / 3.6
SLOPE_STEP_MIN_M = 0.05  # points closer together have no slope between them


@dataclass(frozen=True)
class Margin:
    """One check over a whole drive."""

    worst: float  # of all plans
    limit: float

    @property
    def share(self) -> float:
        """Value divided by limit; above 1 the validator rejects the plan."""
        return self.worst / self.limit

    @property
    def met(self) -> bool:
        return self.worst <= self.limit


LIMITS = {
    "interval_m": 100.0,
    "relative_angle_rad": 2.0,
    "curvature_per_m": 1.0,
    "lateral_acceleration_mps2": 9.8,
    "longitudinal_acceleration_mps2": 9.8,
    "lateral_jerk_mps3": 7.0,
    "steering_rad": 1.414,
    "steering_rate_radps": 10.0,
    "longitudinal_deviation_m": 1.0,
    "yaw_deviation_rad": 1.5708,
    "missing_length_m": 0.0,  # stopping distance at 3 m/s^2 less 2 m, minus the plan's length
    "lateral_shift_m": 0.5,
    "forward_shift_m": 1.0,
    "backward_shift_m": 0.1,
    "height_deviation_m": 0.2,  # of the plan, continued back to the car, from the odometry; ours, as the next
    "pitch_deviation_rad": 0.1,  # mean pitch of neighbouring points and the slope between them
}
RAW_FORWARD_SHIFT = "raw_forward_shift_m"  # for information: as it is where Autoware's extender is off


def margins(frames: Sequence[ReplayFrame], wheel_base_m: float) -> dict[str, Margin]:
    """Worst value of each check over the plans of a drive, in the order of LIMITS. Frames must be in order of time."""
    worst = dict.fromkeys([*LIMITS, RAW_FORWARD_SHIFT], 0.0)
    for index, frame in enumerate(frames):
        past = np.array([earlier.map_from_ego for earlier in frames[max(0, index - 30) : index]]).reshape(-1, 3)
        values = check_shape(frame, wheel_base_m) | check_position(frame, past) | check_height(frame)
        if index:
            values |= check_shift(frames[index - 1], frame, past)
        for name, value in values.items():
            worst[name] = max(worst[name], value)
    return {
        name: Margin(worst[name], limit)
        for name, limit in {**LIMITS, RAW_FORWARD_SHIFT: LIMITS["forward_shift_m"]}.items()
    }


def check_shape(frame: ReplayFrame, wheel_base_m: float) -> dict[str, float]:
    """Checks of one plan."""
    poses, speeds = frame.plan_poses, frame.plan_speeds
    accelerations = np.append(np.diff(speeds) / frame.dt_s, 0.0)
    values = {
        "interval_m": float(np.hypot(*np.diff(poses[:, :2], axis=0).T).max(initial=0.0)),
        "longitudinal_acceleration_mps2": float(np.abs(accelerations).max(initial=0.0)),
    }
    indices = thin_indices(poses)
    if len(indices) < 3:
        return values
    line, v, a = poses[indices, :2], speeds[indices], accelerations[indices]
    bends = np.abs(geometry.wrap(np.diff(geometry.headings_along(line)[:-1])))
    curvature = np.zeros(len(line))
    curvature[1:-1] = three_point_curvature(line)
    steering = np.arctan(wheel_base_m * curvature)
    spacing_m = np.hypot(*(line[2:] - line[:-2]).T)
    step_s = spacing_m / np.maximum(0.5 * (v[2:] + v[:-2]), 1e-3)
    return (
        values
        | {
            "relative_angle_rad": float(bends.max(initial=0.0)),
            "curvature_per_m": float(np.abs(curvature).max()),
            "lateral_acceleration_mps2": float((v**2 * np.abs(curvature)).max()),
            "lateral_jerk_mps3": float(np.abs(3.0 * v**2 * a * curvature).max()),  # its formula, units and all
            "steering_rad": float(np.abs(steering).max()),
            "steering_rate_radps": float((np.abs(steering[2:] - steering[:-2]) / step_s).max(initial=0.0)),
        }
    )


def check_position(frame: ReplayFrame, past: Array) -> dict[str, float]:
    """Checks of the car's position on its plan, with the driven path (P, 3) prepended."""
    line = extend_line(past, frame.map_from_ego, frame.plan_poses)
    here = frame.map_from_ego
    (at,), _ = geometry.project(line, here[None, :2])
    total = geometry.arc_lengths(line)[-1]
    beyond = np.hypot(*(line[[0, -1], :2] - here[:2]).T)
    off = 0.0 if 0.0 < at < total else float(beyond.min())
    needed = frame.speed_mps**2 / (2.0 * BRAKING_MPS2) - LENGTH_MARGIN_M
    moving = abs(frame.speed_mps) > STANDING_MPS
    return {
        "longitudinal_deviation_m": off,
        "yaw_deviation_rad": float(abs(geometry.wrap(geometry.sample(line, np.array([at]))[0, 2] - here[2])))
        if total > 1.0
        else 0.0,
        "missing_length_m": max(0.0, float(needed - (total - at))) if moving else 0.0,
    }


def check_height(frame: ReplayFrame) -> dict[str, float]:
    """Checks of z and pitch of one plan."""
    line = np.concatenate([frame.map_from_ego[None], frame.plan_poses])
    step = np.diff(line[:, :2], axis=0)
    heading = line[1:, 2]
    forward = step[:, 0] * np.cos(heading) + step[:, 1] * np.sin(heading)  # negative in reverse
    pitch, z = frame.plan_pitches, frame.plan_heights
    at_car = z[0] + np.tan(pitch[0]) * forward[0]  # pitch is positive nose down
    moving = np.abs(forward[1:]) > SLOPE_STEP_MIN_M
    slope = np.diff(z)[moving] / forward[1:][moving]
    mean = 0.5 * (pitch[1:] + pitch[:-1])[moving]
    return {
        "height_deviation_m": float(abs(at_car - frame.ego_height_m)),
        "pitch_deviation_rad": float(np.abs(mean + np.arctan(slope)).max(initial=0.0)),
    }


def check_shift(before: ReplayFrame, frame: ReplayFrame, past: Array) -> dict[str, float]:
    """Checks of a plan against the one before, at the car: lateral as published, longitudinal with the driven path
    prepended.
    """
    here = frame.map_from_ego
    raw_old, raw_new = before.plan_poses, frame.plan_poses
    raw_along, lateral = deviation(raw_old[nearest_segment(raw_old, here)], raw_new[nearest_segment(raw_new, here)])
    values = {"lateral_shift_m": abs(lateral), RAW_FORWARD_SHIFT: max(0.0, raw_along)}
    old, new = (extend_line(past, here, plan) for plan in (raw_old, raw_new))
    new_at = nearest_segment(new, here)
    along, _ = deviation(old[nearest_segment(old, here)], new[new_at])
    if new_at == 0:
        values["forward_shift_m"] = max(0.0, along)
    elif new_at >= len(new) - 2:
        values["backward_shift_m"] = max(0.0, -along)
    return values


def extend_line(past: Array, here: Array, plan: Array) -> Array:
    """(N, 3) the driven path (P, 3), the car's pose (3,) and the plan (T, 3), without repeated points."""
    line = np.concatenate([past, here[None], plan])
    spacing_m = np.hypot(*np.diff(line[:, :2], axis=0).T)
    distinct: Array = line[np.concatenate([[True], spacing_m > 1e-3])]
    if len(distinct) >= 2:
        return distinct
    ahead = here + 1e-3 * np.array([np.cos(here[2]), np.sin(here[2]), 0.0])
    return np.stack([here, ahead])


def nearest_segment(line: Array, here: Array) -> int:
    """Index of the first point of the segment of a line (N, 3) that is nearest to a pose."""
    ends = line[:-1, :2], line[1:, :2]
    step = ends[1] - ends[0]
    length2 = np.maximum((step**2).sum(axis=1), 1e-12)
    share = np.clip(((here[:2] - ends[0]) * step).sum(axis=1) / length2, 0.0, 1.0)
    return int(np.argmin(np.hypot(*(ends[0] + share[:, None] * step - here[:2]).T)))


def deviation(pose: Array, point: Array) -> tuple[float, float]:
    """Distance of a point ahead of a pose (3,), and to its left."""
    dx, dy = point[:2] - pose[:2]
    cos, sin = np.cos(pose[2]), np.sin(pose[2])
    return float(cos * dx + sin * dy), float(cos * dy - sin * dx)


def thin_indices(poses: Array) -> Array:
    """Indices of points at least POINT_SPACING_M apart, beginning with the first."""
    indices = [0]
    for index in range(1, len(poses)):
        if np.hypot(*(poses[index, :2] - poses[indices[-1], :2])) >= POINT_SPACING_M:
            indices.append(index)
    return np.array(indices)


def three_point_curvature(line: Array) -> Array:
    """(N - 2,) signed curvature of the circles through three points in a row of a line (N, 2)."""
    one, two, chord = line[1:-1] - line[:-2], line[2:] - line[1:-1], line[2:] - line[:-2]
    area2 = one[:, 0] * two[:, 1] - one[:, 1] * two[:, 0]
    product = np.hypot(*one.T) * np.hypot(*two.T) * np.hypot(*chord.T)
    return np.asarray(2.0 * area2 / np.maximum(product, 1e-9))
