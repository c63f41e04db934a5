"""An assigned plan as a Deployment: the instances and links that the simulator runs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from splitplan.catalogs.layers import AttentionGroup
from splitplan.catalogs.links import find_link
from splitplan.catalogs.models import Model
from splitplan.catalogs.parameters import element_bytes
from splitplan.planner.inputs import SolveInputs
from splitplan.planner.latency.memory import kv_bytes_per_gpu, kv_layer_slots
from splitplan.planner.latency.step import StepModel
from splitplan.planner.latency.transfer import KvTransfer, kv_transfer
from splitplan.planner.plan import Instance, Pool, Route
from splitplan.planner.simulate.deployment import Deployment, InstanceSpec, Link, PathCost
from splitplan.planner.spec.fleet import Node

LEAST_LINK_SHARE = 0.01
"""What is left of a link that others' planned load would fill: transfers crawl, and the simulation says so."""

ROUTER_HOP_S = 0.001
"""A router's own time per request, each way through it: assumed; public routers answer in about a millisecond."""


def deployment_of(
    pools: Sequence[Pool],
    routes: Sequence[Route],
    steps: Mapping[str, StepModel],
    inputs: SolveInputs,
    *,
    colocated_share: float = 0.0,
) -> Deployment:
    """The deployment of these pools; `steps` by pool name. Link capacities are what large messages reach.

    `colocated_share` of all requests goes to colocated instances, the rest to prefill.
    """
    entry_share = {"prefill": 1 - colocated_share, "colocated": colocated_share, "decode": 1.0}
    links = _Links(inputs)
    specs: list[InstanceSpec] = []
    order: dict[str, int] = {}
    for pool in pools:
        for instance in pool.instances:
            order[instance.name] = len(specs)
            specs.append(_spec(pool, instance, entry_share[pool.role], steps[pool.name], links))
    window_tokens, windowed_bytes = windows_of(inputs.model, _kv_dtype(pools))
    return Deployment(
        instances=tuple(specs),
        kv_bytes_per_sequence=float(inputs.model.state_bytes),
        window_tokens=window_tokens,
        windowed_kv_bytes_per_token=windowed_bytes,
        links=tuple(links.links),
        kv_bytes_per_token=inputs.model.kv_bytes_per_token(_kv_dtype(pools)),
        transfer_latency_s=ROUTER_HOP_S,
        spine=links.spine,
        decode_emits_first_token=inputs.engine.decode_emits_first_token,
        routes={(order[route.prefill], order[route.decode]): route.share for route in routes},
        path_costs=_path_costs(links.kinds, inputs),
    )


def timed_routes(pools: Sequence[Pool], routes: Sequence[Route], deployment: Deployment) -> tuple[Route, ...]:
    """The routes with the time a KV transfer takes alone on them: a fixed part, and seconds per token.

    Layers with a window send a full one, whatever the prompt: right for prompts at least as long.
    """
    order = {spec.name: index for index, spec in enumerate(deployment.instances)}
    block = max(pool.block_tokens for pool in pools)
    timed = []
    for route in routes:
        prefill, decode = order[route.prefill], order[route.decode]
        cost = deployment.path_cost(prefill, decode)
        rate = _slowest(route, prefill, decode, deployment)
        rate /= cost.copies
        windowed_s = deployment.windowed_kv_bytes_per_token / rate
        windowed_s += cost.descriptor_s * cost.windowed_descriptors_per_block / block
        per_token_s = deployment.kv_bytes_per_token / rate + cost.descriptor_s * cost.descriptors_per_block / block
        base_s = cost.latency_s + deployment.kv_bytes_per_sequence / rate + deployment.window_tokens * windowed_s
        base_s, per_token_s = round(base_s, 9), round(per_token_s - windowed_s, 12)
        timed.append(route.model_copy(update={"transfer_base_s": base_s, "transfer_s_per_token": per_token_s}))
    return tuple(timed)


def _slowest(route: Route, prefill_index: int, decode_index: int, deployment: Deployment) -> float:
    """Bytes per second of the slowest link on a route; infinite where nothing limits it."""
    prefill, decode = deployment.instances[prefill_index], deployment.instances[decode_index]
    if route.path == "same-node":
        used = [prefill.local_link] if prefill.local_link is not None else []
    elif route.path == "same-rack":
        used = [*prefill.egress[:1], *decode.ingress[:1]]
    else:
        spine = [deployment.spine] if deployment.spine is not None else []
        used = [*prefill.egress, *spine, *decode.ingress]
    return min((deployment.links[link].bytes_per_s for link in used), default=float("inf"))


