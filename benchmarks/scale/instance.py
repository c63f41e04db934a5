"""The instance: six classes of racks, three GPU types, three models, prefill and decode, pods of 16 racks at 4:1.

Instances come from a plain roofline (datasheet peaks, one efficiency per stage), because what is measured here is the
program, not the latency model.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from splitplan.planner.columns.column import Column, Role
from splitplan.planner.latency.step import StepModel
from splitplan.planner.program.types import ProgramInput, ProgramOptions
from splitplan.planner.spec.fleet import Fleet, Node, Pod, Rack

GBIT = 1e9 / 8
RACKS_PER_POD = 16
OVERSUBSCRIPTION = 4.0
LOAD = 0.6  # of what the fleet could carry if every GPU type served its share of both stages
PREFILL_EFFICIENCY, DECODE_EFFICIENCY = 0.55, 0.6


@dataclass(frozen=True, slots=True)
class GpuFacts:
    """Dense BF16 rate, memory and its bandwidth, price and power of one GPU."""

    flops_per_s: float
    bytes_per_s: float
    memory_bytes: float
    usd_per_hour: float
    watts: float


GPUS = {
    "h100-sxm": GpuFacts(989e12, 3.35e12, 80e9, 4.76, 700.0),
    "a100-sxm-80": GpuFacts(312e12, 2.04e12, 80e9, 2.21, 400.0),
    "l40s": GpuFacts(362e12, 0.864e12, 48e9, 1.35, 350.0),
}


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """Parameters, KV bytes per token, and the mean request: prompt and output tokens."""

    name: str
    parameters: float
    kv_bytes_per_token: float
    input_tokens: int
    output_tokens: int
    share: float  # of all requests


MODELS = (
    ModelFacts("8b", 8.0e9, 131072.0, 1200, 200, 0.6),
    ModelFacts("32b", 32.8e9, 262144.0, 2000, 300, 0.25),
    ModelFacts("70b", 70.6e9, 327680.0, 2400, 250, 0.15),
)


@dataclass(frozen=True, slots=True)
class RackFacts:
    """One class of racks: node types and counts of 8-GPU nodes, power cap, uplink."""

    nodes: tuple[tuple[str, int], ...]
    kilowatts: float
    uplink_gbit_per_s: float


RACKS = (
    RackFacts((("h100-sxm", 4),), 34.0, 1600.0),
    RackFacts((("a100-sxm-80", 4),), 22.0, 800.0),
    RackFacts((("l40s", 4),), 14.0, 400.0),
    RackFacts((("h100-sxm", 2), ("a100-sxm-80", 2)), 26.0, 800.0),
    RackFacts((("a100-sxm-80", 2), ("l40s", 2)), 16.0, 200.0),
    RackFacts((("h100-sxm", 3),), 24.0, 400.0),
)
NIC_GBIT = {"h100-sxm": 3200.0, "a100-sxm-80": 1600.0, "l40s": 400.0}
HOST_WATTS = {"h100-sxm": 2500.0, "a100-sxm-80": 2000.0, "l40s": 1000.0}


def large_fleet(num_racks: int, *, pods: str = "mixed", uplink_factor: float = 1.0) -> Fleet:
    """A fleet of `num_racks` racks. Mixed pods hold all classes in turn, homogeneous ones a single class each."""
    racks, limits = [], dict[str, float]()
    for number in range(num_racks):
        pod = number // RACKS_PER_POD
        facts = RACKS[number % len(RACKS) if pods == "mixed" else pod % len(RACKS)]
        uplink = facts.uplink_gbit_per_s * GBIT * uplink_factor
        limits[f"p{pod:03d}"] = limits.get(f"p{pod:03d}", 0.0) + uplink / OVERSUBSCRIPTION
        racks.append(_rack(f"r{number:05d}", f"p{pod:03d}", facts, uplink))
    return Fleet(
        name=f"{num_racks} racks, {pods} pods",
        racks=tuple(racks),
        spine_bytes_per_s=None,
        usd_per_gpu_hour={name: gpu.usd_per_hour for name, gpu in GPUS.items()},
        price_sources={},
        pods=tuple(Pod(name, limit) for name, limit in limits.items()),
    )


def _rack(name: str, pod: str, facts: RackFacts, uplink_bytes_per_s: float) -> Rack:
    gpus = [gpu for gpu, count in facts.nodes for _ in range(count)]
    nodes = tuple(
        Node(
            name=f"{name}n{number}",
            rack=name,
            gpu=gpu,
            num_gpus=8,
            gpu_link="pcie" if gpu == "l40s" else "nvlink",
            nvlink_domain_gpus=8,
            nic_link="ib",
            num_nics=8,
            nic_bytes_per_s=NIC_GBIT[gpu] * GBIT,
            host_memory_bytes=2**40,
            host_watts=HOST_WATTS[gpu],
            pci_roots=(),
            labels={},
        )
        for number, gpu in enumerate(gpus)
    )
    return Rack(name, nodes, facts.kilowatts * 1e3, uplink_bytes_per_s, pod)


def roofline_columns() -> tuple[Column, ...]:
    """Prefill and decode of every model on every type and tensor-parallel size that its weights and some KV fit."""
    columns = []
    for role in ("prefill", "decode"):
        for b, model in enumerate(MODELS):
            for gpu in GPUS:
                for tp in (1, 2, 4, 8):
                    seconds = _work_s(role, model, GPUS[gpu], tp)
                    if seconds is not None:
                        columns.append(_column(role, b, model, gpu, tp, seconds))
    return tuple(columns)


def _work_s(role: str, model: ModelFacts, gpu: GpuFacts, tp: int) -> float | None:
    """Seconds of one instance that one request takes; None when weights or KV do not fit, or decode is too slow."""
    weights = 2.0 * model.parameters
    free = 0.9 * gpu.memory_bytes * tp - weights * 1.05 - 3e9 * tp
    scaling = tp**-0.1
    if free < 4 * model.kv_bytes_per_token * (model.input_tokens + model.output_tokens):
        return None
    if role == "prefill":
        rate = gpu.flops_per_s * PREFILL_EFFICIENCY * tp * scaling
        return 2.0 * model.parameters * model.input_tokens / rate
    context = model.input_tokens + model.output_tokens / 2
    batch = min(256.0, free / (model.kv_bytes_per_token * context))
    moved = weights + batch * model.kv_bytes_per_token * context
    step_s = moved / (gpu.bytes_per_s * DECODE_EFFICIENCY * tp * scaling) + 0.002
    return model.output_tokens * step_s / batch if step_s <= 0.1 else None


def _column(role: Role, b: int, model: ModelFacts, gpu: str, tp: int, seconds: float) -> Column:
    work = np.full(len(MODELS), np.inf)
    work[b] = seconds
    nothing = np.zeros(2)
    square = np.zeros((2, 2))
    step = StepModel((0.0, 0.0), nothing, 0.0, nothing, nothing, nothing, nothing, square, nothing, nothing, square)
    return Column(
        name=f"{role} {model.name} {gpu} tp{tp}",
        role=role,
        gpu=gpu,
        tensor_parallel=tp,
        pipeline_parallel=1,
        expert_parallel=1,
        weight_dtype="bf16",
        kv_dtype="bf16",
        block_tokens=16,
        max_num_seqs=256,
        max_num_batched_tokens=8192,
        max_model_len=32768,
        memory_fraction=0.9,
        kv_capacity_tokens=100_000,
        work_s_per_request=work,
        watts=GPUS[gpu].watts * tp * (0.95 if role == "prefill" else 0.75),
        step=step,
    )


def large_problem(
    num_racks: int, *, pods: str = "mixed", uplink_factor: float = 1.0, time_limit_s: float = 60.0
) -> ProgramInput:
    """The whole question for a fleet of `num_racks` racks, at LOAD of its capacity."""
    fleet, columns = large_fleet(num_racks, pods=pods, uplink_factor=uplink_factor), roofline_columns()
    rate = LOAD * _capacity_req_per_s(fleet, columns)
    shares = np.array([model.share for model in MODELS])
    kv = np.array([model.kv_bytes_per_token * model.input_tokens for model in MODELS])
    options = ProgramOptions(time_limit_s=time_limit_s, gap_percent=0.1)
    return ProgramInput(fleet, columns, tuple(m.name for m in MODELS), rate * shares, {"bf16": kv}, options=options)


def _capacity_req_per_s(fleet: Fleet, columns: tuple[Column, ...]) -> float:
    """Requests/s if every GPU type served the mix by itself with its best columns: a scale, not a promise."""
    total = 0.0
    for gpu, count in fleet.num_gpus.items():
        per_request = 0.0
        for b, model in enumerate(MODELS):
            for role in ("prefill", "decode"):
                costs = [
                    float(column.work_s_per_request[b]) * column.num_gpus
                    for column in columns
                    if column.gpu == gpu and column.role == role and np.isfinite(column.work_s_per_request[b])
                ]
                per_request += model.share * min(costs, default=np.inf)
        total += count / per_request if np.isfinite(per_request) else 0.0
    return total
