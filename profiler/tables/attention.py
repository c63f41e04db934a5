"""Attention times from tables by batch and length, for each (KV dtype, head_dim, window) and each pair of head counts.

Corrections to the roofline are interpolated, bilinearly in logarithms. Attention works KV head by KV head: `heads`
over `kv_heads` at batch b does what half the heads do at batch 2b. So a pair of head counts that was not measured is
read from one with the same queries per KV head, at the batch that has as many KV heads in flight; failing that from
the nearest.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from splitplan.profiler.profile import Basis, OpTable, Timed
from splitplan.profiler.tables.grid import basis_of, fill_last_axis, interpolate, pivot, place
from splitplan.profiler.tables.roofline import Roofline, attended_pairs, element_bytes

FloatArray = NDArray[np.float64]
Heads = tuple[int, int]  # (query heads, KV heads) of one rank

FULL = 0


@dataclass(frozen=True, slots=True)
class Variant:
    """What a kernel is compiled for."""

    kv_dtype: str
    head_dim: int
    window: int  # 0 is full attention


@dataclass(frozen=True, slots=True)
class _Grid:
    log_batch: FloatArray
    log_length: FloatArray
    corrections: FloatArray  # [batch, length]
    measured: NDArray[np.bool_]


@dataclass(slots=True)
class PrefillTable:
    """Times of causal prefill attention; grids are built when first asked for."""

    table: OpTable
    roofline: Roofline
    variants: dict[Variant, NDArray[np.intp]] = field(init=False)
    _grids: dict[tuple[Variant, Heads, int], _Grid] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.variants = split_variants(self.table)

    def query(self, new: FloatArray, past: FloatArray, batch: FloatArray, heads: Heads, wanted: Variant) -> Timed:
        """Seconds for `batch` sequences of `new` tokens after `past` ones.

        A table without rows of that past is read at the length whose causal triangle has as many attended pairs.
        """
        variant = nearest_variant(self.variants, wanted)
        measured_heads = nearest_heads(self._heads(variant), heads)
        grid = self._grid(variant, measured_heads)
        length = np.where(past > 0, equivalent_length(new, past, wanted.window), new)
        scale = heads[1] / measured_heads[1]
        places = [place(grid.log_batch, np.log(batch * scale)), place(grid.log_length, np.log(length))]
        base = self.roofline.prefill_attention(
            new, past, batch, *heads, wanted.head_dim, wanted.window, wanted.kv_dtype
        )
        basis = basis_of(places, grid.measured)
        basis = worsen(basis, past > 0, variant, wanted, measured_heads, heads)
        return Timed(base * np.exp(interpolate(grid.corrections, places)), basis)

    def _heads(self, variant: Variant) -> set[Heads]:
        rows = self.variants[variant]
        return set(
            zip(self.table.keys["heads"][rows].tolist(), self.table.keys["kv_heads"][rows].tolist(), strict=True)
        )

    def _grid(self, variant: Variant, heads: Heads) -> _Grid:
        key = (variant, heads, 0)
        if key not in self._grids:
            rows = _rows_of(self.table, self.variants[variant], heads)
            rows = rows[self.table.keys["past"][rows] == 0]
            (batch, new), seconds = pivot(
                [self.table.keys["batch"][rows], self.table.keys["new"][rows]], self.table.seconds[rows]
            )
            base = self.roofline.prefill_attention(
                new[None, :], 0.0, batch[:, None], *heads, variant.head_dim, variant.window, variant.kv_dtype
            )
            self._grids[key] = _make_grid(batch, new, seconds, base)
        return self._grids[key]


@dataclass(slots=True)
class DecodeTable:
    """Times of decode attention; grids are built when first asked for."""

    table: OpTable
    roofline: Roofline
    variants: dict[Variant, NDArray[np.intp]] = field(init=False)
    _grids: dict[tuple[Variant, Heads], _Grid] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.variants = split_variants(self.table)

    def query(self, batch: FloatArray, context: FloatArray, heads: Heads, wanted: Variant) -> Timed:
        """Seconds for one token of each of `batch` sequences over `context` tokens."""
        variant = nearest_variant(self.variants, wanted)
        rows = self.variants[variant]
        keys = self.table.keys
        known = set(zip(keys["heads"][rows].tolist(), keys["kv_heads"][rows].tolist(), strict=True))
        measured_heads = nearest_heads(known, heads)
        grid = self._grid(variant, measured_heads)
        scale = heads[1] / measured_heads[1]
        places = [place(grid.log_batch, np.log(batch * scale)), place(grid.log_length, np.log(context))]
        base = self.roofline.decode_attention(batch, context, *heads, wanted.head_dim, wanted.window, wanted.kv_dtype)
        basis = basis_of(places, grid.measured)
        basis = worsen(basis, np.zeros(batch.shape, dtype=bool), variant, wanted, measured_heads, heads)
        return Timed(base * np.exp(interpolate(grid.corrections, places)), basis)

    def _grid(self, variant: Variant, heads: Heads) -> _Grid:
        key = (variant, heads)
        if key not in self._grids:
            rows = _rows_of(self.table, self.variants[variant], heads)
            (batch, context), seconds = pivot(
                [self.table.keys["batch"][rows], self.table.keys["context"][rows]], self.table.seconds[rows]
            )
            base = self.roofline.decode_attention(
                batch[:, None], context[None, :], *heads, variant.head_dim, variant.window, variant.kv_dtype
            )
            self._grids[key] = _make_grid(batch, context, seconds, base)
        return self._grids[key]


def split_variants(table: OpTable) -> dict[Variant, NDArray[np.intp]]:
    """Rows of each (KV dtype, head_dim, window)."""
    keys = table.keys
    dtypes, dtype_codes = np.unique(keys["kv_dtype"], return_inverse=True)
    packed = (dtype_codes.astype(np.int64) << 40) + (keys["head_dim"].astype(np.int64) << 24) + keys["window"]
    found, codes = np.unique(packed, return_inverse=True)
    return {
        Variant(str(dtypes[value >> 40]), int((value >> 24) & 0xFFFF), int(value & 0xFFFFFF)): np.flatnonzero(
            codes == i
        )
        for i, value in enumerate(found.tolist())
    }


def nearest_variant(known: Iterable[Variant], wanted: Variant) -> Variant:
    """The measured variant whose corrections fit best: full for full attention, then head_dim, KV dtype, window.

    A window that was not measured is better read from full attention than from a window far from it.
    """

    def distance(variant: Variant) -> tuple[float, float, float]:
        ratio = abs(np.log(variant.head_dim / wanted.head_dim))
        if (variant.window > 0) != (wanted.window > 0):
            windows = 0.7 if wanted.window > 0 else 9.0
        else:
            windows = abs(np.log(max(variant.window, 1) / max(wanted.window, 1)))
        dtypes = abs(np.log(element_bytes(variant.kv_dtype) / element_bytes(wanted.kv_dtype)))
        exact_dtype = 0.0 if variant.kv_dtype == wanted.kv_dtype else 0.1
        return windows + ratio + dtypes + exact_dtype, float(variant.head_dim), float(variant.window)

    return min(known, key=distance)


def nearest_heads(known: Iterable[Heads], wanted: Heads) -> Heads:
    """The measured head counts to read instead: same queries per KV head first, then as many KV heads."""

    def distance(heads: Heads) -> tuple[float, float, Heads]:
        group = abs(np.log((heads[0] / heads[1]) / (wanted[0] / wanted[1])))
        return round(group, 9), abs(np.log(heads[1] / wanted[1])), heads

    return min(known, key=distance)


def equivalent_length(new: FloatArray, past: FloatArray, window: int) -> FloatArray:
    """The length of a whole prompt with as many attended pairs: L(L+1)/2 of them, or the last L of a window."""
    pairs = attended_pairs(new, past, window)
    triangle = (np.sqrt(1.0 + 8.0 * pairs) - 1.0) / 2.0
    if window <= 0:
        return np.asarray(triangle)
    return np.asarray(np.where(triangle <= window, triangle, pairs / window + (window - 1.0) / 2.0))


def worsen(
    basis: NDArray[np.uint8], modelled: NDArray[np.bool_], used: Variant, wanted: Variant, used_heads: Heads,
    wanted_heads: Heads,
) -> NDArray[np.uint8]:  # fmt: skip
    """At best EXTRAPOLATED where another variant or a past stood in, INTERPOLATED where other head counts did."""
    floor = (
        Basis.EXTRAPOLATED if used != wanted else Basis.INTERPOLATED if used_heads != wanted_heads else Basis.MEASURED
    )
    worst = np.maximum(basis, np.uint8(floor))
    return np.where(modelled, np.maximum(worst, np.uint8(Basis.EXTRAPOLATED)), worst).astype(np.uint8)


def _rows_of(table: OpTable, rows: NDArray[np.intp], heads: Heads) -> NDArray[np.intp]:
    chosen = (table.keys["heads"][rows] == heads[0]) & (table.keys["kv_heads"][rows] == heads[1])
    of_heads: NDArray[np.intp] = rows[chosen]
    return of_heads


def _make_grid(batch: FloatArray, length: FloatArray, seconds: FloatArray, base: FloatArray) -> _Grid:
    log_length = np.log(length)
    corrections = fill_last_axis(np.log(seconds / base), log_length)
    return _Grid(np.log(batch), log_length, corrections, ~np.isnan(seconds))
