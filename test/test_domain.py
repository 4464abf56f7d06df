"""The types cannot be born wrong, and cannot become wrong later."""

from dataclasses import FrozenInstanceError, fields, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reflectdrive_ros.core.domain import (
    Agents,
    CameraFrame,
    Command,
    DrivableGrid,
    EgoState,
    Forecast,
    ForecastSource,
    Observation,
    Plan,
    Trajectory,
)

EGO = EgoState(1_000_000_000, np.array([10.0, -3.0, 0.2]), 8.0)
CAMERA = CameraFrame(1_000_000_000, "front", np.zeros((36, 64, 3), np.uint8), np.eye(3), np.eye(4))
AGENTS = Agents(np.zeros((2, 3)), np.zeros((2, 2)), np.full((2, 2), 2.0), np.array([1, 2]), np.zeros((2, 4, 3)))
FORECAST = Forecast(np.zeros((2, 5, 3)), np.full((2, 2), 2.0), 0.5, ForecastSource.CONSTANT_VELOCITY)
GRID = DrivableGrid(np.zeros((4, 6)), 0.5, np.zeros(3))
OBSERVATION = Observation(1_000_000_000, EGO, np.zeros((5, 3)), Command.LEFT)
TRAJECTORY = Trajectory(np.zeros((16, 3)), 0.5)
PLAN = Plan(1_000_000_000, np.zeros(3), TRAJECTORY, tokens=np.zeros(16, np.int32))

# (a good value, the field, how many dimensions it has)
ARRAYS = [
    (EGO, "map_from_ego", 1),
    (CAMERA, "pixels_from_camera", 2),
    (CAMERA, "camera_from_ego", 2),
    (AGENTS, "poses", 2),
    (AGENTS, "velocities_mps", 2),
    (AGENTS, "sizes", 2),
    (AGENTS, "predicted_poses", 3),
    (FORECAST, "poses", 3),
    (FORECAST, "sizes", 2),
    (GRID, "distance_m", 2),
    (GRID, "ego_from_grid", 1),
    (OBSERVATION, "route", 2),
    (TRAJECTORY, "poses", 2),
    (PLAN, "map_from_ego", 1),
]
NUMBERS = [(EGO, name) for name in ("speed_mps", "acceleration_mps2", "yaw_rate_rps", "steering_rad")]
POSITIVE = [
    (AGENTS, "predicted_dt_s"),
    (FORECAST, "dt_s"),
    (GRID, "resolution_m"),
    (OBSERVATION, "speed_limit_mps"),
    (TRAJECTORY, "dt_s"),
]


def name_of(case):
    return f"{type(case[0]).__name__}.{case[1]}" if isinstance(case, tuple) else type(case).__name__


@pytest.mark.parametrize("case", ARRAYS, ids=name_of)
@given(bad=st.sampled_from([np.nan, np.inf, -np.inf]), where=st.integers(0, 10_000))
def test_a_number_that_is_not_finite_is_refused_by_name(case, bad, where):
    good, name, _ = case
    values = np.array(getattr(good, name))
    values.flat[where % values.size] = bad
    with pytest.raises(ValueError, match=rf"{name_of(case)} holds NaN or infinity"):
        replace(good, **{name: values})


@pytest.mark.parametrize("case", ARRAYS, ids=name_of)
@given(shape=st.lists(st.integers(0, 7), max_size=4))
def test_an_array_with_other_dimensions_is_refused_by_name(case, shape):
    good, name, dimensions = case
    if len(shape) == dimensions:
        shape = [*shape, 2]
    with pytest.raises(ValueError, match=rf"{name_of(case)} has shape .*, expected"):
        replace(good, **{name: np.zeros(shape)})


@pytest.mark.parametrize(
    ("good", "name", "shape"),
    [
        (EGO, "map_from_ego", (4,)),
        (CAMERA, "pixels", (36, 64, 4)),
        (CAMERA, "pixels_from_camera", (3, 4)),
        (CAMERA, "camera_from_ego", (3, 4)),
        (AGENTS, "poses", (2, 2)),
        (AGENTS, "velocities_mps", (3, 2)),
        (AGENTS, "sizes", (1, 2)),
        (AGENTS, "kinds", (3,)),
        (AGENTS, "predicted_poses", (3, 4, 3)),
        (FORECAST, "sizes", (3, 2)),
        (OBSERVATION, "route", (5, 2)),
        (TRAJECTORY, "poses", (16, 2)),
        (PLAN, "tokens", (8, 2)),
    ],
)
def test_a_wrong_size_is_refused_by_name(good, name, shape):
    with pytest.raises(ValueError, match=rf"{type(good).__name__}.{name} has shape"):
        replace(good, **{name: np.zeros(shape, np.asarray(getattr(good, name)).dtype)})


