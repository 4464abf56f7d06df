"""Claims about local search: the ball around a waypoint is whole, nearest first, and moves nothing else."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reflectdrive_ros.core.tokens import TokenLayout
from reflectdrive_ros.scoring.search import ball, neighbourhood

LAYOUT = TokenLayout()
CODEBOOK = LAYOUT.codebook
PLAN = CODEBOOK.encode(np.column_stack([4.0 * np.arange(1, 9), np.zeros(8)]))


@pytest.mark.parametrize(("delta", "count"), [(10, 221), (5, 61), (3, 25), (0, 1)])
def test_the_ball_has_the_size_of_the_papers(delta, count):
    assert len(ball(CODEBOOK, np.array([400, 333]), delta)) == count


@given(st.integers(0, 666), st.integers(0, 666), st.integers(0, 12))
def test_the_ball_is_all_pairs_near_enough_and_on_the_codebook(x, y, delta):
    pairs = ball(CODEBOOK, np.array([x, y]), delta)
    near = range(-delta, delta + 1)
    expected = {(x + a, y + b) for a in near for b in near if abs(a) + abs(b) <= delta}
    assert sorted(map(tuple, pairs)) == sorted(p for p in expected if min(p) >= 0 and max(p) < CODEBOOK.bins)
    distance = np.abs(pairs - [x, y]).sum(axis=1)
    assert distance[0] == 0
    assert (np.diff(distance) >= 0).all()


@pytest.mark.parametrize("pair", [(CODEBOOK.mask_id, 333), (-1, 0)])
def test_the_mask_has_no_neighbours(pair):
    with pytest.raises(ValueError, match=r"expected 0\.\.666"):
        ball(CODEBOOK, np.array(pair))


def test_only_the_waypoint_moves_and_no_further_than_delta():
    pairs, sequences = neighbourhood(PLAN, 0, LAYOUT, delta=4)
    np.testing.assert_array_equal(sequences[0], PLAN)  # the nearest is the waypoint itself
    assert (sequences[:, 2:] == PLAN[2:]).all()
    np.testing.assert_array_equal(sequences[:, :2], pairs)
    reached = LAYOUT.decode(sequences)[:, 0]
    assert np.abs(reached - [4.0, 0.0]).sum(axis=1).max() <= 4 * CODEBOOK.bin_m + 0.15


@pytest.mark.parametrize(
    ("ids", "waypoint", "message"),
    [
        (np.zeros(15, int), 0, r"search.ids has shape \(15,\)"),
        (np.zeros((1, 16), int), 0, r"search.ids has shape \(1, 16\)"),
        (np.zeros(16, int), 8, r"search.waypoint is 8, expected 0\.\.7"),
        (np.full(16, CODEBOOK.mask_id), 0, r"expected 0\.\.666"),
    ],
)
def test_what_is_no_trajectory_is_refused(ids, waypoint, message):
    with pytest.raises(ValueError, match=message):
        neighbourhood(ids, waypoint, LAYOUT)
