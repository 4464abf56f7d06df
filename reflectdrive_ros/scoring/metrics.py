"""The sub-scores of NAVSIM's PDM score: N simulated trajectories in, N numbers out.

States are (N, 41, 11) of `simulate`, at 0, 0.1, .. 4 s in the ego frame of now. Section numbers are those of the spec
of the official code. `official` asks for the official rule where ours differs; `scorer` lists the differences.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from functools import lru_cache

import numpy as np
import reflectdrive_kernels as kernels

from ..core import geometry
from ..core.config import VehicleConfig
from ..core.domain import Array, DrivableGrid
from . import drivable
from .areas import MapAreas
from .contacts import BEHIND_RAD, FAULT_RULE, AgentTracks
from .simulate import AX, AY, DT_S, HEADING

TTC_LOOK_STEPS: int = kernels.TTC_LOOK_STEPS  # section 9: the furthest look ahead
LEAST_PROGRESS_M = 5.0  # section 8: if no candidate gets further, progress does not count
LANE_OFFSET_M = 0.5  # section 11
LANE_STEPS = 20

# --- where the car is -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class EgoAreas:
    """Map areas under the ego box, each (N, 41) bool (section 3)."""

    multiple_lanes: Array  # over two lanes and within neither
    off_road: Array  # some corner is not in a roadblock, intersection or carpark
    off_route: Array  # the centre is in no lane of the route
    in_intersection: Array  # the centre
    rear_in_intersection: Array  # the rear axle

    def of(self, indices: Array) -> EgoAreas:
        """The flags of these (K,) trajectories."""
        return EgoAreas(*(getattr(self, entry.name)[indices] for entry in fields(self)))


def ego_areas(
    center: Array, size: Array, areas: MapAreas | None, grid: DrivableGrid | None, rear_axle_to_center_m: float = 0.0
) -> EgoAreas:
    """Flags of boxes (length, width) at poses (N, 41, 3). Unknown flags are False; `off_road` comes from a grid if
    given.
    """
    shape = center.shape[:2]
    off_road = np.zeros(shape, bool) if grid is None else drivable.corner_clearances(grid, center, size) <= 0
    if areas is None:
        unknown = np.zeros(shape, bool)
        return EgoAreas(unknown, off_road, unknown, unknown, unknown)
    flags = areas.box_flags(center.reshape(-1, 3), size, rear_axle_to_center_m, grid is not None)
    flags = flags.reshape(-1, *shape)
    if grid is not None:
        flags[1] = off_road
    return EgoAreas(*flags)


# --- multipliers ------------------------------------------------------------------------------------------------------


def no_collision(
    states: Array,
    center: Array,
    vehicle: VehicleConfig,
    agents: AgentTracks,
    areas: EgoAreas,
    official: bool = False,
) -> Array:
    """NC over time (N, 41): 1, 0.5 or 0 at each instant; a trajectory's score is the minimum (section 4).

    A contact is the ego's fault if the agent stands, if the front bumper hits it, or if it is lateral while the car is
    between lanes or off the road; never if the ego stands or the agent comes from behind.
    """
    score = np.ones(center.shape[:2])
    if len(agents):
        lateral_counts = areas.multiple_lanes | areas.off_road
        # without `official`: no plan can avoid a contact at t = 0
        kernels.no_collision(
            (states, center, lateral_counts),
            (vehicle.length_m, vehicle.width_m),
            agents.for_kernels(first_speeds=official),
            FAULT_RULE,
            official,
            not official,
            score,
        )
    return score


def drivable_area(areas: EgoAreas) -> Array:
    """DAC over time (N, 41): 0 where a corner of the box is off the road, else 1 (section 5)."""
    return np.where(areas.off_road, 0.0, 1.0)


def driving_direction(center: Array, areas: EgoAreas, spare_intersections: bool) -> Array:
    """DDC (N,): 1, 0.5, 0 by the distance driven off the route's lanes within a second (section 6)."""
    wrong = areas.off_route & ~areas.in_intersection if spare_intersections else areas.off_route
    score = np.empty(len(center))
    kernels.driving_direction(center, wrong, score)
    return score


