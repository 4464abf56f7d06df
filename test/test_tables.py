"""Claims about tables in a terminal of 80 columns: every number of every command is whole, no cell is cut, and no
sentence is broken into one word a line."""

import io
import json
import os
import re
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console
from rich.table import Table

from reflectdrive_ros.__main__ import main
from reflectdrive_ros.bench import node, parity, scoring, step
from reflectdrive_ros.cli import dataset, doctor
from reflectdrive_ros.core.config import Config
from reflectdrive_ros.data.scene import FAMILIES
from reflectdrive_ros.evaluation import driving_scores, open_loop, recorded_tracks, variants
from reflectdrive_ros.evaluation.driving_scores import MEASURES
from reflectdrive_ros.infra import command
from reflectdrive_ros.infra.command import CELL_COLUMNS, make_list, make_table
from reflectdrive_ros.ros.system_checks import run_checks

HERE = Path(__file__).parent
MEASURED = HERE.parents[0] / "docs" / "bench"
DRIVERS = variants.of_planners(Config(), ["route_follower", "reflectdrive2"], ["words", "objects"], random_weights=True)
PACKAGE = Path(command.__file__).parents[1]


def text_of(table, width=80):
    console = Console(width=width, file=io.StringIO(), markup=False, emoji=False, highlight=False)
    console.print(table)
    return console.file.getvalue()


def cells_of(table):
    """Text of the cells, those of the headings last."""
    every = [cell for column in table.columns for cell in column.cells]
    return [getattr(cell, "plain", cell) for cell in every]


def assert_whole(table, width=80):
    """Every cell of a table is in its drawing: short ones on one line, sentences with several words a line."""
    text = text_of(table, width)
    lines = [line.rstrip() for line in text.splitlines()]
    assert max(map(len, lines)) <= width
    assert "…" not in text
    words = re.sub(r"[\s│]+", " ", text)
    for cell in cells_of(table):
        for part in filter(None, cell.split("\n")):
            if len(part) <= CELL_COLUMNS:
                assert any(part in line for line in lines), f"{part!r} is not whole in\n{text}"
            elif max(map(len, part.split())) <= CELL_COLUMNS:  # a longer path is folded
                begin = part[: CELL_COLUMNS + 1].rpartition(" ")[0]
                assert any(begin in line for line in lines), f"{begin!r} is broken in\n{text}"
                assert all(word in words for word in part.split()), f"{part!r} is cut in\n{text}"
    return text


def test_a_narrow_terminal_shows_a_table_in_parts_that_each_name_their_rows():
    headings = ("driver", "family", *(f"measure {index}" for index in range(12)))
    rows = [("reflectdrive2 (objects)", "stop_and_go", *(f"{index}.{index:03d}" for index in range(12)))]
    text = assert_whole(make_table(headings, rows, "a title", "a caption", texts=2))
    assert text.count("reflectdrive2 (objects)") == 3
    assert text.index("a title") < text.index("measure") < text.index("a caption")


def test_a_table_that_fits_is_one_part_and_every_heading_is_in_a_table_that_does_not():
    rows = [("a", "1.00", "2.00")]
    assert text_of(make_table(("name", "one", "two"), rows)).count("name") == 1
    wide = make_table(("name", *(f"heading{index:02d}" for index in range(20))), [("a", *"0" * 20)])
    assert all(f"heading{index:02d}" in text_of(wide) for index in range(20))


@pytest.mark.parametrize("width", [40, 60, 80, 100, 120, 180])
def test_numbers_are_whole_at_every_width(width):
    rows = [(f"planner {row}", *(f"{10.0**column:.2f}" for column in range(7))) for row in range(3)]
    assert_whole(make_table(("", *(f"number {column} in m" for column in range(7))), rows, "numbers"), width)


def test_sentences_are_stacked_below_the_names_of_their_row():
    sentence = "launch and demo set it themselves; every other process that sends or receives images needs it"
    names = ("NVIDIA driver", "MISSING (optional)")
    table = make_table(("", "state", "found", "what to do"), [(*names, sentence, sentence)], texts=2)
    text = assert_whole(table)
    assert text.startswith(
        "NVIDIA driver · MISSING (optional)\n    found       launch and demo set it themselves; every other process"
    )
    assert len(text.splitlines()) == 5


