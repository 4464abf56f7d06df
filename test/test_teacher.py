"""Plans of a teacher as targets: whose plans they are, in which frame, and the command."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from rich.console import Console
from tiny_net import POSES, tiny_net
from tiny_scene import critical_net, scene_inputs
from tiny_training import a_batch, command, network_to_begin_with, run, two_sets, with_words  # noqa: F401 (fixtures)

from reflectdrive_ros.core.config import ConfigError
from reflectdrive_ros.core.tokens import ROUTE_FRAME, TokenLayout
from reflectdrive_ros.model.token import rollout
from reflectdrive_ros.model.token.ops import EditRules
from reflectdrive_ros.training import teacher, train_state
from reflectdrive_ros.training.token_runs import TokenJob
from reflectdrive_ros.training.train_state import StateError

LAYOUT = TokenLayout()


def test_the_targets_are_the_plans_that_the_teacher_drives():
    net = tiny_net()
    batch = a_batch(net)
    batch = replace(batch, route=torch.full_like(batch.route, LAYOUT.mask_id))
    decoding = rollout.default_decoding(LAYOUT)
    plans = rollout.full_step(net, batch.inputs, decoding).rounds[decoding.draft_rounds - 1].actions[:, 0]
    motion = batch.ego.numpy() * np.array(net.config.ego_scale)
    unknown = np.full((2, 2), np.nan)
    expected = [
        teacher.sent_poses(points, each, unknown, LAYOUT.codebook.bin_m)
        for points, each in zip(LAYOUT.decode(plans.numpy()), motion, strict=True)
    ]
    np.testing.assert_array_equal(teacher.plans_of(net, batch, LAYOUT), np.stack(expected))


def test_targets_on_the_route_are_the_waypoints_that_the_expert_of_the_teacher_corrected():
    net = critical_net()
    inputs = scene_inputs(net)
    batch = replace(a_batch(net), scene=inputs.scene, ego=inputs.ego, route=inputs.route, text=inputs.text)
    past = net.encode(net.prompt(batch.inputs))
    goal = rollout.prefill_goal(net, batch.inputs, rollout.Decoding().goals).actions[:, :1]
    rounds = rollout.default_decoding(ROUTE_FRAME).rounds(ROUTE_FRAME)[:3]
    draft = rollout.rollout(lambda ids: net.decode(ids, past), goal, ROUTE_FRAME, rounds, EditRules())[-1].actions
    corrected = ROUTE_FRAME.decode(rollout.refine(net, draft, past).actions[:, 0].numpy())
    targets = teacher.plans_of(net, batch, ROUTE_FRAME)
    np.testing.assert_allclose(targets[..., :2], corrected, atol=1e-6)
    assert not targets[..., 2].any()


def test_a_route_is_read_in_the_teachers_bins():
    codebook = POSES.codebook
    route = np.array([[[10.0, 2.0], [20.0, -4.0]]])
    ids = codebook.to_ids(route)
    ids[0, 1] = codebook.mask_id
    points = teacher.decoded_routes(ids, POSES)
    np.testing.assert_allclose(points[0, 0], route[0, 0], atol=0.5 * codebook.bin_m)
    assert np.isnan(points[0, 1]).all()


def test_a_plan_is_smoothed_within_its_bins_and_points_along_its_path():
    bend = np.stack([8.0 * np.arange(1, 9) * 0.5, 0.02 * (8.0 * np.arange(1, 9) * 0.5) ** 2], -1)
    rounded = LAYOUT.decode(LAYOUT.encode(bend[None]))[0]
    poses = teacher.sent_poses(rounded, (8.0, 0.0, 0.0), np.full((3, 2), np.nan), 0.3)
    assert np.abs(poses[:, :2] - rounded).max() <= 0.15 + 1e-6
    np.testing.assert_allclose(poses[:, 2], np.arctan(0.04 * bend[:, 0]), atol=0.12)


# --- runs ------------------------------------------------------------------------------------------------------------

YAML = """
data: {batch: 4, masked_actions: 2, perturbed_actions: 0, draft_fraction: 0.0, flip_prob: 0.5, prompt_cache: true}
loss: {aux_perception: 0.0}
optimizer: {trained: actions, vision_pretrain_fraction: 0.0}
device: {accelerator: cpu, threads: 1}
checkpointing: {checkpoint_minutes: 100.0, validations: 0, log_steps: 1}
"""


def sft(sets, out, init, *more, yaml=YAML):
    args = command(sets, out, "--init-from", str(init), *more, yaml=yaml)
    return run(args, errors=Console(stderr=True, width=400))


def test_a_student_learns_the_plans_of_its_teacher_in_the_scenes_that_it_sees(sets, init, tmp_path, monkeypatch):
    jobs = []
    plain = TokenJob.batches
    monkeypatch.setattr(TokenJob, "batches", lambda job, *arguments: jobs.append(job) or plain(job, *arguments))
    assert sft(sets, tmp_path / "run", init, "--teacher", str(init), "--steps", "2") == 0
    (job,) = jobs
    batch = next(job.batches(0, 0, 1))
    layout, rows = job.network.layout, batch.rows.numpy()
    np.testing.assert_array_equal(batch.clean, layout.clip(layout.encode(job.targets[rows][..., :2])))
    mirrored = job.prompts.mirrored
    assert mirrored.any()
    assert not mirrored.all()
    card = train_state.card_of(tmp_path / "run")
    assert card["data"]["teacher"] == {"folder": init.name, "sha256": train_state.card_of(init)["sha256"]}


def test_a_run_keeps_its_teacher(sets, init, tmp_path):
    out = tmp_path / "run"
    assert sft(sets, out, init, "--teacher", str(init), "--steps", "1") == 0
    with pytest.raises(StateError, match="or of another teacher: give another --out"):
        sft(sets, out, init, "--steps", "1")


def test_what_does_not_fit_is_one_sentence(sets, init, tmp_path):
    yaml = YAML.replace("prompt_cache: true", "prompt_cache: false")
    with pytest.raises(ConfigError, match=r"--teacher needs data\.prompt_cache: add --setting data\.prompt_cache=true"):
        sft(sets, tmp_path / "run", init, "--teacher", str(init), yaml=yaml)
    other = tmp_path / "other"
    other.mkdir()
    train_state.save_weights(with_words(route_at_m=(4.0, 8.0)), other / train_state.WEIGHTS, {})
    with pytest.raises(StateError, match=r"otherwise than the student \(route_at_m differ\)"):
        sft(sets, tmp_path / "run", init, "--teacher", str(other))
