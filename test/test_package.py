"""What a person installs: package.xml, setup.cfg and CMakeLists.txt tell the same, and an installed copy runs."""

import ast
import configparser
import importlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import commands
import pytest
from own_bags import short_bag
from packaging.requirements import Requirement
from sources import ROOT, trees
from test_python_page import EXAMPLES

import reflectdrive_ros
from reflectdrive_ros.__main__ import BENCHES, COMMANDS, main
from reflectdrive_ros.core.config import Config
from reflectdrive_ros.infra import installing
from reflectdrive_ros.runtime import model_file
from reflectdrive_ros.runtime.model_file import ModelFileError

pytestmark = pytest.mark.meta

MANIFEST = ElementTree.parse(ROOT / "package.xml").getroot()
DEPENDENCIES = {entry.text for entry in MANIFEST if entry.tag in ("depend", "exec_depend")}
CMAKE = (ROOT / "CMakeLists.txt").read_text()
SETUP = configparser.ConfigParser()
SETUP.read(ROOT / "setup.cfg")

# module -> (rosdep key, name on PyPI) where they are not ROS packages of the module's own name
PYTHON = {
    "numpy": ("python3-numpy", "numpy"),
    "scipy": ("python3-scipy", "scipy"),
    "shapely": ("python3-shapely", "shapely>=2"),  # takes arrays of geometries; Ubuntu 22.04 has 1.8
    "cv2": ("python3-opencv", "opencv-python-headless"),
    "yaml": ("python3-yaml", "PyYAML"),
    "rich": ("python3-rich", "rich"),
    "transforms3d": ("python3-transforms3d", "transforms3d"),
    "rosbags": ("python3-rosbags-pip", "rosbags"),
    "onnxruntime": ("python3-onnxruntime-pip", 'onnxruntime==1.31.1; python_version >= "3.11"'),
}
# extras of setup.cfg: training, export, the proving ground; the node itself needs none of them
OPTIONAL = {"torch", "torchvision", "onnx", "tensorrt", "safetensors", "lightning_fabric", "tensorboard"}
OPTIONAL |= {"libsumo", "sumolib", "traci", "ml_dtypes", "onnx_ir", "onnxscript", "triton"}
OPTIONAL |= {"carla_driver_interface", "alpasim_driver", "grpc", "google", "navsim", "nuplan", "pyarrow"}
OPTIONAL |= {"ray", "upath", "fsspec", "openvino"}


def imported():
    """Top-level names that the package and its launch files import, without Python's own and the package itself."""
    names = set()
    for tree in (*trees().values(), *trees("launch").values()):
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                names |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and not node.level:
                names.add(node.module.split(".")[0])
    return names - set(sys.stdlib_module_names) - {"reflectdrive_ros"}


# --- package.xml -----------------------------------------------------------------------------------------------------


def test_the_manifest_is_format_3_and_ament_cmake():
    assert MANIFEST.get("format") == "3"
    assert MANIFEST.findtext("name") == "reflectdrive"
    assert MANIFEST.findtext("export/build_type") == "ament_cmake"
    assert MANIFEST.findtext("member_of_group") == "rosidl_interface_packages"


def test_everything_imported_is_a_dependency():
    for name in sorted(imported() - OPTIONAL - {"reflectdrive", "reflectdrive_kernels"}):
        key = PYTHON[name][0] if name in PYTHON else name
        assert key in DEPENDENCIES, f"the package imports {name}; package.xml needs <exec_depend>{key}</exec_depend>"


def test_pip_installs_what_is_imported_and_not_from_ros():
    required = SETUP["options"]["install_requires"].splitlines()
    for name in sorted(imported() & set(PYTHON)):
        assert PYTHON[name][1] in required, f"setup.cfg needs {PYTHON[name][1]} in install_requires"


