"""One page that shows a whole replay: bird's-eye view, images with the plan drawn in, latencies, diagnostics.

The page is one file without external resources: it can be mailed, and opened on a build server or on the vehicle.
Layout and behaviour are in `report.html`, drawing shared with the live page in `drawing.js`; this module converts the
record to the page's data.
"""

from __future__ import annotations

import base64
import html
import json
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np

from .. import pages
from ..core import geometry
from ..core.domain import Array
from ..planning.corrections import correction_rows
from ..scoring.simulate import DT_S
from .plan_measures import SCORES
from .record import (
    DriveRecord,
    ReplayFrame,
    ReplayImage,
    ReplayRecord,
    interpolate_driven_path,
    poses_at_score_times,
    summary,
)

ALTERNATIVE_STEP_S = 0.5  # between drawn points of an alternative
ALTERNATIVE_MIN_M = 0.3  # an alternative that is nowhere farther from the plan is not drawn
ROAD_M = 130.0  # part of a world's road that is shown: closer than this to the driven path
DATES_FROM_NS = 10**18  # September 2001; earlier stamps are of a simulator's clock
IMAGES_MAX_BYTES = 10_000_000  # of base64; longer replays show every n-th image, so that the page still opens


def write_report(record: ReplayRecord, path: str | Path) -> None:
    """Writes the page. Raises OSError where the file cannot be written."""
    content = json.dumps(_content(record), separators=(",", ":"), allow_nan=False)
    page = pages.page("report.html")
    title = html.escape(f"reflectdrive {'demo' if record.drive else 'replay'}: {record.planner} on {record.bag}")
    # no data may close the script element that holds it
    page = page.replace("__DATA__", content.replace("<", "\\u003c"), 1).replace("__TITLE__", title, 1)
    Path(path).write_text(page, encoding="utf-8", errors="surrogateescape")


def _content(record: ReplayRecord) -> dict[str, Any]:
    """The page's data. Times are seconds from the first plan (from the first odometry where there is none)."""
    frames, numbers = record.frames, summary(record)
    latencies = numbers["latency_ms"]
    images, set_indices = _image_sets(record)
    statuses = list(dict.fromkeys(status.name for frame in frames for status in frame.diagnostics))
    begin = frames[0].stamp_ns if frames else int(record.driven_stamps_ns[0]) if len(record.driven_stamps_ns) else 0
    origin = [str(numbers[key]) for key in ("planner_note", "date", "device", "command") if numbers.get(key)]
    if numbers.get("commit"):
        origin.append(f"commit {str(numbers['commit'])[:10]}")
    if len(frames) < numbers["plans"]:
        origin.append(f"{len(frames)} of {numbers['plans']} plans are drawn, evenly spaced; the numbers are of all")
    road = record.road if record.drive is None else record.drive.rings
    return {
        "planner": record.planner,
        "bag": record.bag,
        "origin": " · ".join(origin),
        "summary": json.loads(json.dumps(numbers, default=str), parse_constant=lambda _: None),  # NaN is no JSON
        "main_stage": "total"
        if "total" in latencies
        else max(latencies, key=lambda stage: latencies[stage]["p50"], default=""),
        "vehicle": pages.vehicle_size(record.vehicle),
        "routes": [
            [round((stamp_ns - begin) * 1e-9, 3), pages.round_list(route[:, :2], 2)]
            for stamp_ns, route in record.routes
        ],
        "road": [pages.round_list(ring, 2) for ring in road if _near(record.driven_path, ring)],
        "world": None if record.drive is None else _world(record.drive, numbers, begin),
        "driven": {
            "t": pages.round_list((record.driven_stamps_ns - begin) * 1e-9, 3),
            "p": pages.round_list(record.driven_path, 3),
        },
        "candidates": candidate_table(numbers["candidates"]) if "candidates" in numbers else [],
        "statuses": statuses,
        "images": images,
        "frames": [_frame(frame, begin, statuses, image) for frame, image in zip(frames, set_indices, strict=True)],
    }


