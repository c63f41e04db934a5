"""Attention times from tables by batch and length, for each (KV dtype, head_dim, window) and each pair of head counts.

Attention works KV head by KV head: `heads` over `kv_heads` at batch b does what half the heads do at batch 2b. So a
pair of head counts that was not measured is read from one with the same queries per KV head, at the batch that has as
many heads in flight; failing that from the nearest. Whatever stands in for something else (head counts, window,
head_dim, KV dtype, lengths beyond the table, a past) is scaled by the ratio of the two rooflines; the basis says so.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from splitplan.profiler.profile import Basis, OpTable, Timed
from splitplan.profiler.tables.grid import BasisArray, distinct, interpolate, pivot, place
from splitplan.profiler.tables.holes import Kind, Sample
from splitplan.profiler.tables.lengths import LengthGrid, find_key_block, make_grid
from splitplan.profiler.tables.roofline import Roofline, attended_pairs, element_bytes

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.intp]
Heads = tuple[int, int]  # (query heads, KV heads) of one rank


@dataclass(frozen=True, slots=True)
class Variant:
    """What a kernel is compiled for."""

    kv_dtype: str
    head_dim: int
    window: int  # 0 is full attention


@dataclass(slots=True)
class AttentionTable:
    """Times of prefill or decode attention (the table's family says which); grids are built when first asked for."""

    table: OpTable
    roofline: Roofline
    variants: dict[Variant, IntArray] = field(init=False)
    _grids: dict[tuple[Variant, Heads], LengthGrid] = field(default_factory=dict)
    _samples: dict[tuple[Variant, Heads], Sample] = field(default_factory=dict)
    _key_blocks: dict[Variant, int] = field(default_factory=dict)
    _past: dict[tuple[Variant, Heads], PastCorrection | None] = field(default_factory=dict)
    _read_instead: dict[tuple[Variant, Heads], tuple[Variant, Heads]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.variants = split_variants(self.table)

    @property
    def kind(self) -> Kind:
        """Which of the two families this is."""
        return "decode" if self.table.family == "decode_attention" else "prefill"

    def decode(self, batch: FloatArray, context: FloatArray, heads: Heads, wanted: Variant) -> Timed:
        """Seconds for one token of each of `batch` sequences over `context` tokens."""
        variant, used = self._nearest(heads, wanted)
        seen = batch * (heads[1] / used[1])
        wanted_s = self._roofline_s(batch, context, 0.0, heads, wanted)
        timed = self._scaled(variant, used, seen, context, wanted_s)
        return Timed(timed.seconds, _worsen(timed.basis, variant, wanted, used, heads))

    def prefill(self, new: FloatArray, past: FloatArray, batch: FloatArray, heads: Heads, wanted: Variant) -> Timed:
        """Seconds for `batch` sequences of `new` tokens after `past` ones.

        Without rows of a past, the time of the prompt whose causal triangle has as many attended pairs.
        """
        variant, used = self._nearest(heads, wanted)
        timed = self._by_pairs(new, past, batch, variant, used, heads, wanted)
        basis = _worsen(timed.basis, variant, wanted, used, heads)
        correction = self._past_correction(variant, used)
        if correction is not None:
            return correction.apply(Timed(timed.seconds, basis), new, past)
        modelled = np.maximum(basis, np.uint8(Basis.EXTRAPOLATED))
        return Timed(timed.seconds, np.where(past > 0, modelled, basis).astype(np.uint8))

    def _by_pairs(
        self, new: FloatArray, past: FloatArray, batch: FloatArray, variant: Variant, used: Heads, heads: Heads,
        wanted: Variant,
    ) -> Timed:  # fmt: skip
        seen = batch * (heads[0] / used[0])
        length = np.where(past > 0, equivalent_length(new, past, variant.window), new)
        return self._scaled(variant, used, seen, length, self._roofline_s(batch, new, past, heads, wanted))

    def _scaled(
        self, variant: Variant, used: Heads, batch: FloatArray, length: FloatArray, wanted_s: FloatArray
    ) -> Timed:
        """The grid's seconds times the ratio of the wanted roofline and the roofline of what was read."""
        grid = self._grid(variant, used)
        seconds, basis = grid.read(batch, length)
        read_s = self._roofline_s(*grid.clamp(batch, length), 0.0, used, variant)
        return Timed(seconds * wanted_s / read_s, basis)

    def _roofline_s(
        self, batch: FloatArray, length: FloatArray, past: FloatArray | float, heads: Heads, variant: Variant
    ) -> FloatArray:
        shape = (*heads, variant.head_dim, variant.window, variant.kv_dtype)
        if self.kind == "decode":
            return self.roofline.decode_attention(batch, length, *shape)
        return self.roofline.prefill_attention(length, past, batch, *shape)

    def _nearest(self, heads: Heads, wanted: Variant) -> tuple[Variant, Heads]:
        """The measured variant and head counts to read."""
        if (wanted, heads) not in self._read_instead:
            variant = nearest_variant(self.variants, wanted)
            rows, keys = self.variants[variant], self.table.keys
            self._read_instead[wanted, heads] = variant, nearest_heads(_head_pairs(keys, rows), heads)
        return self._read_instead[wanted, heads]

    def _grid(self, variant: Variant, heads: Heads) -> LengthGrid:
        if (variant, heads) not in self._grids:
            sample = self._sample(variant, heads)
            self._grids[variant, heads] = make_grid(
                self.kind, sample.batch, sample.length, sample.seconds,
                lambda b, n: self._roofline_s(b, n, 0.0, heads, variant),
                self._key_block(variant) if self.kind == "decode" else 0,
                lambda: self._siblings(variant, heads),
            )  # fmt: skip
        return self._grids[variant, heads]

    def _sample(self, variant: Variant, heads: Heads) -> Sample:
        """The rows without a past where there are any, else all of them, by the tokens that are new."""
        if (variant, heads) in self._samples:
            return self._samples[variant, heads]
        rows = self._rows_of(variant, heads)
        length = "context" if self.kind == "decode" else "new"
        if self.kind == "prefill" and np.any(self.table.keys["past"][rows] == 0):
            rows = rows[self.table.keys["past"][rows] == 0]
        (batch, lengths), seconds = pivot(
            [self.table.keys[name][rows] for name in ("batch", length)], self.table.seconds[rows]
        )
        self._samples[variant, heads] = Sample(batch, lengths, seconds)
        return self._samples[variant, heads]

    def _siblings(self, variant: Variant, heads: Heads) -> list[Sample]:
        """Kernels that take the same steps: other query heads over the same KV heads; for prefill, other KV dtypes."""
        if self.kind == "decode":
            keys, rows = self.table.keys, self.variants[variant]
            others = {h for h in _head_pairs(keys, rows) if h[1] == heads[1] and h != heads}
            return [self._sample(variant, other) for other in sorted(others)]
        twins = [
            v for v in self.variants if v != variant and (v.head_dim, v.window) == (variant.head_dim, variant.window)
        ]
        return [self._sample(twin, heads) for twin in twins if len(self._rows_of(twin, heads))]

    def _rows_of(self, variant: Variant, heads: Heads) -> IntArray:
        rows = self.variants[variant]
        chosen = (self.table.keys["heads"][rows] == heads[0]) & (self.table.keys["kv_heads"][rows] == heads[1])
        of_heads: IntArray = rows[chosen]
        return of_heads

    def _key_block(self, variant: Variant) -> int:
        if variant not in self._key_blocks:
            keys, rows = self.table.keys, self.variants[variant]
            rows = rows[keys["batch"][rows] == keys["batch"][rows].min()]
            lines = keys["heads"][rows].astype(np.int64) * 1000 + keys["kv_heads"][rows]
            (_, context), seconds = pivot([lines, keys["context"][rows]], self.table.seconds[rows])
            self._key_blocks[variant] = find_key_block(context, seconds)
        return self._key_blocks[variant]

    def _past_correction(self, variant: Variant, heads: Heads) -> PastCorrection | None:
        if (variant, heads) not in self._past:
            rows = self._rows_of(variant, heads)
            rows = rows[self.table.keys["past"][rows] > 0]
            self._past[variant, heads] = self._fit_past(rows, variant, heads) if len(rows) else None
        return self._past[variant, heads]

    def _fit_past(self, rows: IntArray, variant: Variant, heads: Heads) -> PastCorrection:
        keys = self.table.keys
        new, past, batch = (keys[name][rows].astype(np.float64) for name in ("new", "past", "batch"))
        predicted = self._by_pairs(new, past, batch, variant, heads, heads, variant).seconds
        order = np.lexsort((past, new))
        ratios = np.log(self.table.seconds[rows] / predicted)[order]
        _, first = np.unique(np.stack([new[order], past[order]]), axis=1, return_index=True)
        medians = np.array([np.median(part) for part in np.split(ratios, np.sort(first)[1:])])
        at = order[np.sort(first)]
        (news, pasts), grid = pivot([keys["new"][rows][at], keys["past"][rows][at]], medians)
        return PastCorrection(news, pasts, grid)


@dataclass(frozen=True, slots=True)
class PastCorrection:
    """What measured rows with a past say against the model of equal pairs: log ratios over new and past tokens."""

    new: FloatArray
    past: FloatArray
    log_ratios: FloatArray  # [new, past]; NaN where not measured

    def apply(self, timed: Timed, new: FloatArray, past: FloatArray) -> Timed:
        """Corrects points that have a past; inside the measured range they are interpolated, not modelled."""
        known = np.nan_to_num(self.log_ratios, nan=float(np.nanmedian(self.log_ratios)))
        knots = np.concatenate([[0.0], np.log1p(self.past)])  # without a past there is nothing to correct
        padded = np.concatenate([np.zeros((len(self.new), 1)), known], axis=1)
        places = [place(np.log(self.new), np.log(new)), place(knots, np.log1p(past))]
        seconds = timed.seconds * np.exp(interpolate(padded, places))
        floor = np.where(places[0].inside & places[1].inside, Basis.INTERPOLATED, Basis.EXTRAPOLATED).astype(np.uint8)
        return Timed(seconds, np.where(past > 0, np.maximum(timed.basis, floor), timed.basis).astype(np.uint8))


def split_variants(table: OpTable) -> dict[Variant, IntArray]:
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
    """The measured variant that stands in best: in window first, then head_dim and KV dtype.

    A window that was not measured is better read from full attention than from a window more than twice off.
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
    """The length of a whole prompt with as many attended pairs: L(L+1)/2 of them, or `window` for each beyond it."""
    pairs = attended_pairs(new, past, window)
    triangle = (np.sqrt(1.0 + 8.0 * pairs) - 1.0) / 2.0
    if window <= 0:
        return np.asarray(triangle)
    return np.asarray(np.where(triangle <= window, triangle, pairs / window + (window - 1.0) / 2.0))


def _head_pairs(keys: Mapping[str, NDArray[Any]], rows: IntArray) -> set[Heads]:
    packed, _ = distinct(keys["heads"][rows].astype(np.int64) * 1024 + keys["kv_heads"][rows])
    return {(int(pair) // 1024, int(pair) % 1024) for pair in packed}


def _worsen(basis: BasisArray, used: Variant, wanted: Variant, used_heads: Heads, heads: Heads) -> BasisArray:
    """At best EXTRAPOLATED where another variant stood in, INTERPOLATED where other head counts did."""
    same_group = used_heads[0] * heads[1] == used_heads[1] * heads[0]
    floor = Basis.MEASURED
    if used != wanted or not same_group:
        floor = Basis.EXTRAPOLATED
    elif used_heads != heads:
        floor = Basis.INTERPOLATED
    return np.maximum(basis, np.uint8(floor)).astype(np.uint8)
