"""DriveFine's network: interpolated tables, the refinement expert and its training, weights of another layout."""

import copy
import csv
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from rich.console import Console
from tiny_net import POSES, random_actions, tiny_inputs, tiny_net, xy_layout
from tiny_scene import CRITIQUE, critical_net, scene_inputs
from tiny_training import command, network, network_to_begin_with, prepare, run, two_sets, with_words  # noqa: F401 (fixtures)

from reflectdrive_ros.core.config import ConfigError
from reflectdrive_ros.core.tokens import DRIVEFINE, ROUTE_FRAME, Axis, TokenLayout
from reflectdrive_ros.features.images import WORDS
from reflectdrive_ros.model import checkpoint
from reflectdrive_ros.model.checkpoint import CheckpointError
from reflectdrive_ros.model.token import ops, rollout
from reflectdrive_ros.model.token.axis import SplineHead, make_embedding, make_head, resample_rows
from reflectdrive_ros.model.token.moe import KEEP_BINS, KEEP_LOGIT
from reflectdrive_ros.model.token.net import TokenNet, drivefine_small_config, small_config
from reflectdrive_ros.model.token.rollout import Decoding
from reflectdrive_ros.model.token.transfer import adapt
from reflectdrive_ros.planning.critique import CRITIQUE_CHANNELS, VARIANT_SIZES
from reflectdrive_ros.training import augment, settings, token_runs, train_state
from reflectdrive_ros.training.losses import Losses
from reflectdrive_ros.training.refine import CandidateBatch, RefineLosses, candidates_of
from reflectdrive_ros.training.rewards import PlanScorer, RewardPool
from reflectdrive_ros.training.settings import LossConfig, RefineLossConfig, RefineTrainConfig
from reflectdrive_ros.training.token_runs import TokenJob


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def refined(**changes):
    return tiny_net(layout=POSES, refine_layers=1, **changes)


