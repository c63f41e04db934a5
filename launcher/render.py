"""From a plan and a user's options to the files of one target. Contacts nothing and starts nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from splitplan.catalogs.engine_rules import common_attention_backend
from splitplan.catalogs.engines import find_engine
from splitplan.catalogs.errors import LaunchError, Problem, SplitplanError, UsageError, nearest_names, shorten
from splitplan.catalogs.gpus import find_gpu
from splitplan.catalogs.models import find_model
from splitplan.launcher import preflight
from splitplan.launcher.cluster import Cluster, PortBases, place
from splitplan.launcher.engines.base import EngineAdapter, EngineOptions
from splitplan.launcher.engines.dynamo import BACKENDS as DYNAMO_BACKENDS
from splitplan.launcher.engines.dynamo import DynamoEngine
from splitplan.launcher.engines.mock import MockEngineAdapter
from splitplan.launcher.engines.sglang import SglangEngine
from splitplan.launcher.engines.vllm import VllmEngine
from splitplan.launcher.targets import groups, kubernetes, operators, pods, ray, ray_groups, shell, slurm
from splitplan.planner.plan import Plan, plan_hash


@dataclass(frozen=True, slots=True)
class LaunchOptions:
    """What the plan leaves open. Empty strings mean: decide from the plan."""

    target: str = "shell"
    engine: str = ""  # "vllm", "vllm@0.32"
    name: str = ""
    model_path: str = ""
    checkpoint_dtype: str = ""
    served_name: str = ""
    image: str = ""
    router_image: str = ""
    router_host: str = ""
    base_port: int = 0
    ucx_net_devices: str = ""
    shared_folder: str = ""
    device: str = ""  # "cpu": vLLM's build for CPUs
    host_cache: str = ""  # "native:64" or "lmcache:64", GiB
    python: str = ""  # of Dynamo's environment, or Ray's
    ray_address: str = ""  # "" for $RAY_ADDRESS, else the Ray cluster of this machine
    ssh_config: str = ""
    remote_folder: str = ".splitplan"
    slurm: slurm.SlurmOptions = field(default_factory=slurm.SlurmOptions)
    kubernetes: pods.KubernetesOptions = field(default_factory=pods.KubernetesOptions)
    addresses: Mapping[str, str] | None = None
    taken_ports: Mapping[str, set[int]] | None = None
    faults: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # of mock instances, by name


ValueT = TypeVar("ValueT")
EngineFactory = Callable[[str, EngineOptions, LaunchOptions], EngineAdapter]
TargetRenderer = Callable[[Cluster, EngineAdapter, LaunchOptions], dict[str, str]]


def _vllm(version: str, options: EngineOptions, launch: LaunchOptions) -> EngineAdapter:
    return VllmEngine.create(version, options, launch.image, launch.router_image)


def _mock(version: str, options: EngineOptions, launch: LaunchOptions) -> EngineAdapter:
    return MockEngineAdapter(options, launch.faults)


def _sglang(version: str, options: EngineOptions, launch: LaunchOptions) -> EngineAdapter:
    return SglangEngine.create(version, options, launch.image, launch.router_image)


def _dynamo(backend: str) -> EngineFactory:
    def made(version: str, options: EngineOptions, launch: LaunchOptions) -> EngineAdapter:
        return DynamoEngine.create(backend, version, options, launch.image, launch.router_image, launch.python)

    return made


ENGINES: Mapping[str, EngineFactory] = {
    "vllm": _vllm,
    "sglang": _sglang,
    **{f"dynamo-{backend}": _dynamo(backend) for backend in DYNAMO_BACKENDS},
    "mock": _mock,
}
"""By name: what makes an adapter for a version."""

TARGETS: Mapping[str, TargetRenderer] = {
    "shell": lambda cluster, engine, _: shell.render(cluster, engine),
    "ssh": lambda cluster, engine, _: shell.render(cluster, engine),
    "ray": lambda cluster, engine, _: ray.render(cluster, engine),
    "ray-groups": lambda cluster, engine, _: ray_groups.render(cluster, engine),
    "slurm": lambda cluster, engine, options: slurm.render(cluster, engine, options.slurm),
    "kubernetes": lambda cluster, engine, options: kubernetes.render(cluster, engine, options.kubernetes),
    "lws": lambda cluster, engine, options: groups.render_leader_worker_sets(cluster, engine, options.kubernetes),
    "disaggregatedset": lambda cluster, engine, options: groups.render_disaggregated_set(
        cluster, engine, options.kubernetes
    ),
    "dynamo": lambda cluster, engine, options: operators.render_dynamo(cluster, engine, options.kubernetes),
    "kserve": lambda cluster, engine, options: operators.render_kserve(cluster, engine, options.kubernetes),
    "llm-d": lambda cluster, engine, options: operators.render_llmd(cluster, engine, options.kubernetes),
    "grove": lambda cluster, engine, options: operators.render_grove(cluster, engine, options.kubernetes),
}
"""By name: what renders a placed cluster."""

IN_PODS = frozenset({"kubernetes", "lws", "disaggregatedset", "dynamo", "kserve", "llm-d", "grove", "ray"})
"""Targets whose processes own their network address and listen on all of it."""


def render(plan: Plan, options: LaunchOptions | None = None) -> dict[str, str]:
    """The files of a target, by relative path: deterministic for the same plan and options.

    Raises LaunchError with every reason why this engine or this target cannot run the plan.
    """
    options = options or LaunchOptions()
    renderer = _lookup("target", options.target, TARGETS)
    engine = make_engine(plan, options)
    cluster = make_cluster(plan, options, engine)
    preflight.check(cluster, engine, options.target)
    return renderer(cluster, engine, options)


def make_engine(plan: Plan, options: LaunchOptions) -> EngineAdapter:
    """The engine adapter: the one asked for, else the plan's own engine and version."""
    name, _, version = (options.engine or f"{plan.engine}@{plan.engine_version}").partition("@")
    factory = _lookup("engine", name, ENGINES)
    inner = EngineOptions(
        ucx_net_devices=options.ucx_net_devices,
        shared_folder=options.shared_folder,
        host_cache=options.host_cache,
        device=options.device,
        bind_all=options.target in IN_PODS,
    )
    return factory(version, inner, options)


