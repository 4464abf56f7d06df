"""The feature ring: encoding three new images equals encoding six, and no image is confused with another."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from tiny_graphs import RULES, one_layer
from tiny_net import VISION, assert_same_answer, tiny_inputs, tiny_net

from reflectdrive_ros.deploy.export import export
from reflectdrive_ros.features.images import ModelInputs
from reflectdrive_ros.runtime.ort_backend import Graph, OrtNetwork
from reflectdrive_ros.runtime.torch_backend import TorchNetwork

WORDS = ("<pad>", "<unk>")


def drive(count, interval=2):
    """What a network is given at each step of a drive: each image is the newest once, and the older one later."""
    images = tiny_inputs(one_layer(), scenes=count + interval)[0][:, :3].numpy()
    for step in range(count):
        pair = np.concatenate([images[step], images[step + interval]])
        yield ModelInputs(
            pair, np.zeros(16, np.int64), np.array([0.1 * step, 0.0, 0.0], np.float32), np.zeros((2, 2), np.int64)
        )


class Counting(TorchNetwork):
    """Counts the images that are encoded."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.looked_at = 0
        self._net.vision.register_forward_pre_hook(self._count)

    def _count(self, module, inputs):
        self.looked_at += len(inputs[0])


def test_a_step_encodes_three_new_images_and_answers_as_if_it_had_encoded_six():
    ring = Counting(one_layer())
    for step, inputs in enumerate(drive(8)):
        before = ring.looked_at
        prefilled, afresh = ring.prefill_goal(inputs), TorchNetwork(one_layer()).prefill_goal(inputs)
        assert ring.looked_at - before == (6 if step < 2 else 3)
        np.testing.assert_array_equal(prefilled.actions, afresh.actions)
        assert_same_answer(prefilled.goal_log_probs, afresh.goal_log_probs)
        for mine, others in zip(prefilled.context, afresh.context, strict=True):
            for part, other in zip(mine, others, strict=True):
                torch.testing.assert_close(part, other, atol=1e-5, rtol=1e-5)


def test_a_image_that_differs_in_one_pixel_is_another():
    ring, inputs = Counting(one_layer()), next(drive(1))
    ring.prefill_goal(inputs)
    touched = inputs.images.copy()
    touched[0, 0, 0, 0] ^= 1
    ring.prefill_goal(replace(inputs, images=touched))
    assert ring.looked_at == 6 + 3
    ring.prefill_goal(inputs)
    assert ring.looked_at == 9


@pytest.mark.parametrize("frames", [1, 2])
def test_a_network_that_looks_at_both_instants_at_once_does_without(frames):
    """The small network: there is nothing of an older instant to keep."""
    other = Counting(tiny_net(vision=replace(VISION, frames=frames), words=WORDS, text_length=16))
    inputs = next(drive(1))
    for _ in range(2):
        other.prefill_goal(inputs)
    assert other.looked_at == (6 if frames == 1 else 2 * 3)


@pytest.fixture(scope="module")
def graphs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("graphs")
    export(one_layer(), "0" * 64, folder, {}, RULES)
    return folder / "card.json"


@pytest.mark.parametrize("threads", [1, 2])
def test_exported_graphs_look_at_three_new_images_too(graphs, threads, monkeypatch):
    looked_at, run = [], Graph.run

    def counted(graph, feeds, tensors=None):
        if graph.name == "vision_encoder":
            looked_at.append(len(feeds["views"]))
        return run(graph, feeds, tensors)

    monkeypatch.setattr(Graph, "run", counted)
    ring = OrtNetwork.from_file(graphs, threads)
    for step, inputs in enumerate(drive(5)):
        looked_at.clear()
        prefilled = ring.prefill_goal(inputs)
        assert sum(looked_at) == (6 if step < 2 else 3)
        assert max(looked_at) == (3 if threads == 1 else 2)  # threads share out cameras
        expected = TorchNetwork(one_layer(), decoding=RULES).prefill_goal(inputs)
        np.testing.assert_array_equal(prefilled.actions, expected.actions)
        np.testing.assert_allclose(prefilled.goal_log_probs, expected.goal_log_probs, atol=1e-4)
