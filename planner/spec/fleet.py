"""Fleets: racks → nodes → GPUs, links and limits, as checked values. Bandwidths are per direction."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True, slots=True)
class Node:
    """One host and its GPUs, all of one type."""

    name: str
    rack: str
    gpu: str  # catalog name
    num_gpus: int
    gpu_link: str  # catalog link between the GPUs of one NVLink domain, or PCIe
    nvlink_domain_gpus: int  # GPUs that reach each other over `gpu_link`; num_gpus on NVSwitch and PCIe hosts
    nic_link: str | None  # catalog link of one NIC port
    num_nics: int
    nic_bytes_per_s: float  # all ports together, line rate, one direction; 0 without a NIC
    host_memory_bytes: int
    host_watts: float  # without GPUs
    pci_roots: tuple[tuple[int, ...], ...]  # GPU indices under each PCI root; () when unknown
    labels: Mapping[str, str]
    gpus_in_use: tuple[int, ...] = ()  # indices that are not ours to use
    price_usd_per_gpu_hour: float | None = None  # overrides the fleet's price
    failure_domain: str = ""  # what fails together, such as a power feed; the rack's name unless given

    @property
    def free_gpus(self) -> tuple[int, ...]:
        """Indices of the GPUs that are ours to plan."""
        return tuple(index for index in range(self.num_gpus) if index not in self.gpus_in_use)


@dataclass(frozen=True, slots=True)
class Rack:
    """Nodes behind one leaf switch."""

    name: str
    nodes: tuple[Node, ...]
    power_limit_watts: float | None
    uplink_bytes_per_s: float | None  # leaf to spine, one direction; None: not a limit
    pod: str = ""


@dataclass(frozen=True, slots=True)
class Pod:
    """Racks whose leaf switches meet below the spine."""

    name: str
    uplink_bytes_per_s: float | None  # pod to spine, one direction; None: not a limit


@dataclass(frozen=True, slots=True)
class PriceTier:
    """What GPUs of one type cost under one kind of price, and how many are to be had at it."""

    gpu: str
    kind: str  # "on_demand", "reserved" or "spot"
    usd_per_gpu_hour: float
    source: str
    max_gpus: int | None = None  # None: as many as the fleet has


@dataclass(frozen=True, slots=True)
class Fleet:
    """Everything there is to place on."""

    name: str
    racks: tuple[Rack, ...]
    spine_bytes_per_s: float | None  # all rack-to-rack traffic together, one direction; None: not a limit
    usd_per_gpu_hour: Mapping[str, float]  # by GPU type, of the price kind asked for
    price_sources: Mapping[str, str]  # by GPU type: "fleet file", "AWS p5.48xlarge on demand, 2026-11-09", "assumed"
    max_usd_per_hour: float | None = None
    notes: tuple[str, ...] = ()
    content_hash: str = ""
    pods: tuple[Pod, ...] = ()  # only pods with a limit of their own need to be here
    price_tiers: tuple[PriceTier, ...] = ()  # every kind of price known for the types of this fleet

    @property
    def nodes(self) -> tuple[Node, ...]:
        """All nodes, rack by rack."""
        return tuple(node for rack in self.racks for node in rack.nodes)

    @property
    def num_gpus(self) -> dict[str, int]:
        """Usable GPUs by type, in order of first appearance."""
        counts: dict[str, int] = {}
        for node in self.nodes:
            counts[node.gpu] = counts.get(node.gpu, 0) + node.num_gpus - len(node.gpus_in_use)
        return counts


def load_fleet(path_or_name: str | Path, *, price_kind: str = "on_demand") -> Fleet:
    """Read a Fleet file, or one that ships with the project by its name (`four-racks`).

    `price_kind` is "on_demand", "reserved" or "spot". Raises DocumentError with every problem, each with file, line
    and key; UnknownNameError when nothing has that name; UsageError for another price kind.
    """
    from splitplan.planner.spec.fleet_build import read_fleet  # pydantic and yaml only where a file is read

    return read_fleet(path_or_name, price_kind)


def as_document(fleet: Fleet) -> dict[str, Any]:
    """The mapping of a Fleet file that `load_fleet` reads back to an equal fleet; identical nodes share an entry."""
    from splitplan.planner.spec.fleet_write import document_of

    return document_of(fleet)
