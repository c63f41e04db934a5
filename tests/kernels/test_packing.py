"""KV packing: what the receivers hold is what the senders held, whatever the two tensor parallel sizes."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="needs torch (extra gpu)")
pytest.importorskip("triton", reason="needs triton (extra gpu)")

from splitplan.kernels.packing import head_ranges, pack, unpack  # noqa: E402

PAGE, HEAD_DIM = 4, 10


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.uint8])
def test_packing_gathers_pages_and_heads_bit_for_bit(dtype: torch.dtype) -> None:
    """bfloat16 and odd sizes too: the kernel moves words, it does no arithmetic."""
    cache = torch.randint(0, 200, (7, PAGE, 6, HEAD_DIM + 1), dtype=torch.uint8).to(dtype)
    pages = torch.tensor([5, 0, 6], dtype=torch.int32)
    out = pack(cache, pages, 2, 3, torch.zeros(3, PAGE, 3, HEAD_DIM + 1, dtype=dtype))
    assert torch.equal(out, cache[pages.long()][:, :, 2:5])


def test_unpacking_touches_nothing_else() -> None:
    cache = torch.zeros(5, PAGE, 4, HEAD_DIM)
    buffer = torch.randn(2, PAGE, 2, HEAD_DIM)
    unpack(buffer, cache, torch.tensor([3, 1], dtype=torch.int32), 1)
    assert torch.equal(cache[[3, 1]][:, :, 1:3], buffer)
    cache[[3, 1], :, 1:3] = 0
    assert not cache.any()


@pytest.mark.parametrize("kv_heads", [8, 2])
@pytest.mark.parametrize("sender_tp", [1, 2, 4, 8])
@pytest.mark.parametrize("receiver_tp", [1, 2, 4, 8])
def test_resharding_between_unequal_tensor_parallel_sizes(kv_heads: int, sender_tp: int, receiver_tp: int) -> None:
    """Against slicing the whole model's cache by each receiver's heads, pages renumbered on the way."""
    whole = torch.randn(3, PAGE, kv_heads, HEAD_DIM)
    senders, receivers = (
        [shard(whole, kv_heads, ranks, rank) for rank in range(ranks)] for ranks in (sender_tp, receiver_tp)
    )
    there, here = torch.tensor([2, 0], dtype=torch.int32), torch.tensor([1, 3], dtype=torch.int32)
    caches = [torch.zeros(4, PAGE, expected.shape[2], HEAD_DIM) for expected in receivers]
    for part in head_ranges(kv_heads, sender_tp, receiver_tp):
        buffer = torch.empty(2, PAGE, part.heads, HEAD_DIM)
        pack(senders[part.sender], there, part.sender_head, part.heads, buffer)
        unpack(buffer, caches[part.receiver], here, part.receiver_head)
    for cache, expected in zip(caches, receivers, strict=True):
        assert torch.equal(cache[here.long()], expected[there.long()])


def shard(whole: torch.Tensor, kv_heads: int, ranks: int, rank: int) -> torch.Tensor:
    """One rank's heads; replicated where there are more ranks than heads."""
    if ranks >= kv_heads:
        head = rank * kv_heads // ranks
        return whole[:, :, head : head + 1].contiguous()
    return whole.chunk(ranks, 2)[rank].contiguous()


def test_no_byte_is_sent_twice() -> None:
    """Each receiver gets each of its heads once: transfers carry kv_heads heads, or one for each rank beyond them."""
    for sender_tp in (1, 2, 4, 8, 16):
        for receiver_tp in (1, 2, 4, 8, 16):
            parts = head_ranges(8, sender_tp, receiver_tp)
            assert sum(part.heads for part in parts) == max(8, receiver_tp)


@pytest.mark.parametrize(("sender_tp", "receiver_tp", "messages"), [(4, 4, 4), (4, 2, 4), (2, 8, 8), (1, 1, 1)])
def test_messages_are_as_few_as_the_layouts_allow(sender_tp: int, receiver_tp: int, messages: int) -> None:
    assert len(head_ranges(8, sender_tp, receiver_tp)) == messages
