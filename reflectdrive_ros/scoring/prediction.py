"""Predicts agents: those that drive along the ego's road, in either direction, stay on it.

At constant velocity every agent leaves the road at the next bend: an oncoming bus seems to cross the ego's lane, and a
lead vehicle in a curve seems to leave the road. The ego knows one road, its route. An agent on its lanes, with a
heading along or against it, follows it; its speed across the road decays. All other agents continue straight on, or
along an arc whose curvature decays if their yaw rates are known. The distances along both come from `following`.
Predicted paths of the observation take precedence.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np
import reflectdrive_kernels as kernels

from .. import kinematics
from ..domain import Agents, Array, Forecast, ForecastSource
from . import following
from .following import MOVING_MPS
from .frenet import FrenetFrame

BESIDE_M = 4.0  # the lane beside the ego's
ALONG = np.cos(np.radians(10.0))  # agents there at a larger angle to the road leave it
CARRIAGEWAY_M = 25.0  # all lanes of a motorway; agents further away are on another road
CARRIAGEWAY_ALONG = np.cos(np.radians(3.0))  # agents beyond BESIDE_M at a larger angle are on another road
TURN_DECAY_S = 1.2  # of yaw rates, at the present speed
DRIFT_DECAY_S = 0.7  # of the speed across the road
ARC_MIN_MPS = 1.0  # slower agents turn as at this speed


def forecast(others: Agents, road: FrenetFrame | None, dt_s: float, steps: int) -> Forecast:
    """Agents at 0, 1, .. `steps` intervals: as `kinematics.forecast`, but agents along the road follow it, known
    accelerations and yaw rates act for a while, and no agent drives through its lead."""
    straight_on = kinematics.forecast(others, dt_s, steps)
    if len(others) == 0 or straight_on.source is not ForecastSource.CONSTANT_VELOCITY:
        return straight_on
    speeds_mps = np.hypot(*others.velocities_mps.T)
    places = find_on_road(road, others)
    leads = following.find_leads(others, *places)
    in_lane = places.on_road & (speeds_mps > MOVING_MPS)
    still = np.zeros(len(others))
    accelerations = still if others.accelerations_mps2 is None else others.accelerations_mps2
    yaw_rates = still if others.yaw_rates_rps is None else others.yaw_rates_rps
    changes = (accelerations != 0.0) | (yaw_rates != 0.0) | np.isfinite(leads.gaps_m)
    if not (in_lane | changes).any():
        return straight_on
    driven_m = following.distances(speeds_mps, accelerations, leads, dt_s * np.arange(steps + 1))
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


def _along_arcs(poses: Array, velocities_mps: Array, yaw_rates_rps: Array, driven_m: Array) -> Array:
    """(A, T, 3) poses after distances (A, T) in the direction of the velocity, on arcs whose curvature decays."""
    found = np.empty((*driven_m.shape, 3))
    kernels.along_arcs(poses, velocities_mps, yaw_rates_rps, driven_m, TURN_DECAY_S, ARC_MIN_MPS, found)
    return found


def along_road(
    road: FrenetFrame, at_m: Array, beside_m: Array, poses: Array, speeds_mps: Array, driven_m: Array
) -> Array:
    """(A, T, 3) poses after distances (A, T) along the road, in its direction or against it. The lateral offset changes
    at its present rate, which decays."""
    found = np.empty((*driven_m.shape, 3))
    motion = (at_m, beside_m, poses, speeds_mps, driven_m)
    kernels.along_road(*road.for_kernels, *motion, DRIFT_DECAY_S, ARC_MIN_MPS, found)
    return found


def project_to_road(road: FrenetFrame, poses: Array) -> tuple[Array, Array, Array]:
    """Where poses (A, 3) are on a road: metres along it, metres to its left, and the cosine of their angle to it."""
    at_m, beside_m, facing = np.empty((3, len(poses)))
    kernels.project_to_road(*road.for_kernels, poses, at_m, beside_m, facing)
    return at_m, beside_m, facing
