"""Slurm's topology.conf and topology.yaml → the place of every node. Tree: leaf switches are racks. Block.

Blocks are.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from splitplan.catalogs.documents import read_text
from splitplan.catalogs.errors import DocumentError, Problem, shorten
from splitplan.catalogs.parsing import parse_text
from splitplan.planner.spec.names import expand_names
from splitplan.planner.spec.readers.hosts import as_list, as_mapping

WHAT = "topology.conf (SwitchName=… or BlockName=… lines) or topology.yaml"
MAX_LEVELS = 16


@dataclass
class Places:
    """Where nodes stand: their leaf switch, the switches above it, and their block."""

    leaf_of: dict[str, str] = field(default_factory=dict)
    parent_of: dict[str, str] = field(default_factory=dict)
    block_of: dict[str, str] = field(default_factory=dict)

    def levels(self, node: str) -> tuple[str, ...]:
        """Switches above a node, the topmost first and its leaf last; its block where there is no tree."""
        leaf = self.leaf_of.get(node)
        if leaf is None:
            return (self.block_of[node],) if node in self.block_of else ()
        path = [leaf]
        while path[-1] in self.parent_of and len(path) < MAX_LEVELS:
            path.append(self.parent_of[path[-1]])
        return tuple(reversed(path))

    def block(self, node: str) -> str:
        """The block a node belongs to, or ""."""
        return self.block_of.get(node, "")


def read_topology(path: Path) -> Places:
    """Read either format. Raises DocumentError with file and line."""
    text = read_text(path, "Slurm topology")
    is_yaml = path.suffix in (".yaml", ".yml") or re.search(r"(?m)^\s*-\s*topology:", text) is not None
    places = _from_yaml(text, path) if is_yaml else _from_conf(text, path)
    if not places.leaf_of and not places.block_of:
        raise DocumentError(Problem("places no node", str(path), expected=WHAT))
    _check_no_circle(places, path)
    return places


def hostlist(text: str, where: str, key: str) -> Iterator[str]:
    """Names of a Slurm hostlist: `srv[1101-1108],login1`, any number of brackets, padded numbers."""
    for part in re.split(r",(?![^\[]*\])", text):
        if part.strip():
            yield from expand_names(part.strip(), where=where, key=key)


def _from_conf(text: str, path: Path) -> Places:
    places = Places()
    for number, line in enumerate(text.splitlines(), 1):
        content = line.split("#", 1)[0].strip()
        if not content:
            continue
        where = f"{path}:{number}"
        keys = {match[1].lower(): match[2] for match in re.finditer(r"(\w+)=(\S+)", content)}
        if "switchname" in keys:
            _add_switch(places, keys["switchname"], keys.get("nodes", ""), keys.get("switches", ""), where)
        elif "blockname" in keys:
            _add_block(places, keys["blockname"], keys.get("nodes", ""), where)
        elif "blocksizes" not in keys:
            raise DocumentError(Problem(f"cannot read '{shorten(content, 60)}'", where, expected=WHAT))
    return places


def _add_switch(places: Places, name: str, nodes: str, children: str, where: str) -> None:
    for node in hostlist(nodes, where, "Nodes"):
        if places.leaf_of.setdefault(node, name) != name:
            other = places.leaf_of[node]
            raise DocumentError(
                Problem(f"node '{shorten(node, 60)}' hangs under '{other}' and '{name}'", where, "Nodes")
            )
    for child in hostlist(children, where, "Switches"):
        if places.parent_of.setdefault(child, name) != name:
            raise DocumentError(Problem(f"switch '{shorten(child, 60)}' hangs under two others", where, "Switches"))


def _add_block(places: Places, name: str, nodes: str, where: str) -> None:
    for node in hostlist(nodes, where, "Nodes"):
        places.block_of[node] = name


def _from_yaml(text: str, path: Path) -> Places:
    data = parse_text(text, str(path), "Slurm topology").data
    topologies = [as_mapping(item) for item in as_list(data)]
    if not topologies:
        raise DocumentError(Problem("holds no list of topologies", f"{path}:1", expected=WHAT))
    chosen = next((item for item in topologies if item.get("cluster_default") is True and not item.get("flat")), None)
    places = Places()
    for topology in [chosen] if chosen else topologies:
        for switch in _entries(topology, "tree", "switches"):
            nodes, children = str(switch.get("nodes") or ""), str(switch.get("children") or "")
            _add_switch(places, str(switch.get("switch", "")), nodes, children, str(path))
    for topology in topologies:  # blocks tell NVLink domains even where the default is the tree
        for block in _entries(topology, "block", "blocks"):
            _add_block(places, str(block.get("block", "")), str(block.get("nodes") or ""), str(path))
    return places


def _entries(topology: Mapping[str, Any], kind: str, key: str) -> list[Mapping[str, Any]]:
    return [as_mapping(item) for item in as_list(as_mapping(topology.get(kind)).get(key))]


def _check_no_circle(places: Places, path: Path) -> None:
    for start in places.parent_of:
        seen, switch = {start}, start
        while switch in places.parent_of:
            switch = places.parent_of[switch]
            if switch in seen:
                message = f"switch '{shorten(switch, 60)}' is above itself"
                raise DocumentError(Problem(message, str(path), "Switches", "a tree of switches"))
            seen.add(switch)
