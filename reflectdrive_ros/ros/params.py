"""ROS parameters <-> configuration, strictly.

ROS drops a misspelt parameter in silence. So every override is looked at: `config_file` is laid over the defaults, the
other overrides over that, and what comes out is declared as read-only parameters with description and range, so that
`ros2 param dump` tells the truth and `ros2 param describe` explains it.
"""

from __future__ import annotations

from typing import Any

from rcl_interfaces.msg import FloatingPointRange, IntegerRange, ParameterDescriptor
from rclpy.node import Node

from ..config import Config, ConfigError, Setting, load, override_dotted, settings

ROS_OWN = ("use_sim_time", "start_type_description_service")  # declared by rclpy itself
ROS_OWN_PREFIX = "qos_overrides."


def configured(node: Node) -> Config:
    """The configuration that the node's parameter overrides ask for, mirrored as read-only parameters.

    The node must have been made with automatically_declare_parameters_from_overrides=True. Raises ConfigError.
    """
    given = {
        name: node.get_parameter(name).value
        for name in node.list_parameters([], 0).names
        if name not in ROS_OWN and not name.startswith(ROS_OWN_PREFIX)
    }
    config_file = given.pop("config_file", "")
    if not isinstance(config_file, str):
        raise ConfigError(f"parameter config_file is {config_file!r}, expected a path")
    base = load(config_file) if config_file else Config()
    config: Config = override_dotted(base, {name: plain(value) for name, value in given.items()})
    for name in given:
        node.undeclare_parameter(name)
    if not node.has_parameter("config_file"):
        node.declare_parameter("config_file", config_file, descriptor("YAML file laid over the defaults"))
    for entry in settings(config):
        value = list(entry.value) if entry.kind is tuple else entry.value
        node.declare_parameter(entry.name, value, described(entry), ignore_override=True)
    return config


def plain(value: Any) -> Any:
    """Array parameters as lists; an empty list arrives as bytes or None, depending on how it was written."""
    if value is None or (not isinstance(value, (str, int, float, bool)) and len(value) == 0):
        return []
    return list(value) if not isinstance(value, (str, int, float, bool)) else value


def descriptor(doc: str) -> ParameterDescriptor:
    return ParameterDescriptor(description=doc, read_only=True)


def described(entry: Setting) -> ParameterDescriptor:
    made = descriptor(entry.doc)
    made.dynamic_typing = entry.kind is tuple  # rclpy cannot tell the type of an empty list
    if entry.low is not None and entry.high is not None:
        if entry.kind is int:
            made.integer_range = [IntegerRange(from_value=int(entry.low), to_value=int(entry.high), step=0)]
        elif entry.kind is float:
            made.floating_point_range = [
                FloatingPointRange(from_value=float(entry.low), to_value=float(entry.high), step=0.0)
            ]
    return made
