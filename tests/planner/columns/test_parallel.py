"""Columns over several cores: the same, in the same order, and none the worse where workers are lost."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest

from splitplan.planner.columns import parallel
from splitplan.planner.columns.build import ColumnSet
from splitplan.planner.inputs import load_inputs
from splitplan.planner.question import Question
from splitplan.planner.study import prepare

QUESTION = Question("llama-3.1-8b", "four-racks", "fixed:1024/128", "ttft=1s@p90,tpot=60ms@p90", 10.0)


@pytest.fixture(autouse=True)
def no_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPLITPLAN_CACHE", "")


def on(monkeypatch: pytest.MonkeyPatch, cores: int) -> None:
    monkeypatch.setattr(parallel, "idle_cores", lambda: cores)


def columns(monkeypatch: pytest.MonkeyPatch, cores: int) -> ColumnSet:
    on(monkeypatch, cores)
    return prepare(load_inputs(QUESTION)).columns


def test_columns_are_the_same_on_any_number_of_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Names, work, step models, what fell and why, in the same order."""
    one, two = columns(monkeypatch, 1), columns(monkeypatch, 2)
    assert [column.name for column in one.columns] == [column.name for column in two.columns]
    for left, right in zip(one.columns, two.columns, strict=True):
        assert np.array_equal(left.work_s_per_request, right.work_s_per_request)
        assert np.array_equal(left.step.token_s, right.step.token_s)
    assert list(one.rejections.counts.items()) == list(two.rejections.counts.items())
    assert (one.rejections.examples, one.considered) == (two.rejections.examples, two.considered)


def test_tasks_run_in_other_processes_and_keep_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """With two idle cores other processes answer; with one this process does."""
    tasks: list[Callable[[], tuple[int, int]]] = [partial(lambda number: (number, os.getpid()), k) for k in range(20)]
    for cores in (2, 1):
        on(monkeypatch, cores)
        found = parallel.in_parallel(tasks)
        assert [number for number, _ in found] == list(range(20))
        assert (os.getpid() in {process for _, process in found}) == (cores == 1)


def test_a_lost_worker_costs_only_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that is killed is made up for here."""
    on(monkeypatch, 2)
    parent = os.getpid()

    def task(number: int) -> int:
        if number == 5 and os.getpid() != parent:
            os._exit(1)
        return number

    assert parallel.in_parallel([partial(task, number) for number in range(12)]) == list(range(12))


def test_errors_of_tasks_come_through(monkeypatch: pytest.MonkeyPatch) -> None:
    """An exception is raised here as it was there."""
    on(monkeypatch, 2)

    def task() -> int:
        raise ValueError("no such shape")

    with pytest.raises(ValueError, match="no such shape"):
        parallel.in_parallel([task] * 10)
