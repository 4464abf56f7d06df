"""Whether the car is outside of the map: it drives, and no part of it is in a lanelet.

Then the map, the localisation or the car's path is wrong. A car that stands may be in a parking space beside the lanes.
"""

from __future__ import annotations

import numpy as np

from ...core import geometry
from ...core.config import VehicleConfig
from ...core.domain import EgoState
from ...core.kinematics import box_centres
from ...maps.lanelet_map import LaneletMap

MOVING_MPS = 0.5  # slower is standing: odometry is not exact


def off_map_reason(lanelets: LaneletMap | None, ego: EgoState, vehicle: VehicleConfig, was_off: bool) -> str:
    """One sentence for a moving car outside of every lanelet for cars, shoulder and intersection; empty otherwise, and
    without a map.

    `was_off`: whether the car drove out of the map and stopped by itself. Then it stays off the map when it stands, or
    it would start again, until a part of it is in a lanelet.
    """
    if lanelets is None or (abs(ego.speed_mps) < MOVING_MPS and not was_off):
        return ""
    size = np.array([vehicle.length_m, vehicle.width_m])
    if lanelets.touches_road(geometry.box_corners(box_centres(ego.map_from_ego, vehicle), size)):
        return ""
    source = lanelets.source
    return f"map: the car is outside of every lanelet of {source.name}: drive it to a lane, or {source.if_misplaced}"
