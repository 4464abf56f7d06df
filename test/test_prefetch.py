"""Prefetching the next scene changes when a network runs, never its outputs."""

import threading
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from scenes import Clock, config, later
from scripted_network import ScriptedNetwork, arc_way, camera_observation, frames

from reflectdrive_ros.core.domain import StepKind, Verdict
from reflectdrive_ros.planning.planner import PlanningError
from reflectdrive_ros.runtime.engine import Engine
from reflectdrive_ros.runtime.prefetch import Prefetcher


class Counted(ScriptedNetwork):
    """Keeps in which thread which scene was read, and whose context a step is given."""

    concurrent = True

    def __init__(self, *paths):
        super().__init__(*paths)
        self.read, self.stepped = [], []

    def prefill_goal(self, inputs):
        self.read.append(("prefill_goal", inputs, threading.current_thread()))
        return replace(super().prefill_goal(inputs), context=inputs)

    def prefill(self, inputs):
        self.read.append(("prefill", inputs, threading.current_thread()))
        return inputs

    def step(self, context, actions, limit, edit):
        self.stepped.append((context, limit, threading.current_thread()))
        return super().step("scene", actions, limit, edit)


def plans(network, scenes, prefetch_scenes):
    """Reports of a drive whose engine gets each scene one step before it plans for it."""
    engine = Engine(config(), Clock(), network=network, prefetch_scenes=prefetch_scenes)
    reports = []
    for k, scene in enumerate(scenes):
        if k == 0:
            engine.prefetch(scene)
        if k + 1 < len(scenes):
            engine.prefetch(scenes[k + 1])
        reports.append(engine.step(scene))
    return reports


def test_plans_are_the_same_and_scenes_are_read_once_by_another_thread():
    drive = frames(8)
    plain, ahead = Counted(arc_way()), Counted(arc_way())
    expected, prefetched = plans(plain, drive, False), plans(ahead, drive, True)
    for report, other in zip(prefetched, expected, strict=True):
        np.testing.assert_array_equal(report.plan.trajectory.poses, other.plan.trajectory.poses)
        assert (report.verdict, report.plan.step) == (other.verdict, other.plan.step)
    assert {report.plan.step for report in prefetched} == {StepKind.FULL, StepKind.LITE}
    main = threading.current_thread()
    assert all(thread is main for *_, thread in plain.read)
    guessed = [call for call, _, thread in ahead.read if thread is not main]
    assert len(guessed) == len(drive)
    again = [call for call, _, thread in ahead.read if thread is main]
    assert len(again) == 1  # the second scene: before the first plan the alternation of steps is unknown


def test_a_step_is_given_the_context_of_its_own_scene():
    network, drive = Counted(arc_way()), frames(6)
    engine = Engine(config(), Clock(), network=network, prefetch_scenes=True)
    engine.prefetch(drive[0])
    for scene, coming in pairwise(drive):
        engine.prefetch(coming)
        network.stepped.clear()
        assert engine.step(scene).verdict is Verdict.OK
        mine = [context for context, _, thread in network.stepped if thread is threading.current_thread()]
        speeds = {float(context.ego[0]) for context in mine}
        routes = {context.route.tobytes() for context in mine}
        assert len(speeds) == len(routes) == 1
        (context,) = {id(context): context for context in mine}.values()
        assert context.ego[0] * network.inputs.ego_scale[0] == pytest.approx(scene.ego.speed_mps)


def test_a_full_step_is_drafted_once_by_another_thread():
    network, drive = Counted(arc_way()), frames(8)
    reports = plans(network, drive, True)
    full = sum(report.plan.step is StepKind.FULL for report in reports)
    drafts = [thread for _, limit, thread in network.stepped if limit == 14]
    read = [call for call, *_ in network.read].count("prefill_goal")
    assert full >= 4
    assert len(drafts) == read
    assert threading.current_thread() not in drafts


def test_a_draft_of_other_actions_is_decoded_on_request():
    network = Counted(arc_way())
    ahead = Prefetcher(network, Clock(), lambda prefilled, scene: (prefilled.actions, [5, 5, 4]))
    ahead.prefetch(scene := camera_observation())
    prefilled = ahead.prefill_goal(ahead.make_inputs(scene, network.inputs))
    draft = ahead.draft(prefilled.context, prefilled.actions, [5, 5, 4])
    step_count = len(network.stepped)
    other, _ = ahead.draft(prefilled.context, prefilled.actions, [14])
    assert (step_count, len(network.stepped)) == (3, 4)
    np.testing.assert_array_equal(draft[0], other)
    ahead.draft(replace(prefilled.context), prefilled.actions, [5, 5, 4])
    assert len(network.stepped) == 7


def test_a_scene_that_cannot_be_read_is_the_same_sentence():
    blind = replace(camera_observation(), cameras=())
    ahead = plans(Counted(arc_way()), [blind], True)[0]
    plain = plans(Counted(arc_way()), [blind], False)[0]
    assert ahead.verdict is plain.verdict is Verdict.INFEASIBLE
    assert ahead.reason == plain.reason


def test_a_network_that_fails_while_it_reads_fails_in_its_own_step_and_the_next_one_plans():
    drive = [camera_observation(speed=8.0), later(camera_observation(speed=10.0), 0.1)]

    class Failing(Counted):
        def prefill_goal(self, inputs):
            if inputs.ego[0] * self.inputs.ego_scale[0] == pytest.approx(drive[0].ego.speed_mps):
                raise PlanningError("the graph broke")
            return super().prefill_goal(inputs)

    first, second = plans(Failing(arc_way()), drive, True)
    assert (first.verdict, first.reason) == (Verdict.INFEASIBLE, "the graph broke")
    assert second.verdict is Verdict.OK


def test_a_network_that_keeps_one_scene_is_never_prefetched():
    class One(Counted):
        concurrent = False

    network = One(arc_way())
    plans(network, frames(3), True)
    assert {thread for *_, thread in network.read} == {threading.current_thread()}


def test_overlapped_time_counts_for_the_plan():
    ticks = Clock(1.0)  # a second for each look at it
    ahead = Prefetcher(Counted(arc_way()), ticks)
    scene = camera_observation()
    ahead.prefetch(scene)
    inputs = ahead.make_inputs(scene, ahead.inputs)
    assert ahead.prefill_goal(inputs).context is inputs
    assert ahead.overlap_s() >= 0.0
    assert ahead.overlap_s() == 0.0
    assert ahead.make_inputs(later(scene, 0.1), ahead.inputs) is not inputs
