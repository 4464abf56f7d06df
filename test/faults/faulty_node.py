"""The real node with a planner that misbehaves when the instruction tells it to: `raise` or `hang`."""

import os
import time

from reflectdrive_ros import planning
from reflectdrive_ros.planning import constant_velocity
from reflectdrive_ros.ros import node

HANG_S = 1.0


def plan(state, scene, tools):
    if scene.instruction == "raise":
        raise RuntimeError("planted")
    if scene.instruction == "hang":
        time.sleep(HANG_S)
    return constant_velocity.plan(state, scene, tools)


if __name__ == "__main__":
    planning.PLANNERS["constant_velocity"] = plan
    os._exit(node.main())
