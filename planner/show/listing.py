"""What the catalogs hold, as plain rows and facts: the Python behind `planner catalog`.

Keys carry their unit (`memory_gib`, `usd_per_gpu_hour`); each fact keeps its confidence and its source.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import Any

from splitplan.catalogs.engines import Engine, find_engine, load_engines
from splitplan.catalogs.errors import UsageError, nearest_names, shorten
from splitplan.catalogs.gpus import Gpu, find_gpu, load_gpus
from splitplan.catalogs.links import find_link, load_links
from splitplan.catalogs.models import Model, find_model, load_models

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Fact:
    """One line of an entry: its value in people's units, how sure it is, and where it comes from."""

    key: str
    value: Any
    confidence: str = ""
    source: str = ""


@dataclass(frozen=True, slots=True)
class Kind:
    """One catalog: its rows and how one entry is described."""

    rows: Callable[[], list[Row]]
    facts: Callable[[str], list[Fact]]


def list_entries(kind: str) -> list[Row]:
    """The rows of one catalog, by name or in catalog order. Raises UsageError for a catalog there is not."""
    return _kind(kind).rows()


def describe_entry(kind: str, name: str) -> list[Fact]:
    """Everything known about one entry. Raises UsageError and UnknownNameError."""
    return _kind(kind).facts(name)


def _kind(name: str) -> Kind:
    folded = name.casefold().rstrip("s") + "s"
    if folded not in KINDS:
        near = nearest_names(name, KINDS)
        hint = f"did you mean {near[0]}? " if near else ""
        raise UsageError(f"no catalog '{shorten(name, 40)}': {hint}there are {', '.join(KINDS)}")
    return KINDS[folded]


def least_confidence(levels: Iterable[str]) -> str:
    """The worst level among the figures of an entry; "solid" when all are."""
    found = set(levels)
    return next((level for level in ("assumed", "unverified", "doubtful", "likely") if level in found), "solid")


# ── GPUs ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _gpu_rows() -> list[Row]:
    return [
        {
            "name": gpu.name,
            "memory_gib": round(gpu.memory_bytes / 2**30, 1),
            "memory_bandwidth_gb_per_s": gpu.memory_bandwidth_bytes_per_s / 1e9,
            "bf16_tflops": _tflops(gpu, "bf16"),
            "fp8_tflops": _tflops(gpu, "fp8"),
            "nvlink": gpu.nvlink or "",
            "tdp_watts": gpu.tdp_watts,
            "usd_per_gpu_hour": gpu.price().usd_per_gpu_hour,
            "least_confidence": least_confidence(gpu.confidence.values()),
        }
        for gpu in load_gpus().values()
    ]


def _tflops(gpu: Gpu, dtype: str) -> float | None:
    rate = gpu.flops_per_s.get(dtype)
    return None if rate is None else round(rate / 1e12, 1)


def _gpu_facts(name: str) -> list[Fact]:
    gpu = find_gpu(name)

    def fact(key: str, value: Any, field: str) -> Fact:
        return Fact(key, value, gpu.confidence.get(field, "solid"), "; ".join(gpu.field_sources.get(field, ())))

    return [
        Fact("name", gpu.name),
        Fact("aliases", list(gpu.aliases)),
        Fact("vendor", f"{gpu.vendor}, {gpu.architecture}"),
        Fact("compute_capability", gpu.compute_capability or "none"),
        fact("memory_gib", round(gpu.memory_bytes / 2**30, 2), "memory"),
        fact("memory_bandwidth_gb_per_s", gpu.memory_bandwidth_bytes_per_s / 1e9, "memory_bandwidth"),
        *(fact(f"{dtype}_dense_tflops", round(rate / 1e12, 2), dtype) for dtype, rate in gpu.flops_per_s.items()),
        fact("sm_count", gpu.sm_count, "sm_count"),
        fact("l2_mib", gpu.l2_bytes / 2**20, "l2"),
        fact("shared_memory_per_block_kib", gpu.shared_memory_per_block_bytes / 1024, "shared_memory"),
        fact("tdp_watts", gpu.tdp_watts, "tdp"),
        fact("nvlink", gpu.nvlink or "none", "nvlink"),
        fact("pcie", gpu.pcie, "pcie"),
        fact("gpus_per_node", gpu.gpus_per_node, "gpus_per_node"),
        fact("product_labels", list(gpu.product_labels), "product_labels"),
        fact("nvml_names", list(gpu.nvml_names), "nvml_names"),
        *(
            Fact(
                f"usd_per_gpu_hour_{price.kind}",
                price.usd_per_gpu_hour,
                price.confidence,
                f"{price.source}, {price.date}",
            )
            for price in gpu.prices
        ),
        *(Fact("note", note) for note in gpu.notes),
        Fact("date", gpu.date),
    ]


# ── Links ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def _link_rows() -> list[Row]:
    return [
        {
            "name": link.name,
            "kind": link.kind,
            "gb_per_s_one_way": link.bytes_per_s / 1e9,
            "achievable_gb_per_s": round(link.achievable_bytes_per_s / 1e9, 2),
            "latency_us": round(link.latency_s * 1e6, 2),
            "per_descriptor_us": round(link.per_descriptor_s * 1e6, 2),
            "rate_confidence": link.confidence,
        }
        for link in load_links().values()
    ]


