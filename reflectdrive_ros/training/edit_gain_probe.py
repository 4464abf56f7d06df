"""Can a network's features predict the gain of an edit?  `python -m reflectdrive_ros.training.edit_gain_probe`

    python -m reflectdrive_ros.training.edit_gain_probe --model models/reflectdrive2_small --train sets/train

The plan of the most probable goal is changed by pairs of smooth offsets (`plan_changes`), and all plans are scored in
the recorded future. Printed for each change (pace, delay, lateral offset, bulge): the standard deviation over scenes of
the slope of the score, in percent of the score per standard deviation of the change, which is what the better direction
gains; the share of its variance that ridge regression predicts from the plan, the ego's motion and the route alone; and
the share with the network's features of the finished plan added. What images or the scene add is the difference. Shares
are cross-validated, with the best of RIDGE on the same folds, and have 95 % bootstrap intervals over scenes. No setting
(--setting) changes the samples; no JSON file (--json) is written.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

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
BOOTSTRAP_SAMPLES = 1000
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
        samples = collect(net, scenes, pool, min(args.limit, len(scenes)), errors, vectors)
    shares = [share_intervals(samples.slopes, predict_slopes(x, samples.slopes)) for x in samples.inputs_then_all]
    cells = [[f"{share:.1f} % ({low:.1f} .. {high:.1f})" for share, low, high in 100.0 * each] for each in shares]
    spreads = [f"{std:.2f}" for std in 100.0 * samples.slopes.std(0)]
    heads = ("change", "slope, std over scenes", "plan, ego, route (95 %)", "with features (95 %)")
    rows = list(zip(CHANGE_NAMES, spreads, *cells, strict=True))
    console.print(make_table(heads, rows, f"{len(samples.slopes)} scenes"))


class ProbeSamples(NamedTuple):
    """Plans of N scenes: what the scores of their changes are predicted from, and the slopes."""

    inputs: Array  # (N, I) waypoints, ego motion and route, which a network reads whatever its sensors are
    features: Array  # (N, F) of the network for the finished plan
    slopes: Array  # (N, 4) of the score by change, 0 to 1 per standard deviation of CHANGES

    @property
    def inputs_then_all(self) -> tuple[Array, Array]:
        """The inputs alone, and the inputs with the features."""
        return self.inputs, np.concatenate([self.inputs, self.features], axis=1)


@torch.no_grad()
def collect(
    net: TokenNet,
    scenes: CachedSet,
    pool: RewardPool,
    count: int,
    console: Console,
    vectors: VectorRows | None = None,
) -> ProbeSamples:
    """Samples of the first N = `count` scenes in the order of `Source`."""
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
        hidden = net.hidden(plans[:, :1], prompt_keys_values(net, batch))[:, 0]
        half = hidden.shape[1] // 2
        features = torch.cat([hidden[:, :half].mean(1), hidden[:, half:].mean(1), hidden[:, -2], hidden[:, -1]], 1)
        waypoints = layout.decode(plans[:, 0].numpy()).reshape(len(plans), -1)
        route = np.nan_to_num(scenes.route[batch.rows.numpy()])
        inputs = np.concatenate([waypoints, batch.ego.numpy(), route.reshape(len(plans), -1)], axis=1)
        parts.append((inputs, features.numpy(), np.einsum("nk,nkm->nm", gains, modes) / PAIRS))
    return ProbeSamples(*(np.concatenate(each)[:count] for each in zip(*parts, strict=True)))


def predict_slopes(features: Array, slopes: Array) -> Array:
    """(N, M) predictions of slopes (N, M) by ridge regression on features (N, F), each scene by the other folds."""
    x, fold = (features - features.mean(0)) / (features.std(0) + 1e-6), np.arange(len(features)) % FOLDS
    predictions = np.zeros((len(RIDGE), *slopes.shape))
    for row, penalty in enumerate(RIDGE):
        for test in (fold == index for index in range(FOLDS)):
            a, mean = x[~test], slopes[~test].mean(0)
            weights = np.linalg.solve(a.T @ a + penalty * np.eye(a.shape[1]), a.T @ (slopes[~test] - mean))
            predictions[row, test] = x[test] @ weights + mean
    best = ((predictions - slopes) ** 2).sum(1).argmin(0)
    return np.asarray(predictions[best, :, np.arange(slopes.shape[1])].T)


def share_intervals(slopes: Array, predictions: Array) -> Array:
    """(M, 3) share of the variance of slopes (N, M) that predictions (N, M) explain, and the ends of its interval;
    below 0 where they are worse than the mean."""
    count, generator = len(slopes), np.random.default_rng(0)
    rows = [np.arange(count), *generator.integers(0, count, (BOOTSTRAP_SAMPLES, count))]
    shares = [1.0 - ((predictions - slopes)[each] ** 2).mean(0) / slopes[each].var(0) for each in rows]
    return np.column_stack([shares[0], *np.percentile(shares[1:], (2.5, 97.5), axis=0)])


if __name__ == "__main__":
    raise SystemExit(run_program(__doc__, add_arguments, run))
