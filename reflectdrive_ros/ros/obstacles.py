"""Unclassified obstacles: a PointCloud2 without ground points, as boxes that do not move.

    cloud -> points in base_link -> occupied cells -> few boxes of whole cells (greedy cover)

Autoware's obstacle segmentation publishes such clouds. Points of known road users and of the car itself are left out:
those have boxes, and theirs move. Boxes cover occupied cells only, so that a wall around a corner does not fill the
corner.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np

from ..core import geometry
from ..core.config import VehicleConfig
from ..core.domain import AgentKind, Agents, Array, EgoState
from ..core.messages import BadMessage
from . import convert

LOW_M, HIGH_M = 0.3, 2.5  # height over base_link of the points that are used
RANGE_M = 60.0  # points further ahead, behind or to the side are ignored
CELL_M = 0.4  # edge of the cells that the points are sorted into
CELL_POINTS_MIN = 3  # cells with fewer points are empty
BOXES_MAX = 200  # the nearest boxes are kept, the rest is counted
FLOATS = {7: "f4", 8: "f8"}  # sensor_msgs/PointField datatypes that a coordinate may have
BOX_MARGIN_M = 0.2  # points this near to the box of a road user belong to it
TIME_MARGIN_S = 0.2  # cloud and objects are of different moments: a box in motion is this much longer


@dataclass(frozen=True, eq=False)
class Obstacles:
    """Boxes around the car as it stood when they were made."""

    map_from_ego: Array  # (3,)
    boxes: Agents
    ignored: dict[str, int]  # reason -> points or boxes


def cloud_points(message: Any) -> Array:
    """(N, 3) x, y, z of a sensor_msgs/PointCloud2, in its frame. Raises BadMessage with the fault."""
    fields = {field.name: field for field in message.fields}
    missing = [name for name in "xyz" if name not in fields]
    if missing:
        raise BadMessage(f"obstacles: the cloud has no field {', '.join(missing)}, expected x, y and z")
    width, height, step, row = message.width, message.height, message.point_step, message.row_step
    kinds = []
    for name in "xyz":
        field = fields[name]
        if field.datatype not in FLOATS or field.count not in (0, 1):
            raise BadMessage(f"obstacles: field {name} of the cloud is no float of 4 or 8 bytes")
        kind = np.dtype(FLOATS[field.datatype]).newbyteorder(">" if message.is_bigendian else "<")
        if field.offset + kind.itemsize > step:
            raise BadMessage(f"obstacles: field {name} of the cloud lies beyond its points of {step} bytes")
        kinds.append(kind)
    if width * height == 0:
        return np.zeros((0, 3))
    if row < width * step or len(message.data) < row * height:
        raise BadMessage(
            f"obstacles: the cloud holds {len(message.data)} bytes, expected {height} rows of {row} bytes "
            f"with {width} points of {step} bytes"
        )
    layout = np.dtype({"names": list("xyz"), "formats": kinds, "offsets": [fields[n].offset for n in "xyz"],
                       "itemsize": step})  # fmt: skip
    points = np.ndarray((height, width), layout, np.asarray(message.data, np.uint8).data, strides=(row, step))
    return np.stack([points[name].astype(float).ravel() for name in "xyz"], axis=1)


def obstacle_boxes(
    message: Any, transforms: dict[str, tuple[str, Array]], ego: EgoState, users: Agents | None, vehicle: VehicleConfig
) -> Obstacles:
    """Boxes of a PointCloud2 in base_link or in a frame of /tf_static, without points of `users`, which have boxes.

    Raises BadMessage if the cloud cannot be used.
    """
    points = cloud_points(message)
    ego_from_sensor = convert.ego_from_frame(transforms, "obstacles", message.header.frame_id)
    points = points @ ego_from_sensor[:3, :3].T + ego_from_sensor[:3, 3]
    finite = np.isfinite(points).all(axis=1)
    is_in_range = (points[:, 2] > LOW_M) & (points[:, 2] < HIGH_M)
    is_in_range &= (np.abs(points[:, :2]) < RANGE_M).all(axis=1)
    now_from_then = geometry.invert(convert.displacement_since(ego, convert.stamp_ns(message.header)))
    positions = geometry.transform_points(now_from_then, points[finite & is_in_range, :2])
    ignored = {"points not finite": int((~finite).sum())}
    own = np.array([[vehicle.rear_axle_to_center_m, 0.0, 0.0]])
    is_covered = points_in_boxes(positions, own, np.array([[vehicle.length_m, vehicle.width_m]]))
    if users is not None:
        smear = np.column_stack([2.0 * TIME_MARGIN_S * np.hypot(*users.velocities_mps.T), np.zeros(len(users))])
        is_covered |= points_in_boxes(positions, users.poses, users.sizes + smear)
    cells = occupied_cells(positions[~is_covered], CELL_M, RANGE_M, CELL_POINTS_MIN)
    longest = int(Agents.MAX_EXTENT_M / CELL_M)
    corners = split_boxes(cover_cells(cells), longest) * CELL_M - RANGE_M
    centres, sizes = 0.5 * (corners[:, 0] + corners[:, 1]), corners[:, 1] - corners[:, 0]
    nearest = np.argsort(np.hypot(*np.maximum(np.abs(centres) - 0.5 * sizes, 0.0).T), kind="stable")
    ignored[f"boxes beyond the nearest {BOXES_MAX}"] = max(len(centres) - BOXES_MAX, 0)
    selected = nearest[:BOXES_MAX]
    count = len(selected)
    boxes = Agents(
        np.column_stack([centres[selected], np.zeros(count)]),
        np.zeros((count, 2)),
        sizes[selected],
        np.full(count, AgentKind.STATIC, np.int64),
    )
    return Obstacles(ego.map_from_ego, boxes, {what: n for what, n in ignored.items() if n})


def boxes_to_ego_frame(obstacles: Obstacles, ego: EgoState) -> Agents:
    """The boxes from where the car is now."""
    now_from_then = geometry.compose(geometry.invert(ego.map_from_ego), obstacles.map_from_ego)
    return replace(obstacles.boxes, poses=geometry.compose(now_from_then, obstacles.boxes.poses))


def points_in_boxes(points: Array, poses: Array, sizes: Array) -> Array:
    """(N,) whether points (N, 2) are in or within BOX_MARGIN_M of any of the boxes at poses (A, 3) of sizes (A, 2)."""
    is_inside = np.zeros(len(points), bool)
    for pose, size in zip(poses, sizes, strict=True):
        half = 0.5 * size + BOX_MARGIN_M
        near = np.flatnonzero((np.abs(points - pose[:2]) < np.hypot(*half)).all(axis=1))
        local = geometry.transform_points(geometry.invert(pose), points[near])
        is_inside[near[(np.abs(local) < half).all(axis=1)]] = True
    return is_inside


def occupied_cells(points: Array, cell_m: float, reach_m: float, least: int) -> Array:
    """(C, C) bool, cells x, y from -reach_m on with at least the given number of points (N, 2)."""
    count = int(np.ceil(2 * reach_m / cell_m))
    cells = np.clip(((points + reach_m) / cell_m).astype(int), 0, count - 1)
    return np.bincount(cells[:, 0] * count + cells[:, 1], minlength=count**2).reshape(count, count) >= least


def cover_cells(cells: Array) -> Array:
    """(B, 2, 2) lowest and highest corner, in cells, of boxes that cover the True cells of (C, C) and no others.

    Runs along y with equal ends at neighbouring x are merged into one box.
    """
    open_boxes: dict[tuple[int, int], int] = {}  # run -> x where its box begins
    boxes: list[tuple[tuple[int, int], tuple[int, int]]] = []
    for x in range(len(cells) + 1):
        row = cells[x] if x < len(cells) else np.zeros(cells.shape[1], bool)
        edges = np.flatnonzero(np.diff(row, prepend=False, append=False))
        runs = set(zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True))
        for run in sorted(open_boxes.keys() - runs):
            boxes.append(((open_boxes.pop(run), run[0]), (x, run[1])))
        for run in runs - open_boxes.keys():
            open_boxes[run] = x
    return np.array(boxes, float).reshape(-1, 2, 2)


def split_boxes(boxes: Array, longest: int) -> Array:
    """(B, 2, 2) the boxes, those of more than `longest` cells along an axis in equal parts of whole cells."""
    parts = []
    for low, high in boxes.astype(int):
        cuts = [np.linspace(a, b, 1 + -(-(b - a) // longest)).astype(int) for a, b in zip(low, high, strict=True)]
        parts += [((x0, y0), (x1, y1)) for x0, x1 in pairwise(cuts[0]) for y0, y1 in pairwise(cuts[1])]
    return np.array(parts, float).reshape(-1, 2, 2)
