"""Rigs that cannot be used, and cameras that are missing: the node's diagnostics and whether it drives."""

import warnings
from dataclasses import replace

import numpy as np
import pytest
from camera_rigs import (  # noqa: F401 (render is a fixture)
    NAMES,
    RATIONAL,
    grey,
    info_of,
    inputs_of,
    looking,
    own,
    render_cameras,
    rendered,
    send,
    small,
    status,
    turned_rig,
)
from messages import camera_info, jpeg, ns, odometry, raw

from reflectdrive_ros.core import geometry
from reflectdrive_ros.features import reprojection
from reflectdrive_ros.features.cameras import rig
from reflectdrive_ros.ros.inputs.camera_rig import RigInput, calibration
from reflectdrive_ros.ros.inputs.channel import Level

# --- what cannot be used ---------------------------------------------------------------------------------------------


def changed_info(**fields):
    message = info_of("front", own()["front"])
    for name, value in fields.items():
        setattr(message, name, value)
    return message


LENSES = "plumb_bob, rational_polynomial, equidistant"


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"distortion_model": "division", "d": [0.1]}, f"distortion model 'division', expected one of {LENSES}"),
        ({"distortion_model": "", "d": [0.1]}, f"distortion model '', expected one of {LENSES}"),
        ({"distortion_model": "equidistant", "d": [0.1]}, "1 coefficients of equidistant, expected 4"),
        (
            {"distortion_model": "plumb_bob", "d": [float("nan")] * 5},
            "a distortion coefficient that is no number within 10000 of 0",
        ),
        ({"width": 0}, "no width and height: publish the size of the images"),
    ],
)
def test_a_calibration_that_cannot_be_used_is_one_sentence(fields, sentence):
    inputs = inputs_of(own(), infos={"front": changed_info(**fields)}.items())
    snapshot = send(inputs, grey())
    assert (snapshot.observation, snapshot.problems) == (None, (f"camera front: camera_info has {sentence}",))


def test_a_camera_info_for_another_size_is_scaled_with_a_warning_and_for_another_shape_refused():
    snapshot = send(inputs_of(own(), infos={"front": changed_info(height=480)}.items()), grey())
    assert snapshot.problems == (
        "camera front: camera_info is for 640 x 480 px, its images have 640 x 360 px: publish the camera_info of these "
        "images",
    )
    inputs = inputs_of(own())
    snapshot = send(inputs, grey(1280, 720))
    assert snapshot.observation is not None
    assert status(inputs).level is Level.WARN
    assert "camera front: camera_info is for 640 x 360 px, its images have 1280 x 720 px" in status(inputs).message


def test_a_camera_without_a_pose_is_one_sentence():
    mounts = {name: geometry.invert_matrix(own()[name].camera_from_ego) for name in NAMES[:2]}
    inputs = inputs_of(own(), mounts=mounts)
    snapshot = send(inputs, grey())
    sentence = "camera front_right: /tf_static has no transform from base_link to 'front_right_optical'"
    assert (snapshot.observation, snapshot.problems) == (None, (sentence,))


@pytest.mark.parametrize("optional", [False, True])
def test_a_rig_that_covers_nothing_is_one_sentence(optional):
    cameras = {name: looking(name, 180.0) for name in NAMES}
    inputs = inputs_of(cameras, optional=optional)
    snapshot = send(inputs, grey())
    assert snapshot.observation is None
    (sentence,) = snapshot.problems
    assert sentence.startswith("camera rig: no image for any of the network's cameras front_left, front, front_right")


def test_a_fisheye_beyond_180_degrees_is_used_up_to_there_with_a_warning():
    cameras = own()
    info = changed_info(distortion_model="equidistant", d=[0.0] * 4)
    info.k = np.array([150.0, 0.0, 320.0, 0.0, 150.0, 180.0, 0.0, 0.0, 1.0])  # 320 px are 122 degrees
    inputs = inputs_of(cameras, infos={"front": info}.items())
    assert send(inputs, grey()).observation is not None
    assert "camera front: what its fisheye sees beyond 90 degrees from its axis is not used" in status(inputs).message


def test_zeros_after_the_coefficients_of_a_model_do_not_count():
    info = changed_info(distortion_model="rational_polynomial", d=[*RATIONAL, *[0.0] * 6])
    assert calibration(info, "front", np.eye(4)).coefficients == RATIONAL


