"""Many simulations at once, on all cores or on a Ray cluster."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from splitplan.planner.simulate.deployment import Deployment
from splitplan.planner.simulate.parallel import Parallel, spread
from splitplan.planner.simulate.results import Results
from splitplan.planner.simulate.run import simulate
from splitplan.planner.spec.workload import Requests


@dataclass(frozen=True, slots=True)
class Case:
    """One simulation: what `simulate` takes. `options` are its keyword arguments."""

    deployment: Deployment
    requests: Requests
    options: dict[str, Any] = field(default_factory=dict)


def sweep(cases: Sequence[Case], *, parallel: Parallel = 1) -> list[Results]:
    """Results of all cases, in order; the same whatever `parallel` is (see `parallel.spread`)."""
    return spread(_run, cases, parallel=parallel)


def _run(case: Case) -> Results:
    return simulate(case.deployment, case.requests, **case.options)
