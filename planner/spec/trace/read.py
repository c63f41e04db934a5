"""Reading a trace: what format it is in, its rows streamed, sorted by arrival, and accounted for."""

from __future__ import annotations

import gzip
import json
import math
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO, cast

import numpy as np

from splitplan.catalogs.errors import DocumentError, InputError, Problem
from splitplan.planner.spec.trace.block import Block, TraceFacts
from splitplan.planner.spec.trace.csv_rows import read_csv
from splitplan.planner.spec.trace.gather import Gathered, SmallArray
from splitplan.planner.spec.trace.json_rows import read_array, read_bench_result, read_json_lines, read_whole
from splitplan.planner.spec.trace.report import ReadReport, Tally
from splitplan.planner.spec.workload import IntArray, Requests

SNIFF_BYTES = 64 * 2**10
MAX_SHARE_LEFT_OUT = 0.5
FORMATS = "a trace: CSV with a header, JSON lines, or JSON"


@dataclass(frozen=True, slots=True)
class Trace:
    """Requests in order of arrival, from 0 s on, and the account of how they were read."""

    requests: Requests
    class_names: tuple[str, ...]  # of the classes that have requests, in order of first arrival
    has_arrivals: bool  # False: lengths only, all arrivals are 0
    report: ReadReport


def read_trace(
    path: str | Path,
    *,
    columns: Mapping[str, str] | None = None,
    start_s: float = 0.0,
    end_s: float | None = None,
) -> Trace:
    """Read a trace, plain or gzipped: Azure 2023/2024, BurstGPT or other CSV; Mooncake or our JSON lines; JSON.

    `columns` names the columns of a CSV or the keys of JSON by role (time, input, output, class) where they are not
    the known ones. The window [start_s, end_s) counts from the first row's arrival; rows outside are not kept in
    memory. Rows without prompt or output, torn or broken are left out and counted in the report.

    Raises DocumentError when the file cannot be read, is in no known format, has more broken rows than good ones, or
    holds no request at all.
    """
    where = str(path)
    if not (0 <= start_s < math.inf) or not (end_s is None or start_s < end_s):
        expected = "0 <= start < end, in seconds"
        raise InputError(Problem(f"window from {start_s:g} to {end_s} s", where, "window", expected))
    tally, facts = Tally(), TraceFacts()
    with _opened(path) as handle:
        trace_format, found = _blocks(handle, where, columns or {}, facts, tally)
        gathered = Gathered()
        for block in found:
            gathered.add(_in_window(block, start_s, end_s, tally))
    _check(gathered.num_rows, trace_format, where, tally)
    requests, code, has_arrivals, tally.num_unsorted = gathered.finish(facts.block_tokens)
    if not has_arrivals:
        tally.notes.append("no arrival times: lengths only")
    class_index, class_names = _classes(code, tuple(facts.class_codes) or ("all",))
    report = tally.report(where, trace_format, len(requests))
    return Trace(replace(requests, class_index=class_index), class_names, has_arrivals, report)


@contextmanager
def _opened(path: str | Path) -> Iterator[BinaryIO]:
    """The bytes of a file, unzipped where needed; every way reading can fail becomes a DocumentError."""
    where = str(path)
    try:
        handle = open(path, "rb")  # noqa: SIM115 (closed below; errors of opening are told apart from those of reading)
    except FileNotFoundError:
        raise DocumentError(Problem("no such trace", where, next_step="check the path")) from None
    except (OSError, ValueError) as error:
        raise DocumentError(Problem(f"cannot read trace: {error}", where)) from None
    with handle:
        try:
            zipped = handle.read(2) == b"\x1f\x8b"
            handle.seek(0)
            if zipped:
                with gzip.open(handle) as unzipped:
                    yield cast(BinaryIO, unzipped)
            else:
                yield handle
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise DocumentError(Problem(f"damaged gzip file: {error}", where, next_step="copy it again")) from None
        except OSError as error:
            raise DocumentError(Problem(f"cannot read trace: {error.strerror or error}", where)) from None


def _blocks(
    handle: BinaryIO, where: str, columns: Mapping[str, str], facts: TraceFacts, tally: Tally
) -> tuple[str, Iterator[Block]]:
    """The format of a file by its first bytes, and its blocks."""
    head = handle.read(SNIFF_BYTES)
    handle.seek(0)
    text = head.lstrip(b"\xef\xbb\xbf \t\r\n")
    if not text:
        raise DocumentError(Problem("holds nothing", where, expected=FORMATS))
    if b"\0" in head:
        raise DocumentError(Problem("holds binary data", where, expected=FORMATS))
    if text.startswith(b"["):
        return "json-array", read_array(handle, where, columns, facts, tally)
    if text.startswith(b"{"):
        if _is_json_line(text):
            return "json-lines", read_json_lines(handle, where, columns, facts, tally)
        return "vllm-bench-json", iter([read_bench_result(read_whole(handle, where), where, tally)])
    return "csv", read_csv(handle, where, columns, facts, tally)


def _is_json_line(text: bytes) -> bool:
    """Whether the first line is an object of its own that is not a whole result of `vllm bench`."""
    line, newline, _ = text.partition(b"\n")
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return bool(newline) and line.rstrip().endswith(b"}")  # torn or broken, but a line of its own
    return isinstance(record, dict) and "input_lens" not in record


def _in_window(block: Block, start_s: float, end_s: float | None, tally: Tally) -> Block:
    if start_s == 0 and end_s is None:
        return block
    inside = (block.time_s >= start_s) & (block.time_s < (math.inf if end_s is None else end_s))
    inside |= np.isnan(block.time_s)
    tally.num_outside_window += int(len(inside) - inside.sum())
    return block.take(np.flatnonzero(inside))


def _check(num_requests: int, trace_format: str, where: str, tally: Tally) -> None:
    """Refuse a trace with more broken rows than good ones, or without any request."""
    report = tally.report(where, trace_format, num_requests)
    if report.num_left_out > MAX_SHARE_LEFT_OUT * tally.num_rows:
        message = f"{report.num_left_out} of {tally.num_rows} rows cannot be used: " + "; ".join(report.lines())
        raise DocumentError(Problem(message, where, expected="mostly whole rows with tokens above 0"))
    if not num_requests:
        message = "holds no request"
        if tally.num_outside_window:
            message += f" in the window; {tally.num_outside_window} rows lie outside it"
        raise DocumentError(Problem(message, where, expected="at least one request"))


def _classes(code: SmallArray, names: tuple[str, ...]) -> tuple[IntArray, tuple[str, ...]]:
    """Codes numbered anew by first arrival, without those that no request has, and their names."""
    used = np.bincount(code, minlength=len(names)) > 0
    if used.sum() == 1:
        return np.broadcast_to(np.int64(0), len(code)), (names[int(np.argmax(used))],)
    present = np.flatnonzero(used)
    first = np.array([np.argmax(code == each) for each in present])
    present = present[np.argsort(first, kind="stable")]
    rank = np.zeros(len(names), dtype=np.int64)
    rank[present] = np.arange(len(present))
    return rank[code], tuple(names[old] for old in present.tolist())
