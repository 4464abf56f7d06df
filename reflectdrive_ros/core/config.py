"""All settings, as frozen dataclasses with description and range; YAML files override the defaults.

`load` and `override` refuse an unknown key (the message names the closest one), a wrong type and a value out of range.
Description and range also become the ROS parameter descriptor that `ros2 param describe` prints.
`config/reflectdrive.yaml` is `as_yaml` of the defaults:

    python -m reflectdrive_ros.core.config > config/reflectdrive.yaml
"""

from __future__ import annotations

import dataclasses
import os
import re
import sys
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import MappingProxyType

import yaml

from ..infra.config_fields import (
    ConfigError,
    Setting,
    override,
    override_dotted,
    override_from_file,
    setting,
    settings,
)
from .recipe_config import (
    DecodingConfig,
    DriveFineConfig,
    PipelineConfig,
    ReflectDrive2Config,
    ReflectDriveConfig,
    ReflexDiffusionConfig,
)

__all__ = ("ConfigError", "Setting", "override", "override_dotted", "override_from_file", "setting", "settings")
PLANNER_SEPARATOR = "+"  # of the names of several planners
UNKNOWN_LIGHT_POLICIES = ("stop", "caution", "pass")
FIRST_POINTS = {"ahead": 0, "now": 1, "driven_path": 4}  # name -> published points that are not ahead of the car
MODEL_BACKENDS = ("auto", "torch", "onnxruntime", "openvino", "tensorrt")
TOKEN_MODEL = (
    "models/reflectdrive2_small/onnx/card.json",
    "2e95e260d55ef59de98b80c7a4d663794efdfa5939132deb74ae4e996068b61d",
)
SHIPPED_MODELS = {  # planner -> file and SHA-256 of the model that comes with the package
    "reflectdrive2": TOKEN_MODEL,
    "reflectdrive": TOKEN_MODEL,
    "drivefine": (
        "models/drivefine_small/onnx/card.json",
        "98c4be0b4f619301bcd765860ac595706dca4f3b64eed06a7b2d80988c7fecf5",
    ),
    "reflexdiffusion": (
        "models/reflexdiffusion_small/onnx/card.json",
        "ae69a1bea5430737bf653004a0293c88225f64aa320cd98c0c131e1bc7546af0",
    ),
}


@dataclass(frozen=True)
class VehicleConfig:
    """Dimensions of the vehicle; the defaults are the minivan of nuPlan and PandaSet."""

    length_m: float = setting(5.176, "bumper to bumper", 1.0, 25.0)
    width_m: float = setting(2.297, "mirrors included", 0.5, 4.0)
    wheel_base_m: float = setting(3.089, "front axle to rear axle", 0.5, 15.0)
    rear_axle_to_center_m: float = setting(
        1.461, "from base_link (rear axle) forward to the centre of the bounding box", -5.0, 10.0
    )
    max_steering_rad: float = setting(1.0472, "largest road-wheel angle", 0.1, 1.4)


@dataclass(frozen=True)
class CamerasConfig:
    """The three front cameras, left to right."""

    names: tuple[str, ...] = setting(("front_left", "front", "front_right"), "one name per camera, left to right")
    anchor: str = setting("front", "the camera whose image starts a planning step")
    topics: tuple[str, ...] = setting((), "image topics, one per name; empty: ~/input/camera/<name>/image")
    info_topics: tuple[str, ...] = setting((), "camera_info topics; empty: ~/input/camera/<name>/camera_info")
    compressed: bool = setting(True, "image topics carry CompressedImage rather than Image")
    width: int = setting(640, "px; images are decoded to this width unless a network defines its own", 16, 4096)
    height: int = setting(360, "px; likewise", 16, 4096)
    match_tolerance_s: float = setting(
        0.06, "largest difference between the stamps of the cameras of one instant", 0.0, 1.0
    )
    reproject: bool = setting(
        True,
        "re-project images of another rig into the network's cameras, from camera_info and /tf_static; false: only "
        "scale them",
    )
    rectified: bool = setting(
        False, "the images are rectified (image_rect): p and r of camera_info hold, without distortion"
    )
    domain: str = setting(
        "recorded images",
        "what the images are, in the words of a model's card: recorded images (real cameras) or rendered images (the "
        "proving ground, whose bags say it themselves)",
    )
    required: bool = setting(
        True,
        "stop if the cameras are missing; set it to false for constant_velocity, route_follower and idm_proposals "
        "where there are no cameras. reflexdiffusion needs none, whatever this is",
    )


