"""Templates of the HTML pages, and the drawing code that the replay report and the live page share."""

from __future__ import annotations

from pathlib import Path

FOLDER = Path(__file__).resolve().parent


def page(name: str) -> str:
    """The template `name` (report.html, replay_index.html, live.html) with drawing.js in place of __DRAWING__."""
    drawing = (FOLDER / "drawing.js").read_text(encoding="utf-8")
    return (FOLDER / name).read_text(encoding="utf-8").replace("__DRAWING__", drawing, 1)
