"""Can a network's features predict the gain of an edit?  `python -m reflectdrive_ros.training.edit_gain_probe`

    python -m reflectdrive_ros.training.edit_gain_probe --model models/reflectdrive2_small --train sets/train

The plan of the most probable goal is changed by pairs of smooth offsets (`plan_changes`), and all plans are scored in
the recorded future. Printed for each change (pace, delay, lateral offset, bulge), in percent of the score per standard
deviation: the standard deviation over scenes of the slope, which is what the better direction gains, and the share of
its variance that ridge regression predicts from the features of the finished plan, cross-validated, with the best of
RIDGE on the same folds. No setting (--setting) changes the samples; no JSON file (--json) is written.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from rich.console import Console

from ..core.domain import Array
from ..data.cache import CachedSet, build_cache
from ..infra import arguments
from ..infra.command import command, make_table, run_program
from ..infra.progress import track_progress
from ..model.token.net import TokenNet
from ..model.token.ops import GoalRules
from ..planning.plan_changes import PlanModes, change_actions, offsets_of, sample_modes
from . import train_state
from .data import Source, VectorRows, shape_of, with_vectors
from .greedy import decode_greedily
from .losses import prompt_keys_values
from .rewards import PlanScorer, RewardPool
from .settings import RlTrainConfig
from .vector_data import build_vector_set

CHANGE_NAMES = ("pace", "delay", "offset", "bulge")
FOLDS = 5  # of the cross-validation
RIDGE = (1.0, 10.0, 1e2, 1e3, 1e4, 1e5)  # penalties
PAIRS = 24  # of changed plans per scene
CHANGES = PlanModes(pace_m=0.7, delay_m=0.35, offset_m=0.2, bulge_m=0.15)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", type=Path, required=True, metavar="DIR", help="run, or folder of weights")
    parser.add_argument("--train", type=Path, required=True, metavar="DIR", help="scene set")
    parser.add_argument("--limit", type=arguments.positive_int(10**6), default=2000, metavar="N", help="scenes")
    parser.add_argument("--workers", type=arguments.process_count(), default=2, metavar="N", help="scoring processes")


@command()
def run(args: argparse.Namespace, console: Console, errors: Console) -> None:
    """Exit code 0; 2 with one sentence on stderr for a set or weights that cannot be used."""
    net = train_state.load_network(args.model).requires_grad_(False)
    scenes = build_cache(args.train, shape_of(net.config), args.workers, errors.print, lambda done, total: None)
    vectors = None
    if net.config.scene is not None:
        spec = net.config.scene.spec
        of_set = build_vector_set(args.train, spec, args.workers, errors.print, lambda done, total: None)
        scenes, vectors = with_vectors(scenes, of_set, seed=0)
        vectors = replace(vectors, map_dropout=0.0)
    with RewardPool(args.train, scenes, PlanScorer(net.config.layout), args.workers) as pool:
        features, slopes = collect(net, scenes, pool, min(args.limit, len(scenes)), errors, vectors)
    spreads, shares = 100.0 * slopes.std(0), predicted_shares(features, slopes)
    rows = [
        (n, f"{std:.2f}", f"{100 * share:.1f} %") for n, std, share in zip(CHANGE_NAMES, spreads, shares, strict=True)
    ]
    console.print(make_table(("change", "slope, std over scenes", "predicted"), rows, f"{len(slopes)} scenes"))


@torch.no_grad()
def collect(
    net: TokenNet,
    scenes: CachedSet,
    pool: RewardPool,
    count: int,
    console: Console,
    vectors: VectorRows | None = None,
) -> tuple[Array, Array]:
    """Features (N, F) of the finished plans of N = `count` scenes, and slopes (N, 4) of their scores by change."""
    base, layout = RlTrainConfig(), net.config.layout
    data = replace(base.data, masked_actions=1, perturbed_actions=0, flip_prob=0.0, route_dropout=0.0)
    source, parts = Source(scenes, data, layout, seed=0, color_jitter=False, vectors=vectors), []
    for step in track_progress(range(-(-count // data.batch)), "scenes, in batches", console):
        batch = source.batch(step)
        plans = decode_greedily(net, batch, GoalRules(), 6).plans
        modes = sample_modes(len(plans), PAIRS, np.random.default_rng([0, step]))  # (B, K, 4)
        offsets = offsets_of(modes, layout.points, CHANGES)
        up, down = (change_actions(plans[:, 0].numpy(), each, layout) for each in (offsets, offsets.opposite))
        scores = pool.score(*batch.scenes, np.concatenate([up, down], axis=1))[..., 0]
        gains = 0.5 * (scores[:, :PAIRS] - scores[:, PAIRS:])  # (B, K)
        hidden = net.hidden(plans[:, :1], prompt_keys_values(net, batch, True))[:, 0]
        half = hidden.shape[1] // 2
        features = torch.cat([hidden[:, :half].mean(1), hidden[:, half:].mean(1), hidden[:, -2], hidden[:, -1]], 1)
        parts.append((features.numpy(), np.einsum("nk,nkm->nm", gains, modes) / PAIRS))
    features_of_all, slopes = (np.concatenate(each)[:count] for each in zip(*parts, strict=True))
    return features_of_all, slopes


def predicted_shares(features: Array, slopes: Array) -> Array:
    """(M,) shares of the variance of slopes (N, M) that ridge regression on features (N, F) predicts, each scene by the
    other folds; at least 0."""
    x, fold = (features - features.mean(0)) / (features.std(0) + 1e-6), np.arange(len(features)) % FOLDS
    errors = np.zeros((len(RIDGE), slopes.shape[1]))
    for row, penalty in enumerate(RIDGE):
        for test in (fold == index for index in range(FOLDS)):
            a, mean = x[~test], slopes[~test].mean(0)
            weights = np.linalg.solve(a.T @ a + penalty * np.eye(a.shape[1]), a.T @ (slopes[~test] - mean))
            errors[row] += ((x[test] @ weights + mean - slopes[test]) ** 2).sum(0)
    return np.asarray(np.maximum(1.0 - errors.min(0) / (len(slopes) * slopes.var(0)), 0.0))


if __name__ == "__main__":
    raise SystemExit(run_program(__doc__, add_arguments, run))
