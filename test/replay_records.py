"""Records of a replay: a car on a left turn, and plans that follow it."""

import json
import re

import numpy as np

from reflectdrive_ros.core import geometry
from reflectdrive_ros.core.domain import PlanSource, StepKind, Verdict
from reflectdrive_ros.replay.record import ReplayFrame, ReplayRecord
from reflectdrive_ros.replay.report import write_report

BEGIN_NS = 1_557_539_956_500_000_000


def driven(seconds):
    """A left turn at a steady 8 m/s with a radius of 80 m, somewhere in the map."""
    turned = 0.1 * np.asarray(seconds, float)
    circle = np.stack([80 * np.sin(turned), 80 * (1 - np.cos(turned)), turned], axis=-1)
    return geometry.compose(np.array([500.0, -300.0, 2.0]), circle)


def frame(at_s, ahead, **changes):
    """A plan made at `at_s` that says where the car is `ahead` (s) after that."""
    ahead = np.asarray(ahead, float)
    values = {
        "stamp_ns": BEGIN_NS + round(at_s * 1e9),
        "map_from_ego": driven(at_s),
        "speed_mps": 8.0,
        "plan_poses": driven(at_s + ahead),
        "plan_speeds": np.full(len(ahead), 8.0),
        "dt_s": 0.1,
        "verdict": Verdict.OK,
        "source": PlanSource.PLANNER,
        "reason": "",
        "step": StepKind.BASELINE,
        "timings_ms": {"planner": 2.0, "total": 5.0},
        **changes,
    }
    return ReplayFrame(**values)


ROUTES = ((BEGIN_NS, driven(np.arange(0, 12, 0.2))),)


def record(frames, seconds=10.0, **changes):
    times = np.arange(0.0, seconds + 1e-9, 0.02)
    stamps = BEGIN_NS + np.round(times * 1e9).astype(np.int64)
    values = {"planner": "route_follower", "bag": "town", "frames": frames, "routes": ROUTES}
    return ReplayRecord(**{**values, "driven_path": driven(times), "driven_stamps_ns": stamps, **changes})


EIGHT_S = np.arange(0.1, 8.05, 0.1)


def written_report(replay, path):
    """The data of the report of a record, which is written to a path."""
    write_report(replay, path)
    return embedded(path)


def embedded(path):
    page = path.read_text(encoding="utf-8")
    return json.loads(re.search(r'<script id="data" type="application/json">(.*?)</script>', page, re.DOTALL).group(1))
