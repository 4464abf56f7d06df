"""Converts an Observation to the network's inputs; training and driving use the same code.

    spec = InputSpec(width=288, height=144, text_length=16, tokenizer=WordTokenizer(WORDS))
    inputs = model_inputs(observation, spec)      # .images (6, H, W, 3), .text (T,), .ego (3,), .route (R, 2), .notes

The vocabulary is a small one of navigation instructions. Inputs that had to be changed (a missing instant, a sentence
that is too long, unknown words) are listed in `notes`, one sentence each. Unusable inputs raise a ValueError that names
the field.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

import cv2
import numpy as np

from ..core import geometry
from ..core.domain import Array, CameraFrame, Command, EgoState, Observation
from ..core.tokens import Codebook
from ..core.vector_spec import VectorSpec
from .cameras import Camera
from .vectors import VectorInputs, vector_inputs

PAIR_INTERVAL_S, PAIR_TOLERANCE_S = 0.5, 0.12  # age of the older camera instant: networks are trained on such pairs
MAX_CHARACTERS = 300  # of an instruction; longer texts are cut
EGO_REACH = 20.0  # times its scale; an ego value beyond is a fault of odometry
OFF_ROUTE_M = 30.0  # a route of training further away is not used; the engine stops the car long before
LONGEST_NUMBER = 200
PAD, UNKNOWN = "<pad>", "<unk>"
COMMANDS = {Command.FOLLOW: "follow", Command.LEFT: "left", Command.STRAIGHT: "straight", Command.RIGHT: "right"}
WORDS = (
    *(PAD, UNKNOWN, "follow", "left", "straight", "right", "limit", "go", "turn", "back", "at", "the", "junction"),
    *("road", "take", "roundabout", "leave", "to", "in", "m", "on", "and", "then", "keep", "lane", "change", "merge"),
    *("first", "second", "third", "exit", "stop", "slow", "down", "next"),
    *map(str, range(0, LONGEST_NUMBER + 1, 10)),
)
_SIZED: WeakKeyDictionary[CameraFrame, dict[tuple[int, int], Array]] = WeakKeyDictionary()


class WordTokenizer:
    """One id per word, numbers in steps of ten; upper case and punctuation do not matter. `pad_id` fills a text."""

    def __init__(self, words: Sequence[str]) -> None:
        if len(set(words)) != len(words) or not {PAD, UNKNOWN} <= set(words):
            raise ValueError(f"a vocabulary has different words, among them {PAD} and {UNKNOWN}")
        self._ids = {word: index for index, word in enumerate(words)}
        self.pad_id = self._ids[PAD]

    def encode(self, text: str) -> tuple[list[int], int]:
        """Ids of a text, and how many of its words are unknown."""
        ids = [self._ids.get(_word(word), self._ids[UNKNOWN]) for word in re.findall(r"\d+(?:\.\d+)?|\w+", text)]
        return ids, ids.count(self._ids[UNKNOWN])


def _word(word: str) -> str:
    if not re.fullmatch(r"[0-9]+(\.[0-9]+)?", word):
        return word.lower()
    return str(10 * round(min(float(word), LONGEST_NUMBER) / 10))


@dataclass(frozen=True)
class InputSpec:
    """The network's input format, from its configuration."""

    width: int  # px
    height: int  # px
    text_length: int
    tokenizer: WordTokenizer
    cameras: int = 3
    instants: int = 2
    ego_scale: tuple[float, float, float] = (10.0, 3.0, 0.5)  # m/s, m/s^2, rad/s that count as 1
    route_at_m: tuple[float, ...] = ()  # how far along the route its points lie
    codebook: Codebook = field(default_factory=Codebook)  # of the route's ids
    rig: tuple[Camera, ...] = ()  # the cameras of the training, left to right; empty: unknown
    vectors: VectorSpec | None = None  # of agents and lanes; None: the network reads no scene


@dataclass(frozen=True, eq=False)
class ModelInputs:
    """One observation as arrays."""

    images: Array  # (instants * cameras, H, W, 3) uint8, oldest instant first, each left to right
    text: Array  # (text_length,) int64
    ego: Array  # (3,) float32 speed, acceleration, yaw rate over their scales
    route: Array  # (R, 2) int64 ids of x and y, the mask where the route is unknown
    notes: tuple[str, ...] = ()  # sentences on inputs that were changed
    scene: VectorInputs | None = None  # agents and lanes, of a network that reads them

    @property
    def arrays(self) -> dict[str, Array]:
        """The network's inputs by name, in their order, without the scene."""
        return {"images": self.images, "text": self.text, "ego": self.ego, "route": self.route}


def model_inputs(observation: Observation, spec: InputSpec) -> ModelInputs:
    """Arrays of an observation. Raises ValueError naming the field that cannot be used."""
    frames, about_images = _instants(observation.cameras, spec)
    text, about_text = _text(observation, spec)
    images = np.array([_resize(frame, spec) for frame in frames], np.uint8)
    images = images.reshape(-1, spec.height, spec.width, 3)
    route = encode_route(route_ahead(observation.route, spec.route_at_m), spec.codebook)
    scene = None if spec.vectors is None else vector_inputs(observation, spec.vectors)
    notes = (*about_images, *about_text, *(() if scene is None else scene.notes))
    return ModelInputs(images, text, _ego(observation.ego, spec), route, notes, scene)


