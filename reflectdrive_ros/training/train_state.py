"""A training run on disk: the complete training state in one file that is written atomically.

OUT/ state.safetensors    weights, averaged weights, AdamW's moments; its header holds step, time and settings
     weights.safetensors, card.json   the averaged weights, for driving (model/checkpoint.py)
     log.csv              a row every few steps
     tensorboard/         the same
"""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

import torch
from safetensors import SafetensorError
from safetensors.torch import save as to_bytes
from torch import Tensor, nn

from ..infra.documents import SHA256, anything, check_fields, named, number, parse_json, read_json, whole
from ..infra.errors import UserError
from ..infra.files import write_atomic
from ..model import checkpoint
from ..model.token.net import TokenNet, TokenNetConfig
from ..model.token.transfer import adapt
from ..model.vision import resize_patch_embedding
from ..runtime.network import golden
from ..runtime.torch_backend import SELF_CHECK_DECODING, TorchNetwork

FILE = "state.safetensors"
WEIGHTS = "weights.safetensors"
FORMAT = "reflectdrive.training.3"
PATCHES = "vision.patch_embedding.weight"
RESIDUAL_OUTPUTS = (
    "out_proj.weight",
    "fc2.weight",
    "o_proj.weight",
    "down_proj.weight",
)  # products that write to the residual stream; zero in a layer that starts as an identity
STATE = {
    "progress": {"step": whole(0, 10**12), "elapsed_s": number(0.0, 1e12), "validations": whole(0, 10**9)},
    "about": {"settings": named(anything), "sets": named(anything)},
}
ADAM = ("exp_avg", "exp_avg_sq", "step")
WEIGHTS_ONLY_KEYS = (
    "format",
    "kind",
    "capabilities",
    "training_domain",
    "file",
    "bytes",
    "parameters",
    "dtype",
    "config",
    "golden",
)  # of a card: nothing about the run


class StateError(UserError):
    """A run cannot be resumed; the message names it, the reason and what to do."""


@dataclass(frozen=True)
class Progress:
    """How far a run is."""

    step: int = 0  # steps done
    elapsed_s: float = 0.0
    validations: int = 0


