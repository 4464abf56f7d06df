"""A denoiser in torch: arrays in, arrays out, the encoded scene stays on the device."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import numpy as np
import torch

from ..core.domain import Array
from ..features.vectors import VectorInputs
from ..model.denoiser.net import Context, DenoiserNet
from ..model.scene_encoder import VectorTensors
from .vector_batch import batch, noisy_futures


class TorchDenoiser:
    """`planning.denoiser.Denoiser` by `model.denoiser.net`, eager."""

    kind: Literal["denoiser"] = "denoiser"

    def __init__(self, net: DenoiserNet, device: str = "cpu", capabilities: Iterable[str] = ()) -> None:
        """`capabilities`: those of the card of the weights."""
        self._net, self._device = net.to(device).eval(), torch.device(device)
        self.spec = net.config.spec
        self.capabilities = frozenset(capabilities)
        self.backend_description = f"torch {torch.__version__} on {device}"

    @torch.inference_mode()
    def encode(self, inputs: VectorInputs, with_unconditional: bool) -> Context:
        return self._net.encode(self.tensors(inputs, with_unconditional))

    def tensors(self, inputs: VectorInputs, with_unconditional: bool) -> VectorTensors:
        """The scene, and with `with_unconditional` its decoupled condition, as tensors (B, ..) on the device."""
        arrays = batch(inputs, with_unconditional)
        return VectorTensors(**{name: torch.as_tensor(array, device=self._device) for name, array in arrays.items()})

    @torch.inference_mode()
    def denoise(self, context: Context, futures: Array, time: float) -> Array:
        noisy = torch.as_tensor(noisy_futures(futures, self.spec), device=self._device)
        scenes = len(context.condition)
        times = torch.full((scenes, 1), time, device=self._device)
        clean = self._net.denoise(noisy.expand(scenes, 1, *noisy.shape), times, context)[:, 0]
        return np.asarray(clean.cpu().numpy(), np.float64)
