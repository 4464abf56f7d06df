"""What do a network's features tell of the scene and of the gain of an edit?

    python -m reflectdrive_ros.training.probe --model models/reflectdrive2_small --train sets/train

The plan of the most probable goal is changed by pairs of smooth offsets (`plan_changes`), and all plans are scored in
the recorded future. The slope of the score by each change (pace, delay, lateral offset, bulge) is what the better
direction gains. Heads (`probe_heads`) predict the slopes and the geometry of the scene (`scene_geometry`) from plan,
ego motion and route, and from these with features of the network; what images or the scene add is the difference. Lane
offset and heading are predicted without plan and route, because the route nearly is the lane. Printed, cross-validated
with 95 % intervals: explained shares of the slopes and mean absolute errors of the geometry.
No setting (--setting) changes the samples; no JSON file (--json) is written.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from rich.console import Console

from ..core.config import VehicleConfig
from ..core.domain import Array
from ..data.cache import CachedSet, build_cache
from ..data.shards import SceneReader
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
from .probe_heads import error_intervals, kernel_of, predict, ridge, share_intervals, two_layers
from .rewards import PlanScorer, RewardPool
from .scene_geometry import TARGETS, geometry_targets
from .settings import RlTrainConfig
from .vector_data import build_vector_set

CHANGE_NAMES = ("pace", "delay", "offset", "bulge")
HEADS = {"ridge": ridge, "two layers": two_layers}
LANE_TARGETS = 2  # the first of TARGETS
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
        of_set = build_vector_set(args.train, net.config.scene.spec, args.workers, errors.print, lambda *done: None)
        scenes, vectors = with_vectors(scenes, of_set, seed=0)
        vectors = replace(vectors, map_dropout=0.0)
    with RewardPool(args.train, scenes, PlanScorer(net.config.layout), args.workers) as pool:
        samples = collect(net, scenes, pool, min(args.limit, len(scenes)), args.train, errors, vectors)
    spreads, geometry = [f"{std:.2f}" for std in 100.0 * samples.slopes.std(0)], list[list[str]]()
    slopes = [["standard deviation, points", "", *spreads]]
    kernels = {"plan, ego, route": None, **{name: kernel_of(x) for name, x in samples.features.items()}}.items()
    for (name, kernel), head in track_progress(list(product(kernels, HEADS)), "heads", errors):
        of_slopes, of_geometry = predict_all(samples, kernel, head)
        shares, mae = share_intervals(samples.slopes, of_slopes), error_intervals(samples.geometry, of_geometry)
        slopes.append([name, head, *(f"{each:.1f} ({low:.1f} .. {high:.1f})" for each, low, high in 100.0 * shares)])
        geometry.append([name, head, *(f"{each:.2f} ({low:.2f} .. {high:.2f})" for each, low, high in mae)])
    title = f"explained share of slopes, %: {len(samples.slopes)} scenes"
    console.print(make_table(("features", "head", *CHANGE_NAMES), slopes, title))
    console.print(make_table(("features", "head", *TARGETS), geometry, "mean absolute error"))


class ProbeSamples(NamedTuple):
    """Plans of N scenes: what is predicted, and from what."""

    ego: Array  # (N, 3) motion
    inputs: Array  # (N, I) waypoints, ego motion and route, which a network reads whatever its sensors are
    features: dict[str, Array]  # (N, F) of the network, by name
    slopes: Array  # (N, 4) of the score by change, 0 to 1 per standard deviation of CHANGES
    geometry: Array  # (N, 10) scene_geometry.TARGETS


def predict_all(samples: ProbeSamples, added: Array | None, head: str) -> tuple[Array, Array]:
    """(N, 4) predicted slopes and (N, 10) geometry of all scenes, `probe_heads.predict`."""
    others = np.concatenate([samples.slopes, samples.geometry[:, LANE_TARGETS:]], axis=1)
    lane = predict(samples.ego, added, samples.geometry[:, :LANE_TARGETS], HEADS[head])
    predictions = predict(samples.inputs, added, others, HEADS[head])
    changes = len(CHANGE_NAMES)
    return predictions[:, :changes], np.concatenate([lane, predictions[:, changes:]], axis=1)


@torch.no_grad()
def collect(
    net: TokenNet,
    scenes: CachedSet,
    pool: RewardPool,
    count: int,
    folder: Path,
    console: Console,
    vectors: VectorRows | None = None,
) -> ProbeSamples:
    """Samples of N = `count` scenes of a set in `folder`, in the order of their shards."""
    base, layout, reader = RlTrainConfig(), net.config.layout, SceneReader()
    data = replace(base.data, masked_actions=1, perturbed_actions=0, flip_prob=0.0, route_dropout=0.0)
    source, parts = Source(scenes, data, layout, seed=0, color_jitter=False, vectors=vectors), []
    for step in track_progress(range(-(-count // data.batch)), "scenes, in batches", console):
        batch = source.batch(step)
        plans = decode_greedily(net, batch, GoalRules(), 6).plans
        actions, modes = plans[:, 0].numpy(), sample_modes(len(plans), PAIRS, np.random.default_rng([0, step]))
        offsets = offsets_of(modes, layout.points, CHANGES)  # of modes (B, K, 4)
        up, down = (change_actions(actions, each, layout) for each in (offsets, offsets.opposite))
        scores = pool.score(*batch.scenes, np.concatenate([up, down], axis=1))[..., 0]
        gains = 0.5 * (scores[:, :PAIRS] - scores[:, PAIRS:])  # (B, K)
        hidden = net.hidden(plans[:, :1], prompt_keys_values(net, batch))[:, 0]  # (B, T, W)
        halves = [each.mean(1) for each in hidden.chunk(2, dim=1)]
        finished = torch.cat([*halves, hidden[:, -2], hidden[:, -1]], dim=1)
        tokens = net.encode_images(batch.images).flatten(1) if net.config.images else finished[:, :0]
        waypoints = layout.decode(actions).reshape(len(plans), -1)
        route = np.nan_to_num(scenes.route[batch.rows.numpy()]).reshape(len(plans), -1)
        targets = [_targets(reader, folder, scenes, row) for row in batch.rows.tolist()]
        inputs = np.concatenate([waypoints, batch.ego.numpy(), route], axis=1)
        slopes = np.einsum("nk,nkm->nm", gains, modes) / PAIRS
        features = finished.numpy(), tokens.numpy()
        parts.append((batch.ego.numpy(), inputs, *features, slopes, np.stack(targets), batch.rows))
    columns = [np.concatenate(each)[:count] for each in zip(*parts, strict=True)]
    order = np.argsort(columns.pop(), kind="stable")
    own, inputs, *blocks, changes, geometry = (each[order] for each in columns)
    by_name = {name: x for name, x in zip(("finished plan", "image tokens"), blocks, strict=True) if x.shape[1]}
    return ProbeSamples(own, inputs, by_name, changes, geometry)


def _targets(reader: SceneReader, folder: Path, scenes: CachedSet, row: int) -> Array:
    shard, _ = scenes.location[row]
    return geometry_targets(reader.read(folder / scenes.notes[shard].file, scenes.names[row].decode()), VehicleConfig())


if __name__ == "__main__":
    raise SystemExit(run_program(__doc__, add_arguments, run))
