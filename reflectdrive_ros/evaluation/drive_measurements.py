"""Measurements of a drive in closed loop of which `drive_score` makes its score; each is of one drive alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import shapely

from ..core import geometry, kinematics
from ..core.config import VehicleConfig
from ..core.domain import Agents, Array, EgoState
from ..maps.roads import RoadMap
from ..scoring import drivable, metrics
from ..scoring.contacts import SAMPLES, AgentTracks
from ..scoring.metrics import EgoAreas
from ..scoring.simulate import DT_S, STATE_SIZE, STEPS, VX
from ..sim import incidents, local_map
from ..sim.drive_log import Event
from ..sim.traffic.actors import Actors
from .incidents import is_fault

TTC_RANGE_M = 60.0  # further away no road user of a town is met within a second
DIRECTION_EVERY_S = 3.0  # windows of 4 s that begin so often contain each second of a drive
WRONG_DIRECTION_RAD = np.pi / 2  # turned further against a lane, the car drives against it
LANE_MARGIN_M = 0.3  # its centre may be this far out of the lanes of its direction, as a corner off the road


@dataclass(frozen=True)
class DriveMeasurements:
    """Of one drive, at the instants after its steps of 0.1 s."""

    progress_m: float  # along the route until the car left it for good
    faultless_progress_m: float  # the part before the first contact at fault, departure from the road or red light
    plan_progress_m: float  # sum over the scored plans, one each second, of their progress in 4 s ..
    reference_progress_m: float  # .. and of that of the reference planner from the same states
    off_road_depth_m: float  # the furthest that a corner of the car was off the drivable space
    direction: float  # 1, 0.5 or 0 by the distance against the direction of the lanes within a second
    overspeed_m: float  # integral over time of the speed above the limit
    ttc_steps: tuple[int, ...]  # steps after which the time to collision was below the bound


class MeasurementRecorder:
    """Watches a drive step by step."""

    def __init__(self, road_map: RoadMap, space: object, vehicle: VehicleConfig) -> None:
        """`space`: the drivable space, of `scoring.drivable.union_polygons`."""
        self._road_map, self._space, self._vehicle = road_map, space, vehicle
        self._poses: list[Array] = []  # of the rear axle
        self._progress_m = self._faultless_progress_m = 0.0
        self._has_left_route = self._has_fault = False
        self._plan_progress_m = self._reference_progress_m = 0.0
        self._overspeed_m = 0.0
        self._ttc_steps: list[int] = []

    def put_plan(self, progress_m: float, reference_progress_m: float) -> None:
        """A scored plan and the reference planner's from the same state."""
        self._plan_progress_m += progress_m
        self._reference_progress_m += reference_progress_m

    def put(
        self, ego: EgoState, actors: Actors, speed_limit_mps: float, progress_m: float, events: Sequence[Event]
    ) -> None:
        """The instant after a step and the events of the step. `progress_m` is that of the whole drive."""
        self._poses.append(ego.map_from_ego)
        self._has_left_route |= any(event.kind == "off_route" for event in events)
        if not self._has_left_route:
            self._progress_m = progress_m
        self._has_fault |= any(map(is_fault, events))
        if not self._has_fault:
            self._faultless_progress_m = self._progress_m
        self._overspeed_m += max(ego.speed_mps - speed_limit_mps, 0.0) * DT_S
        if is_ttc_below_bound(ego, actors, self._road_map, self._vehicle):
            self._ttc_steps.append(len(self._poses))

    def measurements(self) -> DriveMeasurements:
        """Of the steps up to now, one or more."""
        centers = kinematics.box_centres(np.array(self._poses), self._vehicle)
        return DriveMeasurements(
            self._progress_m,
            self._faultless_progress_m,
            self._plan_progress_m,
            self._reference_progress_m,
            off_road_depth_m(centers, self._space, self._vehicle),
            direction_score(centers, self._road_map),
            self._overspeed_m,
            tuple(self._ttc_steps),
        )


