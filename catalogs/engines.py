"""Engines and what they can run. The solver prunes by the very predicates that the launcher checks before it starts."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Engine:
    """One engine version as the planner knows it."""

    name: str  # "vllm", "sglang", "trtllm", "dynamo-vllm"
    version: str
    scheduler: str  # "vllm-v1" | "sglang" | "static"
    block_tokens: int  # default KV block or page
    memory_fraction: float  # default share of *total* device memory the engine may use
    max_num_seqs: int  # default cap
    max_num_batched_tokens: int  # default chunk budget of a step
    weight_dtypes: tuple[str, ...]
    kv_dtypes: tuple[str, ...]
    connectors: tuple[str, ...]  # KV connectors, best first
    decode_emits_first_token: bool  # True: TTFT includes the transfer and the first decode step
    source: str
    date: str


@dataclass(frozen=True, slots=True)
class EngineSide:
    """One side of a prefill → decode pair, as far as a connector cares."""

    model: str
    gpu: str
    tensor_parallel: int
    pipeline_parallel: int
    weight_dtype: str
    kv_dtype: str
    block_tokens: int
    attention_backend: str
    engine_version: str
