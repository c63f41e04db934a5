"""Pipelines that mix two GPU types by stage, their layers split so that the stages run at one rate.

They are tried where they can help: both types stand in one rack, no host of one of them can hold the model by itself,
and the stages on one of them could not without the others. Every stage is a tensor group of one size inside a host of
its own (what engines start: the same number of GPUs on every node), so several stages on one type take whole hosts.
`cuts.py` says where the layers are cut. A pipeline that serves no more than its GPU types do apart is dropped.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations

import numpy as np

from splitplan.catalogs.connector_rules import connector_problems
from splitplan.catalogs.engine_rules import common_attention_backend, effective_block_tokens
from splitplan.catalogs.engines import Engine
from splitplan.catalogs.models import Model
from splitplan.planner.columns.capacity import Limits
from splitplan.planner.columns.column import Column, Reach, Role, Stage
from splitplan.planner.columns.hosts import HostKind, RackMixes
from splitplan.planner.columns.mix import RequestMix
from splitplan.planner.columns.options import BATCH_LADDER, COLOCATED_CHUNK_LADDER, DEFAULT_KV_DTYPE, ColumnOptions
from splitplan.planner.columns.shapes import Shape, rule_problem, shape_memory
from splitplan.planner.columns.steps import StepLibrary
from splitplan.planner.latency.build import unlike_stages
from splitplan.planner.latency.memory import InstanceMemory
from splitplan.planner.latency.operations import ACTIVATION_BYTES
from splitplan.planner.latency.step import StepModel
from splitplan.planner.latency.weights import StageCut, weight_bytes_per_gpu

HANDOFF_TENSORS = 2.0
"""Between stages go the hidden states and the residual."""

MIXED_GAIN = 1.03
"""A mixed pipeline is kept only if it sustains at least this much more than its GPU types do apart."""


@dataclass(frozen=True, slots=True)
class Pipeline:
    """A mixed pipeline: one shape for each stage, alike but for their hosts."""

    stages: tuple[Shape, ...]

    @property
    def label(self) -> str:
        """`a100-sxm-80+h100-sxm tp8 pp2`, with the number of stages of each type where there are several."""
        first = self.stages[0]
        counts: dict[str, int] = {}
        for stage in self.stages:
            counts[stage.host.gpu.name] = counts.get(stage.host.gpu.name, 0) + 1
        names = "+".join(gpu if count == 1 else f"{count}x{gpu}" for gpu, count in counts.items())
        text = f"{names} tp{first.tensor_parallel} pp{len(self.stages)}"
        return text + (f" ep{first.expert_parallel}" if first.expert_parallel > 1 else "")

    @property
    def layers(self) -> tuple[int, ...]:
        """Layers of each stage; () before they are split."""
        return self.stages[0].stage_layers

    def with_layers(self, layers: tuple[int, ...]) -> Pipeline:
        """The same pipeline, cut."""
        return Pipeline(tuple(replace(stage, stage_layers=layers) for stage in self.stages))

    def parts(self) -> list[tuple[Shape, int]]:
        """Its stages by host kind: one shape of each, and how many there are."""
        found: dict[tuple[str, str], tuple[Shape, int]] = {}
        for stage in self.stages:
            shape, count = found.get(_kind(stage.host), (stage, 0))
            found[_kind(stage.host)] = (shape, count + 1)
        return list(found.values())


def pipelines(
    model: Model,
    engine: Engine,
    hosts: Sequence[HostKind],
    mixes: RackMixes,
    options: ColumnOptions,
    backend: str,
    max_model_len: int,
) -> Iterator[Pipeline]:
    """All mixed pipelines worth trying, the slower type first. `backend` "": what both have, or each its own."""
    holds = partial(_holds, model, engine, options, max_model_len)
    if not options.mix_pipelines:
        return
    by_speed = sorted(hosts, key=lambda host: (host.gpu.memory_bandwidth_bytes_per_s, host.gpu.name))
    for first, last in combinations(by_speed, 2):
        rooms = [(rack.get(_kind(first), ()), rack.get(_kind(last), ())) for rack in mixes.racks]
        if first.gpu.name == last.gpu.name or min(first.nic_bytes_per_s, last.nic_bytes_per_s) <= 0:
            continue
        if first.gpu.vendor != last.gpu.vendor:
            continue  # their communication libraries do not speak to each other
        if not any(one and other for one, other in rooms) or all(
            holds(host, _power_of_two(mixes.most_free.get(_kind(host), 0)), 1, 1) for host in (first, last)
        ):
            continue
        kv_dtype = options.kv_dtype or DEFAULT_KV_DTYPE
        common = backend or common_attention_backend(engine, [first.gpu, last.gpu], model, kv_dtype)
        if common is None and engine.base == "vllm":
            continue
        tp = 1
        while tp <= min(first.domain_gpus, last.domain_gpus):
            for counts in _stage_counts(first, last, tp, options.max_pipeline_parallel):
                if any(_stand(counts[0], one, tp) and _stand(counts[1], other, tp) for one, other in rooms):
                    for ep in sorted({1, tp} if model.moe is not None else {1}):
                        if not all(holds(host, tp, many, ep) for host, many in zip((first, last), counts, strict=True)):
                            yield from _if_room(model, (first, last), counts, tp, ep, options, common or "")
            tp *= 2


def _kind(host: HostKind) -> tuple[str, str]:
    return host.gpu.name, host.gpu_link.name


def _power_of_two(most: int) -> int:
    """The largest power of two up to `most`; 0 for none."""
    return 1 << (most.bit_length() - 1) if most else 0


def _holds(
    model: Model, engine: Engine, options: ColumnOptions, max_model_len: int, host: HostKind, tp: int, pp: int, ep: int
) -> bool:
    """Whether stages on one type of host hold the model and one request by themselves, at the smallest limits."""
    if tp == 0:
        return False
    dtype, kv_dtype = options.weight_dtype or model.weight_dtype, options.kv_dtype or DEFAULT_KV_DTYPE
    return shape_memory(
        Shape(host, tp, pp, ep, dtype, kv_dtype, ""),
        model,
        engine,
        max_num_seqs=min(BATCH_LADDER),
        chunk=min(COLOCATED_CHUNK_LADDER),
        fraction=options.memory_fraction or engine.memory_fraction,
        max_model_len=max_model_len,
    ).fits


def _stand(stages: int, free: Sequence[int], tp: int) -> bool:
    """Whether so many stages of `tp` GPUs find a host each."""
    return sum(left >= tp for left in free) >= stages


def _stage_counts(first: HostKind, last: HostKind, tp: int, most: int) -> list[tuple[int, int]]:
    """Stages on each type: one each, and several where a stage fills its host."""
    ones = [range(1, most if tp == host.domain_gpus == host.node_gpus else 2) for host in (first, last)]
    return [(a, b) for a in ones[0] for b in ones[1] if a + b <= most]


def _if_room(
    model: Model,
    hosts: tuple[HostKind, HostKind],
    counts: tuple[int, int],
    tp: int,
    ep: int,
    options: ColumnOptions,
    backend: str,
) -> Iterator[Pipeline]:
    """The pipeline, unless its stages together cannot hold the weights."""
    dtype, fraction = options.weight_dtype or model.weight_dtype, options.memory_fraction or 0.9
    room = [count * host.gpu.memory_bytes * fraction for host, count in zip(hosts, counts, strict=True)]
    if weight_bytes_per_gpu(model, tp=tp, pp=1, ep=ep, weight_dtype=dtype) > sum(room):
        return
    kv_dtype = options.kv_dtype or DEFAULT_KV_DTYPE
    many = sum(counts)
    yield Pipeline(
        tuple(
            Shape(host, tp, many, ep, dtype, kv_dtype, backend)
            for host, count in zip(hosts, counts, strict=True)
            for _ in range(count)
        )
    )


def pipeline_problem(pipeline: Pipeline, role: Role, model: Model, engine: Engine, connector: str) -> str:
    """The first rule that forbids the pipeline in this role on any of its GPU types, or ""."""
    for shape, _ in pipeline.parts():
        cut = replace(shape, stage_layers=pipeline.layers or spread(model.num_layers, len(pipeline.stages)))
        problem = rule_problem(cut, role, model, engine, connector)
        if not problem and role == "prefill":
            side = cut.side(model, engine)
            decodes = (replace(side, pipeline_parallel=1, stage_layers=()), side)
            found = [connector_problems(engine, connector, model, side, decode) for decode in decodes]
            problem = min(found, key=len)[0] if all(found) else ""
        if problem:
            return problem
    return ""


def spread(layers: int, stages: int) -> tuple[int, ...]:
    """Layers over the stages of one type: alike, what does not divide on the first ones."""
    share, rest = divmod(layers, stages)
    return tuple(share + (number < rest) for number in range(stages))


def pipeline_memory(
    pipeline: Pipeline, model: Model, engine: Engine, *, max_num_seqs: int, chunk: int, fraction: float, max_len: int
) -> list[InstanceMemory]:
    """Memory of every stage."""
    last = len(pipeline.stages) - 1
    return [
        shape_memory(
            shape,
            model,
            engine,
            max_num_seqs=max_num_seqs,
            chunk=chunk,
            fraction=fraction,
            max_model_len=max_len,
            cut=StageCut(layers, number == 0, number == last),
        )
        for number, (shape, layers) in enumerate(zip(pipeline.stages, pipeline.layers, strict=True))
    ]


def pipeline_step(pipeline: Pipeline, library: StepLibrary, model: Model, tokens: float) -> StepModel:
    """The step model of a cut pipeline; hand-offs carry `tokens` of a step over the slowest NICs between stages."""
    last = len(pipeline.stages) - 1
    stages = tuple(
        library.stage(shape, layers, "first" if number == 0 else "last" if number == last else "middle")
        for number, (shape, layers) in enumerate(zip(pipeline.stages, pipeline.layers, strict=True))
    )
    return unlike_stages(stages, handoff_s(pipeline, model, tokens))


def handoff_s(pipeline: Pipeline, model: Model, tokens: float) -> float:
    """Seconds from one stage to the next: `tokens` hidden states and residuals over the slower of both hosts' NICs."""
    tp = pipeline.stages[0].tensor_parallel
    hosts = [shape.host for shape, _ in pipeline.parts()]
    rate = min(host.instance_nic_bytes_per_s(tp) for host in hosts)
    latency_s = max(host.nic_link.latency_s for host in hosts if host.nic_link is not None)
    return latency_s + tokens * HANDOFF_TENSORS * ACTIVATION_BYTES * model.hidden_size / rate


