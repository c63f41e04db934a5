"""LeaderWorkerSet and DisaggregatedSet (lws v1): instances as groups of pods, kept together in a rack.

A LeaderWorkerSet has one template for all its replicas, so that a pool's pods may run on any of the pool's planned
nodes (node affinity), not each on its own. Names of pods of a DisaggregatedSet change with every rollout: its router
finds them by label.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from splitplan.catalogs.errors import LaunchError, Problem, shorten
from splitplan.launcher.cluster import Cluster, Member
from splitplan.launcher.engines.base import EngineAdapter
from splitplan.launcher.engines.dynamo import pairs_in_racks
from splitplan.launcher.inventory import check_options
from splitplan.launcher.naming import unique_labels
from splitplan.launcher.targets.kubernetes import (
    disruption_budget,
    gateway_routes,
    network_policy,
    router_objects,
    with_pod_routers,
)
from splitplan.launcher.targets.pods import (
    POD_PORTS,
    KubernetesOptions,
    Manifest,
    check_engine,
    check_image,
    common_labels,
    dump,
    kustomization,
    metadata,
    pod_spec,
    pool_placement,
)
from splitplan.planner.plan import Pool

LEADER = "leader.lws.invalid"
"""Stands for the leader's address until the pod's own variable takes its place."""

EXCLUSIVE_ANNOTATION = "leaderworkerset.sigs.k8s.io/exclusive-topology"


def render_leader_worker_sets(
    cluster: Cluster, engine: EngineAdapter, options: KubernetesOptions | None = None
) -> dict[str, str]:
    """A LeaderWorkerSet for each pool: `replicas` instances of `size` pods."""
    options = options or KubernetesOptions()
    check_engine(engine, "a LeaderWorkerSet")
    check_image(engine.router_image)
    names = pool_names(cluster)
    cluster = with_pod_routers(at_group_addresses(cluster, names))
    files: dict[str, str] = {}
    for pool in cluster.plan.pools:
        name = names[pool.name]
        document: Manifest = {
            "apiVersion": "leaderworkerset.x-k8s.io/v1",
            "kind": "LeaderWorkerSet",
            "metadata": metadata(name, common_labels(cluster, pool.role, name), options),
            "spec": group_spec(cluster, engine, pool, name, options),
        }
        if any(member.num_ranks > 1 for member in members_of(cluster, pool)):
            document["metadata"]["annotations"] = {EXCLUSIVE_ANNOTATION: options.rack_label}
        files[f"{name}.yaml"] = dump([document])
    routers = [each for place in cluster.routers for each in router_objects(cluster, engine, place, options)]
    routers += gateway_routes(cluster, options)
    roles = dict.fromkeys(pool.role for pool in cluster.plan.pools)
    budgets = [disruption_budget(cluster, role, options) for role in roles]
    files["router.yaml"] = dump([*routers, *budgets, network_policy(cluster, options)])
    files["kustomization.yaml"] = dump([kustomization(list(files), options)])
    return files


def render_disaggregated_set(
    cluster: Cluster, engine: EngineAdapter, options: KubernetesOptions | None = None
) -> dict[str, str]:
    """One DisaggregatedSet: a slice for each rack where racks are alike and no route leaves them, else one slice."""
    options = options or KubernetesOptions()
    if engine.name != "vllm":
        raise LaunchError(
            Problem(
                f"a DisaggregatedSet needs a router that finds pods by label; none is known for {engine.name}",
                next_step="--engine vllm, or --target lws",
            )
        )
    check_image(engine.image)
    roles = {pool.role for pool in cluster.plan.pools}
    if roles != {"prefill", "decode"}:
        raise LaunchError(
            Problem(
                f"a DisaggregatedSet holds prefill and decode; this plan has {', '.join(sorted(roles))}",
                next_step="--target kubernetes or --target lws expresses it",
            )
        )
    names, cluster = pool_names(cluster), with_pod_routers(at_group_addresses(cluster, pool_names(cluster)))
    slices = _slices(cluster)
    is_packed = slices > 1 or (pairs_in_racks(cluster) is False and _num_racks(cluster) == 1)
    placement = {"type": "ExclusiveSlice", "topology": options.rack_label} if is_packed else {"type": "None"}
    spec: Manifest = {
        "slices": slices,
        "placementPolicy": placement,
        "roles": [
            {"name": names[pool.name], "spec": group_spec(cluster, engine, pool, names[pool.name], options, slices)}
            for pool in cluster.plan.pools
        ],
    }
    document = {
        "apiVersion": "disaggregatedset.x-k8s.io/v1",
        "kind": "DisaggregatedSet",
        "metadata": metadata(cluster.name, common_labels(cluster, "set", cluster.name), options),
        "spec": spec,
    }
    files = {
        "disaggregatedset.yaml": dump([document]),
        "router.yaml": dump(_discovering_router(cluster, engine, options)),
    }
    files["kustomization.yaml"] = dump([kustomization(list(files), options)])
    return files


def group_spec(
    cluster: Cluster, engine: EngineAdapter, pool: Pool, name: str, options: KubernetesOptions, slices: int = 1
) -> Manifest:
    """`replicas` groups of `size` pods; ranks after the first are workers."""
    members = members_of(cluster, pool)
    leader = members[0]
    labels = common_labels(cluster, pool.role, name)
    template: Manifest = {"size": leader.num_ranks, "restartPolicy": "RecreateGroupOnPodRestart"}
    pods = {
        rank: {
            "metadata": {"labels": labels},
            "spec": {**pod_spec(cluster, engine, member, options), **_placement(cluster, pool, rank, members)},
        }
        for rank, member in enumerate(_ranks(cluster, leader))
    }
    if leader.num_ranks > 1:
        template["leaderTemplate"] = _with_variables(pods[0], is_worker=False)
    template["workerTemplate"] = _with_variables(pods[max(pods)], is_worker=leader.num_ranks > 1)
    return {"replicas": len(members) // slices, "leaderWorkerTemplate": template}


def members_of(cluster: Cluster, pool: Pool) -> list[Member]:
    """Rank 0 of each instance of a pool."""
    return [member for member in cluster.members if member.pool.name == pool.name and member.rank == 0]


def pool_names(cluster: Cluster) -> dict[str, str]:
    """An object name for each pool, short enough for the names that controllers derive from it."""
    labels = unique_labels((pool.name for pool in cluster.plan.pools), max_length=30)
    return {pool: f"{cluster.name}-{label}" for pool, label in labels.items()}


def at_group_addresses(cluster: Cluster, names: Mapping[str, str]) -> Cluster:
    """Members at the addresses of their groups' leaders: NAME-INDEX.NAME."""
    seen: Counter[str] = Counter()
    members = []
    for member in cluster.members:
        if member.rank == 0:
            seen[member.pool.name] += 1
        name = names[member.pool.name]
        host = replace(member.host, address=f"{name}-{seen[member.pool.name] - 1}.{name}")
        members.append(replace(member, host=host, ports=POD_PORTS, leader_address=LEADER))
    return replace(cluster, members=tuple(members))


