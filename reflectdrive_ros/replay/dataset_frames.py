"""Frames of a recorded drive: the node's observation at every tick, with the past and future around it.

    drive = Drive("monday", config, image_size, sources, lanelets, FrameLimits(), ())
    for row, scene in drive.frames(reader, route):       # scene: None where row.reasons say why

The messages of a bag go through the node's own inputs in the order received, and a snapshot is taken whenever the node
would plan. The first snapshot in a tick is its observation. Nothing received later changes it; what follows is used for
the expert, the future of agents and the checks only. Messages of the last and the next few seconds are in memory.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .. import geometry, kinematics
from ..agent_history import AgentHistoryBuffer
from ..config import Config
from ..data.frame_index import FrameRow
from ..data.recorded_tags import scenario_tag
from ..data.scene import FUTURE_STEPS, HISTORY_STEPS, NOW, TRACK_STEPS, DrivingScene, Tracks
from ..domain import AgentHistory, Array, Command, EgoState, Observation
from ..features import cameras
from ..ros import convert, image_decoding
from ..ros.bag import BagError, BagReader, DamagedMessage
from ..ros.convert import BadMessage
from ..ros.inputs.camera_rig import RigInput
from ..ros.inputs.channel import Level
from ..ros.inputs.snapshot import Inputs
from ..ros.lanelet_map import LaneletMap
from ..scoring import metrics
from ..scoring.areas import RedLights
from ..scoring.scorer import Reference
from .dataset_checks import (
    FUTURE_STEPS as EXPERT_STEPS,
)
from .dataset_checks import STANDING_MPS, FrameLimits, collides, distance_to, problem_reason, stands
from .dataset_lights import LightRecord, red_ahead, runs_red
from .dataset_map import areas_around, near_polygons
from .scores import MAX_TRACK_GAP_S

WAIT_NS = 6_000_000_000  # a tick is completed this long after its observation: 5 s of objects, and their delay
BEFORE_NS, AFTER_NS = 2_600_000_000, 5_600_000_000  # of odometry that a tick needs around it
TIME_TOLERANCE_S = 0.15  # by which past or future may be too short: odometry comes every 0.1 s or faster
PLACE_M = 100.0  # side of a tile of the map
MAP_DISTANCE_MAX_M = 200.0  # a car further from all lanes is in another frame than they
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
class ObjectSample:
    """One message of objects, in the map."""

    stamp_ns: int
    rows: Mapping[bytes, int]
    poses: Array  # (A, 3)
    speeds_mps: Array  # (A,)
    sizes: Array  # (A, 2)
    kinds: Array  # (A,)


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

    def frames(self, reader: BagReader, route: Any | None) -> Iterator[tuple[FrameRow, DrivingScene | None]]:
        """The row of every tick in order, and its scene where it is valid. `route`: a nav_msgs/Path that is put in
        before the first message.

        Raises BagError for a bag that cannot be used.
        """
        rig = RigInput(cameras.rig(*self.image_size), self.config.cameras) if self.config.cameras.reproject else None
        inputs = Inputs(self.config, self.image_size, rig)
        if route is not None:
            inputs.put("route", route, 0)
        keys = {name: key for key, name in self.sources.items()}
        pending: deque[Pending] = deque()
        history, restarts = AgentHistoryBuffer(), 0
        newest_objects: Any = None
        tick = 0  # the first without an observation
        tick_ns = round(self.tick_s * 1e9)
        for message in reader.messages(keys):
            now_ns, key = message.received_ns, keys[message.topic]
            while now_ns >= reader.start_ns + (tick + 1) * tick_ns:  # it is over, and no step was due
                statuses = inputs.statuses(now_ns)
                problem = (
                    "; ".join(s.message for s in statuses if s.level >= Level.ERROR) or "no new image in this tick"
                )
                over_ns = reader.start_ns + (tick + 1) * tick_ns
                pending.append(Pending(tick, over_ns, None, None, problem))
                tick += 1
            with suppress(DamagedMessage):  # counted by the checks: what it held is missing
                content = message.message()
                self._check_camera(key, content)
                if key in self.fed:
                    inputs.put(key, content, now_ns)
                self._jumped |= inputs.restarts != restarts
                self._keep(key, content)
                if key == "objects":
                    newest_objects = content
                if inputs.restarts != restarts:
                    restarts, newest_objects = inputs.restarts, None
                    history.clear()
            if inputs.due(now_ns):
                inputs.wait_idle()
                snapshot = inputs.snapshot(now_ns)
                begins = now_ns >= reader.start_ns + tick * tick_ns
                ids, past = self._history(history, newest_objects, snapshot.observation, begins)
                if begins:
                    problem = "; ".join(snapshot.problems)
                    pending.append(Pending(tick, now_ns, snapshot.observation, snapshot.ego, problem, ids, past))
                    tick += 1
            while pending and now_ns >= pending[0].now_ns + WAIT_NS:
                yield self._complete(pending.popleft(), reader.start_ns)
                self._forget(pending[0].now_ns if pending else now_ns)
        while pending:
            yield self._complete(pending.popleft(), reader.start_ns)
        if rig is not None and (rig.status().level >= Level.WARN or rig.sees_behind):
            self.notice = rig.status().message

    # --- messages -----------------------------------------------------------------------------------------------------

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
            known = self._sizes.setdefault(camera, {})
            known[kind] = size
            if len(known) == 2 and known["image"] != known["info"]:
                (width, height), (info_width, info_height) = known["image"], known["info"]
                raise BagError(
                    f"the images of camera {camera} have {width} x {height} px, its camera_info says {info_width} x "
                    f"{info_height}: record the camera_info of these images"
                )

    def __post_init__(self) -> None:
        self._sizes: dict[str, dict[str, tuple[int, int]]] = {}
        self._moved_ns: int | None = None
        self.notice = ""  # what is to be said of the cameras, after the last frame
        self._jumped: bool = False  # position or clock, since the last odometry
        self._on_map = self.lanelets is None
        max_age_s = self.config.inputs.lights_max_age_s
        self._lights = None if self.lanelets is None else LightRecord(self.lanelets, max_age_s)

    def _keep(self, key: str, message: Any) -> None:
        """Keeps the motion of ego and objects."""
        frame, limits = self.config.output.map_frame, self.config.inputs
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
                if self._moved_ns is None or abs(ego.speed_mps) > STANDING_MPS or self._jumped:
                    self._moved_ns = ego.stamp_ns
                variance = max(float(message.pose.covariance[0]), float(message.pose.covariance[7]))
                std_m = float(np.sqrt(variance)) if variance >= 0.0 else float("inf")
                stood_s = (ego.stamp_ns - self._moved_ns) * 1e-9
                self.odometry.append(OdometrySample(ego.stamp_ns, ego.map_from_ego, std_m, self._jumped, stood_s))
                self._jumped = False
            elif key == "lights" and self._lights is not None:
                self._lights.put(message)
            elif key == "objects" and self.odometry:
                near = self.odometry[-1].map_from_ego[:2]
                found = convert.map_agents(message, frame, near, limits.object_extent_max_m, limits.objects_max)
                if not self.objects or found.stamp_ns > self.objects[-1].stamp_ns:
                    agents = found.agents
                    rows = {name: row for row, name in enumerate(found.ids)}
                    speeds = np.hypot(*agents.velocities_mps.T)
                    self.objects.append(
                        ObjectSample(found.stamp_ns, rows, agents.poses, speeds, agents.sizes, agents.kinds)
                    )

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

    def _history(
        self, buffer: AgentHistoryBuffer, objects: Any | None, observation: Observation | None, wanted: bool
    ) -> tuple[tuple[bytes, ...], AgentHistory | None]:
        """Ids and history of the agents of an observation, from messages until then; only kept if not `wanted`."""
        if objects is None or observation is None or observation.agents is None:
            return (), None
        ego, limits = observation.ego, self.config.inputs
        try:
            tracked = convert.map_agents(
                objects,
                self.config.output.map_frame,
                ego.map_from_ego[:2],
                limits.object_extent_max_m,
                limits.objects_max,
            )
        except BadMessage:
            return (), None
        buffer.put(tracked.stamp_ns, tracked.ids, tracked.agents.poses, tracked.agents.velocities_mps)
        if not wanted:
            return (), None
        return tracked.ids, buffer.history(ego.stamp_ns, ego.map_from_ego, tracked.ids, observation.agents)

    def _forget(self, now_ns: int) -> None:
        """Drops what no pending tick needs."""
        while self.odometry and self.odometry[0].stamp_ns < now_ns - BEFORE_NS:
            self.odometry.popleft()
        while self.objects and self.objects[0].stamp_ns < now_ns - BEFORE_NS:
            self.objects.popleft()
        if self._lights is not None:
            self._lights.forget(now_ns - BEFORE_NS)

    # --- completed ticks ----------------------------------------------------------------------------------------------

    def _complete(self, each: Pending, start_ns: int) -> tuple[FrameRow, DrivingScene | None]:
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
                tracks = self._tracks(each, observation)
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
                if not reasons:
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

    def _tracks(self, each: Pending, observation: Observation) -> Tracks:
        """Agents now with their history as of then, and the objects recorded in the next 5 s."""
        ego, agents = observation.ego, observation.agents
        if agents is None or each.history is None:
            return empty_tracks()
        later = [sample for sample in self.objects if sample.stamp_ns > ego.stamp_ns]
        appearing = dict.fromkeys(name for sample in later for name in sample.rows if name not in each.ids)
        count = len(each.ids) + len(appearing)
        poses, speeds = np.zeros((count, TRACK_STEPS, 3)), np.zeros((count, TRACK_STEPS))
        present = np.zeros((count, TRACK_STEPS), bool)
        sizes, kinds = np.zeros((count, 2)), np.zeros(count, int)
        known = len(each.ids)
        poses[:known, : NOW + 1], present[:known, : NOW + 1] = each.history.poses, each.history.valid
        speeds[:known, : NOW + 1] = np.hypot(*np.moveaxis(each.history.velocities_mps, -1, 0))
        poses[:known, NOW], present[:known, NOW] = agents.poses, True
        speeds[:known, NOW] = np.hypot(*agents.velocities_mps.T)
        sizes[:known], kinds[:known] = agents.sizes, agents.kinds
        ego_from_map = geometry.invert(ego.map_from_ego)
        at_s = 0.1 * np.arange(1, FUTURE_STEPS + 1)
        later_poses = [geometry.compose(ego_from_map, sample.poses) for sample in later]  # all agents of one at once
        later_s = [(sample.stamp_ns - ego.stamp_ns) * 1e-9 for sample in later]
        for row, name in enumerate([*each.ids, *appearing]):
            seen = [(k, sample.rows[name]) for k, sample in enumerate(later) if name in sample.rows]
            times = [later_s[k] for k, _ in seen]
            places = [later_poses[k][at] for k, at in seen]
            moving = [float(later[k].speeds_mps[at]) for k, at in seen]
            if row < known:  # from where it is now
                times, places, moving = [0.0, *times], [agents.poses[row], *places], [speeds[row, NOW], *moving]
            else:
                first, at = later[seen[0][0]], seen[0][1]
                sizes[row], kinds[row] = first.sizes[at], first.kinds[at]
            path, speed, there = interpolate(np.array(times), np.array(places), np.array(moving), at_s)
            poses[row, NOW + 1 :], speeds[row, NOW + 1 :], present[row, NOW + 1 :] = path, speed, there
        return Tracks(np.where(present[..., None], poses, 0.0), np.where(present, speeds, 0.0), present, sizes, kinds)

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


def interpolate(times_s: Array, poses: Array, speeds_mps: Array, at_s: Array) -> tuple[Array, Array, Array]:
    """Poses (T, 3), speeds (T,) and presence (T,) of an agent at times, linear between observations (S,); it is absent
    where these are more than MAX_TRACK_GAP_S apart."""
    headings = np.unwrap(poses[:, 2])
    columns = (poses[:, 0], poses[:, 1], headings)
    found = np.stack([np.interp(at_s, times_s, column) for column in columns], axis=-1)
    found[:, 2] = geometry.wrap(found[:, 2])
    after = np.searchsorted(times_s, at_s - 1e-6)
    inside = (after < len(times_s)) & ((after > 0) | (at_s >= times_s[0] - 1e-6))
    last, first = times_s[np.minimum(after, len(times_s) - 1)], times_s[np.maximum(after - 1, 0)]
    return found, np.interp(at_s, times_s, speeds_mps), inside & (last - first <= MAX_TRACK_GAP_S)


def empty_tracks() -> Tracks:
    return Tracks(
        np.zeros((0, TRACK_STEPS, 3)),
        np.zeros((0, TRACK_STEPS)),
        np.zeros((0, TRACK_STEPS), bool),
        np.zeros((0, 2)),
        np.zeros(0, int),
    )
