"""The planners by name. Each is one function that follows its paper."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass

from ..core.config import DENOISER_PLANNERS, Config, ConfigError
from ..core.domain import Observation, Trajectory
from ..core.recipe_config import DecodingConfig
from . import constant_velocity, drivefine, reflectdrive, reflectdrive2, reflexdiffusion, route_follower
from .generators import idm_proposals
from .planner import Planner, PlannerContext

PLANNERS: dict[str, Planner] = {
    "constant_velocity": constant_velocity.plan,
    "route_follower": route_follower.plan,
    "idm_proposals": idm_proposals.plan,
}
CAMERA_FREE = (*PLANNERS, *sorted(DENOISER_PLANNERS))  # they use no images, so none need be rendered or read
ROAD_FREE = ("constant_velocity", "route_follower")  # they use no drivable space, so none need be computed
VECTOR_PLANNERS = DENOISER_PLANNERS  # they read lanes with their lights, and history; others pay nothing
LEARNED: dict[str, Planner] = {  # they need the weights of a network
    "drivefine": drivefine.plan,
    "reflectdrive": reflectdrive.plan,
    "reflectdrive2": reflectdrive2.plan,
    "reflexdiffusion": reflexdiffusion.plan,
}
PROPOSALS: dict[
    str, Callable[[Observation, PlannerContext], tuple[Trajectory, ...]]
] = {  # all candidates, without choice or repair
    "drivefine": drivefine.proposals,
    "reflectdrive": reflectdrive.proposals,
    "reflectdrive2": reflectdrive2.proposals,
}
PREFETCHABLE_DRAFTS = {
    "reflectdrive2": reflectdrive2.draft_inputs
}  # planners whose first draft depends on the scene alone


def get_planner(config: Config) -> Planner:
    """The configured planner. Raises ConfigError naming the available planners, or what is missing."""
    planners = available_planners(config)
    if config.planner in planners:
        return planners[config.planner]
    if config.planner in LEARNED:
        raise ConfigError(
            f"planner {config.planner} needs a model: set model.file and model.sha256, or give --model FILE"
        )
    raise ConfigError(f"planner is '{config.planner}', expected one of {', '.join((*PLANNERS, *LEARNED))}")


def needed_capabilities(config: Config) -> frozenset[str]:
    """Capabilities that the configured planner needs of its token network."""
    needs = {
        "drivefine": drivefine.needs(config.drivefine),
        "reflectdrive": reflectdrive.NEEDS,
        "reflectdrive2": reflectdrive2.NEEDS,
    }
    return needs.get(config.planner, frozenset())


def available_planners(config: Config) -> dict[str, Planner]:
    """The planners that can run with a configuration: learned ones need model weights."""
    return {**PLANNERS, **LEARNED} if config.model.file else dict(PLANNERS)


@dataclass(frozen=True)
class ReflectDriveDecoding(DecodingConfig):
    """`decoding` with number and spacing of the goals and the guidance of `reflectdrive`."""

    guidance: float = 0.0  # weight of classifier-free guidance


def decoding_config(config: Config) -> DecodingConfig:
    """Decoding settings of the configured planner."""
    if config.planner != "reflectdrive":
        return config.decoding
    settings = config.reflectdrive
    own = {name: getattr(settings, name) for name in ("goals", "goal_spacing_m", "guidance")}
    return ReflectDriveDecoding(**asdict(config.decoding) | own)
