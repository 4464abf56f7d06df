"""Made-up towns: what is drivable holds together, a car that follows any lane stays on the road, and names tell all."""

import subprocess
import sys
from functools import cache
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import shapely
from shared import FOLDER

from reflectdrive_ros.core import geometry
from reflectdrive_ros.core.config import VehicleConfig
from reflectdrive_ros.maps import roads, sumo, sumo_network
from reflectdrive_ros.maps.roads import RoadError, RoadType, Turn
from reflectdrive_ros.sim.network import routing, towns

# 3 and 11 have boulevards
SEEDS = (0, 3, *(pytest.param(seed, marks=pytest.mark.long) for seed in (1, 2, 11)))
CAR = VehicleConfig()
ROOT = Path(__file__).parents[1]

try:
    sumo.binary("netconvert")
except sumo.SumoMissing as fault:
    pytest.skip(str(fault), allow_module_level=True)


@cache
def town(seed):
    return towns.make(f"many-{seed:05d}", seed, FOLDER)


@cache
def drivable(seed):
    space = shapely.union_all([*town(seed).roads.values(), *town(seed).junctions.values()])
    shapely.prepare(space)
    return space


def lane_length(road_map, key):
    return geometry.arc_lengths(road_map.lanes[key].lane.centerline)[-1]


def joints(road_map):
    """Every path from a road lane across a junction to the next: lists of lane keys."""
    for key, lane in road_map.lanes.items():
        if lane.across_junction is None:
            for first in lane.lane.successors:
                keys = [key, first]
                while road_map.lanes[keys[-1]].across_junction is not None:
                    (after,) = road_map.lanes[keys[-1]].lane.successors
                    keys.append(after)
                yield keys


def rear_axle_along(road_map, keys):
    """(N, 3) poses every half metre along lanes, without the last 5 m, where the car would already be on the next."""
    line = np.concatenate([road_map.lanes[key].lane.centerline for key in keys])
    line = geometry.distinct_points(line, closer_than=0.05)
    along = geometry.arc_lengths(line)
    at = np.arange(min(3.0, 0.5 * lane_length(road_map, keys[0])), along[-1], 0.5)
    points = np.column_stack([np.interp(at, along, line[:, axis]) for axis in (0, 1)])
    steps = np.gradient(points, axis=0)
    poses = np.column_stack([points, np.arctan2(steps[:, 1], steps[:, 0])])
    return poses[at < along[-1] - min(5.0, 0.5 * lane_length(road_map, keys[-1]))]


def outside_by(seed, rear_axle_poses):
    """(N,) how far the outermost corner of the car is off the road."""
    centers = geometry.compose(rear_axle_poses, np.array([CAR.rear_axle_to_center_m, 0.0, 0.0]))
    corners = geometry.box_corners(centers, np.array([CAR.length_m, CAR.width_m]))
    outside = ~shapely.contains_xy(drivable(seed), corners.reshape(-1, 2)).reshape(-1, 4)
    far_m = np.zeros(outside.shape)
    far_m[outside] = shapely.distance(drivable(seed), shapely.points(corners[outside]))
    return far_m.max(axis=1)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_car_that_follows_any_lane_stays_on_the_road(seed):
    outside_m = outside_by(seed, np.concatenate([rear_axle_along(town(seed), keys) for keys in joints(town(seed))]))
    assert (outside_m > 0).mean() < 0.005
    assert outside_m.max() < 0.8


@pytest.mark.parametrize("seed", SEEDS)
def test_no_path_across_a_junction_is_too_tight_to_steer(seed):
    least_m = CAR.wheel_base_m / np.tan(CAR.max_steering_rad)
    for keys in joints(town(seed)):
        headings = np.unwrap(rear_axle_along(town(seed), keys)[:, 2])
        names = [town(seed).lanes[key].sumo_id for key in keys]
        assert np.abs(np.gradient(headings, 0.5)).max() < 1 / (1.3 * least_m), names


@pytest.mark.parametrize("seed", SEEDS)
def test_the_drivable_space_is_one_and_holds_every_lane(seed):
    assert len(shapely.get_parts(drivable(seed))) == 1
    space = drivable(seed).buffer(0.1)
    for lane in town(seed).lanes.values():
        assert space.covers(lane.lane.polygons[0]), lane.sumo_id


