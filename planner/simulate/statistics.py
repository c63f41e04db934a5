"""Percentiles and shares with 95 % intervals, from batch means.

Latencies of neighbouring requests are correlated, so that the textbook interval of independent samples is too narrow.
The requests of each run, in order of arrival, are cut into batches long enough to be nearly independent (20 in all, at
least 50 requests each); the statistic is taken in every batch, and its spread over k batches gives the half width
t(0.975, k − 1) · s / √k around the statistic of all requests. A share gets at least Wilson's interval, so that "all of
them" is not reported as certain.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from splitplan.planner.spec.workload import FloatArray

NUM_BATCHES = 20
FEWEST_IN_BATCH = 50

# Student's t at 0.975 by degrees of freedom, from 1.
_T_975 = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131),
    *(2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)


@dataclass(frozen=True, slots=True)
class Interval:
    """A figure with its 95 % interval; low and high are infinite when there are too few requests to say."""

    value: float
    low: float
    high: float


def student_t_975(degrees: int) -> float:
    """The 0.975 quantile of Student's t: a table up to 30 degrees of freedom, Cornish–Fisher's first terms beyond."""
    if degrees <= len(_T_975):
        return _T_975[degrees - 1]
    z = 1.959964
    return z + (z**3 + z) / (4 * degrees)


def batches(runs: Sequence[FloatArray]) -> list[FloatArray]:
    """Values of one or more runs, each in order of arrival, cut into about NUM_BATCHES batches."""
    total = sum(len(run) for run in runs)
    wanted = min(NUM_BATCHES, total // FEWEST_IN_BATCH)
    pieces: list[FloatArray] = []
    for run in runs:
        if len(run):
            pieces += np.array_split(run, max(1, round(wanted * len(run) / total)))
    return pieces


def interval(runs: Sequence[FloatArray], statistic: Callable[[FloatArray], float]) -> Interval:
    """The statistic of all values, with the interval that batch means give."""
    values = np.concatenate(list(runs)) if runs else np.empty(0)
    if not len(values):
        return Interval(math.nan, -math.inf, math.inf)
    value = statistic(values)
    of_batches = np.array([statistic(batch) for batch in batches(runs)])
    count = len(of_batches)
    if count < 2 or not np.isfinite(of_batches).all() or not math.isfinite(value):
        return Interval(value, -math.inf, math.inf)
    half = student_t_975(count - 1) * float(of_batches.std(ddof=1)) / math.sqrt(count)
    return Interval(value, value - half, value + half)


def percentile_interval(runs: Sequence[FloatArray], percentile: float) -> Interval:
    """A percentile (0 to 100) with its interval. Infinite values, of requests that never finished, count as largest."""
    found = interval(runs, lambda values: percentile_of(values, percentile))
    return Interval(found.value, max(found.low, 0.0), found.high)


def percentile_of(values: FloatArray, percentile: float) -> float:
    """The smallest value that at least `percentile` % of the values do not exceed."""
    rank = max(math.ceil(percentile / 100 * len(values) - 1e-9) - 1, 0)
    return float(np.partition(values, rank)[rank])


def mean_interval(runs: Sequence[FloatArray]) -> Interval:
    """The mean with its interval."""
    return interval(runs, lambda values: float(values.mean()))


def share_interval(runs: Sequence[FloatArray]) -> Interval:
    """The share of ones among zeros and ones, with the wider of batch means' and Wilson's interval."""
    found = mean_interval(runs)
    count = sum(len(run) for run in runs)
    if not count:
        return found
    low, high = wilson(found.value, count)
    if math.isinf(found.low):
        return Interval(found.value, low, high)
    return Interval(found.value, max(0.0, min(found.low, low)), min(1.0, max(found.high, high)))


def ratio_interval(numerators: Sequence[FloatArray], denominators: Sequence[FloatArray]) -> Interval:
    """Sum over sum, with the interval that batch means of the ratio give; NaN where the denominators sum to 0."""
    total = sum(float(values.sum()) for values in denominators)
    if total == 0:
        return Interval(math.nan, -math.inf, math.inf)
    value = sum(float(values.sum()) for values in numerators) / total
    pairs = zip(batches(numerators), batches(denominators), strict=True)
    ratios = np.array([float(part.sum()) / float(whole.sum()) for part, whole in pairs if whole.sum() > 0])
    if len(ratios) < 2:
        return Interval(value, -math.inf, math.inf)
    half = student_t_975(len(ratios) - 1) * float(ratios.std(ddof=1)) / math.sqrt(len(ratios))
    return Interval(value, value - half, value + half)


def wilson(share: float, count: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a share observed in `count` independent trials."""
    z2 = 1.959964**2
    centre = (share + z2 / (2 * count)) / (1 + z2 / count)
    half = math.sqrt(z2 * (share * (1 - share) / count + z2 / (4 * count**2))) / (1 + z2 / count)
    return max(0.0, centre - half), min(1.0, centre + half)
