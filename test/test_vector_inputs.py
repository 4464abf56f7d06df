"""Inputs of a denoiser: each number of an observation is in its column, and what is missing is zero and reported."""

from dataclasses import replace

import numpy as np
import pytest
from scenes import cars, ego, lanes, observation, straight_route

from reflectdrive_ros.core.domain import AgentHistory, AgentKind, Agents, LightState
from reflectdrive_ros.core.vector_spec import VectorSpec
from reflectdrive_ros.features.vectors import OFF_ROUTE_M, ego_row, vector_inputs

SPEC = VectorSpec(agents=6, static_objects=3, lanes=8, route_lanes=4, predicted_agents=2, future_steps=40)
GREEN, AMBER, RED, UNKNOWN = 8, 9, 10, 11  # columns of a lane point


def full_history(agents):
    """The history of agents that kept their velocity for 2 s."""
    times = AgentHistory.DT_S * (np.arange(AgentHistory.STEPS) - AgentHistory.STEPS + 1)
    poses = np.repeat(agents.poses[:, None], AgentHistory.STEPS, axis=1)
    poses[..., :2] += agents.velocities_mps[:, None] * times[:, None]
    velocities = np.repeat(agents.velocities_mps[:, None], AgentHistory.STEPS, axis=1)
    return AgentHistory(np.arange(len(agents)), poses, velocities, np.ones(poses.shape[:2], bool))


def of_kinds(agents, *kinds):
    return replace(agents, kinds=np.array(kinds))


HERE = lanes((-10.0, 0.0, 38.0, 3.5, 13.9, LightState.UNKNOWN))


def full(**changes):
    """An observation without unknowns."""
    agents = cars((30.0, 0.0, 0.0, 5.0), (-10.0, 3.5, np.pi, 7.0))
    fields = {"agents": agents, "history": full_history(agents), "lanes": HERE, "route_lanes": HERE, **changes}
    return observation(**fields)


# --- shapes ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("spec", [SPEC, VectorSpec()])
def test_shapes_are_those_of_the_specification_and_nothing_is_noted_of_a_full_observation(spec):
    inputs = vector_inputs(full(), spec)
    assert {name: array.shape for name, array in inputs.arrays.items()} == {
        "ego": (10,),
        "agents": (spec.agents, 21, 11),
        "static_objects": (spec.static_objects, 10),
        "lanes": (spec.lanes, 20, 12),
        "lane_limits": (spec.lanes, 1),
        "lane_has_limit": (spec.lanes, 1),
        "route_lanes": (spec.route_lanes, 20, 12),
    }
    for name, array in inputs.arrays.items():
        assert array.dtype == (bool if name == "lane_has_limit" else np.float32)
    assert inputs.notes == ()


def test_padded_rows_are_zero():
    inputs = vector_inputs(full(), SPEC)
    assert not inputs.agents[2:].any()
    assert not inputs.static_objects.any()
    assert not inputs.lanes[1:].any()
    assert not inputs.lane_limits[1:].any()
    assert not inputs.lane_has_limit[1:].any()
    assert not inputs.route_lanes[1:].any()


# --- the ego ---------------------------------------------------------------------------------------------------------


def test_the_ego_is_at_the_origin_with_its_motion():
    row = ego_row(ego(10.0, acceleration_mps2=-1.0, yaw_rate_rps=0.2, steering_rad=0.05, at=(300.0, 40.0, 1.0)))
    np.testing.assert_allclose(row, [0.0, 0.0, 1.0, 0.0, 10.0, 0.0, -1.0, 2.0, 0.05, 0.2], rtol=1e-6)


# --- agents ----------------------------------------------------------------------------------------------------------


def test_an_agents_columns_are_pose_velocity_width_length_and_kind_over_its_history():
    agents = vector_inputs(full(), SPEC).agents
    nearest, ahead = agents[0], agents[1]  # behind in the other lane, 10.6 m away; 30 m ahead
    np.testing.assert_allclose(ahead[-1], [30.0, 0.0, 1.0, 0.0, 5.0, 0.0, 1.9, 4.5, 1.0, 0.0, 0.0], atol=1e-6)
    np.testing.assert_allclose(nearest[-1], [-10.0, 3.5, -1.0, 0.0, -7.0, 0.0, 1.9, 4.5, 1.0, 0.0, 0.0], atol=1e-6)
    np.testing.assert_allclose(ahead[:, 0], 30.0 + 0.5 * np.arange(-20, 1), rtol=1e-6)  # 5 m/s, oldest first
    np.testing.assert_allclose(nearest[0, :2], [4.0, 3.5], rtol=1e-6)


