"""Claims against NAVSIM's own code: every sub-score of every golden trajectory is the official one.

The slice in test/data/golden covers every kind of scene and the rare rules; `-m long` takes the whole set of 4355
trajectories, where it is at hand. Differences explained: there are none. All sub-scores are equal on all rows, EP, PDMS
and EPDMS to 1e-9, simulated states to the 1e-7 that the official values are rounded to. (Two things could differ in
principle and do not here: a contact or a corner within 1e-9 m of its limit, and an agent so exactly ahead that the
official acos gives NaN, quirk Q3; the golden set has neither.)
"""

import argparse
import json
import os
import re
from pathlib import Path

import numpy as np
import pytest
from changed_documents import with_field
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from reflectdrive_ros.__main__ import main
from reflectdrive_ros.bench import scoring
from reflectdrive_ros.cli import score
from reflectdrive_ros.core import geometry
from reflectdrive_ros.core.config import VehicleConfig
from reflectdrive_ros.core.tokens import Codebook, poses_from_points
from reflectdrive_ros.evaluation import golden, self_test
from reflectdrive_ros.scoring import metrics

SLICE = Path(__file__).parent / "data" / "golden"
WHOLE = Path(__file__).parents[2] / "shared" / "reference" / "golden"
needs_whole_set = pytest.mark.skipif(
    not WHOLE.is_dir(), reason="the whole golden set is not at ../shared/reference/golden"
)


def compare(folder, tmp_path):
    """Numbers of `reflectdrive score` on a folder's scenes against its official scores."""
    official = score.official_scores(folder / "scores.jsonl.gz")
    out = tmp_path / "out.jsonl.gz"
    numbers = score.score_file(folder / "scenes.jsonl.gz", out, official, states=True, console=score.Console())
    return numbers, {(row["scene_id"], row["traj"]): row for _, row in golden.read_lines(out)}, official


def assert_official(numbers, rows):
    compared = numbers["compared"]
    assert compared["rows"] == numbers["trajectories"] == rows
    assert compared["differing"] == {}
    assert compared["worst_state_error"] < 1e-6


def test_the_slice_scores_as_official(tmp_path):
    numbers, rows, official = compare(SLICE, tmp_path)
    assert_official(numbers, len(official))
    for key, row in rows.items():  # what was written can be read, and has the same keys
        assert row.keys() == official[key].keys() - {"dbg1", "dbg2"}
        for group in score.COMPARED:
            assert row[group].keys() == official[key][group].keys()
        assert golden.state_error(np.array(row["sim"]), np.array(official[key]["sim"])) < 1e-6


def test_the_slice_has_every_kind_of_scene_and_outcome():
    kinds, values = set(), {}
    for scene in golden.read_scenes(SLICE / "scenes.jsonl.gz"):
        kinds.add(scene.kind)
    for row in score.official_scores(SLICE / "scores.jsonl.gz").values():
        for group in ("v1", "v2_raw"):
            for name in ("NC", "DAC", "DDC", "TTC", "C", "HC", "LK", "TLC"):
                values.setdefault(name, set()).add(row[group].get(name))
        values.setdefault("EC", set()).add(row["EC"])
    assert len(kinds) == 14
    assert {name: {v for v in observed if v is not None} for name, observed in values.items()} == {
        "NC": {0.0, 0.5, 1.0},
        "DDC": {0.0, 0.5, 1.0},
        **{name: {0.0, 1.0} for name in ("DAC", "TTC", "C", "HC", "LK", "TLC", "EC")},
    }


@pytest.mark.long
@needs_whole_set
def test_the_whole_set_scores_as_official(tmp_path):
    numbers, _, _ = compare(WHOLE, tmp_path)
    assert_official(numbers, 4355)
    assert numbers["scenes"] == 332


# --- the command ------------------------------------------------------------------------------------------------------


def run(*words, command=score):
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    return command.run(parser.parse_args([str(word) for word in words]))


def one_scene(path, change=lambda entry: None):
    _, entry = next(golden.read_lines(SLICE / "scenes.jsonl.gz"))
    change(entry)
    path.write_text(json.dumps(entry) + "\n", encoding="utf-8")
    return path


