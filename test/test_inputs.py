"""What the inputs make of a stream: an observation when all is well, a sentence when it is not, never an old value."""

import re

import numpy as np
import pytest
from autoware_internal_planning_msgs.msg import VelocityLimit
from input_stream import blind, driving, instant, ready, small, status_of
from messages import CAMERAS, acceleration, camera_info, jpeg, ns, odometry, predicted_objects, route
from scenes import config

from reflectdrive_ros.core.domain import Command, PlanSource, Verdict
from reflectdrive_ros.ros.inputs import store
from reflectdrive_ros.ros.inputs.channel import NO_CLOCK, Level
from reflectdrive_ros.ros.inputs.route import command_along
from reflectdrive_ros.ros.inputs.snapshot import Inputs


def levels(inputs, seconds):
    return {status.name: status.level for status in inputs.statuses(ns(seconds))}


def assert_refused(inputs, seconds, words):
    """No observation, and a sentence with these words."""
    snapshot = inputs.snapshot(ns(seconds))
    assert snapshot.observation is None
    assert any(words in problem for problem in snapshot.problems), snapshot.problems
    return snapshot


def test_a_complete_instant_becomes_an_observation():
    inputs = ready()
    instant(inputs.store, 1.0)
    assert inputs.due(ns(1.0))
    scene = inputs.snapshot(ns(1.0)).observation
    assert scene.stamp_ns == ns(1.0)
    assert [frame.name for frame in scene.cameras] == list(CAMERAS)
    assert len(scene.agents) == 1
    assert scene.agents.poses[0, 0] == pytest.approx(55.0)
    assert scene.ego.acceleration_mps2 == 0.5
    assert not inputs.due(ns(1.0))
    assert set(levels(inputs, 1.0).values()) == {Level.OK}


def test_two_instants_half_a_second_apart_form_the_pair_oldest_first():
    inputs = ready()
    for k in range(10, 17):
        instant(inputs.store, 0.1 * k)
        inputs.due(ns(0.1 * k))
        scene = inputs.snapshot(ns(0.1 * k)).observation
    stamps = [frame.stamp_ns for frame in scene.cameras]
    assert stamps == [ns(1.1)] * 3 + [ns(1.6)] * 3


def test_nothing_is_due_before_the_companions_of_an_image_have_come_or_are_overdue():
    inputs = ready()
    instant(inputs.store, 1.0, cameras=("front_left", "front"))
    assert inputs.due(ns(1.13))
    assert assert_refused(inputs, 1.13, "image front_right: nothing received yet").ego is not None
    inputs = ready()
    instant(inputs.store, 1.0, cameras=("front_left", "front"))
    assert not inputs.due(ns(1.01))
    inputs.store.put("image:front_right", jpeg(1.02, "front_right", 1), ns(1.02))
    assert inputs.due(ns(1.02))


def test_a_dead_camera_does_not_keep_the_others_waiting_for_ever():
    """With every new front image the wait could begin anew; it must not."""
    inputs = ready()
    due = []
    for k in range(12):
        seconds = 1.0 + 0.05 * k
        inputs.store.put("odometry", odometry(seconds), ns(seconds))
        for camera in ("front_left", "front"):
            inputs.store.put(f"image:{camera}", jpeg(seconds, camera, k), ns(seconds))
        due.append(inputs.due(ns(seconds)))
        if due[-1]:
            inputs.snapshot(ns(seconds))
    assert due.count(True) == 3


@pytest.mark.parametrize(
    ("late", "words"), [(0.07, "nearest is 0.07 s from the anchor's image"), (0.4, "front_right: newest is 0.40 s old")]
)
def test_a_camera_out_of_step_is_named(late, words):
    inputs = ready()
    inputs.store.put("image:front_right", jpeg(1.0 - late, "front_right"), ns(1.0))
    instant(inputs.store, 1.0, cameras=("front_left", "front"))
    assert_refused(inputs, 1.0, words)


def test_a_blind_planner_needs_no_cameras():
    inputs = Inputs(small(cameras__required=False))
    inputs.store.put("route", route(), 0)
    for k in range(4):
        instant(inputs.store, 1.0 + 0.05 * k, cameras=())
        due = inputs.due(ns(1.0 + 0.05 * k))
        assert due is (k % 2 == 0)
        if due:
            assert inputs.snapshot(ns(1.0 + 0.05 * k)).observation.cameras == ()


