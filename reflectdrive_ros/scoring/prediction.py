"""Predicts agents: those that drive along the ego's road, in either direction, stay on it.

At constant velocity every agent leaves the road at the next bend: an oncoming bus seems to cross the ego's lane, and a
lead vehicle in a curve seems to leave the road. The ego knows one road, its route. An agent on its lanes, with a
heading along or against it, follows it; its speed across the road decays. Other vehicles follow the lanes of the map
(`lane_following`) where these are known. All other agents continue straight on, or along an arc whose curvature decays
if their yaw rates are known. Predicted paths of the observation take precedence.

Distances along both: an acceleration decays exponentially. Agents behind a lead also adapt their speed to it, the
stronger the closer they are. Drivers' reaction to a lead is part of their present acceleration, so that the larger of
both counts where they have the same sign. Leads adapt to their own leads in the same rollout.

A vehicle that starts from the roadside, between the ego's lane and the next, pulls out into the ego's lane.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import reflectdrive_kernels as kernels

from ..core import agent_motion, kinematics
from ..core.domain import AgentKind, Agents, Array, Forecast, ForecastSource, LanePolylines
from .frenet import FrenetFrame
from .lane_following import ARC_MIN_MPS, LaneNetwork

LANE_OFFSET_MAX_M = 4.0  # the lane next to the ego's
ALONG = np.cos(np.radians(10.0))  # agents there at a larger angle to the road leave it
CARRIAGEWAY_M = 25.0  # all lanes of a motorway; agents further away are on another road
CARRIAGEWAY_ALONG = np.cos(np.radians(3.0))  # agents beyond LANE_OFFSET_MAX_M at a larger angle are on another road
TURN_DECAY_S = 1.2  # of yaw rates, at the present speed
DRIFT_DECAY_S = 0.7  # of the speed across the road
STEP_S = 0.2  # of the rollout
SPEED_UP_DECAY_S = 1.2
SLOW_DOWN_DECAY_S = 2.0  # who brakes goes on braking for a while
MOVING_MPS = 0.5
PULL_OUT_OFFSET_M = (1.2, 2.9)  # from the middle of the ego's lane: parked beside it, not in the middle of the next
PULL_OUT_SPEED_MPS = (0.3, 3.0)
PULL_OUT_MIN_MPS2 = 0.5  # who accelerates less may be a parked car with a noisy speed
PULL_OUT_MPS2 = 1.2  # kept up for PULL_OUT_DECAY_S, or the present acceleration, if that is larger
PULL_OUT_DECAY_S = 10.0
PULL_OUT_M = 7.0  # driven until it is in the middle of the lane
LANES_REACH_M = 60.0  # from the ego; agents further away follow no lanes
LEAD_REACH_M = 80.0
SAME_WAY = 0.5  # cosine between the headings of an agent and its lead; a standing lead may have any heading
PASSES_M = 0.3  # boxes that overlap less in width pass each other
ADAPTION_PER_S = 1.2  # of the difference in speed to the lead, without a gap
ADAPTION_GAP_M = 10.0  # at this gap it is halved
ADAPTION_DELAY_S = 0.25  # its time constant: the present acceleration has the reaction until now
FOLLOWING_RANGE_MPS2 = (-4.0, 1.0)
LEAD_GAP_M = 0.5  # behind a standing lead


def forecast(
    others: Agents, road: FrenetFrame | None, dt_s: float, steps: int, lanes: LanePolylines | None = None
) -> Forecast:
    """Agents at 0, 1, .. `steps` intervals: as `kinematics.forecast`, but agents along the road follow it, other
    vehicles the lanes of the map, known accelerations and yaw rates act for a while, and no agent drives through its
    lead."""
    if len(others) == 0 or others.predicted_poses is not None:
        return kinematics.forecast(others, dt_s, steps)
    speeds_mps = np.hypot(*others.velocities_mps.T)
    road_coordinates = find_on_road(road, others)
    leads = find_leads(others, *road_coordinates)
    still = np.zeros(len(others))
    accelerations = still if others.accelerations_mps2 is None else others.accelerations_mps2
    pulling_out = find_pulling_out(others, road_coordinates, speeds_mps, accelerations)
    in_lane = road_coordinates.on_road & (speeds_mps > MOVING_MPS) | pulling_out
    yaw_rates = still if others.yaw_rates_rps is None else others.yaw_rates_rps
    changes = (accelerations != 0.0) | (yaw_rates != 0.0) | np.isfinite(leads.gaps_m)
    on_other_lanes = np.zeros(0, np.int64) if lanes is None else find_on_other_lanes(others, speeds_mps, in_lane)
    if not (in_lane | changes).any() and not len(on_other_lanes):
        return kinematics.forecast(others, dt_s, steps)
    times_s = dt_s * np.arange(steps + 1)
    driven_m = driven_distances(speeds_mps, accelerations, leads, times_s, pulling_out)
    poses = kinematics.straight_on(others, times_s)
    free = np.flatnonzero(changes & ~in_lane)
    poses[free] = _along_arcs(others.poses[free], others.velocities_mps[free], yaw_rates[free], driven_m[free])
    if road is not None and in_lane.any():
        on_road = road_coordinates.at_m[in_lane], road_coordinates.lateral_m[in_lane]
        poses[in_lane] = along_road(road, *on_road, others.poses[in_lane], speeds_mps[in_lane], driven_m[in_lane])
        for row in np.flatnonzero(pulling_out):
            poses[row] = pull_out(road, road_coordinates.at_m[row], road_coordinates.lateral_m[row], driven_m[row])
    if lanes is not None and len(on_other_lanes):
        rows = on_other_lanes
        motion = others.poses[rows], speeds_mps[rows], yaw_rates[rows], driven_m[rows, -1]
        for row, path in zip(rows, LaneNetwork.of(lanes).paths(*motion), strict=True):
            if path is not None:
                at_m, lateral_m, _ = project_to_road(path, others.poses[row, None])
                (poses[row],) = along_road(
                    path, at_m, lateral_m, others.poses[row, None], speeds_mps[row, None], driven_m[row, None]
                )
    has_motion = others.accelerations_mps2 is not None or others.yaw_rates_rps is not None
    source = ForecastSource.ACCELERATION if has_motion else ForecastSource.ALONG_ROAD
    poses.flags.writeable = False  # so that no copy is kept
    return Forecast(poses, others.sizes, dt_s, source)


class RoadCoordinates(NamedTuple):
    """Where agents are on the ego's road; 0 if it is unknown."""

    at_m: Array  # (A,) along it
    lateral_m: Array  # (A,) to its left
    facing: Array  # (A,) cosine of the angle to it
    on_road: Array  # (A,) bool, whether the agent is on one of its lanes, with a heading along or against it


