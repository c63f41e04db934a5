"""Descriptions fitted to requests, and what they keep of them."""

from __future__ import annotations

import math

import numpy as np
import pytest

from splitplan.catalogs.documents import parse_document
from splitplan.catalogs.errors import InputError
from splitplan.planner.spec.arrivals import burstiness
from splitplan.planner.spec.describe import HOUR_S, fit_document, rates_by_step
from splitplan.planner.spec.fit import WEIGHT_UNITS, fit_gaps, fit_lengths
from splitplan.planner.spec.summary import summarise, weighted_quantiles
from splitplan.planner.spec.trace.read import read_trace
from splitplan.planner.spec.workload import FloatArray, Requests, Workload, load_workload, sample
from splitplan.planner.spec.workload_build import build_workload
from splitplan.planner.spec.yaml_text import yaml_text
from tests.conftest import SHARED, needs_shared

TRACES = {
    "azure-conv": "azure_2023_conv.csv",
    "azure-code": "azure_2023_code.csv",
    "mooncake-conversation": "mooncake_conversation.jsonl",
    "mooncake-synthetic": "mooncake_synthetic.jsonl",
}


def requests_at(arrival_s: FloatArray, seed: int = 0) -> Requests:
    """Lengths that are correlated and heavy-tailed."""
    rng = np.random.default_rng(seed)
    common = rng.normal(size=len(arrival_s))
    prompts = np.exp(6 + common + 0.5 * rng.normal(size=len(arrival_s))).astype(np.int64) + 1
    outputs = np.exp(4 - 0.7 * common + 0.7 * rng.normal(size=len(arrival_s))).astype(np.int64) + 1
    zeros = np.zeros(len(arrival_s), dtype=np.int64)
    return Requests(arrival_s, prompts, outputs, zeros, prompts // 3, None)


def read_back(requests: Requests, **options: object) -> Workload:
    document = fit_document(requests, "fitted", **options)  # type: ignore[arg-type]
    return build_workload(parse_document(yaml_text(document), "fitted.yaml"))


def test_a_thousand_rows_keep_quantiles_means_and_correlation() -> None:
    """Of 20,000 requests: means to 0.1 %, p50 to p99 to 1 % (or a token), correlation to 0.01, cached tokens to 1 %."""
    requests = requests_at(np.arange(20_000) / 10)
    workload = read_back(requests)
    weight = workload.weight
    assert len(weight) < 1200
    for fitted, real in (
        (workload.input_tokens, requests.input_tokens),
        (workload.output_tokens, requests.output_tokens),
    ):
        assert float(fitted @ weight) == pytest.approx(real.mean(), rel=1e-3)
        kept = weighted_quantiles(fitted, weight, (0.5, 0.9, 0.95, 0.99))
        assert kept == pytest.approx(np.quantile(real, (0.5, 0.9, 0.95, 0.99)).tolist(), rel=0.01, abs=1)
    summary = summarise(workload)
    assert summary.correlation == pytest.approx(
        float(np.corrcoef(requests.input_tokens, requests.output_tokens)[0, 1]), abs=0.01
    )
    assert workload.cached_tokens is not None
    assert float(workload.cached_tokens @ weight) == pytest.approx(requests.cached_tokens.mean(), rel=0.01)


def test_of_very_many_requests_evenly_spaced_ones_are_fitted() -> None:
    """A million lengths keep their p99 to 2 %."""
    prompts = np.random.default_rng(7).geometric(1e-3, 1_000_000)
    rows = fit_lengths(prompts, prompts // 7 + 1, prompts * 0)
    kept = weighted_quantiles(rows.input_tokens, rows.units / WEIGHT_UNITS, (0.99,))
    assert kept == pytest.approx([np.quantile(prompts, 0.99)], rel=0.02)


def test_few_requests_are_kept_as_they_are() -> None:
    requests = requests_at(np.arange(50) / 10)
    rows = fit_lengths(requests.input_tokens, requests.output_tokens, requests.cached_tokens)
    assert rows.units.tolist() == [WEIGHT_UNITS // 50] * 50
    assert rows.input_tokens.tolist() == requests.input_tokens.tolist()


def test_equal_lengths_can_be_fitted() -> None:
    """Nothing varies, so there is nothing to calibrate: no division by zero, and the mean stands."""
    ones = np.ones(5000, dtype=np.int64)
    rows = fit_lengths(ones * 7, ones * 3, ones * 0)
    assert set(rows.input_tokens.tolist()) == {7}
    assert rows.units.sum() == WEIGHT_UNITS


@pytest.mark.parametrize("scv", [0.3, 1.0, 8.0, 100.0])
def test_gaps_keep_mean_and_scv(scv: float) -> None:
    """Exactly, unless stretching would make a gap negative; then to 2 %."""
    gaps = np.random.default_rng(1).gamma(1 / scv, scv, 10_000)
    value, count = fit_gaps(gaps)
    assert len(value) <= 256
    assert np.average(value, weights=count) == pytest.approx(1.0)
    kept = float(np.average((value - 1) ** 2, weights=count))
    assert kept == pytest.approx(float(gaps.var() / gaps.mean() ** 2), rel=0.02)


def test_a_coarse_clock_is_found_and_counts_speak_instead() -> None:
    """Poisson arrivals rounded to 3 s: gaps show an SCV near 9, counts per stamp one near 1."""
    arrival_s = np.sort(np.random.default_rng(2).uniform(0, 30_000, 100_000))
    found = burstiness(np.floor(arrival_s / 3) * 3)
    assert found.stamp_s == pytest.approx(3.0)
    assert found.gap_scv > 8
    assert found.scv == pytest.approx(1.0, abs=0.05)


def test_fine_clocks_are_left_alone() -> None:
    arrival_s = np.cumsum(np.random.default_rng(3).exponential(0.2, 20_000))
    found = burstiness(arrival_s)
    assert found.stamp_s is None
    assert found.scv == pytest.approx(1.0, abs=0.05)
    bursts = np.repeat(np.cumsum(np.random.default_rng(3).exponential(5, 2_000)), 10)
    assert burstiness(bursts).stamp_s is None


def test_hours_keep_their_rates_and_burstiness_is_what_is_left_within() -> None:
    """Two hours at 1 and 9 req/s of Poisson arrivals: the SCV over both is far from 1, within hours it is 1."""
    rng = np.random.default_rng(4)
    slow, fast = rng.uniform(0, 3600, 3600), rng.uniform(3600, 7200, 9 * 3600)
    arrival_s = np.sort(np.concatenate([slow, fast, [7200.0 + 300]]))
    requests = requests_at(arrival_s - arrival_s[0])
    assert burstiness(requests.arrival_s).scv > 1.5
    workload = read_back(requests, hourly=True)
    assert workload.hourly_req_per_s == pytest.approx([1, 9], rel=0.05)
    assert workload.arrival_scv == pytest.approx(1.0, abs=0.05)
    assert workload.rate_req_per_s == max(workload.hourly_req_per_s)


def test_a_last_part_hour_counts_for_its_own_length() -> None:
    requests = requests_at(np.arange(0, 5400.0, 0.5))
    assert rates_by_step(requests, HOUR_S, shortest_part=0.2) == pytest.approx([2.0, 2.0], rel=1e-3)


def test_a_profile_gives_back_slow_changes_of_the_rate() -> None:
    """Poisson arrivals whose rate swings 3:1 over ten minutes: variance over mean of counts per minute."""
    rng = np.random.default_rng(6)
    candidates = np.sort(rng.uniform(0, 12_000, 12_000 * 15))
    arrival_s = candidates[rng.uniform(size=len(candidates)) < (10 + 5 * np.sin(candidates / 95.5)) / 15]
    requests = requests_at(arrival_s - arrival_s[0])

    def dispersion(arrivals: FloatArray) -> float:
        counts = np.bincount((arrivals // 60).astype(np.int64))[1:-1]
        return float(counts.var() / counts.mean())

    real = dispersion(requests.arrival_s)
    assert real > 50
    varying = sample(read_back(requests, profile_step_s=60.0), 120_000, seed=0)
    assert dispersion(varying.arrival_s) == pytest.approx(real, rel=0.1)
    assert varying.rate_req_per_s == pytest.approx(requests.rate_req_per_s, rel=0.02)
    assert dispersion(sample(read_back(requests), 120_000, seed=0).arrival_s) < 5


def test_a_profile_keeps_its_seconds_when_the_rate_grows() -> None:
    text = "kind: Workload\nversion: 1\nname: x\nlengths: {fixed: {input: 1, output: 1}}\nrate_req_per_s: 10\n"
    text += "arrivals: {scv: 0, profile: {step_s: 5, factor: [0, 2]}}\n"
    workload = build_workload(parse_document(text, "x.yaml"))
    for rate in (10.0, 100.0):
        arrival_s = sample(workload.at_rate(rate), 2000, seed=1).arrival_s
        gaps = np.diff(arrival_s)
        assert gaps.max() == pytest.approx(5.0, abs=0.2)
        assert gaps.min() == pytest.approx(1 / (2 * rate))
    with pytest.raises(InputError, match="one of the two"):
        read_back(requests_at(np.arange(100.0)), hourly=True, profile_step_s=60.0)
    with pytest.raises(InputError, match="above 0, in seconds"):
        read_back(requests_at(np.arange(100.0)), profile_step_s=0.0)


@needs_shared
def test_azure_conversation_by_minute_varies_like_its_trace() -> None:
    """Variance over mean of counts per minute: 16 in the trace, 1.1 in the steady description."""
    minutes = []
    for seed in range(5):
        arrival_s = sample(load_workload("azure-conv-by-minute"), 19_366, seed).arrival_s
        counts = np.bincount((arrival_s // 60).astype(np.int64))[1:-1]
        minutes.append(counts.var() / counts.mean())
    trace = read_trace(SHARED / "data" / "traces" / TRACES["azure-conv"]).requests.arrival_s
    counts = np.bincount((trace // 60).astype(np.int64))[:-1]
    assert np.mean(minutes) == pytest.approx(counts.var() / counts.mean(), rel=0.15)


def test_requests_at_one_moment_have_no_rate_to_fit() -> None:
    with pytest.raises(InputError, match="at least two requests at different times"):
        fit_document(requests_at(np.zeros(10)), "x")


@needs_shared
@pytest.mark.parametrize("name", TRACES)
def test_shipped_descriptions_are_what_fit_makes_of_the_traces(name: str) -> None:
    """Same rate, gaps and rows; weights to a ten-thousandth, because linear algebra differs between machines."""
    requests = read_trace(SHARED / "data" / "traces" / TRACES[name]).requests
    fitted, shipped = read_back(requests), load_workload(name)
    assert fitted.rate_req_per_s == shipped.rate_req_per_s
    assert fitted.arrival_scv == pytest.approx(shipped.arrival_scv)
    assert fitted.input_tokens.tolist() == shipped.input_tokens.tolist()
    assert fitted.output_tokens.tolist() == shipped.output_tokens.tolist()
    assert np.abs(fitted.weight - shipped.weight).max() < 1e-4
    assert math.isclose(fitted.prefix_hit_ratio, shipped.prefix_hit_ratio, rel_tol=0.01, abs_tol=1e-9)


@needs_shared
def test_mooncake_prefix_hits_are_those_of_the_trace() -> None:
    """The fitted share of cached prompt tokens against the cache simulated over every request."""
    trace = load_workload(SHARED / "data" / "traces" / TRACES["mooncake-synthetic"])
    hits = next(each for each in summarise(trace).prefix_hits if each.cache_tokens == 1_024_000)
    assert load_workload("mooncake-synthetic").prefix_hit_ratio == pytest.approx(hits.token_share, rel=0.04)
