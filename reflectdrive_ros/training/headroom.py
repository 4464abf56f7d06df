"""`reflectdrive bench headroom --model DIR --train SET`: what edits of a planner's plans could gain, and how much of it
its network's features tell.

The plan of the most probable goal is changed by pairs of smooth offsets (`plan_changes`), and all plans are scored in
the recorded future. For each of four changes (pace, delay, lateral offset, bulge) the table has

- the curvature: the score that a change of one standard deviation costs whichever way it goes;
- the slope: what the better direction gains per standard deviation of the change, as standard deviation over scenes;
- the share of the slopes' variance that is predicted from the network's features of the finished plan by ridge
  regression, cross-validated, with the best of RIDGE on the same folds: at most what the features tell of which
  direction is better. The rest is what they lack, of the present too: map and agents tell much more.

With slope s and curvature c a change z gains s z - c z^2. Within reach is the gain of the change that is best for all
scenes alike, by the mean slope, and what the predictions add to it by choosing for each scene.

No setting (--setting) changes the samples: rewards are those of the defaults of `train rl`.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from rich.console import Console

from ..core.domain import Array
from ..data.cache import CachedSet, build_cache
from ..infra import arguments
from ..infra.command import HelpFormatter, command, make_table
from ..infra.progress import track_progress
from ..infra.provenance import write_numbers
from ..model.token.net import TokenNet
from ..model.token.ops import GoalRules
from . import plan_policy, train_state
from .data import Source, shape_of
from .losses import prompt_keys_values
from .plan_changes import PlanModes, change_actions, drawn_modes, offsets_of
from .rewards import PlanScorer, RewardPool
from .rollouts import draft_rounds_of
from .settings import RlConfig, RlTrainConfig

MODES = ("pace", "delay", "offset", "bulge")
FOLDS = 5  # of the cross-validation
RIDGE = (1.0, 10.0, 1e2, 1e3, 1e4, 1e5)  # penalties, the best of which is taken
PAIRS = 24  # per scene
CHANGES = PlanModes(pace_m=0.7, delay_m=0.35, offset_m=0.2, bulge_m=0.15)


@dataclass(frozen=True, eq=False)
class Samples:
    """N scenes with K pairs of changed plans each; scores are 0 to 1."""

    features: Array  # (N, F) of the network for the finished plan
    drawn: Array  # (N, K, 4) standard normal numbers, one per change
    score: Array  # (N,) of the finished plan
    drafted: Array  # (N,) of the same before its edits
    goals: Array  # (N, G) of the finished plans to all goals
    up: Array  # (N, K) changed
    down: Array  # (N, K) changed by the opposite


@dataclass(frozen=True)
class Headroom:
    """Of one change; scores in percent."""

    curvature: float
    slope: float
    predicted: float  # share of the slopes' variance
    alike: float  # gain of the best change that is the same for all scenes
    by_scene: float  # what predicted slopes add


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.formatter_class = HelpFormatter
    parser.add_argument("--model", type=Path, required=True, metavar="DIR", help="run, or folder of weights")
    parser.add_argument("--train", type=Path, required=True, metavar="DIR", help="scene set")
    parser.add_argument("--limit", type=arguments.positive_int(10**6), default=2000, metavar="N", help="scenes")
    parser.add_argument("--workers", type=arguments.process_count(), default=2, metavar="N", help="scoring processes")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the numbers as JSON")


@command()
def run(args: argparse.Namespace, console: Console, errors: Console) -> None:
    """Exit code 0; 2 with one sentence on stderr for a set or weights that cannot be used."""
    net = train_state.load_network(args.model).requires_grad_(False)
    config = RlTrainConfig()
    scenes = build_cache(args.train, shape_of(net.config), args.workers, errors.print, lambda done, total: None)
    with RewardPool(args.train, scenes, PlanScorer(net.config.layout), args.workers) as pool:
        found = collect(
            net,
            scenes,
            pool,
            min(args.limit, len(scenes)),
            lambda steps: track_progress(
                steps, "scenes, in batches", errors, -(-min(args.limit, len(scenes)) // config.data.batch)
            ),
        )
    means = {
        "scenes": len(found.score),
        "drafted": 100.0 * float(found.drafted.mean()),
        "plan": 100.0 * float(found.score.mean()),
        "changed": 100.0 * float(np.concatenate([found.up, found.down], 1).mean()),
        "best_of_changes": 100.0 * float(np.maximum(found.score, np.maximum(found.up, found.down).max(1)).mean()),
        "best_of_goals": 100.0 * float(found.goals.max(1).mean()),
    }
    of_plans = [(name, f"{value:.1f}") for name, value in means.items() if name != "scenes"]
    rows = dict(zip(MODES, headroom(found), strict=True))
    numbers = {**means, "changes": {name: vars(row) for name, row in rows.items()}}
    write_numbers(args.json, numbers, weights_sha256=train_state.card_of(args.model)["sha256"])
    console.print(make_table(("plans", "score"), of_plans, f"{len(found.score)} scenes"))
    table = [
        (
            name,
            f"{row.curvature:.2f}",
            f"{row.slope:.2f}",
            f"{100 * row.predicted:.1f} %",
            f"{row.alike:.2f}",
            f"{row.by_scene:.2f}",
        )
        for name, row in rows.items()
    ]
    head = ("change", "cost of one std", "slope, std over scenes", "predicted", "gain, alike", "gain, by scene")
    console.print(make_table(head, table, "Smooth changes of the plan"))


@torch.no_grad()
def collect(
    net: TokenNet, scenes: CachedSet, pool: RewardPool, count: int, track: Callable[[range], Iterable[int]]
) -> Samples:
    """Samples of the first `count` scenes."""
    base, layout = RlTrainConfig(), net.config.layout
    data = replace(base.data, masked_actions=1, perturbed_actions=0, flip_prob=0.0, route_dropout=0.0)
    source = Source(scenes, data, layout, seed=0)
    parts = []
    for step in track(range(-(-count // data.batch))):
        batch = source.batch(step)
        greedy = plan_policy.decode_greedily(net, batch, GoalRules(), RlConfig(goals=6))
        plan = greedy.plans[:, 0].numpy()
        drawn = drawn_modes(len(plan), PAIRS, np.random.default_rng([0, step]))
        offsets = offsets_of(drawn, layout.points, CHANGES)
        changed = [change_actions(plan, each, layout) for each in (offsets, offsets.opposite)]
        drafted = greedy.states[:, draft_rounds_of(layout), :1].numpy()
        goals = greedy.plans.numpy()
        scores = pool.score(*batch.scenes, np.concatenate([drafted, goals, *changed], axis=1))[..., 0]
        of_goals, end = scores[:, 1 : 1 + goals.shape[1]], 1 + goals.shape[1] + PAIRS
        hidden = net.hidden(greedy.plans[:, :1], prompt_keys_values(net, batch, True))[:, 0]
        half = hidden.shape[1] // 2
        features = torch.cat([hidden[:, :half].mean(1), hidden[:, half:].mean(1), hidden[:, -2], hidden[:, -1]], 1)
        up, down = scores[:, 1 + goals.shape[1] : end], scores[:, end:]
        parts.append((features.numpy(), drawn, of_goals[:, 0], scores[:, 0], of_goals, up, down))
    return Samples(*(np.concatenate(each)[:count] for each in zip(*parts, strict=True)))


def headroom(found: Samples) -> list[Headroom]:
    """One for each of MODES."""
    bend = 0.5 * (found.up + found.down) - found.score[:, None]
    squares = found.drawn.reshape(-1, found.drawn.shape[-1]) ** 2
    curvature = -np.linalg.lstsq(squares, bend.reshape(-1), rcond=None)[0]
    slopes = np.einsum("nk,nkm->nm", 0.5 * (found.up - found.down), found.drawn) / found.drawn.shape[1]
    predicted = np.stack([cross_validated(found.features, slope) for slope in slopes.T], axis=1)
    variance = slopes.var(0)
    known = np.maximum(1.0 - ((slopes - predicted) ** 2).mean(0) / variance, 0.0)
    scale = 100.0 / (4.0 * np.maximum(curvature, 1e-6))
    alike, by_scene = scale * slopes.mean(0) ** 2, scale * known * variance
    columns = 100.0 * curvature, 100.0 * np.sqrt(variance), known, alike, by_scene
    return [Headroom(*map(float, row)) for row in zip(*columns, strict=True)]


def cross_validated(features: Array, target: Array) -> Array:
    """(N,) predictions of target (N,) by ridge regression on features (N, F), each by the other folds."""
    x = (features - features.mean(0)) / (features.std(0) + 1e-6)
    fold = np.arange(len(x)) % FOLDS
    best, least = np.full(len(x), target.mean()), float(np.var(target))
    for penalty in RIDGE:
        found = np.empty(len(x))
        for held_out in range(FOLDS):
            a, y = x[fold != held_out], target[fold != held_out]
            weights = np.linalg.solve(a.T @ a + penalty * np.eye(a.shape[1]), a.T @ (y - y.mean()))
            found[fold == held_out] = x[fold == held_out] @ weights + y.mean()
        error = float(((found - target) ** 2).mean())
        if error < least:
            best, least = found, error
    return best
