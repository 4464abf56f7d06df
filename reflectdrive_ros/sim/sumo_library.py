"""SUMO as a library of this process."""

from __future__ import annotations

import importlib
import os
from typing import Any

from ..maps.sumo import SumoFailed, SumoMissing, find_home

SYSTEM_LIBRARIES = "libgl1 libx11-6 libxext6 libxrender1"  # apt packages that the wheel of libsumo needs


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
