"""Graphs in 8 bits: what is quantised and what is not, that action sequences do not depend on each other, and that no
ungated graph drives."""

import json
import shutil
from dataclasses import replace

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import pytest
from fake_gpu import driver, trt  # noqa: F401 (fixtures)
from scenes import Clock
from stored_scenes import store
from tiny_graphs import (
    BUILT_IN,
    MOVES,
    SEQUENCES,
    as_set,
    decoded,
    network,
    products_of_tiny_networks_are_worth_it,  # noqa: F401 (fixtures)
    rewrite,
    scene,
    shared_graphs,
    unknown_to_tensorrt,
)
from tiny_model import tiny_model  # noqa: F401 (a fixture)
from tiny_net import random_actions

from reflectdrive_ros.__main__ import main
from reflectdrive_ros.bench import accuracy_gate
from reflectdrive_ros.core.recipe_config import DecodingConfig
from reflectdrive_ros.deploy import engines as trt_build
from reflectdrive_ros.deploy import quantise
from reflectdrive_ros.deploy.quantise import (
    ActivationRange,
    activation_ranges,
    write_calibration_graphs,
    write_quantised,
)
from reflectdrive_ros.evaluation import driving_scores
from reflectdrive_ros.model.card import CALIBRATION_PREFIX, CARD, GraphCard, required_graphs
from reflectdrive_ros.planning.planner import PlanningError
from reflectdrive_ros.runtime.model_file import ModelFileError
from reflectdrive_ros.runtime.network import golden, load_network
from reflectdrive_ros.runtime.ort_backend import DISABLED_FOR_INT8, CalibrationNetwork, OrtNetwork
from reflectdrive_ros.runtime.trt.backend import TrtNetwork

GRAPHS = required_graphs("token", ("edit", "goals"))
HEADS = [high - low + 1 for low, high in network().config.layout.id_ranges]  # columns of their weights
DEFAULTS = DecodingConfig()
PASSED = {"pdms_fp32": 80.0, "pdms": 79.8, "passed": True}


@pytest.fixture(scope="module")
def exact():
    """The tiny network's graphs in float32, for steps of `SEQUENCES`."""
    folder = shared_graphs(f"graphs-fp32-{SEQUENCES}", network(), SEQUENCES)
    return GraphCard.read(folder / CARD)


@pytest.fixture(scope="module")
def spreads(exact, tmp_path_factory):
    folder = tmp_path_factory.mktemp("watched")
    write_calibration_graphs(exact, folder)
    watched = CalibrationNetwork(GraphCard.read(folder / CARD))
    for seed in range(4):
        decoded(watched, scene(seed))
        watched.prefill(scene(seed))
    return activation_ranges(watched.recorded)


@pytest.fixture(scope="module")
def pairs(exact, spreads, tmp_path_factory):
    """Cards by precision."""
    cards = {"fp32": exact}
    for precision in ("int8", "fp8"):
        folder = tmp_path_factory.mktemp(precision)
        write_quantised(exact, folder, precision, spreads, {"goal_log_prob": 0.0}, PASSED)
        figures = golden(OrtNetwork(GraphCard.read(folder / CARD)))
        write_quantised(exact, folder, precision, spreads, figures, PASSED)
        cards[precision] = GraphCard.read(folder / CARD)
    return cards


def quantised_products(card, name):
    """Products of weights behind a DequantizeLinear."""
    products = nodes(card, name, "MatMul")
    return [node for node in products if (of := node.inputs[1].producer()) and of.op_type == "DequantizeLinear"]


def nodes(card, name, kind):
    return [node for node in ir.load(card.files[name]).graph.all_nodes() if node.op_type == kind]


