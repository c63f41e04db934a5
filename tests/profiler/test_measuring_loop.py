"""The measuring loop: every finished row on disk, nothing measured twice, failures recorded, budgets kept."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from splitplan.catalogs.errors import ProfileError
from splitplan.profiler.device import DeviceState, is_throttled
from splitplan.profiler.measure import Estimates, Outcome, measure_plan
from splitplan.profiler.points import SETUP_S, MeasurementPlan, Point, make_point
from splitplan.profiler.rows import RowFile, profile_from_rows, read_rows
from splitplan.profiler.runners import DeviceLostError, Run
from splitplan.profiler.timer import Effort, Timing

PROVENANCE = {"device": "fake", "uuid": "1", "driver": "1", "torch": "1", "triton": "1", "kernels": "1"}


class FakeClock:
    """Time that moves only when something is measured."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


class FakeRunner:
    """Takes `cost_s` of the fake clock for each point; calls `before` first, which may raise."""

    def __init__(self, clock: FakeClock, cost_s: float = 1.0, before: Callable[[Point], None] = lambda point: None):
        self.ran: list[str] = []
        self._clock, self._cost_s, self._before = clock, cost_s, before
        self.states = (DeviceState(1500.0), DeviceState(1500.0))

    def run(self, point: Point, effort: Effort) -> Run:
        self.ran.append(point.key)
        self._before(point)
        self._clock.now_s += self._cost_s
        return Run(Timing(1e-3, 0.9e-3, 1.1e-3, 5), "cold", *self.states)


def plan_of(count: int, effort: Effort | None = None) -> MeasurementPlan:
    points = tuple(make_point("gemm", {"dtype": "bf16", "n": 64, "k": 64, "m": m}) for m in range(1, count + 1))
    return MeasurementPlan(points, (), effort or Effort(0.1, 0.4), 1.0)


def run(path: Path, plan: MeasurementPlan, runner: FakeRunner, *, resume: bool = False, **options: object) -> Outcome:
    with RowFile(path, resume=resume) as rows:
        return measure_plan(plan, runner=runner, rows=rows, provenance=PROVENANCE, **options)  # type: ignore[arg-type]


def test_a_killed_run_resumes_with_no_row_lost_and_none_twice(tmp_path: Path) -> None:
    """Killed in the middle of its fourth row: three are kept, the torn fourth and the rest are measured once."""
    path, plan, clock = tmp_path / "p.rows.jsonl", plan_of(6), FakeClock()

    def die(point: Point) -> None:
        if point["m"] == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(path, plan, FakeRunner(clock, before=die))
    with open(path, "ab") as handle:
        handle.write(b'{"version": 1, "key": "gemm dtype=bf16 n=64 k=64 m=4", "fam')
    second = FakeRunner(clock)
    outcome = run(path, plan, second, resume=True)
    assert second.ran == [point.key for point in plan.points[3:]]
    assert (outcome.resumed, outcome.measured) == (3, 3)
    assert [row.key for row in read_rows(path)] == [point.key for point in plan.points]


def test_rows_of_an_earlier_run_are_not_overwritten(tmp_path: Path) -> None:
    path, clock = tmp_path / "p.rows.jsonl", FakeClock()
    run(path, plan_of(1), FakeRunner(clock))
    before = path.read_bytes()
    with pytest.raises(ProfileError, match="--resume"):
        run(path, plan_of(2), FakeRunner(clock))
    assert path.read_bytes() == before


def test_two_runs_cannot_write_the_same_rows(tmp_path: Path) -> None:
    path = tmp_path / "p.rows.jsonl"
    with RowFile(path, resume=False), pytest.raises(ProfileError, match="another run"):
        RowFile(path, resume=True)


def test_rows_of_another_device_are_not_mixed_in(tmp_path: Path) -> None:
    path, clock = tmp_path / "p.rows.jsonl", FakeClock()
    run(path, plan_of(1), FakeRunner(clock))
    with RowFile(path, resume=True) as rows, pytest.raises(ProfileError, match="uuid"):
        measure_plan(plan_of(2), runner=FakeRunner(clock), rows=rows, provenance={**PROVENANCE, "uuid": "2"})


def test_an_operation_that_fails_is_recorded_and_the_next_one_follows(tmp_path: Path) -> None:
    path, plan = tmp_path / "p.rows.jsonl", plan_of(3)

    def fail(point: Point) -> None:
        if point["m"] == 2:
            raise RuntimeError("CUDA out of memory.\nmore lines")

    outcome = run(path, plan, FakeRunner(FakeClock(), before=fail))
    assert (outcome.measured, outcome.failed) == (2, 1)
    row = read_rows(path)[1]
    assert (row.status, row.error, row.median_s) == ("failed", "RuntimeError: CUDA out of memory.", None)
    profile = profile_from_rows(read_rows(path), gpu="cpu", engine="splitplan", engine_version="1", provenance={})
    assert list(profile.tables["gemm"].keys["m"]) == [1, 3]
    assert "1 points failed" in " ".join(profile.notes)


def test_a_lost_device_ends_the_run_and_leaves_no_row_for_the_point(tmp_path: Path) -> None:
    """After an illegal memory access every later point would fail too: that must not be recorded as their fault."""
    path = tmp_path / "p.rows.jsonl"

    def lose(point: Point) -> None:
        if point["m"] == 2:
            raise DeviceLostError("gone")

    with pytest.raises(DeviceLostError):
        run(path, plan_of(3), FakeRunner(FakeClock(), before=lose))
    assert [row.shape["m"] for row in read_rows(path)] == [1]


def test_nothing_measured_is_an_error_not_an_empty_profile() -> None:
    with pytest.raises(ProfileError, match="not one point"):
        profile_from_rows([], gpu="cpu", engine="splitplan", engine_version="1", provenance={})


