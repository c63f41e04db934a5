"""Plans written by hand: what the launcher's tests start from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from splitplan.planner.plan import (
    Estimate,
    GpuSlot,
    Host,
    Inputs,
    Instance,
    Plan,
    Pool,
    PoolStage,
    Proof,
    Route,
    Timing,
    Verification,
)

Role = Literal["prefill", "decode", "colocated"]
KV_BYTES_PER_TOKEN = 327680.0  # Llama-3.1-70B, BF16


def slots(*parts: tuple[str, Sequence[int]]) -> tuple[GpuSlot, ...]:
    """("h100-0", (0, 1)), … as GPUs in rank order."""
    return tuple(GpuSlot(node=node, index=index) for node, indices in parts for index in indices)


def timing(prefill_us_per_token: float = 60.0, step_ms: float = 8.0) -> Timing:
    """Linear prefill; a decode step that grows by a third from batch 1 to 64."""
    tokens = (0, 512, 2048, 8192)
    return Timing(
        prefill_tokens=tokens,
        prefill_s=tuple(0.004 + count * prefill_us_per_token * 1e-6 for count in tokens),
        decode_batch=(1, 64),
        decode_context_tokens=(0, 8192),
        decode_step_s=((step_ms / 1e3, step_ms / 1e3 * 1.1), (step_ms / 1e3 * 4 / 3, step_ms / 1e3 * 1.6)),
    )


def pool(
    name: str, role: Role, gpu: str, instances: Sequence[Instance], *, tp: int = 1, pp: int = 1, **changes: Any
) -> Pool:
    """A pool with ordinary limits."""
    values: dict[str, Any] = {
        "weight_dtype": "bf16",
        "kv_dtype": "bf16",
        "attention_backend": "FLASH_ATTN",
        "block_tokens": 16,
        "max_num_seqs": 64 if role == "prefill" else 96,
        "max_num_batched_tokens": 8192 if role == "prefill" else 2048,
        "max_model_len": 16384,
        "memory_fraction": 0.9,
        "kv_capacity_tokens": 400_000,
        "usd_per_gpu_hour": 2.5,
        "timing": timing(),
    }
    values |= changes
    return Pool(
        name=name, role=role, gpu=gpu, tensor_parallel=tp, pipeline_parallel=pp, instances=tuple(instances), **values
    )


def plan(pools: Sequence[Pool], routes: Sequence[Route] = (), hosts: Sequence[Host] = (), **changes: Any) -> Plan:
    """A plan around pools."""
    inputs = Inputs(
        model="llama-3.1-70b",
        fleet="four-racks",
        fleet_hash="f" * 64,
        workload="azure-conv",
        workload_hash="w" * 64,
        rate_req_per_s=8.0,
        slo="ttft=1s@p99,tpot=60ms@p99",
        model_hash="m" * 64,
        profile_hashes={},
    )
    gpus = sum(each.gpus_per_instance * len(each.instances) for each in pools)
    proof = Proof(
        status="optimal",
        objective="cost",
        value=40.0,
        bound=40.0,
        gap_percent=0.0,
        solver="HiGHS",
        constraints_checked=9,
    )
    values: dict[str, Any] = {
        "inputs": inputs,
        "engine": "vllm",
        "engine_version": "0.32.0",
        "connector": "NixlConnector",
        "kv_bytes_per_token": KV_BYTES_PER_TOKEN,
        "num_gpus": gpus,
        "usd_per_hour": 40.0,
        "watts": 9000.0,
        "proof": proof,
        "verification": verification(),
    }
    values |= changes
    return Plan(pools=tuple(pools), routes=tuple(routes), hosts=tuple(hosts), **values)


def verification() -> Verification:
    """Predictions to put beside what was served."""

    def estimates(middle: float) -> dict[str, Estimate]:
        factors = {"mean": 1.1, "p50": 1.0, "p90": 1.4, "p95": 1.6, "p99": 2.0}
        return {
            name: Estimate(value=middle * factor, low=middle * factor * 0.9, high=middle * factor * 1.1)
            for name, factor in factors.items()
        }

    return Verification(
        passed=True,
        num_requests=60000,
        num_seeds=3,
        rate_req_per_s=8.0,
        ttft_ms=estimates(120.0),
        tpot_ms=estimates(9.0),
        attainment=Estimate(value=0.995, low=0.99, high=0.999),
    )


def mixed_plan(**changes: Any) -> Plan:
    """3 × H100 TP2 prefill, 3 × A100 TP4 decode, in two racks."""
    prefill = pool(
        "prefill h100-sxm tp2",
        "prefill",
        "h100-sxm",
        [
            Instance(name="prefill-0", rack="r1", gpus=slots(("h100-0", (0, 1)))),
            Instance(name="prefill-1", rack="r1", gpus=slots(("h100-0", (2, 3)))),
            Instance(name="prefill-2", rack="r2", gpus=slots(("h100-1", (0, 1)))),
        ],
        tp=2,
    )
    decode = pool(
        "decode a100-sxm-80 tp4",
        "decode",
        "a100-sxm-80",
        [
            Instance(name="decode-0", rack="r1", gpus=slots(("a100-0", (0, 1, 2, 3)))),
            Instance(name="decode-1", rack="r1", gpus=slots(("a100-0", (4, 5, 6, 7)))),
            Instance(name="decode-2", rack="r2", gpus=slots(("a100-1", (0, 1, 2, 3)))),
        ],
        tp=4,
    )
    routes = [
        route("prefill-0", "decode-0", 1 / 3),
        route("prefill-1", "decode-1", 1 / 3),
        route("prefill-2", "decode-2", 1 / 3),
    ]
    hosts = [
        Host(name="h100-0", rack="r1", address="10.0.1.1", num_gpus=8),
        Host(name="h100-1", rack="r2", address="10.0.2.1", num_gpus=8),
        Host(name="a100-0", rack="r1", address="10.0.1.2", num_gpus=8),
        Host(name="a100-1", rack="r2", address="10.0.2.2", num_gpus=8),
    ]
    return plan([prefill, decode], routes, hosts, **changes)


def route(prefill: str, decode: str, share: float) -> Route:
    """A route inside a rack."""
    return Route(
        prefill=prefill, decode=decode, share=share, path="same-rack", transfer_base_s=0.002, transfer_s_per_token=2e-6
    )


def colocated_plan(**changes: Any) -> Plan:
    """2 × L40S TP4, nothing disaggregated."""
    instances = [
        Instance(name="colocated-0", rack="r1", gpus=slots(("l40s-0", (0, 1, 2, 3)))),
        Instance(name="colocated-1", rack="r1", gpus=slots(("l40s-0", (4, 5, 6, 7)))),
    ]
    return plan([pool("colocated l40s tp4", "colocated", "l40s", instances, tp=4)], connector="", **changes)


def combined_plan() -> Plan:
    """One prefill, one decode and one colocated instance side by side."""
    base = mixed_plan()
    first = [each.model_copy(update={"instances": each.instances[:1]}) for each in base.pools]
    extra = pool(
        "colocated h100-sxm tp4",
        "colocated",
        "h100-sxm",
        [Instance(name="colocated-0", rack="r2", gpus=slots(("h100-1", (4, 5, 6, 7))))],
        tp=4,
    )
    return plan([*first, extra], [route("prefill-0", "decode-0", 1.0)], base.hosts, colocated_share=0.25)


def pipelined_plan() -> Plan:
    """Prefill over two nodes: TP 8 × PP 2; decode TP 8 on one node."""
    eight = tuple(range(8))
    prefill = pool(
        "prefill h100-sxm tp8pp2",
        "prefill",
        "h100-sxm",
        [Instance(name="prefill-0", rack="r1", gpus=slots(("h100-0", eight), ("h100-1", eight)))],
        tp=8,
        pp=2,
    )
    decode = pool(
        "decode h100-sxm tp8",
        "decode",
        "h100-sxm",
        [Instance(name="decode-0", rack="r1", gpus=slots(("h100-2", eight)))],
        tp=8,
    )
    return plan([prefill, decode], [route("prefill-0", "decode-0", 1.0)], connector="NixlPushConnector")


def small_plan(*, num_pairs: int = 1, **changes: Any) -> Plan:
    """`num_pairs` × (one prefill GPU, one decode GPU), each pair in a rack of its own; fast steps."""
    numbers = range(num_pairs)
    quick = timing(prefill_us_per_token=20.0, step_ms=2.0)
    sides: dict[Role, Pool] = {
        role: pool(
            f"{role} {gpu}",
            role,
            gpu,
            [Instance(name=f"{role}-{n}", rack=f"r{n}", gpus=slots((f"{gpu}-{n}", (0,)))) for n in numbers],
            timing=quick,
        )
        for role, gpu in (("prefill", "h100-sxm"), ("decode", "a100-sxm-80"))
    }
    routes = [route(f"prefill-{n}", f"decode-{n}", 1 / num_pairs) for n in numbers]
    return plan(list(sides.values()), routes, **changes)


HOSTILE = (
    "$(touch PWNED)",
    "`touch PWNED`; touch PWNED",
    "a'b\"c\n touch PWNED #",
    "../../etc/passwd",
    "--host=evil",
    "名前 🙂",
    "A" * 300,
)
"""Names that a careless script would run, a careless path would follow, or Kubernetes would refuse."""


def hostile_plan() -> Plan:
    """Every name of a pool, instance, rack and node is one of HOSTILE."""
    instances = {
        role: [Instance(name=f"{name} {role}", rack=name, gpus=slots((name, (index,)))) for name in HOSTILE]
        for index, role in enumerate(("prefill", "decode"))
    }
    pools = [
        pool(f"{HOSTILE[0]} {role}", role, "h100-sxm", instances[role])  # type: ignore[arg-type]
        for role in ("prefill", "decode")
    ]
    hosts = [
        Host(
            name=name,
            rack=name,
            address=f"10.0.0.{number}",
            labels={"kubernetes.io/hostname": f"node-{number}", "note": name},
        )
        for number, name in enumerate(HOSTILE, start=1)
    ]
    return plan(pools, hosts=hosts)


def mixed_pipeline_plan(**changes: Any) -> Plan:
    """Two pipelines of 405B, each over an A100 node (38 layers) and an H100 node (88 layers)."""
    gpus = range(8)
    instances = [
        Instance(name=f"colocated-{n}", rack=f"r{n}", gpus=slots((f"a100-{n}", gpus), (f"h100-{n}", gpus)))
        for n in range(2)
    ]
    both = "a100-sxm-80+h100-sxm"
    stages = (PoolStage(gpu="a100-sxm-80", layers=38), PoolStage(gpu="h100-sxm", layers=88))
    made = pool("colocated mixed", "colocated", both, instances, tp=8, pp=2, stages=stages)
    hosts = [Host(name=f"{gpu}-{n}", rack=f"r{n}", num_gpus=8) for n in range(2) for gpu in ("a100", "h100")]
    found = plan([made], hosts=hosts, connector="", **changes)
    return found.model_copy(update={"inputs": found.inputs.model_copy(update={"model": "llama-3.1-405b"})})