def traffic_lights(center: Array, vehicle: VehicleConfig, connectors: tuple[Array, ...], red: Array) -> Array:
    """TLC (N,): 0 where the box touches a connector (ring) while it is red, (R, 41) bool (section 7)."""
    score = np.ones(len(center))
    for ring, when in zip(connectors, red, strict=True):
        kernels.red_light_contacts(center, vehicle.length_m, vehicle.width_m, ring, when, score)
    return score


# --- weighted metrics -------------------------------------------------------------------------------------------------


def time_to_collision(
    states: Array,
    center: Array,
    vehicle: VehicleConfig,
    agents: AgentTracks,
    areas: EgoAreas,
    last_step: int,
    official: bool = False,
) -> Array:
    """TTC (N,): 0 if, at some step up to `last_step`, going straight on at its speed meets an agent within 0.9 s.

    It counts if the agent is then ahead, or alongside while the car is between lanes, off the road or with its rear
    axle in an intersection (section 9). The official code compares the agent then with the present ego (Q2); otherwise
    both are compared at the time of their contact.
    """
    score = np.ones(len(states))
    if len(agents):
        lateral_counts = areas.multiple_lanes | areas.off_road | areas.rear_in_intersection
        kernels.time_to_collision(
            (states, center, lateral_counts),
            (vehicle.length_m, vehicle.width_m),
            agents.for_kernels(),
            BEHIND_RAD,
            last_step,
            official,
            not official,
            score,
        )
    return score


def progress(center: Array, centerline: Array) -> Array:
    """(N,) metres gained along the centreline (L, 2+) in 4 s, not below 0 (section 8)."""
    along, _ = geometry.project(centerline, np.concatenate([center[:1, 0, :2], center[:, -1, :2]]))
    return np.asarray(np.maximum(along[1:] - along[0], 0.0))


def ego_progress(progress_m: Array, multiplier: Array, reference_m: float | Array, *, masked: bool) -> Array:
    """EP (N,): progress as a share of the best, which is the reference's or the candidate's own (section 8).

    `multiplier` (N,) is the product of the multiplicative metrics, `reference_m` the reference's progress times its own
    multiplier. `masked`, as in v1.1, includes the multiplier in the share; v2 does not.
    """
    earned = progress_m * multiplier
    best = np.maximum(earned, reference_m)
    share = np.clip((earned if masked else progress_m) / np.where(best > LEAST_PROGRESS_M, best, 1.0), 0.0, 1.0)
    no_progress = np.where(multiplier > 0, 1.0, 0.0) if masked else np.ones_like(share)
    return np.where(best > LEAST_PROGRESS_M, share, no_progress)


def lane_keeping(center: Array, centerline: Array, areas: EgoAreas) -> Array:
    """LK (N,): 0 if the centre is off the centreline (L, 2+) for 2 s, intersections not counted.

    Section 11: time in an intersection neither counts nor interrupts.
    """
    score = np.empty(len(center))
    kernels.lane_keeping(center, areas.in_intersection, centerline, LANE_OFFSET_M, LANE_STEPS, score)
    return score


# --- comfort ----------------------------------------------------------------------------------------------------------

# Section 10: longitudinal acceleration, lateral acceleration, jerk of the magnitude, longitudinal jerk, yaw
# acceleration, yaw rate; strict bounds.
COMFORT_LOW = np.array([-4.05, -4.89, -8.37, -4.13, -1.93, -0.95])
COMFORT_HIGH = np.array([2.40, 4.89, 8.37, 4.13, 1.93, 0.95])
EXTENDED_COMFORT = np.array([0.7, 0.5, 0.1, 0.1])  # section 12: acceleration, jerk, yaw rate, yaw acceleration
DECIMALS = 8
FILTER_BLOCK: int = kernels.COMFORT_BLOCK  # results that the kernel computes at once


@dataclass(frozen=True)
class ComfortRule:
    """How comfort is computed from accelerations: window lengths in samples, and which accelerations."""

    smooth: int  # window that smooths an acceleration before its derivative is taken
    acceleration: int  # window that smooths an acceleration before it is judged
    jerk: int  # window of the derivative
    center: str  # "rear_axle", "official" (the centre, with the official formula) or "center" (the right one)


COMFORT_V1 = ComfortRule(8, 41, 41, "rear_axle")
COMFORT_V2 = ComfortRule(8, 8, 15, "official")
COMFORT_SANE = ComfortRule(7, 7, 15, "center")


