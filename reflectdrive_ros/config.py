"""Every setting once: frozen dataclasses with their reasons, laid over by YAML, strictly.

`load` and `override` refuse an unknown key (and name the near one), a value of the wrong type and a value out of range.
A setting's description and range also become its ROS parameter descriptor, so `ros2 param describe` tells the same.
`config/reflectdrive.yaml` is `as_yaml` of the defaults:

    python -m reflectdrive_ros.config > config/reflectdrive.yaml
"""

from __future__ import annotations

import dataclasses
import difflib
import os
import re
import reprlib
import sys
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_type_hints

import yaml

from .documents import DocumentError, read_yaml
from .files import shown

MODEL_BACKENDS = ("auto", "torch", "onnxruntime", "tensorrt")


class ConfigError(ValueError):
    """A setting is wrong; the message says which, what was expected and what to do."""


def setting(default: Any, doc: str, low: float | None = None, high: float | None = None) -> Any:
    """A dataclass field with its description and inclusive range; `choices` follow from the default's type."""
    metadata = {"doc": doc, "low": low, "high": high}
    if isinstance(default, tuple):
        return field(default_factory=lambda: default, metadata=metadata)
    return field(default=default, metadata=metadata)


@dataclass(frozen=True)
class VehicleConfig:
    """Measures of the car; the defaults are those of nuPlan's and PandaSet's minivan."""

    length_m: float = setting(5.176, "bumper to bumper", 1.0, 25.0)
    width_m: float = setting(2.297, "mirrors included", 0.5, 4.0)
    wheel_base_m: float = setting(3.089, "front axle to rear axle", 0.5, 15.0)
    rear_axle_to_center_m: float = setting(1.461, "from base_link forward to the middle of the box", -5.0, 10.0)
    max_steering_rad: float = setting(1.0472, "largest road-wheel angle", 0.1, 1.4)


@dataclass(frozen=True)
class CamerasConfig:
    """The three front cameras, left to right."""

    names: tuple[str, ...] = setting(("front_left", "front", "front_right"), "one name per camera, left to right")
    anchor: str = setting("front", "the camera whose picture starts a planning step")
    topics: tuple[str, ...] = setting((), "image topics, one per name; empty: ~/input/camera/<name>/image")
    info_topics: tuple[str, ...] = setting((), "camera_info topics; empty: ~/input/camera/<name>/camera_info")
    compressed: bool = setting(True, "image topics carry CompressedImage rather than Image")
    width: int = setting(640, "px; pictures are decoded to this width where no network has a size of its own", 16, 4096)
    height: int = setting(360, "px; likewise", 16, 4096)
    match_tolerance_s: float = setting(0.06, "cameras of one instant may differ by this much", 0.0, 1.0)
    pair_interval_s: float = setting(0.5, "age of the older of the two instants a planner sees", 0.0, 5.0)
    pair_tolerance_s: float = setting(0.12, "how far the older instant may be off", 0.0, 1.0)
    megapixels_max: float = setting(
        16.0, "larger images are refused by their header, before they are decoded; 4K has 8.3", 0.01, 1000.0
    )
    frozen_after: int = setting(10, "so many identical pictures in a row mean that the camera is frozen", 2, 1000)
    required: bool = setting(True, "without cameras there is no plan but to stop; false for planners that are blind")


