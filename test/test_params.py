"""ROS parameters of the node: what becomes a setting, what is another node's, and what is refused.

Real nodes in this process, given arguments as `ros2 run` and `ros2 launch` give them.
"""

from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml
from rclpy.context import Context
from rclpy.node import Node

from reflectdrive_ros.core.config import Config, ConfigError, VehicleConfig, settings
from reflectdrive_ros.ros.inputs.channel import Level
from reflectdrive_ros.ros.node_process import start_ros
from reflectdrive_ros.ros.params import declare_config

FILE = Path(__file__).parent / "launched" / "vehicle_info.param.yaml"
VEHICLE_INFO = yaml.safe_load(FILE.read_text())["/**"]["ros__parameters"]
MEASURED = VehicleConfig(1.0 + 2.79 + 1.1, 1.896, 2.79, 1.345, 0.7)


@contextmanager
def node(*arguments):
    context = Context()
    start_ros(["--ros-args", "-r", "__ns:=/planning/reflectdrive", *arguments], context)
    instance = Node("reflectdrive", context=context)
    try:
        yield instance
    finally:
        instance.destroy_node()
        context.try_shutdown()


def declared(*arguments):
    """The configuration and the status of the parameters that these arguments lead to."""
    with node(*arguments) as instance:
        return declare_config(instance)


IN_A_STACK = ("-p", "strict_start:=false")


def words(parameters):
    """-p arguments, as SetParameter of a launch file gives them."""
    return [word for name, value in parameters.items() for word in ("-p", f"{name}:={value}")]


def file(path, parameters, name="/**"):
    path.write_text(yaml.safe_dump({name: {"ros__parameters": parameters}}))
    return ["--params-file", str(path)]


@pytest.mark.parametrize("by_file", [True, False], ids=["file", "words"])
def test_autowares_vehicle_info_becomes_the_vehicle(tmp_path, by_file):
    arguments = file(tmp_path / "vehicle_info.param.yaml", VEHICLE_INFO) if by_file else words(VEHICLE_INFO)
    config, status = declared(*arguments)
    assert config.vehicle == MEASURED
    assert status.level is Level.OK
    assert status.message.startswith(
        "from vehicle_info: vehicle.length_m 4.89, vehicle.width_m 1.896, vehicle.wheel_base_m 2.79"
    )
    assert "set otherwise" not in status.message


def test_own_settings_of_the_vehicle_win_whether_parameter_or_file(tmp_path):
    own = tmp_path / "car.yaml"
    own.write_text("vehicle: {width_m: 2.5}\n")
    config, status = declared(*words({**VEHICLE_INFO, "config_file": own, "vehicle.length_m": 6.0}))
    assert (config.vehicle.width_m, config.vehicle.length_m) == (2.5, 6.0)
    assert config.vehicle.wheel_base_m == MEASURED.wheel_base_m
    assert status.message.endswith("set otherwise: vehicle.length_m, vehicle.width_m")


def test_a_vehicle_info_that_lacks_a_measure_is_not_used_in_part():
    lacking = {name: value for name, value in VEHICLE_INFO.items() if name != "rear_overhang"}
    config, status = declared(*words(lacking))
    assert config.vehicle == VehicleConfig()
    assert (status.level, status.message) == (Level.WARN, "vehicle_info is not used, it lacks rear_overhang")


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"wheel_base": "long"}, "vehicle_info: wheel_base is 'long', expected a number"),
        ({"wheel_base": 279.0}, "vehicle_info: setting vehicle.length_m is 281.1, expected 1.0 to 25.0"),
    ],
)
def test_a_vehicle_info_that_makes_no_car_is_refused(wrong, sentence):
    with pytest.raises(ConfigError, match=sentence):
        declared(*words({**VEHICLE_INFO, **wrong}))


def test_parameters_of_other_nodes_are_ignored_and_named(tmp_path):
    others = {"update_rate": 10.0, "vehicle_id": "default", "lidar": {"frames": ["a", "b"]}}
    config, status = declared(*file(tmp_path / "tree.yaml", others), "-p", "use_gpu:=true")
    assert config == Config()
    named = "lidar.frames, update_rate, use_gpu, vehicle_id"
    assert (status.level, status.message) == (Level.OK, f"ignored, no settings of this node: {named}")


