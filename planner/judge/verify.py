"""Verification: the assigned plan replayed by the simulator, and what its misses are due to.

A target holds when it holds at the unfavourable end of the 95 % interval: a percentile by its upper end, the share of
requests that meet everything by its lower end.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from splitplan.planner.inputs import SolveInputs
from splitplan.planner.patience import seconds_left
from splitplan.planner.plan import ClassTarget, ClassVerdict, Estimate, Verification
from splitplan.planner.simulate.build import Routing
from splitplan.planner.simulate.compiled import has_numba
from splitplan.planner.simulate.deployment import Deployment
from splitplan.planner.simulate.parallel import Parallel
from splitplan.planner.simulate.results import Results, Run, combine
from splitplan.planner.simulate.run import Form
from splitplan.planner.simulate.statistics import Interval, percentile_interval, share_interval
from splitplan.planner.simulate.sweep import Case, sweep
from splitplan.planner.spec.length_buckets import PromptRange
from splitplan.planner.spec.slo import Slo
from splitplan.planner.spec.workload import Requests, sample

BoolArray = NDArray[np.bool_]
Blame = Mapping[str, float]
Limits = Callable[[NDArray[np.int64]], NDArray[np.int64]]
"""Input tokens of each request → the longest request, prompt and answer, that is taken with such a prompt."""
ROUTING: Routing = "least_loaded"
"""The router that plans assume: the instance with the fewest requests for its share."""


@dataclass(frozen=True, slots=True)
class Effort:
    """How much is simulated: a screening of every candidate, a full verification of what is shown."""

    screen_requests: int
    verify_requests: int
    num_seeds: int
    max_attempts: int  # programs solved per variant
    max_probes: int  # attempts to do with one instance less
    rate_probes: int = 3  # lower rates tried to see what a plan that missed sustains
    form: Form = "auto"  # of the simulator


FAST = Effort(
    screen_requests=4_000,
    verify_requests=16_000,
    num_seeds=3,
    max_attempts=14,
    max_probes=5,
    rate_probes=3,
    form="numba",
)
"""With the compiled simulator (extra [fast])."""

PLAIN = Effort(
    screen_requests=1_200,
    verify_requests=2_500,
    num_seeds=2,
    max_attempts=10,
    max_probes=2,
    rate_probes=2,
    form="python",
)
"""In plain Python: fewer requests, and so wider intervals, which are shown."""


def default_effort() -> Effort:
    """FAST where numba is installed, else PLAIN."""
    return FAST if has_numba() else PLAIN


class Judge:
    """Replays deployments on the same sampled requests, so that plans are compared under common random numbers."""

    def __init__(
        self, inputs: SolveInputs, effort: Effort, *, limits: Limits | None = None, parallel: Parallel = 1
    ) -> None:
        self.inputs = inputs
        self.parallel = parallel  # how the seeds of one judgement are spread
        self.limits = limits or (lambda prompts: np.full(len(prompts), inputs.max_model_len))
        self.effort = effort
        self._samples: dict[tuple[int, int], Requests] = {}

    def screen(
        self, deployment: Deployment, rate_scale: float = 1.0, class_scale: Sequence[float] = ()
    ) -> tuple[Verification, Blame]:
        """A short run with one seed, at a multiple of the asked rate: passed or not, and who is to blame.

        `class_scale`: multiples by class where they differ; in proportion, so that all together come to `rate_scale`.
        """
        return self._judge(deployment, self.effort.screen_requests, 1, rate_scale, class_scale)

    def verify(
        self, deployment: Deployment, rate_scale: float = 1.0, class_scale: Sequence[float] = ()
    ) -> tuple[Verification, Blame]:
        """The run that the plan reports."""
        effort = self.effort
        return self._judge(deployment, effort.verify_requests, effort.num_seeds, rate_scale, class_scale)

    def _judge(
        self,
        deployment: Deployment,
        num_requests: int,
        num_seeds: int,
        rate_scale: float,
        class_scale: Sequence[float],
    ) -> tuple[Verification, Blame]:
        seconds_left()
        samples = [self._sample(num_requests, index) for index in range(num_seeds)]
        if len(set(class_scale)) > 1:
            samples = [thinned(requests, class_scale, index) for index, requests in enumerate(samples)]
        if rate_scale != 1.0:
            samples = [replace(requests, arrival_s=requests.arrival_s / rate_scale) for requests in samples]
        options = {"routing": ROUTING, "form": self.effort.form}
        cases = [
            Case(
                deployment,
                requests,
                options | {"seed": self.inputs.question.seed + index, "itl_limit_s": self._itl_limit_s(requests)},
            )
            for index, requests in enumerate(samples)
        ]
        runs = sweep(cases, parallel=self.parallel)
        results = Results(
            tuple(
                _as_clients_see(run, requests, self.inputs, self.limits(requests.input_tokens))
                for run, requests in zip(combine(runs).runs, samples, strict=True)
            )
        )
        classes = [requests.class_index for requests in samples]
        slos = self.inputs.class_slos
        verdict = _verdict(results, classes, slos, self.inputs, rate_scale)
        ranges = deployment.prompt_ranges
        if len(ranges) > 1:
            edges = np.array([prompts.up_to for prompts in ranges[:-1]])
            ranks = [np.searchsorted(edges, requests.input_tokens) for requests in samples]
            verdict = verdict.model_copy(update={"lengths": _length_verdicts(results, ranks, classes, slos, ranges)})
        return verdict, {} if verdict.passed else _blame(results, classes, slos, deployment)

    def _itl_limit_s(self, requests: Requests) -> NDArray[np.float64] | None:
        """What each request's inter-token times are counted against, where any class has a target on them."""
        slos = self.inputs.class_slos
        if all(slo.itl is None for slo in slos):
            return None
        limits: NDArray[np.float64] = np.array([_limit_s(slo, "itl") for slo in slos])[requests.class_index]
        return limits

    def _sample(self, num_requests: int, index: int) -> Requests:
        key = (num_requests, index)
        if key not in self._samples:
            self._samples[key] = sample(self.inputs.workload, num_requests, self.inputs.question.seed + 1 + index)
        return self._samples[key]


