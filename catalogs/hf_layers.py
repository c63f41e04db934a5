"""Attention groups, MLA, experts and state layers of a config.json, by the keys of what engines serve."""

from __future__ import annotations

from collections import Counter

from splitplan.catalogs.hf_keys import ConfigKeys
from splitplan.catalogs.layers import AttentionGroup, DeltaNet, Indexer, Mamba2, Mla, Moe

FULL_NAMES = ("full_attention", "attention", "global", "deepseek_sparse_attention")
SLIDING_NAMES = ("sliding_attention", "chunked_attention", "local_attention")
ALTERNATING = ("gemma2", "gpt_oss")  # even layers slide where the config does not list them
EVERY_NTH_IS_FULL = {"gemma3_text": 6, "gemma3": 6, "gemma4_text": 6, "cohere2": 4}
WINDOW_IN_EVERY_LAYER = ("mistral", "ministral", "phi3", "starcoder2", "mixtral")
NEMOTRON_BLOCKS = {"mamba": "M", "attention": "*", "mlp": "-", "moe": "E"}
UNREADABLE_KEYS = (
    "compress_ratios",
    "linear_attn_config",
    "block_configs",
    "hybrid_layer_pattern",
    "sparse_attention_config",
)
"""Keys of layer kinds that no rule here covers; reading past them would give wrong sizes."""


