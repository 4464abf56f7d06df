"""Drafts of a fixed generator and their scores, computed once: for the training of its refinement expert.

The generator is not trained and the prompts are cached (`prompt_cache`), so that the drafts of a scene are the same in
every epoch. Decoding and scoring them is most of a step otherwise. Files are named by a hash of all that they depend
on.

Source: the offline part of DriveFine's reinforcement learning (section 3.3).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from ..core.domain import Array
from ..data.cache import read_stored, write_arrays
from ..model.token.net import TokenNet
from .losses import Batch
from .prompt_cache import each_scene_once, hash_weights
from .rewards import RewardPool

FORMAT = 2  # raise it when drafts or their scores change
EXPERT_PARAMETERS = ("refiner.", "plan_value_")  # of a network, those that its generator has no use for


@dataclass(frozen=True, eq=False)
class DraftCache:
    """Of N scenes: G drafts of T tokens each and, where rewards are requested, scores 0 to 1."""

    plans: Array  # (N, G, T) int16; the first has the most probable tokens
    reward: Array  # (N, G) float32 of the drafts; (0, 0) without rewards
    target_reward: Array  # (N,) float32 of the plans that are the targets; (0,) without rewards


def draft_file(prompt_file: Path, net: TokenNet, about: Mapping[str, Any]) -> Path:
    """The file of the drafts of the generator of a network, next to the prompts that it reads. about: all else that
    they and their scores depend on."""
    weights = hash_weights(net, lambda name: not name.startswith(EXPERT_PARAMETERS))
    key = hashlib.sha256(json.dumps([FORMAT, weights, about], sort_keys=True).encode()).hexdigest()
    return prompt_file.with_suffix(f".drafts-{key[:12]}.npz")


def build_draft_cache(
    file: Path,
    count: int,
    batches: Callable[[], Iterator[Batch]],
    draft: Callable[[Batch, int], Tensor],
    rewards: RewardPool | None,
    progress: Callable[[int, int], None],
) -> DraftCache:
    """The drafts of a set of `count` scenes: read where they are stored, else decoded, scored and stored.

    batches: the set once, with cached prompts; what the last one has beyond the set is left out. draft: (B, G, T) ids
    of a batch and its number. Raises OSError naming a file that cannot be written, SetError for a scene that cannot be
    scored.
    """
    if not file.exists():
        arrays: dict[str, Array] = {}
        for step, (batch, rows) in enumerate(each_scene_once(batches, count, progress)):
            entries = _drafts_of(batch, draft(batch, step).cpu().numpy(), rewards)
            for name, values in entries.items():
                of_all = arrays.setdefault(name, np.zeros((count, *values.shape[1:]), values.dtype))
                of_all[rows] = values[: len(rows)]
        write_arrays(file, arrays)
    stored = read_stored(file)
    unknown = {"reward": np.zeros((0, 0), np.float32), "target_reward": np.zeros(0, np.float32)}
    return DraftCache(**{**unknown, **stored})


def _drafts_of(batch: Batch, plans: Array, rewards: RewardPool | None) -> dict[str, Array]:
    """The entries of `DraftCache` of a batch with drafts (B, G, T)."""
    entries = {"plans": plans.astype(np.int16)}
    if rewards is not None:
        targets = batch.clean[:, None].cpu().numpy()
        scores = rewards.score(*batch.scenes, np.concatenate([plans, targets], 1))[..., 0]
        entries["reward"], entries["target_reward"] = scores[:, :-1], scores[:, -1]
    return entries
