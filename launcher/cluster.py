"""A plan as processes on hosts: who runs where, on which GPUs, behind which ports. No engine and no target yet.

A *member* is one process of an instance on one host: an instance inside one node has one member, an instance over
several nodes has one per node, rank 0 first. Ports are unique per address, so that two instances on one host (or
two hosts under one address) never share a side channel.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby

from splitplan.catalogs.errors import LaunchError, Problem, shorten
from splitplan.launcher.naming import dns_label
from splitplan.planner.plan import Instance, Plan, Pool, plan_hash
from splitplan.planner.spec.length_buckets import ALL_PROMPTS, PromptRange

MAX_NAME_LENGTH = 24
ADDRESS_LABEL = "address"  # a node label of the fleet file that says how to reach the node


@dataclass(frozen=True, slots=True)
class HostPlace:
    """A host as launchers see it."""

    name: str
    rack: str
    address: str
    labels: Mapping[str, str] = field(default_factory=dict)
    num_gpus: int = 0  # 0: not known


@dataclass(frozen=True, slots=True)
class Ports:
    """What one member listens on. `side_channel` is the first of `pool.gpus_per_instance` consecutive ports."""

    http: int
    side_channel: int
    bootstrap: int
    master: int


@dataclass(frozen=True, slots=True)
class PortBases:
    """First port tried for each purpose."""

    router: int = 8000
    prefill: int = 8100
    decode: int = 8200
    colocated: int = 8300
    side_channel: int = 5600
    bootstrap: int = 8998
    master: int = 29500
    router_metrics: int = 29000

    @staticmethod
    def all_from(first: int) -> PortBases:
        """Every port at or above `first`, in one range."""
        return PortBases(*[first] * 8)


@dataclass(frozen=True, slots=True)
class Member:
    """One process of one instance on one host."""

    instance: Instance
    pool: Pool
    rank: int
    num_ranks: int
    host: HostPlace
    gpu_indices: tuple[int, ...]
    ports: Ports
    leader_address: str

    @property
    def name(self) -> str:
        """The instance's name; ranks after the first carry their number."""
        return self.instance.name if self.rank == 0 else f"{self.instance.name}-rank{self.rank}"

    @property
    def gpu(self) -> str:
        """The type of its GPUs: those of a mixed pipeline differ from host to host."""
        return self.pool.gpu_at(self.rank * len(self.gpu_indices))

    @property
    def url(self) -> str:
        """Base URL of the instance's HTTP server (rank 0 serves)."""
        return f"http://{in_url(self.host.address)}:{self.ports.http}"


@dataclass(frozen=True, slots=True)
class RouterPlace:
    """Where the front door stands."""

    host: HostPlace
    port: int
    metrics_port: int
    prompts: PromptRange = ALL_PROMPTS  # what clients should send here; all, where one front door is enough

    @property
    def url(self) -> str:
        """Base URL of the endpoint that clients use."""
        return f"http://{in_url(self.host.address)}:{self.port}"


@dataclass(frozen=True, slots=True)
class Cluster:
    """A plan, placed: the input of every engine and target."""

    name: str  # an RFC 1123 label
    plan: Plan
    plan_hash: str
    model_path: str  # what the engine loads: the same string on every instance
    served_name: str
    checkpoint_dtype: str  # dtype the weights at model_path are stored in; "" when not known
    members: tuple[Member, ...]
    router: RouterPlace
    colocated_router: RouterPlace | None  # a second front door, when one router cannot serve both kinds
    colocated_share: float  # of all requests
    length_routers: tuple[RouterPlace, ...] = ()  # front doors for longer prompts, where no router tells them apart

    def entry_policy(self, num_workers: int) -> str:
        """How the router picks who takes a prompt: by cached prefixes where the plan counts on them, else by load."""
        return "cache_aware" if self.plan.inputs.prefix_hit_ratio > 0 and num_workers > 1 else load_policy(num_workers)

    def leaders(self, role: str) -> tuple[Member, ...]:
        """Rank 0 of every instance of a role, in plan order."""
        return tuple(member for member in self.members if member.rank == 0 and member.pool.role == role)

    @property
    def hosts(self) -> tuple[HostPlace, ...]:
        """Hosts with members, in order of first use, the routers' hosts included."""
        places = [member.host for member in self.members] + [router.host for router in self.routers]
        return tuple({place.name: place for place in places}.values())

    @property
    def routers(self) -> tuple[RouterPlace, ...]:
        """The front doors there are."""
        found = (self.router, *self.length_routers, self.colocated_router)
        return tuple(router for router in found if router is not None)


def load_policy(num_workers: int) -> str:
    """A router's policy among equal workers.

    Plans are verified with the least loaded instance; `power_of_two` is the nearest that public routers offer, and
    vllm-router 0.1.17 and sglang-router 0.3.2 refuse to start with it before a single worker.
    """
    return "power_of_two" if num_workers > 1 else "round_robin"


