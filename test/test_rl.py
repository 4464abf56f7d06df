"""Reinforcement learning: credit, ratios, gradients, rewards, and the command.

What a toy must show: the right token is found by its reward, and an edit is learnt where only an edit can earn it.
"""

import itertools
from dataclasses import replace
from functools import partial

import hand_scenes
import numpy as np
import pytest
import torch
from tiny_net import tiny_inputs, tiny_net, whole_layout
from tiny_rl import RULES, SMALL, policy_of, sampled, token_log_probs, with_words
from tiny_training import command, make_set, network, prepare, two_sets  # noqa: F401 (two_sets is a fixture)

from reflectdrive_ros.core.config import Config
from reflectdrive_ros.core.tokens import decoding_rounds
from reflectdrive_ros.data import shards
from reflectdrive_ros.evaluation import driving_scores, privilege
from reflectdrive_ros.model.token import ops, rollout
from reflectdrive_ros.model.token.ops import EditRules
from reflectdrive_ros.model.token.rollout import Sampling
from reflectdrive_ros.planning import pipeline
from reflectdrive_ros.planning.generators import reflectdrive2
from reflectdrive_ros.planning.planner import PlannerContext, PlannerState
from reflectdrive_ros.runtime.torch_backend import TorchNetwork
from reflectdrive_ros.training import rewards, rl_losses, rollouts, settings
from reflectdrive_ros.training.rewards import PlanScorer, RewardPool
from reflectdrive_ros.training.rl_losses import RlLosses, make_policy_batch
from reflectdrive_ros.training.settings import LossConfig, RlConfig

# --- rollouts --------------------------------------------------------------------------------------------------------


def test_at_temperature_0_a_rollout_commits_what_the_vehicle_commits():
    net = tiny_net()
    inputs = tiny_inputs(net)
    rounds = rollouts.rounds_of(net.config.layout)
    prefilled = rollout.prefill_goal(net, inputs, RULES)

    def run(sampling):
        return rollout.rollout(
            lambda ids: net.decode(ids, prefilled.keys_values),
            prefilled.actions,
            net.config.layout,
            rounds,
            EditRules(),
            sampling,
        )

    generator = torch.Generator().manual_seed(0)
    for cold, vehicle in zip(run(Sampling(1e-6, generator)), run(None), strict=True):
        assert cold.actions.equal(vehicle.actions)


def test_rollouts_keep_their_goals_and_every_round_writes_its_share():
    net = tiny_net()
    _, sampled_rollouts = sampled(net)
    layout = net.config.layout
    assert sampled_rollouts.states.shape == (2, 7, 6, layout.length)
    goals = sampled_rollouts.states[..., list(layout.goal)]
    assert goals.equal(sampled_rollouts.goals.repeat_interleave(3, 1)[:, None].expand_as(goals))
    assert (sampled_rollouts.goals[:, 0] != sampled_rollouts.goals[:, 1]).any(-1).all()  # without replacement
    changed = rollouts.written(sampled_rollouts.states, layout.mask_id).sum(-1)
    assert (changed[:, :3] == torch.tensor([5, 5, 4])[:, None]).all()
    assert (changed[:, 3:] <= 5).all()
    assert (sampled_rollouts.plans != layout.mask_id).all()


# --- credit and ratios -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_the_ratio_of_every_credited_token_is_1_before_the_first_update(temperature):
    net, config = tiny_net(), replace(SMALL, temperature=temperature)
    inputs, sampled_rollouts = sampled(net, config)
    policy = policy_of(net, sampled_rollouts, config)
    log_probs = token_log_probs(net, inputs, policy, temperature)
    order = policy.advantage.shape[1]
    assert order == sampled_rollouts.plans.shape[1]  # all are kept, in the order of their advantages
    by_plan = {
        plan.numpy().tobytes(): k
        for k, plan in enumerate(sampled_rollouts.states[0].transpose(0, 1).reshape(order, -1))
    }
    for index in range(order):
        k = by_plan[policy.states[0, :, index].reshape(-1).numpy().tobytes()]
        credited = policy.credited[0, :, index]
        difference = (log_probs[0, :, index] - sampled_rollouts.log_probs[0, :, k])[credited]
        assert difference.abs().max() < 1e-4
    assert (log_probs[~policy.credited] == 0).all()


