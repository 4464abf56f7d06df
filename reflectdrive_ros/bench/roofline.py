"""Roofline of a planning step: minimal multiplications and bytes, and the time of both.

    parts = costs(config, sequences=6)                    # vision, prefill, goal, rescore, step
    bound_ms(parts["step"], bytes_per_s, flop_per_s)      # the larger of the two times

Counted are matrix products and convolutions, two FLOPs per multiplication, and the bytes of the weights (once per pass)
and of the prompt's KV cache: activations of so small a network stay in the CPU caches. Attention is counted as
computed, including masked cells. Compared with torch's own counter in test/test_roofline.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ..model.token.ops import SEGMENT, SEGMENTS, GoalRules

if TYPE_CHECKING:
    from ..model.denoiser.net import DenoiserNetConfig
    from ..model.token.net import TokenNetConfig

WEIGHT_BYTES = 4  # float32
FUTURE_HIDDEN, FREQUENCIES = 512, 256  # of a denoiser, as in model.denoiser.net


class Cost(NamedTuple):
    flop: float
    bytes: float

    def times(self, count: int) -> Cost:
        return Cost(count * self.flop, count * self.bytes)


def costs(config: TokenNetConfig, sequences: int) -> dict[str, Cost]:
    """Costs of each part of a frame; `step` is one call on that many sequences, `rescore` one on that many goals for
    their goal values. A layout without a goal has neither `goal` nor `rescore`.
    """
    measures, prompt, rescored = config.transformer, config.prompt_length, GoalRules().rescored
    width, inside = measures.width, measures.heads * measures.head_dim
    keys_values = 2 * measures.kv_heads * measures.head_dim
    attention, of_prompt, of_action = (
        width * (2 * inside + keys_values),
        3 * width * measures.ffn,
        3 * width * measures.action_ffn,
    )
    layout = config.layout
    length, columns = layout.length, [high - low + 1 for low, high in layout.id_ranges]
    xs, ys = columns[:2]
    rows = [count if config.table_stride == 1 else count // config.table_stride + 4 for count in columns]
    heads = width * sum(rows)  # of one waypoint, each token by its axis's head

    def attention_macs(rows: int, columns: int) -> int:
        return 2 * inside * rows * columns

    last = prompt * width * keys_values  # of the last layer the prompt's keys and values are enough
    prefill = (measures.layers - 1) * (
        prompt * (attention + of_prompt) + attention_macs(prompt, prompt + length)
    ) + last
    points, of_route = len(config.route_at_m), width * (width + config.goal_hidden)
    columns_x = SEGMENT * min(SEGMENTS, -(-xs // SEGMENT))  # x bins whose y distribution is evaluated
    goal_y = columns_x * config.goal_hidden * ys + 2 * width * config.goal_hidden + width * ys
    goal_y += points * (of_route + width * ys) + columns_x * points * (width + config.goal_hidden + ys)

    def through_layers(count: int) -> int:
        tokens = length * count
        return measures.layers * (tokens * (attention + of_action) + attention_macs(tokens, prompt + length))

    goal = through_layers(1) + layout.points * heads + width * xs + goal_y
    values = (2 * width + 1) * config.goal_hidden
    step = through_layers(sequences) + layout.points * sequences * heads
    cache = measures.layers * prompt * keys_values
    goal_weights = (ys + layout.axes[0].bins) * config.goal_hidden + 2 * width * config.goal_hidden + of_route
    action_weights = measures.layers * of_action + heads
    parts = {
        "vision": _vision(config),
        "prefill": _cost(prefill, measures.layers * (attention + of_prompt) + cache),
        "step": _cost(step, measures.layers * attention + action_weights + cache),
    }
    if not layout.goal:
        return parts
    return {
        **parts,
        "goal": _cost(goal, action_weights + goal_weights),  # the attention's weights are read with the prompt
        "rescore": _cost(
            through_layers(rescored) + rescored * values, measures.layers * (attention + of_action) + cache + values
        ),
    }


def denoiser_costs(config: DenoiserNetConfig, batch: int) -> dict[str, Cost]:
    """Costs of `encode` of a denoiser, and of `denoise`, one evaluation of its sampler, on a batch of 1 or 2."""
    spec, hidden, tokens = config.spec, config.hidden, config.scene.elements

    def mixer(points: int, columns: int, mixed: int, channels: int, layers: int) -> tuple[int, int]:
        """(products, weights) of one element."""
        by_channel = columns * channels + channels * channels
        by_point = points * mixed + mixed * mixed
        project = channels * hidden + hidden * hidden
        blocks = layers * 2 * (mixed * mixed * channels + mixed * channels * channels)
        products = points * by_channel + channels * by_point + blocks + project
        return products, by_channel + by_point + layers * 2 * (mixed * mixed + channels * channels) + project

    measures = config.mixer_tokens, config.mixer_channels, config.encoder_layers
    agent, agent_weights = mixer(spec.history_steps, 9, *measures)
    lane, lane_weights = mixer(spec.lane_points, 8, *measures)
    route, route_weights = mixer(spec.route_lanes * spec.lane_points, 4, config.route_tokens, config.route_channels, 1)
    of_static, of_agent, of_lane = (10 + hidden) * hidden, 3 * config.mixer_channels, 5 * config.mixer_channels
    attention, mlp = 4 * hidden * hidden, 8 * hidden * hidden
    cache = config.decoder_layers * 2 * hidden  # keys and values of an element
    ego = (6 + hidden) * hidden if config.ego_inputs else 0
    encode = spec.agents * (agent + of_agent) + spec.static_objects * of_static + spec.lanes * (lane + of_lane)
    encode += tokens * (7 * hidden + config.encoder_layers * (attention + mlp + 2 * tokens * hidden) + cache * hidden)
    encode_weights = agent_weights + of_agent + of_static + lane_weights + of_lane + 7 * hidden
    encode_weights += config.encoder_layers * (attention + mlp) + cache * hidden + route_weights + ego

    futures, future = spec.futures, 4 * (1 + spec.future_steps)
    read, write = (future + hidden) * FUTURE_HIDDEN, 4 * hidden * (hidden + future)
    condition = (FREQUENCIES + hidden) * hidden + (6 * config.decoder_layers + 2) * hidden * hidden
    layer = attention + 2 * hidden * hidden + 2 * mlp  # of cross-attention queries and output only
    attended = 2 * hidden * (futures + tokens)
    denoise = condition + futures * (read + config.decoder_layers * (layer + attended) + write)
    weights = condition + read + config.decoder_layers * layer + write
    return {
        "encode": _cost(batch * (encode + route + ego), encode_weights + batch * tokens * cache),
        "denoise": _cost(batch * denoise, weights + batch * tokens * cache),
    }


def bound_ms(cost: Cost, bytes_per_s: float, flop_per_s: float) -> float:
    return 1e3 * max(cost.flop / flop_per_s, cost.bytes / bytes_per_s)


def _vision(config: TokenNetConfig) -> Cost:
    vision = config.vision
    height, width, channels = vision.height, vision.width, 3 * vision.frames
    products = weights = 0
    for out in vision.stem:
        height, width = height // 2, width // 2
        products, weights = products + height * width * out * channels * 9, weights + out * channels * 9
        channels = out
    rows, columns = vision.grid
    patches, wide = rows * columns, vision.channels
    patch = (vision.patch // 2 ** len(vision.stem)) ** 2 * channels * wide
    layer = 4 * wide * wide + 2 * wide * vision.ffn
    projector = 4 * wide * config.transformer.width + config.transformer.width**2
    products += patches * (patch + vision.layers * (layer + 2 * patches * wide)) + vision.tokens * projector
    weights += patch + vision.layers * layer + projector
    views = config.image_count // vision.frames
    return _cost(views * products, weights)


def _cost(products: float, values: float) -> Cost:
    return Cost(2.0 * products, float(WEIGHT_BYTES * values))
