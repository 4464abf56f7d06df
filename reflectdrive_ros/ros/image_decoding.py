"""Camera messages to RGB arrays at the size that the planner takes, with checks before anything is decoded.

Sources: sensor_msgs/Image in the encodings of ENCODINGS, the names of sensor_msgs/image_encodings, and
sensor_msgs/CompressedImage as JPEG or PNG. OpenCV decodes them: simplejpeg gives the same pixels and at a quarter of
720p or 1080p takes 98 % of the time.

Values of 16 bits are taken at full range: 65535 is white, and the upper byte is kept. YUV is BT.601 with limited range
(black is Y = 16), as UVC cameras and V4L2 deliver it.
"""

from __future__ import annotations

import re
from itertools import islice
from typing import Any, NamedTuple

import cv2
import numpy as np

from ..core.domain import Array
from ..core.messages import BadMessage

AS_RGB = getattr(cv2, "IMREAD_COLOR_RGB", 0)  # newer than Ubuntu 24.04's OpenCV
REDUCED = {2: cv2.IMREAD_REDUCED_COLOR_2, 4: cv2.IMREAD_REDUCED_COLOR_4, 8: cv2.IMREAD_REDUCED_COLOR_8}
OVERSAMPLING_MIN = 1.5  # source pixels per target pixel, along each axis, of an image that is decoded at reduced size
SIZE_MARKERS = {*range(0xC0, 0xD0)} - {0xC4, 0xC8, 0xCC}  # segments of a JPEG that hold its size
BARE_MARKERS = {0x01, *range(0xD0, 0xDA)}  # those without a length
MEGAPIXELS_MAX = 16.0  # of an image, by its header, before decoding: 4K has 8.3
SEGMENTS_MAX = 256  # of a JPEG, before its size; thumbnails and colour profiles are a few
SCAN_MARKER = re.compile(b"\xff\xda")  # begins with it; within a scan no FF stands before a DA
SCANS_MAX = 32  # of a JPEG: each is a pass over the whole image; progressive ones have about 10


class Encoding(NamedTuple):
    """How the bytes of an image become RGB."""

    pixel_bytes: int
    conversion: int | None  # of OpenCV, on 8-bit channels; None: the bytes are RGB already
    bits: int = 8
    pairs: bool = False  # pixels share their colour in pairs along a row: the width must be even
    semi_planar: bool = False  # H rows of Y, then H/2 rows of interleaved colour (4:2:0); the height must be even too


# ROS names a Bayer mosaic by the first four pixels (rows 0 and 1); OpenCV by pixels 1 and 2 of row 1, so that
# rggb (R G / G B) is OpenCV's "BG"
BAYER = {
    "rggb": cv2.COLOR_BayerBG2RGB,
    "bggr": cv2.COLOR_BayerRG2RGB,
    "gbrg": cv2.COLOR_BayerGR2RGB,
    "grbg": cv2.COLOR_BayerGB2RGB,
}
ENCODINGS = {
    "rgb8": Encoding(3, None),
    "bgr8": Encoding(3, cv2.COLOR_BGR2RGB),
    "rgba8": Encoding(4, cv2.COLOR_RGBA2RGB),
    "bgra8": Encoding(4, cv2.COLOR_BGRA2RGB),
    "8UC3": Encoding(3, cv2.COLOR_BGR2RGB),
    "mono8": Encoding(1, cv2.COLOR_GRAY2RGB),
    "mono16": Encoding(2, cv2.COLOR_GRAY2RGB, bits=16),
    **{f"bayer_{name}8": Encoding(1, conversion) for name, conversion in BAYER.items()},
    **{f"bayer_{name}16": Encoding(2, conversion, bits=16) for name, conversion in BAYER.items()},
    "yuyv": Encoding(2, cv2.COLOR_YUV2RGB_YUY2, pairs=True),
    "yuv422_yuy2": Encoding(2, cv2.COLOR_YUV2RGB_YUY2, pairs=True),  # the name of yuyv before ROS 2 Iron
    "uyvy": Encoding(2, cv2.COLOR_YUV2RGB_UYVY, pairs=True),
    "yuv422": Encoding(2, cv2.COLOR_YUV2RGB_UYVY, pairs=True),  # likewise of uyvy
    "nv12": Encoding(1, cv2.COLOR_YUV2RGB_NV12, pairs=True, semi_planar=True),
    "nv21": Encoding(1, cv2.COLOR_YUV2RGB_NV21, pairs=True, semi_planar=True),
}


def raw_pixels(message: Any, name: str) -> Array:
    """(H, W, 3) uint8 RGB of a sensor_msgs/Image. Raises BadMessage for one that cannot be read."""
    if message.encoding not in ENCODINGS:
        raise BadMessage(
            f"camera {name}: encoding '{message.encoding}' is unknown, expected one of {', '.join(ENCODINGS)}"
        )
    encoding = ENCODINGS[message.encoding]
    height, width, step = int(message.height), int(message.width), int(message.step)
    if encoding.pairs and width % 2:
        raise BadMessage(f"camera {name}: {message.encoding} holds pixels in pairs, but the image is {width} px wide")
    if encoding.semi_planar and height % 2:
        raise BadMessage(f"camera {name}: {message.encoding} holds rows in pairs, but the image is {height} px high")
    rows = height * 3 // 2 if encoding.semi_planar else height
    if encoding.semi_planar and step * 2 == width * 3:
        step = width  # some senders count the colour in, so that step times height is the size of the data
    data = np.frombuffer(message.data, np.uint8)
    row_bytes = width * encoding.pixel_bytes
    if height == 0 or width == 0 or step < row_bytes or len(data) < rows * step:
        raise BadMessage(
            f"camera {name}: {len(data)} bytes are not {width}x{height} {message.encoding} with rows of {step} bytes"
        )
    values = data[: rows * step].reshape(rows, step)[:, :row_bytes].reshape(rows, width, encoding.pixel_bytes)
    if encoding.bits == 16:
        values = values[..., 0 if message.is_bigendian else 1]
    if encoding.conversion is None:
        return values
    return np.asarray(cv2.cvtColor(np.ascontiguousarray(values), encoding.conversion))


