"""Public checkpoints of the denoiser: imported with every tensor, or refused in one sentence."""

import json
import os
import re

import numpy as np
import pytest
import torch
from denoiser_cases import PARITY, SPEC, WEIGHTS, no_gradients, own_case, random_net  # noqa: F401 (a fixture)
from safetensors.torch import load_file, save_file

from reflectdrive_ros.__main__ import main
from reflectdrive_ros.infra.documents import read_arrays
from reflectdrive_ros.model.checkpoint import CheckpointError
from reflectdrive_ros.model.denoiser import checkpoint, published
from reflectdrive_ros.model.denoiser.net import DenoiserNet, DenoiserNetConfig

# --- public checkpoints ----------------------------------------------------------------------------------------------


def public_name(name):
    return f"module.{published.published_name(name)}"


def arguments_of(config):
    """The args.json that the public project would save for a network of these measures."""
    spec = config.spec
    rows = {"mean": (10.0, 0.0, 0.0, 0.0), "std": (20.0, 20.0, 1.0, 1.0)}
    norm = spec.normalization
    observed = {
        name: {part: getattr(norm, f"{prefix}_{part}") for part in ("mean", "std")}
        for name, (prefix, _) in published.NORMALIZERS.items()
    }
    return {
        "agent_num": spec.agents,
        "time_len": spec.history_steps,
        "static_objects_num": spec.static_objects,
        "lane_num": spec.lanes,
        "lane_len": spec.lane_points,
        "route_num": spec.route_lanes,
        "route_len": spec.lane_points,
        "predicted_neighbor_num": spec.predicted_agents,
        "future_len": spec.future_steps,
        "hidden_dim": config.hidden,
        "num_heads": config.heads,
        "encoder_depth": config.encoder_layers,
        "decoder_depth": config.decoder_layers,
        "encoder_drop_path_rate": config.dropout,
        "diffusion_model_type": "x_start",
        "device": "cuda",
        "state_normalizer": {part: spec.futures * [[row]] for part, row in rows.items()},
        "observation_normalizer": {**observed, "route_lanes_speed_limit": {"mean": [0], "std": [20]}},
    }


PUBLIC = DenoiserNetConfig(SPEC, hidden=32, heads=2, encoder_layers=2, decoder_layers=1)  # its mixers have fixed widths


@pytest.fixture(scope="module")
def public_net():
    with torch.no_grad():
        return random_net(PUBLIC)


@pytest.fixture
def folder(tmp_path, public_net):
    """A checkpoint of another size than the parity case, as the public project saves it, with its case."""
    tensors = {public_name(name): p.detach().clone() for name, p in public_net.named_parameters()}
    torch.save({"epoch": 3, "ema_state_dict": tensors, "model": {}}, tmp_path / "model.pth")
    (tmp_path / "args.json").write_text(json.dumps(arguments_of(PUBLIC)))
    np.savez(tmp_path / "case.npz", **own_case(public_net))
    return tmp_path


def rewrite(folder, change):
    """The checkpoint with its tensors changed."""
    tensors = torch.load(folder / "model.pth", weights_only=True)["ema_state_dict"]
    change(tensors)
    torch.save({"ema_state_dict": tensors}, folder / "model.pth")


def importing(folder, *words):
    return main(["import", "diffusion-planner", str(folder), *map(str, words)])


def test_names_are_those_of_the_public_file():
    names = load_file(PARITY / WEIGHTS)
    with torch.device("meta"):
        ours = DenoiserNet(published.published_config(PARITY / "args.json"))
    assert {public_name(name) for name, _ in ours.named_parameters()} == set(names)


def test_a_checkpoint_of_another_size_is_checked_with_its_case(folder, capsys):
    assert importing(folder, "--check", folder / "case.npz", "--json", folder / "check.json") == 0
    message = capsys.readouterr().out
    for name in ("norm_lanes", "encoding", "x0_at_0.2", "x0_at_0.7", "prediction", "tolerance"):
        assert name in message
    assert message.rstrip().endswith("all within the tolerances")
    check = json.loads((folder / "check.json").read_text())["check"]
    assert check["within"]
    assert {row["name"] for row in check["rows"]} >= {"encoding", "x0_at_0.2", "prediction"}


def test_a_wrong_weight_ends_with_exit_code_1_and_nothing_is_written(folder, capsys):
    rewrite(folder, lambda t: t["module.decoder.decoder.dit.blocks.0.mlp1.fc1.weight"].mul_(1.01))
    assert importing(folder, "--check", folder / "case.npz", "--out", folder / "out") == 1
    message = capsys.readouterr().out
    assert "above the tolerance: x0_at_0.2, x0_at_0.7" in message
    assert not (folder / "out").exists()


def test_imported_weights_are_those_of_the_checkpoint_without_guidance(folder, public_net, capsys):
    assert importing(folder, "--out", folder / "out") == 0
    message = capsys.readouterr().out
    card = json.loads((folder / "out" / "card.json").read_text())
    assert f"model.sha256: {card['sha256']}" in message
    assert (card["kind"], card["capabilities"], card["training_domain"]) == ("denoiser", [], "nuPlan")
    assert card["dtype"] == "float32"
    assert card["data"]["imported_from"]["file"] == "model.pth"
    again = checkpoint.load(folder / "out" / "weights.safetensors", card["sha256"])
    assert again.config == PUBLIC
    for (name, parameter), expected in zip(again.named_parameters(), public_net.parameters(), strict=True):
        assert torch.equal(parameter, expected), name


