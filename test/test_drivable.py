"""Claims about drivable space: the grid never says yes where the polygons say no, and says no only near an edge."""

from dataclasses import replace

import numpy as np
import pytest
import shapely
from hypothesis import given
from hypothesis import strategies as st

from reflectdrive_ros.core import geometry
from reflectdrive_ros.scoring import drivable

CAR = np.array([5.176, 2.297])
DIAGONAL = np.sqrt(2.0)


@st.composite
def rings(draw, center_m=12.0, radius_m=15.0):
    """Star-shaped rings, mostly not convex, with spikes and thin waists."""
    count = draw(st.integers(3, 12))
    radius = np.array(draw(st.lists(st.floats(0.3, radius_m), min_size=count, max_size=count)))
    x, y = draw(st.floats(-center_m, center_m)), draw(st.floats(-center_m, center_m))
    angle = draw(st.floats(0, 6)) + np.linspace(0, 2 * np.pi, count, endpoint=False)
    return np.stack([x + radius * np.cos(angle), y + radius * np.sin(angle)], axis=-1)


@st.composite
def spaces(draw):
    """Overlapping, separate and touching polygons, with holes of any shape cut out."""
    space = drivable.union_polygons(draw(st.lists(rings(), min_size=1, max_size=4)))
    for hole in draw(st.lists(rings(radius_m=4.0), max_size=3)):
        cut = polygons_of(space.difference(shapely.Polygon(hole)))
        space = cut if cut.area > 1.0 else space
    return space


def polygons_of(shape):
    """A difference may leave lines and points behind where edges met: they are no road."""
    return shapely.union_all([part for part in shapely.get_parts(shape) if part.geom_type == "Polygon"])


@st.composite
def grids(draw):
    """A space with a grid of any resolution and pose that need not cover it, and a seed for poses."""
    space = draw(spaces())
    first_cell = [draw(st.floats(-30, -5)), draw(st.floats(-30, -5)), draw(st.floats(-3.2, 3.2))]
    size_m = (draw(st.floats(5, 50)), draw(st.floats(5, 50)))
    lookup = drivable.grid(space, np.array(first_cell), size_m, draw(st.sampled_from([0.3, 0.5, 1.1])))
    return space, lookup, np.random.default_rng(draw(st.integers(0, 2**32 - 1)))


