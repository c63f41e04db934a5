"""One candidate plan: the program's answer on named GPUs, as pools and as something the simulator can run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from splitplan.planner.columns.column import Column
from splitplan.planner.inputs import SolveInputs
from splitplan.planner.judge.deploy import deployment_of, timed_routes
from splitplan.planner.judge.timing import timing_of
from splitplan.planner.place.assign import Assignment, assign
from splitplan.planner.plan import Instance, Pool, PoolStage, Route
from splitplan.planner.program.types import ProgramInput, ProgramSolution
from splitplan.planner.simulate.deployment import Deployment


@dataclass(frozen=True, slots=True)
class Candidate:
    """An assigned solution."""

    solution: ProgramSolution
    assignment: Assignment
    pools: tuple[Pool, ...]
    routes: tuple[Route, ...]
    deployment: Deployment
    colocated_share: float
    around: tuple[object, ...] = ()  # what else its figures depend on: the load of other services on its links

    @property
    def key(self) -> tuple[object, ...]:
        """What tells candidates apart: instances per column and place, and the rate they are asked to serve."""
        places = sorted((item.column, item.location, item.instances) for item in self.solution.placed)
        scales = dict.fromkeys(round(scale, 9) for scale in self.solution.class_scale)
        return (round(self.solution.rate_scale, 9), *(scales if len(scales) > 1 else ()), *self.around, *places)

    @property
    def counts(self) -> tuple[tuple[str, int], ...]:
        """Instances per column, wherever they stand: what people call the same plan."""
        counts: dict[str, int] = {}
        for item in self.solution.placed:
            counts[item.column] = counts.get(item.column, 0) + item.instances
        return tuple(sorted(counts.items()))


def candidate(problem: ProgramInput, solution: ProgramSolution, inputs: SolveInputs) -> Candidate:
    """Assign a solution and make it runnable."""
    return assigned_candidate(problem, solution, inputs, assign(problem, solution))


def assigned_candidate(
    problem: ProgramInput,
    solution: ProgramSolution,
    inputs: SolveInputs,
    assignment: Assignment,
    around: tuple[object, ...] = (),
) -> Candidate:
    """Make an assigned solution runnable."""
    columns = {column.name: column for column in problem.columns}
    rates = _rates_by_role(solution)
    total = sum(rates.get(role, 0.0) for role in ("prefill", "colocated"))
    colocated_share = rates.get("colocated", 0.0) / total if total > 0 else 0.0
    used = [name for name in dict.fromkeys(item.column for item in solution.placed) if assignment.instances.get(name)]
    names = _pool_names([columns[name] for name in used])
    pools = tuple(_pool(columns[name], assignment.instances[name], solution, inputs, names) for name in used)
    steps = {pool.name: columns[name].step for pool, name in zip(pools, used, strict=True)}
    deployment = deployment_of(pools, assignment.routes, steps, inputs, colocated_share=colocated_share)
    routes = timed_routes(pools, assignment.routes, deployment)
    return Candidate(solution, assignment, pools, routes, deployment, colocated_share, around)


def _rates_by_role(solution: ProgramSolution) -> dict[str, float]:
    rates: dict[str, float] = {}
    for item in solution.placed:
        rates[item.role] = rates.get(item.role, 0.0) + sum(item.rate_req_per_s)
    return rates


def _pool_names(columns: list[Column]) -> Mapping[str, str]:
    """Pool names by column name: `prefill-h100-sxm-tp2`, with a number where two columns would share one."""
    names: dict[str, str] = {}
    for column in columns:
        name = f"{column.role}-{column.gpu.replace('+', '-')}-tp{column.tensor_parallel}"
        if column.pipeline_parallel > 1:
            name += f"-pp{column.pipeline_parallel}"
        if column.expert_parallel > 1:
            name += f"-ep{column.expert_parallel}"
        base, number = name, 2
        while name in names.values():
            name, number = f"{base}-{number}", number + 1
        names[column.name] = name
    return names


def _pool(
    column: Column,
    instances: tuple[Instance, ...],
    solution: ProgramSolution,
    inputs: SolveInputs,
    names: Mapping[str, str],
) -> Pool:
    placed = [item for item in solution.placed if item.column == column.name]
    total = sum(item.instances for item in placed)
    return Pool(
        name=names[column.name],
        role=column.role,
        gpu=column.gpu,
        tensor_parallel=column.tensor_parallel,
        pipeline_parallel=column.pipeline_parallel,
        expert_parallel=column.expert_parallel,
        weight_dtype=column.weight_dtype,
        kv_dtype=column.kv_dtype,
        attention_backend=column.attention_backend,
        block_tokens=column.block_tokens,
        max_num_seqs=column.max_num_seqs,
        max_num_batched_tokens=column.max_num_batched_tokens,
        max_model_len=column.max_model_len,
        memory_fraction=column.memory_fraction,
        kv_capacity_tokens=column.kv_capacity_tokens,
        usd_per_gpu_hour=_price(column, inputs),
        watts_per_instance=round(column.watts, 3),
        utilisation=round(sum(item.utilisation * item.instances for item in placed) / max(total, 1), 6),
        timing=timing_of(
            column.step,
            max_num_seqs=column.max_num_seqs,
            max_num_batched_tokens=column.max_num_batched_tokens,
            max_model_len=column.max_model_len,
        ),
        above_tokens=column.above_tokens,
        up_to_tokens=column.up_to_tokens,
        instances=instances,
        stages=tuple(PoolStage(gpu=stage.gpu, layers=stage.layers) for stage in column.stages),
    )


def _price(column: Column, inputs: SolveInputs) -> float:
    """Dollars per GPU-hour; of a mixed pipeline the mean over its GPUs."""
    prices = inputs.fleet.usd_per_gpu_hour
    if not column.stages:
        return prices[column.gpu]
    return round(sum(prices[gpu] * count for gpu, count in column.gpus_by_type.items()) / column.num_gpus, 9)
