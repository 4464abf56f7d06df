"""A scene as a WebDataset sample and back: `meta.json`, `arrays.npz` and one image per camera and instant.

Images are JPEG; a scene that is stored losslessly has PNG images and a route in float64, so that a network's inputs are
those of the scene to the last bit. Readers accept both.

Geometry is quantised to 2^-14 m (and rad, and m/s), about 0.06 mm: the precision of float32 at half a kilometre. On
that grid tracks of cars are almost straight in time and rings almost straight in space, so their second differences are
small numbers, which compress well. A scene that is read and written again gives the same bytes.
"""

from __future__ import annotations

import io
import json
import re
import zipfile
from collections.abc import Mapping, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import cv2
import numpy as np
import shapely

from ..core.domain import Array, CameraFrame, Command, EgoState
from ..infra.documents import (
    DocumentError,
    anything,
    array,
    check_fields,
    choice,
    fixed,
    named,
    number,
    parse_arrays,
    parse_json,
    text,
    whole,
)
from ..infra.errors import UserError
from ..infra.files import shown
from ..scoring.areas import MapAreas, RedLights, polygons_of
from ..scoring.scorer import Reference
from ..scoring.simulate import STEPS
from .scene import FAMILIES, TRACK_STEPS, DrivingScene, Tracks

FORMAT = 1
META, ARRAYS = "meta.json", "arrays.npz"
GRID = 2.0**-14
MAX_ABS = 2.0**31 * GRID  # 131 km
NAME = re.compile(r"[A-Za-z0-9_-]+")  # WebDataset cuts a file's name at its first dot
AREAS = ("lanes", "roadblocks", "intersections", "carparks")
CONNECTORS = "connectors"  # of the red lights
EGO_NUMBERS = ("speed_mps", "acceleration_mps2", "yaw_rate_rps", "steering_rad")
PNG = (cv2.IMWRITE_PNG_COMPRESSION, 1)  # 4 takes 1.4 times as long and saves 4 %
IMAGE_SUFFIXES = (".jpg", ".png")
COUNT = whole(0, 100_000)
FIELDS = {  # of META
    "name": text(NAME.pattern, 100),
    "family": choice(*FAMILIES),
    "network": text(),
    "network_hash": text(),
    "seed": whole(0, 2**64),
    "instruction": text(),
    "speed_limit_mps": number(0.0, 1000.0),
    "ego": {
        "stamp_ns": whole(0, 2**63 - 1),
        "map_from_ego": array(number(), 3, 3),
        **dict.fromkeys(EGO_NUMBERS, number()),
    },
    "command": choice(*Command.__members__),
    "reference": fixed(number(0.0), number(0.0, 1.0)),
    "rings": dict.fromkeys((*AREAS, CONNECTORS), COUNT),
    "pictures": array(fixed(text(NAME.pattern, 100), whole(0, 2**63 - 1), text()), 0, 1000),
    "notes": named(anything),
}
TEXTS = ("name", "family", "network", "network_hash", "seed", "instruction", "speed_limit_mps")


_ENCODED: WeakKeyDictionary[CameraFrame, dict[str, bytes]] = WeakKeyDictionary()


class OpenCvTooOld(UserError, RuntimeError):
    """Images of scenes cannot be written with this OpenCV; reading is not affected."""


class CodecError(ValueError):
    """A scene cannot be stored, or stored data is not a scene; the message gives the reason."""


