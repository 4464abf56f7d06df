"""Export for images of the cameras' own size, which the network averages down as the host does."""

from dataclasses import replace

import cv2
import numpy as np
import pytest
import torch
from scenes import SECOND_NS, Clock, config, observation
from tiny_graphs import camera_pixels
from tiny_model import tiny_model  # noqa: F401 (a fixture)

from reflectdrive_ros.__main__ import main
from reflectdrive_ros.core.config import ModelConfig
from reflectdrive_ros.core.domain import CameraFrame, StepKind
from reflectdrive_ros.model import vision
from reflectdrive_ros.model.card import GraphCard, sha256_of
from reflectdrive_ros.runtime.engine import Engine
from reflectdrive_ros.runtime.network import load_network


@pytest.mark.parametrize("size", [(64, 32), (75, 45), (150, 45), (149, 89), (150, 90)])
def test_the_network_averages_images_down_as_the_host_does(size):
    images = camera_pixels(1)
    expected = np.stack([cv2.resize(each, size, interpolation=cv2.INTER_AREA) for each in images])
    resized = vision.area_resize(torch.from_numpy(images), size[1], size[0]).numpy()
    assert np.abs(resized - expected).max() <= 1.0
    assert (resized == expected).mean() > 0.8  # the rest are halves, which OpenCV rounds up for whole ratios only
    if size == (64, 32):
        assert (resized == expected).mean() > 0.99


def larger(count):
    """Images that are not of the graphs' size either: the host brings them there."""
    return np.random.default_rng(0).integers(0, 256, (count, 120, 200, 3), np.uint8)


def test_an_engine_drives_by_graphs_that_take_the_cameras_images(tiny_model, tmp_path):  # noqa: F811
    words = ["--camera", "160x100", "--setting", "decoding.goal_value_power=2"]
    assert main(["export", str(tiny_model.file.parent), "--out", str(tmp_path), *words]) == 0
    card = tmp_path / "card.json"
    assert GraphCard.read(card).decoding()["goal_value_power"] == 2.0
    engine_config = replace(config(planner="reflectdrive2"), model=ModelConfig(str(card), sha256_of(card)))
    engine_config = replace(engine_config, decoding=replace(engine_config.decoding, goal_value_power=2.0))
    opened = load_network(
        engine_config.model, engine_config.decoding
    )  # its self-check holds it against the card's golden answer
    assert (opened.inputs.width, opened.inputs.height) == (160, 100)
    frames = [
        CameraFrame(SECOND_NS, name, pixels, np.eye(3), np.eye(4))
        for name, pixels in zip(engine_config.cameras.names, larger(3), strict=True)
    ]
    report = Engine(engine_config, Clock(), network=opened).step(observation(cameras=tuple(frames)))
    assert report.plan.step is StepKind.FULL


def test_images_smaller_than_the_networks_are_refused(tiny_model, tmp_path, capsys):  # noqa: F811
    assert main(["export", str(tiny_model.file), "--out", str(tmp_path), "--camera", "40x1080"]) == 2
    message = " ".join(capsys.readouterr().err.split())
    assert "--camera 40x1080 is smaller than the images that the network takes, " in message
    with pytest.raises(SystemExit):
        main(["export", str(tiny_model.file), "--out", str(tmp_path), "--camera", "wide"])
    assert "'wide' is no whole number from 16 to 8192 px: expected a size as 1920x1080" in capsys.readouterr().err
