"""The proving ground on the car's topics: messages equal the state of the world, and plans are followed."""

import sys
import threading
import time
from dataclasses import replace

import numpy as np
import pytest
import rclpy
from rclpy.qos import DurabilityPolicy, QoSCompatibility, ReliabilityPolicy, qos_check_compatible

from reflectdrive_ros.core import geometry
from reflectdrive_ros.core.config import Config, override_dotted
from reflectdrive_ros.core.domain import Plan, StepKind, Trajectory
from reflectdrive_ros.core.kinematics import speeds
from reflectdrive_ros.core.messages import BadMessage
from reflectdrive_ros.demo import world_messages
from reflectdrive_ros.demo.world_messages import Sender, car_topics, is_route_current, plan_from_message
from reflectdrive_ros.demo.world_node import WorldNode, new_context, spin_in_background
from reflectdrive_ros.ros import convert, image_decoding, outputs
from reflectdrive_ros.ros.plan_publisher import qos_profile
from reflectdrive_ros.ros.topics import message_class
from reflectdrive_ros.sim.render import camera
from reflectdrive_ros.sim.traffic.actors import KIND_OF_SHAPE, Actors, ActorShape
from reflectdrive_ros.sim.world import World, WorldOptions

SMALL = override_dotted(Config(), {"cameras.width": 96, "cameras.height": 54})
RIG = camera.rig(96, 54)
AHEAD = Trajectory(np.column_stack([0.5 * np.arange(1, 81), np.zeros(80), np.zeros(80)]), 0.1)


@pytest.fixture(scope="module")
def world():
    """One town for all: a process holds one world at a time."""
    with World(WorldOptions(seed=3)) as world_3:
        yield world_3


# --- messages --------------------------------------------------------------------------------------------------------


def messages_of(world):
    """Everything that is sent at the beginning, by key."""
    sender, frames = Sender(), world.render_images(RIG)
    everything = (*sender.introduction(world, frames), *sender.messages(world), *sender.images(frames))
    return dict(everything), frames


def test_a_planner_reads_back_the_world_as_it_is(world):
    messages, frames = messages_of(world)
    ego = convert.ego_state(messages["odometry"], "map")
    np.testing.assert_allclose(ego.map_from_ego, world.ego.map_from_ego, atol=1e-9)
    assert ego.stamp_ns == world.stamp_ns
    assert ego.speed_mps == world.ego.speed_mps
    assert convert.acceleration(messages["acceleration"]) == world.ego.acceleration_mps2
    np.testing.assert_allclose(convert.path_route(messages["route"], "map")[:, :2], world.route[:, :2])
    transforms = convert.static_transforms(messages["tf_static"])
    for frame in frames:
        mounted = convert.camera_from_ego(transforms, frame.name, messages[f"image:{frame.name}"].header.frame_id)
        np.testing.assert_allclose(mounted, frame.camera_from_ego, atol=1e-9)
        info = messages[f"info:{frame.name}"]
        np.testing.assert_allclose(convert.intrinsics(info, frame.name), frame.pixels_from_camera)
        pixels = image_decoding.jpeg_pixels(messages[f"image:{frame.name}"], frame.name)
        assert np.abs(pixels.astype(int) - frame.pixels).mean() < 6  # JPEG


