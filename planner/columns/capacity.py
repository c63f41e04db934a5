"""The rate one instance sustains, from the step model, before anything is simulated.

Prefill. A pool of k instances behind one router is a G/G/k queue whose service time is the request's chunks. Those who
wait, wait about as long as before a single server k times as fast (exact in heavy traffic; Köllerström, J. Appl. Prob.
11, 1974), by Lindley's recursion on the sampled gaps and lengths; of all requests, Erlang's C wait. Prompts that wait
together share steps and end together, so a wait also costs the work of those behind, up to a full chunk. The capacity
is the highest rate at which the share of requests whose wait, chunks and what comes after (transfer, first decode step)
exceed the TTFT target is no more than allowed.

Decode. Slots are held for output · step seconds. Occupancy at offered load a has mean a and, for Poisson-like arrivals,
variance a · max(1, SCV); spread over k instances by a balancing router it is a ± z·sqrt(a·v/k) per instance
(square-root staffing; Halfin & Whitt, Oper. Res. 29, 1981). The capacity is the highest a whose quantile fits the slots
and KV memory, at a step time that meets TPOT.

Colocated. Chunks and decodes share steps: the prefill queue's service time is the mixed step, and a decode sequence
sees a share φ of mixed steps, whose spread over its life is that of a compound Poisson sum.

These are starting points: the simulation of the whole plan is the judge, and what it finds wrong is tightened.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from splitplan.planner.columns.mix import RequestMix
from splitplan.planner.columns.service import Prompts, at, decode_step_s, mix_prompts
from splitplan.planner.latency.step import StepModel

FloatArray = NDArray[np.float64]

BISECTION_STEPS = 14
COLOCATED_BISECTION_STEPS = 9
"""Each step is dearer here, and the result is only a starting point: 1/500 of saturation is close enough."""
MAX_UTILISATION = 0.97
"""A queue fuller than this has no percentile worth the name within a trace's length."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What an instance may hold."""

    max_num_seqs: int
    max_num_batched_tokens: int
    kv_capacity_tokens: int


@dataclass(frozen=True, slots=True)
class Capacity:
    """What one instance of a pool sustains; `reason` says why when it is nothing."""

    req_per_s: float
    work_s_per_request: FloatArray  # [classes]
    reason: str = ""


def nothing(reason: str, num_classes: int) -> Capacity:
    """No rate at all, and why."""
    return Capacity(0.0, np.full(num_classes, np.inf), reason)


def pooled_wait(gap_s: FloatArray, service_s: FloatArray, num_servers: int) -> FloatArray:
    """Waiting times of a FCFS queue with `num_servers`, as a single server that many times as fast.

    Lindley: W[i+1] = max(0, W[i] + S[i]/k − A[i+1]), which is a cumulative sum minus its running minimum.
    """
    steps = np.empty_like(service_s)
    steps[0] = 0.0
    np.subtract(service_s[:-1] / num_servers, gap_s[1:], out=steps[1:])
    walk = np.cumsum(steps)
    return np.asarray(walk - np.minimum.accumulate(walk), dtype=np.float64)


def erlang_c(num_servers: int, offered: float) -> float:
    """Probability that an arrival waits in M/M/k at `offered` erlangs; 1 from saturation on."""
    if offered >= num_servers:
        return 1.0
    blocking = 1.0
    for servers in range(1, num_servers + 1):  # Erlang B by its recursion
        blocking = offered * blocking / (servers + offered * blocking)
    utilisation = offered / num_servers
    return blocking / (1 - utilisation * (1 - blocking))


@dataclass(frozen=True, slots=True)
class Pool:
    """Instances behind one router, and what each request asks of them. Arrays are [n], in order of arrival."""

    mix: RequestMix
    num_instances: int
    busy_s: FloatArray  # how long a request keeps an instance from the next one
    own_s: FloatArray  # arrival to first token when nobody else is there
    full_chunk_s: float  # a step with as many tokens as it takes

    def miss_share(self, utilisation: float) -> float:
        """Share of requests that miss TTFT at this utilisation."""
        rate = utilisation * self.num_instances / float(self.busy_s.mean())
        wait_s = pooled_wait(self.mix.gap / rate, self.busy_s, self.num_instances)
        behind_s = np.minimum(utilisation * wait_s, np.maximum(self.full_chunk_s - self.busy_s, 0.0))
        waiting = float(np.mean(wait_s + behind_s + self.own_s > self.mix.ttft_limit_s))
        at_once = float(np.mean(self.own_s > self.mix.ttft_limit_s))
        share = erlang_c(self.num_instances, utilisation * self.num_instances) / utilisation
        return share * waiting + (1 - share) * at_once

    def highest_rate(self) -> float:
        """Highest rate (req/s, all instances together) that misses no more than is allowed; 0 if none."""
        if self.miss_share(1e-6) > self.mix.ttft_miss_share:
            return 0.0
        low, high = 0.0, MAX_UTILISATION
        for _ in range(BISECTION_STEPS):
            middle = (low + high) / 2
            low, high = (middle, high) if self.miss_share(middle) <= self.mix.ttft_miss_share else (low, middle)
        return low * self.num_instances / float(self.busy_s.mean())


