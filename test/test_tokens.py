"""Metres to ids and back: within half a bin, and zero stays zero."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from reflectdrive_ros.core.tokens import Codebook, Round, decoding_rounds, draft_schedule

codebooks = st.builds(
    Codebook, bin_m=st.sampled_from([0.3, 0.05, 0.1, 1.0]), bins=st.integers(1, 1000).map(lambda half: 2 * half + 1)
)


@given(codebooks, st.data())
def test_a_round_trip_is_within_half_a_bin(codebook, data):
    reach = codebook.reach_m
    points = data.draw(arrays(float, array_shapes(min_dims=1, max_dims=2), elements=st.floats(-reach, reach)))
    points = np.stack([points, -points], axis=-1)
    ids = codebook.encode(points)
    assert ids.dtype == np.int32
    assert ids.shape == (*points.shape[:-2], 2 * points.shape[-2])
    np.testing.assert_allclose(codebook.decode(ids), points, atol=0.5 * codebook.bin_m * (1 + 1e-9))


@given(codebooks)
def test_zero_stays_zero(codebook):
    assert codebook.to_ids(np.zeros(3)).tolist() == [codebook.zero_id] * 3
    assert (codebook.to_values(np.array([codebook.zero_id])) == 0.0).all()  # exactly: a parked car stays where it is


@given(codebooks)
def test_every_id_comes_back(codebook):
    ids = np.arange(codebook.bins)
    np.testing.assert_array_equal(codebook.to_ids(codebook.to_values(ids)), ids)


@given(codebooks, st.floats(allow_nan=False, allow_infinity=False))
def test_what_is_out_of_reach_is_clipped_to_the_last_bin(codebook, value):
    clipped = np.clip(value, -codebook.reach_m, codebook.reach_m)
    np.testing.assert_array_equal(codebook.to_ids(np.array([value])), codebook.to_ids(np.array([clipped])))


def test_the_order_is_x_y_x_y():
    codebook = Codebook()
    ids = codebook.encode(np.array([[3.0, -0.3], [6.0, 0.6]]))
    assert (ids - codebook.zero_id).tolist() == [10, -1, 20, 2]


def test_the_default_grid_is_reflectdrives():
    codebook = Codebook()
    assert (codebook.bins, codebook.zero_id, codebook.mask_id) == (667, 333, 667)
    assert codebook.reach_m == pytest.approx(99.9)


@pytest.mark.parametrize(
    ("ask", "values", "complaint"),
    [
        (lambda bad: Codebook().to_ids(np.array([0.0, bad])), [np.nan, np.inf, -np.inf], "to_ids got NaN or infinity"),
        (lambda ids: Codebook().to_values(np.array(ids)), [[667], [-1], [0, 700]], r"got ids .*, expected 0\.\.666"),
        (lambda ids: Codebook().to_values(np.array(ids)), [[1.5]], "to_values got float64, expected whole numbers"),
        (lambda shape: Codebook().encode(np.zeros(shape)), [(8, 3), (2,), ()], "encode got points of shape"),
        (lambda shape: Codebook().decode(np.zeros(shape, int)), [(15,), (2, 3), ()], "decode got ids of shape"),
        (lambda bin_m: Codebook(bin_m=bin_m), [0.0, -0.3, np.nan, np.inf], r"Codebook\.bin_m is"),
        (lambda bins: Codebook(bins=bins), [668, 1, 667.0], r"Codebook\.bins is"),
    ],
)
def test_bad_input_is_refused_by_name(ask, values, complaint):
    for value in values:
        with pytest.raises(ValueError, match=complaint):
            ask(value)


# --- schedule --------------------------------------------------------------------------------------------------------


def test_every_schedule_writes_what_is_masked_and_no_round_is_idle():
    assert draft_schedule(14, 3) == (5, 5, 4)
    for masked in range(33):
        for rounds in range(1, 17):
            shares = draft_schedule(masked, rounds)
            assert sum(shares) == masked
            assert all(share >= 1 for share in shares)
            assert len(shares) == min(rounds, masked)
            assert list(shares) == sorted(shares, reverse=True)
    with pytest.raises(ValueError, match="0 rounds"):
        draft_schedule(14, 0)


def test_a_full_step_drafts_first_and_edits_then():
    assert decoding_rounds(14, 3, 2) == ((5, False), (5, False), (4, False), (0, True), (0, True))
    assert decoding_rounds(16, 1, 1) == (Round(16), Round(edit=True))
