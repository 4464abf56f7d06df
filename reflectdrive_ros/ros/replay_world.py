"""The world around each plan of a replay, read back from the bag: pictures, road users, the path really driven."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import cv2
import numpy as np

from ..config import Config
from ..domain import Agents, Array, DrivableGrid, EgoState, PlanSource, StepKind, Verdict
from ..evaluation import replay_scores
from ..evaluation.replay_record import (
    Diagnostic,
    DriveRecord,
    ReplayFrame,
    ReplayPicture,
    ReplayRecord,
    driven_poses,
)
from ..evaluation.replay_scores import Sighting
from . import convert
from .bag import BagReader
from .convert import BadMessage
from .inputs import InputStatus
from .lanelet_map import LaneletMap
from .map_space import MapSpace

PICTURES_MAX = 400  # instants with pictures in a report; a longer drive shows every n-th
PICTURE_WIDTH = 480


class Planned(Protocol):
    """What is needed of a plan that went out."""

    @property
    def trajectory(self) -> Any: ...
    @property
    def status(self) -> Any: ...
    @property
    def stages_ms(self) -> dict[str, float]: ...
    @property
    def statuses(self) -> tuple[InputStatus, ...]: ...


def assemble(
    reader: BagReader,
    sources: dict[str, str],
    config: Config,
    sent: Sequence[Planned],
    details: dict[str, Any],
    drive: DriveRecord | None = None,
) -> ReplayRecord:
    """The record of a replay: every plan, and for up to PICTURES_MAX of them what the cameras saw."""
    odometry = _odometry(reader, sources, config)
    stamps = np.array(sorted(odometry), np.int64)
    pictures = _pictures(reader, sources, config, _shown(sent))
    objects = _objects(reader, sources, [_stamp(item) for item in sent])
    routes = _routes(reader, sources, config)
    accelerations = _accelerations(reader, sources, config, [_stamp(item) for item in sent])
    frames = []
    for k, item in enumerate(sent):
        ego = replace(odometry[_stamp(item)], acceleration_mps2=accelerations[k])
        agents = _agents(objects.get(k), ego, config)
        frames.append(_frame(item, ego, agents, pictures.get(k, ())))
    record = ReplayRecord(
        planner=config.planner,
        bag=Path(reader.path).name,
        frames=frames,
        route=routes[-1][1] if routes else np.zeros((0, 3)),
        routes=routes,
        driven_path=np.array([odometry[stamp].map_from_ego for stamp in stamps.tolist()]).reshape(-1, 3),
        driven_stamps_ns=stamps,
        vehicle=config.vehicle,
        details=details,
        drive=drive,
    )
    if drive is not None or "objects" not in sources:  # a world has scored its drive already
        return record
    sightings = _sightings(reader, sources, config, record)
    return replace(record, scores=replay_scores.scored(record, sightings, _space(config), config))


def _sightings(reader: BagReader, sources: dict[str, str], config: Config, record: ReplayRecord) -> Iterator[Sighting]:
    """Who was where, message by message; what the inputs refused is left out here, too."""
    limits = config.inputs
    for message in reader.messages([sources["objects"]]):
        content = message.message()
        with suppress(BadMessage):
            near = driven_poses(record, np.array([convert.stamp_ns(content.header)]))[0, :2]
            frame = config.output.map_frame
            found = convert.map_agents(content, frame, near, limits.object_extent_max_m, limits.objects_max)
            yield Sighting(found.stamp_ns, found.ids, found.agents)


def _space(config: Config) -> Callable[[ReplayFrame], DrivableGrid | None]:
    """The drivable space around each plan, where a map tells it."""
    if not config.inputs.lanelet_map:
        return lambda frame: None
    space = MapSpace(LaneletMap(config.inputs), AtOnce())

    def around(frame: ReplayFrame) -> DrivableGrid | None:
        ego = EgoState(frame.stamp_ns, frame.map_from_ego, frame.speed_mps)
        for _ in range(2):  # the first time it is begun, and there the second time
            with suppress(BadMessage):
                return space.around(ego)
        return None

    return around


class AtOnce(Executor):
    """Work is done where it is asked for."""

    def submit(self, work: Callable[..., Any], /, *given: Any, **named: Any) -> Future[Any]:
        done: Future[Any] = Future()
        done.set_result(work(*given, **named))
        return done


def _stamp(item: Planned) -> int:
    return convert.stamp_ns(item.trajectory.header)


def _frame(item: Planned, ego: EgoState, agents: Agents, pictures: tuple[ReplayPicture, ...]) -> ReplayFrame:
    points, status = item.trajectory.points, item.status
    poses = [
        (p.pose.position.x, p.pose.position.y, 2.0 * np.arctan2(p.pose.orientation.z, p.pose.orientation.w))
        for p in points
    ]
    interval = points[0].time_from_start
    return ReplayFrame(
        stamp_ns=_stamp(item),
        map_from_ego=ego.map_from_ego,
        speed_mps=ego.speed_mps,
        plan_poses=np.array(poses),
        plan_speeds=np.array([p.longitudinal_velocity_mps for p in points]),
        dt_s=interval.sec + 1e-9 * interval.nanosec,
        verdict=Verdict(status.verdict),
        source=PlanSource(status.source),
        reason=status.reason,
        step=StepKind(status.step_kind),
        timings_ms=item.stages_ms,
        agent_poses=agents.poses,
        agent_sizes=agents.sizes,
        agent_kinds=agents.kinds,
        pictures=pictures,
        diagnostics=tuple(Diagnostic(s.name, int(s.level), s.message) for s in item.statuses),
        acceleration_mps2=ego.acceleration_mps2,
        yaw_rate_rps=ego.yaw_rate_rps,
    )


def _odometry(reader: BagReader, sources: dict[str, str], config: Config) -> dict[int, EgoState]:
    """Every usable odometry message by its stamp."""
    found = {}
    for message in reader.messages([sources["odometry"]]):
        try:
            ego = convert.ego_state(message.message(), config.output.map_frame)
        except BadMessage:
            continue  # the inputs refused it too, and said so
        found[ego.stamp_ns] = ego
    return found


def _accelerations(reader: BagReader, sources: dict[str, str], config: Config, stamps: Sequence[int]) -> list[float]:
    """For each plan the newest acceleration from before it, as the inputs take it; 0 where there is none so new."""
    known: dict[int, float] = {}
    for message in reader.messages([sources["acceleration"]] if "acceleration" in sources else []):
        with suppress(BadMessage):
            content = message.message()
            known[convert.stamp_ns(content.header)] = convert.acceleration(content)
    if not known:
        return [0.0] * len(stamps)
    times = np.array(sorted(known), np.int64)
    newest = np.searchsorted(times, np.array(stamps, np.int64), side="right") - 1
    allowed_ns = config.inputs.acceleration_max_age_s * 1e9
    return [
        known[int(times[i])] if i >= 0 and stamp - times[i] <= allowed_ns else 0.0
        for i, stamp in zip(newest.tolist(), stamps, strict=True)
    ]


def _routes(reader: BagReader, sources: dict[str, str], config: Config) -> tuple[tuple[int, Array], ...]:
    """Every route of the bag that can be drawn, (L, 3), with the time it came."""
    found, frame, points_max = [], config.output.map_frame, config.inputs.route_points_max
    if "route" not in sources:
        return ()
    lanelet_map = LaneletMap(config.inputs) if config.inputs.route_type == "lanelet" else None
    for message in reader.messages([sources["route"]]):
        try:
            if lanelet_map is None:
                route = convert.path_route(message.message(), frame, points_max)
            else:
                route, _ = lanelet_map.route(message.message(), frame, points_max)
        except BadMessage:
            continue
        found.append((message.received_ns, route))
    return tuple(found)


def _objects(reader: BagReader, sources: dict[str, str], stamps: Sequence[int]) -> dict[int, Any]:
    """For each plan (by index) the newest objects message from before it, no older than half a second."""
    if "objects" not in sources or not len(stamps):
        return {}
    order = np.argsort(np.array(stamps, np.int64), kind="stable")
    found: dict[int, Any] = {}
    newest: tuple[int, Any] | None = None
    messages = ((convert.stamp_ns(m.header), m) for m in (e.message() for e in reader.messages([sources["objects"]])))
    coming = next(messages, None)
    for k in order.tolist():
        while coming is not None and coming[0] <= stamps[k]:
            newest, coming = coming, next(messages, None)
        if newest is not None and stamps[k] - newest[0] <= 500_000_000:
            found[k] = newest[1]
    return found


def _agents(message: Any, ego: EgoState, config: Config) -> Agents:
    """The road users of a message in the map, near the ego; none where there is no message."""
    if message is None:
        return Agents.none()
    limits = config.inputs
    try:
        return convert.map_agents(
            message, config.output.map_frame, ego.map_from_ego[:2], limits.object_extent_max_m, limits.objects_max
        ).agents
    except BadMessage:
        return Agents.none()


# --- pictures --------------------------------------------------------------------------------------------------------


def _shown(sent: Sequence[Planned]) -> dict[int, int]:
    """Plan index -> stamp of the front picture it was made from, for at most PICTURES_MAX plans, evenly."""
    stride = max(1, -(-len(sent) // PICTURES_MAX))
    return {
        k: _stamp(item) - round(item.status.age_of_image * 1e9)
        for k, item in enumerate(sent)
        if k % stride == 0 and np.isfinite(item.status.age_of_image)
    }


def _pictures(
    reader: BagReader, sources: dict[str, str], config: Config, shown: dict[int, int]
) -> dict[int, tuple[ReplayPicture, ...]]:
    """The cameras' pictures that belong to the front pictures at the given stamps, made small."""
    names = [name for name in config.cameras.names if f"image:{name}" in sources]
    if not shown or not names:
        return {}
    transforms = _transforms(reader, sources)
    by_camera = {}
    for name in names:
        lens = _lens(reader, sources.get(f"info:{name}"), name)
        if lens is not None:
            by_camera[name] = _of_camera(reader, sources[f"image:{name}"], name, config, shown, lens, transforms)
    return {k: tuple(made[k] for made in by_camera.values() if k in made) for k in shown}


