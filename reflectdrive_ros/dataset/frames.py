"""Frames of a recorded drive: the node's observation at every tick, with the past and future around it.

    drive = Drive("monday", config, image_size, sources, lanelets, FrameLimits(), ())
    for row, scene in drive.frames(reader, route, range(240), with_scenes=True):
        ..                                               # scene: None where row.reasons say why

The messages of a bag go through the node's own inputs in the order received, and a snapshot is taken whenever the node
would plan. The first snapshot in a tick is its observation; of the others no images are decoded. Nothing received later
changes it; what follows is used for the expert, the future of agents and the checks only. Messages of the last and the
next few seconds are in memory.

Ticks may be of any part of the bag: until shortly before them objects are left out, all other messages are read.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import shapely

from ..core import geometry, kinematics
from ..core.agent_history import AgentHistoryBuffer
from ..core.config import Config
from ..core.domain import AgentHistory, Array, Command, EgoState, Observation
from ..core.messages import BadMessage
from ..data.frame_index import FrameRow
from ..data.recorded_tags import scenario_tag
from ..data.scene import FUTURE_STEPS, HISTORY_STEPS, DrivingScene, Tracks
from ..features import cameras
from ..maps.lanelet_map import LaneletMap
from ..ros import convert, image_decoding
from ..ros.bag import BagError, BagMessage, BagReader
from ..ros.inputs.camera_rig import RigInput
from ..ros.inputs.channel import Level
from ..ros.inputs.snapshot import Inputs
from ..ros.inputs.store import read_message
from ..scoring import metrics
from ..scoring.areas import MapAreas, RedLights
from ..scoring.scorer import Reference
from .checks import CHECKED_STANDING_MPS, FrameLimits, collides, distance_to, problem_reason, stands
from .checks import FUTURE_STEPS as EXPERT_STEPS
from .lights import LightRecord, red_ahead, runs_red
from .tracks import ObjectSample, tracks_of

LEAD_NS = 10_000_000_000  # before the first tick, from where on objects are read: their history has 2 s
WAIT_NS = 6_000_000_000  # a tick is completed this long after its observation: 5 s of objects, and their delay
BEFORE_NS, AFTER_NS = 2_600_000_000, 5_600_000_000  # of odometry that a tick needs around it
TIME_TOLERANCE_S = 0.15  # by which past or future may be too short: odometry comes every 0.1 s or faster
PLACE_M = 100.0  # side of a tile of the map
MAP_DISTANCE_MAX_M = 200.0  # a car further from all lanes is in another frame than they
AREAS_RADIUS_M = 100.0  # a plan of 4 s gets no further at any limit of a town
LANE_GAP_M = 0.05  # by which lanes are grown to drivable space: adjacent ones have hairline gaps
ROUTE_STEP_M = 2.0
EXPERT_AT = 5 * np.arange(1, 9)  # steps of 0.1 s


@dataclass(frozen=True)
class OdometrySample:
    """One odometry message."""

    stamp_ns: int
    map_from_ego: Array  # (3,)
    position_std_m: float
    jumped: bool  # position or clock jumped since the one before
    stood_s: float  # how long the car has stood


@dataclass(frozen=True)
class Pending:
    """A tick whose future is not complete yet."""

    tick: int
    now_ns: int
    observation: Observation | None
    ego: EgoState | None
    problem: str
    ids: tuple[bytes, ...] = ()  # of the observation's agents
    history: AgentHistory | None = None  # likewise


@dataclass
class Drive:
    """What one bag is converted with, and its messages around the present."""

    name: str
    config: Config
    image_size: tuple[int, int]
    sources: Mapping[str, str]  # input -> topic of the bag
    lanelets: LaneletMap | None
    map_name: str  # names the places; the drive's name without a map
    limits: FrameLimits
    overrides: Sequence[tuple[float, float]]  # seconds from the bag's start
    hindsight: bool  # route from the driven path
    tick_s: float = 0.5
    fed: frozenset[str] = frozenset()  # inputs that the node reads; others are for the checks alone
    odometry: deque[OdometrySample] = field(default_factory=deque)
    objects: deque[ObjectSample] = field(default_factory=deque)

    def __post_init__(self) -> None:
        self._sizes: dict[str, dict[str, tuple[int, int]]] = {}
        self._moved_ns: int | None = None
        self._rig: RigInput | None = None
        self._jumped: bool = False  # position or clock, since the last odometry
        self._objects_message: Any = None  # the newest, until it is kept
        self._on_map = self.lanelets is None
        max_age_s = self.config.inputs.max_ages_s["lights"]
        self._lights = None if self.lanelets is None else LightRecord(self.lanelets, max_age_s)

    def frames(
        self, reader: BagReader, route: Any | None, ticks: Sequence[int], *, with_scenes: bool
    ) -> Iterator[tuple[FrameRow, DrivingScene | None]]:
        """The rows of ticks, which ascend, and where one is valid, `with_scenes`, its scene. Ticks after the end of the
        bag have none. `route`: a nav_msgs/Path that is put in before the first message.

        Raises BagError for a bag that cannot be used.
        """
        requested, last = set(ticks), max(ticks, default=-1)
        tick_ns = round(self.tick_s * 1e9)
        lead_ns = reader.start_ns + min(ticks, default=0) * tick_ns - LEAD_NS
        pending: deque[Pending] = deque()
        for now_ns, arrived in self._observe(reader, route, requested, lead_ns):
            if arrived is not None:
                pending.append(arrived)
            while pending and now_ns >= pending[0].now_ns + WAIT_NS:
                yield self._complete(pending.popleft(), reader.start_ns, with_scenes)
                self._forget(pending[0].now_ns if pending else now_ns)
            if not pending and now_ns >= reader.start_ns + (last + 2) * tick_ns:
                break
        while pending:
            yield self._complete(pending.popleft(), reader.start_ns, with_scenes)

    def _observe(
        self, reader: BagReader, route: Any | None, requested: Collection[int], lead_ns: int
    ) -> Iterator[tuple[int, Pending | None]]:
        """The time of reception of each message, and the requested ticks that have their observation then."""
        if self.config.cameras.reproject:
            self._rig = RigInput(cameras.rig(*self.image_size), self.config.cameras)
        inputs = Inputs(self.config, self.image_size, self._rig, decode_ahead=False)
        if route is not None:
            inputs.store.put("route", route, 0)
        keys = {name: key for key, name in self.sources.items()}
        for topic in reader.topics:
            if topic.name in keys:
                reader.layout(topic.type_name)  # raises BagError where it cannot be read
        history, restarts = AgentHistoryBuffer(), 0
        tick = 0  # the first without an observation
        tick_ns = round(self.tick_s * 1e9)
        for message in reader.messages(keys):
            now_ns, key = message.received_ns, keys[message.topic]
            while now_ns >= reader.start_ns + (tick + 1) * tick_ns:  # it is over, and no step was due
                over_ns = reader.start_ns + (tick + 1) * tick_ns
                if tick in requested:
                    statuses = inputs.statuses(now_ns)
                    problem = (
                        "; ".join(s.message for s in statuses if s.level >= Level.ERROR) or "no new image in this tick"
                    )
                    yield now_ns, Pending(tick, over_ns, None, None, problem)
                tick += 1
            if key == "objects" and now_ns < lead_ns:
                continue
            content = self._put(inputs, key, message)
            self._jumped |= inputs.store.restarts != restarts
            if content is not None:
                self._keep(key, content)
            if inputs.store.restarts != restarts:
                restarts, self._objects_message = inputs.store.restarts, None
                history.clear()
            if inputs.due(now_ns):
                begins = now_ns >= reader.start_ns + tick * tick_ns
                inputs.wait_idle()
                snapshot = inputs.snapshot(now_ns, with_observation=begins and tick in requested)
                tracked, observation = snapshot.tracked, snapshot.observation
                if tracked is not None:
                    self._keep_objects(tracked)
                    history.put(tracked.stamp_ns, tracked.ids, tracked.agents.poses, tracked.agents.velocities_mps)
                if begins and tick in requested:
                    ids: tuple[bytes, ...] = ()
                    past = None
                    if tracked is not None and observation is not None and observation.agents is not None:
                        ego = observation.ego
                        ids = tracked.ids
                        past = history.history(ego.stamp_ns, ego.map_from_ego, ids, observation.agents)
                    problem = "; ".join(snapshot.problems)
                    yield now_ns, Pending(tick, now_ns, observation, snapshot.ego, problem, ids, past)
                tick += begins
            yield now_ns, None
        self._keep_objects(None)

    @property
    def notice(self) -> str:
        """Sentences about the cameras, after the last frame."""
        rig = self._rig
        return rig.status().message if rig is not None and (rig.status().level >= Level.WARN or rig.sees_behind) else ""

    # --- messages -----------------------------------------------------------------------------------------------------

    def _put(self, inputs: Inputs, key: str, message: BagMessage) -> Any | None:
        """Gives a message of the bag to the node's inputs; None for a damaged one, which they count."""
        try:
            content = read_message(key, message.data, message.layout, self.config.inputs)
        except BadMessage as fault:
            if key in self.fed:
                inputs.store.refuse(key, fault, message.received_ns)
            return None
        self._check_camera(key, content)
        if key in self.fed:
            inputs.store.put(key, content, message.received_ns)
        return content

    def _check_camera(self, key: str, message: Any) -> None:
        """Raises BagError where camera_info and images of a camera differ in size."""
        kind, _, camera = key.partition(":")
        if kind not in ("image", "info"):
            return
        with suppress(BadMessage):
            size = (
                (int(message.width), int(message.height))
                if kind == "info"
                else image_decoding.image_size(message, camera)
            )
            sizes = self._sizes.setdefault(camera, {})
            sizes[kind] = size
            if len(sizes) == 2 and sizes["image"] != sizes["info"]:
                (width, height), (info_width, info_height) = sizes["image"], sizes["info"]
                raise BagError(
                    f"the images of camera {camera} have {width} x {height} px, its camera_info says {info_width} x "
                    f"{info_height}: record the camera_info of these images"
                )

    def _keep(self, key: str, message: Any) -> None:
        """Keeps the motion of ego and objects."""
        frame = self.config.output.map_frame
        with suppress(BadMessage):  # the node's inputs report it
            if key == "odometry":
                ego = convert.ego_state(message, frame)
                self._check_map(ego)
                if self.odometry and ego.stamp_ns <= self.odometry[-1].stamp_ns:
                    if not self._jumped:
                        return
                    self.odometry.clear()  # another clock
                    self.objects.clear()
                    if self._lights is not None:
                        self._lights.clear()
                if self._moved_ns is None or abs(ego.speed_mps) > CHECKED_STANDING_MPS or self._jumped:
                    self._moved_ns = ego.stamp_ns
                variance = max(float(message.pose.covariance[0]), float(message.pose.covariance[7]))
                std_m = float(np.sqrt(variance)) if variance >= 0.0 else float("inf")
                stood_s = (ego.stamp_ns - self._moved_ns) * 1e-9
                self.odometry.append(OdometrySample(ego.stamp_ns, ego.map_from_ego, std_m, self._jumped, stood_s))
                self._jumped = False
            elif key == "lights" and self._lights is not None:
                self._lights.put(message)
            elif key == "objects":
                self._keep_objects(None)
                self._objects_message = message

    def _keep_objects(self, tracked: convert.MapAgents | None) -> None:
        """Keeps the newest objects, from `tracked` where a step has converted them already."""
        message, self._objects_message = self._objects_message, None
        if message is None or not self.odometry:
            return
        with suppress(BadMessage):
            if tracked is None or tracked.stamp_ns != convert.stamp_ns(message.header):
                near, frame = self.odometry[-1].map_from_ego[:2], self.config.output.map_frame
                tracked = convert.map_agents(message, frame, near)
            if not self.objects or tracked.stamp_ns > self.objects[-1].stamp_ns:
                rows = {name: row for row, name in enumerate(tracked.ids)}
                self.objects.append(ObjectSample(tracked.stamp_ns, rows, tracked.agents))

    def _check_map(self, ego: EgoState) -> None:
        """Raises BagError where the first odometry is far from the map."""
        if self._on_map or self.lanelets is None:
            return
        near = near_polygons(self.lanelets, ego.map_from_ego, MAP_DISTANCE_MAX_M)
        if not near:
            raise BagError(
                f"the car starts more than {MAP_DISTANCE_MAX_M:.0f} m from every lane of {self.lanelets.source.name}: "
                f"they are in different frames; {self.lanelets.source.if_misplaced}"
            )
        self._on_map = True

    def _forget(self, now_ns: int) -> None:
        """Drops what no pending tick needs."""
        while self.odometry and self.odometry[0].stamp_ns < now_ns - BEFORE_NS:
            self.odometry.popleft()
        while self.objects and self.objects[0].stamp_ns < now_ns - BEFORE_NS:
            self.objects.popleft()
        if self._lights is not None:
            self._lights.forget(now_ns - BEFORE_NS)

    # --- completed ticks ----------------------------------------------------------------------------------------------

    def _complete(self, each: Pending, start_ns: int, with_scene: bool) -> tuple[FrameRow, DrivingScene | None]:
        reasons = [problem_reason(part) for part in each.problem.split("; ") if part]
        ego, observation = each.ego, each.observation
        if observation is not None:
            reasons += self._input_reasons(observation)
        tag, scene = "", None
        if ego is not None:
            around = self._around(ego.stamp_ns)
            reasons += self._odometry_reasons(around, ego.stamp_ns)
            reasons += self._override_reasons(each.now_ns, start_ns)
            if observation is not None and not {"incomplete_history", "incomplete_future"} & set(reasons):
                path = path_at(around, ego, 0.1 * np.arange(EXPERT_STEPS + 1))
                tracks = tracks_of(observation, each.ids, each.history, self.objects)
                tag = scenario_tag(path, ego.speed_mps, tracks)
                stood_s = next((s.stood_s for s in reversed(around) if s.stamp_ns <= ego.stamp_ns), 0.0)
                if stands(path, stood_s, self.limits):
                    reasons.append("standing")
                reasons += self._road_reasons(path, ego)
                lights = RedLights() if self._lights is None else self._lights.red_lights(ego, observation.route)
                if runs_red(path, lights, self.config.vehicle):
                    reasons.append("runs_red_light")
                if tag == "straight" and red_ahead(lights):
                    tag = "red_light"
                if collides(path, tracks, self.config.vehicle, self.limits):
                    reasons.append("future_collides")
                if with_scene and not reasons:
                    scene = self._scene(each, observation, around, path, tracks, lights, tag)
        x_m, y_m = (0.0, 0.0) if ego is None else ego.map_from_ego[:2].tolist()
        row = FrameRow(
            drive=self.name,
            tick=each.tick,
            stamp_ns=each.now_ns if ego is None else ego.stamp_ns,
            valid=not reasons,
            reasons=tuple(dict.fromkeys(reasons)),
            problem=each.problem[:300],
            x_m=round(x_m, 3),
            y_m=round(y_m, 3),
            speed_mps=0.0 if ego is None else round(ego.speed_mps, 3),
            place="" if ego is None else self._place(x_m, y_m),
            tag=tag,
            command=(Command.FOLLOW if observation is None else observation.command).name,
            hindsight=self.hindsight,
            objects=observation is not None and observation.agents is not None,
        )
        return row, scene

    def _place(self, x_m: float, y_m: float) -> str:
        return f"{self.map_name}/{int(x_m // PLACE_M)}_{int(y_m // PLACE_M)}"

    def _input_reasons(self, observation: Observation) -> Iterator[str]:
        cameras = len(self.config.cameras.names)
        if observation.cameras and len(observation.cameras) != 2 * cameras:
            yield "missing_input"
        if "objects" in self.sources and observation.agents is None:
            yield "stale_input"
        if len(observation.route) < 2:
            yield "missing_input"

    def _around(self, stamp_ns: int) -> list[OdometrySample]:
        return [s for s in self.odometry if stamp_ns - BEFORE_NS <= s.stamp_ns <= stamp_ns + AFTER_NS]

    def _odometry_reasons(self, around: Sequence[OdometrySample], stamp_ns: int) -> Iterator[str]:
        times_s = np.array([(sample.stamp_ns - stamp_ns) * 1e-9 for sample in around])
        if not len(times_s) or times_s[0] > -2.0 + TIME_TOLERANCE_S:
            yield "incomplete_history"
        objects_end_s = (self.objects[-1].stamp_ns - stamp_ns) * 1e-9 if self.objects else 0.0
        objects_short = "objects" in self.sources and objects_end_s < 0.1 * FUTURE_STEPS - TIME_TOLERANCE_S
        if not len(times_s) or times_s[-1] < 4.0 or objects_short:
            yield "incomplete_future"
        inside = [k for k in range(len(around)) if -2.0 <= times_s[k] <= 4.0]
        if len(inside) > 1 and np.diff(times_s[inside]).max() > self.limits.gap_s:
            yield "gap"
        if any(around[k].jumped for k in inside):
            yield "localisation_jump"
        if any(around[k].position_std_m > self.limits.position_std_m for k in inside):
            yield "localisation_covariance"

    def _override_reasons(self, now_ns: int, start_ns: int) -> Iterator[str]:
        at_s = (now_ns - start_ns) * 1e-9
        if any(first < at_s + 4.0 and last > at_s for first, last in self.overrides):
            yield "manual_override"

    def _road_reasons(self, path: Array, ego: EgoState) -> Iterator[str]:
        if self.lanelets is None:
            return
        vehicle = self.config.vehicle
        reach_m = float(np.hypot(*path[:, :2].T).max()) + vehicle.length_m + self.limits.off_lane_m
        near = near_polygons(self.lanelets, ego.map_from_ego, reach_m)
        if distance_to(near, ego.map_from_ego[None, :2])[0] > self.limits.off_lane_m:
            yield "off_lane"
        centers = kinematics.box_centres(geometry.compose(ego.map_from_ego, path[::5]), vehicle)
        corners = geometry.box_corners(centers, np.array([vehicle.length_m, vehicle.width_m])).reshape(-1, 2)
        if (distance_to(near, corners) > self.limits.off_road_m).any():
            yield "future_off_road"

    def _scene(
        self,
        each: Pending,
        observation: Observation,
        around: Sequence[OdometrySample],
        path: Array,
        tracks: Tracks,
        lights: RedLights,
        tag: str,
    ) -> DrivingScene:
        ego, vehicle = observation.ego, self.config.vehicle
        before = [sample for sample in around if sample.stamp_ns <= ego.stamp_ns]
        centers = kinematics.box_centres(path, vehicle)
        progress_m = float(metrics.progress(centers[None], observation.route)[0])
        return DrivingScene(
            name=f"{self.name}-{each.tick:06d}",
            family=tag,
            network=self.map_name,
            network_hash=hashlib.sha256(self.map_name.encode()).hexdigest(),
            seed=0,
            ego=ego,
            ego_history=path_at(before, ego, 0.1 * np.arange(-HISTORY_STEPS, 1)),
            command=observation.command,
            instruction=observation.instruction,
            speed_limit_mps=observation.speed_limit_mps,
            route=observation.route,
            areas=areas_around(self.lanelets, ego.map_from_ego, observation.route),
            red_lights=lights,
            tracks=tracks,
            expert=path[EXPERT_AT],
            reference=Reference(max(progress_m, 0.0)),
            cameras=observation.cameras,
            notes={
                "drive": self.name,
                "route": "driven" if self.hindsight else "bag",
                "objects": observation.agents is not None,
                "map": self.lanelets is not None,
                "place": self._place(*ego.map_from_ego[:2]),
            },
        )


