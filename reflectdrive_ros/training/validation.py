"""How well a network drives that is still learning: its tokens, its goals, and the driving score of its plans."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Generic, TypeVar

import numpy as np
import torch

from ..core.domain import Array
from ..core.tokens import TokenLayout
from ..core.vector_spec import VectorSpec
from ..data import cache, shards
from ..data.cache import Shape
from ..data.scene import DrivingScene
from ..data.shards import SetError
from ..features import images as features
from ..features.images import ModelInputs
from ..features.vectors import VectorInputs
from ..model.scene_encoder import VectorTensors
from ..model.token import ops, rollout
from ..model.token.net import PromptInputs, TokenNet
from ..planning.ego_future import reference_line
from ..planning.postprocess.waypoints import postprocess, token_headings, waypoint_poses
from ..scoring.frenet import FrenetFrame, points_in_ego_frame
from ..scoring.scorer import SUB_SCORES, score
from .rewards import PlanScorer

Inputs = TypeVar("Inputs")
BATCH_SCENES = 16  # scenes
PDMS = ("pdms", "pdms_drafted", "pdms_best")
NEED_MAP, NEED_OBJECTS = (*PDMS, "dac"), (*PDMS, "nc", "ttc")


@dataclass(frozen=True, eq=False)
class ValidationSet(Generic[Inputs]):
    """The scenes used in validation, without their images, and the network's inputs of them."""

    scenes: tuple[DrivingScene, ...]
    inputs: tuple[Inputs, ...]


def read_validation_set(
    folder: Path,
    images: bool,
    limit: int,
    on_damage: Callable[[str], None],
    inputs_of: Callable[[DrivingScene], Inputs],
) -> ValidationSet[Inputs]:
    """`limit` scenes of a set, spread over its families, with or without `images`; those of which `inputs_of` raises
    ValueError are left out. Raises SetError if there is none."""
    scenes, inputs = [], []
    for scene in shards.read(folder, images=images, limit=limit, on_damage=on_damage):
        try:
            inputs.append(inputs_of(scene))
        except ValueError as fault:
            on_damage(f"{folder}: scene {scene.name} is left out: {fault}")
            continue
        scenes.append(replace(scene, cameras=()))
    if not scenes:
        raise SetError(f"{folder} holds no scene that can be read: make the set again")
    return ValidationSet(tuple(scenes), tuple(inputs))


def load_validation_set(
    folder: Path, shape: Shape, limit: int, on_damage: Callable[[str], None], spec: VectorSpec | None = None
) -> ValidationSet[ModelInputs]:
    """As `read_validation_set`, of a token network; `spec`: of the vectors of one that reads the scene."""
    input_spec = replace(shape.spec, vectors=spec)

    def inputs_of(scene: DrivingScene) -> ModelInputs:
        read = features.model_inputs(scene.observation(vectors=spec is not None), input_spec)
        if spec is not None and read.scene is not None:
            reference_line(read.scene.route_lanes, spec)  # raises for a scene off its route
        return read

    return read_validation_set(folder, shape.cameras > 0, limit, on_damage, inputs_of)


def plan_of_expert(scene: DrivingScene, layout: TokenLayout) -> Array:
    """(P, A) the expert's waypoints in the frame of the layout."""
    poses = scene.expert if layout.frame == "ego" else cache.on_route(scene.expert, scene.route)
    return poses[:, : len(layout.axes)]


def vector_tensors(vectors: Sequence[VectorInputs], device: torch.device) -> VectorTensors:
    """A batch of scenes."""
    names = VectorTensors._fields
    return VectorTensors(
        *(torch.from_numpy(np.stack([getattr(each, n) for each in vectors])).to(device) for n in names)
    )


def _critiques(scenes: Sequence[DrivingScene], scorer: PlanScorer, plans: torch.Tensor) -> torch.Tensor:
    """(B, K, points, channels) of plans (B, K, T)."""
    critiques = [scorer.critique(*each) for each in zip(scenes, plans.cpu().numpy(), strict=True)]
    return torch.as_tensor(np.stack(critiques)).to(plans.device)


