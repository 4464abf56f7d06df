"""`reflectdrive bench decoding --model FILE --scenes test`: the effect of each decoding parameter on PDMS.

Every row changes one parameter of ReflectDrive-2's decoding on the same scenes: draft rounds, edit rounds, number of
goals, goal spacing; with --planner drivefine draft rounds, refinement, temperature, and the order and intervals of its
tokens, which the card of the weights names. `single` is the most probable plan, `best` the best of all candidates by
the true score (an upper bound), `chosen` the plan that the planner selects with objects at constant velocity.
Differences to the first row, the configured decoding, have bootstrap intervals over scenes.

Below the table stand the scores of the expert's plan, exact and rounded to tokens: the upper bounds of any decoding.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from ..core.config import Config
from ..core.recipe_config import DecodingConfig, ReflectDrive2Config
from ..core.tokens import TokenLayout
from ..data import shards
from ..data.scene import DrivingScene
from ..data.shards import SetError
from ..evaluation import open_loop
from ..features.images import model_inputs
from ..infra.command import command, make_table
from ..infra.progress import track_progress
from ..infra.provenance import write_numbers
from ..planning import drivefine, reflectdrive2
from ..planning.assessment import score_candidates
from ..planning.planner import Network, can_score, prefill_sequences
from ..planning.postprocess.waypoints import postprocess, token_headings, waypoint_poses
from ..runtime import cli_args
from ..scoring.frenet import FrenetFrame
from ..scoring.safety import SafetyContext
from ..scoring.scorer import score

ROUNDS = (1, 2, 3, 4, 5, 6, 7, 8)
GOALS = (1, 2, 3, 6, 10)
SPACINGS_M = (0.3, 0.6, 1.2, 2.4, 4.8)
DRIVEFINE_ROUNDS = (1, 2, 4, 8, 12, 24)
LAYOUTS: dict[str, dict[str, Any]] = {  # of drivefine: what the rows change of the layout
    "most confident token first": {"last_waypoint_first": False},
    "single bins": {"interval_bins": 0},
    "most confident token first, single bins": {"last_waypoint_first": False, "interval_bins": 0},
}
CONFIGURED = "configured"


@dataclass(frozen=True)
class Variant:
    """One way of decoding; networks are shared by those of an equal `network_key`."""

    config: Config
    layout: str = ""  # a row of LAYOUTS

    @property
    def network_key(self) -> tuple[DecodingConfig, str]:
        return self.config.decoding, self.layout


@dataclass(frozen=True)
class Row:
    """PDMS of one scene with one decoding variant, 0 to 1."""

    single: float
    best: float
    chosen: float


@dataclass(frozen=True)
class Ceiling:
    """PDMS of the expert's plan in one scene, 0 to 1: exact; in tokens; in tokens without the road frame."""

    exact: float
    tokens: float
    tokens_without_road: float


CEILINGS = tuple(each.name for each in fields(Ceiling))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    cli_args.add_bench_arguments(parser)
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the numbers as JSON")
    recipes = ("reflectdrive2", "drivefine")
    parser.add_argument("--planner", choices=recipes, default=recipes[0], help="recipe (%(default)s)")


@command()
def run(args: argparse.Namespace, console: Console, errors: Console) -> None:
    """Exit code 0; 2 with one sentence on stderr if there is nothing to decode."""
    config = cli_args.configuration(args)
    folder = open_loop.resolve_scene_set(args.scenes, args.workers, errors, args.limit)
    set_name = shards.index_of(folder).set
    rows, ceilings = measure(folder, config, args.limit, errors)
    numbers = {name: summary(some, rows[CONFIGURED]) for name, some in rows.items()}
    expert = {name: round(100.0 * float(np.mean([vars(each)[name] for each in ceilings])), 3) for name in CEILINGS}
    model = {"file": args.model, "sha256": config.model.sha256}
    content = {"set": set_name, "scenes": len(rows[CONFIGURED]), "model": model, "expert": expert, "rows": numbers}
    write_numbers(args.json, content, weights_sha256=cli_args.weights_of(config, [args.planner]))
    console.print(_table(set_name, len(rows[CONFIGURED]), numbers))
    console.print(expert_sentence(expert))


def measure(folder: Path, config: Config, limit: int, errors: Console) -> tuple[dict[str, list[Row]], list[Ceiling]]:
    """Scores of every decoding variant and of the expert on the same scenes. Raises SetError if there is no scene."""
    ways = variants(config)
    rows: dict[str, list[Row]] = {name: [] for name in ways}
    ceilings = []
    networks = {way.network_key: _network(config, way) for way in ways.values()}
    scenes = shards.read(folder, images=True, limit=limit, on_damage=errors.print)
    for scene in track_progress(scenes, "decoding", errors, limit):
        for name, row in decode_variants(scene, ways, networks):
            rows[name].append(row)
        ceilings.append(expert_ceiling(scene, networks[ways[CONFIGURED].network_key].layout))
    if not rows[CONFIGURED]:
        raise SetError(f"{folder} holds no scene to plan for")
    return rows, ceilings


def _network(config: Config, way: Variant) -> Network:
    network: Any = cli_args.network_of_weights(config, way.config.decoding)  # weights run in torch
    found: Network = network.with_layout(replace(network.layout, **LAYOUTS[way.layout])) if way.layout else network
    return found


