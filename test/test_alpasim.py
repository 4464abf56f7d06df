"""A model for AlpaSim's own driver: the interface of its source, the network's cameras, plans in the rig frame."""

import configparser
import importlib
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import yaml
from alpasim_interface import MODULES, DriveCommand, PredictionInput, install, pose_at_time
from scipy.spatial.transform import Rotation

from reflectdrive_ros.core import geometry
from reflectdrive_ros.core.domain import Command
from reflectdrive_ros.features.cameras import rig
from reflectdrive_ros.infra.errors import UserError

ROOT = Path(__file__).parents[1]
CONFIGS = ROOT / "reflectdrive_ros" / "egodriver" / "alpasim_configs" / "driver"
BEGIN_US = 1_700_000_000_000_000


def entry_points(group):
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    return dict(line.split(" = ") for line in setup["options.entry_points"][group].strip().split("\n"))


@pytest.fixture(scope="module")
def alpasim():
    """The module as AlpaSim's driver loads it: by its entry point."""
    with pytest.MonkeyPatch.context() as patch:
        install(patch)
        module, name = entry_points("alpasim.models")["reflectdrive"].split(":")
        loaded = importlib.import_module(module)
        assert getattr(loaded, name) is loaded.ReflectDriveModel
        yield loaded
        del sys.modules[module]


def driver_config():
    return yaml.safe_load((CONFIGS / "reflectdrive.yaml").read_text())


@pytest.fixture(scope="module")
def model(alpasim):
    """As the driver makes it of the shipped Hydra file."""
    config = driver_config()
    model_cfg = SimpleNamespace(**config["model"])
    return alpasim.ReflectDriveModel.from_config(model_cfg, "cpu", config["inference"]["use_cameras"], None, 10)


def prediction_input(model, interval_s=0.5, size=(1280, 720), command=DriveCommand.STRAIGHT, speed=6.0):
    """A car that drives straight on along y; grey images."""
    stamps = [BEGIN_US, BEGIN_US + round(1e6 * interval_s)]
    images = {name: [(t, np.full((*size[::-1], 3), 90, np.uint8)) for t in stamps] for name in model.camera_ids}
    poses = [pose_at_time(stamps[-1] + 100_000 * k, 50.0, 0.6 * k, np.pi / 2) for k in (-2, -1, 0)]
    return PredictionInput(images, command, speed, 0.0, poses, 7)


def test_the_interface_is_that_of_the_driver(model):
    config = driver_config()["inference"]
    assert model.camera_ids == config["use_cameras"]
    assert model.context_length == 2
    assert model.output_frequency_hz == 10
    expected = {"LEFT": Command.LEFT, "STRAIGHT": Command.STRAIGHT, "RIGHT": Command.RIGHT, "UNKNOWN": Command.FOLLOW}
    assert {each.name: model._encode_command(each) for each in DriveCommand} == expected


def test_a_plan_is_4_s_in_the_rig_frame_wherever_the_car_is(model):
    first, second = model.predict_batch([prediction_input(model)] * 2)
    assert first.trajectory_xy.shape == (40, 2)
    assert first.headings.shape == (40,)
    assert 0.3 < first.trajectory_xy[0, 0] < 0.9  # 6 m/s
    assert np.abs(first.headings[0]) < 0.2
    assert (np.diff(first.trajectory_xy[:, 0]) > -0.01).all()
    np.testing.assert_array_equal(first.trajectory_xy, second.trajectory_xy)  # no state between steps


def test_images_of_two_instants_are_read_if_they_are_half_a_second_apart(model):
    observation = model._observation(prediction_input(model))
    assert [frame.name for frame in observation.cameras] == ["front_left", "front", "front_right"] * 2
    stamps = [frame.stamp_ns for frame in observation.cameras]
    assert stamps == [BEGIN_US * 1000] * 3 + [BEGIN_US * 1000 + 500_000_000] * 3
    width, height = model._network.inputs.width, model._network.inputs.height
    assert {frame.pixels.shape for frame in observation.cameras} == {(height, width, 3)}
    assert len(model._observation(prediction_input(model, interval_s=0.25)).cameras) == 3


