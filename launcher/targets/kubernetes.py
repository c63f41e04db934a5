"""Kubernetes: a StatefulSet per pool and node, a headless Service before each, a router, policies, one Kustomize base.

Why StatefulSets: the router lists its workers by URL, so that every pod needs a stable name. An instance over several
nodes is one StatefulSet per rank, each pinned to its node. The device plugin chooses the GPUs of a pod; the planned
indices stand in an annotation.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import yaml

from splitplan.catalogs.errors import InputError, LaunchError, Problem, UnknownNameError, shorten
from splitplan.catalogs.gpus import find_gpu
from splitplan.launcher.cluster import Cluster, HostPlace, Member, Ports, RouterPlace
from splitplan.launcher.engines.base import Command, EngineAdapter
from splitplan.launcher.naming import dns_label, label_value, unique_labels

PRODUCT_LABEL = "nvidia.com/gpu.product"
HOSTNAME_LABEL = "kubernetes.io/hostname"
POD_PORTS = Ports(http=8000, side_channel=5600, bootstrap=8998, master=29500)
ROUTER_PORT, ROUTER_METRICS_PORT = 8000, 29000
SHM_GIB_PER_GPU, MEMORY_GIB_PER_GPU, CPUS_PER_GPU = 8, 24, 2
ENGINE_UID, ENGINE_GID = 2000, 0
"""vLLM's image has a user of this id whose home is writable by group 0 (its Dockerfile, since April 2026)."""

MAX_SET_NAME_LENGTH = 52
"""A StatefulSet's name plus "-" and a revision hash of 10 characters must fit into a label of 63."""

Manifest = dict[str, Any]


@dataclass(frozen=True, slots=True)
class KubernetesOptions:
    """What the cluster, not the plan, decides."""

    namespace: str = ""
    rdma_resource: str = "rdma/ib"  # "" to ask for none
    hf_token_secret: str = "hf-token"  # name of a Secret with key `token`; "" for none
    model_claim: str = ""  # PersistentVolumeClaim that holds the weights, mounted read-only at /models
    rack_label: str = "topology.kubernetes.io/rack"
    run_as_root: bool = False


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
    _check_image(engine.image)
    _check_image(engine.router_image)
    cluster, groups = in_pods(cluster)
    files: dict[str, str] = {}
    for role in ("prefill", "decode", "colocated"):
        chosen = [group for group in groups if group.first.pool.role == role]
        if chosen:
            objects = [each for group in chosen for each in _group_objects(cluster, engine, group, options)]
            files[f"{role}.yaml"] = dump([*objects, _disruption_budget(cluster, role, options)])
    routers = [each for place in cluster.routers for each in _router_objects(cluster, engine, place, options)]
    files["router.yaml"] = dump(routers)
    files["network.yaml"] = dump([_network_policy(cluster, options)])
    files["kustomization.yaml"] = dump([_kustomization(list(files), options)])
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
    return _with_pod_routers(replace(cluster, members=in_order)), groups


def dump(objects: Sequence[Manifest]) -> str:
    """YAML documents in a stable order; strings are quoted by the YAML writer."""
    return yaml.safe_dump_all(objects, sort_keys=False, width=120, allow_unicode=True)


def _group_title(key: tuple[str, str, str, int]) -> str:
    pool, host, instance, rank = key
    return f"{instance}-rank{rank}" if instance else f"{pool}-{host}"


def _in_pod(member: Member, name: str, number: int) -> Member:
    host = replace(member.host, address=f"{name}-{number}.{name}")
    return replace(member, host=host, ports=POD_PORTS)


def _with_pod_routers(cluster: Cluster) -> Cluster:
    def place(title: str) -> RouterPlace:
        return RouterPlace(HostPlace(title, "", title), ROUTER_PORT, ROUTER_METRICS_PORT)

    second = place(f"{cluster.name}-router-colocated") if cluster.colocated_router else None
    return replace(cluster, router=place(f"{cluster.name}-router"), colocated_router=second)


def _group_objects(cluster: Cluster, engine: EngineAdapter, group: Group, options: KubernetesOptions) -> list[Manifest]:
    member = group.first
    labels = _labels(cluster, member.pool.role, group.name)
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _metadata(group.name, labels, options),
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,  # ranks find each other before they are ready
            "selector": _selector(cluster, group.name),
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
        "metadata": _metadata(group.name, labels, options),
        "spec": {
            "replicas": len(group.members),
            "serviceName": group.name,
            "podManagementPolicy": "Parallel",
            "selector": {"matchLabels": _selector(cluster, group.name)},
            "template": pod,
        },
    }
    return [service, stateful_set]


