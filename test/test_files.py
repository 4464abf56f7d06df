"""What `files` reads of others: regular files up to a limit, and one sentence for everything else."""

import errno
import hashlib
import os
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from reflectdrive_ros.infra.errors import printable, printable_line
from reflectdrive_ros.infra.files import (
    atomic_folder,
    lock_folder,
    path_text,
    read_limited,
    sha256_of,
    write_atomic,
)

ROOT = Path(__file__).parents[1]


def refusal(path, limit_bytes=1000):
    with pytest.raises(OSError) as fault:
        read_limited(path, limit_bytes)
    assert fault.value.strerror
    return f"{fault.value.filename}: {fault.value.strerror}"


def test_a_file_of_exactly_the_limit_is_read_and_one_byte_more_is_refused(tmp_path):
    file = tmp_path / "some"
    file.write_bytes(b"x" * 1000)
    assert read_limited(file, 1000) == b"x" * 1000
    assert read_limited(file, 2000) == b"x" * 1000
    assert refusal(file, 999) == f"{file}: it is larger than the limit of 999 bytes"


def test_a_hash_is_of_a_regular_file_up_to_its_limit(tmp_path):
    (tmp_path / "some").write_bytes(b"x" * (3 << 20))
    assert sha256_of(tmp_path / "some", 3 << 20) == hashlib.sha256(b"x" * (3 << 20)).hexdigest()
    with pytest.raises(OSError, match="larger than the limit"):
        sha256_of(tmp_path / "some", (3 << 20) - 1)
    with pytest.raises(OSError, match="it is a device"):
        sha256_of(Path("/dev/zero"))


def test_a_link_to_a_regular_file_is_read_and_memory_is_taken_for_the_file_and_not_for_the_limit(tmp_path):
    (tmp_path / "some").write_bytes(b"content")
    (tmp_path / "link").symlink_to(tmp_path / "some")
    assert read_limited(tmp_path / "link", 1 << 60) == b"content"
    assert sha256_of(tmp_path / "link", 1 << 60) == hashlib.sha256(b"content").hexdigest()


@pytest.mark.parametrize("name", ["/dev/zero", "/dev/null", "/dev/urandom", "/dev/tty"])
def test_a_device_is_refused(name):
    """Without a terminal, /dev/tty cannot be opened at all."""
    with pytest.raises(OSError) as fault:
        read_limited(Path(name), 1000)
    assert "it is a device" in fault.value.strerror or name == "/dev/tty"


@pytest.mark.timeout(5)
def test_a_pipe_without_a_writer_does_not_block(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    assert refusal(tmp_path / "pipe").endswith("it is a pipe, a regular file is expected")


def test_directories_sockets_and_missing_files_are_refused(tmp_path):
    with pytest.raises(IsADirectoryError, match="it is a directory, a regular file is expected"):
        read_limited(tmp_path, 1000)
    with pytest.raises(FileNotFoundError):
        read_limited(tmp_path / "none", 1000)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "socket"))
        refusal(tmp_path / "socket")


def test_names_that_no_file_can_have_are_refused():
    assert refusal(Path("a\0b")) == r"a\x00b: its name holds a NUL character"
    assert refusal(Path("a\ud83cb")) == r"a\ud83cb: its name cannot be encoded"
    assert "File name too long" in refusal(Path("a" * 5000))


def test_a_file_of_the_system_without_a_size_is_read_up_to_the_limit():
    """Files below /proc tell the size 0 and hold more: the limit is applied to what is read."""
    assert read_limited(Path("/proc/self/status"), 1 << 16)
    assert "limit of 10 bytes" in refusal(Path("/proc/self/status"), 10)


def test_no_handle_stays_open_behind_a_refusal(tmp_path):
    (tmp_path / "some").write_bytes(b"x" * 1000)
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        refusal(tmp_path / "some", 1), refusal(Path("/dev/zero"))
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_path_in_a_message_is_short_and_printable():
    assert path_text(Path("/a/ä b")) == "/a/ä b"
    assert path_text("a\n\x1b[31m\udc80") == r"a\n\x1b[31m\udc80"
    assert len(path_text("a" * 5000)) < 210


def test_a_folder_gets_all_its_files_when_the_block_ends_and_none_when_it_is_broken_off(tmp_path):
    folder = tmp_path / "in" / "made"
    with atomic_folder(folder) as part:
        (part / "first").write_text("1")
        assert not folder.exists()
    (folder / "other").write_text("kept")

    def broken_off():
        with atomic_folder(folder) as part:
            (part / "first").write_text("2")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        broken_off()
    assert {file.name: file.read_text() for file in folder.iterdir()} == {"first": "1", "other": "kept"}
    assert [path.name for path in folder.parent.iterdir()] == ["made"]


