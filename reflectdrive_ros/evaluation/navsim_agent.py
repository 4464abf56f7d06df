"""ReflectDriveAgent: an agent for NAVSIM's official devkit, 1.1 and 2.x (docs/navsim.md).

Its hydra file is config/navsim/agent/reflectdrive_agent.yaml. It reads three cameras at as many of the last frames as
the network takes, ego state and command, and returns a plan of `trajectory_sampling` at the rear axle. It has what
any NAVSIM planner has (privilege `words`): no route, no map, no objects.

This module needs the devkit; all that does not is in `evaluation.navsim`.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Mapping
from typing import Any

import numpy as np

from ..core import kinematics
from ..core.config import Config, ConfigError, override_dotted
from ..core.domain import Observation
from ..features import cameras
from ..features.images import InputSpec
from ..infra.errors import UserError
from ..planning import generator_spec, get_planner
from ..planning.planner import Networks, PlannerContext, PlanningError
from ..planning.stop_plan import stop_plan
from ..runtime.engine import camera_network, check_networks
from ..runtime.model_file import model_config
from ..runtime.network import load_networks, worker_network
from .driving_scores import extend, plan_once
from .navsim import PAST_FRAMES, observe

try:
    from navsim.agents.abstract_agent import AbstractAgent
    from navsim.common.dataclasses import AgentInput, SensorConfig, Trajectory
    from nuplan.planning.simulation.trajectory.trajectory_sampling import TrajectorySampling
except ImportError as fault:
    raise UserError(f"the NAVSIM devkit cannot be imported ({fault}): install it as docs/navsim.md says") from None

LOG = logging.getLogger(__name__)


class ReflectDriveAgent(AbstractAgent):  # type: ignore[misc]
    """A planner of this package as an agent of the devkit."""

    def __init__(
        self,
        model: str | None = None,
        planner: str = "reflectdrive2",
        settings: Mapping[str, Any] | None = None,
        trajectory_sampling: TrajectorySampling | None = None,
    ) -> None:
        """`model`: weights or card of graphs, None for the shipped ones; `settings`: as `--setting`, by dotted name.

        Raises ConfigError for a planner without cameras, or settings that are not there.
        """
        sampling = trajectory_sampling or TrajectorySampling(time_horizon=4, interval_length=0.5)
        takes = inspect.signature(AbstractAgent.__init__).parameters
        super().__init__(**({"trajectory_sampling": sampling} if "trajectory_sampling" in takes else {}))
        config = override_dotted(Config(), {"planner": planner, **(settings or {})})
        if not generator_spec(config).images:
            raise ConfigError(f"agent.planner is {planner}, expected one that reads images, such as reflectdrive2")
        if model is not None:
            model_settings = model_config(model, None)
            config = override_dotted(config, {"model.file": model_settings.file, "model.sha256": model_settings.sha256})
        self._sampling, self._config = sampling, config
        self._networks: Networks = {}

    def name(self) -> str:
        """Names the table of scores that the devkit writes."""
        return f"reflectdrive_{self._config.planner}"

    def initialize(self) -> None:
        """Loads the network. Raises ModelFileError, or ConfigError for one of another kind."""
        networks = load_networks(self._config, worker_network)
        check_networks(self._config, networks)
        self._networks = networks

    def get_sensor_config(self) -> SensorConfig:
        """Three cameras at the last frames that the network takes; no other camera, no lidar."""
        frames = list(range(PAST_FRAMES - self._inputs.instants, PAST_FRAMES))
        names = ("cam_f0", "cam_l0", "cam_l1", "cam_l2", "cam_r0", "cam_r1", "cam_r2", "cam_b0", "lidar_pc")
        return SensorConfig(**{name: frames if name in ("cam_f0", "cam_l0", "cam_r0") else False for name in names})

    def compute_trajectory(self, agent_input: AgentInput) -> Trajectory:
        """Poses (num_poses, 3) x m, y m, heading rad of the rear axle in the present ego frame.

        Where the planner has no plan it is the stop plan, with a warning in the log. Raises ValueError for an
        AgentInput that lacks images or history.
        """
        spec = self._inputs
        observation = observe(agent_input, cameras.rig(spec.width, spec.height), spec.instants)
        dt_s = float(self._sampling.interval_length)
        times_s = dt_s * np.arange(1, int(self._sampling.num_poses) + 1)
        trajectory = extend(self._plan(observation))
        if times_s[-1] > trajectory.horizon_s + 1e-9:
            raise ConfigError(f"agent.trajectory_sampling asks for {times_s[-1]:.1f} s, plans have 4 s")
        poses = kinematics.resample(trajectory, times_s)
        return Trajectory(poses.astype(np.float32), self._sampling)

    def _plan(self, observation: Observation) -> Any:
        try:
            plan = plan_once(get_planner(self._config), observation, PlannerContext.of(self._config, self._loaded))
        except PlanningError as fault:
            LOG.warning("no plan, the stop plan is used: %s", fault)
            plan = stop_plan(observation.ego, None, None, self._config)
        return plan.trajectory

    @property
    def _loaded(self) -> Networks:
        if not self._networks:
            self.initialize()
        return self._networks

    @property
    def _inputs(self) -> InputSpec:
        network = camera_network(self._loaded)
        assert network is not None  # `initialize` has refused others
        return network.inputs
