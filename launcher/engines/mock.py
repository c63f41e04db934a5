"""The project's own mock engine and router as an adapter: nothing but Python, timed by the plan's predictions."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from splitplan.catalogs.errors import Problem, shorten
from splitplan.launcher.cluster import Cluster, Member, RouterPlace
from splitplan.launcher.engines.base import Command, Comparison, EngineOptions


@dataclass(frozen=True, slots=True)
class MockEngineAdapter:
    """Mock instances behind the mock router. `faults` by instance name (or "router") makes them misbehave."""

    options: EngineOptions = field(default_factory=EngineOptions)
    faults: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    python: str = sys.executable
    name: str = "mock"
    version: str = "1"
    image: str = ""
    router_image: str = ""
    ready_path: str = "/v1/models"
    one_router: bool = True
    routes_by_length: bool = True
    needs_weights: bool = False
    comparison: Comparison = "alone"
    router_ready_path: str = "/v1/models"
    drains: bool = True

    def problems(self, cluster: Cluster) -> list[Problem]:
        """A mock needs the plan's timing tables, and its instances are single processes."""
        return timing_problems(cluster, "mock engine")

    def member(self, cluster: Cluster, member: Member) -> Command | None:
        """One process for each instance; ranks after the first have nothing to do."""
        if member.rank > 0:
            return None
        pool = member.pool
        config = {
            "name": member.instance.name,
            "role": pool.role,
            "host": "0.0.0.0" if self.options.bind_all else member.host.address,
            "port": member.ports.http,
            "kv_port": member.ports.side_channel,
            "model": cluster.served_name,
            "block_tokens": pool.block_tokens,
            "max_num_seqs": pool.max_num_seqs,
            "max_num_batched_tokens": pool.max_num_batched_tokens,
            "max_model_len": pool.max_model_len,
            "kv_capacity_tokens": pool.kv_capacity_tokens,
            "kv_bytes_per_token": cluster.plan.kv_bytes_per_token,
            "num_stages": pool.pipeline_parallel,
            "timing": pool.timing.model_dump(mode="json") if pool.timing else {},
            "transfer": _transfer_times(cluster, member.instance.name),
            "faults": dict(self.faults.get(member.instance.name, {})),
        }
        return self._python("engine", config)

    def router(self, cluster: Cluster, place: RouterPlace) -> Command:
        """One router for all instances, on the plan's routes."""
        leaders = [member for member in cluster.members if member.rank == 0]
        config = {
            "host": "0.0.0.0" if self.options.bind_all else place.host.address,
            "port": place.port,
            "model": cluster.served_name,
            "workers": {member.instance.name: (member.host.address, member.ports.http) for member in leaders},
            "paths": paths(cluster),
            "prompts": {
                member.instance.name: (member.pool.above_tokens, member.pool.up_to_tokens)
                for member in leaders
                if not member.pool.prompts.is_all
            },
            "faults": dict(self.faults.get("router", {})),
        }
        return self._python("router", config)

    def _python(self, module: str, config: Mapping[str, Any]) -> Command:
        argv = (self.python, "-m", f"splitplan.launcher.mock.{module}", "--config", json.dumps(config))
        found = [str(Path(part).resolve()) for part in os.environ.get("PYTHONPATH", "").split(os.pathsep) if part]
        return Command(argv, {"PYTHONPATH": os.pathsep.join(found)} if found else {})


def timing_problems(cluster: Cluster, what: str) -> list[Problem]:
    """Pools of a plan without the tables that time a mock."""
    return [
        Problem(
            f"pool {shorten(pool.name)} of the plan has no timing tables, which time the {what}",
            next_step="planner solve again with this version",
        )
        for pool in cluster.plan.pools
        if pool.timing is None
    ]


def paths(cluster: Cluster) -> list[tuple[str, str, float]]:
    """(prefill or "", decode or colocated, share of all requests), as planned.

    All pairs share alike where none is planned, or where the planned ones leave out an instance that is there.
    """
    split = 1.0 - cluster.colocated_share
    pairs = [
        (p.instance.name, d.instance.name)
        for p in cluster.leaders("prefill")
        for d in cluster.leaders("decode")
        if p.pool.prompts.meets(d.pool.prompts)
    ]
    planned = [route for route in cluster.plan.routes if (route.prefill, route.decode) in set(pairs)]
    found = [(route.prefill, route.decode, route.share * split) for route in planned]
    if {name for pair in pairs for name in pair} - {name for path in found for name in path[:2]}:
        found = [(p, d, split / len(pairs)) for p, d in pairs]
    colocated = cluster.leaders("colocated")
    total = sum(member.instance.share for member in colocated) or 1.0
    for member in colocated:
        found.append(("", member.instance.name, cluster.colocated_share * member.instance.share / total))
    return found


def _transfer_times(cluster: Cluster, decode: str) -> dict[str, tuple[float, float]]:
    """By prefill instance: the planned (base seconds, seconds per token) of a transfer into this one."""
    return {
        route.prefill: (route.transfer_base_s, route.transfer_s_per_token)
        for route in cluster.plan.routes
        if route.decode == decode
    }
