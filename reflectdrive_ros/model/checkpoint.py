"""Weights on disk: this package's, and those of Qwen3 and SigLIP2 in Hugging Face's format. Safetensors only, never
pickle.

    sha256 = save(net, "models/mine/weights.safetensors", {"data": "proving ground train", "seed": 0})
    net = load("models/mine/weights.safetensors", sha256)

The file contains the network's configuration, so that weights and code cannot disagree unnoticed; the card beside it
(`card.json`) holds the hash, the configuration and the caller's entries. Mismatches raise CheckpointError, which names
the file, the fault and what was expected. The functions on files of any kind of network are used by
`denoiser.checkpoint` too.

A file of `save_expert` has the parameters of a refinement expert alone, and names the file of the network that the
expert plugs onto, relative to its own folder, with its SHA-256: the draft's weights are stored once.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar, get_args, get_type_hints

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as to_bytes
from torch import Tensor, nn

from ..infra.documents import SHA256, DocumentError, array, check_fields, flag, maybe, number, parse_json, text, whole
from ..infra.errors import UserError
from ..infra.files import MODEL_BYTES, open_limited, sha256_of, write_atomic
from .card import LAYOUT, RENDERED, SCENE_ENCODER, GraphCard, GraphError, token_capabilities
from .token.net import TokenNet, TokenNetConfig

FORMAT = "reflectdrive.token_net.4"
EXPERT_FORMAT = "reflectdrive.token_expert.2"
EXPERT_PARAMETERS = ("refiner.", "critique_")  # of a network, those that its draft has no use for
CARD = "card.json"
SHOWN = 8  # names listed of those that are wrong
Net = TypeVar("Net", bound=nn.Module)
Config = TypeVar("Config")

COUNT, WIDTH, EPSILON = whole(1, 256), whole(1, 1 << 16), number(0.0, 1.0)
FIELDS = {  # of TokenNetConfig in a weights file
    "vision": {
        **{name: whole(1, 1 << 14) for name in ("height", "width", "patch")},
        **dict.fromkeys(("frames", "layers", "heads"), COUNT),
        **dict.fromkeys(("channels", "ffn"), WIDTH),
        "stem": array(WIDTH, 0, 8),
        "norm_eps": EPSILON,
    },
    "transformer": {
        **dict.fromkeys(("layers", "heads", "kv_heads"), COUNT),
        **dict.fromkeys(("width", "head_dim", "ffn", "action_ffn"), WIDTH),
        "rope_theta": number(1.0, 1e12),
        "norm_eps": EPSILON,
    },
    "cameras": COUNT,
    "instants": COUNT,
    "text_length": whole(0, 4096),
    "text_vocabulary": whole(1, 1 << 20),
    "words": array(text(most=100), 0, 1 << 20),
    "ego_scale": array(number(1e-6, 1e6), 3, 3),
    "route_at_m": array(number(0.0, 1e4), 0, 1000),
    "layout": LAYOUT,
    "goal_hidden": WIDTH,
    "table_stride": whole(1, 64),
    "refine_layers": whole(0, 256),
    "images": flag,
    "scene": maybe(SCENE_ENCODER),
    "critique": whole(0, 1 << 10),
}


class CheckpointError(UserError):
    """Weights cannot be used; the message names the file, the reason and what was expected."""


def save(net: TokenNet, path: str | Path, about: Mapping[str, Any], dtype: torch.dtype = torch.bfloat16) -> str:
    """Writes weights (as `dtype`) and card, atomically; returns the file's SHA-256."""
    entries = _about(net)
    return write_weights(net.state_dict(), FORMAT, entries["config"], {**entries, **about}, Path(path), dtype)


def save_expert(net: TokenNet, base: Path, path: Path, about: Mapping[str, Any]) -> str:
    """As `save`, of the expert of a network alone; `base` is the weights file of the network that it plugs onto."""
    tensors = {name: value for name, value in net.state_dict().items() if name.startswith(EXPERT_PARAMETERS)}
    plugged_onto = {"file": os.path.relpath(base, path.parent), "sha256": sha256_of(base)}
    entries = {**_about(net), "base": plugged_onto}
    content = {name: entries[name] for name in ("config", "base")}
    return write_weights(tensors, EXPERT_FORMAT, content, {**entries, **about}, path, torch.bfloat16)


def base_of(path: Path) -> Path:
    """The weights file of the network that the expert in a file plugs onto; the file itself if it holds a network.
    Raises CheckpointError."""
    metadata = read_metadata(path)
    return path.parent / _expert(path, metadata)["base"]["file"] if EXPERT_FORMAT in metadata else path


