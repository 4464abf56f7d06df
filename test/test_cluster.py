"""A Ray cluster gives the results of one process, whatever dies, and says what it cannot use.

Two nodes of Ray on this machine, which are ended with the module. `make test-cluster` runs these tests alone.
"""

import argparse
import functools
import http.server
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import closing
from pathlib import Path

import hand_scenes
import numpy as np
import pytest
from cluster_tasks import waits_and_is_quick
from commands import refusal
from stored_scenes import scenes_folder  # noqa: F401 (a fixture)

from reflectdrive_ros.__main__ import main
from reflectdrive_ros.data import sets
from reflectdrive_ros.infra import arguments, cluster
from reflectdrive_ros.infra.cluster import Cluster, ClusterError
from reflectdrive_ros.infra.parallel import ATTEMPTS, map_restartable

HERE = Path(__file__).parent
ENVIRONMENT = {**cluster.DEFAULTS, "PYTHONPATH": f"{HERE.parent}{os.pathsep}{HERE}"}


@pytest.fixture(scope="module")
def nodes():
    """A head with one core, which this process is connected to at the first use, and a node with another."""
    pytest.importorskip("ray")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in ENVIRONMENT.items():
            patch.setenv(name, value)
        import ray
        from ray.cluster_utils import Cluster as LocalCluster

        cluster = LocalCluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
        try:
            cluster.add_node(num_cpus=1)
            yield cluster
        finally:
            ray.shutdown()
            cluster.shutdown()


@pytest.fixture
def both(nodes):
    """The address of the cluster, with both of its nodes."""
    if not nodes.worker_nodes:
        nodes.add_node(num_cpus=1)
    return Cluster(nodes.address)


def outcomes_of(tasks, work, workers, **options):
    outcomes = {outcome.task: outcome for outcome in map_restartable(tasks, work, workers, **options)}
    assert sorted(outcomes) == sorted(tasks)
    return [outcomes[task] for task in tasks]


# --- the pool --------------------------------------------------------------------------------------------------------


def surroundings(task, report):
    """What the bits of a result depend on, as the process of a task sees it."""
    from reflectdrive_ros.infra import parallel

    names = (*parallel.ONE_THREAD, *parallel.portable_simd_environment())
    matrix = np.random.default_rng(task).normal(size=(300, 300)).astype(np.float32)
    return {name: os.environ.get(name) for name in names}, (matrix @ matrix).tobytes(), np.tanh(matrix).tobytes()


@pytest.mark.long
@pytest.mark.parametrize("portable", [True, False])
def test_a_task_finds_on_a_node_what_it_finds_in_a_process_of_this_machine(both, portable):
    ours = outcomes_of([0, 1, 2], surroundings, 1, portable=portable)
    assert outcomes_of([0, 1, 2], surroundings, both, portable=portable) == ours


def dies_or_fails(task, report):
    report(0.5)
    if task == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    if task == 2:
        raise ValueError("the town has no road")
    return task


@pytest.mark.long
@pytest.mark.parametrize(("isolated", "times"), [(False, f" {ATTEMPTS} times"), (True, "")])
def test_a_task_that_kills_its_process_or_fails_is_named_and_the_others_are_done(both, isolated, times):
    outcomes = outcomes_of([0, 1, 2, 3], dies_or_fails, both, isolated=isolated)
    assert [outcome.result for outcome in outcomes] == [0, None, None, 3]
    assert outcomes[1].reason == f"its process died{times} (signal 9)"
    assert outcomes[2].reason == "ValueError: the town has no road"


def reports(task, report):
    for part in range(4):
        report(part)
        time.sleep(0.8)
    return task


@pytest.mark.long
def test_progress_comes_while_tasks_run(both):
    reported = []
    assert [each.task for each in map_restartable([0], reports, both, lambda *values: reported.append(values))] == [0]
    assert {index for index, _ in reported} == {0}
    assert reported[-1][1] > 0


@pytest.mark.long
def test_tasks_that_nobody_waits_for_any_more_end(both, tmp_path):
    file = tmp_path / "pid"
    reported = functools.partial(waits_and_is_quick, str(file))
    outcomes = map_restartable(["quick", "slow"], reported, both)
    with closing(outcomes):
        assert next(outcomes).task == "quick"
        wait_for(lambda: file.exists() and file.read_text(), 60.0)
    pid = int(file.read_text())
    wait_for(lambda: not alive(pid), 30.0)


def wait_for(condition, seconds):
    until_s = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until_s
        time.sleep(0.05)


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


# --- sets, with a node that is lost ----------------------------------------------------------------------------------


def spec(size=60):
    return sets.SceneSetSpec("test", size, hand_scenes.MADE_BY)