def is_ttc_below_bound(ego: EgoState, actors: Actors, road_map: RoadMap, vehicle: VehicleConfig) -> bool:
    """Whether the car meets a road user within 0.9 s if all go straight on at their speeds: the score's TTC at one
    instant. Never while it stands."""
    near = np.flatnonzero(np.hypot(*(actors.poses[:, :2] - ego.map_from_ego[:2]).T) < TTC_RANGE_M)
    if not len(near):
        return False
    poses = geometry.compose(geometry.invert(ego.map_from_ego), actors.poses[near])
    velocities_mps = actors.speeds_mps[near, None] * np.stack([np.cos(poses[:, 2]), np.sin(poses[:, 2])], axis=1)
    agents = Agents(poses, velocities_mps, actors.sizes[near, :2], actors.kinds[near])
    tracks = AgentTracks.of_forecast(kinematics.forecast(agents, DT_S, SAMPLES - 1), agents.kinds)
    states = np.zeros((1, STEPS + 1, STATE_SIZE))  # only the first is judged
    states[..., VX:] = ego.motion
    center = kinematics.box_centres(states[..., :3], vehicle)

    def is_below(areas: EgoAreas) -> bool:
        return not metrics.time_to_collision(states, center, vehicle, tracks, areas, last_step=0)[0]

    between_lanes = EgoAreas(*[np.ones((1, STEPS + 1), bool)] * 5)  # where road users alongside count, too
    if not is_below(between_lanes):
        return False
    around = local_map.areas(road_map, ego.map_from_ego, (), incidents.NEAR_M)  # takes some milliseconds
    size = np.array([vehicle.length_m, vehicle.width_m])
    return is_below(metrics.ego_areas(center, size, around, None, vehicle.rear_axle_to_center_m))


def off_road_depth_m(centers: Array, space: object, vehicle: VehicleConfig) -> float:
    """The largest distance of a corner of the box at poses (T, 3) to the drivable space, 0 on it."""
    corners = geometry.box_corners(centers, np.array([vehicle.length_m, vehicle.width_m])).reshape(-1, 2)
    outside = corners[~drivable.contains(space, corners)]
    return float(shapely.distance(space, shapely.points(outside)).max(initial=0.0))


def direction_score(centers: Array, road_map: RoadMap) -> float:
    """1, 0.5 or 0: the score's driving direction over box centres (T, 3), 0.1 s apart, map frame.

    Counted is the way in lanes against which the car is turned; junctions do not count.
    """
    length = STEPS + 1
    missing = max(length - len(centers), 0)
    centers = np.concatenate([centers, np.repeat(centers[-1:], missing, axis=0)])
    firsts = np.append(
        np.arange(0, len(centers) - length, round(DIRECTION_EVERY_S / DT_S), dtype=int), len(centers) - length
    )
    windows = firsts[:, None] + np.arange(length)
    wrong = is_against_lanes(centers, road_map)[windows]
    others = np.zeros_like(wrong)
    areas = EgoAreas(others, others, wrong, others, others)
    return float(metrics.driving_direction(centers[windows], areas, spare_intersections=False).min())


def is_against_lanes(poses: Array, road_map: RoadMap) -> Array:
    """(T,) bool, whether poses (T, 3) are in lanes of the opposite direction, and more than LANE_MARGIN_M from others.

    Connectors across junctions are no lanes here.
    """
    lanes = [
        (part, lane.lane.centerline)
        for lane in road_map.lanes.values()
        if lane.across_junction is None
        for part in lane.lane.polygons
    ]
    at_pose, at_lane = shapely.STRtree([part for part, _ in lanes]).query(
        shapely.points(poses[:, :2]), predicate="dwithin", distance=LANE_MARGIN_M
    )
    along, against = np.zeros(len(poses), bool), np.zeros(len(poses), bool)
    for index in np.unique(at_lane):
        centerline = lanes[index][1]
        inside = at_pose[at_lane == index]
        positions_m, _ = geometry.project(centerline, poses[inside, :2])
        turned = geometry.wrap(geometry.sample(centerline, positions_m)[:, 2] - poses[inside, 2])
        is_opposite = np.abs(turned) > WRONG_DIRECTION_RAD
        against[inside[is_opposite]] = True
        along[inside[~is_opposite]] = True
    return against & ~along
