"""Claims about sub-scores: little scenes, what must happen in them, and where the official rule says otherwise."""

import numpy as np
import pytest
import shapely
from hypothesis import given
from hypothesis import strategies as st
from scenes import CAR, FRONT_M, SIZE

from reflectdrive_ros.core import geometry
from reflectdrive_ros.core.domain import AgentKind
from reflectdrive_ros.scoring import metrics
from reflectdrive_ros.scoring.areas import AreaIndex, MapAreas
from reflectdrive_ros.scoring.contacts import SAMPLES, AgentTracks
from reflectdrive_ros.scoring.simulate import AX, DT_S, HEADING, STATE_SIZE, STEPS, VX, YAW_RATE, X, Y, centers

REAR = CAR.rear_axle_to_center_m - 0.5 * CAR.length_m
TIMES = DT_S * np.arange(STEPS + 1)


def driving(speed, y=0.0, heading=0.0):
    """One trajectory straight on at constant speed: (1, 41, 11)."""
    states = np.zeros((1, STEPS + 1, STATE_SIZE))
    states[0, :, X] = speed * TIMES * np.cos(heading)
    states[0, :, Y] = y + speed * TIMES * np.sin(heading)
    states[0, :, HEADING] = heading
    states[0, :, VX] = speed
    return states


def agent(x, y=0.0, speed=0.0, heading=0.0, kind=AgentKind.VEHICLE, starts_s=0.0, length=4.0, width=1.8):
    """One agent that drives straight on from `starts_s` on."""
    time = np.maximum(DT_S * np.arange(SAMPLES) - starts_s, 0.0)
    poses = np.stack([x + speed * time * np.cos(heading), y + speed * time * np.sin(heading), 0 * time + heading], -1)
    speeds = np.where(DT_S * np.arange(SAMPLES) >= starts_s, speed, 0.0)
    return poses, speeds, (length, width), kind


def tracks(*agents):
    poses, speeds, sizes, kinds = zip(*agents, strict=True)
    return AgentTracks(np.stack(poses), np.ones((len(agents), SAMPLES), bool), np.stack(speeds), sizes, kinds)


def rectangle(x0, y0, x1, y1):
    return np.array([[x0, y0], [x1, y0], [x1, y1], [x0, y1]], float)


def two_lanes(**more):
    """A road along x: the ego's lane about y = 0, 3.5 m wide, and one to its left."""
    own, left = rectangle(-50, -1.75, 150, 1.75), rectangle(-50, 1.75, 150, 5.25)
    return MapAreas(
        lanes=(own, left), lane_on_route=(True, False), roadblocks=(rectangle(-50, -1.75, 150, 5.25),), **more
    )


def nc(states, agents, areas=None, official=False):
    center = centers(states, CAR)
    flags = metrics.ego_areas(center, SIZE, areas, None)
    return float(metrics.no_collision(states, center, CAR, agents, flags, official).min())


def ttc(states, agents, areas=None, official=False, last_step=STEPS):
    center = centers(states, CAR)
    flags = metrics.ego_areas(center, SIZE, areas, None, CAR.rear_axle_to_center_m)
    return float(metrics.time_to_collision(states, center, CAR, agents, flags, last_step, official)[0])


def both(function, *arguments):
    return function(*arguments, official=True), function(*arguments, official=False)


# --- NC ---------------------------------------------------------------------------------------------------------------


def test_hitting_a_parked_car_is_a_fault_and_a_cone_is_half_of_one():
    for kind in (AgentKind.VEHICLE, AgentKind.UNKNOWN):
        assert both(nc, driving(10.0), tracks(agent(30.0, kind=kind))) == (0.0, 0.0)
    assert both(nc, driving(10.0), tracks(agent(30.0, kind=AgentKind.STATIC, length=0.5, width=0.5))) == (0.5, 0.5)


def test_touching_counts_and_a_hair_less_does_not():
    assert nc(driving(10.0), tracks(agent(FRONT_M + 40.0 + 2.0 - 1e-6))) == 0.0
    assert nc(driving(10.0), tracks(agent(FRONT_M + 40.0 + 2.0 + 1e-6))) == 1.0


def test_being_hit_from_behind_is_no_fault():
    assert both(nc, driving(5.0), tracks(agent(-15.0, speed=12.0))) == (1.0, 1.0)


