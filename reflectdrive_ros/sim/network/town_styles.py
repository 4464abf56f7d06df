"""Parameters of the town styles and street kinds that `street_plan` samples from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Style:
    """Parameters of one town style. Pairs are ranges; shares are of streets or junctions."""

    name: str
    spacing_m: tuple[float, float]
    torn: float  # share of the grid's streets that are removed
    bend: float  # largest sagitta of a street as a share of its length
    kinds: Mapping[str, float]  # weights of KINDS
    lights: float
    unregulated: float
    corner_m: tuple[float, float]  # radius of kerbs at corners
    sidewalks: float
    cycleways: float
    one_way: float
    crossings: float
    roundabouts: tuple[int, int]
    winding: tuple[int, int]
    narrow: tuple[int, int]


STYLES = (
    Style(
        "old town", (70, 105), 0.10, 0.10, {"lane": 5, "street": 4, "avenue": 1},
        0.20, 0.5, (7.0, 9.0), 0.95, 0.1, 0.22, 0.5, (1, 1), (1, 1), (2, 4),
    ),
    Style(
        "suburb", (85, 140), 0.13, 0.14, {"lane": 3, "street": 5, "avenue": 1.5},
        0.3, 0.35, (9.0, 12.0), 0.85, 0.3, 0.08, 0.4, (1, 3), (1, 2), (1, 2),
    ),
    Style(
        "boulevards", (110, 180), 0.08, 0.06, {"street": 2, "avenue": 4, "boulevard": 4},
        0.65, 0.05, (9.5, 12.5), 0.95, 0.4, 0.1, 0.7, (1, 2), (1, 1), (1, 1),
    ),
    Style(
        "country", (130, 200), 0.17, 0.16, {"street": 3, "country": 6, "avenue": 1},
        0.15, 0.1, (9.0, 13.0), 0.2, 0.15, 0.0, 0.2, (1, 3), (2, 4), (1, 3),
    ),
    Style(
        "mixed", (90, 170), 0.11, 0.12, {"lane": 2, "street": 3, "avenue": 3, "boulevard": 2, "country": 1},
        0.35, 0.2, (9.0, 12.0), 0.7, 0.3, 0.1, 0.5, (1, 2), (1, 2), (1, 2),
    ),
)  # fmt: skip


@dataclass(frozen=True)
class Kind:
    lanes: tuple[int, int]  # per direction
    width_m: tuple[float, float]
    limit_kmh: tuple[int, ...]
    priority: int
    verge_m: tuple[float, float] = (0.0, 0.0)  # half of the verge between the two directions


KINDS: Mapping[str, Kind] = {
    "lane": Kind((1, 1), (2.9, 3.3), (30, 30, 40), 2),
    "street": Kind((1, 1), (3.0, 3.6), (30, 40, 50, 50), 4),
    "avenue": Kind((2, 2), (2.95, 3.5), (50, 50, 60), 6),
    "boulevard": Kind((2, 3), (3.0, 3.6), (50, 60, 70), 8, (3.0, 4.2)),
    "country": Kind((1, 1), (3.2, 3.75), (60, 70, 80), 6),
}