@lru_cache(maxsize=64)
def _filter_matrix(count: int, window: int, order: int, derivative: int) -> Array:
    """(T, T) matrix of a Savitzky-Golay filter: the product with a column of values is the filtered column.

    Each row fits a polynomial to a window and evaluates it, or its derivative, at one sample; near the ends the first
    or last window is used. Equals scipy's `savgol_filter` with even windows, on which the official code relies: they
    are evaluated half a sample late (Q7). It is written out because some versions of scipy refuse even windows.
    """
    window = min(window, count)
    half = window // 2
    rows = np.zeros((count, count))
    for i in range(count):
        first, at = i - half, float(half)
        if i < half:
            first, at = 0, i
        elif i >= count - half:
            first, at = count - window, i - (count - window)
        elif window % 2 == 0:
            first, at = i - half + 1, half - 0.5
        powers = (np.arange(window) - at)[:, None] ** np.arange(order + 1)
        rows[i, first : first + window] = np.linalg.pinv(powers)[derivative]
    return rows * (math.factorial(derivative) / DT_S**derivative)


def _apply_filter(values: Array, window: int, order: int = 2, derivative: int = 0) -> Array:
    return np.asarray((values @ _filter_matrix(values.shape[-1], window, order, derivative).T).round(DECIMALS))


def _yaw(states: Array, order: int, derivative: int) -> Array:
    heading = states[..., HEADING]
    turns = np.zeros_like(heading)
    turns[..., 1:] = np.cumsum(np.round(np.diff(heading, axis=-1) / (2 * np.pi)), axis=-1)
    return _apply_filter(heading - 2 * np.pi * turns, 5, order, derivative)


@lru_cache(maxsize=16)
def _comfort_filters(count: int, rule: ComfortRule) -> tuple[Array, Array]:
    """`weights` (5, T, 16 B) and `ranges` (5, B, 2) of the filters in `src/comfort.hpp`."""
    parts = ((rule.acceleration, 2, 0), (rule.smooth, 2, 0), (rule.jerk, 2, 1), (5, 3, 2), (5, 2, 1))
    filters = np.stack([_filter_matrix(count, *part).T for part in parts])
    blocks = -(-count // FILTER_BLOCK)
    weights = np.pad(filters, ((0, 0), (0, 0), (0, blocks * FILTER_BLOCK - count)))
    used = (weights.reshape(len(parts), count, blocks, FILTER_BLOCK) != 0.0).any(axis=3)  # (5, T, B)
    ranges = np.stack([used.argmax(axis=1), count - used[:, ::-1].argmax(axis=1)], axis=-1)
    return weights, ranges.astype(np.int64)


def comfort_flags(states: Array, vehicle: VehicleConfig, rule: ComfortRule) -> Array:
    """(N, 6) bool, which limits of section 10 a trajectory (N, T, 11) at 10 Hz keeps; put history states in front."""
    states = np.asarray(states, float)
    flags = np.empty((len(states), len(COMFORT_LOW)), bool)
    kernels.comfort_flags(
        states,
        *_comfort_filters(states.shape[1], rule),
        ("rear_axle", "official", "center").index(rule.center),
        vehicle.rear_axle_to_center_m,
        COMFORT_LOW,
        COMFORT_HIGH,
        10.0**DECIMALS,
        flags,
    )
    return flags


def extended_comfort(states: Array, previous: Array) -> Array:
    """EC (N,): 1 if the plan moves like the one of 0.5 s before, (N, 41, 11) or (1, 41, 11) (section 12)."""
    differences = []
    late, early = states[:, :-5], previous[:, 5:]
    magnitude = [_apply_filter(np.hypot(one[..., AX], one[..., AY]), 8) for one in (late, early)]
    differences.append(magnitude[0] - magnitude[1])
    jerk = [_apply_filter(one, 15, derivative=1) for one in magnitude]
    differences.append(jerk[0] - jerk[1])
    for derivative in (1, 2):  # of order 2 both, unlike the yaw acceleration of section 10
        differences.append(_yaw(late, 2, derivative) - _yaw(early, 2, derivative))
    rms = np.stack([np.sqrt((one**2).mean(axis=-1)) for one in differences], axis=-1)
    return np.where((rms <= EXTENDED_COMFORT).all(axis=-1), 1.0, 0.0)
