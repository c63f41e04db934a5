"""Kubernetes: a StatefulSet per pool and node, a headless Service before each, a router, policies, one Kustomize base.

Why StatefulSets: the router lists its workers by URL, so that every pod needs a stable name. An instance over several
nodes is one StatefulSet per rank, each pinned to its node. The device plugin chooses the GPUs of a pod; the planned
indices stand in an annotation.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from splitplan.catalogs.errors import Problem, UsageError, shorten
from splitplan.launcher.cluster import Cluster, HostPlace, Member, RouterPlace
from splitplan.launcher.engines.base import EngineAdapter
from splitplan.launcher.naming import dns_label, unique_labels
from splitplan.launcher.targets.gangs import pod_group, with_gang
from splitplan.launcher.targets.pods import (
    POD_PORTS,
    ROUTER_METRICS_PORT,
    ROUTER_PORT,
    KubernetesOptions,
    Manifest,
    check_engine,
    check_image,
    common_labels,
    dump,
    kustomization,
    literal,
    metadata,
    pod_security,
    pod_selector,
    pod_spec,
)

MAX_SET_NAME_LENGTH = 52
"""A StatefulSet's name plus "-" and a revision hash of 10 characters must fit into a label of 63."""


@dataclass(frozen=True, slots=True)
class Group:
    """Members that one StatefulSet holds: instances of one pool on one node, or one rank of one instance."""

    name: str
    members: tuple[Member, ...]

    @property
    def first(self) -> Member:
        """The member that stands for all: they differ in nothing but their GPUs."""
        return self.members[0]


def render(cluster: Cluster, engine: EngineAdapter, options: KubernetesOptions | None = None) -> dict[str, str]:
    """YAML files by role, and a kustomization.yaml over them. The engine must listen on all addresses of its pod."""
    options = options or KubernetesOptions()
    check_engine(engine, "a StatefulSet")
    check_image(engine.router_image)
    cluster, groups = in_pods(cluster)
    files: dict[str, str] = {}
    everything: list[Manifest] = []
    for role in ("prefill", "decode", "colocated"):
        chosen = [group for group in groups if group.first.pool.role == role]
        if chosen:
            objects = [each for group in chosen for each in _group_objects(cluster, engine, group, options)]
            objects = with_gang(objects, cluster.name, options)
            files[f"{role}.yaml"] = dump([*objects, disruption_budget(cluster, role, options)])
            everything += objects
    gang = pod_group(everything, cluster.name, options)
    if gang:
        files["gang.yaml"] = dump(gang)
    routers = [each for place in cluster.routers for each in router_objects(cluster, engine, place, options)]
    files["router.yaml"] = dump([*routers, *gateway_routes(cluster, options)])
    files["network.yaml"] = dump([network_policy(cluster, options)])
    files["kustomization.yaml"] = dump([kustomization(list(files), options)])
    return files


def in_pods(cluster: Cluster) -> tuple[Cluster, list[Group]]:
    """The cluster with pod addresses and pod ports, and its members in groups."""
    keyed: dict[tuple[str, str, str, int], list[Member]] = {}
    for member in cluster.members:
        alone = member.instance.name if member.num_ranks > 1 else ""
        keyed.setdefault((member.pool.name, member.host.name, alone, member.rank), []).append(member)
    room = MAX_SET_NAME_LENGTH - len(cluster.name) - 1
    labels = unique_labels((_group_title(key) for key in keyed), max_length=room)
    groups, placed = [], []
    for key, members in keyed.items():
        name = f"{cluster.name}-{labels[_group_title(key)]}"
        addressed = tuple(_in_pod(member, name, number) for number, member in enumerate(members))
        groups.append(Group(name, addressed))
        placed += list(addressed)
    leaders = {member.instance.name: member.host.address for member in placed if member.rank == 0}
    fixed = {id(member): replace(member, leader_address=leaders[member.instance.name]) for member in placed}
    groups = [Group(group.name, tuple(fixed[id(member)] for member in group.members)) for group in groups]
    ordered = {(member.instance.name, member.rank): member for group in groups for member in group.members}
    in_order = tuple(ordered[member.instance.name, member.rank] for member in cluster.members)
    return with_pod_routers(replace(cluster, members=in_order)), groups


def _group_title(key: tuple[str, str, str, int]) -> str:
    pool, host, instance, rank = key
    return f"{instance}-rank{rank}" if instance else f"{pool}-{host}"


def _in_pod(member: Member, name: str, number: int) -> Member:
    host = replace(member.host, address=f"{name}-{number}.{name}")
    return replace(member, host=host, ports=POD_PORTS)


def with_pod_routers(cluster: Cluster) -> Cluster:
    """Routers at the names and ports of their Services."""

    def place(title: str) -> RouterPlace:
        return RouterPlace(HostPlace(title, "", title), ROUTER_PORT, ROUTER_METRICS_PORT)

    second = place(f"{cluster.name}-router-colocated") if cluster.colocated_router else None
    first = replace(place(f"{cluster.name}-router"), prompts=cluster.router.prompts)
    longer = tuple(
        replace(place(f"{cluster.name}-router-{number}"), prompts=router.prompts)
        for number, router in enumerate(cluster.length_routers, 1)
    )
    return replace(cluster, router=first, colocated_router=second, length_routers=longer)


