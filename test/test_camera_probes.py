"""The inputs of the camera probes: points of the ground, maps and images are in their places; the program runs."""

import os
import subprocess
import sys
from pathlib import Path

import camera_candidates
import numpy as np
import pytest
import torch
from camera_candidates import FRONT, GROUND_AHEAD_M, GROUND_LEFT_M, MEDIUM, SMALL, STRIDES

from reflectdrive_ros.features.cameras import rig

ROOT = Path(__file__).parents[1]
BACKBONE = ROOT / ".venv" / "probes"
POINTS = np.array([[12.0, 0.0], [20.0, -1.5], [30.0, 2.0]])  # m, in the front image
STRAIGHT = np.column_stack([np.arange(0.0, 27.0, 3.0), np.zeros((9, 2))])


def test_points_of_the_ground_are_projected_at_any_size():
    small, is_inside = camera_candidates.project(POINTS, rig(*SMALL)[FRONT])
    medium, _ = camera_candidates.project(POINTS, rig(*MEDIUM)[FRONT])
    assert is_inside.all()
    np.testing.assert_allclose(medium / MEDIUM, small / SMALL)
    assert (np.diff(small[:, 1]) < 0.0).all()  # farther is higher
    assert small[1, 0] > small[0, 0] > small[2, 0]  # right, ahead, left
    assert not camera_candidates.project(-POINTS, rig(*SMALL)[FRONT])[1].any()


def test_maps_are_sampled_where_a_point_is():
    """Maps of EfficientNet whose values are the centres of their cells, px."""
    camera = rig(*SMALL)[FRONT]
    maps = []
    for stride in STRIDES:
        x, y = (stride * np.arange(size // stride) + stride - 0.5 for size in SMALL)
        maps.append(torch.from_numpy(np.stack(np.meshgrid(x, y))).float()[None])
    values = camera_candidates.sample_maps(POINTS, [(maps, camera)]).reshape(len(POINTS), len(STRIDES), 2)
    pixels, _ = camera_candidates.project(POINTS, camera)
    np.testing.assert_allclose(values, np.repeat(pixels[:, None], len(STRIDES), axis=1), atol=0.01)
    assert not camera_candidates.sample_maps(-POINTS, [(maps, camera)]).any()


def test_the_ground_image_is_in_the_frame_of_the_plan():
    """Of an image whose red and green are the column and the row of a pixel."""
    camera = rig(*SMALL)[FRONT]
    x, y = np.meshgrid(*(np.arange(size) for size in SMALL))
    image = np.stack([x // 2, y, 0 * x], axis=-1).astype(np.uint8)
    ground = camera_candidates.ground_image(STRAIGHT, [(image, camera)])
    assert ground.shape == (len(GROUND_AHEAD_M), len(GROUND_LEFT_M), 3)
    row, column = int(np.argmin(np.abs(GROUND_AHEAD_M - 20.0))), int(np.argmin(np.abs(GROUND_LEFT_M - 2.0)))
    pixel, _ = camera_candidates.project(np.array([GROUND_AHEAD_M[row], GROUND_LEFT_M[column]]), camera)
    np.testing.assert_allclose(ground[row, column, :2] * [2.0, 1.0], pixel, atol=2.0)
    assert not ground[-1].any()  # 2 m ahead the camera shows no ground


@pytest.mark.long
@pytest.mark.skipif(not BACKBONE.is_dir(), reason="EfficientNet-Lite0 is not installed (make camera-probes)")
def test_the_program_prints_a_row_for_each_candidate(tmp_path):
    words = ["tools/camera_probes.py", "--limit", "12", "--out", str(tmp_path / "probes"), "--heads", "ridge"]
    environment = {**os.environ, "PYTHONPATH": str(BACKBONE)}
    command = [sys.executable, *words]
    for _ in range(2):  # the second run reads what the first has kept
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        for name in ("none: plan, ego, route only", "ground image of 1152 px, Lite0", "scene network, features"):
            assert f"\n| {name}" in done.stdout
    assert (tmp_path / "probes" / "tables.md").read_text() in done.stdout
