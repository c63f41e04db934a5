"""Forms that an operator or a chart turns into pods: Dynamo, KServe, llm-d, Grove.

Each holds less than a plan: where it cannot say what was planned, it is refused with the reason instead of rendered
wrongly.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping

from splitplan.catalogs.errors import LaunchError, Problem
from splitplan.launcher.cluster import Cluster, Member
from splitplan.launcher.engines.base import EngineAdapter
from splitplan.launcher.engines.dynamo import pairs_in_racks
from splitplan.launcher.targets.groups import at_group_addresses, members_of, one_pool, one_type, pool_names
from splitplan.launcher.targets.kubernetes import with_pod_routers
from splitplan.launcher.targets.pods import (
    SHM_GIB_PER_GPU,
    KubernetesOptions,
    Manifest,
    check_engine,
    check_image,
    common_labels,
    device_resources,
    dump,
    engine_container,
    kustomization,
    literal,
    metadata,
    pod_spec,
    pool_placement,
)
from splitplan.planner.plan import Pool

LLMD_IMAGE = "ghcr.io/llm-d/llm-d-cuda:v0.9.0"
OPERATOR_OPTIONS = ("--host", "--port", "--served-model-name", "--tensor-parallel-size", "--pipeline-parallel-size")
"""Options that KServe and llm-d set themselves."""


def render_dynamo(cluster: Cluster, engine: EngineAdapter, options: KubernetesOptions | None = None) -> dict[str, str]:
    """A DynamoGraphDeployment (v1beta1): a frontend, a component for each pool, the rack rule where the plan has it."""
    options = options or KubernetesOptions()
    backend = engine.name.removeprefix("dynamo-")
    if not engine.name.startswith("dynamo-") or backend == "mocker":
        raise LaunchError(
            Problem(
                f"a DynamoGraphDeployment runs Dynamo's workers, not {engine.name}",
                next_step="--engine dynamo-vllm, dynamo-sglang or dynamo-trtllm",
            )
        )
    check_image(engine.image)
    for pool in cluster.plan.pools:
        one_type(pool, "a DynamoGraphDeployment")
    names = pool_names(cluster)
    cluster = with_pod_routers(at_group_addresses(cluster, names))
    components = [_frontend(engine)] + [
        _component(cluster, engine, pool, names[pool.name].removeprefix(f"{cluster.name}-"), options)
        for pool in cluster.plan.pools
    ]
    spec: Manifest = {"backendFramework": backend, "components": components}
    if pairs_in_racks(cluster):
        policy = {"labelKey": options.rack_label, "domain": "rack", "enforcement": "required"}
        spec["experimental"] = {"kvTransferPolicy": policy}
    elif len({member.instance.rack for member in cluster.members}) == 1:
        spec["topologyConstraint"] = {"packDomain": "rack"}
    document = {
        "apiVersion": "nvidia.com/v1beta1",
        "kind": "DynamoGraphDeployment",
        "metadata": metadata(cluster.name, common_labels(cluster, "graph", cluster.name), options),
        "spec": spec,
    }
    files = {"dynamographdeployment.yaml": dump([document])}
    return {**files, "kustomization.yaml": dump([kustomization(list(files), options)])}


def _frontend(engine: EngineAdapter) -> Manifest:
    env = [{"name": "DYN_ROUTER_MODE", "value": "kv"}]  # the mode in which kvTransferPolicy has an effect
    container = {"name": "main", "image": engine.image, "env": env}
    return {"name": "Frontend", "type": "frontend", "replicas": 1, "podTemplate": {"spec": {"containers": [container]}}}


def _component(cluster: Cluster, engine: EngineAdapter, pool: Pool, name: str, options: KubernetesOptions) -> Manifest:
    members = members_of(cluster, pool)
    first = members[0]
    pod = pod_spec(cluster, engine, first, options)
    container = {**pod["containers"][0], "name": "main"}
    own = {"DYN_DISCOVERY_BACKEND", "DYN_FILE_KV", "DYN_REQUEST_PLANE", "DYN_EVENT_PLANE", "DYN_SYSTEM_PORT"}
    prefixes = ("DYN_TCP_", "DYN_EVENT_", "DYN_TOPOLOGY_", "DYN_KV_", "DYN_SYSTEM_")
    container["env"] = [
        each for each in container["env"] if each["name"] not in own and not each["name"].startswith(prefixes)
    ]  # the operator's to set
    container = {key: value for key, value in container.items() if not key.endswith("Probe") and key != "ports"}
    command = container.pop("command")
    container["command"], container["args"] = command[:3], _without_ranks(command[3:])
    component: Manifest = {
        "name": name,
        "type": {"colocated": "worker"}.get(pool.role, pool.role),
        "replicas": len(members),
        "sharedMemorySize": f"{SHM_GIB_PER_GPU * len(first.gpu_indices)}Gi",
    }
    if first.num_ranks > 1:
        component["multinode"] = {"nodeCount": first.num_ranks}
    pod = {key: value for key, value in pod.items() if key not in ("volumes", "nodeSelector")}
    container["volumeMounts"] = []
    component["podTemplate"] = {"spec": {**pod, **pool_placement(members), "containers": [_without_empty(container)]}}
    return component


def _without_empty(container: Manifest) -> Manifest:
    """Shared memory and home are the operator's: no mounts of volumes that are not there."""
    env = [each for each in container["env"] if each["name"] != "HOME"]
    return {key: value for key, value in {**container, "env": env}.items() if key != "volumeMounts"}


