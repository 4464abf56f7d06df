"""Networks in TensorRT, from engines that `reflectdrive engine` built from exported graphs.

    network = TrtNetwork(card, "cuda", folder)

Engines are loaded here and never built: that takes minutes and the whole GPU, and is done before driving. Every buffer
is allocated and bound once. The prefills write their KV cache to the buffers that `step` reads, so that nothing is
copied between calls; the next prefill overwrites it, and a context of an earlier scene is refused. A call is one copy
in, one launch, one copy out and one wait. If CUDA can capture that, it is launched as one graph; else its parts are
queued one by one, and `backend_description` reports it.

TensorRT ends the process when it is called without a driver. Therefore a device is opened first, through the driver;
only then is TensorRT imported. Only functions that TensorRT 10.13, 10.16 and 11.4 all have are used. TensorRT for RTX,
which NVIDIA ships for GeForce and RTX cards, has the same functions in a module of another name.
"""

from __future__ import annotations

import importlib
import importlib.util
import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, Literal

import numpy as np

from ...core.domain import Array
from ...features.images import ModelInputs
from ...features.vectors import VectorInputs
from ...infra.installing import pip_extra
from ...model.card import LARGEST_BATCH, GraphCard
from ...planning.planner import PlanningError, Prefilled, draft_sequentially
from ..graphs import GoalChoice, check_feeds, graph_inputs, input_spec, make_feature_cache, run_batched
from ..vector_batch import batch, noisy_futures
from . import engine_cache
from .cuda_device import CudaDevice, CudaError
from .engine_cache import EngineError, EngineKey, Machine

RTX_MODULE = "tensorrt_rtx_bindings"
LIBRARIES = {  # module -> name and lowest version that is supported; the first one that can be imported is used
    "tensorrt": ("TensorRT", (10, 13)),  # of JetPack 7.0
    RTX_MODULE: ("TensorRT for RTX", (1, 7)),
}
FLAGS = ("STRONGLY_TYPED", "no TF32")  # arithmetic as in the graph
# TensorRT's element types; integers of the same size stand for types that NumPy lacks
DTYPES = {
    "UINT8": np.uint8,
    "INT64": np.int64,
    "BOOL": np.bool_,
    "FLOAT": np.float32,
    "BF16": np.uint16,
}
ALIGNMENT = 256  # bytes; what cudaMalloc promises, and kernels rely on
CONTEXT = ("keys_", "values_", "condition", "absent")  # names of the tensors of an encoded scene begin so
CONTEXT_GRAPHS = {  # kind of network -> graphs that read an encoded scene, graphs that write it; not all have all
    "token": (("step", "sampled_step", "refine", "edit"), ("prefill_goal", "prefill")),
    "denoiser": (("denoiser",), ("encoder",)),
}

log = logging.getLogger(__name__)


