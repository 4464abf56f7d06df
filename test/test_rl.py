"""Reinforcement learning: credit, ratios, gradients, rewards, and the command.

What a toy must show: the right token is found by its reward, and an edit is learnt where only an edit can earn it.
"""

import dataclasses
import itertools
import json
import os
import subprocess
import sys
import time
from collections import Counter
from dataclasses import replace
from functools import partial
from pathlib import Path

import hand_scenes
import numpy as np
import pytest
import torch
from rich.console import Console
from tiny_net import POSES, tiny_inputs, tiny_net, whole_layout
from tiny_training import (  # noqa: F401 (two_sets is a fixture)
    NEVER,
    Silent,
    command,
    in_processes,
    make_set,
    network,
    prepare,
    two_sets,
    weights,
)

from reflectdrive_ros.__main__ import main
from reflectdrive_ros.cli import train as train_run
from reflectdrive_ros.config import Config
from reflectdrive_ros.data import shards
from reflectdrive_ros.data.shards import Index, ShardContent
from reflectdrive_ros.evaluation import driving_scores, privilege
from reflectdrive_ros.model.token import ops, rollout
from reflectdrive_ros.model.token.ops import EditRules, GoalRules
from reflectdrive_ros.model.token.rollout import Sampling
from reflectdrive_ros.planning import reflectdrive2
from reflectdrive_ros.planning.planner import PlannerContext, PlannerState
from reflectdrive_ros.runtime.torch_backend import TorchNetwork
from reflectdrive_ros.tokens import decoding_rounds
from reflectdrive_ros.training import rewards, rl, rl_losses, rollouts, settings, train_state
from reflectdrive_ros.training.fabric import launch_fabric
from reflectdrive_ros.training.losses import Batch
from reflectdrive_ros.training.rewards import PlanScorer, RewardPool
from reflectdrive_ros.training.rl_losses import RlLosses, make_policy_batch
from reflectdrive_ros.training.settings import LossConfig, RlConfig
from reflectdrive_ros.training.token_job import TokenJob

RULES = GoalRules(count=8, floor=0.0)
SMALL = RlConfig(goals=2, drafts=3, kept=6, plan_value=0.0)


def sampled(net, config=SMALL, seed=0, scenes=2):
    inputs = tiny_inputs(net, scenes)
    return inputs, rollouts.sample(net, inputs, RULES, config, torch.Generator().manual_seed(seed))


def policy_of(net, found, config=SMALL, reward=None, seed=0):
    if reward is None:
        reward = torch.rand(found.plans.shape[:2], generator=torch.Generator().manual_seed(seed))
    greedy = reward[:, : found.goals.shape[1]]
    return make_policy_batch(found, reward, greedy, net.config.layout, config)


def token_log_probs(net, inputs, policy, temperature=1.0):
    hidden = rl_losses.hidden_states(net, net.encode(net.prompt(*inputs)), policy)
    return rl_losses.token_log_probs(net, hidden.rounds, policy, temperature)


# --- rollouts --------------------------------------------------------------------------------------------------------