def make_cluster(plan: Plan, options: LaunchOptions, engine: EngineAdapter) -> Cluster:
    """The plan placed on hosts and ports."""
    path, dtype = model_source(plan, options) if engine.needs_weights else ("", "")
    return place(
        with_backends(plan),
        digest=plan_hash(plan),
        name=options.name,
        model_path=path,
        checkpoint_dtype=dtype,
        served_name=options.served_name,
        bases=PortBases.all_from(options.base_port) if options.base_port else PortBases(),
        router_host=options.router_host,
        one_router=engine.one_router,
        taken_ports=options.taken_ports,
        addresses=options.addresses,
    )


def with_backends(plan: Plan) -> Plan:
    """The plan with an attention backend pinned on every pool that names none: the two sides must agree on one.

    Where no backend serves all GPU types of the two sides, pools stay open and preflight says so.
    """
    if all(pool.attention_backend for pool in plan.pools):
        return plan
    try:
        rules, model = find_engine(plan.engine), find_model(plan.inputs.model)
    except SplitplanError:
        return plan
    sides = [pool for pool in plan.pools if pool.role != "colocated"]
    common = (
        common_attention_backend(
            rules, [find_gpu(gpu) for pool in sides for gpu in pool.gpu_types], model, sides[0].kv_dtype
        )
        if sides
        else ""
    )
    pools = [
        pool
        if pool.attention_backend or pool.role == "colocated"
        else pool.model_copy(update={"attention_backend": common or ""})
        for pool in plan.pools
    ]
    return plan.model_copy(update={"pools": tuple(pools)})


def model_source(plan: Plan, options: LaunchOptions) -> tuple[str, str]:
    """(what the engine loads, the dtype it is stored in): the path given, a local folder, or the repository's name."""
    name = plan.inputs.model
    try:
        model = find_model(name)
    except SplitplanError:
        model = None
    dtype = options.checkpoint_dtype or (model.weight_dtype if model and not options.model_path else "")
    if options.model_path:
        return options.model_path, dtype
    path = Path(name)
    if path.exists():
        return str((path.parent if path.is_file() else path).resolve()), dtype
    repositories = [alias for alias in (name, *(model.aliases if model else ())) if alias.count("/") == 1]
    if not repositories:
        raise LaunchError(
            Problem(
                f"the engine needs to know where the weights of {shorten(name)} are",
                next_step="planner launch PLAN --model-path FOLDER_OR_REPOSITORY",
            )
        )
    return repositories[0], dtype


def _lookup(kind: str, name: str, table: Mapping[str, ValueT]) -> ValueT:
    if name in table:
        return table[name]
    near = nearest_names(name, table)
    hint = f"did you mean {' or '.join(near)}?" if near else ""
    raise UsageError(Problem(f"unknown {kind} {shorten(name)!r}", expected=", ".join(sorted(table)), next_step=hint))
