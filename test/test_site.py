"""The site: every page is in it, links lead on, drives are small and play in a browser."""

import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import browser
import gallery
import hooks
import numpy as np
import pytest
from own_bags import short_bag
from replay_records import EIGHT_S, driven, embedded, frame, record, written_report
from test_report import driven_world, full_record

from reflectdrive_ros.core import geometry
from reflectdrive_ros.core.domain import PlanSource, Verdict
from reflectdrive_ros.replay.record import poses_at_score_times
from reflectdrive_ros.replay.report import write_report
from reflectdrive_ros.ros.bag import BagReader

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "tools" / "site"
MKDOCS = ROOT / ".venv" / "site"
needs_mkdocs = pytest.mark.skipif(not (MKDOCS / "mkdocs").is_dir(), reason="mkdocs is not installed (make site)")


# --- pages -----------------------------------------------------------------------------------------------------------


def test_every_page_of_the_index_is_in_the_navigation_under_its_kind():
    readme = (ROOT / "README.md").read_text()
    nav = {title: pages for entry in hooks.navigation(readme) for title, pages in entry.items()}
    kinds = ["Tutorial", "How-to", "Reference", "Explanation"]
    assert list(nav) == ["Overview", "Gallery", *kinds, "Contribute"]
    paths = [path for kind in kinds for page in nav[kind] for path in page.values()]
    table = readme.split("## Documentation")[1].split("\n## ")[0]
    assert sorted(paths) == sorted(re.findall(r"\]\(docs/([^)]+)\)", table))
    assert all((ROOT / "docs" / path).is_file() for path in paths)


@pytest.mark.parametrize(
    ("page", "link", "on_site"),
    [
        ("index.md", "docs/install.md", "install.md"),
        ("index.md", "docs/planners/reflectdrive2.md#autoedit", "planners/reflectdrive2.md#autoedit"),
        ("index.md", "LICENSE", "LICENSE"),
        ("cluster.md", "../config/cluster/machines.yaml", "config/cluster/machines.yaml"),
        ("install.md", "../README.md", "index.md"),
        ("planners/README.md", "../training.md", "../training.md"),
        ("planners/README.md", "../../CONTRIBUTING.md", "../CONTRIBUTING.md"),
        ("training.md", "#edits", "#edits"),
        ("training.md", "https://docs.ray.io", "https://docs.ray.io"),
    ],
)
def test_a_link_of_the_repository_leads_to_the_same_page_on_the_site(page, link, on_site):
    assert hooks.links_on_site(f"see [this]({link}) or ![]({link})", page) == f"see [this]({on_site}) or ![]({on_site})"


def test_files_outside_the_documentation_that_pages_link_to_are_copied():
    outside = {path.relative_to(ROOT).as_posix() for path in hooks.outside()}
    assert {"LICENSE", "config/cluster/machines.yaml"} <= outside
    assert not any(path.startswith("docs/") or path.endswith(".md") for path in outside)