def test_tensors_are_read_from_safetensors_too_with_and_without_the_prefix(folder, public_net):
    tensors = torch.load(folder / "model.pth", weights_only=True)["ema_state_dict"]
    (folder / "model.pth").unlink()
    save_file({name.removeprefix("module."): value for name, value in tensors.items()}, folder / "model.safetensors")
    network = published.load_published(folder)
    assert all(torch.equal(a, b) for a, b in zip(network.parameters(), public_net.parameters(), strict=True))


class Malicious:
    def __init__(self, mark):
        self.mark = mark

    def __reduce__(self):
        return os.mkdir, (str(self.mark),)


def test_code_in_a_pickle_does_not_run_and_the_file_is_refused_with_one_sentence(folder, capsys):
    torch.save({"ema_state_dict": {"a": Malicious(folder / "ran")}}, folder / "model.pth")
    assert importing(folder) == 2
    message = capsys.readouterr()
    assert not (folder / "ran").exists()
    assert "model.pth cannot be read as tensors only, without running code: " in message.err
    assert "mkdir" in message.err
    assert "weights_only" not in message.err  # torch advises to run the code
    assert message.err.count("\n") == 1
    assert message.out == ""


POSITION = "module.encoder.encoder.pos_emb.weight"


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda t: t.pop(POSITION), "lacks encoder.encoder.pos_emb.weight and has unexpected nothing"),
        (lambda t: t.update(extra=torch.zeros(1)), "lacks nothing and has unexpected extra"),
        (lambda t: t.update({POSITION: torch.zeros(32, 8)}), r"pos_emb.weight has shape \(32, 8\), by args.json it is"),
        (lambda t: t[POSITION].fill_(torch.nan), "holds NaN or infinity in encoder.position.weight"),
        (lambda t: t.update({POSITION.removeprefix("module."): t[POSITION]}), "encoder.pos_emb.weight twice"),
        (lambda t: t.clear(), r"lacks decoder\.decoder\.dit.* and \d+ more and has unexpected nothing"),
        (lambda t: t.update({POSITION: 3}), "has no tensors under 'ema_state_dict'"),
    ],
)
def test_tensors_that_are_not_this_networks_are_named(folder, change, sentence):
    rewrite(folder, change)
    with pytest.raises(CheckpointError, match=sentence):
        published.load_published(folder)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda a: a.pop("hidden_dim"), "has no hidden_dim"),
        (lambda a: a.update(agent_num=0), "has agent_num = 0, expected a whole number from 1 to 4096"),
        (lambda a: a.update(lane_state_dim=33), "has lane_state_dim = 33, expected 12"),
        (lambda a: a.update(diffusion_model_type="score"), "diffusion_model_type = 'score', expected one of x_start"),
        (lambda a: a.update(num_heads=5), r"hidden is 32, expected a multiple of heads \(5\)"),
        (lambda a: a["state_normalizer"]["mean"].pop(), "has state_normalizer.mean not for 4 agents"),
        (lambda a: a["observation_normalizer"]["lanes"].update(std=12 * [0]), "observation_normalizer.lanes.std"),
        (lambda a: a.update(hidden_dim=64), r"has shape .*, by args.json it is .* \(\d+ such tensors\)"),
    ],
)
def test_an_args_file_of_other_measures_is_refused_and_the_field_named(folder, change, sentence):
    args = arguments_of(PUBLIC)
    change(args)
    (folder / "args.json").write_text(json.dumps(args))
    with pytest.raises(CheckpointError, match=sentence):
        published.load_published(folder)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda c: c.pop("norm_lanes"), "lacks norm_lanes: expected a case of this checkpoint's measures"),
        (lambda c: c.update({"x_t": c.pop("x_t")[..., 0]}), r"has x_t of shape \(2, 4, 13\), expected \(2, 4, 13, 4\)"),
        (lambda c: c.update(encoding=c["encoding"][:, :-1]), r"encoding of shape \(2, 16, 32\), expected \(2, 17, 3"),
        (lambda c: c.update(x0_at_x=c["x_t"]), "has x0_at_x, expected a diffusion time from 0 to 1 after x0_at_"),
        (lambda c: [c.pop(name) for name in list(c) if name.startswith("x0")], "lacks x0_at_T"),
        (lambda c: c.update(x_t=c["x_t"].astype(str)), "has x_t of <U"),
        (lambda c: c.update({name: values[:0] for name, values in c.items()}), "has x_t without scenes"),
    ],
)
def test_a_case_that_does_not_fit_the_checkpoint_is_one_sentence(folder, capsys, change, sentence):
    case = read_arrays(folder / "case.npz")
    change(case)
    np.savez(folder / "case.npz", **case)
    assert importing(folder, "--check", folder / "case.npz") == 2
    message = capsys.readouterr().err
    assert re.search(sentence, message), message
    assert message.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["nothing"], "args.json cannot be read: No such file or directory"),
        (["--check", "nothing.npz"], "nothing.npz cannot be read: No such file or directory"),
        (["--check", "args.json"], "is no NPZ file of arrays"),
    ],
)
def test_a_file_that_is_missing_or_of_another_kind_is_one_sentence(folder, monkeypatch, capsys, words, sentence):
    monkeypatch.chdir(folder)
    assert main(["import", "diffusion-planner", *([] if words == ["nothing"] else ["."]), *words]) == 2
    message = capsys.readouterr().err
    assert sentence in message
    assert message.count("\n") == 1
