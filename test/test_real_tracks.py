"""Claims about recorded scenes: nothing moves when frames change, the route is where the human drove."""

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from track_files import HERE, MAPPED, MOTORWAY, STREET

from reflectdrive_ros.core import geometry
from reflectdrive_ros.core.lanes import ROUTE_BEHIND_M
from reflectdrive_ros.data import real_tracks
from reflectdrive_ros.scoring import drivable

WHOLE_SET = Path(__file__).parents[2] / "shared/data/real_tracks"


@pytest.fixture(scope="module", params=MAPPED, ids=lambda path: path.stem)
def recording(request):
    return real_tracks.load(request.param)


@pytest.fixture(scope="module")
def starts(recording):
    return list(real_tracks.starts(recording))


def changed(tmp_path, **fields):
    """The street recording with some fields replaced, or left out where None."""
    with np.load(STREET) as file:
        arrays = {name: file[name] for name in file.files} | fields
    path = tmp_path / "changed.npz"
    np.savez(path, **{name: array for name, array in arrays.items() if array is not None})
    return path


def test_a_start_every_two_seconds_while_five_seconds_are_left():
    assert [start.name[-4:] for start in real_tracks.starts(real_tracks.load(MOTORWAY))] == ["0.0s", "2.0s"]
    assert list(real_tracks.start_steps(real_tracks.load(STREET))) == [0]


def test_the_ego_stands_on_its_rear_axle(recording, starts):
    """A recording tells the middle of the box; the planner's origin is behind it by its share of the length."""
    ahead = recording.vehicle.rear_axle_to_center_m
    assert 0.25 < ahead / recording.ego_size[0] < 0.3
    for start, step in zip(starts, real_tracks.start_steps(recording), strict=True):
        map_from_center = geometry.compose(start.observation.ego.map_from_ego, np.array([ahead, 0.0, 0.0]))
        np.testing.assert_allclose(map_from_center, recording.ego_centers[step], atol=1e-9)


def test_the_humans_waypoints_are_where_the_car_was_recorded(recording, starts):
    ahead = np.array([recording.vehicle.rear_axle_to_center_m, 0.0, 0.0])
    for start, step in zip(starts, real_tracks.start_steps(recording), strict=True):
        centers = geometry.compose(geometry.compose(start.observation.ego.map_from_ego, start.human), ahead)
        recorded = recording.ego_centers[step + np.arange(5, 41, 5)]
        np.testing.assert_allclose(centers[:, :2], recorded[:, :2], atol=1e-9)
        np.testing.assert_allclose(geometry.wrap(centers[:, 2] - recorded[:, 2]), 0.0, atol=1e-9)


def test_a_planner_sees_others_as_they_are_and_the_scorer_as_they_will_be():
    """The agents of the scorer at 2 s are those of the planner at the next start, 2 s later, at the same positions."""
    now, later = real_tracks.starts(real_tracks.load(MOTORWAY))
    later_from_now = geometry.compose(geometry.invert(later.observation.ego.map_from_ego), _map_from_ego(now))
    for start, sample, other_from_scene in ((now, 0, np.zeros(3)), (now, 20, later_from_now)):
        observed = (now if sample == 0 else later).observation.agents.poses
        there = start.scene.agents.present[:, sample]
        recorded_poses = geometry.compose(other_from_scene, start.scene.agents.poses[there, sample])
        assert len(observed) == len(recorded_poses) > 5
        np.testing.assert_allclose(observed[:, :2], recorded_poses[:, :2], atol=1e-6)


def _map_from_ego(start):
    return start.observation.ego.map_from_ego


def test_the_route_goes_where_the_human_drove(recording, starts):
    for start in starts:
        route = start.observation.route
        along, offset = geometry.project(route, np.concatenate([np.zeros((1, 2)), start.human[:, :2]]))
        assert (np.diff(along) > -0.3).all()
        assert np.abs(offset).max() < 4.5  # on the next lane, at most
        assert along[0] == pytest.approx(ROUTE_BEHIND_M, abs=2.0)
        assert geometry.arc_lengths(route)[-1] - along[0] > 8.0 * start.observation.speed_limit_mps
        turns = geometry.wrap(np.diff(geometry.headings_along(route)))
        assert np.abs(turns).max() < 0.5  # it never turns back at a joint


def test_the_route_does_not_tell_the_drivers_lane_changes():
    """A lane change that the road demands (an entry lane that ends) is in the route; the driver's own choice is not."""
    if not WHOLE_SET.is_dir():
        pytest.skip("needs ../shared/data/real_tracks")
    entering = real_tracks.load(WHOLE_SET / "ngsim_USA_US101-22_1_T-1_ego679.npz")
    lanes, _ = real_tracks.route(entering, 0)
    assert sum(b not in entering.lanes[a].successors for a, b in pairwise(lanes)) == 1
    changing = real_tracks.load(WHOLE_SET / "ngsim_USA_US101-22_1_T-1_ego675.npz")
    lanes, line = real_tracks.route(changing, 60)
    assert all(b in changing.lanes[a].successors for a, b in pairwise(lanes))
    assert np.abs(geometry.project(line, changing.ego_centers[60:, :2])[1]).max() > 2.0


