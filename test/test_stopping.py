"""SIGINT, SIGTERM and SIGHUP end a command with one sentence, its exit code, no process and no half-written file."""

import gc
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import pytest
from tiny_net import tiny_net

from reflectdrive_ros.__main__ import main
from reflectdrive_ros.features.images import WORDS
from reflectdrive_ros.infra import signals
from reflectdrive_ros.infra.files import lock_folder
from reflectdrive_ros.infra.signals import Stopped, defer_signals, exit_code, raise_on_signal
from reflectdrive_ros.model import checkpoint

ROOT = Path(__file__).parents[1]
DATA = ROOT / "test" / "data"
ENDING = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]
CODES = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGHUP: 129}


@pytest.fixture(autouse=True)
def late():
    """Signals that arrived after a command had ended: they fail the test and do not end pytest."""
    arrived = []
    before = {number: signal.signal(number, lambda number, _: arrived.append(number)) for number in ENDING}
    yield arrived
    for number, handler in before.items():
        signal.signal(number, handler)
    assert not arrived


def children():
    """Process ids of what this process began, zombies left out."""
    processes = []
    for pid in (pid for task in Path("/proc/self/task").iterdir() for pid in text_of(task / "children").split()):
        if command := text_of(Path(f"/proc/{pid}/cmdline")):
            processes.append((int(pid), command))
    return processes


def text_of(file):
    """What a file under /proc says; "" when its thread or process has ended since it was listed."""
    try:
        return file.read_text(errors="replace")
    except OSError:
        return ""


def ended_by(number, ready, *words):
    """The exit code of a command to which this process sends a signal as soon as `ready()`."""

    def send():
        until = time.monotonic() + 60.0
        while time.monotonic() < until and not ready():
            time.sleep(0.01)
        os.kill(os.getpid(), number)

    sender = threading.Thread(target=send, daemon=True)
    sender.start()
    try:
        return main([str(word) for word in words])
    finally:
        sender.join(70.0)


@pytest.mark.parametrize("number", ENDING)
def test_a_signal_is_an_exception_that_leaves_with_blocks_and_a_second_one_does_not_break_into_them(late, number):
    closed = []

    def command():
        with raise_on_signal():
            try:
                os.kill(os.getpid(), number)
            finally:
                os.kill(os.getpid(), signal.SIGTERM)
                closed.append(True)

    with pytest.raises(Stopped) as stop:
        command()
    assert (stop.value.number, closed) == (number, [True])
    assert exit_code(stop.value.number) == CODES[number]
    os.kill(os.getpid(), number)  # the handler of before is back
    assert late == [number]
    late.clear()


def test_sigterm_that_a_launcher_sends_five_seconds_after_sigint_is_obeyed_where_that_was_lost(monkeypatch):
    """A handler may run late: the main thread can be in a library for some time."""
    now_s = 100.0
    monkeypatch.setattr(signals, "time", SimpleNamespace(monotonic=lambda: now_s))
    with raise_on_signal():
        with suppress(Stopped):  # as a destructor drops it
            os.kill(os.getpid(), signal.SIGINT)
        now_s += 5.0 - 1.5
        with pytest.raises(Stopped):
            os.kill(os.getpid(), signal.SIGTERM)


def test_a_replay_behind_nohup_outlives_the_terminal(pandaset, tmp_path):
    words = ["replay", pandaset, "--planner", "route_follower", "--no-report", "--out", tmp_path]
    command = ["nohup", sys.executable, "-m", "reflectdrive_ros", *map(str, words)]
    process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    try:
        until = time.monotonic() + 60.0
        while time.monotonic() < until and process.poll() is None and not any(tmp_path.glob("plans/*.mcap")):
            time.sleep(0.01)
        assert process.poll() is None
        process.send_signal(signal.SIGHUP)
        assert process.wait(120.0) == 0
    finally:
        process.kill()
        process.wait()
    assert (tmp_path / "summary.json").is_file()


def test_a_deferred_signal_is_kept_and_the_next_one_raises():
    with defer_signals() as request:
        os.kill(os.getpid(), signal.SIGHUP)
        assert request.number == signal.SIGHUP
        with pytest.raises(Stopped, match="SIGTERM"):
            os.kill(os.getpid(), signal.SIGTERM)


@pytest.mark.parametrize("number", ENDING)
def test_a_stopped_replay_leaves_no_plans(pandaset, tmp_path, capsys, number):
    def planning():
        return any(tmp_path.glob("plans/*.mcap"))

    words = ("--planner", "route_follower", "--no-report", "--out", tmp_path)
    assert ended_by(number, planning, "replay", pandaset, *words) == CODES[number]
    assert capsys.readouterr().err.strip().splitlines() == ["stopped"]
    assert not list(tmp_path.glob("*.json"))
    assert not (tmp_path / "plans").exists()
    end_s = time.monotonic() + 5.0
    while [thread for thread in threading.enumerate() if thread.name.startswith(("reader", "bag-writer"))]:
        assert time.monotonic() < end_s
        gc.collect()  # a pool whose `with` block was not reached yet ends its idle thread with itself
        time.sleep(0.05)


@pytest.mark.dds
def test_a_stopped_replay_through_the_node_leaves_no_node(pandaset, tmp_path, capsys):
    before = children()

    def running():
        return any("reflectdrive_ros.ros.node" in command for _, command in children())

    words = ("--node", "--planner", "route_follower", "--no-report", "--out", tmp_path)
    assert ended_by(signal.SIGHUP, running, "replay", pandaset, *words) == 129
    assert capsys.readouterr().err.strip().splitlines()[-1] == "stopped"
    assert set(children()) <= set(before)


def test_a_stopped_export_leaves_no_graph(tmp_path, capsys):
    weights, out = tmp_path / "weights.safetensors", tmp_path / "graphs"
    checkpoint.save(tiny_net(words=WORDS, text_vocabulary=len(WORDS)), weights, {})

    def tracing():
        return any(tmp_path.glob(".graphs.*.part"))

    assert ended_by(signal.SIGINT, tracing, "export", weights, "--out", out) == 130
    assert capsys.readouterr().err.strip().splitlines()[-1] == "stopped"
    assert not [path for path in tmp_path.iterdir() if "graphs" in path.name]


def test_stopped_workers_end_and_remove_what_they_were_writing(tmp_path, capsys):
    def working():
        return any(tmp_path.glob(".scratch*/*"))

    words = ("--count", "400", "--workers", "2", "--no-images", "--out", tmp_path)
    assert ended_by(signal.SIGTERM, working, "scenes", *words) == 143
    assert "stopped; complete shards are kept" in capsys.readouterr().err
    assert not multiprocessing.active_children()
    assert not list(tmp_path.glob(".scratch*"))


@pytest.mark.parametrize("words", [("replay", DATA / "none"), ("replay", DATA, DATA), ("demo",)], ids=lambda w: w[0])
def test_two_commands_cannot_write_into_one_folder(tmp_path, capsys, words):
    with lock_folder(tmp_path):
        assert main([*map(str, words), "--out", str(tmp_path)]) == 2
    sentence = "cannot be used: another process writes into it; wait for it to end, or name another folder"
    assert capsys.readouterr().err == f"{tmp_path} {sentence}\n"
