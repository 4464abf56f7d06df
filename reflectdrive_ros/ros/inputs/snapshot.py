"""Combines the newest messages into one observation, or into sentences that explain why there is none.

The planning thread calls `snapshot`, which converts what it needs. A missing, late, malformed or frozen input becomes a
sentence, never an exception, and never an old value passed as a new one.
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from ...agent_history import AgentHistoryBuffer
from ...config import Config
from ...domain import Agents, Array, CameraFrame, Command, DrivableGrid, EgoState, Observation, concat_agents
from ...lanes import LaneSegments
from ...planning import VECTOR_PLANNERS
from .. import convert, image_decoding
from .. import obstacles as clouds
from ..convert import BadMessage
from ..elevation import MapElevation, RoadSurface, VehiclePlane
from ..lanelet_map import LaneletMap, lanelets_of_route
from ..map_drivable import MapDrivableArea
from .channel import Channel, InputStatus, Level
from .route import command_along, route_around_ego
from .store import MessageStore


@dataclass(frozen=True)
class Snapshot:
    """An observation, or the sentences that explain why there is none."""

    observation: Observation | None
    ego: EgoState | None  # also without images or route: enough for a stop plan
    agents: Agents | None
    problems: tuple[str, ...]
    image_stamp_ns: int | None  # of the anchor camera
    surface: RoadSurface | None  # heights for what is published; known if the ego state is


class Inputs(MessageStore):
    """The stored messages, and the queries of the planning thread."""

    def __init__(self, config: Config, image_size: tuple[int, int] | None = None) -> None:
        """As `MessageStore`."""
        super().__init__(config, image_size)
        self._map_drivable: MapDrivableArea | None = None  # of the newest map
        self._map_executor = ThreadPoolExecutor(1, "map_drivable")
        self._with_vectors = config.planner in VECTOR_PLANNERS
        self._history, self._history_restarts = AgentHistoryBuffer(), 0
        self._elevation: tuple[LaneletMap, Future[MapElevation | None]] | None = None  # computed or being computed
        self.ignored: dict[str, dict[str, int]] = {}  # objects, obstacles: reason -> count, of the newest message
        if self._with_vectors:
            self._newest_lane_segments()  # those of a file are computed here, not while driving

    # --- when to plan ------------------------------------------------------------------------------------------------

    def due(self, now_ns: int) -> bool:
        """Whether a planning step should start: for a new image of the anchor camera once the other cameras' images of
        that instant have arrived or are overdue. Without images, where none are required: for odometry every 0.1 s."""
        with self._lock:
            anchor = self._images[self._config.cameras.anchor].newest()
            if anchor is not None and anchor[0] > self._planned_image_ns:
                if all(self._match(channel, anchor[0]) for channel in self._images.values()):
                    return True
                waiting_ns = anchor[0] if self._waiting_ns is None else self._waiting_ns
                return (now_ns - waiting_ns) * 1e-9 > 2 * self._config.cameras.match_tolerance_s
            if self._config.needs_cameras or (
                anchor is not None and (now_ns - anchor[0]) * 1e-9 <= self._config.inputs.image_max_age_s
            ):
                return False
            odometry = self._odometry.newest()
            return odometry is not None and odometry[0] - self._planned_odometry_ns >= 99_000_000

    def _match(self, channel: Channel, stamp_ns: int) -> tuple[int, Any] | None:
        found = channel.nearest(stamp_ns)
        tolerance_ns = self._config.cameras.match_tolerance_s * 1e9
        return found if found is not None and abs(found[0] - stamp_ns) <= tolerance_ns else None

    # --- what to plan from -------------------------------------------------------------------------------------------

    def snapshot(self, now_ns: int) -> Snapshot:
        """Convert the newest messages to an observation, or report why there is none."""
        with self._lock:
            anchor = self._images[self._config.cameras.anchor].newest()
            images = {} if anchor is None else {n: self._match(c, anchor[0]) for n, c in self._images.items()}
            odometry, acceleration = self._odometry.newest(), self._acceleration.newest()
            objects, route, grid = self._objects.newest(), self._route.newest(), self._drivable.newest()
            cloud = self._obstacles.newest()
            self._waiting_ns = None
            if anchor is not None:
                self._planned_image_ns = anchor[0]
            if odometry is not None:
                self._planned_odometry_ns = odometry[0]
        problems: list[str] = []
        ego, surface = self._ego(odometry, acceleration, now_ns, problems)
        tracked = None if ego is None else self._tracked(objects, ego, now_ns)
        agents = None if ego is None or tracked is None else convert.agents_to_ego_frame(tracked, ego)
        drivable = None if ego is None else self._drivable_space(grid, ego, now_ns)
        obstacles = None if ego is None else self._boxes(cloud, ego, agents, now_ns)
        route_map = self._route_in_map(route, problems)
        ahead = None if ego is None or route_map is None else self._route_ahead(route_map, ego)
        command = Command.FOLLOW if ahead is None else command_along(ahead)
        image_ns = None if anchor is None else anchor[0]
        cameras = self._cameras(
            image_ns, images, now_ns, problems
        )  # last: images are decoded in the background meanwhile
        unsteady = "" if ego is None else self._localisation_fault(ego.stamp_ns)
        problems += filter(None, [unsteady])
        if ego is None or ahead is None or cameras is None or unsteady:
            return Snapshot(None, ego, concat_agents(agents, obstacles), tuple(problems), image_ns, surface)
        observation = Observation(
            ego.stamp_ns,
            ego,
            ahead,
            command,
            self._config.speed_limit_mps,
            cameras,
            agents,
            drivable,
            self._instruction,
            _age_s(objects, ego),
            _age_s(grid, ego),
            obstacles,
            **(self._vectors(ego, tracked, agents, ahead) if self._with_vectors else {}),
        )
        return Snapshot(observation, ego, observation.others, tuple(problems), image_ns, surface)

    def ego(self, now_ns: int) -> Snapshot:
        """Ego state, agents and surface for a stop plan, without images; all None without usable odometry."""
        with self._lock:
            odometry, acceleration, objects, cloud = (
                channel.newest() for channel in (self._odometry, self._acceleration, self._objects, self._obstacles)
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
        self,
        odometry: tuple[int, Any] | None,
        acceleration: tuple[int, Any] | None,
        now_ns: int,
        problems: list[str],
    ) -> tuple[EgoState, RoadSurface] | tuple[None, None]:
        map_frame = self._config.output.map_frame

        def ego_and_plane(message: Any) -> tuple[EgoState, VehiclePlane]:
            return convert.ego_state(message, map_frame), convert.vehicle_plane(message)

        try:
            ego, plane = self._odometry.convert(odometry, now_ns, ego_and_plane)
        except BadMessage as fault:
            problems.append(str(fault))
            return None, None
        surface = RoadSurface(plane, self._newest_elevation())
        try:
            found = self._acceleration.convert(acceleration, now_ns, convert.acceleration)
        except BadMessage:
            return ego, surface  # acceleration 0; the channel's status reports the fault
        return replace(ego, acceleration_mps2=found), surface

    def _tracked(self, objects: tuple[int, Any] | None, ego: EgoState, now_ns: int) -> convert.MapAgents | None:
        """Agents in the map; None (unknown, not an empty road) if objects are missing, stale or malformed."""
        limits, frame = self._config.inputs, self._config.output.map_frame
        here = ego.map_from_ego[:2]
        try:
            found = self._objects.convert(
                objects,
                now_ns,
                lambda message: convert.map_agents(
                    message, frame, here, limits.object_extent_max_m, limits.objects_max
                ),
            )
        except BadMessage:
            return None
        self.ignored["objects"] = found.ignored
        return found

    def _vectors(
        self, ego: EgoState, tracked: convert.MapAgents | None, agents: Agents | None, route: Array
    ) -> dict[str, Any]:
        """Lanes and history of an observation whose route (L, 3) is in the ego frame; no input tells of lights."""
        if self._history_restarts != self.restarts:
            self._history_restarts = self.restarts
            self._history.clear()
        found: dict[str, Any] = {}
        if tracked is not None and agents is not None:
            self._history.put(tracked.stamp_ns, tracked.ids, tracked.agents.poses, tracked.agents.velocities_mps)
            found["history"] = self._history.history(ego.stamp_ns, ego.map_from_ego, tracked.ids, agents)
        segments = self._newest_lane_segments()
        if segments is not None:
            found["lanes"] = segments.near(ego.map_from_ego)
            if self._config.inputs.route_type == "lanelet" and self._cache.route is not None:
                on_route = lanelets_of_route(self._cache.route[0])
                found["route_lanes"] = segments.along(route, on_route, ego.map_from_ego)
            else:
                found["route_lanes"] = segments.along_line(route, ego.map_from_ego)
        return found

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
        if not self._config.uses_map:
            return None
        try:
            return self._newest_map()
        except BadMessage:
            return None

    def _boxes(self, cloud: tuple[int, Any] | None, ego: EgoState, agents: Agents | None, now_ns: int) -> Agents | None:
        """Obstacle boxes of a point cloud in the ego frame, None likewise. Each cloud is converted once."""

        def boxes(message: Any) -> clouds.Obstacles:
            if self._cache.boxes is not None and self._cache.boxes[0] is message:
                return self._cache.boxes[1]
            return clouds.obstacle_boxes(
                message, self._transforms, ego, agents, self._config.inputs, self._config.vehicle
            )

        if self._config.inputs.obstacles_type == "none":
            return None
        try:
            found = self._obstacles.convert(cloud, now_ns, boxes)
        except BadMessage:
            return None
        assert cloud is not None
        self._cache.boxes, self.ignored["obstacles"] = (cloud[1], found), found.ignored
        return clouds.boxes_to_ego_frame(found, ego)

    def _drivable_space(self, grid: tuple[int, Any] | None, ego: EgoState, now_ns: int) -> DrivableGrid | None:
        """Drivable area in the ego frame; None (unknown, not the same as no road) without a usable grid or map."""
        try:
            if self._config.inputs.drivable_type == "map":
                lanelets = self._newest_map()
                if self._map_drivable is None or self._map_drivable.lanelets is not lanelets:
                    self._map_drivable = MapDrivableArea(lanelets, self._map_executor)
                found = self._map_drivable.around(ego)
                self._cache.map_fault = ""
                return found
            if self._config.inputs.drivable_type == "none":
                return None
            return convert.grid_to_ego_frame(
                self._drivable.convert(grid, now_ns, partial(self._convert_grid, ego)), ego
            )
        except BadMessage as fault:
            self._cache.map_fault = f"drivable: {fault}"
            return None

    def _convert_grid(self, ego: EgoState, message: Any) -> convert.MapGrid:
        limits = self._config.inputs
        if self._cache.grid is None or self._cache.grid[0] is not message:
            frame = self._config.output.map_frame
            made = convert.map_grid(message, frame, ego, limits.grid_free_below, limits.grid_resolution_max_m)
            self._cache.grid = message, made
        return self._cache.grid[1]

    def _newest_map(self) -> LaneletMap:
        """The map of the file, or the newest of the topic. Raises BadMessage while there is none."""
        if self._vector_map is not None:
            return self._vector_map.newest()
        assert self._file_map is not None
        return self._file_map

    def _route_in_map(self, route: tuple[int, Any] | None, problems: list[str]) -> Array | None:
        lanelets = None
        if self._config.inputs.route_type == "lanelet":
            try:
                lanelets = self._newest_map()
            except BadMessage as fault:
                problems += [str(fault), *filter(None, [self._route.problem(0)])]
                return None
        cached = self._cache.route
        if (
            self._route.blocked
            or route is None
            or cached is None
            or cached[0] is not route[1]
            or cached[1] is not lanelets
        ):
            try:
                made = self._route.convert(route, 0, partial(self._convert_route, lanelets))
            except BadMessage as fault:
                problems.append(str(fault))
                return None
            assert route is not None
            self._cache.route, self._cache.route_position_m = (route[1], lanelets, made), None
            return made
        return cached[2]

    def _convert_route(self, lanelets: LaneletMap | None, message: Any) -> Array:
        frame, points_max = self._config.output.map_frame, self._config.inputs.route_points_max
        if lanelets is None:
            return convert.path_route(message, frame, points_max)
        poses, _ = lanelets.route(message, frame, points_max)
        return poses

    def _route_ahead(self, route: Array, ego: EgoState) -> Array:
        ahead, self._cache.route_position_m = route_around_ego(route, ego, self._cache.route_position_m)
        return ahead

    def _cameras(
        self, image_ns: int | None, images: dict[str, Any], now_ns: int, problems: list[str]
    ) -> tuple[CameraFrame, ...] | None:
        """Frames of both instants, oldest first. Without usable images: () if cameras are optional, else None."""
        faults: list[str] = []
        current = self._current_instant(image_ns, images, now_ns, faults)
        if current is None and not self._config.needs_cameras:
            return ()  # the diagnostics of the images have the faults
        if current is None:
            problems.extend(faults)
            return None
        assert image_ns is not None
        settings = self._config.cameras
        target = image_ns - settings.pair_interval_s * 1e9
        older = min(self._cache.frames, key=lambda item: abs(item[0] - target), default=None)
        self._cache.frames.append((image_ns, current))
        horizon = image_ns - (settings.pair_interval_s + settings.pair_tolerance_s) * 1e9
        while self._cache.frames and self._cache.frames[0][0] < horizon:
            self._cache.frames.popleft()
        if older is None or abs(older[0] - target) > settings.pair_tolerance_s * 1e9:
            return current
        return (*older[1], *current)

    def _current_instant(
        self, image_ns: int | None, images: dict[str, Any], now_ns: int, faults: list[str]
    ) -> tuple[CameraFrame, ...] | None:
        def frame_or_fault(name: str) -> CameraFrame | str:
            """The camera's frame, or why there is none."""
            channel, found = self._images[name], images.get(name)
            if found is None and not channel.problem(now_ns) and image_ns is not None:
                near = channel.nearest(image_ns)
                apart = abs(near[0] - image_ns) * 1e-9 if near else float("inf")
                allowed = self._config.cameras.match_tolerance_s
                return f"image {name}: nearest is {apart:.2f} s from the anchor's image, allowed {allowed:.2f} s"
            try:
                return channel.convert(found, now_ns, partial(self._frame, name))
            except BadMessage as fault:
                return str(fault)

        results = [frame_or_fault(name) for name in self._images]
        faults += [result for result in results if isinstance(result, str)]
        return None if faults else tuple(result for result in results if not isinstance(result, str))

    def _frame(self, name: str, message: Any) -> CameraFrame:
        info = self._infos[name].newest()
        if info is None:
            raise BadMessage(f"camera {name}: no camera_info received")
        width, height = self._image_size
        begun, decoding = self._decoding.get(name, (None, None))
        if decoding is not None and begun is message:
            pixels, _ = decoding.result()
        else:
            pixels, _ = image_decoding.pixels(message, name, width, height)
        matrix = convert.intrinsics(info[1], name)
        scale = np.diag([width / max(info[1].width, 1), height / max(info[1].height, 1), 1.0])
        return CameraFrame(
            convert.stamp_ns(message.header),
            name,
            pixels,
            scale @ matrix,
            convert.camera_from_ego(self._transforms, name, message.header.frame_id),
        )

    def wait_idle(self) -> None:
        """Wait until background work is done, so that a replay does not depend on its speed."""
        for worker in (self._vector_map, self._map_drivable):
            if worker is not None:
                worker.wait_idle()
        if self._elevation is not None:
            wait([self._elevation[1]])

    # --- diagnostics -------------------------------------------------------------------------------------------------

    def statuses(self, now_ns: int) -> list[InputStatus]:
        with self._lock:
            if self._vector_map is not None:
                self._map.blocked = self._vector_map.problem()
                self._map.refused += self._vector_map.refused - self._maps_refused
                self._maps_refused = self._vector_map.refused
            statuses = [channel.status(now_ns) for channel in self.channels()]
            odometry = self._odometry.newest()
        if odometry is not None and (unsteady := self._localisation_fault(odometry[0])):
            statuses = [
                replace(s, level=Level.ERROR, message=unsteady) if s.name == "odometry" else s for s in statuses
            ]
        if self._config.inputs.drivable_type == "map":
            level = Level.WARN if self._cache.map_fault else Level.OK
            statuses.append(InputStatus("drivable", level, self._cache.map_fault or "from the map", {}))
        return [_with_ignored(status, self.ignored.get(status.name, {})) for status in statuses]


def _with_ignored(status: InputStatus, ignored: dict[str, int]) -> InputStatus:
    if not ignored:
        return status
    listed = ", ".join(f"{count} {reason}" for reason, count in sorted(ignored.items()))
    return replace(status, level=max(status.level, Level.WARN), message=f"{status.message}; ignored: {listed}")


def _age_s(item: tuple[int, Any] | None, ego: EgoState) -> float:
    """Age of a message relative to the ego state, s; 0 without a message."""
    return 0.0 if item is None else max((ego.stamp_ns - item[0]) * 1e-9, 0.0)
