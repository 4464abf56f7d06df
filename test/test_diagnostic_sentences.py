"""docs/diagnostics.md has every sentence that the node can publish: its tables are made from the source."""

import re
import shutil
from pathlib import Path

import pytest
from messages import CAMERAS, camera_info, jpeg, ns, odometry, predicted_objects, route, tf_static
from scenes import Clock, config

from reflectdrive_ros.ros import diagnostic_sentences as page
from reflectdrive_ros.ros.diagnostic_advice import STATUSES
from reflectdrive_ros.ros.planning_core import PlanningCore

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs/diagnostics.md").read_text(encoding="utf-8")
COMMAND = "python -m reflectdrive_ros.ros.diagnostic_sentences docs/diagnostics.md"


def test_the_page_is_made_from_the_source():
    assert page.write_into(PAGE) == PAGE, f"run {COMMAND}"


def test_no_sentence_of_the_node_lacks_a_row_and_no_advice_its_sentence():
    sentences = page.node_sentences()
    assert len(sentences) > 250
    assert page.unexplained(sentences) == [], "say in it what to do, or add advice to diagnostic_advice.py"
    assert page.unused(sentences) == [], "remove or correct this advice in diagnostic_advice.py"
    assert page.node_statuses().keys() == STATUSES.keys(), "describe the status in diagnostic_advice.py"


@pytest.mark.parametrize(
    ("source", "sentence"),
    [
        ('raise BadMessage("off route")', "off route"),
        ('raise BadMessage(f"route: {far_m:.0f} m away")', "route: … m away"),
        ('LOST = "the map was lost"', "the map was lost"),
        ('return "" if near else f"{name} is {far_m} m " + f"from its route{cure}"', "… is … m from its route…"),
        ('status = replace(status, message="; ".join([status.message, f"{n} lines lost"]))', "… lines lost"),
        ("problems += [f\"{what}: {why or 'no map at all'}\"]", "no map at all"),
    ],
)
def test_a_sentence_is_read_from_the_source_however_it_is_made(source, sentence):
    assert sentence in list(
        page.sentences_of(f'"""A module."""\n\n\ndef check(near):\n    """Its check."""\n    {source}\n')
    )
    assert "A module." not in list(page.sentences_of('"""A module."""\n'))


def test_a_new_sentence_is_on_the_page_or_fails_the_test(tmp_path):
    """One that says what to do is listed as it is; another is named."""
    package = tmp_path / "reflectdrive_ros"
    shutil.copytree(ROOT / "reflectdrive_ros", package, ignore=shutil.ignore_patterns("__pycache__"))
    module = package / "ros/inputs/new_check.py"
    module.write_text('A = "the wheel is loose"\nB = f"{x} wheels are loose: check their bolts"\n')
    sentences = page.node_sentences(package)
    assert page.unexplained(sentences) == ["the wheel is loose"]
    assert page.Row(("… wheels are loose: check their bolts",), "As it says") in page.rows(sentences)
    module.write_text('STATUS = InputStatus("wheels", Level.WARN, "", {})\nCHANNEL = Channel("bolts", True, None)\n')
    statuses = page.node_statuses(package)
    assert statuses["wheels"] == ""
    assert statuses["bolts"] == "ERROR"


def test_a_page_without_its_places_is_refused():
    with pytest.raises(ValueError, match="add them"):
        page.write_into("# Diagnostics\n")


def published(core, seconds):
    """The messages of all statuses, in parts that are sentences."""
    return [part for status in core.statuses(ns(seconds)) for part in status.message.split("; ") if part]


def test_what_a_node_publishes_is_on_the_page():
    """Before any message, in good order, with a distant route, without images, with a jump and a truncated message."""
    listed = re.findall(r"`([^`]+)`", PAGE.split("made by make generated: sentences")[1])
    patterns = [re.compile(".*".join(map(re.escape, each.split("…")))) for each in listed if each != "…"]
    core = PlanningCore(config(cameras__width=64, cameras__height=36, planner="route_follower"), Clock())
    sentences = published(core, 0.0)
    for key, message in (("route", route()), ("tf_static", tf_static())):
        core.put(key, message, 0)
    for camera in CAMERAS:
        core.put(f"info:{camera}", camera_info(camera), 0)
    for step, x_m in enumerate((0.0, 0.5, 400.0, 400.5)):
        seconds = 1.0 + 0.1 * step
        core.put("odometry", odometry(seconds, x=x_m), ns(seconds))
        core.put("objects", predicted_objects(seconds, (60.0, 0.0, 0.0, 5.0, 4.5)), ns(seconds))
        for camera in CAMERAS if step % 2 else CAMERAS[:1]:
            core.put(f"image:{camera}", jpeg(seconds, camera, step), ns(seconds))
        core.step(ns(seconds))
        sentences += published(core, seconds)
    core.receive("odometry", b"short", ns(1.5))
    sentences += published(core, 1.5) + published(core, 9.0)
    assert len(set(sentences)) > 10
    for sentence in sentences:
        short = re.fullmatch(r"[\d.]+ (received|Hz)", sentence)
        assert short or any(pattern.search(sentence) for pattern in patterns), sentence
