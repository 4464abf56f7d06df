"""The driving score of N candidate trajectories in one scene: NAVSIM's PDMS (v1.1) or EPDMS (v2).

How to build a Scene (in the ego frame at t = 0: x forward, y left, origin at the rear axle):

    scene = SafetyContext(observation, config).scene                                                # on the car
    scene = Scene(motion, agents, centerline, areas=MapAreas(...), reference=Reference(31.0), ...)  # from a map
    card = score(scene, candidates)          # (N, 8, 3) poses at 0.5 .. 4 s, or (N, 40, 3) at 0.1 .. 4 s
    best = card.score.argmax()
    card = score(scene, trajectory)          # a Trajectory of 4 s or more, of any interval

- `motion` (8,) is `EgoState.motion`; `agents` from `AgentTracks.of_forecast(forecast, kinds)`.
- Drivable space is `areas` (polygons, exact), or `grid` (a DrivableGrid of `drivable.grid_around_ego`), or both: then
  the grid decides what is off-road, and the polygons decide the rest. With neither, no point is known to be off-road.
- `centerline` (L, 2+) is the route ahead: progress and lane keeping are measured along it.
- `reference` is the progress of a rule-based planner by which progress is normalised. Without one, each candidate is
  measured by itself, and EP is 1 for all that move: give one to compare candidates.
- `Scene` caches what it has prepared (the index of its polygons): score many candidates with one Scene.

`official=True` reproduces the official code, quirks included (section 15 of the spec), to compare with published
numbers. The default, for driving and for rewards, differs where the official rule is an accident:

- An agent's speed is the present one, not that of its first observation (Q1): a parked car that starts and hits the ego
  is not at rest.
- TTC compares agent and ego at the time of their contact; the official code compares the future agent with the present
  ego (Q2), so that a tailgating agent may count as "ahead".
- An agent that touched the ego without the ego's fault is exempt until that contact ends, not for the rest of the plan:
  a second, frontal contact counts.
- A contact at t = 0 is exempt in the same way: no plan can avoid it.
- Comfort uses the accelerations of the box centre with correct formulas. In the official code the yaw acceleration acts
  along the car, and lateral acceleration is 0 in v2 and v1.1. Windows are 7 and 15 samples: v1.1's 41 average every
  short braking away (Q9), v2's 8 shift by half a sample (Q7).
- Driving direction ignores intersections in both forms, traffic lights multiply both forms, and progress is multiplied
  by the multipliers in both forms.
- The angle to an agent is never NaN, in both modes: the official acos may be, by rounding, for an agent straight ahead
  (Q3). The golden set has no such case.

Kept, because every published number has them: the tracker's penalty on acceleration, DAC without tolerance and from t =
0 on, lane joints that count as "between lanes" (Q11).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np

from ..core import kinematics
from ..core.config import ScoringConfig, VehicleConfig
from ..core.domain import Array, DrivableGrid, Trajectory
from ..core.field_checks import check_array
from . import contacts, metrics
from .areas import MapAreas, RedLights
from .contacts import AgentTracks
from .simulate import HORIZON_S, STATE_SIZE, STEPS, centers, simulate

WAYPOINTS = 8
STEPS_PER_WAYPOINT = STEPS // WAYPOINTS
WAYPOINT_STEPS = STEPS_PER_WAYPOINT * np.arange(1, WAYPOINTS + 1)
WAYPOINT_TIMES_S = HORIZON_S / WAYPOINTS * np.arange(1, WAYPOINTS + 1)
SUB_SCORES = ("nc", "dac", "ttc", "comfort", "ep")  # of PDMS, by their names in a ScoreCard
CANDIDATE_LENGTHS = (WAYPOINTS, STEPS)
FAR = 1e6  # m, m/s, ..: no plan and no car exceeds this; the arithmetic stays finite
# weights of the driving score, NAVSIM's: with others it could not be compared with published scores
PROGRESS_WEIGHT, TTC_WEIGHT, COMFORT_WEIGHT = 5.0, 5.0, 2.0
LANE_KEEPING_WEIGHT, EXTENDED_COMFORT_WEIGHT = 2.0, 2.0  # of EPDMS; the second only with a previous plan
CLEARANCE_MAX_M = 5.0  # larger gaps to other boxes are reported as this
BATCH = 256  # candidates scored at once; the arrays of more fall out of the cache


@dataclass(frozen=True)
class Reference:
    """Progress of the reference planner, by which progress is normalised (section 8)."""

    progress_m: float  # along the centreline in 4 s, after simulation
    multiplier: float = 1.0  # product of its own multiplicative metrics; a reference with 0 is not used

    def __post_init__(self) -> None:
        if not (math.isfinite(self.progress_m) and self.progress_m >= 0):
            raise ValueError(f"Reference.progress_m is {self.progress_m}, expected a finite number of at least 0")
        if not 0 <= self.multiplier <= 1:
            raise ValueError(f"Reference.multiplier is {self.multiplier}, expected 0 to 1")


@dataclass(frozen=True, eq=False)
class Scene:
    """All inputs of the scorer, in the ego frame at t = 0. The module docstring shows how to build one."""

    motion: Array  # (8,) vx, vy, ax, ay, steering, steering rate, yaw rate, yaw acceleration
    agents: AgentTracks  # as predicted, or as recorded
    centerline: Array  # (L >= 2, 2+)
    areas: MapAreas | None = None
    grid: DrivableGrid | None = None
    reference: Reference | None = None
    red_lights: RedLights = field(default_factory=RedLights)
    history: Array | None = None  # (H, 11) states at 10 Hz before now, for the comfort of EPDMS
    vehicle: VehicleConfig = field(default_factory=VehicleConfig)
    start_us: int | None = None  # clock of a recording, for the official sampling times (`simulate.sample_times`)

    def __post_init__(self) -> None:
        object.__setattr__(self, "motion", check_array("Scene", "motion", self.motion, (STATE_SIZE - 3,)))
        if np.abs(self.motion).max() > FAR:
            raise ValueError(f"Scene.motion reaches {np.abs(self.motion).max():.3g}, expected at most {FAR:g}")
        columns = np.shape(self.centerline)[1] if np.ndim(self.centerline) == 2 else 2
        object.__setattr__(
            self, "centerline", check_array("Scene", "centerline", self.centerline, (None, max(columns, 2)))
        )
        if len(self.centerline) < 2:
            raise ValueError(f"Scene.centerline has shape {self.centerline.shape}, expected (2 or more, 2 or more)")
        if self.history is not None:
            object.__setattr__(self, "history", check_array("Scene", "history", self.history, (None, STATE_SIZE)))


@dataclass(frozen=True, eq=False)
class ScoreCard:
    """Scores of N trajectories, each (N,) in 0..1 and never NaN unless said otherwise."""

    nc: Array  # no at-fault collision: 1, 0.5, 0
    dac: Array  # drivable area: 1, 0
    ddc: Array  # driving direction: 1, 0.5, 0; multiplies EPDMS
    tlc: Array  # traffic lights: 1, 0; multiplies EPDMS, and PDMS unless official
    ep: Array  # ego progress, 0..1
    ttc: Array  # time to collision: 1, 0
    comfort: Array  # 1, 0
    lk: Array  # lane keeping: 1, 0; counts in EPDMS
    ec: Array | None  # extended comfort: 1, 0; counts in EPDMS; None without an earlier plan
    multiplier: Array  # product of the multiplicative metrics
    score: Array  # PDMS or EPDMS
    progress_m: Array  # m along the centreline in 4 s
    clearance_m: Array  # (N, 8) m from the box to the nearest agent at each waypoint, 0 on contact, capped
    waypoint_safety: Array  # (N, 8) worst NC x DAC within 0.5 s of each waypoint: 1, 0.5, 0
    states: Array  # (N, 41, 11) simulated states (columns of `simulate`)

    def __len__(self) -> int:
        return len(self.score)

    def of(self, indices: Array) -> ScoreCard:
        """The card of these (K,) trajectories alone."""
        parts_by_name: dict[str, Any] = {}
        for entry in fields(self):
            part = getattr(self, entry.name)
            parts_by_name[entry.name] = None if part is None else part[indices]
        return ScoreCard(**parts_by_name)


def score(
    scene: Scene,
    candidates: Array | Trajectory,
    config: ScoringConfig | None = None,
    *,
    official: bool = False,
    previous_states: Array | None = None,
) -> ScoreCard:
    """Scores of candidates (N, 8, 3) at 0.5 .. 4 s or (N, 40, 3) at 0.1 .. 4 s, simulated and judged in the scene.

    A Trajectory is one candidate: its first 4 s; its own poses where they are 0.1 or 0.5 s apart, else interpolated.
    `previous_states` (41, 11), or (N, 41, 11), are the `states` of the plan 0.5 s earlier, for extended comfort.
    A candidate's score does not depend on the others of its batch. Raises ValueError on another shape or NaN.
    """
    if isinstance(candidates, Trajectory):
        candidates = scored_poses(candidates)[None]
    poses = check_array("score", "candidates", candidates, (None, None, 3))
    if len(poses) == 0 or poses.shape[1] not in CANDIDATE_LENGTHS:
        raise ValueError(f"score.candidates has shape {poses.shape}, expected (1 or more, {WAYPOINTS} or {STEPS}, 3)")
    if np.abs(poses).max() > FAR:
        raise ValueError(f"score.candidates reaches {np.abs(poses).max():.3g}, expected at most {FAR:g}")
    cards = []
    for first in range(0, len(poses), BATCH):
        states = simulate(poses[first : first + BATCH], scene.motion, scene.vehicle, scene.start_us)
        states.flags.writeable = False  # or `score_states` would keep a copy
        before = None if previous_states is None else np.asarray(previous_states, float)
        if before is not None and before.ndim == 3 and len(before) == len(poses):
            before = before[first : first + BATCH]
        cards.append(score_states(scene, states, config, official=official, previous_states=before))
    return cards[0] if len(cards) == 1 else concat_cards(cards)


def scored_poses(trajectory: Trajectory) -> Array:
    """(8, 3) or (40, 3) poses of the first 4 s, headings unwrapped. Raises ValueError for a shorter trajectory."""
    if trajectory.horizon_s < HORIZON_S - 1e-9:
        raise ValueError(f"Trajectory ends at {trajectory.horizon_s:.2f} s, expected at least {HORIZON_S:.0f} s")
    count = next((n for n in CANDIDATE_LENGTHS if math.isclose(n * trajectory.dt_s, HORIZON_S)), 0)
    times_s = HORIZON_S / STEPS * np.arange(1, STEPS + 1)
    poses = trajectory.poses[:count].copy() if count else kinematics.resample(trajectory, times_s)
    poses[:, 2] = np.unwrap(np.concatenate([[0.0], poses[:, 2]]))[1:]
    return poses


def concat_cards(cards: list[ScoreCard]) -> ScoreCard:
    """Cards of one scene as one."""
    parts_by_name: dict[str, Any] = {}
    for entry in fields(ScoreCard):
        parts = [getattr(card, entry.name) for card in cards]
        parts_by_name[entry.name] = None if parts[0] is None else np.concatenate(parts)
    return ScoreCard(**parts_by_name)


def score_states(
    scene: Scene,
    states: Array,
    config: ScoringConfig | None = None,
    *,
    official: bool = False,
    previous_states: Array | None = None,
) -> ScoreCard:
    """As `score`, of trajectories that are driven already: states (N, 41, 11) of `simulate`, from the ego's pose."""
    config = config or ScoringConfig()
    driven = judge_alone(scene, states, config, official=official)
    return judge_among_agents(scene, driven, config, official=official, previous_states=previous_states)


