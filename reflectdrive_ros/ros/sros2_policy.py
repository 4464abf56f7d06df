"""The SROS 2 policy of the node: exactly its topics, generated from the topic table.

    python -m reflectdrive_ros.ros.sros2_policy > config/sros2/reflectdrive.policy.xml
    python -m reflectdrive_ros.ros.sros2_policy --config car.yaml --namespace /planning/reflectdrive > car.policy.xml

The second form is for a vehicle: camera topics are settings, and the policy must contain the remapped names.
docs/autoware.md shows how to create keys and an enclave.
"""

from __future__ import annotations

import argparse
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

from ..core.config import Config, ConfigError, load
from . import topics
from .launch_topics import INPUTS

NAMESPACE, NODE = "/planning/reflectdrive", "reflectdrive"
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
    """The policy XML (SROS 2's policy format 0.2.0) of the node under a configuration."""
    root = ElementTree.Element("policy", version="0.2.0")
    enclave = ElementTree.SubElement(ElementTree.SubElement(root, "enclaves"), "enclave", path=f"{namespace}/{NODE}")
    profile = ElementTree.SubElement(ElementTree.SubElement(enclave, "profiles"), "profile", ns=namespace, node=NODE)
    own = f"{namespace}/{NODE}"
    remapped = {name: default for name, (_, default, _) in INPUTS.items()}  # as the launch files do by default
    subscribed = [remapped.get(topic.name, topic.name) for topic in topics.inputs(config)]
    published = [*(topic.name for topic in topics.OUTPUTS), *ROS_OWN_PUBLISHED]
    for kind, right, names in (
        ("service", {"reply": "ALLOW"}, [f"~/{name}" for name in ROS_OWN_SERVICES]),
        ("topic", {"subscribe": "ALLOW"}, subscribed),
        ("topic", {"publish": "ALLOW"}, published),
    ):
        group = ElementTree.SubElement(profile, f"{kind}s", right)
        for name in sorted({name.replace("~", own) for name in names}):
            ElementTree.SubElement(group, kind).text = name
    ElementTree.indent(root, "  ")
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ElementTree.tostring(root, encoding="unicode") + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", type=Path, help="configuration file (YAML) of the car")
    parser.add_argument("--namespace", default=NAMESPACE, help=f"namespace of the node (default: {NAMESPACE})")
    args = parser.parse_args()
    try:
        sys.stdout.write(policy(load(args.config) if args.config else Config(), args.namespace))
    except ConfigError as fault:
        sys.stderr.write(f"{fault}\n")
        return 2
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
