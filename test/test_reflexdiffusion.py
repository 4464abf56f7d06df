"""The recipe reflexdiffusion: guidance and reflection do what the formulas say, and nothing where they are off."""

from dataclasses import replace

import numpy as np
import pytest
from scenes import cars, config, observation, straight_route
from tiny_denoiser import normalized

from reflectdrive_ros.core import geometry
from reflectdrive_ros.core.domain import Verdict
from reflectdrive_ros.core.kinematics import speeds
from reflectdrive_ros.core.recipe_config import ReflexDiffusionConfig
from reflectdrive_ros.core.vector_spec import VectorSpec
from reflectdrive_ros.planning import denoiser as sampling
from reflectdrive_ros.planning import guard, pipeline, reflection
from reflectdrive_ros.planning.denoiser import END_TIME, StepResult
from reflectdrive_ros.planning.generators import reflexdiffusion
from reflectdrive_ros.planning.planner import PlannerContext, PlannerState, PlanningError
from reflectdrive_ros.planning.postprocess.speed_profile import without_reversal
from reflectdrive_ros.planning.reflection import Reflector, guided, reflect
from reflectdrive_ros.scoring.safety import SafetyContext

SPEC = VectorSpec(agents=4, lanes=4, route_lanes=4, predicted_agents=2, future_steps=40)
OFF = ReflexDiffusionConfig(guidance=1.0, reflection=False)


def future(speed=8.0, turn=0.0):
    """(3, 41, 4) normalised futures: the ego at a speed along an arc, neighbours at the origin."""
    steps = SPEC.future_dt_s * np.arange(SPEC.future_steps + 1)
    heading = turn * steps
    x, y = speed * steps * np.cos(heading / 2), speed * steps * np.sin(heading / 2)
    ego = np.stack([x, y, np.cos(heading), np.sin(heading)], axis=1)
    others = np.tile([0.0, 0.0, 1.0, 0.0], (SPEC.predicted_agents, len(steps), 1))
    return normalized(np.concatenate([ego[None], others]), SPEC)


class LinearDenoiser:
    """Predicts a fixed future, pulled towards the noisy one by a share: smooth, and given in closed form."""

    kind = "denoiser"

    def __init__(self, with_all=None, share=0.2, capabilities=("guidance",)):
        self.spec, self.capabilities, self.share = SPEC, frozenset(capabilities), share
        self.targets = future() if with_all is None else with_all, future(6.0, 0.1)
        self.calls = []

    def encode(self, inputs, with_unconditional):
        return 2 if with_unconditional else 1

    def denoise(self, context, futures, time):
        self.calls.append((context, time))
        return np.stack([target + self.share * (futures - target) for target in self.targets[:context]])


def plan(network, settings=OFF, repair=False, **changes):
    scene = observation(**{"route": straight_route(), **changes})
    whole = replace(config(pipeline__repair=repair), planner="reflexdiffusion", reflexdiffusion=settings)
    context = PlannerContext(whole, network)
    state, new_plan = pipeline.plan(reflexdiffusion.generate, PlannerState(), scene, context)
    return new_plan, state.memory


def test_a_plan_is_the_future_that_the_network_predicts():
    new_plan, memory = plan(LinearDenoiser(share=0.0))
    assert len(new_plan.trajectory.poses) == 40
    np.testing.assert_allclose(new_plan.trajectory.poses[-1], [32.0, 0.0, 0.0], atol=1e-9)
    assert memory == ()


class RouteDenoiser(LinearDenoiser):
    """Predicts 8 m/s on the line of the route, in Frenet coordinates."""

    def __init__(self):
        super().__init__(share=0.0)
        self.spec = replace(SPEC, route_line_rows=2, ego_frenet=True)


@pytest.mark.parametrize("curvature", [0.03, -0.03])
def test_a_plan_in_frenet_coordinates_follows_the_bends_of_the_route(curvature):
    at = np.arange(-20.0, 100.0)
    heading = curvature * at
    route = np.column_stack([np.sin(heading) / curvature, (1.0 - np.cos(heading)) / curvature, heading])
    new_plan, _ = plan(RouteDenoiser(), route=route)
    x, y, turned = new_plan.trajectory.poses[-1]
    turn = curvature * 32.0
    np.testing.assert_allclose([x, y], np.array([np.sin(turn), 1.0 - np.cos(turn)]) / curvature, atol=0.25)
    assert turned == pytest.approx(turn, abs=0.03)


def test_a_distant_route_is_an_error_of_a_network_of_frenet_coordinates():
    shifted_route = straight_route() + np.array([0.0, 8.0, 0.0])
    plan(LinearDenoiser(), route=shifted_route)
    with pytest.raises(PlanningError, match="more than 5 m away: the network plans relative to the route"):
        plan(RouteDenoiser(), route=shifted_route)