@dataclass(frozen=True, eq=False)
class DrivenStates:
    """What of the scores of N driven trajectories is the same whatever the other agents do."""

    states: Array  # (N, 41, 11)
    center: Array  # (N, 41, 3) poses of the box centre
    areas: metrics.EgoAreas
    ddc: Array
    tlc: Array
    comfort: Array
    lk: Array
    progress_m: Array

    def of(self, indices: Array) -> DrivenStates:
        """These (K,) trajectories alone."""
        parts_by_name: dict[str, Any] = {}
        for entry in fields(self):
            part = getattr(self, entry.name)
            parts_by_name[entry.name] = part.of(indices) if isinstance(part, metrics.EgoAreas) else part[indices]
        return DrivenStates(**parts_by_name)


def judge_alone(
    scene: Scene,
    states: Array,
    config: ScoringConfig | None = None,
    *,
    official: bool = False,
    lane_keeping: bool = True,
) -> DrivenStates:
    """The first part of `score_states`. Without `lane_keeping`, which PDMS does not contain, LK is 1."""
    config = config or ScoringConfig()
    states = check_array("judge", "states", states, (None, STEPS + 1, STATE_SIZE))
    second = config.form == "epdms"
    vehicle = scene.vehicle
    center = centers(states, vehicle)
    size = np.array([vehicle.length_m, vehicle.width_m])
    areas = metrics.ego_areas(center, size, scene.areas, scene.grid, vehicle.rear_axle_to_center_m)
    official_rule = metrics.COMFORT_V2 if second else metrics.COMFORT_V1
    rule = official_rule if official else metrics.COMFORT_SANE
    return DrivenStates(
        states=states,
        center=center,
        areas=areas,
        ddc=metrics.driving_direction(center, areas, spare_intersections=second or not official),
        tlc=metrics.traffic_lights(center, vehicle, scene.red_lights.connectors, scene.red_lights.red),
        comfort=_comfort(scene, states, rule, with_history=second),
        lk=metrics.lane_keeping(center, scene.centerline, areas) if lane_keeping else np.ones(len(states)),
        progress_m=metrics.progress(center, scene.centerline),
    )


