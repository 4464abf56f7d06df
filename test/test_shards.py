"""Claims about stored scenes: what is read is what was written, and nothing damaged is read as whole."""

import errno
import hashlib
import io
import json
import os
import re
import resource
import signal
import tarfile
from dataclasses import replace

import hand_scenes
import hypothesis
import numpy as np
import pytest
from changed_documents import with_field
from hypothesis import strategies as st
from stored_scenes import store

from reflectdrive_ros.data import codec, shards
from reflectdrive_ros.data.scene import FAMILIES

CLOSE = 2 * codec.GRID


def same(one, other):
    """Equal to what float32 tells; images apart."""
    for name in (*codec.TEXTS, "command", "reference"):
        assert getattr(one, name) == getattr(other, name), name
    assert dict(one.notes) == dict(other.notes)
    for name in ("stamp_ns", *codec.EGO_NUMBERS):
        assert getattr(one.ego, name) == getattr(other.ego, name), name
    np.testing.assert_array_equal(one.ego.map_from_ego, other.ego.map_from_ego)
    for name in ("ego_history", "route", "expert"):
        np.testing.assert_allclose(getattr(one, name), getattr(other, name), atol=CLOSE)
    for name in ("poses", "speeds_mps", "sizes"):
        np.testing.assert_allclose(getattr(one.tracks, name), getattr(other.tracks, name), atol=CLOSE)
    for name in ("present", "kinds"):
        np.testing.assert_array_equal(getattr(one.tracks, name), getattr(other.tracks, name))
    assert one.areas.lane_on_route == other.areas.lane_on_route
    for name in codec.AREAS:
        for ring, twin in zip(getattr(one.areas, name), getattr(other.areas, name), strict=True):
            np.testing.assert_allclose(ring, twin, atol=CLOSE)
    for ring, twin in zip(one.red_lights.connectors, other.red_lights.connectors, strict=True):
        np.testing.assert_allclose(ring, twin, atol=CLOSE)
    np.testing.assert_array_equal(one.red_lights.red, other.red_lights.red)


@pytest.mark.parametrize("agents", [0, 1, 20])
def test_a_scene_comes_back_as_it_was(agents):
    scene = hand_scenes.scene(agents=agents)
    sample = codec.sample_of(scene)
    back = codec.scene_of(sample)
    same(scene, back)
    for frame, twin in zip(scene.cameras, back.cameras, strict=True):
        assert (frame.name, frame.stamp_ns) == (twin.name, twin.stamp_ns)
        np.testing.assert_array_equal(frame.pixels_from_camera, twin.pixels_from_camera)
        np.testing.assert_array_equal(frame.camera_from_ego, twin.camera_from_ego)
        assert np.abs(frame.pixels.astype(int) - twin.pixels).mean() < 4  # the noise in it is 4
    same(scene, codec.scene_of(sample, images=False))
    assert codec.scene_of(sample, images=False).cameras == ()


def test_what_was_read_is_written_to_the_same_bytes():
    """So a set may be filtered and stored again without wearing out; a JPEG alone loses at each turn."""
    sample = codec.sample_of(hand_scenes.scene(agents=20))
    again = codec.sample_of(codec.scene_of(sample))
    assert again["meta.json"] == sample["meta.json"]
    assert again["arrays.npz"] == sample["arrays.npz"]


def test_no_pickle_and_no_clock_in_the_arrays():
    sample = codec.sample_of(hand_scenes.scene())
    with np.load(io.BytesIO(sample["arrays.npz"]), allow_pickle=False) as arrays:
        assert all(array.dtype != object for array in arrays.values())
        assert {entry.date_time for entry in arrays.zip.infolist()} == {(1980, 1, 1, 0, 0, 0)}


@pytest.mark.parametrize("differences", [0, 1, 2])
def test_packing_is_exact_on_the_grid(differences):
    """Up to the ends of the range, where differences run over."""
    steps = np.random.default_rng(1).integers(-(2**31) + 1, 2**31, (3, 200))
    steps[0, ::2], steps[0, 1::2] = -(2**31) + 1, 2**31 - 1
    values = steps * codec.GRID
    planes = codec._pack(values, differences=differences)
    np.testing.assert_array_equal(codec._unpack(planes, (3, 200), differences=differences), values)


