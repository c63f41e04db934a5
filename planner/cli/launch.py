"""`planner launch`: write a plan's manifests, or bring its cluster up."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from splitplan.planner.cli.output import JsonFlag, note, print_json

PlanArgument = Annotated[Path, typer.Argument(help="Plan file, as `planner solve -o` writes it.")]


def launch(
    plan: PlanArgument,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only write or print the files; contact nothing.")] = False,
    target: Annotated[str, typer.Option(help="shell or kubernetes.")] = "shell",
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Folder for the files.")] = None,
    engine: Annotated[str, typer.Option(help="For instance vllm or vllm@0.32; default: the plan's.")] = "",
    name: Annotated[str, typer.Option(help="Name of the cluster; default: from the plan's hash.")] = "",
    model_path: Annotated[str, typer.Option(help="Folder or repository of the weights.")] = "",
    checkpoint_dtype: Annotated[str, typer.Option(help="What the weights at --model-path are stored in.")] = "",
    served_name: Annotated[str, typer.Option(help="Model name that clients send; default: the plan's.")] = "",
    router_host: Annotated[str, typer.Option(help="Host of the router; default: the first decode host.")] = "",
    base_port: Annotated[int, typer.Option(min=0, max=60000, help="Take all ports from here up.")] = 0,
    ucx_net_devices: Annotated[str, typer.Option(help="NICs for KV transfer, for instance mlx5_0:1.")] = "",
    image: Annotated[str, typer.Option(help="Engine image, pinned by tag or digest.")] = "",
    router_image: Annotated[str, typer.Option(help="Router image, pinned by tag or digest.")] = "",
    namespace: Annotated[str, typer.Option(help="Kubernetes namespace.")] = "",
    rdma_resource: Annotated[str, typer.Option(help="Kubernetes RDMA resource; empty for none.")] = "rdma/ib",
    model_claim: Annotated[str, typer.Option(help="PersistentVolumeClaim with the weights, seen at /models.")] = "",
    run_as_root: Annotated[bool, typer.Option("--run-as-root", help="For engine images without a user.")] = False,
    accept_changed: Annotated[
        list[str] | None, typer.Option(help="Launch although this input changed: fleet, model, profiles or all.")
    ] = None,
    json: JsonFlag = False,
) -> None:
    """Write the manifests of a plan (--dry-run), or bring its cluster up.

    Example: planner launch plan.yaml --dry-run --target kubernetes -o manifests
    """
    from splitplan.launcher.files import as_stream, write_folder
    from splitplan.launcher.inputs import check_inputs
    from splitplan.launcher.render import LaunchOptions, render
    from splitplan.launcher.targets.kubernetes import KubernetesOptions
    from splitplan.planner.plan import load_plan

    options = LaunchOptions(
        target=target,
        engine=engine,
        name=name,
        model_path=model_path,
        checkpoint_dtype=checkpoint_dtype,
        served_name=served_name,
        image=image,
        router_image=router_image,
        router_host=router_host,
        base_port=base_port,
        ucx_net_devices=ucx_net_devices,
        kubernetes=KubernetesOptions(
            namespace=namespace, rdma_resource=rdma_resource, model_claim=model_claim, run_as_root=run_as_root
        ),
    )
    document = load_plan(plan)
    for changed, reason in check_inputs(document, plan, accept=accept_changed or ()).items():
        note(f"launching although the {changed} {reason}")
    files = render(document, options)
    if json:
        print_json("LaunchFiles", {"target": target, "files": files})
    elif output is None:
        typer.echo(as_stream(files), nl=False)
    if output is not None:
        write_folder(files, output)
        note(f"wrote {len(files)} files to {output}")
    if not dry_run:
        note("nothing was started: this target is started by hand from its files")