def judge_among_agents(
    scene: Scene,
    driven: DrivenStates,
    config: ScoringConfig | None = None,
    *,
    official: bool = False,
    previous_states: Array | None = None,
) -> ScoreCard:
    """The second part of `score_states`; the scene of the first part may differ in its agents and its reference."""
    config = config or ScoringConfig()
    second = config.form == "epdms"
    states, center, areas, tlc, ddc = driven.states, driven.center, driven.areas, driven.tlc, driven.ddc
    vehicle, agents = scene.vehicle, scene.agents
    size = np.array([vehicle.length_m, vehicle.width_m])

    nc_by_step = metrics.no_collision(states, center, vehicle, agents, areas, official)
    dac_by_step = metrics.drivable_area(areas)
    nc, dac = nc_by_step.min(axis=1), dac_by_step.min(axis=1)
    multiplier = nc * dac
    if second:
        multiplier = multiplier * ddc
    if second or not official:
        multiplier = multiplier * tlc

    ttc = _time_to_collision(scene, driven, second, official)
    reference_m = scene.reference.progress_m * scene.reference.multiplier if scene.reference else 0.0
    ep = metrics.ego_progress(driven.progress_m, multiplier, reference_m, masked=not (second and official))
    card = ScoreCard(
        nc=nc,
        dac=dac,
        ddc=ddc,
        tlc=tlc,
        ep=ep,
        ttc=ttc,
        comfort=driven.comfort,
        lk=driven.lk,
        ec=None if previous_states is None else metrics.extended_comfort(states, _previous(previous_states, states)),
        multiplier=multiplier,
        score=multiplier,
        progress_m=driven.progress_m,
        clearance_m=_clearances(center, size, agents, CLEARANCE_MAX_M),
        waypoint_safety=_around_waypoints(nc_by_step * dac_by_step),
        states=states,
    )
    return replace(card, score=total(card, config))


