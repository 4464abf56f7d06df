"""Every test run has its own corner of DDS, its own home and no hypothesis deadlines.

Set before anything imports rclpy. A domain of its own keeps two runs on one machine apart (LOCALHOST alone does not),
and pytest-xdist's workers, which inherit the controller's environment, apart from each other.
"""

import json
import os
import signal
import sys
import tempfile
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0")[2:])
base = int(os.environ.setdefault("_REFLECTDRIVE_TEST_DOMAIN_BASE", str(os.getpid() % 80 + 1)))
os.environ["ROS_DOMAIN_ID"] = str((base + worker) % 101 + 1)
os.environ["ROS_AUTOMATIC_DISCOVERY_RANGE"] = "LOCALHOST"
if os.environ.get("ROS_DISTRO") == "humble":
    os.environ["ROS_LOCALHOST_ONLY"] = "1"  # Humble does not know the variable above
os.environ["ROS_PYTHON_CHECK_FIELDS"] = "1"  # Jazzy sends an int in a float field as garbage unless told to check

# The libraries of this process and of those that it starts: two workers share two cores, and threads that wait for each
# other over a tiny matrix cost more than they save. Set before NumPy and torch are imported.
for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(name, "1")

home = tempfile.TemporaryDirectory(prefix="reflectdrive-test-home-")  # removed when the interpreter ends
os.environ["HOME"] = home.name
os.environ["ROS_LOG_DIR"] = str(Path(home.name) / "ros-log")

# of all workers, which inherit the controller's: what one has made, the others use (shared.py)
if "_REFLECTDRIVE_TEST_SHARED" not in os.environ:
    shared = tempfile.TemporaryDirectory(prefix="reflectdrive-test-shared-")
    os.environ["_REFLECTDRIVE_TEST_SHARED"] = shared.name

# an assertion that fails in a helper shows its values, as in a test
pytest.register_assert_rewrite(*(path.stem for path in Path(__file__).parent.glob("*.py")))

# Machines are shared and noisy: a slow example is not a wrong one. The same examples every time, so that a red build
# is red for the next person too.
for profile, examples in (("reflectdrive", 25), ("long", 100)):  # make test, make test-long
    checks = [HealthCheck.too_slow]
    settings.register_profile(
        profile, deadline=None, derandomize=True, suppress_health_check=checks, max_examples=examples
    )
settings.load_profile("reflectdrive")


def pytest_addoption(parser):
    parser.addoption("--durations-file", metavar="FILE", help="write the times of tests and fixtures, slowest first")


def pytest_ignore_collect(collection_path, config):
    """Of `-m dds` and `-m meta`: modules without such a test are not imported, which takes ten seconds for all."""
    mark = config.option.markexpr.partition(" ")[0]
    if mark in ("dds", "meta") and collection_path.match("test_*.py"):
        return f"mark.{mark}" not in collection_path.read_text() or None
    return None


def write_durations(file, stats):
    """Seconds, phase (setup makes fixtures) and test of every phase of every test, the slowest first."""
    reports = [each for kind in stats.values() for each in kind if isinstance(each, pytest.TestReport)]
    reports.sort(key=lambda report: (-report.duration, report.nodeid))
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(f"{each.duration:8.2f} s {each.when:8} {each.nodeid}\n" for each in reports))


@pytest.fixture(autouse=True)
def torch_threads_stay_at_one():
    """The number is of the whole process and decides the last bits of a sum: what one test sets, the next must not see.

    One, since threads that wait for each other over a tiny matrix cost a hundred times what they save.
    """
    yield
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)


@pytest.fixture
def default_signals():
    """SIGINT and SIGHUP, which a shell's `&` and `nohup` ignore, end what the test starts, and reach what it calls.

    A program inherits an ignored signal and no handler: this one keeps pytest as deaf as it was.
    """
    ignored = [each for each in (signal.SIGINT, signal.SIGHUP) if signal.getsignal(each) == signal.SIG_IGN]
    for number in ignored:
        signal.signal(number, lambda *_: None)
    yield
    for number in ignored:
        signal.signal(number, signal.SIG_IGN)


@pytest.fixture(scope="session")
def pandaset():
    """The bag of the recording test/data/pandaset_002: 8 s, three cameras, objects and a route."""
    from shared import create_once

    from reflectdrive_ros.__main__ import main

    def make(bag):
        assert main(["make-bag", str(Path(__file__).parent / "data" / "pandaset_002"), str(bag)]) == 0

    return create_once("pandaset", make)


def pytest_terminal_summary(terminalreporter, config):
    """The times of all tests; of a round of `make fuzz` what it has tried and what failed, also when it was stopped,
    added to the rounds before of the same commit."""
    if config.option.durations_file:
        write_durations(Path(config.option.durations_file), terminalreporter.stats)
    if "REFLECTDRIVE_FUZZ_JSON" not in os.environ:
        return
    from fuzzing import TRIED

    from reflectdrive_ros.infra.provenance import provenance

    file = Path(os.environ["REFLECTDRIVE_FUZZ_JSON"])
    about = provenance(["make", "fuzz"])
    before = json.loads(file.read_text()) if file.is_file() else {}
    if before.get("commit") != about["commit"]:
        before = {}
    tried = Counter(before.get("tests", {})) + TRIED
    reports = [*terminalreporter.stats.get("failed", ()), *terminalreporter.stats.get("error", ())]
    ended = reports + terminalreporter.stats.get("passed", [])
    numbers = {
        "inputs": sum(tried.values()),
        "rounds": before.get("rounds", 0) + 1,
        "tests": dict(sorted(tried.items())),
        "failed": sorted({*before.get("failed", []), *(report.nodeid for report in reports)}),
        "seconds": round(before.get("seconds", 0.0) + sum(report.duration for report in ended), 1),
    }
    file.write_text(json.dumps({**numbers, **about}, indent=2) + "\n")
