"""Files on shared storage: fsspec's URLs (s3://bucket/set, gs://bucket/set) where commands take paths.

    folder = location(text)                      # a Path for a path; for a URL, a UPath of universal-pathlib
    with local_copy(bag) as path: ...            # on a disk of this machine while the block runs
    upload(folder, target, last="summary.json")  # a reader that waits for `last` finds the others

A UPath has the methods of a Path, so that code which leaves opening, renaming and locking to `files` and this module
works on both; functions annotate both as Path. Credentials come from the environment, as the client of the storage
finds them (AWS_PROFILE, GOOGLE_APPLICATION_CREDENTIALS ..). An object appears under its name when it is complete.
"""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

from .errors import UserError
from .installing import pip_extra

CLIENTS = {"s3": "s3fs", "gs": "gcsfs", "gcs": "gcsfs"}  # scheme -> package
# other processes write too, so listings are not remembered; a storage that is gone is said after a minute or two
OPTIONS: dict[str, dict[str, Any]] = {
    "s3": {
        "use_listings_cache": False,
        "config_kwargs": {"connect_timeout": 10, "read_timeout": 60, "retries": {"max_attempts": 3}},
    },
    "gs": {"use_listings_cache": False},
    "gcs": {"use_listings_cache": False},
}
CLIENT_MODULES = ("botocore", "aiobotocore", "aiohttp", "s3fs", "gcsfs", "google", "fsspec")
FREE_BYTES = 1 << 30  # of the disk that stay free beside a local copy


class StorageError(UserError):
    """A URL cannot be used; the message names the reason and what to do."""


def location(text: str) -> Path:
    """The place that a path or URL names. Raises StorageError for a scheme without its client."""
    scheme, separator, rest = text.partition("://")
    if not separator:
        return Path(text)
    if scheme == "file":
        return Path(rest)
    try:
        from upath import UPath
    except ImportError:
        raise StorageError(f"{text} is a URL, which needs: {pip_extra('storage')}") from None
    try:
        found = UPath(text, **OPTIONS.get(scheme, {}))
        _ = found.fs
    except ImportError as fault:
        package = CLIENTS.get(scheme, "its fsspec client")
        raise StorageError(f"{text} cannot be used: {fault}; pip install {package}") from None
    except ValueError as fault:
        raise StorageError(f"{text} cannot be used ({fault}): give a path, or a URL as s3://bucket/folder") from None
    except Exception as fault:  # of the client, which may look for credentials here
        raise StorageError(sentence_of(fault, text) or f"{text} cannot be used: {fault}") from None
    return cast(Path, found)


def is_remote(path: Path) -> bool:
    return not isinstance(path, Path)


def read_remote(path: Path, limit_bytes: int) -> bytes:
    """As `files.read_limited`."""
    with storage_errors(path):
        if path.is_dir():
            raise OSError(errno.EISDIR, "it is a directory, a regular file is expected", str(path))
        if path.stat().st_size > limit_bytes:
            raise OSError(errno.EFBIG, f"it is larger than the limit of {limit_bytes} bytes", str(path))
        return path.read_bytes()


def write_remote(path: Path, content: bytes) -> None:
    """As `files.write_atomic`: object storage shows an object when all of it has arrived."""
    with storage_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


@contextmanager
def local_copy(path: Path) -> Iterator[Path]:
    """A file or folder of shared storage on this machine's disk, in $TMPDIR, while the block runs; a Path as it is.

    Raises OSError, also where the copy would leave less than FREE_BYTES on the disk.
    """
    if not is_remote(path):
        yield path
        return
    with tempfile.TemporaryDirectory(prefix="reflectdrive-") as scratch:
        target = Path(scratch) / path.name
        with storage_errors(path):
            remote = cast(Any, path)
            size, free = remote.fs.du(remote.path), shutil.disk_usage(scratch).free
            if size > free - FREE_BYTES:
                reason = f"its copy of {size / 1e9:.1f} GB does not fit into {scratch} ({free / 1e9:.1f} GB free)"
                raise OSError(errno.ENOSPC, f"{reason}: set TMPDIR to a larger disk", str(path))
            remote.fs.get(remote.path, str(target), recursive=True)
        yield target


def upload(folder: Path, target: Path, last: str) -> None:
    """Copies the files of a folder to shared storage, the file `last` of it after all others. Raises OSError."""
    with storage_errors(target):
        (target / last).unlink(missing_ok=True)
        files = [path for path in folder.rglob("*") if path.is_file()]
        for file in sorted(files, key=lambda path: (path.name == last, path)):
            remote = cast(Any, target / str(file.relative_to(folder)))
            remote.parent.mkdir(parents=True, exist_ok=True)
            remote.fs.put_file(str(file), remote.path)


@contextmanager
def storage_errors(path: Path) -> Iterator[None]:
    """Every error of a client as an OSError with errno, reason and URL."""
    try:
        yield
    except OSError as fault:
        kinds = {FileNotFoundError: errno.ENOENT, PermissionError: errno.EACCES}
        number = fault.errno or kinds.get(type(fault), errno.EIO)
        reason = fault.strerror or (os.strerror(number) if number != errno.EIO else first_line(fault))
        if isinstance(fault, PermissionError):
            reason += " (check the credentials in the environment)"
        raise OSError(number, reason, str(path)) from None
    except Exception as fault:
        raise OSError(errno.EIO, f"{type(fault).__name__}: {first_line(fault)}", str(path)) from None


def sentence_of(fault: BaseException, place: str = "the storage") -> str | None:
    """An error that a storage client raised, as a sentence; None for other errors."""
    if type(fault).__module__.partition(".")[0] not in CLIENT_MODULES:
        return None
    return (
        f"{place} does not answer as it should ({type(fault).__name__}: {first_line(fault)}): check the URL, the "
        "credentials in the environment and the network"
    )


def first_line(fault: BaseException) -> str:
    return next(iter(str(fault).splitlines()), type(fault).__name__)
