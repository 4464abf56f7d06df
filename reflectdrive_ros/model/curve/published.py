"""Checkpoints in the public layout of Diffusion-Planner: `args.json` beside `model.pth` or safetensors.

    net = load_published("checkpoints/diffusion_planner")

Tensors are those of `ema_state_dict`, with the prefix `module.` of a distributed run; `model.pth` is read with
`weights_only=True`. The layout is checked strictly: missing and unexpected tensors are listed, and nothing is loaded.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ...documents import DocumentError, anything, check_fields, choice, named, number, read_json, whole
from ...vector_spec import Normalization, VectorSpec
from ..checkpoint import CheckpointError, copy_parameters, read_tensors
from .net import CurveNet, CurveNetConfig

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
OURS = (  # pattern in a published name -> ours, in this order
    (r"^encoder\.encoder\.", "encoder."),
    (r"^decoder\.decoder\.dit\.", "decoder."),
    (r"^encoder\.fusion\.blocks\.", "encoder.layers."),
    (r"^encoder\.fusion\.norm\.", "encoder.norm."),
    (r"^encoder\.(neighbor|lane)_encoder\.(channel_pre|token_pre|blocks|norm|emb_)", r"encoder.\1_mixer.\2"),
    (r"^encoder\.neighbor_mixer\.", "encoder.agent_mixer."),
    (r"^encoder\.neighbor_encoder\.type_emb\.", "encoder.agent_kind."),
    (r"^encoder\.lane_encoder\.speed_limit_emb\.", "encoder.speed_limit."),
    (r"^encoder\.lane_encoder\.unknown_speed_emb\.", "encoder.unknown_limit."),
    (r"^encoder\.lane_encoder\.traffic_emb\.", "encoder.light."),
    (r"^encoder\.static_encoder\.projection\.", "encoder.static_mlp."),
    (r"^encoder\.pos_emb\.", "encoder.position."),
    (r"^decoder\.route_encoder\.Mixer\.", "decoder.route_mixer.blocks.0."),
    (r"^decoder\.route_encoder\.", "decoder.route_mixer."),
    (r"^decoder\.preproj\.", "decoder.future_mlp."),
    (r"^decoder\.t_embedder\.mlp\.0\.", "decoder.time1."),
    (r"^decoder\.t_embedder\.mlp\.2\.", "decoder.time2."),
    (r"^decoder\.blocks\.", "decoder.layers."),
    (r"^decoder\.final_layer\.norm_final\.", "decoder.final.norm_final."),
    (r"^decoder\.final_layer\.proj\.0\.", "decoder.final.norm_input."),
    (r"^decoder\.final_layer\.proj\.1\.", "decoder.final.hidden."),
    (r"^decoder\.final_layer\.proj\.3\.", "decoder.final.norm_hidden."),
    (r"^decoder\.final_layer\.proj\.4\.", "decoder.final.output."),
    (r"^decoder\.final_layer\.", "decoder.final."),
    (r"\.adaLN_modulation\.1\.", ".modulation."),
)


def load_published(folder: Path) -> CurveNet:
    """The network of a folder in float32 on the CPU, ready for inference. Raises CheckpointError naming the fault."""
    config = published_config(folder / ARGS)
    file = next((folder / name for name in FILES if (folder / name).is_file()), None)
    if file is None:
        raise CheckpointError(f"{folder} holds none of {', '.join(FILES)}: name the folder of a checkpoint")
    tensors = {our_name(name): value.float() for name, value in _averaged(file).items()}
    net = CurveNet(config)
    copy_parameters(net, tensors, file)
    return net.eval()


def our_name(published: str) -> str:
    """Our name of a published parameter."""
    name = published.removeprefix(PREFIX)
    for pattern, ours in OURS:
        name = re.sub(pattern, ours, name)
    return name


def published_config(path: Path) -> CurveNetConfig:
    """The configuration of an `args.json`. Raises CheckpointError."""
    try:
        args = read_json(path)
        check_fields(args, MEASURES)
        for name, columns in COLUMNS.items():
            if args.get(name, columns) != columns:
                raise ValueError(f"has {name} = {args[name]}, expected {columns}")
        return CurveNetConfig(
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
    found: dict[str, tuple[float, ...]] = {}
    for name, (prefix, columns) in NORMALIZERS.items():
        entry = args["observation_normalizer"].get(name)
        for part in ("mean", "std"):
            found[f"{prefix}_{part}"] = _numbers(entry, part, columns, f"observation_normalizer.{name}")
    for part in ("mean", "std"):
        rows = args["state_normalizer"].get(part)
        agents = 1 + args["predicted_neighbor_num"]
        if not isinstance(rows, list) or len(rows) != agents or any(row != rows[1] for row in rows[1:]):
            raise ValueError(f"has state_normalizer.{part} not for {agents} agents, equal for all neighbours")
        for place, owner in ((0, "ego"), (1, "agent")):
            row = {part: rows[place][0] if isinstance(rows[place], list) and rows[place] else None}
            found[f"{owner}_future_{part}"] = _numbers(row, part, 4, "state_normalizer")
    return Normalization(**found)


def _numbers(entry: Any, part: str, columns: int, name: str) -> tuple[float, ...]:
    values = entry.get(part) if isinstance(entry, Mapping) else None
    good = isinstance(values, list) and len(values) == columns and all(type(v) in (int, float) for v in values)
    if not good or (part == "std" and min(values or [0]) <= 0):
        raise ValueError(f"has no {columns} numbers in {name}.{part}")
    return tuple(map(float, values))  # type: ignore[arg-type]


def _averaged(file: Path) -> dict[str, Tensor]:
    if file.suffix == ".safetensors":
        return read_tensors(file)[0]
    try:
        content = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as fault:  # of many kinds: a damaged archive, a pickle with code
        reason = " ".join(str(fault).split())[:200]
        raise CheckpointError(f"{file} cannot be read without running code from it: {reason}") from None
    tensors = content.get(AVERAGED) if isinstance(content, dict) else None
    if not isinstance(tensors, dict) or not all(isinstance(value, Tensor) for value in tensors.values()):
        raise CheckpointError(f"{file} has no tensors under {AVERAGED!r}: expected a public Diffusion-Planner")
    return tensors
