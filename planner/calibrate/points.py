"""Measured end-to-end points from a CSV file: one row a configuration that somebody ran and published or logged.

Columns: id, source, date, gpu, num_gpus, engine, engine_version, mode (static-batch, online-concurrency, online-rate,
offline), model, dtype, kv_dtype, tp, pp, isl, osl, batch_or_concurrency, request_rate (req/s, or "inf"),
ttft_ms_{mean,p50,p99}, tpot_ms_{mean,p50,p99}, output_tok_s, total_tok_s, req_s, notes, replicas, inferred_fields,
quality, source_group. Empty cells are unknown. Throughput is of the whole system, and so are users and rates.
"""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from splitplan.catalogs.documents import read_text
from splitplan.catalogs.errors import DocumentError, Problem, nearest_names, shorten

MODES = ("static-batch", "online-concurrency", "online-rate", "offline")
MODE_NAMES = {
    "static": "static-batch",
    "batch": "static-batch",
    "closed-loop": "online-concurrency",
    "concurrency": "online-concurrency",
    "burst": "online-concurrency",
    "online": "online-concurrency",
    "open-loop": "online-rate",
    "rate": "online-rate",
    "server": "online-rate",
    "throughput": "offline",
}
"""Other words for the modes."""

NO_VALUE = frozenset({"", "-", "n/a", "na", "nan", "none", "null", "unknown"})
REQUIRED_COLUMNS = ("gpu", "engine", "mode", "model", "tp", "isl", "osl")
MAX_FILE_BYTES = 64 * 2**20


@dataclass(frozen=True, slots=True)
class Latency:
    """One latency as published: whichever statistics the source gives, in seconds."""

    mean_s: float | None = None
    p50_s: float | None = None
    p99_s: float | None = None

    @property
    def central(self) -> tuple[str, float] | None:
        """The statistic to score: the mean where given (robust to define), else the median."""
        if self.mean_s is not None:
            return "mean", self.mean_s
        return None if self.p50_s is None else ("p50", self.p50_s)


@dataclass(frozen=True, slots=True)
class Point:
    """One measured configuration. Lengths are means where the source's lengths vary."""

    id: str
    line: int
    source_group: str
    date: str
    gpu: str
    num_gpus: int
    engine: str
    engine_version: str
    mode: str  # one of MODES where it can be predicted
    model: str
    weight_dtype: str  # "" when not stated
    kv_dtype: str
    tp: int
    pp: int
    replicas: int
    input_tokens: float
    output_tokens: float
    concurrency: int | None  # users, or the static batch
    rate_req_per_s: float | None  # math.inf: all at once
    ttft: Latency
    tpot: Latency
    output_tokens_per_s: float | None
    notes: str
    quality: str
    attention_dp: int = 1  # ranks that run attention each on sequences of their own, sharing the experts
    expert_parallel: int = 0  # ranks that experts are spread over; 0: not stated
    problem: str = ""  # why the row could not be read; lengths are NaN then


def read_points(path: str | Path, *, strict: bool = True) -> list[Point]:
    """Points of one CSV file. Raises DocumentError when it is not such a file, or has no readable row.

    Rows that cannot be read are an error too, all of them in one go, or with `strict=False` points with a `problem`.
    """
    points: list[Point] = []
    problems: list[Problem] = []
    for row, line in read_table(path, REQUIRED_COLUMNS):
        try:
            points.append(_point(row, line))
        except _BadCellError as bad:
            problems.append(Problem(bad.message, f"{path}:{line}", bad.column, bad.expected))
            points.append(_unreadable(row, line, bad))
    if problems and (strict or len(problems) == len(points)):
        raise DocumentError(problems)
    return points


def lenient_point(row: Mapping[str, str | None], line: int) -> Point:
    """The point of one row; what cannot be read becomes its `problem`."""
    try:
        return _point(row, line)
    except _BadCellError as bad:
        return _unreadable(row, line, bad)


def read_table(path: str | Path, required: Sequence[str]) -> list[tuple[dict[str, str | None], int]]:
    """Rows of a CSV file with their lines; raises DocumentError when a required column or every row is missing."""
    text = read_text(path, "measurements", max_bytes=MAX_FILE_BYTES)
    reader = csv.DictReader(io.StringIO(text))
    header = list(reader.fieldnames or [])
    missing = [name for name in required if name not in header]
    if missing:
        hints = [f"{name} (found {near[0]})" if (near := nearest_names(name, header)) else name for name in missing]
        raise DocumentError(
            Problem(
                f"missing column{'s' if len(missing) > 1 else ''} {', '.join(hints)}",
                f"{path}:1",
                expected="a CSV file of measured points",
                next_step="see docs/accuracy.md for the columns",
            )
        )
    rows = [(row, reader.line_num) for row in reader]
    if not rows:
        raise DocumentError(Problem("no rows", str(path), expected="at least one measured point"))
    return rows


