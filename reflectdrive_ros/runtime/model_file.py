"""Weights are used only when they are the ones that were asked for."""

from __future__ import annotations

import hashlib
from pathlib import Path

from ..config import ModelConfig


class ModelFileError(Exception):
    """The model file cannot be used; the message says why and what to do."""


def verified_sha256(model: ModelConfig) -> str:
    """The hash of the model file, or "" when none is configured. Raises ModelFileError when missing or different."""
    if not model.file:
        return ""
    path = Path(model.file)
    try:
        with path.open("rb") as file:
            digest = hashlib.sha256()
            for block in iter(lambda: file.read(1 << 20), b""):
                digest.update(block)
    except OSError as fault:
        raise ModelFileError(
            f"model file {path} cannot be read ({fault.strerror}): set model.file to an existing file"
        ) from None
    if digest.hexdigest() != model.sha256.lower():
        raise ModelFileError(
            f"model file {path} has SHA-256 {digest.hexdigest()}, expected {model.sha256}: "
            "download it again, or set model.sha256 if the change is meant"
        )
    return digest.hexdigest()
