"""Conversion between ROS parameters and configuration, with strict checks.

ROS ignores a misspelt parameter. Therefore every override is checked: `config_file` is applied to the defaults, then
the other overrides, and the result is declared as read-only parameters with description and range, so that `ros2 param
dump` shows the values in use and `ros2 param describe` explains them.

A launch tree may set parameters for all of its nodes, as Autoware does with its vehicle_info.param.yaml. These become
`vehicle.*`, below the config file and the other overrides. Parameters of no section of ours are ignored and named; with
`strict_start`, one that resembles a setting is refused.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from rcl_interfaces.msg import FloatingPointRange, IntegerRange, ParameterDescriptor
from rclpy.exceptions import InvalidTopicNameException
from rclpy.node import Node
from rclpy.validate_topic_name import validate_topic_name

from ..core.config import Config, ConfigError, Setting, load, override, override_dotted, settings
from ..infra.errors import printable_line
from .inputs.channel import InputStatus, Level
from .measured_backend import with_measured_backend

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
SIMILARITY_MIN = 0.84  # of difflib's ratio: speed_limit resembles speed_limit_mps, vehicle_id does not vehicle


def starts_strictly(node: Node) -> bool:
    """Whether a setting or model that cannot be used ends the process (`strict_start`), rather than being reported in
    the diagnostics. Also true for a `strict_start` that is no boolean, which `declare_config` refuses.
    """
    parameter = node._parameter_overrides.get("strict_start")
    return parameter is None or parameter.value is not False


def declare_config(node: Node, *, has_model: bool = False) -> tuple[Config, InputStatus | None]:
    """The configuration from the node's parameter overrides, mirrored as read-only parameters; and the diagnostics'
    status on overrides that are not settings, which is also logged here. None if there are no such overrides.

    A node that has a model uses the backend that was measured on this machine, and the status says so.

    Raises ConfigError.
    """
    # not declared by rclpy: that raises for an empty list, which arrives without a type
    overrides = {
        name: python_value(parameter.value)
        for name, parameter in node._parameter_overrides.items()
        if name not in ROS_OWN and not name.startswith(ROS_OWN_PREFIX)
    }
    config_file = overrides.pop("config_file", "")
    if not isinstance(config_file, str):
        raise ConfigError(f"parameter config_file is {config_file!r}, expected a path")
    strict = overrides.pop("strict_start", True)
    if not isinstance(strict, bool):
        raise ConfigError(f"parameter strict_start is {strict!r}, expected true or false")
    vehicle_info = {name: overrides.pop(name) for name in VEHICLE_INFO if name in overrides}
    own = {name: value for name, value in overrides.items() if _section(name) in SECTIONS}
    similar = {name: near for name in overrides if name not in own and (near := similar_section(name))}
    if strict:
        own |= {name: overrides[name] for name in similar}  # refused below, with the name that was meant
    measured = vehicle_settings(vehicle_info)
    base = override(Config(), {"vehicle": measured})
    config: Config = override_dotted(load(config_file, base) if config_file else base, own)
    for name in ("topics", "info_topics"):
        for topic in getattr(config.cameras, name):
            check_topic_name(f"cameras.{name}", topic)
    node.declare_parameter("config_file", config_file, descriptor("YAML file laid over the defaults"), True)
    node.declare_parameter(
        "strict_start", strict, descriptor("end with exit code 2 if a setting or the model cannot be used"), True
    )
    for entry in settings(config):
        value = list(entry.value) if entry.kind is tuple else entry.value
        node.declare_parameter(entry.name, value, setting_descriptor(entry), ignore_override=True)
    config, level, backend_note = with_measured_backend(config) if has_model else (config, Level.OK, "")
    foreign = sorted(overrides.keys() - own.keys() - similar.keys())
    notes = [
        (Level.OK if measured else Level.WARN, vehicle_note(vehicle_info, measured, config)),
        (Level.WARN, "; ".join(f"unknown setting '{a}' is ignored; did you mean '{b}'?" for a, b in similar.items())),
        (Level.OK, f"ignored, no settings of this node: {', '.join(foreign)}" if foreign else ""),
        (level, backend_note),
    ]
    return config, _log(node, [(level, note) for level, note in notes if note])


def _log(node: Node, notes: list[tuple[Level, str]]) -> InputStatus | None:
    """The notes as one status, each also logged at its level."""
    for level, note in notes:
        if level is Level.OK:  # rclpy allows one severity for each line of code that logs
            node.get_logger().info(printable_line(f"parameters: {note}"))
        else:
            node.get_logger().warning(printable_line(f"parameters: {note}"))
    if not notes:
        return None
    return InputStatus("parameters", max(level for level, _ in notes), "; ".join(note for _, note in notes), {})


def _section(name: str) -> str:
    return name.partition(".")[0]


def similar_section(name: str) -> str:
    """The section of ours, or setting without one, that a parameter's first part resembles; empty if none."""
    return next(iter(difflib.get_close_matches(_section(name), SECTIONS, n=1, cutoff=SIMILARITY_MIN)), "")


def check_topic_name(setting: str, topic: str) -> None:
    """Raises ConfigError for a name that ROS refuses."""
    try:
        validate_topic_name(topic)
    except InvalidTopicNameException:
        raise ConfigError(f"{setting} holds {topic!r}, which is no topic name, such as /camera/front/image") from None


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
    settings = {
        "length_m": front + base + rear,
        "width_m": tread + left + right,
        "wheel_base_m": base,
        "rear_axle_to_center_m": 0.5 * (front + base - rear),
        "max_steering_rad": steering,
    }
    try:
        override(Config(), {"vehicle": settings})
    except ConfigError as fault:
        raise ConfigError(f"vehicle_info: {fault}") from None
    return settings


def vehicle_note(vehicle_info: Mapping[str, Any], measured: Mapping[str, float], config: Config) -> str:
    """How vehicle_info was used, in one sentence; empty if it was not given."""
    if not vehicle_info:
        return ""
    if not measured:
        missing = ", ".join(name for name in REQUIRED_VEHICLE_INFO if name not in vehicle_info)
        return f"vehicle_info is not used, it lacks {missing}"
    used_names = [name for name, value in measured.items() if getattr(config.vehicle, name) == value]
    overridden = [f"vehicle.{name}" for name in measured if name not in used_names]
    listed = ", ".join(f"vehicle.{name} {measured[name]:.4g}" for name in used_names) or "nothing"
    return f"from vehicle_info: {listed}" + (f"; set otherwise: {', '.join(overridden)}" if overridden else "")


def python_value(value: Any) -> Any:
    """Array parameters as lists; an empty list arrives as bytes or None, depending on how it was written."""
    if value is None or (not isinstance(value, (str, int, float, bool)) and len(value) == 0):
        return []
    return list(value) if not isinstance(value, (str, int, float, bool)) else value


def descriptor(doc: str) -> ParameterDescriptor:
    return ParameterDescriptor(description=doc, read_only=True)


def setting_descriptor(entry: Setting) -> ParameterDescriptor:
    parameter_descriptor = descriptor(entry.doc)
    parameter_descriptor.dynamic_typing = entry.kind is tuple  # rclpy cannot infer the type of an empty list
    if entry.low is not None and entry.high is not None:
        if entry.kind is int:
            parameter_descriptor.integer_range = [
                IntegerRange(from_value=int(entry.low), to_value=int(entry.high), step=0)
            ]
        elif entry.kind is float:
            parameter_descriptor.floating_point_range = [
                FloatingPointRange(from_value=float(entry.low), to_value=float(entry.high), step=0.0)
            ]
    return parameter_descriptor
