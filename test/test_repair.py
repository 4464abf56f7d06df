"""Repair: never worse than what came in, never twice the same, and the paper's failures as small scenes."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rubber_band import LAYOUT, plain, redraw, strip_grid
from scenes import NO_LIGHTS, SECOND_NS, cars, config, observation, straight_route, turning_route

from reflectdrive_ros.core import geometry
from reflectdrive_ros.core.config import RepairConfig, VehicleConfig
from reflectdrive_ros.core.domain import AgentKind, Agents, Plan, StepKind, Trajectory
from reflectdrive_ros.planning.assessment import Assessment, assess, comfortable, evaluate
from reflectdrive_ros.planning.postprocess.waypoints import POINTS, trajectories
from reflectdrive_ros.planning.repair import search
from reflectdrive_ros.planning.repair.brake import follow_route, repair_points
from reflectdrive_ros.planning.repair.continue_last import continue_last
from reflectdrive_ros.planning.repair.return_to_route import return_to_route
from reflectdrive_ros.planning.repair.search import mask_around, run_repair
from reflectdrive_ros.scoring import safety
from reflectdrive_ros.scoring.safety import SAFE, Safety, SafetyContext, unsafe_reason
from reflectdrive_ros.sim.ego import ego_at_speed, step_ego

EVEN = np.arange(1, POINTS + 1)[:, None]


def straight(speed=8.0, left=0.0):
    return LAYOUT.encode(np.stack([0.5 * speed * EVEN[:, 0], np.full(8, left)], axis=1))


def moving(speed_mps):
    """Points (8, 2) straight on at a constant speed."""
    return np.column_stack([0.5 * speed_mps * EVEN[:, 0], np.zeros(8)])


def context_of(scene):
    return SafetyContext(scene, config())


def run_plain(ids, safety_context, *others, **more):
    """`run_repair` of plans whose points are not post-processed."""
    return run_repair(ids, plain(ids[None])[0], safety_context, LAYOUT, plain, *others, **more)


def repaired(ids, safety_context, network=redraw, **changes):
    return run_plain(ids, safety_context, network, RepairConfig(**changes))


def safety_of(safety_context, points):
    return evaluate(safety_context, points[None]).safety


def key_of(safety_context, points):
    safety = safety_of(safety_context, points)
    return safety.worst[0], safety.first_unsafe[0]


# --- never worse ------------------------------------------------------------------------------------------------------


@given(
    st.floats(0.0, 14.0),
    st.lists(st.tuples(st.floats(-10, 45), st.floats(-6, 6), st.floats(-3.1, 3.1), st.floats(0, 9)), max_size=4),
    st.one_of(st.none(), st.floats(1.3, 6.0)),
    st.integers(0, 2**32 - 1),
    st.integers(0, 4),
)
def test_the_plan_that_comes_out_is_never_less_safe_than_the_one_that_went_in(speed, others, half_width, seed, turns):
    """Whatever the network writes: here any ids near the car, at random."""
    rng = np.random.default_rng(seed)
    scene = observation(speed, agents=cars(*others), drivable=None if half_width is None else strip_grid(half_width))
    safety_context = context_of(scene)
    ids = LAYOUT.encode(plain(straight(speed)) + rng.normal(0.0, 1.5, (8, 2)))

    def anything(actions):
        return np.where(actions == LAYOUT.mask_id, rng.integers(320, 430, actions.shape), actions)

    repair = repaired(ids, safety_context, anything, iterations=turns)
    assert key_of(safety_context, repair.points) >= key_of(safety_context, plain(ids))
    assert repair.safe == (safety_of(safety_context, repair.points).worst[0] == 1.0)
    assert repair.iterations <= turns


@given(
    st.floats(0.5, 14.0),
    st.lists(st.tuples(st.floats(8, 45), st.floats(-6, 6), st.floats(-3.1, 3.1), st.floats(0, 9)), max_size=4),
    st.floats(1.3, 2.2),
    st.floats(-0.6, 0.6),
    st.integers(0, 2**32 - 1),
)
def test_what_the_repair_takes_for_safe_the_guard_lets_through(speed, others, half_width, turned, seed):
    """Near kerbs that lie across the grid's cells, too: both look at the whole outline of the car. (Whoever touches the
    car already is none of the repair's business.)"""
    strip = strip_grid(half_width)
    turned_grid = replace(strip, ego_from_grid=geometry.compose(np.array([0.0, 0.0, turned]), strip.ego_from_grid))
    scene = observation(speed, agents=cars(*others), drivable=turned_grid)
    rng = np.random.default_rng(seed)
    along = 0.5 * speed * EVEN
    paths = [along * (np.cos(turned), np.sin(turned)) + rng.normal(0.0, 0.25, (8, 2)) for _ in range(40)]
    points = plain(LAYOUT.encode(np.stack(paths)))
    assessment = assess(context_of(scene), evaluate(context_of(scene), points))
    for trajectory, safe, passes in zip(
        trajectories(points, speed, 0.1), assessment.safety.worst >= SAFE, assessment.guard_safe_steps, strict=True
    ):
        complaint = unsafe_reason(trajectory, context_of(scene))
        assert not (safe and complaint)
        assert not (passes > 30 and complaint)


