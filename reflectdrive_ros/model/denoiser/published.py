"""Checkpoints in the public layout of Diffusion-Planner: `args.json` beside `model.pth` or safetensors.

    net = load_published("checkpoints/diffusion_planner")

Tensors are those of `ema_state_dict`, with the prefix `module.` of a distributed run; `model.pth` is read with
`weights_only=True`. The layout is checked strictly: missing and unexpected tensors are listed, and nothing is loaded.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ...core.vector_spec import Normalization, VectorSpec
from ...infra.documents import DocumentError, anything, check_fields, choice, named, number, read_json, whole
from ...infra.provenance import provenance
from ..checkpoint import CheckpointError, listed, network_of, read_tensors
from . import checkpoint
from .net import DenoiserNet, DenoiserNetConfig

KIND = "diffusion-planner"  # of checkpoint
TRAINING_DOMAIN = "nuPlan"
ARGS = "args.json"
FILES = ("model.safetensors", "ema_state_dict.safetensors", "model.pth", "latest.pth")  # the first that exists is read
AVERAGED, PREFIX = "ema_state_dict", "module."
COUNT = whole(1, 4096)
MEASURES = {  # of args.json
    **dict.fromkeys(("agent_num", "static_objects_num", "lane_num", "route_num", "predicted_neighbor_num"), COUNT),
    **dict.fromkeys(("time_len", "lane_len", "future_len", "hidden_dim", "num_heads"), COUNT),
    **dict.fromkeys(("encoder_depth", "decoder_depth"), COUNT),
    "encoder_drop_path_rate": number(0.0, 1.0),
    "diffusion_model_type": choice("x_start"),
    "state_normalizer": named(anything),
    "observation_normalizer": named(anything),
}
COLUMNS = {"agent_state_dim": 11, "static_objects_state_dim": 10, "lane_state_dim": 12, "route_state_dim": 12}
NORMALIZERS = {  # entry of observation_normalizer -> field prefix and columns of Normalization
    "ego_current_state": ("ego", 10),
    "neighbor_agents_past": ("agent", 11),
    "static_objects": ("static", 10),
    "lanes": ("lane", 12),
    "lanes_speed_limit": ("limit", 1),
    "route_lanes": ("route", 12),
}
PUBLISHED = (  # start of our name -> start of the published one, without PREFIX
    ("encoder.agent_mixer.", "encoder.encoder.neighbor_encoder."),
    ("encoder.agent_kind.", "encoder.encoder.neighbor_encoder.type_emb."),
    ("encoder.lane_mixer.", "encoder.encoder.lane_encoder."),
    ("encoder.speed_limit.", "encoder.encoder.lane_encoder.speed_limit_emb."),
    ("encoder.unknown_limit.", "encoder.encoder.lane_encoder.unknown_speed_emb."),
    ("encoder.light.", "encoder.encoder.lane_encoder.traffic_emb."),
    ("encoder.static_mlp.", "encoder.encoder.static_encoder.projection."),
    ("encoder.position.", "encoder.encoder.pos_emb."),
    ("encoder.layers.", "encoder.encoder.fusion.blocks."),
    ("encoder.norm.", "encoder.encoder.fusion.norm."),
    ("decoder.route_mixer.blocks.0.", "decoder.decoder.dit.route_encoder.Mixer."),
    ("decoder.route_mixer.", "decoder.decoder.dit.route_encoder."),
    ("decoder.agent_embedding.", "decoder.decoder.dit.agent_embedding."),
    ("decoder.future_mlp.", "decoder.decoder.dit.preproj."),
    ("decoder.time1.", "decoder.decoder.dit.t_embedder.mlp.0."),
    ("decoder.time2.", "decoder.decoder.dit.t_embedder.mlp.2."),
    ("decoder.layers.", "decoder.decoder.dit.blocks."),
    ("decoder.final.norm_final.", "decoder.decoder.dit.final_layer.norm_final."),
    ("decoder.final.norm_input.", "decoder.decoder.dit.final_layer.proj.0."),
    ("decoder.final.hidden.", "decoder.decoder.dit.final_layer.proj.1."),
    ("decoder.final.norm_hidden.", "decoder.decoder.dit.final_layer.proj.3."),
    ("decoder.final.output.", "decoder.decoder.dit.final_layer.proj.4."),
    ("decoder.final.modulation.", "decoder.decoder.dit.final_layer.modulation."),
)
MODULATION = (".modulation.", ".adaLN_modulation.1.")


def load_published(folder: Path) -> DenoiserNet:
    """The network of a folder in float32 on the CPU, ready for inference. Raises CheckpointError naming the fault."""
    config, file = published_config(folder / ARGS), weights_file(folder)
    tensors = _without_prefix(_read_averaged(file), file)
    with torch.device("meta"):  # names and shapes are compared before memory is taken for them
        ours = _check_names(DenoiserNet(config), tensors, file)
    return network_of(DenoiserNet, config, ours, file)


def weights_file(folder: Path) -> Path:
    """The file of a folder that is read. Raises CheckpointError."""
    file = next((folder / name for name in FILES if (folder / name).is_file()), None)
    if file is None:
        raise CheckpointError(f"{folder} holds none of {', '.join(FILES)}: name the folder of a checkpoint")
    return file


def published_name(ours: str) -> str:
    """The published name of one of our parameters, without PREFIX."""
    start, published = next(pair for pair in PUBLISHED if ours.startswith(pair[0]))
    return (published + ours.removeprefix(start)).replace(*MODULATION)


def save_imported(net: DenoiserNet, path: Path, source: Mapping[str, str]) -> str:
    """Writes our weights (float32) and card of a network read from the file `source`; returns their SHA-256.

    The public network was not trained with dropped conditions: it has no capability `guidance`.
    """
    about = {"imported_from": {"kind": KIND, **source}, **provenance()}
    described = {"capabilities": [], "training_domain": TRAINING_DOMAIN, "data": about}
    return checkpoint.save(net, path, described, torch.float32)


def published_config(path: Path) -> DenoiserNetConfig:
    """The configuration of an `args.json`. Raises CheckpointError."""
    try:
        args = read_json(path)
        check_fields(args, MEASURES)
        for name, columns in COLUMNS.items():
            if args.get(name, columns) != columns:
                raise ValueError(f"has {name} = {args[name]}, expected {columns}")
        if args.get("route_len", args["lane_len"]) != args["lane_len"]:
            raise ValueError(f"has route_len = {args['route_len']}, expected lane_len ({args['lane_len']})")
        return DenoiserNetConfig(
            VectorSpec(
                agents=args["agent_num"],
                history_steps=args["time_len"],
                static_objects=args["static_objects_num"],
                lanes=args["lane_num"],
                lane_points=args["lane_len"],
                route_lanes=args["route_num"],
                predicted_agents=args["predicted_neighbor_num"],
                future_steps=args["future_len"],
                normalization=_normalization(args),
            ),
            hidden=args["hidden_dim"],
            heads=args["num_heads"],
            encoder_layers=args["encoder_depth"],
            decoder_layers=args["decoder_depth"],
            dropout=args["encoder_drop_path_rate"],
        )
    except OSError as fault:
        raise CheckpointError(f"{path} cannot be read: {fault.strerror}") from None
    except (DocumentError, ValueError) as fault:
        raise CheckpointError(f"{path} {fault}: expected the args.json of a public Diffusion-Planner") from None


def _normalization(args: Mapping[str, Any]) -> Normalization:
    normalization: dict[str, tuple[float, ...]] = {}
    for name, (prefix, columns) in NORMALIZERS.items():
        entry = args["observation_normalizer"].get(name)
        for part in ("mean", "std"):
            normalization[f"{prefix}_{part}"] = _numbers(entry, part, columns, f"observation_normalizer.{name}")
    for part in ("mean", "std"):
        rows = args["state_normalizer"].get(part)
        agents = 1 + args["predicted_neighbor_num"]
        if not isinstance(rows, list) or len(rows) != agents or any(row != rows[1] for row in rows[1:]):
            raise ValueError(f"has state_normalizer.{part} not for {agents} agents, equal for all neighbours")
        for index, owner in ((0, "ego"), (1, "agent")):
            row = {part: rows[index][0] if isinstance(rows[index], list) and rows[index] else None}
            normalization[f"{owner}_future_{part}"] = _numbers(row, part, 4, "state_normalizer")
    return Normalization(**normalization)


def _numbers(entry: Any, part: str, columns: int, name: str) -> tuple[float, ...]:
    values = entry.get(part) if isinstance(entry, Mapping) else None
    good = isinstance(values, list) and len(values) == columns and all(type(v) in (int, float) for v in values)
    if not good or (part == "std" and min(values or [0]) <= 0):
        raise ValueError(f"has no {columns} numbers in {name}.{part}")
    return tuple(map(float, values))  # type: ignore[arg-type]


def _check_names(net: DenoiserNet, tensors: Mapping[str, Tensor], file: Path) -> dict[str, Tensor]:
    """Tensors by our names. Raises CheckpointError unless they are a network's parameters, by name and shape."""
    expected = {published_name(name): parameter.shape for name, parameter in net.named_parameters()}
    missing, unexpected = sorted(set(expected) - set(tensors)), sorted(set(tensors) - set(expected))
    if missing or unexpected:
        raise CheckpointError(f"{file} lacks {listed(missing)} and has unexpected {listed(unexpected)}")
    wrong = [name for name, shape in expected.items() if tensors[name].shape != shape]
    if wrong:
        have, want = tuple(tensors[wrong[0]].shape), tuple(expected[wrong[0]])
        raise CheckpointError(
            f"{file}: {wrong[0]} has shape {have}, by {ARGS} it is {want} ({len(wrong)} such tensors)"
        )
    return {name: tensors[published_name(name)].float() for name, _ in net.named_parameters()}


