"""Claims about the proving ground's cameras: what a driver needs is in the image, where it is; near hides far."""

import hashlib
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import shapely
from camera_scene import ALL_GREEN, EGO, LANE_M, PLAIN, SIZES, actors, crossroads, road_lane

from reflectdrive_ros.core import geometry
from reflectdrive_ros.maps.roads import RoadMap
from reflectdrive_ros.sim.render import appearance, camera, scenery, visible_scene
from reflectdrive_ros.sim.traffic.actors import Actors, Lamp, Shape, Snapshot


def moved(road_map, pose):
    """The same map elsewhere."""

    def points(array):
        return geometry.transform_points(pose, array)

    def area(shape):
        return shapely.transform(shape, points)

    lanes = {
        key: replace(
            lane,
            lane=replace(
                lane.lane, centerline=points(lane.lane.centerline), polygons=tuple(map(area, lane.lane.polygons))
            ),
        )
        for key, lane in road_map.lanes.items()
    }
    return replace(
        road_map,
        lanes=lanes,
        roads={key: area(value) for key, value in road_map.roads.items()},
        junctions={key: area(value) for key, value in road_map.junctions.items()},
        walkways=tuple(map(points, road_map.walkways)),
        crossings=tuple(map(points, road_map.crossings)),
        signals=tuple(replace(signal, stop_line=points(signal.stop_line)) for signal in road_map.signals),
    )


def rendered(town, who=None, lamps=ALL_GREEN, name="front", light=None, time_s=5.0, size=(640, 360), ego=EGO):
    """(H, W, 3) as int."""
    snapshot = Snapshot(time_s, who or Actors.none(), lamps)
    each = next(each for each in camera.rig(*size) if each.name == name)
    return camera.render_image(visible_scene.gather_visible(town, snapshot, ego, light or PLAIN), each).astype(int)


@pytest.fixture(scope="module")
def road_map():
    return crossroads()


@pytest.fixture(scope="module")
def town(road_map):
    return scenery.build_scenery(road_map, 5)


def pixel(point, name="front", size=(640, 360)):
    """Pixel of a point (3,) of the ego frame, by the matrices of a frame."""
    each = next(each for each in camera.rig(*size) if each.name == name)
    homogeneous_px = each.pixels_from_camera @ (each.camera_from_ego @ np.array([*point, 1.0]))[:3]
    return homogeneous_px[:2] / homogeneous_px[2]


def difference(one, other):
    return np.abs(one - other).max(axis=2)


# --- projection ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "position"), [("front", (12.0, 1.0)), ("front_left", (7.0, 6.0)), ("front_right", (7.0, -5.0))]
)
def test_a_cone_is_seen_where_the_matrices_of_the_frame_say(town, name, position):
    changed = (
        difference(rendered(town, name=name), rendered(town, actors((Shape.CONE, *position, 0.3)), name=name)) > 20
    )
    rows, columns = np.nonzero(changed)
    foot, tip = pixel((*position, 0.0), name), pixel((*position, 0.7), name)
    assert rows.min() == pytest.approx(tip[1], abs=3)
    assert rows.max() == pytest.approx(foot[1], abs=9)  # its foot is 0.4 m deep, and it throws a shadow
    assert columns[rows < foot[1] - 5].mean() == pytest.approx(tip[0], abs=2.5)
    reach = abs(pixel((position[0], position[1] + 0.8, 0.0), name)[0] - foot[0]) + 30
    assert np.abs(columns - foot[0]).max() < reach


def test_the_rig_is_pandasets():
    left, front, right = camera.rig(640, 360)
    assert [each.name for each in (left, front, right)] == ["front_left", "front", "front_right"]
    np.testing.assert_allclose(front.pixels_from_camera, [[656.67, 0, 323.33], [0, 656.67, 161.10], [0, 0, 1]])
    for each, yaw_deg, position in ((left, 57.8, (1.52, 0.64, 1.92)), (right, -57.8, (1.49, -0.60, 1.99))):
        ego_from_camera = geometry.invert_matrix(each.camera_from_ego)
        np.testing.assert_allclose(ego_from_camera[:3, 3], position)
        np.testing.assert_allclose(each.camera_from_ego[:3, :3] @ each.camera_from_ego[:3, :3].T, np.eye(3), atol=1e-12)
        assert np.degrees(np.arctan2(*ego_from_camera[1::-1, 2])) == pytest.approx(yaw_deg)
    small = camera.rig(192, 108)[1]
    np.testing.assert_allclose(small.pixels_from_camera[:2], 0.3 * front.pixels_from_camera[:2])


