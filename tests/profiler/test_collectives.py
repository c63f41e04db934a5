"""Collectives run in processes of their own: measured over gloo, and a rank that fails or dies fails only its point."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Iterator

import pytest

from splitplan.catalogs.errors import ProfileError
from splitplan.profiler.collectives import CollectiveRunner
from splitplan.profiler.points import Point, make_point
from splitplan.profiler.timer import Effort

EFFORT = Effort(0.001, 0.01)


def point(family: str, num_bytes: int) -> Point:
    shape = {"link": "pcie", "host": "", "how": "eager", "ranks": 2, "num_bytes": num_bytes}
    return make_point(family, shape)


@pytest.fixture(scope="module")
def group() -> Iterator[CollectiveRunner]:
    if importlib.util.find_spec("torch") is None:
        pytest.skip("needs torch (extra gpu)")
    paths = os.pathsep.join(os.path.abspath(place) for place in sys.path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", paths)
        runner = CollectiveRunner(2, "gloo")
        yield runner
        runner.close()


@pytest.mark.parametrize("family", ["all_reduce", "all_gather", "send"])
def test_a_collective_between_two_ranks_is_timed(group: CollectiveRunner, family: str) -> None:
    timing = group.run(point(family, 1 << 16), EFFORT).timing
    assert 0 < timing.p20_s <= timing.median_s <= timing.p80_s
    assert timing.repetitions >= 3


def test_a_collective_that_fails_is_an_error_and_the_group_starts_anew(group: CollectiveRunner) -> None:
    with pytest.raises(ProfileError, match="no collective"):
        group.run(point("reduce_scatter", 1 << 12), EFFORT)
    assert group.run(point("all_reduce", 1 << 12), EFFORT).timing.median_s > 0


def test_a_rank_that_dies_is_an_error_not_a_hang(group: CollectiveRunner) -> None:
    group.run(point("all_reduce", 1 << 12), EFFORT)
    group._workers[1].kill()
    group._workers[1].wait()
    with pytest.raises((ProfileError, OSError)):
        group.run(point("all_reduce", 1 << 12), EFFORT)
    assert group.run(point("all_reduce", 1 << 12), EFFORT).timing.median_s > 0
