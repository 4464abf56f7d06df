"""The sub-scores of NAVSIM's PDM score: N simulated trajectories in, N numbers out.

States are (N, 41, 11) of `simulate`, at 0, 0.1, .. 4 s in the ego frame of now. Section numbers are those of the spec
of the official code. `official` asks for the official rule where ours differs; `scorer` lists the differences.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import shapely

from .. import geometry
from ..config import VehicleConfig
from ..domain import Array, DrivableGrid
from . import contacts, drivable
from .areas import LineIndex, MapAreas
from .contacts import AgentTracks
from .simulate import AX, AY, DT_S, HEADING, STEPS, VX, VY, YAW_ACCELERATION, YAW_RATE, X, Y, product

STOPPED_MPS = 0.05  # section 4: slower is stopped, for the ego and for others
STANDING_MPS = 0.005  # section 9: slower has no time to collision
AHEAD_RAD = np.deg2rad(30.0)
BEHIND_RAD = np.deg2rad(150.0)
TTC_STEPS = np.arange(0, 10, 3)  # section 9: looks ahead 0, 0.3, 0.6, 0.9 s
STATIC_PENALTY = 0.5  # section 4: score after a collision with a cone or a barrier
WRONG_WAY_M = (2.0, 6.0)  # section 6: less is 1, less is 0.5, else 0
WRONG_WAY_STEPS = 10
LEAST_PROGRESS_M = 5.0  # section 8: if no candidate gets further, progress does not count
LANE_OFFSET_M = 0.5  # section 11
LANE_STEPS = 20

SAMPLE_TIMES = np.arange(STEPS + 1)


# --- where the car is -------------------------------------------------------------------------------------------------


def centers(states: Array, vehicle: VehicleConfig) -> Array:
    """(N, 41, 3) poses of the box centre (section 1.4)."""
    x, y, heading = states[..., X].T, states[..., Y].T, states[..., HEADING].T  # (41, N), as they lie in memory
    ahead = vehicle.rear_axle_to_center_m
    return np.asarray(np.stack([x + ahead * np.cos(heading), y + ahead * np.sin(heading), heading]).T)


@dataclass(frozen=True, eq=False)
class EgoAreas:
    """Map areas under the ego box, each (N, 41) bool (section 3)."""

    multiple_lanes: Array  # over two lanes and within neither
    off_road: Array  # some corner is not in a roadblock, intersection or carpark
    off_route: Array  # the centre is in no lane of the route
    in_intersection: Array  # the centre

    def of(self, places: Array) -> EgoAreas:
        """The flags of these (K,) trajectories."""
        return EgoAreas(
            self.multiple_lanes[places], self.off_road[places], self.off_route[places], self.in_intersection[places]
        )


def ego_areas(center: Array, size: Array, areas: MapAreas | None, grid: DrivableGrid | None) -> EgoAreas:
    """Flags of boxes (length, width) at poses (N, 41, 3). Unknown flags are False; `off_road` comes from a grid if
    given.
    """
    unknown = np.zeros(center.shape[:2], bool)
    if areas is None and grid is None:
        return EgoAreas(unknown, unknown, unknown, unknown)
    x, y, heading = np.ascontiguousarray(center.T)  # (41, N) each
    ahead_x, ahead_y = 0.5 * size[0] * np.cos(heading), 0.5 * size[0] * np.sin(heading)
    left_x, left_y = -0.5 * size[1] * np.sin(heading), 0.5 * size[1] * np.cos(heading)
    corner_x = np.stack([x + ahead_x + left_x, x - ahead_x + left_x, x - ahead_x - left_x, x + ahead_x - left_x])
    corner_y = np.stack([y + ahead_y + left_y, y - ahead_y + left_y, y - ahead_y - left_y, y + ahead_y - left_y])
    off_road = np.zeros(x.shape, bool)
    if grid is not None:
        off_road = drivable.clearances(grid, np.stack([corner_x, corner_y], axis=-1)).min(axis=0) <= 0
    if areas is None:
        return EgoAreas(unknown, off_road.T, unknown, unknown)

    bits = areas.index.bits(np.concatenate([corner_x, x[None]]), np.concatenate([corner_y, y[None]]))  # (W, 5, 41, N)
    front_left, rear_left, rear_right, front_right, middle = np.moveaxis(bits, 1, 0)
    if grid is None:
        for corner in (front_left, rear_left, rear_right, front_right):
            off_road |= ~_some(corner, areas.drivable_bits)
    touched = front_left | rear_left | rear_right | front_right
    within = front_left & rear_left & rear_right & front_right
    return EgoAreas(
        (_several(touched, areas.lane_bits) & ~_some(within, areas.lane_bits)).T,
        off_road.T,
        ~_some(middle, areas.route_bits).T,
        _some(middle, areas.intersection_bits).T,
    )


def _some(bits: Array, mask: Array) -> Array:
    """(..) bool, whether sets (words, ..) have a member in the mask (words,)."""
    found = (bits[0] & mask[0]) != 0
    for word in range(1, len(mask)):
        found |= (bits[word] & mask[word]) != 0
    return np.asarray(found)


def _several(bits: Array, mask: Array) -> Array:
    """(..) bool, whether sets (words, ..) have at least two members in the mask (words,)."""
    one = np.zeros(bits.shape[1:], bool)
    two = one.copy()
    for word in range(len(mask)):
        left = bits[word] & mask[word]
        some = left != 0
        two |= (one & some) | ((left & (left - np.uint64(1))) != 0)
        one |= some
    return np.asarray(two)


def _bearing(x: Array, y: Array, heading: Array, target: Array) -> Array:
    """(C,) rad, 0 straight ahead to pi straight behind, of targets (C, 2) seen from poses; never NaN (quirk Q3)."""
    dx, dy = target[:, 0] - x, target[:, 1] - y
    cos, sin = np.cos(heading), np.sin(heading)
    return np.asarray(np.abs(np.arctan2(dy * cos - dx * sin, dx * cos + dy * sin)))


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
    size = np.array([vehicle.length_m, vehicle.width_m])
    x, y, heading = np.ascontiguousarray(center.T)  # (41, N) each
    cos, sin = np.cos(heading), np.sin(heading)
    candidate, instant, agent = contacts.find_contacts(x, y, cos, sin, size, agents, SAMPLE_TIMES)
    score = np.ones(states.shape[:2])
    if len(candidate) == 0:
        return score
    order, group, begins = contacts.group_contacts(candidate, instant, agent, len(agents), whole=official)
    n, t, a = candidate[order][begins], instant[order][begins], agent[order][begins]

    state, pose, other = states[n, t], center[n, t], agents.poses[a, t]
    ego_speed = np.hypot(state[:, VX], state[:, VY])
    speed = agents.first_speeds_mps[a] if official else agents.speeds_mps[a, t]
    behind = _bearing(state[:, X], state[:, Y], state[:, HEADING], other) > BEHIND_RAD
    bumper = pose.copy()
    bumper[:, 0] += 0.5 * vehicle.length_m * np.cos(pose[:, 2])
    bumper[:, 1] += 0.5 * vehicle.length_m * np.sin(pose[:, 2])
    frontal = geometry.boxes_overlap(bumper, np.array([0.0, vehicle.width_m]), other, agents.sizes[a])
    astray = areas.multiple_lanes[n, t] | areas.off_road[n, t]
    standing = agents.are_static[a] | (speed <= STOPPED_MPS)
    fault = (ego_speed > STOPPED_MPS) & (standing | (~behind & (frontal | astray)))
    if not official:
        fault &= t > 0  # no plan can avoid a contact at t = 0

    charged = fault[group]
    penalty = np.where(agents.are_static[agent[order]], STATIC_PENALTY, 0.0)[charged]
    np.minimum.at(score, (candidate[order][charged], instant[order][charged]), penalty)
    return score


def drivable_area(areas: EgoAreas) -> Array:
    """DAC over time (N, 41): 0 where a corner of the box is off the road, else 1 (section 5)."""
    return np.where(areas.off_road, 0.0, 1.0)


def driving_direction(center: Array, areas: EgoAreas, spare_intersections: bool) -> Array:
    """DDC (N,): 1, 0.5, 0 by the distance driven off the route's lanes within a second (section 6)."""
    step = np.zeros(center.shape[:2])
    step[:, 1:] = np.hypot(np.diff(center[:, :, 0], axis=1), np.diff(center[:, :, 1], axis=1))
    wrong = areas.off_route & ~areas.in_intersection if spare_intersections else areas.off_route
    way = np.cumsum(np.where(wrong, step, 0.0), axis=1)
    way[:, WRONG_WAY_STEPS + 1 :] -= way[:, : -WRONG_WAY_STEPS - 1].copy()
    worst = way.max(axis=1)
    return np.select([worst < WRONG_WAY_M[0], worst < WRONG_WAY_M[1]], [1.0, 0.5], 0.0)


