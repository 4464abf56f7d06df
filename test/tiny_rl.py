"""Training of a tiny network by reward."""

import pytest
from tiny_net import tiny_net
from tiny_training import command, network, run

from reflectdrive_ros.model.token.ops import GoalRules
from reflectdrive_ros.training import train_state

RULES = GoalRules(count=8, floor=0.0)


def with_words(**changes):
    return tiny_net(words=network().words, text_vocabulary=len(network().words), text_length=12, **changes)


YAML = """
data: {batch: 2}
rl: {goals: 2, variants: 4}
device: {accelerator: cpu, threads: 1}
checkpointing: {checkpoint_minutes: 100.0, validations: 0, log_steps: 1}
"""


def rl_command(sets, out, init, *more, yaml=YAML):
    return run(command(sets, out, *more, "--init-from", str(init), yaml=yaml, kind="rl"))


@pytest.fixture(scope="module", name="init")
def network_to_begin_with(tmp_path_factory):
    folder = tmp_path_factory.mktemp("init")
    net = with_words()
    train_state.save_weights(net, folder / train_state.WEIGHTS, {})
    return folder
