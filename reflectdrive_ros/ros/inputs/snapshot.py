"""Combines the newest messages into one observation, or into sentences that explain why there is none.

The planning thread calls `snapshot`, which converts what it needs. A missing, late, malformed or frozen input becomes a
sentence, never an exception, and never an old value passed as a new one.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from ...core import geometry
from ...core.agent_history import AgentHistoryBuffer
from ...core.agent_motion import with_motion
from ...core.config import Config, VehicleConfig
from ...core.domain import Agents, Array, Command, DrivableGrid, EgoState, LightState, Observation, concat_agents
from ...core.kinematics import box_centres
from ...core.lanes import LaneSegments
from ...core.messages import BadMessage
from ...maps.drivable_area import MapDrivableArea
from ...maps.elevation import MapElevation, RoadSurface, VehiclePlane
from ...maps.lanelet_map import LaneletMap, lanelets_of_route
from ...planning.inputs import needs_cameras, uses_lights, uses_map
from .. import convert
from .. import obstacles as clouds
from .camera_pairs import CameraPairs
from .camera_rig import RigInput
from .channel import InputStatus, Level
from .control import UNKNOWN_CONTROL, VehicleControl
from .lights import REACH_M, lights_of_route, lights_status, lines_near, of_own_turn
from .route import (
    PAST_END_MAX_M,
    SPEED_LIMIT_MIN_MPS,
    MapRoute,
    RouteAhead,
    command_along,
    limits_along,
    route_around_ego,
)
from .store import MessageStore

MOVING_MPS = 0.5  # slower is standing: odometry is not exact


@dataclass(frozen=True)
class Snapshot:
    """An observation, or the sentences that explain why there is none."""

    observation: Observation | None
    ego: EgoState | None  # also without images or route: enough for a stop plan
    agents: Agents | None
    problems: tuple[str, ...]
    image_stamp_ns: int | None  # of the anchor camera
    surface: RoadSurface | None  # heights for what is published; known if the ego state is
    control: VehicleControl = UNKNOWN_CONTROL
    tracked: convert.MapAgents | None = None  # the agents of the objects, in the map
    signal_ahead: tuple[int, LightState] | None = None  # group and state of the next traffic light on the route


class Inputs:
    """The inputs of the planner: `store` has the messages; the methods are the queries of the planning thread."""

    def __init__(
        self,
        config: Config,
        image_size: tuple[int, int] | None = None,
        rig: RigInput | None = None,
        *,
        decode_ahead: bool = True,
    ) -> None:
        """As `MessageStore`."""
        self._config, self._rig = config, rig
        self.store = MessageStore(config, image_size, rig, decode_ahead=decode_ahead)
        self._cameras = CameraPairs(self.store, config, rig)
        self._map_drivable: MapDrivableArea | None = None  # of the newest map
        self._map_executor = ThreadPoolExecutor(1, "map_drivable")
        self._with_lanes = uses_map(config)
        self._history, self._history_restarts = AgentHistoryBuffer(), 0
        self._elevation: tuple[LaneletMap, Future[MapElevation | None]] | None = None  # computed or being computed
        self.ignored: dict[str, dict[str, int]] = {}  # objects, obstacles: reason -> count, of the newest message
        if self.store.file_map is not None:
            _ = self.store.file_map.lights, self.store.file_map.road  # computed here, not while driving
        if self._with_lanes:
            self._newest_lane_segments()  # likewise those of a file

    # --- when to plan ------------------------------------------------------------------------------------------------

    def due(self, now_ns: int) -> bool:
        """Whether a planning step should start: for a new image of the anchor camera once the other cameras' images of
        that instant have arrived or are overdue. Without images, where none are required: for odometry every 0.1 s."""
        with self.store.lock:
            anchor = self.store.images[self._config.cameras.anchor].newest()
            if anchor is not None and anchor[0] > self.store.planned_image_ns:
                if self._cameras.is_complete(anchor[0], now_ns):
                    return True
                waiting_ns = anchor[0] if self.store.waiting_ns is None else self.store.waiting_ns
                return (now_ns - waiting_ns) * 1e-9 > 2 * self._config.cameras.match_tolerance_s
            if needs_cameras(self._config) or (
                anchor is not None and (now_ns - anchor[0]) * 1e-9 <= self._config.inputs.max_ages_s["image"]
            ):
                return False
            odometry = self.store.odometry.newest()
            return odometry is not None and odometry[0] - self.store.planned_odometry_ns >= 99_000_000

    # --- what to plan from -------------------------------------------------------------------------------------------

    def snapshot(self, now_ns: int, *, with_observation: bool = True) -> Snapshot:
        """Convert the newest messages to an observation, or report why there is none.

        Without `with_observation` there is none, and no image is decoded; later snapshots are as if they had been.
        """
        with self.store.lock:
            anchor = self.store.images[self._config.cameras.anchor].newest()
            images = self._cameras.matches(anchor)
            odometry, acceleration = self.store.odometry.newest(), self.store.acceleration.newest()
            objects, route, grid = self.store.objects.newest(), self.store.route.newest(), self.store.drivable.newest()
            cloud, control = self.store.obstacles.newest(), self.store.control(now_ns)
            max_velocity = self.store.max_velocity.newest()
            self.store.waiting_ns = None
            if anchor is not None:
                self.store.planned_image_ns = anchor[0]
            if odometry is not None:
                self.store.planned_odometry_ns = odometry[0]
        problems: list[str] = []
        ego, surface = self._ego(odometry, acceleration, now_ns, problems)
        tracked = None if ego is None else self._tracked(objects, ego, now_ns)
        agents = None
        if ego is not None and tracked is not None:
            agents = self._with_motion(tracked, convert.agents_to_ego_frame(tracked, ego))
        obstacles = None if ego is None else self._boxes(cloud, ego, agents, now_ns)
        route_map = self._route_in_map(route, problems)
        drivable = None if ego is None else self._drivable_space(grid, ego, route_map, now_ns)
        ahead = None
        if ego is not None and route_map is not None:
            most_mps = None if max_velocity is None else max_velocity[1]
            limited = limits_along(route_map, self._config.speed_limit_mps, most_mps)
            ahead = self._route_ahead(limited, ego, problems)
        command = Command.FOLLOW if ahead is None else command_along(ahead.poses)
        image_ns = None if anchor is None else anchor[0]
        if with_observation:  # last: images are decoded in the background meanwhile
            cameras = self._cameras.frames(image_ns, images, now_ns, problems)
        else:
            cameras = self._cameras.skip(image_ns, images, now_ns)
        unsteady = "" if ego is None else self.store.localisation_fault(ego.stamp_ns)
        if ego is not None:
            was_off = bool(self.store.cache.off_map) and not control.by_driver
            self.store.cache.off_map = off_map_reason(self._newest_lanelets(), ego, self._config.vehicle, was_off)
        problems += filter(None, [unsteady, self.store.cache.off_map])
        refused = unsteady or self.store.cache.off_map or not with_observation
        if ego is None or ahead is None or cameras is None or refused:
            others = concat_agents(agents, obstacles)
            return Snapshot(None, ego, others, tuple(problems), image_ns, surface, control, tracked)
        observation = Observation(
            ego.stamp_ns,
            ego,
            ahead.poses,
            command,
            max(ahead.limit_here_mps, SPEED_LIMIT_MIN_MPS),
            cameras,
            agents,
            drivable,
            self.store.instruction,
            _age_s(objects, ego),
            _age_s(grid, ego),
            obstacles,
            route_limits_mps=ahead.limits_mps,
            route_ends=ahead.ends,
            **self._lights_and_lanes(ego, tracked, agents, ahead.poses),
        )
        return Snapshot(
            observation,
            ego,
            observation.others,
            tuple(problems),
            image_ns,
            surface,
            control,
            tracked,
            self._signal_ahead(observation),
        )

    def ego(self, now_ns: int) -> Snapshot:
        """Ego state, agents and surface for a stop plan, without images; all None without usable odometry."""
        with self.store.lock:
            odometry, acceleration, objects, cloud = (
                channel.newest()
                for channel in (self.store.odometry, self.store.acceleration, self.store.objects, self.store.obstacles)
            )
        problems: list[str] = []
        ego, surface = self._ego(odometry, acceleration, now_ns, problems)
        if ego is None:
            return Snapshot(None, None, None, tuple(problems), None, None)
        tracked = self._tracked(objects, ego, now_ns)
        agents = None if tracked is None else convert.agents_to_ego_frame(tracked, ego)
        others = concat_agents(agents, self._boxes(cloud, ego, agents, now_ns))
        return Snapshot(None, ego, others, (), None, surface)

    def _ego(
        self, odometry: tuple[int, Any] | None, acceleration: tuple[int, Any] | None, now_ns: int, problems: list[str]
    ) -> tuple[EgoState, RoadSurface] | tuple[None, None]:
        map_frame = self._config.output.map_frame

        def ego_and_plane(message: Any) -> tuple[EgoState, VehiclePlane]:
            return convert.ego_state(message, map_frame), convert.vehicle_plane(message)

        try:
            ego, plane = self.store.odometry.convert(odometry, now_ns, ego_and_plane)
        except BadMessage as fault:
            problems.append(str(fault))
            return None, None
        surface = RoadSurface(plane, self._newest_elevation())
        try:
            acceleration_mps2 = self.store.acceleration.convert(acceleration, now_ns, convert.acceleration)
        except BadMessage:
            return ego, surface  # acceleration 0; the channel's status reports the fault
        return replace(ego, acceleration_mps2=acceleration_mps2), surface

    def _tracked(self, objects: tuple[int, Any] | None, ego: EgoState, now_ns: int) -> convert.MapAgents | None:
        """Agents in the map; None (unknown, not an empty road) if objects are missing, stale or malformed."""
        frame, here = self._config.output.map_frame, ego.map_from_ego[:2]
        try:
            map_agents = self.store.objects.convert(objects, now_ns, lambda each: convert.map_agents(each, frame, here))
        except BadMessage:
            return None
        self.ignored["objects"] = map_agents.ignored
        return map_agents

    def _with_motion(self, tracked: convert.MapAgents, agents: Agents) -> Agents:
        """Agents in the ego frame with accelerations and yaw rates, which are those at the stamp of the message: later
        states are extrapolated. Without them if they have predicted paths, which take precedence."""
        if self._history_restarts != self.store.restarts:
            self._history_restarts = self.store.restarts
            self._history.clear()
        predicted = agents.predicted_poses is not None
        if predicted and not self._with_lanes:
            return agents
        self._history.put(tracked.stamp_ns, tracked.ids, tracked.agents.poses, tracked.agents.velocities_mps)
        if predicted:
            return agents
        history = self._history.history(tracked.stamp_ns, np.zeros(3), tracked.ids, tracked.agents)
        moving = with_motion(tracked.agents, history)
        return replace(agents, accelerations_mps2=moving.accelerations_mps2, yaw_rates_rps=moving.yaw_rates_rps)

    def _lights_and_lanes(
        self, ego: EgoState, tracked: convert.MapAgents | None, agents: Agents | None, route: Array
    ) -> dict[str, Any]:
        """Lights and stop lines of an observation whose route (L, 3) is in the ego frame; with a map also lanes and
        history."""
        states = self._light_states(ego)
        fields = {} if states is None else self._lights_ahead(ego, states, route)
        return fields | (self._vectors(ego, tracked, agents, route, states or {}) if self._with_lanes else {})

    def _light_states(self, ego: EgoState) -> dict[int, LightState] | None:
        """State by id of the lanelets that have a light; None without a map, and before the first message."""
        lanelets = self._newest_lanelets()
        with self.store.lock:
            if lanelets is None or not uses_lights(self._config) or self.store.light_memory.stamp_ns is None:
                return None
            return self.store.light_memory.by_lanelet(lanelets.lights, ego.stamp_ns)

    def _lights_ahead(self, ego: EgoState, states: Mapping[int, LightState], route: Array) -> dict[str, Any]:
        """Lights and stop lines of the lanelets of the route."""
        lanelets = self._newest_map()
        on_route = self._lanelets_of_route()
        if on_route is None:
            away_m = lanelets.lane_segments.keys_along_line(route, ego.map_from_ego, REACH_M)
            on_route = of_own_turn(lanelets.lights, away_m)
        traffic_lights, stop_lines = lights_of_route(lanelets.lights, states, on_route, ego)
        age_s = _age_s(self.store.lights.newest(), ego)
        return {"traffic_lights": traffic_lights, "stop_lines": stop_lines, "lights_age_s": age_s}

    def _signal_ahead(self, observation: Observation) -> tuple[int, LightState] | None:
        """Group and state of the nearest light on the route whose stop line is ahead of the rear axle."""
        lines, lanelets = observation.stop_lines, self._newest_lanelets()
        if lines is None or lanelets is None:
            return None
        ahead = np.flatnonzero(lines.ends[:, :, 0].mean(axis=1) > 0.0)
        if not len(ahead):
            return None
        with self.store.lock:
            return self.store.light_memory.of_lanelet(
                lanelets.lights, int(lines.light_ids[ahead[0]]), observation.stamp_ns
            )

    def _lanelets_of_route(self) -> frozenset[int] | None:
        """Ids of the lanelets of a LaneletRoute; None where the route is a Path."""
        return None if self.store.cache.route is None else self.store.cache.route[2].lanelet_ids

    def _vectors(
        self,
        ego: EgoState,
        tracked: convert.MapAgents | None,
        agents: Agents | None,
        route: Array,
        states: Mapping[int, int],
    ) -> dict[str, Any]:
        """Lanes, with the LightState by lanelet id, and history of an observation whose route (L, 3) is in the ego
        frame."""
        fields: dict[str, Any] = {}
        if tracked is not None and agents is not None:
            fields["history"] = self._history.history(ego.stamp_ns, ego.map_from_ego, tracked.ids, agents)
        segments = self._newest_lane_segments()
        if segments is not None:
            fields["lanes"] = segments.near(ego.map_from_ego, states)
            on_route = self._lanelets_of_route()
            if on_route is not None:
                fields["route_lanes"] = segments.along(route, on_route, ego.map_from_ego, states)
            else:
                fields["route_lanes"] = segments.along_line(route, ego.map_from_ego, states)
        return fields

    def _newest_lane_segments(self) -> LaneSegments | None:
        """Those of the map file, or of the newest map of the topic once it is read; None until then."""
        lanelets = self._newest_lanelets()
        return None if lanelets is None else lanelets.lane_segments

    def _newest_elevation(self) -> MapElevation | None:
        """That of the newest map, computed in the background; None without a map, for a map without elevation, and
        until it is computed."""
        lanelets = self._newest_lanelets()
        if lanelets is None:
            return None
        if self._elevation is None or self._elevation[0] is not lanelets:
            self._elevation = lanelets, self._map_executor.submit(getattr, lanelets, "elevation")
            return None  # whatever the speed of the background: a replay must be deterministic
        computed = self._elevation[1]
        return computed.result() if computed.done() and computed.exception() is None else None

    def _newest_lanelets(self) -> LaneletMap | None:
        if not uses_map(self._config):
            return None
        try:
            return self._newest_map()
        except BadMessage:
            return None

    def _boxes(self, cloud: tuple[int, Any] | None, ego: EgoState, agents: Agents | None, now_ns: int) -> Agents | None:
        """Obstacle boxes of a point cloud in the ego frame, None likewise. Each cloud is converted once."""

        def boxes(message: Any) -> clouds.Obstacles:
            if self.store.cache.boxes is not None and self.store.cache.boxes[0] is message:
                return self.store.cache.boxes[1]
            return clouds.obstacle_boxes(message, self.store.transforms, ego, agents, self._config.vehicle)

        if self._config.inputs.obstacles_type == "none":
            return None
        try:
            obstacles = self.store.obstacles.convert(cloud, now_ns, boxes)
        except BadMessage:
            return None
        assert cloud is not None
        self.store.cache.boxes, self.ignored["obstacles"] = (cloud[1], obstacles), obstacles.ignored
        return clouds.boxes_to_ego_frame(obstacles, ego)

    def _drivable_space(
        self, grid: tuple[int, Any] | None, ego: EgoState, route: MapRoute | None, now_ns: int
    ) -> DrivableGrid | None:
        """Drivable area in the ego frame; None (unknown, not the same as no road) without a usable grid or map."""
        try:
            if self._config.inputs.drivable_type == "map":
                lanelets = self._newest_map()
                if self._map_drivable is None or self._map_drivable.lanelets is not lanelets:
                    self._map_drivable = MapDrivableArea(lanelets, self._config.vehicle, self._map_executor)
                of_map = route if self._config.inputs.route_type == "lanelet" else None
                area = self._map_drivable.around(ego, None if of_map is None else of_map.poses)
                self.store.cache.map_fault = ""
                return area
            if self._config.inputs.drivable_type == "none":
                return None
            return convert.grid_to_ego_frame(
                self.store.drivable.convert(grid, now_ns, partial(self._convert_grid, ego)), ego
            )
        except BadMessage as fault:
            self.store.cache.map_fault = f"drivable: {fault}"
            return None

    def _convert_grid(self, ego: EgoState, message: Any) -> convert.MapGrid:
        if self.store.cache.grid is None or self.store.cache.grid[0] is not message:
            self.store.cache.grid = message, convert.map_grid(message, self._config.output.map_frame, ego)
        return self.store.cache.grid[1]

    def _newest_map(self) -> LaneletMap:
        """The map of the file, or the newest of the topic. Raises BadMessage while there is none."""
        if self.store.vector_map is not None:
            return self.store.vector_map.newest()
        assert self.store.file_map is not None
        return self.store.file_map

    def _route_in_map(self, route: tuple[int, Any] | None, problems: list[str]) -> MapRoute | None:
        lanelets = None
        if self._config.inputs.route_type == "lanelet":
            try:
                lanelets = self._newest_map()
            except BadMessage as fault:
                problems += [str(fault), *filter(None, [self.store.route.problem(0)])]
                return None
        cached = self.store.cache.route
        is_cached = route is not None and cached is not None and cached[0] is route[1] and cached[1] is lanelets
        if cached is not None and is_cached and not self.store.route.blocked:
            return cached[2]
        try:
            map_route = self.store.route.convert(route, 0, partial(self._convert_route, lanelets))
        except BadMessage as fault:
            problems.append(str(fault))
            return None
        assert route is not None
        self.store.cache.route, self.store.cache.route_position_m = (route[1], lanelets, map_route), None
        return map_route

    def _convert_route(self, lanelets: LaneletMap | None, message: Any) -> MapRoute:
        frame = self._config.output.map_frame
        if lanelets is None:
            poses = convert.path_route(message, frame)
            route = MapRoute(poses, np.full(len(poses), np.nan))
        else:
            route = MapRoute(*lanelets.route(message, frame), frozenset(lanelets_of_route(message)))
        fault = convert.route_length_fault(route.poses)
        if fault:
            raise BadMessage(fault)
        return route

    def _route_ahead(self, route: MapRoute, ego: EgoState, problems: list[str]) -> RouteAhead | None:
        """The route around the ego; None, with a sentence, where the ego is past its end."""
        ahead = route_around_ego(route, ego, self.store.cache.route_position_m)
        self.store.cache.route_position_m = ahead.position_m
        if ahead.past_end_m <= PAST_END_MAX_M:
            return ahead
        problems.append(
            f"route: the car is {ahead.past_end_m:.1f} m past the end of its route, at most {PAST_END_MAX_M:g} m are "
            "allowed: set a new goal"
        )
        return None

    def wait_idle(self) -> None:
        """Wait until background work is done, so that a replay does not depend on its speed."""
        for worker in (self.store.vector_map, self._map_drivable):
            if worker is not None:
                worker.wait_idle()
        if self._elevation is not None:
            wait([self._elevation[1]])

    # --- diagnostics -------------------------------------------------------------------------------------------------

    def statuses(self, now_ns: int) -> list[InputStatus]:
        with self.store.lock:
            statuses = {status.name: status for status in self.store.channel_statuses(now_ns)}
            odometry, limit = self.store.odometry.newest(), self.store.max_velocity.newest()
        if odometry is not None and (unsteady := self.store.localisation_fault(odometry[0])):
            statuses["odometry"] = replace(statuses["odometry"], level=Level.ERROR, message=unsteady)
        if limit is not None:
            status = statuses[self.store.max_velocity.name]
            statuses[status.name] = replace(status, values=status.values | {"limit_mps": f"{limit[1]:.2f}"})
        if uses_lights(self._config):
            lanelets = self._newest_lanelets()
            lights = None if lanelets is None else lanelets.lights
            lost = 0 if self.store.vector_map is None else lines_near(self.store.vector_map.lost_stop_lines(), odometry)
            status = statuses[self.store.lights.name]
            with self.store.lock:
                statuses[status.name] = lights_status(status, self.store.light_memory, lights, lost, now_ns)
        if self._config.inputs.drivable_type == "map":
            level = Level.WARN if self.store.cache.map_fault else Level.OK
            statuses["drivable"] = InputStatus("drivable", level, self.store.cache.map_fault or "from the map", {})
        every = [*statuses.values(), *([] if self._rig is None else [self._rig.status()])]
        return [_with_ignored(status, self.ignored.get(status.name, {})) for status in every]


def _with_ignored(status: InputStatus, ignored: dict[str, int]) -> InputStatus:
    if not ignored:
        return status
    listed = ", ".join(f"{count} {reason}" for reason, count in sorted(ignored.items()))
    return status.with_remark(f"ignored: {listed}")


def _age_s(item: tuple[int, Any] | None, ego: EgoState) -> float:
    """Age of a message relative to the ego state, s; 0 without a message."""
    return 0.0 if item is None else max((ego.stamp_ns - item[0]) * 1e-9, 0.0)


def off_map_reason(lanelets: LaneletMap | None, ego: EgoState, vehicle: VehicleConfig, was_off: bool) -> str:
    """One sentence for a moving car outside of every lanelet for cars, shoulder and intersection: the map, the
    localisation or its path is wrong. Empty otherwise, and without a map.

    A car that stands may be in a parking space beside the lanes. `was_off`: whether it drove out of the map and stopped
    by itself. Then it stays off the map when it stands, or it would start again, until a part of it is in a lanelet.
    """
    if lanelets is None or (abs(ego.speed_mps) < MOVING_MPS and not was_off):
        return ""
    size = np.array([vehicle.length_m, vehicle.width_m])
    if lanelets.touches_road(geometry.box_corners(box_centres(ego.map_from_ego, vehicle), size)):
        return ""
    source = lanelets.source
    return f"map: the car is outside of every lanelet of {source.name}: drive it to a lane, or {source.if_misplaced}"
