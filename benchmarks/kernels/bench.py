"""Each kernel's achieved bandwidth or FLOP/s against what this GPU's own copy and product reach, and against torch.

    make kernels-bench                        prints the table; needs an NVIDIA GPU, torch and triton
    python benchmarks/kernels/bench.py -o results.json

Prefill and decode attention are first compared with float64 on this GPU; if one is wrong, nothing is timed. Data is
cold in L2 wherever serving would find it cold (weights, KV cache). Nothing on the GPU is set; throttling is recorded.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from splitplan.catalogs.errors import SplitplanError
from splitplan.profiler.device import Device, is_throttled
from splitplan.profiler.points import Point, make_point
from splitplan.profiler.rates import work
from splitplan.profiler.timer import Effort, Timer

EFFORT = Effort()
GOALS = {"decode": 0.85, "prefill": 0.60, "pack": 0.85}  # of the ceiling, on a Hopper GPU, at the shapes marked so


@dataclass(frozen=True, slots=True)
class Case:
    """One kernel at one shape. `work` is FLOP where `bound` is "matmul", bytes where it is "copy"."""

    name: str
    bound: str
    work: float
    call: Callable[[int], Any]
    rotations: int
    rival: Callable[[int], Any] | None = None
    goal: float | None = None  # share of the ceiling that issue and docs ask for here


@dataclass(frozen=True, slots=True)
class Result:
    """What a case reached; shares are of the ceiling measured in the same run."""

    name: str
    bound: str
    median_s: float
    per_s: float
    share: float
    rival_s: float | None
    goal: float | None
    throttled: bool


def attention_shape(batch: int, past: int, new: int) -> dict[str, Any]:
    """Heads of Llama-3.1-8B on one rank."""
    shape = {"kv_dtype": "bf16", "head_dim": 128, "window": 0, "heads": 32, "kv_heads": 8, "batch": batch}
    return {**shape, "past": past, "new": new}


def cases(torch: Any, workbench: Any, *, small: bool = False) -> Iterator[Case]:
    """Every kernel at the shapes that serving runs; `small` is for trying the script out."""
    dtype = "fp16" if small else "bf16"
    scale = 128 if small else 1
    for new in (2048, 8192):
        shape = {**attention_shape(1, 0, new // scale), "kv_dtype": dtype}
        goal = GOALS["prefill"] if new == 8192 else None
        yield _attention_case(torch, workbench, make_point("prefill_attention", shape), f"prefill {new}", goal)
    shape = {**attention_shape(1, 8192 // scale, 2048 // scale), "kv_dtype": dtype}
    yield _attention_case(torch, workbench, make_point("prefill_attention", shape), "prefill 2048 past 8192", None)
    for batch, context in ((1, 4096), (16, 4096), (64, 4096), (16, 32768)):
        shape = {**attention_shape(max(batch // scale, 1), 0, 0), "context": context // scale, "kv_dtype": dtype}
        goal = GOALS["decode"] if batch >= 16 else None
        yield _attention_case(
            torch, workbench, make_point("decode_attention", shape), f"decode {batch} x {context}", goal
        )
    yield from _packing_cases(torch, workbench, dtype, scale)
    for kind, moved in (("rmsnorm", 4), ("swiglu", 3)):
        tokens, columns = 4096 // scale, 8192 // scale
        shape = {"kind": kind, "num_bytes": 2 * tokens * moved * columns}
        point = make_point("elementwise", shape, {"tokens": tokens, "columns": columns})
        operation = workbench.prepare(point)
        yield Case(f"{kind} {tokens} x {columns}", "copy", point["num_bytes"], operation.call, operation.rotations)
    yield _moe_case(workbench, dtype, scale)


def _attention_case(torch: Any, workbench: Any, point: Point, name: str, goal: float | None) -> Case:
    operation = workbench.prepare(point)
    flops, num_bytes, _ = work(point)
    prefill = point.family == "prefill_attention"
    rival = _sdpa(torch, workbench, point)
    done = flops if prefill else num_bytes
    return Case(name, "matmul" if prefill else "copy", done, operation.call, operation.rotations, rival, goal)


def _sdpa(torch: Any, workbench: Any, point: Point) -> Callable[[int], Any] | None:
    """torch's own attention on contiguous keys and values: for decode it is spared the page table."""
    prefill = point.family == "prefill_attention"
    if prefill and point["past"]:
        return None  # SDPA's causal mask is aligned to the first key
    new, keys = (point["new"], point["new"]) if prefill else (1, point["context"])
    dtype = workbench._dtype(point.text("kv_dtype"))
    query = workbench._pool.random((point["batch"], point["heads"], new, 128), dtype)
    pairs = workbench._pool.views((2, point["batch"], point["kv_heads"], keys, 128), dtype)
    attend = torch.nn.functional.scaled_dot_product_attention

    def call(index: int) -> None:
        pair = pairs[index % len(pairs)]
        attend(query, pair[0], pair[1], is_causal=prefill, enable_gqa=True)

    return call


