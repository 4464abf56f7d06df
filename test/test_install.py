"""Installation: images, the lock for ROS 2 Humble, the change log and the metadata of package.xml."""

import ast
import configparser
import json
import os
import re
import subprocess
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import numpy as np
import pytest
from packaging.requirements import Requirement
from sources import ROOT, trees

from reflectdrive_ros.data import codec
from reflectdrive_ros.maps import sumo
from reflectdrive_ros.ros import system_checks
from reflectdrive_ros.sim import sumo_library

pytestmark = pytest.mark.meta

MANIFEST = ElementTree.parse(ROOT / "package.xml").getroot()
DOCKERFILES = sorted((ROOT / "docker").glob("Dockerfile*"))
OFFICIAL_IMAGES = {"ros:jazzy-ros-base", "ubuntu:24.04"}
INSTRUCTIONS = {"FROM", "SHELL", "ENV", "WORKDIR", "COPY", "RUN", "STOPSIGNAL", "ENTRYPOINT", "CMD"}
SETUP_CFG = configparser.ConfigParser()
SETUP_CFG.read(ROOT / "setup.cfg")
HUMBLE_LOCK = (ROOT / "tools/requirements-humble.lock").read_text()
# modules of rclpy 3.3, that of ROS 2 Humble
RCLPY_OF_HUMBLE = {
    *("action", "callback_groups", "client", "clock", "constants", "context", "duration", "exceptions", "executors"),
    *("expand_topic_name", "guard_condition", "impl", "lifecycle", "logging", "node", "parameter", "parameter_service"),
    *("publisher", "qos", "qos_event", "qos_overriding_options", "serialization", "service", "signals", "subscription"),
    *("task", "time", "time_source", "timer", "topic_endpoint_info", "topic_or_service_is_hidden", "type_support"),
    *("utilities", "validate_full_topic_name", "validate_namespace", "validate_node_name", "validate_parameter_name"),
    *("validate_topic_name", "wait_for_message", "waitable"),
}


def instructions(file):
    """Name and text of the instructions of a Dockerfile: continued lines are joined, comments are left out."""
    lines = [line for line in file.read_text().splitlines() if line.strip() and not line.lstrip().startswith("#")]
    text = re.sub(r"\\\n\s*", "", "\n".join(lines))
    return [line.split(maxsplit=1) for line in text.splitlines()]


def of(file, name):
    return [text for each, text in instructions(file) if each == name]


def setup_packages():
    """The apt packages that tools/setup asks for."""
    text = (ROOT / "tools/setup").read_text()
    pairs = re.findall(r"^for pair in (.+); do$", text, re.MULTILINE)
    packages = {pair.split(":")[1] for pair in " ".join(pairs).split()}
    return packages | set(re.findall(r'missing="\$missing ([\w-]+)"', text))


# --- images ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("file", DOCKERFILES, ids=lambda file: file.name)
def test_images_are_built_from_official_ones_by_allowed_instructions(file):
    names = [name for name, _ in instructions(file)]
    assert names[0] == "FROM"
    assert set(names) <= INSTRUCTIONS
    stages = set()
    for source in of(file, "FROM"):
        image, _, stage = source.partition(" AS ")
        assert image in OFFICIAL_IMAGES | stages
        stages.add(stage)


@pytest.mark.parametrize("file", DOCKERFILES, ids=lambda file: file.name)
def test_what_an_image_copies_is_in_the_clone_and_not_ignored(file):
    ignored = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if not line.startswith("#")]
    for text in of(file, "COPY"):
        *sources, _ = (word for word in text.split() if not word.startswith("--"))
        for source in sources:
            assert (ROOT / source).exists(), f"{file.name} copies {source}"
            assert source not in ignored


def test_docker_ignores_what_git_ignores():
    ignored = {line.strip("/") for line in (ROOT / ".gitignore").read_text().split()}
    assert ignored <= {line.removeprefix("**/") for line in (ROOT / ".dockerignore").read_text().splitlines()}