def test_at_temperature_0_a_rollout_commits_what_the_vehicle_commits():
    net = tiny_net()
    inputs = tiny_inputs(net)
    rounds = rollouts.rounds_of(net.config.layout)
    known = rollout.prefill_goal(net, *inputs, RULES)

    def run(sampling):
        return rollout.rollout(
            lambda ids: net.decode(ids, known.keys_values),
            known.actions,
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
    _, found = sampled(net)
    layout = net.config.layout
    assert found.states.shape == (2, 7, 6, layout.length)
    goals = found.states[..., list(layout.goal)]
    assert goals.equal(found.goals.repeat_interleave(3, 1)[:, None].expand_as(goals))
    assert (found.goals[:, 0] != found.goals[:, 1]).any(-1).all()  # without replacement
    changed = rollouts.written(found.states, layout.mask_id).sum(-1)
    assert (changed[:, :3] == torch.tensor([5, 5, 4])[:, None]).all()
    assert (changed[:, 3:] <= 5).all()
    assert (found.plans != layout.mask_id).all()


# --- credit and ratios -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_the_ratio_of_every_credited_token_is_1_before_the_first_update(temperature):
    net, config = tiny_net(), replace(SMALL, temperature=temperature)
    inputs, found = sampled(net, config)
    policy = policy_of(net, found, config)
    log_probs = token_log_probs(net, inputs, policy, temperature)
    order = policy.advantage.shape[1]
    assert order == found.plans.shape[1]  # all are kept, in the order of their advantages
    by_plan = {plan.numpy().tobytes(): k for k, plan in enumerate(found.states[0].transpose(0, 1).reshape(order, -1))}
    for place in range(order):
        k = by_plan[policy.states[0, :, place].reshape(-1).numpy().tobytes()]
        credited = policy.credited[0, :, place]
        difference = (log_probs[0, :, place] - found.log_probs[0, :, k])[credited]
        assert difference.abs().max() < 1e-4
    assert (log_probs[~policy.credited] == 0).all()


def test_packed_log_probabilities_are_those_of_one_forward_pass_per_transition():
    net = tiny_net()
    inputs, found = sampled(net)
    policy = policy_of(net, found)
    packed = token_log_probs(net, inputs, policy)
    layout = net.config.layout
    for number in range(policy.states.shape[1] - 1):
        before, after = policy.states[:, number], policy.states[:, number + 1]
        single = ops.token_log_probs(net.packed_logits(*inputs, before), after, layout.mask_id)
        credited = policy.credited[:, number]
        torch.testing.assert_close(packed[:, number][credited], single[credited], rtol=1e-4, atol=1e-4)


def test_credit_goes_to_the_tokens_of_the_phase_that_is_asked_for():
    net = tiny_net()
    _, found = sampled(net)
    layout = net.config.layout
    count = {
        credit: rl_losses.credited_tokens(found.states, layout, replace(SMALL, credit=credit))
        for credit in settings.CREDITS
    }
    assert count["rollout"].equal(count["drafts"] | count["edits"])
    assert not (count["drafts"] & count["edits"]).any()
    assert (count["drafts"].sum((1, 3)) == len(layout.free)).all()
    assert not count["rollout"][..., list(layout.goal)].any()
    assert count["edits"].equal(rollouts.written(found.states, layout.mask_id) & (torch.arange(6) >= 3)[:, None, None])


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_tokens_and_positions_together_are_the_exact_probability_of_every_rollout(temperature):
    """Two free tokens of three ids: one is drafted, then the other, then both may be edited, each in three rounds.

    All rollouts are listed; their probabilities sum to 1 and are the frequencies with which they are sampled.
    """
    layout = replace(whole_layout(3), points=2, goal=(2, 3))
    net = tiny_net(layout=layout)
    mask, goal, drawn = layout.mask_id, (1, 2), range(3)
    listed = []
    for first, a, b in itertools.product(range(2), drawn, drawn):
        half = (a, mask) if first == 0 else (mask, a)
        whole = (a, b) if first == 0 else (b, a)
        for end in itertools.product(drawn, drawn):
            listed.append([(mask, mask), half, whole, end])
    states = torch.tensor([[(*pair, *goal) for pair in rollout] for rollout in listed]).transpose(0, 1)[None]
    found = rollouts.Rollouts(
        states,
        torch.tensor([[goal]]),
        torch.ones(1, 1, dtype=torch.bool),
        torch.zeros(1, 3, len(listed), 4),
        states[:, -1, :1],
    )
    config = replace(SMALL, goals=1, drafts=len(listed), kept=len(listed), temperature=temperature)
    policy = make_policy_batch(found, torch.zeros(1, len(listed)), torch.zeros(1, 1), layout, config)
    inputs = tiny_inputs(net, 1)
    with torch.no_grad():
        hidden = rl_losses.hidden_states(net, net.encode(net.prompt(*inputs)), policy).rounds
        of_tokens = rl_losses.token_log_probs(net, hidden, policy, temperature).sum((1, 3))
        of_positions = rl_losses.position_log_probs(net, hidden, policy, temperature).sum(1)
    probability = (of_tokens + of_positions)[0].double().exp()
    assert probability.sum().item() == pytest.approx(1.0, abs=1e-5)

    count = 20_000
    keys_values = net.encode(net.prompt(*inputs))
    begun = states[:, 0, :1].expand(-1, count, -1)
    rounds = decoding_rounds(2, 2, 1)
    sampling = Sampling(temperature, torch.Generator().manual_seed(0))
    with torch.no_grad():
        drafts = rollout.rollout(lambda ids: net.decode(ids, keys_values), begun, layout, rounds, EditRules(), sampling)
    seen = torch.stack([begun, *(output.actions for output in drafts)], 1)[0].transpose(0, 1).flatten(1).tolist()
    frequency = Counter(map(tuple, seen))
    for place, expected in enumerate(probability.tolist()):
        ids = tuple(states[0, :, place].flatten().tolist())
        assert abs(frequency[ids] / count - expected) < 5.0 * (expected / count) ** 0.5 + 1e-4


@pytest.mark.parametrize("baseline", settings.BASELINES)
def test_advantages_of_a_group_sum_to_0_and_equal_rewards_have_none(baseline):
    reward = torch.rand(5, 12, generator=torch.Generator().manual_seed(0))
    reward[0] = 0.5
    found = torch.unflatten(rl_losses.advantages(reward, 3, baseline), 1, (3, 4) if baseline == "goal" else (1, 12))
    assert found.sum(-1).abs().max() < 1e-6
    assert (found[0] == 0).all()
    assert (found[1:] != 0).all()


def test_equal_rewards_move_nothing():
    net = tiny_net()
    _, found = sampled(net)
    policy = policy_of(net, found, reward=torch.full((2, 6), 0.7))
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
        *tiny_inputs(net, scenes),
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
        known=torch.ones(scenes, 2, dtype=torch.bool),
        masked=1,
    )


