"""For `pip install` on a machine without ROS; in a ROS workspace CMakeLists.txt installs the package."""

import os
import platform
import sys
import sysconfig
from pathlib import Path

import nanobind
from setuptools import Extension, setup

# `REFLECTDRIVE_MODELS=none pip wheel .` gives a wheel of 2 MB without the shipped models
FOLDERS = ("config",) if os.environ.get("REFLECTDRIVE_MODELS") == "none" else ("config", "models")
FILES = [file for folder in FOLDERS for file in sorted(Path(folder).rglob("*")) if file.is_file()]
SOURCES = Path("src")
# The same sources and flags as in src/CMakeLists.txt, which makes warnings errors on request; here they stay warnings:
# a user's compiler may be newer than any that we have seen.
KERNELS = (
    *("agent_bindings", "agents", "areas", "comfort", "contacts", "drivable", "frenet", "module", "motion"),
    *("plan_bindings", "polylines", "safety", "score_bindings", "simulate", "waypoints"),
)
FLAGS = (SOURCES / "compile_flags.txt").read_text().split()
if platform.machine() in ("x86_64", "AMD64"):
    FLAGS.append("-march=x86-64-v3")
NANOBIND = Path(nanobind.include_dir())
NANOBIND_FLAGS = ["-std=c++17", "-O3", "-g0", "-DNDEBUG", "-fvisibility=hidden", "-fno-strict-aliasing"]
NANOBIND_FLAGS += ["-ffunction-sections", "-fdata-sections"]
# Of Python 3.12 or later, one wheel is for all later versions: nanobind's stable ABI begins there. Free-threaded Python
# has none.
STABLE_ABI = sys.version_info >= (3, 12) and not sysconfig.get_config_var("Py_GIL_DISABLED")
ABI_FLAGS = ["-DPy_LIMITED_API=0x030C0000"] if STABLE_ABI else []

setup(
    options={"bdist_wheel": {"py_limited_api": "cp312"}} if STABLE_ABI else {},
    # the same places as in CMakeLists.txt
    data_files=[(f"share/reflectdrive/{file.parent}", [str(file)]) for file in FILES],
    # compiled for every processor: its constructors run before src/module.cpp has checked the processor
    libraries=[
        (
            "nanobind-static",
            {
                "sources": [str(Path(nanobind.source_dir()) / "nb_combined.cpp")],
                "include_dirs": [
                    str(NANOBIND),
                    str(NANOBIND.parent / "ext/robin_map/include"),
                    sysconfig.get_path("include"),
                ],
                "cflags": [*NANOBIND_FLAGS, *ABI_FLAGS],
            },
        )
    ],
    ext_modules=[
        Extension(
            "reflectdrive_kernels",
            sources=[str(SOURCES / f"{name}.cpp") for name in KERNELS],
            depends=sorted(map(str, (*SOURCES.glob("*.hpp"), SOURCES / "compile_flags.txt"))),
            # without Python's own -fwrapv, with which GCC rounds some sums in another order than in the build of CMake
            extra_compile_args=[*FLAGS, "-fno-wrapv", "-g0", f"-isystem{NANOBIND}", *ABI_FLAGS],
            py_limited_api=STABLE_ABI,
            extra_link_args=["-Wl,--gc-sections"],
            language="c++",
        )
    ],
)