def test_the_command_writes_rows_and_numbers(tmp_path, capsys):
    scenes = one_scene(tmp_path / "scenes.jsonl")
    out, numbers = tmp_path / "out.jsonl", tmp_path / "numbers.json"
    assert run(scenes, out, "--json", numbers, "--against", SLICE / "scores.jsonl.gz", "--codebook") == 0
    rows = [row for _, row in golden.read_lines(out)]
    content = json.loads(numbers.read_text(encoding="utf-8"))
    assert content["trajectories"] == len(rows) == content["compared"]["rows"]
    assert {"version", "commit", "device", "date", "command", "codebook"} <= content.keys()
    assert all("sim" not in row for row in rows)
    assert "PDMS" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("garbage\n", "line 1 is not JSON"),
        ("[1, 2]\n", "line 1: expected a JSON object, found list"),
        ("[" * 100_000, "line 1 nests deeper than 64 levels"),
        ("", "holds no scene"),
    ],
)
def test_a_bad_file_is_one_sentence_and_leaves_nothing(tmp_path, capsys, content, message):
    scenes, out = tmp_path / "scenes.jsonl", tmp_path / "out.jsonl"
    scenes.write_text(content, encoding="utf-8")
    assert run(scenes, out) == 2
    output = capsys.readouterr().err
    assert message in output
    assert "Traceback" not in output
    assert [path.name for path in tmp_path.iterdir()] == ["scenes.jsonl"]


@pytest.mark.parametrize(
    ("path_of_field", "value", "message"),
    [
        ("map.lanes", "wide", "line 1 has map.lanes = 'wide', expected a list"),
        ("map.lanes.0.id", ["a"], "line 1 has map.lanes[0].id = ['a'], expected text"),
        ("map.lanes.0.xy", [["a", "b"]] * 3, "line 1 has map.lanes[0].xy = [['a', 'b'],"),
        ("map.lanes.0.xy", [[0.0, 1.0], [2.0]], "line 1 has map.lanes[0].xy with rows of different lengths"),
        ("map.lanes.0.xy", [[0.0, 1.0, 2.0]], "line 1 has map.lanes[0].xy of shape (1, 3), expected (any, 2)"),
        ("map.lanes.0.xy", [[0.0, float("nan")]] * 3, "expected finite numbers"),
        ("map.lanes.0.xy", [[0.0, 0.0], [1.0, 1.0]], "[0] has shape (2, 2), expected (3 or more, 2)"),
        ("route_lane_ids", [["a"]], "line 1 has route_lane_ids[0] = ['a'], expected text"),
        ("red_lights", [[]], "line 1 has 1 entries in red_lights, expected 0, or 9 or more"),
        ("drivable_area_map", [["none", "LANE"]], "line 1 has drivable_area_map[0] = 'none', which no polygon of map"),
        ("ego.vx", 10**400, "expected a finite number"),
        ("candidates", [], "line 1 has 0 entries in candidates, expected 1 to"),
        ("candidates.0.poses", [[0.0] * 3] * 7, "candidates[0].poses of shape (7, 3), expected (8, 3)"),
        ("tracks.0.type", [], "line 1 has tracks[0].type = [], expected one of vehicle"),
        ("pdm_ref_v1.NC", "good", "line 1 has pdm_ref_v1.NC = 'good', expected a finite number"),
        ("frame_time_us", [0.5] * 14, "line 1 has frame_time_us[0] = 0.5, expected a whole number"),
        ("frame_time_us", [10**15 * k for k in range(14)], "frame_time_us spans 13000000000 s, expected at most 60 s"),
        ("candidates.0.poses", [[2e6, 0.0, 0.0]] * 8, "line 1 has candidates[0].poses with a number of size 2e+06"),
        ("candidates.0.prev", [[0.0, 0.0, 1e300]] * 8, "candidates[0].prev with a number of size 1e+300, expected at"),
        ("ego_frames.0", [1e308] * 7, "line 1 has ego_frames with a number of size 1e+308, expected at most 1e+08"),
        ("map.lanes.0.xy.0", [-1e308, 0.0], "line 1 has map.lanes[0].xy with a number of size 1e+308, expected"),
        ("tracks.0.states.0.1", 1e308, "line 1 has tracks[0].states[0][1] = 1e+308, expected a finite number"),
    ],
)
def test_a_field_of_a_wrong_type_is_named(tmp_path, capsys, path_of_field, value, message):
    def change(entry):
        entry.update(with_field(entry, path_of_field, value))

    assert run(one_scene(tmp_path / "scenes.jsonl", change), tmp_path / "out.jsonl") == 2
    output = capsys.readouterr().err
    assert message in output
    assert output.count("\n") == 1
    assert not (tmp_path / "out.jsonl").exists()


