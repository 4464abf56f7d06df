"""Training of the denoiser: samples of scenes, dropped conditions, a run that resumes, and the command."""

import csv
import json
from dataclasses import replace
from pathlib import Path

import hand_scenes
import numpy as np
import pytest
import torch
from denoiser_training import SPEC, TINY, config, train
from tiny_training import Silent, make_set

from reflectdrive_ros.__main__ import main
from reflectdrive_ros.data.shards import SetError
from reflectdrive_ros.model.denoiser import checkpoint
from reflectdrive_ros.planning.postprocess.waypoints import interpolate
from reflectdrive_ros.training import diffusion, settings, train_state, vector_data
from reflectdrive_ros.training.diffusion import DiffusionJob, waypoint_steps
from reflectdrive_ros.training.diffusion_losses import DiffusionLosses, VectorBatch
from reflectdrive_ros.training.run_log import LOG
from reflectdrive_ros.training.settings import DiffusionDataConfig, DiffusionLossConfig, OptimizerConfig
from reflectdrive_ros.training.vector_data import build_vector_set, sample_shapes, scene_sample

SCENES = 12


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_set(tmp_path_factory.mktemp("sets") / "train", "train", SCENES, per_shard=6)


@pytest.fixture(scope="module")
def scenes(folder):
    return build_vector_set(folder, SPEC, 1, pytest.fail, lambda done, of: None)


def with_lanes(arrays):
    """Samples of hand-written scenes, whose roads have no lanes: the lanes of their route are lanes of the map too."""
    lanes = arrays["lanes"].copy()
    lanes[:, : SPEC.route_lanes] = arrays["route_lanes"]
    assert (lanes != 0.0).any(axis=(1, 2, 3)).all()
    return {**arrays, "lanes": lanes}


def job(scenes, out, run_config=None, validation=None):
    return DiffusionJob(run_config or config(), TINY, scenes, validation, Path(out), {"train": [{"folder": "train"}]})


# --- samples ---------------------------------------------------------------------------------------------------------


def test_a_stored_sample_is_that_of_its_scene(folder, scenes):
    assert len(scenes) == SCENES
    stored = scenes.arrays(np.arange(SCENES))
    read_scenes = list(vector_data.shards.read(folder, images=False, on_damage=pytest.fail))
    for row, scene in enumerate(read_scenes):
        for name, values in scene_sample(scene, SPEC).items():
            np.testing.assert_allclose(stored[name][row], values, rtol=1e-6, atol=1e-6, err_msg=name)
    assert {name: values.shape[1:] for name, values in stored.items()} == sample_shapes(SPEC)


def test_the_ego_future_passes_the_expert_and_neighbours_are_the_nearest_with_their_logged_future():
    scene = hand_scenes.scene(agents=6)
    sample = scene_sample(scene, SPEC)
    reached = sample["ego_future"][waypoint_steps(SPEC)]
    expected = interpolate(scene.expert[None], scene.ego.speed_mps)[0, waypoint_steps(SPEC)]
    np.testing.assert_allclose(reached, expected, atol=1e-9)
    now = sample["agents"][: SPEC.predicted_agents, -1, :2]
    away = np.hypot(*now.T)
    assert (np.diff(away) >= 0.0).all()
    valid = sample["agent_valid"][:, 0] > 0
    moved = np.hypot(*(sample["agent_futures"][valid, 0, :2] - now[valid]).T)
    assert (moved < 2.0).all()  # 0.1 s later
    assert (sample["agent_futures"][sample["agent_valid"] == 0] == 0.0).all()


def test_sets_are_sampled_by_their_weights(scenes):
    spec = replace(scenes, recorded=np.ones(SCENES, bool))
    both = vector_data.merge([scenes, spec], [3.0, 1.0])
    rows = np.concatenate([job(both, "out").indices(step) for step in range(500)])
    assert (rows >= SCENES).mean() == pytest.approx(0.25, abs=0.04)
    np.testing.assert_array_equal(both.arrays(np.array([SCENES + 2]))["ego"], scenes.arrays(np.array([2]))["ego"])


def test_a_set_without_scenes_is_one_sentence(tmp_path):
    with pytest.raises(SetError, match="holds no set of scenes"):
        build_vector_set(tmp_path, SPEC, 1, pytest.fail, lambda done, of: None)


# --- the loss --------------------------------------------------------------------------------------------------------


def batch_of(scenes, dropout, samples=2):
    indices = np.arange(4)
    data_config = DiffusionDataConfig(samples=samples)
    arrays = with_lanes(scenes.arrays(indices))
    with pytest.MonkeyPatch.context() as changes:
        changes.setattr("reflectdrive_ros.training.diffusion_losses.CONDITION_DROPOUT", dropout)
        return VectorBatch.of(arrays, indices, np.zeros(4, bool), data_config, np.random.default_rng(0), slice(None))


def losses(seed=0):
    net = diffusion.DenoiserNet(TINY)
    net.initialise(torch.Generator().manual_seed(seed))
    with torch.no_grad():  # modulations and output start at 0: make every input count
        for parameter in net.parameters():
            parameter.add_(0.05 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(seed)))
    return DiffusionLosses(net, DiffusionLossConfig())


def changed(batch, name):
    """The batch with other agents, lanes or ego states."""
    values = getattr(batch, name).clone()
    values[..., 4 if name == "ego" else 0] += 3.0 * (values[..., 4 if name == "ego" else 0] != 0)
    return VectorBatch(**{**vars(batch), name: values})


