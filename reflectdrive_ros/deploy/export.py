"""Exports a checkpoint as ONNX graphs, `vision_encoder`, `prefill_goal`, `prefill`, `step` and others, with a card.

    card_sha256 = export(net, weights_sha256, "models/mine/onnx", {"from": "weights.safetensors"})

    vision_encoder views (V, F, H, W, 3) uint8, each the F images of one camera, oldest first
                   -> features (V, P, width) of the images
    prefill_goal   features (1, I, C, P, width), of I instants and C cameras, text (1, T) int64, ego (1, 3) float32,
                   route (1, R, 2) int64, goal_spacing_m float32, the least distance of two goals
                   -> actions (1, K, T) int64, goal_log_probs (1, K), valid (1, K) bool, keys_l, values_l of each layer
    prefill        the same -> keys_l, values_l; both take the agents, static objects and lanes (`scene_` and the name
                   of `VectorTensors`) of a network that reads them, and leave out what it does not read
    step           actions (1, M, T) int64, limit int64, edit bool, keys_l, values_l
                   -> written (1, M, T) int64, confidence (1, M, T) float32
    sampled_step   actions, limit, temperature (1, M, 1) float32 above 0, share (1, M, T) float32 uniform numbers,
                   keys_l, values_l -> as step; only of a layout without a goal
    refine         actions without masks, keys_l, values_l -> as step; only with a refinement expert
    edit           actions without masks, critique (1, M, P, C) float32 of `planning.critique`, keys_l, values_l
                   -> as step; only of a network that reads a critique

K is the most goals that a planner may ask for (`decoding.goals`, or `decoding.rescore_goals` where that is more). A
layout without a goal has no prefill_goal.

Opset 20 and plain operators, all supported by TensorRT. Everything between images and tokens is inside the graphs, so
that the host computes nothing between calls. Shapes are static except V and M, which are free or fixed (`sequences`; V
is then the number of cameras). A full step encodes new images, then runs prefill_goal once and step for each round; a
lite step runs prefill once and step twice.

Arithmetic is in float32. A weight matrix that bfloat16 represents exactly (all of a shipped checkpoint's) is stored as
bfloat16 behind a Cast, which runtimes fold when they load the graph: half the file size, the same numbers. A network
converted by `to_bfloat16` gives graphs for TensorRT that compute in bfloat16, and in float32 where sums are long:
softmax, norms, everything after the logits. The KV cache is then bfloat16 too.

`actions` are K or M action sequences; `valid` marks goals that are not padding.

Each graph contains all its weights, so that its hash covers what runs; the graphs share most weights, which costs 16 MB
of the shipped files. Only graphs near protobuf's limit of 2 GB store their weights in a separate file.
"""

from __future__ import annotations

import copy
import dataclasses
import hashlib
import json
import logging
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx_ir as ir
import torch
from onnx_ir.passes.common import DeduplicateInitializersPass
from onnxscript.optimizer import fold_constants
from torch import Tensor, nn
from torch.export import Dim

from ..infra.files import sha256_of, write_atomic
from ..model.card import CARD, FORMAT, METADATA, RENDERED, token_capabilities
from ..model.token.net import TokenNet
from ..model.token.rollout import Decoding
from ..sim.render.camera import rig
from .graph_modules import Edit, EncodeViews, Prefill, PrefillGoal, Refine, SampledStep, StepGraph, example_prompt

OPSET = 20
MAX_SEQUENCES = 64  # limit of a step with a free number of action sequences
MAX_VIEWS = 64  # limit of a vision encoder with a free number of views
MIN_HALVED_ELEMENTS = 1024  # smaller tables are stored in float32
PRECISIONS = {torch.float32: "fp32", torch.bfloat16: "bf16"}  # weights of a network -> arithmetic of its graphs
Size = tuple[int, int]  # width and height of images in px
MAX_EMBEDDED_BYTES = 1_500_000_000  # larger weights are stored in a file beside the graph
MAX_FOLDED_ELEMENTS = 2**31  # elements of a constant, as the part of a head that is multiplied