def find_on_road(road: FrenetFrame | None, others: Agents) -> RoadCoordinates:
    """Places of agents on the ego's road; they are on it from its first to its last point."""
    if road is None:
        unknown = np.zeros(len(others))
        return RoadCoordinates(unknown, unknown, unknown, np.zeros(len(others), bool))
    at_m, lateral_m, facing = project_to_road(road, others.poses)
    away_m, straight = np.abs(lateral_m), np.abs(facing)
    near = (away_m <= LANE_OFFSET_MAX_M) & (straight >= ALONG)
    is_on_carriageway = (away_m <= CARRIAGEWAY_M) & (straight >= CARRIAGEWAY_ALONG)
    return RoadCoordinates(
        at_m, lateral_m, facing, (near | is_on_carriageway) & (at_m > road.at[0]) & (at_m < road.at[-1])
    )


def find_pulling_out(others: Agents, road: RoadCoordinates, speeds_mps: Array, accelerations_mps2: Array) -> Array:
    """(A,) bool, vehicles that start from the side of the ego's lane, in its direction."""
    (least_m, most_m), (least_mps, most_mps) = PULL_OUT_OFFSET_M, PULL_OUT_SPEED_MPS
    away_m = np.abs(road.lateral_m)
    starts = (speeds_mps >= least_mps) & (speeds_mps <= most_mps) & (accelerations_mps2 >= PULL_OUT_MIN_MPS2)
    is_beside = road.on_road & (road.facing > 0.0) & (away_m >= least_m) & (away_m <= most_m)
    return np.asarray(starts & is_beside & (others.kinds == AgentKind.VEHICLE))


def find_on_other_lanes(others: Agents, speeds_mps: Array, in_lane: Array) -> Array:
    """Rows of the moving vehicles and cyclists near the ego that are not on its road."""
    is_near = np.hypot(*others.poses[:, :2].T) <= LANES_REACH_M
    return np.flatnonzero(is_near & ~in_lane & (speeds_mps > MOVING_MPS) & (others.kinds != AgentKind.PEDESTRIAN))


# --- how far along their paths ----------------------------------------------------------------------------------------


class Leads(NamedTuple):
    """The agent ahead of each agent on its path."""

    rows: Array  # (A,) its row; meaningless without a lead
    gaps_m: Array  # (A,) between the boxes, infinite without a lead


