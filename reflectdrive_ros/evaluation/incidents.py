"""Incidents of a closed-loop drive with the seconds before them: what the ego did, planned and was surrounded by."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import shapely

from ..core import geometry, kinematics
from ..core.domain import Array, StepReport, Verdict
from ..scoring import drivable
from ..scoring.simulate import DT_S
from ..sim import incidents
from ..sim.drive_log import Event
from ..sim.ego import ego_at_speed
from ..sim.world import World

BEFORE_S = 4.0
RANGE_M = 45.0  # of what is kept around the ego
KINDS = ("collision", "off_road", "red_light")


@dataclass(frozen=True, eq=False)
class Moment:
    """One instant before an incident, map frame."""

    time_s: float
    pose: Array  # (3,) rear axle
    speed_mps: float
    actors: Array  # (A, 5) x, y, heading of the box centre, length, width
    plan: Array  # (T, 3) the plan that was driven
    source: str  # of the plan: the planner, or the engine's fallback
    verdict: str  # on the planner's own plan


@dataclass(frozen=True, eq=False)
class Incident:
    """A collision at fault, a departure from the road, or a red light crossed."""

    planner: str
    town: str
    seed: int
    kind: str  # of KINDS
    time_s: float
    text: str
    severity: float  # larger is worse: impact and speed in m/s, or seconds off the road
    causes: tuple[str, ...]  # what the record shows, most specific first
    moments: tuple[Moment, ...]  # 0.1 s apart, the last is the incident
    route: Array  # (L, 2)
    road: tuple[Array, ...]  # rings (V, 2)


def is_fault(event: Event) -> bool:
    """Whether an event is one of KINDS, and of collisions one at fault."""
    return event.kind in KINDS and not (event.kind == "collision" and event.text.endswith("not at fault"))


class IncidentRecorder:
    """Keeps the last seconds of a drive and makes incidents of its events."""

    def __init__(self, world: World, planner: str) -> None:
        self._world, self._planner = world, planner
        self._moments: deque[Moment] = deque(maxlen=round(BEFORE_S / DT_S) + 1)
        self._found: list[Incident] = []

    def put(self, time_s: float, report: StepReport, events: Sequence[Event]) -> None:
        """The instant after a step that followed `report.plan`, and the events of this step."""
        world = self._world
        actors, pose = world.snapshot.actors, world.ego.map_from_ego
        near = np.flatnonzero(np.hypot(*(actors.poses[:, :2] - pose[:2]).T) < RANGE_M)
        self._moments.append(
            Moment(
                time_s,
                pose,
                world.ego.speed_mps,
                np.concatenate([actors.poses[near], actors.sizes[near, :2]], axis=1),
                geometry.compose(report.plan.map_from_ego, report.plan.trajectory.poses),
                report.source.name,
                Verdict(report.verdict).name,
            )
        )
        for event in events:
            if is_fault(event):
                self._found.append(self._incident(event))

    def incidents(self) -> tuple[Incident, ...]:
        return tuple(self._found)

    def _incident(self, event: Event) -> Incident:
        world, now = self._world, self._moments[-1]
        window = shapely.box(*(now.pose[:2] - RANGE_M), *(now.pose[:2] + RANGE_M))
        road = shapely.intersection(world.space, window)
        return Incident(
            self._planner,
            world.road_map.name,
            world.options.seed,
            event.kind,
            event.time_s,
            event.text,
            severity=now.speed_mps + {"collision": 100.0, "red_light": 50.0, "off_road": 0.0}[event.kind],
            causes=tuple(self._causes(event)),
            moments=tuple(self._moments),
            route=geometry.compose(now.pose, world.observation().route)[:, :2],
            road=tuple(
                np.asarray(ring.coords) for part in _polygons(road) for ring in (part.exterior, *part.interiors)
            ),
        )

    def _causes(self, event: Event) -> list[str]:
        """What the record shows about an incident, by comparison with the route and with earlier plans."""
        world, now = self._world, self._moments[-1]
        sentences = []
        route = world.observation().route  # (L, 3) ego frame
        (route_m,), (lateral_m,) = geometry.project(route[:, :2], np.zeros((1, 2)))
        on_route = geometry.compose(now.pose, geometry.sample(route[:, :2], np.array([route_m]))[0])
        if event.kind == "off_road":
            if incidents.off_road(ego_at_speed(on_route, 0.0), world.space, world.vehicle):
                sentences.append("a car on the line of the route itself would be off the road here")
            ahead_s = self._planned_off_road_s()
            sentences.append(
                f"planned {ahead_s:.1f} s before: the plan itself leaves the road"
                if ahead_s > 0.0
                else "not planned: the plan stays on the road, the car does not follow it"
            )
        fallbacks = sum(moment.source != "PLANNER" for moment in self._moments)
        if fallbacks:
            sentences.append(f"{fallbacks} of the last {len(self._moments)} plans were the engine's fallback")
        unsafe = sum(moment.verdict not in ("OK", "LATE") for moment in self._moments)
        if unsafe:
            sentences.append(f"the guard refused {unsafe} of the last {len(self._moments)} plans")
        sentences.append(f"{abs(lateral_m):.1f} m beside the route at {now.speed_mps:.1f} m/s")
        return sentences

    def _planned_off_road_s(self) -> float:
        """How long before the last instant a plan that was driven left the road within the next second; 0 if none."""
        vehicle, last = self._world.vehicle, self._moments[-1]
        size = np.array([vehicle.length_m, vehicle.width_m])
        for moment in list(self._moments)[:-1]:
            center = kinematics.box_centres(moment.plan[:10], vehicle)
            if not drivable.contains(self._world.space, geometry.box_corners(center, size)).all():
                return last.time_s - moment.time_s
        return 0.0


def _polygons(area: object) -> list[shapely.Polygon]:
    return [part for part in shapely.get_parts(area) if isinstance(part, shapely.Polygon)]