def sample_of(scene: DrivingScene, *, lossless: bool = False) -> dict[str, Any]:
    """The files of a scene by their names, and `__key__`, as WebDataset writes them. Raises CodecError.

    `lossless`: images as PNG, several times as large as JPEG, and the route in float64.
    """
    for name in (scene.name, *(frame.name for frame in scene.cameras)):
        if not NAME.fullmatch(name):
            raise CodecError(f"'{name}' is no name for a file of a shard: letters, digits, _ and - only")
    suffix = ".png" if lossless else ".jpg"
    images = {_image_file_name(scene, frame) + suffix: frame for frame in scene.cameras}
    if len(images) != len(scene.cameras):
        raise CodecError(f"scene {scene.name} has two images of one camera at one instant")
    rings, counts = _rings_of(scene)
    meta = {
        "format": FORMAT,
        **{name: getattr(scene, name) for name in TEXTS},
        "ego": {
            "stamp_ns": int(scene.ego.stamp_ns),
            "map_from_ego": scene.ego.map_from_ego.tolist(),
            **{name: getattr(scene.ego, name) for name in EGO_NUMBERS},
        },
        "command": scene.command.name,
        "reference": [scene.reference.progress_m, scene.reference.multiplier],
        "rings": counts,
        "pictures": [[frame.name, int(frame.stamp_ns), file] for file, frame in images.items()],
        "notes": dict(scene.notes),
    }
    try:
        text = json.dumps(meta, sort_keys=True, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError) as fault:
        raise CodecError(f"scene {scene.name} holds values that JSON cannot represent: {fault}") from None
    tracks = scene.tracks
    moving = np.concatenate([tracks.poses, tracks.speeds_mps[..., None]], axis=2)  # (A, 71, 4)
    arrays = {
        "tracks": _pack(np.moveaxis(moving, 1, 2), differences=2),
        "present": np.packbits(tracks.present, axis=1),
        "sizes": tracks.sizes.astype(np.float32),
        "kinds": tracks.kinds.astype(np.uint8),
        "ego_history": _pack(scene.ego_history.T, differences=2),
        "route": scene.route if lossless else _pack(scene.route.T, differences=2),
        "expert": _pack(scene.expert.T, differences=1),
        "ring_points": _pack(np.concatenate([np.zeros((0, 2)), *rings]).T, differences=2),
        "ring_lengths": np.array([len(ring) for ring in rings], np.uint16),
        "lane_on_route": np.packbits(np.array(scene.areas.lane_on_route, bool)),
        "red": np.packbits(scene.red_lights.red, axis=1),
        "pixels_from_camera": np.array([frame.pixels_from_camera for frame in scene.cameras]),
        "camera_from_ego": np.array([frame.camera_from_ego for frame in scene.cameras]),
    }
    files = {file: _image_bytes(suffix, frame) for file, frame in images.items()}
    return {"__key__": scene.name, META: text.encode(), ARRAYS: _npz(arrays), **files}


def meta_of(sample: Mapping[str, Any]) -> dict[str, Any]:
    """The `meta.json` of a sample, including `family`. Raises CodecError."""
    key = shown(sample.get("__key__", "a sample"))
    if META not in sample:
        raise CodecError(f"{key} has no {META}")
    try:
        meta = parse_json(sample[META])
        if not isinstance(meta, dict) or meta.get("format") != FORMAT:
            raise CodecError(f"{key} is not a scene of format {FORMAT}: make the set again")
        check_fields(meta, FIELDS)
    except DocumentError as fault:
        raise CodecError(f"{META} of {key} {fault}") from None
    return meta


def scene_of(sample: Mapping[str, Any], *, images: bool = True) -> DrivingScene:
    """The scene of a sample; without its images in a few milliseconds. Raises CodecError."""
    meta = meta_of(sample)
    if ARRAYS not in sample:
        raise CodecError(f"scene {meta['name']} has no {ARRAYS}")
    try:
        return _scene_of(meta, parse_arrays(sample[ARRAYS]), sample if images else None)
    except KeyError as fault:
        raise CodecError(f"scene {meta['name']} has no {fault}") from None
    except (ArithmeticError, LookupError, TypeError, ValueError, MemoryError, cv2.error) as fault:
        raise CodecError(f"scene {meta['name']} cannot be read: {' '.join(str(fault).split())[:300]}") from None


