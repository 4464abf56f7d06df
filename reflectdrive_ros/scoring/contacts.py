"""Other agents over time, and gaps between their boxes and those of N candidates.

Few of the N x A x T pairs are close. Two filters precede the separating-axis test in `src/contacts.cpp`: the rectangles
around a candidate's and an agent's paths, and circumscribed circles.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import reflectdrive_kernels as kernels

from ..core.domain import AgentKind, Array, Forecast
from ..core.field_checks import check_array

SAMPLES: int = kernels.AGENT_SAMPLES  # 51: 0, 0.1, .. 5.0 s, 4 s of driving and 1 s of looking ahead
STOPPED_MPS = 0.05  # section 4 of the PDM score: slower is stopped, for the ego and for others
BEHIND_RAD = float(np.deg2rad(150.0))  # from straight ahead: an agent further round is behind
FAULT_RULE = (STOPPED_MPS, BEHIND_RAD)  # an argument of the kernels: whose fault a contact is


@dataclass(frozen=True, eq=False)
class AgentTracks:
    """Agents over the next 5 s, in the ego frame at t = 0; poses are box centres."""

    poses: Array  # (A, 51, 3) x m, y m, heading rad at 0, 0.1, .. 5.0 s
    present: Array  # (A, 51) bool; an absent agent has no contacts
    speeds_mps: Array  # (A, 51) over ground
    sizes: Array  # (A, 2) length m, width m
    kinds: Array  # (A,) AgentKind

    def __post_init__(self) -> None:
        count = len(np.atleast_1d(self.poses))
        for name, shape, dtype in (
            ("poses", (count, SAMPLES, 3), np.float64),
            ("present", (count, SAMPLES), np.bool_),
            ("speeds_mps", (count, SAMPLES), np.float64),
            ("sizes", (count, 2), np.float64),
            ("kinds", (count,), np.int64),
        ):
            object.__setattr__(self, name, check_array("AgentTracks", name, getattr(self, name), shape, dtype))
        if (self.sizes <= 0).any():
            raise ValueError("AgentTracks.sizes holds a length or width that is not positive")

    def __len__(self) -> int:
        return len(self.poses)

    @staticmethod
    def none() -> AgentTracks:
        return AgentTracks(
            np.zeros((0, SAMPLES, 3)),
            np.zeros((0, SAMPLES), bool),
            np.zeros((0, SAMPLES)),
            np.zeros((0, 2)),
            np.zeros(0, np.int64),
        )

    @staticmethod
    def of_forecast(forecast: Forecast, kinds: Array) -> AgentTracks:
        """A forecast at 10 Hz, linear between its poses; past its end the agents go on as in its last interval."""
        count = len(forecast.poses)
        poses, speeds_mps = np.empty((count, SAMPLES, 3)), np.empty((count, SAMPLES))
        kernels.continue_tracks(forecast.poses, forecast.dt_s, poses, speeds_mps)
        for each in (present := np.ones((count, SAMPLES), bool), poses, speeds_mps):
            each.flags.writeable = False  # so that no copy is kept
        return AgentTracks(poses, present, speeds_mps, forecast.sizes, kinds)

    @cached_property
    def columns(self) -> Array:
        """(5, A, 51) x, y, cosine and sine of the heading, speed; as the kernels read them."""
        columns = np.empty((5, *self.speeds_mps.shape))
        columns[0], columns[1] = self.poses[:, :, 0], self.poses[:, :, 1]
        np.cos(self.poses[:, :, 2], out=columns[2])
        np.sin(self.poses[:, :, 2], out=columns[3])
        columns[4] = self.speeds_mps
        return columns

    def for_kernels(self, first_speeds: bool = False) -> tuple[Array, Array, Array, Array]:
        """An argument of the kernels; with `first_speeds` each agent has the speed of its first observation."""
        columns = self.columns
        if first_speeds:
            columns = columns.copy()
            columns[4] = self.first_speeds_mps[:, None]
        return columns, self.present, self.sizes, self.are_static

    @property
    def first_speeds_mps(self) -> Array:
        """(A,) speed when first present, which the official code uses at all times (quirk Q1)."""
        return np.asarray(self.speeds_mps[np.arange(len(self)), np.argmax(self.present, axis=1)])

    @property
    def are_static(self) -> Array:
        """(A,) bool: cones, barriers and the like. Agents of unknown kind count as road users."""
        return np.asarray(self.kinds == AgentKind.STATIC)


def clearances(centers: Array, size: Array, agents: AgentTracks, samples: Array, at_most_m: float) -> Array:
    """(N, K) metres from ego boxes (length, width) at centre poses (N, K, 3) to the nearest agent at its samples (K,):
    0 on contact, at most `at_most_m`.

    A lower bound by separating axes (see geometry.box_separation): exact unless corner faces corner.
    """
    centers = np.asarray(centers, float)
    gaps_m = np.empty(centers.shape[:2])
    kernels.agent_gaps(centers, np.asarray(samples, np.int64), size.tolist(), agents.for_kernels(), at_most_m, gaps_m)
    return gaps_m
