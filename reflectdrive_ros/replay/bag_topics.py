"""Maps topics of a bag to inputs of the planner: by type, and by name if several topics have the type."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..core.config import Config, override_dotted
from ..ros import topics
from ..ros.bag import IMAGE_DOMAIN, BagError, BagReader
from ..ros.topics import Topic

IMAGE, COMPRESSED = "sensor_msgs/msg/Image", "sensor_msgs/msg/CompressedImage"
# the word in a topic's name that decides among several of one type
TOPIC_KEYWORDS = {
    "odometry": "kinematic_state",
    "acceleration": "acceleration",
    "route": "route",
    "objects": "objects",
    "map": "vector_map",
    "tf_static": "tf_static",
    "instruction": "instruction",
    "drivable": "drivable",
    "obstacles": "obstacle",
    "lights": "traffic_light_recognition/traffic_signals",  # the fused ones, not those of one camera or source
    "max_velocity": "max_velocity",
}
# The car of a recording follows no plan of ours. By the operation mode of a drive by hand, every step would start
# without the last plan, and the steps of an engaged car could not be replayed.
ONLY_IF_ASKED = ("operation_mode", "turn_indicators_status")
RECORDED_TYPES = {
    "map": (topics.MAP_TYPE,),
    "objects": tuple(topics.OBJECT_TYPES.values()),
    "lights": (topics.LIGHTS_TYPE,),
}
IMAGE_TOPIC_NAME = ("tf_static", "instruction")  # other topics of these types are not used: /tf, any text
LAST_PART = ("max_velocity",)  # likewise topics whose name only begins so: max_velocity_candidates


@dataclass(frozen=True)
class TopicMapping:
    """The topic of a bag for each input of the planner."""

    config: Config  # fitted to the bag: raw or compressed images, kind of objects
    sources: dict[str, str]  # input key -> topic
    types: dict[str, str]  # input key -> message type
    others: dict[str, list[str]]  # input key -> further topics of the type, not used

    def details(self) -> dict[str, dict[str, Any]]:
        """Ready for JSON."""
        return {
            key: {"name": name, "type": self.types[key], "others": self.others[key]}
            for key, name in self.sources.items()
        }


def map_topics(
    config: Config, reader: BagReader, pairs: Sequence[str], *, driven_route: bool, for_check: bool = False
) -> TopicMapping:
    """The topic of each input that `config` requires.

    `pairs` are KEY=NAME from the command line, or KEY= for an input that is left out; with `driven_route` the route
    does not come from the bag; `for_check` maps the inputs of the check node. Raises BagError that names every input
    without a topic or with several candidates, with
    the options to choose from.
    """
    requested = _parse_topics(pairs)
    type_of = {topic.name: topic.type_name for topic in reader.topics if topic.count}
    config = _fit_types(config, type_of, requested, driven_route=driven_route)
    if domain := reader.descriptions.get(IMAGE_DOMAIN):
        config = override_dotted(config, {"cameras.domain": domain})
    entries = topics.check_inputs(config) if for_check else topics.inputs(config)
    user = "the check" if for_check else config.planner
    keys = {entry.key for entry in entries}
    if unknown := sorted(
        set(requested) - keys - {key for key, name in requested.items() if not name and key in TOPIC_KEYWORDS}
    ):
        raise BagError(f"--topic {unknown[0]}: no such input; expected one of {', '.join(keys)}")
    mapping = TopicMapping(config, {}, {}, {})
    problems: list[str] = []
    advice: dict[str, None] = {}  # each line once, in order
    for entry in entries:
        name = requested.get(entry.key)
        fitting = _fitting(entry, type_of)
        if name == "":
            if entry.required:
                raise BagError(f"--topic {entry.key}=: {user} needs this input; name a topic of the bag")
            continue
        if name is None and ((entry.key == "route" and driven_route) or entry.key in ONLY_IF_ASKED):
            continue
        if name is None:
            name = _only(entry, fitting)
            if name is None and fitting and (entry.required or ":" not in entry.key):
                problems += _ambiguous(entry, fitting)
            elif name is None and entry.required:
                problems += _missing(entry, type_of)
                advice |= dict.fromkeys(_advice(entry, type_of))
        elif type_of.get(name) != entry.type:
            what = f"of type {type_of[name]}" if name in type_of else "not in the bag"
            problems.append(f"{entry.key}: {name} is {what}, expected a topic of type {entry.type}")
            problems += [f"  --topic {entry.key}={each}" for each in _of_type(entry, type_of)]
            name = None
        if name is not None:
            mapping.sources[entry.key], mapping.types[entry.key] = name, entry.type
            mapping.others[entry.key] = [each for each in fitting if each != name]
    if problems:
        head = f"bag {reader.path}: it is not clear which topics {user} is to use"
        raise BagError("\n".join([head, *problems, *(["or change what is needed:"] if advice else []), *advice]))
    return mapping


def ambiguous_choices(details: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """One sentence for each input with several candidate topics, from its entry of the details."""
    return [
        f"{key}: {entry['name']} is used; the bag also has {', '.join(entry['others'])} of this type: "
        f"--topic {key}={entry['others'][0]} would use that"
        for key, entry in details.items()
        if entry["others"]
    ]


def _parse_topics(pairs: Sequence[str]) -> dict[str, str]:
    names = {}
    for pair in pairs:
        key, equals, name = pair.partition("=")
        if not equals:
            raise BagError(f"--topic {pair}: expected KEY=NAME; {pair}= leaves this input out")
        names[key] = name
    return names


def _fit_types(
    config: Config, type_of: Mapping[str, str], requested: Mapping[str, str], *, driven_route: bool
) -> Config:
    """The message-type settings that fit the named topics, or else the bag."""
    have = set(type_of.values())
    images = {type_of.get(name) for key, name in requested.items() if key.startswith("image:")} & {IMAGE, COMPRESSED}
    if images == {IMAGE} or (not images and COMPRESSED not in have and IMAGE in have):
        config = override_dotted(config, {"cameras.compressed": False})
    kinds = topics.OBJECT_TYPES.items()
    named = type_of.get(requested.get("objects", ""))
    objects = next((kind for kind, name in kinds if name == named), None)
    objects = objects or next(
        (kind for kind, name in kinds if name in have), "predicted" if "objects" in requested else "none"
    )
    without = requested.get("objects") == ""
    config = override_dotted(config, {"inputs.objects_type": "none" if without else objects})
    if driven_route:  # it is put in as a Path
        config = override_dotted(config, {"inputs.route_type": "path"})
    return config


def _fitting(entry: Topic, type_of: Mapping[str, str]) -> list[str]:
    """Topics of the bag that may be this input, by name."""
    names = _of_type(entry, type_of)
    if camera := entry.key.partition(":")[2]:
        return [name for name in names if camera in name.split("/")]
    if entry.key in LAST_PART:
        return [name for name in names if name.split("/")[-1] == TOPIC_KEYWORDS[entry.key]]
    if entry.key in IMAGE_TOPIC_NAME:
        return [name for name in names if TOPIC_KEYWORDS[entry.key] in name]
    return names


def _only(entry: Topic, names: Sequence[str]) -> str | None:
    """The topic that is an input beyond question: the only one, or the only one with the input's word."""
    likely = [name for name in names if TOPIC_KEYWORDS.get(entry.key, entry.key) in name]
    return next((some[0] for some in (likely, names) if len(some) == 1), None)