def handoff_tokens(role: Role, num_stages: int, max_num_seqs: int, max_num_batched_tokens: int) -> float:
    """Tokens that a step hands on: a chunk where there are prompts, a micro-batch where there are none."""
    return max_num_seqs / num_stages if role == "decode" else float(max_num_batched_tokens)


def reach_rates(pipeline: Pipeline) -> Iterator[tuple[Reach, float]]:
    """Bandwidth that a prompt's KV may count on: its layers leave from the NICs of their own stages."""
    total = sum(pipeline.layers)
    least: dict[Reach, float] = {}
    for shape, layers in zip(pipeline.stages, pipeline.layers, strict=True):
        nic = shape.host.instance_nic_bytes_per_s(shape.tensor_parallel)
        for reach, rate in (("fleet", min(nic, shape.host.rack_exit_bytes_per_s)), ("rack", nic)):
            key: Reach = "fleet" if reach == "fleet" else "rack"
            least[key] = min(least.get(key, np.inf), rate * total / layers)
    yield "fleet", least["fleet"]
    if least["rack"] > least["fleet"]:
        yield "rack", least["rack"]


def mixed_column(
    pipeline: Pipeline,
    role: Role,
    engine: Engine,
    step: StepModel,
    limits: Limits,
    work_s: np.ndarray[tuple[int, ...], np.dtype[np.float64]],
    mix: RequestMix,
    options: ColumnOptions,
    reach: Reach,
    busy_power_share: float,
) -> Column:
    """The column of a cut pipeline."""
    first = pipeline.stages[0]
    near = "" if reach == "fleet" else f", KV within the {reach}"
    backend = first.attention_backend
    return Column(
        name=f"{role} {pipeline.label}{near}",
        role=role,
        gpu="+".join(shape.host.gpu.name for shape, _ in pipeline.parts()),
        tensor_parallel=first.tensor_parallel,
        pipeline_parallel=len(pipeline.stages),
        expert_parallel=first.expert_parallel,
        weight_dtype=first.weight_dtype,
        kv_dtype=first.kv_dtype,
        block_tokens=effective_block_tokens(engine, backend, engine.block_tokens),
        max_num_seqs=limits.max_num_seqs,
        max_num_batched_tokens=limits.max_num_batched_tokens,
        max_model_len=mix.max_model_len,
        memory_fraction=options.memory_fraction or engine.memory_fraction,
        kv_capacity_tokens=limits.kv_capacity_tokens,
        work_s_per_request=work_s,
        watts=sum(s.tensor_parallel * s.host.gpu.tdp_watts for s in pipeline.stages) * busy_power_share,
        step=step,
        attention_backend=backend,
        transfer_reach=reach,
        stages=tuple(
            Stage(shape.host.gpu.name, shape.host.gpu_link.name, layers)
            for shape, layers in zip(pipeline.stages, pipeline.layers, strict=True)
        ),
    )


def serves_more(column: Column, others: Iterable[Column]) -> bool:
    """Whether a mixed pipeline sustains clearly more, of any class, than its GPU types do apart on the same GPUs."""
    apart = np.zeros_like(column.work_s_per_request)
    for gpu, gpus in column.gpus_by_type.items():
        rates = [
            (gpus // other.num_gpus) / other.work_s_per_request
            for other in others
            if (other.role, other.gpu) == (column.role, gpu) and other.num_gpus <= gpus and not other.stages
        ]
        apart += np.max(rates, axis=0) if rates else 0.0
    return bool(np.any(1.0 / column.work_s_per_request >= MIXED_GAIN * apart))
