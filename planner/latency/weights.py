"""Weights of one GPU of an instance: what tensor, pipeline and expert parallelism shard, and what they replicate."""

from __future__ import annotations

from dataclasses import dataclass

from splitplan.catalogs.models import AttentionGroup, Model
from splitplan.catalogs.parameters import element_bytes, weight_bytes_by_part

FP8_FEED_FORWARD = "fp8_mlp"
"""Meta's recipe for Llama-3.1-405B in FP8: feed-forward layers in fp8, attention in 16 bit."""

REPLICATED_PARTS = ("router", "norms", "indexer")
"""Small parts that every tensor rank holds whole."""


@dataclass(frozen=True, slots=True)
class StageCut:
    """One stage of a pipeline whose stages are not cut alike."""

    layers: int
    is_first: bool = False
    is_last: bool = False


def weight_bytes_per_gpu(
    model: Model, *, tp: int, pp: int, ep: int, weight_dtype: str, cut: StageCut | None = None
) -> float:
    """Bytes of weights on the fullest GPU, or on a GPU of the stage `cut`.

    Layers divide over pipeline stages; the embedding sits on the first stage, the LM head on the last. KV projections
    are never cut below one head, MLA's down projections not at all; experts divide over max(tp, ep) ranks. A vision
    tower is loaded beside the text model, in 16 bit, over the tensor ranks.
    """
    stored = "fp8" if weight_dtype == FP8_FEED_FORWARD else weight_dtype
    parts = dict(weight_bytes_by_part(model, stored))
    if weight_dtype == FP8_FEED_FORWARD:
        parts["attention"] = weight_bytes_by_part(model, "bf16")["attention"]
    embedding, head = parts.pop("embedding") / tp, parts.pop("head") / tp
    layers = sum(parts.pop(part) for part in REPLICATED_PARTS if part in parts)
    layers += parts.pop("experts", 0.0) / max(tp, ep)
    layers += parts.pop("attention") * attention_share(model, tp)
    layers += sum(parts.values()) / tp
    vision = model.vision_parameters * max(2.0, element_bytes(stored)) / tp
    if cut is not None:
        vocabulary = embedding * cut.is_first + head * cut.is_last
        return layers * cut.layers / model.num_layers + vocabulary + vision
    vocabulary = embedding + head if pp == 1 else max(embedding, head)
    return layers * stage_share(model, pp) + vocabulary + vision


def stage_share(model: Model, pp: int) -> float:
    """Layers of the fullest pipeline stage as a share of all."""
    return max(model.layers_per_stage(pp)) / model.num_layers


def attention_share(model: Model, tp: int) -> float:
    """Share of the attention weights on one tensor rank: 1/tp but for what is replicated."""
    held = total = 0.0
    for group in model.attention:
        sharded, kv, replicated = _attention_split(model, group)
        total += group.num_layers * (sharded + kv + replicated)
        held += group.num_layers * (sharded / tp + kv / min(tp, max(1, group.num_kv_heads)) + replicated)
    return held / total if total else 1.0 / tp


def _attention_split(model: Model, group: AttentionGroup) -> tuple[float, float, float]:
    """(query and output, keys and values, not sharded) parameters of one layer."""
    hidden = model.hidden_size
    if group.kind == "state":
        return 0.0, 0.0, 0.0
    if group.kind == "mla" and model.mla is not None:
        mla = model.mla
        key_dim = mla.qk_nope_head_dim + mla.qk_rope_head_dim
        up = (mla.q_lora_rank or hidden) * key_dim + mla.kv_lora_rank * (mla.qk_nope_head_dim + mla.v_head_dim)
        down = hidden * ((mla.q_lora_rank or 0) + mla.kv_lora_rank + mla.qk_rope_head_dim)
        return float(group.num_heads * (up + mla.v_head_dim * hidden)), 0.0, float(down)
    values = 1 if group.shares_key_and_value else 2
    query_and_output = 2.0 * hidden * group.num_heads * group.head_dim
    return query_and_output, float(values * hidden * group.num_kv_heads * group.head_dim), 0.0
