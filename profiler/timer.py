"""Timing one operation, behind one boundary: `Timer.measure` runs a callable and returns seconds with their spread.

An operation is a callable of the repetition's number, so that it can take other buffers each time: whoever builds it
rotates through more memory than the caches hold where serving would find the data cold. The clock is a parameter, which
is how the arithmetic is tested.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

Call = Callable[[int], Any]


@dataclass(frozen=True, slots=True)
class Effort:
    """How long a timing may take."""

    warmup_s: float = 0.025
    repeat_s: float = 0.1
    min_repetitions: int = 3
    max_repetitions: int = 10_000
    long_call_s: float = 1e9  # a call that takes longer is run once more, not warmed up and repeated

    def for_call(self, first_call_s: float) -> Effort:
        """The effort for an operation whose first call took so long."""
        if first_call_s <= self.long_call_s:
            return self
        return replace(self, warmup_s=0.0, repeat_s=0.0, min_repetitions=1)


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds of one call: median, 20th and 80th percentile over the repetitions."""

    median_s: float
    p20_s: float
    p80_s: float
    repetitions: int
    how: str = "eager"  # "graph": replayed from a CUDA graph, as engines decode
    launch_overhead_s: float | None = None  # eager minus graph, where both were timed


class Timer(Protocol):
    """Something that can time a call on one kind of device."""

    def measure(self, call: Call, effort: Effort, *, rotations: int = 1) -> Timing:
        """Time `call(i)`; `rotations` is after how many calls its buffers repeat."""
        ...


class CpuTimer:
    """Wall-clock timing of a call that returns when its work is done."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock

    def measure(self, call: Call, effort: Effort, *, rotations: int = 1) -> Timing:
        """Warms up for `warmup_s` (at least one call, unless it is 0), then repeats for `repeat_s`."""
        index = self._repeat(call, effort.warmup_s, int(effort.warmup_s > 0), effort.max_repetitions, 0, [])
        seconds: list[float] = []
        self._repeat(call, effort.repeat_s, effort.min_repetitions, effort.max_repetitions, index, seconds)
        return summarise(seconds)

    def _repeat(self, call: Call, limit_s: float, at_least: int, at_most: int, index: int, seconds: list[float]) -> int:
        start = last = self._clock()
        done = 0
        while done < at_most and (done < at_least or last - start < limit_s):
            before = self._clock()
            call(index + done)
            last = self._clock()
            seconds.append(last - before)
            done += 1
        return index + done


class CudaTimer:
    """Timing on a CUDA stream with events; short operations also from a CUDA graph, as engines replay them.

    Cold data is the operation's business: its buffers rotate through several times what the L2 holds, in the graph too,
    which holds one call for each set of buffers.
    """

    def __init__(
        self, torch: Any, *, graph_below_s: float = 1e-3, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._torch = torch
        self._graph_below_s = graph_below_s
        self._clock = clock

    def measure(self, call: Call, effort: Effort, *, rotations: int = 1) -> Timing:
        """Eager timing of each call; when it is shorter than `graph_below_s`, the graph's time is the answer."""
        seconds_per_call = self._warm_up(call, effort)
        wanted = int(effort.repeat_s / max(seconds_per_call, 1e-6))
        repetitions = min(max(wanted, effort.min_repetitions), effort.max_repetitions, 1000)
        eager = summarise(self._eager(call, repetitions))
        if eager.median_s > self._graph_below_s:
            return eager
        graph = self._from_graph(call, effort, max(rotations, 2))
        if graph is None:
            return eager
        overhead_s = max(eager.median_s - graph.median_s, 0.0)
        return Timing(graph.median_s, graph.p20_s, graph.p80_s, graph.repetitions, "graph", overhead_s)

    def _warm_up(self, call: Call, effort: Effort) -> float:
        """Calls for `warmup_s`, at least once; returns seconds per call by the wall clock."""
        start, calls = self._clock(), 0
        while True:
            call(calls)
            calls += 1
            self._torch.cuda.synchronize()
            elapsed_s = self._clock() - start
            if elapsed_s >= effort.warmup_s or calls >= effort.max_repetitions:
                return elapsed_s / calls

    def _eager(self, call: Call, repetitions: int) -> list[float]:
        torch = self._torch
        events = [
            (torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(repetitions)
        ]
        for index, (before, after) in enumerate(events):
            before.record()
            call(index)
            after.record()
        torch.cuda.synchronize()
        return [before.elapsed_time(after) / 1e3 for before, after in events]

    def _from_graph(self, call: Call, effort: Effort, calls_per_graph: int) -> Timing | None:
        """Seconds per call when `calls_per_graph` calls, each on its own buffers, are replayed as one graph.

        The percentiles are of whole graphs: the spread between single calls is averaged out.
        """
        torch = self._torch
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph):
                for index in range(calls_per_graph):
                    call(index)
        except RuntimeError:  # an operation that allocates or synchronises cannot be captured: the eager time stands
            torch.cuda.synchronize()
            return None
        graph.replay()
        torch.cuda.synchronize()
        one = self._eager(lambda _: graph.replay(), 1)[0]
        replays = min(max(int(effort.repeat_s / max(one, 1e-6)), effort.min_repetitions), 200)
        timing = summarise([s / calls_per_graph for s in self._eager(lambda _: graph.replay(), replays)])
        return Timing(timing.median_s, timing.p20_s, timing.p80_s, replays * calls_per_graph, "graph")


def summarise(seconds: Sequence[float]) -> Timing:
    """Median, p20 and p80 by linear interpolation between order statistics; every repetition counts."""
    ordered = sorted(seconds)
    return Timing(_quantile(ordered, 0.5), _quantile(ordered, 0.2), _quantile(ordered, 0.8), len(ordered))


def _quantile(ordered: Sequence[float], share: float) -> float:
    position = share * (len(ordered) - 1)
    low = int(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (position - low) * (ordered[high] - ordered[low])