def test_frames_say_which_camera_when_and_where(town):
    rig = camera.rig(192, 108)
    frames = camera.render_frames(town, Snapshot(1.0, Actors.none(), ALL_GREEN), EGO, 123, rig, PLAIN)
    assert [(frame.name, frame.stamp_ns) for frame in frames] == [(each.name, 123) for each in rig]
    assert all(frame.pixels.shape == (108, 192, 3) for frame in frames)
    for frame, each in zip(frames, rig, strict=True):
        np.testing.assert_array_equal(frame.camera_from_ego, each.camera_from_ego)


def test_lane_lines_stand_out_from_the_asphalt_at_10_20_and_30_m(town):
    for size in ((640, 360), (192, 108)):
        brightness = rendered(town, size=size).mean(axis=2)
        for ahead in (10.0, 20.0, 30.0):
            column, row = pixel((ahead, 0.5 * LANE_M - 0.12, 0.0), size=size).round().astype(int)  # the centre line
            lane = int(pixel((ahead, 0.8, 0.0), size=size)[0])  # beside the arrows
            line = brightness[row, column - 1 : column + 2].max()
            assert line > brightness[row, lane] + 12, (size, ahead)


# --- everything a driver needs ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", list(Shape))
@pytest.mark.parametrize("ahead", [12.0, 38.0])
def test_a_road_user_within_40_m_is_in_the_image(town, shape, ahead):
    for size, least in (((640, 360), 12), ((192, 108), 3)):
        without = rendered(town, size=size)
        with_it = rendered(town, actors((shape, ahead, 0.8, 0.2)), size=size)
        assert (difference(without, with_it) > 15).sum() >= least, size


def test_removing_any_one_of_a_crowd_changes_the_image(town):
    by_height = sorted(Shape, key=lambda shape: SIZES[shape][2])
    crowd = actors(*((shape, 10.0 + 2.9 * k, 3.0 - 1.4 * (k % 5), 0.3 * k) for k, shape in enumerate(by_height)))
    whole = rendered(town, crowd)
    for k in range(len(crowd)):
        fewer = rendered(town, crowd.select(np.arange(len(crowd)) != k))
        assert (difference(whole, fewer) > 15).sum() >= 4, Shape(crowd.shapes[k]).name


@pytest.mark.parametrize("shape", [Shape.CAR, Shape.VAN, Shape.TRUCK, Shape.BUS, Shape.MOTORCYCLE])
def test_brake_lights_are_clearly_brighter(town, shape):
    for size in ((640, 360), (192, 108)):
        images = [rendered(town, actors((shape, 24.0, 0.0, 0.0, {"braking": on})), size=size) for on in (False, True)]
        redder = images[1][..., 0] - images[0][..., 0]
        assert redder.max() > 50
        rows, columns = np.nonzero(redder > 30)
        length, width, height = SIZES[shape]
        high = pixel((24.0 - 0.5 * length, 0.5 * width, height), size=size)
        low = pixel((24.0 - 0.5 * length, -0.5 * width, 0.0), size=size)
        assert columns.min() >= high[0] - 3
        assert columns.max() <= low[0] + 3
        assert rows.min() >= high[1] - 3
        assert rows.max() <= low[1] + 3


def test_at_night_cars_have_their_lights_on_and_brake_lights_still_tell(town):
    night = next(
        light
        for light in map(appearance.sample_appearance, range(50))
        if light.lights_on and light.ambient_rgb.mean() < 0.5
    )
    night = replace(night, noise=0, pitch_rad=0.0, roll_rad=0.0)
    coming = rendered(town, actors((Shape.CAR, 30.0, 3.3, np.pi)), light=night)
    assert difference(coming, rendered(town, light=night)).max() > 120
    coasts, brakes = (
        rendered(town, actors((Shape.CAR, 30.0, 0.0, 0.0, {"braking": on})), light=night) for on in (False, True)
    )
    assert (brakes[..., 0] - coasts[..., 0]).max() > 80


@pytest.mark.parametrize("side", [1, -1])
def test_an_indicator_blinks_on_its_own_side_more_than_half_of_the_time(town, side):
    dark = rendered(town, actors((Shape.CAR, 15.0, 0.0, 0.0)))
    lit = 0
    for time_s in 5.0 + np.arange(20) / 10:
        image = rendered(town, actors((Shape.CAR, 15.0, 0.0, 0.0, {"indicator": side})), time_s=float(time_s))
        columns = np.nonzero(difference(image, dark) > 40)[1]
        lit += len(columns) > 0
        middle = pixel((15.0 - 2.3, 0.0, 0.8))[0]
        assert (np.sign(middle - columns) == side).all()
    assert 10 <= lit < 20


