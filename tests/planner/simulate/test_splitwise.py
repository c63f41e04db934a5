"""Splitwise (ISCA 2024): its nine-target verdicts at iso-power on the Azure conversation lengths.

Step times are its published measurements of BLOOM-176B on TP8 (medians, ms): prompts by tokens, token time by
batch at 512-token prompts. Machines (prompt, token) are its iso-power provisioning of 40 DGX-H100; the baselines mix
both phases, prompts first. Its own simulator takes the token time of a batch of one for every batch.
"""

from __future__ import annotations

import functools

import numpy as np
import pytest

from splitplan.planner.latency.step import StepModel
from splitplan.planner.simulate import Deployment, InstanceSpec, Link, simulate
from splitplan.planner.simulate.goodput import at_rate
from splitplan.planner.spec.workload import FloatArray, Requests, load_workload, sample

PROMPT_TOKENS = np.array([0.0, 1, 128, 256, 512, 1024, 2048, 4096, 8192])
PROMPT_S = {
    "A": np.array([0.0, 79.7, 79.7, 99.2, 174.4, 289.2, 540.4, 1348.2, 3593.2]) / 1e3,
    "H": np.array([0.0, 48.3, 48.3, 51.2, 76.1, 132.6, 253.1, 688.7, 1535.4]) / 1e3,
}
BATCHES = np.array([0.0, 1, 2, 4, 8, 16, 32, 64, 256])
TOKEN_S = {
    "A": np.array([0.0, 47.6, 50.0, 51.0, 53.0, 57.3, 65.4, 96.6, 283.6]) / 1e3,  # the last from the slope before it
    "H": np.array([0.0, 35.7, 36.9, 38.1, 38.1, 40.6, 45.8, 63.8, 171.7]) / 1e3,
}
KV_BYTES_PER_TOKEN = 4 * 14336 * 70  # 70 layers of MHA, keys and values, FP16
KV_TOKENS = 70_000  # (8 · 80 GB − 352 GB of weights) / KV_BYTES_PER_TOKEN, roughly
NIC_BYTES_PER_S = {"A": 200e9, "H": 400e9}  # eight ports of 200 and 400 Gbit/s per DGX


def machine(kind: str, role: str, flat: bool) -> StepModel:
    """A DGX of kind A or H. On prompt machines a step's time goes by all its tokens, so that prompts share it; on mixed
    ones it sits in the prompt's attention table, so that steps of decodes cost their own.
    """
    token_s = np.minimum(TOKEN_S[kind], TOKEN_S[kind][1]) if flat else TOKEN_S[kind]
    shared = np.interp(np.arange(8193), PROMPT_TOKENS, PROMPT_S[kind])
    none, flat_axis = np.zeros(257), np.array([0.0, 8192.0])
    return StepModel(
        overhead_s=(0.0, 0.0),
        host_s=none,
        gap_s=0.0,
        token_s=shared if role == "prefill" else np.zeros(8193),
        sequence_s=none,
        prefill_new_knots=PROMPT_TOKENS,
        prefill_past_knots=flat_axis,
        prefill_attention_s=np.stack([PROMPT_S[kind] * (role != "prefill")] * 2, axis=1),
        decode_batch_knots=BATCHES,
        decode_context_knots=flat_axis,
        decode_attention_s=np.stack([token_s] * 2, axis=1),
    )


def instances(count: int, kind: str, role: str, flat: bool, **changes: object) -> list[InstanceSpec]:
    step = machine(kind, role, flat)
    tokens = 8192 if role == "decode" else 2048
    fields = {"max_num_seqs": 128, "max_num_batched_tokens": tokens} | changes
    return [InstanceSpec(f"{role}{k}", role, step, KV_TOKENS, **fields) for k in range(count)]  # type: ignore[arg-type]


def split(prompts: int, prompt_kind: str, tokens: int, token_kind: str, *, flat: bool) -> Deployment:
    """Prompt and token machines, KV moved layer by layer over each prompt machine's NIC."""
    sides = instances(prompts, prompt_kind, "prefill", flat)
    sides = [InstanceSpec(**(_fields(spec) | {"egress": (k,)})) for k, spec in enumerate(sides)]
    links = tuple(
        Link(f"nic{k}", min(NIC_BYTES_PER_S[prompt_kind], NIC_BYTES_PER_S[token_kind])) for k in range(prompts)
    )
    return Deployment(
        (*sides, *instances(tokens, token_kind, "decode", flat)),
        links,
        kv_bytes_per_token=KV_BYTES_PER_TOKEN,
        layerwise_layers=70,
        decode_emits_first_token=False,
    )


def _fields(spec: InstanceSpec) -> dict[str, object]:
    return {name: getattr(spec, name) for name in spec.__dataclass_fields__}


def mixed(count: int, kind: str, *, flat: bool) -> Deployment:
    """Machines that do both phases, prompts first."""
    return Deployment(tuple(instances(count, kind, "colocated", flat, scheduler="sglang")))


@functools.cache
def conversation() -> Requests:
    return sample(load_workload("azure-conv", rate_req_per_s=1.0), 6000, 0)


def meets_all_nine(deployment: Deployment, rate: float) -> bool:
    """Slowdown against the request alone on a DGX-A100: TTFT 2, 3, 6 times; TBT and E2E 1.25, 1.5, 5 times."""
    requests = at_rate(conversation(), rate)
    run = simulate(deployment, requests, routing="least_tokens").runs[0]
    first_s = np.interp(requests.input_tokens, PROMPT_TOKENS, PROMPT_S["A"])
    token_s = TOKEN_S["A"][1]
    alone_s = first_s + (requests.output_tokens - 1) * token_s
    checks: list[tuple[FloatArray, tuple[float, float, float]]] = [
        (run.ttft_s / first_s, (2, 3, 6)),
        (run.tpot_s / token_s, (1.25, 1.5, 5)),
        (run.e2e_s / alone_s, (1.25, 1.5, 5)),
    ]
    for slowdown, bounds in checks:
        counted = slowdown[run.warmup :]
        if (np.nanpercentile(counted, (50, 90, 99)) > bounds).any():
            return False
    return True


DESIGNS = {
    "Baseline-A100": lambda flat: mixed(70, "A", flat=flat),
    "Baseline-H100": lambda flat: mixed(40, "H", flat=flat),
    "AA": lambda flat: split(45, "A", 25, "A", flat=flat),
    "HH": lambda flat: split(25, "H", 15, "H", flat=flat),
    "HA": lambda flat: split(25, "H", 26, "A", flat=flat),
}


@pytest.mark.parametrize(
    ("rate", "meet"),
    [(60, {"Baseline-H100", "AA", "HH", "HA"}), (100, {"AA", "HH", "HA"}), (130, {"HA"})],
)
def test_designs_fall_out_in_splitwises_order(rate: float, meet: set[str]) -> None:
    """With its flat token time: HA holds longest, then AA and HH, then the H100 baseline, then the A100 baseline."""
    assert {name for name, build in DESIGNS.items() if meets_all_nine(build(True), rate)} == meet


def test_token_time_that_grows_with_the_batch_undoes_the_mixed_design() -> None:
    """With the token times it measured, A100 token machines cannot batch: HA falls behind HH on the same power."""
    assert meets_all_nine(DESIGNS["HH"](False), 55)
    assert not meets_all_nine(DESIGNS["HA"](False), 55)
