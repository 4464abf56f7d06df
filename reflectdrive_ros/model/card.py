"""The card of a set of exported graphs, and the metadata in each graph. Read without torch.

    card = GraphCard.read("models/mine/onnx/card.json")        # hashes of all files are checked here
    card.files["step"], card.model["weights_sha256"], card.layout()

A card is `{"format", "model", "graphs": {name: {"file", "sha256", "bytes", "weights"?}}, "about"}`. `model` describes
the network: its kind, its capabilities and the domain of its training data; of a token network also its inputs with
the camera rig of the training, its token layout and decoding, of a denoiser its input format with the normalisation and
its configuration. Loader, self-check, planners and benches use it. `model` is repeated in the metadata of each graph,
so that a graph of another model in the right place is detected. A large graph has its weights in a file of its own,
`weights`, with the same three entries. All files that a runtime loads are covered by a hash: a graph that refers to any
other file is refused.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..core.tokens import Axis, TokenLayout
from ..core.vector_spec import Normalization, VectorSpec
from ..infra.documents import (
    FILE_NAME,
    SHA256,
    DocumentError,
    anything,
    array,
    check_fields,
    choice,
    flag,
    maybe,
    named,
    number,
    parse_json,
    read_json,
    text,
    whole,
)
from ..infra.errors import UserError
from ..infra.files import MODEL_BYTES, path_text, read_limited, sha256_of
from .external_data import OnnxError, external_files

FORMAT = "reflectdrive.graphs.6"
CARD = "card.json"
KINDS = {  # kind of network -> its required graphs
    "token": ("prefill", "step"),  # and vision_encoder, of one that reads images
    "denoiser": ("encoder", "denoiser"),
}
CAPABILITIES = {  # optional function of a token network -> its graph
    "goals": "prefill_goal",
    "edit": "step",
    "sampling": "sampled_step",
    "refine": "refine",
    "camera_dropout": "vision_encoder",  # black images in place of missing cameras
    "critique": "edit",  # the expert reads what the check says of the plan: it has this graph in place of `refine`
}
GUIDANCE = "guidance"  # capability of a denoiser; the card of a token network may list it: it is ignored there
LISTED = (*CAPABILITIES, GUIDANCE)  # all that cards may list
ORDER = (
    *("vision_encoder", "encoder", "prefill_goal", "prefill"),
    *("step", "sampled_step", "denoiser", "refine", "edit"),
)
LARGEST_BATCH = 2  # scenes and conditions that a denoiser takes in one call: two for guidance
SCENE = "scene_"  # prefix of inputs of the prefills: agents, static objects and lanes
RENDERED = "rendered images"  # training domain of networks trained on the proving ground alone
QUANTISED = ("int8", "fp8")  # precisions that drive only after the accuracy gate
MAX_PDMS_DROP = 0.3  # largest allowed loss of PDMS of quantised graphs
CALIBRATION_PREFIX = "calibration:"  # prefix of calibration outputs
GRAPH_BYTES = 1 << 31  # protobuf's limit; larger weights are stored in a file next to the graph
METADATA = "reflectdrive"  # key of the graphs' metadata under which `model` stands, as JSON

COUNT, SIZE, SCALE = whole(1, 4096), whole(1, 1 << 14), number(1e-6, 1e6)
LAYOUT_AXIS = {  # of tokens.Axis
    "name": text(most=100),
    "bin": number(1e-6, 100.0),
    "bins": whole(3, 100_000),
    "low": number(),
    "high": number(),
}
LAYOUT = {  # of tokens.TokenLayout
    "points": whole(2, 256),
    "axes": array(LAYOUT_AXIS, 1, 16),
    "goal": array(whole(0, 4096), 0, 2),
    "order": text(most=100),
    **dict.fromkeys(("edit_goal", "last_waypoint_first"), flag),
    "interval_bins": whole(0, 50_000),
    "frame": text(most=100),
}
SCALE_COLUMNS = {"ego": 10, "agent": 11, "static": 10, "lane": 12, "limit": 1, "route": 12}  # of vector_spec
FUTURE_COLUMNS = {"ego_future": 4, "agent_future": 4}
VECTOR_SPEC = {  # of vector_spec.VectorSpec
    **dict.fromkeys(("agents", "static_objects", "lanes", "route_lanes"), COUNT),
    **dict.fromkeys(("history_steps", "lane_points", "future_steps"), COUNT),
    **dict.fromkeys(("route_line_rows", "predicted_agents"), whole(0, 4096)),
    "future_dt_s": number(1e-3, 10.0),
    "ego_frenet": flag,
    "normalization": {
        f"{name}_{part}": array(number(*limits), columns, columns)
        for name, columns in {**SCALE_COLUMNS, **FUTURE_COLUMNS}.items()
        for part, limits in (("mean", (-1e6, 1e6)), ("std", (1e-6, 1e6)))
    },
}
LAYERS, WIDTH = whole(1, 256), whole(1, 1 << 14)
SCENE_ENCODER = {  # of model.scene_encoder.SceneEncoderConfig
    "spec": VECTOR_SPEC,
    **dict.fromkeys(("heads", "layers"), LAYERS),
    **dict.fromkeys(("hidden", "mixer_tokens", "mixer_channels", "route_tokens", "route_channels"), WIDTH),
    **dict.fromkeys(("ego_inputs", "route_features"), flag),
    "dropout": number(0.0, 1.0),
}
DENOISER_CONFIG = {  # of model.denoiser.net.DenoiserNetConfig
    "spec": VECTOR_SPEC,
    **dict.fromkeys(("heads", "encoder_layers", "decoder_layers"), LAYERS),
    **dict.fromkeys(("hidden", "mixer_tokens", "mixer_channels", "route_tokens", "route_channels"), WIDTH),
    "ego_inputs": flag,
    "residual": flag,
    "route_features": flag,
    "dropout": number(0.0, 1.0),
}
ROW = {"file": FILE_NAME, "sha256": SHA256, "bytes": whole(0, MODEL_BYTES)}
MATRIX_3, MATRIX_4 = (array(array(number(), size, size), size, size) for size in (3, 4))
HEAD = {
    "format": text(),
    "model": {
        "kind": choice(*KINDS),
        "capabilities": array(choice(*LISTED), 0, len(LISTED)),
        "training_domain": text(most=100),
    },
}
DENOISER_HEAD = {
    "kind": choice("denoiser"),
    "capabilities": array(choice(GUIDANCE), 0, 1),
    "training_domain": text(most=100),
}
WEIGHTS_SHA256 = text(r"([0-9a-fA-F]{64})?", expected="a SHA-256, or nothing for random weights")
ABOUT = {
    "about": maybe(named(anything)),
    "golden": maybe(named(number())),
    "gate": maybe(named(anything)),  # read by check_gate
}
DENOISER_FIELDS = {
    "model": {
        **DENOISER_HEAD,
        "weights_sha256": WEIGHTS_SHA256,
        "precision": choice("fp32", "int8"),
        "inputs": VECTOR_SPEC,
        "batch": maybe(whole(1, LARGEST_BATCH)),
        "config": DENOISER_CONFIG,
    },
    **ABOUT,
}
FIELDS = {
    "model": {
        "weights_sha256": WEIGHTS_SHA256,
        "precision": choice("fp32", "bf16", *QUANTISED),
        "inputs": {
            "width": SIZE,
            "height": SIZE,
            "cameras": whole(0, 64),  # 0: it reads no images
            "rig": maybe(  # from left to right, in px of width x height
                array({"name": text(most=100), "pixels_from_camera": MATRIX_3, "camera_from_ego": MATRIX_4}, 1, 64)
            ),
            "instants": whole(1, 64),
            "frames": whole(1, 64),
            "text_length": whole(0, 4096),
            "words": array(text(most=100)),
            "ego_scale": array(SCALE, 3, 3),
            "route_at_m": array(number(0.0, 1e4), 0, 1000),
            "scene": maybe(VECTOR_SPEC),
        },
        "layout": LAYOUT,
        "decoding": {
            "goals": {
                "count": COUNT,
                "max_count": COUNT,
                "spacing_m": number(0.0),
                "floor": number(0.0, 1.0),
                "rescored": COUNT,
                "value_power": number(),
            },
            "edits": {"at_most": whole(0, 4096)},
        },
        "action_sequences": maybe(COUNT),
    },
    **ABOUT,
}


class GraphError(UserError):
    """Exported graphs cannot be used; the message names the file, the reason and what to do."""


@dataclass(frozen=True)
class GraphCard:
    """A card that was read and whose files were verified."""

    path: Path
    model: Mapping[str, Any]  # inputs and meaning of the network: `export.describe_model`
    files: Mapping[str, Path]
    sha256: Mapping[str, str]  # of the files
    about: Mapping[str, Any]  # origin of the weights
    gate: Mapping[str, Any]  # scores of quantised and float32 graphs; empty without a gate

    @staticmethod
    def read(path: str | Path) -> GraphCard:
        """Raises GraphError for another file than a card, and for graphs that are missing or have another hash."""
        path = Path(path)
        try:
            content = read_json(path)
            if not isinstance(content, dict) or content.get("format") != FORMAT:
                raise GraphError(
                    f"{path} is no card of exported graphs (format {FORMAT}): make one with reflectdrive export"
                )
            check_fields(content, HEAD)
            model, images = content["model"], False
            if model["kind"] == "token":
                check_fields(content, FIELDS)
                images = model["inputs"]["cameras"] > 0
            names = required_graphs(model["kind"], model["capabilities"], images)
            check_fields(content, {"graphs": {name: {**ROW, "weights": maybe(ROW)} for name in names}})
            if model["kind"] == "token":
                if bool(token_layout(model["layout"]).goal) != ("goals" in model["capabilities"]):
                    raise ValueError("has goals in one of layout and capabilities, expected both or none")
            else:
                check_fields(content, DENOISER_FIELDS)
                if vector_spec(model["inputs"]) != vector_spec(model["config"]["spec"]):
                    raise ValueError("has model.inputs that differ from model.config.spec")
        except OSError as fault:
            raise GraphError(f"{path_text(path)} cannot be read: {fault.strerror}") from None
        except ValueError as fault:  # DocumentError, or the layout's
            raise GraphError(f"{path} {fault}: export the checkpoint again") from None
        rows = {name: content["graphs"][name] for name in names}
        card = GraphCard(
            path,
            content["model"],
            {name: path.parent / row["file"] for name, row in rows.items()},
            {name: row["sha256"] for name, row in rows.items()},
            content.get("about") or {},
            content.get("gate") or {},
        )
        inputs = card.model.get("inputs", {})
        if card.kind == "token" and inputs["instants"] % inputs["frames"]:
            raise GraphError(f"{path} has inputs.instants that are no multiple of inputs.frames: export again")
        for name, row in rows.items():
            _check_graph(card.files[name], row)
        return card

    @property
    def kind(self) -> str:
        return str(self.model["kind"])

    @property
    def capabilities(self) -> frozenset[str]:
        """Optional functions of the network: some of CAPABILITIES, or GUIDANCE of a denoiser."""
        listed = frozenset(self.model["capabilities"])
        return listed & CAPABILITIES.keys() if self.kind == "token" else listed

    @property
    def precision(self) -> str:
        """Of the arithmetic: fp32, bf16, int8, fp8."""
        return str(self.model["precision"])

    def layout(self) -> TokenLayout:
        return token_layout(self.model["layout"])

    def vector_spec(self) -> VectorSpec:
        """Of a denoiser."""
        return vector_spec(self.model["inputs"])

    def scene_spec(self) -> VectorSpec | None:
        """Of a token network that reads agents and lanes."""
        spec = self.model["inputs"].get("scene")
        return None if spec is None else vector_spec(spec)

    @property
    def batch(self) -> int | None:
        """Scenes and conditions per call of a denoiser's graphs; None: one or two."""
        batch = self.model["batch"]
        return None if batch is None else int(batch)

    @property
    def max_goals(self) -> int:
        """The largest number of goals that a planner may request."""
        return int(self.model["decoding"]["goals"]["max_count"])

    def decoding(self) -> dict[str, float]:
        """The settings `decoding` of the export, by their names there; number and spacing of the goals are defaults."""
        goals = self.model["decoding"]["goals"]
        return {
            "goals": goals["count"],
            "goal_spacing_m": goals["spacing_m"],
            "rescore_goals": goals["rescored"],
            "goal_value_power": goals["value_power"],
        }

    def check_gate(self) -> None:
        """Raises GraphError for quantised graphs without a passed accuracy gate."""
        if self.precision not in QUANTISED:
            return
        try:
            lost = float(self.gate["pdms_fp32"]) - float(self.gate["pdms"])
        except (KeyError, TypeError, ValueError):
            raise GraphError(
                f"the graphs of {self.path} compute in {self.precision}, and their card lacks their score "
                f"beside that of float32 graphs: export again with --precision {self.precision} --gate DIR"
            ) from None
        if not (lost <= MAX_PDMS_DROP and self.gate.get("passed") is True):
            raise GraphError(
                f"the graphs of {self.path} compute in {self.precision} and score {lost:.2f} PDMS less than in "
                f"float32, at most {MAX_PDMS_DROP} is allowed: use the float32 graphs"
            )

    def check_metadata(self, name: str, metadata: Mapping[str, str]) -> None:
        """Raises GraphError when the graph in the file of `name` is not that graph of this model."""
        file = self.files[name]
        try:
            metadata_of = parse_json(metadata[METADATA])
            check_fields(metadata_of, {"graph": text(), "model": named(anything)})
        except (KeyError, DocumentError):
            raise GraphError(f"{file} carries no metadata of a planner: export the checkpoint again") from None
        graph, model = metadata_of["graph"], metadata_of["model"]
        if graph != name:
            raise GraphError(f"{file} is the graph {graph!r}, expected {name!r}: export again")
        different = [key for key in self.model if model.get(key) != self.model[key]]
        if different:
            raise GraphError(
                f"{file} belongs to another model than {self.path.name}: {', '.join(different)} differ; export the "
                "checkpoint again"
            )


