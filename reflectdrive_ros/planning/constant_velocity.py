"""Baseline: continue straight at the present speed."""

from __future__ import annotations

import numpy as np

from ..core.domain import Observation, Plan, Trajectory
from .planner import PlannerContext, PlannerState


def plan(state: PlannerState, observation: Observation, planner_context: PlannerContext) -> tuple[PlannerState, Plan]:
    output = planner_context.config.output
    times_s = output.dt_s * np.arange(1, round(output.horizon_s / output.dt_s) + 1)
    poses = np.zeros((len(times_s), 3))
    poses[:, 0] = max(observation.ego.speed_mps, 0.0) * times_s
    new_plan = Plan(observation.stamp_ns, observation.ego.map_from_ego, Trajectory(poses, output.dt_s))
    return PlannerState(previous=new_plan), new_plan
