"""Rewards of sampled plans: the driving score, in the recorded future, of the plan that the car would send.

A plan of tokens is postprocessed as in `planning.reflectdrive2` when neither agents nor road are known (privilege
`route` or `words`) and scored as `reflectdrive eval` does. Worker processes read the scenes and score the plans.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..core import kinematics
from ..core.config import Config
from ..core.domain import PLAN_DT_S, Array
from ..core.tokens import TokenLayout
from ..data.cache import CachedSet
from ..data.scene import DrivingScene
from ..data.shards import SceneReader, SetError
from ..infra.parallel import RestartablePool, Workers
from ..planning import critique
from ..planning.critique import critique_in
from ..planning.postprocess.comfort import relax_profiles
from ..planning.postprocess.waypoints import postprocess, token_headings, trajectories
from ..planning.select import forecast_scene
from ..scoring.frenet import points_in_ego_frame
from ..scoring.safety import SafetyContext
from ..scoring.scorer import SUB_SCORES, WAYPOINT_TIMES_S, score

COLUMNS = ("score", *SUB_SCORES)  # of a reward
SCENE_BYTES, MEMORY_SHARE = 160_000, 0.25  # of a scene in memory; of all memory, that scenes may take
CLUSTER_WORKERS = 16  # of a machine of a cluster, at most
REACH_M = 40.0  # of the index of a scene's areas; few plans of 4 s go beyond, and they are scored more slowly


class PlansOfScene(NamedTuple):
    """Plans of one scene that are to be scored."""

    row: int  # of the batch: a scene may be sampled twice
    shard: Path
    name: str
    with_route: bool  # whether the planner knew the route
    plans: Array  # of the scene as it was recorded: ids (M, T), or poses (M, 8, 3)
    standing: bool = False  # whether the ego stands still instead of its recorded motion
    critiques: bool = False  # whether their critiques are returned instead of their scores


def score_poses(scene: DrivingScene, poses: Array) -> Array:
    """(M, 6) float32 COLUMNS, 0 to 1, of poses (M, 8, 3) at 0.5 .. 4 s, ego frame."""
    card = score(scene.scored(), poses)
    return np.stack([getattr(card, name) for name in COLUMNS], axis=-1).astype(np.float32)


@dataclass(frozen=True)
class PlanScorer:
    """Scores token plans in recorded scenes."""

    layout: TokenLayout

    def __call__(self, scene: DrivingScene, plans: Array, with_route: bool) -> Array:
        """(M, 6) float32 COLUMNS, 0 to 1, of plans (M, T)."""
        return score_poses(scene, self.sent_poses(scene, plans, with_route))

    def critique(self, scene: DrivingScene, plans: Array) -> Array:
        """(M, P, channels) `planning.critique` of plans (M, T), with the agents as forecast and the road of the map."""
        safety_context = SafetyContext(scene.observation(lights=True), Config())
        judged = replace(forecast_scene(safety_context), areas=scene.areas, red_lights=scene.red_lights)
        return critique_in(judged, scene.ego, safety_context.road, plans, self.layout, safety_context.config.scoring)

    def sent_poses(self, scene: DrivingScene, actions: Array, with_route: bool) -> Array:
        """(M, 8, 3) poses at 0.5 .. 4 s, ego frame, of the trajectories that a car sends for plans (M, T)."""
        observation = replace(scene.observation(), agents=None)
        if not with_route:
            observation = replace(observation, route=np.zeros((0, 3)))
        config = Config()
        safety_context = SafetyContext(observation, config)
        waypoints = self.layout.decode(actions)
        points = points_in_ego_frame(waypoints, self.layout, safety_context.road)
        points = postprocess(points, scene.ego, self.layout.waypoint_noise_m, safety_context.road)
        points = relax_profiles(points, safety_context)
        headings = token_headings(waypoints, points, self.layout)
        sent = trajectories(points, scene.ego.speed_mps, PLAN_DT_S, safety_context.road, headings)
        return np.stack([kinematics.resample(each, WAYPOINT_TIMES_S) for each in sent])


class ScorePool:
    """Worker processes that score plans. A context manager; leaving it ends the processes."""

    def __init__(self, scorer: PlanScorer | None, workers: Workers) -> None:
        """`scorer`: of token plans; None: of poses."""
        worker_count = workers if isinstance(workers, int) else CLUSTER_WORKERS
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        work = _Work(scorer, KeptScenes(int(MEMORY_SHARE * memory / SCENE_BYTES / max(worker_count, 1))))
        self._pool: RestartablePool[PlansOfScene, Array] = RestartablePool(work, workers)

    def __enter__(self) -> ScorePool:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.close()

    def score(self, tasks: Sequence[PlansOfScene]) -> list[Array]:
        """(M, 6) float32 COLUMNS of the plans of each task. Raises SetError for a scene that cannot be scored."""
        results = {}
        for outcome in self._pool.map(tasks):
            if outcome.result is None:
                raise SetError(f"scene {outcome.task.name} of {outcome.task.shard} cannot be scored: {outcome.reason}")
            results[outcome.task.row] = outcome.result
        return [results[task.row] for task in tasks]


class RewardPool:
    """Worker processes that score the token plans of a batch. A context manager; leaving it ends the processes."""

    def __init__(self, folder: Path, scenes: CachedSet, scorer: PlanScorer, workers: Workers) -> None:
        self.folder, self.scenes, self.layout = folder, scenes, scorer.layout
        self._pool = ScorePool(scorer, workers)

    def __enter__(self) -> RewardPool:
        return self

    def __exit__(self, *fault: object) -> None:
        self._pool.__exit__(*fault)

    def score(self, rows: Sequence[int], mirrored: Array, with_route: Array, actions: Array) -> Array:
        """(B, M, 6) float32 COLUMNS of plans (B, M, T) of the scenes `rows` of the set; `mirrored` and `with_route`
        (B,) bool. Raises SetError for a scene that cannot be scored.
        """
        return np.stack(self._pool.score(self._tasks(rows, mirrored, with_route, actions)))

    def critique(self, rows: Sequence[int], mirrored: Array, with_route: Array, actions: Array) -> Array:
        """(B, M, P, channels) float32 critiques of plans (B, M, T), as `score`; of mirrored plans in the mirrored
        scene."""
        tasks = [task._replace(critiques=True) for task in self._tasks(rows, mirrored, with_route, actions)]
        critiques = np.stack(self._pool.score(tasks))
        critiques[mirrored] = critique.mirrored(critiques[mirrored])
        return critiques

    def _tasks(self, rows: Sequence[int], mirrored: Array, with_route: Array, actions: Array) -> list[PlansOfScene]:
        return [
            PlansOfScene(
                number,
                self.folder / self.scenes.notes[self.scenes.location[row][0]].file,
                self.scenes.names[row].decode(),
                bool(route),
                mirror_actions(plans, self.layout) if mirror else plans,
            )
            for number, (row, mirror, route, plans) in enumerate(zip(rows, mirrored, with_route, actions, strict=True))
        ]


class KeptScenes:
    """Scenes of shards, of which the `limit` last used stay in memory: reading one takes longer than scoring its
    plans."""

    def __init__(self, limit: int) -> None:
        self._limit, self._reader = limit, SceneReader()
        self._kept: OrderedDict[tuple[Path, str], DrivingScene] = OrderedDict()

    def read(self, path: Path, name: str) -> DrivingScene:
        """The scene `name` of a shard. Raises SetError naming the shard."""
        key = path, name
        if key not in self._kept:
            scene = self._reader.read(path, name)
            self._kept[key] = replace(scene, areas=replace(scene.areas, reach_m=REACH_M))
            if len(self._kept) > self._limit:
                self._kept.popitem(last=False)
        self._kept.move_to_end(key)
        scene = self._kept[key]
        return replace(scene, areas=copy(scene.areas))  # the index of the areas, six times the scene, is not kept


@dataclass(frozen=True)
class _Work:
    """The work of a process; its scenes stay there from task to task."""

    scorer: PlanScorer | None
    scenes: KeptScenes

    def __call__(self, task: PlansOfScene, report: Callable[[Any], None]) -> Array:
        scene = self.scenes.read(task.shard, task.name)
        if task.standing:
            scene = replace(scene, ego=replace(scene.ego, speed_mps=0.0, acceleration_mps2=0.0, yaw_rate_rps=0.0))
        if self.scorer is None:
            return score_poses(scene, task.plans)
        if task.critiques:
            return self.scorer.critique(scene, task.plans)
        return self.scorer(scene, task.plans, task.with_route)


def mirror_actions(actions: Array, layout: TokenLayout) -> Array:
    """Ids (.., T) of the mirrored plans: y and headings change their sign; masks stay masks."""
    points = actions.reshape(*actions.shape[:-1], layout.points, len(layout.axes))
    flipped = [
        points[..., k] if axis.name == "x" else axis.bins - 1 - points[..., k] for k, axis in enumerate(layout.axes)
    ]
    ids = np.stack(flipped, axis=-1).reshape(actions.shape)
    return np.where(actions == layout.mask_id, actions, ids)


def check_scorable(folder: Path, scenes: CachedSet) -> None:
    """Raises SetError if the first scene has no road or no recorded future to score plans by."""
    path = folder / scenes.notes[scenes.location[0][0]].file
    scene = SceneReader().read(path, scenes.names[0].decode())
    if not (scene.areas.roadblocks or scene.areas.lanes):
        raise SetError(
            f"{folder} has no roads ({scene.name}): plans cannot be scored, train rl needs scenes with a map"
        )
    if scene.reference.progress_m <= 0.0 and scene.reference.multiplier == 0.0:
        raise SetError(f"{folder} has no reference progress ({scene.name}): plans cannot be scored")
