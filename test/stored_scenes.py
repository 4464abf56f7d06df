"""Sets of hand-made scenes in shards on disk."""

import hand_scenes
import pytest

from reflectdrive_ros.data import shards


def store(folder, shards_of=(8, 8, 4), name="test", images=False):
    """A set made by hand, and its scenes."""
    folder.mkdir(parents=True, exist_ok=True)
    scenes, notes = [], []
    for k, count in enumerate(shards_of):
        part = list(hand_scenes.Shard(name, k, count, images).scenes())
        load = shards.ShardContent.of(part)
        notes.append(shards.write_shard(folder, f"{name}-{k:05d}", load, asked=count, made_by=hand_scenes.MADE_BY))
        scenes += part
    shards.write_index(folder, shards.Index(name, sum(shards_of), tuple(notes), hand_scenes.MADE_BY))
    return scenes


@pytest.fixture(scope="module", name="folder")
def scenes_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("scenes") / "test"
    store(folder)
    return folder
