"""Keys and values of the prompts of a set, computed once: for training that leaves the prompt as it is.

With `optimizer.trained: actions` no trained parameter touches the prompt, and most of a step would encode images again.
Each scene is therefore augmented once, encoded once, and its KV cache is stored next to the set as float16,
0.3 MB per scene of the small network. Files are named by a hash of the weights, the scenes and the augmentation.

Sources: prefix caching of LLM inference; frozen-feature training.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ..core.domain import Array
from ..data.cache import read_stored, write_arrays
from ..model.layers import KeysValues
from ..model.token.net import TokenNet
from .losses import Batch, is_action_parameter
from .settings import DataConfig

FORMAT = 1
BATCH = 32  # scenes that are encoded at once
# settings of the batches that are encoded; the others of DataConfig change prompts
AUGMENTATION = {"batch": BATCH, "masked_actions": 1, "masking": "kinds", "perturbed_actions": 0, "draft_fraction": 0.0}


@dataclass(frozen=True, eq=False)
class PromptCache:
    """Of N scenes: their prompts, and how each was augmented."""

    file: Path
    keys_values: Array  # (N, layers, 2, kv_heads, P, head_dim) float16, mapped from the disk
    route: Array  # (N, points, 2) int64 ids
    mirrored: Array  # (N,) bool
    with_route: Array  # (N,) bool


def prompt_file(folder: Path, scenes_key: str, config: DataConfig, net: TokenNet, seed: int) -> Path:
    """The file of the keys and values of a set, named by all that they depend on; `config` has AUGMENTATION."""
    weights = hash_weights(net, lambda name: not is_action_parameter(name))
    key = json.dumps([FORMAT, scenes_key, weights, seed, asdict(config)])
    return folder / f"prompts-{hashlib.sha256(key.encode()).hexdigest()[:12]}.npy"


def hash_weights(net: TokenNet, counts: Callable[[str], bool] = lambda name: True) -> str:
    """SHA-256 of the parameters whose names count; all by default."""
    weights = hashlib.sha256()
    for name, parameter in net.named_parameters():
        if counts(name):
            weights.update(name.encode() + parameter.detach().cpu().float().numpy().tobytes())
    return weights.hexdigest()


def each_scene_once(
    batches: Callable[[], Iterator[Batch]], count: int, progress: Callable[[int, int], None]
) -> Iterator[tuple[Batch, Array]]:
    """The batches of a set of `count` scenes with the indices (n,) of their scenes; n is smaller in the last one, whose
    scenes beyond the set are left out."""
    done = 0
    with closing(batches()) as several:  # type: ignore[type-var]
        for batch in several:
            rows = batch.rows[: count - done].numpy()
            yield batch, rows
            done += len(rows)
            progress(done, count)
            if done == count:
                return


def compute_once(
    file: Path,
    count: int,
    batches: Callable[[], Iterator[Batch]],
    arrays_of: Callable[[Batch, int], Mapping[str, Array]],
    progress: Callable[[int, int], None],
) -> dict[str, Array]:
    """Arrays (count, ..) of a set of `count` scenes by name: read where they are stored, else computed and stored.

    batches: the set once; what the last one has beyond the set is left out. arrays_of: arrays (B, ..) of a batch and
    its number. Raises OSError naming a file that cannot be written, and what arrays_of raises.
    """
    if not file.exists():
        arrays: dict[str, Array] = {}
        for number, (batch, rows) in enumerate(each_scene_once(batches, count, progress)):
            for name, values in arrays_of(batch, number).items():
                of_all = arrays.setdefault(name, np.zeros((count, *values.shape[1:]), values.dtype))
                of_all[rows] = values[: len(rows)]
        write_arrays(file, arrays)
    return read_stored(file)


def build_prompt_cache(
    file: Path,
    count: int,
    batches: Callable[[], Iterator[Batch]],
    net: TokenNet,
    device: torch.device,
    progress: Callable[[int, int], None],
) -> PromptCache:
    """As `compute_once`, prompts encoded by `net`, of batches that are augmented by a DataConfig with AUGMENTATION."""
    rest = file.with_suffix(".rest.npz")  # written last: where it is there, both are whole
    if not rest.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        write_arrays(rest, _encode(each_scene_once(batches, count, progress), count, net, device, file))
    return PromptCache(file, np.load(file, mmap_mode="r", allow_pickle=False), **read_stored(rest))


@torch.no_grad()
def _encode(
    batches: Iterator[tuple[Batch, Array]], count: int, net: TokenNet, device: torch.device, file: Path
) -> dict[str, Array]:
    """Writes the keys and values of all scenes to a file; returns the other arrays of PromptCache."""
    config, transformer = net.config, net.config.transformer
    shape = (transformer.layers, 2, transformer.kv_heads, config.prompt_length, transformer.head_dim)
    cached = np.lib.format.open_memmap(file, "w+", np.float16, (count, *shape))
    route = np.zeros((count, len(config.route_at_m), 2), np.int64)
    mirrored, with_route = np.zeros((2, count), bool)
    for batch, rows in batches:
        new, on_device = len(rows), batch.to(device)
        cached[rows] = pack(net.encode(net.prompt(on_device.inputs))[: transformer.layers])[:new].cpu().numpy()
        route[rows] = batch.route[:new].numpy()
        mirrored[rows], with_route[rows] = batch.mirrored[:new].numpy(), batch.with_route[:new].numpy()
    cached.flush()
    return {"route": route, "mirrored": mirrored, "with_route": with_route}


def pack(keys_values: tuple[KeysValues, ...]) -> Tensor:
    """(B, layers, 2, kv_heads, P, head_dim) float16 of a KV cache."""
    return torch.stack([torch.stack(layer, 1) for layer in keys_values], 1).half()
