"""The SROS 2 policy of the planner node and of the check node: exactly their topics, generated from the topic table.

    python -m reflectdrive_ros.ros.sros2_policy > config/sros2/reflectdrive.policy.xml
    python -m reflectdrive_ros.ros.sros2_policy --config car.yaml --namespace /planning/reflectdrive \
        --remap ~/output/planning_factors:=/planning/planning_factors/reflectdrive > car.policy.xml

The second form is for a vehicle: camera topics are settings, and the policy must contain the names to which launch
files remap. Each node has an enclave of its own.
docs/autoware.md shows how to create keys and an enclave.
"""

from __future__ import annotations

import argparse
import re
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType

from ..core.config import Config, ConfigError, load, override_dotted
from . import topics
from .check_core import without_cameras
from .launch_topics import CHECK_INPUTS, CHECK_SETTINGS, INPUTS
from .topics import Topic

NAMESPACE, NODE, CHECK_NODE = "/planning/reflectdrive", "reflectdrive", "reflectdrive_check"
NO_REMAPS: Mapping[str, str] = MappingProxyType({})
ROS_OWN_PUBLISHED = ("/rosout", "/parameter_events")
ROS_OWN_SERVICES = (
    "describe_parameters",
    "get_parameter_types",
    "get_parameters",
    "get_type_description",
    "list_parameters",
    "set_parameters",
    "set_parameters_atomically",
)


def policy(config: Config, namespace: str = NAMESPACE, remaps: Mapping[str, str] = NO_REMAPS) -> str:
    """The policy XML (SROS 2's policy format 0.2.0) of both nodes under a configuration, as the launch files start them
    by default, with other names for some topics: `~/..` -> name."""
    root = ElementTree.Element("policy", version="0.2.0")
    enclaves = ElementTree.SubElement(root, "enclaves")
    planner_names, check_names = (
        {**{own: row[1] for own, row in table.items()}, **remaps} for table in (INPUTS, CHECK_INPUTS)
    )
    _add_enclave(
        enclaves, namespace, NODE, topics.inputs(config), planner_names, topics.OUTPUTS, (topics.START_SERVICE,)
    )
    _add_enclave(enclaves, namespace, CHECK_NODE, _check_inputs(config), check_names, topics.CHECK_OUTPUTS)
    ElementTree.indent(root, "  ")
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ElementTree.tostring(root, encoding="unicode") + "\n"


def _check_inputs(config: Config) -> tuple[Topic, ...]:
    """The subscriptions of the check node as its launch file sets it."""
    return topics.CHECK_CANDIDATES, *topics.check_inputs(override_dotted(without_cameras(config), CHECK_SETTINGS))


def _add_enclave(
    enclaves: ElementTree.Element,
    namespace: str,
    node: str,
    inputs: Iterable[Topic],
    remapped: Mapping[str, str],
    outputs: Iterable[Topic],
    services: Iterable[str] = (),
) -> None:
    """`remapped`: names of the topics that the launch file gives other names. `services`: besides those of ROS."""
    own = f"{namespace}/{node}"
    enclave = ElementTree.SubElement(enclaves, "enclave", path=own)
    profile = ElementTree.SubElement(ElementTree.SubElement(enclave, "profiles"), "profile", ns=namespace, node=node)
    for kind, right, names in (
        ("service", {"reply": "ALLOW"}, [*(f"~/{name}" for name in ROS_OWN_SERVICES), *services]),
        ("topic", {"subscribe": "ALLOW"}, [remapped.get(topic.name, topic.name) for topic in inputs]),
        (
            "topic",
            {"publish": "ALLOW"},
            [*(remapped.get(topic.name, topic.name) for topic in outputs), *ROS_OWN_PUBLISHED],
        ),
    ):
        group = ElementTree.SubElement(profile, f"{kind}s", right)
        for name in sorted({name.replace("~", own) for name in names}):
            ElementTree.SubElement(group, kind).text = name


def parse_remaps(rules: Iterable[str], config: Config) -> dict[str, str]:
    """Topic -> name, of rules FROM:=TO. Raises ConfigError for another form and for a topic that no node has."""
    every = *topics.inputs(config), *topics.OUTPUTS, *_check_inputs(config), *topics.CHECK_OUTPUTS
    names = {topic.name for topic in every}
    remaps = dict[str, str]()
    for rule in rules:
        own, separator, name = rule.partition(":=")
        if not (separator and re.fullmatch(r"(~/|/)[A-Za-z_]\w*(/[A-Za-z_]\w*)*", name)):
            raise ConfigError(f"--remap is '{rule}', expected FROM:=TO with TO an absolute name or one with ~/")
        if own not in names:
            raise ConfigError(f"--remap is '{rule}', but no node has the topic {own}: docs/topics.md lists them")
        remaps[own] = name
    return remaps


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", type=Path, help="configuration file (YAML) of the car")
    parser.add_argument("--namespace", default=NAMESPACE, help=f"namespace of the nodes (default: {NAMESPACE})")
    parser.add_argument(
        "--remap",
        action="append",
        default=[],
        metavar="FROM:=TO",
        help="a topic that a launch file gives another name, as ~/output/trajectory:=/planning/trajectory; may be "
        "repeated",
    )
    args = parser.parse_args(arguments)
    try:
        config = load(args.config) if args.config else Config()
        sys.stdout.write(policy(config, args.namespace, parse_remaps(args.remap, config)))
    except ConfigError as fault:
        sys.stderr.write(f"{fault}\n")
        return 2
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
