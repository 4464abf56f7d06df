"""Finds model files and verifies their hashes."""

from __future__ import annotations

import json
import reprlib
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ..core.config import ModelConfig
from ..core.tokens import TokenLayout
from ..infra.documents import (
    SHA256,
    DocumentError,
    anything,
    array,
    check_fields,
    choice,
    maybe,
    named,
    number,
    read_json,
    text,
    whole,
)
from ..infra.errors import UserError
from ..infra.files import MODEL_BYTES, path_text, sha256_of
from ..infra.installing import shipped
from ..model.card import KINDS, LISTED, token_layout

CARD = "card.json"  # next to the weights: their description, with their hash
FIELDS = {
    "file": maybe(text()),
    "sha256": maybe(SHA256),
    "kind": maybe(choice(*KINDS)),
    "capabilities": maybe(array(choice(*LISTED))),
    "golden": maybe(named(number())),
    "bytes": maybe(whole(1, MODEL_BYTES)),
    "config": maybe(named(anything)),
}


class ModelFileError(UserError):
    """The model file cannot be used; the message names the reason and what to do."""


def verified_sha256(model: ModelConfig) -> str:
    """The hash of the model file, or "" when none is configured. Raises ModelFileError when missing or different."""
    if not model.file:
        return ""
    path = shipped(model.file)
    digest = _sha256(path)
    if digest != model.sha256.lower():
        raise ModelFileError(
            f"model file {path} has SHA-256 {digest}, expected {model.sha256}: "
            "download it again, or set model.sha256 if the change is intended"
        )
    return digest


def model_config(file: str, sha256: str | None) -> ModelConfig:
    """The model of a command line: its hash as given or, for weights, from the card next to them.

    A card of exported graphs is itself the model file. Raises ModelFileError without a hash.
    """
    path = shipped(file).absolute()
    if sha256 is None:
        sha256 = _sha256(path) if path.name == CARD else read_card(path).get("sha256")
    if not isinstance(sha256, str) or not sha256:
        raise ModelFileError(f"no {CARD} beside {path_text(path)} has its hash: give it with --sha256")
    return ModelConfig(str(path), sha256)


def weights_sha256(model: ModelConfig) -> str:
    """Hash of the weights in use: of the file itself, or of the weights that its graphs were exported from.

    Empty if no model is configured. Raises ModelFileError for a card that cannot be read.
    """
    path = shipped(model.file)
    model_card = read_card(path).get("model") if model.file and path.name == CARD else None
    return str(model_card.get("weights_sha256", "")) if isinstance(model_card, dict) else model.sha256.lower()


def read_card(path: Path) -> dict[str, Any]:
    """The card of a model file, or the model itself where it is a card; empty where none is about that file.

    Raises ModelFileError for a card that cannot be read.
    """
    card_path = path.parent / CARD
    try:
        card = read_json(card_path)
        if path != card_path and isinstance(card, dict) and card.get("file") not in (None, path.name):
            return {}
        check_fields(card, FIELDS)
    except FileNotFoundError:
        return {}
    except OSError as fault:
        raise ModelFileError(f"{path_text(card_path)} cannot be read: {fault.strerror}") from None
    except DocumentError as fault:
        raise ModelFileError(f"{path_text(card_path)} {fault}: give the hash with --sha256, or remove it") from None
    return dict(card)


def check_card(path: Path, config: Any) -> None:
    """Raises ModelFileError if the card next to weights gives another size or configuration than the file.

    config: of the network in the file, a dataclass.
    """
    card = read_card(path)
    described = {"config": card["config"]} if card.get("config") else {}
    if card.get("bytes"):
        described["bytes"] = card["bytes"]
    difference = _first_difference(
        described, {"bytes": path.stat().st_size, "config": json.loads(json.dumps(asdict(config)))}, ""
    )
    if difference:
        raise ModelFileError(f"the card {path_text(path.parent / CARD)} gives {difference}: fetch both again")


def _first_difference(described: Any, actual: Any, name: str) -> str:
    """The first entry of `described` that `actual` does not have, as "NAME = VALUE, but the file has VALUE"."""
    if isinstance(described, dict) and isinstance(actual, Mapping):
        inner = (_first_difference(each, actual.get(key), f"{name}.{key}") for key, each in described.items())
        return next((difference for difference in inner if difference), "")
    if described == actual:
        return ""
    return f"{name.lstrip('.')} = {reprlib.repr(described)}, but the file has {reprlib.repr(actual)}"


def training_domain(model: ModelConfig) -> str:
    """What a network was trained on, as its card says; empty where no card does."""
    if not model.file:
        return ""
    card = read_card(shipped(model.file))
    described = card.get("model") if isinstance(card.get("model"), dict) else card
    return str(described.get("training_domain") or "")  # type: ignore[union-attr]


def network_kind(path: Path) -> str:
    """The kind of a model file, token or denoiser, as its card says; weights without a card are a token network.

    Raises ModelFileError for a card that cannot be read.
    """
    card = read_card(path)
    described = card.get("model") if isinstance(card.get("model"), dict) else card
    return str(described.get("kind") or "token")  # type: ignore[union-attr]


def card_layout(model: ModelConfig) -> TokenLayout | None:
    """The token layout that the card of the model names, for readers of token ids; None without such a card."""
    if not model.file:
        return None
    try:
        card = read_card(shipped(model.file))
        graphs = card.get("model")
        described = graphs if isinstance(graphs, dict) else card["config"]
        return token_layout(described["layout"])
    except (ModelFileError, KeyError, TypeError, ValueError):
        return None


def _sha256(path: Path) -> str:
    try:
        return sha256_of(path)
    except OSError as fault:
        cure = "set model.file to an existing file"
        if path.parts[0] == "models":  # one of those that are shipped
            share = Path(sys.prefix, "share", "reflectdrive")
            cure = f"copy the folder models of a clone into {share} or the working directory, or {cure}"
        raise ModelFileError(f"model file {path_text(path)} cannot be read ({fault.strerror}): {cure}") from None
