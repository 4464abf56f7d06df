"""Post-training quantisation of exported ONNX graphs to int8 or fp8.

    write_calibration_graphs(card, folder)                           # graphs that output their activation ranges
    card_sha256 = write_quantised(card, folder, "int8", ranges)

Only products of activations with a weight matrix are quantised, and only those of transformer layers: the heads decide
ids by the largest of many close values, and the last products of a denoiser's graphs give futures and keys. Attention
products, softmax, norms and sums stay in float32. Inputs and outputs of the graphs are unchanged.

Quantisation is explicit, as TensorRT's strongly typed networks require it: QuantizeLinear and DequantizeLinear around
each product. It is symmetric: zero points are zero, because TensorRT has no others. Scales are constants from
calibration: with dynamic scales the result of an action sequence would depend on the others of its call, and goals are
distributed over threads.

int8 runs in ONNX Runtime, whose optimiser makes one integer product of the four nodes, and in TensorRT. Activations
have 127 steps on each side of zero. A product whose range is more than 32 times the root mean square stays in float32,
because typical values would have a few steps only. Weights have a scale per column and 7 bits: a processor without VNNI
adds two products of 8 bits in 16 bits, which overflow.

fp8 (E4M3) is for TensorRT, with one scale per tensor, because with a scale per column TensorRT is reported to multiply
in float16 (NVIDIA/TensorRT-Model-Connect#1386). Floating point represents large values well. ONNX Runtime also runs
these graphs, by converting to float32: the same numbers, not faster.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedNodesPass

from ..core.domain import Array
from ..model.card import CALIBRATION_PREFIX, GraphCard, required_graphs
from .export import write_card, write_graph

MIN_SIDE = 64  # minimum rows and columns of a quantised weight matrix
MAX_RANGE_TO_RMS = 32.0  # of int8: range over root mean square; where it is more, typical values have under 8 steps
ACTIVATION_STEPS = 127  # of int8 activations on each side of zero; ONNX Runtime computes them as bytes from 0 to 255
WEIGHT_STEPS = 63  # likewise of weights: 255 * 63 * 2 fits into 16 bits
FP8_MAX = 448.0


@dataclass(frozen=True)
class ActivationRange:
    """Of the values that a product is given, over some scenes."""

    low: float
    high: float
    mean_square: float

    def __post_init__(self) -> None:
        if not (self.low <= 0.0 <= self.high and self.low < self.high and self.mean_square > 0.0):
            raise ValueError(f"values between {self.low} and {self.high} have no scale")

    @property
    def largest(self) -> float:
        return max(-self.low, self.high)

    @property
    def too_wide(self) -> bool:
        """For int8, whose steps reach as far below zero as above."""
        return 2.0 * self.largest > MAX_RANGE_TO_RMS * math.sqrt(self.mean_square)


@dataclass(frozen=True)
class Format:
    """Numbers of 8 bits: their type, and the largest ones that activations and weights are scaled to."""

    name: str
    dtype: Any
    activation_max: float
    weight_max: float
    scale_per_column: bool  # of weights; else one scale per matrix
    takes_wide: bool  # whether products of a range that is `too_wide` are quantised

    def stored(self, scaled: Array) -> Array:
        whole = scaled if self.name == "fp8" else np.rint(scaled)
        return whole.astype(self.dtype)


FORMATS = {
    "int8": Format("int8", np.int8, ACTIVATION_STEPS, WEIGHT_STEPS, scale_per_column=True, takes_wide=False),
    "fp8": Format("fp8", ml_dtypes.float8_e4m3fn, FP8_MAX, FP8_MAX, scale_per_column=False, takes_wide=True),
}


ActivationRanges = Mapping[str, Mapping[str, ActivationRange]]  # by graph, by name of the product's input


def write_calibration_graphs(card: GraphCard, folder: Path) -> None:
    """Copies of the graphs with outputs for each product's input range: minimum, maximum, mean square."""

    def watch(name: str, graph: ir.Graph) -> None:
        for value in dict.fromkeys(input_value for _, input_value, _ in _layer_products(card, graph)):
            square = ir.node("Mul", [value, value], name=f"{value.name}.square")
            statistics = [ir.node(kind, [value], {"keepdims": 0}) for kind in ("ReduceMin", "ReduceMax")]
            statistics.append(ir.node("ReduceMean", [square.outputs[0]], {"keepdims": 0}))
            square.outputs[0].name = square.name
            for node in statistics:
                (output,) = node.outputs
                node.name = output.name = f"{CALIBRATION_PREFIX}{node.op_type}:{value.name}"
                output.shape, output.dtype = ir.Shape([]), ir.DataType.FLOAT
                graph.outputs.append(output)
            graph.extend([square, *statistics])

    _rewrite_graphs(card, folder, card.model, watch, {})


