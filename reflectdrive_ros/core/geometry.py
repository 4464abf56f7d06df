"""Rigid transforms of the plane, polylines, oriented boxes.

Poses are (..., 3): x m, y m, heading rad. A pose used as a transform takes points of its own frame to the outer frame,
so `compose(map_from_ego, ego_from_x)` is `map_from_x`: the inner names cancel.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import reflectdrive_kernels as kernels

from .domain import Array

REPEATED_M = 1e-6  # a shorter step of a polyline repeats the point before it
NEAR_ROUTE_M = 60.0  # of a route that the ego is first searched on
OFF_ROUTE_M = 15.0  # farther from the first part of a route, the ego is searched on all of it


def _side_by_side(*columns: Array) -> Array:
    """Arrays of one shape as the last axis of one: `np.stack`, at a third of its cost, which is felt in small ones."""
    together = np.empty((*columns[0].shape, len(columns)))
    for index, column in enumerate(columns):
        together[..., index] = column
    return together


def wrap(angle: Array | float) -> Array:
    """Angles brought to [-pi, pi), up to rounding."""
    return np.asarray((np.asarray(angle) + np.pi) % (2 * np.pi) - np.pi)


def compose(a_from_b: Array, b_from_c: Array) -> Array:
    """a_from_c, broadcasting over leading axes; headings in [-pi, pi)."""
    a, b = np.asarray(a_from_b, float), np.asarray(b_from_c, float)
    cos, sin = np.cos(a[..., 2]), np.sin(a[..., 2])
    x = a[..., 0] + cos * b[..., 0] - sin * b[..., 1]
    y = a[..., 1] + sin * b[..., 0] + cos * b[..., 1]
    return _side_by_side(x, y, wrap(a[..., 2] + b[..., 2]))


def invert(a_from_b: Array) -> Array:
    """b_from_a."""
    a = np.asarray(a_from_b, float)
    cos, sin = np.cos(a[..., 2]), np.sin(a[..., 2])
    x = -cos * a[..., 0] - sin * a[..., 1]
    y = sin * a[..., 0] - cos * a[..., 1]
    return _side_by_side(x, y, wrap(-a[..., 2]))


def transform_points(a_from_b: Array, points: Array) -> Array:
    """Points (..., 2) of frame b in frame a."""
    a, p = np.asarray(a_from_b, float), np.asarray(points, float)
    cos, sin = np.cos(a[..., 2]), np.sin(a[..., 2])
    x = a[..., 0] + cos * p[..., 0] - sin * p[..., 1]
    y = a[..., 1] + sin * p[..., 0] + cos * p[..., 1]
    return _side_by_side(x, y)


def rotate(vectors: Array, angle: Array | float) -> Array:
    """Vectors (..., 2) turned by `angle` (broadcast over leading axes)."""
    v = np.asarray(vectors, float)
    cos, sin = np.cos(angle), np.sin(angle)
    return _side_by_side(cos * v[..., 0] - sin * v[..., 1], sin * v[..., 0] + cos * v[..., 1])


def headings_from_quaternions(x: Array, y: Array, z: Array, w: Array) -> Array:
    """(..) headings in the plane, rad, of the x axis turned by unit quaternions; all arguments (..)."""
    return np.asarray(np.arctan2(2.0 * (w * z + x * y), 1.0 - 2.0 * (y**2 + z**2)))


def matrix_from_pose(pose: Array, z: float = 0.0) -> Array:
    """(4, 4) homogeneous matrix of a planar pose (3,) at height z."""
    x, y, heading = np.asarray(pose, float)
    cos, sin = np.cos(heading), np.sin(heading)
    return np.array([[cos, -sin, 0.0, x], [sin, cos, 0.0, y], [0.0, 0.0, 1.0, z], [0.0, 0.0, 0.0, 1.0]])


def invert_matrix(a_from_b: Array) -> Array:
    """(4, 4) inverse of a rigid motion of space."""
    rotation, translation = a_from_b[:3, :3], a_from_b[:3, 3]
    inverse = np.eye(4)
    inverse[:3, :3] = rotation.T
    inverse[:3, 3] = -rotation.T @ translation
    return inverse


# --- polylines -------------------------------------------------------------------------------------------------------


def arc_lengths(points: Array) -> Array:
    """(..., L) distance travelled along points (..., L, 2+) up to each of them."""
    line = np.asarray(points, float)
    along = np.zeros(line.shape[:-1])
    steps = line[..., 1:, :2] - line[..., :-1, :2]
    np.cumsum(np.hypot(steps[..., 0], steps[..., 1]), axis=-1, out=along[..., 1:])
    return along


def headings_along(points: Array) -> Array:
    """(L,) heading of each point's outgoing segment; the last repeats; points that do not move keep the one before."""
    line = np.asarray(points, float)
    step_x, step_y = line[1:, 0] - line[:-1, 0], line[1:, 1] - line[:-1, 1]
    moving = np.hypot(step_x, step_y) > REPEATED_M
    heading = np.zeros(len(line))
    if not moving.any():
        return heading
    np.arctan2(step_y, step_x, out=heading[:-1])
    if not moving.all():
        index = np.maximum.accumulate(np.where(moving, np.arange(len(moving)), -1))
        heading[:-1] = heading[np.where(index < 0, np.argmax(moving), index)]
    heading[-1] = heading[-2]
    return heading


