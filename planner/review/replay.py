"""A saved plan under another workload, rate or target: the same instances, replayed by the simulator."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from splitplan.catalogs.errors import InputError, Problem, shorten
from splitplan.planner.columns.hosts import HostKind, host_kinds
from splitplan.planner.columns.pipelines import Pipeline, handoff_tokens, pipeline_step
from splitplan.planner.columns.shapes import Shape
from splitplan.planner.columns.steps import StepLibrary
from splitplan.planner.inputs import SolveInputs, load_inputs, refuse_changes
from splitplan.planner.judge.deploy import deployment_of
from splitplan.planner.judge.verify import Judge, default_effort
from splitplan.planner.latency.step import StepModel
from splitplan.planner.plan import Plan, Pool, Verification
from splitplan.planner.question import question_of
from splitplan.planner.simulate.deployment import Deployment
from splitplan.planner.simulate.parallel import Parallel


def replay(
    plan: Plan,
    *,
    workload: str = "",
    rate_req_per_s: float | None = None,
    slo: str = "",
    num_requests: int = 20_000,
    num_seeds: int = 3,
    confidence: float | None = None,
    step_scale: float = 1.0,
    parallel: Parallel = 1,
) -> Verification:
    """Simulate a plan as it stands. What is not given is the plan's own; nothing is re-planned.

    `step_scale` multiplies all step times, those at `confidence` percent (50: the best guess): what if they are wrong?

    `parallel` spreads the seeds over processes or a Ray cluster (see `simulate.parallel.spread`).

    Raises InputError when the plan's model, fleet or profiles have changed since it was made.
    """
    question = question_of(plan)
    own_rate = question.rate_req_per_s if not workload else None
    question = replace(
        question,
        workload=workload or question.workload,
        slo=slo or question.slo,
        rate_req_per_s=rate_req_per_s if rate_req_per_s is not None else own_rate,
        columns=question.columns if confidence is None else replace(question.columns, confidence=confidence),
    )
    inputs = load_inputs(question)
    refuse_changes(plan, inputs, besides=("workload",) if workload or rate_req_per_s is not None else ())
    effort = replace(default_effort(), verify_requests=num_requests, num_seeds=num_seeds)
    judge = Judge(inputs, effort, limits=lambda prompts: longest_taken(plan, prompts), parallel=parallel)
    return judge.verify(plan_deployment(plan, inputs, step_scale=step_scale))[0]


def longest_taken(plan: Plan, input_tokens: NDArray[np.int64]) -> NDArray[np.int64]:
    """[n] the longest request, prompt and answer, that the pools for each prompt take."""
    limits = np.zeros(len(input_tokens), dtype=np.int64)
    for prompts in plan.prompt_ranges:
        ours = [pool.max_model_len for pool in plan.pools if pool.prompts.covers(prompts)]
        limits[prompts.holds(input_tokens)] = min(ours, default=0)
    return limits


def plan_deployment(plan: Plan, inputs: SolveInputs, *, step_scale: float = 1.0) -> Deployment:
    """The saved plan's instances as the simulator runs them, with step models built anew from the profiles."""
    _check_places(plan, inputs)
    factors = {gpu: factor * step_scale for gpu, factor in inputs.step_factors.items()}
    library = StepLibrary(inputs.model, inputs.engine, inputs.profiles, factors)
    hosts = host_kinds(inputs.fleet)
    steps = {pool.name: _step(pool, hosts, inputs, library) for pool in plan.pools}
    roles = {pool.role for pool in plan.pools}
    share = plan.colocated_share if plan.colocated_share is not None else float(roles == {"colocated"})
    return deployment_of(plan.pools, plan.routes, steps, inputs, colocated_share=share)


def _check_places(plan: Plan, inputs: SolveInputs) -> None:
    """Raise InputError for instances on nodes or GPUs that the fleet does not have."""
    nodes = {node.name: node for node in inputs.fleet.nodes}
    problems = []
    for pool in plan.pools:
        for instance in pool.instances:
            for position, slot in enumerate(instance.gpus):
                node, gpu = nodes.get(slot.node), pool.gpu_at(position)
                if node is None or node.gpu != gpu or slot.index >= node.num_gpus:
                    what = f"{instance.name} stands on GPU {slot.index} of {shorten(slot.node)}, a {gpu}"
                    problems.append(Problem(f"{what}, which fleet {inputs.fleet.name} does not have"))
    if problems:
        raise InputError(problems)


def _step(pool: Pool, hosts: list[HostKind], inputs: SolveInputs, library: StepLibrary) -> StepModel:
    """The step model of a pool; of a mixed pipeline that of its stages together."""
    if not pool.stages:
        return library(_shape(pool, hosts, inputs, 0))
    layers = tuple(stage.layers for stage in pool.stages)
    stages = tuple(_shape(pool, hosts, inputs, stage * pool.tensor_parallel) for stage in range(len(layers)))
    tokens = handoff_tokens(pool.role, len(layers), pool.max_num_seqs, pool.max_num_batched_tokens)
    return pipeline_step(Pipeline(stages).with_layers(layers), library, inputs.model, tokens)


def _shape(pool: Pool, hosts: list[HostKind], inputs: SolveInputs, position: int) -> Shape:
    """The shape of a pool on the host that holds a position of its first instance."""
    nodes = {node.name: node for node in inputs.fleet.nodes}
    link = nodes[pool.instances[0].gpus[position].node].gpu_link
    gpu = pool.gpu_at(position)
    host = next(kind for kind in hosts if kind.gpu.name == gpu and kind.gpu_link.name == link)
    return Shape(
        host=host,
        tensor_parallel=pool.tensor_parallel,
        pipeline_parallel=pool.pipeline_parallel,
        expert_parallel=pool.expert_parallel,
        weight_dtype=pool.weight_dtype,
        kv_dtype=pool.kv_dtype,
        attention_backend=pool.attention_backend,
    )
