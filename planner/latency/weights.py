"""Weights of one GPU of an instance: what tensor, pipeline and expert parallelism shard, and what they replicate."""

from __future__ import annotations

import math
from dataclasses import dataclass

from splitplan.catalogs.models import BYTES_PER_ELEMENT, AttentionGroup, Model

UNQUANTISED_BYTES = 2.0
"""Embeddings, LM head, router and norms stay in 16 bit whatever the linear layers are quantised to."""

EXPERT_ONLY_DTYPES = ("mxfp4",)
"""Formats that quantise the experts alone; attention and dense layers stay in 16 bit (gpt-oss)."""


@dataclass(frozen=True, slots=True)
class LayerParameters:
    """Parameters of the layers of a model, summed over all of them, apart by how they are sharded."""

    attention_sharded: float  # over tensor ranks
    kv_projection: float  # over tensor ranks, but never below one KV head a rank
    dense_mlp: float  # over tensor ranks
    shared_experts: float  # over tensor ranks
    experts: float  # over tensor or expert ranks
    replicated: float  # router, low-rank MLA projections, norms


def layer_parameters(model: Model) -> LayerParameters:
    """Parameters by kind. What the dimensions do not account for (norms, biases, state layers) counts as attention."""
    attention = kv_projection = replicated = 0.0
    for group in model.attention:
        sharded, kv, copied = _attention_parameters(model, group)
        attention += group.num_layers * sharded
        kv_projection += group.num_layers * kv
        replicated += group.num_layers * copied
    matrices = 3 if model.gated_mlp else 2
    moe = model.moe
    dense_layers = model.num_layers - (moe.num_moe_layers if moe else 0)
    dense_mlp = dense_layers * matrices * model.hidden_size * model.intermediate_size
    experts = shared = 0.0
    if moe is not None:
        one = matrices * model.hidden_size * moe.moe_intermediate_size
        experts = moe.num_moe_layers * moe.num_experts * one
        shared = moe.num_moe_layers * moe.num_shared_experts * one
        replicated += moe.num_moe_layers * moe.num_experts * model.hidden_size
    counted = attention + kv_projection + replicated + dense_mlp + experts + shared + vocabulary_parameters(model)
    rest = max(0.0, model.total_parameters - counted)
    return LayerParameters(attention + rest, kv_projection, dense_mlp, shared, experts, replicated)


def _attention_parameters(model: Model, group: AttentionGroup) -> tuple[float, float, float]:
    """(sharded, KV projection, replicated) parameters of one layer."""
    hidden = model.hidden_size
    if group.kind == "mla" and model.mla is not None:
        mla = model.mla
        query_dim = group.num_heads * (mla.qk_nope_head_dim + mla.qk_rope_head_dim)
        query_in = mla.q_lora_rank or hidden
        sharded = query_in * query_dim
        sharded += mla.kv_lora_rank * group.num_heads * (mla.qk_nope_head_dim + mla.v_head_dim)
        sharded += group.num_heads * mla.v_head_dim * hidden
        copied = hidden * ((mla.q_lora_rank or 0) + mla.kv_lora_rank + mla.qk_rope_head_dim)
        return float(sharded), 0.0, float(copied)
    if group.kind == "state":
        return 0.0, 0.0, 0.0
    query_and_output = 2.0 * hidden * group.num_heads * group.head_dim
    return query_and_output, 2.0 * hidden * group.num_kv_heads * group.head_dim, 0.0


def vocabulary_parameters(model: Model) -> float:
    """Embedding and LM head together; a tied pair counts once."""
    return float(model.vocab_size * model.hidden_size * (1 if model.tied_embeddings else 2))


def weight_bytes_per_gpu(model: Model, *, tp: int, pp: int, ep: int, weight_dtype: str) -> float:
    """Bytes of weights on the fullest GPU.

    Layers divide over pipeline stages (the fullest stage has ⌈L/pp⌉), the embedding sits on the first stage and the LM
    head on the last. KV projections are never cut below one head; experts divide over tp·(ep/tp) = max(tp, ep) ranks.
    """
    parameters = layer_parameters(model)
    dense = BYTES_PER_ELEMENT[weight_dtype]
    plain = max(UNQUANTISED_BYTES, dense)
    linear = plain if weight_dtype in EXPERT_ONLY_DTYPES else dense
    kv_heads = min((group.num_kv_heads for group in model.attention if group.kind != "state"), default=tp)
    sharded = parameters.attention_sharded + parameters.dense_mlp + parameters.shared_experts
    layers = linear * (sharded / tp + parameters.kv_projection / min(tp, max(1, kv_heads)))
    layers += dense * parameters.experts / max(tp, ep) + plain * parameters.replicated
    stage_share = math.ceil(model.num_layers / pp) / model.num_layers
    vocabulary = plain * vocabulary_parameters(model) / tp
    if pp > 1:
        vocabulary /= 1 if model.tied_embeddings else 2
    return layers * stage_share + vocabulary
