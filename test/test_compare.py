"""Comparing replays: what is equal stays equal, what differs is found, and plans that err alike do not count twice."""

import numpy as np
import pytest

from reflectdrive_ros.replay import compare
from reflectdrive_ros.replay.compare import assign_clusters, difference, pair_stamps

BEGIN_NS = 1_700_000_000_000_000_000
INTERVAL_NS = 100_000_000


def stamps(seconds, begin_ns=BEGIN_NS):
    return begin_ns + INTERVAL_NS * np.arange(round(10 * seconds))


def errors_of_drives(drives, count, generator, correlation=0.95):
    """(drives, count) AR(1) of spread 1: at 10 Hz, 0.95 remembers for two seconds."""
    values = generator.normal(size=(drives, count))
    for k in range(1, count):
        values[:, k] = correlation * values[:, k - 1] + np.sqrt(1 - correlation**2) * values[:, k]
    return values


def errors_of_a_drive(count, generator):
    return 0.5 * errors_of_drives(1, count, generator)[0]


def compared(a, b, clusters, seed=0):
    return difference(a, b, clusters, np.random.default_rng(seed))


# --- pairs -----------------------------------------------------------------------------------------------------------


def test_plans_at_most_a_little_apart_pair_and_a_missing_one_leaves_its_partner_alone():
    first = stamps(5)
    assert [each.tolist() for each in pair_stamps(first, first)] == [list(range(50))] * 2
    second = np.delete(first + 30_000_000, 17)
    a, b = pair_stamps(first, second)
    assert np.array_equal(a, np.delete(np.arange(50), 17))
    assert np.array_equal(b, np.arange(49))
    assert np.array_equal(pair_stamps(second, first), (b, a))
    for other in (stamps(5, BEGIN_NS + 86_400 * 10**9), np.zeros(0, np.int64)):  # of another day, or none
        assert len(pair_stamps(first, other)[0]) == 0


def test_a_plan_pairs_once():
    dense = BEGIN_NS + INTERVAL_NS // 2 * np.arange(100)
    a, b = pair_stamps(stamps(5), dense)
    assert len(a) == len(set(b.tolist())) == 50
    assert np.array_equal(dense[b], stamps(5)[a])


# --- clusters --------------------------------------------------------------------------------------------------------


def test_many_bags_are_a_cluster_each_and_few_are_cut_into_stretches_that_no_two_bags_share():
    many = assign_clusters({f"bag{k}": stamps(25) for k in range(compare.BAGS_MIN)})
    assert [set(some.tolist()) for some in many.values()] == [{k} for k in range(compare.BAGS_MIN)]
    few = assign_clusters({"one": stamps(35), "none": stamps(0), "two": stamps(4)})
    assert sorted(set(few["one"].tolist())) == [0, 1, 2]
    assert np.bincount(few["one"]).min() >= 100  # no stretch is shorter than 10 s
    assert set(few["two"].tolist()) == {3}
    assert len(few["none"]) == 0


# --- differences -----------------------------------------------------------------------------------------------------


def test_a_replay_does_not_differ_from_itself():
    values = errors_of_a_drive(3000, np.random.default_rng(1))
    for clusters in (np.arange(3000) // 100, np.arange(3000) // 300):
        same = compared(values, values, clusters)
        assert (same.difference, same.interval, same.p, same.is_significant) == (0.0, (0.0, 0.0), 1.0, False)


def test_a_shift_of_known_size_is_found_and_its_interval_holds_it():
    generator = np.random.default_rng(2)
    a = 2.0 + errors_of_a_drive(6000, generator)
    b = a + 0.3 + 0.4 * errors_of_a_drive(6000, generator)
    difference = compared(a, b, np.arange(6000) // 100)
    assert difference.is_significant
    assert difference.p < 0.001
    assert difference.interval[0] < 0.3 < difference.interval[1]
    assert difference.interval[1] - difference.interval[0] < 0.2
    other_way = compared(b, a, np.arange(6000) // 100)
    assert other_way.difference == pytest.approx(-difference.difference)
    assert other_way.p == pytest.approx(difference.p, abs=0.002)


@pytest.mark.parametrize(
    ("bags", "seconds", "at_most"),
    [  # stretches of a bag know a little of each other
        (1, 80, 0.10),
        pytest.param(3, 100, 0.10, marks=pytest.mark.long),
        (8, 60, 0.08),
        pytest.param(20, 30, 0.08, marks=pytest.mark.long),
    ],
)
def test_correlated_plans_do_not_make_it_falsely_sure(bags, seconds, at_most):
    """Two planners that differ by noise alone, many times over: about one in twenty comparisons claims a difference.
    Plans taken for independent would claim it more often than not."""
    trials, generator = 400, np.random.default_rng(4)
    clusters = assign_clusters({f"bag{k}": stamps(seconds) for k in range(bags)})
    joined = np.concatenate(list(clusters.values()))
    claims = {"interval": 0, "flips": 0, "shown": 0, "plans": 0}
    drives = errors_of_drives(trials * bags, 10 * seconds, generator).reshape(trials, -1)
    for trial, b in enumerate(drives):
        difference = compared(np.zeros(len(b)), b, joined, seed=trial)
        claims["interval"] += not difference.interval[0] <= 0 <= difference.interval[1]
        claims["flips"] += difference.p < 0.05
        claims["shown"] += difference.is_significant
        claims["plans"] += abs(b.mean()) > 1.96 * b.std() / np.sqrt(len(b))
    shares = {name: count / trials for name, count in claims.items()}
    assert 0.02 <= shares["flips"] <= at_most
    assert 0.02 <= shares["interval"] <= 0.12
    assert 0.02 <= shares["shown"] <= at_most
    assert shares["plans"] > 0.5


def test_two_clusters_show_nothing_however_clear_they_look():
    a = np.zeros(300)
    difference = compared(a, a + 5.0, np.arange(300) // 150)
    assert difference.interval is None
    assert not difference.is_significant
    assert difference.p is None


def test_the_p_value_of_few_clusters_counts_every_pattern_of_signs():
    difference = compared(np.zeros(8), np.ones(8), np.arange(8))
    assert difference.p == 2 / 2**8
    assert difference.interval == (1.0, 1.0)
