"""A network that plans given paths, and observations for planners that use it."""

from dataclasses import replace

import numpy as np
from network_inputs import SPEC, camera_images
from scenes import SECOND_NS, config, ego, later, observation

from reflectdrive_ros.core import geometry, kinematics
from reflectdrive_ros.core.recipe_config import ReflectDrive2Config as Settings
from reflectdrive_ros.core.tokens import TokenLayout
from reflectdrive_ros.planning import pipeline
from reflectdrive_ros.planning.generators import reflectdrive2
from reflectdrive_ros.planning.planner import PlannerContext, PlannerState, Prefilled, draft_sequentially

LAYOUT = TokenLayout()
BOOK = LAYOUT.codebook
TIMES_S = 0.5 * np.arange(1, 9)


class ScriptedNetwork:
    """A network with fixed plans: each of `paths` (K, 8, 2) has a goal; masks are filled from the path of
    the nearest goal, and edits change nothing."""

    kind, inputs, layout, capabilities = "token", SPEC, LAYOUT, frozenset({"goals", "edit"})

    def __init__(self, *paths, confidence=0.9):
        self.ids, self.confidence, self.calls = LAYOUT.encode(np.array(paths)), confidence, []

    def prefill_goal(self, inputs):
        actions = np.full_like(self.ids, BOOK.mask_id)
        actions[:, -2:] = self.ids[:, -2:]
        self.calls.append("prefill")
        return Prefilled("scene", actions, np.linspace(-1, -2, len(actions)), np.ones(len(actions), bool))

    def prefill(self, inputs):
        self.calls.append("prefill alone")
        return "scene"

    def step(self, context, actions, limit, edit):
        assert context == "scene"
        assert actions.dtype == np.int32
        self.calls.append(("edit", len(actions)) if edit else ("draft", len(actions), limit))
        written = actions.copy()
        for block in written:
            gaps = np.abs(self.ids[:, -2:] - block[-2:]).sum(-1) if block[-1] != BOOK.mask_id else [0]
            free = np.flatnonzero(block == BOOK.mask_id)[: 0 if edit else limit]
            block[free] = self.ids[int(np.argmin(gaps))][free]
        return written, np.full(written.shape, self.confidence)

    def draft(self, context, actions, limits):
        return draft_sequentially(self, context, actions, limits)


def arc_way(speed=10.0, curvature=0.02):
    return kinematics.arc(curvature, speed * TIMES_S)[:, :2]


STRAIGHT, SLOW = arc_way(8.0, 0.0), np.stack([[3.5, 6.5, 9.0, 11.0, 12.5, 13.5, 14.0, 14.1], np.zeros(8)], 1)


def camera_observation(speed=10.0, **more):
    return observation(speed=speed, cameras=camera_images(), **more)


def drive(network, scenes, settings=None, **changes):
    """Plans, and the states they were left in, of consecutive scenes."""
    settings = replace(config(**changes), reflectdrive2=settings or Settings())
    planner_context, state, plans = PlannerContext(settings, network), PlannerState(), []
    for scene in scenes:
        state, plan = pipeline.plan(reflectdrive2.generate, state, scene, planner_context)
        plans.append((plan, state))
    return plans


def frames(count, dt_s=0.1, scene=None):
    scene = scene or camera_observation()
    return [later(scene, dt_s * k) for k in range(count)]


def arc_frames(count, dt_s=0.1, speed=10.0, curvature=0.02):
    """Observations of a car that drives a circle, somewhere on the map."""
    scenes = []
    for k in range(count):
        at = geometry.compose(np.array([100.0, -50.0, 2.0]), kinematics.arc(curvature, np.array([speed * dt_s * k]))[0])
        stamp_ns = SECOND_NS + round(k * dt_s * SECOND_NS)
        scene = camera_observation(speed, stamp_ns=stamp_ns)
        scenes.append(replace(scene, ego=ego(speed, stamp_ns, at, yaw_rate_rps=speed * curvature)))
    return scenes