@pytest.mark.parametrize("seed", SEEDS)
def test_lanes_begin_where_those_before_them_end(seed):
    lanes = town(seed).lanes
    for key, lane in lanes.items():
        for after in lane.lane.successors:
            gap = lanes[after].lane.centerline[0] - lane.lane.centerline[-1]
            assert np.hypot(*gap) < 0.5
            assert key in lanes[after].lane.predecessors


@pytest.mark.parametrize("seed", SEEDS)
def test_a_car_gets_from_every_road_to_every_other(seed):
    after = town(seed).edges_after
    before = {edge: [other for other in after if edge in after[other]] for edge in after}
    for table in (after, before):
        reached, todo = set(), [next(iter(table))]
        while todo:
            edge = todo.pop()
            if edge not in reached:
                reached.add(edge)
                todo += table[edge]
        assert reached == set(after)


@pytest.mark.parametrize("seed", SEEDS)
def test_every_town_has_something_of_everything(seed):
    lanes = town(seed).lanes
    assert {lane.road_type for lane in lanes.values()} == set(RoadType)
    assert {lane.turn for lane in lanes.values()} >= {Turn.STRAIGHT, Turn.LEFT, Turn.RIGHT}
    assert any(not lane.lane.successors and lane.road_type is RoadType.LANE_DROP for lane in lanes.values())
    narrow = [lane.width_m for lane in lanes.values() if lane.road_type is RoadType.NARROW and not lane.across_junction]
    assert max(narrow) <= 2.8
    assert len({signal.tls for signal in town(seed).signals}) >= 2


# --- paths and lines -------------------------------------------------------------------------------------------------


def lines_of(seed):
    """Lines from anywhere along walks: (keys, line, walk, where they start)."""
    road_map, generator = town(seed), np.random.default_rng(seed)
    for _ in range(40):
        walk = routing.random_walk(road_map, generator, 600.0)
        first = [key for key, lane in road_map.lanes.items() if lane.edge == walk[0]]
        key = first[int(generator.integers(len(first)))]
        line = road_map.lanes[key].lane.centerline
        point = line[int(generator.integers(len(line)))]
        yield *routing.line_ahead(road_map, key, walk, point), walk, point


@pytest.mark.parametrize("seed", SEEDS)
def test_a_line_leads_along_its_edges_on_lanes_that_follow_each_other(seed):
    lanes = town(seed).lanes
    for keys, _, walk, _ in lines_of(seed):
        for one, other in pairwise(keys):
            assert other in lanes[one].lane.successors or other in lanes[one].lane.adjacent
        edges = [lanes[key].edge for key in keys if lanes[key].across_junction is None]
        edges = [edge for index, edge in enumerate(edges) if index == 0 or edge != edges[index - 1]]
        assert edges == list(walk[: len(edges)])


@pytest.mark.parametrize("seed", SEEDS)
def test_a_car_that_follows_its_line_stays_on_the_road(seed):
    poses = np.concatenate([line[30:145] for _, line, _, _ in lines_of(seed)])
    assert (outside_by(seed, poses) > 0).mean() < 0.01


def test_a_line_leaves_the_lane_that_ends():
    road_map = town(3)
    key = next(k for k, v in road_map.lanes.items() if v.road_type is RoadType.LANE_DROP and not v.lane.successors)
    lane = road_map.lanes[key]
    walk = routing.random_walk(road_map, np.random.default_rng(0), 500.0, lane.edge)
    keys, line = routing.line_ahead(road_map, key, walk, lane.lane.centerline[0])
    assert keys[0] == key
    assert keys[1] in lane.lane.adjacent
    (at,), _ = geometry.project(line, lane.lane.centerline[-1:])
    here = geometry.sample(line, np.array([at]))[0, :2]
    assert np.hypot(*(here - lane.lane.centerline[-1])) > 0.9 * lane.width_m


# --- bad input -------------------------------------------------------------------------------------------------------


