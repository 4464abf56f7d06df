"""Claims about whole scores: what must not matter, what must not help, and an answer for every bad input."""

import json
from dataclasses import fields, replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reflectdrive_ros.core import geometry
from reflectdrive_ros.core.config import Config, ConfigError, ScoringConfig
from reflectdrive_ros.core.domain import AgentKind, Agents, EgoState, Forecast, ForecastSource, Observation, Trajectory
from reflectdrive_ros.evaluation import golden
from reflectdrive_ros.scoring.areas import MapAreas, RedLights
from reflectdrive_ros.scoring.contacts import SAMPLES, AgentTracks
from reflectdrive_ros.scoring.safety import SafetyContext
from reflectdrive_ros.scoring.scorer import BATCH, Reference, Scene, ScoreCard, score, total
from reflectdrive_ros.scoring.simulate import STATE_SIZE, STEPS

GOLDEN = Path(__file__).parent / "data" / "golden"
LINE = np.array([[-20.0, 0.0], [120.0, 0.0]])
ROAD = np.array([[-20.0, -5.0], [120.0, -5.0], [120.0, 5.0], [-20.0, 5.0]])
EPDMS = ScoringConfig(form="epdms")
SUB_SCORES = ("nc", "dac", "ddc", "tlc", "ep", "ttc", "comfort", "lk", "score")


@cache
def entries():
    """The golden slice as JSON objects, a few that differ in kind."""
    entries_by_kind = {}
    for _, entry in golden.read_lines(GOLDEN / "scenes.jsonl.gz"):
        entries_by_kind.setdefault(entry["kind"], entry)
    return [entries_by_kind[kind] for kind in ("straight", "x_left", "carpark", "taper")]


scenes = st.sampled_from(range(4)).map(lambda k: golden.parse_scene(entries()[k]))


def tracks(poses, speeds):
    """Agents that drive straight on from poses (A, 3)."""
    poses, speeds = np.reshape(np.asarray(poses, float), (-1, 3)), np.asarray(speeds, float)
    distances_m = speeds[:, None] * 0.1 * np.arange(SAMPLES)
    base = np.repeat(poses[:, None], SAMPLES, axis=1)
    base[:, :, 0] += distances_m * np.cos(base[:, :, 2])
    base[:, :, 1] += distances_m * np.sin(base[:, :, 2])
    return AgentTracks(
        base,
        np.ones(distances_m.shape, bool),
        np.repeat(speeds[:, None], SAMPLES, axis=1),
        np.tile([4.5, 1.9], (len(poses), 1)),
        np.full(len(poses), AgentKind.VEHICLE),
    )


def road(speed=10.0, agents=None, **more):
    """A straight road, 10 m wide, with the ego in its middle."""
    motion = np.array([speed, 0, 0, 0, 0, 0, 0, 0])
    areas = MapAreas(lanes=(ROAD,), lane_on_route=(True,), roadblocks=(ROAD,))
    more = {"areas": areas, "reference": Reference(40.0), **more}
    return Scene(motion, agents or AgentTracks.none(), LINE, **more)


def straight(speed=10.0, y=0.0):
    plan = np.zeros((1, 8, 3))
    plan[:, :, 0] = speed * 0.5 * np.arange(1, 9)
    plan[:, :, 1] = y
    return plan


def same(one, other, atol=1e-9):
    for name in SUB_SCORES:
        np.testing.assert_allclose(getattr(one, name), getattr(other, name), atol=atol, err_msg=name)


# --- what must not matter ---------------------------------------------------------------------------------------------


def moved(entry, map_from_old):
    """A golden scene with everything global moved rigidly."""
    entry = json.loads(json.dumps(entry))

    def points(rows):
        rows = np.asarray(rows, float)
        rows[:, :2] = geometry.transform_points(map_from_old, rows[:, :2])
        return rows.tolist()

    def poses(rows):
        rows = np.asarray(rows, float)
        rows[:, :3] = geometry.compose(map_from_old, rows[:, :3])
        return rows.tolist()

    ego = entry["ego"]
    ego["x"], ego["y"], ego["heading"] = poses([[ego["x"], ego["y"], ego["heading"]]])[0]
    entry["ego_frames"] = poses(entry["ego_frames"])
    entry["centerline"] = poses(entry["centerline"])
    for layer in ("lanes", "roadblocks", "intersections", "carparks"):
        for shape in entry["map"][layer]:
            shape["xy"] = points(shape["xy"])
    for track in entry["tracks"]:
        states = np.asarray(track["states"], float).reshape(-1, 6)
        states[:, 1:4] = geometry.compose(map_from_old, states[:, 1:4])
        states[:, 4:6] = geometry.rotate(states[:, 4:6], map_from_old[2])
        track["states"] = states.tolist()
    return entry


