"""From a fleet, a model and a request mix to the columns of the program.

Every (role, GPU type, parallelism, dtype, batch, chunk) is tried; what falls is counted with its reason; of batches and
chunks the best per shape stays. The program itself drops what other columns dominate.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from splitplan.catalogs.engine_rules import (
    common_attention_backend,
    default_attention_backend,
    effective_block_tokens,
)
from splitplan.catalogs.engines import Engine
from splitplan.catalogs.models import Model
from splitplan.planner.columns.capacity import Capacity, Limits, colocated_capacity, decode_capacity, prefill_capacity
from splitplan.planner.columns.column import ROLES, Column, Reach, Role
from splitplan.planner.columns.cuts import layer_splits
from splitplan.planner.columns.hosts import HostKind, RackMixes
from splitplan.planner.columns.mix import RequestMix
from splitplan.planner.columns.options import (
    BATCH_LADDER,
    COLOCATED_CHUNK_LADDER,
    DECODE_MIN_CHUNK,
    DEFAULT_KV_DTYPE,
    PREFILL_CHUNK_LADDER,
    PREFILL_MAX_SEQS,
    ColumnOptions,
)
from splitplan.planner.columns.parallel import in_parallel
from splitplan.planner.columns.pipelines import (
    Pipeline,
    handoff_tokens,
    mixed_column,
    pipeline_memory,
    pipeline_problem,
    pipeline_step,
    pipelines,
    reach_rates,
    serves_more,
)
from splitplan.planner.columns.service import decode_step_s
from splitplan.planner.columns.shapes import Rejections, Shape, rule_problem, shape_memory, shapes
from splitplan.planner.columns.steps import StepLibrary
from splitplan.planner.latency.memory import kv_bytes_per_gpu
from splitplan.planner.latency.step import StepModel
from splitplan.planner.latency.transfer import kv_transfer
from splitplan.planner.latency.weights import weight_bytes_per_gpu

FloatArray = NDArray[np.float64]
BUSY_POWER_SHARE = 0.85
"""Of TDP, of a GPU that serves at its planned load: assumed (serving is rarely at the limit; prefill comes close)."""

REACH_GAIN = 1.03
"""A nearer reach is a column of its own only if it sustains at least this much more."""


@dataclass(frozen=True, slots=True)
class Demand:
    """What columns are asked to serve."""

    mix: RequestMix
    rate_req_per_s: float
    arrival_scv: float


@dataclass(slots=True)
class ColumnSet:
    """The columns that stand, and what fell why."""

    columns: list[Column]
    rejections: Rejections = field(default_factory=Rejections)
    considered: int = 0


NO_MIXES = RackMixes()


def build_columns(
    model: Model,
    engine: Engine,
    hosts: Sequence[HostKind],
    demand: Demand,
    options: ColumnOptions,
    step_models: StepLibrary,
    mixes: RackMixes = NO_MIXES,
) -> ColumnSet:
    """All columns for the fleet's GPU types. Deterministic order: role, GPU type, size; mixed pipelines last.

    `mixes` says which kinds of host stand in one rack: what a pipeline may mix.
    """
    result = ColumnSet([])
    gpus = [host.gpu for host in hosts]
    backend = common_attention_backend(engine, gpus, model, options.kv_dtype or DEFAULT_KV_DTYPE) or ""
    tried = {
        role: [
            shape
            for host in hosts
            for shape in _worth_trying(
                role, _shapes_of(model, engine, host, options, backend if role != "colocated" else ""), model, options
            )
        ]
        for role in ROLES
    }
    work = [(role, shape) for role, found in tried.items() for shape in found]
    built = iter(_columns_of_shapes(work, model, engine, demand, options, step_models))
    for role in ROLES:
        for _ in tried[role]:
            part = next(built)
            result.columns += part.columns
            result.considered += part.considered
            result.rejections.merge(part.rejections)
        common, longest = backend if role != "colocated" else "", demand.mix.max_model_len
        for pipeline in pipelines(model, engine, hosts, mixes, options, common, longest):
            result.columns += _columns_of_pipeline(role, pipeline, model, engine, demand, options, step_models, result)
    return result


def _columns_of_shapes(
    work: Sequence[tuple[Role, Shape]],
    model: Model,
    engine: Engine,
    demand: Demand,
    options: ColumnOptions,
    library: StepLibrary,
) -> list[ColumnSet]:
    """The columns of each (role, shape), over the cores of this machine; one task for all roles of a step model."""
    groups: dict[object, list[int]] = {}
    for number, (_, shape) in enumerate(work):
        groups.setdefault(library.key(shape), []).append(number)

    def columns_of(group: Sequence[int]) -> tuple[list[ColumnSet], StepLibrary.Steps]:
        found = []
        for number in group:
            part, (role, shape) = ColumnSet([]), work[number]
            part.columns = _columns_of_shape(role, shape, model, engine, demand, options, library, part)
            found.append(part)
        return found, library.known(work[number][1] for number in group)

    parts: dict[int, ColumnSet] = {}
    tasks = [partial(columns_of, group) for group in groups.values()]
    for group, (found, steps) in zip(groups.values(), in_parallel(tasks), strict=True):
        parts.update(zip(group, found, strict=True))
        library.learn(steps)
    return [parts[number] for number in range(len(work))]


def _worth_trying(role: Role, candidates: list[Shape], model: Model, options: ColumnOptions) -> list[Shape]:
    """Pipelines add a stage's wait to every token, so decoding ones are tried only where the weights need them."""
    if role == "prefill":
        return candidates

    def weights_fit(shape: Shape) -> bool:
        budget = shape.host.gpu.memory_bytes * (options.memory_fraction or 0.9)
        dtype = shape.weight_dtype
        tp, pp, ep = shape.tensor_parallel, shape.pipeline_parallel, shape.expert_parallel
        return weight_bytes_per_gpu(model, tp=tp, pp=pp, ep=ep, weight_dtype=dtype) < budget

    flat = [shape for shape in candidates if shape.pipeline_parallel == 1]
    return flat if any(weights_fit(shape) for shape in flat) else candidates


