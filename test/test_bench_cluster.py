"""`bench cluster`: work gives the same result with any number of workers; ratios are of neighbouring runs."""

import argparse
import io

import pytest
from rich.console import Console
from stored_scenes import store

from reflectdrive_ros.bench import cluster
from reflectdrive_ros.core.config import Config


def run(wall_s, cpu_s):
    return {"wall_s": wall_s, "cpu_s": cpu_s}


def test_ratios_are_of_runs_that_followed_each_other():
    """The machine is twice as slow in the second round: medians of sums would compare different rounds."""
    found = cluster.medians(
        {
            "one": [run(2.0, 2.0), run(4.0, 2.0), run(2.0, 2.0)],
            "local": [run(1.0, 2.0), run(2.5, 2.0), run(1.0, 2.0)],
            "ray": [run(1.1, 2.2), run(2.5, 2.0), run(1.1, 2.4)],
        }
    )
    assert found["more_percent"] == pytest.approx({"wall_s": 10.0, "cpu_s": 10.0})
    assert found["speed_up"] == pytest.approx(2.0)
    assert found["local"] == {"wall_s": 1.0, "cpu_s": 2.0}


def test_scored_scenes_are_the_same_with_one_and_two_workers(tmp_path):
    store(tmp_path / "val", shards_of=(3, 2), name="val")
    args = argparse.Namespace(scenes=str(tmp_path / "val"), workers=1, limit=5)
    work = cluster.score_scenes(args, Config(), Console(quiet=True))
    one, two = work(1), work(2)
    assert one == two
    assert one.count("route_follower") == 1


def test_work_is_chosen_by_name():
    parser = argparse.ArgumentParser()
    cluster.add_arguments(parser)
    assert parser.parse_args(["--work", "eval", "--limit", "7"]).limit == 7


def test_the_table_tells_scaling_and_the_price_of_ray():
    numbers = {
        "work": "eval",
        "scenes": 500,
        "repeats": 3,
        "workers": 2,
        "equal_results": True,
        "start": run(1.0, 2.0),
        **cluster.medians({kind: [run(2.0, 1.0)] for kind in ("one", "local", "ray")}),
    }
    shown = Console(width=200, file=io.StringIO())
    shown.print(cluster.table(numbers))
    text = shown.file.getvalue()
    assert "eval, 500 scenes, 2 workers" in text
    assert "results are equal" in text
