"""Decoding operations: goals by non-maximum suppression, unmasking by confidence, AutoEdit.

Training calls these functions in its rollouts, eager inference calls them and export traces them. They have static
shapes, need no host synchronisation, rank by comparison, and use no TopK, Scatter, NonZero or loops over data. Ids are
(B, M, T): M action sequences, one per goal. Ties go to the lower position and the lower id.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from ...core.tokens import TokenLayout

EXCLUDED = -1e30  # log-probability of a cell that is out of the game
SEGMENT, SEGMENTS = 8, 12  # bins of x, and how many stretches of so many each are searched for goals
SLACK_M = 1e-3  # goals exactly the spacing apart count as apart, in spite of rounding


@dataclass(frozen=True)
class GoalRules:
    """How many different goals are drafted, and what counts as different."""

    count: int = 6
    spacing_m: float = 1.2  # closer ones are one behaviour; the paper's best
    floor: float = 0.01  # a goal less probable than this share of the first fills its slot as padding
    rescored: int = 8  # the most probable goals get a goal value, and the best `count` of them are kept
    value_power: float = 3.0  # exponent of the goal value, which generalises better than the goal posterior

    @property
    def for_search(self) -> GoalRules:
        """Rules of the search for the goals that get a goal value."""
        return replace(self, count=max(self.count, self.rescored))


@dataclass(frozen=True)
class EditRules:
    """When AutoEdit replaces a token."""

    at_most: int = 5  # replacements in one round: a third of the free tokens, as drafting commits


def likely_x_indices(logits: Tensor) -> Tensor:
    """(B, R) indices into logits (B, X): all bins of the most probable SEGMENTS segments, the most probable segment
    first.

    All bins if there are no more segments. The last bin is repeated to fill a last, incomplete segment.
    """
    count = logits.shape[-1]
    stretches = F.pad(logits, (0, -count % SEGMENT), value=EXCLUDED)
    stretches = torch.unflatten(stretches, -1, (-1, SEGMENT)).amax(-1)
    chosen = top_indices(stretches, min(SEGMENTS, stretches.shape[-1]))
    indices = (SEGMENT * chosen[..., None] + torch.arange(SEGMENT, device=logits.device)).flatten(-2)
    return torch.where(indices < count, indices, count - 1)  # not clamped: TensorRT clips no integers


def choose_goals(
    x_log_probs: Tensor,
    y_logits: Tensor,
    x_m: Tensor,
    y_m: Tensor,
    rules: GoalRules,
    spacing_m: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """The `rules.count` = K most probable goals that keep their distance, best first.

    x_log_probs (B, X) and y_logits (B, X, Y), y given x, over cells at x_m (B, X), y_m (Y,) metres. Returns cells
    (B, K, 2) as indices into x_m, y_m, log-probabilities (B, K), and which slots are valid (B, K) bool; a padded slot
    repeats the first goal.
    """
    scores = x_log_probs[..., None] + y_logits.log_softmax(-1)
    reach2 = max(rules.spacing_m - SLACK_M, 0.0) ** 2 if spacing_m is None else torch.relu(spacing_m - SLACK_M) ** 2
    cells, values = [], []
    for _ in range(rules.count):
        of_rows = scores.amax(-1)  # a maximum by rows, then in one row: the argmax of a whole plane is slow
        row = of_rows.argmax(-1)
        column = scores.gather(1, row[:, None, None].expand(-1, 1, len(y_m)))[:, 0].argmax(-1)
        values.append(of_rows.gather(-1, row[:, None])[:, 0])
        cells.append(torch.stack([row, column], -1))
        away2 = (x_m - x_m.gather(-1, row[:, None]))[:, :, None] ** 2 + (y_m - y_m[column][:, None])[:, None] ** 2
        scores = torch.where(away2 <= reach2, EXCLUDED, scores)
    goals, log_probs = torch.stack(cells, 1), torch.stack(values, 1)
    valid = log_probs.exp() >= rules.floor * log_probs[:, :1].exp()
    return torch.where(valid[..., None], goals, goals[:, :1]), torch.where(valid, log_probs, log_probs[:, :1]), valid


def reweight_goals(log_probs: Tensor, values: Tensor, valid: Tensor, rules: GoalRules) -> tuple[Tensor, Tensor, Tensor]:
    """The best `rules.count` = K of goals (B, G): their total probability is redistributed in proportion to p
    exp(value) ** power.

    Returns indices (B, K), the most probable first, log-probabilities and valid slots, both in that order; invalid
    slots come last and repeat the first.
    """
    mass = torch.where(valid, log_probs.exp(), 0.0).sum(-1, keepdim=True).log()
    weights = torch.where(valid, log_probs + rules.value_power * values, EXCLUDED)
    order = top_indices(weights, rules.count)
    valid = valid.gather(-1, order)
    order = torch.where(valid, order, order[:, :1])
    return order, mass + weights.log_softmax(-1).gather(-1, order), valid


def top_indices(values: Tensor, count: int) -> Tensor:
    """(B, count) indices of the largest of values (B, N), the largest first."""
    rank = ranks(values, torch.ones_like(values, dtype=torch.bool))
    return (rank[:, None] == torch.arange(count, device=values.device)[:, None]).long().argmax(-1)


def ranks(values: Tensor, among: Tensor) -> Tensor:
    """(.., N) number of entries `among` (.., N, bool) that rank before each: larger values, or equal ones
    further left.
    """
    position = torch.arange(values.shape[-1], device=values.device)
    mine, other = values[..., :, None], values[..., None, :]
    before = (other > mine) | ((other == mine) & (position < position[:, None]))
    return (before & among[..., None, :]).sum(-1)


def unmask(
    ids: Tensor, logits: Tensor, layout: TokenLayout, limit: Tensor | int, proposed: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Writes the `limit` most confident masked positions of each sequence, those of `layout.written_first` before all
    others; written tokens are kept.

    proposed: (B, M, T) ids to be written, such as samples; the most probable ones by default. The confidence of a
    position is the probability of its proposed id. Returns ids (B, M, T) and the probability of each position's token,
    0 for a mask.
    """
    reachable = reachable_bins(logits, layout)
    probability = reachable.float().softmax(-1)
    confidence, proposed = _proposals(reachable, probability, layout, proposed)
    masked = ids == layout.mask_id
    order = confidence
    if layout.written_first:
        position = torch.arange(layout.length, device=ids.device)
        order = confidence + (position >= layout.written_first[0])
    commit = masked & (ranks(order, masked) < limit)
    token_probability = torch.where(masked, confidence, _token_probability(probability, ids, layout))
    return torch.where(commit, proposed, ids), torch.where(masked & ~commit, 0.0, token_probability)