def jpeg_pixels(message: Any, name: str, reduction: int = 1) -> Array:
    """(H, W, 3) uint8 RGB of a sensor_msgs/CompressedImage (JPEG or PNG), or of a JPEG's 2, 4, 8 times reduced one."""
    data = np.frombuffer(message.data, np.uint8)
    if AS_RGB:  # the reduced grey's flag and the colour's together
        flags = AS_RGB | (REDUCED[reduction] & ~cv2.IMREAD_COLOR if reduction > 1 else 0)
    else:
        flags = REDUCED[reduction] if reduction > 1 else cv2.IMREAD_COLOR
    decoded = cv2.imdecode(data, flags) if len(data) else None
    if decoded is None:
        raise BadMessage(f"camera {name}: {len(data)} bytes of format '{message.format}' are not an image")
    return np.asarray(decoded if AS_RGB else cv2.cvtColor(decoded, cv2.COLOR_BGR2RGB))


def jpeg_size(data: bytes | memoryview) -> tuple[int, int] | None:
    """Width and height from a JPEG's header; None if it has none."""
    at = 2
    for _ in range(SEGMENTS_MAX):
        if data[:2] != b"\xff\xd8" or at + 9 > len(data) or data[at] != 0xFF:
            return None
        marker = data[at + 1]
        if marker in SIZE_MARKERS:
            return int.from_bytes(data[at + 7 : at + 9], "big"), int.from_bytes(data[at + 5 : at + 7], "big")
        if marker == 0xFF:  # a byte that fills
            at += 1
        else:
            at += 2 if marker in BARE_MARKERS else 2 + int.from_bytes(data[at + 2 : at + 4], "big")
    return None


def png_size(data: bytes | memoryview) -> tuple[int, int] | None:
    """Width and height from a PNG's first chunk; None if it is not a PNG."""
    if data[:8] != b"\x89PNG\r\n\x1a\n" or data[12:16] != b"IHDR" or len(data) < 24:
        return None
    return int.from_bytes(data[16:20], "big"), int.from_bytes(data[20:24], "big")


def image_size(message: Any, name: str) -> tuple[int, int]:
    """Width and height in px from the header of an Image or CompressedImage, without decoding.

    Raises BadMessage for a compressed image that is neither JPEG nor PNG: OpenCV decodes more formats, but their
    headers are not checked here.
    """
    if hasattr(message, "encoding"):
        return int(message.width), int(message.height)
    data = memoryview(message.data)  # may be large: no copy is made
    size = jpeg_size(data) or png_size(data)
    if size is None:
        raise BadMessage(f"camera {name}: {len(data)} bytes of format '{message.format}' are no JPEG and no PNG")
    if data[0] == 0xFF and next(islice(SCAN_MARKER.finditer(data), SCANS_MAX, None), None):
        raise BadMessage(f"camera {name}: a JPEG of more than {SCANS_MAX} scans is not decoded")
    return size


def check_image_size(message: Any, name: str) -> None:
    """Raises BadMessage for an image with more pixels than the limit, or without a header that gives its size."""
    width, height = image_size(message, name)
    if width * height > 1e6 * MEGAPIXELS_MAX:
        raise BadMessage(
            f"camera {name}: an image of {width} x {height} px is not decoded, at most {MEGAPIXELS_MAX:g} megapixels "
            "are: send smaller images"
        )


def pixels(message: Any, name: str, width: int, height: int) -> tuple[Array, tuple[float, float]]:
    """(height, width, 3) uint8 RGB of an Image or CompressedImage, and how much x and y were scaled to get there.

    Areas are averaged. Of an image that is much larger most are averaged where that costs least: in a JPEG's own
    cosines, or two by two.
    """
    reduction = 1
    if hasattr(message, "encoding"):
        full = raw_pixels(message, name)
    else:
        size = image_size(message, name)
        if message.data[0] == 0xFF:  # a JPEG
            spare = min(size[0] / width, size[1] / height) / OVERSAMPLING_MIN
            reduction = max((each for each in REDUCED if each <= spare), default=1)
        full = jpeg_pixels(message, name, reduction)
    whole_width, whole_height = reduction * full.shape[1], reduction * full.shape[0]
    while _halves(full.shape[1], width) and _halves(full.shape[0], height):
        full = cv2.resize(full, (full.shape[1] // 2, full.shape[0] // 2), interpolation=cv2.INTER_AREA)
    if full.shape[:2] != (height, width):
        full = cv2.resize(full, (width, height), interpolation=cv2.INTER_AREA)
    full = np.asarray(full)
    full.flags.writeable = False  # so that a CameraFrame keeps no copy
    return full, (width / whole_width, height / whole_height)


def _halves(size: int, target: int) -> bool:
    return size % 2 == 0 and size >= 2 * OVERSAMPLING_MIN * target


def digest(message: Any) -> int:
    """A number that differs between two images of a living camera; a sample of the bytes of large ones."""
    data = np.frombuffer(message.data, np.uint8)
    return hash(data[:: max(1, len(data) // 8192)].tobytes())
