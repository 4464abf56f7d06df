"""Converts an Observation to the inputs of a denoiser: agents with their history, static objects, lanes, route lanes.

    spec = VectorSpec()
    inputs = vector_inputs(observation, spec)     # .agents (A, 21, 11), .lanes (L, 20, 12), .., .notes

Node, replay, scenes and recorded traffic use this one function. All arrays are in the present ego frame (rear axle, x
forward, y left), in metres, m/s and radians, float32, and are not normalised; rows of zeros are empty. The columns are
those of Diffusion-Planner (Zheng et al., ICLR 2025):

    ego             x, y, cos, sin, velocity x, y, acceleration x, y, steering angle, yaw rate
    agents          x, y, cos, sin, velocity x, y, width, length, one-hot of vehicle, pedestrian, bicycle; nearest first
    static_objects  x, y, cos, sin, width, length, one-hot of four kinds, of which the last (generic) is used
    lanes           x, y, to the next point x, y, to the left edge x, y, to the right edge x, y, one-hot of the light:
                    green, amber, red, unknown; nearest first
    route_lanes     the same, in the order of the route

Inputs that had to be changed (unknown lanes, agents beyond the nearest, a missing history) are listed in `notes`, one
sentence each. Unusable inputs raise a ValueError that names the field.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from ..core import geometry
from ..core.domain import AgentHistory, AgentKind, Agents, Array, EgoState, LanePolylines, LightState, Observation
from ..core.lanes import ROUTE_AHEAD_M, SEGMENT_M
from ..core.vector_spec import VectorSpec

KINDS = {AgentKind.UNKNOWN: 0, AgentKind.VEHICLE: 0, AgentKind.PEDESTRIAN: 1, AgentKind.BICYCLE: 2}  # one-hot column
KIND_COUNT, STATIC_KINDS, GENERIC_OBJECT = 3, 4, 3
LIGHT_COLUMNS = {LightState.GREEN: 0, LightState.AMBER: 1, LightState.RED: 2, LightState.UNKNOWN: 3}
ROUTE_LANE_WIDTH_M = 3.5  # of a route that is given as a line only
OFF_ROUTE_M = 30.0  # a route that is further away is not used
MAX_SPEED_MPS, MAX_RATE = 100.0, 100.0  # a larger value is a fault of odometry


@dataclass(frozen=True, eq=False)
class VectorInputs:
    """One observation as arrays; the module docstring names their columns."""

    ego: Array  # (10,)
    agents: Array  # (A, 21, 11) at -2.0, -1.9, .. 0 s
    static_objects: Array  # (S, 10)
    lanes: Array  # (L, P, 12)
    lane_limits: Array  # (L, 1) m/s, that of the road where the lane has none
    lane_has_limit: Array  # (L, 1) bool
    route_lanes: Array  # (R, P, 12)
    notes: tuple[str, ...] = ()  # sentences on inputs that were changed

    @property
    def arrays(self) -> dict[str, Array]:
        """The network's inputs by name, in their order."""
        names = ("ego", "agents", "static_objects", "lanes", "lane_limits", "lane_has_limit", "route_lanes")
        return {name: getattr(self, name) for name in names}


CONDITIONS = ("agents", "static_objects", "lanes", "lane_limits", "lane_has_limit")  # dropped by `without_conditions`
POSE_COLUMNS = 4  # of the ego's row, before its motion


def without_conditions(inputs: VectorInputs) -> VectorInputs:
    """The decoupled condition of ReflexDiffusion (section 4.1): the route only, without the ego's motion.

    As `model.denoiser.net.without_conditions`, on arrays.
    """
    ego = np.concatenate([inputs.ego[:POSE_COLUMNS], np.zeros_like(inputs.ego[POSE_COLUMNS:])])
    return replace(inputs, ego=ego, **{name: np.zeros_like(getattr(inputs, name)) for name in CONDITIONS})


def vector_inputs(observation: Observation, spec: VectorSpec) -> VectorInputs:
    """Arrays of an observation. Raises ValueError naming the field that cannot be used."""
    notes: list[str] = []
    agents, static_objects = _agents(observation, spec, notes)
    if observation.lanes is None:
        notes.append("lanes are unknown: the network plans by its route alone")
        lanes = np.zeros((spec.lanes, spec.lane_points, 12), np.float32)
        limits = np.zeros((spec.lanes, 1), np.float32)
    else:
        lanes = _lane_rows(observation.lanes, "lanes", spec.lanes, spec)
        limits_mps = observation.lanes.speed_limits_mps[observation.lanes.valid, None]
        # a lane without a limit of its own has that of the road
        limits = _fit(np.where(limits_mps > 0.0, limits_mps, observation.speed_limit_mps), spec.lanes)
    route_rows = _route_rows(observation, spec, notes)
    return VectorInputs(
        ego_row(observation.ego),
        agents,
        static_objects,
        lanes,
        limits,
        limits > 0.0,
        route_rows,
        tuple(notes),
    )


