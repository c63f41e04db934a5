"""Ray: every process of a plan as an actor on one placement group whose bundles carry label selectors.

One group for the whole plan, so that it is placed whole or not at all. A bundle names its node by the node's label
`splitplan.io/node` (`ray start --labels splitplan.io/node=NAME`), else by the Ray node whose host name or address is
the planned one. An impossible group would stay pending for ever without an error: what fits is computed from the
nodes' free resources first, and waiting for the group has an end.

Ray itself runs in a Python of its own (`--python`); this side talks to it through `ray_driver.py`.
"""

from __future__ import annotations

import base64
import json
import os
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from importlib.resources import files
from pathlib import Path
from typing import Any

from splitplan.catalogs.errors import LaunchError, Problem, shorten
from splitplan.launcher.cluster import Cluster
from splitplan.launcher.engines.base import EngineAdapter
from splitplan.launcher.interrupts import deferred
from splitplan.launcher.state import ClusterState, Process
from splitplan.launcher.targets.base import Save
from splitplan.launcher.targets.local import describe, started_state
from splitplan.launcher.targets.ray import accelerator
from splitplan.launcher.targets.shell import GPU_VISIBILITY, Service, services_by_host

NODE_LABEL = "splitplan.io/node"
ACCELERATOR_LABEL = "ray.io/accelerator-type"
NODE_ID_LABEL = "ray.io/node-id"
TIMEOUT_S = 180.0
PLACE_S = 30.0
STATUS_AGE_S = 2.0


@dataclass(frozen=True, slots=True)
class RayNode:
    """A node as Ray tells it; resources by name."""

    id: str
    address: str
    hostname: str
    labels: Mapping[str, str]
    total: Mapping[str, float]
    available: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Bundle:
    """What one process takes, and where."""

    service: Service
    host: str
    resources: Mapping[str, float]
    gpu: str = ""


