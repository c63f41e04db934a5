"""`kubectl get nodes -o json` → hosts. With dynamic resource allocation, `kubectl get resourceslices -o json` beside
it.

Racks come from node labels. Every scheme is an ordered list of label keys, widest first; the last is the rack. A
rack's label need be unique only within the labels before it. The first scheme whose last label any GPU node carries is
used.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from splitplan.catalogs.errors import DocumentError, Problem, shorten
from splitplan.planner.spec.readers.hosts import Host, Notes, as_list, as_mapping, read_json

ZONE = "topology.kubernetes.io/zone"
TOPOLOGY_SCHEMES: tuple[tuple[str, ...], ...] = (
    (ZONE, "cloud.provider.com/topology-block", "cloud.provider.com/topology-rack"),
    ("fabric.topograph.run/tier-2", "fabric.topograph.run/tier-1", "fabric.topograph.run/tier-0"),
    ("network.topology.nvidia.com/core", "network.topology.nvidia.com/spine", "network.topology.nvidia.com/leaf"),
    tuple(f"topology.k8s.aws/network-node-layer-{layer}" for layer in (1, 2, 3)),
    (ZONE, "cloud.google.com/gce-topology-block", "cloud.google.com/gce-topology-subblock"),
    (ZONE, "cloud.google.com/gce-topology-block"),
    (ZONE, "kubernetes.azure.com/ppg"),
    (ZONE, "topology.kubernetes.io/rack"),
)
CLIQUE = "nvidia.com/gpu.clique"
ACCELERATOR_DOMAINS = (CLIQUE, "accelerator.topograph.run/domain", "network.topology.nvidia.com/accelerator")
PRODUCT_LABELS = ("nvidia.com/gpu.product", "amd.com/gpu.product-name", "beta.amd.com/gpu.product-name")
GPU_RESOURCES = ("nvidia.com/gpu", "amd.com/gpu")
EFA_RESOURCE = "vpc.amazonaws.com/efa"
EFA_BY_FAMILY = {"p4d": "efa-100", "p4de": "efa-100", "p5": "efa-100", "p5e": "efa-100", "p5en": "efa-200"}
EFA_BY_FAMILY |= {
    "p6-b200": "efa-400",
    "p6-b300": "efa-400",
    "p6e-gb200": "efa-400",
    "g6e": "efa-100",
    "g7e": "efa-400",
}
WHAT = "the output of `kubectl get nodes -o json`"


def read_kubectl(paths: Sequence[Path], topology_labels: Sequence[str] = ()) -> tuple[list[Host], Notes]:
    """(hosts, notes) of node lists and resource slices.

    `topology_labels` are label keys, widest first, instead of the known schemes. Raises DocumentError.
    """
    nodes: list[tuple[Path, Mapping[str, Any]]] = []
    slices: list[Mapping[str, Any]] = []
    for path in paths:
        for item in _items(path):
            if item.get("kind") == "ResourceSlice":
                slices.append(item)
            elif item.get("kind", "Node") == "Node":
                nodes.append((path, item))
    devices = _slice_devices(slices)
    notes = Notes()
    hosts = [host for path, node in nodes if (host := _host(path, node, devices, notes)) is not None]
    if not hosts:
        raise DocumentError(_no_gpus(paths, nodes))
    scheme = _scheme(hosts, topology_labels)
    if topology_labels and not any(dict(host.labels).get(scheme[-1]) for host in hosts):
        hint = "known labels: " + ", ".join(keys[-1] for keys in TOPOLOGY_SCHEMES)
        raise DocumentError(
            Problem(f"no GPU node carries the label '{shorten(scheme[-1])}'", str(paths[0]), next_step=hint)
        )
    if scheme:
        notes.add(f"racks are the values of {scheme[-1]}")
    notes.add("which GPUs running pods hold is not in node objects: all allocatable ones count as free")
    return [_placed(host, scheme) for host in hosts], notes


def _items(path: Path) -> list[Mapping[str, Any]]:
    data = read_json(path, WHAT)
    items = as_list(as_mapping(data).get("items")) if "items" in as_mapping(data) else [data]
    found = [as_mapping(item) for item in items]
    if not found or not all("metadata" in item for item in found):
        raise DocumentError(Problem("holds no Kubernetes objects", str(path), expected=WHAT))
    return found


def _host(path: Path, node: Mapping[str, Any], devices: Mapping[str, Sequence[str]], notes: Notes) -> Host | None:
    metadata, status = as_mapping(node.get("metadata")), as_mapping(node.get("status"))
    name, labels = str(metadata.get("name", "")), _text_labels(metadata.get("labels"))
    capacity = as_mapping(status.get("capacity"))
    allocatable = as_mapping(status.get("allocatable")) or capacity
    products = devices.get(name, ())
    num_gpus = sum(_count(allocatable.get(resource)) for resource in GPU_RESOURCES) or len(products)
    product = next((labels[key] for key in PRODUCT_LABELS if labels.get(key)), "") or next(iter(products), "")
    if not num_gpus and product:
        num_gpus = _count(labels.get("nvidia.com/gpu.count"))
        if num_gpus:
            notes.add("no GPU resource advertised, the count is that of a label (DRA?)", name)
    if not num_gpus:
        return None
    unfit = _unfit(node, status)
    if unfit:
        notes.add(f"left out, {unfit}", name)
        return None
    if len(set(products)) > 1:
        notes.add(f"several GPU types, taken as {product}", name)
    efa = _count(allocatable.get(EFA_RESOURCE))
    family = labels.get("node.kubernetes.io/instance-type", "").partition(".")[0]
    return Host(
        name=name,
        gpu=product,
        num_gpus=num_gpus,
        nic=EFA_BY_FAMILY.get(family, "efa-100") if efa else "",
        num_nics=min(efa, 64),
        host_memory_bytes=_quantity_bytes(capacity.get("memory")),
        labels=tuple(labels.items()),
        where=str(path),
    )


def _unfit(node: Mapping[str, Any], status: Mapping[str, Any]) -> str:
    """Why nothing can be scheduled on a node, or ""."""
    if as_mapping(node.get("spec")).get("unschedulable"):
        return "it is cordoned"
    for condition in map(as_mapping, as_list(status.get("conditions"))):
        if condition.get("type") == "Ready" and condition.get("status") != "True":
            return "it is not ready"
    return ""


def _text_labels(labels: Any) -> dict[str, str]:
    return {key: value for key, value in as_mapping(labels).items() if isinstance(value, str)}


def _placed(host: Host, scheme: Sequence[str]) -> Host:
    """The host with its place read from its labels; only the label that selects the GPU product is kept."""
    labels = dict(host.labels)
    domain = next((labels[key] for key in ACCELERATOR_DOMAINS if labels.get(key)), "")
    levels = tuple(labels[key] for key in scheme if labels.get(key)) if scheme and labels.get(scheme[-1]) else ()
    if not scheme and domain:
        levels = (domain,)
    kept = tuple((key, labels[key]) for key in PRODUCT_LABELS if key in labels)
    return Host(
        name=host.name,
        gpu=host.gpu,
        num_gpus=host.num_gpus,
        levels=levels,
        nvlink_domain=domain,
        nic=host.nic,
        num_nics=host.num_nics,
        host_memory_bytes=host.host_memory_bytes,
        labels=kept,
        where=host.where,
    )


def _scheme(hosts: Iterable[Host], topology_labels: Sequence[str]) -> tuple[str, ...]:
    if topology_labels:
        return tuple(topology_labels)
    carried = Counter(key for host in hosts for key, value in host.labels if value)
    return next((scheme for scheme in TOPOLOGY_SCHEMES if carried[scheme[-1]]), ())


def _slice_devices(slices: Iterable[Mapping[str, Any]]) -> dict[str, list[str]]:
    """Products of the whole GPUs of each node, from ResourceSlices of the newest generation of each pool."""
    newest: dict[tuple[str, str], int] = {}
    found = []
    for item in slices:
        spec = as_mapping(item.get("spec"))
        pool = as_mapping(spec.get("pool"))
        key = (str(spec.get("driver")), str(pool.get("name")))
        generation = _count(pool.get("generation"))
        newest[key] = max(newest.get(key, 0), generation)
        found.append((key, generation, spec))
    devices: dict[str, list[str]] = {}
    for key, generation, spec in found:
        if generation < newest[key] or not key[0].startswith("gpu."):
            continue
        for device in map(as_mapping, as_list(spec.get("devices"))):
            attributes = as_mapping(device.get("attributes")) or as_mapping(
                as_mapping(device.get("basic")).get("attributes")
            )
            kind, product = (as_mapping(attributes.get(name)).get("string") for name in ("type", "productName"))
            if kind in ("gpu", None) and isinstance(product, str):
                devices.setdefault(str(spec.get("nodeName")), []).append(product)
    return devices


def _no_gpus(paths: Sequence[Path], nodes: Sequence[tuple[Path, Mapping[str, Any]]]) -> Problem:
    marked = any(
        "nvidia.com/gpu.present" in as_mapping(as_mapping(node.get("metadata")).get("labels")) for _, node in nodes
    )
    message = f"none of {len(nodes)} nodes advertises {' or '.join(GPU_RESOURCES)}"
    hint = "with dynamic resource allocation GPUs are in slices: add the output of `kubectl get resourceslices -o json`"
    expected = "nodes with the device plugin's resource and the label nvidia.com/gpu.product"
    return Problem(
        message + (", though some carry nvidia.com/gpu.present" if marked else ""), str(paths[0]), "", expected, hint
    )


def _count(value: Any) -> int:
    try:
        return max(int(str(value)), 0)
    except ValueError:
        return 0


_SUFFIXES = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "": 1}


def _quantity_bytes(value: Any) -> int | None:
    """A Kubernetes quantity, "2113412344Ki", in bytes."""
    text = str(value or "")
    digits = text.rstrip("KMGTki")
    factor = _SUFFIXES.get(text[len(digits) :])
    return int(digits) * factor if digits.isascii() and digits.isdigit() and factor else None
