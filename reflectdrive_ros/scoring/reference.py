"""Reference progress for EP: how far a rule-based planner gets in the same scene.

After PDM-Closed (section 8 of NAVSIM's score): follow the centreline or a line 1 m to either side of it, at 20, 40, ..
100 % of the speed limit, behind the lead vehicle by the Intelligent Driver Model; other agents keep their velocity. The
best of the fifteen proposals by the driving score is the reference. The parameters are PDM-Closed's; its emergency
brake is left out.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ..core import geometry, kinematics
from ..core.config import ScoringConfig
from ..core.domain import Array
from . import metrics
from .contacts import AgentTracks
from .scorer import DrivenStates, Reference, Scene, ScoreCard, judge_alone, judge_among_agents, score, total
from .simulate import DT_S, STEPS, simulate

OFFSETS_M = (0.0, -1.0, 1.0)
SPEED_SHARES = (0.2, 0.4, 0.6, 0.8, 1.0)
SPEED_LIMIT_MPS = 15.0  # if the map has no speed limit
MAX_ACCELERATION_MPS2 = 1.5
COMFORTABLE_BRAKING_MPS2 = 3.0
HEADWAY_S = 1.5
MIN_GAP_M = 1.0
HARDEST_BRAKING_MPS2 = 8.0  # upper limit of a car; the model requests more after a cut-in
PATH_STEP_M = 2.0
BEYOND_M = 50.0  # others are looked for this far past where a proposal can get


def reference_progress(predicted: Scene, recorded: Scene, speed_limit_mps: float = SPEED_LIMIT_MPS) -> Reference:
    """Progress of the reference planner, m: it plans among predicted agents and is measured among recorded ones.

    Equals `reference_plan(predicted, ..)` followed by its measurement in `recorded`, but simulates the plan once.
    """
    plans = proposals(predicted, speed_limit_mps)
    states = simulate(plans, predicted.motion, predicted.vehicle, predicted.start_us)
    return measured_progress(predicted, recorded, states)


def measured_progress(predicted: Scene, recorded: Scene, states: Array) -> Reference:
    """The second part of `reference_progress`: states (P, 41, 11) are those of the `proposals` of the first scene."""
    driven = judge_alone(predicted, states, lane_keeping=False)
    best = _best(replace(predicted, reference=None), driven)
    return _reference(judge_among_agents(replace(recorded, reference=None), driven.of(np.array([best]))))


def reference_of_plan(scene: Scene, plan: Array) -> Reference:
    """The reference that a plan (40, 3) is, once it is simulated in a scene and scored there."""
    return _reference(score(scene, plan[None]))


def _reference(card: ScoreCard) -> Reference:
    return Reference(float(card.progress_m[0]), float(card.multiplier[0]))


def reference_plan(scene: Scene, speed_limit_mps: float = SPEED_LIMIT_MPS) -> Array:
    """Poses (40, 3) at 0.1 .. 4 s of the best proposal; the slowest on the centreline if none is better.

    The planner plans with `scene.agents`: give it a scene whose agents keep their velocity, and measure its plan in the
    scene that is scored. Progress is normalised among the proposals. Raises ValueError on a speed limit that is not
    positive.
    """
    plans = proposals(scene, speed_limit_mps)
    states = simulate(plans, scene.motion, scene.vehicle, scene.start_us)
    best = _best(replace(scene, reference=None), judge_alone(scene, states, lane_keeping=False))
    return np.asarray(plans[best])


def _best(scene: Scene, driven: DrivenStates) -> int:
    """Which of the proposals does best among the agents of a scene, which has no reference."""
    card = judge_among_agents(scene, driven)
    farthest = float((card.progress_m * card.multiplier).max())
    shared = replace(card, ep=metrics.ego_progress(card.progress_m, card.multiplier, farthest, masked=True))
    return int(np.argmax(total(shared, ScoringConfig())))


def proposals(scene: Scene, speed_limit_mps: float) -> Array:
    """Poses (15, 40, 3) at 0.1 .. 4 s: each offset at each speed, the slowest on the centreline first."""
    if not speed_limit_mps > 0:
        raise ValueError(f"speed_limit_mps is {speed_limit_mps}, expected more than 0")
    line = geometry.distinct_points(scene.centerline[:, :2])
    if len(line) < 2:
        raise ValueError("Scene.centerline has no two different points")
    (start,), _ = geometry.project(line, np.zeros((1, 2)))
    speed = max(float(scene.motion[0]), 0.0)
    reach = max(speed, speed_limit_mps) * STEPS * DT_S + BEYOND_M
    along = np.arange(-scene.vehicle.length_m, reach, PATH_STEP_M)
    path = geometry.sample(line, start + along)
    half_width = 0.5 * scene.vehicle.width_m
    rear, lead_speed, lateral_m = _others(scene.agents, path, along[0], max(OFFSETS_M) + half_width)

    offset = np.repeat(OFFSETS_M, len(SPEED_SHARES))
    desired = np.tile(speed_limit_mps * np.array(SPEED_SHARES), len(OFFSETS_M))
    travelled = _drive(
        speed,
        desired,
        scene.vehicle.rear_axle_to_center_m + 0.5 * scene.vehicle.length_m,
        rear,
        lead_speed,
        (lateral_m[0] - half_width <= offset[:, None, None]) & (offset[:, None, None] <= lateral_m[1] + half_width),
    )
    poses = geometry.sample(path, travelled.ravel() - along[0]).reshape(*travelled.shape, 3)
    normal = np.stack([-np.sin(poses[..., 2]), np.cos(poses[..., 2])], axis=-1)
    poses[..., :2] += offset[:, None, None] * normal
    return np.asarray(poses)


def _others(
    agents: AgentTracks, path: Array, path_start: float, within_m: float
) -> tuple[Array, Array, tuple[Array, Array]]:
    """The agents that come within `within_m` of the path: arc length of the rear (A, 41) from the ego's position, inf
    where absent, speed along the path (A, 41), and the lateral interval that they cover, lowest and highest (A, 41) m,
    left positive.
    """
    samples = STEPS + 1
    margin = agents.sizes.max(initial=0.0)
    low, high = path[:, :2].min(axis=0) - margin, path[:, :2].max(axis=0) + margin
    near = ((agents.poses[..., :2] >= low) & (agents.poses[..., :2] <= high)).all(axis=2).any(axis=1)
    near = np.flatnonzero(near)
    middle, offset_m = (
        each.reshape(len(near), samples)
        for each in geometry.project(path, agents.poses[near, :samples, :2].reshape(-1, 2))
    )
    reached = (np.abs(offset_m) <= within_m + 0.5 * np.hypot(*agents.sizes[near].T)[:, None]).any(axis=1)
    near, middle = near[reached], middle[reached]
    poses, present, speeds = (array[near, :samples] for array in (agents.poses, agents.present, agents.speeds_mps))
    count = len(poses)
    corners = geometry.box_corners(poses, agents.sizes[near, None])
    along, lateral = geometry.project(path, corners.reshape(-1, 2))
    along, lateral = along.reshape(count, samples, 4), lateral.reshape(count, samples, 4)
    turn = poses[..., 2] - geometry.sample(path, middle.ravel())[:, 2].reshape(count, samples)
    speed = speeds * np.cos(turn)
    # Points beyond an end of the path project onto the end and are not on the path.
    length = geometry.arc_lengths(path)[-1]
    elsewhere = ~present | (along.max(axis=2) <= 0) | (along.min(axis=2) >= length)
    rear = np.where(elsewhere, np.inf, along.min(axis=2) + path_start)
    return rear, speed, (lateral.min(axis=2), lateral.max(axis=2))


def _drive(speed: float, desired: Array, front_m: float, rear: Array, lead_speed: Array, in_way: Array) -> Array:
    """Metres (P, 40) travelled at 0.1 .. 4 s by P proposals; `in_way` (P, A, 41): an agent blocks a proposal."""
    blocking = in_way.any(axis=(0, 2))
    rear, lead_speed, in_way = rear[blocking], lead_speed[blocking], in_way[:, blocking]
    distance, speeds = np.zeros(len(desired)), np.full(len(desired), speed)
    travelled = np.empty((len(desired), STEPS))
    gaps = np.full((len(desired), len(rear) + 1), np.inf)  # the last is the free road
    leads = np.concatenate([lead_speed, np.zeros((1, lead_speed.shape[1]))])
    for k in range(STEPS):
        # an agent whose rear is behind our axle is alongside or behind us
        ahead = in_way[:, :, k] & (rear[:, k] > distance[:, None])
        gaps[:, :-1] = np.where(ahead, rear[:, k] - (distance[:, None] + front_m), np.inf)
        desired_mps2 = kinematics.idm_acceleration(
            speeds[:, None],
            desired[:, None],
            gaps,
            leads[:, k],
            max_acceleration_mps2=MAX_ACCELERATION_MPS2,
            comfortable_braking_mps2=COMFORTABLE_BRAKING_MPS2,
            headway_s=HEADWAY_S,
            min_gap_m=MIN_GAP_M,
        ).min(axis=1)
        acceleration = np.maximum(desired_mps2, -HARDEST_BRAKING_MPS2)
        after = np.maximum(speeds + acceleration * DT_S, 0.0)
        distance = distance + 0.5 * (speeds + after) * DT_S
        speeds = after
        travelled[:, k] = distance
    return travelled
