"""Long work says how far it is, on a terminal and in a file."""

import io

import pytest
from rich.console import Console

from reflectdrive_ros.infra.progress import LINE_S, ShownProgress, track_progress


def run(seconds_each, terminal=False, total=10, **options):
    """Ten items that take some seconds each; the text of the console."""
    clock = {"s": 0.0}
    console = Console(file=io.StringIO(), force_terminal=terminal, get_time=lambda: clock["s"])
    with ShownProgress(console, **options) as progress:
        task = progress.add_task("driving", total=total)
        for _ in range(10):
            clock["s"] += seconds_each
            progress.advance(task)
    return console.file.getvalue()


def test_a_file_gets_a_line_per_minute_with_the_share_that_is_done():
    lines = run(0.5 * LINE_S).splitlines()
    assert lines[0] == "driving: 20 % after 1 min"
    assert lines[-1] == "driving: 100 % after 5 min"
    assert len(lines) == 5


def test_short_work_and_hidden_progress_print_nothing_into_a_file():
    assert run(0.05 * LINE_S) == run(LINE_S, hidden=True) == ""


def test_a_terminal_gets_a_bar_and_no_lines():
    text = run(LINE_S, terminal=True)
    assert "driving" in text
    assert "after" not in text


def test_work_of_unknown_length_is_told_without_a_share():
    assert run(0.11 * LINE_S, total=None) == "driving: after 1 min\n"


@pytest.mark.parametrize("items", [[1, 2, 3], iter([1, 2, 3])])
def test_tracked_items_are_those_that_were_given(items):
    assert list(track_progress(items, "work", Console(quiet=True))) == [1, 2, 3]
