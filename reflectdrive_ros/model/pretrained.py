"""Initialisation from public weights: a Qwen3 language model and a SigLIP2 vision encoder in Hugging Face's format.

    net = TokenNet(base_config())
    net.initialise(generator)
    load_qwen3(net, "path/of/Qwen3-0.6B-Base")
    load_siglip(net, "path/of/siglip2-base-patch16-256")

The prompt is causal, as in the language model. The action FFN starts with the channels of the full FFN that have the
largest gates. New parts (projector, action tables and heads) keep their random initialisation. A network with its own
vocabulary takes the embeddings of the words that are single tokens of the language model. Missing, unknown or
differently shaped weights are refused by name.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from ..infra.documents import FILE_NAME, anything, check_fields, maybe, named, read_json
from .checkpoint import CheckpointError, copy_parameters, read_tensors
from .layers import DecoderLayer
from .token.net import TokenNet

CONDITION = ("route_mixer.", "ego_mlp.", "lead_mlp.", "profile_mlp.")  # of a denoiser's decoder
WORD_START = "\u0120"  # prefix of a word within a sentence, instead of the space
SIGLIP_DEFAULTS = {  # what its configuration leaves out
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "patch_size": 16,
    "image_size": 224,
    "layer_norm_eps": 1e-6,
    "hidden_act": "gelu_pytorch_tanh",
}


def load_scene_encoder(net: TokenNet, folder: str | Path) -> None:
    """Loads the encoder and the condition of a denoiser from its folder. Raises CheckpointError for a network that
    reads no scene, or for weights of other shapes."""
    path = Path(folder) / "weights.safetensors"
    if net.config.scene is None:
        raise CheckpointError(f"{folder} has a scene encoder, but the network reads no scene: leave the weights out")
    tensors, _ = read_tensors(path)
    of_encoder = {name.removeprefix("encoder."): each for name, each in tensors.items() if name.startswith("encoder.")}
    of_decoder = {name.removeprefix("decoder."): each for name, each in tensors.items() if name.startswith("decoder.")}
    of_condition = {name: each for name, each in of_decoder.items() if name.startswith(CONDITION)}
    copy_parameters(net.scene_encoder, of_encoder, path)
    copy_parameters(net.scene_condition, of_condition, path)


def load_qwen3(net: TokenNet, folder: str | Path) -> None:
    """Loads the language model's weights from a folder with config.json and safetensors. Raises CheckpointError."""
    folder = Path(folder)
    configuration, want = _configuration(folder), net.config.transformer
    rope_theta = configuration.get("rope_theta", (configuration.get("rope_parameters") or {}).get("rope_theta"))
    _must_agree(
        folder,
        {**configuration, "rope_theta": rope_theta},
        {
            "model_type": "qwen3",
            "hidden_size": want.width,
            "num_hidden_layers": want.layers,
            "num_attention_heads": want.heads,
            "num_key_value_heads": want.kv_heads,
            "head_dim": want.head_dim,
            "intermediate_size": want.ffn,
            "rms_norm_eps": want.norm_eps,
            "rope_theta": want.rope_theta,
            **({} if net.config.words else {"vocab_size": net.config.text_vocabulary}),
        },
    )
    tensors = {name.removeprefix("model."): value for name, value in _tensors(folder).items()}
    tensors.pop("lm_head.weight", None)  # equals the embedding; this network generates no text
    if net.config.words and "embed_tokens.weight" in tensors:
        tensors["embed_tokens.weight"] = _vocabulary_embeddings(net, tensors["embed_tokens.weight"], folder)
    parts = torch.nn.ModuleDict({"embed_tokens": net.embed_tokens, "layers": net.layers, "norm": net.norm})
    # the action FFN is not part of Qwen3: it keeps its initialisation, then takes the strongest channels
    own = {name: value for name, value in parts.state_dict().items() if ".action_mlp." in name}
    unexpected_own = sorted(set(own) & set(tensors))
    if unexpected_own:
        raise CheckpointError(f"{folder} has unexpected {', '.join(unexpected_own)}")
    copy_parameters(parts, {**tensors, **own}, folder)
    for layer in net.layers:
        init_action_mlp(cast(DecoderLayer, layer))


