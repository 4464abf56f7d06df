"""Autoware's messages where Autoware is not installed: the same fields in the same order, in both layouts in use."""

import importlib
import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import commands
import pytest

INTERFACES = Path(__file__).parent / "interfaces"
FIELDS = json.loads((INTERFACES / "fields.json").read_text())
CANDIDATE = "autoware_internal_planning_msgs/CandidateTrajectory"

spec = importlib.util.spec_from_file_location("generate", INTERFACES / "generate.py")
generate = importlib.util.module_from_spec(spec)
spec.loader.exec_module(generate)


def stand_ins():
    """Whether the messages in use are those made from fields.json; Autoware's own may be of any later version."""
    for prefix in os.environ.get("AMENT_PREFIX_PATH", "").split(":"):
        manifest = Path(prefix) / "share/autoware_internal_planning_msgs/package.xml"
        if manifest.exists():
            return "Fields of autoware_internal_planning_msgs" in manifest.read_text()
    return False


only_with_stand_ins = pytest.mark.skipif(not stand_ins(), reason="Autoware's own packages, or none, are installed")


# --- what is checked in ----------------------------------------------------------------------------------------------


def files_below(folder, packages):
    return {
        str(file.relative_to(folder)): file.read_text()
        for package in packages
        for file in (folder / package).rglob("*")
        if file.is_file()
    }


def test_the_packages_checked_in_are_what_the_generator_writes(tmp_path):
    generate.generate(tmp_path)
    stored, fresh = (files_below(folder, generate.PACKAGES) for folder in (INTERFACES, tmp_path))
    assert stored == fresh, "run: python test/interfaces/generate.py"
    assert {manifest.parent.name for manifest in INTERFACES.glob("*/package.xml")} == set(generate.PACKAGES)


def test_the_two_layouts_differ_by_the_turn_signal_only(tmp_path):
    for layout in generate.LAYOUTS:
        generate.generate(tmp_path / layout, layout)
    old, new = (files_below(tmp_path / layout, generate.PACKAGES) for layout in ("1.12", "1.15"))
    differing = {file for file in old if old[file] != new[file] and not file.endswith("package.xml")}
    message = "autoware_internal_planning_msgs/msg/CandidateTrajectory.msg"
    # without the turn signal nothing of autoware_vehicle_msgs is used, so the build files differ as well
    assert differing == {message, "autoware_internal_planning_msgs/CMakeLists.txt"}
    signal = "autoware_vehicle_msgs/TurnIndicatorsCommand turn_indicators_command\n"
    assert old[message] + signal == new[message]


def test_a_package_that_uses_a_message_depends_on_its_package():
    for package in generate.PACKAGES:
        manifest = (INTERFACES / package / "package.xml").read_text()
        for file in (INTERFACES / package / "msg").glob("*.msg"):
            for used in re.findall(r"^(\w+)/\w+", file.read_text(), re.MULTILINE):
                assert used == package or f"<depend>{used}</depend>" in manifest, f"{package}/{file.stem} uses {used}"


# --- what is built ---------------------------------------------------------------------------------------------------

IDL = {"float32": "float", "float64": "double", "bool": "boolean", "byte": "octet", "char": "uint8"}


def as_python_says(kind):
    """A .msg type as `get_fields_and_field_types` writes it: float64[] is sequence<double>."""
    base, length = re.fullmatch(r"([\w/]+(?:<=\d+)?)(?:\[(.*)\])?", kind).groups()
    name = re.sub(r"string<=(\d+)", r"string<\1>", IDL.get(base, base))
    if length is None:
        return name
    if length == "":
        return f"sequence<{name}>"
    return f"sequence<{name}, {length[2:]}>" if length.startswith("<=") else f"{name}[{length}]"


@only_with_stand_ins
@pytest.mark.parametrize(
    "full", [name for name in FIELDS if "@" not in name and name.split("/")[0] in generate.PACKAGES]
)
def test_built_messages_have_the_fields_in_their_order(full):
    package, name = full.split("/")
    pytest.importorskip(f"{package}.msg", reason="not built yet: tools/setup builds it")
    message = getattr(importlib.import_module(f"{package}.msg"), name)
    expected = [(field, as_python_says(kind)) for kind, field in FIELDS[full]["fields"]]
    if not expected:
        pytest.skip("a message without fields has none to compare")
    assert list(message.get_fields_and_field_types().items()) == expected
    for _, constant, value in FIELDS[full]["constants"]:
        assert getattr(message, constant) == value


# --- the older layout ------------------------------------------------------------------------------------------------

CONVERT = """
import json, sys
import numpy as np
from autoware_internal_planning_msgs.msg import CandidateTrajectories, CandidateTrajectory
from rclpy.serialization import deserialize_message
from reflectdrive_ros.core.config import Config
from reflectdrive_ros.core.domain import Plan, Trajectory
from reflectdrive_ros.ros import outputs, plan_messages
from reflectdrive_ros.ros.inputs.control import Signal

poses = np.stack([np.arange(1.0, 9.0), np.zeros(8), np.zeros(8)], axis=1)
plan = Plan(1_000_000_000, np.zeros(3), Trajectory(poses, 0.5), candidates=(Trajectory(poses, 0.5),))
config = Config()
content = outputs.candidates(plan, plan_messages.plan_points(plan, config), Signal.LEFT, config)
message = deserialize_message(content, CandidateTrajectories)
json.dump({
    "from": sys.modules["autoware_internal_planning_msgs"].__file__,
    "fields": list(CandidateTrajectory.get_fields_and_field_types()),
    "points": [len(one.points) for one in message.candidate_trajectories],
    "names": [info.generator_name.data for info in message.generator_info],
    "signals": [one.turn_indicators_command.command for one in message.candidate_trajectories
                if hasattr(one, "turn_indicators_command")],
}, sys.stdout)
"""


def converted(command):
    answer = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=Path(__file__).parents[1])
    assert answer.returncode == 0, answer.stderr
    return json.loads(answer.stdout)


@only_with_stand_ins
def test_candidates_carry_the_turn_signal_where_the_message_has_it():
    fields = converted([sys.executable, "-c", CONVERT])
    assert fields["fields"] == ["header", "generator_id", "points", "turn_indicators_command"]
    assert fields["points"] == [40, 40]
    assert len(set(fields["names"])) == 2
    assert fields["signals"] == [2, 2]  # TurnIndicatorsCommand.ENABLE_LEFT


@only_with_stand_ins
@pytest.mark.long
@pytest.mark.timeout(900)
def test_candidates_are_published_in_the_layout_before_1_14_too(tmp_path):
    generate.generate(tmp_path / "source", "1.12")
    install = commands.colcon_build(tmp_path / "source", tmp_path, "autoware_internal_planning_msgs")
    script = tmp_path / "convert.py"
    script.write_text(CONVERT)
    fields = converted(
        ["sh", "-c", f". {install}/local_setup.sh && PYTHONPATH=$PYTHONPATH:. {sys.executable} {script}"]
    )
    assert fields["from"].startswith(str(tmp_path))
    assert fields["fields"] == ["header", "generator_id", "points"]
    assert fields["points"] == [40, 40]
    assert fields["signals"] == []
