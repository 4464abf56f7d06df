"""Which measured numbers are not of the present code: git compares the commit of a JSON file with the working tree.

The code of a number is that of its rooms, without what only other planners use. Comments and docstrings do not count.
"""

from __future__ import annotations

import ast
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..core.config import PLANNER_SEPARATOR
from ..infra.errors import UserError

Numbers = Mapping[str, Any]
PACKAGE = "reflectdrive_ros"
ROOMS = ("core", "maps", "features", "scoring", "model", "data", "planning", "sim", "runtime", "evaluation")
SCORED = ("src", "models", *(f"{PACKAGE}/{room}" for room in ROOMS))  # paths of a plan and of its score
TOKENS = (f"{PACKAGE}/model/token", f"{PACKAGE}/features/images.py", f"{PACKAGE}/features/reprojection.py")
OTHERS = ("src", "models", PACKAGE, "test/faults")  # of any other command
PATHS: dict[str, tuple[str, ...]] = {  # command of the file -> the paths on which its numbers depend
    "eval": SCORED,
    "bench parity": (*SCORED, f"{PACKAGE}/bench/parity.py", f"{PACKAGE}/bench/network_steps.py"),
    "bench step": (
        *SCORED,
        *(f"{PACKAGE}/bench/{name}.py" for name in ("backends", "step", "network_steps", "roofline")),
    ),
    "bench scoring": ("src", f"{PACKAGE}/scoring", f"{PACKAGE}/bench/scoring.py"),
    "bench node": (*SCORED, f"{PACKAGE}/ros", f"{PACKAGE}/bench/node.py"),
    "bench soak": OTHERS,
}
DRIVES = tuple(  # of --closed-loop
    f"{PACKAGE}/evaluation/{name}.py"
    for name in (
        *("closed_loop", "incidents", "worlds"),
        *(f"drive_{part}" for part in ("measurements", "results", "score", "sums")),
    )
)
ONLY_OF: dict[str, tuple[str, ...]] = {  # planner -> paths that no planner uses but those that name them
    "constant_velocity": (f"{PACKAGE}/planning/generators/constant_velocity.py",),
    "route_follower": (f"{PACKAGE}/planning/generators/route_follower.py",),
    "idm_proposals": (f"{PACKAGE}/planning/generators/idm_proposals.py",),
    "fiss_plus": (f"{PACKAGE}/planning/peers",),
    "reflectdrive2": (
        f"{PACKAGE}/planning/generators/reflectdrive2.py",
        *(f"{PACKAGE}/planning/{name}.py" for name in ("goals", "lite_step")),
        *(*TOKENS, "models/reflectdrive2_small"),
    ),
    "reflectdrive": (f"{PACKAGE}/planning/generators/reflectdrive.py", *TOKENS, "models/reflectdrive2_small"),
    "drivefine": (f"{PACKAGE}/planning/generators/drivefine.py", *TOKENS, "models/drivefine_small"),
    "reflexdiffusion": (
        f"{PACKAGE}/planning/generators/reflexdiffusion.py",
        *(f"{PACKAGE}/planning/{name}.py" for name in ("denoiser", "ego_future", "confidence", "reflection")),
        *(f"{PACKAGE}/model/denoiser", f"{PACKAGE}/features/vectors.py", f"{PACKAGE}/runtime/vector_batch.py"),
        *(f"{PACKAGE}/runtime/torch_denoiser.py", "models/reflexdiffusion_small"),
    ),
}
ON_REQUEST = ("models/reflectdrive2_scene", "models/drivefine_scene")  # used where a command names them
DIRTY = "-dirty"


class ResultsError(UserError):
    """The results cannot be written; the message gives the reason."""


def stale(files: Mapping[str, Numbers], folder: Path) -> dict[str, str]:
    """Why numbers are not of the present code, by name of the file; those of the present code are left out.

    `folder` is in the repository. Raises ResultsError if it is in none.
    """
    root = Path(_git(folder, "rev-parse", "--show-toplevel").strip())
    reasons = {stem: _reason(numbers, root) for stem, numbers in files.items()}
    return {stem: reason for stem, reason in reasons.items() if reason}