@pytest.mark.parametrize(
    ("key", "age", "level"),
    [("odometry", 0.3, Level.ERROR), ("acceleration", 0.6, Level.WARN), ("objects", 0.6, Level.WARN)],
)
def test_every_input_has_an_age_gate(key, age, level):
    inputs = ready()
    instant(inputs.store, 1.0)
    for camera in CAMERAS:
        inputs.store.put(f"image:{camera}", jpeg(1.0 + age, camera, 3), ns(1.0 + age))
    if key != "odometry":
        inputs.store.put("odometry", odometry(1.0 + age), ns(1.0 + age))
    snapshot = inputs.snapshot(ns(1.0 + age))
    assert levels(inputs, 1.0 + age)[key] is level
    if key == "odometry":
        assert snapshot.observation is None
        assert snapshot.ego is None
        assert f"odometry: newest is {age:.2f} s old, allowed 0.20 s" in snapshot.problems
    elif key == "acceleration":
        assert snapshot.observation.ego.acceleration_mps2 == 0.0
    else:
        assert snapshot.observation.agents is None  # unknown, not an empty road


@pytest.mark.parametrize(
    ("sent_s", "now_s", "words"),
    [(1.0, 1.5, "image front: newest is 0.50 s old"), (5.0, 2.0, "3.00 s in the future: synchronise the clocks")],
)
def test_stale_images_and_those_of_a_clock_that_runs_ahead_do_not_plan(sent_s, now_s, words):
    inputs = ready()
    instant(inputs.store, sent_s)
    inputs.store.put("odometry", odometry(max(sent_s, now_s)), ns(now_s))
    assert_refused(inputs, now_s, words)


def test_what_stays_valid_until_it_changes_has_neither_age_nor_rate():
    inputs = ready()
    instant(inputs.store, 1.0)
    values = {status.name: status.values for status in inputs.statuses(ns(1.0))}
    assert float(values["odometry"]["age_s"]) == pytest.approx(0.0, abs=0.1)
    for name in ("camera_info front", "tf_static", "route"):
        assert values[name]["received"] == "1"
        assert not {"age_s", "rate_hz"} & set(values[name])


def test_duplicates_and_stragglers_are_counted_and_change_nothing():
    inputs = ready()
    instant(inputs.store, 1.0)
    instant(inputs.store, 1.1)
    inputs.snapshot(ns(1.1))
    instant(inputs.store, 1.1)
    inputs.store.put("odometry", odometry(1.05), ns(1.12))
    assert not inputs.due(ns(1.12))
    values = {status.name: status.values for status in inputs.statuses(ns(1.12))}
    assert values["image front"]["duplicates"] == "1"
    assert values["odometry"] | {"duplicates": "1", "out_of_order": "1"} == values["odometry"]
    assert inputs.snapshot(ns(1.12)).ego.stamp_ns == ns(1.1)


def test_a_looping_bag_starts_afresh():
    inputs = ready()
    for k in range(10, 21):
        instant(inputs.store, 0.1 * k)
        inputs.due(ns(0.1 * k))
        inputs.snapshot(ns(0.1 * k))
    instant(inputs.store, 0.5)
    assert inputs.store.restarts == 1
    assert inputs.due(ns(0.5))
    scene = inputs.snapshot(ns(0.5)).observation
    assert scene.stamp_ns == ns(0.5)
    assert len(scene.cameras) == 3  # the older instant is from another time
    assert inputs.snapshot(ns(0.5)).ego.map_from_ego[0] == pytest.approx(2.5)


def test_a_frozen_camera_is_named_and_heals(monkeypatch):
    monkeypatch.setattr(store, "FROZEN_AFTER", 3)
    inputs = ready()
    for k in range(10, 14):
        instant(inputs.store, 0.1 * k, shade=7)
    assert_refused(inputs, 1.3, "same image 4 times in a row: the camera is frozen")
    instant(inputs.store, 1.4, shade=8)
    assert inputs.snapshot(ns(1.4)).observation is not None


def image_status(stamps_s, now_s):
    """The status of the front camera whose images have these stamps."""
    inputs = ready()
    for number, stamp_s in enumerate(stamps_s):
        inputs.store.put("image:front", jpeg(stamp_s, "front", number % 200), ns(stamp_s))
    return status_of(inputs, "image front", now_s)


def test_lost_images_are_counted_and_said():
    status = image_status([1.0 + 0.1 * k for k in range(100) if k % 5 != 4], 10.8)
    assert int(status.values["lost"]) == pytest.approx(19, abs=2)
    assert status.level is Level.WARN
    assert "config/fastdds.xml" in status.message