# --- tables ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stride", [2, 3, 6])
def test_a_spline_passes_through_its_knots_and_a_straight_one_stays_straight(stride):
    axis = Axis("x", 0.05, 401, -5.0, 10.0)
    embed, head = make_embedding(axis, 401, 4, stride), make_head(axis, 4, stride)
    with torch.no_grad():
        slope = torch.arange(len(head.weight))[:, None] * torch.tensor([1.0, -2.0, 0.5, 0.0])
        head.weight.copy_(slope)
        embed.weight.copy_(torch.cat([slope, torch.full((1, 4), 9.0)]))
        ids = torch.arange(401)
        rows = embed(ids)
        steps = rows.diff(dim=0)
        torch.testing.assert_close(steps, steps[:1].expand_as(steps), atol=1e-4, rtol=0.0)
        torch.testing.assert_close(rows[200], slope[len(slope) // 2])
        assert embed(torch.tensor(401)).tolist() == [9.0] * 4  # the mask
        hidden = torch.randn(3, 4, generator=generator())
        torch.testing.assert_close(head.logits(hidden, 0, 400), hidden @ rows.T, atol=1e-3, rtol=1e-4)


def test_logits_of_a_range_are_a_part_of_all():
    head = SplineHead(401, 8, 7)
    torch.nn.init.normal_(head.weight, generator=generator())
    hidden = torch.randn(5, 8, generator=generator(1))
    whole = head.logits(hidden, 0, 400)
    for low, high in ((0, 0), (13, 200), (200, 400), (399, 400)):
        torch.testing.assert_close(head.logits(hidden, low, high), whole[:, low : high + 1])


def test_a_table_is_read_by_position():
    coarse, fine = Axis("x", 0.3, 667, -12.0, 99.9), Axis("x", 0.05, 4001, -12.0, 99.9)
    metres = 0.3 * (torch.arange(668.0) - 333)[:, None]
    resampled = resample_rows(metres, coarse, 1, True, fine, 1)
    assert resampled.shape == (4002, 1)
    torch.testing.assert_close(resampled[:-1, 0], (0.05 * (torch.arange(4001.0) - 2000)).clamp(-99.9, 99.9))
    assert resampled[-1] == metres[-1]  # the mask stays the mask


def test_the_shipped_size_fits_in_sixteen_megabytes():
    config = replace(drivefine_small_config(WORDS), refine_layers=1)
    with torch.device("meta"):
        net = TokenNet(config)
    assert 2 * sum(each.numel() for each in net.parameters()) < 15.9e6
    assert config.layout is DRIVEFINE
    assert [axis.bins for axis in DRIVEFINE.axes] == [4001, 4001, 1801]


# --- the expert ------------------------------------------------------------------------------------------------------


def test_plugging_the_expert_on_changes_nothing_and_it_begins_with_keeping_the_plan():
    plain, net = tiny_net(layout=POSES), refined()
    net.load_state_dict(plain.state_dict(), strict=False)
    net.start_expert()
    inputs, actions = tiny_inputs(net), random_actions(net, masked=0.0)
    with torch.no_grad():
        past, theirs = rollout.prefill(net, inputs), rollout.prefill(plain, inputs)
        assert torch.equal(net.decode(actions, past), plain.decode(actions, theirs))
        assert torch.equal(net.packed_logits(inputs, actions), plain.packed_logits(inputs, actions))
        logits = net.refine(actions, past)
        keep = net.refiner.keep_logits(actions, logits.shape[-1])
        torch.testing.assert_close(logits - keep, plain.decode(actions, theirs), atol=1e-5, rtol=1e-5)
        assert keep.argmax(-1).equal(actions)
        assert keep.amax(-1).eq(KEEP_LOGIT).all()
        assert ((keep > 0.0).sum(-1) < 2 * KEEP_BINS).all()


def test_no_gradient_of_the_expert_reaches_the_layers_of_the_generator():
    net = refined()
    past = net.encode(net.prompt(tiny_inputs(net)))
    net.refine(random_actions(net, masked=0.0), past).square().mean().backward()
    reached = {name for name, each in net.named_parameters() if each.grad is not None and bool((each.grad != 0).any())}
    heads = {f"{axis}_head.weight" for axis in ("x", "y", "heading")}  # which the expert shares
    assert {name for name in reached if not name.startswith("refiner.")} <= heads
    assert any(name.startswith("refiner.layers.0.self_attn") for name in reached)


def test_a_whole_step_ends_with_the_expert():
    net = refined()
    decoding = Decoding(draft_rounds=4, edit_rounds=0, schedule="cosine")
    with torch.no_grad():
        torch.nn.init.normal_(net.refiner.norm.weight, std=3.0, generator=generator())
        decoded = rollout.full_step(net, tiny_inputs(net), decoding)
        assert [int((each.actions[0] != POSES.mask_id).sum()) for each in decoded.rounds] == [2, 8, 15, 24, 24]
        again, _ = rollout.refine(net, decoded.rounds[-2].actions, rollout.prefill(net, tiny_inputs(net)))
    assert torch.equal(decoded.actions, again)
    assert not torch.equal(decoded.actions, decoded.rounds[-2].actions)


def test_sampled_tokens_follow_their_probabilities():
    logits = torch.log(torch.tensor([0.5, 0.3, 0.2, 1e-9])).expand(1, 2, 20_000, 4)
    sampled = ops.draw(logits, TokenLayout(), 1.0, torch.rand(1, 2, 20_000, generator=generator()))
    share = torch.bincount(sampled.flatten(), minlength=4) / sampled.numel()
    torch.testing.assert_close(share, torch.tensor([0.5, 0.3, 0.2, 0.0]), atol=0.01, rtol=0.0)
    assert (ops.draw(logits, TokenLayout(), 1e-3, torch.rand(1, 2, 20_000, generator=generator())) == 0).all()


def test_measures_that_make_no_expert_are_refused():
    with pytest.raises(ValueError, match=r"refine_layers is 6, expected 0 .* or fewer than the 6 layers"):
        replace(small_config(WORDS), refine_layers=6)
    with pytest.raises(ValueError, match="table_stride is 0, expected at least 1"):
        replace(small_config(WORDS), table_stride=0)
    with pytest.raises(ValueError, match="no refinement expert"):
        tiny_net(layout=POSES).refine(torch.zeros(1, 1, 24, dtype=torch.int64), ())


def test_weights_keep_the_expert(tmp_path):
    net = refined(table_stride=3, words=("<pad>", "<unk>"))
    digest = checkpoint.save(net, tmp_path / "weights.safetensors", {})
    network = checkpoint.load(tmp_path / "weights.safetensors", digest)
    assert network.config == net.config
    assert "refine" in checkpoint.weight_capabilities(network.config)


# --- another layout --------------------------------------------------------------------------------------------------


def test_a_network_of_finer_tokens_begins_where_the_coarse_one_ended(tmp_path):
    coarse = tiny_net(layout=xy_layout(157, 0.5, (-19.0, 11.0), (-10.0, 10.0)), words=("<pad>", "<unk>"))
    checkpoint.save(coarse, tmp_path / "weights.safetensors", {}, torch.float32)
    fine_layout = TokenLayout(8, (Axis("x", 0.1, 781, -19.0, 11.0), Axis("y", 0.1, 781, -10.0, 10.0)), ())
    fine = tiny_net(1, layout=fine_layout, table_stride=5, refine_layers=1, words=("<pad>", "<unk>"))
    losses = Losses(fine, LossConfig(aux_perception=0.0), generator())
    assert train_state.load_pretrained(tmp_path, losses, copy.deepcopy(fine)) == []
    inputs = tiny_inputs(coarse)
    inputs = inputs._replace(route=torch.full_like(inputs.route, coarse.config.layout.mask_id))
    here = inputs._replace(route=torch.full_like(inputs.route, fine.config.layout.mask_id))
    with torch.no_grad():
        theirs = coarse.packed_logits(inputs, coarse.all_masked(2, torch.device("cpu")))
        ours = fine.packed_logits(here, fine.all_masked(2, torch.device("cpu")))
        past = rollout.prefill(fine, here)
        actions = random_actions(fine, masked=0.0)
        logits = fine.refine(actions, past)
        keep = fine.refiner.keep_logits(actions, logits.shape[-1])
        torch.testing.assert_close(logits - keep, fine.decode(actions, past), atol=1e-5, rtol=1e-5)
    for metres in (-4.0, 0.0, 3.5):
        at, of = round(metres / 0.5) + 78, round(metres / 0.1) + 390
        torch.testing.assert_close(ours[..., ::2, of], theirs[..., ::2, at], atol=1e-4, rtol=1e-4)


def test_what_has_no_counterpart_keeps_its_random_start():
    source, target = small_config(WORDS), drivefine_small_config(WORDS)
    assert adapt("heading_head.weight", torch.zeros(5, 5), source, target) is None
    slots = adapt("slot", torch.arange(16.0)[:, None], source, target)
    assert slots[:6, 0].tolist() == [0, 1, 1, 2, 3, 3]  # a heading begins as the y of its waypoint


# --- masks -----------------------------------------------------------------------------------------------------------


def test_complementary_masks_hide_every_token_once():
    clean = np.tile(np.arange(24), (300, 1))
    complementary = augment.complementary_actions(clean, 4, DRIVEFINE, np.random.default_rng(0))
    hidden = complementary == DRIVEFINE.mask_id
    assert (hidden[:, 0] ^ hidden[:, 1]).all()
    assert (hidden[:, 2] ^ hidden[:, 3]).all()
    assert np.where(hidden, clean[:, None], complementary).tolist() == np.tile(clean[:, None], (1, 4, 1)).tolist()
    shares = hidden[:, 0].mean(-1)
    assert 0.15 < (shares == 1.0).mean() < 0.35  # all masked is where drafting begins
    with pytest.raises(ValueError, match="expected an even number"):
        augment.complementary_actions(clean, 3, DRIVEFINE, np.random.default_rng(0))
    with pytest.raises(ConfigError, match=r"masked_actions is 3, but data\.masking complementary takes pairs"):
        settings.TrainConfig(data=settings.DataConfig(masked_actions=3, masking="complementary"))


# --- training --------------------------------------------------------------------------------------------------------


def expert_of_two_scenes(net, scores, steps=80, critique=None):
    """Losses and metrics before and after training the expert on three plans of each of two scenes, of which the first
    is the draft, with scores (2, 3); and the plans that it makes."""
    draft = random_actions(net, masked=0.0)[:, :1]
    plans = torch.cat([draft, draft + 1, draft - 1], 1).clamp(0, net.config.layout.bins - 1)
    channels = net.config.critique
    critique = torch.zeros(2, net.config.layout.points, channels) if critique is None else critique
    candidates = CandidateBatch(net.config.clamp_to_range(plans), torch.tensor(scores), critique)
    losses = RefineLosses(net, RefineLossConfig())
    optimizer = torch.optim.Adam([each for each in net.parameters() if each.requires_grad], lr=3e-3)
    inputs = tiny_inputs(net) if net.config.scene is None else scene_inputs(net)
    batch = type("Batch", (), {"has_cache": False, "inputs": inputs})
    history = []
    for _ in range(steps):
        result = losses(batch, candidates)
        history.append({name: float(each.detach()) for name, each in result.items()})
        optimizer.zero_grad()
        result["loss"].backward()
        optimizer.step()
    with torch.no_grad():
        keys_values = net.encode(net.prompt(inputs))
        written = rollout.refine(net, candidates.plans[:, :1], keys_values, critique[:, None]).actions[:, 0]
    return history, candidates.plans, written


def test_the_expert_moves_to_the_better_plan_and_leaves_the_draft_where_it_is_best():
    history, plans, written = expert_of_two_scenes(refined(), [[0.3, 1.0, 0.2], [1.0, 0.4, 0.4]])
    assert history[-1]["loss"] < 0.1 < history[0]["loss"]
    assert history[-1]["reward_chosen"] == 100.0
    assert history[0]["reward_draft"] == pytest.approx(65.0)
    assert history[0]["best"] == 100.0
    assert (written[0] - plans[0, 1]).abs().float().mean() < (written[0] - plans[0, 0]).abs().float().mean()
    assert (written[1] - plans[1, 0]).abs().float().mean() < 1.0  # bins


def test_the_expert_learns_what_only_the_critique_tells():
    """The same draft in two scenes of which the network sees no difference: the critique says which plan is better."""
    net = critical_net()
    critique = torch.ones(2, ROUTE_FRAME.points, CRITIQUE)
    critique[1, :, 1:] = -1.0
    same = torch.Generator().manual_seed(0)
    net.initialise(same)
    with torch.no_grad():
        torch.nn.init.normal_(net.critique_out.weight, std=0.3, generator=same)
    history, _, _ = expert_of_two_scenes(net, [[0.3, 0.1, 1.0], [0.3, 1.0, 0.1]], 120, critique)
    assert history[-1]["edit"] < 0.1


YAML = """
data: {batch: 4}
device: {accelerator: cpu, threads: 1}
checkpointing: {checkpoint_minutes: 100.0, validations: 0, log_steps: 1}
refine: {variants: 4}
"""


def refine_run(sets, out, init, *more):
    args = command(sets, out, "--init-from", str(init), "--workers", "1", *more, yaml=YAML, kind="refine")
    return run(args, errors=Console(stderr=True, width=400))


def trained_parameters(before, after):
    """Names of the parameters that two networks share and that differ."""
    start, end = dict(before.named_parameters()), dict(after.named_parameters())
    return {name for name in end.keys() & start.keys() if not end[name].equal(start[name])}


def test_a_run_trains_the_expert_and_nothing_else_on_plans_that_are_scored_once(sets, init, tmp_path, monkeypatch):
    steps = ("--steps", "3")
    assert refine_run(sets, tmp_path / "one", init, *steps) == 0
    one = train_state.load_network(tmp_path / "one")
    assert trained_parameters(train_state.load_network(init), one) == set()
    assert one.config.refine_layers == 1
    assert one.config.critique == CRITIQUE_CHANNELS  # a network with goals
    with (tmp_path / "one" / "log.csv").open() as file:
        *_, row = csv.DictReader(file)
    assert 0.0 <= float(row["reward_draft"]) <= float(row["best"]) <= 100.0
    monkeypatch.setattr(RewardPool, "score", lambda *_: pytest.fail("scored again"))
    assert refine_run(sets, tmp_path / "again", init, *steps) == 0
    again = train_state.load_network(tmp_path / "again")
    assert trained_parameters(one, again) == set()
    monkeypatch.undo()
    assert refine_run(sets, tmp_path / "more", tmp_path / "one", *steps) == 0  # around the plans of that expert
    more = train_state.load_network(tmp_path / "more")  # the draft's weights and those of the expert
    assert checkpoint.base_of(tmp_path / "more" / train_state.WEIGHTS).samefile(init / train_state.WEIGHTS)
    changed = trained_parameters(one, more)
    assert changed
    assert all(name.startswith(("refiner.", "critique_")) for name in changed)


def test_an_expert_whose_network_is_gone_or_changed_is_one_sentence(sets, init, tmp_path):
    shutil.copytree(init, tmp_path / "draft")
    assert refine_run(sets, tmp_path / "edits", tmp_path / "draft", "--steps", "1") == 0
    weights = tmp_path / "edits" / train_state.WEIGHTS
    assert weights.stat().st_size < (tmp_path / "draft" / train_state.WEIGHTS).stat().st_size
    train_state.save_weights(with_words(seed=1), tmp_path / "draft" / train_state.WEIGHTS, {})
    with pytest.raises(CheckpointError, match=r"draft/weights.safetensors has SHA-256 .*, expected"):
        train_state.load_network(tmp_path / "edits")
    (tmp_path / "draft" / train_state.WEIGHTS).unlink()
    with pytest.raises(CheckpointError, match=r"draft/weights.safetensors cannot be read"):
        train_state.load_network(tmp_path / "edits")


def test_candidates_are_the_draft_of_the_car_its_correction_and_variants_with_their_scores(sets, init, tmp_path):
    base = RefineTrainConfig()
    config = replace(base, data=replace(base.data, batch=4, flip_prob=0.5))
    expert = token_runs._refined_network(init, network(), config)
    scenes = prepare(sets[0])
    job = TokenJob(config, expert, scenes, None, tmp_path, {}, init_from=init)
    with RewardPool(sets[0], scenes, PlanScorer(expert.layout), 1) as pool:
        batch = next(job.batches(0, 0, 1))
        net = train_state.initial_network(job.network, init, 0)
        candidates = candidates_of(batch, net, pool, 4, np.random.default_rng(0))
        again = pool.score(*batch.scenes, candidates.plans.astype(np.int64))[..., 0]
    decoding = replace(rollout.default_decoding(net.config.layout), edit_rounds=0)
    greedy = rollout.full_step(net, batch.inputs, decoding).rounds[decoding.draft_rounds - 1]
    np.testing.assert_array_equal(candidates.plans[:, 0], greedy.actions[:, 0])
    assert candidates.plans.shape == (4, 2 + 2 * 4 + len(VARIANT_SIZES), net.config.layout.length)
    np.testing.assert_allclose(candidates.score, again, atol=1e-6)
    assert candidates.critique.shape == (4, net.config.layout.points, CRITIQUE_CHANNELS)
    assert candidates.score.std() > 0.0


def test_losses_of_the_generator_and_prompts_without_a_cache_are_refused():
    with pytest.raises(ConfigError, match=r"loss\.sap must be 0 in train refine"):
        RefineTrainConfig(loss=LossConfig(goal=0.0, field=0.0, aux_perception=0.0))
    with pytest.raises(ConfigError, match=r"data\.prompt_cache must be true in train refine"):
        RefineTrainConfig(data=settings.DataConfig(masked_actions=1, perturbed_actions=0, draft_fraction=0.0))


@pytest.mark.parametrize(
    ("option", "value", "sentence"),
    [
        ("--teacher", "models/reflectdrive2_small", "learns from scores, not from the plans of a --teacher"),
        ("--setting", "refine.layers=9", r"refine\.layers is 9, but the network has \d layers: set at most"),
    ],
)
def test_options_that_train_nothing_are_refused(sets, init, tmp_path, option, value, sentence):
    with pytest.raises(ConfigError, match=sentence):
        refine_run(sets, tmp_path / "run", init, option, value)
