"""Claims about stored scenes: what is read is what was written, and nothing damaged is read as whole."""

import io
import json
from dataclasses import replace

import hand_scenes
import numpy as np
import pytest

from reflectdrive_ros.scoring.scorer import score
from reflectdrive_ros.sim import scene_codec

CLOSE = 2 * scene_codec.GRID


def same(one, other):
    """Equal to what float32 tells; pictures apart."""
    for name in (*scene_codec.TEXTS, "command", "reference"):
        assert getattr(one, name) == getattr(other, name), name
    assert dict(one.notes) == dict(other.notes)
    for name in ("stamp_ns", *scene_codec.EGO_NUMBERS):
        assert getattr(one.ego, name) == getattr(other.ego, name), name
    np.testing.assert_array_equal(one.ego.map_from_ego, other.ego.map_from_ego)
    for name in ("ego_history", "route", "expert"):
        np.testing.assert_allclose(getattr(one, name), getattr(other, name), atol=CLOSE)
    for name in ("poses", "speeds_mps", "sizes"):
        np.testing.assert_allclose(getattr(one.tracks, name), getattr(other.tracks, name), atol=CLOSE)
    for name in ("present", "kinds"):
        np.testing.assert_array_equal(getattr(one.tracks, name), getattr(other.tracks, name))
    assert one.areas.lane_on_route == other.areas.lane_on_route
    for name in scene_codec.AREAS:
        for ring, twin in zip(getattr(one.areas, name), getattr(other.areas, name), strict=True):
            np.testing.assert_allclose(ring, twin, atol=CLOSE)
    for ring, twin in zip(one.red_lights.connectors, other.red_lights.connectors, strict=True):
        np.testing.assert_allclose(ring, twin, atol=CLOSE)
    np.testing.assert_array_equal(one.red_lights.red, other.red_lights.red)


@pytest.mark.parametrize("agents", [0, 1, 20])
def test_a_scene_comes_back_as_it_was(agents):
    scene = hand_scenes.scene(agents=agents)
    sample = scene_codec.sample_of(scene)
    back = scene_codec.scene_of(sample)
    same(scene, back)
    for frame, twin in zip(scene.cameras, back.cameras, strict=True):
        assert (frame.name, frame.stamp_ns) == (twin.name, twin.stamp_ns)
        np.testing.assert_array_equal(frame.pixels_from_camera, twin.pixels_from_camera)
        np.testing.assert_array_equal(frame.camera_from_ego, twin.camera_from_ego)
        assert np.abs(frame.pixels.astype(int) - twin.pixels).mean() < 4  # the noise in it is 4
    same(scene, scene_codec.scene_of(sample, pictures=False))
    assert scene_codec.scene_of(sample, pictures=False).cameras == ()


def test_the_score_of_a_stored_scene_is_that_of_the_scene():
    scene = hand_scenes.scene(agents=8, pictures=False)
    back = scene_codec.scene_of(scene_codec.sample_of(scene))
    plans = scene.expert * np.array([0.5, 0.9, 1.0, 1.2])[:, None, None]
    one, other = score(scene.scored(), plans), score(back.scored(), plans)
    np.testing.assert_allclose(one.score, other.score, atol=1e-4)


def test_a_scene_with_six_pictures_and_twenty_agents_is_small():
    sample = scene_codec.sample_of(hand_scenes.scene(agents=20))
    assert sum(len(content) for name, content in sample.items() if name != "__key__") < 70_000


def test_what_was_read_is_written_to_the_same_bytes():
    """So a set may be filtered and stored again without wearing out; a JPEG alone loses at each turn."""
    sample = scene_codec.sample_of(hand_scenes.scene(agents=20))
    again = scene_codec.sample_of(scene_codec.scene_of(sample))
    assert again["meta.json"] == sample["meta.json"]
    assert again["arrays.npz"] == sample["arrays.npz"]


def test_no_pickle_and_no_clock_in_the_arrays():
    sample = scene_codec.sample_of(hand_scenes.scene())
    with np.load(io.BytesIO(sample["arrays.npz"]), allow_pickle=False) as arrays:
        assert all(array.dtype != object for array in arrays.values())
        assert {entry.date_time for entry in arrays.zip.infolist()} == {(1980, 1, 1, 0, 0, 0)}


@pytest.mark.parametrize("differences", [0, 1, 2])
def test_packing_is_exact_on_the_grid(differences):
    """Up to the ends of the range, where differences run over."""
    steps = np.random.default_rng(1).integers(-(2**31) + 1, 2**31, (3, 200))
    steps[0, ::2], steps[0, 1::2] = -(2**31) + 1, 2**31 - 1
    values = steps * scene_codec.GRID
    planes = scene_codec._packed(values, differences=differences)
    np.testing.assert_array_equal(scene_codec._unpacked(planes, (3, 200), differences=differences), values)


def test_a_ring_stays_simple_on_the_grid():
    """A sliver that is a polygon in float64 and folds over itself when rounded is mended, and what vanishes is told."""
    scene = hand_scenes.scene(pictures=False)
    fin = np.array([[0, 0], [4, 0], [4, 3], [2, 3], [2 - 1e-5, 9], [2 - 2e-5, 3], [0, 3]], float)
    sharp = replace(scene, areas=replace(scene.areas, carparks=(fin,)))
    (ring,) = scene_codec.scene_of(scene_codec.sample_of(sharp)).areas.carparks
    assert ring[:, 1].max() == 3
    hair = np.array([[0, 0], [5, 0], [5, 1e-6]])
    with pytest.raises(scene_codec.CodecError, match="test-00000-000: a polygon of carparks is thinner"):
        scene_codec.sample_of(replace(scene, areas=replace(scene.areas, carparks=(hair,))))


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"name": "a.b"}, "'a.b' is no name"),
        ({"notes": {"x": float("nan")}}, "holds what JSON cannot"),
        ({"notes": {"x": np.int64(1)}}, "holds what JSON cannot"),
        ({"expert": np.full((8, 3), 2e5)}, "beyond what a scene stores"),
    ],
)
def test_what_cannot_be_stored_is_told(change, complaint):
    with pytest.raises(scene_codec.CodecError, match=complaint):
        scene_codec.sample_of(replace(hand_scenes.scene(pictures=False), **change))


@pytest.mark.parametrize("harm", ["no meta", "old format", "no arrays", "cut arrays", "no picture", "cut picture"])
def test_a_damaged_sample_is_one_error(harm):
    sample = scene_codec.sample_of(hand_scenes.scene())
    if harm == "no meta":
        del sample["meta.json"]
    if harm == "old format":
        sample["meta.json"] = json.dumps({**json.loads(sample["meta.json"]), "format": 0}).encode()
    if harm == "no arrays":
        del sample["arrays.npz"]
    if harm == "cut arrays":
        sample["arrays.npz"] = sample["arrays.npz"][:1000]
    if harm == "no picture":
        del sample["front_0.0.jpg"]
    if harm == "cut picture":
        sample["front_0.0.jpg"] = b"\xff\xd8\xff"
    with pytest.raises(scene_codec.CodecError, match="test-00000-000"):
        scene_codec.scene_of(sample)
