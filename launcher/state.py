"""What runs, kept in a file beside the plan, so that `status`, `logs`, `scale` and `destroy` need nothing else."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from splitplan.catalogs.errors import LaunchError, Problem
from splitplan.launcher.files import write_file

STATE_VERSION = 1
Phase = Literal["starting", "running", "failed"]


@dataclass(frozen=True, slots=True)
class Process:
    """One process of a running cluster. `pid` and `started_ticks` identify it on its host, `job` at a scheduler."""

    name: str
    role: str  # "prefill", "decode", "colocated", "router"
    instance: str  # "" for routers
    host: str
    rack: str
    url: str  # base URL; "" for ranks that serve nothing
    ready_url: str
    log: str
    fingerprint: str = ""  # of its command: a re-apply leaves equal ones alone
    pid: int = 0
    started_ticks: int = 0
    job: str = ""


@dataclass(frozen=True, slots=True)
class ClusterState:
    """A launched cluster."""

    name: str
    target: str
    engine: str
    plan_hash: str
    model: str
    endpoints: tuple[str, ...]
    phase: Phase
    processes: tuple[Process, ...]
    kv_bytes_per_token: float = 0.0
    extra: Mapping[str, Any] = field(default_factory=dict)  # of the target: job ids, folders

    def with_process(self, process: Process) -> ClusterState:
        """The state with one process added, or replaced by name."""
        kept = tuple(each for each in self.processes if each.name != process.name)
        return replace(self, processes=(*kept, process))

    def without(self, names: set[str]) -> ClusterState:
        """The state without some processes."""
        return replace(self, processes=tuple(each for each in self.processes if each.name not in names))

    def of_role(self, role: str) -> tuple[Process, ...]:
        """Serving processes of a role."""
        return tuple(each for each in self.processes if each.role == role and each.url)


def state_path(plan_path: str | Path) -> Path:
    """`plan.launch.json` for `plan.yaml`."""
    path = Path(plan_path)
    return path.with_name(f"{path.stem}.launch.json")


def log_folder(plan_path: str | Path) -> Path:
    """Where a local cluster logs: `plan.launch/` beside the plan."""
    path = Path(plan_path)
    return path.with_name(f"{path.stem}.launch")


def save_state(state: ClusterState, path: Path) -> None:
    """Write the state whole; readable by its owner only."""
    document = {"kind": "LaunchState", "version": STATE_VERSION, **asdict(state)}
    write_file(path, json.dumps(document, indent=2, ensure_ascii=False) + "\n", mode=0o600)


def load_state(path: Path) -> ClusterState | None:
    """The saved state, None when there is none; LaunchError when the file is not one of ours."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        if data.pop("kind") != "LaunchState" or data.pop("version") != STATE_VERSION:
            raise ValueError("of another kind or version")
        processes = tuple(Process(**each) for each in data.pop("processes"))
        return ClusterState(processes=processes, endpoints=tuple(data.pop("endpoints")), **data)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise LaunchError(
            Problem(f"is not a launch state ({error})", str(path), next_step="stop what runs by hand and delete it")
        ) from None


def require_state(plan_path: str | Path) -> ClusterState:
    """The state beside a plan; LaunchError when nothing was launched from it."""
    state = load_state(state_path(plan_path))
    if state is None:
        raise LaunchError(
            Problem("nothing was launched from this plan", str(plan_path), next_step=f"planner launch {plan_path}")
        )
    return state
