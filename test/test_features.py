"""What a network is given: images in order, words by meaning, numbers by scale, the truth about what was missing."""

import dataclasses
import gc
import re

import numpy as np
import pytest
from network_inputs import SPEC, camera_images
from scenes import ego, observation

from reflectdrive_ros.core.domain import Command
from reflectdrive_ros.features import images as features
from reflectdrive_ros.features.images import PAD, UNKNOWN, WORDS, WordTokenizer, model_inputs
from reflectdrive_ros.sim.instructions import SENTENCES


def camera_observation(**more):
    return observation(**{"cameras": camera_images(), **more})


def words(inputs):
    return [WORDS[token_id] for token_id in inputs.text if WORDS[token_id] != PAD]


# --- images --------------------------------------------------------------------------------------------------------


def test_images_come_oldest_first_left_to_right_in_the_networks_size():
    inputs = model_inputs(camera_observation(), SPEC)
    assert inputs.images.shape == (6, 12, 24, 3)
    assert inputs.images.dtype == np.uint8
    assert inputs.images[:, 0, 0, 0].tolist() == [0, 10, 20, 30, 40, 50]
    assert inputs.notes == ()


def test_a_missing_instant_is_the_newest_again_and_noted():
    inputs = model_inputs(camera_observation(cameras=camera_images(1)), SPEC)
    assert inputs.images[:, 0, 0, 0].tolist() == [0, 10, 20, 0, 10, 20]
    assert inputs.notes == ("the older images are missing: the newest are used instead",)
    alone = model_inputs(camera_observation(cameras=camera_images(1)), dataclasses.replace(SPEC, instants=1))
    assert len(alone.images) == 3
    assert alone.notes == ()


@pytest.mark.parametrize("count", [0, 1, 2, 4, 5])
def test_another_number_of_images_is_refused(count):
    with pytest.raises(ValueError, match=f"Observation.cameras holds {count} images, expected 6"):
        model_inputs(camera_observation(cameras=camera_images()[:count]), SPEC)


def test_swapped_cameras_are_refused():
    left, front, right = camera_images(1)
    with pytest.raises(ValueError, match="front, front_left, front_right in one instant"):
        model_inputs(camera_observation(cameras=(front, left, right, left, front, right)), SPEC)
    with pytest.raises(ValueError, match="one camera twice"):
        model_inputs(camera_observation(cameras=(left, left, right)), SPEC)


@pytest.mark.parametrize("size", [(1, 1), (12, 24), (7, 300), (360, 640)])
def test_images_of_any_size_are_brought_to_the_networks(size):
    inputs = model_inputs(camera_observation(cameras=camera_images(size=size)), SPEC)
    assert inputs.images.shape == (6, 12, 24, 3)
    assert inputs.images[4].min() == inputs.images[4].max() == 40


def test_shrinking_averages_areas():
    fine = np.zeros((24, 48, 3), np.uint8)
    fine[::2] = 200  # lines of one pixel
    frames = tuple(dataclasses.replace(part, pixels=fine) for part in camera_images(1))
    np.testing.assert_array_equal(model_inputs(camera_observation(cameras=frames), SPEC).images, 100)


def test_a_image_is_brought_to_a_size_once_as_long_as_it_lives(monkeypatch):
    sizes, resize = [], features.cv2.resize
    monkeypatch.setattr(features.cv2, "resize", lambda *of, **how: sizes.append(of[1]) or resize(*of, **how))
    frames = camera_images()
    first = model_inputs(camera_observation(cameras=frames), SPEC)
    again = model_inputs(camera_observation(cameras=frames[3:] + camera_images(1)), SPEC)  # the older are the newest
    np.testing.assert_array_equal(again.images[:3], first.images[3:])
    assert sizes == [(24, 12)] * 9
    model_inputs(camera_observation(cameras=frames), dataclasses.replace(SPEC, width=30))
    assert sizes[9:] == [(30, 12)] * 6
    cached_count = len(features._SIZED)
    del frames
    gc.collect()
    assert len(features._SIZED) <= cached_count - 6


# --- words -----------------------------------------------------------------------------------------------------------


