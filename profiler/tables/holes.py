"""Holes in measured grids: cells between measured ones that nobody measured, or whose row was thrown away.

A hole is read off its neighbours over lengths or over batches, whichever tells more. What both miss is structure finer
than the grid: waves, splits, blocks. Kernels with the same structure (other query heads over the same KV heads; the
same heads on another KV dtype) show it at the very same cell: how far they lie off their own neighbours is added.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from splitplan.profiler.profile import Basis
from splitplan.profiler.tables.grid import BasisArray, cubic, monotone_slopes, place

FloatArray = NDArray[np.float64]
Kind = Literal["prefill", "decode"]

SHORT_PROMPT = 1024  # tokens, below which the stairs of query blocks show
SAME_STAIRS = 0.08  # median deviation of the log ratio of two kernels: bf16 and fp8 KV on H100 0.07, on L40S 0.1–0.3


@dataclass(frozen=True, slots=True)
class Sample:
    """Measured seconds over batch and length."""

    batch: FloatArray  # ascending
    length: FloatArray  # ascending
    seconds: FloatArray  # [batch, length]; NaN where not measured


def fill_holes(
    kind: Kind, sample: Sample, key_block: int, siblings: Callable[[], list[Sample]]
) -> tuple[FloatArray, BasisArray]:
    """Seconds with holes filled (what lies beyond the measured stays NaN), and the basis of each cell."""
    filled = sample.seconds.copy()
    basis = np.where(np.isnan(filled), Basis.EXTRAPOLATED, Basis.MEASURED).astype(np.uint8)
    holes = np.argwhere(_holes(filled))
    others = [other for other in siblings() if _same_stairs(sample, other)] if len(holes) else []
    for i, j in holes:
        estimate = _estimate(kind, sample, int(i), int(j), key_block)
        if estimate is not None:
            cell = (sample.batch[i], sample.length[j])
            filled[i, j] = np.exp(estimate + _shared_deviation(kind, others, cell, key_block))
            basis[i, j] = Basis.INTERPOLATED
    return filled, basis


def continue_line(length: FloatArray, seconds: FloatArray, columns: NDArray[np.intp], x: float) -> FloatArray:
    """The line through two columns of seconds[batch, length] at x; flat from one.

    Whole blocks of keys are read whatever the length, so it never falls under half its nearest column.
    """
    nearest = columns[0] if x < length[columns[0]] else columns[-1]
    if len(columns) < 2:
        return np.asarray(seconds[:, nearest])
    a, b = columns
    slope = (seconds[:, b] - seconds[:, a]) / (length[b] - length[a])
    line = seconds[:, nearest] + slope * (x - length[nearest])
    return np.asarray(np.maximum(line, 0.5 * seconds[:, nearest]))


def _holes(seconds: FloatArray) -> NDArray[np.bool_]:
    """Missing cells with measured ones on both sides, along lengths or along batches."""
    known = ~np.isnan(seconds)
    holes = np.zeros_like(known)
    for axis in (0, 1):
        before = np.maximum.accumulate(known, axis=axis)
        after = np.flip(np.maximum.accumulate(np.flip(known, axis), axis=axis), axis)
        holes |= ~known & before & after
    return holes


def _estimate(kind: Kind, sample: Sample, i: int, j: int, key_block: int) -> float | None:
    """Log seconds of one cell from the others of its line and column.

    Contexts tell more of a decode than batches do. Short prompts climb a stair with every block of queries, and batches
    tell more; of long ones both tell as much, and their mean is best. (Errors of each: docs/profiles.md.)
    """
    along_batch = _over_batches(sample, i, j)
    along_length = _over_lengths(kind, sample, i, j, key_block)
    if along_batch is None or along_length is None:
        return along_length if along_batch is None else along_batch
    if kind == "decode":
        return along_length
    return along_batch if sample.length[j] < SHORT_PROMPT else 0.5 * (along_batch + along_length)


def _shared_deviation(kind: Kind, siblings: list[Sample], cell: tuple[float, float], key_block: int) -> float:
    """Median log of measured over estimated at the same cell of the siblings; shrunk, for they are few and noisy."""
    deviations = []
    for sibling in siblings:
        i, j = np.flatnonzero(sibling.batch == cell[0]), np.flatnonzero(sibling.length == cell[1])
        if len(i) and len(j) and not np.isnan(sibling.seconds[i[0], j[0]]):
            without = sibling.seconds.copy()
            without[i[0], j[0]] = np.nan
            estimate = _estimate(kind, Sample(sibling.batch, sibling.length, without), int(i[0]), int(j[0]), key_block)
            if estimate is not None:
                deviations.append(float(np.log(sibling.seconds[i[0], j[0]])) - estimate)
    count = len(deviations)
    return float(np.median(deviations)) * count / (count + 1) if count else 0.0


def _same_stairs(one: Sample, other: Sample) -> bool:
    """Whether two kernels' times keep to a constant ratio over the cells both have."""
    rows, other_rows = np.nonzero(one.batch[:, None] == other.batch[None, :])
    columns, other_columns = np.nonzero(one.length[:, None] == other.length[None, :])
    ratios = np.log(one.seconds[np.ix_(rows, columns)] / other.seconds[np.ix_(other_rows, other_columns)])
    ratios = ratios[~np.isnan(ratios)]
    return len(ratios) > 0 and float(np.median(np.abs(ratios - np.median(ratios)))) < SAME_STAIRS


def _over_batches(sample: Sample, i: int, j: int) -> float | None:
    column = sample.seconds[:, j]
    known = np.flatnonzero(~np.isnan(column))
    if not len(known) or not known[0] < i < known[-1]:
        return None
    return float(np.log(np.interp(sample.batch[i], sample.batch[known], column[known])))


def _over_lengths(kind: Kind, sample: Sample, i: int, j: int, key_block: int) -> float | None:
    length, line = sample.length, sample.seconds[i]
    known = np.flatnonzero(~np.isnan(line))
    if not len(known) or not known[0] < j < known[-1]:
        return None
    if kind == "prefill":
        x, y = np.log(length[known]), np.log(line[known])[None, :]
        at = place(x, np.log(length[j : j + 1]))
        return float(cubic(at, x, y, monotone_slopes(x, y), np.zeros(1, dtype=np.intp))[0])
    side = known[(length[known] <= key_block) == (length[j] <= key_block)]
    if not len(side):
        return None
    if side[0] < j < side[-1]:
        return float(np.log(np.interp(length[j], length[side], line[side])))
    nearest = np.sort(side[np.argsort(np.abs(side - j))[:2]])
    return float(np.log(continue_line(length, line[None, :], nearest, float(length[j]))[0]))
