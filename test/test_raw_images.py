"""Raw images of every encoding have the colours that the camera saw."""

from array import array

import numpy as np
import pytest
from messages import raw
from sensor_msgs.msg import Image

from reflectdrive_ros.core.messages import BadMessage
from reflectdrive_ros.ros import image_decoding
from reflectdrive_ros.ros.image_decoding import ENCODINGS

# one colour per quarter of the image; red and blue differ everywhere, so that a swapped mosaic shows
COLOURS = np.array([[[200, 40, 20], [30, 180, 90]], [[25, 60, 210], [240, 220, 35]]], np.uint8)
HEIGHT, WIDTH = 24, 32
SCENE = COLOURS.repeat(HEIGHT // 2, axis=0).repeat(WIDTH // 2, axis=1)
INSIDE = [(slice(y + 3, y + 9), slice(x + 3, x + 13)) for y in (0, 12) for x in (0, 16)]  # away from the borders


def message(encoding, data, step=None, big_endian=False, height=HEIGHT, width=WIDTH):
    image = Image(encoding=encoding, height=height, width=width, is_bigendian=int(big_endian))
    image.step = step or len(data.tobytes()) // height
    image.data = array("B", data.tobytes())
    return image


def mosaic(pattern):
    """(H, W) what a sensor measures behind colour filters in 2 x 2 cells, named by rows: rggb is R G / G B."""
    values = np.zeros((HEIGHT, WIDTH), np.uint8)
    for position, colour in enumerate(pattern):
        y, x = divmod(position, 2)
        values[y::2, x::2] = SCENE[y::2, x::2, "rgb".index(colour)]
    return values


def yuv():
    """(H, W, 3) Y, U, V of BT.601, limited range, from its definition."""
    red, green, blue = (SCENE[..., channel].astype(float) / 255 for channel in range(3))
    luma = 0.299 * red + 0.587 * green + 0.114 * blue
    channels = [16 + 219 * luma, 128 + 224 * (blue - luma) / 1.772, 128 + 224 * (red - luma) / 1.402]
    return np.round(np.stack(channels, axis=-1)).astype(np.uint8)


def packed(order):
    """(H, W, 2) 4:2:2 with two pixels in four bytes, such as yuyv."""
    y, u, v = np.moveaxis(yuv(), -1, 0)
    left_y, right_y = y[:, ::2], y[:, 1::2]
    values = {"yuyv": (left_y, u[:, ::2], right_y, v[:, ::2]), "uyvy": (u[:, ::2], left_y, v[:, ::2], right_y)}[order]
    return np.stack(values, axis=-1).reshape(HEIGHT, WIDTH, 2)


def semi_planar(order):
    """(H * 3/2, W) 4:2:0 with interleaved colour, such as nv12 (uv)."""
    planes = dict(zip("yuv", np.moveaxis(yuv(), -1, 0), strict=True))
    colour = np.stack([planes[name][::2, ::2] for name in order], axis=-1).reshape(HEIGHT // 2, WIDTH)
    return np.concatenate([planes["y"], colour])


def assert_scene(pixels, tolerance):
    assert (pixels.shape, pixels.dtype) == ((HEIGHT, WIDTH, 3), np.uint8)
    for region in INSIDE:
        np.testing.assert_allclose(pixels[region].astype(int), SCENE[region].astype(int), atol=tolerance)


OPAQUE = np.full((HEIGHT, WIDTH, 1), 255, np.uint8)


@pytest.mark.parametrize(
    ("encoding", "stored"),
    [
        ("rgb8", SCENE),
        ("bgr8", SCENE[..., ::-1]),
        ("8UC3", SCENE[..., ::-1]),
        ("rgba8", np.dstack([SCENE, OPAQUE])),
        ("bgra8", np.dstack([SCENE[..., ::-1], OPAQUE])),
    ],
)
def test_every_order_of_channels_gives_the_same_image(encoding, stored):
    np.testing.assert_array_equal(image_decoding.raw_pixels(message(encoding, stored), "front"), SCENE)


@pytest.mark.parametrize("pattern", ["rggb", "bggr", "gbrg", "grbg"])
def test_a_bayer_mosaic_shows_the_colours_behind_its_filters(pattern):
    assert_scene(image_decoding.raw_pixels(message(f"bayer_{pattern}8", mosaic(pattern)), "front"), 0)
    for big_endian, kind in ((False, "<u2"), (True, ">u2")):
        wide = (mosaic(pattern).astype(np.uint16) << 8 | 0x5A).astype(kind)
        assert_scene(image_decoding.raw_pixels(message(f"bayer_{pattern}16", wide, big_endian=big_endian), "front"), 0)


@pytest.mark.parametrize(
    ("encoding", "big_endian", "kind"), [("mono8", False, "u1"), ("mono16", False, "<u2"), ("mono16", True, ">u2")]
)
def test_grey_has_three_channels_at_full_range_in_either_byte_order(encoding, big_endian, kind):
    grey = np.linspace(0, 65535, HEIGHT * WIDTH).reshape(HEIGHT, WIDTH)
    sent = np.round(grey / 257 if encoding == "mono8" else grey).astype(kind)
    pixels = image_decoding.raw_pixels(message(encoding, sent, big_endian=big_endian), "front")
    assert (pixels[0, 0, 0], pixels[-1, -1, 0]) == (0, 255)
    np.testing.assert_allclose(pixels, np.repeat(grey[..., None] / 257, 3, axis=2), atol=1)


@pytest.mark.parametrize(
    ("encoding", "order"), [("yuyv", "yuyv"), ("yuv422_yuy2", "yuyv"), ("uyvy", "uyvy"), ("yuv422", "uyvy")]
)
def test_packed_yuv_has_its_colours(encoding, order):
    assert_scene(image_decoding.raw_pixels(message(encoding, packed(order)), "front"), 3)


@pytest.mark.parametrize(("encoding", "order"), [("nv12", "uv"), ("nv21", "vu")])
@pytest.mark.parametrize("step", [WIDTH, WIDTH * 3 // 2])  # of a row of Y, or with its colour counted in
def test_semi_planar_yuv_has_its_colours(encoding, order, step):
    assert_scene(image_decoding.raw_pixels(message(encoding, semi_planar(order), step=step), "front"), 3)


def test_rows_may_be_padded_in_every_plane():
    padded = np.pad(semi_planar("uv"), ((0, 0), (0, 6)), constant_values=77)
    assert_scene(image_decoding.raw_pixels(message("nv12", padded, step=WIDTH + 6), "front"), 3)
    wide = np.pad(mosaic("grbg").astype("<u2") << 8, ((0, 0), (0, 4)), constant_values=77)
    assert_scene(image_decoding.raw_pixels(message("bayer_grbg16", wide, step=2 * (WIDTH + 4)), "front"), 0)


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_missing_bytes_are_refused_in_every_encoding(encoding):
    layout = ENCODINGS[encoding]
    size = WIDTH * layout.pixel_bytes * (HEIGHT * 3 // 2 if layout.semi_planar else HEIGHT)
    whole = message(encoding, np.zeros(size, np.uint8), step=WIDTH * layout.pixel_bytes)
    assert image_decoding.raw_pixels(whole, "front").shape == (HEIGHT, WIDTH, 3)
    whole.data = whole.data[:-1]
    with pytest.raises(BadMessage, match=f"camera front: {size - 1} bytes are not {WIDTH}x{HEIGHT} {encoding}"):
        image_decoding.raw_pixels(whole, "front")


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("size", [(1, 1), (1, 2), (2, 1), (2, 2), (3, 3)])
def test_tiny_images_are_read_or_refused_in_a_sentence(encoding, size):
    height, width = size
    layout = ENCODINGS[encoding]
    image = message(encoding, np.full(64, 9, np.uint8), step=width * layout.pixel_bytes, height=height, width=width)
    if (layout.pairs and width % 2) or (layout.semi_planar and height % 2):
        with pytest.raises(BadMessage, match="in pairs, but"):
            image_decoding.raw_pixels(image, "front")
    else:
        assert image_decoding.raw_pixels(image, "front").shape == (height, width, 3)


def test_an_odd_height_of_semi_planar_is_refused():
    with pytest.raises(BadMessage, match="holds rows in pairs, but the image is 23 px high"):
        image_decoding.raw_pixels(message("nv12", semi_planar("uv"), step=WIDTH, height=23), "front")


def test_an_encoding_without_colour_is_named_with_those_there_are():
    with pytest.raises(BadMessage, match=r"encoding '32FC1' is unknown, expected one of rgb8, .*bayer_rggb8.*nv12"):
        image_decoding.raw_pixels(raw(1.0, encoding="32FC1"), "front")
