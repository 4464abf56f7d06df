"""Golden scenes that come with the package: is the score of this machine the official one, and by which arithmetic?

The files are lines of NAVSIM's own scores (`test/data/golden/README.md`).
"""

from __future__ import annotations

import ctypes
from pathlib import Path

import numpy as np

SCENES = Path(__file__).with_name("self_test_scenes.jsonl.gz")
SCORES = Path(__file__).with_name("self_test_scores.jsonl.gz")
CORE_NAMES = [  # of OpenBLAS, by how it was built
    f"{prefix}openblas_get_corename{suffix}" for prefix in ("scipy_", "") for suffix in ("64_", "")
]


def numpy_kernels() -> str:
    """NumPy's version and the instruction sets that it uses here, its baseline first."""
    extensions = np.show_config(mode="dicts").get("SIMD Extensions", {})
    return (
        f"{np.__version__}: {', '.join([*extensions.get('baseline', []), *extensions.get('found', [])]) or 'unknown'}"
    )


def blas_kernels() -> str:
    """NumPy's BLAS, its version and the processor whose kernels it uses here."""
    built = np.show_config(mode="dicts").get("Build Dependencies", {}).get("blas", {})
    return f"{built.get('name', 'unknown')} {built.get('version', '')}: {_openblas_core() or 'unknown'}"


def _openblas_core() -> str:
    try:
        lines = Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
    except OSError:  # not Linux
        return ""
    for path in dict.fromkeys(line.split(maxsplit=5)[5] for line in lines if "blas" in line.rpartition("/")[2]):
        library = ctypes.CDLL(path)  # it is loaded already
        for name in CORE_NAMES:
            if function := getattr(library, name, None):
                function.restype = ctypes.c_char_p
                return str((function() or b"").decode())
    return ""
