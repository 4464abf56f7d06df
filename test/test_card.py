"""Cards say what a network is; loader, self-check, planners and benches go by it, and name what they refuse."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from changed_documents import with_field
from scenes import config
from scripted_network import camera_observation
from tiny_graphs import RULES, graphs_folder, network  # noqa: F401 (a fixture)
from tiny_net import ONE_LAYER, POSES, tiny_inputs

from reflectdrive_ros.bench.network_steps import full_rounds, run_step
from reflectdrive_ros.core.config import ModelConfig
from reflectdrive_ros.core.recipe_config import DecodingConfig
from reflectdrive_ros.core.tokens import TokenLayout
from reflectdrive_ros.deploy.export import camera_rig, export
from reflectdrive_ros.features.images import ModelInputs
from reflectdrive_ros.infra.files import sha256_of
from reflectdrive_ros.model import checkpoint
from reflectdrive_ros.model.card import RENDERED, GraphCard, GraphError
from reflectdrive_ros.model.token.rollout import Decoding
from reflectdrive_ros.planning import pipeline
from reflectdrive_ros.planning.generators import reflectdrive, reflectdrive2
from reflectdrive_ros.planning.planner import PlannerContext, PlannerState, PlanningError, prefill_sequences
from reflectdrive_ros.runtime.graphs import GoalChoice
from reflectdrive_ros.runtime.model_file import ModelFileError
from reflectdrive_ros.runtime.network import golden, load_network, synthetic_inputs
from reflectdrive_ros.runtime.ort_backend import OrtNetwork
from reflectdrive_ros.runtime.torch_backend import TorchNetwork

SETTINGS = DecodingConfig(4)


def exported(folder, net, **more):
    export(net, "0" * 64, folder, {}, RULES, golden=golden(TorchNetwork(net, decoding=RULES)), **more)
    return folder / "card.json"


@pytest.fixture(scope="module")
def plain(folder):
    return folder / "card.json"


@pytest.fixture(scope="module")
def without_goals(tmp_path_factory):
    return exported(tmp_path_factory.mktemp("poses"), network(layout=POSES, transformer=ONE_LAYER))


def loaded(card, decoding=SETTINGS):
    return load_network(ModelConfig(str(card), sha256_of(card)), decoding)


def scene(seed=0):
    return ModelInputs(*(part[0].numpy() for part in tiny_inputs(network(), scenes=1, seed=seed).tensors))


# --- what a card says ------------------------------------------------------------------------------------------------


def test_a_card_says_what_the_network_is(plain, without_goals):
    card = GraphCard.read(plain)
    assert (card.kind, card.capabilities) == ("token", {"goals", "edit"})
    assert card.layout() == TokenLayout()
    assert card.model["training_domain"] == RENDERED
    rig = card.model["inputs"]["rig"]
    assert [camera["name"] for camera in rig] == ["front_left", "front", "front_right"]
    assert rig == camera_rig(card.model["inputs"]["width"], card.model["inputs"]["height"])
    assert set(card.files) == {"vision_encoder", "prefill_goal", "prefill", "step"}
    other = GraphCard.read(without_goals)
    assert (other.capabilities, other.layout()) == ({"edit", "sampling"}, POSES)
    assert "prefill_goal" not in other.files


@pytest.fixture
def copy(plain, tmp_path):
    for file in plain.parent.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    return tmp_path / "card.json"


def change(path, section, **values):
    card = json.loads(path.read_text())
    for name, value in values.items():
        card = with_field(card, f"{section}.{name}", value)
    path.write_text(json.dumps(card))


@pytest.mark.parametrize(
    ("section", "values", "complaint"),
    [
        ("model", {"kind": "painter"}, "has model.kind = 'painter', expected one of token, denoiser"),
        ("model", {"capabilities": ["goals", "fly"]}, r"has model.capabilities\[1\] = 'fly', expected one of goals"),
        ("model", {"capabilities": ["edit", "goals", "refine"]}, "has no graphs.refine"),
        ("model", {"capabilities": ["edit"]}, "has goals in one of layout and capabilities, expected both or none"),
        ("model.layout", {"order": "axes"}, "TokenLayout.order is 'axes', expected 'waypoints'"),
        ("model.inputs", {"rig": [{"name": "front"}]}, r"has no model.inputs.rig\[0\].pixels_from_camera"),
    ],
)
def test_a_card_with_an_unknown_kind_layout_or_capability_is_refused_by_name(copy, section, values, complaint):
    change(copy, section, **values)
    with pytest.raises(GraphError, match=complaint):
        GraphCard.read(copy)


def test_guidance_on_the_card_of_a_token_network_is_ignored(copy):
    change(copy, "model", capabilities=["edit", "goals", "guidance"])
    card = GraphCard.read(copy)
    assert card.capabilities == {"edit", "goals"}
    assert set(card.files) == {"vision_encoder", "prefill_goal", "prefill", "step"}


@pytest.mark.parametrize(
    ("values", "complaint"),
    [
        ({"kind": "painter"}, "has kind = 'painter', expected one of token, denoiser"),
        ({"capabilities": ["fly"]}, r"has capabilities\[0\] = 'fly', expected one of goals, edit, sampling, refine"),
        ({"kind": "denoiser"}, r"carries \['reflectdrive.token_net.4'\], expected weights of the format .*curve_n"),
    ],
)
def test_the_card_of_weights_is_checked_likewise(tmp_path, values, complaint):
    weights = tmp_path / "weights.safetensors"
    sha256 = checkpoint.save(network(), weights, {**values})
    with pytest.raises(ModelFileError, match=complaint):
        load_network(ModelConfig(str(weights), sha256), SETTINGS)


def test_graphs_of_a_token_network_are_no_denoiser(copy):
    card = json.loads(copy.read_text())
    card["model"].update(kind="denoiser", capabilities=[])
    card["graphs"] = {"encoder": card["graphs"]["prefill"], "denoiser": card["graphs"]["step"]}
    copy.write_text(json.dumps(card))
    with pytest.raises(ModelFileError, match=r"card\.json has no model\.inputs\.agents: export the checkpoint again"):
        loaded(copy)


# --- planners go by it -----------------------------------------------------------------------------------------------


def test_a_network_without_goals_is_checked_decoded_and_refused_by_planners_that_need_them(without_goals):
    network = loaded(without_goals)
    assert network.capabilities == {"edit", "sampling"}
    prefilled = prefill_sequences(network, synthetic_inputs(network))
    assert prefilled.actions.tolist() == [[POSES.mask_id] * 24]
    actions, _ = run_step(network, synthetic_inputs(network), full_rounds(network.layout))
    np.testing.assert_array_equal(actions, POSES.clip(actions))
    assert (actions != POSES.mask_id).all()
    context = PlannerContext(config(), network)
    for generator in (reflectdrive, reflectdrive2):
        complaint = "needs the capability goals of its network, whose card has edit, sampling"
        with pytest.raises(PlanningError, match=complaint):
            pipeline.plan(generator.generate, PlannerState(), camera_observation(8.0), context)


def test_the_self_check_compares_what_the_card_gives(without_goals, tmp_path):
    for file in without_goals.parent.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    card = json.loads((tmp_path / "card.json").read_text())
    assert set(card["golden"]) == {"confidence"}
    change(tmp_path / "card.json", "golden", confidence=0.9)
    with pytest.raises(ModelFileError, match=r"fails its self-check: its confidence is .*, its card has 0\.9"):
        loaded(tmp_path / "card.json")
    change(tmp_path / "card.json", "golden", confidence=card["golden"]["confidence"], goal_log_prob=-3.0)
    with pytest.raises(ModelFileError, match="its card gives goal_log_prob, which such a network does not have"):
        loaded(tmp_path / "card.json")


@pytest.mark.parametrize("golden", ["absent", None, {}])
def test_graphs_that_nothing_checks_do_not_drive(copy, golden):
    """Without `golden`, graphs that compute something else than the network would pass the self-check."""
    card = json.loads(copy.read_text())
    del card["golden"]
    copy.write_text(json.dumps(card if golden == "absent" else {**card, "golden": golden}))
    with pytest.raises(ModelFileError, match=r"card\.json has no golden, with which its graphs are checked: export"):
        loaded(copy)


def test_a_card_of_graphs_is_compared_with_its_files(copy):
    written = json.loads(copy.read_text())
    size = written["graphs"]["step"]["bytes"]
    change(copy, "graphs.step", bytes=size + 1)
    with pytest.raises(ModelFileError, match=rf"step\.onnx has bytes {size}, its card has {size + 1}: fetch it again"):
        loaded(copy)
    change(copy, "graphs", step={name: written["graphs"]["step"][name] for name in ("file", "sha256")})
    with pytest.raises(ModelFileError, match=r"card\.json has no graphs\.step\.bytes: export the checkpoint again"):
        loaded(copy)
    copy.write_text(json.dumps(written))
    change(copy, "model.config", text_vocabulary=7)
    with pytest.raises(ModelFileError, match=r"belongs to another model than card\.json: config differ; export"):
        loaded(copy)


@pytest.mark.parametrize(
    ("section", "values", "complaint"),
    [
        ("bytes", 17, r"gives bytes = 17, but the file has \d+: fetch both again"),
        ("config.cameras", 5, r"gives config\.cameras = 5, but the file has 3: fetch both again"),
        ("config.layout.points", 7, r"gives config\.layout\.points = 7, but the file has 8: fetch both again"),
    ],
)
def test_a_card_of_weights_is_compared_with_the_file(tmp_path, section, values, complaint):
    weights = tmp_path / "weights.safetensors"
    sha256 = checkpoint.save(network(), weights, {})
    load_network(ModelConfig(str(weights), sha256), SETTINGS)
    card = json.loads((tmp_path / "card.json").read_text())
    (tmp_path / "card.json").write_text(json.dumps(with_field(card, section, values)))
    with pytest.raises(ModelFileError, match=complaint):
        load_network(ModelConfig(str(weights), sha256), SETTINGS)


SHIPPED_CARDS = sorted((Path(__file__).parents[1] / "models").rglob("card.json"))


@pytest.mark.parametrize("card", SHIPPED_CARDS, ids=lambda card: "-".join(card.parts[-3:-1]))
def test_every_shipped_model_loads_and_answers_as_its_card_says(card):
    """The default's weights have the default layout and all that torch can do."""
    content = json.loads(card.read_text())
    assert content["golden"]
    file = card if "graphs" in content else card.parent / content["file"]
    backend = "onnxruntime" if file is card else "torch"
    network = load_network(ModelConfig(str(file), sha256_of(file), backend, "cpu"), DecodingConfig())
    if card.parent.name == "reflectdrive2_small":
        assert network.layout == TokenLayout(edit_goal=True)  # reinforcement learning let edits replace the goal
        assert network.capabilities == {"goals", "edit", "sampling"}  # its card also lists guidance