EVERY_TENTH = [1.0 + 0.1 * k for k in range(40)]  # until 4.9 s


def test_losses_are_shown_for_ten_seconds_and_stay_counted():
    lossy = [stamp for k, stamp in enumerate(EVERY_TENTH) if k % 10 != 9]
    assert image_status(lossy, 5.0).level is Level.WARN
    healed = image_status([*lossy, *(5.0 + 0.1 * k for k in range(150))], 20.0)
    assert (healed.level, healed.values["lost"]) == (Level.OK, "4")


@pytest.mark.parametrize("off_s", [0.3, 0.8, 3.0, 30.0])
def test_a_sender_that_is_started_again_has_lost_nothing_that_is_worth_a_warning(off_s):
    again = [EVERY_TENTH[-1] + off_s + 0.1 * k for k in range(30)]
    assert image_status([*EVERY_TENTH, *again], again[-1]).level is Level.OK


@pytest.mark.parametrize("period_s", [0.02, 0.05, 0.2, 0.3, 0.5])
def test_a_sender_with_another_rate_has_lost_nothing(period_s):
    other = [EVERY_TENTH[-1] + period_s * (k + 1) for k in range(40)]
    status = image_status([*EVERY_TENTH, *other], other[-1])
    assert (status.level, status.values["lost"]) == (Level.OK, "0")


def test_a_clock_that_is_set_counts_neither_in_the_rate_nor_as_lost():
    status = image_status([*EVERY_TENTH, *(1.8e9 + 0.1 * k for k in range(6))], 1.8e9 + 0.5)
    assert float(status.values["rate_hz"]) == pytest.approx(10.0, rel=1e-3)
    assert status.values["lost"] == "0"


def test_a_planner_that_reads_no_camera_says_nothing_of_cameras():
    for planner, cameras in (("reflexdiffusion", {}), ("route_follower", {"cameras__required": False})):
        inputs = Inputs(config(planner=planner, inputs__lights_type="none", **cameras))
        instant(inputs.store, 1.0, cameras=())
        assert not [status.name for status in inputs.statuses(ns(9.0)) if "image" in status.name]
    waiting = Inputs(config(planner="route_follower"))  # cameras.required: the car stops without images
    assert {s.level for s in waiting.statuses(ns(1.0)) if s.name.startswith("image")} == {Level.ERROR}


@pytest.mark.parametrize("expected", [False, True])
def test_a_limit_of_the_operator_that_is_expected_is_missed(expected):
    inputs = Inputs(small(inputs__expect_max_velocity=expected))
    status = status_of(inputs, "max_velocity", 1.0)
    assert (status is not None) == expected
    if status is not None:
        assert (status.level, status.message) == (Level.WARN, "max_velocity: nothing received yet")
        inputs.store.put("max_velocity", VelocityLimit(max_velocity=5.0), ns(1.0))
        assert status_of(inputs, "max_velocity", 1.1).level is Level.OK


def test_ignored_objects_are_in_the_diagnostics():
    inputs = ready()
    instant(inputs.store, 1.0)
    inputs.store.put("objects", predicted_objects(1.05, (20.0, 0.0, 0.0, 0.0, 100.0)), ns(1.05))
    inputs.snapshot(ns(1.05))
    status = status_of(inputs, "objects", 1.05)
    assert status.level is Level.WARN
    assert "ignored: 1 longer than 40 m" in status.message


def test_objects_too_large_to_be_read_are_unknown_until_the_next_ones_and_of_routes_the_one_before_stays():
    inputs = ready(inputs__message_max_mb=0.1)
    instant(inputs.store, 1.0)
    assert inputs.snapshot(ns(1.05)).agents is not None
    inputs.store.receive("objects", bytes(110_000), ns(1.06))
    instant(inputs.store, 1.1, objects=False)
    snapshot = inputs.snapshot(ns(1.1))
    assert snapshot.observation is not None
    assert snapshot.agents is None  # unknown, not none
    status = status_of(inputs, "objects", 1.1)
    assert "0.11 MB is not read" in status.message
    assert "inputs.message_max_mb" in status.message
    instant(inputs.store, 1.2)
    assert inputs.snapshot(ns(1.2)).agents is not None
    inputs.store.receive("route", bytes(120_000), ns(1.25))
    instant(inputs.store, 1.3)
    assert inputs.snapshot(ns(1.3)).observation is not None
    status = status_of(inputs, "route", 1.3)
    assert status.level is Level.WARN
    assert "a message of 0.12 MB is not read, at most 0.1 MB are" in status.message
    assert "the one before it stays in use" in status.message


