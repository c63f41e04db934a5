"""The mock against the simulator: the same instances, the same requests, on a clock that jumps."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from splitplan.launcher.mock.scheduler import Scheduler, Sequence
from splitplan.launcher.mock.timing import StepTimes
from splitplan.planner.inputs import load_inputs
from splitplan.planner.judge.deploy import timed_routes
from splitplan.planner.judge.timing import timing_of
from splitplan.planner.plan import Instance, Plan
from splitplan.planner.question import Question
from splitplan.planner.review.replay import plan_deployment
from splitplan.planner.simulate.deployment import Deployment
from splitplan.planner.simulate.run import simulate as run_simulator
from splitplan.planner.spec.workload import Requests, load_workload, sample
from tests.launcher.plans import plan, pool, route, slots
from tests.launcher.test_mock import JumpingLoop

NUM_REQUESTS = 400


def pair(stages: int) -> Plan:
    """One prefill instance of `stages` pipeline stages and one decode instance of the shipped four racks."""
    prefill = Instance(name="prefill-0", rack="r1", gpus=slots(("h100-1", range(2))))
    decode = Instance(name="decode-0", rack="r2", gpus=slots(("a100-1", range(4))))
    shape = {"tp": 2 // stages, "pp": stages}
    pools = [
        pool("prefill", "prefill", "h100-sxm", [prefill], max_num_batched_tokens=2048, **shape),
        pool("decode", "decode", "a100-sxm-80", [decode], tp=4, max_num_seqs=256),
    ]
    between = route("prefill-0", "decode-0", 1.0).model_copy(update={"path": "cross-rack"})
    return plan(pools, [between])


def mocked(found: Plan, deployment: Deployment, requests: Requests) -> tuple[list[float], list[float]]:
    """(TTFT, TPOT) in seconds, as the mock engines would serve them behind each other."""
    loop = JumpingLoop()
    times = [
        timing_of(
            spec.step,
            max_num_seqs=each.max_num_seqs,
            max_num_batched_tokens=each.max_num_batched_tokens,
            max_model_len=each.max_model_len,
        )
        for spec, each in zip(deployment.instances, found.pools, strict=True)
    ]
    served: list[tuple[float, float]] = []

    async def one(number: int, prefill: Scheduler, decode: Scheduler) -> None:
        arrival_s, prompt = float(requests.arrival_s[number]), int(requests.input_tokens[number])
        answer = int(requests.output_tokens[number])
        await asyncio.sleep(arrival_s - loop.time())
        done = asyncio.Event()
        prefill.submit(Sequence(prompt, 1, lambda _, __: done.set(), lambda: False))
        await done.wait()
        await decode.boundary()
        await asyncio.sleep(found.routes[0].transfer_base_s + found.routes[0].transfer_s_per_token * prompt)
        tokens_s: list[float] = []
        ended = asyncio.Event()

        def emit(_: int, last: bool) -> None:
            tokens_s.append(loop.time())
            if last:
                ended.set()

        sequence = Sequence(prompt, answer, emit, lambda: False)
        sequence.done_tokens, sequence.remote_kv = prompt, True
        decode.submit(sequence)
        await ended.wait()
        served.append((tokens_s[0] - arrival_s, (tokens_s[-1] - tokens_s[0]) / max(1, answer - 1)))

    async def run() -> None:
        engines = [
            Scheduler(
                StepTimes.from_json(table.model_dump()),
                max_num_seqs=each.max_num_seqs,
                max_num_batched_tokens=each.max_num_batched_tokens,
                kv_capacity_tokens=each.kv_capacity_tokens,
                num_stages=each.pipeline_parallel,
            )
            for table, each in zip(times, found.pools, strict=True)
        ]
        tasks = [asyncio.ensure_future(engine.run()) for engine in engines]
        await asyncio.gather(*(one(number, *engines) for number in range(len(requests))))
        for task in tasks:
            task.cancel()

    try:
        loop.run_until_complete(run())
    finally:
        loop.close()
    return [ttft for ttft, _ in served], [tpot for _, tpot in served]


@pytest.mark.parametrize("stages", [1, 2])
def test_the_mock_serves_what_the_simulator_predicts(stages: int) -> None:
    """Mean and median TTFT and mean TPOT within 15 %, with queues before prefill, and without and with a pipeline."""
    question = Question("llama-3.1-70b", "four-racks", "azure-conv", "ttft=2s@p95,tpot=60ms@p95", rate_req_per_s=5.0)
    inputs = load_inputs(question)
    requests = sample(load_workload("azure-conv", rate_req_per_s=5.0), NUM_REQUESTS, 0)
    found = pair(stages)
    deployment = plan_deployment(found, inputs)
    found = found.model_copy(update={"routes": timed_routes(found.pools, found.routes, deployment)})
    run = run_simulator(deployment, requests, warmup_share=0.0).runs[0]
    ttft_s, tpot_s = mocked(found, deployment, requests)
    assert float(np.mean(ttft_s)) == pytest.approx(float(np.mean(run.ttft_s)), rel=0.15)
    assert float(np.median(ttft_s)) == pytest.approx(float(np.median(run.ttft_s)), rel=0.15)
    assert float(np.mean(tpot_s)) == pytest.approx(float(np.nanmean(run.tpot_s)), rel=0.15)
