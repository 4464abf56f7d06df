"""Recorded steps are the steps: whatever comes in, a replay gives what `phases.step` gives."""

import numpy as np
import pytest
import torch
from tiny_net import random_actions, tiny_inputs, tiny_net
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from reflectdrive_ros.features.images import ModelInputs
from reflectdrive_ros.model.token import cuda_graphs, rollout
from reflectdrive_ros.model.token.cuda_graphs import MODES, CudaGraphStep, CudaMode, build_step
from reflectdrive_ros.model.token.ops import EditRules
from reflectdrive_ros.model.token.rollout import Decoding
from reflectdrive_ros.runtime.torch_backend import TorchNetwork

MOVES = [(5, False), (16, False), (0, True), (1, False), (0, True)]
RULES = EditRules()


class Tape(TorchDispatchMode):
    """What a CUDA graph is, on a CPU: operations on given memory, done again on that memory and on nothing else.

    What the host decided while it was recorded stays as it was decided.
    """

    def __init__(self):
        super().__init__()
        self.done = []

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        out = operation(*args, **(kwargs or {}))
        self.done.append((operation, args, kwargs or {}, out))
        return out

    def again(self):
        for operation, args, kwargs, out in self.done:
            for recorded, replayed in zip(tree_leaves(out), tree_leaves(operation(*args, **kwargs)), strict=True):
                is_tensor = isinstance(recorded, torch.Tensor)
                if is_tensor and recorded.data_ptr() != replayed.data_ptr():  # else it is a view
                    recorded.copy_(replayed)


class Recorder:
    """The `capture` of these tests; counts what it recorded."""

    def __init__(self):
        self.count = 0

    def __call__(self, work):
        self.count += 1
        with Tape() as tape:
            result = work()

        def replay():
            tape.again()
            return result

        return replay


@pytest.fixture(autouse=True)
def no_gradients():
    with torch.inference_mode():
        yield


def context_of(net, seed):
    return rollout.prefill_goal(net, tiny_inputs(net, scenes=1, seed=seed), Decoding().goals).keys_values


def graphs_of(net, counts=()):
    recorder = Recorder()
    return CudaGraphStep(build_step(net, RULES, CudaMode()), torch.device("cpu"), counts, recorder), recorder


def same(ours, theirs):
    return all(one.equal(other) for one, other in zip(ours, theirs, strict=True))


def test_a_replay_gives_what_a_step_gives():
    net = tiny_net()
    graphs, recorder = graphs_of(net)
    context, actions = context_of(net, 1), random_actions(net, 1, 3)
    changed = 0
    for limit, edit in MOVES:
        plain = rollout.step(net, actions, context, limit, edit, RULES)
        assert same(graphs(actions, context, limit, edit), plain)
        changed += int((plain[0] != actions).sum())
        actions = plain[0]
    assert changed > 0
    assert recorder.count == 1  # drafts and edits, all limits


def test_each_number_of_blocks_is_recorded_once():
    net = tiny_net()
    graphs, recorder = graphs_of(net, counts=(1, 2, 3))
    context = context_of(net, 1)
    for count, recordings in ((2, 3), (1, 3), (3, 3), (5, 4), (5, 4), (2, 4)):
        actions = random_actions(net, 1, count, seed=count)
        assert same(graphs(actions, context, 3, False), rollout.step(net, actions, context, 3, False, RULES))
        assert recorder.count == recordings


def test_another_prompt_is_noticed_and_so_is_one_that_comes_back():
    net = tiny_net()
    graphs, recorder = graphs_of(net)
    contexts, actions = [context_of(net, seed) for seed in (1, 2)], random_actions(net, 1, 2)
    expected = [rollout.step(net, actions, context, 5, False, RULES) for context in contexts]
    assert not same(*expected)
    for turn in (0, 1, 1, 0, 1, 0):
        assert same(graphs(actions, contexts[turn], 5, False), expected[turn])
    assert recorder.count == 1


