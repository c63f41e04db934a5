"""Operation times: measured where measured, honest about the rest, and sane everywhere."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from splitplan.catalogs.errors import InputError
from splitplan.catalogs.gpus import find_gpu
from splitplan.catalogs.links import find_link
from splitplan.profiler.profile import Basis, Profile, Timed
from splitplan.profiler.query import OpTimes
from splitplan.profiler.store import find_profile, make_table
from splitplan.profiler.tables.mla import DEEPSEEK_V3

GPUS = ("h100-sxm", "a100-sxm-80", "l40s", "h200-sxm")
GQA = {"heads": 8, "kv_heads": 2, "head_dim": 128}
NVLINK, PCIE = find_link("nvlink4"), find_link("pcie4-x16")


@cache
def ops(gpu: str, engine: str = "vllm") -> OpTimes:
    return OpTimes(find_profile(gpu, engine), find_gpu(gpu))


def rooflines(gpu: str) -> OpTimes:
    return OpTimes(None, find_gpu(gpu))


def row(gpu: str, family: str, **wanted: object) -> float:
    table = find_profile(gpu, "vllm").tables[family]
    match = np.all([table.keys[name] == value for name, value in wanted.items()], axis=0)
    assert match.sum() == 1
    return float(table.seconds[match][0])


# Measured points


def test_a_measured_product_is_what_was_measured() -> None:
    timed = ops("h100-sxm").gemm(257, 4096, 8192)
    assert float(timed.seconds) == pytest.approx(row("h100-sxm", "gemm", dtype="bf16", m=257, n=4096, k=8192), rel=1e-9)
    assert timed.basis == Basis.MEASURED


def test_measured_attention_is_what_was_measured() -> None:
    shape = {"kv_dtype": "bf16", "head_dim": 128, "window": 0, "heads": 8, "kv_heads": 2}
    decode = ops("h100-sxm").decode_attention(32, 4096, **GQA)
    assert float(decode.seconds) == pytest.approx(row("h100-sxm", "decode_attention", batch=32, context=4096, **shape))
    prefill = ops("h100-sxm").prefill_attention(1024, 0, batch=4, **GQA)
    assert float(prefill.seconds) == pytest.approx(row("h100-sxm", "prefill_attention", batch=4, new=1024, **shape))
    assert decode.basis == prefill.basis == Basis.MEASURED


def test_measured_experts_and_latent_attention_are_what_was_measured() -> None:
    shape = {"hidden": 7168, "inter": 2048, "topk": 8, "num_experts": 256, "tp": 1, "ep": 8}
    experts = ops("h100-sxm").moe(512, dtype="fp8_block", distribution="power_law", **shape)
    published = row("h100-sxm", "moe", dtype="fp8_block", distribution="power_law_1.2", tokens=512, **shape)
    assert float(experts.seconds) == pytest.approx(published)
    latent = ops("h100-sxm").mla_decode(32, 4096, heads=16, mla=DEEPSEEK_V3)
    published = row("h100-sxm", "mla_decode", dtype="bf16", kv_dtype="bf16", heads=16, batch=32, context=4096)
    assert float(latent.seconds) == pytest.approx(published)
    assert experts.basis == latent.basis == Basis.MEASURED


# Shapes


def test_arguments_broadcast() -> None:
    timed = ops("h100-sxm").gemm(np.arange(1, 5)[:, None], np.array([4096, 5000, 6144]), 4096)
    assert timed.seconds.shape == timed.basis.shape == (4, 3)
    assert timed.seconds.dtype == np.float64
    assert timed.basis.dtype == np.uint8
    one = ops("h100-sxm").gemm(3, 5000, 4096)
    assert one.seconds.shape == ()
    assert float(one.seconds) == float(timed.seconds[2, 1])


def test_no_work_takes_no_time_and_a_negative_size_is_an_error() -> None:
    shape = {"hidden": 4096, "inter": 14336, "topk": 2, "num_experts": 8}
    for op in (ops("h100-sxm"), rooflines("h100-sxm")):
        for timed in (
            op.gemm([0, 8], 4096, 4096),
            op.prefill_attention([0, 8], 100, **GQA),
            op.decode_attention([0, 8], 100, **GQA),
            op.mla_decode([0, 8], 100, heads=16, mla=DEEPSEEK_V3),
            op.moe([0, 8], **shape),
            op.all_reduce([0, 8], 4, NVLINK),
            op.elementwise([0, 8]),
            op.quantize([0, 8], 4096),
        ):
            assert timed.seconds[0] == 0.0
            assert timed.seconds[1] > 0
        assert float(op.decode_attention(8, 0, **GQA).seconds) > 0
        with pytest.raises(InputError, match="negative"):
            op.gemm(-1, 4096, 4096)
        with pytest.raises(InputError, match="not a number"):
            op.decode_attention(float("nan"), 10, **GQA)


# Stairs


def test_a_product_is_read_on_its_stairs_not_through_them() -> None:
    """Past a tile edge the time jumps: 320 rows of fp8 take what 257 do, not a quarter of the way from 256 to 512."""
    at_256, at_257, at_320, at_512 = ops("h100-sxm").gemm(np.array([256, 257, 320, 512]), 8192, 8192, "fp8").seconds
    assert at_257 > 1.3 * at_256
    assert at_320 == pytest.approx(at_257, rel=0.15)
    assert at_320 > 1.1 * (at_256 + (at_512 - at_256) / 4)


def test_where_the_table_names_no_tile_edges_the_reference_has_the_stairs() -> None:
    """A100's table jumps from 1,024 to 2,048: between them a straight line in m would miss the waves."""
    m = np.arange(1025, 2048)
    seconds = ops("a100-sxm-80").gemm(m, 8192, 8192).seconds
    steps = np.abs(np.diff(seconds)) / seconds[:-1]
    assert np.sum(steps > 0.01) < 20
    assert np.median(steps) < 1e-3


