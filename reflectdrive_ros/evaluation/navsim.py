"""NAVSIM's objects as ours: an AgentInput as an observation, a Scene with its metric cache as a scene of a set.

    observation = observe(agent_input, rig(288, 144), instants=2)
    scene = scene_of(navsim_scene, metric_cache, rig(288, 144), 2, "log", "place")

Objects are read by the names of their fields (navsim.common.dataclasses and MetricCache of devkit 1.1 and 2.x); nothing
of the devkit is imported. Facts of the devkit:

- Frames are 0.5 s apart: four of the past, of which the last is now, and in a Scene up to ten of the future.
- Poses are of the rear axle. Those of an AgentInput are relative to the last frame, those of a Scene global.
  Velocities and accelerations are in the axes of their own frame. Yaw rate and steering are not given: the yaw rate is
  the difference of the last two headings, the steering 0 as in the devkit's own ego state.
- Boxes are (x, y, z, length, width, height, heading) in the frame of the merged point cloud, which the devkit's score
  takes as the ego frame; so do we for the cameras. Box velocities are in the same axes.
- The command is one-hot: left, straight, right, unknown.
- A metric cache has the drivable map, the centreline, the reference planner and the red lights of a scene, global.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import cv2
import numpy as np

from ..core import geometry, kinematics
from ..core.config import VehicleConfig
from ..core.domain import AgentKind, Array, CameraFrame, Command, EgoState, Observation
from ..data.recorded_tags import scenario_tag
from ..data.scene import HISTORY_STEPS, NOW, TRACK_STEPS, DrivingScene, Tracks
from ..features.cameras import Camera
from ..features.reprojection import Calibration, View, plan_views, reproject
from ..scoring import metrics
from ..scoring.areas import MapAreas, RedLights
from ..scoring.scorer import WAYPOINTS, Reference, score
from ..scoring.simulate import DT_S, STEPS
from .golden import KINDS, STATIC_TYPES

CAMERAS = ("cam_l0", "cam_f0", "cam_r0")
COMMANDS = (Command.LEFT, Command.STRAIGHT, Command.RIGHT, Command.FOLLOW)  # FOLLOW: the devkit's "unknown"
PAST_FRAMES, FRAME_S, FRAME_STEPS = 4, 0.5, 5
FRAME_NS = 500_000_000
FIRST_NS = 10_000_000_000  # stamp of the present frame of an AgentInput, which has none
SPEED_LIMIT_MPS = 15.0  # NAVSIM's default; an AgentInput has none
MOVING_TYPES = tuple(KINDS)
PLACE_M = 100.0  # side of a tile of the map
RED_LIGHT = "red_light_"  # before the id of a connector, among the tokens of an occupancy map


def observe(agent_input: Any, rig: Sequence[Camera], instants: int) -> Observation:
    """The observation of an AgentInput: cameras re-projected into `rig`, ego state and command; no route, no objects.

    Raises ValueError naming what is missing.
    """
    statuses = agent_input.ego_statuses
    if len(statuses) < 2:
        raise ValueError(f"AgentInput.ego_statuses has {len(statuses)} frames, expected {PAST_FRAMES}")
    return Observation(
        stamp_ns=FIRST_NS,
        ego=ego_state(statuses[-1], statuses[-2], FIRST_NS),
        route=np.zeros((0, 3)),
        command=command_of(statuses[-1]),
        speed_limit_mps=SPEED_LIMIT_MPS,
        cameras=camera_frames(agent_input.cameras, rig, instants, FIRST_NS),
    )


def ego_state(status: Any, before: Any, stamp_ns: int) -> EgoState:
    """Of an EgoStatus and the one 0.5 s before it, in the same frame."""
    pose, earlier = np.asarray(status.ego_pose, float), np.asarray(before.ego_pose, float)
    return EgoState(
        stamp_ns=stamp_ns,
        map_from_ego=pose,
        speed_mps=float(status.ego_velocity[0]),
        acceleration_mps2=float(status.ego_acceleration[0]),
        yaw_rate_rps=float(geometry.wrap(pose[2] - earlier[2]) / FRAME_S),
    )


def command_of(status: Any) -> Command:
    """Raises ValueError for a command that is not one-hot of four."""
    command = np.asarray(status.driving_command).ravel()
    if len(command) != len(COMMANDS) or command.sum() != 1:
        raise ValueError(f"EgoStatus.driving_command is {command.tolist()}, expected one 1 among {len(COMMANDS)}")
    return COMMANDS[int(command.argmax())]


# --- cameras ---------------------------------------------------------------------------------------------------------


def camera_frames(
    history: Sequence[Any], rig: Sequence[Camera], instants: int, stamp_ns: int
) -> tuple[CameraFrame, ...]:
    """Images of the last `instants` frames (Cameras of the devkit) as those of `rig`, oldest first."""
    frames = []
    for index in range(len(history) - instants, len(history)):
        images, calibrations = {}, []
        for name in CAMERAS:
            camera = getattr(history[index], name)
            if camera.image is None:
                raise ValueError(f"Cameras.{name} of history frame {index} has no image: see get_sensor_config")
            images[name] = np.asarray(camera.image)
            height, width = images[name].shape[:2]
            matrices = (camera.intrinsics, camera.distortion, camera.sensor2lidar_rotation)
            numbers = (*matrices, camera.sensor2lidar_translation)
            calibrations.append((name, width, height, *(np.asarray(each, float).tobytes() for each in numbers)))
        stamp = stamp_ns - (len(history) - 1 - index) * FRAME_NS
        for view in _views(tuple(rig), tuple(calibrations)):
            pixels = images[view.source]
            if pixels.shape[1::-1] != view.size:
                pixels = np.asarray(cv2.resize(pixels, view.size, interpolation=cv2.INTER_AREA))
            image, matrix = reproject(view, pixels), view.camera.pixels_from_camera
            frames.append(CameraFrame(stamp, view.camera.name, image, matrix, view.camera_from_ego))
    return tuple(frames)


@lru_cache(maxsize=64)
def _views(rig: tuple[Camera, ...], keys: tuple[tuple[Any, ...], ...]) -> tuple[View, ...]:
    """The views of a rig of the devkit; calibrations are those of a car and change between logs only."""
    calibrations = []
    for name, width, height, *raw in keys:
        matrix, distortion, rotation, translation = (np.frombuffer(each) for each in raw)
        ego_from_camera = np.eye(4)
        ego_from_camera[:3, :3], ego_from_camera[:3, 3] = rotation.reshape(3, 3), translation
        model, terms = ("plumb_bob", tuple(distortion.tolist())) if distortion.any() else ("", ())
        pose = geometry.invert_matrix(ego_from_camera)
        calibrations.append(Calibration(name, width, height, matrix.reshape(3, 3), model, terms, pose))
    return plan_views(rig, calibrations)


# --- scenes ----------------------------------------------------------------------------------------------------------


def scene_of(scene: Any, cache: Any | None, rig: Sequence[Camera], instants: int, name: str) -> DrivingScene:
    """A Scene of the devkit with its MetricCache; without one it has no map, and the driven path as route.

    Raises ValueError naming what is missing.
    """
    frames, now = scene.frames, scene.scene_metadata.num_history_frames - 1
    if now < 1 or len(frames) <= now + WAYPOINTS:
        raise ValueError(f"Scene.frames has {len(frames)} frames, {now + 1} of them past: {WAYPOINTS} later are needed")
    stamp_ns = int(frames[now].timestamp) * 1000
    ego = ego_state(frames[now].ego_status, frames[now - 1].ego_status, stamp_ns)
    ego_from_map = geometry.invert(ego.map_from_ego)
    driven = geometry.compose(ego_from_map, np.array([np.asarray(f.ego_status.ego_pose, float) for f in frames]))
    tracks = tracks_of(frames, driven, now)
    path = at_times(driven[now:], 0.1 * np.arange(STEPS + 1))
    if cache is None:
        route, areas, lights = driven, MapAreas(), RedLights()
    else:
        route, areas, lights = (
            route_of(cache, ego_from_map),
            areas_of(cache, ego_from_map),
            red_lights(cache, ego_from_map),
        )
    centers = kinematics.box_centres(path, VehicleConfig())
    progress_m = max(float(metrics.progress(centers[None], route)[0]), 0.0)
    driving_scene = DrivingScene(
        name=name,
        family=scenario_tag(path, ego.speed_mps, tracks),
        network=str(scene.scene_metadata.map_name),
        network_hash=hashlib.sha256(str(scene.scene_metadata.map_name).encode()).hexdigest(),
        seed=0,
        ego=ego,
        ego_history=_history(driven[: now + 1]),
        command=command_of(frames[now].ego_status),
        instruction="",
        speed_limit_mps=SPEED_LIMIT_MPS,
        route=route,
        areas=areas,
        red_lights=lights,
        tracks=tracks,
        expert=driven[now + 1 : now + 1 + WAYPOINTS],
        reference=Reference(progress_m),
        cameras=camera_frames([frame.cameras for frame in frames[: now + 1]], rig, instants, stamp_ns),
        notes={
            "drive": str(scene.scene_metadata.log_name),
            "token": str(scene.scene_metadata.initial_token),
            "route": "driven" if cache is None else "centreline",
            "map": cache is not None,
            "objects": True,
            "place": locality_of(scene.scene_metadata.map_name, ego.map_from_ego),
        },
    )
    return driving_scene if cache is None else with_reference(driving_scene, cache)


def with_reference(scene: DrivingScene, cache: Any) -> DrivingScene:
    """The scene with the progress of the devkit's reference planner, simulated and scored by our scorer."""
    ego_from_map = geometry.invert(scene.map_from_ego)
    states = cache.trajectory.get_sampled_trajectory()
    times_s = np.array([state.time_point.time_us for state in states]) * 1e-6
    poses = geometry.compose(
        ego_from_map, np.array([(s.rear_axle.x, s.rear_axle.y, s.rear_axle.heading) for s in states])
    )
    at_s = times_s[0] + DT_S * np.arange(1, STEPS + 1)
    columns = (poses[:, 0], poses[:, 1], np.unwrap(poses[:, 2]))
    plan = np.stack([np.interp(at_s, times_s, column) for column in columns], axis=-1)
    card = score(replace(scene.scored(), reference=None), plan[None], official=True)  # as the devkit normalises
    return replace(scene, reference=Reference(max(float(card.progress_m[0]), 0.0), float(card.multiplier[0])))


