"""Measures of single plans: what a plan is worth does not depend on where it is kept, comfort is that of the score."""

from dataclasses import replace

import numpy as np
import pytest
from replay_records import EIGHT_S, driven, frame, record

from reflectdrive_ros.core.config import VehicleConfig
from reflectdrive_ros.core.domain import PlanSource, Verdict
from reflectdrive_ros.replay import plan_measures
from reflectdrive_ros.replay.plan_measures import (
    MEASURES,
    MeasuresError,
    concat_measures,
    read_measures,
    write_measures,
)
from reflectdrive_ros.scoring.simulate import simulate


def turning(at_s, ahead=EIGHT_S, **changes):
    """A plan of a car that already turns as the road does."""
    return frame(at_s, ahead, yaw_rate_rps=0.1, **changes)


def test_measures_survive_their_file_to_the_last_digit_kept(tmp_path):
    frames = [turning(0.1 * i) for i in range(80)]
    frames[3] = replace(frames[3], verdict=Verdict.UNSAFE, source=PlanSource.STOP)
    frames[5] = turning(0.5, EIGHT_S[:39])  # shorter than the score looks: it has neither error nor comfort
    measures = record(frames).plans.measures
    assert np.isnan([measures.ade_m[5], measures.fde_m[5], measures.comfortable[5]]).all()
    write_measures(measures, tmp_path / "plans.csv")
    again = read_measures(tmp_path / "plans.csv")
    for name in ("stamp_ns", "verdict", "source"):
        assert np.array_equal(getattr(again, name), getattr(measures, name))
    for name in MEASURES:
        assert np.allclose(getattr(again, name), getattr(measures, name), rtol=0, atol=1e-6, equal_nan=True)
    write_measures(again, tmp_path / "again.csv")
    assert (tmp_path / "again.csv").read_bytes() == (tmp_path / "plans.csv").read_bytes()
    assert not list(tmp_path.glob(".*"))


def test_steady_driving_is_comfortable_and_an_emergency_stop_or_a_swerve_is_not():
    braking = np.minimum(EIGHT_S, 1.0) * 8.0 - 4.0 * np.minimum(EIGHT_S, 1.0) ** 2  # from 8 m/s to 0 within a second
    stop = driven(0.0 + braking / 8.0)
    swerve = driven(EIGHT_S)
    swerve[:, 1] += 2.0 * np.sin(2.0 * EIGHT_S)
    frames = [turning(0.0), turning(0.1, plan_poses=stop), turning(0.2, plan_poses=swerve)]
    assert record(frames).plans.measures.comfortable.tolist() == [1.0, 0.0, 0.0]


def test_cars_simulated_together_move_as_each_alone():
    plans = np.stack(
        [np.stack([speed * EIGHT_S[:40], 0.02 * EIGHT_S[:40] ** 2, 0 * EIGHT_S[:40]], -1) for speed in (3, 9)]
    )
    plans[1, 20:] *= -1.0  # no car follows this: its angles are wrapped
    motions = np.array([[3.0, 0, 0.5, 0, 0.01, 0, 0, 0], [9.0, 0, -1.0, 0, 0.0, 0, 0.02, 0]])
    alone = [simulate(plans[k : k + 1], motions[k], VehicleConfig())[0] for k in range(2)]
    assert np.allclose(simulate(plans, motions, VehicleConfig()), alone, rtol=0, atol=1e-9)


def test_the_total_over_bags_weighs_every_plan_alike():
    long, short = record([turning(0.1 * i) for i in range(60)]), record([turning(2.0), turning(2.1)])
    shifted = replace(short.frames[1], plan_poses=short.frames[1].plan_poses + np.array([3.0, 4.0, 0.0]))
    short = replace(short, frames=[short.frames[0], shifted])
    parts = [long.plans.measures, short.plans.measures]
    together = plan_measures.numbers(concat_measures(parts))
    errors = np.concatenate([part.ade_m for part in parts])
    assert together["plans"] == 62
    assert together["ade_m"] == pytest.approx(errors.mean(), abs=1e-4)
    assert together["max_lateral_shift_m"] == pytest.approx(np.nanmax(parts[1].lateral_shift_m), abs=1e-4)
    assert plan_measures.numbers(concat_measures([]))["ade_m"] is None


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "holds no measures of plans"),
        ("stamp_ns,ade_m\n1,2\n", "its columns are stamp_ns, ade_m"),
        ("{head}\n1,2\n", "holds no measures of plans"),
        ("{head}\n1,,,,,FINE,PLANNER,3.0,,,,,\n", "FINE"),
        ("{head}\n99999999999999999999,,,,,OK,PLANNER,3.0,,,,,\n", "too large"),
        ("x" * 200_000, "field larger than field limit"),
        ("\0\0\0", "holds no measures of plans"),
    ],
)
def test_a_file_that_is_no_measures_is_one_sentence(tmp_path, text, sentence):
    head = "stamp_ns,ade_m,fde_m,lateral_shift_m,comfortable,verdict,source,latency_ms,nc,dac,ttc,ep,pdms"
    (tmp_path / "plans.csv").write_text(text.format(head=head))
    with pytest.raises(MeasuresError, match=sentence):
        read_measures(tmp_path / "plans.csv")
    with pytest.raises(MeasuresError, match="No such file"):
        read_measures(tmp_path / "none.csv")
