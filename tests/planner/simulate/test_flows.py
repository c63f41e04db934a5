"""Bytes on shared links: rates and times against a plain fluid model, tiers that contend, costs by kind of path."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from splitplan.catalogs.errors import InputError
from splitplan.planner.simulate import Change, Deployment, Link, PathCost, simulate
from splitplan.planner.simulate.build import build_world
from splitplan.planner.simulate.flows import (
    lay_link,
    new_flow,
    new_way,
    next_through,
    share_around,
    start_bytes,
    unload,
)
from splitplan.planner.simulate.layout import G_FIRST_LINK, G_WAY_COUNT, G_WAYS, L_WIDTH, W_END_S, World
from splitplan.planner.spec.workload import PrefixBlocks, Requests
from tests.planner.simulate.cases import assert_nothing_lost, constant_step, fixed_requests, instance, linear_step

Flow = tuple[float, tuple[int, ...], float]  # start, links, bytes


def max_min(paths: list[tuple[int, ...]], capacities: list[float]) -> list[float]:
    """Rates of flows, one by one: raise all together, freeze those on a link that is full."""
    rates = [0.0] * len(paths)
    open_flows = set(range(len(paths)))
    left = dict(enumerate(capacities))
    while open_flows:
        users = {link: [k for k in open_flows if link in paths[k]] for link in left}
        step, full = min((left[link] / len(found), link) for link, found in users.items() if found)
        for k in open_flows:
            rates[k] += step
            for link in paths[k]:
                left[link] -= step
        open_flows -= set(users[full])
    return rates


def fluid_ends(flows: list[Flow], capacities: list[float]) -> list[float]:
    """When each flow ends, rates worked out anew at every start and end."""
    left = [num_bytes for _, _, num_bytes in flows]
    ends = [math.inf] * len(flows)
    now = 0.0
    while math.inf in ends:
        active = [k for k, flow in enumerate(flows) if flow[0] <= now and ends[k] == math.inf]
        rates = max_min([flows[k][1] for k in active], capacities)
        starts = [flow[0] for flow in flows if flow[0] > now]
        times = [now + left[k] / rate for k, rate in zip(active, rates, strict=True)]
        following = min([*starts, *times])
        for k, rate, time in zip(active, rates, times, strict=True):
            left[k] -= rate * (following - now)
            if time <= following + 1e-12:
                ends[k] = following
        now = following
    return ends


def served_ends(flows: list[Flow], capacities: list[float]) -> list[float]:
    """The same by the simulator's own functions."""
    links = tuple(Link(f"l{k}", rate) for k, rate in enumerate(capacities))
    deployment = Deployment(tuple(instance(constant_step(0.1), name=f"c{k}") for k in range(6)), links)
    world = build_world(
        deployment,
        fixed_requests(len(flows), 2, 1),
        seed=0,
        arrivals="open",
        concurrency=0,
        think_s=0.0,
        routing="weighted",  # type: ignore[arg-type]
        stepping=False,
        as_lists=True,
    )
    first_link = world.ints[G_FIRST_LINK]
    ways: dict[tuple[int, ...], int] = {}
    numbers: dict[int, int] = {}
    ends = [math.inf] * len(flows)

    def serve(until_s: float) -> None:
        while ways:
            way = min(ways.values(), key=lambda handle: world.floats[handle + W_END_S])
            end_s = world.floats[way + W_END_S]
            if end_s > until_s:
                return
            flow = next_through(world, way, end_s)
            ends[numbers[flow]] = end_s
            if unload(world, way):
                share_around(world, way, end_s)

    for number, (start_s, links_used, num_bytes) in enumerate(flows):
        serve(start_s)
        if links_used not in ways:
            ways[links_used] = new_way(world, -1, -1)
            for link in links_used:
                lay_link(world, ways[links_used], first_link + link * L_WIDTH)
        flow = new_flow(world, number, 0)
        numbers[flow] = number
        start_bytes(world, flow, ways[links_used], num_bytes, start_s)
    serve(1e200)
    assert_all_known(world, set(ways.values()))
    return ends


def assert_all_known(world: World, ways: set[int]) -> None:
    listed = world.ints[world.ints[G_WAYS] : world.ints[G_WAYS] + world.ints[G_WAY_COUNT]]
    assert set(listed) == ways


@st.composite
def networks(draw: st.DrawFn) -> tuple[list[Flow], list[float]]:
    capacities = draw(st.lists(st.sampled_from([1.0, 2.0, 3.5, 10.0, 100.0]), min_size=1, max_size=6))
    links = st.lists(st.integers(0, len(capacities) - 1), min_size=1, max_size=5, unique=True)
    flow = st.tuples(st.floats(0, 5), links.map(tuple), st.floats(0.5, 30))
    flows = draw(st.lists(flow, min_size=1, max_size=14))
    return sorted(flows), capacities


