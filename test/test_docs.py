"""Pages are up to date and short, of the present and of one kind; links and commands lead somewhere."""

import importlib.util
import json
import re
import runpy
from pathlib import Path
from xml.etree import ElementTree

import pytest

from reflectdrive_ros.__main__ import BENCHES, COMMANDS
from reflectdrive_ros.core.config import Config, settings
from reflectdrive_ros.ros import topics

pytestmark = pytest.mark.meta

ROOT = Path(__file__).parents[1]
LAB = ROOT / "docs" / "lab"  # dated notes of measurements: their commands are of their date
NOTES = sorted(LAB.glob("*.md"))
PAGES = sorted({ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")} - set(NOTES))
MEASURED = ("results.md", "results_settings.md", "faults.md")  # made from measurements, each with its commit and seeds
KINDS = ("tutorial", "how-to", "reference", "explanation")
HISTORY = {
    r"\bformer(ly)?\b": "say what is",
    r"\bused to\b": "say what is",
    r"\bruns? \d": "a run of training is told in docs/lab",
    r"(?<![-_])\bseeds? \d": "a seed belongs to a command or to docs/lab",
    r"\b(?=\d*[a-f])(?=[a-f]*\d)[0-9a-f]{7,40}\b": "a commit belongs to docs/lab",
    r"no setting is chosen by them|\b(judge's|judge found|Judge towns?)\b": "code was changed by them: for development",
}
WORDS_MAX = 42_000
LINES_MAX = {"README.md": 119}  # of the others 250


def test_the_topics_page_is_made_from_the_table():
    command = "python -m reflectdrive_ros.ros.topics > docs/topics.md"
    assert (ROOT / "docs" / "topics.md").read_text() == topics.as_markdown(Config()), f"run {command}"


@pytest.mark.parametrize("page", [*PAGES, *NOTES], ids=lambda page: page.relative_to(ROOT).as_posix())
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
    linked, todo = set(), [ROOT / "README.md"]
    while todo:
        page = todo.pop()
        linked.add(page)
        todo += [target for target in links(page) if target.suffix == ".md" and target not in {*linked, *todo}]
    assert set(PAGES) <= linked, sorted(page.name for page in set(PAGES) - linked)


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


@pytest.mark.parametrize("script", sorted(ROOT.glob("docs/planners/*figure*.py")), ids=lambda script: script.name)
def test_scripts_that_draw_figures_find_what_they_import(script):
    assert runpy.run_path(str(script), run_name="imported")["__doc__"]


def numbers_of(stem):
    return json.loads((ROOT / f"docs/bench/{stem}.json").read_text())


def test_the_scores_of_the_readme_are_those_of_the_files():
    """One number per cell, all with the same inputs beside images; the columns are the planners."""
    text = (ROOT / "README.md").read_text()
    table = text.split("## How good it is")[1].split("## Limits")[0]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines() if line.startswith("|")]
    planners = [cell.strip("`") for cell in rows[0][1:]]
    scenes, drives = numbers_of("eval-test")["drivers"], numbers_of("closed-loop")["planners"]
    towns = numbers_of("closed-loop-judge-carla")["planners"]
    assert [row[1:] for row in rows[2:]] == [
        [f"{scenes[f'{planner} (objects)']['pdms']:.1f}" for planner in planners],
        [f"{drives[planner]['drive_score']:.1f}" for planner in planners],
        [f"{towns[planner]['drive_score']:.1f}" for planner in planners],
        [str(drives[planner]["at_fault"] + towns[planner]["at_fault"]) for planner in planners],
    ]
    most = [max(each[planner]["drives"] for planner in planners) for each in (drives, towns)]
    for each, count in zip((drives, towns), most, strict=True):
        fewer = {planner: each[planner]["drives"] for planner in planners if each[planner]["drives"] < count}
        assert all(f"`{planner}` drove {number} of the {count}" in text for planner, number in fewer.items())
    counts = [scenes[f"{planners[0]} (objects)"]["scenes"], *most]
    assert [int(re.findall(r"\d+", row[0])[0]) for row in rows[2:5]] == counts
    untrained = scenes["reflectdrive2 random weights (objects)"]["pdms"]
    sentence = f"With random weights, choice of the goal, check and repair alone reach {untrained:.1f} in"
    assert sentence in " ".join(text.split())
    for network, row in (("reflectdrive2_scene", "edited (objects)"), ("drivefine_scene", "refined (objects)")):
        assert f"[{numbers_of(f'variants-{network}')['differences'][row]['pdms']:+.1f}](docs/planners/" in text


def quoted():
    """(page, a sentence of it with the numbers of the files), of pages that are not made from them."""
    for name, row in numbers_of("closed-loop")["planners"].items():
        yield "planners/README.md", f"`{name}` {row['drive_score']:.1f}"
    best = {"closed-loop": "reflectdrive2", "closed-loop-judge-carla": "reflexdiffusion"}
    for table, planner in best.items():
        row = numbers_of(table)["differences"][planner]
        low, high = row["drive_score_95"]
        difference = f"{row['drive_score']:+.1f} ({low:+.1f} .. {high:+.1f})"
        yield "planners/README.md", f"`{planner}` less `fiss_plus` is {difference}"
        if low > 0.0:
            yield "../README.md", f"`{planner}` is ahead of `fiss_plus`: {difference}"
    scenes, tracks = numbers_of("eval-test")["drivers"], numbers_of("eval-real_tracks")["drivers"]
    own, follower = (scenes[f"{name} (objects)"]["pdms"] for name in ("idm_proposals", "route_follower"))
    yield "planners/idm_proposals.md", f"{own:.1f} PDMS, `route_follower` {follower:.1f}"
    human, follower = (tracks[name]["pdms"] for name in ("human", "route_follower"))
    yield "evaluation.md", f"human {human:.1f}, `route_follower` {follower:.1f}"
    guidance = numbers_of("variants-reflexdiffusion")["differences"]
    less, more = (guidance[f"guidance_{weight} (objects)"]["pdms"] for weight in ("0.9", "1.3"))
    yield "planners/reflexdiffusion.md", f"elsewhere it costs {-less:.1f}, and guidance of 1.3 changes {more:+.2f}"
    for name, row in numbers_of("conformance")["planners"].items():
        if share := row["checks"]["lateral_jerk_mps3"]["share_over"]:
            yield "integration.md", f"`{name}` {100.0 * share:.1f} %"
    drives = numbers_of("variants-lost_inputs_driven")["planners"]
    both, alone = (drives[name]["planning_ms"]["mean"] for name in ("both", "reflectdrive2"))
    yield "planners/README.md", f"{both:.0f} ms of one core on average in these drives, {alone:.0f} ms with"
    parts = numbers_of("step")["parts"]
    p50, p99, repaired = parts["all"]["ms_p50"], parts["all"]["ms_p99"], parts["repaired"]["ms_p50"]
    times = f"{p50:.1f} ms of processor time (median; p99 {p99:.1f}), {repaired:.1f} ms where a plan is repaired"
    yield "planners/check_and_repair.md", times
    for page, row in (("reflectdrive2", "edited (objects)"), ("drivefine", "refined (objects)")):
        difference = numbers_of(f"variants-{page}_scene")["differences"][row]
        low, high = difference["pdms_95"]
        yield f"planners/{page}.md", f"{difference['pdms']:+.2f} ({low:+.2f} .. {high:+.2f})"


def test_the_scores_and_times_on_other_pages_are_those_of_the_files():
    for page, sentence in quoted():
        assert sentence in " ".join((ROOT / "docs" / page).read_text().split()), f"{page}: {sentence}"


def test_the_index_has_every_page_under_one_kind():
    index = (ROOT / "README.md").read_text().split("## Documentation")[1].split("\n## ")[0]
    rows = dict(re.findall(r"^\| \*\*([a-z-]+)\*\* \| (.+) \|$", index, re.MULTILINE))
    assert tuple(rows) == KINDS
    listed = [file for row in rows.values() for file in re.findall(r"\]\(docs/([\w/]+\.md)\)", row)]
    assert len(listed) == len(set(listed)), "a page has one kind"
    second_parts = {"results_settings.md"}  # of results.md
    pages = {page.name for page in (ROOT / "docs").glob("*.md")} - second_parts
    assert pages <= set(listed), sorted(pages - set(listed))
    assert not any(file.startswith("lab/") for file in listed)


@pytest.mark.parametrize(
    "page", [page for page in PAGES if page.name not in MEASURED], ids=lambda page: page.relative_to(ROOT).as_posix()
)
def test_a_page_tells_the_present(page):
    """The story of a measurement is in docs/lab."""
    text = " ".join(page.read_text().split())
    hits = [(hit[0], advice) for pattern, advice in HISTORY.items() for hit in re.finditer(pattern, text)]
    assert not hits, hits


@pytest.mark.parametrize(
    ("text", "tells"),
    [
        ("the former network has 82.2", True),
        ("it used to stop", True),
        ("as in run 7", True),
        ("world of seed 854", True),
        ("since commit `1b4436b`", True),
        ("--first-seed 720 --seeds 20, seed:=3, --seed 3", False),
        ("a transformer that is used for 16777216 bytes", False),
    ],
)
def test_history_is_recognised(text, tells):
    assert any(re.search(pattern, text) for pattern in HISTORY) == tells


def test_notes_of_measurements_have_their_date():
    for note in NOTES:
        assert note.name == "deleted.md" or re.match(r"20\d\d-[01]\d-[0-3]\d-[a-z0-9-]+\.md$", note.name), note.name


def test_the_pages_have_at_most_so_many_words():
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")]
    words = {page.name: len(page.read_text().split()) for page in pages}
    longest = ", ".join(f"{name} {count}" for name, count in sorted(words.items(), key=lambda one: -one[1])[:8])
    assert sum(words.values()) <= WORDS_MAX, f"{sum(words.values())}: {longest}"


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
    folders = [ROOT, package, *(folder for folder in package.rglob("*") if folder.is_dir())]
    for file in re.findall(r"`([\w/]+\.py)`", text):
        assert any((parent / file).is_file() for parent in folders), f"{page.name} names the file {file}"
