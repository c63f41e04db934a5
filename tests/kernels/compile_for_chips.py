"""Compiles every kernel for chips that are not here, as its wrapper launches it, and prints what it takes as JSON.

Run as a child process: one process cannot both interpret and compile. The wrappers are called on *meta* tensors, so
what is compiled is exactly the specialisation (blocks, dtypes, warps) that production launches; triton's own ptxas and
cuobjdump tell registers, stack and shared memory.

    python compile_for_chips.py sm_80 sm_89 sm_90 sm_100
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime.jit import JITFunction

from splitplan.kernels.chips import CHIPS, use_chip
from splitplan.kernels.configs import GROUPED_GEMM
from splitplan.kernels.decode import decode_attention
from splitplan.kernels.e4m3 import dequantize_kv, quantize_kv
from splitplan.kernels.mla import mla_decode
from splitplan.kernels.moe import Routing, grouped_gemm
from splitplan.kernels.packing import pack, unpack
from splitplan.kernels.pointwise import rmsnorm_residual, rotary_and_write, swiglu
from splitplan.kernels.prefill import prefill_attention

TENSOR_CORES = re.compile(r"\b(mma\.sync|wgmma\.mma_async|tcgen05\.mma)")


class AbsentDriver:
    """What Triton asks its driver for when it compiles without launching."""

    def __init__(self, capability: int) -> None:
        self._capability = capability

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", self._capability, 32)

    def get_current_device(self) -> int:
        return self._capability  # Triton caches by device: one for each chip keeps them apart

    def get_current_stream(self, device: int) -> int:
        return 0


@contextmanager
def compiling_for(chip: str) -> Iterator[list[dict[str, Any]]]:
    """Inside, launching a kernel compiles it for `chip` and adds a report."""
    reports: list[dict[str, Any]] = []
    run, active = JITFunction.run, triton.runtime.driver._active

    def compile_only(self: Any, *arguments: Any, grid: Any, warmup: bool, **options: Any) -> Any:
        compiled = run(self, *arguments, grid=grid, warmup=True, **options)
        reports.append(report(compiled, chip))
        return compiled

    triton.runtime.driver.set_active(AbsentDriver(int(chip.removeprefix("sm_"))))
    JITFunction.run = compile_only
    try:
        with use_chip(chip):
            yield reports
    finally:
        JITFunction.run = run
        triton.runtime.driver._active = active


def report(compiled: Any, chip: str) -> dict[str, Any]:
    with tempfile.NamedTemporaryFile(suffix=".cubin") as cubin:
        cubin.write(compiled.asm["cubin"])
        cubin.flush()
        command = [triton.knobs.nvidia.cuobjdump.path, "-res-usage", cubin.name]
        usage = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = dict(re.findall(r"\b(REG|STACK):(\d+)", usage))
    return {
        "kernel": compiled.metadata.name.strip("_"),
        "chip": chip,
        "registers": int(found["REG"]),
        "stack_bytes": int(found["STACK"]),
        "shared_bytes": compiled.metadata.shared,
        "fits": compiled.metadata.shared <= CHIPS[chip].shared_memory_per_block_bytes,
        "tensor_cores": bool(TENSOR_CORES.search(compiled.asm["ptx"])),
    }


def meta(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def ints(*shape: int) -> torch.Tensor:
    return meta(*shape, dtype=torch.int32)


def launches() -> Iterator[tuple[str, Callable[[], Any]]]:
    """Each kernel at the shapes of models that are served: head dimensions 64, 128 and 256, bf16 and e4m3 caches."""
    for head_dim in (64, 128, 256):
        for window in (0, 1024) if head_dim == 128 else (0,):
            query, key = meta(4096, 32, head_dim), meta(8192, 8, head_dim)
            name = f"prefill d{head_dim}" + (" window" if window else "")
            yield name, lambda q=query, k=key, w=window: prefill_attention(q, k, k, ints(3), ints(3), 2048, window=w)
        for cache_dtype in (torch.bfloat16, torch.uint8) if head_dim == 128 else (torch.bfloat16,):
            query, cache = meta(64, 32, head_dim), meta(4096, 16, 8, head_dim, dtype=cache_dtype)
            yield (
                f"decode d{head_dim} {cache_dtype}".replace("torch.", ""),
                lambda q=query, c=cache: decode_attention(q, c, c, ints(64, 256), ints(64), 4096, num_splits=8),
            )
    yield (
        "decode window, one split",
        lambda: decode_attention(
            meta(256, 8, 128), meta(64, 16, 4, 128), meta(64, 16, 4, 128), ints(256, 9), ints(256), 4096, window=512
        ),
    )
    yield (
        "mla decode",
        lambda: mla_decode(
            meta(64, 128, 576), meta(4096, 64, 576), ints(64, 64), ints(64), 4096, latent_dim=512, scale_dim=192
        ),
    )
    for many in (False, True):

        def experts(many: bool = many) -> Any:
            from splitplan.kernels.chips import chip_of

            rows = meta(8192 if many else 16, 4096)
            block = GROUPED_GEMM[chip_of(rows).name, many].block_m
            routing = Routing(ints(64 * block), ints(64), block, 2)
            return grouped_gemm(rows, meta(8, 1024, 4096), routing)

        yield f"grouped gemm {'large' if many else 'small'}", experts
    rows = meta(2048, 8192)
    yield "rmsnorm", lambda: rmsnorm_residual(rows, rows, meta(8192))
    yield "swiglu", lambda: swiglu(meta(2048, 28672))
    for cache_dtype in (torch.bfloat16, torch.uint8):
        cache = meta(4096, 16, 8, 128, dtype=cache_dtype)
        yield f"rotary {cache_dtype}".replace("torch.", ""), lambda c=cache: rotary_and_write(
            meta(64, 32, 128), meta(64, 8, 128), meta(64, 8, 128), meta(4096, 128, dtype=torch.float32), ints(64),
            ints(64), c, c,
        )  # fmt: skip
    scale = meta(8, dtype=torch.float32)
    codes = meta(64, 8, 128, dtype=torch.uint8)
    yield "quantize", lambda: quantize_kv(meta(64, 8, 128), scale)
    yield "dequantize", lambda: dequantize_kv(codes, scale, meta(64, 8, 128))
    yield "pack", lambda: pack(meta(4096, 16, 8, 128), ints(64), 0, 4, meta(64, 16, 4, 128))
    yield "unpack", lambda: unpack(meta(64, 16, 4, 128), meta(4096, 16, 8, 128), ints(64), 4)


def main(chips: list[str]) -> None:
    reports = []
    for chip in chips:
        with compiling_for(chip) as found:
            for case, launch in launches():
                before = len(found)
                try:
                    launch()
                except Exception as error:  # a kernel that does not compile is a finding, not the end
                    found.append({"chip": chip, "kernel": case, "error": f"{type(error).__name__}: {error}"[:500]})
                for entry in found[before:]:
                    entry["case"] = case
        reports += found
    json.dump(reports, sys.stdout)


if __name__ == "__main__":
    main(sys.argv[1:])
