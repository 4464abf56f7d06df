"""The pages tell the truth: made pages are up to date, sentences exist, links and commands lead somewhere."""

import re
from pathlib import Path

import pytest

from reflectdrive_ros.__main__ import BENCHES, COMMANDS
from reflectdrive_ros.config import Config, settings
from reflectdrive_ros.ros import topics

ROOT = Path(__file__).parents[1]
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")])
SOURCE = "\n".join(file.read_text() for file in sorted((ROOT / "reflectdrive_ros").rglob("*.py")))


def test_the_topics_page_is_made_from_the_table():
    command = "python -m reflectdrive_ros.ros.topics > docs/topics.md"
    assert (ROOT / "docs" / "topics.md").read_text() == topics.as_markdown(Config()), f"run {command}"


def sentences():
    """The sentences of the diagnostics that running.md explains, as their fixed parts."""
    page = (ROOT / "docs" / "running.md").read_text().split("## What each sentence means")[1]
    rows = re.findall(r"^\| `(.+?)` \|", page, re.MULTILINE)
    assert len(rows) > 25
    return [(row, [part.strip(" ':") for part in row.split("…") if len(part.strip(" ':")) > 3]) for row in rows]


@pytest.mark.parametrize(("sentence", "parts"), sentences(), ids=lambda value: value if isinstance(value, str) else "")
def test_every_explained_sentence_is_one_that_the_node_says(sentence, parts):
    assert parts
    for part in parts:
        assert part in SOURCE, f"nothing in the package says '{part}'"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
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


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_and_settings_on_the_pages_exist(page):
    text = page.read_text()
    for command in re.findall(r"^\s*(?:\.venv/bin/)?reflectdrive ([a-z-]+)", text, re.MULTILINE):
        assert command in {*COMMANDS, "bench"}, f"{page.name} names the command {command}"
    for bench in re.findall(r"reflectdrive bench ([a-z-]+)", text):
        assert bench in BENCHES, f"{page.name} names bench {bench}"
    names = {entry.name for entry in settings(Config())}
    sections = "|".join(sorted({name.split(".")[0] for name in names if "." in name}))
    for name in re.findall(rf"`((?:{sections})\.[a-z_]+)`", text):
        is_file = name.endswith(".json")  # of measured numbers: results.md names them all
        assert name in names or is_file or name.endswith("_"), f"{page.name} names the setting {name}"


def test_make_targets_on_the_pages_exist():
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for page in PAGES:
        for target in re.findall(r"\bmake ([a-z-]+)(?= *(?:#|$|`|ARGS))", page.read_text(), re.MULTILINE):
            assert target in targets, f"{page.name} names make {target}"