def test_a_lateral_hit_is_a_fault_between_lanes_and_not_in_ones_own():
    drifting = tracks(agent(1.4, 6.0, speed=8.0, heading=-0.2))  # drifts into the ego's side
    assert both(nc, driving(8.0), drifting, two_lanes()) == (1.0, 1.0)
    assert both(nc, driving(8.0, y=1.2), drifting, two_lanes()) == (0.0, 0.0)


def test_a_parked_car_that_starts_and_rear_ends_the_ego_is_our_fault_only_officially():
    """Quirk Q1: the official code remembers the speed an agent was first observed with."""
    starter = tracks(agent(-12.0, speed=12.0, starts_s=0.5))
    assert both(nc, driving(4.0), starter) == (0.0, 1.0)


def test_an_agent_that_hit_us_is_ignored_officially_for_ever_and_by_us_until_it_lets_go():
    """It rear-ends the ego, is thrown ahead, and is then run over from behind."""
    poses, _, size, kind = agent(-3.0)
    k = np.arange(SAMPLES)
    poses[:, 0] = np.select([k < 3, k < 8], [-3.0 - 3.0 + 3.0 * k, 9.0 * DT_S * k - 3.0], 40.0)
    hit = AgentTracks(poses[None], np.ones((1, SAMPLES), bool), np.full((1, SAMPLES), 9.0), [size], [kind])
    assert both(nc, driving(10.0), hit) == (1.0, 0.0)


def test_a_contact_that_is_there_already_is_charged_only_officially():
    inside = tracks(agent(FRONT_M + 1.0))
    assert both(nc, driving(3.0), inside) == (0.0, 1.0)
    leaves_and_returns = tracks(agent(FRONT_M + 1.0, speed=0.01), agent(30.0))
    assert nc(driving(10.0), leaves_and_returns) == 0.0


def test_an_absent_agent_has_no_collision():
    there = tracks(agent(30.0))
    absent = AgentTracks(there.poses, np.zeros((1, SAMPLES), bool), there.speeds_mps, there.sizes, there.kinds)
    assert nc(driving(10.0), absent) == 1.0


# --- TTC --------------------------------------------------------------------------------------------------------------


def test_a_tailgater_is_ahead_only_officially():
    """Quirk Q2: faster and 0.9 s later it is ahead of where the ego is now; it is not ahead of the ego of then."""
    tailgater = tracks(agent(REAR - 3.5, speed=12.0))
    assert both(ttc, driving(10.0), tailgater) == (0.0, 1.0)


def test_an_agent_alongside_counts_only_off_the_lane_or_in_an_intersection():
    into_our_side = tracks(agent(3.0, 8.0, speed=3.0, heading=-np.pi / 2))
    assert both(ttc, driving(1.0), into_our_side, two_lanes()) == (1.0, 1.0)
    assert both(ttc, driving(1.0, y=1.2), into_our_side, two_lanes()) == (0.0, 0.0)
    crossing = two_lanes(intersections=(rectangle(-20, -10, 100, 10),))
    assert both(ttc, driving(1.0), into_our_side, crossing) == (0.0, 0.0)


# --- where the car is -------------------------------------------------------------------------------------------------


def test_dac_is_lost_with_one_corner():
    clear = 1.75 - 0.5 * CAR.width_m
    for offset, expected in ((clear - 0.01, 1.0), (clear + 0.01, 0.0)):
        center = centers(driving(5.0, y=-offset), CAR)
        flags = metrics.ego_areas(center, SIZE, two_lanes(), None)
        assert metrics.drivable_area(flags).min() == expected


def test_between_lanes_means_over_two_and_within_neither():
    road = two_lanes()
    for y, between in ((0.0, False), (1.0, True), (3.5, False)):
        flags = metrics.ego_areas(centers(driving(5.0, y=y), CAR), SIZE, road, None)
        assert flags.multiple_lanes.all() == between
        assert flags.multiple_lanes.any() == between


def test_more_than_64_polygons_are_distinguished():
    tiles = tuple(rectangle(x, -2, x + 1.0, 2) for x in range(150))
    center = np.zeros((1, 3, 3))
    center[0, :, 0] = [10.5, 70.5, 140.5]
    areas, size = MapAreas(tiles, (False,) * 149 + (True,), roadblocks=tiles), np.array([0.5, 0.5])
    flags = metrics.ego_areas(center, size, areas, None)
    assert not flags.off_road.any()
    assert not flags.multiple_lanes.any()
    center[0, :, 0] = [64.0, 0.0, 149.5]
    flags = metrics.ego_areas(center, size, areas, None)
    assert flags.multiple_lanes.tolist() == [[True, False, False]]
    assert flags.off_road.tolist() == [[False, True, False]]
    assert flags.off_route.tolist() == [[True, True, False]]


