"""Kubernetes, live: apply the manifests of `kubernetes.py`, watch the pods, reach them through the API, delete them.

Everything goes through `kubectl` with the user's own rights. Pods are reached over the API server's proxy (a
`kubectl proxy` on loopback that lives as long as a command and lets this plan's pods and router through, nothing else),
so that the probe and `planner bench` work from outside the cluster.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from splitplan.catalogs.errors import LaunchError, Problem, shorten
from splitplan.launcher.cluster import Cluster, Member, RouterPlace
from splitplan.launcher.engines.base import EngineAdapter
from splitplan.launcher.files import write_file
from splitplan.launcher.interrupts import deferred
from splitplan.launcher.state import ClusterState, Process
from splitplan.launcher.targets import kubernetes
from splitplan.launcher.targets.base import Save
from splitplan.launcher.targets.kubectl import Kubectl, is_installed
from splitplan.launcher.targets.local import started_state
from splitplan.launcher.targets.pods import HOSTNAME_LABEL, KubernetesOptions, gpu_resource, node_selector

STATUS_AGE_S = 1.0
GONE_S = 150.0
"""Pods have 120 s to end by themselves."""

HOPELESS = frozenset(
    (
        *("CrashLoopBackOff", "ImagePullBackOff", "ErrImagePull", "ErrImageNeverPull", "InvalidImageName"),
        *("CreateContainerConfigError", "CreateContainerError", "RunContainerError"),
    )
)
"""Reasons of a waiting container that waiting does not mend."""


@dataclass
class KubernetesTarget:
    """StatefulSets, Services and a router in one namespace."""

    options: KubernetesOptions = field(default_factory=KubernetesOptions)
    name: str = "kubernetes"
    _seen: tuple[float, tuple[dict[str, Any], ...]] = (-1e9, ())

    @property
    def kubectl(self) -> Kubectl:
        """The way to the cluster."""
        return Kubectl(self.options.context, self.options.namespace)

    def preflight(self, cluster: Cluster, engine: EngineAdapter) -> list[Problem]:
        """What the API server's own dry run refuses, and planned nodes that are not there or have too few GPUs."""
        if not is_installed():
            return [Problem("kubectl is not installed on this machine", next_step="install it, or --dry-run -o FOLDER")]
        try:
            self.kubectl.apply(manifests(cluster, engine, self.options), dry_run=True)
        except LaunchError as error:
            return list(error.problems)
        return self._node_problems(cluster)

    def _node_problems(self, cluster: Cluster) -> list[Problem]:
        try:
            nodes = self.kubectl.get("nodes")
        except LaunchError:
            return []  # no right to list nodes: the scheduler will say it
        known = {str(node["metadata"].get("labels", {}).get(HOSTNAME_LABEL, "")): node for node in nodes}
        known |= {str(node["metadata"]["name"]): node for node in nodes}
        return node_problems(cluster, known)

    def apply(
        self, cluster: Cluster, engine: EngineAdapter, state: ClusterState, folder: Path, save: Save
    ) -> ClusterState:
        """Server-side apply of everything: equal objects stay as they are."""
        text = manifests(cluster, engine, self.options)
        path = folder / f"{cluster.name}.yaml"  # a changed plan beside this one has a file of its own
        write_file(path, text)
        namespace = self.kubectl.current_namespace()
        state = started_state(cluster, engine, state, self.name)
        extra = {**state.extra, "namespace": namespace, "context": self.options.context, "manifests": str(path)}
        placed, groups = kubernetes.in_pods(cluster)
        members = [member for group in groups for member in group.members]
        found = [_pod_process(member, namespace, engine) for member in members]
        found += [_router_process(place, placed.name, namespace, engine) for place in placed.routers]
        endpoints = tuple(each.url for each in found if each.role == "router")
        state = replace(state, processes=tuple(found), endpoints=endpoints, extra=extra)
        save(state)  # before the first object is there: deleting what was never made is no error
        with deferred():
            self.kubectl.apply(text)
        return state

    def is_running(self, process: Process, state: ClusterState) -> bool:
        """Its pod is there, or still to come, and not beyond help."""
        pods = [pod for pod in self._pods(state) if _is_of(pod, process)]
        if not pods:
            return state.phase == "starting"  # its controller has yet to make it
        return any(_reason(pod) not in HOPELESS and _phase(pod) != "Failed" for pod in pods)

    def stop(self, processes: Sequence[Process], state: ClusterState) -> None:
        """Delete routers alone (they come first), or everything that was applied; then wait until the pods are gone."""
        if not processes:
            return
        if all(process.role == "router" for process in processes):
            names = [process.job for process in processes]
            self.kubectl.run("delete", "deployment", *names, "--ignore-not-found", "--wait=false")
            return
        try:
            text = Path(str(state.extra["manifests"])).read_text(encoding="utf-8")
        except OSError as error:
            hint = f"kubectl delete all -l app.kubernetes.io/instance={state.name}"
            raise LaunchError(Problem(f"cannot read what was applied: {error.strerror}", next_step=hint)) from None
        self.kubectl.delete(text)
        self._wait_until_gone(state)

    def tail(self, process: Process, state: ClusterState, lines: int) -> list[str]:
        """Why a pod does not run, and the end of its log."""
        found: list[str] = []
        for pod in (pod for pod in self._pods(state) if _is_of(pod, process)):
            found += _troubles(pod)
            name = str(pod["metadata"]["name"])
            try:
                found += self.kubectl.run("logs", name, f"--tail={lines}").splitlines()
            except LaunchError as error:
                found += [str(problem.message) for problem in error.problems]
        return found[-lines:]

    @contextmanager
    def reach(self, state: ClusterState) -> Iterator[ClusterState]:
        """The state with URLs that this machine reaches, through the API server."""
        space = str(state.extra["namespace"])
        own = f"/api/v1/namespaces/{re.escape(space)}/(pods|services)/http:{re.escape(state.name)}-[a-z0-9-]+:[0-9a-z]+"
        with self.kubectl.proxy(f"^{own}/proxy/.*$") as base:
            processes = tuple(_through(base, space, process) for process in state.processes)
            doors = tuple(each.url for each in processes if each.role == "router")
            yield replace(state, processes=processes, endpoints=doors)

    def _pods(self, state: ClusterState) -> tuple[dict[str, Any], ...]:
        at_s, pods = self._seen
        if time.monotonic() - at_s > STATUS_AGE_S:
            pods = tuple(self.kubectl.get("pods", "-l", f"app.kubernetes.io/instance={state.name}"))
            self._seen = (time.monotonic(), pods)
        return pods

    def _wait_until_gone(self, state: ClusterState) -> None:
        deadline_s = time.monotonic() + GONE_S
        while self.kubectl.get("pods", "-l", f"app.kubernetes.io/instance={state.name}"):
            if time.monotonic() > deadline_s:
                hint = f"kubectl get pods -l app.kubernetes.io/instance={state.name}"
                raise LaunchError(Problem(f"pods are still there after {GONE_S:g} s", next_step=hint))
            time.sleep(0.5)


