"""The node and all that knows ROS.

rclpy ends the process without a sentence where RMW_IMPLEMENTATION names what is not installed. Therefore importing this
package says so and exits with code 2; `reflectdrive doctor` tells it in its table.
"""

import os
import sys
from collections.abc import Mapping

from ..infra.errors import printable_name


def middleware_problem(environment: Mapping[str, str]) -> str:
    """Why rclpy would end the process; empty where it would not."""
    name = environment.get("RMW_IMPLEMENTATION", "")
    if not name:
        return ""
    try:
        from ament_index_python.resources import get_resources
    except ImportError:  # without ROS, the code that imports rclpy reports it
        return ""
    middlewares = sorted(get_resources("rmw_typesupport").keys() - {"rmw_implementation"})
    if name in middlewares:
        return ""
    installed = ", ".join(middlewares) or "none"
    return f"RMW_IMPLEMENTATION is {printable_name(name)}, but ROS has {installed} here: unset it or install it"


if sys.argv[1:2] != ["doctor"] and (_problem := middleware_problem(os.environ)):
    sys.stderr.write(f"reflectdrive: {_problem}\n")
    raise SystemExit(2)
