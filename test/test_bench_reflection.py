"""`bench reflection`: scenes fall into groups, worlds are chosen by their road, drives are compared world by world."""

from types import SimpleNamespace

import numpy as np
import pytest
import shapely

from reflectdrive_ros.bench import reflection, reflection_drives
from reflectdrive_ros.bench.reflection_variants import BASE, configured, make_variants
from reflectdrive_ros.core import geometry
from reflectdrive_ros.core.config import Config
from reflectdrive_ros.core.lanes import Lane
from reflectdrive_ros.maps.roads import RoadType


def world(radius_m, limit_mps=12.0, across_junction=None, road_type=RoadType.PLAIN):
    """A route of 60 m straight on, then along an arc; one lane is the whole road."""
    straight = np.stack([np.arange(-30.0, 60.0, 2.0), np.zeros(45)], axis=1)
    turned = np.arange(0.0, min(80.0 / radius_m, 3.0), 2.0 / radius_m)
    arc = np.stack([60 + radius_m * np.sin(turned), radius_m * (1 - np.cos(turned))], axis=1)
    line = np.concatenate([straight, arc])
    poses = np.concatenate([line, geometry.headings_along(line)[:, None]], axis=1)
    road = SimpleNamespace(
        lane=Lane(line, (shapely.box(-200, -200, 200, 200),), (), (), (), limit_mps),
        across_junction=across_junction,
        road_type=road_type,
    )
    seen = SimpleNamespace(route_limits_mps=np.full(len(line), limit_mps))
    return SimpleNamespace(route=poses, observation=lambda: seen, road_map=SimpleNamespace(lanes={0: road}))


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        (world(1e6), False),
        (world(40.0), True),  # 3.6 m/s^2 at the limit
        (world(40.0, limit_mps=8.0), False),
        (world(40.0, across_junction=3), False),
        (world(40.0, road_type=RoadType.ROUNDABOUT), False),
    ],
)
def test_a_world_has_a_bend_where_its_road_asks_for_lateral_acceleration_at_the_limit(made, expected):
    assert reflection_drives.has_bend(made) is expected


def test_variants_change_guidance_and_reflection_only():
    base, guided, reflected, plain = make_variants([0.9, 1.0])
    assert [each.name for each in (base, guided, reflected, plain)] == [
        BASE,
        "guidance 0.9",
        "guidance 0.9, reflection",
        "guidance 1, reflection",
    ]
    made = configured(Config(), reflected, repair=False).reflexdiffusion
    assert (made.guidance, made.reflection, made.repair) == (0.9, True, False)
    assert made.steps == Config().reflexdiffusion.steps


def drive(pdms, comfort, plans, reflecting, reflected, kept):
    log = SimpleNamespace(comfort=comfort)
    result = SimpleNamespace(scores=np.array(pdms), log=log)
    return reflection_drives.Drive(result, plans, reflecting, reflected, kept)


def test_drives_are_compared_world_by_world(monkeypatch):
    monkeypatch.setattr(
        reflection_drives,
        "drive_metrics",
        lambda results: {"drives": len(results), "planning_ms": {"mean": 1.0}},
    )
    variants = make_variants([1.0])
    drives = {
        (BASE, 3): drive([0.5, 0.7], 1.0, 10, 0, 0, 0),
        (BASE, 4): drive([0.9], 1.0, 10, 0, 0, 0),
        ("guidance 1, reflection", 3): drive([0.7], 0.5, 10, 4, 8, 2),
        ("guidance 1, reflection", 4): drive([1.0], 1.0, 10, 0, 0, 0),
    }
    rows = reflection_drives.summarise(drives, variants, [3, 4], 10)
    assert rows[BASE]["to_base"] == 0.0
    row = rows["guidance 1, reflection"]
    assert row["to_base"] == pytest.approx(10.0)
    assert row["to_base_95"] == pytest.approx([10.0, 10.0])
    assert row["comfort_to_base"] == pytest.approx(-25.0)
    assert (row["reflected_percent"], row["reflected_steps_percent"], row["kept_percent"]) == (20.0, 4.0, 25.0)


def test_groups_are_the_limits_of_handling_and_all_others():
    def scene(family, base, changed):
        plans = {
            name: reflection.PlanResult([value] * 8, reflected, 0, 1.0)
            for name, value, reflected in ((BASE, base, 0), ("guidance 1, reflection", changed, 2))
        }
        return reflection.SceneResult(family, plans)

    found = [scene("curve", 0.5, 0.5), scene(reflection.LIMITS, 0.5, 0.75)]
    groups = reflection.group_scenes(found)
    assert {name: len(some) for name, some in groups.items()} == {
        "all": 2,
        "high_lateral_acceleration": 1,
        "elsewhere": 1,
    }
    rows = reflection.summarise(groups[reflection.LIMITS], make_variants([1.0]), 10)
    assert rows["guidance 1, reflection"]["to_base"] == pytest.approx(25.0)
    assert rows["guidance 1, reflection"]["reflected_steps_percent"] == pytest.approx(20.0)
    assert list(reflection.group_scenes(found[:1])) == ["all"]
