"""A Model from any Hugging Face config.json: what the file says, plus the defaults of its architecture where it is
silent.

Defaults are those of the configuration classes in transformers (gated feed-forward, tied embeddings, attention bias,
layer patterns). An architecture that is not known here is read by its keys alone, and the model's confidence says so.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from splitplan.catalogs.documents import Document, KeyPath, read_document
from splitplan.catalogs.errors import shorten
from splitplan.catalogs.hf_keys import ConfigKeys
from splitplan.catalogs.hf_layers import (
    POSITIONS,
    nemotron_layers,
    read_attention,
    read_delta_net,
    read_indexer,
    read_mamba,
    read_mla,
    read_moe,
)
from splitplan.catalogs.hf_quantization import checkpoint_dtype
from splitplan.catalogs.models import Model, counted
from splitplan.catalogs.parameters import parameter_parts, quantized_parts

TEXT_PARTS = ("text_config", "llm_config", "language_config", "language_model", "thinker_config")
_KNOWN = """
bloom cohere cohere2 deepseek_v2 deepseek_v3 deepseek_v32 falcon gemma gemma2 gemma3 gemma3_text gemma4_text glm4
glm4_moe glm_moe_dsa gpt_neox gpt_oss gptj granite granitemoe internlm2 kimi_k2 llama llama4_text mimo minimax_m2
ministral mistral mistral3 mixtral nemotron nemotron_h olmo2 opt phi phi3 qwen2 qwen2_moe qwen3 qwen3_moe
qwen3_vl_moe_text qwen3_vl_text starcoder2 qwen3_next qwen3_5_text qwen3_5_moe_text
"""
KNOWN_TYPES = frozenset(_KNOWN.split())
_UNGATED = "bloom falcon gpt2 gpt_bigcode gpt_neox gptj nemotron nemotron_h opt phi starcoder2"
UNGATED = frozenset(_UNGATED.split())
_TIED = "bloom cohere cohere2 falcon gemma gemma2 gemma3 gemma3_text gemma4_text gpt2 opt starcoder2"
TIED = frozenset(_TIED.split())
_ATTENTION_BIAS = "bloom gpt2 gpt_neox gpt_oss opt phi qwen2 qwen2_moe starcoder2"
ATTENTION_BIAS = frozenset(_ATTENTION_BIAS.split())
_FOUR_TIMES_HIDDEN = "bloom falcon gpt2 gptj"
FOUR_TIMES_HIDDEN = frozenset(_FOUR_TIMES_HIDDEN.split())


def read_config(path: str | Path) -> Model:
    """Read a config.json, with hf_quant_config.json beside it where there is one.

    Raises DocumentError with line and key for what is missing, out of range, or of a kind that would give wrong sizes.
    """
    document = read_document(path, "model config", finite=False)
    keys = _text_part(document)
    model = _read(keys, document, Path(path))
    keys.check()
    return _plain_parts(counted(model))


def _plain_parts(model: Model) -> Model:
    """Quantised parts without those the model lacks, and none where they are the usual ones of its dtype."""
    present = [part for part, count in parameter_parts(model).items() if count]
    usual = quantized_parts(replace(model, quantized_parts=()), model.weight_dtype)
    own = tuple(part for part in model.quantized_parts if part in present)
    same = set(own) == set(usual) & set(present)
    return replace(model, quantized_parts=() if same else own)


def _text_part(document: Document) -> ConfigKeys:
    at: KeyPath = ()
    data: Any = document.data
    for name in TEXT_PARTS * 2:  # Qwen's thinker holds a text_config of its own
        if isinstance(data.get(name), dict):
            at, data = (*at, name), data[name]
    return ConfigKeys(document, at, data)


def _read(keys: ConfigKeys, document: Document, path: Path) -> Model:
    model_type = keys.text("model_type") or str(document.data.get("model_type") or "")
    blocks = keys.data.get("layers_block_type")
    default = len(blocks) if isinstance(blocks, list) and blocks else None
    num_layers = keys.integer("num_hidden_layers", "n_layer", "n_layers", "num_layers", default=default)
    hidden = keys.integer("hidden_size", "n_embd", "d_model")
    attention = read_attention(keys, model_type, num_layers, hidden)
    moe = read_moe(keys, model_type, num_layers)
    quantization = keys.data.get("quantization_config") or document.data.get("quantization_config")
    dtype, parts = checkpoint_dtype(keys, quantization if isinstance(quantization, dict) else None, path.parent)
    is_mla = any(group.kind == "mla" for group in attention)
    has_state = any(group.kind == "state" for group in attention)
    return Model(
        name=shorten(
            path.parent.resolve().name if path.name == "config.json" else path.stem.removesuffix("_config"), 100
        ),
        aliases=(),
        num_layers=num_layers,
        hidden_size=hidden,
        intermediate_size=_intermediate(keys, model_type, hidden, is_moe=moe is not None),
        num_heads=attention[0].num_heads if attention else 1,
        vocab_size=keys.integer("vocab_size"),
        tied_embeddings=_tied(keys, document, model_type),
        max_position_embeddings=_positions(keys, model_type),
        gated_mlp=model_type not in UNGATED,
        attention_bias=keys.flag("attention_bias", "qkv_bias", default=model_type in ATTENTION_BIAS),
        weight_dtype=dtype,
        attention=attention,
        mla=read_mla(keys) if is_mla else None,
        moe=moe,
        total_parameters=0,
        active_parameters=0,
        source=f"config.json of architecture {model_type or 'unnamed'}",
        confidence=_confidence(model_type),
        mamba2=read_mamba(keys) if has_state and model_type == "nemotron_h" else None,
        delta_net=read_delta_net(keys) if has_state and model_type != "nemotron_h" else None,
        indexer=read_indexer(keys, num_layers) if is_mla else None,
        dense_mlp_layers=_dense_layers(keys, model_type, num_layers),
        quantized_parts=parts,
        attention_sinks=model_type == "gpt_oss",
        mtp_layers=keys.integer("num_nextn_predict_layers", "num_mtp_modules", default=0, least=0),
        notes=_notes(document),
    )


def _intermediate(keys: ConfigKeys, model_type: str, hidden: int, *, is_moe: bool) -> int:
    names: tuple[str, ...] = ("intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size")
    if model_type.startswith("llama4"):
        names = ("intermediate_size_mlp", *names)
    if model_type in FOUR_TIMES_HIDDEN:
        return keys.integer(*names, default=4 * hidden)
    if is_moe:
        return keys.integer(*names, "moe_intermediate_size")
    return keys.integer(*names)


def _tied(keys: ConfigKeys, document: Document, model_type: str) -> bool:
    outer = document.data.get("tie_word_embeddings")
    default = outer if isinstance(outer, bool) else model_type in TIED
    return keys.flag("tie_word_embeddings", default=default)


def _positions(keys: ConfigKeys, model_type: str) -> int:
    """Positions the model was trained or stretched to: YaRN multiplies the original length."""
    positions = keys.integer(*POSITIONS, default=2048 if model_type in ("bloom", "falcon") else None)
    scaling = keys.data.get("rope_scaling") or keys.data.get("rope_parameters")
    if not isinstance(scaling, dict) or scaling.get("rope_type", scaling.get("type")) != "yarn":
        return positions
    factor, original = scaling.get("factor"), scaling.get("original_max_position_embeddings", positions)
    if isinstance(factor, (int, float)) and isinstance(original, int) and 1 <= factor <= 1000:
        return max(positions, int(factor * original))
    return positions


def _dense_layers(keys: ConfigKeys, model_type: str, num_layers: int) -> int | None:
    if model_type == "nemotron_h":
        return nemotron_layers(keys, num_layers)["-"]
    if model_type.startswith("gemma4") and keys.data.get("enable_moe_block"):
        return num_layers  # a dense block runs beside the experts
    return None


def _confidence(model_type: str) -> str:
    if model_type in KNOWN_TYPES:
        return "solid"
    return f"likely: architecture '{shorten(model_type, 40) or 'unnamed'}' is not known here, read by its keys alone"


def _notes(document: Document) -> tuple[str, ...]:
    if any(name in document.data for name in ("vision_config", "visual", "audio_config")):
        return ("the vision or audio tower is not counted",)
    return ()
