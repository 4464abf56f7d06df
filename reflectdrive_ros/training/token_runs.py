"""Runs of token networks: caches, prompts, goal scores and rewards, and the training that its settings name."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
from lightning_fabric import Fabric
from rich.console import Console
from torch import nn

from ..core.config import ConfigError
from ..core.domain import Array
from ..data import cache, shards
from ..data.cache import CachedSet, Shape, build_cache
from ..features.images import ModelInputs
from ..infra.files import lock_folder
from ..infra.provenance import provenance
from ..infra.signals import defer_signals
from ..infra.storage import location
from ..model import checkpoint, pretrained
from ..model.checkpoint import weight_capabilities
from ..model.token.net import TokenNet, TokenNetConfig
from ..planning.critique import CRITIQUE_CHANNELS
from . import goal_scores as goal_scores_of
from . import (
    prompt_cache,
    refine,
    rewards,
    rl,
    runs,
    sft,
    teacher,
    train_state,
    validation,
    vector_data,
)
from .data import Source, VectorRows, batches, shape_of, unknown_sentences, with_vectors
from .goal_scores import GoalScores
from .losses import Batch
from .prompt_cache import PromptCache
from .refine import EditCandidates
from .rewards import PlanScorer, RewardPool
from .run_log import RunLog
from .runs import RunSources, launch_fabric, prepare
from .settings import RefineTrainConfig, RlTrainConfig, TrainConfig
from .train_state import StateError
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


def train(
    sources: RunSources,
    config: TrainConfig,
    network: TokenNetConfig,
    tags: Mapping[str, float],
    pretrained_paths: PretrainedPaths,
    console: Console,
    errors: Console,
) -> int:
    """Begins or resumes a run; returns its exit code. Raises UserError, OSError.

    `tags`: relative frequency of scenario tags, else 1.
    """
    runs.check_continues(sources.out, config, columns_of(config))
    folders = [location(name) for name in sources.sets]
    for folder in filter(None, (*folders, sources.val)):  # before preparing, which takes hours
        shards.index_of(folder)
    if len(folders) > 1 and config.loss.goal_score > 0.0:
        raise ConfigError(f"loss.goal_score scores the goals of one set, but --train names {len(folders)}: give one")
    init_from = sources.init_from
    about_init = None if init_from is None else train_state.describe_init_run(init_from)
    if isinstance(config, RlTrainConfig):
        assert init_from is not None
        _check_network(init_from, network, config)
        network = replace(network, layout=replace(network.layout, edit_goal=bool(network.layout.goal)))
    if isinstance(config, RefineTrainConfig):
        assert init_from is not None
        if sources.teacher is not None:
            raise ConfigError("train refine learns from scores, not from the plans of a --teacher: leave it out")
        network = _refined_network(init_from, network, config)
    public_weights = {kind: folder.name for kind, folder in vars(pretrained_paths).items() if folder}
    if public_weights and init_from is not None:
        raise ConfigError(
            "--init-from another run, or with weights (--language-weights, --vision-weights, --scene-weights): not both"
        )
    _check_reads(config, network)
    fabric = launch_fabric(config)
    console.quiet = errors.quiet = not fabric.is_global_zero
    run = _Run(sources, folders, config, network, fabric, errors)
    with lock_folder(sources.out) if fabric.is_global_zero else nullcontext():
        scenes, validation_set, about = run.scenes(tags)
        if about_init is not None:
            about["init_from"] = about_init
        if public_weights:
            about["public_weights"] = public_weights
        vectors = None
        if network.scene is not None:
            scenes, vectors = run.with_vectors(scenes)
        prompts, targets = run.prompts(scenes, vectors)
        if sources.teacher is not None:
            sha256 = train_state.card_of(sources.teacher)["sha256"]
            about["teacher"] = {"folder": sources.teacher.name, "sha256": sha256}
            scenes = replace(scenes, key=f"{scenes.key} {sha256}")
        job = TokenJob(
            config,
            network,
            scenes,
            validation_set,
            sources.out,
            about,
            init_from=init_from,
            pretrained_paths=pretrained_paths,
            goal_scores=run.goal_scores(),
            prompts=prompts,
            targets=targets,
            vectors=vectors,
        )
        runs.check_same_scenes(sources.out, scenes.key, folders[0].name)
        return run.train(job, console)


@dataclass(frozen=True, eq=False)
class TokenJob(TrainingJob):
    """Of a token network: supervised, by reward, or of its expert."""

    config: TrainConfig
    network: TokenNetConfig
    scenes: CachedSet
    validation_set: ValidationSet[ModelInputs] | None
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
        source = Source(
            self.scenes,
            config.data,
            self.network.layout,
            config.seed,
            self.goal_scores,
            self.prompts,
            self.targets,
            vectors=self.vectors if self.prompts is None else None,  # cached prompts hold them
        )
        return batches(source, first, rank, ranks)

    def validate(self, net: nn.Module, device: torch.device) -> dict[str, float]:
        assert self.validation_set is not None
        return validation.validate(cast(TokenNet, net), self.validation_set, device)

    def save_weights(self, net: nn.Module, path: Path, about: Mapping[str, Any]) -> None:
        capabilities = weight_capabilities(self.network, self.config.data.camera_dropout > 0.0)
        base = None  # whole weights
        if isinstance(self.config, RefineTrainConfig) and self.init_from is not None:
            base = checkpoint.base_of(self.init_from / train_state.WEIGHTS)
        train_state.save_weights(cast(TokenNet, net), path, {**about, "capabilities": capabilities}, base)


@dataclass(frozen=True, eq=False)
class _Run:
    """What a run is given, its network and its devices: prepares what the training needs, and trains."""

    sources: RunSources
    folders: list[Path]  # of the training sets
    config: TrainConfig
    network: TokenNetConfig
    fabric: Fabric
    errors: Console

    @property
    def shape(self) -> Shape:
        return shape_of(self.network)

    def train(self, job: TokenJob, console: Console) -> int:
        """Trains as the type of the settings asks; returns the exit code."""
        config, fabric, columns = self.config, self.fabric, columns_of(self.config)
        candidates = self._candidates(job, config) if isinstance(config, RefineTrainConfig) else None
        log = RunLog(job.out, config.data.batch, columns, validation.summary, console, fabric.is_global_zero)
        with defer_signals() as request, log as report:

            def stop() -> bool:
                return request.number is not None

            if isinstance(config, RlTrainConfig):
                with self._reward_pool(job) as pool:
                    done = rl.train(job, fabric, report, pool, stop)
            elif candidates is not None:
                done = refine.train(job, fabric, report, candidates, stop)
            else:
                done = sft.train(job, fabric, report, stop)
        return runs.finish(self.sources, fabric, request.number, done, console)

    def scenes(self, tags: Mapping[str, float]) -> tuple[CachedSet, ValidationSet[ModelInputs] | None, dict[str, Any]]:
        """The scenes of training and validation, and their description for the card. Raises ConfigError for fewer
        scenes than a batch has."""
        config, sources, folders, errors = self.config, self.sources, self.folders, self.errors
        left_out: list[str] = []

        def on_damage(sentence: str) -> None:
            left_out.append(sentence)
            errors.print(sentence)

        with prepare(self.fabric, errors) as progress:
            caches = [build_cache(folder, self.shape, sources.workers, on_damage, progress) for folder in folders]
        scenes = cache.merge(caches, sources.weights, tags) if len(caches) > 1 or tags else caches[0]
        for sentence in unknown_sentences(scenes):
            errors.print(sentence)
        if len(scenes) < config.data.batch:
            raise ConfigError(f"{folders[0]} holds {len(scenes)} scenes, fewer than data.batch ({config.data.batch})")
        validation_set = None
        if sources.val:
            limit, scene = config.checkpointing.validation_scenes, self.network.scene
            spec = None if scene is None else scene.spec
            validation_set = validation.load_validation_set(sources.val, self.shape, limit, on_damage, spec)
        if left_out:
            errors.print(f"{len(scenes)} scenes for training; left out: see the {len(left_out)} lines above")
        described = [
            {**runs.describe_set(folder), "used": len(each), "weight": weight}
            for folder, each, weight in zip(folders, caches, sources.weights, strict=True)
        ]
        one = {**runs.describe_set(folders[0]), "used": len(scenes)}
        about: dict[str, Any] = {"train": described if len(caches) > 1 else one, **provenance()}
        if tags:
            about["tags"] = tags
        return scenes, validation_set, about

    def with_vectors(self, scenes: CachedSet) -> tuple[CachedSet, VectorRows]:
        """The scenes that the network can read the agents and lanes of, and these."""
        assert self.network.scene is not None
        spec, workers = self.network.scene.spec, self.sources.workers
        with prepare(self.fabric, self.errors) as progress:
            sets = [
                vector_data.build_vector_set(folder, spec, workers, self.errors.print, progress)
                for folder in self.folders
            ]
        return with_vectors(scenes, vector_data.merge(sets, self.sources.weights), self.config.seed)

    def goal_scores(self) -> GoalScores | None:
        """The scores of goals by the plans of the network that the run begins with, where it is to learn them."""
        config, init_from = self.config, self.sources.init_from
        if config.loss.goal_score == 0.0:
            return None
        if init_from is None:
            raise ConfigError("loss.goal_score needs a network that drafts plans already: give one with --init-from")
        card = train_state.card_of(init_from)
        weights = goal_scores_of.DraftingWeights(
            init_from / train_state.WEIGHTS, card["sha256"], config.device.precision != "32-true"
        )
        with prepare(self.fabric, self.errors, "driving goals, shard by shard") as progress:
            return goal_scores_of.score_set(self.folders[0], self.shape, weights, self.sources.workers, progress)

    def prompts(self, scenes: CachedSet, vectors: VectorRows | None) -> tuple[PromptCache | None, Array | None]:
        """The prompts of the scenes, as the network encodes them with which the run begins, None if they are not
        cached; and the plans of a teacher in them, None without a teacher."""
        config, network, fabric, errors = self.config, self.network, self.fabric, self.errors
        init_from, teacher_folder = self.sources.init_from, self.sources.teacher
        if not config.data.prompt_cache:
            if teacher_folder is not None:
                raise ConfigError("--teacher needs data.prompt_cache: add --setting data.prompt_cache=true")
            return None, None
        if init_from is None:
            raise ConfigError(
                "data.prompt_cache needs a network that encodes prompts already: give one with --init-from"
            )
        net = train_state.initial_network(network, init_from, config.seed).to(fabric.device)
        source = self._unaugmented(scenes, vectors)
        folder = cache.cache_folder(self.folders[0], self.shape)
        file = prompt_cache.prompt_file(folder, scenes.key, source.config, net, config.seed)
        count, targets = len(scenes), None
        encoded = partial(batches, source, 0, 0, 1)
        with prepare(fabric, errors, "encoding the prompts of scenes") as progress, fabric.autocast():
            prompts = prompt_cache.build_prompt_cache(file, count, encoded, net, fabric.device, progress)
        if teacher_folder is not None:
            teacher_net = train_state.load_network(teacher_folder).to(fabric.device)
            teacher.check_teacher(teacher_net.config, network, teacher_folder)
            plans_file = teacher.plan_file(file, train_state.card_of(teacher_folder)["sha256"])
            with prepare(fabric, errors, "decoding the teacher's plans") as progress, fabric.autocast():
                targets = teacher.build_teacher_plans(
                    plans_file, count, encoded, teacher_net, network.layout, fabric.device, progress
                )
        return prompts, targets

    def _candidates(self, job: TokenJob, config: RefineTrainConfig) -> EditCandidates:
        """The scored plans that an expert learns from."""
        fabric, prompts, variants = self.fabric, job.prompts, config.refine.variants
        assert prompts is not None
        assert job.init_from is not None
        net = train_state.initial_network(self.network, job.init_from, config.seed).to(fabric.device)
        once_batches = partial(batches, self._unaugmented(job.scenes, job.vectors, prompts), 0, 0, 1)
        about = {"variants": variants, "precision": config.device.precision}
        file, count = refine.candidates_file(prompts.file, net, about), len(job.scenes)
        preparation = prepare(fabric, self.errors, "drafting and scoring plans of scenes")
        with preparation as progress, fabric.autocast(), self._reward_pool(job) as pool:
            return refine.build_candidates(file, count, once_batches, net, pool, variants, progress)

    def _unaugmented(self, scenes: CachedSet, vectors: VectorRows | None, prompts: PromptCache | None = None) -> Source:
        """The scenes with the augmentation of cached prompts, the same in every pass."""
        data = replace(self.config.data, **cast(dict[str, Any], prompt_cache.AUGMENTATION))
        return Source(scenes, data, self.network.layout, self.config.seed, prompts=prompts, vectors=vectors)

    def _reward_pool(self, job: TokenJob) -> RewardPool:
        """Processes that score plans. Raises SetError for a set that cannot be scored."""
        (folder,) = self.folders
        rewards.check_scorable(folder, job.scenes)
        return RewardPool(folder, job.scenes, PlanScorer(self.network.layout), self.sources.workers)


def _check_reads(config: TrainConfig, network: TokenNetConfig) -> None:
    """Raises ConfigError for a setting that trains what the network does not read."""
    unfit = dict[str, float]()
    if network.layout.frame == "route":
        unfit |= {"loss.field": config.loss.field, "data.route_dropout": config.data.route_dropout}
    if not network.images:
        unfit |= {"loss.aux_perception": config.loss.aux_perception, "loss.goal_score": config.loss.goal_score}
    for name, value in unfit.items():
        if value:
            reads = "no images" if name in ("loss.aux_perception", "loss.goal_score") else "tokens on a known route"
            raise ConfigError(f"{name} is {value:g}, but network {config.network} has {reads}: set it to 0")


def _check_network(folder: Path, network: TokenNetConfig, config: RlTrainConfig) -> None:
    """Raises StateError if the weights of a folder are not of this network, ConfigError for a decision among goals of a
    network without goals."""
    config_of_weights = train_state.load_network(folder).config
    config_of_weights = replace(
        config_of_weights, layout=replace(config_of_weights.layout, edit_goal=network.layout.edit_goal)
    )
    if not network.layout.goal and (config.rl.goals > 1 or config.rl.decision > 0.0):
        raise ConfigError(
            f"network {config.network} has no goals, but rl.goals is {config.rl.goals} and rl.decision "
            f"{config.rl.decision}: set rl.goals to 1 and rl.decision to 0"
        )
    other = [name for name, value in vars(network).items() if getattr(config_of_weights, name) != value]
    if other:
        raise StateError(
            f"{folder} holds another network than the setting `network` names ({', '.join(other)} differ): "
            "give another --init-from"
        )


def _refined_network(folder: Path, network: TokenNetConfig, config: RefineTrainConfig) -> TokenNetConfig:
    """The network of a folder, with the expert of the settings. Raises StateError for a network of another layout,
    ConfigError for an expert of more layers than it can copy.

    AutoEdit, the expert of a network with goals, reads a critique of the plan; the refinement of DriveFine does if its
    network reads the scene.
    """
    generator, settings = train_state.load_network(folder).config, config.refine
    if replace(generator.layout, edit_goal=network.layout.edit_goal) != network.layout:
        raise StateError(
            f"{folder} holds a network of other tokens than the setting network ({config.network}): "
            "give another --init-from"
        )
    most = generator.transformer.layers - 1
    if settings.layers > most:
        raise ConfigError(
            f"refine.layers is {settings.layers}, but the network has {most + 1} layers: set at most {most}"
        )
    return replace(
        generator,
        critique=CRITIQUE_CHANNELS if generator.layout.goal or generator.scene else 0,
        refine_layers=settings.layers,
    )


def columns_of(config: TrainConfig) -> tuple[str, ...]:
    """Columns of the log of a run."""
    if isinstance(config, RlTrainConfig):
        return rl.COLUMNS
    return refine.COLUMNS if isinstance(config, RefineTrainConfig) else sft.COLUMNS
