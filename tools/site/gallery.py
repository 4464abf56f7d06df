"""`make gallery`: five short drives as pages that open from disk, with a screenshot of each, into out/gallery.

    .venv/bin/python tools/site/gallery.py [NAME ..]

Each is the report that the package writes, with smaller images, and opens at the plan that shows most. Screenshots need
Chromium. All five take some minutes on two cores.
"""

from __future__ import annotations

import argparse
import base64
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from chromium import CHROMIUM, run
from scipy.ndimage import gaussian_filter1d

from reflectdrive_ros.core import geometry
from reflectdrive_ros.core.config import Config
from reflectdrive_ros.core.domain import PLAN_DT_S, Array, Plan, Trajectory
from reflectdrive_ros.demo import world_messages
from reflectdrive_ros.ros import convert, outputs
from reflectdrive_ros.ros.bag import BagReader, BagWriter

ROOT = Path(__file__).resolve().parents[2]
GALLERY = Path("out", "gallery")  # of ROOT, as in the commands that the pages show
TOWNS = Path(".venv", "judges", "py123d", "parser", "opendrive", "carla_maps")
MOVING_MPS = 2.0
PAGE_MAX_BYTES = 3_000_000
IMAGE_SIZES = ((400, 70), (320, 60), (240, 50))  # width in px and JPEG quality, the first that fits
WINDOW = (1400, 1300)  # px
SCREENSHOT = (1000, 85)  # width in px and JPEG quality
DATA = re.compile(r'(<script id="data" type="application/json">)(.*?)(</script>)', re.DOTALL)
OTHER_PLANNER = "/planning/other_planner/trajectory"
OTHER_ACCELERATION_MPS2, OTHER_LATERAL_MPS2, OTHER_SPEED_MPS = 2.0, 2.5, 12.0
OTHER_POINTS, SMOOTHED_M = 80, 4


@dataclass(frozen=True)
class Drive:
    """One page. `words` are those of the command; the page opens at the frame with the highest `weight`."""

    name: str
    title: str
    text: str
    words: tuple[str, ...]
    weight: Callable[[dict[str, Any]], float]


def is_busy(frame: dict[str, Any]) -> float:
    """Road users within 25 m of the moving car."""
    x, y, _ = frame["ego"]
    near = sum(float(np.hypot(agent[0] - x, agent[1] - y) < 25.0) for agent in frame["agents"])
    return near if frame["v"] > MOVING_MPS else 0.0


def is_corrected(frame: dict[str, Any]) -> float:
    """How far edits moved tokens of the plan, in all, in metres."""
    return sum(
        (abs(after - before) for _, _, axis, before, after, *_ in frame.get("corrections", ()) if axis in "xy"), 0.0
    )


def is_repaired(frame: dict[str, Any]) -> float:
    """By how much the plan is shorter than the candidate as it came, over 4 s, in metres: it brakes."""
    start = np.array(frame["ego"])[None, :2]
    plan = np.concatenate([start, np.array(frame["plan"])[:40, :2]])
    others = [np.concatenate([np.zeros((1, 2)), other]) for other in frame.get("others", ())]
    return max((length_m(other) - length_m(plan) for other in others), default=0.0)


def length_m(line: Array) -> float:
    return float(geometry.arc_lengths(line)[-1])


