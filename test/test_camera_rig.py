"""Other camera rigs: what the network gets is what its own cameras would see, or a sentence; and cameras missing."""

import re
import warnings
from dataclasses import replace

import cv2
import numpy as np
import pytest
from camera_rigs import (  # noqa: F401 (fixtures)
    NAMES,
    RATIONAL,
    SIZE,
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
    turned,
    turned_rig,
)
from messages import camera_info, jpeg, ns, odometry, raw

from reflectdrive_ros.core import geometry
from reflectdrive_ros.core.config import Config
from reflectdrive_ros.features import reprojection
from reflectdrive_ros.features.cameras import rig
from reflectdrive_ros.features.reprojection import Calibration, plan_views, project, reproject
from reflectdrive_ros.ros.inputs.camera_rig import RigInput, calibration
from reflectdrive_ros.ros.inputs.channel import Level
from reflectdrive_ros.runtime.engine import NO_DEADLINE_MS, Engine
from reflectdrive_ros.sim.world import World, WorldOptions

PLUMB_BOB = (-0.30, 0.10, 0.001, -0.0008, -0.02)
EQUIDISTANT = (-0.02, 0.004, -0.003, 0.0005)


def ideal(each, **changes):
    """The calibration of a pinhole camera."""
    calibration = Calibration(each.name, each.width, each.height, each.pixels_from_camera, "", (), each.camera_from_ego)
    return replace(calibration, **changes)


def decoded(pixels, view):
    return cv2.resize(pixels, view.size, interpolation=cv2.INTER_AREA)


# --- the image -------------------------------------------------------------------------------------------------------


def test_a_turned_camera_re_projected_sees_what_the_canonical_one_sees(render):
    """Away from the edges of objects, where the two renderings differ in their sampling."""
    canonical = rig(*SIZE)
    sources = [turned(each, 5.0 * (-1) ** k, 3.0, 2.0) for k, each in enumerate(canonical)]
    views = plan_views(canonical, [ideal(each) for each in sources])
    exact = [cv2.resize(pixels, SIZE, interpolation=cv2.INTER_AREA) for pixels in render(rig(4 * 288, 4 * 144))]
    for view, pixels, expected, source in zip(views, render(sources), exact, sources, strict=True):
        assert (view.source, view.passes_through) == (source.name, False)
        projected = reproject(view, decoded(pixels, view))
        blurred = cv2.GaussianBlur(cv2.cvtColor(expected, cv2.COLOR_RGB2GRAY), (3, 3), 0).astype(np.float32)
        slope = np.hypot(cv2.Sobel(blurred, cv2.CV_32F, 1, 0), cv2.Sobel(blurred, cv2.CV_32F, 0, 1))
        covered = cv2.erode((projected.max(axis=2) > 0).astype(np.uint8), np.ones((5, 5))) > 0
        away = np.abs(projected.astype(int) - expected).max(axis=2)
        assert np.percentile(away[covered & (slope < 20)], 99) <= 10
        assert away[covered].mean() < 4.0
        unaligned = np.abs(cv2.resize(pixels, SIZE, interpolation=cv2.INTER_AREA).astype(int) - expected).max(axis=2)
        assert unaligned.mean() > 4 * away[covered].mean()


def test_a_lens_with_distortion_re_projected_sees_what_the_canonical_one_sees(render):
    """The distorted image is computed from a large rendering, by the closed form of the lens."""
    canonical = rig(*SIZE)[1]
    wide = replace(rig(4 * 288, 4 * 144)[1], pixels_from_camera=np.array([[700.0, 0, 576], [0, 700, 288], [0, 0, 1]]))
    (plain,) = render([wide])
    exact = cv2.resize(render([rig(4 * 288, 4 * 144)[1]])[0], SIZE, interpolation=cv2.INTER_AREA)
    u, v = np.meshgrid(np.arange(wide.width) + 0.5, np.arange(wide.height) + 0.5)
    pixels = np.stack([u, v], axis=-1).reshape(-1, 1, 2)
    for model, terms in (("plumb_bob", PLUMB_BOB), ("rational_polynomial", RATIONAL), ("equidistant", EQUIDISTANT)):
        if model == "equidistant":
            rays = cv2.fisheye.undistortPoints(pixels, wide.pixels_from_camera, np.array(terms))
        else:
            precise = (cv2.TERM_CRITERIA_COUNT | cv2.TERM_CRITERIA_EPS, 100, 1e-10)
            rays = cv2.undistortPoints(pixels, wide.pixels_from_camera, np.array(terms), criteria=precise)
        pixel_map = rays.reshape(-1, 2) * 700.0 + [576.0, 288.0] - 0.5
        pixel_map = pixel_map.reshape(*u.shape, 2).astype(np.float32)
        bent = cv2.remap(plain, pixel_map[..., 0], pixel_map[..., 1], cv2.INTER_LINEAR)
        (view,) = plan_views([canonical], [ideal(wide, model=model, coefficients=terms)])
        projected = reproject(view, decoded(bent, view))
        assert view.coverage > 0.9
        away = np.abs(projected.astype(int) - exact).max(axis=2)[(projected > 0).all(axis=2)]
        assert np.median(away) <= 1
        assert away.mean() < 4.0, model


