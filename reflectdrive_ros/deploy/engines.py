"""Builds TensorRT engines of exported graphs, on the machine that will run them: takes minutes, and the whole GPU.

    for row in build(card, "cuda"):     # row.graph, row.file, row.seconds; 0 s if it existed

The command `reflectdrive engine` does this before driving. TensorRT's timing cache of this GPU is stored beside the
engines, which shortens the next build.

    for row in try_build(card, time.perf_counter):     # on a machine without a GPU

shows whether NVIDIA's parser and builder take the graphs. TensorRT ends the process where there is no driver; TensorRT
for RTX builds for another machine's GPU. It has no target for Thor (SM110): SM120 is the nearest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..model.card import GraphCard
from ..runtime.trt import engine_cache
from ..runtime.trt.backend import (
    RTX_MODULE,
    TrtLogger,
    engine_folder,
    engine_key,
    free_size,
    import_library,
    import_tensorrt,
    machine_of,
    open_device,
    version_of,
)
from ..runtime.trt.engine_cache import EngineError

TARGET = "SM120"  # of `try_build`: compute capability of the Blackwell GPUs of workstations
WORKSPACE_BYTES = 2 << 30  # of device memory that one layer may ask for while it runs
OUT_OF_MEMORY = ("out of memory", "outofmemory", "could not be allocated", "insufficient workspace")


@dataclass(frozen=True)
class BuiltEngine:
    """An engine that was built."""

    graph: str
    file: Path  # the engine, or of `try_build` the graph
    seconds: float  # that it took; 0 for one that fitted already
    size: int  # of the engine, bytes


def build(card: GraphCard, device: str, folder: Path | None, clock: Callable[[], float]) -> Iterator[BuiltEngine]:
    """One row per finished engine. Raises CudaError, EngineError, OSError; engines built before are kept."""
    gpu = open_device(device)
    trt = import_tensorrt(gpu)
    engines_folder, machine = engine_folder(card, folder), machine_of(trt, gpu)
    for name in card.files:
        key = engine_key(card, name, machine)
        file = engines_folder / f"{key.name}.plan"
        try:
            engine_cache.load(engines_folder, key, "")
        except EngineError:
            start_s = clock()
            timing = engine_cache.timing_file(engines_folder, machine)
            plan, timed = _plan(trt, card.files[name], free_size(card, name), engine_cache.load_timing(timing))
            engine_cache.store(engines_folder, key, plan)
            engine_cache.store_timing(timing, timed)
            yield BuiltEngine(name, file, clock() - start_s, len(plan))
        else:
            yield BuiltEngine(name, file, 0.0, file.stat().st_size)


def try_build(card: GraphCard, clock: Callable[[], float]) -> Iterator[BuiltEngine]:
    """One row per graph that TensorRT for RTX parses and builds; nothing is kept. Raises EngineError."""
    trt = import_library(RTX_MODULE)
    for name in card.files:
        start_s = clock()
        plan, _ = _plan(trt, card.files[name], free_size(card, name), b"", getattr(trt.ComputeCapability, TARGET))
        yield BuiltEngine(name, card.files[name], clock() - start_s, len(plan))


def _plan(trt: Any, file: Path, size: int, timing: bytes, target: Any = None) -> tuple[bytes, bytes]:
    """An engine of one graph, and what has been timed by now. Raises EngineError.

    size: of a dimension that the graph leaves free. target: compute capability that TensorRT for RTX builds for; None:
    this machine's GPU.
    """
    logger = TrtLogger.of(trt)
    builder = logger.create(lambda: trt.Builder(logger.sink), "builder")
    # required by TensorRT 10, implied by 11; its number is another in each
    network = builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
    parser = trt.OnnxParser(network, logger.sink)
    if not parser.parse_from_file(str(file)):
        why = "; ".join(parser.get_error(index).desc() for index in range(parser.num_errors)) or logger.take_errors()
        raise EngineError(f"TensorRT {version_of(trt)} cannot read {file}: {' '.join(why.split())}")
    for tensor in map(network.get_input, range(network.num_inputs)):
        tensor.shape = tuple(size if length < 0 else length for length in tensor.shape)  # the outputs' follow from them
    config = builder.create_builder_config()
    if target is not None:
        config.num_compute_capabilities = 1
        config.set_compute_capability(target, 0)
    config.set_memory_pool_limit(trt.MemoryPoolType.WORKSPACE, WORKSPACE_BYTES)
    config.clear_flag(trt.BuilderFlag.TF32)  # float32 in the graph is float32: ten bits fewer move tokens
    cache = config.create_timing_cache(timing)
    if cache is None or not config.set_timing_cache(cache, False):  # spoilt, or of another machine
        cache = config.create_timing_cache(b"")
        config.set_timing_cache(cache, False)
    logger.take_errors()
    plan = builder.build_serialized_network(network, config)
    if plan is None:
        why = logger.take_errors()
        if any(words in why.lower() for words in OUT_OF_MEMORY):
            raise EngineError(
                f"out of memory while an engine of {file} was built, close other programs that use the GPU: {why}"
            )
        raise EngineError(f"TensorRT {version_of(trt)} cannot build an engine of {file}: {why}")
    return bytes(plan), bytes(config.get_timing_cache().serialize())
