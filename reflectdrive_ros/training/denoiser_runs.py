"""Runs of denoisers: scenes and recordings as samples, and their training."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

from rich.console import Console

from ..core.config import ConfigError
from ..core.vector_spec import VectorSpec
from ..data import shards
from ..infra.files import lock_folder
from ..infra.provenance import provenance
from ..infra.signals import defer_signals
from ..infra.storage import location
from . import diffusion, recorded_samples, runs, settings, train_state, vector_data
from .diffusion import DiffusionJob
from .fabric import launch_fabric
from .recorded_samples import RECORDED, tracks_folder
from .rewards import PoseScorer, ScorePool
from .run_log import RunLog
from .runs import RunSources
from .settings import DiffusionTrainConfig
from .vector_data import VectorSet


def train(
    sources: RunSources,
    config: DiffusionTrainConfig,
    hold_out: Sequence[str],
    console: Console,
    errors: Console,
) -> int:
    """Begins or resumes a run; returns its exit code. Raises UserError, OSError.

    `hold_out`: sites of recordings that are left out.
    """
    runs.check_continues(sources.out, config, diffusion.columns_of(config))
    for folder in filter(None, (*(each for each in sources.sets if tracks_folder(each) is None), sources.val)):
        shards.index_of(location(str(folder)))
    if hold_out and all(tracks_folder(each) is None for each in sources.sets):
        raise ConfigError(f"--hold-out leaves out recordings, but --train names none: add {RECORDED}")
    init_from = None if sources.init_from is None else train_state.describe_init_run(sources.init_from)
    network = settings.DENOISERS[config.network]()
    if config.reward.weight > 0.0 and not network.spec.ego_frenet:
        raise ConfigError(
            "reward.weight is above 0, but the network plans in the ego frame: set it to 0, or network to small"
        )
    fabric = launch_fabric(config)
    console.quiet = errors.quiet = not fabric.is_global_zero

    def on_damage(sentence: str) -> None:
        errors.print(sentence)

    with lock_folder(sources.out) if fabric.is_global_zero else nullcontext():
        with runs.prepare(fabric, errors) as progress:
            described_sets = [
                _training_set(each, network.spec, sources, hold_out, on_damage, progress) for each in sources.sets
            ]
        sample_sets = [samples for samples, _ in described_sets]
        scenes = sample_sets[0] if len(sample_sets) == 1 else vector_data.merge(sample_sets, sources.weights)
        if len(scenes) < config.data.batch:
            raise ConfigError(
                f"{sources.sets[0]} holds {len(scenes)} scenes, fewer than data.batch ({config.data.batch})"
            )
        limit = config.checkpointing.validation_scenes
        validation_set = diffusion.load_validation(sources.val, network.spec, limit, on_damage) if sources.val else None
        about: dict[str, Any] = {
            "train": [
                {**described, "used": len(each), "weight": weight}
                for (each, described), weight in zip(described_sets, sources.weights, strict=True)
            ],
            **provenance(),
        }
        if init_from is not None:
            about["init_from"] = init_from
        job = DiffusionJob(config, network, scenes, validation_set, sources.out, about, init_from=sources.init_from)
        runs.check_same_scenes(sources.out, scenes.key, sources.sets[0])
        columns = diffusion.columns_of(config)
        log = RunLog(sources.out, config.data.batch, columns, diffusion.summary, console, fabric.is_global_zero)
        scored = ScorePool(PoseScorer(), sources.workers) if config.reward.weight > 0.0 else nullcontext()
        with scored as pool, defer_signals() as request, log as report:
            done = diffusion.train(job, fabric, report, lambda: request.number is not None, pool=pool)
    return runs.finish(sources, fabric, request.number, done, console)


def _training_set(
    name: str,
    spec: VectorSpec,
    sources: RunSources,
    hold_out: Sequence[str],
    on_damage: Callable[[str], None],
    progress: Callable[[int, int], None],
) -> tuple[VectorSet, dict[str, Any]]:
    """The samples of one training set, and their description for the card."""
    recordings = tracks_folder(name)
    if recordings is not None:
        samples, about = recorded_samples.recorded_set(recordings, spec, hold_out, progress)
        return samples, {"folder": recordings.name, **about}
    folder = location(name)
    return vector_data.build_vector_set(folder, spec, sources.workers, on_damage, progress), runs.describe_set(folder)
