"""The ego's future in Frenet coordinates of its route: round trips, bends, mirror images, inputs without a route."""

from dataclasses import replace

import hand_scenes
import numpy as np
import pytest
import torch

from reflectdrive_ros.core.vector_spec import VectorSpec
from reflectdrive_ros.features.vectors import vector_inputs
from reflectdrive_ros.model.denoiser.net import DenoiserNet, small_config
from reflectdrive_ros.model.scene_encoder import VectorTensors
from reflectdrive_ros.planning.ego_future import ego_poses, line_of, reference_line
from reflectdrive_ros.scoring.frenet import cartesian_poses, frenet_poses
from reflectdrive_ros.training import vector_data

SPEC = small_config().spec
FAR, NEAR = np.array([0.0, 8.0, 0.0]), np.array([0.0, 1.5, 0.0])  # lateral shifts of a route
ALONG = 1.0 + np.arange(40.0)


def inputs_on_arc(curvature, **changes):
    return vector_inputs(replace(hand_scenes.scene(curvature=curvature).observation(vectors=True), **changes), SPEC)


@pytest.mark.parametrize("curvature", [0.0, 0.02, -0.02])
@pytest.mark.parametrize("lateral_m", [0.0, 1.5, -2.5])
def test_frenet_poses_on_an_arc_are_its_arc_length_and_offset(curvature, lateral_m):
    line = line_of(inputs_on_arc(curvature), SPEC)
    poses = hand_scenes.geometry.compose(hand_scenes.arc(curvature, ALONG), np.array([0.0, lateral_m, 0.1]))
    frenet = frenet_poses(poses, line)
    expected = np.column_stack([ALONG, np.full(40, lateral_m), np.full(40, 0.1)])
    np.testing.assert_allclose(frenet[3:], expected[3:], atol=0.03)
    np.testing.assert_allclose(frenet[:3], expected[:3], atol=0.12)  # the line begins here: its direction is that ahead
    np.testing.assert_allclose(cartesian_poses(frenet, line)[:, :2], poses[:, :2], atol=0.02)


@pytest.mark.parametrize("curvature", [0.02, -0.02])
def test_an_offset_of_0_keeps_the_lane_in_a_bend(curvature):
    """What a network predicts that knows nothing but the mean of its normalisation."""
    line = line_of(inputs_on_arc(curvature), SPEC)
    futures = np.zeros((SPEC.futures, 1 + SPEC.future_steps, 4))
    futures[0, 1:, 0] = (0.5 * ALONG - 20.0) / SPEC.normalization.ego_future_std[0]
    poses = ego_poses(futures, SPEC, line)
    expected = hand_scenes.arc(curvature, 0.5 * ALONG)
    np.testing.assert_allclose(poses[:, :2], expected[:, :2], atol=0.05)
    np.testing.assert_allclose(poses[6:, 2], expected[6:, 2], atol=0.02)


def test_a_network_of_the_ego_frame_has_no_line():
    assert line_of(inputs_on_arc(0.01), replace(SPEC, ego_frenet=False)) is None


def test_a_route_that_does_not_pass_the_car_is_one_sentence():
    scene = hand_scenes.scene()
    inputs = vector_inputs(replace(scene.observation(vectors=True), route=scene.route + FAR), SPEC)
    with pytest.raises(ValueError, match="more than 5 m away: the network plans relative to the route"):
        line_of(inputs, SPEC)
    with pytest.raises(ValueError, match="more than 5 m away"):
        vector_data.scene_sample(replace(scene, route=scene.route + FAR), SPEC)


def test_a_mirrored_sample_has_a_mirrored_frenet_future():
    samples = [vector_data.scene_sample(hand_scenes.scene(f"train-00000-{k:03d}"), SPEC) for k in range(3)]
    arrays = {name: np.stack([each[name] for each in samples]) for name in samples[0]}
    plain = vector_data.with_frenet_futures(arrays, SPEC)["ego_future"]
    mirrored = vector_data.with_frenet_futures(vector_data.mirror(arrays, np.ones(3, bool)), SPEC)["ego_future"]
    np.testing.assert_allclose(mirrored, plain * [1.0, -1.0, -1.0], atol=1e-4)
    for row, sample in enumerate(samples):
        back = cartesian_poses(plain[row].astype(float), reference_line(sample["route_lanes"], SPEC))
        np.testing.assert_allclose(back[:, :2], sample["ego_future"][:, :2], atol=0.02)


def test_a_spec_without_the_line_of_the_route_is_refused():
    with pytest.raises(ValueError, match="ego_frenet is set without route_line_rows"):
        VectorSpec(ego_frenet=True)


# --- the network -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def net():
    network = DenoiserNet(small_config())
    network.initialise(torch.Generator().manual_seed(0))
    return network.eval()


def condition(net, inputs):
    tensors = VectorTensors(*(torch.from_numpy(value)[None] for value in inputs.arrays.values()))
    with torch.no_grad():
        return net.encode(tensors).condition[0]


def profile(net, inputs):
    """Input of the profile's MLP."""
    profiles = []
    hook = net.decoder.profile_mlp.register_forward_hook(
        lambda module, arguments, outputs: profiles.append(arguments[0][0])
    )
    condition(net, inputs)
    hook.remove()
    return profiles[0].numpy()


def test_the_profile_has_the_bends_the_offset_the_heading_and_the_limit(net):
    points = SPEC.route_line_rows * SPEC.lane_points
    scene = hand_scenes.scene(curvature=0.02)
    observation = scene.observation(vectors=True)
    features = profile(net, vector_inputs(observation, SPEC))
    bends, (offset, forward, sideways) = features[: points - 1], features[points - 1 : points + 2]
    assert np.median(bends[:30]) == pytest.approx(10.0 * 0.02 * 50.0 / 19.0, rel=0.05)
    assert offset == pytest.approx(0.0, abs=0.05)
    assert (forward, sideways) == (pytest.approx(1.0, abs=0.01), pytest.approx(0.0, abs=0.08))
    moved = profile(net, vector_inputs(replace(observation, route=scene.route + NEAR), SPEC))
    assert moved[points - 1] == pytest.approx(-1.5 / 2.0, abs=0.08)
