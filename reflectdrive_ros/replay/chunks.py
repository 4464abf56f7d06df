"""Builds the record of a replay in chunks while plans arrive, in memory that does not grow with the bag.

    chunks = ReplayChunks(reader, sources, config)
    for plan in plans:
        chunks.add(plan)
    record = chunks.record(details)

A chunk is one minute of plans. When it is complete, the bag is read again around its time span, its plans are measured
and scored, and then dropped. The measures of all plans are kept, and a regular subset of plans, images and poses.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np

from ..core import geometry
from ..core.config import Config
from ..core.domain import Array
from ..core.tokens import TokenLayout
from ..maps.lanelet_map import LaneletMap
from ..planning import generator_spec
from ..ros.bag import BagReader
from ..runtime.model_file import card_layout
from . import plan_measures
from . import scores as replay_scores
from .counters import PublishedPlan
from .plan_measures import PlanMeasures
from .record import (
    AllPlans,
    DriveRecord,
    ReplayFrame,
    ReplayRecord,
    interpolate_driven_path,
    measure_plans,
    stage_times,
)
from .recorded_world import (
    BagCameras,
    BagSlice,
    build_frames,
    drivable_grids,
    find_map,
    read_odometry,
    read_routes,
    read_sightings,
)
from .scores import ObjectSighting

CHUNK_PLANS = 600  # plans
MARGIN_NS = 10_000_000_000  # read before and after a chunk; the driving score needs 5 s ahead
FRAMES_MAX, IMAGES_MAX, PATH_MAX = 3200, 400, 40_000  # plans, instants with images, poses of a record

Item = TypeVar("Item")


class DecimatingBuffer(Generic[Item]):
    """Keeps every n-th added item, n a power of two that grows so that at most `capacity` items are kept."""

    def __init__(self, capacity: int) -> None:
        self.items: list[Item] = []
        self.stride = 1
        self._capacity, self._count = capacity, 0

    def add(self, item: Item) -> None:
        if self._count % self.stride == 0:
            self.items.append(item)
        self._count += 1
        if len(self.items) > self._capacity:
            self.items = self.items[::2]
            self.stride *= 2


class ReplayChunks:
    """Collects the plans of one bag."""

    def __init__(
        self,
        reader: BagReader,
        sources: dict[str, str],
        config: Config,
        *,
        scoring: bool = True,
        with_images: bool = True,
    ) -> None:
        """`with_images`: whether images are read, for a report."""
        self._reader, self._sources, self._config, self._with_images = reader, sources, config, with_images
        self._scoring = scoring and "objects" in sources
        self._chunk: list[PublishedPlan] = []
        self._last: ReplayFrame | None = None  # of the previous chunk
        self._until_ns: int | None = None  # end of the path read so far
        self._scored_ns: int | None = None
        self._plans = 0
        self._frames = DecimatingBuffer[ReplayFrame](FRAMES_MAX)
        self._path = DecimatingBuffer[tuple[int, Array]](PATH_MAX)
        self._imaged = DecimatingBuffer[int](IMAGES_MAX)  # indices of plans
        self._measures: list[PlanMeasures] = []
        self._timings: dict[str, list[Array]] = {}
        self.alternatives: dict[int, dict[str, Array]] = {}  # by index of the plan: scores (P,) of its alternatives

    def add(self, plan: PublishedPlan) -> None:
        self._chunk.append(plan)
        if len(self._chunk) >= CHUNK_PLANS:
            self._close(plan.at_ns)

    def record(self, details: dict[str, Any], drive: DriveRecord | None = None) -> ReplayRecord:
        """The record of all plans; none may be added afterwards."""
        self._close(None)
        timings = {stage: np.concatenate(parts) for stage, parts in self._timings.items()}
        path = sorted(dict(self._path.items).items())
        imaged = set(self._imaged.items)
        frames = [
            frame if number in imaged else replace(frame, images=())
            for number, frame in zip(range(0, self._plans, self._frames.stride), self._frames.items, strict=True)
        ]
        return replace(
            self._empty,
            frames=frames,
            driven_path=np.array([pose for _, pose in path]).reshape(-1, 3),
            driven_stamps_ns=np.array([stamp for stamp, _ in path], np.int64),
            details=details,
            drive=drive,
            counted=AllPlans(plan_measures.concat_measures(self._measures), timings),
        )

    def _close(self, end_ns: int | None) -> None:
        """Measures the plans of the current chunk. `end_ns`: time of its last plan; None: end of the replay."""
        plans, self._chunk = self._chunk, []
        start_ns = self._until_ns  # None for the first chunk: from the start of the bag
        if start_ns is not None and plans:
            start_ns = min(start_ns, plans[0].at_ns - MARGIN_NS)
        stop_ns = plans[-1].at_ns + MARGIN_NS if plans else None
        part = BagSlice(self._reader, self._sources, start_ns, stop_ns)
        egos = {}
        for received_ns, ego, plane in read_odometry(part, self._config):
            egos[ego.stamp_ns] = ego, plane
            is_covered = self._until_ns is not None and received_ns < self._until_ns
            if not is_covered and (end_ns is None or received_ns < end_ns):
                self._path.add((ego.stamp_ns, ego.map_from_ego))
        self._until_ns = end_ns
        if not plans:
            return
        image_stamps_ns = {}
        for k, plan in enumerate(plans):
            self._imaged.add(self._plans + k)
            age_s = plan.status.age_of_image if self._with_images else np.nan  # of the front image; NaN: it used none
            if (self._plans + k) % self._imaged.stride == 0 and np.isfinite(age_s):
                image_stamps_ns[k] = plan.stamp_ns - round(age_s * 1e9)
        images = self._cameras.images(part, image_stamps_ns) if image_stamps_ns else {}
        stamps = sorted(egos)
        path = replace(
            self._empty,
            driven_path=np.array([egos[stamp][0].map_from_ego for stamp in stamps]).reshape(-1, 3),
            driven_stamps_ns=np.array(stamps, np.int64),
        )
        sightings = read_sightings(part, self._config, lambda stamps_ns: interpolate_driven_path(path, stamps_ns))
        sightings.sort(key=lambda sighting: sighting.stamp_ns)
        frames = build_frames(plans, egos, images, sightings, part, self._config, self._layout)
        self._count(replace(path, frames=frames), sightings)
        self._plans += len(frames)
        for frame in frames:
            self._frames.add(frame)

    def _count(self, chunk: ReplayRecord, sightings: Sequence[ObjectSighting]) -> None:
        scores: dict[str, Array] = {}
        if self._scoring:
            scored = replay_scores.score_replay(chunk, sightings, self._space, self._config, self._scored_ns)
            scores = scored.plans
            self.alternatives |= {self._plans + k: values for k, values in scored.alternatives.items()}
            self._scored_ns = max((chunk.frames[k].stamp_ns for k in scored.alternatives), default=self._scored_ns)
        self._measures.append(measure_plans(replace(chunk, scores=scores), self._last))
        self._last = chunk.frames[-1]
        for stage, values in stage_times(chunk.frames).items():
            self._timings.setdefault(stage, []).append(values)

    @cached_property
    def _empty(self) -> ReplayRecord:
        """The record without plans."""
        return ReplayRecord(
            planner=self._config.planner,
            bag=Path(self._reader.path).name,
            frames=(),
            routes=read_routes(BagSlice(self._reader, self._sources), self._config, self._map),
            driven_path=np.zeros((0, 3)),
            driven_stamps_ns=np.zeros(0, np.int64),
            vehicle=self._config.vehicle,
            road=[] if self._map is None else [geometry.outer_ring(polygon) for polygon in self._map.road],
        )

    @cached_property
    def _layout(self) -> TokenLayout | None:
        return card_layout(self._config.model) if generator_spec(self._config).network is not None else None

    @cached_property
    def _cameras(self) -> BagCameras:
        return BagCameras(BagSlice(self._reader, self._sources), self._config)

    @cached_property
    def _space(self) -> Any:
        return drivable_grids(self._map, self._config.vehicle)

    @cached_property
    def _map(self) -> LaneletMap | None:
        return find_map(BagSlice(self._reader, self._sources), self._config)
