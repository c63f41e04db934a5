"""Fleets: racks → nodes → GPUs, links and limits, as checked values. Bandwidths are per direction."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


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
    failure_domain: str = ""


@dataclass(frozen=True, slots=True)
class Rack:
    """Nodes behind one leaf switch."""

    name: str
    nodes: tuple[Node, ...]
    power_limit_watts: float | None
    uplink_bytes_per_s: float | None  # leaf to spine, one direction; None: not a limit
    pod: str = ""


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
