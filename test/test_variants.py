"""Variants are rows of settings; they are scored on the same scenes or drives and compared pair by pair."""

import json
from functools import partial

import commands
import numpy as np
import pytest
from stored_scenes import scenes_folder  # noqa: F401 (a fixture)
from tiny_model import tiny_model  # noqa: F401 (a fixture)

from reflectdrive_ros.cli import eval as eval_command
from reflectdrive_ros.core.config import Config
from reflectdrive_ros.evaluation import bootstrap, variants
from reflectdrive_ros.evaluation.driving_scores import MEASURES

FOLLOWER, CAPPED = ("a", "planner=route_follower"), ("b", "planner=route_follower", "guard.max_speed_mps=3")
STRAIGHT = ("c", "planner=constant_velocity")


command = partial(commands.run, eval_command)


def of_variants(*rows):
    return [word for row in rows for word in ("--variant", *row)]


# --- the rows --------------------------------------------------------------------------------------------------------


def test_settings_of_a_variant_are_laid_over_those_of_all():
    settings = variants.parse([["plain"], ["slow", "guard.max_speed_mps=3", "planner=route_follower"]])
    rows = variants.of_settings(Config(), settings)
    assert list(rows) == ["plain", "slow"]
    assert rows["plain"].config == Config()
    assert (rows["slow"].planner_name, rows["slow"].config.guard.max_speed_mps) == ("route_follower", 3.0)
    assert rows["slow"].config.guard.clearance_m == Config().guard.clearance_m


def test_a_planner_list_is_variants_of_the_planner():
    names = ["reflectdrive2", "route_follower"]
    listed = variants.of_planners(Config(), names, ("words", "route"), random_weights=True)
    assert listed == variants.of_settings(
        Config(), {name: {"planner": name} for name in names}, ("words", "route"), random_weights=True
    )
    assert list(listed)[:4] == [
        "reflectdrive2 (words)",
        "reflectdrive2 (route)",
        "reflectdrive2 random weights (words)",
        "reflectdrive2 random weights (route)",
    ]


def test_weights_of_a_variant_have_the_hash_of_their_card(tiny_model):  # noqa: F811
    settings = {"mine": {"model.file": str(tiny_model.file), "model.sha256": tiny_model.sha256}, "shipped": {}}
    rows = variants.of_settings(Config(), settings)
    assert rows["mine"].config.model.sha256 == tiny_model.sha256
    assert variants.weights_of(rows).partition(", ")[0] == tiny_model.sha256
    file = "models/reflectdrive2_small/weights.safetensors"
    (row,) = variants.of_settings(Config(), {"weights": {"model.file": file}}).values()
    assert len(row.config.model.sha256) == 64


def test_variants_that_share_a_network_decode_with_the_same_one():
    settings = {"a": {}, "b": {"pipeline.repair": False}, "c": {"decoding.goals": 3}}
    rows = variants.of_settings(Config(), settings)
    assert rows["a"].network_keys == rows["b"].network_keys != rows["c"].network_keys


def test_rows_are_compared_with_the_first_that_is_given_as_much():
    settings = {"a": {}, "b": {}, "c": {"privilege": "route"}, "d": {"privilege": "route"}}
    rows = variants.of_settings(Config(), settings, ("objects",))
    assert variants.references(rows) == {"b (objects)": "a (objects)", "d (route)": "c (route)"}
    rows = variants.of_settings(Config(), {"a": {}, "b": {"lost": "map+cameras"}, "c": {"lost": "cameras+map"}})
    assert rows["c"].lost == ("cameras", "map")
    assert variants.references(rows) == {"c": "b"}
    road = {"inputs.drivable_type": "map"}
    rows = variants.of_settings(Config(), {"a": {}, "b": road, "c": {}, "d": road})
    assert variants.references(rows) == {"c": "a", "d": "b"}


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--variant", "a", "guard.max_sped_mps=3"), "--variant a: unknown setting 'guard.max_sped_mps'; did you mean"),
        (("--variant", "a", "planner=nobody"), "--variant a: planner is 'nobody', expected one of"),
        (("--variant", "a", "model.file=nowhere.safetensors"), "--variant a: no card.json beside"),
        (("--variant", "a", "vehicle.width_m=3"), "--variant a: vehicle.width_m is the same for all variants"),
        (
            ("--variant", "a", "lost=radar"),
            "--variant a: lost has 'radar', expected some of cameras+objects+lights+map",
        ),
        (("--variant", "a", "privilege=magic"), "--variant a: privilege is 'magic', expected one of words"),
        (("--variant", "guard.max_speed_mps=3"), "the first word is the name of the variant"),
        (("--variant", "a", "--variant", "a"), "--variant a is given twice"),
        (("--variant", "a", "--planner", "route_follower", "drivefine"), "give each variant its planner"),
        (("--closed-loop", "--variant", "a", "privilege=route"), "privilege is of recorded scenes"),
        (
            ("--closed-loop", "--only-random-weights", "--variant", "a", "planner=route_follower"),
            "--only-random-weights is for learned planners",
        ),
    ],
)
def test_a_wrong_variant_is_one_sentence(words, sentence, folder, capsys):
    where = () if "--closed-loop" in words else ("--scenes", folder)
    assert command(*where, *words) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert sentence in line


