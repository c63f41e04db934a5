"""Single requests and small groups, whose times can be worked out by hand."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from splitplan.catalogs.errors import InputError
from splitplan.planner.simulate import Deployment, Link, simulate
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
    realistic_step,
)


def test_lone_request_is_prefill_and_then_one_step_per_token() -> None:
    step = linear_step(overhead_s=0.01, token_s=1e-4)
    run = simulate(Deployment((instance(step),)), fixed_requests(1, 1000, 11)).runs[0]
    assert run.ttft_s[0] == pytest.approx(0.01 + 0.1)
    assert run.tpot_s[0] == pytest.approx(0.01 + 1e-4)
    assert run.e2e_s[0] == pytest.approx(run.ttft_s[0] + 10 * run.tpot_s[0])


def test_decode_attention_grows_with_context() -> None:
    """Ten steps over contexts 101 … 110: the sum of an arithmetical series."""
    step = linear_step(overhead_s=0.01, context_token_s=1e-5)
    run = simulate(Deployment((instance(step),)), fixed_requests(1, 100, 11)).runs[0]
    assert run.e2e_s[0] - run.ttft_s[0] == pytest.approx(10 * 0.01 + 1e-5 * sum(range(101, 111)))


def test_long_prompt_is_prefilled_in_chunks_that_see_their_past() -> None:
    step = linear_step(overhead_s=0.01, past_token_s=1e-9)
    chunked = Deployment((instance(step, max_num_batched_tokens=400, max_num_seqs=8),))
    run = simulate(chunked, fixed_requests(1, 1000, 1)).runs[0]
    assert run.ttft_s[0] == pytest.approx(3 * 0.01 + 1e-9 * (400 * 400 + 200 * 800))


def test_prefix_hit_removes_exactly_its_tokens_work() -> None:
    step = linear_step(token_s=1e-4)
    requests = dataclasses.replace(fixed_requests(1, 1000, 1), cached_tokens=np.array([512]))
    assert simulate(Deployment((instance(step),)), requests).runs[0].ttft_s[0] == pytest.approx(488e-4)


def test_prompts_share_a_step_while_the_budget_lasts() -> None:
    step = linear_step(overhead_s=0.01, token_s=1e-5)
    deployment = Deployment((instance(step, "prefill", max_num_batched_tokens=2000),))
    run = simulate(deployment, fixed_requests(3, 1000, 5)).runs[0]
    assert run.ttft_s == pytest.approx([0.03, 0.03, 0.05])


def test_prompts_first_lets_decodes_wait() -> None:
    """Where prompts go first, one that comes at 0.055 s holds up the other's decode for its two chunks.

    Request 0: prompt to 0.02, then tokens every 0.01 s; the step of 0.05 to 0.06 runs on, then chunks to 0.08 and 0.09.
    """
    step = linear_step(overhead_s=0.01, token_s=1e-5)
    deployment = Deployment((instance(step, max_num_batched_tokens=1000, scheduler="sglang"),))
    run = simulate(
        deployment, Requests(*(np.array(row) for row in ([0.0, 0.055], [1000, 1000], [8, 2], [0, 0], [0, 0])))
    ).runs[0]
    mixed = simulate(
        Deployment((instance(step, max_num_batched_tokens=1000),)),
        Requests(*(np.array(row) for row in ([0.0, 0.055], [1000, 1000], [8, 2], [0, 0], [0, 0]))),
    ).runs[0]
    decode = 0.01 + 1e-5
    assert run.ttft_s[0] == pytest.approx(0.02)
    start = 0.02 + 4 * decode  # the first boundary after 0.055
    assert run.ttft_s[1] == pytest.approx(start + 0.02 - 0.055)
    assert run.e2e_s[0] == pytest.approx(start + 0.02 + (decode + 1e-5) + 2 * decode)
    assert int(run.gap_counts.sum()) == 7 + 1
    longest = np.flatnonzero(run.gap_counts)[-1]
    assert mixed.e2e_s[0] < run.e2e_s[0]
    assert np.flatnonzero(mixed.gap_counts)[-1] < longest


def test_static_batch_takes_nobody_in_until_all_are_done() -> None:
    step = constant_step(0.01)
    requests = Requests(*(np.array(row) for row in ([0.0, 0.0, 0.035], [10, 10, 10], [4, 9, 2], [0] * 3, [0] * 3)))
    run = simulate(Deployment((instance(step, scheduler="static"),)), requests).runs[0]
    assert run.e2e_s[:2] == pytest.approx([0.04, 0.09])
    assert run.ttft_s[2] == pytest.approx(0.1 - 0.035)


def test_disaggregated_request_adds_transfer_and_its_first_step_at_decode() -> None:
    """TTFT = prefill + bytes / bandwidth + latency + blocks · cost + one decode step."""
    step = linear_step(overhead_s=0.01, token_s=1e-4)
    costs = {"transfer_latency_s": 0.002, "descriptor_s": 1e-5, "descriptors_per_block": 3.0}
    run = simulate(pair(step, 1e9, **costs), fixed_requests(1, 1000, 5)).runs[0]
    transfer_s = 1000 * 1e5 / 1e9 + 0.002 + 63 * 3e-5
    assert run.transfer_s[0] == pytest.approx(transfer_s)
    assert run.ttft_s[0] == pytest.approx(0.11 + transfer_s + 0.0101)
    assert run.tpot_s[0] == pytest.approx(0.0101)


def test_prefill_can_emit_the_first_token() -> None:
    step = linear_step(overhead_s=0.01, token_s=1e-4)
    run = simulate(pair(step, decode_emits_first_token=False), fixed_requests(1, 1000, 5)).runs[0]
    assert run.ttft_s[0] == pytest.approx(0.11)
    assert run.e2e_s[0] == pytest.approx(0.11 + 0.1 + 4 * 0.0101)


def test_layerwise_transfer_hides_all_but_the_last_layer() -> None:
    step = linear_step(overhead_s=0.2)
    run = simulate(pair(step, layerwise_layers=40), fixed_requests(1, 1000, 5)).runs[0]
    assert run.transfer_s[0] == pytest.approx(0.1 / 40)


def test_layerwise_transfer_on_a_slow_link_trails_prefill() -> None:
    step = linear_step(overhead_s=0.02)
    run = simulate(pair(step, layerwise_layers=40), fixed_requests(1, 1000, 5)).runs[0]
    assert run.transfer_s[0] == pytest.approx(0.1 - 0.02)


def test_two_transfers_share_a_link() -> None:
    step = linear_step(overhead_s=0.01)
    run = simulate(pair(step), fixed_requests(2, 1000, 2)).runs[0]
    assert run.transfer_s == pytest.approx([0.2, 0.2])


def test_max_min_gives_a_flow_what_the_other_cannot_use() -> None:
    """Two senders into one receiver of 10 GB/s; one sender's NIC does 2 GB/s, so the other gets 8."""
    step = linear_step(overhead_s=0.01, max_num_seqs=8)
    links = (Link("slow", 2e9), Link("fast", 9e9), Link("in", 10e9))
    senders = [instance(step, "prefill", f"p{k}", egress=(k,)) for k in range(2)]
    deployment = Deployment((*senders, instance(step, "decode", ingress=(2,))), links, kv_bytes_per_token=1e6)
    run = simulate(deployment, fixed_requests(2, 1000, 2), routing="round_robin").runs[0]
    assert sorted(run.transfer_s) == pytest.approx([1e9 / 8e9, 1e9 / 2e9])