def test_a_signal_that_arrives_while_the_folder_is_created_leaves_nothing(tmp_path, monkeypatch):
    mkdir = os.mkdir

    def mkdir_and_signal(path, *args, **named):
        mkdir(path, *args, **named)
        if str(path).endswith(".part"):
            raise KeyboardInterrupt

    monkeypatch.setattr(os, "mkdir", mkdir_and_signal)
    with pytest.raises(KeyboardInterrupt), atomic_folder(tmp_path / "made"):
        pass
    assert not list(tmp_path.iterdir())


WRITER = """
import sys, time
from pathlib import Path
from reflectdrive_ros.infra.files import atomic_file, part_folder
kind = part_folder if sys.argv[1] == "folder" else atomic_file
with kind(Path(sys.argv[2])) as part:
    (part / "plans.csv" if sys.argv[1] == "folder" else part).write_text("half")
    print("writing", flush=True)
    time.sleep(600.0)
"""


@contextmanager
def writing(path, kind):
    """A process that is writing `path` while the block runs, and is killed without notice at its end."""
    process = subprocess.Popen([sys.executable, "-c", WRITER, kind, path], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout.readline() == "writing\n"
        yield
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def write(path, kind):
    file = path if kind == "file" else path / "plans.csv"
    if kind == "file":
        write_atomic(path, b"whole")
    else:
        with atomic_folder(path) as part:
            (part / file.name).write_text("whole")
    assert file.read_text() == "whole"


def hidden(folder):
    return sorted(path.name for path in folder.iterdir() if path.name.startswith(".") and path.name != ".lock")


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_what_a_killed_process_was_writing_is_removed_by_the_next_and_what_a_living_one_writes_is_not(tmp_path, kind):
    with writing(tmp_path / "killed", kind):
        pass
    with writing(tmp_path / "alive", kind):
        assert hidden(tmp_path) == [".alive.0.reflectdrive.part", ".killed.0.reflectdrive.part"]
        (tmp_path / ".thesis.part").write_text("of another program")
        with lock_folder(tmp_path):
            assert hidden(tmp_path) == [".alive.0.reflectdrive.part", ".thesis.part"]
        write(tmp_path / "alive", kind)
        assert hidden(tmp_path) == [".alive.0.reflectdrive.part", ".thesis.part"]


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_writing_the_same_again_needs_no_lock_to_remove_what_a_killed_process_left(tmp_path, kind):
    for _ in range(2):
        with writing(tmp_path / "out", kind):
            assert hidden(tmp_path) == [".out.0.reflectdrive.part"]
        write(tmp_path / "out", kind)
        assert hidden(tmp_path) == []


def test_threads_that_write_one_file_each_write_it_whole(tmp_path):
    contents = [bytes([65 + k]) * 200_000 for k in range(8)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda content: [write_atomic(tmp_path / "out", content) for _ in range(20)], contents))
        assert (tmp_path / "out").read_bytes() in contents
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_file_in_a_folder_that_is_none_is_one_error_with_its_name(tmp_path):
    (tmp_path / "taken").write_text("no folder")
    for path, code in ((tmp_path / "none" / "out", errno.ENOENT), (tmp_path / "taken" / "out", errno.ENOTDIR)):
        with pytest.raises(OSError) as fault:
            write_atomic(path, b"whole")
        assert (fault.value.errno, fault.value.filename) == (code, str(path))


def test_a_locked_folder_is_refused_to_another_and_is_gone_again_where_nothing_was_written(tmp_path):
    folder = tmp_path / "in" / "made"
    with lock_folder(folder):
        with (
            pytest.raises(BlockingIOError, match="another process writes into it; wait") as refused,
            lock_folder(folder),
        ):
            pass
        assert refused.value.filename == str(folder)
    assert not folder.exists()
    with lock_folder(folder):
        (folder / "result").touch()
    with lock_folder(folder):
        pass
    assert (folder / "result").exists()


def test_text_for_a_terminal_keeps_its_lines_and_loses_what_a_terminal_obeys():
    assert printable("a table\n\twith lines") == "a table\n\twith lines"
    assert printable("a\x1b[31m\nb\r") == "a\\x1b[31m\nb\\r"
    assert printable_line("a\nb\udc80") == r"a\nb\udc80"
    words = " ".join(["word"] * 400)
    assert printable(words) == words
    assert len(printable("x" * 10**6)) < 210
    assert printable(f"bag {'x' * 10**6} is missing").startswith("bag xxx")
    assert printable(f"bag {'x' * 9000} is missing").endswith("xxx is missing")
    assert len(printable("x " * 10**6)) <= 4003
    assert len(printable("x\n" * 10**6)) < 41_000
    assert len(printable("\x1b" * 10**6)) < 41_000