def pod_spec(cluster: Cluster, engine: EngineAdapter, member: Member, options: KubernetesOptions) -> Manifest:
    """The pod of one member: where it may run, what it takes, when it counts as ready."""
    volumes: list[Manifest] = [
        {
            "name": "shm",
            "emptyDir": {"medium": "Memory", "sizeLimit": f"{SHM_GIB_PER_GPU * len(member.gpu_indices)}Gi"},
        },
        {"name": "home", "emptyDir": {}},
    ]
    if options.model_claim:
        volumes.append(
            {"name": "models", "persistentVolumeClaim": {"claimName": options.model_claim, "readOnly": True}}
        )
    return {
        "nodeSelector": node_selector(member),
        "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}],
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,  # VLLM_… variables of Services would be read as settings
        "terminationGracePeriodSeconds": 120,
        "securityContext": _pod_security(options),
        "containers": [engine_container(engine, cluster, member, options)],
        "volumes": volumes,
    }


def engine_container(engine: EngineAdapter, cluster: Cluster, member: Member, options: KubernetesOptions) -> Manifest:
    """The container that runs one member."""
    command = engine.member(cluster, member)
    if command is None:
        raise LaunchError(Problem(f"{engine.name} has no command for {shorten(member.name)}"))
    container: Manifest = {
        "name": "engine",
        "image": engine.image,
        "command": [literal(word) for word in command.argv],
        "env": _container_env(command, options),
        "ports": _container_ports(member),
        "resources": _resources(member, options),
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"], "add": ["IPC_LOCK"]},  # RDMA registers (locks) memory
        },
        "volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}, {"name": "home", "mountPath": "/home/engine"}],
    }
    if options.model_claim:
        container["volumeMounts"].append({"name": "models", "mountPath": "/models", "readOnly": True})
    if member.rank == 0:
        container |= _probes(engine)
    return container


def literal(text: str) -> str:
    """`text` as Kubernetes must be told it: `$(NAME)` in a command or a value would be replaced by a variable."""
    return text.replace("$", "$$")


def node_selector(member: Member) -> dict[str, str]:
    """The GPU product and the planned node."""
    selector = {HOSTNAME_LABEL: member.host.labels.get(HOSTNAME_LABEL) or member.host.name}
    product = member.host.labels.get(PRODUCT_LABEL) or product_label(member.pool.gpu)
    if product:
        selector = {PRODUCT_LABEL: product, **selector}
    return selector


def product_label(gpu: str) -> str:
    """The nvidia.com/gpu.product value of a GPU type, "" when the catalog has none."""
    try:
        labels = find_gpu(gpu).product_labels
    except (UnknownNameError, InputError):
        return ""
    return labels[0] if labels else ""


def _container_env(command: Command, options: KubernetesOptions) -> list[Manifest]:
    env: list[Manifest] = [{"name": "HOME", "value": "/home/engine"}]
    pod_address = {"fieldRef": {"fieldPath": "status.podIP"}}
    for name, value in command.env.items():
        own_address = name in ("VLLM_NIXL_SIDE_CHANNEL_HOST", "VLLM_HOST_IP")
        env.append({"name": name, "valueFrom": pod_address} if own_address else {"name": name, "value": literal(value)})
    if options.hf_token_secret:
        reference = {"name": options.hf_token_secret, "key": "token", "optional": True}
        env.append({"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": reference}})
    return env


def _container_ports(member: Member) -> list[Manifest]:
    ports = [{"name": "http", "containerPort": member.ports.http}]
    if member.pool.role != "colocated":
        ports.append({"name": "kv", "containerPort": member.ports.side_channel})
    if member.num_ranks > 1:
        ports.append({"name": "master", "containerPort": member.ports.master})
    return ports


def _resources(member: Member, options: KubernetesOptions) -> Manifest:
    gpus = len(member.gpu_indices)
    devices = {gpu_resource(member.pool.gpu): str(gpus)}
    if options.rdma_resource and member.pool.role != "colocated":
        devices[options.rdma_resource] = "1"
    requests = {"cpu": str(CPUS_PER_GPU * gpus), "memory": f"{MEMORY_GIB_PER_GPU * gpus}Gi", **devices}
    return {"requests": requests, "limits": devices}


def gpu_resource(gpu: str) -> str:
    """The extended resource of a GPU's vendor."""
    return "amd.com/gpu" if gpu.startswith("mi") else "nvidia.com/gpu"


