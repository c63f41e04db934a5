"""`planner launch`: write a plan's manifests, or bring its cluster up."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from splitplan.catalogs.errors import UsageError
from splitplan.planner.cli.output import JsonFlag, note, print_json

if TYPE_CHECKING:
    from splitplan.launcher.render import LaunchOptions
    from splitplan.planner.plan import Plan

PlanArgument = Annotated[Path, typer.Argument(help="Plan file, as `planner solve -o` writes it.")]

DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Only write or print the files; contact nothing.")]
TargetOption = Annotated[
    str, typer.Option(help="local, ssh, slurm, kubernetes, ray-groups; with --dry-run also shell, lws, …: see docs.")
]
OutputOption = Annotated[Path | None, typer.Option("--output", "-o", help="Folder for the files.")]
EngineOption = Annotated[str, typer.Option(help="vllm, sglang, dynamo-vllm, mock, …, or vllm@0.32.")]
NameOption = Annotated[str, typer.Option(help="Name of the cluster; default: from the plan's hash.")]
ModelPathOption = Annotated[str, typer.Option(help="Folder or repository of the weights.")]
CheckpointDtypeOption = Annotated[str, typer.Option(help="What the weights at --model-path are stored in.")]
ServedNameOption = Annotated[str, typer.Option(help="Model name that clients send; default: the plan's.")]
RouterHostOption = Annotated[str, typer.Option(help="Host of the router; default: the first decode host.")]
BasePortOption = Annotated[int, typer.Option(min=0, max=60000, help="Take all ports from here up.")]
UcxNetDevicesOption = Annotated[str, typer.Option(help="NICs for KV transfer: mlx5_0:1, or GPU=NIC;GPU=NIC.")]
ImageOption = Annotated[str, typer.Option(help="Engine image, pinned by tag or digest.")]
RouterImageOption = Annotated[str, typer.Option(help="Router image, pinned by tag or digest.")]
NamespaceOption = Annotated[str, typer.Option(help="Kubernetes namespace.")]
ContextOption = Annotated[str, typer.Option(help="Kubernetes: context of the kubeconfig; else its current one.")]
RdmaResourceOption = Annotated[str, typer.Option(help="Kubernetes RDMA resource, or GPU=NAME;GPU=NAME; empty: none.")]
ModelClaimOption = Annotated[str, typer.Option(help="PersistentVolumeClaim with the weights, seen at /models.")]
RunAsRootOption = Annotated[bool, typer.Option("--run-as-root", help="For engine images without a user.")]
GatewayOption = Annotated[str, typer.Option(help="Kubernetes: Gateway that a route leads from, split as planned.")]
GangOption = Annotated[str, typer.Option(help="Kubernetes: volcano or kueue:QUEUE; see also --target grove.")]
AcceptChangedOption = Annotated[
    list[str] | None, typer.Option(help="Launch although this input changed: fleet, model, profiles or all.")
]
SharedFolderOption = Annotated[str, typer.Option(help="Dynamo: folder all hosts see, for discovery.")]
PythonOption = Annotated[str, typer.Option(help="Dynamo, Ray: their environment's interpreter.")]
HostCacheOption = Annotated[
    str, typer.Option(help="vLLM: prompt KV in host memory too; native:GIB or lmcache:GIB for each instance.")
]
DeviceOption = Annotated[str, typer.Option(help="cpu: vLLM's build for CPUs, to try a launch without GPUs.")]
RayAddressOption = Annotated[str, typer.Option(help="Ray: HOST:PORT; default: $RAY_ADDRESS, else this machine's.")]
SshConfigOption = Annotated[str, typer.Option(help="Configuration file for ssh -F.")]
PartitionOption = Annotated[str, typer.Option(help="Slurm partition.")]
TimeLimitOption = Annotated[str, typer.Option(help="Slurm time limit, for instance 7-00:00:00.")]
ByRackOption = Annotated[
    bool, typer.Option("--by-rack", help="Slurm: any node of the planned rack (a feature of its name).")
]
ReplaceOption = Annotated[
    Path | None,
    typer.Option(help="Take over from this running plan (or its changed file) without dropping streams."),
]
KeepOption = Annotated[bool, typer.Option("--keep", help="Leave a failed start as it is, to look at it.")]
TimeoutOption = Annotated[float, typer.Option(min=1, help="Seconds until everything must serve.")]
ProbeOption = Annotated[bool, typer.Option(help="End with requests across prefill and decode, compared.")]


def launch(
    plan: PlanArgument,
    dry_run: DryRunOption = False,
    target: TargetOption = "",
    output: OutputOption = None,
    engine: EngineOption = "",
    name: NameOption = "",
    model_path: ModelPathOption = "",
    checkpoint_dtype: CheckpointDtypeOption = "",
    served_name: ServedNameOption = "",
    router_host: RouterHostOption = "",
    base_port: BasePortOption = 0,
    ucx_net_devices: UcxNetDevicesOption = "",
    image: ImageOption = "",
    router_image: RouterImageOption = "",
    namespace: NamespaceOption = "",
    context: ContextOption = "",
    rdma_resource: RdmaResourceOption = "rdma/ib",
    model_claim: ModelClaimOption = "",
    run_as_root: RunAsRootOption = False,
    gang: GangOption = "",
    gateway: GatewayOption = "",
    accept_changed: AcceptChangedOption = None,
    shared_folder: SharedFolderOption = "",
    python: PythonOption = "",
    device: DeviceOption = "",
    host_cache: HostCacheOption = "",
    ray_address: RayAddressOption = "",
    ssh_config: SshConfigOption = "",
    partition: PartitionOption = "",
    time_limit: TimeLimitOption = "",
    by_rack: ByRackOption = False,
    replace: ReplaceOption = None,
    keep: KeepOption = False,
    timeout: TimeoutOption = 3600.0,
    probe: ProbeOption = True,
    json: JsonFlag = False,
) -> None:
    """Write the manifests of a plan (--dry-run), or bring its cluster up and prove that it serves.

    Example: planner launch plan.yaml --dry-run --target kubernetes -o manifests

    Example: planner launch plan.yaml --engine mock
    """
    from splitplan.launcher.advice import advice
    from splitplan.launcher.inputs import check_inputs
    from splitplan.launcher.render import LaunchOptions
    from splitplan.launcher.targets.pods import KubernetesOptions
    from splitplan.launcher.targets.slurm import SlurmOptions
    from splitplan.planner.plan import load_plan

    if not dry_run and output is not None:
        raise UsageError("-o goes with --dry-run: without it, the cluster is started and nothing else is written")
    if dry_run and replace is not None:
        raise UsageError("--replace starts a cluster, --dry-run starts nothing: give one of them")
    options = LaunchOptions(
        target=target or ("shell" if dry_run else "local"),
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
        shared_folder=shared_folder,
        python=python,
        device=device,
        host_cache=host_cache,
        ray_address=ray_address,
        ssh_config=ssh_config,
        slurm=SlurmOptions(partition, time_limit, by_rack),
        kubernetes=KubernetesOptions(
            namespace=namespace,
            context=context,
            rdma_resource=rdma_resource,
            model_claim=model_claim,
            run_as_root=run_as_root,
            gang=gang,
            gateway=gateway,
        ),
    )
    document = load_plan(plan)
    for changed, reason in check_inputs(document, plan, accept=accept_changed or ()).items():
        note(f"launching although the {changed} {reason}")
    for sentence in advice(document, plan, options):
        note(f"note: {sentence}")
    if dry_run:
        _write(document, options, output, json=json)
    else:
        _start(document, plan, options, keep=keep, timeout_s=timeout, with_probe=probe, old=replace, json=json)


def _write(plan: Plan, options: LaunchOptions, output: Path | None, *, json: bool) -> None:
    from splitplan.launcher.files import as_stream, write_folder
    from splitplan.launcher.render import render

    files = render(plan, options)
    if json:
        print_json("LaunchFiles", {"target": options.target, "files": files})
    elif output is None:
        typer.echo(as_stream(files), nl=False)
    if output is not None:
        write_folder(files, output)
        note(f"wrote {len(files)} files to {output}")


def _start(
    plan: Plan,
    path: Path,
    options: LaunchOptions,
    *,
    keep: bool,
    timeout_s: float,
    with_probe: bool,
    old: Path | None,
    json: bool,
) -> None:
    from dataclasses import asdict

    from splitplan.launcher.lifecycle import launch as start
    from splitplan.planner.spec.length_buckets import range_in_words

    if old is not None:
        from splitplan.launcher.changes import replace_running

        launched = replace_running(plan, path, options, old_plan_path=old, timeout_s=timeout_s, progress=note)
    else:
        launched = start(plan, path, options, keep=keep, timeout_s=timeout_s, with_probe=with_probe, progress=note)
    state, report = launched.state, launched.report
    if json:
        data = {"endpoints": list(state.endpoints), "processes": [asdict(each) for each in state.processes]}
        print_json("Launched", {**data, "probe": report.as_json() if report else None})
        return
    if report:
        typer.echo(f"Probe     {report.summary()}")
    ranges = state.extra.get("prompts")
    if not ranges:
        typer.echo(f"Endpoint  {'  '.join(f'{url}/v1/completions' for url in state.endpoints)}")
    for (above, up_to), url in zip(ranges or (), state.endpoints, strict=False):
        typer.echo(f"Endpoint  {url}/v1/completions for {range_in_words(above, up_to)} tokens")
    typer.echo(f"Next      planner bench {path}   planner status {path}   planner destroy {path}")