def _scene_of(meta: Mapping[str, Any], arrays: Mapping[str, Array], files: Mapping[str, Any] | None) -> DrivingScene:
    moving = np.moveaxis(_unpack(arrays["tracks"], (len(arrays["kinds"]), 4, TRACK_STEPS), differences=2), 1, 2)
    points = _unpack(arrays["ring_points"], (2, -1), differences=2).T
    rings = np.split(points, np.cumsum(arrays["ring_lengths"][:-1], dtype=int)) if len(points) else []
    groups = {name: [rings.pop(0) for _ in range(meta["rings"][name])] for name in (*AREAS, CONNECTORS)}
    lanes, roadblocks, intersections, carparks = (tuple(groups[name]) for name in AREAS)
    on_route = np.unpackbits(arrays["lane_on_route"], count=len(lanes))
    return DrivingScene(
        **{name: meta[name] for name in TEXTS},
        ego=EgoState(**meta["ego"]),
        ego_history=_unpack(arrays["ego_history"], (3, -1), differences=2).T,
        command=Command[meta["command"]],
        route=_route_of(arrays["route"]),
        areas=MapAreas(
            lanes, tuple(map(bool, on_route)), roadblocks=roadblocks, intersections=intersections, carparks=carparks
        ),
        red_lights=RedLights(
            tuple(groups[CONNECTORS]), np.unpackbits(arrays["red"], axis=1, count=STEPS + 1).astype(bool)
        ),
        tracks=Tracks(
            poses=moving[..., :3],
            speeds_mps=moving[..., 3],
            present=np.unpackbits(arrays["present"], axis=1, count=TRACK_STEPS).astype(bool),
            sizes=arrays["sizes"].astype(float),
            kinds=arrays["kinds"].astype(np.int64),
        ),
        expert=_unpack(arrays["expert"], (3, -1), differences=1).T,
        reference=Reference(*meta["reference"]),
        cameras=() if files is None else _frames(meta["pictures"], arrays, files),
        notes=meta["notes"],
    )


# --- rings -----------------------------------------------------------------------------------------------------------


def _rings_of(scene: DrivingScene) -> tuple[list[Array], dict[str, int]]:
    """All rings of a scene, ready to be stored, and how many there are of each kind."""
    groups: dict[str, Sequence[Array]] = {name: getattr(scene.areas, name) for name in AREAS}
    groups[CONNECTORS] = scene.red_lights.connectors
    named = [(name, ring) for name, group in groups.items() for ring in group]
    rings = [np.rint(ring / GRID) * GRID for _, ring in named]
    for index in np.flatnonzero(~shapely.is_valid(polygons_of(rings))).tolist():
        rings[index] = _make_simple(scene, *named[index])
    return rings, {name: len(group) for name, group in groups.items()}


def _make_simple(scene: DrivingScene, name: str, ring: Array) -> Array:
    """The ring as a simple polygon with its corners on the grid, where it folds over itself when they are rounded."""
    parts = shapely.get_parts(shapely.make_valid(shapely.set_precision(shapely.Polygon(ring), GRID)))
    largest = max(parts, key=lambda part: float(part.area), default=shapely.Polygon())
    kept = np.rint(shapely.get_coordinates(shapely.get_exterior_ring(largest))[:-1] / GRID) * GRID
    if len(kept) < 3 or not shapely.Polygon(kept).is_valid:
        raise CodecError(f"scene {scene.name}: a polygon of {name} is thinner than {1e3 * GRID:.2f} mm")
    return np.asarray(kept)


# --- arrays ----------------------------------------------------------------------------------------------------------


def _pack(values: Array, *, differences: int) -> Array:
    """(4, N) uint8: values on the grid, their differences of the given order along the last axis, split into bytes.

    Arithmetic is modulo 2^32, so that it is exact. The sign is the lowest bit: high bytes of small numbers are 0.
    """
    if values.size and np.abs(values).max() >= MAX_ABS:
        raise CodecError(f"a number of {np.abs(values).max():.3g} is beyond what a scene stores, {MAX_ABS:.0f}")
    steps = np.rint(values / GRID).astype(np.int64)
    for _ in range(differences):
        steps = np.diff(steps, axis=-1, prepend=0)
    signed = steps.astype(np.int32).ravel()
    zigzag = ((signed.view(np.uint32) << np.uint32(1)) ^ (signed >> 31).view(np.uint32)).astype("<u4")
    return np.ascontiguousarray(zigzag.view(np.uint8).reshape(-1, 4).T)


