"""Braking along the path of a plan that is not safe, or along the route."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ...core import geometry, kinematics
from ...core.domain import Array, Plan
from ...scoring import metrics
from ...scoring.safety import SafetyContext
from ...scoring.scorer import total
from ..assessment import assess, evaluate, limit_violation
from ..postprocess.speed_profile import slow_points
from ..postprocess.waypoints import CARRY_MAX_S, POINT_DT_S, STEP_S
from ..select import score_candidates
from .continue_last import continue_last
from .return_to_route import merge_into_route, merging_paths

BRAKING_MPS2 = (1.0, 2.0, 3.0, 4.5, 6.0, 8.0)
GENTLE_BRAKINGS_MPS2, HARD_BRAKINGS_MPS2 = (0.0, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0), (4.0, 5.0, 6.0, 8.0)
# By which a braking grows. From the present acceleration on, 2.5 is comfortable for 98 % of plans, 4 for half of them.
GENTLE_JERK_MPS3, FIRM_JERK_MPS3, HARD_JERK_MPS3 = 2.5, 4.0, 20.0
# Brakings, their jerk, and whether an acceleration ends at once; a group is tried where no braking of those before is
# safe.
GROUPS = (
    (GENTLE_BRAKINGS_MPS2, GENTLE_JERK_MPS3, False),
    (GENTLE_BRAKINGS_MPS2, FIRM_JERK_MPS3, True),
    (HARD_BRAKINGS_MPS2, HARD_JERK_MPS3, True),
)


def repair_points(plans: Array, safety_context: SafetyContext, last: Sequence[Plan | None]) -> tuple[Array, Array]:
    """Plans through points (N, P, 2) that are not safe, each replaced; and (N,) 1, or 0 where nothing is better than
    the plan.

    `last`, for each the plan that is driven now, is continued if that is safe. Else the path of the plan, or that of
    the route, is driven with the gentlest braking that is safe: of the first of GROUPS with a safe one that with the
    best driving score. If nothing is safe, the least unsafe plan is the result.

    Each plan is repaired as if it were alone. They are checked together, because the check of many costs little more
    than the check of one.
    """
    start = assess(safety_context, evaluate(safety_context, plans))
    far_m, allowed = start.progress_m, start.limit_violation.max(axis=1)
    repaired, counts = plans.copy(), np.ones(len(plans), int)
    indices, continued = continue_last(last, safety_context, plans.shape[1], far_m)
    if continued is not None:
        repaired[indices] = continued.points
    pending = np.setdiff1d(np.arange(len(plans)), indices)
    paths = paths_of(plans, safety_context)
    accelerations_mps2 = np.array([present_acceleration_mps2(each, safety_context) for each in last])
    tried = plans[pending, None]
    for brakings_mps2, jerk_mps3, releases in GROUPS:
        if not len(pending):
            return repaired, counts
        begin_mps2 = np.minimum(accelerations_mps2[pending], 0.0 if releases else np.inf)
        braked = brake_along(paths[pending], brakings_mps2, jerk_mps3, begin_mps2, safety_context)
        evaluation = evaluate(safety_context, braked.reshape(-1, *plans.shape[1:]))
        excess = limit_violation(safety_context, evaluation.poses).max(axis=1).reshape(braked.shape[:2])
        sound = evaluation.safe.reshape(braked.shape[:2]) & (excess <= allowed[pending, None])
        done = sound.any(axis=1)
        if done.any():
            repaired[pending[done]] = best_scores(braked[done], sound[done], safety_context)
        pending, tried = pending[~done], np.concatenate([tried, braked], axis=1)[~done]
    if len(pending):
        count = tried.shape[1]
        evaluation = evaluate(safety_context, tried.reshape(-1, *plans.shape[1:]))
        assessment = assess(safety_context, evaluation, np.repeat(far_m[pending], count))
        for row, index in enumerate(pending):
            best = assessment.of(np.arange(row * count, (row + 1) * count)).best(float(allowed[index]))
            repaired[index], counts[index] = tried[row, best], best > 0
    return repaired, counts


def best_scores(options: Array, sound: Array, safety_context: SafetyContext) -> Array:
    """(N, P, 2) of each row of options (N, K, P, 2) the one with the best driving score of those that are `sound`
    (N, K), at least one of each row."""
    safe_options, counts = options[sound], sound.sum(axis=1)
    card = score_candidates(safety_context, safe_options).card
    begins = np.cumsum(counts) - counts
    farthest_m = np.repeat(np.maximum.reduceat(card.progress_m * card.multiplier, begins), counts)
    ep = metrics.ego_progress(card.progress_m, card.multiplier, farthest_m, masked=True)
    scores = total(replace(card, ep=ep), safety_context.config.scoring)
    best = [begin + int(np.argmax(scores[begin : begin + count])) for begin, count in zip(begins, counts, strict=True)]
    return np.asarray(safe_options[best])


def paths_of(plans: Array, safety_context: SafetyContext) -> Array:
    """(N, 1 or 2, P + 1, 2) from the origin on: the paths of plans (N, P, 2) and, where there is a route, those that
    merge into it."""
    paths = plans[:, None]
    if safety_context.route is not None:
        paths = np.stack([plans, merging_paths(plans, safety_context)], axis=1)
    return np.concatenate([np.zeros((*paths.shape[:2], 1, 2)), paths], axis=2)


def present_acceleration_mps2(last: Plan | None, safety_context: SafetyContext) -> float:
    """Acceleration that the plan which is driven now has at this instant; without one, that of the vehicle."""
    observation = safety_context.observation
    if last is None or not 0 < observation.stamp_ns - last.stamp_ns <= CARRY_MAX_S * 1e9:
        return float(observation.ego.acceleration_mps2)
    index = int((observation.stamp_ns - last.stamp_ns) * 1e-9 / last.trajectory.dt_s)
    accelerations = kinematics.accelerations(last.trajectory)
    return float(accelerations[min(index, len(accelerations) - 1)])


def brake_along(
    paths: Array,
    brakings_mps2: tuple[float, ...],
    jerk_mps3: float,
    begin_mps2: Array,
    safety_context: SafetyContext,
) -> Array:
    """(N, K B, P, 2) points on K paths of each of N plans, (N, K, P + 1, 2) from the origin on, never ahead of them,
    with each of B brakings: the acceleration falls from `begin_mps2` (N,) to it, with at most `jerk_mps3`, and stays.
    Slower where the route demands it."""
    plans, count, knots, _ = paths.shape
    along = geometry.arc_lengths(paths)
    speed_mps = max(float(safety_context.scene.motion[0]), 0.0)
    every = round(POINT_DT_S / STEP_S)
    times_s = STEP_S * np.arange(1, every * (knots - 1) + 1)
    falling = begin_mps2[:, None] - jerk_mps3 * (times_s - 0.5 * STEP_S)
    accelerations = np.maximum(falling[:, None], -np.array(brakings_mps2)[:, None])  # (N, B, T)
    speeds = np.maximum(speed_mps + np.cumsum(accelerations, axis=-1) * STEP_S, 0.0)
    driven_m = (np.cumsum(speeds, axis=-1) * STEP_S)[..., every - 1 :: every]
    reached = np.minimum(driven_m[:, None], along[:, :, None, 1:])  # (N, K, B, P)
    rows = len(brakings_mps2)
    points = geometry.interpolate_paths(
        np.repeat(paths.reshape(-1, knots, 2), rows, axis=0),
        np.repeat(along.reshape(-1, knots), rows, axis=0),
        reached.reshape(-1, knots - 1),
    )
    slowed = slow_points(points, safety_context.limits, float(safety_context.scene.motion[0]), POINT_DT_S)
    return np.asarray(slowed.reshape(plans, count * rows, knots - 1, 2))


def brake_along_plan(points: Array, speed_mps: float) -> Array:
    """(6, P, 2) points on the path of a plan (P, 2), with braking from now on of at least each of BRAKING_MPS2."""
    line = np.concatenate([np.zeros((1, 2)), points])
    along = geometry.arc_lengths(line)
    reached = _brake_profiles(along, speed_mps)
    return np.stack([np.interp(reached, along, line[:, axis]) for axis in (0, 1)], axis=-1)


def follow_route(points: Array, safety_context: SafetyContext) -> Array:
    """(7, P, 2) points along the route, merging within MERGE_S, at the distances of the plan (P, 2) and braked."""
    along = geometry.arc_lengths(np.concatenate([np.zeros((1, 2)), points]))
    return merge_into_route(
        np.concatenate([along[None, 1:], _brake_profiles(along, float(safety_context.scene.motion[0]))]), safety_context
    )


def _brake_profiles(along: Array, speed_mps: float) -> Array:
    """(6, 8) distances on a plan `along` (9,) with braking of at least each of BRAKING_MPS2 from now on."""
    times_s = POINT_DT_S * np.arange(1, len(along))
    braked = np.stack([kinematics.braking_distances(speed_mps, braking, times_s) for braking in BRAKING_MPS2])
    return np.asarray(np.minimum(braked, along[1:]))
