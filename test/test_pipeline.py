"""What the pipeline makes of the plans of a generator: varied where that scores better, repaired where none is safe."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rubber_band import LAYOUT, redraw, strip_grid
from scenes import CAR, FRONT_M, NO_LIGHTS, SECOND_NS, Clock, cars, config, observation, straight_route

from reflectdrive_ros.core import geometry
from reflectdrive_ros.core.domain import Agents, StepKind, TokenTrace
from reflectdrive_ros.planning import pipeline
from reflectdrive_ros.planning.candidates import Candidates, TokenSearch, of_trajectories
from reflectdrive_ros.planning.planner import PlannerContext, PlannerState
from reflectdrive_ros.planning.postprocess.waypoints import trajectories, waypoints
from reflectdrive_ros.sim.ego import ego_at_speed, step_ego

TIMES_S = 0.5 * np.arange(1, 9)
OFF = {"pipeline__vary": False, "pipeline__select": False, "pipeline__repair": False}
ROAD = strip_grid(5.5)


def moving(speed_mps, braking_mps2=0.0):
    """Points (8, 2) straight on at a speed with constant braking."""
    braked_s = np.minimum(TIMES_S, speed_mps / braking_mps2) if braking_mps2 else TIMES_S
    return np.stack([speed_mps * braked_s - 0.5 * braking_mps2 * braked_s**2, np.zeros(8)], axis=1)


STOP = moving(8.0, 4.0)


def proposing(*plans, log_probs=None, **more):
    """A generator that always proposes plans (8, 2)."""
    log_probs = np.zeros(len(plans)) if log_probs is None else np.array(log_probs)
    return lambda state, scene, planner_context: Candidates(np.stack(plans), log_probs, **more)


def mapped_scene(speed_mps=8.0, *rows, **more):
    """A scene in which agents, traffic lights and the edge of the road are known."""
    return observation(speed_mps, **{"agents": cars(*rows), "traffic_lights": NO_LIGHTS, "drivable": ROAD, **more})


# a plan at 8 m/s is safe for 4 s, and less than 1 s from a collision then
BEHIND = mapped_scene(8.0, (16.0, 0.0, 0.0, 6.0))


def planned(generate, scene, state=None, **changes):
    return pipeline.plan(generate, state or PlannerState(), scene, PlannerContext(config(**changes)))[1]


def end_m(plan):
    return plan.trajectory.poses[-1, 0]


def is_safe(plan):
    return plan.check.unsafe_after_s is None


# --- what is left as it is --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("speed_mps", [0.0, 1.0, 3.0, 8.0, 13.0])
def test_on_a_free_road_the_plan_is_unchanged(speed_mps):
    points = moving(speed_mps)
    plan = planned(proposing(points), mapped_scene(speed_mps))
    assert (plan.change, plan.check.repairs) == ("", 0)
    np.testing.assert_allclose(waypoints(plan.trajectory), points, atol=1e-6)


def test_with_all_stages_off_a_plan_is_the_generators_own_however_unsafe():
    (trajectory,) = trajectories(moving(8.0)[None], 8.0, 0.1)
    plan = planned(lambda *_: of_trajectories((trajectory,)), mapped_scene(8.0, (20.0, 0.0, 0.0, 0.0)), **OFF)
    assert plan.trajectory is trajectory
    assert (plan.change, plan.check.repairs) == ("", 0)
    assert not is_safe(plan)  # and it is said


@pytest.mark.parametrize("unknown", ["agents", "traffic_lights"])
def test_without_agents_or_lights_nothing_is_varied(unknown):
    """The same scene and plan in which a slower plan is chosen where both are known."""
    generate = proposing(moving(8.0))
    assert "slower" in planned(generate, BEHIND).change
    assert planned(generate, replace(BEHIND, **{unknown: None})).change == ""


def test_a_lite_step_keeps_the_profile():
    full, lite = (planned(proposing(moving(8.0), step=step), BEHIND) for step in (StepKind.FULL, StepKind.LITE))
    assert full.change
    assert not lite.change
    assert is_safe(lite)
    np.testing.assert_allclose(waypoints(lite.trajectory), moving(8.0), atol=1e-6)


def test_tokens_and_trace_are_those_of_the_selected_candidate():
    """The second of two candidates avoids a standing car."""
    ids, requests = np.arange(2 * LAYOUT.length, dtype=np.int32).reshape(2, -1), []

    def trace(candidate):
        requests.append(candidate)
        return TokenTrace(np.zeros((0, 2)), np.zeros(0), -1, ids[[candidate]], np.ones((1, LAYOUT.length)))

    scene = mapped_scene(8.0, (24.0, 0.0, 0.0, 0.0))
    plan = planned(proposing(moving(8.0), STOP, ids=ids, trace=trace), scene, pipeline__vary=False)
    assert requests == [1]
    assert plan.tokens.tolist() == ids[1].tolist() == plan.trace.ids[-1].tolist()


# --- vary and select --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("gap_m", "lead_mps"), [(10.0, 4.0), (9.7, 6.0), (14.0, 5.0)])
def test_behind_a_slower_car_the_plan_is_slower_and_says_so(gap_m, lead_mps):
    scene = mapped_scene(8.0, (FRONT_M + gap_m + 2.25, 0.0, 0.0, lead_mps))
    plan = planned(proposing(moving(8.0)), scene)
    assert "m/s^2 slower" in plan.change
    assert plan.check.repairs == 0
    assert is_safe(plan)
    assert end_m(plan) < 31.0
    assert np.abs(plan.trajectory.poses[:, 1]).max() < 1.0
    unvaried = planned(proposing(moving(8.0)), scene, pipeline__vary=False, pipeline__repair=False)
    assert unvaried.change == ""
    assert end_m(unvaried) == pytest.approx(32.0, abs=0.1)


def test_a_plan_is_varied_sideways_only_where_the_edge_of_the_road_is_known():
    """A parked car stands half a metre from the side of the plan's car."""
    scene = mapped_scene(8.0, (22.0, -2.3, 0.0, 0.0))
    changes = [planned(proposing(moving(8.0)), each).change for each in (scene, replace(scene, drivable=None))]
    assert "right" not in changes[0]
    assert "left" not in changes[1]
    assert "right" not in changes[1]


