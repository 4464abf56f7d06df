"""Lite steps: the last plan is carried over and edited instead of drafting new ones, and when that is allowed.

A lite step needs a last plan that still holds: one of the same command, not long ago, whose tokens were confident, and
a car that is where that plan has it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ..core import geometry, kinematics
from ..core.domain import Array, Command, EgoState, Observation, Plan
from ..core.recipe_config import ReflectDrive2Config
from ..core.tokens import TokenLayout
from ..scoring.frenet import FrenetFrame, points_in_ego_frame, points_in_layout_frame
from .planner import Network, PlannerState

LITE_EDIT_ROUNDS = 1  # of AutoEdit in a lite step, as in the paper
MAX_DEVIATION_M = 1.0  # a car further from its position in the last plan takes a full step
LOW_CONFIDENCE = 0.15  # mean token probability of the last plan below which the next step is a full one
MAX_GAP_S = 0.35  # longer intervals between steps mean that images were missed
MAX_JUMP_M = 1.0  # largest difference between the map pose and the extrapolated one
START_SPEED_MPS = 0.3  # a slower car stands


@dataclass(frozen=True, eq=False)
class ReflectDrive2Memory:
    """State between steps, in addition to the last plan."""

    ego: EgoState
    command: Command
    confidence: float  # mean probability of the token ids of the plan
    lite_steps_since_full: int


def find_full_step_reason(state: PlannerState, observation: Observation, settings: ReflectDrive2Config) -> str:
    """Why the next step must be a full one, as one sentence; empty if the last plan may be edited."""
    last, memory, ego = state.previous, state.memory, observation.ego
    if last is None or not isinstance(memory, ReflectDrive2Memory):
        return "there is no plan to edit"
    if memory.lite_steps_since_full >= settings.lite_steps_per_full:
        return "a full step is due"
    if observation.command is not memory.command:
        return f"the command changed from {memory.command.name} to {observation.command.name}"
    elapsed_s = (observation.stamp_ns - last.stamp_ns) * 1e-9
    if not 0.0 < elapsed_s <= MAX_GAP_S:
        return f"{elapsed_s:.2f} s since the last plan"
    if abs(memory.ego.speed_mps) < START_SPEED_MPS <= abs(ego.speed_mps):
        return "the car starts"
    if memory.confidence < LOW_CONFIDENCE:
        return f"the last plan has a confidence of {memory.confidence:.2f}"
    jump_m = distance(extrapolate_pose(memory.ego, elapsed_s), ego.map_from_ego)
    if jump_m > MAX_JUMP_M:
        return f"localisation jumped by {jump_m:.1f} m"
    deviation_m = distance(planned_position(last, elapsed_s), ego.map_from_ego)
    if deviation_m > MAX_DEVIATION_M:
        return f"the car is {deviation_m:.1f} m from where the last plan has it"
    return ""


def lite_draft(
    network: Network, context: Any, carried: Array, road: FrenetFrame | None = None
) -> tuple[Array, Array, Array]:
    """Draft the masked end of carried points (P, 2), ego frame: ids (1, T), probabilities, points (1, P, 2)."""
    layout = network.layout
    is_carried = np.isfinite(carried)
    values = points_in_layout_frame(np.where(is_carried, carried, 0.0), layout, road)
    before = np.where(is_carried.reshape(-1), layout.encode(values), layout.mask_id)[None]
    actions, confidence = network.step(context, before.astype(np.int32), int((~is_carried).sum()), False)
    return actions, confidence, np.where(is_carried, carried, points_in_ego_frame(layout.decode(actions), layout, road))


def edited_points(
    points: Array, before: Array, after: Array, layout: TokenLayout, road: FrenetFrame | None = None
) -> Array:
    """(P, 2) points of edited ids (T,), ego frame: unchanged where the ids are unchanged, else decoded."""
    is_same = (after == before).reshape(points.shape)
    if layout.frame == "route":  # a token of the route moves both coordinates of its point
        is_same = is_same.all(-1, keepdims=True)
    return np.where(is_same, points, points_in_ego_frame(layout.decode(after), layout, road))


def extrapolate_pose(ego: EgoState, elapsed_s: float) -> Array:
    """(3,) map pose after `elapsed_s` at constant acceleration and curvature."""
    if abs(ego.speed_mps) < START_SPEED_MPS:
        return ego.map_from_ego
    along_m = ego.speed_mps * elapsed_s + 0.5 * ego.acceleration_mps2 * elapsed_s**2
    return geometry.compose(ego.map_from_ego, kinematics.arc(ego.yaw_rate_rps / ego.speed_mps, np.array([along_m]))[0])


def planned_position(plan: Plan, elapsed_s: float) -> Array:
    """(2,) m, map frame: position in the plan `elapsed_s` after its stamp, interpolated linearly."""
    times_s, poses = np.append(0.0, plan.trajectory.times_s), kinematics.with_origin(plan.trajectory.poses)
    position = np.array([np.interp(elapsed_s, times_s, poses[:, axis]) for axis in (0, 1)])
    return np.asarray(geometry.transform_points(plan.map_from_ego, position))


def distance(a: Array, b: Array) -> float:
    return float(np.hypot(*(a[:2] - b[:2])))