def path_at(samples: Sequence[OdometrySample], ego: EgoState, at_s: Array) -> Array:
    """(T, 3) poses of the rear axle at times from the ego's stamp, in its frame; linear between odometry."""
    times_s = np.array([(sample.stamp_ns - ego.stamp_ns) * 1e-9 for sample in samples])
    poses = geometry.compose(geometry.invert(ego.map_from_ego), np.array([s.map_from_ego for s in samples]))
    here = int(np.argmin(np.abs(times_s)))
    headings = np.unwrap(poses[:, 2])
    headings -= round(headings[here] / (2 * np.pi)) * 2 * np.pi
    columns = (poses[:, 0], poses[:, 1], headings)
    return np.stack([np.interp(at_s, times_s, column) for column in columns], axis=-1)


def near_polygons(lanelets: LaneletMap, map_from_ego: Array, reach_m: float) -> list[Any]:
    """Polygons of the lanes for cars within a distance of a pose (3,), map frame."""
    position = map_from_ego[:2]
    point = shapely.Point(position)
    return [part for part in lanelets.road_near(position, reach_m) if shapely.dwithin(part, point, reach_m)]


def areas_around(lanelets: LaneletMap | None, map_from_ego: Array, route: Array) -> MapAreas:
    """Lanes and drivable space within AREAS_RADIUS_M, ego frame; none without a map. The lanes that contain points of
    the route (L, 3, ego frame) count as on the route. A hole counts as inside."""
    if lanelets is None:
        return MapAreas()
    ego_from_map = geometry.invert(map_from_ego)
    length_m = float(geometry.arc_lengths(route)[-1])
    line = shapely.points(geometry.sample(route, np.arange(0.0, length_m, ROUTE_STEP_M))[:, :2])
    lanes, on_route, roads = [], [], []
    for polygon in near_polygons(lanelets, map_from_ego, AREAS_RADIUS_M):
        part = shapely.transform(polygon, lambda points: geometry.transform_points(ego_from_map, points))
        shapely.prepare(part)
        lanes.append(geometry.outer_ring(part))
        on_route.append(bool(shapely.contains(part, line).any()))
        roads.append(geometry.outer_ring(part.buffer(LANE_GAP_M, join_style="mitre", mitre_limit=2.0)))
    return MapAreas(tuple(lanes), tuple(on_route), roadblocks=tuple(roads))
