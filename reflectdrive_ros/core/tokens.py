"""Conversion between values and ids: the codebook of an axis, the layout of an action sequence, the decoding schedule.

A codebook is a uniform grid: value a_k = bin_m * (k - half), k = 0 .. bins - 1, with an odd number of bins. There is a
bin at exactly 0, so that a parked car decodes to its own position (a grid from -100 m in steps of 0.3 m has none: its
nearest value is -0.1 m). A layout assigns a coordinate of a waypoint to each token.

    layout = TokenLayout()                     # x1, y1, .. x8, y8 in bins of 0.3 m; the last pair is the goal
    ids = layout.encode(points)                # (.., P, A) metres (headings radians) -> (.., T)
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import reflectdrive_kernels as kernels

from .domain import Array


@dataclass(frozen=True)
class Codebook:
    """The grid: ReflectDrive's 667 bins of 0.3 m by default, DriveFine's finer ones by argument."""

    bin_m: float = 0.3
    bins: int = 667

    def __post_init__(self) -> None:
        if not 0 < self.bin_m < float("inf"):
            raise ValueError(f"Codebook.bin_m is {self.bin_m}, expected a finite number more than 0")
        if not isinstance(self.bins, int) or self.bins < 3 or self.bins % 2 == 0:
            raise ValueError(f"Codebook.bins is {self.bins}, expected an odd number of at least 3 (one bin must be 0)")

    @property
    def zero_id(self) -> int:
        return self.bins // 2

    @property
    def mask_id(self) -> int:
        return self.bins

    @property
    def reach_m(self) -> float:
        """The largest value that has a bin; beyond it values are clipped."""
        return self.bin_m * self.zero_id

    def to_ids(self, values_m: Array) -> Array:
        """int32 ids of the nearest bins, any shape. Raises ValueError on NaN or infinity."""
        values = np.asarray(values_m, float)
        if not np.isfinite(values).all():
            raise ValueError("Codebook.to_ids got NaN or infinity")
        steps = np.rint(np.clip(values, -self.reach_m, self.reach_m) / self.bin_m)
        return np.asarray(steps + self.zero_id, np.int32)

    def to_values(self, ids: Array) -> Array:
        """Metres of ids, any shape. Raises ValueError on ids outside the grid, the mask included, or not whole."""
        ids = np.asarray(ids)
        if ids.size and ids.dtype.kind not in "iu":
            raise ValueError(f"Codebook.to_values got {ids.dtype}, expected whole numbers")
        if ids.size and (ids.min() < 0 or ids.max() >= self.bins):
            raise ValueError(f"Codebook.to_values got ids {ids.min()}..{ids.max()}, expected 0..{self.bins - 1}")
        return np.asarray((ids.astype(np.int64) - self.zero_id) * self.bin_m)

    def encode(self, points: Array) -> Array:
        """Points (..., T, 2) -> int32 ids (..., 2 T). Raises ValueError on another shape, NaN or infinity."""
        points = np.asarray(points, float)
        if points.ndim < 2 or points.shape[-1] != 2:
            raise ValueError(f"Codebook.encode got points of shape {points.shape}, expected (.., T, 2)")
        return self.to_ids(points).reshape(*points.shape[:-2], 2 * points.shape[-2])

    def decode(self, ids: Array) -> Array:
        """Ids (..., 2 T) -> points (..., T, 2). Raises ValueError on an odd number of ids or ids outside the grid."""
        ids = np.asarray(ids)
        if ids.ndim < 1 or ids.shape[-1] % 2:
            raise ValueError(f"Codebook.decode got ids of shape {ids.shape}, expected (.., 2 T)")
        return self.to_values(ids).reshape(*ids.shape[:-1], ids.shape[-1] // 2, 2)


@dataclass(frozen=True)
class Axis:
    """One coordinate of a waypoint: its grid, and the range of values that a network may use."""

    name: str  # one of AXES
    bin: float  # m, of a heading radians
    bins: int
    low: float
    high: float

    def __post_init__(self) -> None:
        if self.name not in AXES:
            raise ValueError(f"Axis.name is {self.name!r}, expected one of {', '.join(AXES)}")
        try:
            codebook = self.codebook
        except ValueError as fault:
            raise ValueError(f"axis {self.name}: {fault}") from None
        if not -codebook.reach_m - self.bin < self.low <= 0.0 <= self.high < codebook.reach_m + self.bin:
            expected = f"a range around 0 within {codebook.reach_m:g}"
            raise ValueError(f"axis {self.name} has the range {self.low} .. {self.high}, expected {expected}")

    @property
    def codebook(self) -> Codebook:
        return Codebook(self.bin, self.bins)

    @property
    def id_range(self) -> tuple[int, int]:
        """First and last id of the range."""
        half = self.bins // 2
        reach = half * self.bin
        return round(max(self.low, -reach) / self.bin) + half, round(min(self.high, reach) / self.bin) + half


AXES = ("x", "y", "heading")
FRAMES = ("ego", "route")
X = Axis("x", 0.3, 667, -12.0, 99.9)
Y = Axis("y", 0.3, 667, -45.0, 45.0)


@dataclass(frozen=True)
class TokenLayout:
    """The coordinate and waypoint of each token of an action sequence, and the goal tokens.

    Ids of each axis count from 0; the mask is the id after those of the axis with the most bins.
    """

    points: int = 8
    axes: tuple[Axis, ...] = (X, Y)
    goal: tuple[int, ...] = (14, 15)  # positions of x and y of one waypoint; empty: the layout has no goal
    order: str = "waypoints"  # all axes of the first waypoint, then of the second ..
    edit_goal: bool = False  # whether AutoEdit may replace the goal too; in the paper it stays
    last_waypoint_first: bool = False  # drafts begin with the tokens of the last waypoint, whatever their confidence
    interval_bins: int = 0  # half width of the interval whose probability counts where no token is drawn; 0: of the bin
    frame: str = "ego"  # of the waypoints; route: x is the arc length along the route, y the lateral offset from it

    def __post_init__(self) -> None:
        if not isinstance(self.points, int) or self.points < 2:
            raise ValueError(f"TokenLayout.points is {self.points}, expected at least 2")
        names = tuple(axis.name for axis in self.axes)
        if names not in (AXES[:2], AXES):
            raise ValueError(f"TokenLayout.axes is {names}, expected x, y or x, y, heading")
        if self.frame not in FRAMES:
            raise ValueError(f"TokenLayout.frame is {self.frame!r}, expected one of {', '.join(FRAMES)}")
        if self.frame == "ego" and self.axes[0].codebook != self.axes[1].codebook:
            raise ValueError("TokenLayout.axes has two grids for x and y of the ego frame, expected one")
        if self.order != "waypoints":
            raise ValueError(f"TokenLayout.order is {self.order!r}, expected 'waypoints'")
        first = self.goal[0] if self.goal else 0
        if self.goal and (self.goal != (first, first + 1) or first % len(self.axes) or not 0 <= first < self.length):
            expected = "the positions of x and y of one waypoint, or none"
            raise ValueError(f"TokenLayout.goal is {self.goal}, expected {expected}")
        if self.edit_goal and not self.goal:
            raise ValueError("TokenLayout.edit_goal is true, but there is no goal")
        if not 0 <= self.interval_bins < self.bins // 2:
            raise ValueError(f"TokenLayout.interval_bins is {self.interval_bins}, expected 0 to {self.bins // 2 - 1}")

    @property
    def length(self) -> int:
        """Number of tokens T."""
        return self.points * len(self.axes)

    @property
    def padded_length(self) -> int:
        """The power of two at or above the length."""
        return 1 << (self.length - 1).bit_length()

    @property
    def bins(self) -> int:
        """Number of bins of the axis with the most."""
        return max(axis.bins for axis in self.axes)

    @property
    def mask_id(self) -> int:
        return self.bins

    @property
    def codebook(self) -> Codebook:
        """Of x and y; in the frame of the route, of x."""
        return self.axes[0].codebook

    @property
    def waypoint_noise_m(self) -> float:
        """Width of the range in which the value of a token of x or y is uncertain: a bin, or half the interval whose
        middle it is."""
        return self.codebook.bin_m * max(self.interval_bins, 1)

    @property
    def free(self) -> tuple[int, ...]:
        """Positions that are not part of the goal."""
        return tuple(position for position in range(self.length) if position not in self.goal)

    @property
    def written_first(self) -> tuple[int, ...]:
        """Positions that a draft writes before all others."""
        return tuple(range(self.length - len(self.axes), self.length)) if self.last_waypoint_first else ()

    @property
    def id_ranges(self) -> tuple[tuple[int, int], ...]:
        """First and last id of each axis."""
        return tuple(axis.id_range for axis in self.axes)

    @property
    def token_ranges(self) -> tuple[tuple[int, int], ...]:
        """First and last id of each token."""
        return self.points * self.id_ranges

    @property
    def window_bins(self) -> int:
        """Number of bins of the widest range of an axis."""
        return max(last - first + 1 for first, last in self.id_ranges)

    @property
    def window_starts(self) -> tuple[int, ...]:
        """Of each token the first of `window_bins` consecutive ids that hold its range."""
        return tuple(min(first, self.bins - self.window_bins) for first, _ in self.token_ranges)

    def encode(self, points: Array) -> Array:
        """Waypoints (.., P, A) in m and radians -> int32 ids (.., P A). Raises ValueError on another shape or NaN."""
        points = np.asarray(points, float)
        if points.ndim < 2 or points.shape[-2:] != (self.points, len(self.axes)):
            expected = f"(.., {self.points}, {len(self.axes)})"
            raise ValueError(f"TokenLayout.encode got points of shape {points.shape}, expected {expected}")
        ids = np.stack([axis.codebook.to_ids(points[..., k]) for k, axis in enumerate(self.axes)], axis=-1)
        return ids.reshape(*points.shape[:-2], self.length)

    def decode(self, ids: Array) -> Array:
        """Ids (.., P A) -> waypoints (.., P, A) in m and radians. Raises ValueError on another length or masks."""
        ids = np.asarray(ids)
        if ids.ndim < 1 or ids.shape[-1] != self.length:
            raise ValueError(f"TokenLayout.decode got ids of shape {ids.shape}, expected (.., {self.length})")
        pairs = ids.reshape(*ids.shape[:-1], self.points, len(self.axes))
        return np.stack([axis.codebook.to_values(pairs[..., k]) for k, axis in enumerate(self.axes)], axis=-1)

    def decode_goal(self, ids: Array) -> Array:
        """(.., 2) x and y in metres of the goals of ids (.., T)."""
        x, y = np.moveaxis(np.asarray(ids)[..., list(self.goal)], -1, 0)
        return np.stack([axis.codebook.to_values(each) for axis, each in zip(self.axes, (x, y), strict=False)], axis=-1)

    def waypoint(self, index: int) -> slice:
        """Positions of x and y of a waypoint."""
        first = len(self.axes) * index
        return slice(first, first + 2)

    def clip(self, ids: Array) -> Array:
        """Ids (.., T) brought into the ranges of their tokens; masks stay masks."""
        low, high = np.array(self.token_ranges).T
        return np.where(ids == self.mask_id, ids, np.clip(ids, low, high))


ROUTE_FRAME = TokenLayout(  # for networks that always have a route: a lane is kept by the same y in every bend
    axes=(Axis("x", 0.3, 667, -12.0, 99.9), Axis("y", 0.1, 241, -12.0, 12.0)), edit_goal=True, frame="route"
)
DRIVEFINE = TokenLayout(  # DriveFine, section 4: 0.05 m and 0.1 degrees; no goal
    axes=(
        Axis("x", 0.05, 4001, -12.0, 99.9),
        Axis("y", 0.05, 4001, -45.0, 45.0),
        Axis("heading", math.radians(0.1), 1801, -0.5 * math.pi, 0.5 * math.pi),
    ),
    goal=(),
    last_waypoint_first=True,
    interval_bins=15,
)
ROUTE_DRIVEFINE = TokenLayout(  # the same relative to the route, along which headings follow from the points
    axes=(Axis("x", 0.05, 4001, -12.0, 99.9), Axis("y", 0.05, 481, -12.0, 12.0)),
    goal=(),
    last_waypoint_first=True,
    interval_bins=6,
    frame="route",
)


class Round(NamedTuple):
    """One decoding round: a draft of at most `limit` masked tokens of each sequence or, with `edit`, AutoEdit."""

    limit: int = 0
    edit: bool = False


def draft_schedule(masked: int, rounds: int) -> tuple[int, ...]:
    """Tokens that each of `rounds` draft rounds writes, `masked` in all: equal shares, larger ones first, as 5, 5, 4.

    Rounds beyond `masked` would write nothing and are left out. Raises ValueError on fewer than 0 tokens or 1 round.
    """
    if masked < 0 or rounds < 1:
        raise ValueError(f"draft_schedule got {masked} masked tokens and {rounds} rounds, expected 0 and 1 or more")
    rounds = min(rounds, masked)
    return tuple(masked // rounds + (turn < masked % rounds) for turn in range(rounds))


def cosine_schedule(masked: int, rounds: int) -> tuple[int, ...]:
    """Tokens that each of `rounds` draft rounds writes, `masked` in all: few at first, more later.

    After round t of R at most floor(masked cos(pi t / 2 R)) tokens are masked (DriveFine, section 4.1), and each round
    writes at least one. Rounds beyond `masked` are left out. Raises ValueError as `draft_schedule` does.
    """
    rounds = len(draft_schedule(masked, rounds))
    left, counts = masked, list[int]()
    for turn in range(1, rounds + 1):
        remaining = math.floor(masked * math.cos(0.5 * math.pi * turn / rounds) + 1e-9)
        after = max(min(remaining, left - 1), rounds - turn)
        counts.append(left - after)
        left = after
    return tuple(counts)


SCHEDULES = {"equal": draft_schedule, "cosine": cosine_schedule}


def decoding_rounds(masked: int, draft_rounds: int, edit_rounds: int, schedule: str = "equal") -> tuple[Round, ...]:
    """The draft rounds of a schedule of SCHEDULES, then the edit rounds."""
    drafts = map(Round, SCHEDULES[schedule](masked, draft_rounds))
    return (*drafts, *(Round(edit=True) for _ in range(edit_rounds)))


ROUNDING_M = 0.3 / np.sqrt(12)  # standard deviation of the rounding error of the codebook
CURVATURE_PER_M = 0.1  # prior standard deviation of the curvature: a radius of 10 m is not rare
CURVATURE_CHANGE = 0.01  # prior standard deviation of the change of curvature, 1/m per square root of a metre
STANDING_RAD = 0.01  # standard deviation of the turn of a standing car
FIRST_NOISE = 10.0  # the first step includes the gap between the car and the start of the plan
SHORTEST_M = 0.3  # shorter steps carry no information on curvature
DIRECTION_M = 1.0  # length of a step whose direction is the car's heading


def poses_from_points(points: Array, curvature_change: float = CURVATURE_CHANGE) -> Array:
    """Poses (.., T, 3) with headings estimated from rounded points (.., T, 2) of the ego frame; the points stay.

    The car starts at the origin with heading 0. The direction of each step is a measurement of the mean heading of its
    ends, with a variance that grows for shorter steps (rounding moves both ends). The prior is that curvature is small
    and changes slowly, by `curvature_change` (1/m per square root of a metre). The most probable headings solve one
    linear least-squares problem per trajectory. A standing car keeps its heading, and rounding at walking pace does not
    make it zigzag. A step backwards is reversing, not a turn on the spot.

    The directions of the steps as headings would cost several points of PDM score (docs/scoring.md). Raises ValueError
    on another shape, NaN or infinity.
    """
    points = check_points(points)
    plans = points.reshape(-1, *points.shape[-2:])
    poses = np.empty((*points.shape[:-1], 3))
    headings = np.empty(plans.shape[:2])
    kernels.headings_of_points(plans, heading_prior(curvature_change), headings)
    poses[..., :2], poses[..., 2] = points, headings.reshape(points.shape[:-1])
    return poses


def check_points(points: Array) -> Array:
    """Points (.., T >= 1, 2) as floats. Raises ValueError on another shape, NaN or infinity."""
    points = np.asarray(points, float)
    if points.ndim < 2 or points.shape[-1] != 2 or points.shape[-2] == 0:
        raise ValueError(f"poses_from_points got points of shape {points.shape}, expected (.., T, 2)")
    if not np.isfinite(points).all():
        raise ValueError("poses_from_points got NaN or infinity")
    return points


def heading_prior(curvature_change: float) -> tuple[float, ...]:
    """An argument of the kernels that estimate headings."""
    return (ROUNDING_M, CURVATURE_PER_M, curvature_change, STANDING_RAD, FIRST_NOISE, SHORTEST_M, DIRECTION_M)
