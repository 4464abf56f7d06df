"""ReflectDrive: goals apart, a way to each, the safest and best of them, mended where none is safe; and repair as the
last stage of ReflectDrive-2."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from rubber_band import strip_grid
from scenes import cars, config
from scripted_network import SLOW, STRAIGHT, ScriptedNetwork, arc_frames, arc_way, camera_observation
from tiny_net import tiny_net

from reflectdrive_ros.core.domain import ForecastSource, StepKind
from reflectdrive_ros.features.images import WORDS, model_inputs
from reflectdrive_ros.planning import pipeline
from reflectdrive_ros.planning.generators import reflectdrive, reflectdrive2
from reflectdrive_ros.planning.planner import PlannerContext, PlannerState, PlanningError
from reflectdrive_ros.runtime.torch_backend import TorchNetwork

TRUCK = cars((24.0, 0.0, 0.0, 0.0))


def planned(network, scene, generator=reflectdrive, **changes):
    return pipeline.plan(generator.generate, PlannerState(), scene, PlannerContext(config(**changes), network))[1]


# --- goals ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("rounds", "tokens"), [(1, (14,)), (5, (3, 3, 3, 3, 2))])
def test_a_plan_to_each_goal_is_written_in_rounds(rounds, tokens):
    network = ScriptedNetwork(STRAIGHT, SLOW, arc_way(8.0, 0.02))
    plan = planned(network, camera_observation(8.0, agents=cars()), reflectdrive__draft_rounds=rounds)
    assert network.calls == ["prefill", *(("draft", 3, limit) for limit in tokens)]
    assert len(plan.candidates) == 2
    assert plan.scores == tuple(sorted(plan.scores, reverse=True))


def test_goals_are_no_more_than_configured():
    paths = [STRAIGHT, *(arc_way(8.0, bend) for bend in (0.01, 0.02, 0.03))]
    for changes, others in (({}, 2), ({"reflectdrive__goals": 4}, 3)):
        plan = planned(ScriptedNetwork(*paths), camera_observation(8.0, agents=cars()), **changes)
        assert len(plan.candidates) == others


def test_the_safe_goal_is_driven_to_though_it_is_not_the_likeliest():
    plan = planned(ScriptedNetwork(STRAIGHT, SLOW), camera_observation(8.0, agents=TRUCK))
    assert plan.tokens.tolist() == ScriptedNetwork(SLOW).ids[0].tolist()
    assert plan.check.repairs == 0
    assert plan.check.unsafe_after_s is None


# --- repair, of both generators ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("generator", [reflectdrive, reflectdrive2], ids=["reflectdrive", "reflectdrive2"])
def test_a_plan_that_would_hit_someone_is_mended(generator):
    scene = camera_observation(8.0, agents=TRUCK, drivable=strip_grid(2.4))
    plan = planned(ScriptedNetwork(STRAIGHT), scene, generator)
    assert plan.check.repairs > 0
    assert plan.check.unsafe_after_s is None
    assert plan.trajectory.poses[-1, 0] < 24.0 - 2.25 - 4.0
    as_it_was = planned(ScriptedNetwork(STRAIGHT), scene, generator, pipeline__repair=False)
    assert plan.tokens.tolist() == as_it_was.tokens.tolist()  # what the network wrote, not what is driven
    assert as_it_was.tokens.tolist() == ScriptedNetwork(STRAIGHT).ids[0].tolist()
    assert 1.0 < as_it_was.check.unsafe_after_s < 3.0


def test_a_carried_plan_is_repaired_too_when_an_agent_blocks_it():
    first, second = arc_frames(2, speed=8.0, curvature=0.0)
    planner_context = PlannerContext(config(), ScriptedNetwork(STRAIGHT))
    step = partial(pipeline.plan, reflectdrive2.generate)
    state, before = step(PlannerState(), replace(first, agents=cars()), planner_context)
    _, after = step(state, replace(second, agents=TRUCK, drivable=strip_grid(2.4)), planner_context)
    assert (before.step, after.step) == (StepKind.FULL, StepKind.LITE)
    assert before.check.repairs == 0
    assert after.check.repairs > 0
    assert after.check.unsafe_after_s is None


# --- what the plan tells ----------------------------------------------------------------------------------------------


def test_the_check_tells_against_what_how_old_and_with_which_clearance():
    scene = replace(camera_observation(8.0, agents=cars((2.0, 4.0, 0.0, 8.0))), agents_age_s=0.12)
    check = planned(ScriptedNetwork(STRAIGHT), scene).check
    assert check.objects is ForecastSource.ALONG_ROAD
    assert check.clearance_m == pytest.approx(4.0 - (1.9 + 2.297) / 2, abs=0.1)
    assert check.road_clearance_m is None
    assert str(check) == (
        f"safe for 4.0 s against objects (along_road, 0.12 s old, {check.clearance_m:.1f} m clear); "
        "unchecked: no drivable space"
    )


# --- guidance ---------------------------------------------------------------------------------------------------------


class Guided(ScriptedNetwork):
    capabilities = ScriptedNetwork.capabilities | {"guidance"}

    def unconditional(self, inputs):
        self.calls.append("unconditional")
        return "nothing said"

    def guided_step(self, context, unconditional, actions, limit, weight):
        assert (context, unconditional) == ("scene", "nothing said")
        self.calls.append(("guided", weight))
        return super().step(context, actions, limit, False)


def test_guidance_is_used_where_it_is_configured_and_never_ignored():
    network = Guided(STRAIGHT)
    planned(network, camera_observation(8.0), reflectdrive__guidance=1.5, reflectdrive__draft_rounds=5)
    assert [call for call in network.calls if call == ("guided", 1.5)] == [("guided", 1.5)] * 5
    other = Guided(STRAIGHT)
    planned(other, camera_observation(8.0))
    assert not any(call == "unconditional" or call[0] == "guided" for call in other.calls)
    complaint = r"reflectdrive\.guidance is 1\.5, but the network lacks the capability guidance"
    with pytest.raises(PlanningError, match=complaint):
        planned(ScriptedNetwork(STRAIGHT), camera_observation(8.0), reflectdrive__guidance=1.5)


def test_guidance_of_no_weight_is_none_and_some_weight_moves_away_from_the_unconditional_prompt():
    net = tiny_net(text_length=6, words=WORDS, text_vocabulary=len(WORDS))
    network = TorchNetwork(net)
    assert "guidance" in network.capabilities
    inputs = model_inputs(replace(camera_observation(8.0), instruction="turn left"), network.inputs)
    scene, unconditional = network.prefill_goal(inputs), network.unconditional(inputs)
    plain, confidence = network.step(scene.context, scene.actions, 14, False)
    same, as_sure = network.guided_step(scene.context, unconditional, scene.actions, 14, 0.0)
    np.testing.assert_array_equal(plain, same)
    np.testing.assert_array_equal(confidence, as_sure)
    other, _ = network.guided_step(scene.context, unconditional, scene.actions, 14, 50.0)
    assert (other != plain).any()
