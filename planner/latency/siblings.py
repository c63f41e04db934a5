"""Op times for a GPU that was never measured: a measured sibling's, scaled by the ratio of their rooflines.

    seconds = measured on the sibling + roofline on this GPU − roofline on the sibling

and on a faster GPU at least the measured time times the ratio of the rooflines.

The sibling has the same architecture, so its kernels are the same; what differs is bandwidth, tensor rate and links.
What the sibling needs beyond its roofline (latency, waves, launch) does not scale with bandwidth and is kept.
Results are EXTRAPOLATED. A GPU of an architecture that nobody measured gets its bare roofline, ASSUMED.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from splitplan.catalogs.errors import UnknownNameError
from splitplan.catalogs.gpus import Gpu, find_gpu
from splitplan.catalogs.links import Link
from splitplan.planner.latency.operations import OpSource
from splitplan.profiler.profile import Basis, Timed
from splitplan.profiler.query import OpTimes
from splitplan.profiler.store import find_profile

MEASURED_BY_ARCHITECTURE = {"Hopper": ("h100-sxm",), "Ampere": ("a100-sxm-80",), "Ada Lovelace": ("l40s",)}
ENGINE_FALLBACKS = {"lmdeploy": "trtllm"}
"""Engines without tables of their own borrow those of the nearest kernels."""


class SiblingOps:
    """Op times of `gpu` from those of a measured sibling."""

    def __init__(self, sibling: OpTimes, gpu: Gpu) -> None:
        self.sibling = sibling
        self.gpu = gpu
        self._own = OpTimes(None, gpu)
        self._theirs = OpTimes(None, sibling.gpu)

    def _scaled(self, name: str, *sizes: Any, **shape: Any) -> Timed:
        measured: Timed = getattr(self.sibling, name)(*sizes, **shape)
        own = getattr(self._own, name)(*sizes, **shape).seconds
        theirs = getattr(self._theirs, name)(*sizes, **shape).seconds
        scaled = np.maximum(measured.seconds + own - theirs, measured.seconds * np.minimum(1.0, own / theirs))
        basis = np.maximum(measured.basis, np.uint8(Basis.EXTRAPOLATED)).astype(np.uint8)
        return Timed(scaled, basis)

    def gemm(self, m: Any, n: Any, k: Any, dtype: str) -> Timed:
        """[m, k] × [k, n]."""
        return self._scaled("gemm", m, n, k, dtype)

    def prefill_attention(self, new: Any, past: Any, **shape: Any) -> Timed:
        """See OpSource."""
        return self._scaled("prefill_attention", new, past, **shape)

    def decode_attention(self, batch: Any, context: Any, **shape: Any) -> Timed:
        """See OpSource."""
        return self._scaled("decode_attention", batch, context, **shape)

    def mla_prefill(self, new: Any, past: Any, **shape: Any) -> Timed:
        """See OpSource."""
        return self._scaled("mla_prefill", new, past, **shape)

    def mla_decode(self, batch: Any, context: Any, **shape: Any) -> Timed:
        """See OpSource."""
        return self._scaled("mla_decode", batch, context, **shape)

    def moe(self, tokens: Any, **shape: Any) -> Timed:
        """See OpSource."""
        return self._scaled("moe", tokens, **shape)

    def all_reduce(self, num_bytes: Any, ranks: int, link: Link, *, how: str = "graph") -> Timed:
        """Measured over the sibling's link when this is it, else modelled."""
        return self.sibling.all_reduce(num_bytes, ranks, link, how=how)

    def all_gather(self, num_bytes: Any, ranks: int, link: Link) -> Timed:
        """See all_reduce."""
        return self.sibling.all_gather(num_bytes, ranks, link)

    def all_to_all(self, num_bytes: Any, ranks: int, link: Link) -> Timed:
        """See all_reduce."""
        return self.sibling.all_to_all(num_bytes, ranks, link)

    def send(self, num_bytes: Any, ranks: int, link: Link) -> Timed:
        """See all_reduce."""
        return self.sibling.send(num_bytes, ranks, link)

    def elementwise(self, num_bytes: Any) -> Timed:
        """See OpSource."""
        return self._own.elementwise(num_bytes)


class FusedQuantisationOps:
    """Op times of an engine that casts activations to fp8 inside other kernels, whose GEMM table times the cast apart.

    TensorRT-LLM's fp8 table holds the linear module with its stand-alone cast, some 7 us a GEMM at small m; served, the
    cast is fused into the norm or activation before it. vLLM's table times the bare product on the same GPU.
    """

    def __init__(self, ops: OpTimes, bare: OpTimes) -> None:
        self._ops = ops
        self._bare = bare
        self.gpu = ops.gpu

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ops, name)

    def gemm(self, m: Any, n: Any, k: Any, dtype: str) -> Timed:
        """[m, k] × [k, n]; fp8 without the cast."""
        return (self._bare if dtype.startswith("fp8") else self._ops).gemm(m, n, k, dtype)


@lru_cache(maxsize=64)
def _op_times(gpu_name: str, engine: str) -> tuple[OpSource, str]:
    gpu = find_gpu(gpu_name)
    for borrowed in dict.fromkeys((engine, ENGINE_FALLBACKS.get(engine, engine), "vllm")):
        for name in (gpu.name, *MEASURED_BY_ARCHITECTURE.get(gpu.architecture, ())):
            try:
                times = OpTimes(find_profile(name, borrowed), find_gpu(name))
            except UnknownNameError:
                continue
            if borrowed == "trtllm":
                times = _fused(times)
            kernels = "" if borrowed == engine else f"{engine} kernels taken as {borrowed}'s"
            if name == gpu.name:
                return times, kernels
            scaled = f"{gpu.name} scaled from {name} by roofline"
            return SiblingOps(times, gpu), "; ".join(part for part in (scaled, kernels) if part)
    return OpTimes(None, gpu), f"{gpu.name}: no measured relative, bare roofline"


def _fused(times: OpTimes) -> Any:
    """TensorRT-LLM's op times with fp8 products as they are served, where vLLM's table of the GPU has them."""
    try:
        bare = OpTimes(find_profile(times.gpu.name, "vllm"), times.gpu)
    except UnknownNameError:
        return times
    has_fp8 = bare.profile is not None and "fp8" in set(bare.profile.tables["gemm"].keys["dtype"].tolist())
    return FusedQuantisationOps(times, bare) if has_fp8 else times


def find_op_times(gpu: Gpu, engine: str) -> tuple[OpSource, str]:
    """Op times of a GPU under an engine's kernels, and what they were borrowed from ("" when measured as they are)."""
    return _op_times(gpu.name, engine)
