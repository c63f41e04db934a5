"""What a GPU type's hosts allow: the link its tensor ranks share, the size of that domain, the way out of the node."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from splitplan.catalogs.gpus import Gpu, find_gpu
from splitplan.catalogs.links import Link, find_link
from splitplan.planner.spec.fleet import Fleet, Node, Rack


@dataclass(frozen=True, slots=True)
class HostKind:
    """The hosts of one GPU type with one kind of link. Where they differ, the least of each: a column runs on any."""

    gpu: Gpu
    gpu_link: Link
    domain_gpus: int  # GPUs a tensor-parallel group may span
    node_gpus: int
    nodes_in_rack: int  # most nodes of this type in one rack: what pipeline stages may span
    nic_link: Link | None
    num_nics: int
    nic_bytes_per_s: float  # achievable, one direction, whole node; 0 without a NIC
    rack_exit_bytes_per_s: float  # least of NIC and the rack's uplink

    def instance_nic_bytes_per_s(self, num_gpus: int) -> float:
        """NIC bandwidth of an instance on `num_gpus` GPUs of one node: it sends over the ports next to its GPUs."""
        if self.num_nics == 0:
            return 0.0
        ports = min(self.num_nics, math.ceil(num_gpus * self.num_nics / self.node_gpus))
        return self.nic_bytes_per_s * ports / self.num_nics


def host_kinds(fleet: Fleet) -> list[HostKind]:
    """One HostKind for every GPU type and the link between its GPUs, in order of first appearance."""
    kinds: dict[tuple[str, str], list[tuple[Rack, Node]]] = {}
    for rack in fleet.racks:
        for node in rack.nodes:
            kinds.setdefault((node.gpu, node.gpu_link), []).append((rack, node))
    return [_host_kind(gpu, link, places) for (gpu, link), places in kinds.items()]


@dataclass(frozen=True, slots=True)
class RackMixes:
    """What pipelines over several kinds of host may stand on. Kinds are (GPU type, link between its GPUs)."""

    racks: tuple[dict[tuple[str, str], tuple[int, ...]], ...] = ()  # with several GPU types: free GPUs of each node
    most_free: Mapping[tuple[str, str], int] = field(default_factory=dict)  # free GPUs of the emptiest node anywhere


def rack_mixes(fleet: Fleet) -> RackMixes:
    """The racks that hold several GPU types, each make-up once."""
    racks: list[dict[tuple[str, str], tuple[int, ...]]] = []
    most: dict[tuple[str, str], int] = {}
    for rack in fleet.racks:
        free: dict[tuple[str, str], tuple[int, ...]] = {}
        for node in rack.nodes:
            kind, left = (node.gpu, node.gpu_link), node.num_gpus - len(node.gpus_in_use)
            if left:
                free[kind] = (*free.get(kind, ()), left)
                most[kind] = max(most.get(kind, 0), left)
        if len({gpu for gpu, _ in free}) > 1 and free not in racks:
            racks.append(free)
    return RackMixes(tuple(racks), most)


def _host_kind(gpu: str, gpu_link: str, places: list[tuple[Rack, Node]]) -> HostKind:
    nodes = [node for _, node in places]
    nics = {node.nic_link: find_link(node.nic_link) for node in nodes if node.nic_link}
    nic = min(nics.values(), key=lambda link: link.achievable_bytes_per_s) if nics else None
    nic_rate = min(node.nic_bytes_per_s for node in nodes) * (nic.achievable_fraction if nic else 0.0)
    uplinks = [rack.uplink_bytes_per_s for rack, _ in places if rack.uplink_bytes_per_s is not None]
    per_rack: dict[str, int] = {}
    for rack, _ in places:
        per_rack[rack.name] = per_rack.get(rack.name, 0) + 1
    return HostKind(
        gpu=find_gpu(gpu),
        gpu_link=find_link(gpu_link),
        domain_gpus=min(min(node.nvlink_domain_gpus, node.num_gpus) for node in nodes),
        node_gpus=min(node.num_gpus for node in nodes),
        nodes_in_rack=max(per_rack.values()),
        nic_link=nic,
        num_nics=min(node.num_nics for node in nodes),
        nic_bytes_per_s=nic_rate,
        rack_exit_bytes_per_s=min([nic_rate, *uplinks]),
    )