def test_the_policy_gradient_is_that_of_the_expected_reward():
    """Two waypoints, three bins: one round writes both free tokens, so all nine plans and their rewards are known."""
    layout = replace(whole_layout(3), points=2, goal=(2, 3))
    net = tiny_net(layout=layout).double()
    inputs = tuple(part.double() if part.is_floating_point() else part for part in tiny_inputs(net, 1))
    plans = torch.tensor([[x, y, 1, 2] for x, y in itertools.product(range(3), repeat=2)])[None]
    begun = torch.where(torch.tensor([True, True, False, False]), layout.mask_id, plans)
    reward = torch.rand(9, generator=torch.Generator().manual_seed(1), dtype=torch.float64)

    def probabilities():
        logits = net.packed_logits(*inputs, begun[:, :1])[0, 0].double().log_softmax(-1)
        return torch.stack([(logits[0, x] + logits[1, y]).exp() for x, y in plans[0, :, :2]])

    expected = (probabilities() * reward).sum()
    found = rollouts.Rollouts(
        torch.stack([begun, plans], 1),
        plans[:, :1, 2:],
        torch.ones(1, 1, dtype=torch.bool),
        torch.zeros(1, 1, 9, 4),
        plans[:, :1],
    )
    config = replace(SMALL, goals=1, drafts=9, kept=9)
    policy = make_policy_batch(found, torch.zeros(1, 9), torch.zeros(1, 1), layout, config)
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
        found = rollouts.sample(net, inputs, RULES, config, torch.Generator().manual_seed(step))
        reward = reward_of(found.states[0])[None]
        earned.append(reward.mean().item())
        greedy = torch.unflatten(reward, 1, (config.goals, -1)).mean(-1)
        policy = make_policy_batch(found, reward, greedy, net.config.layout, config)
        loss = losses(batch_of(net, 1), policy)["loss"]
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return earned


def test_the_token_that_is_rewarded_is_learnt():
    net = tiny_net(layout=whole_layout(11))
    config = RlConfig(goals=1, drafts=24, kept=24, anchor=0.0, decision=0.0, plan_value=0.0, baseline="scene")
    earned = learn(net, config, lambda states: (states[-1, :, 3] == 7).float(), 60)
    assert earned[0] < 0.4
    assert np.mean(earned[-10:]) > 0.95


def test_edits_that_alone_are_rewarded_are_learnt_with_credit_for_the_rollout_and_not_with_credit_for_drafts():
    """Earned by each token that is 7 at the end and was not 7 in the draft: drafts must leave it to the edits."""

    def reward_of(states):
        free = slice(0, 14)
        return ((states[-1, :, free] == 7) & (states[3, :, free] != 7)).float().mean(-1)

    def earned(credit):
        net = tiny_net(layout=whole_layout(11))
        config = RlConfig(
            goals=1, drafts=24, kept=24, anchor=0.0, decision=0.0, plan_value=0.0, baseline="scene", credit=credit
        )
        return learn(net, config, reward_of, 50)

    by_rollout, by_drafts = earned("rollout"), earned("drafts")
    assert np.mean(by_rollout[:5]) < 0.3
    assert np.mean(by_rollout[-5:]) > 0.9
    assert np.mean(by_drafts[-5:]) < 0.2


