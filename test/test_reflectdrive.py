"""ReflectDrive: goals apart, a way to each, the safest and best of them, mended where none is safe; and repair as the
last stage of ReflectDrive-2."""

from dataclasses import replace
from functools import partial

import pytest
from rubber_band import strip_grid
from scenes import cars, config
from scripted_network import SLOW, STRAIGHT, ScriptedNetwork, arc_frames, arc_way, camera_observation

from reflectdrive_ros.core.domain import ForecastSource, StepKind
from reflectdrive_ros.planning import pipeline
from reflectdrive_ros.planning.generators import reflectdrive, reflectdrive2
from reflectdrive_ros.planning.planner import PlannerContext, PlannerState

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