def locality_of(map_name: str, map_from_ego: Array) -> str:
    """The tile of the map in which the rear axle is."""
    return f"{map_name}/{int(map_from_ego[0] // PLACE_M)}_{int(map_from_ego[1] // PLACE_M)}"


def at_times(poses: Array, at_s: Array) -> Array:
    """(T, 3) poses at times from the first of the frames (F, 3), linear."""
    times_s = FRAME_S * np.arange(len(poses))
    columns = (poses[:, 0], poses[:, 1], np.unwrap(poses[:, 2]))
    return np.stack([np.interp(at_s, times_s, column) for column in columns], axis=-1)


def _history(poses: Array) -> Array:
    """(21, 3) poses at -2.0 .. 0 s of the past frames (F, 3); before the first at its velocity."""
    earlier = np.concatenate([2.0 * poses[:1] - poses[1:2], poses])
    return at_times(earlier, FRAME_S * (len(earlier) - 1) + 0.1 * np.arange(-HISTORY_STEPS, 1))


def tracks_of(frames: Sequence[Any], ego_poses: Array, now: int) -> Tracks:
    """The annotated boxes of all frames, linear between frames; `ego_poses` (F, 3) are those of the frames."""
    rows: dict[str, int] = {}
    for frame in frames:
        for token in frame.annotations.track_tokens:
            rows.setdefault(token, len(rows))
    count = len(rows)
    poses, speeds = np.zeros((count, len(frames), 3)), np.zeros((count, len(frames)))
    is_annotated = np.zeros((count, len(frames)), bool)
    sizes, kinds = np.ones((count, 2)), np.zeros(count, int)
    for k, frame in enumerate(frames):
        notes = frame.annotations
        if not len(notes.track_tokens):
            continue
        boxes, velocities = np.asarray(notes.boxes, float), np.asarray(notes.velocity_3d, float)
        box_poses = geometry.compose(ego_poses[k], boxes[:, [0, 1, 6]])
        for pose, box, velocity, token, kind in zip(
            box_poses, boxes, velocities, notes.track_tokens, notes.names, strict=True
        ):
            if kind not in (*MOVING_TYPES, *STATIC_TYPES):
                continue  # the ego itself
            row = rows[token]
            poses[row, k], is_annotated[row, k] = pose, True
            sizes[row], kinds[row] = np.maximum(box[3:5], 0.1), int(KINDS.get(kind, AgentKind.STATIC))
            speeds[row, k] = np.hypot(*velocity[:2]) if kind in MOVING_TYPES else 0.0
    return _at_ten_hertz(poses, speeds, is_annotated, sizes, kinds, now)