def base_tensors(path: Path) -> dict[str, Tensor]:
    """Weights of the network that the expert in a file plugs onto; none if the file holds a network. Raises
    CheckpointError."""
    metadata = read_metadata(path)
    if EXPERT_FORMAT not in metadata:
        return {}
    base = _expert(path, metadata)["base"]
    tensors, _ = read_verified(path.parent / base["file"], base["sha256"])
    return {name: each for name, each in tensors.items() if not name.startswith(EXPERT_PARAMETERS)}


def _about(net: TokenNet) -> dict[str, Any]:
    """Entries of the card of a network or of its expert."""
    return {
        "config": dataclasses.asdict(net.config),
        "kind": "token",
        "capabilities": weight_capabilities(net.config),
        "training_domain": RENDERED,
    }


def weight_capabilities(config: TokenNetConfig, camera_dropout: bool = False) -> list[str]:
    """Capabilities of weights: torch can do all that the network has parts for."""
    return token_capabilities(
        config.layout,
        config.refine_layers > 0,
        sampling=True,
        camera_dropout=camera_dropout,
        critique=config.critique > 0,
    )


def load(path: str | Path, sha256: str) -> TokenNet:
    """The network of a file, in float32 on the CPU, ready for inference. Raises CheckpointError."""
    path = Path(path)
    tensors, metadata = read_verified(path, sha256)
    if EXPERT_FORMAT in metadata:
        tensors = base_tensors(path) | tensors
    return network_of(TokenNet, _config(path, _config_text(path, metadata)), tensors, path)


def random_net(path: str | Path, seed: int) -> TokenNet:
    """The network of a weights file, or of a card of exported graphs, with random weights from a seed.

    In float32 on the CPU, ready for inference. Raises CheckpointError for a file without its configuration.
    """
    net = TokenNet(config_of(path))
    net.initialise(torch.Generator().manual_seed(seed))
    return net.eval()


def config_of(path: str | Path) -> TokenNetConfig:
    """The configuration in a weights file, or in a card of exported graphs. Raises CheckpointError."""
    path = Path(path)
    of_graphs = path.name == CARD
    return _config(path, stored_config(path, FORMAT) if of_graphs else _config_text(path, read_metadata(path)))


def _config(path: Path, content: str) -> TokenNetConfig:
    return parse_config(path, content, TokenNetConfig, FIELDS)


def _config_text(path: Path, metadata: Mapping[str, str]) -> str:
    """The configuration in the metadata of a network or of an expert, as JSON. Raises CheckpointError."""
    if EXPERT_FORMAT in metadata:
        return json.dumps(_expert(path, metadata)["config"])
    return config_text(path, metadata, FORMAT)


def _expert(path: Path, metadata: Mapping[str, str]) -> Any:
    """The metadata of an expert. Raises CheckpointError."""
    try:
        values = parse_json(metadata[EXPERT_FORMAT])
        check_fields(values, {"config": FIELDS, "base": {"file": text(most=4096), "sha256": SHA256}})
    except DocumentError as fault:
        raise CheckpointError(f"the description of the expert in {path} {fault}") from None
    return values


# --- files of any kind of network ------------------------------------------------------------------------------------


def write_weights(
    tensors: Mapping[str, Tensor],
    format_name: str,
    described: Any,
    about: Mapping[str, Any],
    path: Path,
    dtype: torch.dtype,
) -> str:
    """Writes weights (as `dtype`) with their description, an object of JSON, and the card beside them, atomically.

    about: entries of the card, which take precedence. Returns the file's SHA-256.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    stored = {name: value.detach().to("cpu", dtype).contiguous() for name, value in tensors.items()}
    content = to_bytes(stored, {format_name: json.dumps(described)})  # one entry: several have no fixed order
    digest = hashlib.sha256(content).hexdigest()
    card = {
        "format": format_name,
        "file": path.name,
        "sha256": digest,
        "bytes": len(content),
        "parameters": sum(value.numel() for value in stored.values()),
        "dtype": str(dtype).removeprefix("torch."),
        **about,
    }
    for target, written in ((path, content), (path.parent / CARD, (json.dumps(card, indent=2) + "\n").encode())):
        write_atomic(target, written)
    return digest


def read_verified(path: Path, sha256: str) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Tensors and metadata of a file with that hash. Raises CheckpointError."""
    try:
        digest = sha256_of(path)
    except OSError as fault:
        raise CheckpointError(f"{path} cannot be read: {fault.strerror}") from None
    if digest != sha256.lower():
        raise CheckpointError(f"{path} has SHA-256 {digest}, expected {sha256}: fetch the file again")
    return read_tensors(path)


def config_text(path: Path, metadata: Mapping[str, str], format_name: str) -> str:
    """The configuration in a file's metadata, as JSON. Raises CheckpointError for weights of another format."""
    if format_name not in metadata:
        raise CheckpointError(f"{path} carries {sorted(metadata)}, expected weights of the format {format_name}")
    return metadata[format_name]


