"""Workloads: who asks for how much, how often. A trace or a fitted description, sampled with a seed into Requests."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from splitplan.catalogs.errors import InputError, Problem
from splitplan.planner.spec.slo import Slo

if TYPE_CHECKING:
    from pathlib import Path

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]
LARGEST_SPAN_OF_COUNTS = 2**40  # prefix hashes below are numbered; above, they are spread over 64 bits
LAP_STEP = 7_046_029_254_386_353_131  # odd and of 63 bits: sums wrap around, and laps stay apart
SHORTEST_SPAN_S = 1e-9  # arrivals closer together than time stamps can tell come at once


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

    def take(self, indices: IntArray) -> PrefixBlocks:
        """The rows of the given requests, in that order."""
        counts = np.diff(self.offsets)[indices]
        offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        within = np.arange(offsets[-1]) - np.repeat(offsets[:-1], counts)
        hashes = self.hashes[np.repeat(self.offsets[indices], counts) + within]
        return PrefixBlocks(self.block_tokens, offsets, hashes)


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

    def take(self, indices: IntArray) -> Requests:
        """The given requests, in that order, with the arrivals they had."""
        return Requests(
            self.arrival_s[indices],
            self.input_tokens[indices],
            self.output_tokens[indices],
            self.class_index[indices],
            self.cached_tokens[indices],
            None if self.prefix is None else self.prefix.take(indices),
        )

    @property
    def rate_req_per_s(self) -> float:
        """Arrivals over the time from first to last; NaN for fewer than two requests or no time between them."""
        span_s = float(self.arrival_s[-1] - self.arrival_s[0]) if len(self) else 0.0
        return (len(self) - 1) / span_s if span_s > SHORTEST_SPAN_S else math.nan


@dataclass(frozen=True, slots=True)
class Gaps:
    """Measured inter-arrival times as a weighted sample with mean 1; multiply by 1 / rate for seconds."""

    value: FloatArray  # [k]
    weight: FloatArray  # [k] sums to 1


@dataclass(frozen=True, slots=True)
class Profile:
    """How the rate changes over time: factors with mean 1, each for `step_s` seconds, over and over."""

    step_s: float
    factor: FloatArray  # [k]


@dataclass(frozen=True, slots=True)
class Workload:
    """A description to sample from. Lengths are an empirical joint sample; arrivals follow rate and burstiness."""

    name: str
    rate_req_per_s: float  # of the busiest hour where there are several
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
    cached_tokens: IntArray | None = None  # [m] prompt tokens of each row found in a warm cache; None: by the ratio
    gaps: Gaps | None = None  # measured inter-arrival times; None: a gamma renewal process of `arrival_scv`
    hourly_req_per_s: tuple[float, ...] = ()  # rate of each hour, in order; () for one rate throughout
    notes: tuple[str, ...] = ()
    profile: Profile | None = None  # None: the rate is the same all the time

    def at_rate(self, rate_req_per_s: float) -> Workload:
        """The same requests arriving faster or slower; hours and the trace are scaled along. Raises InputError."""
        check_rate(rate_req_per_s)
        factor = rate_req_per_s / self.rate_req_per_s
        trace = self.trace and replace(self.trace, arrival_s=self.trace.arrival_s / factor)
        hourly = tuple(rate * factor for rate in self.hourly_req_per_s)
        return replace(self, rate_req_per_s=rate_req_per_s, trace=trace, hourly_req_per_s=hourly)

    def at_hour(self, hour: int) -> Workload:
        """This workload at the rate of one hour of `hourly_req_per_s`. Raises InputError for an hour it lacks."""
        if not 0 <= hour < len(self.hourly_req_per_s):
            raise InputError(Problem(f"no hour {hour}", self.name, "hour", f"0 to {len(self.hourly_req_per_s) - 1}"))
        return replace(self.at_rate(self.hourly_req_per_s[hour]), hourly_req_per_s=())


LOWEST_RATE, HIGHEST_RATE = 1e-4, 1e6
"""Requests per second that a plan can be made for: one in three hours, and more than any fleet serves."""


def check_rate(rate_req_per_s: float, *, where: str = "", key: str = "rate") -> None:
    """Raise InputError unless the rate is a positive, finite number of requests per second."""
    if not LOWEST_RATE <= rate_req_per_s <= HIGHEST_RATE:
        expected = f"a finite number above 0, in requests per second ({LOWEST_RATE:g} to {HIGHEST_RATE:g})"
        raise InputError(Problem(f"is {rate_req_per_s:g} requests per second", where, key, expected))


def load_workload(
    name_or_path: str | Path,
    rate_req_per_s: float | None = None,
    *,
    start_s: float = 0.0,
    end_s: float | None = None,
    columns: Mapping[str, str] | None = None,
) -> Workload:
    """Load a workload from whatever names one.

    `name_or_path` is a name that ships with the project (`azure-conv`), a form (`fixed:1024/200`,
    `lognormal:mean=1155,cv=1.1/mean=211,cv=1`), a Workload file, or a trace in any format of
    `splitplan.planner.spec.trace`. `rate_req_per_s` replaces the rate that comes with it, and is needed where none
    does. `start_s` and `end_s` cut a window out of a trace, in seconds from its first arrival; `columns` names its
    columns by role (time, input, output, class) where they are not known ones.

    Raises SplitplanError for what is not there, cannot be read, holds no request, or leaves the rate open: traffic
    that is missing is never taken for zero.
    """
    from splitplan.planner.spec.workload_build import read_workload  # pydantic and yaml only where a file is read

    return read_workload(name_or_path, rate_req_per_s, start_s=start_s, end_s=end_s, columns=columns or {})


def sample(workload: Workload, n: int, seed: int) -> Requests:
    """`n` requests, the same for the same seed.

    A description draws lengths from its joint sample and inter-arrival times from its measured gaps, or else from a
    gamma distribution of mean 1/rate and squared coefficient of variation `arrival_scv`; draws are independent, so
    correlation between neighbours is lost but for a `profile`, which starts at a random place and keeps its seconds at
    every rate. A trace is replayed from a random place, and starts over at its end with
    prefix hashes of its own. Lengths do not depend on the rate: seeds give common random numbers across rates.
    """
    if n < 1:
        raise InputError(Problem(f"asks for {n} requests", key="n", expected="at least 1"))
    if workload.trace is not None:
        return _replay(workload.trace, workload.rate_req_per_s, n, seed)
    arrivals, lengths, places = (np.random.default_rng(child) for child in np.random.SeedSequence(seed).spawn(3))
    rows = lengths.choice(len(workload.weight), size=n, p=workload.weight)
    input_tokens = workload.input_tokens[rows]
    if workload.cached_tokens is not None:
        cached = workload.cached_tokens[rows]
    else:
        cached = np.minimum(np.rint(workload.prefix_hit_ratio * input_tokens).astype(np.int64), input_tokens - 1)
    arrival_s = np.cumsum(_unit_gaps(workload, n, arrivals)) / workload.rate_req_per_s
    if workload.profile is not None:
        arrival_s = _with_profile(arrival_s, workload.profile, places.uniform())
    return Requests(
        arrival_s=arrival_s,
        input_tokens=input_tokens,
        output_tokens=workload.output_tokens[rows],
        class_index=workload.class_index[rows],
        cached_tokens=cached,
    )


def _unit_gaps(workload: Workload, n: int, rng: np.random.Generator) -> FloatArray:
    """Inter-arrival times with mean 1."""
    if workload.gaps is not None:
        return rng.choice(workload.gaps.value, size=n, p=workload.gaps.weight)
    if workload.arrival_scv == 0:
        return np.ones(n)
    return rng.gamma(1 / workload.arrival_scv, workload.arrival_scv, size=n)


def _with_profile(steady_s: FloatArray, profile: Profile, place: float) -> FloatArray:
    """Arrivals of a steady process on the clock of a profile, from a place (0 to 1) on: t with Λ(t) = steady time.

    Λ is the integral of the factors; it grows by the profile's whole length in every round, since their mean is 1.
    """
    length_s = profile.step_s * len(profile.factor)
    edges_s = profile.step_s * np.arange(len(profile.factor) + 1)
    grown_s = profile.step_s * np.concatenate([[0.0], np.cumsum(profile.factor)])
    start_s = place * length_s
    rounds, rest_s = np.divmod(steady_s + np.interp(start_s, edges_s, grown_s), length_s)
    return np.asarray(rounds * length_s + np.interp(rest_s, grown_s, edges_s) - start_s)


def _replay(trace: Requests, rate_req_per_s: float, n: int, seed: int) -> Requests:
    length = len(trace)
    first = int(np.random.default_rng(seed).integers(length)) if n < length else 0
    position = np.arange(first, first + n)
    row, lap = position % length, position // length
    lap_s = trace.arrival_s[-1] - trace.arrival_s[0] + 1 / rate_req_per_s  # one mean gap between last and first
    requests = trace.take(row)
    arrival_s = requests.arrival_s + lap * lap_s
    prefix = requests.prefix
    if prefix is not None and lap[-1] > 0 and len(prefix.hashes):
        span = int(prefix.hashes.max()) - int(prefix.hashes.min()) + 1
        step = span if span < LARGEST_SPAN_OF_COUNTS else LAP_STEP
        prefix = replace(prefix, hashes=prefix.hashes + np.repeat(lap, np.diff(prefix.offsets)) * step)
    return replace(requests, arrival_s=arrival_s - arrival_s[0], prefix=prefix)