@pytest.mark.parametrize("name", ["agents", "lanes", "static_objects", "ego"])
def test_a_scene_without_conditions_does_not_depend_on_them(scenes, name):
    model = losses()
    conditioned, dropped = batch_of(scenes, 0.0), batch_of(scenes, 1.0)
    if name == "static_objects":
        conditioned.static_objects[:, 0], dropped.static_objects[:, 0] = 1.0, 1.0
    assert model(dropped)["ego"] == model(changed(dropped, name))["ego"]
    assert model(conditioned)["ego"] != model(changed(conditioned, name))["ego"]


def test_the_route_is_a_condition_of_every_scene(scenes):
    model, dropped = losses(), batch_of(scenes, 1.0)
    assert model(dropped)["ego"] != model(changed(dropped, "route_lanes"))["ego"]


def test_the_loss_of_a_perfect_prediction_is_0_and_neighbours_without_a_future_do_not_count(scenes):
    model, batch = losses(), batch_of(scenes, 0.0)
    clean, valid = model.targets(batch)
    noisy_inputs = []

    def perfect(x, times, context):
        noisy_inputs.append(x)
        return torch.cat([x[..., :1, :], clean[:, None].expand_as(x[..., 1:, :])], 3)

    model.net.denoise = perfect
    values = model(batch)
    assert values["loss"] == 0.0
    assert values["ego_error_m"] == 0.0
    assert (clean[:, 1:][~valid] == 0.0).all()
    present = model.net.present_states(batch.inputs)
    assert torch.equal(noisy_inputs[0][..., 0, :], present[:, None].expand_as(noisy_inputs[0][..., 0, :]))


def test_noise_follows_the_schedule(scenes):
    model, batch = losses(), batch_of(scenes, 0.0)
    batch.times[:, 0], batch.times[:, 1] = 1e-3, 1.0
    noisy_inputs = []
    model.net.denoise = lambda x, times, context: noisy_inputs.append(x) or x
    model(batch)
    clean, _ = model.targets(batch)
    torch.testing.assert_close(noisy_inputs[0][:, 0, :, 1:], clean, rtol=0.0, atol=0.06)
    torch.testing.assert_close(noisy_inputs[0][:, 1, :, 1:], batch.noise[:, 1], rtol=0.0, atol=0.05)


# --- runs ------------------------------------------------------------------------------------------------------------


def test_a_run_learns_its_scenes(scenes, tmp_path):
    reporter = Silent()
    run_config = replace(config(steps=150, samples=4), optimizer=OptimizerConfig(
        vision_pretrain_fraction=0.0, learning_rate=5e-3, ema_decay=0.9
    ))  # fmt: skip
    train(job(scenes, tmp_path, run_config), reporter=reporter)
    ego = [row["ego"] for row in reporter.rows]
    assert np.mean(ego[-5:]) < 0.3 * ego[0]


def test_the_weights_for_driving_say_what_they_can_do(scenes, tmp_path):
    train(job(scenes, tmp_path))
    card = json.loads((tmp_path / "card.json").read_text())
    assert (card["kind"], card["capabilities"], card["dtype"]) == ("denoiser", ["guidance"], "float32")
    net = checkpoint.load(tmp_path / train_state.WEIGHTS, card["sha256"])
    assert net.config == TINY


def test_plans_of_a_batch_are_those_of_single_scenes(folder):
    validation_set = diffusion.load_validation(folder, SPEC, 3, pytest.fail)
    net = losses().net.eval()
    with torch.no_grad():
        together = diffusion.sample_plans(net, validation_set.inputs, torch.device("cpu"))
        alone = [diffusion.sample_plans(net, (each,), torch.device("cpu"))[0] for each in validation_set.inputs]
    np.testing.assert_allclose(together, np.stack(alone), atol=1e-4)


def test_the_command_trains_and_goes_on_with_one_log(folder, tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(settings.DENOISERS, "small", lambda: TINY)
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("data: {batch: 4, samples: 2}\ncheckpointing: {log_steps: 2, validation_scenes: 2}\n")
    words = ["train", "diffusion", str(recipe), "--train", str(folder), "--val", str(folder), "--out"]
    assert main([*words, str(tmp_path / "run"), "--steps", "4"]) == 0
    file = tmp_path / "run.json"
    assert main([*words, str(tmp_path / "run"), "--steps", "8", "--json", str(file)]) == 0
    numbers, card = (json.loads(each.read_text()) for each in (file, tmp_path / "run" / "card.json"))
    assert (numbers["steps"], numbers["weights_sha256"]) == (8, card["sha256"])
    assert numbers["validation"] == card["validation"]
    assert numbers["command"]
    with (tmp_path / "run" / LOG).open() as file:
        assert [int(row["step"]) for row in csv.DictReader(file)] == [1, 2, 4, 6, 8]
    assert "PDMS" in capsys.readouterr().out
    assert (tmp_path / "run" / train_state.WEIGHTS).exists()


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        (("--weights", "1", "2"), "--weights has 2 numbers for 1 sets"),
        (("--setting", "data.batch=4000"), "fewer than data.batch (4000)"),
        (("--setting", "optimizer.vision_pretrain_fraction=0.1"), "must be 0 in train diffusion"),
        (("--setting", "network=large"), "expected one of small, base"),
        (("--setting", "data.standing_share=0.1"), "data.standing_share is above 0 and reward.weight is 0"),
        (("--setting", "reward.weight=1"), "reward.weight is above 0, but the network plans in the ego frame"),
    ],
)
def test_settings_that_do_not_fit_are_one_sentence(folder, tmp_path, monkeypatch, capsys, more, sentence):
    monkeypatch.setitem(settings.DENOISERS, "small", lambda: TINY)
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("data: {batch: 4}\n")
    words = ["train", "diffusion", str(recipe), "--train", str(folder), "--out", str(tmp_path / "run")]
    assert main([*words, *more]) == 2
    message = capsys.readouterr().err
    assert sentence in " ".join(message.split())
