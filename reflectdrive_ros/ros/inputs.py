"""The latest of everything: is it there, fresh enough, and do the pictures belong together?

Callbacks `put` messages, which only stores them; the planning thread takes a `snapshot`, which converts what it needs.
What is missing, late, malformed or frozen becomes a sentence, never an exception and never an old value passed as new.
All ages are against the given `now_ns`, the node's clock (or a bag's).
"""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from enum import IntEnum
from functools import partial
from itertools import pairwise
from statistics import median
from typing import Any, TypeVar

import numpy as np

from .. import geometry
from ..config import Config
from ..domain import Agents, Array, CameraFrame, Command, DrivableGrid, EgoState, Observation, concat_agents
from . import cdr, convert, topics
from . import obstacles as clouds
from .convert import BadMessage
from .lanelet_file import bindings, from_file
from .lanelet_map import LaneletMap
from .map_drivable import MapSpace
from .vector_map import VectorMap

T = TypeVar("T")

IN_FUTURE_S = 0.1  # a stamp further ahead of our clock means that the clocks are not synchronised
SMALL_BYTES = 64_000  # of a message that holds a few numbers or one sentence
ITEMS_MAX = {"objects": 20_000, "route": 20_000, "tf_static": 1000}  # in one message: reading more takes over 30 ms
OTHER_ITEMS_MAX = 1000
FRAMES_MAX = 10_000  # of /tf_static, from all messages
BULKY = ("image", "drivable", "obstacles", "map")  # bytes and numbers in one piece, which are not walked
LISTS = ("objects", "route", "tf_static")
REMARK_S = 3.0  # how long the diagnostics tell of a message that was refused, or of a jump
JUMP_M = 2.0  # odometry that moves by this much more than its speed explains has jumped
JUMPS_MAX, JUMPS_WITHIN_S = 3, 2.0  # localisation that jumps so often is not driven by
NO_CLOCK = "use_sim_time is true and nothing has come on /clock: publish /clock, or set use_sim_time to false"
RATE_WINDOW = 20  # messages over which a rate is measured
ROUTE_BEHIND_M, ROUTE_AHEAD_M = 20.0, 250.0  # the part of the route that a planner sees
TURN_AHEAD_M, TURN_RAD = 25.0, np.deg2rad(25.0)  # a route that bends this much this soon is a turn


class Level(IntEnum):
    """diagnostic_msgs/DiagnosticStatus levels."""

    OK = 0
    WARN = 1
    ERROR = 2
    STALE = 3


@dataclass(frozen=True)
class InputStatus:
    """One line of the diagnostics."""

    name: str
    level: Level
    message: str
    values: dict[str, str]


@dataclass(frozen=True)
class Snapshot:
    """What the planning thread works with: an observation, or the sentences that say why there is none."""

    observation: Observation | None
    ego: EgoState | None  # usable even without pictures or route: enough to stop
    agents: Agents | None
    problems: tuple[str, ...]
    image_stamp_ns: int | None  # of the anchor camera


