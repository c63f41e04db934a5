"""GPU types: datasheet facts with their source. What was measured on a GPU lives in profiles, not here."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from types import MappingProxyType
from typing import Any, Literal

from splitplan.catalogs.errors import InputError, Problem, UnknownNameError, shorten
from splitplan.catalogs.reader import CATALOG_DIR, cite, fold, index_names, read_catalog

Confidence = Literal["solid", "likely", "doubtful", "unverified", "assumed"]
PriceKind = Literal["on_demand", "reserved", "spot"]


@dataclass(frozen=True, slots=True)
class Price:
    """A list price; editable by the user in the fleet file."""

    usd_per_gpu_hour: float
    kind: PriceKind
    source: str
    date: str
    confidence: Confidence


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU type. Rates are dense (no sparsity) and links are one direction."""

    name: str  # canonical, for instance "h100-sxm"
    aliases: tuple[str, ...]  # "h100", "H100-80GB", as users and measured data write it
    vendor: str
    architecture: str
    compute_capability: str  # "9.0"; "" where it does not apply
    memory_bytes: int  # what the driver reports as total
    memory_bandwidth_bytes_per_s: float
    flops_per_s: Mapping[str, float] = field(
        hash=False
    )  # dense tensor rate by dtype: "bf16", "fp16", "fp8", "int8", "fp4", "tf32", "fp32"
    sm_count: int
    l2_bytes: int
    shared_memory_per_block_bytes: int
    tdp_watts: float
    nvlink: str | None  # name in the links catalog
    pcie: str
    product_labels: tuple[str, ...]  # nvidia.com/gpu.product values
    nvml_names: tuple[str, ...]
    prices: tuple[Price, ...]
    gpus_per_node: int  # of the usual node
    source: str
    date: str
    confidence: Mapping[str, Confidence] = field(hash=False)  # per field, where it is not "solid"
    notes: tuple[str, ...] = ()
    field_sources: Mapping[str, tuple[str, ...]] = field(default_factory=dict, hash=False)  # per field, addresses

    @property
    def compute_capability_number(self) -> float:
        """9.0 for "9.0"; 0.0 for devices without one (CPU, AMD)."""
        return float(self.compute_capability) if re.fullmatch(r"\d+\.\d+", self.compute_capability) else 0.0

    def price(self, kind: PriceKind = "on_demand") -> Price:
        """The default price of a kind: the first listed."""
        return next(price for price in self.prices if price.kind == kind)


@cache
def load_gpus() -> Mapping[str, Gpu]:
    """Every GPU type of the catalog, by canonical name."""
    data = read_catalog(CATALOG_DIR / "gpus.yaml", "gpus")
    return MappingProxyType(
        {name: _gpu(name, entry, data["sources"], data["date"]) for name, entry in data["gpus"].items()}
    )


def find_gpu(name: str, *, where: str = "", key: str = "") -> Gpu:
    """A GPU type by name, alias, NVML name or `nvidia.com/gpu.product` label.

    Case does not count, and parts of names do not match. Raises UnknownNameError with the nearest names, and
    InputError for a MIG slice, which is not a GPU to plan with.
    """
    folded = fold(name)
    canonical = _index().get(folded)
    if canonical is None and re.search(r"-mig-\d+g\.\d+gb", folded):
        whole = re.sub(r"(?i)-mig-.*$", "", name)
        raise InputError(
            Problem(
                f"'{shorten(name)}' is a MIG slice",
                where,
                key,
                expected="a whole GPU",
                next_step=f"turn MIG off on the node, or plan with {shorten(whole)} and leave the sliced GPUs out",
            )
        )
    if canonical is None:
        canonical = _index().get(folded.removesuffix("-shared"))
    if canonical is None:
        raise UnknownNameError("gpu", name, _known_names(), where=where, key=key)
    return load_gpus()[canonical]


@cache
def _index() -> dict[str, str]:
    return index_names(
        {name: (*gpu.aliases, *gpu.product_labels, *gpu.nvml_names) for name, gpu in load_gpus().items()}
    )


def _known_names() -> list[str]:
    return [name for gpu in load_gpus().values() for name in (gpu.name, *gpu.aliases)]


def _gpu(name: str, entry: Mapping[str, Any], sources: Mapping[str, Mapping[str, str]], date: str) -> Gpu:
    cited = {key: tuple(sources[item]["address"] for item in items) for key, items in entry["sources"].items()}
    return Gpu(
        name=name,
        aliases=tuple(entry["aliases"]),
        vendor=entry["vendor"],
        architecture=entry["architecture"],
        compute_capability=entry["compute_capability"],
        memory_bytes=entry["memory_mib"] * 2**20,
        memory_bandwidth_bytes_per_s=entry["memory_bandwidth_gb_per_s"] * 1e9,
        flops_per_s={dtype: rate * 1e12 for dtype, rate in entry["dense_tflops"].items()},
        sm_count=entry["sm_count"],
        l2_bytes=int(entry["l2_mb"] * 2**20),
        shared_memory_per_block_bytes=entry["shared_memory_per_block_kib"] * 1024,
        tdp_watts=float(entry["tdp_watts"]),
        nvlink=entry["nvlink"],
        pcie=entry["pcie"],
        product_labels=tuple(entry["product_labels"]),
        nvml_names=tuple(entry["nvml_names"]),
        prices=tuple(Price(**{**price, "source": cite(price["source"], sources)}) for price in entry["prices"]),
        gpus_per_node=entry["gpus_per_node"],
        source="; ".join(dict.fromkeys(address for items in cited.values() for address in items)),
        date=date,
        confidence=entry["confidence"],
        notes=tuple(entry.get("notes", ())),
        field_sources=cited,
    )