def test_no_calibration_raises_anything_but_its_sentence():
    """Extreme numbers; warnings of numpy are errors."""
    rng = np.random.default_rng(0)
    extreme = [0.0, 1e-300, 1e300, 1e6, -1e6, 9.9e3, -9.9e3, 1.0, -0.2, float("nan"), float("inf")]
    for trial in range(150):
        cameras = replace(small().cameras, rectified=bool(trial % 2))
        rig_input, infos, poses = RigInput(rig(48, 24), cameras), {}, {}
        for name in NAMES:
            infos[name] = camera_info(name, int(rng.choice([0, 1, 64, 1 << 31])), int(rng.choice([0, 36, 360])))
            infos[name].k = np.where(rng.random(9) < 0.1, rng.choice(extreme, 9), infos[name].k)
            infos[name].p = np.where(rng.random(12) < 0.1, rng.choice(extreme, 12), rng.random(12))
            infos[name].r = np.where(rng.random(9) < 0.1, rng.choice(extreme, 9), np.eye(3).ravel())
            infos[name].distortion_model, terms = list(reprojection.MODELS.items())[trial % 4]
            infos[name].d = rng.choice(extreme if trial % 3 else [-9.9e3, -0.2, 0.0, 0.5, 1.0], terms[1]).tolist()
            turn, _ = np.linalg.qr(rng.normal(size=(3, 3)))
            poses[name] = "base_link", np.vstack([np.c_[turn, rng.choice([0.0, 1.0, 1e150], 3)], [0.0, 0.0, 0.0, 1.0]])
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            rig_input.calibrate(infos, dict(zip(NAMES, NAMES, strict=True)), poses)
        assert rig_input.status().message


def test_rectified_images_follow_p_and_have_no_distortion():
    each = own()["front"]
    info = changed_info(distortion_model="plumb_bob", d=[-0.3, 0.1, 0.0, 0.0, 0.0])
    info.p = np.c_[0.9 * each.pixels_from_camera, np.zeros(3)].ravel()
    info.r = np.eye(3).ravel()
    rectified = calibration(info, "front", each.camera_from_ego, rectified=True)
    np.testing.assert_allclose(rectified.pixels_from_camera, 0.9 * each.pixels_from_camera)
    assert (rectified.model, rectified.coefficients) == ("", ())


# --- cameras that are missing ----------------------------------------------------------------------------------------


def test_without_one_camera_there_is_no_observation_unless_the_network_was_trained_for_it(render):
    cameras = own()
    images = rendered(render, cameras)
    del images["front_left"]
    assert send(inputs_of(cameras), images).observation is None
    inputs = inputs_of(cameras, optional=True)
    snapshot = send(inputs, rendered(render, cameras), 1.0)
    assert len(snapshot.observation.cameras) == 3
    snapshot = send(inputs, images, 1.5)
    left, front, right = snapshot.observation.cameras[-3:]
    assert left.pixels.max() == 0
    assert (left.name, front.pixels.max() > 0, right.pixels.max() > 0) == ("front_left", True, True)
    assert status(inputs, 1.5).level is Level.WARN
    assert "front_left is black" in status(inputs, 1.5).message


def test_a_car_with_two_cameras_drives_a_network_trained_for_it(render):
    names = ("left", "ahead")
    cameras = {name: replace(each, name=name) for name, each in zip(names, rig(640, 360)[:2], strict=True)}
    images = rendered(render, cameras)
    inputs = inputs_of(cameras, optional=True, cameras__names=names, cameras__anchor="ahead")
    frames = send(inputs, images).observation.cameras
    assert [np.mean(frame.pixels.max(axis=2) > 0).round(1) for frame in frames] == [1.0, 1.0, 0.1]  # its left edge
    assert "front_right: ahead covers 1" in status(inputs).message


def test_a_fourth_camera_that_fills_no_view_may_fail(render):
    names = (*NAMES, "rear")
    cameras = {**own(), "rear": looking("rear", 180.0)}
    images = rendered(render, cameras)
    inputs = inputs_of(cameras, cameras__names=names)
    assert len(send(inputs, images, 1.0).observation.cameras) == 3
    del images["rear"]
    for name, pixels in images.items():
        inputs.store.put(f"image:{name}", raw(1.5, name, pixels), ns(1.5))
    assert inputs.due(ns(1.5))  # at once
    assert send(inputs, images, 1.5).observation is not None
    assert send(inputs, {name: images[name] for name in NAMES[1:]}, 2.0).observation is None


def test_compressed_images_are_re_projected_too():
    cameras = turned_rig()
    inputs = inputs_of(cameras, cameras__compressed=True)
    now = ns(1.0)
    inputs.store.put("odometry", odometry(1.0, x=5.0), now)
    for name in NAMES:
        inputs.store.put(f"image:{name}", jpeg(1.0, name, pixels=np.full((480, 640, 3), 120, np.uint8)), now)
    frames = inputs.snapshot(now).observation.cameras
    assert all(abs(int(np.median(frame.pixels)) - 120) <= 2 for frame in frames)