@pytest.mark.parametrize("file", DOCKERFILES, ids=lambda file: file.name)
def test_commands_of_an_image_parse_and_those_of_the_repository_exist(file):
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for command in of(file, "RUN"):
        parsed = subprocess.run(["bash", "-n", "-c", command], capture_output=True, text=True, check=False)
        assert parsed.returncode == 0, parsed.stderr
        assert set(re.findall(r"\bmake ([a-z-]+)$", command)) <= targets
    if json.loads((of(file, "ENTRYPOINT"))[0]) == ["make"]:
        assert set(json.loads(of(file, "CMD")[0])) <= targets


def test_the_image_with_ros_holds_all_that_cmake_and_setuptools_install():
    copied = {Path(word).name for text in of(ROOT / "docker/Dockerfile", "COPY") for word in text.split()[:-1]}
    cmake = (ROOT / "CMakeLists.txt").read_text()
    (installed,) = re.findall(r"install\(DIRECTORY ([\w ]+) DESTINATION", cmake)
    whole = {*installed.split(), "msg", "src", "reflectdrive_ros", "package.xml", "CMakeLists.txt", "setup.cfg"}
    assert whole <= copied


def test_the_image_with_ros_starts_the_planners_launch_file():
    (entry,) = json.loads(of(ROOT / "docker/Dockerfile", "ENTRYPOINT")[0])
    script = ROOT / "docker" / Path(entry).name
    assert os.access(script, os.X_OK)
    assert subprocess.run(["sh", "-n", script], check=False).returncode == 0
    launched = re.findall(r"ros2 launch reflectdrive (\S+)", script.read_text())
    assert launched == ["planner.launch.py"]
    assert (ROOT / "launch" / launched[0]).is_file()


def test_the_image_with_ros_has_the_onnxruntime_of_setup_cfg():
    (version,) = re.findall(r"onnxruntime==([\d.]+)", (ROOT / "docker/Dockerfile").read_text())
    every = [Requirement(line) for line in SETUP_CFG["options"]["install_requires"].split("\n") if line]
    assert [each for each in every if each.name == "onnxruntime" and str(each.specifier) == f"=={version}"]


def test_the_image_without_ros_has_the_apt_packages_that_the_set_up_asks_for():
    (installed,) = re.findall(r"apt-get install (.+?) &&", " ".join(of(ROOT / "docker/Dockerfile.wheels", "RUN")))
    assert {"g++", "python3-venv", "libgl1"} <= setup_packages() <= set(installed.split())


def test_the_development_container_is_the_stage_without_the_clone():
    container = json.loads((ROOT / ".devcontainer/devcontainer.json").read_text())
    build = container["build"]
    file = (ROOT / ".devcontainer" / build["dockerfile"]).resolve()
    stages = [source.partition(" AS ")[2] for source in of(file, "FROM")]
    assert (ROOT / ".devcontainer" / build["context"]).resolve() == ROOT
    assert build["target"] == stages[0]
    assert container["postCreateCommand"] == "make setup"


# --- a machine without the libraries of SUMO -------------------------------------------------------------------------


def test_without_opengl_the_error_names_the_packages_to_install(monkeypatch):
    """An import that fails for a shared library is not a missing module."""

    def lacks_opengl(name):
        raise ImportError("libGL.so.1: cannot open shared object file: No such file or directory", name=name)

    monkeypatch.setattr(sumo_library.importlib, "import_module", lacks_opengl)
    with pytest.raises(sumo.SumoFailed, match=r"^SUMO cannot be loaded: libGL\.so\.1: .*apt-get install -y libgl1 "):
        sumo_library.libsumo()


def test_the_set_up_and_the_message_name_the_same_packages():
    assert set(sumo_library.SYSTEM_LIBRARIES.split()) <= setup_packages()


# --- CycloneDDS ------------------------------------------------------------------------------------------------------


