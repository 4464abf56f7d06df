"""Plans that the network itself drafts, to be corrected: the mistakes that an editor will really meet."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from ..core.tokens import decoding_rounds
from ..model.token import ops, rollout
from ..model.token.net import PromptInputs, TokenNet
from ..model.token.ops import EditRules
from ..model.token.rollout import Sampling
from .losses import Batch

ROUNDS = 3  # as in a full frame


def add_self_drafts(net: TokenNet, batch: Batch, scenes: int, temperature: float, generator: torch.Generator) -> Batch:
    """The batch with self-drafts instead of the perturbed plans of its first scenes.

    They are drafted from the expert's goal, so that the errors to correct are on the path to it.
    """
    count = batch.actions.shape[1] - batch.masked
    if scenes == 0 or count == 0:
        return batch
    first = slice(0, scenes)
    inputs = batch.inputs.map(lambda part: part[first])
    drafted = draft(net, inputs, batch.clean[first], count, temperature, generator)
    actions = batch.actions.clone()
    actions[first, batch.masked :] = drafted
    return replace(batch, actions=actions)


@torch.no_grad()
def draft(
    net: TokenNet,
    inputs: PromptInputs,
    clean: Tensor,
    count: int,
    temperature: float,
    generator: torch.Generator,
) -> Tensor:
    """(B, count, T) ids drafted in three rounds from the goal of `clean` (B, T), tokens sampled at a temperature."""
    layout = net.config.layout
    actions = ops.mask_free(clean, layout)[:, None].expand(-1, count, -1)
    out = net.forward_packed(inputs, actions[:, :1])

    def logits(drafts: Tensor) -> Tensor:
        """Of the first round all sequences are equal: the pass that encodes the prompt has theirs."""
        first = drafts is actions
        return out.logits.expand(-1, count, -1, -1) if first else net.decode(drafts, out.keys_values)

    rounds, sampling = decoding_rounds(len(layout.free), ROUNDS, 0), Sampling(temperature, generator)
    return rollout.rollout(logits, actions, layout, rounds, EditRules(), sampling)[-1].actions
