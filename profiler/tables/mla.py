"""Times of DeepSeek's latent attention: the whole block with its projections, as the published tables hold it."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from splitplan.catalogs.models import Mla
from splitplan.profiler.profile import Basis, OpTable, Timed
from splitplan.profiler.tables.attention import equivalent_length
from splitplan.profiler.tables.grid import basis_of, fill_last_axis, interpolate, pivot, place
from splitplan.profiler.tables.roofline import Roofline, attended_pairs, element_bytes

FloatArray = NDArray[np.float64]

DEEPSEEK_V3 = Mla(q_lora_rank=1536, kv_lora_rank=512, qk_rope_head_dim=64, qk_nope_head_dim=128, v_head_dim=128)
DEEPSEEK_V3_HIDDEN = 7168
"""The dimensions every published row was measured at; others are scaled by the roofline."""


@dataclass(slots=True)
class MlaTable:
    """Grids over heads, batch and length for each (weight dtype, KV dtype); prefill or decode by its family."""

    table: OpTable
    roofline: Roofline
    _grids: dict[tuple[str, str], tuple[list[FloatArray], FloatArray, NDArray[np.bool_]]] = field(default_factory=dict)

    @property
    def absorbed(self) -> bool:
        """Decode works in the latent space."""
        return self.table.family == "mla_decode"

    def query(
        self, new: FloatArray, past: FloatArray, batch: FloatArray, heads: int, hidden: int, mla: Mla, dtype: str,
        kv_dtype: str,
    ) -> Timed:  # fmt: skip
        """Seconds of one block; decode is one new token after past = context − 1."""
        used = self._nearest_dtypes(dtype, kv_dtype)
        axes, corrections, measured = self._grid(used)
        length = new + past if self.absorbed else np.where(past > 0, equivalent_length(new, past, 0), new)
        head_count = np.full(batch.shape, float(heads))
        places = [place(np.log(axis), np.log(x)) for axis, x in zip(axes, (head_count, batch, length), strict=True)]
        base = self._base(new, past, batch, heads, hidden, mla, dtype, kv_dtype)
        basis = basis_of(places, measured)
        stands_in = used != (dtype, kv_dtype) or mla != DEEPSEEK_V3 or hidden != DEEPSEEK_V3_HIDDEN
        modelled = stands_in | ((past > 0) & (not self.absorbed))
        basis = np.where(modelled, np.maximum(basis, np.uint8(Basis.EXTRAPOLATED)), basis).astype(np.uint8)
        return Timed(base * np.exp(interpolate(corrections, places)), basis)

    def _base(
        self, new: FloatArray, past: FloatArray, batch: FloatArray, heads: int, hidden: int, mla: Mla, dtype: str,
        kv_dtype: str,
    ) -> FloatArray:  # fmt: skip
        pairs = batch * attended_pairs(new, past, 0)
        cached = batch * (new + past)
        return self.roofline.mla_block(
            batch * new, pairs, cached, heads, hidden, mla, dtype, kv_dtype, absorbed=self.absorbed
        )

    def _nearest_dtypes(self, dtype: str, kv_dtype: str) -> tuple[str, str]:
        known = sorted(set(zip(self.table.keys["dtype"].tolist(), self.table.keys["kv_dtype"].tolist(), strict=True)))

        def distance(pair: tuple[str, str]) -> tuple[float, float]:
            weights = abs(np.log(element_bytes(pair[0]) / element_bytes(dtype))) + 0.1 * (pair[0] != dtype)
            return weights, abs(np.log(element_bytes(pair[1]) / element_bytes(kv_dtype))) + 0.1 * (pair[1] != kv_dtype)

        return min(known, key=distance)

    def _grid(self, dtypes: tuple[str, str]) -> tuple[list[FloatArray], FloatArray, NDArray[np.bool_]]:
        if dtypes not in self._grids:
            keys = self.table.keys
            rows = (keys["dtype"] == dtypes[0]) & (keys["kv_dtype"] == dtypes[1])
            length = "context" if self.absorbed else "new"
            axes, seconds = pivot([keys[name][rows] for name in ("heads", "batch", length)], self.table.seconds[rows])
            heads, batch, lengths = axes
            corrections = np.empty_like(seconds)
            for i, head_count in enumerate(heads):
                new = np.ones_like(lengths) if self.absorbed else lengths
                base = self._base(
                    new[None, :], (lengths - new)[None, :], batch[:, None], int(head_count), DEEPSEEK_V3_HIDDEN,
                    DEEPSEEK_V3, *dtypes,
                )  # fmt: skip
                corrections[i] = np.log(seconds[i] / base)
            self._grids[dtypes] = axes, fill_last_axis(corrections, np.log(lengths)), ~np.isnan(seconds)
        return self._grids[dtypes]
