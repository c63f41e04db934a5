"""What must match on the two sides of a KV connector: pure predicates, read in vLLM 0.32 and SGLang 0.5.23.

A healthy `/health` on both sides proves nothing: some mismatches fail at the first request, some hang, and unequal
block sizes answer with wrong tokens. So they are refused before anything is ranked.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from splitplan.catalogs.engine_rules import (
    default_attention_backend,
    effective_block_tokens,
    has_state,
    is_hybrid,
    is_mla,
)

if TYPE_CHECKING:
    from splitplan.catalogs.engines import Engine, EngineSide
    from splitplan.catalogs.models import Model

PairRule = Callable[["Engine", "Model", "EngineSide", "EngineSide"], str | None]


def connector_problems(
    engine: Engine, connector: str, model: Model, prefill: EngineSide, decode: EngineSide
) -> list[str]:
    """Why this connector cannot hand KV from this prefill to this decode instance; [] when it can.

    `connector` is "nixl", "mooncake", "ucx", or the engine's own spelling ("NixlConnector").
    """
    name = connector_name(connector)
    if name not in engine.connectors:
        known = ", ".join(engine.connectors) or "none"
        return [f"{engine.name} {engine.version} has no KV connector '{connector}': use {known}"]
    rules = PAIR_RULES[engine.base, name]
    return [message for rule in rules if (message := rule(engine, model, prefill, decode)) is not None]


def connector_name(connector: str) -> str:
    """ "nixl" for "NixlConnector", "NIXL" or "nixl"; "nixl-push" for "NixlPushConnector"."""
    name = connector.strip().casefold().removesuffix("storeconnector").removesuffix("connector")
    return {"nixlpush": "nixl-push", "nixlpull": "nixl"}.get(name, name)


def _same_version(engine: Engine, model: Model, prefill: EngineSide, decode: EngineSide) -> str | None:
    if prefill.engine_version == decode.engine_version:
        return None
    return (
        f"prefill runs {engine.base} {prefill.engine_version}, decode {decode.engine_version}: "
        "pin one image, the handshake compares versions"
    )


def _same_model(engine: Engine, model: Model, prefill: EngineSide, decode: EngineSide) -> str | None:
    if prefill.model == decode.model:
        return None
    return (
        f"the model is named '{prefill.model}' on one side and '{decode.model}' on the other: "
        "give both the same string, the handshake hashes it (a path counts too)"
    )


def _same_weight_dtype(engine: Engine, model: Model, prefill: EngineSide, decode: EngineSide) -> str | None:
    if prefill.weight_dtype == decode.weight_dtype:
        return None
    return (
        f"weights are {prefill.weight_dtype} for prefill, {decode.weight_dtype} for decode: use one checkpoint for both"
    )


def _same_kv_dtype(engine: Engine, model: Model, prefill: EngineSide, decode: EngineSide) -> str | None:
    if prefill.kv_dtype == decode.kv_dtype:
        return None
    return f"the KV cache is {prefill.kv_dtype} for prefill and {decode.kv_dtype} for decode: set one KV dtype on both"


def _same_block(engine: Engine, model: Model, prefill: EngineSide, decode: EngineSide) -> str | None:
    ours, theirs = (_block_tokens(engine, model, side) for side in (prefill, decode))
    if ours == theirs:
        return None
    word = "page" if engine.base == "sglang" else "block"
    reason = "the engine answers with wrong tokens otherwise" if engine.base == "vllm" else "pages are moved one to one"
    return f"KV {word}s hold {ours} tokens for prefill and {theirs} for decode: make them equal, {reason}"


def _block_tokens(engine: Engine, model: Model, side: EngineSide) -> int:
    backend = side.attention_backend or _default_backend(engine, model, side)
    return effective_block_tokens(engine, backend, side.block_tokens)


def _same_backend(engine: Engine, model: Model, prefill: EngineSide, decode: EngineSide) -> str | None:
    ours, theirs = (side.attention_backend or _default_backend(engine, model, side) for side in (prefill, decode))
    if ours == theirs:
        return None
    return (
        f"attention backends differ, {ours} on {prefill.gpu} and {theirs} on {decode.gpu}: "
        "pin one --attention-backend on both sides"
    )


def _default_backend(engine: Engine, model: Model, side: EngineSide) -> str:
    from splitplan.catalogs.gpus import find_gpu  # only when a side leaves the choice to the engine

    return default_attention_backend(engine, find_gpu(side.gpu), model, side.kv_dtype)


def _same_hybrid_cache(engine: Engine, model: Model, prefill: EngineSide, decode: EngineSide) -> str | None:
    if prefill.hybrid_kv_cache == decode.hybrid_kv_cache:
        return None
    return (
        "the hybrid KV cache manager is on for one side only: set --disable-hybrid-kv-cache-manager on both or neither"
    )


def _same_speculation(engine: Engine, model: Model, prefill: EngineSide, decode: EngineSide) -> str | None:
    if prefill.speculative == decode.speculative:
        return None
    return "speculative decoding is set differently on the two sides: give both the same --speculative-config"


def _tp_divides(engine: Engine, model: Model, prefill: EngineSide, decode: EngineSide) -> str | None:
    small, large = sorted((prefill.tensor_parallel, decode.tensor_parallel))
    if large % small == 0:
        return None
    return (
        f"prefill TP {prefill.tensor_parallel} and decode TP {decode.tensor_parallel} do not divide each other: "
        "make one a multiple of the other"
    )


def _no_replicated_heads(engine: Engine, model: Model, prefill: EngineSide, decode: EngineSide) -> str | None:
    if is_mla(model) or prefill.tensor_parallel <= decode.tensor_parallel:
        return None
    heads = min((group.num_kv_heads for group in model.attention if group.num_kv_heads), default=0)
    if not heads or prefill.tensor_parallel <= heads:
        return None
    return (
        f"prefill TP {prefill.tensor_parallel} replicates {heads} KV heads and is larger than decode TP "
        f"{decode.tensor_parallel}: NIXL refuses that pair, use prefill TP {heads} or equal TP"
    )


def _equal_tp_for_hybrids(engine: Engine, model: Model, prefill: EngineSide, decode: EngineSide) -> str | None:
    if prefill.tensor_parallel == decode.tensor_parallel or not is_hybrid(model):
        return None
    kind = "state" if has_state(model) else "sliding-window and full"
    return (
        f"{model.name} has {kind} layers, whose cache cannot be re-cut between TP sizes: use the same TP on both sides"
    )


def _equal_tp(engine: Engine, model: Model, prefill: EngineSide, decode: EngineSide) -> str | None:
    if prefill.tensor_parallel == decode.tensor_parallel:
        return None
    return (
        f"this connector wants the same TP on both sides, not {prefill.tensor_parallel} and {decode.tensor_parallel}: "
        "use equal TP, or nixl"
    )


def _no_decode_pipeline(engine: Engine, model: Model, prefill: EngineSide, decode: EngineSide) -> str | None:
    if decode.pipeline_parallel == 1:
        return None
    return f"decode with {decode.pipeline_parallel} pipeline stages cannot receive KV: use PP 1 for decode"


def _no_prefill_pipeline(engine: Engine, model: Model, prefill: EngineSide, decode: EngineSide) -> str | None:
    """Tried on vLLM 0.32: a decode worker that pulls compares its layers with one stage's, and every request fails."""
    if prefill.pipeline_parallel == 1:
        return None
    return (
        f"prefill with {prefill.pipeline_parallel} pipeline stages cannot hand KV over through vLLM's NixlConnector: "
        "use PP 1 for prefill, or the connector nixl-push or mooncake"
    )


