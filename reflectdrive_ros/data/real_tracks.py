"""Recorded traffic (`real_tracks`) as scenes for the scorer and observations for planners.

A recording is cut into starts, one every two seconds while five seconds of future are left: the scorer uses 4 s of
driving and 0.9 s beyond. All results are in the ego frame of their start, at the rear axle.

Missing data is filled in as follows (docs/evaluation.md lists the same):

- Rear axle and wheel base. Tracks are of box centres; both are placed as on the default minivan, scaled by length.
- Speed limits. A lane without one gets that of NAVSIM's reference planner (15 m/s) on streets and California's general
  limit (65 mph) on motorways.
- Acceleration, steering and yaw rate at the start are 0: differences of overhead tracks are noise.
- The route. A navigation system knows the streets, not the driver's lane changes: from the lane of the start, with as
  few lane changes as possible, to the road on which the human's drive ends.
- Drivable space is the union of the lanes, each grown by 5 cm, which closes the hairline gaps between adjacent lanes.

A recording without a map (`pandaset_002`) has no drivable space and no route; it is left out, by name.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import shapely

from ..core import geometry
from ..core.agent_motion import with_motion
from ..core.config import VehicleConfig
from ..core.domain import AgentHistory, Agents, Array, EgoState, Observation
from ..core.kinematics import forecast
from ..core.lanes import Lane, LaneSegments, lanes_at, route_line, same_road, shortest_path
from ..infra.documents import (
    DocumentError,
    array,
    check_fields,
    maybe,
    number,
    parse_json,
    read_arrays,
    text,
    whole,
)
from ..infra.errors import UserError
from ..infra.files import shown
from ..scoring import drivable, reference
from ..scoring.areas import MapAreas
from ..scoring.contacts import AgentTracks
from ..scoring.scorer import Scene

NAME = "real_tracks"  # on the command line, of the default folder
STEP_S = 0.1
START_EVERY_STEPS = 20
FUTURE_STEPS = 50
FUTURE_S = STEP_S * FUTURE_STEPS
WAYPOINT_STEPS = 5 * np.arange(1, 9)  # 0.5 .. 4 s

LANE_CENTERLINE, LANE_POLYGON = 1, 8  # codes of ml_type; README of real_tracks
LANE_GAP_M = 0.05
STREET_LIMIT_MPS = 15.0
MOTORWAY_LIMIT_MPS = 29.06
MAX_ABS = 1e8  # m, rad, m/s: no recording has more; the Earth's grids reach 1e7 m


ID, IDS = whole(-(2**63), 2**63 - 1), array(whole(-(2**63), 2**63 - 1))
META = {  # of meta_json
    "site": text(),
    "tags": maybe(array(text())),
    "ego_kind": maybe(text()),
    "lanes": maybe(
        array(
            {
                "id": ID,
                "succ": IDS,
                "pred": IDS,
                "left": maybe(ID),
                "right": maybe(ID),
                "speed_limit": maybe(number(0.0, 1000.0)),
            }
        )
    ),
}


class TracksError(UserError, ValueError):
    """A set or a recording cannot be used; the message names it, the fault and what is expected."""


@dataclass(frozen=True, eq=False)
class Recording:
    """One file of real_tracks: T steps of 0.1 s, A agents, poses of box centres in the frame of the recording."""

    name: str
    family: str  # the site; recordings of one site share roads and drivers' habits, often the very traffic
    motorway: bool
    overhead: bool  # tracks from cameras above the road: positions good, their derivatives noise
    ego_centers: Array  # (T, 3)
    ego_speeds_mps: Array  # (T,)
    ego_size: Array  # (2,) length, width m
    agent_centers: Array  # (A, T, 3), NaN where absent
    agent_velocities_mps: Array  # (A, T, 2), NaN where absent
    agent_sizes: Array  # (A, 2)
    agent_kinds: Array  # (A,) AgentKind
    lanes: Mapping[int, Lane]

    @property
    def steps(self) -> int:
        return len(self.ego_centers)

    @cached_property
    def vehicle(self) -> VehicleConfig:
        """The car that was driven: its own box, axles placed as on the default car."""
        usual = VehicleConfig()
        length, width = (float(side) for side in self.ego_size)
        scale = length / usual.length_m
        return replace(
            usual,
            length_m=length,
            width_m=width,
            wheel_base_m=scale * usual.wheel_base_m,
            rear_axle_to_center_m=scale * usual.rear_axle_to_center_m,
        )

    @cached_property
    def ego_poses(self) -> Array:
        """(T, 3) rear-axle poses in the frame of the recording."""
        return geometry.compose(self.ego_centers, np.array([-self.vehicle.rear_axle_to_center_m, 0.0, 0.0]))

    @cached_property
    def lane_segments(self) -> LaneSegments:
        """Of `lanes`, in the frame of the recording."""
        return LaneSegments.of(self.lanes)

    @cached_property
    def drivable_polygons(self) -> tuple[Any, ...]:
        grown = (
            part.buffer(LANE_GAP_M, join_style="mitre", mitre_limit=2.0)
            for lane in self.lanes.values()
            for part in lane.polygons
        )
        return tuple(grown)

    @cached_property
    def drivable_space(self) -> Any:
        return drivable.union_polygons(self.drivable_polygons, f"{self.name}: lane polygons")


def default_folder() -> Path:
    """The folder of all recordings if it is beside the checkout, else the recordings in the source tree."""
    checkout = Path(__file__).resolve().parents[2]
    places = (checkout.parent / "shared" / "data" / NAME, checkout / "test" / "data" / NAME)
    for place in places:
        if place.is_dir():
            return place
    raise TracksError("no recordings beside the package; give their folder with --scenes DIR or real_tracks:DIR")


def recordings_in(folder: Path) -> list[Path]:
    """The files of a set, by name. Raises TracksError for a missing or empty folder."""
    if not os.path.isdir(folder):  # False also for names for which Path.is_dir raises
        raise TracksError(f"{shown(folder)} is not a folder; expected one with recordings of real_tracks (*.npz)")
    paths = sorted(folder.glob("*.npz"))
    if not paths:
        raise TracksError(f"{folder} holds no recordings; expected files of real_tracks (*.npz)")
    return paths


def load(path: Path) -> Recording:
    """One recording. Raises TracksError naming the file and the fault."""
    try:
        arrays = read_arrays(path)
    except OSError as fault:
        raise TracksError(f"{shown(path)} cannot be read as a recording of real_tracks: {fault.strerror}") from None
    except DocumentError as fault:
        raise TracksError(f"{path} cannot be read as a recording of real_tracks: it {fault}") from None
    try:
        meta = parse_json(str(arrays["meta_json"]))
        check_fields(meta, META)
        _check_shapes(arrays)
        return _recording(path.stem, meta, arrays)
    except DocumentError as fault:
        raise TracksError(f"{path}: meta_json {fault}") from None
    except KeyError as fault:
        raise TracksError(f"{path} has no field {fault}; expected the schema of real_tracks/README.md") from None
    except (ValueError, TypeError, LookupError, ArithmeticError, shapely.errors.GEOSException) as fault:
        raise TracksError(f"{path}: {fault}") from None


def _check_shapes(arrays: Mapping[str, Array]) -> None:
    """Raises ValueError naming the array whose shape or dtype is not that of the schema."""
    steps, agents = len(arrays["t"]), len(arrays["ag_type"])
    lines, points = len(arrays["ml_type"]), len(arrays["ml_xy"])
    for name, shape in {
        "t": (steps,),
        "ego_xy": (steps, 2),
        "ego_yaw": (steps,),
        "ego_speed": (steps,),
        "ego_valid": (steps,),
        "ego_lwh": (3,),
        "ag_type": (agents,),
        "ag_lwh": (agents, 3),
        "ag_xy": (agents, steps, 2),
        "ag_yaw": (agents, steps),
        "ag_vel": (agents, steps, 2),
        "ag_valid": (agents, steps),
        "ml_xy": (points, 2),
        "ml_start": (lines + 1,),
        "ml_type": (lines,),
        "ml_lane": (lines,),
    }.items():
        if arrays[name].shape != shape or arrays[name].dtype.kind not in "biuf":
            raise ValueError(f"{name} is {arrays[name].dtype} {arrays[name].shape}, expected numbers {shape}")


def _recording(name: str, meta: Mapping[str, Any], arrays: Mapping[str, Array]) -> Recording:
    ego_centers = np.column_stack([arrays["ego_xy"], arrays["ego_yaw"]]).astype(float)
    if not arrays["ego_valid"].all():
        raise ValueError("ego_valid has steps that are not valid: cut the recording to those that are")
    for field in ("ego_xy", "ego_yaw", "ego_speed", "ego_lwh"):
        _check_numbers(field, arrays[field])
    _check_numbers("ag_lwh", arrays["ag_lwh"][:, :2])
    for field in ("ag_type", "ml_type", "ml_lane", "ml_start"):  # codes and ids of any size
        _check_numbers(field, arrays[field], float(np.finfo(float).max))
    if not np.allclose(np.diff(arrays["t"]), STEP_S, atol=1e-3):
        raise ValueError(f"t does not advance by {STEP_S} s from step to step")
    if not ((arrays["ego_lwh"] > 0).all() and (arrays["ag_lwh"][:, :2] > 0).all()):
        raise ValueError("ego_lwh or ag_lwh holds a length or width that is not positive")
    seen = arrays["ag_valid"].astype(bool)
    agent_centers = np.concatenate([arrays["ag_xy"], arrays["ag_yaw"][..., None]], axis=-1).astype(float)
    agent_velocities = arrays["ag_vel"].astype(float)
    for field in ("ag_xy", "ag_yaw", "ag_vel"):
        _check_numbers(f"{field} at steps marked valid", arrays[field][seen])
    return Recording(
        name=name,
        family=str(meta["site"]),
        motorway="highway" in (meta.get("tags") or ()) or "US101" in str(meta["site"]),
        overhead="overhead" in str(meta.get("ego_kind", "")),
        ego_centers=ego_centers,
        ego_speeds_mps=arrays["ego_speed"].astype(float),
        ego_size=arrays["ego_lwh"][:2].astype(float),
        agent_centers=np.where(seen[..., None], agent_centers, np.nan),
        agent_velocities_mps=np.where(seen[..., None], agent_velocities, np.nan),
        agent_sizes=arrays["ag_lwh"][:, :2].astype(float),
        agent_kinds=arrays["ag_type"].astype(np.int64),  # the same numbers as AgentKind
        lanes=_lanes(meta, arrays),
    )


def _check_numbers(name: str, values: Array, most: float = MAX_ABS) -> None:
    """Raises ValueError naming the array if a number is not finite or not of a recording."""
    if not (np.abs(values) <= most).all():
        raise ValueError(f"{name} holds NaN or a number above {most:.0e}: correct it or leave the file out")


def _lanes(meta: Mapping[str, Any], arrays: Mapping[str, Array]) -> dict[int, Lane]:
    drawn: dict[tuple[int, int], Array] = {}
    for index, (kind, lane) in enumerate(zip(arrays["ml_type"], arrays["ml_lane"], strict=True)):
        drawn[int(kind), int(lane)] = arrays["ml_xy"][arrays["ml_start"][index] : arrays["ml_start"][index + 1]]
    known = {
        entry["id"]: entry
        for entry in meta.get("lanes") or ()
        if len(drawn.get((LANE_CENTERLINE, entry["id"]), ())) >= 2
        and len(drawn.get((LANE_POLYGON, entry["id"]), ())) >= 3
    }
    lanes = {}
    for key, entry in known.items():
        for kind, part in ((LANE_CENTERLINE, "centerline"), (LANE_POLYGON, "polygon")):
            _check_numbers(f"ml_xy of the {part} of lane {key}", drawn[kind, key])
        # Some rings of the source cross themselves where two lanes merge: they are split, nothing is dropped.
        healed = shapely.make_valid(shapely.Polygon(drawn[LANE_POLYGON, key].astype(float)))
        parts = (part for part in shapely.get_parts(healed) if isinstance(part, shapely.Polygon) and part.area > 0)
        lanes[key] = Lane(
            centerline=geometry.distinct_points(drawn[LANE_CENTERLINE, key].astype(float), closer_than=1e-3),
            polygons=tuple(parts),
            successors=tuple(other for other in entry["succ"] if other in known),
            predecessors=tuple(other for other in entry["pred"] if other in known),
            adjacent=tuple(other for other in (entry.get("left"), entry.get("right")) if other in known),
            speed_limit_mps=entry.get("speed_limit"),
        )
    return lanes


# --- observation and scored scene ------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Start:
    """One moment of a recording, in the ego frame of that moment."""

    name: str
    family: str
    overhead: bool
    vehicle: VehicleConfig
    observation: Observation  # the planner's input
    scene: Scene  # the recorded future, with the reference planner's progress
    human: Array  # (8, 3) rear-axle poses that the recorded driver reached at 0.5 .. 4 s


def start_steps(recording: Recording) -> range:
    """Every two seconds while enough future is left."""
    return range(0, recording.steps - FUTURE_STEPS, START_EVERY_STEPS)


def starts(recording: Recording, vectors: bool = False) -> Iterator[Start]:
    """The starts of a recording; with `vectors` their observations have lanes and history. One is passed over where the
    recorded car itself stands off the mapped road: every plan from there scores 0. Raises TracksError for a recording
    without a map."""
    if not recording.lanes:
        raise TracksError(f"{recording.name} has no map: no drivable space and no route to score by")
    for step in start_steps(recording):
        corners = geometry.box_corners(recording.ego_centers[step], recording.ego_size)
        if drivable.contains(recording.drivable_space, corners).all():
            yield start_at(recording, step, vectors)


def start_at(recording: Recording, step: int, vectors: bool = False) -> Start:
    """The start at a step with FUTURE_STEPS after it. Recordings have no lights and no stop lines."""
    observation, lanes = observation_at(recording, step, vectors)
    ego, agents, map_from_ego = observation.ego, observation.agents, recording.ego_poses[step]
    assert agents is not None
    ego_from_map = geometry.invert(map_from_ego)
    centerline, limit = observation.route[:, :2], observation.speed_limit_mps
    polygons = [_transform(ego_from_map, polygon) for polygon in recording.drivable_polygons]
    space = drivable.grid_around_ego(drivable.union_polygons(polygons, "Observation.drivable"))
    observation = replace(observation, drivable=space)
    on_route = same_road(recording.lanes, lanes)
    drawn = [(key, part) for key, lane in recording.lanes.items() for part in lane.polygons]
    predicted = Scene(
        motion=ego.motion,
        agents=AgentTracks.of_forecast(forecast(agents, STEP_S, FUTURE_STEPS), agents.kinds),
        centerline=centerline,
        areas=MapAreas(
            lanes=tuple(_ring(_transform(ego_from_map, part)) for _, part in drawn),
            lane_on_route=tuple(key in on_route for key, _ in drawn),
            roadblocks=tuple(_ring(polygon) for polygon in polygons),
        ),
        vehicle=recording.vehicle,
    )
    recorded = replace(predicted, agents=_logged_agents(recording, step, ego_from_map))
    plan = reference.reference_plan(predicted, limit)
    return Start(
        name=f"{recording.name}@{step * STEP_S:.1f}s",
        family=recording.family,
        overhead=recording.overhead,
        vehicle=recording.vehicle,
        observation=observation,
        scene=replace(recorded, reference=reference.reference_of_plan(recorded, plan)),
        human=geometry.compose(ego_from_map, recording.ego_poses[step + WAYPOINT_STEPS]),
    )


def observation_at(recording: Recording, step: int, vectors: bool = False) -> tuple[Observation, list[int]]:
    """What is observed at a step, without drivable space, and the lanes of the route. Raises TracksError when the ego
    is on no lane."""
    map_from_ego = recording.ego_poses[step]
    ego_from_map = geometry.invert(map_from_ego)
    lanes, line = route(recording, step)
    limit = recording.lanes[lanes[0]].speed_limit_mps
    limit = limit or (MOTORWAY_LIMIT_MPS if recording.motorway else STREET_LIMIT_MPS)
    centerline = geometry.transform_points(ego_from_map, line)
    seen = np.isfinite(recording.agent_centers[:, step, 0])
    agents = Agents(
        poses=geometry.compose(ego_from_map, recording.agent_centers[seen, step]),
        velocities_mps=geometry.rotate(recording.agent_velocities_mps[seen, step], -map_from_ego[2]),
        sizes=recording.agent_sizes[seen],
        kinds=recording.agent_kinds[seen],
    )
    history = _history(recording, step, seen, ego_from_map)
    stamp_ns = step * round(STEP_S * 1e9)
    observation = Observation(
        stamp_ns=stamp_ns,
        ego=EgoState(stamp_ns, map_from_ego, float(recording.ego_speeds_mps[step])),
        route=np.column_stack([centerline, geometry.headings_along(centerline)]),
        speed_limit_mps=limit,
        agents=with_motion(agents, history),
    )
    if vectors:
        on_route = same_road(recording.lanes, lanes)
        observation = replace(
            observation,
            lanes=recording.lane_segments.near(map_from_ego),
            route_lanes=recording.lane_segments.along(observation.route, on_route, map_from_ego),
            history=history,
        )
    return observation, lanes


def _history(recording: Recording, step: int, seen: Array, ego_from_map: Array) -> AgentHistory:
    """History of the agents (A,) bool that are seen at a step; an agent's id is its row in the recording."""
    rows, first = np.flatnonzero(seen), step + 1 - AgentHistory.STEPS
    before = max(-first, 0)  # instants before the recording began
    until = slice(max(first, 0), step + 1)
    poses = geometry.compose(ego_from_map, recording.agent_centers[rows, until])
    velocities = geometry.rotate(recording.agent_velocities_mps[rows, until], ego_from_map[2])
    valid = np.isfinite(np.concatenate([poses, velocities], axis=2)).all(axis=2)
    pad, known = ((0, 0), (before, 0)), np.asarray(valid)[..., None]
    return AgentHistory(
        rows,
        np.pad(np.where(known, poses, 0.0), (*pad, (0, 0))),
        np.pad(np.where(known, velocities, 0.0), (*pad, (0, 0))),
        np.pad(valid, pad),
    )


