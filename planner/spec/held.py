"""What other services hold of a fleet that several models share: GPUs, power, links and money that are not to be had.

A plan made together with others keeps it in its inputs, so that explain, simulate and replan ask what they should: the
best for this service while the others stay as they are.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from splitplan.catalogs.errors import InputError, Problem
from splitplan.planner.spec.fleet import Fleet, Node

Slot = tuple[str, int]  # node name, GPU index
Amount = Annotated[float, Field(ge=0)]


@dataclass(frozen=True, slots=True)
class Held:
    """GPUs, watts per rack, KV bytes/s per link and dollars per hour that others have.

    Links are named as the program's constraints: `nic_out[h100-1]`, `rack_uplink_in[r2]`, `pod_uplink_out[p]`, `spine`.
    """

    gpus: tuple[Slot, ...] = ()
    rack_watts: tuple[tuple[str, float], ...] = ()
    link_bytes_per_s: tuple[tuple[str, float], ...] = ()
    usd_per_hour: float = 0.0

    @property
    def limits(self) -> bool:
        """Whether anything but GPUs and money is held: power or links that a plan has to leave alone."""
        return bool(self.rack_watts or self.link_bytes_per_s)

    def on_links(self, names: Iterable[str]) -> float:
        """Bytes/s that others send over these links together."""
        wanted = set(names)
        return sum(amount for name, amount in self.link_bytes_per_s if name in wanted)

    def in_rack(self, rack: str) -> float:
        """Watts of others' GPUs in a rack."""
        return sum(amount for name, amount in self.rack_watts if name == rack)


NOTHING = Held()


def together(parts: Iterable[Held]) -> Held:
    """What several services hold between them."""
    gpus: list[Slot] = []
    watts: dict[str, float] = {}
    links: dict[str, float] = {}
    dollars = 0.0
    for part in parts:
        gpus += part.gpus
        dollars += part.usd_per_hour
        for name, amount in part.rack_watts:
            watts[name] = watts.get(name, 0.0) + amount
        for name, amount in part.link_bytes_per_s:
            links[name] = links.get(name, 0.0) + amount
    return Held(tuple(sorted(gpus)), tuple(sorted(watts.items())), tuple(sorted(links.items())), dollars)


def fleet_left(fleet: Fleet, held: Held) -> Fleet:
    """The fleet without what others hold: their GPUs in use, capped prices and the budget that much smaller.

    Nodes that the fleet no longer has are left out. Every capped kind of price of a type loses what is held of the
    type, since nobody says at which price it was bought. Power and links are limits of the program, not of the fleet.
    """
    taken: dict[str, set[int]] = {}
    for name, index in held.gpus:
        taken.setdefault(name, set()).add(index)
    by_type: dict[str, int] = {}
    for node in fleet.nodes:
        if node.price_usd_per_gpu_hour is None:
            lost = len(taken.get(node.name, set()) - set(node.gpus_in_use))
            by_type[node.gpu] = by_type.get(node.gpu, 0) + lost
    tiers = tuple(
        tier if tier.max_gpus is None else replace(tier, max_gpus=max(0, tier.max_gpus - by_type.get(tier.gpu, 0)))
        for tier in fleet.price_tiers
    )
    racks = tuple(replace(rack, nodes=tuple(_less(node, taken) for node in rack.nodes)) for rack in fleet.racks)
    most = fleet.max_usd_per_hour
    budget = None if most is None else max(0.0, most - held.usd_per_hour)
    return replace(fleet, racks=racks, price_tiers=tiers, max_usd_per_hour=budget)


def _less(node: Node, taken: dict[str, set[int]]) -> Node:
    more = taken.get(node.name)
    if not more:
        return node
    known = {index for index in more if 0 <= index < node.num_gpus}
    return replace(node, gpus_in_use=tuple(sorted({*node.gpus_in_use, *known})))


class _HeldFile(BaseModel):
    """`held` as a plan keeps it, in JSON."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    gpus: dict[str, list[Annotated[int, Field(ge=0)]]] = {}
    rack_watts: dict[str, Amount] = {}
    link_bytes_per_s: dict[str, Amount] = {}
    usd_per_hour: Amount = 0.0


def held_as_text(held: Held) -> str:
    """JSON for a plan's options; "" when nothing is held."""
    if held == NOTHING:
        return ""
    gpus: dict[str, list[int]] = {}
    for node, index in held.gpus:
        gpus.setdefault(node, []).append(index)
    return json.dumps(
        {
            "gpus": gpus,
            "rack_watts": dict(held.rack_watts),
            "link_bytes_per_s": dict(held.link_bytes_per_s),
            "usd_per_hour": held.usd_per_hour,
        }
    )


def held_from_text(text: str) -> Held:
    """The inverse of `held_as_text`. Raises InputError for a text that it did not write."""
    if not text:
        return NOTHING
    try:
        file = _HeldFile.model_validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        message = f"what other services hold cannot be read: {where} {first['msg']}".strip()
        raise InputError(Problem(message, "plan", "inputs.options.held", "JSON as planner solve writes it")) from None
    gpus = tuple(sorted((node, index) for node, indices in file.gpus.items() for index in indices))
    return Held(
        gpus,
        tuple(sorted(file.rack_watts.items())),
        tuple(sorted(file.link_bytes_per_s.items())),
        file.usd_per_hour,
    )
