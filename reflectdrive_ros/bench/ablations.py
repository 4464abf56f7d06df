"""`reflectdrive bench ablations CONFIG --train DIR --val DIR --out DIR`: effect of the losses L_field and L_SAP.

The vision encoder is pretrained once for all variants. From there all losses are trained (`full`), or all but one, with
the same number of steps and several seeds. Every plan is that of the most probable goal, with the route, on the first
scenes of --val. Variants are compared by seed.

Each training is a `reflectdrive train sft` in its own folder of OUT, with a log beside it. A finished training is not
repeated, a stopped one is resumed: after Ctrl-C, or after another failed.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from ..core.config import ConfigError, override_dotted
from ..data import shards
from ..infra import arguments
from ..infra.command import command, make_table
from ..infra.documents import read_json
from ..infra.errors import UserError
from ..infra.parallel import Workers, map_restartable
from ..infra.progress import ShownProgress
from ..infra.provenance import write_numbers
from ..infra.signals import child_environment
from ..model.checkpoint import CARD
from ..scoring.scorer import SUB_SCORES
from ..training import settings, train_state, validation
from ..training.settings import TrainConfig
from .results import format_paired

FULL = "full"
VARIANTS = {FULL: (), "no-field": ("loss.field=0",), "no-sap": ("data.perturbed_actions=0",)}  # name -> settings
FIXED = (  # settings that the bench gives to each training
    *("schedule.steps", "seed", "device.threads", "optimizer.vision_pretrain_fraction"),
    *("checkpointing.validations", "checkpointing.validation_scenes"),
)
VISION = "vision"
SCENES = 500  # of --val
COMPARED = ("pdms", "dac", "pdms_drafted")
TRAIN = (sys.executable, "-m", "reflectdrive_ros", "train", "sft")
TERMINATE_TIMEOUT_S = 30.0  # time for a training to write its state and weights after an interrupt
POLL_S = 0.2


class AblationError(UserError):
    """The table cannot be made; the message names the reason and what to do."""


@dataclass(frozen=True, eq=False)
class Run:
    """A training, and all by which it is known again."""

    out: Path
    words: tuple[str, ...]  # what `reflectdrive train sft` is given
    config: TrainConfig
    learnt: Mapping[str, Any]  # of the set to learn from: scenes, made_by
    init_from: int | None  # steps of the vision pretraining

    @property
    def name(self) -> str:
        return self.out.name

    @property
    def log(self) -> Path:
        return self.out.with_name(f"{self.name}.log")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("config", type=Path, metavar="CONFIG", help="settings (YAML), as config/train/*.yaml")
    parser.add_argument("--train", type=Path, required=True, metavar="DIR", help="training set")
    parser.add_argument("--val", type=Path, required=True, metavar="DIR", help=f"validation set, its first {SCENES}")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder of the trainings")
    parser.add_argument(
        "--steps", type=arguments.positive_int(10**9), default=500, metavar="N", help="of each training"
    )
    parser.add_argument(
        "--vision-steps",
        type=arguments.positive_int(10**9),
        default=1800,
        metavar="N",
        help="of the vision pretraining before them",
    )
    parser.add_argument(
        "--seeds", type=arguments.positive_int(100), default=3, metavar="N", help="trainings of each variant"
    )
    arguments.add_workers_arguments(parser, "--jobs", 2, "parallel trainings, one thread each")
    arguments.add_settings_argument(parser, "one setting of CONFIG, may be repeated")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the numbers as JSON")


@command("the same command resumes from here", os_error="{}: {}")
def run(args: argparse.Namespace, console: Console, errors: Console) -> None:
    """Exit code 0; that of a signal; 2 with one sentence on stderr when a training cannot be used or failed."""
    runs = plan_runs(args)
    args.out.mkdir(parents=True, exist_ok=True)
    cards = run_trainings(runs, args.jobs, errors)
    result = {
        "steps": args.steps,
        "vision_steps": args.vision_steps,
        "batch": runs[0].config.data.batch,
        "seeds": args.seeds,
        "scenes_trained_on": cards[VISION]["data"]["train"]["used"],
        "validation_scenes": min(SCENES, shards.index_of(args.val).scenes),
        **numbers({name: card for name, card in cards.items() if name != VISION}, args.seeds),
    }
    write_numbers(args.json, result)
    console.print(_mean_table(result))
    console.print(_difference_table(result))


# --- which trainings -------------------------------------------------------------------------------------------------


def plan_runs(args: argparse.Namespace) -> list[Run]:
    """The vision pretraining, then the variants seed by seed, so that pairs are complete early. Raises ConfigError,
    SetError.
    """
    given = arguments.settings_of(args.settings)
    if fixed := [name for name in given if name in FIXED]:
        raise ConfigError(f"--setting {fixed[0]} has no effect here: the bench sets it for each training")
    base = override_dotted(settings.read(args.config, TrainConfig()), given)
    if base.schedule.minutes > 0.0:
        raise ConfigError(f"schedule.minutes is {base.schedule.minutes:g}, but steps are the budget here: set it to 0")
    index = shards.index_of(args.train)
    learnt = {"scenes": index.scenes, "made_by": dict(index.made_by)}
    shared = [str(args.config), "--train", str(args.train)]

    def training(name: str, init_from: int | None, more: Sequence[str], pairs: Sequence[str]) -> Run:
        out = args.out / name
        words = [*shared, *more, "--out", str(out)]
        for pair in (*args.settings, *pairs):
            words += ["--setting", pair]
        return Run(out, tuple(words), override_dotted(base, arguments.settings_of(pairs)), learnt, init_from)

    steps = f"schedule.steps={args.vision_steps}"
    runs = [
        training(VISION, None, (), (steps, "optimizer.vision_pretrain_fraction=0.99", "device.threads=1", "seed=0"))
    ]
    after = ("--val", str(args.val), "--init-from", str(args.out / VISION))
    examined = ("checkpointing.validations=0", f"checkpointing.validation_scenes={SCENES}")
    for seed in range(args.seeds):
        for variant, changed in VARIANTS.items():
            pairs = (
                "optimizer.vision_pretrain_fraction=0",
                f"schedule.steps={args.steps}",
                *examined,
                "device.threads=1",
            )
            runs.append(training(f"{variant}-{seed}", args.vision_steps, after, (*pairs, f"seed={seed}", *changed)))
    return runs


def finished_card(run: Run) -> dict[str, Any] | None:
    """The card of a finished training; None if it has to start or resume.

    Raises AblationError if the folder holds another training, StateError if it holds an unreadable one.
    """
    card = _read_card(run.out)
    if card is None:
        return None
    try:
        other = settings.differences(run.config, card["settings"], free=())
        learnt, init_from = card["data"]["train"], card["data"].get("init_from", {"steps": None})
        if {name: learnt[name] for name in run.learnt} != run.learnt:
            other.append("scenes")
        if init_from["steps"] != run.init_from:
            other.append("steps of the vision pretraining")
        done = card["steps"] == run.config.schedule.steps and ("validation" in card or run.name == VISION)
    except (KeyError, TypeError, AttributeError) as fault:
        raise AblationError(f"{run.out / CARD} is not the card of a training ({fault!r}): give another --out") from None
    if other:
        raise AblationError(f"{run.out} holds another training ({', '.join(other)} differ): give another --out")
    return card if done else None


def _read_card(out: Path) -> dict[str, Any] | None:
    """A folder's card or, if a training was killed before it wrote one, its state."""
    try:
        return dict(read_json(out / CARD))
    except FileNotFoundError:
        found = train_state.read_progress(out)
    except (OSError, ValueError, TypeError) as fault:
        raise AblationError(f"{out / CARD} cannot be read ({fault}): give another --out") from None
    if found is None:
        return None
    progress, about = found
    return {"steps": progress.step, "settings": about["settings"], "data": about["sets"]}


