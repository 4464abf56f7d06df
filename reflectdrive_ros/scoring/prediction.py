"""Predicts agents: those that drive along the ego's road, in either direction, stay on it.

At constant velocity every agent leaves the road at the next bend: an oncoming bus seems to cross the ego's lane, and a
lead vehicle in a curve seems to leave the road. The ego knows one road, its route. An agent on its lanes, with a
heading along or against it, follows it; its speed across the road decays. All other agents continue straight on, or
along an arc whose curvature decays if their yaw rates are known. Predicted paths of the observation take precedence.

Distances along both: an acceleration decays exponentially. Agents behind a lead also adapt their speed to it, the
stronger the closer they are. Drivers' reaction to a lead is part of their present acceleration, so that the larger of
both counts where they have the same sign. Leads adapt to their own leads in the same rollout.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np
import reflectdrive_kernels as kernels

from .. import agent_motion, geometry, kinematics
from ..domain import AgentKind, Agents, Array, Forecast, ForecastSource
from .frenet import FrenetFrame

BESIDE_M = 4.0  # the lane beside the ego's
ALONG = np.cos(np.radians(10.0))  # agents there at a larger angle to the road leave it
CARRIAGEWAY_M = 25.0  # all lanes of a motorway; agents further away are on another road
CARRIAGEWAY_ALONG = np.cos(np.radians(3.0))  # agents beyond BESIDE_M at a larger angle are on another road
TURN_DECAY_S = 1.2  # of yaw rates, at the present speed
DRIFT_DECAY_S = 0.7  # of the speed across the road
ARC_MIN_MPS = 1.0  # slower agents turn as at this speed
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


def forecast(others: Agents, road: FrenetFrame | None, dt_s: float, steps: int) -> Forecast:
    """Agents at 0, 1, .. `steps` intervals: as `kinematics.forecast`, but agents along the road follow it, known
    accelerations and yaw rates act for a while, and no agent drives through its lead."""
    straight_on = kinematics.forecast(others, dt_s, steps)
    if len(others) == 0 or straight_on.source is not ForecastSource.CONSTANT_VELOCITY:
        return straight_on
    speeds_mps = np.hypot(*others.velocities_mps.T)
    places = find_on_road(road, others)
    leads = find_leads(others, *places)
    in_lane = places.on_road & (speeds_mps > MOVING_MPS)
    still = np.zeros(len(others))
    accelerations = still if others.accelerations_mps2 is None else others.accelerations_mps2
    yaw_rates = still if others.yaw_rates_rps is None else others.yaw_rates_rps
    changes = (accelerations != 0.0) | (yaw_rates != 0.0) | np.isfinite(leads.gaps_m)
    if not (in_lane | changes).any():
        return straight_on
    driven_m = driven_distances(speeds_mps, accelerations, leads, dt_s * np.arange(steps + 1))
    poses = straight_on.poses.copy()
    free = np.flatnonzero(changes & ~in_lane)
    poses[free] = _along_arcs(others.poses[free], others.velocities_mps[free], yaw_rates[free], driven_m[free])
    if road is not None and in_lane.any():
        lanes = places.at_m[in_lane], places.beside_m[in_lane]
        poses[in_lane] = along_road(road, *lanes, others.poses[in_lane], speeds_mps[in_lane], driven_m[in_lane])
    known = others.accelerations_mps2 is not None or others.yaw_rates_rps is not None
    source = ForecastSource.ACCELERATION if known else ForecastSource.ALONG_ROAD
    return replace(straight_on, poses=poses, source=source)


class RoadPlaces(NamedTuple):
    """Where agents are on the ego's road; 0 if it is unknown."""

    at_m: Array  # (A,) along it
    beside_m: Array  # (A,) to its left
    facing: Array  # (A,) cosine of the angle to it
    on_road: Array  # (A,) bool, whether the agent is on one of its lanes, with a heading along or against it


def find_on_road(road: FrenetFrame | None, others: Agents) -> RoadPlaces:
    """Places of agents on the ego's road; they are on it from its first to its last point."""
    if road is None:
        unknown = np.zeros(len(others))
        return RoadPlaces(unknown, unknown, unknown, np.zeros(len(others), bool))
    at_m, beside_m, facing = project_to_road(road, others.poses)
    away_m, straight = np.abs(beside_m), np.abs(facing)
    near = (away_m <= BESIDE_M) & (straight >= ALONG)
    far = (away_m <= CARRIAGEWAY_M) & (straight >= CARRIAGEWAY_ALONG)
    return RoadPlaces(at_m, beside_m, facing, (near | far) & (at_m > road.at[0]) & (at_m < road.at[-1]))


# --- how far along their paths ----------------------------------------------------------------------------------------


class Leads(NamedTuple):
    """The agent ahead of each agent on its path."""

    rows: Array  # (A,) its row; meaningless without a lead
    gaps_m: Array  # (A,) between the boxes, infinite without a lead


