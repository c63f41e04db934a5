"""Many simulations at once, on all cores or, through joblib's Ray backend, on many machines."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from splitplan.catalogs.errors import InputError, MissingExtraError, Problem
from splitplan.planner.simulate.deployment import Deployment
from splitplan.planner.simulate.results import Results
from splitplan.planner.simulate.run import simulate
from splitplan.planner.spec.workload import Requests


@dataclass(frozen=True, slots=True)
class Case:
    """One simulation: what `simulate` takes. `options` are its keyword arguments."""

    deployment: Deployment
    requests: Requests
    options: dict[str, Any] = field(default_factory=dict)


def sweep(cases: Sequence[Case], *, parallel: int | str = 1) -> list[Results]:
    """Results of all cases, in order; the same whatever `parallel` is.

    parallel: 1 in this process; n > 1 that many processes, −1 one per core (joblib, extra [fast]);
    "ray://host:port", or "ray" for a cluster found by its environment, on Ray.
    """
    if parallel == 1:
        return [_run(case) for case in cases]
    if importlib.util.find_spec("joblib") is None:
        raise MissingExtraError("a parallel sweep", "fast")
    import joblib

    with joblib.parallel_config(**_backend(parallel)):
        results: list[Results] = joblib.Parallel()(joblib.delayed(_run)(case) for case in cases)
    return results


def _run(case: Case) -> Results:
    return simulate(case.deployment, case.requests, **case.options)


def _backend(parallel: int | str) -> dict[str, Any]:
    if isinstance(parallel, int):
        if parallel == 0 or parallel < -1:
            raise InputError(Problem(f"parallel = {parallel}", expected="−1, 1 or more, or ray://host:port"))
        return {"backend": "loky", "n_jobs": parallel}
    if not (parallel == "ray" or parallel.startswith("ray://")):
        raise InputError(Problem(f"parallel = '{parallel}'", expected="a number of processes, or ray://host:port"))
    if importlib.util.find_spec("ray") is None:
        raise InputError(Problem("a sweep on Ray needs Ray", next_step="pip install ray"))
    import ray
    from ray.util.joblib import register_ray

    ray.init(address=None if parallel == "ray" else parallel, ignore_reinit_error=True)
    register_ray()
    return {"backend": "ray", "n_jobs": -1}
