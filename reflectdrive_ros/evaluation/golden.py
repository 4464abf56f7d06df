"""Scenes with official NAVSIM scores: reads them and scores them by the official rules.

A file of scenes has one JSON object per line (optionally gzipped), described in `test/data/golden/SCHEMA.md`. File
coordinates are global; parsed scenes are in the ego frame of each scene.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ..core import geometry
from ..core.config import ScoringConfig, VehicleConfig
from ..core.domain import AgentKind, Array
from ..core.tokens import Codebook, poses_from_points
from ..infra.documents import (
    DocumentError,
    array,
    check_fields,
    choice,
    fixed,
    maybe,
    number,
    numbers,
    parse_json,
    text,
    whole,
)
from ..infra.errors import UserError
from ..infra.files import MEGABYTE, open_limited, shown
from ..scoring import metrics
from ..scoring.areas import MapAreas, RedLights
from ..scoring.contacts import SAMPLES, AgentTracks
from ..scoring.scorer import FAR, Reference, Scene, ScoreCard, human_filter, score, total
from ..scoring.simulate import (
    AX,
    DT_S,
    STATE_SIZE,
    STEERING,
    STEERING_RATE,
    STEPS,
    VX,
    YAW_ACCELERATION,
    YAW_RATE,
    simulate,
)

VEHICLE = VehicleConfig(max_steering_rad=np.pi / 3)  # nuPlan's Pacifica
KINDS = {"vehicle": AgentKind.VEHICLE, "pedestrian": AgentKind.PEDESTRIAN, "bicycle": AgentKind.BICYCLE}
STATIC_TYPES = ("traffic_cone", "barrier", "czone_sign", "generic_object")
FRAME_STEPS = 5  # 10 Hz samples between two annotated frames
NOW, BEFORE = 3, 2  # indices into ego_frames
FRAMES_V1, FRAMES_V2 = 11, 9  # annotated frames used by each version: 5 s and 4 s
MAX_SPAN_US = 60_000_000  # from the first frame to the last; ours span 6.5 s
SCENES_BYTES = 4096 * MEGABYTE  # of a file of scenes, unpacked; a million trajectories have 2 GB
LINE_BYTES = 64 * MEGABYTE  # of one scene; ours have 0.1 MB

MAP_MAX = 1e8  # m, in global coordinates; those of the Earth's grids reach 1e7
ID, SHARE = text(), number(0.0, 1.0)
COORDINATE, STATE = number(-MAP_MAX, MAP_MAX), number(-FAR, FAR)
SHAPE = {"id": ID, "xy": numbers(None, 2, MAP_MAX)}
PLAN = numbers(8, 3, FAR)
REFERENCE = {"progress_raw": STATE, **dict.fromkeys(("NC", "DAC", "TLC", "DDC"), maybe(SHARE))}
FIELDS = {  # of a scene, as described in SCHEMA.md
    "scene_id": text(),
    "kind": text(),
    "frame_time_us": array(whole(-(2**62), 2**62), NOW + 1, 1000),
    "ego": {
        **dict.fromkeys(("x", "y"), COORDINATE),
        **dict.fromkeys(("heading", "vx", "vy", "ax", "ay"), STATE),
        "steering": maybe(STATE),
    },
    "ego_frames": numbers(None, 7, MAP_MAX),
    "candidates": array({"kind": text(), "poses": PLAN, "prev": maybe(PLAN)}, 1),
    "human_poses": PLAN,
    "centerline": numbers(None, 3, MAP_MAX),
    "map": {
        "lanes": array({**SHAPE, "roadblock": ID}),
        **dict.fromkeys(("roadblocks", "intersections", "carparks"), array(SHAPE)),
    },
    "drivable_area_map": array(fixed(ID, text())),
    "route_lane_ids": array(ID),
    "route_roadblock_ids": array(ID),
    "red_lights": array(array(ID)),
    "tracks": array(
        {
            "type": choice(*KINDS, *STATIC_TYPES),
            "length": number(0.0, 1000.0),
            "width": number(0.0, 1000.0),
            "states": array(array(COORDINATE, 6, 6)),
        }
    ),
    "pdm_ref_v1": REFERENCE,
    "pdm_ref_v2": REFERENCE,
}


class GoldenError(UserError, ValueError):
    """A file of scenes cannot be used; the message names the line and the reason."""


@dataclass(frozen=True, eq=False)
class GoldenScene:
    """One scene in the form of both official versions, with the trajectories to score."""

    scene_id: str
    kind: str
    map_from_ego: Array  # (3,)
    first: Scene  # v1.1
    second: Scene  # v2
    candidates: Array  # (N, 8, 3) at 0.5 .. 4 s, ego frame
    candidate_kinds: tuple[str, ...]
    human: Array  # (8, 3) the human's trajectory, for v2's filter
    previous: tuple[Array | None, ...]  # N plans (8, 3) made 0.5 s earlier, in the ego frame of that time
    previous_motion: Array  # (8,) at the time of the previous plan
    previous_start_us: int


def read_lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """The JSON objects of a file with their line numbers. Raises GoldenError for what is not a file of such objects."""
    count = 0
    try:
        with open_limited(path, SCENES_BYTES) as file:
            packed = file.read(2) == b"\x1f\x8b"
            file.seek(0)
            stream = gzip.GzipFile(fileobj=file) if packed else file
            while line := stream.readline(LINE_BYTES + 1):
                count += 1
                if len(line) > LINE_BYTES:
                    raise GoldenError(f"{path}, line {count}: longer than {LINE_BYTES} bytes")
                if line.strip():
                    entry = parse_json(line)
                    if not isinstance(entry, dict):
                        raise GoldenError(f"{path}, line {count}: expected a JSON object, found {type(entry).__name__}")
                    yield count, entry
    except DocumentError as fault:
        raise GoldenError(f"{path}, line {count} {fault}") from None
    except (OSError, EOFError, zlib.error) as fault:
        reason = fault.strerror if isinstance(fault, OSError) and fault.strerror else str(fault)
        raise GoldenError(f"{shown(path)} cannot be read: {reason}") from None


def read_scenes(path: Path) -> Iterator[GoldenScene]:
    """The scenes of a file, one at a time. Raises GoldenError naming the file, the line and the field."""
    for count, entry in read_lines(path):
        try:
            yield parse_scene(entry)
        except DocumentError as fault:
            raise GoldenError(f"{path}, line {count} {fault}") from None
        except ValueError as fault:
            raise GoldenError(f"{path}, line {count}: {fault}") from None


def parse_scene(entry: Mapping[str, Any]) -> GoldenScene:
    """The scene of one JSON object. Raises ValueError (DocumentError where a field is missing or of a wrong type)."""
    check_fields(entry, FIELDS)
    stamps = np.asarray(entry["frame_time_us"], np.int64)
    if (np.diff(stamps) <= 0).any():
        raise ValueError("frame_time_us does not rise from frame to frame")
    if stamps[-1] - stamps[0] > MAX_SPAN_US:
        raise ValueError(f"frame_time_us spans {(stamps[-1] - stamps[0]) / 1e6:.0f} s, expected at most 60 s")
    ego = entry["ego"]
    map_from_ego = np.array([ego["x"], ego["y"], ego["heading"]], float)
    ego_from_map = geometry.invert(map_from_ego)
    frames = np.asarray(entry["ego_frames"], float)
    if len(frames) != len(stamps):
        raise ValueError(f"ego_frames has {len(frames)} rows, expected {len(stamps)} as frame_time_us")

    previous = [candidate.get("prev") for candidate in entry["candidates"]]
    common = Scene(
        motion=np.array([ego["vx"], ego["vy"], ego["ax"], ego["ay"], ego.get("steering") or 0.0, 0, 0, 0], float),
        agents=AgentTracks.none(),
        centerline=geometry.transform_points(ego_from_map, np.asarray(entry["centerline"], float)[:, :2]),
        areas=_areas(entry, ego_from_map),
        vehicle=VEHICLE,
        start_us=int(stamps[NOW]),
    )
    second_agents = _agents(entry, ego_from_map, FRAMES_V2)
    return GoldenScene(
        scene_id=entry["scene_id"],
        kind=entry["kind"],
        map_from_ego=map_from_ego,
        first=replace(
            common, agents=_agents(entry, ego_from_map, FRAMES_V1), reference=_reference(entry["pdm_ref_v1"])
        ),
        second=replace(
            common,
            agents=_drop_agents_touching_ego(second_agents),
            reference=_reference(entry["pdm_ref_v2"]),
            red_lights=_red_lights(entry, ego_from_map),
            history=_history(frames[: NOW + 1], stamps[: NOW + 1], ego_from_map),
        ),
        candidates=np.array([candidate["poses"] for candidate in entry["candidates"]], float),
        candidate_kinds=tuple(candidate["kind"] for candidate in entry["candidates"]),
        human=np.array(entry["human_poses"], float),
        previous=tuple(None if plan is None else np.array(plan, float) for plan in previous),
        previous_motion=np.concatenate([frames[BEFORE, 3:], np.zeros(4)]),
        previous_start_us=int(stamps[BEFORE]),
    )


def _reference(entry: Mapping[str, Any]) -> Reference:
    shares = [entry.get(name) for name in ("NC", "DAC", "TLC", "DDC")]
    return Reference(entry["progress_raw"], float(np.prod([1.0 if share is None else share for share in shares])))


def _rings(shapes: list[Mapping[str, Any]], ego_from_map: Array) -> tuple[Array, ...]:
    return tuple(geometry.transform_points(ego_from_map, np.asarray(shape["xy"], float)) for shape in shapes)


def _areas(entry: Mapping[str, Any], ego_from_map: Array) -> MapAreas:
    """The polygons of the official drivable map, which leaves out roadblock connectors."""
    shapes = {
        shape["id"]: shape
        for layer in ("lanes", "roadblocks", "intersections", "carparks")
        for shape in entry["map"][layer]
    }
    layers: dict[str, list[Mapping[str, Any]]] = {}
    for index, (name, layer) in enumerate(entry["drivable_area_map"]):
        if name not in shapes:
            raise DocumentError(f"has drivable_area_map[{index}] = {name!r:.60}, which no polygon of map has as id")
        layers.setdefault(layer, []).append(shapes[name])
    lanes = layers.get("LANE", []) + layers.get("LANE_CONNECTOR", [])
    on_route = set(entry["route_lane_ids"])
    return MapAreas(
        lanes=_rings(lanes, ego_from_map),
        lane_on_route=tuple(lane["id"] in on_route for lane in lanes),
        roadblocks=_rings(layers.get("ROADBLOCK", []), ego_from_map),
        intersections=_rings(layers.get("INTERSECTION", []), ego_from_map),
        carparks=_rings(layers.get("CARPARK_AREA", []), ego_from_map),
    )


def _red_lights(entry: Mapping[str, Any], ego_from_map: Array) -> RedLights:
    """Red connectors of the route (as given, not corrected); a state at 2 Hz is held for half a second (section 7)."""
    if 0 < len(entry["red_lights"]) <= STEPS // FRAME_STEPS:
        raise DocumentError(f"has {len(entry['red_lights'])} entries in red_lights, expected 0, or 9 or more")
    on_route = set(entry["route_roadblock_ids"])
    frame = np.arange(STEPS + 1) // FRAME_STEPS
    rings: list[Array] = []
    red: list[list[bool]] = []
    for lane in entry["map"]["lanes"]:
        if lane["roadblock"] in on_route and any(lane["id"] in names for names in entry["red_lights"]):
            rings += _rings([lane], ego_from_map)
            red.append([lane["id"] in entry["red_lights"][k] for k in frame])
    return RedLights(tuple(rings), np.array(red, bool).reshape(len(rings), STEPS + 1))


def _agents(entry: Mapping[str, Any], ego_from_map: Array, frames: int) -> AgentTracks:
    """Tracks at 10 Hz, linear between annotated frames; an agent in one frame only is static throughout (section 2)."""
    count, times = len(entry["tracks"]), np.arange(SAMPLES) / FRAME_STEPS
    poses, present = np.zeros((count, SAMPLES, 3)), np.zeros((count, SAMPLES), bool)
    speeds, sizes, kinds = np.zeros((count, SAMPLES)), np.ones((count, 2)), np.zeros(count, np.int64)
    for i, track in enumerate(entry["tracks"]):
        kinds[i] = KINDS.get(track["type"], AgentKind.STATIC)
        sizes[i] = track["length"], track["width"]
        states = np.asarray(track["states"], float).reshape(-1, 6)
        if (np.diff(states[:, 0]) <= 0).any():
            raise ValueError(f"tracks[{i}].states does not rise in k")
        states = states[states[:, 0] < frames]
        if len(states) == 0:
            continue
        frame = states[:, 0]
        states[:, 3] = np.unwrap(states[:, 3])
        at = np.stack([np.interp(times, frame, column) for column in states[:, 1:].T], axis=-1)  # (51, 5)
        poses[i] = geometry.compose(ego_from_map, at[:, :3])
        speeds[i] = np.hypot(at[:, 3], at[:, 4])
        present[i] = (times >= frame[0]) & (times <= frame[-1]) if len(states) > 1 else True
        present[i, (frames - 1) * FRAME_STEPS + 1 :] = False
    return AgentTracks(poses, present, speeds, sizes, kinds)


def _drop_agents_touching_ego(agents: AgentTracks) -> AgentTracks:
    """Without agents that overlap the ego at t = 0, as in the log replay of v2 (section 2)."""
    ego = np.array([VEHICLE.rear_axle_to_center_m, 0.0, 0.0])
    touching = geometry.boxes_overlap(
        ego, np.array([VEHICLE.length_m, VEHICLE.width_m]), agents.poses[:, 0], agents.sizes
    )
    keep = ~(touching & agents.present[:, 0])
    fields = ("poses", "present", "speeds_mps", "sizes", "kinds")
    return AgentTracks(*(getattr(agents, name)[keep] for name in fields))


def _history(frames: Array, stamps: Array, ego_from_map: Array) -> Array:
    """(H, 11) states before now: every 0.1 s from the oldest frame, without the last of them (section 10)."""
    times = np.arange(stamps[0], stamps[-1], round(DT_S * 1e6))[:-1]
    values = frames.copy()
    values[:, 2] = np.unwrap(values[:, 2])
    at = np.stack([np.interp(times, stamps, column) for column in values.T], axis=-1)
    states = np.zeros((len(times), STATE_SIZE))
    states[:, :VX] = geometry.compose(ego_from_map, at[:, :3])
    states[:, VX : VX + 4] = at[:, 3:]
    return states


# --- scoring as the official scripts do -------------------------------------------------------------------------------

SCORING_V1, SCORING_V2 = ScoringConfig(form="pdms"), ScoringConfig(form="epdms")


@dataclass(frozen=True, eq=False)
class OfficialScores:
    """Scores of a scene's candidates by the official scripts of both versions."""

    first: ScoreCard  # v1.1
    raw: ScoreCard  # v2 without the human filter
    filtered: ScoreCard  # v2 with it
    ec: tuple[float | None, ...]  # extended comfort; None without a previous plan