def stored_config(path: Path, format_name: str) -> str:
    """The configuration, as JSON, in a weights file or in a card of exported graphs. Raises CheckpointError."""
    if path.name != CARD:
        return config_text(path, read_metadata(path), format_name)
    try:
        return json.dumps(GraphCard.read(path).model["config"])
    except (GraphError, KeyError) as fault:
        raise CheckpointError(f"{path} lacks the network's configuration: {fault}") from None


def parse_config(path: Path, content: str, kind: type[Config], fields: Mapping[str, Any]) -> Config:
    """A configuration as the dataclass `kind`, from JSON that has these fields. Raises CheckpointError."""
    try:
        values = parse_json(content)
        check_fields(values, fields)
        return _dataclass_of(kind, values)  # type: ignore[no-any-return]
    except DocumentError as fault:
        raise CheckpointError(f"the configuration that {path} carries {fault}") from None
    except ValueError as fault:
        raise CheckpointError(f"{path} carries a configuration that is not this network's: {fault}") from None


def network_of(make: Callable[[Config], Net], config: Config, tensors: Mapping[str, Tensor], path: Path) -> Net:
    """The network with these weights in float32 on the CPU, ready for inference. Raises CheckpointError."""
    with torch.device("meta"):  # shapes are compared before memory is taken for them
        check_shapes(make(config), tensors, path)
    net = make(config)
    copy_parameters(net, tensors, path)
    return net.eval()


def _dataclass_of(kind: Any, values: Mapping[str, Any]) -> Any:
    hints = get_type_hints(kind)
    unknown, missing = sorted(set(values) - set(hints)), sorted(set(hints) - set(values))
    if unknown or missing:
        raise ValueError(f"{kind.__name__} has unknown {unknown} and missing {missing} entries")
    return kind(**{name: _value_of(hints[name], value) for name, value in values.items()})


def _value_of(kind: Any, value: Any) -> Any:
    """An object as a dataclass, a list as the tuple that it is in a dataclass."""
    if isinstance(value, dict):
        of_object = next(each for each in (kind, *get_args(kind)) if dataclasses.is_dataclass(each))
        return _dataclass_of(of_object, value)
    if not isinstance(value, list):
        return value
    of_entry = get_args(kind)[0]
    return tuple(_dataclass_of(of_entry, each) if dataclasses.is_dataclass(of_entry) else each for each in value)


def open_safetensors(path: Path) -> Any:
    """A safetensors file, as `safe_open` returns it. Raises OSError for what is not a regular file, and
    SafetensorError.
    """
    open_limited(path, MODEL_BYTES).close()  # the library would block on a pipe without a writer
    return safe_open(path, "pt")


def read_metadata(path: Path) -> dict[str, str]:
    """The metadata of a file, without its tensors. Raises CheckpointError."""
    try:
        with open_safetensors(path) as file:
            return file.metadata() or {}
    except (SafetensorError, OSError) as fault:
        raise CheckpointError(f"{path} is not a safetensors file: {fault}") from None


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    try:
        with open_safetensors(path) as file:
            return {name: file.get_tensor(name) for name in file.keys()}, file.metadata() or {}  # noqa: SIM118
    except (SafetensorError, OSError) as fault:
        raise CheckpointError(f"{path} is not a safetensors file: {fault}") from None


def copy_parameters(net: torch.nn.Module, tensors: Mapping[str, Tensor], source: Path) -> None:
    """Copy tensors into the parameters of the same names; all must be there, none too many, all shapes equal."""
    own = check_shapes(net, tensors, source)
    broken = [name for name in own if not torch.isfinite(tensors[name]).all()]
    if broken:
        raise CheckpointError(f"{source} holds NaN or infinity in {listed(broken)}")
    with torch.no_grad():
        for name, parameter in own.items():
            parameter.copy_(tensors[name])


def check_shapes(net: torch.nn.Module, tensors: Mapping[str, Tensor], source: Path) -> dict[str, torch.nn.Parameter]:
    """The parameters by name. Raises CheckpointError unless tensors have their names and shapes."""
    own = dict(net.named_parameters())
    missing, unexpected = sorted(set(own) - set(tensors)), sorted(set(tensors) - set(own))
    if missing or unexpected:
        raise CheckpointError(f"{source} lacks {listed(missing)} and has unexpected {listed(unexpected)}")
    wrong = [name for name in own if own[name].shape != tensors[name].shape]
    if wrong:
        name = wrong[0]
        have, want = tuple(tensors[name].shape), tuple(own[name].shape)
        raise CheckpointError(f"{source}: {name} has shape {have}, expected {want} ({len(wrong)} such tensors)")
    return own


def listed(names: list[str]) -> str:
    """Names for a message, at most SHOWN of them."""
    if not names:
        return "nothing"
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more