def test_packed_log_probabilities_are_those_of_one_forward_pass_per_transition():
    net = tiny_net()
    inputs, sampled_rollouts = sampled(net)
    policy = policy_of(net, sampled_rollouts)
    packed = token_log_probs(net, inputs, policy)
    layout = net.config.layout
    for number in range(policy.states.shape[1] - 1):
        before, after = policy.states[:, number], policy.states[:, number + 1]
        single = ops.token_log_probs(net.packed_logits(inputs, before), after, layout.mask_id)
        credited = policy.credited[:, number]
        torch.testing.assert_close(packed[:, number][credited], single[credited], rtol=1e-4, atol=1e-4)


def test_credit_goes_to_the_tokens_of_the_configured_phase():
    net = tiny_net()
    _, sampled_rollouts = sampled(net)
    layout = net.config.layout
    count = {
        credit: rl_losses.credited_tokens(sampled_rollouts.states, layout, replace(SMALL, credit=credit))
        for credit in settings.CREDITS
    }
    assert count["rollout"].equal(count["drafts"] | count["edits"])
    assert not (count["drafts"] & count["edits"]).any()
    assert (count["drafts"].sum((1, 3)) == len(layout.free)).all()
    assert not count["rollout"][..., list(layout.goal)].any()
    assert count["edits"].equal(
        rollouts.written(sampled_rollouts.states, layout.mask_id) & (torch.arange(6) >= 3)[:, None, None]
    )


def test_advantages_of_a_group_sum_to_0_and_equal_rewards_have_none():
    reward = torch.rand(5, 12, generator=torch.Generator().manual_seed(0))
    reward[0] = 0.5
    advantages = torch.unflatten(rl_losses.advantages(reward, 3), 1, (3, 4))
    assert advantages.sum(-1).abs().max() < 1e-6
    assert (advantages[0] == 0).all()
    assert (advantages[1:] != 0).all()


def test_equal_rewards_move_nothing():
    net = tiny_net()
    _, sampled_rollouts = sampled(net)
    policy = policy_of(net, sampled_rollouts, reward=torch.full((2, 6), 0.7))
    assert (policy.advantage == 0).all()
    loss = losses_of(net, anchor=0.0)(batch_of(net), policy)["loss"]
    loss.backward()
    assert all(parameter.grad is None or parameter.grad.abs().max() < 1e-9 for parameter in net.parameters())


def losses_of(net, **changes):
    return RlLosses(net, LossConfig(aux_perception=0.0, field=0.0), replace(SMALL, **changes), RULES, torch.Generator())


def batch_of(net, scenes=2):
    """A batch for the anchor, its expert the zero plan."""
    layout = net.config.layout
    clean = net.config.clamp_to_range(torch.full((scenes, layout.length), layout.codebook.zero_id))
    masked = torch.full((scenes, 1, layout.length), layout.mask_id)
    none = torch.zeros(scenes, 0)
    return rl_losses.Batch(
        *tiny_inputs(net, scenes).tensors,
        clean=clean,
        actions=torch.cat([masked, clean[:, None]], 1),
        distances=torch.zeros(scenes, 1, 1, dtype=torch.int8),
        occupancy=torch.zeros(scenes, 4, 1, 1, dtype=torch.bool),
        goals=torch.zeros(scenes, 0, 2, dtype=torch.int64),
        goal_score=none,
        sub_scores=torch.zeros(scenes, 0, 5),
        rescored=torch.zeros(scenes, 0, dtype=torch.int64),
        rows=torch.arange(scenes),
        mirrored=torch.zeros(scenes, dtype=torch.bool),
        with_route=torch.ones(scenes, dtype=torch.bool),
        has_labels=torch.ones(scenes, 2, dtype=torch.bool),
        masked=1,
    )


