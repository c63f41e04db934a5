"""Operations from torch's own kernels: all there is on a CPU, and the base of a GPU's workbench."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

from splitplan.catalogs.errors import ProfileError
from splitplan.profiler.operations import Operation, Pool, ignoring_index, rotating
from splitplan.profiler.points import Point
from splitplan.profiler.rates import Rates
from splitplan.profiler.routing import chosen_experts
from splitplan.profiler.timer import CpuTimer, Effort

BLOCK_TOKENS = 16
CPU_ROTATION_BYTES = 96 * 2**20  # three times the last-level cache of a large server part
CPU_SLOWDOWN = {
    "prefill_attention": 5.0,
    "mla_prefill": 5.0,
    "decode_attention": 10.0,
    "mla_decode": 10.0,
    "moe": 2.0,
    "elementwise": 5.0,
}
"""How far torch's CPU attention stays behind the product's rate, seen on one machine: only prices points."""


class TorchWorkbench:
    """Builds operations from torch ops on one device."""

    def __init__(self, torch: Any, device: str = "cpu", rotation_bytes: int = CPU_ROTATION_BYTES) -> None:
        self._torch = torch
        self._device = device
        self._pool = Pool(torch, device, rotation_bytes)
        self._dtypes = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}

    def prepare(self, point: Point) -> Operation:
        """Buffers and callable of a point; ProfileError where there is no such operation."""
        build = getattr(self, f"_{point.family}", None)
        if build is None:
            raise ProfileError(f"no operation for '{point.family}'")
        operation: Operation = build(point)
        return operation

    def is_alive(self) -> bool:
        """Whether the device still computes at all."""
        try:
            return bool(self._torch.ones(1, device=self._device).sum() == 1)
        except RuntimeError:
            return False

    def _dtype(self, name: str) -> Any:
        if name not in self._dtypes:
            raise ProfileError(f"torch has no fast kernels here for '{name}'")
        return self._dtypes[name]

    def _gemm(self, point: Point) -> Operation:
        torch, dtype = self._torch, self._dtype(point.text("dtype"))
        weights = self._pool.views((point["n"], point["k"]), dtype)
        activations = self._pool.random((point["m"], point["k"]), dtype)
        out = self._empty((point["m"], point["n"]), dtype)
        call = rotating(lambda weight: torch.mm(activations, weight.t(), out=out), weights)
        return self._operation(call, len(weights), out)

    def _prefill_attention(self, point: Point) -> Operation:
        dtype = self._dtype(point.text("kv_dtype"))
        batch, new, total = point["batch"], point["new"], point["new"] + point["past"]
        query = self._pool.random((batch, point["heads"], new, point["head_dim"]), dtype)
        keys = self._pool.views((batch, point["kv_heads"], total, point["head_dim"]), dtype)
        mask = self._mask(new, point["past"], point["window"])
        return self._attention(query, keys, mask, causal=mask is None)

    def _mask(self, new: int, past: int, window: int) -> Any:
        """[new, past + new] of what each new token may see; None: plain causal, which torch has a faster path for."""
        torch = self._torch
        if not past and not window:
            return None
        row = torch.arange(past, past + new, device=self._device)[:, None]
        column = torch.arange(past + new, device=self._device)[None, :]
        seen = column <= row
        return seen & (column > row - window) if window else seen

    def _decode_attention(self, point: Point) -> Operation:
        """Gathers each sequence's pages, in a random order without repeats, then attends."""
        torch, dtype = self._torch, self._dtype(point.text("kv_dtype"))
        batch, heads, kv_heads, head_dim = (point[name] for name in ("batch", "heads", "kv_heads", "head_dim"))
        context = min(point["context"], point["window"] or point["context"])
        pages = -(-context // BLOCK_TOKENS)
        caches = self._pool.views((2, batch * pages, BLOCK_TOKENS, kv_heads, head_dim), dtype)
        generator = torch.Generator().manual_seed(0)
        table = torch.randperm(batch * pages, generator=generator).to(self._device)
        query = self._pool.random((batch, heads, 1, head_dim), dtype)
        out = self._empty((batch, heads, 1, head_dim), dtype)
        attend = torch.nn.functional.scaled_dot_product_attention

        def call(cache: Any) -> None:
            keys, values = (
                half.index_select(0, table).view(batch, pages * BLOCK_TOKENS, kv_heads, head_dim)[:, :context]
                for half in cache
            )
            out.copy_(attend(query, keys.transpose(1, 2), values.transpose(1, 2), enable_gqa=True))

        return self._operation(rotating(call, caches), len(caches), out)

    def _attention(self, query: Any, keys: list[Any], mask: Any, *, causal: bool) -> Operation:
        attend = self._torch.nn.functional.scaled_dot_product_attention
        out = self._torch.empty_like(query)
        values = keys[1:] + keys[:1] if len(keys) > 1 else [keys[0].clone()]

        def call(key: Any, value: Any) -> None:
            out.copy_(attend(query, key, value, attn_mask=mask, is_causal=causal, enable_gqa=True))

        return self._operation(rotating(call, keys, values), len(keys), out)

    def _moe(self, point: Point) -> Operation:
        """Every touched expert in turn: gate and up, SwiGLU, down, weighted sum."""
        torch, dtype = self._torch, self._dtype(point.text("dtype"))
        inter, experts = point["inter"] // point["tp"], point["num_experts"] // point["ep"]
        tokens, hidden = point["tokens"], point["hidden"]
        up = self._pool.views((2 * inter, hidden), dtype)
        down = self._pool.views((hidden, inter), dtype)
        rows = self._pool.random((tokens, hidden), dtype)
        out = self._empty((tokens, hidden), dtype)
        chosen = torch.from_numpy(expert_routing(point)).to(self._device)
        routed = [(chosen == expert).any(1).nonzero()[:, 0] for expert in range(experts)]

        def call(index: int) -> None:
            out.zero_()
            for expert, taken in enumerate(routed):
                if len(taken):
                    place = index * experts + expert
                    gate, wide = (rows[taken] @ up[place % len(up)].t()).chunk(2, 1)
                    part = torch.nn.functional.silu(gate) * wide @ down[place % len(down)].t()
                    out.index_add_(0, taken, part)

        return self._operation(call, len(up), out)

    def _mla_prefill(self, point: Point) -> Operation:
        """Projections, expanded keys and values, attention over past and new, output projection."""
        weights, latents = MlaWeights(self, point), self._latents(point, point["past"])
        rows = self._pool.random((point["batch"] * point["new"], point["hidden"]), weights.dtype)
        mask = self._mask(point["new"], point["past"], 0)
        return self._operation_of(lambda latent: weights.prefill(rows, latent, mask), latents)

    def _mla_decode(self, point: Point) -> Operation:
        """Projections and attention in the latent space, with the up-projections absorbed into the query."""
        weights, latents = MlaWeights(self, point), self._latents(point, point["context"])
        rows = self._pool.random((point["batch"], point["hidden"]), weights.dtype)
        return self._operation_of(lambda latent: weights.decode(rows, latent), latents)

    def _latents(self, point: Point, tokens: int) -> list[Any]:
        width = point["kv_lora"] + point["rope_dim"]
        return self._pool.views((point["batch"], tokens, width), self._dtype(point.text("kv_dtype")))

    def _elementwise(self, point: Point) -> Operation:
        torch = self._torch
        tokens, columns = point["tokens"], point["columns"]
        rows = [self._pool.random((tokens, columns), torch.bfloat16) for _ in range(2)]
        build = {"rmsnorm": self._rmsnorm, "swiglu": self._swiglu, "rotary": self._rotary}[point.text("kind")]
        call, outputs = build(*rows)
        return self._operation(ignoring_index(call), 1, *outputs, cache="warm")

    def _rmsnorm(self, rows: Any, residual: Any) -> tuple[Callable[[], Any], tuple[Any, ...]]:
        torch, out = self._torch, self._torch.empty_like(rows)
        weight = self._pool.random((rows.shape[1],), rows.dtype)

        def call() -> None:
            torch.add(rows, residual, out=residual)  # grows until rounding stops it: stays finite
            out.copy_(torch.nn.functional.rms_norm(residual, (rows.shape[1],), weight))

        return call, (out,)

    def _swiglu(self, gate: Any, wide: Any) -> tuple[Callable[[], Any], tuple[Any, ...]]:
        torch, out = self._torch, self._torch.empty_like(gate)
        return lambda: torch.mul(torch.nn.functional.silu(gate), wide, out=out), (out,)

    def _rotary(self, rows: Any, angles: Any) -> tuple[Callable[[], Any], tuple[Any, ...]]:
        torch, out = self._torch, self._torch.empty_like(rows)
        half = rows.shape[1] // 2
        cosine, sine = angles[:, :half].cos(), angles[:, :half].sin()

        def call() -> None:
            first, second = rows[:, :half], rows[:, half:]
            torch.sub(first * cosine, second * sine, out=out[:, :half])
            torch.add(second * cosine, first * sine, out=out[:, half:])

        return call, (out,)

    def _send(self, point: Point) -> Operation:
        """A copy within the device's memory."""
        if point.text("how") != "copy":
            raise ProfileError("collectives run in processes of their own")
        torch = self._torch
        source = self._pool.views((point["num_bytes"] // 2,), torch.bfloat16)
        out = self._empty((point["num_bytes"] // 2,), torch.bfloat16)
        return self._operation(rotating(out.copy_, source), len(source), out)

    def _empty(self, shape: tuple[int, ...], dtype: Any) -> Any:
        return self._torch.empty(shape, dtype=dtype, device=self._device)

    def _operation_of(self, compute: Callable[[Any], Any], operands: list[Any]) -> Operation:
        """An operation that returns its result: kept, so that it can be looked at."""
        out = self._torch.empty_like(compute(operands[0]))
        call = rotating(lambda operand: out.copy_(compute(operand)), operands)
        return self._operation(call, len(operands), out)

    def _operation(self, call: Callable[[int], Any], rotations: int, *outputs: Any, cache: str = "cold") -> Operation:
        def poison() -> None:
            for output in outputs:
                output.fill_(math.nan)

        def is_finite() -> bool:
            return all(bool(self._torch.isfinite(output).all()) for output in outputs)

        return Operation(call, rotations, cache, poison, is_finite)


class MlaWeights:
    """Random weights of one latent-attention block, and its two ways to run."""

    def __init__(self, bench: TorchWorkbench, point: Point) -> None:
        self._torch = bench._torch
        self.dtype = bench._dtype(point.text("dtype"))
        self._point = point
        heads, latent, rope, nope = point["heads"], point["kv_lora"], point["rope_dim"], point["nope_dim"]
        hidden, query_rank = point["hidden"], point["q_lora"]

        def weight(*shape: int) -> Any:
            return bench._pool.random(shape, self.dtype) / math.sqrt(shape[-1])

        self._query_down = weight(query_rank, hidden) if query_rank else None
        self._query_up = weight(heads * (nope + rope), query_rank or hidden)
        self._kv_down = weight(latent + rope, hidden)
        self._key_up = weight(heads, nope, latent)
        self._value_up = weight(heads, point["v_dim"], latent)
        self._out = weight(hidden, heads * point["v_dim"])

    def _queries(self, rows: Any) -> tuple[Any, Any]:
        point = self._point
        if self._query_down is not None:
            rows = rows @ self._query_down.t()
        nope = point["nope_dim"]
        wide = (rows @ self._query_up.t()).view(point["batch"], -1, point["heads"], nope + point["rope_dim"])
        return wide[..., :nope], wide[..., nope:]

    def prefill(self, rows: Any, past: Any, mask: Any) -> Any:
        """[batch · new, hidden] → the same shape; `past` is [batch, past, latent + rope]."""
        torch, point = self._torch, self._point
        nope, rope = self._queries(rows)
        fresh = (rows @ self._kv_down.t()).view(point["batch"], point["new"], -1)
        cached, key_rope = torch.cat([past, fresh], 1).split([point["kv_lora"], point["rope_dim"]], -1)
        keys = torch.einsum("btl,hnl->bhtn", cached, self._key_up)
        values = torch.einsum("btl,hvl->bhtv", cached, self._value_up)
        keys = torch.cat([keys, key_rope[:, None].expand(-1, point["heads"], -1, -1)], -1)
        query = torch.cat([nope, rope], -1).transpose(1, 2)
        attend = torch.nn.functional.scaled_dot_product_attention
        seen = attend(query, keys, values, attn_mask=mask, is_causal=mask is None)
        return seen.transpose(1, 2).reshape(len(rows), -1) @ self._out.t()

    def decode(self, rows: Any, cached: Any) -> Any:
        """[batch, hidden] → the same shape; `cached` is [batch, context, latent + rope]."""
        point, keys = self._point, cached[:, None].expand(-1, self._point["heads"], -1, -1)
        scale = 1 / math.sqrt(point["nope_dim"] + point["rope_dim"])
        attend = self._torch.nn.functional.scaled_dot_product_attention

        def attention(query: Any) -> Any:
            return attend(query[:, :, None], keys, keys[..., : point["kv_lora"]], scale=scale)[:, :, 0]

        return self.decode_with(rows, attention)

    def decode_with(self, rows: Any, attention: Callable[[Any], Any]) -> Any:
        """The block around an attention of absorbed queries [batch, heads, latent + rope] → [batch, heads, latent]."""
        torch = self._torch
        nope, rope = (part[:, 0] for part in self._queries(rows))
        absorbed = torch.einsum("bhn,hnl->bhl", nope, self._key_up)
        latent = attention(torch.cat([absorbed, rope], -1))
        seen = torch.einsum("bhl,hvl->bhv", latent, self._value_up)
        return seen.reshape(len(rows), -1) @ self._out.t()


def expert_routing(point: Point) -> Any:
    """[tokens, topk] local expert or -1, by the exponent in the distribution's name."""
    exponent = float(point.text("distribution").removeprefix("power_law_"))
    return chosen_experts(point["tokens"], point["num_experts"], point["topk"], point["ep"], exponent)


def measured_cpu_rates(torch: Any, timer: CpuTimer) -> Rates:
    """What this CPU reaches on one medium product per dtype and one copy: prices points, predicts nothing."""
    effort = Effort(warmup_s=0.02, repeat_s=0.05)
    flops = {}
    for name, dtype in (("bf16", torch.bfloat16), ("fp32", torch.float32)):
        product = partial(torch.mm, torch.randn(256, 1024).to(dtype), torch.randn(1024, 1024).to(dtype))
        flops[name] = 2 * 256 * 1024 * 1024 / timer.measure(ignoring_index(product), effort).median_s
    source = torch.randn(8 << 20)
    out = torch.empty_like(source)
    copy_s = timer.measure(ignoring_index(partial(out.copy_, source)), effort).median_s
    return Rates(flops, 2 * 4 * (8 << 20) / copy_s, launch_s=2e-5, family_setup_s=0.0, slowdown=CPU_SLOWDOWN)
