"""Logs of closed-loop drives straight ahead."""

import numpy as np

from reflectdrive_ros.core.config import VehicleConfig
from reflectdrive_ros.evaluation.drive_measurements import DriveMeasurements
from reflectdrive_ros.scoring.simulate import STATE_SIZE, VX
from reflectdrive_ros.sim.drive_log import DriveLog


def log(seconds, speed_mps, collisions=(), events=(), off_steps=0):
    count = round(10 * seconds) + 1
    states = np.zeros((count, STATE_SIZE))
    states[:, 0] = 0.1 * speed_mps * np.arange(count)
    states[:, VX] = speed_mps
    off_road = np.arange(count) > count - 1 - off_steps
    limit_distance_m = 10.0 * seconds
    return DriveLog(
        np.arange(count),
        states,
        np.full(count, 20.0),
        off_road,
        tuple(events),
        tuple(collisions),
        speed_mps * seconds,
        limit_distance_m,
        VehicleConfig(),
    )


def measurements(**values):
    """Of a drive without a fault and without way, but for the given values."""
    nothing = {"progress_m": 0.0, "faultless_progress_m": 0.0, "plan_progress_m": 0.0, "reference_progress_m": 0.0}
    faultless = {"off_road_depth_m": 0.0, "direction": 1.0, "overspeed_m": 0.0, "ttc_steps": ()}
    return DriveMeasurements(**{**nothing, **faultless, **values})
