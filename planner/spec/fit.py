"""From many requests to a small weighted sample that keeps their quantiles, means and correlation.

The sample is drawn in two steps. A k-d tree halves the requests by input and output length in turn, and the request in
the middle of every leaf stands for that leaf. The weights w of those points are then calibrated, as survey statistics
does by raking: the smallest change (in relative entropy) from the leaf shares d that makes totals right,

    minimise Σ w log(w / d) − w + d   subject to   X w = targets,   solved by   w = d exp(λᵀ X).

X holds one row for the total, for each length and each length squared, for their product, for the cached tokens, and
one indicator per quantile kept.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from splitplan.planner.spec.workload import FloatArray, IntArray

REPORTED_QUANTILES = (0.5, 0.9, 0.95, 0.99)
CLOSE_BY = (-0.002, -0.001, 0.0, 0.001, 0.002)  # around a reported quantile, so that draws hit it
KEPT_QUANTILES = (0.01, 0.05, 0.1, 0.25, 0.75, *(q + offset for q in REPORTED_QUANTILES for offset in CLOSE_BY))
WEIGHT_UNITS = 1_000_000  # weights are written as whole millionths
MAX_FITTED_REQUESTS = 200_000
MAX_GAPS = 256


@dataclass(frozen=True, slots=True)
class LengthSample:
    """A joint sample of lengths: `units[i] / WEIGHT_UNITS` is the share of requests like row i."""

    input_tokens: IntArray  # [m]
    output_tokens: IntArray  # [m]
    cached_tokens: IntArray  # [m]
    units: IntArray  # [m] adds up to WEIGHT_UNITS


def fit_lengths(
    input_tokens: IntArray, output_tokens: IntArray, cached_tokens: IntArray, *, num_points: int = 512
) -> LengthSample:
    """About `num_points` of the requests, weighted so that quantiles and moments of the lengths stay what they were.

    Of more than 200,000 requests, evenly spaced ones are used.
    """
    step = -(-len(input_tokens) // MAX_FITTED_REQUESTS)
    input_tokens, output_tokens, cached_tokens = input_tokens[::step], output_tokens[::step], cached_tokens[::step]
    num_requests = len(input_tokens)
    if num_requests <= num_points:
        units = _whole_units(np.full(num_requests, 1.0 / num_requests))
        return LengthSample(input_tokens, output_tokens, cached_tokens, units)
    lengths = np.stack([input_tokens, output_tokens, cached_tokens])
    chosen, share = _leaf_centres(lengths[:2], num_points)
    chosen, share = _with_quantile_points(lengths[:2], chosen, share)
    weight = _calibrated(lengths, lengths[:, chosen], share)
    keep = weight > 0.5 / WEIGHT_UNITS
    chosen, units = chosen[keep], _whole_units(weight[keep])
    order = np.lexsort((output_tokens[chosen], input_tokens[chosen]))
    chosen = chosen[order]
    return LengthSample(input_tokens[chosen], output_tokens[chosen], cached_tokens[chosen], units[order])


def _leaf_centres(lengths: IntArray, num_leaves: int) -> tuple[IntArray, FloatArray]:
    """Split [2, n] points by rank into leaves; the index of each leaf's most central point, and its share of points."""
    ranks = np.argsort(np.argsort(lengths, axis=1, kind="stable"), axis=1, kind="stable")
    leaves = [np.arange(lengths.shape[1])]
    axis = 0
    while 2 * len(leaves) <= num_leaves:
        halves: list[IntArray] = []
        for leaf in leaves:
            ordered = leaf[np.argsort(ranks[axis, leaf], kind="stable")]
            halves += [ordered[: len(ordered) // 2], ordered[len(ordered) // 2 :]]
        leaves, axis = halves, 1 - axis
    leaves = [leaf for leaf in leaves if len(leaf)]
    share = np.array([len(leaf) for leaf in leaves]) / lengths.shape[1]
    return np.array([_centre(ranks, leaf) for leaf in leaves]), share


def _centre(ranks: IntArray, leaf: IntArray) -> int:
    """The member of a leaf whose ranks lie nearest to the leaf's mean ranks."""
    offsets = ranks[:, leaf] - ranks[:, leaf].mean(axis=1, keepdims=True)
    return int(leaf[np.argmin((offsets**2).sum(axis=0))])


def _with_quantile_points(lengths: IntArray, chosen: IntArray, share: FloatArray) -> tuple[IntArray, FloatArray]:
    """Add the requests that are a kept quantile of a length, at a small weight that calibration then sets."""
    extra = []
    for axis in (0, 1):
        other = lengths[1 - axis]
        for value in np.quantile(lengths[axis], (0.0, *KEPT_QUANTILES, 0.999, 1.0), method="inverted_cdf"):
            ties = np.flatnonzero(lengths[axis] == value)
            extra.append(ties[np.argsort(other[ties], kind="stable")[len(ties) // 2]])
    added = np.setdiff1d(extra, chosen)
    share = np.concatenate([share, np.full(len(added), 0.2 / len(chosen))])
    return np.concatenate([chosen, added]), share / share.sum()


def _calibrated(lengths: IntArray, points: IntArray, share: FloatArray) -> FloatArray:
    """Weights of `points` [3, m] near `share` whose moments and quantile shares are those of `lengths` [3, n].

    Newton's method on the dual, Σ d exp(λᵀx) − λᵀ targets, with step halving; it is convex and smooth.
    """
    wanted = _features(lengths, lengths).mean(axis=1)
    features = _features(points, lengths)
    multipliers = np.zeros(len(wanted))

    def dual(candidate: FloatArray) -> float:
        exponent = np.minimum(candidate @ features, 50.0)
        return float(share @ np.exp(exponent) - candidate @ wanted)

    for _ in range(60):
        weight = share * np.exp(np.minimum(multipliers @ features, 50.0))
        slope = features @ weight - wanted
        if np.abs(slope).max() < 1e-9:
            break
        curvature = (features * weight) @ features.T + 1e-10 * np.eye(len(wanted))
        step = np.linalg.lstsq(curvature, -slope, rcond=1e-12)[0]
        length = 1.0
        while length > 1e-6 and dual(multipliers + length * step) > dual(multipliers) + 1e-4 * length * (slope @ step):
            length /= 2
        multipliers = multipliers + length * step
    weight = share * np.exp(np.minimum(multipliers @ features, 50.0))
    return np.asarray(weight / weight.sum())


def _features(points: IntArray, lengths: IntArray) -> FloatArray:
    """The calibration variables of each point, scaled to order one: [number of variables, number of points]."""
    scaled = points / np.maximum(lengths.mean(axis=1, keepdims=True), 1.0)
    rows = [np.ones(points.shape[1]), *scaled, *scaled[:2] ** 2, scaled[0] * scaled[1]]
    for axis in (0, 1):
        quantiles = np.unique(np.quantile(lengths[axis], KEPT_QUANTILES, method="inverted_cdf"))
        rows += [(points[axis] <= value).astype(np.float64) for value in quantiles]
    return np.stack(rows)


def _whole_units(weight: FloatArray) -> IntArray:
    """Weights rounded to whole WEIGHT_UNITS that add up exactly, by largest remainder."""
    exact = weight / weight.sum() * WEIGHT_UNITS
    units = np.floor(exact).astype(np.int64)
    short = WEIGHT_UNITS - int(units.sum())
    units[np.argsort(units - exact, kind="stable")[:short]] += 1
    return np.asarray(units)


def fit_gaps(gap_s: FloatArray, *, max_gaps: int = MAX_GAPS) -> tuple[FloatArray, IntArray]:
    """Inter-arrival times as at most `max_gaps` values with mean 1 and their weights; mean and SCV are kept.

    Long gaps, which carry the variance, are kept one by one; the rest are averaged over equal shares, and the values
    are stretched around 1 for the little variance that averaging loses.
    """
    ordered = np.sort(gap_s) / gap_s.mean()
    num_tail = min(max_gaps // 2, len(ordered))
    body, tail = ordered[: len(ordered) - num_tail], ordered[len(ordered) - num_tail :]
    parts = [part for part in np.array_split(body, max_gaps - num_tail) if len(part)]
    values = np.concatenate([[part.mean() for part in parts], tail])
    counts = np.concatenate([[len(part) for part in parts], np.ones(num_tail, dtype=np.int64)]).astype(np.int64)
    lost = np.var(ordered) / np.average((values - 1) ** 2, weights=counts) if np.var(ordered) > 0 else 1.0
    stretched = np.maximum(1 + (values - 1) * np.sqrt(lost), 0.0)
    return stretched / np.average(stretched, weights=counts), counts
