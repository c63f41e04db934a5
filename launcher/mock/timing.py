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

    def stage_s(
        self, batch: int, mean_context_tokens: float, chunks: Sequence[tuple[int, int]], num_stages: int = 1
    ) -> float:
        """How long a step with decodes and prefill chunks (past, new) holds one of `num_stages` pipeline stages.

        The tables hold times through all stages. A later chunk of a lone prompt follows the one before through the
        pipeline, so that what it adds to the prompt's time is a stage's already. What a step costs whatever is in it
        (weights are read once: the table's value at no token) counts once.
        """
        parts = [self.decode_s(batch, mean_context_tokens) / num_stages] if batch else []
        fresh = sum(new for past, new in chunks if not past)
        if fresh:
            parts.append(self.chunk_s(0, fresh) / num_stages)
        parts += [self.chunk_s(past, new) for past, new in chunks if past]
        fixed_s = interpolate(self.prefill_tokens, self.prefill_s, 0.0) / num_stages
        return max(0.0, sum(parts) - (len(parts) - 1) * min(fixed_s, *parts)) if len(parts) > 1 else sum(parts)
