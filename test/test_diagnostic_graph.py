"""The subgraph for Autoware's diagnostic_graph_aggregator: its names are ours, and it is an error when the car stops.

The aggregator is not installed here. Its rules are those of its documentation: `and` has the worst level of its list, a
status that was never received counts as an error, and a diagnostic may be named once only.
"""

import pytest
from diagnostic_tree import BY_PATH, TOP, UNITS, level, levels_of
from input_stream import driving, instant
from messages import ns

from reflectdrive_ros.ros.inputs.channel import Level


def diagnostics(unit):
    """Names of the statuses that a unit and those inside of it read."""
    if unit["type"] == "diag":
        return [f"{unit['node']}: {unit['name']}"]
    inside = [*unit.get("list", ()), *([unit["item"]] if "item" in unit else [])]
    return [name for child in inside for name in diagnostics(child)]


@pytest.mark.parametrize("settings", [{}, {"inputs__objects_type": "none"}, {"cameras__required": False}])
def test_each_diagnostic_is_one_of_the_node_whatever_it_reads(settings):
    core = driving(**settings)
    named = [name for unit in UNITS for name in diagnostics(unit)]
    assert set(named) <= set(levels_of(core, 1.0))
    assert len(named) == len(set(named))
    assert len(BY_PATH) == len(UNITS)


def test_the_graph_is_ok_while_the_car_drives_also_with_warnings():
    core = driving()
    instant(core, 1.0, objects=False)
    core.step(ns(1.0))
    levels = levels_of(core, 1.0)
    assert levels["reflectdrive: planner"] is Level.WARN  # unchecked: no objects
    assert level(BY_PATH[TOP], levels) is Level.OK


@pytest.mark.parametrize(
    "missing", ["before the first step", "an image", "odometry", "the route beside it", "the node"]
)
def test_the_graph_is_an_error_when_the_car_has_to_stop(missing):
    core = driving()
    if missing == "an image":
        instant(core, 1.0, cameras=("front", "front_left"))
        core.step(ns(1.0))
    elif missing == "odometry":
        instant(core, 1.0)
        core.step(ns(1.0))
    elif missing == "the route beside it":
        instant(core, 1.0, y=30.0)
        core.step(ns(1.0))
    levels = {} if missing == "the node" else levels_of(core, 2.0 if missing == "odometry" else 1.0)
    assert level(BY_PATH[TOP], levels) is Level.ERROR
