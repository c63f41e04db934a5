"""The readers as calls: each gives a checked Fleet file; nothing is written here."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from splitplan.catalogs.documents import Document
from splitplan.catalogs.errors import DocumentError, Problem, ProfileError
from splitplan.planner.spec.fleet_build import build_fleet
from splitplan.planner.spec.readers.hosts import Host, Imported, ImportOptions, Notes, build_document
from splitplan.planner.spec.readers.kubectl import read_kubectl
from splitplan.planner.spec.readers.nvidia_smi import read_topo_matrices
from splitplan.planner.spec.readers.slurm import read_slurm
from splitplan.planner.spec.readers.slurm_topology import Places, read_topology
from splitplan.planner.spec.readers.topograph import read_topograph
from splitplan.planner.spec.yaml_text import yaml_text


def import_kubectl(paths: Sequence[Path], options: ImportOptions, topology_labels: Sequence[str] = ()) -> Imported:
    """From `kubectl get nodes -o json` (and resource slices). Raises DocumentError."""
    hosts, notes = read_kubectl(paths, topology_labels)
    return _checked(hosts, notes, options, "kubectl get nodes")


def import_slurm(nodes: Path, topology: Path | None, options: ImportOptions) -> Imported:
    """From `scontrol show nodes`, and topology.conf or topology.yaml. Raises DocumentError."""
    places = read_topology(topology) if topology is not None else Places()
    hosts, notes = read_slurm(nodes, places)
    return _checked(hosts, notes, options, "scontrol show nodes")


def import_topograph(path: Path, options: ImportOptions) -> Imported:
    """From the JSON of topograph's graph engine. Raises DocumentError."""
    hosts, notes = read_topograph(path)
    return _checked(hosts, notes, options, "topograph")


def import_topo_matrices(paths: Sequence[Path], options: ImportOptions) -> Imported:
    """From `nvidia-smi topo -m`, one file per host, all of type `options.gpu`. Raises DocumentError."""
    hosts, notes = read_topo_matrices(paths, options.gpu)
    return _checked(hosts, notes, options, "nvidia-smi topo -m")


def import_machine(options: ImportOptions) -> Imported:
    """From this machine's GPUs through NVML.

    Raises ProfileError without a driver, InputError without GPUs of one type.
    """
    from splitplan.planner.spec.readers.nvml import read_machine
    from splitplan.profiler.device import read_gpus

    try:
        readings = read_gpus()
    except ProfileError as error:
        hint = "run this on the GPU host, or save `nvidia-smi topo -m` there and import that"
        raise ProfileError([replace(problem, next_step=hint) for problem in error.problems]) from None
    host, notes = read_machine(readings)
    return _checked([host], notes, options, f"the GPUs of {host.name}")


def _checked(hosts: Sequence[Host], notes: Notes, options: ImportOptions, source: str) -> Imported:
    imported = build_document(hosts, options, source, notes)
    build_fleet(Document(f"fleet of {source}", imported.document))  # what is handed out, load_fleet accepts
    return imported


def write_imported(imported: Imported, path: Path) -> None:
    """Write the Fleet file, whole or not at all. Raises DocumentError when it cannot be written."""
    try:
        temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
        temporary.write_text(yaml_text(imported.document), encoding="utf-8")
        temporary.replace(path)
    except OSError as error:
        raise DocumentError(Problem(f"cannot write the fleet: {error.strerror}", str(path))) from None