@pytest.mark.parametrize(
    ("kind", "column"),
    [(AgentKind.UNKNOWN, 8), (AgentKind.VEHICLE, 8), (AgentKind.PEDESTRIAN, 9), (AgentKind.BICYCLE, 10)],
)
def test_the_kind_of_an_agent_is_one_hot(kind, column):
    agents = of_kinds(cars((20.0, 0.0, 0.0, 1.0)), kind)
    row = vector_inputs(full(agents=agents, history=full_history(agents)), SPEC).agents[0, -1]
    assert np.flatnonzero(row[8:]).tolist() == [column - 8]


def test_of_500_agents_the_nearest_are_read_and_one_sentence_counts_them():
    agents = cars(*((float(x), 0.0, 0.0, 0.0) for x in range(500, 0, -1)))
    inputs = vector_inputs(full(agents=agents, history=full_history(agents)), SPEC)
    assert inputs.agents[:, -1, 0].tolist() == [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
    assert inputs.notes == ("500 objects are known: the nearest 6 are read",)


def test_agents_without_a_history_are_read_where_they_are_now_and_that_is_noted():
    inputs = vector_inputs(full(history=None), SPEC)
    assert not inputs.agents[:, :-1].any()
    np.testing.assert_allclose(inputs.agents[1, -1, :2], [30.0, 0.0])
    assert inputs.notes == ("objects have no history: the network reads where they are now",)


def test_an_instant_at_which_an_agent_was_not_observed_is_zero():
    observed = full()
    valid = observed.history.valid.copy()
    valid[0, :15] = False
    agents = vector_inputs(replace(observed, history=replace(observed.history, valid=valid)), SPEC).agents
    assert not agents[1, :15].any()
    assert agents[1, 15:].any(axis=1).all()
    assert agents[0].any(axis=1).all()


def test_an_empty_road_differs_from_an_unknown_one_by_its_note_only():
    none = Agents.none()
    empty = vector_inputs(full(agents=none, history=full_history(none)), SPEC)
    unknown = vector_inputs(full(agents=None, history=None), SPEC)
    assert empty.notes == ()
    assert unknown.notes == ("objects are unknown: the network plans as on an empty road",)
    np.testing.assert_array_equal(empty.agents, unknown.agents)


# --- static objects --------------------------------------------------------------------------------------------------


def test_obstacles_and_static_agents_are_static_objects_nearest_first():
    agents = of_kinds(cars((30.0, 0.0, 0.0, 5.0), (12.0, 2.0, np.pi / 2, 0.0)), AgentKind.VEHICLE, AgentKind.STATIC)
    observed = full(agents=agents, history=full_history(agents), obstacles=cars((8.0, -1.0, 0.0, 0.0)))
    inputs = vector_inputs(observed, SPEC)
    generic = [0.0, 0.0, 0.0, 1.0]
    np.testing.assert_allclose(inputs.static_objects[0], [8.0, -1.0, 1.0, 0.0, 1.9, 4.5, *generic], atol=1e-6)
    np.testing.assert_allclose(inputs.static_objects[1], [12.0, 2.0, 0.0, 1.0, 1.9, 4.5, *generic], atol=1e-6)
    assert not inputs.static_objects[2:].any()
    assert inputs.agents[:, -1, 0].tolist() == [30.0, *5 * [0.0]]  # a static agent is not among the moving ones


# --- lanes -----------------------------------------------------------------------------------------------------------


def test_a_lane_along_x_has_its_left_edge_at_positive_y_at_half_its_width():
    rows = vector_inputs(full(), SPEC).lanes[0]
    np.testing.assert_allclose(rows[:, 0], np.linspace(-10.0, 28.0, 20), rtol=1e-5)
    np.testing.assert_allclose(rows[:-1, 2:4], np.broadcast_to([2.0, 0.0], (19, 2)), rtol=1e-5)  # to the next point
    assert not rows[-1, 2:4].any()  # the last has no next
    np.testing.assert_allclose(rows[:, 4:6], np.broadcast_to([0.0, 1.75], (20, 2)), atol=1e-6)
    np.testing.assert_allclose(rows[:, 6:8], np.broadcast_to([0.0, -1.75], (20, 2)), atol=1e-6)


@pytest.mark.parametrize(
    ("light", "column"),
    [(LightState.GREEN, GREEN), (LightState.AMBER, AMBER), (LightState.RED, RED), (LightState.UNKNOWN, UNKNOWN)],
)
def test_a_light_is_one_hot_in_its_column_at_every_point(light, column):
    lit = lanes((-10.0, 0.0, 40.0, 3.5, 0.0, light))
    inputs = vector_inputs(full(lanes=lit, route_lanes=lit), SPEC)
    for rows in (inputs.lanes[0], inputs.route_lanes[0]):
        assert (rows[:, column] == 1.0).all()
        assert (rows[:, 8:].sum(axis=1) == 1.0).all()


def test_a_lane_without_a_limit_of_its_own_has_that_of_the_road():
    both = lanes((0.0, 0.0, 20.0, 3.5, 8.3, 0), (0.0, 4.0, 20.0, 3.5, 0.0, 0))
    inputs = vector_inputs(full(lanes=both, speed_limit_mps=16.7), SPEC)
    np.testing.assert_allclose(inputs.lane_limits[:3, 0], [8.3, 16.7, 0.0], rtol=1e-6)
    assert inputs.lane_has_limit[:3, 0].tolist() == [True, True, False]


def test_lanes_keep_their_order_and_the_first_are_read():
    many = lanes(*((0.0, float(y), 20.0, 3.0, 1.0 + y, 0) for y in range(12)))
    inputs = vector_inputs(full(lanes=many, route_lanes=many), SPEC)
    assert inputs.lanes[:, 0, 1].tolist() == list(range(8))
    assert inputs.lane_limits[:, 0].tolist() == list(range(1, 9))
    assert inputs.route_lanes[:, 0, 1].tolist() == list(range(4))


def test_unknown_lanes_are_noted_and_the_route_is_read():
    inputs = vector_inputs(full(lanes=None), SPEC)
    assert not inputs.lanes.any()
    assert not inputs.lane_has_limit.any()
    assert inputs.route_lanes[0].any()
    assert inputs.notes == ("lanes are unknown: the network plans by its route alone",)


# --- the route -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("route_lanes", [None, lanes(pad=4)])
def test_a_route_without_lanes_is_read_from_its_line_and_that_is_noted(route_lanes):
    inputs = vector_inputs(full(route_lanes=route_lanes), SPEC)
    assert inputs.notes == ("the lanes of the route are unknown: its line is read instead",)
    used = inputs.route_lanes[inputs.route_lanes.any(axis=(1, 2))]
    assert len(used) == 4
    np.testing.assert_allclose(used[:, 0, 0], [0.0, 50.0, 100.0, 150.0], atol=1e-3)  # ahead of the ego
    np.testing.assert_allclose(used[:-1, -1, 0], used[1:, 0, 0], atol=1e-3)  # without gaps
    np.testing.assert_allclose(used[:, :, 5], 1.75, rtol=1e-5)


def lanes_of(points):
    return lanes((0.0, 0.0, 20.0, 3.5, 0.0, 0), points=points)


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"lanes": lanes_of(19)}, r"Observation\.lanes has 19 points per lane, expected 20"),
        ({"route_lanes": lanes_of(2)}, r"Observation\.route_lanes has 2 points per lane, expected 20"),
        ({"route_lanes": lanes_of(21)}, r"Observation\.route_lanes has 21 points per lane, expected 20"),
        ({"route_lanes": None, "route": np.zeros((0, 3))}, r"Observation\.route is empty: send a route with at least"),
        ({"route_lanes": None, "route": np.zeros((5, 3))}, r"Observation\.route is empty"),
        ({"route_lanes": None, "route": straight_route(left=80.0)}, r"Observation\.route is 80 m away"),
    ],
)
def test_lanes_and_routes_that_cannot_be_read_are_refused_by_name(changes, complaint):
    with pytest.raises(ValueError, match=complaint):
        vector_inputs(full(**changes), SPEC)


def test_motion_beyond_any_cars_and_a_history_of_another_length_are_refused_by_name():
    for changes in ({"speed": 101.0}, {"acceleration_mps2": -101.0}, {"yaw_rate_rps": 1e9}):
        name = next(iter(changes)).replace("speed", "speed_mps")
        with pytest.raises(ValueError, match=rf"EgoState\.{name} is .*, expected a number within 100 of 0"):
            ego_row(ego(**changes))
    with pytest.raises(ValueError, match=r"Observation\.history has 21 instants, expected 11"):
        vector_inputs(full(), replace(SPEC, history_steps=11))


def test_a_route_near_the_vehicle_is_read():
    near = straight_route(left=OFF_ROUTE_M - 1.0)
    assert vector_inputs(full(route_lanes=None, route=near), SPEC).route_lanes.any()


def test_a_route_that_ends_here_is_still_read():
    inputs = vector_inputs(full(route_lanes=None, route=straight_route(length=1.0)), SPEC)
    assert np.isfinite(inputs.route_lanes).all()
    assert inputs.route_lanes[0].any()
