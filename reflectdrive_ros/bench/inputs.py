"""`reflectdrive bench inputs --planner NAME --scenes val`: which of its inputs a planner uses.

Each variant withholds or exchanges one input, and every scene is planned again. Its row has the PDMS, the difference to
the planner with all inputs of its privilege, paired by scene, and how far the plan moves at 4 s. A planner that scores
the same without an input does not use it.

| variant | what changes |
|---|---|
| other images | images of the next scene of the set; the scene's own everything else |
| black images | images without content |
| no route | no route line, and no lanes of the route |
| no words | command FOLLOW and no instruction |
| no objects | no road users and no drivable space; privileges `objects` and `logged` only |

Paired commands: in scenes that turn left or right, without a route, the plan is made once with the command left and
once with right (words mirrored with it). `left less right` is the mean lateral distance at 4 s between the two;
`follows` the share of scenes where the left plan ends at least FOLLOWS_M further left.

Intervals are 95 % bootstrap intervals over scenes. Each variant also has its distance to the driven path
(`evaluation.displacement`); PDMS is over scenes with map and objects, and absent without any. With all inputs the same
is there by scenario tag (`families`) and, in sets made of recordings, by place, of the PLACES_MAX most frequent.

`--card` also writes the numbers into the card beside the weights of --model, under `evaluations` and the set's name.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from ..core.config import Config, ConfigError
from ..core.domain import Array, Command, Observation
from ..data import shards
from ..data.cache import mirror_words
from ..data.scene import DrivingScene
from ..data.shards import SetError, ShardNote
from ..evaluation import displacement, driving_scores, open_loop, privilege
from ..infra import arguments
from ..infra.command import HelpFormatter, command, make_table
from ..infra.documents import DocumentError, read_json
from ..infra.files import write_atomic
from ..infra.parallel import Workers
from ..infra.provenance import provenance, write_numbers
from ..model.card import CARD
from ..planning import CAMERA_FREE, LEARNED, VECTOR_PLANNERS
from ..planning.planner import PlannerContext
from ..runtime import cli_args
from ..runtime.engine import check_network
from .shard_results import plan_shards

ALL = "all inputs"
FOLLOWS_M = 1.0
TURNS = (Command.LEFT, Command.RIGHT)
OBJECTS_KNOWN = ("objects", "logged")
PLACES_MAX = 50


@dataclass(frozen=True)
class SceneResult:
    """One scene: PDMS and end of the plan of each variant, and the ends by paired command."""

    pdms: dict[str, float]  # NaN where the scene lacks map or objects
    ends: dict[str, Array]  # (2,) m at 4 s
    paired: tuple[float, float] | None  # m to the left at 4 s with the command left, and right; None: no turn
    distances: dict[str, Array]  # (8,) m to the driven path
    tag: str = ""  # scenario
    place: str = ""  # empty where the scene has none


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.formatter_class = HelpFormatter
    cli_args.add_model_arguments(parser)
    cli_args.add_scenes_argument(parser, "val")
    parser.add_argument("--planner", default="reflectdrive2", choices=tuple(LEARNED), help="planner")
    parser.add_argument("--privilege", default="route", choices=privilege.PRIVILEGES, help="inputs of the planner")
    parser.add_argument(
        "--limit", type=arguments.positive_int(10**6), metavar="N", help="scenes, spread over the families of the set"
    )
    arguments.add_workers_arguments(parser, "--workers", 2, "processes")
    arguments.add_settings_argument(parser)
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the numbers as JSON")
    parser.add_argument(
        "--card", action="store_true", help="also write them into the card beside the weights of --model"
    )


@command()
def run(args: argparse.Namespace, console: Console, errors: Console) -> None:
    """Exit code 0; 2 with one sentence on stderr if there is nothing to plan for."""
    config = cli_args.configuration(args)
    if args.card and not config.model.file.endswith(".safetensors"):
        raise ConfigError("--card writes into the card of weights: give --model RUN/weights.safetensors")
    check_network(config, cli_args.network_for(config, args.planner, random_weights=False))
    folder = open_loop.resolve_scene_set(args.scenes, args.workers, errors, args.limit)
    found = measure(folder, config, args.privilege, args.limit, args.workers, errors)
    numbers = summarise(found)
    content = {
        "set": shards.index_of(folder).set,
        "planner": args.planner,
        "privilege": args.privilege,
        "scenes": len(found),
        **numbers,
    }
    write_numbers(args.json, content, weights_sha256=cli_args.weights_of(config, [args.planner]))
    if args.card:
        write_on_card(Path(config.model.file).parent / CARD, folder.resolve().name, {**content, **provenance()})
    console.print(_table(f"{args.planner} ({args.privilege}), set '{content['set']}', {len(found)} scenes", numbers))
    console.print(_parts_table(numbers))
    if numbers["paired_commands"] is not None:
        paired = numbers["paired_commands"]
        low, high = paired["left_less_right_m_95"]
        console.print(
            f"paired commands, {paired['scenes']} scenes that turn, without a route: left less right "
            f"{paired['left_less_right_m']:.2f} m ({low:.2f} .. {high:.2f}) at 4 s; follows "
            f"in {paired['follows']:.0f} %"
        )


def measure(
    folder: Path, config: Config, privilege_name: str, limit: int | None, workers: Workers, errors: Console
) -> list[SceneResult]:
    """The results of the scenes of a set, in its order. Raises SetError."""
    tasks = open_loop.shard_tasks(shards.index_of(folder), None, limit)
    work = partial(_plan_shard, folder, config, privilege_name)
    return plan_shards(folder, tasks, work, workers, errors)


def _plan_shard(
    folder: Path, config: Config, privilege_name: str, task: tuple[ShardNote, int], report: Callable[[Any], None]
) -> list[SceneResult]:
    note, limit = task
    damages: list[str] = []
    images = config.planner not in CAMERA_FREE
    scenes = shards.read_shard(folder, note, images=images, limit=limit, on_damage=damages.append)
    found = [plan_scene(scene, other, config, privilege_name) for scene, other in with_next(scenes)]
    if damages:
        raise SetError(damages[0])
    return found


def with_next(scenes: Iterator[DrivingScene]) -> Iterator[tuple[DrivingScene, DrivingScene]]:
    """Each scene with the one after it, the last with the first; a single scene with itself."""
    kept = iter(scenes)
    first = next(kept, None)
    if first is None:
        return
    last = first
    for scene, after in pairwise(chain([first], kept)):
        yield scene, after
        last = after
    yield last, first


def plan_scene(scene: DrivingScene, other: DrivingScene, config: Config, privilege_name: str) -> SceneResult:
    """All variants of one scene; `other` lends its images."""
    vectors = config.planner in VECTOR_PLANNERS
    observation = privilege.observe(scene, privilege_name, with_vectors=vectors)
    plans = {
        name: plan_of(each, config)
        for name, each in variants(observation, other.observation(), privilege_name, vectors).items()
    }
    rows = driving_scores.score_plans(scene.scored(vehicle=config.vehicle), plans, config.scoring)
    pdms = {
        name: row[driving_scores.MEASURES.index("pdms")] if scene.has_objects else float("nan")
        for name, row in rows.items()
    }
    distances = {name: displacement.distances(plan, scene.expert) for name, plan in plans.items()}
    paired = None
    if observation.command in TURNS:
        unrouted = without_route(observation)
        left, right = (float(plan_of(with_command(unrouted, turn), config)[-1, 1]) for turn in TURNS)
        paired = left, right
    ends = {name: plan[-1, :2] for name, plan in plans.items()}
    return SceneResult(pdms, ends, paired, distances, scene.family, str(scene.notes.get("place", "")))


def plan_of(observation: Observation, config: Config) -> Array:
    """(8, 3) poses of the plan at 0.5 .. 4 s."""
    context = PlannerContext(config, cli_args.network_for(config, config.planner, random_weights=False))
    plan = driving_scores.plan_once(LEARNED[config.planner], observation, context)
    return np.asarray(driving_scores.plan_waypoints(plan)[0])


def variants(
    observation: Observation, other: Observation, privilege_name: str, vectors: bool
) -> dict[str, Observation]:
    """The observations of a scene by the name of the variant. A planner without cameras has none of images."""
    found = {ALL: observation}
    if observation.cameras and other.cameras:
        images = [
            replace(frame, pixels=lent.pixels) for frame, lent in zip(observation.cameras, other.cameras, strict=True)
        ]
        found["other images"] = replace(observation, cameras=tuple(images))
        black = [replace(frame, pixels=np.zeros_like(frame.pixels)) for frame in observation.cameras]
        found["black images"] = replace(observation, cameras=tuple(black))
    if privilege_name != "words" and not vectors:  # a planner on lanes has no plan without a route
        found["no route"] = without_route(observation)
    if observation.cameras:
        found["no words"] = replace(observation, command=Command.FOLLOW, instruction="")
    if privilege_name in OBJECTS_KNOWN:
        found["no objects"] = replace(observation, agents=None, history=None, drivable=None)
    return found


def without_route(observation: Observation) -> Observation:
    return replace(observation, route=np.zeros((0, 3)), route_lanes=None, route_limits_mps=None)


def with_command(observation: Observation, turn: Command) -> Observation:
    """An observation that turns left or right, with `turn` in command and instruction."""
    return observation if turn is observation.command else mirror_words(observation)


def summarise(found: list[SceneResult]) -> dict[str, Any]:
    """Rows by variant, tag and place in percent and metres, and the paired commands; None where no scene turns, and
    without PDMS."""
    places = Counter(scene.place for scene in found if scene.place)
    parts = {
        "families": {tag: part_of([s for s in found if s.tag == tag]) for tag in sorted({s.tag for s in found})},
        "places": {p: part_of([s for s in found if s.place == p]) for p, _ in places.most_common(PLACES_MAX)},
    }
    rows = {}
    scored = [scene for scene in found if np.isfinite(scene.pdms[ALL])]
    whole = np.array([scene.pdms[ALL] for scene in scored])
    for name in found[0].pdms:
        pdms = np.array([scene.pdms[name] for scene in scored])
        moved_m = np.array([np.hypot(*(scene.ends[name] - scene.ends[ALL])) for scene in found])
        rows[name] = {
            "pdms": round(100.0 * float(pdms.mean()), 3) if scored else None,
            "difference": round(100.0 * float((pdms - whole).mean()), 3) if scored else None,
            "difference_95": open_loop.bootstrap_interval(pdms - whole) if scored else None,
            "displacement": displacement.summarise(np.array([scene.distances[name] for scene in found])),
            "moved_m": round(float(moved_m.mean()), 3),
        }
    paired = np.array([scene.paired for scene in found if scene.paired is not None])
    if not len(paired):
        return {"variants": rows, **parts, "paired_commands": None}
    apart_m = paired[:, 0] - paired[:, 1]
    interval = [round(end / 100.0, 3) for end in open_loop.bootstrap_interval(apart_m)]
    return {
        "variants": rows,
        **parts,
        "paired_commands": {
            "scenes": len(paired),
            "left_less_right_m": round(float(apart_m.mean()), 3),
            "left_less_right_m_95": interval,
            "follows": round(100.0 * float((apart_m >= FOLLOWS_M).mean()), 1),
        },
    }


def part_of(found: list[SceneResult]) -> dict[str, Any]:
    """PDMS and distance to the driven path of some scenes, with all inputs."""
    pdms = np.array([scene.pdms[ALL] for scene in found if np.isfinite(scene.pdms[ALL])])
    return {
        "scenes": len(found),
        "pdms": round(100.0 * float(pdms.mean()), 3) if len(pdms) else None,
        "pdms_95": open_loop.bootstrap_interval(pdms) if len(pdms) else None,
        "displacement": displacement.summarise(np.array([scene.distances[ALL] for scene in found])),
    }


def write_on_card(path: Path, name: str, content: dict[str, Any]) -> None:
    """Adds the numbers to a card of weights, under `evaluations` and a name. Raises ConfigError for a file that is no
    card, OSError."""
    try:
        card = read_json(path)
        if not isinstance(card, dict) or "sha256" not in card:
            raise DocumentError("is no card of weights")
    except DocumentError as fault:
        raise ConfigError(f"{path} {fault}: train or export again") from None
    card["evaluations"] = {**card.get("evaluations", {}), name: content}
    write_atomic(path, (json.dumps(card, indent=2) + "\n").encode())


def _table(title: str, numbers: dict[str, Any]) -> Table:
    cells = [
        (
            name,
            "-" if row["pdms"] is None else f"{row['pdms']:.1f}",
            ""
            if name == ALL or row["pdms"] is None
            else open_loop.format_difference(row["difference"], row["difference_95"]),
            f"{row['displacement']['ade_m']['3']:.2f}",
            "" if name == ALL else f"{row['moved_m']:.2f}",
        )
        for name, row in numbers["variants"].items()
    ]
    return make_table(("inputs", "PDMS", "less all inputs (95 %)", "ADE 3 s, m", "plan moves at 4 s, m"), cells, title)


def _parts_table(numbers: dict[str, Any]) -> Table:
    def cell(measure: dict[str, Any], name: str) -> str:
        if measure[name]["4"] is None:
            return "-"
        low, high = measure[f"{name}_95"]["4"]
        return f"{measure[name]['4']:.2f} ({low:.2f} .. {high:.2f})"

    cells = []
    for kind, name in (("families", "scenario"), ("places", "place")):
        for part, row in numbers[kind].items():
            apart = row["displacement"]
            low, high = apart["miss_rate_95"]
            missed = f"{apart['miss_rate']:.0f} ({low:.0f} .. {high:.0f})"
            cells.append((name, part, str(row["scenes"]), cell(apart, "ade_m"), cell(apart, "fde_m"), missed))
    headings = ("", "with all inputs", "scenes", "ADE 4 s, m (95 %)", "FDE 4 s, m (95 %)", "missed, % (95 %)")
    return make_table(headings, cells, "by scenario and place", texts=2)
