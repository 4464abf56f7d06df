"""Draws `reflexdiffusion.svg`: a bend before and after reflection, with confidence, curvature and lateral acceleration.

    python docs/planners/reflexdiffusion_figure.py --scenes val

The scene is the one of the set's bends whose plan reflection moves most, among --limit scenes of the families
curve, turn_left, turn_right, roundabout, u_turn and high_lateral_acceleration. Both plans are sampled with the set
guidance, with the privilege `objects` and without repair.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import shapely
from rich.console import Console

from reflectdrive_ros.core import geometry
from reflectdrive_ros.core.config import Config, PipelineConfig
from reflectdrive_ros.core.domain import Array
from reflectdrive_ros.data import shards
from reflectdrive_ros.data.scene import DrivingScene
from reflectdrive_ros.evaluation import driving_scores, open_loop
from reflectdrive_ros.evaluation.privilege import observe
from reflectdrive_ros.planning import decoding_config, get_planner
from reflectdrive_ros.planning.confidence import confidence, curvature_at, speeds_and_curvatures
from reflectdrive_ros.planning.planner import AnyNetwork, PlannerContext, PlannerState
from reflectdrive_ros.runtime import cli_args
from reflectdrive_ros.runtime.network import load_network
from reflectdrive_ros.scoring import drivable
from reflectdrive_ros.scoring.safety import SafetyContext

FIGURE = Path(__file__).parent / "reflexdiffusion.svg"
FAMILIES = ("curve", "turn_left", "turn_right", "roundabout", "u_turn", "high_lateral_acceleration")
DT_S = 0.1
MAP, GRAPH_W, GRAPH_H, TOP, GAP, BOTTOM = 380, 420, 100, 64, 40, 40  # px
BEHIND_M, MARGIN_M = 8.0, 5.0
BEFORE, AFTER, ROUTE, ROAD, AGENT, EGO, INK = (
    "#8b4fc9", "#2e9e5b", "#d38b06", "#dfe3e8", "#4f86d9", "#131820", "#1c2733",
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class Bend:
    """One scene with its plan without and with reflection."""

    scene: DrivingScene
    safety_context: SafetyContext
    plans: tuple[Array, Array]  # (T, 3) at 0.1, 0.2, .. s
    scores: tuple[float, float]  # PDMS in percent
    reflected: int
    accepted: int

    @property
    def moved_m(self) -> float:
        before, after = self.plans
        return float(np.hypot(*(after - before)[:, :2].T).max())


def bends(folder: Path, config: Config, network: AnyNetwork, limit: int, errors: Console) -> Iterator[Bend]:
    """The bends of a set in which a reflection was kept."""
    for scene in shards.read(folder, images=False, families=FAMILIES, limit=limit, on_damage=errors.print):
        observation = observe(scene, "objects", with_vectors=True)
        plans, reflections = [], []
        for reflection in (False, True):
            settings = replace(config.reflexdiffusion, reflection=reflection)
            alone = PipelineConfig(vary=False, select=False, repair=False)
            own = replace(config, reflexdiffusion=settings, pipeline=alone)
            state, plan = get_planner(own)(PlannerState(), observation, PlannerContext(own, network))
            plans.append(plan)
            reflections.append(state.memory)
        waypoints = [driving_scores.plan_waypoints(plan)[0] for plan in plans]
        rows = driving_scores.score_plans(
            scene.scored(vehicle=config.vehicle), dict(zip("ba", waypoints, strict=True)), config.scoring
        )
        accepted = sum(each.accepted for each in reflections[1])
        if accepted:
            safety_context = SafetyContext(observation, config)
            before, after = (plan.trajectory.poses for plan in plans)
            scores = 100 * rows["b"][0], 100 * rows["a"][0]
            yield Bend(scene, safety_context, (before, after), scores, len(reflections[1]), accepted)


def map_of(bend: Bend) -> list[str]:
    """SVG elements of the road with both plans."""
    points = np.concatenate([*bend.plans])[:, :2]
    low = np.minimum(points.min(axis=0), 0.0) - np.array([BEHIND_M, MARGIN_M])
    high = np.maximum(points.max(axis=0), 0.0) + MARGIN_M
    scale = MAP / float((high - low).max())
    middle = 0.5 * (low + high)

    def pixels(some: Array) -> Array:
        moved = scale * (some[:, :2] - middle)
        return np.stack([GAP + MAP / 2 - moved[:, 1], TOP + MAP / 2 - moved[:, 0]], axis=-1)

    def path(some: Array, style: str, closed: bool = False) -> str:
        corners = " ".join(f"{x:.1f},{y:.1f}" for x, y in pixels(some))
        return f'<{"polygon" if closed else "polyline"} points="{corners}" {style}/>'

    view = shapely.box(*(middle - MAP / 2 / scale), *(middle + MAP / 2 / scale))
    areas = bend.scene.areas
    road = drivable.union_polygons([*areas.roadblocks, *areas.intersections, *areas.carparks])
    out = [f'<rect x="{GAP}" y="{TOP}" width="{MAP}" height="{MAP}" fill="#f6f7f9"/>']
    for part in shapely.get_parts(road.intersection(view).simplify(0.1)):
        if isinstance(part, shapely.Polygon):
            out.append(path(np.array(part.exterior.coords), f'fill="{ROAD}"', closed=True))
            out += [path(np.array(hole.coords), 'fill="#f6f7f9"', closed=True) for hole in part.interiors]
    inside = np.array([view.contains(shapely.Point(point)) for point in bend.scene.route[:, :2]])
    out.append(path(bend.scene.route[inside], f'fill="none" stroke="{ROUTE}" stroke-dasharray="2 4"'))
    for pose, size in zip(bend.scene.agents.poses, bend.scene.agents.sizes, strict=True):
        if view.contains(shapely.Point(pose[:2])):
            out.append(path(geometry.box_corners(pose, size), f'fill="{AGENT}" fill-opacity="0.5"', closed=True))
    out.append(path(geometry.box_corners(np.array([1.461, 0.0, 0.0]), np.array([5.176, 2.297])), f'fill="{EGO}"', True))
    for poses, colour, dash, width in zip(bend.plans, (BEFORE, AFTER), ("6 3", "none"), (4, 2), strict=True):
        line = np.concatenate([np.zeros((1, 3)), poses])
        out.append(path(line, f'fill="none" stroke="{colour}" stroke-width="{width}" stroke-dasharray="{dash}"'))
    return out


def graphs_of(bend: Bend) -> list[str]:
    """SVG elements of confidence, curvature and lateral acceleration over time."""
    confidences = [confidence(poses, DT_S, bend.safety_context).by_instant for poses in bend.plans]
    motion = [speeds_and_curvatures(poses, DT_S) for poses in bend.plans]
    curvatures = [curvature for _, curvature in motion]
    if bend.safety_context.road is not None:
        frenet, _ = bend.safety_context.road.to_frenet(bend.plans[1][:, :2])
        curvatures.append(curvature_at(bend.safety_context.road, frenet[:, 0]))
    lateral = [speed**2 * curvature for speed, curvature in motion]
    out = []
    for index, (name, rows) in enumerate(
        (("confidence", confidences), ("curvature, 1/m", curvatures), ("lateral acceleration, m/s²", lateral))
    ):
        out += graph(name, rows, TOP + index * (GRAPH_H + GAP), (0.0, 1.0) if index == 0 else None)
    return out


def graph(name: str, rows: list[Array], top: float, limits: tuple[float, float] | None) -> list[str]:
    left = GAP + MAP + 2 * GAP
    low, high = limits or (min(0.0, min(row.min() for row in rows)), max(1e-3, max(row.max() for row in rows)))
    out = [f'<rect x="{left}" y="{top}" width="{GRAPH_W}" height="{GRAPH_H}" fill="#f6f7f9"/>']
    out.append(f'<text x="{left}" y="{top - 6}" fill="{INK}">{name}</text>')
    for value in (low, high):
        y = top + GRAPH_H * (high - value) / (high - low)
        out.append(f'<text x="{left - 6}" y="{y + 4:.1f}" text-anchor="end" fill="{INK}">{value:.2g}</text>')
    styles = ((BEFORE, "6 3", 3), (AFTER, "none", 2), (ROUTE, "2 4", 2))
    for row, (colour, dash, width) in zip(rows, styles, strict=False):
        x = left + GRAPH_W * np.arange(1, len(row) + 1) / len(row)
        y = top + GRAPH_H * (high - row) / (high - low)
        line = " ".join(f"{a:.1f},{b:.1f}" for a, b in zip(x, y, strict=True))
        style = f'stroke="{colour}" stroke-width="{width}" stroke-dasharray="{dash}"'
        out.append(f'<polyline points="{line}" fill="none" {style}/>')
    end = len(rows[0]) * DT_S
    out.append(f'<text x="{left + GRAPH_W}" y="{top + GRAPH_H + 14}" text-anchor="end" fill="{INK}">{end:.0f} s</text>')
    return out


def figure(bend: Bend, weights: str) -> str:
    """The SVG of a bend."""
    width, height = 4 * GAP + MAP + GRAPH_W, TOP + MAP + BOTTOM
    scene = bend.scene
    title = f"{scene.name}, {scene.family.replace('_', ' ')}, {scene.ego.speed_mps:.1f} m/s; weights {weights}"
    values = [confidence(poses, DT_S, bend.safety_context).value for poses in bend.plans]
    text = (
        f"{bend.reflected} steps reflected, {bend.accepted} kept; confidence {values[0]:.2f} to {values[1]:.2f}, "
        f"PDMS {bend.scores[0]:.1f} to {bend.scores[1]:.1f}, moved by up to {bend.moved_m:.2f} m"
    )
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}"',
        ' font-family="sans-serif" font-size="12">',
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
        f'<text x="{GAP}" y="22" font-size="16" font-weight="bold" fill="{INK}">{title}</text>',
        f'<text x="{GAP}" y="42" fill="{INK}">{text}</text>',
        f'<clipPath id="map"><rect x="{GAP}" y="{TOP}" width="{MAP}" height="{MAP}"/></clipPath>',
        '<g clip-path="url(#map)">',
        *map_of(bend),
        "</g>",
        *graphs_of(bend),
    ]
    x, y = GAP, TOP + MAP + 24
    legend = {BEFORE: "without reflection", AFTER: "with reflection", ROUTE: "route", ROAD: "drivable area"}
    for colour, name in legend.items():
        out.append(f'<rect x="{x}" y="{y - 10}" width="12" height="12" fill="{colour}"/>')
        out.append(f'<text x="{x + 17}" y="{y}" fill="{INK}">{name}</text>')
        x += 40 + 7 * len(name)
    return "\n".join([*out, "</svg>", ""])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    cli_args.add_bench_arguments(parser)
    parser.set_defaults(scenes="val", planner="reflexdiffusion")
    args, errors = parser.parse_args(), Console(stderr=True)
    config = cli_args.configuration(args)
    network = load_network(config.model, decoding_config(config))
    assert network is not None  # configuration() has refused a planner without a model
    folder = open_loop.resolve_scene_set(args.scenes, args.workers, errors)
    drawn = list(bends(folder, config, network, args.limit, errors))
    if not drawn:
        errors.print(f"no reflection was kept in the bends among {args.limit} scenes")
        return 1
    weights = cli_args.weights_of(config, [config.planner])[:12]
    FIGURE.write_text(figure(max(drawn, key=lambda bend: bend.moved_m), weights), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