@dataclass
class RayTarget:
    """Processes as Ray actors. `python` has ray; `address` is the cluster's, "auto" for the one of this machine."""

    python: str = "python3"
    address: str = "auto"
    name: str = "ray-groups"
    _seen: tuple[float, frozenset[str]] = (-1e9, frozenset())
    _nodes: list[RayNode] = field(default_factory=list)

    def preflight(self, cluster: Cluster, engine: EngineAdapter) -> list[Problem]:
        """Planned nodes that Ray does not have, GPUs of another type, resources that are not free."""
        return resource_problems(bundles_of(cluster, engine), self._look_at_nodes())

    def apply(
        self, cluster: Cluster, engine: EngineAdapter, state: ClusterState, folder: Path, save: Save
    ) -> ClusterState:
        """Reserve all bundles, then start all processes."""
        bundles = bundles_of(cluster, engine)
        state = started_state(cluster, engine, state, self.name)
        extra = {**state.extra, "python": self.python, "ray_address": self.address}
        processes = [replace(describe(each.service, each.host, folder), log="") for each in bundles]
        state = replace(state, processes=tuple(processes), extra=extra)
        save(state)  # before the group is there: to stop what was never placed is no error
        with deferred():
            reply = self._ask("start", placement(cluster.name, bundles, self._look_at_nodes()))
            if reply.get("pending"):
                raise LaunchError(
                    Problem(
                        f"Ray did not place the plan's bundles within {PLACE_S:g} s",
                        next_step="ray status shows what is taken; something else may have come first",
                    )
                )
            nodes = {name: str(found["node"]) for name, found in reply["processes"].items()}
            state = replace(state, processes=tuple(replace(each, job=nodes[each.name]) for each in processes))
            save(state)
        return state

    def is_running(self, process: Process, state: ClusterState) -> bool:
        """As its actor says; one look serves all for a moment."""
        at_s, alive = self._seen
        if time.monotonic() - at_s > STATUS_AGE_S:
            names = [each.name for each in state.processes]
            alive = frozenset(self._ask("look", {"name": state.name, "processes": names})["alive"])
            self._seen = (time.monotonic(), alive)
        return process.name in alive

    def stop(self, processes: Sequence[Process], state: ClusterState) -> None:
        """End them; once no instance is left, the placement group goes too."""
        release = any(process.role != "router" for process in processes)
        names = [process.name for process in processes]
        if names:
            self._ask("stop", {"name": state.name, "processes": names, "release": release})

    def tail(self, process: Process, state: ClusterState, lines: int) -> list[str]:
        """The end of its log, from its node."""
        request = {"name": state.name, "process": process.name, "lines": lines}
        return [str(line) for line in self._ask("tail", request)["lines"]]

    def reach(self, state: ClusterState) -> AbstractContextManager[ClusterState]:
        """Its URLs answer as they are."""
        return nullcontext(state)

    def _look_at_nodes(self) -> list[RayNode]:
        if not self._nodes:
            self._nodes = [RayNode(**each) for each in self._ask("nodes", {})["nodes"]]
        return self._nodes

    def _ask(self, command: str, request: Mapping[str, Any]) -> dict[str, Any]:
        """One command of the driver; LaunchError when Ray cannot be reached or the driver fails."""
        driver = str(files("splitplan.launcher.targets") / "ray_driver.py")
        text = json.dumps({**request, "address": self.address})
        env = {**os.environ, "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
        try:
            done = subprocess.run(
                [self.python, driver, command],
                input=text,
                capture_output=True,
                text=True,
                timeout=TIMEOUT_S,
                check=False,
                env=env,
            )
            reply: dict[str, Any] = json.loads(done.stdout or "null") or {}
        except FileNotFoundError:
            raise LaunchError(
                Problem(f"{shorten(self.python)} is not there", next_step="--python RAY_PYTHON")
            ) from None
        except subprocess.TimeoutExpired:
            raise LaunchError(Problem(f"Ray did not answer within {TIMEOUT_S:g} s", next_step="ray status")) from None
        except ValueError:
            reply = {}
        if "unreachable" in reply:
            raise LaunchError(
                Problem(
                    f"no Ray cluster: {shorten(reply['unreachable'], 200)}",
                    next_step="ray start, or RAY_ADDRESS=HOST:PORT",
                )
            )
        if done.returncode != 0 or not isinstance(reply, dict):
            last = (done.stderr.strip().splitlines() or ["no word"])[-1]
            hint = "--python must name a Python with ray installed" if "No module named 'ray'" in last else ""
            raise LaunchError(Problem(f"Ray's side failed: {shorten(last, 300)}", next_step=hint))
        return reply


def render(cluster: Cluster, engine: EngineAdapter) -> dict[str, str]:
    """`placement.json`: bundles, label selectors (by the planned nodes' labels) and processes, as Ray gets them."""
    bundles = bundles_of(cluster, engine)
    gpus = {bundle.host: bundle.gpu for bundle in sorted(bundles, key=lambda each: each.gpu)}  # a router has none
    labels = {
        host: {NODE_LABEL: host, **({ACCELERATOR_LABEL: accelerator(gpu)} if gpu else {})} for host, gpu in gpus.items()
    }
    nodes = [RayNode(host, "", host, found, {}, {}) for host, found in labels.items()]
    request = placement(cluster.name, bundles, nodes)
    return {"placement.json": json.dumps(request, indent=2, ensure_ascii=False) + "\n"}


def bundles_of(cluster: Cluster, engine: EngineAdapter) -> list[Bundle]:
    """One bundle for each process: its GPUs, or a CPU for a router."""
    found = []
    for host, services in services_by_host(cluster, engine).items():
        for service in services:
            member = service.member
            resources = {"CPU": 1.0} if member is None else {"GPU": float(len(member.gpu_indices))}
            found.append(Bundle(service, host, resources, member.gpu if member else ""))
    return found


def resource_problems(bundles: Sequence[Bundle], nodes: Sequence[RayNode]) -> list[Problem]:
    """Why these bundles cannot be placed now; [] when they can. All at once."""
    problems: list[Problem] = []
    wanted: dict[str, dict[str, float]] = {}
    for bundle in bundles:
        for resource, count in bundle.resources.items():
            taken = wanted.setdefault(bundle.host, {})
            taken[resource] = taken.get(resource, 0.0) + count
    for host, needs in wanted.items():
        node = find_node(host, _address_of(host, bundles), nodes)
        if node is None:
            problems.append(
                Problem(
                    f"Ray has no node {shorten(host)!r}",
                    expected=shorten(", ".join(sorted(_titles(nodes))), 200),
                    next_step=f"ray start --labels {NODE_LABEL}={shorten(host)}, or solve on a fleet that is there",
                )
            )
            continue
        problems += _short(host, needs, node)
        gpus = sorted({bundle.gpu for bundle in bundles if bundle.host == host and bundle.gpu})
        problems += _other_gpus(host, gpus, node)
    return problems


def find_node(host: str, address: str, nodes: Sequence[RayNode]) -> RayNode | None:
    """The Ray node of a planned host: by label, else by host name or address where exactly one has it."""
    labelled = [node for node in nodes if node.labels.get(NODE_LABEL) == host]
    if labelled:
        return labelled[0]
    named = [node for node in nodes if host == node.hostname or address in (node.address, node.hostname)]
    return named[0] if len(named) == 1 else None


def placement(name: str, bundles: Sequence[Bundle], nodes: Sequence[RayNode]) -> dict[str, Any]:
    """The driver's request: resources and a label selector for each bundle, and the processes on them."""
    selectors = []
    for bundle in bundles:
        node = find_node(bundle.host, _address_of(bundle.host, bundles), nodes)
        if node is None:
            raise LaunchError(Problem(f"Ray has no node {shorten(bundle.host)!r}"))
        selectors.append(selector(bundle, node))
    processes = [
        {
            "name": bundle.service.name,
            "bundle": number,
            "argv": list(bundle.service.command.argv),
            # which of its node's GPUs a bundle gets is Ray's to say
            "env": {k: v for k, v in bundle.service.command.env.items() if k not in GPU_VISIBILITY.values()},
            "files": {k: base64.b64encode(v).decode() for k, v in bundle.service.command.files.items()},
        }
        for number, bundle in enumerate(bundles)
    ]
    resources = [dict(bundle.resources) for bundle in bundles]
    return {"name": name, "bundles": resources, "selectors": selectors, "timeout_s": PLACE_S, "processes": processes}


def selector(bundle: Bundle, node: RayNode) -> dict[str, str]:
    """Labels that a bundle's node must have: the planned node and, where Ray tells it, the GPU type."""
    found = {NODE_LABEL: bundle.host} if NODE_LABEL in node.labels else {NODE_ID_LABEL: node.id}
    if bundle.gpu and ACCELERATOR_LABEL in node.labels:
        found[ACCELERATOR_LABEL] = accelerator(bundle.gpu)
    return found


def _short(host: str, needs: Mapping[str, float], node: RayNode) -> list[Problem]:
    problems = []
    for resource, count in needs.items():
        total, free = node.total.get(resource, 0.0), node.available.get(resource, 0.0)
        if free < count:
            taken = f", {total - free:g} of them taken" if total >= count else ""
            problems.append(
                Problem(
                    f"Ray's node {shorten(host)!r} has {total:g} {resource}{taken}; the plan takes {count:g}",
                    next_step="ray status" if taken else "planner solve again on a fleet as it is",
                )
            )
    return problems


def _other_gpus(host: str, gpus: Sequence[str], node: RayNode) -> list[Problem]:
    there = node.labels.get(ACCELERATOR_LABEL)
    return [
        Problem(f"Ray says that {shorten(host)!r} has {there}; the plan takes {accelerator(gpu)} there")
        for gpu in gpus
        if there and there != accelerator(gpu)
    ]


def _address_of(host: str, bundles: Sequence[Bundle]) -> str:
    members = [bundle.service.member for bundle in bundles if bundle.host == host]
    return next((member.host.address for member in members if member is not None), host)


def _titles(nodes: Sequence[RayNode]) -> list[str]:
    return [node.labels.get(NODE_LABEL) or node.hostname or node.address for node in nodes]