# --- what is better -------------------------------------------------------------------------------------------------


def test_of_two_plans_that_pass_equally_long_the_one_with_its_corners_on_the_road_is_better():
    """Though the other becomes unsafe a second later."""
    by_step = np.ones((2, 41))
    by_step[0, 30:] = by_step[1, 20:] = 0.0
    equal = {"points": np.zeros((2, 8, 2)), "limit_violation": np.zeros((2, 8)), "states": np.zeros((2, 41, 11))}
    equal |= {"guard_safe_steps": np.full(2, 20), "quality": np.ones(2), "progress_m": np.ones(2)}
    for stays, best in (([False, True], 1), ([True, True], 0)):
        assessment = Assessment(safety=Safety(by_step, np.zeros(2)), stays_on_road=np.array(stays), **equal)
        assert assessment.best(0.0) == best


@pytest.mark.parametrize(
    ("route_m", "plan_m", "edge_known", "counts"),
    [
        (0, 2, True, True),
        (0, 4, True, False),
        (3, 0, True, True),
        (3, -1, True, False),
        (0, 0.7, False, True),
        (0, 2, False, False),
        (3, 0, False, True),
    ],
)
def test_points_off_the_route_earn_no_quality(route_m, plan_m, edge_known, counts):
    """2.5 m lateral to it (1 m where the edge of the road is unknown), or half a metre more than the car is now; all in
    metres to the left."""
    grid = strip_grid(12.0) if edge_known else None
    safety_context = context_of(
        observation(8.0, route=straight_route(left=route_m), agents=cars((60, 30, 0, 0)), drivable=grid)
    )
    assessment = assess(safety_context, evaluate(safety_context, plain(straight(8.0, left=plan_m))[None]))
    assert (assessment.quality[0] > 0.1) == counts
    assert counts or assessment.quality[0] == 0.0


# --- what it mends ----------------------------------------------------------------------------------------------------


def test_a_plan_past_the_kerb_comes_back_onto_the_road():
    """The path drifts 2.4 m to the left of a lane that leaves 1 m."""
    drifting = LAYOUT.encode(np.concatenate([4.0 * EVEN, 0.3 * EVEN], axis=1))
    safety_context = context_of(observation(8.0, drivable=strip_grid(2.2)))
    repair = repaired(drifting, safety_context)
    assert not safety_of(safety_context, plain(drifting)).worst[0]
    assert repair.safe
    assert abs(repair.points[:, 1]).max() < 1.2


