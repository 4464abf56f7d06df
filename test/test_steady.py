"""The lateral shift of plans is limited: never more from the last one than allowed, unless safety requires it."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scenes import SECOND_NS, Clock, cars, config, later, observation

from reflectdrive_ros.core import geometry
from reflectdrive_ros.core.domain import Plan, PlanSource, SafetyCheck, Trajectory, Verdict
from reflectdrive_ros.core.kinematics import arc, speeds
from reflectdrive_ros.planning.postprocess import comfort
from reflectdrive_ros.runtime.engine import Engine, safety_loss

LIMIT_M = 0.5
TIMES_S = 0.1 * np.arange(1, 41)


def swung(lateral_m, speed_mps=8.0, stamp_ns=SECOND_NS, curvature=0.0, at=(0.0, 0.0, 0.0)):
    """A plan along an arc that changes to a lane `aside_m` to the left within its 4 s."""
    along = np.concatenate([[0.0], speed_mps * TIMES_S])
    share = along / along[-1]
    offsets_m = lateral_m * (3 * share**2 - 2 * share**3)
    points = geometry.compose(arc(curvature, along), offsets_m[:, None] * np.array([0.0, 1.0, 0.0]))[:, :2]
    headings = geometry.headings_along(np.concatenate([points, 2 * points[-1:] - points[-2:-1]]))[:-1]
    poses = np.column_stack([points, headings])[1:]
    return Plan(stamp_ns, np.array(at), Trajectory(poses, 0.1))


def max_lateral_shift(plan, last):
    """The largest lateral distance of a plan to the last one, by points of the map, straight from distances."""
    then, now = (geometry.compose(each.map_from_ego, each.trajectory.poses)[:, :2] for each in (last, plan))
    fine = np.concatenate([np.linspace(a, b, 40) for a, b in pairwise(then)])
    gaps = np.linalg.norm(now[:, None] - fine, axis=-1)
    inside = (gaps.argmin(1) > 0) & (gaps.argmin(1) < len(fine) - 1)
    return gaps.min(1)[inside].max()


@given(st.floats(-6.0, 6.0), st.floats(-6.0, 6.0), st.floats(-0.03, 0.03), st.floats(3.0, 15.0))
def test_no_point_has_more_than_the_allowed_lateral_shift(target_m, last_m, curvature, speed_mps):
    last, plan = swung(last_m, speed_mps, curvature=curvature), swung(target_m, speed_mps, curvature=curvature)
    limited = comfort.limit_lateral_shift(plan, last, LIMIT_M)
    assert max_lateral_shift(limited, last) <= LIMIT_M + 0.02
    if max_lateral_shift(plan, last) <= LIMIT_M - 0.02:
        assert limited is plan


def test_the_target_is_reached_after_some_cycles_and_then_unchanged():
    last, target, shifts = swung(0.0), swung(1.8), []
    for _ in range(6):
        limited = comfort.limit_lateral_shift(target, last, LIMIT_M)
        shifts.append(max_lateral_shift(limited, last))
        last = limited
    np.testing.assert_allclose(last.trajectory.poses, target.trajectory.poses, atol=1e-9)
    assert sum(shift > LIMIT_M - 0.02 for shift in shifts) == 3  # and the rest in the fourth
    assert shifts[-1] < 1e-6


def test_a_limited_plan_brakes_as_hard():
    """Only sideways is waited."""
    last = swung(0.0, 8.0)
    braking = np.maximum(8.0 - 4.0 * TIMES_S, 0.0)
    along = np.cumsum(0.1 * braking)
    poses = np.column_stack([along, 1.5 * (along / along[-1]) ** 2, np.arctan(3.0 * along / along[-1] ** 2)])
    plan = Plan(SECOND_NS, np.zeros(3), Trajectory(poses, 0.1))
    limited = comfort.limit_lateral_shift(plan, last, LIMIT_M)
    assert max_lateral_shift(plan, last) > 1.0
    assert max_lateral_shift(limited, last) <= LIMIT_M + 1e-3
    np.testing.assert_allclose(speeds(limited.trajectory), speeds(plan.trajectory), atol=0.2)
    assert limited.trajectory.poses[-1, 0] == pytest.approx(poses[-1, 0], abs=1e-6)


def test_the_last_plan_is_compared_in_the_map():
    """The car drove on along it, turning: the same path again is no jump."""
    last = swung(0.0, 10.0, curvature=0.02)
    here = geometry.compose(last.map_from_ego, last.trajectory.poses[4])
    plan = swung(0.0, 10.0, SECOND_NS + SECOND_NS // 2, 0.02, here)
    assert comfort.limit_lateral_shift(plan, last, LIMIT_M) is plan
    shifted = swung(2.0, 10.0, SECOND_NS + SECOND_NS // 2, 0.02, here)
    limited = comfort.limit_lateral_shift(shifted, last, LIMIT_M)
    assert max_lateral_shift(shifted, last) > 1.0
    assert LIMIT_M - 0.05 < max_lateral_shift(limited, last) <= LIMIT_M + 0.01
    np.testing.assert_allclose(limited.trajectory.poses[0], shifted.trajectory.poses[0], atol=0.02)


@pytest.mark.parametrize("off_m", [0.3, -1.0, 20.0])
def test_a_car_that_is_not_where_the_last_plan_had_it_is_not_pulled_there(off_m):
    last = swung(0.0)
    plan = swung(2.0, at=(0.0, off_m, 0.0))
    assert comfort.limit_lateral_shift(plan, last, LIMIT_M) is plan


def test_after_a_plan_to_stand_any_plan_will_do():
    standing = Plan(SECOND_NS, np.zeros(3), Trajectory(np.zeros((40, 3)), 0.1))
    plan = swung(3.0)
    assert comfort.limit_lateral_shift(plan, standing, LIMIT_M) is plan
    assert comfort.limit_lateral_shift(standing, plan, LIMIT_M) is standing


# --- in the engine ---------------------------------------------------------------------------------------------------


class Swerving:
    """A planner that wants `asides` one after the other."""

    def __init__(self, *asides):
        self.asides = list(asides)

    def __call__(self, state, scene, planner_context):
        plan = swung(self.asides.pop(0), scene.ego.speed_mps, scene.stamp_ns, at=scene.ego.map_from_ego)
        return replace(state, previous=plan), plan


def two_steps(planner, agents=None):
    """What came of two steps 0.1 s apart, the obstacle is observed in the second only."""
    pilot = Engine(config(), Clock(), planner)
    scene = observation(speed=8.0)
    first = pilot.step(scene)
    second = pilot.step(replace(later(scene, 0.1), agents=agents))
    assert [report.verdict for report in (first, second)] == [Verdict.OK, Verdict.OK]
    assert second.source is PlanSource.PLANNER
    return pilot, first.plan, second


def test_the_engine_sends_plans_that_shift_by_half_a_metre_at_most():
    pilot, first, second = two_steps(Swerving(0.0, 3.0))
    assert LIMIT_M - 0.05 < max_lateral_shift(second.plan, first) <= LIMIT_M + 0.01
    assert second.notes == ()
    assert pilot._state.previous.trajectory.poses[-1, 1] == pytest.approx(3.0)  # the planner goes on from its own


def test_the_reference_is_the_plan_that_was_sent():
    pilot = Engine(config(), Clock(), Swerving(0.0, 3.0, 3.0, 3.0))
    scene, sent = observation(speed=8.0), []
    for _ in range(4):
        sent.append(pilot.step(scene).plan)
        scene = later(scene, 0.1)
    assert all(max_lateral_shift(after, before) <= LIMIT_M + 0.02 for before, after in pairwise(sent))
    assert max_lateral_shift(sent[3], sent[0]) > 1.0


@pytest.mark.parametrize(
    ("lateral_m", "loss"),
    [(-0.4, "with the limit the plan hits "), (-2.6, "with the limit the plan has less clearance to agents or to the")],
)
def test_a_jump_that_safety_requires_is_not_limited(lateral_m, loss):
    """A car stands 22 m ahead, half in the lane or next to it: a shift of half a metre hits it, or is closer to it than
    the planner wants."""
    _, first, second = two_steps(Swerving(0.0, 6.0), agents=cars((22.0, lateral_m, 0.0, 0.0)))
    assert max_lateral_shift(second.plan, first) > 2.0
    assert second.plan.check.unsafe_after_s is None
    (note,) = second.notes
    assert note.startswith(f"the lateral shift is not limited: {loss}")


@pytest.mark.parametrize(
    ("own", "limited", "word"),
    [
        (SafetyCheck(unsafe_after_s=3.5), SafetyCheck(unsafe_after_s=3.2), "unsafe after 3.2 s"),
        (SafetyCheck(), SafetyCheck(unsafe_after_s=3.9), "unsafe after 3.9 s"),
        (SafetyCheck(unsafe_after_s=3.2), SafetyCheck(), ""),
        (SafetyCheck(clearance_m=0.9), SafetyCheck(clearance_m=0.7), "less clearance"),
        (SafetyCheck(clearance_m=3.0), SafetyCheck(clearance_m=1.1), ""),
        (SafetyCheck(clearance_m=3.0), SafetyCheck(clearance_m=0.9), "less clearance"),
        (SafetyCheck(road_clearance_m=0.4), SafetyCheck(road_clearance_m=0.1), "less clearance"),
        (SafetyCheck(clearance_m=0.448), SafetyCheck(clearance_m=0.444), ""),
        (SafetyCheck(road_clearance_m=-0.1), SafetyCheck(road_clearance_m=-0.101), "less clearance"),
        (SafetyCheck(road_clearance_m=-0.1), SafetyCheck(road_clearance_m=-0.1), ""),
    ],
)
def test_what_a_steady_plan_would_give_away_is_named(own, limited, word):
    """A gap of more than a metre may shrink to one metre, a smaller one by a twentieth."""
    loss = safety_loss(own, limited)
    assert word in loss
    assert bool(word) == bool(loss)
