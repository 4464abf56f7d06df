"""Plays a bag to the planner: recorded time on /clock, and RViz on request.

    ros2 launch reflectdrive replay.launch.py bag:=/bags/drive config_file:=car.yaml rviz:=true
    ros2 launch reflectdrive replay.launch.py bag:=/bags/drive record:=/bags/plans

Use `reflectdrive replay` for numbers and a report, this for watching and for other nodes beside it. The planner always
uses /clock here. Route and instruction of bags of `reflectdrive make-bag` are found by their names. All processes end
with the bag.
"""

from pathlib import Path

from launch.actions import (
    DeclareLaunchArgument,
    EmitEvent,
    ExecuteProcess,
    IncludeLaunchDescription,
    OpaqueFunction,
    RegisterEventHandler,
    TimerAction,
)
from launch.event_handlers import OnProcessExit
from launch.events import Shutdown
from launch.launch_description_sources import PythonLaunchDescriptionSource
from launch.substitutions import LaunchConfiguration

from launch import LaunchContext, LaunchDescription, LaunchDescriptionEntity
from reflectdrive_ros.ros.bag import BagError, BagReader

HERE = Path(__file__).parent
CLOCK_HZ = "100"
LAST_PLAN_S = 1.0  # time in which the planner may still publish after the last message
MADE_TOPICS = {  # topics of `reflectdrive make-bag` whose Autoware names differ
    "input_route": "/planning/reflectdrive/route",
    "input_instruction": "/planning/reflectdrive/instruction",
}
RECORDED = ("trajectory", "candidate_trajectories", "turn_indicators", "status")  # of ~/output


def generate_launch_description() -> LaunchDescription:
    return LaunchDescription(
        [
            DeclareLaunchArgument("bag", description="rosbag2 folder or file"),
            argument("rate", "1.0", "speed of playing"),
            argument("record", "", "folder for a bag of what the planner publishes; empty: none"),
            argument(
                "config_file",
                str(HERE.parent / "config" / "recorded.yaml"),
                "YAML file laid over the defaults: names the bag's camera topics",
            ),
            argument("namespace", "/planning/reflectdrive", "namespace of the planner"),
            OpaqueFunction(function=planner),
            OpaqueFunction(function=player),
        ]
    )


def argument(name: str, default: str, description: str) -> DeclareLaunchArgument:
    return DeclareLaunchArgument(name, default_value=default, description=description)


def planner(context: LaunchContext) -> list[LaunchDescriptionEntity]:
    try:
        with BagReader(str(LaunchConfiguration("bag").perform(context))) as bag:
            held = {topic.name for topic in bag.topics}
    except BagError:
        held = set()  # `ros2 bag play` reports errors
    given = context.launch_configurations
    found = {name: topic for name, topic in MADE_TOPICS.items() if topic in held and name not in given}
    return [
        IncludeLaunchDescription(
            PythonLaunchDescriptionSource(str(HERE / "planner.launch.py")),
            launch_arguments={
                "config_file": LaunchConfiguration("config_file"),
                "use_sim_time": "true",
                **found,
            }.items(),
        )
    ]


def player(context: LaunchContext) -> list[LaunchDescriptionEntity]:
    def given(name: str) -> str:
        return str(LaunchConfiguration(name).perform(context))

    profile = str(HERE.parent / "config" / "fastdds.xml")
    lossless = {"FASTRTPS_DEFAULT_PROFILES_FILE": context.environment.get("FASTRTPS_DEFAULT_PROFILES_FILE", profile)}
    words = ["ros2", "bag", "play", given("bag"), "--clock", CLOCK_HZ, "--rate", given("rate")]
    play = ExecuteProcess(cmd=words, additional_env=lossless, output="screen")
    end = TimerAction(period=LAST_PLAN_S, actions=[EmitEvent(event=Shutdown(reason="the bag has been played"))])
    actions: list[LaunchDescriptionEntity] = [
        play,
        RegisterEventHandler(OnProcessExit(target_action=play, on_exit=[end])),
    ]
    if given("record"):
        topics = [f"{given('namespace')}/reflectdrive/output/{name}" for name in RECORDED]
        words = ["ros2", "bag", "record", "-o", given("record"), *topics, "/diagnostics"]
        actions.insert(0, ExecuteProcess(cmd=words, additional_env=lossless, output="screen"))
    return actions
