"""Autoware's checks: they see what they are for, and our plans pass them with room to spare."""

from dataclasses import replace

import numpy as np
import pytest
import replay_records
from own_bags import short_bag
from rich.console import Console
from scenes import config

from reflectdrive_ros.core import kinematics
from reflectdrive_ros.core.config import Config
from reflectdrive_ros.core.domain import EgoState, Plan, Trajectory
from reflectdrive_ros.replay import conformance
from reflectdrive_ros.replay.validator import LIMITS, check_values
from reflectdrive_ros.replay.validator import margins as margins_of_values
from reflectdrive_ros.ros import plan_messages

DT = 0.1


def margins(frames):
    return margins_of_values(check_values(frames, wheel_base_m=3.0))


def frame(index, speed=8.0, left=0.0, bend=0.0, points=80, **changes):
    """A plan at constant speed from where the car is at step `index`, `left` to its side, curving by `bend` (1/m)."""
    at = speed * DT * np.arange(1, points + 1)
    here = np.array([speed * DT * index, 0.0, 0.0])
    plan = {"plan_poses": kinematics.arc(bend, at) + here + [0.0, left, 0.0], "plan_speeds": np.full(points, speed)}
    return replay_records.frame(DT * index, at, map_from_ego=here, speed_mps=speed, **plan, **changes)


def test_straight_on_uses_nothing_up():
    results = margins([frame(k) for k in range(5)])
    assert set(results) == set(LIMITS)
    assert all(margin.met for margin in results.values()), results
    assert results["interval_m"].worst == pytest.approx(0.8)
    assert results["curvature_per_m"].worst == pytest.approx(0.0, abs=1e-9)


def test_a_bend_has_the_curvature_and_the_lateral_acceleration_that_it_has():
    results = margins([frame(0, speed=10.0, bend=0.05)])
    assert results["curvature_per_m"].worst == pytest.approx(0.05, rel=0.01)
    assert results["lateral_acceleration_mps2"].worst == pytest.approx(5.0, rel=0.02)
    assert results["steering_rad"].worst == pytest.approx(np.arctan(0.15), rel=0.01)


def test_a_plan_that_jumps_aside_is_seen():
    assert margins([frame(0), frame(1), frame(2, left=0.8)])["lateral_shift_m"].worst > 0.0
    assert margins([frame(0), frame(1), frame(2)])["lateral_shift_m"].worst == pytest.approx(0.0, abs=1e-6)


def test_a_plan_shorter_than_the_way_to_brake_is_seen():
    assert margins([frame(0, speed=15.0, points=10)])["missing_length_m"].worst > 15.0
    assert margins([frame(0, speed=15.0)])["missing_length_m"].met


def published(index, speed, first_point, yaw_rate=0.0, offset_s=0.0):
    """The frame of a constant-velocity plan as the node publishes it, of a car that is `offset_s` further by then."""
    bend = yaw_rate / max(speed, 1.0)
    pose, later = kinematics.arc(bend, speed * np.array([DT * index, DT * index + offset_s]))
    car = EgoState(index * 100_000_000, pose, speed, yaw_rate_rps=yaw_rate)
    ahead = kinematics.arc(bend, speed * DT * np.arange(1, 81))
    settings = config(output__first_point=first_point)
    points = plan_messages.plan_points(Plan(car.stamp_ns, pose, Trajectory(ahead, DT)), settings, ego=car)
    is_plan = plan_messages.is_ahead(points)
    poses, speeds = plan_messages.planar_poses(points), points["longitudinal_velocity_mps"].astype(float)
    return replace(
        frame(index, speed=speed),
        map_from_ego=later,
        plan_poses=poses[is_plan],
        plan_speeds=speeds[is_plan],
        driven_poses=poses[~is_plan],
        driven_speeds=speeds[~is_plan],
        plan_heights=points["z"][is_plan],
        plan_pitches=np.zeros(is_plan.sum()),
    )


