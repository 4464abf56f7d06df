"""A tiny denoiser and the settings that train it."""

from lightning_fabric import Fabric
from tiny_training import Silent

from reflectdrive_ros.core.vector_spec import VectorSpec
from reflectdrive_ros.model.denoiser.net import DenoiserNetConfig
from reflectdrive_ros.training import diffusion
from reflectdrive_ros.training.settings import (
    CheckpointingConfig,
    DiffusionDataConfig,
    DiffusionTrainConfig,
    OptimizerConfig,
    ScheduleConfig,
)

SPEC = VectorSpec(agents=6, lanes=8, route_lanes=4, predicted_agents=3, future_steps=40)
TINY = DenoiserNetConfig(
    SPEC, hidden=16, heads=2, encoder_layers=1, decoder_layers=1, mixer_tokens=4, mixer_channels=8, route_tokens=4,
    route_channels=8, ego_inputs=True, dropout=0.0,
)  # fmt: skip


def config(steps=6, **data):
    return DiffusionTrainConfig(
        data=DiffusionDataConfig(**{"batch": 4, "samples": 2, **data}),
        schedule=ScheduleConfig(steps=steps),
        optimizer=OptimizerConfig(vision_pretrain_fraction=0.0, learning_rate=1e-3),
        checkpointing=CheckpointingConfig(log_steps=2, checkpoint_minutes=1e6, validations=0),
    )


def train(job, stop=lambda: False, reporter=None, pool=None):
    job.out.mkdir(exist_ok=True)
    return diffusion.train(job, Fabric(accelerator="cpu", devices=1), reporter or Silent(), stop, pool=pool)
