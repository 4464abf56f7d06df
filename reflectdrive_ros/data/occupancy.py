"""Occupancy of a grid around the car, now and in 1, 2 and 4 s: the target of the auxiliary BEV head.

A cell is 1 m wide: in larger cells the share of a pedestrian would be too small.
"""

from __future__ import annotations

import cv2
import numpy as np

from ..core import geometry
from ..core.domain import Array
from .scene import NOW, DrivingScene

CELL_M = 1.0
CELLS = 56  # per side
FIRST_M = (-6.0, -28.0)  # corner of the grid, x ahead and y left
FUTURE_STEPS = (0, 10, 20, 40)  # now and in 1, 2 and 4 s
CHANNELS = 1 + len(FUTURE_STEPS)  # road, and occupancy at each of these
PIXELS_PER_CELL = 4  # pixels per cell and side while drawing
OCCUPIED_SHARE = 0.08  # share of a cell's pixels from which on it is occupied


def cell_centres_m() -> tuple[Array, Array]:
    """(CELLS,) x and (CELLS,) y of the cells' centres in the ego frame."""
    steps = CELL_M * (np.arange(CELLS) + 0.5)
    return FIRST_M[0] + steps, FIRST_M[1] + steps


def occupancy(scene: DrivingScene) -> Array:
    """(len(FUTURE_STEPS), CELLS, CELLS) bool: whether cells x, y are occupied now and later."""
    return np.stack([_occupied_cells(scene, NOW + ahead) for ahead in FUTURE_STEPS])


def _occupied_cells(scene: DrivingScene, step: int) -> Array:
    tracks = scene.tracks
    there = tracks.present[:, step]
    pixels = np.zeros((CELLS * PIXELS_PER_CELL, CELLS * PIXELS_PER_CELL), np.uint8)
    for corners in geometry.box_corners(tracks.poses[there, step], tracks.sizes[there]):
        at = np.rint((corners - FIRST_M) * (PIXELS_PER_CELL / CELL_M)).astype(np.int32)[
            :, ::-1
        ]  # OpenCV: column (y) first
        cv2.fillConvexPoly(pixels, np.ascontiguousarray(at), 1)
    shares = pixels.reshape(CELLS, PIXELS_PER_CELL, CELLS, PIXELS_PER_CELL).mean((1, 3))
    return np.asarray(shares >= OCCUPIED_SHARE)


def mirror(occupied: Array) -> Array:
    """Cells (.., x, y) of the mirrored scene, left and right swapped."""
    return occupied[..., ::-1]