def _packing_cases(torch: Any, workbench: Any, dtype: str, scale: int) -> Iterator[Case]:
    from splitplan.kernels.packing import pack

    pages, heads = 4096 // scale, 8
    (cache, *_) = workbench._pool.views((2 * pages, 16, heads, 128), workbench._dtype(dtype))
    order = torch.randperm(2 * pages, generator=torch.Generator().manual_seed(0))[:pages]
    order = order.to(torch.int32).to(cache.device)
    for sent in (8, 4):
        out = torch.empty((pages, 16, sent, 128), dtype=cache.dtype, device=cache.device)

        def call(_: int, sent: int = sent, out: Any = out) -> None:
            pack(cache, order, 0, sent, out)

        def rival(_: int, sent: int = sent) -> None:
            cache[:, :, :sent].index_select(0, order)

        moved = 2 * out.numel() * out.element_size()
        yield Case(f"pack {pages} pages, {sent} of 8 heads", "copy", moved, call, 1, rival, GOALS["pack"])


def _moe_case(workbench: Any, dtype: str, scale: int) -> Case:
    shape = {"dtype": dtype, "distribution": "power_law_1.2", "hidden": 4096 // scale, "inter": 14336 // scale}
    point = make_point("moe", {**shape, "topk": 2, "num_experts": 8, "tp": 1, "ep": 1, "tokens": 4096 // scale})
    operation = workbench.prepare(point)
    return Case("experts 4096 tokens, 8 x 14336", "matmul", work(point)[0], operation.call, operation.rotations)


def ceilings(torch: Any, workbench: Any, timer: Timer, *, small: bool = False) -> dict[str, float]:
    """Bytes/s of a large copy (read and written) and FLOP/s of a large bf16 product, measured here and now."""
    size, dtype = (256, "fp16") if small else (8192, "bf16")
    copy = {"link": "device-to-device", "host": "", "how": "copy", "ranks": 1, "num_bytes": 1 << (16 if small else 30)}
    found = {}
    for bound, point in (
        ("copy", make_point("send", copy)),
        ("matmul", make_point("gemm", {"dtype": dtype, "n": size, "k": size, "m": size})),
    ):
        operation = workbench.prepare(point)
        timing = timer.measure(operation.call, EFFORT, rotations=operation.rotations)
        done = 2 * point["num_bytes"] if bound == "copy" else work(point)[0]
        found[bound] = done / timing.median_s
    return found


def run(case: Case, ceiling: float, timer: Timer, device: Device) -> Result:
    """Times a case and its rival."""
    before = device.state()
    timing = timer.measure(case.call, EFFORT, rotations=case.rotations)
    rival_s = timer.measure(case.rival, EFFORT, rotations=case.rotations).median_s if case.rival else None
    per_s = case.work / timing.median_s
    throttled = is_throttled(before, device.state())
    return Result(case.name, case.bound, timing.median_s, per_s, per_s / ceiling, rival_s, case.goal, throttled)


def line(result: Result) -> str:
    """One result for people."""
    unit, size = ("TFLOP/s", 1e12) if result.bound == "matmul" else ("GB/s", 1e9)
    text = (
        f"{result.name:34s} {1e6 * result.median_s:10.1f} us {result.per_s / size:9.1f} {unit:8s} {result.share:6.1%}"
    )
    if result.goal is not None:
        text += f"  goal {result.goal:.0%} {'met' if result.share >= result.goal else 'MISSED'}"
    if result.rival_s is not None:
        text += f"  torch {1e6 * result.rival_s:.1f} us{'' if result.rival_s >= result.median_s else ' FASTER'}"
    return text + ("  (throttled)" if result.throttled else "")


def main() -> int:
    """Measures everything on the first GPU, or says why not."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("-o", "--output", type=Path, help="write the results with their provenance as JSON")
    arguments = parser.parse_args()
    try:
        return measure(arguments.output)
    except SplitplanError as error:
        sys.stderr.write(f"not measured: {error}\n")
        return 1


def measure(output: Path | None) -> int:
    """Prints the table of this machine's first GPU; 1 when a goal is missed or torch is faster."""
    from splitplan.profiler import session
    from splitplan.profiler.device import CudaDevice
    from splitplan.profiler.timer import CudaTimer

    device = CudaDevice(0)
    torch = session.import_torch()
    from splitplan.profiler.gpu_check import check_attention
    from splitplan.profiler.gpu_operations import GpuWorkbench

    gpu = session.gpu_of_reading(device.reading.name)
    check_attention(torch, "cuda:0", torch.bfloat16)
    workbench, timer = GpuWorkbench(torch, "cuda:0", gpu.l2_bytes), CudaTimer(torch)
    limits = ceilings(torch, workbench, timer)
    copy, product = limits["copy"] / 1e9, limits["matmul"] / 1e12
    print(f"{device.reading.name}: copy {copy:.0f} GB/s, bf16 product {product:.0f} TFLOP/s")
    results = []
    for case in cases(torch, workbench):
        results.append(run(case, limits[case.bound], timer, device))
        print(line(results[-1]), flush=True)
    if output:
        provenance = session.device_provenance(device, torch, "own kernels", *session.kernel_sources())
        document = {"provenance": provenance, "ceilings": limits, "results": [asdict(result) for result in results]}
        output.write_text(json.dumps(document, indent=1) + "\n")
    missed = [r for r in results if (r.goal or 0) > r.share or (r.rival_s or r.median_s) < r.median_s]
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
