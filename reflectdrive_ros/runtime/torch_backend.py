"""A token network in torch: arrays in, arrays out, everything between on the device.

Eager, as `model.token.rollout` is written; on a GPU the mode of `model.token.cuda_graphs` is used.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from ..core.domain import Array
from ..features.cameras import rig
from ..features.images import InputSpec, ModelInputs, WordTokenizer
from ..model.checkpoint import CheckpointError, load, weight_capabilities
from ..model.layers import KeysValues
from ..model.token import rollout
from ..model.token.cuda_graphs import DEFAULT_MODE, CudaMode, cuda_step
from ..model.token.net import PromptInputs, TokenNet
from ..model.token.ops import GoalRules
from ..model.token.rollout import Decoding
from ..planning.planner import Prefilled, draft_sequentially
from .feature_cache import FeatureCache

# The cards of weights store the answers (`golden`) under these rules. They stay fixed when defaults change, or existing
# cards would become invalid.
SELF_CHECK_DECODING = Decoding(GoalRules(count=6, spacing_m=1.2, floor=0.01, rescored=6, value_power=2.0))


class TorchNetwork:
    """`planning.planner.Network` by `model.token.rollout`."""

    kind: Literal["token"] = "token"

    def __init__(
        self,
        net: TokenNet,
        device: str = "cpu",
        decoding: Decoding | None = None,
        mode: CudaMode = DEFAULT_MODE,
    ) -> None:
        """`mode` says how steps run on a GPU. Raises CheckpointError for a network without words."""
        config = net.config
        if not config.words:
            raise CheckpointError("the network has no vocabulary: set model.file to trained weights")
        self._net = net.to(device).eval()
        self._device = torch.device(device)
        self.backend_description = f"torch {torch.__version__} on {device}"
        self._mode = mode
        if self._device.type == "cuda" and mode != CudaMode():
            self.backend_description += f" ({mode})"
        self.set_decoding(decoding or Decoding())
        self._feature_cache = FeatureCache(
            lambda images: self._net.encode_images(self._batch(images)), config.instants // config.vision.frames
        )
        self.layout = config.layout
        self.capabilities = frozenset(weight_capabilities(config))
        canonical = rig(config.vision.width, config.vision.height)
        self.inputs = InputSpec(
            config.vision.width,
            config.vision.height,
            config.text_length,
            WordTokenizer(config.words),
            config.cameras if config.images else 0,
            config.instants,
            config.ego_scale,
            config.route_at_m,
            config.layout.codebook,
            canonical if config.images and len(canonical) == config.cameras else (),
            None if config.scene is None else config.scene.spec,
        )

    @staticmethod
    def from_file(
        path: str | Path, sha256: str, device: str = "cpu", decoding: Decoding | None = None, threads: int | None = None
    ) -> TorchNetwork:
        """`device` may be auto; `threads` is for the whole process. Raises CheckpointError for what cannot be used."""
        device = resolve_device(device, threads)
        return TorchNetwork(load(path, sha256), device, decoding)

    def set_decoding(self, decoding: Decoding) -> None:
        """Other rules from now on."""
        self.decoding, self._cuda_step = decoding, None
        if self._device.type == "cuda" and self._mode != CudaMode():
            counts = range(1, decoding.goals.count + 1)
            self._cuda_step = cuda_step(self._net, decoding.edits, self._mode, self._device, counts)

    @torch.inference_mode()
    def prefill_goal(self, inputs: ModelInputs) -> Prefilled:
        prefilled = rollout.prefill_goal_from_prompt(self._net, self._prompt(inputs), self.decoding.goals)
        return Prefilled(
            prefilled.keys_values,
            _array(prefilled.actions).astype(np.int32),
            _array(prefilled.goal_log_probs),
            _array(prefilled.valid),
        )

    @torch.inference_mode()
    def prefill(self, inputs: ModelInputs) -> Any:
        return self._net.encode(self._prompt(inputs))

    @torch.inference_mode()
    def step(self, context: Any, actions: Array, limit: int, edit: bool) -> tuple[Array, Array]:
        keys_values: tuple[KeysValues, ...] = context
        ids = self._batch(actions.astype(np.int64))
        if self._cuda_step is None:
            written, confidence = rollout.step(self._net, ids, keys_values, limit, edit, self.decoding.edits)
        else:
            written, confidence = self._cuda_step(ids, keys_values, limit, edit)
        return _array(written).astype(np.int32), _array(confidence)

    def draft(self, context: Any, actions: Array, limits: Sequence[int]) -> tuple[Array, Array]:
        return draft_sequentially(self, context, actions, limits)

    @torch.inference_mode()
    def sampled_step(
        self, context: Any, actions: Array, limit: int, temperature: Array, share: Array
    ) -> tuple[Array, Array]:
        ids, shares, heat = (self._batch(each) for each in (actions.astype(np.int64), share, temperature[:, None]))
        written, confidence = rollout.sampled_step(self._net, ids, context, limit, heat.float(), shares.float())
        return _array(written).astype(np.int32), _array(confidence)

    @torch.inference_mode()
    def refine(self, context: Any, actions: Array, critique: Array | None = None) -> tuple[Array, Array]:
        critiques = None if critique is None else self._batch(critique.astype(np.float32))
        written, confidence = rollout.refine(self._net, self._batch(actions.astype(np.int64)), context, critiques)
        return _array(written).astype(np.int32), _array(confidence)

    def _prompt(self, inputs: ModelInputs) -> Tensor:
        tensors = self.tensors(inputs)
        features = torch.cat(self._feature_cache(inputs.images), 1) if self._net.config.images else None
        return self._net.build_prompt(features, *tensors[1:])

    def tensors(self, inputs: ModelInputs) -> PromptInputs:
        """A batch of one on the device."""
        scene = {} if inputs.scene is None else inputs.scene.arrays
        return PromptInputs.of([self._batch(part) for part in (*inputs.arrays.values(), *scene.values())])

    def _batch(self, array: Array) -> Tensor:
        return torch.as_tensor(np.ascontiguousarray(array), device=self._device)[None]


def resolve_device(device: str, threads: int | None = None) -> str:
    """The device of `model.device`; `threads` is for the whole process. Raises CheckpointError without a GPU."""
    if threads is not None:
        torch.set_num_threads(threads)
    gpu = torch.cuda.is_available()
    if device.startswith("cuda") and not gpu:
        raise CheckpointError(f"model.device is {device}, but torch finds no GPU: set it to auto or cpu")
    if device == "auto":
        return "cuda" if gpu else "cpu"
    return device


def _array(batch: Tensor) -> Array:
    """The only scene of a batch."""
    return np.asarray(batch[0].cpu().numpy())
