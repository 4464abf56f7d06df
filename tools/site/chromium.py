"""Headless Chromium, for the screenshots of the gallery and the tests of pages."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

CHROMIUM = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), ""
)  # its program; empty where it is not installed
FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--enable-logging=stderr")


def run(page: str, folder: Path, *flags: str, budget_ms: int = 5000) -> subprocess.CompletedProcess[str]:
    """Chromium on an address, with its profile in a folder; its output. Raises CalledProcessError, TimeoutExpired."""
    words = [CHROMIUM, *FLAGS, f"--user-data-dir={folder / 'profile'}", f"--virtual-time-budget={budget_ms}", *flags]
    return subprocess.run([*words, page], capture_output=True, text=True, timeout=120, check=True)
