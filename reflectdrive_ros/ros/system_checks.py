"""Checks of this machine for `reflectdrive doctor`: what is installed, what is missing, what to do.

Each check is a function from facts to findings; `run_checks` gathers the facts of this machine. It runs on a machine
without ROS: rclpy and message packages are imported inside, and what cannot be imported is a finding.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from importlib import metadata
from pathlib import Path

from ..core.config import Config
from ..infra.errors import UserError
from ..infra.installing import import_advice, pip_extra, shipped
from . import topics

SEGMENT_BYTES = 64 * 2**20  # shared memory of one participant under config/fastdds.xml
PARTICIPANTS = 4  # cameras or a bag, the node, RViz, a recorder
RECEIVE_BUFFER_BYTES = 4 * 2**20  # UDP buffer size in config/fastdds.xml; the least in config/cyclonedds.xml
KERNEL_INSTRUCTIONS = ("avx2", "bmi1", "bmi2", "fma")  # of src/module.cpp, as Linux names them
LOOPBACK_S = 5.0  # usually 0.1; Fast DDS repeats a lost announcement of itself after 3
INSTALL = "make test sets up .venv; with a ROS installation: rosdep install --from-paths . --ignore-src"


class State(Enum):
    OK = "OK"
    WARN = "WARN"
    MISSING = "MISSING"


@dataclass(frozen=True)
class Finding:
    name: str
    state: State
    detail: str
    todo: str = ""
    required: bool = True  # MISSING and required: the planner cannot run


def run_checks(environment: Mapping[str, str], config: Config) -> Iterator[Finding]:
    """Every finding about this machine and the configured planner, in the order of a reader's questions."""
    yield python(sys.version_info[:2])
    yield processor(platform.machine(), _read(Path("/proc/cpuinfo")))
    yield ros(environment)
    word = f"/reflectdrive_doctor_{os.getpid()}"
    speaker = start_talker(word) if importlib.util.find_spec("rclpy") else None  # runs during the other checks
    yield from messages(config)
    yield from libraries()
    yield planner(config)
    yield nvidia()
    yield shared_memory(Path("/dev/shm"))
    yield dds_profile(environment)
    yield discovery(environment)
    yield receive_buffer(Path("/proc/sys/net/core/rmem_max"))
    yield from writable(environment)
    yield load(len(os.sched_getaffinity(0)), os.getloadavg()[0])
    if speaker is not None:
        yield from check_loopback(speaker, word, environment)


# --- Python and ROS --------------------------------------------------------------------------------------------------


def python(version: tuple[int, int]) -> Finding:
    detail = f"{version[0]}.{version[1]} ({sys.executable})"
    if version < (3, 10):
        return Finding("Python", State.MISSING, detail, "use Python 3.10 or later")
    return Finding("Python", State.OK, detail)


def processor(machine: str, cpuinfo: str) -> Finding:
    """Whether the compiled kernels run on it; `cpuinfo` is the text of /proc/cpuinfo, empty where there is none."""
    named = re.search(r"^flags\s*:(.*)$", cpuinfo, re.MULTILINE)  # of the first core
    if machine not in ("x86_64", "AMD64") or named is None:
        return Finding("processor", State.OK, machine)
    lacking = [name for name in KERNEL_INSTRUCTIONS if name not in named[1].split()]
    if lacking:
        todo = "use one of x86-64-v3 (Intel since 2013, AMD since 2015); in a virtual machine its host's processor type"
        return Finding("processor", State.MISSING, f"{machine} without {', '.join(lacking).upper()}", todo)
    return Finding("processor", State.OK, f"{machine} with {', '.join(KERNEL_INSTRUCTIONS).upper()}")


