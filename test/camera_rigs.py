"""Cameras other than the canonical ones, their images and messages, and the inputs of a node that has them."""

import cv2
import numpy as np
import pytest
from camera_scene import ALL_GREEN, EGO, PLAIN, actors, crossroads
from messages import acceleration, camera_info, ns, odometry, raw, route
from scenes import config

from reflectdrive_ros.core import geometry
from reflectdrive_ros.demo.sensor_messages import camera_mounts
from reflectdrive_ros.features.cameras import Camera, rig
from reflectdrive_ros.ros.inputs.camera_rig import RigInput
from reflectdrive_ros.ros.inputs.snapshot import Inputs
from reflectdrive_ros.sim.render import camera, scenery
from reflectdrive_ros.sim.traffic.actors import ActorShape, TrafficSnapshot

SIZE = (288, 144)
RATIONAL = (-0.30, 0.10, 0.001, -0.0008, -0.02, 0.05, -0.01, 0.001)


def turned(each, yaw_deg=0.0, pitch_deg=0.0, roll_deg=0.0, moved_m=(0.0, 0.0, 0.0), size=(1280, 960), focal_px=None):
    """A canonical camera, displaced: turned about its own axes y, x, z, and moved in the ego frame."""
    pose = np.eye(4)
    for axis, angle in ((1, yaw_deg), (0, pitch_deg), (2, roll_deg)):
        pose[:3, :3] = cv2.Rodrigues(np.radians(angle) * np.eye(3)[axis])[0] @ pose[:3, :3]
    pose = pose @ each.camera_from_ego
    pose[:3, 3] -= pose[:3, :3] @ np.array(moved_m)
    focal_px = focal_px or 0.75 * each.pixels_from_camera[0, 0] * size[0] / each.width
    matrix = np.array([[focal_px, 0.0, size[0] / 2], [0.0, focal_px, size[1] / 2], [0.0, 0.0, 1.0]])
    return Camera(each.name, *size, matrix, pose)


def looking(name, yaw_deg, size=(640, 360), focal_px=400.0):
    """A camera 1.5 m above base_link that looks level to this bearing (left is positive)."""
    yaw = np.radians(yaw_deg)
    ego_from_camera = np.eye(4)
    ego_from_camera[:3, 0] = np.sin(yaw), -np.cos(yaw), 0.0
    ego_from_camera[:3, 1] = 0.0, 0.0, -1.0
    ego_from_camera[:3, 2] = np.cos(yaw), np.sin(yaw), 0.0
    ego_from_camera[2, 3] = 1.5
    matrix = np.array([[focal_px, 0.0, size[0] / 2], [0.0, focal_px, size[1] / 2], [0.0, 0.0, 1.0]])
    return Camera(name, *size, matrix, geometry.invert_matrix(ego_from_camera))


@pytest.fixture(scope="module", name="render")
def render_cameras():
    """A function that gives the images of cameras in one instant, RGB."""
    town = scenery.build_scenery(crossroads(), 5)
    snapshot = TrafficSnapshot(
        5.0,
        actors((ActorShape.CAR, 20.0, 0.5, 0.1), (ActorShape.VAN, 14.0, 8.0, 0.4), (ActorShape.CONE, 9.0, -8.0, 0.0)),
        ALL_GREEN,
    )
    return lambda cameras: [f.pixels for f in camera.render_frames(town, snapshot, EGO, 0, cameras, PLAIN)]


def rendered(render, cameras):
    """The images of cameras by name, likewise by name."""
    return dict(zip(cameras, render(list(cameras.values())), strict=True))


NAMES = ("front_left", "front", "front_right")


def grey(width=640, height=360):
    """Images of NAMES that show nothing."""
    return {name: np.full((height, width, 3), 90, np.uint8) for name in NAMES}


def small(**changes):
    values = {"cameras__compressed": False, **changes}
    return config(cameras__width=288, cameras__height=144, planner="constant_velocity", **values)


def inputs_of(cameras, *, optional=False, infos=(), mounts=None, with_rig=True, **settings):
    """Inputs with route, calibrations and poses of cameras by name, raw unless set otherwise; `infos` replace a
    camera_info."""
    config = small(**settings)
    inputs = Inputs(config, SIZE, RigInput(rig(*SIZE), config.cameras, optional=optional) if with_rig else None)
    inputs.store.put("route", route(), 0)
    poses = {name: geometry.invert_matrix(each.camera_from_ego) for name, each in cameras.items()}
    inputs.store.put("tf_static", camera_mounts(0, poses if mounts is None else mounts), 0)
    for name, each in cameras.items():
        inputs.store.put(f"info:{name}", dict(infos).get(name, info_of(name, each)), 0)
    return inputs


def info_of(name, each):
    """The camera_info of a pinhole camera."""
    message = camera_info(name, each.width, each.height)
    message.k = each.pixels_from_camera.ravel()
    return message


def send(inputs, images, seconds=1.0):
    inputs.store.put("odometry", odometry(seconds, x=5.0 * seconds), ns(seconds))
    inputs.store.put("acceleration", acceleration(seconds), ns(seconds))
    for name, pixels in images.items():
        inputs.store.put(f"image:{name}", raw(seconds, name, pixels), ns(seconds))
    return inputs.snapshot(ns(seconds))


def status(inputs, seconds=1.0):
    return next(each for each in inputs.statuses(ns(seconds)) if each.name == "camera rig")


def own():
    return dict(zip(NAMES, rig(640, 360), strict=True))


def turned_rig():
    return {each.name: turned(each, 4.0, 2.0, moved_m=(0.3, 0.0, -0.4), size=(640, 480)) for each in rig(*SIZE)}
