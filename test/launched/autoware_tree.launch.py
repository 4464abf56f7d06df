"""The planner in a launch tree like Autoware's: vehicle_info and another node's file are parameters of every node."""

from pathlib import Path

import yaml
from launch.actions import IncludeLaunchDescription
from launch.launch_description_sources import AnyLaunchDescriptionSource
from launch_ros.actions import SetParameter, SetParametersFromFile

from launch import LaunchDescription

HERE = Path(__file__).parent


def generate_launch_description():
    vehicle_info = yaml.safe_load((HERE / "vehicle_info.param.yaml").read_text())["/**"]["ros__parameters"]
    return LaunchDescription(
        [
            SetParameter("use_sim_time", False),
            *(SetParameter(name, value) for name, value in vehicle_info.items()),
            SetParametersFromFile(str(HERE / "another_node.param.yaml")),
            IncludeLaunchDescription(
                AnyLaunchDescriptionSource(str(HERE.parents[1] / "launch" / "autoware.launch.xml"))
            ),
        ]
    )
