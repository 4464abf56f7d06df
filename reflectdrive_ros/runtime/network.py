"""Loads the configured network: hash verified, backend selected, self-check passed.

Otherwise it raises one sentence with the reason: a planner whose network cannot be loaded does not start, and no other
is used instead. A backend is a module that is imported when a model needs it, so that a vehicle without torch can run
the others. If `model.backend` is auto, a backend that cannot run the model is skipped for the next;
`backend_description` gives the reason.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np

from ..core.config import Config, ModelConfig
from ..core.domain import AgentHistory, AgentKind, Agents, Array, EgoState, LanePolylines, LightState, Observation
from ..core.lanes import LANE_POINTS
from ..core.recipe_config import DecodingConfig
from ..core.tokens import decoding_rounds
from ..core.vector_spec import VectorSpec
from ..features.images import ModelInputs, encode_route, route_ahead
from ..features.vectors import VectorInputs, vector_inputs
from ..infra.installing import pip_extra, shipped
from ..planning import decoding_config, learned_configs
from ..planning.denoiser import Denoiser, in_metres, present_states, sample
from ..planning.planner import AnyNetwork, Network, prefill_sequences, run_rounds
from .graphs import GoalChoice
from .model_file import ModelFileError, check_card, network_kind, read_card, verified_sha256
from .trt.cuda_device import has_driver

if TYPE_CHECKING:
    from ..model.card import GraphCard
    from ..model.token.rollout import Decoding
    from .ort_backend import OrtDenoiser, OrtNetwork

log = logging.getLogger(__name__)

LoadNetwork = Callable[[ModelConfig, DecodingConfig], AnyNetwork | None]

# suffix of a model file -> backends that read it, the best first: weights, or the card of exported graphs
BACKENDS = {".safetensors": ("torch",), ".json": ("tensorrt", "onnxruntime", "openvino")}
INSTALL_COMMANDS = {  # of the backends
    "torch": pip_extra("train"),
    "onnxruntime": "pip install onnxruntime",
    "tensorrt": "pip install tensorrt",
    "openvino": "pip install openvino",
    "random weights": pip_extra("train"),
}
RANDOM_SEED = 0  # of `random_network`
NETWORKS_MAX = 16  # that a worker keeps loaded: as many as a table may compare
SELF_CHECK_STEPS = 10  # of the sampler
GOLDEN_TOLERANCE = 0.05  # between backends and machines; another wiring of the inputs is far off


def load_network(model: ModelConfig, decoding: DecodingConfig) -> AnyNetwork | None:
    """The configured network, ready to drive; None where no model is configured. Raises ModelFileError.

    A denoiser, if its card says so; `decoding` is for token networks.
    """
    if not model.file:
        return None
    verified_sha256(model)
    path = shipped(model.file)
    *better, last = backends_of(path, model)
    skipped = ""
    for backend in better:
        try:
            return _load_on(backend, path, model, decoding)
        except ModelFileError as fault:
            skipped = f"not {backend}: {fault}"
            log.warning("%s", skipped)
    try:
        network = _load_on(last, path, model, decoding)
    except ModelFileError as fault:
        raise ModelFileError(f"{fault}; {skipped}" if skipped else str(fault)) from None
    if skipped:
        network.backend_description += f" ({skipped})"
    return network


def load_networks(config: Config, load: LoadNetwork = load_network) -> dict[str, AnyNetwork]:
    """The network of each configured planner that has one, ready to drive. Raises ModelFileError."""
    loaded = {name: load(own.model, decoding_config(own)) for name, own in learned_configs(config).items()}
    return {name: network for name, network in loaded.items() if network is not None}


class DescribedTokenNetwork(Network, Protocol):
    """A token network that describes its backend for the diagnostics."""

    backend_description: str


class DescribedDenoiser(Denoiser, Protocol):
    """A denoiser that describes its backend for the diagnostics."""

    backend_description: str


DescribedNetwork = DescribedTokenNetwork | DescribedDenoiser


def token_network(network: AnyNetwork | None, file: str, user: str) -> Network:
    """The network of a model file, for `user` of token networks. Raises ModelFileError for another kind, or none."""
    if network is None or network.kind == "denoiser":
        problem = "is not set" if network is None else "holds a denoiser"
        raise ModelFileError(f"{user} needs a network of kind token, but model.file {file} {problem}: give such a file")
    return network


def _load_on(backend: str, path: Path, model: ModelConfig, decoding: DecodingConfig) -> DescribedNetwork:
    """The network on one backend, loaded and tried once. Raises ModelFileError."""
    try:
        return LOADERS[backend](path, model, decoding)
    except ModuleNotFoundError as fault:
        if fault.name is None or fault.name.startswith("reflectdrive_ros"):
            raise  # a fault of ours
        raise ModelFileError(
            f"model file {path} needs {fault.name}, which is not installed: {INSTALL_COMMANDS[backend]}"
        ) from None


@lru_cache(maxsize=NETWORKS_MAX)
def worker_network(model: ModelConfig, decoding: DecodingConfig) -> AnyNetwork | None:
    """`load_network` for one of several processes that share the cores, loaded once in each."""
    return load_network(replace(model, threads=1), decoding)


@lru_cache(maxsize=NETWORKS_MAX)
def random_network(model: ModelConfig, decoding: DecodingConfig) -> AnyNetwork:
    """The configured model's network with random weights from a fixed seed, as at the start of training.

    Layout, sizes and decoding are those of the model, whatever its backend; this one is run by torch on one thread. For
    evaluation only. Raises ModelFileError.
    """
    verified_sha256(model)
    return _load_on("random weights", shipped(model.file), replace(model, threads=1), decoding)


def backends_of(path: Path, model: ModelConfig) -> tuple[str, ...]:
    """The backends that may run a model file, in the order of trial.

    With `auto`, TensorRT is included only if there is a driver or the library, so that a computer without a GPU gets no
    message about it; OpenVINO never, because it is the faster on some processors only: `doctor --measure` finds that.
    Raises ModelFileError if no backend reads the file, or not the requested one.
    """
    able = BACKENDS.get(path.suffix, ())
    if not able:
        raise ModelFileError(f"model file {path} is no model: expected a file ending in {', '.join(BACKENDS)}")
    if model.backend == "auto":
        gpu = model.device != "cpu" and (has_driver() or importlib.util.find_spec("tensorrt") is not None)
        return tuple(backend for backend in able if backend != "openvino" and (gpu or backend != "tensorrt"))
    if model.backend not in able:
        raise ModelFileError(f"model.backend is {model.backend}, but {path} is read by {', '.join(able)}")
    return (model.backend,)


def _torch_network(path: Path, model: ModelConfig, decoding: DecodingConfig) -> DescribedNetwork:
    """Self-checked by fixed decoding rules, those of all cards of weights, whatever is configured; graphs have theirs
    built in.
    """
    _let_threads_sleep()
    from ..model.checkpoint import CheckpointError, load
    from .torch_backend import SELF_CHECK_DECODING, TorchNetwork, resolve_device

    if network_kind(path) == "denoiser":
        return _torch_denoiser(path, model)
    try:
        device = resolve_device(model.device, model.threads)
        net = load(path, model.sha256)
        network = TorchNetwork(net, device, SELF_CHECK_DECODING)
    except CheckpointError as fault:
        raise ModelFileError(str(fault)) from None
    check_card(path, net.config)
    self_check(network, path)
    network.capabilities |= {"camera_dropout"} & set(_capabilities(path))  # of the training, not of the architecture
    network.set_decoding(torch_decoding(decoding))
    return network


def _torch_denoiser(path: Path, model: ModelConfig) -> DescribedDenoiser:
    from ..model.checkpoint import CheckpointError
    from ..model.denoiser import checkpoint
    from .torch_backend import resolve_device
    from .torch_denoiser import TorchDenoiser

    try:
        device = resolve_device(model.device, model.threads)
        net = checkpoint.load(path, model.sha256)
        network = TorchDenoiser(net, device, _capabilities(path))
    except CheckpointError as fault:
        raise ModelFileError(str(fault)) from None
    check_card(path, net.config)
    self_check(network, path)
    return network


def _capabilities(path: Path) -> list[str]:
    """As the card next to the weights, or that of the graphs, says."""
    card = read_card(path)
    return list(card.get("model", card).get("capabilities") or [])


def _random_network(path: Path, model: ModelConfig, decoding: DecodingConfig) -> DescribedNetwork:
    _let_threads_sleep()
    from ..model.checkpoint import CheckpointError, random_net
    from ..model.denoiser import checkpoint
    from .torch_backend import TorchNetwork, resolve_device
    from .torch_denoiser import TorchDenoiser

    try:
        device = resolve_device(model.device, model.threads)
        if network_kind(path) == "denoiser":
            return TorchDenoiser(checkpoint.random_net(path, RANDOM_SEED), device, _capabilities(path))
        return TorchNetwork(random_net(path, RANDOM_SEED), device, torch_decoding(decoding))
    except CheckpointError as fault:
        raise ModelFileError(str(fault)) from None


def _let_threads_sleep() -> None:
    """Call before torch is imported: its threads would spin while they wait, and take processor time from other
    processes.
    """
    if "torch" not in sys.modules:
        os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


def torch_decoding(decoding: DecodingConfig) -> Decoding:
    from ..model.token.ops import GoalRules
    from ..model.token.rollout import Decoding

    return Decoding(
        GoalRules(
            decoding.goals,
            decoding.goal_spacing_m,
            rescored=decoding.rescore_goals,
            value_power=decoding.goal_value_power,
        )
    )


def _ort_network(path: Path, model: ModelConfig, decoding: DecodingConfig) -> DescribedNetwork:
    from .ort_backend import OrtDenoiser, OrtNetwork

    return _exported_network(path, model, decoding, OrtNetwork, OrtDenoiser)


def _openvino_network(path: Path, model: ModelConfig, decoding: DecodingConfig) -> DescribedNetwork:
    from .openvino_backend import OpenVinoDenoiser, OpenVinoNetwork

    return _exported_network(path, model, decoding, OpenVinoNetwork, OpenVinoDenoiser)


def _exported_network(
    path: Path,
    model: ModelConfig,
    decoding: DecodingConfig,
    token_network: type[OrtNetwork],
    denoiser_network: type[OrtDenoiser],
) -> DescribedNetwork:
    from ..model.card import GraphError

    try:
        card = _graphs(path, decoding)
        if card.kind == "denoiser":
            denoiser = denoiser_network(card, model.threads, model.device)
            self_check(denoiser, path)
            return denoiser
        network = token_network(card, model.threads, model.device)
    except GraphError as fault:
        raise ModelFileError(str(fault)) from None
    self_check(network, path)
    network.goal_choice = GoalChoice(decoding.goals, decoding.goal_spacing_m)
    return network


def _trt_network(path: Path, model: ModelConfig, decoding: DecodingConfig) -> DescribedNetwork:
    from ..model.card import GraphError
    from .trt.backend import TrtDenoiser, TrtNetwork
    from .trt.cuda_device import CudaError
    from .trt.engine_cache import EngineError

    folder = Path(model.engines) if model.engines else None
    try:
        card = _graphs(path, decoding)
        if card.kind == "denoiser":
            denoiser = TrtDenoiser(card, model.device, folder)
            self_check(denoiser, path)
            return denoiser
        network = TrtNetwork(card, model.device, folder)
    except (GraphError, CudaError, EngineError) as fault:
        raise ModelFileError(str(fault)) from None
    self_check(network, path)
    network.goal_choice = GoalChoice(decoding.goals, decoding.goal_spacing_m)
    return network


def _graphs(path: Path, decoding: DecodingConfig) -> GraphCard:
    """The card of exported graphs that may drive and, of a token network, decode as is set. Raises GraphError."""
    from ..model.card import GraphCard, GraphError

    card = GraphCard.read(path)
    card.check_gate()
    if card.kind == "denoiser":
        return card
    built_in = card.decoding()
    if decoding.goals > card.max_goals:
        raise GraphError(
            f"{decoding.goals} goals are set, but the graphs of {path} give at most {card.max_goals}: set fewer, or "
            f"export them again with decoding.goals={decoding.goals}"
        )
    del built_in["goals"], built_in["goal_spacing_m"]
    for name, value in built_in.items():
        if getattr(decoding, name) != value:
            raise GraphError(
                f"decoding.{name} is {getattr(decoding, name)}, but the graphs of {path} have {value} built in: "
                "set it to that or export them again"
            )
    return card


Loader = Callable[[Path, ModelConfig, DecodingConfig], DescribedNetwork]
LOADERS: dict[str, Loader] = {
    "torch": _torch_network,
    "tensorrt": _trt_network,
    "onnxruntime": _ort_network,
    "openvino": _openvino_network,
    "random weights": _random_network,
}


# --- tried once ------------------------------------------------------------------------------------------------------


def self_check(network: AnyNetwork, path: Path) -> None:
    """A whole step on a synthetic scene: it must return a valid step, equal to the card's `golden`.

    It also warms the backend up, so that the first step on the road is as fast as the others. Raises ModelFileError.
    """
    expected = read_card(path).get("golden") or {}
    if not expected and path.suffix == ".json":  # graphs are not compared with the network that they were exported from
        raise ModelFileError(f"the card {path} has no golden, with which its graphs are checked: export them again")
    try:
        figures, faults = _run_self_check(network)
    except Exception as fault:  # a graph that differs from its card fails in the runtime, with various types
        reason = " ".join(str(fault).split())[:300]
        raise ModelFileError(f"model file {path} fails its self-check: {reason}; do not drive with it") from None
    for name, value in expected.items():
        if name not in figures:
            faults.append(f"its card gives {name}, which such a network does not have")
        elif not abs(figures[name] - value) <= GOLDEN_TOLERANCE:
            faults.append(f"its {name} is {figures[name]:.3f}, its card has {value}")
    if faults:
        raise ModelFileError(f"model file {path} fails its self-check: {faults[0]}; do not drive with it")


def golden(network: AnyNetwork) -> dict[str, float]:
    """The `golden` entry of a card, with which every later start of the model is compared."""
    return {name: round(value, 4) for name, value in _run_self_check(network)[0].items()}


def _run_self_check(network: AnyNetwork) -> tuple[dict[str, float], list[str]]:
    """The figures of a plan for a synthetic scene, and what was wrong with it."""
    return _check_denoiser(network) if network.kind == "denoiser" else _check_token_network(network)


def _check_denoiser(network: Denoiser) -> tuple[dict[str, float], list[str]]:
    """Position in metres of the ego at the end of a plan sampled from zero noise, and what was wrong with the plan."""
    inputs, spec = synthetic_vectors(network.spec), network.spec
    present = present_states(inputs, spec)
    start = np.zeros((spec.futures, 1 + spec.future_steps, present.shape[1]))
    context = network.encode(inputs, False)
    clean = sample(lambda futures, time: network.denoise(context, futures, time)[0], start, present, SELF_CHECK_STEPS)
    x_m, y_m = in_metres(clean, spec)[0, -1, :2].tolist()
    figures, faults = {"ego_x_m": x_m, "ego_y_m": y_m}, []
    if not np.isfinite(clean).all():
        faults.append("its futures are not finite")
    elif "guidance" in network.capabilities:
        alone = network.denoise(network.encode(inputs, False), clean, 1.0)
        conditioned = network.denoise(network.encode(inputs, True), clean, 1.0)
        if conditioned.shape != (2, *alone.shape[1:]) or not np.isfinite(conditioned).all():
            faults.append("its prediction without conditions is not finite")
        elif not np.abs(conditioned[0] - alone[0]).max() <= GOLDEN_TOLERANCE:
            faults.append("its prediction differs in a batch with the unconditional one")
    return figures, faults


def _check_token_network(network: Network) -> tuple[dict[str, float], list[str]]:
    """One figure of a step on a synthetic scene, and what was wrong with the step.

    The figure is `goal_log_prob`, the log-probability of the likeliest goal or, for a network without goals,
    `confidence`, the mean probability of the tokens.
    """
    layout, edits = network.layout, "edit" in network.capabilities
    goal = list(layout.goal)
    inputs = synthetic_inputs(network)
    prefilled = prefill_sequences(network, inputs)
    goals = prefilled.actions[:, goal]
    *drafts, last = decoding_rounds(len(layout.free), 3, 1 if edits else 0)
    before, _ = run_rounds(partial(network.step, prefilled.context), prefilled.actions, drafts)
    actions, confidence = network.step(prefilled.context, before, *last)
    # a lite frame encodes the scene by another call: repeat the last step after it
    _, again = network.step(network.prefill(inputs), before, *last)
    faults = []
    if not np.isfinite(prefilled.goal_log_probs).all() or not ((confidence >= 0) & (confidence <= 1 + 1e-5)).all():
        faults.append("its probabilities are not between 0 and 1")
    elif ((actions < 0) | (actions >= layout.mask_id)).any():
        faults.append("tokens stay masked")
    elif any((ids[:, goal] != goals).any() for ids in (before, *([] if edits and layout.edit_goal else [actions]))):
        faults.append("it does not keep its goals")
    elif not abs(np.log(again / confidence).mean()) <= GOLDEN_TOLERANCE:
        faults.append("it reads a scene otherwise when it has its goal")
    if layout.goal:
        return {"goal_log_prob": float(prefilled.goal_log_probs[0])}, faults
    return {"confidence": float(confidence.mean())}, faults


def synthetic_inputs(network: Network) -> ModelInputs:
    """Images of waves, a few words, 8 m/s on a straight road: the same on every machine."""
    spec = network.inputs
    rows, columns = np.mgrid[: spec.height, : spec.width]
    waves = [
        127.5 + 127.5 * np.sin(rows * (0.11 + 0.02 * k) + columns * (0.05 + 0.01 * k) + colour)
        for k in range(spec.instants * spec.cameras)
        for colour in range(3)
    ]
    images: Array = np.array(waves).reshape(-1, 3, spec.height, spec.width)
    images = np.moveaxis(images, 1, -1).astype(np.uint8)
    ids, _ = spec.tokenizer.encode("follow limit 50")
    text = np.full(spec.text_length, spec.tokenizer.pad_id, np.int64)
    text[: len(ids)] = ids[: spec.text_length]
    ego = np.array([8.0 / spec.ego_scale[0], 0.0, 0.0], np.float32)
    straight = np.array([[0.0, 0.0, 0.0], [100.0, 0.0, 0.0]])
    route = encode_route(route_ahead(straight, spec.route_at_m), spec.codebook)
    scene = None if spec.vectors is None else synthetic_vectors(spec.vectors)
    return ModelInputs(images, text, ego, route, scene=scene)


def synthetic_vectors(spec: VectorSpec) -> VectorInputs:
    """8 m/s on a straight road of three lanes, behind a vehicle, next to a pedestrian: the same on every machine.

    Raises ValueError for a network that reads other numbers of instants or of points per lane than observations have.
    """
    along = np.linspace(0.0, 60.0, LANE_POINTS)
    starts = [(start, 3.5 * lane) for lane in (0, 1, -1) for start in (-20.0, 40.0)]
    points = np.array([np.stack([start + along, np.full(LANE_POINTS, left)], axis=1) for start, left in starts])

    def lanes(those: Array) -> LanePolylines:
        count = len(those)
        limits, lights = np.full(count, 13.9), np.full(count, LightState.UNKNOWN)
        return LanePolylines(those, np.full(count, 3.5), limits, lights, np.ones(count, bool))

    times_s = AgentHistory.DT_S * np.arange(1 - AgentHistory.STEPS, 1)
    velocities = np.array([[6.0, 0.0], [0.0, -1.0]])
    now = np.array([[20.0, 0.0, 0.0], [15.0, 6.0, -0.5 * np.pi]])
    poses = np.repeat(now[:, None], AgentHistory.STEPS, axis=1)
    poses[..., :2] += times_s[:, None] * velocities[:, None]
    history = AgentHistory(
        np.arange(2), poses, np.repeat(velocities[:, None], AgentHistory.STEPS, axis=1), np.ones(poses.shape[:2], bool)
    )
    kinds = np.array([AgentKind.VEHICLE, AgentKind.PEDESTRIAN])
    observation = Observation(
        0,
        EgoState(0, np.zeros(3), 8.0),
        np.array([[-20.0, 0.0, 0.0], [100.0, 0.0, 0.0]]),
        agents=Agents(now, velocities, np.array([[4.5, 1.9], [0.6, 0.6]]), kinds),
        lanes=lanes(points),
        route_lanes=lanes(points[:2]),
        history=history,
    )
    return vector_inputs(observation, spec)
