"""`simulate`: a deployment serves requests."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from splitplan.catalogs.errors import InputError, MissingExtraError, Problem
from splitplan.planner.simulate import layout as at
from splitplan.planner.simulate.build import Arrivals, Routing, build_world
from splitplan.planner.simulate.build_requests import check_requests
from splitplan.planner.simulate.compiled import compiled_run_events, has_numba, is_cached, is_loaded
from splitplan.planner.simulate.deployment import Change, Deployment, check_changes, check_deployment
from splitplan.planner.simulate.loop import run_events
from splitplan.planner.simulate.results import Results, read_run
from splitplan.planner.spec.workload import FloatArray, Requests

Form = Literal["auto", "python", "numba"]

# Requests from which the compiled form pays: once it is loaded, when it is cached on disk, when it must be compiled.
WORTH_CALLING = 200
WORTH_LOADING = 4_000
WORTH_COMPILING = 100_000

WARMUP_SHARE = 0.05


def simulate(
    deployment: Deployment,
    requests: Requests,
    *,
    seed: int = 0,
    arrivals: Arrivals = "open",
    concurrency: int = 0,
    think_s: float = 0.0,
    routing: Routing = "weighted",
    warmup_share: float | None = None,
    until_s: float | None = None,
    changes: Sequence[Change] = (),
    itl_limit_s: float | FloatArray | None = None,
    form: Form = "auto",
) -> Results:
    """Serve `requests` with `deployment` and report latencies.

    arrivals: "open" at their own times; "burst" all at 0; "closed" by `concurrency` users who ask again `think_s` after
        each answer; "batch" `concurrency` at a time, the next ones when all of them are done.
    routing: "weighted" draws by share (`seed`); "round_robin" in turn, by share; "least_loaded" fewest requests per
        share; "least_tokens" fewest prompt tokens per share.
    warmup_share: leading share of requests that statistics leave out; by default 5 % of open arrivals, else none.
    changes: failures, restarts and role switches on the way.
    itl_limit_s: what `Run.slow_gaps` counts against, one for all requests or [n] (infinite: none).
    until_s: stop there; what is in flight then counts as missed.
    form: "numba", "python", or by the size of the run. Both give the same bits.
    """
    job = prepare(
        deployment,
        requests,
        seed=seed,
        arrivals=arrivals,
        concurrency=concurrency,
        think_s=think_s,
        routing=routing,
        warmup_share=warmup_share,
        until_s=until_s,
        changes=changes,
        itl_limit_s=itl_limit_s,
        form=form,
    )
    job.serve(job.world, at.INFINITE_S if until_s is None else until_s)
    return finish(job)


@dataclass(frozen=True, slots=True)
class Job:
    """A simulation that can be served in pieces of time. Its world changes as it is served."""

    deployment: Deployment
    world: at.World
    serve: Callable[[at.World, float], None]
    warmup: int
    until_s: float | None
    itl_limit_s: float | FloatArray


def prepare(
    deployment: Deployment,
    requests: Requests,
    *,
    seed: int = 0,
    arrivals: Arrivals = "open",
    concurrency: int = 0,
    think_s: float = 0.0,
    routing: Routing = "weighted",
    warmup_share: float | None = None,
    until_s: float | None = None,
    changes: Sequence[Change] = (),
    itl_limit_s: float | FloatArray | None = None,
    form: Form = "auto",
) -> Job:
    """Check everything and build the arrays; see `simulate`."""
    check_deployment(deployment)
    check_changes(deployment, changes)
    check_requests(requests)
    _check_arrivals(arrivals, concurrency, think_s)
    compiled = _use_compiled(form, len(requests))
    world = build_world(
        deployment,
        requests,
        seed=seed,
        arrivals=arrivals,
        concurrency=concurrency,
        think_s=think_s,
        routing=routing,
        stepping=False,
        as_lists=not compiled,
        changes=changes,
        itl_limit_s=itl_limit_s,
    )
    if warmup_share is None:
        warmup_share = WARMUP_SHARE if arrivals == "open" else 0.0
    warmup = int(warmup_share * len(requests))
    serve = compiled_run_events() if compiled else run_events
    return Job(deployment, world, serve, warmup, until_s, np.inf if itl_limit_s is None else itl_limit_s)


def finish(job: Job) -> Results:
    """Read the outcome of a served job."""
    return Results((read_run(job.world, job.deployment, job.warmup, job.itl_limit_s),))


def _use_compiled(form: Form, num_requests: int) -> bool:
    if form == "python" or not has_numba():
        if form == "numba":
            raise MissingExtraError("the compiled simulator", "fast")
        return False
    if form == "numba":
        return True
    if is_loaded():
        return num_requests >= WORTH_CALLING
    return num_requests >= (WORTH_LOADING if is_cached() else WORTH_COMPILING)


def _check_arrivals(arrivals: Arrivals, concurrency: int, think_s: float) -> None:
    if arrivals in ("closed", "batch") and concurrency < 1:
        raise InputError(Problem(f"{arrivals} arrivals with concurrency {concurrency}", expected="at least 1"))
    if not (think_s >= 0 and math.isfinite(think_s)):
        raise InputError(Problem(f"think time {think_s} s", expected="a number from 0 on"))
