"""Every fault of the table, against the real node: it survives, sends nothing unsafe, says what is wrong, and heals.

How fast is measured by `make test-faults`, not claimed here: that depends on the machine.
"""

import json

import long_runs
import pytest
from cases import CASES
from judge import Outcome, unsafe
from run_table import NUMBERS, PAGE, page, run
from scenes import config, ego

from reflectdrive_ros.planning.stop_plan import stop_plan
from reflectdrive_ros.ros import outputs


@pytest.mark.long
@pytest.mark.dds
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_node_bears_it(case, tmp_path):
    outcome = run(case, tmp_path)
    assert outcome.safe, outcome


def test_the_page_is_made_from_the_numbers():
    assert PAGE.read_text() == page(json.loads(NUMBERS.read_text())), "run python test/faults/run_table.py --page"


EVENTS = {"broken_off": 1, "process_deaths": 2, "at_fault": 3, "red_lights": 0, "stuck": 0}
MADE_BY = {"commit": "0123abcd", "date": "2026-11-28", "device": "a machine"}


def test_long_runs_are_told_with_what_is_missing_in_them(tmp_path):
    """A page must not pass a part of the worlds for all of them, nor a missing file for a good one."""
    page = long_runs.sections(tmp_path)
    assert page.count("Not measured") == 3
    assert long_runs.outdated(tmp_path)[0] == "worlds.json is missing: make test-worlds"
    row = {**EVENTS, "drives": 399, "km": 24.06, "pdms": 85.04, "worlds": [{"seed": 50000}, {"seed": 50399}]}
    content = {"planners": {"route_follower": row}, "abnormal": {"route_follower, seed 50007": "its process died"}}
    (tmp_path / "worlds.json").write_text(json.dumps({**content, **MADE_BY, "commit": "0123abcd-dirty"}))
    page = long_runs.sections(tmp_path)
    assert "| route_follower | 400 of 1000 | 1 | 2 | 1 | 24.1 | 3 | 0 | 0 | 85.0 |" in page
    assert "- route_follower, seed 50007: its process died" in page
    assert "commit 0123abcd with uncommitted changes" in page
    assert long_runs.outdated(tmp_path)[0] == "worlds.json is of uncommitted changes: make test-worlds"
    fuzz = {"inputs": 12345, "tests": {"a": 12345}, "failed": ["test_fuzz.py::a"], "seconds": 3600.0, **MADE_BY}
    (tmp_path / "fuzz.json").write_text(json.dumps(fuzz))
    page = long_runs.sections(tmp_path)
    assert "12,345 of 1,000,000 inputs in 1.0 h. Tests that failed: `test_fuzz.py::a`" in page
    assert page.count("Not measured") == 1


def test_a_stop_is_safe_and_a_plan_from_elsewhere_is_not():
    settings = config()
    stop = outputs.trajectory(stop_plan(ego(5.0), None, None, settings), settings)
    assert unsafe(stop, 0.0) == ""
    assert "from the car" in unsafe(stop, 30.0)
    assert "30.0 m beside" in unsafe(stop, 0.0, 30.0)
    stop.points[3].pose.position.y = 2.0
    assert "beside" in unsafe(stop, 0.0)
    stop.points[3].pose.position.y = float("nan")
    assert "not finite" in unsafe(stop, 0.0)


def test_an_unsafe_plan_or_a_long_silence_is_not_met():
    good = Outcome(120.0, None, 300.0, "", (), ())
    assert good.met
    assert not Outcome(250.0, None, 300.0, "", (), ()).met
    assert not Outcome(120.0, None, None, "", (), ()).met
    assert not Outcome(120.0, None, 300.0, "", ("a plan that is not finite",), ()).met
