"""The corrections of a plan: what each edit round replaced, in metres, with the probabilities of its debug message."""

import numpy as np
import pytest
from tiny_net import POSES

from reflectdrive_ros.core.domain import TokenTrace
from reflectdrive_ros.core.tokens import TokenLayout
from reflectdrive_ros.planning.corrections import Correction, corrections

LAYOUT = TokenLayout()
POINTS = np.stack([3.0 * np.arange(1, 9), np.zeros(8)], axis=-1)


def trace(*rounds, confidence=None):
    """A draft (8, 2) in metres, then the points after each round."""
    ids = LAYOUT.encode(np.stack(rounds))
    probability = np.full(ids.shape, 0.5) if confidence is None else np.array(confidence)
    return TokenTrace(np.zeros((0, 2)), np.zeros(0), -1, ids, probability)


def moved(points, waypoint, axis, metres):
    changed = points.copy()
    changed[waypoint - 1, "xy".index(axis)] += metres
    return changed


def test_a_draft_that_no_round_changed_has_no_corrections():
    assert corrections(trace(POINTS), LAYOUT) == ()
    assert corrections(trace(POINTS, POINTS), LAYOUT) == ()


def test_a_correction_names_waypoint_axis_values_and_both_probabilities():
    confidence = np.full((2, 16), 0.5)
    confidence[:, 5] = 0.25, 0.75  # y of the third waypoint
    corrected = corrections(trace(POINTS, moved(POINTS, 3, "y", -0.6), confidence=confidence), LAYOUT)
    assert corrected == (Correction(1, 3, "y", 0.0, pytest.approx(-0.6), 0.25, 0.75),)


def test_the_corrections_lead_from_the_draft_to_the_ids_of_the_last_round():
    rounds = POINTS + 0.3 * np.random.default_rng(4).integers(-2, 3, (4, 8, 2))
    rounds_trace, points = trace(*rounds), LAYOUT.decode(LAYOUT.encode(rounds[0]))
    for one in corrections(rounds_trace, LAYOUT):
        index = one.waypoint - 1, "xy".index(one.axis)
        assert points[index] == pytest.approx(one.before)
        points[index] = one.after
    np.testing.assert_array_equal(LAYOUT.encode(points), rounds_trace.ids[-1])


def test_headings_are_read_in_layouts_that_have_them():
    ids = np.repeat(POSES.encode(np.zeros((POSES.points, 3)))[None], 2, axis=0)
    ids[1, 5] += 1  # heading of the second waypoint
    (correction,) = corrections(TokenTrace(np.zeros((0, 2)), np.zeros(0), -1, ids, np.full(ids.shape, 0.5)), POSES)
    assert (correction.waypoint, correction.axis, correction.after) == (2, "heading", pytest.approx(POSES.axes[2].bin))


def test_a_trace_of_another_layout_is_refused():
    with pytest.raises(ValueError, match="expected"):
        corrections(trace(POINTS), POSES)
    with pytest.raises(ValueError, match=r"Correction.round is 0, expected at least 1"):
        Correction(0, 1, "x", 0.0, 0.3, 0.1, 0.2)
