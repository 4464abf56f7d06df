"""A model on disk that is small enough for tests and drives: it has learned one thing, to go straight on at 8 m/s."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from shared import create_once

from reflectdrive_ros.infra.files import sha256_of

SPEED_MPS = 8.0
STEPS = 120


@dataclass(frozen=True)
class TinyModel:
    file: Path
    sha256: str

    @property
    def settings(self):
        """As words for `scenes.config`."""
        return {"planner": "reflectdrive2", "model__file": str(self.file), "model__sha256": self.sha256}


def straight_on():
    """The tiny network, taught."""
    import torch
    import torch.nn.functional as F
    from tiny_net import ONE_LAYER, tiny_inputs, tiny_net, uniform_goal_values

    from reflectdrive_ros.core.tokens import Codebook
    from reflectdrive_ros.features.images import WORDS

    shape = {"words": WORDS, "text_vocabulary": len(WORDS), "text_length": 16, "transformer": ONE_LAYER}
    net = uniform_goal_values(tiny_net(**shape)).train()
    path = np.stack([SPEED_MPS * 0.5 * np.arange(1, 9), np.zeros(8)], -1)
    targets = torch.from_numpy(Codebook().encode(path).astype(np.int64)).expand(4, 1, 16)
    inputs = tiny_inputs(net, scenes=4)
    generator = torch.Generator().manual_seed(5)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
    for step in range(STEPS):
        hidden = torch.rand(targets.shape, generator=generator) < (1.0 if step % 2 else 0.5)
        out = net.forward_packed(inputs, torch.where(hidden, net.config.layout.mask_id, targets))
        loss = F.cross_entropy(out.logits.flatten(0, 2), targets.flatten())
        if step % 2:
            y_logits = net.goal_y_logits(out, targets[:, 0, 14:15])
            loss = loss + F.cross_entropy(y_logits[:, 0], targets[:, 0, 15] - net.config.layout.id_ranges[1][0])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return net.eval()


@pytest.fixture(scope="session")
def tiny_model():
    """Trained once per test run; no test changes its folder."""
    pytest.importorskip("torch", reason="torch is not installed (pip install -e .[train])")
    from reflectdrive_ros.training.train_state import save_weights

    def make(folder):
        folder.mkdir(exist_ok=True)
        save_weights(straight_on(), folder / "weights.safetensors", {})

    file = create_once("tiny_model", make) / "weights.safetensors"
    return TinyModel(file, sha256_of(file))
