"""Prices of a fleet's GPU types: the fleet file first, then the GPU catalog's list prices, each with its source."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from splitplan.catalogs.documents import KeyPath
from splitplan.catalogs.gpus import Gpu
from splitplan.planner.spec.fleet import PriceTier, Rack
from splitplan.planner.spec.fleet_schema import PRICE_KINDS, FleetFile, PricesFile
from splitplan.planner.spec.reading import Reading


def price_tiers(file: FleetFile, racks: Sequence[Rack], price_kind: str, reading: Reading) -> tuple[PriceTier, ...]:
    """All known prices of the types in `racks`. A type without a price of `price_kind` is a problem."""
    nodes = [node for rack in racks for node in rack.nodes]
    gpus = {node.gpu: reading.gpu(node.gpu, ()) for node in nodes}
    own = _own_prices(file, list(gpus), reading)
    tiers: list[PriceTier] = []
    for name, gpu in gpus.items():
        if gpu is not None:
            tiers += _tiers_of(gpu, own.get(name, PricesFile()))
        priced_by_node = all(node.price_usd_per_gpu_hour is not None for node in nodes if node.gpu == name)
        if not priced_by_node and not any(tier.gpu == name and tier.kind == price_kind for tier in tiers):
            known = ", ".join(tier.kind for tier in tiers if tier.gpu == name) or "no price"
            message = f"no {price_kind} price of {name} is known ({known})"
            reading.reject(("prices",), message, f"$/GPU/h in the fleet file: prices: {{{name}: {{{price_kind}: …}}}}")
    return tuple(tiers)


def _own_prices(file: FleetFile, in_fleet: Sequence[str], reading: Reading) -> dict[str, PricesFile]:
    own: dict[str, PricesFile] = {}
    for name, prices in file.prices.items():
        at: KeyPath = ("prices", name)
        gpu = reading.gpu(name, at)
        if gpu is None:
            continue
        if gpu.name not in in_fleet:
            reading.reject(at, f"the fleet has no {gpu.name}", expected=f"one of {', '.join(in_fleet)}")
        if gpu.name in own:
            reading.reject(at, f"second price of {gpu.name}", expected="each type once, under one of its names")
        own[gpu.name] = prices
    return own


def _tiers_of(gpu: Gpu, own: PricesFile) -> Iterator[PriceTier]:
    for kind in PRICE_KINDS:
        cap = own.max_gpus.get(kind)
        price: float | None = getattr(own, kind)
        listed = next((listed for listed in gpu.prices if listed.kind == kind), None)
        if price is not None:
            yield PriceTier(gpu.name, kind, price, own.sources.get(kind, own.source), cap)
        elif listed is not None:
            source = f"{listed.source}, {listed.date}"
            if listed.confidence != "solid" and listed.confidence not in source:
                source += f" ({listed.confidence})"
            yield PriceTier(gpu.name, kind, listed.usd_per_gpu_hour, source, cap)