DRIVES = (
    Drive(
        "town",
        "A generated town",
        "ReflectDrive-2 drives by three rendered cameras; the traffic reacts to it.",
        ("demo", "--seconds", "15"),
        is_busy,
    ),
    Drive(
        "foreign",
        "A town of CARLA",
        "The same network on the roads of an OpenDRIVE file, Town03.",
        ("demo", "--seconds", "15", "--seed", "8", "--map", str(TOWNS / "Town03.xodr.gz")),
        is_busy,
    ),
    Drive(
        "recording",
        "A real recording",
        "PandaSet sequence 002, replayed; the planner is the rule-based route_follower.",
        ("replay", str(GALLERY / "pandaset_002"), "--planner", "route_follower"),
        is_busy,
    ),
    Drive(
        "reflection",
        "A reflection",
        "ReflectDrive-2 drafts a plan (dashed) and edits it: rings are waypoints that edits moved.",
        ("demo", "--seconds", "15", "--seed", "2"),
        is_corrected,
    ),
    Drive(
        "candidate",
        "A repaired candidate of another planner",
        "Another planner speeds up and sees nobody (dashed); the check repairs its plans.",
        (
            *("replay", str(GALLERY / "other_planner"), "--candidates", OTHER_PLANNER),
            *("--setting", "inputs.drivable_type=map"),
        ),
        is_repaired,
    ),
)


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [drive.name for drive in DRIVES]
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"drives, of {', '.join(names)} (default: all)")
    chosen = parser.parse_args(words).names or names
    if unknown := sorted(set(chosen) - set(names)):
        parser.error(f"{unknown[0]} is no drive; expected {', '.join(names)}")
    if not CHROMIUM:
        print("chromium is not installed: the gallery has no screenshots", file=sys.stderr)
    for drive in DRIVES:
        if drive.name in chosen:
            make(drive)
    entries = [entry for drive in DRIVES if (entry := ROOT / GALLERY / drive.name / "entry.json").exists()]
    content = [json.loads(entry.read_text(encoding="utf-8")) for entry in entries]
    (ROOT / GALLERY / "gallery.json").write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    print(f"{len(content)} drives in {ROOT / GALLERY}")
    return 0


def make(drive: Drive) -> None:
    """The page of a drive, its screenshot and its entry of the gallery, in a folder of its own."""
    folder = GALLERY / drive.name
    if drive.name == "candidate":
        if not (ROOT / GALLERY / "reflection" / "world").exists():
            raise SystemExit(
                "gallery: the candidates are written into the bag of the drive reflection: make that first"
            )
        write_other_planner(ROOT / GALLERY / "reflection" / "world", ROOT / GALLERY / "other_planner")
    if drive.name == "recording":
        reflectdrive("make-bag", "pandaset_002", str(GALLERY / "pandaset_002"), "--force")
    command = [*drive.words, "--out", str(folder)]
    reflectdrive(*command)
    page = ROOT / folder / "report.html"
    content, plan = shrink(page.read_text(encoding="utf-8"), drive)
    page.write_text(content, encoding="utf-8")
    if CHROMIUM:
        screenshot(f"{page.as_uri()}#plan={plan}", page.with_suffix(".jpg"))
    entry = {"name": drive.name, "title": drive.title, "text": drive.text, "plan": plan}
    entry["command"] = " ".join(["reflectdrive", *command])
    (ROOT / folder / "entry.json").write_text(json.dumps(entry) + "\n", encoding="utf-8")
    print(f"{drive.name}: {len(content) / 1e6:.1f} MB")


def reflectdrive(*words: str) -> None:
    subprocess.run([sys.executable, "-m", "reflectdrive_ros", *words], cwd=ROOT, check=True)


def shrink(page: str, drive: Drive, size_max: int = PAGE_MAX_BYTES) -> tuple[str, int]:
    """A report of at most `size_max` bytes, by smaller images, that says what it shows; and the number of the plan
    that shows most. Raises ValueError where no size of images is small enough.
    """
    match = DATA.search(page)
    if match is None:
        raise ValueError("this page is no report: it has no data")
    data = json.loads(match[2])
    data["origin"] = f"{drive.title}: {drive.text} · {data['origin']}"
    weights = [drive.weight(frame) for frame in data["frames"]]
    originals = [[camera["jpeg"] for camera in images["cameras"]] for images in data["images"]]
    for width, quality in IMAGE_SIZES:
        for images, jpegs in zip(data["images"], originals, strict=True):
            for camera, jpeg in zip(images["cameras"], jpegs, strict=True):
                camera["jpeg"] = resize(jpeg, width, quality)
        text = json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")
        small = f"{page[: match.start(2)]}{text}{page[match.end(2) :]}"
        if len(small.encode()) <= size_max:
            return small, 1 + int(np.argmax(weights))
    raise ValueError(
        f"{drive.name} has {len(small.encode())} bytes, at most {size_max} are allowed: drive for less long"
    )


def resize(jpeg: str, width: int, quality: int) -> str:
    """A JPEG in base64 at most `width` px wide."""
    image = cv2.imdecode(np.frombuffer(base64.b64decode(jpeg), np.uint8), cv2.IMREAD_COLOR)
    scale = min(1.0, width / image.shape[1])
    image = cv2.resize(image, None, fx=scale, fy=scale, interpolation=cv2.INTER_AREA)
    return base64.b64encode(cv2.imencode(".jpg", image, [cv2.IMWRITE_JPEG_QUALITY, quality])[1]).decode("ascii")


