"""The launch files: shadow mode by default, Autoware's topics in, and a clean end.

What can be said without ROS's `launch` is said everywhere; the rest runs where `launch` and `launch_ros` are installed.
"""

import logging
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
import yaml
from launch_tables import AUTOWARE, DEMO, FILE, REPLAY, ROOT, declared

from reflectdrive_ros.core.config import Config, override_dotted
from reflectdrive_ros.demo import world_messages
from reflectdrive_ros.ros.bag import BagWriter

AUTOWARES_TREE = ROOT / "test" / "launched" / "autoware_tree.launch.py"
OWN_DEMO = ROOT / "test" / "launched" / "own_demo.yaml"
MAP = ROOT / "test" / "data" / "lanelet2_maps" / "cargo_transport_map.osm"
START_S = 60.0
END_S = 2.0  # within this time all processes of a launch file end after Ctrl-C


# --- with launch -----------------------------------------------------------------------------------------------------


@pytest.fixture
def launching():
    """A launch context of its own; skips where ROS's launch is not installed."""
    pytest.importorskip("launch.actions", reason="launch comes with a ROS installation, not from PyPI")
    pytest.importorskip("launch_ros.actions", reason="launch_ros comes with a ROS installation, not from PyPI")
    from launch.launch_service import LaunchService

    return LaunchService(argv=[]).context


@pytest.fixture
def description(launching):
    return loaded(FILE, launching), launching


def loaded(file, context):
    from launch.launch_description_sources import AnyLaunchDescriptionSource

    return AnyLaunchDescriptionSource(str(file)).get_launch_description(context)


def everything(entities, context):
    """Every action that a description would start, with what it includes, in order."""
    from launch.actions import (
        DeclareLaunchArgument,
        GroupAction,
        IncludeLaunchDescription,
        OpaqueFunction,
        PopEnvironment,
        PopLaunchConfigurations,
        PushEnvironment,
        PushLaunchConfigurations,
        SetLaunchConfiguration,
    )

    scopes = PushEnvironment, PopEnvironment, PushLaunchConfigurations, PopLaunchConfigurations
    for entity in entities:
        yield entity
        if isinstance(entity, (DeclareLaunchArgument, SetLaunchConfiguration, *scopes)):
            entity.execute(context)
        elif isinstance(entity, (IncludeLaunchDescription, OpaqueFunction, GroupAction)):
            yield from everything(entity.execute(context) or [], context)
        elif hasattr(entity, "entities"):
            yield from everything(entity.entities, context)


def nodes(file, context, **arguments):
    """executable -> node action, for what a launch file starts with these arguments."""
    from launch.actions import IncludeLaunchDescription
    from launch.launch_description_sources import AnyLaunchDescriptionSource
    from launch_ros.actions import Node

    include = IncludeLaunchDescription(AnyLaunchDescriptionSource(str(file)), launch_arguments=arguments.items())
    actions = {}
    for entity in everything([include], context):
        if isinstance(entity, Node):
            entity._perform_substitutions(context)
            actions[text(entity.node_executable, context)] = entity
    return actions


def text(parts, context):
    return parts if isinstance(parts, str) else "".join(part.perform(context) for part in parts)


def started(description, **arguments):
    """What the planner's launch file would start with these arguments: (the node action, warnings)."""
    from launch_ros.actions import Node

    launch_description, context = description
    context.launch_configurations.update(arguments)
    log, warnings = logging.getLogger("launch.user"), []
    listener = logging.Handler(logging.WARNING)
    listener.emit = lambda record: warnings.append(record.getMessage())
    log.addHandler(listener)
    try:
        entities = list(everything(launch_description.entities, context))
    finally:
        log.removeHandler(listener)
    (node,) = (entity for entity in entities if isinstance(entity, Node))
    node._perform_substitutions(context)
    return node, warnings


