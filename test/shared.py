"""Files that a test run makes once: all workers of pytest-xdist share a folder, which conftest.py makes and removes."""

import fcntl
import os
from pathlib import Path

FOLDER = Path(os.environ["_REFLECTDRIVE_TEST_SHARED"])


def create_once(name, make):
    """The file or folder `name`, which `make(path)` writes unless a test of this run has had it made."""
    path, done = FOLDER / name, FOLDER / f"{name}.done"
    with (FOLDER / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not done.exists():
            make(path)
            done.touch()
    return path