def read_attention(keys: ConfigKeys, model_type: str, num_layers: int, hidden: int) -> tuple[AttentionGroup, ...]:
    """The attention groups: full, sliding or MLA layers with their heads."""
    for name in UNREADABLE_KEYS:
        if keys.data.get(name) is not None:
            keys.refuse(
                name, "describes layers of a kind that is not known here", next_step="add the model to the catalog"
            )
    heads = keys.integer("num_attention_heads", "n_head", "n_heads")
    if keys.data.get("kv_lora_rank") is not None:
        width = keys.integer("kv_lora_rank") + keys.integer("qk_rope_head_dim")
        return (AttentionGroup(num_layers, "mla", heads, 1, width),)
    kv_heads = _kv_heads(keys, heads)
    head_dim = keys.integer("head_dim", "attention_head_dim", default=max(hidden // max(heads, 1), 1))
    if model_type == "nemotron_h":
        return _nemotron(keys, num_layers, heads, kv_heads, head_dim)
    if keys.data.get("linear_num_value_heads") is not None:
        return _delta_hybrid(keys, num_layers, heads, kv_heads, head_dim)
    sliding, window = _sliding_layers(keys, model_type, num_layers)
    groups = []
    if sliding < num_layers:
        shares = model_type.startswith("gemma4") and keys.flag("attention_k_eq_v", default=False)
        wide = keys.integer("global_head_dim", default=head_dim)
        fewer = keys.integer("num_global_key_value_heads", default=kv_heads)
        groups.append(AttentionGroup(num_layers - sliding, "full", heads, fewer, wide, None, shares))
    if sliding:
        groups.append(AttentionGroup(sliding, "sliding", heads, kv_heads, head_dim, window))
    return tuple(groups)


def _kv_heads(keys: ConfigKeys, heads: int) -> int:
    if keys.data.get("multi_query") is True and not keys.data.get("new_decoder_architecture"):
        return 1
    kv_heads = keys.integer("num_key_value_heads", "num_kv_heads", "n_kv_heads", default=heads)
    if heads % max(kv_heads, 1):
        keys.refuse("num_key_value_heads", f"is {kv_heads}", f"a divisor of the {heads} attention heads")
    return kv_heads


def _sliding_layers(keys: ConfigKeys, model_type: str, num_layers: int) -> tuple[int, int | None]:
    """(how many layers slide, the window); (0, None) where every layer attends to everything."""
    window = keys.optional("sliding_window", "attention_chunk_size", "sliding_window_size")
    named = keys.texts("layer_types", num_layers)
    if named is not None:
        counts = Counter(named)
        unknown = sorted(set(counts) - set(FULL_NAMES) - set(SLIDING_NAMES))
        if unknown:
            keys.refuse("layer_types", f"names a kind that is not known here: {unknown[0][:40]}")
        sliding = sum(counts[name] for name in SLIDING_NAMES)
        if sliding and window is None:
            keys.refuse("sliding_window", "missing, though layer_types names sliding layers", "tokens")
        return (sliding, window) if sliding else (0, None)
    if (
        window is None
        or keys.data.get("use_sliding_window") is False
        or window >= keys.integer(*POSITIONS, default=2**31)
    ):
        return 0, None
    if keys.data.get("use_sliding_window") is True:
        return max(num_layers - keys.integer("max_window_layers", default=0, least=0), 0), window
    if model_type.startswith("llama4"):
        interval = keys.integer("no_rope_layer_interval", default=4)
        return num_layers - num_layers // interval, window
    if model_type in ALTERNATING:
        return (num_layers + 1) // 2, window
    if model_type in EVERY_NTH_IS_FULL or keys.data.get("sliding_window_pattern") is not None:
        every = keys.integer("sliding_window_pattern", default=EVERY_NTH_IS_FULL.get(model_type, 1))
        return num_layers - num_layers // every, window
    return (num_layers, window) if model_type in WINDOW_IN_EVERY_LAYER else (0, None)


POSITIONS = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "max_sequence_length")


def _delta_hybrid(
    keys: ConfigKeys, num_layers: int, heads: int, kv_heads: int, head_dim: int
) -> tuple[AttentionGroup, ...]:
    """Qwen3-Next and Qwen3.5: delta-rule layers, and full attention in every nth."""
    named = keys.texts("layer_types", num_layers)
    if named is None:
        full = num_layers // keys.integer("full_attention_interval", default=4)
    else:
        full = sum(named.count(name) for name in FULL_NAMES)
        if named.count("linear_attention") + full != num_layers:
            keys.refuse("layer_types", "names a kind beside full_attention and linear_attention")
    gated = keys.flag("attn_output_gate", default=True)
    groups = []
    if full:
        groups.append(AttentionGroup(full, "full", heads, kv_heads, head_dim, gated_output=gated))
    if full < num_layers:
        width = keys.integer("linear_value_head_dim")
        groups.append(AttentionGroup(num_layers - full, "state", keys.integer("linear_num_value_heads"), 0, width))
    return tuple(groups)


def read_delta_net(keys: ConfigKeys) -> DeltaNet:
    """The delta-rule mixers of Qwen3-Next and Qwen3.5."""
    return DeltaNet(
        num_key_heads=keys.integer("linear_num_key_heads"),
        num_value_heads=keys.integer("linear_num_value_heads"),
        key_head_dim=keys.integer("linear_key_head_dim"),
        value_head_dim=keys.integer("linear_value_head_dim"),
        conv_kernel=keys.integer("linear_conv_kernel_dim"),
    )


def _nemotron(
    keys: ConfigKeys, num_layers: int, heads: int, kv_heads: int, head_dim: int
) -> tuple[AttentionGroup, ...]:
    counts = nemotron_layers(keys, num_layers)
    groups = []
    if counts["*"]:
        groups.append(AttentionGroup(counts["*"], "full", heads, kv_heads, head_dim))
    if counts["M"]:
        groups.append(
            AttentionGroup(counts["M"], "state", keys.integer("mamba_num_heads"), 0, keys.integer("mamba_head_dim"))
        )
    return tuple(groups)


def nemotron_layers(keys: ConfigKeys, num_layers: int) -> Counter[str]:
    """Layers by letter: M Mamba-2, * attention, - dense, E experts; from the pattern or from `layers_block_type`."""
    blocks = keys.texts("layers_block_type", num_layers)
    if blocks is not None:
        unknown = sorted(set(blocks) - set(NEMOTRON_BLOCKS))
        if unknown:
            keys.refuse("layers_block_type", f"names a kind that is not known here: {unknown[0][:40]}")
        return Counter(NEMOTRON_BLOCKS.get(block, "-") for block in blocks)
    pattern = keys.text("hybrid_override_pattern")
    if len(pattern) != num_layers or set(pattern) - set("M*-E"):
        keys.refuse("hybrid_override_pattern", "is not one letter of M, *, - and E per layer", f"{num_layers} letters")
    return Counter(pattern)


def read_mamba(keys: ConfigKeys) -> Mamba2:
    """The Mamba-2 mixers of Nemotron-H."""
    return Mamba2(
        num_heads=keys.integer("mamba_num_heads"),
        head_dim=keys.integer("mamba_head_dim"),
        num_groups=keys.integer("n_groups"),
        state_size=keys.integer("ssm_state_size"),
        conv_kernel=keys.integer("conv_kernel"),
    )


def read_mla(keys: ConfigKeys) -> Mla:
    """The low-rank dimensions of multi-head latent attention."""
    return Mla(
        q_lora_rank=keys.optional("q_lora_rank"),
        kv_lora_rank=keys.integer("kv_lora_rank"),
        qk_rope_head_dim=keys.integer("qk_rope_head_dim"),
        qk_nope_head_dim=keys.integer("qk_nope_head_dim"),
        v_head_dim=keys.integer("v_head_dim"),
    )


def read_indexer(keys: ConfigKeys, num_layers: int) -> Indexer | None:
    """The indexer of sparse MLA; layers of type "shared" use another layer's."""
    if keys.data.get("index_topk") is None:
        return None
    kinds = keys.texts("indexer_types", num_layers)
    return Indexer(
        num_layers=num_layers if kinds is None else max(kinds.count("full"), 1),
        topk_tokens=keys.integer("index_topk"),
        num_heads=keys.integer("index_n_heads"),
        head_dim=keys.integer("index_head_dim"),
    )


def read_moe(keys: ConfigKeys, model_type: str, num_layers: int) -> Moe | None:
    """The experts, None for a dense model."""
    experts = keys.optional("n_routed_experts", "num_local_experts", "num_experts", least=0)
    if not experts or experts == 1 or (model_type.startswith("gemma4") and not keys.data.get("enable_moe_block")):
        return None
    per_token = keys.integer("num_experts_per_tok", "top_k_experts", "experts_per_token", "moe_topk")
    if per_token > experts:
        keys.refuse("num_experts_per_tok", f"is {per_token}", f"at most the {experts} experts")
    shared_width = keys.optional(
        "moe_shared_expert_intermediate_size", "shared_expert_intermediate_size", "shared_intermediate_size", least=0
    )
    shared = keys.integer("n_shared_experts", "num_shared_experts", default=1 if shared_width else 0, least=0)
    first_dense = keys.integer("first_k_dense_replace", default=0, least=0)
    return Moe(
        num_experts=experts,
        experts_per_token=per_token,
        num_shared_experts=1 if model_type.startswith("llama4") else shared,
        moe_intermediate_size=keys.integer("moe_intermediate_size", "intermediate_size"),
        num_moe_layers=_moe_layers(keys, model_type, num_layers, first_dense),
        first_dense_layers=first_dense,
        shared_intermediate_size=shared_width or None,
        latent_size=keys.optional("moe_latent_size"),
    )


def _moe_layers(keys: ConfigKeys, model_type: str, num_layers: int, first_dense: int) -> int:
    if model_type == "nemotron_h":
        return nemotron_layers(keys, num_layers)["E"]
    kinds = keys.texts("mlp_layer_types", num_layers)
    if kinds is not None:
        return kinds.count("sparse")
    if model_type.startswith("llama4"):
        listed = keys.data.get("moe_layers")
        every = keys.integer("interleave_moe_layer_step", default=1)
        return len(listed) if isinstance(listed, list) else num_layers // every
    step = keys.integer("decoder_sparse_step", default=1)
    dense = keys.data.get("mlp_only_layers") or []
    sparse = [layer for layer in range(num_layers) if (layer + 1) % step == 0 and layer not in dense]
    return len([layer for layer in sparse if layer >= first_dense])
