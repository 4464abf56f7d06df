"""Reinforcement learning of whole plans: smooth pairs, their weights, cached prompts, and the command."""

import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_net import POSES, tiny_net
from tiny_rl import RULES, kill_after_two_steps, network_to_begin_with, rl_command  # noqa: F401 (a fixture)
from tiny_training import a_batch, command, two_sets, weights  # noqa: F401 (two_sets is a fixture)

from reflectdrive_ros.cli import train as train_run
from reflectdrive_ros.core.tokens import DRIVEFINE, TokenLayout
from reflectdrive_ros.model.token import rollout
from reflectdrive_ros.planning.plan_changes import PlanModes, change_actions, sample_offsets
from reflectdrive_ros.training import plan_policy, plan_rl, prompt_cache, train_state
from reflectdrive_ros.training.plan_policy import (
    PlanBatch,
    PlanLosses,
    change_plans,
    reward_gradient,
    steps_in_bins,
    translation,
)
from reflectdrive_ros.training.settings import LossConfig, PlanRewardConfig, RlConfig

LAYOUT = TokenLayout()
CONFIG = RlConfig(estimator="plans", goals=2)
EDIT_GOAL = replace(LAYOUT, edit_goal=True)
PLANS = PlanRewardConfig(weight=1.0, plans=32)
CHANGES = PlanModes(pace_m=1.5, delay_m=0.8, offset_m=0.6, bulge_m=0.3)
PAIRS = 32
U = np.arange(1, 9) / 8.0
BEND = np.stack([30.0 * U, 6.0 * U**2], axis=-1)
STANDING = np.zeros((8, 2))


def ids_of(*plans):
    return LAYOUT.encode(np.stack(plans))


# --- changes of plans ------------------------------------------------------------------------------------------------


def test_changes_vanish_at_the_present_and_are_smooth():
    offsets = sample_offsets(1, PAIRS, 80, np.random.default_rng(0), CHANGES)
    for values, end_m in ((offsets.along_m, CHANGES.pace_m), (offsets.left_m, CHANGES.offset_m)):
        assert np.abs(values[..., 0]).max() < 0.01
        assert np.abs(np.diff(values, 2)).max() < 0.02 * end_m
        assert 0.6 * end_m < values[..., -1].std() < 1.4 * end_m


def test_a_plan_is_changed_along_and_lateral_to_its_path():
    rng = np.random.default_rng(1)
    along = CHANGES._replace(offset_m=0.0, bulge_m=0.0)
    for offsets in (sample_offsets(1, PAIRS, 8, rng, along), sample_offsets(1, PAIRS, 8, rng, CHANGES)):
        moved = LAYOUT.decode(change_actions(ids_of(BEND), offsets, LAYOUT))[0]
        beyond = np.hypot(*(moved[:, -1] - LAYOUT.decode(ids_of(BEND))[0, -1]).T)
        np.testing.assert_allclose(beyond, np.hypot(offsets.along_m, offsets.left_m)[0, :, -1], atol=0.5)
        on_path = np.interp(moved[..., 0], np.append(0.0, BEND[:, 0]), np.append(0.0, BEND[:, 1]))
        lateral_m = np.abs(moved[..., 1] - on_path)[moved[..., 0] < 30.0].max()
        assert (lateral_m < 0.35) == (offsets.left_m.max() == 0.0)


def test_no_changed_plan_reverses_and_a_standing_one_does_not_move_sideways():
    offsets = sample_offsets(1, PAIRS, 8, np.random.default_rng(2), CHANGES._replace(pace_m=8.0, offset_m=2.0))
    moved = LAYOUT.decode(change_actions(ids_of(BEND), offsets, LAYOUT))[0]
    assert (np.diff(moved[..., 0], axis=1) >= -0.5).all()
    moved = LAYOUT.decode(change_actions(ids_of(STANDING), offsets, LAYOUT))[0]
    stays = offsets.along_m[0].max(axis=1) < 0.0
    assert stays.any()
    assert (moved[stays] == 0.0).all()


