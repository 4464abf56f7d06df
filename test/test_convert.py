"""Messages become domain types or a sentence: never a traceback, never a quietly wrong number."""

import cv2
import numpy as np
import pytest
from autoware_perception_msgs.msg import ObjectClassification, TrackedObject, TrackedObjects
from hypothesis import given
from hypothesis import strategies as st
from messages import camera_info, image, jpeg, ns, odometry, predicted_objects, raw, route, tf_static
from scenes import ego

from reflectdrive_ros.core.domain import AgentKind
from reflectdrive_ros.core.messages import BadMessage
from reflectdrive_ros.ros import convert, image_decoding, outputs, rotations

HERE = np.zeros(2)


def agents_of(message, extent=40.0, count=500):
    return convert.map_agents(message, "map", HERE, extent, count)


def test_odometry_becomes_the_ego_state():
    state = convert.ego_state(odometry(3.25, 10.0, -4.0, 0.7, 6.5, frame="/map"), "map")
    assert (state.stamp_ns, state.speed_mps) == (ns(3.25), 6.5)
    np.testing.assert_allclose(state.map_from_ego, [10.0, -4.0, 0.7], atol=1e-12)


def test_a_long_route_is_thinned_but_keeps_its_ends(monkeypatch):
    monkeypatch.setattr(convert, "ROUTE_POINTS_MAX", 100)
    poses = convert.path_route(route([(float(x), 0.0) for x in range(1001)]), "map")
    assert len(poses) <= 101
    assert (poses[0, 0], poses[-1, 0]) == (0.0, 1000.0)


# --- images --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("data", [b"", b"\xff\xd8\xff\xe0 no jpeg at all"])
def test_bytes_that_are_not_an_image_are_refused(data):
    message = jpeg(1.0)
    del message.data[:]
    message.data.frombytes(data)
    with pytest.raises(BadMessage, match="are not an image"):
        image_decoding.jpeg_pixels(message, "front")


def smooth_image(width, height):
    """(H, W, 3) uint8 of slow waves, so that what is averaged is no accident of a pixel."""
    across, down = np.arange(width) / width, np.arange(height)[:, None] / height
    waves = [np.sin(2 * np.pi * (a * across + b * down)) for a, b in ((3, 1), (1, 2), (2, 3))]
    return (127.5 + 120 * np.stack(waves, -1)).astype(np.uint8)


@pytest.mark.parametrize(
    ("size", "reduction"), [((384, 216), 1), ((640, 360), 2), ((1280, 720), 4), ((1920, 1080), 4), ((3840, 2160), 8)]
)
def test_a_large_image_is_decoded_smaller_and_looks_the_same(monkeypatch, size, reduction):
    pixels, reductions, decoded = smooth_image(*size), [], image_decoding.jpeg_pixels
    monkeypatch.setattr(image_decoding, "jpeg_pixels", lambda *args: reductions.append(args[2]) or decoded(*args))
    expected = cv2.resize(pixels, (192, 96), interpolation=cv2.INTER_AREA).astype(int)
    for message in (jpeg(1.0, pixels=pixels), raw(1.0, pixels=pixels)):
        pixels_small, scale = image_decoding.pixels(message, "front", 192, 96)
        assert np.abs(pixels_small - expected).max() <= 6
        assert scale == pytest.approx((192 / size[0], 96 / size[1]))
    assert reductions == [reduction]


@given(st.integers(16, 3000), st.integers(16, 2000))
def test_images_of_any_size_are_brought_to_the_asked_one(width, height):
    pixels, scale = image_decoding.pixels(
        jpeg(1.0, pixels=np.full((height, width, 3), (90, 120, 30), np.uint8)), "front", 64, 36
    )
    assert pixels.shape == (36, 64, 3)
    np.testing.assert_allclose(pixels.reshape(-1, 3).mean(0), (90, 120, 30), atol=3)
    np.testing.assert_allclose(scale, (64 / width, 36 / height), rtol=8 / min(width, height))


