"""Received messages: size and type checks, the newest of each topic, clock and localisation jumps, frozen cameras.

The executor's thread calls `receive` or `put`, which store a message and start decoding images. The
planning thread converts everything else (`snapshot.py`). A message that cannot be read is refused, counted and named in
the diagnostics.
"""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from ...core.config import Config, InputsConfig
from ...core.domain import Array, CameraFrame
from ...core.messages import BadMessage
from ...maps.lanelet_file import import_lanelet2, load_map
from ...maps.lanelet_map import LaneletMap
from ...maps.vector_map import VectorMap
from ...planning.inputs import map_by_topic, needs_cameras, reads_images, uses_lights, uses_map
from .. import cdr, convert, image_decoding, topics
from .. import obstacles as clouds
from .camera_rig import RigInput
from .channel import Channel, InputStatus
from .control import VehicleControl, is_autonomous, reported_signal
from .lights import LightMemory, states_by_group
from .route import MapRoute

SMALL_BYTES = 64_000  # size limit of messages that hold a few numbers or one sentence
ITEMS_MAX = {
    "objects": 20_000,
    "lights": 2000,  # groups and lamps
    "route": 20_000,  # points of a Path; segments and lanelets of a LaneletRoute
    "tf_static": 1000,
}  # limits per message: reading more takes over 30 ms
OTHER_ITEMS_MAX = 1000
SIGNAL_MAX_AGE_S = 1.0  # of the vehicle's report of its turn signal; vehicles send ten and more a second
FROZEN_AFTER = 10  # identical images in a row: sensor noise makes two images of a live camera differ
FRAMES_MAX = 10_000  # of /tf_static, over all messages
BULK_KINDS = ("image", "drivable", "obstacles", "map")  # arrays of bytes or numbers, read without a loop over items
LIST_KINDS = ("objects", "route", "tf_static")
LATCHED_KINDS = ("route", "info", "map", "max_velocity", "operation_mode")
UNFRAMED_KINDS = ("lights", "max_velocity", "operation_mode", "turn_indicators_status")  # a stamp in place of a header
CONVERTED_KINDS = {  # messages that are stored as what they say
    "max_velocity": convert.max_velocity_mps,
    "operation_mode": is_autonomous,
    "turn_indicators_status": reported_signal,
}
CLOCK_JUMP_S = 1.0  # stamps that go back by more are a restart: buffers are cleared
JUMP_M = 2.0  # odometry has jumped if it moves by more than its speed explains plus this distance
JUMPS_MAX, JUMPS_WITHIN_S = 3, 2.0  # after so many jumps within this time localisation is not used


@dataclass(frozen=True, eq=False)
class Instant:
    """The cameras' messages of one instant."""

    stamp_ns: int
    images: Mapping[str, tuple[int, Any] | str]  # camera -> stamp and message, or why there is none


@dataclass
class ConversionCache:
    """Conversions that later snapshots use again; each is stored with the message that it was made from."""

    route: tuple[Any, LaneletMap | None, MapRoute] | None = None
    grid: tuple[Any, convert.MapGrid] | None = None
    boxes: tuple[Any, clouds.Obstacles] | None = None
    frames: deque[tuple[int, tuple[CameraFrame, ...]]] = field(default_factory=deque)  # decoded images by stamp
    skipped: deque[Instant] = field(default_factory=deque)  # images that were passed over, likewise
    route_position_m: float | None = None  # of the ego along the route, at the last snapshot
    off_map: str = ""  # why the car was off the map at the last snapshot; empty if it was not
    map_fault: str = "drivable: not requested yet"  # why the drivable space of the map is unknown; empty if it is known


