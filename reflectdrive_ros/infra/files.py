"""Atomic writes, and reads with a size limit.

write_atomic(path, content)                    # complete or absent, also after a crash or a power failure
with atomic_file(path) as part: ...            # the file `part` becomes `path` at the end of the block
content = read_limited(path, 16 * MEGABYTE)    # never blocks, never reads more than the limit
with lock_folder(path): ...                    # excludes other processes of this package
with atomic_folder(path) as part: ...          # files in `part` move to `path` at the end of the block

What is being written is called `.NAME.NUMBER.reflectdrive.part` and locked by its process. A killed process leaves it
unlocked; the next one that writes NAME, or that locks the folder, removes it.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import itertools
import os
import shutil
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from .errors import printable_name
from .storage import is_remote, read_remote, write_remote

LOCK = ".lock"  # file in a folder that one process at a time writes into
PART = ".reflectdrive.part"  # end of the name of a file or folder that is being written
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
    return b"".join(_blocks(path, limit_bytes, MODEL_BYTES))  # one block is not copied again by join


def open_limited(path: Path, limit_bytes: int) -> BinaryIO:
    """A regular file of at most `limit_bytes` bytes, opened for reading. Raises OSError as `read_limited`."""
    try:
        # without O_NONBLOCK, opening a pipe waits for its writer
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except ValueError as fault:  # a NUL, or a character that the file system's encoding does not have
        reason = "its name holds a NUL character" if "null" in str(fault) else "its name cannot be encoded"
        raise OSError(errno.EINVAL, reason, path_text(path)) from None
    try:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode):
            kind = KINDS.get(stat.S_IFMT(status.st_mode), "special file")
            code = errno.EISDIR if kind == "directory" else errno.EINVAL
            raise OSError(code, f"it is a {kind}, a regular file is expected", path_text(path))
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
    digest = hashlib.sha256()
    for block in _blocks(path, limit_bytes, MEGABYTE):
        digest.update(block)
    return digest.hexdigest()


def _blocks(path: Path, limit_bytes: int, most_bytes: int) -> Iterator[bytes]:
    """The content of a regular file in blocks of its size or `most_bytes`. Raises OSError as `read_limited`."""
    left = limit_bytes
    with open_limited(path, limit_bytes) as file:
        size = min(max(os.fstat(file.fileno()).st_size, MEGABYTE), most_bytes)
        while block := file.read(size):
            left -= len(block)
            if left < 0:  # it has grown since its size was read
                raise _too_large(path, limit_bytes)
            yield block


def _too_large(path: Path, limit_bytes: int) -> OSError:
    return OSError(errno.EFBIG, f"it is larger than the limit of {limit_bytes} bytes", path_text(path))


def path_text(path: Path | str) -> str:
    """A path as a message can print it: no control characters, no lone surrogates, at most 200 characters."""
    return printable_name(str(path))


def write_atomic(path: Path, content: bytes) -> None:
    """Writes a file that appears at once or not at all. Raises OSError naming it; the partial file is removed then."""
    if is_remote(path):
        write_remote(path, content)
        return
    with atomic_file(path) as part:
        part.write_bytes(content)


@contextmanager
def atomic_file(path: Path) -> Iterator[Path]:
    """An empty file to write into; it becomes `path` when the block ends, and is removed when it raises.

    Raises OSError naming `path`.
    """
    try:
        with _part_of(path, _create_file) as (part, handle):
            yield part
            os.fsync(handle)
            os.replace(part, path)
            _flush_names(path.parent)
    except OSError as fault:
        raise OSError(fault.errno, fault.strerror or str(fault), str(path)) from None


@contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Excludes other processes that call this from a folder, which is created if it is missing. Not reentrant.

    The operating system releases the lock when this process ends. A folder that was created here and is empty after the
    block is removed. What killed processes left unfinished in the folder is removed. A folder of shared storage is not
    locked. Raises BlockingIOError if another process holds the lock, OSError naming the folder.
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
        for part in folder.glob(f".*{PART}"):
            with suppress(OSError):  # of another user
                _remove_part(part)
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
    with part_folder(folder) as part:
        yield part
        folder.mkdir(exist_ok=True)
        for file in part.iterdir():
            os.replace(file, folder / file.name)


@contextmanager
def part_folder(folder: Path) -> Iterator[Path]:
    """An empty folder beside `folder` for what it will hold; unless it was renamed, it is removed when the block ends.

    Raises OSError.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _part_of(folder, _create_folder) as (part, _):
        yield part


# --- unfinished files and folders ------------------------------------------------------------------------------------


@contextmanager
def _part_of(path: Path, create: Callable[[Path], int]) -> Iterator[tuple[Path, int]]:
    """Name and handle of a new file or folder beside `path`, locked; what is left of it at the end is removed.

    `create` makes it and opens it. The name exists before: a signal between the two leaves nothing behind.
    """
    part, handle = path, -1
    try:
        while handle < 0:
            names = (path.with_name(f".{path.name}.{number}{PART}") for number in itertools.count())
            part = next(each for each in names if _remove_part(each))
            with suppress(FileExistsError):  # another process was quicker
                handle = create(part)
            if handle >= 0 and not _lock(handle, part):
                os.close(handle)
                handle = -1
        yield part, handle
    finally:
        if handle >= 0:
            os.close(handle)
        if part != path:
            with suppress(OSError):
                _remove_part(part)


def _create_file(part: Path) -> int:
    return os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)


def _create_folder(part: Path) -> int:
    part.mkdir(mode=0o700)
    return os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)


def _lock(handle: int, part: Path) -> bool:
    """Whether an open file or folder is now this process's; False if another has locked or removed it."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return os.path.samestat(os.fstat(handle), os.lstat(part))
    except (BlockingIOError, FileNotFoundError):
        return False
    except OSError:  # a file system without locks: `_remove_part` removes nothing there
        return True


def _remove_part(part: Path) -> bool:
    """Removes what a killed process was writing; False if a living one may be writing it. Raises OSError."""
    try:
        try:
            handle = os.open(part, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)  # NFS locks what is open for writing
        except IsADirectoryError:
            handle = os.open(part, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return True
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not os.path.samestat(os.fstat(handle), os.lstat(part)):  # renamed meanwhile: the name is another writer's
            return False
        shutil.rmtree(part) if stat.S_ISDIR(os.fstat(handle).st_mode) else part.unlink()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    else:
        return True
    finally:
        os.close(handle)


def _flush_names(folder: Path) -> None:
    """A rename outlives a power cut only when the folder is flushed too."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
