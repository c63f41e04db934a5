"""Workloads: shipped descriptions against the published statistics of their traces, forms, files, and sampling."""

from __future__ import annotations

import contextlib
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from splitplan.catalogs.documents import parse_document
from splitplan.catalogs.errors import DocumentError, InputError, SplitplanError, UnknownNameError
from splitplan.planner.spec.shipped import shipped_names
from splitplan.planner.spec.slo import parse_slo
from splitplan.planner.spec.workload import (
    FloatArray,
    IntArray,
    PrefixBlocks,
    Requests,
    Workload,
    load_workload,
    sample,
)
from splitplan.planner.spec.workload_build import build_workload

HEAD = "kind: Workload\nversion: 1\nname: mine\n"
FIXED = "lengths: {fixed: {input: 1024, output: 200}}\n"

# requests/s; input mean, p50, p90, p99; output mean, p50, p90, p99; CV of inter-arrival times. Statistics of the traces
# as published for Azure 2023 (Splitwise, ISCA 2024) and Mooncake (FAST 2025), counted on the released files.
PUBLISHED = {
    "azure-code": (2.57, (2048, 1469, 5188, 7436), (28, 13, 55, 252), 13.2),
    "azure-conv": (5.53, (1155, 1020, 2735, 4142), (211, 129, 424, 601), 1.09),
    "mooncake-conversation": (3.40, (12035, 6909, 27367, 85400), (343, 350, 597, 1119), 1.05),
    "mooncake-synthetic": (3.91, (15325, 11587, 38611, 66456), (149, 69, 389, 768), 1.01),
}


def weighted_quantile(values: IntArray, weight: FloatArray, quantile: float) -> float:
    order = np.argsort(values, kind="stable")
    return float(values[order][np.searchsorted(np.cumsum(weight[order]), quantile - 1e-9)])


def workload_of(text: str, rate: float | None = None) -> Workload:
    return build_workload(parse_document(HEAD + text, "mine.yaml", "workload"), rate)


@pytest.mark.parametrize("name", PUBLISHED)
def test_shipped_descriptions_have_the_published_statistics(name: str) -> None:
    """Rate within 0.5 %, means and p50/p90/p99 of both lengths within 1 % (or one token), CV within 1 %."""
    rate, inputs, outputs, cv = PUBLISHED[name]
    workload = load_workload(name)
    assert workload.rate_req_per_s == pytest.approx(rate, rel=5e-3)
    for values, (mean, *quantiles) in ((workload.input_tokens, inputs), (workload.output_tokens, outputs)):
        assert float(values @ workload.weight) == pytest.approx(mean, rel=0.01)
        for quantile, published in zip((0.5, 0.9, 0.99), quantiles, strict=True):
            found = weighted_quantile(values, workload.weight, quantile)
            assert found == pytest.approx(published, rel=0.01, abs=1.0)
    assert math.sqrt(workload.arrival_scv) == pytest.approx(cv, rel=0.01)


def test_the_burst_of_azure_code_survives_sampling() -> None:
    """Its CV of 13 comes from pauses of minutes: 200,000 draws show them within the noise of so heavy a tail."""
    requests = sample(load_workload("azure-code"), 200_000, seed=1)
    gaps = np.diff(requests.arrival_s)
    assert gaps.std() / gaps.mean() == pytest.approx(13.2, rel=0.06)


def test_mooncake_prompts_are_partly_cached() -> None:
    workload = load_workload("mooncake-synthetic")
    assert 0.1 < workload.prefix_hit_ratio < 0.2
    requests = sample(workload, 50_000, seed=0)
    assert requests.cached_tokens.sum() / requests.input_tokens.sum() == pytest.approx(
        workload.prefix_hit_ratio, rel=0.05
    )
    assert (requests.cached_tokens < requests.input_tokens).all()