def ros(environment: Mapping[str, str]) -> Finding:
    if importlib.util.find_spec("rclpy") is None:
        sourced = "AMENT_PREFIX_PATH" in environment
        todo = (
            INSTALL if sourced else f"source /opt/ros/<distribution>/setup.bash where ROS is installed; else {INSTALL}"
        )
        return Finding("ROS 2", State.MISSING, "no rclpy", todo)
    if environment.get("ROS_DISTRO"):
        return Finding("ROS 2", State.OK, f"{environment['ROS_DISTRO']}, sourced")
    for entry in metadata.distributions():
        wheel = re.fullmatch("ros[-_]([a-z]+)[-_]rclpy", entry.metadata["Name"] or "")
        if wheel:
            return Finding("ROS 2", State.OK, f"{wheel[1]}, from wheels {entry.version} in {sys.prefix}")
    return Finding("ROS 2", State.OK, "of unknown distribution")


def messages(config: Config) -> Iterator[Finding]:
    """The message packages that the topics need, in three groups: ROS's, Autoware's, ours."""
    types = {topic.type for topic in (*topics.inputs(config), *topics.OUTPUTS)} - {topics.OPERATION_MODE_TYPE}
    types |= {*topics.ROUTE_TYPES.values(), *topics.OBJECT_TYPES.values(), topics.MAP_TYPE}
    packages = sorted({name.split("/")[0] for name in types})
    autoware = [name for name in packages if name.startswith("autoware")]
    others = [name for name in packages if name not in autoware and name != "reflectdrive"]
    yield _message_group("ROS messages", others, INSTALL)
    yield _message_group("our messages", ["reflectdrive"], "colcon build, then source its setup.bash (or: make test)")
    yield _message_group("Autoware messages", autoware, INSTALL)
    yield candidate_layout()
    yield operation_mode()


def _message_group(name: str, packages: list[str], todo: str) -> Finding:
    faults, prefixes, stand_ins = [], set(), []
    for package in packages:
        try:
            module = importlib.import_module(f"{package}.msg")
        except ImportError as fault:
            faults.append(f"{package} ({_first_line(fault)})")
            continue
        prefix, manifest = _origin(package, Path(str(module.__file__)))
        prefixes.add(str(prefix))
        if f"Fields of {package}," in manifest:
            stand_ins.append(package)
    if faults:
        return Finding(name, State.MISSING, "cannot import " + ", ".join(faults), todo)
    detail = f"{', '.join(packages)} in {', '.join(sorted(prefixes))}"
    if stand_ins:
        detail += f"; made from test/interfaces: {'all' if stand_ins == packages else ', '.join(stand_ins)}"
    return Finding(name, State.OK, detail)


def _origin(package: str, module: Path) -> tuple[Path, str]:
    """The ament prefix of a message module, and the text of its package.xml."""
    for prefix in module.parents:
        manifest = prefix / "share" / package / "package.xml"
        if manifest.exists():
            return prefix, manifest.read_text(encoding="utf-8")
    return module.parent, ""


def candidate_layout() -> Finding:
    name = "CandidateTrajectory"
    try:
        message = importlib.import_module("autoware_internal_planning_msgs.msg").CandidateTrajectory
    except (ImportError, AttributeError) as fault:
        return Finding(name, State.MISSING, _first_line(fault), "see Autoware messages")
    if "turn_indicators_command" in message.get_fields_and_field_types():
        return Finding(name, State.OK, "of 1.14 or later: with turn_indicators_command")
    return Finding(
        name,
        State.OK,
        "of 1.13 or earlier: without turn_indicators_command",
        "nothing; turn signals are on ~/output/turn_indicators in any case",
    )


def operation_mode() -> Finding:
    package = topics.OPERATION_MODE_TYPE.partition("/")[0]
    if topics.is_installed(topics.OPERATION_MODE_TYPE):
        return Finding("operation mode", State.OK, f"{package} is installed")
    return Finding(
        "operation mode", State.WARN, f"cannot import {package}: it is not read whether a driver drives", INSTALL
    )


# --- libraries -------------------------------------------------------------------------------------------------------

