"""CSV traces (Azure 2023 and 2024, BurstGPT, and any with a header we know), parsed in blocks of a few megabytes."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import BinaryIO

import numpy as np

from splitplan.catalogs.errors import DocumentError, Problem, shorten
from splitplan.planner.spec.trace import block as faults
from splitplan.planner.spec.trace.block import Block, Row, RowBuffer, TraceFacts, whole_number
from splitplan.planner.spec.trace.columns import Columns, match_columns
from splitplan.planner.spec.trace.numbers import Bytes, Mask, parse_decimals, parse_integers, parse_stamps
from splitplan.planner.spec.trace.report import Tally
from splitplan.planner.spec.workload import FloatArray, IntArray
from splitplan.planner.spec.workload_schema import MAX_TOKENS

CHUNK_BYTES = 4 * 2**20
MAX_HEADER_BYTES = 64 * 2**10
MAX_ROW_BYTES = 2**20
MAX_CLASS_BYTES = 64
FIRST_ROWS = 100
_NEWLINE, _COMMA, _QUOTE, _RETURN = b'\n,"\r'


@dataclass
class _Table:
    """How the rows of one file are laid out."""

    header: list[str]
    columns: Columns
    facts: TraceFacts
    tally: Tally
    stamped: bool | None = None  # arrival times are time stamps, not numbers; None before the first row
    unit_s: float = 1.0  # of numeric arrival times
    origin: float = 0  # first arrival: whole ns since 1970 (as an int, floats are too coarse), or in units
    places: dict[str, int] = field(default_factory=dict)


def read_csv(
    handle: BinaryIO, where: str, wanted: Mapping[str, str], facts: TraceFacts, tally: Tally
) -> Iterator[Block]:
    """Blocks of rows of an open CSV file. Raises DocumentError for a header that says neither prompt nor output."""
    first = handle.readline(MAX_HEADER_BYTES)
    header = _header(first, where)
    columns = match_columns(header, wanted, f"{where}:1")
    table = _Table(header, columns, facts, tally)
    roles = {"time": columns.time, "input": columns.input, "output": columns.output, "class": columns.klass}
    table.places = {role: header.index(name) for role, name in roles.items() if name is not None}
    table.unit_s = 1e-3 if columns.time is not None and columns.time.casefold().endswith("ms") else 1.0
    line, rest = 2, b""
    while chunk := handle.read(CHUNK_BYTES):
        text = rest + chunk
        end = text.rfind(b"\n") + 1
        rest = text[end:]
        if len(rest) > MAX_ROW_BYTES:
            raise DocumentError(Problem("a line of more than 1 MiB", f"{where}:{line}", expected="a CSV trace"))
        if end:
            block, num_lines = _parse(text[:end], line, table)
            line += num_lines
            yield block
    if rest.strip():
        yield _last_line(rest, line, table)


def _header(line: bytes, where: str) -> list[str]:
    try:
        names = next(csv.reader([line.decode("utf-8-sig")]), [])
    except (UnicodeDecodeError, csv.Error):
        names = []
    names = [name.strip() for name in names]
    if len(names) < 2 or not all(any(character.isalpha() for character in name) for name in names):
        message = f"starts with '{shorten(line.decode('utf-8', 'replace'), 60)}', which is no CSV header"
        other = next((name for name, mark in (("semicolons", b";"), ("tabs", b"\t")) if line.count(mark) > 1), "")
        hint = f"its fields look separated by {other}; write commas" if other else ""
        expected = "a trace: CSV with a header, JSON lines, or JSON"
        raise DocumentError(Problem(message, f"{where}:1", expected=expected, next_step=hint))
    return names


def _parse(text: bytes, first_line: int, table: _Table) -> tuple[Block, int]:
    """The rows of whole lines, and how many lines there were."""
    buffer: Bytes = np.frombuffer(text, dtype=np.uint8)
    newline = np.flatnonzero(buffer == _NEWLINE)
    start = np.concatenate([[0], newline[:-1] + 1])
    end = newline - ((newline > start) & (buffer[newline - 1] == _RETURN))
    line = first_line + np.arange(len(newline))
    filled = end > start
    start, end, line = start[filled], end[filled], line[filled]
    table.tally.num_rows += len(line)
    if table.stamped is None and len(line):
        _look_at_first_rows(text, start, end, table)
    fields, regular = _split(buffer, start, end, len(table.header))
    fast = _fast_rows(buffer, fields, regular, line, table)
    slow = np.flatnonzero(~fast[1])
    rows = RowBuffer(table.tally)
    for row in slow.tolist():
        _slow_row(text[start[row] : end[row]], int(line[row]), table, rows)
    return _merged(fast[0], rows), len(newline)


def _split(
    buffer: Bytes, start: IntArray, end: IntArray, num_fields: int
) -> tuple[list[tuple[IntArray, IntArray]], Mask]:
    """Starts and ends of each field, and which rows have exactly `num_fields` unquoted ones."""
    comma = np.flatnonzero(buffer == _COMMA)
    first = np.searchsorted(comma, start)
    regular = np.searchsorted(comma, end) - first == num_fields - 1
    if (buffer == _QUOTE).any():
        quote = np.flatnonzero(buffer == _QUOTE)
        regular &= np.searchsorted(quote, start) == np.searchsorted(quote, end)
    last = max(len(comma) - 1, 0)
    padded = comma if len(comma) else np.zeros(1, dtype=np.int64)
    edges = [start - 1, *(padded[np.minimum(first + index, last)] for index in range(num_fields - 1)), end]
    return [(edges[index] + 1, edges[index + 1]) for index in range(num_fields)], regular


def _fast_rows(
    buffer: Bytes, fields: list[tuple[IntArray, IntArray]], regular: Mask, line: IntArray, table: _Table
) -> tuple[Block, Mask]:
    """The rows that the column parsers can read and that can be served, and a mask of which those are."""
    good = regular.copy()
    values: dict[str, IntArray] = {}
    rows = np.flatnonzero(regular)
    for role in ("input", "output"):
        start, end = fields[table.places[role]]
        number, ok = parse_integers(buffer, start[rows], end[rows])
        values[role] = number
        good[rows] &= ok & (number > 0) & (number <= MAX_TOKENS)
    time_s = np.full(len(rows), math.nan)
    if "time" in table.places:
        start, end = fields[table.places["time"]]
        time_s, ok = _times(buffer, start[rows], end[rows], table)
        good[rows] &= ok
    code = np.zeros(len(rows), dtype=np.int64)
    if "class" in table.places:
        start, end = fields[table.places["class"]]
        code, ok = _class_codes(buffer, start[rows], end[rows], table.facts)
        good[rows] &= ok
    keep = good[rows]
    block = Block(line[good], time_s[keep], values["input"][keep], values["output"][keep], code[keep])
    return block, good


def _times(buffer: Bytes, start: IntArray, end: IntArray, table: _Table) -> tuple[FloatArray, Mask]:
    if table.stamped:
        stamp, ok = parse_stamps(buffer, start, end)
        return (stamp - int(table.origin)) / 1e9, ok
    number, ok = parse_decimals(buffer, start, end)
    return (number - table.origin) * table.unit_s, ok


def _class_codes(buffer: Bytes, start: IntArray, end: IntArray, facts: TraceFacts) -> tuple[IntArray, Mask]:
    length = end - start
    readable = length <= MAX_CLASS_BYTES
    width = max(int(np.max(length, where=readable, initial=0)), 1)
    places = start[:, None] + np.arange(width)
    text = np.where(places < end[:, None], buffer[np.minimum(places, len(buffer) - 1)], 0)
    names, inverse = np.unique(np.ascontiguousarray(text).view(f"S{width}").ravel(), return_inverse=True)
    codes = np.array([facts.code(name.decode("utf-8", "replace").strip()) for name in names.tolist()])
    return codes[inverse], readable


def _look_at_first_rows(text: bytes, start: IntArray, end: IntArray, table: _Table) -> None:
    """Decide from the first readable row whether arrivals are time stamps, and where time starts."""
    table.stamped, table.origin = False, 0
    if "time" not in table.places:
        return
    for row in range(min(len(start), FIRST_ROWS)):
        cells = _cells(text[start[row] : end[row]])
        cell = cells[table.places["time"]] if len(cells) == len(table.header) else ""
        for stamped in (True, False):
            moment = _moment(cell, stamped)
            if moment is not None:
                table.stamped, table.origin = stamped, moment
                return


def _slow_row(text: bytes, line: int, table: _Table, rows: RowBuffer) -> None:
    """One row that the column parsers did not take: read exactly, or counted as left out."""
    cells = _cells(text)
    if len(cells) != len(table.header):
        table.tally.leave_out(faults.WRONG_FIELDS, line)
        return
    prompt, output = (whole_number(cells[table.places[role]]) for role in ("input", "output"))
    if prompt is None or output is None:
        table.tally.leave_out(faults.BAD_NUMBER, line)
        return
    time_s = math.nan
    if "time" in table.places:
        moment = _moment(cells[table.places["time"]], bool(table.stamped))
        if moment is None:
            table.tally.leave_out(faults.BAD_TIME, line)
            return
        time_s = (moment - table.origin) * (1e-9 if table.stamped else table.unit_s)
    code = table.facts.code(cells[table.places["class"]]) if "class" in table.places else 0
    rows.add(Row(line, time_s, prompt, output, code))


def _cells(text: bytes) -> list[str]:
    """The fields of one line; [] when it is no CSV."""
    try:
        return [cell.strip() for cell in next(csv.reader([text.decode("utf-8", "replace")], strict=True), [])]
    except csv.Error:
        return []


def _moment(cell: str, stamped: bool) -> float | None:
    """An arrival as a number, or as whole ns since 1970 when `stamped`; None when it is neither."""
    if stamped:
        buffer = np.frombuffer(cell.encode() or b" ", dtype=np.uint8)
        stamp, ok = parse_stamps(buffer, np.array([0]), np.array([len(cell.encode())]))
        return int(stamp[0]) if ok[0] else None
    try:
        number = float(cell)
    except ValueError:
        return None
    return number if abs(number) <= faults.MAX_TIME else None


def _last_line(text: bytes, line: int, table: _Table) -> Block:
    """The rest of a file that does not end in a newline: kept when it reads as a row, and noted either way."""
    table.tally.num_rows += 1
    rows = RowBuffer(table.tally)
    before = table.tally.left_out.get(faults.WRONG_FIELDS, 0)
    if table.stamped is None:
        _look_at_first_rows(text, np.array([0]), np.array([len(text)]), table)
    _slow_row(text.rstrip(b"\r"), line, table, rows)
    if len(rows):
        table.tally.notes.append(f"line {line} has no newline: its last number may be cut short")
    elif table.tally.left_out.get(faults.WRONG_FIELDS, 0) > before:
        table.tally.rename(faults.WRONG_FIELDS, faults.TORN, line)
    return rows.flush()


def _merged(fast: Block, rows: RowBuffer) -> Block:
    """Both parts in the order of their lines."""
    if not len(rows):
        return fast
    slow = rows.flush()
    order = np.argsort(np.concatenate([fast.line, slow.line]), kind="stable")
    return Block(
        np.concatenate([fast.line, slow.line])[order],
        np.concatenate([fast.time_s, slow.time_s])[order],
        np.concatenate([fast.input_tokens, slow.input_tokens])[order],
        np.concatenate([fast.output_tokens, slow.output_tokens])[order],
        np.concatenate([fast.class_code, slow.class_code])[order],
    )
