"""The recipe: full and lite alternate, the last plan is carried exactly, low confidence forces a full step, the score
chooses."""

from dataclasses import replace

import numpy as np
import pytest
from scenes import NO_LIGHTS, SECOND_NS, cars, config, ego, later, observation
from scripted_network import (
    BOOK,
    LAYOUT,
    SLOW,
    STRAIGHT,
    TIMES_S,
    ScriptedNetwork,
    arc_frames,
    arc_way,
    camera_observation,
    drive,
    frames,
)

from reflectdrive_ros.core import kinematics
from reflectdrive_ros.core.domain import Command, Plan, StepKind, Trajectory
from reflectdrive_ros.core.recipe_config import ReflectDrive2Config as Settings
from reflectdrive_ros.planning import goals, lite_step, pipeline
from reflectdrive_ros.planning.generators import reflectdrive2
from reflectdrive_ros.planning.lite_step import ReflectDrive2Memory
from reflectdrive_ros.planning.planner import PlannerContext, PlannerState, PlanningError
from reflectdrive_ros.planning.postprocess.waypoints import carried_points, trajectories
from reflectdrive_ros.planning.select import LOG_PROB_WEIGHT
from reflectdrive_ros.scoring.safety import SafetyContext

# --- the paper's rhythm ----------------------------------------------------------------------------------------------


class Restless(ScriptedNetwork):
    """Its edits move y3 to and fro for ever."""

    def step(self, context, actions, limit, edit):
        written, confidence = super().step(context, actions, limit, edit)
        if edit:
            written[:, 5] += 1 if self.calls.count(("edit", len(actions))) % 2 else -1
        return written, confidence


def test_a_full_step_is_one_prefill_one_draft_and_three_edits_and_a_lite_one_has_one_edit():
    network = Restless(arc_way(curvature=0.0))
    drive(network, frames(2))
    full = ["prefill", ("draft", 1, 14), *[("edit", 1)] * 3]
    assert network.calls == [*full, "prefill alone", ("draft", 1, 2), ("edit", 1)]


def test_where_an_edit_changes_nothing_no_other_follows():
    network = ScriptedNetwork(arc_way(curvature=0.0))
    drive(network, frames(1))
    assert network.calls[-2:] == [("draft", 1, 14), ("edit", 1)]


def test_of_many_drafts_only_the_one_that_is_driven_is_edited():
    network = Restless(STRAIGHT, SLOW)
    ((plan, _),) = drive(network, [camera_observation(speed=8.0, agents=cars())])
    assert [call for call in network.calls if call[0] == "draft"] == [("draft", 2, 14)]
    assert network.calls[-3:] == [("edit", 1)] * 3
    assert plan.tokens[5] == network.ids[0, 5] + 1
    assert len(plan.candidates) == 1


def test_the_trace_is_that_of_the_plan_that_is_driven_whichever_was_edited():
    """The faster plan is edited; the safety as planned lets the other one be driven, with its own goal and draft."""
    network = Restless(SLOW, STRAIGHT)
    scene = camera_observation(speed=8.0, agents=cars())
    candidates = reflectdrive2.generate(PlannerState(), scene, PlannerContext(config(), network))
    for candidate, ids in enumerate(candidates.ids):
        trace = candidates.trace(candidate)
        assert trace.ids[-1].tolist() == ids.tolist()
        assert len(trace.goals) == 2
        np.testing.assert_allclose(trace.goals[trace.chosen], LAYOUT.decode(network.ids)[trace.chosen, -1], atol=1e-9)
    assert [len(candidates.trace(candidate).ids) for candidate in (0, 1)] == [4, 1]
    assert candidates.trace(0).chosen != candidates.trace(1).chosen


@pytest.mark.parametrize(("spent", "edits"), [(0.4, 3), (0.7, 0)])
def test_after_the_deadline_share_no_edit_begins(spent, edits):
    network = Restless(STRAIGHT, SLOW)
    planner_context = PlannerContext(config(), network, deadline_used=lambda: spent)
    _, plan = pipeline.plan(reflectdrive2.generate, PlannerState(), camera_observation(speed=8.0), planner_context)
    assert network.calls.count(("edit", 1)) == edits
    assert plan.tokens[5] == network.ids[0, 5] + (edits > 0)


