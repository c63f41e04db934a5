"""The shipped YAML obeys its schema: units in the keys, sources that exist, prices of every kind."""

from __future__ import annotations

import pickle
from itertools import pairwise
from typing import Any, Literal

import pytest
import yaml
from pydantic import Field

from splitplan.catalogs import engines, gpus, links, models
from splitplan.catalogs.engines import load_engines
from splitplan.catalogs.fields import Fraction, NonNegativeFinite, PositiveFinite, PositiveInt, Strict
from splitplan.catalogs.gpus import load_gpus
from splitplan.catalogs.links import load_links
from splitplan.catalogs.models import load_models
from splitplan.catalogs.reader import CATALOG_DIR, cite, index_names

Confidence = Literal["solid", "likely", "doubtful", "unverified", "assumed"]


class PriceRow(Strict):
    usd_per_gpu_hour: PositiveFinite
    kind: Literal["on_demand", "reserved", "spot"]
    source: str = Field(min_length=4)
    date: str = Field(min_length=4)
    confidence: Confidence


class GpuRow(Strict):
    aliases: list[str]
    vendor: str
    architecture: str
    compute_capability: str
    memory_mib: PositiveInt
    memory_bandwidth_gb_per_s: PositiveFinite
    dense_tflops: dict[Literal["bf16", "fp16", "fp8", "int8", "fp4", "tf32", "fp32"], PositiveFinite]
    sm_count: PositiveInt
    l2_mb: PositiveFinite
    shared_memory_per_block_kib: int
    tdp_watts: PositiveFinite
    nvlink: str | None
    pcie: str
    gpus_per_node: PositiveInt
    product_labels: list[str]
    nvml_names: list[str]
    prices: list[PriceRow]
    sources: dict[str, list[str]]
    confidence: dict[str, Confidence]
    notes: list[str] = Field(default_factory=list)


class LinkRow(Strict):
    aliases: list[str]
    kind: Literal["nvlink", "pcie", "infiniband", "roce", "efa", "ethernet", "infinity-fabric"]
    gb_per_s: PositiveFinite
    achievable_fraction: Fraction
    all_reduce_fraction: PositiveFinite | None = None
    latency_us: NonNegativeFinite
    per_descriptor_us: NonNegativeFinite
    domain_gpus: PositiveInt | None = None
    source: str = Field(min_length=4)
    confidence: Confidence
    latency_confidence: Confidence
    descriptor_confidence: Confidence


def raw(name: str) -> Any:
    return yaml.safe_load((CATALOG_DIR / name).read_text())


def test_gpu_file_obeys_its_schema() -> None:
    data = raw("gpus.yaml")
    for name, entry in data["gpus"].items():
        row = GpuRow.model_validate(entry)
        assert {price.kind for price in row.prices} == {"on_demand", "reserved", "spot"}, name
        assert row.prices[0].kind == "on_demand"
        unsourced = {
            field for field, level in row.confidence.items() if field not in row.sources and level != "assumed"
        }
        assert unsourced <= {"fp16"}, name  # fp16 shares the source of bf16
        assert all(key in data["sources"] for keys in row.sources.values() for key in keys)


def test_link_file_obeys_its_schema() -> None:
    data = raw("links.yaml")
    for entry in data["links"].values():
        row = LinkRow.model_validate(entry)
        assert cite(row.source, data["sources"]) != row.source or "[" not in row.source


def test_every_link_a_gpu_names_exists() -> None:
    for gpu in load_gpus().values():
        assert gpu.pcie in load_links()
        assert gpu.nvlink is None or gpu.nvlink in load_links()


def test_every_source_has_an_address_and_no_key_is_left_unexplained() -> None:
    for name in ("gpus.yaml", "links.yaml"):
        for entry in raw(name)["sources"].values():
            assert len(entry["address"]) > 8
            assert entry["kind"]
            assert entry["dated"]
    for gpu in load_gpus().values():
        assert gpu.source or gpu.name == "cpu"
    for model in load_models().values():
        assert len(model.source) > 8


def test_faster_links_and_peaks_keep_their_order() -> None:
    """A typing error of a factor ten or a wrong direction would break one of these orders."""
    rates = [load_links()[name].bytes_per_s for name in ("nvlink2", "nvlink3", "nvlink4", "nvlink5")]
    assert rates == sorted(rates)
    for family in (("pcie3-x16", "pcie4-x16", "pcie5-x16", "pcie6-x16"), ("ib-edr", "ib-hdr", "ib-ndr", "ib-xdr")):
        for slow, fast in pairwise(family):
            assert load_links()[fast].bytes_per_s == 2 * load_links()[slow].bytes_per_s
    for gpu in load_gpus().values():
        if gpu.name not in ("cpu", "v100-sxm-32") and "fp8" in gpu.flops_per_s:
            assert gpu.flops_per_s["fp8"] == pytest.approx(2 * gpu.flops_per_s["bf16"], rel=0.02)


def test_marked_figures_stay_marked() -> None:
    """What the sources disagree about must not turn solid by accident."""
    assert load_gpus()["a10g"].confidence["bf16"] == "doubtful"
    assert load_gpus()["b200"].confidence["memory_bandwidth"] == "doubtful"
    assert load_gpus()["h20"].confidence["tdp"] == "doubtful"
    assert load_gpus()["l40s"].confidence["l2"] == "unverified"
    assert load_links()["roce-400"].confidence == "doubtful"
    assert all(gpu.price("reserved").confidence == "assumed" for gpu in load_gpus().values())
    assert "likely" in load_models()["qwq-32b"].confidence


def test_gpus_models_and_engines_travel_between_processes_and_into_sets() -> None:
    for item in (load_gpus()["h100-sxm"], load_models()["deepseek-v3"], load_engines()["vllm"], load_links()["ib-ndr"]):
        assert pickle.loads(pickle.dumps(item)) == item
        assert len({item, pickle.loads(pickle.dumps(item))}) == 1


def test_one_name_for_two_things_is_refused() -> None:
    with pytest.raises(Exception, match="stands for both a and b"):
        index_names({"a": ["x"], "b": ["X"]})


def test_loading_everything_reads_each_file_once() -> None:
    """Parsed once per process: the second call gives the same object."""
    for load in (gpus.load_gpus, links.load_links, models.load_models, engines.load_engines):
        assert load() is load()
