"""`reflectdrive bench forecast --scenes val`: displacement error of the forecast of agents at 1, 2 and 4 s.

Every agent present now and at that instant counts once per scene; its place is compared with its logged one. Variants:
constant velocity (`kinematics.forecast`); constant speed, along the ego's road for the agents on it; the forecast of
the safety checks without accelerations and yaw rates, which leaves the adaption to leads; with either of them; and with
both, as the planners have it. What an agent does now is taken from its logged speed and heading from 0.5 s before to
0.5 s after now.

The scenes are a set, or recorded traffic (`real_tracks`, or `real_tracks:DIR`): one moment per second from 2 s on, so
that the history is whole. Agents of recordings of one site are not independent. The time is that of a forecast of 60
agents (those of the scene with the most, repeated), accelerations included, on one core.

No setting (--setting) changes a forecast: its parameters are constants.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from ..core import agent_motion, geometry, kinematics
from ..core.domain import AgentHistory, Agents, Array, Forecast, Observation
from ..data import real_tracks, shards
from ..data.scene import NOW
from ..data.shards import SetError
from ..evaluation import open_loop
from ..infra import arguments
from ..infra.command import command, make_table
from ..infra.progress import track_progress
from ..infra.provenance import write_numbers
from ..scoring import prediction
from ..scoring.frenet import FrenetFrame
from ..scoring.simulate import DT_S

INSTANTS_S = (1.0, 2.0, 4.0)
STEPS = tuple(round(each / DT_S) for each in INSTANTS_S)
AROUND = 5  # steps before and after now over which an agent's present motion is measured
CHANGING_MPS2, TURNING_RPS = 0.5, 0.1
TIMED_AGENTS, TIMED_STEPS, RUNS = 60, 50, 100


@dataclass(frozen=True, eq=False)
class Case:
    """The observation of one moment, and what its agents did; rows in the order of `observation.agents`."""

    group: str  # family of the scene, or site of the recording
    observation: Observation
    poses: Array  # (A, 61, 3) from NOW - 20 to NOW + 40, ego frame of now
    speeds_mps: Array  # (A, 61)
    present: Array  # (A, 61) bool


def constant_speed(others: Agents, road: FrenetFrame | None, dt_s: float, steps: int) -> Forecast:
    """Agents on the ego's road follow it, the others go straight on, all at their present speed."""
    straight_on = kinematics.forecast(others, dt_s, steps)
    speeds_mps, places = np.hypot(*others.velocities_mps.T), prediction.find_on_road(road, others)
    chosen = places.on_road & (speeds_mps > prediction.MOVING_MPS)
    if road is None or not chosen.any():
        return straight_on
    poses, lanes = straight_on.poses.copy(), (places.at_m[chosen], places.beside_m[chosen])
    driven_m = speeds_mps[chosen, None] * dt_s * np.arange(steps + 1)
    poses[chosen] = prediction.along_road(road, *lanes, others.poses[chosen], speeds_mps[chosen], driven_m)
    return replace(straight_on, poses=poses)


def _forecast_without(*names: str) -> Callable[[Agents, FrenetFrame | None, float, int], Forecast]:
    unknown: dict[str, Any] = dict.fromkeys(names)
    return lambda others, road, dt_s, steps: prediction.forecast(replace(others, **unknown), road, dt_s, steps)


BASELINE = "constant speed"
VARIANTS: dict[str, Callable[[Agents, FrenetFrame | None, float, int], Forecast]] = {
    "constant velocity": lambda others, road, dt_s, steps: kinematics.forecast(others, dt_s, steps),
    BASELINE: constant_speed,
    "leads": _forecast_without("accelerations_mps2", "yaw_rates_rps"),
    "leads, accelerations": _forecast_without("yaw_rates_rps"),
    "leads, yaw rates": _forecast_without("accelerations_mps2"),
    "leads, both": prediction.forecast,
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--scenes", default="val", metavar="NAME|DIR", help="a scene set, real_tracks or real_tracks:DIR (default: val)"
    )
    parser.add_argument(
        "--limit", type=arguments.positive_int(1_000_000), help="N scenes, spread over families, or the first N moments"
    )
    parser.add_argument("--families", nargs="+", metavar="NAME", help="only scenes of these families or sites")
    parser.add_argument("--workers", type=arguments.positive_int(256), default=1, help="to make a set that is missing")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the numbers as JSON")


