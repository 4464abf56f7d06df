"""A network small enough for tests, inputs for it, and how the answers of two runtimes are compared."""

import numpy as np
import torch

from reflectdrive_ros.model.layers import TransformerConfig
from reflectdrive_ros.model.token.net import TokenNet, TokenNetConfig
from reflectdrive_ros.model.vision import VisionConfig

torch.set_num_threads(1)  # threads that wait for each other over a tiny matrix cost a hundred times what they save

VISION = VisionConfig(height=32, width=64, patch=16, stem=(8,), channels=16, layers=1, heads=2, ffn=32)
TRANSFORMER = TransformerConfig(width=32, layers=2, heads=4, kv_heads=2, head_dim=8, ffn=48, action_ffn=24)


def tiny_config(**changes):
    settings = {
        "vision": VISION,
        "transformer": TRANSFORMER,
        "text_length": 5,
        "text_vocabulary": 20,
        "goal_hidden": 16,
        "route_at_m": (5.0, 10.0),
    }
    return TokenNetConfig(**{**settings, **changes})


def tiny_net(seed=0, **changes):
    """Random in all it has; a second look at its goals, too, tells them apart."""
    net, generator = TokenNet(tiny_config(**changes)), torch.Generator().manual_seed(seed)
    net.initialise(generator)
    torch.nn.init.normal_(net.value_head.weight, std=0.3, generator=generator)
    return net.eval()


def uniform_goal_values(net):
    """The network as it is initialised: to it all goals are as good."""
    torch.nn.init.zeros_(net.value_head.weight)
    return net


def tiny_inputs(net, scenes=2, seed=1):
    """Images, text, ego, route of some scenes."""
    config, generator = net.config, torch.Generator().manual_seed(seed)
    size = (scenes, config.image_count, config.vision.height, config.vision.width, 3)
    return (
        torch.randint(0, 256, size, dtype=torch.uint8, generator=generator),
        torch.randint(0, config.text_vocabulary, (scenes, config.text_length), generator=generator),
        torch.randn(scenes, 3, generator=generator),
        torch.randint(0, config.bins + 1, (scenes, len(config.route_at_m), 2), generator=generator),
    )


def random_actions(net, scenes=2, count=3, seed=2, masked=0.4):
    """Blocks (B, R, 16) of reachable ids, part of them masked."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(0, net.config.bins, (scenes, count, 16), generator=generator)
    hidden = torch.rand(ids.shape, generator=generator) < masked
    return torch.where(hidden, net.config.mask_id, net.config.clamp_to_range(ids))


def assert_same_answer(found, expected):
    """Arrays of two runtimes, or of one runtime in batches of two sizes: ids and flags exactly, floats nearly.

    Each runtime adds up float32 products in an order of its own, which also depends on the processor's vector width.
    A log-probability of 13 nats then differs by up to 1e-5, a probability by 1e-5 of its value.
    """
    assert found.dtype == expected.dtype
    if found.dtype.kind == "f":
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
    else:
        np.testing.assert_array_equal(found, expected)
