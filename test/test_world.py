"""Claims about the closed loop: the ego drives as the score's car does, and what it does has consequences."""

import hashlib
import subprocess
import sys
from dataclasses import replace

import crossing
import numpy as np
import pytest
from scenes import CAR, FRONT_M, SIZE

from reflectdrive_ros.core import geometry
from reflectdrive_ros.core.domain import Command, Plan, Trajectory
from reflectdrive_ros.scoring import drivable, metrics
from reflectdrive_ros.scoring.contacts import SAMPLES, AgentTracks
from reflectdrive_ros.scoring.simulate import STATE_SIZE, STEPS, VX, centers, simulate
from reflectdrive_ros.sim import drive_log, incidents, instructions, local_map
from reflectdrive_ros.sim.ego import Ego, ego_at_speed, step_ego
from reflectdrive_ros.sim.network import navigation
from reflectdrive_ros.sim.traffic.actors import Actors, ActorShape, Lamp, TrafficSnapshot
from reflectdrive_ros.sim.world import START_NS, World, WorldOptions

STEP_NS = 100_000_000
PLACE = np.array([100.0, -50.0, 2.0])


@pytest.fixture(scope="module")
def road_map(tmp_path_factory):
    return crossing.build_network(tmp_path_factory.mktemp("crossing"))


@pytest.fixture(scope="module")
def space(road_map):
    return drivable.union_polygons([*road_map.roads.values(), *road_map.junctions.values()])


def straight(speed_mps, stamp_ns=0, map_from_ego=PLACE, seconds=8.0):
    poses = np.zeros((round(10 * seconds), 3))
    poses[:, 0] = 0.1 * speed_mps * np.arange(1, len(poses) + 1)
    return Plan(stamp_ns, map_from_ego, Trajectory(poses, 0.1))


def standing(pose, shape=ActorShape.CAR, size=(4.5, 1.8, 1.5), speed_mps=0.0):
    return Actors(*map(np.array, ([7], [pose], [speed_mps], [size], [int(shape)], [False], [0])))


# --- the ego ----------------------------------------------------------------------------------------------------------


def test_the_first_step_is_that_of_the_score():
    bend = np.stack([np.arange(1, 41) * 0.9, 0.002 * np.arange(1, 41) ** 2, 0.004 * np.arange(1, 41)], axis=1)
    motion = np.array([8.0, 0.0, 0.5, 0.0, 0.02, 0.0, 0.05, 0.0])
    after = step_ego(Ego(PLACE, motion), Plan(0, PLACE, Trajectory(bend, 0.1)), 0, CAR)
    state = simulate(bend[None], motion, CAR)[0, 1]
    np.testing.assert_allclose(after.map_from_ego, geometry.compose(PLACE, state[:3]), atol=2e-3)
    np.testing.assert_allclose(after.motion, state[VX:], atol=2e-2)


def test_a_car_off_an_old_plan_returns_to_its_line():
    """A car with a lateral offset converges to its plan, which is a line on the road and does not move with the car."""
    offset_pose = geometry.compose(PLACE, np.array([0.0, 0.5, 0.0]))
    plan, ego = straight(8.0), ego_at_speed(offset_pose, 8.0)
    for step in range(50):
        ego = step_ego(ego, plan, step * STEP_NS, CAR)
    assert abs(geometry.compose(geometry.invert(PLACE), ego.map_from_ego)[1]) < 0.1


@pytest.mark.parametrize("speed_mps", [0.45, 0.2, -0.2])
def test_a_slow_car_that_is_to_stand_stands_within_half_a_second(speed_mps):
    """Under the tracker of the score its speed would decay with a time constant of 2 s."""
    ego, plan = ego_at_speed(PLACE, speed_mps), straight(0.0)
    for step in range(5):
        before_mps = ego.speed_mps
        ego = step_ego(ego, plan, step * STEP_NS, CAR)
        assert abs(ego.speed_mps - before_mps) <= 0.1 + 1e-9
    assert ego.speed_mps == 0.0
    assert np.hypot(*(ego.map_from_ego - PLACE)[:2]) < 0.13


def test_a_car_that_its_brakes_have_stopped_moves_off_without_rolling_back():
    ego = step_ego(ego_at_speed(PLACE, 0.08), straight(0.0), 0, CAR)
    assert ego.speed_mps == 0.0
    start = replace(straight(1.0), map_from_ego=ego.map_from_ego)
    speeds_mps = []
    for step in range(10):
        ego = step_ego(ego, start, step * STEP_NS, CAR)
        speeds_mps.append(ego.speed_mps)
    assert min(speeds_mps) >= 0.0
    assert speeds_mps[-1] > 0.5