def _without_ranks(words: list[str]) -> list[str]:
    """Options that say which of several nodes this is: the operator's to set."""
    return _without(words, ("--nnodes", "--node-rank", "--master-addr", "--master-port", "--dist-init-addr"))


def _without(words: list[str], options: tuple[str, ...]) -> list[str]:
    kept, skip = [], False
    for word in words:
        if skip:
            skip = False
        elif word in options:
            skip = True
        else:
            kept.append(word)
    return kept


def render_kserve(cluster: Cluster, engine: EngineAdapter, options: KubernetesOptions | None = None) -> dict[str, str]:
    """An LLMInferenceService (v1alpha2): the top-level template is decode or colocated, `prefill` stands beside it."""
    options = options or KubernetesOptions()
    _require_vllm(engine, "an LLMInferenceService")
    main, prefill = _two_sides(cluster, "an LLMInferenceService")
    names = pool_names(cluster)
    cluster = with_pod_routers(at_group_addresses(cluster, names))
    spec: Manifest = {
        "model": {"uri": _model_uri(cluster), "name": cluster.served_name},
        **_kserve_side(cluster, engine, main, options),
        "router": {"route": {}, "gateway": {}, "scheduler": {}},
    }
    if prefill is not None:
        spec["prefill"] = _kserve_side(cluster, engine, prefill, options)
    document = {
        "apiVersion": "serving.kserve.io/v1alpha2",
        "kind": "LLMInferenceService",
        "metadata": metadata(cluster.name, common_labels(cluster, "service", cluster.name), options),
        "spec": spec,
    }
    files = {"llminferenceservice.yaml": dump([document])}
    return {**files, "kustomization.yaml": dump([kustomization(list(files), options)])}


def _kserve_side(cluster: Cluster, engine: EngineAdapter, pool: Pool, options: KubernetesOptions) -> Manifest:
    members = members_of(cluster, pool)
    if members[0].num_ranks > 1:
        raise LaunchError(
            Problem(
                f"{pool.name}: an LLMInferenceService spreads data parallel ranks over nodes, not TP or PP",
                next_step="--target lws expresses it",
            )
        )
    extra = shlex.join(_pass_through(cluster, engine, members[0]))
    container = {
        "name": "main",
        "image": _llmd_image(engine),
        "env": [{"name": "VLLM_ADDITIONAL_ARGS", "value": literal(extra)}, *_side_env(engine, cluster, members[0])],
        "resources": device_resources(members[0], options),
    }
    parallelism: Manifest = {"tensor": pool.tensor_parallel}
    if pool.pipeline_parallel > 1:
        parallelism["pipeline"] = pool.pipeline_parallel
    template = {**pool_placement(members), "containers": [container]}
    return {"replicas": len(members), "parallelism": parallelism, "template": template}


def render_llmd(cluster: Cluster, engine: EngineAdapter, options: KubernetesOptions | None = None) -> dict[str, str]:
    """Values for the llm-d-modelservice chart, for `helm install -f values.yaml`."""
    options = options or KubernetesOptions()
    _require_vllm(engine, "the llm-d-modelservice chart")
    main, prefill = _two_sides(cluster, "the llm-d-modelservice chart")
    for pool in cluster.plan.pools:
        if pool.pipeline_parallel > 1 or any(member.num_ranks > 1 for member in members_of(cluster, pool)):
            raise LaunchError(
                Problem(
                    f"{pool.name}: the llm-d-modelservice chart has no pipeline parallelism and no TP over nodes",
                    next_step="--target lws expresses it",
                )
            )
    names = pool_names(cluster)
    cluster = with_pod_routers(at_group_addresses(cluster, names))
    values: Manifest = {
        "multinode": False,
        "fullnameOverride": cluster.name,
        "accelerator": {"type": "amd" if main.gpu.startswith("mi") else "nvidia"},
        "modelArtifacts": _artifacts(cluster),
        "routing": {"servicePort": 8000, "proxy": {"secure": False}},
        "decode": _llmd_side(cluster, engine, main, options),
        "prefill": {"create": False} if prefill is None else _llmd_side(cluster, engine, prefill, options),
    }
    return {"values.yaml": dump([values])}


