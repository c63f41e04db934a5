"""The fleet as the program sees it: NVLink domains, locations, and a tree of links as a networkx graph.

A *domain* is a set of free GPUs that reach each other over one NVLink (or PCIe) domain: tensor parallelism stays inside
it. A *host* is a node, or the nodes that one NVLink domain spans. A *location* is one host, or all hosts of one rack
that are alike. Links form a tree: host → rack (leaf switch) → pod → spine.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import networkx as nx

from splitplan.planner.spec.fleet import Fleet, Node, Rack

if TYPE_CHECKING:
    LinkGraph = nx.DiGraph[tuple[str, str]]

Granularity = Literal["node", "rack", "fleet"]
SPINE = "spine"
NODE_GRANULARITY_LIMIT = 12
"""Up to this many hosts each is a location of its own, so that KV which stays inside a node is seen exactly."""


@dataclass(frozen=True, slots=True)
class Domain:
    """Free GPUs of one NVLink domain, as (node name, GPU index), in order."""

    slots: tuple[tuple[str, int], ...]

    @property
    def num_gpus(self) -> int:
        """Free GPUs in it."""
        return len(self.slots)


@dataclass(frozen=True, slots=True)
class Location:
    """One host, or the identical hosts of one rack."""

    name: str
    rack: str
    pod: str
    gpu: str
    gpu_link: str
    nodes: tuple[Node, ...]
    domains: tuple[Domain, ...]
    nic_bytes_per_s: float  # all NICs together, line rate, one direction
    usd_per_gpu_hour: float
    host_watts_per_gpu: float
    one_host: bool  # KV that stays at the location needs no NIC

    @property
    def num_gpus(self) -> int:
        """Free GPUs."""
        return sum(domain.num_gpus for domain in self.domains)

    def slots_of_size(self, num_gpus: int) -> int:
        """How many groups of `num_gpus` fit, none of them across two domains."""
        return sum(domain.num_gpus // num_gpus for domain in self.domains)


Host = tuple[tuple[Node, ...], tuple[Domain, ...]]


def free_indices(node: Node) -> tuple[int, ...]:
    """GPU indices of a node that are ours to use."""
    taken = set(node.gpus_in_use)
    return tuple(index for index in range(node.num_gpus) if index not in taken)


def rack_hosts(rack: Rack) -> list[Host]:
    """The hosts of a rack with their NVLink domains; a domain wider than a node joins the next nodes that are alike."""
    hosts: list[Host] = []
    waiting: dict[tuple[str, str, int], list[Node]] = {}
    for node in rack.nodes:
        if node.nvlink_domain_gpus <= node.num_gpus:
            hosts.append(((node,), _domains_inside(node)))
            continue
        key = (node.gpu, node.gpu_link, node.nvlink_domain_gpus)
        group = waiting.setdefault(key, [])
        group.append(node)
        if sum(member.num_gpus for member in group) >= node.nvlink_domain_gpus:
            hosts.append((tuple(group), (_domain_across(group),)))
            del waiting[key]
    hosts += [(tuple(group), (_domain_across(group),)) for group in waiting.values()]
    return [(nodes, domains) for nodes, domains in hosts if any(domain.num_gpus for domain in domains)]


def _domains_inside(node: Node) -> tuple[Domain, ...]:
    free, width = set(free_indices(node)), max(1, node.nvlink_domain_gpus)
    blocks = (range(start, min(start + width, node.num_gpus)) for start in range(0, node.num_gpus, width))
    domains = (Domain(tuple((node.name, index) for index in block if index in free)) for block in blocks)
    return tuple(domain for domain in domains if domain.num_gpus)


def _domain_across(nodes: Iterable[Node]) -> Domain:
    return Domain(tuple((node.name, index) for node in nodes for index in free_indices(node)))


def price_of(node: Node, fleet: Fleet) -> float:
    """Dollars per GPU-hour of a node: its own price, or the fleet's for its GPU type."""
    if node.price_usd_per_gpu_hour is not None:
        return node.price_usd_per_gpu_hour
    return float(fleet.usd_per_gpu_hour[node.gpu])


