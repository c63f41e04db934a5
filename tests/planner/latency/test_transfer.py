"""KV transfers: the seed facts, descriptors, overlap and tensor-parallel mismatch."""

from __future__ import annotations

import pytest

from splitplan.catalogs.models import AttentionGroup, Mla
from splitplan.planner.latency.transfer import KvTransfer, kv_transfer
from tests.planner.latency.shapes import LLAMA_8B, LLAMA_70B, dense_model


def transfer(model=LLAMA_70B, dtype="bf16", tokens=2000, prefill_tp=4, decode_tp=4, block_tokens=16) -> KvTransfer:
    return kv_transfer(model, dtype, tokens, prefill_tp=prefill_tp, decode_tp=decode_tp, block_tokens=block_tokens)


def test_2000_tokens_are_262_mb_for_8b_and_655_mb_for_70b() -> None:
    """128 KiB and 320 KiB a token in BF16."""
    assert transfer(LLAMA_8B).num_bytes == 2000 * 128 * 1024 == pytest.approx(262e6, rel=1e-3)
    assert transfer(LLAMA_70B).num_bytes == 2000 * 320 * 1024 == pytest.approx(655e6, rel=1e-3)


def test_655_mb_take_13_ms_over_a_nic_and_1_5_ms_over_nvlink() -> None:
    assert transfer().seconds(50e9) == pytest.approx(13.1e-3, rel=0.01)
    assert transfer().seconds(450e9) == pytest.approx(1.46e-3, rel=0.01)
    assert transfer().seconds(900e9) < 1e-3


def test_fp8_halves_the_bytes() -> None:
    assert transfer(dtype="fp8").num_bytes * 2 == transfer().num_bytes


def test_a_512_token_prefix_hit_removes_exactly_its_bytes() -> None:
    saved = transfer(tokens=2000).num_bytes - transfer(tokens=2000 - 512).num_bytes
    assert saved == 512 * 320 * 1024


def test_partial_blocks_move_whole() -> None:
    assert transfer(tokens=17).num_bytes == transfer(tokens=32).num_bytes
    assert transfer(tokens=0).seconds(50e9, latency_s=1.0) == 0


def test_small_blocks_cost_descriptors() -> None:
    """5,000 tokens in 16-token blocks: bandwidth alone is several times too low, and 64-token blocks are cheaper.

    Reported for such a hand-over: 105 ms for the transfer window with 16-token blocks.
    """
    small, large = (
        transfer(LLAMA_8B, tokens=5000, prefill_tp=1, decode_tp=1),
        transfer(LLAMA_8B, tokens=5000, prefill_tp=1, decode_tp=1, block_tokens=64),
    )
    assert small.num_descriptors == 313 * 32 * 2
    assert large.num_descriptors == 79 * 32 * 2
    bandwidth_only = small.seconds(50e9)
    with_descriptors = small.seconds(50e9, per_descriptor_s=4e-6)
    assert with_descriptors > 5 * bandwidth_only
    assert large.seconds(50e9, per_descriptor_s=4e-6) < 0.45 * with_descriptors


def test_ranks_post_descriptors_side_by_side() -> None:
    one, four = transfer(prefill_tp=1, decode_tp=1), transfer(prefill_tp=4, decode_tp=4)
    assert four.num_bytes == one.num_bytes
    assert four.seconds(1e15, per_descriptor_s=1e-6) == pytest.approx(one.seconds(1e15, per_descriptor_s=1e-6))


def test_more_decode_ranks_than_kv_heads_fetch_their_own_copies() -> None:
    """8 KV heads over 16 decode ranks: every head is fetched twice."""
    assert transfer(prefill_tp=8, decode_tp=16).num_bytes == 2 * transfer(prefill_tp=8, decode_tp=8).num_bytes


def test_a_window_moves_only_what_it_still_sees() -> None:
    groups = (AttentionGroup(16, "full", 32, 8, 128), AttentionGroup(16, "sliding", 32, 8, 128, window_tokens=128))
    hybrid = dense_model(groups=groups)
    assert transfer(hybrid).num_bytes == (2000 + 128) * 16 * 4096


def test_mla_moves_the_latent_once_a_rank() -> None:
    mla = Mla(None, 512, 64, 128, 128)
    model = dense_model(groups=(AttentionGroup(32, "mla", 32, 1, 576),), mla=mla)
    assert transfer(model, decode_tp=1, prefill_tp=1).num_bytes == 2000 * 576 * 2 * 32


@pytest.mark.parametrize(
    ("transfer_s", "prefill_s", "exposed_s"),
    [(0.08, 1.0, 0.001), (1.0, 0.08, 1.0 - 0.08 * 79 / 80), (0.5, 0.0, 0.5)],
    ids=["link keeps up", "link too slow", "cached prompt"],
)
def test_layerwise_sending_hides_all_but_the_last_layer(transfer_s: float, prefill_s: float, exposed_s: float) -> None:
    """Against the finish time of a pipeline of 80 layers, computed layer by layer."""
    assert transfer().exposed_seconds(transfer_s, prefill_s) == pytest.approx(exposed_s)
    link_free = 0.0
    for layer in range(1, 81):
        link_free = max(link_free, layer * prefill_s / 80) + transfer_s / 80
    assert transfer().exposed_seconds(transfer_s, prefill_s) == pytest.approx(link_free - prefill_s)
