"""bench headroom: curvature, slopes and what features tell of them are found in made-up scores; the command runs."""

import json

import numpy as np
import pytest
from tiny_rl import network_to_begin_with  # noqa: F401 (a fixture)
from tiny_training import two_sets  # noqa: F401 (a fixture)

from reflectdrive_ros.__main__ import main
from reflectdrive_ros.training.headroom import MODES, Samples, headroom

CURVATURE = np.array([0.01, 0.02, 0.04, 0.03])


def samples_of(slopes, features, seed=0):
    """Scores that are quadratic in each change."""
    drawn = np.random.default_rng(seed).standard_normal((len(slopes), 200, 4))
    along, bend = np.einsum("nkm,nm->nk", drawn, slopes), drawn**2 @ CURVATURE
    score = np.full(len(slopes), 0.8)
    up, down = score[:, None] + along - bend, score[:, None] - along - bend
    return Samples(features, drawn, score, score, score[:, None], up, down)


def test_curvature_and_slopes_are_found_and_features_that_know_them_are_within_reach():
    rng = np.random.default_rng(1)
    features = rng.standard_normal((600, 8))
    slopes = features @ rng.normal(0.0, 0.01, (8, 4))
    found = headroom(samples_of(slopes, features))
    assert len(found) == len(MODES)
    np.testing.assert_allclose([row.curvature for row in found], 100.0 * CURVATURE, rtol=0.02)
    np.testing.assert_allclose([row.slope for row in found], 100.0 * slopes.std(0), rtol=0.1)
    assert min(row.predicted for row in found) > 0.8
    np.testing.assert_allclose(
        [row.alike + row.by_scene for row in found], 100.0 * (slopes**2).mean(0) / (4.0 * CURVATURE), rtol=0.25
    )


def test_slopes_of_which_features_know_nothing_are_out_of_reach():
    rng = np.random.default_rng(2)
    found = headroom(samples_of(rng.normal(0.0, 0.02, (600, 4)), rng.standard_normal((600, 8))))
    assert max(row.predicted for row in found) < 0.03
    assert max(row.by_scene for row in found) < 0.05


@pytest.mark.usefixtures("sets")
def test_the_command_prints_and_writes_its_numbers(sets, init, tmp_path, capsys):
    file = tmp_path / "headroom.json"
    args = ["bench", "headroom", "--model", init, "--train", sets[0], "--limit", 4, "--workers", 1, "--json", file]
    assert main(list(map(str, args))) == 0
    numbers = json.loads(file.read_text())
    assert numbers["scenes"] == 4
    assert set(numbers["changes"]) == set(MODES)
    assert numbers["best_of_changes"] >= numbers["plan"]
    assert "predicted" in capsys.readouterr().out


def test_a_bias_is_a_gain_for_all_scenes_alike():
    rng = np.random.default_rng(3)
    found = headroom(samples_of(np.full((400, 4), 0.02), rng.standard_normal((400, 8))))
    np.testing.assert_allclose([row.alike for row in found], 100.0 * 0.02**2 / (4.0 * CURVATURE), rtol=0.05)
    assert max(row.by_scene for row in found) < 0.05
