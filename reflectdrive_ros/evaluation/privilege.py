"""Privileges: a planner's inputs beyond camera images. Scores of different privileges are never compared.

- `words`: command, speed limit and instruction, as NAVSIM planners have them; no route.
- `route`: also the route and its lanes, without their lights. A vehicle with cameras and navigation knows this.
- `objects`: also the objects with their past and present velocities, the lanes, lights and stop lines, and the drivable
  area. Most published numbers of planners that score or repair their plans are of this kind.
- `logged`: also the recorded futures of the objects. An upper bound for better prediction; no vehicle has it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np

from ..core.domain import Agents, Array, DrivableGrid, LanePolylines, Observation
from ..data.scene import NOW, DrivingScene
from ..scoring import drivable
from ..scoring.simulate import DT_S

PRIVILEGES = ("words", "route", "objects", "logged")
LOSABLE = ("cameras", "objects", "lights", "map")  # inputs that can fail on a vehicle
LOST_AFTER_S = 10.0  # of a drive
FUTURE_STRIDE = 5  # 0.5 s between the poses of a logged future


def observe(scene: DrivingScene, privilege: str, with_drivable: bool = True, with_vectors: bool = False) -> Observation:
    """The observation of a scene under a privilege.

    `with_drivable=False` leaves out the drivable area, which takes 0.1 s to compute. `with_vectors` adds lanes and
    history. Raises ValueError for an unknown privilege.
    """
    if privilege not in PRIVILEGES:
        raise ValueError(f"privilege is '{privilege}', expected one of {', '.join(PRIVILEGES)}")
    if privilege in ("words", "route"):
        without_agents = replace(scene.observation(), agents=None)
        if privilege == "words":
            return replace(without_agents, route=np.zeros((0, 3)))
        return (
            replace(without_agents, route_lanes=route_lanes_without_lights(scene)) if with_vectors else without_agents
        )
    grid = drivable_grid(scene) if with_drivable else None
    observation = scene.observation(drivable=grid, lights=True, vectors=with_vectors)
    return replace(observation, agents=agents_with_logged_futures(scene)) if privilege == "logged" else observation


def without(observation: Observation, lost: Sequence[str]) -> Observation:
    """The observation without some of LOSABLE. Lights are unknown too without a map, which has their stop lines."""
    if "cameras" in lost:
        observation = replace(observation, cameras=())
    if "objects" in lost:
        observation = replace(observation, agents=None, history=None)
    if "lights" in lost or "map" in lost:
        lanes, route_lanes = map(_without_lights, (observation.lanes, observation.route_lanes))
        observation = replace(observation, traffic_lights=None, lanes=lanes, route_lanes=route_lanes)
    if "map" in lost:
        observation = replace(observation, drivable=None, stop_lines=None, lanes=None, route_lanes=None)
    return observation


def _without_lights(lanes: LanePolylines | None) -> LanePolylines | None:
    return None if lanes is None else replace(lanes, lights=np.zeros_like(lanes.lights))


def route_lanes_without_lights(scene: DrivingScene) -> LanePolylines:
    """The lanes of the route as a navigation system knows them."""
    lanes = _without_lights(scene.vectors["route_lanes"])
    assert lanes is not None
    return lanes


@lru_cache(maxsize=1)
def drivable_grid(scene: DrivingScene) -> DrivableGrid | None:
    """The drivable area of the PDM score: roads, intersections and car parks; None for a scene without a map.

    That of the last scene is kept, for its other privileges.
    """
    if not scene.has_map:
        return None
    areas = scene.areas
    return drivable.grid_around_ego(drivable.union_polygons([*areas.roadblocks, *areas.intersections, *areas.carparks]))


def agents_with_logged_futures(scene: DrivingScene) -> Agents:
    """Agents present now with their recorded future poses; an agent that disappears keeps its last velocity."""
    now, tracks = scene.agents, scene.tracks
    visible = tracks.present[:, NOW]
    later = slice(NOW, None)
    poses, present, speeds = (each[visible, later] for each in (tracks.poses, tracks.present, tracks.speeds_mps))
    last = np.where(present.all(axis=1), present.shape[1], present.argmin(axis=1)) - 1  # the last step before a gap
    steps = np.arange(present.shape[1])
    gone_s = DT_S * np.maximum(steps - last[:, None], 0)
    last_poses: Array = poses[np.arange(len(poses))[:, None], np.minimum(steps, last[:, None])].copy()
    speed = speeds[np.arange(len(poses)), last][:, None]
    last_poses[..., 0] += speed * gone_s * np.cos(last_poses[..., 2])
    last_poses[..., 1] += speed * gone_s * np.sin(last_poses[..., 2])
    return replace(
        now, predicted_poses=last_poses[:, FUTURE_STRIDE::FUTURE_STRIDE], predicted_dt_s=FUTURE_STRIDE * DT_S
    )
