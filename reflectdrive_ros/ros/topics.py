"""Every topic of the node, once: the node subscribes and publishes from this table, docs and tests read it.

Reliability and durability equal Autoware's component interface specification exactly: its admission check refuses
"stronger" as well as weaker. Names are private and remapped in launch files. `docs/topics.md` is `as_markdown` of the
defaults:

    python -m reflectdrive_ros.ros.topics > docs/topics.md
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from importlib import import_module
from typing import Any

from ..core.config import FIRST_POINTS, Config

NODE_NAME = "/planning/reflectdrive/reflectdrive"  # full name of the node, as the launch files start it by default


class Qos(Enum):
    """(reliability, durability, depth)"""

    NEWEST = ("reliable", "volatile", 1)
    LATCHED = ("reliable", "transient_local", 1)
    SENSOR = ("best_effort", "volatile", 1)  # images: a lost one is not sent again
    STATIC_TF = ("reliable", "transient_local", 100)  # one message from each static publisher
    LIST = ("reliable", "volatile", 10)


@dataclass(frozen=True)
class Topic:
    key: str  # name in the code
    name: str
    type: str  # package/msg/Name
    qos: Qos
    doc: str
    required: bool = True


def message_class(type_name: str) -> Any:
    """The installed class of `package/msg/Name`, or of a service `package/srv/Name`. Raises ImportError or
    AttributeError when it is not installed."""
    package, kind, name = type_name.split("/")
    return getattr(import_module(f"{package}.{kind}"), name)


def is_installed(type_name: str) -> bool:
    """Whether a message or service is installed: the node drives without others."""
    try:
        message_class(type_name)
    except (ImportError, AttributeError):
        return False
    return True


def inputs(config: Config) -> tuple[Topic, ...]:
    """The node's subscriptions under this configuration."""
    # planning loads OpenCV, and `doctor` reads this module where OpenCV may be missing
    from ..planning.inputs import map_by_topic, needs_cameras, uses_lights

    cameras, settings, needed = config.cameras, config.inputs, needs_cameras(config)
    image = "sensor_msgs/msg/CompressedImage" if cameras.compressed else "sensor_msgs/msg/Image"
    images = cameras.topics or tuple(f"~/input/camera/{name}/image" for name in cameras.names)
    infos = cameras.info_topics or tuple(f"~/input/camera/{name}/camera_info" for name in cameras.names)
    table = (
        *(
            Topic(f"image:{key}", name, image, Qos.SENSOR, f"image of the camera {key}", needed)
            for key, name in zip(cameras.names, images, strict=True)
        ),
        *(
            Topic(f"info:{key}", name, "sensor_msgs/msg/CameraInfo", Qos.SENSOR, f"intrinsics of {key}", needed)
            for key, name in zip(cameras.names, infos, strict=True)
        ),
        Topic("tf_static", "/tf_static", "tf2_msgs/msg/TFMessage", Qos.STATIC_TF, "camera poses", needed),
        Topic("odometry", "~/input/odometry", "nav_msgs/msg/Odometry", Qos.NEWEST, "pose in map, twist in base_link"),
        Topic(
            "acceleration",
            "~/input/acceleration",
            "geometry_msgs/msg/AccelWithCovarianceStamped",
            Qos.NEWEST,
            "acceleration in base_link; without it 0 is assumed",
            False,
        ),
        Topic("route", "~/input/route", ROUTE_TYPES[settings.route_type], Qos.LATCHED, "route, in map"),
        Topic("instruction", "~/input/instruction", "std_msgs/msg/String", Qos.NEWEST, "route in words", False),
        Topic(
            "map", "~/input/map", MAP_TYPE, Qos.LATCHED, "Autoware's lanelets, in map", settings.route_type == "lanelet"
        ),
        Topic(
            "lights",
            "~/input/traffic_lights",
            LIGHTS_TYPE,
            Qos.NEWEST,
            "what the traffic lights show; without it the car does not stop for them, which the diagnostics report",
            False,
        ),
        Topic(
            "max_velocity",
            "~/input/max_velocity",
            MAX_VELOCITY_TYPE,
            Qos.LATCHED,
            "speed limit of the operator, 0 to stop; without it the limits of the map count",
            False,
        ),
        Topic(
            "objects",
            "~/input/objects",
            OBJECT_TYPES.get(settings.objects_type, ""),
            Qos.NEWEST,
            "other road users; without them plans are not checked against agents, which the diagnostics report",
            False,
        ),
        Topic(
            "drivable",
            "~/input/drivable",
            "nav_msgs/msg/OccupancyGrid",
            Qos.NEWEST,
            "drivable space; without it plans are not checked against it, which the diagnostics report",
            False,
        ),
        Topic(
            "obstacles",
            "~/input/obstacles",
            "sensor_msgs/msg/PointCloud2",
            Qos.SENSOR,
            "points of obstacles, without ground; points of known road users are left out",
            False,
        ),
        Topic(
            "operation_mode",
            "~/input/operation_mode_state",
            OPERATION_MODE_TYPE,
            Qos.LATCHED,
            "whether the planner or a driver drives; without it the planner is taken to drive",
            False,
        ),
        Topic(
            "turn_indicators_status",
            "~/input/turn_indicators_status",
            "autoware_vehicle_msgs/msg/TurnIndicatorsReport",
            Qos.NEWEST,
            "turn signal that is on",
            False,
        ),
    )
    is_read = {
        "map": map_by_topic(config),
        "lights": uses_lights(config),
        "objects": settings.objects_type != "none",
        "drivable": settings.drivable_type == "grid",
        "obstacles": settings.obstacles_type == "cloud",
    }
    return tuple(topic for topic in table if is_read.get(topic.key, True))


