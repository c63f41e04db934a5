"""Plans for a model small enough for real engines on CPUs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from splitplan.planner.plan import Plan
from tests.launcher.plans import small_plan

MAX_MODEL_LEN = 2048


def tiny_plan(model: Path, *, decode_block_tokens: int = 64, **changes: Any) -> Plan:
    """One prefill and one decode instance of the model in a folder; planned for an H100 and an A100."""
    plan = small_plan()
    inputs = plan.inputs.model_copy(update={"model": str(model), "workload": "fixed:64/16", "rate_req_per_s": 1.0})
    limits = {
        "block_tokens": 64,
        "max_num_seqs": 8,
        "max_num_batched_tokens": 2048,
        "max_model_len": MAX_MODEL_LEN,
        "attention_backend": "",
    }
    pools = [
        pool.model_copy(update=limits | ({"block_tokens": decode_block_tokens} if pool.role == "decode" else {}))
        for pool in plan.pools
    ]
    return plan.model_copy(update={"inputs": inputs, "pools": tuple(pools), **changes})
