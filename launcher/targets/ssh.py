"""Bare hosts over ssh: each host's script is copied there and told to start, report and stop.

The remote side needs bash, curl and the engine; this side needs ssh that gets in without a password. Nothing from a
plan is part of a remote command line: host scripts carry everything quoted, and their paths are made of safe labels.
"""

from __future__ import annotations

import os
import shlex
import stat
import subprocess
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path

from splitplan.catalogs.errors import LaunchError, Problem, shorten
from splitplan.launcher.cluster import Cluster, HostPlace
from splitplan.launcher.engines.base import EngineAdapter
from splitplan.launcher.interrupts import deferred
from splitplan.launcher.state import ClusterState, Process
from splitplan.launcher.targets.base import Save
from splitplan.launcher.targets.local import describe, started_state
from splitplan.launcher.targets.shell import host_scripts, services_by_host

TIMEOUT_S = 60.0
PARALLEL_HOSTS = 16
SSH_OPTIONS = (
    *("-o", "BatchMode=yes", "-o", "ConnectTimeout=10"),
    # one connection for the many short commands of a launch; it closes by itself
    *("-o", "ControlMaster=auto", "-o", "ControlPersist=5"),
)
STATUS_AGE_S = 1.0
"""How long one look at a host's processes serves."""


@dataclass
class SshTarget:
    """Processes of other machines. `ssh_config` is a file for `ssh -F`, "" for the user's own."""

    ssh_config: str = ""
    remote_folder: str = ".splitplan"  # below the remote home, or absolute
    name: str = "ssh"
    _seen: dict[str, tuple[float, frozenset[str]]] = field(default_factory=dict)

    def preflight(self, cluster: Cluster, engine: EngineAdapter) -> list[Problem]:
        """Hosts that cannot be reached, or lack what the scripts need."""
        with ThreadPoolExecutor(PARALLEL_HOSTS) as pool:
            found = pool.map(lambda place: self._host_problems(cluster, engine, place), cluster.hosts)
            return [problem for problems in found for problem in problems]

    def _host_problems(self, cluster: Cluster, engine: EngineAdapter, place: HostPlace) -> list[Problem]:
        needed = ["bash", "curl", "setsid", *_programs(cluster, engine, place.name)]
        checks = "; ".join(f"command -v {shlex.quote(each)} >/dev/null || echo {shlex.quote(each)}" for each in needed)
        try:
            missing = self._run(place.address, checks).split()
        except LaunchError as error:
            return list(error.problems)
        return [
            Problem(f"{shorten(each)} is not installed on {shorten(place.name)}", next_step="install it there")
            for each in missing
        ]

    def apply(
        self, cluster: Cluster, engine: EngineAdapter, state: ClusterState, folder: Path, save: Save
    ) -> ClusterState:
        """Copy and start, all hosts at once. A script leaves what already runs alone."""
        scripts = host_scripts(cluster, engine)
        home = f"{self.remote_folder}/{cluster.name}"
        remote = {place.name: f"{home}/{scripts[place.name][0]}" for place in cluster.hosts}
        addresses = {place.name: place.address for place in cluster.hosts}
        state = started_state(cluster, engine, state, self.name)
        extra = {**state.extra, "scripts": remote, "addresses": addresses, "ssh_config": self.ssh_config}
        state = replace(state, extra=extra)
        for host, services in services_by_host(cluster, engine).items():
            for service in services:
                state = state.with_process(describe(service, host, Path(f"{home}/run/{cluster.name}")))
        save(state)  # before the first one starts: scripts stop what runs, whether or not it was seen to start

        def start(place: HostPlace) -> None:
            self._install(place, remote[place.name], scripts[place.name][1])
            self._run(place.address, f"bash {shlex.quote(remote[place.name])} start")

        with deferred(), ThreadPoolExecutor(PARALLEL_HOSTS) as pool:
            list(pool.map(start, cluster.hosts))
        return state

    def is_running(self, process: Process, state: ClusterState) -> bool:
        """As the host's script says; one look serves all its processes for a second."""
        looked_s, names = self._seen.get(process.host, (-1e9, frozenset()))
        if time.monotonic() - looked_s > STATUS_AGE_S:
            text = self._script(process.host, state, "status")
            names = frozenset(line.split()[0] for line in text.splitlines() if line.endswith(" running"))
            self._seen[process.host] = (time.monotonic(), names)
        return process.name in names

    def stop(self, stopped: Sequence[Process], state: ClusterState) -> None:
        """End them, host by host; every host is tried before the first failure is raised."""
        names: dict[str, list[str]] = {}
        for process in stopped:
            names.setdefault(process.host, []).append(process.name)

        def stop_on(host: str) -> tuple[Problem, ...]:
            try:
                self._script(host, state, "stop", *names[host])
            except LaunchError as error:
                return error.problems
            return ()

        with ThreadPoolExecutor(PARALLEL_HOSTS) as pool:
            problems = [problem for found in pool.map(stop_on, names) for problem in found]
        self._seen.clear()
        if problems:
            raise LaunchError(problems)

    def tail(self, process: Process, state: ClusterState, lines: int) -> list[str]:
        """The end of a remote log."""
        return self._run(_address(process.host, state), f"tail -n {lines} {shlex.quote(process.log)}").splitlines()

    def _script(self, host: str, state: ClusterState, *arguments: str) -> str:
        script = str(state.extra["scripts"][host])
        return self._run(_address(host, state), shlex.join(["bash", script, *arguments]))

    def _install(self, place: HostPlace, path: str, text: str) -> None:
        parent, quoted = shlex.quote(str(Path(path).parent)), shlex.quote(path)
        self._run(
            place.address, f"umask 077; mkdir -p {parent} && cat > {quoted}.new && mv {quoted}.new {quoted}", text
        )

    def _run(self, address: str, command: str, text: str = "") -> str:
        options = ["-F", self.ssh_config] if self.ssh_config else []
        shared = ["-o", f"ControlPath={_socket_folder()}/%C"]
        argv = ["ssh", *options, *SSH_OPTIONS, *shared, "--", address, command]
        try:
            done = subprocess.run(argv, input=text, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise LaunchError(Problem(f"ssh to {shorten(address)} failed: {shorten(error)}")) from None
        if done.returncode != 0:
            reason = shorten(done.stderr, 300) or f"exit code {done.returncode}"
            raise LaunchError(
                Problem(
                    f"ssh to {shorten(address)} failed: {reason}", next_step=f"try: ssh {shlex.quote(address)} true"
                )
            )
        return done.stdout

    def reach(self, state: ClusterState) -> AbstractContextManager[ClusterState]:
        """Its URLs answer as they are."""
        return nullcontext(state)


def _socket_folder() -> Path:
    """A folder of our own for the sockets of shared connections: nobody else may be able to put one there."""
    folder = Path(tempfile.gettempdir()) / f"splitplan-ssh-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o077:
        raise LaunchError(Problem("is not a folder of yours alone", str(folder), next_step="remove it"))
    return folder


def _address(host: str, state: ClusterState) -> str:
    return str(state.extra["addresses"][host])


def _programs(cluster: Cluster, engine: EngineAdapter, host: str) -> list[str]:
    services = services_by_host(cluster, engine).get(host, [])
    return list(dict.fromkeys(service.command.argv[0] for service in services))
