"""What a format's reader yields: some rows of a trace, checked, with the line each came from."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from splitplan.planner.spec.trace.report import Tally
from splitplan.planner.spec.workload import FloatArray, IntArray
from splitplan.planner.spec.workload_schema import MAX_TOKENS

NO_PROMPT = "no prompt tokens"
NO_OUTPUT = "no generated tokens"
NEGATIVE = "negative tokens"
HUGE = f"more than {MAX_TOKENS} tokens"
BAD_TIME = "arrival time is no number or time stamp"
BAD_NUMBER = "tokens are no whole number"
WRONG_FIELDS = "wrong number of fields"
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


@dataclass
class ClassNames:
    """Class names in order of first appearance, as codes."""

    codes: dict[str, int] = field(default_factory=dict)

    def code(self, name: str) -> int:
        """The code of a name, new or known."""
        return self.codes.setdefault(name, len(self.codes))


@dataclass
class RowBuffer:
    """Rows gathered one at a time, for formats that are parsed row by row."""

    tally: Tally
    line: list[int] = field(default_factory=list)
    time_s: list[float] = field(default_factory=list)
    input_tokens: list[int] = field(default_factory=list)
    output_tokens: list[int] = field(default_factory=list)
    class_code: list[int] = field(default_factory=list)
    hashes: list[int] = field(default_factory=list)
    num_hashes: list[int] = field(default_factory=list)

    def add(
        self, line: int, time_s: float, prompt: int, output: int, code: int = 0, hashes: list[int] | None = None
    ) -> None:
        """Add a row, or count why it is left out."""
        reason = fault(prompt, output)
        if reason is not None:
            self.tally.leave_out(reason, line)
            return
        self.line.append(line)
        self.time_s.append(time_s)
        self.input_tokens.append(prompt)
        self.output_tokens.append(output)
        self.class_code.append(code)
        if hashes is not None:
            self.hashes.extend(hashes)
            self.num_hashes.append(len(hashes))

    def __len__(self) -> int:
        return len(self.line)

    def flush(self) -> Block:
        """The rows so far as a block; the buffer is empty afterwards."""
        blocks = None
        if self.num_hashes and len(self.num_hashes) == len(self.line):
            blocks = np.array(self.hashes, dtype=np.int64), np.array(self.num_hashes, dtype=np.int64)
        block = Block(
            np.array(self.line, dtype=np.int64),
            np.array(self.time_s, dtype=np.float64),
            np.array(self.input_tokens, dtype=np.int64),
            np.array(self.output_tokens, dtype=np.int64),
            np.array(self.class_code, dtype=np.int64),
            blocks,
        )
        for values in (self.line, self.time_s, self.input_tokens, self.output_tokens, self.class_code, self.hashes):
            values.clear()
        self.num_hashes.clear()
        return block


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
    if isinstance(value, bool) or value is None:
        return None
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return None
    return int(number) if math.isfinite(number) and number == int(number) else None