def _ranks(cluster: Cluster, leader: Member) -> list[Member]:
    """The leader and, where there are any, one member that stands for all workers."""
    if leader.num_ranks == 1 or not leader.pool.stages:
        return [leader] if leader.num_ranks == 1 else [leader, replace(leader, rank=1)]
    workers = [member for member in cluster.members if member.instance is leader.instance and member.rank > 0]
    types = sorted({worker.gpu for worker in workers})
    if len(types) > 1:
        raise LaunchError(
            Problem(
                f"{shorten(leader.pool.name)}: a group has one template for its workers, here they need "
                f"{' and '.join(types)}",
                next_step="--target kubernetes expresses it",
            )
        )
    return [leader, replace(workers[0], host=replace(workers[0].host, address=leader.host.address))]


def _placement(cluster: Cluster, pool: Pool, rank: int, leaders: Sequence[Member]) -> Manifest:
    """Where pods of a pool may run; of a mixed pipeline those of its leaders, or of its workers."""
    if not pool.stages:
        return pool_placement(leaders)
    same = [member for member in cluster.members if member.pool.name == pool.name and (member.rank > 0) == (rank > 0)]
    return pool_placement([replace(member, num_ranks=1) for member in same])


def one_type(pool: Pool, what: str) -> None:
    """LaunchError where `what` has one form of pod for all hosts of an instance and they are not alike."""
    if pool.stages:
        raise LaunchError(
            Problem(
                f"{shorten(pool.name)}: {what} gives all hosts of an instance one GPU type, not "
                f"{' and '.join(pool.gpu_types)}",
                next_step="--target kubernetes, lws, slurm, ssh or ray-groups expresses it",
            )
        )


