"""Frames cancel, polylines measure, boxes keep apart: against closed forms and against shapely."""

import numpy as np
import pytest
import shapely
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from reflectdrive_ros.core import geometry

metres = st.floats(-500.0, 500.0)
angles = st.floats(-10.0, 10.0)
poses = st.tuples(metres, metres, angles).map(np.array)
points = arrays(float, (6, 2), elements=metres)
sizes = st.tuples(st.floats(0.1, 20.0), st.floats(0.1, 5.0)).map(np.array)
near_poses = st.tuples(st.floats(-15.0, 15.0), st.floats(-15.0, 15.0), angles).map(np.array)


def assert_same_poses(have, want, atol=1e-9):
    np.testing.assert_allclose(have[..., :2], want[..., :2], atol=atol)
    np.testing.assert_allclose(geometry.wrap(have[..., 2] - want[..., 2]), 0.0, atol=atol)


@st.composite
def wandering_lines(draw, sideways=5.0):
    """(L, 2) points of a line that always goes forward in x, so that its places are far from one another."""
    steps = draw(st.lists(st.tuples(st.floats(0.5, 10.0), st.floats(-sideways, sideways)), min_size=1, max_size=20))
    start = np.array(draw(st.tuples(metres, metres)))
    return start + np.concatenate([np.zeros((1, 2)), np.cumsum(np.array(steps), axis=0)])


# --- rigid motions ---------------------------------------------------------------------------------------------------


@given(st.floats(-1e4, 1e4))
def test_wrap_changes_an_angle_by_whole_turns_only(angle):
    wrapped = geometry.wrap(angle)
    assert -np.pi <= wrapped <= np.pi
    np.testing.assert_allclose([np.cos(wrapped), np.sin(wrapped)], [np.cos(angle), np.sin(angle)], atol=1e-9)


@given(poses)
def test_there_and_back_is_where_we_were(a_from_b):
    assert_same_poses(geometry.compose(a_from_b, geometry.invert(a_from_b)), np.zeros(3))
    assert_same_poses(geometry.compose(geometry.invert(a_from_b), a_from_b), np.zeros(3))
    assert_same_poses(geometry.invert(geometry.invert(a_from_b)), a_from_b)


@given(poses, poses, poses)
def test_frames_cancel_in_any_grouping(a_from_b, b_from_c, c_from_d):
    left = geometry.compose(geometry.compose(a_from_b, b_from_c), c_from_d)
    right = geometry.compose(a_from_b, geometry.compose(b_from_c, c_from_d))
    assert_same_poses(left, right, atol=1e-8)


@given(poses, poses, points)
def test_points_go_the_way_of_poses(a_from_b, b_from_c, in_c):
    through_b = geometry.transform_points(a_from_b, geometry.transform_points(b_from_c, in_c))
    straight = geometry.transform_points(geometry.compose(a_from_b, b_from_c), in_c)
    np.testing.assert_allclose(through_b, straight, atol=1e-8)


@given(poses, poses, st.floats(-5.0, 5.0))
def test_matrices_say_the_same_as_poses(a_from_b, b_from_c, height):
    product = geometry.matrix_from_pose(a_from_b, height) @ geometry.matrix_from_pose(b_from_c)
    expected = geometry.matrix_from_pose(geometry.compose(a_from_b, b_from_c), height)
    np.testing.assert_allclose(product, expected, atol=1e-9)
    inverse = geometry.invert_matrix(product)
    np.testing.assert_allclose(inverse @ product, np.eye(4), atol=1e-9)


def test_a_quarter_turn_left_points_left():
    np.testing.assert_allclose(geometry.rotate(np.array([1.0, 0.0]), np.pi / 2), [0.0, 1.0], atol=1e-12)
    ahead = geometry.compose(np.array([5.0, 0.0, np.pi / 2]), np.array([2.0, 0.0, 0.0]))
    assert_same_poses(ahead, np.array([5.0, 2.0, np.pi / 2]))


# --- polylines -------------------------------------------------------------------------------------------------------


@given(wandering_lines(), st.lists(st.floats(0.0, 1.0), min_size=1, max_size=8))
def test_what_was_sampled_projects_back_to_where_it_was_sampled(line, shares):
    along = np.array(shares) * geometry.arc_lengths(line)[-1]
    on_line = geometry.sample(line, along)
    back, offset = geometry.project(line, on_line[:, :2])
    np.testing.assert_allclose(back, along, atol=1e-6)
    np.testing.assert_allclose(offset, 0.0, atol=1e-6)


@given(wandering_lines(), points)
def test_the_nearest_place_is_shapelys(line, others):
    along, offset = geometry.project(line, others)
    truth = shapely.LineString(line)
    np.testing.assert_allclose(np.abs(offset), shapely.distance(truth, shapely.points(others)), atol=1e-6)
    nearest = geometry.sample(line, along)[:, :2]
    np.testing.assert_allclose(np.linalg.norm(nearest - others, axis=1), np.abs(offset), atol=1e-6)


