"""The planner reflexdiffusion on a vehicle: its model and cameras by default, its inputs from topics, and bad input."""

from dataclasses import replace

import numpy as np
import pytest
from lanelet_maps import MAP, TWO_LANES, drive, driven_ids, osm, route_message
from map_archives import map_message
from messages import ns, odometry, predicted_objects, route
from node_car import car, planned
from rich.console import Console
from scenes import Clock, cars, config, observation
from tiny_denoiser import normalized, tiny_denoiser

from reflectdrive_ros.core.config import (
    SHIPPED_MODELS,
    Config,
    ModelConfig,
    as_yaml,
    load,
    override_dotted,
)
from reflectdrive_ros.core.domain import AgentHistory, PlanSource, Verdict
from reflectdrive_ros.core.vector_spec import VectorSpec
from reflectdrive_ros.evaluation import recorded_tracks, variants
from reflectdrive_ros.evaluation.variants import Variant
from reflectdrive_ros.model.denoiser import checkpoint
from reflectdrive_ros.planning import GENERATORS
from reflectdrive_ros.planning.inputs import needs_cameras
from reflectdrive_ros.ros import convert, topics
from reflectdrive_ros.ros.inputs.channel import Level
from reflectdrive_ros.ros.planning_core import PlanningCore
from reflectdrive_ros.runtime.cli_args import weights_of
from reflectdrive_ros.runtime.engine import Engine
from reflectdrive_ros.runtime.model_file import ModelFileError

NAME = "reflexdiffusion"
ROOT = MAP.parents[3]
TRACKS = ROOT / "test" / "data" / "real_tracks"
SPEC = VectorSpec(agents=8, lanes=10, route_lanes=4, predicted_agents=3, future_steps=40)


class StraightDenoiser:
    """Predicts that everybody keeps the present velocity; without conditions the same. Keeps its last inputs."""

    kind, spec, capabilities = "denoiser", SPEC, frozenset({"guidance"})

    def encode(self, inputs, with_unconditional):
        self.inputs = inputs
        rows = np.concatenate([inputs.ego[None, :6], inputs.agents[: SPEC.predicted_agents, -1, :6]])
        times_s = SPEC.future_dt_s * np.arange(1 + SPEC.future_steps)
        futures = np.repeat(rows[:, None, :4], len(times_s), axis=1).astype(float)
        futures[..., :2] += times_s[:, None] * rows[:, None, 4:6]
        return np.stack((1 + with_unconditional) * [normalized(futures, SPEC)])

    def denoise(self, context, futures, time):
        return context


def node(**changes):
    """A node without processes: (core, denoiser)."""
    denoiser = StraightDenoiser()
    settings = config(planner=NAME, engine__deadline_ms=10_000.0, **changes)
    return PlanningCore(settings, Clock(), Engine(settings, Clock(), network=denoiser)), denoiser


def step(core, seconds, *objects, x=0.0, frame="map", send_objects=True):
    """One step at 5 m/s with objects (x, y, yaw, speed, length)."""
    core.put("odometry", odometry(seconds, x), ns(seconds))
    if send_objects:
        message = predicted_objects(seconds, *objects, frame=frame)
        for k, item in enumerate(message.objects):
            item.object_id.uuid = np.frombuffer(k.to_bytes(16, "big"), np.uint8)
        core.put("objects", message, ns(seconds))
    assert core.due(ns(seconds))
    report = core.step(ns(seconds)).report
    core.wait_idle()
    return report


# --- settings --------------------------------------------------------------------------------------------------------


def test_the_shipped_model_is_that_of_the_planner_whichever_way_the_planner_is_set(tmp_path):
    def pair(config):
        return config.model.file, config.model.sha256

    assert set(SHIPPED_MODELS) == {name for name, spec in GENERATORS.items() if spec.network is not None}
    file = tmp_path / "car.yaml"
    file.write_text("planner: reflexdiffusion\n")
    own = SHIPPED_MODELS["reflexdiffusion"]
    assert pair(replace(Config(), planner=NAME)) == own
    assert pair(override_dotted(Config(), {"planner": "reflexdiffusion", "model.threads": 1})) == own
    assert pair(load(file)) == own
    for name, expected in SHIPPED_MODELS.items():  # and back again, also by way of a planner without a model
        assert pair(replace(load(file), planner=name)) == expected
        assert pair(replace(replace(load(file), planner="route_follower"), planner=name)) == expected


@pytest.mark.parametrize("model", [ModelConfig("mine.safetensors", "ab"), ModelConfig("", "")])
def test_another_model_is_never_replaced(model):
    for name in SHIPPED_MODELS:
        assert replace(Config(), planner=name, model=model).model == model
    own_hash = replace(Config().model, sha256="ab")
    assert replace(Config(), planner=NAME, model=own_hash).model == own_hash