def activation_ranges(recorded: Mapping[str, Sequence[Mapping[str, Array]]]) -> dict[str, dict[str, ActivationRange]]:
    """Activation ranges over all runs, from the calibration outputs (by graph, of each run)."""
    ranges: dict[str, dict[str, ActivationRange]] = {}
    for graph, runs in recorded.items():
        rows = {key: np.array([float(run[key]) for run in runs]) for key in (runs[0] if runs else ())}
        names = dict.fromkeys(key.removeprefix(CALIBRATION_PREFIX).partition(":")[2] for key in rows)

        def row(kind: str, name: str, rows: Mapping[str, Array] = rows) -> Array:
            return rows[f"{CALIBRATION_PREFIX}{kind}:{name}"]

        ranges[graph] = {
            name: ActivationRange(
                min(float(row("ReduceMin", name).min()), 0.0),
                max(float(row("ReduceMax", name).max()), 0.0),
                float(row("ReduceMean", name).mean()),
            )
            for name in names
        }
    return ranges


def write_quantised(
    card: GraphCard,
    folder: Path,
    precision: str,
    ranges: ActivationRanges,
    golden: Mapping[str, float] | None = None,
    gate: Mapping[str, Any] | None = None,
) -> str:
    """The graphs of a float32 card in int8 or fp8; returns the new card's SHA-256. golden, gate: as in `export`."""
    to = FORMATS[precision]

    def change(name: str, graph: ir.Graph) -> None:
        for node, value, weights in _layer_products(card, graph):
            activations = ranges[name][value.name or ""]
            if to.takes_wide or not activations.too_wide:
                _quantise(graph, node, weights, activations, to)

    model = {**card.model, "precision": precision}
    return _rewrite_graphs(card, folder, model, change, {"golden": golden, "gate": gate})


def _rewrite_graphs(
    card: GraphCard,
    folder: Path,
    model: Mapping[str, Any],
    change: Callable[[str, ir.Graph], None],
    more: Mapping[str, Mapping[str, Any] | None],
) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    rows = {}
    for name in required_graphs(model["kind"], model["capabilities"], bool(model["inputs"].get("cameras"))):
        graph = ir.load(card.files[name])
        change(name, graph.graph)
        RemoveUnusedNodesPass()(graph)
        rows[name] = write_graph(graph, name, model, folder)
    return write_card(folder, model, rows, {"about": card.about, **more})


def _layer_products(card: GraphCard, graph: ir.Graph) -> list[tuple[ir.Node, ir.Value, Array]]:
    """(node, its input, its weights (K, N)) of each quantisable product of a layer, in order."""
    multiplied = []
    for node in graph:
        if node.op_type == "MatMul":
            input_value, weights = node.inputs[0], _constant_weights(node.inputs[1])
            if input_value is not None and weights is not None and weights.ndim == 2:
                multiplied.append((node, input_value, weights))
    if card.kind == "denoiser":
        before = set[ir.Node]().union(*(_ancestors(node) for node, *_ in multiplied))
    else:
        columns = {high - low + 1 for low, high in card.layout().id_ranges}
        heads = [node for node, _, weights in multiplied if weights.shape[1] in columns]
        before = _ancestors(heads[0]) if heads else {node for node, *_ in multiplied}
    of_layers = {node.inputs[1] for node, *_ in multiplied if node in before}  # goals pass the layers a second time
    return [row for row in multiplied if row[0].inputs[1] in of_layers and min(row[2].shape) >= MIN_SIDE]


