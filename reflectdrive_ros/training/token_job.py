"""Training jobs of token networks: supervised and by reward."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn

from ..core.domain import Array
from ..data.cache import CachedSet
from ..features.images import ModelInputs
from ..model import checkpoint, pretrained
from ..model.checkpoint import weight_capabilities
from ..model.token.net import TokenNet, TokenNetConfig
from ..model.token.rollout import Decoding
from . import data, train_state, validation
from .data import Source, VectorRows
from .goal_scores import GoalScores
from .losses import Batch
from .prompt_cache import PromptCache
from .settings import RefineTrainConfig, TrainConfig
from .trainer import TrainingJob
from .validation import ValidationSet


@dataclass(frozen=True)
class PretrainedPaths:
    """Folders of public weights that initialise a new run's network."""

    language: Path | None = None  # a Qwen3
    vision: Path | None = None  # a SigLIP2
    scene: Path | None = None  # a denoiser

    def fill(self, net: TokenNet) -> None:
        """Raises CheckpointError for weights of other shapes."""
        if self.language is not None:
            pretrained.load_qwen3(net, self.language)
        if self.vision is not None:
            pretrained.load_siglip(net, self.vision)
        if self.scene is not None:
            pretrained.load_scene_encoder(net, self.scene)


@dataclass(frozen=True, eq=False)
class TokenJob(TrainingJob):
    """Of a token network."""

    config: TrainConfig
    network: TokenNetConfig
    scenes: CachedSet
    validation_set: ValidationSet[ModelInputs] | None
    decoding: Decoding = field(default_factory=Decoding)
    pretrained_paths: PretrainedPaths = PretrainedPaths()
    goal_scores: GoalScores | None = None  # of goals of the scenes
    prompts: PromptCache | None = None  # of the scenes
    targets: Array | None = None  # plans of a teacher in the scenes of `prompts`
    vectors: VectorRows | None = None  # of the scenes, for a network that reads them

    def make_net(self, generator: torch.Generator, fresh: bool) -> TokenNet:
        net = TokenNet(self.network)
        net.initialise(generator)
        if fresh:
            self.pretrained_paths.fill(net)
        return net

    def batches(self, first: int, rank: int, ranks: int) -> Generator[Batch]:
        config = self.config
        several = self.goal_scores, self.prompts, self.targets
        vectors = self.vectors if self.prompts is None else None  # cached prompts hold them
        source = Source(self.scenes, config.data, self.network.layout, config.seed, *several, vectors=vectors)
        return data.batches(source, first, rank, ranks)

    def validate(self, net: nn.Module, device: torch.device) -> dict[str, float]:
        assert self.validation_set is not None
        return validation.validate(cast(TokenNet, net), self.validation_set, self.decoding, device)

    def save_weights(self, net: nn.Module, path: Path, about: Mapping[str, Any]) -> None:
        capabilities = weight_capabilities(self.network, self.config.data.camera_dropout > 0.0)
        base = None  # whole weights
        if isinstance(self.config, RefineTrainConfig) and self.init_from is not None:
            base = checkpoint.base_of(self.init_from / train_state.WEIGHTS)
        train_state.save_weights(cast(TokenNet, net), path, {**about, "capabilities": capabilities}, base)