class TrtNetwork:
    """`planning.planner.Network` by four engines. For one thread at a time."""

    kind: Literal["token"] = "token"

    def __init__(
        self,
        card: GraphCard,
        device: str = "auto",
        folder: Path | None = None,
        capture: bool = True,
    ) -> None:
        """device: as `model.device`. folder: of the engines, as `engine_folder`. capture: whether to try CUDA graphs.

        Raises GraphError, CudaError or EngineError, a sentence each.
        """
        self.layout = card.layout()
        self.capabilities = card.capabilities
        self._card, self.goal_choice = card, GoalChoice.of(card)
        self.inputs = input_spec(card)
        self._scene = EncodedScene(0)
        self._sequences, self._calls, opened = open_calls(card, device, folder)
        self._feature_cache = make_feature_cache(
            card, lambda views: self._calls["vision_encoder"].run({"views": views})["features"]
        )
        self.backend_description = f"{opened}, {_warm_up(list(self._calls.values()), capture)}"

    def prefill_goal(self, inputs: ModelInputs) -> Prefilled:
        out = self._read("prefill_goal", inputs, self.goal_choice.inputs())
        return self.goal_choice.prefilled(self._scene, out["actions"], out["goal_log_probs"], out["valid"])

    def prefill(self, inputs: ModelInputs) -> Any:
        self._read("prefill", inputs, {})
        return self._scene

    def _read(self, graph: str, inputs: ModelInputs, more: Mapping[str, Array]) -> dict[str, Array]:
        self._scene = EncodedScene(
            self._scene.number + 1
        )  # first: whatever happens, the one before is being overwritten
        return self._calls[graph].run({**graph_inputs(inputs, self._feature_cache), **more})

    def step(self, context: Any, actions: Array, limit: int, edit: bool) -> tuple[Array, Array]:
        flags: dict[str, Array] = {"limit": np.array(limit, np.int64), "edit": np.array(edit, np.bool_)}
        return self._decode("step", context, actions, lambda: flags)

    def sampled_step(
        self, context: Any, actions: Array, limit: int, temperature: Array, share: Array
    ) -> tuple[Array, Array]:
        sampling_rows = np.concatenate([temperature[:, None], share], axis=1).astype(np.float32)

        def feeds(numbers: Array) -> dict[str, Array]:
            return {
                "limit": np.array(limit, np.int64),
                "temperature": numbers[None, :, :1],
                "share": numbers[None, :, 1:],
            }

        return self._decode("sampled_step", context, actions, feeds, sampling_rows)

    def refine(self, context: Any, actions: Array, critique: Array | None = None) -> tuple[Array, Array]:
        if critique is None:
            return self._decode("refine", context, actions, dict)
        return self._decode("edit", context, actions, lambda rows: {"critique": rows[None]}, critique)

    def _decode(
        self,
        graph: str,
        context: Any,
        actions: Array,
        feeds: Callable[..., Mapping[str, Array]],
        sequence_rows: Array | None = None,
    ) -> tuple[Array, Array]:
        """Ids (M, T) that a graph writes from sequences (M, T), and their confidence (M, T); `feeds` makes its other
        inputs of the rows of `sequence_rows`."""
        self._scene.check(context)

        def call(ids: Array, *rows: Array) -> tuple[Array, Array]:
            out = self._calls[graph].run({"actions": ids, **feeds(*rows)})
            return out["written"][0], out["confidence"][0]

        return run_batched(call, actions, self._sequences, sequence_rows)

    def draft(self, context: Any, actions: Array, limits: Sequence[int]) -> tuple[Array, Array]:
        return draft_sequentially(self, context, actions, limits)


class TrtDenoiser:
    """`planning.denoiser.Denoiser` by two engines of a fixed batch. For one thread at a time."""

    kind: Literal["denoiser"] = "denoiser"

    def __init__(self, card: GraphCard, device: str = "auto", folder: Path | None = None, capture: bool = True) -> None:
        """As `TrtNetwork`. Raises GraphError, CudaError or EngineError."""
        self.spec, self.capabilities = card.vector_spec(), card.capabilities
        self._scene, self._rows = EncodedScene(0), 1
        self._batch, self._calls, opened = open_calls(card, device, folder)
        self.backend_description = f"{opened}, {_warm_up(list(self._calls.values()), capture)}"

    def encode(self, inputs: VectorInputs, with_unconditional: bool) -> EncodedScene:
        arrays = batch(inputs, with_unconditional, self._batch)
        self._scene, self._rows = (
            EncodedScene(self._scene.number + 1),
            1 + with_unconditional,
        )  # first, as in TrtNetwork
        self._calls["encoder"].run(arrays)
        return self._scene

    def denoise(self, context: EncodedScene, futures: Array, time: float) -> Array:
        self._scene.check(context)
        feeds = {"futures": noisy_futures(futures, self.spec), "time": np.array(time, np.float32)}
        return np.asarray(self._calls["denoiser"].run(feeds)["clean"][: self._rows], np.float64)


@dataclass(frozen=True, eq=False)
class EncodedScene:
    """Identifies the owner of the keys and values in the buffers."""

    number: int  # of encoded scenes so far

    def __str__(self) -> str:
        return f"scene {self.number}"

    def check(self, context: Any) -> None:
        """Raises PlanningError unless `context` is this scene, the last that was encoded."""
        if context is not self:
            raise PlanningError(
                f"keys and values of {context!s:.20} are gone: {self} was read into their place; prefill again"
            )


