"""Collective times by link, host, ranks and bytes.

The interconnect is a property of the host, not of the GPU: published tables of L40S differ tenfold from four ranks up,
because they come from two kinds of PCIe host. So rows carry the link they were measured over and, for PCIe, the class
of host; a query says which link it has, and of several classes the one whose measured bus bandwidth is nearest to what
that link achieves is read. Links and rank counts nobody measured take the ring or the tree on the link's own figures.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from splitplan.catalogs.links import Link
from splitplan.profiler.profile import Basis, OpTable, Timed
from splitplan.profiler.tables.grid import place
from splitplan.profiler.tables.roofline import ring_all_reduce, ring_pass

FloatArray = NDArray[np.float64]
LineKey = tuple[str, str, str, int]  # (link, host, how, ranks)

SAME_LINK_FACTOR = 1.5
"""A table measured on NVLink stands for another NVLink within this factor of its bandwidth."""


@dataclass(frozen=True, slots=True)
class _Line:
    log_bytes: FloatArray
    log_seconds: FloatArray

    @property
    def bytes_per_s(self) -> float:
        """Of the largest message."""
        return float(np.exp(self.log_bytes[-1] - self.log_seconds[-1]))


@dataclass(slots=True)
class CollectiveTable:
    """Lines over bytes for each (link, host, how, ranks)."""

    table: OpTable
    measured_link: Link | None  # what the profile's own GPUs are connected by
    _lines: dict[LineKey, _Line] = field(init=False)

    def __post_init__(self) -> None:
        keys = self.table.keys
        names = ("link", "host", "how", "ranks")
        groups = sorted(set(zip(*(keys[name].tolist() for name in names), strict=True)))
        self._lines = {}
        for group in groups:
            rows = np.all([keys[name] == value for name, value in zip(names, group, strict=True)], axis=0)
            self._lines[group] = _Line(np.log(keys["num_bytes"][rows].astype(float)), np.log(self.table.seconds[rows]))

    def host_class(self, ranks: int, link: Link) -> str | None:
        """Which measured host stands for this link: "" for NVLink, a class for PCIe, None where none does.

        Classes are told apart where they differ most, at the most ranks measured.
        """
        if link.kind == "nvlink" and self.measured_link is not None:
            ratio = link.achievable_bytes_per_s / self.measured_link.achievable_bytes_per_s
            if not 1.0 / SAME_LINK_FACTOR <= ratio <= SAME_LINK_FACTOR:
                return None
        widest = max((count for kind, _, _, count in self._lines if kind == link.kind), default=0)
        hosts = {
            host: bus_bandwidth(self.table.family, widest, line.bytes_per_s)
            for (kind, host, _, count), line in self._lines.items()
            if kind == link.kind and count == widest
        }
        if not any(kind == link.kind and count == ranks for kind, _, _, count in self._lines):
            return None
        return min(sorted(hosts), key=lambda host: abs(np.log(hosts[host] / link.achievable_bytes_per_s)))

    def query(self, num_bytes: FloatArray, ranks: int, link: Link, how: str) -> Timed | None:
        """Seconds, or None where no table stands for this link and rank count."""
        host = self.host_class(ranks, link)
        keys = [(link.kind, host or "", wanted, ranks) for wanted in (how, "graph", "nccl", "eager")]
        key = next((key for key in keys if key in self._lines), None)
        return None if host is None or key is None else self.read(key, num_bytes)

    def read(self, key: LineKey, num_bytes: FloatArray) -> Timed:
        """Seconds on one measured line; beyond its last message, at that message's bandwidth."""
        line = self._lines[key]
        log_x = np.log(num_bytes)
        at = place(line.log_bytes, log_x)
        high = np.minimum(at.low + 1, len(line.log_bytes) - 1)
        inside = line.log_seconds[at.low] + at.weight * (line.log_seconds[high] - line.log_seconds[at.low])
        beyond = np.maximum(log_x - line.log_bytes[-1], 0.0)
        on_knot = at.inside & ((at.weight == 0.0) | (at.weight == 1.0))
        basis = np.where(on_knot, Basis.MEASURED, np.where(at.inside, Basis.INTERPOLATED, Basis.EXTRAPOLATED))
        return Timed(np.exp(inside + beyond), basis.astype(np.uint8))


def bus_bandwidth(family: str, ranks: int, bytes_per_s: float) -> float:
    """What one link carries in one direction, for a collective that moves so many of its bytes per second."""
    passes = 2.0 if family == "all_reduce" else 1.0
    return passes * (ranks - 1) / ranks * bytes_per_s


def modelled(family: str, num_bytes: FloatArray, ranks: int, link: Link) -> Timed:
    """Ring or tree on the link's figures; ASSUMED."""
    if family == "all_reduce":
        seconds = ring_all_reduce(num_bytes, ranks, link)
    elif family == "send":
        seconds = link.latency_s + num_bytes / link.achievable_bytes_per_s
    else:
        seconds = ring_pass(num_bytes, ranks, link)
    return Timed(np.asarray(seconds, dtype=np.float64), np.full(num_bytes.shape, Basis.ASSUMED, dtype=np.uint8))