def test_between_columns_of_the_grid_equal_tiles_take_equal_time() -> None:
    """70B at TP 4 needs n = 14,336, which no table has: it lies between its neighbours, and near their rate."""
    m = np.array([16, 256, 4096])
    low, high = (ops("h100-sxm").gemm(m, n, 8192).seconds for n in (12288, 16384))
    timed = ops("h100-sxm").gemm(m, 14336, 8192)
    assert np.all((timed.seconds > low) & (timed.seconds < high))
    assert np.all(timed.basis == Basis.INTERPOLATED)


def test_a_decode_steps_up_past_one_block_of_keys() -> None:
    """128 keys are one block on H100: to 128 the time is flat, from 129 on it is that of two blocks."""
    seconds = ops("h100-sxm").decode_attention(1, np.array([64, 100, 128, 129, 160, 256]), **GQA).seconds
    assert np.ptp(seconds[:3]) < 0.05 * seconds[0]
    assert np.all(seconds[3:] > 1.05 * seconds[:3].max())


# Stand-ins


@pytest.mark.parametrize(
    ("ask", "basis"),
    [
        (lambda op: op.gemm(64, 4096, 4096, "bf16"), Basis.MEASURED),
        (lambda op: op.gemm(65, 4096, 4096, "bf16"), Basis.INTERPOLATED),
        (lambda op: op.gemm(16384, 4096, 4096, "bf16"), Basis.EXTRAPOLATED),  # A100 stops at m = 8,192
        (lambda op: op.gemm(64, 4096, 4096, "fp8"), Basis.EXTRAPOLATED),  # and was measured in bf16 only
        (lambda op: op.gemm(64, 4096, 4096, "int4"), Basis.EXTRAPOLATED),
        (lambda op: op.prefill_attention(4096, 0, **GQA), Basis.MEASURED),
        (lambda op: op.prefill_attention(5000, 0, **GQA), Basis.INTERPOLATED),
        (lambda op: op.prefill_attention(32768, 0, **GQA), Basis.EXTRAPOLATED),  # at 16,384 tokens
        (lambda op: op.prefill_attention(512, 2048, **GQA), Basis.EXTRAPOLATED),  # without a past
        (lambda op: op.prefill_attention(4096, 0, heads=8, kv_heads=2, head_dim=64), Basis.EXTRAPOLATED),
        (lambda op: op.prefill_attention(4096, 0, window=1024, **GQA), Basis.EXTRAPOLATED),
        (lambda op: op.decode_attention(8, 1024, kv_dtype="fp8", **GQA), Basis.EXTRAPOLATED),
        (lambda op: op.decode_attention(8, 1024, heads=28, kv_heads=4, head_dim=128), Basis.EXTRAPOLATED),
        (lambda op: op.decode_attention(8, 1024, heads=64, kv_heads=16, head_dim=128), Basis.INTERPOLATED),
        (lambda op: op.mla_decode(8, 1024, heads=16, mla=DEEPSEEK_V3), Basis.ASSUMED),
        (lambda op: op.elementwise(1e6), Basis.ASSUMED),
        (lambda op: op.all_reduce(1 << 20, 8, find_link("nvlink3")), Basis.MEASURED),
        (lambda op: op.all_reduce(1 << 20, 8, find_link("pcie4-x16")), Basis.ASSUMED),
        (lambda op: op.all_reduce(1 << 20, 16, find_link("ib-hdr")), Basis.ASSUMED),
    ],
)
def test_every_time_says_where_it_comes_from(ask: Callable[[OpTimes], Timed], basis: Basis) -> None:
    """What A100's tables lack is scaled from what they have, or is a roofline, and is marked so."""
    timed = ask(ops("a100-sxm-80"))
    assert timed.basis == basis
    assert 1e-6 < float(timed.seconds) < 10


