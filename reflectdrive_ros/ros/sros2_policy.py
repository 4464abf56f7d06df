"""The SROS 2 policy of the planner node and of the check node: exactly their topics, generated from the topic table.

    python -m reflectdrive_ros.ros.sros2_policy > config/sros2/reflectdrive.policy.xml
    python -m reflectdrive_ros.ros.sros2_policy --config car.yaml --namespace /planning/reflectdrive > car.policy.xml

The second form is for a vehicle: camera topics are settings, and the policy must contain the remapped names. Each node
has an enclave of its own.
docs/autoware.md shows how to create keys and an enclave.
"""

from __future__ import annotations

import argparse
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterable, Mapping
from pathlib import Path

from ..core.config import Config, ConfigError, load, override_dotted
from . import topics
from .check_core import without_cameras
from .launch_topics import CHECK_INPUTS, CHECK_SETTINGS, INPUTS
from .topics import Topic

NAMESPACE, NODE, CHECK_NODE = "/planning/reflectdrive", "reflectdrive", "reflectdrive_check"
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


def policy(config: Config, namespace: str = NAMESPACE) -> str:
    """The policy XML (SROS 2's policy format 0.2.0) of both nodes under a configuration, as the launch files start them
    by default."""
    check_config = override_dotted(without_cameras(config), CHECK_SETTINGS)
    check_inputs = (topics.CHECK_CANDIDATES, *topics.check_inputs(check_config))
    root = ElementTree.Element("policy", version="0.2.0")
    enclaves = ElementTree.SubElement(root, "enclaves")
    _add_enclave(enclaves, namespace, NODE, topics.inputs(config), INPUTS, topics.OUTPUTS)
    _add_enclave(enclaves, namespace, CHECK_NODE, check_inputs, CHECK_INPUTS, topics.CHECK_OUTPUTS)
    ElementTree.indent(root, "  ")
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ElementTree.tostring(root, encoding="unicode") + "\n"


def _add_enclave(
    enclaves: ElementTree.Element,
    namespace: str,
    node: str,
    inputs: Iterable[Topic],
    remaps: Mapping[str, tuple[str, str, str]],
    outputs: Iterable[Topic],
) -> None:
    """`remaps`: the launch file's topics of the inputs."""
    own = f"{namespace}/{node}"
    enclave = ElementTree.SubElement(enclaves, "enclave", path=own)
    profile = ElementTree.SubElement(ElementTree.SubElement(enclave, "profiles"), "profile", ns=namespace, node=node)
    remapped = {name: default for name, (_, default, _) in remaps.items()}  # as the launch files do by default
    for kind, right, names in (
        ("service", {"reply": "ALLOW"}, [f"~/{name}" for name in ROS_OWN_SERVICES]),
        ("topic", {"subscribe": "ALLOW"}, [remapped.get(topic.name, topic.name) for topic in inputs]),
        ("topic", {"publish": "ALLOW"}, [*(topic.name for topic in outputs), *ROS_OWN_PUBLISHED]),
    ):
        group = ElementTree.SubElement(profile, f"{kind}s", right)
        for name in sorted({name.replace("~", own) for name in names}):
            ElementTree.SubElement(group, kind).text = name


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", type=Path, help="configuration file (YAML) of the car")
    parser.add_argument("--namespace", default=NAMESPACE, help=f"namespace of the nodes (default: {NAMESPACE})")
    args = parser.parse_args()
    try:
        sys.stdout.write(policy(load(args.config) if args.config else Config(), args.namespace))
    except ConfigError as fault:
        sys.stderr.write(f"{fault}\n")
        return 2
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
