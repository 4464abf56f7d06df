"""docs/diagnostics.md has every sentence that the node can publish, and no other, as `make generated` writes it."""

import re
import sys
from pathlib import Path

import pytest
from messages import CAMERAS, camera_info, jpeg, ns, odometry, predicted_objects, route, tf_static
from scenes import Clock, config

from reflectdrive_ros.ros.planning_core import PlanningCore

sys.path.insert(0, str(Path(__file__).parents[1] / "tools"))
import diagnostics_page

PAGE = diagnostics_page.PAGE.read_text(encoding="utf-8")


def test_the_page_has_every_status_of_the_node():
    statuses = diagnostics_page.statuses_of_page(PAGE)
    assert {name: level for name, (level, _) in statuses.items()} == diagnostics_page.node_statuses()
    assert all(what for _, what in statuses.values())


def test_the_page_has_every_sentence_of_the_node_and_what_to_do():
    advice, present = diagnostics_page.sentences_of_page(PAGE), diagnostics_page.node_sentences()
    assert len(advice) > 250
    assert diagnostics_page.written_again(PAGE) == PAGE, "make generated"
    assert present >= diagnostics_page.PARTS, "PARTS has what is in no sentence of the node"
    assert all(advice.values()), "write on the page what to do"
    assert all(diagnostics_page.TELLS.search(each) for each, todo in advice.items() if todo == "As it says")


def test_a_new_sentence_comes_onto_the_page_and_an_old_one_leaves_it():
    """What to do about the others stays."""
    first, *others = diagnostics_page.sentences_of_page(PAGE)
    old = PAGE.replace(f"`{first}`", "`the moon is full: wait`")
    again = diagnostics_page.sentences_of_page(diagnostics_page.written_again(old))
    assert "the moon is full: wait" not in again
    assert first in again
    advice = diagnostics_page.sentences_of_page(PAGE)
    assert {each: again[each] for each in others} == {each: advice[each] for each in others}


@pytest.mark.parametrize(
    ("source", "sentence"),
    [
        ('raise BadMessage("far off route")', "far off route"),
        ('raise BadMessage(f"route: {far_m:.0f} m away")', "route: … m away"),
        ('LOST = "the map was lost"', "the map was lost"),
        ('return "" if near else f"{name} is {far_m} m " + f"from its route{cure}"', "… is … m from its route…"),
        ('status = replace(status, message="; ".join([status.message, f"{n} lines lost"]))', "… lines lost"),
        ("problems += [f\"{what}: {why or 'no map at all'}\"]", "no map at all"),
    ],
)
def test_a_sentence_is_read_from_the_source_however_it_is_made(source, sentence):
    module = f'"""A module."""\n\n\ndef check(near):\n    """Its check."""\n    {source}\n'
    assert sentence in diagnostics_page.sentences_of(module)
    assert not diagnostics_page.sentences_of(module) & {"A module.", "Its check."}


def published(core, seconds):
    """The messages of all statuses, in parts that are sentences."""
    return [part for status in core.statuses(ns(seconds)) for part in status.message.split("; ") if part]


def test_what_a_node_publishes_is_on_the_page():
    """Before any message, in good order, with a distant route, without images, with a jump and a truncated message."""
    patterns = [
        re.compile(".*".join(map(re.escape, each.split("…")))) for each in diagnostics_page.sentences_of_page(PAGE)
    ]
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
