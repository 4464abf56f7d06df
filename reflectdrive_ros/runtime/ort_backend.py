"""Networks in ONNX Runtime, from the graphs of `reflectdrive export`: the default on CPUs, without torch.

    network = OrtNetwork(GraphCard.read("models/mine/onnx/card.json"), threads=2)   # OrtDenoiser of a denoiser's card

Inputs and outputs are arrays; the prompt's KV cache stays in ONNX Runtime's own tensors, on its device. Inputs of a
graph are checked against its file.

Threads divide cameras and action sequences among themselves, which are independent: each thread runs its share without
synchronisation until the end. The prompt cannot be divided; there threads share each operator. An operator of a network
this small takes hardly longer than waking a second thread, unless threads spin in between, which would take processor
time from the camera drivers. Two threads therefore save some wall time for more total work. A process that makes many
plans at once (a replay, a scene set) gives each network one thread.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np

# from 1.29 it opens a database of its runs and sends it to its maker, with an identifier of this machine: a vehicle
# does not, unless its owner sets the variable to 0. It is read when the library is imported
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

import onnxruntime as ort

from ..core.domain import Array
from ..core.tokens import Round
from ..features.images import ModelInputs
from ..features.vectors import VectorInputs
from ..model.card import CALIBRATION_PREFIX, GraphCard, GraphError
from ..planning.planner import PlanningError, Prefilled, run_rounds
from .graphs import (
    GoalChoice,
    check_feeds,
    concat_outputs,
    graph_inputs,
    input_spec,
    make_feature_cache,
    run_batched,
)
from .vector_batch import EncodedVectors, batch, noisy_futures

DTYPES = {"tensor(uint8)": np.uint8, "tensor(int64)": np.int64, "tensor(float)": np.float32, "tensor(bool)": np.bool_}
CPU, CUDA = "CPUExecutionProvider", "CUDAExecutionProvider"
T = TypeVar("T")
ERROR_SEVERITY = 3  # of ONNX Runtime's levels: errors
DISABLED_OPTIMIZERS = ["SkipLayerNormFusion"]  # fusions that are slower on a CPU than their parts
# these precede the search for integer products and hide some of them: the first merges the QuantizeLinear of products
# with a common input, the second takes a product with its bias
DISABLED_FOR_INT8 = ["CommonSubexpressionElimination", "MatMulAddFusion"]
# graphs whose operators use several threads, because there is one prompt only
MULTITHREADED_GRAPHS = ("prefill", "prefill_goal")


class OrtNetwork:
    """`planning.planner.Network` by four graphs, in float32, int8, or fp8, which is taken back to float32."""

    kind: Literal["token"] = "token"
    concurrent = True  # a scene may be read while steps run on another

    def __init__(self, card: GraphCard, threads: int = 1, device: str = "auto") -> None:
        """device: as `model.device`. Raises GraphError for graphs that cannot be used."""
        if card.precision == "bf16":
            raise GraphError(
                f"{card.path} is in bf16, which ONNX Runtime does not run: build TensorRT engines of it "
                "with reflectdrive engine, or export the checkpoint again without --precision"
            )
        device = _device(device)
        self.backend_description = _description(card, device, threads)
        self.layout = card.layout()
        self.capabilities = card.capabilities
        self._card, self.goal_choice = card, GoalChoice.of(card)
        self.inputs = input_spec(card)
        self._sequences: int | None = card.model["action_sequences"]
        self._graphs = {name: self._graph(card, name, device, threads) for name in card.files}
        self._feature_cache = make_feature_cache(card, self._encode_views)
        self._workers = threads if device == "cpu" and self._sequences is None else 1
        self._pool = ThreadPoolExecutor(max(self._workers - 1, 1), thread_name_prefix="parts")

    def _graph(self, card: GraphCard, name: str, device: str, threads: int) -> Graph:
        return Graph(card, name, device, threads if name in MULTITHREADED_GRAPHS else 1)

    @staticmethod
    def from_file(path: str | Path, threads: int = 1, device: str = "auto") -> OrtNetwork:
        """Raises GraphError."""
        return OrtNetwork(GraphCard.read(path), threads, device)

    def prefill_goal(self, inputs: ModelInputs) -> Prefilled:
        out = self._graphs["prefill_goal"].run(self.goal_inputs(inputs))
        decided = [out.pop(name).numpy() for name in ("actions", "goal_log_probs", "valid")]
        return self.goal_choice.prefilled(out, *decided)

    def prefill(self, inputs: ModelInputs) -> Any:
        return self._graphs["prefill"].run(self.graph_inputs(inputs))

    def graph_inputs(self, inputs: ModelInputs) -> dict[str, Array]:
        """Inputs of the two graphs that encode a scene, from image features. Raises PlanningError."""
        return graph_inputs(inputs, self._feature_cache)

    def goal_inputs(self, inputs: ModelInputs) -> dict[str, Array]:
        """The inputs of `prefill_goal`. Raises PlanningError."""
        return {**self.graph_inputs(inputs), **self.goal_choice.inputs()}

    def _encode_views(self, views: Array) -> Array:
        def call(some: Array) -> Array:
            features: Array = self._graphs["vision_encoder"].run({"views": some})["features"].numpy()
            return features

        return np.concatenate(self._run_parallel(call, views))

    def step(self, context: Any, actions: Array, limit: int, edit: bool) -> tuple[Array, Array]:
        return concat_outputs(self._run_parallel(lambda part: self._step(context, part, limit, edit), actions))

    def draft(self, context: Any, actions: Array, limits: Sequence[int]) -> tuple[Array, Array]:
        rounds, step = tuple(map(Round, limits)), partial(self._step, context)
        return concat_outputs(self._run_parallel(lambda part: run_rounds(step, part, rounds), actions))

    def sampled_step(
        self, context: Any, actions: Array, limit: int, temperature: Array, share: Array
    ) -> tuple[Array, Array]:
        flags = {"limit": np.array(limit, np.int64)}
        sampling_rows = np.concatenate([temperature[:, None], share], axis=1).astype(np.float32)

        def call(ids: Array, numbers: Array) -> tuple[Array, Array]:
            feeds = {**flags, "temperature": numbers[None, :, :1], "share": numbers[None, :, 1:]}
            return self._decode("sampled_step", ids, feeds, context)

        def part(indices: Array) -> tuple[Array, Array]:
            return run_batched(call, actions[indices], self._sequences, sampling_rows[indices])

        return concat_outputs(self._run_parallel(part, np.arange(len(actions))))

    def refine(self, context: Any, actions: Array, critique: Array | None = None) -> tuple[Array, Array]:
        def call(ids: Array, *critiques: Array) -> tuple[Array, Array]:
            if not critiques:
                return self._decode("refine", ids, {}, context)
            return self._decode("edit", ids, {"critique": critiques[0][None]}, context)

        def part(indices: Array) -> tuple[Array, Array]:
            critiques = () if critique is None else (critique[indices],)
            return run_batched(call, actions[indices], self._sequences, *critiques)

        return concat_outputs(self._run_parallel(part, np.arange(len(actions))))

    def _run_parallel(self, call: Callable[[Array], T], items: Array) -> list[T]:
        """What `call` makes of the parts of items: always the same parts, whichever thread has time for them."""
        mine, *theirs = np.array_split(items, max(min(self._workers, len(items)), 1))
        submitted = [(part, self._pool.submit(call, part)) for part in theirs]
        return [call(mine), *(call(part) if future.cancel() else future.result() for part, future in submitted)]

    def _step(self, context: Any, actions: Array, limit: int, edit: bool) -> tuple[Array, Array]:
        flags = {"limit": np.array(limit, np.int64), "edit": np.array(edit, np.bool_)}
        return run_batched(lambda ids: self._decode("step", ids, flags, context), actions, self._sequences)

    def _decode(self, graph: str, ids: Array, flags: Mapping[str, Array], tensors: Any) -> tuple[Array, Array]:
        """Ids and confidence that a graph writes."""
        out = self._run(graph, ids, flags, tensors)
        return out["written"].numpy()[0], out["confidence"].numpy()[0]

    def _run(self, graph: str, ids: Array, flags: Mapping[str, Array], tensors: Any) -> dict[str, Any]:
        input_specs = self._graphs[graph].input_specs
        past = {name: tensor for name, tensor in tensors.items() if name in input_specs}  # an expert may have its own
        return self._graphs[graph].run({"actions": ids, **flags}, past)


class OrtDenoiser:
    """`planning.denoiser.Denoiser` by two graphs; an encoded scene stays in ONNX Runtime's tensors."""

    kind: Literal["denoiser"] = "denoiser"

    def __init__(self, card: GraphCard, threads: int = 1, device: str = "auto") -> None:
        """device: as `model.device`. Raises GraphError for graphs that cannot be used."""
        device = _device(device)
        self.backend_description = _description(card, device, threads)
        self.spec, self.capabilities, self._batch = card.vector_spec(), card.capabilities, card.batch
        self._encoder, self._denoiser = (self._graph(card, name, device, threads) for name in ("encoder", "denoiser"))

    def _graph(self, card: GraphCard, name: str, device: str, threads: int) -> Graph:
        return Graph(card, name, device, threads)

    def encode(self, inputs: VectorInputs, with_unconditional: bool) -> EncodedVectors:
        arrays = batch(inputs, with_unconditional, self._batch)
        return EncodedVectors(self._encoder.run(arrays), 1 + with_unconditional)

    def denoise(self, context: EncodedVectors, futures: Array, time: float) -> Array:
        feeds = {"futures": noisy_futures(futures, self.spec), "time": np.array(time, np.float32)}
        clean = self._denoiser.run(feeds, context.tensors)["clean"].numpy()
        return np.asarray(clean[: context.rows], np.float64)


