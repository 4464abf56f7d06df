"""ReflectDriveModel: a trajectory model for the driver of AlpaSim itself (docs/egodriver.md).

The driver finds it by the entry point `reflectdrive` of the group `alpasim.models`, and the folder `alpasim_configs` by
that of `alpasim.configs`: its files place AlpaSim's cameras as the network's and rectify their images to its lenses,
because a model receives no calibration. A model receives no route and no session either: each step is planned from
scratch, with the command alone (privilege `words`). `reflectdrive serve --egodriver` has all three.

This module needs `alpasim_driver`.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import cv2
import numpy as np

from ..core import geometry, kinematics
from ..core.config import Config
from ..core.domain import Array, CameraFrame, Command, EgoState, Observation
from ..evaluation.driving_scores import extend, plan_once
from ..evaluation.navsim import COMMANDS
from ..features import cameras
from ..features.images import PAIR_INTERVAL_S, PAIR_TOLERANCE_S
from ..infra.errors import UserError
from ..planning import get_planner
from ..planning.planner import Network, PlannerContext, PlanningError
from ..planning.stop_plan import stop_plan
from ..runtime.engine import check_networks
from ..runtime.model_file import model_config
from ..runtime.network import load_networks, worker_network
from ..scoring.simulate import HORIZON_S
from .convert import US_TO_NS

try:
    from alpasim_driver.models.base import BaseTrajectoryModel, ModelPrediction, PredictionInput
except ImportError as fault:
    raise UserError(f"the driver of AlpaSim cannot be imported ({fault}): install alpasim_driver") from None

LOG = logging.getLogger(__name__)
SHIPPED_MODEL = "shipped"  # as checkpoint_path
SPEED_LIMIT_MPS = 13.9  # a model receives none


class ReflectDriveModel(BaseTrajectoryModel):  # type: ignore[misc]
    """`reflectdrive2` behind AlpaSim's interface of models."""

    def __init__(self, config: Config, network: Network, camera_ids: Sequence[str], output_frequency_hz: int) -> None:
        """`camera_ids`: left, front, right. Raises ValueError for another number of them, or a frequency below 1."""
        if len(camera_ids) != network.inputs.cameras:
            raise ValueError(
                f"inference.use_cameras names {len(camera_ids)} cameras, the network reads {network.inputs.cameras}: "
                "name those at the left, in front and at the right"
            )
        if output_frequency_hz <= 0:
            raise ValueError(f"inference.output_frequency_hz is {output_frequency_hz}, expected more than 0")
        self._config, self._network, self._ids = config, network, list(camera_ids)
        self._frequency_hz = int(output_frequency_hz)
        self._rig = cameras.rig(network.inputs.width, network.inputs.height)

    @classmethod
    def from_config(
        cls, model_cfg: Any, device: Any, camera_ids: list[str], context_length: int | None, output_frequency_hz: int
    ) -> ReflectDriveModel:
        """`model_cfg.checkpoint_path`: weights or card of graphs, or `shipped`. `device` is not used: the
        backend of the card decides. `context_length`: None, or the number of images that the network takes of a camera.

        Raises ModelFileError, ConfigError or ValueError with one sentence.
        """
        config = Config()
        if model_cfg.checkpoint_path != SHIPPED_MODEL:
            config = replace(config, model=model_config(str(model_cfg.checkpoint_path), None))
        networks = load_networks(config, worker_network)
        check_networks(config, networks)
        network = networks[config.planner]
        assert network.kind == "token"
        if context_length not in (None, network.inputs.instants):
            raise ValueError(
                f"inference.context_length is {context_length}, the network takes {network.inputs.instants}"
            )
        return cls(config, network, camera_ids, output_frequency_hz)

    @property
    def camera_ids(self) -> list[str]:
        return self._ids

    @property
    def context_length(self) -> int:
        return self._network.inputs.instants

    @property
    def output_frequency_hz(self) -> int:
        return self._frequency_hz

    def _encode_command(self, command: Any) -> Command:
        """AlpaSim numbers left, straight, right, unknown from 0 on, as NAVSIM does."""
        return COMMANDS[int(command)]

    def predict(self, prediction_input: PredictionInput) -> ModelPrediction:
        """The plan at multiples of the interval up to 4 s, in the rig frame; where there is none, the stop plan.

        Raises ValueError for other cameras than `camera_ids`, missing images or a missing pose.
        """
        self._validate_cameras(prediction_input.camera_images)
        observation = self._observation(prediction_input)
        try:
            plan = plan_once(get_planner(self._config), observation, PlannerContext(self._config, self._network))
        except PlanningError as fault:
            LOG.warning("no plan, the stop plan is used: %s", fault)
            plan = stop_plan(observation.ego, None, None, self._config)
        times_s = np.arange(1, int(HORIZON_S * self._frequency_hz) + 1) / self._frequency_hz
        poses = kinematics.resample(extend(plan.trajectory), times_s)
        return ModelPrediction(trajectory_xy=poses[:, :2], headings=geometry.wrap(poses[:, 2]))

    def _observation(self, inputs: PredictionInput) -> Observation:
        """What a model receives; no route, no objects, no map."""
        if not inputs.ego_pose_history:
            raise ValueError("PredictionInput.ego_pose_history is empty: send egomotion before drive")
        instants = self._instants(inputs.camera_images)
        stamp_ns = instants[-1][0].stamp_ns
        before, now = (inputs.ego_pose_history[k] for k in (-min(2, len(inputs.ego_pose_history)), -1))
        pose, step_s = planar_pose(now), 1e-6 * (now.timestamp_us - before.timestamp_us)
        turned_rad = float(geometry.wrap(pose[2] - planar_pose(before)[2]))
        yaw_rate_rps = turned_rad / step_s if step_s > 0.0 else 0.0
        return Observation(
            stamp_ns=stamp_ns,
            ego=EgoState(stamp_ns, pose, float(inputs.speed), float(inputs.acceleration), yaw_rate_rps),
            route=np.zeros((0, 3)),
            command=self._encode_command(inputs.command),
            speed_limit_mps=SPEED_LIMIT_MPS,
            cameras=tuple(frame for frames in instants for frame in frames),
        )

    def _instants(self, images: Any) -> list[tuple[CameraFrame, ...]]:
        """Images of all cameras, of the newest instant and, if it is there, of the one `PAIR_INTERVAL_S` before."""
        if not all(images.values()):
            raise ValueError("PredictionInput.camera_images has a camera without images")
        newest = [images[name][-1] for name in self._ids]
        pairs = [(images[name][0], images[name][-1]) for name in self._ids]
        off_s = max(abs(1e-6 * (last[0] - first[0]) - PAIR_INTERVAL_S) for first, last in pairs)
        older = [[first for first, _ in pairs]] if off_s <= PAIR_TOLERANCE_S and self.context_length > 1 else []
        return [self._frames(instant) for instant in (*older, newest)]

    def _frames(self, instant: Sequence[Any]) -> tuple[CameraFrame, ...]:
        frames = []
        for camera, (time_us, image) in zip(self._rig, instant, strict=True):
            pixels = np.asarray(image)
            if pixels.shape != (camera.height, camera.width, 3):
                pixels = cv2.resize(pixels, (camera.width, camera.height), interpolation=cv2.INTER_AREA)
            stamp_ns = int(time_us) * US_TO_NS
            matrices = (camera.pixels_from_camera, camera.camera_from_ego)
            frames.append(CameraFrame(stamp_ns, camera.name, np.asarray(pixels, np.uint8), *matrices))
        return tuple(frames)


def planar_pose(stamped: Any) -> Array:
    """(3,) x m, y m, heading rad of AlpaSim's PoseAtTime. Raises ValueError for one that holds NaN or infinity."""
    position, q = stamped.pose.vec, stamped.pose.quat
    pose = np.array([position.x, position.y, geometry.headings_from_quaternions(q.x, q.y, q.z, q.w)])
    if not np.isfinite(pose).all():
        raise ValueError("PredictionInput.ego_pose_history holds NaN or infinity: send the pose of the rig")
    return pose