# --- goals of each recipe on the same graphs -------------------------------------------------------------------------


@pytest.mark.parametrize(("count", "spacing_m"), [(6, 1.2), (8, 0.9), (1, 0.0)])
def test_number_and_spacing_of_goals_are_the_planners_and_equal_to_torch(plain, count, spacing_m):
    graphs = OrtNetwork.from_file(plain)
    graphs.goal_choice = GoalChoice(count, spacing_m)
    rules = replace(RULES.goals, count=count, spacing_m=spacing_m)
    eager = TorchNetwork(network(), decoding=Decoding(rules))
    for seed in range(3):
        prefilled, expected = (each.prefill_goal(scene(seed)) for each in (graphs, eager))
        np.testing.assert_array_equal(prefilled.actions, expected.actions)
        np.testing.assert_array_equal(prefilled.valid, expected.valid)
        np.testing.assert_allclose(prefilled.goal_log_probs, expected.goal_log_probs, atol=1e-4)


def test_settings_choose_goals_up_to_the_graphs_maximum(plain):
    few = loaded(plain, DecodingConfig(2, goal_spacing_m=3.0))
    assert len(few.prefill_goal(synthetic_inputs(few)).actions) == 2
    goals = few.layout.decode_goal(few.prefill_goal(synthetic_inputs(few)).actions)
    assert np.hypot(*(goals[0] - goals[1])) >= 3.0 - 1e-3
    with pytest.raises(ModelFileError, match=r"9 goals are set, but the graphs of .* give at most 8: set fewer"):
        loaded(plain, DecodingConfig(9))
    with pytest.raises(ModelFileError, match=r"goal_value_power is 0.5, but the graphs of .* have 3.0 built in"):
        loaded(plain, DecodingConfig(4, goal_value_power=0.5))