def test_a_fixed_goal_stays_and_opposite_plans_surround_the_plan():
    for keeps_goal in (False, True):
        changed = change_plans(
            ids_of(BEND), LAYOUT if keeps_goal else EDIT_GOAL, np.random.default_rng(3), PAIRS, CHANGES
        )
        assert changed.plans.shape == (1, 64, 16)
        goals = LAYOUT.decode_goal(changed.plans[0])
        assert (goals == LAYOUT.decode_goal(changed.center[0])).all() == keeps_goal
        points = LAYOUT.decode(changed.plans)[0]
        middle = 0.5 * (points[:32] + points[32:])
        assert np.abs(middle - LAYOUT.decode(changed.center)[0]).max() < 0.7  # rounding, and the bend


# --- the policy gradient ---------------------------------------------------------------------------------------------


def test_the_gradient_is_that_of_the_expected_reward():
    """A reward that is linear in the values of the tokens: g is its gradient times the covariance of the changes."""
    rng = np.random.default_rng(4)
    changed = change_plans(ids_of(BEND), EDIT_GOAL, rng, 20_000, CHANGES)
    values = changed.plans[0].astype(float)
    slope = rng.standard_normal(16)
    g = reward_gradient(changed, torch.as_tensor(values @ slope)[None], LAYOUT)[0].numpy()
    half = 0.5 * (values[:20_000] - values[20_000:])
    np.testing.assert_allclose(g, half.T @ half @ slope / 20_000, rtol=1e-3, atol=1e-4)
    assert not reward_gradient(changed, torch.ones(1, 40_000), LAYOUT).any()


@pytest.mark.parametrize("layout", [LAYOUT, DRIVEFINE], ids=["0.3 m", "0.05 m"])
def test_a_translation_moves_a_distribution_and_keeps_its_mass_and_shape(layout):
    ids = torch.arange(float(layout.bins)).expand(layout.length, -1)
    step = torch.tensor(np.tile(steps_in_bins(layout), layout.points))[:, None]
    bell = torch.softmax(-0.5 * ((ids - 300.0) / (2.0 * step)) ** 2, -1)

    def moved(shift):
        return translation(bell[None], torch.full((1, layout.length), shift), layout)[0]

    for shift in (0.1, -0.3):
        density = bell + moved(shift)
        mean = (density * ids).sum(-1, keepdim=True)
        torch.testing.assert_close(density.sum(-1), torch.ones(layout.length), rtol=0, atol=1e-5)
        torch.testing.assert_close((mean - 300.0) / step, torch.full_like(mean, shift), rtol=0, atol=2e-3)
        width = (density * ((ids - mean) / step) ** 2).sum(-1)
        torch.testing.assert_close(width, torch.full_like(width, 4.0), rtol=0.03, atol=0)
    assert (moved(0.4) + moved(-0.4)).abs().max() < 1e-7


def test_plans_move_to_where_the_reward_is_highest():
    """A toy: every token has its own logits; the best plan is 3 m shorter and 0.9 m to the left."""
    bins = torch.arange(LAYOUT.bins)
    logits = -0.5 * ((bins - torch.as_tensor(ids_of(BEND)).long()[..., None]) / 1.5) ** 2
    logits = logits[:, None].clone().requires_grad_()
    optimizer = torch.optim.SGD([logits], lr=5.0)
    rng, best = np.random.default_rng(5), np.array([27.0, 6.9])
    for _ in range(600):
        center = logits[:, 0].argmax(-1)
        changed = change_plans(center.numpy(), EDIT_GOAL, rng, PAIRS, CHANGES)
        end = LAYOUT.decode(changed.plans)[:, :, -1]
        reward = torch.as_tensor(np.exp(-0.1 * ((end - best) ** 2).sum(-1)), dtype=torch.float32)
        log_probs = logits.log_softmax(-1)
        shift = 5.0 * reward_gradient(changed, reward, LAYOUT)[:, None]
        loss = -(translation(log_probs.detach().exp(), shift, LAYOUT) * log_probs).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    np.testing.assert_allclose(LAYOUT.decode(logits[:, 0].argmax(-1).detach().numpy())[0, -1], best, atol=0.7)


