"""The step model: seconds of one engine step as a function of what is in it.

    step_s = max(device_s, host_s) + gap_s
    device_s = overhead_s[kind] + token_s[T] + sequence_s[S]
             + Σ_chunks prefill_attention_s(new, past) + decode_attention_s(B, mean context)

T is the number of tokens in the step (prefill chunk tokens + one per decoding sequence), S the sequences that sample
a token, B the decoding sequences. `kind` is 0 for a step of decodes only (a replayed graph), 1 for a step with a
prefill chunk. With pipeline parallelism the tables hold one stage (the slowest); a step's latency is num_stages · stage
time + hand-offs, and a new step may start every stage time. Stages that are not alike (other GPUs, other numbers of
layers) have a step model each, in `stages`: a step's latency is the sum of their times + hand-offs, and a new one may
start every slowest stage's time.

Tables are sampled once per (model, GPU, parallelism, dtype), so that the simulator's inner loop is array look-ups: the
tile staircase of the GEMMs is in `token_s`, dense in T; attention is bilinear between knots.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class StepModel:
    """Tables of one instance (one pipeline stage of it). Times in seconds."""

    overhead_s: tuple[float, float]  # (decode-only step, step with prefill)
    host_s: FloatArray  # [max_num_seqs + 1] scheduler on the host, by running sequences; hidden behind the device
    gap_s: float  # host work never hidden
    token_s: FloatArray  # [max_num_batched_tokens + 1]; token_s[0] = 0
    sequence_s: FloatArray  # [max_num_seqs + 1] LM head and sampling; sequence_s[0] = 0
    prefill_new_knots: FloatArray  # [i] tokens, ascending from 0
    prefill_past_knots: FloatArray  # [j] tokens, ascending from 0
    prefill_attention_s: FloatArray  # [i, j]
    decode_batch_knots: FloatArray  # [k] sequences, ascending from 0
    decode_context_knots: FloatArray  # [l] tokens, ascending from 0
    decode_attention_s: FloatArray  # [k, l]
    num_stages: int = 1
    handoff_s: float = 0.0  # stage to stage, one step
    basis_shares: tuple[float, float, float, float] = (
        0.0,
        0.0,
        0.0,
        1.0,
    )  # of a typical step, by profiler Basis
    stages: tuple[StepModel, ...] = ()  # one for each stage where they differ; the tables above then hold the slowest

    def scaled(self, factor: float) -> StepModel:
        """The same with every time multiplied."""
        if factor == 1.0:
            return self
        return replace(
            self,
            overhead_s=(self.overhead_s[0] * factor, self.overhead_s[1] * factor),
            host_s=self.host_s * factor,
            gap_s=self.gap_s * factor,
            token_s=self.token_s * factor,
            sequence_s=self.sequence_s * factor,
            prefill_attention_s=self.prefill_attention_s * factor,
            decode_attention_s=self.decode_attention_s * factor,
            handoff_s=self.handoff_s * factor,
            stages=tuple(stage.scaled(factor) for stage in self.stages),
        )