@dataclass
class Channel:
    """One topic: its newest messages and what happened to the others."""

    name: str
    required: bool
    max_age_s: float | None  # None: latched, stays valid
    keep: int = 1
    messages: deque[tuple[int, Any]] = field(default_factory=deque)  # (stamp, message), oldest first
    received: int = 0
    duplicates: int = 0
    out_of_order: int = 0
    refused: int = 0
    refused_ns: int = 0  # stamp of the message refused last: looked at twice, it counts once
    lost: int = 0
    fault: str = ""  # why the last message that was looked at could not be used
    blocked: str = ""  # why none may be used until further notice
    remark: str = ""  # what was wrong with a message that was not stored, or is odd about one that was
    remark_ns: int = 0  # when
    stamps: deque[int] = field(default_factory=lambda: deque(maxlen=RATE_WINDOW))

    def put(self, stamp_ns: int, message: Any) -> bool:
        """Store a message; False when it is no news (a duplicate, or older than the newest)."""
        self.received += 1
        if self.messages and stamp_ns <= self.messages[-1][0]:
            if stamp_ns == self.messages[-1][0]:
                self.duplicates += 1
            else:
                self.out_of_order += 1
            return False
        self._count_lost(stamp_ns)
        self.stamps.append(stamp_ns)
        self.messages.append((stamp_ns, message))
        while len(self.messages) > self.keep:
            self.messages.popleft()
        return True

    def _count_lost(self, stamp_ns: int) -> None:
        """A gap of about n periods means that n - 1 messages went missing on the way."""
        if len(self.stamps) >= 5:
            period = median(later - earlier for earlier, later in pairwise(self.stamps))
            gap = (stamp_ns - self.stamps[-1]) / max(period, 1)
            if 1.75 < gap < 20:  # less is jitter; longer silences are a sensor that was off, not lost messages
                self.lost += round(gap) - 1

    def note(self, sentence: str, now_ns: int) -> None:
        """Tell of it in the diagnostics for REMARK_S."""
        self.remark, self.remark_ns = sentence, now_ns

    def used(self, item: tuple[int, Any] | None, now_ns: int, how: Callable[[Any], T]) -> T:
        """What `how` makes of a message. Raises BadMessage when there is none, or it is stale, blocked or unusable."""
        problem = self.problem(now_ns)
        if problem or item is None:
            raise BadMessage(problem or f"{self.name}: nothing received yet")
        try:
            made = how(item[1])
        except BadMessage as fault:
            self.refused += self.fault != str(fault) or item[0] != self.refused_ns
            self.fault, self.refused_ns = str(fault), item[0]
            raise
        self.fault = ""
        return made

    def newest(self) -> tuple[int, Any] | None:
        return self.messages[-1] if self.messages else None

    def nearest(self, stamp_ns: int) -> tuple[int, Any] | None:
        return min(self.messages, key=lambda item: abs(item[0] - stamp_ns), default=None)

    def rate_hz(self) -> float:
        spread = self.stamps[-1] - self.stamps[0] if len(self.stamps) > 1 else 0
        return (len(self.stamps) - 1) * 1e9 / spread if spread else 0.0

    def problem(self, now_ns: int) -> str:
        """Why this input may not be used now; empty when it may."""
        if self.blocked:
            return self.blocked
        newest = self.newest()
        if newest is None:
            return f"{self.name}: nothing received yet"
        if self.max_age_s is None:
            return ""
        age_s = (now_ns - newest[0]) * 1e-9
        if age_s > self.max_age_s:
            return f"{self.name}: newest is {age_s:.2f} s old, allowed {self.max_age_s:.2f} s"
        if age_s < -IN_FUTURE_S and now_ns == 0:
            return f"{self.name}: {NO_CLOCK}"
        if age_s < -IN_FUTURE_S:
            return f"{self.name}: stamped {-age_s:.2f} s in the future: synchronise the clocks"
        return ""

    def status(self, now_ns: int) -> InputStatus:
        problem, newest = self.problem(now_ns) or self.fault, self.newest()
        age_s = float("nan") if newest is None else (now_ns - newest[0]) * 1e-9
        # what stays valid until it changes is kept by its number, not by its stamp: it has neither age nor rate
        told = f"{self.received} received" if self.max_age_s is None else f"{self.rate_hz():.1f} Hz"
        level, message = Level.OK, told
        if problem:
            level, message = (Level.ERROR if self.required else Level.WARN), problem
        if self.remark and 0 <= now_ns - self.remark_ns <= REMARK_S * 1e9:
            level = max(level, Level.WARN)
            message = "; ".join(filter(None, [problem, self.remark]))
        elif not problem and self.lost > 0.02 * max(self.received, 50):
            level, message = Level.WARN, f"{self.name}: {self.lost} messages lost on the way; use config/fastdds.xml"
        counters = ("received", "lost", "duplicates", "out_of_order", "refused")
        values = {} if self.max_age_s is None else {"age_s": f"{age_s:.3f}", "rate_hz": f"{self.rate_hz():.2f}"}
        values |= {key: str(getattr(self, key)) for key in counters}
        return InputStatus(self.name, level, message, values)