def test_a_car_that_a_small_offset_clears_is_passed_and_not_waited_for():
    """A parked car overlaps the path of the plan by 5 cm."""
    scene = mapped_scene(8.0, (22.0, -(0.5 * (CAR.width_m + 1.9) - 0.05), 0.0, 0.0))
    plan = planned(proposing(moving(8.0)), scene)
    assert "to the left" in plan.change
    assert is_safe(plan)
    assert plan.check.repairs == 0
    assert end_m(plan) > 22.0
    assert planned(proposing(moving(8.0)), scene, pipeline__vary=False).check.repairs > 0


def test_a_safe_candidate_is_driven_and_nothing_repaired():
    scene = mapped_scene(8.0, (24.0, 0.0, 0.0, 0.0))
    for unknown in ({}, {"traffic_lights": None}):
        plan = planned(proposing(moving(8.0), STOP), replace(scene, **unknown), pipeline__vary=False)
        np.testing.assert_allclose(waypoints(plan.trajectory), STOP, atol=0.1)
        assert plan.check.repairs == 0
        assert is_safe(plan)
        assert len(plan.candidates) == 1
        np.testing.assert_allclose(waypoints(plan.candidates[0]), moving(8.0), atol=1e-6)
        assert plan.scores[0] > plan.scores[1] == 0.0


def test_of_equally_safe_candidates_the_score_decides_with_the_probability():
    slow, fast = moving(8.0, 1.0), moving(8.0)
    for log_probs, chosen in (((0.0, 0.0), fast), ((0.0, -9.0), slow)):
        plan = planned(proposing(slow, fast, log_probs=log_probs), mapped_scene(8.0), pipeline__vary=False)
        np.testing.assert_allclose(waypoints(plan.trajectory), chosen, atol=1e-6)


