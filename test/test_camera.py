"""Claims about the proving ground's cameras: what a driver needs is in the image, where it is; near hides far."""

import hashlib
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import shapely
from camera_scene import ALL_GREEN, EGO, PLAIN, SIZES, actors, crossroads

from reflectdrive_ros.core import geometry
from reflectdrive_ros.sim.render import appearance, camera, scenery, visible_scene
from reflectdrive_ros.sim.traffic.actors import Actors, ActorShape, Lamp, TrafficSnapshot


def rendered(town, who=None, lamps=ALL_GREEN, name="front", time_s=5.0, size=(640, 360), ego=EGO):
    """(H, W, 3) as int."""
    snapshot = TrafficSnapshot(time_s, who or Actors.none(), lamps)
    each = next(each for each in camera.rig(*size) if each.name == name)
    return camera.render_image(visible_scene.gather_visible(town, snapshot, ego, PLAIN), each).astype(int)


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
    with_cone = rendered(town, actors((ActorShape.CONE, *position, 0.3)), name=name)
    rows, columns = np.nonzero(difference(rendered(town, name=name), with_cone) > 20)
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


# --- everything a driver needs ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", list(ActorShape))
@pytest.mark.parametrize("ahead", [12.0, 38.0])
def test_a_road_user_within_40_m_is_in_the_image(town, shape, ahead):
    for size, least in (((640, 360), 12), ((192, 108), 3)):
        without = rendered(town, size=size)
        with_it = rendered(town, actors((shape, ahead, 0.8, 0.2)), size=size)
        assert (difference(without, with_it) > 15).sum() >= least, size


@pytest.mark.parametrize(
    "shape", [ActorShape.CAR, ActorShape.VAN, ActorShape.TRUCK, ActorShape.BUS, ActorShape.MOTORCYCLE]
)
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


@pytest.mark.parametrize("side", [1, -1])
def test_an_indicator_blinks_on_its_own_side_more_than_half_of_the_time(town, side):
    dark = rendered(town, actors((ActorShape.CAR, 15.0, 0.0, 0.0)))
    lit = 0
    for time_s in 5.0 + np.arange(20) / 10:
        image = rendered(town, actors((ActorShape.CAR, 15.0, 0.0, 0.0, {"indicator": side})), time_s=float(time_s))
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


# --- what hides what -------------------------------------------------------------------------------------------------


def test_a_nearer_car_hides_a_farther_one(town):
    bus = (ActorShape.BUS, 18.0, 0.0, 0.0, {"id": 1})
    alone = rendered(town, actors(bus))
    assert difference(alone, rendered(town, actors(bus, (ActorShape.CAR, 32.0, 0.0, 0.0, {"id": 2})))).max() == 0
    assert difference(alone, rendered(town, actors((ActorShape.CAR, 32.0, 0.0, 0.0, {"id": 2}), bus))).max() == 0
    assert difference(alone, rendered(town, actors(bus, (ActorShape.CAR, 8.0, 0.0, 0.0, {"id": 2})))).max() > 60


@pytest.mark.parametrize("position", [(2.0, 3.2), (4.5, 0.0), (0.5, -3.0), (1.0, 2.6)])
def test_what_reaches_past_the_camera_is_cut_not_wrapped(town, position):
    """A bus alongside covers one connected stretch of a side image, up to its border."""
    for name in ("front_left", "front", "front_right"):
        with_bus = rendered(town, actors((ActorShape.BUS, *position, 0.0)), name=name)
        changed = difference(rendered(town, name=name), with_bus) > 12
        covered = np.flatnonzero(changed[120:240].any(axis=0))
        if len(covered) > 20:
            assert covered.max() - covered.min() < 1.25 * len(covered)


# --- the same, and not the same --------------------------------------------------------------------------------------


def digest():
    town = scenery.build_scenery(crossroads(), 5)
    others = actors((ActorShape.CAR, 12.0, 0.0, 0.1), (ActorShape.BICYCLE, 8.0, 2.0, 0.0))
    snapshot = TrafficSnapshot(2.5, others, ALL_GREEN)
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


def test_nothing_stands_where_one_drives_or_walks(road_map, town):
    clear_areas = [*road_map.roads.values(), *road_map.junctions.values()]
    clear_areas += [shapely.Polygon(ring) for ring in (*road_map.walkways, *road_map.crossings)]
    tree = shapely.STRtree(clear_areas)
    points = town.standing.points
    low = points[points[:, 2] < 2.5]  # what hangs higher, over the road, lets one through
    assert len(tree.query(shapely.points(low[:, :2]), predicate="intersects")[0]) == 0
    assert len(town.poses) > 100