def agent_order(agents: Agents, spec: VectorSpec) -> Array:
    """(N,) indices of the moving kinds of agents that are read, nearest first; the first `predicted_agents` are those
    whose futures are predicted."""
    moving = np.flatnonzero(agents.kinds != AgentKind.STATIC)
    away = np.hypot(*agents.poses[moving, :2].T)
    return np.asarray(moving[np.argsort(away, kind="stable")][: spec.agents])


def ego_row(ego: EgoState) -> Array:
    """(10,) the ego in its own frame. Raises ValueError for values beyond any car's."""
    limits = {"speed_mps": MAX_SPEED_MPS, "acceleration_mps2": MAX_RATE, "yaw_rate_rps": MAX_RATE}
    for name, limit in limits.items():
        if not abs(getattr(ego, name)) <= limit:
            raise ValueError(f"EgoState.{name} is {getattr(ego, name):g}, expected a number within {limit:g} of 0")
    lateral_mps2 = ego.speed_mps * ego.yaw_rate_rps
    motion = (ego.speed_mps, 0.0, ego.acceleration_mps2, lateral_mps2, ego.steering_rad, ego.yaw_rate_rps)
    return np.array([0.0, 0.0, 1.0, 0.0, *motion], np.float32)


# --- agents ----------------------------------------------------------------------------------------------------------


def _agents(observation: Observation, spec: VectorSpec, notes: list[str]) -> tuple[Array, Array]:
    """(A, 21, 11) moving agents with history, (S, 10) static objects."""
    rows = np.zeros((spec.agents, spec.history_steps, 8 + KIND_COUNT), np.float32)
    static = np.zeros((spec.static_objects, 6 + STATIC_KINDS), np.float32)
    agents = observation.agents
    if agents is None:
        notes.append("objects are unknown: the network plans as on an empty road")
    else:
        order = agent_order(agents, spec)
        moving = int((agents.kinds != AgentKind.STATIC).sum())
        if len(order) < moving:
            notes.append(f"{moving} objects are known: the nearest {len(order)} are read")
        history = observation.history
        if history is None:
            if len(order):
                notes.append("objects have no history: the network reads where they are now")
            history = _history_of_now(agents, spec.history_steps)
        rows[: len(order)] = _agent_rows(agents, history, order, spec.history_steps)
    standing = [(each.poses, each.sizes) for each in _standing(observation)]
    if standing:
        poses, sizes = (np.concatenate(parts) for parts in zip(*standing, strict=True))
        nearest = np.argsort(np.hypot(*poses[:, :2].T), kind="stable")[: spec.static_objects]
        if len(nearest) < len(poses):
            notes.append(f"{len(poses)} static objects are known: the nearest {len(nearest)} are read")
        static[: len(nearest)] = _static_rows(poses[nearest], sizes[nearest])
    return rows, static


def _standing(observation: Observation) -> list[Agents]:
    """Agents of the kind STATIC, and obstacles."""
    standing = []
    if observation.agents is not None:
        still = observation.agents.kinds == AgentKind.STATIC
        agents = observation.agents
        standing.append(
            Agents(agents.poses[still], agents.velocities_mps[still], agents.sizes[still], agents.kinds[still])
        )
    if observation.obstacles is not None:
        standing.append(observation.obstacles)
    return standing


def _history_of_now(agents: Agents, steps: int) -> AgentHistory:
    """A history in which each agent was seen only now."""
    count = len(agents)
    poses, velocities = np.zeros((count, steps, 3)), np.zeros((count, steps, 2))
    poses[:, -1], velocities[:, -1] = agents.poses, agents.velocities_mps
    valid = np.zeros((count, steps), bool)
    valid[:, -1] = True
    return AgentHistory(np.arange(count), poses, velocities, valid)


def _agent_rows(agents: Agents, history: AgentHistory, order: Array, steps: int) -> Array:
    """(N, steps, 11) of the agents `order` (N,)."""
    if history.poses.shape[1] != steps:
        raise ValueError(f"Observation.history has {history.poses.shape[1]} instants, expected {steps}")
    poses, velocities = history.poses[order], history.velocities_mps[order]
    kinds = np.array([KINDS[AgentKind(kind)] for kind in agents.kinds[order]], int)
    one_hot = np.eye(KIND_COUNT)[kinds]
    columns = [
        poses[..., :2],
        np.cos(poses[..., 2:]),
        np.sin(poses[..., 2:]),
        velocities,
        np.broadcast_to(agents.sizes[order, None, ::-1], (*poses.shape[:2], 2)),  # width, length
        np.broadcast_to(one_hot[:, None], (*poses.shape[:2], KIND_COUNT)),
    ]
    rows = np.concatenate(columns, axis=-1) * history.valid[order, :, None]
    return np.asarray(rows, np.float32)


