"""Claims about the traffic of the proving ground: it moves as bodies do, keeps rules, is hard, and sees the ego."""

import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import shapely

from reflectdrive_ros.core import geometry
from reflectdrive_ros.sim.network import routing, towns
from reflectdrive_ros.sim.traffic.actors import ActorShape, Lamp
from reflectdrive_ros.sim.traffic.demand import Demand
from reflectdrive_ros.sim.traffic.traffic_log import Simulation, TrafficError, record

pytest.importorskip("libsumo", reason="the proving ground needs SUMO (extra: sim)")

DURATION_S = 90.0
SEED = 1


@pytest.fixture(scope="module")
def town(tmp_path_factory):
    return towns.make("traffic-town", SEED, tmp_path_factory.mktemp("town"))


@pytest.fixture(scope="module")
def log(town):
    return record(town, SEED, DURATION_S, warm_up_s=15.0)


@pytest.fixture(scope="module")
def drivers(log):
    return np.arange(log.drivers)


def present(log, rows):
    return ~np.isnan(log.poses[:, rows, 0])


# --- bodies ----------------------------------------------------------------------------------------------------------


def test_the_road_is_busy_and_mixed(log, drivers):
    shares = {shape: float(np.mean(log.shapes[drivers] == shape)) for shape in ActorShape}
    heavy = shares[ActorShape.VAN] + shares[ActorShape.TRUCK] + shares[ActorShape.BUS]
    assert 12 <= len(drivers) <= 130
    assert shares[ActorShape.CAR] > 0.55
    assert 0.04 < heavy < 0.3
    assert 0.02 < shares[ActorShape.BICYCLE] < 0.25
    assert present(log, drivers).mean() > 0.95


def test_a_driver_is_in_his_lane_and_points_along_it(log, drivers, town):
    inside = []
    for step in range(0, log.steps, 50):
        for row in drivers:
            lane = town.lanes.get(int(log.lane[step, row]))
            if lane is None or lane.across_junction is not None:
                continue
            pose = log.poses[step, row]
            (at,), _ = geometry.project(lane.lane.centerline, pose[None, :2])
            (along,) = geometry.sample(lane.lane.centerline, np.array([at]))
            here = any(part.buffer(0.3).contains(shapely.Point(pose[:2])) for part in lane.lane.polygons)
            inside.append(here and abs(geometry.wrap(along[2] - pose[2])) < np.deg2rad(10.0))
    assert len(inside) > 300
    assert np.mean(inside) > 0.95  # the others are changing lanes or come out of a junction


def test_bodies_move_along_their_heading_and_without_jolts(log, drivers):
    poses, speeds = log.poses[:, drivers], log.speeds_mps[:, drivers]
    step = np.diff(poses[..., :2], axis=0)
    moving = np.hypot(step[..., 0], step[..., 1]) > 0.1
    course = np.arctan2(step[..., 1], step[..., 0])
    slip = np.abs(geometry.wrap(course - poses[1:, :, 2]))[moving]
    assert np.percentile(slip, 99) < np.deg2rad(6.0)
    acceleration = np.diff(speeds, axis=0) / log.dt_s
    assert np.mean(np.abs(acceleration) < 5.0) > 0.995
    turning = np.abs(geometry.wrap(np.diff(poses[..., 2], axis=0)))[moving] / log.dt_s
    assert np.percentile(turning, 99.9) < 1.5


def test_bodies_hardly_ever_overlap(log, drivers):
    solid = np.flatnonzero(log.shapes != ActorShape.DOOR)
    overlapping = total = 0
    for step in range(0, log.steps, 10):
        rows = solid[present(log, solid)[step]]
        mine = np.isin(rows, drivers)
        poses, sizes = log.poses[step, rows], log.sizes[rows, :2]
        hit = geometry.boxes_overlap(poses[mine, None], sizes[mine, None], poses[None], sizes[None])
        hit[np.arange(mine.sum()), np.flatnonzero(mine)] = False
        overlapping += int(hit.any(axis=1).sum())
        total += int(mine.sum())
    assert overlapping / total < 0.01, f"{overlapping} of {total} driver-seconds"


# --- rules -----------------------------------------------------------------------------------------------------------


def test_nobody_drives_on_at_red(log, drivers, town):
    passed = 0
    for index, signal in enumerate(town.signals):
        before = log.lane[:-1][:, drivers] == signal.lane
        after = np.isin(log.lane[1:][:, drivers], signal.connectors)
        steps, _ = np.nonzero(before & after)
        passed += len(steps)
        assert (log.lamps[steps, index] != Lamp.RED).all()
    assert passed >= 5


# --- what makes it hard ----------------------------------------------------------------------------------------------


def test_there_is_something_to_answer(log, drivers, town):
    assert log.counts["lead_brakes"] >= 30
    assert log.counts["steps_out"] >= 8
    assert log.counts["doors"] >= 5
    assert log.counts["breakdowns"] >= 1
    speeds = log.speeds_mps[:, drivers]
    hard = (speeds[:-20] > 6.0) & (speeds[20:] < 0.6 * speeds[:-20])
    assert hard.any(axis=0).sum() >= 10  # drivers that lost 40 % of their speed within 2 s
    edge = {key: lane.edge for key, lane in town.lanes.items() if lane.across_junction is None}
    changes = sum(
        one != other and one in edge and edge[one] == edge.get(other)
        for row in drivers
        for one, other in zip(log.lane[:-1, row].tolist(), log.lane[1:, row].tolist(), strict=True)
    )
    assert changes >= 10