def test_road_users_in_range_are_published_with_pose_speed_size_and_kind():
    shapes = np.array(list(ActorShape))
    count = len(shapes)
    poses = np.column_stack([10.0 * np.arange(count), np.full(count, -4.0), np.linspace(-3, 3, count)])
    sizes = np.column_stack([np.linspace(0.3, 9, count), np.linspace(0.2, 2.5, count), np.full(count, 1.5)])
    off = np.zeros(count, np.int64)
    actors = Actors(np.arange(count), poses, np.linspace(0, 9, count), sizes, shapes, off.astype(bool), off)
    message = world_messages.objects(actors, 5_000_000_000, np.array([50.0, 0.0, 0.3]), "map")
    objects = convert.map_agents(message, "map", poses[0, :2], 60.0, 100)
    assert not objects.ignored
    np.testing.assert_allclose(objects.agents.poses, poses, atol=1e-6)
    np.testing.assert_allclose(np.hypot(*objects.agents.velocities_mps.T), actors.speeds_mps, atol=1e-6)
    np.testing.assert_allclose(objects.agents.sizes, sizes[:, :2], atol=1e-6)
    two_wheels = shapes == ActorShape.MOTORCYCLE  # Autoware's motorcycle counts among the bicycles
    hazards = np.isin(shapes, [ActorShape.CONE, ActorShape.BARRIER, ActorShape.DOOR])
    expected = np.array([KIND_OF_SHAPE[ActorShape(shape)] for shape in shapes])
    assert (objects.agents.kinds == expected)[~two_wheels].all()
    assert hazards.any()
    ahead = objects.agents.predicted_poses[:, 1, :2] - poses[:, :2]  # a second from now
    np.testing.assert_allclose(ahead, objects.agents.velocities_mps, atol=1e-6)
    far_away = np.array([poses[:, 0].max() + world_messages.PERCEPTION_RANGE_M + 5.0, 0.0, 0.0])
    assert not world_messages.objects(actors, 5_000_000_000, far_away, "map").objects


def test_a_plan_survives_the_conversion_to_a_message_and_back():
    ego = np.array([300.0, -40.0, 2.5])
    turned = 0.05 * np.arange(1, 81)
    poses = np.column_stack([20 * np.sin(turned), 20 * (1 - np.cos(turned)), turned])
    sent = Plan(7_100_000_000, ego, Trajectory(poses, 0.1), StepKind.BASELINE)
    back = plan_from_message(outputs.trajectory(sent, Config()), ego, "map")
    assert back.stamp_ns == sent.stamp_ns
    np.testing.assert_allclose(back.trajectory.poses[:, :2], poses[:, :2], atol=1e-9)
    np.testing.assert_allclose(geometry.wrap(back.trajectory.poses[:, 2] - poses[:, 2]), 0.0, atol=1e-9)
    np.testing.assert_allclose(speeds(back.trajectory), speeds(sent.trajectory), atol=1e-6)


def test_a_plan_that_cannot_be_followed_is_one_sentence():
    plan = Plan(1, np.zeros(3), Trajectory(np.ones((5, 3)), 0.1))
    message = outputs.trajectory(plan, Config())
    with pytest.raises(BadMessage, match="frame 'map', expected 'odom'"):
        plan_from_message(message, np.zeros(3), "odom")
    message.points[2].pose.position.x = float("nan")
    with pytest.raises(BadMessage, match=r"cannot be followed: Trajectory\.poses holds NaN"):
        plan_from_message(message, np.zeros(3), "map")
    message.points = message.points[:1]
    with pytest.raises(BadMessage, match="has 1 points"):
        plan_from_message(message, np.zeros(3), "map")


def straight(begin, end, offset=0.0):
    x = np.arange(begin, end + 0.1, 2.0)
    return np.column_stack([x, np.full(len(x), offset), np.zeros(len(x))])


def test_a_route_is_sent_again_when_it_ends_near_or_leads_elsewhere():
    sent = straight(-30, 250)
    assert is_route_current(sent, straight(70, 350), np.array([100.0, 0.3, 0.0]))
    assert not is_route_current(sent, straight(110, 390), np.array([140.0, 0.3, 0.0]))  # only 110 m are left of it
    assert not is_route_current(sent, straight(-30, 250, offset=3.5), np.zeros(3))  # the next lane
    bend = straight(-30, 250)
    bend[80:, 1] += np.linspace(0, 40, len(bend) - 80)  # turns off 130 m ahead
    assert not is_route_current(sent, bend, np.zeros(3))
    assert is_route_current(
        straight(-30, 60), straight(-10, 60), np.array([20.0, 0.0, 0.0])
    )  # the road ends there anyway


# --- topics ----------------------------------------------------------------------------------------------------------


def test_a_context_of_our_own_does_not_read_the_command_line(monkeypatch):
    """ROS refuses words that are not UTF-8, as the name of a bag may be."""
    monkeypatch.setattr(sys, "argv", ["reflectdrive", "replay", "b\udcffg"])
    context = new_context()
    assert context.ok()
    context.shutdown()


