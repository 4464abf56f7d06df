"""The engine: one observation in, one plan out. It never raises, and always returns a plan.

The clock is passed in; topics, devices and files are elsewhere. Replay, demo, closed loop and the node call this same
engine. If the planner's own plan is not accepted, the result is:

1. the last good plan carried forward, while it is younger than CARRY_MAX_S and still passes the guard;
2. else the stop plan, along the path of the last good plan if there is one.

A car that is not on its route (`planning/off_route.py`) gets the stop plan at once, whatever the planner.

A plan that is late but accepted is not published (a newer image exists by then) but stored as the last good one. A
planner that is always slightly too slow therefore drives on plans that are one step old, checked again, with LATE in
the diagnostics; otherwise the car would never start.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from itertools import islice

from ..core.config import Config, ConfigError
from ..core.domain import (
    Agents,
    EgoState,
    Observation,
    Plan,
    PlanningFactor,
    PlanSource,
    SafetyCheck,
    StepReport,
    Verdict,
)
from ..core.kinematics import carry_forward, path_ahead
from ..features.cameras import Camera
from ..planning import generator_spec, get_planner, guard, learned_configs, needed_capabilities
from ..planning.continuation import continue_plan
from ..planning.factors import planning_factors
from ..planning.inputs import reads_images
from ..planning.off_route import off_route_reason
from ..planning.planner import (
    AnyNetwork,
    Network,
    Networks,
    Planner,
    PlannerContext,
    PlannerState,
    PlanningError,
)
from ..planning.postprocess import comfort
from ..planning.postprocess.lateral_jerk import limited_trajectories
from ..planning.postprocess.speed_profile import slow_trajectory
from ..planning.postprocess.waypoints import CARRY_MAX_S, FOLLOWED_M, follows
from ..planning.standstill import Standstill, StartMode, leave
from ..planning.stop_plan import stop_plan
from ..scoring.safety import SafetyContext, safety_check
from .model_file import training_domain
from .network import load_networks
from .prefetch import Prefetcher

log = logging.getLogger(__name__)

Clock = Callable[[], float]  # seconds, monotonic
NO_DEADLINE_MS = 10_000.0  # a deadline that no step reaches, where lateness is not assessed
MAX_LATERAL_SHIFT_M = 0.5  # to the last plan, unless safety requires more: a car that swerves at every step drifts
WIDE_GAP_M = 1.0  # a gap to others, or to the road's edge, that may shrink for the sake of a steady plan
ENOUGH_GAP_M = 0.5  # likewise, for the sake of the lateral jerk, which changes plans by centimetres
EQUAL_GAP = 0.95  # share of a gap that counts as the same: a smooth path moves by millimetres
LIMITED_MAX = 3  # plans of less lateral jerk that are checked


class Engine:
    """Holds the planner's memory and the last good plan; everything else is passed with each call."""

    def __init__(
        self,
        config: Config,
        clock: Clock = time.monotonic,
        planner: Planner | None = None,
        network: AnyNetwork | Networks | None = None,
        prefetch_scenes: bool = False,
    ) -> None:
        """`clock`: the source of time for durations and the deadline; a replay or a test passes its own.

        The planner is the configured one, with its network loaded and self-checked, or the given one. `network`: in
        place of the configured one; of several planners, by name.

        `prefetch_scenes`: encode the observations given to `prefetch` at once, if the network supports it; for replays.
        Raises ConfigError or ModelFileError: one sentence with what to change. No other planner is used instead.
        """
        is_configured, learned = planner is None, learned_configs(config)
        networks = networks_by_planner(network, config)
        if planner is None:
            planner = get_planner(config)
            if not networks:
                # prefetching uses all cores, so that each scene gets one thread
                model = replace(config.model, threads=1) if prefetch_scenes else config.model
                networks = load_networks(replace(config, model=model))
            networks = {name: networks[name] for name in learned if name in networks}
            check_networks(config, networks)
        described = {name: getattr(each, "backend_description", type(each).__name__) for name, each in networks.items()}
        self.backend_description = "; ".join(
            description if len(described) == 1 else f"{name}: {description}" for name, description in described.items()
        )
        self.model_sha256 = ", ".join(learned[name].model.sha256.lower() for name in networks if name in learned)
        self.image_size = image_size(networks)
        self.rig = camera_rig(networks) if config.cameras.reproject else ()
        self.camera_dropout = takes_black_images(networks)
        self.domain_note = network_domain_note(config)
        self._config = config
        self._clock = clock
        self._planner = planner
        self._start_s = clock()  # of the step
        context = PlannerContext.of(config, networks)
        self._planner_context = replace(context, deadline_used=self._deadline_used, clock=clock)
        self._prefetcher: Prefetcher | None = None
        only = context.network if len(networks) == 1 else None  # several planners prefetch nothing
        concurrent = prefetch_scenes and getattr(only, "concurrent", False)
        if concurrent and only is not None and only.kind == "token":
            draft_inputs = generator_spec(config).draft_inputs if is_configured else None
            self._prefetcher = ahead = Prefetcher(
                only, clock, draft_inputs and partial(draft_inputs, planner_context=self._planner_context)
            )
            self._planner_context = PlannerContext(
                config, ahead, make_inputs=ahead.make_inputs, deadline_used=self._deadline_used, clock=clock
            )
        self.reset()

    def reset(self) -> None:
        """Forget everything, as after a jump of the clock or a new drive."""
        self._state = PlannerState()
        self._last_good: Plan | None = None
        self._off_route = ""  # why the car was not on its route at the last step; empty if it was
        self._standstill = Standstill()

    def prefetch(self, observation: Observation) -> None:
        """Announces an observation of a later step: its encoding may start."""
        if self._prefetcher is not None:
            self._prefetcher.prefetch(observation)

    def step(self, observation: Observation, start: StartMode = StartMode.NEVER) -> StepReport:
        """Plan for one observation. Timings in the report are milliseconds by stage. `start`: whether a standing car
        may be started where the planner plans to stay."""
        start_s = self._start_s = self._clock()
        safety_context = SafetyContext(observation, self._config)  # builds its parts on first use
        stop = self._stop(observation.ego, observation.others, safety_context)
        planning = self._clock()
        plan: Plan | None = None
        full_step_reason, notes, ahead_s = "", tuple[str, ...](), 0.0
        stages_ms: Mapping[str, float] = {}
        try:
            self._off_route = off_route_reason(observation.route, self._config.route, was_off=bool(self._off_route))
            if self._off_route:
                raise PlanningError(self._off_route)
            state, plan = self._planner(self._state, observation, replace(self._planner_context, safety=safety_context))
            full_step_reason, notes, stages_ms = state.full_step_reason, state.notes, state.stage_ms
            plan = slow_to_limits(plan, safety_context)
            judging = self._clock()
            ahead_s = self._prefetcher.overlap_s() if self._prefetcher is not None else 0.0
            judgement = guard.check(plan, safety_context, 1e3 * (judging + ahead_s - start_s))
        except PlanningError as fault:
            state, judging = self._state, self._clock()
            judgement = guard.Judgement(Verdict.INFEASIBLE, str(fault))
        except Exception as fault:  # a planner that throws is a planner that must not drive
            log.exception("planner failed")
            state, judging = self._state, self._clock()
            judgement = guard.Judgement(Verdict.INFEASIBLE, f"the planner failed with {type(fault).__name__}: {fault}")

        sound = judgement.verdict in (Verdict.OK, Verdict.LATE)
        self._state = state if sound else PlannerState()
        if sound and plan is not None:
            plan, jump = self._limit_lateral_shift(plan, safety_context)
            notes += (jump,) if jump else ()
            plan = self._limit_lateral_jerk(plan, safety_context)
        if judgement.verdict is Verdict.OK and plan is not None:
            started, why = self._started(plan, start, safety_context)
            sent, source = plan if started is None else started, PlanSource.PLANNER
            notes += (why,) if why else ()
        elif not self._off_route and (carried := self._carried_plan(safety_context)) is not None:
            sent, source = carried, PlanSource.CARRIED
        else:
            sent, source = stop, PlanSource.STOP
        if sound:
            self._last_good = sent if source is PlanSource.PLANNER else plan
        sent = self._with_safety_check(sent, safety_context)
        checked = self._clock()
        continued = self._continued(sent, safety_context)
        done = checked if continued is None else self._clock()
        timings = {
            "stop": 1e3 * (planning - start_s),
            **stages_ms,
            "plan": 1e3 * (judging + ahead_s - planning),
            "guard": 1e3 * (checked - judging),
            **({} if continued is None else {"continue": 1e3 * (done - checked)}),
            "total": 1e3 * (done + ahead_s - start_s),
        }
        step = None if plan is None else plan.step
        return StepReport(
            sent,
            judgement.verdict,
            source,
            judgement.reason,
            timings,
            step,
            full_step_reason,
            notes,
            self._factors(sent, safety_context),
            forecast=safety_context.forecast if sound else None,
            continued=continued,
            ego=observation.ego,
        )

    def _deadline_used(self) -> float:
        return 1e3 * (self._clock() - self._start_s) / self._config.engine.deadline_ms

    def stop(self, ego: EgoState, agents: Agents | None, reason: str) -> StepReport:
        """The plan when there is no usable observation: brake along the last good path, with the reason."""
        start_s = self._clock()
        plan = self._stop(ego, agents)
        took = 1e3 * (self._clock() - start_s)
        timings_ms = {"stop": took, "total": took}
        return StepReport(plan, Verdict.INFEASIBLE, PlanSource.STOP, reason, timings_ms, ego=ego)

    def _recent_plan(self, stamp_ns: int) -> Plan | None:
        """The last good plan, if it is young enough to be used again."""
        last = self._last_good
        if last is None or not 0 <= stamp_ns - last.stamp_ns <= CARRY_MAX_S * 1e9:
            return None
        return last

    def _carried_plan(self, safety_context: SafetyContext) -> Plan | None:
        """The last good plan in the present ego frame, if it is young enough and still passes the guard."""
        observation = safety_context.observation
        last = self._recent_plan(observation.stamp_ns)
        if last is None:
            return None
        try:
            left = carry_forward(last, observation.stamp_ns, observation.ego.map_from_ego)
            if left is None or not follows(observation.ego, last):
                return None
            carried = Plan(
                observation.stamp_ns, observation.ego.map_from_ego, left, last.step, planners=last.planners[:1]
            )
            plan = slow_to_limits(carried, safety_context)
            if guard.check(plan, safety_context, 0.0).verdict is not Verdict.OK:
                return None
            return self._limit_lateral_jerk(plan, safety_context)
        except Exception:  # the fallback must not fail where the planner did
            log.exception("the last good plan could not be carried forward")
            return None

    def _limit_lateral_shift(self, plan: Plan, safety_context: SafetyContext) -> tuple[Plan, str]:
        """The plan with its lateral shift from the last one limited, or the reason why it is unchanged: safety or
        feasibility.

        The planner continues from its own plan.
        """
        last = self._recent_plan(safety_context.observation.stamp_ns)
        if last is None:
            return plan, ""
        limited, needs = self._if_as_safe(
            plan, lambda: comfort.limit_lateral_shift(plan, last, MAX_LATERAL_SHIFT_M), safety_context
        )
        return limited, f"the lateral shift is not limited: with the limit {needs}" if needs else ""

    def _limit_lateral_jerk(self, plan: Plan, safety_context: SafetyContext) -> Plan:
        """The plan, changed where it brakes or accelerates too hard for its curvature, if a change is as safe."""
        try:
            for option in islice(limited_trajectories(plan.trajectory, safety_context.observation.ego), LIMITED_MAX):
                changed = replace(plan, trajectory=option)
                limited, needs = self._if_as_safe(
                    plan, partial(slow_to_limits, changed, safety_context), safety_context, ENOUGH_GAP_M
                )
                if not needs:
                    return limited
        except Exception:  # an error of a limit must not prevent the plan
            log.exception("the lateral jerk of the plan could not be limited")
        return plan

    def _if_as_safe(
        self, plan: Plan, limit: Callable[[], Plan], safety_context: SafetyContext, enough_m: float = WIDE_GAP_M
    ) -> tuple[Plan, str]:
        """What `limit` makes of a plan; or the plan, and why: the guard refuses the other, or it is less safe.

        A gap of `enough_m` is sufficient.
        """
        try:
            limited = limit()
            if limited is plan:
                return plan, ""
            needs = guard.check(limited, safety_context, 0.0).reason
            if not needs:
                its = safety_check(limited, safety_context, 0 if plan.check is None else plan.check.repairs)
                needs = safety_loss(plan.check or safety_check(plan, safety_context), its, enough_m)
                limited = replace(limited, check=its)
            return (plan, needs) if needs else (limited, "")
        except Exception:  # an error of a limit must not prevent the plan
            log.exception("the plan could not be limited")
            return plan, ""

    def _started(self, plan: Plan, start: StartMode, safety_context: SafetyContext) -> tuple[Plan | None, str]:
        """A plan that starts a standing car in place of `plan`, and the sentence that says so; None where none does."""
        try:
            self._standstill, started, why = leave(self._standstill, plan, start, safety_context)
        except Exception:  # the rules must not prevent the planner's plan
            log.exception("the rules for leaving a standstill failed")
            return None, ""
        return started, why

    def _with_safety_check(self, plan: Plan, safety_context: SafetyContext) -> Plan:
        """The plan with its safety check, unless the planner has added one."""
        if plan.check is not None:
            return plan
        try:
            return replace(plan, check=safety_check(plan, safety_context))
        except Exception:  # a failed check for the diagnostics must not prevent a plan
            log.exception("the plan could not be checked")
            return plan

    def _factors(self, plan: Plan, safety_context: SafetyContext) -> tuple[PlanningFactor, ...]:
        """Where the plan is slow or stops, the nearest first."""
        try:
            return planning_factors(plan.trajectory, safety_context)
        except Exception:  # what is shown to people must not prevent a plan
            log.exception("the planning factors could not be computed")
            return ()

    def _continued(self, plan: Plan, safety_context: SafetyContext) -> Plan | None:
        """The plan at the length that is published; None if that is its own."""
        if not self._config.output.horizon_s:
            return None
        try:
            return continue_plan(plan, safety_context)
        except Exception:  # what follows the plan must not prevent it
            log.exception("the plan could not be continued")
            return None

    def _stop(self, ego: EgoState, agents: Agents | None, safety_context: SafetyContext | None = None) -> Plan:
        try:
            last = self._recent_plan(ego.stamp_ns)
            path = path_ahead(last, ego.map_from_ego, FOLLOWED_M) if last is not None and follows(ego, last) else None
            return stop_plan(ego, agents, path, self._config, safety_context)
        except Exception:  # unusable agents or paths must not prevent the stop plan
            log.exception("the stop plan was computed without agents and path")
            return stop_plan(ego, None, None, self._config)