def test_the_profile_of_cyclone_dds_is_for_this_machine_and_asks_for_the_buffer_that_the_doctor_checks():
    space = {"dds": "https://cdds.io/config"}
    tree = ElementTree.parse(ROOT / "config/cyclonedds.xml")
    assert [each.get("name") for each in tree.findall(".//dds:NetworkInterface", space)] == ["lo"]
    buffer = tree.find(".//dds:SocketReceiveBufferSize", space)
    assert buffer.get("min") == f"{system_checks.RECEIVE_BUFFER_BYTES // 2**20}MB"


# --- OpenCV of Ubuntu ------------------------------------------------------------------------------------------------


def test_an_opencv_that_would_halve_the_colours_of_stored_images_is_refused(monkeypatch):
    """OpenCV 4.5 and 4.6, those of Ubuntu 22.04 and 24.04, ignore the option that they do not know."""
    monkeypatch.delattr(codec.cv2, "IMWRITE_JPEG_SAMPLING_FACTOR")
    with pytest.raises(codec.OpenCvTooOld, match=r"pip install 'opencv-python-headless>=4\.8'"):
        codec._encode_image(".jpg", np.zeros((8, 8, 3), np.uint8))


# --- ROS 2 Humble ----------------------------------------------------------------------------------------------------


def test_only_modules_that_rclpy_of_humble_has_are_imported():
    for file, tree in trees().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("rclpy."):
                assert node.module.split(".")[1] in RCLPY_OF_HUMBLE, f"{file.name} imports {node.module}"


def test_the_lock_for_humble_holds_what_setup_cfg_requires_of_python_3_10():
    locked = dict(re.findall(r"^([\w-]+)==([^\s;\\]+)", HUMBLE_LOCK, re.MULTILINE))
    sections = [SETUP_CFG["options"]["install_requires"], SETUP_CFG["options.extras_require"]["sim"]]
    for line in filter(None, "\n".join(sections).split("\n")):
        requirement = Requirement(line)
        if requirement.marker is None or requirement.marker.evaluate({"python_version": "3.10"}):
            pinned = locked[requirement.name.lower()]
            assert requirement.specifier.contains(pinned), f"{line}, locked {pinned}"
    assert Requirement("numpy<2").specifier.contains(locked["numpy"])  # that of the messages that apt installs


def test_every_pin_for_humble_has_a_hash():
    pins = re.split(r"^(?=[\w-]+==)", HUMBLE_LOCK, flags=re.MULTILINE)[1:]
    assert len(pins) > 20
    assert all("--hash=sha256:" in pin for pin in pins)


# --- package.xml and the change log ----------------------------------------------------------------------------------


def test_package_xml_gives_no_address_that_leads_nowhere():
    """But that of the maintainer, which its format requires and a comment explains."""
    text = (ROOT / "package.xml").read_text()
    assert [each.text for each in MANIFEST.findall("url") if ".example" in each.text] == []
    assert len(re.findall(r"@[\w.]+\.example", text)) == 1
    assert re.search(r"<!--.*`\.example` belongs to nobody.*-->\n  <maintainer", text)


def test_package_xml_is_valid_for_ros():
    reader = pytest.importorskip("catkin_pkg.package")
    package, problems = reader.parse_package_string((ROOT / "package.xml").read_text(), warnings=[]), []
    package.validate(warnings=problems)
    assert problems == []


def test_the_newest_entry_of_the_change_log_is_the_version_of_the_package():
    reader = pytest.importorskip("catkin_pkg.changelog")
    log = reader.get_changelog_from_path(str(ROOT), "reflectdrive")
    versions = [version for version, _, _ in log.foreach_version()]
    assert versions[0] == MANIFEST.findtext("version") == SETUP_CFG["metadata"]["version"]
    assert [len(block.bullets) > 5 for block in log.get_content_of_version(versions[0])] == [True]


def test_the_launch_files_find_what_reads_them():
    needed = {entry.text for entry in MANIFEST.findall("exec_depend")}
    assert {"ros2launch", "launch_ros"} <= needed
    if list((ROOT / "launch").glob("*.xml")):
        assert "launch_xml" in needed
