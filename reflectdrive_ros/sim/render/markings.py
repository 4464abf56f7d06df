"""Road markings: edge lines, separators, centre lines, stop lines, zebra stripes, arrows."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import shapely

from ...core import geometry
from ...core.domain import Array
from ...maps.roads import RoadLane, RoadMap, Turn
from .polygons import Material

WHITE, YELLOW = (0.86, 0.86, 0.84), (0.88, 0.70, 0.16)
LINE_M = 0.15
STRIPE_M, STRIPE_SPACING_M = 0.5, 1.0  # of a zebra crossing
STOP_LINE_M = 0.45
ARROWS_BEFORE_M = (9.0, 30.0)  # the end of the lane
Marking = tuple[Array, tuple[float, float, float], Material]  # a ring (V, 2), its colour, of pieces or of one line

# An arrow that points along +x, from its tail at 0; rings of convex parts.
_SHAFT = np.array([(0.0, -0.08), (2.6, -0.08), (2.6, 0.08), (0.0, 0.08)])
_HEAD = np.array([(2.4, -0.4), (4.2, 0.0), (2.4, 0.4)])
_BEND = np.array([(1.4, -0.08), (2.5, 0.45), (2.5, 0.75), (1.4, 0.2)])
_SIDE_HEAD = np.array([(2.05, 0.55), (2.95, 0.55), (2.5, 1.5)])
_ARROWS = {
    Turn.STRAIGHT: (_SHAFT, _HEAD),
    Turn.LEFT: (_SHAFT[:, :] * (0.6, 1), _BEND, _SIDE_HEAD),
    Turn.RIGHT: (_SHAFT[:, :] * (0.6, 1), _BEND * (1, -1), _SIDE_HEAD * (1, -1)),
}


def build_markings(road_map: RoadMap, rng: np.random.Generator) -> list[Marking]:
    """All paint of a town, in the order it is laid."""
    centre = YELLOW if rng.random() < 0.4 else WHITE
    double = bool(rng.random() < 0.5)
    dash_m, gap_m = ((3.0, 4.5), (3.0, 6.0), (2.0, 3.0))[rng.integers(3)]
    paint: list[Marking] = []
    by_edge = lanes_by_edge(road_map)
    names = [edge for edge in by_edge if edge in road_map.roads]
    tree = shapely.STRtree([road_map.roads[edge] for edge in names])
    faced = _left_side_faces_traffic(by_edge, names, tree)
    for edge, lanes in by_edge.items():
        rightmost, leftmost = lanes[0], lanes[-1]
        line = offset_line(rightmost.lane.centerline, -0.5 * rightmost.width_m + 0.12)
        paint += [
            (ring, WHITE, Material.PAINT)
            for ring in _drop_crossed_pieces(strip_rings(line, LINE_M, piece=4), edge, names, tree)
        ]
        for lane in lanes[:-1]:
            boundary = offset_line(lane.lane.centerline, 0.5 * lane.width_m)
            paint += [(ring, WHITE, Material.STRIPES) for ring in dash_rings(boundary, LINE_M, dash_m, gap_m)]
        inside = offset_line(leftmost.lane.centerline, 0.5 * leftmost.width_m - 0.12)
        if not faced[edge]:
            pieces = _drop_crossed_pieces(strip_rings(inside, LINE_M, piece=4), edge, names, tree)
            paint += [(ring, WHITE, Material.PAINT) for ring in pieces]
        elif len(lanes) > 1 or double:
            paint += [(ring, centre, Material.PAINT) for ring in strip_rings(inside, LINE_M)]
        else:  # both directions paint the same dashes or line, each its half
            middle = offset_line(leftmost.lane.centerline, 0.5 * leftmost.width_m)
            paint += [(ring, centre, Material.STRIPES) for ring in dash_rings(middle, LINE_M, dash_m, gap_m)]
        if len(lanes) > 1:
            paint += [(ring, WHITE, Material.PAINT) for lane in lanes for ring in _arrows(road_map, lane)]
    for ring in road_map.crossings:
        paint += [(stripe, WHITE, Material.STRIPES) for stripe in zebra_stripes(ring)]
    for signal in road_map.signals:
        paint += [(ring, WHITE, Material.PAINT) for ring in strip_rings(_shift_back(signal.stop_line), STOP_LINE_M)]
    return paint


def lanes_by_edge(road_map: RoadMap) -> dict[str, list[RoadLane]]:
    """Lanes of each road, rightmost first; those that cross junctions left out."""
    edges: dict[str, list[RoadLane]] = {}
    for key in sorted(road_map.lanes):
        lane = road_map.lanes[key]
        if lane.across_junction is None and len(lane.lane.centerline) > 1:
            edges.setdefault(lane.edge, []).append(lane)
    return {edge: sorted(lanes, key=lambda lane: lane.index) for edge, lanes in edges.items()}


def _drop_crossed_pieces(pieces: Iterator[Array], edge: str, names: list[str], tree: shapely.STRtree) -> list[Array]:
    """Pieces of a road's edge line but for those that other roads run across, as on printed maps."""
    rings = list(pieces)
    middles = shapely.points(np.array([ring.mean(axis=0) for ring in rings]).reshape(-1, 2))
    piece, other = tree.query(middles, predicate="within")
    crossed = {k for k, road in zip(piece.tolist(), other.tolist(), strict=True) if names[road] != edge}
    return [ring for k, ring in enumerate(rings) if k not in crossed]


