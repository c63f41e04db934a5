"""Operations on a GPU: this project's Triton kernels; dense GEMM and copies are torch's (cuBLAS, cudaMemcpy).

Imports the kernels and so needs triton.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

from splitplan.catalogs.errors import ProfileError
from splitplan.kernels.chips import chip_of
from splitplan.kernels.configs import grouped_gemm_config
from splitplan.kernels.decode import decode_attention
from splitplan.kernels.mla import mla_decode
from splitplan.kernels.moe import Routing, grouped_gemm, route
from splitplan.kernels.pointwise import rmsnorm_residual, rotary_and_write, swiglu
from splitplan.kernels.prefill import prefill_attention
from splitplan.profiler.operations import Operation, ignoring_index, rotating
from splitplan.profiler.points import Point
from splitplan.profiler.torch_operations import MlaWeights, TorchWorkbench, expert_routing

L2_ROTATIONS = 5  # buffers repeat after five times the L2: the data of one call is gone before the next needs it
PAGE_TOKENS = 16
HALF = {"bf16": "bfloat16", "fp16": "float16", "fp8": "bfloat16"}  # what an e4m3 cache's queries are in


class GpuWorkbench(TorchWorkbench):
    """Builds operations on one GPU."""

    def __init__(self, torch: Any, device: str, l2_bytes: int) -> None:
        super().__init__(torch, device, L2_ROTATIONS * l2_bytes)

    def _gemm(self, point: Point) -> Operation:
        """16-bit products as the base builds them; fp8 through cuBLASLt with one scale per tensor."""
        if point.text("dtype") != "fp8":
            return super()._gemm(point)
        torch = self._torch
        one = torch.ones((), device=self._device)
        weights = [codes.view(torch.float8_e4m3fn) for codes in self._pool.views((point["n"], point["k"]), torch.uint8)]
        activations = self._pool.random((point["m"], point["k"]), torch.uint8).view(torch.float8_e4m3fn)
        out = self._empty((point["m"], point["n"]), torch.bfloat16)

        def call(weight: Any) -> None:
            torch._scaled_mm(activations, weight.t(), one, one, out_dtype=torch.bfloat16, out=out)

        return self._operation(rotating(call, weights), len(weights), out)

    def _kv_dtype(self, point: Point) -> tuple[Any, Any]:
        """dtype of the queries and of the cache; an e4m3 cache is stored as codes."""
        name = point.text("kv_dtype")
        if name not in HALF:
            raise ProfileError(f"no kernel for a KV cache in '{name}'")
        half = getattr(self._torch, HALF[name])
        return half, self._torch.uint8 if name == "fp8" else half

    def _prefill_attention(self, point: Point) -> Operation:
        """New keys and values are in 16 bit whatever the cache is in: engines attend to them before they quantise."""
        dtype, _ = self._kv_dtype(point)
        batch, new, total = point["batch"], point["new"], point["new"] + point["past"]
        query = self._pool.random((batch * new, point["heads"], point["head_dim"]), dtype)
        keys = self._pool.views((2, batch * total, point["kv_heads"], point["head_dim"]), dtype)
        starts = self._torch.arange(batch + 1, device=self._device, dtype=self._torch.int32)
        out = self._torch.empty_like(query)
        cumulative_new, cumulative_total = starts * new, starts * total

        def call(pair: Any) -> None:
            prefill_attention(
                query, pair[0], pair[1], cumulative_new, cumulative_total, new, window=point["window"], out=out
            )

        return self._operation(rotating(call, keys), len(keys), out)

    def _decode_attention(self, point: Point) -> Operation:
        dtype, cache_dtype = self._kv_dtype(point)
        batch, context = point["batch"], point["context"]
        query = self._pool.random((batch, point["heads"], point["head_dim"]), dtype)
        table, lengths = self._pages(batch, context)
        shape = (2, table.numel(), PAGE_TOKENS, point["kv_heads"], point["head_dim"])
        caches = self._pool.views(shape, cache_dtype)
        out = self._torch.empty_like(query)

        def call(pair: Any) -> None:
            decode_attention(query, pair[0], pair[1], table, lengths, context, window=point["window"], out=out)

        return self._operation(rotating(call, caches), len(caches), out)

    def _pages(self, batch: int, context: int) -> tuple[Any, Any]:
        """A page table that is a permutation without repeats, and the lengths."""
        torch, pages = self._torch, -(-context // PAGE_TOKENS)
        order = torch.randperm(batch * pages, generator=torch.Generator().manual_seed(0)).to(torch.int32)
        lengths = torch.full((batch,), context, dtype=torch.int32, device=self._device)
        return order.view(batch, pages).to(self._device), lengths

    def _mla_decode(self, point: Point) -> Operation:
        """Projections by torch, attention over paged latents by the kernel."""
        batch, context = point["batch"], point["context"]
        weights = MlaWeights(self, point)
        rows = self._pool.random((batch, point["hidden"]), weights.dtype)
        table, lengths = self._pages(batch, context)
        latent = point["kv_lora"]
        caches = self._pool.views((table.numel(), PAGE_TOKENS, latent + point["rope_dim"]), weights.dtype)
        scale_dim = point["nope_dim"] + point["rope_dim"]

        def attend(query: Any, cache: Any) -> Any:
            return mla_decode(query, cache, table, lengths, context, latent_dim=latent, scale_dim=scale_dim)

        return self._operation_of(lambda cache: weights.decode_with(rows, partial(attend, cache=cache)), caches)

    def _moe(self, point: Point) -> Operation:
        """Two grouped products with SwiGLU between; sorting the tokens is not timed, as in the published tables."""
        torch, dtype = self._torch, self._dtype(point.text("dtype"))
        experts, inter = point["num_experts"] // point["ep"], point["inter"] // point["tp"]
        tokens, hidden, topk = point["tokens"], point["hidden"], point["topk"]
        up = self._pool.views((experts, 2 * inter, hidden), dtype)
        down = self._pool.views((experts, hidden, inter), dtype)
        rows = self._pool.random((tokens, hidden), dtype)
        routing = self._routing(point, experts)
        scale = torch.rand(tokens * topk, device=self._device)
        wide = torch.zeros((tokens * topk, 2 * inter), dtype=dtype, device=self._device)
        parts = torch.zeros((tokens * topk, hidden), dtype=dtype, device=self._device)
        out = self._empty((tokens, hidden), dtype)

        def call(index: int) -> None:
            grouped_gemm(rows, up[index % len(up)], routing, out=wide)
            grouped_gemm(swiglu(wide), down[index % len(down)], routing, per_choice=True, scale=scale, out=parts)
            torch.sum(parts.view(tokens, topk, hidden), 1, out=out)

        return self._operation(call, len(up), out)

    def _routing(self, point: Point, experts: int) -> Routing:
        """Tiles of this rank's experts; pairs of other ranks are sorted behind them and skipped."""
        torch = self._torch
        chosen = torch.from_numpy(expert_routing(point)).to(self._device)
        local = float((chosen >= 0).sum()) / experts
        rows = grouped_gemm_config(chip_of(torch.empty(0, device=self._device)), local).block_m
        routing = route(torch.where(chosen < 0, experts, chosen), experts + 1, rows)
        mine = torch.where(routing.experts == experts, -1, routing.experts)
        return Routing(routing.rows, mine, rows, routing.topk)

    def _elementwise(self, point: Point) -> Operation:
        kind, tokens, columns = point.text("kind"), point["tokens"], point["columns"]
        dtype = self._torch.bfloat16 if self._device != "cpu" else self._torch.float16
        if kind == "rotary":
            return self._rotary_and_write(point, dtype)
        if kind == "swiglu":
            rows = self._pool.random((tokens, 2 * columns), dtype)
            out = self._empty((tokens, columns), dtype)
            return self._operation(ignoring_index(partial(swiglu, rows, out)), 1, out, cache="warm")
        rows, residual = (self._pool.random((tokens, columns), dtype) for _ in range(2))
        weight, out = self._pool.random((columns,), dtype), self._empty((tokens, columns), dtype)
        call = partial(rmsnorm_residual, rows, residual, weight, out=out)
        return self._operation(ignoring_index(call), 1, out, cache="warm")

    def _rotary_and_write(self, point: Point, dtype: Any) -> Operation:
        torch, tokens, head_dim = self._torch, point["tokens"], point["head_dim"]
        query = self._pool.random((tokens, point["heads"], head_dim), dtype)
        key, value = (self._pool.random((tokens, point["kv_heads"], head_dim), dtype) for _ in range(2))
        angles = torch.rand((tokens, head_dim // 2), device=self._device) * 2 * math.pi
        turns = torch.cat([angles.cos(), angles.sin()], 1)
        pages = -(-tokens // PAGE_TOKENS)
        caches = [self._empty((pages, PAGE_TOKENS, point["kv_heads"], head_dim), dtype) for _ in range(2)]
        positions = torch.arange(tokens, dtype=torch.int32, device=self._device)
        order = torch.randperm(pages * PAGE_TOKENS, generator=torch.Generator().manual_seed(0))
        slots = order[:tokens].to(torch.int32).to(self._device)
        written = [cache.flatten(0, 1) for cache in caches]

        def call() -> None:
            rotary_and_write(query, key, value, turns, positions, slots, *caches)

        operation = self._operation(ignoring_index(call), 1, *caches, cache="warm")

        def is_finite() -> bool:
            return all(bool(torch.isfinite(rows[slots.long()]).all()) for rows in written)

        return Operation(operation.call, 1, "warm", operation.poison, is_finite)

    def _send(self, point: Point) -> Operation:
        """A copy within the GPU, to or from pinned host memory, or to the next GPU of this host."""
        link, torch = point.text("link"), self._torch
        if link == "device-to-device":
            return super()._send(point)
        shape = (point["num_bytes"] // 2,)
        here = self._pool.random(shape, torch.bfloat16)
        if link == "peer-to-peer":
            index = (torch.device(self._device).index + 1) % torch.cuda.device_count()
            out, source = torch.empty_like(here, device=f"cuda:{index}"), here
        elif link == "host-to-device":
            out, source = here, torch.randn(shape).to(torch.bfloat16).pin_memory()
        else:
            out, source = torch.empty(shape, dtype=torch.bfloat16, pin_memory=True), here
        call = partial(out.copy_, source, non_blocking=True)
        return self._operation(ignoring_index(call), 1, out)
