"""Times of a step by model file and backend on this machine: `doctor --measure` and `bench step`.

The files are those of the model of each configured planner: weights, and the graphs that were exported from them, in
all precisions. Each is run by every installed backend that reads it. The plans are compared with those of the
first one in float32, on synthetic scenes that differ in their images and the ego's motion, those of a denoiser in their
noise.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from ..core.config import Config, ConfigError, ModelConfig
from ..core.domain import Array
from ..infra.command import make_table
from ..infra.files import path_text
from ..infra.installing import shipped
from ..infra.progress import track_progress
from ..model.card import CARD, GraphCard
from ..planning import decoding_config, learned_configs
from ..planning.planner import AnyNetwork, prefill_sequences
from ..ros import measured_backend
from ..runtime.model_file import ModelFileError, model_config, read_card, weights_sha256
from ..runtime.network import BACKENDS, load_network, synthetic_inputs, synthetic_vectors
from ..runtime.trt.cuda_device import has_driver
from .network_steps import denoiser_plan, full_rounds, full_step_rounds, run_step, sampled_m, time_actions, token_steps

STEPS = 20  # of each kind that are timed
SCENES = 8  # on which plans are compared
SAME_PLANS_M = 0.01  # futures of two denoisers that differ by less are the same
WEIGHTS = "weights.safetensors"


@dataclass(frozen=True)
class Measured:
    """A model file on a backend, or why it does not run there."""

    file: str
    backend: str
    precision: str
    full_ms: float = float("nan")
    lite_ms: float = float("nan")  # nan where the planner has no lite steps
    same_plans: float = float("nan")  # share of ids, or of futures, that are those of float32
    reason: str = ""
    planner: str = ""
    sha256: str = ""  # of the file

    @property
    def runs(self) -> bool:
        return not self.reason


def measure(config: Config, console: Console) -> list[Measured]:
    """One row for each planner, file and backend. Raises ConfigError without a planner that has a network,
    ModelFileError for a card that cannot be read."""
    learned = learned_configs(config)
    if not learned:
        raise ConfigError(f"--measure times a network, but planner {config.planner} has none: name another planner")
    return [row for own in learned.values() for row in _measure_planner(own, console)]


def _measure_planner(config: Config, console: Console) -> Iterator[Measured]:
    reference, given = None, shipped(config.model.file).absolute()
    candidates = list(files_and_backends(config.model))
    for file, backend in track_progress(candidates, f"measuring {config.planner}", console, len(candidates)):
        row = Measured(str(file), backend, precision_of(file), planner=config.planner)
        try:
            sha256 = model_config(row.file, config.model.sha256 if file == given else None).sha256
            model = replace(config.model, file=row.file, sha256=sha256, backend=backend)
            network = load_network(model, decoding_config(config))
            assert network is not None  # a file is named
        except ModelFileError as fault:
            yield replace(row, reason=str(fault))
            continue
        plans = plans_of(network)
        if reference is None and row.precision == "fp32":
            reference = plans
        same = float("nan") if reference is None else share_of_same(plans, reference, network.kind)
        full_ms, lite_ms = times_ms(network, replace(config, model=model))
        yield replace(row, full_ms=full_ms, lite_ms=lite_ms, same_plans=same, sha256=sha256)


def files_and_backends(model: ModelConfig) -> Iterator[tuple[Path, str]]:
    """The files of a model's weights, and the backends that may read each: graphs, float32 first, then the weights."""
    given = shipped(model.file).absolute()
    weights = given if given.name != CARD else given.parent.parent / WEIGHTS
    digest = weights_sha256(model)
    cards = [
        card
        for card in sorted(weights.parent.glob(f"*/{CARD}"))
        if weights_sha256(ModelConfig(str(card), "")) == digest
    ]
    cards.sort(key=lambda card: precision_of(card) != "fp32")
    for file in [*cards, *([weights] if weights.is_file() else [])]:
        for backend in BACKENDS.get(file.suffix, ()):
            if is_installed(backend):
                yield file, backend


def is_installed(backend: str) -> bool:
    """Whether a backend that is optional has what it needs; the others come with the package."""
    if backend == "openvino":
        return importlib.util.find_spec(backend) is not None
    return backend != "tensorrt" or has_driver()


def precision_of(file: Path) -> str:
    described = read_card(file).get("model") if file.name == CARD else None
    return str(described.get("precision", "fp32")) if isinstance(described, dict) else "fp32"


def times_ms(network: AnyNetwork, config: Config) -> tuple[float, float]:
    """Median milliseconds of a full and of a lite step."""
    quiet = Console(quiet=True)
    if network.kind == "denoiser":
        times = time_actions(STEPS, {"full": denoiser_plan(network, "guidance" in network.capabilities)}, quiet)
        return float(np.median(times["full"][:, 0])), float("nan")
    inputs = synthetic_inputs(network)
    count = len(prefill_sequences(network, inputs).actions)
    times = time_actions(STEPS, token_steps(network, inputs, count, full_step_rounds(config, network.layout)), quiet)
    return float(np.median(times["full"][:, 0])), float(np.median(times["lite"][:, 0]))


