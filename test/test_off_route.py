"""A car that is not on its route stops, whatever plans: none of the planners, on none of the backends, drives on."""

from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import numpy as np
import pytest
from scenes import Clock, config, later, observation, straight_route, turning_route
from scripted_network import camera_observation

from reflectdrive_ros.core import geometry, kinematics
from reflectdrive_ros.core.config import SHIPPED_MODELS, ConfigError, RouteConfig
from reflectdrive_ros.core.domain import PlanSource, Verdict
from reflectdrive_ros.infra.files import sha256_of
from reflectdrive_ros.planning import GENERATORS, LEARNED, PLANNERS, decoding_config
from reflectdrive_ros.planning.off_route import off_route_reason
from reflectdrive_ros.runtime.engine import Engine
from reflectdrive_ros.runtime.network import load_network

ROOT = Path(__file__).parents[1]
LIMITS = RouteConfig()
DRIVERS = [
    *((name, "") for name in PLANNERS),
    *((name, backend) for name in LEARNED for backend in ("onnxruntime", "torch")),
]


@lru_cache
def network(planner, backend):
    """The shipped network of a planner: its graphs, or the weights that they were exported from."""
    if backend == "torch":
        pytest.importorskip("torch", reason="torch is not installed (pip install -e .[train])")
    engine_config = config(planner=planner, **model_settings(planner, backend))
    return load_network(engine_config.model, decoding_config(engine_config))


def model_settings(planner, backend):
    file = ROOT / SHIPPED_MODELS[planner][0]
    file = file.parents[1] / "weights.safetensors" if backend == "torch" else file
    named = {"file": str(file), "sha256": sha256_of(file), "backend": backend, "threads": 1}
    return {f"model__{name}": value for name, value in named.items()}


def engine(planner="route_follower", backend="", **changes):
    if not backend:
        return Engine(config(planner=planner, **changes), Clock())
    engine_config = config(planner=planner, **model_settings(planner, backend), **changes)
    return Engine(engine_config, Clock(), network=network(planner, backend))


def scene(planner="route_follower", left_m=0.0, **more):
    """8 m/s on a straight road, with images for planners that read them; the route is `left_m` to the left."""
    make = camera_observation if GENERATORS[planner].images else observation
    return make(**{"speed": 8.0, "route": straight_route(left=left_m), **more})


def stands_for(report):
    """Whether a report is the stop plan: no later point of it moves on."""
    speeds = kinematics.speeds(report.plan.trajectory)
    return report.source is PlanSource.STOP and speeds[-1] == 0.0 and bool((np.diff(speeds) <= 1e-9).all())


# --- every planner ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("planner", "backend"), DRIVERS)
def test_every_planner_drives_on_its_route_and_stops_when_the_car_is_elsewhere(planner, backend):
    """545 m are a car on another road."""
    driven = engine(planner, backend)
    for k, away_m in enumerate((0.0, -545.0, 0.0, 6.0, 0.0)):
        report = driven.step(later(scene(planner, away_m), 0.1 * k))
        if away_m == 0.0:
            assert report.source is PlanSource.PLANNER, report.reason
            assert k or report.plan.trajectory.poses[-1, 0] > 15.0
            continue
        assert stands_for(report)
        assert report.verdict is Verdict.INFEASIBLE
        sentence = f"route: the car is {abs(away_m):.1f} m from its route, at most 5 m are allowed"
        assert report.reason.startswith(sentence)
        assert report.plan.check is not None


@pytest.mark.parametrize(("planner", "backend"), DRIVERS)
def test_no_planner_follows_a_route_against_its_direction(planner, backend):
    turned = straight_route()[::-1] + np.array([0.0, 0.0, np.pi])
    report = engine(planner, backend).step(scene(planner, route=turned))
    assert stands_for(report)
    assert report.reason.startswith("route: the car faces against its route, 180 degrees from its direction")