@dataclass(frozen=True)
class InputsConfig:
    """Which inputs are used, and how old each may be against the newest picture (or odometry without cameras)."""

    image_max_age_s: float = setting(0.25, "oldest picture that may start a step", 0.0, 10.0)
    odometry_max_age_s: float = setting(0.2, "odometry against the picture", 0.0, 10.0)
    acceleration_max_age_s: float = setting(0.5, "acceleration; older counts as 0 and is said so", 0.0, 10.0)
    objects_max_age_s: float = setting(0.5, "objects; older counts as unknown and is said so", 0.0, 10.0)
    route_type: str = setting("path", "path (nav_msgs/Path) or lanelet (autoware_planning_msgs/LaneletRoute)")
    lanelet_map: str = setting(
        "",
        "the map's .osm file, for routes of type lanelet and drivable space of type map; empty: Autoware's map topic",
    )
    lanelet_origin_lat: float = setting(
        0.0, "degrees; where the file's map frame (UTM) has its origin; 0, 0: its tags local_x, local_y", -90.0, 90.0
    )
    lanelet_origin_lon: float = setting(0.0, "degrees; likewise", -180.0, 180.0)
    objects_type: str = setting("predicted", "predicted, tracked or none")
    drivable_type: str = setting(
        "none",
        "where the drivable space comes from: none, map (the lanelets of inputs.lanelet_map or the topic) or grid",
    )
    drivable_max_age_s: float = setting(0.5, "a grid; older counts as unknown and is said so", 0.0, 10.0)
    obstacles_type: str = setting(
        "none", "cloud: whatever else stands in the way, a PointCloud2 without its ground; none: no such topic"
    )
    obstacles_max_age_s: float = setting(0.3, "a cloud; older counts as unknown and is said so", 0.0, 10.0)
    obstacle_low_m: float = setting(0.3, "points of a cloud below this over base_link are left out", -1.0, 5.0)
    obstacle_high_m: float = setting(2.5, "points above this are driven under", 0.0, 10.0)
    obstacle_range_m: float = setting(60.0, "points further ahead, behind or aside are left out", 5.0, 200.0)
    obstacle_cell_m: float = setting(0.4, "obstacles are made of cells of this size", 0.1, 2.0)
    obstacle_points_min: int = setting(3, "fewer points do not fill a cell", 1, 1000)
    obstacles_max: int = setting(200, "boxes of cells kept, nearest first; the rest is counted", 1, 10_000)
    grid_free_below: int = setting(50, "cells of a grid below this are drivable; unknown ones are not", 1, 100)
    grid_resolution_max_m: float = setting(0.5, "a coarser grid is refused: it says little of a lane", 0.05, 5.0)
    route_points_max: int = setting(2000, "points kept of a route; longer ones are thinned", 2, 1_000_000)
    objects_max: int = setting(500, "objects kept, nearest first; the rest is counted in the diagnostics", 1, 100_000)
    object_extent_max_m: float = setting(40.0, "a longer box is refused as a perception fault", 1.0, 60.0)
    message_max_mb: float = setting(
        2.0,
        "larger objects, routes and transforms are refused unread: reading holds up the whole node, 5 to 20 ms a MB",
        0.01,
        1000.0,
    )
    bulk_max_mb: float = setting(
        36.0,
        "likewise images, grids, clouds and maps, 1 to 2 ms a MB; a raw image of 4K with 4 bytes a pixel has 33.2",
        0.01,
        1000.0,
    )
    clock_jump_s: float = setting(1.0, "stamps that step back by more are a restart: buffers are cleared", 0.0, 100.0)

    @property
    def needs_map(self) -> bool:
        return self.route_type == "lanelet" or self.drivable_type == "map"

    @property
    def map_by_topic(self) -> bool:
        """Autoware always sends its map, so a file is needed only where somebody names one."""
        return self.needs_map and not self.lanelet_map


@dataclass(frozen=True)
class GuardConfig:
    """The last word on a plan: what the vehicle can follow and what is safe."""

    safe_horizon_s: float = setting(3.0, "a plan must stay clear of others for this long", 0.5, 10.0)
    clearance_m: float = setting(0.3, "gap to others that a plan must keep; who is closer comes no closer", 0.0, 2.0)
    max_speed_mps: float = setting(40.0, "no plan is faster", 0.5, 80.0)
    max_acceleration_mps2: float = setting(5.0, "speeding up", 0.5, 15.0)
    max_deceleration_mps2: float = setting(9.0, "braking", 0.5, 15.0)
    max_lateral_acceleration_mps2: float = setting(6.0, "speed squared times curvature", 0.5, 15.0)
    max_curvature_per_m: float = setting(0.35, "tightest turn", 0.01, 2.0)
    max_start_gap_m: float = setting(2.0, "first pose against where the present speed leads", 0.1, 10.0)
    comfort_braking_mps2: float = setting(2.5, "the stop plan's first choice", 0.5, 5.0)
    hard_braking_mps2: float = setting(5.0, "its second, when the first would hit something", 0.5, 9.0)
    emergency_braking_mps2: float = setting(8.0, "its last", 0.5, 12.0)


