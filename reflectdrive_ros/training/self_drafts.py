"""Plans that the network itself drafts, to be corrected: the mistakes that an editor will really meet."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from ..core.tokens import decoding_rounds
from ..model.token import ops, rollout
from ..model.token.net import TokenNet
from ..model.token.ops import EditRules
from ..model.token.rollout import Sampling
from .losses import Batch

ROUNDS = 3  # as in a full frame
TEMPERATURE = 1.0  # at which tokens are sampled


@torch.no_grad()
def add_self_drafts(net: TokenNet, batch: Batch, scenes: int, generator: torch.Generator) -> Batch:
    """The batch with self-drafts instead of the perturbed plans of its first scenes.

    They are drafted from the expert's goal, so that the errors to correct are on the path to it.
    """
    count = batch.actions.shape[1] - batch.masked
    if scenes == 0 or count == 0:
        return batch
    first, layout = slice(0, scenes), net.config.layout
    masked = ops.mask_free(batch.clean[first], layout)[:, None].expand(-1, count, -1)
    out = net.forward_packed(batch.inputs.map(lambda part: part[first]), masked[:, :1])

    def logits(drafts: Tensor) -> Tensor:
        """Of the first round all sequences are equal: the pass that encodes the prompt has theirs."""
        is_first = drafts is masked
        return out.logits.expand(-1, count, -1, -1) if is_first else net.decode(drafts, out.keys_values)

    rounds, sampling = decoding_rounds(len(layout.free), ROUNDS, 0), Sampling(TEMPERATURE, generator)
    actions = batch.actions.clone()
    actions[first, batch.masked :] = rollout.rollout(logits, masked, layout, rounds, EditRules(), sampling)[-1].actions
    return replace(batch, actions=actions)
