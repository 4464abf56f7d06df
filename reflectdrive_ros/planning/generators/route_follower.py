"""Baseline: follow the route, slower in curves, behind the lead vehicle (Intelligent Driver Model).

It uses no images. It is a reference: a camera planner should score higher.
"""

from __future__ import annotations

import numpy as np

from ...core.domain import PLAN_DT_S, PLAN_HORIZON_S, Observation, StepKind, Trajectory
from ...scoring.limits import RouteLimits
from ..candidates import Candidates, GeneratorSpec, of_trajectories
from ..idm import rollouts
from ..planner import PlannerContext, PlannerState


def generate(state: PlannerState, observation: Observation, planner_context: PlannerContext) -> Candidates:
    free = np.full((1, round(PLAN_HORIZON_S / PLAN_DT_S)), np.inf)
    vehicle = planner_context.config.vehicle
    poses = rollouts(observation, vehicle, PLAN_HORIZON_S, np.zeros(1), free, RouteLimits.none())[0, 0]
    return of_trajectories((Trajectory(poses, PLAN_DT_S),), StepKind.BASELINE)


SPEC = GeneratorSpec("route_follower", generate)
