"""A frame in phases: full and lite decode what the definition says, and never ask the host."""

import pytest
import torch
from tiny_net import goal_logits, lite_frame, random_actions, tiny_inputs, tiny_net, uniform_goal_values

from reflectdrive_ros.core.tokens import TokenLayout, decoding_rounds
from reflectdrive_ros.model.token import ops, rollout
from reflectdrive_ros.model.token.net import PromptInputs, TokenNet
from reflectdrive_ros.model.token.ops import EditRules, GoalRules
from reflectdrive_ros.model.token.rollout import Decoding, Sampling

RULES = Decoding(GoalRules(4, 1.2, floor=0.0))
LAYOUT = TokenLayout()
ACTION_TOKENS, GOAL_X = LAYOUT.length, LAYOUT.goal[0]


@pytest.fixture(autouse=True)
def no_gradients():
    with torch.no_grad():
        yield


def test_a_full_frame_ends_without_masks_and_keeps_its_goals():
    net = tiny_net()
    inputs = tiny_inputs(net)
    prefilled = rollout.prefill_goal(net, inputs, RULES.goals)
    assert (prefilled.actions[..., :GOAL_X] == net.config.layout.mask_id).all()
    assert prefilled.actions[..., GOAL_X:].equal(net.config.clamp_to_range(prefilled.actions)[..., GOAL_X:])
    decoded = rollout.full_step(net, inputs, RULES)
    assert decoded.actions.shape == (2, 4, ACTION_TOKENS)
    assert decoded.actions[..., GOAL_X:].equal(prefilled.actions[..., GOAL_X:])
    assert decoded.actions.equal(net.config.clamp_to_range(decoded.actions))
    assert (decoded.actions < net.config.layout.bins).all()
    assert ((decoded.confidence > 0) & (decoded.confidence <= 1)).all()


def test_the_goals_of_the_prefill_are_those_of_the_goal_posterior():
    net = uniform_goal_values(tiny_net())
    inputs = tiny_inputs(net)
    prefilled = rollout.prefill_goal(net, inputs, RULES.goals)
    x_ids = prefilled.actions[:, :, GOAL_X]
    x_logits, y_logits = goal_logits(net, inputs, x_ids)
    of_x = x_logits.log_softmax(-1).gather(1, x_ids)
    of_y = y_logits.log_softmax(-1).gather(2, prefilled.actions[:, :, -1:] - net.config.layout.id_ranges[1][0])[..., 0]
    torch.testing.assert_close(prefilled.goal_log_probs, of_x + of_y)
    at_m = LAYOUT.codebook.bin_m * prefilled.actions[..., GOAL_X:].float()
    assert (torch.cdist(at_m, at_m) + 1e9 * torch.eye(4)).min() >= 1.2 - 1e-3


def test_goals_are_weighed_by_what_a_block_that_holds_one_alone_says():
    """By the plain path: every searched goal in a sequence of its own with the whole prompt, in one pass."""
    net = uniform_goal_values(tiny_net())
    inputs = tiny_inputs(net)
    before = rollout.prefill_goal(net, inputs, RULES.goals.for_search)
    torch.nn.init.normal_(net.value_head.weight, std=8.0, generator=torch.Generator().manual_seed(0))
    odds = net.goal_value(net.forward_packed(inputs, before.actions).hidden)
    assert (odds.amax(-1) - odds.amin(-1)).min() > 0.1
    order, log_probs, _ = ops.reweight_goals(before.goal_log_probs, odds, before.valid, RULES.goals)
    prefilled = rollout.prefill_goal(net, inputs, RULES.goals)
    assert prefilled.actions.equal(before.actions.gather(1, order[..., None].expand(-1, -1, ACTION_TOKENS)))
    assert not prefilled.actions[:, 0].equal(before.actions[:, 0])
    torch.testing.assert_close(prefilled.goal_log_probs, log_probs, atol=1e-4, rtol=1e-5)


def test_every_pass_of_a_frame_equals_one_that_recomputes_the_prompt():
    net = tiny_net()
    inputs = tiny_inputs(net)
    prefilled = rollout.prefill_goal(net, inputs, RULES.goals)
    actions = prefilled.actions
    for limit, edit in decoding_rounds(GOAL_X, 3, 3):
        afresh = net.packed_logits(inputs, actions)
        torch.testing.assert_close(net.decode(actions, prefilled.keys_values), afresh, atol=1e-5, rtol=1e-5)
        expected = (
            ops.auto_edit(actions, afresh, LAYOUT, RULES.edits)
            if edit
            else ops.unmask(actions, afresh, net.config.layout, limit)
        )
        actions, confidence = rollout.step(net, actions, prefilled.keys_values, limit, edit, RULES.edits)
        assert actions.equal(expected[0])
        torch.testing.assert_close(confidence, expected[1], atol=1e-5, rtol=1e-5)
    assert actions.equal(rollout.full_step(net, inputs, RULES).actions)