def test_a_ring_stays_simple_on_the_grid():
    """A sliver that is a polygon in float64 and folds over itself when rounded is mended, and what vanishes is told."""
    scene = hand_scenes.scene(images=False)
    fin = np.array([[0, 0], [4, 0], [4, 3], [2, 3], [2 - 1e-5, 9], [2 - 2e-5, 3], [0, 3]], float)
    sharp = replace(scene, areas=replace(scene.areas, carparks=(fin,)))
    (ring,) = codec.scene_of(codec.sample_of(sharp)).areas.carparks
    assert ring[:, 1].max() == 3
    hair = np.array([[0, 0], [5, 0], [5, 1e-6]])
    with pytest.raises(codec.CodecError, match="test-00000-000: a polygon of carparks is thinner"):
        codec.sample_of(replace(scene, areas=replace(scene.areas, carparks=(hair,))))


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"name": "a.b"}, "'a.b' is no name"),
        ({"notes": {"x": float("nan")}}, "holds values that JSON cannot represent"),
        ({"notes": {"x": np.int64(1)}}, "holds values that JSON cannot represent"),
        ({"expert": np.full((8, 3), 2e5)}, "beyond what a scene stores"),
    ],
)
def test_what_cannot_be_stored_is_told(change, complaint):
    with pytest.raises(codec.CodecError, match=complaint):
        codec.sample_of(replace(hand_scenes.scene(images=False), **change))


@pytest.mark.parametrize("harm", ["no meta", "old format", "no arrays", "cut arrays", "no image", "cut image"])
def test_a_damaged_sample_is_one_error(harm):
    sample = codec.sample_of(hand_scenes.scene())
    if harm == "no meta":
        del sample["meta.json"]
    if harm == "old format":
        sample["meta.json"] = json.dumps({**json.loads(sample["meta.json"]), "format": 0}).encode()
    if harm == "no arrays":
        del sample["arrays.npz"]
    if harm == "cut arrays":
        sample["arrays.npz"] = sample["arrays.npz"][:1000]
    if harm == "no image":
        del sample["front_0.0.jpg"]
    if harm == "cut image":
        sample["front_0.0.jpg"] = b"\xff\xd8\xff"
    with pytest.raises(codec.CodecError, match="test-00000-000"):
        codec.scene_of(sample)


@pytest.mark.parametrize(
    ("path_of_field", "value", "complaint"),
    [
        ("command", [], r"has command = \[\], expected one of"),
        ("ego", 3, "has ego = 3, expected an object"),
        ("ego.map_from_ego", [1, 2, "x"], r"has ego.map_from_ego\[2\] = 'x', expected a finite number"),
        ("ego.speed_mps", 10**400, "has ego.speed_mps = 1.*, expected a finite number"),
        ("rings.lanes", 10**12, "has rings.lanes = 1000000000000, expected a whole number"),
        ("pictures", [["front", 0]], r"has pictures\[0\] = \['front', 0\], expected a list of 3"),
        ("name", "../x", "has name = '../x', expected text"),
    ],
)
def test_a_scene_with_a_field_of_a_wrong_type_is_refused_by_its_name(path_of_field, value, complaint):
    sample = codec.sample_of(hand_scenes.scene(images=False))
    meta = with_field(json.loads(sample["meta.json"]), path_of_field, value)
    with pytest.raises(codec.CodecError, match=f"meta.json of test-00000-000 {complaint}"):
        codec.scene_of({**sample, "meta.json": json.dumps(meta).encode()})


# --- shards ----------------------------------------------------------------------------------------------------------


def stored(folder, shards_of=(5, 5, 3), images=False):
    """A small set and its scenes."""
    return store(folder, shards_of, images=images)


def read(folder, **more):
    damages = []
    scenes = list(shards.read(folder, **{"images": False, **more, "on_damage": damages.append}))
    return [scene.name for scene in scenes], damages, scenes


