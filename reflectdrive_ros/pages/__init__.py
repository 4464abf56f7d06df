"""Templates of the HTML pages, their scripts, and the colours and the drawing that they share."""

from __future__ import annotations

from pathlib import Path

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
