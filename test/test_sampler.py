"""Claims about scenes: families keep their shares, nobody starts in another, the expert drives, chance has no say."""

import hashlib

import numpy as np
import pytest

from reflectdrive_ros.core import geometry
from reflectdrive_ros.core.config import VehicleConfig
from reflectdrive_ros.core.domain import Command
from reflectdrive_ros.data import codec
from reflectdrive_ros.data.scene import FAMILIES, NOW
from reflectdrive_ros.scoring.scorer import score
from reflectdrive_ros.sim import sampler
from reflectdrive_ros.sim.expert import scenario_tags, scene_extraction
from reflectdrive_ros.sim.expert.sampling_planner import Situation, plan_experts, straight_ahead_score
from reflectdrive_ros.sim.network import towns
from reflectdrive_ros.sim.traffic import traffic_log
from reflectdrive_ros.sim.traffic.actors import ActorShape
from reflectdrive_ros.sim.traffic.scripted_actors import PULL_OUT_MPS

pytest.importorskip("libsumo", reason="SUMO is not installed (extra: sim)")
SIZE = np.array([VehicleConfig().length_m, VehicleConfig().width_m])
BOX = np.array([VehicleConfig().rear_axle_to_center_m, 0.0, 0.0])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("towns")


@pytest.fixture(scope="module")
def shard(folder):
    built = sampler.Shard("claims", 3, 45, folder, sampler.Options(pictures=False))
    return built, list(built.scenes())


@pytest.fixture(scope="module")
def log(folder):
    road_map = towns.make("claims-log", 7, folder)
    return traffic_log.record(road_map, 7, 30.0, 15.0)


def test_shares_add_up_to_a_whole():
    assert sum(FAMILIES.values()) == 100
    for size in (1, 7, 45, 100, 1000):
        shares = sampler.quotas(size)
        assert sum(shares.values()) == size
        assert all(abs(shares[name] - size * share / 100) < 1 for name, share in FAMILIES.items())


def test_a_shard_holds_the_families_in_their_shares(shard):
    built, scenes = shard
    quotas = sampler.quotas(45)
    for family, count in quotas.items():
        missing = built.counts.get(f"missing_{family}", 0)
        assert sum(scene.family == family for scene in scenes) + missing == count
    assert len(scenes) >= 40
    assert len({scene.name for scene in scenes}) == len(scenes)


def test_the_same_shard_is_the_same_to_the_last_byte(shard, folder):
    _, scenes = shard
    again = sampler.Shard("claims", 3, 45, folder, sampler.Options(pictures=False)).scenes()

    def digest(scene):
        sample = codec.sample_of(scene)
        return hashlib.sha256(b"".join(sample[name] for name in sorted(sample) if name != "__key__")).hexdigest()

    for one, other in zip(scenes[:8], again, strict=False):
        assert digest(one) == digest(other)


def test_displaced_egos_are_further_off_their_lane_and_the_expert_drives_back(folder, shard):
    """Only where the options require them: a share of 0 is tested to the last byte above and in test_scene_sets.py."""
    options = sampler.Options(pictures=False, displaced_share=1.0)
    displaced = list(sampler.Shard("claims", 3, 24, folder, options).scenes())

    def offsets(scenes):
        """(N, 2) m: lateral distance to the route, now and at the end of the expert's plan."""
        points = [np.stack([np.zeros(2), scene.expert[-1, :2]]) for scene in scenes]
        pairs = zip(scenes, points, strict=True)
        return np.abs([geometry.project(scene.route, ends)[1] for scene, ends in pairs])

    usual, displaced_offsets = offsets(shard[1]), offsets(displaced)
    assert np.median(displaced_offsets[:, 0]) > 2 * np.median(usual[:, 0])
    assert displaced_offsets[:, 0].max() > 1.0
    assert np.median(displaced_offsets[:, 1]) < 0.7 * np.median(displaced_offsets[:, 0])
    for scene in displaced:
        assert not scene_extraction.off_road(scene.areas, geometry.box_corners(BOX, SIZE)), scene.name


def test_nobody_starts_inside_another_or_off_the_road(shard):
    for scene in shard[1]:
        here = scene.tracks.present[:, NOW]
        touching = geometry.boxes_overlap(scene.tracks.poses[here, NOW], scene.tracks.sizes[here], BOX, SIZE)
        assert not touching.any(), scene.name
        assert not scene_extraction.off_road(scene.areas, geometry.box_corners(BOX, SIZE)), scene.name


