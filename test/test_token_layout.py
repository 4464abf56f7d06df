"""Another layout than the default: waypoints with headings and no goal go through network, decoding and losses."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from tiny_net import POSES, random_actions, tiny_inputs, tiny_net, xy_layout

from reflectdrive_ros.bench.roofline import costs
from reflectdrive_ros.core.tokens import Axis, TokenLayout, decoding_rounds
from reflectdrive_ros.data import distance_map
from reflectdrive_ros.model.token import ops, rollout
from reflectdrive_ros.model.token.ops import EditRules, GoalRules
from reflectdrive_ros.model.token.rollout import Decoding
from reflectdrive_ros.training import augment
from reflectdrive_ros.training.losses import Batch, Losses
from reflectdrive_ros.training.settings import LossConfig

GOAL_INSIDE = replace(POSES, goal=(21, 22))  # x and y of the last waypoint, whose heading is free
DECODING = Decoding(GoalRules(3, 1.2, floor=0.0))


@pytest.fixture(scope="module")
def net():
    return tiny_net(layout=POSES)


def arc(speed=4.0, curvature=0.05):
    """(8, 3) poses on a circle."""
    along = 0.5 * speed * np.arange(1, 9)
    heading = curvature * along
    return np.stack([np.sin(heading) / curvature, (1 - np.cos(heading)) / curvature, heading], axis=1)


def test_what_follows_from_the_layout():
    assert (POSES.length, POSES.padded_length, POSES.mask_id, len(POSES.free)) == (24, 32, 157, 24)
    assert POSES.id_ranges == ((40, 100), (30, 70), (3, 153))
    assert POSES.token_ranges[5] == (3, 153)
    default = TokenLayout()
    assert (default.length, default.padded_length, default.mask_id) == (16, 16, 667)
    assert default.free == tuple(range(14))
    assert default.id_ranges == ((293, 666), (183, 483))
    assert GOAL_INSIDE.free == (*range(21), 23)


def test_every_token_gets_ids_of_its_own_axis(net):
    probability = net.packed_logits(tiny_inputs(net), random_actions(net)).softmax(-1)
    assert probability.shape == (2, 3, 24, 157)
    for token, (low, high) in enumerate(POSES.token_ranges):
        assert (probability[..., token, low : high + 1] > 0.0).all()
        assert probability[..., token, :low].sum() == probability[..., token, high + 1 :].sum() == 0.0


def test_a_full_step_writes_all_tokens_and_edits_any(net):
    with torch.no_grad():
        decoded = rollout.full_step(net, tiny_inputs(net), DECODING)
        assert decoded.actions.shape == (2, 1, 24)
        assert decoded.actions.equal(net.config.clamp_to_range(decoded.actions))
        assert (decoded.actions < POSES.mask_id).all()
        assert [int((each.actions != POSES.mask_id).sum()) for each in decoded.rounds[:3]] == [16, 32, 48]
        # the goal of the default layout would be 14 and 15: without one all tokens may be edited
        targets = torch.zeros_like(decoded.actions) + torch.tensor([50, 50, 50] * 8)
        logits = 9.0 * torch.nn.functional.one_hot(targets, POSES.bins).float()
        edited, _ = ops.auto_edit(decoded.actions, logits, POSES, EditRules(at_most=24))
        assert edited.equal(targets)


def test_a_goal_may_stand_inside_the_sequence():
    net = tiny_net(layout=GOAL_INSIDE)
    inputs = tiny_inputs(net)
    with torch.no_grad():
        prefilled = rollout.prefill_goal(net, inputs, DECODING.goals)
        assert (prefilled.actions[..., list(GOAL_INSIDE.free)] == GOAL_INSIDE.mask_id).all()
        goals = prefilled.actions[..., 21:23]
        assert (goals != GOAL_INSIDE.mask_id).all()
        decoded = rollout.full_step(net, inputs, DECODING)
    assert decoded.actions[..., 21:23].equal(goals)
    assert (decoded.actions < GOAL_INSIDE.mask_id).all()


def test_perturbed_poses_turn_their_headings_and_keep_their_axes():
    poses = np.repeat(arc()[None], 500, axis=0)
    turned = augment.rotate(poses, np.full(500, 0.1))
    np.testing.assert_allclose(turned[..., 2], poses[..., 2] + 0.1)
    np.testing.assert_allclose(np.hypot(turned[..., 0], turned[..., 1]), np.hypot(poses[..., 0], poses[..., 1]))
    longer = augment.scale_along_path(poses, np.full(500, 1.4))
    assert longer[0, :, 2].max() == pytest.approx(poses[0, -1, 2])  # straight on beyond the end
    assert longer[0, 0, 2] == pytest.approx(1.4 * poses[0, 0, 2], abs=0.01)
    actions = augment.perturbed_actions(poses, 2, POSES, np.random.default_rng(0))
    assert actions.shape == (500, 2, 24)
    unmasked = actions[(actions != POSES.mask_id).all(axis=-1)]
    assert (unmasked.reshape(-1, 8, 3).max(axis=(0, 1)) < [101, 101, 157]).all()
    lost = (actions == POSES.mask_id).reshape(-1, 8, 3)
    assert (lost.all(axis=-1) == lost.any(axis=-1)).all()  # whole waypoints
    masked = augment.masked_actions(np.full((400, 24), 40), 4, POSES, np.random.default_rng(0))
    assert (masked[:, 0] == POSES.mask_id).all()
    assert ((masked[:, 1:] == POSES.mask_id).mean(axis=(0, 1)) < 0.95).all()


@pytest.mark.parametrize("layout", [POSES, GOAL_INSIDE], ids=["no goal", "goal"])
def test_losses_are_finite_and_reach_every_head(layout):
    net = tiny_net(layout=layout)
    images, text, ego, route = tiny_inputs(net).tensors
    rng = np.random.default_rng(0)
    poses = np.stack([arc(4.0), arc(3.0, -0.05)])
    clean = layout.clip(layout.encode(poses))
    actions = [
        augment.masked_actions(clean, 3, layout, rng),
        layout.clip(augment.perturbed_actions(poses, 2, layout, rng)),
    ]
    x_ids, y_ids = distance_map.id_window()
    empty = torch.zeros(2, 0)
    batch = Batch(
        images=images,
        text=text,
        ego=ego,
        route=route,
        clean=torch.from_numpy(clean.astype(np.int64)),
        actions=torch.from_numpy(np.concatenate(actions, axis=1).astype(np.int64)),
        distances=torch.full((2, x_ids.stop - x_ids.start, y_ids.stop - y_ids.start), 20, dtype=torch.int8),
        occupancy=torch.zeros(2, 4, 1, 1, dtype=torch.bool),
        goals=torch.zeros(2, 0, 2, dtype=torch.int64),
        rows=torch.arange(2),
        mirrored=torch.zeros(2, dtype=torch.bool),
        with_route=torch.ones(2, dtype=torch.bool),
        has_labels=torch.ones(2, 2, dtype=torch.bool),
        goal_score=empty,
        sub_scores=torch.zeros(2, 0, 5),
        rescored=torch.zeros(2, 0, dtype=torch.int64),
        masked=3,
    )
    losses = Losses(net, LossConfig(aux_perception=0.0), torch.Generator().manual_seed(0))
    values_by_name = losses(batch)
    assert all(torch.isfinite(value) for value in values_by_name.values())
    assert (values_by_name["goal"] > 0.0) == bool(layout.goal)
    values_by_name["loss"].backward()
    for axis in layout.axes:
        assert getattr(net, f"{axis.name}_head").weight.grad.abs().sum() > 0.0


def test_the_costs_of_a_layout_without_a_goal_have_no_part_for_goals(net):
    parts = costs(net.config, 1)
    assert parts.keys() == {"vision", "prefill", "step"}


@pytest.mark.parametrize("packed", [True, False])
def test_passes_that_compute_the_prompt_again_write_the_same_tokens(net, packed):
    """With one prompt for all sequences, and with one prompt each."""
    inputs = tiny_inputs(net).map(lambda part: part[:1])

    def logits(actions):
        if packed:
            return net.packed_logits(inputs, actions)
        prompts = net.prompt(inputs).expand(actions.shape[1], -1, -1)
        return net.forward_from_prompt(prompts, actions.transpose(0, 1)).logits.transpose(0, 1)

    with torch.no_grad():
        expected = rollout.full_step(net, inputs, DECODING).actions
        actions = rollout.prefill_sequences(net, inputs, DECODING.goals).actions[:, : expected.shape[1]]
        rounds = decoding_rounds(len(net.config.layout.free), DECODING.draft_rounds, DECODING.edit_rounds)
        states = rollout.rollout(logits, actions, net.config.layout, rounds, DECODING.edits)
    assert states[-1].actions.equal(expected)


AXES = TokenLayout().axes


@pytest.mark.parametrize(
    ("make", "complaint"),
    [
        (lambda: TokenLayout(points=1), "TokenLayout.points is 1, expected at least 2"),
        (lambda: TokenLayout(axes=AXES[:1], goal=()), r"TokenLayout.axes is \('x',\), expected x, y or x, y, heading"),
        (lambda: xy_layout(goal=(0, 2)), r"TokenLayout.goal is \(0, 2\), expected the positions of x and y"),
        (lambda: xy_layout(order="axes"), "TokenLayout.order is 'axes', expected 'waypoints'"),
        (lambda: TokenLayout(axes=(AXES[0], Axis("y", 0.1, 667, 0.0, 1.0))), "has two grids for x and y"),
        (lambda: Axis("z", 0.3, 667, -1.0, 1.0), "Axis.name is 'z', expected one of x, y, heading"),
        (lambda: Axis("x", 0.3, 666, -1.0, 1.0), "axis x: Codebook.bins is 666, expected an odd number"),
        (lambda: Axis("x", 0.3, 667, 1.0, 2.0), "axis x has the range 1.0 .. 2.0, expected a range around 0"),
        (lambda: Axis("x", 0.3, 667, -1.0, 200.0), "axis x has the range -1.0 .. 200.0, expected .* within 99.9"),
        (lambda: POSES.encode(np.zeros((8, 2))), r"encode got points of shape \(8, 2\), expected \(.., 8, 3\)"),
        (lambda: POSES.decode(np.zeros(16, int)), r"decode got ids of shape \(16,\), expected \(.., 24\)"),
    ],
)
def test_layouts_that_make_no_sense_and_what_is_of_another_layout_are_refused_by_name(make, complaint):
    with pytest.raises(ValueError, match=complaint):
        make()
