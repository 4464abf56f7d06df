"""The graphs of a tiny network, exported to a folder."""

import pytest
from tiny_graphs import RULES, network

from reflectdrive_ros.deploy.export import export
from reflectdrive_ros.model.card import sha256_of
from reflectdrive_ros.runtime.network import golden
from reflectdrive_ros.runtime.torch_backend import TorchNetwork


@pytest.fixture(scope="module", name="folder")
def graphs_folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("graphs")
    net = network()
    export(net, "0" * 64, place, {"weights": "made here"}, RULES, golden=golden(TorchNetwork(net, decoding=RULES)))
    return place


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
