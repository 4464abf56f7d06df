"""Action sequences to learn from: every state that decoding visits is met, and wrong plans are wrong as plans are."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reflectdrive_ros.core.tokens import TokenLayout, draft_schedule
from reflectdrive_ros.training import augment

LAYOUT = TokenLayout()
CODEBOOK = LAYOUT.codebook
MASK = CODEBOOK.mask_id


def arc(speed=8.0, curvature=0.02):
    along = 0.5 * speed * np.arange(1, 9)
    return np.stack([np.sin(curvature * along) / curvature, (1 - np.cos(curvature * along)) / curvature], axis=1)


def way(points):
    """(N,) length of the path from the origin through points (N, T, 2)."""
    return np.hypot(*np.moveaxis(np.diff(points, axis=1, prepend=0.0), -1, 0)).sum(axis=1)


# --- hidden ----------------------------------------------------------------------------------------------------------


def test_every_state_that_decoding_visits_is_met_once_in_a_hundred_blocks():
    clean = np.full((2000, 16), 7)
    actions = augment.masked_actions(clean, 5, LAYOUT, np.random.default_rng(0)).reshape(-1, 16)
    hidden = actions == MASK
    goal_seen = ~hidden[:, 14:].any(axis=1)
    left = hidden[:, :14].sum(axis=1)
    shares = {"all": hidden.all(axis=1).mean()}
    masked = 14
    for limit in draft_schedule(14, 3):
        shares[f"{masked} hidden, goal seen"] = (goal_seen & (left == masked)).mean()
        masked -= limit
    assert min(shares.values()) > 0.01, shares
    assert 0.18 < shares["all"] < 0.22
    assert shares["14 hidden, goal seen"] > 0.2
    assert (actions[~hidden] == 7).all()


def test_hidden_tokens_are_spread_over_all_positions():
    actions = augment.masked_actions(np.zeros((4000, 16), int), 4, LAYOUT, np.random.default_rng(0))[:, 1:]
    often = (actions == MASK).mean(axis=(0, 1))
    assert np.ptp(often[:14]) < 0.03  # no free place is hidden more often than another
    assert np.ptp(often[14:]) < 0.03
    assert often[14:].max() < often[:14].min()  # the goal is seen more often


def test_the_first_block_is_all_mask_and_the_order_of_blocks_follows_the_seed():
    clean = np.arange(32).reshape(2, 16)
    one, two = (augment.masked_actions(clean, 4, LAYOUT, np.random.default_rng(3)) for _ in range(2))
    assert (one[:, 0] == MASK).all()
    np.testing.assert_array_equal(one, two)
    with pytest.raises(ValueError, match="at least 1"):
        augment.masked_actions(clean, 0, LAYOUT, np.random.default_rng(3))


# --- wrong -----------------------------------------------------------------------------------------------------------


@given(st.floats(0.5, 1.6), st.floats(2.0, 15.0), st.floats(-0.05, 0.05).filter(lambda k: abs(k) > 1e-3))
def test_a_plan_that_slides_goes_its_way_times_the_factor(factor, speed, curvature):
    points = arc(speed, curvature)[None]
    np.testing.assert_allclose(
        way(augment.scale_along_path(points, np.array([factor]))), factor * way(points), rtol=0.02
    )


def test_beyond_its_end_a_plan_goes_straight_on_and_further_with_every_factor():
    points = arc()[None]
    factors = np.linspace(1.0, 1.6, 13)
    ends = np.concatenate([augment.scale_along_path(points, np.array([f]))[:, -1] for f in factors])
    step = points[0, -1] - points[0, -2]
    beyond = (ends - points[0, -1]) @ step / np.hypot(*step)
    assert (np.diff(beyond) > 0.1).all()
    across = (ends - points[0, -1]) @ [-step[1], step[0]]
    np.testing.assert_allclose(across, 0.0, atol=1e-9)


def test_what_slides_by_one_stays_and_what_stands_stays():
    points = np.stack([arc(), np.zeros((8, 2)), np.linspace(0, 1, 8)[:, None].clip(0, 0.5) * [4.0, 0.0]])
    np.testing.assert_allclose(augment.scale_along_path(points, np.ones(3)), points, atol=1e-12)
    np.testing.assert_array_equal(augment.scale_along_path(points[1:2], np.array([1.5])), points[1:2])
    stops = augment.scale_along_path(points[2:], np.array([1.5]))  # a plan that ends standing overshoots along its way
    np.testing.assert_allclose(stops[0, -1], 1.5 * points[2, -1])


def test_a_plan_turns_about_the_car():
    points = arc()[None]
    angle = np.array([0.1])
    turned = augment.rotate(points, angle)
    np.testing.assert_allclose(augment.rotate(turned, -angle), points, atol=1e-12)
    first, before = (np.arctan2(p[0, 0, 1], p[0, 0, 0]) for p in (turned, points))
    np.testing.assert_allclose(first - before, 0.1)
    np.testing.assert_allclose(np.hypot(*turned[0].T), np.hypot(*points[0].T))


def test_perturbed_blocks_keep_their_promises():
    points = np.repeat(arc()[None], 4000, axis=0)
    clean = LAYOUT.encode(points[:1])[0]
    actions = augment.perturbed_actions(points, 2, LAYOUT, np.random.default_rng(0)).reshape(-1, 16)
    masked = actions == MASK
    no_end = masked.any(axis=1)
    assert 0.12 < no_end.mean() < 0.18
    assert masked[no_end, 14:].all()
    assert not masked[:, :12].any()
    whole = actions[~no_end]
    same = (whole == clean).all(axis=1)
    assert 0.2 < same.mean() < 0.3  # identity, and what rounds to it
    assert 0.55 < (whole[:, 14:] == clean[14:]).all(axis=1).mean() < 0.72
    assert whole.min() >= 0
    assert whole.max() < CODEBOOK.bins
    slower = LAYOUT.decode(whole)[:, 3, 0] < points[0, 3, 0] - 0.5
    assert 0.15 < slower.mean() < 0.45


def test_a_plan_beyond_the_codebook_is_brought_back_to_it():
    actions = augment.perturbed_actions(np.full((50, 8, 2), 99.0), 3, LAYOUT, np.random.default_rng(0))
    known = actions[actions != MASK]
    assert known.max() == CODEBOOK.bins - 1
