"""What was read, what was left out, and why, by line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

MAX_EXAMPLES = 5


@dataclass(frozen=True, slots=True)
class ReadReport:
    """The account of one reading: rows = requests + what `left_out` counts + what lies outside the window."""

    path: str
    format: str
    num_rows: int
    num_requests: int
    num_outside_window: int
    left_out: Mapping[str, int]  # reason -> rows
    examples: Mapping[str, tuple[int, ...]]  # reason -> the first lines it happened on
    num_unsorted: int  # rows earlier than the row before them; they were sorted in
    notes: tuple[str, ...]

    @property
    def num_left_out(self) -> int:
        """Rows that could not be used, for whatever reason."""
        return sum(self.left_out.values())

    def lines(self) -> list[str]:
        """One sentence per thing worth knowing, for people."""
        found = []
        for reason, count in self.left_out.items():
            lines = ", ".join(str(line) for line in self.examples[reason])
            more = ", …" if count > len(self.examples[reason]) else ""
            found.append(f"{count} rows left out: {reason} (line {lines}{more})")
        if self.num_unsorted:
            found.append(f"{self.num_unsorted} rows came earlier than the row before them and were sorted in")
        return found + list(self.notes)

    def as_json(self) -> dict[str, Any]:
        """The same for `--json`."""
        return {
            "path": self.path,
            "format": self.format,
            "rows": self.num_rows,
            "requests": self.num_requests,
            "outside_window": self.num_outside_window,
            "left_out": dict(self.left_out),
            "lines": {reason: list(lines) for reason, lines in self.examples.items()},
            "unsorted": self.num_unsorted,
            "notes": list(self.notes),
        }


@dataclass
class Tally:
    """Counts while reading."""

    num_rows: int = 0
    num_outside_window: int = 0
    num_unsorted: int = 0
    left_out: dict[str, int] = field(default_factory=dict)
    examples: dict[str, list[int]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def leave_out(self, reason: str, line: int) -> None:
        """Count one row that cannot be used."""
        self.left_out[reason] = self.left_out.get(reason, 0) + 1
        lines = self.examples.setdefault(reason, [])
        if len(lines) < MAX_EXAMPLES:
            lines.append(line)

    def rename(self, reason: str, better: str, line: int) -> None:
        """Count a row, just left out for one reason, under a better one."""
        self.left_out[reason] -= 1
        if line in self.examples[reason]:
            self.examples[reason].remove(line)
        if not self.left_out[reason]:
            del self.left_out[reason], self.examples[reason]
        self.leave_out(better, line)

    def report(self, path: str, trace_format: str, num_requests: int) -> ReadReport:
        """The finished account."""
        return ReadReport(
            path,
            trace_format,
            self.num_rows,
            num_requests,
            self.num_outside_window,
            dict(self.left_out),
            {reason: tuple(lines) for reason, lines in self.examples.items()},
            self.num_unsorted,
            tuple(self.notes),
        )