def test_a_shipped_model_beside_the_configuration_file_still_follows_the_planner(tmp_path):
    shipped = tmp_path / Config().model.file
    shipped.parent.mkdir(parents=True)
    shipped.touch()
    (tmp_path / "car.yaml").write_text("speed_limit_mps: 5.0\n")
    assert load(tmp_path / "car.yaml").model == Config().model
    (tmp_path / "car.yaml").write_text(f"model: {{file: {Config().model.file}, sha256: ab}}\n")
    assert load(tmp_path / "car.yaml").model.file == str(shipped)


def test_missing_weights_are_one_sentence():
    missing = replace(Config(planner=NAME).model, file="models/none/card.json")
    with pytest.raises(ModelFileError, match=r"^model file models/none/card.json cannot be read \(No such file"):
        Engine(Config(planner=NAME, model=missing))


def test_whether_cameras_are_needed_follows_the_planner_whichever_way_it_is_set(tmp_path):
    def needs(name, **changes):
        """As a configuration file and the command line set them: the planner of the file is replaced by `name`."""
        return needs_cameras(override_dotted(load(file), {"planner": name, **changes}))

    file = tmp_path / "car.yaml"
    for named in ("reflexdiffusion", "reflectdrive2", "route_follower"):
        file.write_text(f"planner: {named}\n")
        assert needs("reflectdrive2")
        assert needs("route_follower")
        assert not needs("reflexdiffusion")
        file.write_text(f"planner: {named}\ncameras: {{required: false}}\n")
        assert not needs("route_follower")
        assert needs("route_follower", **{"cameras.required": True})
        file.write_text(as_yaml(load(file)))  # as the node gets it from the demo
        assert not needs("route_follower")
    file.write_text(as_yaml(Config(planner="reflexdiffusion")))
    assert needs("reflectdrive2")


def test_it_needs_no_cameras_whatever_is_set():
    planner_config = config(planner=NAME, cameras__required=True)
    assert not needs_cameras(planner_config)
    kinds = {topic.key.partition(":")[0]: topic.required for topic in topics.inputs(planner_config)}
    assert [kind for kind, required in kinds.items() if required] == ["odometry", "route"]
    of_others = {topic.key.partition(":")[0] for topic in topics.inputs(Config())}
    assert set(kinds) == of_others | {"map", "lights"}
    core, _ = node()
    assert {line.name: line.level for line in core.inputs.statuses(ns(1.0))}["odometry"] is Level.ERROR
    assert all(line.level < Level.ERROR for line in core.inputs.statuses(ns(1.0)) if line.name.startswith("image"))


# --- the engine ------------------------------------------------------------------------------------------------------


def test_it_drives_a_scene_without_images():
    engine = Engine(config(planner=NAME), Clock(), network=StraightDenoiser())
    report = engine.step(observation(8.0, agents=cars((60.0, 0.0, 0.0, 8.0))))
    assert (report.verdict, report.source) == (Verdict.OK, PlanSource.PLANNER), report.reason
    assert report.plan.trajectory.poses[-1, 0] == pytest.approx(32.0, abs=0.5)
    assert engine.image_size is None


def test_of_many_drives_the_weights_are_those_of_each_planner(tmp_path):
    files = []
    for name in ("one", "other"):
        sha256 = checkpoint.save(tiny_denoiser(len(files)), tmp_path / name / "weights.safetensors", {})
        files.append((str(tmp_path / name / "weights.safetensors"), sha256))
    planner_config = Config(planner=NAME, model=ModelConfig(*files[0]))
    assert weights_of(planner_config, ["route_follower", "reflexdiffusion"]) == files[0][1]
    trained, random = (Variant(planner_config, random_weights=each).networks()[NAME] for each in (False, True))
    assert trained.spec == random.spec


# --- from topics -----------------------------------------------------------------------------------------------------


def test_the_node_plans_by_route_and_objects_and_keeps_their_history():
    core, denoiser = node()
    core.put("route", route(), 0)
    for k in range(AgentHistory.STEPS):
        report = step(core, 1.0 + 0.1 * k, (30.0 + 0.7 * k, 0.0, 0.0, 7.0, 4.5), x=0.5 * k)
    assert (report.verdict, report.source) == (Verdict.OK, PlanSource.PLANNER), report.reason
    agent = denoiser.inputs.agents[0]
    assert (agent[:, 7] > 0.0).all()  # seen at each instant
    there = 30.0 + 0.7 * np.arange(AgentHistory.STEPS) - 0.5 * (AgentHistory.STEPS - 1)
    np.testing.assert_allclose(agent[:, 0], there, atol=1e-3)
    np.testing.assert_allclose(agent[:, 4], 7.0, atol=1e-3)
    assert "lanes are unknown: the network plans by its route alone" in report.notes
    assert any("plans by its route alone" in line.message for line in core.statuses(ns(3.0)) if line.name == "planner")


