"""What an engine adds to a step beside its kernels, each term with a physical meaning.

    overhead_s[kind] = kernels per step · node_gap_s      graph replay (decode): the device's pause between two kernels
                                                          launch_s floor (prefill): the host launches kernel by kernel
    host_s[n]        = host_base_s + host_per_sequence_s · n      scheduler and bookkeeping; hidden behind the device
                                                                  when the engine schedules ahead
    gap_s                                                 host work that no engine hides: input copies, sampling results

Values are fitted by `planner calibrate`; they live in catalogs/calibration with the data they came from.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class EngineOverhead:
    """Per-step overheads of one (engine generation, GPU family), and how its kernels compare with the op tables."""

    host_base_s: float = 0.0
    host_per_sequence_s: float = 0.0
    gap_s: float = 0.0
    node_gap_s: float = 0.0
    launch_s: float = 0.0
    gemm_scale: float = 1.0  # sustained over benchmarked GEMM time at large m: clocks under load
    memory_scale: float = 1.0  # sustained over benchmarked time of bandwidth-bound kernels
    request_s: float = 0.0  # front end: HTTP, tokenizer, first detokenised token
    request_per_token_s: float = 0.0  # tokenizer, by prompt token
    spread: float = 1.25  # multiplicative half-width of the 90 % interval
    async_scheduling: bool = False

    def host_s(self, max_num_seqs: int) -> NDArray[np.float64]:
        """[max_num_seqs + 1] host seconds of a step by running sequences."""
        return self.host_base_s + self.host_per_sequence_s * np.arange(max_num_seqs + 1, dtype=np.float64)


KERNELS_PER_LAYER = 9
"""Norm, QKV, rope, attention (two), output, norm, up, activation, down, less one fused."""

ALL_REDUCES_PER_LAYER = 2


def kernels_per_step(num_layers: float, tp: int) -> float:
    """Kernels of one stage's step."""
    return num_layers * (KERNELS_PER_LAYER + (ALL_REDUCES_PER_LAYER if tp > 1 else 0)) + KERNELS_PER_LAYER