def variants(config: Config) -> dict[str, Variant]:
    """Ways of decoding by name: the given one first, then one parameter changed at a time."""
    found = {CONFIGURED: Variant(config)}
    if config.planner == "drivefine":
        for rounds in DRIVEFINE_ROUNDS:
            for refine in (True, False):
                name = f"draft rounds {rounds}, {'refined' if refine else 'not refined'}"
                changes = replace(config.drivefine, draft_rounds=rounds, refine=refine)
                found[name] = Variant(replace(config, drivefine=changes))
        return found | {name: Variant(config, name) for name in LAYOUTS}

    def changed(**values: Any) -> Variant:
        return Variant(replace(config, reflectdrive2=replace(config.reflectdrive2, **values)))

    for rounds in ROUNDS:
        found[f"draft rounds {rounds}"] = changed(draft_rounds=rounds)
    for rounds in (0, *ROUNDS):
        found[f"edit rounds {rounds}"] = changed(edit_rounds=rounds)
    for goals in GOALS:
        found[f"goals {goals}"] = Variant(replace(config, decoding=replace(config.decoding, goals=goals)))
    for spacing_m in SPACINGS_M:
        decoding = replace(config.decoding, goal_spacing_m=spacing_m)
        found[f"goal spacing {spacing_m} m"] = Variant(replace(config, decoding=decoding))
    return found


def decode_variants(
    scene: DrivingScene, ways: Mapping[str, Variant], networks: Mapping[Any, Network]
) -> Iterator[tuple[str, Row]]:
    """The score of each variant in one scene; each network encodes the scene once."""
    observation = scene.observation()
    scored, road = scene.scored(), FrenetFrame.of(observation.route)
    known = {
        key: prefill_sequences(network, model_inputs(observation, network.inputs)) for key, network in networks.items()
    }
    for name, way in ways.items():
        config, network, seen = way.config, networks[way.network_key], known[way.network_key]
        if config.planner == "drivefine":
            made = drivefine.candidates(
                network, seen.context, config.drivefine.candidates, config.drivefine, observation.stamp_ns
            )
            actions = made.ids
        else:
            settings: ReflectDrive2Config = config.reflectdrive2
            drafts = reflectdrive2.draft_actions(network, seen.context, seen.actions[seen.valid], settings)
            actions, _ = reflectdrive2.edit_actions(network, seen.context, *drafts, settings.edit_rounds)[-1]
        waypoints, layout = network.layout.decode(actions), network.layout
        points = postprocess(waypoints[..., :2], observation.ego, layout.waypoint_noise_m, road)
        poses = waypoint_poses(points, road, token_headings(waypoints, points, layout))
        values = score(scored, poses).score
        context = SafetyContext(observation, config)
        if config.planner == "drivefine":
            chosen = int(np.argmax(score_candidates(context, points).scores)) if can_score(observation) else 0
        else:
            chosen = reflectdrive2.rank_candidates(points, seen.goal_log_probs[seen.valid], context).order[0]
        yield name, Row(float(values[0]), float(values.max()), float(values[chosen]))


def expert_ceiling(scene: DrivingScene, layout: TokenLayout) -> Ceiling:
    """The scores of the expert's plan in one scene."""
    rounded, plans = layout.decode(layout.encode(scene.expert[:, : len(layout.axes)])), [scene.expert]
    for road in (FrenetFrame.of(scene.route), None):
        points = postprocess(rounded[:, :2], scene.ego, layout.codebook.bin_m, road)
        plans.append(waypoint_poses(points, road, token_headings(rounded, points, layout)))
    return Ceiling(*map(float, score(scene.scored(), np.stack(plans)).score))


def expert_sentence(expert: Mapping[str, float]) -> str:
    """One sentence."""
    exact, tokens, without = (expert[name] for name in CEILINGS)
    return (
        f"The expert's own plan scores {exact:.1f}; rounded to tokens and read relative to the road {tokens:.1f}, "
        f"without the road {without:.1f}."
    )


def summary(rows: list[Row], plain: list[Row]) -> dict[str, Any]:
    """Means in percent, and the mean difference of `single` to the configured decoding with its 95 % interval."""
    table = 100.0 * np.array([[row.single, row.best, row.chosen] for row in rows])
    difference = table[:, 0] - 100.0 * np.array([row.single for row in plain])
    found = dict(zip(("single", "best", "chosen"), (round(float(mean), 3) for mean in table.mean(0)), strict=True))
    ends = open_loop.bootstrap_interval(difference / 100.0)
    return {**found, "difference": round(float(difference.mean()), 3), "difference_95": ends}


def _table(name: str, scenes: int, numbers: Mapping[str, Mapping[str, Any]]) -> Table:
    title = f"set '{name}', {scenes} scenes; PDMS, means in percent"
    cells = []
    for way, row in numbers.items():
        low, high = row["difference_95"]
        values = (f"{row[key]:.1f}" for key in ("single", "best", "chosen"))
        cells.append((way, *values, f"{row['difference']:+.2f}", f"{low:+.2f} .. {high:+.2f}"))
    return make_table(("decoding", "single", "best of goals", "chosen", "difference", "95 %"), cells, title)
