"""Bags in folders: which paths are bags, and the names of their results."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from ..infra.files import resolve
from ..infra.storage import is_remote
from ..ros.bag import SUFFIXES, BagError
from .plan_measures import PLANS_FILE

MAX_ENTRIES = 50_000  # files and folders that are searched for bags


def is_bag(path: Path) -> bool:
    """Whether a path is a bag by its files: a storage file, or a folder with one or with a bag's metadata."""
    if _is_kind("file", path):
        return path.suffix in SUFFIXES.values()
    return _is_kind("dir", path) and any(
        entry.name == "metadata.yaml" or entry.suffix in SUFFIXES.values() for entry in path.iterdir()
    )


def holds_bags(path: Path) -> bool:
    """Whether a path is a folder of bags rather than a bag."""
    return _is_kind("dir", path) and not is_bag(path) and bool(find_bags(path))


def _is_kind(kind: str, path: Path) -> bool:
    """Whether a path is a file or dir; no, too, for names for which Path.is_file raises."""
    return bool(getattr(path, f"is_{kind}")() if is_remote(path) else getattr(os.path, f"is{kind}")(path))


def find_bags(path: Path) -> list[Path]:
    """The bags in a folder and in the folders inside, by name; not those that replays have left there.

    Links to folders are followed only where they are bags; folders that may not be read are left out. Raises BagError
    for a folder with more than MAX_ENTRIES files and folders, as `/` is; OSError.
    """
    return _find_bags(path, path, [0])


def _find_bags(path: Path, top: Path, entry_count: list[int]) -> list[Path]:
    bags: list[Path] = []
    entries = sorted(path.iterdir())
    entry_count[0] += len(entries)
    if entry_count[0] > MAX_ENTRIES:
        raise BagError(f"{top} holds more than {MAX_ENTRIES} files and folders: name bags, or a smaller folder of bags")
    for entry in entries:
        try:
            if not entry.is_dir() or entry.name.startswith("."):
                continue
            if is_bag(entry):
                bags.append(entry)
            elif not entry.is_symlink() and not (entry / PLANS_FILE).exists():
                bags += _find_bags(entry, top, entry_count)
        except (PermissionError, FileNotFoundError):  # FileNotFoundError: it was removed meanwhile
            continue
    return bags


def folder_names(bags: Sequence[Path]) -> list[str]:
    """A name for each of different bags: its own, with the folders above it in front where others have the same."""
    parts = [resolve(bag).parts for bag in bags]
    depths = [1] * len(bags)
    while True:
        joined = ("-".join(some[-depth:]) for some, depth in zip(parts, depths, strict=True))
        names = [name.replace("/", "") or "bag" for name in joined]  # the root has slashes
        times = Counter(names)
        same = [k for k, name in enumerate(names) if times[name] > 1 and depths[k] < len(parts[k]) - 1]
        if not same:
            break
        for k in same:
            depths[k] += 1
    counts: Counter[str] = Counter()
    for k, name in enumerate(names):  # "a-b/c" and "a/b-c"
        counts[name] += 1
        names[k] = name if counts[name] == 1 else f"{name}-{counts[name]}"
    return names