def export(
    net: TokenNet,
    weights_sha256: str,
    folder: str | Path,
    about: Mapping[str, Any],
    decoding: Decoding | None = None,
    sequences: int | None = None,
    golden: Mapping[str, float] | None = None,
    gate: Mapping[str, Any] | None = None,
    camera: Size | None = None,
) -> str:
    """Write the graphs and their card into a folder; returns the card's SHA-256.

    about: origin of the weights, for the card; `weights` is their card. sequences: action sequences of a step; None
    leaves the number free. camera: size of the input images, which the graphs average down; None: the network's own
    size. golden: the answers of `runtime.network.golden`, with which every start of the graphs is compared. gate: the
    scores of `bench.accuracy_gate`.
    """
    folder, decoding = Path(folder), decoding or Decoding()
    folder.mkdir(parents=True, exist_ok=True)
    model = describe_model(net, weights_sha256, decoding, sequences, camera, about.get("weights"))
    traced = {"vision_encoder": _trace_vision_encoder(net, camera, sequences)} if net.config.images else {}
    layout = net.config.layout
    count = sequences or decoding.goals.count + 1  # tracing a free size needs a number that no other dimension has
    masked = net.all_masked(1, torch.device("cpu")).repeat(1, count, 1)
    whole, ones = torch.zeros_like(masked), torch.ones(masked.shape)
    drafted = {"actions": masked, "limit": torch.tensor(1)}

    def writing(module: nn.Module, examples: Mapping[str, Tensor]) -> ir.Model:
        return _trace_writing(net, module, examples, is_free=sequences is None)

    traced["prefill"] = _trace_prefill(net, Prefill(net), [])
    traced["step"] = writing(StepGraph(net, decoding.edits), {**drafted, "edit": torch.tensor(False)})
    if layout.goal:
        decided = ["actions", "goal_log_probs", "valid"]
        goals = PrefillGoal(net, decoding.goals.for_search)  # the most goals that a planner may ask for
        traced["prefill_goal"] = _trace_prefill(net, goals, decided, goal_spacing_m=torch.tensor(1.2))
    else:
        noise = {"temperature": ones[..., :1], "share": 0.5 * ones}
        traced["sampled_step"] = writing(SampledStep(net), {**drafted, **noise})
    if net.config.critique:
        critique = torch.zeros(1, count, layout.points, net.config.critique)
        traced["edit"] = writing(Edit(net), {"actions": whole, "critique": critique})
    elif net.config.refine_layers:
        traced["refine"] = writing(Refine(net), {"actions": whole})
    return write_graphs(folder, model, traced, about, golden, gate)


def write_graphs(
    folder: Path,
    model: Mapping[str, Any],
    traced: Mapping[str, ir.Model],
    about: Mapping[str, Any],
    golden: Mapping[str, float] | None,
    gate: Mapping[str, Any] | None,
) -> str:
    """Writes traced graphs and their card into a folder; returns the card's SHA-256."""
    graphs = {}
    for name, graph in traced.items():
        _strip_source_locations(graph)
        _softmax_in_float32(graph)
        _store_as_bfloat16(graph)
        graphs[name] = write_graph(graph, name, model, folder)
    exporter = {"torch": torch.__version__, "onnxscript": version("onnxscript")}
    description = {"about": {**about, "exporter": exporter}, "golden": golden, "gate": gate}
    return write_card(folder, model, graphs, description)


def to_bfloat16(net: TokenNet) -> TokenNet:
    """A copy of the network with weights in bfloat16, except convolutions, which ONNX has in float32 only, and the
    encoder of the scene.

    ONNX has bfloat16 Conv since opset 22. Image values between -1 and 1 are also more exact in float32, and so are
    metres.
    """
    half = copy.deepcopy(net).bfloat16()
    if net.config.images:
        half.vision.stem, half.vision.patch_embedding = copy.deepcopy((net.vision.stem, net.vision.patch_embedding))
        half.vision.patch_embedding.register_forward_hook(lambda _module, _inputs, features: features.bfloat16())
    if net.config.scene is not None:
        half.scene_encoder, half.scene_condition = copy.deepcopy((net.scene_encoder, net.scene_condition))
    return half


