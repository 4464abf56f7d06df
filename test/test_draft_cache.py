"""Cached drafts of a fixed generator: whose they are, what they score, and that they are made once."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from rich.console import Console
from tiny_rl import network_to_begin_with, with_words  # noqa: F401 (a fixture)
from tiny_training import command, network, two_sets  # noqa: F401 (two_sets is a fixture)

from reflectdrive_ros.cli import train as train_run
from reflectdrive_ros.training import draft_cache, refine, token_runs, train_state
from reflectdrive_ros.training.rewards import RewardPool

YAML = """
data: {batch: 4, masked_actions: 1, perturbed_actions: 0, draft_fraction: 0.0, flip_prob: 0.5, prompt_cache: true}
optimizer: {vision_pretrain_fraction: 0.0}
refine: {drafts: 3, offline: 1.0, keep: 0.1, plan_value: 0.1}
device: {accelerator: cpu, threads: 1}
checkpointing: {checkpoint_minutes: 100.0, validations: 0, log_steps: 1}
"""


def refine_run(sets, out, init, *more, yaml=YAML):
    args = command(sets, out, "--init-from", str(init), "--steps", "4", *more, yaml=yaml, kind="refine")
    errors = Console(stderr=True, width=400)
    return train_run.run_with_network(args, train_run._config(args), network(), Console(quiet=True), errors)


@pytest.fixture
def runs_seen(monkeypatch):
    """(job, cache) of each run that is started."""
    seen, plain = [], refine.train

    def train(job, *given, cache=None, **more):
        seen.append((job, cache))
        return plain(job, *given, cache=cache, **more)

    monkeypatch.setattr(token_runs.refine, "train", train)
    return seen


def test_drafts_are_those_of_the_generator_and_their_scores_those_of_the_reward(sets, init, tmp_path, runs_seen):
    assert refine_run(sets, tmp_path / "run", init) == 0
    ((job, cache),) = runs_seen
    count = len(job.scenes)
    assert cache.plans.shape == (count, 3, job.network.layout.length)
    assert cache.reward.shape == (count, 3)
    batch = next(job.batches(0, 0, 1))
    net, rows = train_state.load_network(init), batch.rows.numpy()
    known = refine.prompt_keys_values(net, batch, True)
    greedy = refine.sample_drafts(net, batch.inputs, replace(job.config.refine, drafts=1), torch.Generator(), known)
    np.testing.assert_array_equal(cache.plans[rows, :1], greedy.plans)
    with token_runs._reward_pool(argparse_sources(sets), job.config, job) as pool:
        plans = np.concatenate([cache.plans[rows].astype(np.int64), batch.clean[:, None].numpy()], 1)
        scores = pool.score(*batch.scenes, plans)[..., 0]
    np.testing.assert_allclose(np.column_stack([cache.reward[rows], cache.target_reward[rows]]), scores, atol=1e-6)
    assert scores.std() > 0.0
    changed = train_state.load_network(tmp_path / "run")
    kept = dict(net.named_parameters())
    for name, parameter in changed.named_parameters():
        if not name.startswith(draft_cache.EXPERT_PARAMETERS):
            torch.testing.assert_close(parameter, kept[name], rtol=0.0, atol=0.0)


def argparse_sources(sets):
    return type("Sources", (), {"sets": (str(sets[0]),), "workers": 1})


def test_drafts_are_made_once_and_scored_where_a_loss_needs_it(sets, init, tmp_path, runs_seen, monkeypatch):
    assert refine_run(sets, tmp_path / "one", init) == 0
    drafted, plain = [], refine.sample_drafts
    monkeypatch.setattr(refine, "sample_drafts", lambda *given: drafted.append(1) or plain(*given))
    monkeypatch.setattr(RewardPool, "score", lambda *_: pytest.fail("scored again"))
    assert refine_run(sets, tmp_path / "two", init) == 0
    assert refine_run(sets, tmp_path / "on", tmp_path / "one") == 0  # the expert of a run trains on
    assert not drafted
    first = runs_seen[0][1]
    for _, cache in runs_seen[1:]:
        np.testing.assert_array_equal(cache.plans, first.plans)
    assert refine_run(sets, tmp_path / "more", init, yaml=YAML.replace("drafts: 3", "drafts: 2").replace(
        "offline: 1.0, keep: 0.1, plan_value: 0.1", "supervised: 1.0"
    )) == 0  # fmt: skip
    assert drafted
    assert not runs_seen[-1][1].reward.size  # no loss needs a score
