"""What simulations taught about columns: a factor on the work that a request takes of each."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from splitplan.planner.columns.column import Column


@dataclass(slots=True)
class Corrections:
    """Factors on the work of each column, learned from simulations; they hold for all variants of one solve."""

    factor: dict[str, float] = field(default_factory=dict)

    def apply(self, columns: tuple[Column, ...]) -> tuple[Column, ...]:
        """The columns with corrected work."""
        return tuple(
            replace(column, work_s_per_request=column.work_s_per_request * self.factor[column.name])
            if column.name in self.factor
            else column
            for column in columns
        )

    def scale(self, name: str, by: float) -> None:
        """Multiply one column's factor."""
        self.factor[name] = self.factor.get(name, 1.0) * by