def test_a_list_wraps_its_values_between_words():
    sentence = "launch and demo set it themselves; every other process that sends or receives images needs it"
    assert_whole(make_list("a list", {"largest lateral shift": "1.23 m", "noted": sentence}))


def test_tables_are_made_in_one_module():
    others = [file for file in PACKAGE.rglob("*.py") if re.search(r"(?<!\w)Table\(", file.read_text())]
    assert others == [PACKAGE / "infra" / "command.py"]


# --- the tables of the commands --------------------------------------------------------------------------------------


def random_rows(drivers, generator):
    return {driver: generator.uniform(0.0, 1.0, len(MEASURES)).tolist() for driver in drivers}


def test_eval_of_scenes_is_whole():
    generator = np.random.default_rng(0)
    result = open_loop.Result(
        scores={driver: [] for driver in (open_loop.EXPERT, *DRIVERS)},
        best={driver: [] for driver in DRIVERS if "reflectdrive2" in driver},
        references=variants.references(DRIVERS),
        distances={driver: [] for driver in DRIVERS},
    )
    for index, family in enumerate(FAMILIES):
        result.names.append(f"test-00000-{index:03d}")
        result.localities.append(("us-pa-pittsburgh-hazelwood", "sg-one-north")[index % 2])
        result.add(family, random_rows(result.scores, generator), dict.fromkeys(result.best, 1.0))
        for distances in result.distances.values():
            distances.append(generator.uniform(0.0, 100.0, 8))
    numbers = open_loop.numbers(result)
    for by_family in (False, True):
        assert_whole(open_loop._table("test", result, numbers["drivers"], by_family))
        assert_whole(open_loop._displacement_table(result, numbers["drivers"], by_family))
        assert_whole(driving_scores.difference_table(numbers["differences"], by_family))


def test_eval_of_recordings_is_whole():
    generator = np.random.default_rng(1)
    result = recorded_tracks.TrackResult(scores={driver: [] for driver in ("human", *DRIVERS)}, recordings=12)
    for site in ("DR_USA_Roundabout_FT", "CHN_Merging_ZS0"):
        result.add(site, random_rows(result.scores, generator))
    for by_site in (False, True):
        assert_whole(recorded_tracks._table(result, by_site))


@pytest.fixture
def printed(monkeypatch):
    """What commands print on a standard output of 80 columns: the tables among it."""
    tables = []

    class Recorder(command.Output):
        def print(self, *objects, **options):
            tables.extend(each for each in objects if isinstance(each, Table))
            super().print(*objects, **options)

    monkeypatch.setattr(command, "LOG_WIDTH", 80)
    monkeypatch.setattr(command, "Output", Recorder)
    return tables


def test_replay_of_one_bag_of_several_and_compare_are_whole(printed, tmp_path, capsys):
    first, second, one = (tmp_path / name for name in ("route_follower", "constant_velocity", "one"))
    bags, words = tmp_path / "bags", ("--setting", "cameras.required=false", "--duration", "6", "--planner")
    for command_line in (
        *(("make-bag", HERE / "data" / "comma2k19_example", bags / day) for day in ("monday", "tuesday")),
        *(("replay", bags, "--out", out, *words, out.name) for out in (first, second)),
        ("replay", bags / "monday", "--out", one, *words, "route_follower"),
        ("compare", first, second),
    ):
        assert main([*map(str, command_line)]) == 0
    assert len(printed) == 6
    for table in printed:
        assert_whole(table)
    assert max(map(len, capsys.readouterr().out.splitlines())) < 200  # paths are not folded


def test_doctor_is_whole():
    assert_whole(doctor._table(list(run_checks(os.environ, Config()))))


@pytest.mark.parametrize(
    ("file", "table"),
    [
        ("dataset", dataset.table),
        ("scoring", scoring.table),
        ("node", node.table),
        ("step", step.engine_table),
        ("parity", parity.table),
    ],
)
def test_a_dataset_and_a_bench_are_whole(file, table):
    assert_whole(table(json.loads((MEASURED / f"{file}.json").read_text())))
