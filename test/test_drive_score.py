"""Claims about the score of a drive in closed loop, on drives that are constructed term by term."""

import json

import crossing
import numpy as np
import pytest
from drive_logs import log, measurements
from scenes import CAR, FRONT_M

from reflectdrive_ros.core import geometry
from reflectdrive_ros.core.config import Config
from reflectdrive_ros.core.domain import EgoState
from reflectdrive_ros.evaluation import closed_loop, drive_measurements, drive_score, variants
from reflectdrive_ros.evaluation.drive_measurements import MeasurementRecorder
from reflectdrive_ros.evaluation.drive_results import DriveResult
from reflectdrive_ros.scoring import drivable
from reflectdrive_ros.scoring.simulate import AX
from reflectdrive_ros.sim.drive_log import Collision, Event
from reflectdrive_ros.sim.traffic.actors import Actors, ActorShape
from reflectdrive_ros.sim.world import WorldOptions

CAR_M = 4.5


def drive(planner="a", seed=0, speed_mps=10.0, seconds=30.0, collisions=(), events=(), **measured):
    """Straight on at a constant speed, without a fault unless given."""
    values = measurements(
        **{"progress_m": speed_mps * seconds, "faultless_progress_m": speed_mps * seconds, **measured}
    )
    driven = log(seconds, speed_mps, collisions, events)
    return DriveResult(planner, seed, "town", driven, values, np.ones(1), np.ones((1, 6)), {}, {})


def score(*drives):
    """Of the first drive, 0..100, beside the others of its seed."""
    first = drives[0]
    return 100.0 * drive_score.scores(drives)[first.planner, first.seed].total


BEST = drive("best")


def test_a_drive_without_a_fault_as_far_as_the_best_has_100():
    assert score(drive(), BEST) == 100.0


# --- progress ---------------------------------------------------------------------------------------------------------


def test_standing_while_another_planner_drives_scores_0_though_each_plan_may_score_100():
    assert score(drive(speed_mps=0.0), BEST) == 0.0


def test_creeping_loses_the_share_of_the_way_and_below_a_fifth_everything():
    assert score(drive(speed_mps=5.0), BEST) == pytest.approx(100 * (5 * 0.5 + 5 + 4 + 2) / 16)
    assert score(drive(speed_mps=2.1), BEST) == pytest.approx(100 * (5 * 0.21 + 5 + 4 + 2) / 16)
    assert score(drive(speed_mps=1.9), BEST) == 0.0


def test_waiting_where_no_planner_gets_further_costs_nothing():
    assert score(drive(speed_mps=0.0), drive("best", speed_mps=0.05)) == 100.0


def test_of_two_planners_progress_is_relative_to_the_further_one_in_each_world():
    driven = [drive("a", 1, 8.0), drive("b", 1, 10.0), drive("a", 2, 10.0), drive("b", 2, 4.0)]
    shares = {job: row.progress for job, row in drive_score.scores(driven).items()}
    assert shares == pytest.approx({("a", 1): 0.8, ("b", 1): 1.0, ("a", 2): 1.0, ("b", 2): 0.4})


HIT = Collision(5.0, 3, ActorShape.CAR, True)
FAULTS = [
    {"collisions": [HIT]},
    {"off_road_depth_m": 1.0},
    {"direction": 0.0},
    {"events": [Event("red_light", 5.0, "")]},
]


@pytest.mark.parametrize("fault", FAULTS, ids=["contact", "off the road", "wrong direction", "red light"])
def test_of_a_drive_with_a_fault_others_are_compared_with_the_way_before_it(fault):
    other = drive("best", speed_mps=20.0, faultless_progress_m=100.0, **fault)
    assert score(drive(speed_mps=10.0), other) == 100.0
    assert score(drive(speed_mps=50 / 30), other) == pytest.approx(100 * (5 * 0.5 + 5 + 4 + 2) / 16)
    assert score(drive(speed_mps=0.0), other) == 0.0


