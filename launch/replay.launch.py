"""Plays a bag to the planner: recorded time on /clock, and RViz on request.

    ros2 launch reflectdrive replay.launch.py bag:=/bags/drive config_file:=car.yaml rviz:=true
    ros2 launch reflectdrive replay.launch.py bag:=/bags/drive record:=/bags/plans

Use `reflectdrive replay` for numbers and a report, this for watching and for other nodes beside it. The planner always
uses /clock here. Route and instruction of bags of `reflectdrive make-bag` are found by their names. All processes end
with the bag, or with a planner that fails.
"""

from pathlib import Path

from launch.actions import (
    DeclareLaunchArgument,
    EmitEvent,
    ExecuteProcess,
    GroupAction,
    IncludeLaunchDescription,
    OpaqueFunction,
    RegisterEventHandler,
    TimerAction,
)
from launch.event_handlers import OnProcessExit
from launch.events import Shutdown
from launch.events.process import ProcessExited
from launch.launch_description_sources import PythonLaunchDescriptionSource
from launch.substitutions import LaunchConfiguration

from launch import LaunchContext, LaunchDescription, LaunchDescriptionEntity
from reflectdrive_ros.planning import LEARNED, PLANNERS
from reflectdrive_ros.ros.bag import BagError, BagReader
from reflectdrive_ros.ros.launch_topics import INPUTS, OUTPUT_SETTINGS, OUTPUTS, TRACKED_OBJECTS

HERE = Path(__file__).parent
CLOCK_HZ = "100"
LAST_PLAN_S = 1.0  # time in which the planner may still publish after the last message
MADE_TOPICS = {  # topics of `reflectdrive make-bag` whose Autoware names differ
    "input_route": "/planning/reflectdrive/route",
    "input_instruction": "/planning/reflectdrive/instruction",
}
HANDED_ON = ("config_file", "planner", "route_type", "lanelet_map", "namespace", "log_level", "rviz")
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
            argument("planner", "", "the planner; empty: as in the config file", ["", *PLANNERS, *LEARNED]),
            argument("route_type", "", "path, lanelet; empty: as in the config file", ["", "path", "lanelet"]),
            argument(
                "lanelet_map", "", "the map's .osm file: the route is a LaneletRoute; empty: as in the config file"
            ),
            argument("namespace", "/planning/reflectdrive", "namespace of the planner"),
            argument("log_level", "info", "least severe message shown"),
            argument("rviz", "false", "show inputs and plan in RViz (rviz2 must be installed)", ["true", "false"]),
            *(topic_argument(*row) for row in INPUTS.values()),
            OpaqueFunction(function=planner),
            OpaqueFunction(function=player),
        ]
    )


def argument(name: str, default: str, description: str, choices: list[str] | None = None) -> DeclareLaunchArgument:
    return DeclareLaunchArgument(name, default_value=default, description=description, choices=choices)


def topic_argument(name: str, default: str, what: str) -> DeclareLaunchArgument:
    """The argument of an input topic, empty by default where `reflectdrive make-bag` has its own name for it."""
    if name in MADE_TOPICS:
        return argument(name, "", f"topic: {what}; empty: {MADE_TOPICS[name]} if the bag has it, else {default}")
    return argument(name, default, f"topic: {what}")


def planner(context: LaunchContext) -> list[LaunchDescriptionEntity]:
    try:
        with BagReader(str(LaunchConfiguration("bag").perform(context))) as bag:
            recorded = {topic.name for topic in bag.topics}
    except BagError:
        recorded = set()  # `ros2 bag play` reports errors

    def value_of(name: str) -> str:
        return str(LaunchConfiguration(name).perform(context))

    recorded_inputs = {name: topic for name, topic in MADE_TOPICS.items() if topic in recorded}
    # every argument, since those left out would be a parent's of the same name; in a group, which keeps them from it
    handed = {
        **{name: value_of(name) for name in HANDED_ON},
        "use_sim_time": "true",
        "strict_start": "true",
        "respawn": "false",
        **dict.fromkeys((TRACKED_OBJECTS, *OUTPUT_SETTINGS), ""),
        **{name: value_of(name) or recorded_inputs.get(name) or default for name, default, _ in INPUTS.values()},
        **{name: own for name, own, _ in OUTPUTS.values()},
    }
    source = PythonLaunchDescriptionSource(str(HERE / "planner.launch.py"))
    return [
        RegisterEventHandler(OnProcessExit(on_exit=end_without_planner)),
        GroupAction([IncludeLaunchDescription(source, launch_arguments=handed.items())]),
    ]


def end_without_planner(event: ProcessExited, context: LaunchContext) -> list[LaunchDescriptionEntity]:
    """Nothing is played to a planner that has failed, for example one that cannot start."""
    if not event.process_name.startswith("planner") or event.returncode == 0 or context.is_shutdown:
        return []
    return [EmitEvent(event=Shutdown(reason=f"the planner has ended with exit code {event.returncode}"))]


def player(context: LaunchContext) -> list[LaunchDescriptionEntity]:
    def value_of(name: str) -> str:
        return str(LaunchConfiguration(name).perform(context))

    profile = str(HERE.parent / "config" / "fastdds.xml")
    lossless = {"FASTRTPS_DEFAULT_PROFILES_FILE": context.environment.get("FASTRTPS_DEFAULT_PROFILES_FILE", profile)}
    words = ["ros2", "bag", "play", value_of("bag"), "--clock", CLOCK_HZ, "--rate", value_of("rate")]
    play = ExecuteProcess(cmd=words, additional_env=lossless, output="screen")
    end = TimerAction(period=LAST_PLAN_S, actions=[EmitEvent(event=Shutdown(reason="the bag has been played"))])
    actions: list[LaunchDescriptionEntity] = [
        play,
        RegisterEventHandler(OnProcessExit(target_action=play, on_exit=[end])),
    ]
    if value_of("record"):
        topics = [f"{value_of('namespace')}/reflectdrive/output/{name}" for name in RECORDED]
        words = ["ros2", "bag", "record", "-o", value_of("record"), *topics, "/diagnostics"]
        actions.insert(0, ExecuteProcess(cmd=words, additional_env=lossless, output="screen"))
    return actions
