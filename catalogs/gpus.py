"""GPU types: datasheet facts with their source. What was measured on a GPU lives in profiles, not here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Confidence = Literal["solid", "likely", "doubtful", "unverified", "assumed"]


@dataclass(frozen=True, slots=True)
class Price:
    """A list price; editable by the user in the fleet file."""

    usd_per_gpu_hour: float
    kind: Literal["on_demand", "reserved", "spot"]
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
    flops_per_s: Mapping[str, float]  # dense tensor rate by dtype: "bf16", "fp16", "fp8", "int8", "fp4", "fp32"
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
    confidence: Mapping[str, Confidence]  # per field, where it is not "solid"