def _constant_weights(value: ir.Value | None) -> Array | None:
    """A weight matrix, which may be stored in fewer bits behind a Cast."""
    producer = None if value is None else value.producer()
    if producer is not None and producer.op_type == "Cast":
        value = producer.inputs[0]
    if value is None or value.const_value is None or not value.is_initializer():
        return None
    return value.const_value.numpy().astype(np.float32)


def _ancestors(node: ir.Node) -> set[ir.Node]:
    ancestors, todo = set[ir.Node](), [node]
    while todo:
        for value in todo.pop().inputs:
            producer = None if value is None else value.producer()
            if producer is not None and producer not in ancestors:
                ancestors.add(producer)
                todo.append(producer)
    return ancestors


def _quantise(graph: ir.Graph, product: ir.Node, weights: Array, activations: ActivationRange, to: Format) -> None:
    """Rounds both inputs of a product.

    Products of one activation each round it themselves: ONNX Runtime makes integer products only of pairs of
    QuantizeLinear and DequantizeLinear with one user each.
    """
    value, multiplied = product.inputs
    assert value is not None
    assert multiplied is not None
    name = product.name or ""
    of_value = _scale(graph, value.name or "", np.array(activations.largest / to.activation_max), to)
    quantised = _insert_node(graph, product, "QuantizeLinear", [value, *of_value], f"{name}.{to.name}")
    rounded = _insert_node(graph, product, "DequantizeLinear", [quantised, *of_value], f"{name}.of_{to.name}")
    largest = np.maximum(np.abs(weights).max(0 if to.scale_per_column else None), np.finfo(np.float32).tiny)  # (N,), ()
    steps = largest / to.weight_max
    stored = _add_constant(graph, f"{multiplied.name}.{to.name}", to.stored(weights / steps))
    inputs, axis = [stored, *_scale(graph, multiplied.name or "", steps, to)], 1 if to.scale_per_column else None
    product.replace_input_with(0, rounded)
    product.replace_input_with(1, _insert_node(graph, product, "DequantizeLinear", inputs, f"{name}.weights", axis))


def _scale(graph: ir.Graph, name: str, scale: Array, to: Format) -> list[ir.Value]:
    """Scale and zero point."""
    zero = np.zeros(scale.shape, to.dtype)
    return [
        _add_constant(graph, f"{name}.scale", scale.astype(np.float32)),
        _add_constant(graph, f"{name}.zero", zero),
    ]


def _add_constant(graph: ir.Graph, name: str, array: Array) -> ir.Value:
    """Adds a constant to the graph; weights that several products share are stored once."""
    if name in graph.initializers:
        return graph.initializers[name]
    value = ir.Value(name=name, const_value=ir.tensor(array, name=name))
    value.shape, value.dtype = ir.Shape(array.shape), ir.DataType.from_numpy(array.dtype)
    graph.initializers[name] = value
    return value


def _insert_node(
    graph: ir.Graph, before: ir.Node, kind: str, inputs: list[ir.Value], name: str, axis: int | None = None
) -> ir.Value:
    """Inserts a node right before another; returns its output."""
    attributes = {} if axis is None else {"axis": axis}
    node = ir.node(kind, inputs, attributes, name=name)
    (output,) = node.outputs
    output.name, output.shape = name, inputs[0].shape
    zero_point = inputs[2].dtype
    assert zero_point is not None
    output.dtype = zero_point if kind == "QuantizeLinear" else ir.DataType.FLOAT
    graph.insert_before(before, node)
    return output
