"""The measuring loop: one point after another, each finished row on disk before the next begins."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from splitplan.catalogs.errors import Problem, ProfileError
from splitplan.profiler.device import is_throttled
from splitplan.profiler.points import LARGEST_SHARE_OF_BUDGET, MeasurementPlan, Point, point_cost_s
from splitplan.profiler.rows import Row, RowSink
from splitplan.profiler.runners import DeviceLostError, Runner
from splitplan.profiler.timer import Effort

LARGEST_SHARE = 1.2 * LARGEST_SHARE_OF_BUDGET  # a point that turns out to cost more is left out


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a run is."""

    done: int
    total: int
    left_s: float
    key: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a run did with its plan."""

    measured: int
    failed: int
    resumed: int  # rows that were there already
    unmeasured: tuple[Point, ...]  # for which the budget did not last
    throttled: int


class Estimates:
    """Estimates that learn: a point costs its estimate times what the nearest measured one of its family showed."""

    def __init__(self, effort: Effort) -> None:
        self._effort = effort
        self._seen: dict[str, list[tuple[float, float]]] = {}  # by family: (log of the estimate, log of the ratio)

    def cost_s(self, point: Point) -> float:
        """Expected seconds of measuring a point."""
        here = math.log(max(point.op_s, 1e-9))
        seen = self._seen.get(point.family)
        ratio = min(seen, key=lambda pair: abs(pair[0] - here))[1] if seen else 0.0
        return point_cost_s(replace(point, op_s=point.op_s * math.exp(ratio)), self._effort)

    def learn(self, point: Point, median_s: float) -> None:
        """Takes in one measured point."""
        estimate_s = max(point.op_s, 1e-9)
        self._seen.setdefault(point.family, []).append(
            (math.log(estimate_s), math.log(max(median_s, 1e-9) / estimate_s))
        )


class TimeLeft:
    """What is left by the estimates, times how far those were off so far; never more than the budget leaves."""

    def __init__(self, costs_s: Sequence[float], clock: Callable[[], float], deadline: float | None) -> None:
        self._done_s = list(accumulate(costs_s, initial=0.0))
        self._clock, self._deadline, self._start = clock, deadline, clock()

    def after(self, done: int) -> float:
        """Seconds left when `done` points are behind."""
        now, estimated_s = self._clock(), self._done_s[done]
        pace = (now - self._start) / estimated_s if estimated_s > 0 else 1.0
        left_s = pace * (self._done_s[-1] - estimated_s)
        return max(left_s if self._deadline is None else min(left_s, self._deadline - now), 0.0)


def measure_plan(
    plan: MeasurementPlan,
    *,
    runner: Runner,
    rows: RowSink,
    provenance: Mapping[str, str],
    budget_s: float | None = None,
    clock: Callable[[], float] = time.monotonic,
    show: Callable[[Progress], None] = lambda progress: None,
) -> Outcome:
    """Measures what `rows` does not hold yet, in the plan's order, until it is done or the budget is.

    An operation that fails is recorded and the next one follows. Ctrl-C ends the run with every finished row kept.
    """
    _check_same_device(rows, provenance)
    finished = {row.key for row in rows.rows}
    todo = [point for point in plan.points if point.key not in finished]
    deadline = None if budget_s is None else clock() + budget_s
    ceiling_s = math.inf if budget_s is None else LARGEST_SHARE * budget_s
    estimates, unmeasured, new_rows = Estimates(plan.effort), [], []
    left = TimeLeft([point_cost_s(point, plan.effort) for point in todo], clock, deadline)
    for index, point in enumerate(todo):
        if deadline is not None:
            cost_s = estimates.cost_s(point)
            if clock() + cost_s > deadline or cost_s > ceiling_s:
                unmeasured.append(point)
                continue
        show(Progress(index, len(todo), left.after(index), point.key))
        row = measure_point(point, plan.effort, runner, provenance)
        rows.append(row)
        new_rows.append(row)
        if row.median_s is not None:
            estimates.learn(point, row.median_s)
    show(Progress(len(todo), len(todo), 0.0, ""))
    return Outcome(
        measured=sum(row.status == "measured" for row in new_rows),
        failed=sum(row.status == "failed" for row in new_rows),
        resumed=sum(point.key in finished for point in plan.points),
        unmeasured=tuple(unmeasured),
        throttled=sum(row.throttled for row in new_rows),
    )


def measure_point(point: Point, effort: Effort, runner: Runner, provenance: Mapping[str, str]) -> Row:
    """One point. Whatever it raises (memory, a missing kernel) is that point's result, and its row."""
    shape = dict(point.shape)
    try:
        run = runner.run(point, effort)
    except DeviceLostError:
        raise
    except Exception as error:
        message = f"{type(error).__name__}: {error}".splitlines()[0][:300]
        return Row(point.key, point.family, shape, "failed", error=message, provenance=provenance)
    return Row(
        point.key,
        point.family,
        shape,
        "measured",
        median_s=run.timing.median_s,
        p20_s=run.timing.p20_s,
        p80_s=run.timing.p80_s,
        repetitions=run.timing.repetitions,
        how=run.timing.how,
        launch_overhead_s=run.timing.launch_overhead_s,
        cache=run.cache,
        throttled=is_throttled(run.before, run.after),
        clock_mhz=run.after.clock_mhz,
        power_watts=run.after.power_watts,
        temperature_c=run.after.temperature_c,
        provenance=provenance,
    )


def _check_same_device(rows: RowSink, provenance: Mapping[str, str]) -> None:
    """Rows of two devices or two software versions must not end in one table."""
    for row in rows.rows:
        for name in ("device", "uuid", "driver", "torch", "triton", "kernels"):
            there, here = row.provenance.get(name, ""), provenance.get(name, "")
            if there != here:
                raise ProfileError(
                    Problem(
                        f"rows were measured with {name} '{there}', this is '{here}'",
                        str(rows.path),
                        next_step="choose another -o: rows of both must not end in one table",
                    )
                )