def test_a_set_is_read_in_its_order(tmp_path):
    scenes = stored(tmp_path)
    names, damages, back = read(tmp_path)
    assert damages == []
    assert names == [scene.name for scene in scenes]
    for scene, twin in zip(scenes, back, strict=True):
        same(scene, twin)


def test_families_and_a_limit(tmp_path):
    stored(tmp_path)
    assert len(read(tmp_path, limit=7)[0]) == 7
    assert read(tmp_path, families={"curve"})[0] == ["test-00000-001", "test-00001-001", "test-00002-001"]
    assert read(tmp_path, families={"curve", "straight"}, limit=3)[0][-1] == "test-00001-001"
    assert read(tmp_path, limit=0)[0] == read(tmp_path, families={"u_turn"})[0] == []


@hypothesis.given(st.dictionaries(st.sampled_from(sorted(FAMILIES)), st.integers(0, 60)), st.integers(0, 300))
def test_quotas_add_up_to_the_limit_and_leave_no_family_out_that_fits(available, limit):
    quotas = shards.family_quotas(available, limit)
    assert quotas.keys() == available.keys()
    assert sum(quotas.values()) == min(limit, sum(available.values()))
    assert all(0 <= quotas[family] <= count for family, count in available.items())
    if limit >= len(available):
        assert all(quotas[family] for family, count in available.items() if count)


def test_webdataset_reads_what_we_read(tmp_path):
    import webdataset

    stored(tmp_path, [3, 2], images=True)
    index = shards.index_of(tmp_path)
    paths = [str(tmp_path / note.file) for note in index.shards]
    theirs = [
        {name: content for name, content in sample.items() if name == "__key__" or not name.startswith("__")}
        for sample in webdataset.WebDataset(paths, shardshuffle=False)
    ]
    ours = [each for note in index.shards for each in shards.samples_of(shards.content_of(tmp_path, note), images=True)]
    assert theirs == ours
    assert len(ours) == 5


