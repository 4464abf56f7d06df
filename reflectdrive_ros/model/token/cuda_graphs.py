"""`rollout.step` on a CUDA device: recorded once for each number of action sequences, then replayed with one launch.

    step = cuda_step(net, rules, DEFAULT_MODE, device, counts=range(1, 7))
    actions, confidence = step(ids, keys_values, limit, edit)         # as rollout.step, with plain limit and edit

A step of a small network is hundreds of kernels of a few microseconds, and launching them one by one takes longer than
running them. A CUDA graph records them with their memory addresses. Data that changes from step to step (ids, limit,
edit, the prompt's KV cache) is copied to fixed memory before the launch, and results are copied from there. The KV
cache is copied once per prompt, not per step.

All modes return the results of `rollout.step`; `DEFAULT_MODE` is the one in use.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from ..layers import KeysValues
from . import ops
from .net import TokenNet
from .ops import EditRules

WARM_UPS = 3  # runs before a recording, in which libraries choose kernels and allocate workspaces

Context = tuple[KeysValues, ...]  # of one prompt, per layer
Result = tuple[Tensor, Tensor]  # actions (B, M, T) and the probability of each of their tokens
Step = Callable[[Tensor, Context, Tensor, Tensor], Result]  # ids, context, limit, edit: all on the device
PlainStep = Callable[[Tensor, Context, int, bool], Result]
Capture = Callable[[Callable[[], Result]], Callable[[], Result]]  # function -> function that repeats its device work


@dataclass(frozen=True)
class CudaMode:
    """How steps are run on a GPU; where all is off, kernel by kernel."""

    recorded: bool = False  # as CUDA graphs
    compiled: bool = False  # by torch.compile, once for each number of sequences: a long start
    fused: bool = False  # ids written by fused_update.py instead of token_ops

    def __str__(self) -> str:
        """As in "graph, fused"."""
        modes = {"graph": self.recorded, "compiled": self.compiled, "fused": self.fused}
        return ", ".join(name for name, on in modes.items() if on) or "eager"


# Modes that `bench step` compares on weights with `model.device=cuda`.
MODES = (
    CudaMode(),
    CudaMode(fused=True),
    CudaMode(recorded=True),
    CudaMode(recorded=True, fused=True),
    CudaMode(recorded=True, compiled=True),
)
# The mode in use. The others have not been run on a GPU: switch one on here if `bench step` shows a smaller step_ms_p50
# for one and for six sequences, and same_ids is 1.
DEFAULT_MODE = CudaMode()


def cuda_step(
    net: TokenNet, rules: EditRules, mode: CudaMode, device: torch.device, counts: Iterable[int]
) -> PlainStep:
    """`rollout.step` of a network on `device`, in a mode; graphs of these numbers of sequences are recorded at once."""
    step = build_step(net, rules, mode)
    if mode.recorded:
        return CudaGraphStep(step, device, counts, partial(capture_cuda_graph, device))

    def launched(ids: Tensor, context: Context, limit: int, edit: bool) -> Result:
        return step(ids, context, torch.full((), limit, device=device), torch.full((), edit, device=device))

    return launched


def build_step(net: TokenNet, rules: EditRules, mode: CudaMode) -> Step:
    """A step that reads limit and edit on the device; `fused` applies to layouts that it can decode. Raises
    ModuleNotFoundError if it lacks triton."""
    update = ops.update
    if mode.fused and ops.decodes_plainly(net.config.layout):
        from . import fused_update

        update = fused_update.update  # type: ignore[assignment]

    def step(ids: Tensor, context: Context, limit: Tensor, edit: Tensor) -> Result:
        return update(ids, net.decode(ids, context), net.config.layout, limit, edit, rules)

    if mode.compiled:  # not with a torch.compile mode that records CUDA graphs itself
        return torch.compile(step, fullgraph=True, dynamic=False)
    return step


@dataclass(frozen=True, eq=False)
class CapturedStep:
    ids: Tensor  # (B, M, T), read by each replay
    replay: Callable[[], Result]  # into the same memory each time


class CudaGraphStep:
    """A step, recorded for each number of sequences, and the memory that the recordings use.

    Recording takes longer than a step may take on the road: the numbers in `counts` are recorded with the first step,
    in the self-check before the drive. Another number is recorded at its first use.
    """

    def __init__(self, step: Step, device: torch.device, counts: Iterable[int], capture: Capture) -> None:
        """`capture` records what a function does on the device: `capture_cuda_graph`, or a test's own."""
        self._step, self._capture, self._counts = step, capture, tuple(counts)
        self._limit = torch.zeros((), dtype=torch.int64, device=device)
        self._edit = torch.zeros((), dtype=torch.bool, device=device)
        self._source: Context = ()  # the original of `_context`
        self._context: Context = ()
        self._recordings: dict[torch.Size, CapturedStep] = {}

    @torch.inference_mode()
    def __call__(self, ids: Tensor, context: Context, limit: int, edit: bool) -> Result:
        """As `rollout.step`, on ids (B, M, T); what it returns is the caller's to keep."""
        if context is not self._source:
            self._copy_context(context)
        for count in (*self._counts, ids.shape[1]):
            shape = torch.Size((ids.shape[0], count, ids.shape[2]))
            if shape not in self._recordings:
                self._recordings[shape] = self._capture_for(shape)
        recording = self._recordings[ids.shape]
        recording.ids.copy_(ids)
        self._limit.fill_(limit)
        self._edit.fill_(edit)
        actions, confidence = recording.replay()
        return actions.clone(), confidence.clone()

    def _copy_context(self, context: Context) -> None:
        """Bring the keys and values of another prompt to where the recordings read them."""
        if shapes(context) != shapes(self._context):  # another length of prompt: the recordings are of no use
            self._recordings.clear()
            self._context = tuple((torch.empty_like(keys), torch.empty_like(values)) for keys, values in context)
        for theirs, ours in zip(context, self._context, strict=True):
            for fresh, target in zip(theirs, ours, strict=True):
                target.copy_(fresh)
        self._source = context  # a reference, so that no later context has the same identity

    def _capture_for(self, shape: torch.Size) -> CapturedStep:
        ids = torch.zeros(shape, dtype=torch.int64, device=self._limit.device)
        return CapturedStep(ids, self._capture(lambda: self._step(ids, self._context, self._limit, self._edit)))


def shapes(context: Context) -> list[torch.Size]:
    return [part.shape for layer in context for part in layer]


def capture_cuda_graph(device: torch.device, work: Callable[[], Result]) -> Callable[[], Result]:
    """Record what `work` launches on a CUDA device, after it has run a few times; returns what replays it.

    A replay writes into the memory of the recorded run's results, and returns those.
    """
    with torch.cuda.device(device):
        # work on the default stream cannot be recorded
        side_stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side_stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side_stream):
            for _ in range(WARM_UPS):
                work()
        torch.cuda.current_stream().wait_stream(side_stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=side_stream):
            result = work()

    def replay() -> Result:
        graph.replay()
        return result

    return replay
