"""Smooth changes of plans: they keep the present, the path and the direction of travel."""

import numpy as np

from reflectdrive_ros.core.tokens import TokenLayout
from reflectdrive_ros.planning.plan_changes import PlanModes, change_actions, sample_offsets

LAYOUT = TokenLayout()
CHANGES = PlanModes(pace_m=1.5, delay_m=0.8, offset_m=0.6, bulge_m=0.3)
PAIRS = 32
U = np.arange(1, 9) / 8.0
BEND = np.stack([30.0 * U, 6.0 * U**2], axis=-1)
STANDING = np.zeros((8, 2))


def ids_of(*plans):
    return LAYOUT.encode(np.stack(plans))


def test_changes_vanish_at_the_present_and_are_smooth():
    offsets = sample_offsets(1, PAIRS, 80, np.random.default_rng(0), CHANGES)
    for values, end_m in ((offsets.along_m, CHANGES.pace_m), (offsets.left_m, CHANGES.offset_m)):
        assert np.abs(values[..., 0]).max() < 0.01
        assert np.abs(np.diff(values, 2)).max() < 0.02 * end_m
        assert 0.6 * end_m < values[..., -1].std() < 1.4 * end_m


def test_a_plan_is_changed_along_and_lateral_to_its_path():
    rng = np.random.default_rng(1)
    along = CHANGES._replace(offset_m=0.0, bulge_m=0.0)
    for offsets in (sample_offsets(1, PAIRS, 8, rng, along), sample_offsets(1, PAIRS, 8, rng, CHANGES)):
        moved = LAYOUT.decode(change_actions(ids_of(BEND), offsets, LAYOUT))[0]
        beyond = np.hypot(*(moved[:, -1] - LAYOUT.decode(ids_of(BEND))[0, -1]).T)
        np.testing.assert_allclose(beyond, np.hypot(offsets.along_m, offsets.left_m)[0, :, -1], atol=0.5)
        on_path = np.interp(moved[..., 0], np.append(0.0, BEND[:, 0]), np.append(0.0, BEND[:, 1]))
        lateral_m = np.abs(moved[..., 1] - on_path)[moved[..., 0] < 30.0].max()
        assert (lateral_m < 0.35) == (offsets.left_m.max() == 0.0)


def test_no_changed_plan_reverses_and_a_standing_one_does_not_move_sideways():
    offsets = sample_offsets(1, PAIRS, 8, np.random.default_rng(2), CHANGES._replace(pace_m=8.0, offset_m=2.0))
    moved = LAYOUT.decode(change_actions(ids_of(BEND), offsets, LAYOUT))[0]
    assert (np.diff(moved[..., 0], axis=1) >= -0.5).all()
    moved = LAYOUT.decode(change_actions(ids_of(STANDING), offsets, LAYOUT))[0]
    stays = offsets.along_m[0].max(axis=1) < 0.0
    assert stays.any()
    assert (moved[stays] == 0.0).all()
