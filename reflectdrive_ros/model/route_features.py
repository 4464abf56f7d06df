"""Where the elements of a scene are relative to the line of the route: along it, lateral to it, and in its corridor.

The line is that of the first `route_line_rows` route lanes. A point is projected by a softmax over the points of the
line, so that the result is smooth and a graph needs no search. Everything is in metres of the ego frame before
normalisation. This is no part of Diffusion-Planner: a network that knows the distance to the car ahead need not learn
projection from examples.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

NEAR_M = 1.5  # standard deviation of the softmax over the points of the line
CORRIDOR_M = 2.0  # lateral distance within which an element is in the corridor
ALONG_MAX_M, LATERAL_MAX_M = 100.0, 20.0
ALONG_SCALE_M, LATERAL_SCALE_M, SPEED_SCALE_MPS = 50.0, 10.0, 10.0
TIMES_S = (0.0, 1.0, 2.0, 3.0)  # agents at constant velocity
MOVING, STANDING, LANE, EGO = 3 * len(TIMES_S) + 2, 3, 6, len(TIMES_S) + 2  # features
LIMIT_AT_M, LIMIT_SOFT_M = (0.0, 20.0, 40.0), 3.0  # along the line, where the speed limit is read; of the lanes' ends
TURN_SCALE = 10.0  # of the sine of the angle between two segments of the line
FAR = 1e4  # squared distance, m^2, of points that are padding
FRONT_M = 4.05  # of the car, ahead of its rear axle
RED = 2  # column of a lane's light


class RouteLine(NamedTuple):
    """The line of the route of B scenes."""

    points: Tensor  # (B, M, 2)
    directions: Tensor  # (B, M, 2) unit vectors
    along: Tensor  # (B, M) m from the vehicle
    valid: Tensor  # (B, M) bool


class RouteFeatures(NamedTuple):
    """Features of B scenes."""

    agents: Tensor  # (B, A, MOVING)
    static_objects: Tensor  # (B, S, STANDING)
    lanes: Tensor  # (B, L, LANE)
    ego: Tensor  # (B, EGO)


def route_line(route_lanes: Tensor, rows: int) -> RouteLine:
    """The line in the first rows of route lanes (B, R, P, 12)."""
    points = route_lanes[:, :rows].flatten(1, 2)
    left = points[..., 4:6]
    length = left.square().sum(-1, keepdim=True).sqrt().clamp(min=1e-6)
    directions = torch.stack([left[..., 1], -left[..., 0]], -1) / length
    steps = points[..., 2:4].square().sum(-1).sqrt()
    return RouteLine(points[..., :2], directions, steps.cumsum(-1) - steps, (points != 0).any(-1))


def project(line: RouteLine, points: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Longitudinal (B, N) and lateral (B, N, left positive) distances of points (B, N, 2) on the line, and the share
    (B, N) in its corridor: 1 on the line, near 0 beyond CORRIDOR_M."""
    away = points[:, :, None] - line.points[:, None]  # (B, N, M, 2)
    squared = away.square().sum(-1) + FAR * (~line.valid)[:, None]
    weights = torch.softmax(-squared / (2.0 * NEAR_M**2), -1)
    directions = line.directions[:, None]
    forward = (away * directions).sum(-1)
    offsets = directions[..., 0] * away[..., 1] - directions[..., 1] * away[..., 0]
    along = (weights * (line.along[:, None] + forward)).sum(-1).clamp(-ALONG_MAX_M, ALONG_MAX_M)
    lateral = (weights * offsets).sum(-1).clamp(-LATERAL_MAX_M, LATERAL_MAX_M)
    return along, lateral, torch.exp(-((lateral / CORRIDOR_M) ** 2))