MAX_AGE_S = {  # input -> age above which its newest message describes another scene
    "image": 0.25,  # at the start of a step
    "odometry": 0.2,
    "acceleration": 0.5,  # older ones count as 0, and those below as unknown, with a diagnostic
    "objects": 0.5,
    "drivable": 0.5,
    "obstacles": 0.3,
    "lights": 1.0,  # lamps are hidden for some frames; an older state counts as the settings of `lights` say
    "candidates": 0.2,  # of other planners, by their own stamp; Autoware's selector drops older ones
}


@cache
def _max_ages_s(entries: tuple[str, ...]) -> Mapping[str, float]:
    """MAX_AGE_S with the entries NAME=SECONDS of `inputs.max_age_s`. Raises ConfigError for one that is none."""
    ages = dict(MAX_AGE_S)
    for entry in entries:
        name, _, seconds = entry.partition("=")
        if name not in ages or not re.fullmatch(r"\d+(\.\d+)?", seconds) or float(seconds) > 10.0:
            raise ConfigError(
                f"inputs.max_age_s holds {entry!r:.80}, expected NAME=SECONDS: a name of {', '.join(ages)}, and 0 to 10"
            )
        ages[name] = float(seconds)
    return MappingProxyType(ages)


@dataclass(frozen=True)
class InputsConfig:
    """Which inputs are used, and what of them is refused."""

    max_age_s: tuple[str, ...] = setting(
        (),
        "largest ages against the newest image (against odometry without cameras) other than the built-in ones, as "
        f"NAME=SECONDS: {', '.join(f'{name} {age:g}' for name, age in MAX_AGE_S.items())}",
    )
    route_type: str = setting("path", "path (nav_msgs/Path) or lanelet (autoware_planning_msgs/LaneletRoute)")
    lanelet_map: str = setting(
        "",
        "the map's .osm file, for routes of type lanelet, drivable space of type map, and the lanes that "
        "reflexdiffusion reads; empty: Autoware's map topic",
    )
    lanelet_origin_lat: float = setting(
        0.0, "degrees; origin of the map frame (UTM) of the file; 0, 0: use its tags local_x, local_y", -90.0, 90.0
    )
    lanelet_origin_lon: float = setting(0.0, "degrees; likewise", -180.0, 180.0)
    objects_type: str = setting("predicted", "predicted, tracked or none")
    drivable_type: str = setting(
        "none",
        "source of the drivable space: none, map (the lanelets of inputs.lanelet_map or the topic) or grid",
    )
    obstacles_type: str = setting(
        "none", "cloud: unclassified obstacles from a PointCloud2 without ground points; none: no such topic"
    )
    lights_type: str = setting(
        "groups",
        "groups (autoware_perception_msgs/TrafficLightGroupArray) or none; used where a map is read, which has the "
        "stop lines",
    )
    expect_max_velocity: bool = setting(False, "true: WARN until ~/input/max_velocity arrives")
    message_max_mb: float = setting(
        2.0,
        "larger objects, routes and transforms are refused unread: reading blocks the node for 5 to 20 ms per MB",
        0.01,
        1000.0,
    )
    bulk_max_mb: float = setting(
        36.0,
        "likewise images, grids, clouds and maps, 1 to 2 ms per MB; a raw 4K image with 4 bytes per pixel has 33.2",
        0.01,
        1000.0,
    )

    def __post_init__(self) -> None:
        _max_ages_s(self.max_age_s)

    @property
    def max_ages_s(self) -> Mapping[str, float]:
        """Largest age of each input of MAX_AGE_S."""
        return _max_ages_s(self.max_age_s)

    @property
    def needs_map(self) -> bool:
        """Whether the route or the drivable space come from a map."""
        return self.route_type == "lanelet" or self.drivable_type == "map"


@dataclass(frozen=True)
class RouteConfig:
    """When the car is on its route."""

    max_distance_m: float = setting(
        5.0,
        "a car whose rear axle is further from the line of its route stops; raise it where it may drive more than one "
        "lane beside the route's, by 3.5 m a lane",
        1.0,
        25.0,
    )

    @property
    def back_within_m(self) -> float:
        """A car that has left its route is on it again within this distance: at the limit it must not stop and start in
        turn."""
        return 0.9 * self.max_distance_m