def test_where_the_score_does_not_know_what_a_plan_waits_for_the_generators_first_is_driven():
    slow, fast = moving(8.0, 1.0), moving(8.0)
    for changes in ({"traffic_lights": None}, {"agents": None}, {"route": np.zeros((0, 3))}):
        plan = planned(proposing(slow, fast), mapped_scene(8.0, **changes))
        np.testing.assert_allclose(waypoints(plan.trajectory), slow, atol=1e-6)
    off = planned(proposing(slow, fast), mapped_scene(8.0), pipeline__select=False)
    np.testing.assert_allclose(waypoints(off.trajectory), slow, atol=1e-6)


# --- repair -----------------------------------------------------------------------------------------------------------

REPAIR_ONLY = {"pipeline__vary": False, "pipeline__select": False}


@pytest.mark.parametrize("settings", [REPAIR_ONLY, {}], ids=["repair", "all"])
@pytest.mark.parametrize("rear_m", [10.75, 11.75, 12.75, 16.0, 20.0, 26.0, 32.0])
def test_an_unsafe_plan_becomes_a_safe_one_that_stops_before_the_car_ahead(rear_m, settings):
    """The nearest leave 7 m ahead of the front: at 8 m/s^2 the car stops after 4 m."""
    scene = mapped_scene(8.0, (rear_m + 2.25, 0.0, 0.0, 0.0))
    assert not is_safe(planned(proposing(moving(8.0)), scene, **OFF))
    plan = planned(proposing(moving(8.0)), scene, **settings)
    assert is_safe(plan)
    assert end_m(plan) + FRONT_M < rear_m
    if settings:
        assert plan.check.repairs == 1


@pytest.mark.parametrize(
    ("ahead_m", "gap_m", "is_repaired"), [(31.5, -0.5, True), (26.0, 0.2, True), (31.5, 0.2, False), (31.5, 0.4, False)]
)
def test_a_plan_that_only_lacks_the_margin_is_exchanged_for_one_that_stops_if_the_guard_refuses_it(
    ahead_m, gap_m, is_repaired
):
    """A car is parked beside the path. The margin is 0.3 m; the guard looks 3 s ahead, the check 4 s."""
    scene = mapped_scene(8.0, (ahead_m, 0.5 * CAR.width_m + 0.95 + gap_m, 0.0, 0.0), drivable=strip_grid(8.0))
    plan = planned(proposing(moving(8.0)), scene, pipeline__vary=False)
    assert is_safe(plan) == (is_repaired or gap_m > 0.3)
    assert plan.check.repairs == int(is_repaired)
    assert (end_m(plan) < ahead_m - FRONT_M) == is_repaired


def test_a_plan_that_leaves_the_road_is_not_driven():
    leaving = np.stack([4.0 * np.arange(1, 9), 0.12 * np.arange(1, 9) ** 2], axis=1)
    scene = mapped_scene(8.0, drivable=strip_grid(3.0))
    assert not is_safe(planned(proposing(leaving), scene, **OFF))
    assert is_safe(planned(proposing(leaving), scene))


def test_where_nothing_is_known_nothing_is_repaired_and_the_check_says_so():
    plan = planned(proposing(moving(8.0)), observation(8.0))
    assert plan.check.repairs == 0
    assert str(plan.check) == "unchecked: no objects, no drivable space"


@settings(max_examples=40, deadline=None)
@given(
    st.floats(0.0, 14.0),
    st.floats(-1.5, 3.0),
    st.lists(st.tuples(st.floats(6, 50), st.floats(-6, 6), st.floats(-3.1, 3.1), st.floats(0, 9)), max_size=4),
    st.sampled_from([2.0, 4.0, None]),
    st.booleans(),
)
def test_a_safe_plan_never_becomes_an_unsafe_one(speed_mps, braking_mps2, others, half_width_m, with_lights):
    scene = mapped_scene(
        speed_mps,
        *others,
        drivable=None if half_width_m is None else strip_grid(half_width_m),
        traffic_lights=NO_LIGHTS if with_lights else None,
    )
    points = np.maximum(speed_mps * TIMES_S - 0.5 * braking_mps2 * TIMES_S**2, 0.0)
    generate = proposing(np.stack([np.maximum.accumulate(points), np.zeros(8)], axis=1))
    if is_safe(planned(generate, scene, **OFF)):
        assert is_safe(planned(generate, scene))


