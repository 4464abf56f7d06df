"""The last word on a plan: can the vehicle follow it, and is it safe? And the stop plan, which exists first.

`check` asks soundness first and lateness last, so that a late plan is known to be sound: the engine may still carry it
into the next step, and a slow planner does not hold the car at a stop for ever.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .. import geometry, kinematics
from ..config import Config, GuardConfig, VehicleConfig
from ..domain import Agents, Array, EgoState, Forecast, ForecastSource, Observation, Plan, Trajectory, Verdict
from ..scoring import drivable, prediction
from ..scoring.frenet import FrenetFrame

STANDING_MPS = 0.05  # slower is standing, as the PDM score has it
AVERAGE_S = 0.5  # accelerations are judged as means over this long: finer ones of a 2 Hz plan are noise
SLOWEST_MPS = 1.0  # below, curvature is the noise of headings
BACKWARDS_MPS = 0.1  # more than noise: a car that is to drive so shifts into reverse
SAME_GAP_M = 0.02  # a gap that shrinks by less does not shrink: a stop that is drawn again moves by as much
DIAGONAL = np.sqrt(2.0)  # a box that grows by so much on each side grows by this times as much across its corner
BEHIND_RAD = np.deg2rad(150.0)  # an agent whose centre lies further round than this is behind, as the PDM score has it


@dataclass(frozen=True)
class Judgement:
    verdict: Verdict
    reason: str = ""  # one sentence when the verdict is not OK


def check(
    plan: Plan, observation: Observation, elapsed_ms: float, config: Config, forecast: Forecast | None = None
) -> Judgement:
    """The verdict on a plan made for this observation.

    `forecast` replaces the one made from the observation's agents. Raises ValueError for a LOGGED one: what is only
    known in hindsight must not decide on the road.
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
    """Why the vehicle cannot follow this plan; empty when it can."""
    guard, trajectory = config.guard, plan.trajectory
    if plan.stamp_ns != observation.stamp_ns:
        return f"the plan is stamped {(observation.stamp_ns - plan.stamp_ns) * 1e-9:.2f} s before its observation"
    expected = np.array([observation.ego.speed_mps * trajectory.dt_s, 0.0])
    gap = float(np.hypot(*(trajectory.poses[0, :2] - expected)))
    if gap > guard.max_start_gap_m:
        return f"the plan starts {gap:.1f} m from where the car will be, allowed {guard.max_start_gap_m:.1f} m"

    backwards = -float(kinematics.speeds(trajectory).min())
    if backwards > BACKWARDS_MPS:  # at no time: as when a car is ahead of a plan that is carried forward
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
    """What N plans (N, T, 3) ask of a car at this speed: in words, how much of it (N, T), the limit, the unit."""
    path = np.concatenate([np.zeros((len(poses), 1, 3)), poses], axis=1)
    step, turn = np.diff(path[..., :2], axis=1), geometry.wrap(np.diff(path[..., 2], axis=1))
    middle = path[:, :-1, 2] + 0.5 * turn
    forward = step[..., 0] * np.cos(middle) + step[..., 1] * np.sin(middle)
    speed = np.copysign(np.hypot(step[..., 0], step[..., 1]), forward) / dt_s
    acceleration = np.diff(speed, axis=1, prepend=speed_mps)
    # the present speed is a moment, the first speed a mean over half an interval later: that step spans half of one
    acceleration[:, 0] *= 2.0
    acceleration /= dt_s
    yaw_rate = turn / dt_s
    lateral = np.maximum(np.abs(speed * yaw_rate), lateral_accelerations(step, dt_s))
    curvature = np.abs(yaw_rate) / np.maximum(np.abs(speed), SLOWEST_MPS) * (np.abs(speed) > SLOWEST_MPS)
    return (
        ("drives backwards at", -speed, BACKWARDS_MPS, "m/s"),
        ("is as fast as", speed, guard.max_speed_mps, "m/s"),
        ("speeds up at", acceleration, guard.max_acceleration_mps2, "m/s^2"),
        ("brakes at", -acceleration, guard.max_deceleration_mps2, "m/s^2"),
        ("turns with a lateral acceleration of", lateral, guard.max_lateral_acceleration_mps2, "m/s^2"),
        ("turns with a curvature of", curvature, guard.max_curvature_per_m, "1/m"),
    )


def lateral_accelerations(step: Array, dt_s: float) -> Array:
    """(N, T) m/s^2 across the way of cars that go steps (N, T, 2): a path may bend more than its headings tell."""
    before, after = step[:, :-1], step[:, 1:]
    across = before[..., 0] * after[..., 1] - before[..., 1] * after[..., 0]
    length = np.maximum(np.hypot(*np.moveaxis(before, -1, 0)), np.hypot(*np.moveaxis(after, -1, 0)))
    moving = length > SLOWEST_MPS * dt_s
    aside = np.where(moving, np.abs(across) / np.maximum(length, SLOWEST_MPS * dt_s), 0.0) / dt_s**2
    return np.pad(aside, ((0, 0), (1, 0)))