def everything(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.long
def test_a_node_that_is_killed_in_the_middle_loses_nothing(nodes, both, tmp_path, monkeypatch):
    monkeypatch.setattr(sets, "SHARD", 10)
    sets.make(tmp_path / "one", spec(), hand_scenes.make, workers=1, on_progress=lambda scenes: None)
    killed = []

    def kill_at_half(scenes):
        if scenes >= 20 and not killed:
            (node,) = nodes.worker_nodes
            killed.append(node)
            threading.Thread(target=nodes.remove_node, args=(node,), kwargs={"allow_graceful": False}).start()

    index = sets.make(tmp_path / "two", spec(), hand_scenes.make_slowly, workers=both, on_progress=kill_at_half)
    assert killed
    assert not index.missing
    assert everything(tmp_path / "two") == everything(tmp_path / "one")


@pytest.mark.long
def test_a_shard_that_cannot_be_made_is_named_and_left_out(both, tmp_path, monkeypatch):
    monkeypatch.setattr(sets, "SHARD", 10)
    (tmp_path / "marks").mkdir()
    maker = functools.partial(hand_scenes.make_or_die, tmp_path / "marks", 99)
    index = sets.make(tmp_path / "set", spec(30), maker, workers=both, on_progress=lambda scenes: None)
    assert index.missing == {"test-00001": f"its process died {ATTEMPTS} times (signal 9)"}
    assert index.scenes == 20
    with pytest.raises(OSError, match="No space left on device"):
        sets.make(
            tmp_path / "full", spec(30), hand_scenes.make_on_a_full_disk, workers=both, on_progress=lambda scenes: None
        )


# --- the commands ----------------------------------------------------------------------------------------------------


def numbers_of(file, *words):
    """Exit code and JSON of a command, without what says who made it and how long it took."""
    code = main([*map(str, words), "--json", str(file)])
    numbers = json.loads(file.read_text())
    return code, without(numbers, ("command", "date", "commit", "wall_s", "scenes_per_s", "folder", "memory_mb_max"))


def without(value, names):
    if isinstance(value, dict):
        return {key: without(each, names) for key, each in value.items() if key not in names}
    return [without(each, names) for each in value] if isinstance(value, list) else value


@pytest.mark.long
def test_eval_in_open_loop(both, folder, tmp_path):
    words = ("eval", "--scenes", folder, "--planner", "constant_velocity", "route_follower")
    ours = numbers_of(tmp_path / "ours.json", *words, "--workers", 1)
    assert numbers_of(tmp_path / "theirs.json", *words, "--cluster", both.address) == ours
    assert ours[0] == 0


@pytest.mark.long
def test_scenes_and_eval_in_closed_loop(both, tmp_path):
    words = ("scenes", "--count", 4, "--no-images", "--width", 64, "--height", 36)
    for name, more in (("ours", ("--workers", 1)), ("theirs", ("--cluster", both.address))):
        assert main([*map(str, (*words, "--out", tmp_path / name, *more))]) == 0
    assert everything(tmp_path / "theirs") == everything(tmp_path / "ours")
    words = ("eval", "--closed-loop", "--planner", "route_follower", "--seeds", 2, "--duration", 4)
    ours = numbers_of(tmp_path / "ours.json", *words, "--workers", 1)
    theirs = numbers_of(tmp_path / "theirs.json", *words, "--cluster", both.address)
    assert without([*theirs], ("planning_ms",)) == without([*ours], ("planning_ms",))


@pytest.fixture(scope="module")
def bags(tmp_path_factory):
    from own_bags import short_bag

    path = tmp_path_factory.mktemp("bags")
    for name, seconds in (("one", 7.0), ("two", 3.0)):  # the second is too short for a scene
        short_bag(path / name, "pandaset_002", seconds=seconds)
    return path


@pytest.mark.long
def test_dataset_replay_and_compare(both, bags, tmp_path):
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    for out, more in ((ours, ("--jobs", 1)), (theirs, ("--cluster", both.address))):
        assert main([*map(str, ("dataset", bags, "--out", out / "set", *more))]) == 1
        words = ("replay", bags, "--out", out / "replay", "--planner", "route_follower", "--no-report", *more)
        assert main([*map(str, words)]) == 0
    tars = [path.name for path in (ours / "set").glob("*.tar")]
    assert len(tars) == 1
    for name in (*tars, *(path.with_suffix(".json").name for path in map(Path, tars)), "frames.parquet"):
        assert (theirs / "set" / name).read_bytes() == (ours / "set" / name).read_bytes(), name
    plans = [[one["plans_sha256"] for one in read(out / "replay")["bags"]] for out in (ours, theirs)]
    assert plans[0] == plans[1]
    words = ("compare", ours / "replay", theirs / "replay")
    alone = numbers_of(tmp_path / "alone.json", *words)
    assert numbers_of(tmp_path / "cluster.json", *words, "--cluster", both.address) == alone


def read(folder):
    return json.loads((folder / "summary.json").read_text())


@pytest.mark.long
def test_rewards_and_rollouts(both, tmp_path):
    pytest.importorskip("torch")
    import torch
    from tiny_training import make_set, rl_command, weights, with_words

    from reflectdrive_ros.training import train_state

    (tmp_path / "init").mkdir()
    train_state.save_weights(with_words(), tmp_path / "init" / train_state.WEIGHTS, {})
    pair = make_set(tmp_path / "train"), make_set(tmp_path / "val", "val", 6)
    for name, more in (("ours", ("--workers", "1")), ("theirs", ("--cluster", both.address))):
        assert rl_command(pair, tmp_path / name, tmp_path / "init", "--steps", "3", *more) == 0
    ours, theirs = weights(tmp_path / "ours"), weights(tmp_path / "theirs")
    assert all(torch.equal(value, theirs[name]) for name, value in ours.items())


# --- what cannot be used ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("address", ["", "here", "host:", "host:0", "host:70000", "ray://host:10001", "a:b"])
def test_an_address_is_a_host_with_its_port(address):
    with pytest.raises(argparse.ArgumentTypeError, match="is neither HOST:PORT nor local"):
        arguments.cluster(address)


def test_without_ray_the_extra_is_named(folder, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    message = refusal(capsys, "eval", "--scenes", folder, "--cluster", "local")
    assert message == "Ray is not installed, --cluster needs it: pip install '.[cluster]' in a clone of reflectdrive"


def test_an_address_that_does_not_answer_is_said_at_once(folder, capsys):
    pytest.importorskip("ray")
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{unused.getsockname()[1]}"
        start_s = time.monotonic()
        message = refusal(capsys, "eval", "--scenes", folder, "--cluster", address)
    assert message.startswith(f"the cluster {address} does not answer (Connection refused): give HOST:PORT of a head")
    assert time.monotonic() - start_s < 20.0


@pytest.mark.long
def test_an_address_of_something_else_is_refused_after_a_bounded_wait(folder, capsys, monkeypatch):
    pytest.importorskip("ray")
    monkeypatch.setattr(cluster, "CONNECT_S", 5.0)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), http.server.SimpleHTTPRequestHandler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            address = f"127.0.0.1:{server.server_port}"
            message = refusal(capsys, "eval", "--scenes", folder, "--cluster", address)
        finally:
            server.shutdown()
            thread.join()
    assert message.startswith(f"{address} answers, but not as the head of a Ray cluster: give HOST:PORT")


@pytest.mark.long
def test_a_worker_with_another_version_is_named(both, monkeypatch):
    real = cluster.fingerprint(True)
    other = {**real, "reflectdrive": "9.9.9 (source 0123456789ab)", "scipy": "0.1"}
    monkeypatch.setattr(cluster, "fingerprint", lambda portable: other)
    with pytest.raises(ClusterError) as fault:
        outcomes_of([0], surroundings, both)
    message = str(fault.value)
    assert f"reflectdrive {real['reflectdrive']} and not 9.9.9 (source 0123456789ab), scipy {real['scipy']}" in message
    assert message.endswith("install the same on every node")


@pytest.mark.long
def test_work_that_a_node_cannot_import_is_one_sentence(both, tmp_path, monkeypatch):
    (tmp_path / "only_here.py").write_text("def work(task, report):\n    return task\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    import only_here

    with pytest.raises(ClusterError, match=r"cannot run tasks: .*No module named 'only_here'"):
        list(map_restartable([0], only_here.work, both))


LOCAL = """
import sys
from cluster_tasks import waits_and_is_quick
from functools import partial
from reflectdrive_ros.infra.cluster import Cluster
from reflectdrive_ros.infra.parallel import map_restartable
for outcome in map_restartable(["slow"], partial(waits_and_is_quick, sys.argv[1]), Cluster("local")): pass
"""


@pytest.mark.long
def test_what_a_killed_command_started_on_this_machine_ends_with_it(tmp_path):
    pytest.importorskip("ray")
    file = tmp_path / "pid"
    child = subprocess.Popen([sys.executable, "-c", LOCAL, str(file)], env={**os.environ, **ENVIRONMENT})
    try:
        wait_for(lambda: child.poll() is not None or (file.exists() and file.read_text()), 120.0)
        family = [int(file.read_text()), *descendants_of(child.pid)]
    finally:
        child.kill()
        child.wait()
    wait_for(lambda: not any(map(alive, family)), 180.0)  # Ray's agents ask for their node now and then


def descendants_of(pid):
    pids = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in map(int, task.read_text().split()):
            pids += [child, *descendants_of(child)]
    return pids