@pytest.mark.parametrize("scv", [0.0, 0.25, 1.0, 4.0])
def test_sampled_arrivals_have_the_rate_and_burstiness_asked_for(scv: float) -> None:
    """Mean within 5 standard errors; squared CV within 5 %."""
    workload = workload_of(FIXED + f"rate_req_per_s: 8\narrivals: {{scv: {scv}}}\n")
    gaps = np.diff(sample(workload, 200_000, seed=3).arrival_s)
    assert gaps.mean() == pytest.approx(1 / 8, abs=5 * math.sqrt(scv / 200_000) / 8 + 1e-12)
    assert gaps.var() / gaps.mean() ** 2 == pytest.approx(scv, rel=0.05, abs=1e-9)


def test_sampled_lengths_have_the_weighted_mean() -> None:
    """Within five standard errors of 100,000 draws."""
    workload = load_workload("azure-conv")
    requests = sample(workload, 100_000, seed=5)
    mean = float(workload.input_tokens @ workload.weight)
    deviation = math.sqrt(float((workload.input_tokens - mean) ** 2 @ workload.weight))
    assert requests.input_tokens.mean() == pytest.approx(mean, abs=5 * deviation / math.sqrt(100_000))


def test_a_seed_gives_the_same_requests_and_another_seed_others() -> None:
    workload = load_workload("azure-conv")
    first, again, other = (sample(workload, 1000, seed) for seed in (7, 7, 8))
    assert np.array_equal(first.arrival_s, again.arrival_s)
    assert np.array_equal(first.input_tokens, again.input_tokens)
    assert not np.array_equal(first.input_tokens, other.input_tokens)


@given(st.floats(0.01, 100), st.integers(-6, 6), st.integers(0, 1000))
@settings(max_examples=30, deadline=None)
def test_rate_scales_arrivals_exactly_and_leaves_lengths_alone(rate: float, power: int, seed: int) -> None:
    """Scaling by a power of two divides every inter-arrival time by exactly that."""
    factor = 2.0**power
    slow = sample(load_workload("fixed:10/10", rate), 200, seed)
    fast = sample(load_workload("fixed:10/10", rate * factor), 200, seed)
    assert np.array_equal(np.diff(slow.arrival_s), np.diff(fast.arrival_s) * factor)
    assert np.array_equal(slow.input_tokens, fast.input_tokens)


def test_a_rate_given_with_the_command_replaces_the_workloads_own() -> None:
    assert load_workload("azure-conv", 24).rate_req_per_s == 24
    assert load_workload("azure-conv").rate_req_per_s == pytest.approx(5.53, rel=0.01)


@pytest.mark.parametrize("rate", [0.0, -1.0, math.nan, math.inf])
def test_a_rate_that_is_not_above_zero_is_refused(rate: float) -> None:
    with pytest.raises(InputError, match="a finite number above 0"):
        load_workload("azure-conv", rate)


@pytest.mark.parametrize("name", ["sharegpt-like", "fixed:1024/200"])
def test_missing_traffic_is_an_error_not_zero(name: str) -> None:
    with pytest.raises(InputError, match="not how many come"):
        load_workload(name)
    assert load_workload(name, 3).rate_req_per_s == 3


def test_fixed_and_lognormal_forms() -> None:
    fixed = load_workload("fixed:1024/200", 1)
    assert (fixed.input_tokens.tolist(), fixed.output_tokens.tolist()) == ([1024], [200])
    spread = load_workload("lognormal:mean=1155,cv=1.1/mean=211,cv=0.8", 1)
    for values, mean, cv in ((spread.input_tokens, 1155, 1.1), (spread.output_tokens, 211, 0.8)):
        assert values.mean() == pytest.approx(mean, rel=1e-3)
        assert values.std() / values.mean() == pytest.approx(cv, rel=0.01)
        assert float(np.median(values)) == pytest.approx(mean / math.sqrt(1 + cv * cv), rel=0.01)
    assert abs(np.corrcoef(spread.input_tokens, spread.output_tokens)[0, 1]) < 0.01


@pytest.mark.parametrize(
    "form",
    [
        *("fixed:", "fixed:10", "fixed:0/5", "fixed:a/b", "fixed:1/2/3", "fixed:-1/5", "fixed:99999999999/1"),
        *("lognormal:5/6", "lognormal:mean=0/1", "lognormal:median=9/mean=9"),
        *("lognormal:mean=9,cv=x/mean=9", "lognormal:mean=9,cv=6/mean=9"),
    ],
)
def test_bad_forms_are_refused_with_an_example(form: str) -> None:
    with pytest.raises(InputError, match="as in"):
        load_workload(form, 1)