def score_official(golden: GoldenScene) -> OfficialScores:
    """PDMS of v1.1 and EPDMS of v2 of every candidate, with the deviations of the official code."""
    first = score(golden.first, golden.candidates, SCORING_V1, official=True)
    raw = score(golden.second, golden.candidates, SCORING_V2, official=True)
    alone = replace(golden.second, reference=None, history=None)
    human = score(alone, golden.human[None], SCORING_V2, official=True)
    human = replace(human, comfort=np.ones(1))  # without history, the official comfort is 1
    filtered, ec = human_filter(raw, human, SCORING_V2), extended_comfort(golden, raw.states)
    return OfficialScores(first, raw, filtered, ec)


def extended_comfort(golden: GoldenScene, states: Array) -> tuple[float | None, ...]:
    """EC of candidates with states (N, 41, 11) against the plans made 0.5 s earlier; None where there is none."""
    planned = [i for i, plan in enumerate(golden.previous) if plan is not None]
    values: list[float | None] = [None] * len(golden.previous)
    if planned:
        plans = np.stack([plan for plan in golden.previous if plan is not None])
        before = simulate(plans, golden.previous_motion, VEHICLE, golden.previous_start_us)
        for i, value in zip(planned, metrics.extended_comfort(states[planned], before), strict=True):
            values[i] = float(value)
    return tuple(values)