def traffic_lights(center: Array, vehicle: VehicleConfig, connectors: tuple[Array, ...], red: Array) -> Array:
    """TLC (N,): 0 where the box touches a connector (ring) while it is red, (R, 41) bool (section 7)."""
    score = np.ones(len(center))
    if not len(connectors):
        return score
    size = np.array([vehicle.length_m, vehicle.width_m])
    radius = 0.5 * float(np.hypot(*size))
    x, y = center[..., 0], center[..., 1]
    low, high = np.array([x.min(), y.min()]) - radius, np.array([x.max(), y.max()]) + radius
    for ring, when in zip(connectors, red, strict=True):
        left, bottom = ring.min(axis=0)
        right, top = ring.max(axis=0)
        if left > high[0] or bottom > high[1] or right < low[0] or top < low[1]:
            continue
        near = (x >= left - radius) & (x <= right + radius) & (y >= bottom - radius) & (y <= top + radius) & when
        near &= score[:, None] > 0
        candidate, instant = np.nonzero(near)
        if not len(candidate):
            continue
        polygon = shapely.Polygon(ring)
        shapely.prepare(polygon)
        # Boxes are expensive to make: only those whose centre is outside, and not too far.
        score[candidate[shapely.intersects_xy(polygon, x[candidate, instant], y[candidate, instant])]] = 0.0
        left_over = np.flatnonzero(score[candidate])
        candidate, instant = candidate[left_over], instant[left_over]
        points = shapely.points(x[candidate, instant], y[candidate, instant])
        close = shapely.dwithin(polygon, points, radius + 1e-6)
        candidate, instant = candidate[close], instant[close]
        boxes = shapely.polygons(geometry.box_corners(center[candidate, instant], size))
        score[candidate[shapely.intersects(polygon, boxes)]] = 0.0
    return score


