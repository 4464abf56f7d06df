"""What launch files declare and hand on, read without a ROS installation."""

import ast
import re
import xml.etree.ElementTree as ElementTree

import pytest
import yaml
from launch_tables import AUTOWARE, CHECK, DEMO, FILE, REPLAY, ROOT, called, declared, table, xml_arguments

from reflectdrive_ros.core.config import Config, InputsConfig, load
from reflectdrive_ros.demo import world_messages
from reflectdrive_ros.planning import LEARNED
from reflectdrive_ros.ros import topics
from reflectdrive_ros.ros.launch_topics import CHECK_INPUTS, CHECK_REMAPS, INPUTS, NODE_ARGUMENTS, OUTPUTS, SHOWN_ONLY


def test_every_remapped_topic_is_one_of_the_nodes():
    settings = InputsConfig(route_type="lanelet", drivable_type="grid", obstacles_type="cloud")
    names = {topic.name for topic in topics.inputs(Config(inputs=settings))}
    cameras = {name for name in names if name.startswith("~/input/camera/")}  # these are settings
    assert names - cameras - {"/tf_static"} == set(INPUTS)
    assert set(OUTPUTS) <= {topic.name for topic in topics.OUTPUTS if topic.name.startswith("~/")}


def test_the_planners_to_choose_from_are_all_that_there_are():
    (row,) = (row for row in ast.walk(ast.parse(FILE.read_text())) if argument_name(row) == "planner")
    assert ast.unparse(row.args[3]) == "['', *PLANNERS, *LEARNED]"
    assert "reflexdiffusion" in LEARNED


def argument_name(node):
    """The name that a call `argument(NAME, ..)` declares; empty for any other node."""
    if not isinstance(node, ast.Call) or getattr(node.func, "id", "") != "argument":
        return ""
    return getattr(node.args[0], "value", "")


def test_the_check_node_is_remapped_by_its_own_topics_and_in_shadow_by_default():
    settings = InputsConfig(route_type="lanelet", drivable_type="grid", obstacles_type="cloud")
    inputs = {topic.name for topic in topics.check_inputs(Config(inputs=settings))} - {"/tf_static"}
    assert set(CHECK_INPUTS) == {topics.CHECK_CANDIDATES.name} | inputs
    assert set(CHECK_REMAPS) <= {topic.name for topic in topics.CHECK_OUTPUTS}
    assert {own: topic for own, (_, topic, _) in CHECK_REMAPS.items()} == {own: own for own in CHECK_REMAPS}


def test_autowares_names_are_the_defaults():
    names = {
        "~/input/odometry": "/localization/kinematic_state",
        "~/input/acceleration": "/localization/acceleration",
        "~/input/route": "/planning/mission_planning/route",
        "~/input/map": "/map/vector_map",
        "~/input/objects": "/perception/object_recognition/objects",
        "~/input/operation_mode_state": "/api/operation_mode/state",
        "~/input/turn_indicators_status": "/vehicle/status/turn_indicators_status",
    }
    assert {own: INPUTS[own][1] for own in names} == names


def test_the_dds_profile_and_the_rviz_file_lie_where_the_file_looks():
    for parts in (("fastdds.xml",), ("rviz", "reflectdrive.rviz")):
        assert "SHARE / " + " / ".join(f'"{part}"' for part in ("config", *parts)) in FILE.read_text()
        assert ROOT.joinpath("config", *parts).is_file()


@pytest.mark.parametrize("file", [FILE, CHECK, REPLAY, DEMO], ids=lambda file: file.name)
def test_every_argument_says_what_it_is(file):
    shared = [list(row[:3]) for row in NODE_ARGUMENTS]
    for words in [*(words for words, _ in called("argument", file) if words != ["*row"]), *shared]:
        assert len(words) >= 3, words
        assert words[2] != ""
    for _, keywords in called("DeclareLaunchArgument", file):
        assert "description" in keywords


def test_time_is_the_wall_clocks_unless_asked():
    (default,) = (row[1] for row in NODE_ARGUMENTS if row[0] == "use_sim_time")
    for file in (FILE, CHECK):
        assert ["*row"] in [words for words, _ in called("argument", file)]
    assert default == xml_arguments()["use_sim_time"].get("default") == "false"


def test_the_xml_file_hands_on_what_the_planner_file_declares():
    (include,) = ElementTree.parse(AUTOWARE).getroot().findall("group/include")
    assert include.get("file") == "$(dirname)/planner.launch.py"
    handed = {entry.get("name"): entry.get("value") for entry in include.findall("arg")}
    assert set(handed) == declared()  # what is left out would be the parent's argument of that name
    fixed = {"rviz": "false"}  # an argument of Autoware's own
    assert handed["planner"] == "$(var reflectdrive_planner)"
    assert {name: handed.pop(name) for name in fixed} == fixed
    assert set(handed.values()) == {f"$(var {name})" for name in xml_arguments()}
    assert all(entry.get("description") for entry in xml_arguments().values())


