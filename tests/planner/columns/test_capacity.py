"""Capacity of one instance, against queueing theory and against the recursions written out."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from splitplan.catalogs.models import find_model
from splitplan.planner.columns.build import with_windows
from splitplan.planner.columns.capacity import (
    Limits,
    Pool,
    colocated_capacity,
    decode_capacity,
    erlang_c,
    pooled_wait,
    prefill_capacity,
)
from splitplan.planner.columns.hosts import host_kinds
from splitplan.planner.columns.mix import RequestMix
from splitplan.planner.columns.service import bilinear, decode_step_s, mix_prompts
from splitplan.planner.columns.shapes import Shape
from splitplan.planner.latency.build import unlike_stages
from splitplan.planner.latency.step import StepModel
from splitplan.planner.spec.fleet import load_fleet

N = 20_000


def step(*, token_s: float = 1e-4, context_s: float = 1e-8, overhead_s: float = 2e-3, stages: int = 1) -> StepModel:
    """A step of overhead + token_s · T + context_s · Σ context."""
    batch, context = np.array([0.0, 1024.0]), np.array([0.0, 131072.0])
    return StepModel(
        overhead_s=(overhead_s, overhead_s),
        host_s=np.zeros(1025),
        gap_s=0.0,
        token_s=token_s * np.arange(16385.0),
        sequence_s=np.zeros(1025),
        prefill_new_knots=batch,
        prefill_past_knots=context,
        prefill_attention_s=np.zeros((2, 2)),
        decode_batch_knots=batch,
        decode_context_knots=context,
        decode_attention_s=context_s * batch[:, None] * context[None, :],
        num_stages=stages,
    )


def mix(
    input_tokens: float = 1000.0,
    output_tokens: float = 200.0,
    *,
    ttft_s: float = 1.0,
    tpot_s: float = 0.05,
    miss: float = 0.01,
) -> RequestMix:
    rng = np.random.default_rng(1)
    return RequestMix(
        gap=rng.exponential(1.0, N),
        input_tokens=np.full(N, input_tokens),
        new_tokens=np.full(N, input_tokens),
        output_tokens=np.full(N, output_tokens),
        class_index=np.zeros(N, np.int64),
        num_classes=1,
        ttft_limit_s=np.full(N, ttft_s),
        tpot_limit_s=np.full(N, tpot_s),
        ttft_miss_share=miss,
        tpot_miss_share=miss,
        max_model_len=4096,
    )


LIMITS = Limits(max_num_seqs=256, max_num_batched_tokens=2048, kv_capacity_tokens=400_000)


def test_pooled_wait_is_lindleys_recursion() -> None:
    """With one server the vectorised wait equals the recursion written as a loop."""
    rng = np.random.default_rng(2)
    gap, service = rng.exponential(1.0, 500), rng.exponential(0.9, 500)
    waits = [0.0]
    for i in range(1, 500):
        waits.append(max(0.0, waits[-1] + service[i - 1] - gap[i]))
    np.testing.assert_allclose(pooled_wait(gap, service, 1), waits, atol=1e-9)


@pytest.mark.parametrize("load", [0.3, 0.6, 0.8])
def test_pooled_wait_matches_m_d_1(load: float) -> None:
    """Mean wait of M/D/1 is ρS / 2(1 − ρ) (Pollaczek–Khinchine)."""
    rng = np.random.default_rng(3)
    waits = pooled_wait(rng.exponential(1.0, 400_000), np.full(400_000, load), 1)
    assert waits.mean() == pytest.approx(load * load / (2 * (1 - load)), rel=0.05)


def test_highest_rate_is_the_edge() -> None:
    """At the rate found the misses are within the allowed share, and 3 % above it they are not."""
    requests = mix(ttft_s=0.3)
    service = np.full(N, 0.1)
    rate = Pool(requests, 1, service, service, 0.0).highest_rate()

    def misses(at: float) -> float:
        return float(np.mean(pooled_wait(requests.gap / at, service, 1) + service > 0.3))

    assert misses(rate) <= 0.01
    assert misses(rate * 1.03) > 0.01


@pytest.mark.parametrize(("servers", "offered", "waits"), [(1, 0.7, 0.7), (2, 1.0, 1 / 3), (10, 8.0, 0.4092)])
def test_erlang_c(servers: int, offered: float, waits: float) -> None:
    """Known values: M/M/1 waits with probability ρ; M/M/2 at one erlang with 1/3; tables give 0.409 for 10 and 8."""
    assert erlang_c(servers, offered) == pytest.approx(waits, abs=5e-5)


def test_large_chunks_make_those_who_wait_end_together() -> None:
    """With a chunk that takes many prompts at once, less load meets the same target."""
    requests, service = mix(ttft_s=0.4), np.full(N, 0.1)
    small = Pool(requests, 2, service, service, 0.1).highest_rate()
    assert Pool(requests, 2, service, service, 0.8).highest_rate() < 0.95 * small


def test_a_lone_request_that_misses_has_no_capacity() -> None:
    """No number of instances helps when one request alone is too slow."""
    capacity = prefill_capacity(step(token_s=2e-3), LIMITS, mix(), 10.0, np.zeros(N))
    assert capacity.req_per_s == 0
    assert capacity.reason == "TTFT of one request alone"


def test_a_pool_pays_less_for_waiting_than_one_instance() -> None:
    """Per instance, a large pool sustains more than a pool of one at the same percentile."""
    alone = prefill_capacity(step(), LIMITS, mix(ttft_s=0.3), 1.0, np.zeros(N))
    pooled = prefill_capacity(step(), LIMITS, mix(ttft_s=0.3), 80.0, np.zeros(N))
    assert pooled.req_per_s > 1.1 * alone.req_per_s


def test_transfer_time_is_taken_from_the_queue() -> None:
    """What comes after the prefill leaves less of the TTFT budget for waiting."""
    near = prefill_capacity(step(), LIMITS, mix(ttft_s=0.3), 1.0, np.zeros(N))
    far = prefill_capacity(step(), LIMITS, mix(ttft_s=0.3), 1.0, np.full(N, 0.1))
    assert 0 < far.req_per_s < near.req_per_s


def test_chunks_cover_the_prompt() -> None:
    """Three chunks of a 5,000-token prompt cost three overheads and 5,000 tokens."""
    service = mix_prompts(step(), 2048, mix(input_tokens=5000.0)).service()
    assert service.num_chunks[0] == 3
    assert service.latency_s[0] == pytest.approx(3 * 2e-3 + 5000 * 1e-4)


def test_pipeline_stages_add_latency_but_not_occupancy() -> None:
    """A prompt passes through every stage, yet the next one may follow a stage behind."""
    service = mix_prompts(step(stages=4), 2048, mix(input_tokens=1000.0)).service()
    assert service.latency_s[0] == pytest.approx(4 * service.occupancy_s[0])


def test_decode_batch_meets_tpot_at_the_quantile() -> None:
    """At the planned load the step time is below the target, with room for the spread of the occupancy."""
    requests = mix(tpot_s=0.02)
    capacity = decode_capacity(step(), LIMITS, requests, 5.0, 1.0)
    held = capacity.req_per_s * 200 * decode_step_s(step(), 100.0, requests.context_tokens)
    assert 0 < held < 256
    assert decode_step_s(step(), held + 2.33 * held**0.5, requests.context_tokens) <= 0.02 * 1.05


def test_decode_is_capped_by_kv_memory() -> None:
    """Half the KV memory holds half the sequences, however long the slot list is (contexts of equal length)."""
    loose = mix(tpot_s=10.0)
    small = decode_capacity(step(), Limits(10_000, 2048, 22_000), loose, 100.0, 1.0)
    large = decode_capacity(step(), Limits(10_000, 2048, 44_000), loose, 100.0, 1.0)
    assert small.req_per_s < 0.75 * large.req_per_s


def test_longer_outputs_take_more_decode_and_no_more_prefill() -> None:
    """The work that decides the prefill:decode ratio moves with the output on one side only."""
    short, long = mix(output_tokens=100.0), mix(output_tokens=400.0)
    limits = LIMITS
    decode = [decode_capacity(step(), limits, m, 5.0, 1.0).req_per_s for m in (short, long)]
    prefill = [prefill_capacity(step(), limits, m, 5.0, np.zeros(N)).req_per_s for m in (short, long)]
    assert decode[1] < 0.35 * decode[0]
    assert prefill[1] == pytest.approx(prefill[0])


def test_colocated_sustains_less_than_either_stage_alone() -> None:
    """One instance that does both cannot beat an instance that does one of the two."""
    requests = mix(tpot_s=0.5, ttft_s=2.0)
    both = colocated_capacity(step(), LIMITS, requests, 10.0, 1.0).req_per_s
    assert 0 < both < prefill_capacity(step(), LIMITS, requests, 10.0, np.zeros(N)).req_per_s
    assert both < decode_capacity(step(), LIMITS, requests, 10.0, 1.0).req_per_s


def test_tight_tpot_starves_colocated_before_disaggregated() -> None:
    """A TPOT between the pure and the mixed step: colocated loses most of its rate, decode alone hardly any."""
    loose, tight = mix(tpot_s=0.25, ttft_s=5.0), mix(tpot_s=0.03, ttft_s=5.0)
    limits = Limits(256, 2048, 400_000)
    colocated = [colocated_capacity(step(), limits, m, 10.0, 1.0).req_per_s for m in (loose, tight)]
    decode = [decode_capacity(step(), limits, m, 10.0, 1.0).req_per_s for m in (loose, tight)]
    assert colocated[1] / colocated[0] < 0.8 * decode[1] / decode[0]


def test_classes_share_an_instance_by_their_work() -> None:
    """A class with four times the prompt takes four times the prefill work."""
    requests = mix()
    longer = np.where(np.arange(N) % 2, 4000.0, 1000.0)
    two = RequestMix(
        requests.gap, longer, longer, requests.output_tokens, np.arange(N) % 2, 2, requests.ttft_limit_s,
        requests.tpot_limit_s, 0.01, 0.01, 8192,
    )  # fmt: skip
    work = prefill_capacity(step(overhead_s=0.0), LIMITS, two, 10.0, np.zeros(N)).work_s_per_request
    assert work[1] / work[0] == pytest.approx(4.0)


def test_bilinear_is_exact_on_planes_and_knots() -> None:
    """A plane is reproduced anywhere, also beyond the last knot."""
    rows, columns = np.array([0.0, 1.0, 5.0]), np.array([0.0, 10.0])
    table = 2 * rows[:, None] + 3 * columns[None, :]
    x, y = np.array([0.5, 5.0, 9.0]), np.array([3.0, 10.0, 20.0])
    np.testing.assert_allclose(bilinear(rows, columns, table, x, y), 2 * x + 3 * y)


def test_unlike_stages_of_one_kind_have_the_service_of_a_plain_pipeline() -> None:
    """Prompts in several chunks and decode steps: stages given one by one, but equal, take the same seconds."""
    plain, single = replace(step(stages=3), handoff_s=1e-3), step()
    unlike = unlike_stages((single, single, single), 1e-3)
    for decode_batch in (0.0, 8.0):
        one, other = (
            mix_prompts(each, 512, mix()).service(decode_batch=decode_batch, context_tokens=900.0)
            for each in (plain, unlike)
        )
        np.testing.assert_allclose(one.latency_s, other.latency_s)
        np.testing.assert_allclose(one.occupancy_s, other.occupancy_s)
    assert decode_step_s(plain, 24.0, 900.0) == pytest.approx(decode_step_s(unlike, 24.0, 900.0))


def test_a_decode_step_of_unlike_stages_waits_for_the_slowest() -> None:
    """Stages of t and 2t: two micro-batches come round every 4t, more than the 3t that one token takes alone."""
    fast, slow = step(token_s=1e-4, context_s=0.0, overhead_s=0.0), step(token_s=2e-4, context_s=0.0, overhead_s=0.0)
    unlike = unlike_stages((fast, slow), 0.0)
    assert decode_step_s(unlike, 20.0, 100.0) == pytest.approx(4 * 10 * 1e-4)


def test_layers_with_a_window_make_room_at_long_contexts() -> None:
    """gemma-3-4b: 29 of 34 layers see 1,024 tokens. Inside the window nothing changes; far beyond it there is more room
    as sequences hold less; a model without windows is as it was."""
    host = host_kinds(load_fleet("all-h100"))[0]
    limits = Limits(256, 2048, 100_000)
    shape = Shape(host, 1, 1, 1, "bf16", "bf16", "FLASH_ATTN")
    gemma, llama = find_model("gemma-3-4b"), find_model("llama-3.1-8b")
    assert with_windows(limits, shape, gemma, 900).kv_capacity_tokens == 100_000
    assert with_windows(limits, shape, llama, 30_000) is limits
    # 5 layers keep 16,384 tokens; 29, which take the room of 30, keep 1,024 of them
    kept = 35 * 16_384 / (5 * 16_384 + 30 * 1_024)
    assert with_windows(limits, shape, gemma, 16_384).kv_capacity_tokens == pytest.approx(100_000 * kept, abs=1)
