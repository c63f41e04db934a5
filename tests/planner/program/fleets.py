"""Small fleets and columns for the tests of the program. Figures are made up; names are real."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from splitplan.planner.columns.column import Column, Role, Stage
from splitplan.planner.latency.step import StepModel
from splitplan.planner.program.types import ProgramInput, ProgramOptions
from splitplan.planner.spec.fleet import Fleet, Node, Rack

PRICES = {"h100-sxm": 4.76, "a100-sxm-80": 2.21, "l40s": 1.01, "gb200": 9.0}
GBIT = 1e9 / 8


def a_step() -> StepModel:
    zero = np.zeros(2)
    return StepModel((0.0, 0.0), zero, 0.0, zero, zero, zero, zero, np.zeros((2, 2)), zero, zero, np.zeros((2, 2)))


def a_node(name: str, gpu: str = "h100-sxm", num_gpus: int = 8, *, rack: str = "r0", **changes: Any) -> Node:
    fields: dict[str, Any] = {
        "name": name,
        "rack": rack,
        "gpu": gpu,
        "num_gpus": num_gpus,
        "gpu_link": "nvlink4",
        "nvlink_domain_gpus": num_gpus,
        "nic_link": "ib-400",
        "num_nics": 8,
        "nic_bytes_per_s": 400 * GBIT,
        "host_memory_bytes": 2**40,
        "host_watts": 1000.0,
        "pci_roots": (),
        "labels": {},
    }
    return Node(**(fields | changes))


def a_rack(name: str, nodes: Sequence[Node], **changes: Any) -> Rack:
    fields: dict[str, Any] = {"power_limit_watts": None, "uplink_bytes_per_s": 400 * GBIT}
    return Rack(name, tuple(nodes), **(fields | changes))


def a_fleet(racks: Sequence[Rack], **changes: Any) -> Fleet:
    fields: dict[str, Any] = {"spine_bytes_per_s": None, "usd_per_gpu_hour": PRICES, "price_sources": {}}
    return Fleet("test", tuple(racks), **(fields | changes))


def four_racks(**changes: Any) -> Fleet:
    """16 H100, 16 A100 and 16 L40S in four racks."""
    racks = [
        a_rack("r1", [a_node("h1", rack="r1"), a_node("h2", rack="r1")]),
        a_rack("r2", [a_node("a1", "a100-sxm-80", rack="r2"), a_node("a2", "a100-sxm-80", rack="r2")]),
        a_rack("r3", [a_node("l1", "l40s", 4, rack="r3"), a_node("l2", "l40s", 4, rack="r3")]),
        a_rack("r4", [a_node("l3", "l40s", 4, rack="r4"), a_node("l4", "l40s", 4, rack="r4")]),
    ]
    return a_fleet(racks, **changes)


def a_column(role: Role, gpu: str = "h100-sxm", tp: int = 1, work: Sequence[float] = (0.1,), **changes: Any) -> Column:
    pp = changes.get("pipeline_parallel", 1)
    fields: dict[str, Any] = {
        "name": f"{role} {gpu} tp{tp}" + (f" pp{pp}" if pp > 1 else ""),
        "role": role,
        "gpu": gpu,
        "tensor_parallel": tp,
        "pipeline_parallel": 1,
        "expert_parallel": 1,
        "weight_dtype": "bf16",
        "kv_dtype": "bf16",
        "block_tokens": 16,
        "max_num_seqs": 64,
        "max_num_batched_tokens": 2048,
        "max_model_len": 8192,
        "memory_fraction": 0.9,
        "kv_capacity_tokens": 100_000,
        "work_s_per_request": np.array(work, dtype=float),
        "watts": 500.0 * tp * pp,
        "step": a_step(),
    }
    return Column(**(fields | changes))


def a_mixed_column(
    role: Role, gpus: Sequence[str], tp: int = 1, work: Sequence[float] = (0.1,), **changes: Any
) -> Column:
    """A pipeline of one stage on each of the given GPUs, in order."""
    stages = tuple(Stage(gpu, "", 10) for gpu in gpus)
    names = "+".join(dict.fromkeys(gpus))
    fields: dict[str, Any] = {"name": f"{role} {names} tp{tp} pp{len(gpus)}", "pipeline_parallel": len(gpus)}
    return a_column(role, names, tp, work, **(fields | {"stages": stages} | changes))


def a_problem(
    fleet: Fleet,
    columns: Sequence[Column],
    rate: Sequence[float] = (10.0,),
    *,
    kv_gb: Sequence[float] | None = None,
    **options: Any,
) -> ProgramInput:
    kv = np.array([0.4] * len(rate) if kv_gb is None else kv_gb, dtype=float) * 1e9
    return ProgramInput(
        fleet,
        tuple(columns),
        tuple(f"class{b}" for b in range(len(rate))),
        np.array(rate, dtype=float),
        {"bf16": kv, "fp8": kv / 2},
        options=ProgramOptions(**options),
    )


def many_columns(
    num_classes: int, seed: int = 0, *, gpus: Sequence[str] = ("h100-sxm", "a100-sxm-80", "l40s")
) -> list[Column]:
    """About a hundred columns of all roles, sizes and types with plausible speeds."""
    rng = np.random.default_rng(seed)
    speed = {"h100-sxm": 1.0, "a100-sxm-80": 0.42, "l40s": 0.3}
    memory = {"h100-sxm": 1.0, "a100-sxm-80": 0.65, "l40s": 0.27}
    length = np.linspace(0.3, 2.5, num_classes)
    output = np.linspace(2.0, 0.4, num_classes)
    columns = []
    for gpu in gpus:
        for tp in (1, 2, 4, 8):
            for chunk in (2048, 8192):
                loss = tp**-0.12 * (1.0 + 0.02 * (chunk == 2048))
                noise = rng.uniform(0.95, 1.05)
                pre = 0.3 * length / (speed[gpu] * tp * loss) * noise
                dec = 0.35 * output / (memory[gpu] * tp * loss) * noise
                for kv in ("bf16", "fp8"):
                    tag = {"max_num_batched_tokens": chunk, "kv_dtype": kv}
                    name = f"{gpu} tp{tp} c{chunk} {kv}"
                    columns += [
                        a_column("prefill", gpu, tp, pre, name=f"prefill {name}", **tag),
                        a_column("decode", gpu, tp, dec * (1.0 if kv == "bf16" else 0.6), name=f"decode {name}", **tag),
                        a_column("colocated", gpu, tp, 1.15 * (pre + dec), name=f"colocated {name}", **tag),
                    ]
    return columns


def same_kv(prefill: Column, decode: Column) -> bool:
    return prefill.kv_dtype == decode.kv_dtype
