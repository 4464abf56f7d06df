"""DriveFine's network: interpolated tables, the refinement expert and its training, weights of another layout."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from lightning_fabric import Fabric
from tiny_net import POSES, random_actions, tiny_inputs, tiny_net, xy_layout
from tiny_training import NEVER, Silent, network, scenes_ready, two_sets  # noqa: F401

from reflectdrive_ros.core.config import ConfigError
from reflectdrive_ros.core.tokens import DRIVEFINE, Axis, TokenLayout
from reflectdrive_ros.features.images import WORDS
from reflectdrive_ros.model import checkpoint
from reflectdrive_ros.model.token import ops, rollout
from reflectdrive_ros.model.token.axis import SplineHead, make_embedding, make_head, resample_rows
from reflectdrive_ros.model.token.moe import KEEP_BINS, KEEP_LOGIT, RefineConfig
from reflectdrive_ros.model.token.net import TokenNet, drivefine_small_config, small_config
from reflectdrive_ros.model.token.rollout import Decoding
from reflectdrive_ros.model.token.transfer import adapt
from reflectdrive_ros.training import augment, refine, settings, train_state
from reflectdrive_ros.training.draft_cache import EXPERT_PARAMETERS
from reflectdrive_ros.training.losses import Losses
from reflectdrive_ros.training.refine import RefineLosses, correct, offline_loss, online_loss, sample_drafts
from reflectdrive_ros.training.rewards import PlanScorer, RewardPool
from reflectdrive_ros.training.settings import LossConfig, RefineTrainConfig
from reflectdrive_ros.training.settings import RefineLossConfig as Asked
from reflectdrive_ros.training.token_job import TokenJob

EXPERTS = [RefineConfig(1), RefineConfig(1, own_norm=False, own_heads=False), RefineConfig(1, own_prompt=True)]


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def refined(expert=EXPERTS[0], **changes):
    return tiny_net(layout=POSES, refine=expert, **changes)


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
    config = replace(drivefine_small_config(WORDS), refine=RefineConfig(1, own_heads=False), plan_value=True)
    with torch.device("meta"):
        net = TokenNet(config)
    assert 2 * sum(each.numel() for each in net.parameters()) < 15.9e6
    assert config.layout is DRIVEFINE
    assert [axis.bins for axis in DRIVEFINE.axes] == [4001, 4001, 1801]


# --- the expert ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("expert", EXPERTS, ids=["own", "shared", "prompt"])
def test_plugging_the_expert_on_changes_nothing_and_it_begins_with_keeping_the_plan(expert):
    plain, net = tiny_net(layout=POSES), refined(expert)
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


@pytest.mark.parametrize("expert", EXPERTS, ids=["own", "shared", "prompt"])
def test_no_gradient_of_the_expert_reaches_the_generator(expert):
    net = refined(expert)
    past = net.encode(net.prompt(tiny_inputs(net)))
    net.refine(random_actions(net, masked=0.0), past).square().mean().backward()
    reached = {name for name, each in net.named_parameters() if each.grad is not None and bool((each.grad != 0).any())}
    shared = {"norm.weight"} if not expert.own_norm else set()
    shared |= {f"{axis}_head.weight" for axis in ("x", "y", "heading") if not expert.own_heads}
    assert {name for name in reached if not name.startswith("refiner.")} <= shared
    assert any(name.startswith("refiner.layers.0.self_attn") for name in reached)


def test_a_whole_step_ends_with_the_expert():
    net = refined()
    decoding = Decoding(draft_rounds=4, edit_rounds=0, schedule="cosine")
    with torch.no_grad():
        torch.nn.init.normal_(net.refiner.x_head.weight, std=3.0, generator=generator())
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
    with pytest.raises(ValueError, match=r"refine.layers is 6, expected 0 .* or fewer than the 6 layers"):
        replace(small_config(WORDS), refine=RefineConfig(6))
    with pytest.raises(ValueError, match="table_stride is 0, expected at least 1"):
        replace(small_config(WORDS), table_stride=0)
    with pytest.raises(ValueError, match="no refinement expert"):
        tiny_net(layout=POSES).refine(torch.zeros(1, 1, 24, dtype=torch.int64), ())


def test_weights_keep_the_expert_and_earlier_ones_have_none(tmp_path):
    net = refined(EXPERTS[1], table_stride=3, words=("<pad>", "<unk>"))
    digest = checkpoint.save(net, tmp_path / "weights.safetensors", {})
    network = checkpoint.load(tmp_path / "weights.safetensors", digest)
    assert network.config == net.config
    assert "refine" in checkpoint.weight_capabilities(network.config)
    shipped = checkpoint.config_of("models/reflectdrive2_small/weights.safetensors")
    assert (shipped.refine.layers, shipped.table_stride) == (0, 1)


# --- another layout --------------------------------------------------------------------------------------------------


def test_a_network_of_finer_tokens_begins_where_the_coarse_one_ended(tmp_path):
    coarse = tiny_net(layout=xy_layout(157, 0.5, (-19.0, 11.0), (-10.0, 10.0)), words=("<pad>", "<unk>"))
    checkpoint.save(coarse, tmp_path / "weights.safetensors", {}, torch.float32)
    fine_layout = TokenLayout(8, (Axis("x", 0.1, 781, -19.0, 11.0), Axis("y", 0.1, 781, -10.0, 10.0)), ())
    fine = tiny_net(1, layout=fine_layout, table_stride=5, refine=RefineConfig(1), words=("<pad>", "<unk>"))
    losses = Losses(fine, LossConfig(aux_perception=0.0), generator())
    missing = train_state.load_pretrained(tmp_path, losses, tiny_net(1, **vars_of(fine)))
    assert missing == []
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


def vars_of(net):
    return {"layout": net.config.layout, "table_stride": 5, "refine": RefineConfig(1), "words": ("<pad>", "<unk>")}


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


def test_the_offline_loss_raises_better_drafts_only():
    logits = torch.zeros(1, 3, 2, 5, requires_grad=True)
    plans = torch.tensor([[[0, 1], [2, 3], [4, 4]]])
    reward = torch.tensor([[1.0, 0.5, 0.5]])
    offline_loss(logits.log_softmax(-1), reward, plans, reward).backward()
    gradient = logits.grad[0]
    assert (gradient[0] == 0.0).all()  # nothing is better than the best
    for anchor in (1, 2):
        assert gradient[anchor, 0, 0] < 0.0  # towards the tokens of the best
        assert gradient[anchor, 1, 1] < 0.0
        assert gradient[anchor, 0, 2] > 0.0


def test_a_target_that_is_better_than_all_drafts_corrects_them_all():
    logits = torch.zeros(1, 2, 1, 5, requires_grad=True)
    plans, target = torch.tensor([[[0], [1]]]), torch.tensor([[[3]]])
    reward, best = torch.tensor([[0.2, 0.6]]), torch.tensor([[1.0]])
    better = torch.cat([plans, target], 1), torch.cat([reward, best], 1)
    offline_loss(logits.log_softmax(-1), reward, *better).backward()
    downhill = -logits.grad[0, :, 0]
    assert (downhill.argmax(-1) == 3).all()
    assert downhill[0, 3] > downhill[1, 3]  # the worse draft has more to gain
    assert downhill[0, 1] > 0.0 > downhill[1, 0]  # the better draft corrects the worse one, and not the other way


def test_the_online_loss_is_the_policy_gradient_and_is_clipped():
    log_probs = torch.tensor([[[[-1.0, -2.0]]]], requires_grad=True)
    online_loss(log_probs, log_probs.detach(), torch.tensor([[[0.5]]])).backward()
    torch.testing.assert_close(log_probs.grad, torch.full((1, 1, 1, 2), -0.25))
    distant = (log_probs.detach() + 1.0).requires_grad_()
    online_loss(distant, log_probs.detach(), torch.tensor([[[0.5]]])).backward()
    assert (distant.grad == 0.0).all()


def drafted(net, settings, source):
    """Drafts of two scenes with their corrections."""
    drafts = sample_drafts(net, tiny_inputs(net), settings, source)
    correct(net, drafts, settings, source)
    return drafts


def test_the_first_draft_is_greedy_and_the_corrections_are_those_of_the_expert():
    net = refined()
    drafts = drafted(net, Asked(drafts=3, samples=2, online=1.0), generator())
    rounds = Decoding(draft_rounds=4, edit_rounds=0, schedule="cosine")
    with torch.no_grad():
        greedy = rollout.full_step(net, tiny_inputs(net), rounds)
    assert torch.equal(drafts.plans[:, :1], greedy.rounds[-2].actions)
    assert torch.equal(drafts.refined[:, :1], greedy.actions)
    assert drafts.samples.shape == (2, 3, 2, 24)
    assert not torch.equal(drafts.plans[:, 1], drafts.plans[:, 2])


def trained(scenes, out, sets, refine_config, updates=None):
    base = RefineTrainConfig()
    config = replace(
        base,
        data=replace(base.data, batch=4),
        refine=refine_config,
        schedule=settings.ScheduleConfig(steps=6),
        checkpointing=settings.CheckpointingConfig(**NEVER),
    )
    net = network(layout=replace(TokenLayout(), goal=()), refine=RefineConfig(1, own_heads=False), plan_value=True)
    out.mkdir()
    job = TokenJob(config, net, scenes, None, out, {"train": "sets"})
    reporter, fabric = Silent(), Fabric(accelerator="cpu", devices=1)
    with RewardPool(sets[0], scenes, PlanScorer(net.layout), 1) as pool:
        refine.train(job, fabric, reporter, pool if refine_config.needs_rewards else None, lambda: False)
    return net, reporter


@pytest.mark.parametrize(
    "settings",
    [Asked(drafts=2), Asked(drafts=3, samples=2, supervised=0.1, offline=1.0, online=1.0, plan_value=0.5)],
    ids=["supervised", "reward"],
)
def test_a_run_trains_the_expert_and_nothing_else(sets, scenes, tmp_path, settings):
    net, reporter = trained(scenes, tmp_path / "run", sets, settings)
    initial = TokenNet(net)
    initial.initialise(generator(0))
    stored, _ = checkpoint.read_tensors(tmp_path / "run" / train_state.FILE)
    changed = {
        name
        for name, each in initial.named_parameters()
        if not torch.equal(stored[f"learning.net.{name}"], each.detach())
    }
    assert changed
    assert {name for name in changed if not name.startswith(EXPERT_PARAMETERS)} == set()
    assert any(name.startswith("plan_value_") for name in changed) == (settings.plan_value > 0.0)
    assert np.isnan(reporter.rows[0]["best"]) == (not settings.needs_rewards)


def test_a_reward_toy_is_learned_by_the_expert(monkeypatch):
    """The reward is 1 for token 60 at position 3: after training the expert writes it into every draft."""
    monkeypatch.setattr(refine, "TEMPERATURE", 1.0)
    monkeypatch.setattr(refine, "DRAFT_ROUNDS", 1)
    net = refined()
    config = Asked(drafts=4, samples=8, supervised=0.0, online=1.0)
    losses = RefineLosses(net, config)
    optimizer = torch.optim.Adam([each for each in net.parameters() if each.requires_grad], lr=0.05)
    batch = type("Batch", (), {"clean": torch.full((2, 24), 50)})
    position, token = 3, 60
    for step in range(120):
        drafts = drafted(net, config, generator(step))
        drafts.samples[:, :, 0, position] = token  # one lucky draw per draft, so that there is something to reinforce
        drafts.reward = (drafts.plans[..., position] == token).float()
        drafts.sample_reward = (drafts.samples[..., position] == token).float()
        optimizer.zero_grad()
        losses(batch, drafts)["loss"].backward()
        optimizer.step()
    assert (drafted(net, config, generator(99)).refined[..., position] == token).all()


def test_the_sampler_of_drafts_depends_on_its_seed_only():
    net, settings = refined(), Asked(drafts=3, online=1.0, samples=2)
    one, two = (drafted(net, settings, generator(5)) for _ in range(2))
    assert torch.equal(one.plans, two.plans)
    assert torch.equal(one.samples, two.samples)
    with torch.no_grad():
        cold, _ = rollout.refine(net, one.plans, one.keys_values)
    assert torch.equal(cold, one.refined)


@pytest.mark.parametrize(
    ("refine_settings", "sentence"),
    [
        ({"supervised": 0.0}, "are all 0: set one above 0"),
        ({"offline": 1.0, "drafts": 1}, "refine.drafts is 1: refine.offline compares 2 drafts or more"),
    ],
)
def test_settings_that_train_nothing_are_refused(refine_settings, sentence):
    with pytest.raises(ConfigError, match=sentence):
        RefineTrainConfig(refine=Asked(**refine_settings))


def test_losses_of_the_generator_are_refused():
    with pytest.raises(ConfigError, match=r"loss\.sap must be 0 in train refine"):
        RefineTrainConfig(loss=LossConfig(goal=0.0, field=0.0, aux_perception=0.0))
