"""The closed loop: a town with reactive traffic, and an ego that follows plans.

    with World(WorldOptions(seed=3)) as world:
        while world.stamp_ns < end_ns:
            plan = planner(world.observation())
            for event in world.step(plan):
                print(event.text)
        print(world.drive.route_completion)

The seed determines the town, its road users, the ego's start and its route.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from ..core import geometry, kinematics
from ..core.agent_history import AgentHistoryBuffer
from ..core.agent_motion import with_motion
from ..core.config import RouteConfig, VehicleConfig
from ..core.domain import (
    AgentHistory,
    Agents,
    Array,
    CameraFrame,
    Command,
    DrivableGrid,
    EgoState,
    Observation,
    Plan,
    Trajectory,
)
from ..maps import road_file
from ..maps.roads import RoadMap
from ..scoring import drivable, reference
from ..scoring.areas import MapAreas, RedLights
from ..scoring.contacts import SAMPLES, AgentTracks
from ..scoring.scorer import WAYPOINTS, Reference, Scene, ScoreCard, score
from ..scoring.simulate import DT_S, HORIZON_S, STEPS
from . import instructions, local_map, start
from .drive_log import DriveLog, Event, Recorder
from .ego import Ego, step_ego
from .network import navigation, towns
from .network.navigation import EgoRoute
from .network.routing import random_walk
from .render import appearance, camera, scenery
from .render.appearance import Appearance
from .render.camera import Camera
from .render.scenery import Scenery
from .traffic.actors import Actors, TrafficSnapshot
from .traffic.demand import Demand
from .traffic.simulation import Simulation

START_NS = 1_000_000_000_000
STEP_NS = 100_000_000
WARM_UP_S = 15.0
PERCEPTION_RANGE_M = 100.0  # range of perception
MIN_ROUTE_LEFT_M = 600.0  # the route is extended when less than this is left
WALK_M = 3000.0
# A car this far from its route, or turned against it, for OFF_ROUTE_S gets a new route, as does each that stopped there
# because it was not on its route.
OFF_ROUTE_M = RouteConfig().back_within_m
OFF_ROUTE_S = 2.0
OFF_ROUTE_RAD = np.pi / 2
REMOVE_AFTER_S = 2.0  # a hit vehicle is removed after this time, or it would block the town
GRID_REUSE_M, GRID_REUSE_RAD = 10.0, 0.3  # a drivable grid is reused within this distance and turn


@dataclass(frozen=True)
class WorldOptions:
    """The options that determine a world."""

    seed: int = 0
    town: str = ""  # name of a generated town; empty: from the seed, as "demo-00003"
    map_file: Path | None = None  # a Lanelet2 (.osm) or OpenDRIVE (.xodr, .xodr.gz) map instead of a generated town
    max_limit_mps: float | None = None  # a map's limits are at most this
    density: float = 1.0  # of the traffic; 1 is an ordinary afternoon

    @property
    def name(self) -> str:
        return self.town or f"demo-{self.seed:05d}"


class World:
    """The closed loop. A process can hold one world at a time; use it as a context manager, or close it."""

    def __init__(self, options: WorldOptions, vehicle: VehicleConfig | None = None) -> None:
        """Raises RoadError for a map without a drivable route, SumoMissing without SUMO, TrafficError of SUMO."""
        self.options = options
        self.vehicle = vehicle or VehicleConfig()
        self._scratch = tempfile.TemporaryDirectory()
        network_folder = Path(self._scratch.name)
        if options.map_file is not None:
            self.road_map: RoadMap = road_file.load(options.map_file, network_folder, options.max_limit_mps)
        else:
            self.road_map = towns.make(options.name, options.seed, network_folder)
        self._generator = np.random.default_rng([options.seed, 51])
        # the drivable space, one shapely geometry
        self.space = drivable.union_polygons([*self.road_map.roads.values(), *self.road_map.junctions.values()])
        demand = Demand.sample(self.road_map, options.seed, options.density)
        self._traffic = Simulation(self.road_map, demand, options.seed)
        try:
            self._begin()
        except BaseException:
            self.close()
            raise

    def _begin(self) -> None:
        for _ in range(round(WARM_UP_S / DT_S)):
            self._traffic.step()
        first = start.sample_start(self.road_map, self._traffic.snapshot(), self.space, self._generator, self.vehicle)
        self._ego: Ego = first.ego
        self._route: EgoRoute = first.route
        self._at_m = first.at_m
        self._traffic.add_ego(first.edges, first.route.lanes[0], first.front_m, first.ego.speed_mps)
        self._traffic.step()
        self._driven_m = -self._at_m  # progress on earlier routes, minus the start on this one
        self._off_route_steps = 0
        self._ended = False
        self._cleared: set[int] = set()
        self._grid: tuple[Array, DrivableGrid] | None = None
        self.stamp_ns = START_NS
        self._history = AgentHistoryBuffer()
        self.snapshot: TrafficSnapshot = self._traffic.snapshot()
        self._recorder = Recorder(self.road_map, self.space, self.vehicle)
        self._watch()

    # --- present state -----------------------------------------------------------------------------------------------

    @property
    def ego(self) -> EgoState:
        """At the rear axle, map frame."""
        return self._ego.state(self.stamp_ns)

    @property
    def route(self) -> Array:
        """(L, 3) in the map frame, from 30 m behind the ego to 250 m ahead, as far as the network reaches."""
        return self._route.local_line(self._at_m)

    @property
    def command(self) -> Command:
        return self._next_instruction()[0]

    @property
    def instruction(self) -> str:
        return self._next_instruction()[1]

    def _next_instruction(self) -> tuple[Command, str]:
        return instructions.next_instruction(
            self.road_map, self._route.lanes_from(self._at_m), self._route.distance_along_lane(self._at_m)
        )

    @property
    def speed_limit_mps(self) -> float:
        return self._route.speed_limit_mps(self._at_m)

    @property
    def progress_m(self) -> float:
        """Along the route, since the start."""
        return self._driven_m + self._at_m

    @property
    def drive(self) -> DriveLog:
        """The drive up to now."""
        return self._recorder.log()

    @cached_property
    def scenery(self) -> Scenery:
        return scenery.build_scenery(self.road_map, self.options.seed)

    @cached_property
    def appearance(self) -> Appearance:
        return appearance.sample_appearance(self.options.seed)

    def render_images(self, rig: Sequence[Camera]) -> tuple[CameraFrame, ...]:
        """Images of the cameras, left to right."""
        return camera.render_frames(
            self.scenery, self.snapshot, self._ego.map_from_ego, self.stamp_ns, tuple(rig), self.appearance
        )

    def observation(
        self, cameras: tuple[CameraFrame, ...] = (), *, drivable: bool = False, vectors: bool = False
    ) -> Observation:
        """The planner's observation; `cameras` are passed on, oldest instant first. With `vectors` also lanes and
        history."""
        command, instruction = self._next_instruction()
        ego_from_map = geometry.invert(self._ego.map_from_ego)
        traffic_lights, stop_lines = local_map.lights_of_route(
            self.road_map, self.snapshot.lamps, self._ego.map_from_ego, self._route_lanes()
        )
        return Observation(
            stamp_ns=self.stamp_ns,
            ego=self.ego,
            route=geometry.compose(ego_from_map, self.route),
            command=command,
            speed_limit_mps=self.speed_limit_mps,
            cameras=cameras,
            agents=with_motion(self._agents(), self._agent_history()),
            drivable=self._drivable_grid() if drivable else None,
            instruction=instruction,
            traffic_lights=traffic_lights,
            stop_lines=stop_lines,
            route_limits_mps=self._route.local_limits_mps(self._at_m),
            route_ends=self._route.ends_within(self._at_m),
            **(self._vectors(geometry.compose(ego_from_map, self.route)) if vectors else {}),
        )

    def areas(self) -> MapAreas:
        """The map around the ego, in its frame."""
        return local_map.areas(self.road_map, self._ego.map_from_ego, self._route_lanes())

    def score(self, trajectory: Trajectory) -> tuple[ScoreCard, Reference]:
        """The driving score of a plan from the present state: agents keep their velocity, lights stay as they are.

        Progress is measured by the reference planner, which is the second value. Takes some tens of milliseconds.
        Raises ValueError for a trajectory shorter than 4 s.
        """
        agents, lamps = self._agents(), np.tile(self.snapshot.lamps, (STEPS + 1, 1))
        forecast = kinematics.forecast(agents, DT_S, SAMPLES - 1)
        route_lanes = self._route_lanes()
        lights: RedLights = local_map.red_lights(self.road_map, lamps, self._ego.map_from_ego, route_lanes)
        scene = Scene(
            self._ego.motion,
            AgentTracks.of_forecast(forecast, agents.kinds),
            geometry.compose(geometry.invert(self._ego.map_from_ego), self.route),
            areas=self.areas(),
            red_lights=lights,
            vehicle=self.vehicle,
        )
        progress = reference.reference_progress(scene, scene, self.speed_limit_mps)
        times_s = HORIZON_S / WAYPOINTS * np.arange(1, WAYPOINTS + 1)
        return score(replace(scene, reference=progress), kinematics.resample(trajectory, times_s)[None]), progress

    def _vectors(self, route: Array) -> dict[str, Any]:
        """Lanes, with their lights, and history of an observation with a route (L, 3) in the ego frame."""
        pose, lamps = self._ego.map_from_ego, self.snapshot.lamps
        lanes, route_lanes = local_map.lane_polylines(self.road_map, lamps, pose, route, self._route_lanes())
        return {"lanes": lanes, "route_lanes": route_lanes, "history": self._agent_history()}

    def _agent_history(self) -> AgentHistory:
        ids = self._near_actors().ids.tolist()
        return self._history.history(self.stamp_ns, self._ego.map_from_ego, ids, self._agents())

    def _near_actors(self) -> Actors:
        """Actors within PERCEPTION_RANGE_M."""
        actors = self.snapshot.actors
        away = np.hypot(*(actors.poses[:, :2] - self._ego.map_from_ego[:2]).T)
        return actors.select(np.flatnonzero(away < PERCEPTION_RANGE_M))

    def _agents(self) -> Agents:
        """Agents within PERCEPTION_RANGE_M, in the ego frame."""
        near = self._near_actors()
        poses = geometry.compose(geometry.invert(self._ego.map_from_ego), near.poses)
        heading = np.stack([np.cos(poses[:, 2]), np.sin(poses[:, 2])], axis=1)
        return Agents(poses, near.speeds_mps[:, None] * heading, near.sizes[:, :2], near.kinds)

    def _route_lanes(self) -> tuple[int, ...]:
        return self._route.lanes_between(self._at_m - navigation.BEHIND_M, self._at_m + navigation.AHEAD_M)

    def _drivable_grid(self) -> DrivableGrid:
        """The grid around the ego, reused while the ego is close to its origin: computing one takes 0.1 s."""
        map_from_ego = self._ego.map_from_ego
        if self._grid is not None:
            then_from_now = geometry.compose(geometry.invert(self._grid[0]), map_from_ego)
            if np.hypot(*then_from_now[:2]) < GRID_REUSE_M and abs(then_from_now[2]) < GRID_REUSE_RAD:
                now_from_grid = geometry.compose(geometry.invert(then_from_now), self._grid[1].ego_from_grid)
                return replace(self._grid[1], ego_from_grid=now_from_grid)
        around = self.areas()
        grid = drivable.grid_around_ego(
            drivable.union_polygons((*around.roadblocks, *around.intersections), "World.areas")
        )
        self._grid = map_from_ego, grid
        return grid

    # --- steps -------------------------------------------------------------------------------------------------------

    def step(self, plan: Plan | None, dt_s: float = DT_S) -> tuple[Event, ...]:
        """Moves the ego along the plan (without one it brakes to a stop) and the traffic; returns the events.

        `dt_s` is a whole number of tenths of a second. Raises ValueError on another, TrafficError when SUMO fails.
        """
        steps = round(dt_s / DT_S)
        if steps < 1 or abs(steps * DT_S - dt_s) > 1e-6:
            raise ValueError(f"World.step got dt_s {dt_s}, expected a whole number of {DT_S} s")
        return tuple(event for _ in range(steps) for event in self._step(plan))

    def _step(self, plan: Plan | None) -> tuple[Event, ...]:
        self._ego = step_ego(self._ego, plan, self.stamp_ns, self.vehicle)
        self._traffic.move_ego(self._ego.box_center(self.vehicle), self._ego.speed_mps)
        self._traffic.step()
        self.stamp_ns += STEP_NS
        self.snapshot = self._traffic.snapshot()
        lost = self._navigate()
        events = (*lost, *self._watch())
        self._remove_hit_actors()
        return events

    def _watch(self) -> tuple[Event, ...]:
        actors = self.snapshot.actors
        heading = np.stack([np.cos(actors.poses[:, 2]), np.sin(actors.poses[:, 2])], axis=1)
        self._history.put(self.stamp_ns, actors.ids.tolist(), actors.poses, actors.speeds_mps[:, None] * heading)
        route = local_map.route_with_neighbours(self.road_map, self._route_lanes())
        limit_mps = self.speed_limit_mps
        return self._recorder.watch(self.stamp_ns, self._ego, self.snapshot, route, self.progress_m, limit_mps)

    def _navigate(self) -> tuple[Event, ...]:
        """Updates the ego's arc length on its route; replaces the route if the ego has left it for good."""
        self._at_m, offset = self._route.project(self._at_m, self._ego.map_from_ego)
        turned = abs(float(geometry.wrap(self._route.pose_at(self._at_m)[2] - self._ego.map_from_ego[2])))
        self._off_route_steps = self._off_route_steps + 1 if abs(offset) > OFF_ROUTE_M or turned > OFF_ROUTE_RAD else 0
        events: list[Event] = []
        time_s = self._recorder.time_s + DT_S
        if self._off_route_steps >= round(OFF_ROUTE_S / DT_S):
            self._off_route_steps = 0
            if self._replace_route():
                events.append(Event("off_route", time_s, "the car left its route; it has a new one from its lane"))
        if self._route.length_m - self._at_m < MIN_ROUTE_LEFT_M and not self._ended:
            more = random_walk(self.road_map, self._generator, WALK_M, self._route.last_edge)
            if len(more) > 1:
                self._route = navigation.extend_route(self._route, more)
        front_m = self.vehicle.rear_axle_to_center_m + 0.5 * self.vehicle.length_m
        if self._route.length_m - self._at_m <= front_m and not self._ended:
            self._ended = True
            events.append(Event("end_of_route", time_s, "the route ends here: no road leads on"))
        for event in events:
            self._recorder.add(event)
        return tuple(events)

    def _replace_route(self) -> bool:
        """A route from the ego's lane, if that lane has a continuation."""
        new = start.route_from_pose(self.road_map, self._ego.map_from_ego, self._generator)
        if new is None:
            return False
        self._driven_m += self._at_m
        self._route, self._at_m = new
        self._driven_m -= self._at_m
        return True

    def _remove_hit_actors(self) -> None:
        """Removes vehicles that were hit some time ago."""
        for actor in self._recorder.recently_hit(REMOVE_AFTER_S):
            if actor not in self._cleared:
                self._cleared.add(actor)
                self._traffic.remove(actor)

    # --- the end ------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Ends the traffic; a second call does nothing."""
        self._traffic.close()
        self._scratch.cleanup()

    def __enter__(self) -> World:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
