"""What is timed computes: every operation of every workbench writes all of its output, on the CPU and interpreted."""

from __future__ import annotations

import importlib.util
from typing import Any

import numpy as np
import pytest

from splitplan.catalogs.errors import ProfileError
from splitplan.profiler.points import Point, make_point
from splitplan.profiler.routing import chosen_experts, expert_loads

MLA = {"hidden": 96, "q_lora": 48, "kv_lora": 64, "rope_dim": 16, "nope_dim": 32, "v_dim": 24}
SMALL_POINTS = [
    make_point("gemm", {"dtype": "fp16", "n": 40, "k": 24, "m": 3}),
    *(
        make_point(
            "prefill_attention",
            {
                "kv_dtype": "fp16",
                "head_dim": 32,
                "window": window,
                "heads": 4,
                "kv_heads": 2,
                "batch": 1,
                "past": past,
                "new": 33,
            },
        )
        for window, past in ((0, 0), (0, 20), (16, 20))
    ),
    *(
        make_point(
            "decode_attention",
            {
                "kv_dtype": "fp16",
                "head_dim": 32,
                "window": window,
                "heads": 4,
                "kv_heads": 2,
                "batch": 3,
                "context": 50,
            },
        )
        for window in (0, 16)
    ),
    make_point("mla_decode", {"dtype": "fp16", "kv_dtype": "fp16", "heads": 3, "batch": 2, "context": 20}, MLA),
    make_point(
        "moe",
        {
            "dtype": "fp16",
            "distribution": "power_law_1.2",
            "hidden": 32,
            "inter": 48,
            "topk": 2,
            "num_experts": 8,
            "tp": 1,
            "ep": 2,
            "tokens": 9,
        },
    ),
    make_point("elementwise", {"kind": "rmsnorm", "num_bytes": 1}, {"tokens": 3, "columns": 40}),
    make_point("elementwise", {"kind": "swiglu", "num_bytes": 1}, {"tokens": 3, "columns": 40}),
    make_point(
        "elementwise",
        {"kind": "rotary", "num_bytes": 1},
        {"tokens": 3, "columns": 128, "heads": 4, "kv_heads": 2, "head_dim": 16},
    ),
    make_point("send", {"link": "device-to-device", "host": "", "how": "copy", "ranks": 1, "num_bytes": 4096}),
]


def workbench(kind: str) -> Any:
    """The CPU's, or the GPU's with its kernels in Triton's interpreter."""
    if importlib.util.find_spec("torch") is None:
        pytest.skip("needs torch (extra gpu)")
    import torch

    from splitplan.profiler.torch_operations import TorchWorkbench

    if kind == "cpu":
        return TorchWorkbench(torch, rotation_bytes=1 << 16)
    if importlib.util.find_spec("triton") is None:
        pytest.skip("needs triton (extra gpu)")
    from splitplan.profiler.gpu_operations import GpuWorkbench

    return GpuWorkbench(torch, "cpu", 1 << 14)


@pytest.mark.parametrize("kind", ["cpu", "gpu, interpreted"])
@pytest.mark.parametrize("point", SMALL_POINTS, ids=lambda point: point.key.replace(" ", "-"))
def test_an_operation_overwrites_all_of_its_poisoned_output(kind: str, point: Point) -> None:
    operation = workbench(kind).prepare(point)
    operation.poison()
    assert not operation.is_finite()
    operation.call(0)
    assert operation.is_finite()
    operation.call(operation.rotations + 1)  # any repetition's number is good


def test_mla_prefill_agrees_with_decode_on_its_last_token() -> None:
    """Expanded heads and absorbed projections are the same mathematics: one new token over the same past."""
    bench = workbench("cpu")
    import torch

    from splitplan.profiler.torch_operations import MlaWeights

    shape = {"dtype": "fp32", "kv_dtype": "fp32", "heads": 3, "batch": 2, "past": 19, "new": 1}
    weights = MlaWeights(bench, make_point("mla_prefill", shape, MLA))
    rows, past = torch.randn(2, MLA["hidden"]), torch.randn(2, 19, MLA["kv_lora"] + MLA["rope_dim"])
    mask = torch.ones(1, 20, dtype=torch.bool)
    expanded = weights.prefill(rows, past, mask)
    fresh = (rows @ weights._kv_down.t()).view(2, 1, -1)
    absorbed = weights.decode(rows, torch.cat([past, fresh], 1))
    assert torch.allclose(expanded, absorbed, rtol=1e-3, atol=1e-4 * float(expanded.abs().max()))


def test_cold_buffers_together_exceed_what_the_cache_holds() -> None:
    """Weights rotate through several times the cache; one that is larger than that alone needs no second copy."""
    bench = workbench("cpu")
    small = bench.prepare(make_point("gemm", {"dtype": "bf16", "n": 64, "k": 64, "m": 1}))
    large = bench.prepare(make_point("gemm", {"dtype": "bf16", "n": 1024, "k": 64, "m": 1}))
    assert small.rotations * 64 * 64 * 2 >= 1 << 15
    assert large.rotations == 1
    assert (small.cache, large.cache) == ("cold", "cold")


def test_buffers_are_neither_zeros_nor_constant() -> None:
    bench = workbench("cpu")
    import torch

    (view, *_) = bench._pool.views((100, 100), torch.bfloat16)
    assert 0.9 < float(view.float().std()) < 1.1
    assert len(view.unique()) > 200


def test_what_a_cpu_cannot_run_is_an_error_that_says_so() -> None:
    with pytest.raises(ProfileError, match="fp8"):
        workbench("cpu").prepare(make_point("gemm", {"dtype": "fp8", "n": 8, "k": 8, "m": 1}))


@pytest.mark.parametrize(("tokens", "experts", "topk"), [(1, 8, 2), (7, 8, 8), (1000, 64, 6), (3, 128, 8)])
def test_expert_loads_are_whole_tokens_that_fit(tokens: int, experts: int, topk: int) -> None:
    loads = expert_loads(tokens, experts, topk, 1.2)
    assert loads.sum() == tokens * topk
    assert loads.max() <= tokens
    assert loads.min() >= 0


def test_no_token_chooses_an_expert_twice_and_every_choice_of_one_rank_is_local() -> None:
    chosen = chosen_experts(500, 16, 4, 1, 1.2)
    assert all(len(set(row)) == 4 for row in chosen.tolist())
    assert set(np.unique(chosen)) <= set(range(16))
    assert np.array_equal(np.sort(np.bincount(chosen.flatten())), np.sort(expert_loads(500, 16, 4, 1.2)))


def test_the_busiest_rank_is_the_one_timed() -> None:
    """With two ranks it has at least half of all pairs."""
    chosen = chosen_experts(500, 16, 4, 2, 1.2)
    assert (chosen >= 0).sum() >= 500 * 4 / 2
    assert chosen.max() < 8