def total(card: ScoreCard, config: ScoringConfig, *, with_comfort: bool = True) -> Array:
    """(N,) multipliers times the weighted mean of the others (section 13)."""
    earned, weight = _weighted_sum(config, card.ep, card.ttc, card.comfort, card.lk, card.ec, with_comfort)
    return np.asarray(card.multiplier * earned / weight)


def weighted_mean(scene: Scene, driven: DrivenStates, ep: Array, config: ScoringConfig) -> Array:
    """(N,) the weighted mean alone, with progress `ep` (N,) and without extended comfort."""
    ttc = _time_to_collision(scene, driven, config.form == "epdms", False)
    earned, weight = _weighted_sum(config, ep, ttc, driven.comfort, driven.lk, None)
    return np.asarray(earned / weight)


def _time_to_collision(scene: Scene, driven: DrivenStates, second: bool, official: bool) -> Array:
    last_step = STEPS - metrics.TTC_LOOK_STEPS if second else STEPS
    return metrics.time_to_collision(
        driven.states, driven.center, scene.vehicle, scene.agents, driven.areas, last_step, official
    )


def _weighted_sum(
    config: ScoringConfig,
    ep: Array,
    ttc: Array,
    comfort: Array,
    lk: Array,
    ec: Array | None,
    with_comfort: bool = True,
) -> tuple[Array, float]:
    parts = [(PROGRESS_WEIGHT, ep), (TTC_WEIGHT, ttc), (COMFORT_WEIGHT if with_comfort else 0.0, comfort)]
    if config.form == "epdms":
        parts.append((LANE_KEEPING_WEIGHT, lk))
        if ec is not None:
            parts.append((EXTENDED_COMFORT_WEIGHT, ec))
    return np.asarray(sum(share * values for share, values in parts)), sum(share for share, _ in parts)


