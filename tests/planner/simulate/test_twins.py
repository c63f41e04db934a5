"""The simulator against itself, bit for bit: compiled against plain Python, jumps over runs against single steps."""

from __future__ import annotations

import dataclasses
import os
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from splitplan.planner.latency.build import unlike_stages
from splitplan.planner.latency.step import StepModel
from splitplan.planner.simulate import Change, Deployment, InstanceSpec, Link, PathCost, simulate
from splitplan.planner.simulate.build import build_world
from splitplan.planner.simulate.compiled import compiled_run_events, has_numba
from splitplan.planner.simulate.layout import (
    E_HOME,
    E_KV_FREE,
    E_KV_PAGES,
    E_RUNNING,
    E_WIDTH,
    G_END_ENGINE,
    G_EVENTS,
    G_FIRST_ENGINE,
    G_STEPPING,
    INFINITE_S,
)
from splitplan.planner.simulate.loop import run_events
from splitplan.planner.simulate.results import Run
from splitplan.planner.spec.workload import Requests
from tests.planner.simulate.cases import assert_nothing_lost, mixed_requests, realistic_step, with_prefixes

needs_numba = pytest.mark.skipif(
    not has_numba() and os.environ.get("SPLITPLAN_TEST_REQUIRE") != "all", reason="numba is not installed (extra fast)"
)
ROUTINGS = ("weighted", "round_robin", "least_loaded", "least_tokens", "prefix_aware")


@st.composite
def steps(draw: st.DrawFn) -> StepModel:
    """One to three stages, alike or each of its own kind."""
    seeds = draw(st.lists(st.integers(0, 5), min_size=1, max_size=3))
    if len(seeds) > 1 and draw(st.booleans()):
        return unlike_stages(tuple(realistic_step(seed) for seed in seeds), 1e-4)
    return realistic_step(seeds[0], num_stages=len(seeds))


@st.composite
def instances(draw: st.DrawFn, role: str, index: int) -> InstanceSpec:
    block = draw(st.sampled_from([1, 4, 16, 64]))
    slots = draw(st.integers(1, 24))
    return InstanceSpec(
        name=f"{role}{index}",
        role=role,  # type: ignore[arg-type]
        step=draw(steps()),
        kv_capacity_tokens=draw(st.sampled_from([600, 2000, 5000, 100_000])),
        block_tokens=block,
        max_num_seqs=slots,
        max_num_batched_tokens=draw(st.sampled_from([32, 128, 512, 2048])),
        share=draw(st.sampled_from([0.5, 1.0, 2.0])),
        watermark=draw(st.sampled_from([0.0, 0.05])),
        reserve_output_tokens=draw(st.sampled_from([0, 64])),
        kv_parts=draw(st.sampled_from([(1, 0), (1, 0), (1, 1), (2, 10), (0, 1)])),
        kv_sequence_tokens=draw(st.sampled_from([0, 0, 40])),
        kind=index % 2,
        prefix_cache=draw(st.booleans()),
        host_cache_tokens=draw(st.sampled_from([0, 640])),
        host_cache_bytes_per_s=2e10,
        scheduler=draw(st.sampled_from(["vllm", "vllm", "sglang", "static"])),
        node=f"n{draw(st.integers(0, 2))}",
        rack=f"r{draw(st.integers(0, 1))}",
        local_link=0,
        egress=(1 + index % 2, 3),
        ingress=(4, 5),
    )


@st.composite
def deployments(draw: st.DrawFn) -> Deployment:
    roles = draw(st.sampled_from(["c", "cc", "p", "dd", "pd", "ppd", "pdd", "ppdd", "pdc"]))
    names = {"p": "prefill", "d": "decode", "c": "colocated"}
    specs = tuple(draw(instances(names[letter], k)) for k, letter in enumerate(roles))
    bandwidth = draw(st.sampled_from([1e8, 1e9, 1e11]))
    kv_bytes = draw(st.sampled_from([0.0, 1e5]))
    return Deployment(
        specs,
        tuple(Link(f"l{k}", bandwidth * (1 + k % 3)) for k in range(7)),
        kv_bytes_per_token=kv_bytes,
        window_tokens=draw(st.sampled_from([1, 20, 100, 10_000])),
        windowed_kv_bytes_per_token=kv_bytes / 2,
        transfer_latency_s=draw(st.sampled_from([0.0, 0.003])),
        descriptor_s=1e-6,
        descriptors_per_block=draw(st.sampled_from([0.0, 4.0])),
        layerwise_layers=draw(st.sampled_from([0, 32])),
        spine=6,
        store_tokens=draw(st.sampled_from([0, 1280])),
        store_bytes_per_s=5e9,
        decode_keeps_prefix=draw(st.booleans()),
        decode_emits_first_token=draw(st.booleans()),
        path_costs={(0, 1, False): PathCost(0.001, 1e-6, 4.0, 2.0, 3.0)},
    )


