"""Claims about local search: the whole ball is tried in one batch, and the nearest of the best wins."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reflectdrive_ros import kinematics
from reflectdrive_ros.domain import AgentKind, Forecast, ForecastSource
from reflectdrive_ros.scoring.contacts import AgentTracks
from reflectdrive_ros.scoring.scorer import Reference, Scene, score
from reflectdrive_ros.scoring.search import ball, search
from reflectdrive_ros.tokens import TokenLayout

LAYOUT = TokenLayout()
CODEBOOK = LAYOUT.codebook
ROAD = np.array([[-20.0, 0.0], [150.0, 0.0]])


def poses_of(points):
    """Each waypoint heads the way the car came."""
    with_now = np.stack([kinematics.with_origin(np.pad(one, ((0, 0), (0, 1))))[:, :2] for one in points])
    step = np.diff(with_now, axis=1)
    return np.concatenate([points, np.arctan2(step[..., 1], step[..., 0])[..., None]], axis=2)


def straight_scene(speed, parked=(), reference=None):
    """A straight road at a speed, with cars parked at (x, y)."""
    poses = np.array([[[x, y, 0.0]] for x, y in parked]).reshape(-1, 1, 3)
    sizes, kinds = np.full((len(poses), 2), (4.6, 1.9)), np.full(len(poses), AgentKind.VEHICLE)
    forecast = Forecast(poses, sizes, 0.5, ForecastSource.CONSTANT_VELOCITY)
    motion = np.array([speed, 0, 0, 0, 0, 0, 0, 0])
    return Scene(motion, AgentTracks.of_forecast(forecast, kinds), ROAD, reference=reference)


def straight_plan(distances):
    return CODEBOOK.encode(np.column_stack([distances, np.zeros(8)]))


@pytest.mark.parametrize(("delta", "count"), [(10, 221), (5, 61), (3, 25), (0, 1)])
def test_the_ball_has_the_size_of_the_papers(delta, count):
    assert len(ball(CODEBOOK, np.array([400, 333]), delta)) == count


@given(st.integers(0, 666), st.integers(0, 666), st.integers(0, 12))
def test_the_ball_is_all_pairs_near_enough_and_on_the_codebook(x, y, delta):
    found = ball(CODEBOOK, np.array([x, y]), delta)
    near = range(-delta, delta + 1)
    wanted = {(x + a, y + b) for a in near for b in near if abs(a) + abs(b) <= delta}
    assert sorted(map(tuple, found)) == sorted(p for p in wanted if min(p) >= 0 and max(p) < CODEBOOK.bins)
    far = np.abs(found - [x, y]).sum(axis=1)
    assert far[0] == 0
    assert (np.diff(far) >= 0).all()


@pytest.mark.parametrize(("pair", "count"), [((0, 0), 66), ((666, 666), 66), ((0, 333), 121), ((333, 666), 121)])
def test_at_the_edge_of_the_codebook_the_ball_is_cut_off(pair, count):
    assert len(ball(CODEBOOK, np.array(pair))) == count


@pytest.mark.parametrize("pair", [(CODEBOOK.mask_id, 333), (-1, 0)])
def test_the_mask_has_no_neighbours(pair):
    with pytest.raises(ValueError, match=r"expected 0\.\.666"):
        ball(CODEBOOK, np.array(pair))


def test_where_all_score_the_same_the_waypoint_stays():
    found = search(straight_scene(8.0), straight_plan(4.0 * np.arange(1, 9)), 3, LAYOUT, poses_of, delta=2)
    assert np.ptp(found.card.score) == 0
    assert found.best == 0
    np.testing.assert_array_equal(found.ids[0], straight_plan(4.0 * np.arange(1, 9)))


def test_a_plan_that_bumps_into_a_parked_car_is_pulled_back():
    """The last waypoint lies 2 m too far; a search around it finds the nearest stop that touches nobody."""
    plan = straight_plan([4.0, 7.5, 10.5, 13.0, 15.0, 16.5, 17.5, 19.5])
    scene = straight_scene(8.0, parked=[(25.6, 0.0)], reference=Reference(17.0))
    found = search(scene, plan, 7, LAYOUT, poses_of)
    assert len(found.card) == 221
    assert found.card.nc[0] == 0
    assert found.card.nc[found.best] == 1
    assert found.card.score[found.best] == found.card.score.max() > 0
    moved = found.ids[found.best] != plan
    assert not moved[:14].any()
    assert found.pairs[found.best][0] < plan[14]


def test_one_batch_scores_as_one_by_one():
    plan = straight_plan([4.0, 7.5, 10.5, 13.0, 15.0, 16.5, 17.5, 19.5])
    scene = straight_scene(8.0, parked=[(26.0, 0.0), (12.0, 3.0)], reference=Reference(17.0))
    found = search(scene, plan, 4, LAYOUT, poses_of, delta=3)
    alone = [score(scene, poses_of(LAYOUT.decode(ids[None]))).score[0] for ids in found.ids]
    np.testing.assert_allclose(found.card.score, alone, atol=1e-9)


def test_only_the_waypoint_moves_and_no_further_than_delta():
    found = search(straight_scene(8.0), straight_plan(4.0 * np.arange(1, 9)), 0, LAYOUT, poses_of, delta=4)
    assert (found.ids[:, 2:] == found.ids[0, 2:]).all()
    np.testing.assert_array_equal(found.ids[:, :2], found.pairs)
    reached = LAYOUT.decode(found.ids)[:, 0]
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
        search(straight_scene(8.0), ids, waypoint, LAYOUT, poses_of)