def test_results_are_the_callers_to_keep():
    net = tiny_net()
    graphs, _ = graphs_of(net)
    context, actions = context_of(net, 1), random_actions(net, 1, 2)
    first = graphs(actions, context, 5, False)
    copies = tuple(part.clone() for part in first)
    assert not same(graphs(first[0], context, 16, False), copies)
    assert same(first, copies)


def test_a_step_is_one_graph_to_the_compiler_too():
    """Traced as `compiled` has it traced; what inductor makes of it on a GPU is not tried here."""
    net = tiny_net()
    context, actions = context_of(net, 1), random_actions(net, 1, 2)
    compiled = torch.compile(build_step(net, RULES, CudaMode()), fullgraph=True, dynamic=False, backend="eager")
    for limit, edit in MOVES[:3]:
        ours = compiled(actions, context, torch.tensor(limit), torch.tensor(edit))
        assert same(ours, rollout.step(net, actions, context, limit, edit, RULES))


def test_a_network_whose_steps_are_recorded_plans_as_one_whose_steps_are_not():
    """The backend, which takes its CPU for a GPU."""
    net, decoding = tiny_net(words=("<pad>", "<unk>")), Decoding(edits=RULES)
    eager, quick = TorchNetwork(net, decoding=decoding), TorchNetwork(net, decoding=decoding)
    quick._cuda_step, recorder = graphs_of(net, counts=(1, 6))
    for seed in range(2):
        inputs = ModelInputs(*(part[0].numpy() for part in tiny_inputs(net, scenes=1, seed=seed).tensors))
        prefilled, same_scene = eager.prefill_goal(inputs), quick.prefill_goal(inputs)
        actions = prefilled.actions
        for limit, edit in MOVES:
            plain = eager.step(prefilled.context, actions, limit, edit)
            for ours, theirs in zip(quick.step(same_scene.context, actions, limit, edit), plain, strict=True):
                np.testing.assert_array_equal(ours, theirs)
            actions = plain[0]
    assert recorder.count == 2


def test_on_a_cpu_nothing_is_recorded():
    net = tiny_net(words=("<pad>", "<unk>"))
    assert TorchNetwork(net, mode=CudaMode(recorded=True, compiled=True))._cuda_step is None
    assert TorchNetwork(net).backend_description == f"torch {torch.__version__} on cpu"


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
@pytest.mark.parametrize("mode", MODES, ids=str)
def test_on_a_gpu_every_mode_gives_what_a_step_gives(mode):
    if mode.fused:
        pytest.importorskip("triton", reason="triton is not installed")
    device = torch.device("cuda")
    net = tiny_net().to(device)
    step = cuda_graphs.cuda_step(net, RULES, mode, device, counts=(1, 3))
    contexts = [
        tuple(tuple(part.to(device) for part in layer) for layer in context_of(tiny_net(), seed)) for seed in (1, 2)
    ]
    for count in (3, 1, 2):
        for context in contexts:
            actions = random_actions(net, 1, count).to(device)
            for limit, edit in MOVES:
                plain = rollout.step(net, actions, context, limit, edit, RULES)
                stepped = step(actions, context, limit, edit)
                assert stepped[0].equal(plain[0])
                torch.testing.assert_close(stepped[1], plain[1], atol=1e-4, rtol=0)
                actions = plain[0]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
def test_on_a_gpu_a_replay_never_waits_for_the_host():
    device = torch.device("cuda")
    net = tiny_net().to(device)
    context = tuple(tuple(part.to(device) for part in layer) for layer in context_of(tiny_net(), 1))
    step = cuda_graphs.cuda_step(net, RULES, CudaMode(recorded=True), device, counts=(2,))
    actions = random_actions(net, 1, 2).to(device)
    step(actions, context, 5, False)
    torch.cuda.set_sync_debug_mode("error")
    try:
        step(actions, context, 5, True)
    finally:
        torch.cuda.set_sync_debug_mode("default")
