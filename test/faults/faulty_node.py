"""The real node with a planner that misbehaves when the instruction tells it to: `raise` or `hang`."""

import os
import time

from reflectdrive_ros import planning
from reflectdrive_ros.planning import reflectdrive2
from reflectdrive_ros.ros import node

HANG_S = 1.0


def plan(state, scene, planner_context):
    if scene.instruction == "raise":
        raise RuntimeError("planted")
    if scene.instruction == "hang":
        time.sleep(HANG_S)
    return reflectdrive2.plan(state, scene, planner_context)


if __name__ == "__main__":
    planning.LEARNED["reflectdrive2"] = plan
    os._exit(node.main())