def _shapes_of(model: Model, engine: Engine, host: HostKind, options: ColumnOptions, backend: str) -> list[Shape]:
    kv_dtype = options.kv_dtype or DEFAULT_KV_DTYPE
    return shapes(
        model,
        host,
        weight_dtype=options.weight_dtype or model.weight_dtype,
        kv_dtype=kv_dtype,
        backend=backend or default_attention_backend(engine, host.gpu, model, kv_dtype),
        max_pp=options.max_pipeline_parallel,
    )


def _columns_of_shape(
    role: Role,
    shape: Shape,
    model: Model,
    engine: Engine,
    demand: Demand,
    options: ColumnOptions,
    step_models: StepLibrary,
    result: ColumnSet,
) -> list[Column]:
    """The best of each batch and chunk of one shape, one column per reach that pays."""
    problem = rule_problem(shape, role, model, engine, options.connector)
    best: dict[Reach, Column] = {}
    for max_num_seqs, chunk in _ladder(role):
        name = f"{role} {shape.label}"
        result.considered += 1
        if problem:
            result.rejections.add("engine rules", name, problem)
            continue
        limits, reason = _limits(shape, model, engine, demand.mix, options, max_num_seqs, chunk)
        if reason:
            result.rejections.add(reason, name)
            continue
        step = step_models(shape)
        for reach, capacity in _capacities(role, shape, model, engine, step, limits, demand, _reach_rates(shape)):
            if capacity.req_per_s <= 0:
                result.rejections.add(capacity.reason, name)
                continue
            column = _column(role, shape, engine, step, limits, capacity, demand.mix, options, reach)
            rival = best.get(reach)
            if rival is None or _better(column, rival):
                best[reach] = column
                if rival is not None:
                    result.rejections.add("another batch is better", name)
            else:
                result.rejections.add("another batch is better", name)
    return _reaches_that_pay(best)


def _columns_of_pipeline(
    role: Role,
    pipeline: Pipeline,
    model: Model,
    engine: Engine,
    demand: Demand,
    options: ColumnOptions,
    library: StepLibrary,
    result: ColumnSet,
) -> list[Column]:
    """The best cut, batch and chunk of one mixed pipeline, where it serves more than its GPU types do apart."""
    name, ladder = f"{role} {pipeline.label}", list(_ladder(role))
    result.considered += len(ladder)
    problem = pipeline_problem(pipeline, role, model, engine, options.connector)
    fraction = options.memory_fraction or engine.memory_fraction
    cuts = [] if problem else layer_splits(pipeline, role, model, engine, demand.mix, library, ladder[0], fraction)
    best: dict[Reach, Column] = {}
    make = partial(_columns_of_cut, role, model=model, engine=engine, demand=demand, options=options, library=library)
    for entry in ladder:
        columns, reason = make(cuts[0], entry) if cuts else ([], "engine rules" if problem else "KV does not fit")
        if not _take_better(best, columns):
            result.rejections.add(reason or "another batch is better", name, problem)
    settings = dict.fromkeys((column.max_num_seqs, column.max_num_batched_tokens) for column in best.values())
    for cut in cuts[1:]:  # with the batch and chunk that suit the first cut
        for entry in settings or ladder:
            _take_better(best, make(cut, entry)[0])
    kept = [column for column in _reaches_that_pay(best) if serves_more(column, result.columns)]
    if best and not kept:
        result.rejections.add("its GPU types do as well apart", name)
    return kept