@settings(max_examples=150, deadline=None, derandomize=True)
@given(networks())
def test_flows_end_when_a_fluid_model_says(case: tuple[list[Flow], list[float]]) -> None:
    """Any paths, any sizes, any starts: one clock per way gives the times of max-min rates worked out flow by flow."""
    flows, capacities = case
    assert served_ends(flows, capacities) == pytest.approx(fluid_ends(flows, capacities), rel=1e-6, abs=1e-6)


def test_a_saturated_link_is_busy_all_the_time() -> None:
    """Work conservation on a link that many transfers share for good: bytes / bandwidth, whoever goes first."""
    senders = tuple(instance(constant_step(0.001), "prefill", f"p{k}", egress=(0,)) for k in range(3))
    receivers = tuple(instance(constant_step(1e-6), "decode", f"d{k}") for k in range(3))
    requests = fixed_requests(150, 1000, 2, np.sort(np.random.default_rng(1).uniform(0, 1, 150)))
    deployment = Deployment(senders + receivers, (Link("spine", 1e9),), kv_bytes_per_token=1e5)
    run = simulate(deployment, requests).runs[0]
    first_s = float(requests.arrival_s[0]) + 0.001
    assert run.end_s - first_s == pytest.approx(150 * 1000 * 1e5 / 1e9, rel=1e-3)


def prompts_with_one_prefix(count: int, arrival_s: object, blocks: int = 2) -> Requests:
    """`count` prompts of the same `blocks` blocks of 64 tokens."""
    lengths = np.full(count, blocks * 64)
    zeros = np.zeros(count, dtype=np.int64)
    prefix = PrefixBlocks(64, np.arange(count + 1) * blocks, np.tile(np.arange(blocks), count).astype(np.int64))
    return Requests(np.asarray(arrival_s, dtype=np.float64), lengths, zeros + 1, zeros, zeros, prefix)


READ_S = 128 * 1e5 / 1e9


def store_of(count: int, **changes: object) -> Deployment:
    """Instances that keep nothing themselves beside a store of 1 GB/s; prefill costs 0.1 ms a token."""
    fields = {"kv_capacity_tokens": 128, "host_cache_bytes_per_s": 0.0} | changes
    own = tuple(instance(linear_step(token_s=1e-4), name=f"c{k}", **fields) for k in range(count))
    return Deployment(own, kv_bytes_per_token=1e5, store_tokens=10_000, store_bytes_per_s=1e9)


@pytest.mark.parametrize("readers", [1, 2, 5])
def test_reads_of_one_store_share_its_bandwidth(readers: int) -> None:
    """The first prompt fills the store; then one on each other instance reads it at once: n times as long."""
    requests = prompts_with_one_prefix(readers + 1, [0.0] + [10.0] * readers)
    run = simulate(store_of(readers + 1), requests, routing="round_robin").runs[0]
    assert run.cached_tokens.tolist() == [0] + [128] * readers
    assert run.ttft_s[1:] == pytest.approx(np.full(readers, readers * READ_S + 1e-4))


def test_a_read_that_comes_later_slows_the_first_for_as_long_as_both_last() -> None:
    """Half of the first is read when the second comes: both at half speed until the first has its other half."""
    requests = prompts_with_one_prefix(3, [0.0, 10.0, 10.0 + READ_S / 2])
    run = simulate(store_of(3), requests, routing="round_robin").runs[0]
    assert run.ttft_s[1:] == pytest.approx([1.5 * READ_S + 1e-4, 1.5 * READ_S + 1e-4])


def test_host_memories_do_not_contend_with_each_other() -> None:
    """Two instances, each with its own copies in host memory: both read at full speed."""
    own = {"host_cache_tokens": 1000, "host_cache_bytes_per_s": 1e9}
    deployment = Deployment(store_of(2, **own).instances, kv_bytes_per_token=1e5)
    other = np.array([5, 6])
    hashes = np.concatenate([[0, 1], [0, 1], other, other, [0, 1], [0, 1]]).astype(np.int64)
    requests = prompts_with_one_prefix(6, [0.0, 0.0, 5.0, 5.0, 10.0, 10.0])
    prefix = PrefixBlocks(64, np.arange(7) * 2, hashes)
    requests = dataclasses.replace(requests, prefix=prefix)
    run = simulate(deployment, requests, routing="round_robin").runs[0]
    assert run.ttft_s[4:] == pytest.approx([READ_S + 1e-4] * 2)


