"""For `pip install` on a machine without ROS; in a ROS workspace CMakeLists.txt installs the package."""

from setuptools import setup

setup()