def test_the_policy_gradient_is_that_of_the_expected_reward():
    """Two waypoints, three bins: one round writes both free tokens, so all nine plans and their rewards can be
    listed."""
    layout = replace(whole_layout(3), points=2, goal=(2, 3))
    net = tiny_net(layout=layout).double()
    inputs = tiny_inputs(net, 1).map(lambda part: part.double() if part.is_floating_point() else part)
    plans = torch.tensor([[x, y, 1, 2] for x, y in itertools.product(range(3), repeat=2)])[None]
    starts = torch.where(torch.tensor([True, True, False, False]), layout.mask_id, plans)
    reward = torch.rand(9, generator=torch.Generator().manual_seed(1), dtype=torch.float64)

    def probabilities():
        logits = net.packed_logits(inputs, starts[:, :1])[0, 0].double().log_softmax(-1)
        return torch.stack([(logits[0, x] + logits[1, y]).exp() for x, y in plans[0, :, :2]])

    expected = (probabilities() * reward).sum()
    group = rollouts.Rollouts(
        torch.stack([starts, plans], 1),
        plans[:, :1, 2:],
        torch.ones(1, 1, dtype=torch.bool),
        torch.zeros(1, 1, 9, 4),
        plans[:, :1],
    )
    config = replace(SMALL, goals=1, drafts=9, kept=9)
    policy = make_policy_batch(group, torch.zeros(1, 9), torch.zeros(1, 1), layout, config)
    weight = probabilities().detach()
    policy.advantage = (9 * weight * (reward - expected.detach()))[None]  # the sum over plans is then the expectation
    policy.credited = policy.states[:, 1:] != policy.states[:, :-1]
    log_probs = token_log_probs(net, inputs, policy)
    gain = (log_probs * policy.advantage[:, None, :, None] * policy.credited).sum() / policy.sampled
    parameters = list(net.parameters())
    gradient = torch.autograd.grad(gain, parameters, allow_unused=True)
    direction = [
        torch.randn(p.shape, generator=torch.Generator().manual_seed(k)).to(p) for k, p in enumerate(parameters)
    ]
    slope = sum((g * d).sum() for g, d in zip(gradient, direction, strict=True) if g is not None)
    step, values = 1e-4, []
    for sign in (1.0, -2.0):
        with torch.no_grad():
            for parameter, along in zip(parameters, direction, strict=True):
                parameter += sign * step * along
        values.append((probabilities() * reward).sum().item())
    assert slope.item() == pytest.approx((values[0] - values[1]) / (2 * step), rel=0.01)


# --- toys ------------------------------------------------------------------------------------------------------------


def learn(net, config, reward_of, steps, rate=1e-2):
    """Trains a network on one scene with a reward of its rollouts (M,); the shares of plans that earned 1, by step."""
    inputs, earned = tiny_inputs(net, 1), []
    losses = RlLosses(net, LossConfig(aux_perception=0.0, field=0.0), config, RULES, torch.Generator())
    optimizer = torch.optim.Adam(net.parameters(), rate)
    for step in range(steps):
        sampled_rollouts = rollouts.sample(net, inputs, RULES, config, torch.Generator().manual_seed(step))
        reward = reward_of(sampled_rollouts.states[0])[None]
        earned.append(reward.mean().item())
        greedy = torch.unflatten(reward, 1, (config.goals, -1)).mean(-1)
        policy = make_policy_batch(sampled_rollouts, reward, greedy, net.config.layout, config)
        loss = losses(batch_of(net, 1), policy)["loss"]
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return earned


def test_the_rewarded_token_is_learned():
    net = tiny_net(layout=whole_layout(11))
    config = RlConfig(goals=1, drafts=24, kept=24, anchor=0.0, decision=0.0, plan_value=0.0)
    earned = learn(net, config, lambda states: (states[-1, :, 3] == 7).float(), 60)
    assert earned[0] < 0.4
    assert np.mean(earned[-10:]) > 0.95


def test_edits_that_alone_are_rewarded_are_learned_with_credit_for_the_rollout_and_not_with_credit_for_drafts():
    """Earned by each token that is 7 at the end and was not 7 in the draft: drafts must leave it to the edits."""

    def reward_of(states):
        free = slice(0, 14)
        return ((states[-1, :, free] == 7) & (states[3, :, free] != 7)).float().mean(-1)

    def earned(credit):
        net = tiny_net(layout=whole_layout(11))
        config = RlConfig(goals=1, drafts=24, kept=24, anchor=0.0, decision=0.0, plan_value=0.0, credit=credit)
        return learn(net, config, reward_of, 50)

    by_rollout, by_drafts = earned("rollout"), earned("drafts")
    assert np.mean(by_rollout[:5]) < 0.3
    assert np.mean(by_rollout[-5:]) > 0.9
    assert np.mean(by_drafts[-5:]) < 0.2


def test_with_credit_for_edits_the_rollouts_of_a_goal_differ_by_edits_of_the_plan_that_the_car_drafts():
    net = tiny_net(layout=whole_layout(11))
    _, sampled_rollouts = sampled(net, replace(SMALL, credit="edits"))
    drafted = sampled_rollouts.states[:, : rollouts.draft_rounds_of(net.config.layout) + 1]
    by_goal = torch.unflatten(drafted, 2, (SMALL.goals, SMALL.drafts))
    assert by_goal.equal(by_goal[..., :1, :].expand_as(by_goal))
    ends = torch.unflatten(sampled_rollouts.plans, 1, (SMALL.goals, SMALL.drafts))
    assert (ends != ends[:, :, :1]).any()
    first = torch.unflatten(sampled_rollouts.states[:, 0], 1, (SMALL.goals, SMALL.drafts))[:, :, 0]
    logits = partial(net.decode, keys_values=net.encode(net.prompt(tiny_inputs(net, 2))))
    with torch.no_grad():
        greedy = rollout.rollout(logits, first, net.config.layout, decoding_rounds(14, 3, 0), EditRules())
    assert by_goal[:, -1, :, 0].equal(greedy[-1].actions)