def slow_to_limits(plan: Plan, safety_context: SafetyContext) -> Plan:
    """The plan, slowed where it is faster than traffic lights, limits and the end of the route allow."""
    slowed = slow_trajectory(plan.trajectory, safety_context.limits, safety_context.observation.ego.speed_mps)
    if slowed is plan.trajectory:
        return plan
    plan = replace(plan, trajectory=slowed)
    return plan if plan.check is None else replace(plan, check=safety_check(plan, safety_context, plan.check.repairs))


def safety_loss(own: SafetyCheck, its: SafetyCheck, enough_m: float = WIDE_GAP_M) -> str:
    """Why a change makes the plan less safe; empty if it does not. A gap of `enough_m` is sufficient."""
    if its.safe_s < own.safe_s:
        return f"the plan is unsafe after {its.safe_s:.1f} s"
    gaps_m = (its.clearance_m, own.clearance_m), (its.road_clearance_m, own.road_clearance_m)
    if any(is_closer(gap_m, own_m, enough_m) for gap_m, own_m in gaps_m):
        return "the plan has less clearance to agents or to the road's edge"
    return ""


def is_closer(gap_m: float | None, own_m: float | None, enough_m: float) -> bool:
    """Whether a gap is below EQUAL_GAP of the planner's own, and below the sufficient clearance."""
    if gap_m is None or own_m is None:
        return False
    return gap_m < min(EQUAL_GAP * own_m if own_m > 0.0 else own_m, enough_m)