def test_a_throttled_point_is_flagged_in_its_row_and_in_the_profile(tmp_path: Path) -> None:
    path, runner = tmp_path / "p.rows.jsonl", FakeRunner(FakeClock())
    runner.states = (DeviceState(1980.0), DeviceState(1700.0))
    outcome = run(path, plan_of(2), runner)
    assert outcome.throttled == 2
    assert all(row.throttled and row.clock_mhz == 1700.0 for row in read_rows(path))
    profile = profile_from_rows(read_rows(path), gpu="cpu", engine="splitplan", engine_version="1", provenance={})
    assert "2 points ran while the clock fell" in " ".join(profile.notes)


@pytest.mark.parametrize(
    ("before", "after", "throttled"),
    [
        (DeviceState(1980.0), DeviceState(1800.0), False),  # 9 %
        (DeviceState(1980.0), DeviceState(1780.0), True),  # 10.1 %
        (DeviceState(None), DeviceState(100.0), False),  # no clock reported: nothing is known
        (DeviceState(1500.0), DeviceState(1500.0, throttle_reasons=("power cap",)), False),
        (DeviceState(1500.0), DeviceState(1500.0, throttle_reasons=("temperature (hardware)",)), True),
    ],
)
def test_throttling_is_a_clock_that_fell_by_more_than_a_tenth_or_a_hot_chip(
    before: DeviceState, after: DeviceState, throttled: bool
) -> None:
    assert is_throttled(before, after) is throttled


def test_every_time_ends_in_the_row_and_table_of_its_own_shape(tmp_path: Path) -> None:
    """Points of three families, each taking a time of its own, in no order: the tables must give each back."""
    points = [
        make_point("gemm", {"dtype": "bf16", "n": n, "k": 64, "m": m}) for n, m in ((64, 8), (32, 1), (64, 1), (32, 8))
    ]
    points += [make_point("elementwise", {"kind": kind, "num_bytes": 64}) for kind in ("swiglu", "rmsnorm")]
    seconds = {point.key: 1e-3 * number for number, point in enumerate(points, 1)}

    class OwnTime:
        def run(self, point: Point, effort: Effort) -> Run:
            return Run(Timing(seconds[point.key], 0.0, 0.0, 1), "cold")

    path = tmp_path / "p.rows.jsonl"
    with RowFile(path, resume=False) as rows:
        plan = MeasurementPlan(tuple(points), (), Effort(), 1.0)
        measure_plan(plan, runner=OwnTime(), rows=rows, provenance=PROVENANCE)
    profile = profile_from_rows(read_rows(path), gpu="cpu", engine="splitplan", engine_version="1", provenance={})
    found = {}
    for family, table in profile.tables.items():
        for row in range(len(table)):
            shape = {name: column[row].item() for name, column in table.keys.items()}
            found[make_point(family, shape).key] = table.seconds[row]
    assert found == pytest.approx(seconds)


def test_a_budget_ends_the_run_in_time_and_says_what_it_left_out(tmp_path: Path) -> None:
    """20 points of 0.8 s do not fit 12 s; the run ends within it and accounts for all."""
    clock = FakeClock()
    plan = plan_of(20)
    outcome = run(tmp_path / "p.rows.jsonl", plan, FakeRunner(clock, cost_s=0.8), budget_s=12.0, clock=clock)
    assert clock.now_s <= 12.0 + 0.8
    assert outcome.measured + len(outcome.unmeasured) == 20
    assert outcome.unmeasured


def test_a_budget_learns_from_the_points_it_has_seen() -> None:
    """Large points of a family took a hundred times their estimate, small ones what was estimated: so will the next."""
    estimates = Estimates(Effort(0.0, 0.0))
    points = [
        replace(point, op_s=op_s) for point, op_s in zip(plan_of(4).points, (1e-5, 1e-2, 2e-5, 2e-2), strict=True)
    ]
    estimates.learn(points[0], 1e-5)
    estimates.learn(points[1], 1.0)
    assert estimates.cost_s(points[2]) == pytest.approx(SETUP_S + 4 * 2e-5)
    assert estimates.cost_s(points[3]) == pytest.approx(SETUP_S + 4 * 2.0)


def test_progress_counts_the_points_and_the_time_left(tmp_path: Path) -> None:
    """Points that take twice their estimate: after half of them the time left is that of the other half, doubled."""
    clock, seen, plan = FakeClock(), [], plan_of(4, Effort(0.0, 0.48))
    runner = FakeRunner(clock, cost_s=1.0)  # the estimate is 0.5 s: 0.02 to set up, 0.48 to repeat
    run(tmp_path / "p.rows.jsonl", plan, runner, clock=clock, show=seen.append)
    assert [(item.done, item.total) for item in seen] == [(0, 4), (1, 4), (2, 4), (3, 4), (4, 4)]
    assert [item.left_s for item in seen] == pytest.approx([2.0, 3.0, 2.0, 1.0, 0.0])


def test_every_row_says_where_it_comes_from(tmp_path: Path) -> None:
    path = tmp_path / "p.rows.jsonl"
    run(path, plan_of(2), FakeRunner(FakeClock()))
    for line in path.read_text().splitlines():
        assert json.loads(line)["provenance"] == PROVENANCE


def test_a_damaged_row_in_the_middle_is_named_by_its_line(tmp_path: Path) -> None:
    path = tmp_path / "p.rows.jsonl"
    run(path, plan_of(2), FakeRunner(FakeClock()))
    lines = path.read_text().splitlines()
    path.write_text("\n".join([lines[0], "garbage", lines[1]]) + "\n")
    with pytest.raises(ProfileError, match=r"rows\.jsonl:2"):
        RowFile(path, resume=True)
