"""Reads the surroundings of replayed plans from a bag: images, objects, driven path.

A bag may exceed memory, so it is read in slices around the plans of a chunk.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

import cv2
import numpy as np

from ..core.config import Config, VehicleConfig
from ..core.domain import Agents, Array, DrivableGrid, EgoState, PlanSource, StepKind, Verdict
from ..core.messages import BadMessage
from ..core.tokens import TokenLayout
from ..maps.drivable_area import MapDrivableArea
from ..maps.elevation import VehiclePlane
from ..maps.lanelet_file import load_map
from ..maps.lanelet_map import LaneletMap
from ..maps.vector_map import VectorMap
from ..planning.corrections import draft_and_corrections
from ..ros import convert, image_decoding, plan_messages, rotations
from ..ros.bag import BagMessage, BagReader
from .counters import PublishedPlan
from .record import Diagnostic, ReplayFrame, ReplayImage
from .scores import MAX_SIGHTING_AGE_NS, ObjectSighting

IMAGE_WIDTH = 480


@dataclass(frozen=True)
class BagSlice:
    """Messages received from `start_ns` to `stop_ns`; None: without limit."""

    reader: BagReader
    sources: Mapping[str, str]  # input -> its topic in this bag
    start_ns: int | None = None
    stop_ns: int | None = None

    def messages(self, key: str) -> Iterator[tuple[int, Any]]:
        """Receive time (ns) and message of an input, its fields read on access; damaged messages are skipped."""
        names = [self.sources[key]] if key in self.sources else []
        for entry in self.reader.messages(names, self.start_ns, self.stop_ns):
            with suppress(BadMessage):  # the diagnostics report it
                yield entry.received_ns, entry.message()

    def inputs(self) -> Iterator[tuple[str, BagMessage]]:
        """Input and message of all sources, in the order received."""
        keys = {name: key for key, name in self.sources.items()}
        for entry in self.reader.messages(keys, self.start_ns, self.stop_ns):
            yield keys[entry.topic], entry

    @property
    def end_ns(self) -> int:
        """Of the bag, or of the slice if that ends before."""
        return self.reader.end_ns if self.stop_ns is None else min(self.stop_ns, self.reader.end_ns)

    def share(self, now_ns: int) -> float:
        """0..1 of the time from the start of the bag to `end_ns`."""
        return (now_ns - self.reader.start_ns) / max(self.end_ns - self.reader.start_ns, 1)


def build_frames(
    sent: Sequence[PublishedPlan],
    egos: Mapping[int, tuple[EgoState, VehiclePlane]],
    images: Mapping[int, tuple[ReplayImage, ...]],
    sightings: Sequence[ObjectSighting],
    part: BagSlice,
    config: Config,
    layout: TokenLayout | None,
) -> list[ReplayFrame]:
    """Frames of plans, from egos and their planes by stamp, images by plan index and sightings in order of time.

    `layout`: of the tokens; None: drafts and corrections are left out.
    """
    stamps = [item.stamp_ns for item in sent]
    agents, accelerations = _agents(sightings, stamps), _accelerations(part, config, stamps)
    frames = []
    for k, item in enumerate(sent):
        (ego, plane), status, is_plan = egos[stamps[k]], item.status, plan_messages.is_ahead(item.points)
        points, driven = item.points[is_plan], item.points[~is_plan]
        draft, changes = draft_and_corrections(item.trace, layout)
        quaternions = np.stack([points[name] for name in ("qx", "qy", "qz", "qw")], axis=1)
        frame = ReplayFrame(
            stamp_ns=item.stamp_ns,
            map_from_ego=ego.map_from_ego,
            speed_mps=ego.speed_mps,
            plan_poses=plan_messages.planar_poses(points),
            plan_speeds=points["longitudinal_velocity_mps"].astype(float),
            dt_s=float(points["sec"][0] + 1e-9 * points["nanosec"][0]),
            verdict=Verdict(status.verdict),
            source=PlanSource(status.source),
            reason=status.reason,
            step=StepKind(status.step_kind),
            timings_ms=item.stages_ms,
            agents=agents[k],
            images=images.get(k, ()),
            diagnostics=tuple(Diagnostic(s.name, int(s.level), s.message) for s in item.statuses),
            acceleration_mps2=accelerations[k],
            yaw_rate_rps=ego.yaw_rate_rps,
            draft=draft,
            corrections=changes,
            plan_heights=points["z"],
            plan_pitches=rotations.pitches_from_quaternions(quaternions),
            ego_height_m=plane.z_m,
            ego_slope=plane.slope,
            planner=status.planner,
            alternatives=item.alternatives,
            driven_poses=plan_messages.planar_poses(driven),
            driven_speeds=driven["longitudinal_velocity_mps"].astype(float),
        )
        frames.append(frame)
    return frames


def read_sightings(part: BagSlice, config: Config, driven: Callable[[Array], Array]) -> list[ObjectSighting]:
    """Objects message by message, without those the inputs rejected. `driven` maps stamps to ego poses."""
    sightings = []
    for _, content in part.messages("objects"):
        with suppress(BadMessage):
            near = driven(np.array([convert.stamp_ns(content.header)]))[0, :2]
            frame = config.output.map_frame
            map_agents = convert.map_agents(content, frame, near)
            sightings.append(ObjectSighting(map_agents.stamp_ns, map_agents.ids, map_agents.agents))
    return sightings


def find_map(whole: BagSlice, config: Config) -> LaneletMap | None:
    """The map of the configured file, else the newest of the bag; None if none can be read."""
    if config.inputs.lanelet_map:
        return load_map(config.inputs)
    received = VectorMap(config.output.map_frame, InlineExecutor())
    for _, message in whole.messages("map"):
        received.put(message)
    with suppress(BadMessage):  # the diagnostics report it, if it was requested
        return received.newest()
    return None


def drivable_grids(lanelets: LaneletMap | None, vehicle: VehicleConfig) -> Callable[[ReplayFrame], DrivableGrid | None]:
    """A function that returns the drivable area around a frame; None without a map."""
    if lanelets is None:
        return lambda frame: None
    area = MapDrivableArea(lanelets, vehicle, InlineExecutor())

    def around(frame: ReplayFrame) -> DrivableGrid | None:
        ego = EgoState(frame.stamp_ns, frame.map_from_ego, frame.speed_mps)
        for _ in range(2):  # the first call starts the computation, the second returns it
            with suppress(BadMessage):
                return area.around(ego)
        return None

    return around


class InlineExecutor(Executor):
    """Runs submitted work immediately in the calling thread."""

    def submit(self, work: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        done: Future[Any] = Future()
        done.set_result(work(*args, **kwargs))
        return done


def read_odometry(part: BagSlice, config: Config) -> Iterator[tuple[int, EgoState, VehiclePlane]]:
    """Receive time, ego state and plane of every usable odometry message."""
    for received_ns, message in part.messages("odometry"):
        with suppress(BadMessage):  # the inputs rejected and reported it
            yield received_ns, convert.ego_state(message, config.output.map_frame), convert.vehicle_plane(message)


def _accelerations(part: BagSlice, config: Config, stamps: Sequence[int]) -> list[float]:
    """For each plan the newest earlier acceleration within the maximum age, as in the inputs; else 0."""
    by_stamp: dict[int, float] = {}
    for _, content in part.messages("acceleration"):
        with suppress(BadMessage):
            by_stamp[convert.stamp_ns(content.header)] = convert.acceleration(content)
    times = sorted(by_stamp)
    newest = _newest(times, stamps, config.inputs.max_ages_s["acceleration"] * 1e9)
    return [0.0 if index is None else by_stamp[times[index]] for index in newest]


def read_routes(part: BagSlice, config: Config, lanelets: LaneletMap | None) -> tuple[tuple[int, Array], ...]:
    """Receive time and points (L, 3) of every usable route."""
    routes, frame = [], config.output.map_frame
    for received_ns, message in part.messages("route"):
        try:
            if config.inputs.route_type == "path":
                route = convert.path_route(message, frame)
            elif lanelets is not None:
                route, _ = lanelets.route(message, frame)
            else:
                return ()
        except BadMessage:
            continue
        routes.append((received_ns, route))
    return tuple(routes)


def _agents(sightings: Sequence[ObjectSighting], stamps: Sequence[int]) -> list[Agents]:
    """For each plan the objects of the newest earlier sighting, at most MAX_SIGHTING_AGE_NS old."""
    newest = _newest([sighting.stamp_ns for sighting in sightings], stamps, MAX_SIGHTING_AGE_NS)
    return [Agents.none() if index is None else sightings[index].agents for index in newest]


def _newest(times_ns: Sequence[int], stamps_ns: Sequence[int], max_age_ns: float) -> list[int | None]:
    """For each stamp the index of the newest of the rising times up to it; None if that is older than `max_age_ns`."""
    indices = [bisect_right(times_ns, stamp) - 1 for stamp in stamps_ns]
    return [
        index if index >= 0 and stamp - times_ns[index] <= max_age_ns else None
        for index, stamp in zip(indices, stamps_ns, strict=True)
    ]


# --- images ----------------------------------------------------------------------------------------------------------


class BagCameras:
    """Reads the images of a bag; intrinsics and mounting poses are read once."""

    def __init__(self, whole: BagSlice, config: Config) -> None:
        self._config = config
        lenses = {
            name: _read_intrinsics(whole, name) for name in config.cameras.names if f"image:{name}" in whole.sources
        }
        self._lenses = {name: lens for name, lens in lenses.items() if lens is not None}
        self._transforms: dict[str, tuple[str, Array]] = {}
        for _, message in whole.messages("tf_static"):
            self._transforms.update(convert.static_transforms(message))

    def images(self, part: BagSlice, front_stamps_ns: Mapping[int, int]) -> dict[int, tuple[ReplayImage, ...]]:
        """Downscaled images by plan index. `front_stamps_ns`: plan index -> stamp of its front image."""
        by_camera = [self._of_camera(part, name, lens, front_stamps_ns) for name, lens in self._lenses.items()]
        return {
            k: tuple(camera_images[k] for camera_images in by_camera if k in camera_images) for k in front_stamps_ns
        }

    def _of_camera(
        self, part: BagSlice, name: str, lens: Intrinsics, front_stamps_ns: Mapping[int, int]
    ) -> dict[int, ReplayImage]:
        # float32 seconds in the status round a stamp by some nanoseconds, so images are matched by nearest stamp
        tolerance_ns = self._config.cameras.match_tolerance_s * 1e9
        stamps_ns = np.array(list(front_stamps_ns.values()), np.int64)
        best: dict[int, tuple[float, ReplayImage]] = {}
        for _, message in part.messages(f"image:{name}"):
            stamp_ns = convert.stamp_ns(message.header)
            offsets_ns = np.abs(stamps_ns - stamp_ns)
            within = np.flatnonzero(offsets_ns <= tolerance_ns).tolist()
            near = [i for i in within if i not in best or offsets_ns[i] < best[i][0]]
            if not near:
                continue
            try:
                height = round(IMAGE_WIDTH * lens.height / max(lens.width, 1))
                pixels, _ = image_decoding.pixels(message, name, IMAGE_WIDTH, height)
                camera_from_ego = convert.camera_from_ego(self._transforms, name, message.header.frame_id)
            except BadMessage:
                continue
            jpeg = cv2.imencode(".jpg", cv2.cvtColor(pixels, cv2.COLOR_RGB2BGR), [cv2.IMWRITE_JPEG_QUALITY, 75])[1]
            image = ReplayImage(
                name, stamp_ns, jpeg.tobytes(), lens.width, lens.height, lens.matrix, camera_from_ego, lens.distortion
            )
            best.update({i: (float(offsets_ns[i]), image) for i in near})
        keys = list(front_stamps_ns)
        return {keys[i]: image for i, (_, image) in best.items()}


class Intrinsics(NamedTuple):
    """Intrinsics of a camera_info, for its image size."""

    matrix: Array  # (3, 3)
    width: int
    height: int
    distortion: tuple[float, ...]  # empty for distortion models that the report does not support


def _read_intrinsics(whole: BagSlice, name: str) -> Intrinsics | None:
    """Intrinsics of the first usable camera_info."""
    for _, message in whole.messages(f"info:{name}"):
        try:
            matrix = convert.intrinsics(message, name)
            is_supported = message.distortion_model in ("plumb_bob", "rational_polynomial")
            distortion = tuple(float(value) for value in message.d) if is_supported else ()
            return Intrinsics(matrix, int(message.width), int(message.height), distortion)
        except BadMessage:
            continue
    return None
