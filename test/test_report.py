"""The report of a replay: true numbers, every plan on the page, nothing fetched from anywhere."""

import base64
import json
import re
from dataclasses import replace
from pathlib import Path

import browser
import numpy as np
import pytest
from replay_records import BEGIN_NS, EIGHT_S, driven, embedded, frame, record, written_report

from reflectdrive_ros.core import geometry
from reflectdrive_ros.core.domain import AgentKind, Agents, PlanSource, Verdict
from reflectdrive_ros.planning.corrections import Correction
from reflectdrive_ros.replay.record import (
    Diagnostic,
    DriveEvent,
    DriveRecord,
    ReplayImage,
    interpolate_driven_path,
    summary,
)
from reflectdrive_ros.replay.report import write_report

JPEG = Path(__file__).parent / "data" / "pandaset_002" / "images" / "front_camera" / "00.jpg"
VEHICLE = np.array([AgentKind.VEHICLE])


# --- numbers ---------------------------------------------------------------------------------------------------------


def test_errors_are_of_the_plans_that_reach_four_seconds_ahead_with_the_recording():
    numbers = summary(record([frame(t, EIGHT_S) for t in np.arange(0.0, 9.0, 0.1)]))
    assert numbers["ade_m"] == pytest.approx(0.0, abs=2e-3)
    assert numbers["fde_m"] == pytest.approx(0.0, abs=2e-3)
    assert numbers["plans"] == 90
    assert numbers["plans_compared"] == 61  # the recording ends at 10 s, so the last plan compared is that at 6 s
    assert numbers["rates"]["plans_hz"] == pytest.approx(10.0)
    assert numbers["max_lateral_shift_m"] < 0.02
    short, late = frame(1.0, EIGHT_S[:39]), frame(9.0, EIGHT_S)
    numbers = summary(record([short, late]))
    assert (numbers["plans_compared"], numbers["ade_m"], numbers["fde_m"]) == (0, None, None)


def test_a_plan_beside_or_behind_the_driven_path_is_off_by_as_much():
    shifted = geometry.compose(driven(1.1 + EIGHT_S), np.array([0.0, 1.5, 0.0]))
    numbers = summary(record([frame(1.0, EIGHT_S), frame(1.1, EIGHT_S, plan_poses=shifted)]))
    assert [numbers["ade_m"], numbers["fde_m"]] == pytest.approx([1.5 / 2] * 2, abs=0.01)
    assert numbers["max_lateral_shift_m"] == pytest.approx(1.5, abs=0.05)
    numbers = summary(record([frame(0.0, 0.75 * EIGHT_S)]))  # 2 m/s too slow
    assert numbers["fde_m"] == pytest.approx(8.0, abs=0.1)
    assert numbers["ade_m"] == pytest.approx(2.0 * np.mean(np.arange(0.5, 4.1, 0.5)), abs=0.1)
    stands = np.repeat(driven(1.0)[None], 80, axis=0)
    numbers = summary(record([frame(1.0, EIGHT_S, plan_poses=stands), frame(1.1, EIGHT_S, plan_poses=stands)]))
    assert numbers["max_lateral_shift_m"] is None  # standing has no direction to be shifted from


def test_what_lies_beyond_the_plan_before_is_no_shift_from_it():
    """A plan that turns back beside the plan before, but only behind the end of that."""
    ahead = np.array([[x, 0.0, 0.0] for x in range(1, 31)])
    turn = [[30.0, y, np.pi / 2] for y in range(1, 21)] + [[30.0 - x, 20.0, np.pi] for x in range(1, 21)]
    plans = [
        frame(at_s, np.arange(len(each)), map_from_ego=driven(1.0), plan_poses=geometry.compose(driven(1.0), each))
        for at_s, each in ((1.0, ahead), (1.1, np.concatenate([ahead, turn])))
    ]
    assert summary(record(plans))["max_lateral_shift_m"] < 0.01


def test_verdicts_sources_and_latencies_are_counted_by_name():
    frames = [frame(0.1 * i, EIGHT_S, timings_ms={"planner": float(i), "total": 2.0 * i}) for i in range(101)]
    frames[3] = replace(frames[3], verdict=Verdict.UNSAFE, source=PlanSource.STOP, reason="hits vehicle 3")
    frames[4] = replace(frames[4], verdict=Verdict.LATE, source=PlanSource.CARRIED)
    numbers = summary(record(frames, details={"mode": "engine", "dropped": {"image front": 2}}))
    assert numbers["verdicts"] == {"OK": 99, "LATE": 1, "UNSAFE": 1, "INFEASIBLE": 0}
    assert numbers["sources"] == {"PLANNER": 99, "CARRIED": 1, "STOP": 1}
    assert numbers["latency_ms"]["planner"] == {"p50": 50.0, "p99": 99.0, "max": 100.0}
    assert numbers["latency_ms"]["total"]["p50"] == 100.0
    assert numbers["mode"] == "engine"
    assert numbers["dropped"] == {"image front": 2}
    json.dumps(numbers, allow_nan=False)


