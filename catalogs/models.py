"""Model dimensions, from the catalog or from any Hugging Face config.json, and the sizes that follow from them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

BYTES_PER_ELEMENT = {
    "fp32": 4.0,
    "bf16": 2.0,
    "fp16": 2.0,
    "fp8": 1.0,
    "int8": 1.0,
    "int4": 0.5 + 2.0 / 128,  # group-wise scales: one fp16 per 128 weights
    "mxfp4": 0.5 + 1.0 / 32,  # one 8-bit exponent per 32 weights (OCP MX)
    "nvfp4": 0.5 + 1.0 / 16,  # one fp8 scale per 16 weights
}
"""Bytes one stored element takes, scales included."""


@dataclass(frozen=True, slots=True)
class AttentionGroup:
    """Layers that attend in the same way. The groups of a model add up to its layers."""

    num_layers: int
    kind: Literal["full", "sliding", "mla", "state"]  # "state": linear or SSM layers, constant memory
    num_heads: int
    num_kv_heads: int
    head_dim: int
    window_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Mla:
    """Multi-head latent attention: what is cached is one latent and one rotary key per token."""

    q_lora_rank: int | None
    kv_lora_rank: int
    qk_rope_head_dim: int
    qk_nope_head_dim: int
    v_head_dim: int


@dataclass(frozen=True, slots=True)
class Moe:
    """Mixture-of-experts feed-forward layers."""

    num_experts: int
    experts_per_token: int
    num_shared_experts: int
    moe_intermediate_size: int
    num_moe_layers: int
    first_dense_layers: int


@dataclass(frozen=True, slots=True)
class Model:
    """Dimensions of one decoder-only transformer."""

    name: str
    aliases: tuple[str, ...]
    num_layers: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    vocab_size: int
    tied_embeddings: bool
    max_position_embeddings: int
    gated_mlp: bool
    attention_bias: bool
    weight_dtype: str  # the dtype it is published in
    attention: tuple[AttentionGroup, ...]
    mla: Mla | None
    moe: Moe | None
    total_parameters: int
    active_parameters: int
    source: str
    confidence: str