def test_same_node_takes_the_local_link_and_other_racks_the_spine() -> None:
    step = linear_step(overhead_s=0.01)
    links = (Link("nvlink", 100e9), Link("nic", 10e9), Link("up", 5e9), Link("spine", 1e9))

    def transfer_s(node: str, rack: str) -> float:
        sender = instance(step, "prefill", node="a", rack="r1", local_link=0, egress=(1, 2))
        receiver = instance(step, "decode", node=node, rack=rack)
        deployment = Deployment((sender, receiver), links, kv_bytes_per_token=1e6, spine=3)
        return float(simulate(deployment, fixed_requests(1, 1000, 2)).runs[0].transfer_s[0])

    assert transfer_s("a", "r1") == pytest.approx(0.01)
    assert transfer_s("b", "r1") == pytest.approx(0.1)
    assert transfer_s("b", "r2") == pytest.approx(1.0)


def test_kv_limits_what_runs_and_the_rest_queues() -> None:
    """77,088 tokens of KV hold 72 sequences of 1,070 tokens, not the 256 that slots allow."""
    step = constant_step(0.01, max_num_seqs=256, max_tokens=100_000)
    deployment = Deployment((instance(step, kv_capacity_tokens=77_088, reserve_output_tokens=0, block_tokens=1),))
    requests = fixed_requests(256, 1060, 11)
    run = simulate(deployment, requests, arrivals="burst").runs[0]
    in_first_step = int((run.ttft_s <= 0.0101).sum())
    assert in_first_step == 77_088 // 1060
    assert_nothing_lost(simulate(deployment, requests), requests)