@dataclass(frozen=True)
class GuardConfig:
    """Final check of a plan: what the vehicle can follow and what is safe."""

    safe_horizon_s: float = setting(3.0, "a plan must not collide within this time", 0.5, 10.0)
    clearance_m: float = setting(
        0.3,
        "gap to objects that a plan must keep; where it is smaller already it may shrink to 0.15 m, not further",
        0.0,
        2.0,
    )
    max_speed_mps: float = setting(40.0, "largest speed of a plan", 0.5, 80.0)
    max_acceleration_mps2: float = setting(5.0, "largest acceleration of a plan", 0.5, 15.0)
    max_lateral_acceleration_mps2: float = setting(6.0, "speed squared times curvature", 0.5, 15.0)
    comfort_braking_mps2: float = setting(2.5, "deceleration of the stop plan, first choice", 0.5, 5.0)
    hard_braking_mps2: float = setting(5.0, "second choice, if the first collides", 0.5, 9.0)
    emergency_braking_mps2: float = setting(8.0, "last choice", 0.5, 12.0)


@dataclass(frozen=True)
class LightsConfig:
    """Traffic lights whose state is unknown or old, once a first message with lights has arrived."""

    unknown: str = setting(
        "caution",
        "how to drive past the stop line of a light whose state is unknown: stop before it, caution (at most "
        "lights.caution_speed_mps) or pass",
    )
    unknown_after_red: str = setting(
        "stop", "likewise, if the light was red when its state was last known: stop, or the same as lights.unknown"
    )
    caution_speed_mps: float = setting(5.0, "largest speed at a stop line that is passed with caution", 0.5, 40.0)

    def __post_init__(self) -> None:
        for name in ("unknown", "unknown_after_red"):
            if getattr(self, name) not in UNKNOWN_LIGHT_POLICIES:
                raise ConfigError(
                    f"lights.{name} is '{getattr(self, name)}', expected one of {', '.join(UNKNOWN_LIGHT_POLICIES)}"
                )
        if self.unknown_after_red not in ("stop", self.unknown):
            raise ConfigError(
                f"lights.unknown_after_red is '{self.unknown_after_red}', expected stop or '{self.unknown}' as "
                "lights.unknown has"
            )


@dataclass(frozen=True)
class EngineConfig:
    """Deadlines, and what is published when a plan is late or refused."""

    deadline_ms: float = setting(80.0, "a plan that took longer is LATE", 1.0, 10_000.0)
    watchdog_ms: float = setting(
        250.0, "without a finished step for this long the watchdog publishes the stop plan", 20.0, 1e4
    )
    start_after_s: float = setting(
        3.0,
        "an engaged car that stands for this long without a reason is started; 0: only by ~/service/start",
        0.0,
        60.0,
    )


@dataclass(frozen=True)
class OutputConfig:
    """What is published."""

    map_frame: str = setting("map", "frame of the published plans")
    first_point: str = setting(
        "driven_path",
        "first point of published plans: ahead (in 0.1 s), now (at the car) or driven_path (0.3 s of the path behind "
        "it: Autoware's planning_validator needs it from 10 m/s on)",
    )
    generator_name: str = setting(
        "ReflectDrive",
        "candidates are called <generator_name>_<slot>; of a node that is not /planning/reflectdrive/reflectdrive, "
        "<generator_name><full name of the node>_<slot>; of several planners, _<planner> follows",
    )
    candidates_max: int = setting(64, "most candidates of a message, the plan included", 1, 64)
    horizon_s: float = setting(
        0.0,
        "shorter plans are continued along the route to this length; 0: as planned",
        0.0,
        8.0,
    )


@dataclass(frozen=True)
class ScoringConfig:
    """Form of the driving score."""

    form: str = setting("pdms", "pdms (NAVSIM v1.1) or epdms (v2: more multipliers, lane keeping, extended comfort)")

    def __post_init__(self) -> None:
        if self.form not in ("pdms", "epdms"):
            raise ConfigError(f"scoring.form is '{self.form}', expected pdms or epdms")