def score_rows(golden: GoldenScene, scores: OfficialScores, *, states: bool = False) -> Iterator[dict[str, Any]]:
    """One JSON object per candidate with the keys of `scores.jsonl`; `states` adds the simulated states."""
    ec = np.array([1.0 if value is None else value for value in scores.ec])
    with_ec = {
        name: total(replace(card, ec=ec), SCORING_V2) for name, card in (("raw", scores.raw), ("filt", scores.filtered))
    }
    for i, name in enumerate(golden.candidate_kinds):
        first, raw = scores.first, scores.raw
        epdms = {"EPDMS_raw_noEC": float(raw.score[i]), "EPDMS_filt_noEC": float(scores.filtered.score[i])}
        if scores.ec[i] is not None:
            epdms |= {f"EPDMS_{form}_EC": float(values[i]) for form, values in with_ec.items()}
        row: dict[str, Any] = {
            "scene_id": golden.scene_id,
            "traj": i,
            "kind": name,
            "v1": _values(first, i, {"NC": "nc", "DAC": "dac", "EP": "ep", "TTC": "ttc", "C": "comfort", "DDC": "ddc"})
            | {"PDMS": float(first.score[i])},
            "v2_raw": _values(raw, i, V2_COLUMNS) | {"pdm_score": float(raw.score[i])},
            "v2": _values(scores.filtered, i, V2_COLUMNS) | {"pdm_score": float(raw.score[i])},  # stale, officially
            "EC": scores.ec[i],
            "epdms": epdms,
        }
        if states:
            row["sim"] = simulated_states(golden, raw.states[i]).round(7).tolist()
        yield row