def test_an_unknown_workload_offers_the_nearest_name() -> None:
    with pytest.raises(UnknownNameError, match="azure-conv"):
        load_workload("azure-con")
    with pytest.raises(DocumentError, match="no such workload"):
        load_workload("traces/missing.yaml")


CLASSES = """classes:
  - {name: chat, share: 0.75, slo: 'ttft=500ms@p99', lengths: {like: azure-conv}}
  - {name: batch, share: 0.25, lengths: {fixed: {input: 4096, output: 1000}}, prefix_hit_ratio: 0.5}
rate_req_per_s: 4
"""


def test_classes_keep_their_share_their_lengths_and_their_slo() -> None:
    workload = workload_of(CLASSES)
    assert workload.classes[0].slo == parse_slo("ttft=500ms@p99")
    assert workload.classes[1].slo is None
    assert workload.weight[workload.class_index == 1].sum() == pytest.approx(0.25)
    requests = sample(workload, 20_000, seed=2)
    batch = requests.class_index == 1
    assert batch.mean() == pytest.approx(0.25, abs=5 * math.sqrt(0.25 * 0.75 / 20_000))
    assert set(requests.input_tokens[batch].tolist()) == {4096}
    assert set(requests.cached_tokens[batch].tolist()) == {2048}


def test_hours_of_a_day_are_planned_at_their_peak_and_scale_together() -> None:
    workload = workload_of(FIXED + "hourly_req_per_s: [2, 8, 4]\n")
    assert workload.rate_req_per_s == 8
    assert workload.at_hour(2).rate_req_per_s == 4
    assert workload_of(FIXED + "hourly_req_per_s: [2, 8, 4]\n", 16).hourly_req_per_s == (4, 16, 8)
    with pytest.raises(InputError, match="no hour 3"):
        workload.at_hour(3)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("rate_req_per_s: 1\n", "expected one of `lengths`, `classes` and `trace`"),
        (FIXED + CLASSES, "gives lengths and classes"),
        ("trace: {path: nowhere.csv}\n", "no such trace"),
        (FIXED + "rate_req_per_s: 0\n", "mine.yaml:5 `rate_req_per_s`: is 0"),
        (FIXED + "rate_req_per_s: -3\n", "`rate_req_per_s`: is -3"),
        (FIXED + "rate_req_per_s: .nan\n", "mine.yaml:5 `rate_req_per_s`: .nan is"),
        (FIXED + "rate_req_per_s: '5'\n", "is '5'"),
        (FIXED + "rate_per_s: 5\n", "did you mean rate_req_per_s"),
        (FIXED + "rate_req_per_s: 1\nhourly_req_per_s: [1]\n", "one of the two"),
        ("rate_req_per_s: 1\nlengths: {}\n", "exactly one of fixed"),
        ("rate_req_per_s: 1\nlengths: {like: azure-cnv}\n", "did you mean azure-conv"),
        ("rate_req_per_s: 1\nlengths: {fixed: {input: 0, output: 1}}\n", "is 0"),
        ("rate_req_per_s: 1\nlengths: {sample: {input_tokens: [1, 2], output_tokens: [1]}}\n", "has 1 entries"),
        (
            "rate_req_per_s: 1\nlengths: {sample: {input_tokens: [1], output_tokens: [1], weight: [0]}}\n",
            "weights with a sum above 0",
        ),
        (
            "rate_req_per_s: 1\nlengths: {sample: {input_tokens: [5], output_tokens: [1], cached_tokens: [5]}}\n",
            "less than its input_tokens",
        ),
        (FIXED + "rate_req_per_s: 1\narrivals: {gaps: [0, 0]}\n", "are all 0"),
        (FIXED + "rate_req_per_s: 1\narrivals: {gaps: [1, 2], weight: [1]}\n", "as many as `gaps`"),
        (CLASSES.replace("0.75", "0.5"), "shares add up to 0.75"),
        (CLASSES.replace("batch", "chat"), "given twice"),
        (CLASSES.replace("500ms@p99", "500ms@mean"), "`classes[0].slo`: character 11: '@mean' is no percentile"),
    ],
)
def test_mistakes_name_file_line_key_and_what_was_expected(text: str, message: str) -> None:
    with pytest.raises(DocumentError) as caught:
        workload_of(text)
    assert message in str(caught.value)


