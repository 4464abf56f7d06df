"""Token networks that read the scene, and tokens in the frame of the route."""

from dataclasses import replace

import denoiser_cases
import hand_scenes
import numpy as np
import pytest
import torch
from tiny_net import random_actions, tiny_inputs, tiny_net
from tiny_scene import SPEC, critical_net, critiques_of, scene_inputs, scene_net

from reflectdrive_ros.core.tokens import ROUTE_DRIVEFINE, ROUTE_FRAME
from reflectdrive_ros.deploy.export import export
from reflectdrive_ros.features.images import WORDS, InputSpec, WordTokenizer, model_inputs
from reflectdrive_ros.model.card import GraphCard
from reflectdrive_ros.model.token import rollout
from reflectdrive_ros.model.token.ops import GoalRules
from reflectdrive_ros.planning.plan_changes import PlanModes, change_actions, offsets_of
from reflectdrive_ros.runtime.network import synthetic_inputs
from reflectdrive_ros.runtime.ort_backend import OrtNetwork
from reflectdrive_ros.runtime.torch_backend import TorchNetwork
from reflectdrive_ros.scoring.frenet import FrenetFrame, points_in_ego_frame
from reflectdrive_ros.training.rl import plan_log_probs

FORWARD_M, LEFT_M = 0.3, 0.1  # bins of ROUTE_FRAME


@pytest.mark.parametrize("images", [True, False])
def test_plans_depend_on_every_agent_and_lane_that_is_there(images):
    net = scene_net(images=images)
    inputs, actions = scene_inputs(net), random_actions(net)
    before = net.packed_logits(inputs, actions)
    for name in ("agents", "static_objects", "lanes", "route_lanes"):
        rows = getattr(inputs.scene, name).clone()
        rows[:, 0, ..., 0] += 3.0 * (rows[:, 0] != 0).any(-1)
        moved = net.packed_logits(inputs._replace(scene=inputs.scene._replace(**{name: rows})), actions)
        assert not torch.allclose(moved, before, atol=1e-5), name


def test_a_network_without_images_plans_from_the_scene_alone():
    net = scene_net(images=False)
    assert not [name for name, _ in net.named_parameters() if name.startswith(("vision.", "projector.", "camera"))]
    assert net.config.image_count == 0
    decoded = rollout.full_step(net, scene_inputs(net), rollout.Decoding())
    assert decoded.actions.shape[::2] == (2, ROUTE_FRAME.length)
    assert (decoded.actions != ROUTE_FRAME.mask_id).all()


def test_a_network_that_reads_nothing_is_refused():
    with pytest.raises(ValueError, match="images is false and scene is not set"):
        tiny_net(images=False)


def test_a_scene_that_the_network_does_not_read_is_refused():
    net = tiny_net()
    with pytest.raises(ValueError, match="reads no scene"):
        net.prompt(tiny_inputs(net)._replace(scene=denoiser_cases.random_inputs(SPEC, 2, 0)))


def test_inputs_without_images_and_text_are_the_scene_and_say_nothing_of_what_is_not_read():
    spec = InputSpec(64, 32, 0, WordTokenizer(WORDS), cameras=0, vectors=SPEC)
    observation = replace(hand_scenes.scene(images=False).observation(vectors=True), instruction="turn left now")
    inputs = model_inputs(observation, spec)
    assert inputs.images.shape == (0, 32, 64, 3)
    assert inputs.text.shape == (0,)
    assert inputs.scene.lanes.shape[0] == SPEC.lanes
    assert not [note for note in inputs.notes if "instruction" in note or "images" in note]


# --- tokens in the frame of the route ---------------------------------------------------------------------------------


def bend(radius_m=40.0):
    angle = np.linspace(-0.3, 2.0, 120)
    return np.stack([radius_m * np.sin(angle), radius_m * (1.0 - np.cos(angle)), angle], axis=1)