def thinned(requests: Requests, class_scale: Sequence[float], seed: int) -> Requests:
    """The same requests with each class made rarer in proportion, the commonest not at all; the rate stays."""
    share = np.array(class_scale) / max(class_scale)
    kept = np.random.default_rng(seed).random(len(requests)) < share[requests.class_index]
    fewer = requests.take(np.flatnonzero(kept))
    return replace(fewer, arrival_s=fewer.arrival_s * (len(fewer) / len(requests)))


def _as_clients_see(run: Run, requests: Requests, inputs: SolveInputs, max_model_len: NDArray[np.int64]) -> Run:
    """The run from outside: the engine's front end comes on top, and requests too long for it are refused."""
    front_end_s = inputs.front_end_s(requests.input_tokens)
    front_end_s[requests.input_tokens + requests.output_tokens > max_model_len] = np.inf
    return replace(run, ttft_s=run.ttft_s + front_end_s, e2e_s=run.e2e_s + front_end_s)


def _verdict(
    results: Results,
    classes: Sequence[NDArray[np.int64]],
    slos: Sequence[Slo],
    inputs: SolveInputs,
    rate_scale: float,
) -> Verification:
    met = [_met(run, index, slos)[run.warmup :] for run, index in zip(results.runs, classes, strict=True)]
    attainment = share_interval([values.astype(np.float64) for values in met])
    misses = _misses(results, classes, slos, inputs)
    wanted = max(slo.attainment for slo in slos) if len(slos) == 1 else inputs.slo.attainment
    if attainment.low < wanted:
        misses.append(
            f"{attainment.value:.2%} of requests met all targets (at least {attainment.low:.2%}) < {wanted:.4g}"
        )
    return Verification(
        passed=not misses,
        num_requests=results.num_requests,
        num_seeds=len(results.runs),
        rate_req_per_s=_tidy(inputs.workload.rate_req_per_s * rate_scale),
        ttft_ms=_in_ms(results.summary("ttft")),
        tpot_ms=_in_ms(results.summary("tpot")),
        e2e_ms=_in_ms(results.summary("e2e")),
        itl_ms=_in_ms(results.itl_summary()) if any(slo.itl for slo in slos) else {},
        attainment=_estimate(attainment, 1.0),
        misses=tuple(misses),
        classes=_class_verdicts(results, classes, slos, inputs, met) if len(slos) > 1 else {},
    )