def _world(drive: DriveRecord, numbers: dict[str, Any], begin_ns: int) -> dict[str, Any]:
    return {
        "scores": [
            [round((stamp - begin_ns) * 1e-9, 3), round(score, 4)]
            for stamp, score in zip(drive.score_stamps_ns.tolist(), drive.scores.tolist(), strict=True)
        ],
        "events": [
            {"t": round((event.stamp_ns - begin_ns) * 1e-9, 2), "kind": event.kind, "text": event.text}
            for event in drive.events
        ],
        "table": drive_rows(numbers),
    }


def candidate_table(numbers: dict[str, Any]) -> list[list[str]]:
    """Rows of cells, the first with their titles: verdicts on another planner's candidates, and their mean scores in
    the forecast and in the recorded future, as they came and as checked."""
    titles = ["", *numbers["verdicts"], "forecast score", *(name.upper() for name in SCORES)]

    def row(name: str, means: dict[str, Any]) -> list[str]:
        scored = [(means["score_before"], means["score_after"])]
        scored += [(means["scored"]["before"][score], means["scored"]["after"][score]) for score in SCORES]
        return [name, *map(str, means["verdicts"].values()), *(score_change(*pair) for pair in scored)]

    return [titles, *(row(name, means) for name, means in numbers["by_name"].items()), row("all", numbers)]


def score_change(before: float | None, after: float | None) -> str:
    """A mean score as candidates came, and as checked; "-" where it is unknown."""
    return " → ".join(dict.fromkeys("-" if value is None else f"{value:.1f}" for value in (before, after)))


def _near(driven: Array, ring: Array) -> bool:
    """Whether a ring may be in view: its bounding box against the points of the path."""
    low, high = ring.min(axis=0), ring.max(axis=0)
    gap = np.maximum(np.maximum(low - driven[:, :2], driven[:, :2] - high), 0.0)
    return bool((np.hypot(gap[:, 0], gap[:, 1]) < ROAD_M).any())


def drive_rows(numbers: dict[str, Any]) -> list[tuple[str, str]]:
    """The drive through a world as rows of a table: what, how much."""
    drive = numbers["world"]
    score, reference_m = drive["score_mean"], drive["reference_progress_m"]
    share = f"{100.0 * drive['plan_progress_m'] / reference_m:.0f} %" if reference_m > 0 else "-"
    rows = [
        ("driven", f"{drive['distance_m']:.0f} m in {drive['duration_s']:.1f} s"),
        ("speed limits allow", f"{drive['limit_distance_m']:.0f} m"),
        ("standing", f"{drive['standing_s']:.1f} s"),
        ("progress in this traffic", f"{share} of the reference planner's"),
        ("mean speed", f"{drive['mean_speed_mps']:.1f} m/s"),
        ("PDM score, mean", "-" if score is None else f"{100 * score:.1f}"),
        ("collisions", f"{drive['collisions']} ({drive['collisions_at_fault']} at fault)"),
        ("off the road", f"{drive['off_road_s']:.1f} s"),
        ("red lights run", str(drive["red_lights"])),
        ("comfortable", f"{100 * drive['comfort_share']:.1f} % of the time"),
        ("fresh plans", f"{drive['fresh_plans']} of {drive['ticks']} ticks"),
        ("speed of the simulation", f"x{drive['realtime_factor']:.2f} real time"),
    ]
    overall = numbers["latency_ms"].get("overall")
    if overall:
        rows.append(("input to plan, p50 / p99", f"{overall['p50']:.1f} / {overall['p99']:.1f} ms"))
    return rows