def test_with_credit_for_edits_the_rollouts_of_a_goal_differ_by_edits_of_the_plan_that_the_car_drafts():
    net = tiny_net(layout=whole_layout(11))
    _, found = sampled(net, replace(SMALL, credit="edits"))
    drafted = found.states[:, : rollouts.draft_rounds_of(net.config.layout) + 1]
    by_goal = torch.unflatten(drafted, 2, (SMALL.goals, SMALL.drafts))
    assert by_goal.equal(by_goal[..., :1, :].expand_as(by_goal))
    ends = torch.unflatten(found.plans, 1, (SMALL.goals, SMALL.drafts))
    assert (ends != ends[:, :, :1]).any()
    first = torch.unflatten(found.states[:, 0], 1, (SMALL.goals, SMALL.drafts))[:, :, 0]
    logits = partial(net.decode, keys_values=net.encode(net.prompt(*tiny_inputs(net, 2))))
    with torch.no_grad():
        greedy = rollout.rollout(logits, first, net.config.layout, decoding_rounds(14, 3, 0), EditRules())
    assert by_goal[:, -1, :, 0].equal(greedy[-1].actions)


def test_the_decision_goes_to_the_goal_whose_plans_are_rewarded():
    net = tiny_net(layout=whole_layout(11))
    inputs = tiny_inputs(net, 1)
    config = RlConfig(goals=4, drafts=2, kept=8, anchor=0.0, plan_value=0.0)
    known = rollout.prefill_goal(net, *inputs, RULES)
    wanted = known.actions[0, -1, list(net.config.layout.goal)]  # the least likely of eight

    def reward_of(states):
        return (states[-1][:, list(net.config.layout.goal)] == wanted).all(-1).float()

    learn(net, config, reward_of, 60)
    decided = rollout.prefill_goal(net, *inputs, RULES)
    assert decided.actions[0, 0, list(net.config.layout.goal)].equal(wanted)
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


@pytest.mark.parametrize("told", ["route", "words"])
def test_rewards_are_the_scores_that_eval_gives_the_same_plans(told):
    net, config = with_words(), Config()
    scorer = PlanScorer(net.config.layout, config.scoring)
    for number in range(6):
        scene = hand_scenes.scene(f"val-00000-{number:03d}", size=(64, 32), agents=3)
        context = PlannerContext(replace(config, planner="reflectdrive2"), TorchNetwork(net))
        _, plan = reflectdrive2.plan(PlannerState(), privilege.observe(scene, told), context)
        row = driving_scores.score_plans(
            scene.scored(), {"plan": driving_scores.plan_waypoints(plan)[0]}, config.scoring
        )["plan"]
        found = scorer(scene, np.asarray(plan.tokens)[None], told == "route")[0]
        np.testing.assert_allclose(found, [row[driving_scores.MEASURES.index(name)] for name in MEASURES], atol=1e-6)


def with_words(**changes):
    return tiny_net(words=network().words, text_vocabulary=len(network().words), text_length=12, **changes)


MEASURES = ("pdms", *rewards.SUB_SCORES)


def test_flipped_scenes_give_flipped_plans_the_rewards_of_the_plans(road_scenes):
    folder, scenes = road_scenes
    layout = network().layout
    listed = list(shards.read(folder, images=False, on_damage=pytest.fail))
    actions = np.stack([plans_near_the_expert(scene, layout, seed=k) for k, scene in enumerate(listed)])
    everywhere, rows = np.ones(4, bool), [2, 0, 3, 1]
    with RewardPool(folder, scenes, PlanScorer(layout, Config().scoring), 2) as pool:
        plain = pool.score(rows, ~everywhere, everywhere, actions[rows])
        flipped = pool.score(rows, everywhere, everywhere, rewards.mirror_actions(actions[rows], layout))
    np.testing.assert_array_equal(plain, flipped)
    direct = PlanScorer(layout, Config().scoring)
    for place, row in enumerate(rows):
        np.testing.assert_allclose(plain[place], direct(listed[row], actions[row], with_route=True), atol=1e-6)
    assert len(np.unique(plain[..., 0])) > 4


