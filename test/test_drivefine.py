"""The recipe drivefine: drafts from masks, a refinement, a choice of sampled plans, headings from tokens, repair."""

from dataclasses import replace

import numpy as np
import pytest
from rubber_band import strip_grid
from scenes import Clock, cars, config
from scripted_network import TIMES_S, camera_observation
from tiny_net import tiny_net

from reflectdrive_ros.core import kinematics
from reflectdrive_ros.core.config import ConfigError
from reflectdrive_ros.core.domain import StepKind, Verdict
from reflectdrive_ros.core.tokens import DRIVEFINE, ROUTE_DRIVEFINE, TokenLayout, cosine_schedule
from reflectdrive_ros.features.images import WORDS, InputSpec, WordTokenizer
from reflectdrive_ros.planning import get_planner, pipeline
from reflectdrive_ros.planning.critique import critique
from reflectdrive_ros.planning.generators import drivefine
from reflectdrive_ros.planning.planner import PlannerContext, PlannerState, PlanningError, draft_sequentially
from reflectdrive_ros.planning.postprocess.waypoints import token_headings
from reflectdrive_ros.runtime.engine import Engine, check_network
from reflectdrive_ros.runtime.torch_backend import TorchNetwork
from reflectdrive_ros.scoring.safety import SafetyContext


def drive(speed=8.0, curvature=0.0):
    """(8, 3) poses at constant speed on an arc."""
    return kinematics.arc(curvature, speed * TIMES_S)


class KnownPlans:
    """A network that knows plans (K, 8, 3) by heart: plan 0 has the most probable tokens, the others are samples, and
    the refinement replaces plan 0 by another if there is one."""

    kind = "token"
    inputs = InputSpec(64, 36, 16, WordTokenizer(WORDS))

    def __init__(self, *plans, refined=None, capabilities=("edit", "sampling", "refine"), layout=DRIVEFINE):
        self.layout, axes = layout, len(layout.axes)
        self.ids = layout.encode(np.array(plans)[..., :axes])
        self.refined = None if refined is None else layout.encode(refined[None, :, :axes])[0]
        self.calls, self.capabilities = [], frozenset(capabilities)
        self.critique = None

    def prefill(self, inputs):
        return "scene"

    def step(self, context, actions, limit, edit):
        self.calls.append(("step", len(actions), limit))
        return self._write(actions, limit)

    def draft(self, context, actions, limits):
        return draft_sequentially(self, context, actions, limits)

    def sampled_step(self, context, actions, limit, temperature, share):
        assert temperature.tolist() == [0.0, *[1.0] * (len(actions) - 1)]
        self.calls.append(("sampled", len(actions), limit, round(float(share.sum()), 6)))
        return self._write(actions, limit)

    def refine(self, context, actions, critique=None):
        self.calls.append(("refine", len(actions)))
        self.critique = critique
        assert (actions < self.layout.mask_id).all()
        corrected = actions.copy()
        if self.refined is not None:
            corrected[0] = self.refined
        return corrected, np.full(actions.shape, 0.8)

    def _write(self, actions, limit):
        written = actions.copy()
        for row, block in enumerate(written):
            free = np.flatnonzero(block == self.layout.mask_id)[:limit]
            block[free] = self.ids[min(row, len(self.ids) - 1)][free]
        return written, np.full(written.shape, 0.9)


def planned(network, scene, **changes):
    return pipeline.plan(drivefine.generate, PlannerState(), scene, PlannerContext(config(**changes), network))


def test_without_objects_one_plan_is_drafted_in_four_growing_rounds_and_refined():
    network = KnownPlans(drive())
    state, plan = planned(network, camera_observation(8.0))
    assert network.calls == [*(("step", 1, limit) for limit in (2, 6, 7, 9)), ("refine", 1)]
    assert (plan.step, plan.candidates, plan.scores) == (StepKind.FULL, (), ())
    assert state.full_step_reason == "every step is a full step"
    np.testing.assert_allclose(kinematics.resample(plan.trajectory, TIMES_S), drive(), atol=0.1)


@pytest.mark.parametrize(("masked", "rounds"), [(24, 12), (24, 4), (24, 1), (5, 12), (0, 3)])
def test_the_cosine_schedule_writes_every_token_and_some_in_every_round(masked, rounds):
    counts = cosine_schedule(masked, rounds)
    assert sum(counts) == masked
    assert len(counts) == min(masked, rounds)
    assert all(count >= 1 for count in counts)
    assert cosine_schedule(24, 12) == (1, 1, 1, 1, 1, 3, 2, 2, 3, 3, 3, 3)


def test_what_the_expert_corrects_is_driven_and_both_are_in_the_trace():
    network = KnownPlans(drive(8.0, 0.05), refined=drive())
    _, plan = planned(network, camera_observation(8.0))
    np.testing.assert_allclose(kinematics.resample(plan.trajectory, TIMES_S)[:, 1], 0.0, atol=0.05)
    assert plan.trace.ids.tolist() == [network.ids[0].tolist(), network.refined.tolist()]
    assert plan.trace.confidence[:, 0].tolist() == [0.9, 0.8]
    _, uncorrected = planned(network, camera_observation(8.0), drivefine__refine=False)
    assert uncorrected.tokens.tolist() == network.ids[0].tolist()