def human_filter(card: ScoreCard, human: ScoreCard, config: ScoringConfig) -> ScoreCard:
    """The card with v2's human filter: metrics in which the human scored 0 are set to 1 (section 13).

    `human` is the card of the human's own trajectory, scored alone, in a Scene without reference and history. EC is not
    filtered, nor is a 0.5.
    """
    names = ("nc", "dac", "ddc", "tlc", "ep", "ttc", "comfort", "lk")
    pardon = {name: np.ones(len(card)) for name in names if getattr(human, name)[0] == 0.0}
    card = replace(card, **pardon)
    card = replace(card, multiplier=card.nc * card.dac * card.ddc * card.tlc)
    return replace(card, score=total(card, config))


def _comfort(scene: Scene, states: Array, rule: metrics.ComfortRule, with_history: bool) -> Array:
    if with_history and scene.history is not None:
        before = np.broadcast_to(scene.history, (len(states), *scene.history.shape))
        states = np.concatenate([before, states], axis=1)
    return np.where(metrics.comfort_flags(states, scene.vehicle, rule).all(axis=1), 1.0, 0.0)


def _clearances(center: Array, size: Array, agents: AgentTracks, at_most_m: float) -> Array:
    return contacts.clearances(center[:, WAYPOINT_STEPS], size, agents, WAYPOINT_STEPS, at_most_m)


def _previous(previous_states: Array, states: Array) -> Array:
    previous = np.asarray(previous_states, float)
    previous = previous[None] if previous.ndim == 2 else previous
    if previous.shape[1:] != states.shape[1:] or len(previous) not in (1, len(states)):
        raise ValueError(
            f"score.previous_states has shape {previous.shape}, expected {states.shape[1:]} or {states.shape}"
        )
    if not np.isfinite(previous).all():
        raise ValueError("score.previous_states holds NaN or infinity")
    return previous


def _around_waypoints(by_step: Array) -> Array:
    """(N, 8) least value of (N, 41) within 0.5 s of each waypoint."""
    blocks = np.minimum.reduceat(by_step, STEPS_PER_WAYPOINT * np.arange(WAYPOINTS + 1), axis=1)
    least = np.minimum(blocks[:, :-1], blocks[:, 1:])
    np.minimum(least[:, :-1], by_step[:, WAYPOINT_STEPS[1:]], out=least[:, :-1])
    return np.asarray(least)
