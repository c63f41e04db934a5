"""From a Fleet file to a Fleet: racks, pods, spine and prices put together, every assumption noted."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from splitplan.catalogs.documents import Document, KeyPath, read_document, validate
from splitplan.catalogs.errors import Problem, UsageError, nearest_names, shorten
from splitplan.planner.spec.fleet import Fleet, Pod, Rack
from splitplan.planner.spec.fleet_nodes import full_racks
from splitplan.planner.spec.fleet_prices import price_tiers
from splitplan.planner.spec.fleet_quick import quick_racks
from splitplan.planner.spec.fleet_schema import PRICE_KINDS, FleetFile
from splitplan.planner.spec.fleet_write import document_of
from splitplan.planner.spec.reading import Reading, bytes_per_s_of, check_kind
from splitplan.planner.spec.shipped import file_of


def read_fleet(path_or_name: str | Path, price_kind: str) -> Fleet:
    """See `splitplan.planner.spec.fleet.load_fleet`."""
    return build_fleet(read_document(file_of("fleet", path_or_name), "fleet"), price_kind)


def build_fleet(document: Document, price_kind: str = "on_demand") -> Fleet:
    """Check a parsed Fleet file and build the fleet. Raises DocumentError with every problem."""
    if price_kind not in PRICE_KINDS:
        near = nearest_names(price_kind, PRICE_KINDS)
        hint = f"did you mean {near[0]}?" if near else ""
        raise UsageError(
            Problem(f"unknown price kind '{shorten(price_kind)}'", expected=", ".join(PRICE_KINDS), next_step=hint)
        )
    check_kind(document, "Fleet")
    file = validate(document, FleetFile)
    reading = Reading(document)
    if bool(file.gpus) == bool(file.racks):
        message = "gives both `racks` and `gpus`" if file.gpus else "holds no GPUs"
        reading.reject((), message, expected="either `racks`, or `gpus` with counts per type")
    racks = quick_racks(file, reading) if file.gpus else full_racks(file, reading)
    reading.stop_on_problems()
    pods = _pods(file, racks, reading)
    spine = _spine_bytes_per_s(file, racks, pods, reading)
    tiers = price_tiers(file, racks, price_kind, reading)
    reading.stop_on_problems()
    _note_missing_network(racks, reading)
    chosen = {tier.gpu: tier for tier in tiers if tier.kind == price_kind}
    fleet = Fleet(
        name=file.name,
        racks=racks,
        spine_bytes_per_s=spine,
        usd_per_gpu_hour={gpu: tier.usd_per_gpu_hour for gpu, tier in chosen.items()},
        price_sources={gpu: tier.source for gpu, tier in chosen.items()},
        max_usd_per_hour=file.budget_usd_per_hour,
        notes=tuple(reading.notes),
        pods=pods,
        price_tiers=tiers,
    )
    return replace(fleet, content_hash=fleet_hash(fleet))


def fleet_hash(fleet: Fleet) -> str:
    """SHA-256 over what the fleet says, however it was written down, and the price kind in force."""
    content = {"fleet": document_of(fleet), "usd_per_gpu_hour": dict(fleet.usd_per_gpu_hour)}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _pods(file: FleetFile, racks: Sequence[Rack], reading: Reading) -> tuple[Pod, ...]:
    pods: dict[str, Pod] = {}
    for index, pod in enumerate(file.pods):
        at: KeyPath = ("pods", index)
        if pod.uplink_gbit_per_s is not None and pod.uplink_oversubscription is not None:
            reading.reject(
                (*at, "uplink_oversubscription"), "given together with `uplink_gbit_per_s`", "one of the two"
            )
        for name in reading.names(pod.name, (*at, "name")):
            if name in pods:
                reading.reject((*at, "name"), f"pod '{shorten(name, 60)}' given twice", expected="each name once")
            inside = [rack for rack in racks if rack.pod == name]
            if not inside:
                known = {rack.pod for rack in racks if rack.pod}
                near = nearest_names(name, known)
                hint = f"did you mean {' or '.join(near)}?" if near else ""
                reading.reject((*at, "name"), f"no rack is in pod '{shorten(name, 60)}'", "a rack's `pod`", hint)
            uplink = None if pod.uplink_gbit_per_s is None else bytes_per_s_of(pod.uplink_gbit_per_s)
            if pod.uplink_oversubscription is not None:
                uplinks = [rack.uplink_bytes_per_s for rack in inside]
                uplink = _shared(uplinks, pod.uplink_oversubscription, (*at, "uplink_oversubscription"), reading)
            pods[name] = Pod(name, uplink)
    return tuple(pods.values())


def _spine_bytes_per_s(file: FleetFile, racks: Sequence[Rack], pods: Sequence[Pod], reading: Reading) -> float | None:
    spine = file.spine
    if spine is None:
        return None
    if (spine.gbit_per_s is None) == (spine.oversubscription is None):
        reading.reject(("spine",), "needs exactly one limit", expected="either `gbit_per_s` or `oversubscription`")
        return None
    if spine.gbit_per_s is not None:
        return bytes_per_s_of(spine.gbit_per_s)
    pod_uplinks: Mapping[str, float | None] = {pod.name: pod.uplink_bytes_per_s for pod in pods}
    limited = {name for name, uplink in pod_uplinks.items() if uplink is not None}
    uplinks = [rack.uplink_bytes_per_s for rack in racks if rack.pod not in limited]
    uplinks += [pod_uplinks[name] for name in sorted(limited)]
    return _shared(uplinks, spine.oversubscription or 1.0, ("spine", "oversubscription"), reading)


def _shared(uplinks: Sequence[float | None], ratio: float, at: KeyPath, reading: Reading) -> float | None:
    """The sum of uplinks over an oversubscription ratio; a problem when one of them has no limit."""
    known = [uplink for uplink in uplinks if uplink is not None]
    if len(known) != len(uplinks):
        reading.reject(at, "needs the uplinks below it", "`uplink_gbit_per_s` on every rack (or pod) below")
        return None
    return float(round(sum(known) / ratio))


def _note_missing_network(racks: Sequence[Rack], reading: Reading) -> None:
    nodes = [node for rack in racks for node in rack.nodes]
    without = [node.name for node in nodes if node.num_nics == 0]
    if without and len(nodes) > 1:
        which = "no node has" if len(without) == len(nodes) else f"{shorten(', '.join(without), 60)}: without"
        reading.note(f"{which} a NIC, so KV cannot leave the node: prefill and decode must share one there")