class Graph:
    """One session, and the inputs that its file declares."""

    def __init__(self, card: GraphCard, name: str, device: str, threads: int = 1) -> None:
        kind, _, number = device.partition(":")
        self.name, self._device, self._device_id = name, kind, int(number or 0)
        providers = [CPU] if kind == "cpu" else [(CUDA, {"device_id": self._device_id}), CPU]
        file = card.files[name]
        options = _options(threads)
        if card.precision == "fp8":  # moves casts past operators that ONNX Runtime has not in fp8
            options.add_session_config_entry("session.disable_quant_qdq", "1")
        disabled = DISABLED_OPTIMIZERS + DISABLED_FOR_INT8 * (card.precision == "int8")
        try:
            self._session = ort.InferenceSession(str(file), options, providers, disabled_optimizers=disabled)
        except Exception as fault:  # its errors have no common base
            reason = f"is no graph that ONNX Runtime {ort.__version__} can load: {one_line(fault)}"
            raise GraphError(f"{file} {reason}") from None
        card.check_metadata(name, self._session.get_modelmeta().custom_metadata_map)
        inputs_by_name = {put.name: (np.dtype(DTYPES[put.type]), put.shape) for put in self._session.get_inputs()}
        self._outputs = [put.name for put in self._session.get_outputs()]
        self.input_specs = inputs_by_name

    def run(self, feeds: Mapping[str, Array], tensors: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Outputs by name, as ONNX Runtime's tensors, as `tensors` are. Raises PlanningError naming a tensor."""
        tensors = tensors or {}
        self._check(feeds, tensors)
        binding = self._session.io_binding()
        for name, array in feeds.items():
            binding.bind_cpu_input(name, np.ascontiguousarray(array))
        for name, tensor in tensors.items():
            binding.bind_ortvalue_input(name, tensor)
        for name in self._outputs:
            if name.startswith(("keys_", "values_")):
                binding.bind_output(name, self._device, self._device_id)
            else:
                binding.bind_output(name, "cpu")
        try:
            self._session.run_with_iobinding(binding)
        except Exception as fault:
            raise PlanningError(f"graph {self.name} failed in ONNX Runtime: {one_line(fault)}") from None
        return dict(zip(self._outputs, binding.get_outputs(), strict=True))

    def _check(self, feeds: Mapping[str, Array], tensors: Mapping[str, Any]) -> None:
        provided = {name: (array.dtype, array.shape) for name, array in feeds.items()}
        provided |= {name: (np.dtype(DTYPES[tensor.data_type()]), tensor.shape()) for name, tensor in tensors.items()}
        check_feeds(self.name, self.input_specs, provided)


class CalibrationGraph(Graph):
    """One of `quantise.write_calibration_graphs`; `recorded` collects its additional outputs of each run."""

    def __init__(self, card: GraphCard, name: str, device: str) -> None:
        super().__init__(card, name, device)
        self.recorded: list[dict[str, Array]] = []

    def run(self, feeds: Mapping[str, Array], tensors: Mapping[str, Any] | None = None) -> dict[str, Any]:
        out = super().run(feeds, tensors)
        self.recorded.append({name: out.pop(name).numpy() for name in list(out) if name.startswith(CALIBRATION_PREFIX)})
        return out


class _Calibration:
    """Makes the graphs of a network ones that also output activation ranges."""

    def __init__(self, card: GraphCard) -> None:
        self.recorded: dict[str, list[dict[str, Array]]] = {}  # of each run, by graph
        super().__init__(card, 1, "cpu")  # type: ignore[call-arg]

    def _graph(self, card: GraphCard, name: str, device: str, threads: int) -> Graph:
        graph = CalibrationGraph(card, name, device)
        self.recorded[name] = graph.recorded
        return graph


class CalibrationNetwork(_Calibration, OrtNetwork):
    """The same plans, by graphs that also output activation ranges."""


class CalibrationDenoiser(_Calibration, OrtDenoiser):
    """The same predictions, by graphs that also output activation ranges."""


def tensor_of(array: Array) -> Any:
    """A copy of an array as a tensor of ONNX Runtime, on the CPU, which `ortvalue_from_numpy` would not make."""
    tensor = ort.OrtValue.ortvalue_from_shape_and_type(array.shape, array.dtype.type)
    tensor.update_inplace(np.ascontiguousarray(array))
    return tensor


def _device(device: str) -> str:
    """The device. Raises GraphError if this ONNX Runtime does not support it."""
    has_gpu = CUDA in ort.get_available_providers()
    if device == "auto":
        return "cuda" if has_gpu else "cpu"
    if device != "cpu" and not has_gpu:
        raise GraphError(
            f"model.device is {device}, but this ONNX Runtime has no CUDA: set it to auto or cpu, "
            "or install onnxruntime-gpu"
        )
    return device


def _description(card: GraphCard, device: str, threads: int) -> str:
    described = f"ONNX Runtime {ort.__version__} on {device}, {threads} thread{'s' * (threads > 1)}"
    return described + f", {card.precision}" * (card.precision != "fp32")


def one_line(fault: Exception) -> str:
    """A library's own words on one line."""
    return " ".join(str(fault).split())[:300]


def _options(threads: int = 1) -> ort.SessionOptions:
    options = ort.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.log_severity_level = ERROR_SEVERITY
    return options