def _static_rows(poses: Array, sizes: Array) -> Array:
    rows = np.zeros((len(poses), 6 + STATIC_KINDS), np.float32)
    rows[:, :2], rows[:, 2], rows[:, 3] = poses[:, :2], np.cos(poses[:, 2]), np.sin(poses[:, 2])
    rows[:, 4:6] = sizes[:, ::-1]
    rows[:, 6 + GENERIC_OBJECT] = 1.0
    return rows


# --- lanes -----------------------------------------------------------------------------------------------------------


def _lane_rows(lanes: LanePolylines, name: str, count: int, spec: VectorSpec) -> Array:
    """(count, P, 12) of the first `count` lanes, which are the field `name` of an observation."""
    if lanes.points.shape[1] != spec.lane_points:
        raise ValueError(f"Observation.{name} has {lanes.points.shape[1]} points per lane, expected {spec.lane_points}")
    points = lanes.points[lanes.valid][:count]
    widths, lights = (each[lanes.valid][:count] for each in (lanes.widths_m, lanes.lights))
    steps = np.diff(points, axis=1)
    directions = np.concatenate([steps, steps[:, -1:]], axis=1)
    lengths = np.maximum(np.hypot(directions[..., 0], directions[..., 1]), 1e-6)[..., None]
    left = 0.5 * widths[:, None, None] * np.stack([-directions[..., 1], directions[..., 0]], axis=-1) / lengths
    one_hot = np.eye(len(LIGHT_COLUMNS))[[LIGHT_COLUMNS[LightState(light)] for light in lights.tolist()]]
    columns = [
        points,
        np.concatenate([steps, np.zeros_like(steps[:, :1])], axis=1),  # the last point has no next
        left,
        -left,
        np.broadcast_to(one_hot.reshape(len(points), 1, len(LIGHT_COLUMNS)), (*points.shape[:2], len(LIGHT_COLUMNS))),
    ]
    return _fit(np.concatenate(columns, axis=-1), count)


def _route_rows(observation: Observation, spec: VectorSpec, notes: list[str]) -> Array:
    """(R, P, 12) the line of the route in `spec.route_line_rows` rows, then the lanes of its roads; the line alone
    where these are unknown. Raises ValueError if there is no usable route."""
    lanes = observation.route_lanes
    has_lanes = lanes is not None and bool(lanes.valid.any())
    line = None if has_lanes and spec.route_line_rows == 0 else _route_as_lanes(observation.route, spec)
    if line is not None and not has_lanes:
        notes.append("the lanes of the route are unknown: its line is read instead")
        return _lane_rows(line, "route", spec.route_lanes, spec)
    assert lanes is not None
    rows = _lane_rows(lanes, "route_lanes", spec.route_lanes, spec)
    if line is None:
        return rows
    first = _lane_rows(line, "route", spec.route_line_rows, spec)
    return np.concatenate([first, rows[: spec.route_lanes - spec.route_line_rows]])


def _route_as_lanes(route: Array, spec: VectorSpec) -> LanePolylines:
    """The line of a route (L, 3) ahead of the vehicle as lanes of SEGMENT_M. Raises ValueError if there is no usable
    route."""
    line = geometry.distinct_points(route)
    if len(line) < 2:
        raise ValueError("Observation.route is empty: send a route with at least two different points")
    start, offset_m = geometry.ego_on_route(line)
    if abs(offset_m) > OFF_ROUTE_M:
        raise ValueError(f"Observation.route is {abs(offset_m):.0f} m away: send a route that passes the vehicle")
    end = min(geometry.arc_lengths(line)[-1], start + ROUTE_AHEAD_M)
    begins = start + SEGMENT_M * np.arange(max(int(np.ceil((end - start) / SEGMENT_M)), 1))
    at = np.linspace(begins, np.minimum(begins + SEGMENT_M, max(end, start + 1.0)), spec.lane_points, axis=1)
    points = geometry.sample(line, at.ravel())[:, :2].reshape(*at.shape, 2)
    count = len(points)
    zeros = np.zeros(count)
    widths = np.full(count, ROUTE_LANE_WIDTH_M)
    return LanePolylines(points, widths, zeros, zeros.astype(np.int64), np.ones(count, bool))


def _fit(rows: Array, count: int) -> Array:
    """The first `count` rows as float32, padded with rows of zeros."""
    fitted = np.zeros((count, *rows.shape[1:]), np.float32)
    fitted[: len(rows)] = rows[:count]
    return fitted