def test_measured_gaps_are_drawn_at_mean_one_over_rate() -> None:
    workload = workload_of(FIXED + "rate_req_per_s: 2\narrivals: {gaps: [1, 9], weight: [3, 1]}\n")
    assert workload.arrival_scv == pytest.approx((3 * (1 / 3 - 1) ** 2 + (3 - 1) ** 2) / 4)
    gaps = np.diff(sample(workload, 10_000, seed=0).arrival_s)
    assert set(np.round(gaps, 9).tolist()) == {round(1 / 6, 9), 1.5}


def test_the_hash_follows_what_is_sampled() -> None:
    assert load_workload("fixed:10/10", 1).content_hash == load_workload("fixed:10/10", 1).content_hash
    others = {load_workload(form, rate).content_hash for form, rate in (("fixed:10/10", 1), ("fixed:10/10", 2))}
    assert len(others | {load_workload("fixed:10/11", 1).content_hash}) == 3


def trace_workload(num_requests: int) -> Workload:
    trace = Requests(
        arrival_s=np.arange(num_requests) / 2.0,
        input_tokens=np.arange(num_requests) + 100,
        output_tokens=np.full(num_requests, 5),
        class_index=np.zeros(num_requests, dtype=np.int64),
        cached_tokens=np.zeros(num_requests, dtype=np.int64),
        prefix=PrefixBlocks(16, np.arange(num_requests + 1) * 2, np.arange(num_requests * 2)),
    )
    base = load_workload("fixed:10/10", 2.0)
    return Workload(
        "t",
        2.0,
        0.0,
        base.classes,
        base.input_tokens,
        base.output_tokens,
        base.class_index,
        base.weight,
        0.0,
        "",
        trace,
    )


def test_a_trace_is_replayed_from_a_random_place_and_starts_over_with_new_prefixes() -> None:
    """Laps of a trace must not find each other's prefixes in the cache."""
    workload = trace_workload(10)
    part = sample(workload, 4, seed=1)
    assert np.array_equal(np.diff(part.input_tokens) % 10, np.ones(3))
    laps = sample(workload, 25, seed=1)
    assert np.allclose(np.diff(laps.arrival_s), 0.5)
    assert laps.prefix is not None
    assert len(set(laps.prefix.hashes.tolist())) == 50


def test_laps_of_a_trace_with_wide_hashes_stay_apart() -> None:
    workload = trace_workload(10)
    assert workload.trace is not None
    assert workload.trace.prefix is not None
    wide = replace(workload.trace.prefix, hashes=workload.trace.prefix.hashes * 2**57 - 2**61)
    laps = sample(replace(workload, trace=replace(workload.trace, prefix=wide)), 100, seed=1)
    assert laps.prefix is not None
    assert len(set(laps.prefix.hashes.tolist())) == 200


def test_scaling_a_workload_scales_its_trace() -> None:
    fast = trace_workload(10).at_rate(8.0)
    assert np.allclose(np.diff(sample(fast, 10, 0).arrival_s), 1 / 8)


def test_zero_requests_are_refused() -> None:
    with pytest.raises(InputError, match="at least 1"):
        sample(load_workload("azure-conv"), 0, seed=0)


@given(
    st.one_of(
        st.text(max_size=60), st.sampled_from(["fixed:", "lognormal:"]).flatmap(lambda h: st.text().map(h.__add__))
    )
)
@settings(max_examples=300, deadline=None)
def test_any_name_loads_or_is_refused_politely(name: str) -> None:
    with contextlib.suppress(SplitplanError):
        load_workload(name, 1.0)


