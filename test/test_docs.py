"""Pages are up to date and short, sentences exist, links and commands lead somewhere."""

import importlib.util
import json
import re
import runpy
from pathlib import Path
from xml.etree import ElementTree

import pytest

from reflectdrive_ros.__main__ import BENCHES, COMMANDS
from reflectdrive_ros.config import Config, settings
from reflectdrive_ros.ros import topics

ROOT = Path(__file__).parents[1]
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")])
LINES_MAX = {"README.md": 119}  # of the others 250


def test_the_topics_page_is_made_from_the_table():
    command = "python -m reflectdrive_ros.ros.topics > docs/topics.md"
    assert (ROOT / "docs" / "topics.md").read_text() == topics.as_markdown(Config()), f"run {command}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_and_anchors_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)]+)\)", page.read_text()):
        if "://" in target:
            continue
        file, _, anchor = target.partition("#")
        there = (page.parent / file).resolve() if file else page
        assert there.exists(), f"{page.name} links to {target}"
        if anchor:
            headings = re.findall(r"^#+ (.+)$", there.read_text(), re.MULTILINE)
            assert anchor in {re.sub(r"[^\w\- ]", "", h).strip().lower().replace(" ", "-") for h in headings}, target


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_commands_and_settings_on_the_pages_exist(page):
    text = page.read_text()
    for command in re.findall(r"^\s*(?:\.venv/bin/)?reflectdrive ([a-z-]+)", text, re.MULTILINE):
        assert command in {*COMMANDS, "bench"}, f"{page.name} names the command {command}"
    for bench in re.findall(r"reflectdrive bench ([a-z-]+)", text):
        assert bench in BENCHES, f"{page.name} names bench {bench}"
    names = {entry.name for entry in settings(Config())}
    sections = "|".join(sorted({name.split(".")[0] for name in names if "." in name}))
    for name in re.findall(rf"`((?:{sections})\.[a-z_]+)`", text):
        is_file = name.endswith(".json")  # of measured numbers: the pages of results name them all
        assert name in names or is_file or name.endswith("_"), f"{page.name} names the setting {name}"


def test_make_targets_on_the_pages_exist():
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for page in PAGES:
        for target in re.findall(r"\bmake ([a-z-]+)(?= *(?:#|$|`|ARGS))", page.read_text(), re.MULTILINE):
            assert target in targets, f"{page.name} names make {target}"


def links(page):
    """Files that a page links to."""
    targets = re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text())
    return {(page.parent / target).resolve() for target in targets if "://" not in target}


def test_every_page_is_linked_from_the_readme_or_from_a_page_that_is():
    found, todo = set(), [ROOT / "README.md"]
    while todo:
        page = todo.pop()
        found.add(page)
        todo += [target for target in links(page) if target.suffix == ".md" and target not in {*found, *todo}]
    assert set(PAGES) <= found, sorted(page.name for page in set(PAGES) - found)


def test_every_row_of_what_autoware_expects_names_its_test():
    section = (ROOT / "docs" / "integration.md").read_text().split("## What Autoware expects")[1].split("\n## ")[0]
    rows = re.findall(r"^\| (?!requirement)([^|]+) \|[^|]*\| ([^|]+) \|$", section, re.MULTILINE)
    assert len(rows) > 20
    for requirement, named in rows:
        if named == "none":
            continue
        file, test = re.fullmatch(r"`(test/\w+\.py)::(test_\w+)`", named).groups()
        assert f"\ndef {test}(" in (ROOT / file).read_text(), f"{requirement}: {named} does not exist"


def test_the_readme_lists_every_command():
    """In the order of `reflectdrive --help`."""
    text = (ROOT / "README.md").read_text()
    listed = re.search(r"`reflectdrive --help` lists the commands \(([^)]*)\)", text)
    assert re.findall(r"`([\w-]+)`", listed.group(1)) == [*COMMANDS, "bench"]


