"""Model dimensions, from the catalog or from any Hugging Face config.json, and the sizes that follow from them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

from splitplan.catalogs.errors import DocumentError, InputError, Problem, UnknownNameError, shorten
from splitplan.catalogs.layers import AttentionGroup, DeltaNet, Indexer, Mamba2, Mla, Moe
from splitplan.catalogs.parameters import (
    BYTES_PER_ELEMENT,
    active_parameters,
    element_bytes,
    parameter_parts,
    weight_bytes_by_part,
)
from splitplan.catalogs.reader import CATALOG_DIR, fold, index_names, read_catalog

__all__ = [
    "BYTES_PER_ELEMENT",
    "AttentionGroup",
    "DeltaNet",
    "Indexer",
    "Mamba2",
    "Mla",
    "Model",
    "Moe",
    "find_model",
    "load_models",
]


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
    total_parameters: int  # counted from the dimensions, see parameters.py
    active_parameters: int
    source: str
    confidence: str
    mamba2: Mamba2 | None = None
    delta_net: DeltaNet | None = None
    indexer: Indexer | None = None
    dense_mlp_layers: int | None = None  # None: every layer that is not MoE
    quantized_parts: tuple[str, ...] = ()  # for weight_dtype, where not the usual parts
    attention_sinks: bool = False  # one learned sink logit per head; not every attention kernel knows them
    mtp_layers: int = 0  # multi-token-prediction modules that ship with it; not counted
    vision_parameters: int = 0  # a vision tower that engines load beside it; not counted in total_parameters
    published_parameters: int | None = None
    published_source: str = ""
    published_includes_vision: bool = False
    notes: tuple[str, ...] = ()
    variants: Mapping[str, Mapping[str, Any]] = field(default_factory=dict, hash=False)  # aliases that change a field

    @property
    def num_dense_mlp_layers(self) -> int:
        """Layers with a dense feed-forward block."""
        if self.dense_mlp_layers is not None:
            return self.dense_mlp_layers
        return self.num_layers - (self.moe.num_moe_layers if self.moe else 0)

    @property
    def content_hash(self) -> str:
        """Changes exactly when a dimension or the published dtype does; names, sources and notes do not count."""
        skipped = {
            *("name", "aliases", "source", "confidence", "notes", "variants"),
            *("published_parameters", "published_source", "published_includes_vision"),
        }
        facts = {name: getattr(self, name) for name in sorted(self.__dataclass_fields__) if name not in skipped}
        text = json.dumps(facts, default=asdict, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def weight_bytes(self, dtype: str) -> int:
        """Bytes of the weights in a checkpoint of `dtype`, scales included; what stays in 16 bits is counted so."""
        return round(sum(weight_bytes_by_part(self, dtype).values()))

    def kv_bytes_per_token(self, kv_dtype: str) -> float:
        """Bytes one token adds to the cache over all layers, while it is inside every window. Indexer keys included."""
        elements = sum(group.num_layers * group.cached_values_per_token for group in self.attention)
        return elements * element_bytes(kv_dtype) + (self.indexer.cached_bytes_per_token if self.indexer else 0)

    def kv_bytes(self, tokens: float, kv_dtype: str) -> float:
        """Bytes a sequence of `tokens` holds.

        Windows drop what left them, MLA keeps its latent, state layers a constant.
        """
        size = element_bytes(kv_dtype)
        total = sum(
            group.num_layers * group.cached_values_per_token * group.cached_tokens(tokens) * size
            for group in self.attention
        )
        return total + (self.indexer.cached_bytes_per_token * tokens if self.indexer else 0) + self.state_bytes

    @property
    def state_bytes(self) -> int:
        """Bytes per sequence that do not grow with it (Mamba-2 and delta-rule layers)."""
        mixer = self.mamba2 or self.delta_net
        if mixer is None:
            return 0
        return mixer.state_bytes * sum(group.num_layers for group in self.attention if group.kind == "state")

    def kv_bytes_per_token_per_rank(self, kv_dtype: str, tensor_parallel: int) -> float:
        """Bytes one token adds on each tensor-parallel rank; replicated heads and MLA latents count on every rank."""
        elements = 0
        for group in self.attention:
            per_layer = (
                group.head_dim if group.kind == "mla" else 2 * group.kv_heads_per_rank(tensor_parallel) * group.head_dim
            )
            elements += group.num_layers * per_layer * (group.kind != "state")
        return elements * element_bytes(kv_dtype) + (self.indexer.cached_bytes_per_token if self.indexer else 0)

    def layers_per_stage(self, pipeline_parallel: int) -> tuple[int, ...]:
        """Layers of each pipeline stage as vLLM cuts them: what does not divide goes to the stages before the last."""
        share, rest = divmod(self.num_layers, pipeline_parallel)
        return tuple(
            share + (pipeline_parallel - 1 - rest <= stage < pipeline_parallel - 1)
            for stage in range(pipeline_parallel)
        )


def counted(model: Model) -> Model:
    """The model with its parameter totals counted from its dimensions; refuses dimensions that cannot be."""
    kinds = {group.kind for group in model.attention}
    if "state" in kinds and model.mamba2 is None and model.delta_net is None:
        raise InputError(f"model '{shorten(model.name)}' has state layers but no dimensions of their mixers")
    if "mla" in kinds and model.mla is None:
        raise InputError(f"model '{shorten(model.name)}' has MLA layers but no MLA dimensions")
    total = sum(parameter_parts(model).values())
    return replace(model, total_parameters=total, active_parameters=active_parameters(model))


@cache
def load_models() -> Mapping[str, Model]:
    """Every model of the catalog, by canonical name."""
    models: dict[str, Model] = {}
    for path in sorted((CATALOG_DIR / "families").glob("*.yaml")):
        for name, entry in read_catalog(path, "models")["models"].items():
            models[name] = _model(name, entry)
    return MappingProxyType(models)


def find_model(name_or_path: str, *, where: str = "", key: str = "") -> Model:
    """A model by catalog name or alias, or from a Hugging Face config.json, or from a folder that holds one.

    An alias of a quantised checkpoint gives the model in that dtype. Raises UnknownNameError with the nearest names;
    what is wrong with a config.json is a DocumentError with its line.
    """
    path = Path(name_or_path)
    config = path if name_or_path.endswith(".json") else path / "config.json"
    if name_or_path.endswith(".json") or _exists(config):
        from splitplan.catalogs.huggingface import read_config  # needs pydantic's document reader only for files

        return read_config(config)
    found = _index().get(fold(name_or_path))
    if found is None and path.is_absolute():
        found = _index().get(fold(path.name))  # a model folder elsewhere, as measurements name it
    if found is None and name_or_path and _exists(path) and path.is_dir():
        raise DocumentError(Problem("holds no config.json", name_or_path, expected="a Hugging Face model folder"))
    if found is None and name_or_path and _exists(path):
        expected = "a Hugging Face config.json (its name ends in .json), or the folder that holds it"
        raise DocumentError(Problem("is a file, but no model", name_or_path, expected=expected))
    if found is None:
        known = [item for model in load_models().values() for item in (model.name, *model.aliases)]
        raise UnknownNameError("model", name_or_path, known, where=where, key=key)
    model, _, variant = found.partition("\n")
    base = load_models()[model]
    if not variant:
        return base
    changes: dict[str, Any] = dict(base.variants[variant])
    if "quantized_parts" in changes:
        changes["quantized_parts"] = tuple(changes["quantized_parts"])
    return replace(base, **changes)


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):  # a part longer than the file system allows, a NUL
        return False


@cache
def _index() -> dict[str, str]:
    """Folded name → canonical name.

    For the alias of a quantised checkpoint, a newline and the variant's name follow.
    """
    entries: dict[str, list[str]] = {}
    for name, model in load_models().items():
        entries[name] = [*model.aliases, *(alias.split("/")[-1] for alias in model.aliases if alias.count("/") == 1)]
        for variant in model.variants:
            entries[f"{name}\n{variant}"] = [variant, variant.split("/")[-1]]
    return index_names(entries)


def _model(name: str, entry: Mapping[str, Any]) -> Model:
    moe, mla, mamba2, indexer = (entry.get(key) for key in ("moe", "mla", "mamba2", "indexer"))
    attention = tuple(
        AttentionGroup(
            num_layers=group["layers"],
            kind=group["kind"],
            num_heads=group["heads"],
            num_kv_heads=group["kv_heads"],
            head_dim=group["head_dim"],
            window_tokens=group.get("window_tokens"),
            shares_key_and_value=group.get("shares_key_and_value", False),
        )
        for group in entry["attention"]
    )
    plain = (
        *("num_layers", "hidden_size", "intermediate_size", "vocab_size", "tied_embeddings", "max_position_embeddings"),
        *(
            "gated_mlp",
            "attention_bias",
            "weight_dtype",
            "source",
            "confidence",
            "published_parameters",
            "published_source",
        ),
    )
    optional = ("attention_sinks", "dense_mlp_layers", "mtp_layers", "vision_parameters", "published_includes_vision")
    return counted(
        Model(
            name=name,
            aliases=tuple(entry["aliases"]),
            num_heads=attention[0].num_heads,
            attention=attention,
            mla=Mla(**mla) if mla else None,
            moe=_moe(moe) if moe else None,
            mamba2=Mamba2(**mamba2) if mamba2 else None,
            indexer=_indexer(indexer) if indexer else None,
            total_parameters=0,
            active_parameters=0,
            quantized_parts=tuple(entry.get("quantized_parts", ())),
            notes=tuple(entry.get("notes", ())),
            variants=entry.get("variants", {}),
            **{key: entry[key] for key in plain},
            **{key: entry[key] for key in optional if key in entry},
        )
    )


def _moe(entry: Mapping[str, Any]) -> Moe:
    return Moe(
        num_experts=entry["experts"],
        experts_per_token=entry["experts_per_token"],
        num_shared_experts=entry["shared_experts"],
        moe_intermediate_size=entry["intermediate_size"],
        num_moe_layers=entry["layers"],
        first_dense_layers=entry["first_dense_layers"],
        shared_intermediate_size=entry.get("shared_intermediate_size"),
        latent_size=entry.get("latent_size"),
    )


def _indexer(entry: Mapping[str, Any]) -> Indexer:
    return Indexer(
        num_layers=entry["layers"],
        topk_tokens=entry["topk_tokens"],
        num_heads=entry["heads"],
        head_dim=entry["head_dim"],
    )
