"""`reflectdrive train sft CONFIG --train DIR --val DIR --out DIR`: supervised training of ReflectDrive-2.

(`reflectdrive train mean RUN RUN .. --out DIR` averages the weights of runs.)

The same command resumes a run that was stopped by Ctrl-C, by a kill, or at the end of its minutes (give more of them).
With --minutes the learning-rate schedule ends with the time, however fast the machine is. Several devices of one
machine are set by device.devices in CONFIG, several machines by torchrun.

OUT holds weights.safetensors and card.json (the averaged weights, for driving), state.safetensors (to resume from),
log.csv and tensorboard/.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from lightning_fabric import Fabric
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from .. import arguments
from ..cluster import Cluster
from ..command import HelpFormatter, command
from ..config import ConfigError, ScoringConfig, override_dotted
from ..data import cache, shards
from ..data.cache import CachedSet, Shape, build_cache
from ..files import lock_folder
from ..model.token.moe import RefineConfig as ExpertConfig
from ..model.token.net import TokenNetConfig
from ..model.token.rollout import default_decoding
from ..provenance import provenance
from ..runtime import cli_args
from ..stopping import defer_signals, end_with_parent, exit_code, print_stop
from ..storage import location
from ..training import (
    average,
    diffusion,
    plan_rl,
    prompt_cache,
    recorded_samples,
    refine,
    rewards,
    rl,
    rollouts,
    settings,
    sft,
    train_state,
    validation,
    vector_data,
)
from ..training import goal_scores as goal_scores_of
from ..training.data import Source, batches, shape_of, unknown_sentences
from ..training.diffusion import DiffusionJob
from ..training.fabric import launch_fabric
from ..training.goal_scores import GoalScores
from ..training.prompt_cache import PromptCache
from ..training.rewards import PlanScorer, PoseScorer, RewardPool, ScorePool
from ..training.rollout_pool import RolloutPool
from ..training.run_log import LOG, RunLog, complete_rows
from ..training.settings import DiffusionTrainConfig, RefineTrainConfig, RlTrainConfig, TrainConfig
from ..training.token_job import PretrainedPaths, TokenJob
from ..training.train_state import Progress as Done
from ..training.train_state import StateError
from ..training.vector_data import VectorSet
from ..vector_spec import VectorSpec
from .train_arguments import RECORDED, add_run_arguments, set_weights, tag_weights, tracks_folder

AnyConfig = TypeVar("AnyConfig", TrainConfig, DiffusionTrainConfig)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    kinds = parser.add_subparsers(title="kinds", metavar="KIND", required=True)
    sft_parser = kinds.add_parser("sft", help="supervised: the expert's plan, drafts and edits", description=__doc__)
    add_run_arguments(sft_parser, several="training sets")
    sft_parser.add_argument(
        "--init-from",
        type=Path,
        metavar="DIR",
        help="run, or folder of weights as models/reflectdrive2_small, that initialises this one, as far as it fits",
    )
    sft_parser.add_argument(
        "--tag", action="append", default=[], metavar="NAME=W", help="relative frequency of a scenario tag, else 1"
    )
    sft_parser.add_argument(
        "--language-weights",
        type=Path,
        metavar="DIR",
        help="Qwen3 weights that initialise a new run of base",
    )
    sft_parser.add_argument("--vision-weights", type=Path, metavar="DIR", help="SigLIP2 weights that initialise it")
    arguments.add_renamed_options(
        sft_parser, {"begin-with": "--init-from", "language": "--language-weights", "eyes": "--vision-weights"}
    )
    sft_parser.set_defaults(defaults=TrainConfig())
    for name, title, description, begun_from, defaults in (
        (
            "rl",
            "by reward: the goal decision, drafts and edits of sampled rollouts",
            rl.__doc__,
            "run, or folder of weights as models/reflectdrive2_small, whose network is trained further",
            RlTrainConfig(),
        ),
        (
            "refine",
            "the refinement expert of drivefine, on drafts of its network",
            refine.__doc__,
            "run, or folder of weights, whose generator is refined",
            RefineTrainConfig(),
        ),
    ):
        run_parser = kinds.add_parser(name, help=title, description=description)
        add_run_arguments(run_parser)
        run_parser.add_argument("--init-from", type=Path, metavar="DIR", required=True, help=begun_from)
        run_parser.set_defaults(defaults=defaults, language_weights=None, vision_weights=None)
    diffusion_parser = kinds.add_parser(
        "diffusion", help="the denoiser of reflexdiffusion, on lanes and agents", description=diffusion.__doc__
    )
    add_run_arguments(diffusion_parser, several="training sets; or real_tracks, real_tracks:DIR")
    diffusion_parser.add_argument(
        "--init-from", type=Path, metavar="DIR", help="run, or folder of weights, that initialises this one"
    )
    diffusion_parser.add_argument(
        "--hold-out",
        action="append",
        default=[],
        metavar="SITE",
        help="leave out the recordings of a site of real_tracks; may be repeated",
    )
    diffusion_parser.set_defaults(defaults=DiffusionTrainConfig(), run=run_diffusion)
    mean_parser = kinds.add_parser("mean", help="averages the weights of runs", description=average.__doc__)
    mean_parser.formatter_class = HelpFormatter
    average.add_arguments(mean_parser)
    mean_parser.set_defaults(run=average.run)


@command(lambda args: _resumption(args.out), "{}: {}")
def run(args: argparse.Namespace, console: Console, errors: Console) -> int:
    """Exit code 0; that of the signal when stopped; 2 with one sentence on stderr when it cannot begin or go on."""
    end_with_parent()
    config = _config(args)
    return run_with_network(args, config, settings.NETWORKS[config.network](), console, errors)


def run_with_network(
    args: argparse.Namespace, config: TrainConfig, network: TokenNetConfig, console: Console, errors: Console
) -> int:
    """As `run`, of a network of any measures."""
    _continues(args.out, config, columns_of(config))
    folders = [location(name) for name in args.train]
    set_weights(args)
    for folder in filter(None, (*folders, args.val)):  # before preparing, which takes hours
        shards.index_of(folder)
    if len(folders) > 1 and config.loss.goal_score > 0.0:
        raise ConfigError(f"loss.goal_score scores the goals of one set, but --train names {len(folders)}: give one")
    init_from = None if args.init_from is None else train_state.describe_init_run(args.init_from)
    if isinstance(config, RlTrainConfig):
        _check_network(args.init_from, network, config)
        layout = replace(network.layout, edit_goal=config.rl.edit_goal)
        network = replace(network, plan_value=config.rl.plan_value > 0.0, layout=layout)
    if isinstance(config, RefineTrainConfig):
        network = _refined_network(args.init_from, network, config)
    pretrained_paths = PretrainedPaths(args.language_weights, args.vision_weights)
    if pretrained_paths.any_given and args.init_from is not None:
        raise ConfigError(
            "--init-from another run, or with public weights (--language-weights, --vision-weights): not both"
        )
    fabric = launch_fabric(config)
    console.quiet = errors.quiet = not fabric.is_global_zero
    with lock_folder(args.out) if fabric.is_global_zero else nullcontext():
        return _run_alone(args, config, network, fabric, init_from, pretrained_paths, console, errors)


def _check_network(folder: Path, network: TokenNetConfig, config: RlTrainConfig) -> None:
    """Raises StateError if the weights of a folder are not of this network, ConfigError for a decision among goals of a
    network without goals."""
    found = train_state.load_network(folder).config
    found = replace(found, layout=replace(found.layout, edit_goal=network.layout.edit_goal))
    if not network.layout.goal and (config.rl.goals > 1 or config.rl.decision > 0.0):
        raise ConfigError(
            f"network {config.network} has no goals, but rl.goals is {config.rl.goals} and rl.decision "
            f"{config.rl.decision}: set rl.goals to 1 and rl.decision to 0"
        )
    other = [name for name, value in vars(network).items() if name != "plan_value" and getattr(found, name) != value]
    if other:
        raise StateError(
            f"{folder} holds another network than the setting `network` names ({', '.join(other)} differ): "
            "give another --init-from"
        )


def columns_of(config: TrainConfig) -> tuple[str, ...]:
    """Columns of the log of a run."""
    if isinstance(config, RlTrainConfig):
        return plan_rl.COLUMNS if config.by_plans else rl.COLUMNS
    return refine.COLUMNS if isinstance(config, RefineTrainConfig) else sft.COLUMNS


def _refined_network(folder: Path, network: TokenNetConfig, config: RefineTrainConfig) -> TokenNetConfig:
    """The network of a folder, with the refinement expert of the settings. Raises StateError for a network of another
    layout, ConfigError for an expert that it cannot have.

    It keeps a plan value, and gets one if the run trains it.
    """
    found, asked = train_state.load_network(folder).config, config.refine
    if found.layout != network.layout:
        raise StateError(
            f"{folder} holds a network of other tokens than the setting network ({config.network}): "
            "give another --init-from"
        )
    try:
        expert = ExpertConfig(asked.layers, asked.own_norm, asked.own_heads, asked.own_prompt)
        return replace(found, refine=expert, plan_value=found.plan_value or asked.plan_value > 0.0)
    except ValueError:
        most = found.transformer.layers - 1
        raise ConfigError(
            f"refine.layers is {asked.layers}, but the network has {most + 1} layers: set at most {most}"
        ) from None


def _run_alone(
    args: argparse.Namespace,
    config: TrainConfig,
    network: TokenNetConfig,
    fabric: Fabric,
    init_from: dict[str, Any] | None,
    pretrained_paths: PretrainedPaths,
    console: Console,
    errors: Console,
) -> int:
    """As `run_with_network`, while no other process trains into the folder."""
    shape, folders, weights = shape_of(network), [location(name) for name in args.train], set_weights(args)
    left_out: list[str] = []

    def on_damage(sentence: str) -> None:
        left_out.append(sentence)
        errors.print(sentence)

    with fabric.rank_zero_first(), _preparing(errors) as progress:
        found = [build_cache(folder, shape, args.workers, on_damage, progress) for folder in folders]
    tags = tag_weights(args)
    scenes = cache.merge(found, weights, tags) if len(found) > 1 or tags else found[0]
    for sentence in unknown_sentences(scenes):
        errors.print(sentence)
    if len(scenes) < config.data.batch:
        raise ConfigError(f"{folders[0]} holds {len(scenes)} scenes, fewer than data.batch ({config.data.batch})")
    checkpointing = config.checkpointing
    validation_set = (
        validation.load_validation_set(args.val, shape, checkpointing.validation_scenes, on_damage)
        if args.val
        else None
    )
    if left_out:
        errors.print(f"{len(scenes)} scenes for training; left out: see the {len(left_out)} lines above")
    described = [
        {**_set(folder), "used": len(each), "weight": weight}
        for folder, each, weight in zip(folders, found, weights, strict=True)
    ]
    about = {"train": described if len(found) > 1 else {**_set(folders[0]), "used": len(scenes)}, **provenance()}
    if tags:
        about["tags"] = tags
    if init_from is not None:
        about["init_from"] = init_from
    if pretrained_paths.any_given:
        about["public_weights"] = {kind: str(folder.name) for kind, folder in vars(pretrained_paths).items() if folder}
    goal_scores = _goal_scores(args, config, shape, fabric, errors)
    prompts = None
    if config.data.prompt_cache:
        folder = cache.cache_folder(folders[0], shape)
        prompts = _prompts(args.init_from, network, folder, scenes, config, fabric, errors)
    job = TokenJob(
        config,
        network,
        scenes,
        validation_set,
        args.out,
        about,
        default_decoding(network.layout),
        init_from=args.init_from,
        pretrained_paths=pretrained_paths,
        goal_scores=goal_scores,
        prompts=prompts,
    )
    _same_scenes(args.out, scenes.key, folders[0].name)
    log = RunLog(args.out, config.data.batch, columns_of(config), validation.summary, console, fabric.is_global_zero)
    with defer_signals() as request, log as report:
        if isinstance(config, RlTrainConfig):
            with _reward_pool(args, config, network, scenes) as pool:
                assert pool is not None
                if config.by_plans:
                    done = plan_rl.train(job, fabric, report, pool, lambda: request.number is not None)
                    return _finish(args, fabric, request.number, done, console)
                remote = isinstance(args.workers, Cluster) and fabric.device.type == "cpu"
                sample = RolloutPool(args.workers) if remote else rollouts.sample
                done = rl.train(job, fabric, report, pool, lambda: request.number is not None, sample=sample)
        elif isinstance(config, RefineTrainConfig):
            with _reward_pool(args, config, network, scenes) as rewards_of:
                done = refine.train(job, fabric, report, rewards_of, lambda: request.number is not None)
        else:
            done = sft.train(job, fabric, report, lambda: request.number is not None)
    return _finish(args, fabric, request.number, done, console)


def _prompts(
    init_from: Path | None,
    network: TokenNetConfig,
    folder: Path,
    scenes: CachedSet,
    config: TrainConfig,
    fabric: Fabric,
    errors: Console,
) -> PromptCache:
    """The prompts of the scenes, as the network encodes them with which the run begins."""
    if init_from is None:
        raise ConfigError("data.prompt_cache needs a network that encodes prompts already: give one with --init-from")
    net = train_state.initial_network(network, init_from, config.seed).to(fabric.device)
    once = replace(config.data, **prompt_cache.AUGMENTATION)
    source = Source(scenes, once, network.layout, config.seed)
    file = prompt_cache.prompt_file(folder, scenes.key, once, net, config.seed)
    with fabric.rank_zero_first(), _preparing(errors, "encoding the prompts of scenes") as progress, fabric.autocast():
        return prompt_cache.build_prompt_cache(
            file, len(scenes), lambda: batches(source, 0, 0, 1), net, fabric.device, progress
        )


@contextmanager
def _reward_pool(
    args: argparse.Namespace, config: RlTrainConfig | RefineTrainConfig, network: TokenNetConfig, scenes: CachedSet
) -> Iterator[RewardPool | None]:
    """Processes that score plans; None if no loss needs rewards. Raises SetError for a set that cannot be scored."""
    if isinstance(config, RefineTrainConfig) and not config.refine.needs_rewards:
        yield None
        return
    (name,) = args.train
    folder = location(name)
    rewards.check_scorable(folder, scenes)
    with RewardPool(folder, scenes, PlanScorer(network.layout, config.reward), args.workers) as pool:
        yield pool


def _finish(args: argparse.Namespace, fabric: Fabric, stopped_by: int | None, done: Done, console: Console) -> int:
    """Tells how a run ended; its exit code."""
    if stopped_by is not None:
        if fabric.is_global_zero:
            print_stop(_resumption(args.out))
        return exit_code(stopped_by)
    console.print(
        f"{done.step} steps in {done.elapsed_s / 60:.1f} minutes; weights are in {args.out / train_state.WEIGHTS}"
    )
    return 0


def run_diffusion_command(args: argparse.Namespace, console: Console, errors: Console) -> int:
    """As `run`, of a denoiser."""
    config: DiffusionTrainConfig = _with_length(
        args, override_dotted(settings.read(args.config, args.defaults), cli_args.settings_of(args.settings))
    )
    _continues(args.out, config, diffusion.columns_of(config))
    weights = set_weights(args)
    for folder in filter(None, (*(each for each in args.train if tracks_folder(each) is None), args.val)):
        shards.index_of(location(str(folder)))
    if args.hold_out and all(tracks_folder(each) is None for each in args.train):
        raise ConfigError(f"--hold-out leaves out recordings, but --train names none: add {RECORDED}")
    init_from = None if args.init_from is None else train_state.describe_init_run(args.init_from)
    network = settings.DENOISERS[config.network]()
    if config.reward.weight > 0.0 and not network.spec.ego_frenet:
        raise ConfigError(
            "reward.weight is above 0, but the network plans in the ego frame: set it to 0, or network to small"
        )
    fabric = launch_fabric(config)
    console.quiet = errors.quiet = not fabric.is_global_zero

    def on_damage(sentence: str) -> None:
        errors.print(sentence)

    with lock_folder(args.out) if fabric.is_global_zero else nullcontext():
        with fabric.rank_zero_first(), _preparing(errors) as progress:
            made = [_training_set(each, network.spec, args, on_damage, progress) for each in args.train]
        found = [samples for samples, _ in made]
        scenes = found[0] if len(found) == 1 else vector_data.merge(found, weights)
        if len(scenes) < config.data.batch:
            raise ConfigError(
                f"{args.train[0]} holds {len(scenes)} scenes, fewer than data.batch ({config.data.batch})"
            )
        limit = config.checkpointing.validation_scenes
        known = diffusion.load_validation(args.val, network.spec, limit, on_damage) if args.val else None
        about: dict[str, Any] = {
            "train": [
                {**described, "used": len(each), "weight": weight}
                for (each, described), weight in zip(made, weights, strict=True)
            ],
            **provenance(),
        }
        if init_from is not None:
            about["init_from"] = init_from
        job = DiffusionJob(config, network, scenes, known, args.out, about, args.init_from)
        _same_scenes(args.out, scenes.key, args.train[0])
        columns = diffusion.columns_of(config)
        log = RunLog(args.out, config.data.batch, columns, diffusion.summary, console, fabric.is_global_zero)
        scored = ScorePool(PoseScorer(ScoringConfig()), args.workers) if config.reward.weight > 0.0 else nullcontext()
        with scored as pool, defer_signals() as request, log as report:
            done = diffusion.train(job, fabric, report, lambda: request.number is not None, pool=pool)
    return _finish(args, fabric, request.number, done, console)


def _training_set(
    name: str,
    spec: VectorSpec,
    args: argparse.Namespace,
    on_damage: Callable[[str], None],
    progress: Callable[[int, int], None],
) -> tuple[VectorSet, dict[str, Any]]:
    """The samples of one value of --train, and their description for the card."""
    recordings = tracks_folder(name)
    if recordings is not None:
        samples, about = recorded_samples.recorded_set(recordings, spec, args.hold_out, progress)
        return samples, {"folder": recordings.name, **about}
    folder = location(name)
    return vector_data.build_vector_set(folder, spec, args.workers, on_damage, progress), _set(folder)


run_diffusion = command(lambda args: _resumption(args.out), "{}: {}")(run_diffusion_command)


def _goal_scores(
    args: argparse.Namespace, config: TrainConfig, shape: Shape, fabric: Fabric, errors: Console
) -> GoalScores | None:
    """What goals are goal_scores by the plans of the network that the run begins with, where it is to learn that."""
    if config.loss.goal_score == 0.0:
        return None
    if args.init_from is None:
        raise ConfigError("loss.goal_score needs a network that drafts plans already: give one with --init-from")
    card = train_state.card_of(args.init_from)
    weights = goal_scores_of.DraftingWeights(
        args.init_from / train_state.WEIGHTS, card["sha256"], config.device.precision != "32-true"
    )
    with fabric.rank_zero_first(), _preparing(errors, "driving goals, shard by shard") as progress:
        return goal_scores_of.score_set(location(args.train[0]), shape, weights, args.workers, progress)


# --- before it begins ------------------------------------------------------------------------------------------------


def _config(args: argparse.Namespace) -> TrainConfig:
    config: TrainConfig = override_dotted(
        settings.read(args.config, args.defaults), cli_args.settings_of(args.settings)
    )
    return _with_length(args, config)


def _with_length(args: argparse.Namespace, config: AnyConfig) -> AnyConfig:
    """The settings with the length and seed of the command line."""
    schedule = config.schedule
    if args.steps is not None:
        schedule = replace(schedule, steps=args.steps, minutes=0.0)
    if args.minutes is not None:
        schedule = replace(schedule, minutes=args.minutes)
    seed = config.seed if args.seed is None else args.seed
    return replace(config, schedule=schedule, seed=seed)


def _continues(out: Path, config: TrainConfig | DiffusionTrainConfig, columns: Sequence[str]) -> None:
    """Raises StateError if `out` holds a run of other settings."""
    found = train_state.read_progress(out)
    if found is None:
        return
    other = settings.differences(config, found[1]["settings"])
    if other:
        names = ", ".join(other)
        raise StateError(f"{out} holds a run with other settings ({names}): use those settings, or give another --out")
    complete_rows(out / LOG, columns)


def _same_scenes(out: Path, key: str, folder: Path | str) -> None:
    found = train_state.read_progress(out)
    if found is not None and found[1]["scenes"] != key:
        raise StateError(f"{out} holds a run on other scenes than {folder}: give another --out")


def _set(folder: Path) -> dict[str, Any]:
    index = shards.index_of(folder)
    return {"folder": folder.name, "set": index.set, "scenes": index.scenes, "made_by": dict(index.made_by)}


@contextmanager
def _preparing(console: Console, description: str = "preparing scenes, shard by shard") -> Iterator[Any]:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeElapsedColumn(), console=console, transient=True) as bar:
        task = bar.add_task(description, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def _resumption(out: Path) -> str:
    """What the same command does after a stop."""
    try:
        found = train_state.read_progress(out)
    except StateError as fault:
        return str(fault)
    if found is None:
        return "nothing saved yet, the same command starts from the beginning"
    return f"the same command resumes at step {found[0].step}"
