"""The quick form `gpus: {h100: 16, a100: 16}`: usual nodes, NICs and racks, every assumption noted."""

from __future__ import annotations

from splitplan.catalogs.documents import KeyPath
from splitplan.catalogs.gpus import Gpu
from splitplan.planner.spec.fleet import Rack
from splitplan.planner.spec.fleet_nodes import build_rack
from splitplan.planner.spec.fleet_schema import FleetFile, NicsFile, NodeFile, RackFile
from splitplan.planner.spec.reading import Reading

ASSUMED_NODES_PER_RACK = 4


def quick_racks(file: FleetFile, reading: Reading) -> tuple[Rack, ...]:
    """One row of racks per GPU type, four usual nodes in each."""
    racks: list[Rack] = []
    for written, count in file.gpus.items():
        at: KeyPath = ("gpus", written)
        gpu = reading.gpu(written, at)
        if gpu is None:
            continue
        if any(rack.nodes[0].gpu == gpu.name for rack in racks):
            reading.reject(at, f"second count of {gpu.name}", expected="each type once, under one of its names")
            continue
        for index, rack_file in enumerate(_rack_files(gpu, count)):
            racks.append(build_rack(rack_file, f"{gpu.name}-rack-{index + 1}", at, reading))
        reading.note(_what_was_assumed(gpu))
    reading.note("rack uplinks, spine and rack power assumed not to limit; write `racks` to say otherwise")
    return tuple(racks)


def _rack_files(gpu: Gpu, count: int) -> list[RackFile]:
    sizes = [gpu.gpus_per_node] * (count // gpu.gpus_per_node)
    if count % gpu.gpus_per_node:
        sizes.append(count % gpu.gpus_per_node)
    rows = [sizes[first : first + ASSUMED_NODES_PER_RACK] for first in range(0, len(sizes), ASSUMED_NODES_PER_RACK)]
    return [RackFile(name="rack", nodes=[_node_file(gpu, size) for size in row]) for row in rows]


def _node_file(gpu: Gpu, num_gpus: int) -> NodeFile:
    return NodeFile(gpu=gpu.name, gpus=num_gpus, nics=_usual_nics(gpu, num_gpus))


def _usual_nics(gpu: Gpu, num_gpus: int) -> NicsFile:
    """HGX boards have an InfiniBand port per GPU (NDR from Hopper on, HDR before); PCIe hosts share 100 Gbit/s RoCE."""
    if gpu.nvlink is None or gpu.nvlink.startswith("nvlink-bridge"):
        return NicsFile(link="roce-100", count=max(1, num_gpus // 4))
    before_hopper = gpu.architecture in ("Ampere", "Volta")
    return NicsFile(link="ib-hdr" if before_hopper else "ib-ndr", count=num_gpus)


def _what_was_assumed(gpu: Gpu) -> str:
    nics = _usual_nics(gpu, gpu.gpus_per_node)
    link = gpu.nvlink or gpu.pcie
    return (
        f"{gpu.name}: assumed nodes of {gpu.gpus_per_node} GPUs on {link} with {nics.count} x {nics.link}, "
        f"{ASSUMED_NODES_PER_RACK} nodes to a rack"
    )