# --- the recording ---------------------------------------------------------------------------------------------------


FINGERPRINT = """
import hashlib, sys
from pathlib import Path
from reflectdrive_ros.sim.network import towns
from reflectdrive_ros.sim.traffic import traffic_log

def fingerprint(folder):
    log = traffic_log.record(towns.make("again", 7, Path(folder)), 7, 6.0, 3.0)
    digest = hashlib.sha256()
    for array in (log.ids, log.sizes, log.poses, log.speeds_mps, log.braking, log.indicator, log.lane, log.lamps):
        digest.update(array.tobytes())
    return digest.hexdigest() + str(log.edges)
"""


def test_the_same_seed_is_the_same_traffic_in_a_fresh_process(log, tmp_path):
    """`log` ran here before: what one recording leaves behind in the process must not show in the next."""
    here: dict = {}
    exec(FINGERPRINT, here)
    (tmp_path / "here").mkdir()
    (tmp_path / "there").mkdir()
    code = f"{FINGERPRINT}\nprint(fingerprint(sys.argv[1]))"
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "there")], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == here["fingerprint"](tmp_path / "here")


# --- the ego among them ----------------------------------------------------------------------------------------------


@pytest.fixture
def live(town):
    with Simulation(town, Demand.sample(town, SEED), SEED) as simulation:
        yield simulation


def follower_of(simulation, town):
    """A driver on a straight stretch with somebody who follows: rows of both."""
    for step in range(400):
        simulation.step()
        if step < 100 or step % 10:
            continue
        lanes, speeds = simulation.lane[: simulation.roster.drivers], simulation.speeds_mps[: simulation.roster.drivers]
        for leader in np.flatnonzero((lanes >= 0) & (speeds > 4.0)):
            if town.lanes[int(lanes[leader])].across_junction is not None:
                continue
            ahead = geometry.compose(geometry.invert(simulation.poses[: len(lanes)]), simulation.poses[leader])
            behind = (lanes == lanes[leader]) & (ahead[:, 0] > 22.0) & (ahead[:, 0] < 45.0) & (speeds > 4.0)
            between = (lanes == lanes[leader]) & (ahead[:, 0] > 0.0) & (ahead[:, 0] < 20.0)
            if behind.any() and not between.any():
                return int(leader), int(np.flatnonzero(behind)[0])
    raise AssertionError("nobody follows anybody in this town")


def test_a_follower_stops_behind_the_ego(live, town):
    leader, follower = follower_of(live, town)
    key, pose = int(live.lane[leader]), live.poses[leader].copy()
    line = town.lanes[key].lane.centerline
    (along,), _ = geometry.project(line, pose[None, :2])
    edges = routing.random_walk(town, np.random.default_rng(0), 500.0, town.lanes[key].edge)
    live.add_ego(edges, key, float(along) + 2.6, 0.0)
    (stands,) = geometry.sample(line, np.array([along]))
    for _ in range(150):
        live.move_ego(stands, 0.0)
        live.step()
        if not np.isnan(live.poses[follower, 0]):
            sizes = np.array([[5.176, 2.297], live.roster.sizes[follower, :2]])
            assert not geometry.boxes_overlap(stands, sizes[0], live.poses[follower], sizes[1])
    assert live.roster.ids[leader] not in live.snapshot().actors.ids  # removed for the ego


def test_the_ego_moves_to_its_pose_and_stays(live, town):
    for _ in range(20):
        live.step()
    key = next(key for key, lane in town.lanes.items() if lane.across_junction is None and lane.lane.successors)
    edges = routing.random_walk(town, np.random.default_rng(0), 100.0, town.lanes[key].edge)
    live.add_ego(edges, key, 10.0, 8.0)
    (pose,) = geometry.sample(town.lanes[key].lane.centerline, np.array([7.4]))
    for _ in range(300):  # straight on, over kerbs and past the end of its route
        pose = geometry.compose(pose, np.array([0.8, 0.0, 0.0]))
        live.move_ego(pose, 8.0)
        live.step()
        np.testing.assert_allclose(live.ego_pose[:2], pose[:2], atol=0.05)


# --- what can go wrong -----------------------------------------------------------------------------------------------


def test_two_at_once_are_refused(live, town):
    with pytest.raises(TrafficError, match="running in this process already"):
        Simulation(town, Demand.sample(town, 2), 2)


def test_a_network_that_sumo_refuses_is_named(town, tmp_path):
    demand = Demand.sample(town, SEED)
    damaged = tmp_path / "damaged.net.xml"
    damaged.write_text(town.net_file.read_text()[:20000])
    with pytest.raises(TrafficError, match=r"traffic-town.*seed 1"):
        Simulation(replace(town, net_file=damaged), demand, SEED)
    with Simulation(town, demand, SEED) as simulation:  # and the next one starts
        simulation.step()
