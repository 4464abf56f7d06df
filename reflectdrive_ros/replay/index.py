"""Index page and table of many replays: one row per bag, the total, and a link to each report.

Like the report it is one file without external resources; the linked reports are in the folders beside it.
"""

from __future__ import annotations

import html
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .. import pages
from ..infra.files import write_atomic

COLUMNS = (
    *("bag", "", "plans", "ADE m", "FDE m", "shift p95 / max m", "comfort %", "NC / DAC / PDMS %"),
    *("ok/late/unsafe/infeas. %", "own/carried/stop %", "p50 / p99 ms"),
)
COLOURS = {"OK": "good", "LATE": "warn", "UNSAFE": "bad", "INFEASIBLE": "odd"}
COLOURS |= {"PLANNER": "good", "CARRIED": "warn", "STOP": "bad"}

Numbers = Mapping[str, Any]


def cells(numbers: Numbers) -> list[str]:
    """The numbers of a bag, or of all, under COLUMNS from the third on; "-" if unknown."""
    latency = numbers["latency_ms"].get("total", {})
    return [
        str(numbers["plans"]),
        _format(numbers["ade_m"]),
        _format(numbers["fde_m"]),
        f"{_format(numbers['lateral_shift_p95_m'])} / {_format(numbers['max_lateral_shift_m'])}",
        _format(numbers["comfort_share"], 1, 100.0),
        " / ".join(_format(numbers["scored"][name], 0) for name in ("nc", "dac", "pdms")),
        " / ".join(f"{share:.0f}" for share in shares(numbers["verdicts"]).values()) or "-",
        " / ".join(f"{share:.0f}" for share in shares(numbers["sources"]).values()) or "-",
        f"{_format(latency.get('p50'), 1)} / {_format(latency.get('p99'), 1)}",
    ]


def shares(counts: Mapping[str, int]) -> dict[str, float]:
    """Percent of each; none where there are no plans."""
    every = sum(counts.values())
    return {name: 100.0 * count / every for name, count in counts.items()} if every else {}


def _format(value: float | None, digits: int = 2, times: float = 1.0) -> str:
    return "-" if value is None else f"{times * value:.{digits}f}"


def write_index(summary: Numbers, path: Path) -> None:
    """Writes the page of a summary of many replays, whole or not at all. Raises OSError where it cannot be written."""
    origin = [str(summary[key]) for key in ("date", "device", "command")]
    if summary["commit"]:
        origin.append(f"commit {str(summary['commit'])[:10]}")
    failures = "".join(f"<li>{html.escape(message)}</li>" for message in summary["failures"].values())
    parts = {
        "__TITLE__": html.escape(f"reflectdrive replay: {summary['planner']} on {len(summary['bags'])} bags"),
        "__ORIGIN__": html.escape(" · ".join(origin)),
        "__TILES__": "".join(pages.tile(*tile) for tile in _tiles(summary)),
        "__HEAD__": "".join(f"<th>{html.escape(name)}</th>" for name in ("bag", *COLUMNS[2:])),
        "__ROWS__": "".join(_row(one, link=True) for one in summary["bags"]),
        "__TOTAL__": _row({**summary, "name": "total"}, link=False),
        "__FAILURES__": f"<section><h2>Not replayed</h2><ul>{failures}</ul></section>" if failures else "",
        "__JOBS__": "" if summary["jobs"] == 1 else f" {summary['jobs']} bags ran at a time, which latencies show.",
    }
    page = pages.page("replay_index.html")
    for mark, text in parts.items():
        page = page.replace(mark, text)
    write_atomic(path, page.encode("utf-8", errors="surrogateescape"))


def _tiles(summary: Numbers) -> list[tuple[str, str, str]]:
    """Value, unit, meaning."""
    failed = len(summary["failures"])
    latency = summary["latency_ms"]["total"]
    return [
        (str(len(summary["bags"])), "", "bags" + (f", {failed} not replayed" if failed else "")),
        (str(summary["plans"]), "", f"plans in {summary['duration_s'] / 60:.1f} min"),
        (_format(summary["ade_m"]), "m", f"ADE over 4 s, {summary['plans_compared']} plans"),
        (_format(summary["fde_m"]), "m", "FDE at 4 s"),
        (_format(summary["lateral_shift_p95_m"]), "m", f"shift p95, max {_format(summary['max_lateral_shift_m'])} m"),
        (_format(summary["comfort_share"], 1, 100.0), "%", "of plans comfortable"),
        (_format(summary["interventions_share"], 1, 100.0), "%", "of plans not the planner's own"),
        (_format(latency["p99"], 1), "ms", f"latency p99, p50 {_format(latency['p50'], 1)} ms"),
    ]


def _row(one: Numbers, *, link: bool) -> str:
    name = html.escape(one["name"])
    if link:
        name = f'<a href="{html.escape(url_path(one["name"]))}/report.html">{name}</a>'
        name += f"<small>{html.escape(one['notice'])}</small>" if one.get("notice") else ""
    texts = [html.escape(text) for text in cells(one)]
    texts[6] = _bar(one["verdicts"]) + texts[6]
    texts[7] = _bar(one["sources"]) + texts[7]
    return "<tr>" + "".join(f"<td>{text}</td>" for text in (name, *texts)) + "</tr>"


def _bar(counts: Mapping[str, int]) -> str:
    """Shares as one coloured bar; what each is, on pointing at it."""
    parts = (
        f'<i style="flex:{share:.3f};background:var(--{COLOURS[name]})" title="{name} {share:.1f} %"></i>'
        for name, share in shares(counts).items()
        if share
    )
    return f'<span class="bar">{"".join(parts)}</span>'


def url_path(name: str) -> str:
    """A folder's name as part of a URL: reserved characters such as # or a space are escaped."""
    return Path("/", name).as_uri().removeprefix("file:///")
