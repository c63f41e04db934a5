"""`planner fleet import`: Fleet files from what clusters say about themselves."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from splitplan.planner.cli import output

if TYPE_CHECKING:
    from splitplan.planner.spec.readers.hosts import Imported, ImportOptions

importers = typer.Typer(no_args_is_help=True, help="Make a Fleet file from a cluster's own description.")

OutputFile = Annotated[Path | None, typer.Option("-o", "--output", help="File to write; default: standard output.")]
Nics = Annotated[
    list[str] | None,
    typer.Option("--nic", help="Network ports of a host: LINK:PORTS, or GPU=LINK:PORTS for one type; repeatable."),
]
GpuType = Annotated[str, typer.Option("--gpu", help="GPU type of hosts for which the source names none.")]
PerNode = Annotated[
    int | None, typer.Option("--gpus-per-node", min=1, max=128, help="Where the source does not count.")
]
FleetName = Annotated[str, typer.Option("--name", help="Name of the fleet.")]
Skip = Annotated[bool, typer.Option("--skip-unknown", help="Leave out hosts whose GPU type is not in the catalog.")]


@importers.command(epilog="Example: planner fleet import kubectl nodes.json --nic ib-ndr:8 -o fleet.yaml")
def kubectl(
    files: Annotated[list[Path], typer.Argument(help="`kubectl get nodes -o json`; with DRA also resourceslices.")],
    topology_label: Annotated[
        list[str] | None,
        typer.Option(
            "--topology-label", help="Label keys of zones, blocks and racks, widest first; the last is the rack."
        ),
    ] = None,
    file: OutputFile = None,
    nic: Nics = None,
    gpu: GpuType = "",
    gpus_per_node: PerNode = None,
    name: FleetName = "imported",
    skip_unknown: Skip = False,
    json: output.JsonFlag = False,
) -> None:
    """From the nodes of a Kubernetes cluster."""
    from splitplan.planner.spec.readers.imports import import_kubectl

    options = _options(name, gpu, gpus_per_node, nic, skip_unknown)
    _hand_out(import_kubectl(files, options, topology_label or ()), file, json=json)


@importers.command(epilog="Example: planner fleet import slurm nodes.txt --topology topology.conf --nic ib-hdr:4")
def slurm(
    nodes: Annotated[
        Path, typer.Argument(help="`scontrol show nodes` (-d tells which GPUs are taken), or its --json.")
    ],
    topology: Annotated[
        Path | None, typer.Option(help="topology.conf or topology.yaml; leaf switches are racks.")
    ] = None,
    file: OutputFile = None,
    nic: Nics = None,
    gpu: GpuType = "",
    name: FleetName = "imported",
    skip_unknown: Skip = False,
    json: output.JsonFlag = False,
) -> None:
    """From the nodes of a Slurm cluster."""
    from splitplan.planner.spec.readers.imports import import_slurm

    options = _options(name, gpu, None, nic, skip_unknown)
    _hand_out(import_slurm(nodes, topology, options), file, json=json)


@importers.command(epilog="Example: planner fleet import topograph graph.json --gpus-per-node 8 -o fleet.yaml")
def topograph(
    graph: Annotated[Path, typer.Argument(help="JSON of topograph's graph engine.")],
    file: OutputFile = None,
    nic: Nics = None,
    gpu: GpuType = "",
    gpus_per_node: PerNode = None,
    name: FleetName = "imported",
    skip_unknown: Skip = False,
    json: output.JsonFlag = False,
) -> None:
    """From topograph's discovery of a cloud or fabric."""
    from splitplan.planner.spec.readers.imports import import_topograph

    options = _options(name, gpu, gpus_per_node, nic, skip_unknown)
    _hand_out(import_topograph(graph, options), file, json=json)


@importers.command("nvidia-smi", epilog="Example: planner fleet import nvidia-smi host1.txt host2.txt --gpu h100")
def nvidia_smi(
    files: Annotated[list[Path], typer.Argument(help="`nvidia-smi topo -m`, one file per host, named after it.")],
    gpu: Annotated[str, typer.Option("--gpu", help="GPU type of these hosts.")],
    file: OutputFile = None,
    nic: Nics = None,
    name: FleetName = "imported",
    json: output.JsonFlag = False,
) -> None:
    """From the topology matrices of single hosts: NVLink domains, PCI roots, NICs."""
    from splitplan.planner.spec.readers.imports import import_topo_matrices

    _hand_out(import_topo_matrices(files, _options(name, gpu, None, nic, False)), file, json=json)


@importers.command(epilog="Example: planner fleet import nvml --nic ib-ndr:8 -o fleet.yaml")
def nvml(
    file: OutputFile = None, nic: Nics = None, name: FleetName = "imported", json: output.JsonFlag = False
) -> None:
    """From the GPUs of this machine, as the NVIDIA driver reports them."""
    from splitplan.planner.spec.readers.imports import import_machine

    _hand_out(import_machine(_options(name, "", None, nic, False)), file, json=json)


def _options(
    name: str, gpu: str, gpus_per_node: int | None, nic: list[str] | None, skip_unknown: bool
) -> ImportOptions:
    from splitplan.planner.spec.readers.hosts import ImportOptions, parse_nics

    return ImportOptions(name, gpu, gpus_per_node, parse_nics(nic or ()), skip_unknown)


def _hand_out(imported: Imported, file: Path | None, *, json: bool) -> None:
    import sys

    from splitplan.planner.spec.readers.imports import write_imported
    from splitplan.planner.spec.yaml_text import yaml_text

    for note in imported.notes:
        output.note(f"note: {note}")
    if file is not None:
        write_imported(imported, file)
        output.note(f"wrote {file}; next: planner solve --fleet {file} …")
    if json:
        output.print_json("fleet-import", {"fleet": imported.document, "notes": list(imported.notes)})
    elif file is None:
        sys.stdout.write(yaml_text(imported.document))
