"""Baseline: continue straight at the present speed."""

from __future__ import annotations

import numpy as np

from ...core.domain import PLAN_DT_S, PLAN_HORIZON_S, Observation, StepKind, Trajectory
from ..candidates import Candidates, GeneratorSpec, of_trajectories
from ..planner import PlannerContext, PlannerState


def generate(state: PlannerState, observation: Observation, planner_context: PlannerContext) -> Candidates:
    times_s = PLAN_DT_S * np.arange(1, round(PLAN_HORIZON_S / PLAN_DT_S) + 1)
    poses = np.zeros((len(times_s), 3))
    poses[:, 0] = max(observation.ego.speed_mps, 0.0) * times_s
    return of_trajectories((Trajectory(poses, PLAN_DT_S),), StepKind.BASELINE)


SPEC = GeneratorSpec("constant_velocity", generate)
