"""Who runs a point: operations of one device in this process, collectives in processes of their own."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from splitplan.catalogs.errors import Problem, ProfileError
from splitplan.profiler.device import Device, DeviceState
from splitplan.profiler.operations import Workbench
from splitplan.profiler.points import Point
from splitplan.profiler.timer import Effort, Timer, Timing


class DeviceLostError(ProfileError):
    """The device does not answer any more: nothing further can be measured in this process."""


@dataclass(frozen=True, slots=True)
class Run:
    """One timed point, with the device's state before and after it."""

    timing: Timing
    cache: str
    before: DeviceState = field(default_factory=DeviceState)
    after: DeviceState = field(default_factory=DeviceState)


class Runner(Protocol):
    """Times points."""

    def run(self, point: Point, effort: Effort) -> Run:
        """Times one point; what it raises is recorded as the point's failure, except DeviceLostError."""
        ...


class OperationRunner:
    """Builds a point's operation, checks it once against poisoned outputs, and times it."""

    def __init__(self, device: Device, timer: Timer, workbench: Workbench) -> None:
        self._device = device
        self._timer = timer
        self._workbench = workbench

    def run(self, point: Point, effort: Effort) -> Run:
        """Times one point; ProfileError when it leaves output unwritten."""
        try:
            operation = self._workbench.prepare(point)
            operation.poison()
            start_s = time.perf_counter()
            operation.call(0)
            if not operation.is_finite():  # waits for the call
                raise ProfileError("the operation left part of its output unwritten, or wrote NaN or infinity")
            effort = effort.for_call(time.perf_counter() - start_s)
            before = self._device.state()
            timing = self._timer.measure(operation.call, effort, rotations=operation.rotations)
            return Run(timing, operation.cache, before, self._device.state())
        except Exception as error:
            if not self._workbench.is_alive():
                next_step = "--resume goes on with the next point once the GPU is well again"
                raise DeviceLostError(
                    Problem(f"the device stopped working at '{point.key}': {error}", next_step=next_step)
                ) from error
            raise


class RunnerByKind:
    """Copies and kernels to one runner, collectives and NIXL transfers to others."""

    def __init__(self, operations: Runner, collectives: Mapping[int, Runner], nixl: Runner) -> None:
        self._operations = operations
        self._collectives = collectives  # by number of ranks
        self._nixl = nixl

    def run(self, point: Point, effort: Effort) -> Run:
        """Times one point wherever it belongs."""
        if point.family == "send" and point.text("link") == "nixl":
            return self._nixl.run(point, effort)
        if "how" in dict(point.shape) and point.text("how") != "copy":
            return self._collectives[point["ranks"]].run(point, effort)
        return self._operations.run(point, effort)
