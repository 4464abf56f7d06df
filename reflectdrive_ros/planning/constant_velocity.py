"""Baseline: continue straight at the present speed."""

from __future__ import annotations

import numpy as np

from ..core.domain import PLAN_DT_S, PLAN_HORIZON_S, Observation, Plan, Trajectory
from .planner import PlannerContext, PlannerState


def plan(state: PlannerState, observation: Observation, planner_context: PlannerContext) -> tuple[PlannerState, Plan]:
    times_s = PLAN_DT_S * np.arange(1, round(PLAN_HORIZON_S / PLAN_DT_S) + 1)
    poses = np.zeros((len(times_s), 3))
    poses[:, 0] = max(observation.ego.speed_mps, 0.0) * times_s
    new_plan = Plan(observation.stamp_ns, observation.ego.map_from_ego, Trajectory(poses, PLAN_DT_S))
    return PlannerState(previous=new_plan), new_plan
