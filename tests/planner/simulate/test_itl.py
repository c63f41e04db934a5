"""Inter-token times: each request's own gaps against its own limit, and all of them together."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from splitplan.catalogs.errors import InputError
from splitplan.planner.inputs import load_inputs
from splitplan.planner.judge.verify import PLAIN, Judge
from splitplan.planner.question import Question
from splitplan.planner.simulate import Deployment, goodput, simulate
from splitplan.planner.simulate.build import GAP_EDGES_S
from splitplan.planner.spec.slo import Slo, Target
from splitplan.planner.spec.workload import Requests
from tests.planner.simulate.cases import (
    constant_step,
    fixed_requests,
    instance,
    linear_step,
    mixed_requests,
    pair,
    poisson_requests,
    realistic_step,
)


def itl_slo(seconds: float, percentile: float, attainment: float = 0.9) -> Slo:
    return Slo(None, None, None, Target(seconds, percentile), attainment)


DEPLOYMENTS = {
    "colocated": Deployment((instance(realistic_step(1), kv_capacity_tokens=2500, max_num_seqs=24),)),
    "prompts first": Deployment((instance(realistic_step(2), scheduler="sglang", max_num_seqs=24),)),
    "static": Deployment((instance(realistic_step(0), scheduler="static", max_num_seqs=8),)),
    "pipeline": Deployment((instance(realistic_step(3, num_stages=3), kv_capacity_tokens=3000),)),
    "disaggregated": pair(realistic_step(4)),
    "prefill emits": pair(realistic_step(5), decode_emits_first_token=False),
}


@pytest.mark.parametrize("name", DEPLOYMENTS)
@pytest.mark.parametrize("quantile", [0.2, 0.5, 0.9, 0.99])
def test_requests_together_have_the_slow_gaps_that_the_histogram_has(name: str, quantile: float) -> None:
    """Each request's count is kept apart from the histogram's: jumps, pauses, preemptions, transfers and all."""
    requests = mixed_requests(300, 15.0)
    counts = simulate(DEPLOYMENTS[name], requests).runs[0].gap_counts
    edge = int(np.searchsorted(np.cumsum(counts), quantile * counts.sum())) + 1
    run = simulate(DEPLOYMENTS[name], requests, itl_limit_s=float(GAP_EDGES_S[edge])).runs[0]
    assert run.num_finished == len(requests)
    assert run.gap_counts.tobytes() == counts.tobytes()
    assert run.slow_gaps.sum() == counts[edge:].sum()
    assert run.slow_gaps.sum() <= (1 - quantile) * run.gaps.sum() + 1e-6
    assert ((run.slow_gaps >= 0) & (run.slow_gaps <= run.gaps)).all()
    assert run.slow_gaps.sum() > 0 or quantile > 0.9
    assert counts.sum() == run.gaps.sum()


def test_a_long_prompt_next_door_is_one_slow_gap_of_each_that_decodes() -> None:
    """Steps of 10 ms; a prompt of 1,000 tokens makes one of 110 ms. Who comes with it has none."""
    step = linear_step(overhead_s=0.01, token_s=1e-4)
    rows = ([0.0, 0.0, 0.5], [10, 10, 1000], [100, 20, 5], [0] * 3, [0] * 3)
    requests = Requests(*(np.array(row) for row in rows))
    run = simulate(Deployment((instance(step),)), requests, itl_limit_s=0.05, warmup_share=0.0).runs[0]
    assert run.slow_gaps.tolist() == [1, 0, 0]  # the second was done by 0.5 s
    assert run.gaps.tolist() == [99, 19, 4]


def test_a_pause_for_prompts_is_a_slow_gap() -> None:
    """Prompts first: two chunks of 10 ms each hold up a decode whose steps are 10 ms: one gap of 30 ms."""
    step = linear_step(overhead_s=0.01, token_s=1e-5)
    deployment = Deployment((instance(step, max_num_batched_tokens=1000, scheduler="sglang"),))
    rows = ([0.0, 0.055], [1000, 1000], [8, 2], [0, 0], [0, 0])
    requests = Requests(*(np.array(row) for row in rows))
    assert simulate(deployment, requests, itl_limit_s=0.015).runs[0].slow_gaps.tolist() == [1, 0]


def test_each_request_has_its_own_limit() -> None:
    """Steps of 10 ms against 5 ms, 20 ms and none."""
    deployment = Deployment((instance(constant_step(0.01)),))
    limits = np.array([0.005, 0.02, np.inf])
    run = simulate(deployment, fixed_requests(3, 10, 6), itl_limit_s=limits).runs[0]
    assert run.slow_gaps.tolist() == [5, 0, 0]


def test_a_request_meets_itl_by_the_percentile_of_its_own_gaps() -> None:
    """One slow gap of ten: p90 allows it, p95 does not; pooled over all three requests it is one of thirty."""
    step = linear_step(overhead_s=0.01, token_s=1e-4)
    rows = ([0.0, 0.05, 2.0], [10, 1000, 10], [11, 11, 11], [0] * 3, [0] * 3)
    requests = Requests(*(np.array(row) for row in rows))
    results = simulate(Deployment((instance(step),)), requests, itl_limit_s=0.05, warmup_share=0.0)
    assert results.runs[0].slow_gaps.tolist() == [1, 0, 0]
    assert results.attainment(itl_slo(0.05, 90)).value == 1.0
    assert results.attainment(itl_slo(0.05, 95)).value == pytest.approx(2 / 3)
    assert results.slow_gap_share().value == pytest.approx(1 / 30)
    assert results.slow_gap_share([np.array([True, False, True])]).value == pytest.approx(1 / 20)


def test_attainment_is_joint() -> None:
    """One misses ITL, another TTFT, the third nothing."""
    step = linear_step(overhead_s=0.01, token_s=1e-4)
    rows = ([0.0, 0.05, 2.0], [10, 1000, 10], [11, 11, 11], [0] * 3, [0] * 3)
    requests = Requests(*(np.array(row) for row in rows))
    results = simulate(Deployment((instance(step),)), requests, itl_limit_s=0.05, warmup_share=0.0)
    slo = dataclasses.replace(itl_slo(0.05, 99), ttft=Target(0.05, 90.0))
    assert results.attainment(slo).value == pytest.approx(1 / 3)


def test_what_was_not_counted_cannot_be_judged() -> None:
    results = simulate(Deployment((instance(constant_step(0.01)),)), fixed_requests(3, 10, 6), itl_limit_s=0.02)
    with pytest.raises(InputError, match=r"itl_limit_s=0\.05"):
        results.attainment(itl_slo(0.05, 90))
    with pytest.raises(InputError, match="itl_limit_s"):
        simulate(Deployment((instance(constant_step(0.01)),)), fixed_requests(3, 10, 6), itl_limit_s=np.ones(2))


def test_goodput_counts_itl() -> None:
    """A prompt of 500 tokens makes a step of 60 ms: at a low rate no request sees another's, at a high one most do."""
    step = linear_step(overhead_s=0.01, token_s=1e-4)
    requests = poisson_requests(300, 1.0, 500, 20)
    deployment = Deployment((instance(step),))
    loose = goodput(deployment, [requests], itl_slo(0.2, 99), tolerance=0.05).rate_req_per_s
    tight = goodput(deployment, [requests], itl_slo(0.05, 99), tolerance=0.05).rate_req_per_s
    assert 0 < tight < 0.5 * loose


@pytest.mark.parametrize(("target", "passes"), [("itl=40ms@p99", True), ("itl=20ms@p99", False)])
def test_a_plans_verdict_includes_itl(target: str, passes: bool) -> None:
    """Steps of 30 ms: every gap is within 40 ms and none within 20, which the joint share and the miss both say."""
    inputs = load_inputs(Question("llama-3.1-8b", "all-h100", "azure-conv", f"ttft=60s@p90,{target}", 5.0))
    deployment = Deployment((instance(constant_step(0.03, max_num_seqs=256, max_tokens=8192)),))
    effort: Any = dataclasses.replace(PLAIN, screen_requests=400)
    verdict, blame = Judge(inputs, effort).screen(deployment)
    assert (verdict.attainment.value > 0.9) == passes
    assert verdict.itl_ms["p99"].value == pytest.approx(30, rel=0.02)
    assert any(miss.startswith("ITL p99: 100.00% of inter-token times") for miss in verdict.misses) != passes
    assert passes or blame["colocated"] > 0.9