def _of_type(entry: Topic, type_of: Mapping[str, str]) -> list[str]:
    return sorted(name for name, kind in type_of.items() if kind == entry.type)


def _ambiguous(entry: Topic, names: Sequence[str]) -> list[str]:
    lines = [f"{entry.key}: {len(names)} topics are of type {entry.type}; choose one:"]
    lines += [f"  --topic {entry.key}={name}" for name in names]
    return lines if entry.required else [*lines, f"  --topic {entry.key}=   (to do without)"]


def _missing(entry: Topic, type_of: Mapping[str, str]) -> list[str]:
    names = _of_type(entry, type_of)
    camera = entry.key.partition(":")[2]
    if not names:
        lines = [f"{entry.key}: the bag has no topic of type {entry.type}"]
    elif camera:
        lines = [f"{entry.key}: no topic of type {entry.type} is named after camera '{camera}'; choose one:"]
    else:
        lines = [f"{entry.key}: no topic of type {entry.type} is named '{TOPIC_KEYWORDS[entry.key]}'; choose one:"]
    return [*lines, *(f"  --topic {entry.key}={name}" for name in names)]


def _advice(entry: Topic, type_of: Mapping[str, str]) -> list[str]:
    """Alternatives to naming a topic."""
    have = set(type_of.values())
    if entry.key == "route":
        other = next((kind for kind, name in topics.ROUTE_TYPES.items() if name != entry.type and name in have), None)
        choices = (
            [f"  --setting inputs.route_type={other}   (the bag has a {topics.ROUTE_TYPES[other]})"] if other else []
        )
        return [*choices, "  --route driven   (to follow the path that was driven, in hindsight)"]
    if entry.key == "map":
        return ["  --setting inputs.lanelet_map=FILE   (the map's .osm file)"]
    if entry.key == "tf_static" or ":" in entry.key:
        return ["  --setting cameras.required=false   (with a planner that needs no images)"]
    return []


def recorded_sources(reader: BagReader, keys: Collection[str] = ("map", "objects")) -> dict[str, str]:
    """The topics of a bag that have its map, objects and lights, whether or not the planner uses them: plans are scored
    against map and objects. Of several topics of a type, the one with the input's word, else the one of the shortest
    name."""
    sources = {}
    for key, kinds in RECORDED_TYPES.items():
        for kind in kinds if key in keys else ():
            names = [topic.name for topic in reader.topics if topic.type_name == kind and topic.count]
            if names and key not in sources:
                sources[key] = min(names, key=lambda name: (TOPIC_KEYWORDS[key] not in name, len(name), name))
    return sources