class Inputs:
    """All channels of the node. `put` and the queries may be called from different threads."""

    def __init__(self, config: Config, image_size: tuple[int, int] | None = None) -> None:
        """`picture_size`: width and height in px that the planner looks at; None: as `cameras` has it.

        Raises ConfigError when route or drivable space come from a map and the map cannot be used.
        """
        self._config = config
        self._picture_size = image_size or (config.cameras.width, config.cameras.height)
        self._lock = threading.Lock()
        cameras, limits = config.cameras, config.inputs
        self._vector_map, self._file_map = None, None
        if limits.map_by_topic:
            bindings(limits)  # for the process that reads it: better said now than when the map comes
            self._vector_map = VectorMap(config.output.map_frame, ThreadPoolExecutor(1, "vector_map"))
        elif limits.needs_map:
            self._file_map = from_file(limits)
        needed = cameras.required
        self._images = {
            name: Channel(f"image {name}", needed, limits.image_max_age_s, keep=4) for name in cameras.names
        }
        self._infos = {name: Channel(f"camera_info {name}", needed, None) for name in cameras.names}
        self._odometry = Channel("odometry", True, limits.odometry_max_age_s)
        self._acceleration = Channel("acceleration", False, limits.acceleration_max_age_s)
        self._objects = Channel("objects", False, limits.objects_max_age_s)
        self._drivable = Channel("drivable", False, limits.drivable_max_age_s)
        self._obstacles = Channel("obstacles", False, limits.obstacles_max_age_s)
        self._route = Channel("route", True, None)
        self._map = Channel("map", limits.route_type == "lanelet", None)
        self._tf_static = Channel("tf_static", needed, None)
        self._words = Channel("instruction", False, None)
        self._instruction = ""
        self._decoders = ThreadPoolExecutor(len(cameras.names), "decode")
        self._maps_refused = 0  # of what was read in the background, as far as it is counted
        self._map_space: MapSpace | None = None  # of the newest map
        self._space_maker = ThreadPoolExecutor(1, "map_space")
        self.restarts = 0  # how often time went back, or localisation jumped
        self._jumps: deque[int] = deque(maxlen=JUMPS_MAX)  # stamps of odometry that jumped
        self._types = {topic.key: topic.type for topic in topics.inputs(config)}
        self.ignored: dict[str, dict[str, int]] = {}  # objects, obstacles: reason -> count, of the newest message
        self._forget()

    def _forget(self) -> None:
        """Drop what was derived from messages; the counters stay."""
        self._transforms: dict[str, tuple[str, Array]] = {}
        self._frozen: dict[str, int] = dict.fromkeys(self._images, 0)
        self._digests: dict[str, int] = {}
        self._decoding: dict[str, tuple[Any, Future[tuple[Array, tuple[float, float]]]]] = {}
        self._decoded: deque[tuple[int, tuple[CameraFrame, ...]]] = deque()
        self._planned_image_ns = self._planned_odometry_ns = -(1 << 62)
        self._waiting_ns: int | None = None  # stamp of the first anchor picture that nobody has planned from yet
        self._route_made: tuple[Any, LaneletMap | None, Array] | None = None
        self._grid_made: tuple[Any, convert.MapGrid] | None = None
        self._cloud_made: tuple[Any, clouds.Obstacles] | None = None
        self._map_fault = "drivable: not asked for yet"
        self._route_at_m: float | None = None

    def channels(self) -> list[Channel]:
        latched = [*self._infos.values(), self._tf_static] if self._config.cameras.required else []
        objects = [] if self._config.inputs.objects_type == "none" else [self._objects]
        drivable = [self._drivable] if self._config.inputs.drivable_type == "grid" else []
        cloud = [self._obstacles] if self._config.inputs.obstacles_type == "cloud" else []
        images = list(self._images.values())
        lanelets = [self._map] if self._vector_map is not None else []
        moving = [*images, *latched, self._odometry, self._acceleration, *objects, *drivable, *cloud]
        shown = [*moving, *lanelets, self._route]
        silent = [*self._infos.values(), self._tf_static, self._words]
        return shown + [channel for channel in silent if channel.refused and channel not in shown]

    # --- storing -----------------------------------------------------------------------------------------------------

    def receive(self, key: str, content: bytes, now_ns: int) -> int | None:
        """Store a serialised message; `key` is that of the topic table. Returns the stamp of what was stored, or None.

        The bytes may be any: what cannot be read is counted and named in the diagnostics.
        """
        try:
            return self._store(key, self._read(key, content), now_ns)
        except BadMessage as fault:
            self._refuse(key, fault, now_ns)
        except Exception as fault:  # whatever else: one message must not end the node
            self._refuse(key, BadMessage(f"a message was not stored: {type(fault).__name__}: {fault}"), now_ns)
        return None

    def put(self, key: str, message: Any, now_ns: int) -> None:
        """As `receive`, of a message that has been read. `now_ns` stamps what carries no stamp of its own."""
        try:
            self._store(key, message, now_ns)
        except BadMessage as fault:
            self._refuse(key, fault, now_ns)

    def _read(self, key: str, content: bytes) -> Any:
        """Raises BadMessage for bytes that are too many, or no message of the topic's type."""
        kind, limits = key.partition(":")[0], self._config.inputs
        setting = "bulk_max_mb" if kind in BULKY else "message_max_mb" if kind in LISTS else ""
        most = round(1e6 * getattr(limits, setting)) if setting else SMALL_BYTES
        if len(content) > most:
            cure = f", or raise inputs.{setting}" if setting else ""
            raise cdr.TooLarge(
                f"a message of {len(content) / 1e6:.2f} MB is not read, at most {most / 1e6:g} MB are: send less{cure}"
            )
        return cdr.read(content, topics.message_class(self._types[key]), ITEMS_MAX.get(kind, OTHER_ITEMS_MAX))

    def _store(self, key: str, message: Any, now_ns: int) -> int:
        kind, _, camera = key.partition(":")
        if kind == "image":
            convert.check_image_size(message, camera, self._config.cameras.megapixels_max)
        with self._lock:
            if kind == "instruction":
                self._instruction = str(message.data)
                return now_ns
            if kind == "tf_static":
                transforms = self._transforms | convert.static_transforms(message)
                if len(transforms) > FRAMES_MAX:
                    raise BadMessage(f"more than {FRAMES_MAX} frames in all are not kept")
                self._transforms = transforms
                self._tf_static.put(self._tf_static.received + 1, message)
                return now_ns
            channel = self._channel(kind, camera)
            stamp = convert.stamp_ns(message.header)
            if kind in ("route", "info", "map"):  # latched: the newest arrival counts, whatever its stamp
                stamp = channel.received + 1
            elif self._stepped_back(channel, stamp):
                self._restart()
            if kind == "map" and self._vector_map is not None:
                self._vector_map.put(message)
                message = None  # may be large, and is let go as soon as it is read
            before = channel.newest()
            news = channel.put(stamp, message)
            if kind in LISTS:
                channel.blocked = ""
            if kind == "odometry" and news and before is not None:
                self._watch_for_jumps(before, (stamp, message), now_ns)
            if kind == "image" and news:
                self._decode_ahead(camera, message)
                self._watch_for_frozen(camera, message)
                if camera == self._config.cameras.anchor and self._waiting_ns is None:
                    self._waiting_ns = stamp
            return stamp

    def _refuse(self, key: str, fault: BadMessage, now_ns: int) -> None:
        """A message is not stored. What came before it stays in use while it is fresh: anybody may send such bytes. But
        objects and a route that are only too large are news: what came before them is not used any longer."""
        kind, _, camera = key.partition(":")
        with self._lock:
            channel = self._channel(kind, camera)
            channel.received += 1
            channel.refused += 1
            channel.note(f"{channel.name}: {channel.refused} messages refused, the last one: {fault}", now_ns)
            if kind in ("objects", "route") and isinstance(fault, cdr.TooLarge):
                channel.blocked = f"{channel.name}: {fault}"

    def _watch_for_jumps(self, before: tuple[int, Any], after: tuple[int, Any], now_ns: int) -> None:
        """Where localisation jumps, what is remembered in the map's frame is remembered in the wrong place."""
        took_s = (after[0] - before[0]) * 1e-9
        (x0, y0, v0), (x1, y1, v1) = (
            (message.pose.pose.position.x, message.pose.pose.position.y, abs(message.twist.twist.linear.x))
            for _, message in (before, after)
        )
        moved_m, driven_m = math.hypot(x1 - x0, y1 - y0), max(v0, v1) * took_s
        if took_s > self._config.inputs.clock_jump_s or not moved_m > driven_m + JUMP_M:  # NaN is another fault
            return
        self._jumps.append(after[0])
        self._odometry.note(
            f"odometry: localisation jumped by {moved_m:.4g} m within {took_s:.2f} s: the planner begins anew", now_ns
        )
        self._objects.messages.clear()
        self._cloud_made = self._route_at_m = None
        self.restarts += 1

    def _unsteady(self, stamp_ns: int) -> str:
        """Why localisation may not be driven by, at this stamp of odometry; empty where it may."""
        recent = sum(0 <= stamp_ns - jump <= JUMPS_WITHIN_S * 1e9 for jump in tuple(self._jumps))
        if recent < JUMPS_MAX:
            return ""
        return f"odometry: localisation jumped {recent} times within {JUMPS_WITHIN_S:g} s: check it"

    def _channel(self, kind: str, camera: str) -> Channel:
        if kind in ("image", "info"):
            return (self._images if kind == "image" else self._infos)[camera]
        by_kind = {
            "odometry": self._odometry,
            "acceleration": self._acceleration,
            "objects": self._objects,
            "drivable": self._drivable,
            "obstacles": self._obstacles,
            "route": self._route,
            "map": self._map,
            "tf_static": self._tf_static,
            "instruction": self._words,
        }
        return by_kind[kind]

    def _stepped_back(self, channel: Channel, stamp_ns: int) -> bool:
        newest = channel.newest()
        return newest is not None and newest[0] - stamp_ns > self._config.inputs.clock_jump_s * 1e9

    def _restart(self) -> None:
        """Time went back (a bag loops, a simulator restarts): what was received before is from another time."""
        transforms = self._transforms
        others = (self._odometry, self._acceleration, self._objects, self._drivable, self._obstacles)
        for channel in (*self._images.values(), *others):
            channel.messages.clear()
            channel.stamps.clear()
        self._forget()
        self._transforms = transforms
        self.restarts += 1

    def _decode_ahead(self, camera: str, message: Any) -> None:
        """Begin to decode while the other cameras' pictures are on their way (it leaves Python's lock to the rest);
        a picture that comes while the one before is still being decoded waits until it is asked for."""
        _, decoding = self._decoding.get(camera, (None, None))
        if decoding is None or decoding.done():
            begun = self._decoders.submit(convert.pixels, message, camera, *self._picture_size)
            self._decoding[camera] = message, begun

    def _watch_for_frozen(self, camera: str, message: Any) -> None:
        digest = convert.digest(message)
        same = self._digests.get(camera) == digest
        self._frozen[camera] = self._frozen[camera] + 1 if same else 0
        self._digests[camera] = digest
        times = self._frozen[camera] + 1
        self._images[camera].blocked = (
            f"image {camera}: the same picture {times} times in a row: the camera is frozen"
            if times > self._config.cameras.frozen_after
            else ""
        )

    # --- when to plan ------------------------------------------------------------------------------------------------

    def due(self, now_ns: int) -> bool:
        """Whether a planning step should start: a new picture of the anchor camera whose companions have come (or are
        overdue); without any pictures, where the planner needs none, new odometry every 0.1 s."""
        with self._lock:
            anchor = self._images[self._config.cameras.anchor].newest()
            if anchor is not None and anchor[0] > self._planned_image_ns:
                if all(self._match(channel, anchor[0]) for channel in self._images.values()):
                    return True
                waiting_ns = anchor[0] if self._waiting_ns is None else self._waiting_ns
                return (now_ns - waiting_ns) * 1e-9 > 2 * self._config.cameras.match_tolerance_s
            if self._config.cameras.required or (
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
        """The newest of everything as an observation, or why there is none."""
        with self._lock:
            anchor = self._images[self._config.cameras.anchor].newest()
            pictures = {} if anchor is None else {n: self._match(c, anchor[0]) for n, c in self._images.items()}
            odometry, acceleration = self._odometry.newest(), self._acceleration.newest()
            objects, route, grid = self._objects.newest(), self._route.newest(), self._drivable.newest()
            cloud = self._obstacles.newest()
            self._waiting_ns = None
            if anchor is not None:
                self._planned_image_ns = anchor[0]
            if odometry is not None:
                self._planned_odometry_ns = odometry[0]
        problems: list[str] = []
        ego = self._ego(odometry, acceleration, now_ns, problems)
        agents = None if ego is None else self._agents(objects, ego, now_ns)
        drivable = None if ego is None else self._drivable_space(grid, ego, now_ns)
        obstacles = None if ego is None else self._boxes(cloud, ego, agents, now_ns)
        route_map = self._route_in_map(route, problems)
        ahead = None if ego is None or route_map is None else self._route_ahead(route_map, ego)
        command = Command.FOLLOW if ahead is None else command_along(ahead)
        image_ns = None if anchor is None else anchor[0]
        cameras = self._cameras(image_ns, pictures, now_ns, problems)  # last: decoding goes on meanwhile
        unsteady = "" if ego is None else self._unsteady(ego.stamp_ns)
        problems += filter(None, [unsteady])
        if ego is None or ahead is None or cameras is None or unsteady:
            return Snapshot(None, ego, concat_agents(agents, obstacles), tuple(problems), image_ns)
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
        )
        return Snapshot(observation, ego, observation.others, tuple(problems), image_ns)

    def ego(self, now_ns: int) -> tuple[EgoState | None, Agents | None]:
        """Enough to stop, without touching pictures; None when even odometry is missing or stale."""
        with self._lock:
            odometry, acceleration, objects, cloud = (
                channel.newest() for channel in (self._odometry, self._acceleration, self._objects, self._obstacles)
            )
        ego = self._ego(odometry, acceleration, now_ns, [])
        if ego is None:
            return None, None
        agents = self._agents(objects, ego, now_ns)
        return ego, concat_agents(agents, self._boxes(cloud, ego, agents, now_ns))

    def _ego(
        self,
        odometry: tuple[int, Any] | None,
        acceleration: tuple[int, Any] | None,
        now_ns: int,
        problems: list[str],
    ) -> EgoState | None:
        map_frame = self._config.output.map_frame
        try:
            ego = self._odometry.used(odometry, now_ns, lambda message: convert.ego_state(message, map_frame))
        except BadMessage as fault:
            problems.append(str(fault))
            return None
        try:
            return replace(ego, acceleration_mps2=self._acceleration.used(acceleration, now_ns, convert.acceleration))
        except BadMessage:
            return ego  # 0 is assumed; the channel's status says so

    def _agents(self, objects: tuple[int, Any] | None, ego: EgoState, now_ns: int) -> Agents | None:
        """Unknown (None) when objects are missing, stale or unusable: that is not an empty road."""
        limits, frame = self._config.inputs, self._config.output.map_frame
        here = ego.map_from_ego[:2]
        try:
            found = self._objects.used(
                objects,
                now_ns,
                lambda message: convert.map_agents(
                    message, frame, here, limits.object_extent_max_m, limits.objects_max
                ),
            )
        except BadMessage:
            return None
        self.ignored["objects"] = found.ignored
        return convert.in_ego_frame(found, ego)

    def _boxes(self, cloud: tuple[int, Any] | None, ego: EgoState, agents: Agents | None, now_ns: int) -> Agents | None:
        """Of a cloud, likewise; made once of each."""

        def made(message: Any) -> clouds.Obstacles:
            if self._cloud_made is not None and self._cloud_made[0] is message:
                return self._cloud_made[1]
            return clouds.obstacles(message, self._transforms, ego, agents, self._config.inputs, self._config.vehicle)

        if self._config.inputs.obstacles_type == "none":
            return None
        try:
            found = self._obstacles.used(cloud, now_ns, made)
        except BadMessage:
            return None
        assert cloud is not None
        self._cloud_made, self.ignored["obstacles"] = (cloud[1], found), found.ignored
        return clouds.in_ego_frame(found, ego)

    def _drivable_space(self, grid: tuple[int, Any] | None, ego: EgoState, now_ns: int) -> DrivableGrid | None:
        """Unknown (None) when grid or map are missing, stale or unusable, which is not the same as no road."""
        try:
            if self._config.inputs.drivable_type == "map":
                lanelets = self._newest_map()
                if self._map_space is None or self._map_space.lanelets is not lanelets:
                    self._map_space = MapSpace(lanelets, self._space_maker)
                found = self._map_space.around(ego)
                self._map_fault = ""
                return found
            if self._config.inputs.drivable_type == "none":
                return None
            return convert.grid_in_ego_frame(self._drivable.used(grid, now_ns, partial(self._converted_grid, ego)), ego)
        except BadMessage as fault:
            self._map_fault = f"drivable: {fault}"
            return None

    def _converted_grid(self, ego: EgoState, message: Any) -> convert.MapGrid:
        limits = self._config.inputs
        if self._grid_made is None or self._grid_made[0] is not message:
            frame = self._config.output.map_frame
            made = convert.map_grid(message, frame, ego, limits.grid_free_below, limits.grid_resolution_max_m)
            self._grid_made = message, made
        return self._grid_made[1]

    def _newest_map(self) -> LaneletMap:
        """Of the file, or the newest that came. Raises BadMessage while there is none."""
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
        known = self._route_made
        if (
            self._route.blocked
            or route is None
            or known is None
            or known[0] is not route[1]
            or known[1] is not lanelets
        ):
            try:
                made = self._route.used(route, 0, partial(self._converted_route, lanelets))
            except BadMessage as fault:
                problems.append(str(fault))
                return None
            assert route is not None
            self._route_made, self._route_at_m = (route[1], lanelets, made), None
            return made
        return known[2]

    def _converted_route(self, lanelets: LaneletMap | None, message: Any) -> Array:
        frame, points_max = self._config.output.map_frame, self._config.inputs.route_points_max
        if lanelets is None:
            return convert.path_route(message, frame, points_max)
        poses, _ = lanelets.route(message, frame, points_max)
        return poses

    def _route_ahead(self, route: Array, ego: EgoState) -> Array:
        """(L, 3) the part of the route around the car, ego frame. Looks near the last place first: routes cross."""
        along = geometry.arc_lengths(route)
        here = ego.map_from_ego[None, :2]
        place = None
        if self._route_at_m is not None:
            near = np.flatnonzero((along > self._route_at_m - 30.0) & (along < self._route_at_m + 60.0))
            if len(near) >= 2:
                (at,), (offset,) = geometry.project(route[near], here)
                place = along[near[0]] + at if abs(offset) < 15.0 else None
        if place is None:
            (place,), _ = geometry.project(route, here)
        self._route_at_m = float(place)
        wanted = (along >= place - ROUTE_BEHIND_M) & (along <= place + ROUTE_AHEAD_M)
        after = int(np.clip(np.searchsorted(along, place, side="right"), 1, len(route) - 1))
        wanted[after - 1 : after + 1] = True  # the piece that the car is on, or beyond whose end it is
        return geometry.compose(geometry.invert(ego.map_from_ego), route[wanted])

    def _cameras(
        self, image_ns: int | None, pictures: dict[str, Any], now_ns: int, problems: list[str]
    ) -> tuple[CameraFrame, ...] | None:
        """Both instants, oldest first; () where cameras are optional and unusable; None where they are required."""
        faults: list[str] = []
        current = self._current_instant(image_ns, pictures, now_ns, faults)
        if current is None:
            problems.extend(faults)
            return None if self._config.cameras.required else ()
        assert image_ns is not None
        settings = self._config.cameras
        target = image_ns - settings.pair_interval_s * 1e9
        older = min(self._decoded, key=lambda item: abs(item[0] - target), default=None)
        self._decoded.append((image_ns, current))
        horizon = image_ns - (settings.pair_interval_s + settings.pair_tolerance_s) * 1e9
        while self._decoded and self._decoded[0][0] < horizon:
            self._decoded.popleft()
        if older is None or abs(older[0] - target) > settings.pair_tolerance_s * 1e9:
            return current
        return (*older[1], *current)

    def _current_instant(
        self, image_ns: int | None, pictures: dict[str, Any], now_ns: int, faults: list[str]
    ) -> tuple[CameraFrame, ...] | None:
        def seen(name: str) -> CameraFrame | str:
            """The camera's picture, or why there is none."""
            channel, found = self._images[name], pictures.get(name)
            if found is None and not channel.problem(now_ns) and image_ns is not None:
                near = channel.nearest(image_ns)
                apart = abs(near[0] - image_ns) * 1e-9 if near else float("inf")
                allowed = self._config.cameras.match_tolerance_s
                return f"image {name}: nearest is {apart:.2f} s from the anchor's picture, allowed {allowed:.2f} s"
            try:
                return channel.used(found, now_ns, partial(self._frame, name))
            except BadMessage as fault:
                return str(fault)

        results = [seen(name) for name in self._images]
        faults += [result for result in results if isinstance(result, str)]
        return None if faults else tuple(result for result in results if not isinstance(result, str))

    def _frame(self, name: str, message: Any) -> CameraFrame:
        info = self._infos[name].newest()
        if info is None:
            raise BadMessage(f"camera {name}: no camera_info received")
        width, height = self._picture_size
        begun, decoding = self._decoding.get(name, (None, None))
        if decoding is not None and begun is message:
            pixels, _ = decoding.result()
        else:
            pixels, _ = convert.pixels(message, name, width, height)
        matrix = convert.intrinsics(info[1], name)
        scale = np.diag([width / max(info[1].width, 1), height / max(info[1].height, 1), 1.0])
        return CameraFrame(
            convert.stamp_ns(message.header),
            name,
            pixels,
            scale @ matrix,
            convert.camera_from_ego(self._transforms, name, message.header.frame_id),
        )

    def settle(self) -> None:
        """Wait until what goes on in the background is done: a replay must not depend on how fast it went."""
        for busy in (self._vector_map, self._map_space):
            if busy is not None:
                busy.settle()

    # --- diagnostics -------------------------------------------------------------------------------------------------

    def statuses(self, now_ns: int) -> list[InputStatus]:
        with self._lock:
            if self._vector_map is not None:
                self._map.blocked = self._vector_map.problem()
                self._map.refused += self._vector_map.refused - self._maps_refused
                self._maps_refused = self._vector_map.refused
            statuses = [channel.status(now_ns) for channel in self.channels()]
            odometry = self._odometry.newest()
        if odometry is not None and (unsteady := self._unsteady(odometry[0])):
            statuses = [
                replace(s, level=Level.ERROR, message=unsteady) if s.name == "odometry" else s for s in statuses
            ]
        if self._config.inputs.drivable_type == "map":
            level = Level.WARN if self._map_fault else Level.OK
            statuses.append(InputStatus("drivable", level, self._map_fault or "from the map", {}))
        return [_with_ignored(status, self.ignored.get(status.name, {})) for status in statuses]


def _with_ignored(status: InputStatus, ignored: dict[str, int]) -> InputStatus:
    if not ignored:
        return status
    listed = ", ".join(f"{count} {reason}" for reason, count in sorted(ignored.items()))
    return replace(status, level=max(status.level, Level.WARN), message=f"{status.message}; ignored: {listed}")


def _age_s(item: tuple[int, Any] | None, ego: EgoState) -> float:
    """How much older than the ego's a message is; 0 where there is none."""
    return 0.0 if item is None else max((ego.stamp_ns - item[0]) * 1e-9, 0.0)


def command_along(route: Array) -> Command:
    """What the route asks for next, from how much it bends within TURN_AHEAD_M; route (L, 3) in the ego frame."""
    if len(route) < 2:
        return Command.FOLLOW
    here, _ = geometry.ego_on_route(route)
    now, then = geometry.sample(route, np.array([here, here + TURN_AHEAD_M]))
    bend = float(geometry.wrap(then[2] - now[2]))
    if abs(bend) < TURN_RAD:
        return Command.FOLLOW
    return Command.LEFT if bend > 0 else Command.RIGHT