def _no_stages_of_state(engine: Engine, model: Model, prefill: EngineSide, decode: EngineSide) -> str | None:
    if prefill.pipeline_parallel == 1 or not has_state(model):
        return None
    return f"{model.name} has state layers, which pipeline stages cannot push: use PP 1 for prefill"


def _decode_pipeline_matches(engine: Engine, model: Model, prefill: EngineSide, decode: EngineSide) -> str | None:
    if decode.pipeline_parallel in (1, prefill.pipeline_parallel):
        return None
    return (
        f"decode has {decode.pipeline_parallel} pipeline stages, prefill {prefill.pipeline_parallel}: "
        "SGLang wants decode PP equal to prefill's, or 1"
    )


def _stages_cut_alike(engine: Engine, model: Model, prefill: EngineSide, decode: EngineSide) -> str | None:
    """vLLM's pushing connectors (0.32) find a stage's layers in the whole; unequal stages have not been tried."""
    if not prefill.stage_layers and not decode.stage_layers:
        return None
    return "pipeline stages with unequal layers cannot hand KV over through this connector: serve them colocated"


def _same_layers_of_stages(engine: Engine, model: Model, prefill: EngineSide, decode: EngineSide) -> str | None:
    """SGLang moves KV from stage to stage by the prefill stage's first layer, or all into one decode stage."""
    if decode.pipeline_parallel == 1 or prefill.stage_layers == decode.stage_layers:
        return None
    return "prefill and decode stages hold different layers: cut both alike, or use decode PP 1"


def _no_decode_context_parallel(engine: Engine, model: Model, prefill: EngineSide, decode: EngineSide) -> str | None:
    if decode.context_parallel == 1:
        return None
    return f"decode with context parallelism {decode.context_parallel} cannot receive KV: use 1"


_VLLM_HANDSHAKE: tuple[PairRule, ...] = (
    _same_version,
    _same_model,
    _same_weight_dtype,
    _same_kv_dtype,
    _same_block,
    _same_backend,
    _same_hybrid_cache,
    _same_speculation,
)
_SGLANG: tuple[PairRule, ...] = (
    _same_version,
    _same_model,
    _same_kv_dtype,
    _same_block,
    _tp_divides,
    _equal_tp_for_hybrids,
    _decode_pipeline_matches,
    _same_layers_of_stages,
    _no_decode_context_parallel,
)
_TRTLLM: tuple[PairRule, ...] = (  # documented, not read in its sources
    _same_version,
    _same_model,
    _same_kv_dtype,
    _same_block,
    _tp_divides,
    _equal_tp_for_hybrids,
)
PAIR_RULES: dict[tuple[str, str], tuple[PairRule, ...]] = {
    ("vllm", "nixl"): (
        *_VLLM_HANDSHAKE,
        _tp_divides,
        _no_replicated_heads,
        _equal_tp_for_hybrids,
        _no_prefill_pipeline,
        _no_decode_pipeline,
    ),
    ("vllm", "nixl-push"): (
        *_VLLM_HANDSHAKE,
        _tp_divides,
        _no_replicated_heads,
        _equal_tp_for_hybrids,
        _no_decode_pipeline,
        _no_stages_of_state,
        _stages_cut_alike,
    ),
    ("vllm", "mooncake"): (*_VLLM_HANDSHAKE, _equal_tp, _no_decode_pipeline, _stages_cut_alike),
    ("sglang", "mooncake"): _SGLANG,
    ("sglang", "nixl"): _SGLANG,
    ("trtllm", "nixl"): _TRTLLM,
    ("trtllm", "ucx"): _TRTLLM,
}