def _left_side_faces_traffic(
    by_edge: dict[str, list[RoadLane]], names: list[str], tree: shapely.STRtree
) -> dict[str, bool]:
    """Whether another road is adjacent on the left of each road: then its left line is a centre line."""
    faced = {}
    for edge, lanes in by_edge.items():
        line = offset_line(lanes[-1].lane.centerline, 0.5 * lanes[-1].width_m + 0.6)
        middle = geometry.sample(line, geometry.arc_lengths(line)[-1:] * 0.5)[0, :2]
        hits = tree.query(shapely.Point(middle), predicate="within")
        faced[edge] = any(names[k] != edge for k in hits)
    return faced


def offset_line(line: Array, left_m: float) -> Array:
    """(V, 2) the line moved to its left, at equal distance from every stretch; a negative distance moves it right."""
    line = geometry.distinct_points(line)[:, :2]
    heading = geometry.headings_along(line)
    before = np.concatenate([heading[:1], heading[:-1]])
    half = 0.5 * geometry.wrap(heading - before)
    angle = before + half + 0.5 * np.pi
    reach = left_m / np.maximum(np.cos(half), 0.5)
    return np.asarray(line + reach[:, None] * np.column_stack([np.cos(angle), np.sin(angle)]))


def strip_rings(line: Array, width_m: float, piece: int = 12) -> Iterator[Array]:
    """Rings of a strip along a line, cut into pieces of a few points, so that distant pieces are culled early."""
    line = geometry.distinct_points(line)[:, :2]
    if len(line) < 2:
        return
    left, right = offset_line(line, 0.5 * width_m), offset_line(line, -0.5 * width_m)
    for begin in range(0, len(line) - 1, piece):
        some = slice(begin, begin + piece + 1)
        yield np.concatenate([left[some], right[some][::-1]])


def dash_rings(line: Array, width_m: float, dash_m: float, gap_m: float) -> Array:
    """(D, 4, 2) rings along a line."""
    length = float(geometry.arc_lengths(line)[-1])
    begin = np.arange(0.5 * gap_m, length - dash_m, dash_m + gap_m)
    if len(begin) == 0:
        return np.zeros((0, 4, 2))
    ends = geometry.sample(line, np.concatenate([begin, begin + dash_m]))
    side = 0.5 * width_m * np.column_stack([-np.sin(ends[:, 2]), np.cos(ends[:, 2])])
    left, right = ends[:, :2] + side, ends[:, :2] - side
    count = len(begin)
    return np.stack([left[:count], left[count:], right[count:], right[:count]], axis=1)


def zebra_stripes(ring: Array) -> Array:
    """(S, 4, 2) stripes of a crossing, side by side along the walking direction."""
    box = np.array(shapely.minimum_rotated_rectangle(shapely.Polygon(ring)).exterior.coords)[:4]
    sides = np.diff(np.concatenate([box, box[:1]]), axis=0)
    length = np.hypot(*sides.T)
    along = int(length[1] > length[0])
    begins = np.arange(0.5 * STRIPE_SPACING_M, length[along] - STRIPE_M, STRIPE_SPACING_M)
    corner, walk, wide = box[along], sides[along] / length[along], sides[along + 1]
    near_edge = corner + begins[:, None] * walk
    far_edge = near_edge + STRIPE_M * walk
    return np.stack([near_edge, far_edge, far_edge + wide, near_edge + wide], axis=1)


def _shift_back(stop_line: Array) -> Array:
    """The stop line moved back by half its width, so that it ends where the lane does."""
    left, right = stop_line
    back = np.array([right[1] - left[1], left[0] - right[0]])
    back = back / max(float(np.hypot(*back)), 1e-6)
    return np.asarray(stop_line + 0.5 * STOP_LINE_M * back)


def _arrows(road_map: RoadMap, lane: RoadLane) -> Iterator[Array]:
    turns = {road_map.lanes[key].turn for key in lane.lane.successors if road_map.lanes[key].across_junction}
    line = lane.lane.centerline
    length = geometry.arc_lengths(line)[-1]
    for before in ARROWS_BEFORE_M:
        if not turns or length < before + 8.0:
            return
        pose = geometry.sample(line, np.array([length - before]))[0]
        for turn in sorted(turns & set(_ARROWS)):
            yield from (geometry.transform_points(pose, part) for part in _ARROWS[turn])