def policy_of(net, batch, config=CONFIG):
    greedy = plan_policy.decode_greedily(net, batch, RULES, config)
    states, credited = plan_policy.credited_states(greedy, net.config.layout, config)
    changed = change_plans(greedy.plans[:, 0].numpy(), net.config.layout, np.random.default_rng(0), PAIRS, CHANGES)
    reward = torch.rand(changed.plans.shape[:2], generator=torch.Generator().manual_seed(1))
    gradient = reward_gradient(changed, reward, net.config.layout)[:, None] * credited
    goal_reward = reward[:, : greedy.plans.shape[1]]
    parts = greedy.goals, greedy.valid, goal_reward, greedy.plans, states, gradient
    return greedy, PlanBatch(*parts)


@pytest.mark.parametrize("edit_goal", [False, True])
def test_plans_are_decoded_as_in_the_vehicle(edit_goal):
    net = tiny_net(layout=replace(LAYOUT, edit_goal=edit_goal))
    batch = a_batch(net)
    greedy = plan_policy.decode_greedily(net, batch, RULES, CONFIG)
    vehicle = rollout.full_step(net, batch.inputs, rollout.Decoding(RULES))
    assert greedy.plans.equal(vehicle.actions[:, :2])
    keeps_goal = greedy.plans[..., list(net.config.layout.goal)].equal(greedy.goals)
    assert keeps_goal or edit_goal


@pytest.mark.parametrize(("credit", "states"), [("rollout", 6), ("drafts", 3), ("edits", 3)])
def test_credit_goes_to_the_configured_rounds(credit, states):
    for edit_goal in (False, True):
        net, config = tiny_net(layout=replace(LAYOUT, edit_goal=edit_goal)), replace(CONFIG, credit=credit)
        greedy = plan_policy.decode_greedily(net, a_batch(net), RULES, config)
        before, credited = plan_policy.credited_states(greedy, net.config.layout, config)
        assert before.shape[1] == credited.shape[1] == states
        count = credited.sum(-1)
        credited_counts = {"drafts": [5, 5, 4], "edits": [16 if edit_goal else 14] * 3}
        expected = (
            credited_counts["drafts"] + credited_counts["edits"] if credit == "rollout" else credited_counts[credit]
        )
        assert count.eq(torch.tensor(expected)).all()


@pytest.mark.parametrize("layout", [LAYOUT, POSES], ids=["goal", "no goal"])
def test_with_a_prompt_cache_losses_and_gradients_are_those_without(layout):
    net = tiny_net(layout=layout, plan_value=True) if layout is POSES else tiny_net(plan_value=True)
    plain = a_batch(net) if layout is LAYOUT else poses_batch(net)
    config = replace(CONFIG, plan_value=0.5) if layout.goal else replace(CONFIG, goals=1, decision=0.0)
    with torch.no_grad():
        packed = prompt_cache.pack(net.encode(net.prompt(plain.inputs)))
    cached = replace(plain, images=torch.zeros(2, 0), keys_values=packed)
    greedy, policy = policy_of(net, plain, config)
    assert plan_policy.decode_greedily(net, cached, RULES, config).plans.equal(greedy.plans)
    results = []
    for batch in (plain, cached):
        loss = PlanLosses(net, LossConfig(aux_perception=0.0), config, PLANS, RULES, torch.Generator().manual_seed(0))
        net.zero_grad()
        values = loss(batch, policy)
        values["loss"].backward()
        gradients = [each.grad.clone() for each in net.parameters() if each.grad is not None]
        assert gradients
        results.append((values, gradients))
    (values, gradients), (others, other_gradients) = results
    for name, value in values.items():
        torch.testing.assert_close(others[name], value, rtol=1e-3, atol=1e-3)
    for one, other in zip(gradients, other_gradients, strict=True):
        torch.testing.assert_close(other, one, rtol=0.05, atol=2e-3)


