"""Percentiles and intervals: what they are, and that they hold as often as they say on correlated waits."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from splitplan.planner.simulate.statistics import (
    batches,
    mean_interval,
    percentile_interval,
    percentile_of,
    ratio_interval,
    share_interval,
    student_t_975,
    wilson,
)

LOAD = 0.6


def queue_waits(seed: int, count: int = 4000) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Waits of M/D/1 at service 1, by Lindley's recursion, after a warm-up: strongly correlated neighbours."""
    draw = np.random.default_rng(seed)
    steps = np.concatenate([[0.0], 1.0 - draw.exponential(1 / LOAD, count + 500)[1:]])
    walk = np.cumsum(steps)
    waits = walk - np.minimum.accumulate(walk)
    return np.asarray(waits[500:], dtype=np.float64)


def test_intervals_of_means_hold_on_a_queue_where_independent_ones_fail() -> None:
    """Of 200 runs, the 95 % interval of batch means contains the mean of M/D/1 in 180; the textbook one in few.

    The mean wait is ρ / (2 (1 − ρ)) service times (Pollaczek and Khinchine).
    """
    mean = LOAD / (2 * (1 - LOAD))
    held, naive = 0, 0
    for seed in range(200):
        waits = queue_waits(seed)
        found = mean_interval([waits])
        held += found.low <= mean <= found.high
        half = 1.96 * waits.std(ddof=1) / math.sqrt(len(waits))
        naive += abs(waits.mean() - mean) <= half
    assert held >= 180
    assert naive <= 140


def test_intervals_of_percentiles_hold() -> None:
    """The p90 of the same queue, known from a run of two million."""
    truth = percentile_of(queue_waits(1000, 2_000_000), 90)
    intervals = [percentile_interval([queue_waits(seed)], 90) for seed in range(200)]
    held = sum(found.low <= truth <= found.high for found in intervals)
    assert held >= 175


def test_a_percentile_is_the_smallest_value_that_so_many_do_not_exceed() -> None:
    values = np.array([5.0, 1.0, 4.0, 2.0, 3.0])
    assert [percentile_of(values, p) for p in (20, 50, 60, 61, 99.99)] == [1.0, 3.0, 3.0, 4.0, 5.0]
    assert percentile_interval([np.array([1.0] * 98 + [math.inf] * 2)], 99).value == math.inf


def test_student_and_wilson_are_the_textbooks() -> None:
    for degrees in (1, 5, 19, 30, 31, 60, 500):
        assert student_t_975(degrees) == pytest.approx(stats.t.ppf(0.975, degrees), rel=2e-3)
    for share, count in ((0.5, 40), (1.0, 100), (0.97, 3000)):
        expected = stats.binomtest(round(share * count), count).proportion_ci(0.95, "wilson")
        assert wilson(share, count) == pytest.approx((expected.low, expected.high), abs=1e-6)


def test_all_of_them_is_not_reported_as_certain() -> None:
    found = share_interval([np.ones(500)])
    assert (found.value, found.high) == (1.0, 1.0)
    assert 0.98 < found.low < 1.0


def test_a_share_of_tokens_is_a_ratio_of_sums() -> None:
    """Long answers weigh more than short ones; batches are cut alike for both sums."""
    slow, gaps = np.array([1.0, 0.0] * 500), np.array([10.0, 90.0] * 500)
    found = ratio_interval([slow], [gaps])
    assert found.value == pytest.approx(0.01)
    assert found.low <= 0.01 <= found.high < 0.011
    assert math.isnan(ratio_interval([np.zeros(3)], [np.zeros(3)]).value)


def test_batches_are_twenty_and_lose_nothing() -> None:
    runs = [np.arange(1500.0), np.arange(500.0)]
    pieces = batches(runs)
    assert len(pieces) == 20
    assert np.concatenate(pieces).tolist() == np.concatenate(runs).tolist()
    assert len(batches([np.arange(99.0)])) == 1
