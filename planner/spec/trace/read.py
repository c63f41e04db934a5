"""Reading a trace: what format it is in, its rows streamed, sorted by arrival, and accounted for."""

from __future__ import annotations

import gzip
import json
import math
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, cast

import numpy as np

from splitplan.catalogs.errors import DocumentError, InputError, Problem
from splitplan.planner.spec.trace.block import Block, TraceFacts
from splitplan.planner.spec.trace.csv_rows import read_csv
from splitplan.planner.spec.trace.json_rows import read_array, read_bench_result, read_json_lines, read_whole
from splitplan.planner.spec.trace.report import ReadReport, Tally
from splitplan.planner.spec.workload import IntArray, PrefixBlocks, Requests

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
        blocks = [_in_window(block, start_s, end_s, tally) for block in found]
    blocks = [block for block in blocks if len(block.line)]
    return _assembled(blocks, trace_format, where, facts, tally)


@contextmanager
def _opened(path: str | Path) -> Iterator[BinaryIO]:
    """The bytes of a file, unzipped where needed; every way reading can fail becomes a DocumentError."""
    where = str(path)
    try:
        with open(path, "rb") as handle:
            zipped = handle.read(2) == b"\x1f\x8b"
            handle.seek(0)
            if not zipped:
                yield handle
                return
            with gzip.open(handle) as unzipped:
                yield cast(BinaryIO, unzipped)
    except FileNotFoundError:
        raise DocumentError(Problem("no such trace", where, next_step="check the path")) from None
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise DocumentError(Problem(f"damaged gzip file: {error}", where, next_step="copy the file again")) from None
    except (OSError, ValueError) as error:
        raise DocumentError(Problem(f"cannot read trace: {error}", where)) from None


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


def _assembled(blocks: list[Block], trace_format: str, where: str, facts: TraceFacts, tally: Tally) -> Trace:
    num_left_out = sum(tally.left_out.values())
    report = tally.report(where, trace_format, sum(len(block.line) for block in blocks))
    if num_left_out > MAX_SHARE_LEFT_OUT * tally.num_rows:
        message = f"{num_left_out} of {tally.num_rows} rows cannot be used: " + "; ".join(report.lines())
        raise DocumentError(Problem(message, where, expected="mostly whole rows with tokens above 0"))
    if not blocks:
        message = "holds no request"
        if tally.num_outside_window:
            message += f" in the window; {tally.num_outside_window} rows lie outside it"
        raise DocumentError(Problem(message, where, expected="at least one request"))
    time_s = np.concatenate([block.time_s for block in blocks])
    has_arrivals = not bool(np.isnan(time_s).any())
    order = np.argsort(time_s, kind="stable") if has_arrivals else np.arange(len(time_s))
    if has_arrivals:
        tally.num_unsorted = int((np.diff(time_s) < 0).sum())
        arrival_s = time_s[order] - time_s[order[0]]
    else:
        tally.notes.append("no arrival times: lengths only")
        arrival_s = np.zeros(len(time_s))
    class_index, class_names = _classes(_column(blocks, "class_code", order), tuple(facts.class_codes) or ("all",))
    requests = Requests(
        arrival_s,
        _column(blocks, "input_tokens", order),
        _column(blocks, "output_tokens", order),
        class_index,
        _cached(blocks, order),
        _prefix(blocks, order, facts.block_tokens),
    )
    report = tally.report(where, trace_format, len(order))
    return Trace(requests, class_names, has_arrivals, report)


def _column(blocks: list[Block], name: str, order: IntArray) -> IntArray:
    return np.asarray(np.concatenate([getattr(block, name) for block in blocks])[order])


def _classes(code: IntArray, names: tuple[str, ...]) -> tuple[IntArray, tuple[str, ...]]:
    """Codes numbered anew by first arrival, without those that no request has, and their names."""
    present, first, index = np.unique(code, return_index=True, return_inverse=True)
    by_arrival = np.argsort(first, kind="stable")
    rank = np.argsort(by_arrival, kind="stable")
    return rank[index], tuple(names[old] for old in present[by_arrival].tolist())


def _cached(blocks: list[Block], order: IntArray) -> IntArray:
    """Cached prompt tokens in order of arrival; a row of zeros without memory where the trace says nothing."""
    if all(block.cached_tokens is None for block in blocks):
        return np.broadcast_to(np.int64(0), len(order))
    parts = [
        np.zeros(len(block.line), dtype=np.int64) if (own := block.cached_tokens) is None else own for block in blocks
    ]
    return np.asarray(np.concatenate(parts)[order])


def _prefix(blocks: list[Block], order: IntArray, block_tokens: int) -> PrefixBlocks | None:
    """The prefix blocks in order of arrival, where any row has them."""
    if all(block.blocks is None for block in blocks):
        return None
    nothing = np.zeros(0, dtype=np.int64)
    parts = [block.blocks or (nothing, np.zeros(len(block.line), dtype=np.int64)) for block in blocks]
    offsets = np.concatenate([[0], np.cumsum(np.concatenate([counts for _, counts in parts]))])
    return PrefixBlocks(block_tokens, offsets, np.concatenate([hashes for hashes, _ in parts])).take(order)