def _take_better(best: dict[Reach, Column], columns: Iterable[Column]) -> bool:
    """Put columns where they are better than what stands there; whether any was."""
    taken = False
    for column in columns:
        rival = best.get(column.transfer_reach)
        if rival is None or _better(column, rival):
            best[column.transfer_reach], taken = column, True
    return taken


def _columns_of_cut(
    role: Role,
    cut: Pipeline,
    entry: tuple[int, int],
    *,
    model: Model,
    engine: Engine,
    demand: Demand,
    options: ColumnOptions,
    library: StepLibrary,
) -> tuple[list[Column], str]:
    """A column for each reach of a pipeline with its layers cut, or why there is none."""
    (max_num_seqs, chunk), mix = entry, demand.mix
    fraction = options.memory_fraction or engine.memory_fraction
    stages = pipeline_memory(
        cut, model, engine, max_num_seqs=max_num_seqs, chunk=chunk, fraction=fraction, max_len=mix.max_model_len
    )
    if not all(stage.fits for stage in stages):
        return [], "weights do not fit" if any(stage.kv_bytes <= 0 for stage in stages) else "KV does not fit"
    limits = Limits(max_num_seqs, chunk, min(stage.kv_capacity_tokens for stage in stages))
    tokens = handoff_tokens(role, len(cut.stages), max_num_seqs, chunk)
    step = pipeline_step(cut, library, model, tokens)
    columns, reason = [], ""
    for reach, capacity in _capacities(role, cut.stages[0], model, engine, step, limits, demand, reach_rates(cut)):
        if capacity.req_per_s <= 0:
            reason = capacity.reason
            continue
        work_s = capacity.work_s_per_request
        columns.append(mixed_column(cut, role, engine, step, limits, work_s, mix, options, reach, BUSY_POWER_SHARE))
    return columns, reason


def _ladder(role: Role) -> Iterator[tuple[int, int]]:
    """(max_num_seqs, max_num_batched_tokens) to try."""
    if role == "prefill":
        yield from ((PREFILL_MAX_SEQS, chunk) for chunk in PREFILL_CHUNK_LADDER)
    elif role == "decode":
        yield from ((batch, max(DECODE_MIN_CHUNK, batch)) for batch in BATCH_LADDER)
    else:
        yield from ((256, chunk) for chunk in COLOCATED_CHUNK_LADDER)


def _limits(
    shape: Shape, model: Model, engine: Engine, mix: RequestMix, options: ColumnOptions, max_num_seqs: int, chunk: int
) -> tuple[Limits, str]:
    """What an instance may hold, and why it cannot run ("" if it can)."""
    memory = shape_memory(
        shape,
        model,
        engine,
        max_num_seqs=max_num_seqs,
        chunk=chunk,
        fraction=options.memory_fraction or engine.memory_fraction,
        max_model_len=mix.max_model_len,
    )
    limits = Limits(max_num_seqs, chunk, memory.kv_capacity_tokens)
    if memory.kv_bytes <= 0:
        return limits, "weights do not fit"
    if not memory.fits:
        return limits, "KV does not fit"
    return limits, ""


def _capacities(
    role: Role,
    shape: Shape,
    model: Model,
    engine: Engine,
    step: StepModel,
    limits: Limits,
    demand: Demand,
    rates: Iterable[tuple[Reach, float]],
) -> Iterator[tuple[Reach, Capacity]]:
    mix, rate, scv = demand.mix, demand.rate_req_per_s, demand.arrival_scv
    if role == "decode":
        yield "fleet", decode_capacity(step, with_windows(limits, shape, model, mix.context_tokens), mix, rate, scv)
    elif role == "colocated":
        yield "fleet", colocated_capacity(step, with_windows(limits, shape, model, mix.context_tokens), mix, rate, scv)
    else:
        first_token_s = _first_decode_s(step, mix) if engine.decode_emits_first_token else 0.0
        for reach, bytes_per_s in rates:
            after_s = first_token_s + _transfer_s(shape, model, engine, mix, bytes_per_s, reach)
            yield reach, prefill_capacity(step, limits, mix, rate, after_s)


