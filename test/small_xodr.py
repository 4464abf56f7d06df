"""A small OpenDRIVE map: a figure of eight of four two-way roads, one of its straights on a bridge over the other."""

import math

R = 40.0  # m, radius of both loops
HEIGHT_M = 8.0  # of the bridge, which is the straight along y
ARC_M = 1.5 * math.pi * R
# x, y, heading, length, curvature of the reference lines, in driving order
ROADS = (
    (-R, 0.0, 0.0, 2 * R, 0.0),
    (R, 0.0, 0.0, ARC_M, 1 / R),
    (0.0, R, -math.pi / 2, 2 * R, 0.0),
    (0.0, -R, -math.pi / 2, ARC_M, -1 / R),
)
HEIGHTS = ((0.0, 0.0), (0.0, HEIGHT_M / ARC_M), (HEIGHT_M, 0.0), (HEIGHT_M, -HEIGHT_M / ARC_M))


def figure_of_eight(rule="RHT", speed='<speed max="30" unit="mph"/>', roads=range(4), widths=True):
    """The map as text. `roads`: those that it holds; `widths`: whether lanes have one."""
    parts = "".join(_road(k, rule, speed, widths) for k in roads)
    return f'<OpenDRIVE><header revMajor="1" revMinor="4"/>{parts}</OpenDRIVE>'


def _road(k, rule, speed, widths):
    x, y, heading, length, curvature = ROADS[k]
    a, b = HEIGHTS[k]
    curve = f'<arc curvature="{curvature}"/>' if curvature else "<line/>"
    width = '<width sOffset="0" a="{}" b="0" c="0" d="0"/>' if widths else "<!-- {} -->"

    def lane(number, kind, metres):
        link = f'<link><predecessor id="{number}"/><successor id="{number}"/></link>'
        return f'<lane id="{number}" type="{kind}" level="false">{link}{width.format(metres)}</lane>'

    left = lane(2, "shoulder", 1.0) + lane(1, "driving", 3.5)
    right = lane(-1, "driving", 3.5) + lane(-2, "shoulder", 1.0)
    links = (
        f'<link><predecessor elementType="road" elementId="{(k - 1) % 4}" contactPoint="end"/>'
        f'<successor elementType="road" elementId="{(k + 1) % 4}" contactPoint="start"/></link>'
    )
    return (
        f'<road name="" length="{length}" id="{k}" junction="-1" rule="{rule}">{links}'
        f'<type s="0" type="town">{speed}</type>'
        f'<planView><geometry s="0" x="{x}" y="{y}" hdg="{heading}" length="{length}">{curve}</geometry></planView>'
        f'<elevationProfile><elevation s="0" a="{a}" b="{b}" c="0" d="0"/></elevationProfile>'
        f'<lanes><laneSection s="0"><left>{left}</left><center><lane id="0" type="none" level="false"/></center>'
        f"<right>{right}</right></laneSection></lanes></road>"
    )