def _frame(frame: ReplayFrame, begin_ns: int, statuses: Sequence[str], image: int | None) -> dict[str, Any]:
    status_by_name = {status.name: [int(status.level), status.message] for status in frame.diagnostics}
    return {
        "t": round((frame.stamp_ns - begin_ns) * 1e-9, 4),
        "clock": _clock(frame.stamp_ns),
        "ego": pages.round_list(frame.map_from_ego, 4),
        "v": round(float(frame.speed_mps), 3),
        "plan": pages.round_list(np.column_stack([frame.plan_poses, frame.plan_speeds, frame.heights_above_plane]), 3),
        "dt": frame.dt_s,
        "verdict": int(frame.verdict),
        "source": int(frame.source),
        "reason": frame.reason,
        "step": frame.step.value,
        "planner": frame.planner,
        "ms": {stage: round(float(value), 3) for stage, value in frame.timings_ms.items() if np.isfinite(value)},
        "agents": pages.agent_rows(frame.agents),
        "diagnostics": [status_by_name.get(name) for name in statuses],
        "image": image,
        **_draft(frame),
        **_alternatives(frame),
    }


def _clock(stamp_ns: int) -> str:
    """Date and time of a stamp; of a simulator's clock, which begins near 0, the seconds."""
    tenths = stamp_ns // 10**8 % 10
    if stamp_ns < DATES_FROM_NS:
        return f"simulated, stamp {stamp_ns // 10**9}.{tenths} s"
    clock = datetime.fromtimestamp(stamp_ns // 10**9, timezone.utc).strftime("%Y-%m-%d %H:%M:%S")
    return f"{clock}.{tenths} UTC"


def _draft(frame: ReplayFrame) -> dict[str, Any]:
    """The draft in the ego frame and its corrections; nothing for a plan without tokens."""
    if not len(frame.draft):
        return {}
    return {"draft": pages.round_list(frame.draft, 2), "corrections": correction_rows(frame.corrections)}


def _alternatives(frame: ReplayFrame) -> dict[str, Any]:
    """Candidates of another planner that are not the plan, in the ego frame; nothing where there are none."""
    step = round(ALTERNATIVE_STEP_S / DT_S)
    own = poses_at_score_times(geometry.compose(geometry.invert(frame.map_from_ego), frame.plan_poses), frame.dt_s)
    gaps_m = np.linalg.norm((frame.alternatives - own)[:, :, :2], axis=-1)  # (P, 40)
    others = frame.alternatives[gaps_m.max(axis=1, initial=0.0) > ALTERNATIVE_MIN_M, step - 1 :: step, :2]
    return {"others": pages.round_list(others, 2)} if len(others) else {}


# --- images --------------------------------------------------------------------------------------------------------


def _image_sets(record: ReplayRecord) -> tuple[list[dict[str, Any]], list[int | None]]:
    """The sets of images that fit into the page, and for each frame the newest set that it may show."""
    imaged = [frame for frame in record.frames if frame.images]
    if not imaged:
        return [], [None] * len(record.frames)
    probe = sum(len(image.jpeg) for image in imaged[len(imaged) // 2].images) * 4 / 3
    stride = max(1, int(np.ceil(probe * len(imaged) / IMAGES_MAX_BYTES)))
    selected = imaged[::stride]
    sets = [{"cameras": [_image(record, image) for image in frame.images]} for frame in selected]
    stamps = np.array([frame.stamp_ns for frame in selected])
    newest = [int(np.searchsorted(stamps, frame.stamp_ns, side="right")) - 1 for frame in record.frames]
    return sets, [index if index >= 0 else None for index in newest]


def _image(record: ReplayRecord, image: ReplayImage) -> dict[str, Any]:
    """One image with the ego pose at its exposure, which is behind the pose at the start of the plan."""
    return {
        "name": image.name,
        "t": round((image.stamp_ns - record.frames[0].stamp_ns) * 1e-9, 4),
        "width": image.width,
        "height": image.height,
        "k": pages.round_list(image.pixels_from_camera.ravel(), 4),
        "distortion": [float(value) for value in image.distortion],
        "camera_from_ego": pages.round_list(image.camera_from_ego.ravel(), 6),
        "ego": pages.round_list(interpolate_driven_path(record, np.array([image.stamp_ns]))[0], 4),
        "jpeg": base64.b64encode(image.jpeg).decode("ascii"),
    }
