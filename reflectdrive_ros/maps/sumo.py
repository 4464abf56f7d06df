"""Finds SUMO and runs its programs.

SUMO comes as the PyPI packages of the extra `sim`; a SUMO of the system (SUMO_HOME or PATH) is used as well.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from xml.etree import ElementTree

from ..infra.errors import UserError
from ..infra.installing import pip_extra

TIMEOUT_S = 60.0  # netconvert takes less than a second for a town
REFUSED = 1  # exit code of a program of SUMO that has read its input and reports an error in it
REFUSAL = "Quitting (on error)."  # its last line then
# what SUMO writes in an error of the machine, which is no error of the network
MACHINE_ERRORS = ("bad_alloc", "could not build", "could not open", "not accessible", "unable to", "no space left")
SIGNAL_CAUSES: Mapping[int, str] = {
    signal.SIGXFSZ: "a file is larger than the limit of this shell: raise `ulimit -f`",
    signal.SIGXCPU: "it has used the CPU time of this shell: raise `ulimit -t`",
    signal.SIGKILL: "the system does this when memory runs out: use fewer workers",
}
PROBE_BYTES = 1 << 20  # written to learn why an output is incomplete; a network of a town has a quarter of it


class SumoMissing(UserError, RuntimeError):
    """SUMO is not on this machine; the message says what to install."""

    def __init__(self) -> None:
        super().__init__(f"SUMO is not installed: {pip_extra('sim')}")


class SumoFailed(UserError, RuntimeError):
    """A program of SUMO did not end as it should, or SUMO cannot be loaded. The message has the cause: its last error
    line, the signal, the limit. The same input may succeed later.
    """


class SumoRefused(SumoFailed):
    """SUMO reports an error in its input, which it will report again; the message is its last error line."""


def find_home() -> Path | None:
    """The folder of SUMO_HOME: that of the PyPI package first, because tests use its version."""
    package = importlib.util.find_spec("sumo")
    if package is not None and package.origin is not None:
        return Path(package.origin).parent
    named = os.environ.get("SUMO_HOME")
    return Path(named) if named and Path(named).is_dir() else None


def binary(name: str) -> str:
    """Path of a program of SUMO, as `netconvert`. Raises SumoMissing."""
    folder = find_home()
    path = shutil.which(name, path=str(folder / "bin")) if folder is not None else None
    path = path or shutil.which(name)
    if path is None:
        raise SumoMissing
    return path


def run(name: str, arguments: Sequence[str], timeout_s: float = TIMEOUT_S) -> None:
    """Runs a program of SUMO to its end, quietly. Raises SumoMissing, SumoRefused for its input, else SumoFailed."""
    program = binary(name)
    folder = find_home()
    environment = dict(os.environ) if folder is None else {**os.environ, "SUMO_HOME": str(folder)}
    try:
        done = subprocess.run(
            [program, *arguments],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout_s,
            env=environment,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise SumoFailed(f"{name} did not end within {timeout_s:.0f} s: it was stopped") from None
    if done.returncode == 0:
        return
    if done.returncode < 0:
        raise SumoFailed(f"{name} was ended by {_signal_text(-done.returncode)}")
    lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
    errors = [line for line in lines if not line.startswith("Quitting")]
    sentence = f"{name} failed: {errors[-1] if errors else f'exit code {done.returncode}'}"
    text = done.stderr.lower()
    if done.returncode == REFUSED and REFUSAL in lines and not any(cause in text for cause in MACHINE_ERRORS):
        raise SumoRefused(sentence)
    raise SumoFailed(sentence)


def convert(arguments: Sequence[str], folder: Path) -> ElementTree.Element:
    """The root of the network that netconvert makes, without its comment of time and paths. A file in `folder` is used.

    Raises as `run`, and OSError naming `folder` when it is full: netconvert writes a part then and reports success.
    """
    file = folder / "network.net.xml"
    run("netconvert", [*arguments, f"--output-file={file}"])
    try:
        return ElementTree.parse(file).getroot()
    except (ElementTree.ParseError, FileNotFoundError) as fault:
        _check_space(folder)
        raise SumoFailed(f"netconvert wrote an incomplete network ({fault}): try again") from None


def _signal_text(number: int) -> str:
    name = signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"
    cause = SIGNAL_CAUSES.get(number)
    return name if cause is None else f"{name}: {cause}"


def _check_space(folder: Path) -> None:
    """Raises the OSError of writing PROBE_BYTES into a folder, which it names."""
    probe = folder / "probe"
    try:
        with probe.open("wb") as file:
            file.write(bytes(PROBE_BYTES))
            file.flush()
            os.fsync(file.fileno())
    except OSError as fault:
        raise OSError(fault.errno, fault.strerror, str(folder)) from None
    finally:
        probe.unlink(missing_ok=True)
