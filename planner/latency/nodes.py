"""Op times of an engine whose ranks span nodes: collectives run inside each node and between the nodes.

    all-reduce(b) = all-reduce inside a node(b) + all-reduce between nodes(b / ranks of a node), each over its NIC
    all-gather(b) = all-gather between nodes(b / ranks of a node) + all-gather inside a node(b)
    all-to-all(b) = inside the node, or what leaves it over the NIC, whichever takes longer
    send(b)       = over the NIC: a pipeline is cut between nodes

the hierarchical forms of communication libraries (Thakur, Rabenseifner and Gropp 2005; NCCL's rings per node).
A network never joins ranks as NVLink does: plans keep tensor groups inside a domain, and measured runs that do not are
predicted by this. The part between nodes is the link model, not measured.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np

from splitplan.catalogs.links import Link
from splitplan.planner.latency.build import ByIdentity
from splitplan.planner.latency.operations import OpSource
from splitplan.profiler.profile import Timed
from splitplan.profiler.tables.collectives import modelled

GPUS_PER_NODE = 8
"""Of servers whose link says nothing of its domain."""


class SpanningOps:
    """Op times of `ops` whose collectives of more than `node_gpus` ranks cross `network`, `node_nics` ports a node."""

    def __init__(self, ops: OpSource, node_gpus: int, network: Link, node_nics: int) -> None:
        self._ops = ops
        self._node_gpus = node_gpus
        self._nic = replace(network, bytes_per_s=network.bytes_per_s * min(node_nics, node_gpus) / node_gpus)
        self.gpu = getattr(ops, "gpu", None)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ops, name)

    def _across(self, family: str, num_bytes: Any, ranks: int) -> Timed:
        return modelled(family, np.asarray(num_bytes, dtype=np.float64), ranks, self._nic)

    def all_reduce(self, num_bytes: Any, ranks: int, link: Link, *, how: str = "graph") -> Timed:
        """See OpSource."""
        if ranks <= self._node_gpus:
            return self._ops.all_reduce(num_bytes, ranks, link, how=how)
        nodes = -(-ranks // self._node_gpus)
        inside = self._ops.all_reduce(num_bytes, self._node_gpus, link, how=how)
        return _sum(inside, self._across("all_reduce", np.asarray(num_bytes) / self._node_gpus, nodes))

    def all_gather(self, num_bytes: Any, ranks: int, link: Link) -> Timed:
        """See OpSource."""
        if ranks <= self._node_gpus:
            return self._ops.all_gather(num_bytes, ranks, link)
        nodes = -(-ranks // self._node_gpus)
        inside = self._ops.all_gather(num_bytes, self._node_gpus, link)
        return _sum(inside, self._across("all_gather", np.asarray(num_bytes) / self._node_gpus, nodes))

    def all_to_all(self, num_bytes: Any, ranks: int, link: Link) -> Timed:
        """See OpSource."""
        if ranks <= self._node_gpus:
            return self._ops.all_to_all(num_bytes, ranks, link)
        leaves = np.asarray(num_bytes) * (ranks - self._node_gpus) / ranks
        inside, across = self._ops.all_to_all(num_bytes, self._node_gpus, link), self._across("send", leaves, 2)
        return Timed(np.maximum(inside.seconds, across.seconds), np.maximum(inside.basis, across.basis))

    def send(self, num_bytes: Any, ranks: int, link: Link) -> Timed:
        """See OpSource."""
        del link
        return self._across("send", num_bytes, ranks)


def _sum(one: Timed, other: Timed) -> Timed:
    return Timed(one.seconds + other.seconds, np.maximum(one.basis, other.basis))


def spanning_ops(ops: OpSource, node_gpus: int, network: Link, node_nics: int | None = None) -> OpSource:
    """Op times of engines that span nodes of `node_gpus` GPUs with `node_nics` ports (default: one a GPU).

    The same arguments give the same object: step tables are cached by it.
    """
    return _spanning(ByIdentity(ops), node_gpus, network, node_gpus if node_nics is None else node_nics)


@lru_cache(maxsize=64)
def _spanning(source: ByIdentity, node_gpus: int, network: Link, node_nics: int) -> OpSource:
    return SpanningOps(source.ops, node_gpus, network, node_nics)