def test_inside_autoware_the_map_comes_by_its_topic_and_no_file_is_needed():
    defaults = {name: entry.get("default") for name, entry in xml_arguments().items()}
    assert None not in defaults.values()
    assert (defaults["route_type"], defaults["lanelet_map"]) == ("lanelet", "")
    assert defaults["input_vector_map"] == INPUTS["~/input/map"][1] == "/map/vector_map"


def in_shadow(default):
    """A default that depends on `output_trajectories`: the first of its two names, that without this argument."""
    return re.sub(r"^\$\(eval \"'(.*?)' if .*$", r"\1", default)


def test_inside_autoware_too_nothing_that_a_node_acts_on_leaves_the_namespace_by_default():
    defaults = {name: entry.get("default") for name, entry in xml_arguments().items() if "output_" in name}
    shadow = {name: in_shadow(default) for name, default in defaults.items()}
    assert shadow.pop("output_planning_factors") == "/planning/planning_factors/reflectdrive"
    assert set(shadow.values()) == set(OUTPUTS) - {"~/output/planning_factors"}
    assert set(SHOWN_ONLY) <= set(OUTPUTS)
    names = {own: name for own, (name, _, _) in INPUTS.items()}
    for own, (_, topic, _) in INPUTS.items():
        if names[own] in xml_arguments():
            assert in_shadow(xml_arguments()[names[own]].get("default")) == topic


@pytest.mark.parametrize("name", ["demo", "recorded"])
def test_the_cameras_of_the_shipped_files_are_those_of_our_bags(name):
    config = load(ROOT / "config" / f"{name}.yaml")
    car = {topic.key: topic.name for topic in world_messages.car_topics(Config())}
    assert list(config.cameras.topics) == [car[f"image:{camera}"] for camera in config.cameras.names]
    assert list(config.cameras.info_topics) == [car[f"info:{camera}"] for camera in config.cameras.names]


def test_the_demo_listens_where_the_world_speaks_and_replay_records_what_is_published():
    car = {topic.private: topic.name for topic in world_messages.car_topics(Config())}
    inputs = {own: table("WORLD_TOPICS", DEMO).get(name, topic) for own, (name, topic, _) in INPUTS.items()}
    assert {own: inputs[own] for own in car if own.startswith("~/input") and own in inputs} == {
        own: car[own] for own in inputs if own in car
    }
    silent = {"drivable", "obstacles", "max_velocity", "operation_mode_state", "turn_indicators_status"}  # not sent
    assert inputs.keys() - car.keys() <= {f"~/input/{name}" for name in silent}
    assert load(ROOT / "config" / "demo.yaml").engine.watchdog_ms >= 10_000.0  # a world may be slower than time
    assert {f"~/output/{name}" for name in table("RECORDED", REPLAY)} <= {topic.name for topic in topics.OUTPUTS}


def test_every_launch_file_has_its_configuration_installed():
    assert "install(DIRECTORY launch config models" in (ROOT / "CMakeLists.txt").read_text()
    for file in (REPLAY, DEMO):
        for name in re.findall(r'"config" / "([a-z.]+yaml)"', file.read_text()):
            assert yaml.safe_load((ROOT / "config" / name).read_text())


# all of diffusion_planner, from its node and from its include in autoware_launch main
THEIRS = """
data_path diffusion_planner_param_path input_odometry input_acceleration input_route input_traffic_signals
input_tracked_objects input_vector_map input_turn_indicators debug/output_traffic_signal output_trajectories
output_turn_indicators output_trajectory output_predicted_objects
/planning/planning_factors/diffusion_planner ~/debug/route_marker ~/debug/lane_marker ~/debug/linestring_marker
~/debug/snapped_pose ~/debug/snap_interpolation_time ~/debug/processing_time_ms ~/debug/processing_time_detail_ms
~/debug/inference_time_ms ~/debug/denoising_steps ~/debug/guidance_status ~/service/set_start_guidance_enabled
~/service/set_stop_guidance_enabled ~/service/set_centerline_guidance_enabled inference_status plugins_path
model.backend model.precision build_only guidance.start_guidance.max_scale planning_frequency_hz ignore_neighbors
remap_unsupported_objects_to_pedestrian traffic_light_group_msg_timeout_seconds batch_size temperature
velocity_smoothing_window stopping_threshold turn_indicator_keep_offset turn_indicator_hold_duration shift_x delay_step
line_string_max_step_m use_time_interpolation object_motion_resampling.enable ego_snap_to_prev_trajectory.enable
planning_factor.enable_stop debug_params.publish_debug_map camp.enabled
"""


def test_the_page_has_a_row_for_all_that_diffusion_planner_has():
    section = (ROOT / "docs" / "autoware.md").read_text().split("## Against diffusion_planner")[1].split("\n## ")[0]
    rows = [line.split(" | ")[0] for line in section.splitlines() if line.startswith("| ")]
    named = [name for row in rows for name in re.findall(r"`([^`]+)`", row)]
    named = [
        re.escape(name).replace(r"\*", ".*").replace(r"\{", "(").replace(r"\}", ")").replace(",", "|") for name in named
    ]
    missing = [name for name in THEIRS.split() if not re.fullmatch(f"(~/debug/)?({'|'.join(named)})", name)]
    assert missing == []