def test_a_planner_alone_is_compared_with_the_reference_planner_from_its_own_states():
    assert score(drive(plan_progress_m=600.0, reference_progress_m=600.0)) == 100.0
    assert score(drive(plan_progress_m=300.0, reference_progress_m=600.0)) == pytest.approx(100 * 13.5 / 16)
    assert score(drive(plan_progress_m=0.0, reference_progress_m=600.0)) == 0.0
    assert score(drive(plan_progress_m=0.0, reference_progress_m=0.5)) == 100.0  # in a queue


@pytest.mark.parametrize(
    ("driven", "sentence"),
    [
        ([drive("a"), BEST], "the best drive of the same world"),
        ([drive("a")], "the reference planner, for want of another planner's drive"),
        ([drive("a"), BEST, drive("a", 1)], "the best drive of the same world; in 1 worlds to the reference planner"),
    ],
)
def test_the_table_says_what_progress_is_relative_to(driven, sentence):
    drives = closed_loop.Drives(("a", "best"), tuple(driven), {})
    assert f"progress is relative to {sentence}" in str(closed_loop._table(drives).caption)


# --- multipliers ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shapes", "at_fault", "expected"),
    [
        ([ActorShape.CAR], True, 0.0),
        ([ActorShape.PEDESTRIAN], True, 0.0),
        ([ActorShape.CONE], True, 50.0),
        ([ActorShape.CONE, ActorShape.BARRIER], True, 0.0),
        ([ActorShape.CONE, ActorShape.BICYCLE], True, 0.0),
        ([ActorShape.CAR, ActorShape.CONE, ActorShape.CONE], False, 100.0),
    ],
)
def test_a_contact_at_fault_costs_everything_and_one_with_an_object_half(shapes, at_fault, expected):
    hits = [Collision(5.0, number, shape, at_fault) for number, shape in enumerate(shapes)]
    assert score(drive(collisions=hits), BEST) == expected


@pytest.mark.parametrize(("depth_m", "expected"), [(0.0, 100.0), (0.29, 100.0), (0.31, 0.0)])
def test_a_corner_off_the_road_by_more_than_30_cm_costs_everything(depth_m, expected):
    assert score(drive(off_road_depth_m=depth_m), BEST) == expected


@pytest.mark.parametrize("direction", [1.0, 0.5, 0.0])
def test_driving_against_the_lanes_multiplies_the_score(direction):
    assert score(drive(direction=direction), BEST) == 100.0 * direction


# --- weighted terms ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("mean_overspeed_mps", "term"), [(0.0, 1.0), (1.115, 0.5), (2.23, 0.0), (5.0, 0.0)])
def test_speeding_costs_its_integral_over_the_time_of_the_drive(mean_overspeed_mps, term):
    speeding = drive(overspeed_m=30.0 * mean_overspeed_mps)
    assert score(speeding, BEST) == pytest.approx(100 * (12 + 4 * term) / 16)


@pytest.mark.parametrize(
    ("seconds", "steps", "term"),
    [(30.0, [], 1.0), (30.0, [20, 21, 22], 0.5), (30.0, [20, 200], 0.0), (15.0, [20], 0.0), (60.0, [599], 0.75)],
)
def test_time_to_collision_is_the_share_of_windows_of_15_s_within_the_bound(seconds, steps, term):
    own, best = drive(seconds=seconds, ttc_steps=tuple(steps)), drive("best", seconds=seconds)
    assert score(own, best) == pytest.approx(100 * (11 + 5 * term) / 16)


def test_comfort_is_the_share_of_windows_within_the_bounds():
    shaken = drive()
    shaken.log.states[200:, AX] = np.where(np.arange(101) % 20 < 10, 6.0, -6.0)
    assert score(shaken, BEST) == pytest.approx(100 * (14 + 2 * 0.5) / 16)


# --- measurements in a world ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def road_map(tmp_path_factory):
    return crossing.build_network(tmp_path_factory.mktemp("crossing"))


@pytest.fixture(scope="module")
def space(road_map):
    return drivable.union_polygons([*road_map.roads.values(), *road_map.junctions.values()])


