"""Replays by `reflectdrive replay`."""

import csv
import json

import pytest
from shared import create_once

from reflectdrive_ros.__main__ import main


@pytest.fixture(scope="session", name="followed")
def followed_recording(pandaset):
    """The whole recording through the follower, with its report: summary and folder."""

    def make(out):
        assert replayed(pandaset, out, "--json", str(out / "copy.json"))[0] == 0

    out = create_once("followed", make)
    return json.loads((out / "summary.json").read_text()), out


def replayed(bag, out, *words):
    words = words if "--planner" in words else ("--planner", "route_follower", *words)
    code = main(["replay", str(bag), "--out", str(out), *words])
    numbers = json.loads((out / "summary.json").read_text()) if (out / "summary.json").exists() else {}
    return code, numbers


def rows_without_times(out):
    """Of plans.csv, without the times of this machine."""
    with (out / "plans.csv").open() as file:
        return [{name: cell for name, cell in row.items() if name != "latency_ms"} for row in csv.DictReader(file)]