def _link_facts(name: str) -> list[Fact]:
    link = find_link(name)
    return [
        Fact("name", link.name),
        Fact("aliases", list(link.aliases)),
        Fact("kind", link.kind),
        Fact("gb_per_s_one_way", link.bytes_per_s / 1e9, link.confidence, link.source),
        Fact("achievable_fraction", link.achievable_fraction, link.confidence, link.source),
        Fact("all_reduce_fraction", link.all_reduce_fraction or "not known", link.confidence),
        Fact("latency_us", round(link.latency_s * 1e6, 2), link.latency_confidence),
        Fact("per_descriptor_us", round(link.per_descriptor_s * 1e6, 2), link.descriptor_confidence),
        Fact("domain_gpus", link.domain_gpus or "not a fabric of GPUs"),
        Fact("date", link.date),
    ]


# ── Models ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def _model_rows() -> list[Row]:
    return [
        {
            "name": model.name,
            "parameters_billion": round(model.total_parameters / 1e9, 2),
            "active_billion": round(model.active_parameters / 1e9, 2),
            "layers": model.num_layers,
            "attention": attention_text(model),
            "experts": f"{model.moe.experts_per_token} of {model.moe.num_experts}" if model.moe else "",
            "published_dtype": model.weight_dtype,
            "weights_gib": round(model.weight_bytes(model.weight_dtype) / 2**30, 1),
            "kv_kib_per_token_bf16": round(model.kv_bytes_per_token("bf16") / 1024, 1),
            "confidence": model.confidence,
        }
        for model in sorted(load_models().values(), key=lambda model: model.name)
    ]


def attention_text(model: Model) -> str:
    """ "64/8 heads x 128", "24 full + 24 within 128", "MLA 512+64"."""
    if model.mla is not None:
        sparse = f", top {model.indexer.topk_tokens}" if model.indexer else ""
        return f"MLA {model.mla.kv_lora_rank}+{model.mla.qk_rope_head_dim}{sparse}"
    parts = []
    for group in model.attention:
        if group.kind == "state":
            parts.append(f"{group.num_layers} state")
            continue
        heads = f"{group.num_heads}/{group.num_kv_heads} heads x {group.head_dim}"
        window = f" within {group.window_tokens}" if group.window_tokens else ""
        parts.append(heads if len(model.attention) == 1 else f"{group.num_layers} of {heads}{window}")
    return " + ".join(parts)


def _model_facts(name: str) -> list[Fact]:
    model = find_model(name)
    published = f"{model.published_parameters / 1e9:.2f}" if model.published_parameters else "not stated"
    facts = [
        Fact("name", model.name),
        Fact("aliases", [*model.aliases, *model.variants]),
        Fact("parameters_billion", round(model.total_parameters / 1e9, 3), "counted", "from the dimensions below"),
        Fact("published_billion", published, "", model.published_source),
        Fact("active_billion", round(model.active_parameters / 1e9, 3), "counted"),
        *(
            Fact(key, getattr(model, key), model.confidence, model.source)
            for key in ("num_layers", "hidden_size", "intermediate_size", "vocab_size", "max_position_embeddings")
        ),
        Fact("attention", attention_text(model), model.confidence, model.source),
        Fact("mla", asdict(model.mla) if model.mla else "no"),
        Fact("moe", asdict(model.moe) if model.moe else "no"),
        Fact("tied_embeddings", model.tied_embeddings),
        Fact("published_dtype", model.weight_dtype),
        *(
            Fact(f"weights_gib_{dtype}", round(model.weight_bytes(dtype) / 2**30, 2), "counted")
            for dtype in dict.fromkeys((model.weight_dtype, "bf16", "fp8", "int4"))
        ),
        *(Fact(f"kv_bytes_per_token_{dtype}", model.kv_bytes_per_token(dtype), "counted") for dtype in ("bf16", "fp8")),
        Fact("kv_gib_at_32k_tokens_bf16", round(model.kv_bytes(32_768, "bf16") / 2**30, 3), "counted"),
        Fact("content_hash", model.content_hash),
    ]
    return facts + [Fact("note", note) for note in model.notes]


# ── Engines ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def _engine_rows() -> list[Row]:
    return [
        {
            "name": engine.name,
            "version": engine.version,
            "block_tokens": engine.block_tokens,
            "memory_fraction": engine.memory_fraction,
            "weight_dtypes": list(engine.weight_dtypes),
            "kv_dtypes": list(engine.kv_dtypes),
            "connectors": list(engine.connectors),
        }
        for engine in load_engines().values()
    ]


def _engine_facts(name: str) -> list[Fact]:
    engine: Engine = find_engine(name)
    hidden = ("notes", "source", "date")
    facts = [Fact(key, value) for key, value in asdict(engine).items() if key not in hidden]
    facts += [Fact("source", engine.source), Fact("date", engine.date)]
    return facts + [Fact("note", note) for note in engine.notes]