def test_edges_that_cannot_be_driven_are_named():
    road_map = town(0)
    edges = sorted(road_map.edges_after)
    wrong = next(edge for edge in edges if edge not in road_map.edges_after[edges[0]] and edge != edges[0])
    key = next(key for key, lane in road_map.lanes.items() if lane.edge == edges[0])
    with pytest.raises(RoadError, match=f"does not lead along {wrong}"):
        routing.line_ahead(road_map, key, [edges[0], wrong], road_map.lanes[key].lane.centerline[0])
    with pytest.raises(RoadError, match="no road edge 'nowhere'"):
        routing.random_walk(road_map, np.random.default_rng(0), 100.0, "nowhere")


def test_a_file_that_is_no_network_is_named(tmp_path):
    with pytest.raises(RoadError, match=r"missing\.net\.xml cannot be read"):
        roads.read(tmp_path / "missing.net.xml", "missing")
    broken = tmp_path / "broken.net.xml"
    broken.write_text(town(0).net_file.read_text()[:5000])
    with pytest.raises(RoadError, match=r"broken\.net\.xml cannot be read"):
        roads.read(broken, "broken")


def test_an_error_of_netconvert_is_reported_verbatim(tmp_path):
    with pytest.raises(RoadError, match="odd cannot be converted to a SUMO network: netconvert failed: "):
        sumo_network.convert_network("odd", {"nodes": "<node"}, tmp_path, ())
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("script", "cause"),
    [
        ("kill -KILL $$", "netconvert was ended by SIGKILL: the system does this when memory runs out"),
        ("kill -SEGV $$", "netconvert was ended by SIGSEGV$"),
        ('ulimit -v 100000; exec {netconvert} "$@"', "netconvert failed: .*error while loading shared libraries"),
        ('ulimit -f 40; exec {netconvert} "$@"', "netconvert was ended by SIGXFSZ: .*raise `ulimit -f`"),
        ("exit 0", "netconvert wrote an incomplete network .*No such file"),
    ],
)
def test_a_passing_failure_of_netconvert_is_no_refusal_of_the_town(script, cause, tmp_path, monkeypatch):
    """A town that SUMO refuses is left out of a set for good; one that the machine failed comes again."""
    program = tmp_path / "netconvert"
    program.write_text("#!/bin/bash\n" + script.replace("{netconvert}", sumo.binary("netconvert")) + "\n")
    program.chmod(0o755)
    monkeypatch.setattr(sumo, "binary", lambda name: str(program))
    with pytest.raises(sumo.SumoFailed, match=cause) as fault:
        towns.make("town", 1, tmp_path / "folder")
    assert not isinstance(fault.value, sumo.SumoRefused)
    assert not list((tmp_path / "folder").iterdir())


SMALL_DISK = """
mount -t tmpfs -o size={kilobytes}k none {disk} && exec {python} -c '
from pathlib import Path
from reflectdrive_ros.sim.network import towns
try:
    towns.make("town", 1, Path("{disk}/folder"))
except OSError as fault:
    print(fault.strerror, fault.filename)
'
"""


def test_a_disk_that_netconvert_fills_is_named(tmp_path):
    """netconvert itself reports success then. Needs the right to mount."""
    words = {"disk": tmp_path, "python": sys.executable, "kilobytes": 120}
    command = ["unshare", "-rm", "bash", "-c", SMALL_DISK.format(**words)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    if "mount" in done.stderr or "unshare" in done.stderr:
        pytest.skip(f"this machine mounts no file system for a test: {done.stderr.strip()}")
    assert done.stdout.startswith(f"No space left on device {tmp_path}/folder"), done.stdout + done.stderr


@pytest.mark.parametrize("name", ["../../esc", "/tmp/esc", "a/b", "..", "x" * 5000, "a\nb", "\udc80"])
def test_a_town_is_written_into_its_folder_whatever_its_name(name, tmp_path):
    folder = tmp_path / "one/two/three"
    road_map = towns.make(name, 1, folder)
    assert road_map.name == name
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [road_map.net_file]
    assert road_map.net_file.parent == folder


def test_without_sumo_the_error_names_the_package_to_install(monkeypatch):
    monkeypatch.setattr(sumo, "find_home", lambda: None)
    monkeypatch.setenv("PATH", "")
    sentence = r"^SUMO is not installed: pip install '\.\[sim\]' in a clone of reflectdrive$"
    with pytest.raises(sumo.SumoMissing, match=sentence):
        sumo.binary("netconvert")
