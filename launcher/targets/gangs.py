"""All or nothing: engine pods that start together, through Volcano or Kueue, so that no side waits alone for the other.

Volcano holds all pods of the plan back until all of them fit. Kueue admits each StatefulSet by itself, into a queue
whose quota then decides: it keeps a plan from starving others, not its own halves from one another. Grove has a form
of its own (`--target grove`).
"""

from __future__ import annotations

from collections.abc import Sequence

from splitplan.catalogs.errors import Problem, UsageError, shorten
from splitplan.launcher.naming import dns_label
from splitplan.launcher.targets.pods import KubernetesOptions, Manifest, metadata

VOLCANO_ANNOTATION = "scheduling.k8s.io/group-name"
KUEUE_LABEL = "kueue.x-k8s.io/queue-name"


def with_gang(objects: Sequence[Manifest], name: str, options: KubernetesOptions) -> list[Manifest]:
    """The objects with their StatefulSets in a gang called `name`, as `options.gang` asks."""
    kind, _, queue = options.gang.partition(":")
    if kind == "":
        return list(objects)
    if kind == "volcano" and not queue:
        return [_in_volcano(each, name) for each in objects]
    if kind == "kueue" and queue and dns_label(queue) == queue:
        return [_in_kueue(each, queue) for each in objects]
    raise UsageError(
        Problem(
            f"unknown gang {shorten(options.gang)!r}", expected="volcano or kueue:QUEUE", next_step="--target grove"
        )
    )


def pod_group(objects: Sequence[Manifest], name: str, options: KubernetesOptions) -> list[Manifest]:
    """Volcano's group of all engine pods; [] for other gangs."""
    if options.gang != "volcano":
        return []
    pods = sum(each["spec"]["replicas"] for each in objects if each["kind"] == "StatefulSet")
    return [
        {
            "apiVersion": "scheduling.volcano.sh/v1beta1",
            "kind": "PodGroup",
            "metadata": metadata(name, {}, options),
            "spec": {"minMember": pods},
        }
    ]


def _in_volcano(each: Manifest, name: str) -> Manifest:
    if each["kind"] != "StatefulSet":
        return each
    template = each["spec"]["template"]
    annotations = {**template["metadata"].get("annotations", {}), VOLCANO_ANNOTATION: name}
    changed = {
        "metadata": {**template["metadata"], "annotations": annotations},
        "spec": {"schedulerName": "volcano", **template["spec"]},
    }
    return {**each, "spec": {**each["spec"], "template": changed}}


def _in_kueue(each: Manifest, queue: str) -> Manifest:
    if each["kind"] != "StatefulSet":
        return each
    labels = {**each["metadata"]["labels"], KUEUE_LABEL: queue}
    return {**each, "metadata": {**each["metadata"], "labels": labels}}
