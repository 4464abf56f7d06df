"""A tiny token network that reads the scene, its inputs, and critiques of plans."""

import denoiser_cases
import torch
from tiny_net import tiny_inputs, tiny_net

from reflectdrive_ros.core.tokens import ROUTE_FRAME
from reflectdrive_ros.core.vector_spec import VectorSpec
from reflectdrive_ros.model.scene_encoder import SceneEncoderConfig

CRITIQUE = 5
SPEC = VectorSpec(
    agents=3,
    static_objects=2,
    lanes=4,
    route_lanes=4,
    route_line_rows=2,
    predicted_agents=2,
    future_steps=40,
    ego_frenet=True,
)
SCENE = SceneEncoderConfig(
    SPEC, 16, 2, 1, mixer_tokens=4, mixer_channels=8, route_tokens=4, route_channels=8, ego_inputs=True,
    route_features=True, dropout=0.0,
)  # fmt: skip


def scene_net(**changes):
    return tiny_net(**{"scene": SCENE, "route_at_m": (), "layout": ROUTE_FRAME, **changes})


def scene_inputs(net, scenes=2, seed=1):
    return tiny_inputs(net, scenes, seed)._replace(scene=denoiser_cases.random_inputs(SPEC, scenes, seed))


def critical_net(**changes):
    net = scene_net(images=False, critique=CRITIQUE, text_length=0, refine_layers=1, **changes)
    torch.nn.init.normal_(net.critique_out.weight, generator=torch.Generator().manual_seed(3))
    return net


def critiques_of(actions, certainty=1.0):
    values = torch.randn(*actions.shape[:2], ROUTE_FRAME.points, CRITIQUE, generator=torch.Generator().manual_seed(4))
    values[..., 0] = 1.0
    return certainty * values