def test_a_car_that_creeps_away_from_its_route_is_led_back():
    scene = observation(1.8, route=straight_route(left=4.0), agents=Agents.none())
    plan = planned(proposing(moving(1.8)), scene)
    assert plan.check.repairs == 1
    assert plan.trajectory.poses[-1, 1] > 3.0
    off = planned(proposing(moving(1.8)), scene, pipeline__repair=False)
    np.testing.assert_allclose(waypoints(off.trajectory), moving(1.8), atol=1e-6)


def test_points_with_an_uncomfortable_profile_are_relaxed_and_a_trajectory_is_published_as_it_is():
    """It goes on for a second, then brakes hard."""
    late = np.stack([[5.0, 10.0, 14.0, 16.5, 18.0, 18.6, 18.6, 18.6], np.zeros(8)], axis=1)
    driven = waypoints(planned(proposing(late), mapped_scene(10.0), **OFF).trajectory)
    assert (driven[:3, 0] < late[:3, 0] - 0.1).all()
    assert driven[-1, 0] == pytest.approx(18.6, abs=0.1)
    (trajectory,) = trajectories(late[None], 10.0, 0.1)
    assert planned(lambda *_: of_trajectories((trajectory,)), mapped_scene(10.0), **OFF).trajectory is trajectory


# --- ten times a second ----------------------------------------------------------------------------------------------


def drive(generate, lead_mps, seconds, gap_m=20.0, speed_mps=8.0):
    """(T,) speeds of the ego and gaps to a car ahead on a straight road, the pipeline stepped every 0.1 s."""
    ego, state, speeds_mps, gaps_m = ego_at_speed(np.zeros(3), speed_mps), PlannerState(), [], []
    planner_context = PlannerContext(config())
    lead_x = FRONT_M + gap_m + 2.25
    for step in range(round(10 * seconds)):
        stamp_ns = (step + 10) * SECOND_NS // 10
        here = geometry.compose(geometry.invert(ego.map_from_ego), np.array([[lead_x, 0.0, 0.0]]))
        route = geometry.compose(geometry.invert(ego.map_from_ego), straight_route(length=500.0))
        agents = replace(cars((0.0, 0.0, 0.0, lead_mps)), poses=here)
        scene = observation(ego.speed_mps, route, agents, stamp_ns, traffic_lights=NO_LIGHTS)
        scene = replace(scene, ego=ego.state(stamp_ns))
        state, plan = pipeline.plan(generate, state, scene, planner_context)
        ego = step_ego(ego, plan, stamp_ns, CAR)
        lead_x += 0.1 * lead_mps
        speeds_mps.append(ego.speed_mps)
        gaps_m.append(lead_x - 2.25 - ego.map_from_ego[0] - FRONT_M)
    return np.array(speeds_mps), np.array(gaps_m)


def towards(limit_mps):
    """A generator that knows no others: it accelerates or brakes to a speed."""

    def generate(state, scene, planner_context):
        speeds_mps = scene.ego.speed_mps + np.clip(limit_mps - scene.ego.speed_mps, -1.5 * TIMES_S, 1.5 * TIMES_S)
        along = 0.25 * (speeds_mps + np.append(scene.ego.speed_mps, speeds_mps[:-1]))
        return Candidates(np.stack([np.cumsum(along), np.zeros(8)], axis=1)[None], np.zeros(1))

    return generate


