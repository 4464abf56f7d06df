"""The expert: a sampling planner with the recorded futures of all agents.

It samples trajectories for the next 4 s, paths beside the route at many speeds, and scores each with the driving score
among the agents' recorded futures. The best is chosen; among those of nearly equal score, the one with the smallest
accelerations and jerks, closest to the middle of the lane, with the largest clearance.

Paths along the route are tried first, paths further to the side only if none of them is good.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ...core import geometry
from ...core.domain import Array
from ...scoring import metrics
from ...scoring.contacts import AgentTracks
from ...scoring.scorer import (
    COMFORT_WEIGHT,
    PROGRESS_WEIGHT,
    TTC_WEIGHT,
    WAYPOINTS,
    Scene,
    ScoreCard,
    judge_alone,
    judge_among_agents,
)
from ...scoring.simulate import DT_S, HORIZON_S, STATE_SIZE, STEPS, VX, X, centers, simulate

DECISION_STEP_S = 0.25  # between two decisions of a driver
DECISIONS = round(HORIZON_S / DECISION_STEP_S)
TRACK_SAMPLES = (DECISION_STEP_S / DT_S * np.arange(1, DECISIONS + 1)).astype(np.intp)  # of the agents' tracks
PATH_STEP_M = 0.5
OFFSET_ROUNDS_M = (
    (0.0,),
    (0.25, -0.25, 0.5, -0.5),
    (1.0, -1.0, 1.6, -1.6, 2.4, -2.4),
)  # lateral offsets from the route: see `plan_experts`
RETURN_M = (10.0, 25.0)  # distance over which the path reaches its offset: at least this ..
RETURN_S = (1.5, 3.5)  # .. and at least the distance travelled in this time
ACCELERATIONS_MPS2 = (-6.0, -4.0, -3.0, -2.2, -1.5, -1.0, -0.5, 0.0, 0.5, 1.0, 1.5, 2.0)
JERK_MPS3 = 2.5  # of the acceleration towards its target; an emergency is quicker
BRAKING_JERK_MPS3 = 6.0
FOLLOW_PARAMETERS = (
    (0.35, 1.5),
    (0.6, 1.2),
    (0.85, 1.5),
    (1.0, 1.0),
    (1.0, 1.8),
)  # share of the allowed speed, headway s
STOPS_M = (2.0, 5.0, 9.0, 14.0, 20.0, 28.0)  # ahead of the present front bumper
CURVE_BRAKING_MPS2 = 1.4
MIN_GAP_M = 2.0
ACCELERATION_MPS2 = 1.6
BRAKING_MPS2 = 2.2
GOOD_SCORE = 0.9  # from this score on, no paths further to the side are tried
DISCOMFORT_WEIGHT = 0.04  # of discomfort, in units of the score
CLEARANCE_M = 0.8
EDGE_MARGIN_M = (
    # lateral margin to the edge of the road: human drivers leave room, and so should planners trained on
    # this
    0.3
)
EDGE_WEIGHT = 1.5
LATERAL_MPS2 = 2.4
LIKELY_CANDIDATES = 16  # scored first
ROUNDING = 1e-9
ROAD_SAMPLES = (10, 20, 30, 40)  # instants at which the road is tested first


@dataclass(frozen=True, eq=False)
class ExpertPlan:
    """The expert's plan."""

    waypoints: Array  # (8, 3) at 0.5 .. 4 s, ego frame
    score: float  # PDMS
    nc: float
    dac: float


@dataclass(frozen=True, eq=False)
class Situation:
    """A scene and what limits the expert in it."""

    scene: Scene
    speed_limit_mps: float
    stop_m: float | None = None  # distance from the rear axle to a red stop line on the route
    lateral_mps2: float = LATERAL_MPS2  # lateral acceleration that the driver accepts in curves