@pytest.mark.parametrize("python", ["3.10", "3.11", "3.12", "3.13"])
def test_each_python_gets_one_onnxruntime_that_has_wheels_for_it(python):
    """Python 3.10 is that of ROS 2 Humble; onnxruntime has no wheels for it after 1.23.2."""
    every = [Requirement(line) for line in SETUP["options"]["install_requires"].split("\n") if line]
    requirements = [one for one in every if one.marker is None or one.marker.evaluate({"python_version": python})]
    assert sorted(one.name for one in requirements) == sorted({one.name for one in every})
    (version,) = (str(one.specifier) for one in requirements if one.name == "onnxruntime")
    assert version == ("==1.23.2" if python == "3.10" else "==1.31.1")


def test_nothing_is_depended_on_twice():
    assert len([entry for entry in MANIFEST if entry.tag in ("depend", "exec_depend")]) == len(DEPENDENCIES)


def test_what_the_messages_use_is_depended_on():
    for file in (ROOT / "msg").glob("*.msg"):
        for package in re.findall(r"^(\w+)/\w+", file.read_text(), re.MULTILINE):
            assert package in {entry.text for entry in MANIFEST.findall("depend")}, f"{file.name} uses {package}"
            assert f"find_package({package} REQUIRED)" in CMAKE


def test_every_message_is_generated():
    assert set(re.findall(r'"(msg/\w+\.msg)"', CMAKE)) == {f"msg/{file.name}" for file in (ROOT / "msg").glob("*.msg")}


@pytest.mark.parametrize("file", sorted((ROOT / "msg").glob("*.msg")), ids=lambda file: file.stem)
def test_every_field_says_what_it_is(file):
    for line in file.read_text().splitlines():
        if line and not line.startswith("#") and not re.match(r"\w+ [A-Z_0-9]+=", line):
            assert "# " in line, f"{file.name}: no comment on {line}"


# --- compiled kernels ------------------------------------------------------------------------------------------------

EXTENSIONS = """
import json, sys
from distutils.core import run_setup
found = run_setup("setup.py", stop_after="init").ext_modules
print(json.dumps([[each.name, each.sources, each.depends, each.extra_compile_args] for each in found]))
"""


def test_pip_and_colcon_compile_the_kernels_from_the_same_sources_with_the_same_flags():
    command = [sys.executable, "-W", "ignore", "-c", f"import setuptools{EXTENSIONS}"]
    output = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=60).stdout
    ((name, sources, depends, flags),) = json.loads(output)
    cmake = (ROOT / "src/CMakeLists.txt").read_text()
    ((module, words),) = re.findall(r"nanobind_add_module\((\w+) ([^)]*)\)", cmake)
    assert module == name
    assert [f"src/{word}" for word in words.split() if word.endswith(".cpp")] == sources
    assert {ROOT / each for each in sources} == set(ROOT.glob("src/*.cpp"))
    assert {ROOT / each for each in (*sources, *depends, "src/CMakeLists.txt")} == set((ROOT / "src").iterdir())
    (file,) = re.findall(r"file\(STRINGS (\S+) KERNEL_FLAGS\)", cmake)
    assert "target_compile_options(reflectdrive_kernels PRIVATE ${KERNEL_FLAGS})" in cmake
    of_x86 = re.findall(r"list\(APPEND KERNEL_FLAGS (\S+)\)", cmake) if platform.machine() == "x86_64" else []
    expected = [*(ROOT / "src" / file).read_text().splitlines(), *of_x86]
    assert flags[: len(expected)] == expected
    assert {"-Wall", "-Wextra", "-Wconversion"} <= set(expected)
    assert "-Werror" not in flags  # a user's compiler may be newer than any that we have seen


STABLE_ABI = """
import json, sys, setuptools
from distutils.core import run_setup
sys.version_info = tuple(json.loads(sys.argv[1]))
package = run_setup("setup.py", ["-q"], stop_after="init")
(kernels,), ((_, library),) = package.ext_modules, package.libraries
flags = [*kernels.extra_compile_args, *library["cflags"]].count("-DPy_LIMITED_API=0x030C0000")
tag = package.get_option_dict("bdist_wheel").get("py_limited_api", [0, ""])[1]
print(json.dumps([tag, kernels.py_limited_api, flags]))
"""


