"""The proving ground and the planner: two nodes, real topics, time on /clock.

    ros2 launch reflectdrive demo.launch.py rviz:=true
    ros2 launch reflectdrive demo.launch.py seed:=3 planner:=constant_velocity

`reflectdrive demo` does the same without `ros2 launch`, and writes a bag and a report. The planner always uses /clock
here, because the images have simulated stamps.
"""

from pathlib import Path

from launch.actions import DeclareLaunchArgument, IncludeLaunchDescription, OpaqueFunction
from launch.launch_description_sources import PythonLaunchDescriptionSource
from launch.substitutions import LaunchConfiguration
from launch_ros.actions import Node

from launch import LaunchContext, LaunchDescription, LaunchDescriptionEntity

HERE = Path(__file__).parent
WORLD_TOPICS = {  # outputs of the world whose Autoware names differ
    "input_route": "/planning/reflectdrive/route",
    "input_instruction": "/planning/reflectdrive/instruction",
}


def generate_launch_description() -> LaunchDescription:
    planner = IncludeLaunchDescription(
        PythonLaunchDescriptionSource(str(HERE / "planner.launch.py")),
        launch_arguments={
            "config_file": LaunchConfiguration("config_file"),
            "use_sim_time": "true",
            **WORLD_TOPICS,
        }.items(),
    )
    return LaunchDescription(
        [
            argument("seed", "6", "of the town, its traffic and its appearance"),
            argument("map", "", "drive in this Lanelet2 map (.osm) instead of a generated town"),
            argument(
                "config_file",
                str(HERE.parent / "config" / "demo.yaml"),
                "YAML file laid over the defaults; it names the world's camera topics, as config/demo.yaml does",
            ),
            argument("namespace", "/planning/reflectdrive", "namespace of the planner"),
            argument("log_level", "info", "least severe message shown"),
            OpaqueFunction(function=world),
            planner,
        ]
    )


def argument(name: str, default: str, description: str) -> DeclareLaunchArgument:
    return DeclareLaunchArgument(name, default_value=default, description=description)


def world(context: LaunchContext) -> list[LaunchDescriptionEntity]:
    def given(name: str) -> str:
        return str(LaunchConfiguration(name).perform(context))

    words = ["--seed", given("seed"), "--lock-step"]
    words += ["--trajectory", f"{given('namespace')}/reflectdrive/output/trajectory"]
    words += ["--map", given("map")] if given("map") else []
    return [
        Node(
            package="reflectdrive",
            executable="world",
            arguments=words,
            ros_arguments=["--log-level", given("log_level")],
            output="screen",
        )
    ]
