"""Operation times for the step model: the profile's tables where they reach, a roofline where they do not.

All methods broadcast their array arguments and return `Timed`: seconds, and for each point where the number comes from.
Shapes are those of one rank; no work takes no time. An `OpTimes` builds its look-ups when they are first needed, and
keeps them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from splitplan.catalogs.errors import InputError, Problem
from splitplan.catalogs.gpus import Gpu
from splitplan.catalogs.links import Link
from splitplan.catalogs.models import Mla
from splitplan.profiler.profile import Basis, OpTable, Profile, Timed
from splitplan.profiler.tables import gemm as gemm_tables
from splitplan.profiler.tables.attention import AttentionTable, Variant
from splitplan.profiler.tables.collectives import CollectiveTable, modelled
from splitplan.profiler.tables.elementwise import ElementwiseTable
from splitplan.profiler.tables.grid import BasisArray, basis_of, fill_last_axis, interpolate, pivot, place
from splitplan.profiler.tables.mla import DEEPSEEK_V3_HIDDEN, MlaTable
from splitplan.profiler.tables.moe import MoeShape, MoeTable
from splitplan.profiler.tables.roofline import Roofline, attended_pairs

FloatArray = NDArray[np.float64]

OTHER_HOST = {"pcie-fast-host": "a slow one would be gpu_link pcie4-slow-host", "pcie-slow-host": "as the fleet says"}

DEFAULT_SKEW = "power_law_1.2"
"""Routing of real traffic is skewed: a few experts take most tokens. "balanced" and "power_law_1.01" are milder."""


class OpTimes:
    """Times of one GPU's operations under one engine's kernels. `profile=None` is a roofline on datasheet facts."""

    def __init__(self, profile: Profile | None, gpu: Gpu) -> None:
        self.profile = profile
        self.gpu = gpu
        self.roofline = Roofline(gpu)
        self._built: dict[tuple[str, str], Any] = {}

    # Products

    def gemm(self, m: ArrayLike, n: ArrayLike, k: ArrayLike, dtype: str = "bf16") -> Timed:
        """C[m, n] = A[m, k] · B[k, n] with weights B of `dtype`; fp8 includes casting A with a known scale.

        Weight-only formats (int4, mxfp4, nvfp4) have no dense table anywhere: their bytes are theirs, their FLOP
        bf16's, and the correction is that of the bf16 table; EXTRAPOLATED.
        """
        (m, n, k), work = _sizes(m, n, k)
        table_dtype = self._gemm_dtype(dtype)
        if table_dtype is None:
            return _where(work, _assumed(self.roofline.gemm(m, n, k, dtype)))
        timed: Timed = self._gemm_table(table_dtype).query(m, n, k)
        if table_dtype != dtype:
            ratio = self.roofline.gemm(m, n, k, dtype) / self.roofline.gemm(m, n, k, table_dtype)
            timed = _at_best(Timed(timed.seconds * ratio, timed.basis), Basis.EXTRAPOLATED)
        return _where(work, timed)

    def _gemm_dtype(self, dtype: str) -> str | None:
        """The dtype whose table stands for `dtype`."""
        stand_ins = {"fp16": "bf16", "fp8": "fp8_block", "fp8_block": "fp8"}
        for name in (dtype, stand_ins.get(dtype, "bf16"), "bf16", "fp16"):
            if self._gemm_table(name) is not None:
                return name
        return None

    def _gemm_table(self, dtype: str) -> Any:
        return self._build("gemm", dtype, lambda table: gemm_tables.build(table, dtype, self.roofline))

    # Attention

    def prefill_attention(
        self, new: ArrayLike, past: ArrayLike = 0, *, batch: ArrayLike = 1, heads: int, kv_heads: int, head_dim: int,
        window: int | None = None, kv_dtype: str = "bf16",
    ) -> Timed:  # fmt: skip
        """Causal attention of `batch` sequences of `new` tokens after `past` ones each."""
        (new_, batch_, past_), work = _sizes(new, batch, may_be_zero=(past,))
        variant = Variant(kv_dtype, head_dim, window or 0)
        table = self._build("prefill_attention", "", lambda rows: AttentionTable(rows, self.roofline))
        if table is None:
            shape = (heads, kv_heads, head_dim, variant.window, kv_dtype)
            return _where(work, _assumed(self.roofline.prefill_attention(new_, past_, batch_, *shape)))
        return _where(work, table.prefill(new_, past_, batch_, (heads, kv_heads), variant))

    def decode_attention(
        self, batch: ArrayLike, context: ArrayLike, *, heads: int, kv_heads: int, head_dim: int,
        window: int | None = None, kv_dtype: str = "bf16",
    ) -> Timed:  # fmt: skip
        """One token of each of `batch` sequences over `context` tokens, itself included."""
        (batch_, context_), work = _sizes(batch, may_be_zero=(context,))
        variant = Variant(kv_dtype, head_dim, window or 0)
        table = self._build("decode_attention", "", lambda rows: AttentionTable(rows, self.roofline))
        if table is None:
            shape = (heads, kv_heads, head_dim, variant.window, kv_dtype)
            return _where(work, _assumed(self.roofline.decode_attention(batch_, context_, *shape)))
        return _where(work, table.decode(batch_, context_, (heads, kv_heads), variant))

    def mla_prefill(
        self, new: ArrayLike, past: ArrayLike = 0, *, batch: ArrayLike = 1, heads: int, mla: Mla, dtype: str = "bf16",
        kv_dtype: str = "bf16", hidden: int = DEEPSEEK_V3_HIDDEN,
    ) -> Timed:  # fmt: skip
        """The whole attention block with its projections (queries, latent, up-projections, output)."""
        (new_, batch_, past_), work = _sizes(new, batch, may_be_zero=(past,))
        return _where(work, self._mla("mla_prefill", new_, past_, batch_, heads, hidden, mla, dtype, kv_dtype))

    def mla_decode(
        self, batch: ArrayLike, context: ArrayLike, *, heads: int, mla: Mla, dtype: str = "bf16",
        kv_dtype: str = "bf16", hidden: int = DEEPSEEK_V3_HIDDEN,
    ) -> Timed:  # fmt: skip
        """The whole attention block with its projections, for one token of each sequence."""
        (batch_, context_), work = _sizes(batch, may_be_zero=(context,))
        new, past = np.ones_like(batch_), np.maximum(context_ - 1.0, 0.0)
        return _where(work, self._mla("mla_decode", new, past, batch_, heads, hidden, mla, dtype, kv_dtype))

    def _mla(
        self, family: str, new: FloatArray, past: FloatArray, batch: FloatArray, heads: int, hidden: int, mla: Mla,
        dtype: str, kv_dtype: str,
    ) -> Timed:  # fmt: skip
        table = self._build(family, "", lambda rows: MlaTable(rows, self.roofline))
        if table is None:
            pairs, cached = batch * attended_pairs(new, past, 0), batch * (new + past)
            absorbed = family == "mla_decode"
            return _assumed(
                self.roofline.mla_block(
                    batch * new, pairs, cached, heads, hidden, mla, dtype, kv_dtype, absorbed=absorbed
                )
            )
        timed: Timed = table.query(new, past, batch, heads, hidden, mla, dtype, kv_dtype)
        return timed

    # Experts

    def moe(
        self, tokens: ArrayLike, *, hidden: int, inter: int, topk: int, num_experts: int, tp: int = 1, ep: int = 1,
        dtype: str = "bf16", distribution: str = DEFAULT_SKEW,
    ) -> Timed:  # fmt: skip
        """Routed experts of one layer on the busiest rank; `tokens` enter over the whole expert-parallel group.

        `distribution` is the routing skew: "power_law" (the default of the tables, exponent 1.2), "power_law_1.01"
        or "balanced".
        """
        (tokens_,), work = _sizes(tokens)
        skew = DEFAULT_SKEW if distribution == "power_law" else distribution
        table = self._build("moe", "", lambda rows: MoeTable(rows, self.roofline))
        if table is None:
            return _where(work, _assumed(self.roofline.moe(tokens_, hidden, inter, topk, num_experts, tp, ep, dtype)))
        shape = MoeShape(dtype, skew, hidden, inter, topk, num_experts, tp, ep)
        timed = table.query(tokens_, shape)
        if dtype == "fp8":  # checkpoints scale by tensor or by block: whichever was measured closer to this shape
            by_block = table.query(tokens_, replace(shape, dtype="fp8_block"))
            if by_block.basis.mean() < timed.basis.mean():
                timed = by_block
            elif by_block.basis.mean() == timed.basis.mean():  # both: some were taken with kernels nobody had tuned
                timed = Timed(np.minimum(timed.seconds, by_block.seconds), timed.basis)
        return _where(work, timed)

    # Collectives

    def all_reduce(self, num_bytes: ArrayLike, ranks: int, link: Link, *, how: str = "graph") -> Timed:
        """Sum of `num_bytes` on each of `ranks`; `how` is "graph" (replayed), "eager" (launched) or "nccl"."""
        return self._collective("all_reduce", num_bytes, ranks, link, how)

    def all_gather(self, num_bytes: ArrayLike, ranks: int, link: Link) -> Timed:
        """`num_bytes` is what each rank ends with."""
        return self._collective("all_gather", num_bytes, ranks, link, "nccl")

    def reduce_scatter(self, num_bytes: ArrayLike, ranks: int, link: Link) -> Timed:
        """`num_bytes` is what each rank starts with."""
        return self._collective("reduce_scatter", num_bytes, ranks, link, "nccl")

    def all_to_all(self, num_bytes: ArrayLike, ranks: int, link: Link) -> Timed:
        """`num_bytes` is what each rank starts with."""
        return self._collective("all_to_all", num_bytes, ranks, link, "nccl")

    def send(self, num_bytes: ArrayLike, ranks: int, link: Link) -> Timed:
        """From one rank to the next: one pipeline hand-off. `ranks` is not used but to be 1 for none."""
        return self._collective("send", num_bytes, ranks, link, "nccl")

    def host_class(self, ranks: int, link: Link) -> str | None:
        """Which measured host the all-reduce over this link is read from: "" for NVLink, a class of PCIe host, None."""
        table = self._collective_table("all_reduce")
        return None if table is None else table.host_class(ranks, link)

    def host_note(self, ranks: int, link: Link) -> str:
        """One line on whose collectives a prediction over PCIe uses; "" where there is nothing to choose."""
        host = self.host_class(ranks, link) if ranks > 1 and link.kind == "pcie" else None
        if not host:
            return ""
        other = f" ({OTHER_HOST[host]})" if host in OTHER_HOST else ""
        return f"all-reduce of {ranks} over {link.name} as measured on a {host}{other}"

    def _collective(self, family: str, num_bytes: ArrayLike, ranks: int, link: Link, how: str) -> Timed:
        (size,), work = _sizes(num_bytes)
        table = self._collective_table(family)
        timed = None if table is None or ranks <= 1 else table.query(size, ranks, link, how)
        return _where(work & (ranks > 1), modelled(family, size, ranks, link) if timed is None else timed)

    def _collective_table(self, family: str) -> CollectiveTable | None:
        table: CollectiveTable | None = self._build(family, "", lambda rows: CollectiveTable(rows, self._own_link()))
        return table

    def _own_link(self) -> Link | None:
        from splitplan.catalogs.links import find_link

        return find_link(self.gpu.nvlink) if self.gpu.nvlink else None

    # Memory-bound

    def elementwise(self, num_bytes: ArrayLike) -> Timed:
        """Norms, activations, rotary embedding: `num_bytes` read and written."""
        (size,), work = _sizes(num_bytes)
        table = self._build("elementwise", "", lambda rows: ElementwiseTable(rows, self.roofline))
        return _where(work, _assumed(self.roofline.elementwise(size)) if table is None else table.query(size))

    def quantize(self, m: ArrayLike, k: ArrayLike, *, stage: str = "scale") -> Timed:
        """What fp8 activations [m, k] cost beside the product: "scale" finds their scale, when it is not known before.

        "cast" applies it, which `gemm` includes. The published "scale" rows are differences of two measurements.
        """
        (m, k), work = _sizes(m, k)
        table = self._build("quantize", stage, lambda rows: _quantize_grid(rows, stage))
        if table is None:
            return _where(work, _assumed(self.roofline.elementwise(3.0 * m * k)))
        log_k, log_m, log_seconds, basis = table
        places = [place(log_k, np.log(k)), place(log_m, np.log(m))]
        beyond = np.maximum(np.log(m) - log_m[-1], 0.0) + np.maximum(np.log(k) - log_k[-1], 0.0)
        return _where(work, Timed(np.exp(interpolate(log_seconds, places) + beyond), basis_of(places, basis)))

    def _build(self, family: str, part: str, make: Any) -> Any:
        key = (family, part)
        if key not in self._built:
            rows = None if self.profile is None or family not in self.profile.tables else self.profile.tables[family]
            self._built[key] = None if rows is None else make(rows)
        return self._built[key]


def _quantize_grid(table: OpTable, stage: str) -> tuple[FloatArray, FloatArray, FloatArray, BasisArray] | None:
    rows = table.keys["stage"] == stage
    if not rows.any():
        return None
    (k, m), seconds = pivot([table.keys["k"][rows], table.keys["m"][rows]], table.seconds[rows])
    filled, basis = fill_last_axis(np.log(seconds), np.log(m))
    return np.log(k), np.log(m), filled, basis


def _sizes(*sizes: ArrayLike, may_be_zero: Sequence[ArrayLike] = ()) -> tuple[list[FloatArray], NDArray[np.bool_]]:
    """The arrays, broadcast, and where there is work: no size is zero. Tables are asked for one in place of none."""
    arrays = np.broadcast_arrays(*(np.asarray(size, dtype=np.float64) for size in (*sizes, *may_be_zero)))
    for array in arrays:
        if not bool(np.all(np.isfinite(array) & (array >= 0))):
            raise InputError(Problem("a size of an operation is negative or not a number", expected="zero or more"))
    work = np.ones(arrays[0].shape, dtype=bool)
    for array in arrays[: len(sizes)]:
        work &= array > 0
    some = [np.where(array > 0, array, 1.0) for array in arrays[: len(sizes)]]
    return [*some, *(np.asarray(array) for array in arrays[len(sizes) :])], work


def _where(work: NDArray[np.bool_], timed: Timed) -> Timed:
    """No time where there is no work."""
    if bool(np.all(work)):
        return timed
    basis = np.where(work, timed.basis, np.uint8(Basis.MEASURED)).astype(np.uint8)
    return Timed(np.where(work, timed.seconds, 0.0), basis)


def _assumed(seconds: FloatArray) -> Timed:
    return Timed(np.asarray(seconds), np.full(np.shape(seconds), Basis.ASSUMED, dtype=np.uint8))


def _at_best(timed: Timed, floor: Basis) -> Timed:
    return Timed(timed.seconds, np.maximum(timed.basis, np.uint8(floor)).astype(np.uint8))
