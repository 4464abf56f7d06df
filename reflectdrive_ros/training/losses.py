"""Training losses of ReflectDrive-2.

    L = L_DLM + goal L_goal + goal_score L_goal_score + goal_value L_goal_value + sap L_SAP + field L_field
        + aux_perception L_aux

The weights are those of settings.LossConfig.

L_DLM and L_SAP are cross-entropy on all positions of a sequence, masked or not: an editor must learn which tokens to
keep. With `masked_only` L_DLM counts masked positions alone, as of a generator without edits (DriveFine, Eq. 1). L_goal
is cross-entropy of the goal's x and of its y given that x, from the fully masked sequence. L_goal_score is 1 minus the
expected driving score of the goal choice, over K goals weighted by the network's probabilities (goal_scores.py).
L_goal_value is the sum of three terms for goals that are each encoded in a sequence of their own: 1 minus the expected
score of the reweighted choice, the cross-entropy of the goal value, and that of a head that predicts the sub-scores
(SubScoreHead). Both are not in the paper. L_field is the cost of cells off the road, -log(1 - p_i q_j) C_ij summed over
the cells and waypoints of a sequence. L_aux is not in the paper: occupancy of the ground behind image patches and of a
BEV grid (perception_heads.py). All are means over scenes and sequences.

A scene without a map has no L_field and no road in L_aux, one without objects no occupancy in it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..data import distance_map
from ..model.layers import KeysValues
from ..model.scene_encoder import VectorTensors
from ..model.token import ops
from ..model.token.net import PackedOutput, PromptInputs, TokenNet
from ..scoring.scorer import SUB_SCORES
from .perception_heads import BevHead, GroundHead
from .settings import LossConfig

SERIES_TERMS = 8  # powers of p q that are summed for every cell
EXACT_CELLS = 4  # rows and columns of the largest p and q whose cells are computed exactly
FIELD_MARGIN_M = 1.1  # required distance inside the road: half a car's width
PARTS = ("dlm", "goal", "goal_score", "goal_value", "sap", "field", "aux_perception")  # of the loss
STEP_M = 0.1  # of stored distances
SPREAD = 2.0  # standard deviation of log q among the plans of a scene, in the choice among them
ACTION_PARAMETERS = (  # of a network, those that no prompt token passes; and the FFNs of action tokens
    *("slot", "norm.", "heading_", "x_head", "y_head"),
    *("goal_", "value_", "refiner.", "critique_"),
)


@dataclass(eq=False)  # not frozen: Fabric copies it field by field for mixed precision
class Batch:
    """B scenes with their training targets; sequence 0 is all mask, the first `masked` of R are masked."""

    images: Tensor  # (B, 6, H, W, 3) uint8; (B, 0) where the prompts are cached
    text: Tensor  # (B, T) int64
    ego: Tensor  # (B, 3) float32
    route: Tensor  # (B, points, 2) int64
    clean: Tensor  # (B, T) int64, the expert's tokens
    actions: Tensor  # (B, R, T) int64
    distances: Tensor  # (B, X, Y) int8, `fields.distance_map`
    occupancy: Tensor  # (B, 4, CELLS, CELLS) bool, `occupancy.occupancy`
    goals: Tensor  # (B, K, 2) int64 ids of goals, the expert's and others; K may be 0
    goal_score: Tensor  # (B, K) float32, the driving score of a plan for each, 0 to 1
    sub_scores: Tensor  # (B, K, 5) float32, its sub-scores: PARTS
    rescored: Tensor  # (B, S) int64, indices of the goals with a goal value
    rows: Tensor  # (B,) int64, indices of the scenes in their set
    mirrored: Tensor  # (B,) bool, whether it is the mirrored scene
    with_route: Tensor  # (B,) bool, whether the route is known
    has_labels: Tensor  # (B, 2) bool, whether the road and whether other agents are known
    masked: int
    # (B, layers, 2, kv_heads, P, head_dim) float16 of cached prompts; (0, 0) without a cache
    keys_values: Tensor = field(default_factory=lambda: torch.zeros(0, 0, dtype=torch.float16))
    scene: VectorTensors | None = None  # of a network that reads one

    @property
    def has_cache(self) -> bool:
        """Whether the prompts are cached."""
        return bool(self.keys_values.numel())

    @property
    def inputs(self) -> PromptInputs:
        return PromptInputs(self.images, self.text, self.ego, self.route, self.scene)

    @property
    def scenes(self) -> tuple[list[int], np.ndarray, np.ndarray]:
        """Indices of the scenes in their set, whether each is mirrored, and whether its route is known: what
        `RewardPool.score` takes in addition to their plans."""
        rows, mirrored, with_route = (each.cpu().numpy() for each in (self.rows, self.mirrored, self.with_route))
        return rows.tolist(), mirrored, with_route

    def to(self, device: torch.device) -> Batch:
        return self._map(lambda value: value.to(device, non_blocking=True))

    def part(self, rank: int, ranks: int) -> Batch:
        """The scenes of one process among several."""
        return self._map(lambda value: value[rank::ranks])

    def _map(self, change: Callable[[Tensor], Tensor]) -> Batch:
        tensors = {name: change(value) for name, value in vars(self).items() if isinstance(value, Tensor)}
        scene = None if self.scene is None else VectorTensors(*map(change, self.scene))
        return Batch(**tensors, masked=self.masked, scene=scene)


def is_action_parameter(name: str) -> bool:
    """Whether a parameter of a network touches no prompt token."""
    return name.startswith(ACTION_PARAMETERS) or ".action_mlp." in name


def prompt_keys_values(net: TokenNet, batch: Batch) -> tuple[KeysValues, ...]:
    """The KV cache of the prompts of a batch, without a gradient: that of the set, else encoded here."""
    if batch.has_cache:
        device = batch.keys_values.device.type
        dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else torch.float32
        return tuple((layer[:, 0], layer[:, 1]) for layer in batch.keys_values.to(dtype).unbind(1))
    with torch.no_grad():
        return net.encode(net.prompt(batch.inputs))


class Losses(nn.Module):
    """The network with its losses: one forward pass per step, as data-parallel training requires."""

    x_cells: Tensor  # rows of a distance map, of the ids that x may have
    y_cells: Tensor  # columns, of those of y

    def __init__(self, net: TokenNet, weights: LossConfig, generator: torch.Generator, trained: str = "all") -> None:
        """`generator` initialises the auxiliary heads. `trained` is OptimizerConfig.trained: all, all but the vision
        encoder (`decoder`), or what encodes no prompt (`actions`)."""
        super().__init__()
        self.net = net
        self.weights = weights
        self.fixed_prompt = trained == "actions"
        if trained == "decoder" and net.config.images:
            net.vision.requires_grad_(False)
        if self.fixed_prompt:
            for name, parameter in net.named_parameters():
                parameter.requires_grad_(is_action_parameter(name))
        layout = net.config.layout
        for axis, (name, (low, high)) in enumerate(zip(("x_cells", "y_cells"), layout.id_ranges, strict=False)):
            values = layout.axes[axis].codebook.to_values(np.arange(low, high + 1))
            self.register_buffer(name, torch.from_numpy(distance_map.indices_of(values, axis)), persistent=False)
        self.aux_heads = nn.ModuleList()  # auxiliary perception heads
        if weights.aux_perception:
            self.aux_heads.append(BevHead(net.config.transformer.width, generator))
            self.aux_heads.append(GroundHead(net.config, generator))
        self.sub_score_head = (
            SubScoreHead(net.config.transformer.width, net.config.goal_hidden, generator)
            if weights.goal_value
            else None
        )

    def forward(self, batch: Batch, vision_only: bool = False) -> dict[str, Tensor]:
        """Scalars `loss` and PARTS; with `vision_only` all but `loss` and `aux_perception` are NaN."""
        if vision_only:
            image_tokens = self.net.image_tokens(self.net.encode_images(batch.images))
            loss = self._aux_perception_loss(image_tokens, batch)
            nothing = dict.fromkeys(PARTS, loss.new_full((), torch.nan))
            return {"loss": self.weights.aux_perception * loss, **nothing, "aux_perception": loss.detach()}
        count = batch.actions.shape[1]
        rescored = self._goals_to_rescore(batch) if self.weights.goal_value else batch.actions[:, :0]
        out = self.outputs(batch, torch.cat([batch.actions, rescored], 1))
        return self.supervised_losses(batch, out.first(count), out.hidden[:, count:])

    def outputs(self, batch: Batch, sequences: Tensor) -> PackedOutput:
        """Of sequences (B, R, T) of the scenes."""
        if batch.has_cache:
            return self.net.forward_cached(sequences, prompt_keys_values(self.net, batch), batch.route)
        if self.fixed_prompt:
            with torch.no_grad():
                prompt = self.net.prompt(batch.inputs)
            return self.net.forward_fixed_prompt(prompt, sequences)
        return self.net.forward_packed(batch.inputs, sequences)

    def supervised_losses(
        self, batch: Batch, out: PackedOutput, rescored_hidden: Tensor | None = None
    ) -> dict[str, Tensor]:
        """As `forward`, from the outputs for the sequences of the batch, and the hidden states of the rescored goals
        where `loss.goal_value` is above 0."""
        weights, masked = self.weights, batch.masked
        net_goal = self.net.config.layout.goal
        goal_log_probs = self.goal_log_probs(out, batch.goals)
        losses = {
            "dlm": token_loss(
                out.logits[:, :masked],
                batch.clean,
                batch.actions[:, :masked] == self.net.config.layout.mask_id if weights.masked_only else None,
            ),
            "goal": self._goal_loss(out, batch.clean) if net_goal else goal_log_probs.new_zeros(()),
            "goal_score": expected_goal_loss(goal_log_probs, batch.goal_score),
            "goal_value": self._goal_value_loss(rescored_hidden, goal_log_probs, batch)
            if rescored_hidden is not None and weights.goal_value
            else goal_log_probs.new_zeros(()),
            "sap": token_loss(out.logits[:, masked:], batch.clean),
            "field": self._field_loss(out.logits[:, :masked], batch.distances),
            "aux_perception": self._aux_perception_loss(out.image_tokens, batch),
        }
        total = losses["dlm"]
        for name in PARTS[1:]:
            total = total + getattr(weights, name) * losses[name]
        return {"loss": total, **{name: value.detach() for name, value in losses.items()}}

    def _aux_perception_loss(self, image_tokens: Tensor, batch: Batch) -> Tensor:
        loss = image_tokens.new_zeros(())
        for head in self.aux_heads:
            loss = loss + head.loss(image_tokens, batch.distances, batch.occupancy, batch.has_labels)  # type: ignore[operator]
        return loss

    def _goal_loss(self, out: PackedOutput, clean: Tensor) -> Tensor:
        layout = self.net.config.layout
        (x, y), (y_low, _) = layout.goal, layout.id_ranges[1]
        x_logits, y_logits = out.logits[:, 0, x], self.net.goal_y_logits(out, clean[:, x, None])[:, 0]
        return F.cross_entropy(x_logits, clean[:, x]) + F.cross_entropy(y_logits, clean[:, y] - y_low)

    def goal_log_probs(self, out: PackedOutput, goals: Tensor) -> Tensor:
        """(B, K) of goals (B, K, 2), as the sequence that is all mask has them."""
        if goals.shape[1] == 0:
            return out.hidden.new_zeros(goals.shape[:2], dtype=torch.float32)
        (x_low, _), (y_low, _) = self.net.config.layout.id_ranges[:2]
        x_ids, y_ids = goals.unbind(-1)
        of_x = self.net.goal_x_logits(out).log_softmax(-1).gather(-1, x_ids - x_low)
        of_y = self.net.goal_y_logits(out, x_ids).log_softmax(-1).gather(-1, (y_ids - y_low)[..., None])[..., 0]
        return of_x + of_y

    def _goals_to_rescore(self, batch: Batch) -> Tensor:
        """(B, S, T) sequences that hold one goal each, and masks."""
        goals = batch.goals.gather(1, batch.rescored[..., None].expand(-1, -1, 2))
        return ops.goal_sequences(goals, self.net.config.layout)

    def _goal_value_loss(self, hidden: Tensor, goal_log_probs: Tensor, batch: Batch) -> Tensor:
        assert self.sub_score_head is not None
        value = self.net.goal_value(hidden)
        log_probs, score = goal_log_probs.gather(1, batch.rescored), batch.goal_score.gather(1, batch.rescored)
        parts = batch.sub_scores.gather(1, batch.rescored[..., None].expand(-1, -1, batch.sub_scores.shape[-1]))
        value_loss = F.binary_cross_entropy_with_logits(value, score)
        sub_score_loss = F.binary_cross_entropy_with_logits(
            self.sub_score_head(self.net.pool_goal_features(hidden)), parts
        )
        return value_loss + sub_score_loss + expected_goal_loss(log_probs + value, score)

    def _field_loss(self, logits: Tensor, distances: Tensor) -> Tensor:
        if self.weights.field == 0.0:
            return logits.new_zeros(())
        layout = self.net.config.layout
        (x_low, x_high), (y_low, y_high) = layout.id_ranges[:2]
        cost = (STEP_M * distances[:, self.x_cells][:, :, self.y_cells].float() + FIELD_MARGIN_M).clamp(min=0.0)
        points = torch.unflatten(logits, -2, (-1, len(layout.axes))).flatten(1, 2)  # (B, R * P, A, bins)
        x, y = points[:, :, 0, x_low : x_high + 1], points[:, :, 1, y_low : y_high + 1]
        return field_loss(x, y, cost) / logits.shape[1]


class SubScoreHead(nn.Module):
    """Predicts the sub-scores of a goal's plan from the features of the goal value; discarded after training."""

    def __init__(self, width: int, hidden: int, generator: torch.Generator) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(2 * width, hidden), nn.Linear(hidden, len(SUB_SCORES))
        with torch.no_grad():
            for layer, scale in ((self.fc1, (2 * width) ** -0.5), (self.fc2, 0.0)):  # all are as likely to begin with
                layer.weight.copy_(scale * torch.randn(layer.weight.shape, generator=generator))
                layer.bias.zero_()

    def forward(self, features: Tensor) -> Tensor:
        """(.., 2 width) -> logits (.., len(PARTS))."""
        return self.fc2(F.silu(self.fc1(features))).float()  # type: ignore[no-any-return]


