"""The planner in shadow mode: subscribes to Autoware's topics and publishes in its own namespace.

    ros2 launch reflectdrive planner.launch.py config_file:=car.yaml route_type:=lanelet
    ros2 launch reflectdrive planner.launch.py --show-args

No output uses a topic of other nodes unless an output_* argument sets it. Camera topics differ between vehicles and are
settings: cameras.topics and cameras.info_topics in the config file.
"""

from pathlib import Path

from launch.actions import DeclareLaunchArgument, OpaqueFunction
from launch.substitutions import LaunchConfiguration
from launch_ros.actions import Node

from launch import LaunchContext, LaunchDescription, LaunchDescriptionEntity, logging
from reflectdrive_ros.planning import LEARNED, PLANNERS
from reflectdrive_ros.ros.launch_topics import (
    INPUTS,
    NODE_ARGUMENTS,
    OUTPUT_SETTINGS,
    OUTPUTS,
    SHOWN_ONLY,
    TRACKED_OBJECTS,
)

SHARE = Path(__file__).parent.parent

HOME = "/planning/reflectdrive/reflectdrive"  # the node's name in the default namespace
PROFILE_VARIABLES = ("FASTRTPS_DEFAULT_PROFILES_FILE", "FASTDDS_DEFAULT_PROFILES_FILE")  # Fast DDS 2 and 3


def generate_launch_description() -> LaunchDescription:
    yes_or_no = ["true", "false"]
    return LaunchDescription(
        [
            *(argument(*row) for row in NODE_ARGUMENTS),
            argument("planner", "", "the planner; empty: as in the config file", ["", *PLANNERS, *LEARNED]),
            argument(
                "route_type",
                "",
                "path: nav_msgs/Path, lanelet: LaneletRoute, which needs the map; empty: as in the config file",
                ["", "path", "lanelet"],
            ),
            argument(
                "lanelet_map",
                "",
                "the map's .osm file: the route is a LaneletRoute; empty: as in the config file, or Autoware's topic",
            ),
            argument(
                "strict_start",
                "false",
                "a setting or model that cannot be used: true ends the node with exit code 2, false reports it in "
                "/diagnostics without publishing a plan",
                yes_or_no,
            ),
            argument("respawn", "false", "start the node again when it ends", yes_or_no),
            argument("rviz", "false", "show inputs and plan in RViz (rviz2 must be installed)", yes_or_no),
            *(argument(name, topic, f"topic: {what}") for name, topic, what in INPUTS.values()),
            argument(
                TRACKED_OBJECTS, "", "topic: TrackedObjects, read in place of input_objects; empty: those are read"
            ),
            *(
                argument(name, "", f"{what}; empty: as in the config file")
                for name, (_, what) in OUTPUT_SETTINGS.items()
            ),
            *(argument(name, topic, f"topic: {what}") for name, topic, what in OUTPUTS.values()),
            OpaqueFunction(function=planner),
        ]
    )


def argument(name: str, default: str, description: str, choices: list[str] | None = None) -> DeclareLaunchArgument:
    return DeclareLaunchArgument(name, default_value=default, description=description, choices=choices)


def planner(context: LaunchContext) -> list[LaunchDescriptionEntity]:
    def value_of(name: str) -> str:
        return str(LaunchConfiguration(name).perform(context))

    # left out if false, because it would override Autoware's setting for its whole tree
    time_source: dict[str, object] = {"use_sim_time": True} if value_of("use_sim_time") == "true" else {}
    parameters: dict[str, object] = {"strict_start": value_of("strict_start") == "true", **time_source}
    for name in ("config_file", "planner"):
        if value_of(name):
            parameters[name] = value_of(name)
    if value_of("lanelet_map"):
        parameters["inputs.lanelet_map"] = value_of("lanelet_map")
    if value_of("route_type") or value_of("lanelet_map"):
        parameters["inputs.route_type"] = value_of("route_type") or "lanelet"
    if value_of("candidates_max"):
        parameters[OUTPUT_SETTINGS["candidates_max"][0]] = int(value_of("candidates_max"))
    if value_of("horizon_s"):
        parameters[OUTPUT_SETTINGS["horizon_s"][0]] = float(value_of("horizon_s"))
    inputs = [(own, value_of(name)) for own, (name, _, _) in INPUTS.items()]
    if value_of(TRACKED_OBJECTS):
        parameters["inputs.objects_type"] = "tracked"
        inputs = [(own, value_of(TRACKED_OBJECTS) if own == "~/input/objects" else topic) for own, topic in inputs]
    outputs = [(own, value_of(name)) for own, (name, _, _) in OUTPUTS.items()]
    node = Node(
        package="reflectdrive",
        executable="planner",
        name="reflectdrive",
        namespace=value_of("namespace"),
        parameters=[parameters],
        remappings=[(own, topic) for own, topic in (*inputs, *outputs) if topic != own],
        ros_arguments=["--log-level", value_of("log_level")],
        additional_env=dds_profile(context.environment),
        respawn=value_of("respawn") == "true",
        respawn_delay=2.0,
        output="screen",
    )
    for own, topic in outputs:
        if topic != own and own not in SHOWN_ONLY:
            warn_loudly(own, topic)
    return [node, *([rviz(value_of("namespace"), time_source)] if value_of("rviz") == "true" else [])]


def rviz(namespace: str, time_source: dict[str, object]) -> Node:
    """RViz with a display for every topic; its file has the default namespace, another one is remapped to it."""
    own = {name: f"{namespace}/reflectdrive/{name}" for name in ("output/trajectory", "debug/path", "debug/markers")}
    return Node(
        package="rviz2",
        executable="rviz2",
        name="reflectdrive_rviz",
        arguments=["-d", str(SHARE / "config" / "rviz" / "reflectdrive.rviz")],
        parameters=[time_source] if time_source else [],
        remappings=[(f"{HOME}/{name}", topic) for name, topic in own.items() if topic != f"{HOME}/{name}"],
        output="log",
    )


def dds_profile(environment: dict[str, str]) -> dict[str, str]:
    """Sets the shipped DDS profile, because Fast DDS's default loses camera images; a user's own profile takes
    precedence.
    """
    if any(environment.get(name) for name in PROFILE_VARIABLES):
        return {}
    return dict.fromkeys(PROFILE_VARIABLES, str(SHARE / "config" / "fastdds.xml"))


def warn_loudly(own: str, topic: str) -> None:
    logging.get_logger("launch.user").warning(
        f"\n{'!' * 100}\n!! WARNING: no shadow mode: {own} is published as {topic}.\n"
        f"!! Its subscribers will act on it; make sure that no other node publishes there.\n{'!' * 100}"
    )