# (module, distributions that provide it, required, consequence without it)
LIBRARIES = (
    ("numpy", ("numpy",), True, INSTALL),
    ("scipy", ("scipy",), True, INSTALL),
    ("shapely", ("shapely",), True, INSTALL),
    ("cv2", ("opencv-python-headless", "opencv-python"), True, INSTALL),
    ("transforms3d", ("transforms3d",), True, "apt install python3-transforms3d, or pip install transforms3d"),
    ("rosbags", ("rosbags",), False, "pip install rosbags (replay, dataset and make-bag need it)"),
    ("pyarrow", ("pyarrow",), False, f"{pip_extra('dataset')} (scene sets from recordings)"),
    ("libsumo", ("libsumo",), False, f"{pip_extra('sim')} (the proving ground: demo, scenes, eval)"),
    ("launch_ros", ("launch-ros",), False, "comes with a ROS installation only; `reflectdrive` works without"),
    ("onnxruntime", ("onnxruntime", "onnxruntime-gpu"), False, "pip install onnxruntime (learned planners on a CPU)"),
    ("openvino", ("openvino",), False, "pip install openvino (learned planners, faster on some processors of Intel)"),
    ("torch", ("torch",), False, "pip install torch (training, export, learned planners on a GPU)"),
    ("tensorrt", ("tensorrt",), False, "nothing without an NVIDIA GPU; on Thor it comes with JetPack"),
)


def libraries() -> Iterator[Finding]:
    """Libraries that the package imports besides ROS, found without importing them: some take seconds or need a
    driver.
    """
    for module, distributions, required, todo in LIBRARIES:
        if importlib.util.find_spec(module) is None:
            yield Finding(module, State.MISSING, "not installed", todo, required)
        else:
            yield Finding(module, State.OK, _version(distributions), required=required)


def _version(distributions: tuple[str, ...]) -> str:
    for name in distributions:
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return "installed"  # Debian's OpenCV, for one, has no metadata


def planner(config: Config) -> Finding:
    """Whether the configured planner has its model file and a backend that reads it; the network is not run."""
    try:
        from ..planning import get_planner, learned_configs
        from ..runtime.model_file import verified_sha256
        from ..runtime.network import INSTALL_COMMANDS, backends_of
    except ImportError as fault:
        return Finding("planner", State.MISSING, f"it {import_advice(fault) or fault}", "see docs/install.md")
    try:
        get_planner(config)
        learned = learned_configs(config)
        if not learned:
            return Finding("planner", State.OK, f"{config.planner}, which needs no model")
        backends = {}
        for own in learned.values():
            verified_sha256(own.model)
            path = shipped(own.model.file)
            backends[path] = backends_of(path, own.model)
    except UserError as fault:
        todo = "see docs/install.md; or another --setting planner=NAME, model.file=FILE"
        return Finding("planner", State.MISSING, str(fault), todo)
    parts = []
    for path, names in backends.items():
        installed = [name for name in names if importlib.util.find_spec(name)]
        if not installed:
            todo = " or ".join(INSTALL_COMMANDS[name] for name in names)
            return Finding("planner", State.MISSING, f"{config.planner}: {path} needs {' or '.join(names)}", todo)
        parts.append(f"{path}, on {' or '.join(installed)}")
    return Finding("planner", State.OK, f"{config.planner}: {'; '.join(parts)}")