class MessageStore:
    """All channels of the node. `receive`, `put` and the queries may be called from different threads."""

    def __init__(
        self,
        config: Config,
        image_size: tuple[int, int] | None = None,
        rig: RigInput | None = None,
        *,
        decode_ahead: bool = True,
    ) -> None:
        """`image_size`: width and height in px of the planner's images; None: `cameras.width` and `cameras.height`.
        `rig`: makes the network's images; None: images are only scaled. `decode_ahead`: images are decoded when they
        arrive, in other threads; otherwise those that a snapshot needs are, in its thread.

        Raises ConfigError where route or drivable area come from a map file that cannot be used.
        """
        self._config = config
        self._image_size = image_size or (config.cameras.width, config.cameras.height)
        self._rig = rig
        self._decodes_ahead = decode_ahead
        self.lock = threading.Lock()
        cameras, limits, ages_s = config.cameras, config.inputs, config.inputs.max_ages_s
        self.vector_map, self.file_map = None, None
        if map_by_topic(config):
            if limits.needs_map:
                import_lanelet2(limits)  # needed by the map reader process: a missing package is reported at the start
            background = ThreadPoolExecutor(1, "vector_map")
            self.vector_map = VectorMap(config.output.map_frame, background)
        elif uses_map(config):
            self.file_map = load_map(limits)
        needed = needs_cameras(config)
        self._uses_images = needed or reads_images(config)
        all_needed = needed and not (rig is not None and rig.optional)
        self.images = {
            name: Channel(f"image {name}", all_needed or (needed and name == cameras.anchor), ages_s["image"], keep=4)
            for name in cameras.names
        }
        self.infos = {name: Channel(f"camera_info {name}", all_needed, None) for name in cameras.names}
        self.odometry = Channel("odometry", True, ages_s["odometry"])
        self.acceleration = Channel("acceleration", False, ages_s["acceleration"])
        self.objects = Channel("objects", False, ages_s["objects"])
        self.drivable = Channel("drivable", False, ages_s["drivable"])
        self.obstacles = Channel("obstacles", False, ages_s["obstacles"])
        self.lights = Channel("traffic_lights", False, ages_s["lights"])
        self.max_velocity = Channel("max_velocity", False, None)
        self.route = Channel("route", True, None)
        self.map = Channel("map", limits.route_type == "lanelet", None)
        self.tf_static = Channel("tf_static", needed, None)
        self.instruction_channel = Channel("instruction", False, None)
        self.instruction = ""
        self.operation_mode = Channel("operation_mode", False, None)  # of bool: whether the planner drives
        self.turn_indicators = Channel("turn_indicators_status", False, SIGNAL_MAX_AGE_S)  # of Signal
        self._decoders = ThreadPoolExecutor(len(cameras.names), "decode")
        self._maps_refused = 0  # maps refused by the background reader that the channel's counter includes
        self.restarts = 0  # number of clock resets and localisation jumps
        self._jumps: deque[int] = deque(maxlen=JUMPS_MAX)  # stamps of odometry that jumped
        self._types = {topic.key: topic.type for topic in topics.inputs(config)}
        self._reset_derived()

    def _reset_derived(self) -> None:
        """Drop everything derived from messages; keep the counters."""
        self.transforms: dict[str, tuple[str, Array]] = {}
        self._frozen: dict[str, int] = dict.fromkeys(self.images, 0)
        self._digests: dict[str, int] = {}
        self.decoding: dict[str, tuple[Any, Future[tuple[Array, tuple[float, float]]]]] = {}
        self.planned_image_ns = self.planned_odometry_ns = -(1 << 62)
        self.waiting_ns: int | None = None  # stamp of the oldest anchor image that no snapshot has used
        self.cache = ConversionCache()
        red_stays = self._config.lights.unknown_after_red == "stop"
        self.light_memory = LightMemory(self._config.inputs.max_ages_s["lights"], red_stays)

    def channels(self) -> list[Channel]:
        latched = [*self.infos.values(), self.tf_static] if self._uses_images else []
        objects = [] if self._config.inputs.objects_type == "none" else [self.objects]
        drivable = [self.drivable] if self._config.inputs.drivable_type == "grid" else []
        cloud = [self.obstacles] if self._config.inputs.obstacles_type == "cloud" else []
        lights = [self.lights] if uses_lights(self._config) else []
        images = list(self.images.values()) if self._uses_images else []
        lanelets = [self.map] if self.vector_map is not None else []
        moving = [*images, *latched, self.odometry, self.acceleration, *objects, *drivable, *cloud, *lights]
        # these are not reported while they are silent: many cars have none
        optional = (self.max_velocity, self.operation_mode, self.turn_indicators)
        listed = [*moving, *lanelets, self.route, *(channel for channel in optional if channel.received)]
        if self._config.inputs.expect_max_velocity and self.max_velocity not in listed:
            listed.append(self.max_velocity)
        silent = [*self.images.values(), *self.infos.values(), self.tf_static, self.instruction_channel]
        return listed + [channel for channel in silent if channel.refused and channel not in listed]

    def channel_statuses(self, now_ns: int) -> list[InputStatus]:
        """One for each channel; the caller holds the lock."""
        if self.vector_map is None:
            return [channel.status(now_ns) for channel in self.channels()]
        self.map.blocked, remark = self.vector_map.problem(), self.vector_map.remark()
        self.map.refused += self.vector_map.refused - self._maps_refused
        self._maps_refused = self.vector_map.refused
        statuses = [channel.status(now_ns) for channel in self.channels()]
        return [s.with_remark(remark) if remark and s.name == self.map.name else s for s in statuses]

    # --- storing -----------------------------------------------------------------------------------------------------

    def receive(self, key: str, content: bytes, now_ns: int, layout: cdr.StructLayout | None = None) -> int | None:
        """Store a serialised message of the topic with this key (`topics.Topic.key`). `layout`: None for that of the
        installed package.

        Returns the stamp of the stored message, or None for one that was refused. Accepts any bytes: a message that
        cannot be read is counted and named in the diagnostics.
        """
        try:
            layout = layout or cdr.message_layout(topics.message_class(self._types[key]))
            return self._store(key, read_message(key, content, layout, self._config.inputs), now_ns)
        except BadMessage as fault:
            self.refuse(key, fault, now_ns)
        except Exception as fault:  # one message must not end the node
            self.refuse(key, BadMessage(f"a message was not stored: {type(fault).__name__}: {fault}"), now_ns)
        return None

    def put(self, key: str, message: Any, now_ns: int) -> None:
        """As `receive`, for a deserialised message. `now_ns` is the stamp of messages without a header."""
        try:
            self._store(key, message, now_ns)
        except BadMessage as fault:
            self.refuse(key, fault, now_ns)

    def _store(self, key: str, message: Any, now_ns: int) -> int:
        kind, _, camera = key.partition(":")
        if kind == "image":
            image_decoding.check_image_size(message, camera)
        with self.lock:
            if kind == "instruction":
                self.instruction = str(message.data)
                self.instruction_channel.put(self.instruction_channel.received + 1, None)
                return now_ns
            if kind == "tf_static":
                transforms = self.transforms | convert.static_transforms(message)
                if len(transforms) > FRAMES_MAX:
                    raise BadMessage(f"more than {FRAMES_MAX} frames in all are not kept")
                self.transforms = transforms
                self.tf_static.put(self.tf_static.received + 1, message)
                return now_ns
            channel = self.channel(kind, camera)
            stamp = convert.stamp_ns(message if kind in UNFRAMED_KINDS else message.header)
            states = states_by_group(message) if kind == "lights" else {}
            if kind in CONVERTED_KINDS:
                message = CONVERTED_KINDS[kind](message)
            if kind in LATCHED_KINDS:  # the newest arrival counts, whatever its stamp
                stamp = channel.received + 1
            elif self._is_clock_reset(channel, stamp):
                self._restart()
            if kind == "map" and self.vector_map is not None:
                self.vector_map.put(message)
                message = None  # may be large: not kept after reading
            before = channel.newest()
            is_new = channel.put(stamp, message)
            if kind in LIST_KINDS:
                channel.blocked = ""
            if kind == "lights" and is_new:
                self.light_memory.put(stamp, states)
            if kind == "odometry" and is_new and before is not None:
                self._check_for_jump(before, (stamp, message), now_ns)
            if kind == "image" and is_new:
                if self._decodes_ahead:
                    self._decode_ahead(camera, message)
                self._check_frozen(camera, message)
                if camera == self._config.cameras.anchor and self.waiting_ns is None:
                    self.waiting_ns = stamp
            return stamp

    def refuse(self, key: str, fault: BadMessage, now_ns: int) -> None:
        """Counts and reports a refused message. The message before it stays in use within its age limit, because any
        process on the network may send malformed bytes. Objects that are only too many invalidate the ones before
        them; a route that is only too long is the reason to stop where there is none before it.
        """
        kind, _, camera = key.partition(":")
        with self.lock:
            channel = self.channel(kind, camera)
            channel.received += 1
            channel.refused += 1
            latest = f"{channel.name}: {channel.refused} messages refused, the last one: {fault}"
            in_use = channel.max_age_s is None and channel.newest() is not None
            channel.add_remark(f"{latest}; the one before it stays in use" if in_use else latest, now_ns)
            is_blocked = kind == "objects" or (kind == "route" and not in_use)
            if is_blocked and isinstance(fault, cdr.TooLarge):
                channel.blocked = f"{channel.name}: {fault}"

    def _check_for_jump(self, before: tuple[int, Any], after: tuple[int, Any], now_ns: int) -> None:
        """Detect a localisation jump between two odometry messages, and drop cached data in the map frame after one.
        Red lights that were seen before it are forgotten if they are not seen again."""
        dt_s = (after[0] - before[0]) * 1e-9
        (x0, y0, v0), (x1, y1, v1) = (
            (message.pose.pose.position.x, message.pose.pose.position.y, abs(message.twist.twist.linear.x))
            for _, message in (before, after)
        )
        moved_m, driven_m = math.hypot(x1 - x0, y1 - y0), max(v0, v1) * dt_s
        if dt_s > CLOCK_JUMP_S or not moved_m > driven_m + JUMP_M:  # NaN is handled at conversion
            return
        self._jumps.append(after[0])
        self.odometry.add_remark(
            f"odometry: localisation jumped by {moved_m:.4g} m within {dt_s:.2f} s: the planner is reset", now_ns
        )
        self.objects.messages.clear()
        self.cache.boxes = self.cache.route_position_m = None
        self.restarts += 1
        memory = self.light_memory
        memory.jump_ns = after[0]
        if memory.red_stays and (red := memory.red_groups(after[0])):
            self.lights.add_remark(
                f"traffic_lights: localisation jumped: {len(red)} groups that were red count as red for "
                f"{memory.max_age_s:g} s more, unless they are seen again",
                now_ns,
            )

    def localisation_fault(self, stamp_ns: int) -> str:
        """Why localisation is not usable at this odometry stamp; empty if it is."""
        recent = sum(0 <= stamp_ns - jump <= JUMPS_WITHIN_S * 1e9 for jump in tuple(self._jumps))
        if recent < JUMPS_MAX:
            return ""
        return f"odometry: localisation jumped {recent} times within {JUMPS_WITHIN_S:g} s: check it"

    def channel(self, kind: str, camera: str) -> Channel:
        if kind in ("image", "info"):
            return (self.images if kind == "image" else self.infos)[camera]
        by_kind = {
            "odometry": self.odometry,
            "acceleration": self.acceleration,
            "objects": self.objects,
            "drivable": self.drivable,
            "obstacles": self.obstacles,
            "lights": self.lights,
            "max_velocity": self.max_velocity,
            "route": self.route,
            "map": self.map,
            "tf_static": self.tf_static,
            "instruction": self.instruction_channel,
            "operation_mode": self.operation_mode,
            "turn_indicators_status": self.turn_indicators,
        }
        return by_kind[kind]

    def _is_clock_reset(self, channel: Channel, stamp_ns: int) -> bool:
        newest = channel.newest()
        return newest is not None and newest[0] - stamp_ns > CLOCK_JUMP_S * 1e9

    def _restart(self) -> None:
        """Drop all stamped messages after a clock reset, such as a bag that loops or a simulator that restarts."""
        transforms = self.transforms
        others = (self.odometry, self.acceleration, self.objects, self.drivable, self.obstacles, self.lights)
        for channel in (*self.images.values(), *others, self.turn_indicators):
            channel.messages.clear()
            channel.stamps.clear()
        self._reset_derived()
        self.transforms = transforms
        self.restarts += 1

    def control(self, now_ns: int) -> VehicleControl:
        """Who drives, and the signal that is on; the caller holds the lock."""
        mode, signal = self.operation_mode.newest(), self.turn_indicators.newest()
        return VehicleControl(
            None if mode is None else mode[1],
            None if signal is None or self.turn_indicators.problem(now_ns) else signal[1],
        )

    def _decode_ahead(self, camera: str, message: Any) -> None:
        """Start decoding in the background, which releases the GIL. If the camera's last image is still being decoded,
        the new one is decoded when a snapshot needs it."""
        _, decoding = self.decoding.get(camera, (None, None))
        if decoding is None or decoding.done():
            future = self._decoders.submit(image_decoding.pixels, message, camera, *self.decoded_size(camera))
            self.decoding[camera] = message, future

    def decoded_size(self, camera: str) -> tuple[int, int]:
        return self._image_size if self._rig is None else self._rig.size(camera, self._image_size)

    def _check_frozen(self, camera: str, message: Any) -> None:
        digest = image_decoding.digest(message)
        same = self._digests.get(camera) == digest
        self._frozen[camera] = self._frozen[camera] + 1 if same else 0
        self._digests[camera] = digest
        count = self._frozen[camera] + 1
        self.images[camera].blocked = (
            f"image {camera}: the same image {count} times in a row: the camera is frozen"
            if count > FROZEN_AFTER
            else ""
        )


def read_message(key: str, content: bytes, layout: cdr.StructLayout, limits: InputsConfig) -> Any:
    """Deserialise a message of the input with this key. Raises BadMessage for too many bytes, and for bytes that are no
    message of the type."""
    kind = key.partition(":")[0]
    setting = "bulk_max_mb" if kind in BULK_KINDS else "message_max_mb" if kind in LIST_KINDS else ""
    most = round(1e6 * getattr(limits, setting)) if setting else SMALL_BYTES
    if len(content) > most:
        cure = f", or raise inputs.{setting}" if setting else ""
        raise cdr.TooLarge(
            f"a message of {len(content) / 1e6:.2f} MB is not read, at most {most / 1e6:g} MB are: send less{cure}"
        )
    return cdr.read(content, layout, ITEMS_MAX.get(kind, OTHER_ITEMS_MAX))
