"""The network of drivefine in models/ is what its cards say, and drives."""

from dataclasses import replace
from functools import lru_cache

import numpy as np
from scenes import Clock, cars, config
from scripted_network import camera_observation

from reflectdrive_ros.core.config import Config
from reflectdrive_ros.core.domain import StepKind, Verdict
from reflectdrive_ros.runtime.engine import Engine
from reflectdrive_ros.runtime.network import load_network


def planner_config(**changes):
    return replace(config(**changes), planner="drivefine", model=replace(Config(planner="drivefine").model, threads=1))


@lru_cache
def network():
    return load_network(planner_config().model, planner_config().decoding)


def engine(**changes):
    return Engine(planner_config(**changes), Clock(), network=network())


def test_it_drives_on_and_repeats_its_plan():
    reports = [engine().step(camera_observation(speed=8.0)) for _ in range(2)]
    assert {report.verdict for report in reports} == {Verdict.OK}
    plans = [report.plan for report in reports]
    assert {plan.step for plan in plans} == {StepKind.FULL}
    assert plans[0].tokens.tolist() == plans[1].tokens.tolist()
    assert 15.0 < plans[0].trajectory.poses[-1, 0] < 45.0
    assert np.abs(plans[0].trajectory.poses[:, 1]).max() < 3.0


def test_it_does_not_drive_into_a_standing_car():
    report = engine().step(camera_observation(8.0, agents=cars((24.0, 0.0, 0.0, 0.0))))
    assert report.plan.trajectory.poses[-1, 0] < 24.0
    assert report.plan.check.unsafe_after_s is None