@pytest.mark.parametrize("route", [None, np.zeros((0, 3))], ids=["straight", "none"])
def test_a_plan_that_would_hit_a_parked_car_keeps_clear_of_it(route):
    safety_context = context_of(observation(8.0, route=route, agents=cars((24, 0.6, 0, 0)), drivable=strip_grid(5.5)))
    repair = repaired(straight(8.0), safety_context)
    assert repair.safe
    assert assess(safety_context, evaluate(safety_context, repair.points[None])).sound.all()  # and a car can follow it


def test_an_iteration_keeps_what_lies_before_and_its_anchors_and_redraws_the_rest():
    anchored = np.zeros(8, bool)
    anchored[6] = True
    with_goal, without = mask_around(straight()[None], 4, anchored, LAYOUT).reshape(2, 8, 2)
    for block, indices in ((with_goal, [0, 1, 2, 4, 6, 7]), (without, [0, 1, 2, 4, 6])):
        assert np.flatnonzero((block != LAYOUT.mask_id).all(axis=1)).tolist() == indices


def test_with_logged_futures_it_mends_what_constant_velocity_does_not_foresee():
    """The car ahead drives as fast as we do, and will brake to a stand: only who knows its future slows down."""
    ahead = cars((14, 0, 0, 8.0))
    braking_m = np.minimum(8.0 * 0.5 * EVEN[:, 0] - 0.5 * 4.0 * (0.5 * EVEN[:, 0]) ** 2, 8.0)
    braking_m[3:] = 8.0
    stands = np.stack([14.0 + braking_m, np.zeros(8), np.zeros(8)], axis=1)[None]
    scene = observation(8.0, agents=replace(ahead, predicted_poses=stands), drivable=strip_grid(2.4))
    untold = observation(8.0, agents=ahead, drivable=strip_grid(2.4))
    assert repaired(straight(8.0), context_of(untold)).iterations == 0
    repair = repaired(straight(8.0), context_of(scene))
    assert repair.iterations > 0
    assert repair.safe
    assert repair.points[-1, 0] < 22.0 - 2.25 - 4.0  # its rear, our front


# --- where the paper's repair fails (its Figure 6) --------------------------------------------------------------------


def narrow(gap_m):
    """A road with a parked truck on its left: between truck and right kerb there is the car's width and this gap."""
    truck = Agents([[26.0, 3.0, 0.0]], np.zeros((1, 2)), [[8.0, 2.5]], [AgentKind.VEHICLE])
    right_edge_m = 3.0 - 1.25 - config().vehicle.width_m - gap_m
    grid = strip_grid(6.0)
    shifted = replace(grid, ego_from_grid=grid.ego_from_grid + np.array([0.0, 6.0 + right_edge_m, 0.0]))
    return observation(7.0, agents=truck, drivable=shifted)


@pytest.mark.parametrize("gap_m", [-0.6, 0.0, 0.3])
def test_between_kerb_and_truck_it_does_not_swing_to_and_fro(gap_m):
    """Too little room on both sides: each iteration evaluates a new plan, the best one is returned."""
    safety_context = context_of(narrow(gap_m))
    repair = repaired(straight(7.0), safety_context)
    visited = [tuple(LAYOUT.encode(points).tolist()) for points in repair.visited]
    assert len(set(visited)) == len(visited)
    keys = [key_of(safety_context, points) for points in repair.visited]
    assert key_of(safety_context, repair.points) == max(keys)
    assert repair.iterations <= 10


def test_of_two_safe_paths_the_one_on_the_route_is_better():
    """The route turns left; going straight on is as safe and gets further. The paper's score does not ask."""
    safety_context = context_of(observation(6.0, route=turning_route(before=12.0)))
    turn = turning_route(before=12.0)
    along = np.searchsorted(np.r_[0, np.cumsum(np.hypot(*np.diff(turn[:, :2], axis=0).T))] - 20.0, 3.0 * EVEN[:, 0])
    left = turn[along, :2]
    ahead = np.concatenate([3.0 * EVEN, np.zeros_like(EVEN)], axis=1)
    both = assess(safety_context, evaluate(safety_context, np.stack([ahead, left])))
    assert both.safety.worst.tolist() == [1.0, 1.0]
    assert both.best(np.inf) == 1