@pytest.mark.parametrize("rounds", range(1, 9))
def test_any_number_of_rounds_drafts_everything(rounds):
    network = ScriptedNetwork(arc_way())
    ((plan, _),) = drive(network, frames(1), Settings(draft_rounds=rounds, edit_rounds=0))
    assert plan.tokens.tolist() == network.ids[0].tolist()
    assert len(network.calls) == 1 + rounds


def test_the_plan_is_the_drafted_path():
    path = arc_way()
    ((plan, _),) = drive(ScriptedNetwork(path), frames(1))
    assert plan.trajectory.dt_s == 0.1
    assert plan.trajectory.horizon_s == pytest.approx(4.0)  # nothing is invented beyond
    np.testing.assert_allclose(plan.trajectory.poses[4::5, :2], path, atol=0.15 + 1e-9)
    expected = kinematics.arc(0.02, 10.0 * plan.trajectory.times_s)
    np.testing.assert_allclose(plan.trajectory.poses[:, 2], expected[:, 2], atol=np.radians(3.0))


def test_a_car_that_shall_stand_gets_a_plan_to_stand():
    ((plan, _),) = drive(ScriptedNetwork(np.zeros((8, 2))), [camera_observation(speed=0.0)])
    np.testing.assert_array_equal(plan.trajectory.poses, 0.0)


# --- carrying the last plan ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dt_s", [0.05, 0.1, 0.13, 0.5])
def test_a_carried_plan_is_its_own_continuation(dt_s):
    """On a circle at constant speed the plan looks the same from everywhere: to a centimetre, before any rounding."""
    then, now = arc_frames(2, dt_s)
    poses = kinematics.arc(0.02, 10.0 * 0.1 * np.arange(1, 41))
    last = Plan(then.stamp_ns, then.ego.map_from_ego, Trajectory(poses, 0.1))
    carried = carried_points(last, now, 8)
    is_carried = np.isfinite(carried).all(1)
    assert is_carried.tolist() == [True] * 7 + [False]
    np.testing.assert_allclose(carried[is_carried], arc_way()[is_carried], atol=0.01)


def test_the_horizon_shrinks_as_time_goes_by_and_nothing_is_invented():
    then, *others = arc_frames(11, 0.5)
    last = Plan(then.stamp_ns, then.ego.map_from_ego, *trajectories(arc_way()[None], 10.0, 0.1))
    assert [int(np.isfinite(carried_points(last, now, 8)[:, 0]).sum()) for now in others] == [*range(7, -1, -1), 0, 0]


@pytest.mark.parametrize(("dt_s", "curvature", "speed"), [(0.1, 0.02, 10.0), (0.1, -0.05, 6.0), (0.25, 0.0, 14.0)])
def test_a_hundred_lite_frames_drift_less_than_a_bin(dt_s, curvature, speed):
    """What edits leave alone stays where it is: the plan is carried in metres and only its new end is rounded."""
    network = ScriptedNetwork(arc_way(speed, curvature))
    scenes = arc_frames(101, dt_s, speed, curvature)
    plans = drive(network, scenes, Settings(lite_steps_per_full=1000), pipeline__select=False)
    assert [plan.step for plan, _ in plans] == [StepKind.FULL] + [StepKind.LITE] * 100
    truth = kinematics.arc(curvature, speed * plans[0][0].trajectory.times_s)
    off = [np.hypot(*(plan.trajectory.poses - truth)[:, :2].T).max() for plan, _ in plans]
    assert max(off) < BOOK.bin_m, f"{max(off):.3f} m after {np.argmax(off)} frames"


# --- doubt -----------------------------------------------------------------------------------------------------------


def second_step(change, network=None, first=None):
    """The second of two steps, which would be a lite one, after its scene was changed."""
    first = first or camera_observation()
    network = network or ScriptedNetwork(arc_way(curvature=0.0))
    _, (plan, state) = drive(network, [first, change(later(first, 0.1))])
    return plan.step, state.full_step_reason


def moved(scene, x, y=0.0):
    return replace(scene, ego=replace(scene.ego, map_from_ego=scene.ego.map_from_ego + np.array([x, y, 0.0])))


