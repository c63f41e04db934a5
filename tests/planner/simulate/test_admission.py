"""Who is let in, and where: slots, margins of KV memory, the wait of a transfer for its blocks, queues by tokens."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from splitplan.planner.simulate import Deployment, Link, simulate
from splitplan.planner.spec.workload import Requests
from tests.planner.simulate.cases import constant_step, fixed_requests, instance, linear_step


def rows(arrival_s: list[float], inputs: list[int], outputs: list[int]) -> Requests:
    zeros = [0] * len(inputs)
    return Requests(np.array(arrival_s), *(np.array(column) for column in (inputs, outputs, zeros, zeros)))


def test_no_more_sequences_run_than_slots() -> None:
    """Five equal requests on two slots: pairs one after another, the last one alone."""
    own = instance(constant_step(0.01), max_num_seqs=2)
    run = simulate(Deployment((own,)), fixed_requests(5, 10, 5)).runs[0]
    assert run.e2e_s == pytest.approx([0.05, 0.05, 0.1, 0.1, 0.15])


def decode_pair(**changes: object) -> Deployment:
    """Prefill without end, decode on 1,000 tokens of KV in blocks of 10; the link takes 1 ms per 100 tokens."""
    prefill = instance(constant_step(0.01), "prefill", egress=(0,))
    decode = instance(constant_step(0.01), "decode", kv_capacity_tokens=1000, block_tokens=10, **changes)
    return Deployment((prefill, decode), (Link("nic", 1e10),), kv_bytes_per_token=1e5, decode_emits_first_token=False)


def test_a_transfer_waits_until_the_decode_instance_has_its_blocks() -> None:
    """600 tokens are there for ten steps; the next 500 start to move when they are gone, at a step's boundary."""
    run = simulate(decode_pair(), rows([0.0, 0.0], [600, 500], [11, 3])).runs[0]
    assert run.transfer_s[0] == pytest.approx(0.006)
    freed_s = 0.01 + 0.006 + 10 * 0.01
    assert run.transfer_s[1] == pytest.approx(freed_s - 0.01 + 0.005)


@pytest.mark.parametrize(("reserve", "waits"), [(0, False), (50, False), (60, True)])
def test_decode_reserves_room_for_its_sequences_to_grow(reserve: int, waits: bool) -> None:
    """600 + 300 tokens of 1,000 leave 100: enough for two sequences that may grow by 50, not by 60."""
    requests = rows([0.0, 0.0], [600, 300], [11, 3])
    run = simulate(decode_pair(reserve_output_tokens=reserve), requests).runs[0]
    assert (run.transfer_s[1] > 0.05) == waits
    assert run.num_preemptions == 0


@pytest.mark.parametrize(("watermark", "waits"), [(0.0, False), (0.1, False), (0.11, True)])
def test_a_watermark_keeps_a_share_free_while_somebody_runs(watermark: float, waits: bool) -> None:
    """The same two on the same 1,000 tokens: a tenth may be kept, a little more may not."""
    run = simulate(decode_pair(watermark=watermark), rows([0.0, 0.0], [600, 300], [11, 3])).runs[0]
    assert (run.transfer_s[1] > 0.05) == waits
    alone = simulate(decode_pair(watermark=0.5), rows([0.0], [990], [3])).runs[0]
    assert alone.num_finished == 1  # an empty instance only has to hold it


def test_queues_are_told_apart_by_tokens_and_by_requests() -> None:
    """One prompt of 4,000 tokens here, three of 10 there: fewest requests is here, fewest tokens is there."""
    own = tuple(instance(linear_step(token_s=1e-3), "prefill", name) for name in "ab")
    requests = rows([0.0, 0.001, 0.002, 0.003, 0.004], [4000, 10, 10, 10, 10], [1] * 5)
    entries = {
        routing: simulate(Deployment(own), requests, routing=routing).runs[0].entry.tolist()  # type: ignore[arg-type]
        for routing in ("least_loaded", "least_tokens")
    }
    assert entries["least_loaded"] == [0, 1, 0, 1, 0]
    assert entries["least_tokens"] == [0, 1, 1, 1, 1]


def test_round_robin_takes_turns() -> None:
    own = tuple(instance(constant_step(0.01), "prefill", name) for name in "abc")
    run = simulate(Deployment(own), fixed_requests(9, 10, 1), routing="round_robin").runs[0]
    assert np.bincount(run.entry).tolist() == [3, 3, 3]
    heavy = (dataclasses.replace(own[0], share=2.0), *own[1:])
    run = simulate(Deployment(heavy), fixed_requests(8, 10, 1), routing="round_robin").runs[0]
    assert np.bincount(run.entry).tolist() == [4, 2, 2]