def plan_experts(situations: Sequence[Situation]) -> list[ExpertPlan]:
    """The best trajectory in each of several situations of one vehicle, by PDMS with the agents' true futures."""
    routes = [geometry.distinct_points(situation.scene.centerline[:, :2], 0.05) for situation in situations]
    selections: list[list[_Selection]] = [[] for _ in situations]
    searching = list(range(len(situations)))
    for offsets_m in OFFSET_ROUNDS_M:
        if not searching:
            break
        scenes = [situations[index].scene for index in searching]
        candidate_sets = [_sample_candidates(situations[index], routes[index], offsets_m) for index in searching]
        for index, scene, candidates in zip(searching, scenes, candidate_sets, strict=True):
            driven = simulate(candidates.poses, scene.motion, scene.vehicle)
            selections[index].append(_select_best(scene, candidates, driven))
        searching = [index for index in searching if selections[index][-1].plan.score < GOOD_SCORE]
    return [max(choices, key=lambda choice: choice.utility).plan for choices in selections]


@dataclass(frozen=True, eq=False)
class _Candidates:
    """N candidate trajectories."""

    poses: Array  # (N, 8, 3)
    offsets_m: Array  # (N,) final lateral offset from the route
    accelerations: Array  # (N, DECISIONS) m/s^2 along the path

    def of(self, some: Array) -> _Candidates:
        """The candidates of indices (K,)."""
        return _Candidates(self.poses[some], self.offsets_m[some], self.accelerations[some])


@dataclass(frozen=True, eq=False)
class _Selection:
    plan: ExpertPlan
    utility: float  # the score less the price of discomfort


def _select_best(scene: Scene, candidates: _Candidates, states: Array) -> _Selection:
    """The best candidate; states (N, 41, 11) are the candidates as they are driven.

    Scores are expensive: they are computed for the candidates with the highest bounds of utility, then for those whose
    bound is above the best utility so far.
    """
    bounds = (
        _score_bounds(scene, states) - DISCOMFORT_WEIGHT * _discomfort(candidates, np.zeros(len(states))) + ROUNDING
    )
    likely = np.sort(np.argsort(-bounds, kind="stable")[:LIKELY_CANDIDATES])
    best = _best_of(scene, candidates, states, likely)
    bounds[likely] = -np.inf
    rest = np.flatnonzero(bounds >= best[1].utility)
    if len(rest):
        other = _best_of(scene, candidates, states, rest)
        # of equals the first
        best = max(best, other, key=lambda choice: (choice[1].utility, -choice[0]))
    return best[1]


def _best_of(scene: Scene, candidates: _Candidates, states: Array, some: Array) -> tuple[int, _Selection]:
    """The index of the best of the candidates of indices (K,), and the selection of it."""
    card = judge_among_agents(scene, judge_alone(scene, states[some], lane_keeping=False))
    narrow = np.clip(1.0 - card.clearance_m.min(axis=1) / CLEARANCE_M, 0.0, 1.0)
    utility = card.score - DISCOMFORT_WEIGHT * _discomfort(candidates.of(some), narrow)
    # Clearance to the kerb is expensive: compute it only for candidates that would win with full clearance.
    first = int(np.argmax(utility))
    least = utility[first] - DISCOMFORT_WEIGHT * _edge_penalty(scene, card, np.array([first]))[0]
    rivals = np.flatnonzero(utility >= least)
    utility[rivals] -= DISCOMFORT_WEIGHT * _edge_penalty(scene, card, rivals)
    k = int(rivals[np.argmax(utility[rivals])])
    plan = ExpertPlan(candidates.poses[some[k]], float(card.score[k]), float(card.nc[k]), float(card.dac[k]))
    return int(some[k]), _Selection(plan, float(utility[k]))


def _score_bounds(scene: Scene, states: Array) -> Array:
    """(N,) the score of each candidate if it meets no agent and no light, and leaves the road at no other instants."""
    center, size = centers(states, scene.vehicle), np.array([scene.vehicle.length_m, scene.vehicle.width_m])
    off_road = metrics.ego_areas(center[:, ROAD_SAMPLES], size, scene.areas, scene.grid).off_road.any(axis=1)
    comfort = metrics.comfort_flags(states, scene.vehicle, metrics.COMFORT_SANE).all(axis=1)
    reference_m = scene.reference.progress_m * scene.reference.multiplier if scene.reference else 0.0
    progress_m = metrics.progress(center, scene.centerline)
    share = np.ones(len(states))
    if reference_m > metrics.LEAST_PROGRESS_M:
        share = np.minimum(progress_m / reference_m, 1.0)
    earned = PROGRESS_WEIGHT * share + TTC_WEIGHT + COMFORT_WEIGHT * comfort
    weight = PROGRESS_WEIGHT + TTC_WEIGHT + COMFORT_WEIGHT
    return np.where(off_road, 0.0, earned / weight)


