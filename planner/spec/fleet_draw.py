"""A fleet as a tree in the terminal: identical racks and nodes drawn once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import groupby

from rich.markup import escape
from rich.table import Table
from rich.tree import Tree

from splitplan.catalogs.gpus import find_gpu
from splitplan.planner.spec.fleet import Fleet, Node, Rack
from splitplan.planner.spec.names import compress_names

GBIT = 1e9 / 8


def fleet_tree(fleet: Fleet) -> Tree:
    """Racks and their nodes; filled squares are GPUs to plan with, hollow ones are in use."""
    gpus = ", ".join(f"{count} {gpu}" for gpu, count in fleet.num_gpus.items())
    spine = "" if fleet.spine_bytes_per_s is None else f"; spine {_gbit(fleet.spine_bytes_per_s)}"
    tree = Tree(f"[bold]{escape(fleet.name)}[/bold]  {escape(gpus)}{spine}", highlight=False)
    pods = {pod.name: pod.uplink_bytes_per_s for pod in fleet.pods}
    for racks in _alike(fleet.racks, lambda rack: rack.pod):
        branch = tree
        if racks[0].pod:
            uplink = pods.get(racks[0].pod)
            branch = tree.add(escape(f"pod {racks[0].pod}" + (f"  up {_gbit(uplink)}" if uplink else "")))
        for same in _alike(racks, _content):
            _add_racks(branch, same)
    return tree


def price_table(fleet: Fleet, price_kind: str) -> Table:
    """Price and source of every GPU type."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("GPU", no_wrap=True)
    table.add_column(f"$/GPU/h {price_kind}", justify="right", no_wrap=True)
    table.add_column("source", overflow="fold")
    for gpu, price in fleet.usd_per_gpu_hour.items():
        table.add_row(gpu, f"{price:.2f}", escape(fleet.price_sources[gpu]))
    return table


def _alike(racks: Sequence[Rack], key: Callable[[Rack], str]) -> list[list[Rack]]:
    """Racks with the same key together, in order of first appearance."""
    groups: dict[str, list[Rack]] = {}
    for rack in racks:
        groups.setdefault(key(rack), []).append(rack)
    return list(groups.values())


def _content(rack: Rack) -> str:
    """What two racks must share to be drawn as one."""
    nodes = [
        replace(
            node,
            name=node.name.replace(rack.name, ""),
            rack="",
            failure_domain="" if node.failure_domain == rack.name else node.failure_domain,
        )
        for node in rack.nodes
    ]
    return repr(replace(rack, name="", nodes=tuple(nodes)))


def _add_racks(tree: Tree, racks: Sequence[Rack]) -> None:
    first = racks[0]
    name = compress_names([rack.name for rack in racks]) or f"{racks[0].name} … {racks[-1].name}"
    title = f"rack {name}" if len(racks) == 1 else f"{len(racks)} racks {name}, each"
    facts = [] if first.uplink_bytes_per_s is None else [f"up {_gbit(first.uplink_bytes_per_s)}"]
    watts = sum(node.host_watts + node.num_gpus * find_gpu(node.gpu).tdp_watts for node in first.nodes)
    if first.power_limit_watts is not None:
        facts.append(f"{watts / 1000:.4g} of {first.power_limit_watts / 1000:.4g} kW at full draw")
    branch = tree.add(escape("  ".join([title, *facts])))
    for _, same in groupby(first.nodes, key=lambda node: repr(replace(node, name=""))):
        branch.add(escape(_node_line(list(same), first.name if len(racks) > 1 else "")))


def _node_line(nodes: Sequence[Node], rack_name: str) -> str:
    node = nodes[0]
    name = compress_names([each.name for each in nodes]) or f"{nodes[0].name} … {nodes[-1].name}"
    if rack_name:
        name = name.replace(rack_name, "*")
    squares = "".join("□" if index in node.gpus_in_use else "■" for index in range(node.num_gpus))
    nics = "no NIC"
    if node.num_nics:
        nics = f"{node.num_nics} x {node.nic_link} ({_gbit(node.nic_bytes_per_s)})"
    return f"{name}  {squares} {node.gpu} on {node.gpu_link}, {nics}"


def _gbit(bytes_per_s: float) -> str:
    return f"{bytes_per_s / GBIT:g} Gbit/s"
