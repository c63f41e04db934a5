"""The Fleet file as people write it, in people's units. Every field carries its unit, bounds, default and meaning."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

PriceKind = Literal["on_demand", "reserved", "spot"]
PRICE_KINDS: tuple[PriceKind, ...] = ("on_demand", "reserved", "spot")


class FileModel(BaseModel):
    """Base of file schemas: no unknown keys, no silent conversion of "8" or `yes` to a number."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


def unit(name: str) -> dict[str, Any]:
    """The unit of a field, for the table in docs/formats.md."""
    return {"unit": name}


GbitPerSecond = Annotated[float, Field(ge=0.001, le=1e6, json_schema_extra=unit("Gbit/s, one direction"))]
Ratio = Annotated[float, Field(ge=0.01, le=1000, json_schema_extra=unit("ratio n:1"))]
UsdPerGpuHour = Annotated[float, Field(gt=0, le=1e4, json_schema_extra=unit("$/GPU/h"))]
Count = Annotated[int, Field(ge=1, le=100_000)]
Name = Annotated[str, Field(min_length=1, max_length=200)]


class NicsFile(FileModel):
    """The network ports of one node that carry KV and pipeline traffic."""

    link: Name = Field(description="a link of the catalog (`planner catalog list links`)")
    count: Annotated[int, Field(ge=1, le=64)] = Field(1, description="ports of one node")
    gbit_per_s: GbitPerSecond | None = Field(None, description="line rate of one port, where not the link's own")


class NodeFile(FileModel):
    """One host, or several identical ones: `name: gpu[01-08]`, or `count: 8`."""

    name: Name | None = Field(None, description="ranges as in `a[1-4]`; `{rack}` stands for the rack's name")
    count: Count = Field(1, description="identical nodes, numbered from 1; not together with a range in `name`")
    gpu: Name = Field(description="a GPU type of the catalog (`planner catalog list gpus`)")
    gpus: Annotated[int, Field(ge=1, le=128)] | None = Field(
        None, description="GPUs of one node; left out: the type's usual node"
    )
    gpu_link: Name | None = Field(None, description="link between the GPUs; left out: the type's NVLink, else PCIe")
    nvlink_domain_gpus: Annotated[int, Field(ge=1, le=1024)] | None = Field(
        None, description="GPUs that reach each other over `gpu_link`; more than `gpus` spans nodes of one rack"
    )
    nics: NicsFile | None = Field(None, description="left out: no network for KV")
    host_memory_gib: Annotated[float, Field(gt=0, le=1e6, json_schema_extra=unit("GiB"))] | None = Field(
        None, description="left out: 128 GiB per GPU, assumed"
    )
    host_watts: Annotated[float, Field(ge=0, le=1e5, json_schema_extra=unit("W"))] | None = Field(
        None, description="draw without GPUs; left out: 0.8 of the GPUs' TDP, assumed"
    )
    pci_roots: list[list[int]] = Field([], description="GPU indices under each PCI root; left out: unknown")
    labels: dict[str, str] = Field({}, description="labels a scheduler selects by")
    gpus_in_use: list[int] = Field([], description="GPU indices that are taken and not ours to plan")
    failure_domain: Name | None = Field(None, description="what fails together, such as a power feed; left out: rack's")
    usd_per_gpu_hour: UsdPerGpuHour | None = Field(None, description="price of these GPUs, whatever the price kind")


class RackFile(FileModel):
    """Nodes behind one leaf switch, or several identical racks: `name: r[1-64]`."""

    name: Name = Field(description="ranges as in `r[1-64]` make identical racks")
    pod: Name | None = Field(None, description="racks of one pod reach each other below the spine")
    failure_domain: Name | None = Field(None, description="default for its nodes; left out: the rack's name")
    power_limit_kw: Annotated[float, Field(gt=0, le=1e4, json_schema_extra=unit("kW"))] | None = Field(
        None, description="GPUs and hosts together; left out: no limit"
    )
    uplink_gbit_per_s: GbitPerSecond | None = Field(None, description="leaf to spine or pod; left out: no limit")
    uplink_oversubscription: Ratio | None = Field(
        None, description="instead of `uplink_gbit_per_s`: NIC bandwidth of the rack over its uplink"
    )
    nodes: Annotated[list[NodeFile], Field(min_length=1, max_length=10_000)] = Field(description="what stands in it")


class PodFile(FileModel):
    """Racks whose leaf switches meet below the spine."""

    name: Name = Field(description="as racks name it in `pod`; ranges as in `p[1-4]`")
    uplink_gbit_per_s: GbitPerSecond | None = Field(None, description="pod to spine; left out: no limit")
    uplink_oversubscription: Ratio | None = Field(
        None, description="instead of `uplink_gbit_per_s`: uplinks of its racks over its own"
    )


class SpineFile(FileModel):
    """What carries traffic between racks (or between pods, where there are any)."""

    gbit_per_s: GbitPerSecond | None = Field(None, description="all rack-to-rack traffic together")
    oversubscription: Ratio | None = Field(None, description="instead of `gbit_per_s`: sum of uplinks over the spine")


class PricesFile(FileModel):
    """Prices of one GPU type; what is left out comes from the GPU catalog."""

    on_demand: UsdPerGpuHour | None = Field(None, description="price on demand")
    reserved: UsdPerGpuHour | None = Field(None, description="price under reservation")
    spot: UsdPerGpuHour | None = Field(None, description="price as spot")
    source: Annotated[str, Field(max_length=300)] = Field("fleet file", description="where the prices come from")
    sources: dict[PriceKind, Annotated[str, Field(max_length=300)]] = Field(
        {}, description="the same for single kinds of price"
    )
    max_gpus: dict[PriceKind, Annotated[int, Field(ge=0, le=10_000_000)]] = Field(
        {}, description="most GPUs to be had at each kind of price"
    )


class FleetFile(FileModel):
    """Racks → nodes → GPUs, or `gpus:` with counts per type for a quick question."""

    kind: Literal["Fleet"] = Field(description="always `Fleet`")
    version: Literal[1] = Field(description="format version")
    name: Name = Field(description="printed with every plan")
    description: Annotated[str, Field(max_length=2000)] = Field("", description="for people")
    gpus: dict[Name, Annotated[int, Field(ge=1, le=100_000)]] = Field(
        {}, description="quick form: GPUs by type; nodes, racks and NICs are assumed, and the notes say so"
    )
    racks: Annotated[list[RackFile], Field(max_length=10_000)] = Field([], description="full form")
    pods: Annotated[list[PodFile], Field(max_length=10_000)] = Field([], description="limits of pods; not a must")
    spine: SpineFile | None = Field(None, description="left out: no limit between racks")
    prices: dict[Name, PricesFile] = Field({}, description="by GPU type; left out: list prices of the catalog")
    budget_usd_per_hour: Annotated[float, Field(gt=0, le=1e9, json_schema_extra=unit("$/h"))] | None = Field(
        None, description="never spend more"
    )