def test_driven_poses_turn_the_short_way():
    seconds = np.array([0.0, 1.0])
    path = np.array([[0.0, 0.0, 3.1], [1.0, 0.0, -3.1]])
    stamps = BEGIN_NS + (seconds * 1e9).astype(np.int64)
    halfway = interpolate_driven_path(record([], driven_path=path, driven_stamps_ns=stamps), stamps[:1] + 500_000_000)
    assert halfway[0, 0] == pytest.approx(0.5)
    assert abs(halfway[0, 2]) == pytest.approx(np.pi, abs=1e-3)


def test_records_that_contradict_themselves_are_refused():
    with pytest.raises(ValueError, match=r"ReplayFrame.plan_speeds has shape \(3,\), expected \(80\)"):
        frame(0.0, EIGHT_S, plan_speeds=np.zeros(3))
    with pytest.raises(ValueError, match=r"ReplayFrame\.speed_mps is nan"):
        frame(0.0, EIGHT_S, speed_mps=float("nan"))
    with pytest.raises(ValueError, match=r"ReplayImage.distortion is \(0.1,\), expected 0, 4, 5 or 8"):
        replace(image(0.0), distortion=(0.1,))
    with pytest.raises(ValueError, match="driven_stamps_ns does not rise"):
        record([], driven_path=np.zeros((2, 3)), driven_stamps_ns=np.array([5, 5]))
    with pytest.raises(ValueError, match=r"DriveRecord.score_stamps_ns has shape \(2,\), expected \(1\)"):
        driven_world(scores=np.ones(1))


# --- page ------------------------------------------------------------------------------------------------------------


def image(at_s, name="front"):
    camera_from_ego = np.array([[0.0, -1, 0, 0], [0, 0, -1, 2.0], [1, 0, 0, -1.0], [0, 0, 0, 1]])
    pixels_from_camera = np.array([[650.0, 0, 320], [0, 650, 180], [0, 0, 1]])
    stamp = BEGIN_NS + round(at_s * 1e9)
    return ReplayImage(name, stamp, JPEG.read_bytes(), 640, 360, pixels_from_camera, camera_from_ego)


def full_record(count=12):
    frames = []
    for i in range(count):
        diagnostics = (
            Diagnostic("reflectdrive: odometry", 0, "age 0.02 s"),
            Diagnostic("reflectdrive: planner", 2 if i == 5 else 0, "stopped" if i == 5 else "ok"),
        )
        frames.append(
            frame(
                0.1 * i,
                EIGHT_S,
                reason=f"reason number {i}",
                agents=Agents(driven(0.1 * i + 2.0)[None], np.zeros((1, 2)), np.array([[4.6, 1.9]]), VEHICLE),
                images=tuple(image(0.1 * i - 0.05, name) for name in ("front_left", "front", "front_right")),
                diagnostics=diagnostics,
            )
        )
    return record(frames)


def test_the_page_holds_every_plan_and_what_stood_around_it(tmp_path):
    original = full_record()
    data = written_report(original, tmp_path / "report.html")
    assert len(data["frames"]) == 12
    for entry, recorded in zip(data["frames"], original.frames, strict=True):
        np.testing.assert_allclose(np.array(entry["plan"])[:, :3], recorded.plan_poses, atol=1e-3)
        np.testing.assert_allclose(entry["agents"][0][:2], recorded.agents.poses[0, :2], atol=0.01)
        assert entry["reason"] == recorded.reason
        assert entry["diagnostics"][0] == [0, "age 0.02 s"]
    assert data["frames"][5]["diagnostics"][1] == [2, "stopped"]
    assert data["statuses"] == ["reflectdrive: odometry", "reflectdrive: planner"]
    assert data["summary"] == json.loads(json.dumps(summary(original)))
    cameras = data["images"][2]["cameras"]
    assert [camera["name"] for camera in cameras] == ["front_left", "front", "front_right"]
    assert base64.b64decode(cameras[1]["jpeg"]) == JPEG.read_bytes()
    assert cameras[1]["t"] == pytest.approx(0.15)
    np.testing.assert_allclose(cameras[1]["ego"], driven(0.15), atol=0.01)  # where the car was when it was taken
    assert (data["world"], len(data["routes"])) == (None, 1)


