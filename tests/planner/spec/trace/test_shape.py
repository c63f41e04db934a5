"""Cutting, splitting, scaling and resampling requests."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from splitplan.catalogs.errors import InputError
from splitplan.planner.spec.trace.shape import at_rate, resample, split_by_input, window
from splitplan.planner.spec.workload import PrefixBlocks, Requests


def requests_of(gaps: list[float], prompts: list[int]) -> Requests:
    count = len(gaps)
    zeros = np.zeros(count, dtype=np.int64)
    lengths = np.resize(np.array(prompts), count)
    prefix = PrefixBlocks(16, np.arange(count + 1) * 2, np.arange(count * 2))
    return Requests(np.cumsum(gaps), lengths, np.arange(count) + 1, zeros, zeros, prefix)


many = st.builds(
    requests_of,
    st.lists(st.one_of(st.just(0.0), st.floats(1e-3, 10)), min_size=1, max_size=40),
    st.lists(st.integers(1, 10_000), min_size=1, max_size=40),
)


@given(many, st.lists(st.floats(0, 400), max_size=5))
def test_windows_partition_requests(requests: Requests, cuts: list[float]) -> None:
    """Every request falls into exactly one of adjoining windows, with its lengths, prefix and absolute arrival."""
    edges = [0.0, *sorted(set(cuts) - {0.0}), 1e9]
    parts = [window(requests, low, high) for low, high in pairwise(edges)]
    arrivals = [part.arrival_s + low for part, low in zip(parts, edges, strict=False)]
    assert np.allclose(np.concatenate(arrivals), requests.arrival_s)
    assert np.array_equal(np.concatenate([part.output_tokens for part in parts]), requests.output_tokens)
    assert requests.prefix is not None
    hashes = [part.prefix.hashes for part in parts if part.prefix is not None]
    assert np.array_equal(np.concatenate(hashes), requests.prefix.hashes)


@given(many, st.lists(st.integers(1, 9_999), min_size=1, max_size=4, unique=True).map(sorted))
def test_splits_partition_requests(requests: Requests, edges: list[int]) -> None:
    """Nobody is lost, and each class holds exactly the prompts of its range."""
    split, names = split_by_input(requests, edges)
    assert len(names) == len(edges) + 1
    assert np.array_equal(split.input_tokens, requests.input_tokens)
    bounds = [0, *edges, 10**9]
    for index in range(len(names)):
        prompts = split.input_tokens[split.class_index == index]
        assert ((prompts > bounds[index]) & (prompts <= bounds[index + 1])).all()


@given(many, st.integers(-5, 5))
@settings(max_examples=50)
def test_scaling_the_rate_by_a_power_of_two_divides_gaps_exactly(requests: Requests, power: int) -> None:
    rate = requests.rate_req_per_s
    if not np.isfinite(rate):
        with pytest.raises(InputError, match="no rate to scale"):
            at_rate(requests, 1.0)
        return
    once, again = at_rate(requests, rate), at_rate(requests, rate * 2.0**power)
    assert np.allclose(once.arrival_s, requests.arrival_s)
    assert np.array_equal(again.arrival_s * 2.0**power, once.arrival_s)


def test_resampling_keeps_the_mean_rate_and_lengths() -> None:
    """Within five standard errors."""
    rng = np.random.default_rng(0)
    requests = requests_of(rng.exponential(0.5, 1000).tolist(), rng.integers(1, 1000, 1000).tolist())
    drawn = resample(requests, 20_000, seed=1)
    gaps = np.diff(requests.arrival_s)
    assert np.diff(drawn.arrival_s).mean() == pytest.approx(gaps.mean(), abs=5 * gaps.std() / 20_000**0.5)
    spread = requests.input_tokens.std() / 20_000**0.5
    assert drawn.input_tokens.mean() == pytest.approx(requests.input_tokens.mean(), abs=5 * spread)
    again = resample(requests, 20_000, seed=1)
    assert np.array_equal(drawn.input_tokens, again.input_tokens)


@pytest.mark.parametrize("edges", [[], [0], [5, 5], [9, 3], [-1]])
def test_edges_must_rise(edges: list[int]) -> None:
    with pytest.raises(InputError, match="rising numbers"):
        split_by_input(requests_of([1.0], [5]), edges)


def test_one_request_cannot_be_resampled() -> None:
    with pytest.raises(InputError, match="at least 1 from 2"):
        resample(requests_of([1.0], [5]), 10, seed=0)
