"""Links between GPUs and between nodes: NVLink generations, PCIe, InfiniBand, RoCE, Ethernet. One direction each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import Literal

from splitplan.catalogs.errors import UnknownNameError
from splitplan.catalogs.gpus import Confidence
from splitplan.catalogs.reader import CATALOG_DIR, cite, fold, index_names, read_catalog

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
    confidence: Confidence  # of the line rate and the fraction
    latency_confidence: Confidence = "assumed"
    descriptor_confidence: Confidence = "assumed"
    all_reduce_fraction: float | None = None  # all-reduce bus bandwidth over line rate with in-switch reduction
    domain_gpus: int | None = None  # GPUs that one fabric of this kind joins; None: not a fabric of GPUs

    @property
    def achievable_bytes_per_s(self) -> float:
        """What large messages reach in one direction."""
        return self.bytes_per_s * self.achievable_fraction


@cache
def load_links() -> Mapping[str, Link]:
    """Every kind of link of the catalog, by canonical name."""
    data = read_catalog(CATALOG_DIR / "links.yaml", "links")
    return MappingProxyType(
        {
            name: Link(
                name=name,
                aliases=tuple(entry["aliases"]),
                kind=entry["kind"],
                bytes_per_s=entry["gb_per_s"] * 1e9,
                achievable_fraction=entry["achievable_fraction"],
                latency_s=entry["latency_us"] * 1e-6,
                per_descriptor_s=entry["per_descriptor_us"] * 1e-6,
                source=cite(entry["source"], data["sources"]),
                date=data["date"],
                confidence=entry["confidence"],
                latency_confidence=entry["latency_confidence"],
                descriptor_confidence=entry["descriptor_confidence"],
                all_reduce_fraction=entry.get("all_reduce_fraction"),
                domain_gpus=entry.get("domain_gpus"),
            )
            for name, entry in data["links"].items()
        }
    )


def find_link(name: str, *, where: str = "", key: str = "") -> Link:
    """A link by name or alias; raises UnknownNameError with the nearest names."""
    canonical = _index().get(fold(name))
    if canonical is None:
        known = [item for link in load_links().values() for item in (link.name, *link.aliases)]
        raise UnknownNameError("link", name, known, where=where, key=key)
    return load_links()[canonical]


@cache
def _index() -> dict[str, str]:
    return index_names({name: link.aliases for name, link in load_links().items()})
