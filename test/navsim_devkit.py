"""Objects of the shapes that NAVSIM's devkit documents, made of the golden scenes (which its official code scored), and
stand-ins of the modules that our agent and loader import. The devkit itself is not installed.
"""

import gzip
import inspect
import json
import sys
import types
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import shapely

from reflectdrive_ros.core import geometry
from reflectdrive_ros.features.cameras import rig

GOLDEN = Path(__file__).parent / "data" / "golden" / "scenes.jsonl.gz"
NOW = 3
CAMERA_NAMES = ("cam_f0", "cam_l0", "cam_l1", "cam_l2", "cam_r0", "cam_r1", "cam_r2", "cam_b0")
OURS = {"cam_l0": 0, "cam_f0": 1, "cam_r0": 2}  # camera -> the one of the canonical rig that stands where it does
LEFT, STRAIGHT, RIGHT, UNKNOWN = np.eye(4, dtype=int)
Layer = Enum("SemanticMapLayer", "ROADBLOCK LANE LANE_CONNECTOR INTERSECTION CARPARK_AREA")


def entries(count):
    with gzip.open(GOLDEN, "rt") as file:
        return [json.loads(line) for _, line in zip(range(count), file, strict=False)]


@dataclass
class EgoStatus:
    ego_pose: np.ndarray
    ego_velocity: np.ndarray
    ego_acceleration: np.ndarray
    driving_command: np.ndarray
    in_global_frame: bool = False


@dataclass
class Camera:
    image: np.ndarray | None = None
    sensor2lidar_rotation: np.ndarray | None = None
    sensor2lidar_translation: np.ndarray | None = None
    intrinsics: np.ndarray | None = None
    distortion: np.ndarray | None = None


@dataclass
class AgentInput:
    ego_statuses: list
    cameras: list
    lidars: list = field(default_factory=list)


def cameras(frame, size=(288, 162), names=tuple(OURS), distortion=(0.0,) * 5):
    """The devkit's Cameras of a frame: the canonical rig, with images whose grey is that of the frame and camera."""
    cameras_by_name = {name: Camera() for name in CAMERA_NAMES}
    for name in names:
        camera = rig(*size)[OURS[name]]
        pose = geometry.invert_matrix(camera.camera_from_ego)
        pixels = np.full((size[1], size[0], 3), 40 + 10 * frame + OURS[name], np.uint8)
        calibration = pose[:3, :3], pose[:3, 3], camera.pixels_from_camera, np.array(distortion)
        cameras_by_name[name] = Camera(pixels, *calibration)
    return SimpleNamespace(**cameras_by_name)


def agent_input(entry, command=STRAIGHT, **about):
    """The AgentInput of a golden scene: four frames, poses relative to the last."""
    past = np.array(entry["ego_frames"])[: NOW + 1]
    local = geometry.compose(geometry.invert(past[-1, :3]), past[:, :3])
    statuses = [EgoStatus(pose, row[3:5], row[5:7], command) for pose, row in zip(local, past, strict=True)]
    return AgentInput(statuses, [cameras(k, **about) for k in range(NOW + 1)])


def annotations(entry, ego, k):
    """Annotations of the 2 Hz frame k after now, whose ego pose is `ego` (3,)."""
    boxes, velocities, names, tokens = [], [], [], []
    for number, track in enumerate(entry["tracks"]):
        for step, x, y, heading, vx, vy in track["states"]:
            if step == k:
                pose = geometry.compose(geometry.invert(ego), np.array([x, y, heading]))
                boxes.append([pose[0], pose[1], 0.8, track["length"], track["width"], 1.6, pose[2]])
                velocities.append([*geometry.rotate(np.array([vx, vy]), -ego[2]), 0.0])
                names.append(track["type"])
                tokens.append(f"track{number}")
    return SimpleNamespace(
        boxes=np.array(boxes).reshape(-1, 7), velocity_3d=np.array(velocities).reshape(-1, 3), names=names,
        instance_tokens=tokens, track_tokens=tokens,
    )  # fmt: skip


def scene(entry, command=STRAIGHT, **about):
    """The devkit's Scene of a golden scene: four past frames and ten future ones, poses global."""
    frames = []
    for k, row in enumerate(np.array(entry["ego_frames"])):
        frames.append(
            SimpleNamespace(
                token=f"{entry['scene_id']}-{k}",
                timestamp=entry["frame_time_us"][k],
                roadblock_ids=entry["route_roadblock_ids"],
                traffic_lights=[],
                annotations=annotations(entry, row[:3], k - NOW),
                ego_status=EgoStatus(row[:3], row[3:5], row[5:7], command, True),
                lidar=None,
                cameras=cameras(k, **about),
            )
        )
    metadata = SimpleNamespace(
        log_name="2021.05.12_log", scene_token=entry["scene_id"], map_name="us-nv-las-vegas-strip",
        initial_token=entry["scene_id"], num_history_frames=NOW + 1, num_future_frames=10,
    )  # fmt: skip
    return SimpleNamespace(scene_metadata=metadata, map_api=None, frames=frames)


class Occupancy:
    """PDMOccupancyMap and PDMDrivableMap."""

    def __init__(self, tokens, polygons, layers=()):
        self.tokens, self._geometries, self.map_types = tokens, polygons, layers

    def __getitem__(self, token):
        return self._geometries[self.tokens.index(token)]


