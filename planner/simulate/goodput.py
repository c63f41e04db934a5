"""The highest rate a deployment sustains, and runs that go on until their interval is tight."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from splitplan.catalogs.errors import InputError, Problem
from splitplan.planner.simulate.build import Routing
from splitplan.planner.simulate.deployment import Deployment
from splitplan.planner.simulate.results import Results, combine
from splitplan.planner.simulate.run import Form, simulate
from splitplan.planner.simulate.statistics import Interval
from splitplan.planner.spec.slo import Slo
from splitplan.planner.spec.workload import Requests

MOST_DOUBLINGS = 20


@dataclass(frozen=True, slots=True)
class Goodput:
    """The answer of a search. `trials` are all rates that were simulated, in order, with their attainment."""

    rate_req_per_s: float  # the highest rate found to meet the goal; 0 when none does
    attainment: Interval  # at that rate
    trials: tuple[tuple[float, float], ...]


def goodput(
    deployment: Deployment,
    samples: Sequence[Requests],
    slo: Slo,
    *,
    tolerance: float = 0.01,
    routing: Routing = "weighted",
    form: Form = "auto",
) -> Goodput:
    """The highest rate at which the share of requests that meet all targets is at least `slo.attainment`.

    As DistServe (OSDI 2024) defines it, by bisection to within `tolerance` of the rate. Every rate serves the same
    `samples` with their arrival times stretched, and the same draws (common random numbers), so that rates differ by
    load alone. Divide by GPUs for goodput per GPU.
    """
    if not samples or any(len(requests) < 2 for requests in samples):
        raise InputError(Problem("too few requests to search for a rate", expected="samples of two requests or more"))
    trials: list[tuple[float, float]] = []
    found: dict[float, Interval] = {}

    def meets(rate: float) -> bool:
        runs = [
            simulate(
                deployment,
                at_rate(requests, rate),
                seed=seed,
                routing=routing,
                itl_limit_s=slo.itl.seconds if slo.itl else None,
                form=form,
            )
            for seed, requests in enumerate(samples)
        ]
        found[rate] = combine(runs).attainment(slo)
        trials.append((rate, found[rate].value))
        return found[rate].value >= slo.attainment

    good, bad = _bracket(meets, natural_rate(samples[0]))
    while good > 0 and bad - good > tolerance * good:
        middle = (good + bad) / 2
        if meets(middle):
            good = middle
        else:
            bad = middle
    return Goodput(good, found.get(good, Interval(0.0, 0.0, 0.0)), tuple(trials))


def natural_rate(requests: Requests) -> float:
    """Requests per second of a sample as it is."""
    seconds = float(requests.arrival_s[-1] - requests.arrival_s[0])
    return (len(requests) - 1) / seconds if seconds > 0 else float(len(requests))


def at_rate(requests: Requests, rate_req_per_s: float) -> Requests:
    """The same requests at another rate: arrival times stretched, starting at 0."""
    times = np.asarray(requests.arrival_s, dtype=np.float64)
    return replace(requests, arrival_s=(times - times[0]) * (natural_rate(requests) / rate_req_per_s))


def _bracket(meets: Callable[[float], bool], start: float) -> tuple[float, float]:
    """A rate that meets the goal and one at most twice as high that does not; (0, rate) when even a crawl fails."""
    rate = start
    if meets(rate):
        for _ in range(MOST_DOUBLINGS):
            if not meets(2 * rate):
                break
            rate *= 2
        return rate, 2 * rate
    for _ in range(MOST_DOUBLINGS):
        rate /= 2
        if meets(rate):
            return rate, 2 * rate
    return 0.0, rate


def simulate_until(
    deployment: Deployment,
    draw: Callable[[int], Requests],
    *,
    metric: str = "ttft",
    percentile: float = 99.0,
    within: float = 0.05,
    fewest_runs: int = 2,
    most_runs: int = 20,
    routing: Routing = "weighted",
    form: Form = "auto",
) -> Results:
    """Runs with seeds 0, 1, … on `draw(seed)` until the percentile's 95 % interval is within ± `within` of its value.

    Stops after `most_runs` at the latest; the interval in the result says how tight it became.
    """
    runs: list[Results] = []
    for seed in range(most_runs):
        runs.append(simulate(deployment, draw(seed), seed=seed, routing=routing, form=form))
        together = combine(runs)
        interval = together.percentile(metric, percentile)
        if len(runs) >= fewest_runs and interval.high - interval.value <= within * interval.value:
            break
    return combine(runs)