def _group_objects(cluster: Cluster, engine: EngineAdapter, group: Group, options: KubernetesOptions) -> list[Manifest]:
    member = group.first
    labels = common_labels(cluster, member.pool.role, group.name)
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata(group.name, labels, options),
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,  # ranks find each other before they are ready
            "selector": pod_selector(cluster, group.name),
            "ports": [{"name": "http", "port": POD_PORTS.http, "targetPort": "http"}],
        },
    }
    pod = {
        "metadata": {"labels": labels, "annotations": _annotations(cluster, group)},
        "spec": pod_spec(cluster, engine, member, options),
    }
    stateful_set = {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": metadata(group.name, labels, options),
        "spec": {
            "replicas": len(group.members),
            "serviceName": group.name,
            "podManagementPolicy": "Parallel",
            "selector": {"matchLabels": pod_selector(cluster, group.name)},
            "template": pod,
        },
    }
    return [service, stateful_set]


def router_objects(
    cluster: Cluster, engine: EngineAdapter, place: RouterPlace, options: KubernetesOptions
) -> list[Manifest]:
    """A router: its Service and its Deployment."""
    name = place.host.name
    labels = common_labels(cluster, "router", name)
    command = engine.router(cluster, place)
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata(name, labels, options),
        "spec": {
            "type": "ClusterIP",
            "selector": pod_selector(cluster, name),
            "ports": [{"name": "http", "port": ROUTER_PORT, "targetPort": "http"}],
        },
    }
    container = {
        "name": "router",
        "image": engine.router_image,
        "command": [literal(word) for word in command.argv],
        "env": [{"name": key, "value": literal(value)} for key, value in command.env.items()],
        "ports": [
            {"name": "http", "containerPort": ROUTER_PORT},
            {"name": "metrics", "containerPort": ROUTER_METRICS_PORT},
        ],
        "resources": {"requests": {"cpu": "2", "memory": "2Gi"}, "limits": {"memory": "8Gi"}},
        "readinessProbe": {"httpGet": {"path": "/health", "port": "http"}, "periodSeconds": 5},
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }
    deployment = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": metadata(name, labels, options),
        "spec": {
            "replicas": 1,  # routing state is in memory: two routers would each see half the load
            "selector": {"matchLabels": pod_selector(cluster, name)},
            "template": {
                "metadata": {"labels": labels},
                "spec": {
                    "automountServiceAccountToken": False,
                    "securityContext": pod_security(replace(options, run_as_root=False)),
                    "containers": [container],
                },
            },
        },
    }
    return [service, deployment]


def gateway_routes(cluster: Cluster, options: KubernetesOptions) -> list[Manifest]:
    """An HTTPRoute (Gateway API v1) from the gateway asked for; between two kinds of router it splits as planned.

    Weights are per mille. Where each range of prompt lengths has a front door there is none: a route counts no tokens.
    """
    if not options.gateway:
        return []
    *space, name = options.gateway.split("/")
    if len(space) > 1 or any(dns_label(part) != part for part in (*space, name)):
        raise UsageError(Problem(f"{shorten(options.gateway)!r} names no gateway", expected="NAME or NAMESPACE/NAME"))
    if cluster.length_routers:
        raise UsageError(Problem("a route cannot tell prompt lengths apart", next_step="leave --gateway out"))
    shares = {cluster.router.host.name: 1.0 - cluster.colocated_share if cluster.colocated_router else 1.0}
    if cluster.colocated_router:
        shares[cluster.colocated_router.host.name] = cluster.colocated_share
    backends = [
        {"name": router, "port": ROUTER_PORT, "weight": round(1000 * share)} for router, share in shares.items()
    ]
    parent = {"name": name, **({"namespace": space[0]} if space else {})}
    return [
        {
            "apiVersion": "gateway.networking.k8s.io/v1",
            "kind": "HTTPRoute",
            "metadata": metadata(cluster.name, common_labels(cluster, "route", cluster.name), options),
            "spec": {
                "parentRefs": [parent],
                # an answer may stream for minutes
                "rules": [{"backendRefs": backends, "timeouts": {"request": "0s"}}],
            },
        }
    ]


def disruption_budget(cluster: Cluster, role: str, options: KubernetesOptions) -> Manifest:
    """One instance of a role may be disrupted at a time."""
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": metadata(f"{cluster.name}-{role}", common_labels(cluster, role, f"{cluster.name}-{role}"), options),
        "spec": {
            "maxUnavailable": 1,
            "selector": {"matchLabels": {"app.kubernetes.io/instance": cluster.name, "splitplan.io/role": role}},
        },
    }


def network_policy(cluster: Cluster, options: KubernetesOptions) -> Manifest:
    """Engines and their side channels are reachable from this namespace only."""
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": metadata(f"{cluster.name}-engines", common_labels(cluster, "policy", cluster.name), options),
        "spec": {
            "podSelector": {
                "matchLabels": {"app.kubernetes.io/instance": cluster.name},
                "matchExpressions": [{"key": "splitplan.io/role", "operator": "NotIn", "values": ["router"]}],
            },
            "policyTypes": ["Ingress"],
            "ingress": [{"from": [{"podSelector": {}}]}],
        },
    }


def _annotations(cluster: Cluster, group: Group) -> dict[str, str]:
    indices = {member.name: list(member.gpu_indices) for member in group.members}
    return {"splitplan.io/plan-hash": cluster.plan_hash, "splitplan.io/planned-gpus": str(indices)}
