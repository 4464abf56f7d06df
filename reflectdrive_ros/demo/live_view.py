"""The state of the live page as plain JSON values, from received messages. Pure functions.

Poses are in the map. Values that cannot be computed are null or empty, never an error, because the page must also show
a node with faults.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..core import geometry
from ..core.config import VehicleConfig
from ..core.domain import Array
from ..core.messages import BadMessage
from ..core.tokens import TokenLayout
from ..pages import agent_rows, round_list, vehicle_size
from ..planning.corrections import correction_rows, draft_and_corrections
from ..ros import convert, outputs, plan_messages
from .live_topics import OTHER, LiveState

ROUTE_RANGE_M = 150.0
OTHERS_AGE_MAX_S = 1.0  # older trajectories of other nodes are left out
AGENTS_MAX, EXTENT_MAX_M = 200, 60.0


def state(live: LiveState, vehicle: VehicleConfig, layout: TokenLayout) -> dict[str, Any]:
    """The state without images and road. `layout`: of the planner's tokens."""
    newest = live.newest
    here = live.poses[-1][1] if live.poses else None
    odometry, status = newest.get("odometry"), newest.get("status")
    return {
        "planner": live.planner,
        "vehicle": vehicle_size(vehicle),
        "stamp": None if odometry is None else convert.stamp_ns(odometry.header) * 1e-9,
        "here": None if here is None else round_list(here, 4),
        "speed": None if odometry is None else finite_or_none(odometry.twist.twist.linear.x),
        "silent_s": None if live.silent_s is None else round(live.silent_s, 2),
        "plans_hz": round(live.plans_hz, 1),
        "instruction": getattr(newest.get("instruction"), "data", ""),
        "plan": plan(newest.get("trajectory"), live.poses),
        "others": others(live),
        "status": None if status is None else status_line(status),
        "candidates": candidates(newest.get("debug")),
        "tokens": tokens(newest.get("debug")),
        "draft": draft(newest.get("debug"), live.poses, layout),
        "goals": goals(newest["goals"]) if "goals" in newest else [],
        "stages": stages(newest["debug"]) if "debug" in newest else [],
        "route": [] if here is None or "route" not in newest else route(newest["route"], here),
        "agents": [] if here is None or "objects" not in newest else agents(newest["objects"], here),
        "cameras": cameras(live),
        "diagnostics": diagnostics(newest["diagnostics"]) if "diagnostics" in newest else [],
        "history": [[round(t, 2), v, s, finite_or_none(ms), round(speed, 2)] for t, v, s, ms, speed in live.history],
        "road_version": live.road_version,
    }


def finite_or_none(value: float, digits: int = 3) -> float | None:
    return round(float(value), digits) if np.isfinite(value) else None


def pose_at(poses: tuple[tuple[int, Array], ...], stamp_ns: int) -> Array | None:
    """(3,) ego pose at a stamp, interpolated between two poses; None if there is none."""
    if not poses:
        return None
    after = next((k for k, (stamp, _) in enumerate(poses) if stamp >= stamp_ns), len(poses))
    if after in (0, len(poses)):
        return poses[min(after, len(poses) - 1)][1]
    (one_ns, one), (other_ns, other) = poses[after - 1], poses[after]
    share = (stamp_ns - one_ns) / max(other_ns - one_ns, 1)
    step = other - one
    step[2] = geometry.wrap(step[2])
    return np.asarray(one + share * step)


def plan(message: Any, poses: tuple[tuple[int, Array], ...]) -> dict[str, Any] | None:
    """The published trajectory, from the ego's pose."""
    if message is None or len(message.points) == 0:
        return None
    stamp_ns = convert.stamp_ns(message.header)
    ego = pose_at(poses, stamp_ns)
    points = plan_messages.points_from_message(message)
    points = points[plan_messages.is_ahead(points)]
    if len(points) == 0:
        return None
    table = np.column_stack([plan_messages.planar_poses(points), points["longitudinal_velocity_mps"]])
    if ego is None or not np.isfinite(table).all():
        return None
    return {
        "stamp": stamp_ns * 1e-9,
        "ego": round_list(ego, 4),
        "points": round_list(table, 3),
        "dt": float(points["sec"][0] + 1e-9 * points["nanosec"][0]),
    }


def others(live: LiveState) -> list[dict[str, Any]]:
    """The trajectories of other nodes, each with its topic, as `plan`."""
    trajectories = []
    for key, message in sorted(live.newest.items()):
        trajectory = plan(message, live.poses) if key.startswith(OTHER) else None
        if trajectory is not None and live.poses[-1][0] * 1e-9 - trajectory["stamp"] <= OTHERS_AGE_MAX_S:
            trajectories.append({"topic": key.removeprefix(OTHER), **trajectory})
    return trajectories


def status_line(message: Any) -> dict[str, Any]:
    return {
        "verdict": int(message.verdict),
        "source": int(message.source),
        "reason": message.reason,
        "planner": message.planner,
        "step": message.step_kind,
        "sequence": int(message.sequence),
        "total_ms": finite_or_none(message.time_received_to_published),
        "planner_ms": finite_or_none(message.time_planner),
        "image_age_s": finite_or_none(message.age_of_image),
        "model": message.model_sha256[:12],
    }