@pytest.mark.parametrize("case", ARRAYS, ids=name_of)
@pytest.mark.parametrize(
    "nonsense", ["left", [[0.0], [0.0, 1.0]], None, object()], ids=["text", "ragged", "None", "object"]
)
def test_what_is_no_array_of_numbers_is_refused_by_name(case, nonsense):
    good, name, _ = case
    if name == "predicted_poses" and nonsense is None:
        return  # None is an answer there: no prediction
    with pytest.raises(ValueError, match=name_of(case)):
        replace(good, **{name: nonsense})


@pytest.mark.parametrize("case", NUMBERS + POSITIVE, ids=name_of)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, None, "8"], ids=str)
def test_a_scalar_that_is_no_finite_number_is_refused_by_name(case, bad):
    good, name = case
    with pytest.raises(ValueError, match=rf"{name_of(case)} is .*, expected a finite number"):
        replace(good, **{name: bad})


@pytest.mark.parametrize("case", POSITIVE, ids=name_of)
@given(bad=st.floats(max_value=0.0, allow_infinity=False))
def test_what_must_be_positive_is(case, bad):
    good, name = case
    with pytest.raises(ValueError, match=rf"{name_of(case)} is .*, expected more than 0"):
        replace(good, **{name: bad})


@given(st.floats(max_value=0.0, allow_infinity=False), st.sampled_from([AGENTS, FORECAST]))
def test_a_box_without_extent_is_refused(size, good):
    with pytest.raises(ValueError, match=rf"{type(good).__name__}.sizes holds a length or width that is not positive"):
        replace(good, sizes=np.array([[4.0, 2.0], [4.0, size]]))


@pytest.mark.parametrize(
    ("good", "changes", "complaint"),
    [
        (EGO, {"stamp_ns": 1.5}, r"EgoState\.stamp_ns is .*, expected whole nanoseconds"),
        (CAMERA, {"stamp_ns": 1.5}, r"CameraFrame\.stamp_ns is .*, expected whole nanoseconds"),
        (OBSERVATION, {"stamp_ns": 1.5}, r"Observation\.stamp_ns is .*, expected whole nanoseconds"),
        (PLAN, {"stamp_ns": 1.5}, r"Plan\.stamp_ns is .*, expected whole nanoseconds"),
        (AGENTS, {"sizes": np.array([[100.0, 2.0], [4.0, 2.0]])}, r"Agents\.sizes holds a box of 100\.0 m"),
        *((AGENTS, {"kinds": kinds}, r"Agents\.kinds") for kinds in ([1.5, 2.0], [1, 9], [1, -1], ["car", "bus"])),
        (OBSERVATION, {"route": np.zeros((1, 3))}, r"Observation\.route has 1 point"),
        (TRAJECTORY, {"poses": np.zeros((0, 3))}, r"Trajectory\.poses is empty"),
        (PLAN, {"candidates": (TRAJECTORY,), "scores": (0.9,)}, r"Plan\.scores has 1 numbers for 2 trajectories"),
        (CAMERA, {"pixels": np.zeros((36, 64, 3))}, r"CameraFrame\.pixels of front is not uint8"),
        (CAMERA, {"pixels": [[[0, 0, 0]]]}, r"CameraFrame\.pixels of front is not uint8"),
        (CAMERA, {"pixels": None}, r"CameraFrame\.pixels of front is not uint8"),
        (CAMERA, {"pixels": np.zeros((0, 64, 3), np.uint8)}, r"CameraFrame\.pixels of front has no pixels"),
    ],
)
def test_what_makes_no_sense_is_refused_by_name(good, changes, complaint):
    with pytest.raises(ValueError, match=complaint):
        replace(good, **changes)


@pytest.mark.parametrize("good", [EGO, CAMERA, AGENTS, FORECAST, GRID, OBSERVATION, TRAJECTORY, PLAN], ids=name_of)
def test_nothing_changes_after_birth(good):
    for entry in fields(good):
        value = getattr(good, entry.name)
        with pytest.raises(FrozenInstanceError):
            setattr(good, entry.name, value)
        if isinstance(value, np.ndarray):
            with pytest.raises(ValueError, match="read-only"):
                value.flat[0] = 1


def test_who_made_an_array_cannot_change_it_later_either():
    mine = np.zeros((16, 3))
    trajectory = Trajectory(mine, 0.5)
    mine[:] = 99.0
    assert (trajectory.poses == 0.0).all()
    assert replace(trajectory, dt_s=0.1).poses is trajectory.poses  # what is safe already is shared, not copied


@given(st.integers(1, 80), st.floats(0.01, 1.0))
def test_the_last_pose_stands_at_the_horizon(count, dt_s):
    trajectory = Trajectory(np.zeros((count, 3)), dt_s)
    assert trajectory.times_s.shape == (count,)
    assert trajectory.times_s[0] == dt_s
    assert trajectory.times_s[-1] == pytest.approx(trajectory.horizon_s)
