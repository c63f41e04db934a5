"""What the independent check counts and keeps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from splitplan.planner.columns.column import Column
from splitplan.planner.program.topology import Location
from splitplan.planner.program.types import ProgramInput

RELATIVE_TOLERANCE = 1e-6
ABSOLUTE_TOLERANCE = 1e-7


@dataclass(slots=True)
class Check:
    """Counts what was checked and keeps what failed."""

    num_checked: int = 0
    failures: list[str] = field(default_factory=list)

    def at_most(self, what: str, value: float, limit: float) -> None:
        """value ≤ limit, up to rounding."""
        self.num_checked += 1
        if not value <= limit + ABSOLUTE_TOLERANCE + RELATIVE_TOLERANCE * abs(limit):
            self.failures.append(f"{what}: {value:g} > {limit:g}")

    def equal(self, what: str, value: float, other: float) -> None:
        """value = other, up to rounding."""
        self.num_checked += 1
        if not abs(value - other) <= ABSOLUTE_TOLERANCE + RELATIVE_TOLERANCE * max(abs(value), abs(other)):
            self.failures.append(f"{what}: {value:g} is not {other:g}")

    def holds(self, what: str, truth: bool) -> None:
        """A yes-or-no rule."""
        self.num_checked += 1
        if not truth:
            self.failures.append(what)


@dataclass(frozen=True, slots=True)
class Facts:
    """What the check knows: the question, its columns and the places of its fleet by name."""

    problem: ProgramInput
    columns: Mapping[str, Column]
    places: Mapping[str, Location]