@pytest.mark.dds
def test_every_input_is_published_as_the_node_listens_with_rising_stamps(world):
    """Each subscription has the QoS of the topic table."""
    context = new_context()
    node = WorldNode(world, SMALL, RIG, context=context)
    ear = rclpy.create_node("ear", context=context)
    received = {topic.key: [] for topic in car_topics(SMALL)}
    for topic in car_topics(SMALL):
        ear.create_subscription(
            message_class(topic.type), topic.name, received[topic.key].append, qos_profile(topic.qos)
        )
    with spin_in_background(node, ear, context=context):
        until = time.perf_counter() + 15.0
        while time.perf_counter() < until and not all(p.get_subscription_count() for p in node.inputs.values()):
            time.sleep(0.05)
        begin_ns = world.stamp_ns
        moments = list(node.drive(1.0))
        time.sleep(0.3)
        for topic in car_topics(SMALL):
            (offered,) = ear.get_publishers_info_by_topic(topic.name)
            assert qos_check_compatible(offered.qos_profile, qos_profile(topic.qos))[0] != QoSCompatibility.ERROR
            latched = topic.qos.value[1] == "transient_local"
            assert (offered.qos_profile.durability == DurabilityPolicy.TRANSIENT_LOCAL) == latched
            assert (offered.qos_profile.reliability == ReliabilityPolicy.RELIABLE) == (topic.qos.value[0] == "reliable")
    assert len(moments) == 10
    for topic in car_topics(SMALL):
        assert received[topic.key], f"nothing came for {topic.key}"
    for key, messages in received.items():
        stamps = [convert.stamp_ns(message.header) for message in messages if hasattr(message, "header")]
        assert all(np.diff(stamps[1:] if key.startswith("info") else stamps) > 0), key
        if key.startswith("image"):
            assert len(stamps) >= 8  # best effort, on a machine that may be busy
            assert set(stamps) <= {moment.stamp_ns for moment in moments}
    assert convert.stamp_ns(received["odometry"][0].header) == begin_ns


@pytest.mark.dds
def test_the_world_follows_the_newest_plan_and_brakes_without_one(world):
    """Plans of another drive are not followed, older ones do not replace newer ones, bad ones are left out."""
    context = new_context()
    node = WorldNode(world, SMALL, (), context=context)
    with spin_in_background(node, context=context):
        drive = node.drive(5.0, real_time=False)
        first = next(drive)
        assert first.plan is None
        plan = Plan(first.stamp_ns, world.ego.map_from_ego, AHEAD)
        node._take(outputs.trajectory(plan, SMALL))
        node._take(outputs.trajectory(replace(plan, stamp_ns=first.stamp_ns - 1), SMALL))  # nobody stood there then
        broken = outputs.trajectory(plan, SMALL)
        broken.points[3].pose.position.y = float("inf")
        node._take(broken)
        second = next(drive)
        assert (second.plan.stamp_ns, second.fresh) == (first.stamp_ns, False)
        np.testing.assert_allclose(second.plan.trajectory.poses, AHEAD.poses, atol=1e-6)
        newer = replace(plan, stamp_ns=second.stamp_ns, map_from_ego=world.ego.map_from_ego)
        node._take(outputs.trajectory(newer, SMALL))
        node._take(outputs.trajectory(plan, SMALL))
        assert next(drive).plan.stamp_ns == second.stamp_ns


@pytest.mark.dds
def test_lock_step_waits_for_the_plan_of_its_moment_and_no_longer(world, monkeypatch):
    monkeypatch.setattr("reflectdrive_ros.demo.world_node.LOCK_STEP_S", 0.4)
    context = new_context()
    node = WorldNode(world, SMALL, (), context=context)
    with spin_in_background(node, context=context):
        node.introduce()
        start_s = time.perf_counter()
        alone = next(node.drive(1.0, lock_step=True, real_time=False))
        assert not alone.fresh
        assert time.perf_counter() - start_s >= 0.4
        plan = Plan(world.stamp_ns, world.ego.map_from_ego, AHEAD)
        threading.Timer(0.5, node._take, [outputs.trajectory(plan, SMALL)]).start()
        monkeypatch.setattr("reflectdrive_ros.demo.world_node.LOCK_STEP_S", 5.0)
        assert next(node.drive(1.0, lock_step=True, real_time=False)).fresh
