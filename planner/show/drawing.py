"""A picture of a plan: racks, their nodes, and which GPUs each instance holds."""

from __future__ import annotations

from collections.abc import Iterable

from rich.tree import Tree

from splitplan.planner.plan import Instance, Plan, Pool
from splitplan.planner.spec.fleet import Fleet, Node

ROLE_STYLES = {"prefill": "cyan", "decode": "green", "colocated": "magenta"}


def draw_racks(plan: Plan, fleet: Fleet | None = None) -> Tree:
    """A rich tree per rack. With the fleet, idle nodes and idle GPUs are shown too."""
    held: dict[str, dict[str, list[tuple[Instance, Pool]]]] = {}
    for pool in plan.pools:
        for instance in pool.instances:
            for node in dict.fromkeys(slot.node for slot in instance.gpus):
                held.setdefault(instance.rack, {}).setdefault(node, []).append((instance, pool))
    tree = Tree(f"[bold]{plan.inputs.fleet}[/bold]  {plan.num_gpus} GPUs in use")
    if fleet is None:
        for rack, nodes in held.items():
            branch = tree.add(f"rack {rack}")
            for name, entries in nodes.items():
                _add_node(branch, name, entries[0][1].gpu_on(entries[0][0], name), entries, "")
        return tree
    for rack_of_fleet in fleet.racks:
        branch = tree.add(f"rack {rack_of_fleet.name}")
        for host in rack_of_fleet.nodes:
            entries = held.get(rack_of_fleet.name, {}).get(host.name, [])
            _add_node(branch, host.name, f"{host.num_gpus} x {host.gpu}", entries, _idle(host, entries))
    return tree


def _add_node(branch: Tree, name: str, kind: str, entries: Iterable[tuple[Instance, Pool]], idle: str) -> None:
    leaf = branch.add(f"{name}  {kind}{idle}")
    for instance, pool in sorted(entries, key=lambda entry: min(s.index for s in entry[0].gpus if s.node == name)):
        indices = [slot.index for slot in instance.gpus if slot.node == name]
        shape = f"TP{pool.tensor_parallel}" + (f" PP{pool.pipeline_parallel}" if pool.pipeline_parallel > 1 else "")
        style = ROLE_STYLES[pool.role]
        share = f"{100 * instance.share:.0f} % of {pool.role}"
        leaf.add(f"[{style}]{instance.name}[/{style}]  {shape}  GPU {index_ranges(indices)}  {share}")


def _idle(node: Node, entries: Iterable[tuple[Instance, Pool]]) -> str:
    used = {slot.index for instance, _ in entries for slot in instance.gpus if slot.node == node.name}
    idle = [index for index in range(node.num_gpus) if index not in used and index not in set(node.gpus_in_use)]
    parts = []
    if idle:
        parts.append(f"{len(idle)} idle")
    if node.gpus_in_use:
        parts.append(f"{len(node.gpus_in_use)} not ours")
    return f"  ({', '.join(parts)})" if parts else ""


def index_ranges(indices: Iterable[int]) -> str:
    """ "0-3,6" for 0, 1, 2, 3, 6."""
    runs: list[list[int]] = []
    for index in sorted(indices):
        if runs and index == runs[-1][1] + 1:
            runs[-1][1] = index
        else:
            runs.append([index, index])
    return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in runs)
