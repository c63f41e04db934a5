"""What an engine adds to a step beside its kernels; each term has a physical meaning and one value per generation.

    step_s     = max(device_s, host_s) + gap_s + rank_gap_s · log2(tp) + sequence_gap_s · sequences
    host_s     = launch_s · kernels of the stage       an engine that launches kernel by kernel cannot step faster
    gap_s                                              scheduling, input copies, sampling: nothing runs on the device
    rank_gap_s · log2(tp)                              telling every tensor rank what to run, and waiting for the last
    sequence_gap_s · sequences                         the same, by sequence: block tables, sampling, output handling

`compute_scale` is how much longer compute-bound kernels take in a server that runs hot than in a benchmark that does
not: at full tensor load a card lowers its clock to stay inside its power limit. `stream_scale` is the same of
bandwidth-bound kernels: 1 but for engines whose kernels were older than the tables'. A request pays `request_s` and
`request_token_s` per prompt token before it reaches the scheduler: HTTP, tokenizer, hand-over to the engine.

Values are fitted by `planner calibrate`; they live in catalogs/calibration with the data they came from.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class EngineOverhead:
    """Overheads of one engine generation on one GPU family, in seconds."""

    launch_s: float = 0.0
    gap_s: float = 0.0
    rank_gap_s: float = 0.0
    sequence_gap_s: float = 0.0
    compute_scale: float = 1.0
    stream_scale: float = 1.0
    request_s: float = 0.0
    request_token_s: float = 0.0
    tpot_spread: float = 1.25  # factor up and down that holds 90 % of the calibration points
    ttft_spread: float = 2.0
    throughput_spread: float = 1.25

    def step_factor(self, confidence: float) -> float:
        """What step times are multiplied by so that `confidence` percent (50 or more) of measured ones are no longer.

        Of TPOT and throughput, whose errors are those of steps, the wider one; TTFT's also holds queues and front ends.
        Log errors fall off about exponentially (a Laplace law, as in `calibrate.score`): the spread, that 90 % of
        measurements lie within, up and down, is the quantile of 95 %.
        """
        spread = max(self.tpot_spread, self.throughput_spread)
        exponent = math.log(0.5 / (1.0 - confidence / 100.0)) / math.log(SPREAD_LEAVES_OUT)
        return float(spread**exponent)

    def step_gap_s(self, tp: int) -> float:
        """Unhidden host seconds of a step on `tp` ranks."""
        return self.gap_s + self.rank_gap_s * math.log2(tp)

    def host_s(self, num_layers: float, tp: int, max_num_seqs: int) -> FloatArray:
        """[max_num_seqs + 1] seconds the host needs to launch a step; the same for every batch."""
        return np.full(max_num_seqs + 1, self.launch_s * kernels_per_step(num_layers, tp))

    def sequence_s(self, device_s: FloatArray) -> FloatArray:
        """The device's per-sequence table [max_num_seqs + 1] with the unhidden host time of each sequence added."""
        return device_s + self.sequence_gap_s * np.arange(len(device_s), dtype=np.float64)


SPREAD_LEAVES_OUT = 10.0
"""A spread leaves out one measurement in ten."""

KERNELS_PER_LAYER = 12
"""Norms, QKV, rope, cache write, attention, output, up, activation, down, and copies between them."""

ALL_REDUCES_PER_LAYER = 2


def kernels_per_step(num_layers: float, tp: int) -> float:
    """Kernels of one stage's step."""
    return num_layers * (KERNELS_PER_LAYER + (ALL_REDUCES_PER_LAYER if tp > 1 else 0)) + KERNELS_PER_LAYER