def test_a_generator_that_knows_no_others_follows_a_slower_car():
    speeds_mps, gaps_m = drive(towards(8.0), lead_mps=5.0, seconds=20.0)
    assert gaps_m.min() > 0.5
    assert speeds_mps[-50:].mean() == pytest.approx(5.0, abs=1.0)
    assert gaps_m[-1] < 40.0


def test_a_generator_that_knows_no_others_stops_behind_a_standing_car_and_not_far_from_it():
    speeds_mps, gaps_m = drive(towards(8.0), lead_mps=0.0, seconds=15.0, gap_m=30.0)
    assert gaps_m.min() > 0.2
    assert speeds_mps[-1] < 0.2
    assert gaps_m[-1] < 10.0


def test_a_car_starts_again_when_the_one_ahead_is_gone():
    speeds_mps, _ = drive(towards(8.0), lead_mps=12.0, seconds=8.0, gap_m=3.0, speed_mps=0.0)
    assert speeds_mps[-1] > 6.0


def beside(start_m, end_m):
    """Points (8, 2) at 8 m/s, from one distance to the left of the route to another."""
    return np.stack([8.0 * TIMES_S, np.linspace(start_m, end_m, 8)], axis=1)


@pytest.mark.parametrize("side", [1.0, -1.0])
def test_of_plans_of_the_same_score_one_that_returns_to_the_route_is_driven(side):
    """A score does not see that the car is on the other side of the road."""
    away, back = beside(2.2 * side, 2.4 * side), beside(2.0 * side, 0.5 * side)
    plan = planned(proposing(away, back), mapped_scene(8.0), pipeline__vary=False)
    assert abs(plan.trajectory.poses[-1, 1]) == pytest.approx(0.5, abs=0.1)


@pytest.mark.parametrize("side", [1.0, -1.0])
def test_a_plan_that_leaves_the_route_without_need_is_exchanged_for_the_path_back(side):
    """Its own variants reach 0.6 m; past a standing car it stays where it is."""
    away = beside(0.2 * side, 2.5 * side)
    plan = planned(proposing(away), mapped_scene(8.0))
    assert plan.change == pipeline.ON_ROUTE
    assert abs(plan.trajectory.poses[-1, 1]) < 0.1
    past = planned(proposing(away), mapped_scene(8.0, (24.0, -1.0 * side, 0.0, 0.0)))
    assert side * past.trajectory.poses[-1, 1] > 1.5
    assert planned(proposing(away), mapped_scene(8.0, drivable=None)).change != pipeline.ON_ROUTE


def test_a_standing_car_is_passed_beyond_the_lane_rather_than_waited_for():
    scene = mapped_scene(8.0, (24.0, -1.2, 0.0, 0.0))
    plan = planned(proposing(moving(8.0, 2.0), beside(0.8, 2.2)), scene, pipeline__vary=False)
    assert plan.trajectory.poses[-1, 1] == pytest.approx(2.2, abs=0.1)


def alternating(*plans):
    """A generator that proposes each of the plans (8, 2) in turn."""
    turns = iter(range(1000))
    return lambda state, scene, planner_context: Candidates(plans[next(turns) % len(plans)][None], np.zeros(1))


def stepped(generate, count, rows=(), drift_m=0.0):
    """Plans of steps 0.1 s apart, of a car that follows its plans at 8 m/s, but for a drift to the left at each step,
    and the state after the last; other cars (`rows`) appear at the last step."""
    state, plans = PlannerState(), []
    for step in range(count):
        stamp_ns = (step + 10) * SECOND_NS // 10
        scene = mapped_scene(8.0, *(rows if step == count - 1 else ()), stamp_ns=stamp_ns)
        pose = np.array([0.8 * step, drift_m * step, 0.0])
        scene = replace(scene, ego=replace(scene.ego, stamp_ns=stamp_ns, map_from_ego=pose))
        state, plan = pipeline.plan(generate, state, scene, PlannerContext(config()))
        plans.append(plan)
    return plans, state


