"""The simulator against queueing theory and closed forms."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest

from splitplan.planner.latency.build import unlike_stages
from splitplan.planner.simulate import Deployment, InstanceSpec, simulate
from splitplan.planner.simulate.results import Results
from splitplan.planner.spec.slo import Slo, Target
from splitplan.planner.spec.workload import Requests
from tests.planner.simulate.cases import (
    assert_nothing_lost,
    constant_step,
    fixed_requests,
    instance,
    linear_step,
    mixed_requests,
    pair,
    poisson_requests,
    realistic_step,
)

SEEDS = range(8)
T_995 = 3.499  # Student's t, 7 degrees of freedom


def one_at_a_time(token_s: float, max_tokens: int = 4096) -> InstanceSpec:
    """A prefill instance that serves prompt after prompt: service time = token_s · tokens."""
    return instance(linear_step(token_s=token_s, max_tokens=max_tokens), "prefill", max_num_seqs=1)


def waits(results: list[Results]) -> tuple[float, float]:
    """Mean wait over runs and the half width of its 99 % interval (Student's t over eight independent runs)."""
    means = np.array([result.runs[0].queue_s[result.runs[0].warmup :].mean() for result in results])
    return float(means.mean()), float(T_995 * means.std(ddof=1) / math.sqrt(len(means)))


@pytest.mark.parametrize("load", [0.3, 0.6, 0.8])
def test_prefill_of_equal_prompts_is_m_d_1(load: float) -> None:
    """Mean wait ρ s / (2 (1 − ρ)) (Pollaczek and Khinchine, deterministic service)."""
    service_s = 0.1
    deployment = Deployment((one_at_a_time(1e-4),))
    runs = [
        simulate(deployment, poisson_requests(5000, load / service_s, 1000, 1, 100 + seed), warmup_share=0.1)
        for seed in SEEDS
    ]
    mean, half = waits(runs)
    assert abs(mean - load * service_s / (2 * (1 - load))) < half + 0.002 * service_s
    utilisation = np.mean([run.runs[0].instances[0].utilisation for run in runs])
    assert utilisation == pytest.approx(load, rel=0.03)


def test_prefill_queue_is_lindleys_recursion() -> None:
    """Request by request: wait(k) = max(0, wait(k − 1) + service(k − 1) − gap(k))."""
    requests = mixed_requests(2000, 20.0)
    service_s = 2e-4 * (requests.input_tokens - requests.cached_tokens)
    run = simulate(Deployment((one_at_a_time(2e-4),)), requests).runs[0]
    wait_s = 0.0
    for k in range(1, len(requests)):
        wait_s = max(0.0, wait_s + service_s[k - 1] - (requests.arrival_s[k] - requests.arrival_s[k - 1]))
        assert run.queue_s[k] == pytest.approx(wait_s, abs=1e-9)
    assert run.queue_s.mean() > 0.01


@pytest.mark.parametrize("load", [0.4, 0.7])
def test_prefill_of_unequal_prompts_is_m_g_1(load: float) -> None:
    """Mean wait λ E[s²] / (2 (1 − ρ)) (Pollaczek and Khinchine)."""
    token_s = 1e-4

    def requests(seed: int) -> Requests:
        draw = np.random.default_rng(seed)
        tokens = np.clip(draw.gamma(0.8, 600.0, 4000), 1, 4000).astype(np.int64)
        zeros = np.zeros(4000, dtype=np.int64)
        times = np.cumsum(draw.exponential(tokens.mean() * token_s / load, 4000))
        return Requests(times, tokens, zeros + 1, zeros, zeros)

    samples = [requests(seed) for seed in SEEDS]
    mean, half = waits([simulate(Deployment((one_at_a_time(token_s),)), sample) for sample in samples])
    service_s = np.concatenate([sample.input_tokens for sample in samples]) * token_s
    expected = load / service_s.mean() * (service_s**2).mean() / (2 * (1 - load))
    assert abs(mean - expected) < half + 0.02 * expected


@pytest.mark.parametrize(("slots", "load"), [(4, 0.7), (16, 0.9)])
def test_decode_slots_are_m_m_c(slots: int, load: float) -> None:
    """Slots with steps of constant time serve geometric lengths like c exponential servers: Erlang's C.

    Time is in steps of 1 ms and lengths average 400 of them, so that the grain of a step hardly shows; a sequence waits
    half a step for the next boundary on top of Erlang's C.
    """
    step_s, mean_steps = 1e-3, 400.0
    deployment = Deployment((instance(constant_step(step_s, max_num_seqs=slots), "decode"),))
    rate = load * slots / (step_s * mean_steps)
    results = []
    for seed in SEEDS:
        draw = np.random.default_rng(seed)
        count = 4_000
        zeros = np.zeros(count, dtype=np.int64)
        lengths = draw.geometric(1 / mean_steps, count).astype(np.int64)
        times = np.cumsum(draw.exponential(1 / rate, count))
        results.append(simulate(deployment, Requests(times, zeros + 1, lengths, zeros, zeros), warmup_share=0.1))
    means = np.array([result.mean("ttft").value - step_s for result in results])
    expected = erlang_c(slots, load * slots) * step_s * mean_steps / (slots * (1 - load))
    half = T_995 * means.std(ddof=1) / math.sqrt(len(means))
    assert abs(means.mean() - expected) < half + 1.5 * step_s


def erlang_c(servers: int, offered: float) -> float:
    """The probability that an arrival waits in M/M/c, from Erlang's B by its recursion."""
    blocked = 1.0
    for count in range(1, servers + 1):
        blocked = offered * blocked / (count + offered * blocked)
    return blocked / (1 - offered / servers * (1 - blocked))


def test_littles_law() -> None:
    """Mean number of decoding sequences over busy time = throughput · time in decode."""
    step = realistic_step(3)
    deployment = Deployment((instance(step, "decode"),))
    requests = mixed_requests(4000, 12.0)
    run = simulate(deployment, requests, warmup_share=0.0).runs[0]
    use = run.instances[0]
    in_system = use.mean_batch * use.utilisation * run.end_s
    in_decode_s = (run.e2e_s - run.ttft_s).sum()
    first_steps_s = in_system - in_decode_s  # the step that gives the first token is decode too, but is part of TTFT
    assert 0 < first_steps_s < len(requests) * 0.05
    assert in_system == pytest.approx(in_decode_s, rel=0.08)


def test_work_is_conserved_by_chunking() -> None:
    """With no overhead and linear work, a prefill instance is busy for exactly the work that arrived, in any chunks."""
    step = linear_step(token_s=1e-4)
    requests = mixed_requests(500, 5.0)
    work_s = 1e-4 * (requests.input_tokens - requests.cached_tokens).sum()
    for budget in (64, 500, 4096):
        results = simulate(Deployment((instance(step, "prefill", max_num_batched_tokens=budget),)), requests)
        use = results.runs[0].instances[0]
        assert use.utilisation * results.runs[0].end_s == pytest.approx(work_s)
        assert_nothing_lost(results, requests)


def test_static_batch_has_a_closed_form() -> None:
    """B equal prompts at once: one prefill step, then o − 1 steps whose attention is an arithmetical series."""
    batch, inputs, outputs = 8, 200, 50
    step = linear_step(overhead_s=0.01, token_s=1e-4, context_token_s=1e-6)
    run = simulate(Deployment((instance(step),)), fixed_requests(batch, inputs, outputs)).runs[0]
    prefill_s = 0.01 + 1e-4 * batch * inputs
    contexts = sum(inputs + j for j in range(1, outputs))
    decode_s = (outputs - 1) * (0.01 + 1e-4 * batch) + 1e-6 * batch * contexts
    assert run.ttft_s == pytest.approx(np.full(batch, prefill_s))
    assert run.e2e_s == pytest.approx(np.full(batch, prefill_s + decode_s))


def test_pipeline_overlaps_prompts() -> None:
    """k prompts through s stages of time t: the last leaves after (k + s − 1) t, plus its hand-offs.

    Only s are in flight, so that the one after them starts when the first has left.
    """
    step = linear_step(token_s=1e-4, num_stages=4, handoff_s=0.001)
    deployment = Deployment((instance(step, "prefill", max_num_batched_tokens=1000),))
    run = simulate(deployment, fixed_requests(5, 1000, 1)).runs[0]
    assert run.ttft_s[:4] == pytest.approx([(k + 4) * 0.1 + 3 * 0.001 for k in range(4)])
    assert run.ttft_s[4] == pytest.approx(2 * (4 * 0.1 + 3 * 0.001))


def test_pipeline_decode_waits_for_all_stages() -> None:
    """A lone sequence cannot fill a pipeline: every token takes all stages; two micro-batches share them for free."""
    step = constant_step(0.01, num_stages=2, max_num_seqs=2)
    deployment = Deployment((instance(step, max_num_seqs=2, max_num_batched_tokens=100),))
    lone = simulate(deployment, fixed_requests(1, 100, 11)).runs[0]
    assert lone.tpot_s[0] == pytest.approx(0.02)
    two = simulate(deployment, fixed_requests(2, 100, 11)).runs[0]
    assert two.tpot_s == pytest.approx([0.02, 0.02])
    assert two.instances[0].utilisation == pytest.approx(22 * 0.01 / two.end_s)


def test_unlike_stages_take_the_sum_and_run_at_the_pace_of_the_slowest() -> None:
    """Stages of 0.1, 0.3 and 0.2 s: the k-th of three prompts leaves after 0.6 s and k more of the slowest."""
    stages = tuple(linear_step(token_s=seconds / 1000) for seconds in (0.1, 0.3, 0.2))
    step = unlike_stages(stages, 0.001)
    deployment = Deployment((instance(step, "prefill", max_num_batched_tokens=1000),))
    run = simulate(deployment, fixed_requests(3, 1000, 1)).runs[0]
    assert run.ttft_s == pytest.approx([0.602, 0.902, 1.202])
    assert run.instances[0].utilisation == pytest.approx(0.9 / run.end_s)


def test_unlike_stages_that_are_alike_change_nothing() -> None:
    """Three equal stages given one by one: the same bits as one stage model for all three."""
    stage = realistic_step(2)
    together = replace(stage, num_stages=3)
    requests = mixed_requests(300, 12.0)
    runs = [
        simulate(Deployment((instance(step, max_num_seqs=24, max_num_batched_tokens=512),)), requests).runs[0]
        for step in (together, unlike_stages((stage, stage, stage), together.handoff_s))
    ]
    np.testing.assert_array_equal(runs[0].ttft_s, runs[1].ttft_s)
    np.testing.assert_array_equal(runs[0].e2e_s, runs[1].e2e_s)


@pytest.mark.parametrize("routing", ["round_robin", "least_loaded", "least_tokens", "weighted", "prefix_aware"])
def test_more_instances_do_not_lower_attainment(routing: str) -> None:
    """At equal seeds, whatever the router: beyond noise, more of them never makes it worse."""
    step = realistic_step(1)
    requests = mixed_requests(1500, 60.0)
    slo = Slo(Target(0.1, 90.0), Target(0.03, 90.0), None, None, 0.9)
    results = [
        simulate(Deployment(tuple(instance(step, name=f"c{k}") for k in range(count))), requests, routing=routing)  # type: ignore[arg-type]
        for count in (1, 2, 4, 8)
    ]
    p90 = [result.percentile("ttft", 90).value for result in results]
    assert p90 == sorted(p90, reverse=True)
    met = [result.attainment(slo).value for result in results]
    assert all(more >= fewer - 0.005 for fewer, more in itertools.pairwise(met))
    assert met[0] < 0.5 < 0.9 < met[-1]


def test_slower_link_never_improves_ttft() -> None:
    requests = mixed_requests(800, 6.0)
    means = [
        simulate(pair(realistic_step(2), rate), requests).mean("ttft").value for rate in (1e11, 1e10, 1e9, 3e8, 1.2e8)
    ]
    assert means == sorted(means)
