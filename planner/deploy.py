"""An assigned plan as a Deployment: the instances and links that the simulator runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from splitplan.catalogs.links import Link as CatalogLink
from splitplan.catalogs.links import find_link
from splitplan.planner.inputs import SolveInputs
from splitplan.planner.latency.step import StepModel
from splitplan.planner.latency.transfer import kv_transfer
from splitplan.planner.plan import Instance, Pool, Route
from splitplan.planner.simulate.deployment import Deployment, InstanceSpec, Link
from splitplan.planner.spec.fleet import Node

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
    ways = _ways(pools, routes, links)
    return Deployment(
        instances=tuple(specs),
        links=tuple(links.links),
        kv_bytes_per_token=inputs.model.kv_bytes_per_token(_kv_dtype(pools)),
        transfer_latency_s=ROUTER_HOP_S + max((link.latency_s for link in ways), default=0.0),
        descriptor_s=max((link.per_descriptor_s for link in ways), default=0.0),
        descriptors_per_block=_descriptors_per_block(pools, inputs),
        spine=links.spine,
        decode_emits_first_token=inputs.engine.decode_emits_first_token,
        routes={(order[route.prefill], order[route.decode]): route.share for route in routes},
    )


def timed_routes(pools: Sequence[Pool], routes: Sequence[Route], deployment: Deployment) -> tuple[Route, ...]:
    """The routes with the time a KV transfer takes alone on them: a fixed part, and seconds per token."""
    specs = {spec.name: spec for spec in deployment.instances}
    block = max(pool.block_tokens for pool in pools)
    per_token_descriptors_s = deployment.descriptor_s * deployment.descriptors_per_block / block
    return tuple(
        route.model_copy(
            update={
                "transfer_base_s": round(deployment.transfer_latency_s, 9),
                "transfer_s_per_token": round(
                    deployment.kv_bytes_per_token / _slowest(route, specs, deployment) + per_token_descriptors_s, 12
                ),
            }
        )
        for route in routes
    )


def _slowest(route: Route, specs: Mapping[str, InstanceSpec], deployment: Deployment) -> float:
    """Bytes per second of the slowest link on a route; infinite where nothing limits it."""
    prefill, decode = specs[route.prefill], specs[route.decode]
    if route.path == "same-node":
        used = [prefill.local_link] if prefill.local_link is not None else []
    elif route.path == "same-rack":
        used = [*prefill.egress[:1], *decode.ingress[:1]]
    else:
        spine = [deployment.spine] if deployment.spine is not None else []
        used = [*prefill.egress, *spine, *decode.ingress]
    return min((deployment.links[link].bytes_per_s for link in used), default=float("inf"))


class _Links:
    """The fleet's links, numbered as they are first used."""

    def __init__(self, inputs: SolveInputs) -> None:
        fleet = inputs.fleet
        self.links: list[Link] = []
        self._numbers: dict[str, int] = {}
        self._nodes = {node.name: node for node in fleet.nodes}
        self._uplinks = {rack.name: rack.uplink_bytes_per_s for rack in fleet.racks}
        self.spine = None if fleet.spine_bytes_per_s is None else self.number("spine", fleet.spine_bytes_per_s)

    def number(self, name: str, bytes_per_s: float) -> int:
        """Index of the link of this name, made now if it is new."""
        if name not in self._numbers:
            self._numbers[name] = len(self.links)
            self.links.append(Link(name, bytes_per_s))
        return self._numbers[name]

    def local(self, pool: Pool, instance: Instance) -> int:
        """Between GPUs of the instance's own node."""
        link = find_link(self.node(instance).gpu_link)
        return self.number(f"{instance.name} in node", link.achievable_bytes_per_s * pool.tensor_parallel)

    def way(self, pool: Pool, instance: Instance, direction: str) -> tuple[int, ...]:
        """NIC and rack uplink in one direction."""
        node = self.node(instance)
        if not node.nic_link:
            return ()
        rate = node.nic_bytes_per_s * find_link(node.nic_link).achievable_fraction
        own_ports = node.num_nics >= node.num_gpus
        name, share = (node.name, 1.0) if not own_ports else (instance.name, pool.tensor_parallel / node.num_gpus)
        path = [self.number(f"{name} NIC {direction}", rate * min(share, 1.0))]
        uplink = self._uplinks[node.rack]
        if uplink is not None:
            path.append(self.number(f"{node.rack} leaf {direction}", uplink))
        return tuple(path)

    def node(self, instance: Instance) -> Node:
        """The node of an instance's first GPU."""
        return self._nodes[instance.gpus[0].node]


def _ways(pools: Sequence[Pool], routes: Sequence[Route], links: _Links) -> list[CatalogLink]:
    """Kinds of link that KV takes on these routes: the GPUs' own inside a node, the NICs of both ends otherwise."""
    instances = {instance.name: instance for pool in pools for instance in pool.instances}
    names: set[str] = set()
    for route in routes:
        ends = [links.node(instances[route.prefill]), links.node(instances[route.decode])]
        inside = route.path == "same-node"
        names |= {ends[0].gpu_link} if inside else {node.nic_link for node in ends if node.nic_link}
    return [find_link(name) for name in sorted(names)]


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
        node=node.name,
        rack=node.rack,
        local_link=links.local(pool, instance) if pool.role == "prefill" else None,
        egress=links.way(pool, instance, "out") if pool.role == "prefill" else (),
        ingress=links.way(pool, instance, "in") if pool.role == "decode" else (),
    )


def _kv_dtype(pools: Sequence[Pool]) -> str:
    return pools[0].kv_dtype


def _descriptors_per_block(pools: Sequence[Pool], inputs: SolveInputs) -> float:
    """Descriptors that one rank pair posts for a block of tokens; the most of any pair of pools."""
    prefill = {pool.tensor_parallel for pool in pools if pool.role == "prefill"}
    decode = {pool.tensor_parallel for pool in pools if pool.role == "decode"}
    block = inputs.engine.block_tokens
    most = 0.0
    for prefill_tp in prefill:
        for decode_tp in decode:
            piece = kv_transfer(
                inputs.model, _kv_dtype(pools), block, prefill_tp=prefill_tp, decode_tp=decode_tp, block_tokens=block
            )
            most = max(most, piece.num_descriptors / piece.parallel_ranks)
    return most