def test_a_jpeg_tells_its_size_behind_whatever_stands_before_it():
    data = bytes(jpeg(1.0, pixels=np.zeros((90, 160, 3), np.uint8)).data)
    assert image_decoding.jpeg_size(data) == (160, 90)
    comment = b"\xff\xfe\x00\x10" + 14 * b"x"
    assert image_decoding.jpeg_size(data[:2] + comment + b"\xff" + data[2:]) == (160, 90)
    for broken in (b"", b"\xff\xd8", data[:100], b"\x89PNG" + data, data[:2] + comment[:3]):
        assert image_decoding.jpeg_size(broken) is None


def test_a_living_camera_has_changing_digests():
    assert image_decoding.digest(jpeg(1.0, shade=1)) == image_decoding.digest(jpeg(2.0, shade=1))
    assert image_decoding.digest(jpeg(1.0, shade=1)) != image_decoding.digest(jpeg(2.0, shade=2))
    assert image_decoding.digest(raw(1.0, pixels=image(1))) != image_decoding.digest(raw(1.0, pixels=image(2)))


def test_a_point_ahead_lands_in_the_middle_of_the_image():
    transforms = convert.static_transforms(tf_static())
    camera_from_ego = convert.camera_from_ego(transforms, "front", "front_optical")
    in_camera = camera_from_ego @ np.array([10.0, 0.0, 1.5, 1.0])
    np.testing.assert_allclose(in_camera[:3], [0.0, 0.0, 10.0], atol=1e-9)
    u, v, w = convert.intrinsics(camera_info(), "front") @ in_camera[:3]
    assert (u / w, v / w) == pytest.approx((32.0, 18.0))


@pytest.mark.parametrize(
    ("entry", "value", "words"),
    [
        (0, 0.0, "no focal length; calibrate it or fill k"),
        (0, 2.8e306, r"2.8e\+306 px in k, allowed 1e\+06"),  # times the scale of the image it is infinite
        (5, 5e306, ".* px in k, allowed"),
        (4, 1.1e6, ".* px in k, allowed"),
        (2, -1.1e6, ".* px in k, allowed"),
    ],
)
def test_an_intrinsic_matrix_that_cannot_be_used_is_refused(entry, value, words):
    message = camera_info()
    message.k[entry] = value
    with pytest.raises(BadMessage, match=f"camera front: camera_info has {words}"):
        convert.intrinsics(message, "front")


@pytest.mark.parametrize("transforms", [{}, {"a": ("b", np.eye(4)), "b": ("a", np.eye(4))}], ids=["none", "a circle"])
def test_a_camera_without_a_pose_on_the_car_is_refused(transforms):
    with pytest.raises(BadMessage, match="camera left: /tf_static has no transform from base_link to 'a'"):
        convert.camera_from_ego(transforms, "left", "a")


# --- other road users ------------------------------------------------------------------------------------------------


def test_objects_keep_their_place_speed_and_prediction():
    map_agents = agents_of(predicted_objects(1.0, (20.0, 3.0, 0.5, 4.0, 4.5)))
    np.testing.assert_allclose(map_agents.agents.poses, [[20.0, 3.0, 0.5]], atol=1e-9)
    np.testing.assert_allclose(map_agents.agents.velocities_mps, [[4 * np.cos(0.5), 4 * np.sin(0.5)]])
    np.testing.assert_allclose(map_agents.agents.predicted_poses[0, 3, :2], [20 + 8 * np.cos(0.5), 3 + 8 * np.sin(0.5)])
    assert map_agents.agents.kinds[0] == AgentKind.VEHICLE
    assert map_agents.ignored == {}


def test_prediction_goes_on_at_constant_velocity_where_a_path_ends():
    message = predicted_objects(1.0, (20.0, 0.0, 0.0, 4.0, 4.5))
    path = message.objects[0].kinematics.predicted_paths[0]
    path.path = path.path[:5]  # 2 s
    ends = agents_of(message).agents.predicted_poses[0, :, 0]
    np.testing.assert_allclose(ends, 20.0 + 4.0 * 0.5 * np.arange(1, 11))