@dataclass(frozen=True, slots=True)
class Kind:
    """What an instance brings to the cost of a transfer beside its bytes."""

    role: str
    tensor_parallel: int
    kv_dtype: str
    gpu_link: str
    nic_link: str | None


def windows_of(model: Model, kv_dtype: str) -> tuple[int, float]:
    """The tokens that layers with a sliding window see, the widest where they differ, and their KV bytes per token."""
    groups = [group for group in model.attention if group.window_tokens is not None]
    values = sum(group.num_layers * group.cached_values_per_token for group in groups)
    return max((group.window_tokens or 0 for group in groups), default=0), values * element_bytes(kv_dtype)


def kv_parts(model: Model, kv_dtype: str, tensor_parallel: int) -> tuple[int, int]:
    """KV memory of a block on one rank: in layers that keep every token, and in layers with a window; smallest terms.

    Layers are counted as the allocator makes room for them (`kv_layer_slots`).
    """
    full = windowed = 0
    for group, slots in zip(model.attention, kv_layer_slots(model), strict=True):
        heads = 2 * group.kv_heads_per_rank(tensor_parallel)
        values = slots * group.head_dim * (1 if group.kind == "mla" else heads)
        if group.window_tokens is not None:
            windowed += values
        elif group.kind != "state":
            full += values
    if model.indexer is not None:
        full += round(model.indexer.cached_bytes_per_token / element_bytes(kv_dtype))
    common = math.gcd(full, windowed)
    return (full // common, windowed // common) if windowed else (1, 0)


def kv_sequence_tokens(model: Model, kv_dtype: str, tensor_parallel: int) -> int:
    """The state that a sequence keeps on a rank in layers without a cache, as so many tokens of the others."""
    per_token = kv_bytes_per_gpu(model, kv_dtype, 1, tp=tensor_parallel, pp=1, windows=False)
    return math.ceil(model.state_bytes / tensor_parallel / per_token) if model.state_bytes else 0


class _Links:
    """The fleet's links, numbered as they are first used."""

    def __init__(self, inputs: SolveInputs) -> None:
        fleet = inputs.fleet
        self.model = inputs.model
        self.links: list[Link] = []
        self._numbers: dict[str, int] = {}
        self.kinds: dict[Kind, int] = {}
        self._nodes = {node.name: node for node in fleet.nodes}
        self._uplinks = {rack.name: rack.uplink_bytes_per_s for rack in fleet.racks}
        self._held = inputs.question.held
        self.spine = None
        if fleet.spine_bytes_per_s is not None:
            self.spine = self.number("spine", self._left(fleet.spine_bytes_per_s, "spine"))

    def number(self, name: str, bytes_per_s: float) -> int:
        """Index of the link of this name, made now if it is new."""
        if name not in self._numbers:
            self._numbers[name] = len(self.links)
            self.links.append(Link(name, bytes_per_s))
        return self._numbers[name]

    def kind(self, pool: Pool, instance: Instance) -> int:
        """Number of the kind of path end that an instance is, made now if it is new."""
        node = self.node(instance)
        kind = Kind(pool.role, pool.tensor_parallel, pool.kv_dtype, node.gpu_link, node.nic_link)
        return self.kinds.setdefault(kind, len(self.kinds))

    def local(self, pool: Pool, instance: Instance) -> int:
        """Between GPUs of the instance's own node."""
        link = find_link(self.node(instance).gpu_link)
        return self.number(f"{instance.name} in node", link.achievable_bytes_per_s * pool.tensor_parallel)

    def way(self, pool: Pool, instance: Instance, direction: str) -> tuple[int, ...]:
        """NIC and rack uplink in one direction."""
        if pool.stages:
            return self._way_of_stages(pool, instance, direction)
        node = self.node(instance)
        if not node.nic_link:
            return ()
        rate = node.nic_bytes_per_s * find_link(node.nic_link).achievable_fraction
        own_ports = node.num_nics >= node.num_gpus
        name, share = (node.name, 1.0) if not own_ports else (instance.name, pool.tensor_parallel / node.num_gpus)
        nic = rate if own_ports else self._left(rate, f"nic_{direction}[{node.name}]")
        path = [self.number(f"{name} NIC {direction}", nic * min(share, 1.0))]
        uplink = self._uplinks[node.rack]
        if uplink is not None:
            left = self._left(uplink, f"rack_uplink_{direction}[{node.rack}]")
            path.append(self.number(f"{node.rack} leaf {direction}", left))
        return tuple(path)

    def _left(self, bytes_per_s: float, name: str) -> float:
        """What the mean load of other services leaves of a link that all share."""
        others = self._held.on_links((name,))
        return bytes_per_s if not others else max(bytes_per_s - others, bytes_per_s * LEAST_LINK_SHARE)

    def _way_of_stages(self, pool: Pool, instance: Instance, direction: str) -> tuple[int, ...]:
        """NICs of all stages as one link: every stage moves the KV of its own layers, and the slowest is waited for."""
        rates, layers = [], sum(stage.layers for stage in pool.stages)
        for number, stage in enumerate(pool.stages):
            node = self._nodes[instance.gpus[number * pool.tensor_parallel].node]
            if not node.nic_link:
                return ()
            share = min(1.0, pool.tensor_parallel / node.num_gpus) if node.num_nics >= node.num_gpus else 1.0
            rate = node.nic_bytes_per_s * find_link(node.nic_link).achievable_fraction
            rates.append(self._left(rate, f"nic_{direction}[{node.name}]") * share * layers / stage.layers)
        path = [self.number(f"{instance.name} NICs {direction}", min(rates))]
        rack = self.node(instance).rack
        if (uplink := self._uplinks[rack]) is not None:
            path.append(self.number(f"{rack} leaf {direction}", self._left(uplink, f"rack_uplink_{direction}[{rack}]")))
        return tuple(path)

    def node(self, instance: Instance) -> Node:
        """The node of an instance's first GPU."""
        return self._nodes[instance.gpus[0].node]


def _path_costs(kinds: Mapping[Kind, int], inputs: SolveInputs) -> dict[tuple[int, int, bool], PathCost]:
    """Latency and descriptors between any two kinds: over the GPUs' own link inside a node, else by the slower NIC."""
    costs = {}
    for sender, prefill in kinds.items():
        for receiver, decode in kinds.items():
            if sender.role != "prefill" or receiver.role != "decode":
                continue
            descriptors, windowed, copies = _per_block(sender, receiver, inputs)
            for inside in (True, False):
                names = [sender.gpu_link] if inside else [end.nic_link for end in (sender, receiver) if end.nic_link]
                links = [find_link(name) for name in names]
                costs[prefill, decode, inside] = PathCost(
                    latency_s=ROUTER_HOP_S + max((link.latency_s for link in links), default=0.0),
                    descriptor_s=max((link.per_descriptor_s for link in links), default=0.0),
                    descriptors_per_block=descriptors,
                    windowed_descriptors_per_block=windowed,
                    copies=copies,
                )
    return costs


def _spec(pool: Pool, instance: Instance, entry_share: float, step: StepModel, links: _Links) -> InstanceSpec:
    node = links.node(instance)
    return InstanceSpec(
        name=instance.name,
        role=pool.role,
        step=step,
        kv_capacity_tokens=pool.kv_capacity_tokens,
        block_tokens=pool.block_tokens,
        max_num_seqs=pool.max_num_seqs,
        max_num_batched_tokens=pool.max_num_batched_tokens,
        share=instance.share * entry_share,
        above_tokens=pool.above_tokens,
        up_to_tokens=pool.up_to_tokens,
        node=node.name,
        rack=node.rack,
        kind=links.kind(pool, instance),
        kv_sequence_tokens=kv_sequence_tokens(links.model, pool.kv_dtype, pool.tensor_parallel),
        kv_parts=kv_parts(links.model, pool.kv_dtype, pool.tensor_parallel),
        local_link=links.local(pool, instance) if pool.role == "prefill" else None,
        egress=links.way(pool, instance, "out") if pool.role == "prefill" else (),
        ingress=links.way(pool, instance, "in") if pool.role == "decode" else (),
    )


def _kv_dtype(pools: Sequence[Pool]) -> str:
    return pools[0].kv_dtype


def _per_block(sender: Kind, receiver: Kind, inputs: SolveInputs) -> tuple[float, float, float]:
    """Of a block: descriptors of one rank pair, those of layers with a window, and how often its bytes are sent."""
    model, block = inputs.model, inputs.engine.block_tokens
    tps = {"prefill_tp": sender.tensor_parallel, "decode_tp": receiver.tensor_parallel}

    def moved(groups: tuple[AttentionGroup, ...], **ranks: int) -> KvTransfer:
        return kv_transfer(replace(model, attention=groups), sender.kv_dtype, block, block_tokens=block, **ranks)

    whole = moved(model.attention, **tps)
    windowed = moved(tuple(group for group in model.attention if group.window_tokens is not None), **tps)
    once = moved(model.attention, prefill_tp=1, decode_tp=1).num_bytes
    ranks = whole.parallel_ranks
    return whole.num_descriptors / ranks, windowed.num_descriptors / ranks, whole.num_bytes / once if once else 1.0
