"""From the front bumpers that SUMO slides along its lanes to bodies that move as bodies do.

SUMO's places jump by some decimetres where lanes bend or join. A driver's front bumper is therefore predicted from its
speed and course, and drawn to SUMO's place with a gain; behind it the body is dragged, as a trailer is by its hook, so
that its box turns smoothly and moves only along its own heading. A walker's place is followed at a walker's pace.
"""

from __future__ import annotations

import numpy as np

from .. import geometry
from ..domain import Array

ALONG_GAIN = 0.1  # per step, of what prediction and SUMO differ by; low, as a jump along the way is felt as a jolt
ASIDE_GAIN = 0.5
COURSE_GAIN = 0.17  # almost critically damped with ASIDE_GAIN
COURSE_STEP_RAD = 0.12
STANDS_MPS = 0.05
LOST_M = 4.0  # a body this far from SUMO's place is put there
WALKER_HOOK_M = 0.4  # a walker turns as a short trailer does
WALKER_CATCHES_UP_MPS = 2.4


class Driven:
    """Vehicles; rows of all arrays are fixed, NaN where absent."""

    def __init__(self, lengths_m: Array) -> None:
        self._hook_m = 0.5 * lengths_m
        self._front = np.full((len(lengths_m), 2), np.nan)
        self._course = np.zeros(len(lengths_m))
        self.poses = np.full((len(lengths_m), 3), np.nan)  # of box centres
        self.speeds_mps = np.zeros(len(lengths_m))

    def missing(self, rows: Array) -> Array:
        """Indices into `rows` of those who were absent."""
        return np.flatnonzero(np.isnan(self._front[rows, 0]))

    def follow(self, rows: Array, fronts: Array, speeds_mps: Array, new_headings: Array, dt_s: float) -> None:
        """One step: SUMO's front bumpers (R, 2) and speeds (R,) of the rows that are there now.

        `new_headings` holds the heading of each who was missing, in the order of `missing`.
        """
        new = self.missing(rows)
        self._course[rows[new]] = new_headings
        self._front[rows[new]] = fronts[new]
        self.poses[rows[new], 2] = new_headings
        self.poses[rows[new], :2] = fronts[new] - self._hook_m[rows[new], None] * _direction(new_headings)

        course, speeds = self._course[rows], np.where(speeds_mps < STANDS_MPS, 0.0, speeds_mps)
        ahead = _direction(course)
        predicted = self._front[rows] + (speeds * dt_s)[:, None] * ahead
        missed = geometry.rotate(fronts - predicted, -course)  # along, aside
        move = np.stack([ALONG_GAIN * missed[:, 0], ASIDE_GAIN * missed[:, 1]], axis=-1) * (speeds > 0)[:, None]
        # Who creeps neither slips sideways nor backwards.
        move = np.clip(move, -0.5 * (speeds * dt_s)[:, None], 0.5 * (speeds * dt_s)[:, None])
        front = predicted + geometry.rotate(move, course)
        turn = COURSE_GAIN * missed[:, 1] / np.maximum(speeds * dt_s, 0.1)
        self._course[rows] = course + np.clip(turn, -COURSE_STEP_RAD, COURSE_STEP_RAD) * (speeds > 0)
        lost = np.hypot(missed[:, 0], missed[:, 1]) > LOST_M
        front[lost] = fronts[lost]

        before = self.poses[rows]
        self._front[:] = self.poses[:] = np.nan
        self._front[rows] = front
        self.poses[rows] = _dragged(before, front, self._hook_m[rows])
        self.speeds_mps[:] = 0.0
        self.speeds_mps[rows] = np.hypot(*(self.poses[rows, :2] - before[:, :2]).T) / dt_s
        self.speeds_mps[rows[new]] = speeds_mps[new]
        self._course[rows[lost]] = self.poses[rows[lost], 2]


class Walking:
    """People on foot; rows of all arrays are fixed, NaN where absent."""

    def __init__(self, count: int) -> None:
        self._trail = np.full((count, 3), np.nan)
        self.poses = np.full((count, 3), np.nan)
        self.speeds_mps = np.zeros(count)

    def missing(self, rows: Array) -> Array:
        """Indices into `rows` of those who were absent."""
        return np.flatnonzero(np.isnan(self.poses[rows, 0]))

    def follow(self, rows: Array, places: Array, new_headings: Array, dt_s: float) -> None:
        """One step towards SUMO's places (R, 2) of the rows that are there now."""
        new = self.missing(rows)
        self.poses[rows[new], :2] = places[new]
        self._trail[rows[new], :2] = places[new] - WALKER_HOOK_M * _direction(new_headings)
        self._trail[rows[new], 2] = new_headings
        before, trail = self.poses[rows, :2], self._trail[rows]
        step = places - before
        most = WALKER_CATCHES_UP_MPS * dt_s
        step *= np.minimum(1.0, most / np.maximum(np.hypot(*step.T), 1e-9))[:, None]
        trail = _dragged(trail, before + step, np.full(len(rows), WALKER_HOOK_M))
        self.poses[:] = self._trail[:] = np.nan
        self._trail[rows] = trail
        self.poses[rows] = np.column_stack([before + step, trail[:, 2]])
        self.speeds_mps[:] = 0.0
        self.speeds_mps[rows] = np.hypot(*step.T) / dt_s


def _direction(heading: Array) -> Array:
    return np.stack([np.cos(heading), np.sin(heading)], axis=-1)


def _dragged(poses: Array, hooks: Array, reach_m: Array) -> Array:
    """Poses (R, 3) of trailers after their hooks, `reach_m` ahead, went to places (R, 2)."""
    line = hooks - poses[:, :2]
    length = np.maximum(np.hypot(line[:, 0], line[:, 1]), 1e-6)
    moved = np.abs(length - reach_m) > 1e-6
    dragged = np.column_stack([hooks - (reach_m / length)[:, None] * line, np.arctan2(line[:, 1], line[:, 0])])
    return np.asarray(np.where(moved[:, None], dragged, poses))
