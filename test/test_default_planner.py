"""What the default planner does with its shipped weights: on a recording, in a closed-loop world and on stored scenes.

Each case has a golden in test/golden. Ids, verdicts and kinds of steps are equal; metres and scores differ by little:
the arithmetic of other processors differs in the last digits. No id here is a near tie: ONNX Runtime with and without
AVX-512 and torch write the same, torch also with noise of 3e-5 on every logit, three times what runtimes differ by.
The goldens are changed on purpose only, with the reason in the commit message:

    PYTHONPATH=.:test .venv/bin/python test/test_default_planner.py
"""

import time
from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from shipped_planner import CONFIG, GRAPHS, HERE, SCENES, SMALL

from reflectdrive_ros.__main__ import main
from reflectdrive_ros.bench import parity
from reflectdrive_ros.cli.eval import Console
from reflectdrive_ros.core.kinematics import speeds
from reflectdrive_ros.evaluation import driving_scores, privilege
from reflectdrive_ros.evaluation.closed_loop import CameraHistory
from reflectdrive_ros.features.images import model_inputs
from reflectdrive_ros.model.card import MAX_PDMS_DROP
from reflectdrive_ros.planning import get_planner
from reflectdrive_ros.planning.planner import PlannerContext
from reflectdrive_ros.replay.bag_topics import map_topics
from reflectdrive_ros.replay.engine import due_steps
from reflectdrive_ros.replay.golden import POINT_STRIDE, TOLERANCES, compare_arrays
from reflectdrive_ros.replay.recorded_world import BagSlice
from reflectdrive_ros.ros.bag import BagReader
from reflectdrive_ros.ros.planning_core import PlanningCore
from reflectdrive_ros.runtime.engine import Engine
from reflectdrive_ros.runtime.model_file import model_config
from reflectdrive_ros.runtime.network import load_network
from reflectdrive_ros.runtime.ort_backend import OrtNetwork
from reflectdrive_ros.sim.world import World, WorldOptions

STORED = 20  # scenes of it
GOLDENS = {
    "recording": HERE / "golden" / "pandaset_002.reflectdrive2.npz",
    "world": HERE / "golden" / "world_1.reflectdrive2.npz",
    "scenes": HERE / "golden" / "scenes_val.reflectdrive2.npz",
}
ALLOWED = {**TOLERANCES, "tokens": 0, "step": 0}
RECORDED_NS, WORLD_STEPS = 5_000_000_000, 20
PDMS_100 = 83.2  # percent, on the first hundred scenes of a set 'val' of a hundred


def rows_of(reports):
    """Fields of a golden, each (N, ..) with a row per report of the engine; poses in the ego frame of their plan."""
    plans = [report.plan for report in reports]
    poses = np.stack([plan.trajectory.poses[POINT_STRIDE - 1 :: POINT_STRIDE] for plan in plans])
    unwritten = np.full(16, -1)  # of a plan to stop
    return {
        "stamp_ns": np.array([plan.stamp_ns for plan in plans]),
        "verdict": np.array([report.verdict for report in reports]),
        "source": np.array([report.source for report in reports]),
        "step": np.array([list(type(plan.step)).index(plan.step) for plan in plans]),
        "tokens": np.stack([unwritten if plan.tokens is None else plan.tokens for plan in plans]),
        "poses_xy": poses[..., :2],
        "poses_heading": poses[..., 2],
        "speeds": np.stack([speeds(plan.trajectory)[POINT_STRIDE - 1 :: POINT_STRIDE] for plan in plans]),
    }


def on_the_recording(bag):
    """Every plan of the recording's first five seconds, 10 a second, through the core as on a vehicle.

    Images are only scaled: the golden holds the planner, `test_camera_rig.py` the re-projection.
    """
    scaled = replace(CONFIG, cameras=replace(CONFIG.cameras, reproject=False))
    with BagReader(bag) as reader:
        mapping = map_topics(scaled, reader, [], driven_route=False)
        config = mapping.config
        engine = Engine(config, time.perf_counter, prefetch_scenes=True)
        core = PlanningCore(config, time.perf_counter, engine)
        part = BagSlice(reader, mapping.sources, stop_ns=reader.start_ns + RECORDED_NS)
        steps = due_steps(core, part, lambda _: None, lambda *_: None)
        answers = [core.plan_step(step.inputs).report for step in steps]
    return rows_of([report for report in answers if report is not None])


def in_the_world():
    """Two seconds of driving: the ego follows its plans, the cameras see where that leads."""
    with World(WorldOptions(seed=1, town="closed-loop-00001")) as world:
        engine, cameras = Engine(CONFIG, lambda: world.stamp_ns * 1e-9), CameraHistory(world, CONFIG)
        reports = []
        for _ in range(WORLD_STEPS):
            reports.append(engine.step(world.observation(cameras.capture())))
            world.step(reports[-1].plan)
    return rows_of(reports)


