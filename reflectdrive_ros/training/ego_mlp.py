"""Baseline without cameras: an MLP on the ego state and the command.

It is trained on the expert's waypoints of one set and scored on another like every planner. Its score shows how much of
a set can be solved without images. (As NAVSIM's ego-status MLP.)

No setting (--setting) changes the network or its training: both are constants.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch import nn

from ..core.domain import Array, Command
from ..data import shards
from ..data.scene import DrivingScene
from ..infra import arguments
from ..infra.command import command, make_table
from ..infra.progress import track_progress
from ..infra.provenance import write_numbers
from ..scoring.scorer import SUB_SCORES, WAYPOINTS, score

WIDTH = 256
STEPS = 6000
BATCH = 256
LEARNING_RATE = 1e-3
WEIGHT_DECAY = 1e-3
STATE_SCALE = np.array([15.0, 3.0, 0.5, 0.3])  # m/s, m/s^2, rad/s, rad
POSE_SCALE = np.array([20.0, 5.0, 1.0])  # m, m, rad


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--train", type=Path, required=True, metavar="DIR", help="training set")
    parser.add_argument("--test", type=Path, required=True, metavar="DIR", help="test set")
    parser.add_argument("--seed", type=arguments.SEED, default=0, help="of weights and batches")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the numbers as JSON")


@command()
def run(args: argparse.Namespace, console: Console, errors: Console) -> None:
    """Exit code 0; 2 with one sentence on stderr when a set cannot be read or FILE cannot be written."""
    learnt = list(read_scenes(args.train, errors))
    asked = list(read_scenes(args.test, errors))
    network = fit(ego_states(learnt), np.stack([scene.expert for scene in learnt]), args.seed, errors)
    plans = predict(network, ego_states(asked))
    scored = [score(scene.scored(), plan[None]) for scene, plan in zip(asked, plans, strict=True)]
    rows = np.array([[card.score[0], *(getattr(card, name)[0] for name in SUB_SCORES)] for card in scored])
    result = mean_scores([scene.family for scene in asked], rows)
    write_numbers(args.json, {"trained_on": len(learnt), **result})
    console.print(_table(result, len(learnt)))


def read_scenes(folder: Path, errors: Console) -> Iterator[DrivingScene]:
    """The scenes of a set without images."""
    read = shards.read(folder, images=False, on_damage=errors.print)
    return iter(track_progress(read, f"reading {folder.name}", errors))


def ego_states(some: list[DrivingScene]) -> Array:
    """(N, 8) inputs: ego state, and the command as one of four."""
    egos = np.array([[s.ego.speed_mps, s.ego.acceleration_mps2, s.ego.yaw_rate_rps, s.ego.steering_rad] for s in some])
    commands = np.eye(len(Command))[[int(s.command) for s in some]]
    return np.concatenate([egos / STATE_SCALE, commands], axis=1)


def fit(inputs: Array, experts: Array, seed: int, console: Console) -> nn.Module:
    """The network, trained to predict the expert's waypoints (N, 8, 3) from states (N, 8); L1, seconds on a CPU."""
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    layers = [nn.Linear(inputs.shape[1], WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU()]
    network = nn.Sequential(*layers, nn.Linear(WIDTH, WAYPOINTS * 3))
    known = torch.tensor(inputs, dtype=torch.float32)
    wanted = torch.tensor((experts / POSE_SCALE).reshape(len(experts), -1), dtype=torch.float32)
    optimizer = torch.optim.AdamW(network.parameters(), lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
    for _ in track_progress(range(STEPS), "learning", console):
        rows = torch.randint(len(known), (BATCH,), generator=generator)
        loss = (network(known[rows]) - wanted[rows]).abs().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    return network


def predict(network: nn.Module, inputs: Array) -> Array:
    """Waypoints (N, 8, 3) for states (N, 8)."""
    with torch.no_grad():
        said = network(torch.tensor(inputs, dtype=torch.float32)).numpy()
    return np.asarray(said.reshape(-1, WAYPOINTS, 3) * POSE_SCALE, float)


def mean_scores(families: list[str], rows: Array) -> dict[str, Any]:
    """Means in percent over all scenes and by family; rows (N, 6) are PDMS and the sub-scores."""
    names = ("pdms", *SUB_SCORES)

    def means(chosen: Array) -> dict[str, Any]:
        percent = zip(names, (100.0 * chosen.mean(axis=0)).round(3).tolist(), strict=True)
        return {"scenes": len(chosen), **dict(percent)}

    of = np.array(families)
    return {**means(rows), "families": {family: means(rows[of == family]) for family in sorted(set(families))}}


def _table(result: dict[str, Any], learnt: int) -> Table:
    title = f"a planner without cameras, trained on {learnt} scenes; means in percent"
    rows = []
    for family, means in {"all": result, **result["families"]}.items():
        values = (f"{means[name]:.1f}" for name in ("pdms", *SUB_SCORES))
        rows.append((family, str(means["scenes"]), *values))
    return make_table(("family", "scenes", "PDMS", "NC", "DAC", "TTC", "C", "EP"), rows, title)