@dataclass(frozen=True)
class EngineConfig:
    """Time: when a plan is late, and what drives the car meanwhile."""

    deadline_ms: float = setting(80.0, "a plan that took longer is LATE", 1.0, 10_000.0)
    carry_max_s: float = setting(1.0, "how long a good plan may be carried forward in place of a bad one", 0.0, 5.0)
    max_lateral_shift_m: float = setting(
        0.5, "how far a plan may lie beside the last one, unless to be safe it must; 0: as far as it likes", 0.0, 10.0
    )
    watchdog_ms: float = setting(250.0, "without a finished step for this long the watchdog sends the stop", 20.0, 1e4)


@dataclass(frozen=True)
class IdmConfig:
    """How route_follower keeps its distance (Intelligent Driver Model)."""

    max_acceleration_mps2: float = setting(1.5, "speeding up", 0.1, 5.0)
    comfortable_braking_mps2: float = setting(2.0, "braking that feels normal", 0.1, 8.0)
    headway_s: float = setting(1.5, "time gap to the car ahead", 0.2, 5.0)
    min_gap_m: float = setting(2.0, "gap at standstill", 0.0, 20.0)
    lane_margin_m: float = setting(0.3, "others this close to the car's path are in it", 0.0, 5.0)
    max_lateral_acceleration_mps2: float = setting(2.0, "slows down in curves so as not to exceed it", 0.2, 6.0)


@dataclass(frozen=True)
class OutputConfig:
    """What is published."""

    dt_s: float = setting(0.1, "interval of published points; Autoware's smoothers assume 0.1", 0.02, 1.0)
    horizon_s: float = setting(8.0, "length of the baselines' plans", 1.0, 20.0)
    map_frame: str = setting("map", "frame of the published plans")
    generator_name: str = setting(
        "ReflectDrive",
        "candidates are called <generator_name>_<slot>; of a node that is not /planning/reflectdrive/reflectdrive, "
        "<generator_name><full name of the node>_<slot>",
    )


@dataclass(frozen=True)
class ScoringConfig:
    """Which driving score counts, and the weights of its averaged part; the defaults are NAVSIM's."""

    form: str = setting("pdms", "pdms (NAVSIM v1.1) or epdms (v2: more multipliers, lane keeping, extended comfort)")
    progress_weight: float = setting(5.0, "ego progress", 0.0, 100.0)
    ttc_weight: float = setting(5.0, "time to collision", 0.0, 100.0)
    comfort_weight: float = setting(2.0, "comfort", 0.0, 100.0)
    lane_keeping_weight: float = setting(2.0, "lane keeping; epdms only", 0.0, 100.0)
    extended_comfort_weight: float = setting(
        2.0, "likeness to the plan before; epdms with such a plan only", 0.0, 100.0
    )
    clearance_max_m: float = setting(5.0, "gaps to other boxes are told up to this", 0.5, 50.0)

    def __post_init__(self) -> None:
        if self.form not in ("pdms", "epdms"):
            raise ConfigError(f"scoring.form is '{self.form}', expected pdms or epdms")


