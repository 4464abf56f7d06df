"""Claims about making scene sets: whatever is killed and whenever, what is there is right and the rest comes later."""

import argparse
import errno
import hashlib
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import hand_scenes
import pytest

from reflectdrive_ros.cli import scenes as scenes_run
from reflectdrive_ros.data import sets, shards
from reflectdrive_ros.evaluation import scene_sets
from reflectdrive_ros.infra import parallel
from reflectdrive_ros.infra.files import lock_folder
from reflectdrive_ros.sim import sampler

ROOT = Path(__file__).parents[1]


def spec(name="test", size=30, **options):
    generator = {**hand_scenes.MADE_BY, "options": {**hand_scenes.MADE_BY["options"], **options}}
    return sets.SceneSetSpec(name, size, generator)


def make(folder, make_shard=hand_scenes.make, want=None, workers=1, on_progress=lambda scenes: None):
    return sets.make(folder, want or spec(), make_shard, workers=workers, on_progress=on_progress)


def names(folder):
    return [scene.name for scene in shards.read(folder, images=False, on_damage=pytest.fail)]


def everything(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture
def small(monkeypatch):
    """Shards of 10 scenes."""
    monkeypatch.setattr(sets, "SHARD", 10)


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    """A set of three shards of 10, made without any trouble."""
    folder = tmp_path_factory.mktemp("reference")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sets, "SHARD", 10)
        make(folder)
    return folder


def test_a_set_has_its_size_whatever_that_is(small, tmp_path):
    reported = []
    index = make(tmp_path, want=spec(size=25), on_progress=reported.append)
    assert [note.scenes for note in index.shards] == [10, 10, 5]
    assert index == shards.index_of(tmp_path)
    assert len(set(names(tmp_path))) == 25
    assert reported[0] == 0
    assert reported[-1] == 25 == index.scenes
    assert index.counts == {"overlap": 4 + 4 + 2}
    assert sorted(path.suffix for path in tmp_path.iterdir()) == ["", *[".json"] * 4, *[".tar"] * 3]


def test_the_number_of_workers_does_not_show(small, reference, tmp_path):
    make(tmp_path, workers=3)
    assert everything(tmp_path) == everything(reference)


def test_what_is_whole_is_kept_and_the_rest_made_again(small, reference, tmp_path):
    """A note without its shard, a shard without its note, a shard that is another: all are the same to it."""
    folder = shutil.copytree(reference, tmp_path / "set")
    (folder / "test-00000.tar").unlink()
    (folder / "test-00001.json").unlink()
    (folder / "test-00002.tar").write_bytes(b"something else")
    old_stamp_ns = (folder / "test-00001.tar").stat().st_mtime_ns
    (folder / "index.json").unlink()
    make(folder)
    assert everything(folder) == everything(reference)
    times = {path.name: path.stat().st_mtime_ns for path in folder.glob("*.tar")}
    assert times["test-00001.tar"] != old_stamp_ns
    make(folder)
    assert {path.name: path.stat().st_mtime_ns for path in folder.glob("*.tar")} == times, "made a whole set again"


def test_a_set_grows(small, reference, tmp_path):
    first = make(tmp_path, want=spec(size=15))
    assert first.scenes == 15
    first_tar = (tmp_path / "test-00000.tar").stat().st_ino
    make(tmp_path)
    assert everything(tmp_path) == everything(reference)
    assert (tmp_path / "test-00000.tar").stat().st_ino == first_tar
    assert make(tmp_path, want=spec(size=15)).scenes == 30, "a larger set serves as well"


def test_a_set_made_in_parts_is_the_set(small, reference, tmp_path):
    """The second part leaves out what the first holds, here its first ten scenes; neither is taken for the whole."""
    later = sets.SceneSetSpec("test", 20, {**hand_scenes.MADE_BY, "first": 10})
    make(tmp_path / "a", want=spec(size=10))
    index = make(tmp_path / "b", want=later)
    assert (index.size, index.scenes, index.missing) == (20, 20, {})
    assert names(tmp_path / "a") + names(tmp_path / "b") == names(reference)
    for folder, want in ((tmp_path / "b", spec(size=20)), (reference, later)):
        with pytest.raises(shards.SetError, match="first differ"):
            make(folder, want=want)
    assert sets.default_folder("a", later.generator) != sets.default_folder("a", spec().generator)


def test_a_set_cannot_begin_in_the_middle_of_a_shard(small, tmp_path):
    with pytest.raises(shards.SetError, match=r"made 10 at a time: it can start at 20$"):
        make(tmp_path / "set", want=sets.SceneSetSpec("test", 20, {**hand_scenes.MADE_BY, "first": 25}))


