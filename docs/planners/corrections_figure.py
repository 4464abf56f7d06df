"""Draws the first three scenes of a set in which a planner's own correction moved the plan by more than 0.3 m.

    python docs/planners/corrections_figure.py --scenes DIR --model models/reflectdrive2_scene/onnx/card.json \\
        --setting cameras.required=false
    python docs/planners/corrections_figure.py --scenes DIR --planner drivefine \\
        --model models/drivefine_scene/onnx/card.json --setting cameras.required=false

The first writes `corrections.svg` (AutoEdit), the second `refinements.svg` (the refinement expert). Each scene is
planned twice from the initial state, without and with correction, with the privilege `objects`, without choice among
candidates and variants and without repair; drivefine plans one candidate. The scenes are taken in the order of the set;
a plan moved if one of its waypoints did by more than the limit. Of a network that reads a critique only drafts that are
unsafe in the forecast are drawn. Below the scores in the recorded future stands what the check says of the draft in the
forecast (`planning.critique`): the waypoints at fault are red.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import shapely
from rich.console import Console

from reflectdrive_ros.core import geometry
from reflectdrive_ros.core.config import Config
from reflectdrive_ros.core.domain import Array
from reflectdrive_ros.data import shards
from reflectdrive_ros.data.scene import DrivingScene
from reflectdrive_ros.evaluation import driving_scores, open_loop
from reflectdrive_ros.evaluation.privilege import observe
from reflectdrive_ros.planning import decoding_config, get_planner
from reflectdrive_ros.planning.planner import Network, PlannerContext
from reflectdrive_ros.planning.select import forecast_scene
from reflectdrive_ros.runtime import cli_args
from reflectdrive_ros.runtime.network import load_network
from reflectdrive_ros.scoring import drivable
from reflectdrive_ros.scoring.scorer import WAYPOINT_TIMES_S, ScoreCard, score

FIGURES = {"reflectdrive2": ("corrections.svg", "AutoEdit"), "drivefine": ("refinements.svg", "refinement expert")}
UNCORRECTED: dict[str, dict[str, Any]] = {  # settings of the planner's section without corrections
    "reflectdrive2": {"edit_rounds": 0},
    "drivefine": {"refine": False},
}
ALONE: dict[str, dict[str, Any]] = {"reflectdrive2": {}, "drivefine": {"candidates": 1}}  # settings of both plans
PANELS = 3
MOVED_M = 0.3  # a bin of the codebook
WIDTH, HEIGHT, TOP, BOTTOM, GAP = 300, 380, 90, 40, 12  # px
BEHIND_M, AHEAD_MIN_M, AHEAD_MAX_M, MARGIN_M = 8.0, 25.0, 70.0, 4.0
DRAFT, AFTER, MOVED, UNSAFE = "#8b4fc9", "#2e9e5b", "#d38b06", "#d0342c"
ROAD, AGENT, EGO, INK = "#dfe3e8", "#4f86d9", "#131820", "#1c2733"


@dataclass(frozen=True, eq=False)
class Panel:
    """One scene with its plan without and with edit rounds."""

    scene: DrivingScene
    draft: Array  # (8, 3) at 0.5 .. 4 s, ego frame
    after: Array  # (8, 3)
    changed: Array  # (8,) bool, waypoints with a replaced token
    scores: tuple[float, float]  # PDMS in percent
    unsafe: Array  # (8,) bool, waypoints of the draft at fault in the forecast
    verdict: str  # of the check

    @property
    def moved_m(self) -> float:
        return float(np.hypot(*(self.after - self.draft)[:, :2].T).max())


def panels(folder: Path, config: Config, network: Network, limit: int, errors: Console) -> Iterator[Panel]:
    """The scenes of a set whose plan moved, in the order of the set."""
    recipe = config.planner
    config = replace(config, pipeline=replace(config.pipeline, select=False, vary=False, repair=False))
    settings = replace(getattr(config, recipe), **ALONE[recipe])
    edited = replace(config, **{recipe: settings})
    unedited = replace(config, **{recipe: replace(settings, **UNCORRECTED[recipe])})
    for scene in shards.read(folder, images=config.cameras.required, limit=limit, on_damage=errors.print):
        seen = observe(scene, "objects", with_vectors=True)
        with_edits, without = (
            driving_scores.plan_once(get_planner(one), seen, PlannerContext(one, network)) for one in (edited, unedited)
        )
        assert with_edits.trace is not None
        first, last = with_edits.trace.ids[[0, -1]]
        draft, after = (driving_scores.plan_waypoints(plan)[0] for plan in (without, with_edits))
        rows = driving_scores.score_plans(
            scene.scored(vehicle=config.vehicle), {"draft": draft, "after": after}, config.scoring
        )
        safety_context = PlannerContext(edited, network).safety_context(seen)
        card = score(forecast_scene(safety_context), np.stack([draft, after]), config.scoring)
        changed = (first != last).reshape(network.layout.points, -1).any(axis=1)
        measured = 100 * rows["draft"][0], 100 * rows["after"][0]
        panel = Panel(scene, draft, after, changed, measured, card.waypoint_safety[0] < 1.0, verdict(card))
        if panel.moved_m > MOVED_M and (panel.unsafe.any() or "critique" not in network.capabilities):
            yield panel


def verdict(card: ScoreCard) -> str:
    """What the check says of the first plan of a card, and the scores in the forecast of it and the second."""
    at_s = f"{WAYPOINT_TIMES_S[int(card.waypoint_safety[0].argmin())]:.1f} s"
    faults = [
        (card.dac[0] < 1.0, f"off the road after {at_s}"),
        (card.nc[0] < 1.0, f"contact after {at_s}"),
        (card.tlc[0] < 1.0, "runs a red light"),
        (card.ttc[0] < 1.0, "less than 1 s to contact"),
        (card.comfort[0] < 1.0, "uncomfortable"),
    ]
    fault = next((text for applies, text in faults if applies), f"progress {100 * card.ep[0]:.0f} %")
    return f"check: {fault}; forecast {100 * card.score[0]:.0f}, after {100 * card.score[1]:.0f}"


def drawing(panel: Panel, left: float) -> list[str]:
    """SVG elements of one panel, its upper left corner at (left, TOP)."""
    reach = np.abs(np.concatenate([panel.draft, panel.after])[:, :2]).max(axis=0) + MARGIN_M
    ahead_m = float(np.clip(reach[0], AHEAD_MIN_M, AHEAD_MAX_M))
    scale = min(HEIGHT / (BEHIND_M + ahead_m), WIDTH / 2 / float(reach[1]))

    def pixels(points: Array) -> Array:
        column = left + WIDTH / 2 - scale * points[:, 1]
        return np.stack([column, TOP + HEIGHT - scale * (points[:, 0] + BEHIND_M)], axis=-1)

    def path(points: Array, style: str, closed: bool = False) -> str:
        corners = " ".join(f"{x:.1f},{y:.1f}" for x, y in pixels(points))
        return f'<{"polygon" if closed else "polyline"} points="{corners}" {style}/>'

    half = WIDTH / 2 / scale
    view = shapely.box(-BEHIND_M, -half, HEIGHT / scale - BEHIND_M, half)
    areas, scene = panel.scene.areas, panel.scene
    road = drivable.union_polygons([*areas.roadblocks, *areas.intersections, *areas.carparks])
    parts = shapely.get_parts(road.intersection(view).simplify(0.1))
    out = [f'<rect x="{left}" y="{TOP}" width="{WIDTH}" height="{HEIGHT}" fill="#f6f7f9"/>']
    for part in parts:
        if isinstance(part, shapely.Polygon):
            out.append(path(np.array(part.exterior.coords), f'fill="{ROAD}"', closed=True))
            out += [path(np.array(hole.coords), 'fill="#f6f7f9"', closed=True) for hole in part.interiors]
    for pose, size in zip(scene.agents.poses, scene.agents.sizes, strict=True):
        if view.contains(shapely.Point(pose[:2])):
            out.append(path(geometry.box_corners(pose, size), f'fill="{AGENT}" fill-opacity="0.5"', closed=True))
    out.append(path(geometry.box_corners(np.array([1.461, 0.0, 0.0]), np.array([5.176, 2.297])), f'fill="{EGO}"', True))
    start = np.zeros((1, 2))
    for points, colour, dash, width in ((panel.draft, DRAFT, "6 3", 4), (panel.after, AFTER, "none", 2)):
        style = f'fill="none" stroke="{colour}" stroke-width="{width}" stroke-dasharray="{dash}"'
        out.append(path(np.concatenate([start, points[:, :2]]), style))
        out += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.6" fill="{colour}"/>' for x, y in pixels(points)]
    ring = f'r="6" fill="none" stroke="{MOVED}" stroke-width="2"'
    out += [f'<circle cx="{x:.1f}" cy="{y:.1f}" {ring}/>' for x, y in pixels(panel.after[panel.changed])]
    out += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{UNSAFE}"/>' for x, y in pixels(panel.draft[panel.unsafe])]
    before, after = panel.scores
    title = f"{scene.name}, {scene.family.replace('_', ' ')}"
    text = f"PDMS {before:.1f} before, {after:.1f} after; moved by up to {panel.moved_m:.1f} m"
    out.append(f'<text x="{left}" y="{TOP - 40}" fill="{INK}" font-weight="bold">{title}</text>')
    out.append(f'<text x="{left}" y="{TOP - 24}" fill="{INK}">{text}</text>')
    out.append(f'<text x="{left}" y="{TOP - 8}" fill="{UNSAFE if panel.unsafe.any() else INK}">{panel.verdict}</text>')
    return out


def figure(found: list[Panel], title: str) -> str:
    """The SVG of some panels side by side."""
    width, height = GAP + PANELS * (WIDTH + GAP), TOP + HEIGHT + BOTTOM
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}"',
        ' font-family="sans-serif" font-size="12">',
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
        f'<text x="{GAP}" y="24" font-size="16" font-weight="bold" fill="{INK}">{title}</text>',
    ]
    for place, panel in enumerate(found):
        left = GAP + place * (WIDTH + GAP)
        clip = f'<clipPath id="p{place}"><rect x="{left}" y="0" width="{WIDTH}" height="{TOP + HEIGHT}"/></clipPath>'
        out += [clip, f'<g clip-path="url(#p{place})">', *drawing(panel, left), "</g>"]
    y, x = TOP + HEIGHT + 24, GAP
    legend = {
        DRAFT: "plan of the draft",
        AFTER: "plan after the correction",
        MOVED: "replaced token",
        UNSAFE: "unsafe in the forecast",
    }
    for colour, name in {**legend, ROAD: "drivable area", AGENT: "objects"}.items():
        out.append(f'<rect x="{x}" y="{y - 10}" width="12" height="12" fill="{colour}"/>')
        out.append(f'<text x="{x + 17}" y="{y}" fill="{INK}">{name}</text>')
        x += 40 + 7 * len(name)
    return "\n".join([*out, "</svg>", ""])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    cli_args.add_bench_arguments(parser)
    parser.add_argument("--planner", choices=FIGURES, default="reflectdrive2", help="whose corrections to draw")
    parser.set_defaults(scenes="val")
    args, errors = parser.parse_args(), Console(stderr=True)
    config = cli_args.configuration(args)
    file, what = FIGURES[config.planner]
    network = load_network(config.model, decoding_config(config))
    assert network is not None  # configuration() has refused a planner without a model
    folder = open_loop.resolve_scene_set(args.scenes, args.workers, errors)
    found: list[Panel] = []
    for panel in panels(folder, config, network, args.limit, errors):
        found.append(panel)
        if len(found) == PANELS:
            break
    if not found:
        errors.print(f"The {what} moved no plan of {args.limit} scenes by more than {MOVED_M} m")
        return 1
    weights = cli_args.weights_of(config, [config.planner])[:12]
    title = f"{what[:1].upper()}{what[1:]}: set {shards.index_of(folder).set}, weights {weights}"
    (Path(__file__).parent / file).write_text(figure(found, title), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
