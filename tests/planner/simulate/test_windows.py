"""KV of layers with a sliding window: blocks that left it are free, and what is free is what nobody holds."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from splitplan.catalogs.engines import find_engine
from splitplan.catalogs.errors import InputError
from splitplan.catalogs.gpus import find_gpu
from splitplan.catalogs.models import find_model
from splitplan.planner.judge.deploy import kv_parts, kv_sequence_tokens, windows_of
from splitplan.planner.latency.memory import capacity_at_context, instance_memory
from splitplan.planner.simulate import Deployment, Link, PathCost, simulate
from splitplan.planner.simulate import layout as at
from splitplan.planner.simulate.build import build_world
from splitplan.planner.simulate.loop import run_events
from tests.planner.simulate.cases import (
    assert_nothing_lost,
    constant_step,
    fixed_requests,
    instance,
    linear_step,
    mixed_requests,
    pair,
    realistic_step,
    with_prefixes,
)


def blocks_in_window(first_unseen: int, tokens: int, block: int) -> int:
    """Blocks of `tokens` that hold a token from `first_unseen` on, counted one by one."""
    return sum(1 for k in range(-(-tokens // block)) if (k + 1) * block > first_unseen)


def pages_held(world: at.World, home: int, window: int) -> int:
    """What requests hold at an instance without a prefix cache, counted from their states."""
    ints = world.ints
    block, full, windowed = (ints[home + field] for field in (at.E_BLOCK_TOKENS, at.E_FULL_PAGES, at.E_WINDOW_PAGES))

    def held(tokens: int, first_unseen: int) -> int:
        return full * -(-tokens // block) + windowed * blocks_in_window(first_unseen, tokens, block)

    def of_prompt(tokens: int) -> int:
        most = -(-(window - 1 + ints[home + at.E_BUDGET_TOKENS]) // block) + 1
        return full * -(-tokens // block) + windowed * min(-(-tokens // block), most)

    total = 0
    for lane in range(home, home + ints[home + at.E_LANES] * at.E_WIDTH, at.E_WIDTH):
        in_step = ints[lane + at.E_RUN_STEPS] > 0 and ints[lane + at.E_DECODING] > 0
        request = ints[lane + at.E_LATEST]
        while request >= 0:
            tokens = ints[lane + at.E_STEPS] + ints[request + at.R_OFFSET]
            # a step that starts with c tokens sees c − w + 1 … c; between steps the last one is what counts
            total += held(tokens + in_step, tokens - window + in_step)
            request = ints[request + at.R_EARLIER]
    emits = ints[at.G_DECODE_EMITS_FIRST]
    for request in range(ints[at.G_FIRST_REQUEST], ints[at.G_END_REQUEST], at.R_WIDTH):
        state, target = ints[request + at.R_STATE], ints[request + at.R_TARGET]
        place = ints[request + (at.R_AT if state == at.PREFILLING else at.R_ENTRY)]
        if place == home and state in (at.PREFILLING, at.TRANSFERRING):
            total += of_prompt(target)
        if ints[request + at.R_DECODER] == home and (state == at.READY or ints[request + at.R_FLOW] >= 0):
            total += held(target - emits, target - emits - window)
    return total


CASES = [(1, (1, 1), 4), (7, (1, 5), 4), (50, (2, 1), 16), (200, (1, 6), 16), (33, (0, 1), 8), (5, (1, 1), 1)]


@pytest.mark.parametrize("roles", ["c", "pd", "pipeline"])
@pytest.mark.parametrize(("window", "parts", "block"), CASES)
def test_what_is_free_is_what_nobody_holds(roles: str, window: int, parts: tuple[int, int], block: int) -> None:
    """Looked at every few steps, under preemption: pages in use are those of every request's blocks, one by one."""
    step = realistic_step(1, num_stages=2 if roles == "pipeline" else 1)
    fields: dict[str, Any] = {"kv_parts": parts, "block_tokens": block, "max_num_seqs": 24, "prefix_cache": False}
    names = ("prefill", "decode") if roles == "pd" else ("colocated",)
    own = tuple(instance(step, role, kv_capacity_tokens=1800, **fields) for role in names)
    deployment = Deployment(own, (Link("nic", 1e9),), kv_bytes_per_token=1e4, window_tokens=window)
    options: dict[str, Any] = {"seed": 0, "arrivals": "open", "concurrency": 0, "think_s": 0.0, "routing": "weighted"}
    requests = mixed_requests(60, 40.0, seed=window, longest=600)
    world = build_world(deployment, requests, stepping=False, as_lists=True, **options)
    homes = [world.ints[at.G_FIRST_ENGINE] + k * at.E_WIDTH for k in (range(2) if roles == "pd" else range(1))]
    for look in range(300):
        run_events(world, 0.0237 * look)
        for home in homes:
            assert world.ints[home + at.E_KV_PAGES] - world.ints[home + at.E_KV_FREE] == pages_held(world, home, window)
            assert world.ints[home + at.E_KV_FREE] >= 0
    run_events(world, at.INFINITE_S)
    assert world.ints[at.G_FINISHED] + world.ints[at.G_REJECTED] == 60
    assert all(world.ints[home + at.E_KV_FREE] == world.ints[home + at.E_KV_PAGES] for home in homes)