def with_windows(limits: Limits, shape: Shape, model: Model, context_tokens: float) -> Limits:
    """The KV tokens that fit when sequences are so long: more than the engine logs where layers have a window, fewer
    where layers keep a state for every sequence."""
    if not model.state_bytes and all(group.window_tokens is None for group in model.attention):
        return limits
    tp, pp, tokens = shape.tensor_parallel, shape.pipeline_parallel, max(round(context_tokens), 1)
    kept = kv_bytes_per_gpu(model, shape.kv_dtype, tokens, tp=tp, pp=pp, windows=False)
    held = kv_bytes_per_gpu(model, shape.kv_dtype, tokens, tp=tp, pp=pp)
    return replace(limits, kv_capacity_tokens=int(limits.kv_capacity_tokens * kept / held))


def _first_decode_s(step: StepModel, mix: RequestMix) -> float:
    """Half a decode step of waiting for the one under way, and one that emits; judged on this GPU's own decode step."""
    own_s = decode_step_s(step, 32.0, mix.context_tokens)
    return 1.5 * min(own_s, float(mix.tpot_limit_s.min()))


def _reach_rates(shape: Shape) -> Iterator[tuple[Reach, float]]:
    """Bandwidth one request's KV may count on, by how far it goes; without a NIC it stays in the node."""
    host, num_gpus = shape.host, shape.tensor_parallel * shape.pipeline_parallel
    nic = host.instance_nic_bytes_per_s(num_gpus)
    if nic > 0:
        yield "fleet", min(nic, host.rack_exit_bytes_per_s)
        if nic > host.rack_exit_bytes_per_s:
            yield "rack", nic
    yield "node", host.gpu_link.achievable_bytes_per_s * shape.tensor_parallel


def _transfer_s(
    shape: Shape, model: Model, engine: Engine, mix: RequestMix, bytes_per_s: float, reach: Reach
) -> FloatArray:
    """Seconds each request's KV takes alone on the way, [n]; linear in its tokens, so one transfer gives the slope."""
    link = shape.host.gpu_link if reach == "node" or shape.host.nic_link is None else shape.host.nic_link
    tp = shape.tensor_parallel
    tokens = max(int(mix.new_tokens.mean()), 1)
    transfer = kv_transfer(model, shape.kv_dtype, tokens, prefill_tp=tp, decode_tp=tp, block_tokens=engine.block_tokens)
    body_s = transfer.seconds(bytes_per_s, latency_s=0.0, per_descriptor_s=link.per_descriptor_s)
    return np.asarray(link.latency_s + body_s * mix.new_tokens / tokens, dtype=np.float64)


def _column(
    role: Role,
    shape: Shape,
    engine: Engine,
    step: StepModel,
    limits: Limits,
    capacity: Capacity,
    mix: RequestMix,
    options: ColumnOptions,
    reach: Reach,
) -> Column:
    gpu = shape.host.gpu
    num_gpus = shape.tensor_parallel * shape.pipeline_parallel
    near = "" if reach == "fleet" else f", KV within the {reach}"
    return Column(
        name=f"{role} {shape.label}{near}",
        role=role,
        gpu=gpu.name,
        tensor_parallel=shape.tensor_parallel,
        pipeline_parallel=shape.pipeline_parallel,
        expert_parallel=shape.expert_parallel,
        weight_dtype=shape.weight_dtype,
        kv_dtype=shape.kv_dtype,
        block_tokens=effective_block_tokens(engine, shape.attention_backend, engine.block_tokens),
        max_num_seqs=limits.max_num_seqs,
        max_num_batched_tokens=limits.max_num_batched_tokens,
        max_model_len=mix.max_model_len,
        memory_fraction=options.memory_fraction or engine.memory_fraction,
        kv_capacity_tokens=limits.kv_capacity_tokens,
        work_s_per_request=capacity.work_s_per_request,
        watts=num_gpus * gpu.tdp_watts * BUSY_POWER_SHARE,
        step=step,
        attention_backend=shape.attention_backend,
        transfer_reach=reach,
        gpu_link=shape.host.gpu_link.name,
    )


def _better(column: Column, rival: Column) -> bool:
    """More rate for its worst class; at equal rate the smaller batch, which keeps TPOT lower."""
    mine, theirs = float(column.work_s_per_request.max()), float(rival.work_s_per_request.max())
    if abs(mine - theirs) > 1e-3 * theirs:
        return mine < theirs
    return (column.max_num_seqs, column.max_num_batched_tokens) < (rival.max_num_seqs, rival.max_num_batched_tokens)


def _reaches_that_pay(best: dict[Reach, Column]) -> list[Column]:
    """Keep a nearer reach only where it sustains clearly more than the farther ones."""
    kept: list[Column] = []
    for reach in ("fleet", "rack", "node"):
        column = best.get(reach)
        if column is None:
            continue
        least = min((float(other.work_s_per_request.max()) for other in kept), default=np.inf)
        if float(column.work_s_per_request.max()) * REACH_GAIN <= least:
            kept.append(column)
    return kept
