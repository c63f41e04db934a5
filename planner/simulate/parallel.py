"""Independent jobs on all cores or, through joblib's Ray backend, on the machines of a Ray cluster."""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import os
import re
import socket
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from splitplan.catalogs.errors import InputError, MissingExtraError, Problem, SplitplanError, UsageError, shorten

Item = TypeVar("Item")
Result = TypeVar("Result")
Parallel = int | str
"""1 in this process; n > 1 that many processes, −1 one per core; "ray://host:port", or "ray" for the cluster of this
machine (or of RAY_ADDRESS)."""

EXPECTED = "a number of processes from 1 on, -1 for one per core, or ray://host:port"
ANSWER_WITHIN_S = 5.0
"""For a cluster's port to answer at all; Ray itself gives up after 30 s on one that answers and is no Ray server."""

CONNECT_TRIES = 3

_RAY_ADDRESS = re.compile(r"ray://(?P<host>[^\s/:]+|\[[0-9a-fA-F:]+\]):(?P<port>\d{1,5})")


def parse_parallel(text: str) -> Parallel:
    """What `--parallel` was given: a number or a Ray address. Raises UsageError."""
    text = text.strip()
    if re.fullmatch(r"-1|0*[1-9]\d{0,4}", text):
        return int(text)
    if text == "ray" or _RAY_ADDRESS.fullmatch(text):
        return text
    next_step = "the client port of a Ray head, usually 10001: ray://host:10001" if text.startswith("ray") else ""
    raise UsageError(Problem(f"'{shorten(text, 60)}'", key="--parallel", expected=EXPECTED, next_step=next_step))


def spread(
    function: Callable[[Item], Result],
    items: Sequence[Item],
    *,
    parallel: Parallel = 1,
    done: Callable[[Result], None] | None = None,
) -> list[Result]:
    """`function` of every item, in their order; the same results whatever `parallel` is.

    Function and items must pickle. `done` sees each result, in order: as it comes, on Ray when all are there. Raises
    what the function raises; MissingExtraError without joblib; InputError for a cluster that cannot do it.
    """
    if _checked(parallel) == 1:
        return [_seen(function(item), done) for item in items]
    if importlib.util.find_spec("joblib") is None:
        raise MissingExtraError("running in parallel", "fast")
    if isinstance(parallel, str):
        return [_seen(_opened(outcome), done) for outcome in _on_ray(parallel, function, items)]
    import joblib

    pool = joblib.Parallel(n_jobs=parallel, backend="loky", return_as="generator")
    return [
        _seen(_opened(outcome), done) for outcome in pool(joblib.delayed(_guarded)(function, item) for item in items)
    ]


def _checked(parallel: Parallel) -> Parallel:
    wrong = parallel < -1 or parallel == 0 if isinstance(parallel, int) else not parallel.startswith("ray")
    if wrong:
        raise InputError(Problem(f"{parallel}", key="parallel", expected=EXPECTED))
    return parallel


def _seen(result: Result, done: Callable[[Result], None] | None) -> Result:
    if done is not None:
        done(result)
    return result


def _guarded(function: Callable[[Item], Result], item: Item) -> tuple[Any, Any]:
    """A result, or the kind and problems of a deliberate error: those do not pickle as they are."""
    try:
        return None, function(item)
    except SplitplanError as error:
        return type(error), error.problems


def _opened(outcome: tuple[Any, Any]) -> Any:
    kind, value = outcome
    if kind is None:
        return value
    error = kind.__new__(kind)
    SplitplanError.__init__(error, value)
    raise error


def _on_ray(address: str, function: Callable[[Item], Result], items: Sequence[Item]) -> list[tuple[Any, Any]]:
    if importlib.util.find_spec("ray") is None:
        raise MissingExtraError("running on Ray", "ray")
    import joblib

    with _cluster(address) as ray:
        try:
            with joblib.parallel_config(backend="ray", n_jobs=-1):
                return list(joblib.Parallel()(joblib.delayed(_guarded)(function, item) for item in items))
        except ray.exceptions.RayError as error:
            problem = Problem(f"a worker of the Ray cluster at {address} failed: {shorten(str(error), 300)}")
            raise InputError(problem) from None


@contextmanager
def _cluster(address: str) -> Iterator[Any]:
    """A connection to a cluster whose workers run this very version; closed at the end unless it was open before."""
    _reach(address)
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # Ray's coming default, so that it does not warn
    import ray
    from ray.util.joblib import register_ray

    was_open = ray.is_initialized()
    if not was_open:
        _connect(ray, address)
    try:
        _check_workers(ray, address)
        register_ray()
        yield ray
    finally:
        if not was_open:
            ray.shutdown()


def _reach(address: str) -> None:
    """Fail soon where nobody listens. "ray" is left to Ray, which knows where this machine's cluster is."""
    if address == "ray":
        return
    found = _RAY_ADDRESS.fullmatch(address)
    if found is None:
        raise InputError(Problem(f"'{shorten(address, 60)}'", key="parallel", expected="ray://host:port"))
    try:
        socket.create_connection((found["host"].strip("[]"), int(found["port"])), ANSWER_WITHIN_S).close()
    except (OSError, OverflowError) as error:
        raise _unreachable(address, str(error)) from None


def _unreachable(address: str, why: str) -> InputError:
    return InputError(
        Problem(
            f"no Ray cluster takes work at {address}: {shorten(why, 200)}",
            expected="the client port of a Ray head",
            next_step="start one with `ray start --head` (its client port is 10001)",
        )
    )


def _connect(ray: Any, address: str) -> None:
    options = {"address": "auto" if address == "ray" else address, "log_to_driver": False, "logging_level": "ERROR"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Ray warns of what it then raises
        for tries_left in range(CONNECT_TRIES - 1, -1, -1):
            try:
                ray.init(**options)
                return
            except (ConnectionError, RuntimeError, TimeoutError) as error:
                # a busy head answers that its server for this client did not come up in time
                ray.shutdown()
                if not (tries_left and isinstance(error, ConnectionAbortedError)):
                    raise _unreachable(address, str(error).strip().rpartition("\n")[2]) from None


def _check_workers(ray: Any, address: str) -> None:
    """Workers must have splitplan, and the same sources: else their results would be another version's."""

    def look() -> str:  # nested: it is sent as code, so that it runs where splitplan is missing
        try:
            from splitplan.planner.simulate.parallel import sources_digest
        except ImportError as error:
            return f"missing: {error}"
        return sources_digest()

    theirs = ray.get(ray.remote(look).remote(), timeout=120)
    if theirs == sources_digest():
        return
    what = f"no splitplan ({theirs[9:]})" if theirs.startswith("missing: ") else "another version of splitplan"
    raise InputError(
        Problem(
            f"the workers of the Ray cluster at {address} have {what}",
            expected="the version that runs here",
            next_step="install splitplan[fast] there, in the environment in which Ray runs",
        )
    )


@functools.cache
def sources_digest() -> str:
    """A fingerprint of the Python sources that results depend on, and of Python's and NumPy's own versions."""
    import sys

    import numpy as np

    digest = hashlib.sha256(f"{sys.version_info[:2]} {np.__version__}".encode())
    root = Path(__file__).parents[2]
    for path in sorted(
        path for folder in ("catalogs", "profiler", "planner") for path in (root / folder).rglob("*.py")
    ):
        digest.update(str(path.relative_to(root)).encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]