def distinct_points(points: Array, closer_than: float = REPEATED_M) -> Array:
    """The polyline without points that repeat the one before."""
    points = np.asarray(points, float)
    if len(points) < 2:
        return points
    moved = np.hypot(points[1:, 0] - points[:-1, 0], points[1:, 1] - points[:-1, 1]) > closer_than
    return points if moved.all() else np.concatenate([points[:1], points[1:][moved]])


def drop_reversals(line: Array, closer_than: float) -> Array:
    """The polyline without points that repeat the one before or lie behind it, as where lanes overlap at a joint."""
    remaining = list(distinct_points(line, closer_than)[:2])
    for point in line:
        step = point - remaining[-1]
        if step @ step > closer_than**2 and step @ (remaining[-1] - remaining[-2]) > 0:
            remaining.append(point)
    return np.array(remaining)


def project(polyline: Array, points: Array) -> tuple[Array, Array]:
    """Nearest position on a polyline (L >= 2, 2+) for each of points (N, 2).

    Returns arc length (N,) along the polyline, clamped to its ends, and signed lateral offset (N,), left positive.
    """
    positions = np.asarray(points, float)
    along, offset = np.empty(len(positions)), np.empty(len(positions))
    kernels.project(np.asarray(polyline, float), positions, REPEATED_M, along, offset)
    return along, offset


def sample(polyline: Array, along: Array) -> Array:
    """Poses (N, 3) at arc lengths (N,) along a polyline (L >= 2, 2+), which is extended straight beyond its ends."""
    along = np.asarray(along, float)
    begins, heading, beyond = np.empty((2, len(along))), np.empty(len(along)), np.empty(len(along))
    kernels.sample(np.asarray(polyline, float), along, REPEATED_M, begins, heading, beyond)
    return _side_by_side(begins[0] + beyond * np.cos(heading), begins[1] + beyond * np.sin(heading), wrap(heading))


def interpolate_paths(paths: Array, along: Array, reached: Array) -> Array:
    """(N, T, 2) points at distances (N, T) along paths (N, P, 2) with arc lengths `along` (N, P)."""
    points = np.empty((*reached.shape, 2))
    kernels.interpolate_paths(paths, along, reached, points)
    return points


def ego_on_route(route: Array) -> tuple[float, float]:
    """Arc length and lateral offset (left positive) of the ego on a route (L >= 2, 2+) in its own frame.

    A route starts behind the ego and may cross itself, so its first NEAR_ROUTE_M metres are searched first; the whole
    route is searched only if the ego is more than OFF_ROUTE_M away from them.
    """
    here = np.zeros((1, 2))
    first = max(2, int(np.searchsorted(arc_lengths(route), NEAR_ROUTE_M)))
    for part in (route[:first], route):
        (along,), (offset,) = project(part, here)
        if abs(offset) <= OFF_ROUTE_M:
            break
    return float(along), float(offset)


# --- oriented boxes --------------------------------------------------------------------------------------------------


def box_corners(poses: Array, sizes: Array) -> Array:
    """(..., 4, 2) corners front-left, rear-left, rear-right, front-right of boxes with centre poses (..., 3)."""
    poses, sizes = np.asarray(poses, float), np.asarray(sizes, float)
    half = 0.5 * sizes[..., None, :] * np.array([[1, 1], [-1, 1], [-1, -1], [1, -1]])
    return transform_points(poses[..., None, :], half)


def boxes_overlap(poses_a: Array, sizes_a: Array, poses_b: Array, sizes_b: Array) -> Array:
    """Whether oriented boxes touch or overlap, by separating axes; poses (..., 3) and sizes (..., 2) broadcast."""
    return box_separation(poses_a, sizes_a, poses_b, sizes_b) <= 0.0


def box_separation(poses_a: Array, sizes_a: Array, poses_b: Array, sizes_b: Array) -> Array:
    """Largest gap in metres over the four separating axes of two oriented boxes; <= 0 where they touch or overlap.

    It never exceeds the true distance, so a positive value is a safe clearance.
    """
    return np.asarray(np.maximum(*box_gaps(poses_a, sizes_a, poses_b, sizes_b)))


def box_gaps(poses_a: Array, sizes_a: Array, poses_b: Array, sizes_b: Array) -> tuple[Array, Array]:
    """Larger gap in metres along the two axes of boxes a, and along those of boxes b; negative where they overlap."""
    a, b = np.asarray(poses_a, float), np.asarray(poses_b, float)
    half_a, half_b = 0.5 * np.asarray(sizes_a, float), 0.5 * np.asarray(sizes_b, float)
    turn = b[..., 2] - a[..., 2]
    cos, sin = np.abs(np.cos(turn)), np.abs(np.sin(turn))
    between = b[..., :2] - a[..., :2]
    in_a, in_b = np.abs(rotate(between, -a[..., 2])), np.abs(rotate(between, -b[..., 2]))
    return (
        np.maximum(
            in_a[..., 0] - half_a[..., 0] - half_b[..., 0] * cos - half_b[..., 1] * sin,
            in_a[..., 1] - half_a[..., 1] - half_b[..., 0] * sin - half_b[..., 1] * cos,
        ),
        np.maximum(
            in_b[..., 0] - half_b[..., 0] - half_a[..., 0] * cos - half_a[..., 1] * sin,
            in_b[..., 1] - half_b[..., 1] - half_a[..., 0] * sin - half_a[..., 1] * cos,
        ),
    )


def outer_ring(polygon: Any) -> Array:
    """(V, 2) outline of a shapely polygon, not closed, without its holes."""
    return np.asarray(polygon.exterior.coords)[:-1, :2]
