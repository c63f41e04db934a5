"""Shapes an instance can take on each GPU type: parallelism that the engine's rules and the weights allow."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace

from splitplan.catalogs.connector_rules import connector_problems
from splitplan.catalogs.engine_rules import effective_block_tokens, instance_problems
from splitplan.catalogs.engines import Engine, EngineSide
from splitplan.catalogs.models import Model
from splitplan.planner.columns.column import Role
from splitplan.planner.columns.hosts import HostKind
from splitplan.planner.latency.memory import InstanceMemory, instance_memory
from splitplan.planner.latency.weights import StageCut


@dataclass(frozen=True, slots=True)
class Shape:
    """One instance's parallelism and dtypes on one GPU type."""

    host: HostKind
    tensor_parallel: int
    pipeline_parallel: int
    expert_parallel: int
    weight_dtype: str
    kv_dtype: str
    attention_backend: str
    stage_layers: tuple[int, ...] = ()  # of the pipeline it is a stage of, where stages are not cut alike

    @property
    def label(self) -> str:
        """`h100-sxm tp4 pp2`, as it stands in column names."""
        text = f"{self.host.gpu.name} tp{self.tensor_parallel}"
        if self.pipeline_parallel > 1:
            text += f" pp{self.pipeline_parallel}"
        if self.expert_parallel > 1:
            text += f" ep{self.expert_parallel}"
        return text

    def side(self, model: Model, engine: Engine) -> EngineSide:
        """The shape as the engine's rules see it."""
        return EngineSide(
            model=model.name,
            gpu=self.host.gpu.name,
            tensor_parallel=self.tensor_parallel,
            pipeline_parallel=self.pipeline_parallel,
            weight_dtype=self.weight_dtype,
            kv_dtype=self.kv_dtype,
            block_tokens=effective_block_tokens(engine, self.attention_backend, engine.block_tokens),
            attention_backend=self.attention_backend,
            engine_version=engine.version,
            stage_layers=self.stage_layers,
        )


@dataclass(slots=True)
class Rejections:
    """How many candidates fell, by reason, and one example of each for `explain`."""

    counts: Counter[str] = field(default_factory=Counter)
    examples: dict[str, str] = field(default_factory=dict)

    def add(self, reason: str, name: str, detail: str = "") -> None:
        """Count one candidate out."""
        self.counts[reason] += 1
        self.examples.setdefault(reason, f"{name}: {detail}" if detail else name)

    def merge(self, other: Rejections) -> None:
        """Count in what fell elsewhere, after what fell here."""
        self.counts += other.counts
        for reason, example in other.examples.items():
            self.examples.setdefault(reason, example)


def shapes(model: Model, host: HostKind, *, weight_dtype: str, kv_dtype: str, backend: str, max_pp: int) -> list[Shape]:
    """All shapes worth asking about: powers of two of tensor ranks inside a domain, stages over nodes of a rack."""
    found = []
    tp = 1
    while tp <= host.domain_gpus:
        for pp in _pipeline_sizes(host, tp, max_pp):
            experts = {1, tp} if model.moe is not None else {1}
            found += [Shape(host, tp, pp, ep, weight_dtype, kv_dtype, backend) for ep in sorted(experts)]
        tp *= 2
    return found


def _pipeline_sizes(host: HostKind, tp: int, max_pp: int) -> list[int]:
    """Stages of `tp` GPUs that fit in one rack; stages beyond a node only for a tensor group that fills its node."""
    sizes, pp = [1], 2
    while pp <= max_pp:
        inside_node = tp * pp <= host.node_gpus
        over_nodes = tp == host.domain_gpus and pp <= host.nodes_in_rack * (host.node_gpus // tp)
        if inside_node or (over_nodes and host.nic_bytes_per_s > 0):
            sizes.append(pp)
        pp *= 2
    return sizes


def rule_problem(shape: Shape, role: Role, model: Model, engine: Engine, connector: str) -> str:
    """The engine or connector rule that forbids this shape in this role, or ""."""
    side = shape.side(model, engine)
    problems = instance_problems(engine, model, shape.host.gpu, side)
    if role == "decode" and not problems and shape.pipeline_parallel > 1:
        problems = connector_problems(engine, connector, model, replace(side, pipeline_parallel=1), side)
        problems += connector_problems(engine, connector, model, side, side) if not problems else []
    return problems[0] if problems else ""


def shape_memory(
    shape: Shape,
    model: Model,
    engine: Engine,
    *,
    max_num_seqs: int,
    chunk: int,
    fraction: float,
    max_model_len: int,
    cut: StageCut | None = None,
) -> InstanceMemory:
    """Memory of one instance of this shape, or of one stage that is not cut like the others."""
    return instance_memory(
        model,
        shape.host.gpu,
        engine,
        tp=shape.tensor_parallel,
        pp=shape.pipeline_parallel,
        ep=shape.expert_parallel,
        weight_dtype=shape.weight_dtype,
        kv_dtype=shape.kv_dtype,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=chunk,
        memory_fraction=fraction,
        max_model_len=max_model_len,
        cut=cut,
    )
