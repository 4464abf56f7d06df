"""Builds a scene from one step of recorded traffic and one of its cars as the ego; the expert's plan is added later.

The ego's state differs from the log: the car is wider, has a small offset from the lane's centre, a small heading
error and a slightly different speed, and its last two seconds are consistent with that. A displaced ego has a large
offset and heading error: a planner in closed loop gets there by its own errors, and has to learn to return.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ...core import geometry, kinematics
from ...core.config import VehicleConfig
from ...core.domain import Array, Command, EgoState
from ...data.scene import FUTURE_STEPS, HISTORY_STEPS, NOW, DrivingScene, Tracks
from ...maps.roads import RoadError
from ...scoring import areas as areas_of_map
from ...scoring.areas import MapAreas
from ...scoring.scorer import Reference, Scene
from ...scoring.simulate import STEPS
from .. import instructions, local_map
from ..network import routing, towns
from ..traffic import scripted_actors
from ..traffic.actors import Lamp
from ..traffic.scripted_actors import ScriptedActor
from ..traffic.traffic_log import TrafficLog

STEP_NS = 100_000_000
OFFSET_M, HEADING_RAD, SPEED_SHARE = 0.22, 0.025, 0.06  # standard deviations from the log
DISPLACED_OFFSET_M, DISPLACED_HEADING_RAD = 0.8, 0.2  # of a displaced ego
MAX_OFFSET_M, MAX_HEADING_RAD = 2.0, 0.6  # largest of a displaced ego
SLOWED = 0.2, 1.1  # its speed, as a share of the recorded car's: a displaced car is slow
ACTOR_RANGE_M = 90.0  # agents that never come closer are left out
MAX_ACTORS = 64
MIN_ROUTE_EDGES = 4  # a route that ends sooner is extended
MIN_ROUTE_AHEAD_M = 60.0  # of route that a scene needs at least
TAG_COMMANDS = {"turn_left": Command.LEFT, "turn_right": Command.RIGHT}
MATCH_STEPS = 150  # steps of the log ahead that determine which lap of its route a car is on
REACHED_S, REACHED_M = 4.0, 30.0  # a plan reaches about the distance at the present speed and that of accelerating
DIFFERENCE_STEPS = 3  # over which rates are computed


class NoScene(ValueError):
    """A moment is not a usable scene; the message is the reason under which it is counted."""


@dataclass(frozen=True, eq=False)
class ExtractedScene:
    """The scene without its expert; the module docstring describes it."""

    scene: DrivingScene  # without expert, reference progress and images
    stop_m: float | None  # from the rear axle along the route to a red light's stop line
    scripted: ScriptedActor | None  # an agent that is not in the log

    @cached_property
    def scored(self) -> Scene:
        """The scene for the scorer, with the agents' recorded future."""
        return self.scene.scored()


def extract_scene(
    log: TrafficLog,
    step: int,
    ego: int,
    family: str,
    seed: int,
    vehicle: VehicleConfig,
    parked: int = -1,
    displaced_share: float = 0.0,
) -> ExtractedScene:
    """The moment of actor `ego` at a step of the log; `parked` is the actor that opens its door or pulls out. The ego
    is displaced with the probability `displaced_share`.

    Raises NoScene.
    """
    generator = np.random.default_rng(seed)
    state, history = _perturb_ego(log, step, ego, vehicle, generator, displaced_share)
    map_from_ego = state.map_from_ego
    keys, line, along_m = _route(log, step, ego, map_from_ego, generator)
    scripted = None
    if parked >= 0 and family == "cut_in":
        scripted = scripted_actors.pull_out(log, step, parked, line, generator)
    elif parked >= 0:
        scripted = scripted_actors.open_door(log, step, parked)
    tracks = _actor_tracks(log, step, ego, map_from_ego, scripted)
    here = tracks.present[:, NOW]
    box = kinematics.box_centres(np.zeros(3), vehicle)
    size = np.array([vehicle.length_m, vehicle.width_m])
    if geometry.boxes_overlap(tracks.poses[here, NOW], tracks.sizes[here] + 0.1, box, size).any():
        raise NoScene("overlap_start")
    lamps = log.lamps[step : step + STEPS + 1]
    command, instruction = instructions.next_instruction(log.road_map, keys, along_m)
    if TAG_COMMANDS.get(family, command) is not command or (
        family in TAG_COMMANDS and instruction.startswith("turn back")
    ):
        raise NoScene("turn_not_commanded")  # at a corner with a single continuation there is no turn command
    reach_m = min(REACHED_S * abs(state.speed_mps) + REACHED_M, areas_of_map.REACH_M)
    areas = local_map.areas(log.road_map, map_from_ego, keys, reach_m=reach_m)  # last: the most expensive step
    if off_road(areas, geometry.box_corners(box, size)):
        raise NoScene("off_road_start")
    lanes = [log.road_map.lanes[key] for key in keys]
    # the speed of a lane across a junction is its curve speed, not a speed limit
    limit = next((lane.lane.speed_limit_mps for lane in lanes if lane.across_junction is None), None)
    scene = DrivingScene(
        name=f"{log.road_map.name}@{step}-{ego}",
        family=family,
        network=log.road_map.name,
        network_hash=towns.town_hash(log.road_map),
        seed=log.seed,
        ego=state,
        ego_history=history,
        command=command,
        instruction=instruction,
        speed_limit_mps=limit or 13.9,
        route=geometry.compose(geometry.invert(map_from_ego), line),
        areas=areas,
        red_lights=local_map.red_lights(log.road_map, lamps, map_from_ego, keys),
        tracks=tracks,
        expert=np.zeros((8, 3)),
        reference=Reference(0.0),
    )
    return ExtractedScene(scene, _red_light_distance(log, step, keys, line, map_from_ego), scripted)


