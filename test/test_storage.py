"""Sets, bags and results on shared storage are those on a disk; a URL that cannot be used is one sentence.

`memory://` is fsspec's storage inside this process, `local://` a folder that all processes reach by a URL, `s3://` a
server of moto on this machine, where s3fs and moto are installed.
"""

import importlib.util
import shutil
import socket
import subprocess
import sys
import time
import uuid
from pathlib import Path

import hand_scenes
import pytest
from commands import refusal

from reflectdrive_ros.__main__ import main
from reflectdrive_ros.data import sets, shards
from reflectdrive_ros.infra.files import read_limited, write_atomic
from reflectdrive_ros.infra.storage import StorageError, is_remote, local_copy, location, upload

upath = pytest.importorskip("upath")
S3 = all(importlib.util.find_spec(name) for name in ("s3fs", "moto", "flask"))


@pytest.fixture
def memory():
    return location(f"memory://test-{uuid.uuid4().hex}")


def spec(size=30):
    return sets.SceneSetSpec("test", size, hand_scenes.MADE_BY)


def make(folder, maker=hand_scenes.make, workers=1):
    return sets.make(folder, spec(), maker, workers=workers, on_progress=lambda scenes: None)


def everything(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


# --- places ----------------------------------------------------------------------------------------------------------


def test_a_path_and_a_file_url_are_paths():
    for text in ("sets/mine", "/sets/mine", "file:///sets/mine", "a:b"):
        assert not is_remote(location(text))
    assert location("file:///sets/mine") == Path("/sets/mine")


def test_what_is_written_is_read_and_limits_hold(memory):
    write_atomic(memory / "a" / "file", b"12345")
    assert read_limited(memory / "a" / "file", 5) == b"12345"
    with pytest.raises(OSError, match="larger than the limit of 4 bytes"):
        read_limited(memory / "a" / "file", 4)
    with pytest.raises(FileNotFoundError, match="No such file") as fault:
        read_limited(memory / "none", 4)
    assert fault.value.filename == str(memory / "none")
    with pytest.raises(OSError, match="it is a directory"):
        read_limited(memory / "a", 4)


def test_a_local_copy_is_there_while_it_is_used_and_must_fit_the_disk(memory, monkeypatch):
    write_atomic(memory / "bag" / "metadata.yaml", b"x")
    write_atomic(memory / "bag" / "deep" / "bag.mcap", b"12345")
    with local_copy(memory / "bag") as path:
        assert path.name == "bag"
        assert (path / "deep" / "bag.mcap").read_bytes() == b"12345"
    assert not path.exists()
    with local_copy(memory / "bag" / "metadata.yaml") as path:
        assert path.read_bytes() == b"x"
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(10, 10, 1 << 30))
    with pytest.raises(OSError, match=r"does not fit .*: set TMPDIR to a larger disk"), local_copy(memory / "bag"):
        pass


def test_the_file_that_says_that_a_result_is_whole_comes_last_and_goes_first(memory, tmp_path, monkeypatch):
    for name in ("a.csv", "done.json", "z.csv"):
        (tmp_path / name).write_text(name)
    write_atomic(memory / "out" / "done.json", b"old")
    order = []
    put = type(memory.fs).put_file

    def put_file(self, source, target, **options):
        order.append(Path(source).name)
        assert not (memory / "out" / "done.json").exists()
        return put(self, source, target, **options)

    monkeypatch.setattr(type(memory.fs), "put_file", put_file)
    upload(tmp_path, memory / "out", last="done.json")
    assert order == ["a.csv", "z.csv", "done.json"]
    assert everything(memory / "out") == everything(tmp_path)


# --- sets, bags and results ------------------------------------------------------------------------------------------


def test_a_set_in_memory_is_read_and_checked_as_one_on_a_disk(memory):
    note = shards.write_shard(
        memory, "test-00000", shards.ShardContent.of([hand_scenes.scene(size=(64, 36))]), requested=1, generator={}
    )
    shards.write_index(memory, shards.Index("test", 1, (note,), {}))
    (scene,) = shards.read(memory, images=True, on_damage=pytest.fail)
    assert shards.SceneReader().read(memory / note.file, scene.name).name == scene.name
    assert [fault for _, fault in shards.check(memory)] == [None]
    (memory / note.file).write_bytes((memory / note.file).read_bytes()[:-1] + b"x")
    ((_, fault),) = shards.check(memory)
    assert fault.startswith(f"{memory}/test-00000.tar is damaged, its checksum is another")
    (memory / note.file).unlink()
    damages = []
    assert not list(shards.read(memory, images=True, on_damage=damages.append))
    assert damages[0].startswith(f"{memory}/test-00000.tar is missing: its 1 scenes are left out")


def test_a_set_that_workers_write_to_shared_storage_is_that_of_a_disk_and_resumes(tmp_path, monkeypatch):
    monkeypatch.setattr(sets, "SHARD", 10)
    make(tmp_path / "disk")
    remote = location(f"local://{tmp_path}/shared")
    assert is_remote(remote)
    index = make(remote, workers=2)
    assert not index.missing
    ours = everything(tmp_path / "disk")
    ours.pop(".lock")
    assert everything(tmp_path / "shared") == ours
    (tmp_path / "shared" / "test-00001.tar").unlink()
    (tmp_path / "shared" / "index.json").unlink()
    make(remote)
    assert everything(tmp_path / "shared") == ours


