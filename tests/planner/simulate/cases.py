"""Step models, deployments and requests that the simulator's tests share."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from splitplan.planner.latency.step import StepModel
from splitplan.planner.simulate import Deployment, InstanceSpec, Link, Results
from splitplan.planner.spec.workload import PrefixBlocks, Requests


def constant_step(seconds: float, max_num_seqs: int = 64, max_tokens: int = 4096, **changes: Any) -> StepModel:
    """Every step takes `seconds`, whatever is in it."""
    return linear_step(overhead_s=seconds, max_num_seqs=max_num_seqs, max_tokens=max_tokens, **changes)


def linear_step(
    *,
    overhead_s: float = 0.0,
    token_s: float = 0.0,
    context_token_s: float = 0.0,
    past_token_s: float = 0.0,
    max_num_seqs: int = 64,
    max_tokens: int = 4096,
    **changes: Any,
) -> StepModel:
    """overhead + token_s · T + context_token_s · Σ context of decodes + past_token_s · Σ new · past of chunks."""
    knots = np.array([0.0, 1000.0, 5000.0])
    fields: dict[str, Any] = {
        "overhead_s": (overhead_s, overhead_s),
        "host_s": np.zeros(max_num_seqs + 1),
        "gap_s": 0.0,
        "token_s": token_s * np.arange(max_tokens + 1),
        "sequence_s": np.zeros(max_num_seqs + 1),
        "prefill_new_knots": knots,
        "prefill_past_knots": knots,
        "prefill_attention_s": past_token_s * np.outer(knots, knots),
        "decode_batch_knots": np.array([0.0, float(max_num_seqs)]),
        "decode_context_knots": knots,
        "decode_attention_s": context_token_s * np.outer([0.0, float(max_num_seqs)], knots),
    }
    return StepModel(**(fields | changes))


def realistic_step(seed: int = 0, max_num_seqs: int = 64, max_tokens: int = 2048, num_stages: int = 1) -> StepModel:
    """A bumpy model in the range of real ones: staircase of tokens, kinks in context, a host that sometimes binds."""
    draw = np.random.default_rng(seed)
    tokens = np.arange(max_tokens + 1)
    stairs = 0.004 + 4e-5 * draw.uniform(0.5, 2.0) * 128 * np.ceil(tokens / 128)
    contexts = np.array([0.0, 100.0, 500.0, 1000.0, 4000.0])
    batches = np.array([0.0, 1.0, 8.0, 32.0])
    return StepModel(
        overhead_s=(draw.uniform(0, 1e-3), draw.uniform(0, 3e-3)),
        host_s=draw.uniform(0.0, 8e-3) + 1e-5 * np.arange(max_num_seqs + 1),
        gap_s=draw.uniform(0, 1e-3),
        token_s=np.where(tokens > 0, stairs, 0.0),
        sequence_s=2e-6 * np.arange(max_num_seqs + 1),
        prefill_new_knots=np.array([0.0, 64.0, 512.0, 2048.0]),
        prefill_past_knots=np.array([0.0, 512.0, 4096.0]),
        prefill_attention_s=np.cumsum(np.cumsum(draw.uniform(0, 1e-3, (4, 3)), axis=0), axis=1),
        decode_batch_knots=batches,
        decode_context_knots=contexts,
        decode_attention_s=np.cumsum(np.cumsum(draw.uniform(0, 3e-4, (4, 5)), axis=0), axis=1),
        num_stages=num_stages,
        handoff_s=1e-4,
    )


def fixed_requests(count: int, input_tokens: int, output_tokens: int, arrival_s: Any = None) -> Requests:
    """Equal requests; all at time 0 unless told otherwise."""
    ones = np.ones(count, dtype=np.int64)
    times = np.zeros(count) if arrival_s is None else np.asarray(arrival_s, dtype=np.float64)
    return Requests(times, ones * input_tokens, ones * output_tokens, ones * 0, ones * 0)


def poisson_requests(
    count: int, rate_req_per_s: float, input_tokens: int, output_tokens: int, seed: int = 0
) -> Requests:
    """Equal requests at exponential distances."""
    times = np.cumsum(np.random.default_rng(seed).exponential(1 / rate_req_per_s, count))
    return fixed_requests(count, input_tokens, output_tokens, times)


def mixed_requests(count: int, rate_req_per_s: float, seed: int = 0, longest: int = 1500) -> Requests:
    """Lognormal lengths at exponential distances."""
    draw = np.random.default_rng(seed)
    times = np.cumsum(draw.exponential(1 / rate_req_per_s, count))
    inputs = np.clip(draw.lognormal(5.0, 1.2, count).astype(np.int64), 1, longest)
    outputs = np.clip(draw.lognormal(3.0, 1.0, count).astype(np.int64), 1, 300)
    cached = np.where(draw.random(count) < 0.2, inputs // 2, 0)
    return Requests(times, inputs, outputs, np.zeros(count, dtype=np.int64), cached)


def with_prefixes(requests: Requests, families: int, block_tokens: int = 64) -> Requests:
    """Prompts of a family start alike: request i shares its blocks with all i + k · families, as far as both go."""
    counts = -(-requests.input_tokens // block_tokens)
    hashes = [1000 * (i % families) + k for i, count in enumerate(counts) for k in range(count)]
    offsets = np.concatenate([[0], np.cumsum(counts)])
    prefix = PrefixBlocks(block_tokens, offsets.astype(np.int64), np.array(hashes, dtype=np.int64))
    return dataclasses.replace(requests, cached_tokens=requests.cached_tokens * 0, prefix=prefix)


def instance(step: StepModel, role: str = "colocated", name: str = "", **changes: Any) -> InstanceSpec:
    """An instance with room for everything, unless told otherwise."""
    fields: dict[str, Any] = {
        "name": name or role,
        "role": role,
        "step": step,
        "kv_capacity_tokens": 1_000_000,
        "block_tokens": 16,
        "max_num_seqs": len(step.sequence_s) - 1,
        "max_num_batched_tokens": len(step.token_s) - 1,
    }
    return InstanceSpec(**(fields | changes))


def pair(step: StepModel, link_bytes_per_s: float = 1e9, **changes: Any) -> Deployment:
    """One prefill and one decode instance in two nodes, one link between them."""
    return Deployment(
        (instance(step, "prefill", egress=(0,)), instance(step, "decode")),
        (Link("nic", link_bytes_per_s),),
        **({"kv_bytes_per_token": 1e5} | changes),
    )


def assert_nothing_lost(results: Results, requests: Requests) -> None:
    """arrivals = finished + rejected + in flight."""
    for run in results.runs:
        assert run.num_arrived == run.num_finished + run.num_rejected + run.num_in_flight
        assert run.num_arrived <= len(requests)
        assert int(sum(use.num_served for use in run.instances)) == run.num_finished
