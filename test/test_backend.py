"""Opening networks: a complete file as configured is loaded, everything else is one sentence at the start."""

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scenes import Clock, config
from tiny_model import tiny_model  # noqa: F401 (a fixture)

from reflectdrive_ros.core.config import ConfigError, ModelConfig, load
from reflectdrive_ros.core.recipe_config import DecodingConfig
from reflectdrive_ros.infra import installing
from reflectdrive_ros.planning.planner import Prefilled
from reflectdrive_ros.runtime.engine import Engine
from reflectdrive_ros.runtime.model_file import ModelFileError, model_config, verified_sha256
from reflectdrive_ros.runtime.network import golden, load_network, self_check, synthetic_inputs


def opened(model, decoding=None, **changes):
    return load_network(ModelConfig(str(model.file), model.sha256, **changes), decoding or DecodingConfig())


def refused(ask):
    with pytest.raises((ModelFileError, ConfigError)) as fault:
        ask()
    assert "\n" not in str(fault.value)
    return str(fault.value)


@pytest.fixture
def copy(tiny_model, tmp_path):  # noqa: F811
    """A model of one's own to spoil."""
    shutil.copytree(tiny_model.file.parent, tmp_path / "model")
    return replace(tiny_model, file=tmp_path / "model" / tiny_model.file.name)


# --- what is let in --------------------------------------------------------------------------------------------------


def test_no_model_is_no_network():
    assert load_network(ModelConfig("", ""), DecodingConfig()) is None


def test_a_network_decodes_as_it_is_set(tiny_model):  # noqa: F811
    network = opened(tiny_model)
    assert len(network.prefill_goal(synthetic_inputs(network)).actions) == DecodingConfig().goals
    network = opened(tiny_model, DecodingConfig(goals=4, goal_spacing_m=9.0))
    rules = network.decoding
    network.set_decoding(replace(rules, goals=replace(rules.goals, floor=0.0)))  # every slot has a goal of its own
    prefilled = network.prefill_goal(synthetic_inputs(network))
    assert prefilled.valid.tolist() == 4 * [True]
    goals = network.layout.decode_goal(prefilled.actions)
    gaps = np.linalg.norm(goals[:, None] - goals[None], axis=-1)[np.triu_indices(4, 1)]
    assert gaps.min() >= 9.0 - 1e-3


@pytest.mark.parametrize("location", ["config", "here", "checkout", "share"])
def test_a_relative_name_is_resolved(location, copy, tmp_path, monkeypatch):
    """Beside the configuration file, in the present folder, in the checkout, in an installed share folder."""
    homes = {name: tmp_path / name for name in ("config", "here", "checkout", "prefix/share/reflectdrive")}
    for folder in homes.values():
        folder.mkdir(parents=True)
    module = tmp_path / "checkout/reflectdrive_ros/infra/installing.py"
    if location == "share":
        module = tmp_path / "prefix/lib/python3/site-packages/reflectdrive_ros/infra/installing.py"
    monkeypatch.setattr(installing, "__file__", str(module))
    monkeypatch.chdir(homes["here"])
    home = homes["prefix/share/reflectdrive" if location == "share" else location]
    shutil.copytree(copy.file.parent, home / "models/mine")
    file = homes["config"] / "car.yaml"
    file.write_text(f"model: {{file: models/mine/{copy.file.name}, sha256: {copy.sha256}}}\n")
    assert verified_sha256(load(file).model) == copy.sha256


def test_a_model_named_on_a_command_line_brings_its_hash(copy):
    assert model_config(str(copy.file), None) == ModelConfig(str(copy.file), copy.sha256)
    assert model_config(str(copy.file), "ab").sha256 == "ab"
    card = copy.file.parent / "card.json"
    assert verified_sha256(model_config(str(card), None))  # a model that is a card, as of exported graphs
    card.unlink()
    assert "give it with --sha256" in refused(lambda: model_config(str(copy.file), None))
    card.write_text("{")
    assert f"{card} is not JSON" in refused(lambda: model_config(str(copy.file), None))


# --- what is not -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("library", ["torch", "safetensors"])
def test_without_the_library_the_extra_is_named(copy, library):
    program = f"import sys; sys.modules['{library}'] = None; from reflectdrive_ros.ros.node import main; exit(main())"
    settings = [f"{name.replace('__', '.')}:={value}" for name, value in copy.settings.items()]
    words = ["--ros-args", *(word for pair in settings for word in ("-p", pair))]
    done = subprocess.run([sys.executable, "-c", program, *words], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert f"needs {library}, which is not installed: pip install '.[train]'" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("name", "changes", "text"),
    [
        ("weights.pt", {}, "weights.pt is no model: expected a file ending in .safetensors"),
        ("weights.safetensors", {"device": "cuda:63"}, "set it to"),
    ],
)
def test_what_no_backend_can_run_is_refused(copy, name, changes, text):
    file = copy.file.rename(copy.file.with_name(name))
    assert text in refused(lambda: opened(replace(copy, file=file), **changes))


