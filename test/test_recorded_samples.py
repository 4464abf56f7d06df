"""Claims about training samples of recorded traffic, and about their augmentation."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from reflectdrive_ros.core import geometry
from reflectdrive_ros.core.config import ConfigError
from reflectdrive_ros.core.domain import AgentKind
from reflectdrive_ros.core.vector_spec import VectorSpec
from reflectdrive_ros.data import real_tracks
from reflectdrive_ros.training import recorded_samples, vector_data
from reflectdrive_ros.training.recorded_samples import (
    SampledDrive,
    as_ego,
    drive_sample,
    other_drives,
    perturb_ego,
    sample_steps,
)

HERE = Path(__file__).parent / "data/real_tracks"
SPEC = VectorSpec(agents=20, lanes=40, route_lanes=12, predicted_agents=6, future_steps=40)
DT_S = SPEC.future_dt_s
JOIN = round(recorded_samples.JOIN_S / DT_S)  # the pose at JOIN_S is JOIN - 1


@pytest.fixture(scope="module")
def motorway():
    return real_tracks.load(HERE / "ngsim_USA_US101-4_3_T-1_ego400.npz")


@pytest.fixture(scope="module")
def others(motorway):
    """Other vehicles of the motorway as egos: (drive, step, sample) of the first sample of each."""
    samples = []
    for drive in other_drives(motorway):
        for step in sample_steps(drive, SPEC)[:1]:
            sample = drive_sample(drive, step, SPEC)
            if not isinstance(sample, str):
                samples.append((drive, step, sample))
    assert len(samples) > 5
    return samples


@pytest.fixture(scope="module")
def batch(motorway, others):
    """(B, ..) arrays of moving egos."""
    human = drive_sample(SampledDrive(motorway, 0, True), 20, SPEC)
    fast = (sample for _, _, sample in others if sample["ego"][4] > recorded_samples.MIN_SPEED_MPS)
    samples = [human, *fast]
    arrays = {name: np.stack([np.asarray(each[name], np.float32) for each in samples]) for name in human}
    assert len(arrays["ego"]) > 5
    return arrays


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """All samples of the recordings in the source tree, and their description."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("REFLECTDRIVE_SCENES", str(tmp_path_factory.mktemp("sets")))
        yield recorded_samples.recorded_set(HERE, SPEC)


# --- samples ---------------------------------------------------------------------------------------------------------


def test_another_vehicle_as_ego_is_no_agent_and_the_former_ego_is_one(motorway, others):
    for drive, step, _ in others:
        observation, _ = real_tracks.observation_at(drive.recording, step, vectors=True)
        ahead = np.array([drive.recording.vehicle.rear_axle_to_center_m, 0.0, 0.0])
        own_box = (ahead, drive.recording.ego_size)
        assert not geometry.boxes_overlap(*own_box, observation.agents.poses, observation.agents.sizes).any()
    agent = int(np.isfinite(motorway.agent_centers[..., 0]).all(axis=1).argmax())
    swapped = as_ego(motorway, agent, 0, motorway.steps)
    observation, _ = real_tracks.observation_at(swapped, 10, vectors=True)
    poses = geometry.compose(observation.ego.map_from_ego, observation.agents.poses)
    former = np.hypot(*(poses[:, :2] - motorway.ego_centers[10, :2]).T).argmin()
    np.testing.assert_allclose(poses[former, :2], motorway.ego_centers[10, :2], atol=1e-9)
    np.testing.assert_allclose(observation.agents.sizes[former], motorway.ego_size)
    speed = np.hypot(*observation.agents.velocities_mps[former])
    assert speed == pytest.approx(motorway.ego_speeds_mps[10], abs=1e-9)
    assert observation.agents.kinds[former] == AgentKind.VEHICLE


def test_to_be_ego_and_agent_again_is_the_same_traffic(motorway):
    agent = int(np.isfinite(motorway.agent_centers[..., 0]).all(axis=1).argmax())
    again = as_ego(as_ego(motorway, agent, 0, motorway.steps), agent, 0, motorway.steps)
    np.testing.assert_array_equal(again.ego_centers, motorway.ego_centers)
    np.testing.assert_array_equal(again.agent_centers, motorway.agent_centers)
    np.testing.assert_array_equal(again.agent_sizes, motorway.agent_sizes)


def test_the_future_continues_the_present_pose_at_the_present_speed(others):
    for _, _, sample in others:
        future, speed = sample["ego_future"], sample["ego"][4]
        path = np.concatenate([np.zeros((1, 3)), future])
        steps = np.hypot(*np.diff(path[:, :2], axis=0).T) / DT_S
        assert np.abs(steps[1:6].mean() - speed) < 0.15 * speed + 0.5
        assert np.abs(np.diff(steps[1:])).max() < 1.0  # m/s in 0.1 s
        assert np.hypot(*future[0, :2]) < 1.5 * speed * DT_S + 0.3
        assert np.abs(geometry.wrap(np.diff(path[:, 2]))).max() < 0.1