V2_COLUMNS = {
    "NC": "nc",
    "DAC": "dac",
    "DDC": "ddc",
    "TLC": "tlc",
    "EP": "ep",
    "TTC": "ttc",
    "LK": "lk",
    "HC": "comfort",
    "mult": "multiplier",
}


def _values(card: ScoreCard, i: int, columns: Mapping[str, str]) -> dict[str, float]:
    return {column: float(getattr(card, name)[i]) for column, name in columns.items()}


SIMULATED = (VX, AX, STEERING, STEERING_RATE, YAW_RATE, YAW_ACCELERATION)


def simulated_states(golden: GoldenScene, states: Array) -> Array:
    """(.., 40, 9) x, y, heading in the global frame, vx, ax, steering, steering rate, yaw rate, yaw acceleration."""
    poses = geometry.compose(golden.map_from_ego, states[..., 1:, :VX])
    return np.concatenate([poses, states[..., 1:, SIMULATED]], axis=-1)


def state_error(mine: Array, official: Array) -> float:
    """The largest difference between simulated states (.., 9) of `simulated_states`; headings are wrapped."""
    difference = np.abs(mine - official)
    difference[..., 2] = np.abs(geometry.wrap(mine[..., 2] - official[..., 2]))
    return float(difference.max())


# --- the codebook's ceiling -------------------------------------------------------------------------------------------