START_SERVICE, START_SERVICE_TYPE = "~/service/start", "std_srvs/srv/SetBool"
ROUTE_TYPES = {"path": "nav_msgs/msg/Path", "lanelet": "autoware_planning_msgs/msg/LaneletRoute"}
MAP_TYPE = "autoware_map_msgs/msg/LaneletMapBin"
OPERATION_MODE_TYPE = "autoware_adapi_v1_msgs/msg/OperationModeState"
LIGHTS_TYPE = "autoware_perception_msgs/msg/TrafficLightGroupArray"
MAX_VELOCITY_TYPE = "autoware_internal_planning_msgs/msg/VelocityLimit"
OBJECT_TYPES = {
    "predicted": "autoware_perception_msgs/msg/PredictedObjects",
    "tracked": "autoware_perception_msgs/msg/TrackedObjects",
}

OUTPUTS = (
    Topic("trajectory", "~/output/trajectory", "autoware_planning_msgs/msg/Trajectory", Qos.NEWEST, "the plan, 0.1 s"),
    Topic(
        "candidates",
        "~/output/candidate_trajectories",
        "autoware_internal_planning_msgs/msg/CandidateTrajectories",
        Qos.NEWEST,
        "the plan and the other candidates, one stable UUID per slot",
    ),
    Topic(
        "turn_indicators",
        "~/output/turn_indicators",
        "autoware_vehicle_msgs/msg/TurnIndicatorsCommand",
        Qos.NEWEST,
        "turn signal of the plan",
    ),
    Topic(
        "planning_factors",
        "~/output/planning_factors",
        "autoware_internal_planning_msgs/msg/PlanningFactorArray",
        Qos.NEWEST,
        "where the plan is slow or stops, and why; empty where it does neither",
    ),
    Topic(
        "predicted_objects",
        "~/output/predicted_objects",
        "autoware_perception_msgs/msg/PredictedObjects",
        Qos.NEWEST,
        "the objects with the paths that plans were checked against, 5 s",
        False,
    ),
    Topic(
        "traffic_signal",
        "~/output/debug/traffic_signal",
        "autoware_perception_msgs/msg/TrafficLightGroup",
        Qos.NEWEST,
        "the next light on the route, with the state that counts",
        False,
    ),
    Topic("status", "~/output/status", "reflectdrive/msg/PlannerStatus", Qos.NEWEST, "verdict and source of the plan"),
    Topic("path", "~/debug/path", "nav_msgs/msg/Path", Qos.NEWEST, "the plan for RViz", False),
    Topic("markers", "~/debug/markers", "visualization_msgs/msg/MarkerArray", Qos.NEWEST, "plan for RViz", False),
    Topic(
        "debug",
        "~/debug/planner",
        "reflectdrive/msg/PlannerDebug",
        Qos.NEWEST,
        "candidates, change, tokens, times",
        False,
    ),
    Topic("goals", "~/debug/goals", "reflectdrive/msg/GoalHypotheses", Qos.NEWEST, "goals, probabilities", False),
    Topic(
        "processing_time",
        "~/debug/processing_time_ms",
        "autoware_internal_debug_msgs/msg/Float64Stamped",
        Qos.NEWEST,
        "front image, or without images odometry, received to trajectory published",
    ),
    Topic(
        "processing_time_detail",
        "~/debug/processing_time_detail_ms",
        "autoware_internal_debug_msgs/msg/ProcessingTimeTree",
        Qos.NEWEST,
        "the stages of that time",
        False,
    ),
    Topic("diagnostics", "/diagnostics", "diagnostic_msgs/msg/DiagnosticArray", Qos.LIST, "inputs and planner"),
)

CHECK_CANDIDATES = Topic(
    "candidates",
    "~/input/trajectories",
    "autoware_internal_planning_msgs/msg/CandidateTrajectories",
    Qos.NEWEST,
    "candidates of any generator; each message is checked as it arrives",
)
OF_PLANNER_ALONE = ("image", "info", "instruction", "operation_mode", "turn_indicators_status")  # kinds of inputs


def check_inputs(config: Config) -> tuple[Topic, ...]:
    """The subscriptions of the check node beside CHECK_CANDIDATES, under a configuration without cameras."""
    return tuple(topic for topic in inputs(config) if topic.key.partition(":")[0] not in OF_PLANNER_ALONE)


