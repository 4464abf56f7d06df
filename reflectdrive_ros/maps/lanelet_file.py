"""Reads a map from its .osm file with the lanelet2 bindings.

Autoware's maps give every point's position in the map frame in the tags local_x and local_y, which lanelet2 keeps as
attributes but does not use; maps without these tags are projected (UTM) around an origin.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from ..core.config import ConfigError, InputsConfig
from ..infra.files import shown
from .lanelet_elements import elements_of
from .lanelet_map import LaneletMap, MapSource
from .osm import OsmError, check_osm

CHECK = "check inputs.lanelet_map, inputs.lanelet_origin_lat and inputs.lanelet_origin_lon"


def import_lanelet2(settings: InputsConfig) -> tuple[Any, Any]:
    """lanelet2's modules io and projection. Raises ConfigError where they are not installed."""
    try:
        from lanelet2 import io, projection  # imported late: only maps need it
    except ImportError as fault:
        if settings.route_type == "lanelet":
            asks, instead = "inputs.route_type is lanelet", "send the route as nav_msgs/Path"
        elif settings.drivable_type == "map":
            asks, instead = "inputs.drivable_type is map", "choose another type"
        else:
            asks, instead = f"inputs.lanelet_map is {settings.lanelet_map}", "leave it empty"
        raise ConfigError(
            f"{asks}, but lanelet2 cannot be imported ({fault}): install the ROS package lanelet2, or "
            f"`pip install lanelet2`, or {instead}"
        ) from None
    return io, projection


def load_map(settings: InputsConfig) -> LaneletMap:
    """The map of `lanelet_map`. Raises ConfigError: one sentence with the file or setting that cannot be used and what
    to do.
    """
    path = Path(settings.lanelet_map)
    if not os.path.isfile(path):  # False also for names for which Path.is_file raises
        raise ConfigError(f"inputs.lanelet_map is {shown(path)}, which does not exist: give the map's .osm file")
    if path.suffix != ".osm":  # lanelet2 would also read its own archives, without checking them
        raise ConfigError(f"inputs.lanelet_map is {path}, which is not an .osm file: give the map's .osm file")
    io, projection = import_lanelet2(settings)
    try:
        check_osm(path)
    except OsmError as fault:
        raise ConfigError(f"inputs.lanelet_map {path} cannot be used: it {fault}") from None
    except OSError as fault:
        raise ConfigError(f"inputs.lanelet_map {path} cannot be read: {fault.strerror}") from None
    origin = settings.lanelet_origin_lat, settings.lanelet_origin_lon
    # if the tags are used, degrees only have to be accepted: UTM refuses points far from its origin
    project = projection.UtmProjector if any(origin) else projection.MercatorProjector
    try:
        # "robust": elements of Autoware that lanelet2 does not know do not invalidate a map
        loaded, complaints = io.loadRobust(str(path), project(io.Origin(*origin)))
    except RuntimeError as fault:
        why = " ".join(str(fault).split())
        raise ConfigError(f"inputs.lanelet_map {path} cannot be read: {why}") from None
    if not len(loaded.laneletLayer):
        why = next((f" ({c.strip()})" for c in map(str, list(complaints)[1:])), "")
        raise ConfigError(f"inputs.lanelet_map {path} holds no lanelet{why}: give another map or origin")
    if not any(origin):
        _place_by_tags(loaded, path)
    another = "set inputs.lanelet_map to the map that the route was planned on"
    return LaneletMap(elements_of(loaded), MapSource(path.name, CHECK, another))


def _place_by_tags(loaded: Any, path: Path) -> None:
    """Moves every point to its local_x, local_y, before lanelet2 computes and caches any centreline."""
    for point in loaded.pointLayer:
        tags = point.attributes
        try:
            point.x, point.y = float(tags["local_x"]), float(tags["local_y"])
        except KeyError:
            raise ConfigError(
                f"inputs.lanelet_map {path} has no local_x and local_y on node {point.id}: set "
                "inputs.lanelet_origin_lat and inputs.lanelet_origin_lon to where the map frame has its origin"
            ) from None
