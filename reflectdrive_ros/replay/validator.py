"""The checks of Autoware's planning validator, and the margins of plans to its limits.

Implemented from the source of `autoware_planning_validator_trajectory_checker` (thresholds of its shipped parameter
file), not compared by running it. They judge the points as they are published, without the driven path that Autoware's
`trajectory_extender` would prepend (autoware_launch has it off). Shape checks use the points at least 1 m apart, as
there.

Autoware's validator does not check z and pitch. Two checks of our own do: the plan begins at the vehicle's height
(`height_deviation_m`), and its pitch is the slope of the line through its points (`pitch_deviation_rad`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..core import geometry
from ..core.domain import Array
from ..planning.postprocess.lateral_jerk import lateral_jerk, thin_indices, three_point_curvature
from .record import ReplayFrame

BRAKING_MPS2, LENGTH_MARGIN_M = 3.0, 2.0
VALIDATOR_STANDING_MPS = 1.0 / 3.6
SHARE_OVER_MAX = 0.01  # of the plans that exceed a limit: a stop in an emergency does
COINCIDE_M = 1e-8  # Autoware's validator finds no direction between points that are closer together
SLOPE_STEP_MIN_M = 0.05  # points closer together have no slope between them


@dataclass(frozen=True)
class Margin:
    """One check over a whole drive."""

    worst: float  # of all plans
    limit: float
    share_over: float  # of the plans, 0..1: the validator rejects them

    @property
    def used(self) -> float:
        """The worst value divided by the limit."""
        return self.worst / self.limit

    @property
    def met(self) -> bool:
        return self.share_over <= SHARE_OVER_MAX


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


def margins(values: Array) -> dict[str, Margin]:
    """The margin of each check, in the order of LIMITS, from `check_values` (P, K) of P plans, at least one."""
    return {
        name: Margin(float(column.max()), limit, float((column > limit).mean()))
        for column, (name, limit) in zip(values.T, LIMITS.items(), strict=True)
    }


def check_values(frames: Sequence[ReplayFrame], wheel_base_m: float) -> Array:
    """(P, K) of each plan of a drive and each check, in the order of LIMITS. Frames must be in order of time."""
    values = np.zeros((len(frames), len(LIMITS)))
    for index, frame in enumerate(frames):
        checks = check_shape(frame, wheel_base_m) | check_position(frame) | check_height(frame)
        if index:
            checks |= check_shift(frames[index - 1], frame)
        values[index] = [checks.get(name, 0.0) for name in LIMITS]
    return values


def check_shape(frame: ReplayFrame, wheel_base_m: float) -> dict[str, float]:
    """Checks of one plan."""
    poses, speeds = published(frame)
    accelerations = np.append(np.diff(speeds) / frame.dt_s, 0.0)
    values = {
        "interval_m": float(np.hypot(*np.diff(poses[:, :2], axis=0).T).max(initial=0.0)),
        "longitudinal_acceleration_mps2": float(np.abs(accelerations).max(initial=0.0)),
    }
    indices = thin_indices(poses)
    if len(indices) < 3:
        return values
    line, v = poses[indices, :2], speeds[indices]
    bends = np.abs(geometry.wrap(np.diff(geometry.headings_along(line)[:-1])))
    curvature = np.zeros(len(line))
    curvature[1:-1] = three_point_curvature(line)
    steering = np.arctan(wheel_base_m * curvature)
    spacing_m = np.hypot(*(line[2:] - line[:-2]).T)
    step_s = spacing_m / np.maximum(0.5 * (v[2:] + v[:-2]), 1e-3)
    return values | {
        "relative_angle_rad": float(bends.max(initial=0.0)),
        "curvature_per_m": float(np.abs(curvature).max()),
        "lateral_acceleration_mps2": float((v**2 * np.abs(curvature)).max()),
        "lateral_jerk_mps3": lateral_jerk(poses[:, :2], speeds, frame.dt_s),
        "steering_rad": float(np.abs(steering).max()),
        "steering_rate_radps": float((np.abs(steering[2:] - steering[:-2]) / step_s).max(initial=0.0)),
    }


def check_position(frame: ReplayFrame) -> dict[str, float]:
    """Checks of the car's position on its plan."""
    poses, _ = published(frame)
    here, last = frame.map_from_ego, len(poses) - 1
    segment = nearest_segment(poses, here)
    s_m, step_m = geometry.arc_lengths(poses), float(np.hypot(*np.diff(poses[segment : segment + 2, :2], axis=0)[0]))
    direction = poses[segment + 1, :2] - poses[segment, :2]
    ahead_m = float(direction @ (here[:2] - poses[segment, :2])) / step_m if step_m > COINCIDE_M else np.inf
    nearest = int(np.argmin(np.hypot(*(poses[:, :2] - here[:2]).T)))
    off_m = {0: ahead_m, last: ahead_m - step_m}.get(nearest, 0.0)
    share = min(max(ahead_m / max(step_m, COINCIDE_M), 0.0), 1.0)
    heading = poses[segment, 2] + share * geometry.wrap(poses[segment + 1, 2] - poses[segment, 2])
    needed_m = frame.speed_mps**2 / (2.0 * BRAKING_MPS2) - LENGTH_MARGIN_M
    rest_m = s_m[-1] - s_m[segment] - (ahead_m if np.isfinite(ahead_m) else 0.0)
    return {
        "longitudinal_deviation_m": abs(off_m),  # infinite where the points coincide
        "yaw_deviation_rad": float(abs(geometry.wrap(heading - here[2]))),
        "missing_length_m": max(0.0, float(needed_m - rest_m)) if is_moving(frame) else 0.0,
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


def check_shift(before: ReplayFrame, frame: ReplayFrame) -> dict[str, float]:
    """Checks of a plan against the one before, at the car."""
    if not is_moving(frame):
        return {}
    here, (old, _), (new, _) = frame.map_from_ego, published(before), published(frame)
    old_at, new_at = nearest_segment(old, here), nearest_segment(new, here)
    along, lateral, _ = geometry.compose(geometry.invert(old[old_at]), new[new_at]).tolist()
    values = {"lateral_shift_m": abs(lateral)}
    if old_at < len(old) - 2 and new_at == 0:
        values["forward_shift_m"] = max(0.0, along)
    elif old_at < len(old) - 2 and new_at >= len(new) - 2:
        values["backward_shift_m"] = max(0.0, -along)
    return values


def is_moving(frame: ReplayFrame) -> bool:
    return abs(frame.speed_mps) > VALIDATOR_STANDING_MPS


def published(frame: ReplayFrame) -> tuple[Array, Array]:
    """(D + T, 3) poses and (D + T,) speeds of the published points, in the map."""
    return (
        np.concatenate([frame.driven_poses, frame.plan_poses]),
        np.concatenate([frame.driven_speeds, frame.plan_speeds]),
    )


def nearest_segment(line: Array, here: Array) -> int:
    """Index of the first point of the segment of a line (N, 3) that is nearest to a pose."""
    ends = line[:-1, :2], line[1:, :2]
    step = ends[1] - ends[0]
    length2 = np.maximum((step**2).sum(axis=1), 1e-12)
    share = np.clip(((here[:2] - ends[0]) * step).sum(axis=1) / length2, 0.0, 1.0)
    return int(np.argmin(np.hypot(*(ends[0] + share[:, None] * step - here[:2]).T)))