@pytest.mark.parametrize(
    ("points", "words"),
    [
        ([], "the route has 0 points"),
        ([(0.0, 0.0)], "the route has 1 points"),
        ([(3.0, 3.0)] * 4, "all points of the route are equal"),
        ([(0.0, 0.0), (float("nan"), 1.0)], "the route holds NaN"),
        # the engine samples the part beside the car every metre: this one filled 22 GB
        ([(-6e8, 0.0), (6e8, 0.0)], "the route is 1.2e+06 km long, at most 1000 km are followed"),
    ],
)
def test_a_route_without_a_way_is_a_sentence(points, words):
    inputs = ready()
    instant(inputs.store, 1.0)
    inputs.store.put("route", route(points), ns(1.0))
    assert_refused(inputs, 1.0, words)
    assert levels(inputs, 1.0)["route"] is Level.ERROR


@pytest.mark.parametrize("is_sent_again", [False, True])
def test_a_route_that_crosses_itself_is_followed_in_order(is_sent_again):
    """A figure of eight: at the crossing the car stays on the branch it came along, also with a new route there."""
    t = np.linspace(0.0, 2 * np.pi, 400)
    eight = np.stack([80 * np.sin(t), 80 * np.sin(t) * np.cos(t)], axis=1)
    inputs = Inputs(small(cameras__required=False))
    inputs.store.put("route", route(eight), 0)
    for k, index in enumerate(range(150, 260, 2)):
        dx, dy = eight[index + 1] - eight[index]
        x, y = eight[index] + np.array([-dy, dx]) / np.hypot(dx, dy)  # 1 m to the left: the other branch is nearer
        seconds = 1.0 + 0.1 * k
        if is_sent_again:
            inputs.store.put("route", route(eight), ns(seconds))
        inputs.store.put(
            "odometry", odometry(seconds, x=x, y=y, yaw=float(np.arctan2(dy, dx)), speed=35.0), ns(seconds)
        )
        ahead = inputs.snapshot(ns(seconds)).observation.route
        near = ahead[np.argmin(np.hypot(ahead[:, 0] - 10.0, ahead[:, 1]))]
        assert abs(near[2]) < 0.7, f"turned off at the crossing, step {k}"


def test_the_command_follows_from_the_bend_of_the_route():
    x = np.arange(0.0, 60.0)
    straight = np.stack([x, 0 * x, 0 * x], axis=1)
    assert command_along(straight) is Command.FOLLOW
    for side, command in ((1.0, Command.LEFT), (-1.0, Command.RIGHT)):
        turned = np.array([(10.0, side * k, side * np.pi / 2) for k in range(1, 40)])
        assert command_along(np.concatenate([straight[:11], turned])) is command


def test_the_planning_core_stops_with_the_reason_when_a_camera_is_missing():
    core = driving()
    instant(core, 1.0)
    assert core.step(ns(1.0)).report.source is PlanSource.PLANNER
    instant(core, 1.3, cameras=("front_left", "front"))
    report = core.step(ns(1.5)).report
    assert (report.verdict, report.source) == (Verdict.INFEASIBLE, PlanSource.STOP)
    assert "front_right" in report.reason
    assert core.statuses(ns(1.5))[-1].level is Level.ERROR


def test_the_planner_is_ok_while_it_drives_and_unknown_objects_are_unchecked_not_free():
    """Its message does not name the kind of step, which changes faster than diagnostics are sent."""
    core = driving()
    instant(core, 1.0)
    core.step(ns(1.0))
    planner = status_of(core, "planner", 1.0)
    assert (planner.level, planner.message) == (Level.OK, "planner's plan sent")
    assert planner.values["step"] == planner.values["planned"] == "baseline"
    core = driving()
    instant(core, 1.0, objects=False)
    core.step(ns(1.0))
    planner = status_of(core, "planner", 1.0)
    assert planner.level is Level.WARN
    assert "unchecked" in planner.message


def test_a_plan_begun_before_time_went_back_is_known_as_such():
    """Sent late, it must not count as newer than the plans of the restarted clock."""
    core = driving()
    instant(core, 10.0)
    before = core.step(ns(10.0))
    instant(core, 1.0)
    after = core.step(ns(1.0))
    assert (before.restarts, before.report.plan.stamp_ns) < (after.restarts, after.report.plan.stamp_ns)
    assert after.report.source is PlanSource.PLANNER


