"""Which operation shapes one rank of a model runs: what has to be measured, named as in `families.FAMILIES`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from splitplan.catalogs.models import AttentionGroup, Model


@dataclass(frozen=True, slots=True, order=True)
class GemmShape:
    """Weights [n, k] of a linear layer on one rank; `per_sequence` ones see one row per sequence, not per token.

    Engines keep the router and the LM head in 16 bit whatever the rest of the weights is in: `always_16_bit`.
    """

    n: int
    k: int
    per_sequence: bool = False
    always_16_bit: bool = False


@dataclass(frozen=True, slots=True, order=True)
class AttentionShape:
    """Heads of one rank; window 0 is full attention."""

    heads: int
    kv_heads: int
    head_dim: int
    window: int


@dataclass(frozen=True, slots=True, order=True)
class MoeShape:
    """Routed experts of one layer; `inter` is the whole expert's width, split over `tp`."""

    hidden: int
    inter: int
    topk: int
    num_experts: int
    tp: int
    ep: int


def fits_tensor_parallel(model: Model, tp: int) -> bool:
    """True when the heads and widths of a model divide over `tp` ranks (KV heads may be replicated)."""
    return all(group.kind == "state" or group.num_heads % tp == 0 for group in model.attention) and (
        model.intermediate_size % tp == 0
    )


def gemm_shapes(model: Model, tp: int) -> tuple[GemmShape, ...]:
    """Linear layers of one rank, distinct: fused QKV, output, fused gate and up, down, router, LM head.

    Column-parallel layers split n, row-parallel ones split k (Shoeybi et al. 2019, Megatron-LM). MLA's projections
    belong to the families mla_prefill and mla_decode.
    """
    found = set(_attention_gemms(model, tp)) | set(_feed_forward_gemms(model, tp))
    found.add(GemmShape(-(-model.vocab_size // tp), model.hidden_size, per_sequence=True, always_16_bit=True))
    return tuple(sorted(found))


def _attention_gemms(model: Model, tp: int) -> Iterator[GemmShape]:
    for group in model.attention:
        if group.kind in ("full", "sliding"):
            kv_heads = group.kv_heads_per_rank(tp)
            yield GemmShape((group.num_heads // tp + 2 * kv_heads) * group.head_dim, model.hidden_size)
            yield GemmShape(model.hidden_size, group.num_heads // tp * group.head_dim)


def _feed_forward_gemms(model: Model, tp: int) -> Iterator[GemmShape]:
    widths = []
    if model.num_dense_mlp_layers:
        widths.append(model.intermediate_size)
    if model.moe is not None:
        yield GemmShape(model.moe.num_experts, model.hidden_size, always_16_bit=True)
        if model.moe.num_shared_experts:
            widths.append(model.moe.num_shared_experts * model.moe.moe_intermediate_size)
    for width in widths:
        yield GemmShape((2 if model.gated_mlp else 1) * width // tp, model.hidden_size)
        yield GemmShape(model.hidden_size, width // tp)


def attention_shapes(model: Model, tp: int) -> tuple[AttentionShape, ...]:
    """Distinct grouped-query attention shapes of one rank."""
    groups = [group for group in model.attention if group.kind in ("full", "sliding")]
    return tuple(sorted({_attention_shape(group, tp) for group in groups}))


def _attention_shape(group: AttentionGroup, tp: int) -> AttentionShape:
    kv_heads = group.kv_heads_per_rank(tp)
    return AttentionShape(group.num_heads // tp, kv_heads, group.head_dim, group.window_tokens or 0)


def moe_shapes(model: Model, tp: int) -> tuple[MoeShape, ...]:
    """Routed experts, split over tensor parallel ranks, and whole over as many expert parallel ranks."""
    moe = model.moe
    if moe is None:
        return ()
    splits = {(tp, 1), (1, tp)} if moe.num_experts % tp == 0 else {(tp, 1)}
    return tuple(
        MoeShape(model.hidden_size, moe.moe_intermediate_size, moe.experts_per_token, moe.num_experts, moe_tp, ep)
        for moe_tp, ep in sorted(splits)
    )


@dataclass(frozen=True, slots=True, order=True)
class MlaShape:
    """Multi-head latent attention with its projections on one rank (DeepSeek-V2, arXiv 2405.04434, section 2.1)."""

    heads: int
    hidden: int
    q_lora: int  # 0: queries are projected directly
    kv_lora: int
    rope_dim: int
    nope_dim: int
    v_dim: int


DEEPSEEK_V3_BLOCK = MlaShape(128, 7168, 1536, 512, 64, 128, 128)
"""DeepSeek-V3's block on one rank (its config.json): what every published table of the family holds."""


def mla_heads(model: Model, tp: int) -> tuple[int, ...]:
    """Heads of one rank's latent attention, distinct."""
    return tuple(sorted({group.num_heads // tp for group in model.attention if group.kind == "mla"}))
