"""Plans of a trained network as the targets of another one (distillation).

The expert driver of a scene knows the future, so that its plan is partly arbitrary for a network that does not. A
teacher's plan is a function of the inputs that the student reads, and can be learned. The teacher drafts the plan to
its most probable goal from the same augmented inputs as the student's cached prompts (`prompt_cache`), its expert
corrects it without a critique, and it is postprocessed as in the car.

Source: sequence-level knowledge distillation (Kim and Rush, 2016).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from ..core.domain import Array, EgoState
from ..core.tokens import TokenLayout
from ..features.images import encode_route
from ..model.token import rollout
from ..model.token.net import TokenNet, TokenNetConfig
from ..model.token.ops import GoalRules
from ..planning.postprocess.waypoints import postprocess, waypoint_poses
from ..scoring.frenet import FrenetFrame
from .greedy import decode_greedily
from .losses import Batch
from .prompt_cache import compute_once
from .train_state import StateError


def plan_file(prompt_file: Path, teacher_sha256: str) -> Path:
    """The file of a teacher's plans, next to the prompts whose inputs it reads."""
    return prompt_file.with_suffix(f".teacher-{teacher_sha256[:12]}.npz")


def check_teacher(teacher: TokenNetConfig, student: TokenNetConfig, folder: Path) -> None:
    """Raises StateError for a teacher that reads other inputs than the student, or plans another number of points."""
    named = ("vision", "text_length", "words", "cameras", "instants", "ego_scale", "route_at_m", "images", "scene")
    other = [name for name in named if getattr(teacher, name) != getattr(student, name)]
    for name in ("points", "frame"):
        if getattr(teacher.layout, name) != getattr(student.layout, name):
            other.append(f"layout.{name}")
    if other:
        raise StateError(f"--teacher {folder} reads or plans otherwise than the student ({', '.join(other)} differ)")


def build_teacher_plans(
    file: Path,
    count: int,
    batches: Callable[[], Iterator[Batch]],
    teacher: TokenNet,
    layout: TokenLayout,
    device: torch.device,
    progress: Callable[[int, int], None],
) -> Array:
    """(N, P, 3) float32 poses of the plans of `count` scenes, in the frame of the layout in the augmented scene, by
    `prompt_cache.compute_once`; layout: that of the tokens of the batches."""

    def poses_of(batch: Batch, number: int) -> dict[str, Array]:
        return {"poses": plans_of(teacher, batch.to(device), layout)}

    return compute_once(file, count, batches, poses_of, progress)["poses"]


@torch.no_grad()
def plans_of(teacher: TokenNet, batch: Batch, layout: TokenLayout) -> Array:
    """(B, P, 3) float32 poses at 0.5 s steps of the teacher's plans, postprocessed; in the frame of the route, the
    decoded waypoints with heading 0. `layout`: that of the batch's tokens."""
    config, route = teacher.config, batch.route
    roads = decoded_routes(route.cpu().numpy(), layout)
    own_route = torch.from_numpy(encode_route(roads, config.layout.codebook)).to(route.device)
    greedy = decode_greedily(teacher, replace(batch, route=own_route), GoalRules(), 1)
    plans = greedy.plans
    if config.refine_layers:
        plans = rollout.refine(teacher, plans, greedy.keys_values).actions
    waypoints = config.layout.decode(plans[:, 0].cpu().numpy())
    if layout.frame == "route":
        return np.concatenate([waypoints, np.zeros_like(waypoints[..., :1])], -1).astype(np.float32)
    motion = batch.ego.float().cpu().numpy() * np.array(config.ego_scale)
    noise_m = config.layout.waypoint_noise_m
    return np.stack([sent_poses(*each, noise_m) for each in zip(waypoints, motion, roads, strict=True)])


def decoded_routes(route: Array, layout: TokenLayout) -> Array:
    """(B, R, 2) points in metres of route ids, NaN where they are masked."""
    codebook = layout.codebook
    return np.where(route == codebook.mask_id, np.nan, codebook.to_values(np.minimum(route, codebook.bins - 1)))


def sent_poses(waypoints: Array, motion: Array, route: Array, noise_m: float) -> Array:
    """(P, 3) float32 poses of decoded waypoints (P, 2+) after postprocessing. motion: speed m/s, acceleration m/s2, yaw
    rate rad/s; route (R, 2), NaN where it is unknown."""
    speed, acceleration, yaw_rate = (float(value) for value in motion)
    ego = EgoState(0, np.zeros(3), speed, acceleration, yaw_rate)
    road = FrenetFrame.of(route[np.isfinite(route).all(-1)])
    points = postprocess(waypoints[..., :2], ego, noise_m, road)
    return waypoint_poses(points, road).astype(np.float32)