def auto_edit(
    ids: Tensor, logits: Tensor, layout: TokenLayout, rules: EditRules, proposed: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Replaces tokens to which the network, given all of them, assigns a low probability, by more probable ones.

    Token to token: no token becomes a mask, a mask stays one, the goal stays unless `layout.edit_goal`. The least
    probable go first. proposed: (B, M, T) ids to be written, such as samples, which may be less probable than the
    present ones; the most probable ones by default. Returns ids (B, M, T) and the probability of each position's token,
    0 for a mask.
    """
    reachable = reachable_bins(logits, layout)
    probability = reachable.float().softmax(-1)
    sampled = proposed is not None
    confidence, proposed = _proposals(reachable, probability, layout, proposed)
    present = _token_probability(probability, ids, layout)
    masked = ids == layout.mask_id
    is_edited = editable_positions(layout, ids.device) & ~masked & (proposed != ids)
    if not sampled:
        is_edited = is_edited & (confidence > present)
    commit = is_edited & (ranks(-present, is_edited) < rules.at_most)
    token_probability = torch.where(commit, confidence, present)
    return torch.where(commit, proposed, ids), torch.where(masked, 0.0, token_probability)


def replace_all(logits: Tensor, layout: TokenLayout) -> tuple[Tensor, Tensor]:
    """The most probable id of every token of logits (B, M, T, bins), and its probability, (B, M, T) each. The
    refinement of DriveFine (section 3.2)."""
    reachable = reachable_bins(logits, layout)
    confidence, ids = _proposals(reachable, reachable.float().softmax(-1), layout, None)
    return ids, confidence


def draw(logits: Tensor, layout: TokenLayout, temperature: Tensor | float, share: Tensor) -> Tensor:
    """(B, M, T) ids sampled from softmax(logits / temperature) by the inverse of its cumulative distribution.

    share: (B, M, T) uniform numbers in [0, 1). The id is the number of bins whose cumulative probability is at most the
    share of their sum, so that rounding draws no id beyond the last one with a probability.
    """
    reachable = reachable_bins(logits, layout)
    cumulative = (reachable.float() / temperature).softmax(-1).cumsum(-1)
    sampled = (cumulative <= share[..., None] * cumulative[..., -1:]).sum(-1).clamp(max=reachable.shape[-1] - 1)
    return sampled + first_ids(layout, logits.device)


def update(
    ids: Tensor,
    logits: Tensor,
    layout: TokenLayout,
    limit: Tensor | int,
    edit: Tensor | bool,
    rules: EditRules,
    proposed: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """One step on logits: `auto_edit` if `edit`, else `unmask` of up to `limit` positions.

    If `edit` is a tensor it is evaluated on the device, in a graph for both.
    """
    if isinstance(edit, bool):
        if edit:
            return auto_edit(ids, logits, layout, rules, proposed)
        return unmask(ids, logits, layout, limit, proposed)
    drafted, of_draft = unmask(ids, logits, layout, limit, proposed)
    edited, of_edit = auto_edit(ids, logits, layout, rules, proposed)
    return torch.where(edit, edited, drafted), torch.where(edit, of_edit, of_draft)


def first_ids(layout: TokenLayout, device: torch.device) -> Tensor | int:
    """(T,) id of the first bin of `reachable_bins` of each token; 0 where these are all bins."""
    return 0 if decodes_plainly(layout) else torch.tensor(layout.window_starts, device=device)


def reachable_bins(logits: Tensor, layout: TokenLayout) -> Tensor:
    """(B, M, T, W) the logits (B, M, T, bins) of the bins that a token can have, of a layout of fine bins: W of 2239 in
    place of 4001. All bins of other layouts."""
    if decodes_plainly(layout):
        return logits
    axes = torch.unflatten(logits, -2, (layout.points, -1))
    windows = enumerate(layout.window_starts[: len(layout.axes)])
    sides = [axes[..., axis, start : start + layout.window_bins] for axis, start in windows]
    return torch.stack(sides, -2).flatten(-3, -2)


def most_probable(logits: Tensor, probability: Tensor, layout: TokenLayout) -> tuple[Tensor, Tensor]:
    """Probability and id, (B, M, T) each, of the most probable of the reachable bins (B, M, T, W) or, of a layout with
    `interval_bins` n, of the bin in the middle of the most probable interval: the sum over 2 n + 1 bins with weights
    that fall from 1 in the middle to 0 beyond the ends.

    Bins of 0.05 m are finer than what a network knows of a far waypoint, and the most probable single bin is then a
    chance peak of a wide distribution.
    """
    reach = layout.interval_bins
    if reach:  # two flat windows make a triangle
        flat = _window_sums(_window_sums(F.pad(probability, (reach, reach)), reach + 1), reach + 1)
        logits = probability = flat / (reach + 1)
    return probability.amax(-1), logits.argmax(-1) + first_ids(layout, logits.device)


def _window_sums(values: Tensor, width: int) -> Tensor:
    """(.., N - width + 1) sums of `width` neighbours of values (.., N), by doubling: log2(width) additions each."""
    length, total, done, count = 1, None, 0, values.shape[-1] - width + 1
    while True:
        if width & length:
            part = values[..., done : done + count]
            total, done = part if total is None else total + part, done + length
        if 2 * length > width:
            return total  # type: ignore[return-value]
        values, length = values[..., :-length] + values[..., length:], 2 * length


def decodes_plainly(layout: TokenLayout) -> bool:
    """Whether drafts go by the probability of single bins alone, as `fused_update` does."""
    return not layout.interval_bins and not layout.written_first


def _proposals(
    logits: Tensor, probability: Tensor, layout: TokenLayout, proposed: Tensor | None
) -> tuple[Tensor, Tensor]:
    """(B, M, T) probabilities and ids of the proposed tokens, by default the most probable ones."""
    if proposed is None:
        return most_probable(logits, probability, layout)
    return _token_probability(probability, proposed, layout), proposed


def free_positions(layout: TokenLayout, device: torch.device) -> Tensor:
    """(T,) bool, which positions are no goal."""
    position = torch.arange(layout.length, device=device)
    return (position < layout.goal[0]) | (position > layout.goal[1]) if layout.goal else position >= 0


def editable_positions(layout: TokenLayout, device: torch.device) -> Tensor:
    """(T,) bool, which positions AutoEdit may replace."""
    if layout.edit_goal:
        return torch.ones(layout.length, dtype=torch.bool, device=device)
    return free_positions(layout, device)


def mask_free(ids: Tensor, layout: TokenLayout) -> Tensor:
    """(.., T) ids with all but their goal masked."""
    return torch.where(free_positions(layout, ids.device), layout.mask_id, ids)


def goal_sequences(goals: Tensor, layout: TokenLayout) -> Tensor:
    """(B, K, T) action sequences that hold a goal of goals (B, K, 2) each, all else masked."""
    first, end = layout.goal[0], layout.goal[1] + 1
    mask = torch.full((1, 1, layout.length), layout.mask_id, device=goals.device).expand(*goals.shape[:2], -1)
    parts = [mask[..., :first], goals, mask[..., end:]]
    return torch.cat([part for part in parts if part.shape[-1]], -1)


def _token_probability(probability: Tensor, ids: Tensor, layout: TokenLayout) -> Tensor:
    """(B, M, T) the probability of each token, or of its interval, in (B, M, T, W); masks and ids out of reach have
    none, and read the first bin in its place."""
    reach, offset_ids = layout.interval_bins, ids - first_ids(layout, ids.device)
    offset_ids = torch.where((offset_ids >= 0) & (offset_ids < probability.shape[-1]), offset_ids, 0)
    if not reach:
        return probability.gather(-1, offset_ids[..., None])[..., 0]
    offset = torch.arange(-reach, reach + 1, device=ids.device)
    near = F.pad(probability, (reach, reach)).gather(-1, offset_ids[..., None] + reach + offset)
    return (near * (1.0 - offset.abs() / (reach + 1))).sum(-1)
