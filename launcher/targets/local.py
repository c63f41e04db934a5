"""This machine: every host of the plan is 127.0.0.1, every instance a process. For mock engines, and single hosts."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

from splitplan.catalogs.errors import LaunchError, Problem, shorten
from splitplan.launcher import processes
from splitplan.launcher.cluster import Cluster
from splitplan.launcher.engines.base import Command, EngineAdapter
from splitplan.launcher.interrupts import deferred
from splitplan.launcher.state import ClusterState, Process
from splitplan.launcher.targets.base import Save
from splitplan.launcher.targets.shell import Service, prompts_of, services_by_host

ADDRESS = "127.0.0.1"
FIRST_PORT, PORT_STEP = 18000, 500


@dataclass(frozen=True, slots=True)
class LocalTarget:
    """Processes of this machine."""

    name: str = "local"

    def preflight(self, cluster: Cluster, engine: EngineAdapter) -> list[Problem]:
        """Ports that something else listens on, programs that are not installed."""
        found = [
            Problem(f"port {port} of this machine is taken", next_step="planner launch PLAN --base-port PORT")
            for port in processes.taken(ports_of(cluster))
        ]
        commands = [service.command for services in services_by_host(cluster, engine).values() for service in services]
        missing = sorted({command.argv[0] for command in commands if shutil.which(command.argv[0]) is None})
        found += [
            Problem(f"{shorten(program)} is not installed on this machine", next_step="install it, or --engine mock")
            for program in missing
        ]
        return found

    def apply(
        self,
        cluster: Cluster,
        engine: EngineAdapter,
        state: ClusterState,
        folder: Path,
        save: Save,
        *,
        instances_only: bool = False,
    ) -> ClusterState:
        """Start each process that does not run yet with this very command; `instances_only` leaves routers alone."""
        state = started_state(cluster, engine, state, self.name)
        save(state)
        for host, services in services_by_host(cluster, engine).items():
            for service in services:
                if instances_only and service.member is None:
                    continue
                process = describe(service, host, folder)
                running = next((each for each in state.processes if each.name == process.name), None)
                if running and self.is_running(running, state):
                    if running.fingerprint == process.fingerprint:
                        continue
                    self.stop([running], state)
                with deferred():
                    write_files(service.command, folder)
                    pid, ticks = processes.start(service.command, Path(process.log), folder)
                    state = state.with_process(replace(process, pid=pid, started_ticks=ticks))
                    save(state)
        return state

    def is_running(self, process: Process, state: ClusterState) -> bool:
        """Alive, and the same process as started."""
        return processes.is_alive(process.pid, process.started_ticks)

    def stop(self, stopped: Sequence[Process], state: ClusterState) -> None:
        """End them and their children."""
        processes.stop((each.pid, each.started_ticks) for each in stopped)

    def tail(self, process: Process, state: ClusterState, lines: int) -> list[str]:
        """The end of the log file."""
        return processes.last_lines(Path(process.log), lines)

    def reach(self, state: ClusterState) -> AbstractContextManager[ClusterState]:
        """Its URLs answer as they are."""
        return nullcontext(state)


def started_state(cluster: Cluster, engine: EngineAdapter, state: ClusterState, target: str) -> ClusterState:
    """The state a launch begins with: the cluster's names, and the processes that were there already."""
    return replace(
        state,
        name=cluster.name,
        target=target,
        engine=f"{engine.name}@{engine.version}",
        plan_hash=cluster.plan_hash,
        model=cluster.served_name,
        endpoints=state.endpoints or tuple(router.url for router in cluster.routers),
        phase="starting",
        kv_bytes_per_token=cluster.plan.kv_bytes_per_token,
        extra={
            "base_port": cluster.router.port,
            **state.extra,
            "comparison": engine.comparison,
            **({"prompts": prompts_of(cluster)} if cluster.length_routers else {}),
        },
    )


def ports_of(cluster: Cluster) -> set[int]:
    """Every port a cluster on one address listens on."""
    ports = {router.port for router in cluster.routers} | {router.metrics_port for router in cluster.routers}
    for member in cluster.members:
        ports |= {member.ports.http, member.ports.bootstrap, member.ports.master} - {0}
        ports |= set(range(member.ports.side_channel, member.ports.side_channel + member.pool.gpus_per_instance))
    return ports


def describe(service: Service, host: str, folder: Path) -> Process:
    """A service as a process that is not started yet."""
    member = service.member
    return Process(
        name=service.name,
        role=member.pool.role if member else "router",
        instance=member.instance.name if member else "",
        host=host,
        rack=member.instance.rack if member else "",
        url=service.url,
        ready_url=service.ready_url,
        log=str(folder / f"{service.name}.log"),
        fingerprint=fingerprint(service.command),
    )


def write_files(command: Command, folder: Path) -> None:
    """What a command needs in the folder it runs in."""
    for name, content in command.files.items():
        try:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(content)
        except OSError as error:
            raise LaunchError(Problem(f"cannot write: {error.strerror}", str(folder / name))) from None


def fingerprint(command: Command) -> str:
    """Equal for equal commands."""
    files = {name: hashlib.sha256(content).hexdigest() for name, content in command.files.items()}
    text = json.dumps([command.argv, sorted(command.env.items()), sorted(files.items())])
    return hashlib.sha256(text.encode()).hexdigest()[:16]