@pytest.mark.parametrize("seed", range(4))
def test_a_window_wider_than_any_context_changes_nothing(seed: int) -> None:
    """Layers whose window is never full hold what layers without one hold (runs are cut elsewhere: other roundings)."""
    requests = with_prefixes(mixed_requests(150, 30.0, seed), 9)
    own = instance(realistic_step(seed), kv_capacity_tokens=3000, max_num_seqs=24, prefix_cache=False)
    plain = simulate(Deployment((own,)), requests).runs[0]
    deployment = Deployment((dataclasses.replace(own, kv_parts=(2, 6)),), window_tokens=100_000)
    wide = simulate(deployment, requests).runs[0]
    assert plain.e2e_s == pytest.approx(wide.e2e_s, rel=1e-9)
    assert plain.preemptions.tolist() == wide.preemptions.tolist()
    assert plain.num_preemptions > 0


def test_an_engine_that_frees_nothing_holds_fewer_sequences() -> None:
    """Eight sequences of 1,000 + 100 tokens on 3,000 tokens of KV: two at a time without freeing, all with it."""
    step = constant_step(0.01, max_tokens=8192)
    fields: dict[str, Any] = {"kv_capacity_tokens": 3_000, "max_num_batched_tokens": 512}
    requests = fixed_requests(8, 1000, 100)
    freeing = Deployment((instance(step, kv_parts=(1, 9), **fields),), window_tokens=64)
    keeping = Deployment((instance(step, kv_parts=(1, 0), **fields),), window_tokens=64)
    assert simulate(freeing, requests).runs[0].end_s < 0.5 * simulate(keeping, requests).runs[0].end_s
    assert simulate(freeing, requests).num_preemptions == 0


def test_what_left_the_window_is_room_for_the_next() -> None:
    """A prompt of 256 tokens in blocks of 16 takes 16 + 16 of 40 pages and falls to 16 + 5 as soon as it decodes, so
    that the next one, of 64 tokens, finds its 8; without freeing it waits for the end of the first."""
    step = constant_step(0.01)
    own = instance(step, kv_parts=(1, 1), kv_capacity_tokens=320, block_tokens=16)
    requests = dataclasses.replace(fixed_requests(2, 256, 60, [0.0, 0.001]), input_tokens=np.array([256, 64]))
    run = simulate(Deployment((own,), window_tokens=64), requests).runs[0]
    assert run.ttft_s[1] == pytest.approx(0.02 - 0.001)
    keeping = Deployment((dataclasses.replace(own, kv_parts=(1, 0)),), window_tokens=64)
    assert simulate(keeping, requests).runs[0].ttft_s[1] == pytest.approx(0.61 - 0.001)


def test_only_the_window_is_sent() -> None:
    """Half of the bytes are in layers with a window of 64 tokens: of 1,000 tokens they send 64; so with descriptors."""
    step = linear_step(overhead_s=0.01)
    costs = {(0, 0, False): PathCost(0.0, 1e-5, 10.0, 4.0)}
    base = pair(step, 1e9, window_tokens=64, windowed_kv_bytes_per_token=5e4, path_costs=costs)
    freeing = tuple(dataclasses.replace(own, kv_parts=(1, 1)) for own in base.instances)
    requests = fixed_requests(1, 1000, 3)
    sent = simulate(dataclasses.replace(base, instances=freeing), requests).runs[0].transfer_s[0]
    assert sent == pytest.approx((1000 * 5e4 + 64 * 5e4) / 1e9 + (63 * 6 + 4 * 4) * 1e-5)
    mixed = (freeing[0], base.instances[1])
    assert simulate(dataclasses.replace(base, instances=mixed), requests).runs[0].transfer_s[0] == pytest.approx(
        0.1 + 63 * 1e-4
    )


def test_host_memory_is_read_for_the_window_only() -> None:
    """Two blocks of 64 tokens come back from the host; layers with a window of 32 need half of the second."""
    step = linear_step(token_s=1e-4)
    own = instance(step, kv_capacity_tokens=256, kv_parts=(1, 1), host_cache_tokens=1000, host_cache_bytes_per_s=1e9)
    base = Deployment((own,), kv_bytes_per_token=1e5, window_tokens=32, windowed_kv_bytes_per_token=4e4)
    requests = with_prefixes(fixed_requests(3, 128, 1, [0.0, 10.0, 20.0]), 2)
    requests = dataclasses.replace(requests, input_tokens=np.array([128, 256, 128]))
    run = simulate(base, requests).runs[0]
    assert run.cached_tokens.tolist() == [0, 0, 128]
    assert run.ttft_s[2] == pytest.approx((128 * 6e4 + 32 * 4e4) / 1e9 + 1e-4)


