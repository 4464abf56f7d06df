"""planner.launch.py: shadow mode by default, Autoware's topics in, and a clean end.

What can be said without ROS's `launch` is said everywhere; the rest runs where `launch` and `launch_ros` are installed.
"""

import ast
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from reflectdrive_ros.config import Config, InputsConfig
from reflectdrive_ros.ros import topics

FILE = Path(__file__).parents[1] / "launch" / "planner.launch.py"
START_S = 60.0


def table(name):
    """A table of the launch file, read from its source."""
    tree = ast.parse(FILE.read_text())
    (value,) = (
        node.value
        for node in tree.body
        if isinstance(node, ast.Assign) and [target.id for target in node.targets] == [name]
    )
    return ast.literal_eval(value)


# --- without launch --------------------------------------------------------------------------------------------------


def test_the_file_compiles():
    compile(FILE.read_text(), str(FILE), "exec")


@pytest.mark.parametrize("route_type", ["path", "lanelet"])
def test_every_remapped_input_is_one_of_the_nodes(route_type):
    known = {topic.name for topic in topics.inputs(Config(inputs=InputsConfig(route_type=route_type)))}
    assert set(table("INPUTS")) <= known
    cameras = {name for name in known if name.startswith("~/input/camera/")}  # these are settings
    assert known - cameras - {"/tf_static"} == set(table("INPUTS"))


def test_every_remapped_output_is_one_of_the_nodes():
    assert set(table("OUTPUTS")) <= {topic.name for topic in topics.OUTPUTS if topic.name.startswith("~/output/")}


def test_autowares_names_are_the_defaults():
    defaults = {own: topic for own, (_, topic, _) in table("INPUTS").items()}
    assert defaults["~/input/odometry"] == "/localization/kinematic_state"
    assert defaults["~/input/acceleration"] == "/localization/acceleration"
    assert defaults["~/input/route"] == "/planning/mission_planning/route"
    assert defaults["~/input/objects"] == "/perception/object_recognition/objects"


def test_the_dds_profile_lies_where_the_file_looks():
    assert 'str(SHARE / "config" / "fastdds.xml")' in FILE.read_text()
    assert (FILE.parents[1] / "config" / "fastdds.xml").is_file()


# --- with launch -----------------------------------------------------------------------------------------------------


@pytest.fixture
def description():
    """The loaded launch file: module of its own, for its functions, and its description."""
    pytest.importorskip("launch.actions", reason="launch comes with a ROS installation, not from PyPI")
    pytest.importorskip("launch_ros.actions", reason="launch_ros comes with a ROS installation, not from PyPI")
    from launch.launch_description_sources import PythonLaunchDescriptionSource
    from launch.launch_service import LaunchService

    context = LaunchService(argv=[]).context
    return PythonLaunchDescriptionSource(str(FILE)).get_launch_description(context), context


def started(description, **arguments):
    """What the launch file would start with these arguments: (the node action, warnings)."""
    from launch.actions import DeclareLaunchArgument, OpaqueFunction
    from launch_ros.actions import Node

    made, context = description
    context.launch_configurations.update(arguments)
    for entity in made.entities:
        if isinstance(entity, DeclareLaunchArgument):
            entity.execute(context)
    (function,) = (entity for entity in made.entities if isinstance(entity, OpaqueFunction))
    entities = function.execute(context)
    (node,) = (entity for entity in entities if isinstance(entity, Node))
    warnings = ["".join(part.perform(context) for part in entity.msg) for entity in entities if entity is not node]
    node._perform_substitutions(context)
    return node, warnings


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


@pytest.mark.parametrize("own_profile", ["", "/etc/fastdds.xml"])
def test_a_users_dds_profile_is_kept(description, own_profile, monkeypatch):
    monkeypatch.setenv("FASTRTPS_DEFAULT_PROFILES_FILE", own_profile)
    node, _ = started(description)
    given = {
        "".join(part.perform(description[1]) for part in key): "".join(part.perform(description[1]) for part in value)
        for key, value in node.additional_env or ()
    }
    if own_profile:
        assert given == {}
    else:
        assert Path(given["FASTRTPS_DEFAULT_PROFILES_FILE"]).name == "fastdds.xml"


LAUNCH = """
import sys
from launch import LaunchDescription, LaunchService
from launch.actions import IncludeLaunchDescription
from launch.launch_description_sources import PythonLaunchDescriptionSource
service = LaunchService()
given = [word.split(":=", 1) for word in sys.argv[2:]]
include = IncludeLaunchDescription(PythonLaunchDescriptionSource(sys.argv[1]), launch_arguments=given)
service.include_launch_description(LaunchDescription([include]))
sys.exit(service.run())
"""


@pytest.mark.dds
def test_the_node_starts_and_an_interrupt_ends_it_cleanly(description, tmp_path):
    log = tmp_path / "log.txt"
    with log.open("wb") as sink:
        process = subprocess.Popen(
            [sys.executable, "-c", LAUNCH, str(FILE), "planner:=constant_velocity"],
            stdout=sink,
            stderr=subprocess.STDOUT,
            env={**os.environ, "ROS_LOG_DIR": str(tmp_path)},
        )
    try:
        end = time.monotonic() + START_S
        while "planner constant_velocity" not in log.read_text() and process.poll() is None and time.monotonic() < end:
            time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        code = process.wait(timeout=20)
    finally:
        process.kill()
    told = log.read_text()
    assert "planner constant_velocity" in told, told
    assert code == 0, told
    assert re.search("process has finished cleanly", told), told
    assert "Traceback" not in told
