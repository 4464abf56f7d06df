"""Samples scenes from towns: a shard is some towns, their recorded traffic, and moments of it for each family.

Any car of the log may be the ego of a moment (`expert/scene_extraction.py` replaces its driver). The expert then plans;
scenes that it cannot drive are left out and counted.

A shard depends on its set, its number, its size and the options only. The names of its towns start with the set's name,
and their seeds follow from their names: two sets share no town.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from ..core import geometry
from ..core.config import VehicleConfig
from ..core.domain import CameraFrame, ForecastSource
from ..data.scene import FAMILIES, INSTANTS_S, NOW, DrivingScene
from ..maps.roads import RoadError
from ..scoring import reference
from ..scoring.scorer import Reference
from ..scoring.simulate import simulate
from .expert import sampling_planner, scenario_tags, scene_extraction
from .network import towns
from .render import appearance, camera, scenery
from .traffic import traffic_log
from .traffic.scripted_actors import ScriptedActor
from .traffic.traffic_log import TrafficLog

STEP_S = 0.1
STEP_NS = 100_000_000
GROUP = 16  # moments that become scenes together
MAX_SCENES_PER_TOWN = 100  # of one town, at most
TOWNS_MAX = 8  # for one shard of 250; families that are rare in one town are searched in the next
WARM_UP_S, RECORDED_S = 15.0, 55.0
MIN_STEP_DISTANCE = 15  # between two scenes of one car
CANDIDATES_PER_SCENE = 30  # moments evaluated per required scene; another town takes longer
MIN_EXPERT_SCORE = 0.55  # below this PDMS the expert has failed and the scene is left out
EASY_SCORE = 0.8  # a scene with this PDMS for driving straight on is easy ..
EASY_SHARE = 0.3  # .. and of such scenes this share remains
# lateral acceleration of the expert in curves, where it differs from the default
LATERAL_MPS2 = {"high_lateral_acceleration": 4.0}


@dataclass(frozen=True)
class Options:
    """Options of a set besides its name."""

    width: int = 288
    height: int = 162
    pictures: bool = True
    displaced_share: float = 0.0  # of the moments whose ego is displaced from its logged pose


def seed_of(*words: object) -> int:
    """31 bits that follow from words alone."""
    return int.from_bytes(hashlib.sha256("/".join(map(str, words)).encode()).digest()[:4], "little") >> 1


def quotas(size: int) -> dict[str, int]:
    """Number of scenes of each family among `size` scenes: the shares, rounded so that they add up."""
    exact = {family: size * share / sum(FAMILIES.values()) for family, share in FAMILIES.items()}
    whole = {family: int(value) for family, value in exact.items()}
    rest = sorted(exact, key=lambda family: (whole[family] - exact[family], family))
    for family in rest[: size - sum(whole.values())]:
        whole[family] += 1
    return whole


@dataclass(frozen=True)
class Moment:
    """A step of a log and the actor that is the ego."""

    step: int
    ego: int
    parked: int  # the actor that opens its door or pulls out, -1: none

    def excludes(self, other: Moment) -> bool:
        """Whether the two are too close to each other."""
        return self.ego == other.ego and abs(self.step - other.step) < MIN_STEP_DISTANCE

    def excluded_by(self, used_steps: Mapping[int, Sequence[int]]) -> bool:
        """Whether it is too close to one of the used steps of its ego."""
        return any(abs(self.step - step) < MIN_STEP_DISTANCE for step in used_steps.get(self.ego, ()))


def _split_group(
    moments: Sequence[Moment], used_steps: Mapping[int, Sequence[int]], quota: int
) -> tuple[list[Moment], Sequence[Moment]]:
    """The next moments that are not excluded by the used steps, at most `quota`, and the rest."""
    group: list[Moment] = []
    for index, moment in enumerate(moments):
        if moment.excluded_by(used_steps):
            continue
        if len(group) == min(quota, GROUP):
            return group, moments[index:]
        group.append(moment)
    return group, []


class Shard:
    """The scenes of one shard, in sequence, with `counts` of left-out scenes."""

    def __init__(self, split: str, index: int, size: int, folder: Path, options: Options | None = None) -> None:
        self.split, self.index, self.size, self.folder = split, index, size, folder
        self.options = options or Options()
        self.counts: Counter[str] = Counter()
        self._rig = camera.rig(self.options.width, self.options.height)
        self._vehicle = VehicleConfig()

    def scenes(self) -> Iterator[DrivingScene]:
        """Up to `size` scenes; missing families are in `counts`, and towns that SUMO refuses.

        Raises SumoMissing without SUMO, SumoFailed and OSError for what may pass: a full disk, a signal, a time limit.
        """
        remaining = quotas(self.size)
        scene_count = 0
        for number in range(TOWNS_MAX):
            if not any(remaining.values()):
                break
            name = f"{self.split}-{self.index:05d}-{number:02d}"
            try:
                road_map = towns.make(name, seed_of(name), self.folder)
                log = traffic_log.record(road_map, seed_of(name, "traffic"), RECORDED_S, WARM_UP_S)
            except (RoadError, traffic_log.TrafficError):
                self.counts["town_failed"] += 1
                continue
            self.counts["towns"] += 1
            self.counts.update({f"traffic_{key}": value for key, value in log.counts.items()})
            for scene in self._scenes_of_log(log, remaining):
                yield replace(scene, name=f"{self.split}-{self.index:05d}-{scene_count:03d}")
                scene_count += 1
        self.counts.update({f"missing_{family}": missing for family, missing in remaining.items() if missing})

    def _scenes_of_log(self, log: TrafficLog, remaining: dict[str, int]) -> Iterator[DrivingScene]:
        town = log.road_map.name
        generator = np.random.default_rng(seed_of(town, "moments"))
        candidates = scenario_tags.find_candidates(log)
        static = scenery.build_scenery(log.road_map, seed_of(town, "scenery")) if self.options.pictures else None
        used_steps: dict[int, list[int]] = {}
        left = MAX_SCENES_PER_TOWN
        # The rarest first: a moment of several families counts for the rarest.
        for family in sorted(remaining, key=lambda name: (int(candidates.masks[name].sum()), name)):
            indices = np.argwhere(candidates.masks[family])
            quota = min(remaining[family], left)
            indices = generator.permutation(indices)
            scripted_rows = candidates.scripted.get(family)
            if scripted_rows is not None:  # recorded events take precedence
                indices = indices[np.argsort(scripted_rows[tuple(indices.T)] >= 0, kind="stable")]
            rows, columns = indices[: CANDIDATES_PER_SCENE * quota].T
            parked = np.full(len(rows), -1) if scripted_rows is None else scripted_rows[rows, columns]
            steps, egos = candidates.steps[rows], candidates.egos[columns]
            moments: Sequence[Moment] = [Moment(*each) for each in np.stack([steps, egos, parked], axis=1).tolist()]
            while moments and quota:
                group, moments = _split_group(moments, used_steps, quota)
                sure = [moment for k, moment in enumerate(group) if not any(map(moment.excludes, group[:k]))]
                scenes = self._make_group(log, family, sure)
                for moment in group:
                    if moment.excluded_by(used_steps):
                        continue
                    if moment not in sure:  # what excluded it makes no scene
                        scenes |= self._make_group(log, family, [moment])
                    if moment not in scenes:
                        continue
                    extracted, scene = scenes[moment]
                    if static is not None:
                        images = self._render_images(log, static, scene, extracted.scripted, moment.step, moment.ego)
                        scene = replace(scene, cameras=images)
                    used_steps.setdefault(moment.ego, []).append(moment.step)
                    remaining[family] -= 1
                    quota -= 1
                    left -= 1
                    yield scene

    def _make_group(
        self, log: TrafficLog, family: str, group: Sequence[Moment]
    ) -> dict[Moment, tuple[scene_extraction.ExtractedScene, DrivingScene]]:
        """The moments that make scenes, with these. Moments that are too easy or not drivable are counted."""
        chosen: list[tuple[Moment, scene_extraction.ExtractedScene, float]] = []
        for moment in group:
            seed = seed_of(log.road_map.name, moment.step, moment.ego)
            try:
                extracted = scene_extraction.extract_scene(
                    log,
                    moment.step,
                    moment.ego,
                    family,
                    seed,
                    self._vehicle,
                    moment.parked,
                    self.options.displaced_share,
                )
            except scene_extraction.NoScene as reason:
                self.counts[str(reason)] += 1
                continue
            easy = sampling_planner.straight_ahead_score(extracted.scored)
            generator = np.random.default_rng(seed_of(seed, "easy"))
            if easy > EASY_SCORE and generator.random() > EASY_SHARE:
                self.counts["too_easy"] += 1
            else:
                chosen.append((moment, extracted, easy))
        scenes = {}
        experts = self._plan_experts([extracted for _, extracted, _ in chosen])
        for (moment, extracted, easy), (progress, plan) in zip(chosen, experts, strict=True):
            if plan.score < MIN_EXPERT_SCORE or plan.nc < 1.0 or plan.dac < 1.0:
                self.counts[f"expert_failed_{family}"] += 1
                self.counts["expert_failed"] += 1
                continue
            notes = {"expert_pdms": round(plan.score, 4), "straight_on_pdms": round(easy, 4)}
            scene = replace(extracted.scene, reference=progress, expert=plan.waypoints, notes=notes)
            scenes[moment] = extracted, scene
        return scenes

    def _plan_experts(
        self, group: Sequence[scene_extraction.ExtractedScene]
    ) -> list[tuple[Reference, sampling_planner.ExpertPlan]]:
        """The reference progress and the expert's plan of each scene; all their cars are simulated together."""
        recorded = [extracted.scored for extracted in group]
        predicted = [
            replace(scored, agents=extracted.scene.scored(ForecastSource.CONSTANT_VELOCITY).agents)
            for scored, extracted in zip(recorded, group, strict=True)
        ]
        limits_mps = [extracted.scene.speed_limit_mps for extracted in group]
        proposals = [reference.proposals(*each) for each in zip(predicted, limits_mps, strict=True)]
        states = [
            simulate(plans, scored.motion, self._vehicle) for plans, scored in zip(proposals, recorded, strict=True)
        ]
        references = [reference.measured_progress(*each) for each in zip(predicted, recorded, states, strict=True)]
        situations = [
            sampling_planner.Situation(
                replace(scored, reference=progress),
                extracted.scene.speed_limit_mps,
                extracted.stop_m,
                LATERAL_MPS2.get(extracted.scene.family, sampling_planner.LATERAL_MPS2),
            )
            for scored, progress, extracted in zip(recorded, references, group, strict=True)
        ]
        return list(zip(references, sampling_planner.plan_experts(situations), strict=True))

    def _render_images(
        self,
        log: TrafficLog,
        static: scenery.Scenery,
        scene: DrivingScene,
        scripted: ScriptedActor | None,
        step: int,
        ego: int,
    ) -> tuple[CameraFrame, ...]:
        scene_appearance = appearance.sample_appearance(seed_of(log.road_map.name, step, ego, "look"))
        frames: list[CameraFrame] = []
        for instant in INSTANTS_S:
            back = round(instant / STEP_S)
            now = log.snapshot(step + back, ego)
            if scripted is not None:
                now = scripted.into(now, back, log)
            map_from_ego = geometry.compose(scene.map_from_ego, scene.ego_history[NOW + back])
            frames += camera.render_frames(
                static, now, map_from_ego, scene.ego.stamp_ns + back * STEP_NS, self._rig, scene_appearance
            )
        return tuple(frames)
