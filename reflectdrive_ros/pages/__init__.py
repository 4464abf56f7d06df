"""Templates of the HTML pages, and the colours and the drawing that they share."""

from __future__ import annotations

from pathlib import Path

FOLDER = Path(__file__).resolve().parent
SHARED = {"__COLOURS__": "colours.css", "__DRAWING__": "drawing.js"}


def page(name: str) -> str:
    """The template `name` (report.html, replay_index.html, live.html) with the shared files that it names in place."""
    text = (FOLDER / name).read_text(encoding="utf-8")
    for place, file in SHARED.items():
        if place in text:
            text = text.replace(place, (FOLDER / file).read_text(encoding="utf-8"), 1)
    return text
