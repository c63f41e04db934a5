"""Traces cut, split, scaled and resampled. Every function returns new requests and loses none silently."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from splitplan.catalogs.errors import InputError, Problem, shorten
from splitplan.planner.spec.workload import Requests, check_rate


def window(requests: Requests, start_s: float, end_s: float) -> Requests:
    """Requests that arrive in [start_s, end_s), with arrivals counted from `start_s`."""
    inside = np.flatnonzero((requests.arrival_s >= start_s) & (requests.arrival_s < end_s))
    kept = requests.take(inside)
    return replace(kept, arrival_s=kept.arrival_s - start_s)


def at_rate(requests: Requests, rate_req_per_s: float) -> Requests:
    """The same requests in the same order at another mean rate: every inter-arrival time times the same factor.

    Raises InputError for a rate that is not above 0, or requests that have none to scale.
    """
    check_rate(rate_req_per_s)
    own = requests.rate_req_per_s
    if not own > 0:
        raise InputError(Problem("requests that arrive at once have no rate to scale", key="rate"))
    return replace(requests, arrival_s=requests.arrival_s * (own / rate_req_per_s))


def split_by_input(requests: Requests, edges_tokens: Sequence[int]) -> tuple[Requests, tuple[str, ...]]:
    """Requests with classes by prompt length, and the names of those classes.

    Edges 2000, 8000 make the classes `input<=2000`, `input<=8000` and `input>8000`. Raises InputError for edges that
    are not positive and rising.
    """
    edges = np.asarray(edges_tokens, dtype=np.int64)
    if len(edges) == 0 or edges[0] < 1 or (np.diff(edges) <= 0).any():
        message = f"edges {', '.join(map(str, edges_tokens)) or 'none'}"
        raise InputError(Problem(message, key="split", expected="rising numbers of tokens above 0, as in 2000,8000"))
    names = (*(f"input<={edge}" for edge in edges.tolist()), f"input>{edges[-1]}")
    return replace(requests, class_index=np.searchsorted(edges, requests.input_tokens)), names


def parse_edges(text: str) -> tuple[int, ...]:
    """`2000,8000` as (2000, 8000). Raises InputError for anything else."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() and len(part) <= 9 for part in parts):
        raise InputError(Problem(f"'{shorten(text, 40)}'", key="split", expected="numbers of tokens, as in 2000,8000"))
    return tuple(int(part) for part in parts)


def resample(requests: Requests, n: int, seed: int) -> Requests:
    """`n` requests drawn with replacement, lengths and inter-arrival times apart: a bootstrap of the trace.

    The mean rate stays what it is; which length follows which is lost. Prefix blocks go with their lengths.
    """
    if n < 1 or len(requests) < 2:
        raise InputError(
            Problem(f"cannot draw {n} requests from {len(requests)}", key="n", expected="at least 1 from 2")
        )
    gap_rng, row_rng = (np.random.default_rng(child) for child in np.random.SeedSequence(seed).spawn(2))
    rows = row_rng.integers(len(requests), size=n)
    gaps = np.diff(requests.arrival_s)[gap_rng.integers(len(requests) - 1, size=n)]
    return replace(requests.take(rows), arrival_s=np.cumsum(gaps))
