"""What a target does with a cluster. The order of things is in `lifecycle`; targets only know how."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

from splitplan.catalogs.errors import Problem
from splitplan.launcher.cluster import Cluster
from splitplan.launcher.engines.base import EngineAdapter
from splitplan.launcher.state import ClusterState, Process

Save = Callable[[ClusterState], None]


class Target(Protocol):
    """Where processes run."""

    @property
    def name(self) -> str:
        """ "local", "ssh", "slurm", …"""

    def preflight(self, cluster: Cluster, engine: EngineAdapter) -> list[Problem]:
        """Why the cluster cannot start here now; [] when it can."""

    def apply(
        self, cluster: Cluster, engine: EngineAdapter, state: ClusterState, folder: Path, save: Save
    ) -> ClusterState:
        """Start what does not run yet. `save` is called after each step, so that nothing started is ever forgotten."""

    def is_running(self, process: Process, state: ClusterState) -> bool:
        """Whether a process is there, ready or not."""

    def stop(self, processes: Sequence[Process], state: ClusterState) -> None:
        """End processes and their children."""

    def tail(self, process: Process, state: ClusterState, lines: int) -> list[str]:
        """The end of a process's log."""

    def reach(self, state: ClusterState) -> AbstractContextManager[ClusterState]:
        """The state with URLs that answer from this machine, for the time of the block."""