def test_a_missing_file_and_a_missing_folder_are_named(tmp_path, capsys):
    assert run(tmp_path / "none.jsonl", tmp_path / "out.jsonl") == 2
    assert "none.jsonl cannot be read: No such file" in capsys.readouterr().err
    assert run(one_scene(tmp_path / "scenes.jsonl"), tmp_path / "no" / "out.jsonl") == 2
    assert "out.jsonl cannot be written: No such file" in capsys.readouterr().err


def test_a_truncated_file_is_named(tmp_path, capsys):
    whole = (SLICE / "scenes.jsonl.gz").read_bytes()
    (tmp_path / "scenes.jsonl.gz").write_bytes(whole[: len(whole) // 2])
    assert run(tmp_path / "scenes.jsonl.gz", tmp_path / "out.jsonl") == 2
    assert "scenes.jsonl.gz cannot be read" in capsys.readouterr().err


@pytest.mark.parametrize(
    "row",
    [
        {"scene_id": "s1"},
        {"scene_id": [], "traj": 0, "v1": {}, "v2_raw": {}, "v2": {}, "epdms": {}},
        {"scene_id": "s1", "traj": 0, "v1": {"NC": "good"}, "v2_raw": {}, "v2": {}, "epdms": {}},
        {"scene_id": "s1", "traj": 0, "v1": 3, "v2_raw": {}, "v2": {}, "epdms": {}},
    ],
)
def test_scores_to_compare_with_that_are_none_are_one_sentence(tmp_path, capsys, row):
    (tmp_path / "scores.jsonl").write_text(json.dumps(row) + "\n")
    scenes = one_scene(tmp_path / "scenes.jsonl")
    assert run(scenes, tmp_path / "out.jsonl", "--against", tmp_path / "scores.jsonl") == 2
    assert "scores.jsonl, line 1: not a row of scores: it has " in capsys.readouterr().err


def test_devices_and_pipes_are_neither_read_nor_replaced(tmp_path, capsys):
    os.mkfifo(tmp_path / "pipe")
    for scenes, kind in ((Path("/dev/zero"), "device"), (tmp_path / "pipe", "pipe"), (tmp_path, "directory")):
        assert run(scenes, tmp_path / "out.jsonl") == 2
        assert f"cannot be read: it is a {kind}, a regular file is expected" in capsys.readouterr().err
    assert run(one_scene(tmp_path / "scenes.jsonl"), tmp_path / "pipe") == 2
    assert "pipe is no regular file, so it is not replaced" in capsys.readouterr().err


def test_the_bench_times_what_it_says(tmp_path, capsys):
    assert run("--runs", 1, "--json", tmp_path / "bench.json", command=scoring) == 0
    numbers = json.loads((tmp_path / "bench.json").read_text(encoding="utf-8"))
    times = [numbers[f"ms_{count}"] for count in (1, 6, 64, 221, 1000)]
    assert all(time > 0 for time in times)
    assert all(numbers[f"ms_{key}"] > numbers[f"bound_ms_{key}"] for key in ("1", "221", "1000", "221_agents_500"))
    assert {"version", "commit", "device", "date", "command"} <= numbers.keys()
    assert (numbers["agents"], numbers["polygons"]) == (5, 21)  # the medians of the whole set
    assert "221" in capsys.readouterr().out
    assert run("--golden", one_scene(tmp_path / "s.jsonl", lambda e: e.update(scene_id="other")), command=scoring) == 2
    assert "does not hold scene s0016" in capsys.readouterr().err


# --- the rounded expert -----------------------------------------------------------------------------------------------


@pytest.mark.long
@needs_whole_set
def test_a_rounded_expert_keeps_its_score():
    """The ceiling of anything that speaks in 0.3 m bins: less than half a point below the exact trajectories."""
    ceiling = golden.codebook_ceiling(golden.read_scenes(WHOLE / "scenes.jsonl.gz"), Codebook())
    for form in ("pdms", "epdms"):
        assert ceiling[form]["exact"] - ceiling[form]["rounded"] < 0.5
        assert ceiling[form]["exact"] - ceiling[form]["steps"] > 1.0  # plain directions of steps would not do


def test_headings_follow_an_arc_through_rounding():
    angle = 0.125 * np.arange(1, 9)
    arc = np.stack([30 * np.sin(angle), 30 * (1 - np.cos(angle)), angle], axis=-1)
    book = Codebook()
    poses = poses_from_points(book.decode(book.encode(arc[:, :2])))
    np.testing.assert_allclose(poses[:, 2], arc[:, 2], atol=0.06)
    np.testing.assert_allclose(poses_from_points(arc[:, :2])[:, 2], arc[:, 2], atol=0.03)


def test_a_car_that_stands_or_reverses_keeps_its_heading():
    flicker = np.array([[0.0, 0.3], [0.0, 0.0], [0.3, 0.0], [0.0, 0.3]] * 2)
    assert np.abs(poses_from_points(flicker)[:, 2]).max() < 0.1
    backwards = np.stack([-1.5 * np.arange(1, 9), np.zeros(8)], axis=-1)
    np.testing.assert_allclose(poses_from_points(backwards)[:, 2], 0.0, atol=1e-9)


@given(arrays(float, (2, 3, 8, 2), elements=st.floats(-100, 100, width=32)))
def test_poses_keep_their_points_and_mirror_with_them(points):
    poses = poses_from_points(points)
    np.testing.assert_array_equal(poses[..., :2], points)
    assert np.isfinite(poses).all()
    mirrored = poses_from_points(points * [1, -1])
    exact_opposites = np.abs(np.abs(poses[..., 2]) - np.pi) < 1e-6  # a half turn is its own mirror image
    difference = geometry.wrap(poses[..., 2] + mirrored[..., 2])
    half_turns = (np.diff(points, axis=-2, prepend=0.0)[..., 0] == 0).any(axis=-1)  # straight sideways: left or right
    assert (np.abs(difference) < 1e-6)[~exact_opposites & ~half_turns[..., None]].all()


@pytest.mark.parametrize("points", [np.zeros((8, 3)), np.zeros((0, 2)), np.full((8, 2), np.nan)])
def test_points_that_are_no_plan_are_refused(points):
    with pytest.raises(ValueError, match="poses_from_points got"):
        poses_from_points(points)


def test_the_official_car_is_nuplans():
    assert VehicleConfig(max_steering_rad=np.pi / 3) == golden.VEHICLE


# --- reflectdrive score --self-test ----------------------------------------------------------------------------------


def self_tested(tmp_path, capsys):
    file = tmp_path / "self_test.json"
    code = main(["score", "--self-test", "--json", str(file)])
    return code, json.loads(file.read_text()), capsys.readouterr().out


def test_the_self_test_names_the_arithmetic_and_is_equal(tmp_path, capsys):
    code, numbers, shown = self_tested(tmp_path, capsys)
    assert (code, numbers["equal"], numbers["compared"]["differing"]) == (0, True, {})
    assert numbers["compared"]["rows"] == numbers["trajectories"] > 100
    assert numbers["numpy"].startswith(np.__version__)
    assert re.fullmatch(r"\S+ \S+: \w+", numbers["blas"]), numbers["blas"]
    for name in ("numpy", "blas"):
        assert numbers[name] in shown
    again = self_tested(tmp_path, capsys)[1]
    assert again["results_sha256"] == numbers["results_sha256"]


def test_a_machine_that_scores_differently_fails_the_self_test(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(metrics, "COMFORT_HIGH", 0.5 * metrics.COMFORT_HIGH)
    code, numbers, shown = self_tested(tmp_path, capsys)
    assert (code, numbers["equal"]) == (1, False)
    assert "DIFFERENT from the official scores" in shown


def test_the_scenes_of_the_self_test_are_of_the_slice():
    slice_scenes = {scene["scene_id"]: scene for _, scene in golden.read_lines(SLICE / "scenes.jsonl.gz")}
    slice_rows = score.official_scores(SLICE / "scores.jsonl.gz")
    scenes = [scene for _, scene in golden.read_lines(self_test.SCENES)]
    assert all(slice_scenes[scene["scene_id"]] == scene for scene in scenes)
    rows = score.official_scores(self_test.SCORES)
    assert len({scene_id for scene_id, _ in rows}) == len(scenes)
    for key, row in rows.items():
        assert row == {name: value for name, value in slice_rows[key].items() if name not in ("dbg1", "dbg2")}


@pytest.mark.parametrize(
    ("words", "sentence"),
    [(["--self-test", "a", "b"], "scenes of its own"), ([], "SCENES and OUT are missing"), (["a"], "are missing")],
)
def test_files_and_the_self_test_exclude_each_other(words, sentence, capsys):
    assert main(["score", *words]) == 2
    assert sentence in capsys.readouterr().err