def poses_batch(net):
    """As `a_batch`, of a layout without a goal."""
    layout, batch = net.config.layout, a_batch(tiny_net())
    points = np.concatenate([np.stack([BEND, 0.5 * BEND]), np.zeros((2, 8, 1))], axis=-1)
    clean = torch.from_numpy(layout.clip(layout.encode(points)).astype(np.int64))
    masked = torch.full_like(clean, layout.mask_id)
    route = torch.full_like(batch.route, layout.codebook.mask_id)
    nothing = {"goals": batch.goals[:, :0], "goal_score": batch.goal_score[:, :0]}
    return replace(batch, clean=clean, actions=torch.stack([masked, clean], 1), masked=1, route=route, **nothing)


# --- runs ------------------------------------------------------------------------------------------------------------

YAML = """
data: {batch: 2, masked_actions: 1, perturbed_actions: 1, prompt_cache: true}
optimizer: {trained: actions}
rl: {estimator: plans, goals: 2, edit_goal: true}
plans: {plans: 2}
device: {accelerator: cpu, threads: 1}
checkpointing: {checkpoint_minutes: 100.0, validations: 0, log_steps: 1}
"""


def test_a_run_that_is_killed_ends_with_the_same_weights(sets, init, tmp_path):
    assert rl_command(sets, tmp_path / "whole", init, "--steps", "6", yaml=YAML) == 0
    out = tmp_path / "parts"
    kill_after_two_steps("test_plan_rl", sets, out, init)
    assert rl_command(sets, out, init, "--steps", "6", yaml=YAML) == 0
    whole, parts = weights(tmp_path / "whole"), weights(out)
    assert all(torch.equal(value, parts[name]) for name, value in whole.items())
    start = weights_of(init)
    moved = {name for name, value in weights_of(out).items() if name in start and not value.equal(start[name])}
    assert any("action_mlp" in name for name in moved)
    assert not any(name.startswith(("vision", "projector", "embed_tokens")) or "k_proj" in name for name in moved)
    head, *rows = (out / "log.csv").read_text().splitlines()
    assert head.split(",") == ["step", "minutes", *plan_rl.COLUMNS, "rate", "scenes_per_s"]
    values = np.array([row.split(",") for row in rows], float)
    assert np.isfinite(values).all()
    assert (tmp_path / "whole" / "card.json").exists()


def weights_of(folder):
    return train_state.load_network(folder).state_dict()


def train_slowly(train_set, val_set, out, init):
    """In a child: a checkpoint after every step, and time to be killed in."""
    torch.set_num_threads(1)
    plain = PlanLosses.forward
    PlanLosses.forward = lambda *arguments: (time.sleep(0.5), plain(*arguments))[1]
    yaml = YAML.replace("checkpoint_minutes: 100.0", "checkpoint_minutes: 0.0")
    rl_command((Path(train_set), Path(val_set)), Path(out), Path(init), "--steps", "6", yaml=yaml)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ("rl: {estimator: words}", "rl.estimator is 'words', expected one of tokens, plans"),
        ("data: {prompt_cache: true}", "data.prompt_cache is true, but prompts are trained"),
    ],
)
def test_settings_that_do_not_fit_are_one_sentence(sets, init, tmp_path, capsys, changes, message):
    args = command(sets, tmp_path / "run", "--init-from", str(init), yaml=changes, kind="rl")
    assert train_run.run(args) == 2
    assert message in " ".join(capsys.readouterr().err.split())
