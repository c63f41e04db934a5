"""What is in a profile, for people: rows and ranges of each table, and how well it predicts itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from splitplan.catalogs.gpus import Gpu
from splitplan.profiler.families import FAMILIES, TEXT_COLUMNS
from splitplan.profiler.leave_one_out import AXES, HeldOut, leave_points_out
from splitplan.profiler.profile import OpTable, Profile

PRECEDENCE = "measured on this host, then imported, then another GPU's scaled by the rooflines, then the roofline"
"""Which source a time is taken from, first to last."""


@dataclass(frozen=True, slots=True)
class TableFacts:
    """One table. `held_out` is None where no check is defined or the table has no interior points."""

    family: str
    num_rows: int
    columns: Mapping[str, str]  # column → its words, or "from–to (how many values)"
    held_out: HeldOut | None

    @property
    def check(self) -> str:
        """The leave-one-out error in words, or nothing."""
        if self.held_out is None:
            return ""
        axis = AXES[self.family][0]
        return f"one {axis} left out: median {self.held_out.median:.1%}, p90 {self.held_out.p90:.1%}"


def describe(profile: Profile, gpu: Gpu | None = None, *, passes: int = 2, limit: int = 0) -> list[TableFacts]:
    """Facts of each table, in order of family; with `gpu`, each is also checked against itself.

    `passes` and `limit` as in `leave_points_out`: one pass over 150 lines takes half a second.
    """
    facts = []
    for family in sorted(profile.tables):
        table = profile.tables[family]
        columns = {name: _range(name, table.keys[name]) for name in FAMILIES[family]}
        facts.append(TableFacts(family, len(table), columns, _check(profile, gpu, table, passes, limit)))
    return facts


def _range(name: str, column: NDArray[np.generic]) -> str:
    values = np.unique(column)
    if name in TEXT_COLUMNS:
        return ", ".join(str(value) or "any" for value in values)
    if len(values) <= 4:
        return ", ".join(f"{int(value):,}" for value in values)
    return f"{int(values[0]):,}–{int(values[-1]):,} ({len(values)} values)"


def _check(profile: Profile, gpu: Gpu | None, table: OpTable, passes: int, limit: int) -> HeldOut | None:
    if gpu is None or table.family not in AXES:
        return None
    held_out = leave_points_out(profile, gpu, table.family, AXES[table.family][0], passes=passes, limit=limit)
    return held_out if len(held_out.errors) else None