class _BadCellError(Exception):
    def __init__(self, column: str, message: str, expected: str) -> None:
        super().__init__(message)
        self.column, self.message, self.expected = column, message, expected


def _point(row: Mapping[str, str | None], line: int) -> Point:
    mode, notes = _mode(row), _text(row, "notes")
    pp, replicas, num_gpus = _count(row, "pp") or 1, _count(row, "replicas"), _count(row, "num_gpus")
    tp = _count(row, "tp") or max(1, (num_gpus or 1) // (pp * (replicas or 1)))
    attention_dp = _stated(notes, r"\b(?:attn_|attention[ _-])?dp ?= ?(\d+)") or 1
    outside = attention_dp if num_gpus and tp * pp * attention_dp <= num_gpus else 1
    if replicas is None:
        replicas = max(1, (num_gpus or 1) // (tp * pp * outside))
    rate = _number(row, "request_rate", allow_inf=True)
    return Point(
        id=_text(row, "id") or f"row-{line}",
        line=line,
        source_group=_text(row, "source_group") or _text(row, "source") or "this file",
        date=_text(row, "date"),
        gpu=_text(row, "gpu"),
        num_gpus=num_gpus or tp * pp * replicas,
        engine=_text(row, "engine"),
        engine_version=_text(row, "engine_version"),
        mode=mode,
        model=_text(row, "model"),
        weight_dtype=_text(row, "dtype"),
        kv_dtype=_text(row, "kv_dtype"),
        tp=tp,
        pp=pp,
        replicas=replicas,
        input_tokens=_positive(row, "isl"),
        output_tokens=_positive(row, "osl"),
        concurrency=_count(row, "batch_or_concurrency"),
        rate_req_per_s=rate,
        ttft=_latency(row, "ttft"),
        tpot=_latency(row, "tpot"),
        output_tokens_per_s=_number(row, "output_tok_s"),
        notes=notes,
        quality=_text(row, "quality"),
        attention_dp=attention_dp,
        expert_parallel=_stated(notes, r"moe_ep ?= ?(\d+)"),
    )


def _mode(row: Mapping[str, str | None]) -> str:
    """The mode in our words; what is no mode is left as it is, for the reason that a report gives."""
    text = _text(row, "mode")
    plain = re.sub(r"[ _]+", "-", text.lower())
    mode = MODE_NAMES.get(plain, plain)
    if mode == "online-concurrency" and plain != mode and not _text(row, "batch_or_concurrency"):
        mode = "online-rate"
    return mode if mode in MODES else text


def _stated(notes: str, pattern: str) -> int:
    """The number that a note states; 0 for none."""
    found = re.search(pattern, notes, re.IGNORECASE)
    return int(found.group(1)[:6]) if found else 0


def _latency(row: Mapping[str, str | None], name: str) -> Latency:
    mean, p50, p99 = (_number(row, f"{name}_ms_{statistic}") for statistic in ("mean", "p50", "p99"))
    return Latency(*(None if value is None else value * 1e-3 for value in (mean, p50, p99)))


def _text(row: Mapping[str, str | None], column: str) -> str:
    return (row.get(column) or "").strip()


def _number(row: Mapping[str, str | None], column: str, *, allow_inf: bool = False) -> float | None:
    text = _text(row, column)
    if text.lower() in NO_VALUE:
        return None
    try:
        value = float(text)
    except ValueError:
        raise _BadCellError(column, f"is {shorten(repr(text), 40)}", "a number") from None
    if math.isnan(value) or value < 0 or (math.isinf(value) and not allow_inf):
        raise _BadCellError(column, f"is {text}", "a number of at least 0")
    return value


def _positive(row: Mapping[str, str | None], column: str) -> float:
    value = _number(row, column)
    if value is None or value <= 0:
        raise _BadCellError(column, "is empty" if value is None else f"is {value:g}", "a number above 0, in tokens")
    return value


def _count(row: Mapping[str, str | None], column: str) -> int | None:
    value = _number(row, column)
    if value is None:
        return None
    if not 1 <= value <= 10_000_000:
        raise _BadCellError(column, f"is {value:g}", "a number of at least 1")
    return round(value)


def _unreadable(row: Mapping[str, str | None], line: int, bad: _BadCellError) -> Point:
    empty = dict.fromkeys(row, "") | {name: row.get(name) for name in ("id", "source_group", "gpu", "engine", "mode")}
    point = _point({**empty, "isl": "1", "osl": "1"}, line)
    problem = f"{bad.column} {bad.message}; expected {bad.expected}"
    return replace(point, model=_text(row, "model"), input_tokens=math.nan, output_tokens=math.nan, problem=problem)


def group_names(points: Sequence[Point]) -> list[str]:
    """Source groups in order of first appearance: the unit of cross-validation."""
    return list(dict.fromkeys(point.source_group for point in points))