def test_guidance_of_one_is_the_conditional_path_to_the_last_bit(monkeypatch):
    monkeypatch.setattr(reflection, "CONFIDENCE_MIN", 0.0)
    alone, _ = plan(LinearDenoiser())
    with_both, _ = plan(LinearDenoiser(), replace(OFF, guidance=1.0, reflection=True))
    np.testing.assert_array_equal(alone.trajectory.poses, with_both.trajectory.poses)


def test_guidance_moves_the_plan_towards_the_conditions_or_beyond():
    ends = [
        plan(LinearDenoiser(share=0.0), replace(OFF, guidance=g))[0].trajectory.poses[-1, 0] for g in (0.0, 0.9, 2.0)
    ]
    np.testing.assert_allclose(ends[0], future(6.0, 0.1)[0, -1, 0] * 20 + 10, atol=0.01)  # smoothed
    assert ends[0] < ends[1] < 32.0 < ends[2]


def test_guided_is_the_published_mixture():
    conditional, unconditional = np.full((3, 2), 2.0), np.full((3, 2), 1.0)
    both = np.stack([conditional, unconditional])
    np.testing.assert_array_equal(guided(both, 1.0), conditional)
    np.testing.assert_array_equal(guided(both, 0.0), unconditional)
    np.testing.assert_allclose(guided(both, 0.9), 1.9)
    np.testing.assert_array_equal(guided(both[:1], 0.5), conditional)


def test_reflection_off_is_the_base_sampler_to_the_last_bit(monkeypatch):
    settings = replace(OFF, guidance=0.9)
    off, _ = plan(LinearDenoiser(), settings)
    monkeypatch.setattr(reflection, "CONFIDENCE_MIN", 0.0)
    never, memory = plan(LinearDenoiser(), replace(settings, reflection=True))
    monkeypatch.setattr(reflection, "CONFIDENCE_MIN", 1.0)
    monkeypatch.setattr(reflection, "REFLECTIONS_MAX", 0)
    none_left, _ = plan(LinearDenoiser(), replace(settings, reflection=True))
    np.testing.assert_array_equal(off.trajectory.poses, never.trajectory.poses)
    np.testing.assert_array_equal(off.trajectory.poses, none_left.trajectory.poses)
    assert memory == ()


def test_a_step_that_is_inverted_by_its_own_noise_is_done_again_unchanged():
    rng = np.random.default_rng(0)
    time, after = 0.6, 0.4
    present, futures = future()[:, 0], rng.standard_normal((3, 41, 4))
    futures[:, 0] = present

    def predict(noisy, at):
        return 0.3 * noisy + 0.7 * future()

    clean = predict(futures, time)
    stepped = sampling.with_present(sampling.ddim_step(futures, clean, time, after), present)
    step = StepResult(time, after, clean, stepped)
    noise = sampling.noise_of(futures, clean, time)

    def explore(noisy, at):  # the clean futures whose noise at (x after, time before) is exactly that of the step
        alpha, sigma = sampling.alpha_sigma(at)
        return (noisy - sigma * noise) / alpha

    again = reflect(step, predict, explore, present)
    np.testing.assert_allclose(again.clean[:, 1:], clean[:, 1:], atol=1e-12)
    np.testing.assert_allclose(again.futures, step.futures, atol=1e-12)


def reflector(confidences, settings):
    values = iter(confidences)
    return Reflector(lambda x, t: x, lambda x, t: 0.5 * x, lambda clean: next(values), np.zeros((3, 4)), settings)


def step_of(number):
    times = sampling.sampling_times(10)
    return StepResult(times[number], times[number + 1], np.ones((3, 41, 4)), np.ones((3, 41, 4)))


def test_a_reflection_that_lowers_the_confidence_is_undone():
    settings = ReflexDiffusionConfig()
    worse, better = reflector([0.5, 0.4], settings), reflector([0.5, 0.6], settings)
    step = step_of(3)
    assert worse(step, 3) is step
    assert better(step, 3) is not step
    assert [each.accepted for each in (*worse.reflections, *better.reflections)] == [False, True]


def test_the_last_step_and_confident_steps_are_never_reflected_and_the_number_is_limited(monkeypatch):
    monkeypatch.setattr(reflection, "REFLECTIONS_MAX", 2)
    settings = ReflexDiffusionConfig()
    step = step_of(9)
    assert reflector([], settings)(step, 9) is step
    assert reflector([0.8], settings)(step_of(2), 2).futures is not None
    busy = reflector([0.1, 0.2] * 10, settings)
    for number in range(9):
        busy(step_of(number), number)
    assert len(busy.reflections) == 2