def test_the_canonical_rig_passes_through_byte_for_byte(render):
    canonical = rig(*SIZE)
    images = render(canonical)
    for size in (SIZE, (640, 360), (1920, 960)):  # calibrated at any size
        views = plan_views(canonical, [ideal(each) for each in rig(*size)])
        assert [(view.source, view.size, view.coverage) for view in views] == [(c.name, SIZE, 1.0) for c in canonical]
        assert all(reproject(view, pixels) is pixels for view, pixels in zip(views, images, strict=True))


def test_a_rig_within_half_a_pixel_passes_through_and_one_beyond_does_not():
    canonical = rig(*SIZE)
    for yaw_deg, through in ((0.05, True), (0.15, False)):  # the front camera has 5.2 px per degree
        sources = [turned(each, yaw_deg, size=SIZE) for each in canonical]
        sources = [replace(a, pixels_from_camera=b.pixels_from_camera) for a, b in zip(sources, canonical, strict=True)]
        assert plan_views(canonical, [ideal(each) for each in sources])[1].passes_through is through


def test_pixels_that_no_camera_covers_are_black():
    canonical = rig(*SIZE)[1]
    (view,) = plan_views([canonical], [ideal(turned(canonical, yaw_deg=20.0, focal_px=1400.0))])
    projected = reproject(view, np.full((view.size[1], view.size[0], 3), 200, np.uint8))
    covered = projected.max(axis=2) > 0
    assert covered.mean() == pytest.approx(view.coverage, abs=0.01)
    assert 0.2 < view.coverage < 0.8
    assert projected[:, :60].max() == 0 or projected[:, -60:].max() == 0


def test_the_mirrored_rig_gives_the_mirrored_image():
    """Mirrored at the plane x, z of the ego frame: images are flipped, and p2 changes its sign."""
    flip = np.diag([-1.0, 1.0, 1.0, 1.0])

    def mirrored(each):
        matrix = each.pixels_from_camera.copy()
        matrix[0, 2] = each.width - matrix[0, 2]
        pose = flip @ each.camera_from_ego @ np.diag([1.0, -1.0, 1.0, 1.0])
        return replace(each, pixels_from_camera=matrix, camera_from_ego=pose)

    pixels = cv2.GaussianBlur(np.random.default_rng(3).integers(0, 256, (720, 960, 3), np.uint8), (9, 9), 0)
    for canonical in rig(*SIZE):
        source = ideal(turned(canonical, 6.0, 2.0, -3.0), model="plumb_bob", coefficients=PLUMB_BOB)
        k1, k2, p1, p2, k3 = PLUMB_BOB
        other = replace(mirrored(source), coefficients=(k1, k2, p1, -p2, k3))
        (view,), (mirror_view,) = plan_views([canonical], [source]), plan_views([mirrored(canonical)], [other])
        assert mirror_view.size == view.size
        assert mirror_view.coverage == pytest.approx(view.coverage, abs=1e-9)
        image = cv2.resize(pixels, view.size)
        projected = reproject(mirror_view, np.ascontiguousarray(image[:, ::-1]))[:, ::-1].astype(int)
        inner = (slice(2, -2), slice(2, -2))
        away = np.abs(projected - reproject(view, image))[inner]
        assert np.percentile(away, 99) <= 4  # 1/32 px of the tables