def _at_ten_hertz(poses: Array, speeds: Array, is_annotated: Array, sizes: Array, kinds: Array, now: int) -> Tracks:
    """Tracks of boxes in frames (A, F): as the devkit, linear from an agent's first to its last frame, and an agent
    with one future frame stands there throughout; the past up to now likewise."""
    annotated = is_annotated.any(axis=1)
    poses, speeds, is_annotated, sizes, kinds = (
        each[annotated] for each in (poses, speeds, is_annotated, sizes, kinds)
    )
    count = len(poses)
    positions, speed = np.zeros((count, TRACK_STEPS, 3)), np.zeros((count, TRACK_STEPS))
    present = np.zeros((count, TRACK_STEPS), bool)
    at = now + (np.arange(TRACK_STEPS) - NOW) / FRAME_STEPS  # in frames
    for row in range(count):
        observed = np.flatnonzero(is_annotated[row])
        later = observed[observed >= now]
        for frames, steps in ((observed[observed <= now], slice(0, NOW)), (later, slice(NOW, None))):
            if not len(frames):
                continue
            headings = np.unwrap(poses[row, frames, 2])
            columns = (*poses[row, frames, :2].T, headings, speeds[row, frames])
            *pose, moving = (np.interp(at[steps], frames, column) for column in columns)
            positions[row, steps], speed[row, steps] = np.stack(pose, axis=-1), moving
            inside = (at[steps] >= frames[0] - 1e-9) & (at[steps] <= frames[-1] + 1e-9)
            present[row, steps] = True if len(frames) == 1 and frames is later else inside
    positions[..., 2] = geometry.wrap(positions[..., 2])
    return Tracks(np.where(present[..., None], positions, 0.0), np.where(present, speed, 0.0), present, sizes, kinds)


