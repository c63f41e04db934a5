"""The Plan document: what was decided, for what, how it was verified, and the hashes of everything it was made from.

A saved plan is exactly what gets launched. Nothing that varies from run to run (timings, dates) is in it.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from splitplan.catalogs.documents import read_document, validate, write_text
from splitplan.planner.spec.length_buckets import PromptRange, buckets
from splitplan.planner.spec.reading import check_kind

PLAN_VERSION = 1
MAX_PLAN_BYTES = 64 * 2**20


class _Frozen(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class GpuSlot(_Frozen):
    """One GPU of one node."""

    node: str
    index: int = Field(ge=0)


class Instance(_Frozen):
    """One engine instance on named GPUs. `gpus` lists pipeline stage after stage, tensor ranks in order."""

    name: str  # "prefill-0"
    rack: str
    gpus: tuple[GpuSlot, ...]
    share: float = Field(1.0, ge=0)  # of its role's requests


class Timing(_Frozen):
    """What one instance of a pool is predicted to take, as compact tables: mock engines are timed by it.

    Knots ascend; between them times are linear (bilinear for decode), beyond the last knot they go on with its slope.
    """

    prefill_tokens: tuple[int, ...]  # [i] prompt length of a lone prompt
    prefill_s: tuple[float, ...]  # [i] all its chunks
    decode_batch: tuple[int, ...]  # [k] sequences in the step
    decode_context_tokens: tuple[int, ...]  # [l] mean context
    decode_step_s: tuple[tuple[float, ...], ...]  # [k][l] one decode step


class Host(_Frozen):
    """A node that the plan uses, as launchers reach and select it."""

    name: str
    rack: str
    address: str = ""  # host name or IP address; empty: the node's name
    num_gpus: int = Field(0, ge=0)
    labels: dict[str, str] = {}


class PoolStage(_Frozen):
    """One pipeline stage of a pool that mixes GPU types."""

    gpu: str
    layers: int = Field(ge=1)


class Pool(_Frozen):
    """Instances of one kind."""

    name: str
    role: Literal["prefill", "decode", "colocated"]
    gpu: str  # of a mixed pipeline all its types: "a100-sxm-80+h100-sxm"
    tensor_parallel: int = Field(ge=1)
    pipeline_parallel: int = Field(1, ge=1)
    expert_parallel: int = Field(1, ge=1)
    weight_dtype: str
    kv_dtype: str
    attention_backend: str = ""
    block_tokens: int = Field(ge=1)
    max_num_seqs: int = Field(ge=1)
    max_num_batched_tokens: int = Field(ge=1)
    max_model_len: int = Field(ge=1)
    memory_fraction: float = Field(gt=0, le=1)
    kv_capacity_tokens: int = Field(ge=0)
    usd_per_gpu_hour: float = Field(ge=0)
    watts_per_instance: float = Field(0.0, ge=0)
    utilisation: float = Field(0.0, ge=0)
    timing: Timing | None = None
    above_tokens: int = Field(0, ge=0)  # takes prompts of more than this many input tokens,
    up_to_tokens: int = Field(0, ge=0)  # and of at most this many; 0: no bound
    instances: tuple[Instance, ...]
    stages: tuple[PoolStage, ...] = ()  # of a pipeline that mixes GPU types, in order; left out where all are alike

    @property
    def prompts(self) -> PromptRange:
        """The prompts it takes."""
        return PromptRange(self.above_tokens, self.up_to_tokens)

    @property
    def gpus_per_instance(self) -> int:
        """GPUs one instance takes."""
        return self.tensor_parallel * self.pipeline_parallel

    @property
    def gpu_types(self) -> tuple[str, ...]:
        """The GPU types that an instance stands on."""
        return tuple(dict.fromkeys(stage.gpu for stage in self.stages)) if self.stages else (self.gpu,)

    def gpu_at(self, position: int) -> str:
        """The GPU type at a position of `Instance.gpus`."""
        return self.stages[position // self.tensor_parallel].gpu if self.stages else self.gpu

    def gpu_on(self, instance: Instance, node: str) -> str:
        """The type of an instance's GPUs on a node."""
        return next(self.gpu_at(at) for at, slot in enumerate(instance.gpus) if slot.node == node)

    @model_validator(mode="after")
    def _stages_fit(self) -> Pool:
        """As many stages as the pipeline has, on the types that `gpu` names."""
        if self.stages and (len(self.stages) != self.pipeline_parallel or "+".join(self.gpu_types) != self.gpu):
            raise ValueError(
                f"stages are {len(self.stages)} on {'+'.join(self.gpu_types)}, the pool says {self.pipeline_parallel} "
                f"on {self.gpu}"
            )
        return self

    @model_serializer(mode="wrap")
    def _without_equal_stages(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Plans without mixed pipelines read and hash as they did before there were any."""
        values: dict[str, Any] = handler(self)
        return values if self.stages else {key: value for key, value in values.items() if key != "stages"}


class Route(_Frozen):
    """The share of all disaggregated requests that go from one prefill instance to one decode instance."""

    prefill: str
    decode: str
    share: float = Field(ge=0, le=1)
    path: Literal["same-node", "same-rack", "cross-rack"]
    transfer_base_s: float = Field(0.0, ge=0)  # predicted KV transfer not hidden: base + tokens × s_per_token
    transfer_s_per_token: float = Field(0.0, ge=0)


class Estimate(_Frozen):
    """A simulated figure with its 95 % interval."""

    value: float
    low: float
    high: float


class ClassTarget(_Frozen):
    """One percentile target of a class and what the simulation gave."""

    name: str  # "TTFT p99"
    value_ms: float
    limit_ms: float


class ClassVerdict(_Frozen):
    """One request class on its own, where there are several."""

    targets: tuple[ClassTarget, ...]
    attainment: Estimate


class Verification(_Frozen):
    """What the simulation of the assigned plan said. Latencies in ms; TPOT = (E2E − TTFT)/(output tokens − 1)."""

    passed: bool
    num_requests: int
    num_seeds: int
    rate_req_per_s: float
    ttft_ms: dict[str, Estimate]  # "mean", "p50", "p90", "p95", "p99"
    tpot_ms: dict[str, Estimate]
    e2e_ms: dict[str, Estimate] = {}
    itl_ms: dict[str, Estimate] = {}
    attainment: Estimate  # share of requests that met all targets
    misses: tuple[str, ...] = ()  # "TTFT p99 1130 ms > 1000 ms"
    classes: dict[str, ClassVerdict] = {}  # by name, where there are several
    lengths: dict[str, ClassVerdict] = {}  # by range of prompt lengths, where pools take different ones


class Proof(_Frozen):
    """How close to the best the program's answer is."""

    status: Literal["optimal", "feasible"]
    objective: str  # "cost", "goodput", "power"
    value: float
    bound: float
    gap_percent: float
    solver: str
    constraints_checked: int


class Alternative(_Frozen):
    """A plan that lost, at its own best."""

    label: str  # "only h100-sxm", "best colocated"
    pools: tuple[Pool, ...] = ()
    num_gpus: int = 0
    usd_per_hour: float = 0.0
    verification: Verification | None = None
    reason: str = ""  # why there is none, or why it lost


class Inputs(_Frozen):
    """What the plan was made for, and the hashes that `launch` checks."""

    model: str
    fleet: str
    fleet_hash: str
    workload: str
    workload_hash: str
    rate_req_per_s: float
    slo: str
    model_hash: str
    profile_hashes: dict[str, str]  # by GPU type
    seed: int = 0
    prefix_hit_ratio: float = Field(0.0, ge=0, le=1)  # share of prompt tokens that a warm cache holds
    options: dict[str, str] = {}


class Plan(_Frozen):
    """The decision."""

    kind: Literal["Plan"] = "Plan"
    version: Literal[1] = 1
    inputs: Inputs
    engine: str
    engine_version: str
    connector: str = ""
    pools: tuple[Pool, ...]
    routes: tuple[Route, ...] = ()
    colocated_share: float | None = Field(None, ge=0, le=1)  # of all requests; None: all or none, as the pools say
    kv_bytes_per_token: float = Field(0.0, ge=0)  # what a transferred token weighs, all layers
    hosts: tuple[Host, ...] = ()  # nodes used; a node that is not listed is reached by its name
    num_gpus: int
    usd_per_hour: float
    watts: float
    proof: Proof
    verification: Verification | None = None
    alternatives: tuple[Alternative, ...] = ()
    length_edges: tuple[int, ...] = ()  # input tokens at which pools part; (): prompts are not told apart
    rejected_columns: dict[str, int] = {}
    corrections: dict[str, float] = {}  # factor on the work of a column, learned from simulations
    limits: tuple[str, ...] = ()
    basis: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _hangs_together(self) -> Plan:
        """Each instance has its GPUs to itself, prefill has a decode to feed, and routes join instances that exist."""
        slots: set[tuple[str, int]] = set()
        for pool in self.pools:
            for instance in pool.instances:
                mine = {(slot.node, slot.index) for slot in instance.gpus}
                if len(instance.gpus) != pool.gpus_per_instance or len(mine) != len(instance.gpus):
                    raise ValueError(
                        f"instance {instance.name} does not list the {pool.gpus_per_instance} GPUs it takes"
                    )
                if mine & slots:
                    raise ValueError(f"instance {instance.name} takes a GPU that another one has")
                slots |= mine
        roles = {pool.role for pool in self.pools}
        if ("prefill" in roles) != ("decode" in roles):
            raise ValueError("prefill and decode pools only work together")
        for pool in self.pools:
            if pool.up_to_tokens and pool.up_to_tokens <= pool.above_tokens:
                raise ValueError(f"pool {pool.name} takes prompts of no length")
        names = {instance.name: pool.role for pool in self.pools for instance in pool.instances}
        for route in self.routes:
            if names.get(route.prefill) != "prefill" or names.get(route.decode) != "decode":
                raise ValueError(
                    f"route {route.prefill} → {route.decode} does not join a prefill and a decode instance"
                )
        return self

    @property
    def tells_lengths_apart(self) -> bool:
        """Whether a request's prompt decides which pools may serve it."""
        return any(not pool.prompts.is_all for pool in self.pools)

    @property
    def prompt_ranges(self) -> tuple[PromptRange, ...]:
        """Stretches of prompt lengths that the same pools serve, shortest first."""
        ends = {end for pool in self.pools for end in (pool.above_tokens, pool.up_to_tokens) if end}
        return buckets(tuple(sorted(ends)))


def load_plan(path: str | Path) -> Plan:
    """Read and check a plan file (YAML or JSON); raises DocumentError with every problem and its line."""
    document = read_document(path, "plan", max_bytes=MAX_PLAN_BYTES)
    check_kind(document, "Plan")
    return validate(document, Plan)


def save_plan(plan: Plan, path: str | Path) -> None:
    """Write a plan as YAML, whole or not at all; the same plan gives the same bytes. Raises InputError."""
    text = yaml.safe_dump(plan.model_dump(mode="json"), sort_keys=False, allow_unicode=True, width=120)
    write_text(path, text, "plan")


def plan_hash(plan: Plan) -> str:
    """SHA-256 (hex) of everything in the plan, whatever the file's layout."""
    text = json.dumps(plan.model_dump(mode="json"), sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()