def test_without_a_profile_everything_is_a_roofline_and_assumed() -> None:
    op = rooflines("h100-sxm")
    shape = {"hidden": 4096, "inter": 14336, "topk": 2, "num_experts": 8}
    for timed in (
        op.gemm(64, 4096, 4096),
        op.prefill_attention(512, 0, **GQA),
        op.decode_attention(8, 512, **GQA),
        op.mla_prefill(512, heads=16, mla=DEEPSEEK_V3),
        op.moe(64, **shape),
        op.all_reduce(1e6, 8, NVLINK),
        op.send(1e6, 2, NVLINK),
    ):
        assert timed.basis == Basis.ASSUMED
    assert float(op.gemm(16384, 16384, 16384).seconds) == pytest.approx(2 * 16384**3 / (989e12 * 0.78), rel=0.02)


@pytest.mark.parametrize(("dtype", "low", "high"), [("int4", 0.6, 1.2), ("int8_wo", 0.8, 1.25)])
def test_weight_only_products_are_near_the_only_table_that_measured_some(dtype: str, low: float, high: float) -> None:
    """A100 under TensorRT-LLM has int4 and int8 weight-only rows; ours are predicted from vLLM's bf16 rows."""
    table = find_profile("a100-sxm-80", "trtllm").tables["gemm"]
    m, n, k = (table.keys[name] for name in ("m", "n", "k"))
    rows = (table.keys["dtype"] == dtype) & (n >= 2048) & (k >= 2048)
    for first, last in ((1, 64), (64, 512), (512, 8192)):
        some = rows & (m >= first) & (m <= last)
        ratio = ops("a100-sxm-80").gemm(m[some], n[some], k[some], dtype).seconds / table.seconds[some]
        assert low <= np.median(ratio) <= high


def test_block_scaled_products_without_device_times_are_read_off_plain_fp8() -> None:
    """vLLM's small block-scaled rows timed the host, and were dropped: 64 rows take neither 60 µs nor 300 µs."""
    for gpu in ("h100-sxm", "l40s"):
        block, plain = (ops(gpu).gemm(64, 4096, 4096, dtype) for dtype in ("fp8_block", "fp8"))
        assert block.basis == Basis.EXTRAPOLATED
        assert 0.7 < float(block.seconds / plain.seconds) < 1.6
    assert ops("h100-sxm").gemm(8192, 8192, 8192, "fp8_block").basis == Basis.MEASURED


def test_a_chunk_after_a_past_costs_its_attended_pairs() -> None:
    """Chunks of 2,048 attend to the same pairs as 16,384 tokens at once; each chunk to more than the one before."""
    shape = {"heads": 32, "kv_heads": 8, "head_dim": 128}
    whole = float(ops("h100-sxm").prefill_attention(16384, 0, **shape).seconds)
    chunks = ops("h100-sxm").prefill_attention(2048, np.arange(0, 16384, 2048), **shape).seconds
    assert np.all(np.diff(chunks) > 0)
    assert 0.9 < chunks.sum() / whole < 1.3


