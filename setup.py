"""For `pip install` on a machine without ROS; in a ROS workspace CMakeLists.txt installs the package."""

from pathlib import Path

from setuptools import setup

FILES = [file for folder in ("config", "models") for file in sorted(Path(folder).rglob("*")) if file.is_file()]

# the same places as in CMakeLists.txt
setup(data_files=[(f"share/reflectdrive/{file.parent}", [str(file)]) for file in FILES])
