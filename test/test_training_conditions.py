"""The training conditions of a network are checked where it drives: black cameras, and the domain of its images."""

import json
import shutil
from dataclasses import replace

import pytest
from scenes import Clock, config
from tiny_model import tiny_model  # noqa: F401 (a fixture)

pytest.importorskip("torch", reason="torch is not installed (pip install -e .[train])")

from std_msgs.msg import String
from tiny_net import tiny_net

from reflectdrive_ros.core.config import ConfigError
from reflectdrive_ros.deploy.export import describe_model
from reflectdrive_ros.features.images import WORDS
from reflectdrive_ros.model.token.rollout import Decoding
from reflectdrive_ros.replay.bag_topics import map_topics
from reflectdrive_ros.ros.bag import IMAGE_DOMAIN, BagReader, BagWriter
from reflectdrive_ros.ros.planning_core import PlanningCore
from reflectdrive_ros.runtime.engine import Engine
from reflectdrive_ros.training.settings import TrainConfig
from reflectdrive_ros.training.token_runs import TokenJob

RENDERED, RECORDED = "rendered images", "recorded images"
NOTE = "the network was trained on rendered images, not on recorded images"


@pytest.fixture
def dropout_model(tiny_model, tmp_path):  # noqa: F811
    """Settings of the tiny model with a card that says that it was trained with black cameras."""
    file = shutil.copy(tiny_model.file, tmp_path)
    card = json.loads((tiny_model.file.parent / "card.json").read_text())
    card["capabilities"].append("camera_dropout")
    (tmp_path / "card.json").write_text(json.dumps(card))
    return {**tiny_model.settings, "model__file": str(file)}


# --- black cameras ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("share", [0.0, 0.2])
def test_the_card_of_a_run_says_whether_cameras_were_black_and_so_does_that_of_its_graphs(share, tmp_path):
    net = tiny_net(words=WORDS, text_vocabulary=len(WORDS), text_length=16)
    settings = TrainConfig()
    settings = replace(settings, data=replace(settings.data, camera_dropout=share))
    TokenJob(settings, net.config, None, None, tmp_path, {}).save_weights(net, tmp_path / "weights.safetensors", {})
    card = json.loads((tmp_path / "card.json").read_text())
    graphs = describe_model(net, card["sha256"], Decoding(), None, card=card)
    for capabilities in (card["capabilities"], graphs["capabilities"]):
        assert ("camera_dropout" in capabilities) is (share > 0.0)


def test_two_cameras_suffice_for_a_network_trained_with_black_ones_only(tiny_model, dropout_model):  # noqa: F811
    two = {"cameras__names": ["front_left", "front"]}
    with pytest.raises(ConfigError, match=r"cameras\.names has 2 cameras, but .* uses 3"):
        Engine(config(**tiny_model.settings, **two), Clock())
    assert Engine(config(**dropout_model, **two), Clock()).camera_dropout
    with pytest.raises(ConfigError, match=r"cameras\.names has 2 cameras"):  # which one is missing is not known
        Engine(config(**dropout_model, **two, cameras__reproject=False), Clock())


def test_of_four_cameras_those_that_cover_the_networks_are_used_where_images_are_re_projected(tiny_model):  # noqa: F811
    four = {"cameras__names": ["front_left", "front", "front_right", "rear"]}
    assert len(Engine(config(**tiny_model.settings, **four), Clock()).rig) == 3
    with pytest.raises(ConfigError, match=r"cameras\.names has 4 cameras, but .* uses 3"):
        Engine(config(**tiny_model.settings, **four, cameras__reproject=False), Clock())


# --- the images' domain ----------------------------------------------------------------------------------------------


def test_the_diagnostics_say_that_a_network_was_trained_on_other_images(tiny_model):  # noqa: F811
    for domain, note in ((RECORDED, NOTE), (RENDERED, "")):
        core = PlanningCore(config(**tiny_model.settings, cameras__domain=domain), Clock())
        assert core.domain_note == note


def test_a_planner_that_reads_no_images_has_no_such_note():
    assert PlanningCore(config(planner="route_follower"), Clock()).domain_note == ""


@pytest.mark.parametrize("storage", ["mcap", "sqlite3"])
def test_a_bag_of_the_proving_ground_says_that_its_images_are_rendered(storage, tmp_path):
    with BagWriter(tmp_path / "bag", storage) as bag:
        bag.describe(IMAGE_DOMAIN, RENDERED)
        for name, kind in (
            ("/odometry", "nav_msgs/msg/Odometry"),
            ("/route", "nav_msgs/msg/Path"),
            ("/words", "std_msgs/msg/String"),
        ):
            bag.add_topic(name, kind)
            bag.write(name, 1, String(data="") if name == "/words" else b"")
    with BagReader(tmp_path / "bag") as reader:
        assert reader.descriptions == {IMAGE_DOMAIN: RENDERED}
        mapping = map_topics(
            config(planner="route_follower", cameras__required=False), reader, [], driven_route=False
        ).config
    assert mapping.cameras.domain == RENDERED