def _vocabulary_embeddings(net: TokenNet, table: Tensor, folder: Path) -> Tensor:
    """The embeddings of a network's own words, taken from the language model's where its vocabulary has them."""
    path = folder / "vocab.json"
    try:
        pieces = read_json(path)
        token_ids = [pieces.get(f"{WORD_START}{word}", pieces.get(word)) for word in net.config.words]
        rows = net.embed_tokens.weight.detach().clone()
        for index, piece in enumerate(token_ids):
            if piece is not None:
                rows[index] = table[piece]
    except (OSError, ValueError, TypeError, AttributeError, IndexError) as fault:
        raise CheckpointError(f"{path} is not the vocabulary of the weights beside it: {fault}") from None
    return rows


def init_action_mlp(layer: DecoderLayer) -> None:
    """Sets the action FFN to the channels of the full FFN whose gate weights have the largest norm, in order."""
    with torch.no_grad():
        norms = layer.mlp.gate_proj.weight.norm(dim=1)
        channels = norms.topk(layer.action_mlp.gate_proj.weight.shape[0]).indices.sort().values
        layer.action_mlp.gate_proj.weight.copy_(layer.mlp.gate_proj.weight[channels])
        layer.action_mlp.up_proj.weight.copy_(layer.mlp.up_proj.weight[channels])
        layer.action_mlp.down_proj.weight.copy_(layer.mlp.down_proj.weight[:, channels])


def load_siglip(net: TokenNet, folder: str | Path) -> None:
    """Fill the visual encoder from a folder with config.json and safetensors; the text tower and the pooling head
    that may be there are left out. Raises CheckpointError."""
    folder = Path(folder)
    configuration, want = _configuration(folder), net.config.vision
    if want.stem or want.frames != 1 or want.height != want.width:
        raise CheckpointError(f"{folder} is for single square images without a stem; vision is {want}")
    _must_agree(
        folder,
        {**SIGLIP_DEFAULTS, **(configuration.get("vision_config") or configuration)},
        {
            "hidden_size": want.channels,
            "intermediate_size": want.ffn,
            "num_hidden_layers": want.layers,
            "num_attention_heads": want.heads,
            "patch_size": want.patch,
            "image_size": want.height,
            "layer_norm_eps": want.norm_eps,
            "hidden_act": "gelu_pytorch_tanh",
        },
    )
    tensors = {}
    for name, value in _tensors(folder).items():
        if name.startswith(("text_model.", "vision_model.head.")) or name in ("logit_scale", "logit_bias"):
            continue
        inside = name.removeprefix("vision_model.").removeprefix("embeddings.").removeprefix("encoder.")
        tensors[inside] = value
    copy_parameters(net.vision, tensors, folder)


def _configuration(folder: Path) -> dict[str, Any]:
    try:
        configuration: dict[str, Any] = read_json(folder / "config.json")
        check_fields(
            configuration, {"vision_config": maybe(named(anything)), "rope_parameters": maybe(named(anything))}
        )
        return configuration
    except (OSError, ValueError) as fault:
        raise CheckpointError(f"{folder / 'config.json'} cannot be read: {fault}") from None


def _must_agree(folder: Path, configuration: Mapping[str, Any], want: Mapping[str, Any]) -> None:
    for name, value in want.items():
        if configuration.get(name) != value:
            raise CheckpointError(
                f"{folder / 'config.json'}: {name} is {configuration.get(name)!r}, expected {value!r}"
            )


def _tensors(folder: Path) -> dict[str, Tensor]:
    """All tensors of a folder, in one file or in the files of its index."""
    index = folder / "model.safetensors.index.json"
    names = ["model.safetensors"]
    if os.path.exists(index):
        try:
            index_file = read_json(index)
            check_fields(index_file, {"weight_map": named(FILE_NAME)})
            names = sorted(set(index_file["weight_map"].values()))
        except (OSError, ValueError) as fault:
            raise CheckpointError(f"{index} is no index of tensors: {fault}") from None
    tensors: dict[str, Tensor] = {}
    for name in names:
        tensors.update(read_tensors(folder / name)[0])
    return tensors