# --- what there is to run --------------------------------------------------------------------------------------------


def open_device(device: str) -> CudaDevice:
    """The GPU of `model.device`. Raises CudaError."""
    kind, _, number = device.partition(":")
    if kind == "cpu":
        raise CudaError("model.device is cpu, but TensorRT runs on GPUs: set it to auto or cuda")
    return CudaDevice(int(number or 0))


def import_tensorrt(gpu: CudaDevice) -> Any:
    """The library, given a GPU that it will find. Raises EngineError where it is missing, broken or too old."""
    gpu.use()
    present = [module for module in LIBRARIES if importlib.util.find_spec(module) is not None]
    return import_library(present[0] if present else "tensorrt")


def import_library(module: str) -> Any:
    """One of LIBRARIES. Raises EngineError as `import_tensorrt`."""
    name, lowest = LIBRARIES[module]
    try:
        trt = importlib.import_module(module)
    except (ImportError, OSError) as fault:  # OSError: of the wheels, when they load their libraries
        reason = (
            f"make test-tensorrt fetches it, or {pip_extra('tensorrt-rtx')}"
            if module == RTX_MODULE
            else "on Thor it is JetPack's python3-libnvinfer, which a virtual environment finds with "
            "--system-site-packages; elsewhere pip install tensorrt"
        )
        raise EngineError(f"{name} cannot be imported ({fault}): {reason}") from None
    if tuple(int(part) for part in trt.__version__.split(".")[:2]) < lowest:
        raise EngineError(f"{name} {trt.__version__} is too old: {'.'.join(map(str, lowest))} or later is needed")
    return trt


def version_of(trt: Any) -> str:
    """Version of the library for messages and keys, such as 10.13.3.9 or, of TensorRT for RTX, for RTX 1.7.1.116."""
    name, _ = LIBRARIES[trt.__name__]
    return f"{name} {trt.__version__}".removeprefix("TensorRT ")


class TrtLogger:
    """Receives TensorRT's messages and keeps the latest errors for the exception."""

    def __init__(self, sink: Any, errors: deque[str]) -> None:
        self.sink, self._errors = sink, errors

    @staticmethod
    def of(trt: Any) -> TrtLogger:
        errors: deque[str] = deque(maxlen=3)
        serious = (trt.ILogger.INTERNAL_ERROR, trt.ILogger.ERROR)

        class Sink(trt.ILogger):  # type: ignore[misc]
            def __init__(self) -> None:
                trt.ILogger.__init__(self)  # not by super(): pybind11 checks that it was called by its name

            def log(self, severity: Any, message: str) -> None:
                if severity in serious:
                    errors.append(" ".join(message.split())[:300])
                else:
                    log.debug(message)

        return TrtLogger(Sink(), errors)

    def take_errors(self) -> str:
        """The errors since the last call."""
        words = " | ".join(self._errors) or "without a reason"
        self._errors.clear()
        return words

    def create(self, make: Callable[[], Any], what: str) -> Any:
        """The result of `make`. Raises EngineError if TensorRT returns nothing, or reports an error."""
        self._errors.clear()
        try:
            created = make()
        except Exception as fault:  # pybind11 turns a null pointer of a constructor into a TypeError
            self._errors.append(str(fault))
            created = None
        if created is None or self._errors:
            raise EngineError(f"TensorRT returns no {what}: {self.take_errors()}")
        return created


def machine_of(trt: Any, gpu: CudaDevice) -> Machine:
    return Machine(version_of(trt), gpu.name, gpu.capability, gpu.processors, gpu.cuda)


def open_calls(card: GraphCard, device: str, folder: Path | None) -> tuple[int, dict[str, Call], str]:
    """The fixed size of the calls (`fixed_size`), the loaded engines by graph, and a description of the backend.

    Raises CudaError, EngineError.
    """
    gpu = open_device(device)
    trt = import_tensorrt(gpu)
    size = fixed_size(card)
    logger, machine = TrtLogger.of(trt), machine_of(trt, gpu)
    engines_folder, do = engine_folder(card, folder), remedy(card, folder, device)
    loaded = {
        name: _load_engine(trt, logger, engine_key(card, name, machine), engines_folder, do) for name in card.files
    }
    shared_addresses = _share_context(gpu, loaded, card.kind)
    calls = {name: Call(name, engine, gpu, logger, shared_addresses) for name, engine in loaded.items()}
    return size, calls, f"TensorRT {version_of(trt)} on {gpu.name}, {card.precision}"