@pytest.mark.parametrize("plan", [None, straight(12.0, seconds=0.5), straight(12.0, stamp_ns=10**12)])
def test_without_a_plan_for_now_the_car_stops(plan):
    ego = ego_at_speed(PLACE, 12.0)
    for step in range(90):
        ego = step_ego(ego, plan, step * STEP_NS, CAR)
    assert abs(ego.speed_mps) < 0.1
    ahead, lateral_m, _ = geometry.compose(geometry.invert(PLACE), ego.map_from_ego)
    assert 12.0**2 / (2 * 5.0) < ahead < 12.0**2 / (2 * 2.0)
    assert abs(lateral_m) < 1e-6


# --- the route --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("edges", "command", "words"),
    [
        (("sc", "cw"), Command.LEFT, "turn left"),
        (("sc", "ce"), Command.RIGHT, "turn right"),
        (("sc", "cn"), Command.STRAIGHT, "go straight at the junction"),
        (("sc", "cs"), Command.LEFT, "turn back"),
    ],
)
def test_a_turn_is_announced_lasts_until_its_end_and_is_over_after_it(road_map, edges, command, words):
    route = navigation.build_route(road_map, crossing.lane_of(road_map, "sc"), edges)
    junction_m = route.starts_m[1]

    def instruction_at(at_m):
        return instructions.next_instruction(road_map, route.lanes_from(at_m), route.distance_along_lane(at_m))

    assert instruction_at(junction_m - 60.0) == (Command.FOLLOW, "follow the road")
    assert instruction_at(junction_m - 31.0) == (command, f"{words} in 30 m")
    assert instruction_at(junction_m - 12.0) == (command, f"{words} in 10 m")
    assert instruction_at(junction_m + 3.0) == (command, words)
    assert instruction_at(route.starts_m[-1] + 1.0) == (Command.FOLLOW, "follow the road")


def test_the_route_changes_to_the_lane_that_turns_and_is_on_it_before_the_junction(road_map):
    right = crossing.lane_of(road_map, "wc", 0)
    route = navigation.build_route(road_map, right, ("wc", "cn"), begin_m=60.0)
    assert route.lanes[:2] == (right, crossing.lane_of(road_map, "wc", 1))
    assert route.lanes[-1] == crossing.lane_of(road_map, "cn")
    lanes = [road_map.lanes[key].lane.centerline for key in route.lanes[:2]]
    for at_m, lane in ((route.starts_m[0] + 60.0, lanes[0]), (route.starts_m[2] - 10.0, lanes[1])):
        _, (lateral_m,) = geometry.project(lane, route.pose_at(at_m)[None, :2])
        assert abs(lateral_m) < 0.1
    turns = np.abs(geometry.wrap(np.diff(geometry.headings_along(route.line))))
    assert turns.max() < 0.35  # no kink where the lanes join


def test_the_adjacent_lane_is_on_the_route_and_the_oncoming_one_is_not(road_map):
    route = navigation.build_route(road_map, crossing.lane_of(road_map, "wc", 1), ("wc", "ce"))
    on_route = local_map.route_with_neighbours(road_map, route.lanes)
    assert {road_map.lanes[key].edge for key in on_route if road_map.lanes[key].across_junction is None} == {"wc", "ce"}
    assert crossing.lane_of(road_map, "wc", 0) in on_route
    across = [road_map.lanes[key] for key in on_route if road_map.lanes[key].across_junction]
    assert len(across) == 2  # both lanes straight on


def test_red_lights_are_those_of_the_connectors_of_the_route_only(road_map):
    route = navigation.build_route(road_map, crossing.lane_of(road_map, "sc"), ("sc", "cw"))
    lamps = np.full((STEPS + 1, len(road_map.signals)), int(Lamp.RED))
    lamps[10:] = Lamp.AMBER
    lights = local_map.red_lights(road_map, lamps, route.pose_at(100.0), route.lanes)
    connectors = [key for key in route.lanes if road_map.lanes[key].across_junction]
    assert len(lights.connectors) == len(connectors)
    assert lights.red[:, :10].all()
    assert not lights.red[:, 10:].any()
    with pytest.raises(ValueError, match="lamps_over_time"):
        local_map.red_lights(road_map, lamps[:5], route.pose_at(100.0), route.lanes)


# --- incidents --------------------------------------------------------------------------------------------------------


def watched(road_map, space, ego, plan, steps, actors=None, lamps=None, route=frozenset()):
    """A drive along one plan among actors that stand still."""
    recorder = drive_log.Recorder(road_map, space, CAR)
    signal_lamps = np.full(len(road_map.signals), int(Lamp.GREEN)) if lamps is None else lamps
    snapshot = TrafficSnapshot(0.0, actors or Actors.none(), signal_lamps)
    start = ego.map_from_ego
    for step in range(steps + 1):
        progress = float(geometry.compose(geometry.invert(start), ego.map_from_ego)[0])
        recorder.watch(step * STEP_NS, ego, snapshot, route, progress, 13.9)
        ego = step_ego(ego, plan, step * STEP_NS, CAR)
    return recorder.log()


