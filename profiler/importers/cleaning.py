"""Rows that published tables hold and ours do not: without a time, timed the wrong thing, or hiccups."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from splitplan.profiler.families import FAMILIES

HOST_BOUND_S, HOST_BOUND_MARGIN, TINY_WEIGHTS = 20e-6, 1.3, 1 << 20  # see host_bound_products
SPIKE_FACTOR = 2.0  # see spike_rows
SPIKE_AXES: Mapping[str, str] = {"gemm": "m", "prefill_attention": "new", "decode_attention": "context"}


@dataclass(frozen=True, slots=True)
class Read:
    """What one file gave: rows of our columns, and what was left out."""

    keys: Mapping[str, NDArray[Any]]
    seconds: NDArray[np.float64]
    dropped: int = 0  # latency not positive, or a size that is not
    host_bound: int = 0  # timed the host
    spikes: int = 0  # took far longer than more work did


def clean(family: str, keys: Mapping[str, Any], latency_ms: NDArray[Any]) -> dict[str, Read]:
    """The rows worth keeping; the others are counted by why they are not."""
    seconds = np.asarray(latency_ms, dtype=np.float64) * 1e-3
    rows = len(seconds)
    filled = {name: np.full(rows, keys[name]) if np.ndim(keys[name]) == 0 else keys[name] for name in FAMILIES[family]}
    timed = np.isfinite(seconds) & (seconds > 0)
    for name in ("m", "n", "k", "batch", "new", "context", "tokens", "num_bytes", "heads"):
        if name in filled:
            timed &= filled[name] > 0
    filled, seconds = _take(filled, seconds, timed)
    host_bound = host_bound_products(filled, seconds) if family == "gemm" else np.zeros(len(seconds), dtype=bool)
    filled, seconds = _take(filled, seconds, ~host_bound)
    spikes = spike_rows(filled, seconds, SPIKE_AXES[family]) if family in SPIKE_AXES else np.zeros(len(seconds), bool)
    filled, seconds = _take(filled, seconds, ~spikes)
    return {family: Read(filled, seconds, int(rows - timed.sum()), int(host_bound.sum()), int(spikes.sum()))}


def spike_rows(keys: Mapping[str, NDArray[Any]], seconds: NDArray[np.float64], axis: str) -> NDArray[np.bool_]:
    """Rows that took over twice what a larger size of their line took, and the next smaller one: hiccups.

    Kernels do get chosen badly, and clocks wander: those are within that factor. (Of experts and collectives nothing is
    dropped: their kernels change with the size, and so may really take twice as long.)
    """
    others = [np.unique(column, return_inverse=True)[1] for name, column in keys.items() if name != axis]
    order = np.lexsort((keys[axis], *others))
    new_line = np.zeros(len(order), dtype=bool)
    for codes in others:
        new_line[1:] |= codes[order][1:] != codes[order][:-1]
    spikes = np.zeros(len(seconds), dtype=bool)
    for line in np.split(order, np.flatnonzero(new_line)):
        times = seconds[line]
        least_later = np.minimum.accumulate(times[::-1])[::-1][2:]
        spikes[line[1:-1]] = times[1:-1] > SPIKE_FACTOR * np.maximum(least_later, times[:-2])
    return spikes


def host_bound_products(keys: Mapping[str, NDArray[Any]], seconds: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Rows that say how long a host takes to launch a product, not how long the device takes to compute it.

    vLLM's block-scaled fp8 products were launched eagerly: the smallest take 55 µs on H100 and 290 µs on L40S, where a
    replayed graph takes 5, and none takes less however small. A dtype whose small products (n and k 256 to 1,024, up
    to 128 rows: under 5 µs of work anywhere) take over 20 µs is launched by a host; its rows within 1.3 of what nine
    in ten small ones take are of that kind, and so is every row of the same n and k with fewer m, however slow.
    """
    n, k, m = keys["n"], keys["k"], keys["m"]
    small = (n >= 256) & (n <= 1024) & (k >= 256) & (k <= 1024) & (m <= 128)
    _, line = np.unique(n.astype(np.int64) << 32 | k, return_inverse=True)
    host_bound = np.zeros(len(seconds), dtype=bool)
    for dtype in np.unique(keys["dtype"]):
        rows = keys["dtype"] == dtype
        if np.any(rows & small) and np.median(seconds[rows & small]) > HOST_BOUND_S:
            usual_s = np.full(line.max() + 1, np.quantile(seconds[rows & small], 0.9))
            for tiny in np.unique(line[rows & (n * k <= TINY_WEIGHTS)]):  # some of these took a slower way still
                usual_s[tiny] = max(usual_s[tiny], np.quantile(seconds[rows & (line == tiny) & (m <= 128)], 0.9))
            slow = rows & (seconds < HOST_BOUND_MARGIN * usual_s[line])
            last_m = np.zeros(line.max() + 1, dtype=np.int64)
            np.maximum.at(last_m, line[slow], m[slow])
            host_bound |= rows & (m <= last_m[line])
    return host_bound


def _take(
    keys: Mapping[str, NDArray[Any]], seconds: NDArray[np.float64], rows: NDArray[np.bool_]
) -> tuple[dict[str, NDArray[Any]], NDArray[np.float64]]:
    return {name: column[rows] for name, column in keys.items()}, seconds[rows]