def test_unknown_maps_give_no_fault():
    flags = metrics.ego_areas(centers(driving(5.0), CAR), SIZE, None, None)
    assert not (flags.off_road | flags.off_route | flags.multiple_lanes | flags.in_intersection).any()


@pytest.mark.parametrize(("speed", "expected"), [(1.8, 1.0), (1.85, 0.5), (5.4, 0.5), (5.5, 0.0)])
def test_ddc_sums_eleven_steps_off_the_route(speed, expected):
    """2 m and 6 m within eleven steps of 0.1 s: limits at 1.82 and 5.45 m/s."""
    center = centers(driving(speed, y=3.5), CAR)
    flags = metrics.ego_areas(center, SIZE, two_lanes(), None)
    assert metrics.driving_direction(center, flags, spare_intersections=False)[0] == expected


def test_tlc_minds_the_connector_while_it_is_red():
    center = centers(driving(10.0), CAR)
    connector = (rectangle(20.0, -2.0, 30.0, 2.0),)
    red = np.zeros((1, STEPS + 1), bool)
    assert metrics.traffic_lights(center, CAR, connector, red)[0] == 1.0
    arrives = int(np.ceil((20.0 - FRONT_M) / 10.0 / DT_S))
    red[0, :arrives] = True
    assert metrics.traffic_lights(center, CAR, connector, red)[0] == 1.0
    red[0, arrives] = True
    assert metrics.traffic_lights(center, CAR, connector, red)[0] == 0.0


# --- progress and lane keeping ----------------------------------------------------------------------------------------


def test_progress_is_measured_along_the_centreline_and_never_negative():
    line = np.array([[-10.0, 0.0], [100.0, 0.0]])
    forward = metrics.progress(centers(driving(10.0, heading=np.pi / 3), CAR), line)
    assert forward[0] == pytest.approx(40.0 * 0.5)
    assert metrics.progress(centers(driving(-5.0), CAR), line)[0] == 0.0


def test_ego_progress_by_the_formulas_of_both_versions():
    """Columns: ours far, ours short, ours failed; reference 40 m."""
    progress, multiplier = np.array([50.0, 10.0, 30.0]), np.array([1.0, 1.0, 0.0])
    np.testing.assert_allclose(metrics.ego_progress(progress, multiplier, 40.0, masked=True), [1.0, 0.25, 0.0])
    np.testing.assert_allclose(metrics.ego_progress(progress, multiplier, 40.0, masked=False), [1.0, 0.25, 0.75])
    nobody = np.array([4.0, 0.0])
    np.testing.assert_allclose(metrics.ego_progress(nobody, np.array([1.0, 0.0]), 3.0, masked=True), [1.0, 0.0])
    np.testing.assert_allclose(metrics.ego_progress(nobody, np.array([1.0, 0.0]), 3.0, masked=False), [1.0, 1.0])


def lk(offset, areas=None, until=STEPS):
    states = driving(10.0, y=offset)
    states[0, until:, Y] = 0.0
    center = centers(states, CAR)
    line = np.array([[-10.0, 0.0], [100.0, 0.0]])
    return metrics.lane_keeping(center, line, metrics.ego_areas(center, SIZE, areas, None))[0]


def test_lk_forgives_less_than_two_seconds():
    assert lk(0.49) == 1.0
    assert lk(0.51) == 0.0
    assert lk(0.51, until=19) == 1.0
    assert lk(0.51, until=20) == 0.0


def test_lk_in_an_intersection_neither_counts_nor_interrupts():
    crossing = rectangle(9.0, -20.0, 21.0, 20.0)  # between 0.8 and 1.9 s
    assert lk(0.6, MapAreas(intersections=(crossing,))) == 0.0
    assert lk(0.6, MapAreas(intersections=(crossing,)), until=30) == 1.0
    assert lk(0.6, MapAreas(intersections=(crossing,)), until=32) == 0.0


# --- comfort ----------------------------------------------------------------------------------------------------------


def flags(states, rule):
    return metrics.comfort_flags(states, CAR, rule)[0].tolist()


def braking(deceleration, begin, end):
    states = driving(15.0)
    states[0, begin:end, AX] = -deceleration
    return states