def parameters(node):
    """What a node action gives to its node alone."""
    values = {}
    for file, _ in node._Node__expanded_parameter_arguments or ():
        (part,) = yaml.safe_load(Path(file).read_text()).values()
        values |= part["ros__parameters"]
    return values


def test_by_default_nothing_leaves_the_nodes_own_namespace(description):
    node, warnings = started(description)
    assert warnings == []
    assert node.node_name == "/planning/reflectdrive/reflectdrive"
    remapped = dict(node.expanded_remapping_rules)
    assert not [own for own in remapped if own.startswith("~/output")]
    assert "/planning/trajectory" not in remapped.values()
    assert remapped["~/input/odometry"] == "/localization/kinematic_state"


def test_a_trajectory_for_the_car_is_announced_loudly(description):
    node, (warning,) = started(description, output_trajectory="/planning/trajectory")
    assert ("~/output/trajectory", "/planning/trajectory") in node.expanded_remapping_rules
    assert "WARNING: no shadow mode: ~/output/trajectory is published as /planning/trajectory" in warning


def test_a_wrong_planner_is_refused_with_the_ones_there_are(description):
    with pytest.raises(RuntimeError, match="route_follower"):
        started(description, planner="route_folower")


def test_what_is_only_shown_is_published_elsewhere_without_a_warning(description):
    node, warnings = started(description, output_planning_factors="/planning/planning_factors/reflectdrive")
    assert ("~/output/planning_factors", "/planning/planning_factors/reflectdrive") in node.expanded_remapping_rules
    assert warnings == []


@pytest.mark.parametrize("own_profile", ["", "/etc/fastdds.xml"])
def test_a_users_dds_profile_is_kept(description, own_profile, monkeypatch):
    monkeypatch.setenv("FASTRTPS_DEFAULT_PROFILES_FILE", own_profile)
    node, _ = started(description)
    environment = {text(key, description[1]): text(value, description[1]) for key, value in node.additional_env or ()}
    if own_profile:
        assert environment == {}
    else:
        assert Path(environment["FASTRTPS_DEFAULT_PROFILES_FILE"]).name == "fastdds.xml"


def test_rviz_looks_at_the_namespace_that_the_node_lives_in(launching):
    rviz = nodes(FILE, launching, rviz="true", namespace="/car")["rviz2"]
    remapped = dict(rviz.expanded_remapping_rules)
    assert remapped["/planning/reflectdrive/reflectdrive/debug/path"] == "/car/reflectdrive/debug/path"


def test_the_demo_starts_a_world_and_a_planner_that_follows_its_clock(launching):
    actions = nodes(DEMO, launching, seed="3", namespace="/car")
    assert set(actions) == {"world", "planner"}
    remapped = dict(actions["planner"].expanded_remapping_rules)
    assert remapped["~/input/route"] == "/planning/reflectdrive/route"
    assert actions["planner"].node_name == "/car/reflectdrive"
    words = [text(part, launching) for part in actions["world"].cmd]
    assert words[words.index("--seed") + 1] == "3"
    assert words[words.index("--trajectory") + 1] == "/car/reflectdrive/output/trajectory"


THEIR_NODE = "/planning/trajectory_generator/neural_network_based_planner/diffusion_planner_node"
THEIR_ARGUMENTS = {  # of the include of diffusion_planner in autoware_launch main, 2026-08-21
    "data_path": "/autoware_data/ml_models",
    "diffusion_planner_param_path": "/autoware_launch/diffusion_planner.param.yaml",
    "input_odometry": "/localization/kinematic_state",
    "input_acceleration": "/localization/acceleration",
    "input_route": "/planning/mission_planning/route",
    "input_traffic_signals": "/perception/traffic_light_recognition/traffic_signals",
    "input_tracked_objects": "/perception/object_recognition/tracking/objects",
    "input_vector_map": "/map/vector_map",
    "input_turn_indicators": "/vehicle/status/turn_indicators_status",
    "debug/output_traffic_signal": "/planning/scenario_planning/lane_driving/behavior_planning/debug/traffic_signal",
    "output_trajectories": "/planning/generator/diffusion_planner/candidate_trajectories",
    "output_turn_indicators": "/planning/turn_indicators_cmd",
}