def nvidia() -> Finding:
    """The driver, by nvidia-smi: calling CUDA or TensorRT without one can end the process."""
    name = "NVIDIA driver"
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return Finding(name, State.MISSING, "no nvidia-smi", "nothing on a machine without an NVIDIA GPU", False)
    query = [tool, "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        answer = subprocess.run(query, capture_output=True, text=True, timeout=20, check=True).stdout
    except (OSError, subprocess.SubprocessError) as fault:
        return Finding(name, State.WARN, _first_line(fault), "run nvidia-smi; the driver does not answer", False)
    return Finding(name, State.OK, "; ".join(answer.split("\n")).strip("; "), required=False)


# --- what DDS needs of the machine -----------------------------------------------------------------------------------


def shared_memory(folder: Path) -> Finding:
    name, need = "shared memory", PARTICIPANTS * SEGMENT_BYTES
    try:
        status = os.statvfs(folder)
    except OSError as fault:
        return Finding(name, State.WARN, f"{folder}: {fault.strerror}", "mount a tmpfs there, or images go over UDP")
    size, free = status.f_blocks * status.f_frsize, status.f_bavail * status.f_frsize
    detail = f"{folder}: {free / 2**20:.0f} of {size / 2**20:.0f} MB free"
    if not os.access(folder, os.W_OK):
        return Finding(name, State.WARN, f"{folder} cannot be written", "chmod 1777, or images go over UDP")
    if size < need:
        todo = f"64 MB for each participating process: start the container with --shm-size={need // 2**20}m or more"
        return Finding(name, State.WARN, detail, todo)
    if free < need:
        todo = "close programs that use it; `fastdds shm clean` removes files of killed nodes"
        return Finding(name, State.WARN, detail, todo)
    return Finding(name, State.OK, detail)


def dds_profile(environment: Mapping[str, str]) -> Finding:
    """Whether Fast DDS gets a profile with a segment that three cameras fit in."""
    name = "DDS profile"
    other = environment.get("RMW_IMPLEMENTATION") or "rmw_fastrtps_cpp"
    if not other.startswith("rmw_fastrtps"):
        return _other_profile(name, other, environment)
    shipped = f"export FASTRTPS_DEFAULT_PROFILES_FILE={shipped_file('fastdds.xml', environment)}"
    todo = f"launch and demo set it themselves; every other process that sends or receives images needs it: {shipped}"
    for variable in ("FASTRTPS_DEFAULT_PROFILES_FILE", "FASTDDS_DEFAULT_PROFILES_FILE"):
        if environment.get(variable):
            break
    else:
        detail = "FASTRTPS_DEFAULT_PROFILES_FILE is not set: with 512 kB of shared memory DDS loses images silently"
        return Finding(name, State.WARN, detail, todo)
    file = environment[variable]
    try:
        root = ElementTree.parse(file).getroot()
    except OSError as fault:
        return Finding(name, State.WARN, f"{variable}={file}: {fault.strerror}; DDS then uses its defaults", todo)
    except ElementTree.ParseError as fault:
        return Finding(name, State.WARN, f"{variable}={file} is not XML ({fault}); DDS then uses its defaults", todo)
    sizes = [(entry.text or "").strip() for entry in root.iter() if entry.tag.endswith("segment_size")]
    largest = max((int(size) for size in sizes if size.isdigit()), default=0)
    if largest < SEGMENT_BYTES:
        detail = f"{variable}={file} has a segment of {largest / 2**20:.1f} MB; three 1080p cameras need 64"
        return Finding(name, State.WARN, detail, todo)
    return Finding(name, State.OK, f"{file}: shared memory of {largest / 2**20:.0f} MB")


def _other_profile(name: str, middleware_name: str, environment: Mapping[str, str]) -> Finding:
    """The profile of a middleware that does not read Fast DDS's."""
    if middleware_name != "rmw_cyclonedds_cpp":
        return Finding(name, State.OK, f"not checked for {middleware_name}", required=False)
    if environment.get("CYCLONEDDS_URI"):
        return Finding(name, State.OK, f"CYCLONEDDS_URI={environment['CYCLONEDDS_URI']}, not read")
    file = shipped_file("cyclonedds.xml", environment)
    todo = f"for images, also in the process that sends them: export CYCLONEDDS_URI=file://{file}"
    return Finding(name, State.WARN, "CYCLONEDDS_URI is not set: CycloneDDS uses its defaults", todo)


def shipped_file(name: str, environment: Mapping[str, str]) -> Path:
    """A shipped file of `config`: of the installed share folder, or of the source tree."""
    shares = [Path(prefix) / "share/reflectdrive" for prefix in environment.get("AMENT_PREFIX_PATH", "").split(":")]
    candidates = [folder / "config" / name for folder in (*shares, Path(__file__).resolve().parents[2])]
    return next((candidate for candidate in candidates if candidate.exists()), Path("config") / name)


def discovery(environment: Mapping[str, str]) -> Finding:
    name = "discovery"
    domain = environment.get("ROS_DOMAIN_ID") or "0"
    reach = environment.get("ROS_AUTOMATIC_DISCOVERY_RANGE") or "SUBNET"
    if environment.get("ROS_LOCALHOST_ONLY") == "1":  # Humble's variable; later releases honour it
        reach = "LOCALHOST"
    detail = f"ROS_DOMAIN_ID {domain}, range {reach}"
    if not domain.isdigit() or int(domain) > 101:
        return Finding(name, State.WARN, detail, "use a ROS_DOMAIN_ID from 0 to 101")
    if reach == "OFF":
        return Finding(name, State.WARN, detail, "nodes of other processes are not found; unset the range")
    return Finding(name, State.OK, detail)


def receive_buffer(file: Path) -> Finding:
    name = "UDP buffer"
    try:
        size = int(_read(file))
    except ValueError:
        return Finding(name, State.OK, "not reported by the kernel", required=False)
    detail = f"net.core.rmem_max {size / 2**20:.1f} MB"
    if size < RECEIVE_BUFFER_BYTES:
        todo = f"sudo sysctl -w net.core.rmem_max={RECEIVE_BUFFER_BYTES}, for images over UDP (from another machine, "
        todo += "or with CycloneDDS)"
        return Finding(name, State.WARN, detail, todo, required=False)
    return Finding(name, State.OK, detail, required=False)


def writable(environment: Mapping[str, str]) -> Iterator[Finding]:
    logs = environment.get("ROS_LOG_DIR")
    if not logs and (home := environment.get("ROS_HOME") or environment.get("HOME")):
        logs = str(Path(home) / ("log" if environment.get("ROS_HOME") else ".ros/log"))
    if not logs:
        yield Finding("log folder", State.MISSING, "neither HOME nor ROS_LOG_DIR is set", "export ROS_LOG_DIR=/tmp/ros")
    else:
        yield _writable("log folder", Path(logs), "export ROS_LOG_DIR to a folder that you may write")
    yield _writable("this folder", Path.cwd(), "run from a folder that you may write, or name one for results", False)


def _writable(name: str, folder: Path, todo: str, required: bool = True) -> Finding:
    existing = next(ancestor for ancestor in (folder, *folder.absolute().parents) if ancestor.exists())
    try:
        with tempfile.TemporaryFile(dir=existing):
            return Finding(name, State.OK, str(folder), required=required)
    except OSError as fault:
        return Finding(name, State.MISSING, f"{folder} cannot be written: {fault.strerror}", todo, required)


def load(cores: int, running: float) -> Finding:
    detail = f"{cores} cores, load {running:.1f}"
    if running > cores:
        return Finding("cores", State.WARN, detail, "other programs use the cores; timings will be worse", False)
    return Finding("cores", State.OK, detail, required=False)


# --- two processes that talk -----------------------------------------------------------------------------------------


def start_talker(topic: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", f"{__package__}.system_checks", topic]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def check_loopback(speaker: subprocess.Popen[str], topic: str, environment: Mapping[str, str]) -> Iterator[Finding]:
    """Which middleware there is, and whether a message from the other process arrives within `LOOPBACK_S`."""
    greeting = speaker.stdout.readline().split() if speaker.stdout else []
    if greeting[:1] != ["speaking"]:  # if RMW_IMPLEMENTATION is not installed, ROS ends the process
        _, complaint = speaker.communicate()
        lines = complaint.strip().splitlines() or [f"a process with a node ended with exit code {speaker.returncode}"]
        todo = "unset RMW_IMPLEMENTATION or install what it names; see the log folder"
        yield Finding("middleware", State.MISSING, lines[-1], todo)
        return
    try:
        yield middleware(greeting[-1])
        yield _loopback_finding(topic, environment)
    finally:
        speaker.terminate()  # killing a node would leave its shared memory behind
        try:
            speaker.communicate(timeout=5.0)
        except subprocess.TimeoutExpired:
            speaker.kill()
            speaker.communicate()


def middleware(name: str) -> Finding:
    if not name.startswith("rmw_fastrtps"):
        todo = "nothing, if it carries your images; config/fastdds.xml is for Fast DDS only, see DDS profile"
        return Finding("middleware", State.WARN, name, todo)
    return Finding("middleware", State.OK, name)


def _loopback_finding(topic: str, environment: Mapping[str, str]) -> Finding:
    name = "talking"
    if environment.get("ROS_AUTOMATIC_DISCOVERY_RANGE") == "OFF":
        return Finding(name, State.WARN, "not tried: discovery is OFF", "see discovery", required=False)
    todo = "check that multicast on the loopback interface and /dev/shm are not blocked, and ROS_DOMAIN_ID"
    try:
        first_message_s = _seconds_to_first_message(topic)
    except Exception as fault:  # the middleware raises various types; each is the result
        return Finding(name, State.MISSING, _first_line(fault), todo)
    if first_message_s is None:
        return Finding(name, State.MISSING, f"no message between two processes within {LOOPBACK_S:.0f} s", todo)
    return Finding(name, State.OK, f"first message from another process after {first_message_s:.2f} s")


def _seconds_to_first_message(topic: str) -> float | None:
    import rclpy
    from rclpy.context import Context
    from rclpy.executors import SingleThreadedExecutor
    from rclpy.signals import SignalHandlerOptions
    from std_msgs.msg import String

    received: list[object] = []
    context = Context()
    rclpy.init(args=[], context=context, signal_handler_options=SignalHandlerOptions.NO)
    try:
        node = rclpy.create_node("reflectdrive_doctor", context=context)
        node.create_subscription(String, topic, received.append, 10)
        executor = SingleThreadedExecutor(context=context)
        executor.add_node(node)
        start_s = time.monotonic()
        while not received and time.monotonic() - start_s < LOOPBACK_S:
            executor.spin_once(timeout_sec=0.05)
        return time.monotonic() - start_s if received else None
    finally:
        context.shutdown()


def _run_talker(topic: str) -> None:
    """The other process: publishes one word twenty times a second until it is terminated or has no subscriber."""
    import rclpy
    from rclpy.signals import SignalHandlerOptions
    from rclpy.utilities import get_rmw_implementation_identifier
    from std_msgs.msg import String

    terminated: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, frame: terminated.append(number))
    rclpy.init(args=[], signal_handler_options=SignalHandlerOptions.NO)
    publisher = rclpy.create_node("reflectdrive_doctor_speaker").create_publisher(String, topic, 10)
    sys.stdout.write(f"speaking {get_rmw_implementation_identifier()}\n")
    sys.stdout.flush()
    start_s = time.monotonic()
    while not terminated and time.monotonic() - start_s < 4 * LOOPBACK_S:
        publisher.publish(String(data="hello"))
        time.sleep(0.05)
    rclpy.shutdown()


def _read(file: Path) -> str:
    """The text of a file of /proc; empty where the kernel has none."""
    try:
        return file.read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""


def _first_line(fault: BaseException) -> str:
    return (str(fault).strip().splitlines() or [type(fault).__name__])[0]


if __name__ == "__main__":
    _run_talker(sys.argv[1])
