"""What a planner should know about a fleet before it is trusted: one sentence for each thing that holds plans back."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from splitplan.catalogs.gpus import load_gpus
from splitplan.planner.spec.fleet import Fleet, Rack
from splitplan.planner.spec.names import compress_names

STEEP_OVERSUBSCRIPTION = 8.0
MAX_NAMES_SHOWN = 60


def fleet_findings(fleet: Fleet) -> list[str]:
    """What holds a plan on this fleet back or makes it less sure, one sentence each; [] when nothing does.

    What was assumed while the file was read is in `fleet.notes`.
    """
    found = list(_network_findings(fleet))
    found += _power_findings(fleet.racks)
    found += _taken_findings(fleet)
    found += _price_findings(fleet)
    found += _profile_findings(fleet)
    return list(dict.fromkeys(found))


def _network_findings(fleet: Fleet) -> Iterator[str]:
    for rack in fleet.racks:
        ports = sum(node.nic_bytes_per_s for node in rack.nodes)
        if rack.uplink_bytes_per_s is not None and ports > STEEP_OVERSUBSCRIPTION * rack.uplink_bytes_per_s:
            ratio = ports / rack.uplink_bytes_per_s
            yield f"rack {rack.name}: NICs over uplink are {ratio:.3g}:1, so KV between racks is slow"
    unlimited = [rack.name for rack in fleet.racks if rack.uplink_bytes_per_s is None]
    if unlimited and len(fleet.racks) > 1:
        which = "all racks" if len(unlimited) == len(fleet.racks) else f"racks {_names(unlimited)}"
        yield f"no uplink limit on {which}: traffic between racks is bounded by NICs alone"


def _power_findings(racks: Iterable[Rack]) -> Iterator[str]:
    gpus = load_gpus()
    for rack in racks:
        full = sum(node.host_watts + node.num_gpus * gpus[node.gpu].tdp_watts for node in rack.nodes)
        if rack.power_limit_watts is not None and full > rack.power_limit_watts:
            limit = rack.power_limit_watts / 1000
            yield f"rack {rack.name}: all GPUs at once would draw {full / 1000:.3g} kW of {limit:.3g} kW"


def _taken_findings(fleet: Fleet) -> Iterator[str]:
    full = [node.name for node in fleet.nodes if not node.free_gpus]
    if full:
        yield f"no free GPU on {_names(full)}"


def _price_findings(fleet: Fleet) -> Iterator[str]:
    for gpu, source in fleet.price_sources.items():
        confidence = next((price.confidence for price in load_gpus()[gpu].prices if price.source in source), "")
        if "assumed" in source or confidence in ("assumed", "doubtful"):
            yield f"the price of {gpu} is {confidence or 'assumed'}: set it under `prices` in the fleet file"


def _profile_findings(fleet: Fleet) -> Iterator[str]:
    from splitplan.profiler.store import list_profiles

    measured = {name.partition("/")[0] for name in list_profiles()}
    for gpu in fleet.num_gpus:
        if gpu not in measured:
            yield f"no measurements of {gpu} ship: its times are estimated from datasheets and relatives"


def _names(names: Sequence[str]) -> str:
    pattern = compress_names(names)
    if pattern is not None:
        return pattern
    text = ", ".join(names)
    return text if len(text) <= MAX_NAMES_SHOWN else f"{names[0]} … {names[-1]} ({len(names)})"
