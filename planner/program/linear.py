"""A linear program with names, as plain data: what the builder writes and every solver adapter reads."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from splitplan.catalogs.errors import SolverError

Sense = Literal["<=", "==", ">="]
Terms = list[tuple[int, float]]
INFINITY = float("inf")


@dataclass(slots=True)
class LinearModel:
    """Variables and constraints in order of definition. Indices are positions; names are for people."""

    variable_names: list[str] = field(default_factory=list)
    low: list[float] = field(default_factory=list)
    high: list[float] = field(default_factory=list)
    integer: list[bool] = field(default_factory=list)
    constraint_names: list[str] = field(default_factory=list)
    rows: list[Terms] = field(default_factory=list)
    senses: list[Sense] = field(default_factory=list)
    rhs: list[float] = field(default_factory=list)
    objective: dict[int, float] = field(default_factory=dict)
    maximise: bool = False
    zero: int | None = None  # a variable that is always 0

    def add_variable(self, name: str, low: float = 0.0, high: float = INFINITY, *, integer: bool = False) -> int:
        """A new variable; returns its index."""
        self.variable_names.append(name)
        self.low.append(low)
        self.high.append(high)
        self.integer.append(integer)
        return len(self.low) - 1

    def add_constraint(self, name: str, terms: Iterable[tuple[int, float]], sense: Sense, rhs: float) -> int:
        """A new constraint over (variable, coefficient) terms; terms of one variable add up. Returns its index."""
        merged: dict[int, float] = {}
        for variable, coefficient in terms:
            merged[variable] = merged.get(variable, 0.0) + coefficient
        row = [(variable, coefficient) for variable, coefficient in merged.items() if coefficient != 0.0]
        if not all(abs(coefficient) < INFINITY for _, coefficient in row) or not abs(rhs) < INFINITY:
            raise SolverError(f"constraint {name} has a coefficient that is not finite")
        if not row:  # a promise about nothing: kept as a row over a zero, so that a broken one is seen as infeasible
            row = [(self._zero(), 1.0)]
        self.constraint_names.append(name)
        self.rows.append(row)
        self.senses.append(sense)
        self.rhs.append(rhs)
        return len(self.rows) - 1

    def _zero(self) -> int:
        if self.zero is None:
            self.zero = self.add_variable("zero", 0.0, 0.0)
        return self.zero

    def copy(self) -> LinearModel:
        """An independent copy that shares the rows themselves (rows are never edited in place)."""
        return LinearModel(
            list(self.variable_names),
            list(self.low),
            list(self.high),
            list(self.integer),
            list(self.constraint_names),
            list(self.rows),
            list(self.senses),
            list(self.rhs),
            dict(self.objective),
            self.maximise,
            self.zero,
        )

    def with_objective(self, objective: dict[int, float], *, maximise: bool = False) -> LinearModel:
        """A copy with another objective."""
        other = self.copy()
        other.objective, other.maximise = dict(objective), maximise
        return other

    def with_fixed(self, values: dict[int, float]) -> LinearModel:
        """A copy in which the given variables are constants and no longer integer."""
        other = self.copy()
        for variable, value in values.items():
            other.low[variable] = other.high[variable] = value
            other.integer[variable] = False
        return other

    def relaxed(self) -> LinearModel:
        """A copy without integrality."""
        other = self.copy()
        other.integer = [False] * len(other.integer)
        return other

    @property
    def has_integers(self) -> bool:
        """Whether any variable is integer."""
        return any(self.integer)
