"""Distance of each cell of a grid of 0.3 m to the drivable space: the cost map of the field loss, per scene.

A map holds the signed distance to the edge of the drivable space at the centres of the cells from -10 to 80 m ahead and
35 m to either side, outside positive, in tenths of a metre as int8 (12.7 m at most). Places beyond the map have the
value of its border. The polygons are rasterised at half a cell and distances are computed by two distance transforms: 2
ms a scene, exact to a pixel. The score uses the polygons; the map only gives the direction of improvement.
"""

from __future__ import annotations

import cv2
import numpy as np

from ..core.domain import Array
from ..core.tokens import Codebook
from ..scoring.areas import MapAreas

X_RANGE_M = (-10.0, 80.0)
Y_RANGE_M = (-35.0, 35.0)
STEP_M = 0.1  # resolution of the stored distances
MARGIN_M = 6.0  # rasterised beyond the map, to include roads just outside
GRID = Codebook()  # of the cells, whatever the tokens of a network are
PIXELS_PER_BIN = 2  # pixels per cell
SUBPIXEL_BITS = 6  # binary places of a corner between pixels, for OpenCV


def id_window() -> tuple[slice, slice]:
    """The ids in GRID of x and of y that a map covers."""
    reach = GRID.zero_id
    spans = []
    for low, high in (X_RANGE_M, Y_RANGE_M):
        first, last = round(low / GRID.bin_m), round(high / GRID.bin_m)
        spans.append(slice(max(first, -reach) + reach, min(last, reach) + reach + 1))
    return spans[0], spans[1]


def distance_map(areas: MapAreas) -> Array:
    """(X, Y) int8, tenths of a metre off the drivable space of a scene, inside negative; cells of `id_window`.

    Without a map all cells count as far inside: leaving an unknown road costs nothing.
    """
    x_ids, y_ids = id_window()
    if not (areas.roadblocks or areas.intersections or areas.carparks):
        return np.full((x_ids.stop - x_ids.start, y_ids.stop - y_ids.start), -127, np.int8)
    pixel_m = GRID.bin_m / PIXELS_PER_BIN
    margin = int(np.ceil(MARGIN_M / GRID.bin_m)) * PIXELS_PER_BIN
    rows, columns = ((ids.stop - ids.start - 1) * PIXELS_PER_BIN + 1 + 2 * margin for ids in (x_ids, y_ids))
    first_m = np.array([GRID.to_values(np.array(ids.start)) for ids in (x_ids, y_ids)]) - margin * pixel_m
    drivable = np.zeros((rows, columns), np.uint8)
    for ring in (*areas.roadblocks, *areas.intersections, *areas.carparks):
        corners = np.rint((ring - first_m) / pixel_m * 2**SUBPIXEL_BITS).astype(np.int32)[
            :, ::-1
        ]  # OpenCV: column first
        cv2.fillPoly(drivable, [np.ascontiguousarray(corners)], 1, shift=SUBPIXEL_BITS)
    outside, inside = (
        cv2.distanceTransform(mask, cv2.DIST_L2, cv2.DIST_MASK_PRECISE) for mask in (1 - drivable, drivable)
    )
    # OpenCV fills every pixel that an edge crosses: the edge runs through the outermost pixels
    signed = np.where(drivable, 1.0 - inside, outside) * pixel_m
    kept = slice(margin, -margin, PIXELS_PER_BIN)
    return np.asarray(np.rint(np.clip(signed[kept, kept] / STEP_M, -127, 127)), np.int8)


def mirror(distances: Array) -> Array:
    """A map (.., X, Y) of the mirrored scene, left and right swapped."""
    return distances[..., ::-1]


def indices_of(values_m: Array, axis: int) -> Array:
    """Rows (axis 0, of x) or columns (axis 1, of y) of a map at values in metres, those beyond it at its border."""
    ids = id_window()[axis]
    return np.asarray(np.clip(GRID.to_ids(values_m), ids.start, ids.stop - 1) - ids.start, np.int64)
