"""Runs commands in a process in which neither rclpy nor packages of messages can be imported, as after `pip install` on
a machine without ROS. `test_package.py` installs a wheel in an empty environment."""

from functools import partial

import commands

HIDDEN = """
import importlib.util, sys
def is_of_ros(name):
    first = name.split(".")[0]
    return first.endswith("_msgs") or first in (
        "rclpy", "ament_index_python", "rosidl_parser", "builtin_interfaces", "reflectdrive"
    )
class NoRos:
    def find_spec(self, name, path=None, target=None):
        if is_of_ros(name):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, NoRos())
find_spec = importlib.util.find_spec
importlib.util.find_spec = lambda name, package=None: None if is_of_ros(name) else find_spec(name, package)
"""
run = partial(commands.run_apart, before=HIDDEN)