def test_a_plan_that_keeps_its_lane_in_a_bend_has_one_lateral_token():
    road = FrenetFrame.of(bend())
    along = np.linspace(3.0, 40.0, 8)
    waypoints = np.stack([along, np.full(8, 0.4)], axis=1)
    ids = ROUTE_FRAME.encode(waypoints)
    assert len(set(ids[1::2].tolist())) == 1
    points = points_in_ego_frame(ROUTE_FRAME.decode(ids), ROUTE_FRAME, road)
    np.testing.assert_allclose(np.hypot(points[:, 0], points[:, 1] - 40.0), 39.6, atol=0.2)


def test_points_on_the_route_come_back_within_half_a_bin():
    road = FrenetFrame.of(bend())
    points = np.stack([40.0 * np.sin(np.linspace(0.1, 0.9, 8)), 40.0 * (1 - np.cos(np.linspace(0.1, 0.9, 8)))], axis=1)
    straight = road.to_frenet(points).points
    back = points_in_ego_frame(ROUTE_FRAME.decode(ROUTE_FRAME.encode(straight)), ROUTE_FRAME, road)
    assert np.abs(back - points).max() < 0.5 * np.hypot(FORWARD_M, LEFT_M) + 0.05


def test_goals_are_decoded_with_the_grid_of_each_axis():
    ids = ROUTE_FRAME.encode(np.stack([np.linspace(3.0, 30.0, 8), np.linspace(0.1, 0.8, 8)], axis=1))
    np.testing.assert_allclose(ROUTE_FRAME.decode_goal(ids), [30.0, 0.8], atol=1e-9)


def test_goals_in_the_frame_of_the_route_keep_their_distance_in_metres():
    net = scene_net(images=False)
    prefilled = rollout.prefill_goal(net, scene_inputs(net), rollout.Decoding().goals)
    for goals, valid in zip(prefilled.actions, prefilled.valid, strict=True):
        metres = ROUTE_FRAME.decode_goal(goals[valid].numpy())
        away = np.hypot(*np.moveaxis(metres[:, None] - metres, -1, 0))
        assert away[~np.eye(len(metres), dtype=bool)].min(initial=9.0) > 1.19


def test_changes_on_the_route_are_along_and_beside_it():
    ids = ROUTE_FRAME.encode(np.stack([np.linspace(4.0, 32.0, 8), np.zeros(8)], axis=1))[None]
    samples = np.array([[[1.0, 0.0, 0.0, 0.0], [0.0, 0.0, 1.0, 0.0]]])
    changed = ROUTE_FRAME.decode(
        change_actions(ids, offsets_of(samples, 8, PlanModes(3.0, 1.0, 0.5, 0.2)), ROUTE_FRAME)
    )
    faster, left = changed[0] - ROUTE_FRAME.decode(ids)
    np.testing.assert_allclose(faster[-1], [3.0, 0.0], atol=0.16)
    np.testing.assert_allclose(left[-1], [0.0, 0.5], atol=0.06)
    assert (np.diff(changed[0, 0, :, 0]) > 0).all()


# --- expected scores --------------------------------------------------------------------------------------------------


def test_log_probs_of_plans_are_sums_over_the_tokens_that_count():
    log_probs = torch.randn(1, 2, 4, 5, generator=torch.Generator().manual_seed(0)).log_softmax(-1)
    plans = torch.tensor([[[0, 1, 2, 3], [4, 4, 0, 0]]])
    counted = torch.tensor([[[True, False, True, False], [False, True, False, False]]])
    first = log_probs[0, 0, 0, 0] + log_probs[0, 0, 2, 2] + log_probs[0, 1, 1, 1]
    second = log_probs[0, 0, 0, 4] + log_probs[0, 0, 2, 0] + log_probs[0, 1, 1, 4]
    torch.testing.assert_close(plan_log_probs(log_probs, plans, counted), torch.stack([first, second])[None])


def test_an_edit_depends_on_the_critique_of_its_own_plan_and_an_unknown_one_says_nothing():
    net = critical_net()
    keys_values, actions = net.encode(net.prompt(scene_inputs(net))), random_actions(net, masked=0.0)
    plain, critique = net.refine(actions, keys_values), critiques_of(actions)
    with_critique = net.refine(actions, keys_values, critique)
    unknown = net.refine(actions, keys_values, critiques_of(actions, certainty=0.0))
    assert not torch.allclose(with_critique, plain, atol=1e-4)
    torch.testing.assert_close(unknown, plain, atol=0.0, rtol=0.0)
    other = critique.clone()
    other[:, 0] = -other[:, 0]
    changed = net.refine(actions, keys_values, other)
    torch.testing.assert_close(changed[:, 1:], with_critique[:, 1:], atol=1e-5, rtol=1e-5)


