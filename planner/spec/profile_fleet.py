"""Which nodes of a fleet have to be profiled: one of each kind."""

from __future__ import annotations

from pathlib import Path

from splitplan.catalogs.errors import Problem, UsageError
from splitplan.catalogs.gpus import find_gpu
from splitplan.planner.spec.fleet import Fleet, load_fleet
from splitplan.profiler.fleet import Job, NodeKind, Via, make_jobs, one_of_each
from splitplan.profiler.session import Options


def fleet_jobs(fleet: str, via: Via, options: Options, folder: Path, *, image: str = "") -> list[Job]:
    """One profiling job for each kind of node of a fleet (a file, or the name of a shipped one)."""
    if not fleet:
        problem = Problem(
            "needs a fleet", "", "--via", "--fleet FILE", "planner profile --via slurm --fleet fleet.yaml"
        )
        raise UsageError(problem)
    return make_jobs(one_of_each(node_kinds(load_fleet(fleet))), via, options, folder, image=image)


def node_kinds(fleet: Fleet) -> list[NodeKind]:
    """Every node with GPUs as something to profile."""
    return [
        NodeKind(node.gpu, node.num_gpus, node.gpu_link, node.name, next(iter(find_gpu(node.gpu).product_labels), ""))
        for node in fleet.nodes
        if node.num_gpus
    ]