def test_mirrored_twice_is_the_plan_itself_and_masks_stay():
    layout = network().layout
    actions = np.random.default_rng(0).integers(0, layout.bins + 1, (3, 5, layout.length))
    once = rewards.mirror_actions(actions, layout)
    np.testing.assert_array_equal(rewards.mirror_actions(once, layout), actions)
    np.testing.assert_array_equal(once == layout.mask_id, actions == layout.mask_id)
    np.testing.assert_array_equal(once[..., ::2], actions[..., ::2])


# --- runs ------------------------------------------------------------------------------------------------------------

YAML = """
data: {batch: 2, color_jitter: 0.0}
rl: {goals: 2, drafts: 2, kept: 3, kl: 0.01, updates: 2, position_ratio: true}
device: {accelerator: cpu, threads: 1}
checkpointing: {checkpoint_minutes: 100.0, validations: 0, log_steps: 1}
"""


def rl_command(sets, out, init, *more, yaml=YAML):
    args = command(sets, out, *more, "--init-from", str(init), yaml=yaml, kind="rl")
    quiet = Console(quiet=True)
    return train_run.run_with_network(args, train_run._config(args), network(), quiet, quiet)


@pytest.fixture(scope="module", name="init")
def network_to_begin_with(tmp_path_factory):
    folder = tmp_path_factory.mktemp("init")
    net = with_words()
    train_state.save_weights(net, folder / train_state.WEIGHTS, {})
    return folder


def test_a_run_that_is_killed_ends_with_the_same_weights_and_logs_its_panel(sets, init, tmp_path):
    assert rl_command(sets, tmp_path / "whole", init, "--steps", "6") == 0
    out = tmp_path / "parts"
    paths = ", ".join(repr(str(path)) for path in (*sets, out, init))
    call = f"import test_rl; test_rl.train_slowly({paths})"
    here = Path(__file__).parent
    environment = {**os.environ, "PYTHONPATH": f"{here}{os.pathsep}{here.parent}"}
    child = subprocess.Popen([sys.executable, "-c", call], env=environment)
    try:
        end_s = time.monotonic() + 120.0
        while (found := train_state.read_progress(out)) is None or found[0].step < 2:
            assert time.monotonic() < end_s
            assert child.poll() is None
            time.sleep(0.02)
    finally:
        child.kill()
        child.wait()
    begun, _ = train_state.read_progress(out)
    assert 2 <= begun.step < 6
    assert rl_command(sets, out, init, "--steps", "6") == 0
    whole, parts = weights(tmp_path / "whole"), weights(out)
    assert whole.keys() == parts.keys()
    assert all(torch.equal(value, parts[name]) for name, value in whole.items())
    head, *rows = (tmp_path / "parts" / "log.csv").read_text().splitlines()
    assert head.split(",") == ["step", "minutes", *rl.COLUMNS, "rate", "scenes_per_s"]
    values = np.array([row.split(",") for row in rows], float)
    assert len(values) == 6
    for name in ("reward_score", "reward_nc", "reward_dac", "equal_share", "entropy", "edits_per_plan", "clipped"):
        assert np.isfinite(values[:, head.split(",").index(name)]).all(), name
    card = json.loads((tmp_path / "parts" / "card.json").read_text())
    assert card["settings"]["rl"]["goals"] == 2


def train_slowly(train_set, val_set, out, init):
    """In a child: a checkpoint after every step, and time to be killed in."""
    torch.set_num_threads(1)
    plain = rl_losses.RlLosses.forward
    rl_losses.RlLosses.forward = lambda *given: (time.sleep(0.5), plain(*given))[1]
    yaml = YAML.replace("checkpoint_minutes: 100.0", "checkpoint_minutes: 0.0")
    rl_command((Path(train_set), Path(val_set)), Path(out), Path(init), "--steps", "6", yaml=yaml)