@dataclass(frozen=True)
class ModelConfig:
    """The weights of learned planners."""

    file: str = setting(
        "models/reflectdrive2_small/onnx/card.json",
        "weights (.safetensors) or the card.json of exported graphs; empty for planners without a model. A relative "
        "name is looked for beside the configuration file, in the present folder, then in the package's share folder "
        "or checkout",
    )
    sha256: str = setting(
        "23b5aeb3631d0c4e622acbc4987390fd078656585eb0ef4b171a8466f3a79dc2",
        "expected hash of that file; a file with another hash is refused",
    )
    backend: str = setting(
        "auto",
        "what runs it: auto (the best one installed that reads the file), torch (weights), onnxruntime (graphs) or "
        "tensorrt (graphs, of which `reflectdrive engine` has built engines on this machine)",
    )
    device: str = setting("auto", "auto (a GPU where the backend finds one), cpu, cuda, cuda:1, ..")
    engines: str = setting("", "folder of TensorRT engines; empty: the folder engines beside the graphs' card")
    threads: int = setting(
        2,
        "processor threads of the network. With ONNX Runtime they share out the goals that are drafted together, which "
        "does no harm on a busy computer; with torch every operator, which makes it many times slower there",
        1,
        64,
    )

    def __post_init__(self) -> None:
        if self.backend not in MODEL_BACKENDS:
            raise ConfigError(f"model.backend is '{self.backend}', expected one of {', '.join(MODEL_BACKENDS)}")
        if not re.fullmatch(r"auto|cpu|cuda(:\d+)?", self.device):
            raise ConfigError(f"model.device is '{self.device}', expected auto, cpu, cuda or cuda:<number>")


@dataclass(frozen=True)
class DecodingConfig:
    """How networks decode plans; the defaults are ReflectDrive-2's."""

    goals: int = setting(6, "different goals that are drafted at most", 1, 32)
    goal_spacing_m: float = setting(1.2, "goals nearer to each other are one behaviour: the likelier stays", 0.0, 20.0)
    goal_floor: float = setting(0.01, "goals less probable than this share of the likeliest are left out", 0.0, 1.0)
    goals_looked_at: int = setting(8, "likeliest goals that are looked at once more, of which the best stay", 1, 32)
    goal_trust: float = setting(3.0, "power of the odds that this look gives; 0: the first look alone", 0.0, 10.0)
    edit_at_most: int = setting(5, "tokens that AutoEdit replaces in one round; 14 are free", 0, 14)


@dataclass(frozen=True)
class ReflectDrive2Config:
    """The recipe reflectdrive2; the paper's numbers where it tells them."""

    draft_rounds: int = setting(3, "rounds in which a full step writes its tokens", 1, 14)
    edit_rounds: int = setting(3, "rounds of AutoEdit in a full step", 0, 14)
    lite_edit_rounds: int = setting(1, "rounds of AutoEdit in a lite step", 0, 14)
    lite_steps_per_full: int = setting(1, "1 alternates full, lite, full, lite; 0 plans anew each time", 0, 100)
    choose: bool = setting(
        True,
        "draft all goals and keep those that the driving score finds safest, where there is anything to judge by",
    )
    careful_nats: float = setting(
        1.0,
        "of the goals that may be, the nearest whose log-probability is so little below the likeliest's; 0: the "
        "likeliest",
        0.0,
        20.0,
    )
    max_jump_m: float = setting(
        1.0, "full step: the map pose moved by this much more than the car, localisation jumped", 0.0, 100.0
    )
    max_deviation_m: float = setting(
        1.0, "full step: the car is this far from where the last plan has it now", 0.0, 100.0
    )
    max_gap_s: float = setting(0.35, "full step: more time since the last one, pictures were missed", 0.0, 10.0)
    low_confidence: float = setting(
        0.15, "full step: the mean probability of the last plan's tokens is below this", 0.0, 1.0
    )
    repair: bool = setting(
        True, "check the plan where objects or drivable space are known, and repair it if it is unsafe"
    )


@dataclass(frozen=True)
class ReflectDriveConfig:
    """The recipe reflectdrive; the paper's numbers where it tells them."""

    goals: int = setting(3, "different goals that are drafted; the score chooses", 1, 32)
    goal_spacing_m: float = setting(0.9, "goals nearer to each other are one behaviour: the likelier stays", 0.0, 20.0)
    draft_rounds: int = setting(5, "rounds in which a plan is written", 1, 14)
    guidance: float = setting(
        0.0,
        "weight of classifier-free guidance, 0 is none; for weights (torch) that were trained with blank prompts too: "
        "exported graphs give no logits, and are refused with it",
        0.0,
        10.0,
    )
    repair: bool = setting(
        True, "check the plan where objects or drivable space are known, and repair it if it is unsafe"
    )


