"""Slurm: one heterogeneous job, a component for each planned node, a step for each process.

A step asks for its own GPUs with --exact --gres, which gives it its own CUDA_VISIBLE_DEVICES (--gpus-per-task inside a
heterogeneous job leaves it empty on 22.05). Slurm chooses which GPUs of a node a step gets.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path

from splitplan.catalogs.errors import LaunchError, Problem, UsageError, shorten
from splitplan.launcher.cluster import Cluster, HostPlace
from splitplan.launcher.engines.base import Command, EngineAdapter
from splitplan.launcher.files import write_file
from splitplan.launcher.interrupts import deferred
from splitplan.launcher.naming import comment
from splitplan.launcher.processes import last_lines
from splitplan.launcher.state import ClusterState, Process
from splitplan.launcher.targets.base import Save
from splitplan.launcher.targets.local import describe, started_state
from splitplan.launcher.targets.shell import GPU_VISIBILITY, Service, file_lines, services_by_host

CPUS_PER_GPU, ROUTER_CPUS = 4, 2
GRES_LABEL = "slurm_gres_type"  # a node label of the fleet file that names the type in gres.conf
TIMEOUT_S = 60.0
STATUS_AGE_S = 1.0


@dataclass(frozen=True, slots=True)
class SlurmOptions:
    """What the site decides."""

    partition: str = ""
    time_limit: str = ""  # as Slurm writes it, "7-00:00:00"; "" for the partition's own
    by_rack: bool = False  # ask for any node of the planned rack (a feature of its name) instead of the planned node


def render(cluster: Cluster, engine: EngineAdapter, options: SlurmOptions | None = None) -> dict[str, str]:
    """`job.sbatch`: submit with `sbatch job.sbatch`, logs appear beside it."""
    return {"job.sbatch": script(cluster, engine, options or SlurmOptions(), "%s.log")}


def script(cluster: Cluster, engine: EngineAdapter, options: SlurmOptions, log_pattern: str) -> str:
    """The batch script; `log_pattern` holds one %s for the name of a process."""
    _check_time_limit(options.time_limit)
    services = services_by_host(cluster, engine)
    lines = ["#!/bin/bash"]
    for number, place in enumerate(cluster.hosts):
        if number:
            lines.append("#SBATCH hetjob")
        lines.append("#SBATCH " + " ".join(_component(cluster, place, services.get(place.name, []), options)))
        if number == 0:
            _check_word(log_pattern % "job")
            lines.append(f"#SBATCH --output={log_pattern % 'job'}")
            lines += [f"#SBATCH --chdir={log_pattern.rpartition('/')[0]}"] if "/" in log_pattern else []
    lines += ["set -u", f"# {comment(cluster.served_name)}; plan {cluster.plan_hash[:12]}"]
    is_het = len(cluster.hosts) > 1
    for number, place in enumerate(cluster.hosts):
        for service in services.get(place.name, []):
            lines += [f"# {comment(service.what)}", *file_lines(service.command)]
            lines += [_step(service, number if is_het else None, log_pattern)]
    return "\n".join([*lines, "wait", ""])


def _component(cluster: Cluster, place: HostPlace, services: Sequence[Service], options: SlurmOptions) -> list[str]:
    """One line of #SBATCH options: a node, its GPUs, CPUs for its steps."""
    gpus = [len(service.member.gpu_indices) if service.member else 0 for service in services]
    types = {_gres_type(service.member.gpu, place) for service in services if service.member}
    cpus = sum(max(CPUS_PER_GPU * count, ROUTER_CPUS) for count in gpus)
    words = [f"--job-name={cluster.name}", "--nodes=1", f"--ntasks={len(services)}"]
    words.append(f"--cpus-per-task={-(-cpus // max(1, len(services)))}")
    words.append(f"--constraint={place.rack}" if options.by_rack and place.rack else f"--nodelist={place.name}")
    if sum(gpus):
        words.append(f"--gres=gpu:{types.pop()}:{sum(gpus)}")
    if options.partition:
        words.append(f"--partition={options.partition}")
    if options.time_limit:
        words.append(f"--time={options.time_limit}")
    for word in words:
        _check_word(word)
    return words


def _step(service: Service, het_group: int | None, log_pattern: str) -> str:
    member = service.member
    words = ["srun", "--ntasks=1", "--nodes=1", "--exact", f"--job-name={service.name}"]
    if het_group is not None:
        words.insert(1, f"--het-group={het_group}")
    if member:
        count = len(member.gpu_indices)
        words += [
            f"--cpus-per-task={CPUS_PER_GPU * count}",
            f"--gres=gpu:{_gres_type(member.gpu, member.host)}:{count}",
        ]
    else:
        words += [f"--cpus-per-task={ROUTER_CPUS}", "--gres=none", "--overlap"]
    words += [f"--output={log_pattern % service.name}", *_without_visibility(service.command)]
    return " ".join(shlex.quote(word) for word in words) + " &"


def _without_visibility(command: Command) -> list[str]:
    """The command with its environment; which GPUs it sees is Slurm's to say."""
    env = {name: value for name, value in command.env.items() if name not in GPU_VISIBILITY.values()}
    return (["env", *(f"{name}={value}" for name, value in env.items())] if env else []) + list(command.argv)


def _gres_type(gpu: str, place: HostPlace) -> str:
    return place.labels.get(GRES_LABEL) or gpu.partition("-")[0]