def _llmd_side(cluster: Cluster, engine: EngineAdapter, pool: Pool, options: KubernetesOptions) -> Manifest:
    members = members_of(cluster, pool)
    placement = pool_placement(members)
    container = {
        "name": "vllm",
        "image": _llmd_image(engine),
        "modelCommand": "vllmServe",
        "args": [literal(word) for word in _pass_through(cluster, engine, members[0])],
        "env": _side_env(engine, cluster, members[0]),
        "ports": [{"containerPort": 8200 if pool.role == "decode" else 8000}, {"containerPort": 5600}],
        "resources": device_resources(members[0], options),
        "mountModelVolume": True,
    }
    return {
        "create": True,
        "replicas": len(members),
        "parallelism": {"tensor": pool.tensor_parallel},
        "nodeSelector": placement["nodeSelector"],
        "containers": [container],
    }


def render_grove(cluster: Cluster, engine: EngineAdapter, options: KubernetesOptions | None = None) -> dict[str, str]:
    """A Grove PodCliqueSet: all pods of the plan as one gang, so that no side waits alone."""
    options = options or KubernetesOptions()
    check_engine(engine, "a PodCliqueSet")
    names = pool_names(cluster)
    cluster = with_pod_routers(at_group_addresses(cluster, names))
    cliques = []
    for pool in cluster.plan.pools:
        members = members_of(cluster, pool)
        if members[0].num_ranks > 1:
            raise LaunchError(
                Problem(
                    f"{pool.name}: instances over several nodes are not rendered for Grove", next_step="--target lws"
                )
            )
        pod = {**pod_spec(cluster, engine, members[0], options), **pool_placement(members)}
        name = names[pool.name].removeprefix(f"{cluster.name}-")
        spec = {"roleName": name, "replicas": len(members), "minAvailable": len(members), "podSpec": pod}
        cliques.append({"name": name, "labels": common_labels(cluster, pool.role, name), "spec": spec})
    document = {
        "apiVersion": "grove.io/v1alpha1",
        "kind": "PodCliqueSet",
        "metadata": metadata(cluster.name, common_labels(cluster, "gang", cluster.name), options),
        "spec": {"replicas": 1, "template": {"cliques": cliques}},
    }
    files = {"podcliqueset.yaml": dump([document])}
    return {**files, "kustomization.yaml": dump([kustomization(list(files), options)])}


def _two_sides(cluster: Cluster, what: str) -> tuple[Pool, Pool | None]:
    """(decode or colocated, prefill or None); LaunchError when the plan holds more than `what` can."""
    prefill, decode, colocated = (one_pool(cluster, role, what) for role in ("prefill", "decode", "colocated"))
    if colocated is not None and decode is not None:
        raise LaunchError(
            Problem(
                f"{what} serves either colocated or disaggregated; this plan does both",
                next_step="--target kubernetes or --target lws expresses it",
            )
        )
    main = decode or colocated
    if main is None:
        raise LaunchError(Problem("the plan has no decode side"))
    return main, prefill


def _pass_through(cluster: Cluster, engine: EngineAdapter, member: Member) -> list[str]:
    """The plan's engine options that the operator does not set by itself."""
    command = engine.member(cluster, member)
    words = list(command.argv[3:]) if command else []  # after `vllm serve MODEL`
    return _without(words, OPERATOR_OPTIONS)


def _side_env(engine: EngineAdapter, cluster: Cluster, member: Member) -> list[Manifest]:
    container = engine_container(engine, cluster, member, KubernetesOptions(hf_token_secret=""))
    return [each for each in container["env"] if each["name"].startswith(("VLLM_NIXL", "UCX_"))]


def _artifacts(cluster: Cluster) -> Mapping[str, str]:
    return {"name": cluster.model_path, "uri": _model_uri(cluster), "size": "200Gi"}


def _model_uri(cluster: Cluster) -> str:
    return f"hf://{cluster.model_path}" if not cluster.model_path.startswith("/") else f"pvc:/{cluster.model_path}"


def _llmd_image(engine: EngineAdapter) -> str:
    """llm-d's own build of the engine, unless another image was asked for."""
    image = engine.image if not engine.image.startswith("vllm/vllm-openai:") else LLMD_IMAGE
    check_image(image)
    return image


def _require_vllm(engine: EngineAdapter, what: str) -> None:
    if engine.name != "vllm":
        raise LaunchError(Problem(f"{what} runs vLLM, not {engine.name}", next_step="--engine vllm"))