def test_every_rule_accepts_steady_driving_and_refuses_a_long_hard_brake():
    for rule in (metrics.COMFORT_V1, metrics.COMFORT_V2, metrics.COMFORT_SANE):
        assert all(flags(driving(15.0), rule))
        assert not flags(braking(6.0, 0, 41), rule)[0]


def test_only_the_sane_rule_penalises_a_corner_driven_too_fast():
    """15 m/s with 0.4 rad/s is 6 m/s^2 sideways; simulated states carry none in ay."""
    cornering = driving(15.0)
    cornering[0, :, HEADING] = 0.4 * TIMES
    cornering[0, :, YAW_RATE] = 0.4
    assert flags(cornering, metrics.COMFORT_V1)[1]
    assert flags(cornering, metrics.COMFORT_V2)[1]
    assert not flags(cornering, metrics.COMFORT_SANE)[1]


def test_yaw_is_read_across_the_half_turn():
    turning = driving(1.0)
    turning[0, :, HEADING] = geometry.wrap(3.0 + 0.2 * TIMES)
    assert all(flags(turning, metrics.COMFORT_SANE))


def test_extended_comfort_asks_for_a_plan_like_the_one_before():
    earlier = driving(10.0)
    earlier[0, :, AX] = np.linspace(0, 2, STEPS + 1)
    same = earlier.copy()
    same[0, :-5, AX] = earlier[0, 5:, AX]  # half a second on, the same thing
    assert metrics.extended_comfort(same, earlier)[0] == 1.0
    other = same.copy()
    other[0, :, AX] -= 0.8
    assert metrics.extended_comfort(other, earlier)[0] == 0.0


# --- the fast paths equal the plain ones ------------------------------------------------------------------------------


@st.composite
def stars(draw):
    """Rings that wind once about a point: simple, mostly not convex."""
    count = draw(st.integers(3, 12))
    radius = np.array(draw(st.lists(st.floats(0.5, 20.0), min_size=count, max_size=count)))
    angle = draw(st.floats(0, 6)) + np.linspace(0, 2 * np.pi, count, endpoint=False)
    centre = np.array([draw(st.floats(-25, 25)), draw(st.floats(-25, 25))])
    return centre + radius[:, None] * np.stack([np.cos(angle), np.sin(angle)], axis=-1)


@given(st.lists(stars(), min_size=1, max_size=6), st.integers(0, 2**32 - 1), st.sampled_from([1.0, 60.0]))
def test_the_area_index_is_strict_containment(rings, seed, scale):
    """Random points, vertices, points on edges, and shapes that reach beyond the grid."""
    rings = [scale * ring for ring in rings]
    random = np.random.default_rng(seed)
    vertices = np.concatenate(rings)
    on_edges = np.concatenate([0.5 * (ring + np.roll(ring, 1, axis=0)) for ring in rings])
    points = np.concatenate([random.uniform(-50 * scale, 50 * scale, (300, 2)), vertices, on_edges])
    sets = AreaIndex(rings).sets(points)
    for number, ring in enumerate(rings):
        expected = shapely.contains_xy(shapely.Polygon(ring), points[:, 0], points[:, 1])
        np.testing.assert_array_equal((sets[:, 0] >> np.uint64(number)) & np.uint64(1), expected)


@given(st.integers(0, 2**32 - 1))
def test_lane_keeping_looks_at_every_run_of_two_seconds(seed):
    random = np.random.default_rng(seed)
    line = np.cumsum(random.normal([2.0, 0.0], 1.0, (30, 2)), axis=0)
    line[7] = line[8]
    center = np.zeros((40, 41, 3))
    at_m = np.linspace(0.0, 50.0, 41)
    center[..., :2] = geometry.sample(line, at_m)[:, :2] + np.cumsum(random.normal(0.0, 0.12, (40, 41, 2)), axis=1)
    spared = random.uniform(size=(40, 41)) < random.choice([0.0, 0.2, 0.6])
    nothing = np.zeros((40, 41), bool)
    off = shapely.distance(shapely.LineString(line), shapely.points(center[..., :2])) > 0.5
    expected = np.ones(40)
    for plan in range(40):
        running = 0
        for is_off in off[plan, ~spared[plan]]:
            running = running + 1 if is_off else 0
            if running >= 20:
                expected[plan] = 0.0
    scores = metrics.lane_keeping(center, line, metrics.EgoAreas(nothing, nothing, nothing, spared, nothing))
    np.testing.assert_array_equal(scores, expected)
