"""Goodput search, runs until tight, sweeps, timelines."""

from __future__ import annotations

import numpy as np
import pytest

from splitplan.catalogs.errors import InputError
from splitplan.planner.simulate import Case, Deployment, goodput, simulate, simulate_until, sweep, timeline
from splitplan.planner.simulate.goodput import at_rate, natural_rate
from splitplan.planner.spec.slo import Slo, Target
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


def ttft_slo(seconds: float, attainment: float) -> Slo:
    return Slo(Target(seconds, 90.0), None, None, None, attainment)


def test_goodput_of_a_lone_prefill_server() -> None:
    """Equal gaps and equal service: every request meets its target up to the service rate, and none far beyond."""
    requests = fixed_requests(400, 1000, 1, np.arange(400) * 0.5)
    deployment = Deployment((instance(linear_step(token_s=1e-4), "prefill", max_num_batched_tokens=1000),))
    found = goodput(deployment, [requests], ttft_slo(0.15, 0.9))
    assert found.rate_req_per_s == pytest.approx(10.0, rel=0.03)
    assert found.attainment.value >= 0.9


def test_goodput_is_zero_when_a_lone_request_misses() -> None:
    deployment = Deployment((instance(constant_step(1.0), "prefill"),))
    found = goodput(deployment, [poisson_requests(50, 1.0, 100, 1)], ttft_slo(0.5, 0.9))
    assert found.rate_req_per_s == 0.0


def test_every_trial_of_a_search_serves_the_same_requests() -> None:
    requests = mixed_requests(100, 3.0)
    stretched = at_rate(requests, 6.0)
    assert natural_rate(stretched) == pytest.approx(6.0)
    assert stretched.input_tokens is requests.input_tokens
    with pytest.raises(InputError, match="too few"):
        goodput(Deployment((instance(realistic_step()),)), [fixed_requests(1, 1, 1)], ttft_slo(1, 0.9))


def test_runs_go_on_until_the_interval_is_tight() -> None:
    deployment = Deployment((instance(realistic_step()),))

    def draw(seed: int) -> object:
        return mixed_requests(800, 4.0, seed)

    loose = simulate_until(deployment, draw, percentile=90, within=0.5)  # type: ignore[arg-type]
    tight = simulate_until(deployment, draw, percentile=90, within=0.06)  # type: ignore[arg-type]
    assert len(loose.runs) < len(tight.runs) < 20
    interval = tight.percentile("ttft", 90)
    assert interval.high - interval.low <= 2 * 0.0601 * interval.value


def test_sweep_gives_the_same_on_all_cores() -> None:
    pytest.importorskip("joblib", reason="joblib is not installed (extra fast)")
    requests = mixed_requests(200, 5.0)
    cases = [
        Case(Deployment((instance(realistic_step(seed)),)), requests, {"seed": seed, "form": "python"})
        for seed in range(3)
    ]
    alone, spread = sweep(cases), sweep(cases, parallel=2)
    for left, right in zip(alone, spread, strict=True):
        assert left.runs[0].e2e_s.tobytes() == right.runs[0].e2e_s.tobytes()


def test_sweep_refuses_what_it_does_not_know() -> None:
    with pytest.raises(InputError, match="parallel"):
        sweep([], parallel="slurm")
    with pytest.raises(InputError, match="parallel"):
        sweep([], parallel=-3)


def test_timeline_changes_nothing_and_adds_up() -> None:
    """A run that is looked at gives the same bits, and the share of busy samples is the utilisation."""
    requests = mixed_requests(600, 6.0)
    deployment = pair(realistic_step(2), 1e9)
    seen, results = timeline(deployment, requests, every_s=0.02)
    alone = simulate(deployment, requests)
    assert results.runs[0].e2e_s.tobytes() == alone.runs[0].e2e_s.tobytes()
    for k, use in enumerate(alone.runs[0].instances):
        assert seen.busy[:, k].mean() == pytest.approx(use.utilisation, abs=0.02)
    assert seen.running[:, 0].max() == 0
    assert 0 < seen.kv_share.max() < 1
    assert 0 < seen.link_share.max() <= 1 + 1e-9
    assert (seen.queued >= 0).all()
    assert seen.time_s[-1] >= alone.runs[0].end_s