# --- their processes -------------------------------------------------------------------------------------------------


def run_trainings(runs: Sequence[Run], jobs: Workers, errors: Console) -> dict[str, dict[str, Any]]:
    """The card of every training by its name; the first is finished before the others start.

    Raises AblationError for a failed training, and before any start for a folder that holds something else.
    """
    cards = {run.name: card for run in runs if (card := finished_card(run)) is not None}
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with ShownProgress(errors, *columns, hidden=not errors.is_terminal) as progress:
        bar = progress.add_task("trainings", total=len(runs), completed=len(cards))

        def on_done(run: Run, card: dict[str, Any]) -> None:
            cards[run.name] = card
            progress.advance(bar)
            if not errors.is_terminal:
                found = card.get("validation")
                summary_text = f": {validation.summary(found)}" if found else ""
                errors.print(f"{run.name}, {card['minutes']:.1f} min{summary_text}")

        for stage in (runs[:1], runs[1:]):
            _run_parallel([run for run in stage if run.name not in cards], jobs, on_done)
    return cards


def _run_parallel(runs: Sequence[Run], jobs: Workers, on_done: Callable[[Run, dict[str, Any]], None]) -> None:
    """Runs each in its own process, `jobs` at a time. Raises AblationError at the first failure."""
    with closing(_exit_codes(runs, jobs) if isinstance(jobs, int) else _cluster_exit_codes(runs, jobs)) as ended:
        for run, code in ended:
            card = finished_card(run) if code == "0" else None
            if card is None:
                raise AblationError(
                    f"the training {run.name} failed (exit code {code}): {run.log} has the reason; finished "
                    "trainings are kept, and the same command resumes"
                )
            on_done(run, card)


