"""Which topic of a bag feeds which input of the planner: by type first, by name where several have the type."""

from __future__ import annotations

from collections.abc import Sequence

from ..config import Config, override_dotted
from . import topics
from .bag import BagError, BagReader


def mapped(
    config: Config, reader: BagReader, pairs: Sequence[str], *, driven_route: bool
) -> tuple[Config, dict[str, str]]:
    """The configuration fitted to what the bag holds (raw or compressed pictures, kind of objects), and the bag's topic
    for each input key.

    `pairs` are KEY=NAME given by a person, or KEY= for an input that the planner is to do without; with `driven_route`
    the route does not come from the bag. Raises BagError naming what is missing.
    """
    by_type: dict[str, list[str]] = {}
    for topic in reader.topics:
        if topic.count:
            by_type.setdefault(topic.type_name, []).append(topic.name)
    if "sensor_msgs/msg/CompressedImage" not in by_type and "sensor_msgs/msg/Image" in by_type:
        config = override_dotted(config, {"cameras.compressed": False})
    asked = dict(pair.partition("=")[::2] for pair in pairs)
    objects = next((kind for kind, name in topics.OBJECT_TYPES.items() if name in by_type), "none")
    without = asked.get("objects") == ""
    config = override_dotted(config, {"inputs.objects_type": "none" if without else objects})
    if driven_route:  # it is put in as a Path
        config = override_dotted(config, {"inputs.route_type": "path"})
    unknown = set(asked) - {entry.key for entry in topics.inputs(config)} - ({"objects"} if without else set())
    if unknown:
        keys = ", ".join(entry.key for entry in topics.inputs(config))
        raise BagError(f"--topic {min(unknown)}: no such input; expected one of {keys}")
    sources: dict[str, str] = {}
    for entry in topics.inputs(config):
        names = by_type.get(entry.type, [])
        camera = entry.key.partition(":")[2]
        if camera:
            names = [name for name in names if camera in name.split("/")]
        if asked.get(entry.key) == "":
            if entry.required:
                raise BagError(f"--topic {entry.key}=: {config.planner} needs this input; name a topic of the bag")
        elif entry.key in asked:
            sources[entry.key] = reader.require(entry.type, asked[entry.key])[0].name
        elif entry.key == "route" and driven_route:
            continue
        elif len(names) == 1 or (names and not camera):
            sources[entry.key] = preferred(names, entry.key)
        elif entry.required:
            try:
                reader.require(entry.type)
            except BagError as fault:
                raise BagError(f"{fault}; {advice(entry.key)}") from None
            raise BagError(f"no topic of {entry.type} in the bag is named after camera '{camera}'; {advice(entry.key)}")
    return config, sources


def known_sources(reader: BagReader) -> dict[str, str]:
    """The bag's map and objects, where it has them: plans are scored against them, whether or not the planner asked."""
    found = {}
    for key, kinds in (("map", (topics.MAP_TYPE,)), ("objects", tuple(topics.OBJECT_TYPES.values()))):
        for kind in kinds:
            names = [topic.name for topic in reader.topics if topic.type_name == kind and topic.count]
            if names and key not in found:
                found[key] = preferred(names, key)
    return found


def preferred(names: list[str], key: str) -> str:
    """Among several topics of the right type, the one that sounds like it."""
    words = {
        "odometry": ("kinematic_state", "odom"),
        "route": ("route",),
        "objects": ("objects",),
        "map": ("vector_map",),
    }.get(key, ())
    return min(names, key=lambda name: (not any(word in name for word in words), len(name), name))


def advice(key: str) -> str:
    if key == "route":
        return "pass --route driven to follow the path that was driven (in hindsight)"
    if key == "map":
        return "give the map's .osm file with --set inputs.lanelet_map=FILE"
    if key.startswith(("image", "info", "tf_static")):
        return "name it with --topic, or run a planner that needs no pictures with --set cameras.required=false"
    return f"name it with --topic {key}=/its/name"
