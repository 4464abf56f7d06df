"""The proving ground and the planner: two nodes, real topics, time on /clock.

    ros2 launch reflectdrive demo.launch.py rviz:=true
    ros2 launch reflectdrive demo.launch.py seed:=3 planner:=constant_velocity

`reflectdrive demo` does the same without `ros2 launch`, and writes a bag and a report. The planner always uses /clock
here, because the images have simulated stamps.
"""

from pathlib import Path

from launch.actions import DeclareLaunchArgument, GroupAction, IncludeLaunchDescription, OpaqueFunction
from launch.launch_description_sources import PythonLaunchDescriptionSource
from launch.substitutions import LaunchConfiguration
from launch_ros.actions import Node

from launch import LaunchContext, LaunchDescription, LaunchDescriptionEntity
from reflectdrive_ros.planning import LEARNED, PLANNERS
from reflectdrive_ros.ros.launch_topics import INPUTS, OUTPUT_SETTINGS, OUTPUTS, TRACKED_OBJECTS

HERE = Path(__file__).parent
WORLD_TOPICS = {  # outputs of the world whose Autoware names differ
    "input_route": "/planning/reflectdrive/route",
    "input_instruction": "/planning/reflectdrive/instruction",
}
HANDED_ON = ("config_file", "planner", "namespace", "log_level", "rviz")


def generate_launch_description() -> LaunchDescription:
    # every argument, since those left out would be a parent's of the same name; in a group, which keeps them from it
    handed = {
        **{name: LaunchConfiguration(name) for name in HANDED_ON},
        "route_type": "",
        "lanelet_map": "",
        "use_sim_time": "true",
        "strict_start": "true",
        "respawn": "false",
        **dict.fromkeys((TRACKED_OBJECTS, *OUTPUT_SETTINGS), ""),
        **{name: topic for name, topic, _ in (*INPUTS.values(), *OUTPUTS.values())},
        **WORLD_TOPICS,
    }
    source = PythonLaunchDescriptionSource(str(HERE / "planner.launch.py"))
    planner = GroupAction([IncludeLaunchDescription(source, launch_arguments=handed.items())])
    return LaunchDescription(
        [
            argument("seed", "6", "of the town, its traffic and its appearance"),
            argument("map", "", "drive in this Lanelet2 map (.osm) instead of a generated town"),
            argument(
                "config_file",
                str(HERE.parent / "config" / "demo.yaml"),
                "YAML file laid over the defaults; it names the world's camera topics, as config/demo.yaml does",
            ),
            argument("planner", "", "the planner; empty: as in the config file", ["", *PLANNERS, *LEARNED]),
            argument("namespace", "/planning/reflectdrive", "namespace of the planner"),
            argument("log_level", "info", "least severe message shown"),
            argument("rviz", "false", "show inputs and plan in RViz (rviz2 must be installed)", ["true", "false"]),
            OpaqueFunction(function=world),
            planner,
        ]
    )


def argument(name: str, default: str, description: str, choices: list[str] | None = None) -> DeclareLaunchArgument:
    return DeclareLaunchArgument(name, default_value=default, description=description, choices=choices)


def world(context: LaunchContext) -> list[LaunchDescriptionEntity]:
    def value_of(name: str) -> str:
        return str(LaunchConfiguration(name).perform(context))

    words = ["--seed", value_of("seed"), "--lock-step"]
    words += ["--trajectory", f"{value_of('namespace')}/reflectdrive/output/trajectory"]
    words += ["--map", value_of("map")] if value_of("map") else []
    return [
        Node(
            package="reflectdrive",
            executable="world",
            arguments=words,
            ros_arguments=["--log-level", value_of("log_level")],
            output="screen",
        )
    ]