def _logged_agents(recording: Recording, step: int, ego_from_map: Array) -> AgentTracks:
    poses = geometry.compose(ego_from_map, recording.agent_centers[:, step : step + FUTURE_STEPS + 1])
    velocities = recording.agent_velocities_mps[:, step : step + FUTURE_STEPS + 1]
    present = np.isfinite(poses[..., 0])
    ever = present.any(axis=1)
    return AgentTracks(
        poses=np.where(present[ever, :, None], poses[ever], 0.0),
        present=present[ever],
        speeds_mps=np.where(present[ever], np.hypot(velocities[ever, :, 0], velocities[ever, :, 1]), 0.0),
        sizes=recording.agent_sizes[ever],
        kinds=recording.agent_kinds[ever],
    )


def _transform(a_from_b: Array, polygon: Any) -> Any:
    return shapely.transform(polygon, lambda points: geometry.transform_points(a_from_b, points))


def _ring(polygon: Any) -> Array:
    if len(polygon.interiors):
        raise TracksError("a lane polygon has a hole, expected none")
    return geometry.outer_ring(polygon)


# --- the route -------------------------------------------------------------------------------------------------------


def route(recording: Recording, step: int) -> tuple[list[int], Array]:
    """Lanes from the ego's place at `step`, and the line (L, 2) along them, both in the frame of the recording.

    The line starts ROUTE_BEHIND_M behind the ego and is extended straight where the map ends. Raises TracksError when
    the ego is on no lane.
    """
    starts = lanes_at(recording.lanes, recording.ego_centers[step])
    if not starts:
        raise TracksError(f"{recording.name}: at {step * STEP_S:.0f} s the ego is on no lane")
    ends = same_road(recording.lanes, lanes_at(recording.lanes, recording.ego_centers[-1]))
    driven = recording.ego_centers[step:, :2]

    def strays(lanes: list[int]) -> float:  # how far the human drove from the line, m
        return float(np.abs(geometry.project(route_line(recording.lanes, lanes, driven[0]), driven)[1]).mean())

    found = [path for path in (shortest_path(recording.lanes, start, ends) for start in starts) if path]
    # Lanes overlap where roads cross or fork: among paths of equal cost, the human's is chosen.
    lanes = min(found or [[start] for start in starts], key=strays)
    return lanes, route_line(recording.lanes, lanes, driven[0])