# --- lenses ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "terms"),
    [
        ("plumb_bob", PLUMB_BOB),
        ("plumb_bob", PLUMB_BOB[:4]),
        ("rational_polynomial", RATIONAL),
        ("", ()),
        ("equidistant", EQUIDISTANT),
    ],
)
def test_lenses_project_as_opencv_does_and_a_fisheye_ends_at_90_degrees(model, terms):
    source = ideal(rig(640, 360)[0], model=model, coefficients=terms)
    pose = np.zeros(3), np.zeros(3), source.pixels_from_camera, np.array(terms or [0.0] * 4)
    if model == "equidistant":
        rays = np.random.default_rng(1).uniform((-3.0, -3.0, 0.5), (3.0, 3.0, 6.5), (200, 3))
        expected, _ = cv2.fisheye.projectPoints(rays[:, None], *pose)
        assert not project(source, np.array([[1.0, 0.0, -0.01], [0.0, 0.0, -1.0]]))[1].any()
    else:
        rays = np.random.default_rng(1).uniform((-0.6, -0.6, 0.9), (0.6, 0.6, 2.1), (200, 3))
        expected, _ = cv2.projectPoints(rays, *pose)
    projected, valid = project(source, rays)
    assert valid.all()
    np.testing.assert_allclose(projected, expected[:, 0], atol=1e-6)


def test_a_direction_beyond_the_turning_point_of_a_lens_is_not_covered():
    """k1 = -0.3 turns back at a tangent of 1.05: beyond, the polynomial shows the same pixels again."""
    source = ideal(rig(640, 360)[0], model="plumb_bob", coefficients=(-0.3, 0.0, 0.0, 0.0))
    _, valid = project(source, np.array([[1.0, 0.0, 1.0], [1.1, 0.0, 1.0], [9.0, 0.0, 1.0]]))
    assert valid.tolist() == [True, False, False]


# --- which camera ----------------------------------------------------------------------------------------------------


def test_each_camera_of_the_network_takes_the_source_that_covers_most_of_it():
    sources = [looking(f"cam{k}", yaw) for k, yaw in enumerate((-60.0, 0.0, 60.0, 180.0))]
    views = plan_views(rig(*SIZE), [ideal(each) for each in sources])
    assert [view.source for view in views] == ["cam2", "cam1", "cam0"]
    assert views[1].coverage > 0.95
    assert views[1].moved_m == pytest.approx(np.hypot(0.85, 0.70), abs=0.01)


def test_of_two_cameras_that_cover_a_view_the_one_aligned_with_it_is_selected():
    wide = ideal(looking("wide", 30.0, focal_px=120.0))
    straight = ideal(looking("straight", 1.0))
    for order in ([wide, straight], [straight, wide]):
        assert plan_views(rig(*SIZE)[1:2], order)[0].source == "straight"


def test_one_fisheye_can_be_all_three_cameras():
    fisheye = ideal(looking("fisheye", 0.0, (1280, 960), 500.0), model="equidistant", coefficients=(0.0,) * 4)
    views = plan_views(rig(*SIZE), [fisheye])
    assert {view.source for view in views} == {"fisheye"}
    assert len({view.size for view in views}) == 1  # decoded once
    assert views[1].coverage > 0.99
    assert views[0].coverage == pytest.approx(views[2].coverage, abs=0.05)


# --- from messages to the network ------------------------------------------------------------------------------------


def test_messages_of_another_rig_become_the_networks_images(render):
    cameras = turned_rig()
    images = rendered(render, cameras)
    inputs = inputs_of(cameras)
    for seconds in (1.0, 1.1):  # the first is decoded before the calibration arrives
        frames = send(inputs, images, seconds).observation.cameras[-3:]
        views = plan_views(rig(*SIZE), [ideal(each) for each in cameras.values()])
        for frame, view, canonical in zip(frames, views, rig(*SIZE), strict=True):
            assert frame.name == canonical.name
            np.testing.assert_array_equal(frame.pixels, reproject(view, decoded(images[view.source], view)))
            np.testing.assert_array_equal(frame.pixels_from_camera, canonical.pixels_from_camera)
            np.testing.assert_allclose(frame.camera_from_ego[:3, :3], canonical.camera_from_ego[:3, :3], atol=1e-12)
            own_centre, its = (
                geometry.invert_matrix(e)[:3, 3] for e in (canonical.camera_from_ego, frame.camera_from_ego)
            )
            np.testing.assert_allclose(its - own_centre, [0.3, 0.0, -0.4], atol=1e-6)
    line = status(inputs)
    assert (line.level, line.message) == (Level.OK, "re-projected into the network's cameras")
    assert "rotated by 4.47 degrees, 0.50 m from its place" in line.values["front"]


