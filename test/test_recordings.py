"""Recordings as ROS messages: nothing invented, nothing moved by accident."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from autoware_perception_msgs.msg import ObjectClassification
from rclpy.serialization import serialize_message

from reflectdrive_ros.core import geometry
from reflectdrive_ros.demo.recordings import RecordingError, open_recording
from reflectdrive_ros.features import reprojection
from reflectdrive_ros.ros import convert, rotations
from reflectdrive_ros.ros.bag import type_name_of
from reflectdrive_ros.ros.inputs import camera_rig

DATA = Path(__file__).parent / "data"
CAMERAS = {"front_left": "front_left_camera", "front": "front_camera", "front_right": "front_right_camera"}


def messages_by_topic(name):
    messages = {}
    for entry in open_recording(DATA / name).messages():
        messages.setdefault(entry.topic, []).append(entry.message)
    return messages


@pytest.fixture(scope="module")
def pandaset():
    return messages_by_topic("pandaset_002")


@pytest.fixture(scope="module")
def comma():
    return messages_by_topic("comma2k19_example")


@pytest.fixture(scope="module")
def source():
    with np.load(DATA / "pandaset_002" / "sequence.npz", allow_pickle=False) as file:
        return dict(file)


def stamp_ns(message):
    return convert.stamp_ns(message.header)


def matrix_of(pose):
    q, p = pose.orientation, pose.position
    matrix = rotations.matrix_from_quaternion((q.x, q.y, q.z, q.w))
    matrix[:3, 3] = p.x, p.y, p.z
    return matrix


def planar(pose):
    q = pose.orientation
    return np.array([pose.position.x, pose.position.y, rotations.yaw_from_quaternion((q.x, q.y, q.z, q.w))])


def map_from_base(pandaset):
    return [matrix_of(message.pose.pose) for message in pandaset["/localization/kinematic_state"]]


@pytest.mark.parametrize("camera", CAMERAS)
def test_images_carry_their_cameras_own_stamps_and_their_own_bytes(pandaset, source, camera):
    images = pandaset[f"/sensing/camera/{camera}/image/compressed"]
    infos = pandaset[f"/sensing/camera/{camera}/camera_info"]
    stamps = np.array([stamp_ns(image) for image in images])
    whole, broken = divmod(float(source["t_unix0"]), 1.0)
    own = (broken + source[f"{CAMERAS[camera]}_t"]) * 1e9
    np.testing.assert_allclose(stamps - int(whole) * 10**9, own, atol=1, rtol=0)
    assert [stamp_ns(info) for info in infos] == stamps.tolist()
    file = DATA / "pandaset_002" / "images" / CAMERAS[camera] / "37.jpg"
    assert bytes(images[37].data) == file.read_bytes()
    assert images[0].header.frame_id == infos[0].header.frame_id == f"{camera}_optical"
    assert (infos[0].width, infos[0].height) == (640, 360)
    np.testing.assert_array_equal(np.reshape(infos[0].k, (3, 3)), source[f"{CAMERAS[camera]}_K"])
    assert not any(infos[0].d)  # the published images are rectified


@pytest.mark.parametrize(("camera", "plate_px"), [("front", (595, 262)), ("front_right", (79, 209))])
def test_the_number_plate_of_a_parked_car_is_where_camera_info_puts_the_rear_of_its_box(pandaset, camera, plate_px):
    """With the distortion that is published for the lens it would be 24 px away and more."""
    info = pandaset[f"/sensing/camera/{camera}/camera_info"][40]
    transforms = convert.static_transforms(pandaset["/tf_static"][0])
    calibration = camera_rig.calibration(info, camera, convert.camera_from_ego(transforms, camera, f"{camera}_optical"))
    base_from_map = geometry.invert_matrix(map_from_base(pandaset)[40])
    away_px = []
    for thing in pandaset["/perception/object_recognition/objects"][40].objects:
        box = matrix_of(thing.kinematics.initial_pose_with_covariance.pose)
        rear = calibration.camera_from_ego @ base_from_map @ box @ [-0.5 * thing.shape.dimensions.x, 0.0, 0.0, 1.0]
        if rear[2] > 1.0:
            away_px.append(np.hypot(*(reprojection.project(calibration, rear[None, :3])[0][0] - plate_px)))
    assert min(away_px) < 20


def test_odometry_is_where_the_car_was_and_agrees_with_its_twist(pandaset, source):
    odometry = pandaset["/localization/kinematic_state"]
    poses = np.array([planar(message.pose.pose) for message in odometry])
    np.testing.assert_allclose(poses[:, :2], source["world_T_ego"][:, :2, 3], atol=0.02)
    np.testing.assert_allclose(geometry.wrap(poses[:, 2] - source["yaw"]), 0.0, atol=0.002)
    speed = np.array([message.twist.twist.linear.x for message in odometry])
    travelled = geometry.arc_lengths(poses)[-1]
    assert np.trapezoid(speed, source["t"]) == pytest.approx(travelled, rel=0.03)
    assert {message.header.frame_id for message in odometry} == {"map"}
    assert {message.child_frame_id for message in odometry} == {"base_link"}


def test_labelled_cars_stand_on_the_road_that_base_link_lies_on(pandaset):
    heights = []
    for pose, objects in zip(map_from_base(pandaset), pandaset["/perception/object_recognition/objects"], strict=True):
        base_from_map = geometry.invert_matrix(pose)
        for thing in objects.objects:
            at = base_from_map @ matrix_of(thing.kinematics.initial_pose_with_covariance.pose)[:, 3]
            car = thing.classification[0].label == ObjectClassification.CAR
            if car and abs(at[1]) < 10 and abs(at[0]) < 30:
                heights.append(at[2] - 0.5 * thing.shape.dimensions.z)
    assert np.mean(heights) == pytest.approx(0.0, abs=0.05)
    assert np.std(heights) < 0.15


def test_the_car_ahead_is_where_its_label_puts_it(pandaset, source):
    row = np.flatnonzero(source["cub_frame"] == 0)
    in_ego = (np.linalg.inv(source["world_T_ego"][0]) @ np.c_[source["cub_xyz"][row], np.ones(len(row))].T).T
    nearest = row[np.argmin(np.where((np.abs(in_ego[:, 1]) < 1) & (in_ego[:, 0] > 3), in_ego[:, 0], np.inf))]
    objects = pandaset["/perception/object_recognition/objects"][0]
    poses = np.array([planar(t.kinematics.initial_pose_with_covariance.pose) for t in objects.objects])
    in_base = geometry.compose(geometry.invert(planar(pandaset["/localization/kinematic_state"][0].pose.pose)), poses)
    ahead = np.flatnonzero((np.abs(in_base[:, 1]) < 1) & (in_base[:, 0] > 3) & (in_base[:, 0] < 20))
    assert len(ahead) == 1
    thing = objects.objects[ahead[0]]
    assert in_base[ahead[0]][:2] == pytest.approx([12.93, 0.20], abs=0.05)
    assert abs(in_base[ahead[0]][2]) < 0.1  # it faces in our direction
    size = thing.shape.dimensions
    assert [size.x, size.y, size.z] == pytest.approx(source["cub_lwh"][nearest].tolist(), abs=1e-5)


def test_twists_are_in_the_objects_own_axes_and_predict_where_it_goes(pandaset):
    every = pandaset["/perception/object_recognition/objects"]
    tracks = {}
    for frame, message in enumerate(every):
        for thing in message.objects:
            tracks.setdefault(bytes(thing.object_id.uuid), {})[frame] = thing
    moving = 0
    for track in tracks.values():
        if 40 not in track or 50 not in track:
            continue
        thing, later = track[40], track[50]
        twist = thing.kinematics.initial_twist_with_covariance.twist
        speed = np.hypot(twist.linear.x, twist.linear.y)
        path = thing.kinematics.predicted_paths[0]
        start, now = planar(path.path[0]), planar(thing.kinematics.initial_pose_with_covariance.pose)
        np.testing.assert_array_equal(start, now)
        assert len(path.path) == 11
        assert path.time_step.nanosec == 500_000_000
        assert np.hypot(*(planar(path.path[10]) - now)[:2]) == pytest.approx(5.0 * speed, abs=1e-6)
        if speed > 3.0:
            moving += 1
            assert twist.linear.x > 0.97 * speed  # cars go where they point
            then = planar(later.kinematics.initial_pose_with_covariance.pose)
            assert np.hypot(*(planar(path.path[2]) - then)[:2]) < 1.5  # 1 s later
    assert moving >= 3


def test_the_route_follows_the_driven_path_and_goes_on(pandaset, comma):
    for messages in (pandaset, comma):
        route = np.array([planar(entry.pose) for entry in messages["/planning/reflectdrive/route"][0].poses])
        driven = np.array([planar(message.pose.pose) for message in messages["/localization/kinematic_state"]])
        _, lateral = geometry.project(route, driven[:, :2])
        assert np.abs(lateral).max() < 0.15
        along, _ = geometry.project(route, driven[-1:, :2])
        assert geometry.arc_lengths(route)[-1] - along[0] > 58.0
        np.testing.assert_allclose(np.diff(geometry.arc_lengths(route)), 1.0, atol=0.02)
        assert np.abs(geometry.wrap(np.diff(route[:, 2]))).max() < 0.1


@pytest.mark.parametrize("name", ["pandaset_002", "comma2k19_example"])
def test_messages_come_in_order_declared_counted_and_fit_for_the_wire(name):
    recording = open_recording(DATA / name)
    declared = {topic.name: topic.type_name for topic in recording.topics}
    stamps = []
    for count, entry in enumerate(recording.messages(), start=1):
        assert declared[entry.topic] == type_name_of(type(entry.message))
        stamps.append(entry.stamp_ns)
        if count % 40 == 1:
            assert len(serialize_message(entry.message)) > 8
    assert stamps == sorted(stamps)
    assert len(stamps) == recording.message_count
    assert {topic.name for topic in recording.topics if topic.latched} <= {"/tf_static", "/planning/reflectdrive/route"}


def test_comma_drives_at_the_speed_it_moves_and_has_no_cameras(comma):
    assert sorted(comma) == [
        "/localization/acceleration",
        "/localization/kinematic_state",
        "/planning/reflectdrive/route",
    ]
    odometry = comma["/localization/kinematic_state"]
    stamps = np.array([stamp_ns(message) for message in odometry])
    assert np.datetime64(int(stamps[0]), "ns").astype("datetime64[D]") == np.datetime64("2018-08-02")
    poses = np.array([planar(message.pose.pose) for message in odometry])
    seconds = (stamps - stamps[0]) * 1e-9
    moved = np.gradient(poses[:, :2], seconds, axis=0)
    speed = np.array([message.twist.twist.linear.x for message in odometry])
    assert np.abs(np.hypot(*moved.T) - speed).mean() < 0.3
    sideways = -np.sin(poses[:, 2]) * moved[:, 0] + np.cos(poses[:, 2]) * moved[:, 1]
    assert abs(np.mean(sideways)) < 0.1  # the heading is the car's, not the camera's
    yaw_rate = np.array([message.twist.twist.angular.z for message in odometry])
    turned = np.unwrap(poses[:, 2])[-1] - poses[0, 2]
    assert np.trapezoid(yaw_rate, seconds) == pytest.approx(turned, abs=0.15)
    acceleration = np.array([message.accel.accel.linear.x for message in comma["/localization/acceleration"]])
    assert np.trapezoid(acceleration, seconds) == pytest.approx(speed[-1] - speed[0], abs=0.3)


def test_a_damaged_recording_is_one_sentence(tmp_path):
    whole = (DATA / "comma2k19_example" / "segment.npz").read_bytes()
    (tmp_path / "segment.npz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(RecordingError, match=r"is damaged .* copy the recording again"):
        open_recording(tmp_path)
    np.savez(tmp_path / "segment.npz", frame_t=np.zeros(3))
    with pytest.raises(RecordingError, match="has no array named 'gps_time'"):
        open_recording(tmp_path)
    shutil.copy(DATA / "pandaset_002" / "sequence.npz", tmp_path)
    with pytest.raises(RecordingError, match=r"front_left_camera.00\.jpg is missing"):
        open_recording(tmp_path)