@given(st.integers(0, 3), st.floats(-2000, 2000), st.floats(-2000, 2000), st.floats(-3.1, 3.1))
@settings(max_examples=12)
def test_moving_the_whole_scene_changes_nothing(which, x, y, heading):
    entry = entries()[which]
    here, there = golden.parse_scene(entry), golden.parse_scene(moved(entry, np.array([x, y, heading])))
    for official in (False, True):
        same(
            score(here.second, here.candidates, EPDMS, official=official),
            score(there.second, there.candidates, EPDMS, official=official),
            atol=1e-6,
        )


@given(scenes, st.randoms(use_true_random=False), st.booleans())
@settings(max_examples=12)
def test_the_order_of_agents_changes_nothing(scene, random, official):
    agents = scene.first.agents
    order = list(range(len(agents)))
    random.shuffle(order)
    shuffled = AgentTracks(*(getattr(agents, field.name)[order] for field in fields(agents)))
    one = score(scene.first, scene.candidates, official=official)
    other = score(replace(scene.first, agents=shuffled), scene.candidates, official=official)
    same(one, other)
    np.testing.assert_array_equal(one.clearance_m, other.clearance_m)
    np.testing.assert_array_equal(one.waypoint_safety, other.waypoint_safety)


@given(scenes, st.booleans())
@settings(max_examples=8)
def test_a_batch_equals_its_single_runs(scene, official):
    batch = score(scene.second, scene.candidates, EPDMS, official=official)
    for k, candidate in enumerate(scene.candidates):
        single = score(scene.second, candidate[None], EPDMS, official=official)
        for name in (*SUB_SCORES, "clearance_m", "waypoint_safety", "progress_m", "multiplier"):
            np.testing.assert_allclose(getattr(batch, name)[k], getattr(single, name)[0], atol=1e-9, err_msg=name)


def test_more_candidates_than_a_batch_have_the_same_scores():
    scene = golden.parse_scene(entries()[1])
    many = np.concatenate([scene.candidates] * 30)
    before = score(scene.second, many, EPDMS).states
    card, few = score(scene.second, many, EPDMS, previous_states=before), score(scene.second, scene.candidates, EPDMS)
    assert len(card) == len(many) > BATCH
    assert card.states.shape == (len(many), STEPS + 1, STATE_SIZE)
    assert card.ec is not None
    assert len(card.ec) == len(many)
    np.testing.assert_allclose(card.lk, np.tile(few.lk, 30))
    np.testing.assert_allclose(card.clearance_m, np.tile(few.clearance_m, (30, 1)), atol=1e-9)
    np.testing.assert_allclose(score(scene.second, many, EPDMS).score, np.tile(few.score, 30), atol=1e-9)


# --- what must not help -----------------------------------------------------------------------------------------------


@given(scenes, st.floats(-10, 50), st.floats(-15, 15), st.floats(-3, 3), st.floats(0, 12), st.booleans())
def test_one_more_agent_never_raises_nc_or_ttc(scene, x, y, heading, speed, official):
    more = tracks([[x, y, heading]], [speed])
    agents = scene.first.agents
    both = AgentTracks(*(np.concatenate([getattr(agents, f.name), getattr(more, f.name)]) for f in fields(agents)))
    before = score(scene.first, scene.candidates, official=official)
    after = score(replace(scene.first, agents=both), scene.candidates, official=official)
    assert (after.nc <= before.nc).all()
    assert (after.ttc <= before.ttc).all()
    assert (after.clearance_m <= before.clearance_m).all()
    assert (after.waypoint_safety <= before.waypoint_safety).all()


@given(st.floats(0.3, 6.0), st.floats(0.0, 2.0), st.floats(-4.0, 4.0))
def test_a_smaller_road_never_raises_dac(half, less, lateral_m):
    plans = np.concatenate([straight(speed, y=y) for speed in (3.0, 10.0) for y in (lateral_m, 0.5 * lateral_m, 0.0)])

    def dac(half_width):
        ring = np.array([[-20, -half_width], [60, -half_width], [60, half_width], [-20, half_width]])
        return score(road(areas=MapAreas(roadblocks=(ring,))), plans).dac

    assert (dac(max(half - less, 0.1)) <= dac(half)).all()


# --- what a score means -----------------------------------------------------------------------------------------------


def test_a_good_plan_scores_one_and_a_crash_zero():
    assert score(road(), straight()).score[0] == pytest.approx(1.0, abs=0.01)
    crash = score(road(agents=tracks([[30.0, 0.0, 0.0]], [0.0])), straight())
    assert crash.score[0] == 0.0
    assert crash.nc[0] == 0.0


