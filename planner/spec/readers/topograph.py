"""The JSON of topograph's graph engine → hosts.

Instances with their switches, nearest first, and accelerator domains.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from splitplan.catalogs.errors import DocumentError, Problem, shorten
from splitplan.planner.spec.readers.hosts import Host, Notes, as_list, as_mapping, read_json

WHAT = 'topograph\'s graph output, {"instances": [{"id": …, "network_layers": […]}]}'
DOMAIN_LABELS = ("accelerator.topograph.run/domain", "nvidia.com/gpu.clique")


def read_topograph(path: Path) -> tuple[list[Host], Notes]:
    """(hosts, notes). GPU types come from `type` or a product label; topograph does not count GPUs."""
    data = as_mapping(read_json(path, WHAT))
    instances = as_list(data.get("instances"))
    if not instances:
        hint = "its Slurm output is a topology.conf: read that with `planner fleet import slurm`"
        raise DocumentError(Problem("holds no instances", str(path), expected=WHAT, next_step=hint))
    return [_host(as_mapping(item), index, path) for index, item in enumerate(instances)], Notes()


def _host(instance: Mapping[str, Any], index: int, path: Path) -> Host:
    name = instance.get("id")
    layers = [str(layer) for layer in as_list(instance.get("network_layers")) if layer]
    if not isinstance(name, str) or not name:
        raise DocumentError(Problem("missing", str(path), f"instances[{index}].id", WHAT))
    attributes, labels = as_mapping(instance.get("attributes")), as_mapping(instance.get("labels"))
    domain = attributes.get("nvlink") or next((labels[key] for key in DOMAIN_LABELS if labels.get(key)), "")
    product = next((str(value) for key, value in labels.items() if key.endswith(("gpu-product", "gpu.product"))), "")
    count = attributes.get("gpus", labels.get("nvidia.com/gpu.count"))
    return Host(
        name=shorten(name, 200),
        gpu=str(instance.get("type") or product),
        num_gpus=int(count) if str(count).isascii() and str(count).isdigit() and 0 < int(count) <= 128 else None,
        levels=tuple(reversed(layers)),
        nvlink_domain=str(domain),
        where=str(path),
    )