def tensors_of(learning: nn.Module, average: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Tensors of a state; `learning` holds all that the optimizer changes."""
    tensors: dict[str, Tensor] = {}
    for prefix, module in (("learning", learning), ("average", average)):
        for name, value in module.named_parameters():
            tensors[f"{prefix}.{name}"] = value.detach()
    names = {id(parameter): name for name, parameter in learning.named_parameters()}
    for parameter, moments in optimizer.state.items():
        for key in ADAM:
            tensors[f"{key}.{names[id(parameter)]}"] = moments[key]
    return {name: value.to("cpu").contiguous() for name, value in tensors.items()}


def save(folder: Path, progress: Progress, about: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
    """Writes the state: `about` are the settings and sets, as JSON. Raises OSError naming the file."""
    content = {"progress": asdict(progress), "about": about}
    write_atomic(folder / FILE, to_bytes(dict(tensors), {FORMAT: json.dumps(content)}))


def save_weights(net: TokenNet, path: Path, about: Mapping[str, Any], base: Path | None = None) -> str:
    """Writes a network's weights, or its expert alone if that plugs onto the weights in a file `base`, and a card with
    the self-check answers of the stored file; returns the file's SHA-256. The bytes of the weights are not changed by
    the self-check. Raises OSError naming the file.
    """

    def save(entries: Mapping[str, Any]) -> str:
        if base is not None:
            return checkpoint.save_expert(net, base, path, entries)
        return checkpoint.save(net, path, entries)

    network = TorchNetwork.from_file(path, save(about), decoding=SELF_CHECK_DECODING)
    return save({**about, "golden": golden(network)})


def read_progress(folder: Path) -> tuple[Progress, dict[str, Any]] | None:
    """How far the run of a folder is and what it is about; None where there is none. Raises StateError."""
    path = folder / FILE
    try:
        with checkpoint.open_safetensors(path) as file:
            metadata = file.metadata() or {}
        content = parse_json(metadata[FORMAT])
        check_fields(content, STATE)
        return Progress(**content["progress"]), content["about"]
    except FileNotFoundError:
        return None
    except (SafetensorError, OSError, KeyError, ValueError) as fault:
        raise StateError(f"{path} is not a state of a training run ({fault}): remove it to begin again") from None


def restore(folder: Path, learning: nn.Module, average: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Loads the state of a folder into the losses and the optimizer. Raises StateError if it is of another network."""
    path = folder / FILE
    parameters = dict(learning.named_parameters())
    try:
        with checkpoint.open_safetensors(path) as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        with torch.no_grad():
            for prefix, module in (("learning", learning), ("average", average)):
                for name, parameter in module.named_parameters():
                    _fill(parameter, tensors.pop(f"{prefix}.{name}"), path, name)
        for full_name, value in tensors.items():
            key, _, name = full_name.partition(".")
            parameter = parameters[name]
            optimizer.state[parameter][key] = value.to(parameter.device)
    except (SafetensorError, OSError, KeyError) as fault:
        raise StateError(f"{path} does not fit this network ({fault}): give another --out") from None


def load_pretrained(folder: Path, learning: nn.Module, average: nn.Module) -> list[str]:
    """Copies the weights of another run into this one, the averaged ones of the network, where names and shapes agree.

    A token network may have another layout: its tables are read by position (`token.transfer`). A refinement expert
    that the other run lacks begins as a copy of the network's last layers. The network may be larger: patch embeddings
    of another size are resized (`vision.resize_patch_embedding`), and layers that the other run lacks start as
    identities. A folder without a state, such as a published network, has the network's weights only. Returns the names
    of parameters that did not come from the other run. Raises StateError.
    """
    whole = (folder / FILE).exists()
    path = folder / (FILE if whole else WEIGHTS)
    missing_keys = []
    net, source = learning.net, _token_config(folder)
    try:
        with checkpoint.open_safetensors(path) as file, torch.no_grad():
            stored, of_base = set(file.keys()), {} if whole else checkpoint.base_tensors(path)
            for name, parameter in learning.named_parameters():
                of_network = name.removeprefix("net.")
                prefix = "" if not whole else "learning." if of_network == name else "average."
                source_name = prefix + of_network
                tensor = file.get_tensor(source_name) if source_name in stored else of_base.get(source_name)
                if tensor is not None and of_network == PATCHES and tensor.shape[:2] == parameter.shape[:2]:
                    tensor = resize_patch_embedding(tensor.float(), parameter.shape[-1])
                if tensor is not None and tensor.shape != parameter.shape and source and isinstance(net, TokenNet):
                    tensor = adapt(of_network, tensor, source, net.config)
                if tensor is not None and tensor.shape == parameter.shape:
                    parameter.copy_(tensor)
                    continue
                missing_keys.append(name)
                if tensor is None and ".layers." in name and name.endswith(RESIDUAL_OUTPUTS):
                    parameter.zero_()
            of_expert = [key for key in missing_keys if "refiner." in key]
            if of_expert and isinstance(net, TokenNet):
                net.start_expert()
                missing_keys = [key for key in missing_keys if key not in of_expert]
            average.load_state_dict(cast(nn.Module, net).state_dict())
    except (SafetensorError, OSError) as fault:
        raise StateError(f"{path} cannot be read ({fault}): give another --init-from") from None
    return missing_keys


def initial_network(config: TokenNetConfig, folder: Path, seed: int) -> TokenNet:
    """A network with which a run begins: random weights, and those of a folder where names and shapes agree. Raises
    StateError."""
    net = TokenNet(config)
    net.initialise(torch.Generator().manual_seed(seed))
    learning = nn.Module()
    learning.net = net
    load_pretrained(folder, learning, copy.deepcopy(net))
    return net.requires_grad_(False).eval()


def _token_config(folder: Path) -> TokenNetConfig | None:
    """The configuration of the token network in a folder of weights; None if it holds none."""
    try:
        return checkpoint.config_of(folder / WEIGHTS)
    except checkpoint.CheckpointError:
        return None


def load_network(folder: Path) -> TokenNet:
    """The network with the weights for driving of a run, or of a folder of weights. Raises StateError."""
    return checkpoint.load(folder / WEIGHTS, card_of(folder)["sha256"])


def describe_init_run(folder: Path) -> dict[str, Any]:
    """The card entry of the run whose weights initialise another. Raises StateError if there are none."""
    saved = read_progress(folder)
    if saved is not None:
        progress, about = saved
        about_run = {"steps": progress.step, "minutes": round(progress.elapsed_s / 60.0, 2)}
        return {**about_run, "settings": about["settings"], **about["sets"]}
    return {name: value for name, value in card_of(folder).items() if name not in WEIGHTS_ONLY_KEYS}


def card_of(folder: Path) -> dict[str, Any]:
    """The card next to the weights of a run. Raises StateError if there is none, or if it is a card of graphs."""
    path = folder / checkpoint.CARD
    try:
        card = read_json(path)
        check_fields(card, named(anything))
        if "graphs" in card:
            raise StateError(f"{folder} holds exported graphs: name the folder of their weights")
        check_fields(card, {"sha256": SHA256})
        return dict(card)
    except FileNotFoundError:
        where = f"{folder / FILE} is missing, and {path} too"
        raise StateError(f"{where}: name the --out of another run, or a folder of weights") from None
    except (OSError, ValueError) as fault:
        raise StateError(f"{path} cannot be used ({fault}): name another folder of weights") from None


def _fill(parameter: nn.Parameter, value: Tensor, path: Path, name: str) -> None:
    if parameter.shape != value.shape:
        shapes = f"{tuple(value.shape)}, expected {tuple(parameter.shape)}"
        raise StateError(f"{path}: {name} has shape {shapes}: it is another network's, give another --out")
    parameter.copy_(value)
