"""What can be set of a training run: frozen dataclasses, laid over by YAML as strictly as `core/config.py` does."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from ..core.config import ConfigError, setting
from ..features import images as features
from ..model.denoiser import net as denoiser_net
from ..model.denoiser.net import DenoiserNetConfig
from ..model.token.net import (
    TokenNetConfig,
    base_config,
    drivefine_scene_config,
    drivefine_small_config,
    scene_small_config,
    small_config,
)

NETWORKS: Mapping[str, Callable[[], TokenNetConfig]] = {
    "small": lambda: small_config(features.WORDS),
    "base": lambda: base_config(features.WORDS),
    "drivefine_small": lambda: drivefine_small_config(features.WORDS),
    "drivefine_scene": lambda: drivefine_scene_config(features.WORDS),
    "scene_small": lambda: scene_small_config(features.WORDS),
}

DENOISERS: Mapping[str, Callable[[], DenoiserNetConfig]] = {
    "small": denoiser_net.small_config,
    "base": denoiser_net.base_config,
}


MASKINGS = ("kinds", "complementary")
TRAINED = ("all", "decoder", "actions")


@dataclass(frozen=True)
class DataConfig:
    """Order of scenes, and their augmentation."""

    batch: int = setting(32, "scenes per step, of all processes together", 1, 65_536)
    masked_actions: int = setting(4, "masked sequences per scene; with goals the first is all mask", 1, 64)
    masking: str = setting(
        "kinds",
        "of sequences: kinds (the states that decoding visits) or complementary (pairs that together mask every token "
        "once)",
    )
    perturbed_actions: int = setting(3, "perturbed plans per scene; 0: no L_SAP", 0, 64)
    flip_prob: float = setting(0.5, "share of scenes that are mirrored", 0.0, 1.0)
    text_dropout: float = setting(
        0.1, "share of scenes without text, so that the network also plans without one", 0.0, 1.0
    )
    route_dropout: float = setting(0.1, "share of scenes without a route", 0.0, 1.0)
    camera_dropout: float = setting(
        0.0, "share of scenes in which one or two cameras are black; the network can then drive without them", 0.0, 1.0
    )
    sensor_noise: float = setting(
        0.0, "share of scenes with blur and noise, as of a camera; for sets of recordings", 0.0, 1.0
    )
    prompt_cache: bool = setting(
        False, "encode each prompt once, with one augmentation per scene; only where no prompt is trained"
    )
    draft_fraction: float = setting(0.2, "share of scenes whose perturbed plans are self-drafts", 0.0, 1.0)
    draft_start: float = setting(0.3, "share of the schedule after which self-drafts begin", 0.0, 1.0)


@dataclass(frozen=True)
class LossConfig:
    """Weights of the losses; L_DLM has 1."""

    masked_only: bool = setting(False, "L_DLM counts masked positions only, as DriveFine's")
    goal: float = setting(0.2, "of L_goal, a sum over two tokens", 0.0, 100.0)
    sap: float = setting(0.7, "of L_SAP", 0.0, 100.0)
    field: float = setting(0.05, "of L_field, a sum over 8 points in metres", 0.0, 100.0)
    goal_score: float = setting(0.0, "of L_goal_score, goals by their plans' scores; needs --init-from", 0.0, 100.0)
    goal_value: float = setting(0.0, "of L_goal_value, the value of each goal; needs loss.goal_score", 0.0, 100.0)
    aux_perception: float = setting(1.0, "of L_aux, road and occupancy from image tokens; 0: none", 0.0, 100.0)


@dataclass(frozen=True)
class OptimizerConfig:
    """AdamW, its schedule, and the averaging of weights."""

    learning_rate: float = setting(6e-4, "at the end of the warm-up", 1e-9, 1.0)
    vision_pretrain_fraction: float = setting(
        0.15, "share of the run in which the vision encoder alone is trained, by L_aux", 0.0, 0.99
    )
    trained: str = setting(
        "all",
        "all; decoder: all but the vision encoder; actions: only what no prompt token passes (FFNs of action tokens, "
        "heads, slots), at a third of the time, for another layout of a trained network",
    )
    ema_decay: float = setting(0.999, "decay of the exponential moving average of the weights", 0.0, 0.999999)


@dataclass(frozen=True)
class ScheduleConfig:
    """Length of a run: in steps or, if minutes are given, in time."""

    steps: int = setting(20_000, "steps of the schedule; ignored if minutes are given", 1, 10**9)
    minutes: float = setting(0.0, "wall time of the training itself; 0: use steps", 0.0, 1e6)


@dataclass(frozen=True)
class CheckpointingConfig:
    """Intervals of checkpoints, log rows and validations."""

    checkpoint_minutes: float = setting(5.0, "between two checkpoints", 0.0, 1e6)
    log_steps: int = setting(
        20, "steps per row of the log; the first steps and the last have rows of their own", 1, 10**6
    )
    validations: int = setting(
        8, "over the whole schedule, each at the next row of the log; 0: only at its end", 0, 10_000
    )
    validation_scenes: int = setting(100, "scenes of the validation set, spread over its families", 1, 10**6)


@dataclass(frozen=True)
class DeviceConfig:
    """Devices of one machine; torchrun adds machines."""

    accelerator: str = setting("auto", "cpu, cuda or auto")
    devices: int = setting(1, "processes of this machine, one per device", 1, 64)
    precision: str = setting("32-true", "32-true or bf16-mixed")
    compile: bool = setting(False, "use torch.compile: two minutes at the start, then faster; needs a C++ compiler")
    threads: int = setting(0, "of each process on a CPU; 0: torch's default", 0, 1024)


def check_choices(config: TrainConfig | DiffusionTrainConfig, *named: tuple[str, str, Sequence[str]]) -> None:
    """Raises ConfigError for a value that is not among the allowed ones, also of the device."""
    for name, value, allowed in (
        *named,
        ("device.accelerator", config.device.accelerator, ("auto", "cpu", "cuda")),
        ("device.precision", config.device.precision, ("32-true", "bf16-mixed")),
    ):
        if value not in allowed:
            raise ConfigError(f"{name} is '{value}', expected one of {', '.join(allowed)}")


@dataclass(frozen=True)
class RlConfig:
    """Plans that are scored, and the weights of the losses."""

    goals: int = setting(4, "goals per scene whose plans are scored: the most probable one and others at random", 1, 8)
    variants: int = setting(16, "pairs of smooth variants of the most probable goal's plan", 1, 256)
    decision: float = setting(1.0, "weight of the goal decision's loss", 0.0, 100.0)
    anchor: float = setting(0.1, "weight of the supervised losses on the expert's plan", 0.0, 100.0)


@dataclass(frozen=True)
class TrainConfig:
    """All that determines the result of a run, besides the sets."""

    network: str = setting(
        "small",
        "small: 7.8 M parameters, trains on a CPU; scene_small: 2.6 M, reads the map and objects in place of images; "
        "drivefine_small, drivefine_scene: the same with DriveFine's tokens; base: 621 M, from public weights",
    )
    seed: int = setting(0, "of weights, order, masks, perturbations", 0, 2**31)
    data: DataConfig = field(default_factory=DataConfig)
    loss: LossConfig = field(default_factory=LossConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    checkpointing: CheckpointingConfig = field(default_factory=CheckpointingConfig)
    device: DeviceConfig = field(default_factory=DeviceConfig)
    weight_decay: ClassVar[float] = 0.05  # of matrices; vectors and tables of tokens have none
    trains_prompt: ClassVar[bool] = True  # unless optimizer.trained is actions

    def __post_init__(self) -> None:
        check_choices(
            self,
            ("network", self.network, tuple(NETWORKS)),
            ("data.masking", self.data.masking, MASKINGS),
            ("optimizer.trained", self.optimizer.trained, TRAINED),
        )
        if self.data.masking == "complementary" and self.data.masked_actions % 2:
            raise ConfigError(
                f"data.masked_actions is {self.data.masked_actions}, but data.masking complementary takes pairs: set "
                "it to an even number"
            )
        if self.data.prompt_cache and self.trains_prompt and self.optimizer.trained != "actions":
            raise ConfigError(
                f"data.prompt_cache is true, but prompts are trained (optimizer.trained is {self.optimizer.trained}): "
                "set it to false, or optimizer.trained to actions"
            )
        if self.data.prompt_cache and self.data.draft_fraction > 0.0:
            raise ConfigError("data.prompt_cache and data.draft_fraction exclude each other: set one to false or 0")
        if self.optimizer.trained == "actions" and self.loss.aux_perception > 0.0:
            raise ConfigError(
                "optimizer.trained is actions, so that loss.aux_perception trains nothing: set loss.aux_perception to 0"
            )
        if self.optimizer.trained == "decoder" and self.optimizer.vision_pretrain_fraction > 0.0:
            raise ConfigError(
                "optimizer.trained is decoder, so that optimizer.vision_pretrain_fraction trains nothing: set it to 0"
            )
        if self.loss.goal_value > 0.0 and self.loss.goal_score == 0.0:
            raise ConfigError("loss.goal_value is above 0 and loss.goal_score is 0: set loss.goal_score above 0")
        if self.loss.aux_perception == 0.0 and self.optimizer.vision_pretrain_fraction > 0.0:
            raise ConfigError(
                "optimizer.vision_pretrain_fraction is above 0 and loss.aux_perception is 0: the vision encoder has "
                "no loss in its pretraining; "
                "set optimizer.vision_pretrain_fraction to 0"
            )


@dataclass(frozen=True)
class RlTrainConfig(TrainConfig):
    """Of reinforcement learning: the supervised settings are those of the anchor."""

    data: DataConfig = field(
        default_factory=lambda: DataConfig(batch=8, masked_actions=2, perturbed_actions=1, draft_fraction=0.0)
    )
    loss: LossConfig = field(default_factory=lambda: LossConfig(aux_perception=0.0))
    optimizer: OptimizerConfig = field(
        default_factory=lambda: OptimizerConfig(learning_rate=5e-5, vision_pretrain_fraction=0.0, ema_decay=0.99)
    )
    weight_decay: ClassVar[float] = 0.0  # the network is trained already: few steps
    rl: RlConfig = field(default_factory=RlConfig)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.loss.goal_score or self.loss.goal_value:
            raise ConfigError(
                "loss.goal_score and loss.goal_value must be 0 in train rl: rl.decision takes their place"
            )
        if self.optimizer.vision_pretrain_fraction:
            raise ConfigError("optimizer.vision_pretrain_fraction must be 0 in train rl: set it to 0")


@dataclass(frozen=True)
class RefineLossConfig:
    """Measures of the expert that corrects plans, the plans that it learns from, and its losses."""

    layers: int = setting(1, "last layers of the network that the expert copies", 1, 256)
    variants: int = setting(16, "pairs of smooth variants of a plan, of draft and corrected plan together", 2, 256)
    imitation: float = setting(0.02, "weight of the cross-entropy with the candidates of the best scores", 0.0, 100.0)


@dataclass(frozen=True)
class RefineTrainConfig(TrainConfig):
    """Of the expert that corrects plans; the generator is not trained."""

    data: DataConfig = field(
        default_factory=lambda: DataConfig(
            batch=32, masked_actions=1, perturbed_actions=0, draft_fraction=0.0, prompt_cache=True
        )
    )
    loss: LossConfig = field(default_factory=lambda: LossConfig(aux_perception=0.0, field=0.0, sap=0.0, goal=0.0))
    optimizer: OptimizerConfig = field(
        default_factory=lambda: OptimizerConfig(learning_rate=5e-4, vision_pretrain_fraction=0.0, ema_decay=0.99)
    )
    weight_decay: ClassVar[float] = 0.0  # the expert is a copy of trained layers
    trains_prompt: ClassVar[bool] = False
    refine: RefineLossConfig = field(default_factory=RefineLossConfig)

    def __post_init__(self) -> None:
        super().__post_init__()
        used = ("goal", "sap", "field", "goal_score", "goal_value", "aux_perception")
        if extra := [name for name in used if getattr(self.loss, name)]:
            raise ConfigError(f"loss.{extra[0]} must be 0 in train refine, whose losses are refine.*: set it to 0")
        if not self.data.prompt_cache:
            raise ConfigError("data.prompt_cache must be true in train refine: its plans are drafted once")
        if self.optimizer.vision_pretrain_fraction:
            raise ConfigError("optimizer.vision_pretrain_fraction must be 0 in train refine: set it to 0")


@dataclass(frozen=True)
class DiffusionDataConfig:
    """Order of scenes, and their augmentation."""

    batch: int = setting(128, "scenes per step, of all processes together", 1, 65_536)
    samples: int = setting(4, "noise samples per scene and step; the scene is encoded once", 1, 64)
    flip_prob: float = setting(0.5, "share of scenes that are mirrored", 0.0, 1.0)
    standing_share: float = setting(
        0.0, "share of scenes whose ego stands still, which are trained by reward only", 0.0, 1.0
    )


@dataclass(frozen=True)
class DiffusionLossConfig:
    """Weights of the losses."""

    ego: float = setting(1.0, "of the ego's future: imitation of the expert", 0.0, 100.0)
    neighbours: float = setting(0.3, "of the neighbours' futures", 0.0, 100.0)


@dataclass(frozen=True)
class DenoiserRewardConfig:
    """Rewards of pairs of plans around the predicted one (`diffusion_rewards`)."""

    weight: float = setting(0.0, "weight of the loss by reward; 0: imitation only", 0.0, 1e4)


@dataclass(frozen=True)
class DiffusionTrainConfig:
    """All that determines the result of a denoiser's training, besides the sets."""

    network: str = setting("small", "small: 2.5 M parameters, trains on a CPU; base: the published 6 M")
    seed: int = setting(0, "of weights, order, noise, augmentation", 0, 2**31)
    data: DiffusionDataConfig = field(default_factory=DiffusionDataConfig)
    loss: DiffusionLossConfig = field(default_factory=DiffusionLossConfig)
    reward: DenoiserRewardConfig = field(default_factory=DenoiserRewardConfig)
    optimizer: OptimizerConfig = field(default_factory=lambda: OptimizerConfig(vision_pretrain_fraction=0.0))
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    checkpointing: CheckpointingConfig = field(
        default_factory=lambda: CheckpointingConfig(log_steps=50, validation_scenes=300)
    )
    device: DeviceConfig = field(default_factory=DeviceConfig)
    weight_decay: ClassVar[float] = 0.02  # of matrices

    def __post_init__(self) -> None:
        check_choices(self, ("network", self.network, tuple(DENOISERS)))
        if self.optimizer.vision_pretrain_fraction:
            raise ConfigError("optimizer.vision_pretrain_fraction must be 0 in train diffusion: set it to 0")
        if self.data.standing_share and not self.reward.weight:
            raise ConfigError(
                "data.standing_share is above 0 and reward.weight is 0: set it to 0, or the weight above 0"
            )


RESUMABLE_SECTIONS = (
    "schedule",
    "checkpointing",
    "device",
)  # may change when a run is resumed; all other settings determine the result


def differences(config: TrainConfig | DiffusionTrainConfig, other: Mapping[str, Any]) -> list[str]:
    """Dotted names of settings that differ in `other`, an `asdict`, without RESUMABLE_SECTIONS."""
    names = _differences(dataclasses.asdict(config), other, "")
    return [name for name in names if name.split(".")[0] not in RESUMABLE_SECTIONS]


def _differences(mine: Any, other: Any, prefix: str) -> list[str]:
    if isinstance(mine, Mapping) and isinstance(other, Mapping):
        names = {**mine, **other}
        return [each for name in names for each in _differences(mine.get(name), other.get(name), f"{prefix}{name}.")]
    return [] if mine == other else [prefix[:-1]]
