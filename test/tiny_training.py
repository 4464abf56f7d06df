"""Two small sets of scenes, a tiny network that trains on them, and the command that trains."""

import argparse
import os
import subprocess
import sys
import warnings
from dataclasses import replace
from pathlib import Path

import hand_scenes
import numpy as np
import pytest
import torch
from rich.console import Console
from tiny_net import tiny_config, tiny_inputs, tiny_net

from reflectdrive_ros.cli import train as train_run
from reflectdrive_ros.core.tokens import TokenLayout
from reflectdrive_ros.data import cache, distance_map, occupancy, shards
from reflectdrive_ros.data.shards import Index, ShardContent
from reflectdrive_ros.features import images as features
from reflectdrive_ros.model import checkpoint
from reflectdrive_ros.training import augment, settings, train_state
from reflectdrive_ros.training.data import Source, shape_of
from reflectdrive_ros.training.losses import Batch

warnings.filterwarnings("ignore", module="lightning_fabric")
SCENES = 12  # in two shards
LAYOUT = TokenLayout()


def network(**changes):
    words = features.WORDS
    return tiny_config(words=words, text_vocabulary=len(words), text_length=12, **changes)


def with_words(**changes):
    """A network as `network` describes it."""
    return tiny_net(words=network().words, text_vocabulary=len(network().words), text_length=12, **changes)


SHAPE = shape_of(network())


class Silent:
    def __init__(self):
        self.steps, self.rows, self.exams = [], [], []

    def step(self, progress, at):
        self.steps.append((progress.step, at))

    def row(self, progress, values):
        self.rows.append(values)

    def missing_keys(self, names):
        self.anew = names

    def validated(self, progress, means):
        self.exams.append((progress.step, means))


def signal_after_two_steps(number):
    """A `RunLog.step` that sends this process a signal."""

    def step(self, progress, at):
        if progress.step == 2:
            os.kill(os.getpid(), number)

    return step


def in_processes(module, folder, call):
    """Calls a function of a test module in two processes that know of each other."""
    script = folder / "together.py"
    script.write_text(f"import {module}\n\nif __name__ == '__main__':\n    {module}.{call}\n")
    here = Path(__file__).parent
    environment = {**os.environ, "PYTHONPATH": f"{here}{os.pathsep}{here.parent}", "OMP_NUM_THREADS": "1"}
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    subprocess.run([*torchrun, str(script)], env=environment, check=True, timeout=200)


def make_set(folder, name="train", scenes=SCENES, per_shard=6):
    folder.mkdir()
    notes = []
    for first in range(0, scenes, per_shard):
        shard = f"{name}-{first // per_shard:05d}"
        stored = [hand_scenes.scene(f"{shard}-{k:03d}", size=(64, 36), agents=3) for k in range(per_shard)]
        notes.append(shards.write_shard(folder, shard, ShardContent.of(stored), requested=per_shard, generator={}))
    shards.write_index(folder, Index(name, scenes, tuple(notes), {}))
    return folder


@pytest.fixture(scope="module", name="sets")
def two_sets(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sets")
    return make_set(folder / "train"), make_set(folder / "val", "val", 6)


def prepare(folder, workers=1, on_damage=pytest.fail):
    return cache.build_cache(folder, SHAPE, workers, on_damage, lambda done, total: None)


@pytest.fixture(scope="module", name="scenes")
def scenes_ready(sets):
    return prepare(sets[0])


@pytest.fixture(scope="module", name="init")
def network_to_begin_with(tmp_path_factory):
    """The folder of its weights."""
    folder = tmp_path_factory.mktemp("init")
    train_state.save_weights(with_words(), folder / train_state.WEIGHTS, {})
    return folder


def settings_of(**sections):
    config = settings.TrainConfig()
    changed = {name: replace(getattr(config, name), **values) for name, values in sections.items()}
    return replace(config, **changed)


SMALL = {"batch": 4, "masked_actions": 2, "perturbed_actions": 1}
NEVER = {"checkpoint_minutes": 1e6, "validations": 0, "log_steps": 2}


def source(scenes, **changes):
    config = settings_of(data={**SMALL, "text_dropout": 0.0, **changes}).data
    return Source(scenes, config, network().layout, seed=3)


def equal(one, other):
    tensors = {name: value for name, value in vars(one).items() if isinstance(value, torch.Tensor)}
    return all(torch.equal(value, getattr(other, name)) for name, value in tensors.items())


def weights(out):
    tensors, _ = checkpoint.read_tensors(out / train_state.FILE)
    return tensors


def same_weights(out, other):
    """Whether the states of two runs hold the same weights, bit by bit."""
    mine, theirs = weights(out), weights(other)
    return mine.keys() == theirs.keys() and all(torch.equal(value, theirs[name]) for name, value in mine.items())


def command(sets, out, *more, yaml="", config=None, kind="sft"):
    parser = argparse.ArgumentParser()
    train_run.add_arguments(parser)
    path = config or out.parent / f"{out.name}.yaml"
    if config is None:
        path.write_text(yaml)
    arguments = [kind, str(path), "--train", str(sets[0]), "--val", str(sets[1]), "--out", str(out), *more]
    return parser.parse_args(arguments)


def run(args, console=None, errors=None, net=None):
    """`reflectdrive train` of the tiny network, silent but for the consoles."""
    consoles = console or Console(quiet=True), errors or Console(quiet=True)
    return train_run.run_with_network(args, train_run._config(args), net or network(), *consoles)


REWARD_RUN = """
data: {batch: 2}
rl: {goals: 2, variants: 4}
device: {accelerator: cpu, threads: 1}
checkpointing: {checkpoint_minutes: 100.0, validations: 0, log_steps: 1}
"""


def rl_command(sets, out, init, *more):
    """`reflectdrive train rl` of the tiny network."""
    return run(command(sets, out, *more, "--init-from", str(init), yaml=REWARD_RUN, kind="rl"))


def a_batch(net, masked=2, wrong=1, seed=0):
    rng = np.random.default_rng(seed)
    points = np.cumsum(rng.uniform(1.0, 3.0, (2, 8, 2)), axis=1)
    clean = LAYOUT.encode(points)
    actions = [augment.masked_actions(clean, masked, LAYOUT, rng)]
    if wrong:
        actions.append(augment.perturbed_actions(points, wrong, LAYOUT, rng))
    stored = hand_scenes.scene(images=False)
    distances = np.stack([distance_map.distance_map(stored.areas)] * 2)
    occupied = np.stack([occupancy.occupancy(stored)] * 2)
    goals = np.stack([clean[:, 14:], clean[:, 14:] + 5, clean[:, 14:] - [7, 9]], 1).astype(np.int64)
    worth = np.array([[0.9, 0.1, 0.4], [0.0, 1.0, 0.2]], np.float32)
    parts = np.stack([worth > 0.0, worth > 0.3, worth > 0.5, np.ones_like(worth), worth], -1).astype(np.float32)
    goal_arrays = goals, worth, parts, np.array([[0, 2], [0, 1]])
    about = np.arange(2), np.zeros(2, bool), np.ones(2, bool), np.ones((2, 2), bool)
    tensors = (
        clean.astype(np.int64),
        np.concatenate(actions, 1).astype(np.int64),
        distances,
        occupied,
        *goal_arrays,
        *about,
    )
    return Batch(*tiny_inputs(net).tensors, *map(torch.from_numpy, tensors), masked=masked)
