"""What a simulation found: latencies of every request, and what can be said of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from splitplan.catalogs.errors import InputError, Problem
from splitplan.planner.simulate import layout as at
from splitplan.planner.simulate.build import GAP_EDGES_S
from splitplan.planner.simulate.deployment import Deployment
from splitplan.planner.simulate.rows import lane_rows
from splitplan.planner.simulate.statistics import (
    Interval,
    mean_interval,
    percentile_interval,
    ratio_interval,
    share_interval,
)
from splitplan.planner.spec.slo import Slo, Target
from splitplan.planner.spec.workload import FloatArray, IntArray

BoolArray = NDArray[np.bool_]
PERCENTILES = (50.0, 90.0, 95.0, 99.0)


@dataclass(frozen=True, slots=True)
class InstanceUse:
    """What one instance did, over the whole run."""

    name: str
    utilisation: float  # share of the time in which it ran steps
    mean_batch: float  # decoding sequences, while busy
    mean_kv_share: float  # KV blocks held, of all, while busy
    num_steps: int
    num_served: int
    num_preemptions: int


@dataclass(frozen=True, slots=True)
class Run:
    """One simulated sequence of requests. Arrays are in order of arrival, in seconds.

    A request that was rejected, or had not finished when the run was stopped, has infinite latencies. TPOT is
    (E2E − TTFT) / (output tokens − 1), NaN for a single token.
    """

    arrival_s: FloatArray
    ttft_s: FloatArray
    tpot_s: FloatArray
    e2e_s: FloatArray
    queue_s: FloatArray  # arrival → first scheduled; NaN where the request went straight to decode
    transfer_s: FloatArray  # end of prefill → KV at the decode instance; NaN without a transfer
    entry: IntArray  # index of the instance that prefilled it; −1 when rejected
    decoder: IntArray  # index of the decode instance; −1 when there was none
    gaps: IntArray  # inter-token times of the request: output tokens − 1
    slow_gaps: IntArray  # of them, those longer than its limit
    itl_limit_s: FloatArray  # that limit; infinite where none was given
    preemptions: IntArray
    cached_tokens: IntArray  # prompt tokens that needed no prefill
    num_arrived: int
    num_finished: int
    num_rejected: int
    num_in_flight: int
    num_restarts: int  # requests that began again because their instance failed
    num_events: int
    end_s: float
    output_tokens: int  # of finished requests
    instances: tuple[InstanceUse, ...]
    gap_counts: IntArray  # inter-token times, by bins of GAP_EDGES_S
    warmup: int  # leading requests that statistics leave out

    def itl_met(self, target: Target) -> BoolArray:
        """Which requests meet a target on ITL: so many of their own gaps as the percentile says are within the limit.

        So p99 lets a request have one gap in a hundred that is longer; one with a single token has none and meets it.
        """
        return self.slow_gaps <= self.gaps - np.ceil(self.gaps * target.percentile / 100 - 1e-9)

    @property
    def num_preemptions(self) -> int:
        """Times a sequence lost its KV and was computed again."""
        return int(self.preemptions.sum())


@dataclass(frozen=True, slots=True)
class Results:
    """One or more runs of the same deployment under different seeds, judged together."""

    runs: tuple[Run, ...]

    @property
    def num_requests(self) -> int:
        """Requests that statistics count: all runs, without warm-up."""
        return sum(len(run.ttft_s) - run.warmup for run in self.runs)

    @property
    def num_rejected(self) -> int:
        """Requests that could never fit, in all runs."""
        return sum(run.num_rejected for run in self.runs)

    @property
    def num_preemptions(self) -> int:
        """Preemptions in all runs."""
        return sum(run.num_preemptions for run in self.runs)

    @property
    def ttft_s(self) -> FloatArray:
        """TTFT of all counted requests."""
        return np.concatenate(self._values("ttft"))

    @property
    def tpot_s(self) -> FloatArray:
        """TPOT of all counted requests with more than one output token."""
        return np.concatenate(self._values("tpot"))

    @property
    def e2e_s(self) -> FloatArray:
        """End-to-end time of all counted requests."""
        return np.concatenate(self._values("e2e"))

    @property
    def request_rate_per_s(self) -> float:
        """Finished requests per second, first arrival to last event."""
        return sum(run.num_finished for run in self.runs) / self._seconds()

    @property
    def output_tokens_per_s(self) -> float:
        """Output tokens of finished requests per second."""
        return sum(run.output_tokens for run in self.runs) / self._seconds()

    def percentile(self, metric: str, percentile: float) -> Interval:
        """A percentile of "ttft", "tpot" or "e2e" in seconds, with its 95 % interval."""
        return percentile_interval(self._values(metric), percentile)

    def mean(self, metric: str) -> Interval:
        """The mean of "ttft", "tpot" or "e2e" in seconds, with its 95 % interval."""
        return mean_interval(self._values(metric))

    def summary(self, metric: str) -> dict[str, Interval]:
        """Mean and percentiles by the names that plans use: "mean", "p50", "p90", "p95", "p99"."""
        found = {"mean": self.mean(metric)}
        return found | {f"p{percentile:g}": self.percentile(metric, percentile) for percentile in PERCENTILES}

    def itl_percentile_s(self, percentile: float) -> float:
        """A percentile over all inter-token times, to 1 % (upper edge of its bin); NaN when there are none."""
        counts = np.sum([run.gap_counts for run in self.runs], axis=0)
        total = counts.sum()
        if total == 0:
            return math.nan
        index = int(np.searchsorted(np.cumsum(counts), math.ceil(total * percentile / 100 - 1e-9)))
        return float(GAP_EDGES_S[min(index + 1, len(GAP_EDGES_S) - 1)])

    def itl_summary(self) -> dict[str, Interval]:
        """Percentiles over all inter-token times, as `summary` names them; without intervals."""
        found = {f"p{percentile:g}": self.itl_percentile_s(percentile) for percentile in PERCENTILES}
        return {name: Interval(value, -math.inf, math.inf) for name, value in found.items()}

    def slow_gap_share(self, chosen: Sequence[BoolArray] | None = None) -> Interval:
        """The share of inter-token times, of all requests or [run][n] those chosen, that were longer than their limit.

        A percentile over all tokens, as `vllm bench` reports ITL, is within the limit when this is at most 1 − p.
        """
        everyone = [np.ones(len(run.gaps), dtype=np.bool_) for run in self.runs]
        kept = [
            own & (np.arange(len(own)) >= run.warmup) for run, own in zip(self.runs, chosen or everyone, strict=True)
        ]
        slow = [run.slow_gaps[keep].astype(np.float64) for run, keep in zip(self.runs, kept, strict=True)]
        gaps = [run.gaps[keep].astype(np.float64) for run, keep in zip(self.runs, kept, strict=True)]
        return ratio_interval(slow, gaps)

    def attainment(self, slo: Slo) -> Interval:
        """The share of requests that meet all of TTFT, TPOT, E2E and ITL, as bounds on each request.

        Rejected and unfinished requests miss. A request meets a target on ITL when the target's percentile of its own
        inter-token times is within it (`Run.itl_met`); this needs `simulate(…, itl_limit_s=slo.itl.seconds)`.
        """
        return share_interval([_met(run, slo).astype(np.float64) for run in self.runs])

    def _values(self, metric: str) -> list[FloatArray]:
        arrays = [{"ttft": run.ttft_s, "tpot": run.tpot_s, "e2e": run.e2e_s}[metric][run.warmup :] for run in self.runs]
        return [array[~np.isnan(array)] for array in arrays]

    def _seconds(self) -> float:
        return sum(max(run.end_s - float(run.arrival_s[0]), 1e-12) for run in self.runs)


def combine(results: Sequence[Results]) -> Results:
    """The runs of several simulations of the same deployment as one result."""
    return Results(tuple(run for result in results for run in result.runs))


def _met(run: Run, slo: Slo) -> BoolArray:
    met = np.isfinite(run.e2e_s)
    for target, values in ((slo.ttft, run.ttft_s), (slo.tpot, run.tpot_s), (slo.e2e, run.e2e_s)):
        if target is not None:
            met &= np.isnan(values) | (values <= target.seconds)
    if slo.itl is not None:
        if (run.itl_limit_s != slo.itl.seconds).any():
            raise InputError(
                Problem(
                    f"the run did not count inter-token times beyond {slo.itl.seconds} s",
                    next_step=f"simulate(…, itl_limit_s={slo.itl.seconds})",
                )
            )
        met &= run.itl_met(slo.itl)
    return met[run.warmup :]


def read_run(world: at.World, deployment: Deployment, warmup: int, itl_limit_s: float | FloatArray = np.inf) -> Run:
    """The outcome that lies in the arrays of a finished simulation."""
    all_ints, all_floats = np.asarray(world.ints, dtype=np.int64), np.asarray(world.floats, dtype=np.float64)
    rows = slice(int(all_ints[at.G_FIRST_REQUEST]), int(all_ints[at.G_END_REQUEST]))
    ints, floats = all_ints[rows].reshape(-1, at.R_WIDTH), all_floats[rows].reshape(-1, at.R_WIDTH)
    finished = ints[:, at.R_STATE] == at.FINISHED
    arrival_s, first_s, finish_s = (floats[:, k] for k in (at.R_ARRIVAL_S, at.R_FIRST_S, at.R_FINISH_S))
    ttft_s = np.where(finished, first_s - arrival_s, np.inf)
    e2e_s = np.where(finished, finish_s - arrival_s, np.inf)
    gaps = ints[:, at.R_OUTPUT] - 1
    with np.errstate(invalid="ignore"):
        tpot_s = np.where(finished, (finish_s - first_s) / np.maximum(gaps, 1), np.inf)
    tpot_s[gaps == 0] = np.nan
    end_s = float(all_floats[at.G_NOW])
    gap_counts = all_ints[all_ints[at.G_GAPS] :][: len(GAP_EDGES_S)].copy()
    index_of = _instance_of_handle(deployment, int(all_ints[at.G_FIRST_ENGINE]))
    return Run(
        arrival_s=arrival_s.copy(),
        ttft_s=ttft_s,
        tpot_s=tpot_s,
        e2e_s=e2e_s,
        queue_s=_span(floats, at.R_ARRIVAL_S, at.R_STARTED_S),
        transfer_s=_span(floats, at.R_PREFILLED_S, at.R_DELIVERED_S),
        entry=index_of(ints[:, at.R_ENTRY]),
        decoder=index_of(ints[:, at.R_DECODER]),
        gaps=gaps,
        slow_gaps=ints[:, at.R_SLOW_GAPS].copy(),
        itl_limit_s=np.broadcast_to(np.asarray(itl_limit_s, dtype=np.float64), len(gaps)).copy(),
        preemptions=ints[:, at.R_PREEMPTIONS].copy(),
        cached_tokens=ints[:, at.R_CACHED].copy(),
        num_arrived=int(all_ints[at.G_ARRIVED]),
        num_finished=int(all_ints[at.G_FINISHED]),
        num_rejected=int(all_ints[at.G_REJECTED]),
        num_in_flight=int(all_ints[at.G_IN_FLIGHT]),
        num_restarts=int(all_ints[at.G_RESTARTS]),
        num_events=int(all_ints[at.G_EVENTS]),
        end_s=end_s,
        output_tokens=int(ints[finished, at.R_OUTPUT].sum()),
        instances=_instance_uses(all_ints, all_floats, deployment, end_s),
        gap_counts=gap_counts,
        warmup=warmup,
    )


def _span(floats: FloatArray, start: int, end: int) -> FloatArray:
    known = (floats[:, start] >= 0) & (floats[:, end] >= 0)
    return np.where(known, floats[:, end] - floats[:, start], np.nan)


def _instance_of_handle(deployment: Deployment, first_engine: int) -> Callable[[IntArray], IntArray]:
    homes = np.array(lane_rows(deployment), dtype=np.int64) * at.E_WIDTH + first_engine

    def index_of(handles: IntArray) -> IntArray:
        return np.where(handles >= 0, np.searchsorted(homes, handles), -1)

    return index_of


def _instance_uses(ints: IntArray, floats: FloatArray, deployment: Deployment, end_s: float) -> tuple[InstanceUse, ...]:
    rows = slice(int(ints[at.G_FIRST_ENGINE]), int(ints[at.G_END_ENGINE]))
    lane_ints, lane_floats = ints[rows].reshape(-1, at.E_WIDTH), floats[rows].reshape(-1, at.E_WIDTH)
    uses = []
    for instance, first in zip(deployment.instances, lane_rows(deployment), strict=True):
        i = lane_ints[first : first + max(instance.step.num_stages, 1)]
        f = lane_floats[first : first + max(instance.step.num_stages, 1)]
        busy_s = max(float(f[:, at.E_BUSY_S].sum()), 1e-300)
        uses.append(
            InstanceUse(
                name=instance.name,
                utilisation=float(f[:, at.E_BUSY_S].sum()) / max(end_s, 1e-300),
                mean_batch=float(f[:, at.E_BATCH_S].sum()) / busy_s,
                mean_kv_share=float(f[:, at.E_KV_PAGE_S].sum()) / busy_s / int(i[0, at.E_KV_PAGES]),
                num_steps=int(i[:, at.E_STEP_COUNT].sum()),
                num_served=int(i[0, at.E_SERVED]),
                num_preemptions=int(i[:, at.E_PREEMPTIONS].sum()),
            )
        )
    return tuple(uses)
