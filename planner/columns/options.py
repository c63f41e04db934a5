"""The choices a solve may make, and the ladders it tries them on."""

from __future__ import annotations

from dataclasses import dataclass

PREFILL_CHUNK_LADDER = (2048, 4096, 8192, 16384)
COLOCATED_CHUNK_LADDER = (512, 1024, 2048, 4096, 8192)
BATCH_LADDER = (8, 16, 32, 64, 128, 256, 512)
DEFAULT_KV_DTYPE = "bf16"
BEST_GUESS, MOST_CONFIDENCE = 50.0, 99.0
PREFILL_MAX_SEQS = 64
DECODE_MIN_CHUNK = 2048
"""A decode instance still prefills what it recomputes after a preemption."""


@dataclass(frozen=True, slots=True)
class ColumnOptions:
    """What columns to consider."""

    engine: str = "vllm"
    connector: str = ""  # "": the engine's first
    weight_dtype: str = ""  # "": as the model is published
    kv_dtype: str = ""  # "": 16 bit
    memory_fraction: float = 0.0  # 0: the engine's default
    max_pipeline_parallel: int = 4
    mix_pipelines: bool = True  # pipelines whose stages stand on two GPU types, where one type cannot hold the model
    confidence: float = BEST_GUESS  # percent of measured step times that those planned with are to cover
