"""Step times of a mock engine: the plan's own predictions, linear between knots and beyond the last one."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


def interpolate(knots: Sequence[float], values: Sequence[float], at: float) -> float:
    """Piecewise linear; beyond the ends with the slope of the last piece, never below zero."""
    if len(knots) == 1:
        return values[0]
    right = min(max(bisect_right(knots, at), 1), len(knots) - 1)
    left_knot, right_knot = knots[right - 1], knots[right]
    share = (at - left_knot) / (right_knot - left_knot)
    return max(0.0, values[right - 1] + share * (values[right] - values[right - 1]))


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Seconds of prefill work and of decode steps of one instance."""

    prefill_tokens: Sequence[float]
    prefill_s: Sequence[float]
    decode_batch: Sequence[float]
    decode_context_tokens: Sequence[float]
    decode_step_s: Sequence[Sequence[float]]

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> StepTimes:
        """From the fields of a plan's `Timing`."""
        return StepTimes(*(data[name] for name in StepTimes.__dataclass_fields__))

    def chunk_s(self, past_tokens: int, new_tokens: int) -> float:
        """A prefill chunk: what the prompt's time grows by; a prompt's fixed part is in its first chunk."""
        done = interpolate(self.prefill_tokens, self.prefill_s, past_tokens) if past_tokens else 0.0
        return max(0.0, interpolate(self.prefill_tokens, self.prefill_s, past_tokens + new_tokens) - done)

    def decode_s(self, batch: int, mean_context_tokens: float) -> float:
        """One decode step of a batch."""
        if batch == 0:
            return 0.0
        rows = [interpolate(self.decode_context_tokens, row, mean_context_tokens) for row in self.decode_step_s]
        return interpolate(self.decode_batch, rows, batch)

    def step_s(self, batch: int, mean_context_tokens: float, chunks: Sequence[tuple[int, int]]) -> float:
        """A step with decodes and prefill chunks (past, new): decode time plus the chunks' work."""
        return self.decode_s(batch, mean_context_tokens) + sum(self.chunk_s(past, new) for past, new in chunks)