def test_driving_through_a_parked_car_is_one_collision_and_ours(road_map, space):
    key = crossing.lane_of(road_map, "sc")
    pose = crossing.pose_on(road_map, key, 50.0)
    parked = standing(crossing.pose_on(road_map, key, 80.0))
    log = watched(road_map, space, ego_at_speed(pose, 8.0), straight(8.0, 0, pose), 60, parked)
    (hit,) = log.collisions
    assert hit.at_fault
    assert (hit.actor, hit.shape) == (7, ActorShape.CAR)
    free = 80.0 - 50.0 - FRONT_M - 0.5 * 4.5
    assert hit.time_s == pytest.approx(free / 8.0, abs=0.2)
    assert [event.kind for event in log.events] == ["collision"]
    assert log.clearances_m.min() == 0.0
    assert log.distance_m == pytest.approx(48.0, abs=0.5)


def test_who_is_touched_again_after_a_while_is_hit_again(road_map, space):
    key = crossing.lane_of(road_map, "sc")
    recorder = drive_log.Recorder(road_map, space, CAR)
    ego = ego_at_speed(crossing.pose_on(road_map, key, 50.0), 1.0)
    lamps = np.full(len(road_map.signals), int(Lamp.GREEN))
    for step in range(40):
        touching = step < 5 or step >= 30
        other = standing(crossing.pose_on(road_map, key, 50.0 + (5.0 if touching else 40.0)))
        recorder.watch(step * STEP_NS, ego, TrafficSnapshot(0.0, other, lamps), frozenset(), 0.0, 13.9)
    assert len(recorder.log().collisions) == 2


def test_whose_fault_a_contact_is_follows_the_score(road_map):
    """The same contacts as the score's own metric judges, at an instant of a plan."""
    rng = np.random.default_rng(5)
    pose = crossing.pose_on(road_map, crossing.lane_of(road_map, "sc"), 90.0)
    judged = []
    while len(judged) < 60:
        ego = ego_at_speed(geometry.compose(pose, [0.0, rng.uniform(-1.5, 1.5), 0.0]), rng.choice([0.0, 5.0]))
        offset = np.array([rng.uniform(-5.0, 6.0), rng.uniform(-2.5, 2.5), rng.uniform(-np.pi, np.pi)])
        shape = ActorShape(int(rng.choice([ActorShape.CAR, ActorShape.PEDESTRIAN, ActorShape.CONE])))
        there = geometry.compose(ego.box_center(CAR), offset)
        other = standing(there, shape, (2.0, 1.0, 1.5), float(rng.choice([0.0, 4.0])))
        if incidents.clearances(ego, other, CAR)[0] > 0.0:
            continue
        judged.append(incidents.at_fault(ego, other, 0, road_map, CAR))
        assert judged[-1] == (by_the_score(ego, other, road_map) < 1.0)
    assert 10 < sum(judged) < 50


def by_the_score(ego, other, road_map):
    """NC of a car that is in contact from the plan's second instant on."""
    states = np.zeros((1, STEPS + 1, STATE_SIZE))
    states[..., VX] = ego.speed_mps
    present = np.zeros((1, SAMPLES), bool)
    present[:, 1:] = True
    ego_from_map = geometry.invert(ego.map_from_ego)
    poses = np.tile(geometry.compose(ego_from_map, other.poses)[:, None], (1, SAMPLES, 1))
    speeds = np.tile(other.speeds_mps[:, None], (1, SAMPLES))
    tracks = AgentTracks(poses, present, speeds, other.sizes[:, :2], other.kinds)
    center = centers(states, CAR)
    areas = metrics.ego_areas(center, SIZE, local_map.areas(road_map, ego.map_from_ego, ()), None)
    return metrics.no_collision(states, center, CAR, tracks, areas).min()


def test_a_plan_off_the_road_is_one_event_with_its_length(road_map, space):
    pose = geometry.compose(crossing.pose_on(road_map, crossing.lane_of(road_map, "sc"), 50.0), [0.0, 0.0, -0.1])
    log = watched(road_map, space, ego_at_speed(pose, 6.0), straight(6.0, 0, pose), 40)
    assert [event.kind for event in log.events] == ["off_road"]
    assert 0 < log.off_road_s < 4.0
    assert log.off_road_m == pytest.approx(6.0 * log.off_road_s, abs=0.1)
    assert not log.off_road[0]
    assert log.off_road[-1]


