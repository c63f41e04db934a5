"""GEMM times from a table on a fixed grid of (n, k), each with its own staircase in m.

Real shapes fall between the grid's n and k. What is interpolated, in the logarithms of n and k, is the correction
log(measured / reference), where the reference is a roofline, so that bytes and FLOP of the asked shape are right by
construction. Along n the staircase has to move: a product of few columns fills the chip in the same number of waves as
one of many columns and fewer rows, so for a compute-bound product the neighbour at n' is read at m' = m · n / n', where
it has as many output tiles, and not at m. Small products are read at m.

A table that names the tile edges (…, 256, 257, 512, 513, …) is interpolated between them, and so on the stairs. One
that does not (A100) takes its stairs from the reference: whole waves of output tiles over the chip's multiprocessors.

Shapes measured off the grid, such as a model's own, are lines of their own and win where they are asked for exactly.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from splitplan.profiler.profile import Basis, OpTable, Timed
from splitplan.profiler.tables.grid import BasisArray, Place, basis_of, distinct, fill_last_axis, pivot, place
from splitplan.profiler.tables.roofline import Roofline, corner

FloatArray = NDArray[np.float64]
Rows = NDArray[np.bool_]

TILES = (
    (64, 64, 0.50),
    (64, 128, 0.65),
    (128, 64, 0.65),
    (128, 128, 0.85),
    (64, 256, 0.85),
    (128, 256, 1.0),
    (256, 128, 1.0),
)
"""(rows, columns, share of the peak rate) of the output tiles libraries choose from; the fastest is taken."""

TILE_PROLOGUE_K = 64.0  # filling the pipeline costs about one more 64-deep slice of k
ROWS_WITH_EDGES, ROWS_WITHOUT = (256.0, 1024.0), (64.0, 512.0)
"""Few and many rows: from when on tiles and waves tell a product's time. Where a table names its tile edges the stairs
are in it and only its neighbours move; chosen by leaving columns out of the tables (benchmarks/interpolation.py)."""


@dataclass(frozen=True, slots=True)
class Line:
    """One (n, k) off the grid."""

    log_m: FloatArray
    corrections: FloatArray


@dataclass(frozen=True, slots=True)
class GemmTable:
    """One dtype's grid of corrections, and the lines beside it."""

    roofline: Roofline
    dtype: str
    log_n: FloatArray
    log_k: FloatArray
    log_m: FloatArray
    corrections: FloatArray  # [n, k, m], log(measured / reference); gaps filled
    basis: BasisArray  # [n, k, m]
    stairs: bool  # the reference has the stairs, because the table does not
    lines: Mapping[tuple[int, int], Line]

    def query(self, m: FloatArray, n: FloatArray, k: FloatArray) -> Timed:
        """Seconds of C[m, n] = A[m, k] · B[k, n]; the arrays have one shape."""
        log_m, log_n = np.log(m), np.log(n)
        at_n, at_k = place(self.log_n, log_n), place(self.log_k, np.log(k))
        correction = np.zeros(m.shape)
        for side in (0, 1):
            weight = at_n.weight if side else 1.0 - at_n.weight
            rows = np.minimum(at_n.low + side, len(self.log_n) - 1)
            correction += weight * self._along_m(rows, at_k, log_m, log_n)
        basis = np.array(basis_of([at_n, at_k, place(self.log_m, log_m)], self.basis))
        for (line_n, line_k), line in self.lines.items():
            here = (n == line_n) & (k == line_k)
            if here.any():
                at_m = place(line.log_m, log_m[here])
                correction[here] = np.interp(log_m[here], line.log_m, line.corrections)
                basis[here] = basis_of([at_m], np.zeros(len(line.log_m), dtype=np.uint8))
        seconds = reference(self.roofline, m, n, k, self.dtype, stairs=self.stairs) * np.exp(correction)
        return Timed(seconds, basis)

    def _along_m(self, rows: NDArray[np.intp], at_k: Place, log_m: FloatArray, log_n: FloatArray) -> FloatArray:
        """The correction of grid row `rows`, blended between m itself and the m of as many output tiles."""
        shifted = log_m + log_n - self.log_n[rows]
        iso = _many_rows(log_m, stairs=self.stairs)
        blended = (1.0 - iso) * self._read(rows, at_k, log_m) + iso * self._read(rows, at_k, shifted)
        return np.asarray(blended)

    def _read(self, rows: NDArray[np.intp], at_k: Place, log_m: FloatArray) -> FloatArray:
        at_m = place(self.log_m, log_m)
        total = np.zeros(log_m.shape)
        for k_side in (0, 1):
            k_weight = at_k.weight if k_side else 1.0 - at_k.weight
            columns = np.minimum(at_k.low + k_side, len(self.log_k) - 1)
            low = self.corrections[rows, columns, at_m.low]
            high = self.corrections[rows, columns, np.minimum(at_m.low + 1, len(self.log_m) - 1)]
            total += k_weight * (low + at_m.weight * (high - low))
        return total