def _probes(engine: EngineAdapter) -> Manifest:
    """Ready means the model is listed; restarts only after minutes of silence, loading a model takes long."""
    models = {"httpGet": {"path": engine.ready_path, "port": "http"}}
    health = {"httpGet": {"path": "/health", "port": "http"}}
    return {
        "startupProbe": {**models, "periodSeconds": 10, "failureThreshold": 360},
        "readinessProbe": {**models, "periodSeconds": 5, "failureThreshold": 3, "timeoutSeconds": 5},
        "livenessProbe": {**health, "periodSeconds": 20, "failureThreshold": 9, "timeoutSeconds": 10},
    }


def _pod_security(options: KubernetesOptions) -> Manifest:
    context: Manifest = {"seccompProfile": {"type": "RuntimeDefault"}}
    if not options.run_as_root:
        context |= {"runAsNonRoot": True, "runAsUser": ENGINE_UID, "runAsGroup": ENGINE_GID}
    return context


def _router_objects(
    cluster: Cluster, engine: EngineAdapter, place: RouterPlace, options: KubernetesOptions
) -> list[Manifest]:
    name = place.host.name
    labels = _labels(cluster, "router", name)
    command = engine.router(cluster, place)
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _metadata(name, labels, options),
        "spec": {
            "type": "ClusterIP",
            "selector": _selector(cluster, name),
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
        "metadata": _metadata(name, labels, options),
        "spec": {
            "replicas": 1,  # routing state is in memory: two routers would each see half the load
            "selector": {"matchLabels": _selector(cluster, name)},
            "template": {
                "metadata": {"labels": labels},
                "spec": {
                    "automountServiceAccountToken": False,
                    "securityContext": _pod_security(replace(options, run_as_root=False)),
                    "containers": [container],
                },
            },
        },
    }
    return [service, deployment]


def _disruption_budget(cluster: Cluster, role: str, options: KubernetesOptions) -> Manifest:
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": _metadata(f"{cluster.name}-{role}", _labels(cluster, role, f"{cluster.name}-{role}"), options),
        "spec": {
            "maxUnavailable": 1,
            "selector": {"matchLabels": {"app.kubernetes.io/instance": cluster.name, "splitplan.io/role": role}},
        },
    }


def _network_policy(cluster: Cluster, options: KubernetesOptions) -> Manifest:
    """Engines and their side channels are reachable from this namespace only."""
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": _metadata(f"{cluster.name}-engines", _labels(cluster, "policy", cluster.name), options),
        "spec": {
            "podSelector": {
                "matchLabels": {"app.kubernetes.io/instance": cluster.name},
                "matchExpressions": [{"key": "splitplan.io/role", "operator": "NotIn", "values": ["router"]}],
            },
            "policyTypes": ["Ingress"],
            "ingress": [{"from": [{"podSelector": {}}]}],
        },
    }


def _kustomization(resources: Sequence[str], options: KubernetesOptions) -> Manifest:
    base: Manifest = {"apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization"}
    if options.namespace:
        base["namespace"] = options.namespace
    return {**base, "resources": list(resources)}


def _labels(cluster: Cluster, role: str, component: str) -> dict[str, str]:
    return {
        "app.kubernetes.io/name": "splitplan",
        "app.kubernetes.io/instance": cluster.name,
        "app.kubernetes.io/component": component,
        "app.kubernetes.io/managed-by": "splitplan",
        "splitplan.io/role": role,
        "splitplan.io/model": label_value(cluster.served_name),
    }


def _selector(cluster: Cluster, component: str) -> dict[str, str]:
    return {"app.kubernetes.io/instance": cluster.name, "app.kubernetes.io/component": component}


def _annotations(cluster: Cluster, group: Group) -> dict[str, str]:
    indices = {member.name: list(member.gpu_indices) for member in group.members}
    return {"splitplan.io/plan-hash": cluster.plan_hash, "splitplan.io/planned-gpus": str(indices)}


def _metadata(name: str, labels: Mapping[str, str], options: KubernetesOptions) -> Manifest:
    metadata: Manifest = {"name": name}
    if options.namespace:
        metadata["namespace"] = dns_label(options.namespace)
    return {**metadata, "labels": dict(labels)}


def _check_image(image: str) -> None:
    """LaunchError unless an image is pinned by a digest or by a tag other than latest."""
    digest = re.search(r"@sha256:[0-9a-f]{64}$", image)
    tag = re.search(r":([\w][\w.-]{0,127})$", image)
    if not re.fullmatch(r"[\w.\-/:@]+", image) or not (digest or (tag and tag.group(1) != "latest")):
        raise LaunchError(
            Problem(
                f"image {shorten(image)!r} is not pinned",
                expected="a tag other than latest, or a digest",
                next_step="--image REGISTRY/NAME:TAG or --image REGISTRY/NAME@sha256:…",
            )
        )