def test_a_goal_that_lies_far_behind_a_wall_is_given_up():
    """A truck stands across the road, the goal is 12 m past it: no pair within 3 m of the goal is any good."""
    across = Agents([[24.0, 0.0, np.pi / 2]], np.zeros((1, 2)), [[12.0, 2.5]], [AgentKind.VEHICLE])
    safety_context = context_of(observation(8.0, agents=across, drivable=strip_grid(5.0)))
    goal_m = plain(straight(9.0))[-1, 0]
    assert goal_m > 36.0 - 0.3
    repair = repaired(straight(9.0), safety_context)
    assert repair.safe
    assert repair.points[:, 0].max() < 24.0 - 1.25 - 4.0


def test_a_plan_off_the_road_whose_network_knows_no_better_is_driven_along_the_route():
    """Not braked: the road is free. The car stands half a metre off its route and comes back to it while it drives."""
    safety_context = context_of(observation(8.0, route=straight_route(left=0.5), drivable=strip_grid(2.4)))
    off = np.concatenate([4.0 * EVEN, -1.2 * EVEN], axis=1)
    ids = LAYOUT.encode(off)
    repair = repaired(ids, safety_context, lambda actions: np.broadcast_to(ids, actions.shape))
    assert repair.safe
    assert repair.points[-1, 0] > 28.0
    assert abs(repair.points[-1, 1] - 0.5) < 0.5
    paths = follow_route(off, safety_context)
    assert (np.diff(paths[:, :, 0], axis=1) >= 0.0).all()
    assert (np.hypot(*np.diff(paths, axis=1).T) <= np.hypot(4.0, 1.2) + 0.3).all()
    assert np.abs(np.diff(paths[:, :, 1], axis=1)).max() < 0.5  # and not at a jump
    nowhere = context_of(observation(8.0, route=np.zeros((0, 3)), drivable=strip_grid(2.0)))
    assert nowhere.route is None


def led_back(points, safety_context):
    """The path back to the route, the plan (8, 2) itself where there is none."""
    back = return_to_route(points, safety_context)
    return points if back is None else back


def test_a_car_that_has_left_its_lane_is_led_back_where_the_edge_of_the_road_is_unknown():
    """A safe plan creeps on 4 m off the route."""
    speed_mps = 1.8
    off_lane = {"route": straight_route(left=4.0), "agents": Agents.none()}
    ahead = moving(speed_mps)
    safety_context = context_of(observation(speed_mps, **off_lane))
    back = led_back(ahead, safety_context)
    assert abs(back[-1, 1] - 4.0) < 0.5
    assert assess(safety_context, evaluate(safety_context, back[None])).sound.all()

    left_alone = (
        observation(speed_mps, route=straight_route(left=1.9), agents=Agents.none()),  # still off its lane
        observation(speed_mps, route=straight_route(left=4.0)),  # the plan may avoid what is unknown here
        observation(speed_mps, drivable=strip_grid(9.0), **off_lane),  # the plan stays on the road
        observation(speed_mps, route=straight_route(left=4.0), agents=cars((6, 4, 0, 0), (14, 4, 0, 0), (22, 4, 0, 0))),
    )
    for scene in left_alone:
        np.testing.assert_array_equal(led_back(ahead, context_of(scene)), ahead)
    turned_back = np.concatenate([0.5 * speed_mps * EVEN, 0.3 * EVEN], axis=1)
    np.testing.assert_array_equal(led_back(turned_back, safety_context), turned_back)


