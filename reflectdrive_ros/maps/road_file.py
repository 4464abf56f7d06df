"""Loads a map file of any supported kind."""

from __future__ import annotations

from pathlib import Path

from . import lanelet_roads, opendrive
from .roads import RoadError, RoadMap

KINDS = "Lanelet2 (.osm) or OpenDRIVE (.xodr, .xodr.gz)"


def load(path: Path, folder: Path, max_limit_mps: float | None = None) -> RoadMap:
    """The road map of a file; its SUMO network is written to `folder`. Speed limits are at most `max_limit_mps`.

    Raises RoadError for a file of another kind or one that cannot be used, SumoMissing without SUMO.
    """
    if path.name.endswith(opendrive.SUFFIXES):
        return opendrive.load(path, folder, max_limit_mps)
    if path.suffix == ".osm":
        return lanelet_roads.load(path, folder, max_limit_mps)
    raise RoadError(f"{path} is no map that can be driven on: give a map of kind {KINDS}")