def _discomfort(candidates: _Candidates, narrow: Array) -> Array:
    """(N,) discomfort: about 0 for a smooth drive in the middle of a free lane, about 1 for an unacceptable one."""
    rough = np.sqrt((candidates.accelerations**2).mean(axis=1)) / 3.0
    jerk = np.sqrt((np.diff(candidates.accelerations, axis=1) ** 2).mean(axis=1)) / (DECISION_STEP_S * 8.0)
    return np.asarray(0.4 * rough + 0.2 * jerk + 0.8 * narrow + 0.15 * np.abs(candidates.offsets_m))


def _edge_penalty(scene: Scene, card: ScoreCard, some: Array) -> Array:
    """(K,) penalty of the candidates of indices (K,) for being close to the edge of the road."""
    size = np.array([scene.vehicle.length_m + EDGE_MARGIN_M, scene.vehicle.width_m + 2.0 * EDGE_MARGIN_M])
    wide = metrics.ego_areas(centers(card.states[some], scene.vehicle), size, scene.areas, scene.grid)
    return np.asarray(EDGE_WEIGHT * (wide.off_road.mean(axis=1) + 0.3 * wide.off_road.any(axis=1)))


def _sample_candidates(situation: Situation, route: Array, offsets_m: tuple[float, ...]) -> _Candidates:
    scene, limit_mps = situation.scene, situation.speed_limit_mps
    speed = max(float(scene.motion[0]), 0.0)
    reach = max(speed * 4.5, 0.5 * (speed + limit_mps) * 4.5) + 15.0
    paths = _sample_paths(route, offsets_m, speed, reach)
    travelled, accelerations = _simulate_policies(scene, paths, limit_mps, situation.stop_m, situation.lateral_mps2)
    per_waypoint = DECISIONS // WAYPOINTS
    at = travelled[..., per_waypoint - 1 :: per_waypoint]
    poses = np.stack([_interpolate(paths[..., axis], at) for axis in range(3)], axis=-1)
    poses[..., 2] = geometry.wrap(poses[..., 2])
    ends = np.repeat(offsets_m, len(RETURN_M))[:, None]
    return _Candidates(
        poses.reshape(-1, *poses.shape[2:]),
        np.broadcast_to(ends, poses.shape[:2]).ravel(),
        accelerations.reshape(-1, DECISIONS),
    )


def _sample_paths(route: Array, offsets_m: tuple[float, ...], speed: float, reach_m: float) -> Array:
    """Paths (K, P, 3) from the ego, a pose every PATH_STEP_M, that end at an offset from the route (left positive)."""
    start, d0 = geometry.ego_on_route(route)
    along = np.arange(0.0, reach_m, PATH_STEP_M)
    middle = geometry.sample(route, start + along)
    normal = np.stack([-np.sin(middle[:, 2]), np.cos(middle[:, 2])], axis=1)
    slope = float(np.tan(np.clip(geometry.wrap(-middle[0, 2]), -0.7, 0.7)))
    paths = []
    for offset in offsets_m:
        for least_m, least_s in zip(RETURN_M, RETURN_S, strict=True):
            length = max(least_m, least_s * speed)
            u = np.minimum(along / length, 1.0)
            # A quintic from (d0, slope) to (offset, 0), without a step of curvature at its end.
            blend = u**3 * (10.0 - 15.0 * u + 6.0 * u**2)
            lateral = d0 + (offset - d0) * blend + slope * length * u * (1.0 - u) ** 3 * (1.0 + 3.0 * u)
            points = middle[:, :2] + lateral[:, None] * normal
            points[0] = 0.0
            gradient = np.gradient(points, along, axis=0)
            heading = np.unwrap(np.arctan2(gradient[:, 1], gradient[:, 0]))
            plan = geometry.arc_lengths(points)
            columns = [np.interp(along, plan, column) for column in (*points.T, heading)]
            paths.append(np.stack(columns, axis=-1))
    return np.array(paths)


