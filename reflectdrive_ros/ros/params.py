"""Conversion between ROS parameters and configuration, with strict checks.

ROS ignores a misspelt parameter. Therefore every override is checked: `config_file` is applied to the defaults, then
the other overrides, and the result is declared as read-only parameters with description and range, so that `ros2 param
dump` shows the values in use and `ros2 param describe` explains them.

A launch tree may set parameters for all of its nodes, as Autoware does with its vehicle_info.param.yaml. These become
`vehicle.*`, below the config file and the other overrides. Global parameters that resemble no setting are ignored and
named.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from rcl_interfaces.msg import FloatingPointRange, IntegerRange, ParameterDescriptor
from rclpy.node import Node

from ..config import Config, ConfigError, Setting, load, override, override_dotted, settings

ROS_OWN = ("use_sim_time", "start_type_description_service")  # declared by rclpy itself
ROS_OWN_PREFIX = "qos_overrides."
REQUIRED_VEHICLE_INFO = (  # of vehicle_info: m, and rad for the last
    "wheel_base",
    "wheel_tread",
    "front_overhang",
    "rear_overhang",
    "left_overhang",
    "right_overhang",
    "max_steer_angle",
)
VEHICLE_INFO = (*REQUIRED_VEHICLE_INFO, "wheel_radius", "wheel_width", "vehicle_height")
SECTIONS = tuple(entry.name for entry in fields(Config))
SIMILARITY_MIN = (
    0.8  # of difflib's ratio: a name this close to one of ours is taken for a misspelling, not for another node's
)


def declare_config(node: Node) -> tuple[Config, tuple[str, ...]]:
    """The configuration from the node's parameter overrides, mirrored as read-only parameters; and the diagnostics'
    sentences on overrides that are not settings, which are also logged here.

    Raises ConfigError.
    """
    # not declared by rclpy: that raises for an empty list, which arrives without a type
    given = {
        name: python_value(parameter.value)
        for name, parameter in node._parameter_overrides.items()
        if name not in ROS_OWN and not name.startswith(ROS_OWN_PREFIX)
    }
    config_file = given.pop("config_file", "")
    if not isinstance(config_file, str):
        raise ConfigError(f"parameter config_file is {config_file!r}, expected a path")
    vehicle_info = {name: given.pop(name) for name in VEHICLE_INFO if name in given}
    foreign = sorted(filter(is_foreign, given))
    measured = vehicle_settings(vehicle_info)
    base = override(Config(), {"vehicle": measured})
    own = {name: value for name, value in given.items() if name not in foreign}
    config: Config = override_dotted(load(config_file, base) if config_file else base, own)
    node.declare_parameter("config_file", config_file, descriptor("YAML file laid over the defaults"), True)
    for entry in settings(config):
        value = list(entry.value) if entry.kind is tuple else entry.value
        node.declare_parameter(entry.name, value, setting_descriptor(entry), ignore_override=True)
    about_vehicle = vehicle_note(vehicle_info, measured, config)
    about_foreign = f"ignored, no settings of this node: {', '.join(foreign)}" if foreign else ""
    if measured:
        node.get_logger().info(about_vehicle)
    elif about_vehicle:
        node.get_logger().warning(about_vehicle)
    if about_foreign:
        node.get_logger().warning(f"parameters {about_foreign}")
    return config, tuple(filter(None, (about_vehicle, about_foreign)))


def is_foreign(name: str) -> bool:
    """Whether a parameter is another node's: its first part is no section of ours and resembles none."""
    section = name.partition(".")[0]
    return section not in SECTIONS and not difflib.get_close_matches(section, SECTIONS, n=1, cutoff=SIMILARITY_MIN)


def vehicle_settings(vehicle_info: Mapping[str, Any]) -> dict[str, float]:
    """Autoware's vehicle_info as settings of `vehicle`: m, rad; empty where a measure is missing.

    Raises ConfigError for a value that is no number or makes no car.
    """
    for name, value in vehicle_info.items():
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise ConfigError(f"vehicle_info: {name} is {value!r}, expected a number")
    if any(name not in vehicle_info for name in REQUIRED_VEHICLE_INFO):
        return {}
    base, tread, front, rear, left, right, steering = (float(vehicle_info[name]) for name in REQUIRED_VEHICLE_INFO)
    found = {
        "length_m": front + base + rear,
        "width_m": tread + left + right,
        "wheel_base_m": base,
        "rear_axle_to_center_m": 0.5 * (front + base - rear),
        "max_steering_rad": steering,
    }
    try:
        override(Config(), {"vehicle": found})
    except ConfigError as fault:
        raise ConfigError(f"vehicle_info: {fault}") from None
    return found


def vehicle_note(vehicle_info: Mapping[str, Any], measured: Mapping[str, float], config: Config) -> str:
    """How vehicle_info was used, in one sentence; empty if it was not given."""
    if not vehicle_info:
        return ""
    if not measured:
        missing = ", ".join(name for name in REQUIRED_VEHICLE_INFO if name not in vehicle_info)
        return f"vehicle_info is not used, it lacks {missing}"
    taken = [name for name, value in measured.items() if getattr(config.vehicle, name) == value]
    kept = [f"vehicle.{name}" for name in measured if name not in taken]
    listed = ", ".join(f"vehicle.{name} {measured[name]:.4g}" for name in taken) or "nothing"
    return f"from vehicle_info: {listed}" + (f"; set otherwise: {', '.join(kept)}" if kept else "")


def python_value(value: Any) -> Any:
    """Array parameters as lists; an empty list arrives as bytes or None, depending on how it was written."""
    if value is None or (not isinstance(value, (str, int, float, bool)) and len(value) == 0):
        return []
    return list(value) if not isinstance(value, (str, int, float, bool)) else value


def descriptor(doc: str) -> ParameterDescriptor:
    return ParameterDescriptor(description=doc, read_only=True)


def setting_descriptor(entry: Setting) -> ParameterDescriptor:
    made = descriptor(entry.doc)
    made.dynamic_typing = entry.kind is tuple  # rclpy cannot infer the type of an empty list
    if entry.low is not None and entry.high is not None:
        if entry.kind is int:
            made.integer_range = [IntegerRange(from_value=int(entry.low), to_value=int(entry.high), step=0)]
        elif entry.kind is float:
            made.floating_point_range = [
                FloatingPointRange(from_value=float(entry.low), to_value=float(entry.high), step=0.0)
            ]
    return made