def test_a_critique_without_an_expert_that_reads_it_is_refused():
    with pytest.raises(ValueError, match=r"critique is 5, but refine_layers is 0"):
        scene_net(images=False, critique=5)


def test_graphs_of_a_scene_network_write_the_tokens_of_torch(tmp_path):
    net, rules = critical_net(words=WORDS, text_vocabulary=len(WORDS)), rollout.Decoding(GoalRules(count=3))
    export(net, "0" * 64, tmp_path, {}, rules)
    card = GraphCard.read(tmp_path / "card.json")
    assert set(card.files) == {"prefill_goal", "prefill", "step", "edit"}
    graphs, eager = OrtNetwork(card), TorchNetwork(net, decoding=rules)
    assert graphs.inputs.vectors == SPEC
    assert "critique" in graphs.capabilities & eager.capabilities
    inputs = synthetic_inputs(eager)
    (decided, plans), (expected, expected_plans) = (drafted(each, inputs) for each in (graphs, eager))
    np.testing.assert_array_equal(decided.actions, expected.actions)
    np.testing.assert_allclose(decided.goal_log_probs, expected.goal_log_probs, atol=1e-4)
    np.testing.assert_array_equal(plans, expected_plans)
    critique = critiques_of(torch.from_numpy(plans)[None])[0].numpy()
    for each, context in ((graphs, graphs.prefill(inputs)), (eager, eager.prefill(inputs))):
        ids, confidence = each.refine(context, plans, critique)
        one, _ = each.refine(context, plans[:1], critique[:1])
        np.testing.assert_array_equal(ids[:1], one)
        expected_ids, sure = eager.refine(expected.context, plans, critique)
        np.testing.assert_array_equal(ids, expected_ids)
        np.testing.assert_allclose(confidence, sure, atol=1e-5)
    assert not np.array_equal(expected_ids, eager.refine(expected.context, plans, 0.0 * critique)[0])


@pytest.mark.long  # 24 s of a processor, for what the test above claims of another layout
def test_graphs_of_drivefine_on_the_route_refine_with_a_critique_as_torch_does(tmp_path):
    net = critical_net(layout=ROUTE_DRIVEFINE, table_stride=4, words=WORDS, text_vocabulary=len(WORDS))
    export(net, "0" * 64, tmp_path, {}, rollout.DRIVEFINE_DECODING, sequences=2)
    card = GraphCard.read(tmp_path / "card.json")
    assert set(card.files) == {"prefill", "step", "sampled_step", "edit"}
    graphs, eager = OrtNetwork(card), TorchNetwork(net, decoding=rollout.DRIVEFINE_DECODING)
    assert graphs.capabilities == eager.capabilities == {"edit", "sampling", "refine", "critique"}
    inputs = synthetic_inputs(eager)
    masked = np.full((3, ROUTE_DRIVEFINE.length), ROUTE_DRIVEFINE.mask_id, np.int32)
    contexts = [each.prefill(inputs) for each in (graphs, eager)]
    plans, expected = (
        each.draft(context, masked, (5, 5, 6)) for each, context in zip((graphs, eager), contexts, strict=True)
    )
    np.testing.assert_array_equal(plans[0], expected[0])
    critique = critiques_of(torch.from_numpy(plans[0])[None])[0].numpy()
    written, expected = (
        each.refine(context, plans[0], critique) for each, context in zip((graphs, eager), contexts, strict=True)
    )
    np.testing.assert_array_equal(written[0], expected[0])
    assert not np.array_equal(written[0], graphs.refine(contexts[0], plans[0], 0.0 * critique)[0])


def drafted(network, inputs):
    prefilled = network.prefill_goal(inputs)
    return prefilled, network.draft(prefilled.context, prefilled.actions, (5, 5, 4))[0]
