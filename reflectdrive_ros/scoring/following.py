"""Forecasts how far agents drive along their paths: decaying accelerations, and leads that they do not drive through.

An acceleration decays exponentially. Agents behind a lead also adapt their speed to it, the stronger the closer they
are. Drivers' reaction to a lead is part of their present acceleration, so that the larger of both counts where they
have the same sign. Leads adapt to their own leads in the same rollout.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import reflectdrive_kernels as kernels

from .. import agent_motion
from ..domain import AgentKind, Agents, Array

STEP_S = 0.2  # of the rollout
SPEED_UP_DECAY_S = 1.2
SLOW_DOWN_DECAY_S = 2.0  # who brakes goes on braking for a while
MOVING_MPS = 0.5
LEAD_REACH_M = 80.0
SAME_WAY = 0.5  # cosine between the headings of an agent and its lead; a standing lead may have any heading
PASSES_M = 0.3  # boxes that overlap less in width pass each other
ADAPTION_PER_S = 1.2  # of the difference in speed to the lead, without a gap
ADAPTION_GAP_M = 10.0  # at this gap it is halved
ADAPTION_DELAY_S = 0.25  # its time constant: the present acceleration has the reaction until now
FOLLOWING_RANGE_MPS2 = (-4.0, 1.0)
STOP_GAP_M = 0.5  # behind a standing lead


class Leads(NamedTuple):
    """The agent ahead of each agent on its path."""

    rows: Array  # (A,) its row; meaningless without a lead
    gaps_m: Array  # (A,) between the boxes, infinite without a lead


def find_leads(others: Agents, at_m: Array, beside_m: Array, facing: Array, on_road: Array) -> Leads:
    """The nearest agent ahead of each moving agent whose box would be hit by driving on.

    Agents on the ego's road (`on_road` (A,) bool) are compared along it: metres along and to the left of it (A,), and
    the cosine `facing` (A,) of their angle to it. All others are compared straight ahead.
    """
    follows = others.kinds != AgentKind.PEDESTRIAN
    rows, gaps_m = np.empty(len(others), np.int64), np.empty(len(others))
    users = (others.poses, np.hypot(*others.velocities_mps.T), others.sizes, follows, at_m, beside_m, facing, on_road)
    kernels.find_leads(*users, LEAD_REACH_M, SAME_WAY, PASSES_M, MOVING_MPS, rows, gaps_m)
    return Leads(rows, gaps_m)


def distances(speeds_mps: Array, accelerations_mps2: Array, leads: Leads, times_s: Array) -> Array:
    """(A, T) metres driven at ascending times (T,), never backwards; who stands stays."""
    steps = max(int(np.ceil(times_s[-1] / STEP_S - 1e-9)), 1)
    decay_s = np.where(accelerations_mps2 < 0.0, SLOW_DOWN_DECAY_S, SPEED_UP_DECAY_S)[:, None]
    lasting_s = agent_motion.decayed(STEP_S * np.arange(steps + 1), decay_s)
    own_mps2 = accelerations_mps2[:, None] * np.diff(lasting_s, axis=1) / STEP_S  # mean over each step
    driven_m = np.empty((len(speeds_mps), len(times_s)))
    kernels.follow_leads(
        speeds_mps,
        own_mps2,
        leads.rows,
        leads.gaps_m,
        times_s,
        STEP_S,
        ADAPTION_PER_S,
        ADAPTION_GAP_M,
        ADAPTION_DELAY_S,
        *FOLLOWING_RANGE_MPS2,
        STOP_GAP_M,
        driven_m,
    )
    return driven_m
