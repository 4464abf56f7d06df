"""Smooth motion of bodies from the front bumpers that SUMO moves along its lanes.

SUMO's positions jump by some decimetres where lanes bend or join. A driver's front bumper is therefore predicted from
its speed and course, and corrected to SUMO's position and heading with a gain. The body follows it as a trailer follows
its hook, so that its box turns smoothly and moves only along its own heading. A walker's position is followed at a
walker's pace.
"""

from __future__ import annotations

import numpy as np

from ...core import geometry
from ...core.domain import Array

GAIN_S = 0.1  # gains are per step of this length
ALONG_GAIN = 0.1  # of what prediction and SUMO differ by
CATCH_UP_MPS2 = 1.5  # limits the acceleration of corrections along the path
LATERAL_GAIN = 0.5
COURSE_GAIN = 0.3  # towards SUMO's heading
MIN_TURN_RADIUS_M = 3.0  # circle that a front bumper can drive
MAX_SLIP = 0.35  # largest lateral share of a motion
STANDING_MPS = 0.05
MAX_BRAKING_MPS2 = 9.0  # SUMO stops a vehicle at a dead-end lane within one step
RESET_M = 8.0  # a body this far from SUMO's position is reset to it
PEDESTRIAN_HITCH_M = 0.4  # a walker turns as a short trailer does
PEDESTRIAN_CATCH_UP_MPS = 2.4


class VehicleMotion:
    """Vehicles; rows of all arrays are fixed, NaN where absent."""

    def __init__(self, lengths_m: Array) -> None:
        self._hitch_m = 0.5 * lengths_m
        self._front = np.full((len(lengths_m), 2), np.nan)
        self._course = np.zeros(len(lengths_m))
        self._front_mps = np.zeros(len(lengths_m))
        self._catch_up_m = np.zeros(len(lengths_m))  # per step
        self.poses = np.full((len(lengths_m), 3), np.nan)  # of box centres
        self.speeds_mps = np.zeros(len(lengths_m))

    def follow(self, rows: Array, fronts: Array, headings: Array, speeds_mps: Array, dt_s: float) -> None:
        """One step: SUMO's front bumpers (R, 2), headings (R,) and speeds (R,) of the rows that are there now."""
        new = np.isnan(self._front[rows, 0])
        self._course[rows[new]] = headings[new]
        self._front[rows[new]] = fronts[new]
        self.poses[rows[new], 2] = headings[new]
        self.poses[rows[new], :2] = fronts[new] - self._hitch_m[rows[new], None] * _direction(headings[new])

        speeds = np.where(speeds_mps < STANDING_MPS, 0.0, speeds_mps)
        speeds = np.where(new, speeds, np.maximum(speeds, self._front_mps[rows] - MAX_BRAKING_MPS2 * dt_s))
        self._front_mps[rows] = speeds
        travel_m = speeds * dt_s
        turn = _scaled_gain(COURSE_GAIN, dt_s) * geometry.wrap(headings - self._course[rows])
        turn = np.clip(turn, -travel_m / MIN_TURN_RADIUS_M, travel_m / MIN_TURN_RADIUS_M)
        course = self._course[rows] + turn
        predicted = self._front[rows] + travel_m[:, None] * _direction(course)
        missed = geometry.rotate(fronts - predicted, -course)  # longitudinal, lateral
        step_limit = CATCH_UP_MPS2 * dt_s**2
        catch_up = self._catch_up_m[rows]
        catch_up = catch_up + np.clip(_scaled_gain(ALONG_GAIN, dt_s) * missed[:, 0] - catch_up, -step_limit, step_limit)
        # Very slow vehicles move neither sideways nor backwards.
        catch_up = np.clip(catch_up, -0.5 * travel_m, 0.5 * travel_m)
        lateral_m = np.clip(_scaled_gain(LATERAL_GAIN, dt_s) * missed[:, 1], -MAX_SLIP * travel_m, MAX_SLIP * travel_m)
        front = predicted + geometry.rotate(np.stack([catch_up, lateral_m], axis=-1), course)
        lost = np.hypot(missed[:, 0], missed[:, 1]) > RESET_M
        front[lost], course[lost] = fronts[lost], headings[lost]
        self._course[rows], self._catch_up_m[rows] = course, catch_up

        before = self.poses[rows]
        self._front[:] = self.poses[:] = np.nan
        self._front[rows] = front
        self.poses[rows] = _drag_trailers(before, front, self._hitch_m[rows])
        self.speeds_mps[:] = 0.0
        self.speeds_mps[rows] = np.hypot(*(self.poses[rows, :2] - before[:, :2]).T) / dt_s
        self.speeds_mps[rows[new]] = speeds_mps[new]


class PedestrianMotion:
    """People on foot; rows of all arrays are fixed, NaN where absent."""

    def __init__(self, count: int) -> None:
        self._trail = np.full((count, 3), np.nan)
        self.poses = np.full((count, 3), np.nan)
        self.speeds_mps = np.zeros(count)

    def follow(self, rows: Array, positions: Array, headings: Array, dt_s: float) -> None:
        """One step towards SUMO's positions (R, 2) and headings (R,) of the rows that are there now."""
        new = np.isnan(self.poses[rows, 0])
        self.poses[rows[new], :2] = positions[new]
        self._trail[rows[new], :2] = positions[new] - PEDESTRIAN_HITCH_M * _direction(headings[new])
        self._trail[rows[new], 2] = headings[new]
        before, trail = self.poses[rows, :2], self._trail[rows]
        step = positions - before
        most = PEDESTRIAN_CATCH_UP_MPS * dt_s
        step *= np.minimum(1.0, most / np.maximum(np.hypot(*step.T), 1e-9))[:, None]
        trail = _drag_trailers(trail, before + step, np.full(len(rows), PEDESTRIAN_HITCH_M))
        self.poses[:] = self._trail[:] = np.nan
        self._trail[rows] = trail
        self.poses[rows] = np.column_stack([before + step, trail[:, 2]])
        self.speeds_mps[:] = 0.0
        self.speeds_mps[rows] = np.hypot(*step.T) / dt_s


def _scaled_gain(per_step: float, dt_s: float) -> float:
    """The gain over `dt_s` with the effect of `per_step` in steps of GAIN_S."""
    return float(1.0 - (1.0 - per_step) ** (dt_s / GAIN_S))


def _direction(heading: Array) -> Array:
    return np.stack([np.cos(heading), np.sin(heading)], axis=-1)


def _drag_trailers(poses: Array, hitches: Array, reach_m: Array) -> Array:
    """Poses (R, 3) of trailers after their hooks, `reach_m` ahead, moved to positions (R, 2)."""
    line = hitches - poses[:, :2]
    length = np.maximum(np.hypot(line[:, 0], line[:, 1]), 1e-6)
    moved = np.abs(length - reach_m) > 1e-6
    dragged = np.column_stack([hitches - (reach_m / length)[:, None] * line, np.arctan2(line[:, 1], line[:, 0])])
    return np.asarray(np.where(moved[:, None], dragged, poses))