@st.composite
def cases(draw: st.DrawFn) -> tuple[Deployment, Requests, dict[str, Any]]:
    count = draw(st.integers(1, 60))
    requests = mixed_requests(count, draw(st.sampled_from([1.0, 20.0, 500.0])), draw(st.integers(0, 1000)))
    if draw(st.booleans()):
        requests = with_prefixes(requests, draw(st.integers(1, 8)))
    options: dict[str, Any] = {
        "seed": draw(st.integers(0, 100)),
        "arrivals": draw(st.sampled_from(["open", "open", "burst", "closed", "batch"])),
        "concurrency": draw(st.integers(1, 12)),
        "think_s": draw(st.sampled_from([0.0, 0.05])),
        "routing": draw(st.sampled_from(ROUTINGS)),
        "itl_limit_s": draw(st.sampled_from([None, 0.012, np.tile([0.008, 0.02, np.inf], 20)[:count]])),
    }
    deployment = draw(deployments())
    if not deployment.layerwise_layers and deployment.indices("prefill", "colocated"):
        options["changes"] = tuple(
            draw(changes(len(deployment.instances))) for _ in range(draw(st.sampled_from([0, 0, 1, 3])))
        )
    return deployment, requests, options


@st.composite
def changes(draw: st.DrawFn, count: int) -> Change:
    kind = draw(st.sampled_from(["fail", "restart", "role"]))
    role = draw(st.sampled_from(["prefill", "decode", "colocated"])) if kind == "role" else None
    reload_s = draw(st.sampled_from([0.0, 0.5]))
    return Change(draw(st.floats(0, 5)), draw(st.integers(0, count - 1)), kind, role, reload_s)  # type: ignore[arg-type]


def assert_same(left: Run, right: Run) -> None:
    """Every field, bit for bit."""
    for field in dataclasses.fields(Run):
        a, b = getattr(left, field.name), getattr(right, field.name)
        if isinstance(a, np.ndarray):
            assert a.tobytes() == b.tobytes(), field.name
        elif field.name != "num_events":
            assert a == b, field.name


@needs_numba
@settings(max_examples=200, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(cases())
def test_compiled_and_plain_give_the_same_bits(case: tuple[Deployment, Requests, dict[str, Any]]) -> None:
    deployment, requests, options = case
    plain = simulate(deployment, requests, form="python", **options)
    compiled = simulate(deployment, requests, form="numba", **options)
    assert_same(plain.runs[0], compiled.runs[0])
    assert plain.runs[0].num_events == compiled.runs[0].num_events
    assert_nothing_lost(plain, requests)


def _world_after(case: tuple[Deployment, Requests, dict[str, Any]], stepping: bool) -> Any:
    deployment, requests, options = case
    compiled = has_numba()
    world = build_world(deployment, requests, stepping=stepping, as_lists=not compiled, **options)
    (compiled_run_events() if compiled else run_events)(world, INFINITE_S)
    return world


@settings(max_examples=200, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(cases())
def test_jumping_over_runs_is_stepping_through_them(case: tuple[Deployment, Requests, dict[str, Any]]) -> None:
    jumped, stepped = _world_after(case, False), _world_after(case, True)
    jumped.ints[G_STEPPING] = jumped.ints[G_EVENTS] = stepped.ints[G_EVENTS] = 1
    for name in ("ints", "floats"):
        assert np.asarray(getattr(jumped, name)).tobytes() == np.asarray(getattr(stepped, name)).tobytes(), name


@settings(max_examples=200, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(cases())
def test_every_block_comes_back(case: tuple[Deployment, Requests, dict[str, Any]]) -> None:
    """When all requests are done, every engine has all its KV blocks again."""
    world = _world_after(case, False)
    results = simulate(case[0], case[1], **case[2])
    assert_nothing_lost(results, case[1])
    if case[2].get("changes"):
        return  # an instance that stays down, or a side without instances, keeps requests waiting
    for lane in range(world.ints[G_FIRST_ENGINE], world.ints[G_END_ENGINE], E_WIDTH):
        assert world.ints[world.ints[lane + E_HOME] + E_KV_FREE] == world.ints[lane + E_KV_PAGES]
        assert world.ints[lane + E_RUNNING] == 0
    assert results.runs[0].num_in_flight == 0
