"""The graphs of tiny networks, exported once per test run."""

import pytest
from shared import create_once
from tiny_graphs import RULES, network

from reflectdrive_ros.deploy.export import export
from reflectdrive_ros.model.card import sha256_of
from reflectdrive_ros.runtime.network import golden
from reflectdrive_ros.runtime.torch_backend import TorchNetwork


def shared_graphs(name, net, sequences=None):
    """The folder `name` of a network's graphs and their card, which no test changes; `sequences` as of `export`."""

    def make(folder):
        answers = golden(TorchNetwork(net, decoding=RULES))
        export(net, "0" * 64, folder, {"weights": {"steps": 3}}, RULES, sequences, answers)

    return create_once(name, make)


@pytest.fixture(scope="module", name="folder")
def graphs_folder():
    """Of `network()`, for steps of any number of action sequences."""
    return shared_graphs("graphs", network())


@pytest.fixture(name="copy")
def copied_graphs(folder, tmp_path):
    """The exported files once more, to be spoiled."""
    for file in folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    return tmp_path


def of_whatever_is_there(card, folder):
    for row in card["graphs"].values():
        file = folder / row["file"]
        row.update(sha256=sha256_of(file), bytes=file.stat().st_size)