# --- what they compute -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("precision", ["int8", "fp8"])
def test_graphs_in_8_bits_answer_nearly_as_those_in_float32(pairs, precision):
    mine, theirs = OrtNetwork(pairs[precision]), OrtNetwork(pairs["fp32"])
    assert mine.backend_description.endswith(f"1 thread, {precision}")
    differences, of_step = [], []
    for seed in range(5, 9):
        inputs = scene(seed)
        prefilled, expected = mine.prefill_goal(inputs), theirs.prefill_goal(inputs)
        differences.append(np.abs(prefilled.goal_log_probs - expected.goal_log_probs).max())
        for limit, edit in MOVES[:1]:
            (_, sure), (_, expects) = (
                net.step(each.context, expected.actions, limit, edit)
                for net, each in ((mine, prefilled), (theirs, expected))
            )
            both = (sure > 0) & (expects > 0)
            of_step.append(np.abs(np.log(sure[both] / expects[both])).max())
    assert 0 < max(differences) < 0.3
    assert 0 < max(of_step) < 0.04  # in another scene it is 0.05 and more


@pytest.mark.parametrize("precision", ["int8", "fp8"])
def test_what_becomes_of_a_block_does_not_hang_on_its_company(pairs, precision):
    graphs = OrtNetwork(pairs[precision])
    context = graphs.prefill_goal(scene(7)).context
    actions = random_actions(network(), scenes=1, count=3)[0].numpy()
    together = graphs.step(context, actions, 3, False)
    for index in range(3):
        alone = graphs.step(context, actions[[index]], 3, False)
        np.testing.assert_array_equal(alone[0][0], together[0][index])
        # other batch sizes may add up in another order, and a value then rounds to the next of 255 steps
        np.testing.assert_allclose(alone[1][0], together[1][index], rtol=1e-2)


def test_watching_changes_no_plan(exact, tmp_path):
    write_calibration_graphs(exact, tmp_path)
    watched = CalibrationNetwork(GraphCard.read(tmp_path / CARD))
    rows = [decoded(of, scene(3))[1] for of in (watched, OrtNetwork(exact))]
    np.testing.assert_array_equal(*rows)
    assert len(watched.recorded["step"]) == len(MOVES)


def test_spreads_are_of_all_runs():
    def run(low, high, square):
        kinds = ("ReduceMin", "ReduceMax", "ReduceMean")
        return {
            f"{CALIBRATION_PREFIX}{kind}:x": np.float32(value)
            for kind, value in zip(kinds, (low, high, square), strict=True)
        }

    ranges = activation_ranges({"step": [run(-1, 2, 1), run(0.5, 5, 3)]})
    assert ranges == {"step": {"x": ActivationRange(-1.0, 5.0, 2.0)}}
    with pytest.raises(ValueError, match=r"between 0\.0 and 0\.0 have no scale"):
        ActivationRange(0.0, 0.0, 1.0)


# --- their operators --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", GRAPHS)
def test_heads_and_what_is_behind_them_stay_in_float32(pairs, name):
    for precision in ("int8", "fp8"):
        kinds = [node.inputs[1] for node in nodes(pairs[precision], name, "MatMul")]
        heads = [weights for weights in kinds if weights.shape is not None and weights.shape[-1] in HEADS]
        assert heads or name in ("vision_encoder", "prefill")  # which end before them
        assert not any(value.producer() and value.producer().op_type == "DequantizeLinear" for value in heads)
    counts = [len(quantised_products(pairs[precision], name)) for precision in ("int8", "fp8")]
    assert 5 < counts[0] <= counts[1]


def test_weights_of_int8_have_7_bits_so_that_no_processor_overflows(pairs):
    assert (2 * quantise.ACTIVATION_STEPS + 1) * quantise.WEIGHT_STEPS * 2 < 2**15
    for name in GRAPHS:
        for node in quantised_products(pairs["int8"], name):
            weights = node.inputs[1].producer().inputs[0].const_value.numpy()
            assert weights.dtype == np.int8
            assert (np.abs(weights).max(0) == quantise.WEIGHT_STEPS).all()


