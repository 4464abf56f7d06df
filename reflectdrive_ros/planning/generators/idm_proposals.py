"""Proposals of the Intelligent Driver Model, after PDM-Closed.

D. Dauner, M. Hallgarten, A. Geiger, K. Chitta: Parting with Misconceptions about Learning-based Vehicle Motion Planning
(CoRL 2023). Rollouts along the route for five target speeds and three lateral offsets: slower in curves, behind the
lead vehicle at its constant velocity, stopping at closed stop lines and at the end of the route. No network.

It differs from the paper where that makes the plans drivable: target speeds below the present one are approached at a
limited deceleration, curves and traffic lights slow the rollouts down, offsets are reached along a smooth path, and
agents that enter the path are anticipated.
"""

from __future__ import annotations

import numpy as np

from ...core.domain import PLAN_DT_S, Array, Observation, Trajectory
from ..candidates import Candidates, GeneratorSpec
from ..idm import rollouts
from ..planner import PlannerContext, PlannerState
from ..postprocess.waypoints import HORIZON_S, POINT_DT_S

TARGET_BRAKING_MPS2 = 2.0  # towards a target speed below the present one
TARGET_SHARES = (1.0, 0.8, 0.6, 0.4, 0.2)  # of the speed limit
LATERAL_OFFSETS_M = (0.0, 1.0, -1.0)  # from the route, left positive


def generate(state: PlannerState, observation: Observation, planner_context: PlannerContext) -> Candidates:
    """The 15 proposals, or 5 on the route where the drivable space is unknown: no score tells then whether an offset
    leaves the road. First that on the route at the speed limit. Raises PlanningError where there is no route."""
    offsets_m = np.array(LATERAL_OFFSETS_M if observation.drivable is not None else LATERAL_OFFSETS_M[:1])
    poses = rollouts(
        observation,
        planner_context.config.vehicle,
        HORIZON_S,
        offsets_m,
        target_speeds(max(observation.ego.speed_mps, 0.0), observation.speed_limit_mps),
        planner_context.safety_context(observation).limits,
    ).reshape(len(offsets_m) * len(TARGET_SHARES), -1, 3)
    every = round(POINT_DT_S / PLAN_DT_S)
    return Candidates(
        points=poses[:, every - 1 :: every, :2],
        trajectories=tuple(Trajectory(each, PLAN_DT_S) for each in poses),
    )


def target_speeds(speed_mps: float, limit_mps: float) -> Array:
    """(S, T) m/s by target speed and interval: a lower speed than the present is reached by braking."""
    braking_mps = speed_mps - TARGET_BRAKING_MPS2 * PLAN_DT_S * np.arange(round(HORIZON_S / PLAN_DT_S))
    return np.asarray(np.maximum(limit_mps * np.array(TARGET_SHARES)[:, None], braking_mps))


SPEC = GeneratorSpec("idm_proposals", generate)
