"""A planning core whose operation mode changes while the car drives."""

from types import SimpleNamespace

import numpy as np
from input_stream import instant, latched, small
from messages import ns
from scenes import Clock

from reflectdrive_ros.core.domain import Plan, StepKind, Trajectory
from reflectdrive_ros.planning.planner import PlannerState
from reflectdrive_ros.ros import outputs, topics
from reflectdrive_ros.ros.planning_core import PlanningCore
from reflectdrive_ros.runtime.engine import Engine

STOP, AUTONOMOUS, LOCAL = 1, 2, 3


def mode(number, enabled=True, transition=False):
    """An OperationModeState; where its package is not installed, an object with the fields that are read."""
    fields = {"mode": number, "is_autoware_control_enabled": enabled, "is_in_transition": transition}
    if topics.is_installed(topics.OPERATION_MODE_TYPE):
        return topics.message_class(topics.OPERATION_MODE_TYPE)(**fields)
    return SimpleNamespace(stamp=outputs.time_message(0), **fields)


def remembering_planner(steps):
    """A planner of full and lite steps, as the learned ones: lite where it has a plan of before. It drives at 5 m/s,
    straight on at first, and 2 m to the left within 8 s from the second step on."""

    def planner(state, observation, context):
        step = StepKind.FULL if state.previous is None else StepKind.LITE
        steps.append(step)
        poses = np.zeros((80, 3))
        poses[:, 0] = 0.5 * np.arange(1, 81)
        poses[:, 1] = 2.0 * np.linspace(0.0, 1.0, 80) ** 2 if len(steps) > 1 else 0.0
        plan = Plan(observation.stamp_ns, observation.ego.map_from_ego, Trajectory(poses, 0.1), step)
        return PlannerState(previous=plan), plan

    return planner


def driven(modes, clock=None, **settings):
    """(steps of the planner, reports) of a car for which the mode of each instant is sent first; None sends none."""
    steps = []
    clock = clock or Clock()
    engine = Engine(small(**settings), clock, remembering_planner(steps))
    core = PlanningCore(small(**settings), clock, engine)
    latched(core)
    reports = []
    for number, message in enumerate(modes):
        now_s = 1.0 + 0.1 * number
        if message is not None:
            core.put("operation_mode", message, ns(now_s))
        instant(core, now_s)
        reports.append(core.step(ns(now_s)).report)
    return steps, reports, core