@dataclass(frozen=True)
class ModelConfig:
    """The weights of learned planners."""

    file: str = setting(
        TOKEN_MODEL[0],
        "weights (.safetensors) or the card.json of exported graphs; empty for planners without a model. A shipped "
        "model is replaced by that of the planner. A relative path is searched beside the configuration file (not that "
        "of a shipped model), in the working directory, then in the package's share folder or checkout",
    )
    sha256: str = setting(TOKEN_MODEL[1], "expected hash of that file; a file with another hash is refused")
    backend: str = setting(
        "auto",
        "inference backend: auto (the fastest installed one that reads the file), torch (weights), onnxruntime "
        "or openvino (graphs), or tensorrt (graphs whose engines `reflectdrive engine` has built on this machine)",
    )
    device: str = setting("auto", "auto (a GPU if the backend finds one), cpu, cuda, cuda:1, ..")
    engines: str = setting("", "folder of TensorRT engines; empty: the folder `engines` beside the card of the graphs")
    threads: int = setting(
        2,
        "CPU threads of the network. ONNX Runtime splits the batch of goals among them, which is robust on a loaded "
        "machine; torch splits every operator, which is many times slower there",
        1,
        64,
    )

    def __post_init__(self) -> None:
        if self.backend not in MODEL_BACKENDS:
            raise ConfigError(f"model.backend is '{self.backend}', expected one of {', '.join(MODEL_BACKENDS)}")
        if not re.fullmatch(r"auto|cpu|cuda(:\d+)?", self.device):
            raise ConfigError(f"model.device is '{self.device}', expected auto, cpu, cuda or cuda:<number>")

    @property
    def is_shipped(self) -> bool:
        """Whether it is a model that comes with the package, under its own path."""
        return (self.file, self.sha256.lower()) in SHIPPED_MODELS.values()


@dataclass(frozen=True)
class RepairConfig:
    """Repair of unsafe plans of `reflectdrive` by token search, as in its paper."""

    iterations: int = setting(
        2,
        "iterations of the token search of reflectdrive (paper: 10; on `val` 1 to 5 score the same); 0: none",
        0,
        100,
    )


@dataclass(frozen=True)
class CheckConfig:
    """Check of other planners' candidates (`ros2 launch reflectdrive check.launch.py`)."""

    unchecked: str = setting(
        "pass",
        "candidates that cannot be checked (stale, in another frame, empty, not finite; or no odometry or route): "
        "pass them on as they came, or drop them",
    )

    generator_name: str = setting(
        "",
        "candidates leave as <generator_name>_<slot> with ids of their own, as beside those that came; empty: with the "
        "names and ids that came",
    )

    def __post_init__(self) -> None:
        if self.unchecked not in ("pass", "drop"):
            raise ConfigError(f"check.unchecked is '{self.unchecked}', expected pass or drop")


