"""A plan continued to the length that is published: onto the route from where it ends, no faster than there.

Learned plans are 4 s long; the trajectory processor of Autoware expects 8 s. The continuation is a rollout of the
Intelligent Driver Model from the end of the plan. Its offset from the route is brought to zero by a polynomial that
begins with the plan's heading and curvature. It slows down for curves, traffic lights, speed limits, others in the
forecast and the end of the route. A plan that ends at a standstill stays there. The guard checks the plan alone.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from ..core import geometry, kinematics
from ..core.config import VehicleConfig
from ..core.domain import PLAN_DT_S, Agents, Array, Plan, Trajectory
from ..scoring.limits import RouteLimits
from ..scoring.safety import SafetyContext
from . import idm
from .factors import STOPPED_MPS
from .postprocess.speed_profile import slow_distances

ANGLE_MAX_RAD = 0.8  # a plan that ends at a larger angle to the route is continued straight on
CURVATURE_MAX_PER_M = 0.2
CHORD_STEPS = 2
BRAKING_MPS2 = (
    1.5,
    2.0,
    2.5,
    3.0,
    4.0,
    6.0,
)  # the gentlest that keeps GAP_M behind others and ends before the route does
GAP_M = 1.0
STOP_SHORT_M = 0.3  # beyond where the Intelligent Driver Model stops at the end of the route
SMOOTHED_M = 2.0
EARLY_M = 5.0  # before a curve its speed is reached
CONTINUED_LATERAL_JERK_MPS3 = 5.0  # 3 v^2 a k, as Autoware's planning_validator computes it; its limit is 7
LATERAL_MAX_MPS2 = 5.0  # in a curve, whatever the braking that this takes
ROUTE_WINDOW_M = 4.0  # likewise of the route, to either side


def continue_plan(plan: Plan, safety_context: SafetyContext) -> Plan:
    """The plan and the candidates that are published (`output.candidates_max`), continued to `output.horizon_s`."""
    output = safety_context.config.output
    every = plan.trajectory, *plan.candidates[: output.candidates_max - 1]
    longer = [continue_trajectory(each, safety_context, output.horizon_s) for each in every]
    return replace(plan, trajectory=longer[0], candidates=(*longer[1:], *plan.candidates[len(every) - 1 :]))


def continue_trajectory(trajectory: Trajectory, safety_context: SafetyContext, horizon_s: float) -> Trajectory:
    """The trajectory up to `horizon_s`, in the ego frame; itself if it is as long, or not in steps of PLAN_DT_S."""
    steps = round((horizon_s - trajectory.horizon_s) / PLAN_DT_S)
    if steps <= 0 or abs(trajectory.dt_s - PLAN_DT_S) > 1e-9:
        return trajectory
    speed_mps = float(kinematics.speeds(trajectory)[-1])
    if speed_mps < STOPPED_MPS:
        onwards = np.repeat(trajectory.poses[-1:], steps, axis=0)
    else:
        onwards = rollout(trajectory, speed_mps, steps, safety_context)
    return Trajectory(np.concatenate([trajectory.poses, onwards]), PLAN_DT_S)


def rollout(trajectory: Trajectory, speed_mps: float, steps: int, safety_context: SafetyContext) -> Array:
    """(steps, 3) poses after the end of a trajectory that is left at `speed_mps`."""
    path, end_m, wall_m = path_onwards(trajectory, speed_mps, speed_mps * steps * PLAN_DT_S, safety_context)
    along, vehicle = geometry.arc_lengths(path), safety_context.config.vehicle
    allowed_mps = speeds_in_curves(path, along, speed_mps)[None]
    agents = agents_after(len(trajectory.poses), steps, safety_context)
    leads = idm.leads_on_paths(path[None], agents, vehicle, steps)
    targets_mps = np.full((1, steps), speed_mps)
    for braking_mps2 in BRAKING_MPS2:
        (reached,) = idm.drive(speed_mps, allowed_mps, targets_mps, leads, wall_m, vehicle, braking_mps2)
        if reached[-1] <= wall_m - idm.IDM_MIN_GAP_M + STOP_SHORT_M and stays_behind(reached, leads, vehicle):
            break
    limits = shifted(safety_context.limits, end_m)
    if limits.kinds:
        reached = slow_distances(np.append(0.0, reached)[None], limits, speed_mps, PLAN_DT_S)[0, 1:]
    return idm.poses_along(path, along, reached)


def stays_behind(reached: Array, leads: idm.BlockingAgents, vehicle: VehicleConfig) -> bool:
    """Whether a car at distances (T,) along its path touches none of the agents that are ahead of it at first."""
    gaps_m = leads.rear_m[:, 1:] - (reached[:-1] + vehicle.rear_axle_to_center_m + 0.5 * vehicle.length_m)
    ahead = leads.rear_m[:, :1] > 0.0
    return not bool((leads.blocks[0, :, 1:] & ahead & (gaps_m < GAP_M)).any())


def path_onwards(
    trajectory: Trajectory, speed_mps: float, reach_m: float, safety_context: SafetyContext
) -> tuple[Array, float, float]:
    """(P, 3) poses about every PATH_STEP_M from the end of a trajectory onto the route; how far along the route, from
    the ego, the trajectory ends; and the arc length at which the driver model has to stop, infinite without a route."""
    end = end_pose(trajectory)
    along = np.append(np.arange(0.0, reach_m, idm.PATH_STEP_M), reach_m + idm.PATH_STEP_M)
    straight = geometry.compose(end, kinematics.arc(0.0, along))
    route = safety_context.route_line
    if route is None:
        return straight, 0.0, np.inf
    here_m, _ = safety_context.ego_place
    s_m = geometry.arc_lengths(route)
    driven_m = float(geometry.arc_lengths(kinematics.with_origin(trajectory.poses))[-1])
    first = max(int(np.searchsorted(s_m, here_m)) - 1, 0)
    last = max(int(np.searchsorted(s_m, here_m + driven_m + idm.OFF_ROUTE_M)) + 1, first + 2)
    ((at_m,), (offset_m,)) = geometry.project(route[first:last], end[None, :2])  # a route may cross itself
    at_m += s_m[first]
    ends_m = float(s_m[-1] - at_m) + (idm.IDM_MIN_GAP_M if safety_context.observation.route_ends else 0.0)
    middle = geometry.sample(route, at_m + along)
    angle_rad = float(geometry.wrap(end[2] - middle[0, 2]))
    if abs(offset_m) > idm.OFF_ROUTE_M or abs(angle_rad) > ANGLE_MAX_RAD:
        return straight, at_m - here_m, ends_m
    merge_m = max(idm.MERGE_MIN_M, idm.MERGE_TIME_S * speed_mps)
    before, after = geometry.sample(route, at_m + np.array([-ROUTE_WINDOW_M, ROUTE_WINDOW_M]))[:, 2]
    bend_per_m = end_curvature(trajectory) - float(geometry.wrap(after - before)) / (2.0 * ROUTE_WINDOW_M)
    u = np.minimum(along / merge_m, 1.0)
    fading = 1.0 - 10.0 * u**3 + 15.0 * u**4 - 6.0 * u**5
    lateral_m = (
        offset_m * fading
        + merge_m * np.tan(angle_rad) * (u - 6.0 * u**3 + 8.0 * u**4 - 3.0 * u**5)
        + merge_m**2 * bend_per_m * (0.5 * u**2 - 1.5 * u**3 + 1.5 * u**4 - 0.5 * u**5)
    )
    points = middle[:, :2] + lateral_m[:, None] * np.stack([-np.sin(middle[:, 2]), np.cos(middle[:, 2])], axis=1)
    points[0] = end[:2]
    points = smoothed(trajectory, points)
    points += fading[:, None] * (end[:2] - points[0])
    slopes = np.gradient(points, along, axis=0)
    headings = np.arctan2(slopes[:, 1], slopes[:, 0])
    headings[0] = end[2]
    return np.concatenate([points, headings[:, None]], axis=1), at_m - here_m, ends_m


def speeds_in_curves(path: Array, along: Array, speed_mps: float) -> Array:
    """(P,) speed allowed along a path (P, 3) with arc lengths (P,), never rising: that of the Intelligent Driver Model,
    reached EARLY_M before. A plan that ends in a curve too fast for that brakes as hard as
    CONTINUED_LATERAL_JERK_MPS3 allows.
    """
    curves = np.maximum(idm.curvatures(path[None], along[None])[0], 1e-6)
    (allowed_mps,) = early(idm.curve_speeds(path[None], along[None], speed_mps))
    braking = np.minimum(idm.IDM_COMFORTABLE_BRAKING_MPS2, CONTINUED_LATERAL_JERK_MPS3 / (3.0 * speed_mps**2 * curves))
    slowest = speed_mps**2 - 2.0 * np.concatenate([[0.0], np.cumsum(braking[1:] * np.diff(along))])
    gentle_mps = np.minimum(np.sqrt(np.maximum(slowest, 0.0)), np.sqrt(LATERAL_MAX_MPS2 / curves))
    return np.minimum.accumulate(np.maximum(allowed_mps, gentle_mps))


def early(speeds_mps: Array) -> Array:
    """(O, P) speeds at points every PATH_STEP_M of paths, each reached EARLY_M before: not braking in curves."""
    count = round(EARLY_M / idm.PATH_STEP_M)
    padded = np.pad(speeds_mps, ((0, 0), (0, count)), mode="edge")
    return np.asarray(sliding_window_view(padded, count + 1, axis=1).min(axis=-1))


def smoothed(trajectory: Trajectory, points: Array) -> Array:
    """(P, 2) points every PATH_STEP_M after a trajectory, each the mean of those within SMOOTHED_M, of the trajectory
    too: the lines of maps have corners, and single points of plans are noisy."""
    count = min(round(SMOOTHED_M / idm.PATH_STEP_M), len(points) - 1)
    line = geometry.distinct_points(kinematics.with_origin(trajectory.poses)[:, :2])
    driven_m = float(geometry.arc_lengths(line)[-1])
    before = geometry.sample(line, driven_m - idm.PATH_STEP_M * np.arange(count, 0, -1))[:, :2]
    padded = np.pad(points, ((0, count), (0, 0)), mode="reflect", reflect_type="odd")
    windows = sliding_window_view(np.concatenate([before, padded]), 2 * count + 1, axis=0)
    return np.asarray(windows.mean(axis=-1))


def end_pose(trajectory: Trajectory) -> Array:
    """(3,) the last pose, with the direction in which it is reached."""
    (_, _), (chord_m, direction_rad) = last_chords(trajectory)
    if chord_m < idm.PATH_STEP_M:
        return np.asarray(trajectory.poses[-1])
    bend_rad = 0.5 * end_curvature(trajectory) * chord_m  # from the chord to its end
    return np.array([*trajectory.poses[-1, :2], geometry.wrap(direction_rad + bend_rad)])


def end_curvature(trajectory: Trajectory) -> float:
    """1/m, left positive, at the end of a trajectory."""
    (before_m, before_rad), (chord_m, direction_rad) = last_chords(trajectory)
    if min(before_m, chord_m) < idm.PATH_STEP_M:
        return 0.0
    bend = float(geometry.wrap(direction_rad - before_rad)) / (0.5 * (before_m + chord_m))
    return float(np.clip(bend, -CURVATURE_MAX_PER_M, CURVATURE_MAX_PER_M))


def last_chords(trajectory: Trajectory) -> tuple[tuple[float, float], tuple[float, float]]:
    """Length in m and direction in rad of the last two chords over CHORD_STEPS: headings of single poses are noisy."""
    ends = kinematics.with_origin(trajectory.poses)[:, :2][::-CHORD_STEPS][:3][::-1]
    chords = [(float(np.hypot(x_m, y_m)), float(np.arctan2(y_m, x_m))) for x_m, y_m in np.diff(ends, axis=0)]
    return (chords[0], chords[-1]) if chords else ((0.0, 0.0), (0.0, 0.0))


def agents_after(step: int, steps: int, safety_context: SafetyContext) -> Agents | None:
    """The others at `step` times PLAN_DT_S of the forecast, with their forecast of the next `steps`; None if they are
    unknown."""
    others, forecast = safety_context.others, safety_context.forecast_at(PLAN_DT_S, step + steps)
    if others is None or forecast is None:
        return None
    poses = forecast.poses
    velocities_mps = (poses[:, step, :2] - poses[:, step - 1, :2]) / PLAN_DT_S
    return Agents(poses[:, step], velocities_mps, others.sizes, others.kinds, poses[:, step + 1 :], PLAN_DT_S)


def shifted(limits: RouteLimits, by_m: float) -> RouteLimits:
    """The limits with distances from a position that is `by_m` ahead of the ego."""
    return replace(limits, at_m=limits.at_m - by_m, until_m=limits.until_m - by_m)