def _check_time_limit(text: str) -> None:
    """UsageError for what sbatch would not read as a time."""
    if text and not re.fullmatch(r"\d+(:\d{1,2}){0,2}|\d+-\d{1,2}(:\d{1,2}){0,2}|UNLIMITED|INFINITE", text, re.ASCII):
        expected = "MINUTES, HOURS:MINUTES:SECONDS, DAYS-HOURS or UNLIMITED"
        raise UsageError(Problem(f"{shorten(text)!r} is no time limit", expected=expected))


def _check_word(word: str) -> None:
    """#SBATCH lines know no quoting: a name with a space or a quote cannot be written there."""
    if not all(character.isalnum() or character in "-_.=:,[]@/%+" for character in word):
        raise LaunchError(
            Problem(
                f"{shorten(word)!r} cannot be written into a batch script",
                expected="node, rack and partition names of letters, digits, '-', '_' and '.'",
            )
        )


@dataclass(frozen=True, slots=True)
class _Look:
    """What the scheduler said at a moment."""

    at_s: float
    began: frozenset[str]  # processes that had a log
    states: frozenset[str]  # of the job's components
    steps: frozenset[str]  # names of the running ones


@dataclass
class SlurmTarget:
    """Processes as steps of one job."""

    options: SlurmOptions = field(default_factory=SlurmOptions)
    name: str = "slurm"
    _seen: dict[str, _Look] = field(default_factory=dict)

    def preflight(self, cluster: Cluster, engine: EngineAdapter) -> list[Problem]:
        """What the scheduler says of the job without running it."""
        text = script(cluster, engine, self.options, "%s.log")
        try:
            _slurm(["sbatch", "--test-only"], text)
        except LaunchError as error:
            return [
                replace(each, next_step="sinfo shows what the cluster has; planner solve on a fleet read from it")
                for each in error.problems
            ]
        return []

    def apply(
        self, cluster: Cluster, engine: EngineAdapter, state: ClusterState, folder: Path, save: Save
    ) -> ClusterState:
        """Submit the job, unless it is there already."""
        if state.extra.get("job") and any(self.is_running(each, state) for each in state.processes):
            return state
        folder = folder.resolve()
        state = started_state(cluster, engine, state, self.name)
        processes = [
            describe(service, host, folder)
            for host, services in services_by_host(cluster, engine).items()
            for service in services
        ]
        text = script(cluster, engine, self.options, f"{folder}/%s.log")
        write_file(folder / "job.sbatch", text)
        for process in processes:
            Path(process.log).unlink(missing_ok=True)  # of an earlier launch: a log means that the step has begun
        with deferred():
            job = _slurm(["sbatch", "--parsable", str(folder / "job.sbatch")]).strip().partition(";")[0]
            processes = [replace(process, job=job) for process in processes]
            state = replace(state, processes=tuple(processes), extra={**state.extra, "job": job})
            save(state)
        return state

    def is_running(self, process: Process, state: ClusterState) -> bool:
        """Its step runs, or its job has not started its steps yet. One look at the job serves a second."""
        look = self._seen.get(process.job)
        if look is None or time.monotonic() - look.at_s > STATUS_AGE_S:
            # logs first: a step is listed before its log appears, so one with a log that is not listed has ended
            began = frozenset(each.name for each in state.processes if Path(each.log).exists())
            look = self._seen[process.job] = _Look(time.monotonic(), began, *_look(process.job))
        if not look.states & {"PENDING", "CONFIGURING", "RUNNING"}:
            return False
        return process.name in look.steps or process.name not in look.began

    def stop(self, stopped: Sequence[Process], state: ClusterState) -> None:
        """Cancel the job: a heterogeneous job ends as a whole."""
        for job in {process.job for process in stopped if process.job}:
            _slurm(["scancel", job], may_fail=True)
            _wait_until_gone(job)

    def tail(self, process: Process, state: ClusterState, lines: int) -> list[str]:
        """The end of the log file, on the file system that the nodes share."""
        return last_lines(Path(process.log), lines)

    def reach(self, state: ClusterState) -> AbstractContextManager[ClusterState]:
        """Its URLs answer as they are."""
        return nullcontext(state)


def _look(job: str) -> tuple[frozenset[str], frozenset[str]]:
    """(states of the job's components, names of its running steps). Each component has steps under its own job id."""
    rows = _slurm(["squeue", "--noheader", "--jobs", job, "--format", "%A %T"], may_fail=True).split()
    components, states = rows[::2], rows[1::2]
    if not components:
        return frozenset(), frozenset()
    listed = ["squeue", "--steps", "--noheader", "--jobs", ",".join(components), "--format", "%j"]
    return frozenset(states), frozenset(_slurm(listed, may_fail=True).split())


def _wait_until_gone(job: str) -> None:
    """Steps get a moment to end after scancel; only then is nothing left running."""
    deadline_s = time.monotonic() + TIMEOUT_S
    while time.monotonic() < deadline_s:
        if not _slurm(["squeue", "--noheader", "--jobs", job, "--format", "%i"], may_fail=True).strip():
            return
        time.sleep(0.2)


def _slurm(argv: Sequence[str], text: str = "", *, may_fail: bool = False, env: Mapping[str, str] | None = None) -> str:
    try:
        done = subprocess.run(argv, input=text, capture_output=True, text=True, timeout=TIMEOUT_S, check=False, env=env)
    except FileNotFoundError:
        raise LaunchError(Problem(f"{argv[0]} is not installed", next_step="run on a Slurm login node")) from None
    except subprocess.TimeoutExpired:
        raise LaunchError(Problem(f"{argv[0]} did not answer within {TIMEOUT_S:g} s")) from None
    if done.returncode != 0 and not may_fail:
        raise LaunchError(Problem(f"{argv[0]}: {shorten(done.stderr, 300) or f'exit code {done.returncode}'}"))
    return done.stdout