def screenshot(url: str, target: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        image = Path(folder, "page.png")
        run(url, Path(folder), f"--window-size={WINDOW[0]},{WINDOW[1]}", f"--screenshot={image}")
        pixels = cv2.imread(str(image))
    width, quality = SCREENSHOT
    size = (width, round(pixels.shape[0] * width / pixels.shape[1]))
    small = cv2.resize(pixels, size, interpolation=cv2.INTER_AREA)
    cv2.imwrite(str(target), small, [cv2.IMWRITE_JPEG_QUALITY, quality])


def write_other_planner(source: Path, target: Path) -> None:
    """A bag of a drive without its images, and with the trajectories of a planner that follows the route, speeds up
    to `OTHER_SPEED_MPS` and brakes for nobody."""
    names = {topic.key: topic.name for topic in world_messages.car_topics(Config())}
    with BagReader(source) as reader, BagWriter(target, replace=True) as bag:
        recorded = [topic for topic in reader.topics if "/camera/" not in topic.name]
        egos = [convert.ego_state(each.message(), "map") for each in reader.messages([names["odometry"]])]
        (route,) = [convert.path_route(each.message(), "map") for each in reader.messages([names["route"]])]
        path = whole_path(np.array([ego.map_from_ego for ego in egos]), route)
        for topic in recorded:
            bag.add_topic(topic.name, topic.type_name, latched=topic.latched)
        bag.add_topic(OTHER_PLANNER, "autoware_planning_msgs/msg/Trajectory")
        for each in reader.messages([topic.name for topic in recorded]):
            bag.write(each.topic, each.received_ns, each.data)
            if each.topic == names["odometry"]:
                ego = convert.ego_state(each.message(), "map")
                begin_m = geometry.project(path, ego.map_from_ego[None, :2])[0][0]
                poses = geometry.sample(path, free_drive(path, float(begin_m), ego.speed_mps))
                local = geometry.compose(geometry.invert(ego.map_from_ego), poses)
                plan = Plan(ego.stamp_ns, ego.map_from_ego, Trajectory(local, PLAN_DT_S))
                bag.write(OTHER_PLANNER, each.received_ns, outputs.trajectory(plan, Config()))


def free_drive(path: Array, begin_m: float, speed_mps: float) -> Array:
    """(80,) arc lengths at the times of a plan: the path has points 1 m apart, and only its bends slow the car."""
    bends = np.abs(geometry.wrap(np.diff(geometry.headings_along(path)))) + 1e-3  # rad/m
    caps = np.minimum(np.sqrt(OTHER_LATERAL_MPS2 / bends), OTHER_SPEED_MPS)
    for k in range(len(caps) - 2, -1, -1):
        caps[k] = min(caps[k], np.sqrt(caps[k + 1] ** 2 + 2.0 * OTHER_ACCELERATION_MPS2))
    along = [begin_m]
    for _ in range(OTHER_POINTS):
        cap = caps[min(int(along[-1]), len(caps) - 1)]
        speed_mps = float(np.clip(cap, speed_mps - 3.0 * PLAN_DT_S, speed_mps + OTHER_ACCELERATION_MPS2 * PLAN_DT_S))
        along.append(along[-1] + PLAN_DT_S * speed_mps)
    return np.array(along[1:])


def whole_path(driven: Array, route: Array) -> Array:
    """(N, 2) the driven path (M, 3), and from its end on the route, smoothed over `SMOOTHED_M`."""
    end = driven[-1, :2]
    rest = route[np.argmin(np.linalg.norm(route[:, :2] - end, axis=-1)) + 1 :, :2]
    line = geometry.distinct_points(np.concatenate([driven[:, :2], rest]), 0.05)
    along = np.arange(-SMOOTHED_M, geometry.arc_lengths(line)[-1] + SMOOTHED_M)  # 1 m apart
    return gaussian_filter1d(geometry.sample(line, along)[:, :2], SMOOTHED_M / 2, axis=0)


if __name__ == "__main__":
    sys.exit(main())