def choose_granularity(fleet: Fleet) -> Granularity:
    """Every host on its own in small fleets, identical hosts of a rack together in large ones."""
    num_hosts = sum(len(rack_hosts(rack)) for rack in fleet.racks)
    return "node" if num_hosts <= NODE_GRANULARITY_LIMIT else "rack"


def fleet_locations(fleet: Fleet, granularity: Granularity | None = None) -> tuple[Location, ...]:
    """All locations with a free GPU, rack by rack in the fleet's order.

    "fleet" puts all hosts of a kind together wherever they stand, as if in one rack: not a place, but a relaxation.
    """
    granularity = granularity or choose_granularity(fleet)
    if granularity == "fleet":
        everything = tuple(node for rack in fleet.racks for node in rack.nodes)
        return tuple(_rack_locations(Rack("fleet", everything, None, None), fleet, granularity))
    return tuple(location for rack in fleet.racks for location in _rack_locations(rack, fleet, granularity))


def _rack_locations(rack: Rack, fleet: Fleet, granularity: Granularity) -> list[Location]:
    groups: dict[tuple[Any, ...], list[Host]] = {}
    for number, (nodes, domains) in enumerate(rack_hosts(rack)):
        first = nodes[0]
        alike = (
            first.gpu,
            first.gpu_link,
            first.nvlink_domain_gpus,
            price_of(first, fleet),
            first.nic_bytes_per_s,
            "" if granularity == "fleet" else first.failure_domain,
        )
        groups.setdefault((number,) if granularity == "node" else alike, []).append((nodes, domains))
    locations = []
    for hosts in groups.values():
        nodes = tuple(node for members, _ in hosts for node in members)
        domains = tuple(domain for _, inside in hosts for domain in inside)
        locations.append(_location(rack, fleet, nodes, domains, len(hosts) == 1, len(groups) == 1, granularity))
    return locations


def _location(
    rack: Rack,
    fleet: Fleet,
    nodes: tuple[Node, ...],
    domains: tuple[Domain, ...],
    one_host: bool,
    alone_in_rack: bool,
    granularity: Granularity,
) -> Location:
    first = nodes[0]
    if granularity == "node":
        name = first.name if len(nodes) == 1 else f"{first.name}..{nodes[-1].name}"
    elif granularity == "fleet":
        name, one_host = f"{first.gpu} hosts like {first.name}", True
    else:
        name = rack.name if alone_in_rack else f"{rack.name}/{first.name}"
    return Location(
        name=name,
        rack=rack.name,
        pod=rack.pod,
        gpu=first.gpu,
        gpu_link=first.gpu_link,
        nodes=nodes,
        domains=domains,
        nic_bytes_per_s=sum(node.nic_bytes_per_s for node in nodes),
        usd_per_gpu_hour=price_of(first, fleet),
        host_watts_per_gpu=first.host_watts / max(1, first.num_gpus),
        one_host=one_host,
    )


def fleet_graph(fleet: Fleet) -> LinkGraph:
    """The tree of links: node → rack → pod → spine and back. Edge attribute `bytes_per_s`; None means no limit.

    Vertices are ("node", name), ("rack", name), ("pod", name) and ("spine", ""); racks without a pod hang on the spine.
    The spine's own limit is the vertex attribute `bytes_per_s`.
    """
    graph: LinkGraph = nx.DiGraph(name=fleet.name)
    graph.add_node((SPINE, ""), bytes_per_s=fleet.spine_bytes_per_s)
    pod_limits = {pod.name: pod.uplink_bytes_per_s for pod in fleet.pods}
    for rack in fleet.racks:
        leaf, top = ("rack", rack.name), (SPINE, "")
        if rack.pod:
            top = ("pod", rack.pod)
            _join(graph, top, (SPINE, ""), pod_limits.get(rack.pod))
        _join(graph, leaf, top, rack.uplink_bytes_per_s)
        for node in rack.nodes:
            graph.add_node(("node", node.name), gpu=node.gpu, num_gpus=len(free_indices(node)))
            _join(graph, ("node", node.name), leaf, node.nic_bytes_per_s)
    return graph


def _join(graph: LinkGraph, low: tuple[str, str], high: tuple[str, str], bytes_per_s: float | None) -> None:
    graph.add_edge(low, high, bytes_per_s=bytes_per_s)
    graph.add_edge(high, low, bytes_per_s=bytes_per_s)