CHECK_OUTPUTS = (
    Topic(
        "trajectories",
        "~/output/trajectories",
        "autoware_internal_planning_msgs/msg/CandidateTrajectories",
        Qos.NEWEST,
        "the candidates: safe ones as they came, others repaired; same headers, ids, names and turn signals",
    ),
    Topic(
        "scored_trajectories",
        "~/output/scored_trajectories",
        "autoware_internal_planning_msgs/msg/ScoredCandidateTrajectories",
        Qos.NEWEST,
        "the same with their driving scores in the forecast, 0 to 1; 0 if unsafe or unchecked",
    ),
    Topic(
        "trajectory",
        "~/output/trajectory",
        "autoware_planning_msgs/msg/Trajectory",
        Qos.NEWEST,
        "the candidate with the best score; none where no candidate could be checked",
    ),
    *(topic for topic in OUTPUTS if topic.key in ("planning_factors", "processing_time", "diagnostics")),
)


def as_markdown(config: Config) -> str:
    """The topics under this configuration as a Markdown page."""
    routes, objects = (
        "\n".join(f"  - `{setting}`: {kind}" for setting, kind in kinds.items())
        for kinds in (ROUTE_TYPES, OBJECT_TYPES)
    )
    begin_s = 0.1 * (1 - FIRST_POINTS[config.output.first_point])
    return f"""# Topics

Made from `reflectdrive_ros/ros/topics.py` with the default settings; `python -m reflectdrive_ros.ros.topics` prints it.
`~` is the node's own name: in `/planning/reflectdrive` (the launch file's default namespace) `~/output/trajectory` is
`/planning/reflectdrive/reflectdrive/output/trajectory`. Reliability and durability equal Autoware's interface
specification exactly.

## Inputs
{_markdown_table(inputs(config))}

- Images are CompressedImage, or Image with `cameras.compressed: false`; `cameras.names`, `cameras.topics`,
  `cameras.info_topics`. With `cameras.required: false` none is required.
- `inputs.route_type` is the type of the route:
{routes}
- `inputs.objects_type` is the type of the objects; with `none` there is no such topic:
{objects}
- `inputs.drivable_type` is the source of the drivable space: `map` uses the lanelets of the map, `grid`
  subscribes to `~/input/drivable`, a nav_msgs/msg/OccupancyGrid in the map frame or in base_link.
- Where route, drivable space or the planner `reflexdiffusion` read a map and `inputs.lanelet_map` names no file, the
  node subscribes to `~/input/map` (reliable, transient_local, 1), an {MAP_TYPE}. Routes of type `lanelet`
  require it.
- Where a map is read and `inputs.lights_type` is `groups`, the node subscribes to `~/input/traffic_lights` (reliable,
  volatile, 1), an {LIGHTS_TYPE} ([autoware.md](autoware.md#traffic-lights)).
- With `inputs.obstacles_type: cloud` the node subscribes to `~/input/obstacles`, a sensor_msgs/msg/PointCloud2 in
  base_link or in a frame of `/tf_static`.
- `~/input/operation_mode_state` is subscribed to where the package `autoware_adapi_v1_msgs` is installed
  ([autoware.md](autoware.md#who-drives)).
- The car stops if a required input is missing, stale or malformed. Without an optional input it drives on. The
  diagnostics report both.

## Service
`~/service/start`, a {START_SERVICE_TYPE}, where its package is installed: [autoware.md](autoware.md#a-standing-car).

## Outputs
{_markdown_table(OUTPUTS)}

- Trajectories are in `map`, with the stamp of the odometry used; points are 0.1 s apart, the first at
  {begin_s:.1f} s (`output.first_point`). A stop repeats its last pose with velocity 0.
- Trajectory, candidates, path and markers have z and pitch (positive nose down) of the road, and roll 0:
  [autoware.md](autoware.md#height-and-pitch). Planner details and goals are planar.
- Topics marked "if subscribed" are published only while a subscriber is connected.

## The check node
[check_other_planners.md](check_other_planners.md). Its inputs are those above without cameras, instruction, operation
mode and turn indicators, and
{_markdown_table((CHECK_CANDIDATES,))}

It publishes planning factors, processing time and diagnostics as above, and
{_markdown_table(topic for topic in CHECK_OUTPUTS if topic not in OUTPUTS)}
"""


def _markdown_table(table: Iterable[Topic]) -> str:
    table = tuple(table)
    outgoing = table[0].name.startswith("~/output/")
    lines = [f"| topic | type | QoS | {'published' if outgoing else 'required'} | what |", "|---|---|---|---|---|"]
    for topic in table:
        reliability, durability, depth = topic.qos.value
        need = ("always" if topic.required else "if subscribed") if outgoing else ("yes" if topic.required else "no")
        qos = f"{reliability}, {durability}, {depth}"
        lines.append(f"| `{topic.name}` | {topic.type} | {qos} | {need} | {topic.doc} |")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.stdout.write(as_markdown(Config()))
