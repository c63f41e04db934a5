"""Predicting a measured point: the step model of what ran, through the simulator, as the benchmark drove it.

    static-batch         the batch at time 0, alone; its TTFT is when the last prompt is done, its TPOT follows that
    offline              many requests at time 0, as many as the engine takes side by side
    online-concurrency   a closed loop of N users; where the source states fewer requests than users, a burst
    online-rate          an open loop, Poisson arrivals ("inf": all at time 0)

Queueing is simulated. TTFT adds the front end (`request_s` + `request_token_s` per prompt token), which also delays the
next request of a user.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from splitplan.planner.calibrate.points import Point
from splitplan.planner.calibrate.resolve import Setup, UnpredictableError
from splitplan.planner.latency.build import step_model
from splitplan.planner.latency.overhead import EngineOverhead
from splitplan.planner.latency.step import StepModel
from splitplan.planner.simulate.compiled import compiled_run_events, has_numba, is_loaded
from splitplan.planner.simulate.deployment import Deployment, InstanceSpec
from splitplan.planner.simulate.run import simulate
from splitplan.planner.spec.workload import Requests

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

SEED = 20261129
LARGEST_STEP_TOKENS = 65536
"""Static batches run their prompts in one step; beyond this many tokens a step is cut, its cost being linear there."""

REQUESTS_PER_USER = 10
"""Requests of a closed loop whose source states none: ten rounds, as the common sweeps do."""

FEWEST_REQUESTS, MOST_REQUESTS = 40, 3000
OFFLINE_REQUESTS, MOST_OFFLINE_REQUESTS = 2000, 12_000
STEADY_S, MOST_STEADY_REQUESTS = 300.0, 12_000
"""Seconds of arrivals at a rate whose source states no number of requests: what builds up, builds up by then."""

MOST_ENGINES = 32
"""Engines of one row that are simulated side by side; of more, one is, with its part of the load."""

IN_HOUSE_LEAST_BUDGET = 2048
"""Chunk budget of NVIDIA's in-house sweeps: the prompt length, at least this. Not stated by the source but read off its
TTFT, which with three engines follows this budget and no fixed one (docs/accuracy.md)."""

CHAT_DATASETS = re.compile(r"sharegpt|open[ -]?orca|lmsys|wildchat", re.IGNORECASE)
SHAREGPT_SIGMA = (1.1, 0.9)
"""Spread of the logarithms of ShareGPT's prompt and answer lengths."""

LONGEST_CHAT_TOKENS = 1024
"""Of a prompt, and of an answer: benchmarks leave longer ones out (vLLM of ShareGPT, MLPerf of OpenOrca)."""


@dataclass(frozen=True, slots=True)
class Statistics:
    """A predicted latency by statistic, in seconds."""

    mean_s: float
    p50_s: float
    p99_s: float


@dataclass(frozen=True, slots=True)
class Prediction:
    """What a point should measure."""

    ttft: Statistics
    tpot: Statistics
    output_tokens_per_s: float
    basis_shares: tuple[float, float, float, float]  # of step time: measured, interpolated, extrapolated, assumed
    notes: tuple[str, ...]


def prepare_for_many() -> None:
    """Load the compiled simulator, where there is one, before predicting hundreds of points."""
    if has_numba():
        compiled_run_events()


