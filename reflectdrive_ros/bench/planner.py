"""`reflectdrive bench planner --backend onnxruntime --config small`: times of a network's planning step, with a bound.

A full step is prefill_goal, three drafts of six goals and three edits of one (`planning/reflectdrive2.py` stops earlier
if an edit changes nothing); a lite step is prefill and two steps on one action sequence. Full steps that edit all of
their one, three or six sequences are timed too.

All variants run in turn in every round: the backend and eager torch, with and without reuse of the prompt's KV cache.
Without reuse every pass encodes the scene again; eager torch is also timed with one prompt per goal. A network with a
feature cache (`vision.frames` 1, as `base`) is also timed with images that are not cached. Short slowdowns of the
machine therefore affect all variants, and the ratios, which are medians over rounds, hold on a busy machine too. Our
threads never spin while they wait; eager torch's do, unless OMP_WAIT_POLICY is PASSIVE (`eager_threads`).

The bound is a roofline: the minimal FLOPs and bytes of a step (`roofline`), at the copy and matrix rates of this
machine, measured in the same run with as many threads. `reflectdrive bench parity` compares the plans.

With --backend torch --device cuda everything runs on a GPU, and a second table (`bench.gpu`) gives the GPU's properties
and the time of a step kernel by kernel, fused, recorded and compiled. With --backend tensorrt the graphs run on a GPU
in engines; eager torch runs there too if torch finds the GPU, else on the CPU, and then there is no bound, because the
GPU's rates are not measured.

Without --model the weights are random, which does not change the times of dense layers. With --model FILE the graphs
are exported into a temporary folder, where engines are built, or taken from --graphs CARD, with the engines that
`reflectdrive engine` has built from them.

Of a denoiser (--kind denoiser, or by the card of --model) the times of encoding, of one evaluation and of a whole plan
are measured (`bench.denoiser`). No setting (--setting) changes what is measured: the rounds of a step are fixed, and
weights, backend, device and threads are options.
"""

from __future__ import annotations

import argparse
import itertools
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Console

from ..core.config import Config, ConfigError
from ..core.domain import Array
from ..features.images import WORDS, ModelInputs
from ..infra import arguments
from ..infra.command import command
from ..infra.files import sha256_of
from ..infra.progress import track_progress
from ..infra.provenance import write_numbers
from ..model import checkpoint
from ..model.card import KINDS, GraphCard
from ..model.denoiser import checkpoint as curve_checkpoint
from ..model.denoiser.checkpoint import initialised_net
from ..model.token import torch_bench
from ..model.token.cuda_graphs import CudaMode
from ..model.token.net import TokenNet
from ..planning.planner import Network, prefill_sequences, run_rounds
from ..runtime.graphs import group_views
from ..runtime.model_file import model_config, network_kind, read_card, resolve_path
from ..runtime.network import synthetic_inputs, torch_decoding
from ..runtime.torch_backend import TorchNetwork
from ..runtime.torch_denoiser import TorchDenoiser
from . import denoiser
from . import gpu as bench_gpu
from .graphs import denoiser_graphs, token_graphs
from .parity import full_rounds, lite_rounds, run_step
from .planner_tables import tables
from .roofline import Cost, bound_ms, costs

if TYPE_CHECKING:
    from ..runtime.ort_backend import OrtDenoiser
    from ..runtime.trt.backend import TrtDenoiser