def engine_key(card: GraphCard, name: str, machine: Machine) -> EngineKey:
    return EngineKey(name, card.sha256[name], card.precision, FLAGS, machine)


def engine_folder(card: GraphCard, folder: Path | None) -> Path:
    """Folder of a card's engines: the configured one, else beside the card."""
    return folder or card.path.parent / "engines"


def fixed_size(card: GraphCard) -> int:
    """Action sequences of a step, or scenes and conditions of a denoiser's call, in an engine, which has one shape.

    Where the graphs leave the number free, it is that of the goals of their card, or the largest batch.
    """
    if card.kind == "denoiser":
        return card.batch or LARGEST_BATCH
    return int(card.model["action_sequences"] or card.model["decoding"]["goals"]["count"])


def free_size(card: GraphCard, graph: str) -> int:
    """Size of the dimension that a graph may leave free, in its engine."""
    return int(card.model["inputs"]["cameras"]) if graph == "vision_encoder" else fixed_size(card)


def remedy(card: GraphCard, folder: Path | None, device: str) -> str:
    words = ["reflectdrive engine", str(card.path)]
    words += ["--folder", str(folder)] if folder else []
    words += ["--device", device] if ":" in device else []
    return f"build it, which takes minutes, with: {' '.join(words)}"


# --- one engine ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Tensor:
    """An input or output of an engine."""

    dtype: np.dtype
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        return prod(self.shape) * self.dtype.itemsize


@dataclass(frozen=True, eq=False)
class TrtEngine:
    """A loaded engine with its declared inputs and outputs."""

    execution: Any  # IExecutionContext
    holds: tuple[Any, ...]  # objects that must not be freed before it
    inputs: Mapping[str, Tensor]
    outputs: Mapping[str, Tensor]


def _load_engine(trt: Any, logger: TrtLogger, key: EngineKey, folder: Path, do: str) -> TrtEngine:
    """The engine of one graph. Raises EngineError, with `do` as what to do."""
    plan = engine_cache.load(folder, key, do)
    runtime = logger.create(lambda: trt.Runtime(logger.sink), "runtime")
    what = f"engine from {folder / key.name}.plan (delete it and {do})"
    engine = logger.create(lambda: runtime.deserialize_cuda_engine(plan), what)
    execution = logger.create(engine.create_execution_context, f"room to run {key.graph}")
    inputs, outputs = dict[str, Tensor](), dict[str, Tensor]()
    for name in map(engine.get_tensor_name, range(engine.num_io_tensors)):
        kind = engine.get_tensor_dtype(name).name
        if kind not in DTYPES:
            raise EngineError(f"the engine of {key.graph} has {kind} {name}, which no exported graph has: {do}")
        side = inputs if engine.get_tensor_mode(name) == trt.TensorIOMode.INPUT else outputs
        side[name] = Tensor(np.dtype(DTYPES[kind]), tuple(engine.get_tensor_shape(name)))
    return TrtEngine(execution, (logger.sink, runtime, engine), inputs, outputs)


def _share_context(gpu: CudaDevice, engines: Mapping[str, TrtEngine], kind: str) -> dict[str, int]:
    """Addresses of the tensors that go from one engine to the other. Raises EngineError, CudaError."""
    readers, writers = ([graph for graph in graphs if graph in engines] for graphs in CONTEXT_GRAPHS[kind])
    read = {
        name: tensor for graph in readers for name, tensor in engines[graph].inputs.items() if name.startswith(CONTEXT)
    }
    for graph in writers:
        written = {name: tensor for name, tensor in engines[graph].outputs.items() if name.startswith(CONTEXT)}
        if written != read:
            raise EngineError(f"the engines of {graph} and {readers[0]} do not belong together: build both again")
    return Buffers(gpu, read).addresses