@given(
    wandering_lines(sideways=0.3),  # no spike, beside whose tip one is on both sides
    st.floats(0.01, 0.99),
    st.floats(0.001, 0.2),
    st.sampled_from([-1.0, 1.0]),
    st.integers(0, 20),
)
def test_left_is_positive_also_where_points_repeat(line, share, gap, side, where):
    pose = geometry.sample(line, np.array([share * geometry.arc_lengths(line)[-1]]))[0]
    points = geometry.transform_points(pose, np.array([[0.0, side * gap]]))
    repeated = np.insert(line, where % len(line), line[where % len(line)], axis=0)
    _, offset = geometry.project(repeated, points)
    assert np.sign(offset[0]) == side
    assert abs(offset[0]) <= gap + 1e-9


@pytest.mark.parametrize("side", [-1.0, 1.0])
def test_left_is_left_beside_a_first_point_that_is_given_twice(side):
    line = np.array([[0.0, 0.0], [0.0, 0.0], [10.0, 0.0]])
    along, offset = geometry.project(line, np.array([[0.0, side], [-3.0, 4.0 * side]]))
    np.testing.assert_allclose(along, 0.0)
    np.testing.assert_allclose(offset, [side, 5.0 * side])


@given(wandering_lines(), st.floats(0.0, 50.0))
def test_beyond_its_ends_a_line_goes_on_straight(line, beyond):
    length = geometry.arc_lengths(line)[-1]
    ends = geometry.sample(line, np.array([-beyond, 0.0, length, length + beyond]))
    for outside, end, distance_m in ((ends[0], ends[1], -beyond), (ends[3], ends[2], beyond)):
        assert_same_poses(outside, geometry.compose(end, np.array([distance_m, 0.0, 0.0])), atol=1e-8)


@given(wandering_lines(), st.integers(0, 20), st.integers(1, 4))
def test_standing_still_keeps_the_heading_one_came_with(line, where, times):
    where = min(where, len(line) - 1)
    standing = np.insert(line, [where] * times, line[where], axis=0)
    headings = geometry.headings_along(line)
    expected = np.insert(headings, [where] * times, headings[max(where - 1, 0)])
    np.testing.assert_allclose(geometry.headings_along(standing), expected)
    np.testing.assert_allclose(geometry.distinct_points(standing), line)


def test_a_line_that_goes_nowhere_has_headings_too():
    assert (geometry.headings_along(np.ones((4, 2))) == 0.0).all()
    assert len(geometry.distinct_points(np.ones((4, 2)))) == 1


# --- oriented boxes --------------------------------------------------------------------------------------------------


def polygon(pose, size):
    return shapely.Polygon(geometry.box_corners(pose, size))


@given(poses, sizes)
def test_corners_are_those_of_the_box(pose, size):
    corners = geometry.box_corners(pose, size)
    inside = geometry.transform_points(geometry.invert(pose), corners)
    length, width = 0.5 * size
    expected = [[length, width], [-length, width], [-length, -width], [length, -width]]
    np.testing.assert_allclose(inside, expected, atol=1e-9)
    assert polygon(pose, size).area == pytest.approx(size[0] * size[1], rel=1e-6)


@given(near_poses, sizes, near_poses, sizes)
def test_separation_never_exceeds_the_true_distance(pose_a, size_a, pose_b, size_b):
    separation = float(geometry.box_separation(pose_a, size_a, pose_b, size_b))
    assert separation <= polygon(pose_a, size_a).distance(polygon(pose_b, size_b)) + 1e-9


@given(near_poses, sizes, near_poses, sizes)
def test_boxes_overlap_as_shapely_says_away_from_touching(pose_a, size_a, pose_b, size_b):
    assume(abs(float(geometry.box_separation(pose_a, size_a, pose_b, size_b))) > 1e-7)
    overlap = bool(geometry.boxes_overlap(pose_a, size_a, pose_b, size_b))
    assert overlap == polygon(pose_a, size_a).intersects(polygon(pose_b, size_b))


@given(poses, near_poses, sizes, near_poses, sizes)
def test_separation_does_not_depend_on_order_or_frame(frame, pose_a, size_a, pose_b, size_b):
    here = geometry.box_separation(pose_a, size_a, pose_b, size_b)
    swapped = geometry.box_separation(pose_b, size_b, pose_a, size_a)
    moved = geometry.box_separation(geometry.compose(frame, pose_a), size_a, geometry.compose(frame, pose_b), size_b)
    np.testing.assert_allclose([swapped, moved], here, atol=1e-8)


def test_a_line_without_reversals_keeps_its_first_point_and_moves_on():
    line = np.array([[0.0, 0.0], [0.01, 0.0], [2.0, 0.0], [4.0, 0.0], [3.0, 0.0], [3.9, 0.0], [6.0, 0.0]])
    np.testing.assert_array_equal(geometry.drop_reversals(line, 0.05)[:, 0], [0.0, 2.0, 4.0, 6.0])
