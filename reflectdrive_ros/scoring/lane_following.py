"""Paths of agents along the lanes of the map, for the forecast of those that do not drive on the ego's road.

A vehicle that turns in a junction follows a connector of the map; its present yaw rate tells only that it has begun to
turn. Among the paths that lead from the lanes under an agent through their successors, the agent takes the one whose
heading over the next metres is nearest to that of its present arc, and of equals the straightest.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ..core import geometry
from ..core.domain import Array, LanePolylines
from .frenet import FrenetFrame

LANE_OFFSET_MAX_M = 1.75  # half of a lane: an agent further from the middle is in another one
LANE_ANGLE_MAX = np.cos(np.radians(30.0))  # an agent at a larger angle to a lane does not follow it
JOINT_MAX_M = 1.0  # between the end of a lane and the begin of its successor
JOINT_ANGLE_MAX = np.cos(np.radians(25.0))
PATHS_MAX = 8  # from one lane
LOOK_AHEAD_S, LOOK_AHEAD_MIN_M = 0.8, 2.5  # over which arc and path are compared, at COMPARED_POINTS
COMPARED_POINTS = np.array([0.25, 0.5, 0.75, 1.0])
ANGLE_MAX_RAD = 0.5  # mean difference of the headings; an agent whose arc leaves all paths by more follows none
OFFSET_WEIGHT_RADPM = 0.1  # of the distance to the middle of the lane: of two lanes the nearer
SAME_RAD = 0.01  # paths whose difference to the arc differs by less are equal
TANGENT_M = 1.0  # to either side, over which the direction of a path is taken
ARC_MIN_MPS = 1.0  # slower agents turn as at this speed


@dataclass(frozen=True, eq=False)
class LaneNetwork:
    """The N valid lanes of an observation and which of them follow each other."""

    points: Array  # (N, P, 2) m
    headings: Array  # (N, P)
    at_m: Array  # (N, P) metres along each lane
    successors: tuple[tuple[int, ...], ...]

    @staticmethod
    def of(lanes: LanePolylines) -> LaneNetwork:
        points = lanes.points[lanes.valid]
        steps = np.diff(points, axis=1)
        steps = np.concatenate([steps, steps[:, -1:]], axis=1)
        headings = np.arctan2(steps[..., 1], steps[..., 0])
        lengths_m = np.hypot(steps[..., 0], steps[..., 1])
        at_m = np.concatenate([np.zeros((len(points), 1)), np.cumsum(lengths_m[:, :-1], axis=1)], axis=1)
        gaps = points[None, :, 0] - points[:, None, -1]
        follows = (np.hypot(gaps[..., 0], gaps[..., 1]) < JOINT_MAX_M) & (
            np.cos(headings[None, :, 0] - headings[:, None, -1]) > JOINT_ANGLE_MAX
        )
        np.fill_diagonal(follows, False)
        return LaneNetwork(points, headings, at_m, tuple(tuple(np.flatnonzero(row).tolist()) for row in follows))

    def path(self, pose: Array, speed_mps: float, yaw_rate_rps: float, reach_m: float) -> FrenetFrame | None:
        """The path that an agent at a pose (3,) follows, at least `reach_m` beyond it where the lanes go on; None where
        it follows none."""
        ahead_m = COMPARED_POINTS * max(LOOK_AHEAD_S * speed_mps, LOOK_AHEAD_MIN_M)
        arc = pose[2] + yaw_rate_rps / max(speed_mps, ARC_MIN_MPS) * ahead_m  # headings
        best: tuple[tuple[float, float], Array] | None = None
        for lane, begin_m, offset_m in self._lanes_under(pose):
            for path in self._paths(lane, begin_m + reach_m):
                line, at_m, headings = self._line(path)
                differences = geometry.wrap(np.interp(begin_m + ahead_m, at_m, headings) - arc)
                difference_rad = float(np.abs(differences).mean())
                if difference_rad > ANGLE_MAX_RAD:
                    continue
                cost = round((difference_rad + OFFSET_WEIGHT_RADPM * abs(offset_m)) / SAME_RAD)
                key = cost, float(abs(headings[-1] - headings[0]))
                if best is None or key < best[0]:
                    best = key, line
        return None if best is None else frame_of(best[1])

    def _lanes_under(self, pose: Array) -> Iterator[tuple[int, float, float]]:
        """Lanes under a pose (3,) in its direction; metres of the pose along each, and to its left."""
        away = pose[:2] - self.points
        nearest = (away**2).sum(axis=-1).argmin(axis=1)
        rows = np.arange(len(self.points))
        heading, (x, y) = self.headings[rows, nearest], away[rows, nearest].T
        along_m = self.at_m[rows, nearest] + x * np.cos(heading) + y * np.sin(heading)
        offsets_m = y * np.cos(heading) - x * np.sin(heading)
        is_under = (np.abs(offsets_m) <= LANE_OFFSET_MAX_M) & (np.cos(heading - pose[2]) >= LANE_ANGLE_MAX)
        is_under &= (along_m >= 0.0) & (along_m <= self.at_m[:, -1])
        for lane in np.flatnonzero(is_under).tolist():
            yield lane, float(along_m[lane]), float(offsets_m[lane])

    def _paths(self, lane: int, length_m: float) -> list[list[int]]:
        """Up to PATHS_MAX sequences of lanes that begin with `lane` and are `length_m` long, or end where lanes end."""
        finished, open_paths = list[list[int]](), [([lane], float(self.at_m[lane, -1]))]
        while open_paths and len(finished) < PATHS_MAX:
            path, until_m = open_paths.pop()
            successors = [each for each in self.successors[path[-1]] if each not in path]
            if until_m >= length_m or not successors:
                finished.append(path)
            open_paths += [
                ([*path, each], until_m + float(self.at_m[each, -1])) for each in successors if until_m < length_m
            ]
        return finished

    def _line(self, path: list[int]) -> tuple[Array, Array, Array]:
        """Points (L, 2) of a path, metres along it (L,) and its headings there (L,), unwrapped."""
        points = self.points[path].reshape(-1, 2)
        steps = np.diff(points, axis=0)
        at_m = np.concatenate([[0.0], np.cumsum(np.hypot(steps[:, 0], steps[:, 1]))])
        return points, at_m, np.unwrap(self.headings[path].reshape(-1))


def frame_of(line: Array) -> FrenetFrame:
    """Frenet frame of a path (L, 2), sampled every metre."""
    line = geometry.distinct_points(line)
    length_m = float(geometry.arc_lengths(line)[-1])
    at_m = np.linspace(0.0, length_m, max(round(length_m), 1) + 1)
    ends_m = np.clip(np.concatenate([at_m, at_m - TANGENT_M, at_m + TANGENT_M]), 0.0, length_m)
    points, behind, ahead = geometry.sample(line, ends_m)[:, :2].reshape(3, -1, 2)
    return FrenetFrame(points, np.unwrap(np.arctan2(*(ahead - behind).T[::-1])), at_m)