def head_of(folder: Path) -> str:
    """The commit that is checked out. Raises ResultsError where there is none."""
    return _git(folder, "rev-parse", "HEAD").strip()


def _reason(numbers: Numbers, root: Path) -> str:
    """Empty where the numbers are of the present code."""
    recorded = str(numbers.get("commit", ""))
    commit = recorded.removesuffix(DIRTY)
    if not commit:
        return "measured outside of a git checkout"
    if not _has(root, commit):
        return "its commit is not in this repository (a shallow clone, or rewritten history)"
    changed = _first_changed(root, commit, pathspecs(numbers))
    reasons = ["measured uncommitted"] if recorded.endswith(DIRTY) else []
    return ", ".join([*reasons, *([f"{changed} changed"] if changed else [])])


def pathspecs(numbers: Numbers) -> list[str]:
    """The paths on which numbers depend, as git takes them: those of the command, without those of other planners.

    A file that names no planner depends on all.
    """
    words = str(numbers.get("command", "")).removeprefix("reflectdrive ").split()
    paths = PATHS.get(" ".join(words[: 2 if words[:1] == ["bench"] else 1]), OTHERS)
    of_rows = (name for key in ("drivers", "planners") for name in numbers.get(key, ()))
    names = (*words, *of_rows, str(numbers.get("planner", "")))
    planners = {planner for name in names for planner in name.partition(" ")[0].split(PLANNER_SEPARATOR)}
    variants = "--variant" in words  # may be of any planner
    own = {path for planner in (not variants and planners & ONLY_OF.keys()) or ONLY_OF for path in ONLY_OF[planner]}
    others = {path for some in ONLY_OF.values() for path in some} - own
    others |= {model for model in ON_REQUEST if not any(model in word for word in words)}
    unused = sorted(others) if "--closed-loop" in words or paths is OTHERS else [*DRIVES, *sorted(others)]
    return [*paths, *(f":(exclude){path}" for path in ("*.md", *unused))]


def _first_changed(root: Path, commit: str, paths: Sequence[str]) -> str:
    """The first file whose code differs between the commit and the working tree; empty where none does."""
    names = _git(root, "diff", "--name-only", "-z", "--no-renames", commit, "--", *paths).split("\0")
    return next((name for name in names if name and _differs(root, commit, name)), "")


def _differs(root: Path, commit: str, name: str) -> bool:
    if not name.endswith(".py") or not (root / name).is_file():
        return True
    try:
        before = _git(root, "show", f"{commit}:{name}")
        return _code(before) != _code((root / name).read_text(encoding="utf-8"))
    except (ResultsError, SyntaxError):  # a new file, or of another Python
        return True


def _code(text: str) -> str:
    """The syntax tree of a module without its docstrings."""
    tree = ast.parse(text)
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if (
            isinstance(body, list)
            and body
            and isinstance(body[0], ast.Expr)
            and isinstance(body[0].value, ast.Constant)
        ):
            del body[0]
    return ast.dump(tree)


def _has(root: Path, commit: str) -> bool:
    command = ["git", "-C", str(root), "cat-file", "-e", f"{commit}^{{commit}}"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def _git(folder: Path, *arguments: str) -> str:
    """What git prints. Raises ResultsError with the sentence of git."""
    try:
        process = subprocess.run(
            ["git", "-C", str(folder), *arguments], capture_output=True, encoding="utf-8", errors="replace", check=False
        )
    except OSError as fault:
        raise ResultsError(f"git cannot be run: {fault.strerror}; the age of the numbers is judged by it") from None
    if process.returncode:
        first, *_ = [*process.stderr.strip().splitlines(), f"git ended with {process.returncode}"]
        raise ResultsError(f"the age of the numbers in {folder} cannot be judged: {first}; use a git clone")
    return process.stdout


def refusal(reasons: Mapping[str, str], files: Mapping[str, Numbers], folder: Path) -> Iterable[str]:
    """The sentences of what is stale: the file, why, and the command that measures it again."""
    for stem, reason in reasons.items():
        yield f"{folder / stem}.json is stale: {reason}; measure it again: {files[stem].get('command', 'unknown')}"