def test_the_decision_goes_to_the_goal_whose_plans_are_rewarded():
    net = tiny_net(layout=whole_layout(11))
    inputs = tiny_inputs(net, 1)
    config = RlConfig(goals=4, drafts=2, kept=8, anchor=0.0, plan_value=0.0)
    prefilled = rollout.prefill_goal(net, inputs, RULES)
    goal = prefilled.actions[0, -1, list(net.config.layout.goal)]  # the least likely of eight

    def reward_of(states):
        return (states[-1][:, list(net.config.layout.goal)] == goal).all(-1).float()

    learn(net, config, reward_of, 60)
    decided = rollout.prefill_goal(net, inputs, RULES)
    assert decided.actions[0, 0, list(net.config.layout.goal)].equal(goal)
    assert decided.goal_log_probs[0, 0].exp() > 0.5


# --- rewards ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def road_scenes(tmp_path_factory):
    folder = make_set(tmp_path_factory.mktemp("rl") / "train", scenes=4, per_shard=2)
    return folder, prepare(folder)


def plans_near_the_expert(scene, layout, count=4, seed=0):
    rng = np.random.default_rng(seed)
    points = scene.expert[None, :, :2] * rng.uniform(0.7, 1.2, (count, 1, 1)) + rng.normal(0, 0.3, (count, 8, 2))
    return layout.clip(layout.encode(points))


@pytest.mark.parametrize("privilege_name", ["route", "words"])
def test_rewards_are_the_scores_that_eval_gives_the_same_plans(privilege_name):
    net, config = with_words(), Config()
    scorer = PlanScorer(net.config.layout)
    for number in range(6):
        scene = hand_scenes.scene(f"val-00000-{number:03d}", size=(64, 32), agents=3)
        context = PlannerContext(replace(config, planner="reflectdrive2"), TorchNetwork(net))
        _, plan = pipeline.plan(
            reflectdrive2.generate, PlannerState(), privilege.observe(scene, privilege_name), context
        )
        row = driving_scores.score_plans(
            scene.scored(), {"plan": driving_scores.plan_waypoints(plan)[0]}, config.scoring
        )["plan"]
        rewards = scorer(scene, np.asarray(plan.tokens)[None], privilege_name == "route")[0]
        np.testing.assert_allclose(rewards, [row[driving_scores.MEASURES.index(name)] for name in MEASURES], atol=1e-6)


MEASURES = ("pdms", *rewards.SUB_SCORES)


def test_flipped_scenes_give_flipped_plans_the_rewards_of_the_plans(road_scenes):
    folder, scenes = road_scenes
    layout = network().layout
    listed = list(shards.read(folder, images=False, on_damage=pytest.fail))
    actions = np.stack([plans_near_the_expert(scene, layout, seed=k) for k, scene in enumerate(listed)])
    everywhere, rows = np.ones(4, bool), [2, 0, 3, 1]
    with RewardPool(folder, scenes, PlanScorer(layout), 2) as pool:
        plain = pool.score(rows, ~everywhere, everywhere, actions[rows])
        flipped = pool.score(rows, everywhere, everywhere, rewards.mirror_actions(actions[rows], layout))
    np.testing.assert_array_equal(plain, flipped)
    direct = PlanScorer(layout)
    for index, row in enumerate(rows):
        np.testing.assert_allclose(plain[index], direct(listed[row], actions[row], with_route=True), atol=1e-6)
    assert len(np.unique(plain[..., 0])) > 4


def test_mirrored_twice_is_the_plan_itself_and_masks_stay():
    layout = network().layout
    actions = np.random.default_rng(0).integers(0, layout.bins + 1, (3, 5, layout.length))
    once = rewards.mirror_actions(actions, layout)
    np.testing.assert_array_equal(rewards.mirror_actions(once, layout), actions)
    np.testing.assert_array_equal(once == layout.mask_id, actions == layout.mask_id)
    np.testing.assert_array_equal(once[..., ::2], actions[..., ::2])