def test_a_small_chunk_after_a_long_past_still_reads_that_past() -> None:
    keys_bytes = 2 * 100_000 * GQA["kv_heads"] * 128 * 2
    seconds = float(ops("h100-sxm").prefill_attention(16, 100_000, **GQA).seconds)
    assert seconds > keys_bytes / 3.35e12


def test_measured_rows_with_a_past_correct_the_model() -> None:
    """Half again the modelled time at one past is half again there, and nothing where there is no past."""
    news, pasts = np.meshgrid([256, 1024, 4096], [0, 2048, 8192])
    plain = rooflines("h100-sxm").prefill_attention(news, pasts, **GQA).seconds
    shape = {"kv_dtype": ["bf16"] * 9, "head_dim": [128] * 9, "window": [0] * 9, "heads": [8] * 9, "kv_heads": [2] * 9}
    keys = {**shape, "batch": [1] * 9, "past": pasts.ravel(), "new": news.ravel()}
    slow = np.where(pasts > 0, 1.5, 1.0) * plain
    table = make_table("prefill_attention", keys, slow.ravel())
    op = OpTimes(Profile("h100-sxm", "own", "", {"prefill_attention": table}, {}), find_gpu("h100"))
    timed = op.prefill_attention(news, pasts, **GQA)
    np.testing.assert_allclose(timed.seconds, slow, rtol=1e-6)
    assert timed.basis[0, 0] == Basis.MEASURED
    assert timed.basis[1, 1] == Basis.INTERPOLATED


def test_a_window_bounds_the_work() -> None:
    """Past the window neither a decode nor the next prompt token gets dearer."""
    near, far = ops("h100-sxm").decode_attention(16, np.array([4096, 65536]), window=128, **GQA).seconds
    assert far == pytest.approx(near, rel=0.05)
    full = float(ops("h100-sxm").prefill_attention(16384, 0, **GQA).seconds)
    assert float(ops("h100-sxm").prefill_attention(16384, 0, window=128, **GQA).seconds) < 0.3 * full


def test_fp8_cache_halves_what_a_long_decode_reads() -> None:
    """Also where only bf16 was measured (A100): the bytes are fp8's."""
    for gpu in GPUS:
        bf16, fp8 = (float(ops(gpu).decode_attention(64, 16384, kv_dtype=d, **GQA).seconds) for d in ("bf16", "fp8"))
        assert 0.45 < fp8 / bf16 < 0.75


def test_lines_off_the_grid_win_where_they_are_asked_for() -> None:
    """A model's own shape, measured here, beside a grid: exact where measured, and the grid is left alone."""
    base = find_profile("a100-sxm-80", "vllm").tables["gemm"]
    own = {"dtype": ["bf16"] * 2, "n": [14336] * 2, "k": [8192] * 2, "m": [16, 4096]}
    keys = {name: np.concatenate([base.keys[name], np.asarray(own[name])]) for name in base.keys}
    table = make_table("gemm", keys, np.concatenate([base.seconds, [1e-3, 9e-3]]))
    op = OpTimes(Profile("a100-sxm-80", "x", "", {"gemm": table}, {}), find_gpu("a100"))
    own_line = op.gemm(np.array([16, 4096, 1024]), 14336, 8192)
    np.testing.assert_allclose(own_line.seconds[:2], [1e-3, 9e-3], rtol=1e-6)
    assert own_line.basis.tolist() == [Basis.MEASURED, Basis.MEASURED, Basis.INTERPOLATED]
    other = (np.array([16, 1000]), 13000, 8192)
    np.testing.assert_allclose(op.gemm(*other).seconds, ops("a100-sxm-80").gemm(*other).seconds)


# Experts


def test_experts_not_measured_are_read_off_the_nearest_shape() -> None:
    """Mixtral's experts at TP 3, or half as wide: scaled by the roofline, and said so."""
    shape = {"hidden": 4096, "inter": 14336, "topk": 2, "num_experts": 8, "distribution": "balanced"}
    measured = ops("h100-sxm").moe(4096, **shape)
    narrow = ops("h100-sxm").moe(4096, **{**shape, "inter": 7168})
    assert measured.basis == Basis.MEASURED
    assert narrow.basis == Basis.EXTRAPOLATED
    assert 0.35 < float(narrow.seconds / measured.seconds) < 0.75


