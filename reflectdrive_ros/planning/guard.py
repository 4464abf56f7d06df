"""Final check of a plan (feasible, safe, in time), and the stop plan, which is computed first.

`check` tests feasibility first and the deadline last: a plan that is only late is known to be sound, and the engine may
reuse it in the next step.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .. import geometry, kinematics
from ..config import Config, GuardConfig, VehicleConfig
from ..domain import Agents, Array, EgoState, Forecast, ForecastSource, Observation, Plan, Trajectory, Verdict
from ..scoring import drivable, prediction
from ..scoring.frenet import FrenetFrame

STANDING_MPS = 0.05  # slower counts as standing, as in the PDM score
AVERAGE_S = 0.5  # accelerations are averaged over this time: finer ones are noise of a 2 Hz plan
MIN_CURVATURE_SPEED_MPS = 1.0  # below, curvature is heading noise
BACKWARDS_MPS = 0.1  # beyond noise: a controller would shift into reverse
SAME_GAP_M = 0.02  # smaller changes of a gap are ignored: a replanned stop moves by as much
DIAGONAL = np.sqrt(2.0)  # growth of a box across its corner over its growth on each side
BEHIND_RAD = np.deg2rad(150.0)  # agents at a larger bearing are behind, as in the PDM score


@dataclass(frozen=True)
class Judgement:
    """Verdict of the guard on a plan."""

    verdict: Verdict
    reason: str = ""  # one sentence when the verdict is not OK


def check(
    plan: Plan, observation: Observation, elapsed_ms: float, config: Config, forecast: Forecast | None = None
) -> Judgement:
    """The verdict on a plan for this observation.

    `forecast` replaces the prediction from the agents of the observation. Raises ValueError for a LOGGED forecast:
    logged futures are for evaluation only.
    """
    if forecast is not None and forecast.source is ForecastSource.LOGGED:
        raise ValueError("the guard was given a LOGGED forecast: only an evaluation may know the future")
    reason = infeasible_reason(plan, observation, config)
    if reason:
        return Judgement(Verdict.INFEASIBLE, reason)
    reason = unsafe_reason(plan, observation, config, forecast)
    if reason:
        return Judgement(Verdict.UNSAFE, reason)
    if elapsed_ms > config.engine.deadline_ms:
        return Judgement(
            Verdict.LATE, f"the plan took {elapsed_ms:.0f} ms, the deadline is {config.engine.deadline_ms:.0f} ms"
        )
    return Judgement(Verdict.OK)


def infeasible_reason(plan: Plan, observation: Observation, config: Config) -> str:
    """Why the vehicle cannot follow this plan; empty if it can."""
    guard, trajectory = config.guard, plan.trajectory
    if plan.stamp_ns != observation.stamp_ns:
        return f"the plan is stamped {(observation.stamp_ns - plan.stamp_ns) * 1e-9:.2f} s before its observation"
    expected = np.array([observation.ego.speed_mps * trajectory.dt_s, 0.0])
    gap = float(np.hypot(*(trajectory.poses[0, :2] - expected)))
    if gap > guard.max_start_gap_m:
        return f"the plan starts {gap:.1f} m from where the car will be, allowed {guard.max_start_gap_m:.1f} m"

    backwards = -float(kinematics.speeds(trajectory).min())
    if backwards > BACKWARDS_MPS:  # checked at every step
        return f"the plan drives backwards at {backwards:.2f} m/s, allowed {BACKWARDS_MPS:.2f} m/s"

    stride = max(1, round(AVERAGE_S / trajectory.dt_s))
    coarse = (
        Trajectory(trajectory.poses[stride - 1 :: stride], stride * trajectory.dt_s)
        if (len(trajectory.poses) >= stride)
        else trajectory
    )
    for what, values, limit, unit in vehicle_demands(coarse.poses[None], coarse.dt_s, observation.ego.speed_mps, guard):
        value = float(values.max())
        if value > limit:
            return f"the plan {what} {value:.2f} {unit}, allowed {limit:.2f} {unit}"
    return ""


def vehicle_demands(
    poses: Array, dt_s: float, speed_mps: float, guard: GuardConfig
) -> tuple[tuple[str, Array, float, str], ...]:
    """Demands of N plans (N, T, 3) on a vehicle at this speed: for each a phrase, values (N, T), limit and unit."""
    path = np.concatenate([np.zeros((len(poses), 1, 3)), poses], axis=1)
    step, turn = np.diff(path[..., :2], axis=1), geometry.wrap(np.diff(path[..., 2], axis=1))
    middle = path[:, :-1, 2] + 0.5 * turn
    forward = step[..., 0] * np.cos(middle) + step[..., 1] * np.sin(middle)
    speed = np.copysign(np.hypot(step[..., 0], step[..., 1]), forward) / dt_s
    acceleration = np.diff(speed, axis=1, prepend=speed_mps)
    # from the present speed to the mean of the first interval is half an interval
    acceleration[:, 0] *= 2.0
    acceleration /= dt_s
    yaw_rate = turn / dt_s
    lateral = np.maximum(np.abs(speed * yaw_rate), lateral_accelerations(step, dt_s))
    curvature = (
        np.abs(yaw_rate)
        / np.maximum(np.abs(speed), MIN_CURVATURE_SPEED_MPS)
        * (np.abs(speed) > MIN_CURVATURE_SPEED_MPS)
    )
    return (
        ("drives backwards at", -speed, BACKWARDS_MPS, "m/s"),
        ("is as fast as", speed, guard.max_speed_mps, "m/s"),
        ("speeds up at", acceleration, guard.max_acceleration_mps2, "m/s^2"),
        ("brakes at", -acceleration, guard.max_deceleration_mps2, "m/s^2"),
        ("turns with a lateral acceleration of", lateral, guard.max_lateral_acceleration_mps2, "m/s^2"),
        ("turns with a curvature of", curvature, guard.max_curvature_per_m, "1/m"),
    )


def lateral_accelerations(step: Array, dt_s: float) -> Array:
    """(N, T) m/s^2 from the change of direction of steps (N, T, 2): a path may bend more than its headings."""
    before, after = step[:, :-1], step[:, 1:]
    across = before[..., 0] * after[..., 1] - before[..., 1] * after[..., 0]
    length = np.maximum(np.hypot(*np.moveaxis(before, -1, 0)), np.hypot(*np.moveaxis(after, -1, 0)))
    moving = length > MIN_CURVATURE_SPEED_MPS * dt_s
    aside = np.where(moving, np.abs(across) / np.maximum(length, MIN_CURVATURE_SPEED_MPS * dt_s), 0.0) / dt_s**2
    return np.pad(aside, ((0, 0), (1, 0)))


def unsafe_reason(plan: Plan, observation: Observation, config: Config, forecast: Forecast | None = None) -> str:
    """The first collision or departure from the road within the safe horizon; empty if there is none. Unknown objects
    are not checked."""
    trajectory, guard = plan.trajectory, config.guard
    steps = min(len(trajectory.poses), int(guard.safe_horizon_s / trajectory.dt_s + 1e-6))
    centres = box_centres(trajectory.poses[:steps], config.vehicle)
    others = observation.others
    if forecast is None and others is not None and len(others):
        road = FrenetFrame.of(observation.route)
        forecast = prediction.forecast(others, road, trajectory.dt_s, steps)
    if forecast is not None and len(forecast.poses):
        hit = first_collision(trajectory, centres, forecast, config)
        if hit:
            return hit
    return off_road_reason(trajectory, centres, observation, config)


def off_road_reason(trajectory: Trajectory, centres: Array, observation: Observation, config: Config) -> str:
    """When the outline of the vehicle leaves the drivable space; empty if it never does, at standstill, or if the space
    is unknown.

    A vehicle that is outside already may drive back: only movement further out counts.
    """
    if observation.drivable is None:
        return ""
    size = np.array([config.vehicle.length_m, config.vehicle.width_m])
    here = box_centres(np.zeros((1, 3)), config.vehicle)
    clearance = drivable.outline_clearances(observation.drivable, np.concatenate([here, centres]), size)
    moving = np.abs(kinematics.speeds(trajectory)[: len(centres)]) > STANDING_MPS
    best_so_far = np.maximum.accumulate(clearance)[:-1]
    out = (clearance[1:] <= 0.0) & (clearance[1:] < best_so_far - observation.drivable.resolution_m) & moving
    if not out.any():
        return ""
    return f"the plan leaves the drivable space after {(int(np.argmax(out)) + 1) * trajectory.dt_s:.1f} s"


def first_collision(trajectory: Trajectory, centres: Array, forecast: Forecast, config: Config) -> str:
    """The first collision of the ego boxes (T, 3) with the forecast, except at standstill and from behind."""
    vehicle = config.vehicle
    ego_size = np.array([vehicle.length_m, vehicle.width_m])
    sizes = inflate_boxes(forecast.poses[:, 0], forecast.sizes, vehicle, config.guard.clearance_m)
    others = forecast.poses[:, np.minimum(np.arange(1, len(centres) + 1), forecast.poses.shape[1] - 1)]  # (A, T, 3)
    reach = 0.5 * (np.hypot(*ego_size) + np.hypot(sizes[:, 0], sizes[:, 1]))
    distances = np.hypot(others[..., 0] - centres[:, 0], others[..., 1] - centres[:, 1])
    who, when = np.nonzero(distances <= reach[:, None])
    touching = geometry.boxes_overlap(centres[when], ego_size, others[who, when], sizes[who])
    moving = np.abs(kinematics.speeds(trajectory)[when]) > STANDING_MPS
    rear_axles = trajectory.poses[when]
    bearing = geometry.wrap(
        np.arctan2(others[who, when, 1] - rear_axles[:, 1], others[who, when, 0] - rear_axles[:, 0]) - rear_axles[:, 2]
    )
    counts = touching & moving & (np.abs(bearing) <= BEHIND_RAD)
    # The first contact with each agent decides, as in the PDM score: after a collision from behind the predicted agent
    # overlaps the ego, which is not a fault of the plan. (np.nonzero lists the times of each agent in order.)
    touched = np.flatnonzero(touching)
    firsts = touched[np.unique(who[touched], return_index=True)[1]]
    at_fault = firsts[counts[firsts]]
    if not len(at_fault):
        return ""
    first = int(at_fault[np.argmin(when[at_fault])])
    x, y = forecast.poses[who[first], 0, :2]
    return f"the plan hits the object now at x {x:.1f} m, y {y:.1f} m after {(when[first] + 1) * trajectory.dt_s:.1f} s"


def inflate_boxes(poses: Array, sizes: Array, vehicle: VehicleConfig, clearance_m: float) -> Array:
    """(A, 2) sizes of agents at poses (A, 3), enlarged by the clearance that a plan must keep.

    If the vehicle is closer already, by the present gap: it must not shrink.
    """
    here, ego_size = box_centres(np.zeros(3), vehicle), np.array([vehicle.length_m, vehicle.width_m])
    wanted = sizes + 2.0 * clearance_m
    gap_m = np.maximum(geometry.box_separation(here, ego_size, poses, sizes) - SAME_GAP_M, 0.0)
    kept_gap_m = np.minimum(gap_m / DIAGONAL, clearance_m)
    return np.where(
        geometry.boxes_overlap(here, ego_size, poses, wanted)[:, None], sizes + 2.0 * kept_gap_m[:, None], wanted
    )


def box_centres(poses: Array, vehicle: VehicleConfig) -> Array:
    """(..., 3) centres of the vehicle box for rear-axle poses (..., 3)."""
    return geometry.compose(poses, np.array([vehicle.rear_axle_to_center_m, 0.0, 0.0]))


def stop_plan(ego: EgoState, agents: Agents | None, path: Array | None, config: Config) -> Plan:
    """Brake to a stop along `path` (poses (T, 3), current ego frame) or, without one, along the present curvature.

    Uses the weakest of three decelerations without a collision, the strongest if all collide. Never fails: it needs
    only the ego.
    """
    output, guard = config.output, config.guard
    times_s = output.dt_s * np.arange(1, round(output.horizon_s / output.dt_s) + 1)
    observation = Observation(ego.stamp_ns, ego, np.zeros((0, 3)), agents=agents)
    for deceleration in (guard.comfort_braking_mps2, guard.hard_braking_mps2, guard.emergency_braking_mps2):
        distances = kinematics.braking_distances(ego.speed_mps, deceleration, times_s)
        poses = along_path(path, distances) if path is not None else along_present_curve(ego, distances, config)
        plan = Plan(ego.stamp_ns, ego.map_from_ego, Trajectory(poses, output.dt_s))
        if not unsafe_reason(plan, observation, config):
            break
    return plan


def along_path(path: Array, distances: Array) -> Array:
    """Poses (N, 3) at distances along the path of a plan, extended straight."""
    line = geometry.distinct_points(kinematics.with_origin(path), closer_than=0.05)
    if len(line) < 2:
        return kinematics.arc(0.0, distances)
    return geometry.sample(line, distances)


def along_present_curve(ego: EgoState, distances: Array, config: Config) -> Array:
    """Poses (N, 3) at distances along the circle of the present yaw rate."""
    guard, speed = config.guard, max(abs(ego.speed_mps), 1.0)
    gripping = guard.max_lateral_acceleration_mps2 / speed**2
    tightest = min(guard.max_curvature_per_m, gripping)
    return kinematics.arc(float(np.clip(ego.yaw_rate_rps / speed, -tightest, tightest)), distances)
