#!/bin/sh
# Starts the planner of the workspace in /ws; the arguments are those of planner.launch.py.
set -e
. /ws/install/setup.sh
exec ros2 launch reflectdrive planner.launch.py "$@"