def pose_at(road_map, along_m, offset_m=0.0, turned_rad=0.0):
    """A pose of the rear axle beside the middle of the right lane, left positive."""
    pose = crossing.pose_on(road_map, crossing.lane_of(road_map, "wc"), along_m)
    return geometry.compose(pose, np.array([0.0, offset_m, turned_rad]))


def actor(pose, speed_mps=0.0):
    columns = ([7], [pose], [speed_mps], [(CAR_M, 1.8, 1.5)], [int(ActorShape.CAR)], [False], [0])
    return Actors(*map(np.array, columns))


def recorded(road_map, space, poses, events=None):
    """Measurements of a car at one pose after the other; progress is 1 m a step. `events`: by step."""
    recorder = MeasurementRecorder(road_map, space, CAR)
    for step, pose in enumerate(poses, start=1):
        ego = EgoState(step * 100_000_000, pose, 10.0)
        recorder.put(ego, Actors.none(), 13.9, float(step), (events or {}).get(step, ()))
    return recorder.measurements()


def test_progress_ends_where_the_car_leaves_its_route_and_faultless_progress_before_a_fault(road_map, space):
    poses = [pose_at(road_map, 20.0 + step) for step in range(50)]
    touched = [Event("collision", 1.0, "the car touched a car, not at fault"), Event("speeding", 1.0, "")]
    whole = recorded(road_map, space, poses, events={10: touched})
    assert (whole.progress_m, whole.faultless_progress_m) == (50.0, 50.0)
    hit = [Event("collision", 3.0, "the car touched a car, at fault")]
    values = recorded(road_map, space, poses, events={30: hit, 40: [Event("off_route", 4.0, "")]})
    assert (values.progress_m, values.faultless_progress_m) == (39.0, 29.0)


@pytest.mark.parametrize("beyond_m", [-0.5, 0.2, 0.8])
def test_the_depth_off_the_road_is_that_of_the_furthest_corner(road_map, space, beyond_m):
    edge_m = 0.5 * (crossing.LANE_M - CAR.width_m)  # from the lane's middle until the car touches its edge
    poses = [pose_at(road_map, 20.0 + step) for step in range(20)]
    poses[10] = pose_at(road_map, 30.0, -(edge_m + beyond_m))
    depth_m = recorded(road_map, space, poses).off_road_depth_m
    assert depth_m == pytest.approx(max(beyond_m, 0.0), abs=0.06)  # roads are grown by 5 cm


