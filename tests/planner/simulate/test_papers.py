"""Anchors from DistServe (OSDI 2024) and cases that people reported in public trackers, with step models stated here.

DistServe's step model of OPT-13B on A100-80G, in ms: prefill a + b · tokens + c · Σ tokens², decode a + b · context +
c · batch, as published with its simulator.
"""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.published.distserve import DECODE_MS, PREFILL_MS, opt_step, sharegpt_like
from splitplan.planner.latency.step import StepModel
from splitplan.planner.simulate import Deployment, goodput, simulate
from splitplan.planner.simulate.goodput import at_rate
from splitplan.planner.spec.slo import Slo, Target
from tests.planner.simulate.cases import fixed_requests, instance, linear_step, poisson_requests

OPT_13B_KV_TOKENS = 66_144
SLO_13B = Slo(Target(0.25, 90.0), Target(0.1, 90.0), None, None, 0.9)


def deployment_13b(prefill_tp: int, decode_tp: int) -> Deployment:
    """One prefill and one decode instance, transfers free, as in DistServe's high-affinity placement."""
    prefill = opt_step(PREFILL_MS["13b"][prefill_tp], DECODE_MS["13b"][prefill_tp])
    decode = opt_step(PREFILL_MS["13b"][decode_tp], DECODE_MS["13b"][decode_tp])
    capacity = OPT_13B_KV_TOKENS
    return Deployment(
        (
            instance(prefill, "prefill", kv_capacity_tokens=prefill_tp * capacity, max_num_batched_tokens=2048),
            instance(decode, "decode", kv_capacity_tokens=decode_tp * capacity),
        ),
        decode_emits_first_token=False,
    )


def test_step_model_is_distserves() -> None:
    """A lone OPT-13B request of 1,024 tokens on TP1: 18.10 + 104.3 + 7.5 ms, then 19.93 + 0.0385 + context."""
    run = simulate(deployment_13b(1, 1), fixed_requests(1, 1024, 2)).runs[0]
    assert run.ttft_s[0] == pytest.approx((18.10 + 0.1019 * 1024 + 7.12e-6 * 1024**2) * 1e-3)
    assert run.tpot_s[0] == pytest.approx((19.93 + 6.27e-4 * 1025 + 0.0385) * 1e-3, rel=1e-6)


def test_attainment_holds_and_then_falls_off_a_knee() -> None:
    """The shape of DistServe's figure: flat near 100 %, then tens of points lost within a doubling of the rate."""
    sample = sharegpt_like(1200, 1)
    deployment = deployment_13b(2, 1)
    found = goodput(deployment, [sample], SLO_13B, tolerance=0.03)
    assert found.rate_req_per_s > 1.0

    def attainment(share: float) -> float:
        return simulate(deployment, at_rate(sample, share * found.rate_req_per_s)).attainment(SLO_13B).value

    assert attainment(0.5) > 0.95
    assert attainment(1.0) >= 0.9 > attainment(1.05)
    assert attainment(2.0) < 0.6


def test_thirteen_b_prefers_prefill_tp2_and_decode_tp1_per_gpu() -> None:
    """DistServe's placement of OPT-13B: of goodput per GPU, prefill does best on TP2 and decode on TP1, each alone.

    Decode batches hold 50,000 tokens, as in its released simulator. (With the KV that memory holds, 66,144 tokens on
    TP1 and at least twice that on TP2, decode on TP2 draws level here: what TP1 saves in work it loses in batch.)
    """
    samples = [sharegpt_like(700, seed) for seed in (1, 2)]
    ttft = Slo(Target(0.25, 90.0), None, None, None, 0.9)
    tpot = Slo(None, Target(0.1, 90.0), None, None, 0.9)

    def per_gpu(role: str, tp: int, slo: Slo) -> float:
        step = opt_step(PREFILL_MS["13b"][tp], DECODE_MS["13b"][tp])
        tokens = 2048 if role == "prefill" else 8192
        alone = instance(step, role, kv_capacity_tokens=50_000, max_num_batched_tokens=tokens)
        deployment = Deployment((alone,), decode_emits_first_token=False)
        return goodput(deployment, samples, slo, tolerance=0.05).rate_req_per_s / tp

    assert per_gpu("prefill", 2, ttft) > per_gpu("prefill", 1, ttft)
    assert per_gpu("decode", 1, tpot) > per_gpu("decode", 2, tpot)


