"""Decoding holds its invariants for any logits: counts add up, masks never come back, goals keep their spacing."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from tiny_net import whole_layout

from reflectdrive_ros.core.tokens import Axis, draft_schedule
from reflectdrive_ros.model.token.ops import (
    EditRules,
    GoalRules,
    auto_edit,
    choose_goals,
    draw,
    likely_x_indices,
    reachable_bins,
    replace_all,
    reweight_goals,
    unmask,
)

torch.set_num_threads(1)
BINS, MASK = 21, 21
LAYOUT = whole_layout(BINS)


def random_logits(seed, scale=3.0):
    generator = torch.Generator().manual_seed(seed)
    # few different values, so that ties are common
    return scale * torch.randint(-3, 4, (2, 3, 16, BINS), generator=generator).float()


def random_ids(seed, masked):
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(0, BINS, (2, 3, 16), generator=generator)
    return torch.where(torch.rand(ids.shape, generator=generator) < masked, MASK, ids)


# --- unmasking -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(5))
def test_a_round_writes_the_most_confident_masked_positions_and_nothing_else(seed):
    ids, logits = random_ids(seed, 0.6), random_logits(seed)
    confidence = logits.softmax(-1).amax(-1)
    written, probabilities = unmask(ids, logits, LAYOUT, 4)
    masked, left = ids == MASK, written == MASK
    assert written[~masked].equal(ids[~masked])
    assert (masked.sum(-1) - left.sum(-1)).equal(masked.sum(-1).clamp(max=4))
    changed = written != ids
    assert written[changed].equal(logits.argmax(-1)[changed])
    for block in range(3):
        for scene in range(2):
            rest, done = (confidence[scene, block][part[scene, block]] for part in (left, changed))
            assert not len(rest) or not len(done) or done.min() >= rest.max()
    assert (probabilities[left] == 0.0).all()
    of_written = logits.softmax(-1).gather(-1, torch.where(left, 0, written)[..., None])[..., 0]
    assert probabilities[~left].equal(of_written[~left])


def test_drafting_ends_without_masks_and_keeps_the_goal_and_what_was_written():
    ids = random_ids(0, 1.0)
    ids[..., -2:] = torch.tensor([7, 9])
    for turn, share in enumerate(draft_schedule(14, 3)):
        written, _ = unmask(ids, random_logits(turn), LAYOUT, torch.tensor(share))
        assert written[ids != MASK].equal(ids[ids != MASK])
        ids = written
    assert (ids < BINS).all()
    assert (ids[..., -2:] == torch.tensor([7, 9])).all()


# --- AutoEdit --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(5))
def test_an_edit_replaces_only_improbable_tokens_by_more_probable_ones(seed):
    rules = EditRules(at_most=5)
    ids, logits = random_ids(seed, 0.2), random_logits(seed, scale=1.0)
    edited, confidence = auto_edit(ids, logits, LAYOUT, rules)
    probability = logits.softmax(-1)
    masked, changed = ids == MASK, edited != ids
    assert ((edited == MASK) == masked).all()  # no new mask, and a mask is left to drafting
    assert not changed[..., -2:].any()
    assert changed.sum(-1).max() <= 5
    assert changed.any()
    before = probability.gather(-1, torch.where(masked, 0, ids)[..., None])[..., 0]
    after = probability.gather(-1, torch.where(masked, 0, edited)[..., None])[..., 0]
    assert (after[changed] > before[changed]).all()
    assert confidence[~masked].equal(after[~masked])
    assert (confidence[masked] == 0.0).all()
    spared = ~changed & ~masked & (logits.argmax(-1) != ids)
    spared[..., -2:] = False
    spared &= probability.amax(-1) > before
    for scene in range(2):
        for block in range(3):
            if spared[scene, block].any():  # only where the round was full, and then the better ones
                assert changed[scene, block].sum() == 5
                edited_before, spared_before = (before[scene, block][of[scene, block]] for of in (changed, spared))
                assert edited_before.max() <= spared_before.min()


def test_a_draft_that_the_network_believes_in_is_left_alone():
    ids = random_ids(3, 0.0)
    sure = 9.0 * torch.nn.functional.one_hot(ids, BINS).float()
    assert auto_edit(ids, sure, LAYOUT, EditRules())[0].equal(ids)
    likeliest = 0.5 * torch.nn.functional.one_hot(ids, BINS).float()  # unsure, yet nothing is more probable
    assert auto_edit(ids, likeliest, LAYOUT, EditRules())[0].equal(ids)
    assert auto_edit(ids, torch.zeros_like(sure), LAYOUT, EditRules())[0].equal(ids)  # all are equally probable


def test_edits_come_to_rest():
    """With the same opinion each round, all is repaired after three rounds of five, except the goal."""
    ids, targets = random_ids(1, 0.0), random_ids(2, 0.0)
    logits = 6.0 * torch.nn.functional.one_hot(targets, BINS).float()
    for _ in range(3):
        ids = auto_edit(ids, logits, LAYOUT, EditRules())[0]
    assert ids[..., :-2].equal(targets[..., :-2])


# --- goals -----------------------------------------------------------------------------------------------------------

X_M = 0.3 * torch.arange(-5, 60)
Y_M = 0.3 * torch.arange(-20, 21)


def goals(x_logits, y_logits, rules):
    return choose_goals(x_logits.log_softmax(-1), y_logits, X_M.expand(len(x_logits), -1), Y_M, rules)


def positions_m(cells):
    return torch.stack([X_M[cells[..., 0]], Y_M[cells[..., 1]]], -1)


@pytest.mark.parametrize("spacing", [0.3, 0.9, 1.2, 3.0])
def test_goals_keep_their_distance_in_metres_and_the_first_is_the_most_probable(spacing):
    generator = torch.Generator().manual_seed(0)
    x_logits, y_logits = (
        4.0 * torch.randn(2, *size, generator=generator) for size in ((len(X_M),), (len(X_M), len(Y_M)))
    )
    cells, log_probs, valid = goals(x_logits, y_logits, GoalRules(6, spacing, floor=0.0))
    joint = (x_logits.log_softmax(-1)[..., None] + y_logits.log_softmax(-1)).exp()
    torch.testing.assert_close(joint.sum((1, 2)), torch.ones(2))
    torch.testing.assert_close(log_probs[:, 0].exp(), joint.amax((1, 2)))
    assert valid.all()
    assert (log_probs.diff(dim=1) <= 0).all()
    torch.testing.assert_close(log_probs.exp(), torch.stack([joint[b][tuple(cells[b].T)] for b in range(2)]))
    distances_m = torch.cdist(positions_m(cells), positions_m(cells)) + 1e9 * torch.eye(6)
    assert distances_m.min() >= spacing - 1e-3


def test_goals_at_exactly_the_spacing_are_two():
    x_logits, y_logits = torch.full((1, len(X_M)), -20.0), torch.full((1, len(X_M), len(Y_M)), -20.0)
    x_logits[0, [20, 24, 27]] = torch.tensor([2.0, 1.0, 0.0])  # spacing of 1.2 m and 0.9 m
    y_logits[..., 20] = 0.0
    cells, _, valid = goals(x_logits, y_logits, GoalRules(2, 1.2))
    assert cells[0].tolist() == [[20, 20], [24, 20]]
    assert valid.all()


def test_slots_without_a_probable_goal_are_flagged_and_repeat_the_first():
    x_logits, y_logits = torch.zeros(1, len(X_M)), torch.zeros(1, len(X_M), len(Y_M))
    x_logits[0, [10, 40]] = torch.tensor([20.0, 18.0])
    y_logits[..., 5] = 20.0
    cells, log_probs, valid = goals(x_logits, y_logits, GoalRules(4, 1.2))
    assert valid.tolist() == [[True, True, False, False]]
    assert cells[0].tolist() == [[10, 5], [40, 5], [10, 5], [10, 5]]
    assert log_probs[0, 2:].equal(log_probs[0, :1].expand(2))


def test_a_second_look_shares_out_what_probability_the_goals_have_together():
    generator = torch.Generator().manual_seed(0)
    log_probs = (0.5 * torch.rand(3, 8, generator=generator).softmax(-1)).log()
    odds = 3.0 * torch.randn(3, 8, generator=generator)
    valid = torch.rand(3, 8, generator=generator) < 0.8
    valid[:, 0] = True
    order, again, still = reweight_goals(log_probs, odds, valid, GoalRules(8, value_power=3.0))
    expected = torch.where(valid, log_probs.exp() * odds.exp() ** 3.0, 0.0)
    expected *= torch.where(valid, log_probs.exp(), 0.0).sum(-1, keepdim=True) / expected.sum(-1, keepdim=True)
    torch.testing.assert_close(again.exp(), expected.gather(1, order))
    assert still.sum(-1).equal(valid.sum(-1))
    for row, count in enumerate(valid.sum(-1).tolist()):
        assert still[row].tolist() == [True] * count + [False] * (8 - count)
        assert set(order[row, :count].tolist()) == set(valid[row].nonzero()[:, 0].tolist())
        assert (again[row, :count].diff() <= 0).all()
        assert order[row, count:].tolist() == order[row, :1].tolist() * (8 - count)


def test_of_the_goals_that_are_looked_at_the_best_stay():
    log_probs, odds = torch.tensor([[-1.0, -1.1, -1.2, -1.3]]), torch.tensor([[0.0, -5.0, 2.0, 1.0]])
    order, again, still = reweight_goals(log_probs, odds, torch.ones(1, 4, dtype=torch.bool), GoalRules(2))
    assert order.tolist() == [[2, 3]]
    assert still.all()
    assert again[0, 0] > again[0, 1]
    assert GoalRules(3, rescored=8).for_search == GoalRules(8, rescored=8)
    assert GoalRules(6, rescored=2).for_search.count == 6


def test_no_ghost_between_two_behaviours():
    """Far and left, or near and right: a product of marginals would offer far and right as its second goal."""
    x_logits, y_logits = torch.full((1, len(X_M)), -30.0), torch.full((1, len(X_M), len(Y_M)), -30.0)
    x_logits[0, [55, 15]] = 0.0
    y_logits[0, 55, 35] = y_logits[0, 15, 5] = 0.0
    cells, _, valid = goals(x_logits, y_logits, GoalRules(3, 1.2))
    assert sorted(cells[0][valid[0]].tolist()) == [[15, 5], [55, 35]]


@pytest.mark.parametrize("seed", range(20))
def test_goals_searched_at_likely_bins_are_those_of_all_bins_where_no_other_could_be_one(seed):
    generator, rules = torch.Generator().manual_seed(seed), GoalRules(6, 1.2)
    along = torch.arange(374)
    peaks = 374 * torch.rand(3, generator=generator)
    x_logits = -((along - peaks[:, None]).abs() / (1 + torch.rand(3, 1, generator=generator))).amin(0)[None]
    y_logits = 4 * torch.randn(1, 374, len(Y_M), generator=generator)
    x_log_probs, x_m = x_logits.log_softmax(-1), 0.3 * along
    near = likely_x_indices(x_logits)
    cells, log_probs, valid = choose_goals(x_log_probs.gather(-1, near), y_logits[:, near[0]], x_m[near], Y_M, rules)
    others = x_log_probs[0, ~torch.isin(along, near[0])]
    assert others.max() < log_probs[0, 0] + np.log(rules.floor)  # what an x alone has, a goal there cannot surpass
    expected, expected_log_probs, expected_real = choose_goals(x_log_probs, y_logits, x_m[None], Y_M, rules)
    assert valid.equal(expected_real)
    torch.testing.assert_close(near[0][cells[..., 0]], expected[..., 0])
    assert cells[..., 1].equal(expected[..., 1])
    torch.testing.assert_close(log_probs, expected_log_probs)


def test_equally_probable_goals_come_in_the_order_of_their_ids():
    x_logits, y_logits = torch.zeros(1, len(X_M)), torch.zeros(1, len(X_M), len(Y_M))
    cells, _, _ = goals(x_logits, y_logits, GoalRules(3, 1.2))
    assert cells[0].tolist() == [[0, 0], [0, 4], [0, 8]]


# --- layouts of fine tokens ------------------------------------------------------------------------------------------

FINE = replace(whole_layout(41), goal=(), interval_bins=3)


def test_the_most_probable_interval_is_selected_before_a_single_peak():
    """A single peak of 0.2 next to a hill of 0.8, no bin of which has more than 0.16."""
    probability = torch.zeros(1, 1, 16, 41)
    probability[..., 5] = 0.2
    hill = torch.tensor([0.04, 0.12, 0.16, 0.16, 0.16, 0.12, 0.04])
    probability[..., 27:34] = hill
    logits = probability.clamp(min=1e-12).log()
    masks = torch.full((1, 1, 16), FINE.mask_id)
    written, confidence = unmask(masks, logits, FINE, 16)
    assert (written == 30).all()
    weights = torch.tensor([0.25, 0.5, 0.75, 1.0, 0.75, 0.5, 0.25])
    torch.testing.assert_close(confidence, torch.full_like(confidence, float(hill @ weights)))
    assert (unmask(masks, logits, replace(FINE, interval_bins=0), 16)[0] == 5).all()


@pytest.mark.parametrize("half_width", [1, 2, 5, 12])
def test_an_interval_is_centred_and_of_a_certain_token_no_other_is_written(half_width):
    layout = replace(FINE, interval_bins=half_width)
    for certain in (0, 1, 20, 39, 40):
        logits = torch.full((1, 1, 16, 41), -1e4)
        logits[..., certain] = 0.0
        written, confidence = unmask(torch.full((1, 1, 16), layout.mask_id), logits, layout, 16)
        assert (written == certain).all()
        torch.testing.assert_close(confidence, torch.ones_like(confidence))


REACHABLE = replace(  # x reaches 21 of 41 bins, from id 15 on; y 31, from id 5 on
    FINE, axes=(Axis("x", 0.3, 41, -1.5, 4.5), Axis("y", 0.3, 41, -4.5, 4.5))
)


def reachable_logits(seed):
    """(1, 3, 16, 41) logits, those of the bins out of reach masked as by the network."""
    logits = 3.0 * torch.randn(1, 3, 16, 41, generator=torch.Generator().manual_seed(seed))
    for position, (low, high) in enumerate(REACHABLE.token_ranges):
        logits[..., position, :low] = logits[..., position, high + 1 :] = -1e4
    return logits


def test_the_bins_in_reach_give_the_probabilities_and_ids_of_all_bins():
    logits, layout = reachable_logits(3), replace(REACHABLE, interval_bins=0)
    assert reachable_bins(logits, REACHABLE).shape[-1] == REACHABLE.window_bins == 31
    ids, confidence = replace_all(logits, REACHABLE)
    weights, flat = (1.0 - torch.arange(-3, 4).abs() / 4)[None, None], logits.softmax(-1).flatten(0, -2)[:, None]
    intervals = torch.nn.functional.conv1d(flat, weights, padding=3).view_as(logits)
    torch.testing.assert_close(confidence, intervals.amax(-1))
    assert torch.equal(ids, intervals.argmax(-1))
    of_tokens = unmask(ids, logits, REACHABLE, 0)[1]  # of written tokens: the interval around each
    torch.testing.assert_close(of_tokens, confidence)
    share = torch.rand(1, 3, 16, generator=torch.Generator().manual_seed(1))
    assert torch.equal(draw(logits, REACHABLE, 0.8, share), draw(logits, layout, 0.8, share))


def test_ids_out_of_reach_have_a_probability_and_stay():
    logits, ids = reachable_logits(4), torch.zeros(1, 3, 16, dtype=torch.int64)
    written, confidence = unmask(ids, logits, REACHABLE, 4)
    assert torch.equal(written, ids)
    assert torch.isfinite(confidence).all()


def test_a_draft_begins_with_the_last_waypoint_however_uncertain_it_is():
    layout = replace(FINE, interval_bins=0, last_waypoint_first=True)
    ids = torch.full((1, 2, 16), layout.mask_id)
    logits = random_logits(5)[:1, :2].repeat(1, 1, 1, 2)[..., :41]
    logits[..., 14:, :] *= 0.01
    written, _ = unmask(ids, logits, layout, 2)
    assert ((written != layout.mask_id).nonzero()[:, 2].reshape(-1, 2) == torch.tensor([14, 15])).all()
    then, _ = unmask(written, logits, layout, 3)
    plain, _ = unmask(written, logits, replace(layout, last_waypoint_first=False), 3)
    assert then.equal(plain)