@dataclass(frozen=True)
class RepairConfig:
    """How an unsafe plan is mended; the paper's numbers where it tells them."""

    iterations: int = setting(
        2, "at most (the paper: 10; on `val` 1 to 10 score the same within chance); 0 repairs nothing", 0, 100
    )
    patience: int = setting(1, "given up after so many iterations that brought nothing better", 1, 100)
    delta: int = setting(
        5,
        "bins that a waypoint is moved by at most, across plus along: 61 places (the paper: 10, with 221 places; on "
        "`val` 3, 5 and 10 score the same within chance)",
        0,
        30,
    )
    anchors: int = setting(4, "places of a waypoint that are kept in an iteration and redrawn around", 1, 32)
    stride: int = setting(3, "bins between two such places", 1, 30)


@dataclass(frozen=True)
class Config:
    """Everything that can be set."""

    planner: str = setting(
        "reflectdrive2",
        "which recipe plans: constant_velocity, route_follower, or with a model reflectdrive2, reflectdrive",
    )
    speed_limit_mps: float = setting(13.9, "where no map tells a limit", 0.5, 60.0)
    vehicle: VehicleConfig = field(default_factory=VehicleConfig)
    cameras: CamerasConfig = field(default_factory=CamerasConfig)
    inputs: InputsConfig = field(default_factory=InputsConfig)
    engine: EngineConfig = field(default_factory=EngineConfig)
    guard: GuardConfig = field(default_factory=GuardConfig)
    idm: IdmConfig = field(default_factory=IdmConfig)
    scoring: ScoringConfig = field(default_factory=ScoringConfig)
    output: OutputConfig = field(default_factory=OutputConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    decoding: DecodingConfig = field(default_factory=DecodingConfig)
    reflectdrive2: ReflectDrive2Config = field(default_factory=ReflectDrive2Config)
    reflectdrive: ReflectDriveConfig = field(default_factory=ReflectDriveConfig)
    repair: RepairConfig = field(default_factory=RepairConfig)

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
        ):
            if value not in allowed:
                raise ConfigError(f"{name} is '{value}', expected one of {', '.join(allowed)}")
        if bool(self.model.file) != bool(self.model.sha256):
            raise ConfigError("model.file and model.sha256 go together: give both or neither")


@dataclass(frozen=True)
class Setting:
    """One leaf of the configuration, as the parameter table of the node shows it."""

    name: str  # dotted
    value: Any
    kind: type
    doc: str
    low: float | None
    high: float | None


def settings(config: Any, prefix: str = "") -> Iterator[Setting]:
    """Every leaf of a configuration, in order."""
    hints = get_type_hints(type(config))
    for entry in dataclasses.fields(config):
        value = getattr(config, entry.name)
        if dataclasses.is_dataclass(value):
            yield from settings(value, f"{prefix}{entry.name}.")
        else:
            kind = tuple if isinstance(value, tuple) else hints[entry.name]
            meta = entry.metadata
            yield Setting(prefix + entry.name, value, kind, meta["doc"], meta["low"], meta["high"])


_short = reprlib.Repr()  # what a person wrote wrong may be long, nested or its own part
_short.maxstring = _short.maxother = 80


def _number(name: str, kind: type, value: Any, low: float | None, high: float | None) -> Any:
    right = isinstance(value, int) if kind is int else isinstance(value, (int, float))
    if isinstance(value, bool) or not right:
        raise ConfigError(f"setting {name} is {_short.repr(value)} ({type(value).__name__}), expected {kind.__name__}")
    if not (low is None or value >= low) or not (high is None or value <= high):
        raise ConfigError(f"setting {name} is {value}, expected {low} to {high}")
    return kind(value)


