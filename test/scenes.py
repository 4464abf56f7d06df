"""Small driving scenes that the tests share. A stopped clock is the default; a test about time moves it by hand."""

from dataclasses import replace

import numpy as np

from reflectdrive_ros.core.config import Config, VehicleConfig, override_dotted
from reflectdrive_ros.core.domain import (
    Agents,
    EgoState,
    LanePolylines,
    Observation,
    Plan,
    StopLines,
    TrafficLights,
    Trajectory,
)
from reflectdrive_ros.core.geometry import headings_along
from reflectdrive_ros.core.lanes import LANE_POINTS

SECOND_NS = 1_000_000_000
CAR = VehicleConfig()
SIZE = np.array([CAR.length_m, CAR.width_m])
FRONT_M = CAR.rear_axle_to_center_m + 0.5 * CAR.length_m  # bumper ahead of the rear axle


class Clock:
    """A clock that a test sets; it may step forward by itself at each reading."""

    def __init__(self, step_s=0.0):
        self.now_s, self.step_s = 0.0, step_s

    def __call__(self):
        self.now_s += self.step_s
        return self.now_s


def ego(speed=8.0, stamp_ns=SECOND_NS, at=(0.0, 0.0, 0.0), **more):
    return EgoState(stamp_ns, np.array(at, float), speed, **more)


def straight_route(length=200.0, behind=20.0, left=0.0):
    x = np.arange(-behind, length, 1.0)
    return np.stack([x, np.full_like(x, left), np.zeros_like(x)], axis=1)


def turning_route(radius=12.0, before=30.0):
    """Straight, then a quarter circle of the given radius to the left, then 60 m straight."""
    straight = np.stack([np.arange(-20.0, before, 1.0), np.zeros(int(before) + 20)], axis=1)
    angles = np.linspace(0.0, np.pi / 2, 40)
    bend = np.stack([before + radius * np.sin(angles), radius * (1 - np.cos(angles))], axis=1)
    away = np.arange(1.0, 60.0)[:, None] * np.array([np.cos(np.pi / 2), np.sin(np.pi / 2)]) + bend[-1]
    points = np.concatenate([straight, bend, away])
    return np.concatenate([points, headings_along(points)[:, None]], axis=1)


NO_LIGHTS = TrafficLights(np.zeros(0, int), np.zeros(0, int))  # known to be none, unlike None


def cars(*rows):
    """Agents from (x, y, heading, forward speed) rows, 4.5 m by 1.9 m."""
    table = np.array(rows, float).reshape(-1, 4)
    velocities = table[:, 3:] * np.stack([np.cos(table[:, 2]), np.sin(table[:, 2])], axis=1)
    return Agents(table[:, :3], velocities, np.tile([4.5, 1.9], (len(table), 1)), np.ones(len(table), np.int64))


def observation(speed=8.0, route=None, agents=None, stamp_ns=SECOND_NS, **more):
    state = ego(speed, stamp_ns)
    route = straight_route() if route is None else route
    return Observation(stamp_ns, state, route, agents=agents, **more)


def with_light(scene, state, line_m=60.0, left_m=0.0, against=False):
    """The scene with a light whose stop line is `line_m` ahead of the rear axle, over the lane `left_m` to the left."""
    ends = np.array([[[line_m, left_m + 1.75], [line_m, left_m - 1.75]]])
    lines = StopLines(ends[:, ::-1] if against else ends, np.array([7]))
    return replace(scene, stop_lines=lines, traffic_lights=TrafficLights(np.array([7]), np.array([int(state)])))


def later(scene, seconds, forward=None):
    """The scene after the ego moved on along its heading (by default at its speed); the world stays where it was."""
    moved = scene.ego.speed_mps * seconds if forward is None else forward
    stamp_ns = scene.stamp_ns + round(seconds * SECOND_NS)
    shift = np.array([moved, 0.0, 0.0])
    state = replace(scene.ego, stamp_ns=stamp_ns, map_from_ego=scene.ego.map_from_ego + shift)
    agents = scene.agents
    if agents is not None:
        poses = agents.poses - shift
        poses[:, :2] += agents.velocities_mps * seconds
        agents = replace(agents, poses=poses)
    return replace(scene, stamp_ns=stamp_ns, ego=state, route=scene.route - shift, agents=agents)


def config(**changes):
    """The default configuration with dotted settings: config(planner=.., guard__max_speed_mps=..)."""
    return override_dotted(Config(), {name.replace("__", "."): value for name, value in changes.items()})


def straight_plan(speed=8.0, dt=0.1, horizon=8.0, acceleration=0.0, stamp_ns=SECOND_NS):
    times = dt * np.arange(1, round(horizon / dt) + 1)
    poses = np.zeros((len(times), 3))
    poses[:, 0] = speed * times + 0.5 * acceleration * times**2
    return Plan(stamp_ns, np.zeros(3), Trajectory(poses, dt))


def lanes(*rows, points=LANE_POINTS, pad=2):
    """Straight lanes along +x from (begin x, y, length, width, limit, light) rows, and rows of padding."""
    table = np.array(rows, float).reshape(-1, 6)
    x = table[:, :1] + table[:, 2:3] * np.linspace(0.0, 1.0, points)
    line = np.stack([x, np.broadcast_to(table[:, 1:2], x.shape)], axis=-1)
    full = np.concatenate([line, np.zeros((pad, points, 2))])
    widths, limits, lights = (np.concatenate([table[:, k], np.zeros(pad)]) for k in (3, 4, 5))
    return LanePolylines(full, widths, limits, lights.astype(np.int64), np.arange(len(full)) < len(table))
