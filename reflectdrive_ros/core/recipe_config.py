"""Settings of the learned planners: decoding of tokens, and one section for each recipe."""

from __future__ import annotations

from dataclasses import dataclass

from ..infra.config_fields import setting


@dataclass(frozen=True)
class DecodingConfig:
    """How networks decode plans; the defaults are ReflectDrive-2's."""

    goals: int = setting(6, "largest number of goals that are drafted", 1, 32)
    goal_spacing_m: float = setting(
        1.2, "non-maximum suppression: of goals closer than this the more probable one is kept", 0.0, 20.0
    )
    rescore_goals: int = setting(8, "number of most probable goals that the value head scores", 1, 32)
    goal_value_power: float = setting(
        3.0, "power of the goal value in the product with the goal probability; 0 ignores the value", 0.0, 10.0
    )


@dataclass(frozen=True)
class PipelineConfig:
    """What is done with the candidates of a planner, the same for all. All off: the planner's own plan."""

    vary: bool = setting(
        True,
        "also try smooth changes of the preferred plan and the rest of the last one; needs objects and traffic lights",
    )
    select: bool = setting(
        True, "choose the plan with the best driving score in the forecast, if objects or drivable space are known"
    )
    repair: bool = setting(True, "check the plan if objects or drivable space are known, and repair it if it is unsafe")


@dataclass(frozen=True)
class ReflectDrive2Config:
    """The recipe reflectdrive2; the defaults are those of the paper where it gives them."""

    draft_rounds: int = setting(1, "decoding rounds of the draft of a full step", 1, 14)
    edit_rounds: int = setting(3, "rounds of AutoEdit in a full step", 0, 14)
    lite_steps_per_full: int = setting(1, "1 alternates full and lite steps; 0 makes every step a full one", 0, 100)
    goal_logprob_margin: float = setting(
        1.0,
        "unless objects and traffic lights are known: choose the nearest valid goal whose log-probability is within "
        "this margin of the best; 0 chooses the best",
        0.0,
        20.0,
    )


@dataclass(frozen=True)
class ReflectDriveConfig:
    """The recipe reflectdrive; the defaults are those of the paper where it gives them."""

    goals: int = setting(3, "number of goals that are drafted; the score selects one", 1, 32)
    goal_spacing_m: float = setting(
        0.9, "non-maximum suppression: of goals closer than this the more probable one is kept", 0.0, 20.0
    )
    draft_rounds: int = setting(1, "decoding rounds of the draft", 1, 14)


@dataclass(frozen=True)
class DriveFineConfig:
    """The recipe drivefine; the defaults are those of the paper unless the text says otherwise."""

    draft_rounds: int = setting(4, "decoding rounds of a draft (paper: 12; 4 in its fastest variant)", 1, 64)
    refine: bool = setting(True, "correct all tokens of a draft in one pass of the refinement expert")
    candidates: int = setting(
        4,
        "plans of a step: the most probable, and sampled ones; one if none can be chosen, because neither objects nor "
        "drivable space are known",
        1,
        32,
    )


@dataclass(frozen=True)
class ReflexDiffusionConfig:
    """The recipe reflexdiffusion; the defaults are those of the paper unless the text says otherwise."""

    steps: int = setting(10, "steps of the sampler; one more evaluation ends it", 2, 100)
    guidance: float = setting(
        1.0,
        "weight of classifier-free guidance: 1 uses all conditions, 0 only the route (paper: 0.9; 1.3 scores 1.2 more "
        "on 200 scenes of `val`, within noise, and drives less comfortably in closed loop)",
        0.0,
        3.0,
    )
    reflection: bool = setting(True, "do a step again if the confidence of its predicted plan is low")