def test_without_doubt_the_second_step_is_a_lite_one():
    assert second_step(lambda scene: scene) == (StepKind.LITE, "")
    assert second_step(lambda scene: moved(scene, 0.5, 0.5)) == (StepKind.LITE, "")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda scene: replace(scene, command=Command.LEFT), "the command changed from FOLLOW to LEFT"),
        (lambda scene: moved(scene, 0.0, 1.5), "localisation jumped by 1.5 m"),
        (lambda scene: moved(scene, -30.0), "localisation jumped by 30.0 m"),
        (lambda scene: replace(scene, stamp_ns=scene.stamp_ns + SECOND_NS), "1.10 s since the last plan"),
        (lambda scene: replace(scene, stamp_ns=scene.stamp_ns - SECOND_NS), "-0.90 s since"),
        (lambda scene: replace(scene, stamp_ns=SECOND_NS), "0.00 s since"),
    ],
)
def test_a_change_of_the_scene_forces_a_full_step(change, reason):
    step, why = second_step(change)
    assert step is StepKind.FULL
    assert reason in why


def test_a_plan_that_the_car_does_not_follow_is_drafted_again(monkeypatch):
    monkeypatch.setattr(lite_step, "MAX_DEVIATION_M", 0.2)
    # the car does what its odometry says and goes on, where the plan has it brake as hard as it can
    fast, network = camera_observation(speed=15.0), ScriptedNetwork(arc_way(speed=1.0, curvature=0.0))
    _, (plan, state) = drive(network, [fast, later(fast, 0.3)], Settings())
    assert plan.step is StepKind.FULL
    assert state.full_step_reason == "the car is 0.4 m from where the last plan has it"


def test_a_plan_of_low_confidence_is_drafted_again():
    step, why = second_step(lambda scene: scene, ScriptedNetwork(arc_way(curvature=0.0), confidence=0.1))
    assert (step, why) == (StepKind.FULL, "the last plan has a confidence of 0.10")


def test_a_car_that_starts_plans_anew_and_one_that_stands_alternates():
    standing, network = camera_observation(speed=0.0), ScriptedNetwork(arc_way(2.0, 0.0))
    starts = second_step(lambda scene: replace(scene, ego=replace(scene.ego, speed_mps=1.0)), network, first=standing)
    assert starts == (StepKind.FULL, "the car starts")
    plans = drive(network, frames(4, scene=standing))
    assert [plan.step for plan, _ in plans] == [StepKind.FULL, StepKind.LITE] * 2


def test_a_state_of_another_planner_is_no_plan_to_edit():
    plan, state = drive(ScriptedNetwork(arc_way()), frames(1))[0]
    planner_context = PlannerContext(config(), ScriptedNetwork(arc_way()))
    _, again = pipeline.plan(reflectdrive2.generate, PlannerState(previous=plan), frames(2)[1], planner_context)
    assert again.step is StepKind.FULL
    assert isinstance(state.memory, ReflectDrive2Memory)


# --- bad input -------------------------------------------------------------------------------------------------------


def test_without_a_network_a_sentence_says_what_to_set():
    with pytest.raises(PlanningError, match=r"reflectdrive2 has no network: set model\.file"):
        pipeline.plan(reflectdrive2.generate, PlannerState(), camera_observation(), PlannerContext(config()))


# --- with a real network ---------------------------------------------------------------------------------------------


@pytest.fixture
def network():
    pytest.importorskip("torch", reason="torch is not installed (pip install -e .[train])")
    from tiny_net import tiny_net

    from reflectdrive_ros.features.images import WORDS
    from reflectdrive_ros.runtime.torch_backend import TorchNetwork

    return TorchNetwork(tiny_net(words=WORDS, text_vocabulary=64, text_length=16))


