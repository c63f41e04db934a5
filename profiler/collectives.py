"""Collectives over torch.distributed, timed in one process per rank: nccl between GPUs, gloo on a CPU.

The ranks are processes that this one starts and talks to in JSON lines (`collective_worker`); a rank that dies or hangs
fails its point and the group starts anew for the next one.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from splitplan.catalogs.errors import ProfileError
from splitplan.profiler.points import Point
from splitplan.profiler.runners import Run
from splitplan.profiler.timer import Effort, Timing

START_S = 60.0
POINT_S = 60.0  # on top of what a point is asked to take


class CollectiveRunner:
    """A group of `ranks` processes that run one collective at a time."""

    def __init__(self, ranks: int, backend: str) -> None:
        self._ranks = ranks
        self._backend = backend
        self._workers: list[subprocess.Popen[str]] = []
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    def run(self, point: Point, effort: Effort) -> Run:
        """Times one collective; the slowest rank counts."""
        request = {"family": point.family, "num_bytes": point["num_bytes"], "repeat_s": effort.repeat_s}
        try:
            self._start()
            for worker in self._workers:
                assert worker.stdin is not None
                worker.stdin.write(json.dumps(request) + "\n")
                worker.stdin.flush()
            answers = [self._answer(worker, POINT_S + effort.repeat_s) for worker in self._workers]
        except (ProfileError, OSError):
            self.close()
            raise
        errors = [answer["error"] for answer in answers if "error" in answer]
        if errors:
            self.close()  # the ranks may disagree about where they are: start over
            raise ProfileError(errors[0])
        timing = answers[0]
        return Run(Timing(timing["median_s"], timing["p20_s"], timing["p80_s"], timing["repetitions"]), "warm")

    def _start(self) -> None:
        if self._workers:
            return
        self._folder = tempfile.TemporaryDirectory(prefix="splitplan-ranks-")
        meeting_point = Path(self._folder.name) / "store"
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "OMP_PROC_BIND": "false"}
        if self._backend == "gloo":
            environment |= {"GLOO_SOCKET_IFNAME": "lo"}
        for rank in range(self._ranks):
            arguments = [str(rank), str(self._ranks), self._backend, f"file://{meeting_point}"]
            self._workers.append(
                subprocess.Popen(
                    [sys.executable, "-m", "splitplan.profiler.collective_worker", *arguments],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                    text=True,
                    bufsize=1,
                    env=environment,
                )
            )
        for worker in self._workers:
            answer = self._answer(worker, START_S)
            if "error" in answer:
                raise ProfileError(answer["error"])

    def _answer(self, worker: subprocess.Popen[str], limit_s: float) -> dict[str, Any]:
        assert worker.stdout is not None
        ready, _, _ = select.select([worker.stdout], [], [], limit_s)
        line = worker.stdout.readline() if ready else ""
        if not line:
            reason = "ended" if ready else f"gave no answer within {limit_s:.0f} s"
            raise ProfileError(f"a rank of {self._ranks} over {self._backend} {reason}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        """Ends the ranks."""
        for worker in self._workers:
            worker.kill()
            worker.wait()
            for stream in (worker.stdin, worker.stdout):
                if stream is not None:
                    with contextlib.suppress(OSError):  # what was still to be written to a rank that is gone
                        stream.close()
        self._workers = []
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None