def _of_camera(
    reader: BagReader,
    topic: str,
    name: str,
    config: Config,
    shown: dict[int, int],
    lens: Lens,
    transforms: dict[str, tuple[str, Array]],
) -> dict[int, ReplayPicture]:
    # float32 seconds in the status round a stamp by some nanoseconds, so pictures are looked up by nearness
    tolerance_ns = config.cameras.match_tolerance_s * 1e9
    wanted = np.array(list(shown.values()), np.int64)
    best: dict[int, tuple[float, ReplayPicture]] = {}
    for entry in reader.messages([topic]):
        message = entry.message()
        stamp_ns = convert.stamp_ns(message.header)
        apart = np.abs(wanted - stamp_ns)
        within = np.flatnonzero(apart <= tolerance_ns).tolist()
        near = [i for i in within if i not in best or apart[i] < best[i][0]]
        if not near:
            continue
        try:
            height = round(PICTURE_WIDTH * lens.height / max(lens.width, 1))
            pixels, _ = convert.pixels(message, name, PICTURE_WIDTH, height)
            camera_from_ego = convert.camera_from_ego(transforms, name, message.header.frame_id)
        except BadMessage:
            continue
        jpeg = cv2.imencode(".jpg", cv2.cvtColor(pixels, cv2.COLOR_RGB2BGR), [cv2.IMWRITE_JPEG_QUALITY, 75])[1]
        picture = ReplayPicture(
            name, stamp_ns, jpeg.tobytes(), lens.width, lens.height, lens.matrix, camera_from_ego, lens.distortion
        )
        best.update({i: (float(apart[i]), picture) for i in near})
    keys = list(shown)
    return {keys[i]: picture for i, (_, picture) in best.items()}


class Lens(NamedTuple):
    """What a camera_info says, for its own picture size."""

    matrix: Array  # (3, 3)
    width: int
    height: int
    distortion: tuple[float, ...]  # empty for models that the report cannot draw


def _lens(reader: BagReader, topic: str | None, name: str) -> Lens | None:
    """Of the first usable camera_info."""
    for entry in reader.messages([topic] if topic else []):
        message = entry.message()
        try:
            matrix = convert.intrinsics(message, name)
            known = message.distortion_model in ("plumb_bob", "rational_polynomial")
            distortion = tuple(float(value) for value in message.d) if known else ()
            return Lens(matrix, int(message.width), int(message.height), distortion)
        except BadMessage:
            continue
    return None


def _transforms(reader: BagReader, sources: dict[str, str]) -> dict[str, tuple[str, Array]]:
    found: dict[str, tuple[str, Array]] = {}
    for entry in reader.messages([sources["tf_static"]] if "tf_static" in sources else []):
        found.update(convert.static_transforms(entry.message()))
    return found