@command()
def run(args: argparse.Namespace, console: Console, errors: Console) -> None:
    """Exit code 0; 2 with one sentence on stderr if there are no scenes."""
    cases = list(track_progress(_cases(args, errors), "reading", errors, args.limit))
    if not sum(len(case.poses) for case in cases):
        raise SetError(f"{args.scenes} holds no agents to forecast")
    found = {name: np.concatenate([errors_of(case, name) for case in cases]) for name in VARIANTS}
    groups = groups_of(cases)
    rows = {name: {group: _summary(table[chosen]) for group, chosen in groups.items()} for name, table in found.items()}
    times_ms = forecast_times_ms(max(cases, key=lambda case: len(case.poses)).observation)
    content = {"scenes": len(cases), "agents": len(found[BASELINE]), "variants": rows, "forecast_ms": times_ms}
    write_numbers(args.json, {"set": args.scenes, **content})
    console.print(_table(f"{args.scenes}, {len(cases)} moments: mean error in m (90th percentile)", rows))
    shown = ", ".join(f"{name} {spent:.2f}" for name, spent in times_ms.items())
    console.print(f"ms for {TIMED_AGENTS} agents, {TIMED_STEPS} steps: {shown}")


def _cases(args: argparse.Namespace, errors: Console) -> Iterator[Case]:
    name, _, recordings = args.scenes.partition(":")
    if name != real_tracks.NAME:
        limit = None if args.families else args.limit
        folder = open_loop.resolve_scene_set(args.scenes, args.workers, errors, limit)
        yield from scene_cases(folder, args.families, args.limit, errors)
        return
    found = recorded_cases(Path(recordings) if recordings else real_tracks.default_folder(), args.families)
    yield from islice(found, args.limit)


def scene_cases(folder: Path, families: list[str] | None, limit: int | None, errors: Console) -> Iterator[Case]:
    """The scenes of a set."""
    for scene in shards.read(folder, images=False, families=families, limit=limit, on_damage=errors.print):
        seen, until = scene.tracks.present[:, NOW], slice(0, NOW + STEPS[-1] + 1)
        tracks = scene.tracks
        speeds_mps = np.abs(tracks.speeds_mps[seen, until])
        yield Case(
            scene.family, scene.observation(), tracks.poses[seen, until], speeds_mps, tracks.present[seen, until]
        )


def recorded_cases(folder: Path, sites: list[str] | None) -> Iterator[Case]:
    """Recorded moments with 2 s of history and 4 s of future."""
    for path in real_tracks.recordings_in(folder):
        recording = real_tracks.load(path)
        if not recording.lanes or (sites and recording.family not in sites):
            continue
        for step in range(NOW, recording.steps - STEPS[-1], round(1.0 / real_tracks.STEP_S)):
            observation, _ = real_tracks.observation_at(recording, step)
            seen = np.isfinite(recording.agent_centers[:, step, 0])
            until = slice(step - NOW, step + STEPS[-1] + 1)
            poses = geometry.compose(geometry.invert(recording.ego_poses[step]), recording.agent_centers[seen, until])
            speeds_mps = np.hypot(*np.moveaxis(recording.agent_velocities_mps[seen, until], -1, 0))
            yield Case(recording.family, observation, poses, speeds_mps, np.isfinite(poses[..., 0]))


def errors_of(case: Case, variant: str) -> Array:
    """(A, 3) m at INSTANTS_S; NaN where the agent is absent."""
    agents = case.observation.agents
    assert agents is not None
    made = VARIANTS[variant](agents, FrenetFrame.of(case.observation.route), DT_S, STEPS[-1]).poses[:, STEPS, :2]
    later = [NOW + step for step in STEPS]
    apart = np.hypot(*np.moveaxis(made - case.poses[:, later, :2], -1, 0))
    return np.where(case.present[:, later], apart, np.nan)