@torch.no_grad()
def validate(net: TokenNet, dataset: ValidationSet[ModelInputs], device: torch.device) -> dict[str, float]:
    """Means over the scenes: PDMS and its sub-scores in percent, errors in metres, tokens in percent.

    DAC is over scenes with a map, NC and TTC over scenes with known objects, PDMS over those with both; each is absent
    if there is none.

    `pdms` is that of the most probable goal's plan, `pdms_drafted` of the same before edits and refinement, `pdms_best`
    of the best of all goals' plans; `token_accuracy` is that of the other tokens given the expert's goal.
    """
    layout = net.config.layout
    decoding = rollout.default_decoding(layout)
    free, drafted = list(layout.free), len(decoding.rounds(layout)) - decoding.edit_rounds
    rows: dict[str, list[float]] = {}
    for begin in range(0, len(dataset.scenes), BATCH_SCENES):
        some = slice(begin, begin + BATCH_SCENES)
        inputs_of_batch, scenes = dataset.inputs[some], dataset.scenes[some]
        parts = zip(*(each.arrays.values() for each in inputs_of_batch), strict=True)
        inputs = PromptInputs.of([torch.from_numpy(np.stack(part)).to(device) for part in parts])
        vectors = [each.scene for each in inputs_of_batch if each.scene is not None]
        if vectors:
            inputs = inputs._replace(scene=vector_tensors(vectors, device))
        experts = np.stack([plan_of_expert(scene, layout) for scene in scenes])
        clean = net.config.clamp_to_range(torch.from_numpy(layout.encode(experts).astype(np.int64)).to(device))
        hidden = ops.mask_free(clean, layout)
        predicted = net.packed_logits(inputs, hidden[:, None])[:, 0, free].argmax(-1)
        critic = partial(_critiques, scenes, PlanScorer(layout)) if net.config.critique else None
        rounds = rollout.full_step(net, inputs, decoding, critic).rounds
        plans = layout.decode(rounds[-1].actions.cpu().numpy())  # (b, K, P, A)
        drafts = layout.decode(rounds[drafted - 1].actions[:, :1].cpu().numpy())
        for k, scene in enumerate(scenes):
            road = FrenetFrame.of(scene.route)
            waypoints = np.concatenate([drafts[k], plans[k]])
            points = points_in_ego_frame(waypoints, layout, road)
            points = postprocess(points, scene.ego, layout.waypoint_noise_m, road)
            card = score(scene.scored(), waypoint_poses(points, road, token_headings(waypoints, points, layout)))
            driven = points_in_ego_frame(plans[k, 0], layout, road)
            error = np.hypot(*np.moveaxis(driven - scene.expert[:, :2], -1, 0))
            row = {
                "pdms": 100.0 * card.score[1],
                **{name: 100.0 * getattr(card, name)[1] for name in SUB_SCORES},
                "pdms_drafted": 100.0 * card.score[0],
                "pdms_best": 100.0 * card.score[1:].max(),
                "ade_m": error.mean(),
                "goal_error_m": error[-1],
                "token_accuracy": 100.0 * (predicted[k] == clean[k, free]).float().mean().item(),
            }
            unknown = {*(() if scene.has_map else NEED_MAP), *(() if scene.has_objects else NEED_OBJECTS)}
            for name in unknown:
                row[name] = np.nan
            for name, value in row.items():
                rows.setdefault(name, []).append(float(value))
    finite = {name: np.array(values)[np.isfinite(values)] for name, values in rows.items()}
    return {name: float(values.mean()) for name, values in finite.items() if len(values)}


def summary(means: Mapping[str, float]) -> str:
    """One line for a person."""
    texts = {name: f"{means[name]:.1f}" if name in means else "-" for name in (*PDMS, *SUB_SCORES)}
    parts = " ".join(f"{name.upper()} {texts[name]}" for name in ("nc", "dac", "ttc", "ep"))
    return (
        f"PDMS {texts['pdms']} (drafted {texts['pdms_drafted']}, best of all goals {texts['pdms_best']}; "
        f"{parts}), ADE {means.get('ade_m', np.nan):.2f} m, goal error {means.get('goal_error_m', np.nan):.2f} m, "
        f"tokens {means.get('token_accuracy', np.nan):.1f} %"
    )