def test_a_policy_that_collapses_ends_the_run_with_its_batch(sets, init, tmp_path):
    yaml = YAML.replace("updates: 2", "updates: 2, abort_entropy: 9.0")
    with pytest.raises(rl.TrainingError, match=r"step 0: the policy collapses \(entropy .* lower optimizer"):
        rl_command(sets, tmp_path / "run", init, "--steps", "4", yaml=yaml)
    with np.load(tmp_path / "run" / "bad_batch.npz") as saved:
        assert saved["states"].shape[0] == saved["scores"].shape[0] == 2


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ("rl: {drafts: 1}", "rl.drafts is 1: a group of one rollout has no advantage"),
        ("rl: {goals: 1, drafts: 1, baseline: scene}", "rl.drafts is 1: a group of one rollout has no advantage"),
        ("rl: {temperature: 0}", "rl.temperature is 0"),
        ("rl: {credit: goals}", "rl.credit is 'goals', expected one of rollout, drafts, edits"),
        ("reward: {progress_weight: 0, ttc_weight: 0, comfort_weight: 0}", "sum to 0"),
        ("loss: {goal_score: 1, aux_perception: 0}", "rl.decision takes their place"),
    ],
)
def test_settings_that_cannot_be_trained_with_are_one_sentence(sets, init, tmp_path, capsys, changes, message):
    args = command(sets, tmp_path / "run", "--init-from", str(init), yaml=changes, kind="rl")
    assert train_run.run(args) == 2
    (sentence,) = capsys.readouterr().err.strip().splitlines()
    assert message in sentence


def test_a_network_of_another_layout_is_refused(sets, tmp_path, capsys):
    other = tmp_path / "other"
    other.mkdir()
    train_state.save_weights(with_words(route_at_m=(5.0,)), other / train_state.WEIGHTS, {})
    args = command(sets, tmp_path / "run", "--init-from", str(other), yaml=YAML, kind="rl")
    assert train_run.run(args) == 2
    assert "holds another network than the setting `network` names" in " ".join(capsys.readouterr().err.split())


def test_a_set_without_roads_is_refused(init, tmp_path):
    folder = tmp_path / "bare"
    folder.mkdir()
    made = []
    for k in range(4):
        scene = hand_scenes.scene(f"bare-00000-{k:03d}", size=(64, 36), agents=2)
        nothing = {field.name: () for field in dataclasses.fields(scene.areas)}
        made.append(replace(scene, areas=replace(scene.areas, **nothing)))
    note = shards.write_shard(folder, "bare-00000", ShardContent.of(made), asked=4, made_by={})
    shards.write_index(folder, Index("train", 4, (note,), {}))
    with pytest.raises(shards.SetError, match=r"has no roads .*: plans cannot be scored"):
        rl_command((folder, folder), tmp_path / "run", init, "--steps", "1")


def train_in_processes(train_set, out, init, shards_weights):
    """For torchrun."""
    folder = Path(train_set)
    defaults = settings.RlTrainConfig()
    config = replace(
        defaults,
        data=replace(defaults.data, batch=2),
        rl=replace(defaults.rl, goals=2, drafts=2, kept=3, kl=0.01),
        schedule=settings.ScheduleConfig(steps=3),
        checkpointing=settings.CheckpointingConfig(**NEVER),
        device=settings.DeviceConfig(accelerator="cpu", threads=1, fsdp=shards_weights),
    )
    fabric = launch_fabric(config)
    assert fabric.world_size == 2
    whole = replace(network(), plan_value=True)
    scenes = prepare(folder)
    job = TokenJob(config, whole, scenes, None, Path(out), {"train": {"folder": "train"}}, init_from=Path(init))
    with RewardPool(folder, scenes, PlanScorer(whole.layout, config.reward), 1) as pool:
        rl.train(job, fabric, Silent(), pool, lambda: False)


@pytest.mark.long
def test_two_processes_learn_the_same_with_whole_weights_and_with_weights_in_shards(sets, init, tmp_path):
    for name, in_shards in (("whole", False), ("shards", True)):
        (tmp_path / name).mkdir()
        given = ", ".join(repr(str(path)) for path in (sets[0], tmp_path / name, init))
        in_processes("test_rl", tmp_path / name, f"train_in_processes({given}, {in_shards})")
    whole, shards_of = weights(tmp_path / "whole"), weights(tmp_path / "shards")
    assert whole.keys() == shards_of.keys()
    for name, value in whole.items():
        torch.testing.assert_close(shards_of[name], value, rtol=1e-3, atol=1e-5)