def _cluster_exit_codes(runs: Sequence[Run], cluster: Workers) -> Generator[tuple[Run, str]]:
    """As `_exit_codes`. The folder of the trainings is on storage that every node sees."""
    with closing(map_restartable(runs, partial(_train, TRAIN), cluster, portable=False)) as outcomes:
        for outcome in outcomes:
            yield outcome.task, outcome.reason or str(outcome.result)


def _train(program: Sequence[str], run: Run, report: Callable[[Any], None]) -> int:
    child = _start(program, run)
    try:
        return child.wait()
    finally:
        _terminate([child])


def _exit_codes(runs: Sequence[Run], jobs: int) -> Generator[tuple[Run, str]]:
    """Each run and the exit code of its process, as they end."""
    waiting = list(reversed(runs))
    running: dict[Run, subprocess.Popen[bytes]] = {}
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                run = waiting.pop()
                running[run] = _start(TRAIN, run)
            ended = [run for run, child in running.items() if child.poll() is not None]
            for run in ended:
                yield run, str(running.pop(run).returncode)
            if not ended:
                time.sleep(POLL_S)
    finally:
        _terminate(list(running.values()))


def _start(program: Sequence[str], run: Run) -> subprocess.Popen[bytes]:
    """Starts it in its own session, so that Ctrl-C reaches it once and through this process only."""
    with run.log.open("ab") as log:  # a resumed training appends to its log
        return subprocess.Popen(
            [*program, *run.words],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env=child_environment(),
        )


def _terminate(children: Sequence[subprocess.Popen[bytes]]) -> None:
    """Interrupts each with its child processes; kills those that do not end."""
    for child in children:
        _signal(child, signal.SIGINT)
    until = time.monotonic() + TERMINATE_TIMEOUT_S
    try:
        for child in children:
            with suppress(subprocess.TimeoutExpired):
                child.wait(max(0.0, until - time.monotonic()))
    finally:  # after a second Ctrl-C
        for child in children:
            _signal(child, signal.SIGKILL)
            child.wait()


def _signal(child: subprocess.Popen[bytes], number: signal.Signals) -> None:
    if child.poll() is None:
        os.killpg(child.pid, number)


# --- differences ------------------------------------------------------------------------------------------------------


def numbers(cards: Mapping[str, Mapping[str, Any]], seeds: int) -> dict[str, Any]:
    """Keys runs, variants (means over the seeds) and differences (full less variant, for each seed).

    `cards` are those of VARIANT-SEED for every variant and seed.
    """
    found = {name: {**card["validation"], "minutes": card["minutes"]} for name, card in cards.items()}

    def of_seeds(variant: str, key: str) -> list[float]:
        return [found[f"{variant}-{seed}"][key] for seed in range(seeds)]

    def differences(variant: str, key: str) -> list[float]:
        pairs = zip(of_seeds(FULL, key), of_seeds(variant, key), strict=True)
        return [round(full - less, 3) for full, less in pairs]

    keys = found[f"{FULL}-0"]
    return {
        "runs": found,
        "variants": {name: {key: round(fmean(of_seeds(name, key)), 3) for key in keys} for name in VARIANTS},
        "differences": {
            _left_out(name): {key: differences(name, key) for key in COMPARED} for name in VARIANTS if name != FULL
        },
    }


def _left_out(variant: str) -> str:
    return variant.removeprefix("no-")


def _mean_table(result: Mapping[str, Any]) -> Table:
    title = (
        f"{result['steps']} steps of {result['batch']} scenes each, seeds: {result['seeds']}; means in percent on "
        f"{result['validation_scenes']} scenes"
    )
    headings = ("trained", "PDMS", "NC", "DAC", "TTC", "C", "EP", "goal error m", "PDMS drafted")
    rows = []
    for variant, row in result["variants"].items():
        scores = (f"{row[key]:.1f}" for key in ("pdms", *SUB_SCORES))
        rows.append((variant, *scores, f"{row['goal_error_m']:.2f}", f"{row['pdms_drafted']:.1f}"))
    return make_table(headings, rows, title)


def _difference_table(result: Mapping[str, Any]) -> Table:
    title = "by seed, and full less variant: mean (least .. largest)"
    rows = []
    for variant in result["variants"]:
        differences = result["differences"].get(_left_out(variant), {})
        cells = []
        for key in ("pdms", "dac"):
            cells.append(" ".join(f"{result['runs'][f'{variant}-{k}'][key]:.1f}" for k in range(result["seeds"])))
            cells.append(format_paired(differences.get(key, ())))
        rows.append((variant, *cells))
    return make_table(("trained", "PDMS", "difference", "DAC", "difference"), rows, title)