def expected_goal_loss(log_probs: Tensor, score: Tensor) -> Tensor:
    """Expected loss of score of choosing among K goals by log_probs (B, K), restricted to them; 0 without goals."""
    if score.shape[1] == 0:
        return score.new_zeros(())
    return 1.0 - (log_probs.softmax(-1) * score).sum(-1).mean()


def choice_loss(log_probs: Tensor, distinct: Tensor, score: Tensor) -> Tensor:
    """One minus the expected score of a choice among those of K plans that are `distinct_plans` (B, K), with scores
    (B, K), by their log-probabilities (B, K) at the temperature that gives these the standard deviation SPREAD in every
    scene.

    A network that is sure would choose the most probable plan alone, which has no gradient; one that is only made
    surer gains nothing.
    """
    return expected_goal_loss(standardised(log_probs, distinct), score)


def distinct_plans(plans: Tensor) -> Tensor:
    """(B, K) bool, plans (B, K, T) that differ from all earlier ones of their scene."""
    same = (plans[:, :, None] == plans[:, None]).all(-1)  # (B, K, K)
    return ~same.tril(-1).any(-1)


def standardised(log_probs: Tensor, distinct: Tensor) -> Tensor:
    """Logits (B, K) of a choice among distinct plans with log-probabilities (B, K), as in `choice_loss`."""
    count = distinct.sum(-1, keepdim=True)
    mean = (distinct * log_probs).sum(-1, keepdim=True) / count
    deviation = ((distinct * (log_probs - mean).square()).sum(-1, keepdim=True) / count).clamp(min=1e-6).sqrt()
    return torch.where(distinct, SPREAD * (log_probs - mean) / deviation.clamp(min=SPREAD), ops.EXCLUDED)


