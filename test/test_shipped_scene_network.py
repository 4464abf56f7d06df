"""models/reflectdrive2_scene drives by map and objects alone, and its edits read the check's critique."""

from dataclasses import replace
from itertools import islice

import numpy as np
import pytest
from rich.console import Console
from shipped_planner import HERE, SCENES

from reflectdrive_ros.bench import parity
from reflectdrive_ros.core.config import load
from reflectdrive_ros.evaluation import driving_scores, privilege
from reflectdrive_ros.model.card import GraphCard, sha256_of
from reflectdrive_ros.planning import decoding_config, get_planner
from reflectdrive_ros.planning.planner import PlannerContext
from reflectdrive_ros.runtime.model_file import model_config
from reflectdrive_ros.runtime.network import load_network

FOLDER = HERE.parent / "models" / "reflectdrive2_scene"
CONFIG = load(HERE.parent / "config" / "reflectdrive2_scene.yaml")
STORED = 20


def planned(config, network, observe, count=STORED):
    """Plans of the first stored scenes from cold, and what they score in percent."""
    planner, planner_context = get_planner(config), PlannerContext(config, network)
    plans, scores = [], []
    for scene in islice(parity.read_scenes(SCENES, STORED, Console(quiet=True)), count):
        plan = driving_scores.plan_once(planner, observe(scene), planner_context)
        points = {"plan": driving_scores.plan_waypoints(plan)[0]}
        plans.append(plan)
        scored = driving_scores.score_plans(scene.scored(vehicle=config.vehicle), points, config.scoring)
        scores.append(100.0 * scored["plan"][0])
    return plans, np.array(scores)


def with_objects(scene):
    return privilege.observe(scene, "objects", with_vectors=True)


@pytest.fixture(scope="module")
def network():
    return load_network(replace(CONFIG.model, threads=1), decoding_config(CONFIG))


def test_the_configuration_names_the_graphs_of_the_shipped_weights():
    card = GraphCard.read(FOLDER / "onnx" / "card.json")
    assert CONFIG.model.sha256 == sha256_of(FOLDER / "onnx" / "card.json")
    assert card.model["weights_sha256"] == sha256_of(FOLDER / "weights.safetensors")
    assert "critique" in card.model["capabilities"]
    assert max(file.stat().st_size for file in FOLDER.rglob("*.*")) < 16e6


def test_its_edits_raise_the_score_of_its_plans_alone(network):
    """Without choice, variants and repair; 20 scenes cannot show the gain of 1000, but a loss."""
    alone = replace(CONFIG, pipeline=replace(CONFIG.pipeline, select=False, vary=False, repair=False))
    no_edits = replace(alone, reflectdrive2=replace(alone.reflectdrive2, edit_rounds=0))
    edited_plans, edited = planned(alone, network, with_objects)
    drafts, drafted = planned(no_edits, network, with_objects)
    assert edited.mean() >= drafted.mean()
    moved = [not np.array_equal(plan.tokens, draft.tokens) for plan, draft in zip(edited_plans, drafts, strict=True)]
    assert np.mean(moved) > 0.5


def test_graphs_and_weights_plan_the_same(network):
    in_torch = load_network(
        replace(model_config(str(FOLDER / "weights.safetensors"), None), threads=1), CONFIG.decoding
    )
    plans, _ = planned(CONFIG, network, with_objects, 4)
    expected, _ = planned(CONFIG, in_torch, with_objects, 4)
    for plan, other in zip(plans, expected, strict=True):
        np.testing.assert_array_equal(plan.tokens, other.tokens)


def test_without_objects_there_is_a_plan(network):
    """A car whose perception is gone: the critique is unknown, and a plan is made of the route and its lanes."""
    plans, scores = planned(CONFIG, network, lambda scene: privilege.observe(scene, "route", with_vectors=True))
    assert len(plans) == STORED
    assert scores.mean() > 0.0