def test_the_expert_neither_hits_nor_leaves_the_road_and_is_worth_imitating(shard):
    cards = [score(scene.scored(), scene.expert[None]) for scene in shard[1]]
    assert all(card.nc[0] == 1.0 and card.dac[0] == 1.0 for card in cards)
    assert np.mean([card.score[0] for card in cards]) > 0.92
    straight_on = [straight_ahead_score(scene.scored()) for scene in shard[1]]
    assert np.mean(straight_on) < 0.5


def test_the_past_leads_to_now(shard):
    for scene in shard[1]:
        np.testing.assert_allclose(scene.ego_history[-1], 0.0, atol=1e-9)
        step = np.hypot(*(scene.ego_history[-1] - scene.ego_history[-2])[:2])
        assert step == pytest.approx(0.1 * scene.ego.speed_mps, abs=0.35)
        assert (np.hypot(*np.diff(scene.ego_history[:, :2], axis=0).T) < 3.0).all()


def test_the_route_passes_the_ego_and_leads_on(shard):
    for scene in shard[1]:
        along, offset = geometry.ego_on_route(scene.route)
        assert abs(offset) < 4.0
        assert geometry.arc_lengths(scene.route)[-1] - along >= scene_extraction.MIN_ROUTE_AHEAD_M - 1.0


def test_a_turn_is_commanded_where_the_expert_turns(shard):
    turned = {"turn_left": Command.LEFT, "turn_right": Command.RIGHT}
    turns = [scene for scene in shard[1] if scene.family in turned]
    assert len(turns) >= 6
    assert all(scene.command is turned[scene.family] for scene in turns)


def test_red_lights_hold_the_expert_and_would_cost_who_ignores_them(shard):
    red = [scene for scene in shard[1] if scene.family == "red_light"]
    assert red
    for scene in red:
        assert score(scene.scored(), scene.expert[None]).tlc[0] == 1.0


def scripted_scenes(log, family):
    """Up to 20 moments of a family in which somebody is put on stage."""
    candidates = scenario_tags.find_candidates(log)
    indices = np.argwhere(candidates.masks[family] & (candidates.scripted[family] >= 0))
    assert len(indices)
    for row, column in indices[:: max(1, len(indices) // 20)]:
        step, ego, parked = (
            int(table)
            for table in (candidates.steps[row], candidates.egos[column], candidates.scripted[family][row, column])
        )
        try:
            yield step, parked, scene_extraction.extract_scene(log, step, ego, family, 5, VehicleConfig(), parked)
        except scene_extraction.NoScene:
            continue


def test_an_open_door_belongs_to_a_parked_car(log):
    scenes = list(scripted_scenes(log, "parked_door"))
    assert len(scenes) >= 3
    for step, parked, extracted in scenes:
        assert extracted.scripted.shape is ActorShape.DOOR
        gap = geometry.box_separation(
            extracted.scripted.poses[NOW], extracted.scripted.size[:2], log.poses[step, parked], log.sizes[parked, :2]
        )
        assert abs(gap) < 0.02
        assert extracted.scene.tracks.present[-1, NOW]


def test_a_parked_car_pulls_out_into_the_lane_and_touches_nobody_but_perhaps_the_ego(log):
    scenes = list(scripted_scenes(log, "cut_in"))
    assert len(scenes) >= 3
    for step, parked, extracted in scenes:
        tracks = extracted.scene.tracks
        np.testing.assert_allclose(extracted.scripted.poses[0], log.poses[step, parked])
        jumps = np.hypot(*np.diff(tracks.poses[-1, :, :2], axis=0).T)
        assert (jumps < 0.1 * PULL_OUT_MPS[1] * 1.3).all()
        _, offsets = geometry.project(extracted.scene.route, tracks.poses[-1, :, :2])
        assert abs(offsets[0]) > 1.5
        assert abs(offsets[-1]) < 0.3
        assert (tracks.poses[:-1] != tracks.poses[-1]).any(axis=(1, 2)).all()  # it is there once
        touched = geometry.boxes_overlap(tracks.poses[:-1], tracks.sizes[:-1, None], tracks.poses[-1], tracks.sizes[-1])
        assert not (touched & tracks.present[:-1]).any()


def test_the_expert_stops_at_a_wall_and_keeps_the_limit_on_a_free_road(shard):
    scene = max(shard[1], key=lambda one: one.ego.speed_mps)
    (plan,) = plan_experts([Situation(scene.scored(), scene.speed_limit_mps, stop_m=60.0)])
    assert plan.waypoints[-1, 0] < 60.0
    reach = np.hypot(*np.diff(plan.waypoints[:, :2], axis=0).T).max() / 0.5
    assert reach < max(scene.ego.speed_mps, scene.speed_limit_mps) * 1.1 + 0.5