@pytest.mark.parametrize(
    ("from_m", "meters", "turned_rad", "expected"),
    [
        (20.0, 60.0, 0.0, 1.0),
        (100.0, 1.5, np.pi, 1.0),
        (100.0, 4.0, np.pi, 0.5),
        (100.0, 9.0, np.pi, 0.0),
        (100.0, 9.0, np.pi / 3, 1.0),
    ],
)
@pytest.mark.parametrize("steps", [12, 45, 120])
def test_driving_against_a_lane_counts_by_its_distance_within_a_second(
    road_map, space, from_m, meters, turned_rad, expected, steps
):
    """The car stands but for the second in the middle, in which it drives so many metres."""
    moved = np.clip((np.arange(steps) - steps // 2 + 5) / 10, 0.0, 1.0) * meters
    sign = -1.0 if turned_rad == np.pi else 1.0
    poses = [pose_at(road_map, from_m + sign * each, 0.0, turned_rad) for each in moved]
    assert recorded(road_map, space, poses).direction == expected


def test_lanes_of_the_other_direction_are_wrong_and_junctions_are_not_judged(road_map):
    own, oncoming = pose_at(road_map, 100.0), pose_at(road_map, 100.0, 2.1 * crossing.LANE_M)
    line_m = 1.5 * crossing.LANE_M  # from the middle of the right lane of two
    straddling, beyond = (pose_at(road_map, 100.0, line_m + each) for each in (0.25, 0.35))
    turning = np.array([0.0, 0.0, 2.0])  # the middle of the junction
    poses = np.array([own, oncoming, straddling, beyond, turning])
    assert drive_measurements.is_against_lanes(poses, road_map).tolist() == [False, True, False, True, False]


@pytest.mark.parametrize(
    ("gap_m", "lateral_m", "own_mps", "other_mps", "expected"),
    [
        (8.0, 0.0, 10.0, 0.0, True),
        (10.0, 0.0, 10.0, 0.0, False),  # more than 0.9 s
        (8.0, 0.0, 0.0, 0.0, False),  # the car stands
        (3.0, 0.0, 10.0, 10.0, False),  # both drive on
        (8.0, 4.5, 10.0, 0.0, False),  # in another lane
        (-40.0, 0.0, 5.0, 15.0, False),
        (-FRONT_M - 4.5, 0.0, 5.0, 15.0, False),  # from behind
    ],
)
def test_time_to_collision_is_of_cars_ahead_that_go_straight_on(
    road_map, gap_m, lateral_m, own_mps, other_mps, expected
):
    pose = pose_at(road_map, 60.0)
    other = geometry.compose(pose, np.array([FRONT_M + gap_m + 0.5 * CAR_M, lateral_m, 0.0]))
    ego = EgoState(0, pose, own_mps)
    assert drive_measurements.is_ttc_below_bound(ego, actor(other, other_mps), road_map, CAR) is expected


@pytest.mark.parametrize(("offset_m", "expected"), [(0.0, False), (0.5 * crossing.LANE_M, True)])
def test_cars_alongside_count_while_the_car_is_between_lanes(road_map, offset_m, expected):
    pose = pose_at(road_map, 60.0, offset_m)
    beside = geometry.compose(pose, np.array([1.4, 3.4, -0.3]))
    ego = EgoState(0, pose, 8.0)
    assert drive_measurements.is_ttc_below_bound(ego, actor(beside, 8.0), road_map, CAR) is expected


# --- the command ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def driven():
    """A car that stands where it could drive, and one that drives."""
    rows = variants.of_planners(Config(), ["constant_velocity", "route_follower"])
    options = WorldOptions(seed=902, town="closed-loop-00902")
    return [closed_loop.drive(options, row, 6.0, name=name) for name, row in rows.items()]


def test_in_the_proving_ground_a_standing_car_scores_0_and_one_that_drives_scores_high(driven):
    standing, moving = driven
    assert standing.log.distance_m < 0.1
    assert 100.0 * standing.scores.mean() > 50.0  # PDMS rewards it
    assert score(standing) == score(standing, moving) == 0.0
    assert score(moving, standing) > 80.0
    assert moving.measurements.progress_m == pytest.approx(moving.log.progress_m)
    assert moving.measurements.reference_progress_m > 0.0


def test_the_json_has_the_score_its_terms_and_measurements_and_paired_intervals():
    rows = ("best", "a")
    results = [drive("best", seed) for seed in range(3)] + [drive("a", seed, 5.0 + seed) for seed in range(3)]
    drives = closed_loop.Drives(rows, tuple(results), {}, {"a": "best"})
    content = json.loads(json.dumps(closed_loop.table_metrics(drives)))
    row = content["planners"]["a"]
    expected = [100 * (11 + 5 * share) / 16 for share in (0.5, 0.6, 0.7)]
    assert row["drive_score"] == pytest.approx(np.mean(expected), abs=0.01)
    assert row["drive_terms"]["progress"] == pytest.approx(60.0)
    assert {name for name, value in row["drive_terms"].items() if value == 100.0} == {*drive_score.TERMS} - {"progress"}
    assert [world["drive_score"] for world in row["worlds"]] == pytest.approx(expected, abs=0.01)
    assert row["worlds"][0]["drive_measurements"]["progress_m"] == 150.0
    difference = content["differences"]["a"]
    assert difference["drive_score"] == pytest.approx(np.mean(expected) - 100.0, abs=0.01)
    low, high = difference["drive_score_95"]
    assert low < difference["drive_score"] < high < 0.0
    assert set(difference["towns"]) == {"town"}
    assert list(closed_loop._table(drives).columns[2].cells)[:4] == ["100.0"] * 4
