"""Checks, repairs and scores the candidates of another planner. No cameras, no network.

    ros2 launch reflectdrive check.launch.py input_trajectories:=/planning/generator/NAME/candidate_trajectories
    ros2 launch reflectdrive check.launch.py --show-args

No output uses a topic of other nodes unless an output_* argument sets it.
"""

from launch.actions import DeclareLaunchArgument, OpaqueFunction
from launch.substitutions import LaunchConfiguration
from launch_ros.actions import Node

from launch import LaunchContext, LaunchDescription, LaunchDescriptionEntity
from reflectdrive_ros.ros.launch_topics import CHECK_INPUTS, CHECK_REMAPS, CHECK_SETTINGS, NODE_ARGUMENTS


def generate_launch_description() -> LaunchDescription:
    return LaunchDescription(
        [
            *(argument(*row) for row in NODE_ARGUMENTS),
            argument(
                "route_type",
                CHECK_SETTINGS["inputs.route_type"],
                "lanelet: LaneletRoute, which needs the map; path: nav_msgs/Path; empty: as in the config file",
                ["", "path", "lanelet"],
            ),
            argument(
                "drivable_type",
                CHECK_SETTINGS["inputs.drivable_type"],
                "source of the drivable space: map, grid or none; empty: as in the config file",
                ["", "map", "grid", "none"],
            ),
            argument("unchecked", "pass", "candidates that cannot be checked: pass or drop them", ["pass", "drop"]),
            argument(
                "generator_name", "", "candidates leave under this name and ids of their own; empty: as they came"
            ),
            argument("respawn", "true", "start the node again when it ends", ["true", "false"]),
            *(argument(name, topic, f"topic: {what}") for name, topic, what in CHECK_INPUTS.values()),
            *(argument(name, topic, f"topic: {what}") for name, topic, what in CHECK_REMAPS.values()),
            OpaqueFunction(function=check),
        ]
    )


def argument(name: str, default: str, description: str, choices: list[str] | None = None) -> DeclareLaunchArgument:
    return DeclareLaunchArgument(name, default_value=default, description=description, choices=choices)


def check(context: LaunchContext) -> list[LaunchDescriptionEntity]:
    def value_of(name: str) -> str:
        return str(LaunchConfiguration(name).perform(context))

    parameters: dict[str, object] = {"check.unchecked": value_of("unchecked")}
    if value_of("use_sim_time") == "true":  # left out if false: it would override Autoware's setting for its whole tree
        parameters["use_sim_time"] = True
    for setting, name in (
        ("config_file", "config_file"),
        ("inputs.route_type", "route_type"),
        ("inputs.drivable_type", "drivable_type"),
        ("check.generator_name", "generator_name"),
    ):
        if value_of(name):
            parameters[setting] = value_of(name)
    topics = [(own, value_of(name)) for own, (name, _, _) in (*CHECK_INPUTS.items(), *CHECK_REMAPS.items())]
    return [
        Node(
            package="reflectdrive",
            executable="check",
            name="reflectdrive_check",
            namespace=value_of("namespace"),
            parameters=[parameters],
            remappings=[(own, topic) for own, topic in topics if topic != own],
            ros_arguments=["--log-level", value_of("log_level")],
            respawn=value_of("respawn") == "true",
            respawn_delay=2.0,
            output="screen",
        )
    ]
