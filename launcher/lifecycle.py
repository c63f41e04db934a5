"""Bring a cluster up, prove that it serves, look at it, take it down: render → preflight → apply → wait → probe.

What was started is in the state file before anything else happens, so that an interrupted or failed launch is rolled
back, and one whose launcher was killed can still be destroyed.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from splitplan.catalogs.errors import LaunchError, Problem, UsageError, nearest_names, shorten
from splitplan.launcher import preflight
from splitplan.launcher.cluster import Cluster
from splitplan.launcher.engines.base import EngineAdapter
from splitplan.launcher.interrupts import deferred, interruptible
from splitplan.launcher.probe import ProbeReport, probe, read_metrics
from splitplan.launcher.processes import taken
from splitplan.launcher.readiness import Progress, wait_until_ready
from splitplan.launcher.render import LaunchOptions, make_cluster, make_engine
from splitplan.launcher.state import (
    ClusterState,
    Process,
    load_state,
    log_folder,
    require_state,
    save_state,
    state_path,
)
from splitplan.launcher.targets.base import Target
from splitplan.launcher.targets.kube import KubernetesTarget
from splitplan.launcher.targets.local import ADDRESS, FIRST_PORT, PORT_STEP, LocalTarget, ports_of
from splitplan.launcher.targets.pods import KubernetesOptions
from splitplan.launcher.targets.ray_groups import RayTarget
from splitplan.launcher.targets.slurm import SlurmTarget
from splitplan.launcher.targets.ssh import SshTarget
from splitplan.launcher.web import answers
from splitplan.planner.plan import Plan, plan_hash

DEFAULT_TIMEOUT_S = 3600.0
LOG_LINES = 5
"""What an error shows of a log."""

LIVE_TARGETS: Mapping[str, Callable[[LaunchOptions], Target]] = {
    "local": lambda _: LocalTarget(),
    "ssh": lambda options: SshTarget(options.ssh_config, options.remote_folder),
    "slurm": lambda options: SlurmTarget(options.slurm),
    "kubernetes": lambda options: KubernetesTarget(options.kubernetes),
    "ray-groups": lambda options: RayTarget(
        options.python or "python3", options.ray_address or os.environ.get("RAY_ADDRESS") or "auto"
    ),
}
"""Targets that start something, by name."""


@dataclass(frozen=True, slots=True)
class Launched:
    """A cluster that serves."""

    state: ClusterState
    report: ProbeReport | None  # None when the probe was not asked for


@dataclass(frozen=True, slots=True)
class ProcessStatus:
    """One process as it is now."""

    process: Process
    is_running: bool
    is_ready: bool
    requests_running: int | None  # None: not told
    requests_waiting: int | None


def launch(
    plan: Plan,
    plan_path: str | Path,
    options: LaunchOptions,
    *,
    keep: bool = False,
    timeout_s: float = DEFAULT_TIMEOUT_S,
    with_probe: bool = True,
    progress: Progress = lambda _: None,
) -> Launched:
    """Start what does not run yet, wait until all serves, probe. On failure or Ctrl-C everything is stopped again.

    `keep` leaves a failed start as it is, for `status`, `logs` and `destroy`. Raises LaunchError with every reason.
    """
    target = find_target(options.target, options)
    path, folder = state_path(plan_path), log_folder(plan_path)
    with _locked(folder), interruptible():
        state = _existing(plan, path, options)
        engine, cluster = placed(plan, options, state)
        preflight.check(cluster, engine, options.target)
        if not state.processes:
            _raise_if(target.preflight(cluster, engine))
        try:
            state = target.apply(cluster, engine, state, folder, lambda newer: save_state(newer, path))
            report = _proven(state, target, timeout_s=timeout_s, with_probe=with_probe, progress=progress)
        except BaseException as error:
            raise _failed(error, target, path, keep) from None
        state = replace(state, phase="running")
        save_state(state, path)
    return Launched(state, report)


def _proven(
    state: ClusterState, target: Target, *, timeout_s: float, with_probe: bool, progress: Progress
) -> ProbeReport | None:
    """Wait until everything serves, then probe; LaunchError with every reason why it does not."""
    with target.reach(state) as live:
        wait_until_ready(
            live,
            lambda each: target.is_running(each, state),
            tail=lambda each: target.tail(each, state, LOG_LINES),
            timeout_s=timeout_s,
            progress=progress,
        )
        report = probe(live) if with_probe else None
    _raise_if(report.problems if report else ())
    return report


@contextmanager
def reached(plan_path: str | Path) -> Iterator[ClusterState]:
    """A launched cluster with URLs that answer from this machine, for the time of the block."""
    state = require_state(plan_path)
    with target_of(state).reach(state) as live:
        yield live


def status(plan_path: str | Path) -> tuple[ClusterState, list[ProcessStatus]]:
    """Every process of a launched plan: running, ready, loaded how."""
    state = require_state(plan_path)
    target = target_of(state)
    with target.reach(state) as live:
        found = [_status(process, target, state) for process in live.processes]
    named = {process.name: process for process in state.processes}
    return state, [replace(each, process=named[each.process.name]) for each in found]


def logs(plan_path: str | Path, names: Sequence[str] = (), *, lines: int = 20) -> dict[str, list[str]]:
    """The ends of logs, by process name; all processes when none is named."""
    state = require_state(plan_path)
    target = target_of(state)
    chosen = _chosen(state, names) if names else state.processes
    return {process.name: target.tail(process, state, lines) for process in chosen}


def destroy(plan_path: str | Path, *, progress: Progress = lambda _: None) -> list[str]:
    """Stop everything that was launched from a plan, routers first; returns the names. Logs stay."""
    state = require_state(plan_path)
    with _locked(log_folder(plan_path)):
        stop_all(state, target_of(state))
        state_path(plan_path).unlink(missing_ok=True)
    for process in state.processes:
        progress(f"{process.name} stopped")
    return [process.name for process in state.processes]


def target_of(state: ClusterState) -> Target:
    """The target a state was made with."""
    kubernetes = KubernetesOptions(
        namespace=str(state.extra.get("namespace", "")), context=str(state.extra.get("context", ""))
    )
    options = LaunchOptions(
        target=state.target,
        ssh_config=str(state.extra.get("ssh_config", "")),
        python=str(state.extra.get("python", "")),
        ray_address=str(state.extra.get("ray_address", "")),
        kubernetes=kubernetes,
    )
    return find_target(state.target, options)


def find_target(name: str, options: LaunchOptions) -> Target:
    """A target that can start things; UsageError names them."""
    if name not in LIVE_TARGETS:
        near = nearest_names(name, LIVE_TARGETS)
        hint = f"did you mean {' or '.join(near)}?" if near else "add --dry-run to write its files"
        raise UsageError(
            Problem(f"target {shorten(name)!r} cannot be started", expected=", ".join(LIVE_TARGETS), next_step=hint)
        )
    return LIVE_TARGETS[name](options)


def placed(plan: Plan, options: LaunchOptions, state: ClusterState) -> tuple[EngineAdapter, Cluster]:
    """Engine and cluster of a plan; on this machine all ports come from one free range, kept when launched again."""
    engine = make_engine(plan, options)
    if options.target != "local":
        return engine, make_cluster(plan, options, engine)
    hosts = {slot.node for pool in plan.pools for instance in pool.instances for slot in instance.gpus}
    hosts |= {host.name for host in plan.hosts}
    options = replace(options, addresses=dict.fromkeys(hosts, ADDRESS), router_host="")
    first = int(state.extra.get("base_port", 0)) or options.base_port
    if first:
        cluster = make_cluster(plan, replace(options, base_port=first), engine)
        front = int(state.extra.get("front_port", cluster.router.port))  # where it took over from another cluster
        return engine, replace(cluster, router=replace(cluster.router, port=front))
    for base in range(FIRST_PORT, 60000, PORT_STEP):
        cluster = make_cluster(plan, replace(options, base_port=base), engine)
        if not taken(ports_of(cluster)):
            return engine, cluster
    raise LaunchError(Problem("no free range of ports on this machine", next_step="--base-port PORT"))


def _existing(plan: Plan, path: Path, options: LaunchOptions) -> ClusterState:
    """The state to go on from: the saved one of the same plan, else a new one; refuses to forget another plan's."""
    digest = plan_hash(plan)
    saved = load_state(path)
    if saved is None or not saved.processes:
        return ClusterState("", options.target, "", digest, "", (), "starting", ())
    if saved.plan_hash != digest or saved.target != options.target:
        raise LaunchError(
            Problem(
                f"another {'plan' if saved.plan_hash != digest else 'target'} is running from this file",
                str(path),
                next_step="planner destroy PLAN, or launch the changed plan from a file of another name",
            )
        )
    return saved


