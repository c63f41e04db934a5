"""Bare hosts: one bash script per host that starts, waits for, reports and stops that host's processes.

Everything that came from a plan, a fleet or a model is quoted with shlex before it reaches a script, and comments are
made of printable single lines. A process is known by its pid *and* its start time, so that a recycled pid is never
killed.
"""

from __future__ import annotations

import base64
import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files

from splitplan.launcher.cluster import Cluster, HostPlace, Member, RouterPlace
from splitplan.launcher.engines.base import Command, EngineAdapter
from splitplan.launcher.naming import comment, unique_labels

GPU_VISIBILITY = {"nvidia": "CUDA_VISIBLE_DEVICES", "amd": "HIP_VISIBLE_DEVICES"}
READY_TIMEOUT_S = 3600
SPLIT_NOTE = (
    "No router here looks at lengths: clients, or a gateway of yours, send each request where its prompt belongs,",
    "counted with the model's tokenizer. A prompt sent to the wrong one is served, or refused where it is too long.",
)


@dataclass(frozen=True, slots=True)
class Service:
    """One process of a host as its script sees it."""

    name: str  # a safe label, unique in the cluster
    what: str  # for people
    command: Command
    ready_url: str  # "" for processes that serve nothing (ranks after the first)
    url: str = ""  # base URL of what it serves
    member: Member | None = None  # None: a router


def render(cluster: Cluster, engine: EngineAdapter) -> dict[str, str]:
    """`hosts/<host>.sh` for every host, `cluster.json` for programs and `README.md` for people."""
    scripts = host_scripts(cluster, engine)
    return {
        "README.md": _readme(cluster, engine, scripts),
        "cluster.json": json.dumps(describe(cluster, engine), indent=2, ensure_ascii=False) + "\n",
        **dict(scripts.values()),
    }


def host_scripts(cluster: Cluster, engine: EngineAdapter) -> dict[str, tuple[str, str]]:
    """By host name: the script's path inside the folder and its text."""
    labels = unique_labels(place.name for place in cluster.hosts)
    services = services_by_host(cluster, engine)
    return {
        place.name: (f"hosts/{labels[place.name]}.sh", host_script(cluster, place, services.get(place.name, [])))
        for place in cluster.hosts
    }


def describe(cluster: Cluster, engine: EngineAdapter) -> dict[str, object]:
    """The placed cluster as plain data: endpoint, instances, URLs, hosts and GPU indices."""
    return {
        "kind": "Cluster",
        "version": 1,
        "name": cluster.name,
        "plan_hash": cluster.plan_hash,
        "engine": f"{engine.name}@{engine.version}",
        "model": cluster.served_name,
        "endpoints": [router.url for router in cluster.routers],
        **({"prompts": prompts_of(cluster)} if cluster.length_routers else {}),
        "instances": [
            {
                "name": member.name,
                "role": member.pool.role,
                "host": member.host.name,
                "rack": member.instance.rack,
                "gpu": member.gpu,
                "gpu_indices": list(member.gpu_indices),
                "url": member.url if member.rank == 0 else None,
                "side_channel_port": member.ports.side_channel,
            }
            for member in cluster.members
        ],
    }


def prompts_of(cluster: Cluster) -> list[tuple[int, int]]:
    """For each endpoint, (above, up to) input tokens of the prompts that it is for; 0 is no bound."""
    return [(router.prompts.above, router.prompts.up_to) for router in cluster.routers]


def gpu_environment(member: Member) -> dict[str, str]:
    """The variable that shows a process its planned GPUs only."""
    vendor = "amd" if member.gpu.startswith("mi") else "nvidia"
    return {GPU_VISIBILITY[vendor]: ",".join(str(index) for index in member.gpu_indices)}


def services_by_host(cluster: Cluster, engine: EngineAdapter) -> dict[str, list[Service]]:
    """The processes of each host, by the host's name; routers after the instances."""
    names = [member.name for member in cluster.members]
    labels = unique_labels(names, max_length=50)
    services: dict[str, list[Service]] = {}
    for member in cluster.members:
        command = engine.member(cluster, member)
        if command is not None:
            service = _member_service(engine, member, command, labels[member.name])
            services.setdefault(member.host.name, []).append(service)
    for number, place in enumerate(cluster.routers):
        name = (
            "router" if number == 0 else "router-colocated" if place is cluster.colocated_router else f"router-{number}"
        )
        while name in labels.values():
            name += "-front"
        services.setdefault(place.host.name, []).append(_router_service(cluster, engine, place, name))
    return services


def _member_service(engine: EngineAdapter, member: Member, command: Command, label: str) -> Service:
    command = replace(command, env={**gpu_environment(member), **command.env})
    pool = member.pool
    what = f"{member.name}: {pool.role}, {member.gpu} TP{pool.tensor_parallel} PP{pool.pipeline_parallel}"
    if member.num_ranks > 1:
        what += f", rank {member.rank} of {member.num_ranks}"
    url = member.url if member.rank == 0 else ""
    return Service(label, what, command, f"{url}{engine.ready_path}" if url else "", url, member)