# --- a layout without goals ------------------------------------------------------------------------------------------

WITHOUT_GOAL = replace(SMALL, goals=1, drafts=4, kept=4, decision=0.0)


def test_without_goals_drafts_from_masks_are_one_group_and_ratios_begin_at_one():
    net = tiny_net(layout=POSES)
    inputs, found = sampled(net, WITHOUT_GOAL)
    assert found.states.shape == (2, 5, 4, 24)  # before and after each of four rounds
    assert (found.states[:, 0] == POSES.mask_id).all()
    assert [int((state[0, 0] != POSES.mask_id).sum()) for state in found.states.transpose(0, 1)] == [0, 2, 8, 15, 24]
    policy = policy_of(net, found, WITHOUT_GOAL)
    torch.testing.assert_close(policy.advantage.sum(1), torch.zeros(2), atol=1e-6, rtol=0.0)
    new = token_log_probs(net, inputs, policy, WITHOUT_GOAL.temperature)
    kept = ops.top_indices(rl_losses.advantages(policy.finished_reward[:, 1:], 1, "goal").abs(), 4)
    assert kept.shape == (2, 4)
    assert policy.credited.sum((1, 3)).tolist() == [[24] * 4] * 2
    sampled_log_probs = found.log_probs.sum((1, 3))
    assert torch.isfinite(sampled_log_probs).all()
    assert (new[policy.credited] <= 0.0).all()


def test_without_goals_a_token_is_found_by_its_reward():
    net = tiny_net(layout=POSES)
    config = replace(WITHOUT_GOAL, anchor=0.0, temperature=1.0, drafts=16, kept=16)
    weights_of = LossConfig(goal=0.0, sap=0.0, field=0.0, aux_perception=0.0)
    losses = RlLosses(net, weights_of, config, RULES, torch.Generator().manual_seed(0), trained="actions")
    trained = {name for name, each in net.named_parameters() if each.requires_grad}
    assert not any(name.startswith(("vision", "embed_tokens", "x_embedding")) for name in trained)
    optimizer = torch.optim.Adam([each for each in net.parameters() if each.requires_grad], lr=0.03)
    place, low, high = 4, *POSES.token_ranges[4]
    middle = (low + high) // 2
    share = []
    for step in range(30):
        inputs, found = sampled(net, config, seed=step)
        reward = (found.plans[..., place] > middle).float()
        share.append(float(reward.mean()))
        policy = policy_of(net, found, config, reward)
        batch = of_inputs(net, inputs)
        optimizer.zero_grad()
        losses(batch, policy)["loss"].backward()
        optimizer.step()
    assert share[0] < 0.7
    assert np.mean(share[-5:]) > 0.95


def of_inputs(net, inputs):
    """A batch whose anchor has no weight: one masked sequence of a plan at rest."""
    scenes, length = len(inputs[0]), net.config.layout.length
    still = torch.from_numpy(net.config.layout.encode(np.zeros((scenes, 8, 3))).astype(np.int64))
    masked = torch.full((scenes, 1, length), net.config.layout.mask_id)
    nothing = torch.zeros(scenes, 0, dtype=torch.int64)
    return Batch(
        *inputs, still, masked,
        torch.zeros(scenes, 301, 235, dtype=torch.int8), torch.zeros(scenes, 4, 1, 1, dtype=torch.bool),
        torch.zeros(scenes, 0, 2, dtype=torch.int64), torch.zeros(scenes, 0), torch.zeros(scenes, 0, 5), nothing,
        torch.arange(scenes), torch.zeros(scenes, dtype=torch.bool), torch.ones(scenes, dtype=torch.bool),
        torch.ones(scenes, 2, dtype=torch.bool), 1,
    )  # fmt: skip


def test_goals_of_a_network_without_them_are_refused(tmp_path, capsys):
    words = ["train", "rl", "config/train/drivefine_rl.yaml", "--train", str(tmp_path), "--out", str(tmp_path / "out")]
    asked = [*words, "--init-from", "models/reflectdrive2_small", "--setting", "rl.goals=4"]
    make_set(tmp_path / "train")
    asked[asked.index("--train") + 1] = str(tmp_path / "train")
    assert main(asked) == 2
    assert "network drivefine_small has no goals, but rl.goals is 4" in " ".join(capsys.readouterr().err.split())
