"""A Workload from a recorded trace: its requests to replay, and a joint sample of their lengths to plan with."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from splitplan.catalogs.errors import InputError, Problem
from splitplan.planner.spec.arrivals import Burstiness, burstiness
from splitplan.planner.spec.describe import DEFAULT_CACHE_TOKENS
from splitplan.planner.spec.fit import fit_lengths
from splitplan.planner.spec.length_rows import LengthRows, joined
from splitplan.planner.spec.prefix import cached_tokens
from splitplan.planner.spec.slo import Slo
from splitplan.planner.spec.trace.read import Trace
from splitplan.planner.spec.workload import IntArray, RequestClass, Requests, Workload

MAX_EXACT_ROWS = 2048


def workload_of_trace(
    trace: Trace, name: str, rate_req_per_s: float | None, slos: Mapping[str, Slo] | None = None
) -> Workload:
    """A workload that replays the trace, at its own rate or the one given.

    A trace without arrival times has only lengths: it needs a rate, and its arrivals are then sampled as Poisson.
    Raises InputError when the rate stays open.
    """
    requests = trace.requests
    timed = trace.has_arrivals and math.isfinite(requests.rate_req_per_s)
    notes = list(trace.report.lines())
    if not timed:
        _need_rate(rate_req_per_s, name, trace.has_arrivals)
        notes.append("arrivals assumed Poisson")
    found = burstiness(requests.arrival_s) if timed else Burstiness(1.0, None, None)
    if found.stamp_s is not None:
        notes.append(
            f"time stamps are rounded to {found.stamp_s:g} s: burstiness is that of the counts per stamp, "
            f"{found.scv:.2f}, not the {found.gap_scv:.2f} of the stamps"
        )
    if requests.prefix is not None:
        notes.append(f"planned with the prefix hits of one LRU cache of {DEFAULT_CACHE_TOKENS:,} tokens")
    rows = _length_rows(requests, len(trace.class_names))
    prompt_tokens = float(rows.input_tokens @ rows.weight)
    workload = Workload(
        name=name,
        rate_req_per_s=requests.rate_req_per_s if timed else float(rate_req_per_s or math.nan),
        arrival_scv=found.scv,
        classes=tuple(RequestClass(each, (slos or {}).get(each)) for each in trace.class_names),
        input_tokens=rows.input_tokens,
        output_tokens=rows.output_tokens,
        class_index=rows.class_index,
        weight=rows.weight,
        prefix_hit_ratio=float(rows.cached_tokens @ rows.weight) / prompt_tokens,
        source=trace.report.path,
        trace=requests if timed else None,
        cached_tokens=rows.cached_tokens,
        notes=tuple(notes),
    )
    return workload if rate_req_per_s is None or not timed else workload.at_rate(rate_req_per_s)


def _need_rate(rate_req_per_s: float | None, name: str, has_arrivals: bool) -> None:
    if rate_req_per_s is None:
        why = "all its requests arrive at once" if has_arrivals else "it has no arrival times"
        message = f"the rate is not known: {why}"
        raise InputError(Problem(message, name, "rate", "requests per second", "add --rate 10"))


def _length_rows(requests: Requests, num_classes: int) -> LengthRows:
    """A joint sample of the lengths of each class, with the hits of one cache of the usual size."""
    cached = requests.cached_tokens
    if requests.prefix is not None:
        cache_blocks = DEFAULT_CACHE_TOKENS // requests.prefix.block_tokens
        cached = cached_tokens(requests.prefix, requests.input_tokens, cache_blocks)
    parts = []
    for index in range(num_classes):
        chosen = np.flatnonzero(requests.class_index == index)
        if len(chosen):
            parts.append((_rows_of_class(requests, cached, chosen, index), len(chosen) / len(requests)))
    return joined(parts)


def _rows_of_class(requests: Requests, cached: IntArray, chosen: IntArray, index: int) -> LengthRows:
    lengths = (requests.input_tokens[chosen], requests.output_tokens[chosen], cached[chosen])
    if len(chosen) <= MAX_EXACT_ROWS:
        weight = np.full(len(chosen), 1.0 / len(chosen))
    else:
        fitted = fit_lengths(*lengths, num_points=1024)
        lengths = (fitted.input_tokens, fitted.output_tokens, fitted.cached_tokens)
        weight = fitted.units / fitted.units.sum()
    return LengthRows(*lengths, np.full(len(weight), index), weight)
