"""Stand-in for the interface of models in AlpaSim's driver (`alpasim_driver.models.base`), which is not installed here:
the names, fields, abstract members and checks that its source has.
"""

import sys
import types
from abc import ABC, abstractmethod
from dataclasses import dataclass
from enum import IntEnum
from types import SimpleNamespace
from typing import Any

import numpy as np

MODULES = ("alpasim_driver", "alpasim_driver.models", "alpasim_driver.models.base")
DriveCommand = IntEnum("DriveCommand", "LEFT STRAIGHT RIGHT UNKNOWN", start=0)


@dataclass
class PredictionInput:
    camera_images: dict[str, list[tuple[int, np.ndarray]]]
    command: DriveCommand
    speed: float
    acceleration: float
    ego_pose_history: list[Any]
    inference_seed: int


@dataclass
class ModelPrediction:
    trajectory_xy: np.ndarray
    headings: np.ndarray
    reasoning_text: str | None = None


class BaseTrajectoryModel(ABC):
    def _validate_cameras(self, camera_images):
        if set(camera_images) != set(self.camera_ids):
            raise ValueError(f"expects cameras {set(self.camera_ids)}, got {set(camera_images)}")

    @classmethod
    @abstractmethod
    def from_config(cls, model_cfg, device, camera_ids, context_length, output_frequency_hz): ...

    @abstractmethod
    def _encode_command(self, command): ...

    @abstractmethod
    def predict(self, prediction_input): ...

    def predict_batch(self, prediction_inputs):
        return [self.predict(each) for each in prediction_inputs]

    @property
    @abstractmethod
    def camera_ids(self): ...

    @property
    @abstractmethod
    def context_length(self): ...

    @property
    @abstractmethod
    def output_frequency_hz(self): ...


def install(patch):
    """Makes the stand-ins importable until a monkeypatch ends."""
    for name in MODULES:
        patch.setitem(sys.modules, name, types.ModuleType(name))
    for each in (BaseTrajectoryModel, ModelPrediction, PredictionInput, DriveCommand):
        setattr(sys.modules[MODULES[-1]], each.__name__, each)
    patch.delitem(sys.modules, "reflectdrive_ros.egodriver.alpasim", raising=False)


def pose_at_time(time_us, x, y, heading):
    """PoseAtTime of AlpaSim's messages."""
    quat = SimpleNamespace(x=0.0, y=0.0, z=np.sin(heading / 2), w=np.cos(heading / 2))
    return SimpleNamespace(timestamp_us=time_us, pose=SimpleNamespace(vec=SimpleNamespace(x=x, y=y, z=0.0), quat=quat))
