"""Goal scores: the driving score of the network's plan to each of many goals.

Imitation of the expert's goal does not teach to choose a good goal: a goal half a metre from the expert's has the
same loss as one behind a parked car. A network that can draft already therefore drafts a plan to each of many goals of
each scene; the plans are scored as in validation, with the recorded futures, and the goal decision is trained on the
scores.

The expert's goal is among them. Scores are stored next to the prepared scenes, under the hash of the drafting weights,
so that a resumed run finds them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from ..core.domain import Array
from ..data import cache, shards
from ..data.cache import Shape
from ..data.scene import DrivingScene
from ..data.shards import ShardNote
from ..features import images as features
from ..features.images import ModelInputs
from ..infra.parallel import Workers
from ..model import checkpoint
from ..model.token import ops, rollout
from ..model.token.net import PromptInputs, TokenNet
from ..model.token.ops import EditRules, GoalRules
from ..planning.postprocess.waypoints import postprocess
from ..scoring.frenet import FrenetFrame, poses_on_road
from ..scoring.scorer import SUB_SCORES, score
from .greedy import draft_rounds

GOALS = GoalRules(count=15, spacing_m=1.2, floor=0.0)  # besides the expert's own
BATCH_SCENES = 10  # scenes
SceneInputs = tuple[DrivingScene, ModelInputs]


@dataclass(frozen=True, eq=False)
class GoalScores:
    """K goals of each of N scenes, in the order of the prepared set."""

    goals: Array  # (N, K, 2) ids of x and y, int16
    score: Array  # (N, K) of the plan for each, 0 to 1, float32
    sub_scores: Array  # (N, K, len(PARTS)) its sub-scores, likewise


@dataclass(frozen=True)
class DraftingWeights:
    """The network that writes the plans."""

    file: Path
    sha256: str
    fast: bool  # in bfloat16, where that is how it learns


def score_set(
    folder: Path, shape: Shape, weights: DraftingWeights, workers: Workers, progress: Callable[[int, int], None]
) -> GoalScores:
    """Goals and scores of a prepared set, computed where they are not stored yet; `progress` as in `prepared.prepare`.

    Raises SetError, CheckpointError, or OSError naming the file that cannot be written.
    """
    notes = cache.cached_shards(folder, shape)
    todo = [note for note in notes if not _file(folder, shape, note, weights).exists()]
    done = len(notes) - len(todo)
    progress(done, len(notes))
    for _ in cache.map_processes(_score_shard, [(folder, shape, note, weights) for note in todo], folder, workers):
        done += 1
        progress(done, len(notes))
    parts_by_name: dict[str, list[Array]] = {}
    for note in notes:
        for name, values in cache.read_stored(_file(folder, shape, note, weights)).items():
            parts_by_name.setdefault(name, []).append(values)
    return GoalScores(**{name: np.concatenate(each) for name, each in parts_by_name.items()})


def _score_shard(job: tuple[Path, Shape, ShardNote, DraftingWeights]) -> None:
    """Writes goals and scores of one shard, of those of its scenes that are in the prepared set."""
    folder, shape, note, weights = job
    torch.set_num_threads(1)  # shards share the cores
    net = checkpoint.load(weights.file, weights.sha256)
    scenes = []
    for scene in shards.read_shard(folder, note, images=True, on_damage=lambda sentence: None):
        try:
            scenes.append((scene, features.model_inputs(scene.observation(), shape.spec)))
        except ValueError:
            continue  # `prepare` has reported it
    scored = [
        part
        for first in range(0, len(scenes), BATCH_SCENES)
        for part in score_drafts(net, scenes[first : first + BATCH_SCENES], weights.fast)
    ]
    arrays = dict(zip(("goals", "score", "sub_scores"), map(np.stack, zip(*scored, strict=True)), strict=True))
    cache.write_arrays(_file(folder, shape, note, weights), arrays)


def score_drafts(net: TokenNet, inputs: Sequence[SceneInputs], fast: bool) -> list[tuple[Array, Array, Array]]:
    """Goals (K, 2) int16 of each scene, and of their plans the scores (K,) and their PARTS (K, 5), float32."""
    scored, layout = [], net.config.layout
    for (scene, _), actions in zip(inputs, draft_to_goals(net, inputs, fast), strict=True):
        road = FrenetFrame.of(scene.route)
        points = postprocess(layout.decode(actions)[..., :2], scene.ego, layout.waypoint_noise_m, road)
        card = score(scene.scored(), poses_on_road(points, road))
        parts = np.stack([getattr(card, name) for name in SUB_SCORES], axis=-1)
        goals = actions[:, list(layout.goal)].astype(np.int16)
        scored.append((goals, card.score.astype(np.float32), parts.astype(np.float32)))
    return scored


@torch.no_grad()
def draft_to_goals(net: TokenNet, inputs: Sequence[SceneInputs], fast: bool) -> Array:
    """(scenes, K, T) tokens: drafts for the network's likeliest goals and, last, for the expert's.

    They are not edited: editing moves no goal and hardly a score.
    """
    parts = zip(*(each.arrays.values() for _, each in inputs), strict=True)
    prompt_inputs = PromptInputs.of([torch.from_numpy(np.stack(part)) for part in parts])
    layout = net.config.layout
    experts = layout.encode(np.stack([scene.expert[:, : len(layout.axes)] for scene, _ in inputs])).astype(np.int64)
    clean = net.config.clamp_to_range(torch.from_numpy(experts))
    with torch.autocast("cpu", torch.bfloat16, enabled=fast):
        prefilled = rollout.prefill_goal(net, prompt_inputs, GOALS)
        actions = torch.cat([prefilled.actions, ops.mask_free(clean, layout)[:, None]], 1)
        past = prefilled.keys_values
        drafts = rollout.rollout(lambda ids: net.decode(ids, past), actions, layout, draft_rounds(layout), EditRules())
    return np.asarray(drafts[-1].actions.numpy())


def _file(folder: Path, shape: Shape, note: ShardNote, weights: DraftingWeights) -> Path:
    return cache.cache_file(cache.cache_folder(folder, shape), note, f"goal-scores-{weights.sha256[:16]}.npz")