def unsafe_reason(plan: Plan, observation: Observation, config: Config, forecast: Forecast | None = None) -> str:
    """Whom or what this plan hits within the safe horizon; empty when it stays clear. Unknown objects hit nobody."""
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
    """When the car's outline leaves the drivable space; empty when it stays, stands, or the space is unknown.

    A car that is outside already may drive back in: then only what leads further out counts.
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
    """The earliest contact of the ego boxes (T, 3) with the forecast; contacts while standing or from behind are not
    the plan's doing."""
    vehicle = config.vehicle
    ego_size = np.array([vehicle.length_m, vehicle.width_m])
    sizes = inflate_boxes(forecast.poses[:, 0], forecast.sizes, vehicle, config.guard.clearance_m)
    others = forecast.poses[:, np.minimum(np.arange(1, len(centres) + 1), forecast.poses.shape[1] - 1)]  # (A, T, 3)
    reach = 0.5 * (np.hypot(*ego_size) + np.hypot(sizes[:, 0], sizes[:, 1]))
    apart = np.hypot(others[..., 0] - centres[:, 0], others[..., 1] - centres[:, 1])
    who, when = np.nonzero(apart <= reach[:, None])
    touching = geometry.boxes_overlap(centres[when], ego_size, others[who, when], sizes[who])
    moving = np.abs(kinematics.speeds(trajectory)[when]) > STANDING_MPS
    rear_axles = trajectory.poses[when]
    bearing = geometry.wrap(
        np.arctan2(others[who, when, 1] - rear_axles[:, 1], others[who, when, 0] - rear_axles[:, 0]) - rear_axles[:, 2]
    )
    counts = touching & moving & (np.abs(bearing) <= BEHIND_RAD)
    # Each agent's first contact decides, as in the PDM score: who has run into us from behind drives on through us in
    # the forecast, and what follows is not the plan's doing either. (np.nonzero lists each agent's times in order.)
    touched = np.flatnonzero(touching)
    firsts = touched[np.unique(who[touched], return_index=True)[1]]
    guilty = firsts[counts[firsts]]
    if not len(guilty):
        return ""
    first = int(guilty[np.argmin(when[guilty])])
    x, y = forecast.poses[who[first], 0, :2]
    return f"the plan hits the object now at x {x:.1f} m, y {y:.1f} m after {(when[first] + 1) * trajectory.dt_s:.1f} s"


def inflate_boxes(poses: Array, sizes: Array, vehicle: VehicleConfig, clearance_m: float) -> Array:
    """(A, 2) sizes of others, now at poses (A, 3), with the gap around them that a plan must keep.

    Where the car is closer already it is the gap there is: who stands close by may go on, but no closer.
    """
    here, ego_size = box_centres(np.zeros(3), vehicle), np.array([vehicle.length_m, vehicle.width_m])
    wanted = sizes + 2.0 * clearance_m
    apart_m = np.maximum(geometry.box_separation(here, ego_size, poses, sizes) - SAME_GAP_M, 0.0)
    there_is = np.minimum(apart_m / DIAGONAL, clearance_m)
    return np.where(
        geometry.boxes_overlap(here, ego_size, poses, wanted)[:, None], sizes + 2.0 * there_is[:, None], wanted
    )


def box_centres(poses: Array, vehicle: VehicleConfig) -> Array:
    """(..., 3) centres of the car's box for rear-axle poses (..., 3)."""
    return geometry.compose(poses, np.array([vehicle.rear_axle_to_center_m, 0.0, 0.0]))


def stop_plan(ego: EgoState, agents: Agents | None, path: Array | None, config: Config) -> Plan:
    """Brake to a stand along `path` (poses (T, 3), ego frame of now) or, without one, along the present curve.

    The mildest of three decelerations that hits nobody; the hardest when all do. Never fails: it needs only the ego.
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
    """Poses (N, 3) at distances along the path of a plan; where the plan ended, straight on."""
    line = geometry.distinct_points(kinematics.with_origin(path), closer_than=0.05)
    if len(line) < 2:
        return kinematics.arc(0.0, distances)
    return geometry.sample(line, distances)


def along_present_curve(ego: EgoState, distances: Array, config: Config) -> Array:
    """Poses (N, 3) at distances along the circle the car is on now."""
    guard, speed = config.guard, max(abs(ego.speed_mps), 1.0)
    gripping = guard.max_lateral_acceleration_mps2 / speed**2
    tightest = min(guard.max_curvature_per_m, gripping)
    return kinematics.arc(float(np.clip(ego.yaw_rate_rps / speed, -tightest, tightest)), distances)