# --- the metric cache ------------------------------------------------------------------------------------------------


def route_of(cache: Any, ego_from_map: Array) -> Array:
    """(L, 3) the centreline, ego frame."""
    states = cache.centerline.discrete_path
    return geometry.compose(ego_from_map, np.array([(state.x, state.y, state.heading) for state in states]))


def areas_of(cache: Any, ego_from_map: Array) -> MapAreas:
    """The polygons of a PDMDrivableMap, ego frame."""
    layers: Mapping[str, list[Array]] = {name: [] for name in ("lanes", "ROADBLOCK", "INTERSECTION", "CARPARK_AREA")}
    area_map, on_route = cache.drivable_area_map, []
    route_lanes = set(cache.route_lane_ids)
    for token, layer, polygon in zip(area_map.tokens, area_map.map_types, area_map._geometries, strict=True):
        ring = _ring(polygon, ego_from_map)
        if layer.name in ("LANE", "LANE_CONNECTOR"):
            layers["lanes"].append(ring)
            on_route.append(token in route_lanes)
        elif layer.name in layers:
            layers[layer.name].append(ring)
    return MapAreas(
        tuple(layers["lanes"]),
        tuple(on_route),
        roadblocks=tuple(layers["ROADBLOCK"]),
        intersections=tuple(layers["INTERSECTION"]),
        carparks=tuple(layers["CARPARK_AREA"]),
    )


def red_lights(cache: Any, ego_from_map: Array) -> RedLights:
    """Connectors of the route that are red at some time of the next 4 s."""
    rings: dict[str, Array] = {}
    red: dict[str, Array] = {}
    for step in range(STEPS + 1):
        occupied = cache.observation[step]
        for token in occupied.tokens:
            if token.startswith(RED_LIGHT):
                rings.setdefault(token, _ring(occupied[token], ego_from_map))
                red.setdefault(token, np.zeros(STEPS + 1, bool))[step] = True
    return RedLights(tuple(rings.values()), np.array(list(red.values()), bool).reshape(len(rings), STEPS + 1))


def _ring(polygon: Any, ego_from_map: Array) -> Array:
    """(V, 2) outline, ego frame, not closed."""
    return geometry.transform_points(ego_from_map, geometry.outer_ring(polygon))
