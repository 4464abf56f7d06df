"""Paths of agents along the lanes of the map, for the forecast of those that do not drive on the ego's road.

A vehicle that turns in a junction follows a connector of the map; its present yaw rate tells only that it has begun to
turn. Among the paths that lead from the lanes under an agent through their successors, the agent takes the one whose
heading over the next metres is nearest to that of its present arc, and of equals the straightest.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from ..core import geometry
from ..core.domain import Array, LanePolylines
from .frenet import FrenetFrame

MIDDLE_OFFSET_MAX_M = 1.75  # half of a lane: an agent further from the middle is in another one
LANE_ANGLE_MAX = np.cos(np.radians(30.0))  # an agent at a larger angle to a lane does not follow it
JOINT_MAX_M = 1.0  # between the end of a lane and the begin of its successor
JOINT_ANGLE_MAX = np.cos(np.radians(25.0))
PATHS_MAX = 8  # from one lane
LOOK_AHEAD_S, LOOK_AHEAD_MIN_M = 0.8, 2.5  # over which arc and path are compared, at COMPARED_POINTS
COMPARED_POINTS = np.array([0.25, 0.5, 0.75, 1.0])
DIFFERENCE_MAX_RAD = 0.5  # mean difference of the headings; an agent whose arc leaves all paths by more follows none
OFFSET_WEIGHT_RADPM = 0.1  # of the distance to the middle of the lane: of two lanes the nearer
SAME_RAD = 0.01  # paths whose difference to the arc differs by less are equal
ARC_MIN_MPS = 1.0  # slower agents turn as at this speed


@dataclass(frozen=True, eq=False)
class LaneNetwork:
    """The N valid lanes of an observation and which of them follow each other."""

    points: Array  # (N, P, 2) m
    headings: Array  # (N, P)
    at_m: Array  # (N, P) metres along each lane
    successors: tuple[tuple[int, ...], ...]
    lines: dict[tuple[int, ...], FrenetFrame] = field(default_factory=dict)  # of sequences of lanes, once computed

    @staticmethod
    def of(lanes: LanePolylines) -> LaneNetwork:
        points = lanes.points[lanes.valid]
        tangents = np.gradient(points, axis=1)
        headings = np.arctan2(tangents[..., 1], tangents[..., 0])
        steps = np.diff(points, axis=1)
        lengths_m = np.cumsum(np.hypot(steps[..., 0], steps[..., 1]), axis=1)
        at_m = np.concatenate([np.zeros((len(points), 1)), lengths_m], axis=1)
        gaps = points[None, :, 0] - points[:, None, -1]
        follows = (np.hypot(gaps[..., 0], gaps[..., 1]) < JOINT_MAX_M) & (
            np.cos(headings[None, :, 0] - headings[:, None, -1]) > JOINT_ANGLE_MAX
        )
        np.fill_diagonal(follows, False)
        successors = [list[int]() for _ in points]
        for before, after in np.argwhere(follows).tolist():
            successors[before].append(after)
        return LaneNetwork(points, headings, at_m, tuple(map(tuple, successors)))

    def paths(
        self, poses: Array, speeds_mps: Array, yaw_rates_rps: Array, reaches_m: Array
    ) -> list[FrenetFrame | None]:
        """For each of A agents with poses (A, 3) the path that it follows, at least `reaches_m` (A,) beyond it where
        the lanes go on; None where it follows none."""
        chosen: list[FrenetFrame | None] = [None] * len(poses)
        least: list[tuple[float, float]] = [(np.inf, np.inf)] * len(poses)
        ahead_m = np.maximum(LOOK_AHEAD_S * speeds_mps, LOOK_AHEAD_MIN_M)[:, None] * COMPARED_POINTS
        curvatures = yaw_rates_rps / np.maximum(speeds_mps, ARC_MIN_MPS)
        arcs = poses[:, 2:] + curvatures[:, None] * ahead_m  # headings
        for agent, lane, begin_m, offset_m in self._lanes_under(poses):
            for path in self._sequences(lane, begin_m + reaches_m[agent]):
                line = self._line(path)
                headings = np.interp(begin_m + ahead_m[agent], line.at, line.heading)
                difference_rad = float(np.abs(geometry.wrap(headings - arcs[agent])).mean())
                if difference_rad > DIFFERENCE_MAX_RAD:
                    continue
                cost = round((difference_rad + OFFSET_WEIGHT_RADPM * abs(offset_m)) / SAME_RAD)
                key = cost, float(abs(line.heading[-1] - line.heading[0]))
                if key < least[agent]:
                    least[agent], chosen[agent] = key, line
        return chosen

    def _lanes_under(self, poses: Array) -> Iterator[tuple[int, int, float, float]]:
        """Row of an agent, a lane under it in its direction, metres of the agent along the lane, and to its left."""
        away = poses[:, None, None, :2] - self.points
        nearest = (away**2).sum(axis=-1).argmin(axis=-1)  # (A, N)
        lanes = np.arange(len(self.points))
        heading = self.headings[lanes, nearest]
        x, y = np.moveaxis(np.take_along_axis(away, nearest[..., None, None], axis=2)[:, :, 0], -1, 0)
        along_m = self.at_m[lanes, nearest] + x * np.cos(heading) + y * np.sin(heading)
        offsets_m = y * np.cos(heading) - x * np.sin(heading)
        is_under = (np.abs(offsets_m) <= MIDDLE_OFFSET_MAX_M) & (np.cos(heading - poses[:, 2:]) >= LANE_ANGLE_MAX)
        is_under &= (along_m >= 0.0) & (along_m <= self.at_m[:, -1])
        for agent, lane in np.argwhere(is_under).tolist():
            yield agent, lane, float(along_m[agent, lane]), float(offsets_m[agent, lane])

    def _sequences(self, lane: int, length_m: float) -> list[tuple[int, ...]]:
        """Up to PATHS_MAX sequences of lanes that begin with `lane` and are `length_m` long, or end where lanes end."""
        finished = list[tuple[int, ...]]()
        unfinished: list[tuple[tuple[int, ...], float]] = [((lane,), float(self.at_m[lane, -1]))]
        while unfinished and len(finished) < PATHS_MAX:
            path, until_m = unfinished.pop()
            successors = [each for each in self.successors[path[-1]] if each not in path]
            if until_m >= length_m or not successors:
                finished.append(path)
            else:
                unfinished += [((*path, each), until_m + float(self.at_m[each, -1])) for each in successors]
        return finished

    def _line(self, path: tuple[int, ...]) -> FrenetFrame:
        """The line along a sequence of lanes; the first point of each is the last of the one before."""
        if path not in self.lines:
            lanes = list(path)
            points = np.concatenate([self.points[lanes[0], :1], self.points[lanes, 1:].reshape(-1, 2)])
            headings = np.concatenate([self.headings[lanes[0], :1], self.headings[lanes, 1:].reshape(-1)])
            steps = np.diff(points, axis=0)
            at_m = np.concatenate([[0.0], np.cumsum(np.hypot(steps[:, 0], steps[:, 1]))])
            self.lines[path] = FrenetFrame(points, np.unwrap(headings), at_m)
        return self.lines[path]
