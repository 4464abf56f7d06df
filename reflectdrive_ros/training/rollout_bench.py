"""`reflectdrive bench rollouts --model DIR --train SET`: the time of each part of a step of `train rl`.

Parts: sample rollouts, score their plans, the gradient of the policy loss, the optimizer. Below them stands the cost of
exact log-probabilities: one packed pass over all states of the rollouts, beside one forward pass of the network per
transition, which is what a policy gradient needs if nothing is shared. Times are medians over batches.

No setting (--setting) changes the step: it is that of the defaults of `train rl`.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

import torch
from rich.console import Console

from ..data.cache import build_cache
from ..infra import arguments
from ..infra.command import HelpFormatter, command, make_table
from ..infra.progress import track_progress
from ..infra.provenance import write_numbers
from ..model.token.net import TokenNet
from ..model.token.ops import token_log_probs
from ..model.token.rollout import Decoding
from . import rl_losses, rollouts, train_state
from .data import Source, shape_of
from .losses import Batch
from .rewards import PlanScorer, RewardPool
from .rl_losses import PolicyBatch, RlLosses
from .rollouts import Rollouts
from .settings import RlTrainConfig

PARTS = ("rollouts", "rewards", "gradient", "optimizer")


@dataclass(frozen=True)
class Times:
    """Seconds of one batch."""

    parts: dict[str, float]
    packed: float  # log-probabilities of all transitions in one pass
    single: float  # by one forward pass per transition


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.formatter_class = HelpFormatter
    parser.add_argument("--model", type=Path, required=True, metavar="DIR", help="run, or folder of weights")
    parser.add_argument("--train", type=Path, required=True, metavar="DIR", help="scene set")
    parser.add_argument(
        "--batches", type=arguments.positive_int(1000), default=5, metavar="N", help="after a first one"
    )
    parser.add_argument(
        "--precision", choices=("32-true", "bf16-mixed"), default="32-true", help="as device.precision of a run"
    )
    parser.add_argument("--workers", type=arguments.process_count(), default=2, metavar="N", help="scoring processes")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the numbers as JSON")


@command()
def run(args: argparse.Namespace, console: Console, errors: Console) -> None:
    """Exit code 0; 2 with one sentence on stderr for a set or weights that cannot be used."""
    base = train_state.load_network(args.model)
    net = TokenNet(replace(base.config, plan_value=True))
    net.initialise(torch.Generator().manual_seed(0))
    net.load_state_dict(base.state_dict(), strict=False)
    config = RlTrainConfig()
    scenes = build_cache(args.train, shape_of(net.config), args.workers, errors.print, lambda done, total: None)
    source = Source(scenes, config.data, net.config.layout, config.seed)
    with RewardPool(args.train, scenes, PlanScorer(net.config.layout), args.workers) as pool:
        batches = (source.batch(step) for step in range(args.batches + 1))
        found = [
            time_batch(net, batch, config, pool, args.precision == "bf16-mixed")
            for batch in track_progress(batches, "batches", errors, args.batches + 1)
        ][1:]
    size = config.data.batch
    parts = {name: median(1e3 * times.parts[name] / size for times in found) for name in PARTS}
    whole = median(sum(times.parts.values()) / size for times in found)
    cheaper = median(times.single / times.packed for times in found)
    numbers = {
        "scenes_per_s": round(1.0 / whole, 2),
        "ms_per_scene": {name: round(value, 2) for name, value in parts.items()},
        "log_probs_cheaper": round(cheaper, 2),
        "batch": size,
        "threads": torch.get_num_threads(),
        "precision": args.precision,
    }
    card = train_state.card_of(args.model)
    write_numbers(args.json, numbers, weights_sha256=card["sha256"])
    rows = [(name, f"{value:.1f}") for name, value in parts.items()]
    rows += [("all", f"{1e3 * whole:.1f}"), ("scenes per second", f"{1.0 / whole:.1f}")]
    rows += [("log-probabilities, times cheaper than one forward pass per transition", f"{cheaper:.1f}")]
    console.print(make_table(("part", "ms per scene"), rows, f"train rl, batch {size}, {args.precision}"))


def time_batch(net: TokenNet, batch: Batch, config: RlTrainConfig, pool: RewardPool, fast: bool) -> Times:
    """One step of reinforcement learning, with a learning rate near 0, and both ways to log-probabilities."""
    rules = Decoding().goals.for_search
    losses = RlLosses(net, config.loss, config.rl, rules, torch.Generator().manual_seed(0))
    optimizer = torch.optim.AdamW(net.parameters(), 1e-9, fused=True)
    parts: dict[str, float] = {}

    def timed(name: str, call: Callable[[], object]) -> object:
        begun = time.perf_counter()
        value = call()
        parts[name] = time.perf_counter() - begun
        return value

    with torch.autocast("cpu", torch.bfloat16, enabled=fast):
        found = timed(
            "rollouts",
            lambda: rollouts.sample(net, batch.inputs, rules, config.rl, torch.Generator().manual_seed(0)),
        )
        assert isinstance(found, Rollouts)
        plans = torch.cat([found.plans, found.greedy_plans], 1).numpy()
        flags = batch.mirrored.numpy(), batch.with_route.numpy()
        scores = timed("rewards", lambda: pool.score(batch.rows.tolist(), *flags, plans)[..., 0])
        reward = torch.from_numpy(scores)
        count = found.plans.shape[1]
        policy = rl_losses.make_policy_batch(found, reward[:, :count], reward[:, count:], net.config.layout, config.rl)
        timed("gradient", lambda: losses(batch, policy)["loss"].backward())
        timed("optimizer", optimizer.step)
        optimizer.zero_grad()
        everything = replace(config.rl, kept=count)
        whole = rl_losses.make_policy_batch(found, reward[:, :count], reward[:, count:], net.config.layout, everything)
        packed = _seconds(lambda: packed_log_probs(net, batch, whole))
        single = _seconds(lambda: single_log_probs(net, batch, found))
    return Times(parts, packed, single)


@torch.no_grad()
def packed_log_probs(net: TokenNet, batch: Batch, policy: PolicyBatch) -> torch.Tensor:
    hidden = rl_losses.hidden_states(net, net.encode(net.prompt(*batch.inputs)), policy)
    return rl_losses.token_log_probs(net, hidden.rounds, policy, 1.0)


@torch.no_grad()
def single_log_probs(net: TokenNet, batch: Batch, found: Rollouts) -> list[torch.Tensor]:
    """By one forward pass of all scenes per round and rollout."""
    mask_id, states = net.config.layout.mask_id, found.states
    return [
        token_log_probs(
            net.packed_logits(*batch.inputs, states[:, number, [place]]), states[:, number + 1, [place]], mask_id
        )
        for number in range(states.shape[1] - 1)
        for place in range(states.shape[2])
    ]


def _seconds(call: Callable[[], object]) -> float:
    begun = time.perf_counter()
    call()
    return time.perf_counter() - begun