def find_leads(others: Agents, at_m: Array, beside_m: Array, facing: Array, on_road: Array) -> Leads:
    """The nearest agent ahead of each moving agent whose box would be hit by driving on.

    Agents on the ego's road (`on_road` (A,) bool) are compared along it: metres along and to the left of it (A,), and
    the cosine `facing` (A,) of their angle to it. All others are compared straight ahead.
    """
    speeds_mps = np.hypot(*others.velocities_mps.T)
    x, y, heading = others.poses.T
    cos, sin = np.cos(heading)[:, None], np.sin(heading)[:, None]
    dx, dy = x - x[:, None], y - y[:, None]  # (A, A): of the column, seen from the row
    ahead_m, left_m = cos * dx + sin * dy, cos * dy - sin * dx
    both = on_road[:, None] & on_road
    way = np.sign(facing)[:, None]
    ahead_m = np.where(both, way * (at_m - at_m[:, None]), ahead_m)
    left_m = np.where(both, way * (beside_m - beside_m[:, None]), left_m)
    lengths_m, widths_m = others.sizes.T
    same_way = np.cos(heading - heading[:, None]) > SAME_WAY
    follows = (speeds_mps > MOVING_MPS) & (others.kinds != AgentKind.PEDESTRIAN)
    leads = (
        follows[:, None]
        & (ahead_m > 0.0)
        & (np.abs(left_m) < 0.5 * (widths_m + widths_m[:, None]) - PASSES_M)
        & (same_way | (speeds_mps < MOVING_MPS))
    )
    gaps_m = np.where(leads, ahead_m - 0.5 * (lengths_m + lengths_m[:, None]), np.inf)
    rows = gaps_m.argmin(axis=1)
    nearest_m = gaps_m[np.arange(len(rows)), rows]
    return Leads(rows, np.where(nearest_m < LEAD_REACH_M, np.maximum(nearest_m, 0.0), np.inf))


def driven_distances(speeds_mps: Array, accelerations_mps2: Array, leads: Leads, times_s: Array) -> Array:
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


# --- where they are then ----------------------------------------------------------------------------------------------


def _along_arcs(poses: Array, velocities_mps: Array, yaw_rates_rps: Array, driven_m: Array) -> Array:
    """(A, T, 3) poses after distances (A, T) in the direction of the velocity, on arcs whose curvature decays."""
    speeds_mps = np.hypot(*velocities_mps.T)[:, None]
    pace_mps = np.maximum(speeds_mps, ARC_MIN_MPS)
    turned = yaw_rates_rps[:, None] * agent_motion.decayed(driven_m / pace_mps, TURN_DECAY_S)
    towards = velocities_mps / np.maximum(speeds_mps, 1e-9)
    middle = 0.5 * (turned[:, 1:] + turned[:, :-1])
    steps_m = np.diff(driven_m, axis=1)[..., None] * geometry.rotate(towards[:, None], middle)
    at = np.repeat(poses[:, None], driven_m.shape[1], axis=1)
    at[:, 1:, :2] += np.cumsum(steps_m, axis=1)
    at[..., 2] = geometry.wrap(at[..., 2] + turned)
    return at


def along_road(
    road: FrenetFrame, at_m: Array, beside_m: Array, poses: Array, speeds_mps: Array, driven_m: Array
) -> Array:
    """(A, T, 3) poses after distances (A, T) along the road, in its direction or against it. The lateral offset changes
    at its present rate, which decays."""
    turned = geometry.wrap(poses[:, 2] - np.interp(at_m, road.at, road.heading))  # (A,) from the road's heading
    ways = np.where(np.cos(turned) > 0.0, 1.0, -1.0)
    lanes = road.to_cartesian(np.stack(np.broadcast_arrays(road.at, beside_m[:, None]), axis=-1))
    lengths_m = np.zeros(lanes.shape[:2])
    np.cumsum(np.hypot(*np.moveaxis(np.diff(lanes, axis=1), -1, 0)), axis=1, out=lengths_m[:, 1:])
    along_m = np.empty_like(driven_m)
    for who in range(len(poses)):  # distances along the agent's lane to distances along the road
        lane_m = np.interp(at_m[who], road.at, lengths_m[who]) + ways[who] * driven_m[who]
        beyond_m = lane_m - np.clip(lane_m, 0.0, lengths_m[who, -1])
        along_m[who] = np.interp(lane_m, lengths_m[who], road.at) + beyond_m
    lasting_s = agent_motion.decayed(driven_m / np.maximum(speeds_mps, ARC_MIN_MPS)[:, None], DRIFT_DECAY_S)
    aside_m = beside_m[:, None] + (speeds_mps * np.sin(turned))[:, None] * lasting_s
    places = road.to_cartesian(np.stack([along_m, aside_m], axis=-1))
    headings = np.interp(along_m, road.at, road.heading)
    at = np.empty((*driven_m.shape, 3))
    at[..., :2] = poses[:, None, :2] + places - places[:, :1]
    realigned = geometry.wrap(turned - np.where(ways > 0.0, 0.0, np.pi))[:, None] * lasting_s / DRIFT_DECAY_S
    at[..., 2] = geometry.wrap(poses[:, 2:] + headings - headings[:, :1] - realigned)
    return at


def project_to_road(road: FrenetFrame, poses: Array) -> tuple[Array, Array, Array]:
    """Where poses (A, 3) are on a road: metres along it, metres to its left, and the cosine of their angle to it."""
    away = ((poses[:, None, :2] - road.places) ** 2).sum(axis=-1)
    nearest = away.argmin(axis=1)
    offset = geometry.rotate(poses[:, :2] - road.places[nearest], -road.heading[nearest])
    at = road.at[nearest] + offset[:, 0]
    return at, offset[:, 1], np.cos(poses[:, 2] - np.interp(at, road.at, road.heading))