def metric_cache(entry):
    """The MetricCache of a golden scene."""
    layers = ("lanes", "roadblocks", "intersections", "carparks")
    shapes = {shape["id"]: shapely.Polygon(shape["xy"]) for layer in layers for shape in entry["map"][layer]}
    drivable = Occupancy(
        [name for name, _ in entry["drivable_area_map"]],
        [shapes[name] for name, _ in entry["drivable_area_map"]],
        [Layer[layer] for _, layer in entry["drivable_area_map"]],
    )
    on_route = {lane["id"] for lane in entry["map"]["lanes"] if lane["roadblock"] in entry["route_roadblock_ids"]}
    observation = []
    for step in range(51):
        red = entry["red_lights"][min(step // 5, 8)] if entry["red_lights"] else []
        names = [name for name in red if name in on_route]
        tokens = ["track0", *(f"red_light_{name}" for name in names)]
        observation.append(Occupancy(tokens, [None, *(shapes[name] for name in names)]))
    states = [
        SimpleNamespace(
            time_point=SimpleNamespace(time_us=entry["frame_time_us"][NOW] + 100_000 * k),
            rear_axle=SimpleNamespace(x=pose[0], y=pose[1], heading=pose[2]),
        )
        for k, pose in enumerate(entry["pdm_ref_v1"]["poses"])
    ]
    return SimpleNamespace(
        trajectory=SimpleNamespace(get_sampled_trajectory=lambda: states),
        centerline=SimpleNamespace(
            discrete_path=[SimpleNamespace(x=x, y=y, heading=heading) for x, y, heading in entry["centerline"]]
        ),
        route_lane_ids=entry["route_lane_ids"],
        drivable_area_map=drivable,
        observation=observation,
    )


# --- modules ---------------------------------------------------------------------------------------------------------


@dataclass
class TrajectorySampling:
    num_poses: int | None = None
    time_horizon: float | None = None
    interval_length: float | None = None

    def __post_init__(self):
        if self.num_poses is None:
            self.num_poses = round(self.time_horizon / self.interval_length)


@dataclass
class Trajectory:
    poses: np.ndarray
    trajectory_sampling: TrajectorySampling

    def __post_init__(self):
        assert self.poses.ndim == 2
        assert self.poses.shape == (self.trajectory_sampling.num_poses, 3)


class AgentOfVersion1:
    def __init__(self, requires_scene: bool = False):
        self.requires_scene = requires_scene


class AgentOfVersion2:
    def __init__(self, trajectory_sampling: TrajectorySampling, requires_scene: bool = False):
        self.requires_scene = requires_scene
        self._trajectory_sampling = trajectory_sampling


@dataclass
class SensorConfig:
    cam_f0: bool | list
    cam_l0: bool | list
    cam_l1: bool | list
    cam_l2: bool | list
    cam_r0: bool | list
    cam_r1: bool | list
    cam_r2: bool | list
    cam_b0: bool | list
    lidar_pc: bool | list


@dataclass
class SceneFilter:
    num_history_frames: int = 4
    num_future_frames: int = 10
    frame_interval: int | None = None
    has_route: bool = True
    max_scenes: int | None = None
    log_names: list | None = None
    tokens: list | None = None


class SceneLoader:
    """Serves the golden scenes, two to a log; `sensor_config` decides which images are loaded."""

    def __init__(self, data_path, original_sensor_path, scene_filter, sensor_config=None):
        logs = sorted(path.stem for path in Path(data_path).glob("*.pkl"))
        all_entries = entries(2 * len(logs))
        chosen = [all_entries[2 * k : 2 * k + 2] for k, log in enumerate(logs) if log in scene_filter.log_names]
        every = [entry for pair in chosen for entry in pair]
        self._entries = {
            entry["scene_id"]: entry
            for entry in every
            if scene_filter.tokens is None or entry["scene_id"] in scene_filter.tokens
        }
        self._config = sensor_config

    @property
    def tokens(self):
        return list(self._entries)

    def get_scene_from_token(self, token):
        devkit_scene = scene(self._entries[token])
        for k, frame in enumerate(devkit_scene.frames):
            for name in CAMERA_NAMES:
                requested = getattr(self._config, name)
                if requested is False or (requested is not True and k not in requested):
                    setattr(frame.cameras, name, Camera())
        return devkit_scene


class MetricCacheLoader:
    def __init__(self, cache_path, file_name="metric_cache.pkl"):
        self._entries = {entry["scene_id"]: entry for entry in entries(3)}

    @property
    def tokens(self):
        return list(self._entries)

    def get_from_token(self, token):
        return metric_cache(self._entries[token])


def install(monkeypatch, agent=AgentOfVersion2):
    """Puts the stand-ins in the place of the devkit."""
    modules = {
        "navsim.agents.abstract_agent": {"AbstractAgent": agent},
        "navsim.common.dataclasses": {
            "AgentInput": AgentInput,
            "SensorConfig": SensorConfig,
            "SceneFilter": SceneFilter,
            "Trajectory": Trajectory,
        },
        "navsim.common.dataloader": {"SceneLoader": SceneLoader, "MetricCacheLoader": MetricCacheLoader},
        "nuplan.planning.simulation.trajectory.trajectory_sampling": {"TrajectorySampling": TrajectorySampling},
    }
    for path, content in modules.items():
        parts = path.split(".")
        for depth in range(1, len(parts) + 1):
            name = ".".join(parts[:depth])
            if name not in sys.modules:
                monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
            if depth > 1:
                parent = sys.modules[".".join(parts[: depth - 1])]
                monkeypatch.setattr(parent, parts[depth - 1], sys.modules[name], False)
        for key, value in content.items():
            monkeypatch.setattr(sys.modules[path], key, value, raising=False)
    monkeypatch.delitem(sys.modules, "reflectdrive_ros.evaluation.navsim_agent", raising=False)
    assert inspect.isclass(agent)