def test_a_folder_never_holds_scenes_of_two_programs(small, reference):
    for want, difference in (
        (spec(width=640), "options differ"),
        (sets.SceneSetSpec("test", 30, {**hand_scenes.MADE_BY, "scene_version": 2}), "scene_version differ"),
        (spec("val"), "holds the set 'test', not 'val'"),
    ):
        before = everything(reference)
        with pytest.raises(shards.SetError, match=difference):
            make(reference, want=want)
        assert everything(reference) == before
    generators = [spec(**more).generator for more in ({}, {"width": 640})]
    assert len({sets.default_folder(name, each) for name in ("a", "b") for each in generators}) == 4


MAKING = """
import sys
from functools import partial
from pathlib import Path
import hand_scenes
from reflectdrive_ros.data import sets
sets.SHARD = 10
if __name__ == "__main__":
    folder, tell = Path(sys.argv[1]), partial(print, flush=True)
    want = sets.SceneSetSpec("test", 30, hand_scenes.MADE_BY)
    sets.make(folder, want, hand_scenes.make_slowly, workers=2, on_progress=tell)
"""


def making(folder, program):
    program.write_text(MAKING)
    path = os.pathsep.join([str(ROOT), str(ROOT / "test")])
    return subprocess.Popen(
        [sys.executable, str(program), str(folder)],
        env={**os.environ, "PYTHONPATH": path},
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def descendants_of(pid):
    children = [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return children + [each for child in children for each in descendants_of(child)]


def alive(pid):
    """A zombie has ended: only its number is left."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_killed_at_any_point_it_goes_on_where_it_was(small, reference, tmp_path):
    """kill -9 of the parent after some scenes, again and again; workers end with it, and nothing half-made is read."""
    chance = random.Random(4)
    whole = everything(reference)
    folder = tmp_path / "set"
    folder.mkdir()
    for _ in range(2):
        running = making(folder, tmp_path / "making.py")
        for _ in range(chance.randrange(2, 18)):
            if not running.stdout.readline():
                break
        workers = descendants_of(running.pid)
        os.kill(running.pid, signal.SIGKILL)
        running.wait()
        running.stdout.close()
        for path in folder.glob("*.tar"):
            assert path.read_bytes() == whole[path.name], "a shard under its name is a whole one"
        list(shards.read(folder, images=False, on_damage=lambda sentence: None))
        end = time.monotonic() + 5
        while any(map(alive, workers)) and time.monotonic() < end:
            time.sleep(0.02)
        assert not any(map(alive, workers))
    make(folder)
    assert everything(folder) == whole


def test_two_cannot_make_one_set(small, tmp_path):
    with lock_folder(tmp_path), pytest.raises(BlockingIOError, match="another process writes into it"):
        make(tmp_path)


@pytest.mark.parametrize("deaths", [2, 3])
def test_a_worker_that_dies_is_replaced(deaths, small, reference, tmp_path):
    """Twice is bad luck; the third time the shard is named, and the others are there."""
    marks = tmp_path / "marks"
    marks.mkdir()
    index = make(tmp_path / "set", partial(hand_scenes.make_or_die, marks, deaths), workers=2)
    assert len(list(marks.iterdir())) == deaths
    if deaths < parallel.ATTEMPTS:
        assert everything(tmp_path / "set") == everything(reference)
        return
    assert index.missing == {"test-00001": "its process died 3 times (signal 9)"}
    assert [note.file for note in index.shards] == ["test-00000.tar", "test-00002.tar"]
    make(tmp_path / "set")
    assert everything(tmp_path / "set") == everything(reference)


def test_a_shard_without_scenes_is_not_made_and_comes_later(small, reference, tmp_path):
    index = make(tmp_path, hand_scenes.make_nothing)
    assert index.missing == {"test-00001": "no scene could be made (town_failed 8)"}
    assert not sets.is_complete(tmp_path, spec())
    make(tmp_path)
    assert everything(tmp_path) == everything(reference)


@pytest.mark.parametrize("where", ["shard", "town"])
def test_a_full_disk_ends_it_and_what_is_whole_stays(where, small, reference, tmp_path, monkeypatch):
    """Full when the second shard is written, or when a worker puts its town down."""
    if where == "shard":
        original = shards.write_atomic

        def full(path, content):
            if path.name == "test-00001.tar":
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
            original(path, content)

        monkeypatch.setattr(shards, "write_atomic", full)
    with pytest.raises(OSError) as fault:
        make(tmp_path, hand_scenes.make_on_a_full_disk if where == "town" else hand_scenes.make)
    assert fault.value.errno == errno.ENOSPC
    assert fault.value.filename.endswith({"shard": "/test-00001.tar", "town": "/town.net.xml"}[where])
    monkeypatch.setattr(shards, "write_atomic", original) if where == "shard" else None
    assert sorted(path.name for path in tmp_path.glob("*.tar")) == ["test-00000.tar"]
    assert sorted(path.name for path in tmp_path.glob(".*")) == [".lock"]
    make(tmp_path)
    assert everything(tmp_path) == everything(reference)


def test_the_hard_set_is_what_going_straight_on_cannot_do(tmp_path):
    """Of 40 scenes 12: those of high lateral acceleration, and no scene left out is driven worse than one taken."""
    source = hand_scenes.Shard("hard", 0, 40)
    every = list(source.scenes())
    selected = {scene.name for scene in sets.HardSubset(source, 12).scenes()}
    assert len(selected) == 12
    assert {scene.name for scene in every if scene.family == sets.HARD_FAMILY} <= selected
    others = [scene for scene in every if scene.family != sets.HARD_FAMILY]
    scores = {scene.name: sets.constant_velocity_pdms(scene) for scene in others}
    assert max(scores[name] for name in scores.keys() & selected) <= min(scores[n] for n in scores.keys() - selected)


# --- splits ----------------------------------------------------------------------------------------------------------


def towns_of(name, times=1):
    """Every town that a set may hold, at so many times its standard size."""
    numbers = [number for number, _ in sets.SceneSetSpec(name, times * sets.SIZES[name], {}).shards().values()]
    return {f"{name}-{number:05d}-{town:02d}" for number in numbers for town in range(sampler.TOWNS_MAX)}


def test_no_two_sets_make_a_town_from_one_seed():
    """Of all towns that the four sets may ever hold, five times as large, not only of those that they happen to."""
    seeds = {name: {sampler.seed_of(town) for town in towns_of(name, 5)} for name in sets.SIZES}
    assert len(seeds["train"]) == 100_000 // sets.SHARD * sampler.TOWNS_MAX
    assert sum(map(len, seeds.values())) == len(set().union(*seeds.values()))


def test_no_scene_may_be_left_out_at_the_beginning_but_some_must_be_made(capsys):
    parser = argparse.ArgumentParser()
    scenes_run.add_arguments(parser)
    assert parser.parse_args(["--first", "0"]).first == 0
    for words, complaint in (
        (["--first", "-1"], "'-1' is no whole number from 0 to "),
        (["--count", "two"], "'two' is no whole number from 1 to "),
        (["--count", "0"], "'0' is no whole number from 1 to "),
    ):
        with pytest.raises(SystemExit, match="2"):
            parser.parse_args(words)
        assert complaint in capsys.readouterr().err


OLDER = {"NPY_DISABLE_CPU_FEATURES": "X86_V4 AVX512_ICL", "OPENBLAS_CORETYPE": "Zen"}  # a processor without AVX-512
MADE_ELSEWHERE = {  # by these libraries, on another machine, with this version
    "scene_version": 1,
    "libraries": {"cv2": "5.0.0", "numpy": "2.4.6", "scipy": "1.17.1", "shapely": "2.2.0", "eclipse-sumo": "1.28.0"},
    "val-00000.tar": "9152a0e3b21bd1439fa961be9a9bf3dbe5eb2809600ba288e889a823903c5185",
}


@pytest.mark.parametrize("processor", [{}, OLDER], ids=["this one", "an older one"])
def test_scenes_are_the_same_bytes_on_another_machine(processor, tmp_path):
    """With images. Who changes the bytes of a scene raises SCENE_VERSION and records the hash that this prints."""
    _, generator = scene_sets.make_sampler(192, 108, images=True)
    if generator["arithmetic"] != "AVX2" or generator["libraries"] != MADE_ELSEWHERE["libraries"]:
        pytest.skip(f"recorded with {MADE_ELSEWHERE['libraries']} on x86, not with {generator['libraries']}")
    scenes = [sys.executable, "-m", "reflectdrive_ros", "scenes", "--scenes", "val", "--count", "2"]
    scenes += ["--width", "192", "--height", "108"]
    subprocess.run([*scenes, "--out", str(tmp_path)], env={**os.environ, **processor}, cwd=ROOT, check=True)
    digest = hashlib.sha256((tmp_path / "val-00000.tar").read_bytes()).hexdigest()
    assert (generator["scene_version"], digest) == (MADE_ELSEWHERE["scene_version"], MADE_ELSEWHERE["val-00000.tar"])
