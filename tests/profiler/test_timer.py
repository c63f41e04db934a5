"""Timers: medians with their spread, efforts kept, graphs where they apply. The clocks and the GPU are fakes."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from splitplan.profiler.timer import CpuTimer, CudaTimer, Effort, summarise


class Machine:
    """A fake device: each call takes the next of `seconds` (repeating) of a clock that nothing else moves."""

    def __init__(self, *seconds: float) -> None:
        self.now_s = 0.0
        self.calls: list[int] = []
        self._seconds = seconds

    def clock(self) -> float:
        return self.now_s

    def call(self, index: int) -> None:
        self.now_s += self._seconds[len(self.calls) % len(self._seconds)]
        self.calls.append(index)


def test_percentiles_are_numpys() -> None:
    values = [random.Random(1).random() for _ in range(37)]
    timing = summarise(values)
    assert (timing.p20_s, timing.median_s, timing.p80_s) == pytest.approx(np.quantile(values, [0.2, 0.5, 0.8]))
    assert timing.repetitions == 37


def test_one_slow_call_in_ten_does_not_move_the_median() -> None:
    machine = Machine(*[0.001] * 9, 0.1)
    timing = CpuTimer(machine.clock).measure(machine.call, Effort(0.0, 0.2))
    assert timing.median_s == pytest.approx(0.001)


def test_warm_up_is_not_counted() -> None:
    machine = Machine(*[0.05] * 2, *[0.001] * 500)
    timing = CpuTimer(machine.clock).measure(machine.call, Effort(0.1, 0.1))
    assert timing.p80_s == pytest.approx(0.001)


def test_a_long_call_is_repeated_the_least_number_of_times() -> None:
    machine = Machine(10.0)
    timing = CpuTimer(machine.clock).measure(machine.call, Effort(0.025, 0.1, min_repetitions=3))
    assert timing.repetitions == 3
    assert len(machine.calls) == 4


def test_a_call_that_turns_out_long_is_run_only_once_more() -> None:
    effort = Effort(0.025, 0.1, long_call_s=1.0)
    assert effort.for_call(0.9) == effort
    machine = Machine(10.0)
    timing = CpuTimer(machine.clock).measure(machine.call, effort.for_call(10.0))
    assert (timing.repetitions, len(machine.calls)) == (1, 1)


def test_every_call_gets_its_own_number_so_that_buffers_can_rotate() -> None:
    machine = Machine(0.01)
    CpuTimer(machine.clock).measure(machine.call, Effort(0.02, 0.05))
    assert machine.calls == list(range(len(machine.calls)))


class FakeCuda:
    """The part of torch that CudaTimer uses: work and launches take fixed times on a fake stream."""

    def __init__(self, kernel_s: float, launch_s: float, *, captures: bool = True) -> None:
        self.kernel_s, self.launch_s = kernel_s, launch_s
        self.now_s = 0.0
        self.last_graph_calls = 0
        self.captured: int | None = None
        self._captures = captures
        self.cuda = self

    def call(self, index: int) -> None:
        if self.captured is not None:
            if not self._captures:
                raise RuntimeError("operation not permitted when stream is capturing")
            self.captured += 1
        else:
            self.now_s += max(self.kernel_s, self.launch_s)

    def clock(self) -> float:
        return self.now_s

    def Event(self, *, enable_timing: bool) -> Any:  # noqa: N802 (torch's name)
        fake = self

        class Event:
            at_s = 0.0

            def record(self) -> None:
                self.at_s = fake.now_s

            def elapsed_time(self, other: Any) -> float:
                return float(1e3 * (other.at_s - self.at_s))

        return Event()

    def synchronize(self) -> None:
        pass

    def CUDAGraph(self) -> Any:  # noqa: N802 (torch's name)
        fake = self

        class Graph:
            calls = 0

            def replay(self) -> None:
                fake.now_s += self.calls * fake.kernel_s

        return Graph()

    @contextmanager
    def graph(self, graph: Any) -> Iterator[None]:
        self.captured = 0
        try:
            yield
        finally:
            graph.calls = self.last_graph_calls = self.captured
            self.captured = None


EFFORT = Effort(0.001, 0.01)


def test_a_short_kernel_is_timed_in_a_graph_and_its_launch_is_a_number_of_its_own() -> None:
    """A 2 µs kernel that takes 10 µs to launch: engines that replay graphs see 2 µs."""
    fake = FakeCuda(kernel_s=2e-6, launch_s=10e-6)
    timing = CudaTimer(fake, clock=fake.clock).measure(fake.call, EFFORT, rotations=8)
    assert timing.how == "graph"
    assert timing.median_s == pytest.approx(2e-6)
    assert timing.launch_overhead_s == pytest.approx(8e-6)


def test_a_long_kernel_is_timed_as_it_is_launched() -> None:
    fake = FakeCuda(kernel_s=5e-3, launch_s=10e-6)
    timing = CudaTimer(fake, clock=fake.clock).measure(fake.call, EFFORT, rotations=8)
    assert timing.how == "eager"
    assert timing.median_s == pytest.approx(5e-3)


def test_an_operation_that_cannot_be_captured_keeps_its_eager_time() -> None:
    fake = FakeCuda(kernel_s=2e-6, launch_s=10e-6, captures=False)
    timing = CudaTimer(fake, clock=fake.clock).measure(fake.call, EFFORT, rotations=8)
    assert timing.how == "eager"
    assert timing.median_s == pytest.approx(10e-6)


def test_a_graph_holds_one_call_for_each_set_of_buffers() -> None:
    fake = FakeCuda(kernel_s=2e-6, launch_s=10e-6)
    timing = CudaTimer(fake, clock=fake.clock).measure(fake.call, EFFORT, rotations=8)
    assert fake.last_graph_calls == 8
    assert timing.repetitions % 8 == 0
