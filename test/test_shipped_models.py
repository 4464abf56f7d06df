"""What lies in models/ is what its cards say, and drives."""

from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import numpy as np
import pytest
from scenes import Clock, cars, config, lanes, later, observation, straight_route, turning_route
from scripted_network import camera_observation

from reflectdrive_ros.core import geometry
from reflectdrive_ros.core.config import SHIPPED_MODELS, Config
from reflectdrive_ros.core.domain import StepKind, Verdict
from reflectdrive_ros.core.tokens import Codebook
from reflectdrive_ros.features.images import model_inputs
from reflectdrive_ros.model.card import GraphCard, sha256_of
from reflectdrive_ros.planning import decoding_config
from reflectdrive_ros.runtime.engine import Engine
from reflectdrive_ros.runtime.graphs import GoalChoice
from reflectdrive_ros.runtime.model_file import ModelFileError
from reflectdrive_ros.runtime.network import load_network

MODELS = Path(__file__).parents[1] / "models"
CARDS = sorted(MODELS.glob("*/*/card.json"))
LARGEST_BYTES = 16_000_000
SMALL = MODELS / "reflectdrive2_small"
GRAPHS = {"fp32": SMALL / "onnx/card.json", "int8": SMALL / "int8/card.json"}


@pytest.mark.parametrize("file", CARDS, ids=lambda file: "/".join(file.parts[-3:-1]))
def test_graphs_are_those_of_the_shipped_weights_and_no_file_is_large(file):
    card = GraphCard.read(file)
    assert card.precision == ("int8" if file.parent.name == "int8" else "fp32")
    weights = file.parents[1] / "weights.safetensors"
    assert card.model["weights_sha256"] == sha256_of(weights)
    assert all(each.stat().st_size <= LARGEST_BYTES for each in (weights, *file.parent.iterdir()))


@pytest.mark.parametrize(
    ("planner", "capabilities"),
    [("reflectdrive2", {"goals", "edit"}), ("drivefine", {"refine", "sampling"}), ("reflexdiffusion", {"guidance"})],
)
def test_a_planner_drives_on_graphs_in_float32_that_can_do_what_its_settings_ask(planner, capabilities):
    file, sha256 = SHIPPED_MODELS[planner]
    assert sha256_of(MODELS.parent / file) == sha256
    card = GraphCard.read(MODELS.parent / file)
    assert card.precision == "fp32"
    assert capabilities <= card.capabilities


# --- the planners with models of their own ----------------------------------------------------------------------------


@lru_cache
def own_network(planner):
    settings = Config(planner=planner)
    return load_network(replace(settings.model, threads=1), settings.decoding)


def step(planner, scene):
    settings = replace(config(), planner=planner, model=Config(planner=planner).model)
    return Engine(settings, Clock(), network=own_network(planner)).step(scene)


def on_road(**changes):
    """8 m/s on the right one of two lanes."""
    road = lanes(*((50.0 * k - 50.0, y, 50.0, 3.5, 13.9, 0) for k in range(4) for y in (0.0, 3.5)))
    route = lanes(*((50.0 * k - 50.0, 0.0, 50.0, 3.5, 13.9, 0) for k in range(4)))
    return observation(speed=8.0, route=straight_route(), lanes=road, route_lanes=route, **changes)


@pytest.mark.parametrize(("planner", "scene"), [("drivefine", camera_observation(8.0)), ("reflexdiffusion", on_road())])
def test_a_planner_does_not_drive_into_a_standing_car(planner, scene):
    plan = step(planner, replace(scene, agents=cars((24.0, 0.0, 0.0, 0.0)))).plan
    assert plan.trajectory.poses[-1, 0] < 24.0
    assert plan.check.unsafe_after_s is None


def test_drivefine_drives_on_and_repeats_its_plan():
    reports = [step("drivefine", camera_observation(speed=8.0)) for _ in range(2)]
    assert {report.verdict for report in reports} == {Verdict.OK}
    plans = [report.plan for report in reports]
    assert plans[0].tokens.tolist() == plans[1].tokens.tolist()
    assert 15.0 < plans[0].trajectory.poses[-1, 0] < 45.0
    assert np.abs(plans[0].trajectory.poses[:, 1]).max() < 3.0


@pytest.mark.parametrize("agents", [None, cars()], ids=["unknown", "none"])
def test_reflexdiffusion_plans_without_a_map_and_says_so(agents):
    """The network's plan, or the stop plan: it has not learned to drive without lanes."""
    report = step("reflexdiffusion", observation(speed=6.0, route=straight_route(), agents=agents))
    assert len(report.plan.trajectory.poses)
    assert any("lanes are unknown" in note for note in report.notes)


# --- the default planner ----------------------------------------------------------------------------------------------


def on_graphs(precision="fp32", **changes):
    """The default configuration on shipped graphs."""
    file = GRAPHS[precision]
    return config(model__file=str(file), model__sha256=sha256_of(file), model__threads=1, **changes)


@lru_cache
def network(precision):
    """Number and spacing of the goals are each engine's own, so all recipes and settings may share it."""
    planner_config = on_graphs(precision)
    return load_network(planner_config.model, planner_config.decoding)


def engine_of(precision, planner, **changes):
    planner_config = on_graphs(precision, planner=planner, **changes)
    goals = decoding_config(planner_config)
    network(precision).goal_choice = GoalChoice(goals.goals, goals.goal_spacing_m)
    return Engine(planner_config, Clock(), network=network(precision))


@pytest.mark.parametrize("precision", GRAPHS)
def test_they_drive_full_and_lite_steps_of_a_car_that_goes_straight_on(precision):
    engine, scene = engine_of(precision, "reflectdrive2"), camera_observation(speed=8.0)
    assert engine.backend_description.endswith("int8") is (precision == "int8")
    reports = [engine.step(later(scene, 0.1 * k, forward=0.8 * k)) for k in range(4)]
    assert [report.plan.step for report in reports] == [StepKind.FULL, StepKind.LITE] * 2
    assert {report.verdict for report in reports} == {Verdict.OK}


