"""A network that has learned one thing: where it is asked to write, it goes on evenly between what is written."""

import numpy as np

from reflectdrive_ros.core.domain import DrivableGrid
from reflectdrive_ros.core.tokens import TokenLayout

LAYOUT = TokenLayout()
BOOK = LAYOUT.codebook


def redraw(actions):
    """Actions (M, 16), partly masked -> written full: straight between kept points, on at the last pace after them."""
    written = np.array(actions)
    for block in written:
        pairs = block.reshape(8, 2)
        kept = np.flatnonzero((pairs != BOOK.mask_id).all(axis=1))
        knots = np.concatenate([[0], kept + 1])
        points = np.concatenate([np.zeros((1, 2)), BOOK.to_values(pairs[kept])])
        at = np.arange(1, 9)
        ways = np.stack([np.interp(at, knots, points[:, axis]) for axis in (0, 1)], axis=1)
        if len(knots) > 1:
            pace = (points[-1] - points[-2]) / (knots[-1] - knots[-2])
            ways += np.maximum(at - knots[-1], 0)[:, None] * pace
        gaps = pairs == BOOK.mask_id
        pairs[gaps] = BOOK.to_ids(ways)[gaps]
    return written


def plain(ids):
    """Points (M, 8, 2) of ids, as they are."""
    return LAYOUT.decode(ids)


def strip_grid(half_width_m, resolution_m=0.2, length_m=120.0, behind_m=20.0):
    """A straight road of that half width along the ego's axis."""
    y = np.arange(-half_width_m - 5.0, half_width_m + 5.0 + resolution_m, resolution_m)
    rows = round((length_m + behind_m) / resolution_m)
    distance = np.broadcast_to(half_width_m - np.abs(y), (rows, len(y)))
    return DrivableGrid(distance.astype(np.float32), resolution_m, np.array([-behind_m, y[0], 0.0]))