def test_the_ego_is_that_of_the_last_pose(model):
    poses = [pose_at_time(BEGIN_US, 1.0, 2.0, 0.1), pose_at_time(BEGIN_US + 100_000, 3.0, 4.0, 0.15)]
    inputs = prediction_input(model)
    inputs.ego_pose_history = poses
    ego = model._observation(inputs).ego
    np.testing.assert_allclose(ego.map_from_ego, [3.0, 4.0, 0.15])
    assert (ego.speed_mps, ego.yaw_rate_rps) == (6.0, pytest.approx(0.5))
    inputs.ego_pose_history = poses[:1]
    assert model._observation(inputs).ego.yaw_rate_rps == 0.0


def test_the_simulator_places_its_cameras_as_the_networks_and_rectifies_to_their_lenses():
    driver = driver_config()
    runtime = yaml.safe_load((CONFIGS / "reflectdrive_configs.yaml").read_text())["runtime"]
    names = driver["inference"]["use_cameras"]
    interval_us = (
        driver["inference"]["subsample_factor"] * runtime["simulation_config"]["cameras"][0]["frame_interval_us"]
    )
    assert interval_us == 500_000
    for name, camera in zip(names, rig(1280, 720), strict=True):
        target = driver["rectification"][name]
        assert target["resolution_hw"] == [720, 1280]
        matrix = np.diag([*target["focal_length"], 1.0])
        matrix[:2, 2] = target["principal_point"]
        np.testing.assert_allclose(matrix, camera.pixels_from_camera, atol=0.01)
        (mount,) = (each for each in runtime["extra_cameras"] if each["logical_id"] == name)
        pose = geometry.invert_matrix(camera.camera_from_ego)
        np.testing.assert_allclose(mount["rig_to_camera"]["translation_m"], pose[:3, 3], atol=1e-3)
        rotation = Rotation.from_quat(mount["rig_to_camera"]["rotation_xyzw"]).as_matrix()
        np.testing.assert_allclose(rotation, pose[:3, :3], atol=1e-5)
    assert [each["logical_id"] for each in runtime["simulation_config"]["cameras"]] == names


def test_the_hydra_files_are_found_by_their_entry_point():
    package = entry_points("alpasim.configs")["reflectdrive"]
    folder = Path(importlib.import_module(package).__file__).parent
    assert {file.name for file in (folder / "driver").iterdir()} == {"reflectdrive.yaml", "reflectdrive_configs.yaml"}


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"camera_images": {}}, "expects cameras"),
        ({"camera_images": dict.fromkeys(driver_config()["inference"]["use_cameras"], ())}, "a camera without images"),
        ({"ego_pose_history": []}, "ego_pose_history is empty: send egomotion before drive"),
        ({"ego_pose_history": [pose_at_time(BEGIN_US, np.nan, 0.0, 0.0)]}, "holds NaN or infinity"),
    ],
)
def test_an_input_that_cannot_be_used_is_refused_with_a_sentence(model, change, sentence):
    with pytest.raises(ValueError, match=sentence):
        model.predict(PredictionInput(**{**vars(prediction_input(model)), **change}))


@pytest.mark.parametrize(
    ("weights", "cameras", "context", "frequency", "sentence"),
    [
        ("shipped", ["front"], None, 10, "names 1 cameras, the network reads 3"),
        ("shipped", ["a", "b", "c"], 4, 10, "context_length is 4, the network takes 2"),
        ("shipped", ["a", "b", "c"], 2, 0, "output_frequency_hz is 0"),
        ("nothing.safetensors", ["a", "b", "c"], None, 10, r"nothing\.safetensors"),
    ],
)
def test_a_configuration_that_cannot_be_used_is_refused(alpasim, weights, cameras, context, frequency, sentence):
    model_cfg = SimpleNamespace(checkpoint_path=weights)
    with pytest.raises((ValueError, UserError), match=sentence):
        alpasim.ReflectDriveModel.from_config(model_cfg, "cpu", cameras, context, frequency)


def test_without_the_driver_of_alpasim_one_sentence_says_so(monkeypatch):
    monkeypatch.delitem(sys.modules, "reflectdrive_ros.egodriver.alpasim", raising=False)
    for name in MODULES:
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(UserError, match="the driver of AlpaSim cannot be imported"):
        importlib.import_module("reflectdrive_ros.egodriver.alpasim")
