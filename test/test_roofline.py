"""The counted FLOPs are those that torch counts, and a bound is the larger of two times."""

import pytest
import torch
from flop_counter import counted
from tiny_net import random_actions, tiny_inputs, tiny_net

from reflectdrive_ros.bench.roofline import Cost, bound_ms, costs
from reflectdrive_ros.model.token import rollout
from reflectdrive_ros.model.token.net import TokenNet, small_config
from reflectdrive_ros.model.token.rollout import Decoding


def frame_without_steps(parts):
    return [parts[name] for name in ("vision", "prefill", "goal", "rescore")]


@pytest.mark.parametrize("make", [tiny_net, lambda: TokenNet(small_config(()))], ids=["tiny", "small"])
def test_what_is_counted_is_what_torch_counts(make):
    net, rules = make(), Decoding()
    parts = costs(net.config, sequences=6)
    with torch.no_grad():
        inputs = tiny_inputs(net, scenes=1)
        prefilled = rollout.prefill_goal(net, inputs, rules.goals)
    actions = random_actions(net, 1, 6)
    step = counted(lambda: rollout.step(net, actions, prefilled.keys_values, 5, False, rules.edits))
    assert parts["step"].flop == pytest.approx(step, rel=0.001)
    prefill = counted(lambda: rollout.prefill_goal(net, inputs, rules.goals))
    ours = sum(part.flop for part in frame_without_steps(parts))
    assert ours == pytest.approx(prefill, rel=0.02)  # the ego's small layers are left out
    assert ours <= prefill


def test_the_weights_that_are_read_are_those_there_are():
    config = small_config(())
    parts = costs(config, sequences=1)
    transformer = config.transformer
    cache = 4 * transformer.layers * config.prompt_length * 2 * transformer.kv_heads * transformer.head_dim
    twice = parts["rescore"].bytes - 4 * (2 * transformer.width + 1) * config.goal_hidden  # by another pass
    read = sum(part.bytes for part in frame_without_steps(parts)) - cache - twice
    tables = ("embed", "embedding", "norm", "ego", "route_position", "camera", "instant", "slot", "bias", "goal_x")
    net = TokenNet(config)
    own = sum(4 * p.numel() for name, p in net.named_parameters() if not any(word in name for word in tables))
    own += 4 * net.vision.patch_embedding.weight.numel() + 4 * net.goal_x_embedding.weight.numel()
    for head, (low, high) in zip((net.x_head, net.y_head), config.layout.id_ranges, strict=True):
        own -= 4 * head.weight[0].numel() * (config.layout.bins - (high - low + 1))  # of what cannot be
    own -= 4 * net.goal_y_head.weight[0].numel() * (config.layout.bins - (high - low + 1))
    assert read == pytest.approx(own, rel=0.01)


def test_a_bound_is_the_larger_of_its_two_times():
    assert bound_ms(Cost(2e9, 1e6), bytes_per_s=1e9, flop_per_s=1e9) == pytest.approx(2000.0)
    assert bound_ms(Cost(1e6, 2e9), bytes_per_s=1e9, flop_per_s=1e9) == pytest.approx(2000.0)
