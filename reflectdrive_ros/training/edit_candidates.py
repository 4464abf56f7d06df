"""Plans around the drafts of a fixed generator and their scores, computed once: for the training of its expert.

The generator is not trained and the prompts are cached (`prompt_cache`), so that the draft of a scene is the same in
every epoch. It is decoded as the car decodes it, and the expert with which the run begins corrects it. Smooth variants
of both (`plan_changes`), and the fixed variants of the draft of which a critique tells the scores, are the candidates
that are scored in the recorded future. Files are named by a hash of all that they depend on: a further run, begun with
the trained expert, has candidates around the plans of that expert.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..core.domain import Array
from ..core.tokens import TokenLayout
from ..model.token import rollout
from ..model.token.net import TokenNet
from ..model.token.ops import GoalRules
from ..planning.critique import VARIANT_MODES, variants_of
from ..planning.plan_changes import change_actions, sample_offsets
from .greedy import decode_greedily
from .losses import Batch
from .prompt_cache import compute_once, hash_weights
from .rewards import RewardPool

FORMAT = 3  # raise it when candidates or their scores change


@dataclass(frozen=True, eq=False)
class EditCandidates:
    """Of N scenes: the finished draft, its critique, and K plans of T tokens with their scores 0 to 1."""

    plans: Array  # (N, K, T) int16; the first is the draft, the second what the expert made of it
    score: Array  # (N, K) float32
    critique: Array  # (N, points, channels) float16 of the draft; no channels for a network without critique


def candidates_file(prompt_file: Path, net: TokenNet, about: Mapping[str, Any]) -> Path:
    """The file of the candidates of a network, next to the prompts that it reads. about: all else that they and their
    scores depend on."""
    weights = hash_weights(net)
    key = hashlib.sha256(json.dumps([FORMAT, weights, about], sort_keys=True).encode()).hexdigest()
    return prompt_file.with_suffix(f".candidates-{key[:12]}.npz")


def build_candidates(
    file: Path,
    count: int,
    batches: Callable[[], Iterator[Batch]],
    net: TokenNet,
    rewards: RewardPool,
    pairs: int,
    progress: Callable[[int, int], None],
) -> EditCandidates:
    """The candidates of a set of `count` scenes, by `prompt_cache.compute_once`; the batches have cached prompts.

    pairs: of random variants of a scene. Raises SetError for a scene that cannot be scored.
    """

    def arrays_of(batch: Batch, number: int) -> dict[str, Array]:
        return vars(candidates_of(batch, net, rewards, pairs, np.random.default_rng([8, number])))

    return EditCandidates(**compute_once(file, count, batches, arrays_of, progress))


@torch.no_grad()
def candidates_of(
    batch: Batch, net: TokenNet, rewards: RewardPool, pairs: int, rng: np.random.Generator
) -> EditCandidates:
    """The candidates of the scenes of a batch."""
    layout, device = net.config.layout, batch.ego.device
    greedy = decode_greedily(net, batch, GoalRules(), 1)
    draft = greedy.plans.cpu().numpy()  # (B, 1, T)
    critique = np.zeros((len(draft), 1, layout.points, 0), np.float32)
    if net.config.critique:
        critique = rewards.critique(*batch.scenes, draft)
        if batch.scene is not None:  # what the car has no map for is not criticised
            critique *= batch.scene.lanes.flatten(1).any(1).cpu().numpy()[:, None, None, None]
    edits = rollout.refine(net, greedy.plans, greedy.keys_values, torch.from_numpy(critique).to(device))
    edited = edits.actions.cpu().numpy()
    around = draft[:, 0], edited[:, 0]
    random = [variants(each, pairs // len(around), layout, rng) for each in around]
    fixed = [variants_of(draft[:, 0], layout)] if net.config.critique else []
    plans = np.concatenate([draft, edited, *random, *fixed], 1)
    score = rewards.score(*batch.scenes, plans)[..., 0]
    return EditCandidates(plans.astype(np.int16), score, critique[:, 0].astype(np.float16))


def variants(plans: Array, pairs: int, layout: TokenLayout, rng: np.random.Generator) -> Array:
    """(B, 2 pairs, T) smooth variants of plans (B, T), in opposite pairs."""
    offsets = sample_offsets(len(plans), pairs, layout.points, rng, VARIANT_MODES)
    return np.concatenate([change_actions(plans, each, layout) for each in (offsets, offsets.opposite)], axis=1)
