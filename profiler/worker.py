"""Measuring on another machine: a request of points comes in, finished rows go out as JSON lines, one by one.

Whatever starts a process there and carries its output back will do: srun, ssh, a Ray task, the log of a Kubernetes Job.
Rows reach the disk of the machine that asked, so a job that is killed loses nothing and its successor is asked only for
what is missing.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

from splitplan.catalogs.errors import Problem, ProfileError, shorten
from splitplan.profiler.measure import measure_plan
from splitplan.profiler.points import MeasurementPlan, Point
from splitplan.profiler.rows import ROW_VERSION, Row, parse_row
from splitplan.profiler.session import open_bench, today
from splitplan.profiler.timer import Effort

REQUEST_VERSION = 1
ROW_MARK = "row "  # what a line of output starts with that is a row: anything else on stdout is somebody's chatter
END_LINE = "rows end\n"  # the last line of a worker that got through its request


class StreamedRows:
    """Rows that are written out as they come; nothing is kept here."""

    path = "the request"

    def __init__(self, write: Callable[[str], object]) -> None:
        self.rows: list[Row] = []
        self._write = write

    def append(self, row: Row) -> None:
        """One line."""
        self._write(ROW_MARK + json.dumps({"version": ROW_VERSION, **asdict(row)}, ensure_ascii=False) + "\n")


def make_request(device: str, gpu: str, plan: MeasurementPlan, budget_s: float | None) -> str:
    """A plan of points as one line of JSON."""
    document = {
        "version": REQUEST_VERSION,
        "device": device,
        "gpu": gpu,
        "budget_s": budget_s,
        "effort": asdict(plan.effort),
        "plan": plan.plan_hash,
        "points": [asdict(point) for point in plan.points],
    }
    return json.dumps(document, ensure_ascii=False)


def serve(request_text: str, write: Callable[[str], object]) -> None:
    """Measures a request's points on this machine, writing each row as it is finished."""
    device, gpu, plan, budget_s, plan_hash = _parse_request(request_text)
    bench = open_bench(device, gpu)
    try:
        provenance = {**bench.provenance, "plan": plan_hash[:16], "date": today()}
        measure_plan(plan, runner=bench.runner, rows=StreamedRows(write), provenance=provenance, budget_s=budget_s)
    finally:
        bench.close()
    write(END_LINE)


def row_of_line(line: str, where: str) -> Row | None:
    """The row on a line of a worker's output, or None where it is anything else."""
    if not line.startswith(ROW_MARK):
        return None
    return parse_row(line.removeprefix(ROW_MARK).encode(), where)


def _parse_request(text: str) -> tuple[str, str, MeasurementPlan, float | None, str]:
    try:
        document: Mapping[str, Any] = json.loads(text)
        if document["version"] != REQUEST_VERSION:
            raise ProfileError(
                Problem(
                    f"request of version {shorten(document['version'])}, this release reads {REQUEST_VERSION}",
                    next_step="install the same release of splitplan on both machines",
                )
            )
        points = tuple(_parse_point(entry) for entry in document["points"])
        effort = Effort(**document["effort"])
        plan = MeasurementPlan(points, (), effort, 0.0)
        return str(document["device"]), str(document["gpu"]), plan, document["budget_s"], str(document["plan"])
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        problem = Problem(
            f"not a measuring request ({type(error).__name__})", next_step="planner profile --via … writes one"
        )
        raise ProfileError(problem) from None


def _parse_point(entry: Mapping[str, Any]) -> Point:
    shape = tuple((str(name), value) for name, value in entry["shape"])
    detail = tuple((str(name), int(value)) for name, value in entry["detail"])
    return Point(str(entry["family"]), shape, detail, int(entry["level"]), float(entry["op_s"]))
