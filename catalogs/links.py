"""Links between GPUs and between nodes: NVLink generations, PCIe, InfiniBand, RoCE, Ethernet. One direction each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from splitplan.catalogs.gpus import Confidence

LinkKind = Literal["nvlink", "pcie", "infiniband", "roce", "efa", "ethernet", "infinity-fabric"]


@dataclass(frozen=True, slots=True)
class Link:
    """One kind of link. `bytes_per_s` is the line rate of one direction of one port (one GPU's share for NVLink)."""

    name: str
    aliases: tuple[str, ...]
    kind: LinkKind
    bytes_per_s: float
    achievable_fraction: float  # large messages, of the line rate
    latency_s: float  # first byte
    per_descriptor_s: float  # one more contiguous block in a transfer
    source: str
    date: str
    confidence: Confidence

    @property
    def achievable_bytes_per_s(self) -> float:
        """What large messages reach in one direction."""
        return self.bytes_per_s * self.achievable_fraction
