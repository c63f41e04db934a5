"""How long a point will take, before it is measured: a roofline with the rates of a device, known or found out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from splitplan.catalogs.gpus import Gpu
from splitplan.catalogs.models import BYTES_PER_ELEMENT

if TYPE_CHECKING:
    from splitplan.profiler.points import Point

ACHIEVED_FLOPS = 0.6  # of the datasheet's dense rate, for an estimate of how long measuring takes and nothing else
ACHIEVED_BANDWIDTH = 0.8
HOST_LINK_BYTES_PER_S = 20e9  # PCIe 4.0 x16, roughly: only for the estimate
LAUNCH_S = 5e-6


@dataclass(frozen=True, slots=True)
class Rates:
    """What a device reaches, roughly. They order and price points; no prediction uses them."""

    flops_per_s: Mapping[str, float]
    bytes_per_s: float
    launch_s: float = LAUNCH_S
    family_setup_s: float = 1.0  # compiling or starting whatever a family needs, once
    slowdown: Mapping[str, float] = field(default_factory=dict)  # by family, over the roofline

    def seconds(self, point: Point) -> float:
        """Roofline estimate of one call."""
        flops, num_bytes, dtype = work(point)
        rate = self.flops_per_s.get(dtype) or max(self.flops_per_s.values())
        bandwidth = self.bytes_per_s
        if point.family == "send" and point.text("link") != "device-to-device":
            bandwidth = min(bandwidth, HOST_LINK_BYTES_PER_S)
        return self.launch_s + self.slowdown.get(point.family, 1.0) * max(flops / rate, num_bytes / bandwidth)


def rates_of(gpu: Gpu) -> Rates:
    """Rates of a GPU that is not here, from its datasheet."""
    flops = {dtype: ACHIEVED_FLOPS * rate for dtype, rate in gpu.flops_per_s.items()}
    return Rates(flops, ACHIEVED_BANDWIDTH * gpu.memory_bandwidth_bytes_per_s)


def work(point: Point) -> tuple[float, float, str]:
    """FLOP, bytes moved and the dtype whose rate counts, of one call of a point."""
    if point.family == "gemm":
        m, n, k = point["m"], point["n"], point["k"]
        weight_bytes = BYTES_PER_ELEMENT[point.text("dtype")]
        return 2.0 * m * n * k, weight_bytes * n * k + 2.0 * m * (n + k), point.text("dtype")
    if point.family == "prefill_attention":
        return _prefill_attention_work(point)
    if point.family == "decode_attention":
        cached = point["batch"] * min(point["context"], point["window"] or point["context"])
        kv_bytes = 2.0 * cached * point["kv_heads"] * point["head_dim"] * BYTES_PER_ELEMENT[point.text("kv_dtype")]
        return 4.0 * cached * point["heads"] * point["head_dim"], kv_bytes, "bf16"
    if point.family in ("mla_prefill", "mla_decode"):
        return _mla_work(point)
    if point.family == "moe":
        return _moe_work(point)
    return 0.0, 2.0 * point["num_bytes"], "bf16"


def _prefill_attention_work(point: Point) -> tuple[float, float, str]:
    new, past = point["new"], point["past"]
    pairs = new * past + new * (new + 1) / 2
    if window := point["window"]:
        pairs = min(pairs, new * window)
    flops = 4.0 * point["batch"] * pairs * point["heads"] * point["head_dim"]
    kv_bytes = 2.0 * (new + past) * point["kv_heads"] * point["head_dim"] * BYTES_PER_ELEMENT[point.text("kv_dtype")]
    return flops, point["batch"] * kv_bytes, "bf16"


def _moe_work(point: Point) -> tuple[float, float, str]:
    pairs = point["tokens"] * point["topk"] / point["ep"]
    weights = 3.0 * point["hidden"] * point["inter"] / point["tp"]
    touched = min(pairs, point["num_experts"] / point["ep"])
    return 2.0 * pairs * weights, touched * weights * BYTES_PER_ELEMENT[point.text("dtype")], point.text("dtype")


def _mla_work(point: Point) -> tuple[float, float, str]:
    """Projections and attention of one block; decode attends in the latent space, prefill with expanded heads."""
    heads, latent, rope = point["heads"], point["kv_lora"], point["rope_dim"]
    wide = heads * (point["nope_dim"] + rope)
    queries = (point["hidden"] + wide) * point["q_lora"] if point["q_lora"] else point["hidden"] * wide
    weights = queries + point["hidden"] * (latent + rope + heads * point["v_dim"])
    weights += latent * heads * (point["nope_dim"] + point["v_dim"])
    batch, kv_bytes = point["batch"], BYTES_PER_ELEMENT[point.text("kv_dtype")]
    if point.family == "mla_decode":
        cached = batch * point["context"]
        flops = 2.0 * batch * weights + 2.0 * cached * heads * (2 * latent + rope)
    else:
        new, cached = point["new"], batch * (point["past"] + point["new"])
        pairs = batch * (new * point["past"] + new * (new + 1) / 2)
        flops = 2.0 * batch * new * weights + 2.0 * pairs * heads * (point["nope_dim"] + rope + point["v_dim"])
    moved = weights * BYTES_PER_ELEMENT[point.text("dtype")] + cached * (latent + rope) * kv_bytes
    return flops, moved, point.text("dtype")
