"""Raw camera images (sensor_msgs/Image) as RGB, under the names of sensor_msgs/image_encodings.

Values of 16 bits are taken at full range: 65535 is white, and the upper byte is kept. YUV is BT.601 with limited range
(black is Y = 16), as UVC cameras and V4L2 deliver it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import cv2
import numpy as np

from ..core.domain import Array


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


def rgb(message: Any) -> Array:
    """(H, W, 3) uint8 RGB of a sensor_msgs/Image. Raises ValueError, one sentence, for one that cannot be read."""
    if message.encoding not in ENCODINGS:
        raise ValueError(f"encoding '{message.encoding}' is unknown, expected one of {', '.join(ENCODINGS)}")
    encoding = ENCODINGS[message.encoding]
    height, width, step = int(message.height), int(message.width), int(message.step)
    if encoding.pairs and width % 2:
        raise ValueError(f"{message.encoding} holds pixels in pairs, but the image is {width} px wide")
    if encoding.semi_planar and height % 2:
        raise ValueError(f"{message.encoding} holds rows in pairs, but the image is {height} px high")
    rows = height * 3 // 2 if encoding.semi_planar else height
    if encoding.semi_planar and step * 2 == width * 3:
        step = width  # some senders count the colour in, so that step times height is the size of the data
    data = np.frombuffer(message.data, np.uint8)
    row_bytes = width * encoding.pixel_bytes
    if height == 0 or width == 0 or step < row_bytes or len(data) < rows * step:
        raise ValueError(f"{len(data)} bytes are not {width}x{height} {message.encoding} with rows of {step} bytes")
    values = data[: rows * step].reshape(rows, step)[:, :row_bytes].reshape(rows, width, encoding.pixel_bytes)
    if encoding.bits == 16:
        values = values[..., 0 if message.is_bigendian else 1]
    if encoding.conversion is None:
        return values
    return np.asarray(cv2.cvtColor(np.ascontiguousarray(values), encoding.conversion))