def test_preemption_recomputes_the_latest_and_loses_nothing() -> None:
    step = constant_step(0.01, max_num_seqs=8)
    deployment = Deployment((instance(step, kv_capacity_tokens=480),))
    requests = fixed_requests(4, 100, 100)
    results = simulate(deployment, requests)
    run = results.runs[0]
    assert run.num_preemptions > 0
    assert run.preemptions[0] == 0
    assert run.num_finished == 4
    assert_nothing_lost(results, requests)


def test_request_that_never_fits_is_rejected_and_misses() -> None:
    step = constant_step(0.01)
    deployment = Deployment((instance(step, kv_capacity_tokens=512),))
    requests = Requests(*(np.array(column) for column in ([0.0, 1.0], [600, 100], [10, 10], [0, 0], [0, 0])))
    results = simulate(deployment, requests, warmup_share=0.0)
    assert results.num_rejected == 1
    assert np.isinf(results.runs[0].ttft_s[0])
    assert results.attainment(Slo(Target(10.0, 90.0), None, None, None, 0.9)).value == 0.5
    assert_nothing_lost(results, requests)


def test_closed_loop_keeps_so_many_in_flight() -> None:
    """Four users on a server with constant steps: each sees a whole request after another."""
    step = constant_step(0.01)
    requests = fixed_requests(40, 10, 10)
    run = simulate(Deployment((instance(step),)), requests, arrivals="closed", concurrency=4).runs[0]
    assert run.end_s == pytest.approx(10 * 0.1)
    assert run.e2e_s == pytest.approx(np.full(40, 0.1))


def test_batches_wait_for_each_other() -> None:
    step = constant_step(0.01)
    requests = Requests(*(np.array(column) for column in ([0.0] * 4, [10] * 4, [5, 20, 5, 5], [0] * 4, [0] * 4)))
    run = simulate(Deployment((instance(step),)), requests, arrivals="batch", concurrency=2).runs[0]
    assert run.arrival_s == pytest.approx([0.0, 0.0, 0.2, 0.2])


def test_one_side_alone() -> None:
    """Prefill instances alone end with the prefill; decode instances alone get requests with their KV."""
    step = linear_step(overhead_s=0.01, token_s=1e-4)
    requests = fixed_requests(1, 1000, 5)
    assert simulate(Deployment((instance(step, "prefill"),)), requests).runs[0].e2e_s[0] == pytest.approx(0.11)
    decode = simulate(Deployment((instance(step, "decode"),)), requests).runs[0]
    assert decode.ttft_s[0] == pytest.approx(0.0101)
    assert decode.e2e_s[0] == pytest.approx(5 * 0.0101)


def test_bad_deployments_are_refused_with_every_problem() -> None:
    step = constant_step(0.01)
    bad = Deployment((instance(step, max_num_seqs=0, kv_capacity_tokens=3),), (Link("nic", 0.0),))
    with pytest.raises(InputError) as caught:
        simulate(bad, fixed_requests(1, 1, 1))
    assert len(caught.value.problems) == 3
    endless = dataclasses.replace(step, token_s=step.token_s * np.nan)
    with pytest.raises(InputError, match="no numbers"):
        simulate(Deployment((instance(endless),)), fixed_requests(1, 1, 1))
    with pytest.raises(InputError, match="kv_bytes_per_token"):
        simulate(Deployment((instance(step),), kv_bytes_per_token=-1.0), fixed_requests(1, 1, 1))
    with pytest.raises(InputError, match="no requests"):
        simulate(Deployment((instance(step),)), fixed_requests(0, 1, 1))
    with pytest.raises(InputError, match="in order"):
        simulate(Deployment((instance(step),)), fixed_requests(2, 1, 1, [1.0, 0.0]))


@pytest.mark.parametrize(
    ("routing", "low", "high"),
    [("weighted", 0.72, 0.78), ("round_robin", 0.749, 0.751), ("least_loaded", 0.53, 0.9), ("least_tokens", 0.53, 0.9)],
)
def test_shares_are_kept(routing: str, low: float, high: float) -> None:
    """An instance with three times the share gets three times the requests, or at least more where load decides."""
    step = realistic_step()
    instances = (instance(step, name="a", share=1.0), instance(step, name="b", share=3.0))
    requests = mixed_requests(2000, 100.0)
    run = simulate(Deployment(instances), requests, routing=routing).runs[0]
    assert low < (run.entry == 1).mean() < high


def test_routes_decide_which_decode_instance() -> None:
    step = constant_step(0.001)
    instances = tuple(instance(step, role, f"{role}{k}") for role in ("prefill", "decode") for k in range(2))
    routes = {(0, 2): 1.0, (1, 3): 1.0}
    run = simulate(Deployment(instances, routes=routes), mixed_requests(200, 10.0)).runs[0]
    assert (run.decoder == run.entry + 2).all()
    assert len(set(run.entry)) == 2