def test_a_real_network_drives_the_same_recipe(network, monkeypatch):
    monkeypatch.setattr(lite_step, "LOW_CONFIDENCE", 0.0)
    monkeypatch.setattr(lite_step, "MAX_DEVIATION_M", 1e3)
    scenes = frames(3, scene=camera_observation(agents=cars()))
    plans = drive(network, scenes, Settings())
    assert [plan.step for plan, _ in plans] == [StepKind.FULL, StepKind.LITE, StepKind.FULL]
    for plan, _ in plans:
        assert plan.tokens.shape == (16,)
        assert plan.tokens.max() < BOOK.bins
        assert np.isfinite(plan.trajectory.poses).all()
    assert len(plans[0][0].scores) == len(plans[0][0].candidates) + 1
    assert list(plans[0][0].scores[1:]) == sorted(plans[0][0].scores[1:], reverse=True)
    assert plans[1][0].candidates == ()
    again = drive(network, scenes, Settings())
    for (plan, _), (same, _) in zip(plans, again, strict=True):
        assert plan.trajectory.poses.tobytes() == same.trajectory.poses.tobytes()


def test_the_recipes_full_frame_is_that_of_the_phases(network):
    """Numpy around single steps, or one rollout in torch as training does it: the same ids."""
    import torch

    from reflectdrive_ros.features.images import model_inputs
    from reflectdrive_ros.model.token import rollout
    from reflectdrive_ros.model.token.net import PromptInputs

    scene = camera_observation(agents=cars())
    inputs = model_inputs(scene, network.inputs)
    with torch.no_grad():
        decoded = rollout.full_step(
            network._net,
            PromptInputs(*(torch.as_tensor(part)[None] for part in inputs.arrays.values())),
            rollout.Decoding(draft_rounds=Settings().draft_rounds),
        )
    prefilled = network.prefill_goal(inputs)
    drafts = reflectdrive2.draft_actions(network, prefilled.context, prefilled.actions[prefilled.valid], Settings())
    actions, confidence = reflectdrive2.edit_actions(network, prefilled.context, *drafts, Settings().edit_rounds)[-1]
    assert actions.tolist() == decoded.actions[0][decoded.valid[0]].tolist()
    np.testing.assert_allclose(confidence, decoded.confidence[0][decoded.valid[0]], rtol=1e-4)


def test_a_network_without_a_vocabulary_is_refused():
    pytest.importorskip("torch", reason="torch is not installed (pip install -e .[train])")
    from tiny_net import tiny_net

    from reflectdrive_ros.model.checkpoint import CheckpointError
    from reflectdrive_ros.runtime.torch_backend import TorchNetwork

    with pytest.raises(CheckpointError, match="the network has no vocabulary"):
        TorchNetwork(tiny_net())


# --- the choice among the plans that it has drafted -------------------------------------------------------------------


def test_alone_with_its_images_it_drives_to_one_goal():
    network = ScriptedNetwork(STRAIGHT, SLOW)  # about as likely
    ((cautious, _),) = drive(network, [camera_observation(speed=6.0)])
    assert cautious.tokens.tolist() == network.ids[1].tolist()
    ((plan, _),) = drive(network, [camera_observation(speed=8.0)], Settings(goal_logprob_margin=0.0))
    assert plan.candidates == ()
    assert plan.scores == ()
    assert plan.tokens.tolist() == network.ids[0].tolist()
    assert ("draft", 1, 14) in network.calls


def test_with_agents_the_score_chooses_a_plan_that_stops_in_time():
    network = ScriptedNetwork(STRAIGHT, SLOW)
    ((free, _),) = drive(network, [camera_observation(speed=8.0, agents=cars())])
    assert free.tokens.tolist() == network.ids[0].tolist()
    blocked = camera_observation(speed=8.0, agents=cars((24.0, 0.0, 0.0, 0.0)))
    ((behind, _),) = drive(network, [blocked])
    assert behind.tokens.tolist() == network.ids[1].tolist()
    assert len(behind.candidates) == 1
    assert behind.scores[0] > 0.5
    assert behind.scores[1] == 0.0
    off = {"pipeline__select": False, "pipeline__repair": False}
    ((unchosen, _),) = drive(network, [blocked], Settings(goal_logprob_margin=0.0), **off)
    assert unchosen.tokens.tolist() == network.ids[0].tolist()