def instruction_text(observation: Observation) -> str:
    """The command, the speed limit in km/h and the navigator's words."""
    limit_kmh = 3.6 * min(observation.speed_limit_mps, 1000.0)
    return f"{COMMANDS[observation.command]} limit {limit_kmh:.0f} {observation.instruction[:MAX_CHARACTERS]}"


def _instants(frames: Sequence[CameraFrame], spec: InputSpec) -> tuple[Sequence[CameraFrame], list[str]]:
    """Images of every instant, and notes."""
    expected = spec.cameras * spec.instants
    if not expected:
        return (), []
    if len(frames) not in (spec.cameras, expected):
        raise ValueError(
            f"Observation.cameras holds {len(frames)} images, expected {expected} ({spec.instants} instants of "
            f"{spec.cameras} cameras) or {spec.cameras}"
        )
    newest = frames[-spec.cameras :]
    names = [frame.name for frame in newest]
    if len(set(names)) != len(names):
        raise ValueError(f"Observation.cameras holds one camera twice in an instant: {', '.join(names)}")
    if len(frames) == spec.cameras:
        if spec.instants == 1:
            return frames, []
        return list(frames) * spec.instants, ["the older images are missing: the newest are used instead"]
    for first in range(0, expected, spec.cameras):
        instant = [frame.name for frame in frames[first : first + spec.cameras]]
        if instant != names:
            raise ValueError(f"Observation.cameras holds {', '.join(instant)} in one instant, {', '.join(names)} later")
    return frames, []


def _resize(frame: CameraFrame, spec: InputSpec) -> Array:
    """(H, W, 3) uint8 of the network's size, by area averaging, which avoids aliasing of small objects.

    Cached as long as the frame exists: the newest image of this step is the older one of a later step.
    """
    size, pixels = (spec.width, spec.height), frame.pixels
    if pixels.shape[1::-1] == size:
        return pixels
    resized_by_size = _SIZED.setdefault(frame, {})
    if size not in resized_by_size:
        resized_by_size[size] = np.asarray(cv2.resize(pixels, size, interpolation=cv2.INTER_AREA))
    return resized_by_size[size]


def _text(observation: Observation, spec: InputSpec) -> tuple[Array, list[str]]:
    """(text_length,) ids, and notes."""
    if not spec.text_length:  # the network reads no text
        return np.zeros(0, np.int64), []
    notes = []
    if len(observation.instruction) > MAX_CHARACTERS:
        notes.append(
            f"the instruction has {len(observation.instruction)} characters: it was cut after {MAX_CHARACTERS}"
        )
    ids, unknown = spec.tokenizer.encode(instruction_text(observation))
    if unknown:
        notes.append(f"the instruction has {unknown} unknown words: '{observation.instruction[:60]}'")
    if len(ids) > spec.text_length:
        notes.append(f"the instruction has {len(ids)} words with command and limit: {spec.text_length} were read")
    text = np.full(spec.text_length, spec.tokenizer.pad_id, np.int64)
    text[: len(ids)] = ids[: spec.text_length]
    return text, notes


def route_ahead(route: Array, at_m: Sequence[float]) -> Array:
    """(R, 2) points at these distances along a route (L, 2+) of the ego frame.

    Distances count from the route point closest to the ego. Points beyond the end of the route, of a route further than
    OFF_ROUTE_M, or without a route, are NaN.
    """
    line = geometry.distinct_points(route)
    start, offset_m = geometry.ego_on_route(line) if len(line) >= 2 else (0.0, np.inf)
    if abs(offset_m) > OFF_ROUTE_M:
        return np.full((len(at_m), 2), np.nan)
    along = start + np.array(at_m)
    is_on_route = along <= geometry.arc_lengths(line)[-1]
    return np.where(is_on_route[:, None], geometry.sample(line, along)[:, :2], np.nan)


def encode_route(points: Array, codebook: Codebook) -> Array:
    """Ids (.., R, 2) int64 of points (.., R, 2), the mask where they are NaN: a route in the words of plans."""
    is_finite = np.isfinite(points)
    return np.where(is_finite, codebook.to_ids(np.where(is_finite, points, 0.0)), codebook.mask_id).astype(np.int64)


def _ego(ego: EgoState, spec: InputSpec) -> Array:
    """(3,) float32 speed, acceleration, yaw rate over their scales."""
    values = []
    for name, scale in zip(("speed_mps", "acceleration_mps2", "yaw_rate_rps"), spec.ego_scale, strict=True):
        value = float(getattr(ego, name))
        if not abs(value) <= EGO_REACH * scale:  # NaN is not either
            raise ValueError(f"EgoState.{name} is {value:g}, expected a number within {EGO_REACH * scale:g} of 0")
        values.append(value / scale)
    return np.array(values, np.float32)