def find_leads(others: Agents, at_m: Array, lateral_m: Array, facing: Array, on_road: Array) -> Leads:
    """The nearest agent ahead of each moving agent whose box would be hit by driving on.

    Agents on the ego's road (`on_road` (A,) bool) are compared along it: metres along and to the left of it (A,), and
    the cosine `facing` (A,) of their angle to it. All others are compared straight ahead.
    """
    follows = others.kinds != AgentKind.PEDESTRIAN
    rows, gaps_m = np.empty(len(others), np.int64), np.empty(len(others))
    users = (others.poses, np.hypot(*others.velocities_mps.T), others.sizes, follows, at_m, lateral_m, facing, on_road)
    kernels.find_leads(*users, (LEAD_REACH_M, SAME_WAY, PASSES_M, MOVING_MPS), rows, gaps_m)
    return Leads(rows, gaps_m)


def driven_distances(
    speeds_mps: Array, accelerations_mps2: Array, leads: Leads, times_s: Array, pulling_out: Array
) -> Array:
    """(A, T) metres driven at ascending times (T,), never backwards; who stands stays, who pulls out gains speed."""
    steps = max(int(np.ceil(times_s[-1] / STEP_S - 1e-9)), 1)
    decay_s = np.where(accelerations_mps2 < 0.0, SLOW_DOWN_DECAY_S, SPEED_UP_DECAY_S)
    decay_s = np.where(pulling_out, PULL_OUT_DECAY_S, decay_s)[:, None]
    accelerations_mps2 = np.where(pulling_out, np.maximum(accelerations_mps2, PULL_OUT_MPS2), accelerations_mps2)
    lasting_s = agent_motion.decayed(STEP_S * np.arange(steps + 1), decay_s)
    own_mps2 = accelerations_mps2[:, None] * np.diff(lasting_s, axis=1) / STEP_S  # mean over each step
    driven_m = np.empty((len(speeds_mps), len(times_s)))
    kernels.follow_leads(
        speeds_mps,
        own_mps2,
        leads.rows,
        leads.gaps_m,
        times_s,
        (STEP_S, ADAPTION_PER_S, ADAPTION_GAP_M, ADAPTION_DELAY_S, *FOLLOWING_RANGE_MPS2, LEAD_GAP_M),
        driven_m,
    )
    return driven_m


# --- where they are then ----------------------------------------------------------------------------------------------


def _along_arcs(poses: Array, velocities_mps: Array, yaw_rates_rps: Array, driven_m: Array) -> Array:
    """(A, T, 3) poses after distances (A, T) in the direction of the velocity, on arcs whose curvature decays."""
    future_poses = np.empty((*driven_m.shape, 3))
    kernels.along_arcs(poses, velocities_mps, yaw_rates_rps, driven_m, TURN_DECAY_S, ARC_MIN_MPS, future_poses)
    return future_poses


def along_road(
    road: FrenetFrame, at_m: Array, lateral_m: Array, poses: Array, speeds_mps: Array, driven_m: Array
) -> Array:
    """(A, T, 3) poses after distances (A, T) along the road, in its direction or against it. The lateral offset changes
    at its present rate, which decays."""
    future_poses = np.empty((*driven_m.shape, 3))
    motion = (at_m, lateral_m, poses, speeds_mps, driven_m)
    kernels.along_road(road.for_kernels, *motion, DRIFT_DECAY_S, ARC_MIN_MPS, future_poses)
    return future_poses


def pull_out(road: FrenetFrame, at_m: float, lateral_m: float, driven_m: Array) -> Array:
    """(T, 3) poses after distances (T,) along the road, from an offset to its middle."""
    share = np.clip(driven_m / PULL_OUT_M, 0.0, 1.0)
    along_m, offset_m = at_m + driven_m, lateral_m * (1.0 - share**2 * (3.0 - 2.0 * share))
    slope = -lateral_m * 6.0 * share * (1.0 - share) / PULL_OUT_M
    heading = np.interp(along_m, road.at, road.heading) + np.arctan(slope)
    return np.column_stack([road.to_cartesian(np.column_stack([along_m, offset_m])), heading])


def project_to_road(road: FrenetFrame, poses: Array) -> tuple[Array, Array, Array]:
    """Where poses (A, 3) are on a road: metres along it, metres to its left, and the cosine of their angle to it."""
    at_m, lateral_m, facing = np.empty((3, len(poses)))
    kernels.project_to_road(road.for_kernels, poses, at_m, lateral_m, facing)
    return at_m, lateral_m, facing