@pytest.mark.parametrize("route_type", ["lanelet", "path"])
def test_the_lanes_are_those_of_the_configured_map(route_type):
    core, denoiser = node(inputs__route_type=route_type, inputs__lanelet_map=str(MAP))
    poses, messages = drive()[1], drive()[0]
    if route_type == "lanelet":
        core.put("route", route_message(driven_ids(), poses[0], poses[-1]), 0)
    else:
        core.put("route", route(poses), 0)
    for message in messages[:60:20]:
        now_ns = convert.stamp_ns(message.header)
        core.put("odometry", message, now_ns)
        report = core.step(now_ns).report
        core.wait_idle()
    assert denoiser.inputs.lanes[0].any()
    assert denoiser.inputs.lane_limits[0, 0] == pytest.approx(30 / 3.6, abs=1e-3)
    assert denoiser.inputs.route_lanes[0].any()
    assert not any("unknown: its line" in note or "lanes are unknown" in note for note in report.notes)


@pytest.mark.dds
def test_the_real_node_publishes_plans_without_cameras(tmp_path):
    weights = tmp_path / "weights.safetensors"
    sha256 = checkpoint.save(tiny_denoiser(), weights, {"capabilities": ["guidance"]})
    with car(tmp_path, planner=NAME, model__file=str(weights), model__sha256=sha256) as sender:
        assert sender.until(planned, 60.0, cameras=()).planner == NAME
        assert len(sender.harness.received["trajectory"][-1][1].points) >= 10
        lanes = "lanes are unknown: the network plans by its route alone"
        sender.diagnosed(lambda lines: lanes in lines["planner"][1], cameras=())
        assert sender.process.poll() is None
    assert "Traceback" not in (tmp_path / "node.log").read_text()


# --- bad input -------------------------------------------------------------------------------------------------------


def test_without_a_route_the_car_stops_and_says_why():
    core, _ = node()
    report = step(core, 1.0)
    assert (report.source, report.reason) == (PlanSource.STOP, "route: nothing received yet")
    words = Engine(config(planner=NAME), Clock(), network=StraightDenoiser())
    answer = words.step(observation(8.0, route=np.zeros((0, 3))))
    assert answer.source is PlanSource.STOP
    assert answer.reason == "Observation.route is empty: send a route with at least two different points"


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"send_objects": False}, "objects are unknown: the network plans as on an empty road"),
        ({"frame": "odom"}, "objects are unknown: the network plans as on an empty road"),
    ],
)
def test_without_usable_objects_it_plans_and_says_so(changes, sentence):
    core, _ = node()
    core.put("route", route(), 0)
    report = step(core, 1.0, (30.0, 8.0, 0.0, 0.0, 4.5), **changes)
    assert report.source is PlanSource.PLANNER, report.reason
    assert sentence in report.notes


def test_by_a_map_of_another_frame_no_lane_is_read():
    core, denoiser = node(inputs__drivable_type="map")
    core.put("route", route(), 0)
    core.put("map", map_message(frame="odom"), 0)
    core.wait_idle()
    report = step(core, 1.0)
    assert report.source is PlanSource.PLANNER, report.reason
    assert not denoiser.inputs.lanes.any()
    assert "lanes are unknown: the network plans by its route alone" in report.notes
    (line,) = (line for line in core.statuses(ns(1.0)) if line.name == "map")
    assert "odom" in line.message


def test_lanelets_of_two_points_are_lanes(tmp_path):
    file = tmp_path / "two_lanes.osm"
    file.write_text(osm(TWO_LANES))
    core, denoiser = node(inputs__lanelet_map=str(file))
    core.put("route", route(), 0)
    for k in range(2):
        report = step(core, 1.0 + 0.1 * k, x=0.5 * k)
    assert report.source is PlanSource.PLANNER, report.reason
    assert denoiser.inputs.lanes.any()


# --- recorded traffic ------------------------------------------------------------------------------------------------


def test_it_is_scored_on_recorded_traffic(monkeypatch):
    monkeypatch.setattr(variants, "worker_network", lambda model, decoding: StraightDenoiser())
    scored = recorded_tracks.evaluate(TRACKS, {NAME: Variant(config(planner=NAME))}, Console(quiet=True))
    assert scored.failures == {}
    assert np.array(scored.scores[NAME])[:, 0].max() > 0.5