def predict(point: Point, setup: Setup, overhead: EngineOverhead) -> Prediction:
    """Simulate one point. Raises UnpredictableError when no request could finish."""
    engines = max(1, point.replicas) * setup.dp
    together = point.mode.startswith("online") and engines <= MOST_ENGINES
    point = point if together else _load_of_one(point, engines)
    step = setup_step_model(point, setup, overhead)
    requests = make_requests(point, 1 if together else engines)
    reserve = int(requests.output_tokens.mean()) if setup.generation.reserves_output else 0
    instance = replace(serving_instance(point, setup, step), reserve_output_tokens=reserve)
    deployment = Deployment(instances=(instance,) * (engines if together else 1))
    front_end_s = overhead.request_s + overhead.request_token_s * float(requests.input_tokens.mean())
    arrivals, concurrency = serving_mode(point, len(requests))
    results = simulate(
        deployment,
        requests,
        seed=SEED,
        arrivals=arrivals,
        concurrency=concurrency,
        think_s=front_end_s if arrivals == "closed" else 0.0,
        routing="least_loaded" if together and engines > 1 else "weighted",
        warmup_share=0.0,
        form="numba" if is_loaded() else "auto",
    )
    run = results.runs[0]
    if run.num_finished < len(requests) or not run.end_s > 0:
        raise UnpredictableError(f"{len(requests) - run.num_finished} requests would not fit into KV memory")
    ttft_s = run.ttft_s + overhead.request_s + overhead.request_token_s * requests.input_tokens
    tpot_s = run.tpot_s[np.isfinite(run.tpot_s)]
    if setup.generation.late_first_token:
        ttft_s = ttft_s + np.nan_to_num(run.tpot_s)
    if point.mode == "static-batch":
        ttft_s, tpot_s = _batch_latencies(run.ttft_s, run.end_s, requests.output_tokens)
    return Prediction(
        ttft=latency_statistics(ttft_s),
        tpot=latency_statistics(tpot_s),
        output_tokens_per_s=(1 if together else engines) * run.output_tokens / run.end_s,
        basis_shares=step.basis_shares,
        notes=setup.notes,
    )


def _load_of_one(point: Point, engines: int) -> Point:
    """What one of several equal engines gets of a load: its part of the users, of the batch or of the rate."""
    if engines == 1:
        return point
    users, rate = point.concurrency, point.rate_req_per_s
    return replace(
        point,
        concurrency=None if users is None else math.ceil(users / engines),
        rate_req_per_s=None if rate is None else rate / engines,
    )


def _batch_latencies(ttft_s: FloatArray, end_s: float, output_tokens: IntArray) -> tuple[FloatArray, FloatArray]:
    """(TTFT, TPOT) of a batch driven without a server: the prompt phase of all, and the rest by token."""
    prompt_s = float(ttft_s.max())
    tokens = int(output_tokens.max()) - 1
    return np.array([prompt_s]), np.array([(end_s - prompt_s) / tokens] if tokens > 0 else [])


def latency_statistics(values: FloatArray) -> Statistics:
    """Mean, median and 99th percentile; NaN where there is no value."""
    if len(values) == 0:
        return Statistics(math.nan, math.nan, math.nan)
    return Statistics(float(values.mean()), float(np.median(values)), float(np.percentile(values, 99)))


def setup_step_model(point: Point, setup: Setup, overhead: EngineOverhead) -> StepModel:
    """The step tables of the point's instance."""
    kv_dtype = "fp8" if setup.kv_dtype == "fp8_block" else setup.kv_dtype
    return step_model(
        setup.model,
        setup.ops,
        setup.engine,
        setup.link,
        tp=setup.tp,
        pp=setup.pp,
        ep=setup.ep,
        weight_dtype=setup.weight_dtype,
        kv_dtype=kv_dtype,
        max_num_seqs=_slots(point, setup),
        max_num_batched_tokens=max(_step_tokens(point, setup), _slots(point, setup)),
        overhead=overhead,
    )


def _slots(point: Point, setup: Setup) -> int:
    if point.mode == "static-batch" and point.concurrency:
        return max(setup.generation.max_num_seqs, point.concurrency)
    if point.mode == "offline" and point.concurrency:  # the batch that an offline run is said to keep
        return point.concurrency
    return setup.generation.max_num_seqs


def _step_tokens(point: Point, setup: Setup) -> int:
    if setup.generation.whole_batch_prefill and point.mode == "static-batch":
        batch = (point.concurrency or 1) * math.ceil(point.input_tokens)
        return min(max(batch, 1), LARGEST_STEP_TOKENS)
    if in_house_run(point):
        return max(IN_HOUSE_LEAST_BUDGET, math.ceil(point.input_tokens))
    return setup.generation.max_num_batched_tokens


def in_house_run(point: Point) -> bool:
    """NVIDIA's own sweeps, whose engines were generated for each prompt length: see IN_HOUSE_LEAST_BUDGET."""
    return "nvidia in-house" in point.notes.lower() or "silicon_sample" in point.notes.lower()