def test_values_with_few_large_ones_stay_in_float32(exact, spreads, tmp_path):
    wide = {name: {key: ActivationRange(-90.0, 90.0, 1.0) for key in rows} for name, rows in spreads.items()}
    write_quantised(exact, tmp_path, "int8", wide)
    assert quantised_products(GraphCard.read(tmp_path / CARD), "step") == []
    narrow = ActivationRange(-1.0, 15.0, 1.0)
    assert not narrow.too_wide
    assert replace(narrow, high=17.0).too_wide  # though the range itself is 18: steps reach as far below zero


@pytest.mark.parametrize("precision", ["int8", "fp8"])
@pytest.mark.parametrize("name", GRAPHS)
def test_quantised_graphs_are_what_tensorrt_takes(pairs, name, precision):
    """Its parser wants constant, positive scales and tells the type by the zero point, which is zero."""
    assert unknown_to_tensorrt(pairs[precision].files[name]) == []
    quantisers = nodes(pairs[precision], name, "QuantizeLinear") + nodes(pairs[precision], name, "DequantizeLinear")
    assert quantisers
    for node in quantisers:
        scale, zero = (value.const_value.numpy() for value in node.inputs[1:])
        assert scale.dtype == np.float32
        assert scale.shape == zero.shape
        assert scale.ndim == 0 or (precision == "int8" and node.inputs[0].is_initializer())
        assert (scale > 0).all()
        assert zero.dtype == quantise.FORMATS[precision].dtype
        assert not zero.astype(np.float32).any()


def test_onnx_runtime_multiplies_int8_as_integers(pairs, tmp_path):
    """Its optimiser turns each quantised product into one operator on bytes."""
    for name in GRAPHS:
        options = ort.SessionOptions()
        options.optimized_model_filepath = str(tmp_path / f"{name}.onnx")
        file = str(pairs["int8"].files[name])
        ort.InferenceSession(file, options, ["CPUExecutionProvider"], disabled_optimizers=DISABLED_FOR_INT8)
        kinds = [node.op_type for node in ir.load(tmp_path / f"{name}.onnx").graph.all_nodes()]
        assert kinds.count("MatMulIntegerToFloat") == len(quantised_products(pairs["int8"], name))


# --- on TensorRT -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("precision", ["int8", "fp8"])
def test_engines_in_8_bits_write_what_onnx_runtime_writes(pairs, trt, tmp_path, precision):  # noqa: F811
    list(trt_build.build(pairs[precision], "cuda", tmp_path, Clock()))
    engines = TrtNetwork(pairs[precision], "cuda", tmp_path)
    assert f"Fake Thor, {precision}," in engines.backend_description
    rows = [decoded(of, scene(2))[1] for of in (engines, OrtNetwork(pairs[precision]))]
    np.testing.assert_array_equal(*rows)


# --- the gate --------------------------------------------------------------------------------------------------------


@pytest.fixture
def copy(pairs, tmp_path):
    for file in pairs["int8"].path.parent.iterdir():
        shutil.copy(file, tmp_path)
    return tmp_path


def test_a_quantised_pair_that_has_passed_the_gate_drives(pairs):
    for precision in ("int8", "fp8"):
        opened = load_network(as_set(pairs[precision].path.parent), BUILT_IN)
        assert opened.backend_description.endswith(precision)


@pytest.mark.parametrize(
    ("gate", "complaint"),
    [
        (None, "lacks their score beside that of float32 graphs: export again with --precision int8 --gate DIR"),
        ({"passed": True}, "lacks their score"),
        (
            {"pdms_fp32": 80.0, "pdms": 79.6, "passed": True},
            r"score 0\.40 PDMS less than in float32, at most 0\.3 is allowed: use the",
        ),
        ({"pdms_fp32": 80.0, "pdms": float("nan"), "passed": True}, "score nan PDMS less"),
        ({"pdms_fp32": 80.0, "pdms": 80.0, "passed": False}, r"score 0\.00 PDMS less"),
    ],
)
def test_a_quantised_pair_that_has_not_is_refused(copy, gate, complaint):
    rewrite(copy, lambda card: card.pop("gate") if gate is None else card.update(gate=gate))
    with pytest.raises(ModelFileError, match=complaint):
        load_network(as_set(copy), BUILT_IN)
    assert main(["engine", str(copy / CARD)]) == 2


