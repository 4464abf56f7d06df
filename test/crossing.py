"""A crossroads of four arms with a traffic light, built by netconvert: the smallest town with all kinds of turns.

The road from west to east has two lanes each way, the other one lane; arms are 200 m long and end in turning circles.
"""

import numpy as np

from reflectdrive_ros.core import geometry
from reflectdrive_ros.maps import roads, sumo

ARM_M = 200.0
LANE_M = 3.5
ARMS = {"w": (-ARM_M, 0.0, 2), "e": (ARM_M, 0.0, 2), "s": (0.0, -ARM_M, 1), "n": (0.0, ARM_M, 1)}


def build_network(folder):
    """Its RoadMap; the network is written to `folder`."""
    nodes = ['<node id="c" x="0" y="0" type="traffic_light" radius="7"/>']
    edges = []
    for name, (x, y, lanes) in ARMS.items():
        nodes.append(f'<node id="{name}" x="{x}" y="{y}" type="priority"/>')
        what = "".join(f'<lane index="{lane}" width="{LANE_M}" disallow="pedestrian"/>' for lane in range(lanes))
        for edge, ends in ((f"{name}c", (name, "c")), (f"c{name}", ("c", name))):
            edges.append(
                f'<edge id="{edge}" from="{ends[0]}" to="{ends[1]}" type="street" numLanes="{lanes}" speed="13.9">'
                f"{what}</edge>"
            )
    for kind, lines in (("nodes", nodes), ("edges", edges)):
        (folder / f"{kind}.xml").write_text(f"<{kind}>{''.join(lines)}</{kind}>")
    net_file = folder / "crossing.net.xml"
    files = [
        f"--node-files={folder / 'nodes.xml'}",
        f"--edge-files={folder / 'edges.xml'}",
        f"--output-file={net_file}",
    ]
    sumo.run("netconvert", [*files, "--offset.disable-normalization", "--junctions.internal-link-detail=12"])
    return roads.read(net_file, "crossing")


def lane_of(road_map, edge, index=0):
    """Key of a road's lane, 0 the rightmost."""
    return next(
        key
        for key, lane in road_map.lanes.items()
        if lane.edge == edge and lane.across_junction is None and lane.index == index
    )


def pose_on(road_map, key, along_m):
    return geometry.sample(road_map.lanes[key].lane.centerline, np.array([along_m]))[0]