def networks_by_planner(network: AnyNetwork | Networks | None, config: Config) -> Networks:
    """A network as that of the first configured planner with one; none as no networks."""
    if network is None or isinstance(network, Mapping):
        return network or {}
    return {next(iter(learned_configs(config)), config.planner): network}


def camera_network(networks: Networks) -> Network | None:
    """The first network that takes images; None if none does."""
    return next((each for each in networks.values() if each.kind == "token" and each.inputs.cameras), None)


def image_size(networks: Networks) -> tuple[int, int] | None:
    """Width and height in px of the images that the networks take; None if they take none."""
    network = camera_network(networks)
    return None if network is None else (network.inputs.width, network.inputs.height)


def camera_rig(networks: Networks) -> tuple[Camera, ...]:
    """The cameras of the network's training, left to right; empty if no network takes images or they are unknown."""
    network = camera_network(networks)
    return () if network is None else network.inputs.rig


def planner_note(config: Config) -> str:
    """What a reader of a planner's numbers must know of it: that it is a baseline, or was trained on other images."""
    if generator_spec(config).network is None:
        return f"{config.planner} is a baseline without a network"
    return network_domain_note(config)


def network_domain_note(config: Config) -> str:
    """A sentence if the network that reads images was trained on other images than it gets; empty if not, if its card
    does not say, and for planners that read no images."""
    for own in learned_configs(config).values():
        if reads_images(own):
            trained, images = training_domain(own.model), own.cameras.domain
            return f"the network was trained on {trained}, not on {images}" if trained and images not in trained else ""
    return ""