def _failed(error: BaseException, target: Target, path: Path, keep: bool) -> BaseException:
    """Roll back, or keep for inspection; returns what to raise."""
    with deferred(forget=True):  # a second Ctrl-C must not interrupt the cleaning up of the first
        state = load_state(path)
        if state is None:
            return error
        if keep:
            save_state(replace(state, phase="failed"), path)
            note = Problem(
                f"kept {len(state.processes)} processes as they are", next_step="planner status|logs|destroy PLAN"
            )
        else:
            note = _rolled_back(state, target, path)
    if isinstance(error, LaunchError):
        return LaunchError([*error.problems, note])
    if isinstance(error, KeyboardInterrupt):
        return LaunchError([Problem("interrupted"), note])
    return error


def _rolled_back(state: ClusterState, target: Target, path: Path) -> Problem:
    """Stop everything and forget it; what could not be stopped stays in the state file for `planner destroy`."""
    try:
        stop_all(state, target)
    except LaunchError as error:
        save_state(replace(state, phase="failed"), path)
        reasons = "; ".join(str(problem.message) for problem in error.problems)
        return Problem(f"not everything could be stopped: {reasons}", str(path), next_step="planner destroy PLAN")
    path.unlink(missing_ok=True)
    return Problem(f"everything that was started has been stopped ({len(state.processes)} processes)")


