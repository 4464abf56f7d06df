"""`reflectdrive bench decoding --model FILE --set test`: what each part of the decoding is worth, on one set of scenes.

Every row changes one number of ReflectDrive-2's decoding, on the same scenes: rounds of drafting, rounds of editing,
the number of goals and how far apart they must be. The plan is that of the likeliest goal; `best` is the best of all
goals by the true score (an oracle), `chosen` the one that the planner itself chooses with everybody's present
velocity. A difference to the first row, the configured decoding, has its interval by the bootstrap over scenes.

What no decoding can do better than stands below: the expert's own plan, as it is, and in tokens.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.progress import Progress
from rich.table import Table

from ..config import Config, ConfigError, ReflectDrive2Config
from ..data import shards
from ..data.scene import DrivingScene
from ..data.shards import SetError
from ..evaluation import open_loop, scene_sets
from ..features import model_inputs
from ..planning import reflectdrive2
from ..planning.planner import Network, Tools
from ..planning.postprocess.waypoints import driven
from ..provenance import write_numbers
from ..runtime import cli_args
from ..runtime.model_file import ModelFileError
from ..scoring.frenet import RoadFrame, poses_on_road
from ..scoring.scorer import score
from ..tokens import Codebook

ROUNDS = (1, 2, 3, 4, 5, 6, 7, 8)
GOALS = (1, 2, 3, 6, 10)
SPACINGS_M = (0.3, 0.6, 1.2, 2.4, 4.8)
PLAIN = "configured"


@dataclass(frozen=True)
class Row:
    """PDMS of one scene by one way of decoding, 0 to 1."""

    single: float
    best: float
    chosen: float


@dataclass(frozen=True)
class Ceiling:
    """PDMS of the expert's own plan of one scene, 0 to 1: as it is; in tokens; the same read without the road."""

    exact: float
    tokens: float
    tokens_without_road: float


CEILINGS = tuple(each.name for each in fields(Ceiling))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    cli_args.add_bench_arguments(parser)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the numbers of the table here too")
    parser.set_defaults(planner="reflectdrive2")


def run(args: argparse.Namespace) -> int:
    """Exit code 0; 2 with one sentence on stderr when there is nothing to decode."""
    console, errors = Console(), Console(stderr=True)
    try:
        config = cli_args.configuration(args)
        folder = open_loop.the_set(args.set, args.scenes, args.workers, errors)
        rows, ceilings = measured(folder, config, args.limit, errors)
    except (ConfigError, ModelFileError, *scene_sets.FAULTS) as fault:
        errors.print(escape(str(fault)), soft_wrap=True, highlight=False)
        return 2
    numbers = {name: summary(some, rows[PLAIN]) for name, some in rows.items()}
    expert = {name: round(100.0 * float(np.mean([vars(each)[name] for each in ceilings])), 3) for name in CEILINGS}
    if args.json is not None:
        model = {"file": args.model, "sha256": config.model.sha256}
        told = {"set": args.set, "scenes": len(rows[PLAIN]), "model": model, "expert": expert, "rows": numbers}
        write_numbers(args.json, told, weights_sha256=cli_args.weights_of(config, [args.planner]))
    console.print(_table(args.set, len(rows[PLAIN]), numbers))
    console.print(expert_in_words(expert), soft_wrap=True, highlight=False)
    return 0


def measured(folder: Path, config: Config, limit: int, errors: Console) -> tuple[dict[str, list[Row]], list[Ceiling]]:
    """Rows of the same scenes by every way of decoding, and their experts'. Raises SetError if there is no scene."""
    ways = variants(config)
    rows: dict[str, list[Row]] = {name: [] for name in ways}
    ceilings = []
    networks = {each: cli_args.network_of_weights(config, each) for each in {way.decoding for way in ways.values()}}
    scenes = shards.read(
        folder, images=True, limit=limit, on_damage=partial(errors.print, soft_wrap=True, highlight=False)
    )
    with Progress(console=errors, transient=True, disable=not errors.is_terminal) as progress:
        for scene in progress.track(scenes, total=limit, description="decoding"):
            for name, row in rows_of(scene, ways, networks):
                rows[name].append(row)
            ceilings.append(ceiling(scene, networks[config.decoding].codebook))
    if not rows[PLAIN]:
        raise SetError(f"{folder} holds no scene to plan for")
    return rows, ceilings