def _unpack(planes: Array, shape: tuple[int, ...], *, differences: int) -> Array:
    """Inverse of `_pack`: values of the given shape."""
    zigzag = np.ascontiguousarray(planes.T).view("<u4").ravel()
    signed = (zigzag >> np.uint32(1)).view(np.int32) ^ -(zigzag & np.uint32(1)).view(np.int32)
    steps = signed.astype(np.int64).reshape(shape)
    for _ in range(differences):
        steps = np.cumsum(steps, axis=-1)
    return np.asarray(steps.astype(np.int32) * GRID)


def _route_of(stored: Array) -> Array:
    """(L, 3): as it is from a lossless scene, else unpacked."""
    return stored if stored.dtype == np.float64 else _unpack(stored, (3, -1), differences=2).T


def _npz(arrays: Mapping[str, Array]) -> bytes:
    """As `np.savez_compressed`, but without the time of day: the same arrays give the same bytes."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, array in arrays.items():
            content = io.BytesIO()
            np.lib.format.write_array(content, array, allow_pickle=False)
            entry = zipfile.ZipInfo(f"{name}.npy")
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, content.getvalue())
    return buffer.getvalue()


# --- images --------------------------------------------------------------------------------------------------------


def _image_file_name(scene: DrivingScene, frame: CameraFrame) -> str:
    tenths = round((frame.stamp_ns - scene.ego.stamp_ns) / 1e8)
    return f"{frame.name.lower()}_{tenths / 10:.1f}"  # WebDataset requires lower case


def _jpeg_options() -> tuple[int, ...]:
    if not hasattr(cv2, "IMWRITE_JPEG_SAMPLING_FACTOR"):  # in Ubuntu 22.04 and 24.04; it would be ignored silently
        raise OpenCvTooOld(
            f"OpenCV {cv2.__version__} writes JPEG with halved colour resolution only: "
            "pip install 'opencv-python-headless>=4.8'"
        )
    return (
        *(cv2.IMWRITE_JPEG_QUALITY, 90),
        *(cv2.IMWRITE_JPEG_SAMPLING_FACTOR, cv2.IMWRITE_JPEG_SAMPLING_FACTOR_444),  # a far red lamp is two pixels wide
        *(cv2.IMWRITE_JPEG_OPTIMIZE, 1),
    )


def _image_bytes(suffix: str, frame: CameraFrame) -> bytes:
    """The file of an image, cached as long as the frame exists: it is the older image of a later scene."""
    known = _ENCODED.setdefault(frame, {})
    if suffix not in known:
        known[suffix] = _encode_image(suffix, frame.pixels)
    return known[suffix]


def _encode_image(suffix: str, pixels: Array) -> bytes:
    options = PNG if suffix == ".png" else _jpeg_options()
    done, encoded = cv2.imencode(suffix, cv2.cvtColor(pixels, cv2.COLOR_RGB2BGR), options)
    if not done:
        raise CodecError(f"OpenCV could not write an image of {pixels.shape} as {suffix}")
    return bytes(encoded)


def _frames(
    images: Sequence[tuple[str, int, str]], arrays: Mapping[str, Array], files: Mapping[str, Any]
) -> tuple[CameraFrame, ...]:
    frames = []
    for index, (name, stamp_ns, file) in enumerate(images):
        pixels = cv2.imdecode(np.frombuffer(files[file], np.uint8), cv2.IMREAD_COLOR)
        if pixels is None:
            raise CodecError(f"{file} is no image")
        frames.append(
            CameraFrame(
                stamp_ns,
                name,
                cv2.cvtColor(pixels, cv2.COLOR_BGR2RGB),
                arrays["pixels_from_camera"][index],
                arrays["camera_from_ego"][index],
            )
        )
    return tuple(frames)
