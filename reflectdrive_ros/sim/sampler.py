"""Scenes out of towns: a shard is some towns, their traffic recorded, and moments of it that make up the families.

Any car of the log may be the ego of a moment (`moment.py` says how another driver takes its wheel). Then the expert
drives, and what nobody can drive is left out and counted.

A shard depends on its set, its number, its size and the options, on nothing else. The names of its towns begin with the
set's, and their seeds follow from their names: two sets share no town.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from .. import geometry
from ..config import VehicleConfig
from ..data.scene import FAMILIES, INSTANTS_S, NOW, DrivingScene
from ..domain import CameraFrame, ForecastSource
from ..scoring import reference
from .expert import expert, scenario_tags, scene_extraction
from .network import towns
from .network.roads import RoadError
from .render import appearance, camera, scenery
from .traffic import traffic
from .traffic.scripted_actors import Staged
from .traffic.traffic import TrafficLog

STEP_S = 0.1
STEP_NS = 100_000_000
TOWN_SCENES = 100  # of one town, at most
TOWNS_MAX = 8  # for one shard of 250; families that are rare in a town are sought in the next
WARM_UP_S, RECORDED_S = 15.0, 55.0
APART_STEPS = 15  # between two scenes of one car
TRIES = 30  # moments looked at for one scene that is wanted: another town costs more
FLOOR = 0.55  # below this PDMS the expert has failed and the scene is left out
EASY = 0.8  # straight on at this PDMS needs no eyes ..
EASY_KEPT = 0.3  # .. and of such scenes this share is kept
LATERAL_MPS2 = {"high_lateral_acceleration": 4.0}  # what the expert takes in curves, where it is not the usual


@dataclass(frozen=True)
class Options:
    """What a set is made with besides its name."""

    width: int = 288
    height: int = 162
    pictures: bool = True


def seed_of(*words: object) -> int:
    """31 bits that follow from words alone."""
    return int.from_bytes(hashlib.sha256("/".join(map(str, words)).encode()).digest()[:4], "little") >> 1


def quotas(size: int) -> dict[str, int]:
    """How many scenes of each family `size` scenes hold: the shares, rounded so that they add up."""
    exact = {family: size * share / sum(FAMILIES.values()) for family, share in FAMILIES.items()}
    whole = {family: int(value) for family, value in exact.items()}
    rest = sorted(exact, key=lambda family: (whole[family] - exact[family], family))
    for family in rest[: size - sum(whole.values())]:
        whole[family] += 1
    return whole


class Shard:
    """The scenes of one shard, made one after the other; `counts` fills up meanwhile."""

    def __init__(self, split: str, index: int, size: int, folder: Path, options: Options | None = None) -> None:
        self.split, self.index, self.size, self.folder = split, index, size, folder
        self.options = options or Options()
        self.counts: Counter[str] = Counter()
        self._rig = camera.rig(self.options.width, self.options.height)
        self._vehicle = VehicleConfig()

    def scenes(self) -> Iterator[DrivingScene]:
        """Up to `size` scenes; what a family lacks is said in `counts`. Raises SumoMissing without SUMO."""
        wanted = quotas(self.size)
        made = 0
        for number in range(TOWNS_MAX):
            if not any(wanted.values()):
                break
            name = f"{self.split}-{self.index:05d}-{number:02d}"
            try:
                road_map = towns.make(name, seed_of(name), self.folder)
                log = traffic.record(road_map, seed_of(name, "traffic"), RECORDED_S, WARM_UP_S)
            except (RoadError, traffic.TrafficError):
                self.counts["town_failed"] += 1
                continue
            self.counts["towns"] += 1
            self.counts.update({f"traffic_{key}": value for key, value in log.counts.items()})
            for scene in self._from_log(log, wanted):
                yield replace(scene, name=f"{self.split}-{self.index:05d}-{made:03d}")
                made += 1
        self.counts.update({f"missing_{family}": missing for family, missing in wanted.items() if missing})

    def _from_log(self, log: TrafficLog, wanted: dict[str, int]) -> Iterator[DrivingScene]:
        town = log.road_map.name
        generator = np.random.default_rng(seed_of(town, "moments"))
        moments = scenario_tags.find(log)
        static = scenery.of(log.road_map, seed_of(town, "scenery")) if self.options.pictures else None
        taken: dict[int, list[int]] = {}
        left = TOWN_SCENES
        # The rarest first: a moment that is several things is given to the family that needs it.
        for family in sorted(wanted, key=lambda name: (int(moments.found[name].sum()), name)):
            places = np.argwhere(moments.found[family])
            quota = min(wanted[family], left)
            places = generator.permutation(places)
            on_stage = moments.staged.get(family)
            if on_stage is not None:  # what happened by itself comes first
                places = places[np.argsort(on_stage[tuple(places.T)] >= 0, kind="stable")]
            for row, column in places[: TRIES * quota]:
                step, ego = int(moments.steps[row]), int(moments.egos[column])
                if quota == 0 or any(abs(step - other) < APART_STEPS for other in taken.get(ego, ())):
                    continue
                parked = -1 if on_stage is None else int(on_stage[row, column])
                seed = seed_of(town, step, ego)
                try:
                    found = scene_extraction.at(log, step, ego, family, seed, self._vehicle, parked)
                    scene = self._driven(found, np.random.default_rng(seed_of(seed, "easy")))
                except scene_extraction.NoScene as reason:
                    self.counts[str(reason)] += 1
                    continue
                if static is not None:
                    scene = replace(scene, cameras=self._pictures(log, static, scene, found.staged, step, ego))
                taken.setdefault(ego, []).append(step)
                wanted[family] -= 1
                quota -= 1
                left -= 1
                yield scene

    def _driven(self, found: scene_extraction.Moment, generator: np.random.Generator) -> DrivingScene:
        """The scene with its yardstick and its expert. Raises NoScene where it is too easy or nobody can drive it."""
        scene = found.scene
        came_true = scene.scored()
        easy = expert.ease(came_true)
        if easy > EASY and generator.random() > EASY_KEPT:
            raise scene_extraction.NoScene("too_easy")
        believed = replace(came_true, agents=scene.scored(ForecastSource.CONSTANT_VELOCITY).agents)
        yardstick = reference.reference_progress(believed, came_true, scene.speed_limit_mps)
        lateral = LATERAL_MPS2.get(scene.family, expert.LATERAL_MPS2)
        came_true = replace(came_true, reference=yardstick)
        driven = expert.drive(came_true, scene.speed_limit_mps, found.stop_m, lateral)
        if driven.score < FLOOR or driven.nc < 1.0 or driven.dac < 1.0:
            self.counts[f"expert_failed_{scene.family}"] += 1
            raise scene_extraction.NoScene("expert_failed")
        notes = {"expert_pdms": round(driven.score, 4), "straight_on_pdms": round(easy, 4)}
        return replace(scene, reference=yardstick, expert=driven.waypoints, notes=notes)

    def _pictures(
        self, log: TrafficLog, static: scenery.Scenery, scene: DrivingScene, staged: Staged | None, step: int, ego: int
    ) -> tuple[CameraFrame, ...]:
        looks = appearance.of(seed_of(log.road_map.name, step, ego, "look"))
        frames: list[CameraFrame] = []
        for instant in INSTANTS_S:
            back = round(instant / STEP_S)
            now = log.snapshot(step + back, ego)
            if staged is not None:
                now = staged.into(now, back, log)
            map_from_ego = geometry.compose(scene.map_from_ego, scene.ego_history[NOW + back])
            frames += camera.frames(static, now, map_from_ego, scene.ego.stamp_ns + back * STEP_NS, self._rig, looks)
        return tuple(frames)