# --- stamps that are no times of this clock --------------------------------------------------------------------------

WALL_S = 1.8e9


def test_simulated_time_without_a_clock_is_named_before_anything_is_received_and_afterwards():
    core = driving()
    planner = status_of(core, "planner", 0.0)
    assert (planner.level, planner.message) == (Level.ERROR, NO_CLOCK)
    assert status_of(core, "planner", 0.1).message.startswith("image front_left: nothing received yet")
    instant(core, 5.0)  # stamps of a bag or a simulator; our time stands at 0
    assert status_of(core, "odometry", 0.0).level is Level.ERROR
    assert core.problems(0) == NO_CLOCK
    assert NO_CLOCK in core.step(0).snapshot.problems[0]
    assert core.problems(ns(5.0)) == ""


@pytest.mark.parametrize(
    ("stamps_s", "now_s", "sentence"),
    [
        ([0.0] * 10, WALL_S, "its stamp is 0: the sender must set header.stamp"),
        ([0.0] * 5 + [WALL_S] * 5, WALL_S, ""),  # a driver that gets its time late
        ([WALL_S] * 10, WALL_S + 0.05, ""),  # equal stamps
        ([12.0 + 1e-9 * k for k in range(10)], 12.1, ""),
        ([WALL_S - 4e8 + 0.1 * k for k in range(10)], WALL_S, "set use_sim_time to true for a bag"),
        ([WALL_S + 0.1 * k for k in range(10)], 12.0, "and to false for sensors"),
        ([WALL_S + 0.1 * k for k in range(10)], 0.0, NO_CLOCK),
        ([12.0 + 0.1 * k for k in range(5)] + [WALL_S + 0.1 * k for k in range(6)], WALL_S + 0.5, ""),  # it is set
    ],
    ids=["0", "0 at first", "equal", "a nanosecond apart", "an old bag", "sensors and /clock", "no /clock", "a jump"],
)
def test_no_rate_and_no_age_is_one_that_no_sensor_has(stamps_s, now_s, sentence):
    inputs = Inputs(small())
    for number, stamp_s in enumerate(stamps_s):
        info = camera_info("front")
        info.header.stamp = odometry(stamp_s).header.stamp
        inputs.store.put("info:front", info, ns(now_s))
        inputs.store.put("odometry", odometry(stamp_s), ns(now_s))
        inputs.store.put("image:front", jpeg(stamp_s, "front", number), ns(now_s))
    statuses = {status.name: status for status in inputs.statuses(ns(now_s))}
    assert sentence in statuses["odometry"].message
    assert sentence in statuses["image front"].message
    assert (statuses["camera_info front"].level, statuses["camera_info front"].values["lost"]) == (Level.OK, "0")
    for status in statuses.values():
        numbers = [float(status.values.get(key, "nan")) for key in ("age_s", "rate_hz")]
        numbers += [float(value) for value in re.findall(r"[\d.]+(?= Hz| s )", status.message)]
        assert not [number for number in numbers if abs(number) > 86_400.0], status


def test_refused_camera_info_is_not_counted_as_lost():
    inputs = ready()
    for k in range(20):
        inputs.store.put("info:front", camera_info("front"), ns(0.1 * k))
        if k % 5 == 4:
            for _ in range(3):
                inputs.store.receive("info:front", b"\0", ns(0.1 * k))
    values = {status.name: status.values for status in inputs.statuses(ns(9.0))}["camera_info front"]
    assert (values["refused"], values["lost"]) == ("12", "0")