@pytest.mark.parametrize(("version", "tag"), [([3, 11, 7], ""), ([3, 12, 0], "cp312"), ([3, 13, 0], "cp312")])
def test_from_python_3_12_on_one_wheel_is_for_all_later_versions(version, tag):
    command = [sys.executable, "-W", "ignore", "-c", STABLE_ABI, json.dumps(version)]
    output = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=60).stdout
    assert json.loads(output) == ([tag, True, 2] if tag else ["", False, 0])


def test_every_build_of_the_kernels_takes_one_version_of_nanobind():
    names = ("pyproject.toml", "docker/Dockerfile", "tools/requirements.in", "tools/requirements.lock")
    names += ("tools/requirements-humble.in", "tools/requirements-humble.lock", "docs/install.md")
    versions = [set(re.findall(r"nanobind==([\w.]+)", (ROOT / name).read_text())) for name in names]
    assert versions == [versions[0]] * len(names)
    assert len(versions[0]) == 1
    assert "python3-nanobind-pip" in {entry.text for entry in MANIFEST.findall("build_depend")}


def instructions_of(library, function):
    """Lines of (instruction, operands)."""
    command = ["objdump", "-d", "--no-show-raw-insn", f"--disassemble={function}", library]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    return [line.split("\t")[1].split(maxsplit=1) for line in lines if re.match(r" *[0-9a-f]+:\t", line)]


@pytest.mark.skipif(platform.machine() != "x86_64", reason="AVX2 is of x86-64")
@pytest.mark.skipif(shutil.which("objdump") is None, reason="binutils is not installed")
def test_no_instruction_of_avx_runs_before_the_kernels_have_checked_the_processor():
    """Constructors of global objects run when the library is loaded, and `PyInit_` checks. There is one constructor, of
    nanobind, which registers a destructor and calls nothing else."""
    library = importlib.import_module("reflectdrive_kernels").__file__
    symbols = subprocess.run(["objdump", "-t", library], capture_output=True, text=True, check=True).stdout
    constructors = re.findall(r"_GLOBAL__sub_I_\S+", symbols)
    assert constructors in (["_GLOBAL__sub_I_nb_internals.cpp"], ["_GLOBAL__sub_I_nb_combined.cpp"])
    for function in ("PyInit_reflectdrive_kernels", *constructors):
        instructions = instructions_of(library, function)
        assert instructions, f"{function} is not in {library}"
        names = [name for name, *_ in instructions]
        assert not [name for name in names if name.startswith("v") or name in ("shlx", "shrx", "sarx", "andn")]
        leaves = [words[1] for words in instructions if words[0] in ("call", "jmp") and f"<{function}" not in words[1]]
        assert all(target.endswith("@plt>") for target in leaves), leaves


EMULATOR = shutil.which("qemu-x86_64-static")


@pytest.mark.skipif(EMULATOR is None, reason="qemu-user-static is not installed")
def test_a_processor_without_avx2_is_one_sentence():
    library = Path(importlib.import_module("reflectdrive_kernels").__file__).parent
    python = str(Path(sys.executable).resolve())
    command = [EMULATOR, "-cpu", "Nehalem", python, "-c", "import reflectdrive_kernels"]
    done = subprocess.run(command, env={"PYTHONPATH": str(library)}, capture_output=True, text=True, timeout=120)
    assert done.stderr.splitlines()[-1].startswith(
        "ImportError: this processor lacks instructions of x86-64-v3 (AVX2, BMI, FMA), which reflectdrive needs: use "
    )


# --- one version, one licence ----------------------------------------------------------------------------------------


def test_versions_agree():
    versions = {MANIFEST.findtext("version"), SETUP["metadata"]["version"], reflectdrive_ros.__version__}
    assert len(versions) == 1, versions


def test_pip_and_colcon_install_a_distribution_of_one_name():
    """The distribution `reflectdrive` is that of the generated messages."""
    (name,) = re.findall(r"ament_python_install_package\((\w+)", CMAKE)
    assert name == SETUP["metadata"]["name"] == "reflectdrive_ros"