def test_the_smoothed_drive_stays_at_the_recorded_one(motorway):
    ahead = motorway.vehicle.rear_axle_to_center_m
    poses = recorded_samples.driven_poses(motorway.ego_centers, ahead)
    away = np.hypot(*(poses - motorway.ego_poses)[:, :2].T)
    assert away.mean() < 0.1
    assert away.max() < 0.4
    second = np.hypot(*np.diff(poses[:, :2], n=2, axis=0).T) / 0.1**2
    raw = np.hypot(*np.diff(motorway.ego_poses[:, :2], n=2, axis=0).T) / 0.1**2
    assert np.quantile(second, 0.95) < 0.6 * np.quantile(raw, 0.95)


def test_a_car_that_stands_keeps_its_heading():
    rng = np.random.default_rng(0)
    track = np.zeros((60, 3))
    track[30:, 0] = 0.5 * np.arange(30)
    track[:25, 2] = rng.uniform(-0.5, 0.5, 25)  # tracked headings of a box that stands
    assert np.abs(recorded_samples.driven_poses(track, 1.0)[:, 2]).max() < 1e-9


def test_the_futures_of_neighbours_are_where_they_were_recorded(others):
    compared = 0
    for drive, step, sample in others:
        map_from_ego = drive.recording.ego_poses[step]
        for row, valid in enumerate(sample["agent_valid"] > 0):
            now = sample["agents"][row, -1]
            if not valid.all():
                continue
            centers = geometry.transform_points(map_from_ego, sample["agent_futures"][row, :, :2].astype(float))
            here = geometry.transform_points(map_from_ego, now[None, :2].astype(float))
            tracks = drive.recording.agent_centers[:, step : step + 41, :2]
            track = tracks[np.nanargmin(np.hypot(*(tracks[:, 0] - here).T))]
            np.testing.assert_allclose(centers, track[1:], atol=1e-3)
            compared += 1
    assert compared > 20


def test_the_lanes_of_the_route_pass_the_ego(others):
    for _, _, sample in others:
        points = sample["route_lanes"][..., :2].reshape(-1, 2)
        points = points[points.any(axis=1)]
        for position in (np.zeros(2), sample["ego_future"][-1, :2]):
            assert np.hypot(*(points - position).T).min() < 4.5


def test_every_site_has_samples_and_what_is_left_out_is_counted(whole):
    samples, about = whole
    assert set(about["sites"]) == {"USA_Lanker", "USA_Peach", "USA_US101"}
    assert len(samples) == sum(each["samples"] for each in about["sites"].values()) > 50
    assert all(each["samples"] > each["human"] > 0 for each in about["sites"].values())
    assert set().union(*(each["skipped"] for each in about["sites"].values())) <= set(recorded_samples.SKIPPED)
    assert samples.recorded.all()
    arrays = samples.arrays(np.arange(len(samples)))
    assert all(np.isfinite(values).all() for values in arrays.values())
    np.testing.assert_allclose(arrays["ego"][:, 5:], 0.0)  # acceleration, steering and yaw rate are unknown


def test_an_excluded_site_has_no_sample(whole, monkeypatch, tmp_path):
    samples, about = whole
    monkeypatch.setenv("REFLECTDRIVE_SCENES", str(tmp_path))
    less, described = recorded_samples.recorded_set(HERE, SPEC, ["USA_US101"])
    assert set(described["sites"]) == {"USA_Lanker", "USA_Peach"}
    assert described["hold_out"] == ["USA_US101"]
    assert len(less) == len(samples) - about["sites"]["USA_US101"]["samples"]
    assert less.key != samples.key
    again, _ = recorded_samples.recorded_set(HERE, SPEC, ["USA_US101"])  # from its files
    np.testing.assert_array_equal(again.arrays(np.arange(3))["ego_future"], less.arrays(np.arange(3))["ego_future"])
    with pytest.raises(ConfigError, match=r"--hold-out names Paris; .* holds the sites USA_Lanker, USA_Peach"):
        recorded_samples.recorded_set(HERE, SPEC, ["Paris"])
    with pytest.raises(real_tracks.TracksError, match="holds no recorded drive of 4 s"):
        recorded_samples.recorded_set(HERE, SPEC, ["USA_US101", "USA_Lanker", "USA_Peach"])


def test_two_recordings_of_the_same_traffic_give_each_drive_once(motorway):
    once = recorded_samples.site_samples([motorway], SPEC)
    shifted = replace(
        motorway,
        ego_centers=motorway.ego_centers + np.array([10.0, 20.0, 0.0]),
        agent_centers=motorway.agent_centers + np.array([10.0, 20.0, 0.0]),
    )
    twice = recorded_samples.site_samples([motorway, shifted], SPEC)
    assert len(twice.rows) == len(once.rows)
    assert twice.skipped[recorded_samples.REPEATED] >= len(once.rows)


