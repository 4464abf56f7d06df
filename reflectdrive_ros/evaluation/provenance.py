"""Where a number comes from: every JSON that a command writes carries these keys."""

from __future__ import annotations

import os
import platform
import shlex
import subprocess
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path

from .. import __version__


def provenance(argv: Sequence[str]) -> dict[str, str]:
    """Keys version, commit, device, date (ISO 8601, UTC) and command, for the command line `argv`."""
    return {
        "version": __version__,
        "commit": _commit(),
        "device": _device(),
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "command": shlex.join(argv),
    }


def _commit() -> str:
    """The commit of the source tree, with "-dirty" where tracked files differ; empty where it is no git checkout."""
    here = Path(__file__).resolve().parents[2]
    if not (here / ".git").exists():  # installed: a repository further up is not ours
        return ""
    command = ["git", "-C", str(here), "describe", "--always", "--abbrev=40", "--dirty", "--exclude=*"]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""


def _device() -> str:
    """Model and core count of the CPU, as "AMD EPYC 7B13, 2 cores"."""
    model = platform.processor() or platform.machine()
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        model = next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        pass  # not Linux, or an Arm core that does not name itself
    return f"{model}, {len(os.sched_getaffinity(0))} cores"