def _without_prefix(tensors: Mapping[str, Tensor], file: Path) -> dict[str, Tensor]:
    renamed: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        short = name.removeprefix(PREFIX)
        if short in renamed:
            raise CheckpointError(f"{file} has {short} twice, with and without {PREFIX!r}: one of them is wrong")
        renamed[short] = tensor
    return renamed


def _read_averaged(file: Path) -> dict[str, Tensor]:
    if file.suffix == ".safetensors":
        return read_tensors(file)[0]
    try:
        with warnings.catch_warnings():  # of torch, on files that it refuses
            warnings.simplefilter("ignore")
            content = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as fault:  # of many kinds: a damaged archive, a pickle with code
        raise CheckpointError(
            f"{file} cannot be read as tensors only, without running code: {_reason(fault)}"
        ) from None
    tensors = content.get(AVERAGED) if isinstance(content, dict) else None
    if not isinstance(tensors, dict) or not all(isinstance(value, Tensor) for value in tensors.values()):
        raise CheckpointError(f"{file} has no tensors under {AVERAGED!r}: expected a public Diffusion-Planner")
    return {str(name): value for name, value in tensors.items()}


def _reason(fault: Exception) -> str:
    """The cause in one of torch's messages, without its advice to load with weights_only=False."""
    lines = [line for line in str(fault).splitlines() if line and "weights_only" not in line]
    return (lines or [type(fault).__name__])[0][:200].rstrip(". ")