# --- the differences -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def compared(folder):
    file = folder.parent / "variants.json"
    words = of_variants(FOLLOWER, CAPPED, STRAIGHT)
    assert command("--scenes", folder, *words, "--privilege", "objects", "--json", file) == 0
    return json.loads(file.read_text())


def test_differences_are_those_of_the_means_and_lie_in_their_interval(compared):
    assert list(compared["drivers"]) == ["expert", "a (objects)", "b (objects)", "c (objects)"]
    assert list(compared["differences"]) == ["b (objects)", "c (objects)"]
    reference = compared["drivers"]["a (objects)"]
    for name, means in compared["differences"].items():
        assert means["reference"] == "a (objects)"
        for measure in MEASURES:
            assert means[measure] == pytest.approx(compared["drivers"][name][measure] - reference[measure], abs=0.002)
            low, high = means[f"{measure}_95"]
            assert low - 0.001 <= means[measure] <= high + 0.001
        assert sum(family["scenes"] for family in means["families"].values()) == means["scenes"]
        for family, parts in means["families"].items():
            rows = (compared["drivers"][row]["families"][family]["pdms"] for row in (name, "a (objects)"))
            assert parts["pdms"] == pytest.approx(next(rows) - next(rows), abs=0.002)


def test_the_tables_have_families_if_requested_and_fit_80_columns(folder, capsys, monkeypatch):
    from reflectdrive_ros.infra import command as shared

    monkeypatch.setattr(shared, "LOG_WIDTH", 80)
    words = ("--scenes", folder, *of_variants(FOLLOWER, STRAIGHT))
    assert command(*words) == 0
    text = capsys.readouterr().out
    assert "less a (objects), paired by scene" in text
    assert "curve" not in text
    assert command(*words, "--by-family") == 0
    with_families = capsys.readouterr().out
    assert "curve" in with_families
    assert max(map(len, (text + with_families).splitlines())) <= 80


def test_drives_are_compared_world_by_world(tmp_path, capsys):
    file = tmp_path / "drives.json"
    words = ("--closed-loop", "--seeds", 2, "--duration", 2, *of_variants(FOLLOWER, CAPPED, STRAIGHT), "--json", file)
    assert command(*words) == 0
    numbers = json.loads(file.read_text())
    assert list(numbers["planners"]) == ["a", "b", "c"]
    for name, means in numbers["differences"].items():
        worlds = [{world["seed"]: world["pdms"] for world in numbers["planners"][row]["worlds"]} for row in (name, "a")]
        pairs = [worlds[0][seed] - worlds[1][seed] for seed in worlds[1]]
        assert means["worlds"] == 2
        assert means["pdms"] == pytest.approx(np.mean(pairs), abs=0.002)
        assert means["pdms_95"] == pytest.approx([min(pairs), max(pairs)], abs=0.002)  # of two worlds
    assert "less a, paired by world" in capsys.readouterr().out


def test_paired_values_that_one_side_lacks_do_not_count():
    own, reference = np.array([1.0, np.nan, 3.0]), np.array([0.5, 1.0, np.nan])
    assert bootstrap.paired_difference(own, reference) == (0.5, [0.5, 0.5])
    assert bootstrap.paired_difference(own[1:], reference[1:]) == (None, [None, None])


def test_a_paired_difference_is_surer_than_that_of_the_means():
    rng = np.random.default_rng(0)
    scene = rng.uniform(0.0, 100.0, 200)
    own, reference = scene + 1.0 + rng.normal(0.0, 1.0, 200), scene
    mean, (low, high) = bootstrap.paired_difference(own, reference)
    assert low < mean < high
    assert low > 0.0
    single_low, single_high = bootstrap.interval(own)
    assert high - low < 0.1 * (single_high - single_low)