def route_features(agents: Tensor, static_objects: Tensor, lanes: Tensor, line: RouteLine) -> RouteFeatures:
    """Features of agents (B, A, 21, 11), static objects (B, S, 10) and lanes (B, L, P, 12); 0 where empty."""
    now = agents[..., -1, :]
    present = (now != 0).any(-1)
    columns, gaps = [], []
    for time_s in TIMES_S:
        along, lateral, inside = project(line, now[..., :2] + time_s * now[..., 4:6])
        columns += [along / ALONG_SCALE_M, lateral / LATERAL_SCALE_M, inside]
        gaps.append(_gap(along - 0.5 * now[..., 7], inside, present))
    velocity = now[..., 4:6]
    heading = _direction_at(line, now[..., :2])
    forward = (velocity * heading).sum(-1)
    across = heading[..., 0] * velocity[..., 1] - heading[..., 1] * velocity[..., 0]
    columns += [forward / SPEED_SCALE_MPS, across / SPEED_SCALE_MPS]
    moving = torch.stack(columns, -1) * present[..., None]

    standing = _features(line, static_objects[..., :2]) * (static_objects != 0).any(-1, keepdim=True)
    ends = [_features(line, lanes[:, :, index, :2]) for index in (0, -1)]
    is_present = (lanes != 0).any(-1).any(-1)
    lane = torch.cat(ends, -1) * is_present[..., None]

    nearest = torch.softmax(-gaps[0], -1)
    lead_speed = (nearest * forward).sum(-1) / SPEED_SCALE_MPS
    red = lanes[:, :, 0, 8 + RED] > 0
    begin = lane[..., 0] * ALONG_SCALE_M
    stop = _gap(begin, lane[..., 2], is_present & red).amin(-1)
    ego = torch.stack([*(gap.amin(-1) / ALONG_SCALE_M for gap in gaps), lead_speed, stop / ALONG_SCALE_M], -1)
    return RouteFeatures(moving, standing, lane, ego)


def profile_size(points: int) -> int:
    """Features of `road_profile` for a line of `points` points."""
    return points - 1 + 3 + len(LIMIT_AT_M)


def road_profile(line: RouteLine, lanes: Tensor, lane_limits: Tensor) -> Tensor:
    """(B, profile_size) of the road ahead: bends of the line, the vehicle's offset and heading relative to it, and the
    speed limits of lanes (B, L, P, 12) along it, from lane_limits (B, L, 1) m/s."""
    is_valid = line.valid[:, 1:] & line.valid[:, :-1]
    here, following = line.directions[:, :-1], line.directions[:, 1:]
    turns = (here[..., 0] * following[..., 1] - here[..., 1] * following[..., 0]) * is_valid * TURN_SCALE
    vehicle = torch.zeros_like(line.points[:, :1])
    lateral = project(line, vehicle)[1] / CORRIDOR_M
    heading = _direction_at(line, vehicle)[:, 0]
    ends = [project(line, lanes[:, :, index, :2]) for index in (0, -1)]
    begin, end = (each[0] for each in ends)
    inside = ends[0][2] * ends[1][2] * (lanes != 0).any(-1).any(-1)
    limits = []
    for at_m in LIMIT_AT_M:
        weights = inside * torch.sigmoid((at_m - begin) / LIMIT_SOFT_M) * torch.sigmoid((end - at_m) / LIMIT_SOFT_M)
        total = (weights * lane_limits[..., 0]).sum(-1, keepdim=True)
        limits.append(total / (weights.sum(-1, keepdim=True) + 0.01) / SPEED_SCALE_MPS)
    return torch.cat([turns, lateral, heading, *limits], -1)


def _features(line: RouteLine, points: Tensor) -> Tensor:
    along, lateral, inside = project(line, points)
    return torch.stack([along / ALONG_SCALE_M, lateral / LATERAL_SCALE_M, inside], -1)


def _direction_at(line: RouteLine, points: Tensor) -> Tensor:
    """(B, N, 2) direction of the line near points (B, N, 2)."""
    squared = (points[:, :, None] - line.points[:, None]).square().sum(-1) + FAR * (~line.valid)[:, None]
    weights = torch.softmax(-squared / (2.0 * NEAR_M**2), -1)
    return (weights[..., None] * line.directions[:, None]).sum(-2)


def _gap(along: Tensor, inside: Tensor, present: Tensor) -> Tensor:
    """(B, N) m from the front bumper to an element in the corridor; ALONG_MAX_M for others and those behind."""
    counts = present & (along > 0.0)
    free = ALONG_MAX_M * (1.0 - inside)
    return torch.where(counts, (along - FRONT_M + free).clamp(0.0, ALONG_MAX_M), torch.full_like(along, ALONG_MAX_M))