def numbers_of(stem):
    return json.loads((ROOT / f"docs/bench/{stem}.json").read_text())


def test_the_scores_of_the_readme_are_those_of_the_files():
    """Scene sets, then drives: reflectdrive2, reflexdiffusion, random weights."""
    shipped, diffusion = numbers_of("eval-test-shipped")["drivers"], numbers_of("eval-test-reflexdiffusion")["drivers"]
    bare = numbers_of("eval-test-reflexdiffusion-single")["drivers"]["reflexdiffusion (objects)"]["pdms"]
    rows = {
        privilege: [shipped[f"reflectdrive2 ({privilege})"]["pdms"]]
        + ([diffusion["reflexdiffusion (objects)"]["pdms"], bare] if privilege == "objects" else [])
        + [shipped[f"reflectdrive2 random weights ({privilege})"]["pdms"]]
        + ([diffusion["reflexdiffusion random weights (objects)"]["pdms"]] if privilege == "objects" else [])
        for privilege in ("words", "route", "objects")
    }
    table = (ROOT / "README.md").read_text().split("## How good it is")[1].split("## What it is not")[0]
    for privilege, scores in rows.items():
        (line,) = [line for line in table.splitlines() if f"privilege `{privilege}`" in line]
        printed = re.findall(r"\d+\.\d", line.split("|", 2)[2])
        assert printed == [f"{score:.1f}" for score in scores], line
    drives = {
        "20 fresh worlds": ("closed-loop-road", "closed-loop-road-reflexdiffusion"),
        "CARLA's towns": (
            *("closed-loop-judge-carla", "closed-loop-judge-carla-road", "closed-loop-judge-carla-reflexdiffusion"),
            *("closed-loop-judge-carla-road-reflexdiffusion", "closed-loop-judge-carla-random"),
        ),
    }
    for name, stems in drives.items():
        (line,) = [line for line in table.splitlines() if name in line]
        for stem in stems:
            for planner, row in numbers_of(stem)["planners"].items():
                if planner != "route_follower":
                    assert f"{row['pdms']:.1f};" in line, (stem, planner)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_towns_that_code_was_changed_by_are_called_towns_for_development(page):
    """CARLA's Town04 to Town06 are no judge: nobody has to find that out by the list of what was changed."""
    text = " ".join(page.read_text().split())
    assert "no setting is chosen by them" not in text
    assert not re.search(r"\b(judge's|judge found|Judge towns?)\b", text)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_a_page_is_short(page):
    lines = len(page.read_text().splitlines())
    assert lines <= LINES_MAX.get(page.name, 250)


def test_the_figures_of_the_planners_are_those_of_their_script():
    folder = ROOT / "docs" / "planners"
    for name, content in runpy.run_path(str(folder / "figures.py"))["FIGURES"].items():
        assert (folder / name).read_text(encoding="utf-8") == content, "run python docs/planners/figures.py"


def test_the_figure_of_corrected_scenes_is_small_and_has_its_scores():
    content = (ROOT / "docs" / "planners" / "corrections.svg").read_text(encoding="utf-8")
    assert len(content) < 150_000
    texts = [text.text or "" for text in ElementTree.fromstring(content).iter("{http://www.w3.org/2000/svg}text")]
    assert sum("PDMS" in text and "before" in text for text in texts) == 3


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_modules_and_source_files_on_the_pages_exist(page):
    text = page.read_text()
    for module in re.findall(r"python -m (reflectdrive_ros[\w.]*)", text):
        assert importlib.util.find_spec(module), f"{page.name} names the module {module}"
    package = ROOT / "reflectdrive_ros"
    places = [ROOT, package, *(folder for folder in package.rglob("*") if folder.is_dir())]
    for file in re.findall(r"`([\w/]+\.py)`", text):
        assert any((place / file).is_file() for place in places), f"{page.name} names the file {file}"