def test_the_gallery_shows_each_drive_with_its_sentence_and_its_command(tmp_path, monkeypatch):
    monkeypatch.setattr(hooks, "GALLERY", tmp_path)
    assert "`make gallery` makes them" in hooks.gallery()
    drive = {"name": "town", "title": "A town", "text": "A car drives.", "plan": 7, "command": "reflectdrive demo"}
    (tmp_path / "gallery.json").write_text(json.dumps([drive]))
    without_screenshot = hooks.gallery()
    assert (
        "## A town\n\n[A town](gallery/town.html#plan=7)\n\nA car drives.\n\n    reflectdrive demo"
        in without_screenshot
    )
    (tmp_path / "town").mkdir()
    (tmp_path / "town" / "report.jpg").write_bytes(b"")
    assert "[![A town](gallery/town.jpg)](gallery/town.html#plan=7)" in hooks.gallery()


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The built site; --strict makes warnings errors."""
    out = tmp_path_factory.mktemp("site")
    words = [sys.executable, "-m", "mkdocs", "build", "-q", "-f", FOLDER / "mkdocs.yml", "-d", out]
    environment = {**os.environ, "PYTHONPATH": str(MKDOCS), "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(words, capture_output=True, text=True, env=environment, timeout=200)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
    return out


@needs_mkdocs
def test_the_site_is_built_without_a_warning_and_needs_no_network(site):
    assert (site / "LICENSE").is_file()
    assert (site / "planners" / "index.html").is_file()
    for page in site.rglob("*.html"):
        loaded = re.findall(r"<(?:script|img|iframe)[^>]*\ssrc=\"?([^\"\s>]+)", page.read_text())
        loaded += re.findall(
            r"<link[^>]*rel=\"?(?:stylesheet|icon|preconnect)[^>]*href=\"?([^\"\s>]+)", page.read_text()
        )
        assert not [source for source in loaded if "://" in source or source.startswith("//")], page.name


@needs_mkdocs
@browser.needs_chromium
def test_the_site_opens_from_disk_and_its_search_finds_pages(site, tmp_path):
    done = browser.run((site / "index.html").as_uri() + "?q=red+light", tmp_path, "--dump-dom")
    assert browser.console(done) == []
    results = done.stdout.split('class="md-search-result__list"')[1].split("</ol>")[0]
    assert "planners/check_and_repair.html" in results


# --- drives ----------------------------------------------------------------------------------------------------------

DRIVE = gallery.Drive("test", "A turn", "A car turns left.", ("demo",), gallery.is_busy)


@pytest.fixture
def report(tmp_path):
    write_report(replace(full_record(30), drive=driven_world()), tmp_path / "report.html")
    return tmp_path / "report.html"


def test_a_page_is_made_small_by_its_images_alone_and_says_what_it_shows(report):
    page = report.read_text()
    whole = embedded(report)
    size = len(page)
    small, plan = gallery.shrink(page, DRIVE, size // 2)
    assert len(small.encode()) <= size // 2
    report.write_text(small)
    data = embedded(report)
    assert data["origin"] == f"A turn: A car turns left. · {whole['origin']}"
    assert (data["frames"], len(data["images"])) == (whole["frames"], len(whole["images"]))
    assert plan == 1  # the same road user is near in all of them
    with pytest.raises(ValueError, match=r"test has .* bytes, at most 1000 are allowed: drive for less long"):
        gallery.shrink(page, DRIVE, 1000)


def test_the_page_opens_at_the_plan_that_shows_most():
    near = {"v": 5.0, "ego": [0, 0, 0], "agents": [[3, 4, 0, 4, 2, 1], [30, 0, 0, 4, 2, 1]]}
    assert gallery.is_busy(near) == 1.0
    assert gallery.is_busy({**near, "v": 0.0}) == 0.0
    assert (
        gallery.is_corrected({"corrections": [[1, 3, "y", 0.0, 0.6, 0.1, 0.7], [1, 4, "heading", 0, 9, 0, 1]]}) == 0.6
    )
    plan = {"ego": [1, 1, 0], "plan": [[x, 1.0, 0.0] for x in np.arange(2.0, 82.0)]}  # 40 m in 4 s
    assert gallery.is_repaired({**plan, "others": [[[40.0, 0.0], [40.0, 5.0]]]}) == 5.0
    assert gallery.is_repaired(plan) == gallery.is_corrected({}) == 0.0


def test_a_free_planner_speeds_up_as_far_as_bends_allow():
    straight = np.stack([np.arange(200.0), np.zeros(200)], axis=-1)
    speeds = np.diff(gallery.free_drive(straight, 5.0, 4.0), prepend=5.0) / 0.1
    assert speeds[0] == pytest.approx(4.0 + 0.1 * gallery.OTHER_ACCELERATION_MPS2)
    assert speeds[-1] == pytest.approx(gallery.OTHER_SPEED_MPS)
    angles = np.arange(0.0, 6.0, 0.1)
    circle = 10.0 * np.stack([np.sin(angles), 1.0 - np.cos(angles)], axis=-1)
    slow = np.diff(gallery.free_drive(circle, 5.0, 4.0), prepend=5.0) / 0.1
    assert slow[-1] == pytest.approx(np.sqrt(gallery.OTHER_LATERAL_MPS2 * 10.0), rel=0.05)


def test_trajectories_of_another_planner_stand_beside_the_messages_of_a_drive(tmp_path):
    drive = short_bag(tmp_path / "drive", "pandaset_002", seconds=1.0, objects=2)
    gallery.write_other_planner(drive, tmp_path / "other")
    with BagReader(drive) as before, BagReader(tmp_path / "other") as after:
        counts = {topic.name: topic.count for topic in before.topics if "/camera/" not in topic.name}
        plans = counts["/localization/kinematic_state"]
        assert {topic.name: topic.count for topic in after.topics} == {**counts, gallery.OTHER_PLANNER: plans}
        (*_, last) = after.messages([gallery.OTHER_PLANNER])
        assert len(last.message().points) == gallery.OTHER_POINTS


def test_candidates_that_are_not_published_are_drawn(tmp_path):
    """In the ego frame, every half second; one that is nearly the plan is not."""
    plan = frame(1.0, EIGHT_S, verdict=Verdict.UNSAFE, source=PlanSource.PLANNER)
    ahead = geometry.compose(geometry.invert(driven(1.0)), driven(1.0 + EIGHT_S))
    own = poses_at_score_times(ahead, 0.1)
    neighbour = own + np.array([0.0, 2.0, 0.0])
    (others,) = written_report(
        record([replace(plan, alternatives=np.stack([own, neighbour]))]), tmp_path / "report.html"
    )["frames"][0]["others"]
    np.testing.assert_allclose(others, neighbour[4::5, :2], atol=0.01)
    assert "others" not in written_report(record([plan]), tmp_path / "report.html")["frames"][0]


@browser.needs_chromium
def test_a_report_plays_in_a_browser(report, tmp_path):
    played = browser.play(report, tmp_path)
    assert played["errors"] == []
    assert played["frames"] > 5
    assert len(played["colours"]) > 5  # cameras, the view from above, speeds, score, time line
    assert all(colours > 3 for colours in played["colours"]), played["colours"]


@browser.needs_chromium
def test_an_error_of_a_page_is_noticed(report, tmp_path):
    report.write_text(report.read_text().replace("function drawBev() {", "function drawBev() { nothing.x;"))
    assert any("nothing is not defined" in error for error in browser.play(report, tmp_path)["errors"])


@pytest.mark.long
@browser.needs_chromium
@pytest.mark.skipif(not (ROOT / gallery.TOWNS).is_dir(), reason="towns of CARLA are not installed (make judges)")
def test_each_drive_of_the_gallery_is_small_and_plays(tmp_path):
    assert gallery.main([]) == 0
    drives = json.loads((ROOT / gallery.GALLERY / "gallery.json").read_text())
    assert [drive["name"] for drive in drives] == [drive.name for drive in gallery.DRIVES]
    for drive in drives:
        page = ROOT / gallery.GALLERY / drive["name"] / "report.html"
        assert page.stat().st_size <= 3_000_000
        assert page.with_suffix(".jpg").stat().st_size > 30_000
        played = browser.play(page, tmp_path)
        assert played["errors"] == []
        assert played["frames"] > 5
        assert max(played["colours"]) > 50
    weights = {drive.name: drive.weight for drive in gallery.DRIVES}
    for drive in drives[-2:]:  # what they show is there
        shown = embedded(ROOT / gallery.GALLERY / drive["name"] / "report.html")["frames"][drive["plan"] - 1]
        assert weights[drive["name"]](shown) > 0.5