@pytest.mark.parametrize(
    "name", ["", ".", "/", "a/\0", "a/\ud800", "x/" + "y" * 5000, "z" * 300 + ".yaml", "/dev/null"]
)
def test_impossible_paths_are_refused_politely(name: str) -> None:
    with pytest.raises(SplitplanError):
        load_workload(name, 1.0)


@pytest.mark.parametrize("name", shipped_names("workload"))
def test_shipped_workloads_name_their_source(name: str) -> None:
    assert len(load_workload(name, 1.0).source) > 20


tokens = st.sampled_from([1, 7, 1000, 5000, 100_000_000, 0])
weights = st.lists(st.sampled_from([0, 1, 2.5, 1e12, 1e-300]), min_size=2, max_size=2)
spreads = st.fixed_dictionaries({"mean": st.sampled_from([1, 30, 1e7])}, optional={"cv": st.sampled_from([0, 1, 5])})
length_files = st.one_of(
    st.fixed_dictionaries({"fixed": st.fixed_dictionaries({"input": tokens, "output": tokens})}),
    st.fixed_dictionaries({"lognormal": st.fixed_dictionaries({"input": spreads, "output": spreads})}),
    st.just({"like": "azure-code"}),
    st.fixed_dictionaries(
        {
            "sample": st.fixed_dictionaries(
                {"input_tokens": st.just([5, 9]), "output_tokens": st.just([1, 2])},
                optional={"weight": weights, "cached_tokens": st.just([4, 0])},
            )
        }
    ),
)
arrival_files = st.fixed_dictionaries(
    {},
    optional={
        "scv": st.sampled_from([0, 1e-6, 1, 1e6]),
        "gaps": st.sampled_from([[1, 3], [0, 1e12], [0, 0]]),
        "weight": weights,
        "profile": st.sampled_from([{"factor": [0, 1e6, 1]}, {"factor": [0]}, {"step_s": 1e-3, "factor": [1, 2]}]),
    },
)
class_files = st.fixed_dictionaries(
    {"name": st.sampled_from(["a", "b"]), "lengths": length_files},
    optional={
        "slo": st.sampled_from(["ttft=1s", "tpot=50ms@p99", "ttft=x"]),
        "prefix_hit_ratio": st.sampled_from([0, 0.99]),
    },
)
kinds_of_requests = st.one_of(
    length_files.map(lambda lengths: {"lengths": lengths}),
    st.lists(class_files, min_size=1, max_size=2, unique_by=lambda each: each["name"]).map(
        lambda classes: {"classes": [{**each, "share": 1 / len(classes)} for each in classes]}
    ),
    st.just({}),
)
rates = st.sampled_from(
    [{"rate_req_per_s": 1e-6}, {"rate_req_per_s": 1e9}, {"hourly_req_per_s": [0, 4]}, {"rate_req_per_s": 0}]
)
workload_files = st.builds(
    lambda requests, rate, rest: {"kind": "Workload", "version": 1, "name": "x", **requests, **rate, **rest},
    kinds_of_requests,
    rates,
    st.fixed_dictionaries(
        {}, optional={"arrivals": arrival_files, "prefix_hit_ratio": st.sampled_from([0, 0.5, 0.999])}
    ),
)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(workload_files)
def test_any_workload_file_samples_or_is_refused_politely(data: dict[str, Any]) -> None:
    """What loads can be sampled: arrivals in order and finite, lengths positive, cached below prompt, classes known."""
    with contextlib.suppress(SplitplanError):
        workload = build_workload(parse_document(yaml.safe_dump(data), "x.yaml"))
        assert workload.weight.sum() == pytest.approx(1.0)
        requests = sample(workload, 50, seed=0)
        assert np.isfinite(requests.arrival_s).all()
        assert (np.diff(requests.arrival_s) >= 0).all()
        assert (requests.input_tokens >= 1).all()
        assert (requests.output_tokens >= 1).all()
        assert (requests.cached_tokens < requests.input_tokens).all()
        assert (requests.cached_tokens >= 0).all()
        assert set(requests.class_index.tolist()) <= set(range(len(workload.classes)))
