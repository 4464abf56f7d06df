"""The accuracy gate: quantised graphs must score as well as the float32 graphs on scenes before they may drive.

The criterion is the driving score, because ids differ where two logits are close, and the effect of that depends on the
scene. Both scores are stored in the card of the new graphs. A denoiser is calibrated and scored by its recipe, as
configured.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console

from ..core.config import Config
from ..core.domain import Array
from ..data import shards
from ..data.shards import SetError
from ..deploy.quantise import ActivationRange, activation_ranges, write_calibration_graphs, write_quantised
from ..evaluation import driving_scores, privilege
from ..features.images import model_inputs
from ..model.card import CARD, MAX_PDMS_DROP, GraphCard, GraphError
from ..planning import get_planner
from ..planning.planner import AnyNetwork, PlannerContext, PlanningError
from ..runtime.network import golden, token_network
from ..runtime.ort_backend import CalibrationDenoiser, CalibrationNetwork, OrtDenoiser, OrtNetwork
from .network_steps import full_rounds, lite_rounds, run_step
from .parity import PRIVILEGE, compare_denoisers, compare_networks, read_scenes

CALIBRATION_SCENES = 64  # scenes from which activation ranges are measured


def quantise_and_check(
    card: GraphCard,
    folder: Path,
    precision: str,
    sets: tuple[Path, Path],
    scenes: int,
    config: Config,
    console: Console,
) -> str:
    """Writes the graphs in int8 or fp8 into a folder once they pass the gate; returns the SHA-256 of their card.

    `sets`: one to calibrate on, and one to score on. Raises GraphError if the score is too low, SetError, OSError.
    """
    learn, judge = sets
    ranges = calibrate(card, learn, config, console)
    make = OrtDenoiser if card.kind == "denoiser" else OrtNetwork
    with tempfile.TemporaryDirectory() as scratch:
        write_quantised(card, Path(scratch), precision, ranges)
        network: AnyNetwork = make(GraphCard.read(Path(scratch) / CARD), 1, "cpu")
        gate = evaluate_gate(network, make(card, 1, "cpu"), judge, scenes, config, console)
        return write_quantised(card, folder, precision, ranges, golden(network), gate)


def calibrate(card: GraphCard, folder: Path, config: Config, console: Console) -> dict[str, dict[str, ActivationRange]]:
    """Measures the ranges of activations on scenes of a set: of a token network in full and lite frames, of a denoiser
    in plans of the configured recipe. Raises SetError."""
    with tempfile.TemporaryDirectory() as scratch:
        write_calibration_graphs(card, Path(scratch))
        calibrated = GraphCard.read(Path(scratch) / CARD)
        if card.kind == "denoiser":
            recorded = _record_denoiser(CalibrationDenoiser(calibrated), folder, config, console)
        else:
            recorded = _record_frames(CalibrationNetwork(calibrated), folder, console)
    if not all(recorded.values()):
        raise SetError(f"{folder} holds no scene for the calibration")
    return activation_ranges(recorded)


def _record_frames(network: CalibrationNetwork, folder: Path, console: Console) -> dict[str, list[dict[str, Array]]]:
    for scene in read_scenes(folder, CALIBRATION_SCENES, console):
        inputs = model_inputs(scene.observation(), network.inputs)
        actions, _ = run_step(network, inputs, full_rounds(network.layout))
        run_step(network, inputs, lite_rounds(network.layout), actions=actions[:1])
    return network.recorded


def _record_denoiser(
    network: CalibrationDenoiser, folder: Path, config: Config, console: Console
) -> dict[str, list[dict[str, Array]]]:
    planner = get_planner(config)
    for scene in read_scenes(folder, CALIBRATION_SCENES, console, images=False):
        observation = privilege.observe(scene, PRIVILEGE, with_vectors=True)
        try:
            driving_scores.plan_once(planner, observation, PlannerContext(config, network))
        except PlanningError:
            continue  # such as a scene without a route; the gate counts them
    return network.recorded


def evaluate_gate(
    network: AnyNetwork, reference: AnyNetwork, folder: Path, scenes: int, config: Config, console: Console
) -> dict[str, Any]:
    """The `gate` entry of a card: the scores of both networks on the first scenes of a set. Raises GraphError,
    SetError.
    """
    if network.kind == "denoiser" and reference.kind == "denoiser":
        numbers = compare_denoisers(network, reference, read_scenes(folder, scenes, console, images=False), config)
        distance = ("difference_m_p50", "difference_m_p99")
    else:
        own, other = (token_network(each, str(folder), "the gate") for each in (network, reference))
        numbers = compare_networks(own, other, read_scenes(folder, scenes, console), config)
        distance = ("equal_share", "equal_plans")
    if failures := numbers["failures"]:
        raise GraphError(f"the gate is not passed: {len(failures)} times there was no plan, the first: {failures[0]}")
    lost = numbers["pdms_reference"] - numbers["pdms"]
    low, high = numbers["pdms_difference_95"]
    if lost > MAX_PDMS_DROP:
        raise GraphError(
            f"the gate is not passed: on {numbers['scenes']} scenes PDMS is {numbers['pdms']:.2f}, in float32 "
            f"{numbers['pdms_reference']:.2f}, which is {lost:.2f} less ({low:+.2f} .. {high:+.2f}), more than "
            f"{MAX_PDMS_DROP}: nothing is exported"
        )
    return {
        "set": shards.index_of(folder).set,
        "scenes": numbers["scenes"],
        "planner": config.planner,
        "pdms_fp32": numbers["pdms_reference"],
        "pdms": numbers["pdms"],
        "difference_95": numbers["pdms_difference_95"],
        **{name: numbers[name] for name in distance},
        "limit": MAX_PDMS_DROP,
        "passed": True,
    }


def sentence(gate: Mapping[str, Any]) -> str:
    low, high = gate["difference_95"]
    if "equal_share" in gate:
        distance = f"{100 * gate['equal_share']:.1f} % of ids the same"
    else:
        distance = f"plans {gate['difference_m_p50']:.2g} m apart (p99 {gate['difference_m_p99']:.2g} m)"
    return (
        f"gate: PDMS {gate['pdms']:.2f}, in float32 {gate['pdms_fp32']:.2f} (difference {low:+.2f} .. {high:+.2f} "
        f"with 95 %), on {gate['scenes']} scenes of '{gate['set']}'; {distance}"
    )
