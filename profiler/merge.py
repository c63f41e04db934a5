"""Profiles put together: what was measured here goes before what was published, and the published is fitted to it.

A few minutes of measuring cover a model's own shapes; a published table covers a whole grid. Where both have rows of
one kind (the same dtype and head counts, the same link and ranks), the published ones are scaled by the median ratio of
what was measured to what they predict, so that the two meet, and measured rows replace them where they coincide.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from splitplan.catalogs.errors import Problem, ProfileError
from splitplan.catalogs.gpus import Gpu
from splitplan.profiler.families import FAMILIES
from splitplan.profiler.leave_one_out import FIXED, groups_of, predict, take
from splitplan.profiler.profile import OpTable, Profile
from splitplan.profiler.query import OpTimes
from splitplan.profiler.store import make_table


def merge_profiles(base: Profile, measured: Profile, gpu: Gpu) -> Profile:
    """`measured` before `base`, both of one GPU. The engine is the base's, whose kernels fill most of the tables."""
    if base.gpu != measured.gpu or base.gpu != gpu.name:
        problem = Problem(f"profiles of {base.gpu} and {measured.gpu} cannot be merged", expected=f"both of {gpu.name}")
        raise ProfileError(problem)
    ops = OpTimes(base, gpu)
    tables: dict[str, OpTable] = {family: base.tables[family] for family in base.tables}
    scales: dict[str, str] = {}
    for family in measured.tables:
        if family not in base.tables:
            tables[family] = measured.tables[family]
            continue
        ratios = _ratios(ops, base.tables[family], measured.tables[family])
        tables[family] = _join(base.tables[family], measured.tables[family], ratios)
        if ratios:
            low, high = min(ratios.values()), max(ratios.values())
            scales[f"merged ({family})"] = (
                f"{len(measured.tables[family])} rows measured; base times {low:.2f}–{high:.2f}"
            )
    provenance = {
        **{f"base {key}": value for key, value in base.provenance.items()},
        **{f"measured {key}": value for key, value in measured.provenance.items()},
        **scales,
    }
    notes = (*base.notes, *measured.notes)
    return Profile(base.gpu, base.engine, base.engine_version, tables, provenance, notes=notes)


def _ratios(ops: OpTimes, base: OpTable, measured: OpTable) -> dict[tuple[Any, ...], float]:
    """Median measured over predicted, for each kind of row that both tables have."""
    names = FIXED.get(base.family, ())
    known = {_kind(base, rows[0], names) for rows in groups_of(base, names)}
    ratios = {}
    for rows in groups_of(measured, names):
        kind = _kind(measured, rows[0], names)
        if base.family in FIXED and kind in known:
            part = take(measured, rows)
            ratios[kind] = float(np.median(part.seconds / predict(ops, base.family, part)))
    return ratios


def _join(base: OpTable, measured: OpTable, ratios: Mapping[tuple[Any, ...], float]) -> OpTable:
    names = FIXED.get(base.family, ())
    seconds = base.seconds.copy()
    for rows in groups_of(base, names):
        seconds[rows] *= ratios.get(_kind(base, rows[0], names), 1.0)
    replaced = _same_shapes(base, measured)
    columns = FAMILIES[base.family]
    keys = {name: np.concatenate([base.keys[name][~replaced], measured.keys[name]]) for name in columns}
    return make_table(base.family, keys, np.concatenate([seconds[~replaced], measured.seconds]))


def _same_shapes(base: OpTable, measured: OpTable) -> NDArray[np.bool_]:
    columns = FAMILIES[base.family]
    wanted = set(zip(*(measured.keys[name].tolist() for name in columns), strict=True))
    return np.array([shape in wanted for shape in zip(*(base.keys[name].tolist() for name in columns), strict=True)])


def _kind(table: OpTable, row: int, names: tuple[str, ...]) -> tuple[Any, ...]:
    return tuple(table.keys[name][row].item() for name in names)