def plan_log_probs(log_probs: Tensor, plans: Tensor, counted: Tensor) -> Tensor:
    """(B, K) sums over S states of the log-probabilities of the tokens of plans (B, K, T) that count there, `counted`
    (B, S, T) bool; log_probs (B, S, T, bins)."""
    total = log_probs.new_zeros(plans.shape[:2])
    for state in range(log_probs.shape[1]):
        of_tokens = log_probs[:, state].gather(-1, plans.transpose(1, 2))  # (B, T, K)
        total = total + (of_tokens * counted[:, state, :, None]).sum(1)
    return total


def token_loss(logits: Tensor, clean: Tensor, among: Tensor | None = None) -> Tensor:
    """Mean cross-entropy of (B, R, T, bins) against the same (B, T) for all R sequences; 0 without any.

    among: (B, R, T) bool, positions that count; None: all.
    """
    if logits.shape[1] == 0:
        return logits.new_zeros(())
    targets = clean[:, None].expand(-1, logits.shape[1], -1)
    if among is not None:
        return F.cross_entropy(logits[among], targets[among])
    return F.cross_entropy(logits.flatten(0, 2), targets.flatten())


def field_loss(x_logits: Tensor, y_logits: Tensor, cost: Tensor) -> Tensor:
    """Sum over N points and all cells of -log(1 - p_i q_j) C_ij, mean over B scenes: a scalar.

    x_logits (B, N, X) and y_logits (B, N, Y) give p and q of each point, cost (B, X, Y) in metres is at least 0. Each
    power in -log(1 - u) = u + u^2 / 2 + .. is a product of matrices, so that no (N, X, Y) is stored; the remainder of
    the series matters only for large u, which at most a few p and q have. There it is computed from logarithms, and
    stays finite for p = q = 1.
    """
    log_p, log_q = x_logits.log_softmax(-1), y_logits.log_softmax(-1)
    powers = torch.arange(1, SERIES_TERMS + 1, device=cost.device, dtype=log_p.dtype)[:, None, None]
    p, q = ((powers * logs[:, None]).exp().flatten(1, 2) for logs in (log_p, log_q))  # (B, K * N, X or Y)
    terms = torch.unflatten((torch.bmm(p, cost.to(p.dtype)) * q).sum(-1), 1, (SERIES_TERMS, -1))  # (B, K, N)
    series = (terms / powers[:, :, 0]).sum((1, 2))

    top_p, rows = log_p.topk(min(EXACT_CELLS, log_p.shape[-1]))
    top_q, columns = log_q.topk(min(EXACT_CELLS, log_q.shape[-1]))
    log_u = top_p[..., :, None] + top_q[..., None, :]  # (B, N, 4, 4)
    log_rest_p, log_rest_q = _log_complement(x_logits, rows), _log_complement(y_logits, columns)
    log_one_less_u = torch.logaddexp(log_rest_p[..., :, None], top_p[..., :, None] + log_rest_q[..., None, :])
    series_part = ((powers[:, 0, 0] * log_u[..., None]).exp() / powers[:, 0, 0]).sum(-1)
    cells = cost.flatten(1).to(p.dtype).gather(1, _flat_indices(rows, columns, cost.shape[-1])).view_as(log_u)
    remainder = ((-log_one_less_u - series_part) * cells).sum((1, 2, 3))
    return (series + remainder).mean()


def _log_complement(logits: Tensor, chosen: Tensor) -> Tensor:
    """(B, N, k) log(1 - p) of the chosen entries (B, N, k) of (B, N, X), from the other logits: exact near p = 1."""
    others = logits[:, :, None].expand(-1, -1, chosen.shape[-1], -1)
    others = others.scatter(-1, chosen[..., None], -torch.inf)
    rest: Tensor = others.logsumexp(-1) - logits.logsumexp(-1, keepdim=True)
    return rest


def _flat_indices(rows: Tensor, columns: Tensor, width: int) -> Tensor:
    """(B, N * 16) indices of cells in a flattened map."""
    return (rows[..., :, None] * width + columns[..., None, :]).flatten(1)
