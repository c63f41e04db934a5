"""A Fleet as the file that reads back to it: for readers of other formats, and for hashing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any

from splitplan.planner.spec.fleet import Fleet, Node, Rack
from splitplan.planner.spec.names import compress_names
from splitplan.planner.spec.reading import gbit_per_s_of
from splitplan.planner.spec.yaml_text import write_text, yaml_text


def document_of(fleet: Fleet) -> dict[str, Any]:
    """See `splitplan.planner.spec.fleet.as_document`."""
    document: dict[str, Any] = {"kind": "Fleet", "version": 1, "name": fleet.name}
    document["racks"] = [_rack(rack) for rack in fleet.racks]
    pods = [_drop_empty({"name": pod.name, "uplink_gbit_per_s": _gbit(pod.uplink_bytes_per_s)}) for pod in fleet.pods]
    document["pods"] = pods
    if fleet.spine_bytes_per_s is not None:
        document["spine"] = {"gbit_per_s": _gbit(fleet.spine_bytes_per_s)}
    document["prices"] = _prices(fleet)
    document["budget_usd_per_hour"] = fleet.max_usd_per_hour
    return _drop_empty(document)


def write_fleet(fleet: Fleet, path: str | Path) -> None:
    """Write a Fleet file, whole or not at all. Raises InputError when it cannot be written."""
    write_text(Path(path), yaml_text(document_of(fleet)))


def _rack(rack: Rack) -> dict[str, Any]:
    return _drop_empty(
        {
            "name": rack.name,
            "pod": rack.pod,
            "power_limit_kw": None if rack.power_limit_watts is None else rack.power_limit_watts / 1000,
            "uplink_gbit_per_s": _gbit(rack.uplink_bytes_per_s),
            "nodes": [_node(pattern, node, rack) for pattern, node in _identical(rack.nodes)],
        }
    )


def _identical(nodes: Sequence[Node]) -> Iterator[tuple[str, Node]]:
    """Runs of neighbours that differ in nothing but a number in their name, as (name pattern, first node)."""
    for _, run in groupby(nodes, key=lambda node: repr(replace(node, name=""))):
        members = list(run)
        pattern = compress_names([node.name for node in members])
        if pattern is not None:
            yield pattern, members[0]
        else:
            yield from ((node.name, node) for node in members)


def _node(pattern: str, node: Node, rack: Rack) -> dict[str, Any]:
    nics: dict[str, Any] = {"link": node.nic_link, "count": node.num_nics}
    if node.num_nics:
        nics["gbit_per_s"] = _gbit(node.nic_bytes_per_s / node.num_nics)
    return _drop_empty(
        {
            "name": pattern,
            "gpu": node.gpu,
            "gpus": node.num_gpus,
            "gpu_link": node.gpu_link,
            "nvlink_domain_gpus": node.nvlink_domain_gpus,
            "nics": nics if node.num_nics else None,
            "host_memory_gib": node.host_memory_bytes / 2**30,
            "pci_roots": [list(root) for root in node.pci_roots],
            "labels": dict(node.labels),
            "gpus_in_use": list(node.gpus_in_use),
            "failure_domain": node.failure_domain if node.failure_domain != rack.name else None,
            "usd_per_gpu_hour": node.price_usd_per_gpu_hour,
        }
    ) | {"host_watts": node.host_watts}


def _prices(fleet: Fleet) -> dict[str, Any]:
    prices: dict[str, dict[str, Any]] = {}
    for tier in fleet.price_tiers:
        entry = prices.setdefault(tier.gpu, {})
        entry[tier.kind] = tier.usd_per_gpu_hour
        entry.setdefault("sources", {})[tier.kind] = tier.source
        if tier.max_gpus is not None:
            entry.setdefault("max_gpus", {})[tier.kind] = tier.max_gpus
    return prices


def _gbit(bytes_per_s: float | None) -> float | None:
    return None if bytes_per_s is None else gbit_per_s_of(bytes_per_s)


def _drop_empty(mapping: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in mapping.items() if value not in (None, "", [], {})}
