"""TensorRT engines on disk, each under a key of everything that it depends on: one that does not fit is not loaded.

An engine runs only where it was built. Another GPU, a slice of the same one, another TensorRT or other weights give
another key, so that no outdated engine is loaded. Beside `step-<key>.plan` is `step-<key>.json` with the parts of the
key and the hash of the plan. Files are written atomically.

    store(folder, key, plan)
    plan = load(folder, key, "build it with: reflectdrive engine card.json")

This module does not use TensorRT: inputs and outputs are bytes.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ...infra.documents import SHA256, DocumentError, array, check_fields, read_json, text, whole
from ...infra.errors import UserError
from ...infra.files import MEGABYTE, MODEL_BYTES, read_limited, write_atomic

TIMING_BYTES = 256 * MEGABYTE  # more than TensorRT writes
KEY_LENGTH = 16  # hexadecimal digits of the key in a file's name


class EngineError(UserError):
    """An engine is not available; the message names it, the reason and what to do."""


@dataclass(frozen=True)
class Machine:
    """What an engine is bound to."""

    tensorrt: str  # version, all four numbers
    gpu: str  # its name
    capability: str  # compute capability, such as 11.0
    processors: int  # streaming multiprocessors; a slice of a GPU has fewer
    cuda: str  # version that the driver has, such as 13.0


@dataclass(frozen=True)
class EngineKey:
    """What an engine was built of and for; with another in any of these it is another engine."""

    graph: str  # name in the card
    graph_sha256: str
    precision: str  # of the graph's arithmetic
    flags: tuple[str, ...]  # of the builder
    machine: Machine

    @property
    def parts(self) -> dict[str, Any]:
        """As JSON has them."""
        content = asdict(self)
        machine = content.pop("machine")
        return {**content, "flags": list(self.flags), **machine}

    @property
    def digest(self) -> str:
        return _digest(self.parts)

    @property
    def name(self) -> str:
        """Of its files, without their ending."""
        return f"{self.graph}-{self.digest[:KEY_LENGTH]}"


FIELDS = {  # of the card beside a plan
    **dict.fromkeys(("graph", "precision", "tensorrt", "gpu", "capability", "cuda"), text()),
    **dict.fromkeys(("graph_sha256", "sha256"), SHA256),
    "flags": array(text()),
    "processors": whole(0, 1 << 20),
    "bytes": whole(0, MODEL_BYTES),
}
WORDS = {  # parts in the words of a sentence
    "graph_sha256": "the graph with SHA-256 {:.12}",
    "precision": "{} arithmetic",
    "flags": "the builder's flags {}",
    "tensorrt": "TensorRT {}",
    "gpu": "the GPU {}",
    "capability": "compute capability {}",
    "processors": "{} multiprocessors",
    "cuda": "CUDA {}",
}


def load(folder: Path, key: EngineKey, remedy: str) -> bytes:
    """The engine that fits. Raises EngineError, with `remedy` as what to do.

    The sentence names the damaged file, or the difference to the nearest engine, or that there is none.
    """
    plan_file, card_file = folder / f"{key.name}.plan", folder / f"{key.name}.json"
    try:
        plan = read_limited(plan_file, MODEL_BYTES)
    except FileNotFoundError:
        raise EngineError(f"{_describe_nearest(folder, key)}; {remedy}") from None
    except OSError as fault:
        raise EngineError(f"TensorRT engine {plan_file} cannot be read: {fault.strerror}; {remedy}") from None
    card = _card(card_file)
    if {part: card.get(part) for part in key.parts} != key.parts:
        raise EngineError(f"TensorRT engine {plan_file}: {card_file.name} beside it lacks its key; {remedy}")
    if card.get("sha256") != hashlib.sha256(plan).hexdigest():
        raise EngineError(f"TensorRT engine {plan_file} is damaged: {card_file.name} has another SHA-256; {remedy}")
    return plan


def store(folder: Path, key: EngineKey, plan: bytes) -> Path:
    """Write an engine with its card; the plan's place. An older one of the same key is replaced. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    content = {**key.parts, "sha256": hashlib.sha256(plan).hexdigest(), "bytes": len(plan)}
    write_atomic(folder / f"{key.name}.json", (json.dumps(content, indent=2) + "\n").encode())
    plan_file = folder / f"{key.name}.plan"
    write_atomic(plan_file, plan)
    return plan_file


def timing_file(folder: Path, machine: Machine) -> Path:
    """Where a builder keeps what it has timed: one file for each TensorRT on each GPU.

    It is the SHA-256 of what follows, a line end, and TensorRT's own bytes.
    """
    return folder / f"timing-{_digest(asdict(machine))[:KEY_LENGTH]}.cache"


def load_timing(file: Path) -> bytes:
    """TensorRT's bytes of a timing file; empty where there is none or it is damaged: then all is timed again."""
    try:
        digest, _, timing = read_limited(file, TIMING_BYTES).partition(b"\n")
    except OSError:
        return b""
    return timing if digest == hashlib.sha256(timing).hexdigest().encode() else b""


def store_timing(file: Path, timing: bytes) -> None:
    """Raises OSError."""
    write_atomic(file, hashlib.sha256(timing).hexdigest().encode() + b"\n" + timing)


def _describe_nearest(folder: Path, key: EngineKey) -> str:
    """The differing parts of the most similar engine of this graph."""
    there = sorted(_other_engines(folder, key), key=lambda row: len(row[1]))
    if not there:
        return f"there is no TensorRT engine of {key.graph} in {folder}"
    name, different = there[0]
    was = ", ".join(_describe(part, value) for part, value in different.items())
    here = ", ".join(_describe(part, key.parts[part]) for part in different)
    return f"TensorRT engine {folder / name} was built for {was}; here it would be {here}"


def _describe(key: str, value: Any) -> str:
    return WORDS[key].format(" ".join(value) if isinstance(value, list) else str(value))


def _other_engines(folder: Path, key: EngineKey) -> Iterator[tuple[str, dict[str, Any]]]:
    """Engines of the same graph: the plan's name, and the parts of its key that are not as in `key`."""
    for file in sorted(folder.glob(f"{key.graph}-*.json")):
        card = _card(file)
        if set(key.parts) <= set(card) and card["graph"] == key.graph and file.with_suffix(".plan").is_file():
            yield f"{file.stem}.plan", {part: card[part] for part in key.parts if card[part] != key.parts[part]}


def _card(file: Path) -> dict[str, Any]:
    """The card beside a plan; empty if there is no usable one."""
    try:
        card = read_json(file)
        check_fields(card, FIELDS)
    except (OSError, DocumentError):
        return {}
    return dict(card)


def _digest(parts: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()
