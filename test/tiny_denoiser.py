"""A denoiser small enough for tests, with weights in all its parts that bfloat16 holds."""

import numpy as np
import torch

from reflectdrive_ros.core.vector_spec import VectorSpec
from reflectdrive_ros.model.denoiser.net import DenoiserNet, DenoiserNetConfig
from reflectdrive_ros.planning.denoiser import in_metres

SPEC = VectorSpec(
    agents=5, static_objects=3, lanes=6, route_lanes=4, predicted_agents=3, future_steps=8, future_dt_s=0.5
)


def normalized(futures, spec):
    """The futures (P, T, 4) that `in_metres` turns into these."""
    shift = in_metres(np.zeros(futures.shape), spec)
    return (futures - shift) / (in_metres(np.ones(futures.shape), spec) - shift)


def tiny_denoiser(seed=0, **changes):
    measures = {
        "hidden": 16,
        "heads": 2,
        "encoder_layers": 1,
        "decoder_layers": 1,
        "mixer_tokens": 8,
        "mixer_channels": 8,
        "route_tokens": 8,
        "route_channels": 8,
        "ego_inputs": True,
        "dropout": 0.0,
    }
    net, generator = (
        DenoiserNet(DenoiserNetConfig(SPEC, **{**measures, **changes})),
        torch.Generator().manual_seed(seed),
    )
    net.initialise(generator)
    with torch.no_grad():
        for parameter in net.parameters():
            if not parameter.any():  # modulation, output and biases begin with zeros
                torch.nn.init.normal_(parameter, std=0.2, generator=generator)
            parameter.copy_(parameter.bfloat16())
    return net.eval()