def required_graphs(kind: str, capabilities: Iterable[str], images: bool = True) -> tuple[str, ...]:
    """The graphs of a network: those of its kind and of its capabilities, in the order of a step; `images`: whether a
    token network reads them."""
    if kind == "denoiser":  # it has two for all
        return KINDS[kind]
    needed = {
        *KINDS[kind],
        *(CAPABILITIES[name] for name in capabilities if name in CAPABILITIES),
        *(("vision_encoder",) if images else ()),
    }
    if CAPABILITIES["critique"] in needed:
        needed.discard(CAPABILITIES["refine"])
    return tuple(sorted(needed, key=ORDER.index))


def token_capabilities(
    layout: TokenLayout,
    refine: bool,
    sampling: bool,
    camera_dropout: bool = False,
    critique: bool = False,
) -> list[str]:
    """Capabilities of a token network: edit, goals if its layout has them, refine if it has an expert that corrects
    plans without a goal, sampling if the backend supports it, camera_dropout if it was trained with it, and critique if
    its expert reads one.
    """
    optional = {
        "goals": bool(layout.goal),
        "refine": refine and not (critique and layout.goal),  # with goals, an expert that reads a critique is AutoEdit
        "sampling": sampling,
        "camera_dropout": camera_dropout,
        "critique": critique,
    }
    return sorted(["edit", *(name for name, present in optional.items() if present)])