@pytest.mark.parametrize("harm", ["a flipped bit", "cut short", "longer", "missing", "a folder"])
def test_a_damaged_shard_is_named_and_skipped(harm, tmp_path):
    stored(tmp_path)
    path = tmp_path / "test-00001.tar"
    content = bytearray(path.read_bytes())
    if harm == "a flipped bit":
        content[len(content) // 2] ^= 4
        path.write_bytes(content)
    if harm == "cut short":
        path.write_bytes(content[:3000])
    if harm == "longer":
        path.write_bytes(content + b"\0" * 512)
    if harm in ("missing", "a folder"):
        path.unlink()
    if harm == "a folder":
        path.mkdir()
    names, damages, _ = read(tmp_path)
    assert {name[:10] for name in names} == {"test-00000", "test-00002"}
    (sentence,) = damages
    assert str(path) in sentence
    assert "its 5 scenes are left out" in sentence
    assert [note.file for note, damage in shards.check(tmp_path) if damage] == ["test-00001.tar"]


def test_a_shard_that_was_never_made_is_named(tmp_path):
    stored(tmp_path)
    index = replace(shards.index_of(tmp_path), missing={"test-00003": "its process died 3 times (signal 11)"})
    shards.write_index(tmp_path, index)
    assert len(read(tmp_path)[0]) == 13
    assert read(tmp_path)[1] == [f"{tmp_path}/test-00003.tar was never made: its process died 3 times (signal 11)"]


@pytest.mark.parametrize("content", [None, b"", b"{", b"[]", b"{}", b'{"format": 1}', b'{"format": 0}'])
def test_a_folder_without_a_usable_index_is_one_sentence(content, tmp_path):
    if content is not None:
        (tmp_path / "index.json").write_bytes(content)
    with pytest.raises(shards.SetError, match=str(tmp_path)) as fault:
        next(shards.read(tmp_path, images=False, on_damage=pytest.fail))
    assert "make" in str(fault.value)


@pytest.mark.parametrize(
    ("path_of_field", "value", "complaint"),
    [
        ("shards", [3], r"has shards\[0\] = 3, expected an object"),
        ("shards.0.file", "../a.tar", r"has shards\[0\].file = '../a.tar', expected the name of a file"),
        ("shards.0.file", "a\0", r"has shards\[0\].file = 'a.x00', expected the name of a file"),
        ("shards.0.sha256", 3, r"has shards\[0\].sha256 = 3, expected a SHA-256"),
        ("shards.0.scenes", 5.5, r"has shards\[0\].scenes = 5.5, expected a whole number"),
        ("shards.0.families", {"straight": "5"}, r"has shards\[0\].families.straight = '5', expected a whole number"),
        ("size", None, "has size = None, expected a whole number"),
        ("missing", ["test-00003"], r"has missing = \['test-00003'\], expected an object"),
    ],
)
def test_an_index_with_a_field_of_a_wrong_type_is_refused_by_its_name(path_of_field, value, complaint, tmp_path):
    stored(tmp_path)
    content = json.loads((tmp_path / "index.json").read_text())
    (tmp_path / "index.json").write_text(json.dumps(with_field(content, path_of_field, value)))
    with pytest.raises(shards.SetError, match=rf"index\.json is damaged, it {complaint}"):
        shards.index_of(tmp_path)


def retold(folder, content):
    """A set of one shard with these bytes, which its index tells truly."""
    stored(folder, shards_of=(1,))
    index = shards.index_of(folder)
    (folder / "test-00000.tar").write_bytes(content)
    digest = hashlib.sha256(content).hexdigest()
    note = replace(index.shards[0], bytes=len(content), sha256=digest)
    shards.write_index(folder, replace(index, shards=(note,)))


def tar_with(change, content=b"x"):
    member = tarfile.TarInfo("test-00000-000.meta.json")
    member.size = len(content)
    change(member)
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        tar.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


SPARSE = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.name": "a", "GNU.sparse.realsize": "9" * 12}


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"no tar at all", "it is no tar of scenes"),
        (tar_with(lambda member: setattr(member, "type", tarfile.SYMTYPE)), "is no regular file"),
        (tar_with(lambda member: setattr(member, "type", tarfile.CHRTYPE)), "is no regular file"),
        (tar_with(lambda member: member.pax_headers.update(SPARSE), b"1\n0\n1\n" + bytes(505)), "is no regular file"),
        (tar_with(lambda member: None, b"[" * 100_000), "meta.json of test-00000-000 nests deeper than 64 levels"),
        (tar_with(lambda member: None, b'{"format": 1}'), "meta.json of test-00000-000 has no name"),
        (tar_with(lambda member: setattr(member, "name", "a\udc80.meta.json")), r"meta.json of a\\udc80 is not JSON"),
    ],
)
def test_a_shard_whose_hash_is_right_and_whose_content_is_not_is_one_sentence(content, complaint, tmp_path):
    retold(tmp_path, content)
    names, damages, _ = read(tmp_path)
    assert not names
    (sentence,) = damages
    assert re.search(complaint, sentence), sentence


@pytest.mark.parametrize("step", ["open", "write", "fsync", "rename"])
def test_a_file_that_cannot_be_written_is_named_and_leaves_nothing(step, tmp_path, monkeypatch):
    """The disk may fill up at any step."""

    def full(*_args, **_more):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    target = tmp_path / "test-00000.tar"
    target.write_bytes(b"old")
    if step == "open":
        monkeypatch.setattr(type(target), "open", full)
    if step == "write":
        limit = resource.getrlimit(resource.RLIMIT_FSIZE)
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, limit[1]))
    if step == "fsync":
        monkeypatch.setattr(os, "fsync", full)
    if step == "rename":
        monkeypatch.setattr(os, "replace", full)
    try:
        with pytest.raises(OSError) as fault:
            shards.write_atomic(target, b"new" * 1000)
    finally:
        if step == "write":
            resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    monkeypatch.undo()
    assert fault.value.filename == str(target)
    assert fault.value.strerror
    assert target.read_bytes() == b"old"
    assert [path.name for path in tmp_path.iterdir()] == ["test-00000.tar"]
