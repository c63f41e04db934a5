"""What a format's reader yields: some rows of a trace, checked, with the line each came from."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import NamedTuple

import numpy as np

from splitplan.catalogs.errors import InputError, Problem, shorten
from splitplan.planner.spec.trace.report import Tally
from splitplan.planner.spec.workload import FloatArray, IntArray
from splitplan.planner.spec.workload_schema import MAX_TOKENS

MAX_CLASSES = 1000
MAX_TIME = 1e15  # of arrivals in whatever unit; larger numbers cannot be told apart
DEFAULT_BLOCK_TOKENS = 512  # of hash_ids, as Mooncake records them
NO_PROMPT = "no prompt tokens"
NO_OUTPUT = "no generated tokens"
NEGATIVE = "negative tokens"
HUGE = f"more than {MAX_TOKENS} tokens"
BAD_TIME = "arrival time is no number or time stamp"
BAD_NUMBER = "tokens are no whole number"
WRONG_FIELDS = "wrong number of fields"
BAD_CACHED = "cached tokens are not below prompt tokens"
TORN = "the file ends inside this line"


@dataclass(frozen=True, slots=True)
class Block:
    """Rows in the order of the file. All arrays have length n; time_s is NaN where the trace has no arrivals."""

    line: IntArray
    time_s: FloatArray
    input_tokens: IntArray
    output_tokens: IntArray
    class_code: IntArray
    blocks: tuple[IntArray, IntArray] | None = None  # prefix hashes of all rows, and how many each row has
    cached_tokens: IntArray | None = None  # prompt tokens a warm cache holds, where the trace says so

    def take(self, rows: IntArray) -> Block:
        """The given rows, in that order; prefix hashes can only be cut, not reordered."""
        blocks = None
        if self.blocks is not None:
            hashes, counts = self.blocks
            kept = np.zeros(len(counts), dtype=np.bool_)
            kept[rows] = True
            blocks = hashes[np.repeat(kept, counts)], counts[rows]
        return Block(
            self.line[rows],
            self.time_s[rows],
            self.input_tokens[rows],
            self.output_tokens[rows],
            self.class_code[rows],
            blocks,
            None if self.cached_tokens is None else self.cached_tokens[rows],
        )


@dataclass
class TraceFacts:
    """What holds for all rows of a file: class names, as codes in order of first appearance, and the block size."""

    class_codes: dict[str, int] = field(default_factory=dict)
    block_tokens: int = DEFAULT_BLOCK_TOKENS

    def code(self, class_name: str) -> int:
        """The code of a class, new or known. Raises InputError when there are too many to be classes."""
        code = self.class_codes.setdefault(class_name or "none", len(self.class_codes))
        if code >= MAX_CLASSES:
            message = f"more than {MAX_CLASSES} different classes, the last one '{shorten(class_name, 40)}'"
            raise InputError(Problem(message, key="column class", expected="a column with few different values"))
        return code


class Row(NamedTuple):
    """One row, parsed but not yet checked. A tuple, because a trace makes millions."""

    line: int
    time_s: float
    input_tokens: int
    output_tokens: int
    class_code: int = 0
    hashes: Sequence[int] | None = None
    cached_tokens: int | None = None


@dataclass
class RowBuffer:
    """Rows gathered one at a time, for formats that are parsed row by row."""

    tally: Tally
    rows: list[Row] = field(default_factory=list)

    def add(self, row: Row) -> None:
        """Add a row, or count why it is left out."""
        reason = fault(row.input_tokens, row.output_tokens)
        if reason is None and not 0 <= (row.cached_tokens or 0) < row.input_tokens:
            reason = BAD_CACHED
        if reason is None:
            self.rows.append(row)
        else:
            self.tally.leave_out(reason, row.line)

    def __len__(self) -> int:
        return len(self.rows)

    def flush(self) -> Block:
        """The rows so far as a block; the buffer is empty afterwards. Rows without hashes share no block."""
        rows, self.rows = self.rows, []
        blocks = None
        if any(row.hashes is not None for row in rows):
            hashes = np.fromiter(chain.from_iterable(row.hashes or () for row in rows), dtype=np.int64)
            blocks = hashes, np.array([len(row.hashes or ()) for row in rows], dtype=np.int64)
        cached = None
        if any(row.cached_tokens is not None for row in rows):
            cached = np.array([row.cached_tokens or 0 for row in rows], dtype=np.int64)
        return Block(
            np.array([row.line for row in rows], dtype=np.int64),
            np.array([row.time_s for row in rows], dtype=np.float64),
            np.array([row.input_tokens for row in rows], dtype=np.int64),
            np.array([row.output_tokens for row in rows], dtype=np.int64),
            np.array([row.class_code for row in rows], dtype=np.int64),
            blocks,
            cached,
        )


def fault(prompt: int, output: int) -> str | None:
    """Why a request of these lengths cannot be served, or None."""
    if prompt < 0 or output < 0:
        return NEGATIVE
    if prompt > MAX_TOKENS or output > MAX_TOKENS:
        return HUGE
    if prompt == 0:
        return NO_PROMPT
    return NO_OUTPUT if output == 0 else None


def whole_number(value: object) -> int | None:
    """An integer from a JSON value or text such as `374` or `374.0`; None when it is none."""
    if type(value) is int:
        return value
    if isinstance(value, bool) or value is None:
        return None
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return None
    return int(number) if math.isfinite(number) and number == int(number) else None