@pytest.mark.parametrize(("lamp", "expected_count"), [(Lamp.RED, 1), (Lamp.GREEN, 0), (Lamp.AMBER, 0)])
def test_a_stop_line_crossed_at_red_is_an_event(road_map, space, lamp, expected_count):
    key = crossing.lane_of(road_map, "sc")
    route = navigation.build_route(road_map, key, ("sc", "cn"))
    pose = crossing.pose_on(road_map, key, 160.0)
    lamps = np.full(len(road_map.signals), int(Lamp.GREEN if lamp is Lamp.RED else Lamp.RED))
    for index, signal in enumerate(road_map.signals):
        if set(signal.connectors) & set(route.lanes):  # the others show the opposite: only that of our route counts
            lamps[index] = lamp
    ego, plan = ego_at_speed(pose, 10.0), straight(10.0, 0, pose)
    log = watched(road_map, space, ego, plan, 60, lamps=lamps, route=frozenset(route.lanes))
    assert log.count("red_light") == expected_count


def test_no_progress_for_a_minute_is_one_event_stuck(road_map, space):
    pose = crossing.pose_on(road_map, crossing.lane_of(road_map, "sc"), 50.0)
    recorder = drive_log.Recorder(road_map, space, CAR)
    snapshot = TrafficSnapshot(0.0, Actors.none(), np.zeros(len(road_map.signals), int))
    for step in range(700):
        recorder.watch(step * STEP_NS, Ego(pose), snapshot, frozenset(), 5.0, 13.9)
    log = recorder.log()
    (event,) = log.events
    assert event.kind == "stuck"
    assert event.time_s == pytest.approx(60.0, abs=0.2)
    assert log.route_completion == 0.0
    assert log.standing_s == pytest.approx(69.9)
    assert log.comfort == 1.0


@pytest.mark.parametrize(("speed_mps", "seconds", "expected_count"), [(14.3, 3.0, 0), (14.5, 0.8, 0), (14.5, 3.0, 1)])
def test_faster_than_the_limit_for_a_second_is_one_event_speeding(road_map, space, speed_mps, seconds, expected_count):
    pose = crossing.pose_on(road_map, crossing.lane_of(road_map, "sc"), 50.0)
    recorder = drive_log.Recorder(road_map, space, CAR)
    snapshot = TrafficSnapshot(0.0, Actors.none(), np.zeros(len(road_map.signals), int))
    for step in range(round(10 * seconds) + 1):
        recorder.watch(step * STEP_NS, ego_at_speed(pose, speed_mps), snapshot, frozenset(), 0.0, 13.9)
    assert recorder.log().count("speeding") == expected_count


# --- the world --------------------------------------------------------------------------------------------------------

POSES = """
import sys, numpy as np, hashlib
from reflectdrive_ros.core.domain import Plan, Trajectory
from reflectdrive_ros.sim.world import World, WorldOptions
with World(WorldOptions(seed=4)) as world:
    digest = hashlib.sha256(world.route.tobytes())
    for _ in range(50):
        world.step(None if world.stamp_ns % 3 else Plan(world.stamp_ns, world.ego.map_from_ego,
            Trajectory(np.stack([0.4 * np.arange(1, 81), np.zeros(80), np.zeros(80)], axis=1), 0.1)))
        digest.update(world.ego.map_from_ego.tobytes() + world.snapshot.actors.poses.tobytes())
print(digest.hexdigest())
"""


def test_the_same_seed_is_the_same_world_in_another_process():
    runs = [subprocess.Popen([sys.executable, "-c", POSES], stdout=subprocess.PIPE, text=True) for _ in range(2)]
    first, second = (run.communicate(timeout=120)[0].strip() for run in runs)
    assert len(first) == len(hashlib.sha256().hexdigest())
    assert second == first


def test_a_world_begins_on_a_lane_with_nobody_near():
    for seed in (1, 2):
        with World(WorldOptions(seed=seed)) as world:
            assert world.stamp_ns == START_NS
            assert world.drive.clearances_m[0] > 6.0  # 8 m, less what happened since
            assert not world.drive.off_road[0]
            assert 0.0 <= world.ego.speed_mps < world.speed_limit_mps
            observation = world.observation()
            along, lateral_m = geometry.ego_on_route(observation.route)
            assert abs(lateral_m) < 0.1
            assert geometry.arc_lengths(observation.route)[-1] - along > 200.0
            assert observation.agents is not None
            assert len(observation.agents) > 0
            card, reference = world.score(Trajectory(np.zeros((8, 3)), 0.5))
            assert 0.0 <= card.score[0] <= 1.0
            assert card.progress_m[0] < 1.0 < reference.progress_m


def test_those_behind_stop_behind_an_ego_that_stands():
    with World(WorldOptions(seed=6, density=1.6)) as world:
        for _ in range(300):
            world.step(None)
        log = world.drive
        assert [one for one in log.collisions if one.shape is not ActorShape.PEDESTRIAN] == []
        assert log.poses[-1] == pytest.approx(log.poses[150], abs=0.1)