def test_waypoint_safety_and_clearance_say_where_it_goes_wrong():
    """At 10 m/s the bumper meets the car, 23.7 m ahead of it, in the third second, and in the fourth has passed it."""
    card = score(road(agents=tracks([[30.0, 0.0, 0.0]], [0.0])), straight())
    assert card.waypoint_safety[0].tolist() == [1, 1, 1, 0, 0, 0, 0, 1]
    assert card.clearance_m.shape == (1, 8)
    assert card.clearance_m[0, 3] == pytest.approx(30.0 - 2.25 - 20.0 - 4.049, abs=0.05)
    assert card.clearance_m[0, 4] == 0.0
    assert (card.clearance_m[0, :3] == 5.0).all()  # reported up to 5 m
    off_road = score(road(), straight(y=4.0))
    assert off_road.dac[0] == 0.0
    assert off_road.waypoint_safety[0, -1] == 0.0


def test_the_score_is_the_weighted_mean_of_navsim():
    scene = road(reference=Reference(80.0))
    card = score(scene, straight())
    assert (card.ttc[0], card.comfort[0], card.multiplier[0]) == (1.0, 1.0, 1.0)
    assert card.score[0] == pytest.approx((5 * card.ep[0] + 7) / 12)
    without_comfort = total(card, ScoringConfig(), with_comfort=False)
    assert without_comfort[0] == pytest.approx((5 * card.ep[0] + 5) / 10)
    with pytest.raises(ConfigError, match=r"scoring\.form"):
        ScoringConfig(form="pdm")


def test_epdms_counts_lane_keeping_always_and_extended_comfort_if_it_can():
    scene = road()
    off_centre = score(scene, straight(y=0.9), EPDMS)
    assert off_centre.lk[0] == 0.0
    assert off_centre.ec is None
    assert off_centre.score[0] == pytest.approx((5 * off_centre.ep[0] + 5 + 2 * off_centre.comfort[0]) / 14)
    before = score(scene, straight()).states[0]
    with_earlier = score(scene, straight(), EPDMS, previous_states=before)
    assert with_earlier.ec is not None
    assert with_earlier.score[0] == pytest.approx((5 * with_earlier.ep[0] + 9 + 2 * with_earlier.ec[0]) / 16)


def test_red_lights_multiply_both_forms_except_official_pdms():
    connector = np.array([[15.0, -2.0], [25.0, -2.0], [25.0, 2.0], [15.0, 2.0]])
    scene = road(red_lights=RedLights((connector,), np.ones((1, STEPS + 1), bool)))
    assert score(scene, straight()).score[0] == 0.0
    assert score(scene, straight(), EPDMS, official=True).score[0] == 0.0
    assert score(scene, straight(), official=True).score[0] > 0.9
    slow = road(1.0, red_lights=scene.red_lights)
    assert score(slow, straight(1.0)).tlc[0] == 1.0


def test_without_a_reference_each_candidate_is_its_own_yardstick():
    card = score(road(reference=None), np.concatenate([straight(5.0), straight(10.0)]))
    np.testing.assert_allclose(card.ep, 1.0)
    shared = score(road(), np.concatenate([straight(5.0), straight(10.0)]))
    assert shared.ep[0] < 0.75 < shared.ep[1]


def test_a_trajectory_scores_as_its_poses_whatever_its_interval():
    scene = road()
    poses = np.zeros((100, 3))
    for dt_s, count in ((0.5, 8), (0.1, 40), (0.1, 60)):
        poses[:, 0] = 9.0 * dt_s * np.arange(1, 101)
        array = poses[None, : 8 if dt_s == 0.5 else 40]
        same(score(scene, Trajectory(poses[:count], dt_s)), score(scene, array))
    poses[:, 0] = 9.0 * 0.16 * np.arange(1, 101)
    same(score(scene, Trajectory(poses[:30], 0.16)), score(scene, straight(9.0)), atol=1e-3)
    with pytest.raises(ValueError, match=r"Trajectory ends at 3\.20 s, expected at least 4 s"):
        score(scene, Trajectory(poses[:20], 0.16))


def test_an_observation_makes_a_scene():
    ego = EgoState(0, np.array([5.0, 6.0, 1.0]), 8.0, acceleration_mps2=0.5, yaw_rate_rps=0.1, steering_rad=0.04)
    agents = Agents(np.array([[20.0, 0, 0]]), np.array([[0.0, 0]]), np.array([[4.0, 2.0]]), [AgentKind.VEHICLE])
    observation = Observation(0, ego, np.array([[-5.0, 0, 0], [80, 0, 0]]), agents=agents)
    scene = SafetyContext(observation, Config()).scene
    np.testing.assert_array_equal(scene.motion, [8.0, 0.0, 0.5, 0.0, 0.04, 0.0, 0.1, 0.0])
    assert score(scene, straight(8.0)).nc[0] == 0.0
    assert score(SafetyContext(replace(observation, agents=None), Config()).scene, straight(8.0)).nc[0] == 1.0


