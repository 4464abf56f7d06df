"""Finds SUMO and runs its programs.

SUMO comes as the PyPI packages of the extra `sim`; a SUMO of the system (SUMO_HOME or PATH) is used as well.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..errors import UserError
from ..installing import pip_extra

TIMEOUT_S = 60.0  # netconvert takes less than a second for a town
SYSTEM_LIBRARIES = "libgl1 libx11-6 libxext6 libxrender1"  # apt packages that the wheel of libsumo needs


class SumoMissing(UserError, RuntimeError):
    """SUMO is not on this machine; the message says what to install."""

    def __init__(self) -> None:
        super().__init__(f"SUMO is not installed: {pip_extra('sim')}")


class SumoFailed(UserError, RuntimeError):
    """A program of SUMO ended with an error, or SUMO cannot be loaded; the message is the last line of it."""


def find_home() -> Path | None:
    """The folder of SUMO_HOME: that of the PyPI package first, because tests use its version."""
    package = importlib.util.find_spec("sumo")
    if package is not None and package.origin is not None:
        return Path(package.origin).parent
    named = os.environ.get("SUMO_HOME")
    return Path(named) if named and Path(named).is_dir() else None


def binary(name: str) -> str:
    """Path of a program of SUMO, as `netconvert`. Raises SumoMissing."""
    folder = find_home()
    found = shutil.which(name, path=str(folder / "bin")) if folder is not None else None
    found = found or shutil.which(name)
    if found is None:
        raise SumoMissing
    return found


def run(name: str, arguments: Sequence[str], timeout_s: float = TIMEOUT_S) -> None:
    """Runs a program of SUMO to its end, quietly. Raises SumoMissing, or SumoFailed with its last error line."""
    program = binary(name)
    folder = find_home()
    environment = dict(os.environ) if folder is None else {**os.environ, "SUMO_HOME": str(folder)}
    try:
        done = subprocess.run(
            [program, *arguments], capture_output=True, text=True, timeout=timeout_s, env=environment, check=False
        )
    except subprocess.TimeoutExpired:
        raise SumoFailed(f"{name} did not end within {timeout_s:.0f} s: it was stopped") from None
    if done.returncode != 0:
        said = [line for line in done.stderr.splitlines() if line.strip() and not line.startswith("Quitting")]
        raise SumoFailed(f"{name} failed: {said[-1].strip() if said else f'exit code {done.returncode}'}")


def libsumo() -> Any:
    """The module that runs SUMO inside this process. Raises SumoMissing, or SumoFailed if a library is missing."""
    folder = find_home()
    if folder is not None:
        os.environ.setdefault("SUMO_HOME", str(folder))  # libsumo reads its schemas from there
    try:
        return importlib.import_module("libsumo")
    except ModuleNotFoundError:
        raise SumoMissing from None
    except ImportError as fault:  # the wheel uses libraries of X11 and OpenGL, which a bare server or container lacks
        raise SumoFailed(f"SUMO cannot be loaded: {fault}; sudo apt-get install -y {SYSTEM_LIBRARIES}") from None