def test_an_unconfident_plan_is_reflected_and_reported(monkeypatch):
    monkeypatch.setattr(reflection, "CONFIDENCE_MIN", 0.95)
    new_plan, memory = plan(LinearDenoiser(with_all=future(8.0, 0.25)), replace(OFF, guidance=0.9, reflection=True))
    assert memory
    assert all(0 <= each.step < 9 and each.before < 0.95 for each in memory)
    assert np.isfinite(new_plan.trajectory.poses).all()


def test_the_sampler_evaluates_the_network_once_per_step_and_once_more():
    network = LinearDenoiser()
    plan(network)
    assert len(network.calls) == 11
    assert network.calls[-1][1] == pytest.approx(END_TIME)
    assert {context for context, _ in network.calls} == {1}  # no condition is dropped where nothing needs it


@pytest.mark.parametrize(
    ("network", "settings", "sentence"),
    [
        (None, OFF, "reflexdiffusion has no network"),
        (LinearDenoiser(capabilities=()), replace(OFF, guidance=0.9), "need the capability guidance"),
        (LinearDenoiser(capabilities=()), replace(OFF, reflection=True), "need the capability guidance"),
    ],
)
def test_what_cannot_plan_says_why(network, settings, sentence):
    with pytest.raises(PlanningError, match=sentence):
        plan(network, settings)


# --- what follows the network ----------------------------------------------------------------------------------------


def test_a_stop_keeps_the_heading_it_stopped_with():
    poses = np.column_stack([np.minimum(0.5 * np.arange(1, 11), 2.0), np.zeros(10), np.linspace(0.0, 0.5, 10)])
    poses_forward = without_reversal(poses)
    assert len(set(poses_forward[4:, 2].tolist())) == 1


def test_a_standing_car_speeds_up_as_a_car_can_along_the_predicted_path():
    """The network predicts 2.5 m/s from the first instant; the guard would refuse that for ever."""
    network = LinearDenoiser(with_all=future(2.5, 0.2), share=0.0)
    new_plan, _ = plan(network, speed=0.0)
    context = SafetyContext(observation(0.0, straight_route()), config())
    assert guard.check(new_plan, context, 0.0).verdict is Verdict.OK
    predicted = future(2.5, 0.2)
    path = sampling.in_metres(predicted, SPEC)[0, :, :2]
    off_m = np.abs(geometry.project(path, new_plan.trajectory.poses[:, :2])[1])
    assert off_m[:-1].max() < 0.1
    assert off_m[-1] < 0.13  # beyond the last point, extrapolated along the straight route
    assert new_plan.trajectory.poses[0, 0] < 0.05
    assert speeds(new_plan.trajectory)[-1] == pytest.approx(2.5, abs=0.3)
    driving, _ = plan(network, speed=2.5)
    np.testing.assert_allclose(driving.trajectory.poses[:, :2], path[1:], atol=0.02)


def test_a_plan_does_not_have_the_networks_errors_between_its_points():
    """A network that is 5 cm off, now ahead and now behind, predicts 7 m/s and 9 m/s in turn."""
    noisy = future(8.0, 0.0)
    noisy[0, 1::2, 0] += 0.05 / 20.0
    new_plan, _ = plan(LinearDenoiser(with_all=noisy, share=0.0), speed=8.0)
    assert np.ptp(np.diff(sampling.in_metres(noisy, SPEC)[0, :, 0])) / 0.1 > 0.9
    assert np.ptp(speeds(new_plan.trajectory)) < 0.3


def test_a_car_that_creeps_stands_where_its_plan_leads_no_further_than_a_metre():
    new_plan, _ = plan(LinearDenoiser(with_all=future(0.2, 0.0), share=0.0), speed=0.2)
    assert np.abs(new_plan.trajectory.poses[:, :2]).max() < 0.1


def test_an_unsafe_plan_of_the_network_is_repaired_with_objects_and_a_safe_one_is_not():
    plain, _ = plan(LinearDenoiser(share=0.0))
    safe, _ = plan(LinearDenoiser(share=0.0), repair=True, agents=cars((60.0, 0.0, 0.0, 8.0)))
    assert safe.check.repairs == 0
    np.testing.assert_array_equal(safe.trajectory.poses, plain.trajectory.poses)
    new_plan, _ = plan(LinearDenoiser(share=0.0), repair=True, agents=cars((28.0, 0.0, 0.0, 0.0)))
    assert new_plan.check.unsafe_after_s is None
    assert new_plan.check.repairs == 1
    assert new_plan.trajectory.poses[-1, 0] < 26.0