@pytest.fixture(scope="module")
def sets(tmp_path_factory):
    """The words that name two sets of scenes."""
    folder = tmp_path_factory.mktemp("sets")
    for name in ("val", "test"):
        store(folder / name, shards_of=(2,), name=name, images=True)
    return ["--calibrate", str(folder / "val"), "--gate", str(folder / "test"), "--gate-scenes", "2"]


@pytest.mark.parametrize("precision", ["int8", "fp8", "bf16"])
def test_the_command_gates_what_it_exports(tiny_model, sets, tmp_path, capsys, precision):  # noqa: F811
    words = ["export", str(tiny_model.file), "--out", str(tmp_path / "out"), "--precision", precision]
    options = sets if precision != "bf16" else sets[2:]
    assert main([*words, *options, "--json", str(tmp_path / "f")]) == 0
    report = json.loads((tmp_path / "f").read_text())
    assert report["precision"] == precision
    assert report["gate"]["passed"] is True
    assert (report["gate"]["set"], report["gate"]["scenes"], report["gate"]["limit"]) == ("test", 2, 0.3)
    assert "gate: PDMS" in capsys.readouterr().out
    card = GraphCard.read(tmp_path / "out" / CARD)
    assert card.gate == report["gate"]
    if precision != "bf16":
        assert load_network(as_set(tmp_path / "out"), DEFAULTS).backend_description.endswith(precision)


def test_a_gate_that_is_not_passed_leaves_nothing(tiny_model, sets, tmp_path, capsys, monkeypatch):  # noqa: F811
    monkeypatch.setattr(accuracy_gate, "MAX_PDMS_DROP", -100.0)
    words = ["export", str(tiny_model.file), "--out", str(tmp_path / "out"), "--precision", "int8", *sets]
    assert main([*words, "--json", str(tmp_path / "numbers.json")]) == 2
    message = capsys.readouterr().err
    assert "the gate is not passed: on 2 scenes PDMS is" in message
    assert "nothing is exported" in message
    assert list(tmp_path.iterdir()) == []


def test_a_gate_is_not_passed_by_failing_as_often(tiny_model, sets, tmp_path, capsys, monkeypatch):  # noqa: F811
    """Two networks that both have no plan score the same."""

    def nothing(*_):
        raise PlanningError("the graph takes a holiday")

    monkeypatch.setattr(driving_scores, "plan_once", nothing)
    words = ["export", str(tiny_model.file), "--out", str(tmp_path / "out"), "--precision", "int8", *sets]
    assert main(words) == 2
    complaint = "the gate is not passed: 4 times there was no plan, the first: the graph takes a holiday"
    assert complaint in capsys.readouterr().err


def test_options_that_do_not_go_together_are_one_sentence(tiny_model, sets, tmp_path, capsys):  # noqa: F811
    for words, complaint in (
        (["--precision", "int8"], "--precision int8 needs two scene sets with images"),
        (["--precision", "fp8", "--gate", sets[3]], "--precision fp8 needs two scene sets"),
        (["--precision", "fp8", "--gate", sets[3], "--calibrate", sets[3]], "--precision fp8 needs two scene sets"),
        (["--calibrate", sets[1]], "--calibrate is for --precision int8 and fp8: leave it out"),
        (["--gate", sets[3]], "--gate compares other precisions with fp32"),
        (["--precision", "bf16", "--gate", str(tmp_path)], "holds no set of scenes"),
    ):
        assert main(["export", str(tiny_model.file), "--out", str(tmp_path / "out"), *words]) == 2
        assert complaint in capsys.readouterr().err
