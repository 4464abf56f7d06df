"""Lane permissions of pedestrians and bicycles, read from the SUMO network file; `RoadMap` holds car lanes only."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from ...maps.roads import RoadMap

MAX_TRIES = 4  # a sampled walk may end early at the end of a sidewalk
CROSSING_WEIGHT = 4.0  # of walking on over a zebra crossing, relative to turning at a corner


def restrict_to_bicycles(road_map: RoadMap) -> RoadMap:
    """The road map with only those edge transitions that a bicycle may use and that do not end in a dead end."""
    net = road_map.net_file.read_text()
    bicycle_lanes = {
        lane for lane, rule in re.findall(r'<lane id="([^":][^"]*)"([^>]*)>', net) if _allows_bicycles(rule)
    }
    pairs = set()
    for start, end, start_lane, end_lane in re.findall(
        r'<connection from="([^":][^"]*)" to="([^":][^"]*)" fromLane="(\d+)" toLane="(\d+)"', net
    ):
        if f"{start}_{start_lane}" in bicycle_lanes and f"{end}_{end_lane}" in bicycle_lanes:
            pairs.add((start, end))
    after = {edge: [to for to in targets if (edge, to) in pairs] for edge, targets in road_map.edges_after.items()}
    while dead := {to for targets in after.values() for to in targets if not after[to]}:
        after = {edge: [to for to in targets if to not in dead] for edge, targets in after.items()}
    return replace(road_map, edges_after={edge: tuple(targets) for edge, targets in after.items()})


def _allows_bicycles(rule: str) -> bool:
    """Whether the XML attributes of a lane allow bicycles."""
    allow = re.search(r'\ballow="([^"]*)"', rule)
    if allow:
        return "bicycle" in allow[1].split() or allow[1] == "all"
    forbidden = re.search(r'\bdisallow="([^"]*)"', rule)
    return forbidden is None or not {"bicycle", "all"} & set(forbidden[1].split())


@dataclass(frozen=True, eq=False)
class Sidewalks:
    """Sidewalks and their connections at corners and zebra crossings."""

    lengths_m: Mapping[str, float]  # of road edges with a sidewalk
    corner_before: Mapping[str, str]  # edge -> SUMO walking area at its start
    corner_after: Mapping[str, str]
    joined: Mapping[str, str]  # walking area -> common name of all that zebra crossings join

    @staticmethod
    def read(road_map: RoadMap) -> Sidewalks:
        net = road_map.net_file.read_text()
        lane = r'<lane id="([^":][^"]*)_\d+"[^>]*\ballow="pedestrian"[^>]*\blength="([^"]*)"'
        lengths = {edge: float(length) for edge, length in re.findall(lane, net)}
        joined: dict[str, str] = {}

        def name(corner: str) -> str:
            while joined.get(corner, corner) != corner:
                corner = joined[corner]
            return corner

        before, after = {}, {}
        for start, end in re.findall(r'<connection from="([^"]*)" to="([^"]*)"', net):
            corners = [bool(re.fullmatch(r":.*_[wc]\d+", edge)) for edge in (start, end)]
            if all(corners):
                joined[name(start)] = name(end)
            elif corners[1] and start in lengths:
                after[start] = end
            elif corners[0] and end in lengths:
                before[end] = start
        usable = {edge: length for edge, length in lengths.items() if edge in before and edge in after}
        return Sidewalks(
            usable, before, after, {corner: name(corner) for corner in (*before.values(), *after.values())}
        )

    def sample_walk(self, generator: np.random.Generator, length_m: float) -> tuple[str, ...]:
        """Sample edges with connected sidewalks, `length_m` in all or as far as possible; empty where none connect."""
        best: tuple[tuple[str, ...], float] = ((), 0.0)
        for _ in range(MAX_TRIES if self.lengths_m else 0):
            best = max(best, self._sample_walk(generator, length_m), key=lambda one: one[1])
            if best[1] >= length_m:
                break
        return best[0] if len(best[0]) > 1 else ()

    def _sample_walk(self, generator: np.random.Generator, length_m: float) -> tuple[tuple[str, ...], float]:
        edges = list(self.lengths_m)
        room = np.array(list(self.lengths_m.values()))
        edge = edges[int(generator.choice(len(edges), p=room / room.sum()))]
        forward = generator.random() < 0.5
        walk, walked_m = [edge], self.lengths_m[edge]
        while walked_m < length_m:
            here = (self.corner_after if forward else self.corner_before)[edge]
            choices = [
                (other, way_on, corner)
                for way_on, corners in ((True, self.corner_before), (False, self.corner_after))
                for other in edges
                if other != edge and self.joined[corner := corners[other]] == self.joined[here]
            ]
            if not choices:
                break
            wish = np.array([1.0 if corner == here else CROSSING_WEIGHT for _, _, corner in choices])
            edge, forward, _ = choices[int(generator.choice(len(choices), p=wish / wish.sum()))]
            walk.append(edge)
            walked_m += self.lengths_m[edge]
        return tuple(walk), walked_m