BACKENDS = ("onnxruntime", "torch", "tensorrt")
GOALS = (1, 3, 6)
MAX_GOALS = GOALS[-1]
NO_CACHE_STRIDE = 8  # a frame without reuse is timed every this many rounds
PROFILE_RUNS = 30
WARM_UP = 5
CACHED, UNCACHED = "with the ring", "images not cached"
COLD_START_SCRIPT = """
import time; begun = time.perf_counter()
import sys
from reflectdrive_ros.core.config import ModelConfig, override
from reflectdrive_ros.core.recipe_config import DecodingConfig
from reflectdrive_ros.model.card import GraphCard
from reflectdrive_ros.runtime.network import load_network
file, sha256, backend, device, engines, threads = sys.argv[1:]
model = ModelConfig(file, sha256, backend, device, engines, int(threads))
card = GraphCard.read(file)
load_network(model, override(DecodingConfig(), card.decoding() if card.kind == "token" else {}))
print(time.perf_counter() - begun)
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--backend", choices=BACKENDS, default="onnxruntime", help=", ".join(BACKENDS))
    parser.add_argument("--config", choices=("small", "base"), default="small", help="size of the random network")
    parser.add_argument("--kind", choices=tuple(KINDS), default="token", help="of the random network")
    parser.add_argument("--model", metavar="FILE", help="weights to use instead of random ones")
    parser.add_argument("--sha256", metavar="HASH", help="of --model (default: from the card.json beside it)")
    parser.add_argument("--graphs", type=Path, metavar="CARD", help="card of the graphs exported from --model")
    parser.add_argument("--device", metavar="NAME", help="cpu, cuda, cuda:1 .. (cpu; of --backend tensorrt cuda)")
    parser.add_argument("--threads", type=arguments.process_count(), default=2, metavar="N", help="processor threads")
    parser.add_argument("--steps", type=arguments.positive_int(), default=200, metavar="N", help="steps of each kind")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the numbers as JSON")


@command(os_error="{}: {}")
def run(args: argparse.Namespace, console: Console, errors: Console) -> None:
    """Exit code 0; 2 with one sentence on stderr when the model or the set cannot be used."""
    places = resolve_devices(args)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        if args.kind == "denoiser" or (args.model is not None and network_kind(resolve_path(args.model)) == "denoiser"):
            numbers, model = denoiser_figures(args, places, folder, errors)
            write_numbers(args.json, numbers, "", model)
            for shown in denoiser.tables(numbers):
                console.print(shown)
            return
        net, model = load_weights(args)
        eager = TorchNetwork(net, places.eager, torch_decoding(Config().decoding), mode=CudaMode())
        card = None
        if args.backend != "torch":
            card = token_graphs(args, net, model, MAX_GOALS, places.device, folder, errors)
        numbers = figures(args, places, net, eager, card, folder, errors)
    gpu = "" if isinstance(numbers["gpu"], str) else numbers["gpu"]["name"]
    write_numbers(args.json, numbers, gpu, model)
    for shown in tables(numbers, MAX_GOALS):
        console.print(shown)


def denoiser_figures(
    args: argparse.Namespace, places: Devices, folder: Path, errors: Console
) -> tuple[dict[str, Any], str]:
    """The measurements of a denoiser, and the hash of its weights; empty for random ones."""
    if args.model is None:
        net, sha256, capabilities = initialised_net(denoiser.CONFIGS[args.config](), 0), "", ["guidance"]
    else:
        model = model_config(args.model, args.sha256)
        net, sha256 = curve_checkpoint.load(model.file, model.sha256), model.sha256
        capabilities = read_card(Path(model.file)).get("capabilities") or []
    network: TorchDenoiser | OrtDenoiser | TrtDenoiser = TorchDenoiser(net, places.device, capabilities)
    card = None
    if args.backend != "torch":
        card = denoiser_graphs(args, net, sha256, capabilities, places.device, folder, errors)
        if args.backend == "tensorrt":
            from ..runtime.trt.backend import TrtDenoiser

            network = TrtDenoiser(card, places.device)
        else:
            from ..runtime.ort_backend import OrtDenoiser

            network = OrtDenoiser(card, args.threads, "cpu")
    numbers = {
        "backend": args.backend,
        "backend_description": network.backend_description,
        "precision": "fp32" if card is None else card.precision,
        "config": args.model or f"{args.config}, random weights",
        "threads": args.threads,
        "steps": args.steps,
        **denoiser.figures(network, net, places.device if places.alike else None, args.threads, args.steps, errors),
    }
    if card is not None:
        numbers["cold_start_s"] = cold_start_s(card, args.backend, places.device, args.threads)
    return numbers, sha256


@dataclass(frozen=True)
class Devices:
    """Devices of the benchmarked backend and of eager torch."""

    device: str
    eager: str

    @property
    def alike(self) -> bool:
        return self.device == self.eager


def resolve_devices(args: argparse.Namespace) -> Devices:
    """Raises ConfigError, CudaError, EngineError if nothing can run on --device."""
    device = args.device or ("cuda" if args.backend == "tensorrt" else "cpu")
    kind = device.partition(":")[0]
    if kind not in ("cpu", "cuda"):
        raise ConfigError(f"--device is {device}, expected cpu, cuda or cuda:1 ..")
    if args.backend == "tensorrt":
        from ..runtime.trt.backend import import_tensorrt, open_device

        if kind == "cpu":
            raise ConfigError("--device is cpu, but TensorRT runs on GPUs: leave it out")
        import_tensorrt(open_device(device))  # before minutes go into graphs and engines
        return Devices(device, device if torch_bench.has_gpu() else "cpu")
    if kind != "cpu" and args.backend != "torch":
        raise ConfigError(
            f"--device {device} goes with --backend torch or tensorrt: {args.backend} is benched on a CPU"
        )
    if kind != "cpu" and not torch_bench.has_gpu():
        raise ConfigError(f"--device is {device}, but torch finds no GPU: leave it out to run on the CPU")
    return Devices(device, device)


def load_weights(args: argparse.Namespace) -> tuple[TokenNet, str]:
    """The network, and the hash of its file; empty for random weights."""
    if args.model is None:
        return torch_bench.random_net(args.config, WORDS), ""
    model = model_config(args.model, args.sha256)
    return checkpoint.load(model.file, model.sha256), model.sha256


def figures(
    args: argparse.Namespace,
    places: Devices,
    net: TokenNet,
    eager: TorchNetwork,
    card: GraphCard | None,
    folder: Path,
    errors: Console,
) -> dict[str, Any]:
    """The measurements, with the keys of the design: `full_ms_p50` .., and their bounds."""
    bytes_per_s, flop_per_s = torch_bench.measure_peaks(places.eager, args.threads)  # it also sets torch's threads
    inputs = synthetic_inputs(eager)
    network: Network = eager
    parts_ms = {}
    if card is None:
        if places.device != "cpu":
            network = TorchNetwork(net, places.device, eager.decoding)
        parts_ms = torch_bench.parts_ms(net, eager.tensors(inputs), eager.decoding, min(PROFILE_RUNS, args.steps))
    elif args.backend == "tensorrt":
        from ..runtime.trt.backend import TrtNetwork

        network = TrtNetwork(card, places.device)
    else:
        from ..runtime.ort_backend import OrtNetwork, profile_nodes

        network = OrtNetwork(card, args.threads, "cpu")
        runs = min(PROFILE_RUNS, args.steps)
        looking = profile_nodes(card, "vision_encoder", {"views": group_views(card, inputs.images)}, runs, folder)
        goals = "goals" in network.capabilities
        feeds = network.goal_inputs(inputs) if goals else network.graph_inputs(inputs)
        reading = profile_nodes(card, "prefill_goal" if goals else "prefill", feeds, runs, folder)
        parts_ms = {"vision": sum(looking.values()), **split(reading, folder / "run.onnx")}
    compared = network is not eager
    spent_ms = time_actions(args.steps, make_actions(network, eager, net, inputs, compared), errors)

    step, one = costs(net.config, MAX_GOALS), costs(net.config, 1)
    full, lite = full_rounds(network.layout), lite_rounds(network.layout)
    edits = sum(edit for _, edit in full)

    def of_parts(read: Mapping[str, Cost], steps: list[Cost]) -> float | None:
        if not places.alike:
            return None
        parts = [*read.values(), *steps]
        return sum(bound_ms(part, bytes_per_s, flop_per_s) for part in parts)

    bound = {
        "full": of_parts(
            {name: cost for name, cost in step.items() if name != "step"},
            [step["step"].times(len(full) - edits), one["step"].times(edits)],
        ),
        "lite": of_parts({name: one[name] for name in ("vision", "prefill")}, [one["step"].times(len(lite))]),
    }
    numbers: dict[str, Any] = {
        "backend": args.backend,
        "backend_description": getattr(network, "backend_description", ""),
        "precision": "fp32" if card is None else card.precision,
        "eager_backend_description": eager.backend_description,
        "eager_threads": "passive" if os.environ.get("OMP_WAIT_POLICY", "").upper() == "PASSIVE" else "spin",
        "config": args.model or f"{args.config}, random weights",
        "parameters": sum(parameter.numel() for parameter in net.parameters()),
        "threads": args.threads,
        "steps": args.steps,
        "copy_gb_per_s": bytes_per_s / 1e9 if places.alike else None,
        "matmul_gflop_per_s": flop_per_s / 1e9 if places.alike else None,
        "gflop": {name: part.flop / 1e9 for name, part in step.items()},
        "mb": {name: part.bytes / 1e6 for name, part in step.items()},
        "parts_ms_p50": parts_ms,
        "gpu": bench_gpu.measure(net, eager, inputs, places.eager, args.steps),
    }
    for kind in ("full", "lite"):
        wall, busy = spent_ms[kind][:, 0], spent_ms[kind][:, 1]
        numbers |= {f"{kind}_ms_p50": float(np.median(wall)), f"{kind}_ms_p99": float(np.percentile(wall, 99))}
        numbers |= {f"{kind}_cpu_ms_p50": float(np.median(busy)), f"roofline_{kind}_ms": bound[kind]}
    numbers["full_by_goals_ms_p50"] = {str(goals): float(np.median(spent_ms[f"full {goals}"][:, 0])) for goals in GOALS}
    for row, name in enumerate(("prefill_goal", "draft", "edit", "host"), start=2):
        numbers[f"{name}_ms_p50"] = float(np.median(spent_ms["full"][:, row]))
    updates = {
        goals: torch_bench.updates_ms(net, places.eager, eager.decoding.edits, goals, PROFILE_RUNS)
        for goals in (1, MAX_GOALS)
    }
    numbers["update_ms_p50"] = {str(goals): spent["token_ops"] for goals, spent in updates.items()}
    numbers |= ratios(spent_ms, compared)
    if card is not None:
        numbers["cold_start_s"] = cold_start_s(card, args.backend, places.device, args.threads)
    return numbers


Action = Callable[[], tuple[float, ...]]


def make_actions(
    network: Network, eager: TorchNetwork, net: TokenNet, inputs: ModelInputs, compared: bool
) -> dict[str, Action]:
    """The actions of each round. Each returns milliseconds of prefill, drafts and edits, if it measures them."""
    layout = network.layout
    full, lite = full_rounds(layout), lite_rounds(layout)
    last = run_step(network, inputs, full, MAX_GOALS)[0][:1].copy()
    last[:, layout.waypoint(layout.points - 1)] = layout.mask_id  # the part that a lite step has to write

    def whole(of: Network, count: int, edited: int | None = None) -> Action:
        turns = consecutive_inputs(inputs, network.inputs.cameras)
        return lambda: run_step(of, next(turns), full, count, edited=edited)[1]

    def short(of: Network, uncached: bool = False) -> Action:
        turns = consecutive_inputs(inputs, network.inputs.cameras, uncached)
        return lambda: run_step(of, next(turns), lite, 1, last)[1]

    def afresh(count: int, packed: bool) -> Action:
        def action() -> tuple[float, ...]:
            tensors = eager.tensors(inputs)
            torch_bench.full_step_uncached(net, tensors, eager.decoding, count, packed)
            torch_bench.synchronize(tensors[0].device)
            return ()

        return action

    def again(count: int) -> Action:
        turns = consecutive_inputs(inputs, network.inputs.cameras)

        def action() -> tuple[float, ...]:
            reading_again(network, next(turns), count, 1)
            return ()

        return action

    found: dict[str, Action] = {"full": whole(network, MAX_GOALS, 1), "lite": short(network)}
    found |= {f"full {goals}": whole(network, goals) for goals in GOALS}
    found |= {f"eager full {goals}": whole(eager, goals) for goals in (MAX_GOALS, 1)}
    found |= {f"without reuse {goals}": afresh(goals, True) for goals in (MAX_GOALS, 1)}
    found["without sharing"] = afresh(MAX_GOALS, False)
    found |= {f"without own reuse {goals}": again(goals) for goals in (MAX_GOALS, 1)}
    if net.config.vision.frames == 1:
        found |= {CACHED: short(eager), UNCACHED: short(eager, uncached=True)}
    return {**found, "eager lite": short(eager)} if compared else found


def reading_again(network: Network, inputs: ModelInputs, count: int, edited: int | None = None) -> Array:
    """As a full `run_step`, but every pass encodes the scene again, including images."""

    def step(actions: Array, limit: int, edit: bool) -> tuple[Array, Array]:
        return network.step(network.prefill(inputs), actions[:edited] if edit else actions, limit, edit)

    return run_rounds(step, prefill_sequences(network, inputs).actions[:count], full_rounds(network.layout))[0]


def consecutive_inputs(inputs: ModelInputs, cameras: int, uncached: bool = False) -> Iterator[ModelInputs]:
    """The same scene step after step, each time with new newest images, the last step's as the older ones.

    A network with a feature cache therefore encodes as many images as on the road, or all of them if `uncached`: then
    the older images are new too.
    """
    older = inputs.images[-cameras:]
    for turn in itertools.count():
        newest = older.copy()
        newest[:, 0, :2] = np.array([turn % 256, turn // 256 % 256], np.uint8)[:, None]
        between = inputs.images[cameras:-cameras]
        yield replace(inputs, images=np.concatenate([255 - newest if uncached else older, between, newest]))
        older = newest


def time_actions(steps: int, actions: Mapping[str, Action], console: Console) -> dict[str, Array]:
    """(N, 6) milliseconds of each action: wall time, CPU time, prefill, drafts, edits, the rest."""
    rows: dict[str, list[list[float]]] = {name: [] for name in actions}
    for turn in track_progress(range(-WARM_UP, steps), "planning", console):
        for name, action in actions.items():
            if name.startswith("without") and turn % NO_CACHE_STRIDE:
                rows[name].append([float("nan")] * 6)
                continue
            wall, busy = time.perf_counter_ns(), time.process_time_ns()
            calls = action()
            wall, busy = time.perf_counter_ns() - wall, time.process_time_ns() - busy
            inner = [*calls, 1e-6 * wall - sum(calls)] if calls else [float("nan")] * 4
            rows[name].append([1e-6 * wall, 1e-6 * busy, *inner])
    return {name: np.array(some)[WARM_UP:] for name, some in rows.items()}


def ratios(spent_ms: Mapping[str, Array], compared: bool) -> dict[str, float]:
    """Medians over rounds of one's time over another's, in the same round; all of six goals edited, and one of one."""
    found = {}
    for goals, ending in ((MAX_GOALS, ""), (1, "_one_goal")):
        own = spent_ms[f"full {goals}"][:, 0]
        eager, without = (spent_ms[f"{name} {goals}"][:, 0] for name in ("eager full", "without reuse"))
        found[f"eager_full_ms_p50{ending}"] = float(np.median(eager))
        found[f"eager_without_reuse_full_ms_p50{ending}"] = float(np.nanmedian(without))
        found[f"reuse_times_faster{ending}"] = float(np.nanmedian(without / eager))
        if compared:
            found[f"times_faster_than_eager{ending}"] = float(np.median(eager / own))
            found[f"times_faster_than_eager_without_reuse{ending}"] = float(np.nanmedian(without / own))
    for goals, name, ending in ((MAX_GOALS, "full", ""), (1, "full 1", "_one_goal")):
        again = spent_ms[f"without own reuse {goals}"][:, 0]
        found[f"reading_again_full_ms_p50{ending}"] = float(np.nanmedian(again))
        found[f"own_reuse_times_faster{ending}"] = float(np.nanmedian(again / spent_ms[name][:, 0]))
    eager, without = spent_ms[f"eager full {MAX_GOALS}"][:, 0], spent_ms["without sharing"][:, 0]
    found["eager_without_sharing_full_ms_p50"] = float(np.nanmedian(without))
    found["sharing_times_faster"] = float(np.nanmedian(without / eager))
    if CACHED in spent_ms:
        cached, uncached = spent_ms[CACHED][:, 0], spent_ms[UNCACHED][:, 0]
        found |= {"eager_lite_with_ring_ms_p50": float(np.median(cached))}
        found |= {"eager_lite_without_ring_ms_p50": float(np.median(uncached))}
        found |= {"ring_times_faster": float(np.median(uncached / cached))}
    if compared:
        own = spent_ms[f"full {MAX_GOALS}"][:, 0]
        found["times_faster_than_eager_without_sharing"] = float(np.nanmedian(without / own))
        eager, own = spent_ms["eager lite"][:, 0], spent_ms["lite"][:, 0]
        found |= {
            "eager_lite_ms_p50": float(np.median(eager)),
            "times_faster_than_eager_lite": float(np.median(eager / own)),
        }
    return found


def split(spent_ms: Mapping[str, float], file: Path) -> dict[str, float]:
    """Milliseconds of a prefill's parts: before the KV cache, the goals, and the rest."""
    import onnx_ir as ir

    graph = ir.load(file).graph
    needed = {value.name for value in graph.outputs if (value.name or "").startswith(("keys_", "values_"))}
    for node in reversed(list(graph)):
        if any(value.name in needed for value in node.outputs):
            needed |= {value.name for value in node.inputs if value is not None}
    parts = {"prefill": 0.0, "goal": 0.0}
    for node in graph:
        kept = any(value.name in needed for value in node.outputs)
        parts["prefill" if kept else "goal"] += spent_ms.get(node.name or "", 0.0)
    return parts


def cold_start_s(card: GraphCard, backend: str, device: str, threads: int) -> float:
    """Seconds from a fresh process to a network that has been tried once: the median of three."""
    file = card.path.resolve()
    words = [sys.executable, "-c", COLD_START_SCRIPT, str(file), sha256_of(file), backend, device, "", str(threads)]
    return median(float(subprocess.run(words, capture_output=True, text=True, check=True).stdout) for _ in range(3))