# ── What other rooms ship: asked only when needed ───────────────────────────────────────────────────────────────────


def _workload_rows() -> list[Row]:
    from splitplan.planner.spec.shipped import shipped_names
    from splitplan.planner.spec.workload import load_workload

    rows = []
    for name in shipped_names("workload"):
        workload = load_workload(name, rate_req_per_s=1.0)
        rows.append(
            {
                "name": name,
                "mean_input_tokens": round(float(workload.weight @ workload.input_tokens), 1),
                "mean_output_tokens": round(float(workload.weight @ workload.output_tokens), 1),
                "arrival_cv": round(workload.arrival_scv**0.5, 2),
                "prefix_hit_ratio": round(workload.prefix_hit_ratio, 3),
                "source": workload.source,
            }
        )
    return rows


def _workload_facts(name: str) -> list[Fact]:
    from splitplan.planner.spec.workload import load_workload

    workload = load_workload(name, rate_req_per_s=1.0)
    return [
        Fact("name", workload.name),
        Fact("mean_input_tokens", round(float(workload.weight @ workload.input_tokens), 1), "", workload.source),
        Fact("mean_output_tokens", round(float(workload.weight @ workload.output_tokens), 1), "", workload.source),
        Fact("rows", len(workload.weight)),
        Fact("arrival_cv", round(workload.arrival_scv**0.5, 3)),
        Fact("prefix_hit_ratio", round(workload.prefix_hit_ratio, 3)),
        Fact("content_hash", workload.content_hash),
        *(Fact("note", note) for note in workload.notes),
    ]


def _fleet_rows() -> list[Row]:
    from splitplan.planner.spec.fleet import load_fleet
    from splitplan.planner.spec.shipped import shipped_names

    rows = []
    for name in shipped_names("fleet"):
        fleet = load_fleet(name)
        gpus = ", ".join(f"{count} {gpu}" for gpu, count in fleet.num_gpus.items())
        rows.append({"name": name, "racks": len(fleet.racks), "nodes": len(fleet.nodes), "gpus": gpus})
    return rows


def _fleet_facts(name: str) -> list[Fact]:
    from splitplan.planner.spec.fleet import load_fleet

    fleet = load_fleet(name)
    spine = "no limit" if fleet.spine_bytes_per_s is None else round(fleet.spine_bytes_per_s * 8 / 1e9, 1)
    return [
        Fact("name", fleet.name),
        *(Fact(f"gpus ({gpu})", count) for gpu, count in fleet.num_gpus.items()),
        Fact("racks", len(fleet.racks)),
        Fact("nodes", len(fleet.nodes)),
        Fact("spine_gbit_per_s", spine),
        *(
            Fact(f"usd_per_gpu_hour_{gpu}", price, "", fleet.price_sources.get(gpu, ""))
            for gpu, price in fleet.usd_per_gpu_hour.items()
        ),
        Fact("content_hash", fleet.content_hash),
        *(Fact("note", note) for note in fleet.notes),
    ]


def _profile_rows() -> list[Row]:
    from splitplan.profiler.store import find_profile, list_profiles

    rows = []
    for name in list_profiles():
        gpu, _, engine = name.partition("/")
        profile = find_profile(gpu, engine)
        rows.append(
            {
                "name": name,
                "engine_version": profile.engine_version,
                "tables": list(profile.tables),
                "date": profile.provenance.get("date", ""),
                "source": profile.provenance.get("source", ""),
            }
        )
    return rows


def _profile_facts(name: str) -> list[Fact]:
    from splitplan.profiler.describe import PRECEDENCE, describe
    from splitplan.profiler.store import find_profile, load_profile

    gpu, _, engine = name.partition("/")
    profile = load_profile(name) if name.endswith(".npz") else find_profile(find_gpu(gpu).name, engine or "vllm")
    return [
        Fact("gpu", profile.gpu),
        Fact("engine", f"{profile.engine} {profile.engine_version}"),
        *(
            Fact(
                table.family,
                "; ".join(part for part in (f"{table.num_rows:,} rows", table.check) if part),
                "",
                "; ".join(f"{column} {values}" for column, values in table.columns.items()),
            )
            for table in describe(profile, find_gpu(profile.gpu), passes=1, limit=400)
        ),
        Fact("precedence", PRECEDENCE),
        *(Fact(key, value) for key, value in profile.provenance.items()),
        Fact("content_hash", profile.content_hash),
        *(Fact("note", note) for note in profile.notes),
    ]


KINDS: dict[str, Kind] = {
    "gpus": Kind(_gpu_rows, _gpu_facts),
    "links": Kind(_link_rows, _link_facts),
    "models": Kind(_model_rows, _model_facts),
    "engines": Kind(_engine_rows, _engine_facts),
    "workloads": Kind(_workload_rows, _workload_facts),
    "fleets": Kind(_fleet_rows, _fleet_facts),
    "profiles": Kind(_profile_rows, _profile_facts),
}
