"""The mock engine's clockwork, on a clock that jumps: planned times in, planned times out, no waiting."""

from __future__ import annotations

import asyncio
import selectors
from typing import Any

import numpy as np
import pytest

from splitplan.launcher.mock.kv import KvStore, answer_token, kv_digest, prompt_tokens, pull, read_with_blocks
from splitplan.launcher.mock.scheduler import Scheduler, Sequence
from splitplan.launcher.mock.timing import StepTimes, interpolate
from tests.launcher.plans import timing


class JumpingSelector(selectors.SelectSelector):
    """Waits for nothing: the time until the next timer passes at once."""

    skipped_s = 0.0

    def select(self, timeout: float | None = None) -> Any:
        self.skipped_s += timeout or 0.0
        return super().select(0)


class JumpingLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self.jumping = JumpingSelector()
        super().__init__(self.jumping)

    def time(self) -> float:
        return self.jumping.skipped_s


def linear(prefill_s_per_token: float = 1e-3, step_s: float = 0.01, base_s: float = 0.0) -> StepTimes:
    return StepTimes(
        (0, 1000), (base_s, base_s + 1000 * prefill_s_per_token), (1, 100), (0, 1000), ((step_s,) * 2,) * 2
    )


def simulate(times: StepTimes, arrivals: list[tuple[float, int, int]], **limits: int) -> list[tuple[float, float]]:
    """(time of the first token, time of the last) of requests (arrival s, prompt tokens, answer tokens)."""
    values = {"max_num_seqs": 64, "max_num_batched_tokens": 2048, "kv_capacity_tokens": 0} | limits
    loop = JumpingLoop()
    found: dict[int, list[float]] = {number: [] for number in range(len(arrivals))}

    async def run() -> None:
        scheduler = Scheduler(times, **values)
        task = asyncio.ensure_future(scheduler.run())
        for number, (arrival_s, prompt, answer) in enumerate(arrivals):
            await asyncio.sleep(arrival_s - loop.time())
            sequence = Sequence(
                prompt, answer, lambda _, __, number=number: found[number].append(loop.time()), lambda: False
            )
            scheduler.submit(sequence)
        while any(len(found[number]) < answer for number, (_, _, answer) in enumerate(arrivals)):
            await asyncio.sleep(0.001)
        task.cancel()

    try:
        loop.run_until_complete(run())
    finally:
        loop.close()
    return [(times_s[0], times_s[-1]) for times_s in found.values()]


def test_interpolation_is_numpy_s_between_the_knots() -> None:
    knots, values = (0.0, 10.0, 40.0), (1.0, 3.0, 4.0)
    for at in np.linspace(0, 40, 17):
        assert interpolate(knots, values, at) == pytest.approx(float(np.interp(at, knots, values)))


def test_beyond_the_knots_the_last_slope_goes_on() -> None:
    assert interpolate((0, 10), (0, 5), 20) == pytest.approx(10)
    assert interpolate((5,), (7,), 100) == 7


def test_chunks_of_a_prompt_add_up_to_the_prompt() -> None:
    times = StepTimes.from_json(timing().model_dump())
    whole = times.chunk_s(0, 5000)
    assert sum(times.chunk_s(past, 1000) for past in range(0, 5000, 1000)) == pytest.approx(whole)


def test_a_lone_request_takes_its_planned_times() -> None:
    """TTFT is the prompt's prefill; each further token one decode step."""
    ((first, last),) = simulate(linear(), [(0.0, 500, 11)])
    assert first == pytest.approx(0.5)
    assert last == pytest.approx(0.5 + 10 * 0.01)


def test_a_long_prompt_is_chunked_without_taking_longer_alone() -> None:
    ((first, _),) = simulate(linear(), [(0.0, 900, 1)], max_num_batched_tokens=100)
    assert first == pytest.approx(0.9)


def test_prompts_that_queue_are_served_in_order() -> None:
    """Two prompts of the whole budget: the second waits for the first, as in a queue with one server."""
    found = simulate(linear(), [(0.0, 1000, 1), (0.1, 1000, 1)], max_num_batched_tokens=1000)
    assert [first for first, _ in found] == pytest.approx([1.0, 2.0])


