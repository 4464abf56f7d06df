"""Several planners as one: their plans are one set, the best of which is driven, and everyone can see whose it is."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import yaml
from autoware_internal_planning_msgs.msg import CandidateTrajectories
from messages import ns, odometry, predicted_objects, route
from rclpy.serialization import deserialize_message
from scenes import NO_LIGHTS, Clock, cars, config, lanes, later
from scripted_network import STRAIGHT, ScriptedNetwork, arc_way, camera_observation

from reflectdrive_ros.core.config import Config, ConfigError, load, override_dotted
from reflectdrive_ros.core.domain import PlanSource, StepKind, Verdict
from reflectdrive_ros.evaluation.privilege import without
from reflectdrive_ros.planning import generator_spec, get_planner, learned_configs, pipeline
from reflectdrive_ros.planning.candidates import Candidates, GeneratorSpec
from reflectdrive_ros.planning.generators import GENERATORS
from reflectdrive_ros.planning.inputs import needs_cameras, reads_images, reads_vectors, uses_map
from reflectdrive_ros.planning.planner import PlannerContext, PlannerState, PlanningError
from reflectdrive_ros.planning.postprocess.waypoints import waypoints
from reflectdrive_ros.ros import outputs, plan_messages
from reflectdrive_ros.ros.inputs.channel import Level
from reflectdrive_ros.ros.inputs.control import Signal
from reflectdrive_ros.ros.planning_core import PlanningCore
from reflectdrive_ros.runtime.engine import Engine

BOTH = "reflectdrive2+idm_proposals"
TWO = "reflectdrive2+reflexdiffusion"
STANDING = cars((30.0, 0.0, 0.0, 0.0))
FASTEST = arc_way(8.0, 0.0)


def scene(agents=STANDING, speed=8.0, **more):
    return camera_observation(**{"speed": speed, "agents": agents, "traffic_lights": NO_LIGHTS, **more})


def step(observation, state=None, planner=BOTH, network=None, **changes):
    settings = config(planner=planner, pipeline__vary=False, **changes)
    context = PlannerContext(settings, network or ScriptedNetwork(STRAIGHT))
    return get_planner(settings)(state or PlannerState(), observation, context)


def is_safe(plan):
    return plan.check.unsafe_after_s is None


# --- names -----------------------------------------------------------------------------------------------------------


def test_a_list_is_the_same_as_names_with_a_plus(tmp_path):
    file = tmp_path / "car.yaml"
    file.write_text("planner: [reflectdrive2, idm_proposals]\n")
    assert load(file) == Config(planner=BOTH) == override_dotted(Config(), {"planner": BOTH})
    assert load(file).planners == ("reflectdrive2", "idm_proposals")
    assert override_dotted(Config(), {"planner": yaml.safe_load("[idm_proposals]")}) == Config(planner="idm_proposals")


@pytest.mark.parametrize("name", sorted(GENERATORS))
def test_a_list_of_one_is_that_planner(name):
    one = override_dotted(Config(), {"planner": [name]})
    assert one == Config(planner=name)
    assert generator_spec(one) is GENERATORS[name]
    assert get_planner(one).args == (GENERATORS[name].generate,)


@pytest.mark.parametrize(
    ("planner", "sentence"),
    [
        (
            "reflectdrive2+genius",
            r"^planner is 'genius', expected one of constant_velocity, .*reflexdiffusion, fiss_plus$",
        ),
        ("idm_proposals+", r"^planner is '', expected one of"),
        ("idm_proposals+idm_proposals", r"^planner is 'idm_proposals\+idm_proposals', which has a name twice"),
    ],
)
def test_names_that_cannot_plan_together_are_refused_at_the_start(planner, sentence):
    with pytest.raises(ConfigError, match=sentence):
        Engine(Config(planner=planner), Clock())


@pytest.mark.parametrize("planner", ["reflexdiffusion+idm_proposals", "idm_proposals+reflexdiffusion"])
def test_model_and_inputs_are_those_of_the_learned_planner(planner):
    assert Config(planner=planner).model == Config(planner="reflexdiffusion").model
    assert not needs_cameras(Config(planner=planner))
    assert uses_map(Config(planner=planner))
    spec = generator_spec(Config(planner=planner))
    assert (spec.name, spec.network, spec.images, spec.vectors) == (planner, "denoiser", False, True)


def test_each_learned_planner_has_a_network_of_its_own():
    both = Config(planner=TWO)
    assert {name: own.model for name, own in learned_configs(both).items()} == {
        name: Config(planner=name).model for name in both.planners
    }
    weights = override_dotted(both, {"model.file": "mine.safetensors", "model.sha256": "0" * 64, "model.threads": 3})
    first, second = (own.model for own in learned_configs(weights).values())
    assert (first.file, second.file) == ("mine.safetensors", Config(planner="reflexdiffusion").model.file)
    assert first.threads == second.threads == 3
    # cameras and map: both are read, and the car needs neither to drive on
    assert (reads_images(both), needs_cameras(both), reads_vectors(both)) == (True, False, True)


def test_two_networks_that_take_the_same_cameras_are_checked_each_for_its_planner():
    plans = ScriptedNetwork(STRAIGHT)
    with pytest.raises(ConfigError, match=r"^planner reflexdiffusion needs a network of kind denoiser, but .* is of"):
        Engine(config(planner=TWO), Clock(), network=dict.fromkeys(TWO.split("+"), plans))


# --- lost inputs -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def two_planners():
    return Engine(config(planner=TWO, model__threads=1, engine__deadline_ms=10_000.0), Clock())


def on_a_road():
    """8 m/s on the right one of two lanes, with all inputs."""
    road, route = (
        lanes(*((50.0 * k - 50.0, y, 50.0, 3.5, 13.9, 0) for k in range(4) for y in offsets))
        for offsets in ((0.0, 3.5), (0.0,))
    )
    return scene(cars(), lanes=road, route_lanes=route)


@pytest.mark.parametrize(
    ("lost", "planners"),
    [
        ((), {"reflectdrive2", "reflexdiffusion"}),
        (("cameras",), {"reflexdiffusion"}),
        (("map",), {"reflectdrive2", "reflexdiffusion"}),
        (("objects", "lights"), {"reflectdrive2", "reflexdiffusion"}),
        (("cameras", "lights", "map"), {"reflexdiffusion"}),
    ],
)
def test_a_car_that_loses_inputs_drives_on(two_planners, lost, planners):
    two_planners.reset()
    report = two_planners.step(without(on_a_road(), lost))
    assert report.source is PlanSource.PLANNER, report.reason
    assert set(report.plan.planners) == planners
    assert waypoints(report.plan.trajectory)[-1, 0] > 10.0
    assert any(each.startswith("reflectdrive2 has no plan: ") for each in report.notes) == ("cameras" in lost)
    assert any("lanes are unknown" in each for each in report.notes) == ("map" in lost)


def test_a_car_that_sees_nothing_of_the_traffic_stops(two_planners):
    two_planners.reset()
    report = two_planners.step(without(on_a_road(), ("cameras", "objects")))
    assert (report.source, report.reason[:31]) == (PlanSource.STOP, "neither images nor objects are ")


def test_a_node_whose_cameras_are_dead_plans_for_odometry_and_says_why():
    core = PlanningCore(config(planner=TWO, model__threads=1, engine__deadline_ms=10_000.0), Clock())
    core.put("route", route(), 0)
    core.put("odometry", odometry(1.0, 0.0), ns(1.0))
    core.put("objects", predicted_objects(1.0), ns(1.0))
    assert core.due(ns(1.0))
    report = core.step(ns(1.0)).report
    core.wait_idle()
    assert (report.source, report.plan.planner) == (PlanSource.PLANNER, "reflexdiffusion"), report.reason
    statuses = {status.name: status for status in core.statuses(ns(1.05))}
    assert statuses["planner"].level is Level.WARN
    assert "reflectdrive2 has no plan: " in statuses["planner"].message
    assert statuses["image front"].level is Level.WARN


# --- the set of plans ------------------------------------------------------------------------------------------------


def test_where_the_learned_plan_is_unsafe_a_proposal_is_driven():
    alone = step(scene(), planner="reflectdrive2", pipeline__repair=False)[1]
    assert not is_safe(alone)
    for repair in (False, True):
        plan = step(scene(), pipeline__repair=repair)[1]
        assert is_safe(plan)
        assert plan.planner == "idm_proposals"
        assert plan.check.repairs == 0
        assert waypoints(plan.trajectory)[-1, 0] < 30.0 - 2.25 - 3.7  # it stops behind the standing car
        assert (plan.tokens, plan.trace) == (None, None)


def test_a_proposal_that_gets_a_little_further_does_not_replace_the_learned_plan():
    """At a limit of 8 m/s the fastest proposal gets 4 s x 8 m/s; 10 % more progress are 0.04 of the score."""
    free = scene(cars(), speed_limit_mps=8.0)
    slower, crawling = ScriptedNetwork(arc_way(7.2, 0.0)), ScriptedNetwork(arc_way(2.0, 0.0))
    assert step(free, network=slower)[1].planner == "reflectdrive2"
    assert step(free, network=crawling)[1].planner == "idm_proposals"


@pytest.mark.parametrize("planner", ["left+right", "right+left"])
def test_of_plans_that_score_the_same_that_of_the_first_planner_is_driven(planner, monkeypatch):
    for name in ("left", "right"):
        spec = GeneratorSpec(name, lambda *_: Candidates(FASTEST[None]))
        monkeypatch.setitem(GENERATORS, name, spec)
    assert step(scene(cars()), planner=planner)[1].planner == planner.partition("+")[0]


def test_every_plan_is_that_of_its_planner_alone():
    free = scene(cars(), speed_limit_mps=8.0)
    network = ScriptedNetwork(FASTEST)
    learned = step(free, planner="reflectdrive2", network=network)[1]
    proposals = GENERATORS["idm_proposals"].generate(PlannerState(), free, PlannerContext(config())).trajectories
    plan = step(free, network=network)[1]
    assert plan.planner == "reflectdrive2"
    np.testing.assert_allclose(plan.trajectory.poses, learned.trajectory.poses, atol=1e-9)
    assert plan.tokens.tolist() == learned.tokens.tolist()
    assert plan.trace.goals.tolist() == learned.trace.goals.tolist()
    assert plan.planners == ("reflectdrive2", *["idm_proposals"] * len(proposals))
    rivals = {each.poses.tobytes() for each in plan.candidates}
    assert rivals == {each.poses.tobytes() for each in proposals}


def test_probabilities_are_compared_within_a_planner_only():
    """The best goal of the network has a log-probability of -1, a proposal has none: nothing follows."""
    candidates = generator_spec(config(planner=BOTH)).generate(
        PlannerState(), scene(cars()), PlannerContext(config(planner=BOTH), ScriptedNetwork(STRAIGHT, FASTEST + 1.0))
    )
    learned = np.array(candidates.planners) == "reflectdrive2"
    assert learned.sum() == 2
    assert candidates.log_probs[learned].max() == 0.0
    assert np.isnan(candidates.log_probs[~learned]).all()
    assert (pipeline.as_generated(candidates).bonuses[~learned] == -pipeline.PLANNER_COST).all()
    assert pipeline.as_generated(candidates).bonuses[learned].max() == 0.0
    assert [ids is None for ids in candidates.ids] == (~learned).tolist()


def test_one_that_cannot_plan_is_left_out_and_named():
    blind = replace(scene(), cameras=())
    state, plan = step(blind)
    assert plan.planner == "idm_proposals"
    (note,) = state.notes
    assert note.startswith("reflectdrive2 has no plan: ")
    lost = scene(route=np.zeros((0, 3)))
    state, plan = step(lost)
    assert plan.planner == "reflectdrive2"
    assert [note for note in state.notes if note.startswith("idm_proposals has no plan: ")]
    with pytest.raises(PlanningError, match=r"^reflectdrive2 has no plan: .*; idm_proposals has no plan: "):
        step(replace(lost, cameras=()))


def test_a_planner_continues_its_own_plan_only():
    """The standing car is gone at the third step: until then proposals were driven."""
    kinds, state = [], None
    for number, agents in enumerate((STANDING, STANDING, cars(), cars(), cars())):
        state, plan = step(later(scene(agents, speed_limit_mps=8.0), 0.1 * number), state)
        kinds.append((plan.planner, plan.step, state.full_step_reason))
    assert [planner for planner, _, _ in kinds] == ["idm_proposals"] * 2 + ["reflectdrive2"] * 3
    assert [reason for _, _, reason in kinds[:3]] == ["there is no plan to edit"] * 3
    assert [kind for _, kind, _ in kinds[2:]] == [StepKind.FULL, StepKind.LITE, StepKind.FULL]


# --- who sees it -----------------------------------------------------------------------------------------------------


def test_messages_name_the_planner_of_the_plan():
    settings = config(planner=BOTH)
    engine = Engine(settings, Clock(), get_planner(settings), ScriptedNetwork(STRAIGHT))
    report = engine.step(scene())
    assert (report.verdict, report.source) == (Verdict.OK, PlanSource.PLANNER)
    assert report.plan.planner
    assert plan_messages.status(report, settings, "", 1, 0.0, 0.0).planner == report.plan.planner
    assert outputs.debug(report, settings, {}).planner == report.plan.planner
    points = plan_messages.plan_points(report.plan, settings)
    sent = deserialize_message(outputs.candidates(report.plan, points, Signal.OFF, settings), CandidateTrajectories)
    names = [info.generator_name.data for info in sent.generator_info]
    assert names == [f"ReflectDrive_{slot}_{planner}" for slot, planner in enumerate(report.plan.planners)]
    stop = engine.stop(scene().ego, None, "no images")
    assert plan_messages.status(stop, settings, "", 1, 0.0, 0.0).planner == BOTH


def test_a_carried_plan_is_still_that_of_its_planner():
    settings = config(planner=BOTH)
    plan_both = get_planner(settings)

    def once(state, observation, context):
        if state.previous is not None:
            raise PlanningError("it is gone")
        return plan_both(state, observation, context)

    engine = Engine(settings, Clock(), partial(once), ScriptedNetwork(STRAIGHT))
    first = engine.step(scene(speed_limit_mps=8.0))
    second = engine.step(later(scene(speed_limit_mps=8.0), 0.1))
    assert second.source is PlanSource.CARRIED
    assert second.plan.planners == (first.plan.planner,) != ("",)
