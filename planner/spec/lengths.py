"""Lengths of requests from a formula: all alike, or independent lognormals, as a joint sample of equal weights."""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np

from splitplan.planner.spec.workload import FloatArray, IntArray

NUM_ROWS_LOG2 = 11
MAX_LENGTH_TOKENS = 10_000_000
GOLDEN_RATIO = (5**0.5 - 1) / 2


def fixed_lengths(input_tokens: int, output_tokens: int) -> tuple[IntArray, IntArray]:
    """One row."""
    return np.array([input_tokens]), np.array([output_tokens])


def lognormal_lengths(
    input_mean: float, input_cv: float, output_mean: float, output_cv: float
) -> tuple[IntArray, IntArray]:
    """2,048 rows of independent lognormal lengths of given mean and coefficient of variation, at least one token each.

    The rows are a Hammersley set: row i has the i-th of the equally likely inputs and the bit-reversed i-th of the
    outputs, so that each length is an even sample of its distribution and the two do not correlate. Every value is the
    mean of its slice of the distribution, so means are exact before rounding; the spread within the last slice is
    lost, which lowers the CV by 0.3 % at 1 and 2.5 % at 2. The outputs are turned by the golden ratio, because bit
    reversal alone maps the longest input to the longest output.
    """
    order = np.arange(1 << NUM_ROWS_LOG2)
    turned = (_bit_reversed(order) + int(len(order) * GOLDEN_RATIO)) % len(order)
    return _slices(input_mean, input_cv)[order], _slices(output_mean, output_cv)[turned]


def _slices(mean: float, cv: float) -> IntArray:
    """Means of 2,048 equally likely slices of a lognormal, rounded to whole tokens.

    With sigma² = log(1 + cv²), E[X; a < Z < b] = mean · (Φ(b − sigma) − Φ(a − sigma)).
    """
    num_rows = 1 << NUM_ROWS_LOG2
    normal = NormalDist()
    sigma = math.sqrt(math.log1p(cv * cv))
    edges = [normal.inv_cdf(index / num_rows) - sigma for index in range(1, num_rows)]
    cumulative: FloatArray = np.array([0.0, *(normal.cdf(edge) for edge in edges), 1.0])
    values = np.diff(cumulative) * num_rows * mean
    return np.clip(np.rint(values), 1, MAX_LENGTH_TOKENS).astype(np.int64)


def _bit_reversed(numbers: IntArray) -> IntArray:
    reversed_bits = np.zeros_like(numbers)
    for bit in range(NUM_ROWS_LOG2):
        reversed_bits |= ((numbers >> bit) & 1) << (NUM_ROWS_LOG2 - 1 - bit)
    return reversed_bits
