"""Claims about `bench compare`: what is a change, what is noise, and that a slower machine is neither."""

import json

import pytest

from reflectdrive_ros.__main__ import main
from reflectdrive_ros.bench.compare import compare


def measured(ms, bound_ms=1.0, spread=0.02):
    return {"ms_6": ms, "bound_ms_6": bound_ms, "quartiles_ms_6": [ms * (1 - spread / 2), ms * (1 + spread / 2)]}


@pytest.mark.parametrize(
    ("old", "new", "verdict"),
    [
        (measured(4.0), measured(2.0), "faster"),
        (measured(4.0), measured(4.4), "slower"),
        (measured(4.0), measured(4.05), "within noise"),
        (measured(4.0, spread=0.3), measured(4.8, spread=0.3), "within noise"),
        (measured(4.0, bound_ms=1.0), measured(8.0, bound_ms=2.0), "within noise"),  # a machine of half the speed
        ({"full_ms_p50": 20.0}, {"full_ms_p50": 21.0}, "within noise"),  # without quartiles, 10 % of each
        ({"full_ms_p50": 20.0}, {"full_ms_p50": 30.0}, "slower"),
    ],
)
def test_a_change_is_what_exceeds_the_noise_of_both(old, new, verdict):
    assert [change.verdict for change in compare(old, new)] == [verdict]


def test_only_times_that_both_files_have_are_compared():
    old = {"ms_1": 1.0, "ms_6": 2.0, "runs": 5, "times_faster": 3.0, "wall_ms_1": 1.0}
    assert [change.name for change in compare(old, {"ms_1": 1.0, "runs": 6, "wall_ms_1": None})] == ["ms_1"]


def test_the_command_says_it_in_a_table_and_in_json(tmp_path, capsys):
    paths = [tmp_path / "old.json", tmp_path / "new.json"]
    for path, ms in zip(paths, (4.0, 2.0), strict=True):
        path.write_text(json.dumps({"deep": measured(ms), **measured(ms)}))
    assert main(["bench", "compare", *map(str, paths), "--json", str(tmp_path / "both.json")]) == 0
    assert "faster" in capsys.readouterr().out
    assert json.loads((tmp_path / "both.json").read_text())["ms_6"]["verdict"] == "faster"


@pytest.mark.parametrize("content", ["[]", "no json", '{"runs": 3}'])
def test_a_file_that_cannot_be_compared_is_named(tmp_path, capsys, content):
    (tmp_path / "odd.json").write_text(content)
    assert main(["bench", "compare", str(tmp_path / "odd.json"), str(tmp_path / "odd.json")]) == 2
    assert "odd.json" in capsys.readouterr().err