def pool_size(demand_req_per_s: float, mean_busy_s: float) -> int:
    """About how many instances would serve the demand alone: what balancing over a pool is judged on."""
    return max(1, min(64, math.ceil(demand_req_per_s * mean_busy_s / 0.75)))


def prefill_capacity(
    step: StepModel, limits: Limits, mix: RequestMix, demand_req_per_s: float, after_s: FloatArray
) -> Capacity:
    """Capacity of a prefill instance. `after_s` [n]: transfer, admission and first decode step of each request."""
    service = mix_prompts(step, limits.max_num_batched_tokens, mix).service()
    busy_s = service.occupancy_s
    size = pool_size(demand_req_per_s, float(busy_s.mean()))
    full_chunk_s = step.overhead_s[1] + at(step.token_s, float(limits.max_num_batched_tokens))
    pool = Pool(mix, size, busy_s, service.latency_s + after_s, full_chunk_s)
    rate = pool.highest_rate() / size
    if rate <= 0:
        return nothing("TTFT of one request alone", mix.num_classes)
    per_class = mix.class_means(busy_s)
    return Capacity(rate, per_class / float(busy_s.mean()) / rate)


def decode_capacity(
    step: StepModel, limits: Limits, mix: RequestMix, demand_req_per_s: float, arrival_scv: float
) -> Capacity:
    """Capacity of a decode instance with all its slots; TPOT holds at the occupancy's quantile."""
    z = NormalDist().inv_cdf(1 - mix.tpot_miss_share)
    slots = _usable_slots(limits, mix, z)
    if slots < 1:
        return nothing("KV does not fit", mix.num_classes)
    tpot_limit_s = mix.tpot_limit
    context = mix.context_tokens
    if decode_step_s(step, 1.0, context) > tpot_limit_s:
        return nothing("TPOT of one request alone", mix.num_classes)
    top = _largest_batch(step, slots, mix, z, tpot_limit_s)
    mean_out = float(mix.output_tokens.mean())
    spread = max(1.0, min(arrival_scv, 4.0))
    size = 1
    load = top
    for _ in range(3):
        load = _mean_below_quantile(top, z, spread / size)
        hold_s = mean_out * decode_step_s(step, max(load, 1.0), context)
        size = max(1, min(64, math.ceil(demand_req_per_s * hold_s / max(load, 0.5))))
    if load <= 0:
        return nothing("slots", mix.num_classes)
    held_s = mix.output_tokens * decode_step_s(step, max(load, 1.0), context)
    return Capacity(load / float(held_s.mean()), mix.class_means(held_s) / load)


def _usable_slots(limits: Limits, mix: RequestMix, z: float) -> float:
    """Sequences that fit both the engine's cap and, at the stated quantile of their contexts, KV memory."""
    mean, std = mix.context_tokens, mix.context_std_tokens
    tokens = float(limits.kv_capacity_tokens)
    # n·mean + z·sqrt(n)·std = tokens, solved for sqrt(n)
    root = (-z * std + math.sqrt((z * std) ** 2 + 4 * mean * tokens)) / (2 * mean)
    return min(float(limits.max_num_seqs), root * root)


