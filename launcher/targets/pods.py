"""What every Kubernetes form is made of: the pod of one engine process, and the metadata around it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from splitplan.catalogs.errors import InputError, LaunchError, Problem, UnknownNameError, shorten
from splitplan.catalogs.gpus import find_gpu
from splitplan.launcher.cluster import Cluster, Member, Ports, per_gpu
from splitplan.launcher.engines.base import Command, EngineAdapter
from splitplan.launcher.naming import dns_label, label_value

PRODUCT_LABEL = "nvidia.com/gpu.product"
HOSTNAME_LABEL = "kubernetes.io/hostname"
POD_PORTS = Ports(http=8000, side_channel=5600, bootstrap=8998, master=29500)
ROUTER_PORT, ROUTER_METRICS_PORT = 8000, 29000
SHM_GIB_PER_GPU, MEMORY_GIB_PER_GPU, CPUS_PER_GPU = 8, 24, 2
ENGINE_UID, ENGINE_GID = 2000, 0
"""vLLM's image has a user of this id whose home is writable by group 0 (its Dockerfile, since April 2026)."""

Manifest = dict[str, Any]


@dataclass(frozen=True, slots=True)
class KubernetesOptions:
    """What the cluster, not the plan, decides."""

    namespace: str = ""
    context: str = ""  # of the kubeconfig; "" for its current one
    rdma_resource: str = "rdma/ib"  # "" to ask for none
    hf_token_secret: str = "hf-token"  # name of a Secret with key `token`; "" for none
    model_claim: str = ""  # PersistentVolumeClaim that holds the weights, mounted read-only at /models
    rack_label: str = "topology.kubernetes.io/rack"
    run_as_root: bool = False
    gateway: str = ""  # name of a Gateway (or NAMESPACE/NAME) that a route leads from to the routers; "" for no route
    gang: str = ""  # "volcano" or "kueue:QUEUE"


def dump(objects: Sequence[Manifest]) -> str:
    """YAML documents in a stable order; strings are quoted by the YAML writer."""
    return yaml.dump_all(objects, Dumper=_PlainDumper, sort_keys=False, width=120, allow_unicode=True)


class _PlainDumper(yaml.SafeDumper):
    """Writes equal parts out again instead of as anchors and aliases."""

    def ignore_aliases(self, data: Any) -> bool:
        """Never."""
        return True


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
        "securityContext": pod_security(options),
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
        "resources": device_resources(member, options),
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"], "add": ["IPC_LOCK"]},  # RDMA registers (locks) memory
        },
        "volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}, {"name": "home", "mountPath": "/home/engine"}],
    }
    if options.model_claim:
        container["volumeMounts"].append({"name": "models", "mountPath": "/models", "readOnly": True})
    if member.rank == 0:
        container |= probes(engine)
    return container


def literal(text: str) -> str:
    """`text` as Kubernetes must be told it: `$(NAME)` in a command or a value would be replaced by a variable."""
    return text.replace("$", "$$")


def node_selector(member: Member) -> dict[str, str]:
    """The GPU product and the planned node."""
    selector = {HOSTNAME_LABEL: member.host.labels.get(HOSTNAME_LABEL) or member.host.name}
    product = member.host.labels.get(PRODUCT_LABEL) or product_label(member.gpu)
    if product:
        selector = {PRODUCT_LABEL: product, **selector}
    return selector


def pool_placement(members: Sequence[Member]) -> Manifest:
    """Where any pod of a pool may run: the GPU product, and the nodes planned for the pool's instances."""
    selectors = [node_selector(member) for member in members]
    own = {selector[HOSTNAME_LABEL] for selector in selectors}
    others = {slot.node for member in members if member.num_ranks > 1 for slot in member.instance.gpus}
    nodes = sorted(own | others)
    term = {"matchExpressions": [{"key": HOSTNAME_LABEL, "operator": "In", "values": nodes}]}
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}}
    selector = {key: value for key, value in selectors[0].items() if key != HOSTNAME_LABEL}
    return {"nodeSelector": selector, "affinity": affinity}


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


