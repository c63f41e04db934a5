"""From recorded requests to a description small enough to ship, as `planner workload fit` writes it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from splitplan.catalogs.errors import InputError, Problem
from splitplan.planner.spec.arrivals import burstiness, busiest_req_per_s
from splitplan.planner.spec.fit import fit_gaps, fit_lengths
from splitplan.planner.spec.prefix import cached_tokens
from splitplan.planner.spec.workload import IntArray, Requests

DEFAULT_CACHE_TOKENS = 1_048_576
POISSON_LIKE_SCV = 0.1  # closer to 1 than this, a list of gaps says nothing that `scv` does not
SIGNIFICANT_DIGITS = 6
HOUR_S = 3600.0
SHORTEST_PART_OF_AN_HOUR = 1 / 6
MAX_STEPS = 100_000


def fit_document(
    requests: Requests,
    name: str,
    *,
    class_names: Sequence[str] = ("all",),
    source: str = "",
    licence: str = "",
    cache_tokens: float = DEFAULT_CACHE_TOKENS,
    num_points: int = 1024,
    hourly: bool = False,
    profile_step_s: float | None = None,
) -> dict[str, Any]:
    """A Workload file's mapping that keeps rate, burstiness, and the joint lengths of each class of `requests`.

    Prefix hits are those of one LRU cache of `cache_tokens`, where the requests carry prefix blocks. With `hourly`, the
    rate of each hour is kept; with `profile_step_s`, that of each step of so many seconds, over the mean: burstiness is
    then what is left within. Raises InputError for fewer than two requests, or requests that all arrive at once: they
    have no rate; and for both of hours and profile.
    """
    rate = requests.rate_req_per_s
    if not math.isfinite(rate):
        message = f"{len(requests)} requests without time between them have no rate"
        raise InputError(Problem(message, name, expected="at least two requests at different times"))
    document: dict[str, Any] = {"kind": "Workload", "version": 1, "name": name, "source": source, "licence": licence}
    document |= _arrival_keys(requests, rate, hourly, profile_step_s)
    document |= _classes(requests, _cached(requests, cache_tokens), class_names, num_points)
    return {key: value for key, value in document.items() if value != ""}


def _arrival_keys(requests: Requests, rate: float, hourly: bool, profile_step_s: float | None) -> dict[str, Any]:
    """What a Workload file says of rate and burstiness."""
    if hourly and profile_step_s is not None:
        raise InputError(Problem("hours and a profile both say how the rate changes", expected="one of the two"))
    if hourly:
        rates = rates_by_step(requests, HOUR_S, shortest_part=SHORTEST_PART_OF_AN_HOUR)
        steady = _steady(requests, rates, HOUR_S)
        return {"hourly_req_per_s": [_rounded(each) for each in rates], "arrivals": _arrivals(steady)}
    keys: dict[str, Any] = {"rate_req_per_s": _rounded(rate)}
    keys["busiest_minute"] = _rounded(max(1.0, busiest_req_per_s(requests, 60.0) / rate))
    if profile_step_s is None:
        return {**keys, "arrivals": _arrivals(requests)}
    rates = rates_by_step(requests, profile_step_s)
    factors = [_rounded(each / rate) for each in rates]
    arrivals = _arrivals(_steady(requests, rates, profile_step_s))
    return {**keys, "arrivals": {**arrivals, "profile": {"step_s": profile_step_s, "factor": factors}}}


def rates_by_step(requests: Requests, step_s: float, *, shortest_part: float = 1.0) -> list[float]:
    """Requests per second in each step from the first arrival; a last part under `shortest_part` of one is left out."""
    if not (math.isfinite(step_s) and step_s > 0):
        raise InputError(Problem(f"a step of {step_s:g} s", key="profile", expected="a length above 0, in seconds"))
    end_s = float(requests.arrival_s[-1])
    num_steps = max(1, int((end_s + step_s * (1 - shortest_part)) // step_s))
    if num_steps > MAX_STEPS:
        raise InputError(Problem(f"{num_steps} steps", key="profile", expected=f"at most {MAX_STEPS}: longer steps"))
    counts = np.bincount((requests.arrival_s // step_s).astype(np.int64), minlength=num_steps)[:num_steps]
    lengths_s = np.minimum(step_s, end_s - step_s * np.arange(num_steps))
    return [float(rate) for rate in counts / lengths_s]


def _steady(requests: Requests, rates: Sequence[float], step_s: float) -> Requests:
    """Arrivals on the clock on which every step has the same rate: time measured in expected requests."""
    edges_s = step_s * np.arange(len(rates) + 1)
    expected = np.concatenate([[0.0], np.cumsum(np.array(rates) * step_s)])
    inside = np.flatnonzero(requests.arrival_s < edges_s[-1])
    kept = requests.take(inside)
    return replace(kept, arrival_s=np.interp(kept.arrival_s, edges_s, expected))


def _cached(requests: Requests, cache_tokens: float) -> IntArray:
    if requests.prefix is None:
        return requests.cached_tokens
    return cached_tokens(requests.prefix, requests.input_tokens, cache_tokens // requests.prefix.block_tokens)


def _classes(requests: Requests, cached: IntArray, class_names: Sequence[str], num_points: int) -> dict[str, Any]:
    """The `lengths` of the only class, or the `classes`."""
    if len(class_names) == 1:
        return {"lengths": {"sample": _sample(requests, cached, num_points)}}
    return {
        "classes": [
            {
                "name": class_name,
                "share": _rounded(float(np.mean(requests.class_index == index))),
                "lengths": {"sample": _sample(*_only(requests, cached, index), num_points)},
            }
            for index, class_name in enumerate(class_names)
            if (requests.class_index == index).any()
        ]
    }


def _only(requests: Requests, cached: IntArray, index: int) -> tuple[Requests, IntArray]:
    rows = np.flatnonzero(requests.class_index == index)
    return requests.take(rows), cached[rows]


def _arrivals(requests: Requests) -> dict[str, Any]:
    found = burstiness(requests.arrival_s)
    if found.stamp_s is not None or abs(found.gap_scv - 1) < POISSON_LIKE_SCV or len(requests) < 100:
        return {"scv": _rounded(found.scv)}
    value, count = fit_gaps(np.diff(requests.arrival_s))
    return {"scv": _rounded(found.scv), "gaps": [_rounded(gap) for gap in value.tolist()], "weight": count.tolist()}


def _sample(requests: Requests, cached: IntArray, num_points: int) -> dict[str, Any]:
    rows = fit_lengths(requests.input_tokens, requests.output_tokens, cached, num_points=num_points)
    sample = {
        "input_tokens": rows.input_tokens.tolist(),
        "output_tokens": rows.output_tokens.tolist(),
        "weight": rows.units.tolist(),
    }
    if rows.cached_tokens.any():
        sample["cached_tokens"] = rows.cached_tokens.tolist()
    return sample


def _rounded(number: float) -> float:
    return float(f"{number:.{SIGNIFICANT_DIGITS}g}")