def test_extras_are_installed_from_a_clone_and_exist():
    """A name on a package index would be that of whoever registers it."""
    extras = set(SETUP["options.extras_require"])
    named = set(installing.EXTRAS.values())
    for file in [*(ROOT / "reflectdrive_ros").rglob("*.py"), *(ROOT / "docs").rglob("*.md"), ROOT / "README.md"]:
        content = file.read_text()
        assert not re.search(r"(?<![\w/])reflectdrive(_ros|-ros)?\[\w", content), (
            f"{file} names an index's distribution"
        )
        named |= {extra for words in re.findall(r"'\.\[([\w,-]+)\]'", content) for extra in words.split(",")}
        named |= set(re.findall(r"pip_extra\([\"']([\w-]+)[\"']\)", content))
    assert {"train", "sim", "storage"} <= named <= extras


def test_the_licence_is_there_and_named():
    assert "Apache License" in (ROOT / "LICENSE").read_text()
    assert MANIFEST.find("license").get("file") == "LICENSE"
    assert MANIFEST.findtext("license") == SETUP["metadata"]["license"] == "Apache-2.0"


def test_pixi_installs_what_the_manifest_names():
    """ROS packages by RoboStack's names, except Autoware's messages, which are built; pins as in the other files."""
    tomllib = pytest.importorskip("tomllib", reason="tomllib comes with Python 3.11")
    pixi = tomllib.loads((ROOT / "pixi.toml").read_text())
    tags = ("depend", "exec_depend", "buildtool_depend")
    keys = {entry.text for entry in MANIFEST if entry.tag in tags and not entry.text.startswith("python3-")}
    built = {path.name for path in (ROOT / "test" / "interfaces").iterdir()} | {"autoware_adapi_v1_msgs"}
    named = {f"ros-jazzy-{key.replace('_', '-')}" for key in keys - built}
    assert named <= set(pixi["dependencies"]), named - set(pixi["dependencies"])
    assert pixi["workspace"]["platforms"] == ["linux-64", "linux-aarch64"]
    required = SETUP["options"]["install_requires"] + SETUP["options.extras_require"]["sim"]
    pins = pixi["pypi-dependencies"] | pixi["target"]["linux-64"]["pypi-dependencies"]
    assert all(f"{name}{pin}" in required for name, pin in pins.items() if pin != "*")
    assert f"nanobind=={pixi['dependencies']['nanobind'].removesuffix('.*')}" in (ROOT / "pyproject.toml").read_text()


# --- what is in the package ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("line", SETUP["options.entry_points"]["console_scripts"].split("\n"))
def test_console_scripts_exist(line):
    if line:
        module, function = line.split("=")[1].strip().split(":")
        file = ROOT / (module.replace(".", "/") + ".py")
        names = [node.name for node in ast.parse(file.read_text()).body if isinstance(node, ast.FunctionDef)]
        assert function in names


def test_files_beside_the_modules_are_package_data():
    patterns = SETUP["options.package_data"]["*"].split()
    for file in (ROOT / "reflectdrive_ros").rglob("*"):
        if file.is_file() and file.suffix not in (".py", ".pyc"):
            assert any(file.match(pattern) for pattern in patterns), f"setup.cfg: {file.name} is no package_data"


def test_the_dds_profile_holds_three_cameras():
    tree = ElementTree.parse(ROOT / "config/fastdds.xml")
    space = {"dds": "http://www.eprosima.com/XMLSchemas/fastRTPS_Profiles"}
    segment = tree.find(".//dds:segment_size", space)
    largest = tree.find(".//dds:maxMessageSize", space)
    assert int(segment.text) >= 64 * 2**20
    assert int(largest.text) >= 1920 * 1080 * 3  # a raw image goes through in one piece
    transports = {entry.text for entry in tree.findall(".//dds:transport_descriptor/dds:transport_id", space)}
    used = {entry.text for entry in tree.findall(".//dds:userTransports/dds:transport_id", space)}
    assert transports == used


def takes_minutes(test):
    return pytest.mark.long(pytest.mark.timeout(1200)(test))


def copy_of_source(folder):
    """The repository without what is built, and without the tests, which an installed package does not need."""
    skipped = shutil.ignore_patterns(".*", "test", "build", "install", "log", "out", "__pycache__")
    return shutil.copytree(ROOT, folder / "source", ignore=skipped)