def _leaf(name: str, kind: type, value: Any, low: float | None, high: float | None) -> Any:
    if kind in (int, float):
        return _number(name, kind, value, low, high)
    if kind is tuple:
        if not isinstance(value, (list, tuple)) or not all(isinstance(entry, str) for entry in value):
            raise ConfigError(f"setting {name} is {_short.repr(value)}, expected a list of strings")
        return tuple(value)
    if not isinstance(value, kind):
        raise ConfigError(f"setting {name} is {_short.repr(value)} ({type(value).__name__}), expected {kind.__name__}")
    return value


def override(config: Any, values: Mapping[str, Any], prefix: str = "") -> Any:
    """The configuration with nested `values` laid over it. Raises ConfigError naming the setting and what to do."""
    if not isinstance(values, Mapping):
        section = f"section {prefix[:-1]}" if prefix else "the configuration"
        raise ConfigError(f"{section} is {_short.repr(values)}, expected settings as key: value")
    leaves = {entry.name: entry for entry in dataclasses.fields(config)}
    hints = get_type_hints(type(config))
    changed: dict[str, Any] = {}
    for key, value in values.items():
        if key not in leaves:
            near = difflib.get_close_matches(str(key), leaves, n=1, cutoff=0.5)
            hint = f"did you mean '{prefix}{near[0]}'?" if near else f"expected one of {', '.join(leaves)}"
            raise ConfigError(f"unknown setting {_short.repr(prefix + str(key))}; {hint}")
        present, meta = getattr(config, key), leaves[key].metadata
        if dataclasses.is_dataclass(present):
            changed[key] = override(present, value, f"{prefix}{key}.")
        else:
            kind = tuple if isinstance(present, tuple) else hints[key]
            changed[key] = _leaf(prefix + key, kind, value, meta["low"], meta["high"])
    return dataclasses.replace(config, **changed)


def override_dotted(config: Any, values: Mapping[str, Any]) -> Any:
    """As `override`, with names such as `guard.max_speed_mps`. A name may not be given beside a part of itself."""
    for name in values:
        for outer in values:
            if name.startswith(f"{outer}."):
                raise ConfigError(f"'{outer}' and '{name}' are both given; give one of them")
    nested: dict[str, Any] = {}
    for name, value in values.items():
        *path, last = name.split(".")
        at = nested
        for part in path:
            at = at.setdefault(part, {})
        at[last] = value
    return override(config, nested)


def load(path: str | Path, base: Config | None = None) -> Config:
    """The configuration in a YAML file over `base` (the defaults), a model file beside it with its whole path.

    Raises ConfigError for a file that cannot be used.
    """
    path = Path(path)
    config: Config = override_by(base or Config(), path)
    beside = path.parent.absolute() / config.model.file
    if config.model.file and os.path.isfile(beside):  # says no to names that Path.is_file raises for
        return dataclasses.replace(config, model=dataclasses.replace(config.model, file=str(beside)))
    return config


def override_by(config: Any, path: Path) -> Any:
    """The configuration with a YAML file laid over it. Raises ConfigError for a file that cannot be used."""
    try:
        content = read_yaml(path)
    except FileNotFoundError:
        raise ConfigError(f"configuration file {shown(path)} does not exist") from None
    except OSError as fault:
        raise ConfigError(f"configuration file {shown(path)} cannot be read: {fault.strerror}") from None
    except DocumentError as fault:
        raise ConfigError(f"configuration file {shown(path)} {fault}") from None
    try:
        return override(config, {} if content is None else content)
    except ConfigError as fault:
        raise ConfigError(f"{path}: {fault}") from None


def as_yaml(config: Config) -> str:
    """The configuration as YAML that `load` takes, each setting with its description and range as a comment."""
    lines = [
        "# Every setting of reflectdrive with its default. Keep what you change; what is left out has its default.",
        "# An unknown key, a wrong type or a value out of range is refused with a sentence that says what to do.",
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