def test_messages_of_the_networks_own_rig_give_the_same_bytes_as_without_re_projection(render):
    cameras = own()
    images = rendered(render, cameras)
    inputs = inputs_of(cameras)
    frames = send(inputs, images).observation.cameras
    plain = inputs_of(cameras, with_rig=False)
    for frame, expected in zip(frames, send(plain, images).observation.cameras, strict=True):
        np.testing.assert_array_equal(frame.pixels, expected.pixels)
        np.testing.assert_array_equal(frame.pixels_from_camera, expected.pixels_from_camera)
        assert frame.name == expected.name
    assert status(inputs).message == "the cameras are those of the network"


def test_tables_are_made_once_per_calibration(render, monkeypatch):
    calls = []
    plan = reprojection.plan_views
    monkeypatch.setattr(
        "reflectdrive_ros.ros.inputs.camera_rig.plan_views", lambda *arguments: calls.append(1) or plan(*arguments)
    )
    cameras = turned_rig()
    images = rendered(render, cameras)
    inputs = inputs_of(cameras)
    for k in range(4):
        for name, each in cameras.items():  # drivers repeat camera_info with every image
            inputs.store.put(f"info:{name}", info_of(name, each), ns(1.0 + 0.1 * k))
        assert send(inputs, images, 1.0 + 0.1 * k).observation is not None
    assert len(calls) == 1


def test_a_camera_of_which_too_little_is_covered_is_a_warning_with_the_numbers(render):
    cameras = own()
    cameras["front"] = looking("front", 25.0, focal_px=650.0)
    images = rendered(render, cameras)
    inputs = inputs_of(cameras)
    assert send(inputs, images).observation is not None
    line = status(inputs)
    assert line.level is Level.WARN
    assert re.search("front: front covers [2-5][0-9] % of it", line.message)
    assert "at least 60 % are wanted: the rest is black" in line.message


# --- what it is for --------------------------------------------------------------------------------------------------


def test_the_planner_plans_from_another_rig_nearly_what_it_plans_from_its_own():
    """Cameras turned by 6.3 degrees, moved by 0.5 m and 1.25 times as wide, in a drive of 8 s through the proving
    ground; without re-projection the same images lead elsewhere."""
    own_rig = rig(640, 360)
    sources = [turned(each, 6.0, -2.0, moved_m=(0.4, 0.0, -0.3), size=(960, 640)) for each in own_rig]
    views = plan_views(rig(*SIZE), [ideal(each) for each in sources])

    def re_projected(view, frame):
        pixels = reproject(view, decoded(frame.pixels, view))
        return replace(frame, pixels=pixels, camera_from_ego=view.camera_from_ego)

    patient = replace(Config(), engine=replace(Config().engine, deadline_ms=NO_DEADLINE_MS))
    away_m = {"re-projected": [], "scaled": []}
    with World(WorldOptions(seed=1, town="closed-loop-00001")) as world:
        engine = Engine(patient, lambda: world.stamp_ns * 1e-9)
        driver = Engine(replace(patient, planner="route_follower"), lambda: world.stamp_ns * 1e-9)
        for tick in range(80):
            if tick % 10 == 9:
                others = world.render_images(sources)
                images = {"own": world.render_images(own_rig), "scaled": others}
                images["re-projected"] = tuple(map(re_projected, views, others))
                plans = {}
                for name, frames in images.items():
                    engine.reset()
                    plans[name] = engine.step(world.observation(frames)).plan.trajectory.poses[:, :2]
                for name, distances_m in away_m.items():
                    distances_m.append(np.linalg.norm(plans[name] - plans["own"], axis=1).mean())
            world.step(driver.step(world.observation()).plan)
    assert np.mean(away_m["re-projected"]) < 0.6 * np.mean(away_m["scaled"])
    assert np.median(away_m["re-projected"]) < 0.2


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
