"""`reflectdrive bench repair --model FILE --scenes test`: effects of goals, repair, its iterations and its search
radius.

On the same scenes: the paper's ablation (neither, several goals, repair, both) with the agents' present velocities, and
with their true future (the paper's dagger row); and the plan from images alone. Its curves: the score over iterations
and over the search radius. And the cost of repair without the network: processor time of a repaired step minus that of
the same step without repair, by iterations.

`unsafe` are plans that leave the drivable space or hit an agent at constant velocity within the guard's horizon, by the
guard's rule; `avoidable` are those for which the expert's plan does not; `locally repairable` are those for which some
feasible plan that differs in one pair of tokens, within the search radius, does not.

Exported graphs, the default of ReflectDrive-2 unless --model names weights, give the times of the vehicle's backend.
ReflectDrive uses other goals than are built into the shipped graphs, and needs weights.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from rich.console import Console
from rich.table import Table

from ..core import kinematics
from ..core.config import Config
from ..core.domain import PLAN_DT_S, Array, Observation, Plan, Verdict
from ..core.tokens import TokenLayout
from ..data import shards
from ..data.contact_sheet import draw_bev
from ..data.scene import DrivingScene
from ..data.shards import SetError
from ..evaluation import driving_scores, open_loop
from ..evaluation.driving_scores import MEASURES
from ..evaluation.privilege import observe
from ..features.images import ModelInputs
from ..infra.command import command, make_table
from ..infra.progress import track_progress
from ..infra.provenance import write_numbers
from ..planning import decoding_config, get_planner, guard
from ..planning.assessment import planned_safety
from ..planning.planner import Network, NetworkWrapper, PlannerContext, PlannerState, Prefilled, draft_sequentially
from ..planning.postprocess.waypoints import postprocess, trajectories
from ..planning.repair import SEARCH_RADIUS_BINS
from ..runtime import cli_args
from ..runtime.network import load_network, token_network
from ..scoring.frenet import poses_on_road
from ..scoring.safety import SafetyContext, unsafe_reason
from ..scoring.scorer import WAYPOINT_TIMES_S
from ..scoring.search import neighbourhood

PLANNERS = ("reflectdrive", "reflectdrive2")
ITERATIONS = (0, 1, 2, 3, 5, 10)
IMAGES_MAX = 6
GUARD_CHECKS_MAX = 50  # plans near an unsafe one that the guard checks
BOTH, GOALS = "goals and repair", "goals"
RANDOM_WEIGHT_VARIANTS = ("route only", GOALS, "repair", BOTH)  # variants that are repeated with random weights


@dataclass(frozen=True)
class Row:
    """One variant in one scene."""

    measures: tuple[float, ...]  # MEASURES, 0 to 1
    repairs: int
    unsafe: bool
    avoidable: bool
    locally_repairable: bool
    own_ms: float  # processor time without the network
    whole_ms: float  # with it
    wall_ms: float  # wall time of the step


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--planner", choices=PLANNERS, default=PLANNERS[0], help="whose plans are repaired")
    cli_args.add_bench_arguments(parser)
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the numbers as JSON")
    cli_args.add_random_weights_argument(parser)
    parser.add_argument(
        "--image", type=Path, metavar="FILE", help=f"draw {IMAGES_MAX} repaired plans, before and after"
    )


@command()
def run(args: argparse.Namespace, console: Console, errors: Console) -> None:
    """Exit code 0; 2 with one sentence on stderr if scenes or model are missing."""
    config = cli_args.configuration(args)
    network = token_network(load_network(config.model, decoding_config(config)), config.model.file, "bench repair")
    folder = open_loop.resolve_scene_set(args.scenes, args.workers, errors, args.limit)
    set_name = shards.index_of(folder).set
    untrained = None
    if args.random_weights:
        random_weights = cli_args.network_for(config, args.planner, random_weights=True)
        untrained = token_network(random_weights, config.model.file, "bench repair")
    rows, images = measure(folder, config, network, args.limit, errors, untrained)
    if args.image is not None and images:
        cv2.imwrite(str(args.image), cv2.cvtColor(np.concatenate(images), cv2.COLOR_RGB2BGR))
    numbers, costs = {name: summary(some, rows[BOTH]) for name, some in rows.items()}, cost(rows)
    about = {"set": set_name, "planner": args.planner, "model_sha256": config.model.sha256}
    content = {**about, "threads": config.model.threads, "scenes": len(rows[BOTH]), "rows": numbers, **costs}
    write_numbers(args.json, content, weights_sha256=cli_args.weights_of(config, [args.planner]))
    console.print(_table(f"{args.planner}, set '{set_name}', {len(rows[BOTH])} scenes", numbers))
    costs_shown = ", ".join(f"{name} {'-' if value is None else f'{value:.1f}'}" for name, value in costs.items())
    console.print(f"processor time, and by the clock: {costs_shown}")


def variants(config: Config) -> dict[str, tuple[str, Config]]:
    """Variants by name: a privilege and a configuration."""

    def changed(goals: bool, repair: bool, **repairing: int) -> Config:
        rd, rd2 = config.reflectdrive, config.reflectdrive2
        return replace(
            config,
            reflectdrive=replace(rd, goals=rd.goals if goals else 1, repair=repair),
            reflectdrive2=replace(rd2, score_goals=goals, repair=repair),
            repair=replace(config.repair, **repairing),
        )

    table = {"without both": (False, False), GOALS: (True, False), "repair": (False, True), BOTH: (True, True)}
    found = {"route only": ("route", config)}
    found |= {name: ("objects", changed(*parts)) for name, parts in table.items()}
    found |= {f"{name}, futures known": ("logged", changed(*parts)) for name, parts in table.items()}
    for iterations in ITERATIONS:  # all of them, also if the first had no effect
        going_on = changed(True, True, iterations=iterations, max_stalled_iterations=max(ITERATIONS))
        found[f"iterations {iterations}"] = ("objects", going_on)
    return found


class CountingNetwork(NetworkWrapper):
    """A network that measures its processor time, and encodes each scene once."""

    def __init__(self, network: Network) -> None:
        super().__init__(network)
        self._read: tuple[bytes, Prefilled, float, float] | None = None
        self.seconds = 0.0  # processor time in all; a cached scene is charged once more
        self.saved = 0.0  # the cached part of it
        self.wall_saved = 0.0  # by the clock on the wall

    def prefill_goal(self, inputs: ModelInputs) -> Prefilled:
        key = b"".join(part.tobytes() for part in inputs.arrays.values())
        if self._read is None or self._read[0] != key:
            begun, wall_begun = time.process_time(), time.perf_counter()
            known = self._network.prefill_goal(inputs)
            self._read = key, known, time.process_time() - begun, time.perf_counter() - wall_begun
        else:
            self.saved += self._read[2]
            self.wall_saved += self._read[3]
        self.seconds += self._read[2]
        return self._read[1]

    def prefill(self, inputs: ModelInputs) -> Any:
        return self.prefill_goal(inputs).context

    def step(self, context: Any, actions: Array, limit: int, edit: bool) -> tuple[Array, Array]:
        begun = time.process_time()
        made = self._network.step(context, actions, limit, edit)
        self.seconds += time.process_time() - begun
        return made

    def draft(self, context: Any, actions: Array, limits: Sequence[int]) -> tuple[Array, Array]:
        return draft_sequentially(self, context, actions, limits)


def measure(
    folder: Path, config: Config, network: Network, limit: int, errors: Console, untrained: Network | None = None
) -> tuple[dict[str, list[Row]], list[Array]]:
    """Rows of the same scenes for every variant, and drawings of the first repaired plan of each family.

    `untrained` is a network of random weights for the variants of RANDOM_WEIGHT_VARIANTS.

    Raises SetError if there is no scene.
    """
    ways, counting = variants(config), CountingNetwork(network)
    random_ways = {name: ways[name] for name in RANDOM_WEIGHT_VARIANTS} if untrained is not None else {}
    random_counting = None if untrained is None else CountingNetwork(untrained)
    rows: dict[str, list[Row]] = {name: [] for name in (*ways, *map(with_random_weights, random_ways))}
    drawn: dict[str, Array] = {}
    scenes = shards.read(folder, images=True, limit=limit, on_damage=errors.print)
    for scene in track_progress(scenes, "planning", errors, limit):
        found, plans = plan_variants(scene, ways, counting)
        if random_counting is not None:
            at_random, _ = plan_variants(scene, random_ways, random_counting)
            found |= {with_random_weights(name): row for name, row in at_random.items()}
        for name, row in found.items():
            rows[name].append(row)
        if found[BOTH].repairs and len(drawn) < IMAGES_MAX:
            drawn.setdefault(scene.family, draw_before_after(scene, plans[GOALS], plans[BOTH]))
    if not rows[BOTH]:
        raise SetError(f"{folder} holds no scene to plan for")
    return rows, list(drawn.values())


def with_random_weights(name: str) -> str:
    return f"{name}, random weights"


def draw_before_after(scene: DrivingScene, *plans: Array) -> Array:
    """(H, W, 3) uint8 RGB: a scene from above with each of some plans (8, 3) in the place of the expert's."""
    views = [draw_bev(replace(scene, expert=plan)) for plan in plans]
    return np.asarray(cv2.copyMakeBorder(np.concatenate(views, axis=1), 0, 4, 0, 0, cv2.BORDER_CONSTANT))