def test_with_the_arguments_of_autowares_include_every_topic_has_the_name_that_autoware_reads(launching):
    planner = nodes(AUTOWARE, launching, **THEIR_ARGUMENTS, reflectdrive_planner="reflexdiffusion")["planner"]
    remapped = dict(planner.expanded_remapping_rules)
    assert remapped["~/output/candidate_trajectories"] == THEIR_ARGUMENTS["output_trajectories"]
    assert remapped["~/output/turn_indicators"] == "/planning/turn_indicators_cmd"
    assert remapped["~/output/debug/traffic_signal"] == THEIR_ARGUMENTS["debug/output_traffic_signal"]
    assert remapped["~/input/objects"] == THEIR_ARGUMENTS["input_tracked_objects"]
    # no scenario_planning, no selector of limits: the operator's limit as RViz and the API publish it
    assert remapped["~/input/max_velocity"] == "/planning/scenario_planning/max_velocity_default"
    for own in ("~/output/trajectory", "~/output/predicted_objects", "~/debug/processing_time_ms"):
        assert remapped[own] == own.replace("~", THEIR_NODE)  # the evaluator, RViz and processing_time_checker
    assert remapped["~/output/planning_factors"] == "/planning/planning_factors/diffusion_planner"
    values = parameters(planner)
    assert values["planner"] == "reflexdiffusion"
    assert (values["output.candidates_max"], values["output.horizon_s"]) == (1, 8.0)
    assert values["inputs.objects_type"] == "tracked"
    override_dotted(Config(), {name: value for name, value in values.items() if "." in name})  # all are settings


def test_without_candidates_for_autoware_nothing_has_a_name_of_diffusion_planner(launching):
    planner = nodes(AUTOWARE, launching)["planner"]
    outputs = {own: topic for own, topic in planner.expanded_remapping_rules if not own.startswith("~/input")}
    assert outputs == {"~/output/planning_factors": "/planning/planning_factors/reflectdrive"}
    assert "inputs.objects_type" not in parameters(planner)
    assert dict(planner.expanded_remapping_rules)["~/input/max_velocity"] == "/planning/scenario_planning/max_velocity"
    assert dict(planner.expanded_remapping_rules)["~/input/objects"] == "/perception/object_recognition/objects"


def test_outside_of_autoware_length_and_number_of_candidates_are_those_of_the_config_file(launching):
    assert not {"output.candidates_max", "output.horizon_s"} & parameters(nodes(FILE, launching)["planner"]).keys()
    planner = nodes(FILE, launching, candidates_max="3", horizon_s="6.5")["planner"]
    values = parameters(planner)
    assert (values["output.candidates_max"], values["output.horizon_s"]) == (3, 6.5)


def test_arguments_of_autowares_own_neither_come_in_nor_change(launching):
    launching.launch_configurations.update(rviz="true", planner="constant_velocity")
    actions = nodes(AUTOWARE, launching)
    assert set(actions) == {"planner"}  # no RViz
    assert "planner" not in parameters(actions["planner"])
    assert launching.launch_configurations["rviz"] == "true"
    assert launching.launch_configurations["planner"] == "constant_velocity"


@pytest.mark.parametrize("file", [DEMO, REPLAY], ids=lambda file: file.name)
def test_demo_and_replay_hand_on_every_argument_that_the_planner_file_declares(launching, file):
    """A parent's argument of a name that is left out would be the planner's."""
    from launch.actions import IncludeLaunchDescription

    launching.launch_configurations["bag"] = "/bags/drive"
    entities = everything(loaded(file, launching).entities, launching)
    (include,) = (entity for entity in entities if isinstance(entity, IncludeLaunchDescription))
    assert {text(name, launching) for name, _ in include.launch_arguments} == declared()


