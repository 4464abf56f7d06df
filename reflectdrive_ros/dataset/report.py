"""The page of a set made of recordings: one file without external resources."""

from __future__ import annotations

import base64
import html
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import cv2
import numpy as np

from .. import pages
from ..data import codec, frame_index, shards
from ..data.contact_sheet import contact_sheet
from ..data.frame_index import FrameRow
from ..infra.files import write_atomic
from ..infra.provenance import provenance
from .conversion import Dataset

SHOWN_SCENES = 12
SPEED_STEP_MPS = 2.0
DRAWN_POINTS_MAX = 6000  # of the map of places
DRAWN_MAPS_MAX = 12
SHEET_QUALITY = 80
WIDTH, HEIGHT = 640, 360  # of a drawing
REPORT = "dataset.html"


def write_report(out: Path, dataset: Dataset) -> None:
    """Writes OUT/dataset.html whole or not at all. Raises OSError naming the file."""
    origin = provenance()
    valid = [row for row in dataset.rows if row.valid]
    seconds = dataset.tick_s * len(dataset.rows)
    size = sum(index.bytes for index in dataset.indices.values())
    drives = {row.drive for row in dataset.rows}
    tiles = [
        (str(len(valid)), "", "scenes"),
        (f"{100 * len(valid) / max(len(dataset.rows), 1):.0f}", "%", f"of {len(dataset.rows)} ticks"),
        (str(len(drives)), "", f"drives, {seconds / 60:.1f} min"),
        (str(len({row.place for row in valid})), "", "places of 100 m"),
        (str(sum(row.hindsight for row in valid)), "", "with a hindsight route"),
        (f"{size / 1e6:.1f}", "MB", f"{size / max(len(valid), 1) / 1e3:.0f} kB a scene"),
    ]
    notices = [*dataset.notices.values(), *(f"left out: {sentence}" for sentence in dataset.failures.values())]
    listed = "".join(f"<li>{html.escape(sentence)}</li>" for sentence in notices)
    parts = {
        "__TITLE__": html.escape(f"reflectdrive dataset: {out.resolve().name}"),
        "__ORIGIN__": html.escape(" · ".join(origin[key] for key in ("date", "device", "command", "commit"))),
        "__TILES__": "".join(pages.tile(*tile) for tile in tiles),
        "__TAGS__": _bars(Counter(row.tag for row in valid), {}, ""),
        "__REASONS__": _bars(frame_index.reason_counts(dataset.rows), frame_index.REASONS, " skip"),
        "__TICK__": f"{dataset.tick_s:g}",
        "__SPEEDS__": _histogram([row.speed_mps for row in valid]),
        "__DRIVES__": "".join(_drive_row(drive, dataset.rows) for drive in sorted(drives)),
        "__PLACES__": _maps(dataset.rows),
        "__SHEET__": _sheet(out, dataset),
        "__FAILURES__": f"<section><h2>Bags</h2><ul>{listed}</ul></section>" if listed else "",
    }
    page = pages.page("dataset.html")
    for mark, text in parts.items():
        page = page.replace(mark, text)
    write_atomic(out / REPORT, page.encode("utf-8", errors="surrogateescape"))


def _bars(counts: Mapping[str, int], meanings: Mapping[str, str], kind: str) -> str:
    most = max(counts.values(), default=1)
    rows = (
        f'<tr><td class="name">{html.escape(name)}</td><td class="text">{html.escape(meanings.get(name, ""))}</td>'
        f'<td>{count}</td><td class="bars"><i class="bar{kind}" style="width:{100 * count / most:.1f}%"></i></td></tr>'
        for name, count in sorted(counts.items(), key=lambda item: -item[1])
    )
    return "".join(rows) or "<tr><td>none</td></tr>"