def test_a_lost_car_that_creeps_straight_away_from_its_route_comes_back():
    """2 m off the route and turned 70 degrees away from it; its planner drives straight on wherever it is."""
    route, ego, ahead = straight_route(), ego_at_speed(np.array([0.0, -2.0, -1.2]), 1.5), moving(1.5)
    left_m = []
    for step in range(150):
        here = geometry.compose(geometry.invert(ego.map_from_ego), route)
        scene = observation(ego.speed_mps, route=here, agents=Agents.none())
        points = led_back(ahead, context_of(scene))
        (trajectory,) = trajectories(points[None], ego.speed_mps, 0.1)
        plan = Plan(step * SECOND_NS // 10, ego.map_from_ego, trajectory, StepKind.BASELINE)
        ego = step_ego(ego, plan, plan.stamp_ns, VehicleConfig())
        left_m.append(ego.map_from_ego[1])
    assert np.abs(left_m).max() < 8.0  # straight on it would be 23 m away
    assert max(left_m) > 0.0


def test_the_path_back_is_driven_at_walking_pace_unless_an_agent_is_there():
    """A car at 1 m/s, 2 m off its route, whose plan goes on at that speed."""
    route = {"route": straight_route(left=2.5), "traffic_lights": NO_LIGHTS}
    creeping = moving(1.0)
    free = led_back(creeping, context_of(observation(1.0, agents=Agents.none(), **route)))
    steps_mps = np.hypot(*np.diff(free, axis=0).T) / 0.5
    assert free[-1, 1] > 2.0
    assert steps_mps.max() == pytest.approx(3.0, abs=0.1)
    assert np.diff(steps_mps).max() <= 0.51  # 1 m/s2
    behind = context_of(observation(1.0, agents=cars((9.0, 2.5, 0.0, 0.0)), **route))
    slower = led_back(creeping, behind)
    assert np.hypot(*np.diff(slower, axis=0).T).sum() < 0.6 * np.hypot(*np.diff(free, axis=0).T).sum()
    assert assess(behind, evaluate(behind, slower[None])).sound.all()


@pytest.mark.parametrize(("speed_mps", "lights"), [(1.0, None), (4.0, NO_LIGHTS)])
def test_the_path_back_is_no_faster_than_a_plan_that_may_stop_for_a_light_or_brakes(speed_mps, lights):
    stopping = np.stack([np.minimum(0.4 * speed_mps * EVEN[:, 0], 1.5 * speed_mps), np.full(8, -0.2)], axis=1)
    scene = observation(speed_mps, route=straight_route(left=2.5), agents=Agents.none(), traffic_lights=lights)
    back = led_back(stopping, context_of(scene))
    lengths_m = [np.hypot(*np.diff(points, axis=0).T).sum() for points in (stopping, back)]
    assert lengths_m[1] <= 1.05 * lengths_m[0]


# --- repair without tokens --------------------------------------------------------------------------------------------


def repair_one(points, safety_context):
    """`repair_points` of one plan through points (8, 2)."""
    (repaired,), (changes,) = repair_points(points[None], safety_context, [None])
    return repaired, changes


def decelerations(points, speed_mps):
    """(8,) mean deceleration from one half second to the next of points (8, 2) on the x axis, m/s^2."""
    return -np.diff(np.diff(points[:, 0], prepend=0.0) / 0.5, prepend=speed_mps) / 0.5


@pytest.mark.parametrize("rear_m", [18.0, 24.0, 30.0, 40.0])
def test_a_plan_into_a_standing_car_brakes_on_its_path_and_no_harder_than_the_distance_requires(rear_m):
    safety_context = context_of(observation(8.0, agents=cars((rear_m + 2.25, 0.0, 0.0, 0.0))))
    assert safety_of(safety_context, moving(10.0)).worst[0] < SAFE
    points, changes = repair_one(moving(10.0), safety_context)
    assert changes == 1
    assert safety_of(safety_context, points).worst[0] == SAFE
    np.testing.assert_allclose(points[:, 1], 0.0, atol=1e-9)
    assert (np.diff(points[:, 0], prepend=0.0) >= 0.0).all()
    free_m = rear_m - safety_context.config.vehicle.rear_axle_to_center_m - 0.5 * safety_context.config.vehicle.length_m
    assert points[-1, 0] < free_m
    required_mps2 = 8.0**2 / (2.0 * (free_m - 2.0))  # 2 m: the gap, and the reaction
    assert decelerations(points, 8.0).max() < max(2.0 * required_mps2, 3.0) + 0.5


def test_a_car_that_brakes_already_goes_on_from_its_deceleration():
    """What the last plan does at this instant is what the car does: no release of the brake between two repairs."""
    scene, first_m = observation(8.0, agents=cars((20.0, 0.0, 0.0, 0.0))), []
    for acceleration_mps2 in (0.0, -3.0):
        ego = replace(scene.ego, acceleration_mps2=acceleration_mps2)
        points, _ = repair_one(moving(8.0), context_of(replace(scene, ego=ego)))
        first_m.append(points[0, 0])
    assert first_m[1] < first_m[0]


@pytest.mark.parametrize("acceleration_mps2", [-1.5, 0.0, 1.5])
def test_braking_is_comfortable_where_that_is_enough_also_of_a_car_that_speeds_up(acceleration_mps2):
    scene = observation(8.0, agents=cars((36.0, 0.0, 0.0, 0.0)))
    safety_context = context_of(replace(scene, ego=replace(scene.ego, acceleration_mps2=acceleration_mps2)))
    points, changes = repair_one(moving(10.0), safety_context)
    assert changes == 1
    assert safety_of(safety_context, points).worst[0] == SAFE
    assert comfortable(safety_context, points[None]).all()


def test_without_tokens_too_the_result_is_never_less_safe_than_the_plan():
    """The road ends 8 m ahead of the axle of a car at 12 m/s: nothing is safe."""
    safety_context = context_of(observation(12.0, drivable=strip_grid(4.0, length_m=8.0)))
    points, _ = repair_one(moving(12.0), safety_context)
    assert safety_of(safety_context, points).worst[0] < SAFE
    assert key_of(safety_context, points) >= key_of(safety_context, moving(12.0))


def test_many_plans_repaired_together_are_to_the_bit_what_each_is_alone():
    """One continues the plan driven now, two are braked on their path, one on the route, and one is safe already."""
    scene = observation(8.0, route=straight_route(left=0.5), agents=cars((24.0, -1.5, 0.0, 0.0)))
    safety_context = context_of(replace(scene, drivable=strip_grid(5.0)))
    sideways = np.stack([4.0 * EVEN[:, 0], np.minimum(0.7 * EVEN[:, 0], 2.0)], axis=1)
    leaving = np.concatenate([4.0 * EVEN, -0.8 * EVEN], axis=1)
    plans = np.stack([moving(8.0), moving(8.0), moving(14.0), leaving, moving(2.0)])
    last = [driven_now(scene, sideways), None, None, driven_now(scene, leaving), None]
    assert (~evaluate(safety_context, plans).safe).sum() >= 4
    together, counts = repair_points(plans, safety_context, last)
    alone = [repair_points(plan[None], safety_context, [each]) for plan, each in zip(plans, last, strict=True)]
    np.testing.assert_array_equal(together, np.concatenate([points for points, _ in alone]))
    np.testing.assert_array_equal(counts, np.concatenate([count for _, count in alone]))
    assert len({row.tobytes() for row in together}) >= 4
    np.testing.assert_allclose(together[0], sideways, atol=1e-6)


# --- bad input --------------------------------------------------------------------------------------------------------


def test_an_agent_that_overlaps_at_the_start_and_is_met_again_counts():
    """It drives off ahead, brakes, and is run into."""
    met = cars((2.0, 0.0, 0.0, 12.0))
    path = np.stack([np.array([14.0, 20.0, 24.0, 24.0, 24.0, 24.0, 24.0, 24.0]), np.zeros(8), np.zeros(8)], axis=1)
    safety_context = context_of(observation(8.0, agents=replace(met, predicted_poses=path[None])))
    assert safety_of(safety_context, plain(straight(8.0))).worst[0] == 0.0


@pytest.mark.parametrize("resolution_m", [0.05, 0.2, 1.0, 4.0])
def test_a_grid_of_any_resolution_never_calls_an_unsafe_plan_safe(resolution_m):
    safety_context = context_of(observation(8.0, drivable=strip_grid(2.4, resolution_m)))
    drifting = plain(LAYOUT.encode(np.concatenate([4.0 * EVEN, 0.6 * EVEN], axis=1)))
    assert safety_of(safety_context, drifting).worst[0] == 0.0


def test_late_in_the_deadline_there_is_one_iteration(monkeypatch):
    safety_context = context_of(observation(8.0, agents=cars((24, 0.6, 0, 0)), drivable=strip_grid(5.5)))
    monkeypatch.setattr(search, "SEARCH_RADIUS_BINS", 0)
    monkeypatch.setattr(search, "MAX_STALLED_ITERATIONS", 5)
    settings = RepairConfig(iterations=9)
    patient = run_plain(straight(8.0), safety_context, redraw, settings)
    gone = iter((0.3, 0.55))  # when it begins the first, and when it might begin the second
    hurried = run_plain(straight(8.0), safety_context, redraw, settings, lambda: next(gone))
    assert (patient.iterations, hurried.iterations) == (4, 1)
    np.testing.assert_array_equal(hurried.visited, patient.visited[:2])
    assert key_of(safety_context, hurried.points) >= key_of(safety_context, plain(straight(8.0)))


def test_where_hardly_any_time_is_left_nothing_is_searched_and_nothing_written_and_it_is_safe_all_the_same():
    """An agent stands ahead: braking needs no network, in the one iteration that there is time for."""
    safety_context = context_of(observation(8.0, agents=cars((30, 0.6, 0, 0)), drivable=strip_grid(5.5)))
    ids = straight(8.0)
    assert safety_of(safety_context, plain(ids)).worst[0] == 0.0
    pressed = run_plain(ids, safety_context, pytest.fail, RepairConfig(iterations=9), lambda: 0.7)
    assert pressed.safe
    assert pressed.iterations == 1


# --- a gap to stop with, and plans that agree with the one before -----------------------------------------------------


def driven_now(scene, points):
    """A plan of 0.1 s ago whose rest leads through points (8, 2) of the scene."""
    lead_m = 0.1 * scene.ego.speed_mps
    line, times_s = np.concatenate([np.zeros((1, 2)), points]), 0.5 * np.arange(len(points) + 1)
    x, y = (np.interp(0.1 * np.arange(40), times_s, line[:, axis]) for axis in (0, 1))
    poses = np.stack([x + lead_m, y, np.zeros(40)], axis=1)
    behind = geometry.compose(scene.ego.map_from_ego, np.array([-lead_m, 0.0, 0.0]))
    return Plan(scene.stamp_ns - SECOND_NS // 10, behind, Trajectory(poses, 0.1))


@pytest.mark.parametrize("ahead_m", [12.0, 16.0, 20.0])
def test_it_stops_before_an_agent_with_the_gap_of_the_constant(ahead_m, monkeypatch):
    """A car that stands across the whole road; `ahead_m` from rear axle to its side."""
    wall = Agents(np.array([[ahead_m + 1.0, 0.0, 0.0]]), np.zeros((1, 2)), np.array([[2.0, 30.0]]), [AgentKind.VEHICLE])
    rests = []
    for gap_m in (0.0, 1.0):
        monkeypatch.setattr(safety, "AGENT_GAP_M", gap_m)
        safety_context = context_of(observation(5.0, agents=wall))
        repair = repaired(straight(5.0), safety_context, iterations=9)
        assert repair.safe
        vehicle = safety_context.config.vehicle
        rests.append(ahead_m - repair.states[-1, 0] - vehicle.rear_axle_to_center_m - 0.5 * vehicle.length_m)
    assert rests[0] >= 0.29
    assert rests[1] >= 1.29  # `guard.clearance_m` comes on top


def test_where_less_than_the_gap_is_free_ahead_the_rest_of_it_counts_and_the_agent_is_not_forgotten():
    """Half a metre before a car: a plan that drives on hits it, one that stands is safe."""
    vehicle = config().vehicle
    front_m = vehicle.rear_axle_to_center_m + 0.5 * vehicle.length_m
    safety_context = context_of(observation(0.0, agents=cars((front_m + 0.5 + 0.5 * 4.5, 0.0, 0.0, 0.0))))
    longer_m = safety_context.stopping_vehicle.length_m - vehicle.length_m
    assert 0.0 <= longer_m <= 0.5
    assert safety_of(safety_context, plain(straight(0.0))).worst[0] == SAFE
    assert safety_of(safety_context, plain(straight(2.0))).worst[0] < SAFE


def test_alongside_an_agent_the_gap_ahead_does_not_count(monkeypatch):
    monkeypatch.setattr(safety, "AGENT_GAP_M", 5.0)
    safety_context = context_of(observation(5.0, agents=cars((14.0, 3.0, 0.0, 0.0))))
    assert safety_of(safety_context, plain(straight(5.0))).worst[0] == SAFE


def test_the_plan_that_is_driven_now_is_continued_where_it_is_safe():
    """A truck stands ahead. The plan driven now passes it on the left; the network's new plan drives into it. With the
    last plan known the result is its continuation, not another manoeuvre."""
    scene = observation(6.0, agents=cars((22.0, -0.5, 0.0, 0.0)))
    safety_context = context_of(scene)
    sideways = np.stack([3.0 * EVEN[:, 0], np.minimum(0.7 * EVEN[:, 0], 2.8)], axis=1)
    assert safety_of(safety_context, sideways).worst[0] == SAFE
    into_it = straight(6.0)
    assert safety_of(safety_context, plain(into_it)).worst[0] < SAFE
    continued = run_plain(into_it, safety_context, pytest.fail, RepairConfig(), last=driven_now(scene, sideways))
    assert np.allclose(continued.points, sideways, atol=1e-6)
    assert (continued.safe, continued.iterations) == (True, 1)
    last, off = driven_now(scene, sideways), RepairConfig(iterations=0)
    switched_off = run_plain(into_it, safety_context, pytest.fail, off, last=last)
    assert np.array_equal(switched_off.points, plain(into_it))
    old = replace(last, stamp_ns=scene.stamp_ns - 10 * SECOND_NS)
    for other in (driven_now(scene, plain(into_it)), old):  # unsafe itself, or of another time
        repair = run_plain(into_it, safety_context, redraw, RepairConfig(), last=other)
        assert not np.allclose(repair.points, sideways, atol=1e-6)


def test_a_stop_is_not_continued_where_the_new_plan_goes_on():
    """The path is free again after the stop that is driven now, but for an agent at its far end."""
    scene = observation(4.0, agents=cars((24.0, 0.0, 0.0, 0.0)))
    safety_context = context_of(scene)
    stop = np.stack([np.minimum(EVEN[:, 0], 2.0), np.zeros(8)], axis=1)
    assert safety_of(safety_context, stop).worst[0] == SAFE
    repair = run_plain(straight(6.0), safety_context, redraw, RepairConfig(), last=driven_now(scene, stop))
    assert repair.points[-1, 0] > stop[-1, 0]


def test_a_stop_that_was_overrun_is_continued_where_the_car_is():
    """At 0.2 m/s a car is 2 cm past the point where its plan stops. It stands; it does not drive back."""
    scene = observation(0.2, agents=cars((8.0, 0.0, 0.0, 0.0)))
    safety_context = context_of(scene)
    last = driven_now(scene, np.tile((-0.02, 0.0), (8, 1)))
    _, continued = continue_last([last], safety_context, 8, np.array([0.3]))
    np.testing.assert_array_equal(continued.points[0], np.zeros((8, 2)))
    (sent,) = trajectories(continued.points, 0.2, 0.1, safety_context.road)
    assert np.diff(sent.poses[:, 0], prepend=0.0).min() > -1e-9