def test_a_traffic_light_at_30_m_shows_its_colour(town):
    pole = town.poses[town.standing.object_index[town.lamp_polygons[0]]]
    ego = geometry.compose(pole, np.array([-30.0, 2.5, 0.0]))
    for size in ((640, 360), (192, 108)):
        red, green = (rendered(town, lamps=np.full(6, lamp), ego=ego, size=size) for lamp in (Lamp.RED, Lamp.GREEN))
        for colour, image, other in ((0, red, green), (1, green, red)):
            more = image[..., colour] - other[..., colour]
            assert more.max() > 80
            rows, columns = np.nonzero(more > 40)
            at = pixel((30.0, -2.5, 2.8), size=size)
            near = np.hypot(columns - at[0], rows - at[1]) < 0.04 * size[0]
            assert near.any()
    dark = rendered(town, lamps=np.full(6, Lamp.OFF), ego=ego)
    assert difference(dark, rendered(town, lamps=np.full(6, Lamp.AMBER), ego=ego)).max() > 80


def test_every_signal_has_a_lamp_that_shows_it(road_map, town):
    assert set(town.lamp_signal.tolist()) == set(range(len(road_map.signals)))
    for signal in range(len(road_map.signals)):
        assert set(town.lamp_shows[town.lamp_signal == signal].tolist()) == {Lamp.RED, Lamp.AMBER, Lamp.GREEN}


def test_legs_walk(town):
    still = [rendered(town, actors((Shape.PEDESTRIAN, 10.0, 1.0, 1.5)), time_s=t) for t in (5.0, 5.4)]
    walking = [rendered(town, actors((Shape.PEDESTRIAN, 10.0, 1.0, 1.5, {"speed": 1.4})), time_s=t) for t in (5.0, 5.4)]
    assert difference(*still).max() == 0
    assert (difference(*walking) > 20).sum() > 20


# --- what hides what -------------------------------------------------------------------------------------------------


def test_a_nearer_car_hides_a_farther_one(town):
    bus = (Shape.BUS, 18.0, 0.0, 0.0, {"id": 1})
    alone = rendered(town, actors(bus))
    assert difference(alone, rendered(town, actors(bus, (Shape.CAR, 32.0, 0.0, 0.0, {"id": 2})))).max() == 0
    assert difference(alone, rendered(town, actors((Shape.CAR, 32.0, 0.0, 0.0, {"id": 2}), bus))).max() == 0
    assert difference(alone, rendered(town, actors(bus, (Shape.CAR, 8.0, 0.0, 0.0, {"id": 2})))).max() > 60


def test_beside_a_long_truck_the_line_between_decides_not_the_distance(town):
    # The car's middle is nearer than the truck's, but it stands behind the truck's flank.
    truck = (Shape.TRUCK, 14.0, 3.0, 0.0, {"id": 1})
    walker = (Shape.PEDESTRIAN, 11.0, 5.2, 0.0, {"id": 2})
    alone = rendered(town, actors(truck), name="front")
    both = rendered(town, actors(truck, walker), name="front")
    flank = pixel((12.0, 1.75, 1.5))
    column, row = flank.round().astype(int)
    assert difference(alone, both)[row - 3 : row + 3, column - 3 : column + 3].max() == 0


@pytest.mark.parametrize("position", [(-15.0, 0.0), (-1.0, 9.0), (-6.0, -3.0)])
def test_what_is_behind_the_camera_changes_nothing(town, position):
    behind = actors((Shape.TRUCK, *position, 0.0))
    assert difference(rendered(town), rendered(town, behind)).max() == 0


@pytest.mark.parametrize("position", [(2.0, 3.2), (4.5, 0.0), (0.5, -3.0), (1.0, 2.6)])
def test_what_reaches_past_the_camera_is_cut_not_wrapped(town, position):
    """A bus alongside covers one connected stretch of a side image, up to its border."""
    for name in ("front_left", "front", "front_right"):
        changed = (
            difference(rendered(town, name=name), rendered(town, actors((Shape.BUS, *position, 0.0)), name=name)) > 12
        )
        covered = np.flatnonzero(changed[120:240].any(axis=0))
        if len(covered) > 20:
            assert covered.max() - covered.min() < 1.25 * len(covered)