class Buffers:
    """Tensors side by side on the device, so that one copy moves them all."""

    def __init__(self, gpu: CudaDevice, tensors: Mapping[str, Tensor]) -> None:
        self.offsets, self.size = dict[str, int](), 0
        for name, tensor in tensors.items():
            self.offsets[name] = self.size
            self.size += -(-tensor.nbytes // ALIGNMENT) * ALIGNMENT
        self.address = gpu.allocate(self.size)
        self.addresses = {name: self.address + offset for name, offset in self.offsets.items()}


class PinnedBuffers(Buffers):
    """The same, with the host's side of that copy: `arrays` by name, as views of pinned memory."""

    def __init__(self, gpu: CudaDevice, tensors: Mapping[str, Tensor]) -> None:
        super().__init__(gpu, tensors)
        self.host = gpu.allocate_pinned(self.size)
        self.arrays = {
            name: self.host[at : at + tensors[name].nbytes].view(tensors[name].dtype).reshape(tensors[name].shape)
            for name, at in self.offsets.items()
        }


class Call:
    """One engine with all its buffers bound: arrays in, arrays out."""

    def __init__(
        self, name: str, engine: TrtEngine, gpu: CudaDevice, logger: TrtLogger, shared_addresses: Mapping[str, int]
    ) -> None:
        self._name, self._engine, self._gpu, self._logger = name, engine, gpu, logger
        self._inputs = {tensor: kind for tensor, kind in engine.inputs.items() if tensor not in shared_addresses}
        self._in = PinnedBuffers(gpu, self._inputs)
        self._out = PinnedBuffers(
            gpu, {tensor: kind for tensor, kind in engine.outputs.items() if tensor not in shared_addresses}
        )
        self.graph: int | None = None  # of `capture`; without it the parts are queued one by one
        addresses = {**shared_addresses, **self._in.addresses, **self._out.addresses}
        for tensor in (*engine.inputs, *engine.outputs):
            if not engine.execution.set_tensor_address(tensor, addresses[tensor]):
                raise EngineError(f"TensorRT does not bind {tensor} of {name}: {logger.take_errors()}")
        if missing := engine.execution.infer_shapes():
            raise EngineError(f"TensorRT does not know the shape of {', '.join(missing)} of {name}")

    def run(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        """Outputs by name, copies. Raises PlanningError for a wrong feed, and when the GPU fails."""
        check_feeds(
            self._name,
            {name: (tensor.dtype, tensor.shape) for name, tensor in self._inputs.items()},
            {name: (array.dtype, array.shape) for name, array in feeds.items()},
        )
        for name, array in feeds.items():
            self._in.arrays[name][...] = array
        try:
            self.execute()
        except (CudaError, EngineError) as fault:
            raise PlanningError(f"graph {self._name} failed: {fault}; if it persists, restart the node") from None
        return {name: array.copy() for name, array in self._out.arrays.items()}

    def execute(self) -> None:
        """Runs on the contents of the host buffers until the results are in them. Raises CudaError, EngineError."""
        self._gpu.use()
        if self.graph is None:
            self._queue()
        else:
            self._gpu.launch(self.graph)
        self._gpu.wait()

    def capture(self) -> int:
        """The parts as one CUDA graph. Raises CudaError, EngineError."""
        return self._gpu.capture(self._queue)

    def _queue(self) -> None:
        self._gpu.upload(self._in.address, self._in.host)
        if not self._engine.execution.execute_async_v3(self._gpu.stream):
            raise EngineError(f"TensorRT does not run {self._name}: {self._logger.take_errors()}")
        self._gpu.download(self._out.host, self._out.address)


def _warm_up(calls: Sequence[Call], capture: bool) -> str:
    """How the calls are launched, after each was run once: the first run does what cannot be captured.

    Raises CudaError, EngineError.
    """
    for call in calls:
        call.execute()
    if not capture:
        return "launched in parts"
    try:
        graphs = [call.capture() for call in calls]
    except (CudaError, EngineError) as fault:
        return f"launched in parts ({fault})"
    for call, graph in zip(calls, graphs, strict=True):
        call.graph = graph
    return "CUDA graphs"