def off_road(areas: MapAreas, corners: Array) -> bool:
    """Whether some of points (N, 2) in the ego frame are on no road."""
    return not bool(((areas.index.sets(corners) & areas.drivable_bits) != 0).any(axis=1).all())


def _perturb_ego(
    log: TrafficLog,
    step: int,
    ego: int,
    vehicle: VehicleConfig,
    generator: np.random.Generator,
    displaced_share: float,
) -> tuple[EgoState, Array]:
    """The ego's state, and its rear axle (21, 3) from 2 s ago till now in its present frame."""
    offset, turned, faster = generator.normal(0.0, (OFFSET_M, HEADING_RAD, SPEED_SHARE)).clip(-0.5, 0.5)
    if displaced_share > 0.0 and generator.random() < displaced_share:
        limits = MAX_OFFSET_M, MAX_HEADING_RAD
        displacement = generator.normal(0.0, (DISPLACED_OFFSET_M, DISPLACED_HEADING_RAD))
        offset, turned = displacement.clip(np.negative(limits), limits)
        faster = generator.uniform(*SLOWED) - 1.0
    window = slice(step - HISTORY_STEPS, step + 1)
    centers, speeds = log.poses[window, ego].astype(float), log.speeds_mps[window, ego].astype(float)
    rear = geometry.compose(centers, np.array([-vehicle.rear_axle_to_center_m, 0.0, 0.0]))
    back_s = 0.1 * np.arange(-HISTORY_STEPS, 1)
    speed = float(speeds[-1]) * (1.0 + faster)
    astray = np.stack(
        [
            (speed - speeds[-1]) * back_s,
            offset + speed * np.sin(turned) * back_s,
            np.full(len(back_s), turned if speed > 0.5 else 0.0),
        ],
        axis=-1,
    )
    map_poses = geometry.compose(rear, astray)
    yaw_rate = float(geometry.wrap(rear[-1, 2] - rear[-1 - DIFFERENCE_STEPS, 2])) / (0.1 * DIFFERENCE_STEPS)
    state = EgoState(
        stamp_ns=(1 + step) * STEP_NS + 10**12,
        map_from_ego=map_poses[-1],
        speed_mps=speed,
        acceleration_mps2=float(
            np.clip((speeds[-1] - speeds[-1 - DIFFERENCE_STEPS]) / (0.1 * DIFFERENCE_STEPS), -5.0, 3.0)
        ),
        yaw_rate_rps=yaw_rate,
        steering_rad=float(
            np.clip(kinematics.steering_from_curvature(yaw_rate / max(speed, 1.0), vehicle.wheel_base_m), -0.6, 0.6)
        ),
    )
    return state, geometry.compose(geometry.invert(map_poses[-1]), map_poses)


def _route(
    log: TrafficLog, step: int, ego: int, map_from_ego: Array, generator: np.random.Generator
) -> tuple[list[int], Array, float]:
    """Keys of the lanes from the present one on, the line (L, 3) along them in the map frame, and how far along the
    present lane the ego is."""
    road_map = log.road_map
    key = int(log.lane[step, ego])
    edges = list(_edges_ahead(log, step, ego))
    if len(edges) < MIN_ROUTE_EDGES:
        edges += routing.random_walk(road_map, generator, 400.0, edges[-1])[1:]
    try:
        keys, line = routing.line_ahead(road_map, key, edges, map_from_ego[:2])
    except RoadError:
        raise NoScene("route_unknown") from None
    (along,), (offset,) = geometry.project(line, map_from_ego[None, :2])
    if geometry.arc_lengths(line)[-1] - along < MIN_ROUTE_AHEAD_M or abs(offset) > 4.0:
        raise NoScene("route_ends")
    (on_lane,), _ = geometry.project(road_map.lanes[key].lane.centerline, map_from_ego[None, :2])
    return keys, line, float(on_lane)