def test_command_limit_and_instruction_are_in_the_text():
    scene = camera_observation(command=Command.LEFT, speed_limit_mps=13.9, instruction="turn left in 40 m")
    inputs = model_inputs(scene, SPEC)
    assert words(inputs) == ["left", "limit", "50", "turn", "left", "in", "40", "m"]
    assert inputs.notes == ()
    silent = model_inputs(camera_observation(command=Command.RIGHT, speed_limit_mps=8.3), SPEC)
    assert words(silent) == ["right", "limit", "30"]


def test_every_sentence_of_the_proving_ground_is_in_the_vocabulary_and_fits():
    sentences = [
        *SENTENCES.values(),
        "follow the road",
        "take the roundabout",
        "take the roundabout, leave to the left",
    ]
    for text in sentences:
        for distance in ("", " in 10 m", " in 40 m"):
            inputs = model_inputs(camera_observation(instruction=text + distance), SPEC)
            assert inputs.notes == (), inputs.notes
            assert UNKNOWN not in words(inputs)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Turn LEFT, in 43 m!", ["turn", "left", "in", "40", "m"]),
        ("in 7.5 m", ["in", "10", "m"]),
        ("in 1000000 m", ["in", "200", "m"]),
        ("", []),
        ("biegen Sie links ab", [UNKNOWN] * 4),
        ("次の交差点を左折", [UNKNOWN]),
        ("٤٠", [UNKNOWN]),
    ],
)
def test_words_are_read_by_meaning_and_unknown_ones_are_noted(text, expected):
    inputs = model_inputs(camera_observation(instruction=text), SPEC)
    assert words(inputs)[3:] == expected
    assert bool(inputs.notes) == (UNKNOWN in expected)


def test_a_vocabulary_without_its_two_marks_is_refused():
    with pytest.raises(ValueError, match="<pad> and <unk>"):
        WordTokenizer(("go", "left"))
    with pytest.raises(ValueError, match="different words"):
        WordTokenizer((PAD, UNKNOWN, "go", "go"))


# --- ego -------------------------------------------------------------------------------------------------------------


def test_the_ego_state_is_scaled():
    scene = camera_observation()
    scene = dataclasses.replace(scene, ego=ego(8.0, acceleration_mps2=-1.5, yaw_rate_rps=0.1))
    inputs = model_inputs(scene, SPEC)
    np.testing.assert_allclose(inputs.ego, [0.8, -0.5, 0.2], rtol=1e-6)
    assert inputs.ego.dtype == np.float32


@pytest.mark.parametrize("name", ["speed_mps", "acceleration_mps2", "yaw_rate_rps"])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e300, -1e4])
def test_an_ego_state_that_cannot_be_is_refused_by_name(name, value):
    state = ego()
    object.__setattr__(state, name, value)  # what its own check would have refused, were it finite or not
    with pytest.raises(ValueError, match=re.escape(f"EgoState.{name} is {value:g}")):
        model_inputs(dataclasses.replace(camera_observation(), ego=state), SPEC)


# --- route -----------------------------------------------------------------------------------------------------------


def on_route(*points):
    route = np.column_stack([np.array(points, float), np.zeros(len(points))])
    return model_inputs(dataclasses.replace(camera_observation(), route=route), SPEC)


def test_a_route_is_points_along_it_from_the_nearest_one_on():
    """It begins behind the car, passes 1 m to its left and turns left after 8 m; 40 m on it has ended."""
    inputs = on_route((-20.0, 1.0), (8.0, 1.0), (8.0, 31.0))
    book, mask = SPEC.codebook, SPEC.codebook.mask_id
    expected = np.concatenate([book.to_ids(np.array([[5.0, 1.0], [8.0, 3.0]])), [[mask, mask]]])
    np.testing.assert_array_equal(inputs.route, expected)
    assert inputs.route.dtype == np.int64
    assert not inputs.notes


def test_without_a_route_its_points_are_masked():
    for points in ((), ((3.0, 0.0), (3.0, 0.0))):
        route = np.column_stack([np.array(points).reshape(-1, 2), np.zeros(len(points))])
        inputs = model_inputs(dataclasses.replace(camera_observation(), route=route), SPEC)
        np.testing.assert_array_equal(inputs.route, np.full((3, 2), SPEC.codebook.mask_id))


def test_a_route_elsewhere_is_not_driven_to():
    inputs = on_route((-20.0, 50.0), (100.0, 50.0))
    assert (inputs.route == SPEC.codebook.mask_id).all()
    assert inputs.notes == ()  # the engine stops the car before it asks a network