def plans_of(network: AnyNetwork) -> list[Array]:
    """What a network writes on SCENES synthetic scenes: ids (M, T), or futures (P, 1 + T, 4) in metres."""
    if network.kind == "denoiser":
        spec, vectors = network.spec, synthetic_vectors(network.spec)
        starts = np.random.default_rng(0).standard_normal((SCENES, spec.futures, 1 + spec.future_steps, 4))
        return [sampled_m(network, vectors, start, guided=False) for start in starts]
    inputs, plans = synthetic_inputs(network), list[Array]()
    for seed in range(SCENES):
        generator = np.random.default_rng(seed)
        noise = generator.integers(-20, 21, inputs.images.shape)
        images = np.clip(inputs.images.astype(np.int16) + noise, 0, 255).astype(np.uint8)
        ego = inputs.ego + generator.normal(0.0, 0.2, inputs.ego.shape).astype(np.float32)
        scene = replace(inputs, images=images, ego=ego)
        plans.append(run_step(network, scene, full_rounds(network.layout))[0])
    return plans


def share_of_same(plans: Sequence[Array], reference: Sequence[Array], kind: str) -> float:
    """The share of ids that are equal, or of futures that differ by less than SAME_PLANS_M."""
    if kind == "denoiser":
        differences_m = np.abs(np.array(plans) - np.array(reference))[..., :2].max(axis=(-1, -2))
        return float(np.mean(differences_m < SAME_PLANS_M))
    return float(np.mean([mine == theirs for mine, theirs in zip(plans, reference, strict=True)]))


def fastest(rows: Sequence[Measured], exact: bool) -> Measured | None:
    """The fastest of those that run; `exact`: of those that write the plans of float32."""
    able = [row for row in rows if row.runs and (not exact or row.same_plans == 1.0)]
    return min(able, key=lambda row: row.full_ms, default=None)


def numbers(rows: Sequence[Measured]) -> list[Mapping[str, Any]]:
    return [{name: None if value != value else value for name, value in asdict(row).items()} for row in rows]


def table(rows: Sequence[Measured]) -> Table:
    cells = []
    for row in rows:
        path = Path(row.file)
        name = "/".join(path.parts[-3 if path.name == CARD else -2 :])
        values = [f"{value:.1f}" if value == value else "-" for value in (row.full_ms, row.lite_ms)]
        same = f"{100.0 * row.same_plans:.1f}" if row.same_plans == row.same_plans else "-"
        cells.append((name, row.backend, row.precision, *(values if row.runs else ("-", "-")), same, row.reason))
    headings = ("file", "backend", "precision", "full step, ms", "lite step, ms", "same ids, %", "does not run because")
    return make_table(headings, cells, f"{STEPS} steps of each kind on this machine, median", texts=3)


def of_planners(rows: Sequence[Measured]) -> dict[str, list[Measured]]:
    """The rows of each planner, by its name."""
    return {name: [row for row in rows if row.planner == name] for name in dict.fromkeys(row.planner for row in rows)}


def report(rows: Sequence[Measured]) -> list[Table | str]:
    """The table, and what to configure for each planner."""
    return [table(rows), *(f"{name}: {advice(some)}" for name, some in of_planners(rows).items())]


def advice(rows: Sequence[Measured]) -> str:
    """Which file of a planner to configure: the fastest with the plans of float32, and a faster one with others."""
    best = fastest(rows, exact=True)
    if best is None:
        return "No backend runs this model: see the reasons above."
    text = f"Fastest with the plans of float32: {settings_of(best)}."
    other = fastest(rows, exact=False)
    if other is not None and other.full_ms < best.full_ms:
        share = 100.0 * (1.0 - other.full_ms / best.full_ms)
        text += (
            f" {other.precision} is {share:.0f} % faster and writes {100.0 * other.same_plans:.1f} % of their ids"
            f"{gate_of(other)}: {settings_of(other)}."
        )
    return text


def keep(config: Config, rows: Sequence[Measured]) -> list[str]:
    """Stores the fastest with the plans of float32 for nodes with `model.backend: auto`, and says so.

    Of several planners that of the first, because `model` holds the settings of its network.
    """
    best = fastest(rows and next(iter(of_planners(rows).values())), exact=True)
    if best is None or config.model.backend != "auto":
        return []
    try:
        measured_backend.keep(
            config, best.file, model_config(best.file, best.sha256 or None).sha256, best.backend, best.full_ms
        )
    except OSError as fault:
        return [f"It is not stored for model.backend auto, {path_text(str(fault.filename))}: {fault.strerror}."]
    return [f"A node with model.backend auto uses it from now on: {path_text(measured_backend.records_file())}."]


def gate_of(row: Measured) -> str:
    """The PDMS of quantised graphs beside that of float32, as their card has it; empty without."""
    gate = GraphCard.read(row.file).gate if Path(row.file).name == CARD else None
    if gate is None:
        return ""
    return f" (PDMS {gate['pdms']:.1f} beside {gate['pdms_fp32']:.1f} on {gate['scenes']} scenes of {gate['set']})"


def settings_of(row: Measured) -> str:
    model = model_config(row.file, row.sha256 or None)
    return f"model.file={row.file} model.sha256={model.sha256} model.backend={row.backend}"
