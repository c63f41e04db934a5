"""Sizes against what engines reported of themselves on H100 (vLLM 0.19), and cases from public trackers."""

from __future__ import annotations

import csv
from typing import Any

import pytest

from splitplan.catalogs.errors import SplitplanError
from splitplan.catalogs.gpus import find_gpu
from splitplan.catalogs.links import find_link
from splitplan.catalogs.models import Model, find_model
from tests.conftest import SHARED, needs_shared

GIB = 2**30
PADDED_WEIGHTS = {"gpt-oss-20b"}  # the kernels pad 2,880 columns; 6 % more in memory than on disk
PADDED_KV = {"gemma-3-27b", "gemma-3-4b"}  # vLLM pads the groups of hybrid models to equal size


def runs() -> list[dict[str, Any]]:
    path = SHARED / "data" / "measured" / "memory.csv"
    if not path.is_file():
        return []
    with path.open() as handle:
        return list(csv.DictReader(handle))


def model_of(run: dict[str, Any]) -> tuple[Model, str]:
    model = find_model(run["model"])
    plain = {"torch.float32": "fp32", "torch.float16": "fp16", "torch.bfloat16": "bf16"}[run["dtype"]]
    quantised = {"fp8": "fp8", "mxfp4": "mxfp4"}.get(run["quantization"])
    own = model.weight_dtype if run["quantization"] in ("compressed-tensors", "gptq_marlin") else plain
    return model, quantised or own


@needs_shared
def test_weights_weigh_what_engines_reported() -> None:
    """Within 2 % of the reported weight memory of a GPU.

    With a vision tower, whose size is rounded, within 0.7 GiB more.
    """
    checked = 0
    for run in runs():
        model, dtype = model_of(run)
        if model.name in PADDED_WEIGHTS or run["pp"] != "1":
            continue
        reported = float(run["weight_memory_gib"]) * int(run["tp"])
        ours = (model.weight_bytes(dtype) + 2 * model.vision_parameters) / GIB
        slack = 0.02 * reported + (0.7 if model.vision_parameters else 0.0)
        assert ours == pytest.approx(reported, abs=slack), (run["model"], dtype, ours, reported)
        checked += 1
    assert checked > 40


@needs_shared
def test_kv_takes_what_engines_reported() -> None:
    """KV memory over KV tokens, per GPU, within 0.5 %."""
    checked = 0
    for run in runs():
        model, _ = model_of(run)
        if model.name in PADDED_KV or run["pp"] != "1":
            continue
        kv_dtype = {"auto": "fp32" if run["dtype"] == "torch.float32" else "bf16", "fp8": "fp8"}[run["kv_cache_dtype"]]
        reported = float(run["kv_cache_memory_gib"]) * GIB / int(run["kv_cache_tokens"])
        ours = model.kv_bytes_per_token_per_rank(kv_dtype, int(run["tp"]))
        assert ours == pytest.approx(reported, rel=0.005), (run["model"], run["tp"], ours, reported)
        checked += 1
    assert checked > 40


@needs_shared
def test_every_model_of_the_measured_data_is_in_the_catalog() -> None:
    """disagg.csv, e2e.csv, splitwise_e2e.csv and memory.csv name models and GPUs in many ways.

    The aliases cover them.
    """
    unknown = set()
    for path in sorted((SHARED / "data" / "measured").glob("*.csv")):
        with path.open() as handle:
            for row in csv.DictReader(handle):
                for column, value in row.items():
                    if column == "model" and value:
                        try:
                            find_model(value)
                        except SplitplanError:
                            unknown.add(value)
    assert unknown <= {
        "DeepSeek-class MoE (model name not in the readable part)",
        "Qwen omni model (size not in the readable part)",
    }