def test_skewed_routing_costs_more_than_balanced() -> None:
    """On the busiest of eight ranks, by TensorRT-LLM's rows; vLLM's balanced ones of this shape are oddly slow."""
    shape = {"hidden": 7168, "inter": 2048, "topk": 8, "num_experts": 256, "ep": 8, "dtype": "fp8_block"}
    op = ops("h100-sxm", "trtllm")
    skewed, balanced = (float(op.moe(8192, distribution=d, **shape).seconds) for d in ("power_law", "balanced"))
    assert skewed > 1.2 * balanced


# Memory-bound


def test_finding_the_scale_of_activations_is_read_from_its_table() -> None:
    published = row("h100-sxm", "quantize", stage="cast", m=4096, k=8192)
    assert float(ops("h100-sxm").quantize(4096, 8192, stage="cast").seconds) == pytest.approx(published)
    assert ops("a100-sxm-80").quantize(4096, 8192).basis == Basis.ASSUMED


# Collectives


def test_an_all_reduce_over_pcie_is_read_from_a_host_like_the_one_asked_about() -> None:
    """L40S tables come from two kinds of host, ten times apart at eight ranks; the host's own link decides which."""
    fast, slow = PCIE, replace(PCIE, name="pcie-through-host", bytes_per_s=3e9)
    op = ops("l40s")
    assert op.host_class(8, fast) == "pcie-fast-host"
    assert op.host_class(8, slow) == "pcie-slow-host"
    size = 1 << 30
    assert float(op.all_reduce(size, 8, slow).seconds) > 9 * float(op.all_reduce(size, 8, fast).seconds)
    assert float(op.all_reduce(size, 8, slow).seconds) == pytest.approx(0.961, rel=0.01)
    assert float(op.all_reduce(size, 8, fast).seconds) == pytest.approx(0.090, rel=0.01)


def test_a_prediction_over_pcie_says_which_kind_of_host_it_took() -> None:
    """The fleet names the link; the catalog has both kinds."""
    op, slow = ops("l40s"), find_link("pcie4-slow-host")
    assert op.host_class(4, slow) == "pcie-slow-host"
    assert op.host_note(4, slow).startswith("all-reduce of 4 over pcie4-slow-host as measured on a pcie-slow-host")
    assert "gpu_link pcie4-slow-host" in op.host_note(4, PCIE)
    assert op.host_note(1, PCIE) == ""
    assert ops("h100-sxm").host_note(8, NVLINK) == ""
    assert rooflines("l40s").host_note(8, PCIE) == ""


def test_a_table_over_one_link_does_not_speak_for_another() -> None:
    """H100's all-reduce was measured over NVSwitch: over a bridge, PCIe or InfiniBand it is modelled on the link."""
    op, size = ops("h100-sxm"), 1 << 26
    assert op.all_reduce(size, 8, NVLINK).basis == Basis.MEASURED
    for name, ranks in (("nvlink-bridge-h100", 2), ("pcie5-x16", 8), ("ib-ndr", 8)):
        link = find_link(name)
        timed = op.all_reduce(size, ranks, link)
        assert timed.basis == Basis.ASSUMED
        assert float(timed.seconds) >= 2 * (ranks - 1) / ranks * size / link.bytes_per_s


def test_one_rank_needs_no_collective() -> None:
    assert float(ops("h100-sxm").all_reduce(1e6, 1, NVLINK).seconds) == 0.0


def test_launched_collectives_cost_more_than_replayed_ones_when_small() -> None:
    replayed, launched = (ops("h100-sxm").all_reduce(8192, 4, NVLINK, how=how).seconds for how in ("graph", "eager"))
    assert float(launched) > 3 * float(replayed)


def test_beyond_the_largest_message_the_bandwidth_is_its() -> None:
    one, four = ops("h100-sxm").all_reduce(np.array([1 << 30, 1 << 32]), 8, NVLINK).seconds
    assert four == pytest.approx(4 * one)