def plan_variants(
    scene: DrivingScene, ways: Mapping[str, tuple[str, Config]], network: CountingNetwork
) -> tuple[dict[str, Row], dict[str, Array]]:
    """The row of each variant in one scene, and its plan (8, 3)."""
    seen = {name: observe(scene, name) for name in dict.fromkeys(name for name, _ in ways.values())}
    present, config = seen["objects"], ways[BOTH][1]
    (expert_way,) = trajectories(scene.expert[None, :, :2], present.ego.speed_mps, PLAN_DT_S)
    expert = Plan(present.stamp_ns, present.ego.map_from_ego, expert_way)
    made = dict[tuple[str, Config], tuple[Plan, float, float, float]]()  # two names may have the same settings
    for way in ways.values():
        if way not in made:
            made[way] = _plan_from_cold(seen[way[0]], way[1], network)
    plans = {name: made[way][0] for name, way in ways.items()}
    waypoints = {name: kinematics.resample(plan.trajectory, WAYPOINT_TIMES_S) for name, plan in plans.items()}
    scores = driving_scores.score_plans(scene.scored(vehicle=config.vehicle), waypoints, config.scoring)
    known = SafetyContext(present, config)
    expert_safe = not unsafe_reason(expert.trajectory, known)
    rows = {}
    for name, plan in plans.items():
        unsafe = bool(unsafe_reason(plan.trajectory, known))
        repairs = plan.check.repairs if plan.check else 0
        near = unsafe and locally_repairable(plan, known, network.layout)
        rows[name] = Row(tuple(scores[name]), repairs, unsafe, unsafe and expert_safe, near, *made[ways[name]][1:])
    return rows, waypoints


