"""Length buckets: prompts of similar length as classes of their own, which different instances may serve.

Bucket i takes prompts of more than `edges[i-1]` and at most `edges[i]` input tokens; the last has no upper edge.
Buckets go by the prompt alone: it is what a router knows of a request when it arrives.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from splitplan.catalogs.errors import Problem, UsageError, shorten
from splitplan.planner.spec.workload import Workload

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]

AUTO_BUCKETS = 3
"""Of `auto`: neighbours may be served together, so that three buckets also answer for two and for one."""
MOST_BUCKETS = 6
"""Kinds of instance are worked out for every run of neighbouring buckets: 21 runs of six."""
EDGE_DIGITS = 2
EXPECTED = f"auto, a number of buckets from 2 to {MOST_BUCKETS}, or edges in input tokens such as 2000,8000"


@dataclass(frozen=True, slots=True)
class PromptRange:
    """Prompts of more than `above` and at most `up_to` input tokens; 0 is no bound."""

    above: int = 0
    up_to: int = 0

    @property
    def is_all(self) -> bool:
        """Whether prompts of every length are meant."""
        return not self.above and not self.up_to

    def __str__(self) -> str:
        return range_in_words(self.above, self.up_to)

    def covers(self, other: PromptRange) -> bool:
        """Whether all prompts of another range are in this one."""
        return other.above >= self.above and (not self.up_to or 0 < other.up_to <= self.up_to)

    def meets(self, other: PromptRange) -> bool:
        """Whether the two ranges have prompts in common."""
        return (not self.up_to or other.above < self.up_to) and (not other.up_to or self.above < other.up_to)

    def holds(self, input_tokens: IntArray) -> NDArray[np.bool_]:
        """Which prompts are of this range."""
        inside = input_tokens > self.above
        return inside & (input_tokens <= self.up_to) if self.up_to else inside


ALL_PROMPTS = PromptRange()


def range_in_words(above: int, up_to: int) -> str:
    """`prompts up to 2,000`, `prompts of 2,001–8,000`, `prompts over 8,000`, `all prompts`."""
    if above and up_to:
        return f"prompts of {above + 1:,}–{up_to:,}"
    if above:
        return f"prompts over {above:,}"
    return f"prompts up to {up_to:,}" if up_to else "all prompts"


def parse_length_buckets(text: str) -> int | tuple[int, ...]:
    """The number of buckets, or their edges; 0 for none. Raises UsageError for what is neither."""
    words = text.strip().casefold()
    if not words:
        return 0
    if words == "auto":
        return AUTO_BUCKETS
    parts = [part.strip().replace("_", "") for part in words.split(",")]
    if not all(part.isascii() and part.isdigit() and 0 < int(part) < 2**31 for part in parts):
        raise UsageError(Problem(f"cannot read the length buckets '{shorten(text, 40)}'", expected=EXPECTED))
    numbers = tuple(int(part) for part in parts)
    if len(numbers) == 1 and 2 <= numbers[0] <= MOST_BUCKETS:
        return numbers[0]
    if len(numbers) == 1 and numbers[0] < 16:
        raise UsageError(Problem(f"{numbers[0]} is no number of length buckets", expected=EXPECTED))
    if len(numbers) >= MOST_BUCKETS or any(low >= high for low, high in pairwise(numbers)):
        raise UsageError(
            Problem(f"{shorten(text, 40)} are no edges of length buckets", expected=f"{EXPECTED}, ascending")
        )
    return numbers


def length_edges(workload: Workload, asked: str) -> tuple[int, ...]:
    """Edges of the buckets that `asked` means for this workload, each with requests in it; () for one bucket.

    A number of buckets is cut so that each holds about the same work; edges are rounded to two digits.
    """
    wanted = parse_length_buckets(asked)
    if not wanted:
        return ()
    edges = wanted if isinstance(wanted, tuple) else _balanced(workload.input_tokens, work_shares(workload), wanted)
    return _without_empty(edges, workload.input_tokens[workload.weight > 0])


def new_tokens(workload: Workload) -> FloatArray:
    """[m] prompt tokens that no cache holds, of each row of the joint sample."""
    cached = workload.cached_tokens
    if cached is None:
        cached = np.rint(workload.prefix_hit_ratio * workload.input_tokens).astype(np.int64)
    return np.maximum(workload.input_tokens - cached, 1).astype(np.float64)


def work_shares(workload: Workload) -> FloatArray:
    """[m] share of all work that each row of the joint sample stands for.

    Half of the work is prefill, taken as prompt tokens that no cache holds; half is decode, taken as the KV tokens a
    request holds over its output steps.
    """
    prefill = new_tokens(workload) * workload.weight
    context = workload.input_tokens + workload.output_tokens / 2
    decode = workload.output_tokens * context * workload.weight
    return np.asarray((prefill / prefill.sum() + decode / decode.sum()) / 2, dtype=np.float64)


def _balanced(lengths: IntArray, work: FloatArray, num_buckets: int) -> tuple[int, ...]:
    """Edges that cut the work, in order of length, into equal parts."""
    order = np.argsort(lengths, kind="stable")
    share = np.cumsum(work[order]) / work.sum()
    cuts = [int(lengths[order][np.searchsorted(share, part / num_buckets)]) for part in range(1, num_buckets)]
    return tuple(sorted({_rounded(cut) for cut in cuts}))


def _rounded(tokens: int) -> int:
    return int(float(f"{tokens:.{EDGE_DIGITS}g}"))


def _without_empty(edges: tuple[int, ...], lengths: IntArray) -> tuple[int, ...]:
    """Edges with requests on both sides, up to the next edge."""
    kept: list[int] = []
    for edge in edges:
        below = kept[-1] if kept else 0
        if np.any((lengths > below) & (lengths <= edge)) and np.any(lengths > edge):
            kept.append(edge)
    return tuple(kept)


def runs_of_buckets(edges: tuple[int, ...]) -> tuple[PromptRange, ...]:
    """Every run of neighbouring buckets, all of them together first, then the longer ones."""
    bounds = (0, *edges, 0)
    last = len(bounds) - 1
    pairs = [(low, low + size) for size in range(last, 0, -1) for low in range(last - size + 1)]
    return tuple(PromptRange(bounds[low], bounds[high]) for low, high in pairs)


def buckets(edges: tuple[int, ...]) -> tuple[PromptRange, ...]:
    """The buckets themselves, shortest prompts first."""
    bounds = (0, *edges, 0)
    return tuple(PromptRange(low, high) for low, high in pairwise(bounds))
