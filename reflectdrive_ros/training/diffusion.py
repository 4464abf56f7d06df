"""Training of the denoiser on lanes and agents (ReflexDiffusion, section 4.1; Diffusion-Planner)."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from lightning_fabric import Fabric
from rich.console import Console
from torch import Tensor, nn

from ..core.config import ConfigError
from ..core.domain import Array
from ..core.vector_spec import VectorSpec
from ..data import shards
from ..data.scene import DrivingScene
from ..features.vectors import VectorInputs, vector_inputs
from ..infra.files import lock_folder
from ..infra.provenance import provenance
from ..infra.signals import defer_signals
from ..infra.storage import location
from ..model.denoiser import checkpoint
from ..model.denoiser.net import Context, DenoiserNet, DenoiserNetConfig
from ..planning import denoiser
from ..planning.ego_future import ego_poses, line_of
from ..scoring.scorer import SUB_SCORES, score
from . import (
    data,
    diffusion_losses,
    diffusion_rewards,
    recorded_samples,
    runs,
    settings,
    train_state,
    trainer,
    vector_data,
)
from . import rewards as rewards_of
from .diffusion_losses import DiffusionLosses, PlanUpdate, VectorBatch
from .diffusion_rewards import waypoint_steps
from .recorded_samples import RECORDED, perturb_ego, tracks_folder
from .rewards import ScorePool
from .run_log import RunLog
from .runs import RunSources, launch_fabric
from .settings import DiffusionTrainConfig
from .train_state import Progress
from .trainer import TrainingJob
from .validation import ValidationSet, read_validation_set, vector_tensors
from .vector_data import VectorSet

COLUMNS = (*diffusion_losses.METRICS, "norm")  # of the log
PREFETCHED_BATCHES = 2  # batches in the making
MAP_DROPOUT = 0.05  # share of scenes without lanes, as for a car that has no map
PERTURB_PROB = 0.5  # share of recorded starts whose ego is displaced, its future refitted
PLAN_PAIRS = 24  # of plans sampled around the predicted one per scene, for their rewards
SAMPLER_STEPS = 10
VALIDATION_BATCH = 100  # scenes
VectorValidation = ValidationSet[VectorInputs]


def run(
    sources: RunSources,
    config: DiffusionTrainConfig,
    hold_out: Sequence[str],
    console: Console,
    errors: Console,
) -> int:
    """Begins or resumes a run; returns its exit code. Raises UserError, OSError.

    `hold_out`: sites of recordings that are left out.
    """
    runs.check_continues(sources.out, config, columns_of(config))
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
    with lock_folder(sources.out) if fabric.is_global_zero else nullcontext():
        with runs.prepare(fabric, errors) as progress:
            described_sets = [
                _training_set(each, network.spec, sources, hold_out, errors.print, progress) for each in sources.sets
            ]
        sample_sets = [samples for samples, _ in described_sets]
        scenes = sample_sets[0] if len(sample_sets) == 1 else vector_data.merge(sample_sets, sources.weights)
        if len(scenes) < config.data.batch:
            raise ConfigError(
                f"{sources.sets[0]} holds {len(scenes)} scenes, fewer than data.batch ({config.data.batch})"
            )
        limit = config.checkpointing.validation_scenes
        validation_set = load_validation(sources.val, network.spec, limit, errors.print) if sources.val else None
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
        columns = columns_of(config)
        log = RunLog(sources.out, config.data.batch, columns, summary, console, fabric.is_global_zero)
        scored = ScorePool(None, sources.workers) if config.reward.weight > 0.0 else nullcontext()
        with scored as pool, defer_signals() as request, log as report:
            done = train(job, fabric, report, lambda: request.number is not None, pool)
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


@dataclass(frozen=True, eq=False)
class DiffusionJob(TrainingJob):
    """Of a denoiser."""

    config: DiffusionTrainConfig
    network: DenoiserNetConfig
    scenes: VectorSet
    validation_set: VectorValidation | None

    def make_net(self, generator: torch.Generator, fresh: bool) -> DenoiserNet:
        net = DenoiserNet(self.network)
        net.initialise(generator)
        return net

    def batches(self, first: int, rank: int, ranks: int) -> Generator[VectorBatch]:
        """The batches from step `first` on, prepared ahead by threads."""
        return data.prefetched(lambda step: self.batch(step, rank, ranks), first, PREFETCHED_BATCHES)

    def batch(self, step: int, rank: int = 0, ranks: int = 1) -> VectorBatch:
        """The scenes of one process in a step; it depends on the seed and the number of the step only."""
        config, seed = self.config.data, self.config.seed
        rng = np.random.default_rng([seed, 2, step])
        indices = self.indices(step)
        arrays = self.scenes.arrays(indices)
        displaced = self.scenes.recorded[indices] & (rng.random(len(indices)) < PERTURB_PROB)
        if displaced.any():
            arrays = perturb_ego(arrays, displaced, rng, self.network.spec.future_dt_s)
        mirrored = rng.random(len(indices)) < config.flip_prob
        arrays = vector_data.mirror(arrays, mirrored)
        if self.network.spec.route_line_rows:  # else a scene without lanes has no route
            arrays = vector_data.without_map(arrays, rng.random(len(indices)) < MAP_DROPOUT, self.network.spec)
        if self.network.spec.ego_frenet:
            arrays = vector_data.with_frenet_futures(arrays, self.network.spec)
        return VectorBatch.of(arrays, indices, mirrored, config, rng, slice(rank, None, ranks))

    def indices(self, step: int) -> Array:
        """(batch,) samples of a step. One set: every sample once per epoch, in a new order each epoch. Several sets:
        sampled by their weights."""
        weights = self.scenes.weights
        shares = weights if np.ptp(weights) > 0.0 else None
        return data.batch_rows(step, self.config.data.batch, len(self.scenes), self.config.seed, shares)

    def validate(self, net: nn.Module, device: torch.device) -> dict[str, float]:
        assert self.validation_set is not None
        return validate(cast(DenoiserNet, net), self.validation_set, device)

    def save_weights(self, net: nn.Module, path: Path, about: Mapping[str, Any]) -> None:
        """Stored as float32: positions are outputs, and bfloat16 has 8 bits."""
        checkpoint.save(cast(DenoiserNet, net), path, {"capabilities": ["guidance"], **about}, torch.float32)


def train(
    job: DiffusionJob,
    fabric: Fabric,
    reporter: RunLog,
    stop: Callable[[], bool],
    pool: ScorePool | None = None,
) -> Progress:
    """As `sft.train`, of a denoiser. `pool` scores sampled plans; a job with rewards needs one."""

    def make_losses(net: DenoiserNet, generator: torch.Generator) -> DiffusionLosses:
        return DiffusionLosses(net, job.config.loss, job.config.reward.weight)

    loop, progress = trainer.begin(job, fabric, reporter, make_losses)

    def step(batch: VectorBatch, number: int, at: float) -> Tensor:
        rewards: list[Array] = []

        def update_of(context: Context, present: Tensor) -> PlanUpdate:
            assert pool is not None
            update, scored = plan_update(job, loop.net, batch, context, present, number, fabric.global_rank, pool)
            rewards.append(scored)
            return update

        losses = loop.model(batch, None if pool is None else update_of)
        norm = loop.update(losses, batch, number, {})
        values = [*(losses[name].detach().float() for name in diffusion_losses.METRICS), norm]
        for scored in rewards:
            values += [torch.tensor(value) for value in 100.0 * np.nanmean(scored, axis=0)]
        return torch.stack(values)

    return loop.run(progress, step, columns_of(job.config), stop)


def plan_update(
    job: DiffusionJob,
    net: DenoiserNet,
    batch: VectorBatch,
    context: Context,
    present: Tensor,
    number: int,
    rank: int,
    pool: ScorePool,
) -> tuple[PlanUpdate, Array]:
    """How the plans of an encoded batch should change, and the rewards (B, 6) of the plans; `present` (B, 1 + N, 4).
    It depends on the network, the seed and the number of the step only."""
    rng = np.random.default_rng([job.config.seed, 3, number, rank])
    evaluations = int(rng.integers(SAMPLER_STEPS + 1))
    state = diffusion_rewards.sampler_state(net, context, present, evaluations, SAMPLER_STEPS)
    changes = diffusion_rewards.plan_changes(state.plan, batch, job.scenes, pool, rng, PLAN_PAIRS)
    device = state.futures.device
    times = torch.full((len(state.futures), 1), state.time, device=device)
    change = torch.as_tensor(changes.change, dtype=torch.float32, device=device)
    return PlanUpdate(state.futures, times, change), changes.rewards


def columns_of(config: DiffusionTrainConfig) -> tuple[str, ...]:
    """Columns of the log."""
    return (*COLUMNS, *rewards_of.COLUMNS) if config.reward.weight > 0.0 else COLUMNS


# --- validation ------------------------------------------------------------------------------------------------------


def load_validation(folder: Path, spec: VectorSpec, limit: int, on_damage: Callable[[str], None]) -> VectorValidation:
    """As `validation.read_validation_set`, of a denoiser."""

    def inputs_of(scene: DrivingScene) -> VectorInputs:
        return vector_inputs(scene.observation(vectors=True), spec)

    return read_validation_set(folder, False, limit, on_damage, inputs_of)


@torch.no_grad()
def validate(net: DenoiserNet, dataset: VectorValidation, device: torch.device) -> dict[str, float]:
    """Means over the scenes of plans that are sampled without noise, guidance and reflection: PDMS and its sub-scores
    in percent, errors in metres.
    """
    spec = net.config.spec
    rows: dict[str, list[float]] = {}
    for begin in range(0, len(dataset.scenes), VALIDATION_BATCH):
        some = slice(begin, begin + VALIDATION_BATCH)
        inputs, scenes = dataset.inputs[some], dataset.scenes[some]
        plans = sample_plans(net, inputs, device)
        waypoints = plans[:, waypoint_steps(spec)]
        for scene, plan in zip(scenes, waypoints, strict=True):
            card = score(scene.scored(), plan[None])
            error = np.hypot(*(plan - scene.expert)[:, :2].T)
            row = {
                "pdms": 100.0 * card.score[0],
                **{name: 100.0 * getattr(card, name)[0] for name in SUB_SCORES},
                "ade_m": error.mean(),
                "fde_m": error[-1],
            }
            for name, value in row.items():
                rows.setdefault(name, []).append(float(value))
    return {name: float(np.mean(values)) for name, values in rows.items()}


def sample_plans(net: DenoiserNet, inputs: tuple[VectorInputs, ...], device: torch.device) -> Array:
    """(N, T, 3) poses of the ego for N scenes at once, from a start without noise."""
    spec = net.config.spec
    context = net.encode(vector_tensors(inputs, device))
    present = np.stack([denoiser.present_states(each, spec) for each in inputs])
    count, futures = present.shape[:2]
    predict = diffusion_rewards.batch_predict(net, context, torch.as_tensor(present, device=device))
    flat = present.reshape(count * futures, 4)
    start = np.zeros((len(flat), 1 + spec.future_steps, 4))
    clean = denoiser.sample(predict, start, flat, SAMPLER_STEPS).reshape(count, futures, -1, 4)
    return np.stack([ego_poses(each, spec, line_of(scene, spec)) for each, scene in zip(clean, inputs, strict=True)])


def summary(means: Mapping[str, float]) -> str:
    """One line for a person."""
    parts = " ".join(f"{name.upper()} {means[name]:.1f}" for name in SUB_SCORES)
    return f"PDMS {means['pdms']:.1f} ({parts}), distance to the expert {means['ade_m']:.2f} m"