def test_a_model_that_answers_otherwise_than_its_card_is_refused_whatever_rules_are_set(copy):
    from reflectdrive_ros.runtime.torch_backend import SELF_CHECK_DECODING, TorchNetwork

    card_path = copy.file.parent / "card.json"
    card = json.loads(card_path.read_text())
    assert card["golden"] == golden(TorchNetwork.from_file(copy.file, copy.sha256, decoding=SELF_CHECK_DECODING))
    for value_power in (0.0, 10.0):
        opened(copy, DecodingConfig(rescore_goals=1, goal_value_power=value_power))
    card["golden"]["goal_log_prob"] -= 0.2
    card_path.write_text(json.dumps(card))
    assert "fails its self-check: its goal_log_prob is" in refused(lambda: opened(copy))


@pytest.mark.parametrize("fault", ["probability", "mask", "goal", "scene"])
def test_a_backend_that_answers_nonsense_is_refused(tiny_model, fault):  # noqa: F811
    network = opened(tiny_model)

    class Broken:
        kind, inputs, layout, capabilities = "token", network.inputs, network.layout, network.capabilities

        def prefill_goal(self, inputs):
            prefilled = network.prefill_goal(inputs)
            log_probs = prefilled.goal_log_probs * (np.nan if fault == "probability" else 1.0)
            return Prefilled(prefilled.context, prefilled.actions, log_probs, prefilled.valid)

        def prefill(self, inputs):
            context = network.prefill(inputs)
            return tuple((keys, 30 * values) for keys, values in context) if fault == "scene" else context

        def step(self, context, actions, limit, edit):
            written, confidence = network.step(context, actions, 0 if fault == "mask" else limit, edit)
            return written + (np.arange(16) == 14) * (fault == "goal"), confidence

    expected = {
        "probability": "probabilities are not between 0 and 1",
        "mask": "stay masked",
        "goal": "does not keep its goals",
    }
    expected["scene"] = "reads a scene otherwise when it has its goal"
    assert expected[fault] in refused(lambda: self_check(Broken(), Path("weights.safetensors")))


@pytest.mark.parametrize("changed_by", ["edits", "drafts"])
def test_edits_may_change_the_goal_where_the_layout_lets_them_and_drafts_may_not(tiny_model, changed_by):  # noqa: F811
    network = opened(tiny_model)

    class Changing:
        kind, inputs, capabilities = "token", network.inputs, network.capabilities
        layout = replace(network.layout, edit_goal=True)
        prefill_goal, prefill = network.prefill_goal, network.prefill

        def step(self, context, actions, limit, edit):
            ids, confidence = network.step(context, actions, limit, edit)
            changed = edit == (changed_by == "edits") and np.arange(ids.shape[1]) == network.layout.goal[0]
            return np.where(changed, (ids + 1) % network.layout.mask_id, ids), confidence

    if changed_by == "edits":
        self_check(Changing(), Path("weights.safetensors"))
    else:
        assert "does not keep its goals" in refused(lambda: self_check(Changing(), Path("weights.safetensors")))


def test_cameras_that_are_not_the_networks_are_refused(tiny_model):  # noqa: F811
    def started(**more):
        return refused(lambda: Engine(config(**tiny_model.settings, **more), Clock()))

    assert "cameras.required is false, but planner reflectdrive2 needs images" in started(cameras__required=False)
    two = started(cameras__names=["front", "rear"])
    assert "cameras.names has 2 cameras" in two
    assert "uses 3" in two


def test_a_planner_that_has_learned_does_not_start_without_a_model():
    no_model = config(planner="reflectdrive2", model__file="", model__sha256="")
    sentence = refused(lambda: Engine(no_model, Clock()))
    assert "planner reflectdrive2 needs a model" in sentence


def test_torchs_threads_do_not_spin_in_a_planner_unless_the_environment_asks_for_it(tiny_model):  # noqa: F811
    script = (
        "import os, sys\n"
        "from reflectdrive_ros.core.config import ModelConfig\n"
        "from reflectdrive_ros.core.recipe_config import DecodingConfig\n"
        "from reflectdrive_ros.runtime.network import load_network\n"
        "assert 'torch' not in sys.modules\n"
        "for _ in range(2):\n"
        "    load_network(ModelConfig(sys.argv[1], sys.argv[2], 'torch', 'cpu', threads=2), DecodingConfig())\n"
        "    print(os.environ['OMP_WAIT_POLICY'])\n"
        "    os.environ['OMP_WAIT_POLICY'] = 'ACTIVE'"
    )
    env = {name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"}
    words = [sys.executable, "-c", script, str(tiny_model.file), tiny_model.sha256]
    printed = subprocess.run(words, env=env, capture_output=True, text=True, check=True).stdout.split()
    assert printed == ["PASSIVE", "ACTIVE"]
