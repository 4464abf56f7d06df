"""Atomic writes, and reads with a size limit.

write_atomic(path, content)                    # complete or absent, also after a crash or a power failure
content = read_limited(path, 16 * MEGABYTE)    # never blocks, never reads more than the limit
with lock_folder(path): ...                    # excludes other processes of this package
with atomic_folder(path) as part: ...          # files in `part` move to `path` at the end of the block
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import shutil
import stat
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from .errors import printable_name
from .storage import is_remote, read_remote, write_remote

LOCK = ".lock"  # file in a folder that one process at a time writes into
PART = ".part"  # end of the name of a file that is being written
MEGABYTE = 1 << 20
MODEL_BYTES = 1 << 36  # of the largest file of weights, 64 GiB
KINDS = {stat.S_IFDIR: "directory", stat.S_IFCHR: "device", stat.S_IFBLK: "device", stat.S_IFIFO: "pipe"}


def read_limited(path: Path, limit_bytes: int) -> bytes:
    """The content of a regular file of at most `limit_bytes` bytes.

    Raises OSError with the reason in `strerror`: the system's, or that it is a device, pipe, socket or directory, or
    larger than the limit. A pipe without a writer does not block.
    """
    if is_remote(path):
        return read_remote(path, limit_bytes)
    blocks, left = [], limit_bytes
    with open_limited(path, limit_bytes) as file:
        size = max(os.fstat(file.fileno()).st_size, MEGABYTE)  # at once: one block is not copied again by join
        while block := file.read(size):
            left -= len(block)
            if left < 0:  # it has grown since its size was read
                raise _too_large(path, limit_bytes)
            blocks.append(block)
    return b"".join(blocks)


def open_limited(path: Path, limit_bytes: int) -> BinaryIO:
    """A regular file of at most `limit_bytes` bytes, opened for reading. Raises OSError as `read_limited`."""
    try:
        # without O_NONBLOCK, opening a pipe waits for its writer
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except ValueError as fault:  # a NUL, or a character that the file system's encoding does not have
        reason = "its name holds a NUL character" if "null" in str(fault) else "its name cannot be encoded"
        raise OSError(errno.EINVAL, reason, shown(path)) from None
    try:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode):
            kind = KINDS.get(stat.S_IFMT(status.st_mode), "special file")
            code = errno.EISDIR if kind == "directory" else errno.EINVAL
            raise OSError(code, f"it is a {kind}, a regular file is expected", shown(path))
        if status.st_size > limit_bytes:
            raise _too_large(path, limit_bytes)
        return os.fdopen(handle, "rb")
    except BaseException:
        os.close(handle)
        raise


def resolve(path: Path) -> Path:
    """The path without links; one in a loop of links stays, and opening it gives the system's reason."""
    return path.resolve() if is_remote(path) else Path(os.path.realpath(path))


def sha256_of(path: Path, limit_bytes: int = MODEL_BYTES) -> str:
    """The hexadecimal SHA-256 of a regular file. Raises OSError as `read_limited`."""
    digest, left = hashlib.sha256(), limit_bytes
    with open_limited(path, limit_bytes) as file:
        while block := file.read(MEGABYTE):
            left -= len(block)
            if left < 0:
                raise _too_large(path, limit_bytes)
            digest.update(block)
    return digest.hexdigest()


def _too_large(path: Path, limit_bytes: int) -> OSError:
    return OSError(errno.EFBIG, f"it is larger than the limit of {limit_bytes} bytes", shown(path))


def shown(path: Path | str) -> str:
    """A path as a message can print it: no control characters, no lone surrogates, at most 200 characters."""
    return printable_name(str(path))


def write_atomic(path: Path, content: bytes) -> None:
    """Writes a file that appears at once or not at all. Raises OSError naming it; what was begun is removed then."""
    if is_remote(path):
        write_remote(path, content)
        return
    part = path.with_name(f".{path.name}.{os.getpid()}{PART}")
    try:
        with part.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
        _flush_names(path.parent)
    except OSError as fault:
        raise OSError(fault.errno, fault.strerror or str(fault), str(path)) from None
    finally:
        part.unlink(missing_ok=True)


@contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Excludes other processes that call this from a folder, which is created if it is missing. Not reentrant.

    The operating system releases the lock when this process ends. A folder that was created here and is empty after the
    block is removed. A folder of shared storage is not locked. Raises BlockingIOError if another process holds the
    lock, OSError naming the folder.
    """
    if is_remote(folder):
        yield
        return
    missing = not folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / LOCK
    with file.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as fault:
            advice = "another process writes into it; wait for it to end, or name another folder"
            raise BlockingIOError(fault.errno, advice, str(folder)) from None
        try:
            yield
        finally:
            if missing and list(folder.iterdir()) == [file]:
                file.unlink()
                folder.rmdir()


@contextmanager
def atomic_folder(folder: Path) -> Iterator[Path]:
    """An empty folder to write into; its files move to `folder` when the block ends, and are removed when it raises.

    Files of `folder` with other names stay. Raises OSError.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    # the name is known before the folder exists: a signal between its creation and the block leaves nothing behind,
    # as it can with tempfile.TemporaryDirectory
    part = folder.parent / f".{folder.name}.{uuid.uuid4().hex}{PART}"
    try:
        part.mkdir(mode=0o700)
        yield part
        folder.mkdir(exist_ok=True)
        for file in part.iterdir():
            os.replace(file, folder / file.name)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _flush_names(folder: Path) -> None:
    """A rename outlives a power cut only when the folder is flushed too."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