def test_the_car_was_on_the_road_and_the_grid_is_no_kinder_than_the_polygons(recording, starts):
    rng = np.random.default_rng(3)
    for start in starts:
        vehicle = start.vehicle
        size = np.array([vehicle.length_m, vehicle.width_m])
        map_from_ego = start.observation.ego.map_from_ego
        here = geometry.box_corners(np.array([vehicle.rear_axle_to_center_m, 0.0, 0.0]), size)
        assert drivable.contains(recording.drivable_space, geometry.transform_points(map_from_ego, here)).all()
        poses = np.stack([rng.uniform(-15, 60, 3000), rng.uniform(-15, 15, 3000), rng.uniform(-3, 3, 3000)], axis=-1)
        corners = geometry.box_corners(poses, size)
        in_map = geometry.transform_points(map_from_ego, corners)
        on_polygons = drivable.contains(recording.drivable_space, in_map).all(axis=1)
        on_grid = drivable.corner_clearances(start.observation.drivable, poses, size) > 0
        assert not (on_grid & ~on_polygons).any()
        assert on_grid.sum() > 0.8 * on_polygons.sum() > 50


def test_the_reference_gets_somewhere(starts):
    for start in starts:
        assert start.scene.reference.multiplier == 1
        assert 5 < start.scene.reference.progress_m < 4 * start.observation.speed_limit_mps


def test_a_start_off_the_mapped_road_is_passed_over():
    if not WHOLE_SET.is_dir():
        pytest.skip("needs ../shared/data/real_tracks")
    recording = real_tracks.load(WHOLE_SET / "ngsim_USA_Lanker-2_26_T-1_ego2881.npz")
    assert [start.name[-4:] for start in real_tracks.starts(recording)] == ["2.0s"]
    assert list(real_tracks.start_steps(recording)) == [0, 20]


def test_without_a_map_there_is_nothing_to_score():
    recording = real_tracks.load(HERE / "pandaset_002.npz")
    assert len(recording.agent_kinds) == 97
    with pytest.raises(real_tracks.TracksError, match="pandaset_002 has no map"):
        list(real_tracks.starts(recording))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"ego_xy": None}, "has no field 'ego_xy'"),
        ({"meta_json": np.array("{")}, "meta_json is not JSON"),
        ({"meta_json": np.array("[" * 10_000)}, "meta_json nests deeper than 64 levels"),
        ({"meta_json": np.array('{"site": "a", "lanes": [3]}')}, r"meta_json has lanes\[0\] = 3, expected an object"),
        ({"meta_json": np.array('{"site": "a", "lanes": [{"id": [1]}]}')}, r"lanes\[0\].id = \[1\], expected a whole"),
        ({"ego_yaw": np.full(51, np.nan)}, "ego_yaw holds NaN or a number above 1e.08"),
        ({"ego_speed": np.full(51, 1e308)}, "ego_speed holds NaN or a number above"),
        ({"ego_valid": np.zeros(51, bool)}, "ego_valid has steps that are not valid"),
        ({"ego_yaw": np.zeros(7)}, r"ego_yaw is float64 \(7,\), expected numbers \(51,\)"),
        ({"ego_lwh": np.array([0.0, 2.0, 1.5])}, "ego_lwh or ag_lwh holds a length"),
        ({"ag_xy": np.full((4, 51, 2), np.nan)}, "ag_xy at steps marked valid holds NaN"),
        ({"t": np.zeros(51)}, "t does not advance by 0.1 s"),
        ({"ag_id": np.array([object()])}, "changed.npz cannot be read"),
    ],
)
def test_a_damaged_recording_is_named_with_what_is_wrong(tmp_path, fields, message):
    with pytest.raises(real_tracks.TracksError, match=message):
        real_tracks.load(changed(tmp_path, **fields))


@pytest.mark.parametrize(("kind", "part"), [(1, "centerline"), (8, "polygon")])
def test_a_lane_with_nan_is_named(tmp_path, kind, part):
    with np.load(STREET) as arrays:
        index = int(np.flatnonzero(arrays["ml_type"] == kind)[0])
        lane, points = int(arrays["ml_lane"][index]), arrays["ml_xy"].copy()
        points[arrays["ml_start"][index]] = np.nan
    with pytest.raises(real_tracks.TracksError, match=f"ml_xy of the {part} of lane {lane} holds NaN"):
        real_tracks.load(changed(tmp_path, ml_xy=points))


def test_a_file_that_is_no_recording_and_folders_without_any(tmp_path):
    (tmp_path / "text.npz").write_text("hello")
    with pytest.raises(real_tracks.TracksError, match=r"text\.npz cannot be read"):
        real_tracks.load(tmp_path / "text.npz")
    (tmp_path / "empty").mkdir()
    with pytest.raises(real_tracks.TracksError, match="holds no recordings"):
        real_tracks.recordings_in(tmp_path / "empty")
    with pytest.raises(real_tracks.TracksError, match="is not a folder"):
        real_tracks.recordings_in(tmp_path / "nowhere")
