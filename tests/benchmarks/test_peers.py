"""Comparing with other planners: their recommendations become deployments, and their numbers become columns."""

from __future__ import annotations

import math
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from benchmarks.peers import aiconfigurator, vllm_sr_sim
from benchmarks.peers.judged import Arm, build, sustained
from splitplan.planner.inputs import SolveInputs, load_inputs
from splitplan.planner.judge.verify import PLAIN
from splitplan.planner.question import Question

SR_SIM_RATES = {  # requests per second of one worker at 1,450 in and 483 out, by vllm-sr-sim's own formula
    "prefill": {"h100-sxm": 3411.8, "a100-sxm-80": 1266.7},
    "decode": {"h100-sxm": 37.898, "a100-sxm-80": 18.838},
}
PRICES = vllm_sr_sim.USD_PER_HOUR


def inputs_of(
    tmp_path: Path, counts: str, model: str = "llama-3.1-8b", workload: str = "fixed:1450/483"
) -> SolveInputs:
    path = tmp_path / "fleet.yaml"
    path.write_text(f"kind: Fleet\nversion: 1\nname: counts\ngpus: {{{counts}}}\n")
    return load_inputs(Question(model, str(path), workload, "ttft=500ms@p90,tpot=100ms@p90", 100.0))


def test_a_recommendation_becomes_a_deployment(tmp_path: Path) -> None:
    """Instances on GPUs of their own, every prefill with a way to every decode, batches as recommended."""
    inputs = inputs_of(tmp_path, "h100: 8, a100: 8")
    arms = [Arm("prefill", "h100-sxm", 1, 1, 2, 64), Arm("decode", "a100-sxm-80", 2, 1, 3, 48)]
    deployment = build(inputs, arms)
    assert deployment is not None
    assert [instance.role for instance in deployment.instances].count("decode") == 3
    assert {spec.max_num_seqs for spec in deployment.instances if spec.role == "decode"} == {48}
    assert len(deployment.routes) == 6
    assert sum(deployment.routes.values()) == pytest.approx(1.0)


def test_what_does_not_fit_sustains_nothing(tmp_path: Path) -> None:
    """A 70B in 16 bit on one 80 GB card."""
    inputs = inputs_of(tmp_path, "h100: 8", "llama-3.1-70b")
    assert build(inputs, [Arm("colocated", "h100-sxm", 1, 1, 8, 32)]) is None
    assert sustained(inputs, None) == 0.0


def test_one_prefill_worker_for_145000_prompt_tokens_a_second_fails_in_the_simulator(tmp_path: Path) -> None:
    """The negative control: one H100 and six A100 were planned for 100 req/s and sustain about a quarter of it."""
    inputs = inputs_of(tmp_path, "h100: 8, a100: 8")
    arms = [Arm("prefill", "h100-sxm", 1, 1, 1, 64), Arm("decode", "a100-sxm-80", 1, 1, 6, 256)]
    rate = sustained(inputs, build(inputs, arms), tolerance=0.2, effort=PLAIN)
    assert 10 < rate < 50


def test_by_its_numbers_the_program_is_what_enumeration_finds() -> None:
    """Over every pair of types and every count, and never dearer."""
    case = vllm_sr_sim.CASES[0]
    rows = [
        {
            "prefill": prefill,
            "decode": decode,
            "prefill_req_per_s": SR_SIM_RATES["prefill"][prefill],
            "decode_req_per_s": SR_SIM_RATES["decode"][decode],
        }
        for prefill, decode in product(PRICES, repeat=2)
    ]
    cost, words = vllm_sr_sim.by_its_numbers(case, {"rows": rows})
    enumerated = min(
        PRICES[row["prefill"]] * math.ceil(case.rate_req_per_s / row["prefill_req_per_s"])
        + PRICES[row["decode"]] * math.ceil(case.rate_req_per_s / row["decode_req_per_s"])
        for row in rows
    )
    assert cost <= enumerated + 1e-6
    assert cost == pytest.approx(14.27)  # its own answer for this case: one A100 prefills, three H100 decode
    assert words == "3 decode h100-sxm + 1 prefill a100-sxm-80"


def test_by_its_numbers_the_program_is_never_worse_than_the_best_replicas(tmp_path: Path) -> None:
    """Workers as aiconfigurator describes them: more goodput than replicas of one unit, or the same."""
    case = aiconfigurator.Case("llama-3.1-8b", {"h100-sxm": 16}, 4000, 500, 1000.0, 40.0)
    workers: list[dict[str, Any]] = [
        {"role": "prefill", "tp": 2, "pp": 1, "batch": 1, "req_per_s": 2.008, "ttft_ms": 498.0, "tpot_ms": 0.0},
        {"role": "prefill", "tp": 4, "pp": 1, "batch": 1, "req_per_s": 3.4, "ttft_ms": 294.0, "tpot_ms": 0.0},
        {"role": "decode", "tp": 4, "pp": 1, "batch": 52, "req_per_s": 4.226, "ttft_ms": 0.0, "tpot_ms": 24.66},
        {"role": "decode", "tp": 8, "pp": 1, "batch": 256, "req_per_s": 15.552, "ttft_ms": 0.0, "tpot_ms": 32.987},
        {"role": "decode", "tp": 8, "pp": 1, "batch": 512, "req_per_s": 20.0, "ttft_ms": 0.0, "tpot_ms": 51.0},
        {"role": "colocated", "tp": 8, "pp": 1, "batch": 64, "req_per_s": 3.507, "ttft_ms": 415.4, "tpot_ms": 35.7},
    ]
    answer = {"workers": workers, "factors": [0.9, 0.92, 1.8]}
    rate, _ = aiconfigurator.by_its_numbers(case, {"h100-sxm": answer}, inputs_of(tmp_path, "h100: 16"))
    recommended = 2 * min(2 * 2.008 * 0.9, 4.226 * 0.92)  # twice 2 prefill TP2 and 1 decode TP4
    assert rate > recommended * (1 - 1e-6)
    sizes = (2, 4, 4, 8, 8)  # the batch of 512 misses TPOT
    enumerated = max(
        min(0.9 * (2.008 * a + 3.4 * b), 0.92 * (4.226 * c + 15.552 * d)) + 3.507 * e
        for a, b, c, d, e in product(range(9), range(5), range(5), range(3), range(3))
        if sum(size * many for size, many in zip(sizes, (a, b, c, d, e), strict=True)) <= 16
    )
    assert rate == pytest.approx(enumerated, rel=1e-6)