def poses_near(space, rng, count):
    """Car poses all over the space, half of them hugging its edge."""
    anywhere = rng.uniform(-28, 28, (count // 2, 2))
    edge = shapely.get_coordinates(
        shapely.line_interpolate_point(space.boundary, rng.random(count // 2), normalized=True)
    )
    at = np.concatenate([anywhere, edge + rng.normal(0, 1.5, edge.shape)])
    return np.concatenate([at, rng.uniform(-np.pi, np.pi, (len(at), 1))], axis=1)


def signed_distances(space, points):
    """Exact, by another method than the grid's: shapely's distance of each point to the whole edge."""
    distance = shapely.distance(shapely.points(points), space.boundary)
    return np.where(drivable.contains(space, points), distance, -distance)


@given(grids())
def test_corners_called_clear_are_inside_the_polygons(case):
    space, lookup, rng = case
    poses = poses_near(space, rng, 400)
    called_clear = drivable.corner_clearances(lookup, poses, CAR) > 0
    assert drivable.contains(space, geometry.box_corners(poses, CAR))[called_clear].all()


@given(grids(), st.floats(0.5, 12.0), st.floats(0.3, 3.0))
def test_an_outline_called_clear_lies_inside_the_polygons(case, length, width):
    space, lookup, rng = case
    size = np.array([length, width])
    poses = poses_near(space, rng, 200)
    called_clear = drivable.outline_clearances(lookup, poses, size) > 0
    outlines = shapely.linearrings(geometry.box_corners(poses[called_clear], size))
    assert shapely.contains_properly(space, outlines).all()


@given(grids())
def test_the_grid_never_promises_more_room_than_there_is(case):
    space, lookup, rng = case
    points = poses_near(space, rng, 400)[:, :2]
    room = np.clip(signed_distances(space, points), -drivable.REACH_M, drivable.REACH_M)
    assert (drivable.clearances(lookup, points) <= room).all()


@given(grids())
def test_cells_hold_the_distance_to_the_edge(case):
    space, lookup, _ = case
    rows, columns = np.indices(lookup.distance_m.shape)
    at = geometry.transform_points(lookup.ego_from_grid, lookup.resolution_m * np.stack([rows, columns], axis=-1))
    room = np.clip(signed_distances(space, at), -drivable.REACH_M, drivable.REACH_M)
    np.testing.assert_allclose(lookup.distance_m, room, atol=2 * drivable.ROUNDING_M)


@given(grids())
def test_caution_stays_within_a_cell_of_the_edge(case):
    """On the grid, corners more than a cell's diagonal inside are always classified as inside, however jagged the edge;
    an outline pays half a cell more, the spacing of its samples."""
    space, lookup, rng = case
    poses = poses_near(space, rng, 400)
    corners = geometry.box_corners(poses, CAR)
    on_grid = geometry.transform_points(geometry.invert(lookup.ego_from_grid), corners) / lookup.resolution_m
    covered = ((on_grid > 0) & (on_grid < np.array(lookup.distance_m.shape) - 1)).all(axis=(1, 2))
    inside_by = signed_distances(space, corners).min(axis=1)
    is_clear = drivable.corner_clearances(lookup, poses, CAR) > 0
    assert is_clear[covered & (inside_by > DIAGONAL * lookup.resolution_m + 2 * drivable.ROUNDING_M)].all()
    outline = shapely.linearrings(corners)
    room = np.where(shapely.contains_properly(space, outline), shapely.distance(outline, space.boundary), -1.0)
    is_clear = drivable.outline_clearances(lookup, poses, CAR) > 0
    assert is_clear[covered & (room > (DIAGONAL + 0.5) * lookup.resolution_m + 2 * drivable.ROUNDING_M)].all()


@given(spaces(), rings(), st.integers(0, 1000))
def test_less_road_is_never_more_room(space, cut, seed):
    less = polygons_of(space.difference(shapely.Polygon(cut)))
    if less.area == 0:
        return
    points = poses_near(space, np.random.default_rng(seed), 200)[:, :2]
    before, after = (drivable.grid(one, np.array([-20.0, -20, 0.3]), (40.0, 40.0), 0.5) for one in (space, less))
    assert (drivable.clearances(after, points) <= drivable.clearances(before, points) + 1e-6).all()


def test_a_seam_between_two_lanes_is_road_and_the_kerb_is_not():
    lanes = [np.array([[0.0, 0], [9, 0], [9, 3], [0, 3]]), np.array([[0.0, 3], [9, 3], [9, 6], [0, 6]])]
    road = drivable.union_polygons(lanes)
    assert drivable.contains(road, np.array([[4.0, 3.0], [4, 5.9]])).all()
    assert not drivable.contains(road, np.array([[4.0, 6.0], [4, 7], [0, 3]])).any()


def test_an_island_between_the_corners_stops_the_outline_only():
    island = shapely.Polygon([(2, -5), (2.4, -5), (2.4, 0), (2, 0)])
    space = drivable.union_polygons([shapely.Polygon([(-20, -9), (20, -9), (20, 9), (-20, 9)]).difference(island)])
    lookup = drivable.grid(space, np.array([-10.0, -5, 0]), (20.0, 10.0))
    pose = np.array([2.2, 0.8, 0.0])
    assert drivable.corner_clearances(lookup, pose, CAR) > 0
    assert drivable.outline_clearances(lookup, pose, CAR) < 0


def test_a_grid_of_the_map_rides_along_with_the_car():
    space = drivable.union_polygons([np.array([[-50.0, -3], [50, -3], [50, 3], [-50, 3]])])
    in_map = drivable.grid(space, np.array([-60.0, -10, 0]), (120.0, 20.0))
    map_from_ego = np.array([7.0, 1.0, 0.4])
    in_ego = replace(in_map, ego_from_grid=geometry.compose(geometry.invert(map_from_ego), in_map.ego_from_grid))
    points = np.random.default_rng(0).uniform(-9, 9, (5, 6, 4, 2))
    there = drivable.clearances(in_map, geometry.transform_points(map_from_ego, points))
    np.testing.assert_allclose(drivable.clearances(in_ego, points), there, atol=1e-9)
    assert there.shape == (5, 6, 4)


SQUARE = np.array([[0.0, 0], [4, 0], [4, 4], [0, 4]])


@pytest.mark.parametrize(
    ("polygons", "message"),
    [
        ([], r"^drivable holds no polygon"),
        ([SQUARE, np.zeros((0, 2))], r"^drivable\[1\] has shape \(0, 2\), expected \(3 or more, 2\)"),
        ([SQUARE[:2]], r"^drivable\[0\] has shape \(2, 2\)"),
        ([SQUARE * [1, np.nan]], r"^drivable\[0\] holds NaN"),
        ([SQUARE, SQUARE[[0, 1, 3, 2]]], r"^drivable\[1\] is not a simple polygon: Self-intersection"),
        ([SQUARE[[0, 1, 1, 0]]], r"^drivable\[0\] (is not a simple polygon|has no area)"),
        ([shapely.Polygon()], r"^drivable\[0\] is empty"),
    ],
)
def test_polygons_that_are_none_are_named(polygons, message):
    with pytest.raises(ValueError, match=message):
        drivable.union_polygons(polygons)


def test_a_grid_without_area_is_refused():
    with pytest.raises(ValueError, match="size_m"):
        drivable.grid(drivable.union_polygons([SQUARE]), np.zeros(3), (0.0, 5.0))


def test_a_space_that_does_not_consist_of_polygons_is_refused():
    mixed = shapely.GeometryCollection([shapely.box(0, 0, 5, 5), shapely.LineString([(9, 0), (9, 5)])])
    with pytest.raises(ValueError, match="space is a GeometryCollection"):
        drivable.grid(mixed, np.zeros(3), (10.0, 10.0))


def test_between_cells_the_likely_distance_is_exact_at_a_straight_edge_and_the_bound_is_not():
    """A road of 6 m at 20 degrees to the grid."""
    tilt = np.deg2rad(20.0)
    corners = geometry.transform_points(np.array([0.0, 0.0, tilt]), np.array([(-60, -3), (60, -3), (60, 3), (-60, 3)]))
    lookup = drivable.grid(drivable.union_polygons([corners]), np.array([-10.0, -10.0, 0.0]), (20.0, 20.0))
    rng = np.random.default_rng(0)
    x, y = rng.uniform(4.0, 16.0, (2, 2000))
    across = np.abs(np.cos(tilt) * (y - 10.0) - np.sin(tilt) * (x - 10.0))
    inside = across > 0.3  # in the middle the nearer edge changes
    points, here = np.stack([x - 10.0, y - 10.0], axis=-1), np.zeros((1, 2))
    poses = np.pad(points, ((0, 0), (0, 1)))
    likely = drivable.likely_box_distances(lookup, poses, here)
    np.testing.assert_allclose(likely[inside], 3.0 - across[inside], atol=0.01)
    bound = drivable.clearances(lookup, points)
    np.testing.assert_allclose(drivable.box_clearances(lookup, poses, here), bound, atol=1e-6)
    assert (bound <= 3.0 - across).all()
    assert np.mean(3.0 - across - bound) > 0.01
