"""Counting a model's parameters from its dimensions, part by part, and what each part weighs in a dtype.

Counted: embedding, head, attention, feed-forward, experts, router, indexer, state mixers, norms and attention biases.
Not counted: learned position tables, biases of feed-forward layers, sinks (together under 0.1 % of every model in the
catalog), vision towers and multi-token-prediction modules.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from splitplan.catalogs.errors import InputError, Problem, nearest_names, shorten

if TYPE_CHECKING:
    from splitplan.catalogs.models import AttentionGroup, Model

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

UNQUANTIZED_DTYPES = ("fp32", "bf16", "fp16")
LINEAR_PARTS = ("attention", "mlp", "experts", "shared_experts", "mamba")
"""Parts that a quantised checkpoint stores in its dtype; embedding, head, router, indexer and norms stay in 16 bits."""


def element_bytes(dtype: str) -> float:
    """Bytes one element takes, scales included. Raises InputError for a dtype that is not known."""
    if dtype not in BYTES_PER_ELEMENT:
        near = nearest_names(dtype, BYTES_PER_ELEMENT)
        raise InputError(
            Problem(
                f"unknown dtype '{shorten(dtype)}'",
                expected="one of " + ", ".join(BYTES_PER_ELEMENT),
                next_step=f"did you mean {' or '.join(near)}?" if near else "",
            )
        )
    return BYTES_PER_ELEMENT[dtype]


def parameter_parts(model: Model) -> dict[str, int]:
    """Parameters by part; the sum is the model's total."""
    hidden, moe = model.hidden_size, model.moe
    matrices = 3 if model.gated_mlp else 2
    parts = {
        "embedding": model.vocab_size * hidden,
        "head": 0 if model.tied_embeddings else model.vocab_size * hidden,
        "attention": sum(_attention(model, group) for group in model.attention),
        "mlp": model.num_dense_mlp_layers * matrices * hidden * model.intermediate_size,
        "norms": (2 * model.num_layers + 1) * hidden,
    }
    if moe is not None:
        width = moe.latent_size or hidden
        expert = matrices * width * moe.moe_intermediate_size
        shared = matrices * hidden * moe.shared_width
        latent = 2 * hidden * moe.latent_size if moe.latent_size else 0
        parts["experts"] = moe.num_moe_layers * moe.num_experts * expert
        parts["shared_experts"] = moe.num_moe_layers * (shared + latent)
        parts["router"] = moe.num_moe_layers * hidden * moe.num_experts
    mixer = model.mamba2 or model.delta_net
    if mixer is not None:
        state_layers = sum(group.num_layers for group in model.attention if group.kind == "state")
        parts["mamba"] = state_layers * mixer.parameters(hidden)
    if model.indexer is not None and model.mla is not None:
        width = model.indexer.num_heads * model.indexer.head_dim
        query = (model.mla.q_lora_rank or hidden) * width
        parts["indexer"] = model.indexer.num_layers * (
            query + hidden * (model.indexer.head_dim + model.indexer.num_heads)
        )
    return parts


def _attention(model: Model, group: AttentionGroup) -> int:
    hidden, heads = model.hidden_size, group.num_heads
    if group.kind == "state":
        return 0
    if group.kind == "mla":
        assert model.mla is not None  # a group of kind "mla" is refused without it when a Model is made
        mla = model.mla
        key_dim = mla.qk_nope_head_dim + mla.qk_rope_head_dim
        query = (
            hidden * mla.q_lora_rank + mla.q_lora_rank * heads * key_dim
            if mla.q_lora_rank
            else hidden * heads * key_dim
        )
        down = hidden * (mla.kv_lora_rank + mla.qk_rope_head_dim)
        up = mla.kv_lora_rank * heads * (mla.qk_nope_head_dim + mla.v_head_dim)
        return group.num_layers * (query + down + up + heads * mla.v_head_dim * hidden)
    query_width, kv_width = heads * group.head_dim, group.num_kv_heads * group.head_dim
    values = 1 if group.shares_key_and_value else 2
    bias = query_width + values * kv_width if model.attention_bias else 0
    query_and_output = (3 if group.gated_output else 2) * hidden * query_width
    return group.num_layers * (query_and_output + values * hidden * kv_width + bias)


def active_parameters(model: Model) -> int:
    """Parameters that one token passes through: all but the experts it is not routed to."""
    parts = parameter_parts(model)
    idle = 0
    if model.moe is not None:
        per_expert = parts["experts"] // model.moe.num_experts
        idle = per_expert * (model.moe.num_experts - model.moe.experts_per_token)
    return sum(parts.values()) - idle


def quantized_parts(model: Model, dtype: str) -> tuple[str, ...]:
    """The parts that are stored in `dtype` in a checkpoint of that dtype.

    fp8, int8 and int4 checkpoints quantise every linear layer; MXFP4 checkpoints of MoE models (gpt-oss) only the
    experts; NVFP4 checkpoints leave MLA attention in 16 bits. A model may name its own parts for the dtype it is
    published in.
    """
    if dtype in UNQUANTIZED_DTYPES:
        return ()
    if dtype == model.weight_dtype and model.quantized_parts:
        return model.quantized_parts
    if dtype == "mxfp4" and model.moe is not None:
        return ("experts",)
    if dtype == "nvfp4" and model.mla is not None:
        return tuple(part for part in LINEAR_PARTS if part != "attention")
    return LINEAR_PARTS


def weight_bytes_by_part(model: Model, dtype: str) -> Mapping[str, float]:
    """Bytes of the weights by part in a checkpoint of `dtype`, scales included.

    Unquantised parts take 2 bytes (fp32: 4).
    """
    inside, quantized = element_bytes(dtype), quantized_parts(model, dtype)
    outside = inside if dtype in UNQUANTIZED_DTYPES else 2.0
    return {part: count * (inside if part in quantized else outside) for part, count in parameter_parts(model).items()}
