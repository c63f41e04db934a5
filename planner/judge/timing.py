"""A pool's predicted times as compact tables: what mock engines are timed by and what people can check a plan with."""

from __future__ import annotations

import numpy as np

from splitplan.planner.columns.service import decode_step_s
from splitplan.planner.columns.service import prompts as cut_prompts
from splitplan.planner.latency.step import StepModel
from splitplan.planner.plan import Timing

PROMPT_KNOTS = (1, 128, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072)
BATCH_KNOTS = (1, 4, 16, 64, 128, 256, 512)
CONTEXT_KNOTS = (128, 1024, 4096, 16384, 65536)


def timing_of(step: StepModel, *, max_num_seqs: int, max_num_batched_tokens: int, max_model_len: int) -> Timing:
    """Times of a lone prompt by its length and of a decode step by batch and context, within the pool's limits."""
    lengths = _up_to(PROMPT_KNOTS, max_model_len)
    batches = _up_to(BATCH_KNOTS, max_num_seqs)
    contexts = _up_to(CONTEXT_KNOTS, max_model_len)
    new = np.array(lengths, dtype=np.float64)
    service = cut_prompts(step, max_num_batched_tokens, new, np.zeros_like(new)).service()
    return Timing(
        prefill_tokens=lengths,
        prefill_s=tuple(_rounded(value) for value in service.latency_s),
        decode_batch=batches,
        decode_context_tokens=contexts,
        decode_step_s=tuple(
            tuple(_rounded(decode_step_s(step, float(batch), float(context))) for context in contexts)
            for batch in batches
        ),
    )


def _up_to(knots: tuple[int, ...], most: int) -> tuple[int, ...]:
    """The knots below `most`, and `most` itself; at least two of them so that there is a slope."""
    below = tuple(knot for knot in knots if knot < most)
    return (*below, most) if below else (1, 2)


def _rounded(seconds: float) -> float:
    """To a tenth of a microsecond: files stay readable and the same on every machine."""
    return round(float(seconds), 7)