DRAFT = np.stack([3.0 * np.arange(1, 9), np.zeros(8)], axis=-1)
CORRECTED = (Correction(1, 3, "y", 0.0, 0.6, 0.125, 0.75), Correction(2, 5, "x", 15.0, 15.3, 0.25, 0.5))


def test_the_page_draws_a_plan_into_images_at_its_height_above_the_plane_of_the_car(tmp_path):
    """On a ramp the plan lies in that plane; where the ramp ends it is below the plane."""
    steady = frame(0.0, EIGHT_S)
    ahead = geometry.compose(geometry.invert(steady.map_from_ego), steady.plan_poses)[:, 0]
    for z, height in ((50.0 + 0.08 * ahead, 0.0 * ahead), (50.0 + 0.08 * np.minimum(ahead, 20.0), 1.6 - 0.08 * ahead)):
        on_ramp = replace(steady, plan_heights=z, ego_height_m=50.0, ego_slope=0.08)
        heights = np.array(written_report(record([on_ramp]), tmp_path / "report.html")["frames"][0]["plan"])[:, 4]
        np.testing.assert_allclose(heights, np.minimum(height, 0.0), atol=1e-3)


def test_the_draft_and_its_corrections_are_on_the_page_and_only_of_plans_that_have_them(tmp_path):
    with_draft = frame(0.1, EIGHT_S, draft=DRAFT, corrections=CORRECTED)
    without, drafted = written_report(record([frame(0.0, EIGHT_S), with_draft]), tmp_path / "report.html")["frames"]
    assert "draft" not in without
    assert "corrections" not in without
    np.testing.assert_allclose(drafted["draft"], DRAFT)
    assert drafted["corrections"] == [[1, 3, "y", 0.0, 0.6, 0.125, 0.75], [2, 5, "x", 15.0, 15.3, 0.25, 0.5]]


@browser.needs_node
@pytest.mark.parametrize("drafts", [False, True], ids=["without drafts", "with drafts"])
def test_the_script_of_the_page_draws_its_plans_without_an_error(tmp_path, drafts):
    replay = full_record(3)
    if drafts:
        replay = replace(replay, frames=[replace(entry, draft=DRAFT, corrections=CORRECTED) for entry in replay.frames])
    write_report(replay, tmp_path / "report.html")
    drawing = browser.draw(tmp_path / "report.html")
    assert drawing["images"] > 0
    of_drafts = {"Corrections of the draft", "waypoint moved by AutoEdit", "y 3", "0.6 m", "75 %"}
    assert of_drafts & set(drawing["texts"]) == (of_drafts if drafts else set())


@browser.needs_node
def test_the_address_names_the_plan_of_a_page_that_is_opened_and_of_one_that_is_open(tmp_path):
    write_report(full_record(12), tmp_path / "report.html")
    drawing = browser.draw(tmp_path / "report.html", "", "#plan=3", "#plan=12", "#numbers", "#plan=99")
    plans = re.findall(r"plan (\d+) of 12", " ".join(drawing["texts"]))
    assert plans == ["3", "12", "12"]  # another address changes nothing; a number beyond the last is the last


def test_the_page_needs_nothing_from_outside(tmp_path):
    write_report(full_record(3), tmp_path / "report.html")
    page = re.sub(r'"jpeg":"[^"]*"', "", (tmp_path / "report.html").read_text(encoding="utf-8"))
    assert not [word for word in ("http:", "https:", "@import", "fetch(", "XMLHttpRequest") if word in page]
    assert not re.search(r"<(link|iframe|img|script)[^>]*\b(src|href)\s*=", page)


def test_a_long_replay_keeps_every_plan_but_not_every_image(tmp_path, monkeypatch):
    monkeypatch.setattr("reflectdrive_ros.replay.report.IMAGES_MAX_BYTES", 500_000)
    original = full_record(12)
    data = written_report(original, tmp_path / "report.html")
    assert len(data["frames"]) == 12
    assert 1 <= len(data["images"]) < 12
    for entry in data["frames"]:
        newest = data["images"][entry["image"]]["cameras"][0]
        assert newest["t"] <= entry["t"]  # never an image from after the plan
    assert (tmp_path / "report.html").stat().st_size < 700_000