def takes_black_images(networks: Networks) -> bool:
    """Whether the network that takes images was trained with black ones for missing cameras."""
    network = camera_network(networks)
    return network is not None and "camera_dropout" in network.capabilities


def check_networks(config: Config, networks: Networks) -> None:
    """`check_network` for each configured planner that has one."""
    for name, own in learned_configs(config).items():
        check_network(own, networks.get(name))


def check_network(config: Config, network: AnyNetwork | None) -> None:
    """Raises ConfigError if the network is of another kind than the configured planner uses, if it lacks a capability
    that the planner needs, or if the configured cameras are not those of the network.
    """
    needed_kind = generator_spec(config).network
    if network is not None and network.kind != needed_kind:
        raise ConfigError(
            f"planner {config.planner} needs a network of kind {needed_kind}, but {config.model.file} is of kind "
            f"{network.kind}: set model.file to another, or choose another planner"
        )
    if needed_kind == "denoiser":
        return
    cameras = config.cameras
    reads_images = network is None or network.kind == "denoiser" or network.inputs.cameras > 0
    if not cameras.required and reads_images:
        raise ConfigError(f"cameras.required is false, but planner {config.planner} needs images: set it to true")
    if network is None or network.kind == "denoiser":
        return
    if cameras.required and not reads_images:
        raise ConfigError(
            f"cameras.required is true, but {config.model.file} reads the map and objects in place of images: set it "
            "to false"
        )
    if network.layout.frame == "route" and config.planner not in ("reflectdrive2", "drivefine"):
        raise ConfigError(
            f"planner {config.planner} plans in the ego frame, but {config.model.file} has tokens in the frame of the "
            "route: set planner to reflectdrive2 or drivefine, or model.file to another"
        )
    if missing := needed_capabilities(config) - network.capabilities:
        raise ConfigError(
            f"planner {config.planner} needs the capability {min(missing)} of its network, but {config.model.file} has "
            f"{', '.join(sorted(network.capabilities))}: set model.file to a network that has it, or choose another "
            "planner"
        )
    count, network_count = len(cameras.names), network.inputs.cameras
    if not network_count:
        return
    chosen = bool(network.inputs.rig) and cameras.reproject  # of more cameras, those that cover the network's
    if (count < network_count and not (chosen and "camera_dropout" in network.capabilities)) or (
        count > network_count and not chosen
    ):
        raise ConfigError(
            f"cameras.names has {count} cameras, but {config.model.file} uses {network_count}: give a model for these "
            "cameras, or set cameras.names"
        )
