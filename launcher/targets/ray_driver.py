"""What runs inside Ray's own Python: placement groups, and an actor for each process of a plan. Needs ray alone.

    python ray_driver.py nodes|start|look|tail|stop <request.json >reply.json

Requests and replies are JSON objects, described at the functions. The group and the actors are detached: they outlive
this script, and `stop` finds them by name.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

sys.path = [folder for folder in sys.path if Path(folder).resolve() != Path(__file__).resolve().parent]
# a module beside this script is called ray, too

NAMESPACE = "splitplan"
CALL_S = 60.0


def nodes(_: dict[str, Any]) -> dict[str, Any]:
    """{"nodes": [{id, address, hostname, labels, total, available}]}: resources by name."""
    import ray
    from ray._private.state import state as cluster_state

    free = cluster_state.available_resources_per_node()  # no public call tells it by node
    found = [
        {
            "id": node["NodeID"],
            "address": node["NodeManagerAddress"],
            "hostname": node["NodeManagerHostname"],
            "labels": node.get("Labels") or {},
            "total": node["Resources"],
            "available": free.get(node["NodeID"], {}),
        }
        for node in ray.nodes()
        if node["Alive"]
    ]
    return {"nodes": found}


def start(request: dict[str, Any]) -> dict[str, Any]:
    """Reserve all bundles at once, then start every process on its bundle.

    Takes {name, bundles: [resources], selectors: [labels], timeout_s, processes: [{name, bundle, argv, env, files}]}.
    Gives {"pending": true} when the group was not placed in time (it is removed again), else {"processes": {name:
    {node, pid, gpus}}}. Processes that run already stay as they are.
    """
    import ray
    from ray.util.placement_group import placement_group, remove_placement_group
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    group = _group(request["name"])
    if group is None:
        group = placement_group(
            request["bundles"],
            strategy="PACK",
            name=request["name"],
            lifetime="detached",
            bundle_label_selector=request["selectors"],
        )
    if not group.wait(request["timeout_s"]):
        remove_placement_group(group)
        return {"pending": True}
    actor_class = ray.remote(_Process)
    reply = {}
    for process in request["processes"]:
        bundle = request["bundles"][process["bundle"]]
        options = {
            "name": f"{request['name']}/{process['name']}",
            "get_if_exists": True,
            "lifetime": "detached",
            "num_cpus": bundle.get("CPU", 0),
            "num_gpus": bundle.get("GPU", 0),
            "scheduling_strategy": PlacementGroupSchedulingStrategy(group, process["bundle"]),
        }
        actor = actor_class.options(**options).remote(request["name"], process["name"])
        call = actor.start.remote(process["argv"], process["env"], process["files"])
        reply[process["name"]] = ray.get(call, timeout=CALL_S)
    return {"processes": reply}


def look(request: dict[str, Any]) -> dict[str, Any]:
    """{name, processes: [name]} → {"alive": [name]}."""
    return {"alive": [name for name in request["processes"] if _call(request["name"], name, "is_alive")]}


def tail(request: dict[str, Any]) -> dict[str, Any]:
    """{name, process, lines} → {"lines": [text]}."""
    return {"lines": _call(request["name"], request["process"], "tail", request["lines"]) or []}


def stop(request: dict[str, Any]) -> dict[str, Any]:
    """{name, processes: [name], release: bool} → {}: end processes; with `release` the group as well."""
    import ray
    from ray.util.placement_group import remove_placement_group

    for name in request["processes"]:
        _call(request["name"], name, "stop")
        actor = _actor(request["name"], name)
        if actor is not None:
            ray.kill(actor)
    group = _group(request["name"]) if request["release"] else None
    if group is not None:
        remove_placement_group(group)
    return {}


class _Process:
    """One engine process on the node of its bundle; it ends with the actor."""

    def __init__(self, cluster: str, name: str) -> None:
        self.folder = Path("/tmp") / f"splitplan-{os.getuid()}" / cluster
        self.log = self.folder / f"{name}.log"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, argv: list[str], env: dict[str, str], files: dict[str, str]) -> dict[str, Any]:
        """Start it unless it runs; where it runs, with which GPUs (Ray chooses their indices)."""
        import base64

        import ray

        if self.process is None or self.process.poll() is not None:
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            for path, content in files.items():
                (self.folder / path).parent.mkdir(parents=True, exist_ok=True)
                (self.folder / path).write_bytes(base64.b64decode(content))
            with self.log.open("ab") as stream:
                self.process = subprocess.Popen(
                    argv,
                    cwd=self.folder,
                    env={**os.environ, **env},
                    stdin=subprocess.DEVNULL,
                    stdout=stream,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                    preexec_fn=_end_with_parent,
                )
        context = ray.get_runtime_context()
        return {"node": context.get_node_id(), "pid": self.process.pid, "gpus": ray.get_gpu_ids()}

    def is_alive(self) -> bool:
        """Whether it runs."""
        return self.process is not None and self.process.poll() is None

    def tail(self, lines: int) -> list[str]:
        """The end of its log."""
        if not self.log.exists():
            return []
        with self.log.open("rb") as stream:
            stream.seek(0, os.SEEK_END)
            stream.seek(max(0, stream.tell() - 500 * lines))
            return stream.read().decode("utf-8", "replace").splitlines()[-lines:]

    def stop(self) -> bool:
        """SIGTERM to it and its children, SIGKILL after ten seconds."""
        if self.process is None:
            return True
        for number in (signal.SIGTERM, signal.SIGKILL):
            try:
                os.killpg(self.process.pid, number)
                self.process.wait(10)
                break
            except ProcessLookupError:
                break
            except subprocess.TimeoutExpired:
                continue
        return True


def _end_with_parent() -> None:
    """Linux: SIGTERM when the actor's own process is killed, so that nothing stays behind."""
    import ctypes

    ctypes.CDLL(None).prctl(1, signal.SIGTERM)


def _group(name: str) -> Any:
    from ray.util.placement_group import get_placement_group

    try:
        return get_placement_group(name)
    except ValueError:
        return None


def _actor(cluster: str, name: str) -> Any:
    import ray

    try:
        return ray.get_actor(f"{cluster}/{name}", namespace=NAMESPACE)
    except ValueError:
        return None


def _call(cluster: str, name: str, method: str, *arguments: Any) -> Any:
    """What an actor's method gives; None where the actor is gone."""
    import ray

    actor = _actor(cluster, name)
    if actor is None:
        return None
    try:
        return ray.get(getattr(actor, method).remote(*arguments), timeout=CALL_S)
    except (ray.exceptions.RayActorError, ray.exceptions.GetTimeoutError):
        return None


def main() -> int:
    """One command."""
    import ray

    commands = {"nodes": nodes, "start": start, "look": look, "tail": tail, "stop": stop}
    request = json.load(sys.stdin)
    stdout, sys.stdout = sys.stdout, sys.stderr  # Ray talks on stdout
    try:
        ray.init(address=request["address"], namespace=NAMESPACE, log_to_driver=False, logging_level="ERROR")
    except (ConnectionError, ValueError, RuntimeError) as error:
        stdout.write(json.dumps({"unreachable": str(error)}))
        return 0
    stdout.write(json.dumps(commands[sys.argv[1]](request)))
    ray.shutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main())