def _interpolate(values: Array, at_m: Array) -> Array:
    """(K, W, ..) values (K, P) of paths, one every PATH_STEP_M, at arc lengths (K, W, ..); constant at the end."""
    position = np.clip(at_m / PATH_STEP_M, 0.0, values.shape[1] - 1.001)
    index = position.astype(np.intp)
    rows = np.arange(len(values)).reshape(-1, *(1,) * (at_m.ndim - 1))
    low = values[rows, index]
    return np.asarray(low + (position - index) * (values[rows, index + 1] - low))


RATE, FOLLOW, STOP = range(3)


def _speed_policies(scene: Scene, stop_m: float | None) -> tuple[Array, Array, Array]:
    """W speed policies, (W,) each: accelerate at a rate, follow the lead vehicle at a share of the allowed speed and a
    headway, or stop after a distance.
    """
    wishes = [(RATE, rate, 0.0) for rate in ACCELERATIONS_MPS2]
    wishes += [(FOLLOW, share, headway) for share, headway in FOLLOW_PARAMETERS]
    wishes += [(STOP, distance_m, 0.0) for distance_m in STOPS_M]
    if stop_m is not None:
        wishes.append((STOP, max(stop_m - _front_m(scene) - 1.0, 0.3), 0.0))
    kinds, values, headways = zip(*wishes, strict=True)
    return np.array(kinds), np.array(values), np.array(headways)


def _front_m(scene: Scene) -> float:
    """Metres from the rear axle to the front bumper."""
    return float(scene.vehicle.rear_axle_to_center_m + 0.5 * scene.vehicle.length_m)


def _simulate_policies(
    scene: Scene,
    paths: Array,
    limit_mps: float,
    stop_m: float | None,
    lateral_mps2: float,
) -> tuple[Array, Array]:
    """Metres along K paths under W policies (K, W, DECISIONS) at 0.25 .. 4 s, and their accelerations."""
    allowed = np.stack([_speed_profile(path, limit_mps, lateral_mps2) for path in paths])
    ahead = [_lead_positions(scene, path) for path in paths]
    gaps, lead_speeds = (np.stack(column)[:, None] for column in zip(*ahead, strict=True))  # (K, 1, DECISIONS)
    if stop_m is not None:  # the stop line acts as a standing lead vehicle
        lead_speeds = np.where(gaps >= stop_m - 0.5, 0.0, lead_speeds)
        gaps = np.minimum(gaps, stop_m - 0.5)
    front = _front_m(scene)
    kinds, wishes, headways = _speed_policies(scene, stop_m)
    at_rate, following = kinds == RATE, kinds == FOLLOW
    shape = len(paths), len(kinds)
    s, v = np.zeros(shape), np.full(shape, max(float(scene.motion[0]), 0.0))
    a = np.full(shape, float(np.clip(scene.motion[2], -4.0, 2.0)))
    share = np.where(following, wishes, 1.0)
    softly = 2.0 * np.sqrt(ACCELERATION_MPS2 * BRAKING_MPS2)
    travelled, accelerations = np.empty((*shape, DECISIONS)), np.empty((*shape, DECISIONS))
    for k in range(DECISIONS):
        curve = _interpolate(allowed, s + 0.5 * v)
        free = ACCELERATION_MPS2 * (1.0 - np.square(np.square(v / np.maximum(share * curve, 0.5))))
        room = np.maximum(gaps[..., k] - s - front, 0.1)
        distance = MIN_GAP_M + np.maximum(v * headways + v * (v - lead_speeds[..., k]) / softly, 0.0)
        follow = np.minimum(free, ACCELERATION_MPS2 * (1.0 - (distance / room) ** 2))
        needed = v**2 / (2.0 * np.maximum(wishes - s, 0.05))
        stop = np.where(needed > 0.4, -needed, np.minimum(free, 0.0))
        # curve speed limits override the policy
        rate = np.where(v > curve, np.minimum(wishes, (curve - v) / 0.6), wishes)
        wish = np.where(at_rate, rate, np.where(following, follow, stop))
        wish = np.minimum(np.maximum(wish, -7.0), 2.2)
        quickest = np.where(a < 0.0, 2.0, 1.0) * JERK_MPS3 * DECISION_STEP_S  # brakes are released faster than applied
        a = a + np.minimum(np.maximum(wish - a, -BRAKING_JERK_MPS3 * DECISION_STEP_S), quickest)
        after = np.maximum(v + a * DECISION_STEP_S, 0.0)
        a = np.where(after == 0.0, np.maximum(a, -v / DECISION_STEP_S), a)
        s = s + 0.5 * (v + after) * DECISION_STEP_S
        v = after
        travelled[..., k], accelerations[..., k] = s, a
    return travelled, accelerations


