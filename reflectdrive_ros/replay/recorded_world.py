"""The world around each plan of a replay, read back from the bag: pictures, road users, the path really driven.

A bag may be longer than memory, so it is read in parts: what belongs to some plans, from some time before them to some
time after.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol

import cv2
import numpy as np

from ..config import Config
from ..domain import Agents, Array, DrivableGrid, EgoState, PlanSource, StepKind, Verdict
from ..ros import convert, image_decoding
from ..ros.bag import BagReader, DamagedMessage
from ..ros.convert import BadMessage
from ..ros.inputs.channel import InputStatus
from ..ros.lanelet_file import load_map
from ..ros.lanelet_map import LaneletMap
from ..ros.map_drivable import MapDrivableArea
from ..ros.vector_map import VectorMap
from .record import Diagnostic, ReplayFrame, ReplayPicture
from .scores import LEAD_IN_NS, Sighting

PICTURE_WIDTH = 480


class Planned(Protocol):
    """What is needed of a plan that went out."""

    @property
    def stamp_ns(self) -> int: ...
    @property
    def points(self) -> Array: ...  # (T,) of outputs.POINT
    @property
    def status(self) -> Any: ...
    @property
    def stages_ms(self) -> dict[str, float]: ...
    @property
    def statuses(self) -> tuple[InputStatus, ...]: ...
    @property
    def at_ns(self) -> int | None: ...


@dataclass(frozen=True)
class Part:
    """What was received from start up to stop; None: from the beginning, to the end."""

    reader: BagReader
    sources: Mapping[str, str]  # input -> its topic in this bag
    start_ns: int | None = None
    stop_ns: int | None = None

    def messages(self, key: str) -> Iterator[tuple[int, Any]]:
        """When it was received (ns) and the message, of an input that the bag has; damaged ones are left out."""
        names = [self.sources[key]] if key in self.sources else []
        for entry in self.reader.messages(names, self.start_ns, self.stop_ns):
            with suppress(DamagedMessage):  # the diagnostics say it
                yield entry.received_ns, entry.message()


def frames_of(
    sent: Sequence[Planned],
    egos: Mapping[int, EgoState],
    pictures: Mapping[int, tuple[ReplayPicture, ...]],
    seen: Sequence[Sighting],
    part: Part,
    config: Config,
) -> list[ReplayFrame]:
    """Plans with what was around them: egos by stamp, pictures by place among the plans, sightings by time."""
    stamps = [item.stamp_ns for item in sent]
    agents, accelerations = _agents(seen, stamps), _accelerations(part, config, stamps)
    frames = []
    for k, item in enumerate(sent):
        ego = replace(egos[stamps[k]], acceleration_mps2=accelerations[k])
        frames.append(_frame(item, ego, agents[k], pictures.get(k, ())))
    return frames


def sightings(part: Part, config: Config, driven: Callable[[Array], Array]) -> list[Sighting]:
    """Who was where, message by message; what the inputs refused is left out here, too. `driven`: stamps to poses."""
    limits, seen = config.inputs, []
    for _, content in part.messages("objects"):
        with suppress(BadMessage):
            near = driven(np.array([convert.stamp_ns(content.header)]))[0, :2]
            frame = config.output.map_frame
            found = convert.map_agents(content, frame, near, limits.object_extent_max_m, limits.objects_max)
            seen.append(Sighting(found.stamp_ns, found.ids, found.agents))
    return seen


def known_map(whole: Part, config: Config) -> LaneletMap | None:
    """Of the file that is named, else the newest that the bag holds; None where neither is, or it cannot be read."""
    if config.inputs.lanelet_map:
        return load_map(config.inputs)
    received = VectorMap(config.output.map_frame, AtOnce())
    for _, message in whole.messages("map"):
        received.put(message)
    with suppress(BadMessage):  # the diagnostics say it, where it was asked for
        return received.newest()
    return None


def space(lanelets: LaneletMap | None) -> Callable[[ReplayFrame], DrivableGrid | None]:
    """The drivable space around each plan, where a map tells it."""
    if lanelets is None:
        return lambda frame: None
    known = MapDrivableArea(lanelets, AtOnce())

    def around(frame: ReplayFrame) -> DrivableGrid | None:
        ego = EgoState(frame.stamp_ns, frame.map_from_ego, frame.speed_mps)
        for _ in range(2):  # the first time it is begun, and there the second time
            with suppress(BadMessage):
                return known.around(ego)
        return None

    return around


class AtOnce(Executor):
    """Work is done where it is asked for."""

    def submit(self, work: Callable[..., Any], /, *given: Any, **named: Any) -> Future[Any]:
        done: Future[Any] = Future()
        done.set_result(work(*given, **named))
        return done


def _frame(item: Planned, ego: EgoState, agents: Agents, pictures: tuple[ReplayPicture, ...]) -> ReplayFrame:
    points, status = item.points, item.status
    headings = 2.0 * np.arctan2(points["qz"], points["qw"])
    return ReplayFrame(
        stamp_ns=item.stamp_ns,
        map_from_ego=ego.map_from_ego,
        speed_mps=ego.speed_mps,
        plan_poses=np.stack([points["x"], points["y"], headings], axis=1),
        plan_speeds=points["longitudinal_velocity_mps"].astype(float),
        dt_s=float(points["sec"][0] + 1e-9 * points["nanosec"][0]),
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


def odometry(part: Part, config: Config) -> Iterator[tuple[int, EgoState]]:
    """Every usable odometry message with the time it was received."""
    for received_ns, message in part.messages("odometry"):
        with suppress(BadMessage):  # the inputs refused it too, and said so
            yield received_ns, convert.ego_state(message, config.output.map_frame)


def _accelerations(part: Part, config: Config, stamps: Sequence[int]) -> list[float]:
    """For each plan the newest acceleration from before it, as the inputs take it; 0 where there is none so new."""
    known: dict[int, float] = {}
    for _, content in part.messages("acceleration"):
        with suppress(BadMessage):
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


def routes(part: Part, config: Config, lanelets: LaneletMap | None) -> tuple[tuple[int, Array], ...]:
    """Every route that can be drawn, (L, 3), with the time it came."""
    found, frame, points_max = [], config.output.map_frame, config.inputs.route_points_max
    for received_ns, message in part.messages("route"):
        try:
            if config.inputs.route_type == "path":
                route = convert.path_route(message, frame, points_max)
            elif lanelets is not None:
                route, _ = lanelets.route(message, frame, points_max)
            else:
                return ()
        except BadMessage:
            continue
        found.append((received_ns, route))
    return tuple(found)


def _agents(seen: Sequence[Sighting], stamps: Sequence[int]) -> list[Agents]:
    """For each plan who was there when it was made: the newest sighting from before it, no older than half a second."""
    times = np.array([sighting.stamp_ns for sighting in seen], np.int64)
    newest = np.searchsorted(times, np.array(stamps, np.int64), side="right") - 1
    return [
        seen[i].agents if i >= 0 and stamp - times[i] <= LEAD_IN_NS else Agents.none()
        for i, stamp in zip(newest.tolist(), stamps, strict=True)
    ]


# --- pictures --------------------------------------------------------------------------------------------------------


class Cameras:
    """The pictures of a bag; where the cameras stand and what lenses they have is read once."""

    def __init__(self, whole: Part, config: Config) -> None:
        self._config = config
        lenses = {name: _lens(whole, name) for name in config.cameras.names if f"image:{name}" in whole.sources}
        self._lenses = {name: lens for name, lens in lenses.items() if lens is not None}
        self._transforms: dict[str, tuple[str, Array]] = {}
        for _, message in whole.messages("tf_static"):
            self._transforms.update(convert.static_transforms(message))

    def pictures(self, part: Part, shown: Mapping[int, int]) -> dict[int, tuple[ReplayPicture, ...]]:
        """The cameras' pictures, made small, that belong to front pictures: place of a plan -> stamp of its picture."""
        if not shown:
            return {}
        by_camera = [self._of_camera(part, name, lens, shown) for name, lens in self._lenses.items()]
        return {k: tuple(made[k] for made in by_camera if k in made) for k in shown}

    def _of_camera(self, part: Part, name: str, lens: Lens, shown: Mapping[int, int]) -> dict[int, ReplayPicture]:
        # float32 seconds in the status round a stamp by some nanoseconds, so pictures are looked up by nearness
        tolerance_ns = self._config.cameras.match_tolerance_s * 1e9
        wanted = np.array(list(shown.values()), np.int64)
        best: dict[int, tuple[float, ReplayPicture]] = {}
        for _, message in part.messages(f"image:{name}"):
            stamp_ns = convert.stamp_ns(message.header)
            apart = np.abs(wanted - stamp_ns)
            within = np.flatnonzero(apart <= tolerance_ns).tolist()
            near = [i for i in within if i not in best or apart[i] < best[i][0]]
            if not near:
                continue
            try:
                height = round(PICTURE_WIDTH * lens.height / max(lens.width, 1))
                pixels, _ = image_decoding.pixels(message, name, PICTURE_WIDTH, height)
                camera_from_ego = convert.camera_from_ego(self._transforms, name, message.header.frame_id)
            except BadMessage:
                continue
            jpeg = cv2.imencode(".jpg", cv2.cvtColor(pixels, cv2.COLOR_RGB2BGR), [cv2.IMWRITE_JPEG_QUALITY, 75])[1]
            picture = ReplayPicture(
                name, stamp_ns, jpeg.tobytes(), lens.width, lens.height, lens.matrix, camera_from_ego, lens.distortion
            )
            best.update({i: (float(apart[i]), picture) for i in near})
        keys = list(shown)
        return {keys[i]: picture for i, (_, picture) in best.items()}


def front_stamp_ns(item: Planned) -> int | None:
    """Of the front picture a plan was made from; None where it saw none."""
    age_s = item.status.age_of_image
    return item.stamp_ns - round(age_s * 1e9) if np.isfinite(age_s) else None


class Lens(NamedTuple):
    """What a camera_info says, for its own picture size."""

    matrix: Array  # (3, 3)
    width: int
    height: int
    distortion: tuple[float, ...]  # empty for models that the report cannot draw


def _lens(whole: Part, name: str) -> Lens | None:
    """Of the first usable camera_info."""
    for _, message in whole.messages(f"info:{name}"):
        try:
            matrix = convert.intrinsics(message, name)
            known = message.distortion_model in ("plumb_bob", "rational_polynomial")
            distortion = tuple(float(value) for value in message.d) if known else ()
            return Lens(matrix, int(message.width), int(message.height), distortion)
        except BadMessage:
            continue
    return None