def locally_repairable(plan: Plan, known: SafetyContext, layout: TokenLayout) -> bool:
    """Whether the guard accepts some plan that differs from this one in a pair of ids within the repair's search
    radius.

    The guard checks the safest of the 8 times 221 plans.
    """
    if plan.tokens is None:
        return False
    near = np.concatenate(
        [neighbourhood(plan.tokens, place, layout, SEARCH_RADIUS_BINS)[1] for place in range(layout.points)]
    )
    ego = known.observation.ego
    points = postprocess(layout.decode(near), ego, layout.waypoint_noise_m, known.road)
    safety = planned_safety(known, poses_on_road(points, known.road))
    safest = np.lexsort((safety.excess, -safety.first_unsafe))[:GUARD_CHECKS_MAX]
    made = trajectories(points[safest], ego.speed_mps, PLAN_DT_S, known.road)
    others = (replace(plan, trajectory=one) for one in made)
    return any(guard.check(other, known, 0.0).verdict is Verdict.OK for other in others)


def _plan_from_cold(seen: Observation, config: Config, network: CountingNetwork) -> tuple[Plan, float, float, float]:
    """A plan from cold, and milliseconds: processor time without and with the network, and by the clock on the wall."""
    network.seconds = network.saved = network.wall_saved = 0.0
    begun, wall_begun = time.process_time(), time.perf_counter()
    _, plan = get_planner(config)(PlannerState(), seen, PlannerContext(config, network))
    whole = time.process_time() - begun + network.saved
    wall = time.perf_counter() - wall_begun + network.wall_saved
    return plan, 1e3 * (whole - network.seconds), 1e3 * whole, 1e3 * wall


