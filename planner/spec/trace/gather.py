"""Rows gathered block by block in small types, and put in order of arrival at the end."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from splitplan.planner.spec.trace.block import Block
from splitplan.planner.spec.workload import FloatArray, IntArray, PrefixBlocks, Requests

SmallArray = NDArray[np.signedinteger[Any]]


@dataclass
class Gathered:
    """Columns in pieces: 18 bytes a row until the end, where a trace can have tens of millions."""

    time_s: list[FloatArray] = field(default_factory=list)
    input_tokens: list[SmallArray] = field(default_factory=list)
    output_tokens: list[SmallArray] = field(default_factory=list)
    class_code: list[SmallArray] = field(default_factory=list)
    hashes: list[IntArray] = field(default_factory=list)
    num_hashes: list[IntArray] = field(default_factory=list)
    cached_tokens: list[IntArray] = field(default_factory=list)
    num_rows: int = 0
    has_hashes: bool = False
    has_cached: bool = False

    def add(self, block: Block) -> None:
        """Take over the rows of a block."""
        count = len(block.line)
        self.num_rows += count
        self.time_s.append(block.time_s)
        self.input_tokens.append(block.input_tokens.astype(np.int32))
        self.output_tokens.append(block.output_tokens.astype(np.int32))
        self.class_code.append(block.class_code.astype(np.int16))
        hashes, counts = block.blocks or (_zeros(0), _zeros(count))
        self.hashes.append(hashes)
        self.num_hashes.append(counts)
        self.cached_tokens.append(_zeros(count) if block.cached_tokens is None else block.cached_tokens)
        self.has_hashes |= block.blocks is not None
        self.has_cached |= block.cached_tokens is not None

    def finish(self, block_tokens: int) -> tuple[Requests, SmallArray, bool, int]:
        """Requests by arrival, all of class 0; their class codes; whether they have arrivals; how many were unsorted.

        Pieces are given up one by one, so that little exists twice.
        """
        time_s = _joined(self.time_s)
        timed = not bool(np.isnan(time_s).any())
        num_unsorted = int((np.diff(time_s) < 0).sum()) if timed else 0
        order = np.argsort(time_s, kind="stable") if num_unsorted else None
        arrival_s = np.zeros(len(time_s))
        if timed:
            arrival_s = time_s if order is None else time_s[order]
            arrival_s = arrival_s - arrival_s[0]
        requests = Requests(
            arrival_s,
            _ordered(self.input_tokens, order).astype(np.int64),
            _ordered(self.output_tokens, order).astype(np.int64),
            _zeros(len(time_s)),
            _ordered(self.cached_tokens, order).astype(np.int64) if self.has_cached else _zeros(len(time_s)),
            self._prefix(block_tokens, order),
        )
        return requests, _ordered(self.class_code, order), timed, num_unsorted

    def _prefix(self, block_tokens: int, order: IntArray | None) -> PrefixBlocks | None:
        """Prefix blocks by arrival, where any row has them; the others share none."""
        if not self.has_hashes:
            return None
        offsets = np.concatenate([_zeros(1), np.cumsum(_joined(self.num_hashes))])
        prefix = PrefixBlocks(block_tokens, offsets, _joined(self.hashes))
        return prefix if order is None else prefix.take(order)


def _zeros(count: int) -> IntArray:
    """A row of zeros that takes no memory."""
    return np.broadcast_to(np.int64(0), count)


def _joined(pieces: list[Any]) -> Any:
    whole = np.concatenate(pieces)
    pieces.clear()
    return whole


def _ordered(pieces: list[Any], order: IntArray | None) -> Any:
    whole = _joined(pieces)
    return whole if order is None else whole[order]