def _histogram(speeds_mps: Sequence[float]) -> str:
    """Scenes by speed as an SVG."""
    steps = Counter(int(abs(speed) // SPEED_STEP_MPS) for speed in speeds_mps)
    count = max(steps, default=0) + 1
    most, wide = max(steps.values(), default=1), WIDTH / count
    columns = []
    for step in range(count):
        high = (HEIGHT - 60) * steps[step] / most
        columns.append(
            f'<rect x="{step * wide + 1:.1f}" y="{HEIGHT - 30 - high:.1f}" width="{max(wide - 2, 1):.1f}" '
            f'height="{high:.1f}" fill="var(--accent)"/><text x="{step * wide + 2:.1f}" y="{HEIGHT - 14}">'
            f'{step * SPEED_STEP_MPS:.0f}</text><text x="{step * wide + 2:.1f}" y="{HEIGHT - 34 - high:.1f}">'
            f"{steps[step] or ''}</text>"
        )
    return f'<svg viewBox="0 0 {WIDTH} {HEIGHT}">{"".join(columns)}</svg>'


def _drive_row(drive: str, rows: Sequence[FrameRow]) -> str:
    mine = [row for row in rows if row.drive == drive]
    route = "driven, in hindsight" if mine[0].hindsight else "of the bag"
    cells = (drive, mine[0].split or "-", str(len(mine)), str(sum(row.valid for row in mine)), route)
    return "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in cells) + "</tr>"


def _maps(rows: Sequence[FrameRow]) -> str:
    """A drawing of the positions for each map."""
    by_map: dict[str, list[FrameRow]] = {}
    for row in rows:
        if row.place:
            by_map.setdefault(row.place.rpartition("/")[0], []).append(row)
    maps = [_map(name, each) for name, each in list(by_map.items())[:DRAWN_MAPS_MAX]]
    left = len(by_map) - len(maps)
    more = f'<p class="hint">{left} further maps are not drawn.</p>' if left > 0 else ""
    return f'<div class="columns">{"".join(maps)}</div>{more}'


def _map(name: str, rows: Sequence[FrameRow]) -> str:
    some = rows[:: len(rows) // DRAWN_POINTS_MAX + 1]
    positions = np.array([(row.x_m, row.y_m) for row in some])
    low, span = positions.min(axis=0), max(float(np.ptp(positions, axis=0).max()), 50.0)
    scale = (HEIGHT - 40) / span
    dots = []
    for row, (x, y) in sorted(zip(some, positions, strict=True), key=lambda item: item[0].valid):
        colour = "--faint" if not row.valid else "--odd" if row.split == "val" else "--accent"
        at = f'cx="{20 + scale * (x - low[0]):.1f}" cy="{HEIGHT - 20 - scale * (y - low[1]):.1f}"'
        dots.append(f'<circle {at} r="2.5" fill="var({colour})"/>')
    title = html.escape(f"{name}, {span:.0f} m")
    return f'<svg viewBox="0 0 {WIDTH} {HEIGHT}"><text x="4" y="12">{title}</text>{"".join(dots)}</svg>'


def _sheet(out: Path, dataset: Dataset) -> str:
    """Scenes spread over the set as one JPEG inside the page."""
    notes = [(out / folder, note) for folder, index in dataset.indices.items() for note in index.shards]
    notes = notes[:: len(notes) // SHOWN_SCENES + 1]
    each = -(-SHOWN_SCENES // max(len(notes), 1))  # scenes of a shard
    scenes = []
    for folder, note in notes:
        samples = list(shards.samples_of(shards.content_of(folder, note), images=True))
        scenes += [codec.scene_of(sample) for sample in samples[:: max(len(samples) // each, 1)][:each]]
    if not scenes:
        return "<p>none</p>"
    sheet = cv2.cvtColor(contact_sheet(scenes[:SHOWN_SCENES]), cv2.COLOR_RGB2BGR)
    _, encoded = cv2.imencode(".jpg", sheet, (cv2.IMWRITE_JPEG_QUALITY, SHEET_QUALITY))
    return f'<img alt="scenes" src="data:image/jpeg;base64,{base64.b64encode(bytes(encoded)).decode()}">'
