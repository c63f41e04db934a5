"""Work spread over the cores of this machine by fork: the same results in the same order, or one after the other.

Starting Python anew would take longer than most columns do, so workers are forks that find the work in memory; only
results travel. Where forking is not possible or cannot pay (no idle core, little to do, other threads) nothing is.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any, TypeVar

ResultT = TypeVar("ResultT")
MOST_WORKERS = 8
FEWEST_TASKS = 8
"""Below this many tasks the workers' start takes longer than what they save."""

_work: list[Callable[[], Any]] = []  # what forked workers find


def in_parallel(tasks: Sequence[Callable[[], ResultT]]) -> list[ResultT]:
    """The result of every task, in order. Tasks may not depend on one another; their results are pickled."""
    workers = min(MOST_WORKERS, idle_cores(), len(tasks))
    if workers < 2 or len(tasks) < FEWEST_TASKS or not _may_fork():
        return [task() for task in tasks]
    _work[:] = tasks
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of forking beside BLAS threads, which expect it
            context = multiprocessing.get_context("fork")
            with ProcessPoolExecutor(workers, context, initializer=_deaf_to_interrupts) as pool:
                return list(pool.map(_run, range(len(tasks))))
    except (BrokenProcessPool, OSError):  # no memory for a copy, or a worker was killed: nothing is lost but time
        return [task() for task in tasks]
    finally:
        _work.clear()


def _run(number: int) -> Any:
    return _work[number]()


def _deaf_to_interrupts() -> None:
    """Ctrl-C goes to every process of a terminal; only the parent answers it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def idle_cores() -> int:
    """Cores that this process may use and nobody else does: on a busy machine there is nothing to win."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    busy = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    return max(1, cores - max(0, round(busy) - 1))


def _may_fork() -> bool:
    return (
        "fork" in multiprocessing.get_all_start_methods()
        and threading.current_thread() is threading.main_thread()
        and threading.active_count() == 1
        and not multiprocessing.current_process().daemon
    )