def _speed_profile(path: Array, limit_mps: float, lateral_mps2: float) -> Array:
    """(P,) m/s: the limit, and slow enough for every curve ahead."""
    length = PATH_STEP_M * np.arange(len(path))
    span = 4
    index = np.arange(len(path))
    ahead, behind = np.minimum(index + span, len(path) - 1), np.maximum(index - span, 0)
    curvature = np.abs(path[ahead, 2] - path[behind, 2]) / np.maximum(length[ahead] - length[behind], PATH_STEP_M)
    squared = np.minimum(lateral_mps2 / np.maximum(curvature, 1e-5), limit_mps**2)
    # Slowing down early is a running minimum of v^2 + 2 b s.
    squared = np.minimum.accumulate((squared + 2.0 * CURVE_BRAKING_MPS2 * length)[::-1])[::-1]
    return np.asarray(np.sqrt(squared - 2.0 * CURVE_BRAKING_MPS2 * length))


def _lead_positions(scene: Scene, path: Array) -> tuple[Array, Array]:
    """Per decision (DECISIONS,): arc length of the rear of the first agent on the path (inf: none), and its speed."""
    agents: AgentTracks = scene.agents
    none = np.full(DECISIONS, np.inf), np.zeros(DECISIONS)
    if not len(agents):
        return none
    margin = agents.sizes.max() + 3.0
    low, high = path[:, :2].min(axis=0) - margin, path[:, :2].max(axis=0) + margin
    poses = agents.poses[:, TRACK_SAMPLES]
    present = agents.present[:, TRACK_SAMPLES]
    agent, step = np.nonzero(((poses[..., :2] >= low) & (poses[..., :2] <= high)).all(axis=-1) & present)
    half = 0.5 * scene.vehicle.width_m + 0.25
    thin = path[::4]
    _, offset_m = geometry.project(thin, poses[agent, step, :2])
    reached = np.abs(offset_m) < half + 0.5 * np.hypot(*agents.sizes[agent].T)
    agent, step = agent[reached], step[reached]
    if len(agent) == 0:
        return none
    corners = geometry.box_corners(poses[agent, step], agents.sizes[agent])
    along, lateral = (each.reshape(-1, 4) for each in geometry.project(thin, corners.reshape(-1, 2)))
    end = geometry.arc_lengths(thin)[-1]
    off_path = (lateral.min(axis=-1) > half) | (lateral.max(axis=-1) < -half)
    gone = (along.max(axis=-1) <= _front_m(scene)) | (along.min(axis=-1) >= end - 1e-6)
    rear = np.full(poses.shape[:2], np.inf)
    rear[agent, step] = np.where(off_path | gone, np.inf, along.min(axis=-1))
    first = np.argmin(rear, axis=0)
    steps = np.arange(DECISIONS)
    at = np.minimum(rear[first, steps], end)
    turn = poses[first, steps, 2] - np.interp(at, PATH_STEP_M * np.arange(len(path)), path[:, 2])
    speed = agents.speeds_mps[:, TRACK_SAMPLES][first, steps] * np.cos(turn)
    return rear[first, steps], np.where(np.isfinite(rear[first, steps]), np.maximum(speed, 0.0), 0.0)


def straight_ahead_score(scene: Scene) -> float:
    """PDMS of going straight on at the present speed, whatever the steering angle now: high for an easy scene."""
    states = np.zeros((1, STEPS + 1, STATE_SIZE))
    states[..., VX] = float(scene.motion[0])
    states[..., X] = states[..., VX] * DT_S * np.arange(STEPS + 1)
    return float(judge_among_agents(scene, judge_alone(scene, states, lane_keeping=False)).score[0])
