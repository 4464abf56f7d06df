"""The probe tells what features determine from what they do not, measures the geometry of a scene, runs on a set."""

import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from hand_scenes import scene
from tiny_training import network_to_begin_with, two_sets  # noqa: F401 (fixtures)

from reflectdrive_ros.core.config import VehicleConfig
from reflectdrive_ros.data.scene import TRACK_STEPS
from reflectdrive_ros.training.probe import CHANGE_NAMES
from reflectdrive_ros.training.probe_heads import (
    error_intervals,
    kernel_of,
    predict,
    ridge,
    share_intervals,
    two_layers,
)
from reflectdrive_ros.training.scene_geometry import geometry_targets


@pytest.mark.parametrize("head", [ridge, two_layers])
def test_targets_that_features_determine_are_predicted_and_others_are_not(head):
    rng = np.random.default_rng(1)
    inputs, features = rng.standard_normal((480, 3)), rng.standard_normal((480, 8))
    slopes = features @ rng.normal(0.0, 0.01, (8, 3))
    slopes[:, 1] += slopes[:, 1].std() * rng.standard_normal(480)
    slopes[:, 2] = rng.normal(0.0, 0.02, 480)
    slopes[::3, 0] = np.nan  # absent in some scenes
    with_target = np.isfinite(slopes[:, 0])
    predictions = predict(inputs, kernel_of(features), slopes, head)
    shares = share_intervals(slopes[with_target], predictions[with_target])
    assert shares[0, 0] > 0.8
    assert shares[1, 0] == pytest.approx(0.5, abs=0.1)
    assert shares[2, 0] < 0.05
    assert share_intervals(slopes[with_target], predict(inputs, None, slopes, head)[with_target])[0, 0] < 0.05
    errors = error_intervals(slopes, predictions)
    assert ((errors[:, 1] < errors[:, 0]) & (errors[:, 0] < errors[:, 2])).all()


def test_the_geometry_of_a_scene_is_measured():
    base = scene(curvature=0.0, agents=2)
    lane = np.array([[40, 1.5], [40, -2.1], [-20, -2.1], [-20, 1.5]])  # its centreline is 0.3 m to the right of the ego
    ahead_m = np.array([-10.0, 20.0])  # of the ego: one agent behind, one ahead
    poses = np.repeat(ahead_m[:, None, None] * [1.0, 0.0, 0.0], TRACK_STEPS, axis=1)
    tracks = replace(base.tracks, poses=poses, speeds_mps=np.full((2, TRACK_STEPS), 3.0))
    areas = replace(base.areas, lanes=(lane,), lane_on_route=(True,))
    vehicle = VehicleConfig()
    targets = geometry_targets(replace(base, areas=areas, tracks=tracks), vehicle)
    gap_m = 20.0 - 0.5 * tracks.sizes[1, 0] - vehicle.rear_axle_to_center_m - 0.5 * vehicle.length_m
    np.testing.assert_allclose(targets, [0.3, 0.0, gap_m, 3.0, *[5.4] * 3, *[1.8] * 3], atol=0.11)
    alone = geometry_targets(replace(base, areas=areas, tracks=scene(agents=0).tracks), vehicle)
    assert np.isnan(alone[2:4]).all()
    np.testing.assert_array_equal(alone[4:], targets[4:])


@pytest.mark.usefixtures("sets")
def test_the_program_prints_a_row_for_each_change(sets, init):
    words = ["--model", init, "--train", sets[0], "--limit", 4, "--workers", 1]
    program = [sys.executable, "-m", "reflectdrive_ros.training.probe", *map(str, words)]
    process = subprocess.run(program, capture_output=True, text=True, timeout=300, check=False)
    assert process.returncode == 0, process.stderr
    assert all(name in process.stdout for name in CHANGE_NAMES)
    assert "4 scenes" in process.stdout