def test_text_from_outside_cannot_break_out_of_the_page(tmp_path):
    nasty = "</script><script>alert(1)</script><!--"
    original = replace(full_record(2), bag=nasty, planner="__DATA__ __TITLE__")
    original = replace(original, frames=[replace(entry, reason=nasty) for entry in original.frames])
    write_report(original, tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert page.count("</script>") == 2
    assert "<script>alert" not in page
    assert embedded(tmp_path / "report.html")["frames"][0]["reason"] == nasty


def test_a_replay_without_plans_images_or_odometry_still_gives_a_page(tmp_path):
    nothing = {"driven_path": np.zeros((0, 3)), "driven_stamps_ns": np.zeros(0, np.int64), "routes": ()}
    data = written_report(record([], **nothing), tmp_path / "empty.html")
    assert data["frames"] == []
    assert data["summary"]["plans"] == 0
    assert data["summary"]["ade_m"] is None
    blind = record([frame(0.1 * i, EIGHT_S) for i in range(3)], **nothing)
    assert [entry["image"] for entry in written_report(blind, tmp_path / "blind.html")["frames"]] == [None, None, None]


def test_numbers_that_are_none_leave_gaps_and_not_a_broken_page(tmp_path):
    times = {"planner": float("nan"), "total": 5.0}
    details = {"age_s": float("nan"), "out": Path("out"), "planner_note": "a baseline without a network"}
    gaps = record([frame(1.0, EIGHT_S, timings_ms=times)], details=details)
    data = written_report(gaps, tmp_path / "report.html")
    assert data["frames"][0]["ms"] == {"total": 5.0}
    assert data["summary"]["age_s"] is None
    assert data["summary"]["out"] == "out"
    assert list(data["summary"]["latency_ms"]) == ["total"]
    assert data["origin"].startswith("a baseline without a network")


# --- a drive through a world -----------------------------------------------------------------------------------------


def driven_world(**changes):
    near, distant = driven(np.arange(0, 4, 0.5))[:, :2], driven(0.0)[:2] + np.array([[900.0, 0], [910, 0], [910, 9]])
    numbers = {
        "distance_m": 71.0,
        "limit_distance_m": 139.0,
        "standing_s": 2.5,
        "plan_progress_m": 60.0,
        "reference_progress_m": 80.0,
        "duration_s": 10.0,
        "mean_speed_mps": 7.1,
        "score_mean": 0.75,
        "collisions": 1,
        "collisions_at_fault": 0,
        "off_road_s": 0.0,
        "red_lights": 0,
        "comfort_share": 1.0,
        "fresh_plans": 12,
        "ticks": 12,
        "realtime_factor": 1.0,
    }
    stamps = BEGIN_NS + np.array([0, 500_000_000])
    events = (DriveEvent(BEGIN_NS + 700_000_000, "collision", "a <b>car</b> ran into us"),)
    values = {"rings": (near, distant), "score_stamps_ns": stamps, "scores": np.array([0.5, 1.0])}
    return DriveRecord(**{**values, **changes}, events=events, numbers=numbers)


def test_a_drive_shows_its_road_scores_and_events_at_their_times(tmp_path):
    later = geometry.compose(driven(0.0), np.array([[0.0, 3.0, 0.0], [50.0, 3.0, 0.0]]))
    routes = ((BEGIN_NS, driven(np.arange(0, 12, 0.2))), (BEGIN_NS + 500_000_000, later))
    original = replace(full_record(), drive=driven_world(), routes=routes)
    data = written_report(original, tmp_path / "report.html")
    assert [len(ring) for ring in data["road"]] == [8]  # the road 900 m away can never come into view
    assert data["world"]["scores"] == [[0.0, 0.5], [0.5, 1.0]]
    assert data["world"]["events"] == [{"t": 0.7, "kind": "collision", "text": "a <b>car</b> ran into us"}]
    assert [route[0] for route in data["routes"]] == [0.0, 0.5]
    np.testing.assert_allclose(data["routes"][1][1], later[:, :2], atol=0.01)
    rows = dict(data["world"]["table"])
    assert rows["collisions"] == "1 (0 at fault)"
    # a plan that stands where nobody could drive scores 100: the page shows how much that was of the drive
    assert (rows["driven"], rows["speed limits allow"], rows["standing"]) == ("71 m in 10.0 s", "139 m", "2.5 s")
    assert rows["progress in this traffic"] == "75 % of the reference planner's"
    assert data["summary"]["world"]["score_mean"] == 0.75


@pytest.mark.parametrize(
    ("stamp_ns", "clock"),
    [(BEGIN_NS, "2019-05-11 01:59:16.5 UTC"), (1_000_300_000_000, "simulated, stamp 1000.3 s")],
)
def test_the_clock_of_a_simulator_is_no_date(tmp_path, stamp_ns, clock):
    replay = record([frame(0.0, EIGHT_S, stamp_ns=stamp_ns)])
    assert written_report(replay, tmp_path / "report.html")["frames"][0]["clock"] == clock
    assert "1970" not in (tmp_path / "report.html").read_text()
