"""One scene of the proving ground or of a recording: a planner's inputs at one stamp, the future, the expert's plan.

All geometry is in the ego frame at `t = 0`, at the rear axle; only `map_from_ego` leads out of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from ..core.agent_motion import with_motion
from ..core.config import VehicleConfig
from ..core.domain import (
    AgentHistory,
    Agents,
    Array,
    CameraFrame,
    Command,
    DrivableGrid,
    EgoState,
    ForecastSource,
    Observation,
    StopLines,
    TrafficLights,
)
from ..core.field_checks import check_array
from ..core.kinematics import forecast
from ..scoring.areas import MapAreas, RedLights
from ..scoring.contacts import SAMPLES, AgentTracks
from ..scoring.scorer import WAYPOINTS, Reference, Scene
from ..scoring.simulate import DT_S
from .scene_lanes import lane_segments, red_now

HISTORY_STEPS = 20  # 2 s
FUTURE_STEPS = SAMPLES - 1  # 5 s
TRACK_STEPS = HISTORY_STEPS + 1 + FUTURE_STEPS
NOW = HISTORY_STEPS  # index of t = 0 in a track
INSTANTS_S = (-0.5, 0.0)  # when the images were taken

# Families and their shares of a set, in percent.
FAMILIES: Mapping[str, int] = {
    "straight": 8,
    "curve": 10,
    "turn_left": 10,
    "turn_right": 10,
    "roundabout": 8,
    "lane_end": 5,
    "lead_brakes": 9,
    "cut_in": 5,
    "crossing_pedestrian": 7,
    "bicycle": 5,
    "narrow_oncoming": 4,
    "red_light": 8,
    "parked_door": 5,
    "u_turn": 2,
    "high_lateral_acceleration": 4,
}


@dataclass(frozen=True, eq=False)
class Tracks:
    """Road users from 2 s before to 5 s after the moment, at 10 Hz."""

    poses: Array  # (A, 71, 3) box centres
    speeds_mps: Array  # (A, 71) along the heading
    present: Array  # (A, 71) bool; poses and speeds are 0 where absent
    sizes: Array  # (A, 2) length, width m
    kinds: Array  # (A,) AgentKind

    def __post_init__(self) -> None:
        count = len(np.atleast_1d(self.kinds))
        for name, shape, dtype in (
            ("poses", (count, TRACK_STEPS, 3), np.float64),
            ("speeds_mps", (count, TRACK_STEPS), np.float64),
            ("present", (count, TRACK_STEPS), np.bool_),
            ("sizes", (count, 2), np.float64),
            ("kinds", (count,), np.int64),
        ):
            object.__setattr__(self, name, check_array("Tracks", name, getattr(self, name), shape, dtype))

    def __len__(self) -> int:
        return len(self.kinds)


@dataclass(frozen=True, eq=False)
class DrivingScene:
    """One scene; the module docstring describes it."""

    name: str  # as "test-00003-042": set, shard, place in it
    family: str
    network: str  # name of the road map
    network_hash: str  # of its geometry: no two sets share one
    seed: int  # of the traffic
    ego: EgoState
    ego_history: Array  # (21, 3) rear-axle poses at -2.0 .. 0 s
    command: Command
    instruction: str  # as "turn left in 30 m"
    speed_limit_mps: float
    route: Array  # (L, 3) from behind the ego onwards
    areas: MapAreas  # none: the road is unknown
    red_lights: RedLights
    tracks: Tracks
    expert: Array  # (8, 3) at 0.5 .. 4 s
    reference: Reference
    cameras: tuple[CameraFrame, ...] = ()  # INSTANTS_S, each left to right
    # small JSON values that explain the scene; "objects" false: nothing is known of other agents
    notes: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.family not in FAMILIES:
            raise ValueError(f"DrivingScene.family is '{self.family}', expected one of {', '.join(FAMILIES)}")
        for name, shape in (("ego_history", (HISTORY_STEPS + 1, 3)), ("route", (None, 3)), ("expert", (WAYPOINTS, 3))):
            object.__setattr__(self, name, check_array("DrivingScene", name, getattr(self, name), shape))

    @property
    def has_map(self) -> bool:
        """Whether the road around the ego is known."""
        return bool(self.areas.roadblocks or self.areas.intersections or self.areas.carparks)

    @property
    def has_objects(self) -> bool:
        """Whether other agents are known; a recording may be without."""
        return bool(self.notes.get("objects", True))

    @cached_property
    def agents(self) -> Agents:
        """The agents at t = 0."""
        seen = self.tracks.present[:, NOW]
        poses = self.tracks.poses[seen, NOW]
        direction = np.stack([np.cos(poses[:, 2]), np.sin(poses[:, 2])], axis=-1)
        return Agents(
            poses=poses,
            velocities_mps=self.tracks.speeds_mps[seen, NOW, None] * direction,
            sizes=self.tracks.sizes[seen],
            kinds=self.tracks.kinds[seen],
        )

    @cached_property
    def history(self) -> AgentHistory:
        """Of `agents`; an agent's id is its row in `tracks`."""
        seen, until = self.tracks.present[:, NOW], slice(0, NOW + 1)
        poses, speeds = self.tracks.poses[seen, until], self.tracks.speeds_mps[seen, until, None]
        direction = np.stack([np.cos(poses[..., 2]), np.sin(poses[..., 2])], axis=-1)
        return AgentHistory(np.flatnonzero(seen), poses, speeds * direction, self.tracks.present[seen, until])

    @cached_property
    def vectors(self) -> Mapping[str, Any]:
        """The lanes, history, lights and stop lines of an Observation by their names; some milliseconds."""
        segments, by_lane = lane_segments(self.areas), self._red_now[0]
        here, on_route = np.zeros(3), np.flatnonzero(self.areas.lane_on_route).tolist()
        return {
            "lanes": segments.near(here, by_lane),
            "route_lanes": segments.along(self.route, on_route, here, by_lane),
            "history": self.history,
            **self.lights,
        }

    @property
    def lights(self) -> Mapping[str, Any]:
        """The lights and stop lines of an Observation by their names; without a map they are unknown."""
        if not self.has_map:
            return {}
        _, traffic_lights, stop_lines = self._red_now
        return {"traffic_lights": traffic_lights, "stop_lines": stop_lines}

    @cached_property
    def _red_now(self) -> tuple[dict[int, int], TrafficLights, StopLines]:
        return red_now(self.areas, self.red_lights)

    def observation(
        self, *, drivable: DrivableGrid | None = None, lights: bool = False, vectors: bool = False
    ) -> Observation:
        """The planner's observation; with `lights` also lights and stop lines, with `vectors` also these, lanes and
        history."""
        return Observation(
            stamp_ns=self.ego.stamp_ns,
            ego=self.ego,
            route=self.route,
            command=self.command,
            speed_limit_mps=self.speed_limit_mps,
            cameras=self.cameras,
            agents=with_motion(self.agents, self.history) if self.has_objects else None,
            drivable=drivable,
            instruction=self.instruction,
            **(self.vectors if vectors else self.lights if lights else {}),
        )

    def scored(self, source: ForecastSource = ForecastSource.LOGGED, vehicle: VehicleConfig | None = None) -> Scene:
        """The scene for the scorer: LOGGED with the recorded future, CONSTANT_VELOCITY with a forecast.

        Without a map the scorer takes all space as drivable: report DAC and PDMS of such a scene as unknown.
        """
        if source is ForecastSource.LOGGED:
            later = slice(NOW, None)
            ever = self.tracks.present[:, later].any(axis=1)
            agents = AgentTracks(
                poses=self.tracks.poses[ever, later],
                present=self.tracks.present[ever, later],
                speeds_mps=np.abs(self.tracks.speeds_mps[ever, later]),
                sizes=self.tracks.sizes[ever],
                kinds=self.tracks.kinds[ever],
            )
        else:
            agents = AgentTracks.of_forecast(forecast(self.agents, DT_S, FUTURE_STEPS), self.agents.kinds)
        return Scene(
            self.ego.motion,
            agents,
            self.route,
            areas=self.areas if self.has_map else None,
            reference=self.reference,
            red_lights=self.red_lights,
            vehicle=vehicle or VehicleConfig(),
        )

    @property
    def map_from_ego(self) -> Array:
        return self.ego.map_from_ego