def on_scenes(network, count=STORED):
    """Ids (N, 16) of the plans of the first stored scenes, planned from cold, and what they score (N, MEASURES
    without EPDMS)."""
    planner, planner_context = get_planner(CONFIG), PlannerContext(CONFIG, network)
    tokens, scores = [], []
    for scene in islice(parity.read_scenes(SCENES, STORED, Console(quiet=True)), count):
        plan = driving_scores.plan_once(planner, privilege.observe(scene, "objects"), planner_context)
        points = {"plan": driving_scores.plan_waypoints(plan)[0]}
        tokens.append(plan.tokens)
        scores.append(driving_scores.score_plans(scene.scored(vehicle=CONFIG.vehicle), points, CONFIG.scoring)["plan"])
    pdms = slice(driving_scores.MEASURES.index("epdms"))  # and its parts
    return {"tokens": np.stack(tokens), "scores": np.array(scores)[:, pdms]}


def golden_of(name):
    with np.load(GOLDENS[name]) as file:
        return dict(file)


@pytest.fixture(scope="module")
def scored():
    """What both precisions of the shipped graphs plan for the stored scenes."""
    return {precision: on_scenes(OrtNetwork.from_file(card, 1)) for precision, card in GRAPHS.items()}


def test_it_drives_the_recording_as_the_golden_has_it(pandaset):
    driven, golden = on_the_recording(pandaset), golden_of("recording")
    assert compare_arrays(driven, golden, ALLOWED) == []
    assert (driven["tokens"] >= 0).all()  # no plan to stop among them
    assert set(driven["step"]) == {0, 1}  # full and lite


def test_it_drives_a_world_as_the_golden_has_it():
    assert compare_arrays(in_the_world(), golden_of("world"), ALLOWED) == []


def test_it_plans_stored_scenes_as_the_golden_has_it_and_scores_the_same(scored):
    assert compare_arrays(scored["fp32"], golden_of("scenes"), {"tokens": 0, "scores": 1e-3}) == []


def test_the_weights_in_torch_plan_what_the_graphs_plan():
    """The graphs were exported once: whatever changes in the network's code since then shows here."""
    network = load_network(replace(model_config(str(SMALL / "weights.safetensors"), None), threads=1), CONFIG.decoding)
    (scene,) = parity.read_scenes(SCENES, 1, Console(quiet=True))
    inputs = model_inputs(scene.observation(), network.inputs)
    prefilled, expected = (each.prefill_goal(inputs) for each in (network, OrtNetwork.from_file(GRAPHS["fp32"], 1)))
    np.testing.assert_allclose(prefilled.goal_log_probs, expected.goal_log_probs, atol=1e-3)
    np.testing.assert_array_equal(on_scenes(network, 4)["tokens"], golden_of("scenes")["tokens"][:4])


def test_in_eight_bits_it_scores_nearly_the_same_on_stored_scenes(scored):
    """The ids differ where two are about as probable; nearly all plans stay as good."""
    quantised, exact = scored["int8"], scored["fp32"]
    assert (quantised["tokens"] == exact["tokens"]).mean() > 0.9
    assert (np.abs(quantised["scores"][:, 0] - exact["scores"][:, 0]) < 0.03).mean() >= 0.9


@pytest.mark.long
def test_on_a_hundred_new_scenes_it_scores_as_known_and_eight_bits_lose_little(tmp_path):
    """The gate of the card in int8 is MOST_LOST points on a thousand scenes; a hundred cannot tell so little.

    One scene is a point here. So the loss is not to be shown greater with 95 %, and not to be more than 3 points.
    """
    assert main(["scenes", "--scenes", "val", "--count", "100", "--out", str(tmp_path / "val")]) == 0
    scenes = parity.read_scenes(tmp_path / "val", 100, Console(quiet=True))
    networks = (OrtNetwork.from_file(GRAPHS[precision], 1) for precision in ("int8", "fp32"))
    report = parity.compare_networks(*networks, scenes, CONFIG)
    assert report["scenes"] == 100
    assert report["failures"] == []
    assert report["pdms_reference"] == pytest.approx(PDMS_100, abs=1.0)
    assert report["equal_share"] > 0.9
    assert report["pdms_difference"] > -3.0
    assert report["pdms_difference_95"][1] > -MAX_PDMS_DROP


if __name__ == "__main__":
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        assert main(["make-bag", str(HERE / "data" / "pandaset_002"), f"{folder}/bag"]) == 0
        np.savez_compressed(GOLDENS["recording"], **on_the_recording(Path(folder) / "bag"))
    np.savez_compressed(GOLDENS["world"], **in_the_world())
    np.savez_compressed(GOLDENS["scenes"], **on_scenes(OrtNetwork.from_file(GRAPHS["fp32"], 1)))