def test_bad_objects_are_left_out_by_reason_and_the_others_stay():
    """Numbers near the largest there are are finite, but what is reckoned with them is not."""
    message = predicted_objects(1.0, *[(10.0 * k, 0.0, 0.0, 1.0, 4.5) for k in range(1, 10)])
    items = message.objects
    items[0].kinematics.initial_pose_with_covariance.pose.position.x = float("nan")
    items[1].kinematics.initial_pose_with_covariance.pose.orientation.w = 0.0
    items[2].shape.dimensions.x = 0.0
    items[3].shape.dimensions.x = 100.0
    items[4].classification[0].label = ObjectClassification.OVER_DRIVABLE
    items[5].kinematics.initial_twist_with_covariance.twist.linear.y = -1.7976931348623157e308
    items[6].kinematics.initial_pose_with_covariance.pose.position.x = 1e308
    items[7].kinematics.predicted_paths[0].path[3].position.y = 1e308
    map_agents = agents_of(message)
    np.testing.assert_allclose(map_agents.agents.poses[:, 0], [80.0, 90.0])
    assert np.abs(map_agents.agents.predicted_poses).max() < 100.0  # of that path nothing is believed
    reasons = ("not finite", "no orientation", "no size", "longer than 40 m", "driven over", "faster than 150 m/s")
    assert map_agents.ignored == dict.fromkeys((*reasons, "farther than 100 km"), 1)
    assert len(agents_of(predicted_objects(1.0)).agents) == 0


def test_the_nearest_objects_are_kept():
    map_agents = agents_of(
        predicted_objects(1.0, *[(float(x), 0.0, 0.0, 0.0, 4.5) for x in range(100, 0, -1)]), count=10
    )
    np.testing.assert_allclose(map_agents.agents.poses[:, 0], np.arange(1.0, 11.0))
    assert map_agents.ignored == {"beyond the nearest 10": 90}


def test_tracked_objects_are_read_too():
    message = TrackedObjects(header=outputs.header(ns(1.0), "map"))
    item = TrackedObject()
    item.kinematics.pose_with_covariance.pose.position.x = 12.0
    item.kinematics.pose_with_covariance.pose.orientation.w = 1.0
    item.kinematics.twist_with_covariance.twist.linear.x = 2.0
    item.shape.dimensions.x, item.shape.dimensions.y = 4.0, 2.0
    message.objects.append(item)
    agents = agents_of(message).agents
    np.testing.assert_allclose(agents.poses, [[12.0, 0.0, 0.0]])
    assert agents.predicted_poses is None


def test_objects_are_moved_on_to_the_moment_of_the_ego():
    """A car at 15 m/s seen 0.2 s ago is 3 m further now."""
    map_agents = agents_of(predicted_objects(1.0, (20.0, 0.0, 0.0, 15.0, 4.5)))
    agents = convert.agents_to_ego_frame(map_agents, ego(5.0, ns(1.2), (10.0, 0.0, 0.0)))
    assert agents.poses[0, 0] == pytest.approx(20.0 + 3.0 - 10.0)
    assert agents.predicted_poses[0, 0, 0] == pytest.approx(13.0 + 7.5)


def test_objects_turn_with_the_ego():
    map_agents = agents_of(predicted_objects(1.0, (0.0, 20.0, np.pi / 2, 3.0, 4.5)))
    agents = convert.agents_to_ego_frame(map_agents, ego(5.0, ns(1.0), (0.0, 0.0, np.pi / 2)))
    np.testing.assert_allclose(agents.poses, [[20.0, 0.0, 0.0]], atol=1e-9)
    np.testing.assert_allclose(agents.velocities_mps, [[3.0, 0.0]], atol=1e-9)


@pytest.mark.parametrize("yaw", [-3.0, -0.4, 0.0, 1.2, 3.1])
def test_quaternions_round_trip(yaw):
    assert rotations.yaw_from_quaternion(rotations.quaternion_from_yaw(yaw)) == pytest.approx(yaw)
    matrix = rotations.matrix_from_quaternion(rotations.quaternion_from_yaw(yaw))
    np.testing.assert_allclose(
        rotations.matrix_from_quaternion(rotations.quaternion_from_matrix(matrix)), matrix, atol=1e-12
    )
