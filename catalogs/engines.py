"""Engines and what they can run. The solver prunes by the very predicates that the launcher checks before it starts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from types import MappingProxyType
from typing import Any

from splitplan.catalogs.connector_rules import connector_name, connector_problems
from splitplan.catalogs.engine_rules import (
    common_attention_backend,
    default_attention_backend,
    effective_block_tokens,
    instance_problems,
    needs_weight_only_kernels,
)
from splitplan.catalogs.errors import InputError, Problem, UnknownNameError, shorten
from splitplan.catalogs.reader import CATALOG_DIR, fold, read_catalog

__all__ = [
    "Engine",
    "EngineSide",
    "common_attention_backend",
    "connector_name",
    "connector_problems",
    "default_attention_backend",
    "effective_block_tokens",
    "find_engine",
    "instance_problems",
    "load_engines",
    "needs_weight_only_kernels",
]


@dataclass(frozen=True, slots=True)
class Engine:
    """One engine version as the planner knows it."""

    name: str  # "vllm", "sglang", "trtllm", "dynamo-vllm"
    version: str
    scheduler: str  # "vllm-v1" | "sglang" | "trtllm"
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
    stage_layers: str = ""  # environment variable for layers per pipeline stage; "": they are always cut alike
    base: str = ""  # the engine inside a Dynamo worker; else its own name
    notes: tuple[str, ...] = ()


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
    attention_backend: str  # "": the engine's default on that GPU
    engine_version: str
    expert_parallel: int = 1
    context_parallel: int = 1
    hybrid_kv_cache: bool = True  # vLLM: --disable-hybrid-kv-cache-manager turns it off
    speculative: str = ""  # the speculative configuration, as text
    stage_layers: tuple[int, ...] = ()  # layers of each pipeline stage where they are not cut alike


@cache
def load_engines() -> Mapping[str, Engine]:
    """Every engine of the catalog, by name."""
    data = read_catalog(CATALOG_DIR / "engines.yaml", "engines")
    entries: Mapping[str, Mapping[str, Any]] = data["engines"]
    return MappingProxyType(
        {
            name: _engine(name, {**entries.get(entry.get("engine", ""), {}), **entry}, data["date"])
            for name, entry in entries.items()
        }
    )


def find_engine(name: str, *, where: str = "", key: str = "") -> Engine:
    """An engine by name, "vllm", or by name and version, "vllm@0.24.0".

    Another version than the catalog's keeps the catalog's defaults and says so in `notes`. Raises UnknownNameError.
    """
    base, at, version = name.partition("@")
    engine = load_engines().get(fold(base))
    if engine is None:
        raise UnknownNameError("engine", name, load_engines(), where=where, key=key)
    if at and not version.strip():
        raise InputError(
            Problem(
                f"engine '{shorten(name)}' names no version", where, key, expected=f"{base}@{engine.version} or {base}"
            )
        )
    if not version or version == engine.version:
        return engine
    return replace(
        engine, version=version, notes=(*engine.notes, f"defaults and rules are those of version {engine.version}")
    )


def _engine(name: str, entry: Mapping[str, Any], date: str) -> Engine:
    return Engine(
        name=name,
        version=str(entry["version"]),
        scheduler=entry["scheduler"],
        block_tokens=entry["block_tokens"],
        memory_fraction=entry["memory_fraction"],
        max_num_seqs=entry["max_num_seqs"],
        max_num_batched_tokens=entry["max_num_batched_tokens"],
        weight_dtypes=tuple(entry["weight_dtypes"]),
        kv_dtypes=tuple(entry["kv_dtypes"]),
        connectors=tuple(entry["connectors"]),
        decode_emits_first_token=entry["decode_emits_first_token"],
        source=entry["source"],
        date=date,
        stage_layers=entry.get("stage_layers", ""),
        base=entry.get("engine", name),
        notes=tuple(entry.get("notes", ())),
    )
