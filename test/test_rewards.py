"""Rewards of plans: the scores that an evaluation gives them, also of mirrored scenes."""

from dataclasses import replace

import hand_scenes
import numpy as np
import pytest
from tiny_training import make_set, network, prepare, with_words

from reflectdrive_ros.core.config import Config
from reflectdrive_ros.data import shards
from reflectdrive_ros.evaluation import driving_scores, privilege
from reflectdrive_ros.planning import pipeline
from reflectdrive_ros.planning.generators import reflectdrive2
from reflectdrive_ros.planning.planner import PlannerContext, PlannerState
from reflectdrive_ros.runtime.torch_backend import TorchNetwork
from reflectdrive_ros.training import rewards
from reflectdrive_ros.training.rewards import PlanScorer, RewardPool


@pytest.fixture(scope="module")
def road_scenes(tmp_path_factory):
    folder = make_set(tmp_path_factory.mktemp("rl") / "train", scenes=4, per_shard=2)
    return folder, prepare(folder)


def plans_near_the_expert(scene, layout, count=4, seed=0):
    rng = np.random.default_rng(seed)
    points = scene.expert[None, :, :2] * rng.uniform(0.7, 1.2, (count, 1, 1)) + rng.normal(0, 0.3, (count, 8, 2))
    return layout.clip(layout.encode(points))


@pytest.mark.parametrize("privilege_name", ["route", "words"])
def test_rewards_are_the_scores_that_eval_gives_the_same_plans(privilege_name):
    net, config = with_words(), Config()
    scorer = PlanScorer(net.config.layout)
    for number in range(6):
        scene = hand_scenes.scene(f"val-00000-{number:03d}", size=(64, 32), agents=3)
        context = PlannerContext(replace(config, planner="reflectdrive2"), TorchNetwork(net))
        _, plan = pipeline.plan(
            reflectdrive2.generate, PlannerState(), privilege.observe(scene, privilege_name), context
        )
        row = driving_scores.score_plans(
            scene.scored(), {"plan": driving_scores.plan_waypoints(plan)[0]}, config.scoring
        )["plan"]
        rewards = scorer(scene, np.asarray(plan.tokens)[None], privilege_name == "route")[0]
        np.testing.assert_allclose(rewards, [row[driving_scores.MEASURES.index(name)] for name in MEASURES], atol=1e-6)


MEASURES = ("pdms", *rewards.SUB_SCORES)


def test_flipped_scenes_give_flipped_plans_the_rewards_of_the_plans(road_scenes):
    folder, scenes = road_scenes
    layout = network().layout
    listed = list(shards.read(folder, images=False, on_damage=pytest.fail))
    actions = np.stack([plans_near_the_expert(scene, layout, seed=k) for k, scene in enumerate(listed)])
    everywhere, rows = np.ones(4, bool), [2, 0, 3, 1]
    with RewardPool(folder, scenes, PlanScorer(layout), 2) as pool:
        plain = pool.score(rows, ~everywhere, everywhere, actions[rows])
        flipped = pool.score(rows, everywhere, everywhere, rewards.mirror_actions(actions[rows], layout))
    np.testing.assert_array_equal(plain, flipped)
    direct = PlanScorer(layout)
    for index, row in enumerate(rows):
        np.testing.assert_allclose(plain[index], direct(listed[row], actions[row], with_route=True), atol=1e-6)
    assert len(np.unique(plain[..., 0])) > 4


def test_mirrored_twice_is_the_plan_itself_and_masks_stay():
    layout = network().layout
    actions = np.random.default_rng(0).integers(0, layout.bins + 1, (3, 5, layout.length))
    once = rewards.mirror_actions(actions, layout)
    np.testing.assert_array_equal(rewards.mirror_actions(once, layout), actions)
    np.testing.assert_array_equal(once == layout.mask_id, actions == layout.mask_id)
    np.testing.assert_array_equal(once[..., ::2], actions[..., ::2])
