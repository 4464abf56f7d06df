"""What launch_testing says of the launch files: each starts its nodes, and an interrupt ends all of them cleanly.

    python -m launch_testing.launch_test test/launched/launch_files.py

Runs where ROS's launch_testing is; test_launch.py calls it there and skips elsewhere. (pytest itself does not collect
it: launch_testing's plugin and pytest 9 do not go together.)
"""

import unittest
from pathlib import Path

import launch_testing
import launch_testing.actions
import launch_testing.asserts
from launch.actions import IncludeLaunchDescription
from launch.launch_description_sources import AnyLaunchDescriptionSource

from launch import LaunchDescription

ROOT = Path(__file__).parents[2]
MAP = str(ROOT / "test" / "data" / "lanelet2_maps" / "cargo_transport_map.osm")
START_S = 90.0
CASES = [  # file, arguments, messages when it runs
    ("planner.launch.py", {"planner": "constant_velocity"}, ("planner constant_velocity",)),
    ("autoware.launch.xml", {"lanelet_map": MAP}, ("planner reflectdrive2",)),
    ("demo.launch.py", {"planner": "route_follower"}, ("planner route_follower", "the world is")),
]


@launch_testing.parametrize("file, arguments, messages", CASES)
def generate_test_description(file, arguments, messages):
    source = AnyLaunchDescriptionSource(str(ROOT / "launch" / file))
    include = IncludeLaunchDescription(source, launch_arguments=arguments.items())
    return LaunchDescription([include, launch_testing.actions.ReadyToTest()])


class WhileItRuns(unittest.TestCase):
    def test_every_node_says_that_it_runs(self, proc_output, messages):
        for words in messages:
            proc_output.assertWaitFor(words, timeout=START_S, stream="stderr")


@launch_testing.post_shutdown_test()
class Afterwards(unittest.TestCase):
    def test_every_process_ended_cleanly(self, proc_info):
        launch_testing.asserts.assertExitCodes(proc_info)

    def test_nobody_left_a_traceback(self, proc_output):
        for output in proc_output:
            assert b"Traceback" not in output.text
