"""`reflectdrive bench plans --scenes DIR --model FILE FILE --out FILE.jpg`: plans of several networks in the images.

A row per scene: the three newest images and a view from above, with the driven path (green) and the plan of each
network in its colour, and a dot at each second. A dot ahead of the driven one is a plan that is too fast.

No JSON file (--json) is written: the result is an image.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path

import cv2
import numpy as np
from rich.console import Console

from ..core.config import Config
from ..core.domain import Array
from ..data import shards
from ..data.contact_sheet import EXPERT, camera_image, draw_path, newest_images
from ..data.scene import DrivingScene
from ..data.shards import SetError
from ..evaluation import displacement, driving_scores, open_loop, privilege
from ..infra import arguments
from ..infra.command import HelpFormatter, command
from ..infra.files import write_atomic
from ..planning import LEARNED
from ..planning.planner import PlannerContext
from ..runtime import cli_args
from ..runtime.engine import check_network

Colour = tuple[int, int, int]
COLOURS: tuple[Colour, ...] = ((225, 70, 40), (40, 110, 235), (160, 60, 200), (220, 150, 20))
DRIVEN = "driven"
FORMATS = {".png": (), ".jpg": (cv2.IMWRITE_JPEG_QUALITY, 88)}
ROW_PX, ABOVE_PX, TEXT_PX = 200, 200, 22
PX_PER_M, EGO_PX = 6.0, 12  # of the view from above
INK, PAPER, GRID = (30, 30, 30), (246, 246, 242), (215, 215, 210)
GRID_M = 5.0
POINTS_PER_S = 2


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.formatter_class = HelpFormatter
    cli_args.add_scenes_argument(parser, "val")
    parser.add_argument(
        "--model", nargs="+", required=True, metavar="FILE", help=f"weights, at most {len(COLOURS)}, each in a colour"
    )
    parser.add_argument("--planner", default="reflectdrive2", choices=tuple(LEARNED), help="planner")
    parser.add_argument("--privilege", default="words", choices=privilege.PRIVILEGES, help="inputs of the planner")
    parser.add_argument(
        "--count", type=arguments.positive_int(20), default=3, metavar="N", help="scenes, spread evenly"
    )
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="the image (.png or .jpg)")
    arguments.add_settings_argument(parser)


@command()
def run(args: argparse.Namespace, console: Console, errors: Console) -> None:
    """Exit code 0; 2 with one sentence on stderr if there is nothing to draw."""
    if len(args.model) > len(COLOURS):
        raise SetError(f"--model names {len(args.model)} networks, at most {len(COLOURS)} have a colour")
    configs = {name_of(Path(file)): configuration(args, file) for file in args.model}
    folder = open_loop.resolve_scene_set(args.scenes, 1, errors)
    scenes = [scene for scene in shards.read(folder, images=True, on_damage=errors.print) if len(scene.cameras) > 0]
    if not scenes:
        raise SetError(f"{args.scenes} holds no scene with images")
    chosen = [scenes[k] for k in np.linspace(0, len(scenes) - 1, min(args.count, len(scenes))).round().astype(int)]
    rows = [legend(list(configs)), *(scene_row(scene, plans_of(scene, configs, args.privilege)) for scene in chosen)]
    width = max(row.shape[1] for row in rows)
    sheet = np.concatenate(
        [cv2.copyMakeBorder(r, 0, 6, 0, width - r.shape[1], cv2.BORDER_CONSTANT, value=PAPER) for r in rows]
    )
    suffix = args.out.suffix.lower()
    if suffix not in FORMATS:
        raise SetError(f"--out {args.out} is no image file: name a file that ends in {' or '.join(FORMATS)}")
    _, encoded = cv2.imencode(suffix, cv2.cvtColor(sheet, cv2.COLOR_RGB2BGR), FORMATS[suffix])
    write_atomic(args.out, bytes(encoded))
    console.print(f"{len(chosen)} scenes are drawn in {args.out}")


def name_of(file: Path) -> str:
    return file.resolve().parent.name


def configuration(args: argparse.Namespace, file: str) -> Config:
    found = cli_args.configuration(argparse.Namespace(**{**vars(args), "model": file, "sha256": None}))
    check_network(found, cli_args.network_for(found, found.planner, random_weights=False))
    return found


def plans_of(scene: DrivingScene, configs: Mapping[str, Config], privilege_name: str) -> dict[str, Array]:
    """The driven path and each plan, (8, 3) poses at 0.5 .. 4 s."""
    observation, found = privilege.observe(scene, privilege_name), {DRIVEN: scene.expert}
    for name, config in configs.items():
        context = PlannerContext(config, cli_args.network_for(config, config.planner, random_weights=False))
        plan = driving_scores.plan_once(LEARNED[config.planner], observation, context)
        found[name] = driving_scores.plan_waypoints(plan)[0]
    return found


def colours(names: Sequence[str]) -> dict[str, Colour]:
    """Of the plans; the driven path is last, so that it is drawn over them."""
    return {**dict(zip((name for name in names if name != DRIVEN), COLOURS, strict=False)), DRIVEN: EXPERT}


def legend(names: Sequence[str]) -> Array:
    image = np.full((TEXT_PX, 900, 3), PAPER, np.uint8)
    x = 8
    for name, colour in colours(names).items():
        text = f"{name} path" if name == DRIVEN else f"plan of {name}"
        cv2.line(image, (x, TEXT_PX // 2), (x + 26, TEXT_PX // 2), colour, 3, cv2.LINE_AA)
        write(image, text, (x + 34, TEXT_PX - 7))
        x += 60 + 9 * len(text)
    return image


def scene_row(scene: DrivingScene, plans: Mapping[str, Array]) -> Array:
    """Title, images and the view from above."""
    drawn = colours(list(plans))
    images = []
    for frame in newest_images(scene):
        images.append(camera_image(frame, ROW_PX))
        for name, colour in drawn.items():
            draw_path(images[-1], frame, plans[name], colour, every=POINTS_PER_S)
    body = np.concatenate([*images, from_above(plans, drawn)], axis=1)
    title = np.full((TEXT_PX, body.shape[1], 3), PAPER, np.uint8)
    ade_m = {
        name: displacement.distances(plan, scene.expert)[: 3 * POINTS_PER_S].mean() for name, plan in plans.items()
    }
    errors_m = "   ".join(f"{name}: ADE 3 s {ade_m[name]:.2f} m" for name in plans if name != DRIVEN)
    write(title, f"{scene.name}   {scene.ego.speed_mps:.1f} m/s   {errors_m}", (6, TEXT_PX - 7))
    return np.concatenate([title, body])


def from_above(plans: Mapping[str, Array], drawn: Mapping[str, Colour]) -> Array:
    """(ROW_PX, ABOVE_PX, 3): paths from the rear axle, ahead is up, lines every GRID_M."""
    image = np.full((ROW_PX, ABOVE_PX, 3), PAPER, np.uint8)
    for k in range(int(ROW_PX / PX_PER_M / GRID_M) + 1):
        row = round(ROW_PX - EGO_PX - PX_PER_M * GRID_M * k)
        cv2.line(image, (0, row), (ABOVE_PX, row), GRID, 1)
        write(image, f"{GRID_M * k:.0f} m", (4, row - 2))
    for place, (name, colour) in enumerate(drawn.items()):
        shift_px = 14 * (place - len(drawn) // 2)  # side by side: the plans differ in how far they get
        points = np.concatenate([np.zeros((1, 2)), plans[name][:, :2]])
        columns = ABOVE_PX / 2 + 30 + shift_px - PX_PER_M * points[:, 1]
        at = np.rint(np.stack([columns, ROW_PX - EGO_PX - PX_PER_M * points[:, 0]], axis=-1)).astype(np.int32)
        cv2.polylines(image, [at], False, colour, 2, cv2.LINE_AA)
        for point in at[POINTS_PER_S::POINTS_PER_S]:
            cv2.circle(image, point.tolist(), 4, colour, -1, cv2.LINE_AA)
    return image


def write(image: Array, text: str, at: tuple[int, int]) -> None:
    cv2.putText(image, text, at, cv2.FONT_HERSHEY_SIMPLEX, 0.42, INK, 1, cv2.LINE_AA)