# --- weighted metrics -------------------------------------------------------------------------------------------------


def time_to_collision(
    states: Array,
    center: Array,
    vehicle: VehicleConfig,
    agents: AgentTracks,
    areas: EgoAreas,
    map_areas: MapAreas | None,
    last_step: int,
    official: bool = False,
) -> Array:
    """TTC (N,): 0 if, at some step up to `last_step`, going straight on at its speed meets an agent within 0.9 s.

    It counts if the agent is then ahead, or beside while the car is between lanes, off the road or in an intersection
    (section 9).
    """
    score = np.ones(len(states))
    steps, looks = last_step + 1, len(TTC_STEPS)
    speed = np.hypot(states[:, :steps, VX], states[:, :steps, VY])
    x, y, heading = np.ascontiguousarray(center[:, :steps].T)[:, :, None]  # (steps, 1, N) each
    ways = DT_S * TTC_STEPS[:, None] * speed.T[:, None]  # (steps, looks, N)
    shape = (steps * looks, len(states))
    cos, sin = np.cos(heading), np.sin(heading)
    ahead_x, ahead_y = (x + ways * cos).reshape(shape), (y + ways * sin).reshape(shape)
    cos, sin = (np.broadcast_to(each, ways.shape).reshape(shape) for each in (cos, sin))
    samples = (np.arange(steps)[:, None] + TTC_STEPS).reshape(-1)
    size = np.array([vehicle.length_m, vehicle.width_m])
    candidate, instant, agent = contacts.find_contacts(ahead_x, ahead_y, cos, sin, size, agents, samples)
    moving = speed[candidate, instant // looks] >= STANDING_MPS
    candidate, instant, agent = candidate[moving], instant[moving], agent[moving]
    if len(candidate) == 0:
        return score
    order, _, begins = contacts.group_contacts(candidate, instant, agent, len(agents), whole=official, per_step=looks)
    n, k, a = candidate[order][begins], instant[order][begins], agent[order][begins]
    t = k // looks
    rear_x, rear_y, rear_heading = states[n, t, X], states[n, t, Y], states[n, t, HEADING]
    intersection = np.zeros(len(n), bool)
    if map_areas is not None:
        intersection = _some(map_areas.index.bits(rear_x, rear_y), map_areas.intersection_bits)
    if not official:  # both at the time of contact; the official code compares with the present ego (Q2)
        way = ways[t, k % looks, n]
        rear_x, rear_y = rear_x + way * np.cos(rear_heading), rear_y + way * np.sin(rear_heading)
    bearing = _bearing(rear_x, rear_y, rear_heading, agents.poses[a, samples[k]])
    beside_counts = areas.multiple_lanes[n, t] | areas.off_road[n, t] | intersection
    score[n[(bearing < AHEAD_RAD) | (beside_counts & (bearing <= BEHIND_RAD))]] = 0.0
    return score


def progress(center: Array, centerline: Array) -> Array:
    """(N,) metres gained along the centreline (L, 2+) in 4 s, not below 0 (section 8)."""
    along, _ = geometry.project(centerline, np.concatenate([center[:1, 0, :2], center[:, -1, :2]]))
    return np.asarray(np.maximum(along[1:] - along[0], 0.0))


def ego_progress(progress_m: Array, multiplier: Array, reference_m: float, *, masked: bool) -> Array:
    """EP (N,): progress as a share of the best, which is the reference's or the candidate's own (section 8).

    `multiplier` (N,) is the product of the multiplicative metrics, `reference_m` the reference's progress times its own
    multiplier. `masked`, as in v1.1, includes the multiplier in the share; v2 does not.
    """
    earned = progress_m * multiplier
    best = np.maximum(earned, reference_m)
    share = np.clip((earned if masked else progress_m) / np.where(best > LEAST_PROGRESS_M, best, 1.0), 0.0, 1.0)
    no_progress = np.where(multiplier > 0, 1.0, 0.0) if masked else np.ones_like(share)
    return np.where(best > LEAST_PROGRESS_M, share, no_progress)


def lane_keeping(center: Array, centerline: LineIndex, areas: EgoAreas) -> Array:
    """LK (N,): 0 if the centre is off the centreline (indexed for LANE_OFFSET_M) for 2 s, intersections not counted.

    Section 11: time in an intersection neither counts nor interrupts.
    """
    x, y = np.ascontiguousarray(center.T)[:2]  # (41, N)
    spared = areas.in_intersection.T
    off = centerline.beyond(x, y) & ~spared
    score = np.ones(len(center))
    doubtful = np.flatnonzero(off.sum(axis=0) >= LANE_STEPS)
    if len(doubtful) == 0:
        return score
    off, spared = off[:, doubtful], spared[:, doubtful]
    running = np.zeros(len(doubtful), int)
    for t in range(len(off)):
        running = np.where(spared[t], running, (running + 1) * off[t])
        score[doubtful[running >= LANE_STEPS]] = 0.0
    return score


# --- comfort ----------------------------------------------------------------------------------------------------------

# Section 10: longitudinal acceleration, lateral acceleration, jerk of the magnitude, longitudinal jerk, yaw
# acceleration, yaw rate; strict bounds.
COMFORT_LOW = np.array([-4.05, -4.89, -8.37, -4.13, -1.93, -0.95])
COMFORT_HIGH = np.array([2.40, 4.89, 8.37, 4.13, 1.93, 0.95])
EXTENDED_COMFORT = np.array([0.7, 0.5, 0.1, 0.1])  # section 12: acceleration, jerk, yaw rate, yaw acceleration
DECIMALS = 8


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
def _filter(count: int, window: int, order: int, derivative: int) -> Array:
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


def _filtered(values: Array, window: int, order: int = 2, derivative: int = 0) -> Array:
    filtered = product(_filter(values.shape[-1], window, order, derivative), values.T)
    return np.asarray(filtered.round(DECIMALS).T)


def _yaw(states: Array, order: int, derivative: int) -> Array:
    heading = states[..., HEADING]
    turns = np.zeros_like(heading)
    turns[..., 1:] = np.cumsum(np.round(np.diff(heading, axis=-1) / (2 * np.pi)), axis=-1)
    return _filtered(heading - 2 * np.pi * turns, 5, order, derivative)


def _accelerations(states: Array, where: str, ahead: float) -> tuple[Array, Array]:
    along, across = states[..., AX], states[..., AY]
    if where == "rear_axle":
        return along, across
    rate, turning = states[..., YAW_RATE], states[..., YAW_ACCELERATION]
    if where == "official":  # angular acceleration on the wrong axis, centripetal with the wrong sign
        return along + ahead * (rate**2 + turning), across
    return along - ahead * rate**2, states[..., VX] * rate + ahead * turning


def comfort_flags(states: Array, vehicle: VehicleConfig, rule: ComfortRule) -> Array:
    """(N, 6) bool, which limits of section 10 a trajectory (N, T, 11) at 10 Hz keeps; put history states in front."""
    along, across = _accelerations(states, rule.center, vehicle.rear_axle_to_center_m)
    rear_along, rear_across = states[..., AX], states[..., AY]
    if rule is COMFORT_SANE:
        jerk_along, magnitude = along, np.hypot(along, across)
    elif rule.center == "official":
        jerk_along, magnitude = along, np.hypot(rear_along, rear_across)
    else:
        jerk_along, magnitude = rear_along, np.hypot(rear_along, rear_across)
    series = (
        _filtered(along, rule.acceleration),
        _filtered(across, rule.acceleration),
        _filtered(_filtered(magnitude, rule.smooth), rule.jerk, derivative=1),
        _filtered(_filtered(jerk_along, rule.smooth), rule.jerk, derivative=1),
        _yaw(states, 3, 2),
        _yaw(states, 2, 1),
    )
    bounds = zip(COMFORT_LOW, series, COMFORT_HIGH, strict=True)
    return np.stack([((low < one) & (one < high)).all(axis=-1) for low, one, high in bounds], axis=-1)


def extended_comfort(states: Array, previous: Array) -> Array:
    """EC (N,): 1 if the plan moves like the one made 0.5 s before, (N, 41, 11) or (1, 41, 11) (section 12)."""
    differences = []
    late, early = states[:, :-5], previous[:, 5:]
    magnitude = [_filtered(np.hypot(one[..., AX], one[..., AY]), 8) for one in (late, early)]
    differences.append(magnitude[0] - magnitude[1])
    jerk = [_filtered(one, 15, derivative=1) for one in magnitude]
    differences.append(jerk[0] - jerk[1])
    for derivative in (1, 2):  # of order 2 both, unlike the yaw acceleration of section 10
        differences.append(_yaw(late, 2, derivative) - _yaw(early, 2, derivative))
    rms = np.stack([np.sqrt((one**2).mean(axis=-1)) for one in differences], axis=-1)
    return np.where((rms <= EXTENDED_COMFORT).all(axis=-1), 1.0, 0.0)
