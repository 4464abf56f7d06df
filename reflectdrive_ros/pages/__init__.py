"""Templates of the HTML pages, their scripts, and the colours and the drawing that they share."""

from __future__ import annotations

import html
from pathlib import Path
from typing import Any

import numpy as np

FOLDER = Path(__file__).resolve().parent
PARTS = {  # a script names others
    "__DOCUMENT__": "head.html",
    "__REPORT__": "report.js",
    "__COLOURS__": "colours.css",
    "__TABLES__": "tables.css",
    "__DRAWING__": "drawing.js",
}


def page(name: str) -> str:
    """The template `name` (report.html, replay_index.html, dataset.html, live.html, worst.html) with the files that it
    names."""
    text = (FOLDER / name).read_text(encoding="utf-8")
    for placeholder, file in PARTS.items():
        if placeholder in text:
            text = text.replace(placeholder, (FOLDER / file).read_text(encoding="utf-8"), 1)
    return text


def tile(value: str, unit: str, meaning: str) -> str:
    """A number with its unit above its meaning."""
    small = f"<small>{unit}</small>" if unit else ""
    return f'<div class="tile"><b>{html.escape(value)}{small}</b><i>{html.escape(meaning)}</i></div>'


def vehicle_size(vehicle: Any) -> dict[str, float]:
    """The ego's box (VehicleConfig) as the pages draw it."""
    return {"length": vehicle.length_m, "width": vehicle.width_m, "offset": vehicle.rear_axle_to_center_m}


def agent_rows(agents: Any) -> list[list[float]]:
    """x, y, heading, length, width, kind of each of some Agents."""
    boxes = zip(round_list(agents.poses, 2), round_list(agents.sizes, 2), agents.kinds.tolist(), strict=True)
    return [[*pose, *size, kind] for pose, size, kind in boxes]


def round_list(values: Any, digits: int) -> Any:
    """Nested lists of the numbers of an array, for the JSON of a page."""
    return np.round(np.asarray(values, float), digits).tolist()