def summary(rows: list[Row], configured: list[Row]) -> dict[str, Any]:
    """Means in percent, iterations per scene, shares in percent; PDMS less that of the configured variant, per
    scene.
    """
    means = 100.0 * np.array([row.measures for row in rows]).mean(axis=0)
    repaired = [row.repairs for row in rows]
    difference = np.array([row.measures[0] for row in rows]) - np.array([row.measures[0] for row in configured])
    return {
        **{name: round(float(mean), 3) for name, mean in zip(MEASURES, means, strict=True)},
        "pdms_95": open_loop.bootstrap_interval(np.array([row.measures[0] for row in rows])),
        "difference": round(100.0 * float(difference.mean()), 3),
        "difference_95": open_loop.bootstrap_interval(difference),
        "iterations": round(float(np.mean(repaired)), 3),
        "repaired": round(100.0 * float(np.mean([one > 0 for one in repaired])), 3),
        "unsafe": round(100.0 * float(np.mean([row.unsafe for row in rows])), 3),
        "avoidable": round(100.0 * float(np.mean([row.avoidable for row in rows])), 3),
        "locally_repairable": round(100.0 * float(np.mean([row.locally_repairable for row in rows])), 3),
    }


def cost(rows: Mapping[str, list[Row]]) -> dict[str, float | None]:
    """Milliseconds of processor time, and of a repaired step by the clock; None where no plan was repaired."""
    pairs = list(zip(rows[BOTH], rows[GOALS], strict=True))
    an_iteration = [(one.own_ms - other.own_ms) / one.repairs for one, other in pairs if one.repairs]
    a_check = [one.own_ms - other.own_ms for one, other in pairs if not one.repairs]
    steps = [one.whole_ms for one, _ in pairs if one.repairs]
    waits = [one.wall_ms for one, _ in pairs if one.repairs]
    return {
        "iteration_ms_p50": _percentile(an_iteration, 50),
        "iteration_ms_p95": _percentile(an_iteration, 95),
        "check_ms_p50": _percentile(a_check, 50),
        "repaired_step_ms_p50": _percentile(steps, 50),
        "repaired_step_ms_p95": _percentile(steps, 95),
        "repaired_step_wall_ms_p50": _percentile(waits, 50),
        "repaired_step_wall_ms_p95": _percentile(waits, 95),
    }


def _percentile(values: list[float], percent: float) -> float | None:
    return round(float(np.percentile(values, percent)), 3) if values else None


def _table(title: str, numbers: Mapping[str, Mapping[str, Any]]) -> Table:
    cells = []
    columns = ("pdms", *open_loop.COLUMNS, "iterations", "unsafe", "avoidable", "locally_repairable")
    headings = ("PDMS", *open_loop.COLUMNS.values(), "iterations", "unsafe", "avoidable", "in reach")
    for name, row in numbers.items():
        scores = (f"{row[column]:.2f}" for column in columns)
        cells.append((name, *scores, open_loop.format_difference(row["difference"], row["difference_95"])))
    return make_table(("way of planning", *headings, "PDMS less configured"), cells, f"{title}; means in percent")
