"""KV packing for transfer: the paged blocks of one layer into contiguous send buffers, and back, between unequal TP.

A sender with tensor parallel size s holds kv_heads / s heads of every page, a receiver with size t holds kv_heads / t.
`head_ranges` says which heads go from which rank to which; `pack` gathers one range of heads of a list of pages into
one contiguous buffer (one descriptor for the network instead of one per page), `unpack` puts it in place.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

BLOCK_WORDS = 1024


@dataclass(frozen=True, slots=True)
class HeadRange:
    """Heads that one sender rank has for one receiver rank, by their places on each."""

    sender: int
    receiver: int
    sender_head: int
    receiver_head: int
    heads: int


def head_ranges(kv_heads: int, sender_tp: int, receiver_tp: int) -> tuple[HeadRange, ...]:
    """Every transfer between a prefill instance of `sender_tp` ranks and a decode instance of `receiver_tp`.

    More ranks than heads hold copies: rank r then has head r · kv_heads // tp, and only the first holder sends.
    """
    ranges = []
    for receiver in range(receiver_tp):
        wanted = _heads_of(kv_heads, receiver_tp, receiver)
        for sender in range(sender_tp):
            held = _heads_of(kv_heads, sender_tp, sender)
            is_copy = sender > 0 and _heads_of(kv_heads, sender_tp, sender - 1) == held
            low, high = max(wanted.start, held.start), min(wanted.stop, held.stop)
            if low < high and not is_copy:
                ranges.append(HeadRange(sender, receiver, low - held.start, low - wanted.start, high - low))
    return tuple(ranges)


def _heads_of(kv_heads: int, ranks: int, rank: int) -> range:
    if ranks > kv_heads:
        head = rank * kv_heads // ranks
        return range(head, head + 1)
    per_rank = kv_heads // ranks
    return range(rank * per_rank, (rank + 1) * per_rank)


def pack(cache: torch.Tensor, pages: torch.Tensor, first_head: int, heads: int, out: torch.Tensor) -> torch.Tensor:
    """Gathers heads [first_head, first_head + heads) of `pages` into `out`.

    cache [pages, page_tokens, kv_heads, head_dim], one layer's keys or values; pages [n] int32; out contiguous
    [n, page_tokens, heads, head_dim] of the same dtype.
    """
    return _copy(cache, pages, first_head, heads, out, to_cache=False)


def unpack(buffer: torch.Tensor, cache: torch.Tensor, pages: torch.Tensor, first_head: int) -> torch.Tensor:
    """Puts a packed buffer [n, page_tokens, heads, head_dim] into heads from `first_head` of `pages` of `cache`."""
    return _copy(cache, pages, first_head, buffer.shape[2], buffer, to_cache=True)


def _copy(
    cache: torch.Tensor, pages: torch.Tensor, first_head: int, heads: int, buffer: torch.Tensor, *, to_cache: bool
) -> torch.Tensor:
    page_tokens, kv_heads, head_dim = cache.shape[1:]
    words = torch.int32 if head_dim * cache.element_size() % 4 == 0 else torch.uint8
    per_head = head_dim * cache.element_size() // words.itemsize
    cache_words, buffer_words = cache.view(words), buffer.view(words)
    page_words = page_tokens * heads * per_head
    _copy_kernel[pages.shape[0], triton.cdiv(page_words, BLOCK_WORDS)](
        cache_words,
        buffer_words,
        pages,
        first_head * per_head,
        cache_words.stride(0),
        TOKEN_WORDS=kv_heads * per_head,
        SENT_WORDS=heads * per_head,
        PAGE_WORDS=page_words,
        BLOCK=BLOCK_WORDS,
        TO_CACHE=to_cache,
        num_warps=4,
    )
    return cache if to_cache else buffer


@triton.jit
def _copy_kernel(
    cache_ptr,
    buffer_ptr,
    pages_ptr,
    first_word,
    page_stride,
    TOKEN_WORDS: tl.constexpr,
    SENT_WORDS: tl.constexpr,
    PAGE_WORDS: tl.constexpr,
    BLOCK: tl.constexpr,
    TO_CACHE: tl.constexpr,
):
    place = tl.program_id(0).to(tl.int64)
    words = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = words < PAGE_WORDS
    page = tl.load(pages_ptr + place).to(tl.int64)
    in_cache = page * page_stride + words // SENT_WORDS * TOKEN_WORDS + first_word + words % SENT_WORDS
    in_buffer = place * PAGE_WORDS + words
    if TO_CACHE:
        tl.store(cache_ptr + in_cache, tl.load(buffer_ptr + in_buffer, mask=inside, other=0), mask=inside)
    else:
        tl.store(buffer_ptr + in_buffer, tl.load(cache_ptr + in_cache, mask=inside, other=0), mask=inside)