class PortBook:
    """Hands out ports, each once per address."""

    def __init__(self, taken: Mapping[str, set[int]] | None = None) -> None:
        self._used: dict[str, set[int]] = {address: set(ports) for address, ports in (taken or {}).items()}

    def take(self, address: str, first: int, count: int = 1) -> int:
        """The lowest run of `count` free ports at or above `first` on an address."""
        used = self._used.setdefault(address, set())
        port = first
        while any(port + offset in used for offset in range(count)):
            port += 1
        if port + count - 1 > 65535:
            raise LaunchError(Problem(f"no {count} free ports from {first} on {shorten(address)}"))
        used.update(range(port, port + count))
        return port


def per_gpu(text: str, gpu: str) -> str:
    """The value for a GPU type of an option that may name one for each: "mlx5_0:1", or "h100-sxm=mlx5_0:1;l40s=eth0".

    "" where the types are named and this one is not.
    """
    if "=" not in text:
        return text
    named = dict(part.strip().split("=", 1) for part in text.split(";") if "=" in part)
    return named.get(gpu, "")


def in_url(address: str) -> str:
    """An address as URLs write it: IPv6 in brackets."""
    return f"[{address}]" if ":" in address and not address.startswith("[") else address


def place(
    plan: Plan,
    *,
    model_path: str,
    name: str = "",
    digest: str = "",
    served_name: str = "",
    checkpoint_dtype: str = "",
    bases: PortBases | None = None,
    router_host: str = "",
    one_router: bool = False,
    taken_ports: Mapping[str, set[int]] | None = None,
    addresses: Mapping[str, str] | None = None,
) -> Cluster:
    """Place a plan: split instances over their hosts, hand out ports, choose the router's host.

    `digest` is the hash of the plan as saved, where `plan` was completed since. `addresses` overrides the address of
    hosts by name (a local target maps all to 127.0.0.1), `taken_ports` are left alone by address. Raises LaunchError
    with every problem of the placement.
    """
    bases = bases or PortBases()
    for text in (model_path, served_name):
        if text.startswith("-"):
            raise LaunchError(Problem(f"{shorten(text)!r} would be read as an option", expected="a model name or path"))
    hosts = _host_places(plan, addresses or {})
    _check_placement(plan, hosts)
    book = PortBook(taken_ports)
    router_place = _router_host(plan, hosts, router_host)
    roles = {pool.role for pool in plan.pools}
    router = _router(router_place, bases, book)
    by_length = plan.tells_lengths_apart and not one_router
    ranges = plan.prompt_ranges if by_length else ()
    if ranges:
        router = replace(router, prompts=ranges[0])
    longer = tuple(replace(_router(router_place, bases, book), prompts=prompts) for prompts in ranges[1:])
    is_mixed = "colocated" in roles and len(roles) > 1 and not by_length
    second = _router(router_place, bases, book) if is_mixed and not one_router else None
    members: list[Member] = []
    for pool in plan.pools:
        for instance in pool.instances:
            members += _members(pool, instance, hosts, bases, book)
    digest = digest or plan_hash(plan)
    return Cluster(
        name=dns_label(name or f"splitplan-{digest[:8]}", max_length=MAX_NAME_LENGTH),
        plan=plan,
        plan_hash=digest,
        model_path=model_path,
        served_name=served_name or plan.inputs.model,
        checkpoint_dtype=checkpoint_dtype,
        members=tuple(members),
        router=router,
        colocated_router=second,
        colocated_share=_colocated_share(plan),
        length_routers=longer,
    )


def _router(host: HostPlace, bases: PortBases, book: PortBook) -> RouterPlace:
    return RouterPlace(host, book.take(host.address, bases.router), book.take(host.address, bases.router_metrics))


def gpus_by_host(instance: Instance) -> list[tuple[str, tuple[int, ...]]]:
    """The instance's GPUs host by host, in rank order: [("node-a", (0, 1)), ("node-b", (0, 1))]."""
    runs = groupby(instance.gpus, key=lambda slot: slot.node)
    return [(node, tuple(slot.index for slot in slots)) for node, slots in runs]


def _members(
    pool: Pool, instance: Instance, hosts: Mapping[str, HostPlace], bases: PortBases, book: PortBook
) -> list[Member]:
    parts = gpus_by_host(instance)
    leader = hosts[parts[0][0]]
    master = book.take(leader.address, bases.master) if len(parts) > 1 else 0
    http_base = {"prefill": bases.prefill, "decode": bases.decode, "colocated": bases.colocated}[pool.role]
    members = []
    for rank, (node, indices) in enumerate(parts):
        host = hosts[node]
        ports = Ports(
            http=book.take(host.address, http_base),
            side_channel=book.take(host.address, bases.side_channel, pool.gpus_per_instance),
            bootstrap=book.take(host.address, bases.bootstrap) if pool.role == "prefill" and rank == 0 else 0,
            master=master,
        )
        members.append(Member(instance, pool, rank, len(parts), host, indices, ports, leader.address))
    return members


