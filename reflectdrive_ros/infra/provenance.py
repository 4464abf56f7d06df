"""Provenance of measured numbers: keys that every JSON written by a command contains."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from .. import __version__


def write_numbers(file: Path | None, numbers: Mapping[str, Any], gpu: str = "", weights_sha256: str = "") -> None:
    """Writes a command's numbers as JSON with their provenance, where there is a file. Raises OSError of the file.

    `gpu` is the name of the GPU of the measurement, `weights_sha256` the hash of the network's weights.
    """
    if file is None:
        return
    content = {**numbers, **provenance(weights_sha256=weights_sha256)}
    if gpu:
        content["device"] = f"{gpu}; {content['device']}"
    file.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def provenance(argv: Sequence[str] = (), weights_sha256: str = "") -> dict[str, str]:
    """Keys version, commit, device, date (ISO 8601, UTC) and command; weights_sha256 where a network was used.

    `command` is `argv`, or the command line of this process.
    """
    used = {"weights_sha256": weights_sha256.lower()} if weights_sha256 else {}
    return {
        "version": __version__,
        "commit": commit_of(PACKAGE_FOLDER.parent),
        "device": device(),
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "command": shlex.join(argv or _command()),
        **used,
    }


def _command() -> list[str]:
    """The command line of this process as typed in a checkout: `reflectdrive ..` or `python -m MODULE ..`."""
    module = getattr(getattr(sys.modules["__main__"], "__spec__", None), "name", "")
    program = Path(sys.argv[0]).name
    if module.startswith(f"{PACKAGE}.") and module != f"{PACKAGE}.__main__":
        return ["python", "-m", module, *sys.argv[1:]]
    return ["reflectdrive" if program == "__main__.py" else program, *sys.argv[1:]]


PACKAGE = __name__.partition(".")[0]
PACKAGE_FOLDER = Path(__file__).resolve().parents[1]


def commit_of(checkout: Path) -> str:
    """The commit of a source tree, with "-dirty" for modified tracked files; empty outside a git checkout.

    Modified files of `docs` do not count: numbers are written there, and code reads none of them.
    """
    if not (checkout / ".git").exists():  # installed: a repository of a parent folder is not ours
        return ""
    git = ["git", "-C", str(checkout)]
    try:
        head = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, timeout=10, check=True)
        changed = subprocess.run(
            [*git, "diff", "--quiet", "HEAD", "--", ".", ":(exclude)docs"], timeout=10, check=False
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return head.stdout.strip() + ("-dirty" if changed.returncode else "")


def program_sha256() -> str:
    """SHA-256 over the source files of this package."""
    digest = hashlib.sha256()
    for file in sorted(PACKAGE_FOLDER.rglob("*")):
        if file.suffix in (".py", ".css", ".html", ".js", ".msg"):
            digest.update(f"{file.relative_to(PACKAGE_FOLDER)}\n".encode())
            digest.update(hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()


SIMD_EXTENSIONS = {"avx512_vnni": "AVX-512 VNNI", "avx512f": "AVX-512", "avx2": "AVX2"}  # flags of x86, the best first


def device() -> str:
    """Model, vector instructions and core count of the CPU, as "AMD EPYC 7B13 with AVX2, 2 cores".

    Cloud machines of one model name differ in their SIMD instructions, and in speed by up to half.
    """
    model, flags = platform.processor() or platform.machine(), set[str]()
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        model = next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
        flags = set(next(line.split(":", 1)[1].split() for line in lines if line.startswith("flags")))
    except (OSError, StopIteration):
        pass  # not Linux, or an Arm core that does not name itself
    vectors = next((f" with {name}" for flag, name in SIMD_EXTENSIONS.items() if flag in flags), "")
    return f"{model}{vectors}, {len(os.sched_getaffinity(0))} cores"