def _edges_ahead(log: TrafficLog, step: int, ego: int) -> tuple[str, ...]:
    """The road edges of the car's route from the present one on; on a junction, from the one after it.

    A route may pass an edge more than once: the log of the next seconds determines which pass it is.
    """
    edges = log.edges[ego]
    lanes = [log.road_map.lanes[key] for key in log.lane[step : step + MATCH_STEPS, ego].tolist() if key >= 0]
    met = [lane.edge for lane in lanes if lane.across_junction is None]
    driven = [edge for index, edge in enumerate(met) if index == 0 or met[index - 1] != edge]
    if not driven:
        raise NoScene("route_unknown")

    def agreed(start: int) -> int:
        pairs = zip(edges[start:], driven, strict=False)
        return next((k for k, (one, other) in enumerate(pairs) if one != other), min(len(edges) - start, len(driven)))

    start = max(range(len(edges)), key=agreed)
    if agreed(start) == 0:
        raise NoScene("route_unknown")
    return tuple(edges[start:])


def _actor_tracks(log: TrafficLog, step: int, ego: int, map_from_ego: Array, scripted: ScriptedActor | None) -> Tracks:
    """All actors that come near, relative to the ego's present pose; a scripted actor comes last."""
    window = slice(step - HISTORY_STEPS, step + FUTURE_STEPS + 1)
    poses = log.poses[window].transpose(1, 0, 2)  # (N, 71, 3)
    present = np.isfinite(poses[..., 0])
    present[ego] = False
    if scripted is not None and scripted.replaces_row is not None:
        present[scripted.replaces_row] = False
    distance_m = np.where(present, np.hypot(poses[..., 0] - map_from_ego[0], poses[..., 1] - map_from_ego[1]), np.inf)
    nearest = distance_m.min(axis=1)
    near = np.argsort(nearest, kind="stable")[: MAX_ACTORS - 1]
    near = np.sort(near[nearest[near] < ACTOR_RANGE_M])
    there, speeds = present[near], log.speeds_mps[window].T[near]
    near_poses, sizes, kinds = poses[near], log.sizes[near][:, :2], log.kinds[near]
    if scripted is not None:
        _check_scripted_overlap(scripted, near_poses, there, sizes, speeds)
        near_poses, there = (
            np.concatenate([near_poses, scripted.poses[None]]),
            np.concatenate([there, scripted.present[None]]),
        )
        sizes, speeds = (
            np.concatenate([sizes, scripted.size[None, :2]]),
            np.concatenate([speeds, scripted.speeds_mps[None]]),
        )
        kinds = np.append(kinds, scripted.kind)
    poses_ego = geometry.compose(geometry.invert(map_from_ego), np.where(there[..., None], near_poses, 0.0))
    return Tracks(
        poses=np.where(there[..., None], poses_ego, 0.0),
        speeds_mps=np.where(there, speeds, 0.0),
        present=there,
        sizes=sizes,
        kinds=kinds,
    )


def _check_scripted_overlap(scripted: ScriptedActor, poses: Array, present: Array, sizes: Array, speeds: Array) -> None:
    """Raises NoScene if recorded traffic would drive through the scripted actor. A door may touch its own car."""
    together = present & scripted.present
    if scripted.replaces_row is None:
        together &= speeds.max(axis=1, initial=0.0)[:, None] > 0.1
    touched = geometry.boxes_overlap(
        np.where(present[..., None], poses, 0.0), sizes[:, None], scripted.poses, scripted.size[:2]
    )
    if (touched & together).any():
        raise NoScene("stage_taken")


def _red_light_distance(log: TrafficLog, step: int, keys: list[int], line: Array, map_from_ego: Array) -> float | None:
    """Metres from the rear axle along the route to the first stop line that is red now or in a second."""
    on_route = set(keys)
    (here,), _ = geometry.project(line, map_from_ego[None, :2])
    distances_m = []
    red = (log.lamps[[step, step + 10]] == Lamp.RED).any(axis=0)
    for index in np.flatnonzero(red).tolist():
        signal = log.road_map.signals[index]
        if signal.lane in on_route and on_route.intersection(signal.connectors):
            (there,), _ = geometry.project(line, signal.stop_line.mean(axis=0)[None])
            distances_m.append(float(there - here))
    return min((distance_m for distance_m in distances_m if distance_m > 0.0), default=None)
