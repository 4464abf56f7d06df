"""A network small enough for tests, inputs for it, and how the answers of two runtimes are compared."""

from dataclasses import replace

import numpy as np
import torch

from reflectdrive_ros.core.tokens import Axis, TokenLayout, decoding_rounds
from reflectdrive_ros.model.layers import TransformerConfig
from reflectdrive_ros.model.token import rollout
from reflectdrive_ros.model.token.net import PromptInputs, TokenNet, TokenNetConfig
from reflectdrive_ros.model.vision import VisionConfig

torch.set_num_threads(1)  # threads that wait for each other over a tiny matrix cost a hundred times what they save

VISION = VisionConfig(height=32, width=64, patch=16, stem=(8,), channels=16, layers=1, heads=2, ffn=32)
TRANSFORMER = TransformerConfig(width=32, layers=2, heads=4, kv_heads=2, head_dim=8, ffn=48, action_ffn=24)
ONE_LAYER = replace(TRANSFORMER, layers=1)  # where a graph is exported and nothing is claimed of its layers


POSES = TokenLayout(  # a second layout: headings too, no goal, the last waypoint first, intervals
    axes=(Axis("x", 0.5, 101, -5.0, 25.0), Axis("y", 0.5, 101, -10.0, 10.0), Axis("heading", 0.02, 157, -1.5, 1.5)),
    goal=(),
    last_waypoint_first=True,
    interval_bins=2,
)


def xy_layout(bins=667, step=0.3, x=(-12.0, 99.9), y=(-45.0, 45.0), **changes):
    """Eight waypoints of x and y with these ranges, in metres."""
    return TokenLayout(axes=(Axis("x", step, bins, *x), Axis("y", step, bins, *y)), **changes)


def whole_layout(bins, **changes):
    """Eight waypoints of x and y, every id reachable."""
    reach = float(bins // 2)
    return xy_layout(bins, 1.0, (-reach, reach), (-reach, reach), **changes)


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
    """Random in all it has; the second pass over its goals, too, distinguishes them."""
    net, generator = TokenNet(tiny_config(**changes)), torch.Generator().manual_seed(seed)
    net.initialise(generator)
    if net.config.layout.goal:
        torch.nn.init.normal_(net.value_head.weight, std=0.3, generator=generator)
    return net.eval()


def uniform_goal_values(net):
    """The network as it is initialised: to it all goals are as good."""
    torch.nn.init.zeros_(net.value_head.weight)
    return net


def tiny_inputs(net, scenes=2, seed=1):
    """Random inputs of some scenes."""
    config, generator = net.config, torch.Generator().manual_seed(seed)
    size = (scenes, config.image_count, config.vision.height, config.vision.width, 3)
    return PromptInputs(
        torch.randint(0, 256, size, dtype=torch.uint8, generator=generator),
        torch.randint(0, config.text_vocabulary, (scenes, config.text_length), generator=generator),
        torch.randn(scenes, 3, generator=generator),
        torch.randint(0, config.layout.codebook.bins + 1, (scenes, len(config.route_at_m), 2), generator=generator),
    )


def goal_logits(net, inputs, x_ids):
    """Logits of the goal's x (B, bins) and of its y given each of x_ids (B, K): (B, K, Y), from the images on."""
    out = net.forward_packed(inputs, net.all_masked(len(inputs.images), inputs.images.device))
    return out.logits[:, 0, net.config.layout.goal[0]], net.goal_y_logits(out, x_ids)


def random_actions(net, scenes=2, count=3, seed=2, masked=0.4):
    """Action sequences (B, R, 16) of reachable ids, part of them masked."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(0, net.config.layout.bins, (scenes, count, net.config.layout.length), generator=generator)
    hidden = torch.rand(ids.shape, generator=generator) < masked
    return torch.where(hidden, net.config.layout.mask_id, net.config.clamp_to_range(ids))


def lite_frame(net, inputs, before, edits):
    """Tokens (B, G, T) carried into the present, whose masked end is drafted once and that are edited once."""
    keys_values, layout = rollout.prefill(net, inputs), net.config.layout
    rounds = decoding_rounds(layout.length, 1, 1)
    return rollout.rollout(lambda ids: net.decode(ids, keys_values), before, layout, rounds, edits)[-1].actions


def assert_same_answer(answer, expected):
    """Arrays of two runtimes, or of one runtime in batches of two sizes: ids and flags exactly, floats nearly.

    Each runtime adds up float32 products in an order of its own, which also depends on the processor's vector width.
    A log-probability of 13 nats then differs by up to 1e-5, a probability by 1e-5 of its value.
    """
    assert answer.dtype == expected.dtype
    if answer.dtype.kind == "f":
        np.testing.assert_allclose(answer, expected, rtol=1e-5, atol=1e-5)
    else:
        np.testing.assert_array_equal(answer, expected)