def test_waiting_follows_the_queue_with_fixed_service() -> None:
    """Poisson arrivals at half load, fixed service of 1 s: Lindley's recursion gives every waiting time."""
    gaps = np.random.default_rng(5).exponential(2.0, 200)
    arrivals = np.cumsum(gaps)
    found = simulate(linear(), [(float(t), 1000, 1) for t in arrivals], max_num_batched_tokens=1000)
    end, expected = 0.0, []
    for arrival in arrivals:
        end = max(end, float(arrival)) + 1.0
        expected.append(end)
    assert [first for first, _ in found] == pytest.approx(expected)


def test_slots_limit_the_batch() -> None:
    """With one slot the second request starts when the first has finished."""
    found = simulate(linear(), [(0.0, 100, 11), (0.0, 100, 11)], max_num_seqs=1)
    assert found[1][0] == pytest.approx(found[0][1] + 0.1)


def test_kv_limits_the_batch() -> None:
    """Room for one request's prompt and answer at a time has the same effect as one slot."""
    arrivals = [(0.0, 100, 11), (0.0, 100, 11)]
    by_kv, by_slots = (
        simulate(linear(), arrivals, **limit) for limit in ({"kv_capacity_tokens": 120}, {"max_num_seqs": 1})
    )
    assert np.ravel(by_kv) == pytest.approx(np.ravel(by_slots))


def test_pipeline_stages_work_on_different_prompts_at_once() -> None:
    """Two stages: a prompt takes as long alone, but a second one enters when the first has left the first stage."""
    found = simulate(linear(), [(0.0, 1000, 1), (0.0, 1000, 1)], max_num_batched_tokens=1000, num_stages=2)
    assert [first for first, _ in found] == pytest.approx([1.0, 1.5])


def test_decoding_goes_on_while_a_prompt_is_prefilled() -> None:
    """A step with a chunk takes the decode time and the chunk's time; the decoding sequence gets its token in it."""
    found = simulate(linear(), [(0.0, 100, 4), (0.105, 200, 1)])
    assert found[0][1] == pytest.approx(0.1 + 0.01 + 0.21 + 0.01)


def test_answers_come_from_the_kv_and_its_block_size() -> None:
    digest = kv_digest([1, 2, 3], 16)
    assert kv_digest([1, 2, 3], 16) == digest
    assert kv_digest([1, 2, 4], 16) != digest
    assert read_with_blocks(digest, 16, 16) == digest
    assert read_with_blocks(digest, 16, 32) != digest
    assert answer_token(digest, 0) != answer_token(digest, 1)


def test_a_short_prompt_does_not_overtake_a_long_one_in_a_pipeline() -> None:
    """Two stages, half the time in each: the short prompt waits for the second stage until the long one has left it."""
    found = simulate(linear(), [(0.0, 1000, 1), (0.001, 10, 1)], num_stages=2)
    assert found[0][0] == pytest.approx(1.0)
    assert found[1][0] == pytest.approx(1.0 + 0.005)


def test_what_every_step_costs_counts_once_in_a_step_of_many() -> None:
    """Weights are read once, however many prompts and decodes share the step."""
    times = linear(base_s=0.05)
    assert times.stage_s(0, 0, [(0, 100), (0, 300)]) == pytest.approx(0.05 + 0.4)
    assert times.stage_s(1, 0, [(0, 100)]) == pytest.approx(0.01 + 0.05 + 0.1 - 0.01)


def test_a_prompt_is_counted_in_words_or_given_ids() -> None:
    assert prompt_tokens([5, 6, 7]) == [5, 6, 7]
    assert len(prompt_tokens("to be or not")) == 4
    assert prompt_tokens("") != []


def test_kv_is_pulled_once_and_expires() -> None:
    async def run() -> None:
        store = KvStore("prefill-0", 16)
        server = await asyncio.start_server(store.connected, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        digest = kv_digest([1, 2], 16)
        key = store.hold(digest, 2, now_s=0.0)
        assert await pull("127.0.0.1", port, key, 16) == (digest, 2)
        with pytest.raises(ConnectionError):
            await pull("127.0.0.1", port, key, 16)
        store.hold(digest, 2, now_s=0.0)
        store.expire(now_s=1000.0)
        assert (len(store), store.expired) == (0, 1)
        server.close()
        await server.wait_closed()

    asyncio.run(run())