def test_the_last_good_plan_is_neither_carried_nor_resumed_off_the_route():
    """After a jump of 30 m the last path is 30 m from the car: the stop is straight ahead, not a swerve towards it."""
    driven, on_route = engine(), scene()
    driven.step(on_route)
    moved = replace(on_route.ego, stamp_ns=on_route.stamp_ns + 100_000_000, map_from_ego=np.array([0.8, -30.0, 0.0]))
    report = driven.step(replace(scene(left_m=30.0), stamp_ns=moved.stamp_ns, ego=moved))
    assert stands_for(report)
    assert np.abs(report.plan.trajectory.poses[:, 1]).max() < 1e-6


def test_a_car_that_drifts_off_its_route_brakes_along_its_own_path():
    driven, bend = engine(), turning_route(radius=30.0, before=0.0)
    assert driven.step(scene(route=bend)).source is PlanSource.PLANNER
    report = driven.step(replace(later(scene(left_m=5.5), 0.1), ego=later(scene(), 0.1).ego))
    assert stands_for(report)
    assert report.plan.trajectory.poses[-1, 1] > 0.5  # the plan before turned left


# --- the limit -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("left_m", "driving"), [(3.5, True), (-4.9, True), (5.1, False), (-5.1, False)])
def test_the_lane_next_to_the_route_is_on_it_and_the_second_one_is_not(left_m, driving):
    assert (engine().step(scene(left_m=left_m)).source is PlanSource.PLANNER) is driving


def test_the_limit_is_a_setting_for_roads_of_many_lanes_and_cannot_be_switched_off():
    assert engine(route__max_distance_m=8.0).step(scene(left_m=7.0)).source is PlanSource.PLANNER
    for off in (0.0, -1.0, 1000.0, float("inf")):
        with pytest.raises(ConfigError, match="max_distance_m"):
            config(route__max_distance_m=off)


def test_a_car_at_the_limit_does_not_stop_and_start_in_turn():
    driven = engine()
    sources = [
        driven.step(later(scene(left_m=left_m), 0.1 * k)).source
        for k, left_m in enumerate((4.9, 5.05, 4.95, 5.05, 4.95, 4.6, 4.4, 4.95))
    ]
    assert sources == [PlanSource.PLANNER, *[PlanSource.STOP] * 5, *[PlanSource.PLANNER] * 2]


def test_a_new_drive_forgets_that_the_car_was_off_its_route():
    driven = engine()
    assert driven.step(scene(left_m=5.1)).source is PlanSource.STOP
    driven.reset()
    assert driven.step(scene(left_m=4.8)).source is PlanSource.PLANNER


def test_a_route_that_begins_ahead_or_ended_behind_the_car_is_as_far_as_its_end():
    assert not off_route_reason(straight_route(behind=-4.0), LIMITS)
    assert "10.0 m from its route" in off_route_reason(straight_route(behind=-10.0), LIMITS)
    assert "50.0 m from its route" in off_route_reason(straight_route(behind=200.0, length=-49.0), LIMITS)


def test_no_route_is_not_a_distance_from_one():
    """Planners that need one say so; the node gives no observation without a route."""
    for points in (np.zeros((0, 3)), np.zeros((2, 3))):
        assert off_route_reason(points, LIMITS) == ""


# --- the direction ---------------------------------------------------------------------------------------------------


def hairpin(spacing_m):
    """Ahead for 40 m, back `apart_m` to the left."""
    along = np.arange(-20.0, 40.0)
    points = np.column_stack([np.concatenate([along, along[::-1]]), np.repeat([0.0, spacing_m], len(along))])
    return np.column_stack([points, geometry.headings_along(points)])


def test_a_car_in_a_hairpin_is_on_its_route_also_where_the_other_half_is_nearer():
    for lateral_m in (0.0, 1.9, 2.1, 3.9):
        assert off_route_reason(hairpin(4.0) - [0.0, lateral_m, 0.0], LIMITS) == ""


@pytest.mark.parametrize(("turned_deg", "stops"), [(80, False), (115, False), (-125, True), (180, True)])
def test_a_car_across_its_route_may_turn_and_one_against_it_stops(turned_deg, stops):
    pose = np.array([0.0, 0.0, np.deg2rad(turned_deg)])
    route = geometry.compose(geometry.invert(pose), straight_route())
    assert bool(off_route_reason(route, LIMITS)) is stops
    assert bool(off_route_reason(route, LIMITS, was_off=True)) is (abs(turned_deg) > 90)