def test_a_forecast_goes_on_as_it_ended():
    poses = np.zeros((1, 3, 3))
    poses[0, :, 0] = [0.0, 2.0, 5.0]  # 4 m/s, then 6 m/s
    tracks = AgentTracks.of_forecast(Forecast(poses, [[4.0, 2.0]], 0.5, ForecastSource.PREDICTED), [1])
    np.testing.assert_allclose(tracks.poses[0, [0, 3, 5, 10, 50], 0], [0.0, 1.2, 2.0, 5.0, 5.0 + 4.0 * 6.0])
    np.testing.assert_allclose(tracks.speeds_mps[0, [0, 4, 5, 50]], [4.0, 4.0, 6.0, 6.0])


# --- crowds and nonsense ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [0, 500])
def test_an_empty_road_and_a_crowd_are_both_scored(count):
    random = np.random.default_rng(3)
    agents = tracks(random.uniform([-20, -40, -3], [90, 40, 3], (count, 3)), random.uniform(0, 10, count))
    card = score(road(agents=agents), np.concatenate([straight(s) for s in (0.0, 5.0, 10.0)]))
    assert (card.nc == 1).all() == (count == 0)
    assert_sound(card)


def assert_sound(card: ScoreCard) -> None:
    for field in fields(card):
        values = getattr(card, field.name)
        assert values is None or np.isfinite(values).all(), field.name
    for name in (*SUB_SCORES, "multiplier", "waypoint_safety"):
        assert ((getattr(card, name) >= 0) & (getattr(card, name) <= 1)).all(), name


@given(scenes, st.integers(0, 2**32 - 1), st.sampled_from([0.0, 1.0, 30.0, 1e5]), st.booleans(), st.booleans())
def test_no_candidate_makes_a_score_nan(scene, seed, size, official, second):
    random = np.random.default_rng(seed)
    wild = random.normal(0, size, (5, 8, 3))
    golden_scene, config = (scene.second, EPDMS) if second else (scene.first, ScoringConfig())
    assert_sound(score(golden_scene, wild, config, official=official, previous_states=np.zeros((41, 11))))


SQUARE = np.array([[0.0, 0], [4, 0], [4, 4], [0, 4]])
BOW_TIE = np.array([[0.0, 0], [4, 4], [4, 0], [0, 4]])
NAN = float("nan")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: score(road(), np.zeros((2, 7, 3))), r"score\.candidates has shape \(2, 7, 3\), expected \(1 or mo"),
        (lambda: score(road(), np.zeros((8, 3))), r"score\.candidates has shape \(8, 3\), expected \(any, any, 3\)"),
        (lambda: score(road(), straight() * 1e8), r"score\.candidates reaches 4e\+09, expected at most 1e\+06"),
        (lambda: score(road(1e9), straight()), r"Scene\.motion reaches 1e\+09"),
        (lambda: score(road(), straight(), previous_states=np.zeros((40, 11))), r"previous_states has shape \(1, 40,"),
        (lambda: replace(road(), motion=np.zeros(7)), r"Scene\.motion has shape \(7,\), expected \(8\)"),
        (lambda: replace(road(), centerline=LINE[:1]), r"Scene\.centerline has shape \(1, 2\), expected \(2 or more"),
        (lambda: replace(road(), history=np.zeros((14, 3))), r"Scene\.history has shape"),
        (lambda: MapAreas(roadblocks=(np.zeros((0, 2)),)), r"roadblocks\[0\] has shape \(0, 2\), expected \(3 or"),
        (lambda: MapAreas(carparks=(SQUARE, BOW_TIE)), r"MapAreas\.carparks\[1\] is not a simple polygon: Self-inter"),
        (lambda: MapAreas(lanes=(SQUARE,)), r"MapAreas\.lane_on_route has 0 flags for 1 lanes"),
        (lambda: RedLights((SQUARE,), np.zeros((1, 40), bool)), r"RedLights\.red has shape \(1, 40\), expected \(1,"),
        (lambda: Reference(NAN), r"Reference\.progress_m is nan"),
        (lambda: Reference(10.0, 1.5), r"Reference\.multiplier is 1\.5"),
        (lambda: replace(tracks([[0, 0, 0]], [1.0]), sizes=[[4.0, 0.0]]), r"AgentTracks\.sizes holds a length or"),
        (lambda: replace(tracks([[0, 0, 0]], [1.0]), speeds_mps=np.full((1, SAMPLES), NAN)), r"speeds_mps holds NaN"),
    ],
)
def test_bad_input_is_refused_by_name(make, message):
    with pytest.raises(ValueError, match=message):
        make()
