"""Times measured over batch and length: how attention tables are interpolated.

Time grows with the work in whole rounds of the chip, so between batches it is linear. Over a prompt's length it is
a monotone cubic through the logarithms. Over a decode's context it is linear, except for one step: where the context
outgrows one block of keys, a second block and the pass that combines them begin. Where that is, is read off the data.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from splitplan.profiler.profile import Basis
from splitplan.profiler.tables.grid import BasisArray, basis_of, cubic, interpolate, monotone_slopes, place
from splitplan.profiler.tables.holes import Kind, Sample, continue_line, fill_holes

FloatArray = NDArray[np.float64]

KEY_BLOCKS = (128, 64, 256)
"""Keys per block of the kernels in use, most common first."""

STEP_THRESHOLD = 1.03  # a smaller rise from one context to the next is noise


@dataclass(frozen=True, slots=True)
class LengthGrid:
    """Seconds on a grid of batches and lengths, gaps filled."""

    kind: Kind
    batch: FloatArray  # ascending
    length: FloatArray  # ascending; a decode grid has one knot more, just after its step
    seconds: FloatArray  # [batch, length]
    basis: BasisArray  # [batch, length]
    slopes: FloatArray  # [batch, length] of log seconds over log length; prefill only

    def read(self, batch: FloatArray, length: FloatArray) -> tuple[FloatArray, BasisArray]:
        """Seconds and basis at batches and lengths clamped to the grid."""
        at_batch = place(self.batch, batch)
        if self.kind == "decode":
            at_length = place(self.length, length)
            return interpolate(self.seconds, [at_batch, at_length]), basis_of([at_batch, at_length], self.basis)
        log_length, log_seconds = np.log(self.length), np.log(self.seconds)
        at_length = place(log_length, np.log(length))
        high = np.minimum(at_batch.low + 1, len(self.batch) - 1)
        low_s = np.exp(cubic(at_length, log_length, log_seconds, self.slopes, at_batch.low))
        high_s = np.exp(cubic(at_length, log_length, log_seconds, self.slopes, high))
        seconds = low_s + at_batch.weight * (high_s - low_s)
        return seconds, basis_of([at_batch, at_length], self.basis)

    def clamp(self, batch: FloatArray, length: FloatArray) -> tuple[FloatArray, FloatArray]:
        """The nearest batch and length on the grid."""
        return (
            np.clip(batch, self.batch[0], self.batch[-1]),
            np.clip(length, self.length[0], self.length[-1]),
        )


def make_grid(
    kind: Kind,
    batch: FloatArray,
    length: FloatArray,
    seconds: FloatArray,
    roofline: Callable[[FloatArray, FloatArray], FloatArray],
    key_block: int = 0,
    siblings: Callable[[], list[Sample]] = list,
) -> LengthGrid:
    """From seconds[batch, length] with NaN where nothing was measured; `roofline(batch, length)` carries it beyond.

    `siblings` are samples of kernels that climb the same stairs; they are asked for only where there is a hole.
    """
    filled, basis = fill_holes(kind, Sample(batch, length, seconds), key_block, siblings)
    base = roofline(batch[:, None], length[None, :])
    for lines, lines_base in ((filled, base), (filled.T, base.T)):
        _extend(lines, lines_base)
    if kind == "prefill":
        slopes = monotone_slopes(np.log(length), np.log(filled))
        return LengthGrid(kind, batch, length, filled, basis, slopes)
    length, filled, basis = _add_step(length, filled, basis, key_block)
    return LengthGrid(kind, batch, length, filled, basis, np.zeros((0, 0)))


def find_key_block(context: FloatArray, seconds: FloatArray) -> int:
    """Keys per block, from seconds[line, context] of small batches: the context after which time steps up; 0 if none.

    The step lies between two measured contexts; of the block sizes in use between them the most common is taken.
    """
    near = context <= 4 * max(KEY_BLOCKS)
    context, seconds = context[near], seconds[:, near]
    if len(context) < 2:
        return 0
    ratios = seconds[:, 1:] / seconds[:, :-1]
    known = ~np.isnan(ratios).all(axis=0) & (context[:-1] <= max(KEY_BLOCKS))
    rises = np.zeros(len(context) - 1)
    rises[known] = np.nanmedian(ratios[:, known], axis=0)
    step = int(np.argmax(rises))
    if rises[step] <= STEP_THRESHOLD:
        return 0
    return next((block for block in KEY_BLOCKS if context[step] <= block < context[step + 1]), 0)


def _extend(lines: FloatArray, base: FloatArray) -> None:
    """In place: what is missing at either end of a line is its last known value times the roofline's ratio."""
    for line, line_base in zip(lines, base, strict=True):
        known = np.flatnonzero(~np.isnan(line))
        if len(known):
            for j in np.flatnonzero(np.isnan(line)):
                nearest = known[np.argmin(np.abs(known - j))]
                line[j] = line[nearest] * line_base[j] / line_base[nearest]


def _add_step(
    length: FloatArray, seconds: FloatArray, basis: BasisArray, key_block: int
) -> tuple[FloatArray, FloatArray, BasisArray]:
    """Two knots at the step: the last context of one block, and the first of two, each continued from its own side."""
    below, above = np.flatnonzero(length <= key_block), np.flatnonzero(length > key_block)
    if key_block <= 0 or not len(below) or not len(above):
        return length, seconds, basis
    knots = [(float(key_block + 1), continue_line(length, seconds, above[:2], float(key_block + 1)))]
    if length[below[-1]] < key_block:
        knots.insert(0, (float(key_block), continue_line(length, seconds, below[-2:], float(key_block))))
    for x, column in knots:
        if x in length:
            continue
        at = int(np.searchsorted(length, x))
        length = np.insert(length, at, x)
        seconds = np.insert(seconds, at, column, axis=1)
        basis = np.insert(basis, at, Basis.INTERPOLATED, axis=1)
    return length, seconds, basis