def variants(config: Config) -> dict[str, Config]:
    """Ways of decoding by name: the configured one first, then one number changed at a time."""
    found = {PLAIN: config}

    def changed(**values: Any) -> Config:
        return replace(config, reflectdrive2=replace(config.reflectdrive2, **values))

    for rounds in ROUNDS:
        found[f"draft rounds {rounds}"] = changed(draft_rounds=rounds)
    for rounds in (0, *ROUNDS):
        found[f"edit rounds {rounds}"] = changed(edit_rounds=rounds)
    for goals in GOALS:
        found[f"goals {goals}"] = replace(config, decoding=replace(config.decoding, goals=goals))
    for spacing_m in SPACINGS_M:
        decoding = replace(config.decoding, goal_spacing_m=spacing_m)
        found[f"goal spacing {spacing_m} m"] = replace(config, decoding=decoding)
    return found


def rows_of(
    scene: DrivingScene, ways: Mapping[str, Config], networks: Mapping[Any, Network]
) -> Iterator[tuple[str, Row]]:
    """What each way makes of one scene; each network reads the scene once."""
    observation = scene.observation()
    scored, road = scene.scored(), RoadFrame.of(observation.route)
    known = {
        decoding: network.prefill_goal(model_inputs(observation, network.inputs))
        for decoding, network in networks.items()
    }
    for name, config in ways.items():
        network = networks[config.decoding]
        settings: ReflectDrive2Config = config.reflectdrive2
        seen = known[config.decoding]
        drafts = reflectdrive2.drafted(network, seen.context, seen.actions[seen.valid], settings)
        actions, _ = reflectdrive2.edited(network, seen.context, *drafts, settings.edit_rounds)[-1]
        points = driven(network.codebook.decode(actions), observation.ego, network.codebook.bin_m, road)
        values = score(scored, poses_on_road(points, road)).score
        choice = reflectdrive2.ranked(
            points, seen.goal_log_probs[seen.valid], observation, road, Tools(config, network)
        )
        yield name, Row(float(values[0]), float(values.max()), float(values[choice.order[0]]))


def ceiling(scene: DrivingScene, codebook: Codebook) -> Ceiling:
    """What the expert's own plan scores."""
    rounded, plans = codebook.decode(codebook.encode(scene.expert[:, :2])), [scene.expert]
    for road in (RoadFrame.of(scene.route), None):
        plans.append(poses_on_road(driven(rounded, scene.ego, codebook.bin_m, road), road))
    return Ceiling(*map(float, score(scene.scored(), np.stack(plans)).score))


def expert_in_words(expert: Mapping[str, float]) -> str:
    """One sentence."""
    exact, tokens, without = (expert[name] for name in CEILINGS)
    return (
        f"The expert's own plan has {exact:.1f}; in tokens, read against the road, {tokens:.1f}; without the road "
        f"{without:.1f}."
    )


def summary(rows: list[Row], plain: list[Row]) -> dict[str, Any]:
    """Means in percent, and the difference of the single plan to the configured decoding with its interval."""
    table = 100.0 * np.array([[row.single, row.best, row.chosen] for row in rows])
    difference = table[:, 0] - 100.0 * np.array([row.single for row in plain])
    found = dict(zip(("single", "best", "chosen"), (round(float(mean), 3) for mean in table.mean(0)), strict=True))
    ends = open_loop.interval(difference / 100.0)
    return {**found, "difference": round(float(difference.mean()), 3), "difference_95": ends}


def _table(name: str, scenes: int, numbers: Mapping[str, Mapping[str, Any]]) -> Table:
    title = f"set '{name}', {scenes} scenes; PDMS, means in percent"
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD)
    table.add_column("decoding", no_wrap=True)
    for heading in ("single", "best of goals", "chosen", "difference", "95 %"):
        table.add_column(heading, justify="right")
    for way, row in numbers.items():
        low, high = row["difference_95"]
        values = (f"{row[key]:.1f}" for key in ("single", "best", "chosen"))
        table.add_row(way, *values, f"{row['difference']:+.2f}", f"{low:+.2f} .. {high:+.2f}")
    return table