def _router_service(cluster: Cluster, engine: EngineAdapter, place: RouterPlace, name: str) -> Service:
    command = engine.router(cluster, place)
    who = "clients use" if place.prompts.is_all else f"clients use for {place.prompts} tokens"
    what = f"the endpoint that {who}: {place.url}"
    return Service(name, what, command, f"{place.url}{engine.router_ready_path}", place.url)


def host_script(cluster: Cluster, place: HostPlace, services: Sequence[Service]) -> str:
    """The script of one host."""
    lines = [
        "#!/usr/bin/env bash",
        f"# Host {comment(place.name)}, rack {comment(place.rack) or '-'}: part of {cluster.name}.",
        "# Usage: start | wait | status | stop | logs  [SERVICE…]   (all services of this host when none is named)",
        "# Logs and pid files go to $SPLITPLAN_RUN_DIR (default: run/ beside the folder of this script).",
        "set -euo pipefail",
        f"RUN_NAME={shlex.quote(cluster.name)}",
        f"SERVICES=({' '.join(shlex.quote(service.name) for service in services)})",
        f"READY_TIMEOUT_S=${{SPLITPLAN_READY_TIMEOUT_S:-{READY_TIMEOUT_S}}}",
        "",
        *_transport_note(services),
    ]
    for service in services:
        lines += [f"# {comment(service.what)}", f"run_{_identifier(service.name)}() {{"]
        lines += [*file_lines(service.command), *_exec_lines(service), "}"]
        lines += [f"ready_{_identifier(service.name)}={shlex.quote(service.ready_url)}", ""]
    return "\n".join(lines) + "\n" + _script_tail()


@cache
def _script_tail() -> str:
    """What every host script ends with: start, wait, status, logs, stop."""
    return (files("splitplan.launcher.targets") / "host.sh").read_text(encoding="utf-8")


def file_lines(command: Command) -> list[str]:
    """Write what the command needs beside its log."""
    lines = []
    for name, content in command.files.items():
        coded = base64.b64encode(content).decode()
        folder = shlex.quote(name.rpartition("/")[0] or ".")
        lines.append(f"  mkdir -p {folder} && base64 -d >{shlex.quote(name)} <<<{coded}")
    return lines


def _exec_lines(service: Service) -> list[str]:
    """The exec line broken after each option, for people to read."""
    words = [shlex.quote(word) for word in (*_environment_words(service.command.env), *service.command.argv)]
    lines, current = [], "  exec"
    for word in words:
        if word.startswith("--") and len(current) > 60:
            lines.append(current + " \\")
            current = "   "
        current += f" {word}"
    return [*lines, current]


def _environment_words(env: Mapping[str, str]) -> list[str]:
    return ["env", *(f"{name}={value}" for name, value in env.items())] if env else []


def _transport_note(services: Sequence[Service]) -> list[str]:
    uses_nixl = any("VLLM_NIXL_SIDE_CHANNEL_HOST" in service.command.env for service in services)
    has_devices = any("UCX_NET_DEVICES" in service.command.env for service in services)
    if not uses_nixl or has_devices:
        return []
    return [
        "# KV goes over UCX, which falls back to TCP silently where it finds no RDMA (600 times slower). On hosts with",
        "# several NICs set UCX_NET_DEVICES=mlx5_0:1 (planner launch --ucx-net-devices), and check with `ucx_info -d`.",
        "",
    ]


def _identifier(label: str) -> str:
    return label.replace("-", "_")


def _readme(cluster: Cluster, engine: EngineAdapter, scripts: Mapping[str, tuple[str, str]]) -> str:
    lines = [
        f"# {cluster.name}",
        "",
        f"{comment(cluster.served_name)} on {engine.name} {engine.version}; plan {cluster.plan_hash[:12]}.",
        "",
        "Copy each script to its host, with the engine installed there, and run:",
        "",
        "| host | instances | command |",
        "|---|---|---|",
    ]
    for place in cluster.hosts:
        path = scripts[place.name][0]
        names = ", ".join(member.name for member in cluster.members if member.host.name == place.name) or "router"
        lines.append(f"| {_cell(place.name)} | {_cell(names)} | `bash {path} start && bash {path} wait` |")
    lines += ["", "Start order does not matter: the router waits for its workers.", ""]
    lines += [f"{endpoint_label(router)}: {router.url}/v1/completions" for router in cluster.routers]
    if cluster.length_routers:
        lines += ["", *SPLIT_NOTE]
    if cluster.colocated_router:
        share = f"{100 * cluster.colocated_share:.0f} %"
        lines += ["", f"vllm-router serves one kind of instance: send {share} of the requests to the second endpoint."]
    lines += [
        "",
        "`bash hosts/HOST.sh status` reports, `… logs` shows the last lines, `… stop` ends everything of a host.",
    ]
    return "\n".join(lines) + "\n"


def endpoint_label(place: RouterPlace) -> str:
    """`Endpoint`, with the prompts it is for where there are several."""
    return "Endpoint" if place.prompts.is_all else f"Endpoint for {place.prompts} tokens"


def _cell(text: str) -> str:
    return comment(text).replace("|", "\\|").replace("`", "'")