def test_tokens_on_the_route_are_driven_along_its_bend_and_without_a_route_the_planner_says_so():
    bend = kinematics.arc(0.02, np.arange(0.0, 80.0))
    network = KnownPlans(drive(), layout=ROUTE_DRIVEFINE)  # 8 m/s in the middle of the route
    _, plan = planned(network, replace(camera_observation(8.0), route=bend))
    np.testing.assert_allclose(kinematics.resample(plan.trajectory, TIMES_S)[:, :2], drive(8.0, 0.02)[:, :2], atol=0.3)
    np.testing.assert_allclose(plan.trace.draft, drive(8.0, 0.02)[:, :2], atol=0.1)
    with pytest.raises(PlanningError, match="does not pass the vehicle"):
        planned(network, replace(camera_observation(8.0), route=np.zeros((0, 3))))


def test_an_expert_that_reads_a_critique_gets_that_of_the_draft():
    scene = camera_observation(8.0, agents=cars((24.0, 0.0, 0.0, 0.0)), drivable=strip_grid(2.4))
    network = KnownPlans(drive(), capabilities=("edit", "sampling", "refine", "critique"))
    planned(network, scene, drivefine__candidates=1)
    safety_context = SafetyContext(scene, config())
    np.testing.assert_array_equal(network.critique, critique(safety_context, network.ids, DRIVEFINE))
    blind = KnownPlans(drive())
    planned(blind, scene, drivefine__candidates=1)
    assert blind.critique is None


def test_among_objects_the_plan_with_the_best_score_is_chosen():
    """The most probable plan hits the truck; the second, slow one is sampled."""
    slow = drive(8.0)
    slow[:, 0] = [3.5, 6.5, 9.0, 11.0, 12.5, 13.5, 14.0, 14.1]
    network = KnownPlans(drive(), slow)
    truck = cars((24.0, 0.0, 0.0, 0.0))
    _, plan = planned(network, camera_observation(8.0, agents=truck), drivefine__candidates=3)
    assert plan.tokens.tolist() == network.ids[1].tolist()
    assert plan.check.repairs == 0
    assert len(plan.candidates) == 2
    assert plan.scores == tuple(sorted(plan.scores, reverse=True))
    assert plan.check.unsafe_after_s is None


def test_a_replay_samples_the_same_plans_and_the_next_frame_others():
    scene, calls = camera_observation(8.0, agents=cars()), []
    for each in (scene, scene, replace(scene, stamp_ns=scene.stamp_ns + 1)):
        network = KnownPlans(drive(), drive(7.0))
        planned(network, each)
        calls.append(network.calls)
    assert calls[0] == calls[1] != calls[2]


def test_headings_come_from_tokens_unless_they_are_clipped_or_their_waypoint_moved():
    turned = drive(8.0, 0.02)
    turned[:, 2] += 0.05
    ids = DRIVEFINE.encode(turned[None])
    waypoints = DRIVEFINE.decode(ids)
    headings = token_headings(waypoints, waypoints[..., :2], DRIVEFINE)
    np.testing.assert_allclose(headings[0], turned[:, 2], atol=np.radians(0.05) + 1e-9)
    moved = waypoints[..., :2].copy()
    moved[0, 3] += 0.2
    assert np.isnan(token_headings(waypoints, moved, DRIVEFINE)[0]).tolist() == [k == 3 for k in range(8)]
    beyond = turned.copy()
    beyond[-1, 2] = 2.0
    clipped = DRIVEFINE.decode(DRIVEFINE.encode(beyond[None]))
    assert np.isnan(token_headings(clipped, clipped[..., :2], DRIVEFINE)).all()
    assert token_headings(np.zeros((1, 8, 2)), np.zeros((1, 8, 2)), TokenLayout()) is None


def test_all_candidates_are_proposed_without_choice():
    network = KnownPlans(drive(8.0), drive(7.0))
    planner_context = PlannerContext(config(drivefine__candidates=2), network)
    trajectories = drivefine.proposals(camera_observation(8.0), planner_context)
    ends = [kinematics.resample(each, TIMES_S)[-1, 0] for each in trajectories]
    np.testing.assert_allclose(ends, [32.0, 28.0], atol=0.5)


def test_a_network_without_an_expert_is_refused_at_the_start():
    complaint = "drivefine needs the capability refine of its network, but .* set model.file"
    with pytest.raises(ConfigError, match=complaint):
        check_network(config(planner="drivefine"), KnownPlans(drive(), capabilities=("edit", "goals", "sampling")))
    check_network(config(planner="drivefine"), KnownPlans(drive()))
    with pytest.raises(ConfigError, match="reflectdrive2 needs the capability goals"):
        check_network(config(planner="reflectdrive2"), KnownPlans(drive()))


def test_a_card_without_an_expert_drives_with_refine_off():
    network = KnownPlans(drive(), capabilities=("edit",))
    _, plan = planned(network, camera_observation(8.0), drivefine__refine=False, drivefine__candidates=1)
    assert plan.tokens.tolist() == network.ids[0].tolist()


def test_a_real_network_plans_and_its_plan_is_judged():
    net = TorchNetwork(tiny_net(layout=DRIVEFINE, table_stride=7, refine_layers=1, words=WORDS, text_vocabulary=64))
    engine_config = config(planner="drivefine", model__file="x", model__sha256="y", drivefine__candidates=6)
    engine = Engine(engine_config, Clock(), planner=get_planner(engine_config), network=net)
    report = engine.step(camera_observation(8.0, agents=cars()))
    assert report.verdict in (Verdict.OK, Verdict.UNSAFE)
    assert report.step is StepKind.FULL
    assert report.plan.trajectory.horizon_s >= 3.0