@pytest.mark.parametrize("file", [DEMO, REPLAY], ids=lambda file: file.name)
def test_a_parents_arguments_neither_reach_the_planner_of_demo_and_replay_nor_change(launching, file):
    parents = {
        "respawn": "true",
        "use_sim_time": "false",
        "strict_start": "false",
        "output_trajectory": "/planning/trajectory",
    }
    launching.launch_configurations.update(parents)
    planner = nodes(file, launching, bag="/bags/drive", planner="constant_velocity")["planner"]
    assert parameters(planner) | {"use_sim_time": True, "strict_start": True} == parameters(planner)
    assert parameters(planner)["planner"] == "constant_velocity"
    assert "~/output/trajectory" not in dict(planner.expanded_remapping_rules)
    assert parents.items() <= launching.launch_configurations.items()


@pytest.mark.parametrize("file", [FILE, AUTOWARE], ids=lambda file: file.name)
@pytest.mark.parametrize("strict", [None, "true"])
def test_in_a_stack_the_node_stays_where_it_cannot_start_unless_asked(launching, file, strict):
    launch_arguments = {} if strict is None else {"strict_start": strict}
    assert parameters(nodes(file, launching, **launch_arguments)["planner"])["strict_start"] is (strict == "true")


@pytest.mark.parametrize("use_sim_time", ["true", "false"])
def test_time_that_the_launch_tree_sets_is_not_overruled(launching, use_sim_time):
    values = parameters(nodes(AUTOWARE, launching, use_sim_time=use_sim_time)["planner"])
    assert values.get("use_sim_time") is (True if use_sim_time == "true" else None)


def test_the_demo_takes_a_configuration_file(launching):
    assert parameters(nodes(DEMO, launching)["planner"])["config_file"] == str(ROOT / "config" / "demo.yaml")
    planner = nodes(DEMO, launching, config_file="/etc/own.yaml")["planner"]
    assert parameters(planner)["config_file"] == "/etc/own.yaml"


def replayed(launching, **arguments):
    """own name -> topic, for the planner of replay.launch.py."""
    return dict(nodes(REPLAY, launching, **arguments)["planner"].expanded_remapping_rules)


def test_replay_looks_for_autowares_route_where_the_bag_has_none_of_ours(launching):
    assert replayed(launching, bag="/bags/drive")["~/input/route"] == "/planning/mission_planning/route"


def test_replay_finds_the_route_of_our_own_bags(launching, tmp_path):
    car = {topic.key: topic for topic in world_messages.car_topics(Config())}
    with BagWriter(tmp_path / "bag") as bag:
        for key in ("route", "instruction", "odometry"):
            bag.add_topic(car[key].name, car[key].type)
    remapped = replayed(launching, bag=str(tmp_path / "bag"))
    assert {key: remapped[f"~/input/{key}"] for key in ("route", "instruction", "odometry")} == {
        key: car[key].name for key in ("route", "instruction", "odometry")
    }


def test_replay_takes_the_route_that_a_person_names(launching, tmp_path):
    with BagWriter(tmp_path / "bag") as bag:
        bag.add_topic("/planning/reflectdrive/route", "nav_msgs/msg/Path")
    remapped = replayed(launching, bag=str(tmp_path / "bag"), input_route="/my/route")
    assert remapped["~/input/route"] == "/my/route"


def test_replay_plays_the_bag_with_its_clock_and_records_on_request(launching):
    from launch.actions import ExecuteProcess
    from launch_ros.actions import Node

    launching.launch_configurations.update(bag="/bags/drive", record="/bags/plans", rate="0.5")
    entities = list(everything(loaded(REPLAY, launching).entities, launching))
    commands = [
        [text(part, launching) for part in entity.cmd]
        for entity in entities
        if isinstance(entity, ExecuteProcess) and not isinstance(entity, Node)
    ]
    record, play = commands
    assert play[:4] == ["ros2", "bag", "play", "/bags/drive"]
    assert "--clock" in play
    assert record[:5] == ["ros2", "bag", "record", "-o", "/bags/plans"]
    assert "/planning/reflectdrive/reflectdrive/output/trajectory" in record


