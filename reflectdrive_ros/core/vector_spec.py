"""The input format of a denoiser: how many agents and lanes it reads, what it predicts, how columns are normalised.

`features.vectors` fills such inputs, the networks of `model.denoiser` read them, and their cards describe them.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from .domain import AgentHistory
from .lanes import LANE_POINTS


@dataclass(frozen=True)
class Normalization:
    """Mean and standard deviation of each column, and of x, y, cos, sin of futures; the defaults are the published
    ones."""

    ego_mean: tuple[float, ...] = (10.0, *(9 * (0.0,)))
    ego_std: tuple[float, ...] = (20.0, 20.0, 1.0, 1.0, 20.0, 20.0, 20.0, 20.0, 1.0, 1.0)
    agent_mean: tuple[float, ...] = (10.0, *(10 * (0.0,)))
    agent_std: tuple[float, ...] = (20.0, 20.0, 1.0, 1.0, 20.0, 20.0, 20.0, 20.0, 1.0, 1.0, 1.0)
    static_mean: tuple[float, ...] = (10.0, *(9 * (0.0,)))
    static_std: tuple[float, ...] = (20.0, 20.0, 1.0, 1.0, 20.0, 20.0, 1.0, 1.0, 1.0, 1.0)
    lane_mean: tuple[float, ...] = (10.0, *(11 * (0.0,)))
    lane_std: tuple[float, ...] = (*(8 * (20.0,)), *(4 * (1.0,)))
    limit_mean: tuple[float, ...] = (0.0,)
    limit_std: tuple[float, ...] = (20.0,)
    route_mean: tuple[float, ...] = (10.0, *(11 * (0.0,)))
    route_std: tuple[float, ...] = (*(8 * (20.0,)), *(4 * (1.0,)))
    ego_future_mean: tuple[float, ...] = (10.0, 0.0, 0.0, 0.0)
    ego_future_std: tuple[float, ...] = (20.0, 20.0, 1.0, 1.0)
    agent_future_mean: tuple[float, ...] = (10.0, 0.0, 0.0, 0.0)
    agent_future_std: tuple[float, ...] = (20.0, 20.0, 1.0, 1.0)


@dataclass(frozen=True)
class VectorSpec:
    """The input format of a denoiser, and the shape of its futures; the defaults are the published ones."""

    agents: int = 32
    history_steps: int = AgentHistory.STEPS  # at 10 Hz, the last is now
    static_objects: int = 5
    lanes: int = 70
    lane_points: int = LANE_POINTS
    route_lanes: int = 25
    route_line_rows: int = 0  # first rows of the route lanes that hold the line of the route itself; published: none
    predicted_agents: int = 10  # neighbours whose futures are predicted: the first of `agents`
    future_steps: int = 80
    future_dt_s: float = 0.1
    ego_frenet: bool = False  # the ego's future is longitudinal and lateral to the route; published: in the ego frame
    normalization: Normalization = field(default_factory=Normalization)

    def __post_init__(self) -> None:
        if self.predicted_agents > self.agents:
            raise ValueError(f"predicted_agents is {self.predicted_agents}, expected at most agents ({self.agents})")
        if self.ego_frenet and not self.route_line_rows:
            raise ValueError("ego_frenet is set without route_line_rows, expected the line of the route")

    @property
    def futures(self) -> int:
        """Futures of a plan: of the ego and of its neighbours."""
        return 1 + self.predicted_agents

    @property
    def horizon_s(self) -> float:
        return self.future_steps * self.future_dt_s


SMALL_SPEC = VectorSpec(  # of the networks that train on a CPU
    agents=20,
    lanes=40,
    route_lanes=12,
    route_line_rows=3,
    predicted_agents=6,
    future_steps=40,
    ego_frenet=True,
    normalization=Normalization(ego_future_mean=(20.0, 0.0, 1.0, 0.0), ego_future_std=(12.0, 1.0, 0.2, 0.2)),
)
