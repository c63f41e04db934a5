"""Workloads: who asks for how much, how often. A trace or a fitted description, sampled with a seed into Requests."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from splitplan.planner.spec.slo import Slo

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class RequestClass:
    """Requests that share a name and targets (None: the solve's own SLO)."""

    name: str
    slo: Slo | None = None


@dataclass(frozen=True, slots=True)
class PrefixBlocks:
    """Prompt blocks of each request as hashes, in compressed rows: request i owns hashes[offsets[i]:offsets[i+1]]."""

    block_tokens: int
    offsets: IntArray  # [n + 1]
    hashes: IntArray  # [offsets[-1]]


@dataclass(frozen=True, slots=True)
class Requests:
    """Concrete requests in order of arrival: what the simulator and the load test replay. All arrays have length n."""

    arrival_s: FloatArray
    input_tokens: IntArray
    output_tokens: IntArray
    class_index: IntArray
    cached_tokens: IntArray  # prefix tokens a warm cache holds; 0 when `prefix` decides
    prefix: PrefixBlocks | None = None

    def __len__(self) -> int:
        return len(self.arrival_s)


@dataclass(frozen=True, slots=True)
class Workload:
    """A description to sample from. Lengths are an empirical joint sample; arrivals follow rate and burstiness."""

    name: str
    rate_req_per_s: float
    arrival_scv: float  # squared coefficient of variation of inter-arrival times; 1 is Poisson
    classes: tuple[RequestClass, ...]
    input_tokens: IntArray  # [m] joint sample
    output_tokens: IntArray  # [m]
    class_index: IntArray  # [m]
    weight: FloatArray  # [m] sums to 1
    prefix_hit_ratio: float  # share of prompt tokens found in a warm cache
    source: str
    trace: Requests | None = None  # the trace itself when one was given
    content_hash: str = ""