@pytest.mark.long
def test_bags_of_shared_storage_give_the_sets_and_plans_of_a_disk(tmp_path, capsys):
    from own_bags import short_bag

    for name, seconds in (("one", 7.0), ("two", 3.0)):  # the second is too short for a scene
        short_bag(tmp_path / "bags" / name, "pandaset_002", seconds=seconds)
    samples = []
    for base in (str(tmp_path), f"local://{tmp_path}"):
        out = f"{base}/{'ours' if base == str(tmp_path) else 'theirs'}"
        assert main(["dataset", f"{base}/bags", "--out", f"{out}/set"]) == 1
        words = [f"{base}/bags", "--out", f"{out}/replay", "--planner", "route_follower"]
        assert main(["replay", *words]) == 0
        assert main(["replay", *words]) == 0
        assert "2 kept" in capsys.readouterr().out
        scenes = shards.read(location(f"{out}/set"), images=True, on_damage=pytest.fail)
        samples.append([shards.codec.sample_of(scene, lossless=True) for scene in scenes])
    assert samples[0] == samples[1]
    assert main(["compare", f"local://{tmp_path}/ours/replay", f"local://{tmp_path}/theirs/replay"]) == 0
    assert "no difference shown" in capsys.readouterr().out
    assert (tmp_path / "theirs" / "replay" / "one" / "report.html").exists()
    assert main(["replay", f"local://{tmp_path}/bags/one", "--out", f"local://{tmp_path}/alone"]) == 0


# --- what cannot be used ---------------------------------------------------------------------------------------------


def test_an_unknown_scheme_and_a_missing_client_are_named(capsys, monkeypatch):
    message = refusal(capsys, "scenes", "--check", "nothing://set")
    assert "nothing://set cannot be used (Unsupported filesystem: 'nothing'): give a path, or a URL as s3://" in message
    monkeypatch.setitem(sys.modules, "gcsfs", None)
    assert "pip install gcsfs" in refusal(capsys, "eval", "--scenes", "gs://bucket/set")
    monkeypatch.setitem(sys.modules, "upath", None)
    with pytest.raises(StorageError, match=r"s3://a/b is a URL, which needs: pip install '\.\[storage\]'"):
        location("s3://a/b")


def test_a_url_without_a_set_is_named(memory, capsys):
    assert f"{memory} holds no scene set" in refusal(capsys, "eval", "--scenes", memory)
    assert f"{memory} holds no set of scenes" in refusal(capsys, "scenes", "--check", memory)


def test_what_may_not_be_read_names_the_credentials(memory, capsys, monkeypatch):
    write_atomic(memory / "index.json", b"{}")

    def refuse(self, *paths, **options):
        raise PermissionError("Access Denied")  # as s3fs does, also without any credentials

    monkeypatch.setattr(type(memory.fs), "cat_file", refuse)
    monkeypatch.setattr(type(memory.fs), "open", refuse)
    message = refusal(capsys, "scenes", "--check", memory)
    assert "index.json cannot be read: Permission denied (check the credentials in the environment)" in message


# --- S3 --------------------------------------------------------------------------------------------------------------


@pytest.fixture
def s3(monkeypatch, tmp_path):
    """A bucket of a server on this machine, and the server's process."""
    if not S3:
        pytest.skip("s3fs and moto[server] are not installed")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    for name, value in {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": "us-east-1",
    }.items():
        monkeypatch.setenv(name, value)
    log = (tmp_path / "moto.log").open("w")
    server = subprocess.Popen([sys.executable, "-m", "moto.server", "-p", str(port)], stdout=log, stderr=log)
    try:
        until_s = time.monotonic() + 60.0
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), 1.0).close()
                break
            except OSError:
                assert time.monotonic() < until_s
                time.sleep(0.1)
        import s3fs

        s3fs.S3FileSystem.clear_instance_cache()  # those of a server of an earlier test
        bucket = f"s3://set-{uuid.uuid4().hex}"
        location(bucket).mkdir()
        yield bucket, server
    finally:
        server.kill()
        server.wait()
        log.close()


@pytest.mark.long
def test_a_set_on_s3_is_that_of_a_disk_and_a_storage_that_goes_away_is_one_sentence(s3, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sets, "SHARD", 10)
    make(tmp_path / "disk")
    remote, server = location(f"{s3[0]}/sets/test"), s3[1]
    make(remote, workers=2)
    ours = everything(tmp_path / "disk")
    ours.pop(".lock")
    assert everything(remote) == ours
    assert main(["scenes", "--check", str(remote)]) == 0
    words = ("eval", "--scenes", remote, "--planner", "constant_velocity", "--workers", 2)
    assert main([*map(str, words)]) == 0
    server.kill()
    server.wait()
    start_s = time.monotonic()
    message = refusal(capsys, *words)
    assert "does not answer as it should (EndpointConnectionError" in message or "cannot be read" in message
    assert "Traceback" not in message
    assert time.monotonic() - start_s < 120.0
