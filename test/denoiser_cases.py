"""Denoisers with random parameters, inputs for them, and the stored answers of the public network."""

from pathlib import Path

import pytest
import torch

from reflectdrive_ros.core.vector_spec import VectorSpec
from reflectdrive_ros.deploy import published_case
from reflectdrive_ros.model.denoiser.net import DenoiserNet, DenoiserNetConfig
from reflectdrive_ros.model.scene_encoder import VectorTensors

PARITY = Path(__file__).parent / "data" / "diffusion_planner_parity"
WEIGHTS = "ema_state_dict.safetensors"
SPEC = VectorSpec(agents=6, static_objects=3, lanes=8, route_lanes=4, predicted_agents=3, future_steps=12)
CONFIG = DenoiserNetConfig(
    SPEC, hidden=32, heads=2, encoder_layers=2, decoder_layers=1, mixer_tokens=16, mixer_channels=24
)


@pytest.fixture(autouse=True)
def no_gradients():
    with torch.no_grad():
        yield


def random_net(config=CONFIG, seed=0):
    """A network whose parameters are all random, also those that are initialised with zeros."""
    net, generator = DenoiserNet(config), torch.Generator().manual_seed(seed)
    net.initialise(generator)
    for name, parameter in net.named_parameters():
        if not parameter.any() or "norm" in name:
            parameter.add_(0.2 * torch.randn(parameter.shape, generator=generator))
    return net.eval()


def random_inputs(spec=SPEC, scenes=2, seed=1):
    """Scenes in metres: two agents, one static object and three lanes are empty rows."""
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape):
        return torch.randn(scenes, *shape, generator=generator)

    ego = draw(10)
    ego[:, :4] = torch.tensor([0.0, 0.0, 1.0, 0.0])
    inputs = VectorTensors(
        ego,
        draw(spec.agents, spec.history_steps, 11) * 10,
        draw(spec.static_objects, 10) * 10,
        draw(spec.lanes, spec.lane_points, 12) * 10,
        draw(spec.lanes, 1).abs() * 10,
        draw(spec.lanes, 1) > 0,
        draw(spec.route_lanes, spec.lane_points, 12) * 10,
    )
    inputs.agents[:, -2:], inputs.static_objects[:, -1:], inputs.lanes[:, -3:] = 0.0, 0.0, 0.0
    return inputs


def random_futures(spec=SPEC, scenes=2, samples=1, seed=2):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(scenes, samples, spec.futures, 1 + spec.future_steps, 4, generator=generator)


def own_case(net):
    """A case that holds the answers of a network."""
    spec, inputs = net.config.spec, random_inputs(net.config.spec)
    noise = random_futures(spec, seed=4)[:, 0, :, 1:].numpy()
    case = {f"raw_{name}": getattr(inputs, field).numpy() for name, field in published_case.INPUTS.items()}
    case |= {"x_t": random_futures(spec, seed=5)[:, 0].numpy(), "noise": noise, "x0_at_0.2": None, "x0_at_0.7": None}
    return case | published_case.answers(net, case, torch.float32)