@needs_shared
def test_every_gpu_of_the_measured_data_is_in_the_catalog() -> None:
    """Remarks in brackets ("H100-SXM-80GB(DGX-H100)") name the host, not the GPU."""
    seen = set()
    for name, columns in (
        ("e2e.csv", ("gpu",)),
        ("disagg.csv", ("gpu_prefill", "gpu_decode")),
        ("memory.csv", ("gpu",)),
    ):
        with (SHARED / "data" / "measured" / name).open() as handle:
            for row in csv.DictReader(handle):
                seen |= {find_gpu(row[column].partition("(")[0]).name for column in columns if row[column]}
    assert {"h100-sxm", "a100-sxm-80", "l40s", "h800", "h20-3e"} <= seen


def test_a_prefill_worker_at_131072_tokens_needs_40_gib_of_kv() -> None:
    model = find_model("llama-3.1-70b-fp8")
    assert model.kv_bytes(131_072, "bf16") / GIB == pytest.approx(40, rel=0.001)
    assert model.kv_bytes(131_072, "fp8") / GIB == pytest.approx(20, rel=0.001)


def test_weights_that_cannot_fit_are_known_from_the_catalog_alone() -> None:
    """DeepSeek-V3 in fp8 on two H200, Llama-3.1-405B in bf16 on one H100: memory is the reason, not the SLO."""
    assert find_model("deepseek-v3").weight_bytes("fp8") > 2 * find_gpu("h200").memory_bytes
    assert find_model("llama-3.1-405b").weight_bytes("bf16") > find_gpu("h100").memory_bytes


def test_72b_weights_leave_little_on_two_a100() -> None:
    """67.8 of the 71.3 GiB that the engine said it would use at 0.9 of the memory PyTorch sees."""
    weights = find_model("qwen2.5-72b").weight_bytes("bf16") / 2 / GIB
    assert weights == pytest.approx(67.8, abs=0.3)
    assert weights < 0.9 * find_gpu("a100").memory_bytes / GIB


def test_small_blocks_cost_more_than_their_bytes() -> None:
    """5,000 tokens in blocks of 16, 8 KiB descriptors over RDMA: about 105 ms measured; the bytes alone would take 7
    ms.

    64 layers, K and V apart; blocks of 64 save about 66 ms.
    """
    link = find_link("ib-ndr")
    blocks = -(-5000 // 16)
    descriptors = blocks * 64 * 2
    seconds = descriptors * (8192 / link.achievable_bytes_per_s + link.per_descriptor_s)
    assert descriptors * 8192 / link.achievable_bytes_per_s < 0.0075
    assert seconds == pytest.approx(0.105, rel=0.15)
    saved = descriptors * 0.75 * link.per_descriptor_s
    assert saved == pytest.approx(0.066, rel=0.05)


def test_links_are_one_direction() -> None:
    """NVLink 4 is sold as 900 GB/s both ways: 655 MB take 1.5 ms at its 450 GB/s one way, 13 ms over 400 Gbit/s."""
    moved = find_model("llama-3.1-70b").kv_bytes(2000, "bf16")
    assert moved / find_link("nvlink4").bytes_per_s == pytest.approx(1.5e-3, rel=0.05)
    assert moved / find_link("ib-ndr").bytes_per_s == pytest.approx(13e-3, rel=0.02)


@pytest.mark.parametrize(
    ("gpu", "dtype", "tflops"),
    [
        ("h100", "bf16", 989.4),
        ("a100", "bf16", 312),
        ("l40s", "bf16", 362.05),
        ("h20", "bf16", 148),
        ("h100", "fp8", 1978.9),
    ],
)
def test_peaks_are_dense(gpu: str, dtype: str, tflops: float) -> None:
    """Datasheets of Hopper and Ada print twice that, with sparsity."""
    assert find_gpu(gpu).flops_per_s[dtype] == tflops * 1e12


def test_h100_memory_is_what_the_driver_reports() -> None:
    """81,559 MiB: neither 80e9 bytes nor 80 GiB."""
    assert find_gpu("h100").memory_bytes == 85_520_809_984