# --- the recipe reflectdrive, which wants other goals than the default planner ---------------------------------------

TURNING = camera_observation(6.0, route=turning_route())
BESIDE = cars((40.0, 20.0, 0.0, 0.0))


@pytest.mark.parametrize("precision", GRAPHS)
@pytest.mark.parametrize(("goals", "spacing_m"), [(3, 0.9), (6, 0.9), (3, 5.1), (8, 0.3)])
def test_reflectdrive_takes_the_goals_that_it_wants_of_those_that_the_graphs_give(precision, goals, spacing_m):
    """The likeliest, as many as it wants, each as far from the others as it wants."""
    settings = {"reflectdrive__goals": goals, "reflectdrive__goal_spacing_m": spacing_m}
    own = {"pipeline__select": False, "pipeline__repair": False}  # the trace is that of the generator's first
    engine = engine_of(precision, "reflectdrive", **settings, **own)
    report = engine.step(replace(TURNING, agents=BESIDE))
    assert report.verdict is Verdict.OK, report.reason
    plan = report.plan
    ends = np.array([trajectory.poses[-1, :2] for trajectory in (plan.trajectory, *plan.candidates)])
    assert len(plan.trace.goals) == len(ends) == goals
    distances_m = np.linalg.norm(plan.trace.goals[:, None] - plan.trace.goals, axis=-1)[np.triu_indices(goals, 1)]
    assert distances_m.min() >= spacing_m - 1e-3
    gaps = np.linalg.norm(ends[:, None] - plan.trace.goals, axis=-1)
    assert gaps.min(axis=0).max() < 0.5, f"ends {ends}, goals {plan.trace.goals}"
    assert np.diff(plan.trace.goal_probabilities).max() <= 0.0


@pytest.mark.parametrize("precision", GRAPHS)
def test_more_goals_than_the_graphs_give_are_refused_at_the_start(precision):
    planner_config = on_graphs(precision, planner="reflectdrive", reflectdrive__goals=9)
    sentence = r"9 goals are set, but the graphs of .* give at most \d: set fewer, or export them again"
    with pytest.raises(ModelFileError, match=sentence):
        Engine(planner_config, Clock())


# --- what is published of goals and tokens ----------------------------------------------------------------------------


def messages(report):
    from reflectdrive_ros.ros import outputs

    planner_config = config()
    return outputs.debug(report, planner_config, {}), outputs.goals(report.plan, planner_config)


FASTER = camera_observation(9.0, route=turning_route())  # no plan stops at once, so smoothing changes the points little


@pytest.fixture(scope="module")
def turning():
    """Reports of a full and a lite step, of which the lite one edits."""
    engine = engine_of("fp32", "reflectdrive2")
    placed = replace(FASTER, ego=replace(FASTER.ego, map_from_ego=np.array([100.0, -20.0, 0.3])))
    return [engine.step(later(placed, 0.1 * step)) for step in range(2)]


def test_the_published_tokens_decode_to_the_plan(turning):
    for report in turning:
        debug, _ = messages(report)
        plan, ids = report.plan, np.array(debug.tokens_after_edit)
        at_points = plan.trajectory.poses[4::5, :2]  # each half second
        np.testing.assert_allclose(Codebook().decode(ids), at_points, atol=0.3)  # a bin, which smoothing may use
        rounds = np.array(debug.round_tokens).reshape(debug.edit_rounds + 1, 16)
        confidence = np.array(debug.round_confidence).reshape(rounds.shape)
        assert rounds[0].tolist() == list(debug.tokens_before_edit)
        assert rounds[-1].tolist() == list(debug.tokens_after_edit)
        assert confidence[-1].tolist() == list(debug.token_confidence)
        assert ((confidence > 0.0) & (confidence <= 1.0)).all()


def test_an_edited_token_differs_and_is_published_with_its_probability(turning):
    full, lite = (messages(report)[0] for report in turning)
    assert (full.step_kind, lite.step_kind) == ("full", "lite")
    before, after = np.array(lite.tokens_before_edit), np.array(lite.tokens_after_edit)
    assert 1 <= (before != after).sum() <= GraphCard.read(GRAPHS["fp32"]).model["decoding"]["edits"]["at_most"]
    assert before[-2:].tolist() == after[-2:].tolist()  # here the goal is not edited, though it may be
    edit_network = network("fp32")  # once more, by hand
    context = edit_network.prefill(model_inputs(later(FASTER, 0.1), edit_network.inputs))
    (edited,), (probability,) = edit_network.step(context, before[None].astype(np.int32), 0, True)
    assert edited.tolist() == after.tolist()
    np.testing.assert_allclose(lite.token_confidence, probability, rtol=1e-5)


def test_goals_are_published_in_the_map_with_their_probabilities(turning):
    full, lite = (messages(report)[1] for report in turning)
    debug, plan = messages(turning[0])[0], turning[0].plan
    assert len(full.x) == len(full.y) == len(full.probability) == 6
    assert 0 <= full.chosen < 6
    end = geometry.transform_points(plan.map_from_ego, Codebook().decode(np.array(debug.tokens_after_edit))[-1])
    assert (full.x[full.chosen], full.y[full.chosen]) == pytest.approx(end, abs=1e-4)
    assert list(full.probability) == sorted(full.probability, reverse=True)
    assert 0.0 < sum(full.probability) <= 1.0
    assert full.header.frame_id == "map"
    assert (len(lite.x), lite.chosen) == (0, -1)  # a lite step keeps the goal that it has
