"""The shipped networks that drive by map and objects alone, and whose experts read the check's critique."""

from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from rich.console import Console
from shipped_planner import HERE, SCENES

from reflectdrive_ros.bench import parity
from reflectdrive_ros.core.config import Config, load, override_dotted
from reflectdrive_ros.evaluation import driving_scores, privilege
from reflectdrive_ros.model.card import GraphCard, sha256_of
from reflectdrive_ros.planning import decoding_config, get_planner
from reflectdrive_ros.planning.planner import Network, PlannerContext
from reflectdrive_ros.runtime.model_file import model_config
from reflectdrive_ros.runtime.network import load_network

NAMES = ("reflectdrive2_scene", "drivefine_scene")
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


class Shipped(NamedTuple):
    folder: Path
    config: Config
    network: Network


@pytest.fixture(scope="module", params=NAMES)
def shipped(request):
    config = load(HERE.parent / "config" / f"{request.param}.yaml")
    network = load_network(replace(config.model, threads=1), decoding_config(config))
    return Shipped(HERE.parent / "models" / request.param, config, network)


def test_the_configuration_names_the_shipped_graphs(shipped):
    card = shipped.folder / "onnx" / "card.json"
    assert shipped.config.model.sha256 == sha256_of(card)
    assert "critique" in GraphCard.read(card).model["capabilities"]


def test_its_expert_raises_the_score_of_more_plans_than_it_lowers(shipped):
    """Without choice, variants and repair; a mean over 20 scenes would be that of the one plan that fails."""
    config = shipped.config
    alone = replace(config, pipeline=replace(config.pipeline, select=False, vary=False, repair=False))
    draft = override_dotted(alone, {"reflectdrive2.edit_rounds": 0, "drivefine.refine": False})
    corrected_plans, corrected = planned(alone, shipped.network, with_objects)
    drafts, drafted = planned(draft, shipped.network, with_objects)
    assert (corrected > drafted).sum() > (corrected < drafted).sum()
    moved = [not np.array_equal(plan.tokens, draft.tokens) for plan, draft in zip(corrected_plans, drafts, strict=True)]
    assert np.mean(moved) > 0.5


def test_graphs_and_weights_plan_the_same(shipped):
    weights = model_config(str(shipped.folder / "weights.safetensors"), None)
    in_torch = load_network(replace(weights, threads=1), decoding_config(shipped.config))
    plans, _ = planned(shipped.config, shipped.network, with_objects, 4)
    expected, _ = planned(shipped.config, in_torch, with_objects, 4)
    for plan, other in zip(plans, expected, strict=True):
        np.testing.assert_array_equal(plan.tokens, other.tokens)


def test_without_objects_there_is_a_plan(shipped):
    """A car whose perception is gone: the critique is unknown, and a plan is made of the route and its lanes."""
    plans, scores = planned(
        shipped.config, shipped.network, lambda scene: privilege.observe(scene, "route", with_vectors=True)
    )
    assert len(plans) == STORED
    assert scores.mean() > 0.0
