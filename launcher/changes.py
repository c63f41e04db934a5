"""From one running cluster to another without dropping a stream: a changed plan, or more and fewer instances of it.

New instances serve and are probed before anything old goes. Then a second router listens on the same port beside the
first, the first takes nothing new and ends when its last stream has, and only then its instances are stopped. That
needs a router which shares its port and drains (the mock router does); another one is stopped and started, which cuts
the streams it carries. Old and new run side by side for a while: on real GPUs that takes free ones.

Under ssh, Slurm, Kubernetes and Ray an endpoint does not move from one cluster to the next: the new one is brought up
and proven beside the old one, clients are told, the old one ends when it has nothing left to do.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from splitplan.catalogs.errors import LaunchError, Problem, UsageError, shorten
from splitplan.launcher import processes
from splitplan.launcher.cluster import Cluster
from splitplan.launcher.engines.base import EngineAdapter
from splitplan.launcher.interrupts import deferred
from splitplan.launcher.lifecycle import DEFAULT_TIMEOUT_S, Launched, launch, placed, stop_all, target_of
from splitplan.launcher.probe import probe, read_metrics
from splitplan.launcher.readiness import Progress, wait_until_ready
from splitplan.launcher.render import LaunchOptions
from splitplan.launcher.state import ClusterState, Process, log_folder, require_state, save_state, state_path
from splitplan.launcher.targets.local import LocalTarget, describe, write_files
from splitplan.launcher.targets.shell import services_by_host
from splitplan.launcher.web import answers, get
from splitplan.planner.plan import Plan

DRAIN_S = 120.0
DRAIN_POLL_S = 0.5
ROUTER_START_S = 60.0


def replace_running(
    plan: Plan,
    plan_path: str | Path,
    options: LaunchOptions,
    *,
    old_plan_path: str | Path = "",
    timeout_s: float = DEFAULT_TIMEOUT_S,
    drain_s: float = DRAIN_S,
    progress: Progress = lambda _: None,
) -> Launched:
    """Start `plan`, move the old cluster's endpoint to it, then stop the old one. A failed start leaves the old one.

    `old_plan_path` is where the old plan lies, `plan_path` itself when its content was changed.
    """
    old_path = state_path(old_plan_path or plan_path)
    old = require_state(old_plan_path or plan_path)
    elsewhere = "local" not in (old.target, options.target)
    if elsewhere:
        _require_other_name(plan, options, old)
    else:
        _require_local(old)
    aside = old_path.with_suffix(".old.json")
    os.replace(old_path, aside)
    try:
        launched = launch(plan, plan_path, options, timeout_s=timeout_s, progress=progress)
    except BaseException:
        os.replace(aside, old_path)
        raise
    if elsewhere:
        _let_go(old, launched.state, drain_s=drain_s, progress=progress)
        aside.unlink(missing_ok=True)
        return launched
    engine, cluster = placed(plan, options, launched.state)
    port = _front_port(old)
    state = _take_over(cluster, engine, launched.state, plan_path, old, port, drain_s=drain_s, progress=progress)
    aside.unlink(missing_ok=True)
    return Launched(state, launched.report)


def _let_go(old: ClusterState, new: ClusterState, *, drain_s: float, progress: Progress) -> None:
    """Where an endpoint cannot move: say where the new one is, let the old one finish what it has, then stop it.

    Clients that stay with the old endpoint for longer than `drain_s` are cut.
    """
    progress(f"the new cluster serves at {', '.join(new.endpoints)}: point clients there, not at {old.endpoints[0]}")
    target = target_of(old)
    deadline_s = time.monotonic() + drain_s
    with target.reach(old) as live:
        while (left := _requests_in(live)) and time.monotonic() < deadline_s:
            time.sleep(DRAIN_POLL_S)
    if left:
        progress(f"the old cluster still had {left} requests after {drain_s:g} s; they are cut")
    stop_all(old, target)
    progress(f"{old.name} stopped")


def _requests_in(state: ClusterState) -> int:
    """Requests that run or wait on any instance, as far as they count them."""
    names = ("vllm:num_requests_running", "vllm:num_requests_waiting")
    found = [read_metrics(process.url) for process in state.processes if process.url and process.role != "router"]
    return int(sum(values.get(name, 0.0) for values in found for name in names))


def scale(
    plan: Plan,
    plan_path: str | Path,
    counts: Mapping[str, int],
    options: LaunchOptions,
    *,
    timeout_s: float = DEFAULT_TIMEOUT_S,
    drain_s: float = DRAIN_S,
    progress: Progress = lambda _: None,
) -> ClusterState:
    """Run the first `counts[role or pool]` instances of a role or pool of the plan; others stay as they are."""
    state = require_state(plan_path)
    _require_local(state)
    engine, cluster = placed(plan, options, state)
    running = {process.instance for process in state.processes if process.instance}
    cluster = _with_counts(cluster, running, counts)
    kept = {member.instance.name for member in cluster.members}
    target, path = LocalTarget(), state_path(plan_path)
    before = state
    wanted = [process for process in state.processes if not process.instance or process.instance in kept]
    state = replace(state, processes=tuple(wanted))

    def save(newer: ClusterState) -> None:
        leaving = [process for process in before.processes if process.instance and process.instance not in kept]
        save_state(replace(newer, processes=(*newer.processes, *leaving)), path)

    state = target.apply(cluster, engine, state, log_folder(plan_path), save, instances_only=True)
    wait_until_ready(state, lambda each: target.is_running(each, state), timeout_s=timeout_s, progress=progress)
    port = _front_port(state)
    leaving = [process for process in before.processes if process.instance and process.instance not in kept]
    old = replace(before, processes=(*leaving, *(each for each in before.processes if each.role == "router")))
    state = replace(state, processes=tuple(each for each in state.processes if each.role != "router"))
    state = _take_over(cluster, engine, state, plan_path, old, port, drain_s=drain_s, progress=progress)
    report = probe(state)
    if report.problems:
        raise LaunchError(report.problems)
    return state


def _take_over(
    cluster: Cluster,
    engine: EngineAdapter,
    state: ClusterState,
    plan_path: str | Path,
    old: ClusterState,
    port: int,
    *,
    drain_s: float,
    progress: Progress,
) -> ClusterState:
    """A router for `cluster` on the old port; the old routers drain, the old instances stop, the new state is saved."""
    target, path, folder = LocalTarget(), state_path(plan_path), log_folder(plan_path)
    routers = [process for process in old.processes if process.role == "router"]
    if not engine.drains:
        progress(f"{engine.name}'s router cannot hand over its port: it is restarted, streams under way are cut")
        target.stop(routers, old)
    front = replace(cluster, router=replace(cluster.router, port=port))
    with deferred():
        process = _start_router(front, engine, folder)
        temporary = [each for each in state.processes if each.role == "router"]
        kept = tuple(each for each in state.processes if each.role != "router")
        endpoints = (front.router.url, *state.endpoints[1:])
        extra = {**state.extra, "front_port": port}
        state = replace(state, processes=(*kept, process), endpoints=endpoints, extra=extra, phase="running")
        save_state(replace(state, processes=(*state.processes, *temporary, *_renamed(old.processes))), path)
    _wait_for(process)
    progress(f"{process.name} serves on the old endpoint {process.url}")
    _drain([*routers, *temporary], drain_s, progress)
    target.stop([*routers, *temporary], old)
    target.stop([each for each in old.processes if each.role != "router"], old)
    save_state(state, path)
    return state


def _start_router(cluster: Cluster, engine: EngineAdapter, folder: Path) -> Process:
    services = [each for services in services_by_host(cluster, engine).values() for each in services]
    service = next(each for each in services if each.member is None)
    process = describe(service, cluster.router.host.name, folder)
    write_files(service.command, folder)
    pid, ticks = processes.start(service.command, Path(process.log), folder)
    return replace(process, pid=pid, started_ticks=ticks)


def _wait_for(router: Process) -> None:
    """Until this very router answers on a port that two of them share."""
    deadline_s = time.monotonic() + ROUTER_START_S
    while time.monotonic() < deadline_s and processes.is_alive(router.pid, router.started_ticks):
        with contextlib.suppress(OSError):
            if get(f"{router.url}/health", timeout_s=2.0).decode() == str(router.pid) and answers(router.ready_url):
                return
        time.sleep(0.02)
    raise LaunchError(Problem(f"{router.name} does not take over {router.url}", router.log))


def _drain(routers: Sequence[Process], drain_s: float, progress: Progress) -> None:
    """Ask routers to take nothing new, and give their streams time to end."""
    alive = [each for each in routers if processes.is_alive(each.pid, each.started_ticks)]
    for router in alive:
        os.kill(router.pid, signal.SIGUSR1)
    deadline_s = time.monotonic() + drain_s
    while alive and time.monotonic() < deadline_s:
        time.sleep(0.05)
        alive = [each for each in alive if processes.is_alive(each.pid, each.started_ticks)]
    for router in alive:
        progress(f"{router.name} (pid {router.pid}) still had streams after {drain_s:g} s; they are cut")


def _renamed(old: Sequence[Process]) -> list[Process]:
    """Names of the old cluster beside equal ones of the new, while both run."""
    return [replace(each, name=f"old-{each.name}") for each in old]


def _with_counts(cluster: Cluster, running: set[str], counts: Mapping[str, int]) -> Cluster:
    """The cluster with as many instances of each role or pool as asked; where nothing is asked, those that run."""
    known = {member.pool.role for member in cluster.members} | {pool.name for pool in cluster.plan.pools}
    problems = [
        Problem(f"the plan has no role or pool {shorten(name)!r}", expected=", ".join(sorted(known)))
        for name in counts
        if name not in known
    ]
    kept: set[str] = set()
    for pool in cluster.plan.pools:
        names = [instance.name for instance in pool.instances]
        count = counts.get(pool.name, counts.get(pool.role))
        if count is None:
            kept |= set(names) & running
        elif not 0 <= count <= len(names):
            problems.append(Problem(f"{shorten(pool.name)} has {len(names)} instances", expected=f"0 to {len(names)}"))
        else:
            kept |= set(names[:count])
    members = tuple(member for member in cluster.members if member.instance.name in kept)
    roles = {member.pool.role for member in members}
    if not problems and (not members or len(roles & {"prefill", "decode"}) == 1):
        problems.append(Problem("nothing would serve any more: a prefill and a decode instance must be left"))
    if problems:
        raise UsageError(problems)
    return replace(cluster, members=members)


def _front_port(state: ClusterState) -> int:
    """The port of the endpoint that clients know."""
    return int(state.extra.get("front_port", state.extra["base_port"]))


def _require_other_name(plan: Plan, options: LaunchOptions, old: ClusterState) -> None:
    """Both stand beside each other for a while."""
    if placed(plan, options, old)[1].name == old.name:
        raise LaunchError(
            Problem(f"{old.name} runs already under this name", next_step="--name another, or without --name")
        )


def _require_local(state: ClusterState) -> None:
    if state.target != "local":
        raise LaunchError(
            Problem(
                f"a cluster on {state.target} is not changed while it runs",
                next_step="planner destroy PLAN, then planner launch PLAN",
            )
        )