@pytest.mark.parametrize("yaw_rate", [0.0, 0.3])
@pytest.mark.parametrize("offset_s", [-0.05, 0.0, 0.02, 0.1, 0.2])
@pytest.mark.parametrize("speed", [0.0, 0.4, 3.0, 12.0, 25.0])
def test_up_to_25_metres_a_second_autoware_accepts_the_raw_plan(speed, offset_s, yaw_rate):
    """The validator locates the car by a newer odometry, or by one that is a little older."""
    frames = [
        published(k, speed, "driven_path", yaw_rate=yaw_rate if speed else 0.0, offset_s=offset_s) for k in range(5)
    ]
    exceeded = {name: margin.worst for name, margin in margins(frames).items() if margin.worst > margin.limit}
    assert exceeded == {}


def test_above_ten_metres_a_second_autoware_refuses_a_plan_that_begins_ahead_of_the_car():
    slow, fast = (margins([published(k, speed, "ahead") for k in range(3)]) for speed in (9.0, 12.0))
    for name in ("forward_shift_m", "longitudinal_deviation_m"):
        assert slow[name].met
        assert not fast[name].met


def test_a_plan_that_begins_at_the_car_is_a_shift_to_autoware_where_the_car_is_on_its_first_point():
    results = margins([published(k, 12.0, "now", offset_s=-1e-3) for k in range(3)])
    assert results["longitudinal_deviation_m"].met
    assert not results["forward_shift_m"].met
    # a standing car is not on a plan whose points coincide
    assert not margins([published(0, 0.0, "ahead")])["longitudinal_deviation_m"].met
    assert margins([published(0, 0.0, "driven_path")])["longitudinal_deviation_m"].met


def test_one_plan_of_a_hundred_may_exceed_a_limit():
    values = np.zeros((200, len(LIMITS)))
    values[:2] = 1e3
    assert all(margin.met for margin in margins_of_values(values).values())
    values[2] = 1e3
    assert not any(margin.met for margin in margins_of_values(values).values())


def on_ramp(slope=0.08, z=30.0, **changes):
    """A plan straight up a ramp, from a car at this height."""
    x = 0.8 * np.arange(1, 81)
    ramp = {"plan_heights": 30.0 + slope * x, "plan_pitches": np.full(80, -np.arctan(slope))}
    return frame(0, **({"ego_height_m": z, "ego_slope": slope} | ramp | changes))


def test_a_plan_at_another_height_or_pitch_than_the_road_is_seen_and_one_on_it_is_not():
    for slope in (0.0, 0.08, -0.12):
        results = margins([on_ramp(slope)])
        assert results["height_deviation_m"].worst == pytest.approx(0.0, abs=1e-9)
        assert results["pitch_deviation_rad"].worst == pytest.approx(0.0, abs=1e-9)
    assert margins([on_ramp(z=0.0)])["height_deviation_m"].worst == pytest.approx(30.0)
    on_the_nose = margins([on_ramp(plan_pitches=np.full(80, np.arctan(0.08)))])["pitch_deviation_rad"]
    assert on_the_nose.worst == pytest.approx(2 * np.arctan(0.08))
    assert not on_the_nose.met
    step = np.where(np.arange(80) < 40, 30.0, 24.0)  # off a bridge
    assert not margins([on_ramp(0.0, plan_heights=step)])["pitch_deviation_rad"].met


@pytest.mark.parametrize("planner", ["route_follower", pytest.param("constant_velocity", marks=pytest.mark.long)])
def test_the_recordings_plans_stay_within_every_limit(planner, tmp_path):
    bag = short_bag(tmp_path / "pandaset", "pandaset_002", seconds=100.0, objects=20)
    values = conformance.measure(bag, Config(planner=planner), Console(stderr=True))
    assert len(values) > 50
    results = margins_of_values(values)
    assert {name: margin for name, margin in results.items() if margin.worst > margin.limit} == {}