def test_with_agents_and_lights_the_score_decides_the_distance_and_without_lights_the_nearest_goal():
    network = ScriptedNetwork(STRAIGHT, SLOW)  # about as likely
    ((free, _),) = drive(network, [camera_observation(speed=6.4, agents=cars(), traffic_lights=NO_LIGHTS)])
    ((nearest, _),) = drive(network, [camera_observation(speed=6.4, agents=cars())])
    assert free.tokens.tolist() == network.ids[0].tolist()
    assert nearest.tokens.tolist() == network.ids[1].tolist()
    blocked = camera_observation(speed=8.0, agents=cars((24.0, 0.0, 0.0, 0.0)), traffic_lights=NO_LIGHTS)
    ((behind, _),) = drive(network, [blocked])
    assert behind.tokens.tolist() == network.ids[1].tolist()


def test_a_goal_is_chosen_by_progress_and_by_how_likely_it_is_among_the_safest():
    """Goals 32, 28 and 24 m ahead at 8 m/s: 4 m are an eighth of the progress, whose weight is 5 of 12."""
    times_s = 0.5 * np.arange(1, 9)
    paths = np.stack([8.0 * times_s - 0.5 * braking * times_s**2 for braking in (0.0, 0.5, 1.0)])
    paths = np.stack([paths, np.zeros_like(paths)], axis=-1)

    def chosen(log_probs, *others):
        scene = observation(speed=8.0, agents=cars(*others), traffic_lights=NO_LIGHTS)
        return goals.rank(paths, np.array(log_probs), SafetyContext(scene, config()))[0]

    margin = 0.125 * 5.0 / 12.0 / LOG_PROB_WEIGHT  # log-probability that outweighs 4 m
    assert chosen((0.0, 0.0, 0.0)) == 0
    assert chosen((-0.7 * margin, 0.0, 0.0)) == 0
    assert chosen((-1.3 * margin, 0.0, 0.0)) == 1
    assert chosen((-3.0 * margin, -1.3 * margin, 0.0)) == 2
    assert chosen((0.0, -9.0, -9.0), (35.0, 0.0, 0.0, 0.0)) == 1  # the first comes too close to the car ahead


def test_the_score_after_a_repair_is_that_of_the_plan_that_is_driven():
    network = ScriptedNetwork(STRAIGHT, arc_way(8.0, 0.002))  # both run into the car ahead
    scene = camera_observation(speed=8.0, agents=cars((24.0, 0.0, 0.0, 0.0)))
    plain, repaired = (drive(network, [scene], pipeline__repair=repair)[0][0] for repair in (False, True))
    assert plain.scores == (0.0, 0.0)
    assert repaired.check.repairs > 0
    assert repaired.scores[0] > 0.5
    assert repaired.scores[1] == 0.0


def test_goals_that_only_fill_their_slots_are_not_drafted():
    class Padded(ScriptedNetwork):
        def prefill_goal(self, inputs):
            return replace(super().prefill_goal(inputs), valid=np.array([True, True, False]))

    network = Padded(STRAIGHT, SLOW, STRAIGHT)
    ((plan, _),) = drive(network, [camera_observation(speed=8.0, agents=cars())])
    assert len(plan.candidates) == 1


def test_in_doubt_how_far_to_go_it_goes_less_far_unless_it_stands():
    """Goals 40, 20, 10 and 5 m ahead, each 0.5 nats less likely than the one before."""
    paths = [np.stack([reach * TIMES_S / 4.0, np.zeros(8)], -1) for reach in (40.0, 20.0, 10.0, 5.0)]
    ends = np.array(paths)[:, -1]
    likely = -0.5 * np.arange(4.0)

    def chosen(nats, speed=3.0, valid=(True,) * 4, log_probs=likely):
        settings = replace(Settings(), goal_logprob_margin=nats)
        return goals.select_goal(ends, log_probs, np.array(valid), ego(speed), settings)

    assert [chosen(nats) for nats in (0.0, 0.4, 0.6, 1.1, 9.0)] == [0, 0, 1, 2, 3]
    assert chosen(9.0, valid=(True, True, False, False)) == 1
    assert chosen(9.0, speed=0.1) == 0
    # and brakes gently for it: at 4 m/s to stop within 5 m, at 8 m/s within 10 m, would be more than that
    assert [chosen(9.0, speed) for speed in (4.0, 8.0, 12.0)] == [2, 1, 0]
    assert chosen(9.0, 12.0, log_probs=likely[::-1]) == 3  # the likeliest may ask for more
