"""Actors that are added to a scene after recording: a parked car whose door opens, or that pulls out.

The recorded traffic does not react to them, so they are only placed where no road user but the ego meets them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...core import geometry
from ...core.domain import Array
from ...data.scene import NOW, TRACK_STEPS
from .actors import KIND_OF_SHAPE, Actors, Shape, Snapshot
from .traffic_log import TrafficLog

STEP_S = 0.1
TIMES_S = STEP_S * (np.arange(TRACK_STEPS) - NOW)
DOOR_SIZE_M = (1.05, 0.14, 1.15)  # across the parked car's side
DOOR_HINGE = 0.12  # of the car's length, ahead of its middle
DOOR_OPEN_S = 1.2  # it opened so long ago
DOOR_ID = 1_000_000_000
PULL_OUT_START_S = (-1.2, 0.2)  # when a car pulls out
PULL_OUT_MPS2 = (1.3, 2.2)
PULL_OUT_MPS = (4.0, 8.0)
PULL_OUT_M = (9.0, 13.0)  # of road until it is in the lane
LEFT = 1


@dataclass(frozen=True, eq=False)
class ScriptedActor:
    """One actor over the steps of a scene, in the map frame."""

    id: int
    shape: Shape
    size: Array  # (3,) length, width, height m
    poses: Array  # (71, 3) box centres
    speeds_mps: Array  # (71,)
    present: Array  # (71,) bool
    indicator: int
    replaces_row: int | None  # row of the log that it replaces

    @property
    def kind(self) -> int:
        return int(KIND_OF_SHAPE[self.shape])

    def into(self, snapshot: Snapshot, step: int, log: TrafficLog) -> Snapshot:
        """A snapshot with the actor in it, `step` steps after the moment (before it where negative)."""
        actors, row = snapshot.actors, NOW + step
        if self.replaces_row is not None:
            actors = actors.select(actors.ids != log.ids[self.replaces_row])
        if self.present[row]:
            actors = actors.concatenate(
                Actors(
                    ids=np.array([self.id]),
                    poses=self.poses[row : row + 1],
                    speeds_mps=self.speeds_mps[row : row + 1],
                    sizes=self.size[None],
                    shapes=np.array([int(self.shape)]),
                    braking=np.zeros(1, bool),
                    indicator=np.array([self.indicator]),
                )
            )
        return Snapshot(snapshot.time_s, actors, snapshot.lamps)


def open_door(log: TrafficLog, step: int, parked: int) -> ScriptedActor:
    """The open door on the left of a parked car."""
    length, width = log.sizes[parked, :2]
    hinge = np.array([DOOR_HINGE * length, 0.5 * width + 0.5 * DOOR_SIZE_M[0], 0.5 * np.pi])
    return ScriptedActor(
        id=DOOR_ID + int(log.ids[parked]),
        shape=Shape.DOOR,
        size=np.array(DOOR_SIZE_M),
        poses=np.repeat(geometry.compose(log.poses[step, parked], hinge)[None], TRACK_STEPS, axis=0),
        speeds_mps=np.zeros(TRACK_STEPS),
        present=TIMES_S > -DOOR_OPEN_S,
        indicator=0,
        replaces_row=None,
    )


def pull_out(log: TrafficLog, step: int, parked: int, lane: Array, generator: np.random.Generator) -> ScriptedActor:
    """A parked car that leaves its parking position and drives along a lane (L, 2+) to its left."""
    low, high = np.array([PULL_OUT_START_S, PULL_OUT_MPS2, PULL_OUT_MPS, PULL_OUT_M]).T
    start_s, rate, speed, length_m = generator.uniform(low, high)
    since = np.maximum(TIMES_S - start_s, 0.0)
    speeds = np.minimum(rate * since, speed)
    travelled = np.where(since < speed / rate, 0.5 * rate * since**2, speed * (since - 0.5 * speed / rate))
    parked_pose = log.poses[step, parked]
    (begin,), (lateral_m,) = geometry.project(lane, parked_pose[None, :2])
    u = np.clip(travelled / length_m, 0.0, 1.0)
    offset_m = lateral_m * (1.0 - u**3 * (10.0 - 15.0 * u + 6.0 * u**2))
    slope = -lateral_m * 30.0 * u**2 * (1.0 - u) ** 2 / length_m
    on_lane = geometry.sample(lane, begin + travelled)
    poses = geometry.compose(on_lane, np.stack([np.zeros_like(offset_m), offset_m, np.arctan(slope)], axis=-1))
    poses[since == 0.0] = parked_pose
    return ScriptedActor(
        id=int(log.ids[parked]),
        shape=Shape(int(log.shapes[parked])),
        size=log.sizes[parked],
        poses=poses,
        speeds_mps=speeds,
        present=np.ones(TRACK_STEPS, bool),
        indicator=LEFT,
        replaces_row=parked,
    )