def test_a_ring_over_a_link_takes_its_bandwidth_and_hops() -> None:
    """2 (r − 1) / r of the bytes at the achievable rate, and 2 (r − 1) first bytes."""
    link, size, ranks = find_link("ib-ndr"), 1 << 28, 4
    expected = 6 * link.latency_s + 1.5 * size / link.achievable_bytes_per_s
    assert float(rooflines("h100-sxm").all_reduce(size, ranks, link).seconds) == pytest.approx(expected)
    assert float(rooflines("h100-sxm").all_gather(size, ranks, link).seconds) == pytest.approx(expected / 2)


# Everywhere

DTYPES = ("bf16", "fp8", "fp8_block", "int4", "mxfp4")


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    gpu=st.sampled_from(GPUS),
    dtype=st.sampled_from(DTYPES),
    m=st.integers(1, 100_000),
    n=st.integers(1024, 300_000),
    k=st.integers(1024, 100_000),
)
def test_products_of_any_size_take_sane_time(gpu: str, dtype: str, m: int, n: int, k: int) -> None:
    """Positive, finite, and within a factor of the roofline that covers the worst kernels measured."""
    seconds = float(ops(gpu).gemm(m, n, k, dtype).seconds)
    assert np.isfinite(seconds)
    assert 0.2 < seconds / float(rooflines(gpu).gemm(m, n, k, dtype).seconds) < 20


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    gpu=st.sampled_from(GPUS),
    kv_dtype=st.sampled_from(("bf16", "fp8")),
    heads=st.sampled_from([(1, 1), (8, 1), (7, 1), (28, 4), (32, 8), (64, 8), (40, 40), (128, 128)]),
    head_dim=st.sampled_from([64, 80, 128, 192, 256]),
    window=st.sampled_from([None, 128, 512, 1024, 4096]),
    length=st.integers(1, 1_000_000),
    past=st.integers(0, 500_000),
    batch=st.integers(1, 4096),
)
def test_attention_of_any_shape_takes_sane_time(
    gpu: str,
    kv_dtype: str,
    heads: tuple[int, int],
    head_dim: int,
    window: int | None,
    length: int,
    past: int,
    batch: int,
) -> None:
    shape = {"heads": heads[0], "kv_heads": heads[1], "head_dim": head_dim, "window": window, "kv_dtype": kv_dtype}
    for name, sizes, more in (
        ("decode_attention", (batch, length), {}),
        ("prefill_attention", (length, past), {"batch": min(batch, 64)}),
    ):
        seconds = float(getattr(ops(gpu), name)(*sizes, **more, **shape).seconds)
        assert np.isfinite(seconds)
        assert 0.08 < seconds / float(getattr(rooflines(gpu), name)(*sizes, **more, **shape).seconds) < 60


@pytest.mark.parametrize("gpu", GPUS)
def test_more_work_never_takes_much_less_time(gpu: str) -> None:
    """Measured times wobble (clocks, kernel choice); a step down is within that noise, and the trend is up."""
    op = ops(gpu)
    lengths = np.unique(np.geomspace(1, 200_000, 400).astype(int))
    for seconds in (
        op.gemm(np.unique(np.geomspace(1, 60_000, 300).astype(int)), 14336, 8192).seconds,
        op.decode_attention(16, lengths, **GQA).seconds,
        op.decode_attention(np.unique(np.geomspace(1, 4000, 200).astype(int)), 2000, **GQA).seconds,
        op.prefill_attention(lengths[lengths < 60_000], 0, **GQA).seconds,
        op.prefill_attention(512, lengths, **GQA).seconds,
    ):
        highest = np.maximum.accumulate(seconds)
        assert np.min(seconds / highest) > 0.75
        assert seconds[-1] > 2 * seconds[0]


@pytest.mark.parametrize("gpu", GPUS)
def test_there_is_no_jump_where_a_table_ends(gpu: str) -> None:
    """One past the last measured size takes within 5 % of it."""
    op, last_m = ops(gpu), 8192 if gpu == "a100-sxm-80" else 32768
    for timed in (
        op.gemm(np.array([last_m, last_m + 1]), 4096, 4096),
        op.gemm(256, np.array([65536, 65537]), 4096),
        op.prefill_attention(np.array([16384, 16385]), 0, **GQA),
        op.decode_attention(np.array([2048, 2049]), 128, **GQA),
        op.decode_attention(1, np.array([131072, 131073]), **GQA),
    ):
        inside, outside = timed.seconds
        assert outside == pytest.approx(inside, rel=0.05)
