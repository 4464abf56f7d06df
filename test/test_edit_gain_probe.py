"""The probe tells slopes that features determine from those that they do not, and runs on a scene set."""

import subprocess
import sys

import numpy as np
import pytest
from tiny_training import network_to_begin_with, two_sets  # noqa: F401 (fixtures)

from reflectdrive_ros.training.edit_gain_probe import CHANGE_NAMES, predict_slopes, share_intervals


def test_slopes_that_features_determine_are_predicted():
    rng = np.random.default_rng(1)
    features = rng.standard_normal((600, 8))
    slopes = features @ rng.normal(0.0, 0.01, (8, 4))
    assert share_intervals(slopes, predict_slopes(features, slopes))[:, 0].min() > 0.8
    half = slopes + slopes.std(0) * rng.standard_normal(slopes.shape)
    share, low, high = share_intervals(half, predict_slopes(features, half)).T
    np.testing.assert_allclose(share, 0.5, atol=0.1)
    assert ((low < 0.5) & (high > 0.5) & (high - low < 0.2)).all()


def test_slopes_of_which_features_tell_nothing_are_not():
    rng = np.random.default_rng(2)
    slopes = rng.normal(0.0, 0.02, (600, 4))
    share, low, _ = share_intervals(slopes, predict_slopes(rng.standard_normal((600, 8)), slopes)).T
    assert share.max() < 0.03
    assert low.max() < 0.0


@pytest.mark.usefixtures("sets")
def test_the_program_prints_a_row_for_each_change(sets, init):
    words = ["--model", init, "--train", sets[0], "--limit", 4, "--workers", 1]
    program = [sys.executable, "-m", "reflectdrive_ros.training.edit_gain_probe", *map(str, words)]
    process = subprocess.run(program, capture_output=True, text=True, timeout=300, check=False)
    assert process.returncode == 0, process.stderr
    assert all(name in process.stdout for name in CHANGE_NAMES)
    assert "4 scenes" in process.stdout
