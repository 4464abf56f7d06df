"""What a planner is told beyond its pictures: four answers, which must never be mixed in one column.

- `words`: a command, the speed limit and the navigator's words, as NAVSIM's planners have it; no route.
- `none`: the route, too. With pictures, words and its own motion that is what a car with cameras alone knows.
- `constant_velocity`: where the others are and how fast they go now, and the drivable space. Most published numbers of
  planners that score or repair their plans are of this kind.
- `logged`: the same with the others' true future. No car has it; it says what better prediction would be worth.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ..data.scene import NOW, DrivingScene
from ..domain import Agents, Array, DrivableGrid, Observation
from ..scoring import drivable
from ..scoring.simulate import DT_S

ORACLES = ("words", "none", "constant_velocity", "logged")
KNOT_STEPS = 5  # 0.5 s between the poses of a logged future


def observed(scene: DrivingScene, oracle: str, space: bool = True) -> Observation:
    """What a planner sees of a scene under an oracle; without `space` not where the road is, which takes 0.1 s to make.

    Raises ValueError naming the oracles there are.
    """
    if oracle not in ORACLES:
        raise ValueError(f"oracle is '{oracle}', expected one of {', '.join(ORACLES)}")
    if oracle in ("words", "none"):
        alone = replace(scene.observation(), agents=None)
        return replace(alone, route=np.zeros((0, 3))) if oracle == "words" else alone
    told = scene.observation(drivable=drivable_space(scene) if space else None)
    return replace(told, agents=with_futures(scene)) if oracle == "logged" else told


def drivable_space(scene: DrivingScene) -> DrivableGrid:
    """As the score has it: roads, intersections and car parks."""
    areas = scene.areas
    return drivable.grid_around_ego(drivable.union_polygons([*areas.roadblocks, *areas.intersections, *areas.carparks]))


def with_futures(scene: DrivingScene) -> Agents:
    """Who is there now, with where they will be; who leaves the scene goes straight on."""
    now, tracks = scene.agents, scene.tracks
    seen = tracks.present[:, NOW]
    later = slice(NOW, None)
    poses, present, speeds = (each[seen, later] for each in (tracks.poses, tracks.present, tracks.speeds_mps))
    last = np.where(present.all(axis=1), present.shape[1], present.argmin(axis=1)) - 1  # the last step before a gap
    steps = np.arange(present.shape[1])
    gone_s = DT_S * np.maximum(steps - last[:, None], 0)
    held: Array = poses[np.arange(len(poses))[:, None], np.minimum(steps, last[:, None])].copy()
    speed = speeds[np.arange(len(poses)), last][:, None]
    held[..., 0] += speed * gone_s * np.cos(held[..., 2])
    held[..., 1] += speed * gone_s * np.sin(held[..., 2])
    return replace(now, predicted_poses=held[:, KNOT_STEPS::KNOT_STEPS], predicted_dt_s=KNOT_STEPS * DT_S)
