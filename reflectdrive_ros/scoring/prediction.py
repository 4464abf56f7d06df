"""Predicts agents: those that drive along the ego's road, in either direction, stay on it.

At constant velocity every agent leaves the road at the next bend: an oncoming bus seems to cross the ego's lane, and a
lead vehicle in a curve seems to leave the road. The ego knows one road, its route. An agent on it or in an adjacent
lane, with a heading along or against it, keeps its lateral offset and its speed. All other agents continue straight on.
Predicted paths of the observation take precedence.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from .. import geometry, kinematics
from ..domain import Agents, Array, Forecast, ForecastSource
from .frenet import FrenetFrame

BESIDE_M = 4.0  # the lane beside the ego's; agents further away are on another road, a pavement or a car park
ALONG = np.cos(np.radians(10.0))  # agents at a larger angle to the road leave it or change lanes
MOVING_MPS = 0.5


def forecast(others: Agents, road: FrenetFrame | None, dt_s: float, steps: int) -> Forecast:
    """Agents at 0, 1, .. `steps` intervals: as `kinematics.forecast`, but agents along the road follow it."""
    straight_on = kinematics.forecast(others, dt_s, steps)
    if road is None or len(others) == 0 or straight_on.source is not ForecastSource.CONSTANT_VELOCITY:
        return straight_on
    at, beside, facing = project_to_road(road, others.poses)
    speed_mps = np.hypot(*others.velocities_mps.T)
    within = (at > road.at[0]) & (at < road.at[-1])
    in_lane = within & (np.abs(beside) <= BESIDE_M) & (np.abs(facing) >= ALONG) & (speed_mps > MOVING_MPS)
    if not in_lane.any():
        return straight_on
    poses, driven_m = straight_on.poses.copy(), dt_s * np.arange(steps + 1)
    for who in np.flatnonzero(in_lane):
        lane = road.to_cartesian(np.stack([road.at, np.full(len(road.at), beside[who])], axis=-1))
        lane = lane if facing[who] > 0.0 else lane[::-1]
        (begins_m,), _ = geometry.project(lane, others.poses[who : who + 1, :2])
        way = geometry.sample(lane, begins_m + speed_mps[who] * driven_m)
        poses[who, :, :2] = others.poses[who, :2] + way[:, :2] - way[0, :2]
        poses[who, :, 2] = geometry.wrap(others.poses[who, 2] + way[:, 2] - way[0, 2])
    return replace(straight_on, poses=poses, source=ForecastSource.ALONG_ROAD)


def project_to_road(road: FrenetFrame, poses: Array) -> tuple[Array, Array, Array]:
    """Where poses (A, 3) are on a road: metres along it, metres to its left, and the cosine of their angle to it."""
    away = ((poses[:, None, :2] - road.places) ** 2).sum(axis=-1)
    nearest = away.argmin(axis=1)
    offset = geometry.rotate(poses[:, :2] - road.places[nearest], -road.heading[nearest])
    at = road.at[nearest] + offset[:, 0]
    return at, offset[:, 1], np.cos(poses[:, 2] - np.interp(at, road.at, road.heading))