@pytest.mark.parametrize(
    ("name", "code", "ends"), [("planner-1", 2, True), ("planner-1", 0, False), ("rviz2-2", 1, False)]
)
def test_replay_ends_with_a_planner_that_failed(launching, name, code, ends):
    from launch.actions import EmitEvent, RegisterEventHandler
    from launch.events.process import ProcessExited
    from launch_ros.actions import Node

    launching.launch_configurations.update(bag="/bags/drive", record="", rate="1.0")
    entities = list(everything(loaded(REPLAY, launching).entities, launching))
    planner = next(entity for entity in entities if isinstance(entity, Node))
    exited = ProcessExited(action=planner, name=name, cmd=[name], cwd=None, env=None, pid=1, returncode=code)
    handlers = [each.event_handler for each in entities if isinstance(each, RegisterEventHandler)]
    actions = [action for each in handlers if each.matches(exited) for action in each.handle(exited, launching) or ()]
    assert any(isinstance(action, EmitEvent) for action in actions) == ends


LAUNCH = """
import sys
from launch import LaunchDescription, LaunchService
from launch.actions import IncludeLaunchDescription
from launch.launch_description_sources import AnyLaunchDescriptionSource
service = LaunchService()
given = [word.split(":=", 1) for word in sys.argv[2:]]
include = IncludeLaunchDescription(AnyLaunchDescriptionSource(sys.argv[1]), launch_arguments=given)
service.include_launch_description(LaunchDescription([include]))
sys.exit(service.run())
"""


VEHICLE = "from vehicle_info: vehicle.length_m 4.89, vehicle.width_m 1.896, vehicle.wheel_base_m 2.79"
FOREIGN = "parameters: ignored, no settings of this node: map_height_m"


@pytest.mark.dds
@pytest.mark.parametrize(
    ("file", "words", "processes", "log_lines"),
    [
        (FILE, ["planner:=constant_velocity"], 1, ["planner constant_velocity"]),
        (AUTOWARES_TREE, [f"lanelet_map:={MAP}"], 1, ["planner reflectdrive2", VEHICLE, FOREIGN]),
        (DEMO, [f"config_file:={OWN_DEMO}"], 2, ["planner route_follower", "the world is"]),
        (AUTOWARE, ["config_file:=missing.yaml"], 1, ["no plan is published: configuration file missing.yaml does"]),
    ],
    ids=lambda value: value.name if isinstance(value, Path) else "",
)
def test_the_nodes_start_and_an_interrupt_ends_them_cleanly(launching, tmp_path, file, words, processes, log_lines):
    """Ctrl-C as a terminal sends it: to launch and to the nodes at once; launch hands it on to the nodes as well."""
    log = tmp_path / "log.txt"
    with log.open("wb") as sink:
        process = subprocess.Popen(
            [sys.executable, "-c", LAUNCH, str(file), *words],
            stdout=sink,
            stderr=subprocess.STDOUT,
            env={**os.environ, "ROS_LOG_DIR": str(tmp_path)},
            start_new_session=True,
        )
    try:
        end = time.monotonic() + START_S
        while (
            any(word not in log.read_text() for word in log_lines) and process.poll() is None and time.monotonic() < end
        ):
            time.sleep(0.1)
        start_s = time.monotonic()
        os.killpg(process.pid, signal.SIGINT)
        code = process.wait(timeout=20)
        ended_after_s = time.monotonic() - start_s
    finally:
        with suppress(ProcessLookupError):  # what is left of its group
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    log_text = log.read_text()
    assert all(word in log_text for word in log_lines), log_text
    assert code == 0, log_text
    assert log_text.count("process has finished cleanly") == processes, log_text
    assert "Traceback" not in log_text
    assert ended_after_s < END_S, log_text