def test_store_under_poisson_reads_is_a_processor_sharing_queue() -> None:
    """M/G/1-PS: the mean read takes s / (1 − ρ), whatever the distribution of sizes (Kleinrock, 1967).

    Each prompt is computed once, which puts it in the store, and comes once more, when no instance holds it.
    """
    count, load, means, expected = 2500, 0.6, [], []
    deployment = store_of(40, kv_capacity_tokens=8 * 64)
    deployment = dataclasses.replace(deployment, store_tokens=10**9)
    for seed in range(4):
        draw = np.random.default_rng(seed)
        blocks = draw.integers(1, 8, count)
        service_s = blocks * READ_S / 2
        reads_s = 200.0 + np.cumsum(draw.exponential(service_s.mean() / load, count))
        times = np.concatenate([np.arange(count) * 0.05, reads_s])
        counts = np.tile(blocks, 2)
        hashes = np.concatenate([10 * (k % count) + np.arange(n) for k, n in enumerate(counts)]).astype(np.int64)
        zeros = np.zeros(2 * count, dtype=np.int64)
        prefix = PrefixBlocks(64, np.concatenate([[0], np.cumsum(counts)]).astype(np.int64), hashes)
        requests = Requests(times, counts * 64, zeros + 1, zeros, zeros, prefix)
        results = simulate(deployment, requests, routing="round_robin")
        assert_nothing_lost(results, requests)
        assert (results.runs[0].cached_tokens[count:] == counts[count:] * 64).all()
        means.append(float(results.runs[0].ttft_s[count + 200 :].mean()) - 1e-4)
        expected.append(float(service_s.mean()) / (1 - load))
    half = 5.8 * float(np.std(means, ddof=1)) / 2  # Student's t at 99 %, three degrees of freedom
    assert abs(np.mean(means) - np.mean(expected)) < half
    assert half < 0.2 * np.mean(expected)


def test_a_failed_reader_leaves_the_store_to_the_others() -> None:
    """Two read at once; one fails half way through: the other has its second half at full speed."""
    requests = prompts_with_one_prefix(3, [0.0, 10.0, 10.0])
    fails = Change(10.0 + READ_S, 2, "fail")
    results = simulate(store_of(3), requests, routing="round_robin", changes=[fails])
    run = results.runs[0]
    assert run.ttft_s[1] == pytest.approx(1.5 * READ_S + 1e-4)
    assert run.num_restarts == 1
    assert_nothing_lost(results, requests)


def test_a_pipeline_waits_for_its_reads_too() -> None:
    """Two stages: the read, then a token's prefill on each stage; the other lane's prompt reads after it."""
    step = linear_step(token_s=1e-4, num_stages=2)
    own = instance(step, kv_capacity_tokens=256, host_cache_tokens=1000, host_cache_bytes_per_s=1e9)
    sequence = prompts_with_one_prefix(3, [0.0, 5.0, 10.0], 2)
    prefix = PrefixBlocks(64, sequence.prefix.offsets, np.array([0, 1, 5, 6, 0, 1]))  # type: ignore[union-attr]
    sequence = dataclasses.replace(sequence, prefix=prefix, input_tokens=np.array([128, 256, 128]))
    run = simulate(Deployment((own,), kv_bytes_per_token=1e5), sequence).runs[0]
    assert run.cached_tokens.tolist() == [0, 0, 128]
    assert run.ttft_s[2] == pytest.approx(READ_S + 2e-4)


def test_costs_go_by_the_kind_of_path() -> None:
    """The same prompt from one prefill instance: inside the node over its own link, and to another node over NICs."""
    step = linear_step(overhead_s=0.01)
    here = instance(step, "prefill", node="a", local_link=0, egress=(1,))
    near = instance(step, "decode", "near", node="a", kind=1)
    far = instance(step, "decode", "far", node="b", kind=2)
    costs = {
        (0, 1, True): PathCost(0.001, 1e-6, 2.0),
        (0, 2, False): PathCost(0.004, 1e-5, 8.0),
        (0, 1, False): PathCost(9.0, 9.0, 9.0),  # no route of this deployment is of this kind
    }
    deployment = Deployment(
        (here, near, far), (Link("nvlink", 1e11), Link("nic", 1e10)), kv_bytes_per_token=1e5, path_costs=costs
    )
    run = simulate(deployment, fixed_requests(2, 1000, 2, [0.0, 1.0]), routing="round_robin").runs[0]
    assert run.decoder.tolist() == [1, 2]
    assert run.transfer_s == pytest.approx([1e8 / 1e11 + 0.001 + 63 * 2e-6, 1e8 / 1e10 + 0.004 + 63 * 8e-5])
    assert deployment.path_cost(0, 2) == PathCost(0.004, 1e-5, 8.0)
    assert deployment.path_cost(0, 0) == PathCost(0.0, 0.0, 0.0)


def test_costs_that_are_no_numbers_are_refused() -> None:
    bad = Deployment((instance(constant_step(0.01)),), path_costs={(0, 0, True): PathCost(math.nan, 0.0, 0.0)})
    with pytest.raises(InputError, match="cost of path"):
        simulate(bad, fixed_requests(1, 1, 1))