EXPERTS = ("human", "pdm_reference")


def codebook_ceiling(scenes: Iterable[GoldenScene], book: Codebook) -> dict[str, dict[str, float]]:
    """The effect of rounding experts to a codebook: mean official PDMS and EPDMS (no filter, no EC), in percent.

    By form ("pdms", "epdms"): `exact`, the human's and the reference's trajectories as they are; `rounded`, their
    points rounded and headings found by `tokens.poses_from_points`; `steps`, the same with the direction of each step
    as its heading.
    """
    means: dict[str, list[Array]] = {SCORING_V1.form: [], SCORING_V2.form: []}
    for golden in scenes:
        experts = golden.candidates[[kind in EXPERTS for kind in golden.candidate_kinds]]
        if len(experts) == 0:
            continue
        points = book.decode(book.encode(experts[..., :2]))
        step = np.diff(points, axis=1, prepend=0.0)
        steps = np.concatenate([points, np.arctan2(step[..., 1:], step[..., :1])], axis=-1)
        plans = np.concatenate([experts, poses_from_points(points), steps])
        for scene, config in ((golden.first, SCORING_V1), (golden.second, SCORING_V2)):
            means[config.form].append(score(scene, plans, config, official=True).score.reshape(3, -1))
    names = ("exact", "rounded", "steps")
    return {
        form: {
            name: 100 * float(np.concatenate([score_rows[i] for score_rows in batches]).mean())
            for i, name in enumerate(names)
        }
        for form, batches in means.items()
        if batches
    }
