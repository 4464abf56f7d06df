"""Training of a tiny network by reward."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from rich.console import Console
from tiny_net import tiny_net
from tiny_training import command, network

from reflectdrive_ros.cli import train as train_run
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
    args = command(sets, out, *more, "--init-from", str(init), yaml=yaml, kind="rl")
    quiet = Console(quiet=True)
    return train_run.run_with_network(args, train_run._config(args), network(), quiet, quiet)


@pytest.fixture(scope="module", name="init")
def network_to_begin_with(tmp_path_factory):
    folder = tmp_path_factory.mktemp("init")
    net = with_words()
    train_state.save_weights(net, folder / train_state.WEIGHTS, {})
    return folder


def kill_after_two_steps(module, sets, out, init):
    """Runs `train_slowly` of a test module in a child, which is killed between its second and its sixth step."""
    paths = ", ".join(repr(str(path)) for path in (*sets, out, init))
    call = f"import {module}; {module}.train_slowly({paths})"
    here = Path(__file__).parent
    environment = {**os.environ, "PYTHONPATH": f"{here}{os.pathsep}{here.parent}"}
    child = subprocess.Popen([sys.executable, "-c", call], env=environment)
    try:
        end_s = time.monotonic() + 120.0
        while (saved := train_state.read_progress(out)) is None or saved[0].step < 2:
            assert time.monotonic() < end_s
            assert child.poll() is None
            time.sleep(0.02)
    finally:
        child.kill()
        child.wait()
    progress, _ = train_state.read_progress(out)
    assert 2 <= progress.step < 6