def _host_places(plan: Plan, addresses: Mapping[str, str]) -> dict[str, HostPlace]:
    places: dict[str, HostPlace] = {}
    for host in plan.hosts:
        address = addresses.get(host.name) or host.address or host.labels.get(ADDRESS_LABEL) or host.name
        places[host.name] = HostPlace(host.name, host.rack, address, dict(host.labels), host.num_gpus)
    for pool in plan.pools:
        for instance in pool.instances:
            for slot in instance.gpus:
                if slot.node not in places:
                    address = addresses.get(slot.node, slot.node)
                    places[slot.node] = HostPlace(slot.node, instance.rack, address)
    return places


def _router_host(plan: Plan, hosts: Mapping[str, HostPlace], wanted: str) -> HostPlace:
    if wanted in hosts:
        return hosts[wanted]
    if wanted and not _is_address(wanted):
        raise LaunchError(
            Problem(f"router host {shorten(wanted)!r} is no address", expected="a host name or an IP address")
        )
    if wanted:
        return HostPlace(wanted, "", wanted)
    by_role = {pool.role: pool for pool in reversed(plan.pools)}
    first = by_role.get("decode") or by_role.get("colocated") or plan.pools[0]
    return hosts[first.instances[0].gpus[0].node]


def _colocated_share(plan: Plan) -> float:
    """Share of requests the colocated pools take: as planned, else by GPUs where a plan holds both kinds."""
    gpus = {"colocated": 0, "split": 0}
    for pool in plan.pools:
        kind = "colocated" if pool.role == "colocated" else "split"
        gpus[kind] += pool.gpus_per_instance * len(pool.instances)
    if not gpus["colocated"] or not gpus["split"]:
        return 1.0 if gpus["colocated"] else 0.0
    return plan.colocated_share if plan.colocated_share is not None else gpus["colocated"] / sum(gpus.values())


def _check_placement(plan: Plan, hosts: Mapping[str, HostPlace]) -> None:
    problems: list[Problem] = [_address_problem(host) for host in hosts.values() if not _is_address(host.address)]
    instances = [(pool, instance) for pool in plan.pools for instance in pool.instances]
    if not instances:
        raise LaunchError(Problem("the plan has no instances", next_step="planner solve"))
    problems += _duplicates([instance.name for _, instance in instances])
    roles = {pool.role for pool, _ in instances}
    if len(roles & {"prefill", "decode"}) == 1:
        missing = ({"prefill", "decode"} - roles).pop()
        problems.append(Problem(f"the plan has no {missing} instance to go with its other role"))
    owners: dict[tuple[str, int], str] = {}
    for pool, instance in instances:
        problems += _instance_problems(pool, instance, hosts)
        for slot in instance.gpus:
            owner = owners.setdefault((slot.node, slot.index), instance.name)
            if owner != instance.name:
                problems.append(
                    Problem(f"GPU {slot.index} of {shorten(slot.node)} is planned for {owner} and {instance.name}")
                )
    if problems:
        raise LaunchError(problems)


def _is_address(text: str) -> bool:
    """A host name or IP address: nothing that a program could read as an option or a shell as syntax."""
    return bool(re.fullmatch(r"[A-Za-z0-9_\[][A-Za-z0-9_.:\]-]*", text)) and len(text) <= 253


def _address_problem(host: HostPlace) -> Problem:
    return Problem(
        f"node {shorten(host.name)!r} has no usable address ({shorten(host.address)!r})",
        expected="a host name or an IP address",
        next_step=f"give the node a label `{ADDRESS_LABEL}` in the fleet file and solve again",
    )


def _instance_problems(pool: Pool, instance: Instance, hosts: Mapping[str, HostPlace]) -> list[Problem]:
    name = shorten(instance.name)
    if len(instance.gpus) != pool.gpus_per_instance:
        wanted = f"{pool.gpus_per_instance} (TP {pool.tensor_parallel} × PP {pool.pipeline_parallel})"
        return [Problem(f"{name} has {len(instance.gpus)} GPUs", expected=wanted)]
    problems = []
    if len(set(instance.gpus)) != len(instance.gpus):
        problems.append(Problem(f"{name} lists a GPU twice"))
    for slot in instance.gpus:
        limit = hosts[slot.node].num_gpus
        if limit and slot.index >= limit:
            problems.append(
                Problem(f"{name} is planned on GPU {slot.index} of {shorten(slot.node)}, which has {limit}")
            )
    parts = gpus_by_host(instance)
    if len({node for node, _ in parts}) != len(parts):
        problems.append(Problem(f"{name} returns to a node after leaving it; ranks of a node must be consecutive"))
    if len({len(indices) for _, indices in parts}) > 1:
        problems.append(Problem(f"{name} takes unequal numbers of GPUs from its nodes; engines need equal ones"))
    for node, _ in parts:
        types = {pool.gpu_at(at) for at, slot in enumerate(instance.gpus) if slot.node == node}
        if len(types) > 1:
            problems.append(Problem(f"{name} has GPUs of {' and '.join(sorted(types))} on {shorten(node)}"))
    return problems


def _duplicates(names: Sequence[str]) -> list[Problem]:
    repeated = sorted(name for name, count in Counter(names).items() if count > 1)
    return [Problem(f"two instances are named {shorten(name)!r}") for name in repeated]
