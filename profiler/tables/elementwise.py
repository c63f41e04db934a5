"""Times of memory-bound kernels by the bytes they move: norms, activations and rotary embedding together.

A query does not say which of them it is, so the answer is the geometric mean of the measured kinds, each interpolated
as a correction to the roofline.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from splitplan.profiler.profile import Basis, OpTable, Timed
from splitplan.profiler.tables.grid import place
from splitplan.profiler.tables.roofline import Roofline

FloatArray = NDArray[np.float64]


class ElementwiseTable:
    """One line of corrections over bytes for each kind."""

    def __init__(self, table: OpTable, roofline: Roofline) -> None:
        self._roofline = roofline
        kinds, num_bytes = table.keys["kind"], table.keys["num_bytes"].astype(np.float64)
        self._lines = []
        for kind in np.unique(kinds):
            rows = kinds == kind
            corrections = np.log(table.seconds[rows] / roofline.elementwise(num_bytes[rows]))
            self._lines.append((np.log(num_bytes[rows]), corrections))

    def query(self, num_bytes: FloatArray) -> Timed:
        """Seconds of reading and writing `num_bytes` in all; measured kinds never agree, so at best INTERPOLATED."""
        log_bytes = np.log(np.maximum(num_bytes, 1.0))
        correction, inside = np.zeros(num_bytes.shape), np.ones(num_bytes.shape, dtype=bool)
        for knots, corrections in self._lines:
            at = place(knots, log_bytes)
            high = np.minimum(at.low + 1, len(knots) - 1)
            correction += corrections[at.low] + at.weight * (corrections[high] - corrections[at.low])
            inside &= at.inside
        seconds = self._roofline.elementwise(num_bytes) * np.exp(correction / len(self._lines))
        basis = np.where(inside, Basis.INTERPOLATED, Basis.EXTRAPOLATED).astype(np.uint8)
        return Timed(seconds, basis)
