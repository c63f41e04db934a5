"""Racks and nodes of a Fleet file: names expanded, links and defaults from the catalogs filled in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from splitplan.catalogs.documents import KeyPath
from splitplan.catalogs.errors import shorten
from splitplan.catalogs.gpus import Gpu
from splitplan.catalogs.links import Link
from splitplan.planner.spec.fleet import Node, Rack
from splitplan.planner.spec.fleet_schema import FleetFile, NodeFile, RackFile
from splitplan.planner.spec.reading import Reading, bytes_per_s_of

GIB = 2**30
ASSUMED_HOST_MEMORY_GIB_PER_GPU = 128
ASSUMED_HOST_WATTS_PER_GPU_WATT = 0.8  # a DGX H100 draws 10.2 kW at most, 5.6 kW of it in its GPUs
MAX_NODES = 100_000
RACK_MARK = "{rack}"
LARGEST_NODE_FABRIC_GPUS = 16  # a larger fabric (NVL72) joins the nodes of a rack


def full_racks(file: FleetFile, reading: Reading) -> tuple[Rack, ...]:
    """The racks of the full form, in order."""
    racks: list[Rack] = []
    rack_seen: set[str] = set()
    node_seen: dict[str, str] = {}
    for index, rack_file in enumerate(file.racks):
        at: KeyPath = ("racks", index)
        template = _rack_template(rack_file, at, reading)
        for name in reading.names(rack_file.name, (*at, "name")):
            if name in rack_seen:
                reading.reject((*at, "name"), f"rack '{shorten(name, 60)}' given twice", expected="each name once")
                break
            rack_seen.add(name)
            rack = _named(template, name)
            if not _nodes_are_new(rack, node_seen, at, reading):
                break
            racks.append(rack)
    return tuple(racks)


def build_rack(rack: RackFile, name: str, at: KeyPath, reading: Reading) -> Rack:
    """One rack of a given name; `at` is the key to blame."""
    return _named(_rack_template(rack, at, reading), name)


def _named(template: Rack, name: str) -> Rack:
    """A copy of a rack under another name, its nodes renamed with it."""
    nodes = tuple(
        replace(
            node,
            name=node.name.replace(RACK_MARK, name),
            rack=name,
            failure_domain=node.failure_domain.replace(RACK_MARK, name),
        )
        for node in template.nodes
    )
    return replace(template, name=name, nodes=nodes)


def _nodes_are_new(rack: Rack, seen: dict[str, str], at: KeyPath, reading: Reading) -> bool:
    for node in rack.nodes:
        if node.name in seen:
            other = seen[node.name]
            where = "twice in this rack" if other == rack.name else f"in racks '{shorten(other, 40)}' and '{rack.name}'"
            message = f"node '{shorten(node.name, 60)}' stands {where}"
            hint = f"write {RACK_MARK} in the names of nodes in identical racks" if other != rack.name else ""
            reading.reject((*at, "nodes"), message, "each node name once in the fleet", hint)
            return False
        seen[node.name] = rack.name
    if len(seen) > MAX_NODES:
        reading.reject(at, f"more than {MAX_NODES} nodes", expected=f"at most {MAX_NODES} nodes in a fleet")
        return False
    return True


def _rack_template(rack: RackFile, at: KeyPath, reading: Reading) -> Rack:
    """The rack with `{rack}` where its name goes."""
    nodes: list[Node] = []
    unnamed: dict[str, int] = {}
    for index, node_file in enumerate(rack.nodes):
        node_at = (*at, "nodes", index)
        node = _node_template(node_file, rack, node_at, reading)
        if node is not None:
            nodes.extend(
                replace(node, name=name) for name in _node_names(node_file, node.gpu, unnamed, node_at, reading)
            )
    power_watts = None if rack.power_limit_kw is None else round(rack.power_limit_kw * 1000, 3)
    if power_watts is not None:
        _check_power(nodes, power_watts, at, reading)
    return Rack(RACK_MARK, tuple(nodes), power_watts, _uplink_bytes_per_s(rack, nodes, at, reading), rack.pod or "")


def _node_names(node: NodeFile, gpu: str, unnamed: dict[str, int], at: KeyPath, reading: Reading) -> Sequence[str]:
    if node.name is None:
        first = unnamed.get(gpu, 0) + 1
        unnamed[gpu] = first + node.count - 1
        return [f"{RACK_MARK}-{gpu}-{number}" for number in range(first, first + node.count)]
    if node.count > 1 and "[" in node.name:
        reading.reject((*at, "count"), "given together with a range in `name`", expected="one of the two")
        return ()
    if node.count > 1:
        return [f"{node.name}-{number}" for number in range(1, node.count + 1)]
    return reading.names(node.name, (*at, "name"))


def _node_template(node: NodeFile, rack: RackFile, at: KeyPath, reading: Reading) -> Node | None:
    gpu = reading.gpu(node.gpu, (*at, "gpu"))
    nic = reading.link(node.nics.link, (*at, "nics", "link"), network=True) if node.nics else None
    named_link = reading.link(node.gpu_link, (*at, "gpu_link"), network=False) if node.gpu_link else None
    if gpu is None:
        return None
    num_gpus = node.gpus or gpu.gpus_per_node
    link = named_link or reading.link(gpu.nvlink or gpu.pcie, at, network=False)
    _check_gpu_indices(node, num_gpus, at, reading)
    nic_gbit = node.nics.gbit_per_s if node.nics else None
    port_bytes_per_s = bytes_per_s_of(nic_gbit) if nic_gbit else nic.bytes_per_s if nic else 0.0
    num_nics = node.nics.count if node.nics and nic else 0
    return Node(
        name="",
        rack=RACK_MARK,
        gpu=gpu.name,
        num_gpus=num_gpus,
        gpu_link=link.name if link else "",
        nvlink_domain_gpus=_domain_gpus(node, link, num_gpus, at, reading),
        nic_link=nic.name if nic else None,
        num_nics=num_nics,
        nic_bytes_per_s=num_nics * port_bytes_per_s,
        host_memory_bytes=_host_memory_bytes(node, num_gpus, reading),
        host_watts=_host_watts(node, gpu, num_gpus, rack, reading),
        pci_roots=tuple(tuple(root) for root in node.pci_roots),
        labels=dict(node.labels),
        gpus_in_use=tuple(sorted(node.gpus_in_use)),
        price_usd_per_gpu_hour=node.usd_per_gpu_hour,
        failure_domain=node.failure_domain or rack.failure_domain or RACK_MARK,
    )


def _check_gpu_indices(node: NodeFile, num_gpus: int, at: KeyPath, reading: Reading) -> None:
    wanted = f"GPU indices from 0 to {num_gpus - 1}, each once"
    used = node.gpus_in_use
    if len(set(used)) != len(used) or not all(0 <= index < num_gpus for index in used):
        reading.reject((*at, "gpus_in_use"), f"is {shorten(used, 60)}", expected=wanted)
    rooted = sorted(index for root in node.pci_roots for index in root)
    if node.pci_roots and (rooted != list(range(num_gpus)) or not all(node.pci_roots)):
        expected = f"every GPU from 0 to {num_gpus - 1} under exactly one root"
        reading.reject((*at, "pci_roots"), f"is {shorten(node.pci_roots, 60)}", expected)


def _domain_gpus(node: NodeFile, link: Link | None, num_gpus: int, at: KeyPath, reading: Reading) -> int:
    """GPUs that reach each other over the link: what one fabric joins, inside the node unless it is a rack's."""
    domain = node.nvlink_domain_gpus
    if domain is None:
        joins = link.domain_gpus if link and link.domain_gpus else num_gpus
        return joins if joins > LARGEST_NODE_FABRIC_GPUS else min(joins, num_gpus)
    if num_gpus % domain and domain % num_gpus:
        expected = f"a divisor or a multiple of the node's {num_gpus} GPUs"
        reading.reject((*at, "nvlink_domain_gpus"), f"is {domain}", expected)
    return domain


