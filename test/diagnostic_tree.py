"""config/diagnostic_graph.yaml, evaluated as diagnostic_graph_aggregator does."""

from pathlib import Path

import yaml
from diagnostic_msgs.msg import DiagnosticArray
from messages import ns
from rclpy.serialization import deserialize_message

from reflectdrive_ros.ros import outputs
from reflectdrive_ros.ros.inputs.channel import Level
from reflectdrive_ros.ros.topics import NODE_NAME

UNITS = yaml.safe_load((Path(__file__).parents[1] / "config" / "diagnostic_graph.yaml").read_text())["units"]
BY_PATH = {unit["path"]: unit for unit in UNITS}
TOP = "/autoware/planning/reflectdrive"


def level(unit, levels):
    if unit["type"] == "diag":
        return levels.get(f"{unit['node']}: {unit['name']}", Level.ERROR)
    if unit["type"] == "link":
        return level(BY_PATH[unit["link"]], levels)
    if unit["type"] == "warn-to-ok":
        worst = level(unit["item"], levels)
        return Level.OK if worst is Level.WARN else worst
    assert unit["type"] == "and"
    return max(level(child, levels) for child in unit["list"])


def levels_of(core, now_s):
    content = outputs.diagnostics(core.statuses(ns(now_s)), ns(now_s), NODE_NAME)
    message = deserialize_message(content, DiagnosticArray)
    return {status.name: Level(status.level[0]) for status in message.status}