# --- an installed copy -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    scratch = tmp_path_factory.mktemp("installed")
    # From a copy: CMake refuses include folders inside the source tree, which is where .venv and its numpy are.
    return commands.colcon_build(copy_of_source(scratch), scratch, "reflectdrive")


def inside(install, command):
    """A command in a shell that has sourced the installed prefix, away from the source tree."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run(
        ["sh", "-c", f". {install}/local_setup.sh && {command}"],
        env={**environment, "PATH": f"{Path(sys.prefix) / 'bin'}:{os.environ['PATH']}"},
        cwd=install.parent,
        capture_output=True,
        text=True,
        timeout=120,
    )


@takes_minutes
def test_an_installed_copy_is_whole(installed):
    share = installed / "share/reflectdrive"
    for folder in ("launch", "config", "models"):
        for file in (file.relative_to(ROOT) for file in (ROOT / folder).rglob("*") if file.is_file()):
            if "__pycache__" in file.parts or file.name.startswith("."):
                continue
            assert (share / file).is_file(), f"{file} is not installed"
            assert not (share / file).is_symlink()
    packages = next(installed.rglob("site-packages"))
    for file in (ROOT / "reflectdrive_ros").rglob("*"):
        if file.is_file() and file.suffix != ".pyc":
            assert (packages / file.relative_to(ROOT)).is_file(), f"{file.relative_to(ROOT)} is not installed"
    for file in (ROOT / "msg").glob("*.msg"):
        assert (share / "msg" / file.name).is_file()
    assert len([*installed.rglob("reflectdrive_kernels*")]) == 1


@takes_minutes
def test_an_installed_copy_imports_itself_and_not_the_source_and_its_commands_answer(installed):
    ask = "import reflectdrive_ros as r, reflectdrive.msg as m; print(r.__file__, m.__file__, m.PlannerStatus())"
    answer = inside(installed, f'python -c "{ask}"')
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout.count(f"{installed}/") == 2, answer.stdout
    for script in ("planner", "reflectdrive"):
        answer = inside(installed, f"{installed}/lib/reflectdrive/{script} --help")
        assert answer.returncode == 0, answer.stderr
        assert "usage" in answer.stdout.lower()
        assert "Traceback" not in answer.stderr
    file = installed.parent / "doctor.json"
    answer = inside(installed, f"{installed}/lib/reflectdrive/reflectdrive doctor --json {file}")
    assert answer.returncode == 0, answer.stdout + answer.stderr
    assert f"{installed}/share/reflectdrive/config/fastdds.xml" in file.read_text()


def shared_files(folder, **environment):
    """The files beside the package that pip installs."""
    command = [sys.executable, "setup.py", "-q", "install_data", "--install-dir", str(folder / "prefix")]
    options = {"cwd": copy_of_source(folder), "env": {**os.environ, **environment}, "timeout": 120}
    done = subprocess.run(command, capture_output=True, text=True, **options)
    assert done.returncode == 0, done.stderr
    return folder / "prefix/share/reflectdrive"


def test_pip_installs_models_and_settings_where_they_are_looked_for(tmp_path):
    share = shared_files(tmp_path)
    for folder in ("config", "models"):
        for file in (file for file in (ROOT / folder).rglob("*") if file.is_file()):
            assert (share / file.relative_to(ROOT)).is_file()


# --- a wheel in an empty virtual environment -------------------------------------------------------------------------


@pytest.fixture(scope="module")
def without_ros(tmp_path_factory):
    """The programs of a virtual environment that holds the wheel and what setup.cfg requires, nothing else."""
    scratch = tmp_path_factory.mktemp("wheel")
    source = copy_of_source(scratch)
    subprocess.run([sys.executable, "-m", "venv", scratch / "venv"], check=True, timeout=300)
    command = [scratch / "venv/bin/python", "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    done = subprocess.run([*command, source], capture_output=True, text=True, timeout=900, cwd=scratch)
    assert done.returncode == 0, done.stderr
    return scratch / "venv/bin"


def run_alone(program, *words):
    """A program of another environment, away from the source tree and from ROS."""
    hidden = ("PYTHONPATH", "AMENT_PREFIX_PATH", "ROS_DISTRO", "VIRTUAL_ENV")
    environment = {name: value for name, value in os.environ.items() if name not in hidden}
    done = subprocess.run(
        [program, *map(str, words)], env=environment, cwd=program.parent, capture_output=True, text=True, timeout=300
    )
    assert "Traceback" not in done.stderr, done.stderr
    return done


@takes_minutes
def test_a_wheel_scores_and_evaluates_on_a_machine_without_ros(without_ros, tmp_path):
    program, data = without_ros / "reflectdrive", ROOT / "test/data"
    scored = run_alone(
        program,
        *("score", data / "golden/scenes.jsonl.gz", tmp_path / "scores.jsonl"),
        *("--against", data / "golden/scores.jsonl.gz", "--json", tmp_path / "score.json"),
    )
    assert scored.returncode == 0, scored.stdout + scored.stderr
    assert json.loads((tmp_path / "score.json").read_text())["compared"]["differing"] == {}
    words = ("eval", "--scenes", data / "scenes_val", "--planner", "reflectdrive2", "--json", tmp_path / "eval.json")
    driven = run_alone(program, *words)
    assert driven.returncode == 0, driven.stderr
    assert json.loads((tmp_path / "eval.json").read_text())["scenes"] > 0
    tracks = ("eval", "--scenes", data / "real_tracks", "--planner", "constant_velocity")
    assert run_alone(program, *tracks).returncode == 0
    tested = run_alone(program, "score", "--self-test", "--json", tmp_path / "self_test.json")
    assert (tested.returncode, json.loads((tmp_path / "self_test.json").read_text())["equal"]) == (0, True)
    checked = run_alone(program, "doctor", "--json", tmp_path / "doctor.json")
    assert checked.returncode == 1
    findings = json.loads((tmp_path / "doctor.json").read_text())["findings"]
    states = {each["name"]: each["state"] for each in findings}
    assert (states["ROS 2"], states["planner"], states["processor"]) == ("MISSING", "OK", "OK")


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_a_wheel_trains_and_exports_on_a_machine_without_ros(without_ros, tmp_path):
    """Away from the clone: the shipped recipe, a few steps, graphs of the weights, and scores by their card."""
    extras = [str(without_ros.parents[1] / "source") + "[train,export]"]
    command = [without_ros / "python", "-m", "pip", "install", "-q", "--disable-pip-version-check", *extras]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1800, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    program, scenes = without_ros / "reflectdrive", tmp_path / "sets" / "own"
    shutil.copytree(ROOT / "test/data/scenes_val", scenes)
    few = [f"--setting={name}" for name in ("data.batch=4", "checkpointing.validation_scenes=2")]
    sets = ("--train", scenes, "--val", scenes, "--out", tmp_path / "run", "--steps", "2")
    trained = run_alone(program, "train", "sft", "config/train/scene_small.yaml", *sets, *few)
    assert trained.returncode == 0, trained.stderr
    exported = run_alone(program, "export", tmp_path / "run", "--out", tmp_path / "graphs")
    assert exported.returncode == 0, exported.stderr
    card = tmp_path / "graphs/card.json"
    words = ("eval", "--scenes", scenes, "--limit", "2", "--planner", "reflectdrive2", "--model", card)
    words += ("--setting", "cameras.required=false")
    driven = run_alone(program, *words, "--json", tmp_path / "eval.json")
    assert driven.returncode == 0, driven.stderr
    assert json.loads((tmp_path / "eval.json").read_text())["scenes"] == 2


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_the_programs_of_the_page_on_python_run_with_a_wheel(without_ros, tmp_path):
    for name, program, printed in EXAMPLES:
        (tmp_path / "program.py").write_text(program)
        done = run_alone(without_ros / "python", tmp_path / "program.py")
        assert done.returncode == 0, f"{name}: {done.stderr}"
        assert len(done.stdout.splitlines()) == len(printed.splitlines()), name


@takes_minutes
def test_a_wheel_replays_a_bag_on_a_machine_without_ros(without_ros, tmp_path):
    """With the network that the wheel holds: the plans are those of a machine with ROS."""
    bag = short_bag(tmp_path / "bag", "pandaset_002", seconds=2.0, objects=8)
    done = run_alone(without_ros / "reflectdrive", "replay", bag, "--out", tmp_path / "alone")
    assert done.returncode == 0, done.stderr
    assert main(["replay", str(bag), "--out", str(tmp_path / "ros"), "--no-report"]) == 0
    one, other = (json.loads((tmp_path / name / "summary.json").read_text()) for name in ("alone", "ros"))
    assert one["plans_sha256"] == other["plans_sha256"]
    assert one["sources"]["PLANNER"] == one["plans"] > 10
    assert (tmp_path / "alone/report.html").stat().st_size > 100_000
    trajectories = run_alone(
        without_ros / "reflectdrive",
        *("replay", bag, "--candidates", "/planning/reflectdrive/output/trajectory", "--out", tmp_path / "checked"),
    )
    assert (trajectories.returncode, trajectories.stderr.count("\n")) == (2, 1)  # the bag has no such topic
    assert "has no messages of this topic" in trajectories.stderr


def test_a_wheel_without_the_models_is_small(tmp_path):
    """Its files but the kernels, which compress to 0.2 MB."""
    assert {each.name for each in shared_files(tmp_path, REFLECTDRIVE_MODELS="none").iterdir()} == {"config"}
    archive = shutil.make_archive(str(tmp_path / "package"), "zip", tmp_path / "source" / "reflectdrive_ros")
    assert Path(archive).stat().st_size < 2.8e6


def test_a_shipped_model_that_is_missing_is_one_sentence(monkeypatch):
    monkeypatch.setattr(installing, "__file__", "/opt/none/installing.py")
    monkeypatch.chdir("/")
    with pytest.raises(ModelFileError, match=r"^model file models/\S+ cannot be read .*copy the folder models"):
        model_file.verified_sha256(Config().model)


@takes_minutes
def test_every_command_of_a_wheel_works_or_is_one_sentence(without_ros):
    for words in [*((name,) for name in COMMANDS), *(("bench", name) for name in BENCHES)]:
        done = run_alone(without_ros / "reflectdrive", *words, "--help")
        assert (done.returncode, done.stderr.count("\n")) in ((0, 0), (2, 1)), f"{words}: {done.stderr}"
    for script in ("planner", "world"):
        done = run_alone(without_ros / script)
        assert (done.returncode, done.stderr.count("\n")) == (2, 1)
        assert "needs ROS 2" in done.stderr


# --- a set-up that several users share -------------------------------------------------------------------------------


@pytest.mark.parametrize("python", ["of all", "private"])
def test_the_set_up_of_another_user_is_used_or_the_reason_is_said(tmp_path, python):
    """Run as nobody where the tests run as root; else the folders are made read-only."""
    root = tmp_path / "clone"
    (root / "tools").mkdir(parents=True)
    shutil.copy(ROOT / "tools" / "setup", root / "tools" / "setup")
    private = tmp_path / "home"
    private.mkdir()
    interpreter = private / "python"
    interpreter.write_text("#!/bin/sh\nexit 0\n")
    interpreter.chmod(0o755)
    (root / ".venv" / "bin").mkdir(parents=True)
    (root / ".venv" / "bin" / "python").symlink_to(interpreter)
    private.chmod(0o755 if python == "of all" else 0o000)
    (root / ".venv").chmod(0o555)
    other = {"user": 65534, "group": 65534} if os.getuid() == 0 else {}
    pytest_folders = [each for each in tmp_path.parents if "pytest-of-" in str(each)]
    for folder in [tmp_path, *pytest_folders] if other else []:
        folder.chmod(folder.stat().st_mode | 0o055)
    try:
        command = ["sh", str(root / "tools" / "setup")]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, cwd="/", **other)
    finally:
        private.chmod(0o755)
        (root / ".venv").chmod(0o755)
    if python == "of all":
        assert (done.returncode, done.stderr) == (0, "")
    else:
        assert done.returncode == 2
        assert "does not run for " in done.stderr
        assert "PYTHON=/usr/bin/python3 tools/setup" in done.stderr