def _class_verdicts(
    results: Results,
    classes: Sequence[NDArray[np.int64]],
    slos: Sequence[Slo],
    inputs: SolveInputs,
    met: Sequence[BoolArray],
) -> dict[str, ClassVerdict]:
    """Each class by its own targets."""
    found = {}
    for number, slo in enumerate(slos):
        verdict = _part_verdict(results, classes, number, slo, met)
        if verdict is not None:
            found[inputs.workload.classes[number].name] = verdict
    return found


def _length_verdicts(
    results: Results,
    ranks: Sequence[NDArray[np.int64]],
    classes: Sequence[NDArray[np.int64]],
    slos: Sequence[Slo],
    ranges: Sequence[PromptRange],
) -> dict[str, ClassVerdict]:
    """Each range of prompt lengths on its own; the targets are those of the class as a whole."""
    met = [_met(run, index, slos)[run.warmup :] for run, index in zip(results.runs, classes, strict=True)]
    shared = slos[0] if len(slos) == 1 else Slo(None, None, None, None, 0.5)
    found = {}
    for number, prompts in enumerate(ranges):
        verdict = _part_verdict(results, ranks, number, shared, met)
        if verdict is not None:
            found[str(prompts)] = verdict
    return found


def _part_verdict(
    results: Results, parts: Sequence[NDArray[np.int64]], number: int, slo: Slo, met: Sequence[BoolArray]
) -> ClassVerdict | None:
    """The requests whose part has this number, by the targets of `slo`; None where there are none."""
    targets = []
    for name in ("ttft", "tpot", "e2e"):
        target = getattr(slo, name)
        values = [_of_class(run, index, number, name) for run, index in zip(results.runs, parts, strict=True)]
        if target is None or not sum(len(part) for part in values):
            continue
        value_ms = percentile_interval(values, target.percentile).value * 1e3
        if np.isfinite(value_ms):
            label = f"{name.upper()} p{target.percentile:g}"
            targets.append(ClassTarget(name=label, value_ms=_tidy(value_ms), limit_ms=target.seconds * 1e3))
    kept = zip(results.runs, parts, met, strict=True)
    own = [values[index[run.warmup :] == number].astype(np.float64) for run, index, values in kept]
    if not any(len(values) for values in own):
        return None
    return ClassVerdict(targets=tuple(targets), attainment=_estimate(share_interval(own), 1.0))


def _met(run: Run, classes: NDArray[np.int64], slos: Sequence[Slo]) -> BoolArray:
    """Which requests met every bound of their class."""
    met = np.ones(len(run.ttft_s), dtype=np.bool_)
    for values, name in ((run.ttft_s, "ttft"), (run.tpot_s, "tpot"), (run.e2e_s, "e2e")):
        limits = np.array([_limit_s(slo, name) for slo in slos])[classes]
        met &= ~(values > limits)  # a NaN TPOT (one token) meets any bound
    return met & ~_itl_missed(run, classes, slos)


def _itl_missed(run: Run, classes: NDArray[np.int64], slos: Sequence[Slo]) -> BoolArray:
    """Which requests miss their class's target on inter-token times, by their own gaps."""
    missed = np.zeros(len(run.ttft_s), dtype=np.bool_)
    for number, slo in enumerate(slos):
        if slo.itl is not None:
            missed |= (classes == number) & ~run.itl_met(slo.itl)
    return missed


def _limit_s(slo: Slo, name: str) -> float:
    target = getattr(slo, name)
    return float("inf") if target is None else float(target.seconds)