def chat_step() -> StepModel:
    """About an 8B model on one H200: 60 µs a prompt token, decode steps of 6 ms and 0.25 ms per sequence beside KV."""
    step = linear_step(overhead_s=0.0, token_s=0.0, context_token_s=2.6e-8, max_num_seqs=256, max_tokens=16_384)
    tokens = np.arange(16_385)
    return StepModel(
        **{name: getattr(step, name) for name in step.__dataclass_fields__}
        | {"token_s": np.where(tokens > 0, np.maximum(0.006 + 2.5e-4 * np.minimum(tokens, 256), 6e-5 * tokens), 0.0)}
    )


@pytest.mark.parametrize(("inputs", "gains"), [(1024, True), (8128, False)])
def test_second_decode_card_gains_at_short_prompts_and_not_at_long_ones(inputs: int, gains: bool) -> None:
    """reports.yaml, best-ratio-flips-with-prompt-length: +46 % at 8 users and 1,024 tokens, −0.3 % at 8,128."""
    step = chat_step()

    def rate(decodes: int) -> float:
        instances = (instance(step, "prefill"), *(instance(step, "decode", f"d{k}") for k in range(decodes)))
        deployment = Deployment(instances)
        requests = fixed_requests(300, inputs, 256)
        results = simulate(deployment, requests, arrivals="closed", concurrency=16, routing="least_loaded")
        return results.request_rate_per_s

    gain = rate(2) / rate(1) - 1
    assert gain > 0.05 if gains else gain < 0.03


def test_overloaded_decode_shows_as_ttft() -> None:
    """reports.yaml, decode-bound-pool-misread-as-prefill: more offered than decode sustains: TTFT grows by admission.

    Two prefill instances idle most of the time; a second decode instance brings TTFT back, a third prefill does not.
    """
    step = linear_step(overhead_s=0.02, token_s=5e-5, context_token_s=1e-8, max_num_seqs=32)
    requests = poisson_requests(600, 3.2, 4096, 400)

    def ttft(prefills: int, decodes: int) -> float:
        sides = [instance(step, "prefill", f"p{k}") for k in range(prefills)]
        sides += [instance(step, "decode", f"d{k}", kv_capacity_tokens=90_000) for k in range(decodes)]
        results = simulate(Deployment(tuple(sides)), requests, routing="least_loaded")
        return results.mean("ttft").value

    base = ttft(2, 1)
    assert base > 10
    assert ttft(3, 1) > 0.9 * base
    assert ttft(2, 2) < 0.1 * base


def test_nearly_full_kv_breaks_the_tail_and_a_watermark_mends_it() -> None:
    """reports.yaml, kv-nearly-full: 128 users of 1,000 + 5,000 tokens on 299,584 tokens of KV."""
    step = linear_step(overhead_s=0.008, token_s=3e-5, context_token_s=1e-8, max_num_seqs=128, max_tokens=8192)
    requests = fixed_requests(260, 1000, 5000)

    def run(**changes: float) -> tuple[int, float]:
        deployment = Deployment((instance(step, max_num_seqs=128, **({"kv_capacity_tokens": 299_584} | changes)),))
        results = simulate(deployment, requests, arrivals="closed", concurrency=128)
        return results.num_preemptions, results.request_rate_per_s

    preemptions, rate = run()
    with_margin, margin_rate = run(watermark=0.05)
    roomy, _ = run(kv_capacity_tokens=900_000)
    assert preemptions > 2 * with_margin
    assert preemptions > 100
    assert roomy == 0
    assert rate == pytest.approx(margin_rate, rel=0.15)


def test_sustained_rate_falls_with_output_length_by_admission() -> None:
    """reports.yaml, capacity-falls-with-output-length: decode slots and KV are held longer, TTFT runs away."""
    step = linear_step(overhead_s=0.03, max_num_seqs=256)

    def ttft(outputs: int) -> float:
        decode = instance(step, "decode", kv_capacity_tokens=80_000)
        deployment = Deployment((instance(linear_step(token_s=1e-5), "prefill"), decode))
        return simulate(deployment, poisson_requests(1500, 25.0, 1000, outputs)).percentile("ttft", 90).value

    times = [ttft(outputs) for outputs in (1, 33, 67, 100, 133, 167)]
    assert times == sorted(times)
    assert times[1] < 0.2
    assert times[-1] > 5


def test_one_prefill_worker_makes_ttft_linear_in_the_burst() -> None:
    """reports.yaml, one-prefill-worker-and-concurrency: a burst of n is served one after another."""
    step = linear_step(token_s=1e-4)
    deployment = Deployment((instance(step, "prefill", max_num_batched_tokens=1000), instance(step, "decode")))
    means = [
        simulate(deployment, fixed_requests(n, 1000, 20), arrivals="burst").mean("ttft").value for n in (10, 50, 100)
    ]
    assert means[1] / means[0] == pytest.approx(51 / 11, rel=0.1)
    assert means[2] / means[1] == pytest.approx(101 / 51, rel=0.05)
