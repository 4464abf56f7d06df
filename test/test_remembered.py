"""Answers about one scene are kept, given again to the bit, and never given for another scene."""

from dataclasses import dataclass, field
from types import SimpleNamespace

import numpy as np

from reflectdrive_ros.evaluation.remembered import remembering
from reflectdrive_ros.planning.planner import Prefilled


@dataclass
class Counting:
    """A network whose answers tell the scene and how often it was asked."""

    calls: list = field(default_factory=list)

    def prefill(self, inputs):
        raise AssertionError("not asked here")

    def prefill_goal(self, inputs):
        self.calls.append("prefill")
        return Prefilled(object(), np.full((1, 4), inputs.arrays["images"][0]), np.zeros(1), np.ones(1, bool))

    def step(self, context, actions, limit, edit):
        self.calls.append(("step", limit, edit))
        return actions + limit, np.ones(actions.shape)

    def draft(self, context, actions, limits):
        self.calls.append(("draft", limits))
        return actions + sum(limits), np.ones(actions.shape)

    kind, capabilities = "token", frozenset({"goals"})


def scene(number):
    return SimpleNamespace(arrays={"images": np.array([number]), "route": np.zeros(2)}, scene=None)


def test_the_same_question_about_a_scene_is_asked_once():
    counting = Counting()
    network = remembering(counting)
    prefilled = network.prefill_goal(scene(1))
    assert network.prefill_goal(scene(1)) is prefilled
    first, again = (network.draft(prefilled.context, prefilled.actions, (2, 1))[0] for _ in range(2))
    np.testing.assert_array_equal(first, again)
    first[:] = 0
    assert (network.draft(prefilled.context, prefilled.actions, (2, 1))[0] == 4).all()
    network.step(prefilled.context, prefilled.actions, 0, True)
    network.step(prefilled.context, prefilled.actions, 3, False)
    assert counting.calls == ["prefill", ("draft", (2, 1)), ("step", 0, True), ("step", 3, False)]
    assert network.capabilities == counting.capabilities


def test_another_scene_and_another_context_are_asked_anew():
    counting = Counting()
    network = remembering(counting)
    prefilled = network.prefill_goal(scene(1))
    network.step(prefilled.context, prefilled.actions, 0, True)
    other = network.prefill_goal(scene(2))
    network.step(other.context, prefilled.actions, 0, True)
    network.step(prefilled.context, prefilled.actions, 0, True)
    network.step(prefilled.context, prefilled.actions, 0, True)
    assert counting.calls.count("prefill") == 2
    assert counting.calls.count(("step", 0, True)) == 4


def test_a_network_without_a_prompt_is_left_as_it_is():
    denoiser = SimpleNamespace(kind="denoiser")
    assert remembering(denoiser) is denoiser
