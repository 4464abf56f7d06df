"""For `pip install` on a machine without ROS; in a ROS workspace CMakeLists.txt installs the package."""

import platform
from pathlib import Path

from setuptools import Extension, setup

FILES = [file for folder in ("config", "models") for file in sorted(Path(folder).rglob("*")) if file.is_file()]
SOURCES = Path("src")
FLAGS = (SOURCES / "compile_flags.txt").read_text().split()
if platform.machine() in ("x86_64", "AMD64"):
    FLAGS.append("-march=x86-64-v3")

setup(
    # the same places as in CMakeLists.txt
    data_files=[(f"share/reflectdrive/{file.parent}", [str(file)]) for file in FILES],
    # the same sources and flags as in CMakeLists.txt
    ext_modules=[
        Extension(
            "reflectdrive_kernels",
            sources=sorted(map(str, SOURCES.glob("*.cpp"))),
            depends=sorted(map(str, (*SOURCES.glob("*.hpp"), SOURCES / "compile_flags.txt"))),
            extra_compile_args=FLAGS,
            language="c++",
        )
    ],
)