# --- displaced egos --------------------------------------------------------------------------------------------------


def perturbed(batch, seed=0):
    everything = np.ones(len(batch["ego"]), bool)
    return perturb_ego(batch, everything, np.random.default_rng(seed), DT_S)


def old_from_new(before, after, row):
    """The displaced pose in the frame of the recorded one, computed from a lane that both have."""
    lane = np.flatnonzero(before["lanes"][row].any(axis=(1, 2)))[0]
    old, new = (each["lanes"][row, lane][:, :2].astype(float) for each in (before, after))
    turn = np.arctan2(*(old[-1] - old[0])[::-1]) - np.arctan2(*(new[-1] - new[0])[::-1])
    return np.array([*(old[0] - geometry.rotate(new[:1], turn)[0]), geometry.wrap(turn)])


def test_a_displaced_ego_is_back_on_the_recorded_drive_after_two_seconds(batch):
    moved = perturbed(batch)
    for row in range(len(batch["ego"])):
        pose = old_from_new(batch, moved, row)
        assert abs(pose[1]) <= recorded_samples.LATERAL_M + 1e-3
        future = geometry.compose(pose, moved["ego_future"][row].astype(float))
        np.testing.assert_allclose(future[JOIN - 1 :, :2], batch["ego_future"][row, JOIN - 1 :, :2], atol=1e-3)
        turned = geometry.wrap(future[JOIN:, 2] - batch["ego_future"][row, JOIN:, 2])
        np.testing.assert_allclose(turned, 0.0, atol=1e-3)
        assert np.hypot(*moved["ego_future"][row, 0, :2]) < 0.15 * moved["ego"][row, 4] + 0.1  # it begins at the ego


def test_slow_egos_and_unselected_ones_are_not_displaced(batch):
    slow = {**batch, "ego": batch["ego"].copy()}
    slow["ego"][:3, 4] = 0.9 * recorded_samples.MIN_SPEED_MPS
    selected = np.arange(len(slow["ego"])) != 4
    moved = perturb_ego(slow, selected, np.random.default_rng(0), DT_S)
    for row in range(len(selected)):
        same = all(np.array_equal(moved[name][row], slow[name][row]) for name in slow)
        assert same == (row in (0, 1, 2, 4)), row


def test_a_change_of_frame_keeps_distances_and_empty_rows(batch):
    moved = perturbed(batch)
    for name in ("lanes", "route_lanes", "agents"):
        empty = ~batch[name].any(axis=-1)
        np.testing.assert_array_equal(~moved[name].any(axis=-1), empty)
        for old, new, is_present in zip(batch[name], moved[name], ~empty, strict=True):
            a, b = old[is_present][:, :2], new[is_present][:, :2]
            np.testing.assert_allclose(np.hypot(*(b - b[0]).T), np.hypot(*(a - a[0]).T), atol=1e-3)
    speeds = [np.hypot(*each["agents"][..., 4:6].transpose(3, 0, 1, 2)) for each in (batch, moved)]
    np.testing.assert_allclose(*speeds, atol=1e-4)
    valid = batch["agent_valid"] > 0
    present = [each["agents"][:, : SPEC.predicted_agents, -1, :2] for each in (batch, moved)]
    away = [
        np.hypot(*(each["agent_futures"][..., :2] - now[:, :, None]).transpose(3, 0, 1, 2))[valid]
        for each, now in zip((batch, moved), present, strict=True)
    ]
    np.testing.assert_allclose(*away, atol=1e-3)


# --- mirrored samples, mixed sets ------------------------------------------------------------------------------------


def test_a_mirrored_sample_is_that_of_the_mirrored_observation(motorway, batch):
    """All arrays of y and headings are mirrored in the recording itself."""

    def flip(poses):
        return poses * np.array([1.0, -1.0, -1.0])[: poses.shape[-1]]

    lanes = {
        key: replace(
            lane,
            centerline=flip(lane.centerline),
            polygons=tuple(real_tracks.shapely.transform(part, flip) for part in lane.polygons),
        )
        for key, lane in motorway.lanes.items()
    }
    mirrored = replace(
        motorway,
        ego_centers=flip(motorway.ego_centers),
        agent_centers=flip(motorway.agent_centers),
        agent_velocities_mps=flip(motorway.agent_velocities_mps),
        lanes=lanes,
    )
    expected = drive_sample(SampledDrive(mirrored, 0, True), 20, SPEC)
    flipped = vector_data.mirror(batch, np.arange(len(batch["ego"])) == 0)
    for name, values in expected.items():
        np.testing.assert_allclose(flipped[name][0], values, atol=2e-3, err_msg=name)
        np.testing.assert_array_equal(flipped[name][1:], batch[name][1:])
