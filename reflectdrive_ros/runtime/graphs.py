"""Shared by the backends of exported graphs: input format, graph inputs, batching of action sequences."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..core.domain import Array
from ..features.cameras import Camera
from ..features.images import InputSpec, ModelInputs, WordTokenizer
from ..model.card import SCENE, GraphCard, GraphError
from ..planning.planner import PlanningError, Prefilled
from .feature_cache import FeatureCache


@dataclass(frozen=True)
class GoalChoice:
    """How many goals a planner requests, and their least spacing."""

    count: int
    spacing_m: float

    @staticmethod
    def of(card: GraphCard) -> GoalChoice:
        """The defaults of a card."""
        goals = card.model["decoding"]["goals"]
        return GoalChoice(goals["count"], goals["spacing_m"])

    def inputs(self) -> dict[str, Array]:
        """What `prefill_goal` takes of it."""
        return {"goal_spacing_m": np.array(self.spacing_m, np.float32)}

    def prefilled(self, context: Any, actions: Array, log_probs: Array, valid: Array) -> Prefilled:
        """The first goals of outputs (1, K, T), (1, K), (1, K)."""
        first = slice(self.count)
        return Prefilled(context, actions[0, first].astype(np.int32), log_probs[0, first], valid[0, first])


StepOutput = tuple[Array, Array]  # ids (M, T), and their probabilities
TensorSpec = tuple[np.dtype, Sequence[int | str]]  # element type and shape of a tensor; a size that is free has a name


def input_spec(card: GraphCard) -> InputSpec:
    """The network's input format. Raises GraphError."""
    spec = card.model["inputs"]
    try:
        tokenizer = WordTokenizer(spec["words"])
    except ValueError as fault:
        raise GraphError(f"{card.path} has wrong inputs.words: {fault}") from None
    return InputSpec(
        spec["width"],
        spec["height"],
        spec["text_length"],
        tokenizer,
        spec["cameras"],
        spec["instants"],
        tuple(spec["ego_scale"]),
        tuple(spec["route_at_m"]),
        card.layout().codebook,
        tuple(
            Camera(
                each["name"],
                spec["width"],
                spec["height"],
                np.array(each["pixels_from_camera"]),
                np.array(each["camera_from_ego"]),
            )
            for each in spec.get("rig") or ()
        ),
        card.scene_spec(),
    )


def make_feature_cache(card: GraphCard, encode: Callable[[Array], Array]) -> FeatureCache[Array]:
    """The cache around `encode`: views (V, F, H, W, 3) to features (V, P, width)."""
    spec = card.model["inputs"]
    return FeatureCache(lambda images: encode(group_views(card, images)), spec["instants"] // spec["frames"])


def group_views(card: GraphCard, images: Array) -> Array:
    """(V, F, H, W, 3) of images (N, H, W, 3): for each camera the F images that are encoded together, oldest first.

    Raises PlanningError for another number of images.
    """
    frames, cameras = card.model["inputs"]["frames"], card.model["inputs"]["cameras"]
    if len(images) % (frames * cameras):
        raise PlanningError(f"{len(images)} images were given, expected {frames} of each of {cameras} cameras")
    together = images.reshape(-1, frames, cameras, *images.shape[1:]).swapaxes(1, 2)
    return np.asarray(together.reshape(-1, frames, *images.shape[1:]))


def graph_inputs(inputs: ModelInputs, cache: FeatureCache[Array]) -> dict[str, Array]:
    """Inputs of a graph that encodes the scene: a batch of one. Raises PlanningError as `group_views` does."""
    arrays = {name: part[None] for name, part in inputs.arrays.items() if name != "images" and part.size}
    if inputs.images.size:
        arrays["features"] = np.stack(cache(inputs.images))[None]
    if inputs.scene is not None:
        arrays |= {f"{SCENE}{name}": part[None] for name, part in inputs.scene.arrays.items()}
    return arrays


def check_feeds(graph: str, takes: Mapping[str, TensorSpec], provided: Mapping[str, TensorSpec]) -> None:
    """Raises PlanningError naming the first tensor that is missing, not taken, or of another kind."""
    for name in (*takes, *provided):
        if name not in provided or name not in takes:
            problem = "was not given" if name in takes else "is not among its inputs"
            raise PlanningError(f"graph {graph}: tensor {name} {problem}")
        (kind, shape), (has_kind, has) = takes[name], provided[name]
        if kind != has_kind or not _fits(has, shape):
            raise PlanningError(
                f"graph {graph}: tensor {name} is {has_kind} {tuple(has)}, expected {kind} {_format_shape(shape)}"
            )


def run_batched(
    call: Callable[..., StepOutput], actions: Array, count: int | None, sequence_rows: Array | None = None
) -> StepOutput:
    """Applies `call` to action sequences (M, T), in as many calls as a step of `count` sequences requires; None: any
    number.

    Each call is given a batch (1, count, T) int64, padded with repeated sequences, and the rows (count, ..) of
    `sequence_rows` (M, ..), if there are any; it returns (ids, confidence) of each of them. Sequences
    do not depend on each other, so that any split gives the same result. A repair redrafts more
    sequences than there are goals.
    """
    done = []
    for at in range(0, len(actions), count or len(actions)):
        batch = actions[at : at + count] if count else actions
        rows = np.append(np.arange(len(batch)), np.zeros((count or len(batch)) - len(batch), int))
        more = [] if sequence_rows is None else [sequence_rows[at : at + len(batch)][rows]]
        written, confidence = call(batch[rows][None].astype(np.int64), *more)
        done.append((written[: len(batch)].astype(np.int32), confidence[: len(batch)]))
    return concat_outputs(done)


def concat_outputs(done: Sequence[StepOutput]) -> StepOutput:
    """Ids and confidence of several calls as those of one."""
    written, confidence = (np.concatenate(parts) for parts in zip(*done, strict=True))
    return written, confidence


def _fits(shape: Sequence[int | str], expected: Sequence[int | str]) -> bool:
    return list(shape) == list(expected) or (  # most have no free size, and are checked in every call
        len(shape) == len(expected)
        and all(not isinstance(want, int) or have == want for have, want in zip(shape, expected, strict=True))
    )


def _format_shape(shape: Sequence[int | str]) -> str:
    return f"({', '.join(map(str, shape))}{',' * (len(shape) == 1)})"
