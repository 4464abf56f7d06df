"""`reflectdrive bench camera`: images of the proving ground per second on one core, including shared preparation.

The scene is the busiest street of a generated town: 40 road users within 100 m of the ego, 25 m before a junction. An
instant is one `view` and three images of it. The bound is the pixels alone: writing the supersampled image once and
reading it once to downscale it, at the memory-copy rate of this core.

Also what a camera's images cost before a network of NETWORK_SIZE gets them: scaled, as those of its own rig, and
re-projected from another rig; raw images of SOURCE_SIZE.

No setting (--setting) changes the images: their sizes are those of the table.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import cv2
import numpy as np
from rich.console import Console
from rich.table import Table

from ..core import geometry
from ..core.domain import Array
from ..features.reprojection import Calibration, plan_views, reproject
from ..infra import arguments
from ..infra.command import command, make_table
from ..infra.progress import track_progress
from ..infra.provenance import write_numbers
from ..maps.roads import RoadMap
from ..ros import image_decoding
from ..ros.topics import message_class
from ..sim.network import towns
from ..sim.render import appearance, camera, scenery, visible_scene
from ..sim.traffic.actors import Actors, Shape, Snapshot
from .scoring import one_core

TOWN, SEED = "bench", 2
ACTORS, WITHIN_M = 40, 100.0
SIZES = ((192, 108), (640, 360))
COPY_BYTES = 1 << 25
NETWORK_SIZE, SOURCE_SIZE, TURNED_DEG = (288, 144), (1280, 720), 3.0
LENS = (-0.3, 0.1, 0.001, -0.001, 0.0)  # plumb_bob
STREET = (  # shape, length, width, height m; walked through in turn
    (Shape.CAR, (4.6, 1.9, 1.5)),
    (Shape.CAR, (4.2, 1.8, 1.5)),
    (Shape.PEDESTRIAN, (0.5, 0.6, 1.75)),
    (Shape.VAN, (5.6, 2.1, 2.4)),
    (Shape.CAR, (4.8, 1.9, 1.6)),
    (Shape.BICYCLE, (1.8, 0.6, 1.75)),
    (Shape.PEDESTRIAN, (0.5, 0.6, 1.7)),
    (Shape.BUS, (12.0, 2.55, 3.2)),
    (Shape.TRUCK, (9.0, 2.5, 3.6)),
    (Shape.MOTORCYCLE, (2.2, 0.8, 1.5)),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--runs", type=arguments.positive_int(10_000), default=60, help="instants to take medians over")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the numbers as JSON")


@command()
def run(args: argparse.Namespace, console: Console, errors: Console) -> None:
    """Exit code 0; 2 with one sentence on stderr when there is no town to draw or the file cannot be written."""
    threads = cv2.getNumThreads()
    cv2.setNumThreads(1)
    try:
        with one_core(), tempfile.TemporaryDirectory() as folder:
            numbers = figures(towns.make(TOWN, SEED, Path(folder)), args.runs, errors)
    finally:
        cv2.setNumThreads(threads)
    write_numbers(args.json, numbers)
    console.print(table(numbers))


def busy_street(road_map: RoadMap) -> tuple[Array, Snapshot]:
    """The ego's pose (3,) before the junction with most signals, or before any, and road users around it."""
    held_back = [signal.lane for signal in road_map.signals]
    approaches = [key for key, lane in sorted(road_map.lanes.items()) if lane.across_junction is None]
    key = held_back[0] if held_back else approaches[0]
    line = road_map.lanes[key].lane.centerline
    ego = geometry.sample(line, geometry.arc_lengths(line)[-1:] - 25.0)[0]
    places = []
    for key in sorted(road_map.lanes):
        line = road_map.lanes[key].lane.centerline
        places.append(geometry.sample(line, np.arange(2.0, geometry.arc_lengths(line)[-1], 7.0)))
    poses = np.concatenate(places)
    away = np.hypot(*(poses[:, :2] - ego[:2]).T)
    poses = poses[(away > 8.0) & (away < WITHIN_M)]
    poses = poses[(np.arange(ACTORS) * len(poses)) // ACTORS]
    kinds = [STREET[k % len(STREET)] for k in range(len(poses))]
    count = len(poses)
    actors = Actors(
        np.arange(count) * 13 + 5,
        poses,
        np.full(count, 1.2),
        np.array([size for _, size in kinds]),
        np.array([int(shape) for shape, _ in kinds]),
        np.arange(count) % 3 == 0,
        np.arange(count) % 4 - 1,
    )
    return ego, Snapshot(3.0, actors, np.zeros(len(road_map.signals), np.int64))


def figures(road_map: RoadMap, runs: int, console: Console) -> dict[str, Any]:
    """The measurements, milliseconds and images per second."""
    begun = time.perf_counter()
    town = scenery.build_scenery(road_map, SEED)
    numbers: dict[str, Any] = {"runs": runs, "ms_scenery": 1e3 * (time.perf_counter() - begun)}
    ego, snapshot = busy_street(road_map)
    light = appearance.sample_appearance(1)
    numbers["actors"] = len(snapshot.actors)
    numbers["things"] = len(town.poses)
    per_byte_ms = copy_ms() / COPY_BYTES
    for width, height in SIZES:
        rig = camera.rig(width, height)
        spent: list[tuple[float, float]] = []
        for _ in track_progress(range(runs + 2), f"{width}x{height}", console):
            start = time.perf_counter()
            view = visible_scene.gather_visible(town, snapshot, ego, light)
            gathered = time.perf_counter()
            for each in rig:
                camera.render_image(view, each)
            spent.append((gathered - start, time.perf_counter() - gathered))
        views, images = zip(*spent[2:], strict=True)  # the first two include cached preparation
        size = f"{width}x{height}"
        numbers[f"ms_view_{size}"] = 1e3 * median(views)
        numbers[f"ms_image_{size}"] = 1e3 * median(images) / len(rig)
        instant = median(a + b for a, b in spent[2:])
        numbers[f"images_per_s_{size}"] = len(rig) / instant
        numbers[f"best_images_per_s_{size}"] = len(rig) / min(a + b for a, b in spent[2:])
        numbers[f"bound_ms_image_{size}"] = per_byte_ms * width * height * 3 * camera.SUPERSAMPLING**2
    return numbers | input_ms(max(runs, 20))


def input_ms(runs: int) -> dict[str, float]:
    """Milliseconds for three images of SOURCE_SIZE: scaled, re-projected, and to make the tables once."""
    turn = np.eye(4)
    turn[:3, :3] = cv2.Rodrigues(np.radians([TURNED_DEG, TURNED_DEG, TURNED_DEG]))[0]
    calibrations = [
        Calibration(each.name, *SOURCE_SIZE, each.pixels_from_camera, "plumb_bob", LENS, turn @ each.camera_from_ego)
        for each in camera.rig(*SOURCE_SIZE)
    ]
    begun = time.perf_counter()
    views = plan_views(camera.rig(*NETWORK_SIZE), calibrations)
    numbers = {"ms_tables": 1e3 * (time.perf_counter() - begun)}
    width, height = SOURCE_SIZE
    image = message_class("sensor_msgs/msg/Image")(width=width, height=height, encoding="rgb8", step=3 * width)
    image.data.frombytes(np.random.default_rng(1).integers(0, 256, (height, width, 3), np.uint8).tobytes())
    spent: dict[str, list[float]] = {"ms_scaled": [], "ms_scaled_for_reprojection": [], "ms_reprojected": []}
    for _ in range(runs):
        begun = time.perf_counter()
        for view in views:
            image_decoding.pixels(image, view.source, *NETWORK_SIZE)
        scaled = time.perf_counter()
        images = [image_decoding.pixels(image, view.source, *view.size)[0] for view in views]
        decoded = time.perf_counter()
        for view, pixels in zip(views, images, strict=True):
            reproject(view, pixels)
        for times, took in zip(
            spent.values(), (scaled - begun, decoded - scaled, time.perf_counter() - decoded), strict=True
        ):
            times.append(took)
    return numbers | {name: 1e3 * median(times) for name, times in spent.items()}


def copy_ms() -> float:
    """Milliseconds to copy COPY_BYTES: each byte is read once and written once."""
    source = np.ones(COPY_BYTES, np.uint8)
    target = np.full_like(source, 2)
    spent = []
    for _ in range(7):
        begun = time.perf_counter()
        np.copyto(target, source)
        spent.append(time.perf_counter() - begun)
    return 1e3 * min(spent)


def table(numbers: dict[str, Any]) -> Table:
    rows = []
    for width, height in SIZES:
        size = f"{width}x{height}"
        rows.append(
            (
                size,
                f"{numbers[f'images_per_s_{size}']:.0f}",
                f"{numbers[f'best_images_per_s_{size}']:.0f}",
                f"{numbers[f'ms_view_{size}']:.1f}",
                f"{numbers[f'ms_image_{size}']:.1f}",
                f"{numbers[f'bound_ms_image_{size}']:.2f}",
            )
        )
    return make_table(
        ("size", "images/s", "at best", "ms view, for three", "ms each", "bound ms each"),
        rows,
        f"camera images on one core, medians of {numbers['runs']} instants; {numbers['actors']} road users "
        f"within {WITHIN_M:.0f} m, a town of {numbers['things']} standing things",
        f"once per town before that: {numbers['ms_scenery']:.0f} ms; input of a network, three images: "
        f"{numbers['ms_scaled']:.2f} ms scaled, or {numbers['ms_scaled_for_reprojection']:.2f} ms scaled and "
        f"{numbers['ms_reprojected']:.2f} ms re-projected, after {numbers['ms_tables']:.0f} ms once per calibration",
    )