def describe_model(
    net: TokenNet,
    weights_sha256: str,
    decoding: Decoding,
    sequences: int | None,
    camera: Size | None = None,
    card: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Inputs and meaning of the graphs as JSON values: the same for all graphs and their card.

    card: that of the weights, for what the architecture does not tell: how the network was trained.
    """
    config = net.config
    trained = card or {}
    width, height = camera or network_size(net)
    averaged = "averages areas down to what the network takes and " if (width, height) != network_size(net) else ""
    measures, decided = dataclasses.asdict(config), dataclasses.asdict(decoding)
    description = {
        "kind": "token",
        "capabilities": token_capabilities(
            config.layout,
            config.refine_layers > 0,
            not config.layout.goal,
            "camera_dropout" in (trained.get("capabilities") or ()),
            config.critique > 0,
        ),
        "training_domain": str(trained.get("training_domain") or RENDERED),
        "weights_sha256": weights_sha256,
        "precision": PRECISIONS[net.x_head.weight.dtype],
        "config_sha256": hashlib.sha256(json.dumps(measures, sort_keys=True).encode()).hexdigest(),
        "inputs": {
            "width": width,
            "height": height,
            "cameras": config.cameras * config.images,
            "instants": config.instants,
            "frames": config.vision.frames,
            "rig": camera_rig(width, height)
            if config.images and config.cameras == len(camera_rig(width, height))
            else None,
            "order": "oldest instant first, the cameras of each from left to right",
            "pixels": f"uint8 RGB; the graph itself {averaged}takes them to x / 127.5 - 1",
            "text_length": config.text_length,
            "words": config.words,
            "ego": "speed in m/s, acceleration in m/s^2, yaw rate in rad/s, each over its ego_scale",
            "ego_scale": config.ego_scale,
            "route": "ids of x, y of the points route_at_m along the route; the mask: not known",
            "route_at_m": config.route_at_m,
            "scene": None if config.scene is None else measures["scene"]["spec"],
        },
        "experts": {"prompt": config.transformer.ffn, "action": config.transformer.action_ffn},  # widths of the FFNs
        "layout": dataclasses.asdict(config.layout),
        # number and spacing of the goals are defaults, to which a planner is not bound
        "decoding": {**decided, "goals": {**decided["goals"], "max_count": decoding.goals.for_search.count}},
        "action_sequences": sequences,
        "config": measures,
    }
    return json.loads(json.dumps(description))  # type: ignore[no-any-return]  # tuples become lists, as a reader sees them


def camera_rig(width: int, height: int) -> list[dict[str, Any]]:
    """Name, intrinsics in px and pose of each camera of the proving ground, from left to right."""
    return [
        {
            "name": camera.name,
            "pixels_from_camera": camera.pixels_from_camera.tolist(),
            "camera_from_ego": camera.camera_from_ego.tolist(),
        }
        for camera in rig(width, height)
    ]


def network_size(net: TokenNet) -> Size:
    """Width and height of the network's input images."""
    return net.config.vision.width, net.config.vision.height


def _trace_vision_encoder(net: TokenNet, camera: Size | None, sequences: int | None) -> ir.Model:
    config = net.config
    width, height = camera or network_size(net)
    # tracing a free size needs a number that no other dimension has
    count = config.cameras if sequences else config.cameras + 2
    views = torch.zeros(count, config.vision.frames, height, width, 3, dtype=torch.uint8)
    shapes = None if sequences else {"views": {0: Dim("count", min=1, max=MAX_VIEWS)}}
    return trace(EncodeViews(net), (views,), ["views"], ["features"], shapes)


def _trace_prefill(net: TokenNet, module: nn.Module, decided: list[str], **more: Tensor) -> ir.Model:
    """A graph that encodes the scene and returns `decided`, then keys and values; it takes `more` after the scene."""
    inputs = {**example_prompt(net), **more}
    outputs = [*decided, *keys_values_names(net.config.transformer.layers)]
    return trace(module, tuple(inputs.values()), list(inputs), outputs, None)


def _trace_writing(net: TokenNet, module: nn.Module, examples: Mapping[str, Tensor], is_free: bool) -> ir.Model:
    """A graph that writes tokens: it takes `examples`, whose axis 1 is that of the action sequences, then keys and
    values. `is_free`: any number of sequences."""
    config, attention = net.config, net.config.transformer
    measures = 1, attention.kv_heads, config.prompt_length, attention.head_dim
    cached = torch.zeros(measures, dtype=net.x_head.weight.dtype)
    keys_values = tuple((cached.clone(), cached.clone()) for _ in range(attention.layers))
    count = {1: Dim("count", min=1, max=MAX_SEQUENCES)}
    shapes: dict[str, Any] = {name: count if tensor.dim() else None for name, tensor in examples.items()}
    shapes["keys_values"] = ((None, None),) * attention.layers
    inputs = [*examples, *keys_values_names(attention.layers)]
    tensors = *examples.values(), keys_values
    return trace(module, tensors, inputs, ["written", "confidence"], shapes if is_free else None)


def keys_values_names(layers: int) -> list[str]:
    """Names of the keys and values that go from one graph to the other."""
    return [f"{part}_{layer}" for layer in range(layers) for part in ("keys", "values")]


def trace(module: nn.Module, tensors: tuple[Any, ...], inputs: list[str], outputs: list[str], shapes: Any) -> ir.Model:
    with _suppress_exporter_messages(), torch.no_grad():
        capture = torch.export.export(module.eval(), tensors, dynamic_shapes=shapes)
        program = torch.onnx.export(
            capture, dynamo=True, opset_version=OPSET, input_names=inputs, output_names=outputs, verbose=False
        )
    assert program is not None  # it is None only where a file was named
    fold_constants(program.model, input_size_limit=MAX_FOLDED_ELEMENTS, output_size_limit=MAX_FOLDED_ELEMENTS)
    DeduplicateInitializersPass(MAX_FOLDED_ELEMENTS)(program.model)  # layers that goals pass twice share weights
    return program.model


@contextmanager
def _suppress_exporter_messages() -> Iterator[None]:
    """Suppresses the exporter's messages about libraries that are not installed and its own deprecations."""
    log = logging.getLogger("torch.onnx")
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        log.setLevel(before)


def write_graph(graph: ir.Model, name: str, model: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Writes one graph to a file; returns its entry of the card."""
    graph.graph.name = name
    graph.producer_name, graph.producer_version = "reflectdrive", torch.__version__
    graph.metadata_props.clear()
    graph.metadata_props[METADATA] = json.dumps({"graph": name, "model": model}, sort_keys=True)
    size = sum(value.const_value.nbytes for value in graph.graph.initializers.values() if value.const_value is not None)
    file, weights = folder / f"{name}.onnx", folder / f"{name}.weights"
    row: dict[str, Any] = {"file": file.name}
    if size > MAX_EMBEDDED_BYTES:
        ir.save(graph, file, external_data=weights.name)
        row["weights"] = {"file": weights.name, "sha256": sha256_of(weights), "bytes": weights.stat().st_size}
    else:
        weights.unlink(missing_ok=True)
        write_atomic(file, ir.to_proto(graph).SerializeToString(deterministic=True))
    return {**row, "sha256": sha256_of(file), "bytes": file.stat().st_size}


def write_card(
    folder: Path, model: Mapping[str, Any], graphs: Mapping[str, Any], more: Mapping[str, Mapping[str, Any] | None]
) -> str:
    """Writes the card of graphs from the entries of `write_graph`; returns its SHA-256."""
    sections = {"format": FORMAT, "model": model, "graphs": graphs, **more}
    content = json.dumps({name: section for name, section in sections.items() if section is not None}, indent=2) + "\n"
    write_atomic(folder / CARD, content.encode())
    return hashlib.sha256(content.encode()).hexdigest()


def _strip_source_locations(graph: ir.Model) -> None:
    """Removes the source file paths of this machine, which the exporter stores in each node."""
    values = [*graph.graph.inputs, *graph.graph.initializers.values()]
    for node in graph.graph.all_nodes():
        node.metadata_props.clear()
        node.doc_string = None
        values += node.outputs
    for value in values:
        value.metadata_props.clear()
        value.doc_string = None
    graph.graph.metadata_props.clear()
    graph.graph.doc_string = graph.doc_string = None


def _softmax_in_float32(graph: ir.Model) -> None:
    """Softmax of bfloat16, and the addition of its mask, in float32; the result is cast back.

    PyTorch adds its float32 mask to bfloat16 scores; ONNX requires operands of one type.
    """
    half, full = ir.DataType.BFLOAT16, ir.DataType.FLOAT
    for softmax in [node for node in graph.graph if node.op_type == "Softmax"]:
        scores, weights = softmax.inputs[0], softmax.outputs[0]
        before = None if scores is None else scores.producer()
        masks = before is not None and {value.dtype for value in before.inputs if value is not None} == {half, full}
        first = before if before is not None and masks else softmax
        input_value = first.inputs[0]
        if input_value is None or input_value.dtype is not half:
            continue
        widened, narrowed = _cast(input_value, full), _cast(weights, half)
        ir.convenience.replace_all_uses_with(weights, narrowed.outputs[0])
        narrowed.replace_input_with(0, weights)
        first.replace_input_with(0, widened.outputs[0])
        first.outputs[0].dtype = weights.dtype = full
        graph.graph.insert_before(first, [widened])
        graph.graph.insert_after(softmax, [narrowed])


def _cast(value: ir.Value, kind: ir.DataType) -> ir.Node:
    cast = ir.node("Cast", [value], {"to": kind.value}, name=f"{value.name}.{kind.name.lower()}")
    cast.outputs[0].name, cast.outputs[0].shape, cast.outputs[0].dtype = cast.name, value.shape, kind
    return cast


def _store_as_bfloat16(graph: ir.Model) -> None:
    """Stores weights that bfloat16 represents exactly as bfloat16, behind a Cast.

    Except those of a convolution, which TensorRT's parser requires to be constants without a Cast.
    """
    casts = []
    for name, value in list(graph.graph.initializers.items()):
        tensor = value.const_value
        if tensor is None or tensor.dtype != ir.DataType.FLOAT or tensor.size < MIN_HALVED_ELEMENTS:
            continue
        if any(user.op_type == "Conv" for user, _ in value.uses()):
            continue
        exact = tensor.numpy()
        halved = exact.astype(ml_dtypes.bfloat16)
        if not np.array_equal(halved.astype(np.float32), exact):
            continue
        short = f"{name}.bf16"
        stored = ir.Value(name=short, const_value=ir.tensor(halved, name=short))
        stored.shape, stored.dtype = value.shape, ir.DataType.BFLOAT16
        cast = ir.node("Cast", [stored], {"to": ir.DataType.FLOAT.value}, name=f"{name}.cast")
        cast.outputs[0].shape, cast.outputs[0].dtype = value.shape, ir.DataType.FLOAT
        ir.convenience.replace_all_uses_with(value, cast.outputs[0])
        del graph.graph.initializers[name]
        cast.outputs[0].name = name
        graph.graph.initializers[short] = stored
        casts.append(cast)
    graph.graph.insert_before(graph.graph[0], casts)
