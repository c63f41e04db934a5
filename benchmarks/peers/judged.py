"""Somebody else's recommendation as a deployment that our simulator runs, and the highest rate that it sustains."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

from splitplan.catalogs.engine_rules import effective_block_tokens
from splitplan.planner.columns.column import Role
from splitplan.planner.columns.hosts import host_kinds
from splitplan.planner.columns.options import DECODE_MIN_CHUNK, PREFILL_MAX_SEQS
from splitplan.planner.columns.shapes import Shape, shape_memory
from splitplan.planner.columns.steps import StepLibrary
from splitplan.planner.inputs import SolveInputs, load_inputs
from splitplan.planner.judge.deploy import deployment_of
from splitplan.planner.judge.verify import Effort, Judge, default_effort
from splitplan.planner.latency.step import StepModel
from splitplan.planner.plan import GpuSlot, Instance, Pool, Route
from splitplan.planner.question import Question
from splitplan.planner.review.replay import plan_deployment
from splitplan.planner.simulate.deployment import Deployment
from splitplan.planner.solve import solve

LEAST_PROMPT_TOKENS = 8192
"""A prefill or colocated worker takes at least this many tokens a step: vLLM's default on large GPUs."""


@dataclass(frozen=True, slots=True)
class Arm:
    """Equal instances of one role."""

    role: Role
    gpu: str
    tensor_parallel: int
    pipeline_parallel: int
    instances: int
    batch: int  # sequences; prompts, for prefill


def build(inputs: SolveInputs, arms: Sequence[Arm]) -> Deployment | None:
    """The arms on the fleet's nodes, filled one after another; None where one of them does not fit its memory."""
    library = StepLibrary(inputs.model, inputs.engine, inputs.profiles)
    free = {node.name: list(range(node.num_gpus)) for node in inputs.fleet.nodes}
    pools: list[Pool] = []
    steps: dict[str, StepModel] = {}
    for arm in sorted(arms, key=lambda arm: -arm.tensor_parallel):
        shape = _shape(inputs, arm)
        chunk = max(DECODE_MIN_CHUNK, arm.batch) if arm.role == "decode" else LEAST_PROMPT_TOKENS
        seqs = PREFILL_MAX_SEQS if arm.role == "prefill" else arm.batch
        memory = shape_memory(
            shape,
            inputs.model,
            inputs.engine,
            max_num_seqs=seqs,
            chunk=chunk,
            fraction=inputs.engine.memory_fraction,
            max_model_len=inputs.max_model_len,
        )
        if not memory.fits:
            return None
        pool = _pool(inputs, arm, shape, memory.kv_capacity_tokens, seqs, chunk, free)
        pools.append(pool)
        steps[pool.name] = library(shape)
    shared = 1.0 if all(pool.role == "colocated" for pool in pools) else 0.0
    return deployment_of(pools, _routes(pools), steps, inputs, colocated_share=shared)


def _shape(inputs: SolveInputs, arm: Arm) -> Shape:
    host = next(kind for kind in host_kinds(inputs.fleet) if kind.gpu.name == arm.gpu)
    dtype = inputs.model.weight_dtype
    return Shape(host, arm.tensor_parallel, arm.pipeline_parallel, 1, dtype, "bf16", "")


def _pool(
    inputs: SolveInputs, arm: Arm, shape: Shape, kv_tokens: int, seqs: int, chunk: int, free: dict[str, list[int]]
) -> Pool:
    racks = {node.name: node.rack for node in inputs.fleet.nodes}
    kinds = {node.name: node.gpu for node in inputs.fleet.nodes}
    size = arm.tensor_parallel * arm.pipeline_parallel
    instances = []
    for number in range(arm.instances):
        node = next(name for name, gpus in free.items() if kinds[name] == arm.gpu and len(gpus) >= size)
        taken, free[node] = free[node][:size], free[node][size:]
        slots = tuple(GpuSlot(node=node, index=index) for index in taken)
        name = f"{arm.role}-{arm.gpu}-{number}"
        instances.append(Instance(name=name, rack=racks[node], gpus=slots, share=1.0 / arm.instances))
    return Pool(
        name=f"{arm.role}-{arm.gpu}",
        role=arm.role,
        gpu=arm.gpu,
        tensor_parallel=arm.tensor_parallel,
        pipeline_parallel=arm.pipeline_parallel,
        weight_dtype=shape.weight_dtype,
        kv_dtype=shape.kv_dtype,
        block_tokens=effective_block_tokens(inputs.engine, "", inputs.engine.block_tokens),
        max_num_seqs=seqs,
        max_num_batched_tokens=chunk,
        max_model_len=inputs.max_model_len,
        memory_fraction=inputs.engine.memory_fraction,
        kv_capacity_tokens=kv_tokens,
        usd_per_gpu_hour=inputs.fleet.usd_per_gpu_hour[arm.gpu],
        instances=tuple(instances),
    )


def _routes(pools: Sequence[Pool]) -> tuple[Route, ...]:
    """Every prefill instance to every decode instance, in equal shares."""
    prefill = [item for pool in pools if pool.role == "prefill" for item in pool.instances]
    decode = [item for pool in pools if pool.role == "decode" for item in pool.instances]
    return tuple(
        Route(
            prefill=one.name,
            decode=other.name,
            share=1.0 / (len(prefill) * len(decode)),
            path="same-node"
            if one.gpus[0].node == other.gpus[0].node
            else "same-rack"
            if one.rack == other.rack
            else "cross-rack",
        )
        for one, other in product(prefill, decode)
    )


def sustained(
    inputs: SolveInputs, deployment: Deployment | None, tolerance: float = 0.02, effort: Effort | None = None
) -> float:
    """Requests per second at which the targets still hold, by bisection on the same requests; 0 when it cannot run."""
    if deployment is None:
        return 0.0
    judge, asked = Judge(inputs, effort or default_effort()), inputs.workload.rate_req_per_s
    low, high = 0.0, 0.25
    while judge.screen(deployment, high)[0].passed:
        low, high = high, 2 * high
    while high - low > tolerance * high and high > 0.01:
        middle = (low + high) / 2
        if judge.screen(deployment, middle)[0].passed:
            low = middle
        else:
            high = middle
    return low * asked


def ours(question: Question) -> tuple[float, str]:
    """Our plan's highest sustained rate, judged in the same way, and the plan in words."""
    plan = solve(question)
    inputs = load_inputs(question)
    words = " + ".join(
        f"{len(pool.instances)} x {pool.role} {pool.gpu} TP{pool.tensor_parallel}"
        + (f" PP{pool.pipeline_parallel}" if pool.pipeline_parallel > 1 else "")
        for pool in plan.pools
    )
    return sustained(inputs, plan_deployment(plan, inputs)), words
