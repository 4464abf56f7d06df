"""The real node with a planner that misbehaves when the instruction tells it to: `raise` or `hang`."""

import os
import time
from dataclasses import replace

from reflectdrive_ros.planning.generators import GENERATORS, reflectdrive2
from reflectdrive_ros.ros import node

HANG_S = 1.0


def generate(state, scene, planner_context):
    if scene.instruction == "raise":
        raise RuntimeError("planted")
    if scene.instruction == "hang":
        time.sleep(HANG_S)
    return reflectdrive2.generate(state, scene, planner_context)


if __name__ == "__main__":
    GENERATORS["reflectdrive2"] = replace(GENERATORS["reflectdrive2"], generate=generate)
    os._exit(node.main())
