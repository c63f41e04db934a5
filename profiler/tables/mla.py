"""Times of DeepSeek's latent attention: the whole block with its projections, as the published tables hold it."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from splitplan.catalogs.models import Mla
from splitplan.profiler.profile import Basis, OpTable, Timed
from splitplan.profiler.tables.attention import equivalent_length
from splitplan.profiler.tables.grid import pivot
from splitplan.profiler.tables.holes import Kind
from splitplan.profiler.tables.lengths import LengthGrid, make_grid
from splitplan.profiler.tables.roofline import Roofline, attended_pairs, element_bytes

FloatArray = NDArray[np.float64]

DEEPSEEK_V3 = Mla(q_lora_rank=1536, kv_lora_rank=512, qk_rope_head_dim=64, qk_nope_head_dim=128, v_head_dim=128)
DEEPSEEK_V3_HIDDEN = 7168
"""The dimensions every published row was measured at; others are scaled by the roofline."""


@dataclass(slots=True)
class MlaTable:
    """Grids over batch and length for each (weight dtype, KV dtype, heads); prefill or decode by the table's family."""

    table: OpTable
    roofline: Roofline
    _grids: dict[tuple[str, str, int], LengthGrid] = field(default_factory=dict)

    @property
    def kind(self) -> Kind:
        """Decode works in the latent space."""
        return "decode" if self.table.family == "mla_decode" else "prefill"

    def query(
        self, new: FloatArray, past: FloatArray, batch: FloatArray, heads: int, hidden: int, mla: Mla, dtype: str,
        kv_dtype: str,
    ) -> Timed:  # fmt: skip
        """Seconds of one block; decode is one new token after past = context − 1."""
        used = self._nearest(dtype, kv_dtype, heads)
        grid = self._grid(*used)
        decode = self.kind == "decode"
        length = new + past if decode else np.where(past > 0, equivalent_length(new, past, 0), new)
        seconds, basis = grid.read(batch, length)
        wanted_s = self._roofline_s(new, past, batch, heads, hidden, mla, dtype, kv_dtype)
        read_batch, read_length = grid.clamp(batch, length)
        read_s = self._grid_roofline_s(read_batch, read_length, *used)
        stands_in = used != (dtype, kv_dtype, heads) or mla != DEEPSEEK_V3 or hidden != DEEPSEEK_V3_HIDDEN
        modelled = stands_in | ((past > 0) & (not decode))
        basis = np.where(modelled, np.maximum(basis, np.uint8(Basis.EXTRAPOLATED)), basis).astype(np.uint8)
        return Timed(seconds * wanted_s / read_s, basis)

    def _roofline_s(
        self, new: FloatArray, past: FloatArray, batch: FloatArray, heads: int, hidden: int, mla: Mla, dtype: str,
        kv_dtype: str,
    ) -> FloatArray:  # fmt: skip
        pairs = batch * attended_pairs(new, past, 0)
        absorbed = self.kind == "decode"
        cached = batch * (new + past)
        return self.roofline.mla_block(
            batch * new, pairs, cached, heads, hidden, mla, dtype, kv_dtype, absorbed=absorbed
        )

    def _grid_roofline_s(
        self, batch: FloatArray, length: FloatArray, dtype: str, kv_dtype: str, heads: int
    ) -> FloatArray:
        new = np.ones_like(length) if self.kind == "decode" else length
        return self._roofline_s(new, length - new, batch, heads, DEEPSEEK_V3_HIDDEN, DEEPSEEK_V3, dtype, kv_dtype)

    def _nearest(self, dtype: str, kv_dtype: str, heads: int) -> tuple[str, str, int]:
        keys = self.table.keys
        known = set(zip(keys["dtype"].tolist(), keys["kv_dtype"].tolist(), keys["heads"].tolist(), strict=True))

        def distance(row: tuple[str, str, int]) -> tuple[float, float, float, tuple[str, str, int]]:
            weights = abs(np.log(element_bytes(row[0]) / element_bytes(dtype))) + 0.1 * (row[0] != dtype)
            cache = abs(np.log(element_bytes(row[1]) / element_bytes(kv_dtype))) + 0.1 * (row[1] != kv_dtype)
            return weights, cache, abs(np.log(row[2] / heads)), row

        return min(known, key=distance)

    def _grid(self, dtype: str, kv_dtype: str, heads: int) -> LengthGrid:
        if (dtype, kv_dtype, heads) not in self._grids:
            keys = self.table.keys
            rows = (keys["dtype"] == dtype) & (keys["kv_dtype"] == kv_dtype) & (keys["heads"] == heads)
            length = "context" if self.kind == "decode" else "new"
            (batch, lengths), seconds = pivot([keys["batch"][rows], keys[length][rows]], self.table.seconds[rows])
            self._grids[dtype, kv_dtype, heads] = make_grid(
                self.kind, batch, lengths, seconds,
                lambda b, n: self._grid_roofline_s(b, n, dtype, kv_dtype, heads),
            )  # fmt: skip
        return self._grids[dtype, kv_dtype, heads]
