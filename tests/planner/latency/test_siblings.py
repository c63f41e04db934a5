"""Op times of GPUs that were never measured, from a measured relative."""

from __future__ import annotations

import numpy as np
import pytest

from splitplan.catalogs.gpus import find_gpu
from splitplan.planner.latency.siblings import find_op_times
from splitplan.profiler.profile import Basis
from splitplan.profiler.query import OpTimes
from splitplan.profiler.store import find_profile

DECODE = {"heads": 32, "kv_heads": 8, "head_dim": 128, "kv_dtype": "bf16"}


def test_a_measured_gpu_is_read_as_it_is() -> None:
    ops, note = find_op_times(find_gpu("h100"), "vllm")
    direct = OpTimes(find_profile("h100-sxm", "vllm"), find_gpu("h100"))
    assert note == ""
    assert ops.gemm(64, 4096, 4096, "bf16").seconds == direct.gemm(64, 4096, 4096, "bf16").seconds


def test_less_bandwidth_costs_what_the_bytes_say() -> None:
    """A100 40 GB: 1,555 against 2,039 GB/s. A product that waits for weights is slower by no more than that ratio."""
    large, _ = find_op_times(find_gpu("a100"), "vllm")
    small, note = find_op_times(find_gpu("a100-sxm-40"), "vllm")
    slow, fast = (ops.gemm(8, 14336, 4096, "bf16") for ops in (small, large))
    assert "scaled from a100-sxm-80" in note
    assert 1.0 < float(slow.seconds / fast.seconds) <= 2039 / 1555
    assert int(slow.basis) == Basis.EXTRAPOLATED
    long = np.array([4096.0])
    attention = [float(ops.decode_attention(32.0, long, **DECODE).seconds[0]) for ops in (small, large)]
    assert attention[0] > attention[1]


def test_the_same_tensor_cores_take_the_same_time() -> None:
    """A100 40 and 80 GB differ in memory only: compute-bound products cost the same within 2 %."""
    large, _ = find_op_times(find_gpu("a100"), "vllm")
    small, _ = find_op_times(find_gpu("a100-sxm-40"), "vllm")
    times = [float(ops.gemm(4096, 8192, 8192, "bf16").seconds) for ops in (small, large)]
    assert times[0] == pytest.approx(times[1], rel=0.02)


def test_a_faster_gpu_gains_no_more_than_its_roofline_says() -> None:
    """H100 NVL has 3.9 against 3.35 TB/s: small products are at most that much faster, and never free."""
    gpu = find_gpu("h100-nvl")
    nvl, _ = find_op_times(gpu, "vllm")
    sxm, _ = find_op_times(find_gpu("h100"), "vllm")
    sizes = np.array([1.0, 8.0, 64.0])
    ratio = nvl.gemm(sizes, 8192, 8192, "bf16").seconds / sxm.gemm(sizes, 8192, 8192, "bf16").seconds
    assert np.all(ratio >= 3.35 / 3.9 * 0.99)
    assert np.all(ratio < 1.0)


def test_an_unmeasured_architecture_is_a_bare_roofline_and_says_so() -> None:
    ops, note = find_op_times(find_gpu("mi300x"), "vllm")
    assert "bare roofline" in note
    assert int(ops.gemm(64, 4096, 4096, "bf16").basis) == Basis.ASSUMED


def test_tensorrt_llm_casts_inside_other_kernels() -> None:
    """Its fp8 products are vLLM's bare ones; everything else is its own."""
    own, _ = find_op_times(find_gpu("h100"), "trtllm")
    bare, _ = find_op_times(find_gpu("h100"), "vllm")
    table = OpTimes(find_profile("h100-sxm", "trtllm"), find_gpu("h100"))
    assert own.gemm(8, 4096, 4096, "fp8").seconds == bare.gemm(8, 4096, 4096, "fp8").seconds
    assert own.gemm(8, 4096, 4096, "fp8").seconds < table.gemm(8, 4096, 4096, "fp8").seconds
    assert own.gemm(8, 4096, 4096, "bf16").seconds == table.gemm(8, 4096, 4096, "bf16").seconds
