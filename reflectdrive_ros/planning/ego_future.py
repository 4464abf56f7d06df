"""The ego's future of a denoiser as poses of the ego frame.

The published networks predict x, y and heading in the ego frame. With `VectorSpec.ego_frenet` a network predicts Frenet
coordinates: arc length along the line of the route, lateral offset, and heading relative to the line. A lane is then
kept with an offset of 0 in every bend, and an error of the speed does not move the plan off the road.

The line is that of the network's own inputs: the first `VectorSpec.route_line_rows` of the route lanes.
"""

from __future__ import annotations

from ..core.domain import Array
from ..core.vector_spec import VectorSpec
from ..features.vectors import VectorInputs
from ..scoring.frenet import ROAD_OFFSET_MAX_M, FrenetFrame, cartesian_poses
from .denoiser import in_metres, poses_of


def reference_line(route_lanes: Array, spec: VectorSpec) -> FrenetFrame:
    """The line in the first rows of route lanes (R, P, 12). Raises ValueError if it does not pass the vehicle."""
    rows = route_lanes[: spec.route_line_rows].reshape(-1, route_lanes.shape[-1])
    line = FrenetFrame.of(rows[(rows != 0.0).any(axis=1), :2].astype(float))
    if line is None:
        raise ValueError(
            f"Observation.route is more than {ROAD_OFFSET_MAX_M:.0f} m away: the network plans relative to the route, "
            "send one that passes the vehicle"
        )
    return line


def line_of(inputs: VectorInputs, spec: VectorSpec) -> FrenetFrame | None:
    """The line that the ego's future is relative to; None for a network of the ego frame. Raises ValueError as
    `reference_line`."""
    return reference_line(inputs.route_lanes, spec) if spec.ego_frenet else None


def ego_poses(futures: Array, spec: VectorSpec, line: FrenetFrame | None) -> Array:
    """(T, 3) poses of the ego frame at dt, 2 dt, .. of normalised futures (P, 1 + T, 4)."""
    poses = poses_of(in_metres(futures, spec)[0, 1:])
    return poses if line is None else cartesian_poses(poses, line)