def _largest_batch(step: StepModel, slots: float, mix: RequestMix, z: float, limit_s: float) -> float:
    """The largest batch whose step meets the limit at the stated quantile of its mean context."""

    def step_s(batch: float) -> float:
        context = mix.context_tokens + z * mix.context_std_tokens / math.sqrt(batch)
        return decode_step_s(step, batch, context)

    if step_s(slots) <= limit_s:
        return slots
    low, high = 1.0, slots
    for _ in range(BISECTION_STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if step_s(middle) <= limit_s else (low, middle)
    return low


def _mean_below_quantile(top: float, z: float, variance_per_mean: float) -> float:
    """The mean a with a + z·sqrt(a·v) = top."""
    spread = z * math.sqrt(variance_per_mean)
    root = (-spread + math.sqrt(spread * spread + 4 * top)) / 2
    return root * root


@dataclass(frozen=True, slots=True)
class _Colocated:
    """One colocated instance under a trial rate."""

    prompts: Prompts
    mix: RequestMix
    slots: float
    z: float
    arrival_scv: float
    demand_req_per_s: float

    def problem(self, rate: float) -> str:
        """ "" if one instance at `rate` meets both targets, else which one it misses."""
        mix = self.mix
        batch = 1.0
        for _ in range(12):  # batch, step times and the share of mixed steps settle together
            service = self.prompts.service(decode_batch=batch, context_tokens=mix.context_tokens)
            busy = rate * float(service.occupancy_s.mean())
            if busy >= MAX_UTILISATION:
                return "TTFT"
            mixed_s = float(service.latency_s.sum() / service.num_chunks.sum())
            pure_s = decode_step_s(self.prompts.step, max(batch, 1.0), mix.context_tokens)
            tpot_s = 1.0 / (busy / mixed_s + (1 - busy) / pure_s)
            settled = rate * float(mix.output_tokens.mean()) * tpot_s
            if abs(settled - batch) < 1e-2 * batch:
                break
            batch = (batch + settled) / 2
        size = max(1, min(64, math.ceil(self.demand_req_per_s / max(rate, 1e-9))))
        if batch + self.z * math.sqrt(batch * max(1.0, min(self.arrival_scv, 4.0)) / size) > self.slots:
            return "KV does not fit"
        busy_s = service.occupancy_s
        if _tpot_miss_share(mix, rate, busy_s, busy, mixed_s, pure_s, tpot_s) > mix.tpot_miss_share:
            return "TPOT"
        own_s = service.latency_s + 0.5 * tpot_s  # the step under way when a request arrives has to end first
        if float(np.mean(own_s > mix.ttft_limit_s)) > mix.ttft_miss_share:
            return "TTFT of one request alone"
        wait_s = pooled_wait(mix.gap / (rate * size), busy_s, size)
        return "TTFT" if float(np.mean(wait_s + own_s > mix.ttft_limit_s)) > mix.ttft_miss_share else ""


def colocated_capacity(
    step: StepModel, limits: Limits, mix: RequestMix, demand_req_per_s: float, arrival_scv: float
) -> Capacity:
    """Capacity of an instance that prefills in chunks between its decodes: the highest rate that meets both targets."""
    z = NormalDist().inv_cdf(1 - mix.tpot_miss_share)
    prompts = mix_prompts(step, limits.max_num_batched_tokens, mix)
    trial = _Colocated(prompts, mix, _usable_slots(limits, mix, z), z, arrival_scv, demand_req_per_s)
    busy_s = prompts.service().occupancy_s
    high = MAX_UTILISATION / float(busy_s.mean())
    low = high * 1e-3
    problem = trial.problem(low)
    if problem:
        return nothing(problem, mix.num_classes)
    for _ in range(COLOCATED_BISECTION_STEPS):
        middle = (low + high) / 2
        low, high = (low, middle) if trial.problem(middle) else (middle, high)
    weight = busy_s / float(busy_s.mean()) + mix.output_tokens / float(mix.output_tokens.mean())
    return Capacity(low, mix.class_means(weight) / 2 / low)


def _tpot_miss_share(
    mix: RequestMix, rate: float, busy_s: FloatArray, busy: float, mixed_s: float, pure_s: float, tpot_s: float
) -> float:
    """Share of requests whose steps were mixed so often that their TPOT misses: the mixed seconds in a life of T are
    a compound Poisson sum with mean busy·T and variance rate·T·E[S²], taken as normal."""
    limit_s = mix.tpot_limit
    if mixed_s <= limit_s:
        return 0.0
    if pure_s > limit_s:
        return 1.0
    # TPOT = 1/(φ/mixed + (1−φ)/pure) ≤ limit  ⇔  φ ≤ φ*
    threshold = (1 / pure_s - 1 / limit_s) / (1 / pure_s - 1 / mixed_s)
    life_s = np.maximum(mix.output_quantiles - 1, 1) * tpot_s
    deviation = np.sqrt(rate * float(np.mean(busy_s**2)) / life_s)
    scores = (threshold - busy) / np.maximum(deviation, 1e-12) / math.sqrt(2)
    return sum(0.5 * math.erfc(score) for score in scores) / len(scores)
