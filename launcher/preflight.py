"""Everything that would make a launch fail, found before anything starts: all violations at once, each with its fix."""

from __future__ import annotations

import re
from collections.abc import Iterable

from splitplan.catalogs.connector_rules import connector_problems
from splitplan.catalogs.engine_rules import instance_problems
from splitplan.catalogs.engines import EngineSide, find_engine
from splitplan.catalogs.errors import LaunchError, Problem, SplitplanError, shorten
from splitplan.catalogs.gpus import find_gpu
from splitplan.catalogs.models import Model, find_model
from splitplan.launcher.cluster import Cluster
from splitplan.launcher.engines.base import EngineAdapter
from splitplan.planner.plan import Pool

RESOLVE = "planner solve again: it prunes by the same rules"
SEVERAL_FRONT_DOORS = frozenset({"local", "shell", "ssh", "slurm", "kubernetes", "lws", "ray-groups"})
"""Targets that put a router in front of each range of prompt lengths."""


def check(cluster: Cluster, engine: EngineAdapter, target: str) -> None:
    """LaunchError with every problem found without contacting anything; `target` is the name of where it shall run."""
    problems = [
        *engine.problems(cluster),
        *memory_problems(cluster),
        *word_problems(cluster),
        *length_problems(cluster, engine, target),
        *mpi_problems(cluster, engine, target),
    ]
    if engine.needs_weights:
        problems += rule_problems(cluster, engine)
    if problems:
        raise LaunchError(list(dict.fromkeys(problems)))


def word_problems(cluster: Cluster) -> list[Problem]:
    """Names of dtypes and backends become option values: anything but a word could be read as an option."""
    return [
        Problem(f"{shorten(pool.name)}: {key} is {shorten(repr(value))}", key=key, expected="letters, digits, - and _")
        for pool in cluster.plan.pools
        for key in ("attention_backend", "weight_dtype", "kv_dtype")
        if not re.fullmatch(r"([A-Za-z0-9_][A-Za-z0-9_.-]*)?", value := str(getattr(pool, key)))
    ]


def mpi_problems(cluster: Cluster, engine: EngineAdapter, target: str) -> list[Problem]:
    """TensorRT-LLM's ranks on several nodes are MPI processes, which Dynamo's operator starts and nothing else here."""
    if engine.name != "dynamo-trtllm" or target == "dynamo":
        return []
    pools = {member.pool.name for member in cluster.members if member.num_ranks > 1}
    return [
        Problem(
            f"{shorten(name)}: TensorRT-LLM over several nodes needs an MPI launcher, which {target} has not",
            next_step="--target dynamo, whose operator brings one, or another engine",
        )
        for name in sorted(pools)
    ]


def length_problems(cluster: Cluster, engine: EngineAdapter, target: str) -> list[Problem]:
    """Pools for prompts of some lengths only need a router that tells them apart, or a front door for each range."""
    plan = cluster.plan
    if not plan.tells_lengths_apart or engine.routes_by_length:
        return []
    ranges = ", ".join(str(prompts) for prompts in plan.prompt_ranges)
    without = "planner solve without --length-buckets"
    if engine.one_router:
        return [Problem(f"the plan tells {ranges} apart, and the router of {engine.name} does not", next_step=without)]
    if target not in SEVERAL_FRONT_DOORS:
        return [
            Problem(
                f"the plan tells {ranges} apart, and {target} has one front door",
                next_step=f"--target {' or '.join(sorted(SEVERAL_FRONT_DOORS))} gives each an endpoint of its own",
            )
        ]
    return [
        Problem(
            f"{prompts} go to prefill and to colocated instances, and one router of {engine.name} serves one kind",
            next_step=without,
        )
        for prompts in plan.prompt_ranges
        if len({pool.role for pool in plan.pools if pool.prompts.covers(prompts)} & {"prefill", "colocated"}) > 1
    ]


def memory_problems(cluster: Cluster) -> list[Problem]:
    """Limits of one pool that contradict each other: one request at the model length must fit the KV cache."""
    problems = []
    for pool in cluster.plan.pools:
        name = shorten(pool.name)
        if pool.kv_capacity_tokens and pool.max_model_len > pool.kv_capacity_tokens:
            problems.append(
                Problem(
                    f"{name}: one request of max_model_len {pool.max_model_len} tokens does not fit its KV cache "
                    f"of {pool.kv_capacity_tokens} tokens; the engine would refuse to start",
                    key="max_model_len",
                    expected=f"at most {pool.kv_capacity_tokens}",
                    next_step=RESOLVE,
                )
            )
        if pool.max_num_batched_tokens < pool.max_num_seqs:
            problems.append(
                Problem(
                    f"{name}: max_num_batched_tokens {pool.max_num_batched_tokens} is below max_num_seqs "
                    f"{pool.max_num_seqs}; a full decode batch would not fit one step",
                    key="max_num_batched_tokens",
                    next_step=RESOLVE,
                )
            )
    return problems


def rule_problems(cluster: Cluster, engine: EngineAdapter) -> list[Problem]:
    """What the engine catalog says about each instance and about each prefill → decode pair of pools."""
    plan = cluster.plan
    try:
        rules, model = find_engine(plan.engine), find_model(plan.inputs.model)
    except SplitplanError as error:
        return list(error.problems)
    messages: list[str] = []
    for pool in plan.pools:
        for gpu in pool.gpu_types:
            found = instance_problems(rules, model, find_gpu(gpu), _side(cluster, pool, engine))
            messages += [f"{shorten(pool.name)}: {message}" for message in found]
    for prefill, decode in _pairs(plan.pools):
        messages += _pair_messages(cluster, engine, model, prefill, decode)
    return [Problem(message, next_step=RESOLVE) for message in messages]


def _pair_messages(cluster: Cluster, engine: EngineAdapter, model: Model, prefill: Pool, decode: Pool) -> list[str]:
    plan = cluster.plan
    sides = _side(cluster, prefill, engine), _side(cluster, decode, engine)
    found = connector_problems(find_engine(plan.engine), plan.connector, model, *sides)
    return [f"{shorten(prefill.name)} → {shorten(decode.name)}: {message}" for message in found]


def _pairs(pools: Iterable[Pool]) -> list[tuple[Pool, Pool]]:
    pools = list(pools)
    return [(p, d) for p in pools if p.role == "prefill" for d in pools if d.role == "decode"]


def _side(cluster: Cluster, pool: Pool, engine: EngineAdapter) -> EngineSide:
    return EngineSide(
        model=cluster.model_path,
        gpu=pool.gpu_types[0],
        tensor_parallel=pool.tensor_parallel,
        pipeline_parallel=pool.pipeline_parallel,
        weight_dtype=pool.weight_dtype,
        kv_dtype=pool.kv_dtype,
        block_tokens=pool.block_tokens,
        attention_backend=pool.attention_backend,
        engine_version=engine.version,
        stage_layers=tuple(stage.layers for stage in pool.stages),
    )