def manifests(cluster: Cluster, engine: EngineAdapter, options: KubernetesOptions) -> str:
    """All objects as one stream for kubectl."""
    files = kubernetes.render(cluster, engine, options)
    return "---\n".join(text for name, text in files.items() if name != "kustomization.yaml")


def node_problems(cluster: Cluster, nodes: dict[str, dict[str, Any]]) -> list[Problem]:
    """Planned nodes that the cluster does not have, and nodes with fewer GPUs than planned. `nodes` by name."""
    wanted: dict[str, int] = {}
    resource: dict[str, str] = {}
    for member in cluster.members:
        name = node_selector(member)[HOSTNAME_LABEL]
        wanted[name] = wanted.get(name, 0) + len(member.gpu_indices)
        resource[name] = gpu_resource(member.gpu)
    problems = []
    for name, count in wanted.items():
        if name not in nodes:
            problems.append(
                Problem(
                    f"the cluster has no node {shorten(name)!r}",
                    expected=shorten(", ".join(sorted(nodes)), 200),
                    next_step="planner fleet import kubectl, then solve on that fleet",
                )
            )
            continue
        have = int(nodes[name].get("status", {}).get("allocatable", {}).get(resource[name], 0))
        if have < count:
            problems.append(Problem(f"node {shorten(name)!r} has {have} {resource[name]}, the plan takes {count}"))
    return problems


def _pod_process(member: Member, namespace: str, engine: EngineAdapter) -> Process:
    """One pod; its URL as the cluster sees it."""
    pod, _, service = member.host.address.partition(".")
    url = f"http://{pod}.{service}.{namespace}.svc:{member.ports.http}" if member.rank == 0 else ""
    ready = f"{url}{engine.ready_path}" if url else ""
    host = node_selector(member)[HOSTNAME_LABEL]
    return Process(
        member.name, member.pool.role, member.instance.name, host, member.instance.rack, url, ready, "", job=pod
    )


def _router_process(place: RouterPlace, cluster: str, namespace: str, engine: EngineAdapter) -> Process:
    name = place.host.name
    title = name.removeprefix(f"{cluster}-")  # "router", "router-colocated", …
    url = f"http://{name}.{namespace}.svc:{place.port}"
    return Process(title, "router", "", "", "", url, f"{url}{engine.router_ready_path}", "", job=name)


def _through(base: str, namespace: str, process: Process) -> Process:
    """A process with the URLs of the API server's proxy."""
    if not process.url:
        return process
    port = process.url.rpartition(":")[2]
    kind = "services" if process.role == "router" else "pods"
    url = f"{base}/api/v1/namespaces/{namespace}/{kind}/http:{process.job}:{port}/proxy"
    return replace(process, url=url, ready_url=url + process.ready_url.removeprefix(process.url))


def _is_of(pod: dict[str, Any], process: Process) -> bool:
    if process.role == "router":
        return bool(pod["metadata"].get("labels", {}).get("app.kubernetes.io/component") == process.job)
    return bool(pod["metadata"]["name"] == process.job)


def _phase(pod: dict[str, Any]) -> str:
    return str(pod.get("status", {}).get("phase", ""))


def _reason(pod: dict[str, Any]) -> str:
    for status in pod.get("status", {}).get("containerStatuses", []):
        reason = status.get("state", {}).get("waiting", {}).get("reason")
        if reason:
            return str(reason)
    return ""


def _troubles(pod: dict[str, Any]) -> list[str]:
    """Conditions that are not met, and why containers wait, a line each."""
    status = pod.get("status", {})
    lines = [
        f"{each['type']}: {each.get('reason', '')} {each.get('message', '')}".strip()
        for each in status.get("conditions", [])
        if each.get("status") == "False" and each.get("type") == "PodScheduled"
    ]
    for each in status.get("containerStatuses", []):
        waiting = each.get("state", {}).get("waiting", {})
        if waiting.get("reason"):
            lines.append(f"{waiting['reason']}: {waiting.get('message', '')}".rstrip(": "))
    return lines