@dataclass(frozen=True)
class Config:
    """All settings.

    A shipped model is replaced by that of the planner.
    """

    planner: str = setting(
        "reflectdrive2",
        "planner: constant_velocity, route_follower, idm_proposals, or with a model reflectdrive2, reflectdrive, "
        "drivefine, reflexdiffusion. Several plan side by side: [reflectdrive2, reflexdiffusion] or "
        "reflectdrive2+reflexdiffusion; model.file is the model of the first, others have the shipped ones",
        separator=PLANNER_SEPARATOR,
    )
    speed_limit_mps: float = setting(13.9, "used where the map has no limit", 0.5, 60.0)
    vehicle: VehicleConfig = field(default_factory=VehicleConfig)
    cameras: CamerasConfig = field(default_factory=CamerasConfig)
    inputs: InputsConfig = field(default_factory=InputsConfig)
    route: RouteConfig = field(default_factory=RouteConfig)
    engine: EngineConfig = field(default_factory=EngineConfig)
    guard: GuardConfig = field(default_factory=GuardConfig)
    lights: LightsConfig = field(default_factory=LightsConfig)
    scoring: ScoringConfig = field(default_factory=ScoringConfig)
    output: OutputConfig = field(default_factory=OutputConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    pipeline: PipelineConfig = field(default_factory=PipelineConfig)
    decoding: DecodingConfig = field(default_factory=DecodingConfig)
    reflectdrive2: ReflectDrive2Config = field(default_factory=ReflectDrive2Config)
    reflectdrive: ReflectDriveConfig = field(default_factory=ReflectDriveConfig)
    drivefine: DriveFineConfig = field(default_factory=DriveFineConfig)
    reflexdiffusion: ReflexDiffusionConfig = field(default_factory=ReflexDiffusionConfig)
    repair: RepairConfig = field(default_factory=RepairConfig)
    check: CheckConfig = field(default_factory=CheckConfig)

    def __post_init__(self) -> None:
        cameras, count = self.cameras, len(self.cameras.names)
        if len(set(cameras.names)) != count or count == 0:
            raise ConfigError(f"cameras.names is {list(cameras.names)}, expected different names")
        for name in cameras.names:
            if not re.fullmatch("[A-Za-z][A-Za-z0-9_]*", name):  # it becomes part of topic names
                raise ConfigError(f"cameras.names holds {name!r}, expected letters, digits and underscores")
        if cameras.anchor not in cameras.names:
            raise ConfigError(f"cameras.anchor is '{cameras.anchor}', expected one of {list(cameras.names)}")
        for name in ("topics", "info_topics"):
            if len(getattr(cameras, name)) not in (0, count):
                raise ConfigError(f"cameras.{name} has {len(getattr(cameras, name))} entries for {count} cameras")
        for name, value, allowed in (
            ("inputs.route_type", self.inputs.route_type, ("path", "lanelet")),
            ("inputs.objects_type", self.inputs.objects_type, ("predicted", "tracked", "none")),
            ("inputs.drivable_type", self.inputs.drivable_type, ("none", "map", "grid")),
            ("inputs.obstacles_type", self.inputs.obstacles_type, ("none", "cloud")),
            ("inputs.lights_type", self.inputs.lights_type, ("groups", "none")),
            ("output.first_point", self.output.first_point, tuple(FIRST_POINTS)),
        ):
            if value not in allowed:
                raise ConfigError(f"{name} is '{value}', expected one of {', '.join(allowed)}")
        if bool(self.model.file) != bool(self.model.sha256):
            raise ConfigError("model.file and model.sha256 go together: give both or neither")
        shipped = [SHIPPED_MODELS[name] for name in self.planners if name in SHIPPED_MODELS]
        if shipped and self.model.is_shipped:
            file, sha256 = shipped[0]
            object.__setattr__(self, "model", dataclasses.replace(self.model, file=file, sha256=sha256))

    @property
    def planners(self) -> tuple[str, ...]:
        """The names in `planner`, the preferred one first."""
        return tuple(self.planner.split(PLANNER_SEPARATOR))

    def of_planner(self, name: str) -> Config:
        """The settings of one of several planners: `model` is that of the first with one, others have the shipped."""
        if self.planners == (name,):
            return self
        model, others = self.model, [each for each in self.planners if each in SHIPPED_MODELS][1:]
        if name in others:
            file, sha256 = SHIPPED_MODELS[name]
            model = dataclasses.replace(model, file=file, sha256=sha256)
        return dataclasses.replace(self, planner=name, model=model)


def load(path: str | Path, base: Config | None = None) -> Config:
    """`base` (the defaults) overridden by a YAML file; the path of a model file beside that file becomes absolute.

    The path of a shipped model stays as it is, so that the model still follows the planner. Raises ConfigError for a
    file that cannot be used.
    """
    path = Path(path)
    config: Config = override_from_file(base or Config(), path)
    beside = path.parent.absolute() / config.model.file
    if (
        config.model.file and not config.model.is_shipped and os.path.isfile(beside)
    ):  # Path.is_file raises for some names
        return dataclasses.replace(config, model=dataclasses.replace(config.model, file=str(beside)))
    return config


def as_yaml(config: Config) -> str:
    """The configuration as YAML for `load`; description and range of each setting are comments."""
    lines = [
        "# All settings of reflectdrive with their defaults. Keep only what you change.",
        "# An unknown key, a wrong type or a value out of range is refused with an error that says what to do.",
    ]
    present = ""
    for leaf in settings(config):
        *section, key = leaf.name.split(".")
        if section and section[0] != present:
            present = section[0]
            summary = (type(getattr(config, present)).__doc__ or "").splitlines()[0]
            lines += ["", f"# {summary}", f"{present}:"]
        indent = "  " * len(section)
        bounds = "" if leaf.low is None else f" ({leaf.low:g} to {leaf.high:g})"
        lines += [""] if not section else []
        lines += textwrap.wrap(
            leaf.doc + bounds, 118 - len(indent), initial_indent=f"{indent}# ", subsequent_indent=f"{indent}# "
        )
        value = list(leaf.value) if isinstance(leaf.value, tuple) else leaf.value
        text = yaml.safe_dump(value, default_flow_style=True, width=10_000).removesuffix("...\n").strip()
        lines.append(f"{indent}{key}: {text}")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.stdout.write(as_yaml(Config()))