def serving_instance(point: Point, setup: Setup, step: StepModel) -> InstanceSpec:
    """One engine instance with the limits of its generation."""
    slots = _slots(point, setup)
    return InstanceSpec(
        name=point.id,
        role="colocated",
        step=step,
        kv_capacity_tokens=setup.kv_capacity_tokens,
        block_tokens=setup.generation.block_tokens,
        max_num_seqs=slots,
        max_num_batched_tokens=max(_step_tokens(point, setup), slots),
        scheduler="sglang" if setup.generation.scheduler == "prefill-first" else "vllm",
    )


def serving_mode(point: Point, num_requests: int) -> tuple[Literal["open", "burst", "closed"], int]:
    """How the benchmark drives the server: arrivals, and users of a closed loop."""
    if point.mode == "online-rate" and point.rate_req_per_s and math.isfinite(point.rate_req_per_s):
        return "open", 0
    if point.mode == "online-concurrency" and point.concurrency and point.concurrency < num_requests:
        return "closed", point.concurrency
    return "burst", 0


def make_requests(point: Point, engines: int = 1) -> Requests:
    """The requests a benchmark of this point sends; lengths as its source describes them, under a fixed seed.

    Of a number of requests that a source states, one of `engines` gets its part.
    """
    count = _num_requests(point, engines)
    rng = np.random.default_rng(SEED)
    inputs, outputs = _lengths(point, count, rng)
    arrival_s = np.zeros(count)
    if point.mode == "online-rate" and point.rate_req_per_s and math.isfinite(point.rate_req_per_s):
        arrival_s = np.cumsum(rng.exponential(1.0 / point.rate_req_per_s, count))
    zeros = np.zeros(count, dtype=np.int64)
    return Requests(arrival_s, inputs, outputs, zeros, zeros)


def _num_requests(point: Point, engines: int) -> int:
    if point.mode == "static-batch":
        return point.concurrency or 1
    most = MOST_OFFLINE_REQUESTS if point.mode == "offline" else MOST_REQUESTS
    stated = re.search(r"\b(\d[\d,]*) (?:requests|prompts|samples)\b", point.notes)
    if stated:
        return min(most, max(math.ceil(int(stated.group(1).replace(",", "")) / engines), 1))
    if point.mode == "offline":
        return most if CHAT_DATASETS.search(point.notes) else OFFLINE_REQUESTS
    if point.mode == "online-rate" and point.rate_req_per_s and math.isfinite(point.rate_req_per_s):
        return min(max(math.ceil(STEADY_S * point.rate_req_per_s), FEWEST_REQUESTS), MOST_STEADY_REQUESTS)
    users = point.concurrency or 32
    return min(max(REQUESTS_PER_USER * users, FEWEST_REQUESTS), max(MOST_REQUESTS, 2 * users))


def _lengths(point: Point, count: int, rng: np.random.Generator) -> tuple[IntArray, IntArray]:
    means = (point.input_tokens, point.output_tokens)
    if re.search(r"0\.8-1\.0", point.notes):
        drawn = [mean * rng.uniform(0.8, 1.0, count) for mean in means]
    elif CHAT_DATASETS.search(point.notes):
        samples = [rng.lognormal(0.0, sigma, count) for sigma in SHAREGPT_SIGMA]
        drawn = [_cut(sample, mean) for sample, mean in zip(samples, means, strict=True)]
    else:
        drawn = [np.full(count, mean) for mean in means]
    inputs, outputs = (np.maximum(1, np.round(values)).astype(np.int64) for values in drawn)
    return inputs, outputs


def _cut(sample: FloatArray, mean: float) -> FloatArray:
    """The sample scaled to a mean, with nothing longer than benchmarks take (or than three means of longer chats)."""
    longest = max(LONGEST_CHAT_TOKENS, 3.0 * mean)
    for _ in range(10):  # what is cut off makes the rest longer
        sample = np.minimum(sample * (mean / sample.mean()), longest)
    return sample