@pytest.mark.parametrize(
    ("misspelt", "near"),
    [
        ("planer", "planner"),
        ("guards.max_speed_mps", "guard"),
        ("vehicle.whel_base_m", "vehicle.wheel_base_m"),
        ("speed_limit", "speed_limit_mps"),
    ],
)
def test_a_misspelt_setting_of_ours_is_refused(misspelt, near):
    with pytest.raises(ConfigError, match=f"did you mean '{near}'"):
        declared("-p", f"{misspelt}:=3.0")


@pytest.mark.parametrize(("similar", "near"), [("planer", "planner"), ("guards.speed", "guard"), ("camera", "cameras")])
def test_in_a_stack_a_parameter_of_no_section_of_ours_does_not_keep_the_car_from_driving(similar, near):
    """It may be another node's. A driver of ours who misspelt it reads of it in the diagnostics."""
    config, status = declared(*IN_A_STACK, "-p", f"{similar}:=3.0")
    assert config == Config()
    assert status.level is Level.WARN
    assert status.message == f"unknown setting '{similar}' is ignored; did you mean '{near}'?"


def test_in_a_stack_too_a_misspelt_setting_of_a_section_of_ours_is_refused():
    with pytest.raises(ConfigError, match=r"did you mean 'vehicle.wheel_base_m'"):
        declared(*IN_A_STACK, *words(VEHICLE_INFO), "-p", "vehicle.whel_base:=2.9")


@pytest.mark.parametrize("setting", ["topics", "info_topics"])
def test_a_camera_topic_that_ros_does_not_have_is_one_sentence(setting):
    with pytest.raises(ConfigError, match=f"cameras.{setting} holds '/front camera', which is no topic name"):
        declared("-p", f"cameras.{setting}:=['/left', '/front camera', '/right']")


def test_whether_the_start_is_strict_is_true_or_false():
    with pytest.raises(ConfigError, match="strict_start is 'perhaps', expected true or false"):
        declared("-p", "strict_start:=perhaps")


def test_what_param_dump_writes_can_be_given_back(tmp_path):
    """`ros2 param dump` nests names at their dots, and writes empty lists."""
    dumped = {"use_sim_time": False, "config_file": "", "strict_start": False, "start_type_description_service": True}
    for entry in settings(Config()):
        *path, last = entry.name.split(".")
        at = dumped
        for part in path:
            at = at.setdefault(part, {})
        at[last] = list(entry.value) if entry.kind is tuple else entry.value
    assert dumped["cameras"]["topics"] == []
    arguments = file(tmp_path / "dump.yaml", dumped, "/planning/reflectdrive/reflectdrive")
    assert declared(*arguments) == (Config(), None)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["-r", "foo"], "Couldn't parse remap rule: '-r foo', which is not well formed"),
        (["-r", "~/input/odometry:=/bad topic"], "Couldn't parse remap rule: '-r ~/input/odometry:=/bad topic'"),
        (["-r", "__node:=bad-name"], "Couldn't parse remap rule: '-r __node:=bad-name'"),
        (["-r"], "Couldn't parse trailing -r flag. No remap rule found."),
        (["-p", "foo"], "Couldn't parse parameter override rule: '-p foo'"),
        (["--params-file", "/nonexistent.yaml"], "'--params-file /nonexistent.yaml': Error opening YAML file"),
        (["--params-file", "{flat}"], "Cannot have a value before ros__parameters at line 1"),
        (["--log-level", "nonsense"], "'--log-level nonsense': Argument does not use a valid severity level"),
        (["--enclave", "bad enclave"], "Enclave name is not valid"),
        (["--nonsense"], "does not know these arguments after --ros-args: ['--nonsense']"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_arguments_that_ros_does_not_take_are_one_sentence(tmp_path, arguments, sentence):
    flat = tmp_path / "flat.yaml"
    flat.write_text("planner: route_follower\n")
    with pytest.raises(ConfigError) as refused, node(*(word.format(flat=flat) for word in arguments)):
        pass
    message = str(refused.value)
    assert sentence in message
    assert "\n" not in message
    assert ".c:" not in message  # a place in ROS's source code helps nobody here


@pytest.mark.parametrize("domain", ["abc", "-1", "1.5", "233", "99999999999"])
def test_a_domain_that_dds_does_not_have_is_one_sentence(monkeypatch, domain):
    monkeypatch.setenv("ROS_DOMAIN_ID", domain)
    with pytest.raises(ConfigError, match=f"ROS_DOMAIN_ID is '{domain}', expected a number from 0 to 232"):
        start_ros([], Context())