def _misses(
    results: Results, classes: Sequence[NDArray[np.int64]], slos: Sequence[Slo], inputs: SolveInputs
) -> list[str]:
    """Every percentile target that does not hold at the upper end of its interval."""
    found = []
    for number, slo in enumerate(slos):
        label = f"{inputs.workload.classes[number].name}: " if len(slos) > 1 else ""
        for name in ("ttft", "tpot", "e2e"):
            target = getattr(slo, name)
            if target is None:
                continue
            values = [_of_class(run, index, number, name) for run, index in zip(results.runs, classes, strict=True)]
            if not sum(len(part) for part in values):
                continue
            interval = percentile_interval(values, target.percentile)
            if not interval.high <= target.seconds:
                found.append(f"{label}{_exceeds(name.upper(), target.percentile, interval, target.seconds)}")
        if slo.itl is not None:
            share = results.slow_gap_share([index == number for index in classes])
            if max(share.value, share.high if np.isfinite(share.high) else 0.0) > 1 - slo.itl.percentile / 100:
                what = f"{share.value:.2%} of inter-token times (up to {share.high:.2%}) exceed"
                found.append(f"{label}ITL p{slo.itl.percentile:g}: {what} {slo.itl.seconds * 1e3:g} ms")
    return found


def _exceeds(name: str, percentile: float, interval: Interval, limit_s: float) -> str:
    value, high = interval.value * 1e3, interval.high * 1e3
    if not np.isfinite(value):
        return f"{name} p{percentile:g}: requests were rejected or never finished"
    if not np.isfinite(high) and value <= limit_s * 1e3:
        return f"{name} p{percentile:g} {value:.0f} ms, of {limit_s * 1e3:g} ms: too few requests to be sure"
    up_to = f" (up to {high:.0f})" if np.isfinite(high) else ""
    return f"{name} p{percentile:g} {value:.0f} ms{up_to} > {limit_s * 1e3:g} ms"


def _of_class(run: Run, classes: NDArray[np.int64], number: int, name: str) -> NDArray[np.float64]:
    values = {"ttft": run.ttft_s, "tpot": run.tpot_s, "e2e": run.e2e_s}[name][run.warmup :]
    chosen: NDArray[np.float64] = values[(classes[run.warmup :] == number) & ~np.isnan(values)]
    return chosen


def _blame(
    results: Results, classes: Sequence[NDArray[np.int64]], slos: Sequence[Slo], deployment: Deployment
) -> Blame:
    """By instance: the share of its requests that missed a target because of it.

    TPOT is lost where tokens are decoded. TTFT is lost before the prefill (queue) or between prefill and first token
    (transfer, decode admission): whichever took more of that request's time. What never finished is on both.
    """
    missed, served = np.zeros(len(deployment.instances)), np.zeros(len(deployment.instances))
    for run, index in zip(results.runs, classes, strict=True):
        late = run.ttft_s > np.array([_limit_s(slo, "ttft") for slo in slos])[index]
        slow = run.tpot_s > np.array([_limit_s(slo, "tpot") for slo in slos])[index]
        slow |= run.e2e_s > np.array([_limit_s(slo, "e2e") for slo in slos])[index]
        slow |= _itl_missed(run, index, slos)
        lost = ~np.isfinite(run.e2e_s)
        split = run.decoder >= 0
        before = ~split | (np.nan_to_num(run.queue_s) >= np.nan_to_num(run.transfer_s)) | lost
        for places, guilty in ((run.entry, (late & before) | (slow & ~split)), (run.decoder, slow | (late & ~before))):
            known = places >= 0
            missed += np.bincount(places[known], guilty[known], len(missed))
            served += np.bincount(places[known], minlength=len(served))
    names = (instance.name for instance in deployment.instances)
    return {name: float(bad / max(all_, 1)) for name, bad, all_ in zip(names, missed, served, strict=True)}


def _in_ms(summary: dict[str, Interval]) -> dict[str, Estimate]:
    return {name: _estimate(interval, 1e3) for name, interval in summary.items() if np.isfinite(interval.value)}


def _estimate(interval: Interval, scale: float) -> Estimate:
    low, high = (bound if np.isfinite(bound) else interval.value for bound in (interval.low, interval.high))
    return Estimate(value=_tidy(interval.value * scale), low=_tidy(low * scale), high=_tidy(high * scale))


def _tidy(value: float) -> float:
    """Six significant digits: enough for people, the same text everywhere."""
    return float(f"{value:.6g}")