def _with_variables(pod: Manifest, *, is_worker: bool) -> Manifest:
    """The group's own variables in place of the leader's address and of the worker's rank."""
    container = pod["spec"]["containers"][0]
    command = [word.replace(LEADER, "$(LWS_LEADER_ADDRESS)") for word in container["command"]]
    if is_worker:
        command[command.index("--node-rank") + 1] = "$(LWS_WORKER_INDEX)"
    changed = {**container, "command": command}
    return {**pod, "spec": {**pod["spec"], "containers": [changed]}}


def _num_racks(cluster: Cluster) -> int:
    return len({member.instance.rack for member in cluster.members})


def _slices(cluster: Cluster) -> int:
    """Racks, where every rack holds the same instances and every pair is inside one; else 1."""
    if not pairs_in_racks(cluster):
        return 1
    racks: dict[str, Counter[str]] = {}
    for member in cluster.members:
        if member.rank == 0:
            racks.setdefault(member.instance.rack, Counter())[member.pool.name] += 1
    contents = list(racks.values())
    return len(contents) if all(each == contents[0] for each in contents) else 1


def _discovering_router(cluster: Cluster, engine: EngineAdapter, options: KubernetesOptions) -> Sequence[Manifest]:
    """The router with selectors in place of URLs, and the permission to look at pods."""
    service, deployment = router_objects(cluster, engine, cluster.router, options)
    name = cluster.router.host.name
    pod = deployment["spec"]["template"]["spec"]
    container = pod["containers"][0]
    words = [word for word in container["command"] if not word.startswith("http://")]
    command = [word for word in words if word not in ("--prefill", "--decode")]
    instance = f"app.kubernetes.io/instance={cluster.name}"
    command += ["--service-discovery", "--service-discovery-port", str(POD_PORTS.http)]
    command += ["--prefill-selector", instance, "splitplan.io/role=prefill"]
    command += ["--decode-selector", instance, "splitplan.io/role=decode"]
    if options.namespace:
        command += ["--service-discovery-namespace", options.namespace]
    check_options("vllm-router", "0.1.17", command)
    container["command"] = command
    pod["serviceAccountName"], pod["automountServiceAccountToken"] = name, True
    labels = common_labels(cluster, "router", name)
    about = metadata(name, labels, options)
    rules = [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"]}]
    subject: Manifest = {"kind": "ServiceAccount", "name": name}
    if options.namespace:
        subject["namespace"] = options.namespace
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name}
    return [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": about},
        {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": about, "rules": rules},
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "RoleBinding",
            "metadata": about,
            "roleRef": role,
            "subjects": [subject],
        },
        service,
        deployment,
    ]


def one_pool(cluster: Cluster, role: str, what: str) -> Pool | None:
    """The only pool of a role, None when there is none; LaunchError when `what` cannot hold several."""
    pools = [pool for pool in cluster.plan.pools if pool.role == role]
    if len(pools) > 1:
        kinds = ", ".join(shorten(pool.name) for pool in pools)
        raise LaunchError(
            Problem(
                f"{what} holds one kind of {role} instance; this plan has {len(pools)} ({kinds})",
                next_step="--target kubernetes or --target lws expresses it",
            )
        )
    return pools[0] if pools else None