def groups_of(cases: list[Case]) -> dict[str, Array]:
    """Names and members (agents of all cases,) bool of the groups of the table."""
    parts: dict[str, list[Array]] = {}
    for case in cases:
        agents = case.observation.agents
        assert agents is not None
        rows = np.arange(len(agents))
        first, last = (np.where(case.present[:, at], at, NOW) for at in (NOW - AROUND, NOW + AROUND))
        span_s = DT_S * np.maximum(last - first, 1)
        gained = (case.speeds_mps[rows, last] - case.speeds_mps[rows, first]) / span_s
        turned = np.abs(geometry.wrap(case.poses[rows, last, 2] - case.poses[rows, first, 2])) / span_s
        moving = np.hypot(*agents.velocities_mps.T) > prediction.MOVING_MPS
        on_road = prediction.find_on_road(FrenetFrame.of(case.observation.route), agents).on_road
        calm = np.abs(gained) < CHANGING_MPS2
        for name, members in (
            ("all", np.ones(len(agents), bool)),
            ("standing", ~moving),
            ("moving, on the road", moving & on_road),
            ("moving, elsewhere", moving & ~on_road),
            ("braking", gained < -CHANGING_MPS2),
            ("accelerating", gained > CHANGING_MPS2),
            ("turning", moving & (turned > TURNING_RPS)),
            ("steady", moving & calm & (turned <= TURNING_RPS)),
        ):
            parts.setdefault(name, []).append(members)
    return {name: np.concatenate(members) for name, members in parts.items()}


def _summary(errors_m: Array) -> dict[str, Any]:
    """Means and 90th percentiles of errors (A, 3) by instant; None where no agent has one."""
    found: dict[str, Any] = {"agents": len(errors_m)}
    for instant_s, column in zip(INSTANTS_S, errors_m.T, strict=True):
        known = column[np.isfinite(column)]
        name = f"{instant_s:.0f}_s"
        found[f"mean_m_{name}"] = round(float(known.mean()), 4) if len(known) else None
        found[f"p90_m_{name}"] = round(float(np.percentile(known, 90)), 4) if len(known) else None
    return found


def forecast_times_ms(observation: Observation) -> dict[str, float]:
    """Medians of RUNS: each variant, and the accelerations and yaw rates of a history."""
    agents = observation.agents
    assert agents is not None
    rows = np.arange(TIMED_AGENTS) % len(agents)
    lap = (np.arange(TIMED_AGENTS) // len(agents))[:, None]
    poses = agents.poses[rows] + lap * np.array([7.0, 0.0, 0.0])
    many = Agents(poses, agents.velocities_mps[rows], agents.sizes[rows], agents.kinds[rows])
    back_s = AgentHistory.DT_S * np.arange(1 - AgentHistory.STEPS, 1)
    before = np.repeat(poses[:, None], AgentHistory.STEPS, axis=1)
    before[..., :2] += many.velocities_mps[:, None] * back_s[:, None]
    velocities = np.repeat(many.velocities_mps[:, None], AgentHistory.STEPS, axis=1)
    velocities *= (1.0 + 0.1 * back_s)[:, None]
    history = AgentHistory(np.arange(TIMED_AGENTS), before, velocities, np.ones(before.shape[:2], bool))
    moving, road = agent_motion.with_motion(many, history), FrenetFrame.of(observation.route)
    actions: dict[str, Callable[[], object]] = {"history": lambda: agent_motion.with_motion(many, history)}
    for name, made in VARIANTS.items():
        actions[name] = lambda made=made: made(moving, road, DT_S, TIMED_STEPS)  # type: ignore[misc]
    spent: dict[str, list[float]] = {name: [] for name in actions}
    for _ in range(RUNS):
        for name, action in actions.items():
            begun = time.perf_counter()
            action()
            spent[name].append(time.perf_counter() - begun)
    return {name: 1e3 * median(each) for name, each in spent.items()}


def _table(title: str, rows: dict[str, dict[str, dict[str, Any]]]) -> Table:
    lines = []
    for group, counted in rows[BASELINE].items():
        for variant, found in rows.items():
            cells = [
                "-"
                if found[group][f"mean_m_{at:.0f}_s"] is None
                else f"{found[group][f'mean_m_{at:.0f}_s']:.2f} ({found[group][f'p90_m_{at:.0f}_s']:.2f})"
                for at in INSTANTS_S
            ]
            lines.append((group, variant, str(counted["agents"]), *cells))
    headings = ("agents", "forecast", "count", *(f"{at:.0f} s" for at in INSTANTS_S))
    return make_table(headings, lines, title, texts=2)