def test_layers_with_a_state_hold_it_for_every_sequence() -> None:
    """1,000 tokens of KV: a prompt of 100 and its 10 tokens hold 112, and 208 where a state is worth 96."""
    own = instance(constant_step(0.01), kv_capacity_tokens=1000, block_tokens=16, kv_sequence_tokens=90)
    run = simulate(Deployment((own,)), fixed_requests(8, 100, 10)).runs[0]
    assert np.unique(run.ttft_s.round(4), return_counts=True)[1].tolist() == [4, 4]
    without = simulate(Deployment((dataclasses.replace(own, kv_sequence_tokens=0),)), fixed_requests(8, 100, 10)).runs[
        0
    ]
    assert (without.ttft_s < 0.011).all()
    huge = dataclasses.replace(own, kv_sequence_tokens=1000)
    assert simulate(Deployment((huge,)), fixed_requests(1, 100, 10)).num_rejected == 1


def test_a_state_is_sent_with_the_tokens() -> None:
    step = linear_step(overhead_s=0.01)
    base = pair(step, 1e9, kv_bytes_per_sequence=5e6)
    assert simulate(base, fixed_requests(1, 1000, 3)).runs[0].transfer_s[0] == pytest.approx(0.1 + 0.005)


def test_a_model_with_states_holds_as_many_sequences_as_fit_in_bytes() -> None:
    """nemotron-3-super on four H100: 170 MB of state a sequence, 4 KB a token and rank; sequences of 8,192 tokens."""
    model, engine, gpu = find_model("nemotron-3-super-120b-a12b"), find_engine("vllm"), find_gpu("h100")
    memory = instance_memory(
        model, gpu, engine, tp=4, pp=1, ep=1, weight_dtype=model.weight_dtype, kv_dtype="bf16", max_num_seqs=256,
        max_num_batched_tokens=8192, memory_fraction=0.9, max_model_len=8192,
    )  # fmt: skip
    state = kv_sequence_tokens(model, "bf16", 4)
    assert memory.kv_capacity_tokens / (state + 8192) == pytest.approx(
        memory.kv_bytes / memory.kv_bytes_per_sequence, rel=0.01
    )


def test_parts_that_make_no_sense_are_refused() -> None:
    with pytest.raises(InputError, match="kv_parts"):
        simulate(Deployment((instance(constant_step(0.01), kv_parts=(1, 2)),)), fixed_requests(1, 1, 1))
    with pytest.raises(InputError, match="windowed_kv_bytes_per_token"):
        simulate(Deployment((instance(constant_step(0.01)),), windowed_kv_bytes_per_token=1.0), fixed_requests(1, 1, 1))


@pytest.mark.parametrize("name", ["gemma-3-4b", "gemma-3-27b", "gpt-oss-120b"])
def test_a_models_parts_give_the_capacity_of_the_memory_model(name: str) -> None:
    """Decode at one context: sequences that fit by pages are those that fit by bytes, to the grain of blocks."""
    model, engine, gpu = find_model(name), find_engine("vllm"), find_gpu("h100")
    memory = instance_memory(
        model, gpu, engine, tp=1, pp=1, ep=1, weight_dtype=model.weight_dtype, kv_dtype="bf16", max_num_seqs=256,
        max_num_batched_tokens=8192, memory_fraction=0.9, max_model_len=8192,
    )  # fmt: skip
    window, _ = windows_of(model, "bf16")
    full, windowed = kv_parts(model, "bf16", 1)
    context, block = 8192, engine.block_tokens
    pages = memory.kv_capacity_tokens // block * (full + windowed)
    held = full * context // block + windowed * -(-window // block)
    by_bytes = capacity_at_context(memory, model, "bf16", context, tp=1, pp=1) / context
    assert pages / held == pytest.approx(by_bytes, rel=0.02, abs=1.0)
    assert pages / held > 1.3 * memory.kv_capacity_tokens / context


def test_a_model_without_windows_has_one_part() -> None:
    assert kv_parts(find_model("llama-3.1-8b"), "bf16", 2) == (1, 0)
    assert windows_of(find_model("llama-3.1-8b"), "bf16") == (0, 0.0)
    assert_nothing_lost(simulate(pair(constant_step(0.01)), fixed_requests(3, 10, 3)), fixed_requests(3, 10, 3))
