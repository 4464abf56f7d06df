"""Live traffic: SUMO moves all road users, and their states are read after each step.

All arrays have the rows of one `Roster`, so that a road user keeps its row. Objects beside the lanes and pedestrians
between parked cars are modelled here (`kerbside.py`, `events.py`); SUMO does not contain them.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import numpy as np

from ...core import geometry
from ...core.domain import Array
from ...infra.errors import UserError
from ...maps.roads import RoadMap, RoadType
from ..network.routing import random_walk
from ..sumo_library import libsumo
from .actors import Actors, Lamp, Shape, Snapshot
from .demand import ROUTE_M, Demand
from .events import EGO, STEP_S, DriverStates, Events
from .motion import PedestrianMotion, VehicleMotion

LATERAL_RESOLUTION_M = 0.8  # bicycles and cars share a lane and pass each other
EGO_SIZE = (5.176, 2.297, 1.777)
CURVE_MPS2 = 3.0  # lateral acceleration; SUMO alone turns at the limit of the tyres
CURVE_SPAN_M = 5.0  # a car turns over this length
EGO_CLEARANCE_M = 15.0  # no other vehicle is closer when the ego is inserted
ENTRY_DEADLINE_S = 5.0  # vehicles without room to start until then are removed
MAINTENANCE_S = 2.0  # period of checks of routes and stuck vehicles
STUCK_S = 90.0
LEVEL_M = 3.0  # road users that are this much higher or lower than the ego are on another road, above or below
MAX_CLIMB_M = 0.6  # of the ego in one step; a larger change is that of another road below or above it ..
CLIMB_STEPS = 20  # .. until it has lasted this long
FORCED_MERGE_S = 8.0  # a vehicle that has waited this long at the end of a lane is forced to merge
MIN_EDGES_LEFT = 5  # a shorter route is extended
LAMPS: Mapping[str, Lamp] = {
    "r": Lamp.RED,
    "s": Lamp.RED,
    "u": Lamp.AMBER,
    "y": Lamp.AMBER,
    "g": Lamp.GREEN,
    "G": Lamp.GREEN,
}
RIGHT_BIT, LEFT_BIT, BRAKE_BIT = 1, 2, 8  # of SUMO's vehicle signals


class TrafficError(UserError, RuntimeError):
    """SUMO refused a command or failed; the message names the network, the seed and the time."""


@dataclass(frozen=True, eq=False)
class Roster:
    """All road users of a run, in the order of all arrays: drivers, pedestrians, mid-block pedestrians, doors, static
    objects.
    """

    ids: Array  # (N,) int64
    shapes: Array  # (N,) Shape
    sizes: Array  # (N, 3) m
    drivers: int  # the first so many
    walkers: int  # the next so many


class Simulation:
    """One run of SUMO; a process can hold one at a time. Use it as a context manager, or close it."""

    _running = False

    def __init__(self, road_map: RoadMap, demand: Demand, seed: int, step_s: float = STEP_S) -> None:
        self._sumo = libsumo()
        if Simulation._running:
            raise TrafficError("traffic is running in this process already; close it first")
        self.road_map = road_map
        self.step_s = step_s
        self._seed = seed
        self._generator = np.random.default_rng([seed, 42])
        self._events = Events(road_map, demand, np.random.default_rng([seed, 43]), step_s)
        self._counts = dict.fromkeys(("collisions", "removed_stuck", "without_room", "left_the_map"), 0)
        self._states = DriverStates((), (), ())
        self._kerbside = demand.kerbside
        self._cycling = demand.cycling
        self._with_ego = False
        self.time_s = 0.0
        self._steps = 0
        self._lane_keys = road_map.by_sumo_id
        self._signals = [(signal.tls, signal.link) for signal in road_map.signals]
        self._routes = {str(driver.id): driver.edges for driver in demand.drivers}
        self._collided: set[tuple[str, str]] = set()
        self._open = False
        self._prepare(demand)
        try:
            self._start(demand)
        except TrafficError:
            self.close()
            raise

    def _prepare(self, demand: Demand) -> None:
        people = (*demand.drivers, *demand.walkers)
        extra, standing = self._events.actors, demand.kerbside.standing
        self.roster = Roster(
            ids=np.concatenate([np.array([one.id for one in people], np.int64), extra.ids, standing.ids]),
            shapes=np.concatenate(
                [np.array([int(one.shape) for one in people], np.int64), extra.shapes, standing.shapes]
            ),
            sizes=np.concatenate([np.array([one.size for one in people]).reshape(-1, 3), extra.sizes, standing.sizes]),
            drivers=len(demand.drivers),
            walkers=len(demand.walkers),
        )
        count = len(self.roster.ids)
        self._row = {str(key): row for row, key in enumerate(self.roster.ids[: len(people)].tolist())}
        self.poses = np.full((count, 3), np.nan)  # box centres, NaN where absent
        self.speeds_mps = np.zeros(count)
        self.braking = np.zeros(count, bool)
        self.indicator = np.zeros(count, np.int8)
        self.lane = np.full(count, -1, np.int32)
        self._heights_m = np.full(count, np.nan)  # of the road under drivers and pedestrians, where SUMO has it
        self._ego_height_m, self._ego_height_steps = np.nan, 0
        self.poses[len(people) + len(extra) :] = standing.poses
        self._vehicle_motion = VehicleMotion(self.roster.sizes[: len(demand.drivers), 0])
        self._pedestrian_motion = PedestrianMotion(len(demand.walkers))

    def _start(self, demand: Demand) -> None:
        with tempfile.TemporaryDirectory() as folder, self._wrap_errors("does not start"):
            routes = Path(folder) / "traffic.rou.xml"
            routes.write_text(demand.route_file())
            options = {
                "--net-file": str(self.road_map.net_file),
                "--route-files": str(routes),
                "--seed": str(self._seed % 2**31),
                "--step-length": str(self.step_s),
                "--lateral-resolution": str(LATERAL_RESOLUTION_M),
                "--time-to-teleport": "-1",
                "--time-to-impatience": "15",  # a driver that has waited this long accepts a small gap
                "--collision.action": "warn",
                "--no-step-log": "true",
                "--no-warnings": "true",
                "--xml-validation": "never",
            }
            self._sumo.start(["sumo", *(word for pair in options.items() for word in pair)])
            Simulation._running = self._open = True
            for lane in self.road_map.lanes.values():
                limit = _curve_limit_mps(lane.lane.centerline)
                tight = lane.across_junction is not None or lane.road_type is RoadType.ROUNDABOUT
                if tight and limit < (lane.lane.speed_limit_mps or np.inf):
                    self._sumo.lane.setMaxSpeed(lane.sumo_id, limit)

    @contextmanager
    def _wrap_errors(self, what: str) -> Iterator[None]:
        """Raises SUMO's exceptions as TrafficError."""
        try:
            yield
        except (self._sumo.TraCIException, self._sumo.FatalTraCIError) as fault:
            where = f"network '{self.road_map.name}', seed {self._seed}, {self.time_s:.1f} s"
            reason = " ".join(str(fault).split()) or "no reason given"
            raise TrafficError(f"SUMO {what} ({where}): {reason}") from fault

    # --- time ---------------------------------------------------------------------------------------------------------

    def step(self) -> None:
        """One step of traffic. Raises TrafficError."""
        with self._wrap_errors("broke off"):
            self._events.act(self._sumo, self._states, self.time_s)
            self._advance()
            self._read_states()
            self._maintain()

    def warm_up(self, seconds: float) -> None:
        """Runs traffic without reading states and without events, which takes half the time of steps.

        Poses are updated at the next step. Raises TrafficError.
        """
        with self._wrap_errors("broke off"):
            for _ in range(round(seconds / self.step_s)):
                self._advance()
                if self._maintenance_due:
                    self._states = self._driver_states()
                    self._maintain()

    def _advance(self) -> None:
        self._sumo.simulationStep()
        self._steps += 1
        self.time_s = round(self._steps * self.step_s, 3)
        self._count_collisions()
        self._counts["left_the_map"] += self._sumo.simulation.getArrivedNumber()
        if self._steps == round(ENTRY_DEADLINE_S / self.step_s):
            self._remove_pending()

    @property
    def _maintenance_due(self) -> bool:
        """Whether routes and stuck vehicles have to be checked."""
        return self._steps % round(MAINTENANCE_S / self.step_s) == 0

    def _maintain(self) -> None:
        if self._maintenance_due:
            self._lengthen_routes()
            self._help_stuck()

    def _driver_states(self) -> DriverStates:
        vehicle = self._sumo.vehicle
        keys = [key for key in vehicle.getIDList() if key != EGO]
        ego = (vehicle.getLaneID(EGO), vehicle.getSpeed(EGO)) if self._with_ego else None
        return DriverStates(tuple(keys), tuple(map(vehicle.getLaneID, keys)), tuple(map(vehicle.getSpeed, keys)), ego)

    def _read_states(self) -> None:
        """Reads the states of all road users and moves their poses."""
        vehicle, person = self._sumo.vehicle, self._sumo.person
        self._states = self._driver_states()
        driving = self._states.ids
        rows = np.array([self._row[key] for key in driving], int)
        positions_3d = np.array([*map(vehicle.getPosition3D, driving)], float).reshape(-1, 3)
        fronts = positions_3d[:, :2]
        self._heights_m[rows] = positions_3d[:, 2]
        if self._with_ego:
            self._follow_ego_height(float(vehicle.getPosition3D(EGO)[2]))
        speeds = np.array(self._states.speeds_mps, float)
        self._vehicle_motion.follow(rows, fronts, _headings([*map(vehicle.getAngle, driving)]), speeds, self.step_s)

        walking = list(person.getIDList())
        feet = np.array([self._row[key] for key in walking], int) - self.roster.drivers
        positions = self._kerbside.avoid_parked(np.array([*map(person.getPosition, walking)], float).reshape(-1, 2))
        self._pedestrian_motion.follow(feet, positions, _headings([*map(person.getAngle, walking)]), self.step_s)

        drivers, people = self.roster.drivers, self.roster.drivers + self.roster.walkers
        scripted = slice(people, people + len(self._events.actors))
        self.poses[:drivers], self.speeds_mps[:drivers] = self._vehicle_motion.poses, self._vehicle_motion.speeds_mps
        self.poses[drivers:people], self.speeds_mps[drivers:people] = (
            self._pedestrian_motion.poses,
            self._pedestrian_motion.speeds_mps,
        )
        self.poses[scripted], self.speeds_mps[scripted] = self._events.poses, self._events.speeds_mps

        signals = np.array(list(map(vehicle.getSignals, driving)), int)
        self.lane[:], self.braking[:], self.indicator[:] = -1, False, 0
        self.lane[rows] = [self._lane_keys.get(lane, -1) for lane in self._states.lanes]
        self.braking[rows] = signals & BRAKE_BIT > 0
        self.indicator[rows] = (signals & LEFT_BIT > 0).astype(np.int8) - (signals & RIGHT_BIT > 0)
        self.indicator[[self._row[key] for key in self._events.broken_down]] = 2

    def _follow_ego_height(self, height_m: float) -> None:
        """SUMO places the ego on the nearest lane, for a moment also on one of a road above or below."""
        moved = abs(height_m - self._ego_height_m) > MAX_CLIMB_M  # False for the first one
        self._ego_height_steps = self._ego_height_steps + 1 if moved else 0
        if not moved or self._ego_height_steps > CLIMB_STEPS:
            self._ego_height_m, self._ego_height_steps = height_m, 0

    def _count_collisions(self) -> None:
        for collision in self._sumo.simulation.getCollisions():
            pair = tuple(sorted((collision.collider, collision.victim)))
            if pair not in self._collided and EGO not in pair:  # collisions of the ego are reported by `drive_log`
                self._collided.add(pair)
                self._counts["collisions"] += 1

    def _remove_pending(self) -> None:
        """Removes vehicles without room to start; they would later appear in view."""
        for key in self._sumo.simulation.getPendingVehicles():
            self._sumo.vehicle.remove(key)
            self._counts["without_room"] += 1

    def _lengthen_routes(self) -> None:
        vehicle = self._sumo.vehicle
        for key, lane in zip(self._states.ids, self._states.lanes, strict=True):
            if lane.startswith(":"):
                continue
            ahead = vehicle.getRoute(key)[vehicle.getRouteIndex(key) :]
            if len(ahead) > MIN_EDGES_LEFT:
                continue
            network = self._cycling if self.roster.shapes[self._row[key]] == Shape.BICYCLE else self.road_map
            more = random_walk(network, self._generator, ROUTE_M, ahead[-1])[1:]
            if not more:  # the road leaves the map: the driver leaves, too
                continue
            vehicle.setRoute(key, [*ahead, *more])
            self._routes[key] += more

    def _help_stuck(self) -> None:
        """Makes waiting vehicles merge; removes vehicles that are stuck and not at a red light."""
        vehicle = self._sumo.vehicle
        for key in self._states.ids:
            waited_s = vehicle.getWaitingTime(key)
            if waited_s < FORCED_MERGE_S or key in self._events.broken_down:
                continue
            self._events.force_merge(self._sumo, key, self.time_s)
            if waited_s < STUCK_S:
                continue
            lights = vehicle.getNextTLS(key)
            if not lights or lights[0][3] not in "ru":
                self._remove_driver(key)
                self._counts["removed_stuck"] += 1

    def remove(self, actor: int) -> None:
        """Removes a driver or pedestrian; objects that SUMO does not know stay. Raises TrafficError."""
        key = str(actor)
        with self._wrap_errors("cannot remove a vehicle"):
            if key in self._sumo.vehicle.getIDList():
                self._remove_driver(key)
            elif key in self._sumo.person.getIDList():
                self._sumo.person.remove(key)

    def _remove_driver(self, key: str) -> None:
        """Removes a driver at once, from SUMO and from the arrays."""
        self._sumo.vehicle.remove(key)
        self.poses[self._row[key]] = np.nan
        at = self._states.ids.index(key)
        ids, lanes, speeds = (
            (*some[:at], *some[at + 1 :]) for some in (self._states.ids, self._states.lanes, self._states.speeds_mps)
        )
        self._states = DriverStates(ids, lanes, speeds, self._states.ego)

    # --- visible state -----------------------------------------------------------------------------------------------

    @property
    def counts(self) -> Mapping[str, int]:
        """Numbers of traffic faults and of events."""
        return {**self._counts, **self._events.counts}

    @property
    def edges(self) -> tuple[tuple[str, ...], ...]:
        """(N) road edges of each driver's route, empty for other road users."""
        routes = tuple(self._routes.values())
        return (*routes, *((),) * (len(self.roster.ids) - len(routes)))

    def lamps(self) -> Array:
        """(S,) Lamp of RoadMap.signals, int8."""
        states = {tls: self._sumo.trafficlight.getRedYellowGreenState(tls) for tls, _ in self._signals}
        lamps = [LAMPS.get(states[tls][link], Lamp.OFF) for tls, link in self._signals]
        return np.array(lamps, np.int8)

    def snapshot(self) -> Snapshot:
        """All road users except the ego at the present time; without those on roads above and below the ego."""
        elsewhere = np.abs(self._heights_m - self._ego_height_m) > LEVEL_M  # False where a height is unknown
        here = np.flatnonzero(~np.isnan(self.poses[:, 0]) & ~elsewhere)
        actors = Actors(
            ids=self.roster.ids[here],
            poses=self.poses[here],
            speeds_mps=self.speeds_mps[here],
            sizes=self.roster.sizes[here],
            shapes=self.roster.shapes[here],
            braking=self.braking[here],
            indicator=self.indicator[here].astype(np.int64),
        )
        return Snapshot(self.time_s, actors, self.lamps().astype(np.int64))

    # --- the ego ------------------------------------------------------------------------------------------------------

    def add_ego(self, edges: Sequence[str], lane_key: int, along_m: float, speed_mps: float) -> None:
        """Inserts the ego with its front bumper `along_m` into a lane of the first of `edges`; vehicles too close are
        removed.

        Afterwards `move_ego` sets its pose. Raises TrafficError if SUMO refuses.
        """
        lane = self.road_map.lanes[lane_key]
        front_xy = geometry.sample(lane.lane.centerline, np.array([along_m]))[0, :2]
        with self._wrap_errors("has no place for the ego"):
            for key in self._states.ids:
                gap = np.hypot(*(self.poses[self._row[key], :2] - front_xy))
                if gap < EGO_CLEARANCE_M + 0.5 * self.roster.sizes[self._row[key], 0]:
                    self._remove_driver(key)
            length, width, height = EGO_SIZE
            self._sumo.vehicletype.copy("DEFAULT_VEHTYPE", EGO)
            self._sumo.vehicletype.setLength(EGO, length)
            self._sumo.vehicletype.setWidth(EGO, width)
            self._sumo.vehicletype.setHeight(EGO, height)
            self._sumo.route.add(EGO, list(edges))
            at = f"{along_m:.2f}"
            self._sumo.vehicle.add(EGO, EGO, typeID=EGO, departLane=str(lane.index), departPos=at, departSpeed="0")
            self._sumo.vehicle.setSpeedMode(EGO, 0)
            self._sumo.vehicle.setLaneChangeMode(EGO, 0)
        self._with_ego = True
        heading = geometry.sample(lane.lane.centerline, np.array([along_m]))[0, 2]
        centre = np.array([*(front_xy - 0.5 * length * np.array([np.cos(heading), np.sin(heading)])), heading])
        self.move_ego(centre, speed_mps)

    def move_ego(self, map_from_ego_centre: Array, speed_mps: float) -> None:
        """Where the ego's box (its centre) is after the next step, and how fast it drives. Raises TrafficError."""
        x, y, heading = np.asarray(map_from_ego_centre, float)
        front = np.array([x, y]) + 0.5 * EGO_SIZE[0] * np.array([np.cos(heading), np.sin(heading)])
        compass = float(90.0 - np.rad2deg(heading)) % 360.0
        with self._wrap_errors("does not move the ego"):
            self._sumo.vehicle.moveToXY(EGO, "", -1, float(front[0]), float(front[1]), compass, keepRoute=2)
            self._sumo.vehicle.setSpeed(EGO, max(float(speed_mps), 0.0))

    @property
    def ego_pose(self) -> Array:
        """(3,) centre of the ego's box as SUMO has it now."""
        with self._wrap_errors("has lost the ego"):
            front = np.array(self._sumo.vehicle.getPosition(EGO))
            (heading,) = _headings([self._sumo.vehicle.getAngle(EGO)])
        return np.array([*(front - 0.5 * EGO_SIZE[0] * np.array([np.cos(heading), np.sin(heading)])), heading])

    # --- the end ------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Ends SUMO; a second call does nothing."""
        if self._open:
            self._open = Simulation._running = False
            self._sumo.close()

    def __enter__(self) -> Simulation:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _headings(compass_deg: Sequence[float]) -> Array:
    """Headings, counter-clockwise from +x, of angles clockwise from north."""
    return np.asarray(np.pi / 2 - np.deg2rad(np.array(compass_deg, float)))


def _curve_limit_mps(centreline: Array) -> float:
    """The speed at which the sharpest bend of a line (V, 2) requires a lateral acceleration of CURVE_MPS2."""
    length = float(geometry.arc_lengths(centreline)[-1])
    if length < 2.0:
        return float("inf")
    at = np.linspace(0.0, length, max(3, int(np.ceil(2 * length / CURVE_SPAN_M)) + 1))
    points = geometry.sample(centreline, at)[:, :2]
    heading = geometry.headings_along(points)[:-1]
    bend = np.abs(geometry.wrap(np.diff(heading))).max() / (at[1] - at[0])
    return float(np.sqrt(CURVE_MPS2 / max(bend, 1e-4)))