def _host_memory_bytes(node: NodeFile, num_gpus: int, reading: Reading) -> int:
    gib = node.host_memory_gib
    if gib is None:
        gib = float(ASSUMED_HOST_MEMORY_GIB_PER_GPU * num_gpus)
        reading.note(f"host memory assumed where not given: {ASSUMED_HOST_MEMORY_GIB_PER_GPU} GiB per GPU")
    return int(gib * GIB)


def _host_watts(node: NodeFile, gpu: Gpu, num_gpus: int, rack: RackFile, reading: Reading) -> float:
    if node.host_watts is not None:
        return node.host_watts
    if rack.power_limit_kw is not None:
        reading.note(f"host power assumed where not given: {ASSUMED_HOST_WATTS_PER_GPU_WATT} of the GPUs' TDP")
    return round(ASSUMED_HOST_WATTS_PER_GPU_WATT * gpu.tdp_watts * num_gpus, 3)


def _check_power(nodes: Sequence[Node], limit_watts: float, at: KeyPath, reading: Reading) -> None:
    hosts_watts = sum(node.host_watts for node in nodes)
    if hosts_watts >= limit_watts:
        message = f"is {limit_watts / 1000:g} kW, and the hosts without their GPUs draw {hosts_watts / 1000:g} kW"
        reading.reject((*at, "power_limit_kw"), message, expected="more than the hosts draw, in kW")


def _uplink_bytes_per_s(rack: RackFile, nodes: Sequence[Node], at: KeyPath, reading: Reading) -> float | None:
    if rack.uplink_gbit_per_s is not None and rack.uplink_oversubscription is not None:
        reading.reject((*at, "uplink_oversubscription"), "given together with `uplink_gbit_per_s`", "one of the two")
    if rack.uplink_gbit_per_s is not None:
        return bytes_per_s_of(rack.uplink_gbit_per_s)
    if rack.uplink_oversubscription is None:
        return None
    nic_bytes_per_s = sum(node.nic_bytes_per_s for node in nodes)
    if nodes and not nic_bytes_per_s:
        reading.reject((*at, "uplink_oversubscription"), "needs nodes with NICs", "`nics` on the nodes of this rack")
    return float(round(nic_bytes_per_s / rack.uplink_oversubscription))
