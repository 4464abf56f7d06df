"""A page of the worst incidents of closed-loop drives, drawn from above."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

import numpy as np

from ..core import geometry, kinematics
from ..core.config import VehicleConfig
from ..core.domain import Array
from ..pages import page
from .incidents import Incident, Moment

SCALE_PX_PER_M = 8.0
AHEAD_M, BEHIND_M, ASIDE_M = 32.0, 26.0, 17.0  # of the drawing, from the ego at the incident
EVERY = 10  # instants between drawn boxes: one second
COLOURS = {"road": "#d9dce1", "route": "#2e9e5b", "plan": "#2563eb", "ego": "#c2410c", "actor": "#475569"}


def worst(incidents: Sequence[Incident], count: int) -> list[Incident]:
    """The `count` most severe incidents of each planner, in the planners' order: collisions, then red lights, then
    departures from the road, by speed."""
    ranked = sorted(incidents, key=lambda one: (-one.severity, one.seed, one.time_s))
    by_planner: dict[str, list[Incident]] = {one.planner: [] for one in incidents}
    for one in ranked:
        by_planner[one.planner].append(one)
    return [one for own in by_planner.values() for one in own[:count]]


def render(incidents: Sequence[Incident], vehicle: VehicleConfig) -> str:
    """The HTML page of some incidents, in their order; it needs no other file."""
    parts = [_section(index + 1, one, vehicle) for index, one in enumerate(incidents)]
    body = (
        "\n".join(parts) if parts else "<p>No collision at fault, no red light crossed, no departure from the road.</p>"
    )
    return page("worst.html").replace("__INCIDENTS__", body)


def _section(number: int, one: Incident, vehicle: VehicleConfig) -> str:
    causes = "".join(f"<li>{escape(cause)}</li>" for cause in one.causes)
    head = f"{number}. {one.kind.replace('_', ' ')}: {one.planner}, {one.town}, seed {one.seed}, {one.time_s:.1f} s"
    return (
        f"<section><h2>{escape(head)}</h2><p>{escape(one.text)}</p><ul>{causes}</ul>{drawing(one, vehicle)}</section>"
    )


def drawing(one: Incident, vehicle: VehicleConfig) -> str:
    """An SVG from above, the ego at the incident pointing right; boxes one second apart, the last ones filled."""
    now = one.moments[-1]
    frame = geometry.invert(now.pose)
    shapes = [f'<path d="{" ".join(_path(frame, ring) for ring in one.road)}" class="road"/>']
    shapes.append(f'<path d="{_path(frame, one.route, closed=False)}" class="route"/>')
    for moment in one.moments[::-EVERY][::-1]:
        last = moment is now
        shapes.append(f'<path d="{_path(frame, moment.plan[:, :2], closed=False)}" class="plan{_late(last)}"/>')
        boxes = geometry.box_corners(moment.actors[:, :3], moment.actors[:, 3:])
        shapes += [f'<path d="{_path(frame, box)}" class="actor{_late(last)}"/>' for box in boxes]
        shapes.append(f'<path d="{_path(frame, _ego_box(moment, vehicle))}" class="ego{_late(last)}"/>')
    width, height = (AHEAD_M + BEHIND_M) * SCALE_PX_PER_M, 2 * ASIDE_M * SCALE_PX_PER_M
    return f'<svg viewBox="0 0 {width:.0f} {height:.0f}" xmlns="http://www.w3.org/2000/svg">{"".join(shapes)}</svg>'


def _late(last: bool) -> str:
    return "" if last else " before"


def _ego_box(moment: Moment, vehicle: VehicleConfig) -> Array:
    center = kinematics.box_centres(moment.pose, vehicle)
    return np.asarray(geometry.box_corners(center, np.array([vehicle.length_m, vehicle.width_m])))


def _path(frame: Array, points: Array, closed: bool = True) -> str:
    """An SVG path of map points (V, 2) in a frame (3,)."""
    local_points = geometry.transform_points(frame, points)
    pixels = (np.array([BEHIND_M, ASIDE_M]) + local_points * [1.0, -1.0]) * SCALE_PX_PER_M
    return "M" + "L".join(f"{x:.0f},{y:.0f}" for x, y in pixels) + ("Z" if closed else "")