def stop_all(state: ClusterState, target: Target) -> None:
    """Routers first, so that nothing new arrives while instances go."""
    target.stop([each for each in state.processes if each.role == "router"], state)
    target.stop([each for each in state.processes if each.role != "router"], state)


def _status(process: Process, target: Target, state: ClusterState) -> ProcessStatus:
    is_running = target.is_running(process, state)
    is_ready = is_running and (not process.ready_url or answers(process.ready_url))
    metrics = read_metrics(process.url) if is_ready and process.url and process.role != "router" else {}
    counts = [metrics.get(f"vllm:num_requests_{kind}") for kind in ("running", "waiting")]
    running, waiting = (None if count is None else int(count) for count in counts)
    return ProcessStatus(process, is_running, is_ready, running, waiting)


def _chosen(state: ClusterState, names: Sequence[str]) -> list[Process]:
    known = {process.name: process for process in state.processes}
    unknown = [name for name in names if name not in known]
    if unknown:
        raise UsageError(Problem(f"no process {shorten(unknown[0])!r}", expected=", ".join(known)))
    return [known[name] for name in names]


def _raise_if(problems: Sequence[Problem]) -> None:
    if problems:
        raise LaunchError(problems)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """One launch at a time for a plan: a lock on the folder of its logs."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(folder, os.O_RDONLY)
    except OSError as error:
        raise LaunchError(Problem(f"cannot write: {error.strerror}", str(folder))) from None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError:
        raise LaunchError(Problem("another launch of this plan is under way", str(folder))) from None
    finally:
        os.close(handle)