def test_of_plans_that_alternate_the_one_that_is_driven_is_continued_for_a_second():
    fast, slow = moving(8.0), moving(8.0, 0.2)
    plans, state = stepped(alternating(fast, slow), 10)
    assert [plan.change for plan in plans] == ["", *["continued"] * 9]
    assert state.generated is plans[0]
    plans, state = stepped(alternating(fast, slow), 13)
    assert plans[11].change != "continued", "generated longer than a second ago"
    assert state.generated.stamp_ns > plans[0].stamp_ns


def test_a_plan_is_continued_only_for_a_car_that_follows_it():
    """Its rest begins 0.3 m beside the car: a car that another planner, or a person, drives would swerve."""
    plans, _ = stepped(proposing(moving(8.0)), 7, drift_m=0.08)
    assert [plan.change for plan in plans[:4]] == ["", *["continued"] * 3]
    assert plans[4].change != "continued"


def test_a_plan_that_has_become_unsafe_is_not_continued():
    plans, _ = stepped(proposing(moving(8.0)), 4, rows=[(22.0, 0.0, 0.0, 0.0)])
    assert [plan.change for plan in plans[1:3]] == ["continued"] * 2
    assert plans[3].change != "continued"
    assert is_safe(plans[3])


# --- what the plan and the state say ----------------------------------------------------------------------------------


@pytest.mark.parametrize("searches", [False, True])
def test_the_tokens_are_those_that_the_network_wrote_for_the_selected_candidate(searches):
    blocked = mapped_scene(8.0, (20.0, 0.0, 0.0, 0.0))
    ids = LAYOUT.encode(np.stack([moving(8.0), STOP]))
    search = TokenSearch(LAYOUT.decode(ids), LAYOUT, redraw) if searches else None
    both = proposing(moving(8.0), STOP, ids=ids, token_search=search)
    first = search and replace(search, waypoints=search.waypoints[:1])
    one = proposing(moving(8.0), ids=ids[:1], token_search=first)
    varied = planned(one, BEHIND)
    assert varied.change
    assert varied.tokens.tolist() == ids[0].tolist()
    repaired = planned(one, blocked, **REPAIR_ONLY)
    assert repaired.check.repairs > 0
    assert is_safe(repaired)
    assert repaired.tokens.tolist() == ids[0].tolist()
    second = planned(both, blocked, pipeline__vary=False)
    assert second.check.repairs == 0
    assert second.tokens.tolist() == ids[1].tolist()
    assert planned(proposing(moving(8.0)), BEHIND).tokens is None


def test_headings_of_the_generator_are_kept_where_its_plan_is():
    turned = np.full((1, 8), 0.05)
    generate = proposing(moving(8.0), headings=turned)
    on_map, behind = (planned(generate, scene).trajectory for scene in (mapped_scene(8.0), BEHIND))
    assert on_map.poses[-1, 2] == pytest.approx(0.05)
    assert behind.poses[-1, 2] == pytest.approx(0.0, abs=0.02)


def test_the_state_has_the_plan_the_memory_the_notes_and_the_times_of_the_stages():
    about = {"memory": "mine", "notes": ("a camera is black",), "full_step_reason": "a full step is due"}
    generate = proposing(moving(8.0), **about)
    planner_context = PlannerContext(config(), clock=Clock(step_s=0.002))
    state, plan = pipeline.plan(generate, PlannerState(), mapped_scene(8.0), planner_context)
    assert state.previous is plan
    assert (state.memory, state.notes) == ("mine", ("a camera is black",))
    assert state.full_step_reason == "a full step is due"
    assert dict(state.stage_ms) == pytest.approx({"generate": 2.0, "select": 2.0, "repair": 2.0, "finish": 2.0})


@pytest.mark.parametrize("shape", [(0, 8, 2), (8, 2), (1, 8, 3)])
def test_candidates_of_another_shape_are_refused(shape):
    with pytest.raises(ValueError, match=r"expected \(M, 8, 2\) with M >= 1"):
        Candidates(np.zeros(shape), np.zeros(shape[0]))