def device_resources(member: Member, options: KubernetesOptions) -> Manifest:
    """GPUs and, for a side of a pair, an RDMA device; CPU and memory as requests."""
    gpus = len(member.gpu_indices)
    devices = {gpu_resource(member.gpu): str(gpus)}
    rdma = member.host.labels.get("rdma_resource") or per_gpu(options.rdma_resource, member.gpu)
    if rdma and member.pool.role != "colocated":
        devices[rdma] = "1"
    requests = {"cpu": str(CPUS_PER_GPU * gpus), "memory": f"{MEMORY_GIB_PER_GPU * gpus}Gi", **devices}
    return {"requests": requests, "limits": devices}


def gpu_resource(gpu: str) -> str:
    """The extended resource of a GPU's vendor."""
    return "amd.com/gpu" if gpu.startswith("mi") else "nvidia.com/gpu"


def probes(engine: EngineAdapter) -> Manifest:
    """Ready means the model is listed; restarts only after minutes of silence, loading a model takes long."""
    models = {"httpGet": {"path": engine.ready_path, "port": "http"}}
    health = {"httpGet": {"path": "/health", "port": "http"}}
    return {
        "startupProbe": {**models, "periodSeconds": 10, "failureThreshold": 360},
        "readinessProbe": {**models, "periodSeconds": 5, "failureThreshold": 3, "timeoutSeconds": 5},
        "livenessProbe": {**health, "periodSeconds": 20, "failureThreshold": 9, "timeoutSeconds": 10},
    }


def pod_security(options: KubernetesOptions) -> Manifest:
    """No root, no added privileges, the default system call filter."""
    context: Manifest = {"seccompProfile": {"type": "RuntimeDefault"}}
    if not options.run_as_root:
        context |= {"runAsNonRoot": True, "runAsUser": ENGINE_UID, "runAsGroup": ENGINE_GID}
    return context


def common_labels(cluster: Cluster, role: str, component: str) -> dict[str, str]:
    """Labels of every object and pod."""
    return {
        "app.kubernetes.io/name": "splitplan",
        "app.kubernetes.io/instance": cluster.name,
        "app.kubernetes.io/component": component,
        "app.kubernetes.io/managed-by": "splitplan",
        "splitplan.io/role": role,
        "splitplan.io/model": label_value(cluster.served_name),
    }


def pod_selector(cluster: Cluster, component: str) -> dict[str, str]:
    """What picks the pods of one component."""
    return {"app.kubernetes.io/instance": cluster.name, "app.kubernetes.io/component": component}


def metadata(name: str, labels: Mapping[str, str], options: KubernetesOptions) -> Manifest:
    """Name, namespace where one is given, labels."""
    metadata: Manifest = {"name": name}
    if options.namespace:
        metadata["namespace"] = dns_label(options.namespace)
    return {**metadata, "labels": dict(labels)}


def kustomization(resources: Sequence[str], options: KubernetesOptions) -> Manifest:
    """The Kustomize base over the other files."""
    base: Manifest = {"apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization"}
    if options.namespace:
        base["namespace"] = options.namespace
    return {**base, "resources": list(resources)}


def check_engine(engine: EngineAdapter, form: str) -> None:
    """LaunchError for engines that plain pods cannot run: Dynamo's workers find each other through its operator."""
    if engine.name.startswith("dynamo"):
        raise LaunchError(
            Problem(
                f"{form} gives Dynamo's workers nothing to find each other by",
                next_step="planner launch PLAN --dry-run --target dynamo",
            )
        )
    if not engine.image:
        raise LaunchError(Problem(f"{engine.name} has no container image", next_step="--target local runs it here"))
    check_image(engine.image)


def check_image(image: str) -> None:
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
