"""The ego of the closed loop: its motion in 0.1 s under a plan.

Tracker and bicycle model are those of the driving score (`scoring.simulate`), so that a plan is driven as it is scored.
The score simulates 4 s; here one step is simulated, and the next step starts from the resulting motion.

A car that is to stand is stopped by its brakes. The tracker of the score would let its speed decay from 0.2 m/s with a
time constant of 2 s; controllers of vehicles (Autoware's `pid_longitudinal_controller`) stop it within a few tenths.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from ..core import geometry, kinematics
from ..core.config import VehicleConfig
from ..core.domain import Array, EgoState, Plan
from ..core.field_checks import check_array
from ..scoring.simulate import AX, DT_S, HEADING, STATE_SIZE, STEERING, STEPS, VX, YAW_RATE, X, Y, follow

BRAKING_MPS2 = 3.0  # without a plan: firm, and within what passengers bear
STAND_MPS, STAND_M = 0.5, 0.3  # a slower car whose plan ends nearer is to stand ..
STAND_BRAKING_MPS2 = 1.0  # .. and is braked with this
MIN_CURVATURE_SPEED_MPS = 1.0  # at lower speeds the yaw rate does not give the turning radius
MOTION = slice(VX, STATE_SIZE)


@dataclass(frozen=True, eq=False)
class Ego:
    """Where the car is and how it moves."""

    map_from_ego: Array  # (3,) rear axle
    motion: Array = field(default_factory=lambda: np.zeros(STATE_SIZE - VX))  # (8,) as `EgoState.motion`

    def __post_init__(self) -> None:
        object.__setattr__(self, "map_from_ego", check_array("Ego", "map_from_ego", self.map_from_ego, (3,)))
        object.__setattr__(self, "motion", check_array("Ego", "motion", self.motion, (STATE_SIZE - VX,)))

    @property
    def speed_mps(self) -> float:
        return float(self.motion[0])

    def state(self, stamp_ns: int) -> EgoState:
        """The state that odometry reports."""
        return EgoState(
            stamp_ns,
            self.map_from_ego,
            self.speed_mps,
            acceleration_mps2=float(self.motion[AX - VX]),
            yaw_rate_rps=float(self.motion[YAW_RATE - VX]),
            steering_rad=float(self.motion[STEERING - VX]),
        )

    def box_center(self, vehicle: VehicleConfig) -> Array:
        """(3,) pose of the middle of the car's box, map frame."""
        return kinematics.box_centres(self.map_from_ego, vehicle)

    def states(self) -> Array:
        """(11,) columns of `scoring.simulate`, in the map frame."""
        return np.concatenate([self.map_from_ego, self.motion])


def ego_at_speed(map_from_ego: Array, speed_mps: float) -> Ego:
    """A car that drives straight at constant speed."""
    return Ego(map_from_ego, np.array([speed_mps, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]))


def step_ego(ego: Ego, plan: Plan | None, stamp_ns: int, vehicle: VehicleConfig) -> Ego:
    """The state 0.1 s after `stamp_ns`.

    The car follows the rest of the plan and stops at its end. Without a plan, or with one that has ended or starts in
    the future, it brakes to a stop with its present curvature.
    """
    reference = None if plan is None else remaining_reference(plan, stamp_ns, ego.map_from_ego)
    if reference is None:
        reference = braking_reference(ego)
    if is_to_stand(reference, ego.speed_mps):
        return brake_to_stand(ego)
    after = follow(reference[None], ego.motion, vehicle)[0, 1]
    moved = geometry.compose(ego.map_from_ego, after[[X, Y, HEADING]])
    return Ego(moved, after[MOTION])


def is_to_stand(reference: Array, speed_mps: float) -> bool:
    """Whether a slow car's reference (41, 3), ego frame, ends within STAND_M."""
    return abs(speed_mps) < STAND_MPS and float(np.hypot(reference[:, X], reference[:, Y]).max()) < STAND_M


def brake_to_stand(ego: Ego) -> Ego:
    """The state after 0.1 s of braking with STAND_BRAKING_MPS2, straight on."""
    before_mps = ego.speed_mps
    after_mps = np.sign(before_mps) * max(abs(before_mps) - STAND_BRAKING_MPS2 * DT_S, 0.0)
    moved = geometry.compose(ego.map_from_ego, np.array([0.5 * (before_mps + after_mps) * DT_S, 0.0, 0.0]))
    motion = np.zeros_like(ego.motion)
    motion[0] = after_mps
    if after_mps:  # brakes do not push a standing car
        motion[AX - VX] = (after_mps - before_mps) / DT_S
    motion[STEERING - VX] = ego.motion[STEERING - VX]
    return Ego(moved, motion)


def remaining_reference(plan: Plan, stamp_ns: int, map_from_ego: Array) -> Array | None:
    """The plan's poses at 0, 0.1, .. 4 s from now: (41, 3) in the present ego frame, headings unwrapped.

    The first pose is the origin only if the car is exactly on the plan. None if nothing of the plan is left.
    """
    elapsed_s = (stamp_ns - plan.stamp_ns) * 1e-9
    if not 0.0 <= elapsed_s < plan.trajectory.horizon_s:
        return None
    times_s = np.minimum(elapsed_s + DT_S * np.arange(STEPS + 1), plan.trajectory.horizon_s)
    now_from_then = geometry.compose(geometry.invert(map_from_ego), plan.map_from_ego)
    poses = geometry.compose(now_from_then, kinematics.resample(plan.trajectory, times_s))
    poses[:, 2] = np.unwrap(poses[:, 2])
    return poses


def braking_reference(ego: Ego) -> Array:
    """(41, 3) poses at 0, 0.1, .. 4 s of a car that brakes on its present curve, ego frame."""
    distances = kinematics.braking_distances(ego.speed_mps, BRAKING_MPS2, DT_S * np.arange(STEPS + 1))
    curvature = float(ego.motion[YAW_RATE - VX]) / max(ego.speed_mps, MIN_CURVATURE_SPEED_MPS)
    poses = kinematics.arc(curvature, distances)
    poses[:, 2] = np.unwrap(poses[:, 2])
    return poses
