"""Graphs that read a scene in OpenVINO, the others in ONNX Runtime: an optional backend for CPUs.

    network = OpenVinoNetwork(GraphCard.read("models/mine/onnx/card.json"), threads=2)

On a processor of Intel, OpenVINO takes less time for the graphs that run once per step and more for those that run in
every round (docs/lab/2026-11-30-openvino.md): the division is fixed. Its outputs become tensors of ONNX Runtime.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from ..core.domain import Array
from ..model.card import GraphCard, GraphError
from ..planning.planner import PlanningError
from .ort_backend import Graph, OrtDenoiser, OrtNetwork, one_line, tensor_of

# imported, OpenVINO reports that to its maker, with an identifier of this machine: a vehicle does not. Without this
# package it reports nothing
sys.modules["openvino_telemetry"] = None  # type: ignore[assignment]

import openvino  # noqa: E402
from openvino.properties import hint, inference_num_threads  # noqa: E402

SCENE_GRAPHS = ("vision_encoder", "prefill_goal", "prefill", "encoder")


class OpenVinoGraph(Graph):
    """A graph in OpenVINO. ONNX Runtime reads its file too, for its metadata and the types of its inputs."""

    def __init__(self, card: GraphCard, name: str, threads: int) -> None:
        """Raises GraphError for a graph that cannot be used."""
        super().__init__(card, name, "cpu")
        del self._session
        options = {
            inference_num_threads: threads,
            hint.inference_precision: openvino.Type.f32,
            hint.performance_mode: hint.PerformanceMode.LATENCY,
        }
        if threads == 1:  # 2026.4.1 ends with a segmentation fault where it merges operators for one thread
            options["SNIPPETS_MODE"] = "DISABLE"
        try:
            self._compiled = openvino.Core().compile_model(str(card.files[name]), "CPU", options)
        except Exception as fault:  # its errors have no common base
            reason = f"is no graph that OpenVINO {openvino.__version__} can load: {one_line(fault)}"
            raise GraphError(f"{card.files[name]} {reason}") from None

    def run(self, feeds: Mapping[str, Array], tensors: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Outputs by name, as ONNX Runtime's tensors. Raises PlanningError naming a tensor."""
        self._check(feeds, tensors or {})
        try:
            # of its own, because a thread may read the next scene meanwhile
            request = self._compiled.create_infer_request()
            values = request.infer(dict(feeds), share_inputs=True, share_outputs=True)
            return {name: tensor_of(values[name]) for name in self._outputs}
        except Exception as fault:
            raise PlanningError(f"graph {self.name} failed in OpenVINO: {one_line(fault)}") from None


class _WithOpenVino:
    """Takes OpenVINO for the graphs that read a scene."""

    backend_description: str

    def __init__(self, card: GraphCard, threads: int = 1, device: str = "auto") -> None:
        """device: as `model.device`. Raises GraphError for graphs or a device that cannot be used."""
        if device not in ("auto", "cpu"):
            raise GraphError(f"model.device is {device}, but OpenVINO runs on the CPU here: set it to auto or cpu")
        if card.precision != "fp32":  # OpenVINO rounds int8 otherwise than the graphs' accuracy gate
            raise GraphError(
                f"{card.path} is in {card.precision}, but OpenVINO takes float32: set model.backend to auto"
            )
        super().__init__(card, threads, "cpu")  # type: ignore[call-arg]
        self.backend_description = f"OpenVINO {openvino.__version__.partition('-')[0]} and {self.backend_description}"

    def _graph(self, card: GraphCard, name: str, device: str, threads: int) -> Graph:
        if name in SCENE_GRAPHS:
            return OpenVinoGraph(card, name, threads)
        graph: Graph = super()._graph(card, name, device, threads)  # type: ignore[misc]
        return graph


class OpenVinoNetwork(_WithOpenVino, OrtNetwork):
    """`planning.planner.Network` by graphs in both libraries."""


class OpenVinoDenoiser(_WithOpenVino, OrtDenoiser):
    """`planning.denoiser.Denoiser` by graphs in both libraries."""
