"""Whether an unsafe plan is replaced: margins have a price."""

from __future__ import annotations

import numpy as np

from ...core.domain import PLAN_DT_S, Array, Plan, Verdict
from ...scoring.safety import SAFE, SafetyContext
from .. import guard
from ..assessment import planned_safety
from ..planner import can_score
from ..postprocess.comfort import relax_profile
from ..postprocess.waypoints import trajectories, waypoint_poses
from ..select import knows_what_plans_wait_for, score_candidates

# Score (0..1) of the margins of the check: of plans without contact in the forecast, 7 % of those without the margins
# have one or leave the road in the true future, 3 % of the others. On `val` 0.05 to 0.2 score the same
MARGIN_SCORE = 0.1


def change_pays(points: Array, changed: Array, safety_context: SafetyContext) -> bool:
    """Whether an unsafe plan through points (8, 2) is better `changed`: where only the guard's refusal, a stop, is
    avoided by it, or where its driving score in the forecast, both relaxed, is not lower by more than MARGIN_SCORE,
    which a plan with the margins of the check earns by them.

    A plan without these margins has a contact in the forecast, which scores 0, or passes at a small distance.
    """
    observation = safety_context.observation
    if not (can_score(observation) and knows_what_plans_wait_for(safety_context)):
        return True
    both = np.stack([relax_profile(each, safety_context) for each in (points, changed)])
    refused, still_refused = (
        guard.check(Plan(observation.stamp_ns, observation.ego.map_from_ego, each), safety_context, 0.0).verdict
        is not Verdict.OK
        for each in trajectories(both, observation.ego.speed_mps, PLAN_DT_S, safety_context.road)
    )
    if refused and not still_refused:
        return True
    without, score = score_candidates(safety_context, both).scores
    margins = planned_safety(safety_context, waypoint_poses(changed[None], safety_context.road), exact=True)
    return bool(score + (MARGIN_SCORE if margins.worst[0] >= SAFE else 0.0) >= without)
