"""Files that appear at once or not at all, whatever ends the process or the power meanwhile."""

from __future__ import annotations

import os
from pathlib import Path

PART = ".part"  # end of the name of a file that is being written


def write_whole(path: Path, content: bytes) -> None:
    """Writes a file that appears at once or not at all. Raises OSError naming it; what was begun is removed then."""
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


def _flush_names(folder: Path) -> None:
    """A rename outlives a power cut only when the folder is flushed too."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