def build(table: OpTable, dtype: str, roofline: Roofline) -> GemmTable | None:
    """The grid of one dtype, or None where the table has no row of it."""
    rows = table.keys["dtype"] == dtype
    if not rows.any():
        return None
    on_grid = _grid_rows(table, rows)
    (n, k, m), seconds = pivot([table.keys[name][on_grid] for name in ("n", "k", "m")], table.seconds[on_grid])
    stairs = not _names_tile_edges(m, seconds)
    base = reference(roofline, m[None, None, :], n[:, None, None], k[None, :, None], dtype, stairs=stairs)
    filled = _fill_from_plain_fp8(table, roofline, (n, k, m), seconds) if dtype == "fp8_block" else seconds
    log_m = np.log(m)
    corrections, basis = fill_last_axis(np.log(filled / base), log_m)
    stands_in = np.isnan(seconds) & ~np.isnan(filled)
    basis = np.where(stands_in, np.maximum(basis, np.uint8(Basis.EXTRAPOLATED)), basis).astype(np.uint8)
    lines = _lines(table, rows & ~on_grid, dtype, roofline, stairs=stairs)
    return GemmTable(roofline, dtype, np.log(n), np.log(k), log_m, corrections, basis, stairs, lines)


def reference(
    roofline: Roofline, m: FloatArray, n: FloatArray, k: FloatArray, dtype: str, *, stairs: bool
) -> FloatArray:
    """The roofline, with the compute part in whole waves of output tiles if asked."""
    memory_s, compute_s = roofline.gemm_parts(m, n, k, dtype)
    if stairs:
        compute_s = compute_s * _wave_waste(roofline.gpu.sm_count, m, n, k) ** _many_rows(np.log(m), stairs=True)
    return roofline.gemm_launch_s(dtype) + corner(memory_s, compute_s)


def _many_rows(log_m: FloatArray, *, stairs: bool) -> FloatArray:
    """0 for few rows, 1 for many, between them by the logarithm."""
    few, many = np.log(ROWS_WITHOUT if stairs else ROWS_WITH_EDGES)
    return np.asarray(np.clip((log_m - few) / (many - few), 0.0, 1.0))


def _wave_waste(sm_count: int, m: FloatArray, n: FloatArray, k: FloatArray) -> FloatArray:
    """How much longer whole waves of whole tiles take than the bare FLOP, ≥ 1, under the best tile."""
    best = np.full(np.broadcast_shapes(np.shape(m), np.shape(n), np.shape(k)), np.inf)
    for rows, columns, share in TILES:
        tiles = np.ceil(m / rows) * np.ceil(n / columns)
        computed = np.ceil(tiles / sm_count) * sm_count * rows * columns
        best = np.minimum(best, computed / (m * n) / share)
    return np.asarray(best * (k + TILE_PROLOGUE_K) / k)


def _names_tile_edges(m: FloatArray, seconds: FloatArray) -> bool:
    """Whether most lines have both an m and the next one: the last row of a tile and the first of another."""
    per_m = np.sum(~np.isnan(seconds), axis=(0, 1))
    usual = m[(m >= 64) & (2 * per_m >= per_m.max())]
    return bool(np.any(np.diff(usual) == 1))


def _grid_rows(table: OpTable, rows: Rows) -> Rows:
    """The rows whose n and k are both shared by many others: the grid, as against shapes measured one by one."""
    n, n_code = distinct(table.keys["n"][rows])
    k, k_code = distinct(table.keys["k"][rows])
    pairs = np.zeros((len(n), len(k)), dtype=bool)
    pairs[n_code, k_code] = True
    per_n, per_k = pairs.sum(axis=1), pairs.sum(axis=0)
    of_grid = rows.copy()
    of_grid[rows] = (2 * per_n >= per_n.max())[n_code] & (2 * per_k >= per_k.max())[k_code]
    return of_grid


def _lines(table: OpTable, rows: Rows, dtype: str, roofline: Roofline, *, stairs: bool) -> dict[tuple[int, int], Line]:
    lines = {}
    keys = table.keys
    for n, k in sorted(set(zip(keys["n"][rows].tolist(), keys["k"][rows].tolist(), strict=True))):
        here = rows & (keys["n"] == n) & (keys["k"] == k)
        m = keys["m"][here].astype(np.float64)
        base = reference(roofline, m, np.full(m.shape, n), np.full(m.shape, k), dtype, stairs=stairs)
        lines[n, k] = Line(np.log(m), np.log(table.seconds[here] / base))
    return lines


def _fill_from_plain_fp8(
    table: OpTable, roofline: Roofline, axes: tuple[FloatArray, FloatArray, FloatArray], seconds: FloatArray
) -> FloatArray:
    """Block-scaled fp8 beyond what was measured: the per-tensor fp8 product, times the factor between the two.

    The published block-scaled tables of vLLM hold launch time for small products, which the importer drops.
    """
    plain = build(table, "fp8", roofline)
    known = ~np.isnan(seconds)
    if plain is None or known.all():
        return seconds
    n, k, m = np.broadcast_arrays(axes[0][:, None, None], axes[1][None, :, None], axes[2][None, None, :])
    plain_s = plain.query(m.ravel(), n.ravel(), k.ravel()).seconds.reshape(seconds.shape)
    factor = float(np.median(seconds[known] / plain_s[known]))
    between = np.maximum.accumulate(known, axis=2) & np.flip(np.maximum.accumulate(np.flip(known, 2), axis=2), 2)
    return np.where(known | between, seconds, factor * plain_s)