def test_scenes_of_a_batch_are_decoded_as_if_each_were_alone():
    net = tiny_net()
    inputs = tiny_inputs(net, scenes=3)
    together = rollout.full_step(net, inputs, RULES).actions
    single = [inputs.map(lambda part, b=b: part[b : b + 1]) for b in range(3)]
    alone = [rollout.full_step(net, each, RULES).actions for each in single]
    assert together.equal(torch.cat(alone))


def test_a_lite_frame_fills_the_tail_and_may_edit_the_rest():
    net = tiny_net()
    inputs = tiny_inputs(net)
    before = random_actions(net, count=1, masked=0.0)
    before[..., GOAL_X:] = net.config.layout.mask_id
    edited = lite_frame(net, inputs, before, EditRules(at_most=3))
    assert (edited < net.config.layout.bins).all()
    changed = (edited != before)[..., :GOAL_X].sum(-1)
    assert ((changed >= 1) & (changed <= 3)).all()
    still = lite_frame(net, inputs, before, EditRules(at_most=0))
    assert still[..., :GOAL_X].equal(before[..., :GOAL_X])
    assert (still < net.config.layout.bins).all()


def test_a_frame_asks_nothing_of_the_host():
    """On the meta device there are shapes and no numbers: whatever looked at one, or made a tensor elsewhere, fails."""
    net = tiny_net()
    with torch.device("meta"):
        ghost = TokenNet(net.config)
    inputs = tiny_inputs(net).map(lambda part: part.to("meta"))
    decoded = rollout.full_step(ghost, inputs, RULES)
    assert decoded.actions.shape == (2, 4, ACTION_TOKENS)
    actions = random_actions(net, count=1).to("meta")
    assert lite_frame(ghost, inputs, actions, RULES.edits).shape == (2, 1, ACTION_TOKENS)
    prefilled = rollout.prefill_goal(ghost, inputs, RULES.goals)
    flag, limit = (torch.empty((), dtype=kind, device="meta") for kind in (torch.bool, torch.int64))
    assert rollout.step(ghost, actions, prefilled.keys_values, limit, flag, RULES.edits)[0].device.type == "meta"


FORBIDDEN = ("topk", "sort", "scatter", "nonzero", "index_put", "item", "while", "cond", "_local_scalar")


def test_both_phases_are_exported_without_what_runtimes_cannot_do():
    class Prefill(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.net = net

        def forward(self, images, text, ego, route):
            prefilled = rollout.prefill_goal(self.net, PromptInputs(images, text, ego, route), RULES.goals)
            return prefilled.actions, prefilled.goal_log_probs, prefilled.valid, prefilled.keys_values

    class Step(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.net = net

        def forward(self, actions, keys_values, limit, edit):
            return rollout.step(self.net, actions, keys_values, limit, edit, RULES.edits)

    net = tiny_net()
    inputs = tiny_inputs(net, scenes=1)
    actions, _, _, keys_values = Prefill()(*inputs.tensors)
    flags = torch.tensor(3), torch.tensor(False)
    graphs = torch.export.export(Prefill(), inputs.tensors), torch.export.export(Step(), (actions, keys_values, *flags))
    for graph in graphs:
        called = {str(node.target) for node in graph.graph.nodes if node.op == "call_function"}
        assert not [name for name in called for word in FORBIDDEN if word in name.split(".")[1]], called
    written, _ = graphs[1].module()(actions, keys_values, *flags)
    assert written.equal(rollout.step(net, actions, keys_values, 3, False, RULES.edits)[0])


# --- rollout ---------------------------------------------------------------------------------------------------------


def goal_only(net):
    """Sequences (2, 3, 16) that hold a goal each."""
    actions = random_actions(net, 2, 3, masked=0.0)
    actions[..., :GOAL_X] = net.config.layout.mask_id
    return actions


def test_tokens_are_sampled_from_the_distribution_of_each_round_and_committed_by_its_probabilities():
    net = tiny_net()
    keys_values = rollout.prefill(net, tiny_inputs(net))
    actions, noise_generator = goal_only(net), torch.Generator().manual_seed(4)
    outputs = rolled_out(net, keys_values, Sampling(0.7, torch.Generator().manual_seed(4)))
    for limit, output in zip((5, 5, 4), outputs[:3], strict=True):
        logits = net.decode(actions, keys_values)
        share = torch.rand(logits.shape[:-1], generator=noise_generator)[..., None]
        sampled = ((logits / 0.7).softmax(-1).cumsum(-1) <= share).sum(-1)
        actions, confidence = ops.unmask(actions, logits, net.config.layout, limit, sampled)
        assert output.actions.equal(actions)
        assert output.confidence.equal(confidence)
    assert (outputs[-1].actions < net.config.layout.bins).all()
    greedy, cold = (rolled_out(net, keys_values, each) for each in (None, Sampling(0.0, torch.Generator())))
    assert not outputs[-1].actions.equal(greedy[-1].actions)
    assert cold[-1].actions.equal(greedy[-1].actions)


def rolled_out(net, keys_values, sampling=None):
    rounds = decoding_rounds(GOAL_X, 3, 1)
    return rollout.rollout(
        lambda ids: net.decode(ids, keys_values), goal_only(net), LAYOUT, rounds, RULES.edits, sampling
    )
