"""The driving score of recorded drives: others go where they went, and what is not known is not scored."""

import numpy as np
import pytest
from replay_records import BEGIN_NS, EIGHT_S, driven, frame, record

from reflectdrive_ros.core import geometry
from reflectdrive_ros.core.config import Config
from reflectdrive_ros.core.domain import AgentKind, Agents
from reflectdrive_ros.replay.record import summary
from reflectdrive_ros.replay.scores import SCORES, ObjectSighting, build_tracks, score_replay
from reflectdrive_ros.scoring import drivable

CAR = np.array([[4.5, 1.9]])


def sighting(at_s, *cars):
    """Cars (id, pose in the map, speed) at a time of the recording."""
    poses = np.array([pose for _, pose, _ in cars]).reshape(-1, 3)
    along = np.array([speed for _, _, speed in cars])[:, None]
    velocities = along * np.stack([np.cos(poses[:, 2]), np.sin(poses[:, 2])], axis=-1)
    kinds = np.full(len(cars), int(AgentKind.VEHICLE))
    agents = Agents(poses, velocities.reshape(-1, 2), np.repeat(CAR, len(cars), axis=0), kinds)
    return ObjectSighting(BEGIN_NS + round(at_s * 1e9), [name for name, _, _ in cars], agents)


def space(length_m, width_m):
    """Road of this size, the car in its middle."""
    return drivable.grid_around_ego(
        drivable.union_polygons([geometry.box_corners(np.zeros(3), np.array([length_m, width_m]))])
    )


def on_the_road(frame):
    """All around is road."""
    return space(250.0, 250.0)


def of(plans, sightings, space=on_the_road, **changes):
    return score_replay(record(plans, **changes), sightings, space, Config()).plans


def parked(pose, until_s=10.0):
    return [sighting(t, (b"parked", pose, 0.0)) for t in np.arange(-0.1, until_s, 0.1)]


BESIDE = geometry.compose(driven(3.0), np.array([0.0, 8.0, 0.0]))


def test_the_recorded_drive_is_a_good_one():
    scores = of([frame(0.0, EIGHT_S, yaw_rate_rps=0.1)], parked(BESIDE))
    assert [scores[name][0] for name in SCORES] == pytest.approx([1.0] * 5, abs=0.02)


def test_who_stands_on_the_way_is_hit_and_who_leaves_it_in_time_is_not():
    plans = [frame(0.0, EIGHT_S, yaw_rate_rps=0.1)]
    assert of(plans, parked(driven(3.0)))["nc"][0] == 0.0
    off_path = geometry.compose(driven(3.0), np.array([0.0, 8.0, 0.0]))
    leaves = [sighting(t, (b"it", driven(3.0) if t < 0.6 else off_path, 0.0)) for t in np.arange(-0.1, 10.0, 0.1)]
    assert of(plans, leaves)["nc"][0] == 1.0


def test_a_plan_that_gets_half_as_far_as_the_recorded_car_has_half_its_progress():
    slow = frame(0.0, 0.5 * EIGHT_S, speed_mps=4.0, yaw_rate_rps=0.05)
    assert of([slow], parked(BESIDE))["ep"][0] == pytest.approx(0.5, abs=0.03)


def test_without_drivable_space_neither_it_nor_the_score_is_told():
    scores = of([frame(0.0, EIGHT_S)], parked(BESIDE), space=lambda frame: None)
    assert np.isnan([scores["dac"][0], scores["pdms"][0]]).all()
    assert scores["nc"][0] == 1.0


def test_a_plan_off_the_road_is_told():
    def narrow(frame):
        return space(12.0, 8.0)

    assert of([frame(0.0, EIGHT_S)], parked(BESIDE), narrow)["dac"][0] == 0.0


def test_plans_are_scored_every_half_second_as_long_as_there_is_a_future():
    plans = [frame(t, EIGHT_S) for t in np.arange(0.0, 9.0, 0.1)]
    scores = of(plans, parked(BESIDE))
    which = np.flatnonzero(np.isfinite(scores["nc"]))
    assert which.tolist() == list(range(0, 50, 5))  # sightings end at 9.9 s, and 5 s of them are looked at
    assert np.isnan(of(plans, parked(BESIDE), routes=())["nc"]).all()
    assert np.isnan(of(plans, [])["nc"]).all()


def test_a_summary_has_the_means_in_percent():
    plans = [frame(t, EIGHT_S) for t in np.arange(0.0, 9.0, 0.1)]
    there = record(plans)
    scored = summary(record(plans, scores=score_replay(there, parked(BESIDE), on_the_road, Config()).plans))["scored"]
    assert scored["plans"] == 10
    assert scored["nc"] == scored["dac"] == 100.0
    assert summary(there)["scored"] == {"plans": 0, **dict.fromkeys(SCORES)}


# --- tracks ----------------------------------------------------------------------------------------------------------


def test_tracks_are_linear_between_sightings_and_absent_where_nobody_was_seen():
    origin = np.zeros(3)
    sightings = [
        sighting(0.0, (b"a", (10.0, 0.0, 0.0), 5.0), (b"b", (30.0, 4.0, np.pi), 0.0)),
        sighting(0.4, (b"a", (12.0, 0.0, 0.0), 5.0), (b"b", (30.0, 4.0, -np.pi), 0.0)),
        sighting(0.8, (b"a", (14.0, 0.0, 0.0), 5.0)),
        sighting(2.0, (b"a", (20.0, 0.0, 0.0), 5.0), (b"c", (5.0, -4.0, 0.0), 1.0)),
    ]
    tracks = build_tracks(sightings, BEGIN_NS, origin)
    a, b, c = range(3)
    assert tracks.poses[a, 2] == pytest.approx([11.0, 0.0, 0.0])
    assert tracks.present[a].nonzero()[0].tolist() == [*range(9), 20]  # unseen for too long in between, and after
    assert tracks.present[b].nonzero()[0].tolist() == [0, 1, 2, 3, 4]
    assert abs(tracks.poses[b, 2, 2]) == pytest.approx(np.pi)  # no turn round the wrong way
    assert tracks.present[c].nonzero()[0].tolist() == [20]
    assert tracks.speeds_mps[a, :9] == pytest.approx(5.0)


def test_tracks_are_told_in_the_frame_of_the_ego():
    tracks = build_tracks(
        [sighting(0.0, (b"a", (10.0, 5.0, np.pi / 2), 5.0))], BEGIN_NS, np.array([10.0, 0.0, np.pi / 2])
    )
    assert tracks.poses[0, 0] == pytest.approx([5.0, 0.0, 0.0], abs=1e-9)