def candidates(message: Any) -> list[dict[str, Any]]:
    """The other candidates, best first, each reduced to a point every half second."""
    if message is None or message.candidate_count * message.points_per_candidate != len(message.candidate_x):
        return []
    shape = int(message.candidate_count), int(message.points_per_candidate)
    points = np.stack([np.array(message.candidate_x), np.array(message.candidate_y)], axis=-1).reshape(*shape, 2)
    stride = max(1, round(0.5 / message.point_interval)) if message.point_interval > 0 else 1
    if not np.isfinite(points).all():
        return []
    return [
        {"score": finite_or_none(score), "points": round_list(line[stride - 1 :: stride], 2)}
        for score, line in zip(message.candidate_score, points, strict=False)
    ][1:]


def tokens(message: Any) -> dict[str, list[Any]]:
    """Ids before and after the planner edited its draft, and after each round; empty for planners without tokens."""
    if message is None:
        return {"before": [], "after": [], "confidence": [], "rounds": []}
    every, count = [int(token) for token in message.round_tokens], len(message.tokens_after_edit)
    return {
        "before": [int(token) for token in message.tokens_before_edit],
        "after": [int(token) for token in message.tokens_after_edit],
        "confidence": [finite_or_none(value) for value in message.token_confidence],
        "rounds": [every[at : at + count] for at in range(count, len(every), count)] if count else [],
    }


def draft(message: Any, poses: tuple[tuple[int, Array], ...], layout: TokenLayout) -> dict[str, Any] | None:
    """The draft in the ego frame of the plan, and the corrections of the edit rounds; None for a plan without tokens or
    with tokens of another layout."""
    trace = None if message is None else outputs.token_trace(message)
    points, changes = draft_and_corrections(trace, layout)
    ego = None if message is None else pose_at(poses, convert.stamp_ns(message.header))
    if ego is None or not len(points):
        return None
    return {"ego": round_list(ego, 4), "points": round_list(points, 2), "corrections": correction_rows(changes)}


def goals(message: Any) -> list[tuple[float | None, float | None, float | None, bool]]:
    """x, y, probability of each goal that the last full step ranked, and whether the plan was drafted to it."""
    rows = zip(message.x, message.y, message.probability, strict=False)
    return [
        (finite_or_none(x), finite_or_none(y), finite_or_none(p, 4), index == message.chosen)
        for index, (x, y, p) in enumerate(rows)
    ]


def stages(message: Any) -> list[tuple[str, float | None]]:
    return [(name, finite_or_none(ms)) for name, ms in zip(message.stage_names, message.stage_times, strict=False)]


def route(message: Any, here: Array) -> list[Any]:
    """(L, 2) the part near the ego."""
    points = np.array([(p.pose.position.x, p.pose.position.y) for p in message.poses]).reshape(-1, 2)
    near = np.hypot(*(points - here[:2]).T) < ROUTE_RANGE_M
    return list(round_list(points[near], 2))


def agents(message: Any, here: Array) -> list[list[float]]:
    """x, y, heading, length, width, kind of each."""
    try:
        road_users = convert.map_agents(
            message, message.header.frame_id.lstrip("/"), here[:2], EXTENT_MAX_M, AGENTS_MAX
        ).agents
    except BadMessage:
        return []
    return agent_rows(road_users)


def cameras(live: LiveState) -> list[dict[str, Any]]:
    """The newest image of each camera, left to right, with intrinsics and pose if they have arrived."""
    rows = []
    for name, (stamp_ns, frame) in live.images.items():
        entry: dict[str, Any] = {"name": name, "stamp_ns": str(stamp_ns), "lens": None}  # too long for a double
        look = 0.0
        try:
            info, ego = live.infos[name], pose_at(live.poses, stamp_ns)
            camera_from_ego = convert.camera_from_ego(dict(live.transforms), name, frame)
            look = float(np.arctan2(camera_from_ego[2, 1], camera_from_ego[2, 0]))
            has_distortion = info.distortion_model in ("plumb_bob", "rational_polynomial")
            if ego is not None:
                entry["lens"] = {
                    "width": int(info.width),
                    "height": int(info.height),
                    "k": round_list(convert.intrinsics(info, name).ravel(), 3),
                    "distortion": [float(value) for value in info.d] if has_distortion else [],
                    "camera_from_ego": round_list(camera_from_ego.ravel(), 5),
                    "ego": round_list(ego, 4),
                }
        except (KeyError, BadMessage):
            pass  # the image is shown without the plan
        rows.append((-look, name, entry))
    return [entry for _, _, entry in sorted(rows, key=lambda row: row[:2])]


def diagnostics(message: Any) -> list[tuple[str, int, str]]:
    """Name without the node's, level, message."""
    return [
        (status.name.partition(": ")[2] or status.name, int.from_bytes(status.level, "little"), status.message)
        for status in message.status
    ]