def token_layout(values: Mapping[str, Any]) -> TokenLayout:
    """The layout of a card. Raises ValueError for an invalid one."""
    axes = tuple(Axis(**{field: axis[field] for field in LAYOUT_AXIS}) for axis in values["axes"])
    others = {name: value for name, value in values.items() if name not in ("axes", "goal")}
    return TokenLayout(axes=axes, goal=tuple(values["goal"]), **others)


def vector_spec(values: Mapping[str, Any]) -> VectorSpec:
    """The input format of a card. Raises ValueError for an invalid one."""
    scales = {name: tuple(map(float, each)) for name, each in values["normalization"].items()}
    fields = {name: values[name] for name in VECTOR_SPEC if name in values and name != "normalization"}
    return VectorSpec(**fields, normalization=Normalization(**scales))


def _check_graph(file: Path, row: Mapping[str, Any]) -> None:
    """Raises GraphError unless the graph, and the weights file that it refers to, are those of the card."""
    weights = row.get("weights")
    try:
        content = read_limited(file, GRAPH_BYTES)
        _check_file(file, hashlib.sha256(content).hexdigest(), len(content), row)
        others = external_files(content) - ({weights["file"]} if weights else set())
        if weights:
            weights_file = file.parent / weights["file"]
            _check_file(weights_file, sha256_of(weights_file), weights_file.stat().st_size, weights)
    except OSError as fault:
        raise GraphError(f"{fault.filename} cannot be read: {fault.strerror}; export the checkpoint again") from None
    except OnnxError as fault:
        raise GraphError(f"{file} is no ONNX graph: {fault}; export the checkpoint again") from None
    if others:
        raise GraphError(
            f"{file} takes weights from {path_text(sorted(others)[0])!r}, which its card has no hash of: export the "
            "checkpoint again"
        )


def _check_file(file: Path, sha256: str, size_bytes: int, row: Mapping[str, Any]) -> None:
    """Raises GraphError for a hash or a size other than those of the card's row."""
    for name, value, expected in (("SHA-256", sha256, row["sha256"].lower()), ("bytes", size_bytes, row["bytes"])):
        if value != expected:
            raise GraphError(f"{file} has {name} {value}, its card has {expected}: fetch it again or export it again")
