"""Scenes of the proving ground made by hand, for tests of what is done with scenes: no SUMO, no cameras, no towns.

A road along a gentle arc, two lanes and a junction, cars that drive along it and stand beside it, images of noise
over a gradient (harder to compress than a drawing). Everything follows from the scene's name.
"""

import errno
import os
import signal
import time
import zlib
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np

from reflectdrive_ros.core import geometry
from reflectdrive_ros.core.domain import AgentKind, CameraFrame, Command, EgoState
from reflectdrive_ros.core.kinematics import arc
from reflectdrive_ros.data.scene import FAMILIES, HISTORY_STEPS, NOW, TRACK_STEPS, DrivingScene, Tracks
from reflectdrive_ros.scoring.areas import MapAreas, RedLights
from reflectdrive_ros.scoring.scorer import Reference

CAMERAS = ("front_left", "front", "front_right")
NAMES = list(FAMILIES)
MADE_BY = {"scene_version": 1, "options": {"width": 192, "height": 108}}


def strip(curvature, start, stop, right, left):
    """Ring of a stretch of road between two offsets from the arc, left positive."""
    along = np.arange(start, stop + 1.0, 4.0)
    sides = []
    for offset in (right, left):
        poses = geometry.compose(arc(curvature, along), np.array([0.0, offset, 0.0]))
        sides.append(poses[:, :2])
    return np.concatenate([sides[0], sides[1][::-1]])


def scene(name="test-00000-000", family=None, agents=6, images=True, speed=None, curvature=None, size=(192, 108)):
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    family = family or NAMES[rng.integers(len(NAMES))]
    speed = rng.uniform(4, 12) if speed is None else speed
    curvature = rng.uniform(-0.02, 0.02) if curvature is None else curvature
    times = 0.1 * (np.arange(TRACK_STEPS) - NOW)
    poses, speeds = np.zeros((agents, TRACK_STEPS, 3)), np.zeros((agents, TRACK_STEPS))
    present = np.ones((agents, TRACK_STEPS), bool)
    for a in range(agents):
        speeds[a] = max(0.0, rng.uniform(-4, 12)) + 0.05 * np.sin(times)
        start = (15.0 + 12.0 * a) * (1 if a % 2 else -1) - (20.0 if a % 2 == 0 else 0.0)
        along = start + np.cumsum(speeds[a]) * 0.1
        poses[a] = geometry.compose(arc(curvature, along), np.array([0.0, 3.6, 0.0]))
    if agents > 2:
        present[1, :9] = present[2, 50:] = False  # one comes, one goes
        poses[~present], speeds[~present] = 0.0, 0.0
    stamp_ns = 12_300_000_000
    image = partial(_image, rng, size)
    return DrivingScene(
        name=name,
        family=family,
        network=f"{name[:-4]}-town",
        network_hash=f"{zlib.crc32(name[:-4].encode()):08x}",
        seed=int(rng.integers(2**40)),
        ego=EgoState(stamp_ns, rng.uniform(-900, 900, 3) / [1, 1, 300], speed, 0.3, speed * curvature, 0.01),
        ego_history=arc(curvature, 0.1 * speed * (np.arange(HISTORY_STEPS + 1) - HISTORY_STEPS)),
        command=Command(int(rng.integers(4))),
        instruction="turn left in 30 m",
        speed_limit_mps=13.9,
        route=arc(curvature, np.arange(-30.0, 120.0, 1.0)),
        areas=MapAreas(
            lanes=tuple(strip(curvature, -40 + 40 * k, 40 * k, *side) for k in range(4) for side in SIDES),
            lane_on_route=(True, False) * 4,
            roadblocks=(strip(curvature, -40, 80, -1.8, 5.4),),
            intersections=(strip(curvature, 80, 120, -4.0, 8.0),),
        ),
        red_lights=RedLights((strip(curvature, 80, 120, -1.8, 1.8),), np.arange(41)[None] > 25),
        tracks=Tracks(poses, speeds, present, np.tile([4.5, 1.9], (agents, 1)), np.full(agents, AgentKind.VEHICLE)),
        expert=arc(curvature, 0.5 * speed * np.arange(1, 9)),
        reference=Reference(4.0 * speed, 1.0),
        cameras=tuple(image(stamp_ns + at, side) for at in (-500_000_000, 0) for side in CAMERAS) if images else (),
        notes={"expert_pdms": 0.97, "lead": 3},
    )


SIDES = ((-1.8, 1.8), (1.8, 5.4))


def _image(rng, size, stamp_ns, name):
    width, height = size
    shade = np.linspace(60, 200, height)[:, None, None] + np.linspace(0, 40, width)[None, :, None]
    pixels = np.clip(shade + rng.normal(0, 4, (height, width, 3)), 0, 255).astype(np.uint8)
    intrinsics = np.array([[width * 1.03, 0, width / 2], [0, width * 1.03, height / 2], [0, 0, 1]])
    return CameraFrame(stamp_ns, name, pixels, intrinsics, geometry.matrix_from_pose(np.array([0.85, 0.0, 0.1]), 2.2))


@dataclass
class Shard:
    """What `sampler.shard` returns, made by hand."""

    split: str
    index: int
    size: int
    images: bool = False
    counts: dict = field(default_factory=dict)

    def scenes(self):
        for k in range(self.size):
            self.counts["overlap"] = self.counts.get("overlap", 0) + (k % 3 == 0)
            family = NAMES[k % len(NAMES)]
            yield scene(f"{self.split}-{self.index:05d}-{k:03d}", family, images=self.images)


def make(split: str, index: int, size: int, folder: Path):
    return Shard(split, index, size)


def make_slowly(split: str, index: int, size: int, folder: Path):
    """As `make`, some 20 ms a scene, so that there is time to be killed in."""
    shard = Shard(split, index, size)
    whole = shard.scenes

    def scenes():
        for one in whole():
            time.sleep(0.02)
            yield one

    shard.scenes = scenes
    return shard


def make_or_die(marks: Path, deaths: int, split: str, index: int, size: int, folder: Path):
    """As `make`, but shard 1 takes its process with it the first times, as a crash in a library does."""
    if index == 1 and len(list(marks.glob("died-*"))) < deaths:
        (marks / f"died-{os.getpid()}").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return Shard(split, index, size)


def make_on_a_full_disk(split: str, index: int, size: int, folder: Path):
    """As `make`, but the disk is full when shard 1 puts its town down."""
    if index == 1:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder / "town.net.xml"))
    return Shard(split, index, size)


def make_nothing(split: str, index: int, size: int, folder: Path):
    """As `make`, but shard 1 has no scene: all its towns failed."""
    return Shard(split, index, 0, counts={"town_failed": 8}) if index == 1 else Shard(split, index, size)
