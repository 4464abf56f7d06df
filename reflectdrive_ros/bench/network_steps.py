"""Steps of a network on a synthetic scene, and their times. Without torch, so that a vehicle can measure too."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
from rich.console import Console

from ..core.config import Config
from ..core.domain import Array
from ..core.recipe_config import DriveFineConfig
from ..core.tokens import Round, TokenLayout, decoding_rounds
from ..features.images import ModelInputs
from ..features.vectors import VectorInputs
from ..infra.progress import track_progress
from ..planning.critique import CRITIQUE_CHANNELS
from ..planning.denoiser import Denoiser, in_metres, present_states, sample
from ..planning.planner import Network, prefill_sequences, run_rounds
from ..runtime.network import SELF_CHECK_STEPS, synthetic_vectors

WARM_UP = 5
Action = Callable[[], Sequence[float]]  # one step of the network; milliseconds of its parts


def full_rounds(layout: TokenLayout) -> tuple[Round, ...]:
    """Rounds of a full step: of ReflectDrive-2 or, without a goal, the drafts of DriveFine."""
    if not layout.goal:
        return decoding_rounds(layout.length, DriveFineConfig().draft_rounds, 0, "cosine")
    return decoding_rounds(len(layout.free), 3, 3)


def lite_rounds(layout: TokenLayout) -> tuple[Round, ...]:
    return decoding_rounds(layout.length, 1, 1)


def run_step(
    network: Network,
    inputs: ModelInputs,
    rounds: Sequence[Round],
    count: int | None = None,
    actions: Array | None = None,
    edited: int | None = None,
) -> tuple[Array, tuple[float, float, float]]:
    """Action sequences (M, T) of a frame on `count` goals, or from `actions`; ms in prefill, drafts and edits.

    Edits are made on the first `edited` of them, which are what is returned; None: on all. A refinement expert counts
    as an edit.
    """
    start_ns = time.perf_counter_ns()
    if actions is None:
        prefilled = prefill_sequences(network, inputs)
        context, actions = prefilled.context, prefilled.actions[:count]
    else:
        context = network.prefill(inputs)
    prefill_ms, start_ns = 1e-6 * (time.perf_counter_ns() - start_ns), time.perf_counter_ns()
    actions, _ = network.draft(context, actions, [limit for limit, edit in rounds if not edit])
    actions = actions[:edited]
    reads_critique = "critique" in network.capabilities
    edits = [each for each in rounds if each.edit and "edit" in network.capabilities and not reads_critique]
    draft_ms, start_ns = 1e-6 * (time.perf_counter_ns() - start_ns), time.perf_counter_ns()
    actions, _ = run_rounds(partial(network.step, context), actions, edits)
    if reads_critique:
        unknown = np.zeros((len(actions), network.layout.points, CRITIQUE_CHANNELS), np.float32)
        actions, _ = network.refine(context, actions, unknown)
    elif "refine" in network.capabilities:
        actions, _ = network.refine(context, actions)
    return actions, (prefill_ms, draft_ms, 1e-6 * (time.perf_counter_ns() - start_ns))


def full_step_rounds(config: Config, layout: TokenLayout) -> tuple[Round, ...]:
    """Rounds of a full step of the configured planner, as many edits as it may make."""
    if not layout.goal:
        return decoding_rounds(layout.length, config.drivefine.draft_rounds, 0, "cosine")
    if config.planner == "reflectdrive":
        return decoding_rounds(len(layout.free), config.reflectdrive.draft_rounds, 0)
    return decoding_rounds(len(layout.free), config.reflectdrive2.draft_rounds, config.reflectdrive2.edit_rounds)


def token_steps(network: Network, inputs: ModelInputs, count: int, full: Sequence[Round]) -> dict[str, Action]:
    """A full step on `count` goals, of which one is edited, and a lite step."""
    layout = network.layout
    lite = lite_rounds(layout)
    last = run_step(network, inputs, full, count)[0][:1].copy()
    last[:, layout.waypoint(layout.points - 1)] = layout.mask_id  # the part that a lite step has to write
    for_full, for_lite = (consecutive_inputs(inputs, network.inputs.cameras) for _ in range(2))
    return {
        "full": lambda: run_step(network, next(for_full), full, count, edited=1)[1],
        "lite": lambda: run_step(network, next(for_lite), lite, 1, last)[1],
    }


def denoiser_plan(network: Denoiser, guided: bool) -> Action:
    """One plan, sampled from zero noise."""
    inputs, spec = synthetic_vectors(network.spec), network.spec
    start, present = np.zeros((spec.futures, 1 + spec.future_steps, 4)), present_states(inputs, spec)

    def plan() -> tuple[float, float]:
        begin = time.perf_counter()
        context = network.encode(inputs, guided)
        encoded = time.perf_counter()
        sample(lambda x, at: network.denoise(context, x, at).mean(axis=0), start, present, SELF_CHECK_STEPS)
        return 1e3 * (encoded - begin), 1e3 * (time.perf_counter() - encoded)

    return plan


def sampled_m(network: Denoiser, inputs: VectorInputs, start: Array, guided: bool) -> Array:
    """Futures (P, 1 + T, 4) in metres, sampled from a start; `guided`: by the mean of both predictions."""
    context = network.encode(inputs, guided)
    present = present_states(inputs, network.spec)
    clean = sample(lambda x, at: network.denoise(context, x, at).mean(axis=0), start, present, SELF_CHECK_STEPS)
    return in_metres(clean, network.spec)


def consecutive_inputs(inputs: ModelInputs, cameras: int) -> Iterator[ModelInputs]:
    """The same scene step after step, each time with new newest images, the last step's as the older ones.

    A network with a feature cache therefore encodes as many images as on the road.
    """
    older = inputs.images[-cameras:]
    for turn in itertools.count():
        newest = older.copy()
        newest[:, 0, :2] = np.array([turn % 256, turn // 256 % 256], np.uint8)[:, None]
        yield replace(inputs, images=np.concatenate([older, inputs.images[cameras:-cameras], newest]))
        older = newest


def time_actions(steps: int, actions: Mapping[str, Action], console: Console) -> dict[str, Array]:
    """(N, 2 + P) milliseconds of each action: wall time, processor time of all threads, its parts; in turn."""
    rows: dict[str, list[list[float]]] = {name: [] for name in actions}
    for turn in track_progress(range(-WARM_UP, steps), "network steps", console):
        for name, action in actions.items():
            wall_ns, busy_ns = time.perf_counter_ns(), time.process_time_ns()
            parts = action()
            wall_ns, busy_ns = time.perf_counter_ns() - wall_ns, time.process_time_ns() - busy_ns
            if turn >= 0:
                rows[name].append([1e-6 * wall_ns, 1e-6 * busy_ns, *parts])
    return {name: np.array(some) for name, some in rows.items()}
