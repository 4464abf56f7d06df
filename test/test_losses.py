"""The losses: the series is the sum over all cells, and leaving the road has a price that points back to it."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch
from hand_scenes import scene
from tiny_net import goal_logits, tiny_net, uniform_goal_values
from tiny_training import LAYOUT, a_batch

from reflectdrive_ros.data import distance_map, occupancy
from reflectdrive_ros.scoring import drivable
from reflectdrive_ros.scoring.areas import MapAreas
from reflectdrive_ros.sim.render.camera import rig
from reflectdrive_ros.training.losses import Losses, field_loss, token_loss
from reflectdrive_ros.training.perception_heads import BevHead, GroundHead, ground_points_m
from reflectdrive_ros.training.settings import LossConfig

CODEBOOK = LAYOUT.codebook
ACTION_TOKENS, (GOAL_X, GOAL_Y) = LAYOUT.length, LAYOUT.goal


def brute_force(x_logits, y_logits, cost):
    p, q = x_logits.softmax(-1), y_logits.softmax(-1)
    cells = -torch.log1p(-p[..., :, None] * q[..., None, :]) * cost[:, None]
    return cells.sum((1, 2, 3)).mean()


def logits_of(sharpness, size=(3, 8, 21), seed=0):
    return sharpness * torch.randn(size, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("sharpness", [0.0, 0.5, 2.0, 5.0, 10.0])
def test_the_series_is_the_sum_over_all_cells_and_so_is_its_gradient(sharpness):
    cost = 5 * torch.rand(3, 21, 21, dtype=torch.float64, generator=torch.Generator().manual_seed(9))
    series, brute = [], []
    for loss, results in ((field_loss, series), (brute_force, brute)):
        x, y = (logits_of(sharpness, seed=seed).requires_grad_() for seed in (1, 2))
        value = loss(x, y, cost)
        value.backward()
        results += [value.detach(), x.grad, y.grad]
    np.testing.assert_allclose(series[0], brute[0], rtol=1e-6)
    for ours, theirs in zip(series[1:], brute[1:], strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-5 * max(1.0, float(theirs.abs().max())))


def test_certainty_is_finite_and_its_gradient_is_bounded_by_the_cost():
    x, y = (torch.full((1, 1, 21), -100.0).requires_grad_() for _ in range(2))
    with torch.no_grad():
        x[..., 4], y[..., 7] = 100.0, 100.0  # p = q = 1 in float32: the plain formula is infinite
    cost = torch.full((1, 21, 21), 3.0)
    assert not torch.isfinite(brute_force(x.detach(), y.detach(), cost))
    loss = field_loss(x, y, cost)
    loss.backward()
    assert torch.isfinite(loss)
    assert loss > 100
    assert torch.isfinite(x.grad).all()
    assert torch.isfinite(y.grad).all()
    assert x.grad.abs().max() <= 3.0 + 1e-4
    assert x.grad[0, 0, 4] > 0  # down with it


@pytest.mark.parametrize("side", [1.0, -1.0])
def test_a_road_to_one_side_pulls_the_plan_to_that_side(side):
    low, high = sorted((2.0 * side, 8.0 * side))
    ring = np.array([[-40.0, low], [120.0, low], [120.0, high], [-40.0, high]])
    distances = torch.from_numpy(distance_map.distance_map(MapAreas(roadblocks=(ring,))))[None]
    cost = (0.1 * distances.float()).clamp(min=0.0)
    x = torch.zeros(1, 1, distances.shape[1])
    metres = torch.from_numpy(CODEBOOK.to_values(np.arange(CODEBOOK.bins)[distance_map.id_window()[1]])).float()
    y = (-0.5 * (metres / 1.5) ** 2)[None, None].clone().requires_grad_()
    field_loss(x, y, cost).backward()
    pull = -(y.grad[0, 0] * metres).sum()  # where a step down the slope moves the mean
    assert pull * side > 0


# --- maps ------------------------------------------------------------------------------------------------------------


def grid_of(areas):
    return drivable.grid_around_ego(drivable.union_polygons((*areas.roadblocks, *areas.intersections)))


@pytest.mark.parametrize("curvature", [-0.02, 0.0, 0.015])
def test_a_map_tells_the_distance_to_the_edge_of_the_polygons(curvature):
    areas = scene(images=False, curvature=curvature).areas
    distances = 0.1 * distance_map.distance_map(areas)
    x_ids, y_ids = distance_map.id_window()
    grid = grid_of(areas)
    rng = np.random.default_rng(0)
    i, j = rng.integers(distances.shape[0], size=2000), rng.integers(distances.shape[1], size=2000)
    points = np.stack([CODEBOOK.to_values(i + x_ids.start), CODEBOOK.to_values(j + y_ids.start)], axis=1)
    exact = -drivable.clearances(grid, points)  # up to half a cell more than the truth, and cut off at 5 m
    near = np.abs(exact) < 4.5
    assert near.sum() > 200
    error = distances[i, j][near] - exact[near]
    assert abs(error.mean() + 0.05) < 0.1
    assert np.abs(error).max() < 0.4
    assert (distances[i, j][exact > 4.9] > 4.4).all()


def test_the_map_of_the_mirrored_world_is_the_mirrored_map():
    areas = scene(images=False, curvature=0.02).areas
    flipped = MapAreas(roadblocks=tuple(r * [1, -1] for r in (*areas.roadblocks, *areas.intersections)))
    ours = distance_map.mirror(distance_map.distance_map(areas)).astype(int)
    assert np.abs(ours - distance_map.distance_map(flipped)).max() <= 2


# --- seen from above -------------------------------------------------------------------------------------------------


def cell_of(x_m, y_m):
    return tuple(
        int((value - first) // occupancy.CELL_M) for value, first in zip((x_m, y_m), occupancy.FIRST_M, strict=True)
    )


def test_the_grid_holds_agents_now_and_later():
    stored = scene(images=False, agents=6)
    grids = occupancy.occupancy(stored)
    x_m, y_m = occupancy.cell_centres_m()
    for occupied, step in zip(grids, (20, 30, 40, 60), strict=True):
        there = stored.tracks.present[:, step]
        for x, y in stored.tracks.poses[there, step, :2]:
            if x_m[0] <= x <= x_m[-1] and y_m[0] <= y <= y_m[-1]:
                assert occupied[cell_of(x, y)]
        boxes = there.sum()
        assert occupied.sum() <= 24 * boxes  # a car of 4.5 m by 2 m covers no more cells of a metre than that
    for before, after in itertools.pairwise(grids):
        assert (before != after).any()
    alone = scene(images=False, agents=0)
    assert not occupancy.occupancy(alone).any()


@pytest.mark.parametrize("at", [(10.0, 2.0), (10.5, 2.5), (10.25, 2.0)])
def test_a_pedestrian_is_on_the_grid_at_any_position_within_a_cell(at):
    stored = scene(images=False, agents=1)
    poses = np.broadcast_to([*at, 0.3], stored.tracks.poses.shape)
    tracks = replace(stored.tracks, poses=poses, sizes=np.array([[0.5, 0.5]]), present=stored.tracks.present | True)
    grids = occupancy.occupancy(replace(stored, tracks=tracks))
    assert all(occupied.any() for occupied in grids)
    assert (grids.sum((1, 2)) <= 4).all()


def test_the_grid_of_the_mirror_image_is_that_of_mirrored_road_users():
    stored = scene(images=False, agents=6)
    tracks = replace(stored.tracks, poses=stored.tracks.poses * [1.0, -1.0, -1.0])
    other = occupancy.occupancy(replace(stored, tracks=tracks))
    assert (occupancy.mirror(occupancy.occupancy(stored)) == other).mean() > 0.99  # pixels' edges are rounded one way


def test_the_road_target_is_the_road_of_the_map():
    stored = scene(images=False)
    reader = BevHead(32, torch.Generator().manual_seed(0))
    distances = torch.from_numpy(distance_map.distance_map(stored.areas))[None]
    road = (distances[:, reader.rows][:, :, reader.columns] <= 0)[0].numpy()
    x_m, y_m = occupancy.cell_centres_m()
    centres = np.stack(np.meshgrid(x_m, y_m, indexing="ij"), -1).reshape(-1, 2)
    distances_m = -drivable.clearances(grid_of(stored.areas), centres).reshape(road.shape)
    clear = np.abs(distances_m) > 0.6  # a bin at the edge may be either
    np.testing.assert_array_equal(road[clear], distances_m[clear] < 0)
    assert 0.02 < road.mean() < 0.98


# --- the ground behind an image -------------------------------------------------------------------------------------


def test_a_ground_point_projects_back_to_its_pixel():
    for camera in rig(192, 96):
        points_m = ground_points_m(camera, 24, 24)
        below = np.isfinite(points_m).all(-1)
        assert not below[:8].any()
        assert below[16:].all()
        points = np.column_stack([points_m[below], np.zeros(below.sum()), np.ones(below.sum())])
        in_camera = points @ camera.camera_from_ego.T
        assert (in_camera[:, 2] > 0).all()  # in front of the camera
        pixels = in_camera[:, :3] @ camera.pixels_from_camera.T
        v, u = np.nonzero(below)
        expected = np.stack([(u + 0.5) * 8, (v + 0.5) * 4], axis=1)
        np.testing.assert_allclose(pixels[:, :2] / pixels[:, 2:], expected, atol=1e-6)


def eyes():
    """The ground head, for 3 cameras of 64 x 32: 2 tokens each, 8 rows and 4 columns of points in a token."""
    return GroundHead(tiny_net().config, torch.Generator().manual_seed(0))


def nobody():
    return np.zeros((len(occupancy.FUTURE_STEPS), occupancy.CELLS, occupancy.CELLS), bool)


def targets_of(reader, areas=None, occupied=None):
    areas = areas or MapAreas(roadblocks=(np.array([[-9.0, 0.0], [79.0, 0.0], [79.0, 30.0], [-9.0, 30.0]]),))
    distances = torch.from_numpy(distance_map.distance_map(areas))[None]
    if occupied is None:
        occupied = nobody()
    targets = reader.targets(distances, torch.from_numpy(occupied)[None])[0]
    return targets.bool(), reader.weights > 0


def test_road_to_the_left_is_a_target_of_the_left_tokens():
    reader = eyes()
    targets, has_target = targets_of(reader)
    road, has_target = targets[:, 0], has_target[:, 0]
    left, right = road[:2][has_target[:2]], road[-2:][has_target[-2:]]
    assert left.float().mean() > 0.95
    assert right.float().mean() < 0.05
    assert road[2][has_target[2]].float().mean() > 0.8  # left half of the front image
    assert road[3][has_target[3]].float().mean() < 0.2
    assert not has_target[:, :8].any()  # the sky's rows


def test_an_agent_ahead_is_a_target_of_the_front_image_now_and_later():
    reader = eyes()
    occupied = nobody()
    at = cell_of(13.0, 1.0)
    occupied[1, at[0] - 2 : at[0] + 4, at[1] - 1 : at[1] + 2] = True
    targets, has_target = targets_of(reader, occupied=occupied)
    assert not (targets[:, 1] & has_target[:, 1]).any()
    later = (targets[:, 2] & has_target[:, 2]).any(1)
    assert later[2]
    assert not later[[0, 1, 3, 4, 5]].any()


def test_correct_predictions_have_no_loss_and_unknown_targets_do_not_count():
    reader = eyes()
    targets, has_target = targets_of(reader)
    far_away = np.array([[900.0, 900.0], [910.0, 900.0], [910.0, 910.0], [900.0, 910.0]])
    distances = torch.from_numpy(distance_map.distance_map(MapAreas(roadblocks=(far_away,))))[None]
    occupied = torch.from_numpy(nobody())[None]
    with torch.no_grad():
        reader.linear.weight.zero_()
        reader.linear.bias.fill_(-30.0)  # nothing anywhere
    tokens = torch.zeros(1, len(reader.weights), tiny_net().config.transformer.width)
    all_labelled = torch.ones(1, 2, dtype=torch.bool)
    assert reader.loss(tokens, distances, occupied, all_labelled) < 1e-6
    everywhere = torch.full_like(distances, -10)
    assert reader.loss(tokens, everywhere, occupied, all_labelled) > 5.0
    assert targets.shape == has_target.shape == reader.weights.shape


def test_a_scene_without_a_map_has_no_loss_of_the_road_and_one_without_objects_none_of_occupancy():
    net, rng = tiny_net(), torch.Generator().manual_seed(0)
    batch = a_batch(net)
    tokens = torch.randn(2, net.config.cameras * net.config.instants * 50, net.config.transformer.width, generator=rng)
    for head in (BevHead(net.config.transformer.width, rng), GroundHead(net.config, rng)):
        some = tokens if isinstance(head, BevHead) else tokens[:, : len(head.weights)]

        def loss(road, users, head=head, some=some):
            has_labels = torch.tensor([[road, users]]).expand(2, 2)
            return head.loss(some, batch.distances, batch.occupancy, has_labels).item()

        assert loss(False, False) == 0.0
        assert loss(True, True) == pytest.approx(loss(True, False) + loss(False, True), rel=1e-5)
        assert loss(True, False) > 0.0


def test_the_decoder_alone_learns_where_the_vision_encoder_is_frozen():
    net = tiny_net()
    losses = Losses(net, LossConfig(), torch.Generator().manual_seed(0), "decoder")
    losses(a_batch(net))["loss"].backward()
    assert all(each.grad is None for each in net.vision.parameters())
    assert net.projector is not None
    assert any(each.grad is not None and each.grad.abs().max() > 0.0 for each in net.projector.parameters())


# --- the whole -------------------------------------------------------------------------------------------------------


def losses_of(net, **weights):
    return Losses(net, LossConfig(**weights), torch.Generator().manual_seed(0))


def train(loss, batch, steps):
    optimizer = torch.optim.AdamW(loss.parameters(), lr=3e-3)
    for _ in range(steps):
        optimizer.zero_grad()
        loss(batch)["loss"].backward()
        optimizer.step()


def test_every_loss_falls_in_training():
    net = tiny_net()
    loss, batch = losses_of(net, field=0.02, goal_score=1.0, goal_value=1.0, goal=0.05), a_batch(net)
    initial = {name: float(value.detach()) for name, value in loss(batch).items()}
    train(loss, batch, 40)
    for name, value in loss(batch).items():
        assert float(value.detach()) < 0.7 * initial[name], name


def test_a_weight_of_zero_leaves_a_loss_out():
    net = tiny_net()
    batch = a_batch(net)
    losses = losses_of(net, goal=0.0, sap=0.0, field=0.0, aux_perception=0.0)(batch)
    torch.testing.assert_close(losses["loss"], losses["dlm"])
    assert losses["field"] == 0
    assert losses["aux_perception"] == 0
    assert losses_of(net)(a_batch(net, wrong=0))["sap"] == 0


def test_the_goal_is_learned_from_the_sequence_that_is_all_mask():
    net = tiny_net()
    batch = a_batch(net)
    assert (batch.actions[:, 0] == net.config.layout.mask_id).all()
    x_logits, y_logits = goal_logits(net, batch.inputs, batch.clean[:, GOAL_X, None])
    expected = torch.nn.functional.cross_entropy(x_logits, batch.clean[:, GOAL_X])
    expected = expected + torch.nn.functional.cross_entropy(
        y_logits[:, 0], batch.clean[:, GOAL_Y] - net.config.layout.id_ranges[1][0]
    )
    torch.testing.assert_close(losses_of(net)(batch)["goal"], expected.detach())


def test_what_is_lost_is_what_is_expected_of_the_networks_own_choice_among_the_goals():
    net = tiny_net()
    batch = a_batch(net)
    with torch.no_grad():
        x_logits, y_logits = goal_logits(net, batch.inputs, batch.goals[..., 0])
    of_x, of_y = x_logits.softmax(-1).numpy(), y_logits.softmax(-1).numpy()
    low, expected = net.config.layout.id_ranges[1][0], []
    for row, worth in enumerate(batch.goal_score.numpy()):
        goals = enumerate(batch.goals[row].tolist())
        probabilities = np.array([of_x[row, x] * of_y[row, k, y - low] for k, (x, y) in goals])
        expected.append(1.0 - probabilities @ worth / probabilities.sum())
    np.testing.assert_allclose(float(losses_of(net, goal_score=2.0)(batch)["goal_score"]), np.mean(expected), rtol=1e-5)
    none = replace(
        batch, goals=batch.goals[:, :0], goal_score=batch.goal_score[:, :0], sub_scores=batch.sub_scores[:, :0]
    )
    assert losses_of(net, goal_score=2.0)(none)["goal_score"] == 0


def test_a_second_look_tells_good_goals_from_bad_and_weighs_the_first():
    net = uniform_goal_values(tiny_net())
    batch = a_batch(net)
    loss = losses_of(net, goal_score=1.0, goal_value=1.0)
    actions = loss._goals_to_rescore(batch)
    assert (actions[..., :GOAL_X] == net.config.layout.mask_id).all()
    assert actions[..., GOAL_X:].equal(torch.stack([batch.goals[row][batch.rescored[row]] for row in range(2)]))
    worth = batch.goal_score.gather(1, batch.rescored)
    with torch.no_grad():
        log_probs = loss.goal_log_probs(net.forward_packed(batch.inputs, batch.actions), batch.goals).gather(
            1, batch.rescored
        )
    expected = float(
        1.0 - (log_probs.softmax(-1) * worth).sum(-1).mean() + 2 * np.log(2.0)
    )  # nothing is known to begin
    np.testing.assert_allclose(float(loss(batch)["goal_value"]), expected, rtol=1e-5)
    train(loss, batch, 60)
    odds = net.goal_value(net.forward_packed(batch.inputs, actions).hidden)
    torch.testing.assert_close(odds.sigmoid(), worth, atol=0.15, rtol=0.0)
    predicted = loss.sub_score_head(net.pool_goal_features(net.forward_packed(batch.inputs, actions).hidden)).sigmoid()
    parts = batch.sub_scores.gather(1, batch.rescored[..., None].expand(-1, -1, batch.sub_scores.shape[-1]))
    torch.testing.assert_close(predicted, parts, atol=0.2, rtol=0.0)


def test_cross_entropy_is_over_all_positions_of_all_blocks():
    logits = torch.zeros(1, 2, ACTION_TOKENS, 7)
    clean = torch.full((1, ACTION_TOKENS), 3)
    logits[0, 1, 5, 3] = 10.0  # one token of 32 is known
    expected = (31 * np.log(7) + np.log(1 + 6 * np.exp(-10.0))) / 32
    np.testing.assert_allclose(token_loss(logits, clean), expected, rtol=1e-5)