# --- what no car does ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda m: setattr(m.header, "frame_id", "odom"), "odometry is in frame 'odom', expected 'map'"),
        (lambda m: setattr(m.pose.pose.orientation, "w", 0.0), "odometry cannot be used: quaternion"),
        (lambda m: setattr(m.pose.pose.position, "x", float("nan")), "odometry cannot be used: "),
        (lambda m: setattr(m.pose.pose.position, "y", float("-inf")), "odometry cannot be used: "),
        (lambda m: setattr(m.twist.twist.linear, "x", float("nan")), "odometry cannot be used: "),
        (lambda m: setattr(m.twist.twist.linear, "x", 1e9), "a speed of 1e+09 m/s, at most 100"),
        (lambda m: setattr(m.twist.twist.linear, "x", -1e300), "a speed of -1e+300 m/s"),
        (lambda m: setattr(m.twist.twist.linear, "y", 40.0), "a speed to the side of 40 m/s, at most 8"),
        (lambda m: setattr(m.twist.twist.linear, "y", float("nan")), "a speed to the side of nan m/s"),
        (lambda m: setattr(m.twist.twist.angular, "z", 1e6), "a yaw rate of 1e+06 rad/s, at most 5"),
        (lambda m: setattr(m.pose.pose.position, "x", 1e300), "a position of 1e+300 m"),
        (lambda m: (setattr(m.pose.pose.orientation, "x", 1.0), setattr(m.pose.pose.orientation, "w", 0.0)),
         "a tilt of 180 degrees, at most 45"),
    ],
)  # fmt: skip
def test_odometry_of_what_no_car_does_is_refused_in_one_sentence(change, sentence, caplog):
    core = blind()
    message = odometry(1.0, x=5.0)
    change(message)
    core.put("odometry", message, ns(1.0))
    step = core.step(ns(1.0))
    assert step.report is None  # nothing can be planned from it, not even a stop
    assert any(sentence in problem for problem in step.snapshot.problems)
    status = status_of(core, "odometry", 1.0)
    assert status.level is Level.ERROR
    assert sentence in status.message
    assert not caplog.records  # no traceback
    core.put("odometry", odometry(1.1, x=5.5), ns(1.1))
    assert core.step(ns(1.1)).report.verdict is Verdict.OK


@pytest.mark.parametrize(
    ("value", "words"),
    [(-1000.0, "at most 20 is possible"), (1e300, "at most 20 is possible"), (float("nan"), "acceleration is NaN")],
)
def test_an_acceleration_of_what_no_car_does_counts_as_none_and_is_said(value, words, caplog):
    core = blind("route_follower")
    core.put("odometry", odometry(1.0), ns(1.0))
    core.put("acceleration", acceleration(1.0, value), ns(1.0))
    step = core.step(ns(1.0))
    assert step.snapshot.ego.acceleration_mps2 == 0.0
    status = status_of(core, "acceleration", 1.0)
    assert status.level is Level.WARN
    assert words in status.message
    assert not caplog.records


@pytest.mark.parametrize("speed", [-5.0, 0.0, 40.0])
def test_reverse_standing_and_fast_driving_are_allowed(speed):
    inputs = Inputs(small(cameras__required=False))
    inputs.store.put("route", route(), 0)
    for k in range(10):  # at 25 Hz
        seconds = 1.0 + 0.04 * k
        inputs.store.put("odometry", odometry(seconds, x=30.0 + 0.04 * speed * k, speed=speed), ns(seconds))
    snapshot = inputs.snapshot(ns(seconds))
    assert snapshot.observation.ego.speed_mps == speed
    assert inputs.store.restarts == 0
    assert levels(inputs, seconds)["odometry"] is Level.OK


def test_a_jump_of_localisation_begins_anew_and_is_said():
    core = blind("route_follower", [(float(x), 0.0) for x in range(-10, 1000)])
    for k, x in enumerate([5.0, 5.5, 6.0, 306.0, 306.5]):
        now_s = 1.0 + 0.1 * k
        core.put("objects", predicted_objects(now_s, (x + 60.0, 0.0, 0.0, 5.0, 4.5)), ns(now_s))
        core.put("odometry", odometry(now_s, x=x), ns(now_s))
        step = core.step(ns(now_s))
        assert step.report.source is PlanSource.PLANNER
        if x == 306.0:  # the objects that were told of before it are somewhere else
            assert step.snapshot.agents is None
            assert step.restarts == 1
    assert step.snapshot.agents is not None
    status = status_of(core, "odometry", now_s)
    assert status.level is Level.WARN
    assert "localisation jumped by 300 m within 0.10 s" in status.message


def test_localisation_that_jumps_again_and_again_stops_the_car():
    core = blind()
    for k in range(25):
        now_s = 1.0 + 0.04 * k
        core.put("odometry", odometry(now_s, x=5.0 + 300.0 * (k % 2)), ns(now_s))
        step = core.step(ns(now_s))
    assert step.report.source is PlanSource.STOP
    assert "localisation jumped 3 times within 2 s" in step.report.reason
    assert status_of(core, "odometry", now_s).level is Level.ERROR
    for k in range(30):
        now_s = 2.0 + 0.1 * k
        core.put("odometry", odometry(now_s, x=5.0 + 0.5 * k), ns(now_s))
        step = core.step(ns(now_s))
    assert step.report.source is PlanSource.PLANNER