def test_a_lone_lane_and_an_empty_plain_have_images_too():
    lane = road_lane(np.linspace(-60.0, 60.0, 7)[:, None] * np.array([1.0, 0.0]), "only", 0, None, ())
    lone = RoadMap("lone", Path("none"), {0: lane}, {"only": lane.lane.polygons[0]}, {}, (), (), (), (), {})
    town = scenery.build_scenery(lone, 1)
    nobody = Snapshot(0.0, Actors.none())
    for pose in ((0.0, 0.0, 0.0), (5000.0, 0.0, 1.0)):
        for frame in camera.render_frames(town, nobody, np.array(pose), 0, camera.rig(192, 108), PLAIN):
            assert frame.pixels.std() > 10  # sky and land


# --- the same, and not the same --------------------------------------------------------------------------------------


def test_a_world_moved_as_a_whole_looks_the_same(road_map, town):
    pose = np.array([812.0, -345.0, 0.7])
    elsewhere = scenery.build_scenery(moved(road_map, pose), 5)
    who = actors((Shape.CAR, 12.0, 0.0, 0.1), (Shape.PEDESTRIAN, 9.0, 3.0, 1.0), (Shape.BUS, 25.0, 5.0, 3.1))
    sun = np.array([*geometry.rotate(PLAIN.sun[:2], pose[2]), PLAIN.sun[2]])
    here = rendered(town, who)
    there = rendered(
        elsewhere,
        replace(who, poses=geometry.compose(pose, who.poses)),
        light=replace(PLAIN, sun=sun),
        ego=geometry.compose(pose, EGO),
    )
    assert difference(here, there).mean() < 6  # the grain of the ground and the far hills belong to the map
    assert (difference(here, there) > 40).mean() < 0.02


def digest():
    town = scenery.build_scenery(crossroads(), 5)
    snapshot = Snapshot(2.5, actors((Shape.CAR, 12.0, 0.0, 0.1), (Shape.BICYCLE, 8.0, 2.0, 0.0)), ALL_GREEN)
    frames = camera.render_frames(town, snapshot, EGO, 0, camera.rig(192, 108), appearance.sample_appearance(3))
    return hashlib.sha256(b"".join(frame.pixels.tobytes() for frame in frames)).hexdigest()


def test_the_same_seed_gives_the_same_bytes_in_this_process_and_in_another():
    here = digest()
    assert digest() == here
    here_too = Path(__file__).parent
    code = f"import sys; sys.path.insert(0, {str(here_too)!r}); import test_camera; print(test_camera.digest())"
    command = [sys.executable, "-c", code]
    other = subprocess.run(command, cwd=here_too.parent, capture_output=True, text=True, check=True)
    assert other.stdout.strip() == here


def test_seeds_differ_in_light_and_in_scenery(road_map, town):
    assert difference(rendered(town), rendered(town, light=appearance.sample_appearance(2))).mean() > 3
    assert difference(rendered(town), rendered(scenery.build_scenery(road_map, 6))).mean() > 3


def test_noise_follows_the_time_and_the_camera_alone(town):
    noisy = replace(PLAIN, noise=3)
    first, again, later = (rendered(town, light=noisy, time_s=t) for t in (5.0, 5.0, 5.1))
    assert difference(first, again).max() == 0
    assert 0.5 < np.abs(first - later).mean() < 6


def test_a_look_stays_within_what_a_car_on_springs_does():
    looks = [appearance.sample_appearance(seed) for seed in range(200)]
    for name in ("pitch_rad", "roll_rad"):
        values = np.degrees([getattr(one, name) for one in looks])
        assert np.abs(values).max() <= 0.7 + 1e-9
        assert values.std() > 0.1
    assert max(abs(one.height_m) for one in looks) <= 0.03
    assert all(np.hypot(*one.sun[:2]) ** 2 + one.sun[2] ** 2 == pytest.approx(1) and one.sun[2] > 0 for one in looks)


def test_nothing_stands_where_one_drives_or_walks(road_map, town):
    clear_areas = [*road_map.roads.values(), *road_map.junctions.values()]
    clear_areas += [shapely.Polygon(ring) for ring in (*road_map.walkways, *road_map.crossings)]
    tree = shapely.STRtree(clear_areas)
    points = town.standing.points
    low = points[points[:, 2] < 2.5]  # what hangs higher, over the road, lets one through
    assert len(tree.query(shapely.points(low[:, :2]), predicate="intersects")[0]) == 0
    assert len(town.poses) > 100
